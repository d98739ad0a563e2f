"""Compares a table with its source: the database sorts and compares identities and fingerprints.

It uses three temporary tables:

    fencepost_batch      a batch of the source, with the table's types, so that equal values are equal
    fencepost_source     the identity and fingerprint of each row of the source
    fencepost_compared   for each identity, the number of rows on each side and the fingerprints

The fingerprint of a row is the MD5 of its other columns as the database formats them. It does not protect against
forgery. Among billions of rows, the probability that two different rows have the same fingerprint is 2^-64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any, TypeAlias

import pyarrow as pa
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    String,
    Table,
    Text,
    and_,
    case,
    cast,
    collate,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
    text,
    type_coerce,
    types,
    union_all,
)
from sqlalchemy.schema import DropTable
from sqlalchemy.sql import visitors

from fencepost.errors import BatchError, SinkError
from fencepost.inputs import is_column, not_tabular
from fencepost.sql import drivers
from fencepost.sql import rows as bulk
from fencepost.sql.columns import Int64
from fencepost.sql.database import Database
from fencepost.sql.target import Target

OnFindings: TypeAlias = Callable[[pa.RecordBatch], object]

_BATCH_ROWS, _FINDINGS_ROWS = 65_536, 10_000
# The lowest limit of function arguments among builds of SQLite.
_ARGUMENTS_MAX = 100
_KINDS = ("missing", "unexpected", "conflict", "repeated")
# Columns of findings after the identity.
_COMPARED = {
    "source_rows": pa.int64(),
    "table_rows": pa.int64(),
    "source_fingerprint": pa.string(),
    "table_fingerprint": pa.string(),
}


@dataclass(frozen=True)
class Reconciliation:
    """The differences between a table and its source."""

    source_rows: int
    """Number of rows of the source, including repeats and rows without an identity."""
    table_rows: int
    """Number of rows of the table that were compared."""
    matched: int
    """Number of identities in both, once in the table, with one payload."""
    missing: int
    """Number of identities in the source only."""
    unexpected: int
    """Number of identities in the table only."""
    conflicts: int
    """Number of identities in both that have more than one payload."""
    repeated: int
    """Number of identities that occur several times in the table, with one payload."""
    without_identity: int
    """Number of rows on both sides that have no identity (a null in it, or by sequence pid -1). They cannot be
    compared."""
    findings: pa.Table
    """The first findings in identity order. Columns: finding (utf8: "missing", "unexpected", "conflict", "repeated"),
    the identity columns, source_rows, table_rows (int64), source_fingerprint, table_fingerprint (utf8, the lowest one
    if there are several)."""

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings."""
        return not (self.missing or self.unexpected or self.conflicts or self.repeated)


def reconcile(
    database: Database,
    target: Target,
    identity: Sequence[str],
    producer: Sequence[str],
    source: Any,
    where: Any,
    findings_max: int,
    on_findings: OnFindings | None,
) -> Reconciliation:
    """Implement `SqlSink.reconcile`. `producer`: the identity columns in which -1 means no producer."""
    lacking = [name for name in identity if name not in target.table.columns]
    if lacking:
        raise SinkError(
            f"table {target.name}: has no column '{lacking[0]}' of the identity, so its rows cannot be found in the "
            "source; nothing has changed"
        )
    # Not a transaction of `database`, which would hold SQLite's write lock. Only temporary tables are written here.
    with database.connected() as connection:
        if connection.dialect.name != "sqlite":
            # With AUTOCOMMIT, the temporary tables would outlive the call, and findings could not be read in parts. In
            # REPEATABLE READ, MariaDB would lock every row of the application's table until the call ends.
            connection.execution_options(isolation_level="READ COMMITTED")
        know_fingerprints(connection)
        comparison = _Comparison(connection, target, tuple(identity), tuple(producer))
        try:
            for batch in batches_of(source, target.read):
                comparison.add(batch)
            comparison.compare(where)
            return comparison.report(findings_max, on_findings)
        finally:
            if not connection.invalidated:
                connection.rollback()
                comparison.drop()


