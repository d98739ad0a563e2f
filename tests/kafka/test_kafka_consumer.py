"""ConsumerLoop with confluent-kafka's consumers, a real broker and a real PostgreSQL: the table equals the truth."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from faults.loop import CREATE, FAULTS, Round
from fencepost.consumer import AsyncConsumerLoop, ConsumerLoop
from fencepost.errors import StoreError
from fencepost.sql import AsyncSqlSink, SqlSink
from sqlalchemy import Connection, Engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from support.kafka_broker import ANSWER_SECONDS, Broker, consumer_settings
from support.postgres import PostgresServer
from support.processes import fork_server, killed_at
from support.waiting import PATIENCE_SECONDS, wait_until

STEPS = ("decode", "before commit", "after commit")
_FORK = fork_server("fencepost.consumer", "sqlalchemy", "psycopg", "confluent_kafka")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Of its own: it crashes."""
    with PostgresServer() as running:
        yield running


def consume(
    url: str, address: str, topic: str, settings: dict[str, Any], step: str | None, at: int, ready: Any
) -> None:
    """A consumer process, until it gets a signal or kills itself at the step of its transaction `at`. `ready`: an event
    that is set once the loop can outlive an outage."""
    engine = sqlalchemy.create_engine(url)
    reach = killed_at(step, at)

    class Dying(Consumer):
        def commit(self, **more: Any) -> Any:
            reach("after commit")
            return super().commit(**more)

    def decode(message: Any) -> dict[str, Any]:
        reach("decode")
        return dict(json.loads(message.value()))

    quick = consumer_settings(address, topic, session_timeout_ms=1000, heartbeat_interval_ms=200)
    client = Dying(quick | settings)
    sink = SqlSink(engine, "orders", "billing", policy="kafka_offsets", columns="kafka")
    sqlalchemy.event.listen(engine, "commit", lambda _: reach("before commit"))
    loop = ConsumerLoop(client, sink, [topic], decode=decode, attempts=2, batch_max=7, linger_s=0.01)
    ready.set()
    loop.run()
    engine.dispose()


def consume_async(
    url: str, address: str, topic: str, settings: dict[str, Any], step: str | None, at: int, ready: Any
) -> None:
    """The same with aiokafka's consumer, on an event loop."""
    reach = killed_at(step, at)

    class Dying(AIOKafkaConsumer):
        async def commit(self, offsets: Any = None) -> None:
            reach("after commit")
            await super().commit(offsets)

    def decode(message: Any) -> dict[str, Any]:
        reach("decode")
        return dict(json.loads(message.value()))

    async def run() -> None:
        client = Dying(
            bootstrap_servers=address,
            group_id=topic,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            session_timeout_ms=1000,
            heartbeat_interval_ms=200,
            rebalance_timeout_ms=10_000,
            **{key.replace(".", "_"): value for key, value in settings.items() if key == "group.instance.id"},
        )
        engine = create_async_engine(url)
        sink = await AsyncSqlSink.open(engine, "orders", "billing", policy="kafka_offsets", columns="kafka")
        sqlalchemy.event.listen(engine.sync_engine, "commit", lambda _: reach("before commit"))
        options: dict[str, Any] = {"decode": decode, "attempts": 2, "batch_max": 7, "linger_s": 0.01}
        loop = await AsyncConsumerLoop.open(client, sink, [topic], **options)
        ready.set()
        await loop.run()
        await engine.dispose()

    asyncio.run(run())


CONSUMERS = {"confluent-kafka": consume, "aiokafka": consume_async}


