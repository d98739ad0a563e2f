"""Connections to databases that break."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Engine


def lose_the_connection(engine: Engine, monkeypatch: pytest.MonkeyPatch, *, after_commit: bool) -> list[int]:
    """The next commit's connection breaks, before or after the server has done it. Gives the commits seen."""
    commit, seen = engine.dialect.do_commit, []

    def broken(connection: Any) -> None:
        seen.append(1)
        if len(seen) > 1:
            commit(connection)
            return
        if after_commit:
            commit(connection)
        connection.driver_connection.close()
        if engine.dialect.name == "sqlite":
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        if engine.dialect.name == "mariadb":
            raise pymysql.OperationalError(2013, "Lost connection to server during query")
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(engine.dialect, "do_commit", broken)
    return seen
