"""Retention: raises the horizon, by which rows are judged, and then deletes the claims below it in pieces.

Without event times there is no horizon. Claims without a new row for the retention are deleted and leave no trace.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, tuple_

from fencepost.errors import Coded, PolicyError
from fencepost.inputs import is_integer
from fencepost.sql.consumers import Consumer, Storage
from fencepost.sql.database import Database

_PIECE_ROWS = 20_000


class RetentionWarning(Coded, UserWarning):
    """The retention of claims is shorter than `replay_ms`, the longest time after which an event can arrive again.

    An event that arrives again after its claim was removed is not recognized as a duplicate.

    What to do: pass a longer `retention_ms` to `reap`. If no event can arrive again after `retention_ms`, pass a
    smaller `replay_ms` to `SqlSink`.
    """

    code = "FP901"


@dataclass(frozen=True)
class Reaped:
    """The result of a reap."""

    claims: int
    """Number of deleted claims."""
    horizon_ms: int | None
    """Unknown rows with a timestamp at or below the horizon are never treated as new. None if claims are deleted by
    processing time."""
    warning: str | None
    """Why the retention is too short. None if it is long enough."""


def reap(
    consumer: Consumer, storage: Storage, retention_ms: int, replay_ms: int | None, now_ms: int | None, force: bool
) -> Reaped:
    """Implement `SqlSink.reap` by event time."""
    if not consumer.keeps_time:
        raise PolicyError(
            f"consumer {consumer.name!r} keeps no timestamps, so the age of its claims is unknown. Create it with the "
            "column of the events' own time (claim='sequence': Columns(timestamp=...); claim='message_id': "
            "timestamp=...). Or reap by='processed_time': an event whose claim was reaped is then applied again if it "
            "is delivered again"
        )
    _check_now(now_ms)
    warning = _too_short(consumer, retention_ms, replay_ms, "FORGOTTEN, not recognized as duplicates")
    if warning is not None:
        warnings.warn(warning, RetentionWarning, stacklevel=3)

    def raise_horizon(connection: Connection) -> int:
        consumer.check_known(connection)  # The horizon of another consumer would never decrease.
        clock = consumer.database.now_ms(connection)
        horizon = (clock if now_ms is None else now_ms) - retention_ms
        if not force:
            _check_past(horizon, clock, now_ms, "FORGOTTEN, and the horizon never decreases")
            _check_in_flight(connection, consumer, storage, horizon, clock - retention_ms)
        return consumer.raise_horizon(connection, horizon)

    horizon_ms = consumer.database.transaction(raise_horizon)
    return Reaped(_delete_behind(consumer, storage, storage.timestamp, horizon_ms), horizon_ms, warning)


def reap_processed(
    consumer: Consumer, storage: Storage, retention_ms: int, replay_ms: int | None, now_ms: int | None, force: bool
) -> Reaped:
    """Implement `SqlSink.reap` by processing time."""
    if consumer.keeps_time:
        raise PolicyError(
            f"consumer {consumer.name!r} keeps the events' own time: reap by='event_time', which never treats "
            "forgotten rows as new"
        )
    _check_now(now_ms)
    warning = _too_short(consumer, retention_ms, replay_ms, "applied again")
    if warning is not None:
        if not force:
            raise PolicyError(f"{warning}. Choose a longer retention, or pass force=True. Nothing has changed")
        warnings.warn(warning, RetentionWarning, stacklevel=3)
    clock = consumer.database.transaction(consumer.database.now_ms)
    until_ms = (clock if now_ms is None else now_ms) - retention_ms
    if not force:
        _check_past(until_ms, clock, now_ms, "applied again if they are delivered again")
    return Reaped(_delete_behind(consumer, storage, "changed_ms", until_ms), None, warning)


def reap_consumer(database: Database, name: str, retention_ms: int) -> Reaped:
    """Forget the claims of a consumer that are older than the retention, for a process without its sink.

    The age is by event time if the consumer keeps timestamps, else by processing time: see `SqlSink.reap`.
    """
    consumer, storage = Consumer.find(database, name)
    forget = reap if consumer.keeps_time else reap_processed
    return forget(consumer, storage, retention_ms, None, None, False)


def _check_now(now_ms: int | None) -> None:
    """Raise PolicyError for a time that is not a 64-bit integer: the horizon is stored, and never decreases."""
    if now_ms is not None and not is_integer(now_ms, -(2**63), 2**63 - 1):
        raise PolicyError(f"now_ms={now_ms!r}: expected an integer, in milliseconds since 1970. Nothing has changed")


def _too_short(consumer: Consumer, retention_ms: int, replay_ms: int | None, outcome: str) -> str | None:
    """Return a warning if the retention is shorter than a replay, else None. Raises PolicyError if it is invalid."""
    if not is_integer(retention_ms, 1):
        raise PolicyError(f"retention_ms={retention_ms!r}: expected a positive number of milliseconds")
    if replay_ms is None or retention_ms >= replay_ms:
        return None
    return (
        f"consumer {consumer.name!r}: a retention of {retention_ms} ms is shorter than the slowest replay "
        f"({replay_ms} ms): events that the replay delivers again will be {outcome}"
    )


def _check_past(until_ms: int, clock_ms: int, now_ms: int | None, outcome: str) -> None:
    """Raise PolicyError if claims up to a time after the database's clock would be forgotten."""
    if until_ms > clock_ms:
        raise PolicyError(
            f"now_ms={now_ms}: with this retention, claims up to {until_ms} would be forgotten, which is after the "
            f"database's clock ({clock_ms}). All events up to now would be {outcome}. Pass milliseconds since 1970, or "
            "force=True. Nothing has changed"
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
            f"consumer {consumer.name!r}: events arrive later than the retention allows: of the claims written within "
            f"the retention, {count} are of older events (up to {slowest} ms late when they were written). "
            "Choose a longer retention, or wait until the replay is over. With force=True, further events of this age "
            "are not applied (FORGOTTEN). Nothing has changed"
        )


def _delete_behind(consumer: Consumer, storage: Storage, age: str, until_ms: int) -> int:
    """Delete claims in pieces, in key order. Returns their number.

    All transactions lock claims in this order. Each piece begins after the last key of the previous one.
    """
    table = storage.table
    columns = [table.c[name] for name in storage.key]
    key, lead = tuple_(*columns), columns[0]
    behind = (table.c.consumer == consumer.id, table.c[age] <= until_ms)
    after: tuple[object, ...] | None = None
    deleted = 0
    while True:

        def delete_piece(connection: Connection, after: tuple[object, ...] | None = after) -> list[tuple[object, ...]]:
            consumer.check_known(connection)
            query = select(*columns).where(*behind).order_by(*columns).limit(_PIECE_ROWS).with_for_update()
            # The condition on the first column helps MariaDB, which cannot use an index range on several columns.
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
