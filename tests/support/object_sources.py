"""Buckets as sources of jobs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def rows(first: int, count: int, pid: int = 1, **more: Any) -> pa.Table:
    numbers = range(first, first + count)
    columns = {"pid": [pid] * count, "epoch": [0] * count, "partition": [0] * count, "seq": [*numbers]}
    return pa.table({**columns, "payload": [f"{pid}-{number}" * 20 for number in numbers], **more})
