"""Opens the database that a command names by its URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
        help="The database URL, such as postgresql+psycopg://host/name or sqlite:///file.db. Pass a password in the "
        "environment variable, not on the command line.",
    ),
]


@contextmanager
def engine_of(url: str, *, may_make_file: bool = False) -> Iterator[Engine]:
    """Yield the engine of a database URL. Creates an SQLite file only if `may_make_file`."""
    from sqlalchemy import exc

    from fencepost.sql import engines

    try:
        engine = engines.engine_of(url, may_make_file=may_make_file)
    except PolicyError as problem:
        raise typer.BadParameter(f"--database: {problem.message}") from None
    try:
        yield engine
    except exc.DBAPIError as problem:
        shown = engine.url.render_as_string(hide_password=True)
        raise StoreError(f"{shown}: {str(problem.orig).partition(chr(10))[0]}") from problem
    finally:
        engine.dispose()
