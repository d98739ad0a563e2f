"""Every test that asks for `engine` runs on SQLite, on PostgreSQL and on MariaDB."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

sys.path.insert(0, str(Path(__file__).parents[1]))

from databases import database_url, mariadb, postgres

__all__ = ["database_url", "engine", "mariadb", "new_engine", "postgres"]


@pytest.fixture
def new_engine(database_url: str) -> Iterator[Callable[[], sqlalchemy.Engine]]:
    """Makes one more engine on the test's database, as another process would."""
    engines: list[sqlalchemy.Engine] = []

    def make() -> sqlalchemy.Engine:
        engine = sqlalchemy.create_engine(database_url)
        engines.append(engine)
        if engine.dialect.name == "mariadb":
            sqlalchemy.event.listen(engine, "before_cursor_execute", _quoted, retval=True)
        return engine

    yield make
    for engine in engines:
        engine.dispose()


def _quoted(_: object, __: object, statement: str, parameters: object, ___: object, ____: bool) -> tuple[str, object]:
    """A test's own statement, with columns that MariaDB has for keywords: partition, offset. None of the package's."""
    if "fencepost" in statement or "`" in statement:
        return statement, parameters
    statement = statement.replace('"offset"', "`offset`")
    return re.sub(r"(?<![.\w:(%])partition(?=[ ,)=]|$)(?! BY)", "`partition`", statement), parameters


@pytest.fixture
def engine(new_engine: Callable[[], sqlalchemy.Engine]) -> sqlalchemy.Engine:
    return new_engine()
