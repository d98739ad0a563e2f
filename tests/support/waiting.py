"""Tests wait for a state, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 300.0
"""Long enough for any machine: only a test that fails waits so long."""


def wait_until(holds: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Returns when `holds` does. Raises AssertionError with `what` if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.002)
