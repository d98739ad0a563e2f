"""`fencepost serve`: what has to be done in a database now and then, and what monitoring asks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer


def serve_command(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file: see docs/serve.md.", exists=True, dir_okay=False)
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="FENCEPOST_DATABASE",
            help="The database, such as postgresql+psycopg://host/name. Takes precedence over the file. Put a password "
            "into the environment variable, not on the command line.",
        ),
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to answer HTTP.")] = None,
) -> None:
    """Complete and abort what producers leave, forget what is old, and answer /metrics, /healthz and /readyz.

    Runs until SIGTERM or Ctrl-C. Any number may run on one database.
    """
    from fencepost.daemon import Daemon, Settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    Daemon(Settings.read(config, database=database, listen=listen)).run()
