"""The loop for asyncio: `ConsumerLoop` in a greenlet of SQLAlchemy, with aiokafka's consumer as its client.

aiokafka tells of rebalances whenever they happen, confluent-kafka within `poll`, which is what the loop is made for. So
a rebalance waits here until the loop polls, and aiokafka waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.util import await_only, greenlet_spawn

from fencepost.consumer.loop import ConsumerLoop
from fencepost.sql import AsyncSqlSink
from fencepost.sql.asynchronous import AsyncEffect

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, ConsumerRecord
    from prometheus_client import Metric

logger = logging.getLogger("fencepost.consumer")
_TURN_S = 0.1
"""How often a poll that waits for messages looks for rebalances."""


class AsyncConsumerLoop:
    """Applies the messages of Kafka topics to a database, each once, without blocking the event loop.

    `client`: an `aiokafka.AIOKafkaConsumer` of the caller, not started, without topics, with
    `enable_auto_commit=False` and `auto_offset_reset="none"`; the loop starts and stops it. `sink`: an `AsyncSqlSink`.
    `effect(connection, kept)` may be a coroutine function, and gets an `AsyncConnection`; `decode(message)` is a plain
    function, called with a message as confluent-kafka has it. All else is as of `ConsumerLoop`.

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
        """A loop with the options of `ConsumerLoop`, and its errors."""
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
        """Consumes until `stop` is called or one of the signals arrives; then leaves the group. See `ConsumerLoop`."""
        with self._handled(signals):
            await greenlet_spawn(self._loop.run, signals=())

    def stop(self) -> None:
        """Makes `run` return after the transaction that it is in. From the thread of the event loop."""
        self._stopping.set()

    def metrics(self) -> dict[str, Any]:
        """As `ConsumerLoop.metrics`."""
        return self._loop.metrics()

    def collect(self) -> Iterator[Metric]:
        """As `ConsumerLoop.collect`."""
        return self._loop.collect()

    @contextmanager
    def _handled(self, signals: Sequence[int]) -> Iterator[None]:
        running = asyncio.get_running_loop()
        for number in signals:
            running.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in signals:
                running.remove_signal_handler(number)


class _Stopping:
    """An event of asyncio that a greenlet waits on."""

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


# aiokafka's consumer as confluent-kafka's


@dataclass
class _Handle:
    """A partition, and an offset in it."""

    topic: str
    partition: int
    offset: int = -1


class _Record:
    """A record as a message of confluent-kafka."""

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
        """The kind (1: of the producer, 2: of the log) and ms, (0, -1) for none."""
        kind = self._record.timestamp_type
        return (0, -1) if kind not in (0, 1) else (kind + 1, self._record.timestamp)

    def error(self) -> None:
        return None


class _OutOfRangeMessage:
    """As confluent-kafka tells that the offset to read does not exist: a message with an error."""

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
    """aiokafka's consumer with the calls of confluent-kafka's, which wait in a greenlet."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._rebalances: asyncio.Queue[tuple[Callable[..., None], list[_Handle], asyncio.Future[None]]]
        self._rebalances = asyncio.Queue()
        self._is_waiting = asyncio.Event()
        self._bounds: dict[tuple[str, int], tuple[int, int]] = {}
        self._uncommitted: dict[Any, int] = {}
        self._committing: asyncio.Task[None] | None = None

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        from aiokafka import ConsumerRebalanceListener

        rebalances = self._rebalances

        async def served(call: Callable[..., None], partitions: Iterable[Any]) -> None:
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
        # It returns once the first partitions are assigned, for which it waits here.
        starting = asyncio.ensure_future(self._consumer.start())
        while not starting.done():
            await_only(self._first_of(starting))
            self._serve()
        starting.result()

    async def _first_of(self, waiting: asyncio.Future[Any]) -> None:
        """Returns when that is done, or a rebalance begins."""
        rebalance = asyncio.ensure_future(self._is_waiting.wait())
        await asyncio.wait({waiting, rebalance}, return_when=asyncio.FIRST_COMPLETED)
        rebalance.cancel()

    def poll(self, timeout: float) -> Any:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        """Serves rebalances, and returns messages; none where there was a rebalance."""
        end = asyncio.get_running_loop().time() + timeout
        while True:
            if self._serve():
                return []
            left = end - asyncio.get_running_loop().time()
            found = await_only(self._fetch(num_messages, max(0.0, min(left, _TURN_S))))
            if found or left <= _TURN_S:
                return found

    def _serve(self) -> bool:
        """Calls what waits for a rebalance, and lets aiokafka go on."""
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
        from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

        try:
            found = await self._until_rebalance(
                self._consumer.getmany(timeout_ms=round(timeout_s * 1000), max_records=count)
            )
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            places = error.args[0] if isinstance(error.args[0], dict) else {}
            return [_OutOfRangeMessage(it.topic, it.partition) for it in places]
        return [_Record(record) for records in found.values() for record in records]

    async def _until_rebalance(self, fetching: Coroutine[Any, Any, dict[Any, Any]]) -> dict[Any, Any]:
        """What is fetched; nothing where a rebalance begins, which the fetch would wait for."""
        fetch = asyncio.ensure_future(fetching)
        await self._first_of(fetch)
        if not fetch.done():
            fetch.cancel()
        try:
            return await fetch
        except asyncio.CancelledError:
            if self._is_waiting.is_set():
                return {}
            raise

    def assign(self, partitions: list[Any]) -> None:
        """The group has assigned them already: they begin at these offsets."""
        for handle in partitions:
            self.seek(handle)

    incremental_assign = assign

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
        """One commit at a time is on its way; what comes meanwhile goes with the next."""
        self._uncommitted |= {_of(it): it.offset for it in offsets}
        if self._committing is None or self._committing.done():
            self._committing = asyncio.get_running_loop().create_task(self._commit())

    async def _commit(self) -> None:
        while self._uncommitted:
            offsets, self._uncommitted = self._uncommitted, {}
            try:
                await self._consumer.commit(offsets)
            except Exception as error:
                logger.info("the positions were not stored in Kafka: %s", error)

    def close(self) -> None:
        """Leaves the group. What it waits for meanwhile, a rebalance among them, is nobody's business any more."""
        if self._committing is not None:
            await_only(self._committing)
        while not self._rebalances.empty():
            self._rebalances.get_nowait()[2].set_result(None)
        await_only(self._consumer.stop())


def _of(handle: Any) -> Any:
    """aiokafka's name of a partition."""
    from aiokafka import TopicPartition

    return TopicPartition(handle.topic, handle.partition)
