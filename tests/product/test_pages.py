"""Pages: their figures are those of the report, every text is escaped, and nothing is loaded from anywhere."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fencepost as fp
import fencepost.lake.judge
import fencepost.lake.run_report
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
from fencepost.pages.kafka import log_page
from fencepost.pages.page import Section
from fencepost.pages.run import run_page
from fencepost.pages.tables import share
from fencepost.state.history import about
from support import daily
from support.kafka_logs import DATA
from support.lake import land, make_rows, read_sink
from support.pages import HOSTILE, LANDING, rows_of
from support.retained import abandon_next, go, make_job
from support.retained import opened as retained

TIMED = Columns(timestamp="timestamp")
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


def answers_of(report: fp.AuditReport) -> dict[str, Section]:
    return {it.name: it for it in audit_page(report).sections}


def test_the_answers_are_the_figures_of_the_audit(zone: Path) -> None:
    report = lake.audit(zone, columns=LANDING)
    page = check_page(report.to_html())
    sections = answers_of(report)
    assert list(sections) == ["repeats", "lost", "producers", "since", "zombies", "restarts"]
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


def test_answers_with_findings_have_examples_and_a_command(zone: Path) -> None:
    report = lake.audit(zone, columns=LANDING)
    sections = answers_of(report)
    examples = {
        name: table for name, section in sections.items() for table in section.tables if "xamples" in table.caption
    }
    assert set(examples) == {name for name, section in sections.items() if section.commands} == {
        "repeats", "lost", "producers", "since", "zombies"
    }  # fmt: skip
    for table in examples.values():
        assert {"pid", "epoch", "seq", "timestamp", "file", "row"} <= set(table.columns)
        assert 0 < len(table.rows) <= 10
    assert {row[0] for row in examples["lost"].rows} == {"before a gap", "after a gap"}
    assert len({row[0] for row in examples["producers"].rows}) > 1
    times = [row[examples["since"].columns.index("timestamp")] for row in examples["since"].rows]
    assert times == sorted(times)
    findings: Counter[int] = Counter()
    for row in report.keys.to_pylist():
        findings[row["pid"]] += sum(row[kind] for kind in ("duplicates", "missing", "stale", "refused"))
    shown = [findings[row[examples["producers"].columns.index("pid")]] for row in examples["producers"].rows]
    assert shown == sorted(shown, reverse=True)


def test_a_text_file_has_a_command_that_removes_its_repeats(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("pid,epoch,partition,seq\n1,0,0,0\n1,0,0,0\n")
    (line,) = (it.line for it in answers_of(lake.audit(tmp_path / "a.csv"))["repeats"].commands)
    line = line.replace("STATE", str(tmp_path / "state")).replace("CLEAN", str(tmp_path / "clean"))
    assert cli.main([*shlex.split(line)[1:], "--no-sync", "-q"]) == 0
    assert len(lake.dataset(tmp_path / "clean").to_table()) == 1


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


def test_every_text_is_escaped() -> None:
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
    report = fp.audit(rows, columns=TIMED)
    sections = answers_of(report)
    assert [it.mood for it in sections.values()] == ["good"] * 6
    assert report.charts == {}
    with pytest.raises(ValueError, match="no findings"):
        report.plot()
    check_page(report.to_html())
    nothing = fp.audit(rows.slice(0, 0))
    check_page(nothing.to_html())


def test_without_timestamps_the_page_says_what_is_unknown() -> None:
    report = fp.audit(rows_of(list(range(5))))
    sections = answers_of(report)
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


def test_losses_without_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"pid": [1, 1], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 5], "timestamp": [0, 1]})
    pq.write_table(rows, "a.parquet")
    sections = answers_of(lake.audit("a.parquet", "in_order", TIMED))
    assert (sections["lost"].figure, sections["since"].mood) == ("4 rows", "unknown")
    assert cli.main([*shlex.split(sections["since"].commands[0].line)[1:], "-q"]) == 0
    assert "1970-01-01 00:00 is the time" in check_page((tmp_path / "report.html").read_text()).text
    table = fp.StateTable("any_order", keep=("timestamp",))
    table.apply(rows, TIMED)
    known = fp.audit(rows.slice(0, 0), columns=TIMED, table=table)
    sections = answers_of(known)
    assert (sections["lost"].figure, sections["since"].figure) == ("4 rows", "1970-01-01 00:00")
    check_page(known.to_html())


@pytest.mark.parametrize("policy", ["kafka", "strict", "watermark", "kafka_offsets"])
def test_gaps_that_a_policy_does_not_count_are_unknown(policy: str) -> None:
    """Also if it refuses what follows a gap: nothing says that no row is missing."""
    rules: Policy = getattr(Policy, policy)()
    rows = {name: [0, 0, 0] for name in rules.columns.names} | {rules.columns.seq: [0, 1, 9]}
    report = fp.audit(pa.table(rows), policy)
    lost = answers_of(report)["lost"]
    assert (lost.figure, lost.mood) == ("Not known", "unknown")
    assert report.rules.why_gaps_are_unknown in lost.answer.replace("This", "this")
    assert re.search(r"missing +\? +not looked for", str(report))
    with pytest.raises(fp.PolicyError, match="did not search for 'missing'"):
        report.count_findings("missing")


def test_a_gap_that_the_policy_never_closes_has_a_note() -> None:
    rows = pa.table({"pid": [1] * 3, "epoch": [0] * 3, "partition": [0] * 3, "seq": [0, 2, 1]})
    (note,) = answers_of(fp.audit(rows, "in_order"))["lost"].notes
    assert "late are not kept" in note
    (note,) = answers_of(fp.audit(rows.slice(0, 2)))["lost"].notes
    assert "still be filled" in note


def test_gaps_that_are_given_up_are_mentioned() -> None:
    rows = pa.table({"pid": [1] * 3, "epoch": [0] * 3, "partition": [0] * 3, "seq": [0, 5, 5_000]})
    report = fp.audit(rows.slice(0, 2), Policy.any_order().replace(reach=10))
    assert (report.missing_rows, "10 below" in str(report)) == (4, True)
    report = fp.audit(rows, Policy.any_order().replace(reach=10))
    assert 0 < report.missing_rows <= 10
    assert "10 below" in answers_of(report)["lost"].notes[-1]


@pytest.mark.parametrize("wrong", [0, 4_000_000_000_000], ids=["behind", "ahead"])
@pytest.mark.parametrize("is_active", [False, True])
def test_a_wrong_clock_does_not_hide_a_zombie_or_show_one(wrong: int, is_active: bool) -> None:
    """One row of 1970 or 2096 among those of a day."""
    count, day = 1_000, 1_760_000_000_000
    times = [*(day + it * 86_400 for it in range(count)), wrong]
    epochs = [1] * (count + 1)
    at = count - 1 if is_active else count // 4
    epochs[at] = 0
    rows = pa.table(
        {"pid": [1] * (count + 1), "epoch": epochs, "partition": [0] * (count + 1), "seq": range(count + 1)}
        | {"timestamp": times}
    )
    report = fp.audit(rows, columns=TIMED)
    assert answers_of(report)["zombies"].figure == ("Yes" if is_active else "Not any more")


def test_an_end_is_not_before_the_last_row() -> None:
    rows = rows_of([1], timestamp=[0, 10_000, 20_000, 30_000])
    assert "ends before 1970-01-01 00:01" in answers_of(fp.audit(rows, columns=TIMED))["since"].answer


def test_producers_that_only_the_table_knows_are_no_part_of_the_data() -> None:
    table = fp.StateTable("any_order")
    table.apply(rows_of([1, 2, 3]))
    producers = answers_of(fp.audit(rows_of([3, 4]).slice(0, 4), table=table))["producers"]
    assert producers.figure == "1 of 1"
    assert "2 producers have no rows" in producers.notes[-1]


def test_a_position_in_several_files_has_its_file(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(rows_of([number]).slice(0, 4 if number == 2 else 2), tmp_path / f"{number}.parquet")
    answer = answers_of(lake.audit(tmp_path))["since"].answer
    assert "at row 6 of all rows, which is in 2.parquet" in answer


@pytest.mark.parametrize(
    ("policy", "has_times"),
    daily.each_value(("any_order", "in_order", "kafka_offsets", "watermark"), (True, False)),
)
def test_commands_of_a_page_can_be_executed(
    policy: str, has_times: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names that the reader has to fill in."""
    rules: Policy = getattr(Policy, policy)()
    seqs = [*range(20), 5, 3, 30, 21]
    columns = {"source": [7] * 24, "epoch": [0, 1, *[0] * 22], "partition": [0] * 24, "number": seqs}
    columns |= {"boot": [0] * 24, "at": [*range(23), 5]}
    (tmp_path / "landing").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "landing" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    epoch = None if rules.epochs == "ignore" else "epoch"
    named = Columns(pid="source", epoch=epoch, seq="number", timestamp="at" if has_times else None)
    page = check_page(lake.audit("landing", rules, named).to_html())
    assert page.commands
    for number, line in enumerate(page.commands):
        line = line.replace("--epoch COLUMN", "--epoch boot").replace("--timestamp COLUMN", "--timestamp at")
        line = line.replace("STATE", f"state{number}").replace("CLEAN", f"clean{number}")
        words = shlex.split(line)[1:]
        if words[0] == "dedup":
            words += ["--rejected-max", "1", "--no-sync"]
        assert cli.main(words) == 0, (line, capsys.readouterr().err)
    commands = {line.split()[1] for line in page.commands}
    assert {"dedup"} < commands <= {"advise", "audit", "dedup"}


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


