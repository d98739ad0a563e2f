"""Forgetting by age: the horizon first, which decides how rows are judged; then the claims behind it, in pieces.

Without event times there is no horizon: claims go that took no new row for so long, and nothing is known of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, tuple_

from fencepost.errors import Coded, PolicyError
from fencepost.sql.consumers import CONSUMERS, Consumer, Storage
from fencepost.sql.database import Database

_PIECE_ROWS = 20_000


class RetentionWarning(Coded, UserWarning):
    """The retention is shorter than the time in which an event can arrive again.

    What to do: choose a longer retention, or shorten the path that the message names.
    """

    code = "FP901"


@dataclass(frozen=True)
class Reaped:
    """What a reap has done."""

    claims: int
    """Rows of the database that went."""
    horizon_ms: int | None
    """Rows with a timestamp at or below it are judged by what is still known, and never taken for new. None: claims
    went by the time of processing, and there is no horizon."""
    warning: str | None
    """Why the retention is too short, where it is."""


def reap(
    consumer: Consumer, storage: Storage, retention_ms: int, replay_ms: int | None, now_ms: int | None, force: bool
) -> Reaped:
    """See `SqlSink.reap`."""
    if not consumer.keeps_time:
        raise PolicyError(
            f"consumer {consumer.name!r} keeps no timestamps, so nothing tells how old its claims are: name the "
            "column of the events' own time (Columns(timestamp=...), or timestamp= by message id) when it is set up, "
            "or reap by='processed_time', after which an event that comes again is applied again"
        )
    warning = _too_short(consumer, retention_ms, replay_ms, "FORGOTTEN, not recognised as duplicates")
    if warning is not None:
        warnings.warn(warning, RetentionWarning, stacklevel=3)

    def raise_horizon(connection: Connection) -> int:
        clock = consumer.database.now_ms(connection)
        horizon = (clock if now_ms is None else now_ms) - retention_ms
        if not force:
            _check_in_flight(connection, consumer, storage, horizon, clock - retention_ms)
        return consumer.raise_horizon(connection, horizon)

    horizon_ms = consumer.database.transaction(raise_horizon)
    return Reaped(_delete_behind(consumer, storage, storage.timestamp, horizon_ms), horizon_ms, warning)


def reap_processed(
    consumer: Consumer, storage: Storage, retention_ms: int, replay_ms: int | None, now_ms: int | None, force: bool
) -> Reaped:
    """See `SqlSink.reap`."""
    if consumer.keeps_time:
        raise PolicyError(
            f"consumer {consumer.name!r} keeps the events' own time: reap by='event_time', after which nothing that "
            "was forgotten is taken for new"
        )
    warning = _too_short(consumer, retention_ms, replay_ms, "applied again")
    if warning is not None:
        if not force:
            raise PolicyError(f"{warning}. Choose a longer one; force=True goes on. Nothing has changed")
        warnings.warn(warning, RetentionWarning, stacklevel=3)
    clock = consumer.database.transaction(consumer.database.now_ms) if now_ms is None else now_ms
    return Reaped(_delete_behind(consumer, storage, "changed_ms", clock - retention_ms), None, warning)


def reap_consumer(database: Database, name: str, retention_ms: int) -> Reaped:
    """Forgets the claims of a consumer that are older than this, for a process that does not have its sink.

    By the events' own time where the consumer keeps it, else by the time of processing: see `SqlSink.reap`.
    """
    consumer, storage = Consumer.find(database, name)
    forget = reap if consumer.keeps_time else reap_processed
    return forget(consumer, storage, retention_ms, None, None, False)


def _too_short(consumer: Consumer, retention_ms: int, replay_ms: int | None, outcome: str) -> str | None:
    """What is to be told where a replay takes longer than the retention. Raises PolicyError."""
    is_count = isinstance(retention_ms, int) and not isinstance(retention_ms, bool)
    if not is_count or retention_ms <= 0:
        raise PolicyError(f"retention_ms={retention_ms!r}: a positive number of milliseconds was expected")
    if replay_ms is None or retention_ms >= replay_ms:
        return None
    return (
        f"consumer {consumer.name!r}: a retention of {retention_ms} ms is shorter than the slowest replay "
        f"({replay_ms} ms): events that come again by it will be {outcome}"
    )


def _check_in_flight(
    connection: Connection, consumer: Consumer, storage: Storage, horizon_ms: int, written_after_ms: int
) -> None:
    columns = storage.table.c
    in_flight = (
        columns.consumer == consumer.id,
        columns[storage.timestamp] <= horizon_ms,
        columns.changed_ms > written_after_ms,
    )
    count, slowest = connection.execute(
        select(func.count(), func.max(columns.changed_ms - columns[storage.timestamp])).where(*in_flight)
    ).one()
    if count:
        raise PolicyError(
            f"consumer {consumer.name!r}: the retention is shorter than what is in flight: {count} of its claims were "
            f"written within it by events that are older, up to {slowest} ms behind. Choose a longer one, or wait "
            "until the replay is over; force=True forgets them. Nothing has changed"
        )


def _delete_behind(consumer: Consumer, storage: Storage, age: str, until_ms: int) -> int:
    """In the order of keys, in which they are locked everywhere, and on from the last one: no piece looks twice."""
    table = storage.table
    columns = [table.c[name] for name in storage.key]
    key, lead = tuple_(*columns), columns[0]
    behind = (table.c.consumer == consumer.id, table.c[age] <= until_ms)
    after: tuple[object, ...] | None = None
    deleted = 0
    while True:

        def delete_piece(connection: Connection, after: tuple[object, ...] | None = after) -> list[tuple[object, ...]]:
            query = select(*columns).where(*behind).order_by(*columns).limit(_PIECE_ROWS).with_for_update()
            # The lead says it once more, for MariaDB, which finds no range of an index by several columns.
            piece = () if after is None else (key > after, lead >= after[0])
            found = [tuple(row) for row in connection.execute(query.where(*piece))]
            if found:
                last = (key <= found[-1], lead <= found[-1][0])
                if storage.beside is not None:
                    gone = select(*columns).where(*behind, *piece, *last)
                    of_consumer = storage.beside.c.consumer == consumer.id
                    names = tuple_(*(storage.beside.c[name] for name in storage.key))
                    connection.execute(delete(storage.beside).where(of_consumer, names.in_(gone)))
                connection.execute(delete(table).where(*behind, *piece, *last))
            return found

        found = consumer.database.transaction(delete_piece)
        deleted += len(found)
        if len(found) < _PIECE_ROWS:
            return deleted
        after = found[-1]


def horizon_of(connection: Connection, consumer: Consumer) -> int | None:
    """The horizon as it is now; it may rise meanwhile."""
    found: int | None = connection.execute(
        select(CONSUMERS.c.horizon_ms).where(CONSUMERS.c.id == consumer.id)
    ).scalar_one()
    return found
