"""A consumer: orders from Kafka to PostgreSQL, each applied once, through crashes, rebalances and outages.

    pip install 'fencepost[postgresql]' confluent-kafka
    KAFKA=localhost:9092 DATABASE=postgresql+psycopg://user:password@localhost/shop python consume.py

Start as many as the topic has partitions: the group shares the partitions out. When a partition moves to another
process, that process continues from the position in the database. If two hold it for a moment, the slower one changes
nothing.
SIGTERM and Ctrl-C end it after the transaction under way.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import sqlalchemy
from fencepost.consumer import ConsumerLoop
from fencepost.sql import SqlSink
from sqlalchemy import Connection, Engine

TOPIC = "orders"
TABLES = """
    CREATE TABLE IF NOT EXISTS balances (customer VARCHAR(50) PRIMARY KEY, cents BIGINT NOT NULL)
"""
ADD = """
    INSERT INTO balances (customer, cents) VALUES (:customer, :cents)
    ON CONFLICT (customer) DO UPDATE SET cents = balances.cents + excluded.cents
"""


def decode(message: Any) -> dict[str, Any] | None:
    """Columns of a message; None passes over it. What raises here becomes a dead letter after some tries."""
    if message.value() is None:
        return None
    order = json.loads(message.value())
    return {"customer": str(order["customer"]), "cents": int(order["cents"])}


def add(connection: Connection, kept: Any) -> None:
    """The effect. It gets only messages that were not applied before, in the transaction that remembers them."""
    connection.execute(sqlalchemy.text(ADD), kept.select(["customer", "cents"]).to_pylist())


def new_loop(client: Any, engine: Engine) -> ConsumerLoop:
    """The loop of this consumer; "billing" names it in the database."""
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(TABLES))
    sink = SqlSink(engine, None, "billing", policy="kafka_offsets", columns="kafka")
    return ConsumerLoop(client, sink, [TOPIC], decode=decode, effect=add)


def main() -> None:
    from confluent_kafka import Consumer

    logging.basicConfig(level=logging.INFO)
    client = Consumer(
        {
            "bootstrap.servers": os.environ.get("KAFKA", "localhost:9092"),
            "group.id": "billing",
            "enable.auto.commit": False,  # positions are in the database
            "auto.offset.reset": "error",  # never jump over messages silently
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "cooperative-sticky",  # a rebalance stops only what moves
        }
    )
    new_loop(client, sqlalchemy.create_engine(os.environ["DATABASE"])).run()


if __name__ == "__main__":
    main()
