"""The state of one transactional id, and its changes by each request. No database, no clock, no randomness.

The rules are those of Kafka's `TransactionMetadata` and `TransactionCoordinator` for transactions of the second version
(KIP-890), as of 4.3: the epoch increases with every transaction. `spec/coordinator` states them row by row.
docs/transaction-failures.md lists the differences from common descriptions and from the source.

A request returns the next `Transaction` or raises. Nothing is changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal

from fencepost.errors import (
    ConcurrentTransactionError,
    FencedError,
    MappingError,
    TransactionAbortableError,
    TransactionStateError,
)
from fencepost.producer.sequencer import EPOCH_MAX, LAST_EPOCH

Outcome = Literal["commit", "abort"]
Partition = int | str | tuple[int | str, ...]
"""A partition of an input, as its reader names it."""
TopicPartition = tuple[str, int]
"""A partition of an output: the topic, by which a coordinator finds the route, and the number."""

NONE = -1
"""Stands for no pid, no epoch, and no time."""


def is_late(since_ms: int, timeout_ms: int, now_ms: int) -> bool:
    """Return whether more than `timeout_ms` lie between the two times.

    A time that is later than now by more than this is from a clock that was set back since.
    """
    return abs(now_ms - since_ms) > timeout_ms


def unknown_id(transactional_id: str) -> MappingError:
    return MappingError(
        f"transactional id {transactional_id!r} is not known in this database: it expired, or belongs to another "
        "database"
    )


@dataclass(frozen=True)
class ProducerIdentity:
    """The identity of a producer. It is written with each row, and every call of the producer is checked by it."""

    pid: int
    epoch: int
    previous_pid: int | None = None
    """The previous pid of the same transactional id, if any. Data that an application keeps under it is outdated."""


class State(IntEnum):
    """Kafka's states of a transaction, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6


OPENABLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
PREPARED = {State.PREPARE_COMMIT: "commit", State.PREPARE_ABORT: "abort"}
COMPLETED = {State.COMPLETE_COMMIT: "commit", State.COMPLETE_ABORT: "abort"}
MAY_COME_FROM = {
    State.EMPTY: OPENABLE,
    State.ONGOING: OPENABLE | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: OPENABLE | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: OPENABLE,
}


