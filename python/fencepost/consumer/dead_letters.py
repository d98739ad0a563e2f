"""Messages that cannot be applied, set aside with the reason: in a table of the same database, or in a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine

from fencepost.consumer.messages import Message, headers_text, place_of
from fencepost.errors import StoreError
from fencepost.sql.consumers import DEAD_LETTERS, DEAD_LETTERS_PART
from fencepost.sql.database import Database
from fencepost.sql.upserts import insert_if_missing

_ERROR_CHARACTERS = 4000


@dataclass(frozen=True)
class DeadLetter:
    """A message that was not applied, and why."""

    consumer_id: str
    message: Message
    error_type: str
    """The class of the error, or the verdict of a row that was refused."""
    error: str
    tries: int

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of the message, followed by where it is from and why it is here."""
        message = self.message
        why = {
            "consumer": self.consumer_id,
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "error_type": self.error_type,
            "error": self.error,
            "tries": self.tries,
        }
        added = [(f"fencepost_{name}", str(value).encode(errors="replace")) for name, value in why.items()]
        return [*(message.headers() or ()), *added]


DeadLetterWriter: TypeAlias = Callable[[Connection, Sequence[DeadLetter]], None]
"""Called in the transaction that moves the position past these messages."""


def to_table(engine: Engine) -> DeadLetterWriter:
    """Writes to the table `fencepost_dead_letters` of the database, which is made where it is missing."""
    database = Database(engine)
    database.create_tables(DEAD_LETTERS_PART)

    def write(connection: Connection, letters: Sequence[DeadLetter]) -> None:
        now = {"created_ms": database.now_ms(connection)}
        for letter in letters:
            insert_if_missing(connection, DEAD_LETTERS, _row(letter) | now)

    return write


def to_topic(producer: Any, topic: str, *, timeout_s: float = 30.0) -> DeadLetterWriter:
    """Writes to a Kafka topic: the message with its headers, and headers `fencepost_…` that say where from and why.

    `producer`: a `confluent_kafka.Producer`. The message is delivered before the position moves past its original, so
    a process that is killed between the two writes it twice; the headers tell such copies. Where it cannot be
    delivered the loop waits, as in an outage of the database.
    """

    def write(_: Connection, letters: Sequence[DeadLetter]) -> None:
        failed: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(str(error))

        for letter in letters:
            message = letter.message
            producer.produce(
                topic, value=message.value(), key=message.key(), headers=letter.headers, on_delivery=delivered
            )
        waiting = producer.flush(timeout_s)
        if waiting or failed:
            said = failed[0] if failed else f"{waiting} messages are not acknowledged after {timeout_s:g} s"
            raise StoreError(f"dead letter topic '{topic}', {place_of(letters[0].message)}: {said}")

    return write


def _row(letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    kind, timestamp_ms = message.timestamp()
    return {
        "consumer": letter.consumer_id,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if kind else None,
        "key": message.key(),
        "value": message.value(),
        "headers": headers_text(message.headers()),
        "error_type": letter.error_type,
        "error": _plain(letter.error),
        "tries": letter.tries,
    }


def _plain(error: str) -> str:
    """As a text column takes it: without zero bytes and lone surrogates."""
    return error.encode(errors="replace").decode().replace("\0", "\\0")[:_ERROR_CHARACTERS]
