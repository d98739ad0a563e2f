"""The table that receives rows. It checks values against the declared types of columns before it sends the first row.

Databases do not check enough: SQLite accepts any value in any column, and PostgreSQL does not always name the value
that it refuses. Errors of this module name column, row and value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Column, Connection, Engine, MetaData, Table, exc, text, types
from sqlalchemy.dialects import mysql

from fencepost.errors import BatchError, SinkError
from fencepost.inputs import rows_of, shown
from fencepost.sql import rows as bulk
from fencepost.sql.database import outages
from fencepost.sql.kinds import kind_of

_UNCHANGED = "nothing has changed"
_NORMAL, _BIG = 2**31, 2**63
_LIMITS: dict[Any, int] = {
    mysql.TINYINT: 2**7,
    mysql.MEDIUMINT: 2**23,
    types.SmallInteger: 2**15,
    types.BigInteger: _BIG,
}
_MICROSECONDS = 6
_DAY_MS = 86_400_000
# Days since 1970 of Python's first and last date, and units of a timestamp per day. All nanoseconds are within.
_FIRST_DAY, _LAST_DAY = ((it - date(1970, 1, 1)).days for it in (date.min, date.max))
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
# The maximum of a REAL: the largest finite float32.
_REAL_MAX = 3.4028234663852886e38
_UUID_DIGITS = 32
# Decimals of Arrow have up to 76 digits, and columns of MariaDB up to 65; Python rounds to 28.
_EXACT = Context(prec=200)
# Number of decimal digits that every float64 preserves.
_FLOAT_DIGITS = 15


class Target:
    """A table of the database, and the columns to write.

    Args:
        engine: The SQLAlchemy engine.
        table: The name, with a schema if needed, or a SQLAlchemy Table.
        insert: The columns to write. None: all columns of the rows.

    Raises:
        SinkError: The table does not exist, lacks a column of `insert`, or generates it.
    """

    def __init__(self, engine: Engine, table: str | Table, insert: Sequence[str] | None = None) -> None:
        self.kind = kind_of(engine).name
        self.is_sqlite = self.kind == "sqlite"
        self._engine = engine
        self.table = _reflected(engine, table)
        self.insert = None if insert is None else tuple(insert)
        self._is_in_utc = False
        self._check_names(self.insert or ())

    @property
    def name(self) -> str:
        """The name of the table, with its schema if one was given."""
        return str(self.table.fullname)

    def place(self) -> tuple[Any, ...]:
        """Return a value that identifies the table and its database, independent of the connection."""
        with outages(self._engine), self._engine.connect() as connection:
            if self.is_sqlite:
                files = {row[1]: row[2] for row in connection.exec_driver_sql("PRAGMA database_list")}
                return files[self.table.schema or "main"], self.table.name.lower()
            if self.kind == "mariadb":
                query = text("SELECT @@hostname, @@port, @@datadir, COALESCE(:schema, DATABASE()), :name")
                names = {"schema": self.table.schema, "name": self.table.name}
                *server, schema, name = connection.execute(query, names).one()
                if connection.exec_driver_sql("SELECT @@lower_case_table_names").scalar():  # 0: names differ by case
                    schema, name = schema.lower(), name.lower()
                return (*server, schema, name)
            query = text(
                "SELECT pg_postmaster_start_time(), current_database(), "
                "CAST(to_regclass(concat_ws('.', quote_ident(:schema), quote_ident(:name))) AS bigint)"
            )
            return tuple(connection.execute(query, {"schema": self.table.schema, "name": self.table.name}).one())

    def read(self, rows: Any) -> pa.Table:
        """Convert tabular data or a list of dicts, as `rows_of`. A key that an event lacks is null.

        Raises:
            BatchError: As `rows_of`. An event lacks a column that takes no nulls and has no default, or a column with
                a default that other events have.
        """
        if isinstance(rows, list | tuple) and all(isinstance(it, Mapping) for it in rows):
            self._check_events(rows)
        return rows_of(rows, bulk.NOTHING)

    def _check_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Refuse events whose rows would depend on the columns of other events in the call."""
        given = set().union(*events)
        for column in self.table.columns:
            is_needed = not _has_default(column)
            is_written = self.insert is None or column.name in self.insert
            if not is_written or not (is_needed or (column.name in given and _fills_in(column))):
                continue
            row = next((row for row, event in enumerate(events) if event and column.name not in event), None)
            if row is not None:
                why = (
                    "the column requires a value"
                    if is_needed
                    else "other events of the call have it, so its default would not be stored. Pass such events in "
                    "a call of their own, or with a value (None for null)"
                )
                raise BatchError(
                    f"column '{column.name}', row {row}: the event does not have it: {why}; {bulk.NOTHING}",
                    column=column.name,
                    row=row,
                )

    def convert(self, rows: pa.Table) -> pa.Table:
        """Return the columns to write, each with a type that the table's column accepts. Does not write.

        Raises:
            SinkError: The table lacks a column, generates it, or requires a column that the rows do not have.
            BatchError: A column does not accept a value, or the rows have several columns of its name.
        """
        names = self.insert or tuple(rows.column_names)
        given = {name: bulk.column_named(rows, name) for name in names}
        if any(name not in self.table.columns for name in names):
            # The column may have been added to the table later.
            self.table = _reflected(self._engine, self.table)
        self._check_names(names)
        self._check_needed(names)
        columns = [_Column(self.table.columns[name], self.kind) for name in names]
        if self.kind == "mariadb":
            self._check_time_zone(names)
        return pa.table({it.name: it.convert(given[it.name]) for it in columns})

    def write(self, connection: Connection, rows: pa.Table, numbers: Any = None) -> None:
        """Write the result of `convert`. See `rows.insert`."""
        bulk.insert(connection, self.table, rows, numbers)

    def _check_time_zone(self, names: Sequence[str]) -> None:
        """Refuse a TIMESTAMP column unless the session is in UTC: MariaDB reads values in the session's time zone.

        Raises:
            SinkError: The session's time zone is not UTC.
        """
        stamps = [name for name in names if isinstance(self.table.columns[name].type, mysql.TIMESTAMP)]
        if not stamps or self._is_in_utc:
            return
        with outages(self._engine), self._engine.connect() as connection:
            # In winter and in summer: the system's zone may be London's.
            query = "SELECT UNIX_TIMESTAMP('2000-01-01'), UNIX_TIMESTAMP('2000-07-01'), @@time_zone"
            *instants, zone = connection.exec_driver_sql(query).one()
        self._is_in_utc = instants == [946_684_800, 962_409_600] and zone in ("+00:00", "UTC", "SYSTEM")
        if not self._is_in_utc:
            raise SinkError(
                f"table {self.name}: column '{stamps[0]}' is a TIMESTAMP, and the session's time zone is {zone}, "
                "so wrong instants would be stored. Make it DATETIME(6), or connect with "
                f"connect_args={{'init_command': \"SET time_zone = '+00:00'\"}}; {_UNCHANGED}"
            )

    def _check_names(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self.table.columns]
        if unknown:
            raise SinkError(
                f"table {self.name}: has no column '{unknown[0]}'; it has {', '.join(self.table.columns.keys())}. "
                f"Add it, or list the columns to write in insert=; {_UNCHANGED}"
            )
        generated = [name for name in names if self.table.columns[name].computed is not None]
        if generated:
            raise SinkError(
                f"table {self.name}: column '{generated[0]}' is generated by the database and takes no values. Remove "
                f"it from the rows, or list the columns to write in insert=; {_UNCHANGED}"
            )

    def _check_needed(self, names: Sequence[str]) -> None:
        needed = [it.name for it in self.table.columns if not _has_default(it) and it.name not in names]
        if needed:
            raise SinkError(
                f"table {self.name}: column '{needed[0]}' requires a value, but the rows do not have this column "
                f"(they have {', '.join(names)}); {_UNCHANGED}"
            )


