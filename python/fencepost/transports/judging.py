"""One batch or marker at a time through a `BrokerTable`, by which a log, a table or a folder decides what it takes."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from fencepost import BrokerTable, Verdict

NO_SEQ = -1
TRANSACTION_VERSION = 2
"""Of the markers: the epoch has risen by one when a transaction is decided."""
LEASES_FROM = 2**40
"""The first pid of a lease that a transport hands out itself. A `ProducerRegistry` counts from 0, and producers of both
may write to one log: with one pid for two of them, rows of the second would be taken for repeats."""


class Judged(NamedTuple):
    """What became of a batch, and where it lies: the first copy's place for a duplicate, None where it was refused."""

    verdict: Verdict
    offset: int | None


class Written(NamedTuple):
    """The last batch that a partition has of a producer; -1 where its epoch has none yet."""

    epoch: int
    last_seq: int


def new_table() -> BrokerTable:
    """A table that gives out offsets, and in which a stranger begins with 0.

    In Kafka it may begin anywhere, for it may be someone who was forgotten; so there the second batch of a new producer
    is taken if it comes before the first. Here nobody is forgotten.
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
    """Take a batch into the table, or refuse it. `check`: only say what would become of it."""
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
    """Take a marker: "commit" or "abort". It empties the window, and fences every epoch below its own."""
    import pyarrow as pa

    columns = _columns(partition, pid, epoch, NO_SEQ, 1)
    columns["control"] = pa.array([outcome])
    columns["coordinator_epoch"] = pa.array([coordinator_epoch], pa.int32())
    columns["transaction_version"] = pa.array([TRANSACTION_VERSION], pa.int8())
    return _first((table.check if check else table.apply)(columns))


def last_written(table: BrokerTable, partition: int, pid: int) -> Written | None:
    """What the partition has of a producer; None if it does not know it."""
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
