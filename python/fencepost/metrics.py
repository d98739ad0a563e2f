"""Builds `prometheus_client` metrics, for your registry or as text. Needs `fencepost[metrics]`.

Sinks, loops, producers, coordinators and logs have a method `collect()` that returns their metric families. A
`Collector` combines several of them:

    prometheus_client.REGISTRY.register(Collector(sink, loop, producer))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from prometheus_client import Metric

Samples: TypeAlias = Mapping[tuple[str, str], float | None]
"""Values by (label, label value). None values are left out."""


class Source(Protocol):
    """An object with metrics."""

    def collect(self) -> Iterable[Metric]:
        """Return the current metric families."""


def counter(name: str, about: str, samples: Samples | float, labels: Mapping[str, str] | None = None) -> Metric:
    """Build a family of counters named `<name>_total`. `labels` are added to the labels of each sample."""
    return _family(name, "counter", about, samples, labels or {}, "")


def gauge(
    name: str, about: str, samples: Samples | float | None, labels: Mapping[str, str] | None = None, unit: str = ""
) -> Metric:
    """Build a family of gauges. With a `unit`, the name must end with it."""
    return _family(name, "gauge", about, samples, labels or {}, unit)


def _family(name: str, kind: str, about: str, samples: Any, labels: Mapping[str, str], unit: str) -> Metric:
    from prometheus_client import Metric

    family = Metric(name, about, kind, unit)
    for label, value in (samples if isinstance(samples, Mapping) else {None: samples}).items():
        if value is not None:
            own = {} if label is None else {label[0]: label[1]}
            family.add_sample(f"{name}_total" if kind == "counter" else name, {**labels, **own}, value)
    return family


class Collector:
    """A collector for `prometheus_client` that merges the metrics of several sources by name."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: registration calls this, and collecting would query the database."""
        return iter(())

    def collect(self) -> Iterable[Metric]:
        """Return the current metric families."""
        found: dict[str, Metric] = {}
        for source in self.sources:
            for family in source.collect():
                if known := found.get(family.name):
                    known.samples.extend(family.samples)
                else:
                    found[family.name] = family
        return found.values()


def to_text(*sources: Source) -> str:
    """Return the metrics of the sources as OpenMetrics text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    registry = CollectorRegistry()
    registry.register(Collector(*sources))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()
