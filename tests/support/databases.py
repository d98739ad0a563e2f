"""Fixtures: an empty database, of SQLite, of PostgreSQL and of MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Engine, text

from support.mariadb import MariaDBServer
from support.postgres import PostgresServer

Server = TypeVar("Server", PostgresServer, MariaDBServer)


def _running(kind: type[Server]) -> Iterator[Server]:
    try:
        server = kind()
    except FileNotFoundError as missing:
        pytest.exit(str(missing), returncode=1)
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    yield from _running(PostgresServer)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    yield from _running(MariaDBServer)


def execute(engine: Engine, *statements: str) -> None:
    """In one transaction."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


# For tests of what MariaDB has not, or does in its own way, as tests/sql/test_mariadb.py says.
without_mariadb = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database, for tests whose processes open it themselves."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    server: PostgresServer | MariaDBServer = request.getfixturevalue(
        "postgres" if request.param == "postgresql" else "mariadb"
    )
    return server.new_database()
