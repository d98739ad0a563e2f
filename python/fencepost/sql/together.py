"""The writes of a small call on PostgreSQL in one statement: claims, positions and rows, in one round trip.

For claims by message id the statement also judges: it writes the rows whose ids it has claimed.
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
    """The database refused a row without naming it. COPY names the row."""


# NotSupportedError: the target has a rule for INSERT that was created after its types were read.
_REFUSED = (exc.IntegrityError, exc.DataError, exc.NotSupportedError)


def write_together(
    connection: Connection,
    consumer: Consumer,
    judged: SequenceVerdicts | MessageVerdicts,
    positions: Mapping[str, int],
    target: Target,
    rows: pa.Table,
) -> None:
    """Insert new claims, update changed claims, move positions, and insert the rows into the target.

    Raises:
        RacedError: Another transaction has inserted one of the claims. Start the call again.
        UnnamedError: The target refuses a row. Start the call again with COPY.
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
    except _REFUSED as error:
        raise UnnamedError from error
    if inserted != len(judged.new):
        raise RacedError
    if isinstance(judged, SequenceVerdicts):
        judged.holes.save(connection, consumer)


def _make_query(clock: str, has_new: bool, has_changed: bool, has_positions: bool, insert: str) -> TextClause | None:
    """Return the statement, or None if there is nothing to write.

    The result is cached, because SQLAlchemy takes as long to parse the text as the database to run it.
    """
    parts = {
        "new": f"{insert_of('new', clock)} RETURNING 1" if has_new else "",
        "changed": update_of("changed", clock) if has_changed else "",
        "moved": _MOVED.format(clock=clock) if has_positions else "",
        "written": insert,
    }
    clauses = ", ".join(f"{name} AS ({part})" for name, part in parts.items() if part)
    return text(f"WITH {clauses} SELECT {'count(*) FROM new' if has_new else '0'}") if clauses else None


_query = lru_cache(maxsize=256)(_make_query)


def claim_together(
    connection: Connection,
    messages: Messages,
    ids: Ids,
    positions: Mapping[str, int],
    target: Target,
    rows: pa.Table,
) -> MessageVerdicts:
    """Judge rows by their ids, as `Messages.claim`. Insert rows with new ids into the target, and move positions.

    The statement looks up the ids and inserts those it does not find. The database takes a quarter less time than with
    ON CONFLICT.

    Raises:
        UnnamedError: The target refuses a row, or another transaction has claimed an id at the same time. Start the
            call again with ON CONFLICT and COPY.
    """
    into, arrays = bulk.arrays_into(connection, target.table, tuple(rows.column_names))

    def insert(ids: Ids, asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values: dict[str, Any] = bulk.columns_as_arrays(rows.take(pa.array(ids.first[asked])))
        values |= arrays_of_ids(ids, asked) | _moves(positions) | {"consumer": messages.consumer.id}
        query = _claiming(messages.consumer.database.clock, bool(positions), into, arrays, rows.num_columns)
        try:
            found = connection.execute(query, values).scalar_one()
        except _REFUSED as error:
            raise UnnamedError from error
        return np.array(found or [], np.int64) - 1

    return messages.claim(connection, ids, positions, insert)


@lru_cache(maxsize=256)
def _claiming(clock: str, has_positions: bool, into: str, arrays: str, columns: int) -> TextClause:
    """Return the statement that claims ids and returns the places of new ones.

    OFFSET 0 makes the planner look up each id in the index, whatever its estimate of the table's size.
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
    """Return the parameters of `_MOVED`."""
    sources = sorted(positions)
    return {"sources": array_of_texts(sources), "positions": array_of_integers([positions[it] for it in sources])}


_MOVED = """
INSERT INTO fencepost_applied (consumer, source, position, changed_ms)
SELECT :consumer, p.source, p.position, {clock}
FROM unnest(CAST(:sources AS text[]), CAST(:positions AS bigint[])) AS p (source, position)
ON CONFLICT (consumer, source) DO UPDATE SET position = excluded.position, changed_ms = excluded.changed_ms
WHERE excluded.position > fencepost_applied.position
"""
