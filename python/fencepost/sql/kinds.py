"""The supported databases: how each begins a transaction that keeps what it has read valid, and what its errors mean.

SQLite takes its single write lock at the start (BEGIN IMMEDIATE). It is durable (WAL, synchronous FULL). PostgreSQL
and MariaDB run in READ COMMITTED, and a transaction locks the rows that it reads in order to write. So the outcome does
not depend on the isolation level of the engine, and MariaDB takes no gap locks.

Two databases can end a transaction early without an error at the commit. SQLite does after a trigger that rolls back.
MariaDB does after a deadlock, and after each statement that commits by itself (CREATE, ALTER, DROP, TRUNCATE). Later
statements then run in another transaction. So `begin` sets a savepoint, and the commit requires it. On PostgreSQL only
the caller's work can end a transaction early, so a check follows it.
"""

from __future__ import annotations

import re
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
    "your function has ended its transaction. If it committed, fencepost's claim or decision is committed too, and a "
    "repeated call does not run the function again: check its rows. Do not commit or roll back in the function"
)
IGNORED = (
    "the database has rolled back the transaction after an error of a statement, which your function ignored. Nothing "
    "of its work is in the database. Let the function raise the error, or run statements that may fail in "
    "connection.begin_nested()"
)
_UNCLEAR = f"the transaction ended before its commit, for one of two reasons. (1) {IGNORED}. (2) {ENDED}"


class Limits(NamedTuple):
    """Timeouts of one transaction, in milliseconds. None keeps the setting of the session."""

    lock_timeout_ms: int | None = None
    idle_timeout_ms: int | None = None


class Kind(Protocol):
    """The operations that differ between databases. `Database` calls them."""

    name: str
    clock: str
    """Its clock as an SQL expression, in ms since 1970."""
    commits_ddl: bool
    """Whether each statement that changes tables commits by itself."""

    def check(self, engine: Engine) -> None:
        """Raise PolicyError for an unsupported engine."""

    def set_up(self, connection: Connection) -> None:
        """Prepare a connection of the pool, once. Raise PolicyError for an unsupported session."""

    def begin(self, connection: Connection, limits: Limits) -> None:
        """Begin a transaction."""

    def restore(self, connection: Connection, limits: Limits) -> None:
        """Restore the session's settings of before `begin`, for its next user."""

    def check_whole(self, connection: Connection) -> None:
        """Raise UndoneError unless the commit will contain everything since `begin`."""

    def check_open(self, connection: Connection) -> None:
        """Raise UndoneError if the caller's work has ended the transaction in a way that `check_whole` cannot find."""

    def schema_lock(self, connection: Connection) -> AbstractContextManager[None]:
        """Return a context that holds the exclusive lock for changes of this package's tables."""

    def is_outage(self, error: exc.DBAPIError) -> bool:
        """Return whether a retry may succeed without a change of statement, values or rights."""

    def is_undone(self, error: exc.DBAPIError) -> bool:
        """Return whether a concurrent transaction caused a rollback, or a refusal to begin."""

    def is_idled(self, error: exc.DBAPIError, limits: Limits, seconds: float) -> bool:
        """Return whether the server ended the session for an idle transaction. `seconds`: time since its begin."""

    def is_denied(self, error: exc.DBAPIError) -> bool:
        """Return whether the role lacks the right to create or change tables."""

    def is_misfit(self, error: exc.DBAPIError) -> bool:
        """Return whether the database refuses the statement whatever its values: for example a missing table or right.

        Only for statements of this package: an application may build its own from values.
        """

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        """Return an explanation for the message of a timeout error, or "" for other errors."""


@contextmanager
def driver_errors(connection: Connection, statement: str) -> Iterator[None]:
    """Convert errors of the driver to those of SQLAlchemy, which transactions handle."""
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


def _check_rolls_back(engine: Engine) -> None:
    """Refuse engines that pass over rollbacks in AUTOCOMMIT: `begin` opens a transaction by a statement there.

    Raises:
        PolicyError: The next user of the connection would commit what a failed call has written.
    """
    if getattr(engine.dialect, "skip_autocommit_rollback", False):
        raise PolicyError(
            "skip_autocommit_rollback=True is not supported: a failed call would not be rolled back, and the next user "
            "of its connection would commit its claims. Leave this setting out of create_engine"
        )


