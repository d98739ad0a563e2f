"""SqlSink when connections, servers and processes die, around the commit above all: each row once, none lost."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy
from fencepost.sql import SqlSink
from fencepost.sql.upserts import RacedError
from sqlalchemy import Connection, Engine, text
from support.connections import lose_the_connection
from support.databases import execute
from support.mariadb import MariaDBServer
from support.postgres import PostgresServer
from support.processes import fork_server
from support.threads import in_threads
from support.waiting import PATIENCE_SECONDS, wait_until

# Not forked from the test process, which has threads.
PROCESSES = fork_server("fencepost.sql", "sqlalchemy.dialects.postgresql.psycopg", "psycopg")
CREATE = "CREATE TABLE events (pid BIGINT, epoch SMALLINT, partition INTEGER, seq BIGINT)"


@pytest.fixture
def events(engine: Engine) -> Engine:
    execute(engine, CREATE)
    return engine


def run(first: int, count: int, pid: int = 7) -> pa.Table:
    return pa.table({"pid": [pid] * count, "epoch": [0] * count, "partition": [0] * count,
                     "seq": range(first, first + count)})  # fmt: skip


def stored(engine: Engine) -> list[tuple[int, int]]:
    with engine.connect() as connection:
        return sorted(tuple(row) for row in connection.execute(text("SELECT pid, seq FROM events")))


def test_a_call_that_loses_every_race_can_be_repeated(events: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an error of its messages, a consumer would store them as dead letters."""

    def lose(work: Any) -> None:
        raise RacedError

    sink = SqlSink(events, "events", "a consumer")
    with monkeypatch.context() as patched:
        patched.setattr(sink._database, "transaction", lose)
        with pytest.raises(fp.StoreError, match="call again"):
            sink.apply(run(0, 3))
    assert sink.apply(run(0, 3)).counts[fp.Verdict.ACCEPTED] == 3


@pytest.mark.parametrize("after_commit", [True, False])
@pytest.mark.parametrize("claim", ["sequence", "message_id"])
def test_the_claim_shows_the_outcome_of_a_lost_commit(
    events: Engine, monkeypatch: pytest.MonkeyPatch, after_commit: bool, claim: Any
) -> None:
    options: dict[str, Any] = {"message_id": "seq"} if claim == "message_id" else {}
    sink = SqlSink(events, "events", "c", claim, **options)
    sink.apply(run(0, 3), positions={"t": 3})
    seen = lose_the_connection(events, monkeypatch, after_commit=after_commit)
    with pytest.raises(fp.OutcomeUnknownError, match="lost during the commit"):
        sink.apply(run(3, 3), positions={"t": 6})
    again = sink.apply(run(3, 3), positions={"t": 6})
    assert len(seen) == 2
    assert (again.rows_kept, again.duplicates) == ((0, 3) if after_commit else (3, 0))
    assert stored(events) == [(7, seq) for seq in range(6)]
    assert sink.positions() == {"t": 6}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("when", ["in the effect", "in a copy", "in an array"])
