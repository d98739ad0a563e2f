"""What a call of few rows writes to PostgreSQL, in one statement, one round trip: claims, positions, and the rows.

By message id the same statement judges: it writes the rows whose ids it could claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, TextClause, exc, text

from fencepost.sql import rows as bulk
from fencepost.sql.consumers import Consumer
from fencepost.sql.messages import ARRAYS, CLAIM, Ids, Messages, MessageVerdicts
from fencepost.sql.messages import arrays_of as arrays_of_ids
from fencepost.sql.rows import array_of_integers, array_of_texts
from fencepost.sql.sequence_claims import SequenceVerdicts, arrays_of, insert_of, update_of
from fencepost.sql.target import Target
from fencepost.sql.upserts import RacedError


class UnnamedError(Exception):
    """The database refused a row, and does not say which. COPY does."""


def write_together(
    connection: Connection,
    consumer: Consumer,
    judged: SequenceVerdicts | MessageVerdicts,
    positions: Mapping[str, int],
    target: Target,
    rows: pa.Table,
) -> None:
    """Inserts new claims, updates those that changed, moves positions, and puts the rows into the target.

    Raises:
        RacedError: another transaction has inserted one of the claims. To be done again, from the start.
        UnnamedError: the target refuses a row. Likewise, by COPY.
    """
    insert, values = bulk.as_arrays(connection, target.table, rows) if rows.num_rows else ("", {})
    for name, claims in (("new", judged.new), ("changed", judged.changed)):
        values |= arrays_of(name, claims)
    values |= _moves(positions)
    query = _query(consumer.database.clock, bool(judged.new), bool(judged.changed), bool(positions), insert)
    if query is None:
        return
    try:
        inserted = connection.execute(query, {"consumer": consumer.id, **values}).scalar_one()
    except (exc.IntegrityError, exc.DataError) as error:
        raise UnnamedError from error
    if inserted != len(judged.new):
        raise RacedError
    if isinstance(judged, SequenceVerdicts):
        judged.holes.save(connection, consumer)


def _make_query(clock: str, has_new: bool, has_changed: bool, has_positions: bool, insert: str) -> TextClause | None:
    """The statement; None where nothing is to be written. Made once: to read its text takes as long as to run it."""
    parts = {
        "new": f"{insert_of('new', clock)} RETURNING 1" if has_new else "",
        "changed": update_of("changed", clock) if has_changed else "",
        "moved": _MOVED.format(clock=clock) if has_positions else "",
        "written": insert,
    }
    given = ", ".join(f"{name} AS ({part})" for name, part in parts.items() if part)
    return text(f"WITH {given} SELECT {'count(*) FROM new' if has_new else '0'}") if given else None


_query = lru_cache(maxsize=256)(_make_query)


def claim_together(
    connection: Connection,
    messages: Messages,
    ids: Ids,
    positions: Mapping[str, int],
    target: Target,
    rows: pa.Table,
) -> MessageVerdicts:
    """Judges rows by their ids, as `Messages.claim`, puts those with new ids into the target, and moves positions.

    It looks for the ids and inserts the others, which costs the database a quarter less than ON CONFLICT.

    Raises:
        UnnamedError: the target refuses a row, or another transaction has claimed an id meanwhile. To be done again, by
            ON CONFLICT and COPY.
    """
    into, arrays = bulk.arrays_into(connection, target.table, tuple(rows.column_names))

    def insert(ids: Ids, asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values: dict[str, Any] = bulk.columns_as_arrays(rows.take(pa.array(ids.first[asked])))
        values |= arrays_of_ids(ids, asked) | _moves(positions) | {"consumer": messages.consumer.id}
        query = _claiming(messages.consumer.database.clock, bool(positions), into, arrays, rows.num_columns)
        try:
            found = connection.execute(query, values).scalar_one()
        except (exc.IntegrityError, exc.DataError) as error:
            raise UnnamedError from error
        return np.array(found or [], np.int64) - 1

    return messages.claim(connection, ids, positions, insert)


@lru_cache(maxsize=256)
def _claiming(clock: str, has_positions: bool, into: str, arrays: str, columns: int) -> TextClause:
    """The statement that claims ids, and returns the places of those that were new.

    OFFSET 0 makes the database look up each id in the index, whatever it believes about the size of the table.
    """
    names = ", ".join(f"c{at}" for at in range(columns))
    moved = f"moved AS ({_MOVED.format(clock=clock)}), " if has_positions else ""
    return text(
        f"WITH new AS MATERIALIZED (SELECT * FROM unnest({arrays}, {ARRAYS}) WITH ORDINALITY "
        f"AS n ({names}, id, version, timestamp, place) WHERE NOT EXISTS ("
        "SELECT 1 FROM fencepost_messages AS m WHERE m.consumer = :consumer AND m.id = n.id AND m.version = n.version "
        f"OFFSET 0)), claimed AS ({CLAIM.format(clock=clock)} FROM new AS n), {moved}"
        f"written AS (INSERT INTO {into} SELECT {names} FROM new) SELECT array_agg(place) FROM new"
    )


def _moves(positions: Mapping[str, int]) -> dict[str, str]:
    """The parameters of `_MOVED`."""
    sources = sorted(positions)
    return {"sources": array_of_texts(sources), "positions": array_of_integers([positions[it] for it in sources])}


_MOVED = """
INSERT INTO fencepost_applied (consumer, source, position, changed_ms)
SELECT :consumer, p.source, p.position, {clock}
FROM unnest(CAST(:sources AS text[]), CAST(:positions AS bigint[])) AS p (source, position)
ON CONFLICT (consumer, source) DO UPDATE SET position = excluded.position, changed_ms = excluded.changed_ms
WHERE excluded.position > fencepost_applied.position
"""
