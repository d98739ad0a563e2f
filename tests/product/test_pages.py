"""Pages: their figures are those of the report, every text is escaped, and nothing is loaded from anywhere."""

from __future__ import annotations

import json
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import fencepost as fp
import fencepost.state
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import Columns, Policy, cli, kafka, lake
from fencepost.generate import LandingZone, generate
from fencepost.pages import charts
from fencepost.pages.audit import audit_page
from fencepost.pages.history import history_page
from fencepost.pages.html import Html, tag, visible
from fencepost.pages.run import run_page
from fencepost.pages.tables import share
from fencepost.state.history import about
from support.kafka_logs import DATA
from support.lake import read_sink
from support.pages import HOSTILE, LANDING, rows_of
from support.retained import abandon_next, go, make_job
from support.retained import opened as retained

VOID = {"meta", "input", "br", "col", "path", "rect", "line"}


class Parsed(HTMLParser):
    """A page: its elements, its text, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.commands: list[str] = []
        self.feed(html)
        assert not [it for it in self.open if it not in VOID], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "code":
            self.commands.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))
        if "code" in self.open:
            self.commands[-1] += data

    @property
    def text(self) -> str:
        return " ".join(text for kind, text in self.texts if kind not in ("script", "style"))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def check_page(html: str) -> Parsed:
    """What holds of every page."""
    page = Parsed(html)
    names = [name for name, _ in page.elements]
    assert names.count("script") == names.count("style") == names.count("h1") == names.count("main") == 1
    for name, attributes in page.elements:
        assert not [it for it in attributes if it.startswith("on")], name
        assert not {"src", "action", "srcset", "data", "formaction"} & set(attributes), name
        for key in ("href", "xlink:href"):
            assert (attributes.get(key) or "#").startswith("#"), name
        assert "url(" not in (attributes.get("style") or "")
    own = [text for kind, text in page.texts if kind in ("script", "style")]
    assert not re.search(r"https?:|@import|url\(|fetch\(|import\(", "".join(own))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(it["href"] or "")[1:] for it in page.all("a")}
    assert targets <= set(ids)
    sections = page.all("section")
    assert all(it["aria-labelledby"] in ids for it in sections)
    assert all(it.get("role") == "img" and it.get("aria-label") for it in page.all("svg"))
    assert all(it.get("scope") == "col" for it in page.all("th"))
    return page


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zone")
    generate(path, LandingZone(rows=60_000, producers=40, payload_bytes=4, zombie_share=1.0, missing_share=0.01))
    return path / "landing"


def test_the_answers_are_the_figures_of_the_audit(zone: Path) -> None:
    report = lake.audit(zone, columns=LANDING)
    page = check_page(report.to_html())
    assert [it.name for it in audit_page(report).sections] == [
        "repeats", "lost", "producers", "since", "zombies", "restarts"
    ]  # fmt: skip
    sections = {it.name: it for it in audit_page(report).sections}
    assert sections["repeats"].figure == f"{report.counts['DUPLICATE']:,} rows"
    assert sections["lost"].figure == f"{report.missing_rows:,} rows"
    with_findings = len({row["pid"] for row in report.keys.to_pylist()})
    assert sections["producers"].figure == f"{with_findings:,} of {report.producers:,}"
    assert f"{report.stale_epoch:,} rows" in sections["zombies"].answer
    for section in sections.values():
        assert section.figure in page.text
        assert visible(section.answer) in page.text
        assert {it.line for it in section.commands} <= set(page.commands)
    drawn = {it.name for section in sections.values() for it in section.charts}
    assert drawn == set(report.charts) == {"over_time", "distances", "producers", "partitions", "heat_map"}


def test_charts_have_the_numbers_of_the_report(zone: Path) -> None:
    report = lake.audit(zone, columns=LANDING)
    kinds = ("duplicates", "missing", "stale", "refused")
    sums = {kind: sum(report.timeline[kind].to_pylist()) for kind in kinds}
    assert sums == {
        "duplicates": report.counts["DUPLICATE"], "missing": report.missing_rows,
        "stale": report.stale_epoch, "refused": 0,
    }  # fmt: skip
    assert report.plot().name == "over_time"
    assert report.plot("distances").to_svg() == report.charts["distances"].to_svg()
    with pytest.raises(ValueError, match=r"chart 'pie' does not exist; .*: over_time, distances"):
        report.plot("pie")
    over_time = report.charts["over_time"].numbers
    drawn = dict(zip(over_time.columns, map(sum, zip(*over_time.rows, strict=True)), strict=True))
    assert (drawn["Repeats"], drawn["Missing"], drawn["All rows"]) == (
        sums["duplicates"], sums["missing"], report.rows - report.counts["UNTRACKED"]
    )  # fmt: skip
    distances = report.charts["distances"].numbers
    assert sum(row[1] for row in distances.rows) == sum(report.distances["repeats"].to_pylist())
    table = report.charts["producers"].numbers
    assert table.last is not None
    repeats = table.columns.index("repeats")
    assert table.last[repeats] == sum(row[repeats] for row in table.rows)
    heat = report.charts["heat_map"].numbers
    of_key = {(row["pid"], row["partition_0"], row["partition_1"]): row for row in report.keys.to_pylist()}
    for line in heat.rows:
        for name, count in zip(heat.columns[1:], line[1:], strict=True):
            topic, _, partition = name.partition(" / ")
            row = of_key.get((int(line[0]), topic, int(partition)))
            assert count == (sum(row[kind] for kind in kinds) if row else 0)


def test_every_text_is_escaped(tmp_path: Path) -> None:
    report = fp.audit(rows_of(HOSTILE), columns=Columns())
    html = report.to_html()
    page = check_page(html)
    for text in HOSTILE:
        shown = visible(text)
        assert (shown if len(shown) <= 120 else shown[:119]) in page.text
    assert "alert(1)</script>" not in html
    assert "\u202e" not in html
    assert "\x00" not in html


def test_columns_folders_and_errors_are_escaped_too(tmp_path: Path) -> None:
    folder = tmp_path / "<b>&'\"folder"
    folder.mkdir()
    rows = rows_of(["p"]).rename_columns(["<i>pid", "epoch", "partition", "seq"])
    pq.write_table(rows, folder / "<u>.parquet")
    (folder / "z<script>.parquet").write_bytes(b"no parquet <script>alert(1)</script>")
    report = lake.audit(folder, columns=Columns(pid="<i>pid"))
    page = check_page(report.to_html())
    assert not {"b", "i", "u"} & {name for name, _ in page.elements}
    assert "z<script>.parquet" in page.text
    assert f"'{folder}'".replace("'\"", "'\"'\"'\"") in page.text.replace("'\"'\"'", "'\"'\"'")


def test_a_report_without_findings_has_a_text_for_it() -> None:
    rows = pa.table({"pid": [1, 1], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 1], "timestamp": [0, 1]})
    report = fp.audit(rows, columns=Columns(timestamp="timestamp"))
    sections = {it.name: it for it in audit_page(report).sections}
    assert [it.mood for it in sections.values()] == ["good"] * 6
    assert report.charts == {}
    with pytest.raises(ValueError, match="no findings"):
        report.plot()
    check_page(report.to_html())
    nothing = fp.audit(rows.slice(0, 0))
    check_page(nothing.to_html())


def test_without_timestamps_the_page_says_what_is_unknown() -> None:
    report = fp.audit(rows_of(list(range(5))))
    sections = {it.name: it for it in audit_page(report).sections}
    assert (sections["since"].mood, sections["restarts"].mood) == ("unknown", "unknown")
    assert "--timestamp" in sections["since"].commands[0].line
    assert report.charts["over_time"].title == "Findings by position"
    check_page(report.to_html())


@pytest.mark.parametrize("policy", ["in_order", "kafka", "strict", "watermark"])
def test_every_policy_has_its_page(policy: str, zone: Path) -> None:
    rules: Policy = getattr(Policy, policy)()
    epoch = None if rules.columns.epoch is None else "epoch"
    columns = Columns(epoch=epoch, partition=("topic", "partition"), timestamp="timestamp")
    report = lake.audit(zone, rules, columns)
    page = check_page(report.to_html())
    refused = sum(report.counts.get(it, 0) for it in ("OUT_OF_ORDER", "FENCED", "FORGOTTEN"))
    assert refused or policy == "watermark", "which calls late rows duplicates"
    assert f"{refused:,} rows" in page.text
    assert sum(report.keys["refused"].to_pylist()) == refused


def test_losses_without_a_time() -> None:
    rows = pa.table({"pid": [1, 1], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 5], "timestamp": [0, 1]})
    sections = {it.name: it for it in audit_page(fp.audit(rows, "in_order", Columns(timestamp="timestamp"))).sections}
    assert (sections["lost"].figure, sections["since"].mood) == ("4 rows", "unknown")
    table = fp.StateTable("any_order", keep=("timestamp",))
    table.apply(rows, Columns(timestamp="timestamp"))
    known = fp.audit(rows.slice(0, 0), columns=Columns(timestamp="timestamp"), table=table)
    sections = {it.name: it for it in audit_page(known).sections}
    assert (sections["lost"].figure, sections["since"].figure) == ("4 rows", "1970-01-01 00:00")
    check_page(known.to_html())


# Files, notebooks, the command line


def test_every_report_has_its_charts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = rows_of(["p"])
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    run = lake.DedupJob(str(tmp_path / "in"), str(tmp_path / "state"), str(tmp_path / "out"), sync=False).run()
    advice = fp.advise(rows)
    log = kafka.audit(DATA)
    assert {type(it).__name__: list(it.charts) for it in (run, advice, log)} == {
        "RunReport": ["verdicts", "steps"], "Advice": ["policies"], "LogAudit": ["partitions"]
    }  # fmt: skip
    verdicts = run.plot().numbers
    assert {row[0]: row[1] for row in verdicts.rows} == run.counts
    assert advice.plot().numbers.rows == [list(it.values()) for it in advice.policies.to_pylist()]
    for report in (run, advice, log):
        for name, chart in report.charts.items():
            chart.save(tmp_path / f"{name}.svg")
            chart.save(tmp_path / f"{name}.png")
            assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
            assert report.plot(name)._repr_svg_() == chart.to_svg()
        assert "srcdoc" in (report._repr_html_() or "")
        with pytest.raises(ValueError, match=f"chart 'pie' does not exist; .*: {report.plot().name}"):
            report.plot("pie")


def test_files_of_a_chart(tmp_path: Path) -> None:
    chart = fp.audit(rows_of([1, 2])).charts["producers"]
    chart.save(tmp_path / "chart.svg")
    chart.save(tmp_path / "dark.svg", theme="dark")
    chart.save(tmp_path / "chart.png")
    svg = (tmp_path / "chart.svg").read_text()
    assert svg.startswith("<svg")
    assert "var(" not in svg
    assert charts.COLORS["duplicates"][0] in svg
    assert charts.COLORS["duplicates"][1] in (tmp_path / "dark.svg").read_text()
    assert (tmp_path / "chart.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "var(--c-duplicates)" in chart.to_svg("page")
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        chart.save(tmp_path / "chart.gif")


def test_a_notebook_shows_the_page_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    report = fp.audit(rows_of([1]))
    frame = report._repr_html_()
    assert frame is not None
    (attributes,) = (it for name, it in Parsed(frame).elements if name == "iframe")
    assert attributes["srcdoc"] == report.to_html()
    assert attributes["sandbox"] == "allow-scripts"
    monkeypatch.setattr(charts, "is_installed", lambda: False)
    assert report._repr_html_() is None


def test_without_the_extra_an_error_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(fp.FencepostError, match=r"pip install 'fencepost\[report\]'"):
        fp.audit(rows_of([1])).to_html()


def test_the_command_line_writes_a_page(zone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["--partition", "topic", "--partition", "partition", "--timestamp", "timestamp"]
    out = tmp_path / "report.html"
    assert cli.main(["audit", str(zone), *keys, "--html", str(out), "-q"]) == 0
    page = check_page(out.read_text())
    assert [it.name for it in tmp_path.iterdir()] == ["report.html"]
    assert f"fencepost dedup {zone} STATE CLEAN {' '.join(keys)}" in page.commands
    code = cli.main(["audit", str(zone), *keys, "--html", str(tmp_path / "none" / "report.html")])
    assert (code, "there is no folder" in capsys.readouterr().err) == (2, True)


def test_pages_of_runs_and_states(zone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, sink = tmp_path / "state", tmp_path / "clean"
    keys = ["--partition", "topic", "--partition", "partition"]
    page, history = tmp_path / "run.html", tmp_path / "state.html"
    job = ["dedup", str(zone), str(state), str(sink), *keys, "--files-max", "6", "--no-sync"]
    assert cli.main([*job, "--html", str(page), "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    assert f"{kept:,} rows" in check_page(page.read_text()).text
    opened = fencepost.state.open(state)
    assert opened.charts == {}
    with pytest.raises(ValueError, match=r"charts .*: none"):
        opened.plot()
    assert cli.main([*job, "-q"]) == 0
    assert cli.main([*job, "-q"]) == 0
    assert cli.main(["state", "show", str(state), "--html", str(history), "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)["versions"]
    text = check_page(history.read_text()).text
    assert f"{sum(it['kept'] for it in versions):,} rows" in text
    opened = fencepost.state.open(state)
    assert opened.history() == versions
    assert opened.history(2) == versions[-2:]
    assert check_page(opened.to_html()).text == text
    assert "srcdoc" in (opened._repr_html_() or "")
    numbers = opened.plot("versions").numbers
    assert [row[numbers.columns.index("kept")] for row in numbers.rows] == [it["kept"] for it in versions][::-1]
    assert cli.main([*job, "--html", str(page), "-q"]) == 0
    check_page(page.read_text())


def test_a_page_counts_rows_once_that_two_versions_have_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One version was abandoned, another one rolled back, so that later runs have read their files again."""
    go(tmp_path, 0)
    abandon_next(tmp_path, 1, monkeypatch)
    assert make_job(tmp_path).run().version == 3
    own = retained(tmp_path)
    for path in (tmp_path / "sink" / "run=3").glob("*.parquet"):
        path.unlink()
    own.rollback(1)
    assert make_job(tmp_path).run().version == 5
    sections = {it.name: it for it in history_page(about(own), own.history()).sections}
    assert sections["kept"].figure == f"{read_sink(tmp_path).height:,} rows"
    assert "newest 5 versions, of 80 rows read" in sections["kept"].answer
    assert "do not count" in sections["kept"].answer
    assert len(sections["kept"].tables[0].rows) == 5
    check_page(own.to_html())


