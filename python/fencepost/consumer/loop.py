"""The consumer loop: poll, decode, apply once, move the position.

One database transaction applies a message, or writes it as a dead letter, and moves the position of its partition.
The transaction first checks that the position is the expected one (`expected=`). So the process may die at any time.
Two processes may also work on the same partition during a rebalance: the later transaction is refused, and its
process reads the position again.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
from fencepost.inputs import is_integer
from fencepost.sql import SqlSink
from fencepost.sql.sink import Effect
from fencepost.stopping import StopEvent
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

T = TypeVar("T")
logger = logging.getLogger("fencepost.consumer")

OUTAGES = (StoreError, OutcomeUnknownError)
"""Errors of an outage. The loop makes the same call again later."""
MISTAKES = (CapacityError, PolicyError, SchemaError, SinkError, UndoneError)
"""Errors that no message causes. The loop stops."""
_IDLE_S = 0.5
_POLL_EVERY_S = 0.1
_REFRESH_EVERY_S = 60.0
"""Interval at which the positions are read again. After a failover to a replica that lags, they may be lower."""
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 5.0


class Stopping(Protocol):
    """`threading.Event`: set when the loop must stop."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class ConsumerLoop:
    """Applies each message of Kafka topics once to a database, until it is stopped.

    Args:
        client: A `confluent_kafka.Consumer` with `enable.auto.commit` false and `auto.offset.reset` "error". The loop
            subscribes it and closes it.
        sink: The `SqlSink` that recognizes duplicates and receives the rows. The identity can be
            (topic, partition, offset), with `policy="kafka_offsets", columns="kafka"`. It can also be a message id or
            the producer's sequence numbers, from columns of the decoder.
        topics: The topics to read.
        decode: `decode(message)` returns the columns of a message without topic, partition and offset, or None to
            skip the message. It raises `StoreError` for an outage of a service that it needs.
        effect: `effect(connection, kept)` receives the new rows, as in `SqlSink.handle`. It raises `StoreError` for an
            outage of a service that it needs. None: rows go to the sink's table.
        attempts: Number of times that a failing message is tried alone, in a transaction of its own. After them it
            becomes a dead letter.
        dead_letters: Writes dead letters. None: to the table `fencepost_dead_letters` of the sink's database.
        dead_letters_max: Number of consecutive messages that failed and became dead letters, after which another failed
            message stops the loop. Rows that the policy refused do not count. So many failures have a cause other than
            the messages.
        start: Where to start a partition without a position in the database: "earliest", "latest", or "committed",
            the group's committed offset in Kafka ("earliest" if there is none).
        on_reset: What to do if messages were deleted before they were applied: "stop", or "report" and continue.
        batch_max: Maximum number of messages in a transaction.
        linger_s: Time to wait for more messages after the first.
        stopping: The event that stops the loop. None creates one.

    Raises:
        PolicyError: A setting is invalid.
        StoreError: The database does not respond.
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
            raise PolicyError(f"topics={topics!r}: expected a list of one or more topics")
        for name, value in (("attempts", attempts), ("batch_max", batch_max), ("dead_letters_max", dead_letters_max)):
            if not is_integer(value, 1):
                raise PolicyError(f"{name}={value!r}: expected an integer of 1 or more")
        for name, chosen, known in (
            ("start", start, ("earliest", "latest", "committed")),
            ("on_reset", on_reset, ("stop", "report")),
        ):
            if chosen not in known:
                raise PolicyError(f"{name}={chosen!r}: expected one of {', '.join(known)}")
        self._client, self._sink, self._topics = client, sink, list(topics)
        self._decode, self._effect = decode, effect
        self._attempts, self._batch_max, self._linger_s = attempts, batch_max, linger_s
        self._write_dead = dead_letters or to_table(sink.engine)
        self._dead_max, self._dead_in_a_row = dead_letters_max, 0
        self._stop = StopEvent() if stopping is None else stopping
        self._assignment = Assignment(client, sink, start, on_reset, self._until_up)
        self._early: list[Item] = []
        self._refreshed_at = time.monotonic()
        self._is_waiting = False
        self._counts = dict.fromkeys(ABOUT, 0)

    def stop(self) -> None:
        """Make `run` return after its current transaction. Callable from any thread and from a signal handler."""
        self._stop.set()

    def run(self, *, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Consume until `stop` is called or one of the signals arrives, then leave the group.

        Signals are handled in the main thread only. The next process reads messages that were not applied.

        Raises:
            SourceError: Messages were deleted before they were applied, or a topic was created again.
            BatchError: More than `dead_letters_max` consecutive messages could not be applied.
            StoreError: The Kafka client reports a fatal error.
            StateConflictError: The effect raised it.
            CapacityError, PolicyError, SchemaError, SinkError, UndoneError: As `SqlSink.apply` and `handle`.
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
        """Return the counters of this process, `is_paused`, `partitions`, and `lag` by source.

        `fencepost.consumer.metrics.ABOUT` lists the counters. Thread-safe. Queries neither Kafka nor the database.
        """
        found: dict[str, Any] = dict(self._counts)
        assignment = self._assignment
        found["rebalances"] = assignment.changes
        return found | {
            "is_paused": assignment.is_paused or self._is_waiting,
            "partitions": len(assignment.partitions),
            "lag": assignment.lag(),
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as families of `prometheus_client`. See `fencepost.metrics`."""
        return families_of(self._sink.consumer_id, self.metrics())

    # Messages

    def _collect(self) -> list[Item]:
        """Return the next messages to apply."""
        if time.monotonic() - self._refreshed_at >= _REFRESH_EVERY_S:
            self._refresh()
        self._assignment.seek()
        early, self._early = self._early, []
        first = self._poll(0 if early else _IDLE_S)
        if not first and not early:
            return []
        changes = self._assignment.changes
        more = self._accepted(self._client.consume(self._batch_max, self._linger_s))
        if self._assignment.changes != changes:
            # Some of the messages may have been fetched before the change.
            self._assignment.read_again()
            return []
        return self._still_mine([*early, *first, *more])

    def _poll(self, timeout_s: float) -> list[Item]:
        message = self._client.poll(timeout_s)
        self._assignment.read_ends()
        return [] if message is None and self._assignment.failure is None else self._accepted([message])

    def _accepted(self, messages: Sequence[Message | None]) -> list[Item]:
        """Return the messages that this process must apply. Raise the errors of callbacks and of the client."""
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
            raise StoreError(f"the Kafka client reports a fatal error: {error}")
        if error.name() == "_AUTO_OFFSET_RESET":
            self._until_up(lambda: self._assignment.out_of_range(message))

    def _still_mine(self, items: Sequence[Item]) -> list[Item]:
        """Return the messages that are not applied and whose partitions are still assigned."""
        return [
            it for it in items if self._assignment.owns(it.partition) and it.message.offset() >= it.partition.position
        ]

    # Applying

    def _apply(self, items: list[Item]) -> None:
        """Apply the messages or write them as dead letters. Wait while the database does not respond."""
        pause_s = _PAUSE_MIN_S
        while items and not self._stop.is_set():
            try:
                self._apply_in_parts(items)
                break
            except StateConflictError as error:
                self._counts["conflicts"] += 1
                logger.warning("%s", error)
                self._refresh()
                if not self._stop.is_set() and all(self._assignment.owns(it.partition) for it in items):
                    raise  # No position has moved: the effect raised it, and would again.
            except OUTAGES as error:
                self._wait_for_the_database(error, pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            # The client does not return these messages again. Keep those of partitions that have not moved.
            items = self._still_mine(items)
        if self._assignment.is_paused:
            self._refresh()

    def _apply_in_parts(self, items: list[Item]) -> None:
        """Apply the messages in one transaction. If it fails, split them at the message in the error, or in halves."""
        waiting = [items]
        while waiting and not self._stop.is_set():
            part = waiting.pop()
            error = self._failure_of(part)
            if error is not None and len(part) == 1:
                self._try_again(part[0], error)
            elif error is not None:
                logger.info("%d messages failed together (%s); applying them in parts", len(part), error)
                at = error.place if isinstance(error, _PlacedError) else len(part) // 2
                pieces = (part[:at], part[at : at + 1], part[at + 1 :])
                waiting += [it for it in reversed(pieces) if it]

    def _try_again(self, item: Item, error: Exception) -> None:
        """Retry a message that failed by itself, up to `attempts` tries in all. Then write it as a dead letter."""
        for attempt in range(1, self._attempts):
            self._counts["retries"] += 1
            self._stop.wait(min(_PAUSE_MAX_S, _PAUSE_MIN_S * 2**attempt))
            if self._stop.is_set():
                return
            again = self._failure_of([item])
            if again is None:
                return
            error = again
        self._reject(item, error)

    def _failure_of(self, items: Sequence[Item]) -> Exception | None:
        """Apply the messages in one transaction. Return the error that one of them causes. Raise other errors."""
        try:
            self._apply_once(items)
        except (*OUTAGES, *MISTAKES, StateConflictError):
            raise
        except Exception as error:
            return error
        self._dead_in_a_row = 0
        return None

    def _apply_once(self, items: Sequence[Item]) -> None:
        """Apply the messages in one transaction. Raises `_PlacedError` and the errors of the sink."""
        rows, places = [], []
        for place, item in enumerate(items):
            try:
                row = row_of(item.message, self._decode)
            except (*OUTAGES, *MISTAKES):
                raise
            except Exception as error:
                raise _PlacedError(place, error) from error
            if row is not None:
                rows.append(row)
                places.append(place)
        expected, positions = _moves(items)
        if not rows:
            self._sink.skip(positions, expected=expected)
            self._moved(items)
            self._counts["skipped"] += len(items)
            return
        refused = partial(self._write_refused, [items[it].message for it in places])
        options: dict[str, Any] = {"positions": positions, "expected": expected, "refused": refused}
        try:
            if self._effect is None:
                done = self._sink.apply(rows, **options)
            else:
                done = self._sink.handle(rows, self._effect, **options)
        except BatchError as error:
            if error.row is None or error.row >= len(places):
                raise
            raise _PlacedError(places[error.row], error) from error
        self._moved(items)
        self._counts["skipped"] += len(items) - len(rows)
        self._counts["applied"] += done.rows_kept
        self._counts["duplicates"] += done.counts[Verdict.DUPLICATE]
        dropped = 0 if self._sink.on_conflict == "quarantine" else done.conflicts or 0
        self._counts["dead_letters"] += len(done) - done.rows_kept - done.duplicates - dropped

    def _write_refused(self, messages: Sequence[Message], connection: Connection, rows: pa.Table) -> None:
        """Write the refused rows of a call, which are neither kept nor duplicates, as dead letters."""
        of_place = {(it.topic(), it.partition(), it.offset()): it for it in messages}
        letters = [
            DeadLetter(
                self._sink.consumer_id,
                of_place[it["topic"], it["partition"], it["offset"]],
                it["_verdict"],
                f"the verdict of the row is {it['_verdict']}",
                1,
            )
            for it in rows.select(["topic", "partition", "offset", "_verdict"]).to_pylist()
        ]
        self._write_dead(connection, letters)

    def _reject(self, item: Item, error: Exception) -> None:
        """Write a message as a dead letter and move the position past it, in one transaction."""
        cause = error.cause if isinstance(error, _PlacedError) else error
        letter = DeadLetter(
            self._sink.consumer_id, item.message, type(cause).__name__, message_of(cause) or repr(cause), self._attempts
        )
        if self._dead_in_a_row >= self._dead_max:
            raise BatchError(
                f"{place_of(item.message)}: {self._dead_in_a_row + 1} consecutive messages could not be applied, so "
                "the cause is not a single message. All but this one are dead letters. Correct the cause and start the "
                "consumer again, which continues at this message. The last error is "
                f"{letter.error_type}: {letter.error}"
            ) from cause
        expected, positions = _moves([item])
        self._sink.skip(positions, expected=expected, work=lambda connection: self._write_dead(connection, [letter]))
        self._moved([item])
        self._dead_in_a_row += 1
        self._counts["dead_letters"] += 1
        logger.error(
            "%s: dead letter after %d tries: %s: %s",
            place_of(item.message), letter.tries, letter.error_type, letter.error,
        )  # fmt: skip

    def _moved(self, items: Sequence[Item]) -> None:
        """Move the positions in memory past these messages, after the commit."""
        moved: dict[Partition, int] = {it.partition: it.message.offset() + 1 for it in items}
        for partition, position in moved.items():
            partition.position = position
        self._assignment.commit(moved)

    # Waiting

    def _wait_for_the_database(self, error: Exception, seconds: float) -> None:
        """Wait, and keep polling so that the process stays a member of the group."""
        if not self._assignment.is_paused:
            self._counts["outages"] += 1
            self._assignment.pause()
        logger.warning("retrying in %.1f s: %s", seconds, error)
        end = time.monotonic() + seconds
        while not self._stop.is_set():
            # Paused partitions return no messages, but partitions that are assigned during the wait may. One poll at
            # least: however short the wait and however slow the process, each retry is a sign of life to the group.
            self._early += self._poll(0)
            if (left := end - time.monotonic()) <= 0:
                return
            self._stop.wait(min(left, _POLL_EVERY_S))

    def _refresh(self) -> None:
        """Continue at the positions in the database. Only messages of its own would show that a partition is behind."""
        pause_s = _PAUSE_MIN_S
        while not self._stop.is_set():
            try:
                self._assignment.refresh()
            except OUTAGES as error:
                self._wait_for_the_database(error, pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                continue
            self._refreshed_at = time.monotonic()
            if self._assignment.is_paused:
                logger.warning("the database responds again")
                self._assignment.resume()
            return

    def _until_up(self, call: Callable[[], T]) -> T | None:
        """Repeat a call until the database and Kafka respond, and return its result. Return None if the loop stops."""
        pause_s = _PAUSE_MIN_S
        while not self._stop.is_set():
            try:
                found = call()
            except OUTAGES as error:
                logger.warning("retrying in %.1f s: %s", pause_s, error)
                if not (self._is_waiting or self._assignment.is_paused):
                    self._counts["outages"] += 1
                self._is_waiting = True
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                self._is_waiting = False
                return found
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
    """The decoder raised, or the sink raised an error that names a row. `place`: the index of the message."""

    def __init__(self, place: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.place, self.cause = place, cause


def _moves(items: Sequence[Item]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the positions before and after these messages, by source."""
    expected = {it.partition.source: it.partition.position for it in items}
    return expected, {it.partition.source: it.message.offset() + 1 for it in items}
