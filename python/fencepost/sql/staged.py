"""A table of a database as the sink of a job: each version is one transaction.

    fencepost_versions                     a row a table: whose it is, and the newest version in it
    fencepost_stage_<table>_<n>_<attempt>_<task>   what a task has written for version n; gone with the version's
                                           transaction, those of attempts that lost when the version is done
    <folder>/                              what tasks prepare, and each version's side tables (`RunFolders`)

Tasks read the files that a version keeps and fill a table of their own, so that the driver's transaction only inserts
from tables, sets version = n where version = n - 1, and drops them. What counts is that row: a version is applied, or
abandoned, by whoever first moves it, and a redo finds it moved. Tables of tasks need not withstand a crash of the
server: the files are there until the version is done, and rows are taken from them where a table has not all.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
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
from fencepost.sql.migrations import Part
from fencepost.sql.target import Target
from fencepost.sql.upserts import insert_if_missing
from fencepost.state.commit import NewRows, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision, Outputs
from fencepost.state.disk import Disk
from fencepost.state.sinks import RunFolders, without_rows
from fencepost.state.versions import State

TABLES = MetaData()
PART = Part("versions", 1, TABLES)
VERSIONS = Table(
    "fencepost_versions",
    TABLES,
    Column("sink", key_text(String(255), 1020), primary_key=True),
    Column("state", String(64), nullable=False),
    Column("version", Int64, nullable=False),
    Column("status", String(16), nullable=False),
    Column("changed_ms", Int64, nullable=False),
    **INNODB,
)
_BATCH_ROWS = 65_536
_TRIES = 5


@dataclass(frozen=True)
class StageItem:
    """Files whose rows go into one table of a task."""

    table: str
    insert: tuple[str, ...] | None
    name: str
    """What the names of its tables begin with."""
    paths: list[str]


@dataclass(frozen=True)
class Staged:
    """The table that an attempt at a task has filled."""

    table: str
    rows: int
    columns: list[str]


class StagedTable(RunFolders):
    """A table of SQLite, PostgreSQL or MariaDB as the sink of a `DedupJob` or of `fencepost_spark.foreach_batch`.

    `url`: as SQLAlchemy takes it; workers open it too, so it must say where the database is from there. It goes to them
    by the engine's channel and into no file, so it may hold a password. `table`: by its name, with its schema where it
    is not on the path; it is there already, with the columns that are written: `insert`, or all that the files have.
    `folder`: for what tasks prepare and for refused rows; workers see it.

    One table is the sink of one state, for ever. Others may read and change it; a version is in it wholly or not.

    Raises SinkError where there is no such table, PolicyError for other databases.
    """

    layout = "sql"
    has_schema = True

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
        with self._opened() as engine:
            self.name = Target(engine, table, insert).name
            Database(engine).create_tables(PART)

    def __repr__(self) -> str:
        return f"<StagedTable {self.name} of {make_url(self._url)!r}>"

    # Looking

    def check(self, state: State) -> None:
        """See `Sink`."""
        # In this order: other runs may finish versions meanwhile.
        done = state.done()
        row = self._row()
        super().check(state)
        settings = state.settings()
        if row is None:
            if done:
                raise SinkChangedError(f"{self!r}: nothing says any more that versions were written to it")
        elif settings is None or row.state != settings.id:
            raise SinkError(f"{self!r}: belongs to another state (id {row.state}); a sink has one for ever")
        elif not done <= row.version <= state.decided():
            raise SinkChangedError(
                f"{self!r}: its newest version is {row.version}, though versions up to {done} were written: the "
                "database was taken back to a backup, perhaps. Take the state back to that version too (`fencepost "
                "state rollback`), with a new table"
            )

    def claim(self, state_id: str) -> None:
        """See `Sink`."""
        super().claim(state_id)
        with self._opened() as engine:
            database = Database(engine)
            first = {"sink": self.name, "state": state_id, "version": 0, "status": APPLIED}
            database.transaction(
                lambda it: insert_if_missing(it, VERSIONS, first | {"changed_ms": database.now_ms(it)})
            )
        row = self._row()
        if row is None or row.state != state_id:
            raise SinkError(f"{self!r}: belongs to another state (id {row and row.state}), claimed meanwhile")

    def current_version(self, before: Decision | None) -> dict[str, Any] | None:
        """See `Sink`: the table, and the newest version in it."""
        row = self._row()
        return {"table": self.name, "version": 0 if row is None else row.version}

    def shown(self, decision: Decision) -> int:
        """See `Sink`. What others have deleted since is not looked for."""
        row = self._row()
        return len(decision.outputs) if row is not None and row.version >= decision.version else 0

    # Rows

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """See `Sink`."""
        inside = next((it for it in rows.folders if it.strip("/")), None)
        if inside is not None:
            raise SinkError(f"{self!r}: values that stand in names of folders ({inside}) are not written to a table")
        with self._opened() as engine:
            target = Target(engine, self._table, self._insert)
            first: list[str] | None = None
            for schema, path in rows.schemas.items():
                try:
                    names = target.convert(pa.ipc.read_schema(pa.py_buffer(schema)).empty_table()).column_names
                except BatchError as error:
                    raise SinkError(f"{self!r}: {path}: {error.message}") from error
                first = first or names
                if set(names) != set(first):
                    both = f"{', '.join(names)}, others {', '.join(first)}"
                    raise SinkError(f"{self!r}: {path} has the columns {both}; name those to write by insert=")
        return {}

    def staging(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int
    ) -> tuple[Callable[[Any], Any], list[Any]]:
        """See `RunFolders`."""
        groups = groups_of_files(outputs.bytes, slots) if len(outputs) else []
        folder = self.prepare_folder(version, attempt)
        paths = [f"{folder}/{winners[name]}" for name in outputs.name]
        name = f"{self._stage_name}_{version}_{attempt[:12]}"
        items = [StageItem(self._table, self._insert, name, paths[low:high]) for low, high in groups]
        return partial(stage, self._url), items

    def staged(self, results: list[Staged]) -> dict[str, Any]:
        """See `RunFolders`."""
        return {"staged": [[it.table, it.rows] for it in results], "columns": results[0].columns}

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """See `Sink`: one transaction, then the side tables."""
        return self._show(decision, self.status(decision) or self._commit(decision, APPLIED))

    def fence(self, decision: Decision) -> str:
        """See `Sink`: the row takes the version's number, without rows."""
        return self._show(decision, self.status(decision) or self._commit(decision, ABANDONED))

    def collect_garbage(self, done: int) -> None:
        """See `Sink`: tables of tasks whose attempt lost, too."""
        super().collect_garbage(done)
        pattern = re.compile(rf"{self._stage_name}_(\d+)_\w+")
        with self._opened() as engine:
            for name in inspect(engine).get_table_names(schema=self._schema):
                match = pattern.fullmatch(name)
                if match and int(match[1]) <= done:
                    Database(engine).define(lambda it, name=name: it.execute(self._drop(it, name)))  # type: ignore[misc]

    def fold(self, first: int, last: int) -> None:
        """See `Sink`: all marks stay. The row in the database knows the newest version only."""

    def _show(self, decision: Decision, status: str) -> str:
        """What follows the transaction, whichever it was."""
        beside = without_rows(decision)
        if beside.prepared is not None:
            for name in decision.outputs.name:
                self.disk.remove(self.path / beside.prepared / name)
        shown = super().apply(beside) if status == APPLIED else super().fence(beside)
        self.clear(decision)
        return shown

    def _commit(self, decision: Decision, wanted: str) -> str:
        """Move the row to the version, its rows with it, unless somebody has. Gives what it was: `wanted`, or what
        theirs was."""
        uses_tables = True
        with self._opened() as engine:
            for _ in range(_TRIES):
                try:
                    return Database(engine).transaction(
                        lambda it, uses=uses_tables: self._move(it, decision, wanted, uses)  # type: ignore[misc]
                    )
                except OutcomeUnknownError:
                    continue  # the row tells
                except _IncompleteError:
                    uses_tables = False
        raise OutcomeUnknownError(
            f"{self!r}: the connection was lost in {_TRIES} commits of version {decision.version}"
        )

    def _move(self, connection: Connection, decision: Decision, wanted: str, uses_tables: bool) -> str:
        number = decision.version
        mine = VERSIONS.c.sink == self.name
        row = connection.execute(select(VERSIONS).where(mine).with_for_update()).one_or_none()
        if row is None or row.state != self.owner():
            raise SinkChangedError(f"{self!r}: is not this state's any more, so version {number} cannot be written")
        if row.version == number:
            return str(row.status)
        if row.version > number and (status := self.status(decision)):
            return status  # others have gone on since this process looked
        if row.version != number - 1:
            raise SinkChangedError(
                f"{self!r}: version {number} can only follow {number - 1}; the newest there is {row.version}"
            )
        seen = decision.sink_version or {}
        staged = seen.get("staged", [])
        if wanted == APPLIED and len(decision.outputs):
            if uses_tables:
                self._insert_staged(connection, staged, seen["columns"])
            else:
                self._insert_files(connection, decision)
        clock = text(Database(connection.engine).clock)
        moved = update(VERSIONS).where(mine, VERSIONS.c.version == number - 1)
        connection.execute(moved.values(version=number, status=wanted, changed_ms=clock))
        # On MariaDB that would commit: `collect_garbage` drops them.
        for name, _ in staged if not Database(connection.engine).kind.commits_ddl else ():
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
        """Where a table is gone, or was emptied by a crash of the server: from what it was filled with."""
        target = Target(connection.engine, self._table, self._insert)
        folder = self.path / str(decision.prepared)
        for name, size in zip(decision.outputs.name, decision.outputs.bytes, strict=True):
            path = folder / name
            if not path.exists() or path.stat().st_size != size:
                raise SinkChangedError(
                    f"{self!r}: the rows of version {decision.version} are neither in the tables that tasks have "
                    f"filled, nor in {path}"
                )
            with self._refusals():
                for rows in _converted(target, str(path)):
                    target.write(connection, rows)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (exc.IntegrityError, exc.DataError, BatchError) as error:
            raise SinkError(
                f"{self!r}: refuses rows that were decided ({message_of(error)}). Change the table and run again, or "
                "abandon the version (`fencepost state abandon`); none of its rows are in the table"
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
        with self._opened() as engine, engine.connect() as connection:
            return connection.execute(query).one_or_none()

    @contextmanager
    def _opened(self) -> Iterator[Engine]:
        with _opened(self._url) as engine:
            yield engine


class _IncompleteError(Exception):
    """The tables that tasks have filled have not all rows."""


def stage(url: str, item: StageItem) -> Staged:
    """The rows of some files in a table of this attempt's own. Raises SinkError where they do not go into the table."""
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
                for some in _converted(target, path):
                    bulk.insert(connection, own, some)
                    rows += len(some)
            return Staged(name, rows, list(target.insert or some.column_names))

        return database.transaction(work)


def _create(connection: Connection, target: Target, table: Table, columns: Sequence[str]) -> None:
    """Makes a table like the target: what it refuses by itself, this refuses before anything is decided."""
    like, new = bulk.quoted(connection, target.table), bulk.quoted(connection, table)
    if target.is_sqlite:
        listed = bulk.quoted_names(connection, target.insert or columns)
        connection.execute(bulk.statement(f"CREATE TABLE {new} AS SELECT {listed} FROM {like} LIMIT 0"))
    elif target.kind == "mariadb":
        connection.execute(bulk.statement(f"CREATE TABLE IF NOT EXISTS {new} LIKE {like}"))
    else:
        parts = "DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING IDENTITY"
        connection.execute(bulk.statement(f"CREATE UNLOGGED TABLE {new} (LIKE {like} INCLUDING {parts})"))


def _converted(target: Target, path: str) -> Iterator[pa.Table]:
    first = 0
    for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
        try:
            yield target.convert(pa.Table.from_batches([batch]))
        except BatchError as error:
            raise SinkError(f"{path}, rows from {first} on: {error.message}") from error
        first += len(batch)


def place_of(url: URL, table: str) -> tuple[Any, ...]:
    """Which table tasks find under this URL: see `Target.place`. Raises SinkError where there is none."""
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
