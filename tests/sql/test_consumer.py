"""ConsumerLoop over a cluster in memory and a real database: whatever happens, the table equals what was sent."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy
from aiokafka.errors import KafkaConnectionError
from fencepost.consumer import ConsumerLoop, asynchronous, to_topic
from fencepost.consumer import assignment as assignment_module
from fencepost.consumer import loop as loop_module
from fencepost.metrics import to_text
from fencepost.sql import SqlSink
from sqlalchemy import Connection, Engine, text
from sqlalchemy.util import greenlet_spawn
from support import daily
from support.databases import execute
from support.fake_kafka import Cluster, Error, FakeClient, FakeMessage
from support.processes import fork_server, killed_at
from support.waiting import PATIENCE_SECONDS

CREATE = (
    'CREATE TABLE orders (topic TEXT, partition INTEGER, "offset" BIGINT, customer TEXT NOT NULL, cents INTEGER '
    "CHECK (cents >= 0))"
)
P0, P1 = ("orders", 0), ("orders", 1)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are as long as a millisecond."""
    monkeypatch.setattr(loop_module, "_PAUSE_MIN_S", 0.0001)
    monkeypatch.setattr(loop_module, "_PAUSE_MAX_S", 0.001)


@pytest.fixture
def orders(engine: Engine) -> Engine:
    execute(engine, CREATE)
    return engine


def order(number: int) -> str:
    return json.dumps({"customer": f"c{number}", "cents": number})


def of_orders(*counts: int) -> Cluster:
    """So many orders in partition 0, and in those after it."""
    cluster = Cluster()
    for partition, count in enumerate(counts):
        cluster.send("orders", *map(order, range(count)), partition=partition)
    return cluster


def decode(message: Any) -> dict[str, Any]:
    return dict(json.loads(message.value()))


def new_sink(engine: Engine, consumer: str = "billing", **settings: Any) -> SqlSink:
    return SqlSink(engine, "orders", consumer, **{"policy": "kafka_offsets", "columns": "kafka", **settings})


def new_loop(sink: SqlSink, client: FakeClient, **settings: Any) -> ConsumerLoop:
    """One that stops when there is nothing left to read."""
    made = ConsumerLoop(client, sink, ["orders"], **{"decode": decode, **settings})  # type: ignore[arg-type]
    client.when_idle = made.stop
    return made


def stored(engine: Engine) -> list[tuple[int, int, int]]:
    """(partition, offset, cents)."""
    with engine.connect() as connection:
        return sorted(tuple(row) for row in connection.execute(text('SELECT partition, "offset", cents FROM orders')))


def dead(engine: Engine, columns: str = '"offset", error_type, tries') -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        query = f'SELECT {columns} FROM fencepost_dead_letters ORDER BY "partition", "offset"'
        query = query.replace('"', engine.dialect.identifier_preparer.initial_quote)
        return [tuple(row) for row in connection.execute(text(query))]


def truth(cluster: Cluster) -> list[tuple[int, int, int]]:
    logs = [it for log in cluster.logs.values() for it in log]
    return sorted((it.partition(), it.offset(), json.loads(it.value() or b"")["cents"]) for it in logs)


def test_each_message_once_and_claims_stay_plain(orders: Engine) -> None:
    cluster = Cluster()
    for number in range(40):
        cluster.send("orders", order(number), partition=number % 2)
        if number % 3 == 0:
            cluster.mark("orders", number % 2)
    sink = new_sink(orders)
    loop = new_loop(sink, FakeClient(cluster, [P0, P1]), batch_max=7)
    loop.run()
    assert stored(orders) == truth(cluster)
    ends = {key: log[-1].offset() + 1 for key, log in cluster.logs.items()}
    assert sink.positions() == {"orders-0": ends[P0], "orders-1": ends[P1]}
    assert cluster.committed == ends
    counts = loop.metrics()
    assert (counts["messages"], counts["applied"], counts["duplicates"]) == (40, 40, 0)
    with orders.connect() as connection:
        claims = connection.execute(text("SELECT more FROM fencepost_claims")).scalars().all()
    assert claims == [None, None]

    # The next process continues from the database, whatever Kafka has.
    cluster.committed.clear()
    cluster.send("orders", order(100))
    again = FakeClient(cluster, [P0, P1])
    new_loop(sink, again).run()
    assert stored(orders) == truth(cluster)
    assert again.is_closed


def test_messages_with_different_columns_do_not_depend_on_their_batch(orders: Engine) -> None:
    execute(orders, "ALTER TABLE orders ADD COLUMN country VARCHAR(2) DEFAULT 'NL'")
    cluster = Cluster()
    plain = {"customer": "c", "cents": 1}
    values = [plain, plain | {"country": "DE"}, plain, {"cents": 2}, plain | {"country": None}]
    cluster.send("orders", *map(json.dumps, values))
    new_loop(new_sink(orders), FakeClient(cluster, [P0])).run()
    with orders.connect() as connection:
        found = connection.execute(text('SELECT "offset", country FROM orders ORDER BY "offset"')).all()
    assert [tuple(it) for it in found] == [(0, "NL"), (1, "DE"), (2, "NL"), (4, None)]
    assert dead(orders) == [(3, "BatchError", 3)], "a message without a value that its column requires"


