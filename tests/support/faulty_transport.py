"""Transports for tests: a log in memory, and one behind a network whose faults a seed decides."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from fencepost.producer import Answer, ErrorCode, Identity, SequencedBatch
from fencepost.transports.admission import judge, last_written, mark, new_table


class MemoryTransport:
    """Judges and keeps rows: `log[partition]` is a list of the values of `column`. A registry of leases, too."""

    def __init__(self, partitions: int = 2, column: str = "value") -> None:
        self.partitions, self.column = partitions, column
        self.table = new_table()
        self.log: dict[int, list[Any]] = {}
        self.batches: list[SequencedBatch] = []
        self.leases: dict[str, Identity] = {}
        self.floors: dict[int, int] = {}
        self.pids = 100
        self.lock = threading.RLock()

    def send(self, batch: SequencedBatch) -> Answer:
        with self.lock:
            if batch.epoch < self.floors.get(batch.pid, 0):
                return Answer(ErrorCode.INVALID_PRODUCER_EPOCH)
            judged = judge(
                self.table, batch.partition, batch.pid, batch.epoch, batch.first_seq, batch.count, batch.transactional
            )
            if judged.verdict.is_kept:
                self.batches.append(batch)
                self.log.setdefault(batch.partition, []).extend(batch.rows[self.column].to_pylist())
            return Answer(judged.verdict, judged.offset)

    def fence(self, pid: int, epoch: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        with self.lock:
            if partitions is None:
                self.floors[pid] = epoch
            known = range(self.partitions) if partitions is None else partitions
            found = {it: tuple(last) for it in known if (last := last_written(self.table, it, pid))}
            for number in known:
                mark(self.table, number, pid, epoch, "abort")
            return found  # type: ignore[return-value]

    def init_producer(self, transactional_id: str | None = None, timeout_ms: int = 0, expected: Any = None) -> Identity:
        from fencepost import FencedError

        with self.lock:
            before = self.leases.get(transactional_id or "")
            if expected is not None and before != expected:
                raise FencedError(f"{transactional_id!r} has {before}, not {expected}")
            if before is None:
                self.pids += 1
                before = Identity(self.pids, -1)
            found = before._replace(epoch=before.epoch + 1)
            if transactional_id is not None:
                self.leases[transactional_id] = found
            return found


class FaultyTransport:
    """Passes batches to another transport with faults: requests and answers are lost, late, doubled or reordered.

    Every answer arrives at most once, and each is an answer of the log.
    """

    def __init__(self, behind: Any, seed: int, *, share: float = 0.5, late_s: float = 0.02) -> None:
        self.behind, self.share, self.late_s = behind, share, late_s
        self.partitions = behind.partitions
        self.answers: dict[str, int] = {}
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._timers: list[threading.Timer] = []
        for name in ("fence", "init_producer"):
            if hasattr(behind, name):
                setattr(self, name, getattr(behind, name))

    def send(self, batch: SequencedBatch) -> Future[Answer]:
        answer: Future[Answer] = Future()
        with self._lock:
            kind = self._random.choice(LIES) if self._random.random() < self.share else "truth"
            delay = self._random.random() * self.late_s
            self.answers[kind] = self.answers.get(kind, 0) + 1
        if kind == "truth":
            answer.set_result(self._send(batch))
        elif kind == "error before":
            answer.set_result(Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif kind == "error after":
            self._send(batch)
            answer.set_exception(OSError("connection reset"))
        elif kind == "lost answer":
            self._send(batch)
        elif kind == "twice":
            first = self._send(batch)
            self._send(batch)
            answer.set_result(first)
        elif kind == "late answer":
            first = self._send(batch)
            self._later(delay, lambda: answer.set_result(first))
        elif kind == "late request":
            self._later(delay, lambda: answer.set_result(self._send(batch)))
        elif kind == "late copy":
            answer.set_result(self._send(batch))
            self._later(delay, lambda: self._send(batch))
        return answer

    def _send(self, batch: SequencedBatch) -> Answer:
        answer: Answer | Future[Answer] = self.behind.send(batch)
        return answer.result(30) if isinstance(answer, Future) else answer

    def settle(self) -> None:
        """Wait for what is late."""
        for timer in self._timers:
            timer.join()

    def _later(self, seconds: float, act: Any) -> None:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()


LIES = (
    "error before", "error after", "lost answer", "lost request", "twice", "late answer", "late request", "late copy",
)  # fmt: skip
