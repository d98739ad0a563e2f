"""The errors of this package: one class for each way to recover.

The message alone says everything (column, row, value, allowed range), because some callers keep only text.
The attributes say the same to programs. Each class has a code, which the message begins with: `[FP101] ...`.
`docs/errors.md` is made from this file and from the calls that raise: run `make errors` after a change.
"""

from __future__ import annotations

from typing import ClassVar


class Coded:
    """Puts the code of its class in front of the message of an error or a warning."""

    code: ClassVar[str]
    """The stable code of the class, for example `FP101`. It never changes and is never used again."""

    @property
    def message(self) -> str:
        """The text without the code, to be part of another message."""
        return super().__str__()

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


def message_of(error: BaseException) -> str:
    """The text of any error without a code, to be part of another message."""
    return error.message if isinstance(error, Coded) else str(error)


class FencepostError(Coded, Exception):
    """Base class of all errors that have a code. To handle all of them in one place, catch this class.

    Some wrong arguments raise Python's own classes instead. For example, input that is not tabular raises TypeError.

    What to do: read the message. If the class of the error is FencepostError itself, and not a subclass, fencepost has
    a defect: please report it.
    """

    code = "FP001"


class DependencyError(FencepostError):
    """A Python package that this function needs is missing, or too old.

    What to do: install the extra that the message names.
    """

    code = "FP002"

    @staticmethod
    def of_import(problem: ModuleNotFoundError) -> DependencyError:
        """Return the error for an import that failed, of a package of the extra `lake`."""
        package = str(problem.name).partition(".")[0]
        return DependencyError(f"{package} is not installed: pip install 'fencepost[lake]'")


