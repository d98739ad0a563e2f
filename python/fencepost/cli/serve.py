"""`fencepost serve`: periodic maintenance of a database, and HTTP endpoints for monitoring."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer


def serve_command(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file; see docs/serve.md.", exists=True, dir_okay=False)
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="FENCEPOST_DATABASE",
            help="The database URL, such as postgresql+psycopg://host/name. Overrides the file. Pass a password in "
            "the environment variable, not on the command line.",
        ),
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The address of the HTTP server.")] = None,
) -> None:
    """Complete decided transactions, abort abandoned ones, apply retention, and serve /metrics, /healthz and /readyz.

    Runs until SIGTERM or Ctrl-C. Any number of instances may run on one database.
    """
    from fencepost.daemon import Daemon, Settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    Daemon(Settings.read(config, database=database, listen=listen)).run()
