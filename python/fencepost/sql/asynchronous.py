"""`SqlSink` for asyncio: the same sink, run in greenlets of SQLAlchemy on an asyncio engine."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from sqlalchemy import Connection, Table
from sqlalchemy.util import await_only, greenlet_spawn

from fencepost.errors import PolicyError
from fencepost.sql.retention import Reaped
from fencepost.sql.sink import Applied, Effect, SqlSink

if TYPE_CHECKING:  # it needs greenlet, which not all who use this package have
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

AsyncEffect: TypeAlias = "Callable[[AsyncConnection, pa.Table], Awaitable[Any] | Any]"
"""Called with the connection of the transaction and rows; what it writes through it is written once."""


class AsyncSqlSink:
    """Applies each event once, however often it comes, without blocking the event loop: see `SqlSink`.

    `engine`: of PostgreSQL with psycopg 3 (postgresql+psycopg://...), or of SQLite with aiosqlite. Judging and
    converting rows takes the event loop's thread, some milliseconds for a thousand rows; the database is awaited.

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
        """A sink with the arguments of `SqlSink`, and its errors."""
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
        """`SqlSink.apply`; `refused` may be a coroutine function."""
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
        """`SqlSink.handle`; `effect` and `refused` get an `AsyncConnection`, and may be coroutine functions."""
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
        """`SqlSink.skip`."""
        await greenlet_spawn(self.sink.skip, positions, expected=expected, work=self.blocking(work))

    async def positions(self) -> dict[str, int]:
        """`SqlSink.positions`."""
        return await greenlet_spawn(self.sink.positions)

    async def begin_positions(self, positions: Mapping[str, int]) -> dict[str, int]:
        """`SqlSink.begin_positions`."""
        return await greenlet_spawn(self.sink.begin_positions, positions)

    async def forget_positions(self, *sources: str) -> None:
        """`SqlSink.forget_positions`."""
        await greenlet_spawn(self.sink.forget_positions, *sources)

    async def reap(self, retention_ms: int, **options: Any) -> Reaped:
        """`SqlSink.reap`."""
        return await greenlet_spawn(self.sink.reap, retention_ms, **options)

    async def metrics(self) -> dict[str, Any]:
        """`SqlSink.metrics`."""
        return await greenlet_spawn(self.sink.metrics)

    def blocking(self, effect: Callable[..., Any] | None) -> Effect | None:
        """An effect as the sink calls it: with the same connection, waiting for what is to be awaited."""
        if effect is None:
            return None
        from sqlalchemy.ext.asyncio import AsyncConnection

        def call(connection: Connection, *rows: pa.Table) -> Any:
            result = effect(AsyncConnection(self.engine, connection), *rows)
            return await_only(result) if inspect.isawaitable(result) else result

        return call
