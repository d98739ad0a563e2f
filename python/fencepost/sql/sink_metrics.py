"""Metrics of a consumer: counters of the process, and its claims in the database."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from fencepost.metrics import counter, gauge
from fencepost.sql.consumers import CONSUMERS, Consumer, Storage
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric


class Counters:
    """Counters of the calls of one sink. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._failures = 0
        self._rows = dict.fromkeys(Verdict, 0)
        self._stale_epoch = 0

    @contextmanager
    def of_call(self) -> Iterator[None]:
        """Count a call, and a failure if the block raises."""
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
        """Add the rows of a committed call."""
        with self._lock:
            self._stale_epoch += stale_epoch
            for verdict, count in rows.items():
                self._rows[verdict] += count

    def to_dict(self) -> dict[str, Any]:
        """Return the counters. See `SqlSink.metrics`."""
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
    """Return statistics of a consumer's claims in the database. Takes one pass over them."""
    columns = storage.table.c
    age = columns[storage.timestamp] if consumer.keeps_time else columns.changed_ms
    query = select(func.count(), func.min(age)).where(columns.consumer == consumer.id)
    horizon = select(CONSUMERS.c.horizon_ms).where(CONSUMERS.c.id == consumer.id)

    def work(connection: Connection) -> dict[str, Any]:
        consumer.check_known(connection)
        now_ms = consumer.database.now_ms(connection)
        count, oldest = connection.execute(query).one()
        return {
            "claims": count,
            "oldest_claim_age_ms": None if oldest is None else now_ms - oldest,
            "horizon_ms": connection.execute(horizon).scalar_one(),
            "positions": consumer.positions(connection),
        }

    return consumer.database.transaction(work)


def families_of_calls(consumer: str, counters: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metric families of `Counters.to_dict`."""
    by = {"consumer": consumer}
    rows = {("verdict", verdict): count for verdict, count in counters["rows"].items()}
    about_stale, stale = "Rows with an epoch below the highest one of their key.", counters["stale_epoch"]
    yield counter("fencepost_sink_calls", "Calls of apply and handle.", counters["calls"], by)
    yield counter("fencepost_sink_failures", "Calls that raised.", counters["failures"], by)
    yield counter("fencepost_sink_rows", "Judged rows, by verdict.", rows, by)
    yield counter("fencepost_sink_stale_epoch_rows", about_stale, stale, by)


def families_of_claims(consumer: str, claims: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metric families of `claims_of`."""
    by = {"consumer": consumer}
    age = seconds(claims["oldest_claim_age_ms"])
    yield gauge("fencepost_sink_claims", "Claims in the database.", claims["claims"], by)
    yield gauge("fencepost_sink_oldest_claim_age_seconds", "Age of the oldest claim.", age, by, "seconds")
    yield horizon_gauge(consumer, claims["horizon_ms"])
    yield position_gauge(consumer, claims["positions"])


def horizon_gauge(consumer: str, horizon_ms: int | None) -> Metric:
    about = "Rows up to this time are no longer judged as new."
    by = {"consumer": consumer}
    return gauge("fencepost_sink_horizon_timestamp_seconds", about, seconds(horizon_ms), by, "seconds")


def position_gauge(consumer: str, positions: Mapping[str, int]) -> Metric:
    by_source = {("source", source): position for source, position in positions.items()}
    return gauge("fencepost_sink_position", "Position of a source.", by_source, {"consumer": consumer})


def seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
