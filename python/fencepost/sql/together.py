"""What a call of few rows writes to PostgreSQL, in one statement, one round trip: claims, positions, and the rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa
from sqlalchemy import Connection, TextClause, exc, text

from fencepost.sql import rows as bulk
from fencepost.sql.consumers import Consumer
from fencepost.sql.messages import MessageVerdicts
from fencepost.sql.rows import array_of_integers, array_of_texts
from fencepost.sql.sequences import SequenceVerdicts, arrays_of, insert_of, update_of
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
    sources = sorted(positions)
    values |= {"sources": array_of_texts(sources), "positions": array_of_integers([positions[it] for it in sources])}
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


_MOVED = """
INSERT INTO fencepost_applied (consumer, source, position, changed_ms)
SELECT :consumer, p.source, p.position, {clock}
FROM unnest(CAST(:sources AS text[]), CAST(:positions AS bigint[])) AS p (source, position)
ON CONFLICT (consumer, source) DO UPDATE SET position = excluded.position, changed_ms = excluded.changed_ms
WHERE excluded.position > fencepost_applied.position
"""
