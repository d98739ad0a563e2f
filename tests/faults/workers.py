"""An engine whose tasks are processes, and their faults.

| name | what happens |
|---|---|
| pool | nothing; tasks begin in an order of chance |
| killed | every first attempt is killed: at some change to the disk, or with its work done and not reported |
| twice | every task is run twice, one attempt after the other; the second's result counts |
| late | of every stage one task runs a second time, stops midway, and continues when `resume_late_attempts` is called |
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.processes import is_stopped, process_state

from faults.driver import count_calls, processes, wait_until
from faults.world import World, demand

ATTEMPTS_MAX = 4
MODES = ("pool", "killed", "twice", "late")


class PoolEngine:
    """See the module. `mode`: what happens; `seed`: when."""

    name = "pool"
    slots = 2
    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self, world: World, mode: str, seed: int) -> None:
        demand(mode in MODES, f"no such mode: {mode}")
        self.folder = world.root / "workers"
        self.folder.mkdir(exist_ok=True)
        self.mode, self.draw = mode, random.Random(seed)
        # The server that this process comes from serves its tasks, too; it would begin another one.
        forkserver._forkserver.ensure_running = lambda: None

    def run(
        self,
        stage: str,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        order = list(range(len(items)))
        self.draw.shuffle(order)
        moments = {place: self.draw.randrange(1, 12) for place in order}
        if self.mode == "late" and order:
            self._start(work, items[order[0]], stop_at=moments[order[0]] % 4 + 1)
        results: dict[int, Any] = {}
        lock = threading.Lock()

        def attend(place: int) -> None:
            result = self._persist(work, items[place], moments[place])
            with lock:
                results[place] = result
                if progress is not None:
                    progress(len(results), len(items))

        with ThreadPoolExecutor(self.slots) as pool:
            list(pool.map(attend, order))
        for place in range(len(items)):
            if isinstance(results[place], BaseException):
                raise results[place]
        return [results[place] for place in range(len(items))]

    def _persist(self, work: Callable[[Any], Any], item: Any, moment: int) -> Any:
        for attempt in range(ATTEMPTS_MAX):
            is_doomed = self.mode == "killed" and attempt == 0
            process, result = self._start(work, item, kill_at=moment if is_doomed else 0)
            process.join()
            # Not by its exit code, which another thread may have read.
            if result.exists() and not (self.mode == "twice" and attempt == 0):
                return pickle.loads(result.read_bytes())
            demand(result.exists() or is_doomed, "a task ended without a result")
            with open(self.folder / "disturbed", "a") as log:
                log.write(f"{self.mode}\n")
        raise AssertionError("every attempt was killed")

    def _start(self, work: Callable[[Any], Any], item: Any, *, kill_at: int = 0, stop_at: int = 0) -> tuple[Any, Path]:
        result = self.folder / f"{uuid4().hex}.result"
        process = processes.Process(target=_task, args=(work, item, str(result), kill_at, stop_at))
        process.start()
        if stop_at:
            wait_until(lambda: is_stopped(process.pid) or not process.is_alive(), "a late attempt did not stop")
            if process.is_alive():
                (self.folder / f"{process.pid}.late").touch()
        return process, result


def _task(work: Callable[[Any], Any], item: Any, result: str, kill_at: int, stop_at: int) -> None:
    if kill_at or stop_at:
        count_calls(kill_at or stop_at, signal.SIGKILL if kill_at else signal.SIGSTOP)
    try:
        found: Any = work(item)
    except Exception as error:
        found = error
    if kill_at:
        os.kill(os.getpid(), signal.SIGKILL)  # it had less to do than that
    part = Path(f"{result}.part")
    part.write_bytes(pickle.dumps(found))
    part.rename(result)


def resume_late_attempts(world: World) -> int:
    """Continue the stopped attempts until they end. Returns their number."""
    late = [int(path.stem) for path in (world.root / "workers").glob("*.late")]
    for pid in late:
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda pid=pid: process_state(pid) in ("", "Z"), "a late attempt hangs")
    return len(late)


def disturbed(world: World) -> int:
    """The number of attempts that were lost."""
    log = world.root / "workers" / "disturbed"
    return len(log.read_text().splitlines()) if log.exists() else 0
