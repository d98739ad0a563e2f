"""Sources of metrics, alone and together, as `prometheus_client` reads them."""

from __future__ import annotations

from collections.abc import Iterator

import fencepost as fp
import prometheus_client
import pytest
import sqlalchemy
from fencepost.metrics import Collector, counter, gauge, to_text
from fencepost.sql import SqlSink
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.faulty_transport import MemoryTransport
from support.waiting import PATIENCE_SECONDS


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


@pytest.mark.parametrize("error", [fp.StoreError, fp.OutcomeUnknownError])
def test_in_an_outage_a_sink_has_its_counters(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape that fails would hide the loop beside it, which says that it waits for the database."""
    sink = SqlSink(sqlalchemy.create_engine("sqlite://"), None, "billing")
    assert "fencepost_sink_claims{" in to_text(sink)

    def away(*_: object) -> None:
        raise error("no answer")

    monkeypatch.setattr("fencepost.sql.sink.claims_of", away)
    text = to_text(sink, Source("a"))
    assert 'fencepost_sink_calls_total{consumer="billing"} 0.0' in text
    assert 'rows_total{of="a",verdict="kept"} 3.0' in text
    assert "fencepost_sink_claims" not in text
    with pytest.raises(error):
        sink.metrics()


def test_a_producer_has_metrics() -> None:
    with fp.SequencedProducer(MemoryTransport(), name="gate 7", registry=MemoryTransport()) as producer:
        producer.send([{"value": 1}, {"value": 2}])
        producer.flush(PATIENCE_SECONDS)
        lines = to_text(producer).splitlines()
    assert 'fencepost_producer_delivered_rows_total{producer="gate 7"} 2.0' in lines
    assert 'fencepost_producer_buffered_bytes{producer="gate 7"} 0.0' in lines
