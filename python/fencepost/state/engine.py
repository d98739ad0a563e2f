"""Where tasks run. An engine is independent of deduplication."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol, TypeVar

from fencepost.state.scratch import Scratch
from fencepost.state.task_plan import Place, read_item, write_plan

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]


class Engine(Protocol):
    """Runs the tasks of a stage anywhere with access to the same folders and stores.

    `work` is a module's function, or a `partial` of one whose arguments may contain credentials: the engine passes it
    to tasks by a channel that nobody else can read or write. Items and results are small and picklable. Results have
    the order of the items. An item may run more than once, even concurrently (retries, speculation). So attempts write
    under unique names, and only files in the winning result count.
    """

    name: str
    slots: int
    """Number of tasks that run in parallel, as far as known."""
    in_process: bool
    """Whether tasks share this process, so that passing data to them is free."""
    driver_bytes_max: int
    """A run over files of at most this many bytes in total scans and writes them in driver threads, because starting
    tasks takes longer. 0: always in tasks."""
    driver_scan_bytes_max: int
    """A run over files of at most this many bytes in total, on local or mounted disks, reads their identity columns in
    driver threads, and waits for tasks only to write. 0: always in tasks."""

    def run(
        self,
        stage: str,
        work: Callable[[T], R],
        items: Sequence[T],
        progress: Progress | None = None,
    ) -> list[R]:
        """Return `work(item)` for each item. Calls `progress(done, total)`. Raises the errors of tasks."""
        ...


class Stopped(Exception):
    """The stage of this task was cancelled."""


_OF_TASK = threading.local()


def check_stopped() -> None:
    """Raise `Stopped` if a `LocalEngine` cancelled the stage. Long tasks call this between steps."""
    stop = getattr(_OF_TASK, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped


def _begin(stop: threading.Event) -> None:
    _OF_TASK.stop = stop


class LocalEngine:
    """Runs tasks in threads of this process. Arrow and the native core release the interpreter lock."""

    name = "local"
    in_process = True
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: default is the number of usable processors."""
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads}: expected at least 1")
        self.slots = threads or _processors()

    def run(
        self,
        stage: str,
        work: Callable[[T], R],
        items: Sequence[T],
        progress: Progress | None = None,
    ) -> list[R]:
        """Run a stage (see `Engine`). Of several failed tasks, the first in item order is raised, among those that had
        begun.

        An interrupt (Ctrl-C) ends running tasks at their next `check_stopped`.
        """
        stop = threading.Event()
        name = f"fencepost-{stage}"
        with ThreadPoolExecutor(self.slots, thread_name_prefix=name, initializer=_begin, initargs=(stop,)) as pool:
            futures = [pool.submit(work, item) for item in items]
            waiting = set(futures)
            try:
                while waiting:
                    # With a timeout, so that Ctrl-C is noticed between calls.
                    done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                    if any(future.exception() is not None for future in done):
                        break
                    if progress is not None and done:
                        progress(len(items) - len(waiting), len(items))
            except BaseException:
                stop.set()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures if not future.cancelled()]


def groups(weights: Sequence[float], target: float) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of neighbors for each task: total weight up to `target`, but at least one."""
    first, sum_ = 0, 0.0
    for place, weight in enumerate(weights):
        if place > first and sum_ + weight > target:
            yield first, place
            first, sum_ = place, 0.0
        sum_ += weight
    if first < len(weights):
        yield first, len(weights)


def run_stage(
    engine: Engine,
    stage: str,
    work: Callable[[T], R],
    items: Sequence[T],
    scratch: Scratch,
    progress: Progress | None = None,
) -> list[tuple[float, R]]:
    """Return (seconds, result) of each item of a stage, whose items may be many and large dataclasses of plain data.

    Tasks of other processes read their items from a plan in `scratch` (`task_plan.py`). So an engine passes positions
    in a file instead of lists of files, and no task receives other tasks' items.
    """
    if progress is not None and items:
        progress(0, len(items))
    if engine.in_process or not items:
        return engine.run(stage, partial(_timed, work), items, progress)
    name, places = write_plan(scratch, stage, items)
    return engine.run(stage, partial(_work_by_plan, work, type(items[0]), scratch, name), places, progress)


def _work_by_plan(
    work: Callable[[Any], R], kind: type[Any], scratch: Scratch, name: str, place: Place
) -> tuple[float, R]:
    return _timed(work, read_item(scratch, name, place, kind))


def _timed(work: Callable[[T], R], item: T) -> tuple[float, R]:
    import pyarrow as pa  # type: ignore[import-untyped]

    start = time.perf_counter()
    result = work(item)
    pa.default_memory_pool().release_unused()  # otherwise this task's memory would add to the next one's
    return time.perf_counter() - start, result


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
