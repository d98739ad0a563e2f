"""`SqlSink` for asyncio: the same sink, in greenlets of SQLAlchemy on an asyncio engine."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from sqlalchemy import Connection, Table
from sqlalchemy.util import await_only, greenlet_spawn

from fencepost.errors import PolicyError
from fencepost.sql.reaping import Reaped
from fencepost.sql.sink import Applied, Effect, SqlSink

if TYPE_CHECKING:  # It requires greenlet, an optional dependency.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

AsyncEffect: TypeAlias = "Callable[[AsyncConnection, pa.Table], Awaitable[Any] | Any]"
"""Called with the transaction's connection and rows. Its writes through the connection happen once."""


class AsyncSqlSink:
    """Applies each event once, however often it arrives, without blocking the event loop. See `SqlSink`.

    `engine`: an AsyncEngine of PostgreSQL with psycopg 3 (postgresql+psycopg://...), or of SQLite with aiosqlite. The
    event loop's thread judges and converts rows: some milliseconds for 1000 rows. It does not block on the database.

    If a call is cancelled, its transaction is rolled back. With aiosqlite, a call that is cancelled while a statement
    runs can leave the database locked until Python's garbage collector has run.

        engine = create_async_engine("postgresql+psycopg://host/shop")
        sink = await AsyncSqlSink.open(engine, "orders", "billing")
        await sink.apply(rows)
    """

    def __init__(self, engine: AsyncEngine, sink: SqlSink) -> None:
        self.engine, self.sink = engine, sink

    @classmethod
    async def open(
        cls, engine: AsyncEngine, table: str | Table | None, consumer_id: str, **options: Any
    ) -> AsyncSqlSink:
        """Return a new sink. The arguments and errors are those of `SqlSink`, but with an AsyncEngine."""
        from sqlalchemy.ext.asyncio import AsyncEngine

        if not isinstance(engine, AsyncEngine):
            raise PolicyError(
                f"engine: {type(engine).__name__}, but an AsyncEngine is needed: create_async_engine(url)"
            )
        return cls(engine, await greenlet_spawn(SqlSink, engine.sync_engine, table, consumer_id, **options))

    def __repr__(self) -> str:
        return f"<Async{repr(self.sink)[1:]}"

    async def apply(
        self,
        rows: Any,
        *,
        positions: Mapping[str, int] | None = None,
        expected: Mapping[str, int] | None = None,
        refused: AsyncEffect | None = None,
    ) -> Applied:
        """See `SqlSink.apply`. `refused` receives an `AsyncConnection` and may be a coroutine function."""
        return await greenlet_spawn(
            self.sink.apply, rows, positions=positions, expected=expected, refused=self.blocking(refused)
        )

    async def handle(
        self,
        rows: Any,
        effect: AsyncEffect,
        *,
        positions: Mapping[str, int] | None = None,
        expected: Mapping[str, int] | None = None,
        refused: AsyncEffect | None = None,
    ) -> Applied:
        """See `SqlSink.handle`. `effect` and `refused` receive an `AsyncConnection` and may be coroutine functions."""
        own = self.blocking(effect)
        return await greenlet_spawn(
            self.sink.handle, rows, own, positions=positions, expected=expected, refused=self.blocking(refused)
        )

    async def skip(
        self,
        positions: Mapping[str, int],
        *,
        expected: Mapping[str, int] | None = None,
        work: Callable[[AsyncConnection], Awaitable[Any] | Any] | None = None,
    ) -> None:
        """See `SqlSink.skip`. `work` receives an `AsyncConnection` and may be a coroutine function."""
        await greenlet_spawn(self.sink.skip, positions, expected=expected, work=self.blocking(work))

    async def positions(self) -> dict[str, int]:
        """See `SqlSink.positions`."""
        return await greenlet_spawn(self.sink.positions)

    async def begin_positions(self, positions: Mapping[str, int]) -> dict[str, int]:
        """See `SqlSink.begin_positions`."""
        return await greenlet_spawn(self.sink.begin_positions, positions)

    async def forget_positions(self, *sources: str) -> None:
        """See `SqlSink.forget_positions`."""
        await greenlet_spawn(self.sink.forget_positions, *sources)

    async def reap(self, retention_ms: int, **options: Any) -> Reaped:
        """See `SqlSink.reap`."""
        return await greenlet_spawn(self.sink.reap, retention_ms, **options)

    async def metrics(self) -> dict[str, Any]:
        """See `SqlSink.metrics`."""
        return await greenlet_spawn(self.sink.metrics)

    def blocking(self, effect: Callable[..., Any] | None) -> Effect | None:
        """Return a blocking form of an effect, which passes on the connection and waits for a coroutine's result."""
        if effect is None:
            return None
        from sqlalchemy.ext.asyncio import AsyncConnection

        def call(connection: Connection, *rows: pa.Table) -> Any:
            result = effect(AsyncConnection(self.engine, connection), *rows)
            return await_only(result) if inspect.isawaitable(result) else result

        return call
