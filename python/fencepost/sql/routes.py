"""Routes: where a coordinator writes the markers of each topic, and the transactions for which it has no route."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any, NamedTuple, Protocol

from fencepost.errors import PolicyError, StateConflictError
from fencepost.verdict import Verdict


class MarkerWriter(Protocol):
    """The target of a route: a transport, or another object with this method."""

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: Any, coordinator_epoch: int, /) -> object:
        """Write the outcome ("commit" or "abort") of the transaction of producer `pid` to a partition.

        `epoch` is the raised epoch, as in Kafka's markers. The call is made outside of database transactions. After a
        failure it is repeated with a higher `coordinator_epoch`, so writing twice must be harmless. A marker that
        arrives after the producer has begun its next transaction must be ignored. A log under Kafka's rules ensures
        both. An exception means that the marker is not written, and so does the returned value
        `Verdict.COORDINATOR_FENCED`. An awaitable or a future is refused: the marker may not be written yet. Other
        returned values are ignored.
        """


Routes = Mapping[str, MarkerWriter | None]


class Unrouted(NamedTuple):
    """A transaction that another coordinator must finish, because this one has no route."""

    transactional_id: str
    topics: tuple[str, ...]
    """The topics that wait for markers and have no route here."""


class Recovered(NamedTuple):
    """The result of `recover` and `reap`."""

    completed: int
    """Number of decided transactions whose markers are now all written."""
    aborted: int
    """Number of transactions that exceeded their time-out and are now decided."""
    unrouted: tuple[Unrouted, ...] = ()
    """Transactions that wait for markers or exceed their time-out, and have topics without a route here."""


_BLOCKING = "Pass one that returns only when the marker is durable, because the coordinator then counts it as written"


def write_marker(
    route: MarkerWriter, topic: str, pid: int, epoch: int, partition: int, outcome: str, coordinator_epoch: int
) -> None:
    """Call `write_marker` of a route.

    Raises:
        PolicyError: It returned before the marker is written.
        StateConflictError: The output has refused the marker.
    """
    result = route.write_marker(pid, epoch, partition, outcome, coordinator_epoch)
    if result is Verdict.COORDINATOR_FENCED:
        raise StateConflictError(
            f"topic {topic!r}, partition {partition}: the output has a marker of pid {pid} with a coordinator epoch "
            f"above {coordinator_epoch}, so it refuses this one. Another coordinator has written it, or the database "
            "was restored from a backup. Call recover() again until the output accepts the marker: each call raises "
            "the coordinator epoch by 1"
        )
    if isawaitable(result) or isinstance(result, Future):
        if iscoroutine(result):
            result.close()
        raise PolicyError(f"routes: topic {topic!r}: write_marker returned a {type(result).__name__}. {_BLOCKING}")


def checked_routes(routes: Routes) -> dict[str, MarkerWriter | None]:
    """Return the routes as a dict. Raises PolicyError for an invalid topic or a route without `write_marker`."""
    for topic, route in routes.items():
        if not isinstance(topic, str) or not topic:
            raise PolicyError(f"routes: {topic!r}: a topic is a name of at least one character")
        if route is not None and not callable(getattr(route, "write_marker", None)):
            raise PolicyError(
                f"routes: topic {topic!r}: {type(route).__name__} has no write_marker(pid, epoch, partition, outcome, "
                "coordinator_epoch): pass the transport, or None if readers ask for decisions"
            )
        if route is not None and iscoroutinefunction(route.write_marker):
            raise PolicyError(f"routes: topic {topic!r}: write_marker is a coroutine function. {_BLOCKING}")
    return dict(routes)
