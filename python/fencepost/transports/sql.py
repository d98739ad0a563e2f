"""Writes to an SQL table, with a table beside it that lists the batches that count.

Rows, the listing and the producer's state change in one database transaction, under a lock on the partition. So a retry
after a lost connection finds the outcome of the first try. These tables belong to a table `events`:

    events_commits      a row per batch: partition, log_offset, pid, epoch, first_seq, last_seq, count, outcome
    events_partitions   the next offset of each partition; its row is the lock
    events_producers    a partition's state of a producer: a `BrokerTable` of one entry
    events_floors       the lowest accepted epoch of a producer, in a partition or in all of them (-1)
    events_layout       one row: the number of partitions
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    cast,
    exc,
    func,
    inspect,
    or_,
    select,
    type_coerce,
    types,
)
from sqlalchemy.dialects.mysql import DATETIME, DOUBLE

from fencepost import BrokerTable, Verdict
from fencepost.errors import BatchError, PolicyError, SchemaError, SinkError, SourceError, StoreError
from fencepost.inputs import is_integer
from fencepost.producer.answers import Answer, ErrorCode
from fencepost.producer.sequencer import EPOCH_MAX
from fencepost.producer.transport import SequencedBatch
from fencepost.sql import rows as bulk
from fencepost.sql.columns import INNODB, Int64, LongBinary, LongText
from fencepost.sql.database import IDLE_TIMEOUT_MS, LOCK_TIMEOUT_MS, Database, outages
from fencepost.sql.migrations import Migration, Part
from fencepost.sql.schema import dialect_named
from fencepost.sql.target import Target
from fencepost.sql.upserts import insert_if_missing
from fencepost.transports.admission import judge, last_written, mark, new_table
from fencepost.transports.counts import checked
from fencepost.transports.schemas import NOTHING, conform

if TYPE_CHECKING:
    import pyarrow as pa

LOG_COLUMNS = ("pid", "epoch", "partition", "seq", "log_offset")
"""Columns of the table in addition to the application's: integers; log_offset and seq have 64 bits."""
NAME_MAX = 48
"""Maximum length of a table's name: PostgreSQL truncates names after 63 bytes."""
EVERYWHERE = -1
"""In place of a partition: the lowest epoch of all partitions."""
NO_EPOCH = EPOCH_MAX + 1
"""As the lowest accepted epoch: no epoch is accepted."""


