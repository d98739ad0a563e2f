"""Which partitions this process reads, and from where: the positions of the database decide, not those of Kafka."""

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

    `until_up`: calls a function again until the database answers; None when the loop stops first. `failure`: an error
    of a callback, which the loop raises after the call of the client that it was in.
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
        """How often partitions were assigned or taken away."""

    @property
    def partitions(self) -> list[Partition]:
        """Those that are assigned now."""
        return list(self._partitions.values())

    def owns(self, partition: Partition) -> bool:
        """Whether it is still assigned, by the same assignment."""
        handle = partition.handle
        return self._partitions.get((handle.topic, handle.partition)) is partition

    def items(self, messages: Iterable[Message]) -> list[Item]:
        """The messages of assigned partitions that are at or behind the position."""
        found = []
        for message in messages:
            partition = self._partitions.get((message.topic(), message.partition()))
            if partition is not None and not partition.is_seeking and message.offset() >= partition.position:
                found.append(Item(message, partition))
        return found

    # Callbacks of the client, which calls them in `poll` and `consume`

    def assigned(self, _: Any, handles: list[TopicPartition]) -> None:
        """Begins where the database has each partition, and nowhere else."""
        self.changes += 1
        try:
            found = self._until_up(lambda: [self._placed(handle, stored) for handle, stored in self._stored(handles)])
        except Exception as error:
            self.failure = error
            return
        if found is None:  # the loop stops
            return
        self._assign(handles)
        for partition in found:
            self._partitions[partition.handle.topic, partition.handle.partition] = partition
        if self.is_paused:
            self._client.pause(handles)
        else:
            # librdkafka keeps a partition paused that was taken away in an outage, and `resume` did not reach it.
            self._client.resume(handles)
        logger.info("assigned: %s", ", ".join(f"{it.source} from {it.position}" for it in found) or "nothing")

    def taken_away(self, _: Any, handles: list[TopicPartition]) -> None:
        """Forgets the partitions: their messages that are not applied yet are another process's business."""
        self.changes += 1
        for handle in handles:
            self._partitions.pop((handle.topic, handle.partition), None)
        logger.info("taken away: %s", ", ".join(map(source_of, handles)) or "nothing")

    def _assign(self, handles: list[TopicPartition]) -> None:
        try:
            self._client.assign(handles)
        except Exception:
            # Under a cooperative protocol assignments are increments; a client does not say which protocol it has.
            self._client.incremental_assign(handles)

    # Where to begin

    def _stored(self, handles: Sequence[TopicPartition]) -> list[tuple[TopicPartition, int]]:
        known = self._sink.positions()
        new = {source_of(it): self._start_of(it) for it in handles if source_of(it) not in known}
        if new:
            # Stored before the first message is read: "latest" means the end as it is now, also after a restart.
            known |= self._sink.begin_positions(new)
        return [(it, known[source_of(it)]) for it in handles]

    def _start_of(self, handle: TopicPartition) -> int:
        if self._start == "committed":
            try:
                (found,) = self._client.committed([handle], _ANSWER_S)
            except Exception as error:
                raise StoreError(f"{source_of(handle)}: Kafka does not say what is committed: {error}") from error
            if found.offset >= 0:
                return int(found.offset)
        low, high = self._bounds(handle)
        return high if self._start == "latest" else low

    def _placed(self, handle: TopicPartition, stored: int) -> Partition:
        low, high = self._bounds(handle)
        handle.offset = stored
        if stored > high:
            raise SourceError(
                f"{source_of(handle)}: the database has applied it up to offset {stored}, but it ends at {high}: the "
                "topic was deleted and created again, or the cluster is another one. Use another consumer_id for it"
            )
        if stored < low:
            handle.offset = self._passed(handle, stored, low)
        return Partition(handle, stored)

    def _passed(self, handle: TopicPartition, stored: int, low: int) -> int:
        """The first offset that is left, where those before it were deleted unread. Raises SourceError."""
        said = f"{source_of(handle)}: offsets {stored} to {low - 1} were deleted before they were applied"
        if self._on_reset == "stop":
            raise SourceError(
                f"{said}. on_reset='report' goes on behind them; retention.ms of the topic must be longer than "
                "consumers can be away"
            )
        logger.error("%s; going on from %d", said, low)
        return low

    def _bounds(self, handle: TopicPartition) -> tuple[int, int]:
        try:
            found = self._client.get_watermark_offsets(handle, timeout=_ANSWER_S)
        except Exception as error:
            raise StoreError(f"{source_of(handle)}: Kafka does not say where it begins and ends: {error}") from error
        if found is None:
            raise StoreError(f"{source_of(handle)}: Kafka does not say within {_ANSWER_S:g} s where it begins and ends")
        return found

    # Going back, pausing

    def refresh(self) -> None:
        """Goes where the database has each partition now: another process has moved one."""
        stored = self._sink.positions()
        for partition in self.partitions:
            position = stored.get(partition.source)
            if position is None:
                raise PolicyError(f"{partition.source}: its position was forgotten while it was read: start again")
            if position != partition.position:
                logger.warning("%s: from %d on, where another process has moved it", partition.source, position)
                self._read_again(partition, position)

    def read_again(self) -> None:
        """Goes back to the positions: messages that have arrived are dropped, and fetched again."""
        for partition in self.partitions:
            self._read_again(partition, partition.position)

    def _read_again(self, partition: Partition, position: int) -> None:
        handle = partition.handle
        self._partitions[handle.topic, handle.partition] = Partition(handle, position, is_seeking=True)

    def seek(self) -> None:
        """Seeks the partitions that are to be read from their positions again. One that fails is tried again."""
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
        """Takes over an error of the client that the offset to read does not exist. Raises SourceError."""
        partition = self._partitions.get((message.topic(), message.partition()))
        if partition is None:
            return
        handle = self._placed(partition.handle, partition.position).handle
        self._client.seek(handle)

    def pause(self) -> None:
        """Fetches nothing more, and stays a member of the group as long as it is polled."""
        self.is_paused = True
        self._client.pause([it.handle for it in self.partitions])

    def resume(self) -> None:
        """Fetches again."""
        self.is_paused = False
        self._client.resume([it.handle for it in self.partitions])

    def commit(self, partitions: Iterable[Partition]) -> None:
        """Stores the positions in Kafka too, for tools that show the lag. Nothing here reads them."""
        handles = []
        for partition in partitions:
            partition.handle.offset = partition.position
            handles.append(partition.handle)
        try:
            self._client.commit(offsets=handles, asynchronous=True)
        except Exception as error:
            logger.info("the positions were not stored in Kafka: %s", error)

    def read_ends(self) -> None:
        """Reads where the client knows the partitions to end, at most once in `_ENDS_EVERY_S`.

        To be called by the thread that polls: a client of confluent-kafka lets another thread wait for as long as it is
        polled again and again.
        """
        now = time.monotonic()
        if now - self._ends_read_at < _ENDS_EVERY_S:
            return
        self._ends_read_at = now
        found = {it.source: self._client.get_watermark_offsets(it.handle, cached=True) for it in self.partitions}
        self._ends = {source: bounds[1] for source, bounds in found.items() if bounds is not None and bounds[1] >= 0}

    def lag(self) -> dict[str, int]:
        """By source, the offsets between its position and the end that was last read. From any thread."""
        ends = self._ends
        return {it.source: max(0, ends[it.source] - it.position) for it in self.partitions if it.source in ends}
