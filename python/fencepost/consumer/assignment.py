"""The partitions that this process reads, and where it reads them from.

The positions in the database decide, not the offsets that are committed in Kafka.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from fencepost.consumer.messages import Client, Item, Message, Partition, TopicPartition, source_of
from fencepost.errors import PolicyError, SourceError, StoreError
from fencepost.sql import SqlSink

Start: TypeAlias = Literal["earliest", "latest", "committed"]
OnReset: TypeAlias = Literal["stop", "report"]

UntilUp: TypeAlias = Callable[[Callable[[], Any]], Any]
logger = logging.getLogger("fencepost.consumer")
_ANSWER_S = 10.0
_ENDS_EVERY_S = 0.5


class Assignment:
    """The partitions that the group has assigned to this process.

    Args:
        until_up: Calls a function again until the database responds. Returns None if the loop stops first.

    Attributes:
        failure: An error of a callback. The loop raises it after the client's call returns.
    """

    def __init__(self, client: Client, sink: SqlSink, start: Start, on_reset: OnReset, until_up: UntilUp) -> None:
        self._client, self._sink, self._start, self._on_reset = client, sink, start, on_reset
        self._until_up = until_up
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._ends: dict[str, int] = {}
        self._ends_read_at = float("-inf")
        self.failure: Exception | None = None
        self.is_paused = False
        self.changes = 0
        """Number of times that partitions were assigned or revoked."""

    @property
    def partitions(self) -> list[Partition]:
        """The currently assigned partitions."""
        return list(self._partitions.values())

    def owns(self, partition: Partition) -> bool:
        """Return whether the partition is still assigned, by the same assignment."""
        handle = partition.handle
        return self._partitions.get((handle.topic, handle.partition)) is partition

    def items(self, messages: Iterable[Message]) -> list[Item]:
        """Return the messages of assigned partitions whose offset is not below the position."""
        found = []
        for message in messages:
            partition = self._partitions.get((message.topic(), message.partition()))
            if partition is not None and not partition.is_seeking and message.offset() >= partition.position:
                found.append(Item(message, partition))
        return found

    # Callbacks. The client calls them in `poll` and `consume`.

    def assigned(self, _: Any, handles: list[TopicPartition]) -> None:
        """Start reading each partition at the position that the database stores."""
        self.changes += 1
        try:
            found = self._until_up(lambda: [self._placed(handle, stored) for handle, stored in self._stored(handles)])
        except Exception as error:
            self.failure = error
            return
        if found is None:  # The loop is stopping.
            return
        self._assign(handles)
        for partition in found:
            self._partitions[partition.handle.topic, partition.handle.partition] = partition
        if self.is_paused:
            self._client.pause(handles)
        else:
            # If a partition is revoked during an outage, `resume` does not include it. librdkafka keeps it paused.
            self._client.resume(handles)
        logger.info("assigned: %s", ", ".join(f"{it.source} from {it.position}" for it in found) or "nothing")

    def taken_away(self, _: Any, handles: list[TopicPartition]) -> None:
        """Remove revoked partitions. Another process applies their remaining messages."""
        self.changes += 1
        for handle in handles:
            self._partitions.pop((handle.topic, handle.partition), None)
        logger.info("revoked: %s", ", ".join(map(source_of, handles)) or "nothing")

    def _assign(self, handles: list[TopicPartition]) -> None:
        try:
            self._client.assign(handles)
        except Exception:
            # A cooperative protocol assigns increments. A client does not report which protocol it uses.
            self._client.incremental_assign(handles)

    # Start positions

    def _stored(self, handles: Sequence[TopicPartition]) -> list[tuple[TopicPartition, int]]:
        known = self._sink.positions()
        new = {source_of(it): self._start_of(it) for it in handles if source_of(it) not in known}
        if new:
            # Store them before the first message is read, so that "latest" keeps its meaning after a restart.
            known |= self._sink.begin_positions(new)
        return [(it, known[source_of(it)]) for it in handles]

    def _start_of(self, handle: TopicPartition) -> int:
        if self._start == "committed":
            try:
                (found,) = self._client.committed([handle], _ANSWER_S)
            except Exception as error:
                raise StoreError(f"{source_of(handle)}: cannot read its committed offset in Kafka: {error}") from error
            if found.offset >= 0:
                return int(found.offset)
        low, high = self._bounds(handle)
        return high if self._start == "latest" else low

    def _placed(self, handle: TopicPartition, stored: int) -> Partition:
        low, high = self._bounds(handle)
        handle.offset = stored
        if stored > high:
            raise SourceError(
                f"{source_of(handle)}: the consumer has applied it up to offset {stored}, but it ends at {high}. The "
                "topic was deleted and created again, or this is a different cluster. Use another consumer_id for it. "
                "The new id applies all messages of the topic, also those that were sent before"
            )
        if stored < low:
            handle.offset = self._passed(handle, stored, low)
        return Partition(handle, stored)

    def _passed(self, handle: TopicPartition, stored: int, low: int) -> int:
        """Return the lowest remaining offset if earlier messages were deleted before they were applied.

        Raises:
            SourceError: `on_reset` is "stop".
        """
        problem = f"{source_of(handle)}: offsets {stored} to {low - 1} were deleted before they were applied"
        if self._on_reset == "stop":
            raise SourceError(
                f"{problem}. Increase the topic's retention.ms above the longest downtime of the consumer. "
                "on_reset='report' continues after the deleted messages"
            )
        logger.error("%s; continuing at offset %d", problem, low)
        return low

    def _bounds(self, handle: TopicPartition) -> tuple[int, int]:
        try:
            found = self._client.get_watermark_offsets(handle, timeout=_ANSWER_S)
        except Exception as error:
            raise StoreError(f"{source_of(handle)}: cannot read the offset range from Kafka: {error}") from error
        if found is None:
            raise StoreError(f"{source_of(handle)}: Kafka did not return the offset range within {_ANSWER_S:g} s")
        return found

    # Seek and pause

    def refresh(self) -> None:
        """Continue at the positions in the database, where another process or a failover may have moved one.

        Raises:
            PolicyError: The database no longer has the position of an assigned partition.
        """
        stored = self._sink.positions()
        for partition in self.partitions:
            position = stored.get(partition.source)
            if position is None:
                raise PolicyError(
                    f"{partition.source}: the database no longer has the position of this partition. If it was deleted "
                    "on purpose (forget_positions), restart the consumer, which then begins at "
                    f"start={self._start!r}"
                )
            if position != partition.position:
                logger.warning("%s: position %d was moved to %d", partition.source, partition.position, position)
                self._read_again(partition, position)

    def read_again(self) -> None:
        """Go back to the positions. Messages that have arrived are dropped and fetched again."""
        for partition in self.partitions:
            self._read_again(partition, partition.position)

    def _read_again(self, partition: Partition, position: int) -> None:
        handle = partition.handle
        self._partitions[handle.topic, handle.partition] = Partition(handle, position, is_seeking=True)

    def seek(self) -> None:
        """Seek the partitions that must be read from their positions again. The next call retries a failed seek."""
        for partition in self.partitions:
            if partition.is_seeking:
                partition.handle.offset = partition.position
                try:
                    self._client.seek(partition.handle)
                except Exception as error:
                    logger.info("%s: seek to %d: %s", partition.source, partition.position, error)
                else:
                    partition.is_seeking = False

    def out_of_range(self, message: Message) -> None:
        """Handle a client error that reports a nonexistent offset.

        Raises:
            SourceError: Messages were deleted before they were applied, or the topic was created again.
        """
        partition = self._partitions.get((message.topic(), message.partition()))
        if partition is None:
            return
        handle = self._placed(partition.handle, partition.position).handle
        # librdkafka refuses a seek after this error, so assign the partition again.
        try:
            self._client.incremental_unassign([handle])
        except Exception:
            # Without a cooperative protocol, an assignment replaces all partitions.
            self._client.assign([self._placed(it.handle, it.position).handle for it in self.partitions])
        else:
            self._client.incremental_assign([handle])

    def pause(self) -> None:
        """Stop fetching. The client stays a member of the group while it is polled."""
        self.is_paused = True
        self._client.pause([it.handle for it in self.partitions])

    def resume(self) -> None:
        """Resume fetching."""
        self.is_paused = False
        self._client.resume([it.handle for it in self.partitions])

    def commit(self, partitions: Iterable[Partition]) -> None:
        """Commit the positions to Kafka for tools that show the lag. The loop reads them only for start="committed"."""
        handles = []
        for partition in partitions:
            partition.handle.offset = partition.position
            handles.append(partition.handle)
        try:
            self._client.commit(offsets=handles, asynchronous=True)
        except Exception as error:
            logger.info("the positions were not committed to Kafka: %s", error)

    def read_ends(self) -> None:
        """Read the client's cached end offsets, at most once in `_ENDS_EVERY_S` seconds.

        Only the polling thread may call this. While confluent-kafka polls continuously, other threads wait.
        """
        now = time.monotonic()
        if now - self._ends_read_at < _ENDS_EVERY_S:
            return
        self._ends_read_at = now
        found = {it.source: self._client.get_watermark_offsets(it.handle, cached=True) for it in self.partitions}
        self._ends = {source: bounds[1] for source, bounds in found.items() if bounds is not None and bounds[1] >= 0}

    def lag(self) -> dict[str, int]:
        """Return the number of offsets between position and last known end, by source. Thread-safe."""
        ends = self._ends
        return {it.source: max(0, ends[it.source] - it.position) for it in self.partitions if it.source in ends}
