"""Transactions on the caller's engine: begun so that they hold what they read, tried again only where that is safe.

SQLite takes its one write lock at the start (BEGIN IMMEDIATE) and is durable (WAL, synchronous FULL). PostgreSQL runs
in READ COMMITTED, and whoever reads to write locks the rows first: the outcome does not hang on an isolation level
that somebody set elsewhere.
"""

from __future__ import annotations

import inspect as functions
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    event,
    exc,
    inspect,
    literal_column,
    select,
    text,
)
from sqlalchemy.pool import StaticPool

from fencepost.errors import OutcomeUnknownError, PolicyError, SchemaError, StoreError, UndoneError

T = TypeVar("T")

# What PostgreSQL has undone for the sake of another transaction: serialization_failure, deadlock_detected.
_UNDONE = {"40001", "40P01"}
# SQLITE_BUSY and SQLITE_LOCKED, whatever the reason in the higher bits.
_SQLITE_TAKEN = {5, 6}
# What may pass without a change of statement, values or rights. SQLITE_BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, FULL,
# CANTOPEN, PROTOCOL; and of PostgreSQL the classes of connections, authentication, rollbacks, resources, locks,
# operators and the system.
_SQLITE_AWAY = {5, 6, 7, 9, 10, 13, 14, 15}
_POSTGRESQL_AWAY = {"08", "28", "40", "53", "55", "57", "58"}
# Of PostgreSQL's advisory locks, the one under which tables are made.
_SCHEMA_LOCK = 0x66656E63
_PAUSE_MAX_S = 0.5
# PostgreSQL has ended a session that left its transaction idle; or a statement that waited for a lock.
_IDLED, _LOCKED = "25P03", "55P03"
_TIMED_OUT = {
    _IDLED: "; the work left its transaction idle for longer than idle_timeout_ms",
    _LOCKED: "; another session held it for longer than lock_timeout_ms",
}
IDLE_TIMEOUT_MS = 10_000
"""How long a producer's transaction may be idle between two statements: a stopped process holds its locks no longer."""
LOCK_TIMEOUT_MS = 30_000
"""How long a producer's statement waits for a lock: longer than a stopped process can hold it."""
# The pools on which this thread is in a transaction.
_WRITING = threading.local()
# The savepoint that stands as long as a transaction of SQLite does.
_WHOLE = "fencepost_whole"
# What libpq calls a session without a transaction, and with one that failed. A closed one is neither.
_IDLE, _IN_ERROR = 0, 3
_ENDED = (
    "the transaction was ended by the work that it was to commit. Nothing but what was committed there is in the "
    "database: neither commit nor roll back in it"
)
_PASSED_OVER = (
    "the database has undone the transaction, and the work in it went on: an error of a statement was passed over. "
    "Nothing of it is in the database: let the error through, or put what may fail into connection.begin_nested()"
)

# What SQLite calls INTEGER has 64 bits, and only a column of that name counts up by itself.
Int64 = BigInteger().with_variant(Integer(), "sqlite")


def clock(is_sqlite: bool) -> str:
    """The database's clock as SQL, in ms since 1970, for a query that asks for more."""
    if is_sqlite:
        return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    # Not now(), which stands still in a transaction: it may have waited for a lock since.
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


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
def driver_errors(connection: Connection, statement: str) -> Iterator[None]:
    """Errors of the driver itself as those of SQLAlchemy, which transactions know how to take."""
    dialect: Any = connection.dialect
    module = dialect.dbapi
    try:
        yield
    except module.Error as error:
        is_lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
        if is_lost:
            connection.invalidate(error)
        raise exc.DBAPIError.instance(
            statement, None, error, module.Error, connection_invalidated=is_lost, dialect=dialect
        ) from error


@contextmanager
def outages(engine: Engine) -> Iterator[None]:
    """Raises StoreError for an error of the driver that says that the database is away, cuts off, or cannot go on.

    The one place where this is decided. What is wrong with a statement, a value or rights stays SQLAlchemy's.
    """
    try:
        yield
    except (exc.DBAPIError, exc.TimeoutError) as error:
        if not _is_outage(error):
            raise
        said = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise StoreError(
            f"{engine.url.render_as_string(hide_password=True)}: the database does not answer or cannot go on "
            f"({said}{_TIMED_OUT.get(_state_of(error), '')}). Nothing was committed: call again once it answers"
        ) from error


