"""Where tasks run. An engine knows nothing of deduplication."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs the tasks of a stage anywhere that sees the same folders.

    `work` is a function of a module, items and results are small and can be pickled. Results come back in the order of
    the items. An item may be run more than once, also at the same time (retries, speculation): whatever the attempts
    write has names of its own, and only what the winning result names counts.
    """

    name: str

    def run(
        self,
        stage: str,
        work: Callable[[T], R],
        items: Sequence[T],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[R]:
        """`work(item)` for each item; `progress(done, total)` as they come in. Raises what a task raises."""
        ...


class LocalEngine:
    """Threads of this process: Arrow and the native core run beside each other, they hold no interpreter lock."""

    name = "local"

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: as many as this process may use processors, unless given."""
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads}: at least one is needed")
        self.threads = threads or _processors()

    def run(
        self,
        stage: str,
        work: Callable[[T], R],
        items: Sequence[T],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[R]:
        """See `Engine`. Of several failing tasks the first in item order is raised, among those that had begun."""
        with ThreadPoolExecutor(self.threads, thread_name_prefix=f"fencepost-{stage}") as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                for done, future in enumerate(as_completed(futures), 1):
                    if future.exception() is not None:
                        break
                    if progress is not None:
                        progress(done, len(items))
            finally:
                pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures if not future.cancelled()]


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
