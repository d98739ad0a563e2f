"""Bulk insertion of an Arrow table into a database table.

    database     rows                                        method
    PostgreSQL   up to `ARRAYS_ROWS_MAX` rows of `SqlSink`   one prepared statement with an array per column
    PostgreSQL   other rows                                  COPY in CSV, directly into the table
    PostgreSQL   other rows; the table has rules or          COPY into a temporary table, then INSERT
                 row security, so COPY cannot be used
    SQLite       all                                         one prepared statement, executed for each row
    MariaDB      all                                         INSERT statements of many rows each

Arrays take one round trip, COPY three. An error of COPY names the refused row, an error of arrays does not. COPY into
the table itself is as atomic as COPY into a temporary table, and takes two thirds of the time. Binary COPY would save
a third of the server's time, but encoding it in NumPy costs as much.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from sqlalchemy import Connection, Table, TextClause, exc, text

from fencepost.errors import BatchError, SinkError
from fencepost.inputs import shown
from fencepost.sql import drivers
from fencepost.sql.kinds import driver_errors

ARRAYS_ROWS_MAX = 2_000
_PIECE_BYTES = 1 << 18
# The place in an error of COPY.
_WHERE = re.compile(r"COPY [^,]+, line (\d+)(?:, column ([^:]+))?")
_STAGED = "fencepost_staged"
NOTHING = "nothing of this call was applied"


def column_named(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of the rows.

    Raises:
        BatchError: The rows have no column of this name, or several.
    """
    names = rows.column_names
    if names.count(name) != 1:
        problem = "occurs more than once" if name in names else "missing"
        raise BatchError(f"column '{name}': {problem}; the rows have the columns {', '.join(names)}", column=name)
    return rows[name]


def are_uuids(column: pa.ChunkedArray) -> bool:
    """Return whether the column has UUIDs: of the type, or as 16 bytes each."""
    if column.type == pa.uuid() or column.type == pa.binary(16):
        return True
    lengths = pc.unique(pc.binary_length(column)).to_pylist() if pa.types.is_binary(column.type) else []
    return 16 in lengths and set(lengths) <= {16, None}


def uuid_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return UUIDs as texts in the format of RFC 9562."""
    values = column.cast(pa.binary(16)) if column.type == pa.uuid() else column
    texts = [None if it is None else str(uuid.UUID(bytes=it)) for it in values.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


_UUID = (
    "^(?i:urn:uuid:)?[{]?([0-9a-fA-F]{8})-?([0-9a-fA-F]{4})-?([0-9a-fA-F]{4})-?([0-9a-fA-F]{4})-?([0-9a-fA-F]{12})[}]?$"
)


_PLAIN_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def uuid_spellings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts of UUIDs in the format of RFC 9562, and other texts as null.

    Recognizes hex digits without hyphens, braces, "urn:uuid:" and capital letters.
    """
    if pc.all(pc.match_substring_regex(column, _PLAIN_UUID)).as_py():
        return column  # The frequent case, in a third of the time.
    formatted = pc.utf8_lower(pc.replace_substring_regex(column, _UUID, r"\1-\2-\3-\4-\5"))
    return pc.if_else(pc.match_substring_regex(column, _UUID), formatted, pa.scalar(None, pa.string()))


