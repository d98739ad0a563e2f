"""Where tasks run. An engine knows nothing of deduplication."""

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
    """Runs the tasks of a stage anywhere that reaches the same folders and stores.

    `work` is a function of a module, or a `partial` of one whose arguments may hold credentials: the engine carries it
    to its tasks by a channel that nobody else reads or writes. Items and results are small and can be pickled. Results
    come back in the order of the items. An item may be run more than once, also at the same time (retries,
    speculation): whatever the attempts write has names of its own, and only what the winning result names counts.
    """

    name: str
    slots: int
    """How many tasks it runs beside each other, as far as it knows."""
    in_process: bool
    """Whether tasks share this process, so that handing them something costs nothing."""
    driver_bytes_max: int
    """A run over files of no more bytes in all scans and writes them in threads of the driver: starting tasks takes
    longer. 0 for tasks always."""

    def run(
        self,
        stage: str,
        work: Callable[[T], R],
        items: Sequence[T],
        progress: Progress | None = None,
    ) -> list[R]:
        """`work(item)` for each item; `progress(done, total)` as they come in. Raises what a task raises."""
        ...


class Stopped(Exception):
    """The stage of this task is being given up; nobody wants what it does."""


_OF_TASK = threading.local()


def check_stopped() -> None:
    """Called by long tasks between two steps. Raises `Stopped` where a `LocalEngine` gives their stage up."""
    stop = getattr(_OF_TASK, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped


def _begin(stop: threading.Event) -> None:
    _OF_TASK.stop = stop


class LocalEngine:
    """Threads of this process: Arrow and the native core run beside each other, they hold no interpreter lock."""

    name = "local"
    in_process = True
    driver_bytes_max = 0

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: as many as this process may use processors, unless given."""
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads}: at least one is needed")
        self.slots = threads or _processors()

    def run(
        self,
        stage: str,
        work: Callable[[T], R],
        items: Sequence[T],
        progress: Progress | None = None,
    ) -> list[R]:
        """See `Engine`. Of several failing tasks the first in item order is raised, among those that had begun.

        An interrupt (Ctrl-C) ends the tasks under way where they next call `check_stopped`.
        """
        stop = threading.Event()
        name = f"fencepost-{stage}"
        with ThreadPoolExecutor(self.slots, thread_name_prefix=name, initializer=_begin, initargs=(stop,)) as pool:
            futures = [pool.submit(work, item) for item in items]
            waiting = set(futures)
            try:
                while waiting:
                    # Not for ever in one call: a Ctrl-C is noticed between them.
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
    """(first, end) of the neighbours that a task takes: as many as weigh no more than `target`, but one at least."""
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
    """(seconds, result) of each item of a stage whose items may be many and large: dataclasses of data.

    Tasks of other processes read theirs from a plan in `scratch` (`task_plan.py`), so an engine carries places in a
    file, not lists of files, and no task is sent what others have to do.
    """
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
    pa.default_memory_pool().release_unused()  # or the next task has what this one held beside its own
    return time.perf_counter() - start, result


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
