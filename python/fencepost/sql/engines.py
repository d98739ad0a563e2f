"""Engines from URLs, for commands and the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, exc, make_url

from fencepost.errors import PolicyError, StoreError

_ANSWER_S = 5
# The supported driver of each database.
_DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql", "mysql": "mariadb+pymysql"}


def engine_of(url: str, *, application: str | None = None, may_make_file: bool = False) -> Engine:
    """Return an engine for an existing database. Connections have a timeout of 5 s.

    Args:
        url: A SQLAlchemy URL.
        application: The name of the sessions in PostgreSQL's lists.
        may_make_file: Whether SQLite may create the file.

    Raises:
        PolicyError: Not a URL, or SQLAlchemy does not support the database. The message does not contain the URL,
            because it may have a password.
        StoreError: The SQLite file does not exist.
    """
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise PolicyError("not a URL such as postgresql+psycopg://host/name") from None
    options: dict[str, Any] = {}
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.get_backend_name(), parsed.drivername))
    if parsed.get_backend_name() == "postgresql":
        options = {"connect_timeout": _ANSWER_S, "tcp_user_timeout": _ANSWER_S * 1000}
        options |= {} if application is None else {"application_name": application}
    elif parsed.get_backend_name() == "mariadb":
        options = {"connect_timeout": _ANSWER_S}
    is_missing = parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file()
    if is_missing and not may_make_file:
        raise StoreError(f"{parsed.database}: this SQLite file does not exist. Check the path")
    try:
        return create_engine(parsed, connect_args=options)
    except exc.NoSuchModuleError as problem:
        raise PolicyError(str(problem)) from None