_UNKNOWN_ON_SQLITE = re.compile("^no such (table|column)|has no column named")


class SQLite:
    """SQLite: one writer at a time."""

    name = "sqlite"
    clock = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    commits_ddl = False
    # SQLITE_BUSY and SQLITE_LOCKED. Higher bits of a code have the reason.
    _TAKEN = frozenset({5, 6})
    # SQLITE_BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL.
    _AWAY = frozenset({5, 6, 7, 9, 10, 13, 14, 15})

    def check(self, engine: Engine) -> None:
        _check_rolls_back(engine)
        if isinstance(engine.pool, StaticPool):
            raise PolicyError(
                "the pool StaticPool is not supported: all users share one connection, so a user that closes it ends "
                "the transactions of the others. Use SQLAlchemy's default pool, and a file if threads share a database "
                "(in memory, each thread has its own database)"
            )

    def set_up(self, connection: Connection) -> None:
        # Since Python 3.12. With True, commit() and rollback() of the driver do nothing. -1 is the default.
        if (setting := getattr(drivers.driver_of(connection), "autocommit", -1)) in (True, False):
            raise PolicyError(
                f"autocommit={setting} of sqlite3 is not supported, because fencepost begins and commits transactions "
                "itself. Leave it out of connect_args"
            )
        # The SQLAlchemy connection would begin a transaction, in which these settings cannot change. A change of the
        # journal mode does not wait for concurrent openers, so it may fail as busy.
        for setting in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL"):
            with driver_errors(connection, setting):
                drivers.execute(connection, f"PRAGMA {setting}")

    def begin(self, connection: Connection, limits: Limits) -> None:
        connection.begin()
        # Event listeners of the engine may have begun a transaction already.
        if not drivers.driver_of(connection).in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql(f"SAVEPOINT {_WHOLE}")

    def restore(self, connection: Connection, limits: Limits) -> None:
        pass

    def check_whole(self, connection: Connection) -> None:
        try:
            connection.exec_driver_sql(f"RELEASE {_WHOLE}")
        except exc.OperationalError as error:
            raise UndoneError(_UNCLEAR) from error

    def check_open(self, connection: Connection) -> None:
        pass

    def schema_lock(self, connection: Connection) -> AbstractContextManager[None]:
        return nullcontext()  # The transaction holds the write lock.

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

    def is_misfit(self, error: exc.DBAPIError) -> bool:
        """See `Kind`. SQLITE_ERROR is also the code of functions that refuse a value, such as malformed JSON."""
        is_unknown = self._code(error) == 1 and _UNKNOWN_ON_SQLITE.search(str(error.orig)) is not None
        return is_unknown or self._code(error) in (3, 8, 23)  # SQLITE_PERM, READONLY, AUTH.

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        return ""


_WHOLE_SETTING = "fencepost.whole"
"""A setting that is "on" until the transaction ends. It costs less than a savepoint: no round trip."""
_IDLED_TEXT = "; the transaction was idle for longer than idle_timeout_ms"
LOCKED_TEXT = "; another session held the lock for longer than lock_timeout_ms"


