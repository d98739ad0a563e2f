"""Transactions on the caller's engine. Each keeps what it has read valid, and is retried only if that is safe.

`kinds` contains the differences between databases.
"""

from __future__ import annotations

import inspect as functions
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Connection, Engine, NullPool, Pool, exc, inspect, literal_column, select

from fencepost.errors import OutcomeUnknownError, PolicyError, SchemaError, StoreError, UndoneError
from fencepost.inputs import is_integer
from fencepost.sql import drivers
from fencepost.sql.columns import Int64
from fencepost.sql.kinds import ENDED, IGNORED, KINDS, LOCKED_TEXT, Limits, kind_of
from fencepost.sql.migrations import SCHEMA, Part

T = TypeVar("T")

_PAUSE_MAX_S = 0.5
IDLE_TIMEOUT_MS = 10_000
"""Maximum idle time of a producer's transaction between two statements. It limits how long a stopped process holds
locks."""
LOCK_TIMEOUT_MS = 30_000
"""Maximum time that a producer's statement waits for a lock. It is longer than a stopped process can hold a lock."""
# The pool of each transaction that this thread or asyncio task is in. Empty after its end, because a task that was
# created in the transaction continues with this value.
_WRITING: ContextVar[tuple[list[Pool], ...]] = ContextVar("fencepost_writing", default=())
_PROCESSES: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()
"""The process that first used each pool."""


def run(work: Callable[..., T], connection: Connection, *arguments: object) -> T:
    """Run the caller's work in the transaction of the connection, and return its result.

    Raises:
        PolicyError: The result is a coroutine or a generator, so the work has not run. Nothing is committed.
        UndoneError: The work has ended the transaction, or ignored an error that has ended it.
    """
    result = work(connection, *arguments)
    if functions.isawaitable(result) or functions.isgenerator(result) or functions.isasyncgen(result):
        if functions.iscoroutine(result):
            result.close()
        raise PolicyError(
            f"{getattr(work, '__name__', work)!s} returned a {type(result).__name__}, which does not run before the "
            "commit. Pass a function that does its work before it returns. Nothing was applied"
        )
    if connection.invalidated:
        raise UndoneError(IGNORED)
    KINDS[connection.dialect.name].check_open(connection)
    return result


@contextmanager
def outages(engine: Engine) -> Iterator[None]:
    """Convert driver errors of an outage, such as a lost connection or a full disk, to StoreError.

    Errors of statements, values and rights remain SQLAlchemy's.
    """
    kind = kind_of(engine)
    try:
        yield
    except (exc.DBAPIError, exc.TimeoutError) as error:
        # TimeoutError: the pool had no free connection.
        if isinstance(error, exc.DBAPIError) and not (error.connection_invalidated or kind.is_outage(error)):
            raise
        cause = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise StoreError(
            f"{engine.url.render_as_string(hide_password=True)}: the database does not respond or cannot continue "
            f"({cause}{kind.timed_out(error)}). Nothing was committed. Call again when the database is available"
        ) from error


def _checked(limits: Limits) -> Limits:
    """Return valid timeouts.

    Raises:
        PolicyError: A timeout is not an integer in the range 1 to 2147483647.
    """
    for name, value in limits._asdict().items():
        if value is not None and not is_integer(value, 1, 2**31 - 1):
            raise PolicyError(f"{name}={value!r}: expected milliseconds, 1 to 2147483647, or None for no limit")
    return limits


