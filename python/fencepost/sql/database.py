"""Transactions on the caller's engine: begun so that they hold what they read, tried again only where that is safe.

What a kind of database does otherwise than others is in `kinds`.
"""

from __future__ import annotations

import inspect as functions
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

from sqlalchemy import Connection, Engine, exc, inspect, literal_column, select

from fencepost.errors import OutcomeUnknownError, PolicyError, SchemaError, StoreError, UndoneError
from fencepost.sql import drivers
from fencepost.sql.columns import Int64
from fencepost.sql.kinds import ENDED, LOCKED_TEXT, Limits, driver_errors, kind_of
from fencepost.sql.migrations import SCHEMA, Part

__all__ = ["Database", "Int64", "driver_errors", "outages", "run"]

T = TypeVar("T")

_PAUSE_MAX_S = 0.5
IDLE_TIMEOUT_MS = 10_000
"""How long a producer's transaction may be idle between two statements: a stopped process holds its locks no longer."""
LOCK_TIMEOUT_MS = 30_000
"""How long a producer's statement waits for a lock: longer than a stopped process can hold it."""
# The pools on which this thread, or task of asyncio, is in a transaction.
_WRITING: ContextVar[frozenset[int]] = ContextVar("fencepost_writing", default=frozenset())


def run(work: Callable[..., T], *arguments: object) -> T:
    """What a caller's work gives. Raises PolicyError for what would run only later, which is never: a coroutine, or a
    generator. Nothing is committed then."""
    result = work(*arguments)
    if functions.isawaitable(result) or functions.isgenerator(result) or functions.isasyncgen(result):
        if functions.iscoroutine(result):
            result.close()
        raise PolicyError(
            f"{getattr(work, '__name__', work)!s} gave a {type(result).__name__}: it has not run, and would not before "
            "the commit. Give a function that does its work before it returns; nothing was applied"
        )
    return result


@contextmanager
def outages(engine: Engine) -> Iterator[None]:
    """Raises StoreError for an error of the driver that says that the database is away, cuts off, or cannot go on.

    What is wrong with a statement, a value or rights stays SQLAlchemy's.
    """
    kind = kind_of(engine)
    try:
        yield
    except (exc.DBAPIError, exc.TimeoutError) as error:
        # TimeoutError: no connection of the pool came free.
        if isinstance(error, exc.DBAPIError) and not (error.connection_invalidated or kind.is_outage(error)):
            raise
        said = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise StoreError(
            f"{engine.url.render_as_string(hide_password=True)}: the database does not answer or cannot go on "
            f"({said}{kind.timed_out(error)}). Nothing was committed: call again once it answers"
        ) from error


def _checked(limits: Limits) -> Limits:
    """Raises PolicyError for a time-out that is none."""
    for name, value in limits._asdict().items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
        if value is not None and not is_count:
            raise PolicyError(f"{name}={value!r}: milliseconds were expected, 1 to 2147483647, or None for no limit")
    return limits