def test_a_backend_that_is_killed_before_the_commit(
    events: Engine, new_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The transaction is begun again, on another connection, and the caller hears nothing of it."""
    sink = SqlSink(events, "events", "c")
    killed: list[int] = []

    def kill(connection: Connection) -> None:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        killed.append(backend)
        with new_engine().begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 1000)"), {"pid": backend})

    from fencepost.sql import rows as bulk

    def killed_before(name: str) -> None:
        call = getattr(bulk, name)

        def kill_and_call(connection: Connection, *arguments: Any) -> Any:
            if not killed:
                kill(connection)
            return call(connection, *arguments)

        monkeypatch.setattr(bulk, name, kill_and_call)

    if when == "in a copy":
        monkeypatch.setattr(bulk, "ARRAYS_ROWS_MAX", -1)
        killed_before("_copy")
        done = sink.apply(run(0, 3))
    elif when == "in an array":
        killed_before("as_arrays")
        done = sink.apply(run(0, 3))
    else:
        other = SqlSink(events, None, "d")

        def effect(connection: Connection, kept: pa.Table) -> None:
            if not killed:
                kill(connection)
            connection.execute(text("INSERT INTO events VALUES (:pid, :epoch, :partition, :seq)"), kept.to_pylist())

        done = other.handle(run(0, 3), effect)
    assert len(killed) == 1
    assert done.rows_kept == 3
    assert stored(events) == [(7, 0), (7, 1), (7, 2)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_sinks_that_deadlock_in_their_effects(events: Engine, new_engine: Callable[[], Engine]) -> None:
    """PostgreSQL undoes one of them, claim and effect, and it is done again."""
    execute(
        events, "CREATE TABLE totals (id INTEGER PRIMARY KEY, total BIGINT)", "INSERT INTO totals VALUES (1, 0), (2, 0)"
    )
    met = threading.Barrier(2)
    runs: list[int] = []

    def both(first: int, second: int) -> None:
        def effect(connection: Connection, kept: pa.Table) -> None:
            runs.append(first)
            for number in (first, second):
                add = "UPDATE totals SET total = total + :count WHERE id = :id"
                connection.execute(text(add), {"id": number, "count": len(kept)})
                if number == first and not met.broken:
                    with contextlib.suppress(threading.BrokenBarrierError):
                        met.wait(timeout=PATIENCE_SECONDS)
                    met.abort()

        SqlSink(new_engine(), None, "c").handle(run(0, 5, pid=first), effect)

    # The first call of a consumer fixes the types of its keys, and others wait for it.
    SqlSink(events, None, "c").handle(run(0, 1, pid=3), lambda *_: None)
    in_threads([lambda: both(1, 2), lambda: both(2, 1)])
    with events.connect() as connection:
        assert connection.execute(text("SELECT total FROM totals")).scalars().all() == [10, 10]
    assert len(runs) >= 3  # on a busy machine, the call that was undone can meet the other one again


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | MariaDBServer]:
    with request.param() as server:
        yield server
    gc.collect()  # sockets, within the filter of the test


@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "own_server", [PostgresServer, pytest.param(MariaDBServer, marks=pytest.mark.matrix)], indirect=True
)
def test_a_server_that_crashes_again_and_again(own_server: PostgresServer | MariaDBServer) -> None:
    """A caller that repeats what failed, and only that, ends with each row once and its position at the end."""
    engine = sqlalchemy.create_engine(own_server.new_database())
    columns = (sqlalchemy.Column(it, sqlalchemy.BigInteger) for it in ("pid", "epoch", "partition", "seq"))
    sqlalchemy.Table("events", sqlalchemy.MetaData(), *columns).create(engine)
    errors: list[str] = []
    applied = 0
    is_over = threading.Event()

    def consume() -> None:
        nonlocal applied
        sink = SqlSink(engine, "events", "c", attempts=1)
        while not is_over.is_set():
            try:
                sink.apply(run(applied, 20), positions={"t": applied + 20})
                applied += 20
            except (fp.OutcomeUnknownError, fp.StoreError) as error:
                errors.append(type(error).__name__)
                time.sleep(0.02)

    thread = threading.Thread(target=consume)
    thread.start()
    chance = random.Random(5)
    for _ in range(4):
        mark = applied + 20 * chance.randrange(1, 25)
        wait_until(lambda mark=mark: applied >= mark, "nothing is applied")
        met = len(errors)
        own_server.halt()
        wait_until(lambda met=met: len(errors) > met, "no call met the crash")
        own_server.start_again()
    mark = applied + 200
    wait_until(lambda: applied >= mark, "nothing is applied after the last crash")
    is_over.set()
    thread.join(timeout=PATIENCE_SECONDS)
    assert not thread.is_alive()
    engine.dispose()
    assert stored(engine) == [(7, seq) for seq in range(applied)]
    assert SqlSink(engine, "events", "c").positions() == {"t": applied}
    engine.dispose()


def consume(url: str, reports_at: int, reports: Any) -> None:
    """Up to the end, or from `reports_at`, which it says, 200 rows further on, where it waits."""
    sink = SqlSink(sqlalchemy.create_engine(url), "events", "c")
    first = sink.positions().get("t", 0)
    while first < 2000:
        if first >= reports_at:
            reports.send(first)
        if first >= reports_at + 200:
            signal.pause()
        # One that goes back, as after a rebalance: what was applied comes again.
        for start in (max(first - 30, 0), first):
            count = min(50, 2000 - start)
            sink.apply(run(start, count), positions={"t": start + count})
        first += 50


def start_to_consume(url: str, reports_at: int) -> tuple[Any, Any]:
    heard, reports = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=consume, args=(url, reports_at, reports))
    process.start()
    reports.close()
    return process, heard


def test_a_consumer_that_is_killed_again_and_again(events: Engine, database_url: str) -> None:
    """It continues from its position, which committed with the rows."""
    chance = random.Random(7)
    for kill in range(4):
        # Between one place and 200 rows further on, where it waits.
        reports_at = 400 * kill + chance.randrange(150)
        process, heard = start_to_consume(database_url, reports_at)
        assert heard.recv() >= reports_at
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert 0 < len(stored(events)) < 2000
    process, _ = start_to_consume(database_url, 2000)
    process.join()
    assert process.exitcode == 0
    assert stored(events) == [(7, seq) for seq in range(2000)]
    assert SqlSink(events, "events", "c").positions() == {"t": 2000}
