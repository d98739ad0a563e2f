"""AsyncSqlSink: the sink's verdicts on an asyncio engine, while the event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy
from fencepost.sql import AsyncSqlSink, SqlSink
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from support.databases import execute, without_mariadb

CREATE = "CREATE TABLE events (pid BIGINT, epoch SMALLINT, partition INTEGER, seq BIGINT, note VARCHAR(9) NOT NULL)"
Work = Callable[[AsyncEngine], Awaitable[Any]]


def rows(*seqs: int, note: str | None = "n") -> list[dict[str, Any]]:
    return [{"pid": 7, "epoch": 0, "partition": 0, "seq": it, "note": note} for it in seqs]


@pytest.fixture
def events(engine: Engine) -> Engine:
    execute(engine, CREATE)
    return engine


@pytest.fixture
def run(database_url: str) -> Callable[[Work], Any]:
    """Runs a coroutine function with an asyncio engine of the test's database."""
    url = database_url.replace("sqlite://", "sqlite+aiosqlite://")

    def run(work: Work) -> Any:
        async def main() -> Any:
            engine = create_async_engine(url)
            try:
                return await work(engine)
            finally:
                await engine.dispose()

        return asyncio.run(main())

    return run


def stored(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT seq FROM events ORDER BY seq")).scalars())


@without_mariadb
def test_each_event_is_applied_once_by_both_kinds_of_sinks(events: Engine, run: Callable[[Work], Any]) -> None:
    async def work(engine: AsyncEngine) -> None:
        sink = await AsyncSqlSink.open(engine, "events", "billing")
        assert repr(sink) == "<AsyncSqlSink 'billing' into events: sequence>"
        done = await sink.apply(rows(0, 1, 1), positions={"in": 2})
        assert (done.rows_kept, done.duplicates) == (2, 1)
        done = await sink.apply(rows(*range(3000)), positions={"in": 3000}, expected={"in": 2})
        assert done.rows_kept == 2998
        assert await sink.positions() == {"in": 3000}
        with pytest.raises(fp.StateConflictError):
            await sink.apply(rows(3000), expected={"in": 2})
        assert (await sink.metrics())["claims"] == 1

    run(work)
    assert stored(events) == list(range(3000))
    assert SqlSink(events, "events", "billing").apply(rows(0, 3000)).rows_kept == 1


@pytest.mark.parametrize("count", [3, 3000])
@without_mariadb
def test_a_row_that_is_refused_is_named(events: Engine, run: Callable[[Work], Any], count: int) -> None:
    execute(events, "CREATE UNIQUE INDEX one ON events (seq)", "INSERT INTO events VALUES (0, 0, 0, 2, 'there')")

    async def work(engine: AsyncEngine) -> None:
        sink = await AsyncSqlSink.open(engine, "events", "billing")
        with pytest.raises(fp.BatchError, match=r"row 2: .*; nothing of this call"):
            await sink.apply(rows(*range(count)))
        with pytest.raises(fp.BatchError, match="column 'note', row 0: None: null"):
            await sink.apply(rows(5, note=None))

    run(work)
    assert stored(events) == [2]


@without_mariadb
def test_an_effect_may_be_a_coroutine_function(events: Engine, run: Callable[[Work], Any]) -> None:
    async def effect(connection: AsyncConnection, kept: pa.Table) -> int:
        await asyncio.sleep(0)
        insert = text("INSERT INTO events VALUES (:pid, :epoch, :partition, :seq, :note)")
        await connection.execute(insert, kept.to_pylist())
        return len(kept)

    async def fails(connection: AsyncConnection, kept: pa.Table) -> None:
        await effect(connection, kept)
        raise ZeroDivisionError

    async def work(engine: AsyncEngine) -> None:
        sink = await AsyncSqlSink.open(engine, None, "billing")
        with pytest.raises(ZeroDivisionError):
            await sink.handle(rows(0, 1), fails)
        assert (await sink.handle(rows(0, 1), effect)).result == 2
        assert (await sink.handle(rows(0, 1), effect)).result is None
        await sink.skip({"in": 5}, work=lambda it: it.execute(text("INSERT INTO events VALUES (1, 1, 1, 9, 'x')")))
        assert await sink.positions() == {"in": 5}

    run(work)
    assert stored(events) == [0, 1, 9]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_task_that_an_effect_creates_may_use_the_engine_afterwards(
    events: Engine, run: Callable[[Work], Any]
) -> None:
    """SQLite has one writer, so calls within an effect are refused. The task has the effect's context forever."""
    tasks: list[asyncio.Task[Any]] = []

    async def work(engine: AsyncEngine) -> list[int]:
        sink, is_over = await AsyncSqlSink.open(engine, "events", "billing"), asyncio.Event()

        async def later() -> int:
            with pytest.raises(fp.PolicyError, match="would wait for itself"):
                await sink.apply(rows(1))
            is_begun.set()
            await is_over.wait()
            return (await sink.apply(rows(1))).rows_kept

        is_begun = asyncio.Event()

        async def effect(connection: AsyncConnection, kept: pa.Table) -> None:
            tasks.append(asyncio.create_task(later()))
            await is_begun.wait()

        await sink.handle(rows(0), effect)
        is_over.set()
        return await asyncio.gather(*tasks)

    assert run(work) == [1]


@without_mariadb
def test_many_tasks_share_a_sink(events: Engine, run: Callable[[Work], Any]) -> None:
    async def work(engine: AsyncEngine) -> None:
        sink = await AsyncSqlSink.open(engine, "events", "billing")
        done = await asyncio.gather(*(sink.apply(rows(*range(it % 3, 30, 3))) for it in range(9)))
        assert sum(it.rows_kept for it in done) == 30

    run(work)
    assert stored(events) == list(range(30))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_event_loop_runs_while_a_call_waits(
    events: Engine, run: Callable[[Work], Any], new_engine: Callable[[], Engine]
) -> None:
    async def work(engine: AsyncEngine) -> None:
        sink = await AsyncSqlSink.open(engine, "events", "billing")
        await sink.apply(rows(0))
        with new_engine().connect() as holder:
            holder.execute(text("LOCK TABLE events IN ACCESS EXCLUSIVE MODE"))
            waiting = asyncio.create_task(sink.apply(rows(1)))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (await sink.apply(rows(1))).rows_kept == 1, "what was cancelled has claimed nothing"

    run(work)
    assert stored(events) == [0, 1]


@without_mariadb
def test_an_engine_of_the_other_kind_is_refused(events: Engine, run: Callable[[Work], Any]) -> None:
    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(fp.PolicyError, match="AsyncEngine, but a SQLAlchemy Engine is needed"):
            SqlSink(engine, "events", "billing")  # type: ignore[arg-type]
        with pytest.raises(fp.PolicyError, match="Engine, but an AsyncEngine is needed"):
            await AsyncSqlSink.open(events, "events", "billing")  # type: ignore[arg-type]

    run(work)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_lost_connection_is_tried_again(
    events: Engine, run: Callable[[Work], Any], new_engine: Callable[[], Engine]
) -> None:
    async def work(engine: AsyncEngine) -> None:
        sink = await AsyncSqlSink.open(engine, "events", "billing")
        await sink.apply(rows(0))
        end = "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        with new_engine().connect() as other:
            other.execute(sqlalchemy.text(f"{end} AND application_name = 'mine'"))
            other.execute(sqlalchemy.text(f"{end} AND query LIKE '%fencepost%' AND state = 'idle'"))
        assert (await sink.apply(rows(0, 1))).rows_kept == 1

    run(work)
    assert stored(events) == [0, 1]
