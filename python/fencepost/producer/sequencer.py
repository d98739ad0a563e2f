"""The protocol of a producer: how it numbers batches and reacts to answers. Without threads, clocks and transports.

The rules are those of Kafka's client (`TransactionManager`, `TxnPartitionEntry`, `Sender`, `RecordAccumulator`), with
one row of `spec/client` for each. The page explains every difference.

    add --> waiting --poll--> numbered, in flight --answer--> settled
               |                 ^          |
               |                 +- retry --+      same numbers, or new ones after a bump
               +------ expired, never sent ------> settled

A batch gets its numbers when it is first sent and keeps them, so that a log can recognize a retry. Only an epoch bump
renumbers batches, and only those of the partition that requested it. Other partitions keep the old epoch until their
numbered batches are settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from fencepost.errors import (
    DeliveryError,
    FencedError,
    FencepostError,
    StoreError,
    TransactionAbortableError,
    TransportError,
)
from fencepost.producer.answers import ErrorCode, Reading, read_answer

SEQUENCES = 2**31
EPOCH_MAX = 2**15 - 1
LAST_EPOCH = EPOCH_MAX - 1
"""The last epoch that a name gets. A new pid with epoch 0 follows. The epoch above is reserved for fences and markers.
"""
COUNT_MAX = SEQUENCES - 1
UNLIMITED = 2**31 - 1


class Identity(NamedTuple):
    """A producer id (int64) and its epoch (int16)."""

    pid: int
    epoch: int


class Numbers(NamedTuple):
    """The identity and first sequence of a sent batch."""

    identity: Identity
    first_seq: int


class Delivered(NamedTuple):
    """Rows in the log, beginning at `offset`. None if the log did not return an offset."""

    partition: int
    offset: int | None
    rows: int
    pid: int
    epoch: int
    first_seq: int
    last_seq: int
    is_duplicate: bool
    """Whether the log reported that an earlier try had succeeded. This is a success too."""


@dataclass(eq=False)
class Batch:
    """Rows of one partition that are sent, retried and acknowledged together."""

    partition: int
    count: int
    payload: Any
    created_ms: int
    positions: tuple[int, int] | None = None
    """First and last position in the source in cursor mode. These numbers never change."""
    numbers: Numbers | None = None
    sent: Numbers | None = None
    """The numbers under which it was last sent."""
    tries: int = 0
    """Number of retries, `ProducerBatch.attempts`."""
    not_before_ms: int = 0
    request: int | None = None
    """The id of the request in flight."""
    problem: str = ""
    """The reason for the last failure."""
    ordinal: int = 0
    """The number of this batch among all numbered batches of its partition."""
    may_be_written: bool = False
    """Whether an earlier try ended without an answer, so that it may have been written."""
    outcome: Delivered | FencepostError | None = None
    ready_ms: int = 0
    """The earliest time to send. Until then more rows may join the batch."""
    bytes: int = 0

    @property
    def first_seq(self) -> int:
        assert self.numbers is not None, "it was never sent"
        return self.numbers.first_seq

    @property
    def last_seq(self) -> int:
        return self.last_seq_from(self.first_seq)

    def last_seq_from(self, first_seq: int) -> int:
        """Return its last sequence if `first_seq` is its first one."""
        return self.positions[1] if self.positions else step(first_seq, self.count - 1)


class Request(NamedTuple):
    """A batch to send now, with its numbers. Pass the answer to `answered(id, ...)`."""

    id: int
    batch: Batch
    numbers: Numbers


class Sent(NamedTuple):
    """A request without an answer."""

    batch: Batch
    numbers: Numbers
    deadline_ms: int
    was_next: bool
    """Whether all earlier batches were acknowledged when it was sent, so that a log must not call it out of order."""


@dataclass
class Limits:
    """Limits of tries and times. Times are in milliseconds."""

    in_flight: int = 5
    retries: int = UNLIMITED
    delivery_ms: int = 120_000
    request_ms: int = 30_000
    backoff_ms: int = 100
    backoff_max_ms: int = 1_000


@dataclass
class Partition:
    """A producer's state of one partition, `TxnPartitionEntry`."""

    identity: Identity | None = None
    next_seq: int = 0
    last_acked_seq: int | None = None
    last_acked_offset: int = -1
    unresolved: int | None = None
    """The sequence after the last batch whose outcome is unknown."""
    numbered: list[Batch] = field(default_factory=list)
    """Numbered batches, ordered by number, including those that wait for a retry."""
    waiting: deque[Batch] = field(default_factory=deque)
    ordinals: int = 0
    """Number of batches numbered so far."""

    def reaches(self, window: int) -> bool:
        """Whether one more batch would move the oldest pending one out of the log's window of the last `window`
        batches.

        Later batches that already have an outcome count too. Kafka's client does not check this: its connection never
        answers a batch before the earlier ones.
        """
        return bool(self.numbered) and self.ordinals - self.numbered[0].ordinal >= window

    def follows(self, seq: int) -> bool:
        """Whether a batch that begins with `seq` is the next one that the log expects, as far as known."""
        return seq == (0 if self.last_acked_seq is None else step(self.last_acked_seq, 1))

    def begin_again(self, identity: Identity) -> None:
        """Renumber everything from 0, `startSequencesAtBeginning`."""
        self.identity, self.next_seq, self.last_acked_seq, self.unresolved = identity, 0, None, None
        for batch in self.numbered:
            batch.numbers = Numbers(identity, self.next_seq)
            self.next_seq = step(self.next_seq, batch.count)

    def close_gap(self, gone: Batch) -> None:
        """Renumber the batches after a removed batch to close the gap."""
        self.next_seq = step(self.next_seq, -gone.count)
        for batch in self.numbered:
            if batch.numbers and is_after(batch.first_seq, gone.first_seq):
                batch.numbers = batch.numbers._replace(first_seq=step(batch.first_seq, -gone.count))

    def leave_unresolved(self, batch: Batch) -> None:
        """Record that a batch's outcome is unknown until a later batch shows it (`markSequenceUnresolved`)."""
        end = step(batch.last_seq, 1)
        if self.unresolved is None or is_after(end, self.unresolved):
            self.unresolved = end


