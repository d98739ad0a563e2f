"""Fixtures: an empty database, of SQLite and of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
    except FileNotFoundError as missing:
        pytest.exit(str(missing), returncode=1)
    with server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database, for tests whose processes open it themselves."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()
