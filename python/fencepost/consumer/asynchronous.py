"""The consumer loop for asyncio: `ConsumerLoop` in a greenlet of SQLAlchemy, with aiokafka's consumer as its client.

aiokafka reports a rebalance at any time. confluent-kafka reports it within `poll`, and `ConsumerLoop` relies on this.
So this module queues a rebalance until the loop polls, and aiokafka waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.util import await_only, greenlet_spawn

from fencepost.consumer.loop import ConsumerLoop
from fencepost.errors import StoreError
from fencepost.sql import AsyncSqlSink
from fencepost.sql.asynchronous import AsyncEffect

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, ConsumerRecord
    from prometheus_client import Metric

logger = logging.getLogger("fencepost.consumer")
_TURN_S = 0.1
"""Interval at which a waiting poll checks for rebalances."""
_COMMIT_S = 5.0
"""Maximum time that a stopping loop waits for its last commit to Kafka, which only tools read."""


class AsyncConsumerLoop:
    """Applies each message of Kafka topics once to a database, without blocking the event loop.

    Create it with `open`:
        loop = await AsyncConsumerLoop.open(client, sink, ["orders"], decode=decode)
        await loop.run()
    """

    def __init__(self, loop: ConsumerLoop, stopping: _Stopping) -> None:
        self._loop, self._stopping = loop, stopping

    @classmethod
    async def open(
        cls,
        client: AIOKafkaConsumer,
        sink: AsyncSqlSink,
        topics: Sequence[str],
        *,
        effect: AsyncEffect | None = None,
        **options: Any,
    ) -> AsyncConsumerLoop:
        """Return a new loop.

        Args:
            client: An `aiokafka.AIOKafkaConsumer` that is not started and has no topics, with
                `enable_auto_commit=False` and `auto_offset_reset="none"`. The loop starts and stops it.
            sink: As in `ConsumerLoop`, but an `AsyncSqlSink`.
            topics: The topics to read.
            effect: As in `ConsumerLoop`, but it receives an `AsyncConnection` and may be a coroutine function.
            options: The other arguments of `ConsumerLoop`. `decode` is a plain function. It receives a message with
                the methods of `confluent_kafka.Message`.

        Raises:
            PolicyError, StoreError: As `ConsumerLoop`.
        """
        stopping = _Stopping()
        loop = await greenlet_spawn(
            ConsumerLoop,
            _Client(client),
            sink.sink,
            topics,
            effect=sink.blocking(effect),
            stopping=stopping,
            **options,
        )
        return cls(loop, stopping)

    async def run(self, *, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Consume until `stop` is called or one of the signals arrives, then leave the group.

        Signals are handled in the main thread only. Raises the errors of `ConsumerLoop.run`.
        """
        with self._handled(signals):
            await greenlet_spawn(self._loop.run, signals=())

    def stop(self) -> None:
        """Make `run` return after its current transaction. Call it in the thread of the event loop."""
        self._stopping.set()

    def metrics(self) -> dict[str, Any]:
        """Return the result of `ConsumerLoop.metrics`."""
        return self._loop.metrics()

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of `ConsumerLoop.collect`."""
        return self._loop.collect()

    @contextmanager
    def _handled(self, signals: Sequence[int]) -> Iterator[None]:
        running = asyncio.get_running_loop()
        handled = signals if threading.current_thread() is threading.main_thread() else ()
        for number in handled:
            running.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in handled:
                running.remove_signal_handler(number)


class _Stopping:
    """An asyncio event on which a greenlet can wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        async def wait() -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), timeout)

        await_only(wait())
        return self.is_set()


# Adapters from aiokafka to the interface of confluent-kafka


@dataclass
class _Handle:
    """A partition and an offset in it."""

    topic: str
    partition: int
    offset: int = -1