def step(seq: int, count: int) -> int:
    """Return the sequence `count` after (or before) another one: modulo 2^31, never negative (`DefaultRecordBatch`)."""
    return (seq + count) % SEQUENCES


def is_after(seq: int, other: int) -> bool:
    """Return whether a sequence comes after another one, at most half the space away."""
    return 0 < (seq - other) % SEQUENCES < SEQUENCES // 2


class Sequencer:
    """The state of one producer. Times passed to calls are in milliseconds and never go back.

    `asks`: raise an epoch by a request to the registry (`wanted`, then `set_successor`), because another producer may
    have raised it. Without it, a producer raises its own epoch, like Kafka's idempotent producer: no other one has its
    pid.
    """

    def __init__(self, identity: Identity, limits: Limits, *, transactional: bool = False, asks: bool = False) -> None:
        self.identity, self.limits = identity, limits
        self.transactional, self.asks = transactional, asks
        self.partitions: dict[int, Partition] = {}
        self.settled: deque[Batch] = deque()
        """Batches with an outcome, for the caller to take."""
        self.fatal: FencepostError | None = None
        self.abortable: TransactionAbortableError | None = None
        self.wanted: Identity | None = None
        """The identity whose successor is needed. Nothing is sent before `set_successor`."""
        self.must_bump = False
        self._rewrite: set[int] = set()
        self._sent: dict[int, Sent] = {}
        self._given_up: set[int] = set()
        self._next_id = 0
        self._polled_ms = 0

    # Calls of the application

    def add(self, batch: Batch) -> None:
        """Take a batch; `poll` decides when to send it. Raises the error that stopped the producer."""
        if not 1 <= batch.count <= COUNT_MAX:
            raise ValueError(f"{batch.count} rows in a batch: expected 1 to {COUNT_MAX}")
        self.check()
        self._partition(batch.partition).waiting.append(batch)

    def waiting(self, partition: int) -> Batch | None:
        """Return the last unsent batch of a partition. Rows may join it until it has numbers."""
        known = self.partitions.get(partition)
        return known.waiting[-1] if known is not None and known.waiting else None

    def check(self) -> None:
        """Raise the error that stopped the producer or its transaction."""
        if self.fatal is not None:
            raise self.fatal
        if self.abortable is not None:
            raise self.abortable

    def pending(self) -> int:
        """Batches without an outcome."""
        return sum(len(it.numbered) + len(it.waiting) for it in self.partitions.values())

    def rewritten(self) -> list[int]:
        """The partitions whose batches get new numbers with the next epoch."""
        return sorted(self._rewrite)

    def found(self, partition: int, identity: Identity, last_seq: int) -> None:
        """Mark batches up to `last_seq` as delivered. The log has them and accepts no more batches of `identity`."""
        known = self._partition(partition)
        for batch in [it for it in known.numbered if it.numbers and it.numbers.identity == identity]:
            if is_after(batch.last_seq, last_seq):
                break
            known.numbered.remove(batch)
            self._settle(batch, _delivered(batch, Reading(ErrorCode.NONE, is_duplicate=True)))

    def set_successor(self, identity: Identity, rewritten: list[int]) -> None:
        """Set the successor of `wanted`. `rewritten`: its value at the time of the request; it may have grown since."""
        assert self.wanted is not None
        self.wanted = None
        later = self._rewrite.difference(rewritten)
        self._rewrite -= later
        self._begin(identity)
        self._rewrite, self.must_bump = later, bool(later)

    def transaction_ended(self, identity: Identity) -> None:
        """Restart every partition at 0 with the identity from the coordinator's decision."""
        assert self.pending() == 0, "a transaction ends when all of its batches are settled"
        self.identity, self.abortable, self.must_bump = identity, None, False
        self._rewrite.clear()
        self.partitions.clear()

    def drop_unsent(self, error: FencepostError) -> None:
        """Settle unnumbered batches: a transaction is being aborted, or the producer closed."""
        for partition in self.partitions.values():
            while partition.waiting:
                self._settle(partition.waiting.popleft(), error)

    def stop(self, error: FencepostError) -> None:
        """Settle everything with an error and stop."""
        self.fatal = self.fatal or error
        for partition in self.partitions.values():
            batches = [*partition.numbered, *partition.waiting]
            partition.numbered.clear()
            partition.waiting.clear()
            for batch in batches:
                self._settle(batch, error)

    # Calls of the transport

    def poll(self, now_ms: int) -> list[Request]:
        """Return the requests to send now. First expires overdue batches and raises the epoch if necessary."""
        self._polled_ms = now_ms
        if self.fatal is not None:
            return []
        self._time_out(now_ms)
        self._expire(now_ms)
        self._resolve()
        self._bump()
        if self.fatal is not None or self.wanted is not None:
            return []
        return [request for number in self.partitions for request in self._drain(number, now_ms)]

    def wake_ms(self) -> int | None:
        """The time of the next `poll` if no answer comes before. None after a stop."""
        if self.fatal is not None:
            return None
        due = [it.deadline_ms for id, it in self._sent.items() if id not in self._given_up]
        for partition in self.partitions.values():
            numbered, waiting = partition.numbered[:1], list(islice(partition.waiting, 1))
            if self.wanted is None:
                due += [batch.not_before_ms for batch in numbered if batch.request is None]
                # A batch that was ready at the last poll waits for an answer, not for a time.
                due += [batch.ready_ms for batch in waiting if batch.ready_ms > self._polled_ms]
            due += [batch.created_ms + self.limits.delivery_ms for batch in numbered + waiting]
        return min(due, default=None)

    def is_wanted(self, id: int) -> bool:
        """Return whether an answer to this request can still have an effect."""
        return id in self._sent and self._sent[id].batch.outcome is None and id not in self._given_up

    def withdrawn(self, id: int) -> None:
        """Forget a request that was never sent and will have no answer."""
        del self._sent[id]
        self._given_up.discard(id)

    def answered(self, id: int, answer: Any, now_ms: int) -> None:
        """Process an answer. Raises TransportError, and stops the producer, if it violates the contract."""
        try:
            reading = self._read(id, answer)
        except ValueError as problem:
            self._refuse(str(problem))
        sent = self._sent.pop(id)
        batch, is_late = sent.batch, id in self._given_up
        self._given_up.discard(id)
        if batch.outcome is not None:
            return  # it expired, or another try was answered first
        if batch.request == id:
            batch.request = None
        is_success = reading.code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        if sent.numbers != batch.numbers:
            self._answered_by_old_numbers(sent, reading, is_success, is_late, now_ms)
        elif is_success:
            self._complete(batch, reading)
        elif not is_late:
            self._failed(sent, reading, now_ms)

    def broken(self, id: int, problem: str) -> None:
        """Stop the producer: the transport returned something that is not an answer. Raises TransportError."""
        self._refuse(f"request {id}: {problem}")

    # Processing of answers

    def _read(self, id: int, answer: Any) -> Reading:
        if id in self._sent:
            try:
                return read_answer(answer)
            except ValueError as problem:
                sent = self._sent[id]
                raise ValueError(f"the answer to {_described(sent.batch, sent.numbers)}: {problem}") from None
        if isinstance(id, int) and 0 <= id < self._next_id:
            raise ValueError(f"request {id} was answered twice, the second time with {answer!r}")
        raise ValueError(f"request {id!r} was never sent, but was answered with {answer!r}")

    def _refuse(self, problem: str) -> None:
        """Stop the producer: no answer of this transport is reliable."""
        numbered = sum(len(it.numbered) for it in self.partitions.values())
        error = TransportError(
            f"the transport violated its contract: {problem}. The producer has stopped: {numbered} batches were "
            f"sent without an acknowledgement and may or may not be in the log; {self.pending() - numbered} "
            "were not sent. Resume with a new epoch, from what was acknowledged"
        )
        self.stop(error)
        raise error

    def _answered_by_old_numbers(
        self, sent: Sent, reading: Reading, is_success: bool, is_late: bool, now_ms: int
    ) -> None:
        """Process an answer to numbers that the batch no longer has, because it was renumbered in flight.

        If the log has the batch under the old numbers, it must not be sent again. The batches after it, none of which
        were sent, move up. A refusal says nothing about the new numbers.
        """
        batch = sent.batch
        if batch.sent == batch.numbers:
            return  # already sent under the new numbers, whose answer counts: a later batch must not get them
        partition = self._partition(batch.partition)
        if is_success:
            partition.numbered.remove(batch)
            partition.close_gap(batch)
            batch.numbers = sent.numbers
            self._settle(batch, _delivered(batch, reading))
        elif reading.code.is_retriable or reading.code in _OF_OLD_NUMBERS:
            self._retry(batch, now_ms)
        elif not is_late:
            self._fail(batch, reading, is_last_try=False)

    def _complete(self, batch: Batch, reading: Reading) -> None:
        """Complete a batch, `handleCompletedBatch`."""
        partition = self._partition(batch.partition)
        if partition.last_acked_seq is None or is_after(batch.last_seq, partition.last_acked_seq):
            partition.last_acked_seq = batch.last_seq
        if reading.offset is not None:
            partition.last_acked_offset = max(partition.last_acked_offset, reading.offset + batch.count - 1)
        partition.numbered.remove(batch)
        self._settle(batch, _delivered(batch, reading))

    def _failed(self, sent: Sent, reading: Reading, now_ms: int) -> None:
        """Retry a batch or fail it, `Sender.completeBatch`."""
        batch = sent.batch
        batch.may_be_written |= reading.code in _DOUBTFUL
        batch.problem = _named(reading)
        is_last_try = batch.tries >= self.limits.retries
        is_overdue = now_ms - batch.created_ms >= self.limits.delivery_ms
        if not is_last_try and not is_overdue and self._can_retry(sent, reading):
            self._retry(batch, now_ms)
        else:
            self._fail(batch, reading, is_last_try)

    def _can_retry(self, sent: Sent, reading: Reading) -> bool:
        """Return whether to retry (`TransactionManager.canRetry`), for an answer to the batch's current numbers."""
        batch = sent.batch
        if batch.positions is not None:
            return reading.code.is_retriable
        partition = self._partition(batch.partition)
        if reading.code is ErrorCode.UNKNOWN_PRODUCER_ID:
            if reading.log_start is None:
                return True
            if partition.last_acked_offset < reading.log_start and self.transactional:
                partition.begin_again(self.identity)
                return True
            if not self.transactional:
                self._ask_for_bump(batch.partition)
                return True
        elif reading.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_next = sent.was_next and partition.follows(batch.first_seq)
            if partition.unresolved is None and not is_next:
                return True
            if not self.transactional:
                if partition.unresolved in (None, batch.first_seq):
                    self._ask_for_bump(batch.partition)
                return True
        if reading.code is ErrorCode.INVALID_PRODUCER_EPOCH and self.wanted is not None:
            # The partition may have seen this producer's own next epoch before this answer came. If the epoch is
            # another producer's, the registry reports it.
            return batch.partition in self._rewrite
        return reading.code.is_retriable

    def _retry(self, batch: Batch, now_ms: int) -> None:
        backoff = min(self.limits.backoff_ms << min(batch.tries, 20), self.limits.backoff_max_ms)
        batch.tries, batch.not_before_ms = batch.tries + 1, now_ms + backoff

    def _fail(self, batch: Batch, reading: Reading, is_last_try: bool) -> None:
        """Fail a batch, `handleFailedBatch`."""
        code, partition = reading.code, self._partition(batch.partition)
        what = f"{_described(batch, batch.numbers)}: {_named(reading)}"
        if code.is_fatal or (batch.positions and code in _OF_OLD_NUMBERS):
            self.stop(_stopped(code, what))
            return
        # Its numbers may be reused only if it is certainly not in the log.
        is_refused = not batch.may_be_written and code not in _DOUBTFUL
        adjust = is_refused and not is_last_try
        partition.numbered.remove(batch)
        error = _undelivered(batch, what, is_refused)
        self._settle(batch, error)
        if batch.positions is not None:
            self.stop(_hidden(error))
            return
        self._make_abortable(what)
        if code is ErrorCode.UNKNOWN_PRODUCER_ID and self.transactional:
            partition.begin_again(self.identity)
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self.transactional:
            self._ask_for_bump(batch.partition)
        elif not adjust:
            partition.leave_unresolved(batch)
        elif self.transactional:
            partition.close_gap(batch)
        else:
            self._ask_for_bump(batch.partition)

    # Time

    def _time_out(self, now_ms: int) -> None:
        """Retry requests without an answer. The answer may still come."""
        late = [id for id, it in self._sent.items() if it.deadline_ms <= now_ms and id not in self._given_up]
        for id in late:
            self._given_up.add(id)
            sent = self._sent[id]
            batch = sent.batch
            if batch.outcome is not None or batch.request != id:
                continue
            batch.request, batch.may_be_written = None, True
            batch.problem = f"no answer in request_timeout_ms={self.limits.request_ms}"
            if batch.tries < self.limits.retries:
                self._retry(batch, now_ms)  # if it is overdue, `_expire` fails it next
            else:
                self._fail(batch, Reading(ErrorCode.REQUEST_TIMED_OUT, message="no answer"), True)

    def _expire(self, now_ms: int) -> None:
        """Expire batches that could not be delivered in time, in order."""
        for partition in list(self.partitions.values()):
            overdue = [it for it in partition.numbered if now_ms - it.created_ms >= self.limits.delivery_ms]
            for batch in overdue:
                partition.numbered.remove(batch)
                self._expired(batch, "not acknowledged", is_refused=False)
                if batch.positions is None:
                    partition.leave_unresolved(batch)
            while partition.waiting and now_ms - partition.waiting[0].created_ms >= self.limits.delivery_ms:
                self._expired(partition.waiting.popleft(), "not sent", is_refused=True)

    def _expired(self, batch: Batch, what: str, *, is_refused: bool) -> None:
        problem = f"{_described(batch, batch.numbers)}: {what} within delivery_timeout_ms={self.limits.delivery_ms}"
        if batch.problem:
            problem += f"; at last: {batch.problem}"
        error = _undelivered(batch, problem, is_refused)
        self._settle(batch, error)
        self._make_abortable(problem)
        if batch.positions is not None:
            self.stop(_hidden(error))

    def _resolve(self) -> None:
        """Settle unknown outcomes that later batches have revealed, `maybeResolveSequences`."""
        for number, partition in self.partitions.items():
            if partition.unresolved is None or partition.numbered:
                continue
            partition.unresolved = None
            if partition.identity == self.identity and not partition.follows(partition.next_seq):
                if self.transactional:
                    self._make_abortable(f"partition {number}: it is unknown whether its last batches were written")
                else:
                    self._ask_for_bump(number)

    # Epochs

    def _make_abortable(self, problem: str) -> None:
        if not self.transactional:
            return
        self.must_bump = True
        self.abortable = self.abortable or TransactionAbortableError(
            f"{problem}. Abort the transaction, then send its rows again in another one"
        )

    def _ask_for_bump(self, partition: int) -> None:
        """Request an epoch bump for a partition, `requestEpochBumpForPartition`."""
        self.must_bump = True
        self._rewrite.add(partition)

    def _bump(self) -> None:
        """Bump the epoch once for all requests, `bumpIdempotentProducerEpoch`."""
        if self.transactional or not self.must_bump or self.wanted is not None:
            return
        if self.asks or self.identity.epoch >= EPOCH_MAX:
            self.wanted = self.identity
        else:
            self._begin(self.identity._replace(epoch=self.identity.epoch + 1))

    def _begin(self, identity: Identity) -> None:
        self.identity, self.must_bump = identity, False
        for number in self._rewrite:
            self._partition(number).begin_again(identity)
        self._rewrite.clear()

    # Sending

    def _drain(self, number: int, now_ms: int) -> Iterator[Request]:
        """Return what a partition may send now, `RecordAccumulator.shouldStopDrainBatchesForPartition`."""
        partition = self.partitions[number]
        again = next((it for it in partition.numbered if it.request is None), None)
        if again is not None:
            # Retry batches one at a time, in order: if one fails, all later ones fail.
            if again is partition.numbered[0] and again.not_before_ms <= now_ms:
                yield self._send(again, now_ms)
            return
        if any(it.sent != it.numbers for it in partition.numbered):
            return  # renumbered, and not yet sent under the new numbers
        while partition.waiting and not partition.reaches(self.limits.in_flight):
            if partition.waiting[0].ready_ms > now_ms:
                return
            if partition.identity != self.identity:
                if partition.numbered:
                    return  # numbered under the old epoch, which must be finished first
                partition.begin_again(self.identity)
            if partition.unresolved is not None:
                return
            batch = partition.waiting.popleft()
            batch.numbers = Numbers(self.identity, batch.positions[0] if batch.positions else partition.next_seq)
            partition.next_seq = step(partition.next_seq, batch.count)
            batch.ordinal, partition.ordinals = partition.ordinals, partition.ordinals + 1
            partition.numbered.append(batch)
            yield self._send(batch, now_ms)

    def _send(self, batch: Batch, now_ms: int) -> Request:
        assert batch.numbers is not None
        batch.request, self._next_id = self._next_id, self._next_id + 1
        batch.sent = batch.numbers
        was_next = self._partition(batch.partition).follows(batch.first_seq)
        self._sent[batch.request] = Sent(batch, batch.numbers, now_ms + self.limits.request_ms, was_next)
        return Request(batch.request, batch, batch.numbers)

    def _partition(self, number: int) -> Partition:
        return self.partitions.setdefault(number, Partition())

    def _settle(self, batch: Batch, outcome: Delivered | FencepostError) -> None:
        batch.outcome, batch.payload = outcome, None
        self.settled.append(batch)


