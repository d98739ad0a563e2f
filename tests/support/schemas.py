"""Rows whose schema changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from support.lake import one_producer

ROWS = 4


def events(first: int, **columns: Any) -> pa.Table:
    """Rows of one producer with the identity and these columns: lists of values, or Arrow arrays."""
    return one_producer(range(first, first + ROWS), **columns)


def ints(kind: pa.DataType) -> pa.Array:
    return pa.array(range(ROWS), kind)
