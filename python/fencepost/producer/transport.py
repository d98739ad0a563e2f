"""The interface between a producer and its destination. Any object with these methods works, without inheritance.

`fencepost.transports` implements it for a `PartitionLog`, an SQL table and a landing folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SequencedBatch:
    """The rows of one request: of one partition, with their identity."""

    partition: int
    pid: int
    epoch: int
    first_seq: int
    last_seq: int
    """Modulo 2^31, so it may be below `first_seq`. In cursor mode these are the first and last position (int64)."""
    count: int
    rows: pa.Table
    """The application's columns after pid (int64), epoch (int16), partition (int32) and seq."""
    transactional: bool = False
    cursor: str | None = None
    """The producer's name in cursor mode: sequences are positions of its source. A log accepts what is above the
    highest position of the name and drops the rest. The pid cannot identify the producer: it changes when epochs are
    used up or the name expires."""


class Transport(Protocol):
    """The required method of a transport.

    Several threads may call a transport. For each partition, one thread at a time calls it, in the order of the
    numbers.
    """

    def send(self, batch: SequencedBatch) -> Any:
        """Write a batch. Returns an `Answer` when the batch is durable or refused.

        May instead return an object with `add_done_callback` and `result` (`concurrent.futures.Future`). Then up to
        five batches of a partition are in flight.

        Exceptions count as answers. StoreError, OutcomeUnknownError and OSError (such as timeouts): unknown whether the
        batch was written; it is sent again. FencedError: stops the producer. BatchError: INVALID_RECORD. Any other
        exception violates the contract.
        """

    # Optional members:

    # partitions: int
    #   The number of partitions, if the producer does not get it as an argument.
    # fence(pid, epoch, partitions) -> Mapping[int, tuple[int, int]] | None
    #   Refuse everything below `epoch` of `pid` from now on, in these partitions or in all (None). May return the epoch
    #   and last sequence that each partition has of the pid: batches in flight up to there count as delivered and are
    #   not sent again under the new epoch.
    # cursor(name, partition) -> int | None
    #   The highest position of a producer. Enables cursor mode: `send` drops rows up to this position.


class Coordinator(Protocol):
    """Decides transactions, like `fencepost.sql.TransactionCoordinator`. Identities come from it or from a registry."""

    def begin(self, identity: Any) -> Any: ...
    def add_partitions(self, identity: Any, partitions: list[tuple[str, int]]) -> Any:
        """Register the (topic, partition) pairs that will be written."""

    def commit(self, identity: Any, work: Any = None) -> Any:
        """Commit, and return the next identity: every transaction raises the epoch."""

    def abort(self, identity: Any) -> Any:
        """Abort, and return the next identity: every transaction raises the epoch."""