class Database:
    """Runs transactions on the caller's engine.

    Timeouts apply to each transaction on PostgreSQL and MariaDB (there in whole seconds). None keeps the setting of
    the session.

    Args:
        engine: The SQLAlchemy engine.
        attempts: Maximum number of tries of a transaction that the database rolls back: after a serialization failure,
            a deadlock, a timeout for the write lock, or a connection lost before the commit.
        lock_timeout_ms: Maximum time that a statement waits for a lock.
        idle_timeout_ms: Maximum idle time of the transaction between two statements. Then the database ends the
            session, so that a stopped process does not keep its locks.

    Raises:
        PolicyError: The engine or the database is not supported, or a timeout is invalid.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        attempts: int = 20,
        lock_timeout_ms: int | None = None,
        idle_timeout_ms: int | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise PolicyError(
                f"engine: {type(engine).__name__}, but a SQLAlchemy Engine is needed: create_engine(url). For an "
                "AsyncEngine, use AsyncSqlSink"
            )
        self.kind = kind_of(engine)
        self.engine = engine
        self.is_sqlite = self.kind.name == "sqlite"
        self.is_mariadb = self.kind.name == "mariadb"
        self.attempts = attempts
        self._limits = _checked(Limits(lock_timeout_ms, idle_timeout_ms))

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, commit, and return the result of `work`.

        After an error, nothing that `work` did is in the database. `work` may run several times; each time, nothing of
        the earlier tries is in the database. It must neither commit nor roll back. To handle an error of a statement
        and continue, it must run the statement in `connection.begin_nested()`.

        Raises:
            UndoneError: `work` returned after the database had rolled back the transaction, because it ignored an
                error. Or `work` ended the transaction itself; then only its own commits are in the database.
            OutcomeUnknownError: The connection was lost during the commit, so the outcome is unknown.
            StoreError: The database does not respond or cannot continue.
        """
        with outages(self.engine):
            return self._transaction(work)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        self._check_process()
        for attempt in range(1, self.attempts + 1):
            began = time.monotonic()
            try:
                with self._alone(), self.engine.connect() as connection:
                    return self._attempt(connection, work)
            except exc.DBAPIError as error:
                # A process that was stopped retries once. Work that exceeds the timeout twice is too slow.
                is_slow = attempt > 1 and self.kind.is_idled(error, self._limits, time.monotonic() - began)
                may_try_again = error.connection_invalidated or self.kind.is_undone(error)
                if is_slow or attempt == self.attempts or not may_try_again:
                    raise
            drivers.pause(
                min(_PAUSE_MAX_S, 0.002 * 2**attempt) * random.random(), is_async=self.engine.dialect.is_async
            )
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        self._set_up(connection)
        self.kind.begin(connection, self._limits)
        try:
            begun = connection.get_transaction()
            result = work(connection)
            if connection.get_transaction() is not begun:
                raise UndoneError(ENDED)
            self.kind.check_whole(connection)
            self._commit(connection)
            return result
        finally:
            self.kind.restore(connection, self._limits)

    def is_locked(self, error: StoreError) -> bool:
        """Return whether a statement timed out while it waited for a lock of another session."""
        cause = error.__cause__
        return isinstance(cause, exc.DBAPIError) and self.kind.timed_out(cause) == LOCKED_TEXT

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a nested transaction on SQLite, which has one writer: the call would wait for itself."""
        writing, pool = _WRITING.get(), self.engine.pool
        if self.is_sqlite and any(pool in it for it in writing):
            raise PolicyError(
                "a call on the same engine within an effect, or within the work of a commit, would wait for itself, "
                "because SQLite has one writer. Use the connection that the effect receives"
            )
        mine = [pool]
        before = _WRITING.set((*writing, mine))
        try:
            yield
        finally:
            mine.clear()
            _WRITING.reset(before)

    def statements(self, work: Callable[[Connection], T]) -> T:
        """Run `work` with a commit after each statement, and return its result. Nothing is retried.

        Takes half the round trips of a transaction. For a write whose statement contains its own preconditions.

        Raises:
            StoreError: As `transaction`, but the interrupted statement may have committed.
        """
        with self.connected() as connection:
            return work(connection.execution_options(isolation_level="AUTOCOMMIT"))

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Yield a connection without a transaction of this class. Nothing is retried.

        Raises:
            StoreError: As `transaction`.
        """
        self._check_process()
        with outages(self.engine), self.engine.connect() as connection:
            self._set_up(connection)
            yield connection

    @property
    def clock(self) -> str:
        """The database's clock as an SQL expression, in ms since 1970, for use in a larger query."""
        return self.kind.clock

    @property
    def clock_ms(self) -> ColumnElement[int]:
        """`clock` as an expression of SQLAlchemy."""
        return literal_column(self.clock, Int64)

    def now_ms(self, connection: Connection) -> int:
        """Return the time of the database's clock, in ms since 1970. All processes share only this clock."""
        return int(connection.execute(select(self.clock_ms)).scalar_one())

    def settled(self, work: Callable[[Connection], T]) -> T:
        """Run a `transaction` of idempotent work. Run it again if the outcome of a commit is unknown."""
        for _ in range(self.attempts):
            with suppress(OutcomeUnknownError):
                return self.transaction(work)
        return self.transaction(work)

    def create_tables(self, part: Part) -> None:
        """Create the tables of a part if they are missing, and upgrade older ones to this version.

        Raises:
            SchemaError: The tables are of a newer version, or of an older one without a migration. Or this role may
                not create or change tables. Nothing has changed.
            StoreError: As `transaction`.
        """

        def create(connection: Connection) -> None:
            with self.kind.schema_lock(connection):
                SCHEMA.create(connection, checkfirst=True)
                found = connection.execute(select(SCHEMA.c.version).where(SCHEMA.c.part == part.name)).scalar()
                if found is None:
                    part.tables.create_all(connection)
                    connection.execute(SCHEMA.insert().values(part=part.name, version=part.version))
                    self._commit_step(connection)
                    return
                for number, step in part.steps(found):
                    step.run(connection)
                    connection.execute(SCHEMA.update().where(SCHEMA.c.part == part.name).values(version=number))
                    self._commit_step(connection)

        try:
            self.define(create)
        except exc.DBAPIError as error:
            if not self.kind.is_denied(error):
                raise
            raise SchemaError(
                f"the tables of {part.name!r} are missing or older than version {part.version}, and this role may not "
                "create or change them. Run `fencepost sql migrate`, or the output of `fencepost sql ddl`, with a role "
                "that may do so"
            ) from error

    def _commit_step(self, connection: Connection) -> None:
        """Commit a step if the database cannot change tables in a transaction. A later failure must not repeat it."""
        if self.kind.commits_ddl:
            connection.commit()

    def define(self, work: Callable[[Connection], object]) -> None:
        """Run idempotent work that creates, changes or drops tables, as `settled`.

        On MariaDB each statement commits by itself. So `work` must tolerate an interruption after any statement.
        """
        if not self.kind.commits_ddl:
            self.settled(work)
            return
        for attempt in range(1, self.attempts + 1):
            try:
                with self.connected() as connection:
                    work(connection)
                    connection.commit()
                return
            except StoreError as error:
                is_lost = isinstance(error.__cause__, exc.DBAPIError) and error.__cause__.connection_invalidated
                if attempt == self.attempts or not is_lost:
                    raise

    def version_of(self, connection: Connection, part: str) -> int | None:
        """Return the version of a part's tables, or None if there are none."""
        if not self.has_table(connection, SCHEMA.name):
            return None
        found: int | None = connection.execute(select(SCHEMA.c.version).where(SCHEMA.c.part == part)).scalar()
        return found

    def has_part(self, part: str) -> bool:
        """Return whether the tables of a part exist."""
        return self.transaction(lambda connection: self.version_of(connection, part)) is not None

    @staticmethod
    def has_table(connection: Connection, name: str) -> bool:
        """Return whether a table of this name exists."""
        return inspect(connection).has_table(name)

    def _check_process(self) -> None:
        """Refuse connections that a fork has in common with its parent.

        On a server, both would read each other's answers. On SQLite, the parent does not see the child's locks, and
        removes the file with the child's commits when it closes its last connection.
        """
        pool = self.engine.pool
        if isinstance(pool, NullPool):
            return
        opener = _PROCESSES.setdefault(pool, os.getpid())
        if opener != os.getpid():
            raise PolicyError(
                f"the engine's connections belong to process {opener}, of which this is a fork: call "
                "engine.dispose(close=False) first in the fork, or create the engine there. Nothing was changed"
            )

    def _set_up(self, connection: Connection) -> None:
        if not connection.info.get("fencepost"):
            self.kind.set_up(connection)
            connection.info["fencepost"] = True

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except BaseException as error:
            self._undo(connection)
            # If PostgreSQL ended the session before the commit reached it, the error proves that nothing is committed.
            lost = error if isinstance(error, exc.DBAPIError) and error.connection_invalidated else None
            if lost is not None and not self.kind.is_idled(lost, Limits(), 0):
                raise OutcomeUnknownError(
                    "the connection was lost during the commit, so its outcome is unknown. If a claim or a version "
                    "protects the changes from being repeated, call again. Otherwise, first check whether they are in "
                    "the database"
                ) from error
            raise

    @staticmethod
    def _undo(connection: Connection) -> None:
        """Roll back after a failed commit, or close the connection.

        SQLite leaves the transaction open, as every database does if the commit was not sent. SQLAlchemy does not close
        it, so the connection's next user would commit it.
        """
        if connection.invalidated or connection.closed:
            return
        try:
            connection.connection.rollback()
        except Exception as error:  # the error of the commit counts
            connection.invalidate(error)