def _is_outage(error: exc.DBAPIError | exc.TimeoutError) -> bool:
    if isinstance(error, exc.TimeoutError):
        return True  # no connection of the pool came free
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_AWAY
    if state := _state_of(error):
        return state[:2] in _POSTGRESQL_AWAY
    return isinstance(error, exc.OperationalError | exc.InterfaceError)


def _state_of(error: exc.SQLAlchemyError) -> str:
    """PostgreSQL's code of an error; "" where it has none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def _limits(**timeouts_ms: int | None) -> str:
    """The statements that set these time-outs for one transaction. Raises PolicyError for one that is none."""
    for name, value in timeouts_ms.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
        if value is not None and not is_count:
            raise PolicyError(f"{name}={value!r}: milliseconds were expected, 1 to 2147483647, or None for no limit")
    settings = {
        "lock_timeout": timeouts_ms["lock_timeout_ms"],
        "idle_in_transaction_session_timeout": timeouts_ms["idle_timeout_ms"],
    }
    return "; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items() if value is not None)


class Database:
    """The caller's engine, as the parts of this package use it.

    `attempts` bounds how often a transaction is begun that the database undoes (serialization failure, deadlock, a
    write lock that stays taken, a connection lost before the commit).

    On PostgreSQL, and for each transaction alone: `lock_timeout_ms` bounds how long a statement waits for a lock, and
    `idle_timeout_ms` how long the work may leave the transaction idle between two statements, after which PostgreSQL
    ends the session: a process that was stopped within a transaction does not keep its locks. None: as the session has
    it.
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
            raise PolicyError(f"engine: {type(engine).__name__}, but a SQLAlchemy Engine is needed: create_engine(url)")
        if engine.dialect.name not in ("sqlite", "postgresql"):
            raise PolicyError(
                f"an engine for {engine.dialect.name!r}: transactions are known for 'sqlite' and 'postgresql'"
            )
        if engine.dialect.name == "postgresql" and engine.dialect.driver != "psycopg":
            raise PolicyError(
                f"an engine with the driver {engine.dialect.driver!r}: use psycopg 3, postgresql+psycopg://..."
            )
        if engine.dialect.name == "sqlite" and isinstance(engine.pool, StaticPool):
            raise PolicyError(
                "an engine with the pool StaticPool: all its users have one connection, so that who closes it ends the "
                "transactions of the others. Leave the pool to SQLAlchemy, and take a file where threads share a "
                "database (in memory each thread has one of its own)"
            )
        self.engine = engine
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.attempts = attempts
        self._limits = _limits(lock_timeout_ms=lock_timeout_ms, idle_timeout_ms=idle_timeout_ms)

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
            try:
                with self._alone(), self.engine.connect() as connection:
                    self._begin(connection)
                    begun = connection.get_transaction()
                    result = work(connection)
                    self._check_whole(connection, begun)
                    self._commit(connection)
                    return result
            except exc.DBAPIError as error:
                # Whoever was stopped finds out what came of it; work that is too slow would be so again.
                is_slow = attempt > 1 and _state_of(error) == _IDLED
                if is_slow or attempt == self.attempts or not self._may_try_again(error):
                    raise
            time.sleep(min(_PAUSE_MAX_S, 0.002 * 2**attempt) * random.random())
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuses what would wait for itself: SQLite has one writer, and it is the caller of this call."""
        writing: set[int] = _WRITING.__dict__.setdefault("pools", set())
        pool = id(self.engine.pool)
        if self.is_sqlite and pool in writing:
            raise PolicyError(
                "a call within an effect, or within the work of a commit, on the same engine: SQLite has one writer, "
                "so it would wait for itself. Use the connection that the effect is given"
            )
        writing.add(pool)
        try:
            yield
        finally:
            writing.discard(pool)

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
        """`clock` of this database."""
        return clock(self.is_sqlite)

    def now_ms(self, connection: Connection) -> int:
        """The database's clock, in ms since 1970: the only clock that all processes share."""
        return int(connection.execute(select(literal_column(self.clock, Int64))).scalar_one())

    def settled(self, work: Callable[[Connection], T]) -> T:
        """`transaction` of work that finds out whether it was done before, so that an unknown outcome is none."""
        for _ in range(self.attempts):
            with suppress(OutcomeUnknownError):
                return self.transaction(work)
        return self.transaction(work)

    def create_tables(
        self, part: str, version: int, tables: MetaData, upgrade: Callable[[Connection, int], None] | None = None
    ) -> None:
        """Makes the tables of a part where they are missing, and brings older ones to this version.

        `upgrade(connection, found)` changes tables of the lower version `found`, or raises SchemaError; it commits with
        the new version's number.

        Raises:
            SchemaError: the part's tables were made by a newer version of this package, or by an older one that it
                cannot read. Nothing has changed.
            StoreError: as `transaction`.
        """

        def create(connection: Connection) -> None:
            if not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SCHEMA_LOCK})
            _VERSIONS.create(connection, checkfirst=True)
            found = connection.execute(select(_VERSIONS.c.version).where(_VERSIONS.c.part == part)).scalar()
            if found is None:
                tables.create_all(connection)
                connection.execute(_VERSIONS.insert().values(part=part, version=version))
            elif found < version and upgrade is not None:
                upgrade(connection, found)
                connection.execute(_VERSIONS.update().where(_VERSIONS.c.part == part).values(version=version))
            elif found != version:
                raise SchemaError(
                    f"the tables of {part!r} have version {found}, this package knows {version}: "
                    + ("upgrade fencepost" if found > version else "they are older than it can read")
                )

        self.settled(create)

    def version_of(self, connection: Connection, part: str) -> int | None:
        """The version of the tables of a part; None where there are none."""
        if not inspect(connection).has_table(_VERSIONS.name):
            return None
        found: int | None = connection.execute(select(_VERSIONS.c.version).where(_VERSIONS.c.part == part)).scalar()
        return found

    def _set_up(self, connection: Connection) -> None:
        if self.is_sqlite and not connection.info.get("fencepost"):
            driver: Any = connection.connection.dbapi_connection
            # Not through the connection, which would begin: neither can be set in a transaction. Nobody is waited for
            # who opens the database in the same moment, so it may be taken.
            for setting in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL"):
                with driver_errors(connection, setting):
                    driver.execute(f"PRAGMA {setting}").close()
            connection.info["fencepost"] = True

    def _begin(self, connection: Connection) -> None:
        self._set_up(connection)
        if not self.is_sqlite:
            connection.execution_options(isolation_level="READ COMMITTED")
            connection.begin()
            self._limit(connection)
            return
        driver = connection.connection.dbapi_connection
        assert driver is not None
        connection.begin()
        # An engine whose own events begin transactions has begun one here.
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql(f"SAVEPOINT {_WHOLE}")

    def _limit(self, connection: Connection) -> None:
        if self._limits:
            driver: Any = connection.connection.dbapi_connection
            with driver_errors(connection, self._limits):
                driver.execute(self._limits, prepare=False).close()
            event.listen(connection, "after_cursor_execute", _begin_to_count)

    def _check_whole(self, connection: Connection, begun: object) -> None:
        """That the commit will commit what was done since the begin.

        PostgreSQL takes the commit of a failed transaction for a rollback, and says so to nobody who does not ask.
        SQLite goes on with another transaction where a trigger has rolled back the first.
        """
        if connection.get_transaction() is not begun:
            raise UndoneError(_ENDED)
        if self.is_sqlite:
            try:
                connection.exec_driver_sql(f"RELEASE {_WHOLE}")
            except exc.OperationalError as error:
                raise UndoneError(f"{_PASSED_OVER}. Or else {_ENDED}") from error
        else:
            driver: Any = connection.connection.dbapi_connection
            status = driver.info.transaction_status
            if status in (_IDLE, _IN_ERROR):
                raise UndoneError(_ENDED if status == _IDLE else _PASSED_OVER)

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except exc.DBAPIError as error:
            # A session that was ended before the commit reached it has not committed.
            if error.connection_invalidated and _state_of(error) != _IDLED:
                raise OutcomeUnknownError(
                    "the connection was lost during the commit: it may have happened or not; "
                    "look at what it was to leave, or call again where the call is idempotent"
                ) from error
            # SQLite leaves the transaction open, and SQLAlchemy the connection as it is: its next user would commit it.
            if not error.connection_invalidated:
                connection.connection.rollback()
            raise

    def _may_try_again(self, error: exc.DBAPIError) -> bool:
        if self.is_sqlite:
            return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_TAKEN
        return error.connection_invalidated or _state_of(error) in _UNDONE


def _begin_to_count(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> None:
    """After psycopg's executemany, which is a pipeline, PostgreSQL does not count how long the session is idle."""
    if many:
        driver: Any = connection.connection.dbapi_connection
        with driver_errors(connection, "SELECT 1"):
            driver.execute("SELECT 1", prepare=False).close()


_VERSIONS = Table(
    "fencepost_schema",
    MetaData(),
    Column("part", String(64), primary_key=True),
    Column("version", Integer, nullable=False),
)
