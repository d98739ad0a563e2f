"""What all suites share."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Let Python look for cycles less often: each time it visits the hundreds of thousands of objects that a suite
    holds, which took a seventh of the CPU time of suites with many short tests."""
    gc.set_threshold(20_000, 20, 50)
