"""Partition logs behind a socket, and a client whose requests and answers are lost, late, repeated or out of order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa
from fencepost import FencepostError
from fencepost.kafka import PartitionLog
from fencepost.producer import Answer, SequencedBatch
from fencepost.transports import LandingTransport


def serve(folder: Path, address: str, partitions: Sequence[str], sync: str) -> None:
    """The logs of these partitions (`inputs-0`), until the process ends. A thread for each connection."""
    logs = {name: PartitionLog(folder / name, int(name.rpartition("-")[2]), sync=sync) for name in partitions}
    Path(address).unlink(missing_ok=True)
    with Listener(address, "AF_UNIX", backlog=64) as listener:
        while True:
            threading.Thread(target=_answer, args=(listener.accept(), logs), daemon=True).start()


def _answer(connection: Connection, logs: dict[str, PartitionLog]) -> None:
    while True:
        try:
            partition, call, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any = _call(logs[partition], call, arguments)
        except Exception as error:
            answer = error
        try:
            connection.send(answer)
        except OSError:
            return


def _call(log: PartitionLog, call: str, arguments: Sequence[Any]) -> Any:
    if call == "read":
        return pa.table(log.read(*arguments))
    if call == "ends":
        return log.last_stable_offset, log.log_end
    return getattr(log, call)(*arguments)


class Wire:
    """A connection to the logs that is opened again when it breaks. One call at a time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection: Connection | None = None

    def call(self, partition: str, call: str, *arguments: Any) -> Any:
        """The answer of the log. Raises ConnectionError if the outcome of the call is unknown."""
        try:
            if self._connection is None:
                self._connection = Client(self.address, "AF_UNIX")
            self._connection.send((partition, call, arguments))
            answer = self._connection.recv()
        except (OSError, EOFError) as error:
            self.close()
            raise ConnectionError(f"{partition}: {call}: {error!r}") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def insist(self, partition: str, call: str, *arguments: Any) -> Any:
        """The same, until the log answers: for calls that may be repeated."""
        while True:
            try:
                return self.call(partition, call, *arguments)
            except ConnectionError:
                time.sleep(0.02)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Trouble:
    """What happens to messages, from a seed; the kinds are noted in a file, a line each."""

    KINDS = ("request lost", "answer lost", "late", "sent twice", "out of order", "comes again later")

    def __init__(self, seed: str, share: float, notes: Path) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._notes = notes.open("a", buffering=1)

    def next(self) -> str | None:
        """What happens to the next message; None: it arrives."""
        if self._random.random() >= self._share:
            return None
        kind = self._random.choice(self.KINDS)
        self._notes.write(f"{kind}\n")
        return kind

    def pause(self) -> None:
        time.sleep(self._random.random() * 0.05)


class RemoteTopic:
    """Where a coordinator's route leads to: markers go over the wire, and may meet trouble."""

    def __init__(self, address: str, topic: str, trouble: Trouble | None) -> None:
        self._wire, self._topic, self._trouble = Wire(address), topic, trouble

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: str, coordinator_epoch: int) -> None:
        met = self._trouble.next() if self._trouble else None
        if met == "request lost":
            raise TimeoutError("the marker was lost")
        for _ in range(2 if met == "sent twice" else 1):
            self._wire.call(f"{self._topic}-{partition}", "append_marker", pid, epoch, outcome, coordinator_epoch)
        if met == "answer lost":
            raise TimeoutError("the answer to a marker was lost")


class TroubledLogs:
    """A topic as a producer's transport: up to five batches of a partition are on their way, and trouble meets them."""

    def __init__(self, address: str, topic: str, partitions: int, trouble: Trouble) -> None:
        self.partitions = partitions
        self._trouble = trouble
        self._lanes = {number: _Lane(address, f"{topic}-{number}", trouble) for number in range(partitions)}

    def send(self, batch: SequencedBatch) -> Future[Answer]:
        answered: Future[Answer] = Future()
        self._lanes[batch.partition].requests.put((batch, answered))
        return answered


class TroubledLanding:
    """A landing folder as a producer's transport, with lost answers and repeated requests."""

    def __init__(self, folder: Path, partitions: int, trouble: Trouble) -> None:
        self.partitions = partitions
        self._landing, self._trouble = LandingTransport(folder, partitions=partitions, sync=False), trouble
        self._again: list[SequencedBatch] = []
        self.fence, self.cursor = self._landing.fence, self._landing.cursor

    def send(self, batch: SequencedBatch) -> Answer:
        trouble = self._trouble.next()
        if trouble == "request lost":
            raise TimeoutError("the request was lost")
        if trouble in ("out of order", "comes again later"):
            self._again.append(batch)
        elif self._again:
            with suppress(FencepostError):
                self._landing.send(self._again.pop())
        if trouble == "late":
            self._trouble.pause()
        answer = self._landing.send(batch)
        if trouble == "sent twice":
            answer = self._landing.send(batch)
        if trouble == "answer lost":
            raise TimeoutError("the answer was lost")
        return answer


class _Lane(threading.Thread):
    """What is on its way to one partition."""

    def __init__(self, address: str, partition: str, trouble: Trouble) -> None:
        super().__init__(daemon=True)
        self.requests: SimpleQueue[tuple[SequencedBatch, Future[Answer]]] = SimpleQueue()
        self._wire, self._partition, self._trouble = Wire(address), partition, trouble
        self._again: list[SequencedBatch] = []
        self.start()

    def run(self) -> None:
        while True:
            waiting = [self.requests.get()]
            trouble = self._trouble.next()
            if trouble == "out of order":
                self._trouble.pause()
                with suppress(Empty):
                    waiting.insert(0, self.requests.get_nowait())
            for batch, answered in waiting:
                self._meet(trouble, batch, answered)

    def _meet(self, trouble: str | None, batch: SequencedBatch, answered: Future[Answer]) -> None:
        if self._again and trouble is None:
            with suppress(ConnectionError, FencepostError):
                self._append(self._again.pop())
        try:
            if trouble == "request lost":
                raise TimeoutError("the request was lost")
            if trouble == "comes again later":
                self._again.append(batch)
            if trouble == "late":
                self._trouble.pause()
            answer = self._append(batch)
            if trouble == "sent twice":
                answer = self._append(batch)
            if trouble == "answer lost":
                raise TimeoutError("the answer was lost")
        except Exception as error:
            answered.set_exception(error)
        else:
            answered.set_result(answer)

    def _append(self, batch: SequencedBatch) -> Answer:
        records = list(zip(batch.rows["key"].to_pylist(), batch.rows["value"].to_pylist(), strict=True))
        verdict, offset = self._wire.call(
            self._partition, "append", batch.pid, batch.epoch, batch.first_seq, records, batch.transactional
        )
        return Answer(verdict, offset)