class BatchError(FencepostError):
    """The rows cannot be used: a column is missing or has a wrong type, or a value is invalid.

    A state table is as it was before the call.

    What to do: correct the input at the column and row that the message names, then call again with all rows.
    """

    code = "FP101"

    def __init__(self, message: str, *, column: str | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.column = column
        """The column at fault, by its name in the input."""
        self.row = row
        """The first row at fault, counted from 0. None where no single row is at fault."""


class PolicyError(FencepostError):
    """An argument, a policy or an option is invalid, or does not fit the others.

    What to do: do what the message says, or choose a value that it allows. The refused operation has changed nothing.
    """

    code = "FP102"


class CapacityError(FencepostError):
    """The call could exceed the limit of a state table, or of the buffer of a producer. Nothing has changed.

    What to do: for a table, evict or forget old entries. The table then no longer recognizes their repeats. Or use a
    new table with a higher limit. If only `entries_max` is higher and the policy has admit='any', the new table can
    take over the old entries (`merge`). With a higher `intervals_max` it cannot: the policies then differ.
    For a producer, call again when more batches are acknowledged or have failed, or raise the limit.
    """

    code = "FP103"

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        """The limit that was set."""


class SnapshotError(FencepostError):
    """A snapshot of a table, or the state of a job, cannot be used.

    It is damaged, or it has another version, policy or setting.

    What to do: use the setting that the message names. If the bytes are damaged: for a table, restore an older
    snapshot, then apply the rows that came after it. Rows that the table does not know count as new. For a job, restore
    the damaged files of the state from a backup. If you cannot, restore state and sink together, from backups of the
    same time: an older state beside a newer sink would write rows twice.
    """

    code = "FP104"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """What is wrong, without the file."""


class PoisonedError(FencepostError):
    """An earlier call failed midway, so the table or log in memory can no longer be trusted.

    What to do: for a table, restore its last snapshot, then apply the rows that came after it. For a log, close it and
    open it again.
    """

    code = "FP105"


class SourceError(FencepostError):
    """The content of an input file, table or log is damaged or of another kind. Or data that must be read next is gone.

    What to do: do what the message says. If it names no remedy, repair the file, or remove it from the source. A job
    can quarantine it: `on_bad_file="quarantine"`.
    """

    code = "FP201"

    def __init__(self, message: str, *, path: str | None = None, position: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        """The file."""
        self.position = position
        """The position in the file, in bytes, where known."""


class SinkError(FencepostError):
    """The output belongs to something else, or cannot take these rows. Nothing was written to the output.

    Exception: if the message says that a version of the table differs from what was written, the call has written this
    version, and it is in the table.

    What to do: choose another place, or change what the message names.
    """

    code = "FP301"


class SinkChangedError(SinkError):
    """The output was written by this job, and something else has changed it since.

    What to do: find out what changed it. Restore it, or begin a new output with a new state.
    """

    code = "FP302"


class StoreError(FencepostError):
    """A store, disk, database or broker does not answer, refuses a request, or breaks its contract.

    A file that can be read but not decoded raises SourceError instead.

    What to do: check the service, the network and the rights, then make the same call again.
    """

    code = "FP303"

    def __init__(self, message: str, *, path: str | None = None, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        """The file, where the error is about one."""
        self.errno = errno
        """The number of the system's error (module `errno`), where it gave one."""


class StateConflictError(FencepostError):
    """Another writer was first: it has decided or finished this version, moved this position, or written this marker.

    What to do: do what the message says. If a run of a job fails, run again: the next run continues from the version of
    the other writer.
    """

    code = "FP304"


class LockedError(FencepostError):
    """Another writer has this log open, in this process or in another one.

    What to do: close the log there, then open it again.
    """

    code = "FP305"


class DeliveryError(FencepostError):
    """A producer got no confirmation that its rows were written. The message says whether the producer continues.

    In these messages, "the log" means the destination of the transport, even if it is a table or a folder.

    What to do: if the producer has stopped, open a new one. If `is_refused` is true, the rows are not in the log:
    correct what the message names, and send them again. If it is false, the rows may be in the log: read the log before
    you send them again.
    """

    code = "FP401"

    def __init__(self, message: str, *, partition: int | None = None, is_refused: bool = False) -> None:
        super().__init__(message)
        self.partition = partition
        """The partition the rows were sent to."""
        self.is_refused = is_refused
        """True: the log has refused the rows, or they were never sent. False: the rows may be in the log."""


class TransportError(FencepostError):
    """The transport, by which a producer writes to its destination, returned a response that violates its contract, or
    failed in an unexpected way. Or the registry issued an epoch that is too low.

    What to do: correct the transport or the registry, whichever the message names. Then open the producer again, and
    pass its last checkpoint as `resume`.
    """

    code = "FP402"


class FencedError(FencepostError):
    """Another producer now has this identity, or another worker has this request. The refused call wrote nothing.

    For producers, Kafka's name for it: PRODUCER_FENCED.

    What to do: stop this producer or worker. The other one continues.
    """

    code = "FP403"


class ConcurrentTransactionError(FencepostError):
    """The previous transaction of this id is decided, but not completed yet. The decision itself is final.

    Kafka's name for it: CONCURRENT_TRANSACTIONS.

    What to do: make the same call again. If the message says that topics have no route, call `recover` on a coordinator
    that has routes to them.
    """

    code = "FP404"


class TransactionStateError(FencepostError):
    """The state of the transaction does not allow this call. Nothing has changed.

    Kafka's name for it: INVALID_TXN_STATE.

    What to do: do what the message says. If it names nothing to do, commit or abort the open transaction. If none is
    open, or yours was aborted by a time-out, call `abort`, which is allowed in both cases. Then begin another one.
    """

    code = "FP405"


class TransactionAbortableError(FencepostError):
    """This transaction can no longer commit. For example, another transaction has moved a position of the input.

    The call has changed nothing. Kafka's name for it: TRANSACTION_ABORTABLE.

    What to do: abort the transaction. If it moves positions of an input, read them again. Then begin another
    transaction.
    """

    code = "FP406"


class MappingError(FencepostError):
    """No transactional id has this pid: the id has expired, or its pid was replaced by a new one.

    Kafka's name for it: INVALID_PRODUCER_ID_MAPPING.

    What to do: call `init_producer` with `expected=`. This call finds out whether another producer took over.
    """

    code = "FP407"


class SchemaError(FencepostError):
    """The tables in the database have a version or columns that this version of the package cannot use.

    What to do: as the message says, run `fencepost sql migrate`, upgrade the package, or change the columns of your
    table.
    """

    code = "FP501"


class OutcomeUnknownError(FencepostError):
    """The connection was lost during a commit, so the changes of the call may or may not be in the database.

    What to do: make the same call again. If the first call was applied, the database has a record of it: the claims of
    its rows, the version of the run, or the decision of the transaction. The second call finds the record and does not
    repeat the changes. Rows without a claim (`untracked="keep"`) are an exception: look for them in your table first.
    """

    code = "FP502"


class UndoneError(FencepostError):
    """Your function ended the package's transaction, or ignored an error that made the database roll it back.

    Nothing was applied. Exception: if the function committed, all that was written before is in the database, also the
    claim or the decision of the package. A repeated call then does not run the function again.

    What to do: leave commit and rollback to the package, and let errors of your statements propagate. If the function
    committed, check which of its rows are missing.
    """

    code = "FP503"


class TransitionError(FencepostError):
    """`fencepost.sql.transition` did not change the row: it is in a state from which it may not change, does not exist,
    or is not the only one with this key.

    What to do: read the row. If it is missing or in an earlier state, the event came too early: deliver it again later.
    If it is in a later state, the event is out of date: ignore it. If several rows have the key, pass a `key` of more
    columns.
    """

    code = "FP504"


class RequestInFlightError(FencepostError):
    """Another worker is processing the same request. Nothing has changed. Over HTTP: 409.

    What to do: repeat the request later. `error.lease_left_ms` says for how long no other worker can take over the
    request.
    """

    code = "FP505"

    def __init__(self, message: str, *, lease_left_ms: int | None = None) -> None:
        super().__init__(message)
        self.lease_left_ms = lease_left_ms
        """How long that worker's claim is protected, unless the worker renews it."""


class KeyReusedError(FencepostError):
    """The idempotency key was already used for a different request. Over HTTP: 422.

    What to do: send this request with a new key.
    """

    code = "FP506"
