"""Versions of tables and the migrations between them.

The version of each part is a row of `fencepost_schema`. A migration is SQL, so that a person can review it and another
tool can run it (`fencepost sql ddl`). One transaction runs the migration and stores the new version. On MariaDB each
statement that changes a table commits by itself, so every statement must be idempotent.
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
    """The migration to a version from the one before it.

    Attributes:
        statements: SQL. Names are in double quotes if needed; double quotes occur nowhere else.
        check: Raises SchemaError if the migration is not possible.
        tables: The new tables of this version.
    """

    statements: tuple[str, ...] = ()
    check: Callable[[Connection], None] | None = None
    tables: tuple[Table, ...] = ()

    def run(self, connection: Connection) -> None:
        """Change the tables. The caller stores the version."""
        if self.check is not None:
            self.check(connection)
        for statement in self.sql(connection.dialect):
            connection.execute(text(statement.replace(":", "\\:")))  # Only names contain colons.

    def sql(self, dialect: Dialect) -> list[str]:
        """Return the statements, with the quotes of a dialect."""
        created = [create_sql(it, dialect, if_not_exists=True) for it in self.tables]
        statements = self.statements
        if dialect.name in ("mariadb", "mysql"):
            # An upgrade that was interrupted before the version was stored repeats the statement.
            statements = tuple(it.replace(" ADD COLUMN ", " ADD COLUMN IF NOT EXISTS ") for it in statements)
        return created + [it.replace('"', dialect.identifier_preparer.initial_quote) for it in statements]


def create_sql(table: Table, dialect: Dialect, *, if_not_exists: bool = False) -> str:
    """Return a readable CREATE TABLE statement."""
    compiled = str(CreateTable(table, if_not_exists=if_not_exists).compile(dialect=dialect))
    return "\n".join(line.rstrip().replace("\t", "    ") for line in compiled.strip().splitlines() if line.strip())


@dataclass(frozen=True)
class Part:
    """Tables with a common version. `migrations`: by the version that each leads to."""

    name: str
    version: int
    tables: MetaData
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The oldest version from which migrations lead to the current one."""
        found = self.version
        while found in self.migrations:
            found -= 1
        return found

    def steps(self, found: int) -> list[tuple[int, Migration]]:
        """Return the migrations from version `found` to the current one, each with the version that it leads to.

        Raises:
            SchemaError: The version is newer than the current one, or older than the first migration.
        """
        about = f"the tables of {self.name!r} have version {found}, but this package supports {self.version}: "
        if found > self.version:
            raise SchemaError(
                f"{about}upgrade fencepost to the version that upgraded the tables. Nothing has changed. An older "
                "fencepost cannot use the tables, and only a backup restores their old version"
            )
        if found < self.oldest:
            raise SchemaError(
                f"{about}they are too old for it. Upgrade first with a fencepost that supports version "
                f"{self.oldest}. Nothing has changed"
            )
        return [(number, self.migrations[number]) for number in range(found + 1, self.version + 1)]
