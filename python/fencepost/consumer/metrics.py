"""Metrics of a consumer loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fencepost.metrics import counter, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric

ABOUT = {
    "messages": "Messages received.",
    "applied": "Messages whose rows were passed to the table or the effect.",
    "duplicates": "Messages that were already applied.",
    "skipped": "Messages that the decoder skipped.",
    "dead_letters": "Messages that became dead letters.",
    "retries": "Retries of a message that failed by itself.",
    "outages": "Outages of the database, or of Kafka when partitions are assigned.",
    "conflicts": "Conflicts with another process that moved a position.",
    "rebalances": "Assignments and revocations of partitions.",
    "client_errors": "Errors reported by the Kafka client.",
}
"""The counters and their help texts."""


def families_of(consumer: str, metrics: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metric families of `ConsumerLoop.metrics`."""
    by = {"consumer": consumer}
    for name, about in ABOUT.items():
        yield counter(f"fencepost_consumer_{name}", about, metrics[name], by)
    lag = {("source", source): count for source, count in metrics["lag"].items()}
    yield gauge("fencepost_consumer_paused", "1 during an outage, else 0.", int(metrics["is_paused"]), by)
    yield gauge("fencepost_consumer_partitions", "Assigned partitions.", metrics["partitions"], by)
    yield gauge("fencepost_consumer_lag", "Offsets not applied yet, by source.", lag, by)
