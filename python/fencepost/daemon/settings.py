"""Settings of a daemon, read from a TOML file.

    database = "postgresql+psycopg://fencepost@db/shop"
    listen = "0.0.0.0:9464"

    [recover]
    every = "10s"
    [recover.routes]
    clicks = { table = "clicks" }

    [claims.keep]
    billing = "30d"

Every key except `database` has a default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fencepost.errors import PolicyError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
ROUTE_KINDS = ("table", "landing")


@dataclass(frozen=True)
class Settings:
    """The tasks of a daemon and their intervals. Durations in the file are texts: "500ms", "10s", "5m", "1h", "7d".

    | section | fields | task |
    |---|---|---|
    | `[recover]` | `recover_every_ms`, `routes` | complete or abort transactions |
    | `[expire]` | `expire_every_ms`, `ids_after_ms`, `tombstones_after_ms` | expire ids, delete tombstones |
    | `[claims]` | `claims_every_ms`, `claims_keep_ms` | delete old claims of the consumers in `claims_keep_ms` |
    | `[decisions]` | `decisions_every_ms`, `decisions_keep_ms` | delete old decisions; None keeps all |
    | `[requests]` | `requests_every_ms` | delete expired requests |

    `routes` maps topics to outputs: `{ table = "..." }` for a table of the same database that producers write to, `{
    landing = "..." }` for a landing folder, or "decisions" for readers that query decisions. `lease_ms`: another daemon
    takes over a task after this time without a renewal.
    """

    database: str
    listen: str = "127.0.0.1:9464"
    lease_ms: int = 30_000
    recover_every_ms: int = 10_000
    routes: Mapping[str, Any] = field(default_factory=dict)
    expire_every_ms: int = _HOUR_MS
    ids_after_ms: int = 7 * _DAY_MS
    tombstones_after_ms: int = 365 * _DAY_MS
    claims_every_ms: int = _HOUR_MS
    claims_keep_ms: Mapping[str, int] = field(default_factory=dict)
    decisions_every_ms: int = _HOUR_MS
    decisions_keep_ms: int | None = None
    requests_every_ms: int = _MINUTE_MS

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of `listen`. Raises PolicyError."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise PolicyError(f"listen={self.listen!r}: expected host:port, such as '127.0.0.1:9464'")
        return host.strip("[]"), int(port)

    @staticmethod
    def read(path: Path | None, **given: str | None) -> Settings:
        """Read the settings of a file. Values in `given` that are not None take precedence.

        Raises PolicyError that names a key that is unknown, missing or invalid. Raises OSError.
        """
        found: dict[str, Any] = {}
        if path is not None:
            try:
                found = _of_document(tomllib.loads(path.read_text("utf-8")))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise PolicyError(f"{path}: not a TOML file: {error}") from error
            except PolicyError as error:
                raise PolicyError(f"{path}: {error.message}") from None
        found |= {name: value for name, value in given.items() if value is not None}
        if "database" not in found:
            raise PolicyError("database: missing; set it in the file or with --database")
        settings = Settings(**found)
        settings.address  # noqa: B018
        return settings

    def with_port(self, port: int) -> Settings:
        """Return a copy with another port."""
        return replace(self, listen=f"{self.address[0]}:{port}")


_KEYS = {
    ("database",): ("database", "text"),
    ("listen",): ("listen", "text"),
    ("lease",): ("lease_ms", "duration"),
    ("recover", "every"): ("recover_every_ms", "duration"),
    ("recover", "routes"): ("routes", "routes"),
    ("expire", "every"): ("expire_every_ms", "duration"),
    ("expire", "ids_after"): ("ids_after_ms", "duration"),
    ("expire", "tombstones_after"): ("tombstones_after_ms", "duration"),
    ("claims", "every"): ("claims_every_ms", "duration"),
    ("claims", "keep"): ("claims_keep_ms", "durations"),
    ("decisions", "every"): ("decisions_every_ms", "duration"),
    ("decisions", "keep"): ("decisions_keep_ms", "duration"),
    ("requests", "every"): ("requests_every_ms", "duration"),
}
"""For each key of the file: its field and its parser."""
_SECTIONS = {key[0] for key in _KEYS if len(key) == 2}


def _of_document(document: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for name, value in document.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            flat |= {(name, key): it for key, it in value.items()}
        else:
            flat[name,] = value
    found = {}
    for key, value in flat.items():
        if key not in _KEYS:
            known = ", ".join(".".join(it) for it in _KEYS)
            raise PolicyError(f"{'.'.join(key)}: unknown key; known keys are {known}")
        name, kind = _KEYS[key]
        found[name] = _READERS[kind](".".join(key), value)
    return found


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise PolicyError(f"{key}={value!r}: expected a text")
    return value


def _duration(key: str, value: Any) -> int:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[1]) == 0:
        raise PolicyError(f"{key}={value!r}: expected a duration, such as '500ms', '10s', '5m', '1h' or '7d'")
    return int(found[1]) * _UNITS_MS[found[2]]


def _durations(key: str, value: Any) -> dict[str, int]:
    return {name: _duration(f"{key}.{name}", it) for name, it in _table(key, value).items()}


def _routes(key: str, value: Any) -> dict[str, Any]:
    for topic, route in _table(key, value).items():
        is_one = isinstance(route, Mapping) and len(route) == 1 and next(iter(route)) in ROUTE_KINDS
        if not is_one and route != "decisions":
            raise PolicyError(
                f'{key}.{topic}={route!r}: expected {{ table = "..." }}, {{ landing = "..." }} or "decisions"'
            )
    return dict(value)


def _table(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PolicyError(f"{key}={value!r}: expected a table, which begins with the line [{key}]")
    return value


_READERS: Mapping[str, Any] = {"text": _text, "duration": _duration, "durations": _durations, "routes": _routes}
