"""The loop: poll, decode, apply once, move the position, all else around it.

A message is applied, or set aside as a dead letter, in the database transaction that moves the position of its
partition. The transaction first checks that the position is where this process has it (`expected=`). So it does not
matter when the process dies, nor whether another one still works on a partition that the group has taken from it: the
later of two transactions is refused, and its process reads the position again.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
from sqlalchemy import Connection

from fencepost.consumer.assignment import Assignment, OnReset, Start
from fencepost.consumer.dead_letters import DeadLetter, DeadLetterWriter, to_table
from fencepost.consumer.messages import Client, Decoder, Item, Message, Partition, message_columns, place_of, row_of
from fencepost.consumer.metrics import ABOUT, families_of
from fencepost.errors import (
    BatchError,
    CapacityError,
    OutcomeUnknownError,
    PolicyError,
    SchemaError,
    SinkError,
    StateConflictError,
    StoreError,
    UndoneError,
    message_of,
)
from fencepost.sql import SqlSink
from fencepost.sql.sink import Effect
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

T = TypeVar("T")
logger = logging.getLogger("fencepost.consumer")

OUTAGES = (StoreError, OutcomeUnknownError)
"""The database does not answer: the same call again, later."""
MISTAKES = (CapacityError, PolicyError, SchemaError, SinkError, UndoneError)
"""No message is at fault: the loop stops."""
_IDLE_S = 0.5
_POLL_EVERY_S = 0.1
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 5.0


class Stopping(Protocol):
    """`threading.Event`: set when the loop is to stop."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class ConsumerLoop:
    """Applies the messages of Kafka topics to a database, each once, until it is stopped.

    `client`: a `confluent_kafka.Consumer` of the caller, with `enable.auto.commit` false and `auto.offset.reset`
    "error". The loop subscribes it and closes it. `sink`: what tells messages apart and where rows go;
    `policy="kafka_offsets", columns="kafka"` for (topic, partition, offset), or a message id, or numbers of the
    producer's own, from columns that the decoder gives.

    `decode(message)`: the columns of a message beside topic, partition and offset; None passes over it. Unless given,
    `message_columns`. `effect(connection, kept)`: called with the new rows, as by `SqlSink.handle`; unless given, rows
    go to the sink's table. Both raise `StoreError` for an outage of what they depend on.

    `attempts`: how often a message is tried that fails by itself; then it becomes a dead letter. `dead_letters`: where
    to; unless given, the table `fencepost_dead_letters` of the sink's database. `dead_letters_max`: so many in a row,
    with no message applied between them, stop the loop: then it is not the messages.

    `start`: where a partition begins that the database does not know: "earliest", "latest", or "committed", where the
    group stands in Kafka (else earliest). `on_reset`: what to do when messages were deleted before they were applied,
    "stop" or "report".

    `batch_max`: messages of a transaction. `linger_s`: how long to wait for more after the first. `stopping`: what the
    loop waits on between tries, an event of its own unless given.

    Raises PolicyError for settings that make no sense, and StoreError where the database does not answer.
    """

    def __init__(
        self,
        client: Client,
        sink: SqlSink,
        topics: Sequence[str],
        *,
        decode: Decoder = message_columns,
        effect: Effect | None = None,
        attempts: int = 3,
        dead_letters: DeadLetterWriter | None = None,
        dead_letters_max: int = 100,
        start: Start = "earliest",
        on_reset: OnReset = "stop",
        batch_max: int = 500,
        linger_s: float = 0.05,
        stopping: Stopping | None = None,
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise PolicyError(f"topics={topics!r}: a list of one or more topics was expected")
        for name, value in (("attempts", attempts), ("batch_max", batch_max), ("dead_letters_max", dead_letters_max)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PolicyError(f"{name}={value!r}: a number of 1 or more was expected")
        for name, chosen, known in (
            ("start", start, ("earliest", "latest", "committed")),
            ("on_reset", on_reset, ("stop", "report")),
        ):
            if chosen not in known:
                raise PolicyError(f"{name}={chosen!r} is none of {', '.join(known)}")
        self._client, self._sink, self._topics = client, sink, list(topics)
        self._decode, self._effect = decode, effect
        self._attempts, self._batch_max, self._linger_s = attempts, batch_max, linger_s
        self._write_dead = dead_letters or to_table(sink.engine)
        self._dead_max, self._dead_in_a_row = dead_letters_max, 0
        self._stop = threading.Event() if stopping is None else stopping
        self._assignment = Assignment(client, sink, start, on_reset, self._until_up)
        self._early: list[Item] = []
        self._counts = dict.fromkeys(ABOUT, 0)

    def stop(self) -> None:
        """Makes `run` return after the transaction that it is in. From any thread, and from a signal handler."""
        self._stop.set()

    def run(self, *, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Consumes until `stop` is called or one of the signals arrives; then leaves the group.

        In a thread other than the main one no signals are handled.

        Raises:
            SourceError: messages were deleted unread, or a topic was created again.
            BatchError: `dead_letters_max` messages in a row could not be applied.
            PolicyError, SchemaError, SinkError, UndoneError: as `SqlSink.apply` and `handle`. Messages that were not
                applied are read again by the next process.
        """
        with self._signals(signals):
            try:
                assigned, taken_away = self._assignment.assigned, self._assignment.taken_away
                self._client.subscribe(self._topics, on_assign=assigned, on_revoke=taken_away, on_lost=taken_away)
                while not self._stop.is_set():
                    items = self._collect()
                    if items:
                        self._apply(items)
            finally:
                self._client.close()
        logger.info("stopped")

    def metrics(self) -> dict[str, Any]:
        """Counters of this process (`fencepost.consumer.metrics.ABOUT`), `is_paused`, `partitions`, `lag` by source.

        From any thread. It asks neither Kafka nor the database.
        """
        found: dict[str, Any] = dict(self._counts)
        assignment = self._assignment
        found["rebalances"] = assignment.changes
        return found | {
            "is_paused": assignment.is_paused,
            "partitions": len(assignment.partitions),
            "lag": assignment.lag(),
        }

    def collect(self) -> Iterator[Metric]:
        """The same as families of `prometheus_client`: see `fencepost.metrics`."""
        return families_of(self._sink.consumer_id, self.metrics())

    # Messages

    def _collect(self) -> list[Item]:
        """The next messages, none or up to `batch_max`."""
        self._assignment.seek()
        early, self._early = self._early, []
        first = self._poll(0 if early else _IDLE_S)
        if not first and not early:
            return []
        changes = self._assignment.changes
        more = self._accepted(self._client.consume(self._batch_max, self._linger_s))
        if self._assignment.changes != changes:
            # Some of the messages may be from before the change.
            self._assignment.read_again()
            return []
        return self._still_mine([*early, *first, *more])

    def _poll(self, timeout_s: float) -> list[Item]:
        message = self._client.poll(timeout_s)
        self._assignment.read_ends()
        return [] if message is None and self._assignment.failure is None else self._accepted([message])

    def _accepted(self, messages: Sequence[Message | None]) -> list[Item]:
        """The messages that this process is to apply. Raises what a callback or the client could not do."""
        failure, self._assignment.failure = self._assignment.failure, None
        if failure is not None:
            raise failure
        proper = []
        for message in messages:
            if message is not None and message.error() is not None:
                self._reported(message)
            elif message is not None:
                proper.append(message)
        self._counts["messages"] += len(proper)
        return self._assignment.items(proper)

    def _reported(self, message: Message) -> None:
        error = message.error()
        if error.name() == "_PARTITION_EOF":
            return
        self._counts["client_errors"] += 1
        logger.warning("the Kafka client reports: %s", error)
        if error.fatal():
            raise StoreError(f"the Kafka client cannot go on: {error}")
        if error.name() == "_AUTO_OFFSET_RESET":
            self._until_up(lambda: self._assignment.out_of_range(message))

    def _still_mine(self, items: Sequence[Item]) -> list[Item]:
        """Without those that are applied, and those of partitions that were taken away."""
        return [
            it for it in items if self._assignment.owns(it.partition) and it.message.offset() >= it.partition.position
        ]

    # Applying

    def _apply(self, items: list[Item]) -> None:
        """Applies the messages, or sets them aside. Waits as long as the database does not answer."""
        pause_s = _PAUSE_MIN_S
        while items and not self._stop.is_set():
            try:
                self._apply_in_parts(items)
                break
            except StateConflictError as error:
                self._counts["conflicts"] += 1
                logger.warning("%s", error)
                self._until_up(self._assignment.refresh)
            except OUTAGES as error:
                self._wait_for_the_database(error, pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            # Those of partitions that have not moved are still to be applied: the client has gone past them.
            items = self._still_mine(items)
        if self._assignment.is_paused:
            logger.warning("the database answers again")
            self._assignment.resume()

    def _apply_in_parts(self, items: list[Item]) -> None:
        """In one transaction; where that fails, around the message that is named, or in halves."""
        waiting = [items]
        while waiting and not self._stop.is_set():
            part = waiting.pop()
            try:
                self._apply_once(part)
                self._dead_in_a_row = 0
            except (*OUTAGES, *MISTAKES, StateConflictError):
                raise
            except Exception as error:
                if len(part) == 1:
                    self._try_again(part[0], error)
                else:
                    at = _place_of(error, len(part))
                    logger.info("%d messages fail together (%s), so they are applied in parts", len(part), error)
                    pieces = (part[:at], part[at : at + 1], part[at + 1 :])
                    waiting += [it for it in reversed(pieces) if it]

    def _try_again(self, item: Item, error: Exception) -> None:
        """A message that has failed alone: tried `attempts` times in all, then set aside."""
        for attempt in range(1, self._attempts):
            self._counts["retries"] += 1
            self._stop.wait(min(_PAUSE_MAX_S, _PAUSE_MIN_S * 2**attempt))
            if self._stop.is_set():
                return
            try:
                self._apply_once([item])
                self._dead_in_a_row = 0
                return
            except (*OUTAGES, *MISTAKES, StateConflictError):
                raise
            except Exception as again:
                error = again
        self._set_aside(item, error)

    def _apply_once(self, items: Sequence[Item]) -> None:
        """One transaction. Raises `_DecodeError`, and what the sink raises."""
        rows, places = [], []
        for place, item in enumerate(items):
            try:
                row = row_of(item.message, self._decode)
            except (*OUTAGES, *MISTAKES):
                raise
            except Exception as error:
                raise _DecodeError(place, error) from error
            if row is not None:
                rows.append(row)
                places.append(place)
        expected, positions = _moves(items)
        if not rows:
            self._sink.skip(positions, expected=expected)
            self._moved(items)
            self._counts["skipped"] += len(items)
            return
        refused = _Refused(self._sink.consumer_id, [items[it].message for it in places], self._write_dead)
        options: dict[str, Any] = {"positions": positions, "expected": expected, "refused": refused}
        try:
            if self._effect is None:
                done = self._sink.apply(rows, **options)
            else:
                done = self._sink.handle(rows, self._effect, **options)
        except BatchError as error:
            if error.row is None or error.row >= len(places):
                raise
            raise _RowError(places[error.row], error) from error
        self._moved(items)
        self._counts["skipped"] += len(items) - len(rows)
        self._counts["applied"] += done.rows_kept
        self._counts["duplicates"] += done.counts[Verdict.DUPLICATE]
        self._counts["dead_letters"] += refused.count

    def _set_aside(self, item: Item, error: Exception) -> None:
        """Makes a message a dead letter, and moves past it, in one transaction."""
        cause = error.cause if isinstance(error, _PlacedError) else error
        letter = DeadLetter(
            self._sink.consumer_id, item.message, type(cause).__name__, message_of(cause) or repr(cause), self._attempts
        )
        if self._dead_in_a_row >= self._dead_max:
            raise BatchError(
                f"{place_of(item.message)}: {self._dead_in_a_row + 1} messages in a row could not be applied, so it is "
                f"not the messages. The last error is {letter.error_type}: {letter.error}"
            ) from cause
        expected, positions = _moves([item])
        self._sink.skip(positions, expected=expected, work=lambda connection: self._write_dead(connection, [letter]))
        self._moved([item])
        self._dead_in_a_row += 1
        self._counts["dead_letters"] += 1
        logger.error(
            "%s: set aside after %d tries: %s: %s",
            place_of(item.message), letter.tries, letter.error_type, letter.error,
        )  # fmt: skip

    def _moved(self, items: Sequence[Item]) -> None:
        """After the commit: the positions of the partitions are behind these messages."""
        moved: dict[Partition, int] = {it.partition: it.message.offset() + 1 for it in items}
        for partition, position in moved.items():
            partition.position = position
        self._assignment.commit(moved)

    # Waiting

    def _wait_for_the_database(self, error: Exception, seconds: float) -> None:
        """Waits, and stays a member of the group meanwhile."""
        if not self._assignment.is_paused:
            self._counts["outages"] += 1
            self._assignment.pause()
        logger.warning("again in %.1f s: %s", seconds, error)
        end = time.monotonic() + seconds
        while not self._stop.is_set() and (left := end - time.monotonic()) > 0:
            # Paused partitions give no messages, but those that were assigned meanwhile may.
            self._early += self._poll(0)
            self._stop.wait(min(left, _POLL_EVERY_S))

    def _until_up(self, call: Callable[[], T]) -> T | None:
        """What the call returns once the database and Kafka answer; None where the loop is stopped before."""
        pause_s = _PAUSE_MIN_S
        while not self._stop.is_set():
            try:
                return call()
            except OUTAGES as error:
                logger.warning("again in %.1f s: %s", pause_s, error)
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return None

    @contextmanager
    def _signals(self, signals: Sequence[int]) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {it: signal.signal(it, lambda number, _: self._stopped_by(number)) for it in signals}
        try:
            yield
        finally:
            for it, handler in before.items():
                signal.signal(it, handler)

    def _stopped_by(self, number: int) -> None:
        logger.info("%s: stopping", signal.Signals(number).name)
        self.stop()


class _PlacedError(Exception):
    """An error of one message of a call. `place`: which."""

    def __init__(self, place: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.place, self.cause = place, cause


class _DecodeError(_PlacedError):
    """The decoder raised."""


class _RowError(_PlacedError):
    """The sink named a row."""


class _Refused:
    """The rows of a call that were neither kept nor duplicates, as dead letters."""

    def __init__(self, consumer_id: str, messages: Sequence[Message], write: DeadLetterWriter) -> None:
        self._consumer_id, self._write = consumer_id, write
        self._messages = {(it.topic(), it.partition(), it.offset()): it for it in messages}
        self.count = 0

    def __call__(self, connection: Connection, rows: pa.Table) -> None:
        found = rows.select(["topic", "partition", "offset", "_verdict"]).to_pylist()
        letters = [
            DeadLetter(
                self._consumer_id,
                self._messages[it["topic"], it["partition"], it["offset"]],
                it["_verdict"],
                f"the row was judged {it['_verdict']}",
                1,
            )
            for it in found
        ]
        self._write(connection, letters)
        self.count = len(letters)


def _place_of(error: Exception, count: int) -> int:
    """Which of so many messages to try alone: the one that the error names, or the middle."""
    return error.place if isinstance(error, _PlacedError) else count // 2


def _moves(items: Sequence[Item]) -> tuple[dict[str, int], dict[str, int]]:
    """By source, where it is expected before these messages, and where it is behind them."""
    expected = {it.partition.source: it.partition.position for it in items}
    return expected, {it.partition.source: it.message.offset() + 1 for it in items}
