"""Judges single batches and markers with a `BrokerTable`, to decide what a log, table or folder accepts."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from fencepost import BrokerTable, Verdict

NO_SEQ = -1
TRANSACTION_VERSION = 2
"""The transaction version of markers: a decision raises the epoch by one."""


class Judged(NamedTuple):
    """The verdict on a batch and its offset: that of the first copy for a duplicate, None if refused."""

    verdict: Verdict
    offset: int | None


class Written(NamedTuple):
    """The last batch of a producer in a partition. -1 if its epoch has none yet."""

    epoch: int
    last_seq: int


def new_table() -> BrokerTable:
    """Return a table that assigns offsets and in which a new producer must start with 0.

    Kafka accepts any first sequence, because it may have forgotten the producer. So it accepts a new producer's second
    batch if that arrives before the first. These tables forget no producer.
    """
    return BrokerTable(offsets="assign", first="zero")


def judge(
    table: BrokerTable,
    partition: int,
    pid: int,
    epoch: int,
    first_seq: int,
    count: int,
    transactional: bool = False,
    *,
    check: bool = False,
) -> Judged:
    """Add a batch to the table, or refuse it. `check`: return the verdict only."""
    import pyarrow as pa

    columns = _columns(partition, pid, epoch, first_seq, count)
    columns["transactional"] = pa.array([transactional])
    return _first((table.check if check else table.apply)(columns))


def mark(
    table: BrokerTable,
    partition: int,
    pid: int,
    epoch: int,
    outcome: str,
    coordinator_epoch: int = 0,
    *,
    check: bool = False,
) -> Judged:
    """Add a marker, "commit" or "abort". It empties the window and fences all lower epochs. `check`: return the verdict
    only."""
    import pyarrow as pa

    columns = _columns(partition, pid, epoch, NO_SEQ, 1)
    columns["control"] = pa.array([outcome])
    columns["coordinator_epoch"] = pa.array([coordinator_epoch], pa.int32())
    columns["transaction_version"] = pa.array([TRANSACTION_VERSION], pa.int8())
    return _first((table.check if check else table.apply)(columns))


def last_written(table: BrokerTable, partition: int, pid: int) -> Written | None:
    """Return the last batch of a producer in the partition. None if the producer is unknown."""
    entry = table.get(pid, partition)
    if entry is None:
        return None
    batches = entry["batches"]
    return Written(entry["epoch"], batches[-1]["last_seq"] if batches else NO_SEQ)


def _columns(partition: int, pid: int, epoch: int, first_seq: int, count: int) -> dict[str, Any]:
    values = {"partition": partition, "pid": pid, "epoch": epoch, "base_seq": first_seq, "count": count}
    return {name: array("q", [value]) for name, value in values.items()}


def _first(verdicts: Any) -> Judged:
    import pyarrow as pa

    return Judged(Verdict(pa.array(verdicts.verdict)[0].as_py()), pa.array(verdicts.offsets)[0].as_py())
