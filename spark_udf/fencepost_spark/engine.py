"""Runs a job's tasks on Spark. Independent of deduplication."""

from __future__ import annotations

import gc
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from fencepost import FencepostError
from pyspark import SparkContext
from pyspark.cloudpickle import dumps as _dumps
from pyspark.sql import SparkSession

from fencepost_spark.versions import __version__, use_driver_python

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
dumps: Callable[[Any], bytes] = _dumps  # cloudpickle has no type annotations

OUTCOME = pa.schema([("item", pa.int64()), ("is_error", pa.bool_()), ("outcome", pa.binary())])
OUTCOME_DDL = "item bigint, is_error boolean, outcome binary"
POLL_SECONDS = 0.2
DRIVER_BYTES_MAX = 16 << 20
"""For this number of bytes, the driver is faster than Spark's start of tasks in two stages."""
DRIVER_SCAN_BYTES_MAX = 1 << 30
"""The driver reads the identity columns of this number of bytes of files in less time than a stage takes to start."""
SLOTS_UNKNOWN = 8  # Spark Connect does not expose the number of parallel tasks


class SparkEngine:
    """Runs each item of a stage as one Spark task.

    Works with classic sessions and Spark Connect: each stage is a DataFrame with one row per task, without RDDs.
    Results are the collected rows, so a failed attempt (retry, speculation) leaves no trace, provided that tasks write
    under unique names.

    Args:
        spark: The session. Default: the active one.
        driver_bytes_max: A run over at most this many bytes of new files uses threads of the driver and no Spark tasks.
            Default: 16 MB. 0 always uses tasks.
        driver_scan_bytes_max: A run over at most this many bytes of new files on local or mounted disks reads their
            identity columns in threads of the driver, and waits for Spark tasks only to write. Default: 1 GB, or 0 if
            ``driver_bytes_max`` is 0. 0 always uses tasks.
    """

    name = "spark"
    in_process = False

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        driver_bytes_max: int | None = None,
        driver_scan_bytes_max: int | None = None,
    ) -> None:
        bounds = {"driver_bytes_max": driver_bytes_max, "driver_scan_bytes_max": driver_scan_bytes_max}
        for name, bytes_max in bounds.items():
            if bytes_max is not None and bytes_max < 0:
                raise ValueError(f"{name}={bytes_max}: expected 0 or more bytes")
        self.driver_bytes_max = DRIVER_BYTES_MAX if driver_bytes_max is None else driver_bytes_max
        if driver_scan_bytes_max is None:
            driver_scan_bytes_max = DRIVER_SCAN_BYTES_MAX if self.driver_bytes_max else 0
        self.driver_scan_bytes_max = driver_scan_bytes_max
        self._spark = session_or_active(spark)
        use_driver_python(self._spark)
        context = getattr(self._spark, "sparkContext", None)
        self.slots = context.defaultParallelism if context is not None else SLOTS_UNKNOWN

    def run(
        self,
        stage: str,
        work: Callable[[Item], Result],
        items: Sequence[Item],
        progress: Progress | None = None,
    ) -> list[Result]:
        """Return ``work(item)`` of each item, in the order of ``items``.

        ``work``, items and results are pickled (by value if necessary) and travel with every task. Keep them small and
        pass bulk data through files.

        Args:
            stage: A name for Spark's web UI.
            work: The function that tasks call.
            items: One item per task.
            progress: Called with (tasks done, tasks) from another thread; on Spark Connect only at the end.

        A FencepostError of a task is raised unchanged (that of the first item, if there are several) and not retried,
        because the same input fails again. Other errors are retried by Spark and raised as Spark's exception.
        """
        if not items:
            return []
        spark, count = self._spark, len(items)
        task = _task(work, items)
        with _watched(getattr(spark, "sparkContext", None), stage, count, progress):
            # One slice per item and no shuffle, so that Spark cannot combine tasks.
            rows = spark.range(0, count, 1, count).mapInArrow(task, OUTCOME_DDL).collect()
        outcomes = {row.item: row for row in rows}
        assert len(rows) == len(outcomes) == count, f"{count} tasks gave {len(rows)} results"
        results = [pickle.loads(outcomes[item].outcome) for item in range(count)]
        errors = [result for item, result in enumerate(results) if outcomes[item].is_error]
        if errors:
            raise errors[0]
        if progress is not None:
            progress(count, count)
        return results


def session_or_active(spark: SparkSession | None) -> SparkSession:
    """Return the session, or the active one. Raises RuntimeError if there is none."""
    found = spark or SparkSession.getActiveSession()
    if found is None:
        raise RuntimeError("no Spark session is active: pass one as spark=, or create it first")
    return found


def _task(work: Callable[[Item], Any], items: Sequence[Item]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    driver = __version__
    # Pickled one by one and unpickled in the task: each task unpickles only its item, and a worker of another version
    # reaches the comparison of versions.
    pickled_work, pickled = dumps(work), [dumps(item) for item in items]

    def run_task(batches: Iterator[Any]) -> Iterator[Any]:
        from fencepost_spark.versions import check_worker

        check_worker(driver)
        from fencepost_spark.engine import outcome_of, shorten_collections

        for batch in batches:
            for item in batch.column(0).to_pylist():
                yield outcome_of(item, pickled_work, pickled[item])
        shorten_collections()

    return run_task


def outcome_of(number: int, pickled_work: bytes, pickled_item: bytes) -> pa.RecordBatch:
    """Run one item in a task and return a row of OUTCOME."""
    try:
        result: Any = pickle.loads(pickled_work)(pickle.loads(pickled_item))
    except FencepostError as error:
        result = error
    is_error = isinstance(result, FencepostError)
    return pa.RecordBatch.from_pylist(
        [{"item": number, "is_error": is_error, "outcome": dumps(result)}], schema=OUTCOME
    )


@cache
def shorten_collections() -> None:
    """Freeze the garbage collector's objects at the end of a worker's first task, after all imports.

    Spark collects garbage after every task of a reused worker. With pandas and pyarrow imported this takes 60 ms, as
    much as a small task. Imported modules are never garbage, so they need no scan.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def _watched(context: SparkContext | None, stage: str, count: int, progress: Progress | None) -> Iterator[None]:
    """Name the job in Spark's web UI and report its progress. No context: Spark Connect."""
    if context is None:
        yield
        return
    properties = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = [context.getLocalProperty(name) for name in properties]
    group = f"fencepost-{uuid.uuid4()}"
    context.setJobGroup(group, f"fencepost: {stage}")
    is_over = threading.Event()
    watcher = threading.Thread(target=_poll, args=(context, group, count, progress, is_over), daemon=True)
    if progress is not None:
        watcher.start()
    try:
        yield
    finally:
        is_over.set()
        if progress is not None:
            watcher.join()
        for name, value in zip(properties, before, strict=True):
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it


def _poll(context: SparkContext, group: str, count: int, progress: Progress, is_over: threading.Event) -> None:
    tracker = context.statusTracker()
    shown = 0
    while not is_over.wait(POLL_SECONDS):
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if shown < done < count:
            progress(done, count)
            shown = done
