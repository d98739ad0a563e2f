"""What a loop has done, for monitoring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.sql.metrics import Family, families

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


def to_open_metrics(consumer: str, metrics: Mapping[str, Any]) -> str:
    """The text of https://prometheus.io/docs/specs/om/open_metrics_spec, version 1.0."""
    found = [Family(f"fencepost_consumer_{it}", "counter", about, {None: metrics[it]}) for it, about in ABOUT.items()]
    found += [
        Family("fencepost_consumer_paused", "gauge", "1 in an outage.", {None: int(metrics["is_paused"])}),
        Family("fencepost_consumer_partitions", "gauge", "Assigned partitions.", {None: metrics["partitions"]}),
        Family(
            "fencepost_consumer_lag",
            "gauge",
            "Offsets that are not applied yet.",
            {("source", source): count for source, count in metrics["lag"].items()},
        ),
    ]
    return families({"consumer": consumer}, found)
