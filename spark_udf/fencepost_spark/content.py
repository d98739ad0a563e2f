"""Identifies the content of a stream's batch by three numbers, to recognize a batch that is delivered again.

These are the number of rows, and an order-independent sum of row hashes. For a row with an identity only the identity
is hashed, because other columns may change with each delivery (such as the current time). For a row without identity
all columns are hashed.
"""

from __future__ import annotations

from typing import Any

from fencepost.errors import BatchError
from fencepost.policy import Columns
from pyspark.sql import Column, DataFrame, Observation, functions

from fencepost_spark.frames import column_of, find_field, is_orderable, is_untracked, quoted

Content = dict[str, int]
"""`rows`, and the sums of the lower and upper 32 bits of their hashes: `low`, `high`."""


def observed(batch: DataFrame, columns: Columns, observation: Observation) -> DataFrame:
    """Return the batch with an observation of its content, filled when an action reads all of it (`content_of`)."""
    return batch.observe(observation, *_sums(batch, columns))


def content_of(observation: Observation) -> Content:
    """Return the content that an observation found."""
    return _content(observation.get)


def read_content(batch: DataFrame, columns: Columns) -> Content:
    """Return the content of a batch by reading it. Raises BatchError for missing columns."""
    rows = batch.agg(*_sums(batch, columns)).collect()
    return _content(rows[0].asDict())


def _content(found: dict[str, Any]) -> Content:
    return {name: int(found[name] or 0) for name in ("rows", "low", "high")}


def _sums(batch: DataFrame, columns: Columns) -> list[Column]:
    # a job finds columns and fields of structs by their exact names
    fields = {name: find_field(batch.schema, name) for name in columns.names if name not in batch.columns}
    missing = [name for name, field in fields.items() if field is None or field.name != name]
    if missing:
        raise BatchError(
            f"column '{missing[0]}': missing in the batch, which has {', '.join(batch.columns)}", column=missing[0]
        )
    identity = {name: column_of(name, batch.schema) for name in columns.names}
    whole = [functions.col(quoted(it.name)) for it in batch.schema if is_orderable(it.dataType)]
    row = functions.when(is_untracked(batch, columns, identity), functions.xxhash64(*whole))
    row = row.otherwise(functions.xxhash64(*identity.values()))
    # Sum halves: the sum of 64-bit hashes would overflow.
    return [
        functions.count(functions.lit(1)).alias("rows"),
        functions.sum(row.bitwiseAND(functions.lit(0xFFFFFFFF))).alias("low"),
        functions.sum(functions.shiftrightunsigned(row, 32)).alias("high"),
    ]
