"""The databases that are known: how each begins a transaction that holds what it reads, and what its errors mean.

SQLite takes its one write lock at the start (BEGIN IMMEDIATE) and is durable (WAL, synchronous FULL). PostgreSQL and
MariaDB run in READ COMMITTED, and who reads in order to write locks the rows first: the outcome does not depend on an
isolation level that was set elsewhere, and MariaDB takes no locks on the gaps between rows.

Two of them go on after they have undone a transaction: SQLite after a trigger that rolls back, MariaDB after a deadlock
and after every statement that commits by itself (CREATE, ALTER, DROP, TRUNCATE). What follows is another transaction.
So a savepoint is set at the start, and the commit needs it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Engine, event, exc, text
from sqlalchemy.pool import StaticPool

from fencepost.errors import PolicyError, StoreError, UndoneError
from fencepost.sql import drivers

_WHOLE = "fencepost_whole"
ENDED = (
    "the transaction was ended by the work that it was to commit. Nothing but what was committed there is in the "
    "database: neither commit nor roll back in it"
)
_PASSED_OVER = (
    "the database has undone the transaction, and the work in it went on: an error of a statement was passed over. "
    "Nothing of it is in the database: let the error through, or put what may fail into connection.begin_nested()"
)


class Limits(NamedTuple):
    """Time-outs of one transaction, in milliseconds; None: as the session has it."""

    lock_timeout_ms: int | None = None
    idle_timeout_ms: int | None = None


class Kind(Protocol):
    """What `Database` asks of a kind of database."""

    name: str
    clock: str
    """Its clock as SQL, in ms since 1970, for a query that asks for more."""
    commits_ddl: bool
    """Whether each statement that changes tables is a transaction of its own."""

    def check(self, engine: Engine) -> None:
        """Raises PolicyError for an engine that cannot be used."""

    def set_up(self, connection: Connection) -> None:
        """Prepares a connection of the pool, once. Raises PolicyError for a session that cannot be used."""

    def begin(self, connection: Connection, limits: Limits) -> None:
        """Begins a transaction."""

    def restore(self, connection: Connection, limits: Limits) -> None:
        """Leaves the session as it was before `begin`, for its next user."""

    def check_whole(self, connection: Connection) -> None:
        """Raises UndoneError unless the commit will commit everything since `begin`."""

    def schema_lock(self, connection: Connection) -> AbstractContextManager[None]:
        """Waits for others who change tables of this package, and keeps them waiting."""

    def is_outage(self, error: exc.DBAPIError) -> bool:
        """Whether it may pass without a change of statement, values or rights."""

    def is_undone(self, error: exc.DBAPIError) -> bool:
        """Whether the database has undone the transaction for the sake of another, or refused to begin it."""

    def is_idled(self, error: exc.DBAPIError, limits: Limits, seconds: float) -> bool:
        """Whether the session was ended because it left its transaction idle. `seconds`: since it began."""

    def is_denied(self, error: exc.DBAPIError) -> bool:
        """Whether the role lacks the right to make or change tables."""

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        """What to add to an error of a time-out; "" for others."""


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


class SQLite:
    """One writer at a time."""

    name = "sqlite"
    clock = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    commits_ddl = False
    # SQLITE_BUSY and SQLITE_LOCKED, whatever the reason in the higher bits.
    _TAKEN = frozenset({5, 6})
    # SQLITE_BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL.
    _AWAY = frozenset({5, 6, 7, 9, 10, 13, 14, 15})

    def check(self, engine: Engine) -> None:
        if isinstance(engine.pool, StaticPool):
            raise PolicyError(
                "an engine with the pool StaticPool: all its users have one connection, so that who closes it ends the "
                "transactions of the others. Leave the pool to SQLAlchemy, and take a file where threads share a "
                "database (in memory each thread has one of its own)"
            )

    def set_up(self, connection: Connection) -> None:
        # Not through the connection, which would begin: neither can be set in a transaction. Nobody is waited for
        # who opens the database in the same moment, so it may be taken.
        for setting in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL"):
            with driver_errors(connection, setting):
                drivers.execute(connection, f"PRAGMA {setting}")

    def begin(self, connection: Connection, limits: Limits) -> None:
        connection.begin()
        # An engine whose own events begin transactions has begun one here.
        if not drivers.driver_of(connection).in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql(f"SAVEPOINT {_WHOLE}")

    def restore(self, connection: Connection, limits: Limits) -> None:
        pass

    def check_whole(self, connection: Connection) -> None:
        try:
            connection.exec_driver_sql(f"RELEASE {_WHOLE}")
        except exc.OperationalError as error:
            raise UndoneError(f"{_PASSED_OVER}. Or else {ENDED}") from error

    def schema_lock(self, connection: Connection) -> AbstractContextManager[None]:
        return nullcontext()  # the transaction has the write lock

    def is_outage(self, error: exc.DBAPIError) -> bool:
        if isinstance(error.orig, sqlite3.Error):
            return self._code(error) in self._AWAY
        return isinstance(error, exc.OperationalError | exc.InterfaceError)

    def is_undone(self, error: exc.DBAPIError) -> bool:
        return self._code(error) in self._TAKEN

    @staticmethod
    def _code(error: exc.DBAPIError) -> int:
        return int(getattr(error.orig, "sqlite_errorcode", 0)) & 0xFF

    def is_idled(self, error: exc.DBAPIError, limits: Limits, seconds: float) -> bool:
        return False

    def is_denied(self, error: exc.DBAPIError) -> bool:
        return self._code(error) == 8  # SQLITE_READONLY

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        return ""


_IDLED_TEXT = "; the work left its transaction idle for longer than idle_timeout_ms"
LOCKED_TEXT = "; another session held it for longer than lock_timeout_ms"


class PostgreSQL:
    """With psycopg 3."""

    name = "postgresql"
    # Not now(), which stands still in a transaction: it may have waited for a lock since.
    clock = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    commits_ddl = False
    # What it has undone for the sake of another transaction: serialization_failure, deadlock_detected.
    _UNDONE = frozenset({"40001", "40P01"})
    # The classes of connections, authentication, rollbacks, resources, locks, operators and the system.
    _AWAY = frozenset({"08", "28", "40", "53", "55", "57", "58"})
    # It has ended a session that left its transaction idle; or a statement that waited for a lock.
    _IDLED, _LOCKED = "25P03", "55P03"
    # What libpq calls a session without a transaction, and with one that failed. A closed one is neither.
    _IDLE, _IN_ERROR = 0, 3
    # Of the advisory locks, the one under which tables are made.
    _SCHEMA_LOCK = 0x66656E63

    def check(self, engine: Engine) -> None:
        if engine.dialect.driver != "psycopg":
            raise PolicyError(
                f"an engine with the driver {engine.dialect.driver!r}: use psycopg 3, postgresql+psycopg://..."
            )
        if not event.contains(engine, "after_cursor_execute", _begin_to_count):
            event.listen(engine, "after_cursor_execute", _begin_to_count)

    def set_up(self, connection: Connection) -> None:
        pass

    def begin(self, connection: Connection, limits: Limits) -> None:
        connection.execution_options(isolation_level="READ COMMITTED")
        connection.begin()
        named = {
            "lock_timeout": limits.lock_timeout_ms,
            "idle_in_transaction_session_timeout": limits.idle_timeout_ms,
        }
        settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in named.items() if value is not None)
        if settings:
            with driver_errors(connection, settings):
                drivers.execute(connection, settings)
            connection.info[_COUNTS_IDLE] = True

    def restore(self, connection: Connection, limits: Limits) -> None:
        if not connection.invalidated:  # the settings were of the transaction alone
            connection.info.pop(_COUNTS_IDLE, None)

    def check_whole(self, connection: Connection) -> None:
        """PostgreSQL takes the commit of a failed transaction for a rollback, and reports it only if asked."""
        status = drivers.driver_of(connection).info.transaction_status
        if status in (self._IDLE, self._IN_ERROR):
            raise UndoneError(ENDED if status == self._IDLE else _PASSED_OVER)

    def schema_lock(self, connection: Connection) -> AbstractContextManager[None]:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": self._SCHEMA_LOCK})
        return nullcontext()  # until the end of the transaction

    def is_outage(self, error: exc.DBAPIError) -> bool:
        if state := self._state(error):
            return state[:2] in self._AWAY
        return isinstance(error, exc.OperationalError | exc.InterfaceError)

    def is_undone(self, error: exc.DBAPIError) -> bool:
        return self._state(error) in self._UNDONE

    def is_idled(self, error: exc.DBAPIError, limits: Limits, seconds: float) -> bool:
        return self._state(error) == self._IDLED

    def is_denied(self, error: exc.DBAPIError) -> bool:
        return self._state(error) == "42501"

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        return {self._IDLED: _IDLED_TEXT, self._LOCKED: LOCKED_TEXT}.get(self._state(error), "")

    @staticmethod
    def _state(error: exc.SQLAlchemyError) -> str:
        """Its code of an error; "" where there is none."""
        return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


_COUNTS_IDLE = "fencepost_counts_idle"
"""In the info of a connection: its transaction is one of this package, whose idle time is bounded."""


def _begin_to_count(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> None:
    """After psycopg's executemany, which is a pipeline, PostgreSQL does not count how long the session is idle."""
    if many and connection.info.get(_COUNTS_IDLE):
        with driver_errors(connection, "SELECT 1"):
            drivers.execute(connection, "SELECT 1")


