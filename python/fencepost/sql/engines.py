"""An engine by a URL, for what is told one: commands and the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, exc, make_url

from fencepost.errors import PolicyError, StoreError

_ANSWER_S = 5
# The one driver of each that is known.
_DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql", "mysql": "mariadb+pymysql"}


def engine_of(url: str, *, application: str | None = None, may_make_file: bool = False) -> Engine:
    """An engine for a database that is there: a file of SQLite is not made, unless it may be.

    `application`: the name under which PostgreSQL lists the sessions. A server that is away is given up in seconds.

    Raises:
        PolicyError: not a URL, or of a database that SQLAlchemy does not know. What was given is not repeated, for
            there may be a password in it.
        StoreError: there is no such file.
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
        raise StoreError(f"{parsed.database}: there is no such file")
    try:
        return create_engine(parsed, connect_args=options)
    except exc.NoSuchModuleError as problem:
        raise PolicyError(str(problem)) from None
