"""The benchmarks on few rows, so that they keep working: every answer is checked, and a wrong one is detected."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost.lake import DedupJob, LocalEngine

from bench import (
    costs,
    curve,
    lake,
    lake_report,
    layout,
    measure,
    metadata,
    parts,
    peers,
    producer,
    report,
    retention,
    run,
    shapes,
    spark,
    startup,
    stores,
    workload,
)
from bench.compare import compare
from bench.peers import Peer
from bench.workload import LONE, RANDOM, RUNS, Workload

ROOT = Path(__file__).parents[2]

ROWS = 20_000
DENSE = Workload(name="few keys", keys=50, run=3, partitions=7)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The benchmark sets how many threads pyarrow has, for the whole process."""
    before = pa.cpu_count()
    yield
    pa.set_cpu_count(before)


@pytest.mark.parametrize("shape", [RUNS, RANDOM, LONE, DENSE], ids=lambda shape: shape.name)
def test_the_workload_has_the_declared_rows(shape: Workload) -> None:
    made = workload.make(shape, ROWS)
    rows = list(zip(*(made.table[name].to_pylist() for name in workload.COLUMNS), strict=True))
    assert len(rows) == ROWS // shape.run * shape.run
    assert len(set(rows)) == made.kept < 0.96 * len(rows)
    following: dict[tuple[int, int], int] = {}
    for pid, _, partition, seq in dict.fromkeys(rows):  # first copies, in order
        assert seq == following.get((pid, partition), 0), "a key numbers its rows from 0 on, without a hole"
        following[pid, partition] = seq + 1
    assert made.table.equals(workload.make(shape, ROWS).table), "made from a seed"


def test_every_contestant_in_memory_is_right() -> None:
    part = compare(ROWS, rounds=2)
    results = report.collect("quick", memory=part)
    contestants = len(peers.PEERS) + 4  # ours under two policies and two ways to find the limit
    assert [len(contest) for contest in results.contests.values()] == [contestants] * 2
    assert all(len(one["seconds"]) == 2 for one in part["measurements"])
    assert results.wrong == []
    assert len(list(results.targets())) == 6


def test_every_contestant_of_the_producing_end_is_right() -> None:
    results = report.collect("quick", producer=producer.contest(200_000, rounds=1))
    assert {name: len(contest) for name, contest in results.contests.items()} == {
        producer.STAMPING: 4, producer.STAMPING_FEW: 2, producer.DEALING: 1, producer.DEALING_FEW: 2,
        producer.DELIVERING: 2,
    }  # fmt: skip
    assert results.wrong == []
    assert len(list(results.targets())) == 1


@pytest.mark.parametrize("shape", shapes.SHAPES, ids=lambda shape: shape.name)
def test_a_generated_shape_has_the_declared_rows(shape: shapes.Shape) -> None:
    made = shapes.make(shape, ROWS)
    rows = list(zip(*(made[name].to_pylist() for name in made.column_names), strict=True))
    assert len(rows) == ROWS // shape.run * shape.run
    events = {row[:-1]: row[-1] for row in rows}
    assert len(events) == len(set(events.values())) < 0.96 * len(rows), "an event has one identity, and few come twice"
    assert set(rows) == {(*identity, event) for identity, event in events.items()}, "copies are equal"
    assert set(events.values()) == set(range(len(events)))
    assert made.equals(shapes.make(shape, ROWS)), "made from a seed"


def test_every_contestant_is_right_on_every_shape() -> None:
    results = report.collect("quick", shapes=shapes.contest(ROWS, rounds=1))
    assert {name: len(contest) for name, contest in results.contests.items()} == {
        shape.name: len(shapes.PEERS) + 2 for shape in shapes.SHAPES
    }
    assert results.wrong == []
    assert len(list(results.targets())) == len(shapes.SHAPES)
    _, _, page = shapes.sections(results)
    assert page in report.to_markdown(results)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()[2:]]
    times = {name: float(of_polars.strip("*")) for name, *_, of_polars, _ in cells}
    [worst] = [name for name in times if name.startswith("**")]
    assert times[worst] == min(times.values()), "the worst shape is in bold"


