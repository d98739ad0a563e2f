"""The database that a command is given, by its URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.errors import PolicyError, StoreError

if TYPE_CHECKING:
    from sqlalchemy import Engine

Database = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="FENCEPOST_DATABASE",
        help="The database of the producers, such as postgresql+psycopg://host/name or sqlite:///file.db. Put a "
        "password into the environment variable, not on the command line.",
    ),
]
# The one driver of each that is known.
_DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql", "mysql": "mariadb+pymysql"}


@contextmanager
def engine_of(url: str, *, may_make_file: bool = False) -> Iterator[Engine]:
    """The database of this URL, while the command runs. A file that is not there is not made, unless it may be."""
    from sqlalchemy import create_engine, exc, make_url

    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        # Without what it says: there may be a password in it.
        raise typer.BadParameter("--database: not a URL such as postgresql+psycopg://host/name") from None
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.get_backend_name(), parsed.drivername))
    is_missing = parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file()
    if is_missing and not may_make_file:
        raise StoreError(f"{parsed.database}: there is no such file")
    try:
        engine = create_engine(parsed)
    except exc.NoSuchModuleError as problem:
        raise PolicyError(f"--database: {problem}") from None
    try:
        yield engine
    except exc.DBAPIError as problem:
        shown = parsed.render_as_string(hide_password=True)
        raise StoreError(f"{shown}: {str(problem.orig).partition(chr(10))[0]}") from problem
    finally:
        engine.dispose()
