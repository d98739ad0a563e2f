"""Where a coordinator's markers go, by topic, and what it leaves to others for want of a route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from fencepost.errors import PolicyError


class MarkerWriter(Protocol):
    """Where a route leads: a transport, or anything else with this call."""

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: Any, coordinator_epoch: int, /) -> object:
        """Tells a partition the outcome ("commit" or "abort") of the transaction that producer `pid` had open there.

        `epoch` is the raised one, as in Kafka's markers. It is called outside any database transaction, and again after
        a failure, then with a higher `coordinator_epoch`: writing twice must do no harm, and a marker that comes when
        the producer has gone on to the next transaction must be ignored. A log under Kafka's rules answers both by
        itself. What it raises means not written; what it returns is ignored.
        """


Routes = Mapping[str, MarkerWriter | None]


class Unrouted(NamedTuple):
    """A transaction that is left to a coordinator with other routes."""

    transactional_id: str
    topics: tuple[str, ...]
    """The topics that wait for markers and have no route here."""


class Recovered(NamedTuple):
    """What `recover` and `reap` found to do."""

    completed: int
    """Transactions that were decided, and whose markers are all written now."""
    aborted: int
    """Transactions that were open for longer than they may be, and are decided now."""
    unrouted: tuple[Unrouted, ...] = ()
    """Transactions that wait for markers, or are open for too long, and whose topics have no route here."""


def checked_routes(routes: Routes) -> dict[str, MarkerWriter | None]:
    """The routes as a dict. Raises PolicyError for one that leads nowhere."""
    for topic, route in routes.items():
        if not isinstance(topic, str) or not topic:
            raise PolicyError(f"routes: {topic!r}: a topic is a name of at least one character")
        if route is not None and not callable(getattr(route, "write_marker", None)):
            raise PolicyError(
                f"routes: topic {topic!r}: {type(route).__name__} has no write_marker(pid, epoch, partition, outcome, "
                "coordinator_epoch): give the transport, or None where readers ask for decisions"
            )
    return dict(routes)