def insert(connection: Connection, table: Table, rows: pa.Table, numbers: Any = None) -> None:
    """Insert all rows into the table. Its columns must accept the values.

    `numbers`: the caller's number of each row, for errors. None: the index in `rows`.

    Raises:
        BatchError: The database refused a row; the error has its number. The transaction cannot continue.
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
    """Return whether the rows can be inserted as arrays on PostgreSQL, faster than by COPY."""
    if connection.dialect.name != "postgresql" or rows.num_rows > ARRAYS_ROWS_MAX:
        return False
    kinds = _kinds_of(connection, table)
    return all(kinds.get(name) for name in rows.column_names)


def as_arrays(connection: Connection, table: Table, rows: pa.Table) -> tuple[str, dict[str, str]]:
    """Return an INSERT of the rows with an array per column, and its parameters."""
    into, arrays = arrays_into(connection, table, tuple(rows.column_names))
    return f"INSERT INTO {into} SELECT * FROM unnest({arrays})", columns_as_arrays(rows)


def arrays_into(connection: Connection, table: Table, names: tuple[str, ...]) -> tuple[str, str]:
    """Return the target of an INSERT, with its columns, and the arrays `:c0`, `:c1`, ... with their types."""
    known: dict[tuple[str, ...], tuple[str, str]] = table.info.setdefault("fencepost_inserts", {})
    if names not in known:
        kinds = _kinds_of(connection, table)
        target, columns = quoted(connection, table), quoted_names(connection, names)
        arrays = ", ".join(f"CAST(:c{at} AS {kinds[name]}[])" for at, name in enumerate(names))
        known[names] = f"{target} ({columns})".replace(":", "\\:"), arrays
    return known[names]


def columns_as_arrays(rows: pa.Table) -> dict[str, str]:
    """Return the parameters `c0`, `c1`, ... of the arrays."""
    return {f"c{at}": array_of(column) for at, column in enumerate(_for_copy(rows).columns)}


def array_of(column: pa.ChunkedArray) -> str:
    """Return a column as an array literal of PostgreSQL. The driver takes ten times as long to write a list."""
    if pa.types.is_string(column.type):
        for found, written in (("\\", "\\\\"), ('"', '\\"')):
            column = pc.replace_substring(column, found, written)
        column = pc.binary_join_element_wise('"', column, '"', "")
    texts = column.cast(pa.string())
    texts = (pc.fill_null(texts, "NULL") if texts.null_count else texts).combine_chunks()
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return f"{{{pc.binary_join(whole, ',')[0].as_py()}}}"


def array_of_integers(values: Sequence[int | None]) -> str:
    """Return Python integers as an array literal of PostgreSQL."""
    return f"{{{','.join(map(str, values)).replace('None', 'NULL')}}}"


def array_of_texts(values: Sequence[str | None]) -> str:
    """Return Python texts as an array literal of PostgreSQL."""
    return f"{{{','.join('NULL' if it is None else _in_array(it) for it in values)}}}"


def _in_array(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"') if "\\" in value or '"' in value else value
    return f'"{escaped}"'


def _kinds_of(connection: Connection, table: Table) -> dict[str, str | None]:
    """Return the types of the columns, without lengths: a cast truncates a value that an assignment refuses.

    The type is None for array columns, which cannot be elements of arrays, and for all columns of a table with a rule
    for INSERT, which a statement with WITH refuses. The types are read once. After a later change of a column's type,
    its assignment converts or refuses values.
    """
    if _KINDS not in table.info:
        found = connection.execute(text(_KINDS_QUERY), {"name": quoted(connection, table)})
        table.info[_KINDS] = {name: kind.replace(":", "\\:") if is_plain else None for name, kind, is_plain in found}
    kinds: dict[str, str | None] = table.info[_KINDS]
    return kinds


_KINDS = "fencepost_kinds"
_KINDS_QUERY = """
SELECT a.attname, format_type(a.atttypid, -1), t.typarray <> 0 AND t.typcategory <> 'A'
    AND NOT EXISTS (SELECT 1 FROM pg_rewrite AS r WHERE r.ev_class = a.attrelid AND r.ev_type = '3')
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = CAST(:name AS regclass) AND a.attnum > 0 AND NOT a.attisdropped
"""


def quoted(connection: Connection, table: Table) -> str:
    """Return the quoted name of a table."""
    return unescaped(connection.dialect.name, connection.dialect.identifier_preparer.format_table(table))


def quoted_names(connection: Connection, names: Sequence[str]) -> str:
    """Return the quoted names of columns, separated by commas."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    return unescaped(connection.dialect.name, ", ".join(map(quote, names)))


def unescaped(dialect: str, names: str) -> str:
    """Return names as in the database: SQLAlchemy doubles "%", which marks parameters of psycopg and PyMySQL."""
    return names if dialect == "sqlite" else names.replace("%%", "%")


def statement(of: str) -> TextClause:
    """Return a statement with names. Colons in it do not mark parameters."""
    return text(of.replace(":", "\\:"))


prepared = lru_cache(maxsize=256)(text)
"""Return a cached statement. SQLAlchemy takes as long to parse its text as the database to run it."""


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
        raise BatchError(f"the table {target} refuses a row: {_reason(error.orig)}; {NOTHING}") from error
    connection.execute(text(f"DROP TABLE {_STAGED}"))


# PostgreSQL


def _copy(connection: Connection, target: str, rows: pa.Table, numbers: Any) -> None:
    import psycopg

    # "needed" always quotes strings, so that an empty string is neither null nor the end of the data.
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
    """Convert values to text if pyarrow cannot write them, or writes another format than PostgreSQL reads."""
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
        return BatchError(f"the table {target} refuses a row: {_reason(error)}; {NOTHING}")
    # A line of COPY is a row as long as no value has a line break in it.
    line, column = int(found[1]) - 1, found[2] or error.diag.column_name
    index = _row_of_line(rows, line)
    return refused_row(f"the table {target} refuses it: {_reason(error)}", rows, index, column, numbers)


