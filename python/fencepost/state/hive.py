"""Columns in folder names: `day=2026-01-01/region=eu/`."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIVE = re.compile(r"([^/=]+)=([^/]*)/")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def hive_folders(path: str) -> str:
    """Return the part of a relative path that contains column values: `day=1/`, with its subfolders."""
    return "".join(match[0] for match in HIVE.finditer(path)) if "=" in path else ""


def hive_values(path: str) -> dict[str, str | None]:
    """Return the column values in the folders of a relative path."""
    if "=" not in path:
        return {}
    found = {unquote(name): unquote(value) for name, value in HIVE.findall(path)}
    return {name: None if value == HIVE_NULL else value for name, value in found.items()}
