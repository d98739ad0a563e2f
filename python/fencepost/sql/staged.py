"""A database table as the sink of a job: each version is one transaction.

    fencepost_versions                     one row per sink table: the state that owns it, and its newest version
    fencepost_stage_<table>_<n>_<attempt>_<task>   the staging table of a task for version n. The version's transaction
                                           drops it; garbage collection drops those of losing attempts
    <folder>/                              prepared files of tasks, and the side tables of each version (`RunFolders`)

Each task reads kept files of a version and fills a staging table. The driver's transaction then inserts from the
staging tables, sets version = n where version = n - 1, and drops the staging tables. The row of `fencepost_versions`
decides: the first process to move it applies or abandons the version, and a redo finds it moved.

Staging tables need not survive a crash of the server. The files remain until the version is done, and the driver
inserts from them if a staging table is incomplete.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    exc,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.pool import NullPool

from fencepost.errors import BatchError, OutcomeUnknownError, SinkChangedError, SinkError, message_of
from fencepost.lake.plan import groups_of_files
from fencepost.sql import rows as bulk
from fencepost.sql.columns import INNODB, Int64, key_text
from fencepost.sql.database import Database, outages
from fencepost.sql.migrations import Migration, Part
from fencepost.sql.target import Target
from fencepost.sql.upserts import insert_if_missing
from fencepost.state.commit import NewRows, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision, Outputs
from fencepost.state.disk import Disk
from fencepost.state.sinks import RunFolders, check_attempt, check_not_ahead, without_rows
from fencepost.state.versions import State

TABLES = MetaData()
PART = Part("versions", 2, TABLES, {2: Migration(("ALTER TABLE fencepost_versions ADD COLUMN attempt VARCHAR(64)",))})
VERSIONS = Table(
    "fencepost_versions",
    TABLES,
    Column("sink", key_text(String(255), 1020), primary_key=True),
    Column("state", String(64), nullable=False),
    Column("version", Int64, nullable=False),
    Column("status", String(16), nullable=False),
    Column("changed_ms", Int64, nullable=False),
    # The attempt whose decision moved the row. Null before the first one, and if an earlier package moved it.
    Column("attempt", String(64)),
    **INNODB,
)
_BATCH_ROWS = 65_536
_TRIES = 5


@dataclass(frozen=True)
class StageItem:
    """Files whose rows one task writes to a staging table."""

    table: str
    insert: tuple[str, ...] | None
    name: str
    """Prefix of the staging table's name."""
    paths: list[str]


@dataclass(frozen=True)
class Staged:
    """The staging table that an attempt of a task has filled."""

    table: str
    rows: int
    columns: list[str]


