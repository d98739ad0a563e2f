"""Insertions that find a row there: no error, and who asked knows which of the two it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, exc, literal, select
from sqlalchemy.dialects import postgresql, sqlite

_DUPLICATE = 1062  # ER_DUP_ENTRY


class RacedError(Exception):
    """Another transaction has inserted what this one took for new: begin again."""


def insert_if_missing(connection: Connection, table: Table, row: Mapping[str, Any], key: Sequence[str] = ()) -> bool:
    """Inserts a row unless its key is there; whether it was not. Waits for whoever is inserting the same key.

    `key`: the columns of a unique constraint, of the primary key unless given.
    """
    if connection.dialect.name in ("sqlite", "postgresql"):
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        # Not by rowcount, which is -1 for an insert whatever became of it.
        query = insert(table).on_conflict_do_nothing(index_elements=key or None).returning(*table.primary_key)
        return connection.execute(query, row).first() is not None
    return _insert_or_find(connection, table, row, key or table.primary_key.columns.keys())


def _insert_or_find(connection: Connection, table: Table, row: Mapping[str, Any], key: Sequence[str]) -> bool:
    """On MariaDB. Not by INSERT IGNORE, which passes over other errors too and cuts values off."""
    named = and_(*(table.c[name] == row[name] for name in key))
    # Who has failed to insert holds a shared lock, and two of them would wait for each other to change the row.
    if connection.execute(select(literal(1)).select_from(table).where(named).with_for_update()).first() is not None:
        return False
    try:
        connection.execute(table.insert(), row)
    except exc.IntegrityError as error:
        if not is_duplicate(error):
            raise
        return False
    return True


def as_json(rows: Sequence[Sequence[Any]]) -> str:
    """Rows for JSON_TABLE of MariaDB, which has no arrays."""
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def is_duplicate(error: exc.IntegrityError) -> bool:
    """Whether MariaDB has found the key; it has undone the statement alone."""
    return bool(error.orig is not None and error.orig.args[:1] == (_DUPLICATE,))
