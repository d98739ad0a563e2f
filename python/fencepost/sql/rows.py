"""Rows in bulk: an Arrow table into a table of the database.

PostgreSQL takes up to `ARRAYS_ROWS_MAX` rows of `SqlSink` as an array a column, in one prepared statement: one round
trip, where COPY takes three. Which row it refuses it does not say; COPY does. More rows, and all others, it takes as
CSV by COPY on the transaction's own connection. Into the table itself: that is as atomic as an insert from a temporary
table beside it, and takes two thirds of the time. Binary COPY saves the server a third of its part, and costs as much
more to make from Arrow in NumPy. Where COPY cannot (rules, row security) rows go through a temporary table after all.
SQLite takes one prepared statement for all rows, MariaDB statements of many rows each.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from sqlalchemy import Connection, Table, TextClause, exc, text

from fencepost.errors import BatchError
from fencepost.inputs import shown
from fencepost.sql import drivers
from fencepost.sql.database import driver_errors

ARRAYS_ROWS_MAX = 2_000
_PIECE_BYTES = 1 << 18
# What COPY says of the place where it stopped.
_WHERE = re.compile(r"COPY [^,]+, line (\d+)(?:, column ([^:]+))?")
_STAGED = "fencepost_staged"
NOTHING = "nothing of this call was applied"


def are_uuids(column: pa.ChunkedArray) -> bool:
    """Whether it has UUIDs as such, or 16 bytes each."""
    if column.type == pa.uuid() or column.type == pa.binary(16):
        return True
    lengths = pc.unique(pc.binary_length(column)).to_pylist() if pa.types.is_binary(column.type) else []
    return 16 in lengths and set(lengths) <= {16, None}


def uuid_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """In the spelling of RFC 9562."""
    values = column.cast(pa.binary(16)) if column.type == pa.uuid() else column
    texts = [None if it is None else str(uuid.UUID(bytes=it)) for it in values.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


_UUID = (
    "^(?i:urn:uuid:)?[{]?([0-9a-fA-F]{8})-?([0-9a-fA-F]{4})-?([0-9a-fA-F]{4})-?([0-9a-fA-F]{4})-?([0-9a-fA-F]{12})[}]?$"
)


_PLAIN_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def uuid_spellings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts that spell a UUID in any way (hex, braces, urn, capitals), in the spelling of RFC 9562; others as nulls."""
    if pc.all(pc.match_substring_regex(column, _PLAIN_UUID)).as_py():
        return column  # most often; in a third of the time
    spelt = pc.utf8_lower(pc.replace_substring_regex(column, _UUID, r"\1-\2-\3-\4-\5"))
    return pc.if_else(pc.match_substring_regex(column, _UUID), spelt, pa.scalar(None, pa.string()))


def insert(connection: Connection, table: Table, rows: pa.Table, numbers: Any = None) -> None:
    """Puts all rows into the table: the columns of the rows, whose values are what its columns take.

    `numbers`: of each row, the number by which its sender knows it; as they stand unless given.

    Raises:
        BatchError: the database refused a row, named by its number. The transaction cannot go on.
    """
    if rows.num_rows == 0:
        return
    if connection.dialect.name == "sqlite":
        _insert_all(connection, table, rows, numbers)
    elif connection.dialect.name != "postgresql":
        _insert_pieces(connection, table, rows, numbers)
    elif _takes_copy(connection, table):
        _copy(connection, quoted(connection, table), rows, numbers)
    else:
        _insert_staged(connection, table, rows, numbers)


def takes_arrays(connection: Connection, table: Table, rows: pa.Table) -> bool:
    """Whether PostgreSQL can take these rows as `array_of` each column, and does it faster than by COPY."""
    if connection.dialect.name != "postgresql" or rows.num_rows > ARRAYS_ROWS_MAX:
        return False
    kinds = _kinds_of(connection, table)
    return all(kinds.get(name) for name in rows.column_names)


def as_arrays(connection: Connection, table: Table, rows: pa.Table) -> tuple[str, dict[str, str]]:
    """An INSERT of these rows, each column an array of its own, and its parameters."""
    into, arrays = arrays_into(connection, table, tuple(rows.column_names))
    return f"INSERT INTO {into} SELECT * FROM unnest({arrays})", columns_as_arrays(rows)


