"""What monitoring asks of a consumer: counters of the process, and the claims of the database."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, func, select

from fencepost.sql.consumers import Consumer, Storage
from fencepost.sql.retention import horizon_of
from fencepost.verdict import Verdict

Samples: TypeAlias = Mapping[tuple[str, str] | None, float | None]


class Counters:
    """What the calls of one sink came to. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._failures = 0
        self._rows = dict.fromkeys(Verdict, 0)
        self._stale_epoch = 0

    @contextmanager
    def of_call(self) -> Iterator[None]:
        """Counts a call, and whether it failed."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._failures += 1
            raise
        finally:
            with self._lock:
                self._calls += 1

    def count(self, rows: Mapping[Verdict, int], stale_epoch: int) -> None:
        """Adds the rows of a call that has committed."""
        with self._lock:
            self._stale_epoch += stale_epoch
            for verdict, count in rows.items():
                self._rows[verdict] += count

    def to_dict(self) -> dict[str, Any]:
        """See `SqlSink.metrics`."""
        with self._lock:
            rows = {verdict.name.lower(): count for verdict, count in self._rows.items()}
            return {
                "calls": self._calls,
                "failures": self._failures,
                "rows": rows,
                "hits": rows["duplicate"],
                "stale_epoch": self._stale_epoch,
            }


def claims_of(consumer: Consumer, storage: Storage) -> dict[str, Any]:
    """What the database knows of a consumer's claims. Takes a pass over them."""
    columns = storage.table.c
    age = columns[storage.timestamp] if consumer.keeps_time else columns.changed_ms
    query = select(func.count(), func.min(age)).where(columns.consumer == consumer.id)

    def look(connection: Connection) -> dict[str, Any]:
        now_ms = consumer.database.now_ms(connection)
        count, oldest = connection.execute(query).one()
        return {
            "claims": count,
            "oldest_claim_age_ms": None if oldest is None else now_ms - oldest,
            "horizon_ms": horizon_of(connection, consumer),
            "positions": consumer.positions(connection),
        }

    return consumer.database.transaction(look)


def to_open_metrics(consumer: str, metrics: Mapping[str, Any]) -> str:
    """The text of https://prometheus.io/docs/specs/om/open_metrics_spec, version 1.0."""
    rows: Samples = {("verdict", verdict): count for verdict, count in metrics["rows"].items()}
    age, horizon = metrics["oldest_claim_age_ms"], metrics["horizon_ms"]
    positions: Samples = {("source", source): position for source, position in metrics["positions"].items()}
    about_stale, stale = "Rows below the highest epoch of their key.", metrics["stale_epoch"]
    about_horizon = "Rows up to this time are no longer taken for new."
    return families(
        {"consumer": consumer},
        [
            Family("fencepost_sink_calls", "counter", "Calls of apply and handle.", {None: metrics["calls"]}),
            Family("fencepost_sink_failures", "counter", "Calls that raised.", {None: metrics["failures"]}),
            Family("fencepost_sink_rows", "counter", "Rows that were judged, by verdict.", rows),
            Family("fencepost_sink_stale_epoch_rows", "counter", about_stale, {None: stale}),
            Family("fencepost_sink_claims", "gauge", "Claims in the database.", {None: metrics["claims"]}),
            Family(
                "fencepost_sink_oldest_claim_age_seconds", "gauge", "Since the oldest claim.", _seconds(age), "seconds"
            ),
            Family("fencepost_sink_horizon_timestamp_seconds", "gauge", about_horizon, _seconds(horizon), "seconds"),
            Family("fencepost_sink_position", "gauge", "Up to where a source was applied.", positions),
        ],
    )


class Family(NamedTuple):
    """A metric: its samples by a label and its value, or by None. A sample that is None is left out."""

    name: str
    kind: str
    about: str
    samples: Samples
    unit: str = ""


def families(labels: Mapping[str, str], found: Iterable[Family]) -> str:
    """Metrics as OpenMetrics text, each sample with these labels."""
    lines = []
    for family in found:
        lines.append(f"# TYPE {family.name} {family.kind}")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}")
        lines.append(f"# HELP {family.name} {family.about}")
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        for label, value in family.samples.items():
            if value is not None:
                every = [*labels.items(), *([label] if label else [])]
                shown = f"{{{','.join(_label(*it) for it in every)}}}" if every else ""
                lines.append(f"{name}{shown} {value}")
    return "\n".join([*lines, "# EOF", ""])


def _seconds(ms: int | None) -> Samples:
    return {None: None if ms is None else ms / 1000}


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f'{name}="{escaped}"'
