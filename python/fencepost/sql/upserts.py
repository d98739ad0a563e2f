"""Insertions that report an existing row instead of raising an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, exc, literal, select
from sqlalchemy.dialects import postgresql, sqlite

_DUPLICATE = 1062  # ER_DUP_ENTRY


class RacedError(Exception):
    """Another transaction has inserted a row that was new for this one. Start the transaction again."""


def insert_if_missing(connection: Connection, table: Table, row: Mapping[str, Any], key: Sequence[str] = ()) -> bool:
    """Insert a row unless its key exists. Return whether it was inserted.

    Waits for a concurrent insertion of the same key. `key`: the columns of a unique constraint. (): the primary key.
    """
    if connection.dialect.name in ("sqlite", "postgresql"):
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        # Use RETURNING, because the rowcount of such an insertion is always -1.
        query = insert(table).on_conflict_do_nothing(index_elements=key or None).returning(*table.primary_key)
        return connection.execute(query, row).first() is not None
    return _insert_or_find(connection, table, row, key or table.primary_key.columns.keys())


def _insert_or_find(connection: Connection, table: Table, row: Mapping[str, Any], key: Sequence[str]) -> bool:
    """Insert on MariaDB. INSERT IGNORE would also ignore other errors, and truncate values."""
    named = and_(*(table.c[name] == row[name] for name in key))
    # Lock the row first: a failed insertion leaves a shared lock, with which two transactions could deadlock when both
    # change the row.
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
    """Return rows as JSON, for JSON_TABLE of MariaDB, which has no array parameters."""
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def json_text(bytes_max: int) -> str:
    """Return the type of a text in JSON_TABLE. Without a character set it has the database's, such as latin1, which
    turns other characters into question marks."""
    return f"VARCHAR({bytes_max}) CHARACTER SET utf8mb4"


def is_duplicate(error: exc.IntegrityError) -> bool:
    """Return whether MariaDB has found the key. It then rolls back only the statement."""
    return bool(error.orig is not None and error.orig.args[:1] == (_DUPLICATE,))
