"""Every test that asks for `engine` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

sys.path.insert(0, str(Path(__file__).parents[1]))

from databases import database_url, postgres

__all__ = ["database_url", "engine", "new_engine", "postgres"]


@pytest.fixture
def new_engine(database_url: str) -> Iterator[Callable[[], sqlalchemy.Engine]]:
    """Makes one more engine on the test's database, as another process would."""
    engines: list[sqlalchemy.Engine] = []

    def make() -> sqlalchemy.Engine:
        engines.append(sqlalchemy.create_engine(database_url))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture
def engine(new_engine: Callable[[], sqlalchemy.Engine]) -> sqlalchemy.Engine:
    return new_engine()
