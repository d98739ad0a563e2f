"""`DedupJob` on Spark: the same rows, files, state and report as on the local engine, and the same errors."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import fencepost as fp
import fencepost_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import lake, state
from fencepost.lake.plan import PLANS, Plan
from fencepost.state import operation_tasks
from fencepost_spark import DedupJob, SparkEngine
from pyspark.sql import SparkSession
from support.spark_jobs import LANDING_ZONE, POLICIES, landed, sink_rows


@pytest.fixture
def truth() -> Any:
    return json.loads((LANDING_ZONE / "truth.json").read_text("utf-8"))


def deliver(source: Path, files: list[Path]) -> None:
    """Copies keep their times, so that both engines see equal inputs."""
    source.mkdir(exist_ok=True)
    for file in files:
        shutil.copy2(file, source)


def segments(state: Path) -> list[bytes]:
    """The bytes of every file of a state with entries, without files that contain times and writers (log, marks)."""
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.suffix not in {".json", ""})
    return sorted(path.read_bytes() for path in files)


def report(run: lake.RunReport) -> dict[str, Any]:
    """The report without what no two runs share."""
    fields = dataclasses.asdict(run)
    return {
        name: it for name, it in fields.items() if name not in {"engine", "state", "sink"} and "seconds" not in name
    }


@pytest.mark.parametrize(("policy", "options", "kept"), POLICIES)
def test_spark_and_threads_agree(
    spark: SparkSession, tmp_path: Path, truth: Any, policy: str, options: dict[str, Any], kept: tuple[str, ...]
) -> None:
    """Run by run: two deliveries, the second with what the sink had landed twice, then nothing new."""
    files, source = landed(), tmp_path / "source"
    jobs = {
        engine: make(source, tmp_path / engine / "state", tmp_path / engine / "sink", policy=policy, **options)
        for engine, make in {"spark": DedupJob, "local": lake.DedupJob}.items()
    }
    assert jobs["spark"].engine.name == "spark"
    for delivery in (files[:20], files[20:], []):
        deliver(source, delivery)
        reports = {engine: report(job.run()) for engine, job in jobs.items()}
        assert reports["spark"] == reports["local"]
        spark_rows, local_rows = (sink_rows(tmp_path / engine / "sink") for engine in jobs)
        assert spark_rows == local_rows
        spark_state, local_state = (segments(tmp_path / engine / "state") for engine in jobs)
        assert len(spark_state) > 0
        assert spark_state == local_state
    found = sum(table.num_rows for name, table in spark_rows.items() if "/_" not in name)
    assert found == sum(truth[name] for name in kept)


def test_one_engine_continues_where_the_other_stopped(spark: SparkSession, tmp_path: Path, truth: Any) -> None:
    files, source = landed(), tmp_path / "source"
    folders = (source, tmp_path / "state", tmp_path / "sink")
    for make, delivery in ((DedupJob, files[:13]), (lake.DedupJob, files[13:26]), (DedupJob, files[26:])):
        deliver(source, delivery)
        make(*folders, policy="kafka_offsets").run()
    assert sum(table.num_rows for table in sink_rows(tmp_path / "sink").values()) == truth["rows_distinct"]


@pytest.mark.parametrize("plan", [None, "interval"])
def test_small_runs_start_no_task(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Any
) -> None:
    """By the bytes of the new files. Output and state are those of tasks."""
    files, source = landed(), tmp_path / "source"
    stages: list[str] = []
    run = SparkEngine.run
    monkeypatch.setattr(SparkEngine, "run", lambda self, stage, *rest: stages.append(stage) or run(self, stage, *rest))
    bound = sum(path.stat().st_size for path in files[:13])

    def job(folder: str, driver_bytes_max: int) -> DedupJob:
        folders = (source, tmp_path / folder / "state", tmp_path / folder / "sink")
        return DedupJob(*folders, driver_bytes_max=driver_bytes_max, plan=plan)

    deliver(source, files[:13])
    assert job("near", bound).run().kept > 0
    assert not stages
    job("far", bound - 1).run()
    assert stages
    stages.clear()
    deliver(source, files[13:])
    job("near", bound).run()
    assert stages
    job("far", 0).run()
    near, far = (sink_rows(tmp_path / it / "sink") for it in ("near", "far"))
    assert near == far
    assert segments(tmp_path / "near" / "state") == segments(tmp_path / "far" / "state")
    for name in ("driver_bytes_max", "driver_scan_bytes_max"):
        with pytest.raises(ValueError, match=f"^{name}=-1: expected 0 or more bytes"):
            SparkEngine(spark, **{name: -1})


def test_the_driver_reads_identities_and_tasks_write(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bytes of the new files. Output and state are those of tasks that scan."""
    files, source = landed(), tmp_path / "source"
    stages: list[str] = []
    run = SparkEngine.run
    monkeypatch.setattr(SparkEngine, "run", lambda self, stage, *rest: stages.append(stage) or run(self, stage, *rest))
    deliver(source, files)
    bound = sum(path.stat().st_size for path in files)
    bounds = {"near": bound, "far": bound - 1, "never": 0}
    expected = {"near": ["write"], "far": ["scan", "write"], "never": ["scan", "write"]}
    for name, bytes_max in bounds.items():
        stages.clear()
        folders = (source, tmp_path / name / "state", tmp_path / name / "sink")
        DedupJob(*folders, driver_bytes_max=1, driver_scan_bytes_max=bytes_max, plan="interval").run()
        assert stages == expected[name]
    rows = {name: sink_rows(tmp_path / name / "sink") for name in bounds}
    assert rows["near"] == rows["far"]
    assert len({str(segments(tmp_path / name / "state")) for name in bounds}) == 1
    assert SparkEngine(spark, driver_bytes_max=0).driver_scan_bytes_max == 0


