"""The tasks of a daemon. Each runs once per call, and returns a line about the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from sqlalchemy import Engine

from fencepost.daemon.settings import Settings
from fencepost.errors import ConcurrentTransactionError, SourceError
from fencepost.sql import (
    IdempotentRequests,
    ProducerRegistry,
    TransactionCoordinator,
    TransactionStatus,
    consumers,
    describe_transaction,
    late_transactions,
    requests,
    transaction_tables,
)
from fencepost.sql.database import Database
from fencepost.sql.reaping import reap_consumer
from fencepost.sql.routes import MarkerWriter

logger = logging.getLogger("fencepost.daemon")
LOCK_TIMEOUT_MS = 2_000
"""How long a statement of a task waits for a lock, in milliseconds: a held lock must not delay the other work."""
_NAMED_EVERY_S = 300.0


@dataclass(frozen=True)
class Task:
    """A periodic task. `part`: the database tables that it needs; without them there is nothing to do."""

    name: str
    part: str
    every_ms: int
    run: Callable[[], str]


class _Route:
    """A route whose output is opened for its first marker.

    An output that cannot be opened delays only the transactions that wait for its markers.
    """

    def __init__(self, make: Callable[[], MarkerWriter]) -> None:
        self._make = make
        self._output: MarkerWriter | None = None

    def write_marker(self, *marker: Any) -> object:
        if self._output is None:
            self._output = self._make()
        return self._output.write_marker(*marker)


def _landing(place: str) -> MarkerWriter:
    """Open a landing folder. Raises SourceError for another folder: a transaction has written to this one before."""
    from fencepost.transports import LandingTransport
    from fencepost.transports.landing import is_landing

    if not is_landing(place):
        raise SourceError(
            f"{place}: not a landing folder: it has no log and no partition count. Correct its path in "
            "[recover.routes]. A relative path begins at the daemon's working directory",
            path=place,
        )
    return LandingTransport(place)


class Maintenance:
    """The tasks of a database."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        self.database = Database(engine, lock_timeout_ms=LOCK_TIMEOUT_MS)
        self._named: dict[str, float] = {}

    def tasks(self) -> list[Task]:
        """Return the tasks that the settings enable."""
        settings, producers = self.settings, transaction_tables.PART.name
        found = [
            Task("recover", producers, settings.recover_every_ms, self.recover),
            Task("expire", producers, settings.expire_every_ms, self.expire),
            Task("requests", requests.PART.name, settings.requests_every_ms, self.delete_requests),
        ]
        if settings.decisions_keep_ms is not None:
            found.append(Task("decisions", producers, settings.decisions_every_ms, self.forget_decisions))
        if settings.claims_keep_ms:
            found.append(Task("claims", consumers.PART.name, settings.claims_every_ms, self.reap_claims))
        return found

    def recover(self) -> str:
        """Complete decided transactions, abort those open for too long, and log those that stay late."""
        failure = None
        try:
            done = self._coordinator.recover()
            said = f"{done.completed} completed, {done.aborted} aborted, {len(done.unrouted)} left to other routes"
        except ConcurrentTransactionError as error:
            failure = error
        for stuck in late_transactions(self.engine):
            self._name(stuck)
        if failure is not None:
            raise failure
        return said

    def expire(self) -> str:
        return f"{self._registry.expire()} transactional ids expired"

    def forget_decisions(self) -> str:
        assert self.settings.decisions_keep_ms is not None
        return f"{self._coordinator.forget_decisions(self.settings.decisions_keep_ms)} decisions forgotten"

    def delete_requests(self) -> str:
        return f"{self._requests.expire()} requests deleted"

    def reap_claims(self) -> str:
        """Delete old claims by consumer. An error of one consumer does not stop the others."""
        reaped, failure = 0, None
        for name, keep_ms in self.settings.claims_keep_ms.items():
            try:
                reaped += reap_consumer(self.database, name, keep_ms).claims
            except Exception as error:
                logger.warning("claims of %r: %s", name, error)
                failure = error
        if failure is not None:
            raise failure
        return f"{reaped} claims forgotten"

    # Components, created when their tables exist

    @cached_property
    def _registry(self) -> ProducerRegistry:
        return ProducerRegistry(
            self.engine,
            block_size=1,
            expiry_ms=self.settings.ids_after_ms,
            tombstone_ms=self.settings.tombstones_after_ms,
            lock_timeout_ms=LOCK_TIMEOUT_MS,
        )

    @cached_property
    def _coordinator(self) -> TransactionCoordinator:
        routes = {topic: self._route(route) for topic, route in self.settings.routes.items()}
        return TransactionCoordinator(self.engine, self._registry, routes=routes)

    @cached_property
    def _requests(self) -> IdempotentRequests:
        return IdempotentRequests(self.engine)

    def _route(self, route: Mapping[str, str] | str) -> MarkerWriter | None:
        if isinstance(route, str):
            return None
        [(kind, place)] = route.items()
        make: Any = {"table": self._table, "landing": _landing}
        return _Route(partial(make[kind], place))

    def _table(self, place: str) -> MarkerWriter:
        from fencepost.transports import SqlTransport

        return SqlTransport(self.engine, place)

    # Stuck transactions

    def _name(self, stuck: TransactionStatus) -> None:
        """Log a late transaction, at intervals."""
        last = self._named.get(stuck.transactional_id)
        if last is not None and time.monotonic() - last < _NAMED_EVERY_S:
            return
        self._named[stuck.transactional_id] = time.monotonic()
        found = describe_transaction(self.engine, stuck.transactional_id)
        held = "; ".join(
            f"backend {it.backend_pid} ({it.application or 'no name'}, {it.state} for {it.state_ms / 1000:.0f} s)"
            for it in found.sessions
        )
        logger.warning(
            "stuck: transactional id %r of producer (%d, %d) began a transaction %.0f s ago. It is in state %s and "
            "waits for %s%s",
            found.transactional_id, found.owner.pid, found.owner.epoch, (found.age_ms or 0) / 1000, found.state,
            found.waits_for, f". Its row is held, perhaps by {held}" if held else "",
        )  # fmt: skip
