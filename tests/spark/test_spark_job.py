"""`DedupJob` on Spark: the same rows, files, state and report as on the local engine, and the same errors."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import fencepost as fp
import fencepost_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import HERE
from fencepost import lake
from fencepost_spark import DedupJob
from pyspark.sql import SparkSession

LANDING_ZONE = HERE.parent / "data" / "landing-zone"
POLICIES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("kafka_offsets", {}, ("rows_distinct",)),
    (
        "any_order",
        {"columns": fp.Columns(partition=("topic", "partition"))},
        ("rows_distinct_tracked", "rows_untracked_landed"),
    ),
]


@pytest.fixture
def truth() -> Any:
    return json.loads((LANDING_ZONE / "truth.json").read_text("utf-8"))


def landed() -> list[Path]:
    files = sorted((LANDING_ZONE / "landing").glob("*.parquet"))
    assert len(files) == 38
    return files


def deliver(source: Path, files: list[Path]) -> None:
    """Copies keep their times, so that both engines see equal inputs."""
    source.mkdir(exist_ok=True)
    for file in files:
        shutil.copy2(file, source)


def sink_rows(sink: Path) -> dict[str, pa.Table]:
    return {str(path.relative_to(sink)): pq.read_table(path) for path in sorted(sink.rglob("*.parquet"))}


def segments(state: Path) -> list[bytes]:
    """The bytes of every file of a state that holds entries; not of those that say when and by whom (log, marks)."""
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.suffix not in {".json", ""})
    return sorted(path.read_bytes() for path in files)


def report(run: lake.RunReport) -> dict[str, Any]:
    """The report without what no two runs share."""
    return {name: value for name, value in dataclasses.asdict(run).items() if name not in {"seconds", "engine", "sink"}}


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
        assert spark_rows.keys() == local_rows.keys()
        assert all(spark_rows[name].equals(local_rows[name]) for name in spark_rows)
        spark_state, local_state = (segments(tmp_path / engine / "state") for engine in jobs)
        assert len(spark_state) > 0
        assert spark_state == local_state
    assert sum(table.num_rows for table in spark_rows.values()) == sum(truth[name] for name in kept)


def test_one_may_go_on_where_the_other_stopped(spark: SparkSession, tmp_path: Path, truth: Any) -> None:
    files, source = landed(), tmp_path / "source"
    folders = (source, tmp_path / "state", tmp_path / "sink")
    for make, delivery in ((DedupJob, files[:13]), (lake.DedupJob, files[13:26]), (DedupJob, files[26:])):
        deliver(source, delivery)
        make(*folders, policy="kafka_offsets").run()
    assert sum(table.num_rows for table in sink_rows(tmp_path / "sink").values()) == truth["rows_distinct"]


def test_an_error_in_a_task_is_the_same_error(spark: SparkSession, tmp_path: Path) -> None:
    """With its column, row and file, and not in Spark's stack; nothing is left behind."""
    source = tmp_path / "source"
    source.mkdir()
    rows = {"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, None, 2]}
    pq.write_table(pa.table(rows), source / "bad.parquet")
    (source / "corrupt.parquet").write_bytes(b"PAR1 nonsense PAR1")
    for bad, error_class in (("bad.parquet", fp.BatchError), ("corrupt.parquet", fp.SourceError)):
        messages = []
        for make in (DedupJob, lake.DedupJob):
            for other in source.iterdir():
                if other.name != bad:
                    other.rename(tmp_path / other.name)
            with pytest.raises(error_class) as error:
                make(source, tmp_path / "state", tmp_path / "sink").run()
            messages.append(str(error.value))
            assert not list((tmp_path / "sink").rglob("*.parquet"))
        assert messages[0] == messages[1]
        assert bad in messages[0]
        (tmp_path / "corrupt.parquet").rename(source / "corrupt.parquet") if bad == "bad.parquet" else None


def test_progress_comes_by_step(spark: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "source", landed()[:4])
    steps = []
    job = DedupJob(tmp_path / "source", tmp_path / "state", tmp_path / "sink", policy="kafka_offsets")
    job.run(progress=lambda step, done, total: steps.append((step, done, total)))
    assert ("scan", 4, 4) in steps
    assert {step for step, _, _ in steps} >= {"scan", "judge", "decide", "apply"}


def test_the_session_may_be_given(spark: SparkSession, tmp_path: Path) -> None:
    job = DedupJob(tmp_path / "source", tmp_path / "state", tmp_path / "sink", spark=spark)
    assert isinstance(job, lake.DedupJob)
    assert isinstance(job.engine, fencepost_spark.SparkEngine)