class SqlTransport:
    """Writes batches of a `SequencedProducer` to a table, and lists them in the same transaction.

    Args:
        engine: An SQLAlchemy 2 engine for SQLite, PostgreSQL or MariaDB.
        table: The name of the table, or a `sqlalchemy.Table`. It has the application's columns and the integer columns
            pid, epoch, partition, seq and log_offset (seq and log_offset with 64 bits); (partition, log_offset) is
            unique.
        schema: An Arrow schema of the application's columns. A missing table is created from it. Every batch must match
            it. Batches must match the table's columns in any case.
        partitions: The number of partitions. The tables store it permanently. None uses the stored number (1 for a new
            table).
        lock_timeout_ms: As in `ProducerRegistry`.
        idle_timeout_ms: As in `ProducerRegistry`.

    Raises:
        SchemaError: The table lacks columns, or the tables are of a newer version. Nothing is created then.
        PolicyError: The table has another number of partitions.
        StoreError: The database is not available. Every method may raise this.
    """

    def __init__(
        self,
        engine: Engine,
        table: str | Table,
        *,
        schema: pa.Schema | None = None,
        partitions: int | None = None,
        lock_timeout_ms: int | None = LOCK_TIMEOUT_MS,
        idle_timeout_ms: int | None = IDLE_TIMEOUT_MS,
    ) -> None:
        self._database = Database(engine, lock_timeout_ms=lock_timeout_ms, idle_timeout_ms=idle_timeout_ms)
        self._tables = open_tables(self._database, table, schema)
        self._target = Target(engine, self._tables.rows)
        self._schema = schema
        self.partitions = self._database.settled(lambda connection: self._count(connection, partitions))

    def send(self, batch: SequencedBatch) -> Answer:
        """Write a batch and list it in one transaction, or return the reason for refusing it.

        Raises BatchError (column, row) for rows that do not fit the table, StoreError if the database is not available.
        What the database refuses permanently (a missing table or right, a trigger) becomes an answer that a producer
        does not retry.
        """
        batch = self._converted(batch)
        try:
            return self._database.transaction(lambda connection: self._append(connection, batch))
        except exc.IntegrityError as error:  # raised by COMMIT; other errors name their row
            raise bulk.refused_at_commit(self._tables.rows.name, error) from error
        except (StoreError, exc.DBAPIError) as error:
            cause = error.__cause__ if isinstance(error, StoreError) else error
            message = f"{self._tables.rows.name}: {_short(cause or error)}"
            code = _refusal(cause, self._database.kind.name)
            if code is None and isinstance(error, StoreError):
                raise
            if code is None:
                raise StoreError(message) from error
            advice = "Fix the table or its permissions: the database refuses this permanently"
            return Answer(code, message=f"{message}. {advice}")

    def fence(self, pid: int, epoch: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        """Refuse epochs of a producer below `epoch` from now on, and return its last sequences (`Transport`)."""

        def work(connection: Connection) -> dict[int, tuple[int, int]]:
            known = self._known_partitions(connection) if partitions is None else sorted(partitions)
            found: dict[int, tuple[int, int]] = {}
            for number in known:
                state = self._state(connection, pid, number, self._lock(connection, number))
                last = last_written(state.table, number, pid)
                if last is not None:
                    found[number] = last
                if partitions is not None:
                    self._raise_floor(connection, pid, number, epoch)
            if partitions is None:
                self._raise_floor(connection, pid, EVERYWHERE, epoch)
            return found

        return self._database.transaction(work)

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: str, coordinator_epoch: int = 0) -> Verdict:
        """Write a transaction's end to a partition, for a coordinator, and return the verdict on the marker.

        Idempotent. A marker of a producer that has already advanced is FENCED and changes nothing, so the coordinator
        needs no check.
        """

        def work(connection: Connection) -> Verdict:
            state = self._state(connection, pid, partition, self._lock(connection, partition))
            last = last_written(state.table, partition, pid)
            if last is not None and last.epoch == epoch:
                return Verdict.DUPLICATE  # only a marker introduces an epoch without batches
            verdict = mark(state.table, partition, pid, epoch, outcome, coordinator_epoch).verdict
            if verdict.is_kept:
                commits = self._tables.commits
                undecided = commits.update().where(
                    commits.c.partition == partition, commits.c.pid == pid, commits.c.outcome == OPEN
                )
                connection.execute(undecided.values(outcome=outcome))
                self._save(connection, pid, partition, state)
            return verdict

        return self._database.transaction(work)

    # Steps of an append

    def _append(self, connection: Connection, batch: SequencedBatch) -> Answer:
        log_end = self._lock(connection, batch.partition)
        if batch.epoch < self._floor(connection, batch.pid, batch.partition):
            return Answer(Verdict.FENCED)
        state = self._state(connection, batch.pid, batch.partition, log_end)
        judged = judge(
            state.table, batch.partition, batch.pid, batch.epoch, batch.first_seq, batch.count, batch.transactional
        )
        if judged.verdict is not Verdict.ACCEPTED:
            return Answer(judged.verdict, judged.offset)
        self._insert(connection, batch, log_end)
        connection.execute(
            self._tables.commits.insert().values(
                partition=batch.partition, log_offset=log_end, pid=batch.pid, epoch=batch.epoch,
                first_seq=batch.first_seq, last_seq=batch.last_seq, count=batch.count,
                outcome=OPEN if batch.transactional else COMMIT,
            )
        )  # fmt: skip
        self._save(connection, batch.pid, batch.partition, state)
        return Answer(Verdict.ACCEPTED, log_end)

    def _lock(self, connection: Connection, partition: int) -> int:
        """Lock a partition until the end of the transaction, and return its next offset."""
        partitions = self._tables.partitions
        one = select(partitions.c.log_end).where(partitions.c.partition == partition).with_for_update()
        found = connection.execute(one).scalar()
        if found is not None:
            return int(found)
        insert_if_missing(connection, partitions, {"partition": partition, "log_end": 0})
        return int(connection.execute(one).scalar_one())

    def _floor(self, connection: Connection, pid: int, partition: int) -> int:
        """Lock and return the lowest accepted epoch of a pid, so that it cannot change during this transaction."""
        floors = self._tables.floors
        these = floors.c.partition.in_([EVERYWHERE, partition])
        one = select(floors.c.epoch).where(floors.c.pid == pid, these).with_for_update(read=True)
        found = list(connection.execute(one).scalars())
        if not found:  # there is no row to lock, and another transaction could insert one
            insert_if_missing(connection, floors, {"pid": pid, "partition": EVERYWHERE, "epoch": 0})
            found = list(connection.execute(one).scalars())
        return int(max(found))

    def _raise_floor(self, connection: Connection, pid: int, partition: int, epoch: int) -> None:
        floors = self._tables.floors
        insert_if_missing(connection, floors, {"pid": pid, "partition": partition, "epoch": 0})
        one = floors.update().where(floors.c.pid == pid, floors.c.partition == partition, floors.c.epoch < epoch)
        connection.execute(one.values(epoch=epoch))

    def _known_partitions(self, connection: Connection) -> list[int]:
        partitions = self._tables.partitions
        return list(connection.execute(select(partitions.c.partition).order_by(partitions.c.partition)).scalars())

    def _state(self, connection: Connection, pid: int, partition: int, log_end: int) -> State:
        producers = self._tables.producers
        one = select(producers.c.state)
        row = connection.execute(one.where(producers.c.pid == pid, producers.c.partition == partition)).first()
        table = new_table() if row is None else BrokerTable.restore(row.state)
        table.set_log_end(partition, log_end)
        return State(table, row is None)

    def _save(self, connection: Connection, pid: int, partition: int, state: State) -> None:
        producers, partitions = self._tables.producers, self._tables.partitions
        values = {"state": state.table.snapshot()}
        if state.is_new:
            connection.execute(producers.insert().values(pid=pid, partition=partition, **values))
        else:
            one = producers.update().where(producers.c.pid == pid, producers.c.partition == partition)
            connection.execute(one.values(**values))
        end = partitions.update().where(partitions.c.partition == partition)
        connection.execute(end.values(log_end=state.table.log_end(partition)))

    def _converted(self, batch: SequencedBatch) -> SequencedBatch:
        """Return the batch with rows converted for the table, without offsets. Raises BatchError (column, row)."""
        import numpy as np

        name = f"the table {self._tables.rows.name!r}"
        rows = batch.rows if self._schema is None else conform(batch.rows, self._schema, name)
        for column in rows.column_names:
            if column not in self._tables.rows.c:
                raise BatchError(f"column '{column}': {name} has no such column; {NOTHING}", column=column)
        rows = rows.append_column("log_offset", [np.zeros(len(rows), np.int64)])
        try:
            return replace(batch, rows=self._target.convert(rows))
        except SinkError as error:  # a column that the table generates or requires
            raise BatchError(error.message) from error

    def _insert(self, connection: Connection, batch: SequencedBatch, log_end: int) -> None:
        import numpy as np

        offsets = np.arange(log_end, log_end + batch.count)
        at = batch.rows.column_names.index("log_offset")
        self._target.write(connection, batch.rows.set_column(at, "log_offset", [offsets]))

    # Partitions

    def _count(self, connection: Connection, given: int | None) -> int:
        """Return the number of partitions, and store it if missing."""
        layout, partitions = self._tables.layout, self._tables.partitions
        stored = connection.execute(select(layout.c.partitions)).scalar()
        last = connection.execute(select(func.max(partitions.c.partition))).scalar()
        count = checked(f"the table {self._tables.rows.name!r}", given, stored, 0 if last is None else last + 1)
        insert_if_missing(connection, layout, {"id": 1, "partitions": count})
        stored = connection.execute(select(layout.c.partitions)).scalar_one()
        return checked(f"the table {self._tables.rows.name!r}", count, stored, 0)


