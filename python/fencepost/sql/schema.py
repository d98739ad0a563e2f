"""The tables of this package as SQL, for a review or for a role with more rights than the application.

The library creates and changes its tables at their first use, if its role may. For other roles, or if every change is
reviewed, `ddl` returns the same SQL, including the version that the library checks. `statements` returns it as separate
statements, for a migration of Alembic or another tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, Dialect, Engine, make_url, select
from sqlalchemy.schema import CreateIndex

from fencepost.errors import PolicyError, SchemaError
from fencepost.sql import leases, requests, staged, transaction_tables
from fencepost.sql.consumers import DEAD_LETTERS_PART
from fencepost.sql.consumers import PART as SINK_PART
from fencepost.sql.database import Database
from fencepost.sql.migrations import SCHEMA, Part, create_sql

PARTS = (SINK_PART, DEAD_LETTERS_PART, requests.PART, transaction_tables.PART, staged.PART, leases.PART)
"""All parts except those of transports, whose tables have the transport's name."""
_URLS = {"postgresql": "postgresql+psycopg://", "sqlite": "sqlite://", "mariadb": "mariadb+pymysql://"}


def dialect_named(name: str) -> Dialect:
    """Return a dialect by its name. "mysql" also means MariaDB, as SQLAlchemy uses this name for some URLs.

    Raises:
        PolicyError: The database is not supported.
    """
    url = _URLS.get("mariadb" if name == "mysql" else name)
    if url is None:
        raise PolicyError(f"dialect {name!r}: expected one of {', '.join(_URLS)}")
    return make_url(url).get_dialect()()


def statements(dialect: str, parts: Iterable[Part] = PARTS, since: Mapping[str, int] | None = None) -> list[str]:
    """Return the statements that create the tables, or upgrade them.

    Args:
        dialect: "postgresql", "sqlite" or "mariadb".
        parts: The parts (groups of tables with a common version, see docs/databases.md) whose tables to create.
        since: The existing version of each part, by its name, such as {"producers": 1}. If passed, the statements
            upgrade these parts to the current version, and create nothing else.

    Raises:
        PolicyError: The dialect is not supported, or `since` names a part that is not in `parts`.
        SchemaError: No migrations lead from that version to the current one.
    """
    of, found = dialect_named(dialect), list(parts)
    unknown = set(since or ()) - {it.name for it in found}
    if unknown:
        raise PolicyError(f"part {min(unknown)!r}: expected one of {', '.join(sorted(it.name for it in found))}")
    if since is None:
        return [create_sql(SCHEMA, of, if_not_exists=True), *(it for part in found for it in _created(part, of))]
    return [it for part in found if part.name in since for it in _upgraded(part, since[part.name], of)]


def ddl(dialect: str, parts: Iterable[Part] = PARTS, since: Mapping[str, int] | None = None) -> str:
    """Return `statements` as a script."""
    return "".join(f"{it};\n" for it in statements(dialect, parts, since))


def _created(part: Part, dialect: Dialect) -> Iterator[str]:
    for table in part.tables.sorted_tables:
        yield create_sql(table, dialect)
        for index in sorted(table.indexes, key=lambda it: str(it.name)):
            yield str(CreateIndex(index).compile(dialect=dialect)).strip()
    yield f"INSERT INTO {SCHEMA.name} (part, version) VALUES ('{part.name}', {part.version})"


def _upgraded(part: Part, found: int, dialect: Dialect) -> Iterator[str]:
    for number, step in part.steps(found):
        yield from step.sql(dialect)
        yield f"UPDATE {SCHEMA.name} SET version = {number} WHERE part = '{part.name}'"


class Found(NamedTuple):
    """The tables of a part in a database."""

    part: str
    found: int | None
    """Their version, or None if there are none."""
    known: int | None
    """The version that this package supports, or None for an unknown part."""
    remedy: str
    """What to do, or "" if the versions are equal."""


def status(engine: Engine, parts: Iterable[Part] = PARTS) -> list[Found]:
    """Return the version of each part in a database, and the version that this package supports. Read-only."""
    database, known = Database(engine), {it.name: it for it in parts}
    found = database.transaction(lambda connection: versions(database, connection))
    names = [*known, *sorted(found.keys() - known.keys())]
    return [_found(name, found.get(name), known.get(name)) for name in names]


def versions(database: Database, connection: Connection) -> dict[str, int]:
    """Return the versions in a database, by part."""
    if not database.has_table(connection, SCHEMA.name):
        return {}
    return {it.part: it.version for it in connection.execute(select(SCHEMA).order_by(SCHEMA.c.part))}


def _found(name: str, found: int | None, part: Part | None) -> Found:
    if part is None:
        return Found(name, found, None, "unknown part: specify its transport, or upgrade fencepost")
    if found is None:
        return Found(name, None, part.version, "no tables yet: created at the first use, or by migrate")
    try:
        steps = part.steps(found)
    except SchemaError as problem:
        return Found(name, found, part.version, problem.message.partition(": ")[2])
    return Found(name, found, part.version, "older: upgraded at the next use, or by migrate" if steps else "")


def migrate(engine: Engine, parts: Iterable[Part] = PARTS) -> None:
    """Create the tables of these parts if they are missing, and upgrade older ones to the current version.

    Raises:
        SchemaError, StoreError: As `Database.create_tables`. Earlier parts are done.
    """
    database = Database(engine)
    for part in parts:
        database.create_tables(part)