def arrays_into(connection: Connection, table: Table, names: tuple[str, ...]) -> tuple[str, str]:
    """A table with these columns, as an INSERT names them, and the arrays `:c0`, `:c1`, ... of their types."""
    known: dict[tuple[str, ...], tuple[str, str]] = table.info.setdefault("fencepost_inserts", {})
    if names not in known:
        kinds = _kinds_of(connection, table)
        target, columns = quoted(connection, table), quoted_names(connection, names)
        arrays = ", ".join(f"CAST(:c{at} AS {kinds[name]}[])" for at, name in enumerate(names))
        known[names] = f"{target} ({columns})".replace(":", "\\:"), arrays
    return known[names]


def columns_as_arrays(rows: pa.Table) -> dict[str, str]:
    """The parameters of these arrays."""
    return {f"c{at}": array_of(column) for at, column in enumerate(_for_copy(rows).columns)}


def array_of(column: pa.ChunkedArray) -> str:
    """A column as PostgreSQL reads an array; the driver takes ten times as long to write a list so."""
    if pa.types.is_string(column.type):
        for found, written in (("\\", "\\\\"), ('"', '\\"')):
            column = pc.replace_substring(column, found, written)
        column = pc.binary_join_element_wise('"', column, '"', "")
    texts = column.cast(pa.string())
    texts = (pc.fill_null(texts, "NULL") if texts.null_count else texts).combine_chunks()
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return f"{{{pc.binary_join(whole, ',')[0].as_py()}}}"


def array_of_integers(values: Sequence[int | None]) -> str:
    """The same of integers in Python."""
    return f"{{{','.join(map(str, values)).replace('None', 'NULL')}}}"


def array_of_texts(values: Sequence[str | None]) -> str:
    """The same of texts in Python."""
    return f"{{{','.join('NULL' if it is None else _in_array(it) for it in values)}}}"