class State(NamedTuple):
    """A partition's state of one producer."""

    table: BrokerTable
    is_new: bool


OPEN, COMMIT = "open", "commit"


# Reading


def read_committed(
    engine: Engine, table: str | Table, *, partition: int | None = None, from_offset: int = 0
) -> pa.Table:
    """Return the committed rows, ordered by partition and log_offset, with the columns of the table.

    Rows of open and aborted transactions are left out. In each partition, reading stops at the first open transaction,
    so a reader that continues at the next offset misses nothing. Rows that other programs inserted are ignored. All
    rows are held in memory: `stream_committed` yields them in pieces, and a view shows them to SQL
    (`create_committed_view`).

    Raises SourceError if the table has fewer rows than listed, SchemaError for a table of another kind.
    """
    import pyarrow as pa

    found = list(stream_committed(engine, table, partition=partition, from_offset=from_offset))
    return pa.concat_tables(found, promote_options="permissive")


def stream_committed(
    engine: Engine,
    table: str | Table,
    *,
    partition: int | None = None,
    from_offset: int = 0,
    batch_rows: int = 65_536,
) -> Iterator[pa.Table]:
    """Yield the rows of `read_committed` as tables of at most `batch_rows` rows, at least one table.

    The types are those of the table's columns, so all tables have the same schema. Exceptions are types that this
    package does not know, such as arrays, and NUMERIC without a precision: their types depend on the values.

    Contains what is committed when the first table is requested. No database transaction is open between tables,
    because listed rows do not change. Raises the errors of `read_committed` when it meets them.
    """
    import pyarrow as pa

    if not is_integer(batch_rows, 1):
        raise PolicyError(f"batch_rows={batch_rows!r}: expected a number of rows, at least 1")
    database = Database(engine)
    tables = open_tables(database, table, None)
    ranges = database.transaction(lambda connection: _ranges(connection, tables, partition, from_offset))
    for number, begin, end in ranges:
        for first in range(begin, end, batch_rows):
            last = min(first + batch_rows, end)
            yield database.transaction(partial(_read_range, tables.rows, number, first, last))
    if not ranges:
        yield pa.table({column.name: pa.nulls(0, _type_of(column.type) or pa.null()) for column in tables.rows.c})


