"""The tables of this package as SQL: to review, and to run with rights that an application lacks.

Every table is created and changed by the library itself when it is first used, if its role may. Where it may not, or
where each change goes through a review, `ddl` gives the same SQL, with the version that the library looks for.
`statements` gives it in pieces, for a migration of Alembic or another tool.
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
"""All but those of transports, whose tables are named after another."""
_URLS = {"postgresql": "postgresql+psycopg://", "sqlite": "sqlite://", "mariadb": "mariadb+pymysql://"}


def dialect_named(name: str) -> Dialect:
    """Raises PolicyError for a database that is not known. "mysql" is what SQLAlchemy calls MariaDB by some URLs."""
    url = _URLS.get("mariadb" if name == "mysql" else name)
    if url is None:
        raise PolicyError(f"dialect {name!r}: expected one of {', '.join(_URLS)}")
    return make_url(url).get_dialect()()


def statements(dialect: str, parts: Iterable[Part] = PARTS, since: Mapping[str, int] | None = None) -> list[str]:
    """The statements that make the tables, or with `since` (versions by part) bring those to this version.

    Raises:
        PolicyError: a dialect that is not known, or a part that `since` names and `parts` lacks.
        SchemaError: no migrations lead from that version to this one.
    """
    of, found = dialect_named(dialect), list(parts)
    unknown = set(since or ()) - {it.name for it in found}
    if unknown:
        raise PolicyError(f"part {min(unknown)!r}: expected one of {', '.join(sorted(it.name for it in found))}")
    if since is None:
        return [create_sql(SCHEMA, of, if_not_exists=True), *(it for part in found for it in _created(part, of))]
    return [it for part in found if part.name in since for it in _upgraded(part, since[part.name], of)]


def ddl(dialect: str, parts: Iterable[Part] = PARTS, since: Mapping[str, int] | None = None) -> str:
    """`statements` as a script."""
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
    """Their version; None where there are none."""
    known: int | None
    """The version that this package knows; None for a part of a newer package."""
    remedy: str
    """What to do; "" where there is nothing to do."""


def status(engine: Engine, parts: Iterable[Part] = PARTS) -> list[Found]:
    """The version of each part in a database, beside the one that this package knows. Changes nothing."""
    database, known = Database(engine), {it.name: it for it in parts}
    found = database.transaction(lambda connection: versions(database, connection))
    names = [*known, *sorted(found.keys() - known.keys())]
    return [_found(name, found.get(name), known.get(name)) for name in names]


def versions(database: Database, connection: Connection) -> dict[str, int]:
    """The versions that a database has, by part."""
    if not database.has_table(connection, SCHEMA.name):
        return {}
    return {it.part: it.version for it in connection.execute(select(SCHEMA).order_by(SCHEMA.c.part))}


def _found(name: str, found: int | None, part: Part | None) -> Found:
    if part is None:
        return Found(name, found, None, "nothing is known of it here: name its transport, or upgrade fencepost")
    if found is None:
        return Found(name, None, part.version, "no tables yet: they are made at the first use, or by migrate")
    try:
        steps = part.steps(found)
    except SchemaError as problem:
        return Found(name, found, part.version, problem.message.partition(": ")[2])
    return Found(name, found, part.version, "older: it is upgraded at the next use, or by migrate" if steps else "")


def migrate(engine: Engine, parts: Iterable[Part] = PARTS) -> None:
    """Makes the tables of these parts where they are missing, and brings older ones to the version known here.

    Raises SchemaError, StoreError: as `Database.create_tables`; parts before it are done.
    """
    database = Database(engine)
    for part in parts:
        database.create_tables(part)