class Orders:
    """A topic of two partitions that a transactional producer fills, and what consumers make of it."""

    def __init__(self, broker: Broker, server: PostgresServer, topic: str, client: str = "confluent-kafka") -> None:
        self.broker, self.topic, self.consume = broker, f"{topic}-{client}", CONSUMERS[client]
        topic = self.topic
        self.url = server.new_database()
        self.engine: Engine = sqlalchemy.create_engine(self.url)
        with self.engine.begin() as connection:
            connection.execute(text(CREATE))
        broker.create(topic, 2)
        self.producer = broker.producer(**{"transactional.id": topic})
        self.producer.init_transactions(ANSWER_SECONDS)
        self.sent: list[int] = []

    def send(self, count: int, *, poison: int = 0, aborted: bool = False) -> None:
        """A transaction."""
        self.producer.begin_transaction()
        for number in range(len(self.sent), len(self.sent) + count):
            self.producer.produce(self.topic, json.dumps({"number": number}), partition=number % 2)
            if not aborted:
                self.sent.append(number)
        for _ in range(poison):
            self.producer.produce(self.topic, "no JSON", partition=0)
        if aborted:
            self.producer.flush(ANSWER_SECONDS)
            self.producer.abort_transaction(ANSWER_SECONDS)
        else:
            self.producer.commit_transaction(ANSWER_SECONDS)

    def start(self, step: str | None = None, at: int = 0, **settings: Any) -> Any:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        ready = _FORK.Event()
        of_topic = (self.url, self.broker.address, self.topic)
        process = _FORK.Process(target=self.consume, args=(*of_topic, named, step, at, ready))
        process.start()
        wait_until(lambda: ready.is_set() or not process.is_alive(), "a consumer does not begin")
        return process

    def ask(self, query: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query)).scalars())

    def stored(self) -> list[int]:
        return self.ask("SELECT number FROM orders ORDER BY number")

    def wait(self) -> None:
        wait_until(lambda: len(self.stored()) >= len(self.sent), "not all is applied")


def end(process: Any) -> None:
    """A clean stop."""
    process.terminate()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0


@pytest.mark.parametrize("client", CONSUMERS)
def test_two_consumers_a_rebalance_a_kill_and_a_crash_of_the_database(
    broker: Broker, server: PostgresServer, client: str
) -> None:
    orders = Orders(broker, server, "orders-of-two", client)
    cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
    for _ in range(5):
        orders.send(10)
    orders.send(4, aborted=True)
    first = orders.start(**cooperative)
    wait_until(lambda: len(orders.stored()) > 10, "the first one does not begin")
    orders.send(30, poison=1)
    second = orders.start(**cooperative)
    for _ in range(5):
        orders.send(10)
    orders.wait()

    server.halt()
    orders.send(20)
    server.start_again()
    orders.engine.dispose()
    orders.wait()

    first.kill()
    first.join()
    orders.send(20)
    orders.wait()
    end(second)
    assert orders.stored() == orders.sent
    assert orders.ask("SELECT error_type FROM fencepost_dead_letters") == ["JSONDecodeError"]
    assert orders.ask("SELECT more FROM fencepost_claims") == [None, None]
    orders.engine.dispose()


def new_client(orders: Orders, strategy: str = "cooperative-sticky") -> Consumer:
    return Consumer(consumer_settings(orders.broker.address, orders.topic, partition_assignment_strategy=strategy))


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_messages_that_are_deleted_in_an_outage(broker: Broker, server: PostgresServer, strategy: str) -> None:
    """The loop continues after them. librdkafka refused the seek, and the loop ended."""
    orders = Orders(broker, server, f"orders-deleted-{strategy}")
    is_away = threading.Event()
    seen: list[int] = []

    def effect(_: Connection, kept: pa.Table) -> None:
        if is_away.is_set():
            raise StoreError("away")
        seen.extend(kept["number"].to_pylist())

    sink = SqlSink(orders.engine, None, "billing", policy="kafka_offsets", columns="kafka")
    options: dict[str, Any] = {"decode": lambda it: dict(json.loads(it.value())), "on_reset": "report"}
    loop = ConsumerLoop(new_client(orders, strategy), sink, [orders.topic], effect=effect, batch_max=1, **options)
    thread = threading.Thread(target=loop.run)
    thread.start()
    orders.send(10)
    wait_until(lambda: len(seen) == 10, "not all is applied")
    is_away.set()
    orders.send(40)
    wait_until(lambda: loop.metrics()["is_paused"], "no outage")
    broker.cut(orders.topic, sink.positions()[f"{orders.topic}-0"] + 15)
    is_away.clear()
    wait_until(lambda: {48, 49} <= set(seen) or not thread.is_alive(), "the last ones are not applied")
    loop.stop()
    thread.join(PATIENCE_SECONDS)
    assert [it for it in orders.sent if it % 2] == [it for it in seen if it % 2]
    assert 0 < len(orders.sent) - len(seen) <= 15
    assert len(seen) == len(set(seen))
    orders.engine.dispose()