def committed_view(table: str, dialect: str) -> str:
    """Return the statement that creates the view `<table>_committed`, for `create_committed_view`.

    In each partition, the view ends before the first open transaction.
    """
    preparer = dialect_named(dialect).identifier_preparer
    names = (table, f"{table}_commits", f"{table}_committed", "partition")
    rows, commits, view, partition = (bulk.unescaped(dialect, preparer.quote_identifier(it)) for it in names)
    replace_it = "" if dialect == "sqlite" else "OR REPLACE "
    first_open = f"""(
    SELECT o.{partition}, min(o.log_offset) AS log_offset FROM {commits} AS o WHERE o.outcome = '{OPEN}'
    GROUP BY o.{partition}
) AS first_open ON first_open.{partition} = r.{partition}
WHERE (first_open.log_offset IS NULL OR r.log_offset < first_open.log_offset)"""
    if dialect == "mariadb":
        # Finds the rows of each batch by the index. MariaDB scans a partition's batches for every row otherwise, and a
        # partition's rows for every batch if the condition on partitions is an equality.
        return f"""CREATE {replace_it}VIEW {view} AS
SELECT r.* FROM {commits} AS c STRAIGHT_JOIN {rows} AS r
ON r.{partition} >= c.{partition} AND r.{partition} <= c.{partition}
AND r.log_offset >= c.log_offset AND r.log_offset < c.log_offset + c.count
LEFT JOIN {first_open} AND c.outcome = '{COMMIT}'"""
    # Each row belongs to the last batch that begins at or before it, which the index finds.
    return f"""CREATE {replace_it}VIEW {view} AS
SELECT r.* FROM {rows} AS r
LEFT JOIN {first_open} AND (
    SELECT CASE WHEN r.log_offset < c.log_offset + c.count THEN c.outcome END FROM {commits} AS c
    WHERE c.{partition} = r.{partition} AND c.log_offset <= r.log_offset ORDER BY c.log_offset DESC LIMIT 1
) = '{COMMIT}'"""


def create_committed_view(engine: Engine, table: str) -> str:
    """Create the view `<table>_committed` of a transport's table, with the rows of `read_committed`, and return its
    name.

    Call it again after adding columns: a view keeps the columns that the table had.

    Raises SchemaError for a table of another kind, StoreError if the database is not available.
    """
    database = Database(engine)
    open_tables(database, table, None)
    statement, name = committed_view(table, database.kind.name), f"{table}_committed"

    def make(connection: Connection) -> None:
        if database.is_sqlite:
            connection.execute(bulk.statement(f"DROP VIEW IF EXISTS {bulk.quoted_names(connection, [name])}"))
        connection.execute(bulk.statement(statement))

    database.define(make)
    return name


