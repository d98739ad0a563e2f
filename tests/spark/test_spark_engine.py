"""`SparkEngine`: every item once, in order, whatever becomes of the attempts."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
from conftest import IS_CONNECT, classic_only
from fencepost_spark import DedupJob, SparkEngine, engine
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.taskcontext import TaskContext
from support.waiting import wait_until


def square(item: int) -> int:
    return item * item


def task_of(item: Any) -> tuple[int, int]:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), context.attemptNumber()


def refuse_odd(item: int) -> int:
    if item % 2:
        raise fp.BatchError(f"column 'seq', row {item}: of the file {item}.parquet", column="seq", row=item)
    return item


def fail_once(marker: Path) -> int:
    attempt = task_of(marker)[1]
    if not marker.exists():
        marker.touch()
        os._exit(1) if "die" in marker.name else (_ for _ in ()).throw(OSError("once"))
    return attempt


def fail(item: int) -> int:
    raise OSError(f"no disk for item {item}")


def wait_for_progress(item: tuple[Path, int]) -> None:
    """Two tasks run at a time: each waits until the end of those before both was reported."""
    folder, number = item
    wait_until(lambda: number < 2 or any(int(it.name) >= number - 1 for it in folder.iterdir()), "nothing is reported")


def watched_objects(item: int) -> tuple[int, int]:
    """(the worker, the number of objects that a garbage collection inspects)."""
    return os.getpid(), len(gc.get_objects())


def test_results_come_in_the_order_of_the_items(spark: SparkSession) -> None:
    assert SparkEngine(spark).run("square", square, range(20)) == [item * item for item in range(20)]


def test_items_functions_and_results_may_be_anything_that_pickles(spark: SparkSession) -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    offset = 100
    results = SparkEngine(spark).run("local", lambda item: Local(item.value + offset), [Local(1), Local(2)])
    assert [result.value for result in results] == [101, 102]
    assert SparkEngine(spark).run("none", lambda item: None, [b"\x00" * 100_000, None]) == [None, None]


def test_each_item_is_a_task(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert SparkEngine(spark).run("tasks", task_of, range(33)) == [(item, 0) for item in range(33)]


def test_no_items_no_job(spark: SparkSession) -> None:
    assert SparkEngine(spark).run("nothing", square, []) == []


def test_the_active_session_is_the_default(spark: SparkSession) -> None:
    assert SparkEngine().run("square", square, [3]) == [9]
    assert SparkEngine().name == "spark"


def test_an_error_of_a_task_is_raised_unchanged(spark: SparkSession) -> None:
    """The first in the order of items, at once and without Spark's stack around it."""
    with pytest.raises(fp.BatchError, match=r"column 'seq', row 3: of the file 3\.parquet$") as error:
        SparkEngine(spark).run("refuse", refuse_odd, [0, 2, 3, 4, 5])
    assert (error.value.column, error.value.row) == ("seq", 3)


def test_another_error_is_retried_and_then_spark_s(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match="OSError: no disk for item 1"):
        SparkEngine(spark).run("fail", fail, [1])


@pytest.mark.parametrize("name", ["raise", "die"])
def test_a_task_that_fails_once_is_tried_again(spark: SparkSession, tmp_path: Path, name: str) -> None:
    markers = [tmp_path / f"{name}-{item}" for item in range(3)]
    for marker in markers[1:]:
        marker.touch()
    attempts = SparkEngine(spark).run("retry", fail_once, markers)
    assert attempts[0] == 1
    assert all(marker.exists() for marker in markers)


def test_progress_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        (tmp_path / str(done)).touch()

    # Spark Connect reports nothing before the end of a stage.
    items = range(8) if IS_CONNECT else [(tmp_path, number) for number in range(8)]
    SparkEngine(spark).run("wait", square if IS_CONNECT else wait_for_progress, items, progress)
    done = [number for number, _ in seen]
    assert seen[-1] == (8, 8)
    assert {total for _, total in seen} == {8}
    assert done == sorted(set(done))
    assert len(done) > 2 or IS_CONNECT


def test_progress_is_not_reported_as_complete_after_an_error(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []
    with pytest.raises(fp.BatchError):
        SparkEngine(spark).run("refuse", refuse_odd, [1], lambda done, total: seen.append((done, total)))
    assert (1, 1) not in seen


@classic_only
def test_the_session_is_left_as_it_was(spark: SparkSession) -> None:
    context = spark.sparkContext
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    for group in (None, "mine"):
        if group is not None:
            context.setJobGroup(group, "my job", interruptOnCancel=True)
        before = [context.getLocalProperty(name) for name in names]
        SparkEngine(spark).run("square", square, [1])
        assert [context.getLocalProperty(name) for name in names] == before
    for name in names:
        context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_a_worker_of_another_version_refuses(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "__version__", "0.0.0")
    with pytest.raises(PythonException, match=r"the driver runs fencepost-spark 0\.0\.0, this worker "):
        SparkEngine(spark).run("square", square, [1])


def test_a_reused_worker_does_not_collect_its_modules_after_every_task(spark: SparkSession) -> None:
    runs = SparkEngine(spark)
    runs.run("first", square, range(20))
    found = dict(runs.run("objects", watched_objects, range(20)))
    assert max(found.values()) < 50_000, found


@pytest.mark.parametrize(
    "door", [SparkEngine, lambda: DedupJob("/data/source", "/data/state", "/data/sink")], ids=["engine", "job"]
)
def test_without_a_session_the_message_names_what_to_pass(monkeypatch: pytest.MonkeyPatch, door: Any) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(RuntimeError, match=r"^no Spark session .*spark=, "):
        door()