class PostgreSQL:
    """PostgreSQL with psycopg 3."""

    name = "postgresql"
    # now() is constant in a transaction, which may have waited for a lock since its begin.
    clock = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    commits_ddl = False
    # Rollbacks because of a concurrent transaction: serialization_failure, deadlock_detected.
    _UNDONE = frozenset({"40001", "40P01"})
    # Error classes: connections, authentication, rollbacks, resources, locks, operators and the system.
    _AWAY = frozenset({"08", "28", "40", "53", "55", "57", "58"})
    # read_only_sql_transaction: the server is a replica, or an operator allows no writes, as on a full disk.
    _READ_ONLY = "25006"
    # idle_in_transaction_session_timeout and lock_not_available.
    _IDLED, _LOCKED = "25P03", "55P03"
    # libpq's status of a session without a transaction, and with a failed one. A closed session has neither.
    _IDLE, _IN_ERROR = 0, 3
    # The advisory lock for changes of tables.
    _SCHEMA_LOCK = 0x66656E63

    def check(self, engine: Engine) -> None:
        if engine.dialect.driver != "psycopg":
            raise PolicyError(
                f"the driver {engine.dialect.driver!r} is not supported: use psycopg 3, postgresql+psycopg://..."
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
        wanted = {name: value for name, value in named.items() if value is not None}
        settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in [*wanted.items(), (_WHOLE_SETTING, "on")])
        with driver_errors(connection, settings):
            drivers.execute(connection, settings)
        if wanted:
            connection.info[_COUNTS_IDLE] = True

    def restore(self, connection: Connection, limits: Limits) -> None:
        if not connection.invalidated:  # The settings end with the transaction.
            connection.info.pop(_COUNTS_IDLE, None)

    def check_whole(self, connection: Connection) -> None:
        """See `Kind`. PostgreSQL rolls back at the commit of a failed transaction, without an error."""
        status = drivers.driver_of(connection).info.transaction_status
        if status in (self._IDLE, self._IN_ERROR):
            raise UndoneError(ENDED if status == self._IDLE else IGNORED)

    def check_open(self, connection: Connection) -> None:
        """See `Kind`. After a COMMIT or ROLLBACK, the driver begins another transaction, without the setting."""
        self.check_whole(connection)
        if connection.exec_driver_sql(f"SELECT current_setting('{_WHOLE_SETTING}', true)").scalar() != "on":
            raise UndoneError(ENDED)

    def schema_lock(self, connection: Connection) -> AbstractContextManager[None]:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": self._SCHEMA_LOCK})
        return nullcontext()  # The lock ends with the transaction.

    def is_outage(self, error: exc.DBAPIError) -> bool:
        if state := self._state(error):
            return state[:2] in self._AWAY or state == self._READ_ONLY
        return isinstance(error, exc.OperationalError | exc.InterfaceError)

    def is_undone(self, error: exc.DBAPIError) -> bool:
        return self._state(error) in self._UNDONE

    def is_idled(self, error: exc.DBAPIError, limits: Limits, seconds: float) -> bool:
        return self._state(error) == self._IDLED

    def is_denied(self, error: exc.DBAPIError) -> bool:
        return self._state(error) == "42501"

    def is_misfit(self, error: exc.DBAPIError) -> bool:
        """See `Kind`. A row that a policy of row security refuses has the code of a missing right, too."""
        function = getattr(getattr(error.orig, "diag", None), "source_function", None)
        is_of_row = function == "ExecWithCheckOptions"
        # undefined_table, undefined_column, insufficient_privilege.
        return self._state(error) in ("42P01", "42703", "42501") and not is_of_row

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        return {self._IDLED: _IDLED_TEXT, self._LOCKED: LOCKED_TEXT}.get(self._state(error), "")

    @staticmethod
    def _state(error: exc.SQLAlchemyError) -> str:
        """Return the SQLSTATE of an error, or "" if there is none."""
        return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


_COUNTS_IDLE = "fencepost_counts_idle"
"""Key in the info of a connection whose current transaction has an idle timeout of this package."""


