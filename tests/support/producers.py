"""A producer with short waits, and its coordinator."""

from __future__ import annotations

from typing import Any

import fencepost as fp
import pyarrow as pa
from fencepost.producer import Identity, SequencedBatch
from fencepost.producer.stamping import stamp

from support.faulty_transport import MemoryTransport

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "linger_ms": 0}


def rows(*values: Any, **columns: Any) -> list[dict[str, Any]]:
    return [{"value": value, **columns} for value in values]


def batch(pid: int, epoch: int, first_seq: int, rows: Any, partition: int = 0, **more: Any) -> SequencedBatch:
    """A batch of a table, or of the values of a column named value."""
    table = rows if isinstance(rows, pa.Table) else pa.table({"value": rows})
    stamped = stamp(table, pid, epoch, partition, first_seq)
    last_seq = (first_seq + len(table) - 1) % 2**31
    return SequencedBatch(partition, pid, epoch, first_seq, last_seq, len(table), stamped, **more)


class Coordinator:
    """Ends transactions as the second version of the protocol does: the epoch rises. `calls`: what was asked."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport, self.calls = transport, list[Any]()
        self.partitions: set[int] = set()
        if hasattr(transport, "init_producer"):
            self.init_producer = transport.init_producer

    def begin(self, identity: Any) -> None:
        self.calls.append("begin")

    def add_partitions(self, identity: Any, partitions: list[tuple[str, int]]) -> None:
        self.calls.append(partitions)
        self.partitions.update(number for _, number in partitions)

    def commit(self, identity: Any, work: Any = None) -> Identity:
        if work is not None:
            self.calls.append(work)
        return self._end(identity, "commit")

    def abort(self, identity: Any) -> Identity:
        return self._end(identity, "abort")

    def _end(self, identity: Any, outcome: str) -> Identity:
        from fencepost.transports.admission import mark

        self.calls.append(outcome)
        successor = Identity(identity.pid, identity.epoch + 1)
        with self.transport.lock:
            if self.transport.leases["t"] != identity:
                raise fp.FencedError("somebody else has t")
            self.transport.leases["t"] = successor
            for number in self.partitions:
                assert mark(self.transport.table, number, *successor, outcome).verdict.is_kept
        self.partitions.clear()
        return successor
