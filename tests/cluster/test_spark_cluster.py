"""Two workers, an environment that is shipped to them, concurrent attempts, and lost machines."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PYTHON, ROOT, SHIPPED
from disturbances import (
    DOOMED_HOST,
    SLOW_HOST,
    Deadly,
    Disturbance,
    DisturbedEngine,
    EngineAtHome,
    PassOn,
    Slow,
    Together,
    Victim,
    Where,
    is_running,
)
from faults.cases import finish, prepare
from faults.driver import Drive
from faults.mutants import MUTANTS
from faults.spark import IN_TASKS, small_tasks
from faults.world import demand, job, visible
from fencepost import SinkChangedError
from fencepost.lake import DedupJob, dataset
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import open_store
from fencepost_spark import SparkEngine, deduplicate, register
from pyspark.sql import DataFrame, SparkSession
from standalone import HOSTS, Cluster, read_json, wait_until
from support.s3_server import BUCKET, serve_s3
from support.secret_objects import options_of
from support.secret_runs import SECRETS

DDL = "pid long, epoch short, partition int, seq int, copy int"
KEPT = [(pid, pid % 2, partition, seq, 0) for pid in range(5) for partition in range(3) for seq in range(100)]
ROWS = [(*row[:-1], copy) for row in KEPT for copy in range(3)]


def tasks(spark: SparkSession) -> list[dict[str, Any]]:
    """Every attempt of every task that the web pages know of, with the stage that it is of, and which time that ran."""
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages?details=true&length=100000"
    return [
        task | {"stage": stage["stageId"], "round": stage["attemptId"]}
        for stage in read_json(url)
        for task in stage.get("tasks", {}).values()
    ]


class Attempts:
    """Those that begin from now on."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self.before = spark, {task["taskId"] for task in tasks(spark)}

    def new(self) -> list[dict[str, Any]]:
        return [task for task in tasks(self.spark) if task["taskId"] not in self.before]

    def rescued(self) -> list[dict[str, Any]]:
        """Speculative attempts that won against one on the slow host."""
        found = self.new()
        lost = {(it["stage"], it["index"]) for it in found if (it["host"], it["status"]) == (SLOW_HOST, "KILLED")}
        won = [it for it in found if it["speculative"] and it["status"] == "SUCCESS"]
        return [it for it in won if it["host"] != SLOW_HOST and (it["stage"], it["index"]) in lost]

    def failed(self) -> list[dict[str, Any]]:
        return [it for it in self.new() if (it["host"], it["status"]) == (DOOMED_HOST, "FAILED")]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def run_disturbed(root: Path, spark: SparkSession, stages: tuple[str, ...], disturb: Disturbance, marks: Path) -> None:
    """A version with faults. Files and state equal those of a job on threads. Files of late attempts are collected."""
    drive = Drive()
    world = prepare(root, drive)
    with small_tasks():
        report = job(world, IN_TASKS, engine=DisturbedEngine(spark, stages, disturb)).run()
    demand(report.version == 2 and report.engine == "spark", f"version {report.version}, engine {report.engine}")
    before = visible(world)
    demand(any(marks.iterdir()), "no task was disturbed")
    wait_until(lambda: not any(map(is_running, marks.iterdir())), "a late attempt continues")
    demand(visible(world) == before, "a late attempt changed what others see")
    finish(world, drive, collect=True)


def test_each_worker_runs_what_was_shipped(spark: SparkSession, cluster: Cluster, marks: Path) -> None:
    found = SparkEngine(spark).run("where", Where(marks), range(4))
    assert {host for host, _, _ in found} == set(HOSTS)
    for host, interpreter, files in found:
        # <work folder>/<application>/<executor>/environment
        (unpacked,) = {Path(*Path(file).relative_to(cluster.work_of(host)).parts[:3]) for file in [interpreter, *files]}
        assert unpacked.name == "environment"


def test_late_attempts_leave_no_trace(spark: SparkSession, tmp_path: Path, marks: Path) -> None:
    attempts = Attempts(spark)
    run_disturbed(tmp_path, spark, ("scan", "judge", "write"), Slow(marks), marks)
    wait_until(attempts.rescued, "no speculative attempt won")


