"""What a producer asks of the place it writes to. Anything with these calls will do; nothing needs to be inherited.

`fencepost.transports` has those for a `PartitionLog`, an SQL table and a landing folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SequencedBatch:
    """What is sent: rows of one partition, stamped."""

    partition: int
    pid: int
    epoch: int
    first_seq: int
    last_seq: int
    """Modulo 2^31, so it may be lower than the first. In cursor mode the first and last position (int64)."""
    count: int
    rows: pa.Table
    """The application's columns, with pid (int64), epoch (int16), partition (int32), seq in front."""
    transactional: bool = False
    cursor: str | None = None
    """In cursor mode the producer's name: the sequences are positions of its source. A log takes what lies above the
    highest that it has of the name, and drops the rest. By the pid it would not know a producer again whose epochs are
    used up, or whose name has expired."""


class Transport(Protocol):
    """The one call that there must be.

    A transport is used from several threads, but for one partition by one at a time, in the order of the numbers.
    """

    def send(self, batch: SequencedBatch) -> Any:
        """An `Answer`, once the batch is durable or refused, or something with `add_done_callback` and `result` that
        comes to one (`concurrent.futures.Future`): then up to five batches of a partition are on their way at once.

        Instead of an answer it may raise: StoreError, OutcomeUnknownError and any OSError, time-outs among them, mean
        that nobody knows whether the batch was written, and it is sent again. FencedError stops the producer,
        BatchError is INVALID_RECORD. Anything else is nonsense.
        """

    # These it may have.

    # partitions: int
    #     How many there are, where the producer is not told.
    # init_producer(transactional_id, timeout_ms, expected)
    #     As `Registry`, where the producer is given no other.
    # fence(pid, epoch, partitions) -> Mapping[int, tuple[int, int]] | None
    #     From here on nothing below `epoch` is taken of `pid` in these partitions, or in any where it is None. Gives,
    #     where it knows, the epoch and last sequence that each has of the pid: what was in flight and is there counts
    #     as delivered, and is not sent again under the new epoch.
    # cursor(name, partition) -> int | None
    #     The highest position that it has of a producer, for cursor mode.


class Coordinator(Protocol):
    """Decides transactions, like `fencepost.sql.TransactionCoordinator`. Identities are what it or a registry gave."""

    def begin(self, identity: Any) -> Any: ...
    def add_partitions(self, identity: Any, partitions: list[tuple[str, int]]) -> Any:
        """Names what will be written to, as (topic, partition)."""

    def commit(self, identity: Any, work: Any = None) -> Any:
        """Gives the identity for what comes next: the epoch rises with every transaction."""

    def abort(self, identity: Any) -> Any:
        """The same."""
