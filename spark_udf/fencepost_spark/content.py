"""What is in a batch of a stream, in three numbers, by which one that is delivered again is known.

The number of rows, and the sum of a hash of each row, which no order changes. Of a row with an identity the identity is
hashed, for other columns may be computed anew with every delivery (the time, say); of a row without one all of it.
"""

from __future__ import annotations

from typing import Any

from fencepost.errors import BatchError
from fencepost.policy import Columns
from pyspark.sql import Column, DataFrame, Observation, functions

from fencepost_spark.frames import is_orderable, is_untracked, quoted

Content = dict[str, int]
"""`rows`, and the sums of the lower and upper 32 bits of their hashes: `low`, `high`."""


def observed(batch: DataFrame, columns: Columns, observation: Observation) -> DataFrame:
    """The batch; whoever runs it to its end finds its content in the observation (`content_of`)."""
    return batch.observe(observation, *_sums(batch, columns))


def content_of(observation: Observation) -> Content:
    """What an observation has found."""
    return _content(observation.get)


def read_content(batch: DataFrame, columns: Columns) -> Content:
    """The content of a batch, which is read for it. Raises BatchError for columns that are not there."""
    rows = batch.agg(*_sums(batch, columns)).collect()
    return _content(rows[0].asDict())


def _content(found: dict[str, Any]) -> Content:
    return {name: int(found[name] or 0) for name in ("rows", "low", "high")}


def _sums(batch: DataFrame, columns: Columns) -> list[Column]:
    missing = [name for name in columns.names if name not in batch.columns]
    if missing:
        raise BatchError(
            f"column '{missing[0]}': missing in the batch, which has {', '.join(batch.columns)}", column=missing[0]
        )
    identity = {name: functions.col(quoted(name)) for name in columns.names}
    whole = [functions.col(quoted(it.name)) for it in batch.schema if is_orderable(it.dataType)]
    row = functions.when(is_untracked(batch, columns, identity), functions.xxhash64(*whole))
    row = row.otherwise(functions.xxhash64(*identity.values()))
    # In halves: the sum of whole hashes would overflow.
    return [
        functions.count(functions.lit(1)).alias("rows"),
        functions.sum(row.bitwiseAND(functions.lit(0xFFFFFFFF))).alias("low"),
        functions.sum(functions.shiftrightunsigned(row, 32)).alias("high"),
    ]