class MariaDB:
    """With PyMySQL, from 10.6 on. MySQL is another database, which no test has run on."""

    name = "mariadb"
    # In UTC: a local time is ambiguous for an hour a year. Of the start of the statement.
    clock = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"
    commits_ddl = True
    _VERSION = (10, 6)
    # ER_LOCK_DEADLOCK, and ER_CHECKREAD: of a row that changed since a snapshot.
    _UNDONE = frozenset({1213, 1020})
    # Lock waits, and statements that were ended for their time.
    _LOCKED = frozenset({1205, 1907})
    # Disk full, out of memory, I/O; too many connections, names, addresses; no access; shutdown; lost packets; a full
    # table, log or lock table; a commit that failed; limits of a user; read-only servers and the end of statements.
    _AWAY = frozenset(
        {
            *(1020, 1021, 1026, 1030, 1037, 1038, 1040, 1041, 1042, 1043, 1045, 1053, 1077, 1079, 1114, 1129),
            *(1130, 1135, 1152, 1158, 1159, 1160, 1161, 1180, 1181, 1184, 1197, 1203, 1205, 1206, 1213, 1226, 1290),
            *(1317, 1637, 1792, 1836, 1907, 1927, 1969, 4031),
            *range(2000, 2062),
        }
    )
    _SECONDS_MAX = 31_536_000

    def check(self, engine: Engine) -> None:
        if engine.dialect.driver != "pymysql":
            raise PolicyError(
                f"an engine with the driver {engine.dialect.driver!r}: use PyMySQL, mariadb+pymysql://..."
            )

    def set_up(self, connection: Connection) -> None:
        """Refuses sessions that would change values without a word, or cut keys."""
        query = "SELECT VERSION(), @@sql_mode, @@character_set_client, @@character_set_connection"
        driver: Any = connection.connection.dbapi_connection
        with driver_errors(connection, query), driver.cursor() as cursor:
            cursor.execute(query)
            version, mode, *charsets = cursor.fetchone()
        if "mariadb" not in version.lower():
            raise PolicyError(
                f"the server is MySQL {version}: transactions are known for 'sqlite', 'postgresql' and 'mariadb'"
            )
        number = tuple(int(it) for it in version.replace("5.5.5-", "", 1).split("-")[0].split(".")[:2])
        if number < self._VERSION:
            raise PolicyError(
                f"the server is MariaDB {version}: {'.'.join(map(str, self._VERSION))} or newer is needed"
            )
        if not {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"} & set(mode.split(",")):
            raise PolicyError(
                f"the session has sql_mode={mode!r}: without STRICT_TRANS_TABLES the server changes values that do not "
                "fit and stores them. Add it, in the server's configuration or with "
                "connect_args={'init_command': \"SET sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')\"}"
            )
        if set(charsets) != {"utf8mb4"}:
            raise PolicyError(
                f"the session has the character set {charsets[0]!r}: texts of other characters would be lost or "
                "refused. Take ?charset=utf8mb4 into the engine's URL"
            )

    def begin(self, connection: Connection, limits: Limits) -> None:
        connection.begin()
        # One round trip.
        steps = [
            *self._limiting(limits),
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "START TRANSACTION",
            f"SAVEPOINT {_WHOLE}",
        ]
        connection.exec_driver_sql(f"BEGIN NOT ATOMIC {'; '.join(steps)}; END")

    def _limiting(self, limits: Limits) -> list[str]:
        """Statements that set the session's time-outs, in whole seconds, and note what they were."""
        wanted = self._wanted(limits)
        if not wanted:
            return []
        noted = ", ".join(f"@fencepost_{name} = @@SESSION.{name}" for name in wanted)
        return [f"SET {noted}", "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in wanted.items())]

    def _wanted(self, limits: Limits) -> dict[str, int]:
        lock, idle = (
            None if it is None else min(-(-it // 1000), self._SECONDS_MAX)
            for it in (limits.lock_timeout_ms, limits.idle_timeout_ms)
        )
        named = {"innodb_lock_wait_timeout": lock, "lock_wait_timeout": lock, "idle_transaction_timeout": idle}
        return {name: value for name, value in named.items() if value is not None}

    def restore(self, connection: Connection, limits: Limits) -> None:
        wanted = self._wanted(limits)
        if not wanted or connection.invalidated or connection.closed:
            return
        driver: Any = connection.connection.dbapi_connection
        statement = "SET " + ", ".join(f"SESSION {name} = @fencepost_{name}" for name in wanted)
        # A connection that is lost has no next user.
        with suppress(exc.DBAPIError), driver_errors(connection, statement), driver.cursor() as cursor:
            cursor.execute(statement)

    def check_whole(self, connection: Connection) -> None:
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {_WHOLE}")
        except exc.OperationalError as error:
            if self._code(error) != 1305:  # ER_SP_DOES_NOT_EXIST
                raise
            raise UndoneError(
                f"{_PASSED_OVER}. Or else {ENDED}; CREATE, ALTER, DROP and TRUNCATE commit by themselves"
            ) from error

    @contextmanager
    def schema_lock(self, connection: Connection) -> Iterator[None]:
        """Held by the session: a transaction would not outlive the first table."""
        name = "CONCAT('fencepost_', MD5(DATABASE()))"
        if connection.exec_driver_sql(f"SELECT GET_LOCK({name}, 60)").scalar() != 1:
            raise StoreError("another session has changed tables of fencepost for more than a minute: call again")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SELECT RELEASE_LOCK({name})").scalar()

    def is_outage(self, error: exc.DBAPIError) -> bool:
        code = self._code(error)
        if code:
            return code in self._AWAY
        return isinstance(error, exc.OperationalError | exc.InterfaceError)

    def is_undone(self, error: exc.DBAPIError) -> bool:
        return self._code(error) in self._UNDONE

    def is_idled(self, error: exc.DBAPIError, limits: Limits, seconds: float) -> bool:
        """The server ends the session without a word, so the time tells."""
        idle = self._wanted(limits).get("idle_transaction_timeout")
        return error.connection_invalidated and idle is not None and seconds >= idle

    def is_denied(self, error: exc.DBAPIError) -> bool:
        return self._code(error) in (1044, 1142, 1227)

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        return LOCKED_TEXT if self._code(error) in self._LOCKED else ""

    @staticmethod
    def _code(error: exc.SQLAlchemyError) -> int:
        """Its number of an error; 0 where there is none."""
        arguments = getattr(getattr(error, "orig", None), "args", ())
        return arguments[0] if arguments and isinstance(arguments[0], int) else 0


KINDS: dict[str, Kind] = {"sqlite": SQLite(), "postgresql": PostgreSQL(), "mariadb": MariaDB(), "mysql": MariaDB()}
"""By the name of SQLAlchemy's dialect; a URL of MySQL may lead to MariaDB."""


def kind_of(engine: Engine) -> Kind:
    """The kind of an engine's database. Raises PolicyError for others, and for engines that cannot be used."""
    kind = KINDS.get(engine.dialect.name)
    if kind is None:
        raise PolicyError(
            f"an engine for {engine.dialect.name!r}: transactions are known for 'sqlite', 'postgresql' and 'mariadb'"
        )
    kind.check(engine)
    return kind


__all__ = ["ENDED", "KINDS", "Kind", "Limits", "driver_errors", "kind_of"]