def _ranges(
    connection: Connection, tables: Tables, partition: int | None, from_offset: int
) -> list[tuple[int, int, int]]:
    """Return (partition, first offset, end) of the committed rows, in order, merged where possible."""
    commits = tables.commits
    wanted = select(commits.c.partition, commits.c.log_offset, commits.c.count, commits.c.outcome)
    # What is open before `from_offset` also ends the reading.
    wanted = wanted.where(or_(commits.c.log_offset + commits.c.count > from_offset, commits.c.outcome == OPEN))
    if partition is not None:
        wanted = wanted.where(commits.c.partition == partition)
    found: list[tuple[int, int, int]] = []
    stopped: int | None = None
    for number, offset, count, outcome in connection.execute(
        wanted.order_by(commits.c.partition, commits.c.log_offset)
    ):
        if outcome == OPEN:
            stopped = number
        if number == stopped or outcome != COMMIT:
            continue
        first = max(offset, from_offset)
        if found and (found[-1][0], found[-1][2]) == (number, offset):
            _, first, _ = found.pop()
        found.append((number, first, offset + count))
    return found


def _read_range(rows: Table, partition: int, begin: int, end: int, connection: Connection) -> pa.Table:
    import pyarrow as pa

    columns = [_exact(column, connection.dialect.name) for column in rows.c]
    wanted = select(*columns).where(rows.c.partition == partition, rows.c.log_offset.between(begin, end - 1))
    found = connection.execute(wanted.order_by(rows.c.log_offset)).all()
    if len(found) != end - begin:
        raise SourceError(
            f"{rows.name}, partition {partition}: {end - begin} rows are listed from offset {begin} on, but "
            f"{len(found)} exist",
            path=rows.name,
            position=begin,
        )
    return pa.table({column.name: _array([row[at] for row in found], column) for at, column in enumerate(rows.c)})


def _exact(column: Column[Any], dialect: str) -> ColumnElement[Any]:
    """Return an expression of the column's values that loses no digit. SQLAlchemy rounds floats to ten decimals if it
    makes Decimals of them: those of MariaDB, and those in a NUMERIC column of SQLite. MariaDB prints six digits of a
    FLOAT."""
    if isinstance(column.type, types.Float):
        return column if dialect in ("sqlite", "postgresql") else cast(column, DOUBLE(asdecimal=False))
    is_rounded = dialect == "sqlite" and isinstance(column.type, types.Numeric)
    return type_coerce(column, types.NullType()) if is_rounded else column


