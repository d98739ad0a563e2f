"""Versions of tables: what leads from one to the next, and what to do where the database has another.

The version of each part is a row of `fencepost_schema`. A migration is SQL, so that a person can review it and another
tool can run it (`fencepost sql ddl`). It runs in one transaction with the new number, but on MariaDB, where each
statement that changes a table commits by itself: there every statement must bear to run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Column, Connection, Dialect, Integer, MetaData, String, Table, text
from sqlalchemy.schema import CreateTable

from fencepost.errors import SchemaError
from fencepost.sql.columns import INNODB, key_text

SCHEMA = Table(
    "fencepost_schema",
    MetaData(),
    Column("part", key_text(String(64), 256), primary_key=True),
    Column("version", Integer, nullable=False),
    **INNODB,
)


@dataclass(frozen=True)
class Migration:
    """Leads to a version from the one before it. `check` raises SchemaError where it cannot.

    Names in `statements` that need quotes have double quotes, which occur nowhere else in them. `tables` are new with
    this version.
    """

    statements: tuple[str, ...] = ()
    check: Callable[[Connection], None] | None = None
    tables: tuple[Table, ...] = ()

    def run(self, connection: Connection) -> None:
        """Changes the tables; the version is the caller's to write."""
        if self.check is not None:
            self.check(connection)
        for statement in self.sql(connection.dialect):
            connection.execute(text(statement.replace(":", "\\:")))  # names alone have colons

    def sql(self, dialect: Dialect) -> list[str]:
        """The statements, with names in the quotes of a dialect."""
        made = [create_sql(it, dialect, if_not_exists=True) for it in self.tables]
        return made + [it.replace('"', dialect.identifier_preparer.initial_quote) for it in self.statements]


def create_sql(table: Table, dialect: Dialect, *, if_not_exists: bool = False) -> str:
    """The statement that makes a table, as a person reads it."""
    compiled = str(CreateTable(table, if_not_exists=if_not_exists).compile(dialect=dialect))
    return "\n".join(line.rstrip().replace("\t", "    ") for line in compiled.strip().splitlines() if line.strip())


@dataclass(frozen=True)
class Part:
    """Tables that have one version together. `migrations`: by the version that each leads to."""

    name: str
    version: int
    tables: MetaData
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The oldest version from which migrations lead to this one."""
        found = self.version
        while found in self.migrations:
            found -= 1
        return found

    def steps(self, found: int) -> list[tuple[int, Migration]]:
        """What brings tables of version `found` to this one, with the version that each leads to.

        Raises SchemaError, with what to do, for a newer version, and an older one that no migration begins with.
        """
        about = f"the tables of {self.name!r} have version {found}, this package knows {self.version}: "
        if found > self.version:
            raise SchemaError(
                f"{about}upgrade fencepost here, as where the tables were upgraded. Nothing has changed; an older "
                "fencepost cannot use them, and there is no way back but a backup"
            )
        if found < self.oldest:
            raise SchemaError(
                f"{about}they are older than it can read. Upgrade by way of a fencepost that knows version "
                f"{self.oldest}, or begin with new tables. Nothing has changed"
            )
        return [(number, self.migrations[number]) for number in range(found + 1, self.version + 1)]