class StagedTable(RunFolders):
    """A table of SQLite, PostgreSQL or MariaDB as the sink of a `DedupJob` or of `fencepost_spark.foreach_batch`.

    A table is the sink of one state, permanently. Other programs may read and change it. A version is either
    completely in the table or not at all.

    Args:
        url: The SQLAlchemy URL. Workers open it too, so it must be valid there. It reaches them through the engine that
            runs the tasks, such as Spark. It is not written to files, so it may contain a password.
        table: The name of an existing table, with its schema if that is not on the search path.
        folder: For prepared files and refused rows. Workers must be able to access it.
        insert: The columns to write. None: all columns of the files.
        sync: Whether to fsync files in the folder.

    Raises:
        SinkError: The table does not exist.
        PolicyError: The database is not supported.
    """

    layout = "sql"
    has_schema = True
    can_merge = False

    def __init__(
        self,
        url: str | URL,
        table: str,
        folder: str | os.PathLike[str],
        *,
        insert: Sequence[str] | None = None,
        sync: bool = True,
    ) -> None:
        super().__init__(Path(os.path.abspath(os.fspath(folder))), Disk(sync))
        self._url = make_url(url).render_as_string(hide_password=False)
        self._table, self._insert = table, None if insert is None else tuple(insert)
        with _opened(self._url) as engine:
            self.name = Target(engine, table, insert).name
            Database(engine).create_tables(PART)

    def __repr__(self) -> str:
        return f"<StagedTable {self.name} of {make_url(self._url)!r}>"

    # Checks

    def check(self, state: State) -> None:
        """See `Sink`."""
        # Read the state before the row: other runs may finish versions in between.
        done = state.done()
        row = self._row()
        super().check(state)
        settings = state.settings()
        if row is None:
            if done:
                raise SinkChangedError(
                    f"{self!r}: its row in fencepost_versions is gone, but versions up to {done} were written. Restore "
                    "the row, or use a new state and a new table"
                )
        elif settings is None or row.state != settings.id:
            raise SinkError(f"{self!r}: belongs to another state (id {row.state}). A sink permanently has one state")
        else:
            check_not_ahead(repr(self), row.version, state.decided())
            if row.version < done:
                raise SinkChangedError(
                    f"{self!r}: its newest version is {row.version}, but versions up to {done} were written. The "
                    "database may have been restored from a backup. Restore state and folder of the same time too, or "
                    "use a new state and a new table"
                )

    def claim(self, state_id: str) -> None:
        """See `Sink`."""
        self._check_other_names()
        super().claim(state_id)
        with _opened(self._url) as engine:
            database = Database(engine)
            first = {"sink": self.name, "state": state_id, "version": 0, "status": APPLIED}
            database.transaction(
                lambda it: insert_if_missing(it, VERSIONS, first | {"changed_ms": database.now_ms(it)})
            )
        row = self._row()
        if row is None or row.state != state_id:
            raise SinkError(f"{self!r}: another state (id {row and row.state}) claimed this table at the same time")

    def _check_other_names(self) -> None:
        """Raise SinkError if a state has the same table under another name, such as one with its schema."""
        with _opened(self._url) as engine, engine.connect() as connection:
            others = connection.execute(select(VERSIONS.c.sink).where(VERSIONS.c.sink != self.name)).scalars().all()
        mine = self._place(self.name) if others else None
        for name in others:
            if self._place(name) == mine:
                raise SinkError(
                    f"{self!r}: belongs to another state already, as the table {name!r}. A table permanently has one "
                    "state"
                )

    def _place(self, name: str) -> tuple[Any, ...] | None:
        """Return the identity of a table, or None if it does not exist."""
        try:
            return place_of(make_url(self._url), name)
        except SinkError:
            return None

    def current_version(self, before: Decision | None) -> dict[str, Any] | None:
        """See `Sink`. Return the table and its newest version."""
        row = self._row()
        return {"table": self.name, "version": 0 if row is None else row.version}

    def shown(self, decision: Decision) -> int:
        """See `Sink`. Does not detect rows that other programs have deleted."""
        return 0 if self.is_reverted(decision) else len(decision.outputs)

    def is_reverted(self, decision: Decision) -> bool:
        """See `Sink`. The database may have been restored from a backup."""
        row = self._row()
        return row is None or row.version < decision.version

    # Rows

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """See `Sink`."""
        inside = next((it for it in rows.folders if it.strip("/")), None)
        if inside is not None:
            raise SinkError(f"{self!r}: cannot write columns that only folder names contain ({inside}) to a table")
        with _opened(self._url) as engine:
            target = Target(engine, self._table, self._insert)
            first: list[str] | None = None
            for schema, path in rows.schemas.items():
                try:
                    names = target.convert(pa.ipc.read_schema(pa.py_buffer(schema)).empty_table()).column_names
                except BatchError as error:
                    raise SinkError(f"{self!r}: {path}: {error.message}") from error
                first = first or names
                if set(names) != set(first):
                    both = f"{', '.join(names)}, but other files have {', '.join(first)}"
                    raise SinkError(f"{self!r}: {path} has the columns {both}. List the columns to write in insert=")
        return {}

    def stage(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int, tasks: Tasks
    ) -> dict[str, Any]:
        """See `Sink`."""
        if not len(outputs):
            return {}
        folder = self.prepare_folder(version, attempt)
        paths = [f"{folder}/{winners[name]}" for name in outputs.name]
        name = f"{self._stage_name}_{version}_{attempt[:12]}"
        groups = groups_of_files(outputs.bytes, slots)
        items = [StageItem(self._table, self._insert, name, paths[low:high]) for low, high in groups]
        staged = tasks("stage", partial(stage, self._url), items, scratch=self.scratch(version, attempt))
        return {"staged": [[it.table, it.rows] for it in staged], "columns": staged[0].columns}

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """See `Sink`. Apply the version in one transaction, then write the side tables."""
        return self._show(decision, self.status(decision) or self._commit(decision, APPLIED))

    def fence(self, decision: Decision) -> str:
        """See `Sink`. Move the row of `fencepost_versions` to the version, without writing rows."""
        return self._show(decision, self.status(decision) or self._commit(decision, ABANDONED))

    def status(self, decision: Decision) -> str | None:
        """See `RunFolders`. The folder of a version without side files is the same for each attempt; the row is not."""
        found = super().status(decision)
        if found is not None and (row := self._row()) is not None and row.version == decision.version:
            check_attempt(repr(self), decision, row.attempt)
        return found

    def collect_garbage(self, done: int) -> None:
        """See `Sink`. Also drop staging tables of losing attempts."""
        super().collect_garbage(done)
        pattern = re.compile(rf"{self._stage_name}_(\d+)_\w+")
        with _opened(self._url) as engine:
            for name in inspect(engine).get_table_names(schema=self._schema):
                match = pattern.fullmatch(name)
                if match and int(match[1]) <= done:
                    Database(engine).define(lambda it, name=name: it.execute(self._drop(it, name)))  # type: ignore[misc]

    def fold(self, first: int, last: int) -> None:
        """See `Sink`. Keep all marks, because the row in the database has the newest version only."""

    def _show(self, decision: Decision, status: str) -> str:
        """Write the files of a version after its transaction, applied or abandoned. Return the status."""
        beside = without_rows(decision)
        if beside.prepared is not None:
            for name in decision.outputs.name:
                self.disk.remove(self.path / beside.prepared / name)
        shown = super().apply(beside) if status == APPLIED else super().fence(beside)
        self.clear(decision)
        return shown

    def _commit(self, decision: Decision, wanted: str) -> str:
        """Move the row to the version and write its rows, unless another process has. Return the resulting status."""
        uses_tables = True
        with _opened(self._url) as engine:
            for _ in range(_TRIES):
                try:
                    return Database(engine).transaction(
                        lambda it, uses=uses_tables: self._move(it, decision, wanted, uses)  # type: ignore[misc]
                    )
                except OutcomeUnknownError:
                    continue  # The next attempt finds the outcome in the row.
                except _IncompleteError:
                    uses_tables = False
        raise OutcomeUnknownError(
            f"{self!r}: the connection was lost in each of {_TRIES} tries to commit version {decision.version}. Start "
            "the run again: it finds out whether the version is in the table"
        )

    def _move(self, connection: Connection, decision: Decision, wanted: str, uses_tables: bool) -> str:
        number = decision.version
        mine = VERSIONS.c.sink == self.name
        row = connection.execute(select(VERSIONS).where(mine).with_for_update()).one_or_none()
        if row is None or row.state != self.owner():
            raise SinkChangedError(
                f"{self!r}: its row in fencepost_versions is gone or belongs to another state, so version {number} "
                "cannot be written. Restore the row"
            )
        if row.version == number:
            check_attempt(repr(self), decision, row.attempt)
            return str(row.status)
        if row.version > number and (status := self.status(decision)):
            return status  # Other processes have finished this version and later ones.
        if row.version != number - 1:
            raise SinkChangedError(
                f"{self!r}: version {number} can only follow {number - 1}, but the newest version in the database is "
                f"{row.version}: table and state are not of the same time. Restore both of the same time, or use a new "
                "state and a new table"
            )
        seen = decision.sink_version or {}
        staged = seen.get("staged", [])
        if wanted == APPLIED and len(decision.outputs):
            if uses_tables:
                self._insert_staged(connection, staged, seen["columns"])
            else:
                self._insert_files(connection, decision)
        database = Database(connection.engine)
        clock = text(database.clock)
        moved = update(VERSIONS).where(mine, VERSIONS.c.version == number - 1)
        connection.execute(moved.values(version=number, status=wanted, changed_ms=clock, attempt=decision.attempt))
        # On MariaDB a drop would commit the transaction. There `collect_garbage` drops the tables.
        for name, _ in staged if not database.kind.commits_ddl else ():
            connection.execute(self._drop(connection, name))
        return wanted

    def _insert_staged(self, connection: Connection, staged: list[list[Any]], columns: list[str]) -> None:
        there = set(inspect(connection).get_table_names(schema=self._schema))
        target = self._formatted(connection, self.name.rpartition(".")[2])
        listed = bulk.quoted_names(connection, columns)
        for name, rows in staged:
            if name not in there:
                raise _IncompleteError
            query = f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {self._formatted(connection, name)}"
            with self._refusals():
                done = connection.execute(bulk.statement(query))
            if done.rowcount != rows:
                raise _IncompleteError

    def _insert_files(self, connection: Connection, decision: Decision) -> None:
        """Insert from the files, if a staging table is gone or a crash of the server has emptied it."""
        target = Target(connection.engine, self._table, self._insert)
        folder = self.path / str(decision.prepared)
        for name, size in zip(decision.outputs.name, decision.outputs.bytes, strict=True):
            path = folder / name
            if not path.exists() or path.stat().st_size != size:
                raise SinkChangedError(
                    f"{self!r}: the rows of version {decision.version} are neither in the staging tables nor in {path}"
                    ". Restore this file, or abandon the version (`fencepost.state.open(STATE).abandon(n, sink=sink)`)"
                )
            with self._refusals():
                for rows, _ in _converted(target, str(path)):
                    target.write(connection, rows)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (exc.IntegrityError, exc.DataError, BatchError) as error:
            raise SinkError(
                f"{self!r}: the table refuses rows of a decided version ({message_of(error)}). None of its rows are in "
                "the table. Change the table and run again, or abandon the version in Python "
                "(`fencepost.state.open(STATE).abandon(n, sink=sink)`)"
            ) from error

    # The database

    @property
    def _schema(self) -> str | None:
        return self.name.rpartition(".")[0] or None

    @property
    def _stage_name(self) -> str:
        return f"fencepost_stage_{zlib.crc32(self.name.encode()):08x}"

    def _formatted(self, connection: Connection, name: str) -> str:
        return bulk.quoted(connection, Table(name, MetaData(), schema=self._schema))

    def _drop(self, connection: Connection, name: str) -> Any:
        return bulk.statement(f"DROP TABLE IF EXISTS {self._formatted(connection, name)}")

    def _row(self) -> Any:
        query = select(VERSIONS).where(VERSIONS.c.sink == self.name)
        with _opened(self._url) as engine, engine.connect() as connection:
            return connection.execute(query).one_or_none()


