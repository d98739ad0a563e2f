"""Options of a topic that Spark reads."""

from __future__ import annotations

from support.kafka_broker import Broker


def options(broker: Broker, topic: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "kafka.isolation.level": "read_committed",
    } | more