def test_a_state_that_keeps_fewer_versions_takes_less(tmp_path: Path) -> None:
    found = {
        name: retention.run(tmp_path / str(place), 12, kept)
        for place, (name, kept) in enumerate(retention.KEPT.items())
    }
    assert [versions for _, _, versions, *_ in found.values()] == [12, 12, 10]
    assert found["10 versions, and an hour"][0] < found["all"][0]


def test_every_layout_has_the_rows_of_the_copy(tmp_path: Path) -> None:
    found = layout.measure(tmp_path, ROWS, files=20, rounds=1)
    assert {name: files for name, (_, _, files) in found.items()} == {
        "byte copies": 20, "merged": 1, "by day": 4, "sorted": 1, "by day, sorted": 4,
    }  # fmt: skip


def test_a_large_file_has_the_same_rows_in_parts(tmp_path: Path) -> None:
    found = parts.measure(tmp_path, ROWS * 10, rows_to_a_repeat=10, rounds=1)
    assert list(found) == ["one task", "one task, aligned", "12 parts"]
    assert found["12 parts"]["scan"] > 0


def test_the_start_of_a_process_is_measured() -> None:
    found = startup.measure(rounds=1)
    assert all(it.is_right for it in found)
    seconds = {startup.PYTHON: 0.02, startup.IMPORT: 0.06, startup.HELP: 0.16}
    for it in found:
        it.seconds = [seconds[it.name]]
    assert [(it.what, it.found, it.is_met) for it in startup.targets(found)] == [
        ("import fencepost", "40 ms", True), ("fencepost --help", "160 ms", False),
    ]  # fmt: skip


def test_a_wrong_contestant_is_recorded(tmp_path: Path) -> None:
    liar = Peer("liar", lambda rows: lambda: rows.kept + 1)
    results = report.collect("quick", memory=compare(ROWS, rounds=1, contests=[DENSE], against=[liar]))
    assert [one.name for one in results.wrong] == ["liar"]
    report.write(results, tmp_path, "out")
    kept = workload.make(DENSE, ROWS).kept
    recorded = {one["name"]: one for one in json.loads((tmp_path / "out.json").read_text())["memory"]["measurements"]}
    assert (recorded["liar"]["is_right"], recorded["liar"]["answer"]) == (False, kept + 1)
    assert recorded["fencepost apply"]["is_right"]
    assert f"**wrong: {kept + 1}**" in (tmp_path / "out.md").read_text()
    assert "wrong answer" in (tmp_path / "out.svg").read_text()
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_an_answer_that_was_wrong_once_is_wrong() -> None:
    answers = iter([7, 8, 7])
    flaky = measure.Contestant(name="flaky", threads=1, run=lambda: next(answers), expected=7)
    [measured] = measure.alternate("a contest", [flaky], rows=1, rounds=2)
    assert (measured.is_right, measured.answer, len(measured.seconds)) == (False, 8, 2)


