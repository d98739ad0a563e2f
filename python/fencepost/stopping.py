"""The event that stops a loop."""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue


class StopEvent(threading.Event):
    """An event that a signal handler may set, once.

    `set` of a `threading.Event` takes a lock. If the signal interrupts `wait` in the same thread while that has the
    lock, the handler waits for itself without end. `SimpleQueue.put` may interrupt `get`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._queue.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            with suppress(Empty):
                self._queue.get(timeout=None if timeout is None else max(0.0, timeout))
                self._queue.put(None)  # for other waiting threads
        return self._is_set