def _row_of_line(rows: pa.Table, line: int) -> int:
    """Return the row on this line of the CSV. A row with line breaks has several lines."""
    lines = np.ones(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            lines += pc.fill_null(pc.count_substring(column, "\n"), 0).to_numpy()
            # PostgreSQL learns from the end of the first row which character ends lines. Within it, it counts "\r".
            first = column[0].as_py() or ""
            lines[0] += first.count("\r") - first.count("\n")
    before = int(np.searchsorted(np.cumsum(lines), line, side="right"))
    last: int = rows.num_rows - 1
    return min(before, last)


def readable(value: pa.Scalar) -> Any:
    """Return a value for a message. Python's times would truncate some, and do not have others."""
    kind = value.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind)):
        return value.as_py()
    if pa.types.is_timestamp(kind):  # in UTC, because a zone needs a database
        value = pa.scalar(value.value, pa.timestamp(kind.unit))
    return value.cast(pa.string()).as_py()


def refused_row(problem: str, rows: pa.Table, index: int, column: str | None, numbers: Any) -> BatchError:
    """Return the error of one row, with the caller's number of the row."""
    number = index if numbers is None else int(numbers[index])
    if column in rows.column_names:
        value = readable(rows[column][index])
        message = f"column '{column}', row {number}: {shown(value)}: {problem}; {NOTHING}"
        return BatchError(message, column=column, row=number)
    return BatchError(f"row {number}: {problem}; {NOTHING}", row=number)


def refused_at_commit(table: str, error: exc.IntegrityError) -> BatchError:
    """Return the error of a deferred constraint, for which the database does not name a row."""
    return BatchError(f"the table {table} refuses the rows at the commit: {_reason(error.orig)}; {NOTHING}")


def refused_statement(table: str, error: exc.DBAPIError) -> SinkError:
    """Return the error of a statement that the database refuses whatever its rows are."""
    return SinkError(
        f"table {table}: the database refuses a statement: {_reason(error.orig)}. Was a table or column renamed or "
        f"removed, or a right revoked? {NOTHING}"
    )


def _reason(error: Any) -> str:
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    return f"{primary} ({detail})" if primary and detail else primary or str(error)


# SQLite


def _insert_all(connection: Connection, table: Table, rows: pa.Table, numbers: Any) -> None:
    places = ", ".join("?" * rows.num_columns)
    target = quoted(connection, table)
    statement = f"INSERT INTO {target} ({quoted_names(connection, rows.column_names)}) VALUES ({places})"
    driver = drivers.driver_of(connection)
    values = zip(*(_for_sqlite(column) for column in rows.columns), strict=True)
    with driver_errors(connection, statement):
        try:
            drivers.settled(driver.executemany(statement, values))
        except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError) as error:
            # The driver takes each row when the one before is written. Triggers make its number of changes useless.
            index = rows.num_rows - 1 - sum(1 for _ in values)
            problem = f"the table {target} refuses it: {error}"
            raise refused_row(problem, rows, index, _named(str(error), table), numbers) from error


def _named(message: str, table: Table) -> str | None:
    """Return the column in a message such as "NOT NULL constraint failed: events.amount", or None."""
    found = re.search(rf"{re.escape(table.name)}\.(\w+)$", message)
    return found[1] if found else None


def _for_sqlite(column: pa.ChunkedArray) -> list[Any]:
    """Return values in SQLAlchemy's formats, so that SQLAlchemy can read them."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        # SQLAlchemy's format has a blank between date and time, and always six decimals.
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
    """Return the text, or a whole number as int: NUMERIC stores a text with a decimal point as a float."""
    whole = int(value)
    return whole if whole == value and -(2**63) <= whole < 2**63 else str(value)


def _times(column: pa.ChunkedArray) -> list[Any]:
    return column.cast(pa.timestamp("us", column.type.tz)).to_pylist()  # type: ignore[no-any-return]


# MariaDB

_PIECE_ROWS = 10_000
_PIECE = "fencepost_piece"
_COLUMN = re.compile(r"[Cc]olumn [`']?(?:[^`']*[`']\.[`'])*([^`']+)[`']")
# ER_CONSTRAINT_FAILED, and ER_TRUNCATED_WRONG_VALUE of a TIMESTAMP before 1970, for example. PyMySQL has no class for
# them.
_REFUSALS = (4025, 1292)


def _insert_pieces(connection: Connection, table: Table, rows: pa.Table, numbers: Any) -> None:
    """Insert in statements of many rows. If one fails, roll it back to a savepoint and find the refused row."""
    preparer = connection.dialect.identifier_preparer
    # Names stay escaped, because the driver unescapes them.
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
    """Return whether a row caused the error, by its values or a constraint."""
    return isinstance(error, driver.DataError | driver.IntegrityError) or error.args[0] in _REFUSALS


def _first_refused(
    driver: Any, cursor: Any, statement: str, values: list[Any], error: Any, where: tuple[Table, pa.Table, int, Any]
) -> BatchError:
    """Insert the rows one by one, and return the error of the first refused row."""
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
    """Return values for which the driver writes exact literals."""
    if pa.types.is_timestamp(column.type):
        return [None if it is None else it.replace(tzinfo=None) for it in _times(column)]
    return column.to_pylist()  # type: ignore[no-any-return]
