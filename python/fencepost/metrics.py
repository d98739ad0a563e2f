"""Metrics as `prometheus_client` has them, for a registry of yours or as text. Needs `fencepost[metrics]`.

Sinks, loops, producers, coordinators and logs have `collect()`, which gives the families of one of them. A `Collector`
puts several together:

    prometheus_client.REGISTRY.register(Collector(sink, loop, producer))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from prometheus_client import Metric

Samples: TypeAlias = Mapping[tuple[str, str], float | None]
"""Values by one label and its value. A value that is None is left out."""


class Source(Protocol):
    """What has metrics."""

    def collect(self) -> Iterable[Metric]:
        """Its families, as of now."""


def counter(name: str, about: str, samples: Samples | float, labels: Mapping[str, str] | None = None) -> Metric:
    """A family of counters: each sample is named `<name>_total` and has these labels beside its own."""
    return _family(name, "counter", about, samples, labels or {}, "")


def gauge(
    name: str, about: str, samples: Samples | float | None, labels: Mapping[str, str] | None = None, unit: str = ""
) -> Metric:
    """A family of gauges. Where there is a `unit`, the name ends with it."""
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
    """The metrics of any number of sources, those of one name in one family, for a registry of `prometheus_client`."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources

    def describe(self) -> Iterator[Metric]:
        """Nothing: asked at the registration, which would ask the database."""
        return iter(())

    def collect(self) -> Iterable[Metric]:
        """The families, as of now."""
        found: dict[str, Metric] = {}
        for source in self.sources:
            for family in source.collect():
                if known := found.get(family.name):
                    known.samples.extend(family.samples)
                else:
                    found[family.name] = family
        return found.values()


def to_text(*sources: Source) -> str:
    """The metrics of these sources as OpenMetrics text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    registry = CollectorRegistry()
    registry.register(Collector(*sources))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()