def test_without_a_decoder_and_with_an_effect(engine: Engine) -> None:
    cluster = Cluster()
    headers = [("trace", b"abc"), ("blob", b"\xff\x00"), ("none", None)]
    cluster.send("orders", "v", None, key=b"k", headers=headers)
    seen: list[dict[str, Any]] = []
    sink = SqlSink(engine, None, "c", policy="kafka_offsets", columns="kafka")
    client = FakeClient(cluster, [P0])
    loop = ConsumerLoop(client, sink, ["orders"], effect=lambda _, kept: seen.extend(kept.to_pylist()))  # type: ignore[arg-type]
    client.when_idle = loop.stop
    loop.run()
    written = '[["trace", "abc"], ["blob", {"hex": "ff00"}], ["none", null]]'
    common = {"topic": "orders", "partition": 0, "key": b"k", "headers": written}
    assert seen == [
        common | {"offset": 0, "value": b"v", "timestamp": 1_700_000_000_000},
        common | {"offset": 1, "value": None, "timestamp": 1_700_000_000_001},
    ]


def test_a_decoder_passes_over_messages(orders: Engine) -> None:
    cluster = Cluster()
    cluster.send("orders", order(1), None, order(2), None, None)
    sink = new_sink(orders)
    loop = new_loop(sink, FakeClient(cluster, [P0]), decode=lambda it: decode(it) if it.value() else None, batch_max=2)
    loop.run()
    assert [row[2] for row in stored(orders)] == [1, 2]
    assert sink.positions() == {"orders-0": 5}
    assert loop.metrics()["skipped"] == 3


def test_another_process_takes_over_in_mid_batch(orders: Engine) -> None:
    """The group has given the partition to another process while this one was busy: its transaction is refused."""
    cluster = of_orders(10)
    sink = new_sink(orders)
    client = FakeClient(cluster, [P0])

    def decode_slowly(message: FakeMessage) -> dict[str, Any]:
        if message.offset() == 5 and not other.metrics()["messages"]:
            other.run()
            cluster.send("orders", order(10))
        return decode(message)

    other = new_loop(sink, FakeClient(cluster, [P0]), batch_max=3)
    loop = new_loop(sink, client, decode=decode_slowly, batch_max=4)
    loop.run()
    assert stored(orders) == truth(cluster)
    counts = loop.metrics()
    assert (counts["conflicts"], counts["applied"], counts["duplicates"]) == (1, 6, 0)


def test_a_conflict_of_one_partition_loses_nothing_of_another(orders: Engine) -> None:
    """Both were in the transaction that was refused."""
    cluster = of_orders(10, 10)
    sink = new_sink(orders)

    def decode_slowly(message: FakeMessage) -> dict[str, Any]:
        if message.offset() == 5 and not other.metrics()["messages"]:
            other.run()
        return decode(message)

    other = new_loop(sink, FakeClient(cluster, [P0]))
    loop = new_loop(sink, FakeClient(cluster, [P0, P1]), decode=decode_slowly, batch_max=14)
    loop.run()
    assert stored(orders) == truth(cluster)
    assert loop.metrics()["conflicts"] == 1


def test_a_conflict_of_another_sink_stops_it(orders: Engine) -> None:
    """The loop cannot resolve it by reading its own positions again."""
    cluster = of_orders(3)
    sink = new_sink(orders)
    other = SqlSink(orders, None, "other")

    def write(connection: Connection, kept: pa.Table) -> None:
        other._consumer.hold(connection, {"elsewhere": 5})

    with pytest.raises(fp.StateConflictError, match="source 'elsewhere': expected position 5"):
        new_loop(sink, FakeClient(cluster, [P0]), effect=write).run()
    assert (stored(orders), dead(orders), sink.positions()) == ([], [], {"orders-0": 0})


def test_positions_that_are_forgotten_meanwhile_stop_it(orders: Engine) -> None:
    cluster = of_orders(4)
    sink = new_sink(orders)

    def forgetting(message: FakeMessage) -> dict[str, Any]:
        sink.forget_positions("orders-0")
        return decode(message)

    with pytest.raises(fp.PolicyError, match=r"orders-0: .* no longer has"):
        new_loop(sink, FakeClient(cluster, [P0]), decode=forgetting).run()


@pytest.mark.parametrize("failing_seeks", [0, 3])
def test_partitions_move_between_polls(orders: Engine, failing_seeks: int) -> None:
    cluster = of_orders(20, 20)
    client = FakeClient(cluster, [P0])
    client.is_cooperative = True
    client.failing_seeks = failing_seeks
    done: list[int] = []

    def moving(message: FakeMessage) -> dict[str, Any]:
        done.append(1)
        if len(done) == 5:
            client.give(P1)
        if len(done) == 16:
            client.take(P0, lost=True)
        if len(done) == 22:
            client.give(P0)
        return decode(message)

    loop = new_loop(new_sink(orders), client, decode=moving, batch_max=3)
    loop.run()
    assert stored(orders) == truth(cluster)
    assert loop.metrics()["rebalances"] == 4


