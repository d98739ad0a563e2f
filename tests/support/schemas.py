"""Rows whose schema changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

ROWS = 4


def events(first: int, **columns: Any) -> pa.Table:
    """Rows of one producer with the identity and these columns: lists of values, or Arrow arrays."""
    seqs = range(first, first + ROWS)
    identity = {"pid": [7] * ROWS, "epoch": [0] * ROWS, "partition": [0] * ROWS, "seq": seqs}
    return pa.table(identity | columns)


def ints(kind: pa.DataType) -> pa.Array:
    return pa.array(range(ROWS), kind)
