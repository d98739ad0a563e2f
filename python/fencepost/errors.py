"""What can go wrong: one class per recovery.

The message alone says everything (column, row, value, allowed range), because some doors keep only text.
The attributes say the same to programs.
"""


class FencepostError(Exception):
    """Anything that this package raises on purpose, but for the TypeError of what is no table at all."""


class BatchError(FencepostError):
    """The rows cannot be judged: mend the input. The table is as it was before the call."""

    def __init__(self, message: str, *, column: str | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.column = column
        """The column at fault, by its name in the input."""
        self.row = row
        """The first row at fault, counted from 0, where one row is."""


class PolicyError(FencepostError):
    """No such policy or field, or a combination or call that makes no sense: choose another."""


class CapacityError(FencepostError):
    """The call could take the table above its bound. Nothing has changed: raise the bound or start a new table."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        """The bound that was set."""


class SnapshotError(FencepostError):
    """The bytes are no snapshot that can be used: take another one."""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """What is wrong, without where."""


class SourceError(FencepostError):
    """The content of a file is not what it claims to be: mend it or set it aside."""

    def __init__(self, message: str, *, path: str | None = None, position: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        """The file."""
        self.position = position
        """Where in it, in bytes, where known."""


class SinkError(FencepostError):
    """An output that is not ours: look, then choose another."""


class SinkChangedError(SinkError):
    """An output that was ours and has changed behind our back: look first."""


class StoreError(FencepostError):
    """A store, disk or database does not answer, refuses, or does not keep its word: see to it, then call again.

    It says nothing of the content: a file that cannot be decoded is a SourceError.
    """

    def __init__(self, message: str, *, path: str | None = None, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        """The file, where one is concerned."""
        self.errno = errno
        """The number of the system's error (module `errno`), where it gave one."""


class StateConflictError(FencepostError):
    """Another writer decided this version first: run again."""


class OutcomeUnknownError(FencepostError):
    """A connection was lost during a commit: it may have happened or not. Call again, the claim or number tells."""


class UndoneError(FencepostError):
    """Work in a transaction passed over what had undone it, or ended it: nothing was applied. Mend that work."""


class SchemaError(FencepostError):
    """Tables of a database that this version of the package cannot use: upgrade it, or choose another schema."""


class FencedError(FencepostError):
    """Another producer took over this identity, or another worker this request: stop. Nothing has changed.

    Kafka's PRODUCER_FENCED, for producers.
    """


class ConcurrentTransactionError(FencepostError):
    """A transaction of this id is decided but not completed yet: make the same call again.

    Kafka's CONCURRENT_TRANSACTIONS. The decision itself stands.
    """


class TransactionStateError(FencepostError):
    """The transaction's state does not allow this call: abort, which tells the present identity. Nothing has changed.

    Kafka's INVALID_TXN_STATE.
    """


class TransactionAbortableError(FencepostError):
    """This transaction cannot commit any more: abort it, read positions again, begin another. Nothing has changed.

    Kafka's TRANSACTION_ABORTABLE, and what a consumer group answers to a member of an older generation.
    """


class MappingError(FencepostError):
    """No transactional id has this pid now: `init_producer` with `expected=`, which tells whether it was taken over.

    Kafka's INVALID_PRODUCER_ID_MAPPING: the id has expired, or its pid was rotated.
    """


class TransitionError(FencepostError):
    """A guarded transition does not apply, the row is in another state: look; an event may have come too early."""


class RequestInFlightError(FencepostError):
    """Another worker processes the same request: repeat it later. Nothing has changed. Over HTTP: 409."""

    def __init__(self, message: str, *, lease_left_ms: int | None = None) -> None:
        super().__init__(message)
        self.lease_left_ms = lease_left_ms
        """How long that worker's claim is protected, unless it is renewed."""


class KeyReusedError(FencepostError):
    """An idempotency key was used for another request: send this one with a new key. Over HTTP: 422."""


class PoisonedError(FencepostError):
    """An earlier call broke off midway: rebuild the table from a snapshot, or open the log again."""


class LockedError(FencepostError):
    """Another writer has this open, in this process or in another: close it there first."""


class DeliveryError(FencepostError):
    """Rows were not acknowledged: the producer lives on. `is_refused` tells whether they are surely not in the log."""

    def __init__(self, message: str, *, partition: int | None = None, is_refused: bool = False) -> None:
        super().__init__(message)
        self.partition = partition
        """Where they were to go."""
        self.is_refused = is_refused
        """True: the log has refused them, or they were never sent. False: they may be there, nobody knows."""


class TransportError(FencepostError):
    """A transport answers what cannot be. The producer has stopped: mend the transport, then resume."""
