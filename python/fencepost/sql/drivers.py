"""The driver's own connection under SQLAlchemy's, blocking or of asyncio.

On an asyncio engine everything of this package runs in a greenlet of SQLAlchemy (`asynchronous.py`), in which `settled`
waits for what the driver's calls return, while the event loop goes on.
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
    """The driver's connection, psycopg's or that of sqlite3; on an asyncio engine psycopg's `AsyncConnection`, ..."""
    return connection.connection.driver_connection


def settled(result: Any) -> Any:
    """What a call of the driver returns, or what it comes to where that has to be awaited."""
    return await_only(result) if inspect.isawaitable(result) else result


def execute(connection: Connection, statement: str) -> None:
    """Runs a statement, of psycopg also several, without SQLAlchemy, which would begin a transaction."""
    driver = driver_of(connection)
    options = {"prepare": False} if connection.dialect.name == "postgresql" else {}
    settled(settled(driver.execute(statement, **options)).close())


def copy_in(connection: Connection, statement: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Sends the data of a COPY of PostgreSQL."""
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
    """Sleeps, and lets an event loop go on meanwhile."""
    if is_async:
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