def test_a_partition_that_moves_in_an_outage_is_read_when_it_returns(broker: Broker, server: PostgresServer) -> None:
    """A second consumer gets the partition while the first waits for the database, and releases it afterwards."""
    orders = Orders(broker, server, "orders-that-return")
    is_away, seen = threading.Event(), Counter[int]()

    def effect(_: Connection, kept: pa.Table) -> None:
        if is_away.is_set():
            raise StoreError("away")
        seen.update(kept["number"].to_pylist())

    @contextmanager
    def consuming() -> Iterator[ConsumerLoop]:
        client = new_client(orders)
        sink = SqlSink(orders.engine, None, "billing", policy="kafka_offsets", columns="kafka")
        loop = ConsumerLoop(client, sink, [orders.topic], decode=lambda it: dict(json.loads(it.value())), effect=effect)
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            yield loop
        finally:
            loop.stop()
            thread.join(PATIENCE_SECONDS)

    def wait_for(loop: ConsumerLoop, name: str, value: object) -> None:
        wait_until(lambda: loop.metrics()[name] == value, f"{name} is not {value}")

    def wait_for_all() -> None:
        wait_until(lambda: seen.keys() >= set(orders.sent), "not all is applied")

    with consuming() as first:
        orders.send(10)
        wait_for_all()
        is_away.set()
        orders.send(10)
        wait_for(first, "is_paused", True)
        with consuming() as second:
            wait_for(second, "partitions", 1)
            is_away.clear()
            wait_for_all()
            wait_for(first, "is_paused", False)
        wait_for(first, "partitions", 2)
        orders.send(10)
        wait_for_all()
    assert seen == Counter(orders.sent)
    orders.engine.dispose()


@pytest.mark.parametrize("client", CONSUMERS)
def test_killed_at_each_step(broker: Broker, server: PostgresServer, client: str) -> None:
    """With static membership under its name, the next process takes over immediately."""
    orders = Orders(broker, server, "orders-of-one", client)
    for _ in range(20):
        orders.send(5)
    for step in STEPS:
        process = orders.start(step, 3, group_instance_id="one")
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == -signal.SIGKILL
    assert 0 < len(orders.stored()) < len(orders.sent)
    last = orders.start(group_instance_id="one")
    orders.wait()
    end(last)
    assert orders.stored() == orders.sent
    assert orders.ask("SELECT more FROM fencepost_claims") == [None, None]
    orders.engine.dispose()


@pytest.mark.matrix
def test_the_loop_survives_one_fault_of_each_kind(broker: Broker, server: PostgresServer) -> None:
    """One of each kind, the broker's death too; `make faults FAMILY=loop` has a hundred long ones."""
    one = Round(broker, server, seed=7, events=3_000, more_faults=0)
    one.run()
    assert one.faults.keys() == set(FAULTS)


@pytest.mark.matrix
def test_the_tutorial(broker: Broker, server: PostgresServer, tmp_path: Path) -> None:
    """The programs of docs/consumer.md, one after the other; the consumer is killed in the middle."""
    page = (Path(__file__).parents[2] / "docs" / "consumer.md").read_text()
    programs = dict(re.findall(r"^```python no-run: [^\n]+\n# (\w+\.py)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert list(programs) == ["create.py", "produce.py", "consume.py", "kill.py", "check.py"]
    for name, program in programs.items():
        (tmp_path / name).write_text(program)
    url = server.new_database()
    environment = os.environ | {"KAFKA": broker.address, "DATABASE": url}

    def start(name: str, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", name]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **more)

    assert start("create.py").wait() == 0
    assert start("produce.py").wait() == 0
    engine = sqlalchemy.create_engine(url)

    def applied() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())

    said = start("kill.py", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).communicate(timeout=PATIENCE_SECONDS)[0]
    assert said == "exit code -9\n" * 3
    assert applied() < 19_999
    consumer = start("consume.py", stderr=subprocess.DEVNULL)
    wait_until(lambda: applied() >= 19_999, "not all is applied")
    consumer.send_signal(signal.SIGINT)
    assert consumer.wait(PATIENCE_SECONDS) == 0
    said = start("check.py", stdout=subprocess.PIPE).communicate()[0]
    assert [said] == re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    engine.dispose()
