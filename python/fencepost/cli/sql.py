"""`fencepost sql`: prints the schema of this package's tables, shows its version, and upgrades it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.cli.databases import Database, engine_of
from fencepost.cli.terminal import EXIT_FINDINGS, AsJson, show_table

if TYPE_CHECKING:
    from fencepost.sql.migrations import Part

sql_app = typer.Typer(
    help="Create, inspect and upgrade fencepost's tables in a database.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Transports = Annotated[
    list[str] | None,
    typer.Option(
        "--transport", metavar="TABLE", help="Include the tables that belong to this table of a SqlTransport."
    ),
]


@sql_app.command("ddl")
def ddl_command(
    dialect: Annotated[str, typer.Option(metavar="NAME", help="The SQL dialect: postgresql, sqlite or mariadb.")],
    transports: Transports = None,
    since: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="PART=VERSION",
            help="Instead print the upgrade of this part (such as producers=1) from this version.",
        ),
    ] = None,
) -> None:
    """Print the SQL that creates the tables, for review and for execution by a role with the necessary rights."""
    from fencepost.sql.schema import ddl

    versions = {name: int(version) for name, version in map(_part_and_version, since or ())}
    print(ddl(dialect, _parts(transports), versions if since else None), end="")


@sql_app.command("status")
def status_command(
    database: Database,
    transports: Transports = None,
    as_json: AsJson = False,
) -> None:
    """Show the schema version of each part (a group of tables, such as producers). Exit code 3 if one is older, newer
    or unknown to this fencepost."""
    from fencepost.sql.schema import status

    with engine_of(database) as engine:
        found = status(engine, _parts(transports))
    if as_json:
        print(json.dumps([it._asdict() for it in found]))
    else:
        show_table(
            ("part", "found", "known", "to do"),
            ((it.part, _shown(it.found), _shown(it.known), it.remedy) for it in found),
        )
    if any(it.found is not None and it.remedy for it in found):
        raise typer.Exit(EXIT_FINDINGS)


@sql_app.command("migrate")
def migrate_command(database: Database, transports: Transports = None) -> None:
    """Create missing tables and upgrade older ones to the version of this fencepost."""
    from fencepost.sql.schema import migrate, status

    parts = _parts(transports)
    with engine_of(database, may_make_file=True) as engine:
        migrate(engine, parts)
        for it in status(engine, parts):
            print(f"{it.part}: version {_shown(it.found)}")


def _part_and_version(text: str) -> tuple[str, str]:
    name, _, version = text.rpartition("=")
    if not name or not version.isdecimal():
        raise typer.BadParameter(f"--from {text!r}: expected PART=VERSION, such as producers=1")
    return name, version


def _parts(transports: list[str] | None) -> list[Part]:
    from fencepost.sql.schema import PARTS
    from fencepost.transports.sql import part_beside

    return [*PARTS, *map(part_beside, transports or ())]


def _shown(version: int | None) -> str:
    return "-" if version is None else str(version)