def _in_array(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"') if "\\" in value or '"' in value else value
    return f'"{escaped}"'


def _kinds_of(connection: Connection, table: Table) -> dict[str, str | None]:
    """The types of the columns without their lengths, for a cast would cut where an assignment refuses.

    None for arrays, which cannot be in arrays. Read once: what a column becomes later refuses values, or takes them.
    """
    if _KINDS not in table.info:
        found = connection.execute(text(_KINDS_QUERY), {"name": quoted(connection, table)})
        table.info[_KINDS] = {name: kind.replace(":", "\\:") if is_plain else None for name, kind, is_plain in found}
    kinds: dict[str, str | None] = table.info[_KINDS]
    return kinds


_KINDS = "fencepost_kinds"
_KINDS_QUERY = """
SELECT a.attname, format_type(a.atttypid, -1), t.typarray <> 0 AND t.typcategory <> 'A'
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = CAST(:name AS regclass) AND a.attnum > 0 AND NOT a.attisdropped
"""


def quoted(connection: Connection, table: Table) -> str:
    """A table, as statements name it."""
    return unescaped(connection.dialect.name, connection.dialect.identifier_preparer.format_table(table))


def quoted_names(connection: Connection, names: Sequence[str]) -> str:
    """Columns, as statements name them."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    return unescaped(connection.dialect.name, ", ".join(map(quote, names)))


def unescaped(dialect: str, names: str) -> str:
    """As the database knows them: SQLAlchemy doubles what marks a parameter of psycopg and PyMySQL."""
    return names if dialect == "sqlite" else names.replace("%%", "%")


def statement(of: str) -> TextClause:
    """With names in it, whose colons mark no parameters."""
    return text(of.replace(":", "\\:"))


prepared = lru_cache(maxsize=256)(text)
"""A statement that is run again and again: SQLAlchemy takes as long to read its text as the database to run it."""


def _takes_copy(connection: Connection, table: Table) -> bool:
    query = text(
        "SELECT relkind IN ('r', 'p', 'f') AND NOT relhasrules AND NOT row_security_active(oid) "
        "FROM pg_class WHERE oid = CAST(:name AS regclass)"
    )
    return bool(connection.execute(query, {"name": quoted(connection, table)}).scalar())


def _insert_staged(connection: Connection, table: Table, rows: pa.Table, numbers: Any) -> None:
    target, names = quoted(connection, table), quoted_names(connection, rows.column_names)
    connection.execute(
        statement(f"CREATE TEMPORARY TABLE {_STAGED} ON COMMIT DROP AS SELECT {names} FROM {target} LIMIT 0")
    )
    _copy(connection, _STAGED, rows, numbers)
    try:
        connection.execute(statement(f"INSERT INTO {target} ({names}) SELECT {names} FROM {_STAGED}"))
    except (exc.DataError, exc.IntegrityError) as error:
        raise BatchError(f"the table {target} refuses a row: {_said(error.orig)}; {NOTHING}") from error
    connection.execute(text(f"DROP TABLE {_STAGED}"))


# PostgreSQL


def _copy(connection: Connection, target: str, rows: pa.Table, numbers: Any) -> None:
    import psycopg

    # Strings are always quoted, so that an empty one is no null, nor the end of the data.
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    data = pa.BufferOutputStream()
    csv.write_csv(_for_copy(rows), data, options)
    view = memoryview(data.getvalue()).cast("B")
    pieces = (view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES))
    statement = (
        f"COPY {target} ({quoted_names(connection, rows.column_names)}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
    )
    with driver_errors(connection, statement):
        try:
            drivers.copy_in(connection, statement, pieces)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise _refused(error, target, rows, numbers) from error


def _for_copy(rows: pa.Table) -> pa.Table:
    """Values of which pyarrow writes no text, or another one than PostgreSQL reads, as texts."""
    for index, column in enumerate(rows.columns):
        if pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
            texts = [None if it is None else "\\x" + it.hex() for it in column.to_pylist()]
        elif pa.types.is_time(column.type):
            texts = [None if it is None else it.isoformat() for it in column.to_pylist()]
        else:
            continue
        rows = rows.set_column(index, rows.column_names[index], pa.array(texts, pa.string()))
    return rows


def _refused(error: Any, target: str, rows: pa.Table, numbers: Any) -> BatchError:
    found = _WHERE.search(error.diag.context or "")
    if found is None:
        return BatchError(f"the table {target} refuses a row: {_said(error)}; {NOTHING}")
    # A line of COPY is a row as long as no value has a line break in it.
    line, column = int(found[1]) - 1, found[2] or error.diag.column_name
    index = _row_of_line(rows, line)
    return refused_row(f"the table {target} refuses it: {_said(error)}", rows, index, column, numbers)


def _row_of_line(rows: pa.Table, line: int) -> int:
    """The row that the CSV has on this line; rows with line breaks in them take several."""
    import pyarrow.compute as pc

    breaks = None
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            more = pc.fill_null(pc.count_substring(column, "\n"), 0).cast(pa.int64())
            breaks = more if breaks is None else pc.add(breaks, more)
    if breaks is None:
        return line
    lines_before = pc.cumulative_sum(pc.add(breaks, 1))
    before: int | None = pc.sum(pc.less_equal(lines_before, line)).as_py()
    last: int = rows.num_rows - 1
    return min(before or 0, last)


def refused_row(problem: str, rows: pa.Table, index: int, column: str | None, numbers: Any) -> BatchError:
    """The error of one row, by the number that its sender knows."""
    number = index if numbers is None else int(numbers[index])
    if column in rows.column_names:
        value = rows[column][index].as_py()
        message = f"column '{column}', row {number}: {shown(value)}: {problem}; {NOTHING}"
        return BatchError(message, column=column, row=number)
    return BatchError(f"row {number}: {problem}; {NOTHING}", row=number)


def refused_at_commit(table: str, error: exc.IntegrityError) -> BatchError:
    """The error of a constraint that is deferred: the database names no row by then."""
    return BatchError(f"the table {table} refuses the rows at the commit: {_said(error.orig)}; {NOTHING}")


def _said(error: Any) -> str:
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    return f"{primary} ({detail})" if primary and detail else primary or str(error)


# SQLite


def _insert_all(connection: Connection, table: Table, rows: pa.Table, numbers: Any) -> None:
    places = ", ".join("?" * rows.num_columns)
    target = quoted(connection, table)
    statement = f"INSERT INTO {target} ({quoted_names(connection, rows.column_names)}) VALUES ({places})"
    driver = drivers.driver_of(connection)
    before = driver.total_changes
    values = zip(*(_for_sqlite(column) for column in rows.columns), strict=True)
    with driver_errors(connection, statement):
        try:
            drivers.settled(driver.executemany(statement, values))
        except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError) as error:
            index = min(driver.total_changes - before, rows.num_rows - 1)
            problem = f"the table {target} refuses it: {error}"
            raise refused_row(problem, rows, index, _named(str(error), table), numbers) from error


def _named(message: str, table: Table) -> str | None:
    """The column of "NOT NULL constraint failed: events.amount"."""
    found = re.search(rf"{re.escape(table.name)}\.(\w+)$", message)
    return found[1] if found else None


def _for_sqlite(column: pa.ChunkedArray) -> list[Any]:
    """Values as SQLAlchemy would write them, so that it reads them back."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        # A dialect's own text of a time: a blank, and always six digits.
        return [None if it is None else it.replace(tzinfo=None).isoformat(" ", "microseconds") for it in _times(column)]
    values: list[Any] = column.to_pylist()
    if pa.types.is_date(kind):
        return [None if it is None else it.isoformat() for it in values]
    if pa.types.is_time(kind):
        return [None if it is None else it.isoformat("microseconds") for it in values]
    if pa.types.is_decimal(kind):
        return [None if it is None else _exact(it) for it in values]
    return values


def _exact(value: Decimal) -> int | str:
    """The text, but of a whole number that number: with a point in it NUMERIC takes it for a float."""
    whole = int(value)
    return whole if whole == value and -(2**63) <= whole < 2**63 else str(value)


def _times(column: pa.ChunkedArray) -> list[Any]:
    return column.cast(pa.timestamp("us", column.type.tz)).to_pylist()  # type: ignore[no-any-return]


# MariaDB

_PIECE_ROWS = 10_000
_PIECE = "fencepost_piece"
_COLUMN = re.compile(r"[Cc]olumn [`']?(?:[^`']*[`']\.[`'])*([^`']+)[`']")
_CHECK_FAILED = 4025  # ER_CONSTRAINT_FAILED


def _insert_pieces(connection: Connection, table: Table, rows: pa.Table, numbers: Any) -> None:
    """Statements of many rows, as long as the driver makes them. One that fails is undone alone, and the row sought."""
    preparer = connection.dialect.identifier_preparer
    # Not unescaped: the driver takes them apart once more.
    target, names = preparer.format_table(table), ", ".join(map(preparer.quote_identifier, rows.column_names))
    places = ", ".join(["%s"] * rows.num_columns)
    statement = f"INSERT INTO {target} ({names}) VALUES ({places})"
    driver: Any = connection.connection.dbapi_connection
    for start in range(0, rows.num_rows, _PIECE_ROWS):
        piece = rows.slice(start, _PIECE_ROWS)
        values = list(zip(*(_for_mariadb(column) for column in piece.columns), strict=True))
        with driver_errors(connection, statement), driver.cursor() as cursor:
            cursor.execute(f"SAVEPOINT {_PIECE}")
            try:
                cursor.executemany(statement, values)
            except driver.Error as error:
                if not _is_refusal(driver, error):
                    raise
                cursor.execute(f"ROLLBACK TO SAVEPOINT {_PIECE}")
                raise _first_refused(driver, cursor, statement, values, error, (table, rows, start, numbers)) from error


def _is_refusal(driver: Any, error: Any) -> bool:
    """Whether a row is at fault: its values, or a constraint."""
    return isinstance(error, driver.DataError | driver.IntegrityError) or error.args[:1] == (_CHECK_FAILED,)


def _first_refused(
    driver: Any, cursor: Any, statement: str, values: list[Any], error: Any, where: tuple[Table, pa.Table, int, Any]
) -> BatchError:
    """The error of the row that stopped a statement of many: they are inserted one by one up to it."""
    table, rows, start, numbers = where
    for index, row in enumerate(values):
        try:
            cursor.execute(statement, row)
        except driver.Error as refused:
            if not _is_refusal(driver, refused):
                raise
            problem = f"the table {table.fullname} refuses it: {refused.args[-1]}"
            column = _COLUMN.search(str(refused.args[-1]))
            return refused_row(problem, rows, start + index, column and column[1], numbers)
    return BatchError(f"the table {table.fullname} refuses a row: {error.args[-1]}; {NOTHING}")


def _for_mariadb(column: pa.ChunkedArray) -> list[Any]:
    """Values of which the driver writes the literals that the server reads back as they were."""
    if pa.types.is_timestamp(column.type):
        return [None if it is None else it.replace(tzinfo=None) for it in _times(column)]
    return column.to_pylist()  # type: ignore[no-any-return]