def batches_of(source: Any, read: Callable[[Any], pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of a source in batches, as `read` converts them.

    `source`: tabular, or an iterable of tabular batches or of event dicts.
    """
    is_whole = isinstance(source, pa.Table | Mapping) or (isinstance(source, list) and all(map(_is_event, source)))
    if is_whole or (hasattr(source, "__arrow_c_array__") and not hasattr(source, "__arrow_c_stream__")):
        table = read(source)
        yield from (table.slice(start, _BATCH_ROWS) for start in range(0, len(table), _BATCH_ROWS))
    elif hasattr(source, "__arrow_c_stream__"):
        yield from (pa.Table.from_batches([it]) for it in pa.RecordBatchReader.from_stream(source))
    elif isinstance(source, str | bytes) or not isinstance(source, Iterable):
        raise not_tabular(source)
    else:
        for is_events, some in groupby(source, _is_event):
            if not is_events:
                yield from chain.from_iterable(batches_of(it, read) for it in some)
            while is_events and (events := list(islice(some, _BATCH_ROWS))):
                yield read(events)


def _is_event(rows: object) -> bool:
    return isinstance(rows, Mapping) and not all(map(is_column, rows.values()))


class _Comparison:
    """The temporary tables of a call."""

    def __init__(
        self, connection: Connection, target: Target, identity: tuple[str, ...], producer: tuple[str, ...]
    ) -> None:
        self.connection = connection
        self.target = target
        self.identity = identity
        self.producer = producer
        self.names: tuple[str, ...] | None = None
        self.rows = 0
        self._tables: list[Table] = []

    def add(self, rows: pa.Table) -> None:
        """Add a batch of the source. Raises BatchError if its columns differ from those of the first one."""
        rows = self.target.convert(rows)
        if self.names is None:
            self._begin(tuple(rows.column_names))
        if set(rows.column_names) != set(self.names or ()):
            raise BatchError(
                f"a batch of the source has the columns {', '.join(rows.column_names)}, the first one had "
                f"{', '.join(self.names or ())}"
            )
        self.rows += len(rows)
        bulk.insert(self.connection, self.batch, rows)
        every = select(*self._exact(self.batch), self._fingerprint(self.batch))
        self.connection.execute(insert(self.source).from_select([*self.identity, "fingerprint"], every))
        self.connection.execute(self.batch.delete())

    def compare(self, where: Any) -> None:
        """Create the table with both sides of each identity."""
        if self.names is None:
            self._begin(self.target.insert or tuple(self.target.table.columns.keys()))
        table = self.target.table
        ours = select(*self._exact(table), self._fingerprint(table).label("fingerprint"), literal(1).label("is_ours"))
        if where is not None:
            ours = ours.where(text(where) if isinstance(where, str) else _on(table, where))
        theirs = select(*self._of(self.source), self.source.c.fingerprint, literal(0).label("is_ours"))
        both = union_all(theirs, ours).subquery("both_sides")
        is_ours = both.c.is_ours
        query = select(
            *self._of(both),
            cast(func.sum(1 - is_ours), Int64).label("source_rows"),  # MariaDB's sums are decimals.
            cast(func.sum(is_ours), Int64).label("table_rows"),
            func.min(case((is_ours == 0, both.c.fingerprint))).label("source_fingerprint"),
            func.min(case((is_ours == 1, both.c.fingerprint))).label("table_fingerprint"),
            (func.min(both.c.fingerprint) != func.max(both.c.fingerprint)).label("differs"),
        ).group_by(*self._of(both))
        compared = self._create("fencepost_compared", query)
        has_none: list[ColumnElement[bool]] = [compared.c[name].is_(None) for name in self.identity]
        integers = [it for it in self.producer if isinstance(self.target.table.c[it].type, types.Integer)]
        has_none += [compared.c[name] == -1 for name in integers]
        self.has_identity = and_(*(~it for it in has_none))
        self.kind = case(
            (compared.c.table_rows == 0, "missing"),
            (compared.c.source_rows == 0, "unexpected"),
            (compared.c.differs, "conflict"),
            (compared.c.table_rows > 1, "repeated"),
            else_=null(),
        )
        self.compared = compared

    def report(self, findings_max: int, on_findings: OnFindings | None) -> Reconciliation:
        """Count the differences, pass the findings to `on_findings`, and return the result."""
        compared, names = self.compared, self.identity
        totals = select(self.kind, func.count(), func.sum(compared.c.table_rows)).where(self.has_identity)
        counts = dict.fromkeys((*_KINDS, None), 0)
        table_rows = 0
        for kind, count, rows in self.connection.execute(totals.group_by(self.kind)):
            counts[kind] = count
            table_rows += int(rows)
        odd = select(func.sum(compared.c.table_rows), func.sum(compared.c.source_rows)).where(~self.has_identity)
        odd_table, odd_source = (int(it or 0) for it in self.connection.execute(odd).one())
        columns = [self.kind.label("finding"), *self._of(compared), *(compared.c[name] for name in _COMPARED)]
        query = select(*columns).where(self.has_identity, self.kind.is_not(None)).order_by(*self._of(compared))
        kept: list[pa.RecordBatch] = []
        found = self.connection.execute(query.execution_options(yield_per=_FINDINGS_ROWS))
        for rows in found.partitions():
            batch = _as_batch(names, rows)
            room = findings_max - sum(len(it) for it in kept)
            if room > 0:
                kept.append(batch.slice(0, room))
            if on_findings is None and room <= len(batch):
                found.close()
                break
            if on_findings is not None:
                on_findings(batch)
        return Reconciliation(
            source_rows=self.rows,
            table_rows=table_rows + odd_table,
            matched=counts[None],
            missing=counts["missing"],
            unexpected=counts["unexpected"],
            conflicts=counts["conflict"],
            repeated=counts["repeated"],
            without_identity=odd_table + odd_source,
            findings=_joined(kept or [_as_batch(names, [])]),
        )

    def drop(self) -> None:
        """Drop the temporary tables, which outlive the transaction that created them, except on PostgreSQL."""
        if self.connection.dialect.name != "postgresql":
            for table in reversed(self._tables):
                drop_temporary(self.connection, table)
            self.connection.commit()

    def _begin(self, names: tuple[str, ...]) -> None:
        lacking = [name for name in self.identity if name not in names]
        if lacking:
            have = ", ".join(names)
            raise BatchError(f"column '{lacking[0]}': missing; the rows have the columns {have}", column=lacking[0])
        self.names = names
        columns = self.target.table.c
        self.batch = self._create("fencepost_batch", select(*(columns[name] for name in names)).limit(0))
        nothing = cast(literal(""), Text if self.target.kind != "mariadb" else String(32)).label("fingerprint")
        identity = select(*self._exact(self.target.table), nothing)
        self.source = self._create("fencepost_source", identity.limit(0))

    def _create(self, name: str, query: Select[Any]) -> Table:
        compiled = query.compile(self.connection, compile_kwargs={"literal_binds": True})
        # Not as `text`, which would escape a second time.
        self.connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {name} AS {compiled}")
        kinds: dict[str, Any] = {"fingerprint": Text(), "differs": types.Boolean()}
        columns = (Column(it.name, kinds.get(it.name, it.type)) for it in query.selected_columns)
        table = Table(name, MetaData(), *columns, prefixes=["TEMPORARY"])
        self._tables.append(table)
        return table

    def _of(self, table: Any) -> list[Any]:
        return [table.c[name] for name in self.identity]

    def _exact(self, table: Any) -> list[Any]:
        """Return the identity columns as they are compared: see `exact`."""
        return [exact(column, self.target.kind).label(column.name) for column in self._of(table)]

    def _fingerprint(self, table: Table) -> Any:
        """Return the fingerprint of the columns outside the identity, in the order of their names."""
        payload = [table.c[name] for name in sorted(self.names or ()) if name not in self.identity]
        return fingerprint_of(payload, self.target.kind)


def know_fingerprints(connection: Connection) -> None:
    """Teach SQLite the function that `fingerprint_of` uses there."""
    if connection.dialect.name == "sqlite":
        driver = drivers.driver_of(connection)
        drivers.settled(driver.create_function("fencepost_fingerprint", -1, _fingerprint, deterministic=True))


def drop_temporary(connection: Connection, table: Table) -> None:
    """Drop a temporary table if it exists."""
    if connection.dialect.name in ("sqlite", "postgresql"):
        connection.execute(DropTable(table, if_exists=True))
    else:
        # Without TEMPORARY, MariaDB would commit, and could drop an application table of that name.
        connection.exec_driver_sql(f"DROP TEMPORARY TABLE IF EXISTS {table.name}")


def exact(column: ColumnElement[Any], kind: str) -> ColumnElement[Any]:
    """Return a column that compares texts by character: MariaDB's collations treat "a", "A" and "a " as equal."""
    if kind != "mariadb" or not isinstance(column.type, types.String):
        return column
    return type_coerce(collate(_in_utf8(column), "utf8mb4_nopad_bin"), types.String())


def _in_utf8(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.convert(column.op("USING")(literal_column("utf8mb4")), type_=types.String())


def fingerprint_of(payload: list[Any], kind: str) -> Any:
    """Return a database expression for the fingerprint of these columns of a row."""
    if not payload:
        return literal("")
    if kind == "mariadb":
        return func.md5(func.concat(*map(_with_length, payload)))
    if kind == "postgresql":
        return func.md5(cast(func.row(*map(_normalized, payload)), Text))
    while len(payload) > _ARGUMENTS_MAX:
        starts = range(0, len(payload), _ARGUMENTS_MAX)
        payload = [func.fencepost_fingerprint(*payload[it : it + _ARGUMENTS_MAX]) for it in starts]
    return func.fencepost_fingerprint(*payload)


def _on(table: Table, condition: Any) -> Any:
    """Convert a condition on the caller's Table object to one on `table`."""

    def ours(element: Any, **_: Any) -> Any:
        is_theirs = isinstance(element, Column) and getattr(element.table, "fullname", None) == table.fullname
        return table.c[element.name] if is_theirs else None

    return visitors.replacement_traverse(condition, {}, ours)


def _normalized(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Normalize equal values to the same text: PostgreSQL keeps 1.5 and 1.50, 0 and -0 apart in one column."""
    if isinstance(column.type, types.Float):
        return column + literal_column("0.0")
    if isinstance(column.type, types.Numeric):
        return func.trim_scale(column)
    return column


def _with_length(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a value as bytes with their length in front, on MariaDB."""
    if isinstance(column.type, types.Float):
        column = column + literal_column("0e0")  # with all digits, and without the sign of a zero
    is_bytes = isinstance(column.type, types._Binary)
    found = column if is_bytes else cast(_in_utf8(column), types.LargeBinary())
    return func.coalesce(func.concat(func.length(found), ":", found), "-")


def _fingerprint(*values: object) -> str:
    return hashlib.md5(repr(values).encode(), usedforsecurity=False).hexdigest()


def _as_batch(identity: Sequence[str], rows: Sequence[Any]) -> pa.RecordBatch:
    kinds = {"finding": pa.string(), **dict.fromkeys(identity), **_COMPARED}
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(kinds))


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.concat_tables([pa.Table.from_batches([it]) for it in batches], promote_options="permissive")
