"""Whether a call releases the interpreter while it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

ATTEMPTS_MAX = 5
SLOTS_MIN = 9


class Clock:
    """A thread of Python that notes, as often as the interpreter lets it, in which slot of time it ran.

    Time is the CPU time of the process, so other processes on a busy machine do not count.
    """

    def __init__(self, slot_seconds: float = 0.01) -> None:
        self.slot_seconds = slot_seconds
        self.slots: set[int] = set()
        self.is_running = True
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while self.is_running:
            self.slots.add(self.slot())

    def __enter__(self) -> Clock:
        self.thread.start()
        while not self.slots:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_running = False
        self.thread.join()

    def slot(self) -> int:
        return int(time.process_time() / self.slot_seconds)

    def share_of(self, work: Callable[[], object]) -> float:
        """The share of slots between begin and end of the work in which the thread ran. Brief work is done again."""
        begin = self.slot()
        while self.slot() < begin + SLOTS_MIN:
            work()
        within = range(begin + 1, self.slot())
        return len(self.slots.intersection(within)) / len(within)


def assert_released(work: Callable[[], object], *, is_brief: bool = False) -> None:
    """Released, another thread runs in nearly every slot; held, in none but at either end.

    Half is asked for, in one of several attempts. Slots of brief work are as short as the turns of a busy machine, in
    which the two threads may alternate: there a quarter is.
    """
    shares: list[float] = []
    with Clock(0.002 if is_brief else 0.01) as clock:
        for _ in range(ATTEMPTS_MAX):
            shares.append(clock.share_of(work))
            if shares[-1] > (0.25 if is_brief else 0.5):
                return
    pytest.fail(f"another thread ran in these shares of the time: {shares}")