def _reflected(engine: Engine, table: str | Table) -> Table:
    if isinstance(table, Table):
        schema, name = table.schema, table.name
    else:
        schema, _, name = table.rpartition(".")
    try:
        with outages(engine):
            found = Table(name, MetaData(), schema=schema or None, autoload_with=engine)
    except exc.NoSuchTableError:
        raise SinkError(f"table {table}: does not exist in the database; {_UNCHANGED}") from None
    storage = found.kwargs.get(f"{engine.dialect.name}_engine", "InnoDB")
    if storage.lower() != "innodb":
        raise SinkError(
            f"table {table}: its engine {storage} has no transactions, so rows and claims cannot be written together. "
            f"Run ALTER TABLE {table} ENGINE=InnoDB; {_UNCHANGED}"
        )
    return found


def _has_default(column: Column[Any]) -> bool:
    # SQLite assigns values to an integer primary key.
    counts_up = column.primary_key and isinstance(column.type, types.Integer)
    return bool(column.nullable or column.server_default or column.identity or column.computed or counts_up)


def _fills_in(column: Column[Any]) -> bool:
    """Return whether the database stores a value other than null if an INSERT does not name the column."""
    default = getattr(column.server_default, "arg", None)
    return default is not None and str(default).partition("::")[0].strip("() ").upper() != "NULL"


