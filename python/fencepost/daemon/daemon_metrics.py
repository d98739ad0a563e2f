"""Metrics of a daemon: the database, its transactions, consumers and tables, and the daemon's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, inspect, select, table, text

from fencepost.errors import OutcomeUnknownError, SchemaError, StoreError
from fencepost.metrics import counter, gauge
from fencepost.sql import TransactionMetrics, consumers, transaction_tables
from fencepost.sql.consumers import CONSUMERS, POSITIONS
from fencepost.sql.sink_metrics import horizon_gauge, position_gauge, seconds

if TYPE_CHECKING:
    from prometheus_client import Metric

    from fencepost.daemon.daemon import Daemon

_ON_POSTGRESQL = """
SELECT c.relname, greatest(coalesce(s.n_live_tup, 0), 0), pg_total_relation_size(c.oid)
FROM pg_class AS c LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.relkind = 'r' AND c.relname LIKE 'fencepost\\_%' AND c.relname NOT LIKE 'fencepost\\_stage\\_%'
    AND pg_table_is_visible(c.oid)
"""
_ON_MARIADB = """
SELECT table_name, table_rows, data_length + index_length FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name LIKE 'fencepost\\_%' AND table_name NOT LIKE 'fencepost\\_stage\\_%'
"""


class DaemonMetrics:
    """A source for `fencepost.metrics`. During an outage it returns the daemon's own metrics, and `up` is 0."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        by_outcome = self._daemon.runs()
        for outcome in ("succeeded", "failed"):
            about = f"Runs of a task by this process that {outcome}."
            runs = {("task", task): counts[outcome] for task, counts in by_outcome.items()}
            yield counter(f"fencepost_daemon_{outcome}_runs", about, runs)
        found = []
        try:
            found = list(self._of_database())
            is_up = 1
        except (StoreError, OutcomeUnknownError, SchemaError):
            is_up = 0
        yield gauge("fencepost_database_up", "1 where the database answers, and has tables that are known.", is_up)
        yield from found

    def _of_database(self) -> Iterator[Metric]:
        # A task that the settings no longer have is not late.
        tasks = self._daemon.runs()
        states = [it for it in self._daemon.leases().states() if it.task in tasks]
        ages = {("task", it.task): seconds(it.succeeded_ms_ago) for it in states}
        about = "Since a task succeeded last, in whichever process."
        yield gauge("fencepost_task_last_success_age_seconds", about, ages, unit="seconds")
        failures = {("task", it.task): it.failures for it in states}
        yield gauge("fencepost_task_failures_in_a_row", "Runs of a task that have failed since.", failures)
        running = {("task", it.task): int(it.is_running) for it in states}
        yield gauge("fencepost_task_running", "1 while a process runs the task.", running)
        if self._daemon.database.has_part(transaction_tables.PART.name):
            yield from TransactionMetrics(self._daemon.engine).collect()
        yield from self._of_tables()
        if self._daemon.database.has_part(consumers.PART.name):
            yield from self._of_consumers()

    def _of_tables(self) -> Iterator[Metric]:
        """Yield table sizes. PostgreSQL and MariaDB give estimates: counting millions of rows per scrape would take
        seconds.

        Staging tables are left out: each attempt of a job has its own names, which would be time series without end.
        """
        database = self._daemon.database
        sizes = database.transaction(_SIZES.get(database.kind.name, _counted))
        rows = {("table", name): count for name, (count, _) in sizes.items()}
        yield gauge("fencepost_table_rows", "Rows of a table; of PostgreSQL and MariaDB an estimate.", rows)
        disk = {("table", name): size for name, (_, size) in sizes.items()}
        yield gauge("fencepost_table_size_bytes", "Bytes of a table, with its indexes.", disk, unit="bytes")

    def _of_consumers(self) -> Iterator[Metric]:
        query = select(CONSUMERS.c.name, CONSUMERS.c.horizon_ms)
        query_of_positions = select(CONSUMERS.c.name, POSITIONS.c.source, POSITIONS.c.position).join(POSITIONS)
        horizons, positions = self._daemon.database.transaction(
            lambda it: (it.execute(query).all(), it.execute(query_of_positions).all())
        )
        for name, horizon_ms in horizons:
            yield horizon_gauge(name, horizon_ms)
        for name in dict.fromkeys(it.name for it in positions):
            yield position_gauge(name, {it.source: it.position for it in positions if it.name == name})


def _estimated(query: str, connection: Connection) -> dict[str, tuple[int | None, int | None]]:
    """Return the figures of tables. They are null for a view, and for a table that is dropped at the same time."""
    return {name: (_whole(rows), _whole(size)) for name, rows, size in connection.execute(text(query))}


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)


def _counted(connection: Connection) -> dict[str, tuple[int | None, int | None]]:
    names = inspect(connection).get_table_names()
    own = [it for it in names if it.startswith("fencepost_") and not it.startswith("fencepost_stage_")]
    return {it: (connection.execute(select(func.count()).select_from(table(it))).scalar_one(), None) for it in own}


_SIZES = {"postgresql": partial(_estimated, _ON_POSTGRESQL), "mariadb": partial(_estimated, _ON_MARIADB)}
