"""What all suites share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from support.s3_server import serve_s3


def pytest_collection_finish() -> None:
    """Let Python look for cycles less often: each time it visits the hundreds of thousands of objects that a suite
    holds, which took a seventh of the CPU time of suites with many short tests."""
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Of an S3 server with an empty bucket."""
    with serve_s3() as endpoint:
        yield endpoint