class Database:
    """The caller's engine, as the parts of this package use it.

    `attempts` bounds how often a transaction is begun that the database undoes (serialization failure, deadlock, a
    write lock that stays taken, a connection lost before the commit).

    On PostgreSQL and MariaDB (there in whole seconds), and for each transaction alone: `lock_timeout_ms` bounds how
    long a statement waits for a lock, and `idle_timeout_ms` how long the work may leave the transaction idle between
    two statements, after which the database ends the session: a process that was stopped within a transaction does not
    keep its locks. None: as the session has it.
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
                f"engine: {type(engine).__name__}, but a SQLAlchemy Engine is needed: create_engine(url); AsyncSqlSink "
                "takes an AsyncEngine"
            )
        self.kind = kind_of(engine)
        self.engine = engine
        self.is_sqlite = self.kind.name == "sqlite"
        self.is_mariadb = self.kind.name == "mariadb"
        self.attempts = attempts
        self._limits = _checked(Limits(lock_timeout_ms, idle_timeout_ms))

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, once everything that it did is committed; nothing of it is there otherwise.

        `work` may run several times, each time on a database that has nothing of the time before. It neither commits
        nor rolls back; what may fail in it without ending it stands in `connection.begin_nested()`.

        Raises:
            UndoneError: `work` returned, though the database had undone the transaction: an error was passed over. Or
                it ended the transaction itself. Nothing that it did is there, but for what it committed itself.
            OutcomeUnknownError: the connection was lost during the commit: it may have happened or not.
            StoreError: the database does not answer, cuts off, or cannot go on. Nothing that `work` did is there.
        """
        with outages(self.engine):
            return self._transaction(work)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        for attempt in range(1, self.attempts + 1):
            began = time.monotonic()
            try:
                with self._alone(), self.engine.connect() as connection:
                    return self._attempt(connection, work)
            except exc.DBAPIError as error:
                # Whoever was stopped finds out what came of it; work that is too slow would be so again.
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
        """Whether a statement has waited in vain for a lock that another session holds."""
        cause = error.__cause__
        return isinstance(cause, exc.DBAPIError) and self.kind.timed_out(cause) == LOCKED_TEXT

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuses what would wait for itself: SQLite has one writer, and it is the caller of this call."""
        writing, pool = _WRITING.get(), id(self.engine.pool)
        if self.is_sqlite and pool in writing:
            raise PolicyError(
                "a call within an effect, or within the work of a commit, on the same engine: SQLite has one writer, "
                "so it would wait for itself. Use the connection that the effect is given"
            )
        before = _WRITING.set(writing | {pool})
        try:
            yield
        finally:
            _WRITING.reset(before)

    def statements(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, each of whose statements commits by itself. Nothing is tried again.

        Half the round trips of a transaction, for a write that says itself what it must find.

        Raises:
            StoreError: as `transaction`; the statement that was on its way may have committed.
        """
        with outages(self.engine), self.engine.connect() as connection:
            self._set_up(connection)
            return work(connection.execution_options(isolation_level="AUTOCOMMIT"))

    @property
    def clock(self) -> str:
        """The database's clock as SQL, in ms since 1970, for a query that asks for more."""
        return self.kind.clock

    def now_ms(self, connection: Connection) -> int:
        """The database's clock, in ms since 1970: the only clock that all processes share."""
        return int(connection.execute(select(literal_column(self.clock, Int64))).scalar_one())

    def settled(self, work: Callable[[Connection], T]) -> T:
        """`transaction` of work that finds out whether it was done before, so that an unknown outcome is none."""
        for _ in range(self.attempts):
            with suppress(OutcomeUnknownError):
                return self.transaction(work)
        return self.transaction(work)

    def create_tables(self, part: Part) -> None:
        """Makes the tables of a part where they are missing, and brings older ones to this version.

        Raises:
            SchemaError: the tables were made by a newer version of this package, by an older one that it cannot read,
                or this role may not make or change them. Nothing has changed.
            StoreError: as `transaction`.
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
                "make or change them: have a role that may run `fencepost sql migrate`, or what `fencepost sql ddl` "
                "prints"
            ) from error

    def _commit_step(self, connection: Connection) -> None:
        """Where tables change in no transaction: what follows may fail, and this must not be done again."""
        if self.kind.commits_ddl:
            connection.commit()

    def define(self, work: Callable[[Connection], object]) -> None:
        """`settled` of work that makes, changes or drops tables, and bears to be broken off anywhere and begun again.

        On MariaDB each statement commits by itself.
        """
        if not self.kind.commits_ddl:
            self.settled(work)
            return
        for attempt in range(1, self.attempts + 1):
            try:
                with outages(self.engine), self.engine.connect() as connection:
                    self._set_up(connection)
                    work(connection)
                    connection.commit()
                return
            except StoreError:
                if attempt == self.attempts:
                    raise

    def version_of(self, connection: Connection, part: str) -> int | None:
        """The version of the tables of a part; None where there are none."""
        if not self.has_table(connection, SCHEMA.name):
            return None
        found: int | None = connection.execute(select(SCHEMA.c.version).where(SCHEMA.c.part == part)).scalar()
        return found

    @staticmethod
    def has_table(connection: Connection, name: str) -> bool:
        """Whether there is a table of this name."""
        return inspect(connection).has_table(name)

    def _set_up(self, connection: Connection) -> None:
        if not connection.info.get("fencepost"):
            self.kind.set_up(connection)
            connection.info["fencepost"] = True

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except exc.DBAPIError as error:
            # A session that PostgreSQL ended before the commit reached it has not committed, and says so.
            if error.connection_invalidated and not self.kind.is_idled(error, Limits(), 0):
                raise OutcomeUnknownError(
                    "the connection was lost during the commit: it may have happened or not; "
                    "look at what it was to leave, or call again where the call is idempotent"
                ) from error
            # SQLite leaves the transaction open, and SQLAlchemy the connection as it is: its next user would commit it.
            if not error.connection_invalidated:
                connection.connection.rollback()
            raise