def _array(values: list[Any], column: Column[Any]) -> pa.Array:
    """Return the values with the type of the column, so that all tables of a stream have the same types."""
    import pyarrow as pa

    kind = _type_of(column.type)
    if isinstance(column.type, types.Numeric) and not isinstance(column.type, types.Float):
        values = [None if it is None else Decimal(str(it)) for it in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # values of a type that SQLAlchemy does not know
        return pa.array(values)


def _type_of(kind: Any) -> pa.DataType | None:
    """Return the Arrow type of a column's values. None if it depends on the values."""
    import pyarrow as pa

    if isinstance(kind, types.Boolean):
        return pa.bool_()
    if isinstance(kind, types.Integer):
        return pa.uint64() if getattr(kind, "unsigned", False) else pa.int64()
    if isinstance(kind, types.Float):
        return pa.float64()
    if isinstance(kind, types.Numeric):
        precision, scale = kind.precision, kind.scale or 0
        return None if precision is None else (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
    if isinstance(kind, types.String):
        return pa.string()
    if isinstance(kind, types._Binary):
        return pa.binary()
    if isinstance(kind, types.DateTime):
        return pa.timestamp("us", "UTC" if kind.timezone else None)
    return pa.date32() if isinstance(kind, types.Date) else None


# Tables


class Tables(NamedTuple):
    """A transport's table and the tables that belong to it."""

    rows: Table
    commits: Table
    partitions: Table
    producers: Table
    floors: Table
    layout: Table


def open_tables(database: Database, table: str | Table, schema: pa.Schema | None) -> Tables:
    """Open the tables. Creates missing ones if a schema is given. Raises SchemaError."""
    with outages(database.engine):
        return _open_tables(database, table, schema)


def _open_tables(database: Database, table: str | Table, schema: pa.Schema | None) -> Tables:
    name = table if isinstance(table, str) else table.name
    if len(name) > NAME_MAX:
        raise SchemaError(
            f"the table's name has {len(name)} characters; at most {NAME_MAX} are allowed, because other "
            "tables are named after it"
        )
    metadata = MetaData()
    if isinstance(table, Table):
        rows = table
    elif inspect(database.engine).has_table(name):
        rows = Table(name, metadata, autoload_with=database.engine)
    elif schema is None:
        raise SchemaError(f"table {name!r} does not exist: create it, or pass the Arrow schema of its columns")
    else:
        rows = Table(name, metadata, *_columns_of(schema), *_log_columns(), **INNODB)
    _check_columns(rows)
    beside = MetaData()
    tables = Tables(rows, *_beside(name, beside))
    is_missing = isinstance(table, str) and not inspect(database.engine).has_table(name)
    if is_missing:
        rows.to_metadata(beside)
    database.create_tables(_part(name, beside))
    if is_missing:  # still missing if only the other tables were created by SQL
        database.define(lambda connection: rows.create(connection, checkfirst=True))
    return tables


def part_beside(name: str) -> Part:
    """Return the tables that belong to a transport's table of this name, to create them by SQL."""
    beside = MetaData()
    _beside(name, beside)
    return _part(name, beside)


def _part(name: str, beside: MetaData) -> Part:
    leases, layout, floors = (f'"{name}_{suffix}"' for suffix in ("leases", "layout", "floors"))
    to_3 = Migration(
        (
            f"ALTER TABLE {leases} ADD COLUMN follows_pid BIGINT",
            f"ALTER TABLE {leases} ADD COLUMN follows_epoch INTEGER",
            f"CREATE TABLE {layout} (id INTEGER NOT NULL PRIMARY KEY, partitions INTEGER NOT NULL)",
        )
    )
    # Since version 4, only a registry leases identities. No producer could fence the owners of the table's leases,
    # so the migration does. MariaDB may repeat it after the DROP, so it first creates the table. It keeps the positions
    # of cursor mode in their table, which nothing reads: they are the only record of how far a source was read.
    to_4 = Migration(
        (
            f"CREATE TABLE IF NOT EXISTS {leases} (name VARCHAR(255) NOT NULL PRIMARY KEY, pid BIGINT NOT NULL)",
            f"DELETE FROM {floors} WHERE pid IN (SELECT pid FROM {leases} WHERE name <> '')",
            f'INSERT INTO {floors} (pid, "partition", epoch) '
            f"SELECT pid, {EVERYWHERE}, {NO_EPOCH} FROM {leases} WHERE name <> ''",
            f"DROP TABLE {leases}",
        )
    )
    return Part(f"transport {name}", 4, beside, {3: to_3, 4: to_4})


def _beside(name: str, metadata: MetaData) -> list[Table]:
    tables = {
        "commits": [
            _key("partition", Integer),
            _key("log_offset", Int64),
            _required("pid", Int64),
            _required("epoch", Integer),
            _required("first_seq", Int64),
            _required("last_seq", Int64),
            _required("count", Int64),
            _required("outcome", String(8)),
        ],
        "partitions": [_key("partition", Integer), _required("log_end", Int64)],
        "producers": [_key("partition", Integer), _key("pid", Int64), _required("state", LongBinary)],
        "floors": [_key("pid", Int64), _key("partition", Integer), _required("epoch", Integer)],
        "layout": [_key("id", Integer), _required("partitions", Integer)],
    }
    return [Table(f"{name}_{suffix}", metadata, *columns, **INNODB) for suffix, columns in tables.items()]


def _log_columns() -> list[Column[Any]]:
    return [
        _required("pid", Int64),
        _required("epoch", Integer),
        _key("partition", Integer),
        _required("seq", Int64),
        _key("log_offset", Int64),
    ]


def _key(name: str, kind: Any) -> Column[Any]:
    """Return a column of the primary key, to which the database assigns no values."""
    return Column(name, kind, primary_key=True, autoincrement=False)


def _required(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _columns_of(schema: pa.Schema) -> list[Column[Any]]:
    """Return the columns for an Arrow schema. Raises SchemaError for a type without a column type."""
    import pyarrow as pa

    def kind_of(kind: pa.DataType) -> Any:
        is_a = pa.types
        if is_a.is_boolean(kind):
            return types.Boolean()
        if is_a.is_integer(kind) and kind != pa.uint64():
            return Int64
        if is_a.is_floating(kind):
            return types.Float(53)
        if is_a.is_decimal(kind):
            return types.Numeric(kind.precision, kind.scale)
        if is_a.is_string(kind) or is_a.is_large_string(kind):
            return LongText
        if is_a.is_binary(kind) or is_a.is_large_binary(kind):
            return LongBinary
        if is_a.is_timestamp(kind):
            return types.DateTime(timezone=kind.tz is not None).with_variant(DATETIME(fsp=6), "mysql", "mariadb")
        if is_a.is_date32(kind):
            return types.Date()
        return None

    columns = []
    for field in schema:
        kind = kind_of(field.type)
        if kind is None:
            raise SchemaError(f"column {field.name!r}: no column type for {field.type}: create the table yourself")
        columns.append(Column(field.name, kind, nullable=field.nullable))
    return columns


def _check_columns(rows: Table) -> None:
    for name in LOG_COLUMNS:
        if name not in rows.c:
            needed = ", ".join(LOG_COLUMNS)
            raise SchemaError(
                f"the table {rows.name!r} has no column {name!r}; in addition to the application's columns it "
                f"needs {needed}"
            )
        if not isinstance(rows.c[name].type, Integer):
            raise SchemaError(
                f"the table {rows.name!r}: column {name!r} is {rows.c[name].type}, but must be an integer"
            )
    key = {"partition", "log_offset"}
    unique = [{it.name for it in rows.primary_key}]
    unique += [{it.name for it in one.columns} for one in rows.constraints if isinstance(one, UniqueConstraint)]
    unique += [{it.name for it in one.columns} for one in rows.indexes if one.unique]
    if key not in unique:
        raise SchemaError(
            f"the table {rows.name!r} needs a primary key, or a unique index, on partition and log_offset"
        )


def _refusal(error: BaseException | None, kind: str) -> ErrorCode | None:
    """Return the answer if the database refuses a statement permanently; None if a retry may succeed."""
    of_driver = getattr(error, "orig", None)
    if kind == "sqlite":
        return _SQLITE_REFUSALS.get(getattr(of_driver, "sqlite_errorcode", 0) & 0xFF)
    if kind == "mariadb":
        return _MARIADB_REFUSALS.get(next(iter(getattr(of_driver, "args", ())), 0))
    state = getattr(of_driver, "sqlstate", None) or ""
    return _REFUSALS.get(state) or _REFUSALS.get(state[:2])


# By SQLSTATE or its class: rights, values and triggers, statements, server limits.
_REFUSALS = {
    "42501": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    **dict.fromkeys(("22", "23", "P0"), ErrorCode.INVALID_RECORD),
    **dict.fromkeys(("0A", "38", "39", "3F", "42", "54"), ErrorCode.INVALID_REQUEST),
}
# SQLITE_PERM, READONLY and AUTH; TOOBIG, CONSTRAINT and MISMATCH; ERROR (of the statement), CORRUPT and NOTADB.
_SQLITE_REFUSALS = {
    **dict.fromkeys((3, 8, 23), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    **dict.fromkeys((18, 19, 20), ErrorCode.INVALID_RECORD),
    **dict.fromkeys((1, 11, 26), ErrorCode.INVALID_REQUEST),
}
# Rights on databases, tables and columns; values, keys, checks and triggers; statements, names and limits.
_MARIADB_REFUSALS = {
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    **dict.fromkeys((1048, 1062, 1216, 1264, 1364, 1366, 1406, 1452, 1644, 4025), ErrorCode.INVALID_RECORD),
    **dict.fromkeys((1049, 1054, 1064, 1109, 1136, 1146, 1235, 1305, 1347, 1471), ErrorCode.INVALID_REQUEST),
}


def _short(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).partition("\n")[0]
