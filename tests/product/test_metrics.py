"""Sources of metrics, alone and together, as `prometheus_client` reads them."""

from __future__ import annotations

from collections.abc import Iterator

import fencepost as fp
import prometheus_client
import pytest
from fencepost.metrics import Collector, counter, gauge, to_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.faulty_transport import MemoryTransport


class Source:
    """What has metrics."""

    def __init__(self, name: str) -> None:
        self.name = name

    def collect(self) -> Iterator[prometheus_client.Metric]:
        yield counter("rows", "Rows.", {("verdict", "kept"): 3, ("verdict", "lost"): None}, {"of": self.name})
        yield gauge("age_seconds", "Age.", 1.5, {"of": self.name}, "seconds")
        yield gauge("nothing", "Nothing.", None)


def test_sources_share_families() -> None:
    text = to_text(Source("a"), Source('b"\n'))
    families = {it.name: it for it in text_string_to_metric_families(text)}
    assert list(families) == ["rows", "age_seconds", "nothing"]
    assert [(it.name, it.labels, it.value) for it in families["rows"].samples] == [
        ("rows_total", {"of": "a", "verdict": "kept"}, 3.0),
        ("rows_total", {"of": 'b"\n', "verdict": "kept"}, 3.0),
    ]
    assert families["age_seconds"].unit == "seconds"
    assert families["nothing"].samples == []


def test_registering_a_collector_does_not_query_its_sources() -> None:
    class Away(Source):
        def collect(self) -> Iterator[prometheus_client.Metric]:
            raise fp.StoreError("no answer")
            yield

    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(Collector(Away("a")))
    with pytest.raises(fp.StoreError):
        prometheus_client.generate_latest(registry)


def test_a_producer_has_metrics() -> None:
    with fp.SequencedProducer(MemoryTransport(), name="gate 7", registry=MemoryTransport()) as producer:
        producer.send([{"value": 1}, {"value": 2}])
        producer.flush(10)
        lines = to_text(producer).splitlines()
    assert 'fencepost_producer_delivered_rows_total{producer="gate 7"} 2.0' in lines
    assert 'fencepost_producer_buffered_bytes{producer="gate 7"} 0.0' in lines