def test_operations_run_on_the_jobs_engine(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of Spark reshard a state, with the same result as threads."""
    for bound in ("TASK_BYTES_MIN", "TASK_BYTES_MAX"):
        monkeypatch.setattr(operation_tasks, bound, 1)
    stages = []
    run = SparkEngine.run
    monkeypatch.setattr(SparkEngine, "run", lambda *it: (stages.append((it[1], len(it[3]))), run(*it))[1])
    deliver(tmp_path / "source", landed()[:6])
    hashes = {}
    for name, make in {"spark": DedupJob, "local": lake.DedupJob}.items():
        job = make(tmp_path / "source", tmp_path / name / "state", tmp_path / name / "sink", shards=3)
        job.run()
        before = len(job.state.latest().shards)  # type: ignore[union-attr]
        stages.clear()
        shards = job.state.reshard(6).shards
        hashes[name] = dict(zip(shards.shard, shards.sha256, strict=True))
        assert stages == ([("reshard", before)] if name == "spark" else [])
    assert len(hashes["spark"]) >= before > 1
    assert hashes["spark"] == hashes["local"]


def test_an_error_in_a_task_is_the_same_error(spark: SparkSession, tmp_path: Path) -> None:
    """The error has column, row and file, without Spark's stack; no file remains."""
    source = tmp_path / "source"
    source.mkdir()
    rows = {"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, None, 2]}
    pq.write_table(pa.table(rows), source / "bad.parquet")
    messages = []
    for make in (DedupJob, lake.DedupJob):
        with pytest.raises(fp.BatchError) as error:
            make(source, tmp_path / "state", tmp_path / "sink").run()
        messages.append(str(error.value))
        assert not list((tmp_path / "sink").rglob("*.parquet"))
    assert messages[0] == messages[1]
    assert "bad.parquet: column 'seq', row 1: null" in messages[0]


def test_a_file_that_cannot_be_read_is_named_alike(spark: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "source", landed()[:2])
    (tmp_path / "source" / "corrupt.parquet").write_bytes(b"PAR1 nonsense PAR1")
    found = []
    for make in (DedupJob, lake.DedupJob):
        root = tmp_path / make.__module__
        job = make(tmp_path / "source", root / "state", root / "sink", policy="kafka_offsets", settle_ms=0)
        found.append(job.run())
    assert found[0].quarantined == found[1].quarantined
    assert found[0].quarantined[0][0] == "corrupt.parquet"
    assert found[0].kept == found[1].kept > 0


def test_progress_comes_by_step(spark: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "source", landed()[:4])
    steps = []
    job = DedupJob(tmp_path / "source", tmp_path / "state", tmp_path / "sink", policy="kafka_offsets")
    job.run(progress=lambda step, done, total: steps.append((step, done, total)))
    assert ("scan", 1, 1) in steps
    assert {step for step, _, _ in steps} >= {"scan", "judge", "write", "decide", "apply"}


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_in_tasks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    """Judged in tasks as well, and a task a file, or a part of one: the same rows and state as threads give."""
    monkeypatch.setattr(lake.plan, "FILE_BYTES", lake.plan.TASK_BYTES)
    source, columns = tmp_path / "source", fp.Columns(partition=("topic", "partition"))
    deliver(source, landed()[:6])
    for file in source.iterdir():
        pq.write_table(pq.read_table(file), file, row_group_size=100)
    size = 100_000 if plan == "row" else 256 << 20
    for make in (DedupJob, lake.DedupJob):
        root = tmp_path / make.__module__
        sizes: dict[str, Any] = {"shards": 3, "task_bytes_max": size, "driver_spans_max": 0}
        job = make(source, root / "state", root / "sink", columns=columns, plan=plan, **sizes)
        found = job.run()
        assert found.judged == "in tasks"
        decided = state.open(root / "state").latest()
        assert decided is not None
        assert ("split_files" in decided.plan) == (plan == "row")
    spark_root, local_root = (tmp_path / make.__module__ for make in (DedupJob, lake.DedupJob))
    spark_rows, local_rows = sink_rows(spark_root / "sink"), sink_rows(local_root / "sink")
    assert spark_rows == local_rows
    assert b"".join(segments(spark_root / "state")) != b""
    entries = [state.open(root / "state").entries() for root in (spark_root, local_root)]
    assert entries[0].equals(entries[1])


def test_repeats_of_earlier_runs_are_compared_in_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same conflicts, and the same checksums in the state, as with threads."""
    monkeypatch.setattr(lake.plan, "FILE_BYTES", lake.plan.TASK_BYTES)
    source = tmp_path / "source"
    source.mkdir()
    options: dict[str, Any] = {"compare_content": True, "keep_checksums": "all", "on_conflict": "drop", "shards": 3}
    options["driver_spans_max"] = 0
    for run in range(3):
        for file in range(2):
            pid = [file, *range(10, 20)]
            rows = {"pid": pid, "epoch": [0] * 11, "partition": [0] * 11, "seq": [run] * 11, "x": [run + file] * 11}
            first = {name: [*values, values[0]] for name, values in rows.items()} | {"seq": [run] * 11 + [0]}
            pq.write_table(pa.table(first), source / f"{run}-{file}.parquet")
        found = []
        for make in (DedupJob, lake.DedupJob):
            root = tmp_path / make.__module__
            report = make(source, root / "state", root / "sink", **options).run()
            kept = state.open(root / "state").version(run + 1).checksums
            assert kept is not None
            found.append((report.counts, report.content_compared, kept.shard, kept.rows, kept.sha256))
            assert report.judged == "in tasks"
        assert found[0] == found[1]
        assert report.counts["CONFLICT"] == (12 if run else 10)


def test_the_session_may_be_given(spark: SparkSession, tmp_path: Path) -> None:
    job = DedupJob(tmp_path / "source", tmp_path / "state", tmp_path / "sink", spark=spark)
    assert isinstance(job, lake.DedupJob)
    assert isinstance(job.engine, fencepost_spark.SparkEngine)


def test_texts_in_folder_names_stay_texts(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads 007 and 7 as the same number."""
    codes = ["007", "7", "1e3", None]
    rows = {"pid": [1] * 4, "epoch": [0] * 4, "partition": [0] * 4, "seq": [0, 1, 2, 3], "code": codes}
    for name, values in (("text", codes), ("number", [7, -1, 0, None])):
        source, sink = tmp_path / name / "source", tmp_path / name / "sink"
        source.mkdir(parents=True)
        pq.write_table(pa.table(rows | {"code": values}), source / "0.parquet")
        lake.DedupJob(source, tmp_path / name / "state", sink, partition_by="code").run()
        assert [it.code for it in fencepost_spark.read_sink(sink, spark=spark).orderBy("seq").collect()] == values
        if name == "text":
            assert lake.dataset(sink).to_table().sort_by("seq")["code"].to_pylist() == values


def test_texts_in_folder_names_are_those_of_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads each byte of a percent-encoded text as a character, and not the text of a folder that is not."""
    source, sink = tmp_path / "source", tmp_path / "sink"
    cities, days = ["Zürich", "日本", "a b%", None], ["ü", "%C3%9F"]
    for number, day in enumerate(days):
        (source / f"day={day}").mkdir(parents=True)
        rows = {"pid": [number] * 4, "epoch": [0] * 4, "partition": [0] * 4, "seq": [0, 1, 2, 3], "city": cities}
        pq.write_table(pa.table(rows), source / f"day={day}" / "0.parquet")
    lake.DedupJob(source, tmp_path / "state", sink, partition_by="city").run()
    found = fencepost_spark.read_sink(sink, spark=spark).orderBy("pid", "seq").select("day", "city").collect()
    assert [tuple(it) for it in found] == [(day, city) for day in ("ü", "ß") for city in cities]


def test_a_sink_is_read_whatever_folders_each_version_has(spark: SparkSession, tmp_path: Path) -> None:
    """`partition_by` may change from run to run; Spark refuses to read such folders together."""
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.mkdir()
    places = source, tmp_path / "state", sink
    days = [date(2026, 1, 1), date(2026, 1, 2), None]
    for number, layout in enumerate([None, "code", "day", "count", None, "code"]):
        seqs = [3 * number, 3 * number + 1, 3 * number + 2]
        rows = {"pid": [1] * 3, "epoch": [0] * 3, "partition": [0] * 3, "seq": seqs}
        rows |= {"code": ["007", "7", None], "day": days, "count": [2**40, 0, None]}
        pq.write_table(pa.table(rows), source / f"{number}.parquet")
        lake.DedupJob(*places, partition_by=layout).run()
    names = ["run", "seq", "code", "day", "count"]
    found = [tuple(it) for it in fencepost_spark.read_sink(sink, spark=spark).select(names).orderBy("seq").collect()]
    assert found == [
        (run + 1, 3 * run + row, ["007", "7", None][row], days[row], [2**40, 0, None][row])
        for run in range(6)
        for row in range(3)
    ]
    assert [tuple(it.values()) for it in lake.dataset(sink).to_table(names).sort_by("seq").to_pylist()] == found