def test_a_job_that_shows_files_of_losing_attempts_is_detected(
    spark: SparkSession, tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own check, even: so there was something to show."""
    monkeypatch.setattr(RunFolders, "collect", RunFolders.collect)  # to be restored
    MUTANTS["collects_all"](cast(DedupJob, None))
    with pytest.raises(SinkChangedError, match=r"not the folder with .* version 2"):
        run_disturbed(tmp_path, spark, ("write",), Slow(marks), marks)


@pytest.mark.parametrize(("victim", "stage"), [("executor", "judge"), ("worker", "write")])
def test_a_run_outlives_what_it_runs_on(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, marks: Path, victim: Victim, stage: str
) -> None:
    attempts = Attempts(spark)
    run_disturbed(tmp_path, spark, (stage,), Deadly(marks, victim), marks)
    assert cluster.is_running(DOOMED_HOST) == (victim == "executor")
    wait_until(attempts.failed, "no task was lost")


def test_workers_that_share_no_folder(spark: SparkSession, tmp_path: Path, marks: Path) -> None:
    """Source, state and sink are in an object store; so is what tasks hand on."""
    with serve_s3(*SECRETS) as endpoint:
        root, options = f"s3://{BUCKET}/{os.urandom(8).hex()}", options_of(endpoint)
        source = open_store(f"{root}/source", options=options)
        for number in range(6):
            path = tmp_path / "source" / f"{number}.parquet"
            path.parent.mkdir(exist_ok=True)
            numbers = range(900 * number, 900 * number + 1000)
            columns = {name: [0] * 1000 for name in ("pid", "epoch", "partition")} | {"seq": [*numbers]}
            pq.write_table(pa.table(columns), path, row_group_size=300)
            source.put(path.name, path.read_bytes())
        engine = EngineAtHome(spark, tmp_path / "homes", marks)
        given = dict.fromkeys(("source_options", "state_options", "sink_options"), options)
        places = [f"{root}/{name}" for name in ("source", "state", "sink")]
        with small_tasks():
            far = DedupJob(*places, engine=engine, plan="interval", **IN_TASKS, **given).run()  # type: ignore[arg-type]
        near = DedupJob(*[tmp_path / name for name in ("source", "state", "sink")], shards=4).run()
        assert far.counts == near.counts == {"ACCEPTED": 5500, "DUPLICATE": 500}
        rows = dataset(f"{root}/sink", options).to_table()
        assert sorted(rows["seq"].to_pylist()) == [*range(5500)]
    assert engine.stages == ["scan", "judge", "write", "copy"]
    assert {mark.name for mark in marks.iterdir()} == set(HOSTS)


def test_a_frame_with_attempts_beside_each_other(spark: SparkSession, marks: Path) -> None:
    attempts = Attempts(spark)
    assert collected(deduplicate(pass_on(frame(spark), Slow(marks)))) == KEPT
    wait_until(attempts.rescued, "no speculative attempt won")


def test_a_frame_whose_shuffle_is_lost(spark: SparkSession, cluster: Cluster, marks: Path) -> None:
    """A lost worker loses its shuffle files: its tasks run again, and rows arrive in another order."""
    attempts, together, doomed = Attempts(spark), marks / "together", marks / "doomed"
    together.mkdir()
    doomed.mkdir()
    rows = pass_on(frame(spark, 2), Together(together))  # each worker has shuffled one of two
    assert collected(pass_on(deduplicate(rows), Deadly(doomed, "worker"))) == KEPT
    assert not cluster.is_running(DOOMED_HOST)
    wait_until(lambda: any(task["round"] for task in attempts.new()), "nothing was shuffled again")


def test_a_table_function_of_sql(spark: SparkSession) -> None:
    """Spark asks it on the driver what it gives, with the interpreter that tasks have."""
    register(spark)
    frame(spark).createOrReplaceTempView("events")
    assert collected(spark.sql("SELECT * FROM fencepost_deduplicate(TABLE(events))")) == KEPT


def test_the_page_describes_this_implementation() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    (installed,) = re.findall(r"pip install (.*)", page)
    needed = [line for line in (ROOT / "requirements" / "workers.in").read_text().splitlines() if line.isalnum()]
    assert len(needed) == 3
    assert set(installed.split()) == {*needed, "fencepost-*.whl", "fencepost_spark-*.whl", "venv-pack"}
    for setting in (SHIPPED, PYTHON):
        assert setting in page


def frame(spark: SparkSession, partitions: int = 4) -> DataFrame:
    rows = random.Random(1).sample(ROWS, len(ROWS))
    return spark.createDataFrame(rows, DDL).repartition(partitions)


def pass_on(df: DataFrame, disturb: Disturbance) -> DataFrame:
    return df.mapInArrow(PassOn(disturb), df.schema)


def collected(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())
