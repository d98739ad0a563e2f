"""Transactions on the caller's engine: all or nothing, tried again where it is safe, one clock."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
import sqlalchemy
from fencepost.sql.database import Database
from fencepost.sql.migrations import Part
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, select, text
from sqlalchemy.pool import StaticPool
from support.threads import in_threads
from support.waiting import PATIENCE_SECONDS, wait_until

TABLES = MetaData()
COUNTER = Table("counter", TABLES, Column("id", Integer, primary_key=True), Column("value", Integer, nullable=False))


@pytest.fixture
def database(engine: Engine) -> Database:
    database = Database(engine)
    database.create_tables(Part("counter", 1, TABLES))
    database.transaction(
        lambda connection: connection.execute(COUNTER.insert(), [{"id": 1, "value": 0}, {"id": 2, "value": 0}])
    )
    return database


def value(database: Database, number: int) -> int:
    query = select(COUNTER.c.value).where(COUNTER.c.id == number)
    return int(database.transaction(lambda connection: connection.execute(query).scalar_one()))


def increment(connection: Connection, number: int) -> None:
    query = select(COUNTER.c.value).where(COUNTER.c.id == number).with_for_update()
    found = connection.execute(query).scalar_one()
    connection.execute(COUNTER.update().where(COUNTER.c.id == number).values(value=found + 1))


def test_an_error_leaves_nothing(database: Database) -> None:
    def work(connection: Connection) -> None:
        increment(connection, 1)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        database.transaction(work)
    assert value(database, 1) == 0


def test_rows_read_for_writing_are_locked(database: Database, new_engine: Callable[[], Engine]) -> None:
    def count() -> None:
        mine = Database(new_engine())
        for _ in range(25):
            mine.transaction(lambda connection: increment(connection, 1))

    in_threads([count] * 4)
    assert value(database, 1) == 100


def test_deadlocks_are_tried_again(database: Database, new_engine: Callable[[], Engine]) -> None:
    """Two transactions lock the same rows in opposite order: PostgreSQL undoes one, on SQLite one waits."""
    met = threading.Barrier(2)
    runs: list[int] = []

    def both(first: int, second: int) -> None:
        def work(connection: Connection) -> None:
            runs.append(first)
            increment(connection, first)
            if not database.is_sqlite and not met.broken:
                with contextlib.suppress(threading.BrokenBarrierError):
                    met.wait(timeout=PATIENCE_SECONDS)
                met.abort()
            increment(connection, second)

        Database(new_engine()).transaction(work)

    in_threads([lambda: both(1, 2), lambda: both(2, 1)])
    assert (value(database, 1), value(database, 2)) == (2, 2)
    # On a busy machine they meet more than once.
    assert len(runs) == 2 if database.is_sqlite else len(runs) >= 3


def test_the_clock_is_the_database_s(database: Database) -> None:
    def until_it_moves(connection: Connection) -> list[int]:
        found = [database.now_ms(connection)]
        wait_until(lambda: database.now_ms(connection) > found[0], "the clock does not move in a transaction")
        return [*found, database.now_ms(connection)]

    before_ms = time.time_ns() // 1_000_000
    found = database.transaction(until_it_moves)
    after_ms = time.time_ns() // 1_000_000
    # A database rounds to the next millisecond or cuts off.
    times = [before_ms - 1, *found, after_ms + 1]
    assert times == sorted(times)


def test_a_schema_of_a_newer_version_is_refused(database: Database) -> None:
    database.create_tables(Part("counter", 1, TABLES))
    database.transaction(lambda connection: connection.execute(text("UPDATE fencepost_schema SET version = 2")))
    with pytest.raises(
        fp.SchemaError, match="tables of 'counter' have version 2, but this package supports 1: upgrade"
    ):
        database.create_tables(Part("counter", 1, TABLES))
    assert value(database, 1) == 0


def test_tables_are_made_by_many_at_once(new_engine: Callable[[], Engine]) -> None:
    in_threads([lambda: Database(new_engine()).create_tables(Part("counter", 1, TABLES))] * 8)
    assert sqlalchemy.inspect(new_engine()).has_table("counter")


def test_other_databases_are_refused() -> None:
    from sqlalchemy.dialects import oracle

    class Other(Engine):
        def __init__(self) -> None:
            self.dialect = oracle.dialect()

    with pytest.raises(fp.PolicyError, match="engines for 'oracle' are not"):
        Database(Other())
    with pytest.raises(fp.PolicyError, match="engine: str, but a SQLAlchemy Engine is needed"):
        Database("sqlite://")  # type: ignore[arg-type]


def test_one_connection_for_all_threads_is_refused(tmp_path: Path) -> None:
    """Transactions of two threads were one: 450 rows for 200 events."""
    for url in ("sqlite://", f"sqlite:///{tmp_path}/shared.db"):
        engine = sqlalchemy.create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        with pytest.raises(fp.PolicyError, match=r"pool StaticPool is .* one connection"):
            Database(engine)
        engine.dispose()
    engine = sqlalchemy.create_engine("sqlite://")
    database = Database(engine)
    database.transaction(lambda it: it.execute(text("CREATE TABLE t (i INT)")))
    database.transaction(lambda it: it.execute(text("INSERT INTO t VALUES (1)")))
    assert database.transaction(lambda it: it.execute(text("SELECT count(*) FROM t")).scalar_one()) == 1
    engine.dispose()


@pytest.mark.parametrize("database_url", ["sqlite", "mariadb"], indirect=True)
def test_engines_that_pass_over_rollbacks_are_refused(database_url: str) -> None:
    """An effect that failed stayed in an open transaction. The next call committed its claims."""
    engine = sqlalchemy.create_engine(database_url, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)
    with pytest.raises(fp.PolicyError, match="skip_autocommit_rollback=True is not supported"):
        Database(engine)
    engine.dispose()


@pytest.mark.parametrize("setting", [True, False])
def test_connections_of_sqlite_that_do_not_commit_are_refused(tmp_path: Path, setting: bool) -> None:
    """As sqlite3 does since Python 3.12: with autocommit=True, commit() and rollback() do nothing."""

    class Connected(sqlite3.Connection):
        autocommit = setting

    url = f"sqlite:///{tmp_path}/own.db"
    engine = sqlalchemy.create_engine(url, connect_args={"factory": Connected})
    with pytest.raises(fp.PolicyError, match=f"autocommit={setting} of sqlite3 is not supported"):
        Database(engine).create_tables(Part("counter", 1, TABLES))
    engine.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_connection_lost_before_the_commit_is_tried_again(database: Database) -> None:
    runs: list[int] = []

    def work(connection: Connection) -> None:
        runs.append(1)
        increment(connection, 1)
        if len(runs) == 1:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    database.transaction(work)
    assert len(runs) == 2
    assert value(database, 1) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_connection_lost_in_the_commit_is_not(database: Database) -> None:
    """The outcome is unknown: the error says so."""

    def work(connection: Connection) -> None:
        increment(connection, 1)
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.close()

    with pytest.raises(fp.OutcomeUnknownError, match="lost during the commit"):
        database.transaction(work)
    assert value(database, 1) == 0


def raises(error: BaseException) -> Callable[..., None]:
    def act(*_: object) -> None:
        raise error

    return act


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_commit_that_was_not_sent_is_not_made_by_the_next_call(
    database: Database, error: type[BaseException]
) -> None:
    stop = raises(error())
    sqlalchemy.event.listen(database.engine, "commit", stop)
    with pytest.raises(error):
        database.transaction(lambda connection: increment(connection, 1))
    sqlalchemy.event.remove(database.engine, "commit", stop)
    database.transaction(lambda connection: increment(connection, 2))
    assert (value(database, 1), value(database, 2)) == (0, 1)


def test_a_failed_commit_whose_rollback_fails_too(tmp_path: Path) -> None:
    """An outage, and not an error of the driver. The connection's next user does not commit the work."""
    failing: dict[str, str] = {}

    def fail(what: str) -> None:
        if what in failing:
            error = sqlite3.OperationalError(failing.pop(what))
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    class Failing(sqlite3.Connection):
        def commit(self) -> None:
            fail("commit")
            super().commit()

        def rollback(self) -> None:
            fail("rollback")
            super().rollback()

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/full.db", connect_args={"factory": Failing})
    database = Database(engine)
    database.create_tables(Part("counter", 1, TABLES))
    insert = COUNTER.insert()
    failing |= {"commit": "database or disk is full", "rollback": "disk I/O error"}
    with pytest.raises(fp.StoreError, match="disk is full"):
        database.transaction(lambda connection: connection.execute(insert, [{"id": 1, "value": 0}]))
    assert not failing
    database.transaction(lambda connection: connection.execute(insert, [{"id": 2, "value": 0}]))
    with engine.connect() as connection:
        assert connection.execute(select(COUNTER.c.id)).scalars().all() == [2]
    engine.dispose()


