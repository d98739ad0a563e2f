"""What a loop has done, for monitoring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fencepost.metrics import counter, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric

ABOUT = {
    "messages": "Messages that arrived.",
    "applied": "Messages whose rows went to the table or the effect.",
    "duplicates": "Messages that had been applied before.",
    "skipped": "Messages that the decoder passed over.",
    "dead_letters": "Messages that were set aside.",
    "retries": "Tries of a message that had failed alone.",
    "outages": "Times that the database did not answer.",
    "conflicts": "Times that another process had moved a position.",
    "rebalances": "Times that partitions were assigned or taken away.",
    "client_errors": "Errors that the Kafka client reported.",
}
"""The counters, and what they count."""


def families_of(consumer: str, metrics: Mapping[str, Any]) -> Iterator[Metric]:
    """The families of `ConsumerLoop.metrics`."""
    by = {"consumer": consumer}
    for name, about in ABOUT.items():
        yield counter(f"fencepost_consumer_{name}", about, metrics[name], by)
    lag = {("source", source): count for source, count in metrics["lag"].items()}
    yield gauge("fencepost_consumer_paused", "1 in an outage.", int(metrics["is_paused"]), by)
    yield gauge("fencepost_consumer_partitions", "Assigned partitions.", metrics["partitions"], by)
    yield gauge("fencepost_consumer_lag", "Offsets that are not applied yet.", lag, by)
