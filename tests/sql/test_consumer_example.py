"""The example of a consumer, over a cluster in memory, on PostgreSQL: through a rebalance each order counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from support.fake_kafka import Cluster, FakeClient
from support.scripts import load_script

EXAMPLE = Path(__file__).parents[2] / "examples" / "consumer" / "consume.py"
PARTITIONS = [("orders", 0), ("orders", 1)]


@pytest.fixture
def consume() -> Any:
    return load_script(EXAMPLE)


def balances(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {it.customer: it.cents for it in connection.execute(text("SELECT customer, cents FROM balances"))}


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_each_order_counts_once(consume: Any, engine: Engine) -> None:
    cluster = Cluster()
    expected = dict.fromkeys(("a", "b"), 0)
    for number in range(600):
        customer = "ab"[number % 3 % 2]
        expected[customer] += number
        cluster.send("orders", json.dumps({"customer": customer, "cents": number}), partition=number % 2)
    cluster.send("orders", None, "not an order")

    def run(client: FakeClient) -> None:
        loop = consume.new_loop(client, engine)
        client.when_idle = loop.stop
        loop.run()

    one = FakeClient(cluster, PARTITIONS[:1])
    run(one)
    assert 0 < sum(balances(engine).values()) < sum(expected.values())
    cluster.committed.clear()  # the group forgets; the database does not
    run(FakeClient(cluster, PARTITIONS))  # both partitions go to another process
    assert balances(engine) == expected
    with engine.connect() as connection:
        query = "SELECT error_type FROM fencepost_dead_letters"
        assert connection.execute(text(query)).scalars().all() == ["JSONDecodeError"]
