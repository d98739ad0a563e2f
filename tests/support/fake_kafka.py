"""A Kafka cluster in memory, and clients with the methods of `confluent_kafka.Consumer`.

Groups do not elect here: a test decides which partitions a client gets, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, int]


@dataclass
class Place:
    """`confluent_kafka.TopicPartition`."""

    topic: str
    partition: int
    offset: int = -1001


@dataclass
class Error:
    """`confluent_kafka.KafkaError`."""

    said: str
    is_fatal: bool = False

    def name(self) -> str:
        return self.said

    def fatal(self) -> bool:
        return self.is_fatal

    def __str__(self) -> str:
        return self.said


@dataclass(frozen=True)
class FakeMessage:
    """`confluent_kafka.Message`."""

    place: tuple[str, int, int]
    payload: bytes | None
    its_key: bytes | None = None
    its_headers: Sequence[tuple[str, bytes | None]] | None = None
    problem: Error | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.place[2]

    def key(self) -> bytes | None:
        return self.its_key

    def value(self) -> bytes | None:
        return self.payload

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        return self.its_headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000 + self.place[2]

    def error(self) -> Error | None:
        return self.problem


@dataclass
class Cluster:
    """Logs by (topic, partition), which only grow, but for `cut`."""

    logs: dict[Key, list[FakeMessage]] = field(default_factory=dict)
    ends: dict[Key, int] = field(default_factory=dict)
    starts: dict[Key, int] = field(default_factory=dict)
    committed: dict[Key, int] = field(default_factory=dict)

    def send(self, topic: str, *values: bytes | str | None, partition: int = 0, **more: Any) -> None:
        key = (topic, partition)
        for value in values:
            payload = value.encode() if isinstance(value, str) else value
            offset = self.ends.setdefault(key, 0)
            message = FakeMessage((topic, partition, offset), payload, more.get("key"), more.get("headers"))
            self.logs.setdefault(key, []).append(message)
            self.ends[key] = offset + 1

    def mark(self, topic: str, partition: int = 0) -> None:
        """A marker of a transaction: an offset that no client sees."""
        self.ends[topic, partition] = self.ends.get((topic, partition), 0) + 1

    def cut(self, topic: str, before: int, partition: int = 0) -> None:
        """Retention deletes records before an offset."""
        self.starts[topic, partition] = before
        self.logs[topic, partition] = [it for it in self.logs[topic, partition] if it.offset() >= before]


class FakeClient:
    """A member of a group, which has the partitions that a test gives it. `when_idle`: called when a poll finds nothing
    and none of its partitions is paused."""

    def __init__(self, cluster: Cluster, partitions: Sequence[Key]) -> None:
        self.cluster = cluster
        self.when_idle: Callable[[], None] = lambda: None
        self.reading: dict[Key, int] = {}
        self.broken: set[Key] = set()
        self.paused: set[Key] = set()
        self.errors: list[Error] = []
        self.failing_seeks = 0
        self.failing_bounds = 0
        self.when_bounds_fail: Callable[[], None] = lambda: None
        self.is_cooperative = False
        self.polls_while_paused = 0
        self.is_closed = False
        self._first = list(partitions)
        self._changes: list[Callable[[], None]] = []
        self._callbacks: dict[str, Callable[..., None]] = {}

    # What tests do

    def give(self, *keys: Key) -> None:
        """The group assigns these at the next poll."""
        self._changes.append(lambda: self._callbacks["on_assign"](self, [Place(*key) for key in keys]))

    def take(self, *keys: Key, lost: bool = False) -> None:
        """The group revokes these at the next poll. Paused partitions stay paused, as with librdkafka."""

        def change() -> None:
            self._callbacks["on_lost" if lost else "on_revoke"](self, [Place(*key) for key in keys])
            for key in keys:
                self.reading.pop(key, None)

        self._changes.append(change)

    # What loops call

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self._callbacks = callbacks
        self.give(*self._first)

    def poll(self, timeout: float) -> FakeMessage | None:
        changes, self._changes = self._changes, []
        for change in changes:
            change()
        if self.errors:
            error = self.errors.pop(0)
            if error.said == "_AUTO_OFFSET_RESET":
                self.broken.add(("orders", 0))
            return FakeMessage(("orders", 0, -1), None, problem=error)
        for key, offset in self.reading.items():
            if key not in self.paused | self.broken:
                found = next((it for it in self.cluster.logs.get(key, ()) if it.offset() >= offset), None)
                if found is not None:
                    self.reading[key] = found.offset() + 1
                    return found
        if self.paused & self.reading.keys():
            self.polls_while_paused += 1
        elif timeout > 0:
            self.when_idle()
        return None

    def consume(self, num_messages: int, timeout: float) -> list[FakeMessage]:
        found = []
        while len(found) < num_messages and (message := self.poll(0)) is not None:
            found.append(message)
        return found

    def assign(self, partitions: list[Place]) -> None:
        if self.is_cooperative:
            raise RuntimeError("_STATE: use incremental_assign")
        self.reading.clear()
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: list[Place]) -> None:
        self.reading |= {(it.topic, it.partition): it.offset for it in partitions}
        self.broken -= self.reading.keys()

    def incremental_unassign(self, partitions: list[Place]) -> None:
        if not self.is_cooperative:
            raise RuntimeError("_STATE: use assign")
        for it in partitions:
            del self.reading[it.topic, it.partition]

    def seek(self, partition: Place) -> None:
        if self.failing_seeks or (partition.topic, partition.partition) in self.broken:
            self.failing_seeks = max(0, self.failing_seeks - 1)
            raise RuntimeError("_STATE: erroneous state")
        self.reading[partition.topic, partition.partition] = partition.offset

    def pause(self, partitions: list[Place]) -> None:
        self.paused |= {(it.topic, it.partition) for it in partitions}

    def resume(self, partitions: list[Place]) -> None:
        self.paused -= {(it.topic, it.partition) for it in partitions}

    def committed(self, partitions: list[Place], timeout: float) -> list[Place]:
        known = self.cluster.committed
        return [Place(it.topic, it.partition, known.get((it.topic, it.partition), -1001)) for it in partitions]

    def get_watermark_offsets(
        self, partition: Place, timeout: float = 0, cached: bool = False
    ) -> tuple[int, int] | None:
        if self.failing_bounds:
            self.failing_bounds -= 1
            self.when_bounds_fail()
            return None
        key = (partition.topic, partition.partition)
        return self.cluster.starts.get(key, 0), self.cluster.ends.get(key, 0)

    def commit(self, *, offsets: list[Place], asynchronous: bool) -> None:
        self.cluster.committed |= {(it.topic, it.partition): it.offset for it in offsets}

    def close(self) -> None:
        self.is_closed = True