def test_an_ignored_error_prevents_the_commit_on_postgresql(database: Database) -> None:
    """PostgreSQL has undone everything already, and treats the commit as a rollback. Others undo only the statement."""

    def work(connection: Connection) -> None:
        increment(connection, 1)
        with contextlib.suppress(sqlalchemy.exc.IntegrityError):
            connection.execute(COUNTER.insert(), [{"id": 2, "value": 0}])

    if database.kind.name != "postgresql":
        database.transaction(work)
        assert value(database, 1) == 1
        return
    with pytest.raises(fp.UndoneError, match=r"your function ignored.*Nothing of it"):
        database.transaction(work)
    assert value(database, 1) == 0


def test_statements_that_may_fail_use_a_savepoint(database: Database) -> None:
    def work(connection: Connection) -> None:
        increment(connection, 1)
        with contextlib.suppress(sqlalchemy.exc.IntegrityError), connection.begin_nested():
            connection.execute(COUNTER.insert(), [{"id": 2, "value": 0}])
        connection.begin_nested()  # left open: the commit closes it
        increment(connection, 2)

    database.transaction(work)
    assert (value(database, 1), value(database, 2)) == (1, 1)


@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_work_does_not_end_its_transaction(database: Database, end: str) -> None:
    def work(connection: Connection) -> None:
        increment(connection, 1)
        getattr(connection, end)()
        increment(connection, 2)

    with pytest.raises(fp.UndoneError, match="has ended its transaction"):
        database.transaction(work)
    assert (value(database, 1), value(database, 2)) == (int(end == "commit"), 0)


