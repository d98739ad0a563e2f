"""What happens to tasks on one of the workers. Workers do not have this file: its functions travel by value."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pyspark import cloudpickle
from pyspark.sql import SparkSession

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SLOW_HOST, DOOMED_HOST = "127.0.0.1", "127.0.0.2"
IDLE_SECONDS = 120
"""Longer than all tasks together: a run that waits for a slow attempt is seen to."""

Victim = Literal["executor", "worker"]
Disturbance = Callable[[], None]


class DisturbedEngine:
    """SparkEngine whose tasks of the stages named are disturbed."""

    name = "spark"
    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self, spark: SparkSession, stages: Sequence[str], disturb: Disturbance) -> None:
        from fencepost_spark import SparkEngine

        self.engine, self.stages, self.disturb = SparkEngine(spark), stages, disturb
        self.slots = self.engine.slots

    def run(self, stage: str, work: Callable[[Any], Any], items: Sequence[Any], progress: Any = None) -> list[Any]:
        disturbed = Disturbed(work, self.disturb) if stage in self.stages else work
        return self.engine.run(stage, disturbed, items, progress)


class EngineAtHome:
    """SparkEngine whose tasks see no folder of anybody else's."""

    name = "spark"
    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self, spark: SparkSession, home: Path, marks: Path) -> None:
        from fencepost_spark import SparkEngine

        self.engine, self.home, self.marks = SparkEngine(spark), home, marks
        self.slots = self.engine.slots
        self.stages: list[str] = []

    def run(self, stage: str, work: Callable[[Any], Any], items: Sequence[Any], progress: Any = None) -> list[Any]:
        self.stages.append(stage)
        return self.engine.run(stage, AtHome(work, self.home, self.marks), items, progress)


class Disturbed:
    """The task is done, and reports it late: its files exist together with those of another attempt."""

    def __init__(self, work: Callable[[Any], Any], disturb: Disturbance) -> None:
        self.work, self.disturb = work, disturb

    def __call__(self, item: Any) -> Any:
        done = self.work(item)
        self.disturb()
        return done


class Slow:
    """First attempts on one host idle until Spark ends them; the other host waits for the first of them."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self) -> None:
        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        assert context is not None
        if host() != SLOW_HOST:
            wait_for_marks(self.marks, 1)
        elif context.attemptNumber() == 0:
            leave_mark(self.marks)
            time.sleep(IDLE_SECONDS)


class Together:
    """The first task waits until the other host has one, too. A speculative copy takes no task from a slow host."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self) -> None:
        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            time.sleep(IDLE_SECONDS)
        leave_mark(self.marks)
        wait_for_marks(self.marks, 2)


class Deadly:
    """The first task on one host kills its executor, or the worker with all that is on it; the other waits for it."""

    def __init__(self, marks: Path, victim: Victim) -> None:
        self.marks, self.victim = marks, victim

    def __call__(self) -> None:
        if host() != DOOMED_HOST:
            wait_for_marks(self.marks, 1)
        elif not any(self.marks.iterdir()):  # one core: no other task of the host looks at the same time
            leave_mark(self.marks)
            kill(self.victim)


class AtHome:
    """Each worker has files of its own only: what a task writes on its disk is gone when it is done.

    No task begins before both hosts have one.
    """

    def __init__(self, work: Callable[[Any], Any], home: Path, marks: Path) -> None:
        self.work, self.home, self.marks = work, home, marks

    def __call__(self, item: Any) -> Any:
        import tempfile

        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        assert context is not None
        (self.marks / host()).touch()
        wait_for_marks(self.marks, 2)
        own = self.home / f"{host()}-{context.taskAttemptId()}"  # another than that of a copy which was ended
        own.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(own)
        try:
            done = self.work(item)
        finally:
            tempfile.tempdir = None
        assert not any(own.iterdir()), "a task leaves something behind"
        own.rmdir()
        return done


class PassOn:
    """For `mapInArrow`: the same rows, disturbed before the first."""

    def __init__(self, disturb: Disturbance) -> None:
        self.disturb = disturb

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.disturb()
        yield from batches


class Where:
    """(host, interpreter, files of the packages) of a task. No task ends before both hosts have one."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self, item: int) -> tuple[str, str, list[str]]:
        import fencepost
        import fencepost_spark
        import numpy
        import pyarrow  # type: ignore[import-untyped]

        Together(self.marks)()
        packages = (fencepost, fencepost._native, fencepost_spark, numpy, pyarrow)
        return host(), sys.executable, [str(package.__file__) for package in packages]


def host() -> str:
    """The address of the worker, from which executors and tasks inherit it."""
    return os.environ["SPARK_LOCAL_IP"]


def leave_mark(marks: Path) -> None:
    """Create a file for this process, named by its id and its start: ids are used again."""
    _, start = _state_and_start(str(os.getpid()))
    (marks / f"{os.getpid()}-{start}").touch()


def is_running(mark: Path) -> bool:
    """Return whether the process that left a mark is running. A zombie is not."""
    pid, _, start_of_mark = mark.name.partition("-")
    try:
        state, start = _state_and_start(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and start == start_of_mark


def _state_and_start(pid: str) -> tuple[str, str]:
    fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def wait_for_marks(marks: Path, count: int) -> None:
    """Without it one host could be done with all tasks before the other has begun one."""
    end = time.monotonic() + IDLE_SECONDS
    while len(list(marks.iterdir())) < count:
        assert time.monotonic() < end, f"{count} marks were waited for, there are {len(list(marks.iterdir()))}"
        time.sleep(0.05)


def kill(victim: Victim) -> None:
    """What this process runs on. Task, daemon of tasks, executor, worker: each is a child of the next."""
    executor = parent_of(os.getppid())
    command = Path(f"/proc/{executor}/cmdline").read_text()
    assert "CoarseGrainedExecutorBackend" in command, command
    if victim == "executor":
        os.kill(executor, signal.SIGKILL)
    else:  # they are in one group
        os.killpg(os.getpgid(executor), signal.SIGKILL)


def parent_of(pid: int) -> int:
    """Of the fields after the name, which may hold anything, the second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