def test_the_page_of_a_seed_does_not_say_that_it_wrote_rows(tmp_path: Path) -> None:
    nothing = [0] * 2_500
    rows = pa.table({"pid": nothing, "epoch": nothing, "partition": nothing, "seq": range(0, 5_000, 2)})
    (tmp_path / "source").mkdir()
    pq.write_table(rows, tmp_path / "source" / "clean.parquet")
    report = make_job(tmp_path).seed()
    assert (report.kept, report.outputs) == (2_500, ())
    sections = {it.name: it for it in run_page(report).sections}
    assert sections["kept"].answer.startswith("were kept, of 2,500 rows read. 0 were not.")
    assert sections["lost"].tables[0].total == report.missing_ranges > len(report.missing)
    assert "written" not in check_page(report.to_html()).text


def test_the_page_of_advice(zone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "advice.html"
    assert cli.main(["advise", str(zone), "--html", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    page = check_page(out.read_text())
    assert page.commands == [told["command"]]
    for fact in told["facts"]:
        assert fact["evidence"] in page.text
    kept = [row["ACCEPTED"] + row.get("UNTRACKED", 0) for row in told["policies"]]
    assert f"keep {min(kept):,} to {max(kept):,} of these rows" in page.text
    check_page(fp.advise(rows_of(HOSTILE), Columns()).to_html())


# Parts


def test_text_of_reports_is_escaped() -> None:
    assert tag("p", "<b>", Html("<i>"), None, ["x", 1], title='"', hidden=True, lang=None) == (
        '<p title="&quot;" hidden>&lt;b&gt;<i>x1</p>'
    )


def test_shares_are_not_rounded_to_0_or_100_percent() -> None:
    assert [share(it) for it in (0, 1e-9, 0.5, 1 - 1e-9, 1)] == [
        "0.00%", "< 0.01%", "50.00%", "> 99.99%", "100.00%"
    ]  # fmt: skip


def test_the_size_of_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(many_producers(50_000).to_html()) < 1_000_000


@pytest.mark.matrix
def test_a_page_of_a_million_producers() -> None:
    report = many_producers(1_000_000)
    begun = time.perf_counter()
    html = report.to_html()
    seconds = time.perf_counter() - begun
    print(f"{len(html):,} bytes in {seconds:.1f} s")
    assert len(html) < 1_000_000
    check_page(html)


def many_producers(count: int) -> fp.AuditReport:
    """The report of so many producers, each with findings, over a year."""
    pid = np.repeat(np.arange(count), 4)
    seq = np.tile([0, 1, 1, 4], count)
    rows = {
        "pid": pa.array(pid).cast(pa.string()),
        "epoch": np.zeros(4 * count, np.int16),
        "partition": pid % 1_000,
        "seq": seq,
        "timestamp": np.arange(4 * count) * (365 * 86_400_000 // (4 * count)) + seq,
    }
    return fp.audit(pa.table(rows), columns=Columns(timestamp="timestamp"))