@dataclass(frozen=True)
class Transaction:
    """A transactional id, its producer, and the producer's current or last transaction.

    A new one has no epoch until `initialized`.
    """

    transactional_id: str
    pid: int
    epoch: int = NONE
    last_epoch: int = NONE
    """The previous epoch, while its producer may repeat a call whose response was lost."""
    previous_pid: int = NONE
    next_pid: int = NONE
    """The pid that replaces `pid` when the markers are written, if the epochs of `pid` are used up."""
    state: State = State.EMPTY
    timeout_ms: int = NONE
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NONE
    updated_ms: int = NONE

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.pid, self.epoch, None if self.previous_pid == NONE else self.previous_pid)

    def is_timed_out(self, now_ms: int) -> bool:
        return self.state is State.ONGOING and is_late(self.started_ms, self.timeout_ms, now_ms)

    def is_expired(self, now_ms: int, expiry_ms: int) -> bool:
        return self.state in OPENABLE and self.updated_ms <= now_ms - expiry_ms

    # InitProducerId

    def initialized(
        self, timeout_ms: int, now_ms: int, fresh_pid: int, expected: ProducerIdentity | None = None
    ) -> Transaction:
        """Apply InitProducerId. If a transaction is open, the result is PREPARE_ABORT: complete it, and call again."""
        if expected is not None and not self._is_known(expected):
            raise self._fenced_by(expected.pid, expected.epoch)
        if self.state in PREPARED:
            raise self._concurrent()
        if self.state is State.ONGOING:
            return self.fenced(now_ms, fresh_pid)
        begun: dict[str, Any] = {"timeout_ms": timeout_ms, "partitions": frozenset(), "started_ms": NONE}
        begun["updated_ms"] = now_ms
        if expected is not None and self.epoch != NONE:
            # A repeat of a call whose response was lost. A newer producer would have cleared the last epoch.
            if expected.epoch == self.last_epoch:
                return self._to(State.EMPTY, **begun)
            if expected.epoch != self.epoch:
                raise self._fenced_by(expected.pid, expected.epoch)
        last_epoch = NONE if expected is None else self.epoch
        if self.is_exhausted:
            return self._rotated(fresh_pid, last_epoch, **begun)
        return self._bumped(last_epoch, **begun)

    def _is_known(self, expected: ProducerIdentity) -> bool:
        return self.epoch == NONE or expected.pid == self.pid or self._is_before_rotation(expected.pid, expected.epoch)

    def _is_before_rotation(self, pid: int, epoch: int) -> bool:
        """Return whether this producer had the last epoch of the previous pid, and the current pid is unused."""
        is_fresh = self.epoch == 0 and self.last_epoch == LAST_EPOCH and self.state is not State.ONGOING
        return is_fresh and (pid, epoch) == (self.previous_pid, LAST_EPOCH)

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH

    def _bumped(self, last_epoch: int, **begun: Any) -> Transaction:
        assert not self.is_exhausted, f"no epoch after {self.epoch}"
        return self._to(State.EMPTY, epoch=self.epoch + 1, last_epoch=last_epoch, **begun)

    def _rotated(self, fresh_pid: int, last_epoch: int, **begun: Any) -> Transaction:
        return self._to(State.EMPTY, pid=fresh_pid, epoch=0, last_epoch=last_epoch, previous_pid=self.pid, **begun)

    # AddPartitionsToTxn, and the check of a log

    def with_partitions(self, pid: int, epoch: int, partitions: frozenset[TopicPartition], now_ms: int) -> Transaction:
        """Apply AddPartitionsToTxn, which opens a transaction if none is open."""
        # Checked first, because the caller may have the next pid (KAFKA-18660).
        if self.state in PREPARED:
            raise self._concurrent()
        self._check(pid, epoch)
        if self.state is State.ONGOING and partitions <= self.partitions:
            return self
        started_ms = self.started_ms if self.state is State.ONGOING else now_ms
        return self._to(
            State.ONGOING, partitions=self.partitions | partitions, started_ms=started_ms, updated_ms=now_ms
        )

    def verify(self, pid: int, epoch: int, partitions: frozenset[TopicPartition]) -> None:
        """Raise TransactionAbortableError unless these partitions are in the open transaction of this producer."""
        self._check(pid, epoch)
        if self.state in PREPARED:
            raise self._concurrent()
        if missing := partitions - self.partitions:
            raise TransactionAbortableError(
                f"{self._name}: the open transaction of producer ({pid}, {epoch}) does not contain these partitions: "
                f"{', '.join(sorted(map(repr, missing)))}. Abort it, then begin another one"
            )

    def _check(self, pid: int, epoch: int) -> None:
        if pid != self.pid:
            raise self._mapped_otherwise(pid)
        if epoch != self.epoch:
            raise self._fenced_by(pid, epoch)

    # EndTxn

    def ended(self, pid: int, epoch: int, outcome: Outcome, now_ms: int, fresh_pid: int) -> Transaction:
        """Apply EndTxn. Returns a prepared transaction, or this one if the call is a repeat."""
        is_rotated = self.state in COMPLETED and self._is_before_rotation(pid, epoch)
        is_retry = is_rotated or epoch == self.epoch - 1
        if pid != self.pid and not is_rotated:
            raise self._mapped_otherwise(pid)
        if self.state in PREPARED:
            if not is_retry:
                raise self._fenced_by(pid, epoch)
            raise self._concurrent() if PREPARED[self.state] == outcome else self._not_now(outcome)
        if self.state in COMPLETED and is_retry:
            if COMPLETED[self.state] == outcome:
                return self
            raise self._not_now(outcome)
        if epoch != self.epoch:
            raise self._fenced_by(pid, epoch)
        # A producer that does not know the outcome aborts, even without an open transaction.
        if outcome == "abort":
            return self._prepared(State.PREPARE_ABORT, now_ms, fresh_pid)
        if self.state is State.ONGOING:
            return self._prepared(State.PREPARE_COMMIT, now_ms, fresh_pid)
        raise self._not_now(outcome)

    def fenced(self, now_ms: int, fresh_pid: int) -> Transaction:
        """Prepare the abort of the open transaction, after a time-out or InitProducerId of another producer."""
        assert self.state is State.ONGOING, f"{self.state.name}: no open transaction to fence"
        return self._prepared(State.PREPARE_ABORT, now_ms, fresh_pid)

    def _prepared(self, state: State, now_ms: int, fresh_pid: int) -> Transaction:
        return self._to(
            state,
            # Raised once, for every caller (KAFKA-19367), and never beyond 16 bits (KAFKA-20090).
            epoch=min(self.epoch + 1, EPOCH_MAX),
            last_epoch=self.epoch,
            next_pid=fresh_pid if self.is_exhausted else NONE,
            started_ms=self.started_ms if self.state is State.ONGOING else now_ms,
            updated_ms=now_ms,
        )

    def completed(self, now_ms: int) -> Transaction:
        """Complete the transaction, after the markers are written."""
        state = State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
        done: dict[str, Any] = {"partitions": frozenset(), "next_pid": NONE, "updated_ms": now_ms}
        if self.next_pid == NONE:
            return self._to(state, **done)
        # The last epoch is kept: its producer sees LAST_EPOCH followed by 0.
        return self._to(state, pid=self.next_pid, epoch=0, previous_pid=self.pid, **done)

    def expired(self, now_ms: int) -> Transaction:
        """Return a tombstone, of which only the pid is used later."""
        return self._to(State.DEAD, updated_ms=now_ms)

    # Transitions and errors

    def _to(self, state: State, **changes: Any) -> Transaction:
        assert self.state in MAY_COME_FROM[state], f"{state.name} cannot follow {self.state.name}"
        return replace(self, state=state, **changes)

    @property
    def _name(self) -> str:
        return f"transactional id {self.transactional_id!r}"

    def _concurrent(self) -> ConcurrentTransactionError:
        return ConcurrentTransactionError(
            f"{self._name}: its transaction is decided ({PREPARED[self.state]}) and not completed yet: try again"
        )

    def _fenced_by(self, pid: int, epoch: int) -> FencedError:
        return FencedError(f"{self._name}: producer ({pid}, {epoch}) was replaced by ({self.pid}, {self.epoch}): stop")

    def _mapped_otherwise(self, pid: int) -> MappingError:
        return MappingError(
            f"{self._name}: its pid is {self.pid}, not {pid}: "
            "call init_producer with expected= to find out whether another producer took over"
        )

    def _not_now(self, outcome: Outcome) -> TransactionStateError:
        what = f"its last transaction has another outcome ({self.state.name})"
        if self.state in OPENABLE and outcome == "commit" and self.state is not State.COMPLETE_ABORT:
            what = f"no transaction is open ({self.state.name})"
        return TransactionStateError(f"{self._name}: cannot {outcome}: {what}")
