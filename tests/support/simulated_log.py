"""A log and a faulty network with a simulated clock, so that a seed determines the faults."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from fencepost import BrokerTable
from fencepost.producer.answers import Answer, ErrorCode
from fencepost.producer.sequencer import Batch, Delivered, Identity, Limits, Request, Sequencer
from fencepost.transports.admission import judge, last_written, mark, new_table

BEFORE_THE_LOG = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS)
AFTER_THE_LOG = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class Log:
    """Partitions of rows, by the rules of a broker. Offsets count markers too, which are None."""

    def __init__(self) -> None:
        self.table: BrokerTable = new_table()
        self.rows: dict[int, list[Any]] = {}

    def append(self, partition: int, identity: Identity, first_seq: int, rows: list[Hashable]) -> Answer:
        judged = judge(self.table, partition, *identity, first_seq, len(rows))
        kept = self.rows.setdefault(partition, [])
        if judged.verdict.is_kept:
            assert judged.offset == len(kept)
            kept += rows
        return Answer(judged.verdict, judged.offset)

    def fence(self, pid: int, epoch: int, partitions: list[int] | None) -> dict[int, tuple[int, int]]:
        known = sorted(self.rows) if partitions is None else partitions
        found = {number: last for number in known if (last := last_written(self.table, number, pid))}
        for number in known:
            if mark(self.table, number, pid, epoch, "abort").verdict.is_kept:
                self.rows.setdefault(number, []).append(None)
        return found

    def written(self, partition: int) -> list[Any]:
        return [row for row in self.rows.get(partition, []) if row is not None]


@dataclass(frozen=True)
class Faults:
    """The probability of each fault, and durations."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    twice: float = 0.0
    refused: float = 0.0
    doubtful: float = 0.0
    delay_ms: int = 5
    late: float = 0.0
    late_ms: int = 20_000


@dataclass
class Simulation:
    """One producer, its log and the network between them. `sent`: rows by partition, in the order of `send`."""

    seed: int
    faults: Faults
    limits: Limits
    partitions: int = 2
    fences: bool = True
    kind: Callable[..., Sequencer] = Sequencer
    now_ms: int = 0
    log: Log = field(default_factory=Log)
    outcomes: list[tuple[Batch, list[Hashable]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.sequencer = self.kind(Identity(7, 0), self.limits, asks=self.fences)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._counter = 0
        self._rows: dict[Batch, list[Hashable]] = {}
        self._answered: set[int] = set()
        self.bumps = 0
        self._is_asking = False

    def run(self, batches: int) -> None:
        """Send so many batches at random times, and continue until each has an outcome."""
        at = 0
        for number in range(batches):
            at += self.random.choice([0, 0, 1, 10, 400])
            self._at(at, lambda number=number: self._add(number))  # type: ignore[misc]
        for _ in range(200_000):
            self._poll()
            if len(self.outcomes) == batches:
                return
            due = [
                it for it in (self._events[0][0] if self._events else None, self.sequencer.wake_ms()) if it is not None
            ]
            assert due, "nothing will ever happen again"
            self.now_ms = max(self.now_ms, min(due))
            while self._events and self._events[0][0] <= self.now_ms:
                heapq.heappop(self._events)[2]()
        raise AssertionError(f"{len(self.outcomes)} of {batches} batches have an outcome, and time does not stop")

    def drain(self) -> None:
        """What is still on its way arrives."""
        while self._events:
            self.now_ms = max(self.now_ms, self._events[0][0])
            heapq.heappop(self._events)[2]()

    def _add(self, number: int) -> None:
        partition, count = self.random.randrange(self.partitions), self.random.randint(1, 3)
        rows: list[Hashable] = [(partition, number, row) for row in range(count)]
        batch = Batch(partition, count, rows, self.now_ms)
        self._rows[batch] = rows
        self.sequencer.add(batch)

    def _poll(self) -> None:
        while requests := self.sequencer.poll(self.now_ms):
            for request in requests:
                self._request(request)
        wanted = self.sequencer.wanted
        if wanted is not None and not self._is_asking:
            self._is_asking = True
            self._at(self._later(), lambda: self._raise_epoch(wanted))
        while self.sequencer.settled:
            batch = self.sequencer.settled.popleft()
            self.outcomes.append((batch, self._rows.pop(batch)))

    def _raise_epoch(self, identity: Identity) -> None:
        """Fence first; the found batches are returned later, with the next epoch."""
        self.bumps += 1
        successor = identity._replace(epoch=identity.epoch + 1)
        partitions = self.sequencer.rewritten()
        found = self.log.fence(*successor, partitions) if self.fences else {}

        def come_back() -> None:
            for number, (epoch, last_seq) in found.items():
                self.sequencer.found(number, Identity(identity.pid, epoch), last_seq)
            self.sequencer.set_successor(successor, partitions)
            self._is_asking = False

        self._at(self._later(), come_back)

    def _request(self, request: Request) -> None:
        rows, faults = self._rows[request.batch], self.faults
        if self.random.random() < faults.lost_request:
            return
        for _ in range(2 if self.random.random() < faults.twice else 1):
            self._at(self._later(), lambda: self._arrive(request, rows))

    def _arrive(self, request: Request, rows: list[Hashable]) -> None:
        faults, chance = self.faults, self.random
        if chance.random() < faults.refused:
            answer = Answer(chance.choice(BEFORE_THE_LOG))
        else:
            identity, first_seq = request.numbers
            answer = self.log.append(request.batch.partition, identity, first_seq, rows)
            if chance.random() < faults.doubtful:
                answer = Answer(chance.choice(AFTER_THE_LOG))
        if chance.random() >= faults.lost_answer:
            self._at(self._later(), lambda: self._answer(request.id, answer))

    def _answer(self, id: int, answer: Answer) -> None:
        if id not in self._answered:  # a network may answer both copies: a transport passes on the first
            self._answered.add(id)
            self.sequencer.answered(id, answer, self.now_ms)

    def _later(self) -> int:
        span = self.faults.late_ms if self.random.random() < self.faults.late else self.faults.delay_ms
        return self.now_ms + self.random.randint(0, span)

    def _at(self, ms: int, act: Callable[[], None]) -> None:
        self._counter += 1
        heapq.heappush(self._events, (ms, self._counter, act))


def complaints(simulation: Simulation) -> list[str]:
    """Errors of the log: acknowledged rows that are missing, doubled or out of order; rows that were never sent."""
    found = []
    acknowledged: dict[int, list[Any]] = {}
    offered: dict[int, set[Any]] = {}
    for batch, rows in sorted(simulation.outcomes, key=lambda it: it[1][0][1]):  # type: ignore[index,return-value]
        offered.setdefault(batch.partition, set()).update(rows)
        if isinstance(batch.outcome, Delivered):
            acknowledged.setdefault(batch.partition, []).extend(rows)
        elif getattr(batch.outcome, "is_refused", False) and set(rows) & set(simulation.log.written(batch.partition)):
            found.append(f"{rows} are reported as not in the log, and are")
    for number in range(simulation.partitions):
        written = simulation.log.written(number)
        wanted = acknowledged.get(number, [])
        if len(set(written)) != len(written):
            found.append(f"partition {number}: rows twice: {sorted({it for it in written if written.count(it) > 1})}")
        if set(written) - offered.get(number, set()):
            found.append(f"partition {number}: rows that nobody sent")
        if [row for row in written if row in set(wanted)] != wanted:
            found.append(f"partition {number}: what was acknowledged is {wanted}, and the log has {written}")
    return found
