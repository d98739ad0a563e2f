"""Dead letters: messages that cannot be applied, with the reason, in a table of the same database or in a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine, and_, select

from fencepost.consumer.messages import Message, message_columns, place_of
from fencepost.errors import BatchError, StoreError
from fencepost.sql.consumers import DEAD_LETTERS, DEAD_LETTERS_PART
from fencepost.sql.database import Database
from fencepost.sql.upserts import insert_if_missing

_ERROR_CHARACTERS = 4000
_REMEMBERED_MAX = 10_000
"""Number of delivered letters that `to_topic` remembers: more than a loop has in one transaction."""


Place: TypeAlias = tuple[str, str, int, int]


@dataclass(frozen=True)
class DeadLetter:
    """A message that was not applied, and the reason."""

    consumer_id: str
    message: Message
    error_type: str
    """The class of the error, or the verdict of a refused row."""
    error: str
    tries: int

    @property
    def place(self) -> Place:
        """The consumer, topic, partition and offset of the message."""
        message = self.message
        return self.consumer_id, message.topic(), message.partition(), message.offset()

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of the message, then headers `fencepost_…` with its origin and the reason."""
        message = self.message
        context = {
            "consumer": self.consumer_id,
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "error_type": self.error_type,
            "error": self.error,
            "tries": self.tries,
        }
        added = [(f"fencepost_{name}", str(value).encode(errors="replace")) for name, value in context.items()]
        return [*(message.headers() or ()), *added]


DeadLetterWriter: TypeAlias = Callable[[Connection, Sequence[DeadLetter]], None]
"""Writes dead letters. The loop calls it in the transaction that moves the position past these messages."""


def to_table(engine: Engine) -> DeadLetterWriter:
    """Write dead letters to the table `fencepost_dead_letters` of the database. Create the table if it is missing.

    The writer raises BatchError if the table has another message with this topic, partition and offset.
    """
    database = Database(engine)
    database.create_tables(DEAD_LETTERS_PART)

    def write(connection: Connection, letters: Sequence[DeadLetter]) -> None:
        now = {"created_ms": database.now_ms(connection)}
        for letter in letters:
            row = _row(letter)
            if not insert_if_missing(connection, DEAD_LETTERS, row | now):
                _check_known(connection, row, place_of(letter.message))

    return write


def _check_known(connection: Connection, row: Mapping[str, Any], place: str) -> None:
    """Raise BatchError if the table has another message at this place: one of a topic that was created again."""
    at_place = and_(*(column == row[column.name] for column in DEAD_LETTERS.primary_key))
    content = [DEAD_LETTERS.c[name] for name in ("timestamp", "key", "value")]
    if connection.execute(select(*content).where(at_place)).one() != tuple(row[it.name] for it in content):
        raise BatchError(
            f"{place}: {DEAD_LETTERS.name} has another message with this topic, partition and offset, so this one was "
            "not stored and not skipped. The topic was created again: move its rows to another table, then run again"
        )


def to_topic(producer: Any, topic: str, *, timeout_s: float = 30.0) -> DeadLetterWriter:
    """Write dead letters to a Kafka topic. Each has headers `fencepost_…` with the origin and the reason.

    The message is delivered before the position moves past the original. If the transaction that moves the position
    fails and is tried again, the message is not written again. If the process is killed in between, the next process
    may write it a second time. The headers identify such copies. If a message cannot be delivered, the loop waits, as
    during an outage of the database.

    Args:
        producer: A `confluent_kafka.Producer`.
        topic: The topic of dead letters.
        timeout_s: Maximum time to wait for the delivery.
    """
    is_delivered: dict[Place, bool] = {}
    """Whether the newest letters are delivered (True) or in flight. Those that failed are not in it."""

    def write(_: Connection, letters: Sequence[DeadLetter]) -> None:
        failed: list[str] = []
        for letter in letters:
            if letter.place in is_delivered:
                continue

            def delivered(error: Any, _: Any, place: Place = letter.place) -> None:
                if error is None:
                    is_delivered[place] = True
                else:
                    is_delivered.pop(place, None)
                    failed.append(str(error))

            message = letter.message
            is_delivered[letter.place] = False
            try:
                producer.produce(
                    topic, value=message.value(), key=message.key(), headers=letter.headers, on_delivery=delivered
                )
            except BaseException as error:
                is_delivered.pop(letter.place, None)
                if not isinstance(error, BufferError):
                    raise
                failed.append(str(error))  # the producer's queue is full
        producer.flush(timeout_s)
        waiting = sum(not is_delivered.get(it.place) for it in letters)
        if waiting:
            problem = failed[0] if failed else f"{waiting} messages are not acknowledged after {timeout_s:g} s"
            raise StoreError(f"dead letter topic '{topic}', {place_of(letters[0].message)}: {problem}")
        for place in list(is_delivered)[:-_REMEMBERED_MAX]:
            del is_delivered[place]

    return write


def _row(letter: DeadLetter) -> dict[str, Any]:
    consumer, topic, partition, offset = letter.place
    return {
        "consumer": consumer,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        **message_columns(letter.message),
        "error_type": letter.error_type,
        "error": _plain(letter.error),
        "tries": letter.tries,
    }


def _plain(error: str) -> str:
    """Return the text without zero bytes and lone surrogates, which text columns do not accept."""
    return error.encode(errors="replace").decode().replace("\0", "\\0")[:_ERROR_CHARACTERS]