def _begin_to_count(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> None:
    """Run a statement after an executemany: PostgreSQL does not measure idle time after psycopg's pipeline."""
    if many and connection.info.get(_COUNTS_IDLE):
        with driver_errors(connection, "SELECT 1"):
            drivers.execute(connection, "SELECT 1")


class MariaDB:
    """MariaDB 10.6 or newer with PyMySQL. MySQL is not supported, because it is not tested."""

    name = "mariadb"
    # The start of the statement, in UTC: a local time is ambiguous for one hour a year.
    clock = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"
    commits_ddl = True
    _VERSION = (10, 6)
    # ER_LOCK_DEADLOCK, and ER_CHECKREAD for a row that changed after the snapshot.
    _UNDONE = frozenset({1213, 1020})
    # Timeouts of lock waits and of statements.
    _LOCKED = frozenset({1205, 1907})
    # Disk full, out of memory, I/O; too many connections, host names, addresses; no access; shutdown; lost packets; a
    # full table, log or lock table; a failed commit; limits of a user; read-only servers; interrupted statements.
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
                f"the driver {engine.dialect.driver!r} is not supported: use PyMySQL, mariadb+pymysql://..."
            )
        _check_rolls_back(engine)

    def set_up(self, connection: Connection) -> None:
        """See `Kind`. Refuses sessions that would silently change values or truncate keys."""
        query = "SELECT VERSION(), @@sql_mode, @@character_set_client, @@character_set_connection"
        driver: Any = connection.connection.dbapi_connection
        with driver_errors(connection, query), driver.cursor() as cursor:
            cursor.execute(query)
            version, mode, *charsets = cursor.fetchone()
        if "mariadb" not in version.lower():
            raise PolicyError(f"the server is MySQL {version}. Supported are 'sqlite', 'postgresql' and 'mariadb'")
        number = tuple(int(it) for it in version.replace("5.5.5-", "", 1).split("-")[0].split(".")[:2])
        if number < self._VERSION:
            raise PolicyError(
                f"the server is MariaDB {version}, but {'.'.join(map(str, self._VERSION))} or newer is needed"
            )
        if not {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"} & set(mode.split(",")):
            raise PolicyError(
                f"the session has sql_mode={mode!r}: without STRICT_TRANS_TABLES the server silently changes values "
                "that do not fit. Add it in the server's configuration or with "
                "connect_args={'init_command': \"SET sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')\"}"
            )
        if set(charsets) != {"utf8mb4"}:
            raise PolicyError(
                f"the session has the character set {charsets[0]!r}: the server would lose or refuse other "
                "characters. Add ?charset=utf8mb4 to the engine's URL"
            )

    def begin(self, connection: Connection, limits: Limits) -> None:
        connection.begin()
        # One compound statement takes one round trip.
        steps = [
            *self._limiting(limits),
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "START TRANSACTION",
            f"SAVEPOINT {_WHOLE}",
        ]
        connection.exec_driver_sql(f"BEGIN NOT ATOMIC {'; '.join(steps)}; END")

    def _limiting(self, limits: Limits) -> list[str]:
        """Return statements that set the session's timeouts, in whole seconds, and save the old ones in variables."""
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
        # A lost connection has no next user.
        with suppress(exc.DBAPIError), driver_errors(connection, statement), driver.cursor() as cursor:
            cursor.execute(statement)

    def check_whole(self, connection: Connection) -> None:
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {_WHOLE}")
        except exc.OperationalError as error:
            if self._code(error) != 1305:  # ER_SP_DOES_NOT_EXIST
                raise
            raise UndoneError(f"{_UNCLEAR}. CREATE, ALTER, DROP and TRUNCATE commit by themselves") from error

    def check_open(self, connection: Connection) -> None:
        pass

    @contextmanager
    def schema_lock(self, connection: Connection) -> Iterator[None]:
        """See `Kind`. The session holds the lock, because the first CREATE TABLE ends a transaction."""
        name = "CONCAT('fencepost_', MD5(DATABASE()))"
        if connection.exec_driver_sql(f"SELECT GET_LOCK({name}, 60)").scalar() != 1:
            raise StoreError(
                "another session has been changing tables of fencepost for more than 60 s. Call again later"
            )
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
        """See `Kind`. The server ends the session without an error code, so the elapsed time decides."""
        idle = self._wanted(limits).get("idle_transaction_timeout")
        return error.connection_invalidated and idle is not None and seconds >= idle

    def is_denied(self, error: exc.DBAPIError) -> bool:
        return self._code(error) in (1044, 1142, 1227)

    def is_misfit(self, error: exc.DBAPIError) -> bool:
        """See `Kind`. Rights on databases, tables and columns; unknown databases, columns and tables."""
        return self._code(error) in (1044, 1142, 1143, 1227, 1370, 1049, 1054, 1109, 1146)

    def timed_out(self, error: exc.SQLAlchemyError) -> str:
        return LOCKED_TEXT if self._code(error) in self._LOCKED else ""

    @staticmethod
    def _code(error: exc.SQLAlchemyError) -> int:
        """Return the number of an error, or 0 if there is none."""
        arguments = getattr(getattr(error, "orig", None), "args", ())
        return arguments[0] if arguments and isinstance(arguments[0], int) else 0


KINDS: dict[str, Kind] = {"sqlite": SQLite(), "postgresql": PostgreSQL(), "mariadb": MariaDB(), "mysql": MariaDB()}
"""Kinds by the name of SQLAlchemy's dialect. A URL of MySQL may lead to MariaDB."""


def kind_of(engine: Engine) -> Kind:
    """Return the kind of an engine's database.

    Raises:
        PolicyError: The database or the engine is not supported.
    """
    kind = KINDS.get(engine.dialect.name)
    if kind is None:
        raise PolicyError(
            f"engines for {engine.dialect.name!r} are not supported: use 'sqlite', 'postgresql' or 'mariadb'"
        )
    kind.check(engine)
    return kind