class _Record:
    """A record of aiokafka with the methods of `confluent_kafka.Message`."""

    def __init__(self, record: ConsumerRecord[Any, Any]) -> None:
        self._record = record

    def topic(self) -> str:
        return str(self._record.topic)

    def partition(self) -> int:
        return int(self._record.partition)

    def offset(self) -> int:
        return int(self._record.offset)

    def key(self) -> bytes | None:
        return self._record.key  # type: ignore[no-any-return]

    def value(self) -> bytes | None:
        return self._record.value  # type: ignore[no-any-return]

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        return self._record.headers or None

    def timestamp(self) -> tuple[int, int]:
        """Return the kind (1: set by the producer, 2: set by the log) and ms, or (0, -1) if there is no timestamp."""
        kind = self._record.timestamp_type
        return (0, -1) if kind not in (0, 1) else (kind + 1, self._record.timestamp)

    def error(self) -> None:
        return None


class _OutOfRangeMessage:
    """A message with an error: the offset to read does not exist. confluent-kafka reports it in this form."""

    def __init__(self, topic: str, partition: int) -> None:
        self._place = topic, partition

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def error(self) -> _OutOfRangeMessage:
        return self

    def name(self) -> str:
        return "_AUTO_OFFSET_RESET"

    def fatal(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self._place[0]}-{self._place[1]}: the offset to read does not exist"