class _Column:
    """A column of the table. Converts Arrow values to types that the database accepts."""

    def __init__(self, column: Column[Any], kind: str) -> None:
        self.name = column.name
        self._type = column.type
        self._nullable = column.nullable
        self._is_sqlite = kind == "sqlite"
        self._is_mariadb = kind == "mariadb"

    def convert(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        values = _plain(values)
        if not self._nullable and values.null_count:
            raise self._wrong(values, pc.index(pc.is_null(values), True).as_py(), "null, but the column takes none")
        kind = self._type
        if pa.types.is_null(values.type):
            return values.cast(pa.string())
        if isinstance(kind, types.Boolean):
            return self._only(values, pa.types.is_boolean, "booleans")
        if isinstance(kind, types.Integer):
            return self._integers(values)
        if isinstance(kind, types.Float):
            return self._floats(values)
        if isinstance(kind, types.Numeric):
            return self._decimals(values)
        if isinstance(kind, types.Uuid):
            return self._uuids(values)
        if isinstance(kind, types.Enum):
            return self._one_of(values, kind.enums)
        if isinstance(kind, types.String):
            return self._texts(values, kind.length)
        if isinstance(kind, types._Binary):
            return self._bytes(values)
        if isinstance(kind, types.DateTime):
            return self._times(values)
        if isinstance(kind, types.Date):
            return self._in_calendar(self._dates(self._only(values, pa.types.is_date, "dates")))
        if isinstance(kind, types.Time):
            return self._fine(self._in_microseconds(self._only(values, pa.types.is_time, "times of day")))
        if isinstance(kind, mysql.BIT):
            raise SinkError(f"column '{self.name}': is of type BIT, which is not supported; {_UNCHANGED}")
        # For JSON and types unknown to SQLAlchemy, the database parses the text.
        return self._only(values, pa.types.is_string, f"texts of {kind}")

    def _only(self, values: pa.ChunkedArray, is_one: Any, what: str) -> pa.ChunkedArray:
        if is_one(values.type):
            return values
        problem = f"is of type {values.type}, {what} are needed"
        is_float = pa.types.is_floating(values.type)
        row = _first(values, lambda it: not float(it).is_integer()) if is_float else -1
        row = pc.index(pc.is_valid(values), True).as_py() if row < 0 else row
        if row < 0:
            raise BatchError(f"column '{self.name}': {problem}; {bulk.NOTHING}", column=self.name)
        # One fraction among integers makes the whole column float, so name the first fraction.
        raise self._wrong(values, row, problem)

    def _integers(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if isinstance(self._type, mysql.TINYINT) and pa.types.is_boolean(values.type):
            return values  # MariaDB's BOOLEAN is a TINYINT.
        self._only(values, pa.types.is_integer, "integers")
        low, limit = self._range()
        bounds = pc.min_max(values).as_py()
        if bounds["min"] is not None and not low <= bounds["min"] <= bounds["max"] < limit:
            row = next(at for at, it in enumerate(values.to_pylist()) if it is not None and not low <= it < limit)
            raise self._wrong(values, row, f"the column takes {low}…{limit - 1}")
        return values

    def _range(self) -> tuple[int, int]:
        """Return the lowest integer that the column accepts, and the highest plus 1."""
        limit = next((limit for kind, limit in _LIMITS.items() if isinstance(self._type, kind)), _NORMAL)
        if self._is_sqlite and limit == _NORMAL:
            limit = _BIG
        return (0, 2 * limit) if getattr(self._type, "unsigned", False) else (-limit, limit)

    def _floats(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        self._only(values, _is_number, "numbers")
        # On MariaDB, FLOAT is a float32 and REAL a float64.
        is_real = isinstance(self._type, mysql.FLOAT if self._is_mariadb else types.REAL) and not self._is_sqlite
        if self._is_mariadb and getattr(self._type, "scale", None) is not None:
            raise SinkError(
                f"column '{self.name}': is of type {self._type}, which rounds. Make it DECIMAL or DOUBLE; {_UNCHANGED}"
            )
        if pa.types.is_integer(values.type):
            row = _first(values, lambda it: int((np.float32 if is_real else float)(it)) != it)
            if row >= 0:
                raise self._wrong(values, row, "the column would round it; use an integer column")
        values = values.cast(pa.float64(), safe=False)
        self._check_nan(values)
        if is_real:
            far = pc.and_(pc.is_finite(values), pc.greater(pc.abs(values), _REAL_MAX))
            row = pc.index(far, True).as_py()
            if row >= 0:
                raise self._wrong(values, row, f"the column takes up to {_REAL_MAX:.6g}")
        return values

    def _decimals(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        self._only(values, _is_number, "numbers")
        self._check_nan(values)
        precision, scale = getattr(self._type, "precision", None), getattr(self._type, "scale", None) or 0
        if precision is not None:
            takes = f"the column takes {precision} digits, {scale} of them after the point"
            limit = Decimal(10) ** (precision - scale)
            is_float = pa.types.is_floating(values.type)
            bounds = pc.min_max(values.cast(pa.float64()) if is_float else values).as_py()
            if any(_is_beyond(it, limit) for it in bounds.values()):
                raise self._wrong(values, _first(values, lambda it: _is_beyond(it, limit)), takes)
            row = _first_rounded(values, scale)
            if row >= 0:
                raise self._wrong(values, row, f"{takes}, so the database would round it; round it yourself")
        if self._is_sqlite and not _are_exact(values.type):
            row = _first(values, lambda it: not _is_exact(it))
            if row >= 0:
                problem = "SQLite would round it to a 64-bit integer or a float; use a TEXT column"
                raise self._wrong(values, row, problem)
        return values

    def _check_nan(self, values: pa.ChunkedArray) -> None:
        if self._is_mariadb and pa.types.is_floating(values.type):
            row = pc.index(pc.is_finite(values), False).as_py()
            if row >= 0:
                raise self._wrong(values, row, "MariaDB has neither NaN nor infinity; send null if that is meant")
        if self._is_sqlite and pa.types.is_floating(values.type):
            row = pc.index(pc.is_nan(values), True).as_py()
            if row >= 0:
                raise self._wrong(values, row, "SQLite has no NaN and would store null; send null if that is meant")

    def _uuids(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if bulk.are_uuids(values):
            return bulk.uuid_texts(values)
        texts = bulk.uuid_spellings(self._only(values, pa.types.is_string, "UUIDs, as texts or 16 bytes,"))
        row = pc.index(pc.and_(pc.is_null(texts), pc.is_valid(values)), True).as_py()
        if row >= 0:
            raise self._wrong(values, row, "is not a UUID: 32 hexadecimal digits, as in RFC 9562")
        return texts

    def _one_of(self, values: pa.ChunkedArray, allowed: Sequence[str]) -> pa.ChunkedArray:
        self._only(values, pa.types.is_string, "texts")
        known = pc.is_in(values, value_set=pa.array([*allowed, None], pa.string()))
        row = pc.index(known, False).as_py()
        if row >= 0:
            raise self._wrong(values, row, f"the column takes {', '.join(allowed)}")
        return values

    def _texts(self, values: pa.ChunkedArray, length_max: int | None) -> pa.ChunkedArray:
        if values.type == pa.uuid():
            values = bulk.uuid_texts(values)
            if length_max == _UUID_DIGITS:  # SQLAlchemy's form of a UUID on databases without a UUID type
                values = pc.replace_substring(values, "-", "")
        self._only(values, pa.types.is_string, "texts")
        if not (self._is_sqlite or self._is_mariadb):
            row = pc.index(pc.match_substring(values, "\0"), True).as_py()
            if row >= 0:
                raise self._wrong(values, row, "PostgreSQL has no zero bytes in texts")
        if length_max is not None:
            row = pc.index(pc.greater(pc.utf8_length(values), length_max), True).as_py()
            if row >= 0:
                raise self._wrong(values, row, f"the column takes {length_max} characters")
        return values

    def _bytes(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        values = self._only(values, _is_bytes, "binary")
        length = getattr(self._type, "length", None)
        if isinstance(self._type, mysql.BINARY) and length is not None:
            row = pc.index(pc.not_equal(pc.binary_length(values), length), True).as_py()
            if row >= 0:
                raise self._wrong(values, row, f"the column takes {length} bytes, and would pad the value with zeros")
        return values

    def _dates(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return values.cast(pa.date32())
        except pa.ArrowInvalid as error:  # milliseconds that are not a whole day
            row = _first(values.cast(pa.int64()), lambda it: it % _DAY_MS != 0)
            raise self._wrong(values, row, "has a time of day, which the column does not store") from error

    def _in_microseconds(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the times in microseconds. Refuse finer ones, because Python's times would truncate them."""
        kind = pa.time64("us") if pa.types.is_time(values.type) else pa.timestamp("us", values.type.tz)
        try:
            return values.cast(kind)
        except pa.ArrowInvalid as error:
            row = _first(values.cast(pa.int64()), lambda it: it % 1000 != 0)
            raise self._wrong(values, row, "the column takes microseconds") from error

    def _fine(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the times. Refuse times finer than the column: MariaDB would truncate them, PostgreSQL round them."""
        if self._is_mariadb:
            digits = getattr(self._type, "fsp", None) or 0
        else:
            declared = getattr(self._type, "precision", None)  # of PostgreSQL
            digits = _MICROSECONDS if declared is None else declared
        if digits >= _MICROSECONDS:
            return values
        unit = 10 ** (_MICROSECONDS - digits)
        row = _first(values.cast(pa.int64()), lambda it: it % unit != 0)
        if row >= 0:
            raise self._wrong(
                values, row, f"the column takes {digits} digits of a second, so the database would change it"
            )
        return values

    def _in_calendar(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return dates or timestamps. Refuse years that Python does not have. PostgreSQL receives texts."""
        is_date = pa.types.is_date(values.type)
        per_day = 1 if is_date else _PER_DAY.get(values.type.unit)
        if per_day is None or not (self._is_sqlite or self._is_mariadb):
            return values
        numbers = values.cast(pa.int32() if is_date else pa.int64()).cast(pa.int64())
        first, end = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day
        row = pc.index(pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end)), True).as_py()
        if row >= 0:
            raise self._wrong(values, row, "the column takes the years 1 to 9999")
        return values

    def _times(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Convert instants to UTC; times without a zone stay so. The unit is microseconds, as in the databases."""
        values = self._in_calendar(self._only(values, pa.types.is_timestamp, "timestamps"))
        values = self._fine(self._in_microseconds(values))
        if values.type.tz is not None:
            return values.cast(pa.timestamp("us", "UTC"))
        # PostgreSQL would read a time without a zone in the time zone of the session.
        return values.cast(pa.timestamp("us", "UTC")) if getattr(self._type, "timezone", False) else values

    def _wrong(self, values: pa.ChunkedArray, row: int, problem: str) -> BatchError:
        return BatchError(
            f"column '{self.name}', row {row}: {shown(bulk.readable(values[row]))}: {problem}; {bulk.NOTHING}",
            column=self.name,
            row=row,
        )


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values without dictionaries, views, large offsets and narrow decimals, which Arrow hardly supports."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_decimal32(values.type) or pa.types.is_decimal64(values.type):
        return values.cast(pa.decimal128(values.type.precision, values.type.scale))
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if pa.types.is_large_binary(values.type) or pa.types.is_binary_view(values.type):
        return values.cast(pa.binary())
    return values


def _first(values: pa.ChunkedArray, is_wrong: Callable[[Any], bool]) -> int:
    """Return the first row with a wrong value that is not null, or -1."""
    return next((row for row, it in enumerate(values.to_pylist()) if it is not None and is_wrong(it)), -1)


def _first_rounded(values: pa.ChunkedArray, scale: int) -> int:
    """Return the first row with more than `scale` digits after the decimal point, or -1."""
    kind = values.type
    if scale >= 0 and pa.types.is_integer(kind):
        return -1
    if pa.types.is_decimal(kind) and kind.scale <= scale:
        return -1
    exact = Decimal if not pa.types.is_floating(kind) else _shortest(kind)
    step = Decimal(1).scaleb(-scale)
    return _first(values, lambda it: math.isfinite(it) and _EXACT.remainder(exact(it), step) != 0)


def _shortest(kind: pa.DataType) -> Callable[[float], Decimal]:
    """Return a function from a float to its shortest decimal: 1.1, although no float is exactly 1.1."""
    width = {16: np.float16, 32: np.float32, 64: np.float64}[kind.bit_width]
    return lambda value: Decimal(str(width(value)))


def _is_beyond(value: Any, limit: Decimal) -> bool:
    # A NUMERIC column accepts NaN.
    return value is not None and value == value and Decimal(value).copy_abs() >= limit


def _are_exact(kind: pa.DataType) -> bool:
    """Return whether a NUMERIC column of SQLite stores every value of this type exactly."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _FLOAT_DIGITS)
    return not pa.types.is_uint64(kind)


def _is_exact(value: Any) -> bool:
    if value is None or (-_BIG <= value < _BIG and value == int(value)):
        return True
    return isinstance(value, Decimal) and Decimal(repr(float(value))) == value


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))