def test_targets_are_judged() -> None:
    def measured(contest: str, name: str, role: measure.Role, seconds: float) -> dict[str, Any]:
        one = measure.Measurement(contest=contest, name=name, threads=1, role=role, rows=1_000_000, expected=1)
        one.seconds = [seconds]
        return one.to_json()

    facts = []
    for contest in (RUNS.name, RANDOM.name):
        facts.append(measured(contest, report.APPLY, "ours", 0.003))
        facts.append(measured(contest, "a peer", "peer", 0.03))
        facts.append(measured(contest, "the limit", "limit", 0.002))
    targets = list(report.collect("quick", memory={"measurements": facts}).targets())
    assert [(target.found, target.is_met) for target in targets] == [
        ("333 M rows/s, 67% of the sum", True),  # not 400 M, but more than 60 % of the limit
        ("333 M rows/s, 67% of the sum", True),
        ("10.0 × (a peer)", True),
        ("10.0 × (a peer)", True),
    ]
    ways = (spark.FILES.name, spark.SHUFFLED.name)
    ours = {spark.NOOP: (spark.CO_LOCATED.name, spark.ROW_INPUT.name, *ways), spark.GAPS: ways}
    ours[spark.PARQUET] = (spark.CO_LOCATED.name, spark.SYNCED)
    facts = [measured(contest, name, "ours", 1.0) for contest, names in ours.items() for name in names]
    facts += [measured(contest, spark.DROP_DUPLICATES.name, "peer", 2.0) for contest in (spark.NOOP, spark.GAPS)]
    facts += [measured(spark.PARQUET, spark.DROP_DUPLICATES.name, "peer", 3.0)]
    targets = list(report.collect("quick", spark={"measurements": facts}).targets())
    assert [target.is_met for target in targets] == [False, False, False, True, False, True, True, True]


def test_a_page_states_its_revision_and_rounds_and_has_its_worst_row_in_bold() -> None:
    results = report.Results(part_of([("a job", "ours", 1.0), ("a peer", "peer", 5.0)], "the best"))
    worse = report.Results(part_of([("a job", "ours", 1.0), ("a peer", "peer", 0.5)], "the worst"))
    facts = {**results.facts, "memory": {"measurements": []}}
    facts["memory"]["measurements"] = results.facts["memory"]["measurements"] + worse.facts["memory"]["measurements"]
    page = report.to_markdown(report.Results(facts))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"Revision `{commit[:12]}`" in page
    assert "Medians of 1 rounds or more" in page
    bold = [line for line in page.splitlines() if line.startswith("| **")]
    assert [line.split("|")[1].strip() for line in bold] == ["**the worst**"]


def part_of(contestants: list[tuple[str, measure.Role, float]], contest: str) -> dict[str, Any]:
    """Facts of one contest, one round each."""
    measured = []
    for name, role, seconds in contestants:
        one = measure.Measurement(contest=contest, name=name, threads=1, role=role, rows=1_000, expected=1)
        one.seconds = [seconds]
        measured.append(one.to_json())
    return report.collect("quick", memory={"measurements": measured}).facts


def test_a_full_run_is_of_five_rounds_and_an_hour() -> None:
    assert run.ROUNDS >= 5
    assert sum(step.minutes for step in run.STEPS) <= 70
    pages = {page.stem for page in (ROOT / "bench" / "results").glob("*.md")}
    assert pages == {step.results for step in run.STEPS}, "every published page is one of the full run"