class _Client:
    """aiokafka's consumer with the methods of `confluent_kafka.Consumer`, which wait in a greenlet."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._rebalances: asyncio.Queue[tuple[Callable[..., None], list[_Handle], asyncio.Future[None]]]
        self._rebalances = asyncio.Queue()
        self._is_waiting = asyncio.Event()
        self._bounds: dict[tuple[str, int], tuple[int, int]] = {}
        self._uncommitted: dict[Any, int] = {}
        self._committing: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None
        self._is_closing = False

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        from aiokafka import ConsumerRebalanceListener

        rebalances = self._rebalances

        async def served(call: Callable[..., None], partitions: Iterable[Any]) -> None:
            if self._is_closing:
                return  # Nobody serves it: the loop waits for aiokafka to stop, which waits for this.
            done = asyncio.get_running_loop().create_future()
            rebalances.put_nowait((call, [_Handle(it.topic, it.partition) for it in sorted(partitions)], done))
            self._is_waiting.set()
            await done

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None:
                await served(callbacks["on_revoke"], revoked)

            async def on_partitions_assigned(self, assigned: Any) -> None:
                await served(callbacks["on_assign"], assigned)

        self._consumer.subscribe(topics, listener=Listener())
        # `start` returns after the first assignment, which `consume` serves.
        self._starting = asyncio.ensure_future(self._consumer.start())

    def poll(self, timeout: float) -> Any:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        """Serve rebalances, or return messages. Return no messages after a rebalance."""
        end = asyncio.get_running_loop().time() + timeout
        while True:
            if self._serve():
                return []
            left = end - asyncio.get_running_loop().time()
            found = await_only(self._fetch(num_messages, max(0.0, min(left, _TURN_S))))
            if found or left <= _TURN_S:
                return found

    def _serve(self) -> bool:
        """Call the callbacks of queued rebalances, then let aiokafka continue. Return whether there were any."""
        was_any = False
        self._is_waiting.clear()
        while not self._rebalances.empty():
            was_any = True
            call, handles, done = self._rebalances.get_nowait()
            try:
                call(self, handles)
            finally:
                if not done.done():
                    done.set_result(None)
        return was_any

    async def _fetch(self, count: int, timeout_s: float) -> list[Any]:
        from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

        try:
            found = await self._until_rebalance(self._started_and_fetched(count, timeout_s))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            places = error.args[0] if isinstance(error.args[0], dict) else {}
            return [_OutOfRangeMessage(it.topic, it.partition) for it in places]
        except KafkaError as error:  # aiokafka repeats by itself what may succeed
            raise StoreError(f"the Kafka client reports a fatal error: {error}") from error
        return [_Record(record) for records in found.values() for record in records]

    async def _started_and_fetched(self, count: int, timeout_s: float) -> dict[Any, Any]:
        """Return the next records. Return none while the client is starting. Raise the error of its start."""
        assert self._starting is not None, "the client is not subscribed"
        if not self._starting.done():
            await asyncio.wait({self._starting}, timeout=timeout_s)
            return {}
        self._starting.result()
        return await self._consumer.getmany(  # type: ignore[no-any-return]
            timeout_ms=round(timeout_s * 1000), max_records=count
        )

    async def _until_rebalance(self, fetching: Coroutine[Any, Any, dict[Any, Any]]) -> dict[Any, Any]:
        """Return the fetched records. Cancel the fetch and return none if a rebalance begins, as it would block it."""
        fetch = asyncio.ensure_future(fetching)
        rebalance = asyncio.ensure_future(self._is_waiting.wait())
        await asyncio.wait({fetch, rebalance}, return_when=asyncio.FIRST_COMPLETED)
        rebalance.cancel()
        if not fetch.done():
            fetch.cancel()
        try:
            return await fetch
        except asyncio.CancelledError:
            if self._is_waiting.is_set():
                return {}
            raise

    def assign(self, partitions: list[Any]) -> None:
        """Seek to the offsets. aiokafka has already assigned the partitions."""
        for handle in partitions:
            self.seek(handle)

    incremental_assign = assign

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Do nothing: aiokafka seeks in a partition whose offset does not exist."""

    def seek(self, partition: Any) -> None:
        self._consumer.seek(_of(partition), partition.offset)

    def pause(self, partitions: list[Any]) -> None:
        self._consumer.pause(*map(_of, partitions))

    def resume(self, partitions: list[Any]) -> None:
        self._consumer.resume(*map(_of, partitions))

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        async def ask() -> list[_Handle]:
            found = [(it, await self._consumer.committed(_of(it))) for it in partitions]
            return [_Handle(it.topic, it.partition, -1 if offset is None else offset) for it, offset in found]

        return await_only(asyncio.wait_for(ask(), timeout))

    def get_watermark_offsets(
        self, partition: Any, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int] | None:
        place = _of(partition)
        if cached:
            end = self._consumer.highwater(place) if place in self._consumer.assignment() else None
            return self._bounds.get(place, (0, -1)) if end is None else (0, end)

        async def ask() -> tuple[int, int]:
            first = await self._consumer.beginning_offsets([place])
            last = await self._consumer.end_offsets([place])
            return first[place], last[place]

        self._bounds[place] = await_only(asyncio.wait_for(ask(), timeout))
        return self._bounds[place]

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        """Start a commit. At most one runs at a time; later offsets are part of the next."""
        self._uncommitted |= {_of(it): it.offset for it in offsets}
        if self._committing is None or self._committing.done():
            self._committing = asyncio.get_running_loop().create_task(self._commit())

    async def _commit(self) -> None:
        while self._uncommitted:
            offsets, self._uncommitted = self._uncommitted, {}
            try:
                await self._consumer.commit(offsets)
            except Exception as error:
                logger.info("the positions were not committed to Kafka: %s", error)

    def close(self) -> None:
        """Leave the group. Rebalances that are still queued, and those that follow, are dropped."""
        self._is_closing = True
        if self._starting is not None:
            self._starting.cancel()
            await_only(asyncio.wait({self._starting}))
        if self._committing is not None:
            # While Kafka does not respond, aiokafka commits until it is stopped.
            await_only(asyncio.wait({self._committing}, timeout=_COMMIT_S))
            self._committing.cancel()
        while not self._rebalances.empty():
            done = self._rebalances.get_nowait()[2]
            if not done.done():
                done.set_result(None)
        await_only(self._consumer.stop())


def _of(handle: Any) -> Any:
    """Return aiokafka's `TopicPartition`."""
    from aiokafka import TopicPartition

    return TopicPartition(handle.topic, handle.partition)
