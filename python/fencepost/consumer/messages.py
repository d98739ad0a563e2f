"""Kafka messages as columns, and the protocols of clients and messages, with the names of confluent-kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fencepost.errors import PolicyError

COORDINATES = ("topic", "partition", "offset")
"""The columns that the loop adds to each row. A decoder must not return them."""


class Message(Protocol):
    """`confluent_kafka.Message`."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> Any: ...


class TopicPartition(Protocol):
    """`confluent_kafka.TopicPartition`: a partition and an offset in it."""

    topic: str
    partition: int
    offset: int


class Client(Protocol):
    """`confluent_kafka.Consumer`."""

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None: ...
    def poll(self, timeout: float) -> Message | None: ...
    def consume(self, num_messages: int, timeout: float) -> list[Message]: ...
    def assign(self, partitions: list[Any]) -> None: ...
    def incremental_assign(self, partitions: list[Any]) -> None: ...
    def incremental_unassign(self, partitions: list[Any]) -> None: ...
    def seek(self, partition: Any) -> None: ...
    def pause(self, partitions: list[Any]) -> None: ...
    def resume(self, partitions: list[Any]) -> None: ...
    def committed(self, partitions: list[Any], timeout: float) -> list[Any]: ...
    def get_watermark_offsets(
        self, partition: Any, timeout: float = ..., cached: bool = ...
    ) -> tuple[int, int] | None: ...
    def commit(self, *, offsets: list[Any], asynchronous: bool) -> Any: ...
    def close(self) -> None: ...


Decoder: TypeAlias = Callable[[Message], Mapping[str, Any] | None]
"""Returns the columns of a message without its coordinates, or None to skip the message."""


@dataclass(eq=False)
class Partition:
    """An assigned partition.

    Each assignment and each seek creates a new instance. Messages of an earlier instance are recognized and dropped.
    """

    handle: TopicPartition
    position: int
    """The position in the database: the offset of the next message to apply."""
    is_seeking: bool = False
    """Whether messages are dropped because a seek has not succeeded yet."""

    @property
    def source(self) -> str:
        """The source name of the partition in the positions of a sink."""
        return source_of(self.handle)


@dataclass(frozen=True)
class Item:
    """A message and the partition instance that was assigned when the message arrived."""

    message: Message
    partition: Partition


def source_of(handle: TopicPartition) -> str:
    """Return the source name of a partition in the positions of a sink: "topic-partition"."""
    return f"{handle.topic}-{handle.partition}"


def place_of(message: Message) -> str:
    """Return the partition and offset of a message as readable text."""
    return f"{message.topic()}-{message.partition()} at offset {message.offset()}"


def message_columns(message: Message) -> dict[str, Any]:
    """Return key and value (binary), headers (JSON text or null) and timestamp (int64 ms or null). The default decoder.
    The JSON of headers is [[name, value], ...]. A value that is not UTF-8 or contains a zero byte becomes {"hex":
    "ff00"}.
    """
    kind, timestamp_ms = message.timestamp()
    return {
        "key": message.key(),
        "value": message.value(),
        "headers": headers_text(message.headers()),
        "timestamp": timestamp_ms if kind else None,
    }


def headers_text(headers: Sequence[tuple[str, bytes | None]] | None) -> str | None:
    """Return headers as JSON: [[name, value], ...]. A value that is not UTF-8 or contains a zero byte becomes {"hex":
    "ff00"}."""
    if not headers:
        return None
    return json.dumps([[name, _header_value(value)] for name, value in headers], ensure_ascii=False)


def _header_value(value: bytes | str | None) -> str | dict[str, str] | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode() if b"\0" not in value else {"hex": value.hex()}
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def row_of(message: Message, decode: Decoder) -> dict[str, Any] | None:
    """Return the coordinates of a message and the decoder's columns. Return None if the decoder returns None.

    Raises:
        PolicyError: The decoder returns one of the coordinates.
    """
    columns = decode(message)
    if columns is None:
        return None
    taken = [name for name in COORDINATES if name in columns]
    if taken:
        raise PolicyError(
            f"the decoder returned a column '{taken[0]}', which the consumer adds itself: rename the column"
        )
    return {"topic": message.topic(), "partition": message.partition(), "offset": message.offset(), **columns}
