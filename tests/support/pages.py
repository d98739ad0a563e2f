"""Reports whose pages are tested."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from fencepost import Columns

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; --",
    "a&amp;b",
    "line\nbreak\ttab\x00nul",
    "\u202egnp.exe",
    "x" * 500,
    "日本語 🎛️",
    "]]><!-- ",
    "${datum.value}",
    "https://example.com/x.js",
]


def rows_of(pids: list[Any], partition: Any = 0, **columns: Any) -> pa.Table:
    """Rows 0, 1, 1, 4 of each producer."""
    count = len(pids)
    seq = [0, 1, 1, 4] * count
    made = {"pid": [it for it in pids for _ in range(4)], "epoch": [0] * 4 * count}
    return pa.table(made | {"partition": [partition] * 4 * count, "seq": seq, **columns})


LANDING = Columns(partition=("topic", "partition"), timestamp="timestamp")