class _IncompleteError(Exception):
    """The staging tables do not have all rows."""


def stage(url: str, item: StageItem) -> Staged:
    """Write the rows of some files to a new staging table.

    Raises:
        SinkError: The rows do not fit the sink table.
    """
    name = f"{item.name}_{uuid4().hex[:8]}"
    with _opened(url) as engine:
        target = Target(engine, item.table, item.insert)

        own, database = Table(name, MetaData(), schema=target.table.schema), Database(engine)
        columns = pq.read_schema(item.paths[0]).names
        if database.kind.commits_ddl:
            database.define(lambda connection: _create(connection, target, own, columns))

        def work(connection: Connection) -> Staged:
            rows = 0
            if not database.kind.commits_ddl:
                _create(connection, target, own, columns)
            for path in item.paths:
                for some, place in _converted(target, path):
                    with _refused_at(place):
                        bulk.insert(connection, own, some)
                    rows += len(some)
            return Staged(name, rows, list(target.insert or columns))

        return database.transaction(work)


def _create(connection: Connection, target: Target, table: Table, columns: Sequence[str]) -> None:
    """Create a staging table with the target's columns and constraints, to refuse rows before the decision."""
    like, new = bulk.quoted(connection, target.table), bulk.quoted(connection, table)
    if target.is_sqlite:
        listed = bulk.quoted_names(connection, target.insert or columns)
        connection.execute(bulk.statement(f"CREATE TABLE {new} AS SELECT {listed} FROM {like} LIMIT 0"))
    elif target.kind == "mariadb":
        connection.execute(bulk.statement(f"CREATE TABLE IF NOT EXISTS {new} LIKE {like}"))
    else:
        parts = "DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING IDENTITY"
        connection.execute(bulk.statement(f"CREATE UNLOGGED TABLE {new} (LIKE {like} INCLUDING {parts})"))


def _converted(target: Target, path: str) -> Iterator[tuple[pa.Table, str]]:
    """Yield the rows of a file in batches, each with its place for errors."""
    first = 0
    for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
        place = f"{path}, rows from {first}"
        with _refused_at(place):
            rows = target.convert(pa.Table.from_batches([batch]))
        yield rows, place
        first += len(batch)


@contextmanager
def _refused_at(place: str) -> Iterator[None]:
    """Convert BatchError to SinkError, with the place of the rows."""
    try:
        yield
    except BatchError as error:
        raise SinkError(f"{place}: {error.message}") from error


def place_of(url: URL, table: str) -> tuple[Any, ...]:
    """Return the identity of the table at this URL, as `Target.place`.

    Raises:
        SinkError: The table does not exist.
    """
    with _opened(url.render_as_string(hide_password=False)) as engine:
        return Target(engine, table).place()


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    engine = create_engine(url, poolclass=NullPool)
    try:
        with outages(engine):
            yield engine
    finally:
        engine.dispose()
