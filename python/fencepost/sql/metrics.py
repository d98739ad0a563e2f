"""What monitoring asks of a consumer: counters of the process, and the claims of the database."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, func, select

from fencepost.sql.consumers import Consumer, Storage
from fencepost.sql.retention import horizon_of
from fencepost.verdict import Verdict


class Counters:
    """What the calls of one sink came to. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._failures = 0
        self._rows = dict.fromkeys(Verdict, 0)

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

    def count(self, rows: Mapping[Verdict, int]) -> None:
        """Adds the rows of a call that has committed."""
        with self._lock:
            for verdict, count in rows.items():
                self._rows[verdict] += count

    def to_dict(self) -> dict[str, Any]:
        """See `SqlSink.metrics`."""
        with self._lock:
            rows = {verdict.name.lower(): count for verdict, count in self._rows.items()}
            return {"calls": self._calls, "failures": self._failures, "rows": rows, "hits": rows["duplicate"]}


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
    label = f'consumer="{_escaped(consumer)}"'
    lines = []

    def family(name: str, kind: str, about: str, samples: Mapping[str, Any], unit: str = "") -> None:
        lines.append(f"# TYPE {name} {kind}")
        if unit:
            lines.append(f"# UNIT {name} {unit}")
        lines.append(f"# HELP {name} {about}")
        suffix = "_total" if kind == "counter" else ""
        lines.extend(f"{name}{suffix}{{{label}{more}}} {value}" for more, value in samples.items() if value is not None)

    rows = {f',verdict="{verdict}"': count for verdict, count in metrics["rows"].items()}
    family("fencepost_sink_calls", "counter", "Calls of apply and handle.", {"": metrics["calls"]})
    family("fencepost_sink_failures", "counter", "Calls that raised.", {"": metrics["failures"]})
    family("fencepost_sink_rows", "counter", "Rows that were judged, by verdict.", rows)
    family("fencepost_sink_claims", "gauge", "Claims in the database.", {"": metrics["claims"]})
    age = metrics["oldest_claim_age_ms"]
    in_seconds = {"": None if age is None else age / 1000}
    family("fencepost_sink_oldest_claim_age_seconds", "gauge", "Since the oldest claim.", in_seconds, "seconds")
    horizon = metrics["horizon_ms"]
    in_seconds = {"": None if horizon is None else horizon / 1000}
    about = "Rows up to this time are no longer taken for new."
    family("fencepost_sink_horizon_timestamp_seconds", "gauge", about, in_seconds, "seconds")
    positions = {f',source="{_escaped(source)}"': position for source, position in metrics["positions"].items()}
    family("fencepost_sink_position", "gauge", "Up to where a source was applied.", positions)
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