class Outage:
    """A database that does not answer so many times. `meanwhile`: called with each."""

    def __init__(self, times: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.left, self.meanwhile = times, meanwhile

    def __call__(self, connection: Connection, kept: pa.Table) -> None:
        if self.left:
            self.left -= 1
            self.meanwhile()
            raise fp.StoreError("away")
        rows = kept.select(["topic", "partition", "offset", "customer", "cents"]).to_pylist()
        connection.execute(text("INSERT INTO orders VALUES (:topic, :partition, :offset, :customer, :cents)"), rows)


def test_an_outage_pauses_and_the_same_messages_are_applied(orders: Engine) -> None:
    cluster = of_orders(5)
    client = FakeClient(cluster, [P0])
    pauses: list[bool] = []
    outage = Outage(3, lambda: pauses.append(bool(client.paused)))
    loop = new_loop(new_sink(orders), client, effect=outage, batch_max=3)
    loop.run()
    assert stored(orders) == truth(cluster)
    assert pauses == [False, True, True]
    assert client.polls_while_paused >= 3
    assert client.paused == set()
    counts = loop.metrics()
    assert (counts["outages"], counts["dead_letters"], counts["is_paused"]) == (1, 0, False)


@pytest.mark.parametrize("is_outage", [True, False])
def test_a_replica_that_lacks_the_last_transactions(
    orders: Engine, monkeypatch: pytest.MonkeyPatch, is_outage: bool
) -> None:
    """Of a partition without new messages: after a failover they stayed unapplied until the next one came."""
    cluster = of_orders(3)
    client, failovers = FakeClient(cluster, [P0, P1]), []

    def failing_over(message: FakeMessage) -> dict[str, Any]:
        if message.partition() == 1 and not failovers:
            failovers.append(1)
            with orders.begin() as connection:
                for table in ("orders", "fencepost_claims"):
                    connection.execute(text(f"DELETE FROM {table}"))
                connection.execute(text("UPDATE fencepost_applied SET position = 0"))
            if is_outage:
                raise fp.StoreError("away")
            monkeypatch.setattr(loop_module, "_REFRESH_EVERY_S", 0)
        return decode(message)

    loop = new_loop(new_sink(orders), client, decode=failing_over)

    def send_to_the_other() -> None:
        client.when_idle = loop.stop
        cluster.send("orders", *map(order, range(3)), partition=1)

    client.when_idle = send_to_the_other
    loop.run()
    assert stored(orders) == truth(cluster)


def test_an_outage_without_new_messages_is_one_too(orders: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop stays a member of the group, and its metrics show the outage."""
    monkeypatch.setattr(loop_module, "_REFRESH_EVERY_S", 0)
    cluster = Cluster()
    client = FakeClient(cluster, [P0])
    loop = new_loop(new_sink(orders), client)
    real, tries = loop._assignment.refresh, iter([fp.StoreError("away")] * 2)

    def refresh() -> None:
        for error in tries:
            raise error
        real()
        monkeypatch.setattr(loop_module, "_REFRESH_EVERY_S", 600)
        cluster.send("orders", *map(order, range(3)))

    monkeypatch.setattr(loop._assignment, "refresh", refresh)
    client.when_idle = lambda: loop.stop() if stored(orders) else None
    loop.run()
    assert stored(orders) == truth(cluster)
    assert client.polls_while_paused >= 2
    assert (loop.metrics()["outages"], loop.metrics()["is_paused"]) == (1, False)


def test_partitions_move_in_an_outage(orders: Engine) -> None:
    """One partition is revoked and its messages are applied by another process; one partition is assigned."""
    cluster = of_orders(3, 3)
    client = FakeClient(cluster, [P0])
    loop = new_loop(new_sink(orders), client, effect=Outage(1, lambda: (client.take(P0), client.give(P1))))  # type: ignore[func-returns-value, arg-type, return-value]
    loop.run()
    assert stored(orders) == [it for it in truth(cluster) if it[0] == 1]
    assert P1 not in client.paused


def test_a_partition_that_was_taken_away_in_an_outage_is_read_when_it_returns(orders: Engine) -> None:
    """librdkafka leaves it paused: a pause outlives the assignment."""
    cluster = of_orders(3, 3)
    client = FakeClient(cluster, [P0, P1])
    client.is_cooperative = True
    returns = iter([lambda: client.give(P0)])
    loop = new_loop(new_sink(orders), client, effect=Outage(1, lambda: client.take(P0)))
    client.when_idle = lambda: next(returns, loop.stop)()
    loop.run()
    assert stored(orders) == truth(cluster)
    assert client.paused == set()


def test_a_poison_message_becomes_a_dead_letter_and_its_neighbors_are_applied(orders: Engine) -> None:
    cluster = Cluster()
    good = [order(number) for number in range(6)]
    cluster.send("orders", good[0], "no JSON", good[1], '{"customer": "a", "cents": 1180591620717411303424}', good[2])
    cluster.send("orders", '{"customer": null, "cents": 1}', good[3], '{"customer": "a", "cents": -1}', good[4])
    cluster.send("orders", '{"customer": "a", "cents": "five"}', good[5], key=b"k", headers=[("h", b"1")])
    sink = new_sink(orders)
    loop = new_loop(sink, FakeClient(cluster, [P0]), attempts=2)
    loop.run()
    assert [row[2] for row in stored(orders)] == list(range(6))
    assert dead(orders) == [(1, "JSONDecodeError", 2), *((it, "BatchError", 2) for it in (3, 5, 7, 9))]
    said = dict(dead(orders, '"offset", error'))
    for offset, why in {3: "'cents'", 5: "'customer'", 7: "orders", 9: "'cents'"}.items():
        assert why in said[offset]
    assert (9, b"k", b'{"customer": "a", "cents": "five"}', '[["h", "1"]]') in dead(
        orders, '"offset", "key", value, headers'
    )
    assert sink.positions() == {"orders-0": 11}
    counts = loop.metrics()
    assert counts["dead_letters"] == counts["retries"] == 5


def test_a_dead_letter_of_a_topic_that_was_created_again_replaces_none(orders: Engine) -> None:
    """Nor is it left out. That of a replay is the same message, which the table has."""
    cluster = Cluster()
    cluster.send("orders", "no JSON", order(1))
    sink = new_sink(orders)
    for _ in range(2):
        new_loop(sink, FakeClient(cluster, [P0]), attempts=1).run()
        assert dead(orders, '"offset", value') == [(0, b"no JSON")]
        sink.forget_positions("orders-0")
    created_again = Cluster()
    created_again.send("orders", "no JSON either", order(1))
    with pytest.raises(fp.BatchError, match=r"orders-0 at offset 0: .*created again"):
        new_loop(sink, FakeClient(created_again, [P0]), attempts=1).run()
    assert dead(orders, '"offset", value') == [(0, b"no JSON")]
    assert sink.positions() == {"orders-0": 0}
    execute(orders, "DELETE FROM fencepost_dead_letters")
    new_loop(sink, FakeClient(created_again, [P0]), attempts=1).run()
    assert dead(orders, '"offset", value') == [(0, b"no JSON either")]


def test_a_message_whose_decoder_fails_is_tried_again(orders: Engine) -> None:
    cluster = of_orders(4)
    failed: list[int] = []

    def flaky(message: FakeMessage) -> dict[str, Any]:
        if message.offset() == 2 and len(failed) < 2:
            failed.append(1)
            raise ConnectionError("the schema registry is slow")
        return decode(message)

    loop = new_loop(new_sink(orders), FakeClient(cluster, [P0]), decode=flaky, attempts=3)
    loop.run()
    assert stored(orders) == truth(cluster)
    assert dead(orders) == []


def test_too_many_dead_letters_in_a_row_stop_it(orders: Engine) -> None:
    """The messages are then not the cause. Messages without a dead letter are read again."""
    cluster = Cluster()
    cluster.send("orders", order(0), *["no JSON"] * 10)
    sink = new_sink(orders)
    client = FakeClient(cluster, [P0])
    loop = new_loop(sink, client, attempts=1, dead_letters_max=4)
    with pytest.raises(fp.BatchError, match="orders-0 at offset 5: 5 consecutive messages"):
        loop.run()
    assert [it[0] for it in dead(orders)] == [1, 2, 3, 4]
    assert sink.positions() == {"orders-0": 5}
    assert client.is_closed


@pytest.mark.parametrize(
    ("decoder", "error"),
    [
        (lambda it: {**decode(it), "surprise": 1}, fp.SinkError),
        (lambda it: {**decode(it), "offset": 1}, fp.PolicyError),
    ],
)
def test_an_error_that_no_message_causes_stops_the_loop(orders: Engine, decoder: Any, error: type[Exception]) -> None:
    cluster = Cluster()
    cluster.send("orders", order(1))
    sink = new_sink(orders)
    with pytest.raises(error, match=r"surprise|offset"):
        new_loop(sink, FakeClient(cluster, [P0]), decode=decoder).run()
    assert (stored(orders), dead(orders), sink.positions()) == ([], [], {"orders-0": 0})


def test_a_table_that_changes_while_the_loop_runs_stops_it(orders: Engine) -> None:
    """Each start of the loop made a hundred dead letters: no message is the cause."""
    cluster = of_orders(6)

    def renaming(message: FakeMessage) -> dict[str, Any]:
        if message.offset() == 4:
            execute(orders, "ALTER TABLE orders RENAME COLUMN customer TO buyer")
        return decode(message)

    sink = new_sink(orders)
    with pytest.raises(fp.SinkError, match=r"database refuses a statement.*customer"):
        new_loop(sink, FakeClient(cluster, [P0]), decode=renaming, batch_max=2).run()
    assert (dead(orders), sink.positions()) == ([], {"orders-0": 3})


def test_fields_that_the_table_has_not(orders: Engine) -> None:
    cluster = Cluster()
    cluster.send("orders", '{"customer": "a", "cents": 1, "surprise": 2}')
    names = ["topic", "partition", "offset", "customer", "cents"]
    new_loop(new_sink(orders, insert=names), FakeClient(cluster, [P0])).run()
    assert stored(orders) == truth(cluster)


def test_a_replay_is_judged_by_the_claims(orders: Engine) -> None:
    cluster = of_orders(4)
    sink = new_sink(orders)
    new_loop(sink, FakeClient(cluster, [P0])).run()
    sink.forget_positions("orders-0")
    loop = new_loop(sink, FakeClient(cluster, [P0]))
    loop.run()
    assert stored(orders) == truth(cluster)
    assert (loop.metrics()["applied"], loop.metrics()["duplicates"]) == (0, 4)


def test_messages_by_the_id_of_their_producer(orders: Engine) -> None:
    """Sent twice, they have two offsets; a dead letter is not claimed, so its message can be sent again."""
    execute(orders, "ALTER TABLE orders ADD COLUMN id TEXT")
    cluster = Cluster()
    for value in ('{"id": "a", "customer": "a", "cents": 1}', '{"id": "b", "customer": null, "cents": 2}'):
        cluster.send("orders", value, value)
    cluster.send("orders", '{"id": "b", "customer": "b", "cents": 2}', partition=1)
    sink = SqlSink(orders, "orders", "billing", claim="message_id", message_id="id")
    loop = new_loop(sink, FakeClient(cluster, [P0, P1]))
    loop.run()
    assert [row[2] for row in stored(orders)] == [1, 2]
    assert loop.metrics()["duplicates"] == 1
    assert [it[0] for it in dead(orders)] == [2, 3]


def test_refused_rows_become_dead_letters(orders: Engine) -> None:
    """Of a policy that expects an order; the identity is in headers."""
    execute(orders, "ALTER TABLE orders ADD COLUMN pid BIGINT", "ALTER TABLE orders ADD COLUMN seq BIGINT")
    cluster = Cluster()
    for seq in (0, 1, 3, 2):
        cluster.send("orders", order(seq), headers=[("pid", b"7"), ("seq", str(seq).encode())])

    def with_headers(message: FakeMessage) -> dict[str, Any]:
        return decode(message) | {name: int(value or b"") for name, value in message.headers() or ()}

    columns = fp.Columns(pid="pid", epoch=None, partition=("topic", "partition"), seq="seq")
    policy = fp.Policy.strict().replace(epochs="ignore")
    loop = new_loop(new_sink(orders, policy=policy, columns=columns), FakeClient(cluster, [P0]), decode=with_headers)
    loop.run()
    assert [row[2] for row in stored(orders)] == [0, 1, 2]
    assert dead(orders) == [(2, "OUT_OF_ORDER", 1)]
    assert loop.metrics()["dead_letters"] == 1


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 4), ("committed", 2)])
def test_where_a_new_partition_begins(orders: Engine, start: Any, first: int) -> None:
    """ "latest" is the end of the topic when it was first seen, also for the process after a crash."""
    cluster = of_orders(4)
    cluster.committed[P0] = 2
    sink = new_sink(orders)

    class Killed(BaseException):
        pass

    def kill(_: FakeMessage) -> dict[str, Any]:
        raise Killed

    cluster.send("orders", order(4)) if start != "latest" else None
    before = FakeClient(cluster, [P0])
    if start == "latest":
        new_loop(sink, before, start=start).run()
        cluster.send("orders", order(4))
    with pytest.raises(Killed):
        new_loop(sink, FakeClient(cluster, [P0]), start=start, decode=kill).run()
    new_loop(sink, FakeClient(cluster, [P0]), start=start).run()
    assert stored(orders) == [it for it in truth(cluster) if it[1] >= first]


def test_messages_that_were_deleted_unread(orders: Engine) -> None:
    cluster = of_orders(3)
    sink = new_sink(orders)
    new_loop(sink, FakeClient(cluster, [P0])).run()
    cluster.send("orders", *map(order, range(3, 9)))
    cluster.cut("orders", 6)
    with pytest.raises(fp.SourceError, match=r"orders-0: offsets 3 to 5 .* before they were applied"):
        new_loop(sink, FakeClient(cluster, [P0])).run()
    assert len(stored(orders)) == 3
    client = FakeClient(cluster, [P0])
    client.errors = [Error("_AUTO_OFFSET_RESET"), Error("_TRANSPORT")]
    loop = new_loop(sink, client, on_reset="report")
    loop.run()
    assert [row[1] for row in stored(orders)] == [0, 1, 2, 6, 7, 8]
    assert loop.metrics()["client_errors"] == 2


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_messages_that_are_deleted_while_it_runs(orders: Engine, is_cooperative: bool) -> None:
    """librdkafka then reads the partition only after another assignment: a seek ended the loop."""
    cluster = Cluster()
    for number in range(18):
        cluster.send("orders", order(number), partition=number % 2)
    client = FakeClient(cluster, [P0, P1])
    client.is_cooperative = is_cooperative

    def deleted(message: FakeMessage) -> dict[str, Any]:
        if message.partition() == 0 and message.offset() == 2:
            cluster.cut("orders", 6)
            client.errors = [Error("_AUTO_OFFSET_RESET")]
        return decode(message)

    loop = new_loop(new_sink(orders), client, decode=deleted, on_reset="report", batch_max=2)
    loop.run()
    assert [row[1] for row in stored(orders) if row[0] == 0] == [0, 1, 2, 6, 7, 8]
    assert [row[1] for row in stored(orders) if row[0] == 1] == list(range(9))


def test_two_partitions_whose_messages_are_all_deleted(orders: Engine) -> None:
    """Each is placed after its deleted messages, and stays there when the other one is."""
    cluster = Cluster()
    for number in range(6):
        cluster.send("orders", order(number), partition=number % 2)
    client, cuts = FakeClient(cluster, [P0, P1]), iter([0, 1])

    def cut() -> None:
        for partition in cuts:
            cluster.send("orders", order(9), partition=partition)
            cluster.cut("orders", 4, partition)
            client.errors = [Error("_AUTO_OFFSET_RESET")]
            return
        assert client.reading == {P0: 4, P1: 4}
        loop.stop()

    loop = new_loop(new_sink(orders), client, on_reset="report")
    client.when_idle = cut
    loop.run()
    assert len(stored(orders)) == 6


def test_a_topic_that_was_created_again(orders: Engine) -> None:
    cluster = of_orders(3)
    sink = new_sink(orders)
    new_loop(sink, FakeClient(cluster, [P0])).run()
    again = Cluster()
    again.send("orders", order(0))
    with pytest.raises(fp.SourceError, match=r"up to offset 3.* ends at 1"):
        new_loop(sink, FakeClient(again, [P0]), on_reset="report").run()


def test_kafka_that_does_not_answer_is_asked_again(orders: Engine) -> None:
    cluster = of_orders(1)
    client = FakeClient(cluster, [P0])
    client.failing_bounds = 3
    loop = new_loop(new_sink(orders), client)
    seen: list[tuple[int, bool]] = []
    client.when_bounds_fail = lambda: seen.append((loop.metrics()["outages"], loop.metrics()["is_paused"]))
    loop.run()
    assert stored(orders) == truth(cluster)
    assert seen == [(0, False), (1, True), (1, True)]
    assert (loop.metrics()["outages"], loop.metrics()["is_paused"]) == (1, False)


def test_a_loop_that_is_stopped_in_an_outage_says_nothing_else(
    orders: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = of_orders(1)
    outage = Outage(1)
    loop = new_loop(new_sink(orders), FakeClient(cluster, [P0]), effect=outage)
    outage.meanwhile = loop.stop
    with caplog.at_level("WARNING", "fencepost.consumer"):
        loop.run()
    assert stored(orders) == []
    assert "responds again" not in caplog.text


def test_a_fatal_error_of_the_client(orders: Engine) -> None:
    client = FakeClient(Cluster(), [P0])
    client.errors = [Error("_FATAL", is_fatal=True)]
    with pytest.raises(fp.StoreError, match="fatal error: _FATAL"):
        new_loop(new_sink(orders), client).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_loop_after_its_transaction(orders: Engine, number: int) -> None:
    cluster = of_orders(4)

    def signalled(message: FakeMessage) -> dict[str, Any]:
        if message.offset() == 1:
            os.kill(os.getpid(), number)
        return decode(message)

    before = signal.getsignal(number)
    sink = new_sink(orders)
    new_loop(sink, FakeClient(cluster, [P0]), decode=signalled, batch_max=1).run()
    assert sink.positions() == {"orders-0": len(stored(orders))}
    assert 2 <= len(stored(orders)) < 4
    assert signal.getsignal(number) is before


class FakeProducer:
    """`confluent_kafka.Producer`, which fails so many times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.sent = failures, []

    def produce(self, topic: str, *, value: Any, key: Any, headers: Any, on_delivery: Any) -> None:
        if self.failures:
            self.failures -= 1
            on_delivery("_TIMED_OUT", None)
            return
        self.sent.append((topic, value, key, headers))
        on_delivery(None, None)

    def flush(self, timeout: float) -> int:
        return 0


def test_dead_letters_in_a_topic(orders: Engine) -> None:
    """The position does not move before the letter is delivered."""
    cluster = Cluster()
    cluster.send("orders", "no JSON", key=b"k", headers=[("h", b"1")])
    cluster.send("orders", order(1))
    producer = FakeProducer(failures=2)
    loop = new_loop(
        new_sink(orders), FakeClient(cluster, [P0]), attempts=1, dead_letters=to_topic(producer, "orders-dead")
    )
    loop.run()
    ((topic, value, key, headers),) = producer.sent
    assert (topic, value, key) == ("orders-dead", b"no JSON", b"k")
    assert headers[:1] == [("h", b"1")]
    assert dict(headers[1:])["fencepost_offset"] == b"0"
    assert dict(headers[1:])["fencepost_error_type"] == b"JSONDecodeError"
    assert loop.metrics()["outages"] == 1
    assert [row[2] for row in stored(orders)] == [1]


class SlowProducer(FakeProducer):
    """One that is shared, whose queue is full at first, and whose messages are delivered at the third flush."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full, self.flushes = True, 0
        self.waiting: list[Any] = []

    def produce(self, topic: str, **message: Any) -> None:
        if self.is_full:
            self.is_full = False
            raise BufferError("Local: Queue full")
        self.waiting.append(message["on_delivery"])
        super().produce(topic, **message | {"on_delivery": lambda error, _: None})

    def flush(self, timeout: float) -> int:
        self.flushes += 1
        while self.flushes >= 3 and self.waiting:
            self.waiting.pop()(None, None)
        return 1  # a message of the application


@pytest.mark.parametrize("kind", [FakeProducer, SlowProducer])
def test_a_dead_letter_is_written_to_a_topic_once(orders: Engine, kind: type[FakeProducer]) -> None:
    """Also if the database undoes the transaction that moves the position, or the delivery takes long."""
    cluster = Cluster()
    cluster.send("orders", "no JSON", order(1), "none either")
    producer = kind()
    write, failures = to_topic(producer, "orders-dead"), [1, 1, 1]

    def write_and_lose(connection: Connection, letters: Any) -> None:
        write(connection, letters)
        if failures:
            failures.pop()
            raise fp.StoreError("the connection is lost")

    new_loop(new_sink(orders), FakeClient(cluster, [P0]), attempts=1, dead_letters=write_and_lose).run()
    assert [value for _, value, *_ in producer.sent] == [b"no JSON", b"none either"]
    assert [row[2] for row in stored(orders)] == [1]


def test_metrics_for_a_scraper(orders: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_ENDS_EVERY_S", 0)
    cluster = of_orders(2)
    client = FakeClient(cluster, [P0])
    loop = new_loop(new_sink(orders, 'a"b'), client)

    def stop_behind() -> None:
        cluster.send("orders", order(2))
        loop.stop()

    client.when_idle = stop_behind
    loop.run()
    lines = to_text(loop).splitlines()
    assert 'fencepost_consumer_applied_total{consumer="a\\"b"} 2.0' in lines
    assert 'fencepost_consumer_lag{consumer="a\\"b",source="orders-0"} 1.0' in lines
    assert lines[-1] == "# EOF"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attempts": 0}, "attempts=0"),
        ({"batch_max": True}, "batch_max=True"),
        ({"start": "somewhere"}, "start='somewhere': expected one of earliest, latest, committed"),
        ({"on_reset": "no"}, "on_reset='no'"),
        ({"topics": "orders"}, "topics='orders': expected a list"),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_invalid_settings(orders: Engine, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(fp.PolicyError, match=said):
        ConsumerLoop(FakeClient(Cluster(), []), new_sink(orders), **{"topics": ["orders"], **settings})  # type: ignore[arg-type]


# Killed


STEPS = ("decode", "effect", "before commit", "after commit")
_FORK = fork_server("fencepost.consumer", "sqlalchemy", "psycopg", "support.fake_kafka")


def numbered(count: int) -> Cluster:
    cluster = Cluster()
    for number in range(count):
        cluster.send("orders", order(number), partition=number % 2)
        if number % 5 == 0:
            cluster.mark("orders", number % 2)
    cluster.logs[P0].insert(3, FakeMessage(("orders", 0, cluster.logs[P0][3].offset()), b"no JSON"))
    del cluster.logs[P0][4]
    return cluster


def consume_until_killed(url: str, step: str | None, at: int) -> None:
    """A process that kills itself at a step of transaction `at`."""
    engine = sqlalchemy.create_engine(url)
    reach = killed_at(step, at)

    class Dying(FakeClient):
        def commit(self, **_: Any) -> None:
            reach("after commit")

    def decode_or_die(message: FakeMessage) -> dict[str, Any]:
        reach("decode")
        return decode(message)

    def insert(connection: Connection, kept: pa.Table) -> None:
        Outage(0)(connection, kept)
        reach("effect")

    sink = new_sink(engine)
    loop = new_loop(sink, Dying(numbered(40), [P0, P1]), decode=decode_or_die, effect=insert, attempts=1, batch_max=4)
    sqlalchemy.event.listen(engine, "commit", lambda _: reach("before commit"))
    loop.run()
    engine.dispose()


def test_an_asynchronous_loop_ends_while_kafka_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka then commits until it is stopped."""
    monkeypatch.setattr(asynchronous, "_COMMIT_S", 0.01)
    stopped: list[bool] = []

    class Silent:
        async def commit(self, _: Any) -> None:
            await asyncio.Event().wait()

        async def stop(self) -> None:
            stopped.append(True)

    async def main() -> None:
        client = asynchronous._Client(Silent())  # type: ignore[arg-type]

        def end() -> None:
            client.commit(offsets=[asynchronous._Handle("orders", 0, 5)], asynchronous=True)
            client.close()

        await asyncio.wait_for(greenlet_spawn(end), PATIENCE_SECONDS)

    asyncio.run(main())
    assert stopped == [True]


class Rebalancing:
    """aiokafka's consumer: `start` waits for the first assignment, and `stop` for a listener that is called."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.stopped = 0

    def subscribe(self, _: Any, listener: Any) -> None:
        self.listener = listener

    async def start(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await self.listener.on_partitions_revoked([])
        await self.listener.on_partitions_assigned([])
        self.stopped += 1


def asynchronous_loop(engine: Engine, consumer: Rebalancing) -> tuple[asynchronous.AsyncConsumerLoop, Any]:
    stopping = asynchronous._Stopping()
    sink = SqlSink(engine, None, "c", policy="kafka_offsets", columns="kafka")
    client: Any = asynchronous._Client(consumer)  # type: ignore[arg-type]
    loop = ConsumerLoop(client, sink, ["orders"], effect=lambda *_: None, stopping=stopping)
    return asynchronous.AsyncConsumerLoop(loop, stopping), stopping


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_asynchronous_loop_ends_during_a_rebalance(engine: Engine) -> None:
    """Before its first assignment, too. The group assigns partitions once more before the client has left it."""
    consumer = Rebalancing()

    async def main() -> None:
        loop, _ = asynchronous_loop(engine, consumer)
        asyncio.get_running_loop().call_later(0.01, loop.stop)
        await asyncio.wait_for(loop.run(), PATIENCE_SECONDS)

    asyncio.run(main())
    assert consumer.stopped == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_error_of_aiokafka_is_a_store_error(engine: Engine) -> None:
    consumer = Rebalancing(KafkaConnectionError("no bootstrap"))

    async def main() -> None:
        await asynchronous_loop(engine, consumer)[0].run()

    with pytest.raises(fp.StoreError, match=r"reports a fatal error.*no bootstrap"):
        asyncio.run(main())
    assert consumer.stopped == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_asynchronous_loop_runs_outside_the_main_thread(engine: Engine) -> None:
    """Python handles signals in the main thread only."""
    consumer = Rebalancing()

    async def main() -> None:
        loop, stopping = asynchronous_loop(engine, consumer)
        stopping.set()
        await loop.run()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert consumer.stopped == 1


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(orders: Engine, database_url: str, step: str) -> None:
    for at in (2, 3):
        process = _FORK.Process(target=consume_until_killed, args=(database_url, step, at))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    process = _FORK.Process(target=consume_until_killed, args=(database_url, None, 0))
    process.start()
    process.join()
    assert process.exitcode == 0
    wanted = numbered(40)
    poison = wanted.logs[P0].pop(3)
    assert stored(orders) == truth(wanted)
    assert dead(orders) == [(poison.offset(), "JSONDecodeError", 1)]


# By chance


class Killed(BaseException):
    """How a kill looks to a loop in this process: nothing of it runs on."""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("seed", daily.first(range(100), 4))
def test_each_message_is_applied_once_under_random_faults(orders: Engine, seed: int) -> None:
    """Processes die and restart, work on partitions of others, meet outages and poison messages; partitions move."""
    chance = random.Random(seed)
    cluster = Cluster()
    wanted, poison = [], []
    for number in range(150):
        partition = number % 2
        if chance.random() < 0.1:
            poison.append((partition, cluster.ends.get(("orders", partition), 0)))
            cluster.send("orders", "no JSON", partition=partition)
        else:
            wanted.append((partition, cluster.ends.get(("orders", partition), 0), number))
            cluster.send("orders", order(number), partition=partition)
        if chance.random() < 0.3:
            cluster.mark("orders", partition)
    depth = [0]

    def happening(client: FakeClient) -> None:
        if chance.random() < 0.02:
            raise Killed
        if chance.random() < 0.02:
            raise fp.StoreError("away")
        if chance.random() < 0.02 and P0 in client.reading:
            client.take(P0)
            client.give(P0)
        if chance.random() < 0.02:
            client.failing_seeks += 1
        if chance.random() < 0.02 and depth[0] < 2:
            depth[0] += 1
            process(*chance.choice([[P0], [P1], [P0, P1]]))
            depth[0] -= 1

    def process(*partitions: tuple[str, int]) -> None:
        client = FakeClient(cluster, partitions)
        client.is_cooperative = True

        def decoding(message: FakeMessage) -> dict[str, Any]:
            happening(client)
            return decode(message)

        loop = new_loop(new_sink(orders), client, decode=decoding, attempts=1, batch_max=chance.randrange(1, 12))
        try:
            loop.run()
        except Killed:
            pass
        else:
            finished.append(1)

    finished: list[int] = []
    while not finished:
        process(P0, P1)
    process_again = new_loop(new_sink(orders), FakeClient(cluster, [P0, P1]), attempts=1)
    process_again.run()
    assert stored(orders) == sorted(wanted)
    assert [tuple(it) for it in dead(orders, 'partition, "offset"')] == sorted(poison)