def test_a_statement_that_ends_the_transaction(database: Database) -> None:
    def work(connection: Connection) -> None:
        increment(connection, 1)
        connection.execute(text("COMMIT"))

    with pytest.raises(fp.UndoneError, match="has ended its transaction"):
        database.transaction(work)
    assert value(database, 1) == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_call_within_a_call_would_wait_for_itself(database: Database) -> None:
    def work(connection: Connection) -> None:
        increment(connection, 1)
        value(database, 2)

    with pytest.raises(fp.PolicyError, match="wait for itself, because SQLite"):
        database.transaction(work)
    assert value(database, 1) == 0


def test_a_trigger_that_rolls_back(tmp_path: Path) -> None:
    """SQLite's drivers begin another transaction with the next statement, as if nothing had happened."""
    database = Database(sqlalchemy.create_engine(f"sqlite:///{tmp_path}/x.db"))
    database.create_tables(Part("counter", 1, TABLES))

    def create(connection: Connection) -> None:
        connection.execute(
            text("CREATE TRIGGER no BEFORE INSERT ON counter WHEN new.id = 9 BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
        )

    def work(connection: Connection) -> None:
        connection.execute(COUNTER.insert(), [{"id": 1, "value": 0}])
        with contextlib.suppress(sqlalchemy.exc.IntegrityError):
            connection.execute(COUNTER.insert(), [{"id": 9, "value": 0}])
        connection.execute(COUNTER.insert(), [{"id": 2, "value": 0}])

    database.transaction(create)
    with pytest.raises(fp.UndoneError, match="which your function ignored"):
        database.transaction(work)
    with database.engine.connect() as connection:
        assert connection.execute(select(COUNTER)).all() == []
    database.engine.dispose()


def session_of(connection: Connection) -> int:
    return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def wait_for_the_end_of(session: int, engine: Engine) -> None:
    def is_gone() -> bool:
        with engine.connect() as connection:
            query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
            return connection.execute(query, {"pid": session}).scalar_one() == 0

    wait_until(is_gone, f"session {session} is not ended")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("at", ["statement", "commit"])
def test_work_that_was_stopped_is_done_again(database: Database, new_engine: Callable[[], Engine], at: str) -> None:
    limited, other, runs = Database(database.engine, idle_timeout_ms=1_000), new_engine(), []

    def work(connection: Connection) -> None:
        increment(connection, 1)
        runs.append(session_of(connection))
        if len(runs) == 1:
            wait_for_the_end_of(runs[0], other)
            if at == "statement":
                connection.execute(select(COUNTER)).all()

    limited.transaction(work)
    assert len(runs) == 2
    assert value(database, 1) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_work_that_is_too_slow_is_an_outage(database: Database, new_engine: Callable[[], Engine]) -> None:
    limited, other, runs = Database(database.engine, idle_timeout_ms=1_000), new_engine(), []

    def work(connection: Connection) -> None:
        increment(connection, 1)
        runs.append(session_of(connection))
        wait_for_the_end_of(runs[-1], other)

    with pytest.raises(fp.StoreError, match="idle for longer than idle_timeout_ms"):
        limited.transaction(work)
    assert len(runs) == 2, "once more, for it may have been stopped"
    assert value(database, 1) == 0


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_lock_that_another_holds_is_an_outage(database: Database, new_engine: Callable[[], Engine]) -> None:
    with new_engine().connect() as holder:
        holder.execute(text("LOCK TABLE counter"))
        with pytest.raises(fp.StoreError, match="lock for longer than lock_timeout_ms"):
            Database(database.engine, lock_timeout_ms=20).transaction(lambda it: it.execute(select(COUNTER)).all())
    settings = [text(f"SHOW {name}") for name in ("lock_timeout", "idle_in_transaction_session_timeout")]
    with database.engine.connect() as connection:
        assert [connection.execute(it).scalar_one() for it in settings] == ["0", "0"], "of the transaction alone"


@pytest.mark.parametrize("bound", [0, -1, True, 1.5, 2**31, "5"])
@pytest.mark.parametrize("name", ["lock_timeout_ms", "idle_timeout_ms"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_invalid_time_outs_are_refused(engine: Engine, name: str, bound: Any) -> None:
    with pytest.raises(fp.PolicyError, match=f"{name}={bound!r}: expected milliseconds"):
        Database(engine, **{name: bound})


def test_a_fork_does_not_use_connections_of_its_parent(database_url: str) -> None:
    """On SQLite, what the fork committed was lost when the parent closed its last connection. Without a pool there are
    no such connections."""
    program = f"""
import os, sys, fencepost, sqlalchemy
from fencepost.sql import IdempotentRequests, SqlSink

def say_whether_refused(call):
    try:
        call()
    except fencepost.PolicyError as error:
        print("of which this is a fork" in error.message, flush=True)

def in_fork(work):
    child = os.fork()
    if child == 0:
        work()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0

def without_pool():
    print(unpooled.expire(), flush=True)

def with_pool():
    say_whether_refused(lambda: requests.claim("shop", "key", b""))
    say_whether_refused(lambda: IdempotentRequests(engine))
    say_whether_refused(lambda: sink.reconcile([]))
    engine.dispose(close=False)
    claim = requests.claim("shop", "key", b"")
    print(type(claim).__name__, flush=True)

unpooled = IdempotentRequests(sqlalchemy.create_engine({database_url!r}, poolclass=sqlalchemy.NullPool))
in_fork(without_pool)
engine = sqlalchemy.create_engine({database_url!r})
with engine.begin() as connection:
    connection.execute(sqlalchemy.text("CREATE TABLE notes (id BIGINT)"))
requests = IdempotentRequests(engine)
sink = SqlSink(engine, "notes", "c", "message_id", message_id="id")
in_fork(with_pool)
print(requests.expire())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "True", "True", "True", "RequestClaim", "0"]
