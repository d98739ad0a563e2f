"""Access to the driver's connection under a SQLAlchemy connection, blocking or asyncio.

On an asyncio engine this package runs in a greenlet of SQLAlchemy (`asynchronous.py`). There `settled` waits for
results of the driver without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.util import await_only


def driver_of(connection: Connection) -> Any:
    """Return the driver's connection, for example psycopg's. On an asyncio engine, its `AsyncConnection`."""
    return connection.connection.driver_connection


def settled(result: Any) -> Any:
    """Return the result of a driver's call. Wait for it if it is awaitable."""
    return await_only(result) if inspect.isawaitable(result) else result


def execute(connection: Connection, statement: str) -> None:
    """Run a statement without SQLAlchemy, which would begin a transaction. With psycopg, it may be several."""
    driver = driver_of(connection)
    options = {"prepare": False} if connection.dialect.name == "postgresql" else {}
    settled(settled(driver.execute(statement, **options)).close())


def copy_in(connection: Connection, statement: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Send the data of a COPY of PostgreSQL."""
    driver = driver_of(connection)

    async def copy() -> None:
        async with driver.cursor() as cursor, cursor.copy(statement) as target:
            for piece in pieces:
                await target.write(piece)

    if connection.dialect.is_async:
        await_only(copy())
        return
    with driver.cursor() as cursor, cursor.copy(statement) as target:
        for piece in pieces:
            target.write(piece)


def pause(seconds: float, *, is_async: bool) -> None:
    """Sleep without blocking the event loop."""
    if is_async:
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
