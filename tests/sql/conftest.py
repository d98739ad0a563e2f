"""Every test that asks for `engine` runs on SQLite, on PostgreSQL and on MariaDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy
from support.databases import database_url, mariadb, postgres

__all__ = ["database_url", "engine", "mariadb", "new_engine", "postgres"]

# Long, and what they do with the database others do too: on MariaDB `make test-matrix` runs them.
IN_MATRIX = (
    "test_coordinator_faults.py",
    "test_producer_transactions.py",
    "test_requests_http.py",
    "test_staged.py",
    "test_killed_at_each_step",
    "test_random_requests_agree_with_the_state_machine",
    "test_a_consumer_that_is_killed_again_and_again",
    "test_a_long_source_is_read_a_batch_at_a_time",
    "test_tables_of_many_columns_are_compared",
)
# But for these.
NOT_IN_MATRIX = ("test_versions_are_transactions", "test_many_drivers_at_once", "test_tables_that_a_crash_of")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_mariadb = getattr(getattr(item, "callspec", None), "params", {}).get("database_url") == "mariadb"
        named = [it for it in IN_MATRIX if it in item.nodeid]
        if is_mariadb and named and not any(it in item.nodeid for it in NOT_IN_MATRIX):
            item.add_marker(pytest.mark.matrix)


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