_OF_OLD_NUMBERS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""Refusals that concern only numbers that the batch no longer has."""

_DOUBTFUL = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which the batch may be in the log."""

_CONTINUES = "the producer continues"
_STOPS = "the producer stops, because later rows would hide that the batch is missing. Resume from the batch's position"


def _delivered(batch: Batch, reading: Reading) -> Delivered:
    assert batch.numbers is not None
    pid, epoch = batch.numbers.identity
    return Delivered(
        batch.partition, reading.offset, batch.count, pid, epoch, batch.first_seq, batch.last_seq,
        reading.is_duplicate or reading.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    )  # fmt: skip


def _undelivered(batch: Batch, problem: str, is_refused: bool) -> DeliveryError:
    place = "The batch is not in the log" if is_refused else "The batch may or may not be in the log"
    after = _CONTINUES if batch.positions is None else _STOPS
    problem = f"{problem}. {place}; {after}"
    return DeliveryError(problem, partition=batch.partition, is_refused=is_refused)


def _stopped(code: ErrorCode, what: str) -> FencepostError:
    """Return the error that stops a producer for good."""
    problem = f"{what}. The producer has stopped; batches without an answer may or may not be in the log"
    if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        return FencedError(problem)
    return (DeliveryError if code in _OF_OLD_NUMBERS else StoreError)(problem)


def _hidden(error: DeliveryError) -> DeliveryError:
    """Return the error of all other batches of a producer in cursor mode: some may be in flight."""
    problem = f"an earlier batch was not delivered: {error.message}"
    return DeliveryError(problem, partition=error.partition, is_refused=False)


def _named(reading: Reading) -> str:
    return f"{reading.code.name} ({reading.message})" if reading.message else reading.code.name


def _described(batch: Batch, numbers: Numbers | None) -> str:
    where = f"batch of {batch.count} rows for partition {batch.partition}"
    if numbers is None:
        return where
    (pid, epoch), first = numbers
    return f"{where} (pid {pid}, epoch {epoch}, sequences {first} to {batch.last_seq_from(first)})"