def test_without_the_extra_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_history_has_gaps_and_seconds_of_each_run(tmp_path: Path) -> None:
    begun = time.perf_counter()
    reports = []
    for seed in range(6):
        land(tmp_path / "source", f"{seed}.parquet", make_rows(seed, 40))
        reports.append(make_job(tmp_path).run())
    own = retained(tmp_path)
    history = own.history()
    for report, it in zip(reports, history, strict=True):
        changes = dict(report.missing_changes)
        assert (it["missing_opened"], it["missing_closed"]) == (changes.pop("OPEN", 0), sum(changes.values()))
        assert 0 < it["seconds"] < sum(report.seconds.values()) + 1
        assert not {"missing_opened", "missing_closed", "seconds"} & set(it["report"] or {})
    assert sum(it["seconds"] for it in history) < time.perf_counter() - begun
    opened, closed = (sum(it[name] for it in history) for name in ("missing_opened", "missing_closed"))
    assert opened - closed == len(own.missing()) < opened
    page = history_page(about(own), history)
    kept, lost, _, seconds = page.sections
    assert f"opened {opened:,} gaps and closed {closed:,}" in lost.notes[0]
    assert seconds.figure == f"{history[-1]['seconds']:,.2f} seconds"
    assert {"gaps opened", "gaps closed", "seconds"} <= set(kept.tables[0].columns)
    titles = {panel["title"]["text"] for panel in page.charts()["versions"].spec("wide")["vconcat"]}
    assert len({it for it in titles if "Gaps" in it or "Seconds" in it}) == 3
    own.rollback(6, accept_duplicates=True)
    assert own.history(1)[0]["seconds"] is None
    check_page(own.to_html())