def test_one_command_writes_pages_that_state_their_revision(tmp_path: Path) -> None:
    command = [sys.executable, "bench/run.py", "--quick", "--only", "landing_log", "--results", str(tmp_path)]
    done = subprocess.run([*command, "--rows", "8"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stated = run.stated_revisions(tmp_path)
    assert list(stated) == ["quick-landing_log.md"]
    assert re.fullmatch(r"Revision `\w+`( with uncommitted changes)?", stated["quick-landing_log.md"])
    (tmp_path / "old.md").write_text("# Benchmark results\n\n2026-11-25, medians of two rounds\n")
    assert run.stated_revisions(tmp_path)["old.md"] == ""


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def measure_part(part: str, *_: Any) -> bool:
        begun.append(part)
        if part == "sql":
            raise subprocess.CalledProcessError(1, "sql")
        return True

    monkeypatch.setattr(run, "_measure", measure_part)
    command = ["run.py", "--quick", "--results", str(tmp_path), "--only"]
    for only, code in (("sql,stores", 1), ("stores", 0)):
        begun.clear()
        monkeypatch.setattr(sys, "argv", [*command, only])
        assert run.main() == code
        assert begun == only.split(",")
    monkeypatch.setattr(sys, "argv", [*command, "no such part"])
    with pytest.raises(SystemExit):
        run.main()


def test_a_reference_that_is_slower_is_not_a_limit() -> None:
    scan: tuple[str, measure.Role, float] = ("a scan", "limit", 1.0)
    page = report.to_markdown(report.Results(part_of([("a job", "ours", 2.0), scan], "a contest")))
    assert "a scan is 100 %" in page
    page = report.to_markdown(report.Results(part_of([("a job", "ours", 0.5), scan], "a contest")))
    assert re.search(r"a scan .*not a limit: a job ", page)
    assert "of the limit" not in page
    page = report.to_markdown(report.Results(part_of([(lake.AUDIT, "ours", 0.5), scan], "a contest")))
    assert "a scan is 100 %" in page, "an audit writes no rows"


def test_every_panel_of_a_chart_has_the_same_axis(tmp_path: Path) -> None:
    facts = part_of([("a job", "ours", 1.0)], "slow")
    facts["memory"]["measurements"] += part_of([("a job", "ours", 1e-4)], "fast")["memory"]["measurements"]
    report.draw(report.Results(facts), [tmp_path / "out.svg"])
    drawn = (tmp_path / "out.svg").read_text()
    ticks = re.findall(r"<!-- ([\d.]+) -->", drawn)
    assert ticks.count("0.001") >= 2, "a tick of one panel is one of the other"


def test_the_defaults_are_the_headline_of_what_is_published() -> None:
    results = report.Results(json.loads((ROOT / "bench" / "results" / "lake.json").read_text()))
    assert {results.headline(contest).name for contest in results.contests} == {lake.SYNCED}  # type: ignore[union-attr]


def test_results_do_not_say_whose_machine_it_was() -> None:
    facts = report.collect("quick", memory=compare(1_000, rounds=1, contests=[DENSE])).facts
    text = json.dumps(facts)
    for secret in (os.uname().nodename, str(ROOT), str(Path.home())):
        assert len(secret) < 3 or secret not in text


def test_every_policy_and_input_is_right() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-disable", "bench/test_memory.py"]
    env = {**os.environ, "FENCEPOST_BENCH_ROWS": str(ROWS)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 50, done.stdout


@pytest.fixture(scope="module")
def measured() -> curve.Curve:
    """Every shape and part on few entries, and the portable path; every answer is checked by what measures."""
    return curve.Curve(curve.measure(["3000"], list(curve.SHAPES), 2, ROWS, profile="dev", portable_at="3000"))


@pytest.mark.matrix
def test_the_curve_measures_every_part_of_every_shape(measured: curve.Curve) -> None:
    assert measured.facts["failures"] == []
    for shape in curve.SHAPES:
        assert measured.sizes(shape) == [3000]
        for part in ("build", "random", "runs", "threads", "snapshot"):
            assert measured.find(part, shape, 3000) is not None, (shape, part)
    assert measured.find("disorder", "any_order", 3000) is not None
    assert measured.find("evict", "timestamps", 3000) is not None
    for policy in curve.ORDER_POLICIES:
        for shape in curve.ORDERS:
            line = measured.order(policy, shape)
            assert line is not None, (policy, shape)
            assert len(line["first"]) == len(line["again"]) == len(line["list"]) == 2
    assert all(it["is_right"] for it in measured.facts["python_runs"])
    checksums = {line["checksum"] for key, line in measured.lines.items() if key[0] == "random"}
    assert len(checksums) == 1, "the same rows are repeats, whatever the shape and the path"


@pytest.mark.matrix
def test_the_portable_path_gives_the_same_results(measured: curve.Curve) -> None:
    assert sum(line["path"] == "portable" for line in measured.facts["lines"]) == 4
    assert measured.differing() == []
    other = json.loads(json.dumps(measured.facts))
    [line, *_] = [line for line in other["lines"] if line["path"] == "portable"]
    line["checksum"] = "0"
    assert curve.Curve(other).differing() == [f"{line['part']} of {line['shape']}, 3,000 entries"]


@pytest.mark.matrix
def test_the_curve_is_written_and_drawn(measured: curve.Curve, tmp_path: Path) -> None:
    curve.write(measured, tmp_path)
    text = (tmp_path / "curve.md").read_text()
    assert "not measured" in text, "nothing was measured at 100 M entries"
    assert all(f"## {title}" in text for title in curve.SHAPES.values())
    assert "bare read" in (tmp_path / "curve.svg").read_text()
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "curve.json").read_text())["lines"] == measured.facts["lines"]


@pytest.mark.matrix
def test_figures_of_the_curve_are_judged(measured: curve.Curve) -> None:
    """Lines of 3000 entries passed off as lines of 100 M."""
    other = json.loads(json.dumps(measured.facts))
    for line in other["lines"]:
        line["entries"] = 100_000_000
        line.update({"ns_a_row": [20.0, 99.0, 1.0], "memory_bytes": 1_300_000_000, "dictionary_bytes": 0})
        line.update({"ns_a_bare_read": [10.0], "ns_an_entry": [90.0], "load_seconds": [5.0, 5.0, 9.0]})
    found = {target.what: target for target in curve.Curve(other).targets()}
    states = {
        "any_order, 100,000,000 entries: a random row against a bare read": ("2", "met"),
        "kafka, 100,000,000 entries: bytes an entry": ("13", "**missed**"),
        "any_order, 100 M entries from nothing, random order: an entry against a random row": ("4.5", "**missed**"),
        "any_order, 100 M entries: M entries/s of a snapshot's load": ("20", "**missed**"),
        "lone_any, 100 M entries: M entries/s of a snapshot's load": ("20", "met"),
    }
    assert {what: (found[what].found, found[what].state) for what in states} == states
    assert found["kafka, 10,000 entries: a random row against reading the columns"].state == "not measured"
    measured_ones = [target for target in found.values() if target.found is not None]
    assert all(target.is_met == (target.shortfall <= 1) for target in measured_ones)
    worst = max(measured_ones, key=lambda target: target.shortfall)
    assert f"| **{worst.what}** " in curve.to_markdown(curve.Curve(other))


@pytest.mark.matrix  # compiles the programs of the benchmarks
def test_a_curve_that_fails_is_reported() -> None:
    facts = curve.measure(["3000"], ["no such shape"], 1, ROWS, profile="dev")
    assert [failure["problem"].split(" is")[0] for failure in facts["failures"]] == ["curve: 'no such shape'"]
    assert "**Failed:**" in curve.to_markdown(curve.Curve(facts))


def in_own_process(part: str, folder: Path) -> Any:
    """The value of an expression of modules of `bench` and of `data`, the folder. It is evaluated in its own process:
    a session has one configuration for ever."""
    out = folder / "measured.json"
    code = (
        "import json, sys; from pathlib import Path; from bench import costs, lake, spark, stores, streams; "
        f"data = Path(sys.argv[1]); Path(sys.argv[2]).write_text(json.dumps({part}))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), str(out)], cwd=ROOT, check=True, capture_output=True)
    return json.loads(out.read_text())


@pytest.mark.spark
@pytest.mark.matrix
def test_every_contestant_on_spark_is_right(tmp_path: Path) -> None:
    part = f"spark.contest({ROWS}, 1, data, '1g', warm_up=False, spark_sql_shuffle_partitions=2)"
    results = report.collect("quick", spark=in_own_process(part, tmp_path))
    assert [len(contest) for contest in results.contests.values()] == [8, 4, 9]
    assert results.wrong == []
    assert len(list(results.targets())) == 8


def test_the_cost_of_a_state_is_measured_on_the_same_rows(tmp_path: Path) -> None:
    for _ in range(2):  # what was seeded is kept, and found again whatever became of it
        found = costs.incremental(
            entries=20_000, rows=2_000, rounds=1, data=tmp_path, engines=[LocalEngine(2)], shards=100
        )
    few, everywhere = found["runs"]
    assert {run["shards"] for run in few["full"] + few["empty"]} == {1}
    assert {run["shards"] for run in everywhere["full"] + everywhere["empty"]} <= set(range(60, 101))
    assert few["full"][0]["state_bytes_read"] > 0 == few["empty"][0]["state_bytes_read"]
    assert found["state_bytes"] / found["entries"] < 30


def test_the_driver_is_measured_without_tasks(tmp_path: Path) -> None:
    found = costs.driver(files=50, shards=16, rounds=1, data=tmp_path)
    assert (found["files"], found["shards"], len(found["rounds"])) == (50, 16, 1)


def test_a_job_in_a_store_is_right(tmp_path: Path) -> None:
    part = stores.contest(ROWS, 1, tmp_path, shapes=[stores.REWRITTEN], with_spark=False)
    results = report.collect("quick", stores=part)
    assert {name: len(contest) for name, contest in results.contests.items()} == {stores.REWRITTEN.name: 2}
    assert results.wrong == []
    assert len(list(results.targets())) == 3
    weighed = [it for it in part["costs"] if "requests" in it]
    assert [it["is_right"] for it in weighed] == [True, True]
    assert all(it["requests"]["GET"] > 0 < it["scratch_bytes"] for it in weighed)
    assert "scratch, MB" in report.to_markdown(results)


@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.skipif(not stores.JARS.is_dir(), reason="make .tools/s3a")
def test_every_contestant_in_a_store_is_right(tmp_path: Path) -> None:
    part = f"stores.contest({ROWS}, 1, data, '1g', spark_sql_shuffle_partitions=2)"
    results = report.collect("quick", stores=in_own_process(part, tmp_path))
    assert {name: len(contest) for name, contest in results.contests.items()} == dict.fromkeys(stores.TIMES_MAX, 3)
    assert results.wrong == []
    assert len(list(results.targets())) == 8


@pytest.mark.spark
@pytest.mark.matrix
def test_keys_are_interleaved_and_sequences_have_gaps(tmp_path: Path) -> None:
    landed = lake.land(lake.GAPS, ROWS, tmp_path)
    files = [pq.read_table(it, columns=["partition", "seq"]) for it in sorted(landed.folder.iterdir())]
    keys = [set(it["partition"].to_pylist()) for it in files]
    assert sum(map(len, keys)) == len(set.union(*keys)), "no two files share a key"
    assert max(map(min, keys)) < min(map(max, keys)), "their statistics overlap"
    assert {seq % spark.STEP for it in files for seq in it["seq"].to_pylist()} == {0}
    report = DedupJob(landed.folder, tmp_path / "state", tmp_path / "sink", sync=False).run()
    assert (report.plan, report.kept) == ("interval", landed.kept[0])


@pytest.mark.spark
@pytest.mark.matrix
def test_rows_are_lost_after_each_span(tmp_path: Path) -> None:
    landed = lake.land(lake.LOSSES, ROWS, tmp_path)
    numbers = {seq for it in landed.folder.iterdir() for seq in pq.read_table(it, columns=["seq"])["seq"].to_pylist()}
    assert {seq % 21 for seq in numbers} == set(range(20))
    report = DedupJob(landed.folder, tmp_path / "state", tmp_path / "sink", sync=False).run()
    assert (report.plan, report.kept) == ("interval", landed.kept[0])


@pytest.mark.matrix
def test_every_job_over_files_is_right(tmp_path: Path) -> None:
    shapes = "(lake.WHOLE_KEYS, lake.CLEAN, lake.ONE_ROW)"
    jobs = f"lake.contest({ROWS}, 1, data, '1g', {shapes}, spark_sql_shuffle_partitions=2)"
    parts = f"{{'lake': {jobs}, 'costs': costs.costs({ROWS}, 1, data, '1g', 100)}}"
    results = report.collect("quick", **in_own_process(parts, tmp_path))
    assert [len(contest) for contest in results.contests.values()] == [9, 9, 8]
    assert results.wrong == []
    plans = {(job["contest"], job["name"]): job["plan"] for job in results.facts["lake"]["jobs"]}
    assert plans[lake.WHOLE_KEYS.name, spark.JOB] == "aligned"
    assert plans[lake.WHOLE_KEYS.name, lake.INTERVAL] == plans[lake.ONE_ROW.name, spark.JOB] == "interval"
    assert len(list(results.targets())) == 3 + 1 + 3 + 4
    assert "?" not in lake_report.cluster(results.facts)
    report.write(results, tmp_path, "out")
    assert lake_report.cluster(results.facts) in (tmp_path / "out.md").read_text()


@pytest.mark.spark
@pytest.mark.matrix
def test_every_stream_is_right(tmp_path: Path) -> None:
    part = f"streams.contest({ROWS}, 1, data, '1g', 100, 2, False)"
    results = report.collect("quick", streams=in_own_process(part, tmp_path))
    assert [len(contest) for contest in results.contests.values()] == [4, 2]
    assert results.wrong == []
    assert len(list(results.targets())) == 3
    assert "state on disk" in report.to_markdown(results)


def test_the_cost_of_versions_does_not_grow(tmp_path: Path) -> None:
    """Requests of a state of many versions, and those of the sink: three if it is a prefix."""
    few, many = (metadata.history(tmp_path / str(versions), versions) for versions in (1_000, 300_000))
    assert {name: it.requests for name, it in few.items()} == {name: it.requests for name, it in many.items()}
    assert many["no-op"].requests <= 7, "and three of the sink: ten at most"
    assert many["one file"].requests <= 40
    assert many["no-op"].objects > 600_000
    few, many = (metadata.history(tmp_path / f"{it} folded", it, is_folded=True) for it in (1_000, 300_000))
    assert {name: (it.requests, it.objects) for name, it in few.items()} == {
        name: (it.requests, it.objects) for name, it in many.items()
    }
    assert many["no-op"].requests <= 7
    assert many["one file"].requests <= 40
    assert many["one file"].objects < 1_000


def test_the_driver_costs_little_per_file(tmp_path: Path) -> None:
    costs, seconds = metadata.run(tmp_path, 3_000)
    assert costs["no-op"].read_bytes < costs["run"].written_bytes / 10, "no list of files is read"
    assert "decide" in seconds
    (_, alone, _, _), (_, driver, tasks, _) = metadata.apply(3_000)
    assert alone["COPY"] == tasks["COPY"] == 3_000
    assert driver["COPY"] == 0
    assert sum(driver.values()) < 20, "the driver makes no request for a file"
    dealt, _ = metadata.run_dealt(tmp_path / "dealt", 3_000, 512)
    (cost,) = dealt.values()
    assert cost.requests < 60
    known = metadata.ledger(tmp_path, 300_000)
    assert known["one day and a new file"].read_bytes < known["all and a new file"].read_bytes / 2
    assert known["note one"].written_bytes < 10_000


@pytest.mark.matrix
def test_the_cost_of_metadata_is_bounded_at_full_size(tmp_path: Path) -> None:
    """10^6 versions, 10^7 files in the ledger, 10^6 new files, with rows for 4096 shards too."""
    few, many = (metadata.history(tmp_path / str(versions), versions) for versions in (1_000, 1_000_000))
    assert {name: it.requests for name, it in few.items()} == {name: it.requests for name, it in many.items()}
    known = metadata.ledger(tmp_path, 10_000_000)
    assert known["one day and a new file"].requests < 10
    assert known["all and a new file"].requests < 100
    for part, megabytes in ((metadata.run, 2_000), (metadata.run_dealt, 2_500)):
        # In a process of its own: what others have held would hide what it takes.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            costs, _ = pool.submit(part, tmp_path / part.__name__, 1_000_000).result()
        name, cost = next(iter(costs.items()))
        assert cost.requests < 60, name
        assert 0 < cost.peak_mb < megabytes, name