def test_a_page_counts_rows_once_that_two_versions_have_read(tmp_path: Path) -> None:
    """One version was abandoned, another one rolled back, so that later runs have read their files again."""
    go(tmp_path, 0)
    abandon_next(tmp_path, 1)
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


def test_a_table_of_a_run_says_how_many_lines_there_are_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a run has the first lines of its tables only."""
    for module in (fencepost.lake.judge, fencepost.lake.run_report):
        monkeypatch.setattr(module, "SHOWN_MAX", 60)
    (tmp_path / "in").mkdir()
    count = 100
    rows = {"pid": [7] * 2 * count, "epoch": [0] * 2 * count, "partition": [0] * 2 * count}
    rows |= {"seq": [*range(0, 2 * count, 2)] * 2, "value": range(2 * count)}
    pq.write_table(pa.table(rows), tmp_path / "in" / "a.parquet")
    options: dict[str, Any] = {"compare_content": True, "on_conflict": "quarantine", "sync": False}
    report = lake.DedupJob(tmp_path / "in", tmp_path / "state", tmp_path / "out", **options).run()
    assert (report.missing_ranges, report.counts["CONFLICT"], len(report.missing)) == (99, 100, 60)
    text = check_page(report.to_html()).text
    assert "the first 50 of 99 " in text
    assert "the first 10 of 100 " in text
    suspects = pa.table({"pid": range(60), "rows": [2] * 60, "duplicates": [1] * 60, "retimed": [1] * 60})
    report = dataclasses.replace(report, suspected_resets=suspects, reset_keys=70, resets_looked_for=True)
    assert "the first 50 of 70 " in check_page(report.to_html()).text
    assert re.search(r"resets +70 +keys ", str(report))


def version_of(number: int, **figures: Any) -> dict[str, Any]:
    names = ("files", "rows", "kept", "not_kept", "missing_rows", "missing_open", "stale_epoch", "entries")
    made = dict.fromkeys((*names, "state_bytes"), 0)
    made |= dict.fromkeys(("missing_opened", "missing_closed", "seconds"))
    made |= {"version": number, "builds_on": number - 1, "kind": "run", "status": "applied", "decided": None}
    return {**made, **figures}


def test_an_abandoned_version_has_kept_no_rows() -> None:
    versions = [
        version_of(1, rows=10, kept=9, state_bytes=5, missing_open=0),
        version_of(2, rows=100, kept=90, missing_rows=4, missing_open=4, stale_epoch=1, status="abandoned"),
    ]
    page = history_page({"state": "x"}, versions)
    kept, lost, grown = page.sections
    assert (kept.figure, lost.figure, grown.figure) == ("9 rows", "Nothing", "5 bytes")
    assert "the newest 2 versions, of 10 rows" in kept.answer
    assert "do not count" in kept.answer
    assert page.more == []
    check_page(page.to_html())


def test_gaps_of_versions_that_are_not_listed_are_missing_still() -> None:
    unknown = version_of(7, missing_rows=None, missing_open=None, stale_epoch=None)
    page = history_page({"state": "x"}, [unknown, version_of(8, missing_open=12)])
    lost = page.sections[1]
    assert (lost.figure, lost.mood) == ("12 rows", "bad")
    assert "state export x" in lost.commands[0].line
    spec = page.charts()["versions"].spec("wide")
    assert [[it["a"] for it in panel["data"]["values"]] for panel in spec["vconcat"]] == [[8]], "7 is not known"


def test_more_rows_are_missing_than_64_bits_can_count() -> None:
    versions = [version_of(number, missing_rows=2**65, missing_open=number * 2**65) for number in (1, 2)]
    check_page(history_page({"state": "x"}, versions).to_html())


def test_gaps_of_a_compacted_partition_are_not_among_the_lost_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Partitions are in the order of their names, and a page shows the first lines of a table only."""
    for name in ("clicks-0", "orders-0"):
        shutil.copytree(DATA / name, tmp_path / name)
        batches = pa.table(kafka.read_batches(tmp_path / name)).to_pylist()
        path = tmp_path / name / batches[3]["segment"]
        data, at = path.read_bytes(), batches[3]["position"]
        path.write_bytes(data[:at] + data[at + batches[3]["bytes"] :])
    report = kafka.audit(tmp_path, now_ms="newest", cleanup_policy={"clicks": "compact", "*": "delete"})
    sections = {it.name: it for it in log_page(report).sections}
    tables = {table.caption: table for table in sections["lost"].tables}
    assert set(tables) == {"Holes"}
    for table in tables.values():
        assert {row[0] for row in table.rows} == {"orders"}
    assert "1 partition is compacted" in sections["lost"].notes[0]
    check_page(report.to_html())
    line = sections["lost"].commands[0].line
    assert cli.main([*shlex.split(line)[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"]["missing"] == report.count_findings()["missing"]


def test_the_transactions_that_hang_come_first() -> None:
    report = kafka.audit(DATA, now_ms=0)
    whole = next(it for it in report.partitions if len(it.open))
    late = [*[False] * 60, True]
    opened = pa.concat_tables([whole.open.slice(0, 1)] * 61).set_column(5, "hanging", pa.array(late))
    report = dataclasses.replace(report, partitions=(dataclasses.replace(whole, open=opened),))
    (table,) = next(it for it in log_page(report).sections if it.name == "hanging").tables
    assert (table.total, table.rows[0][-1], table.rows[1][-1]) == (61, True, False)


def test_the_page_of_advice(zone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "advice.html"
    assert cli.main(["advise", str(zone), "--html", str(out), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    page = check_page(out.read_text())
    assert page.commands == [advice["command"]]
    for fact in advice["facts"]:
        assert fact["evidence"] in page.text
    kept = [row["ACCEPTED"] + row.get("UNTRACKED", 0) for row in advice["policies"]]
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


def test_the_size_of_a_page_is_bounded() -> None:
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
    return fp.audit(pa.table(rows), columns=TIMED)
