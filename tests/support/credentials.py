"""A provider of credentials, as users write one."""

from __future__ import annotations

from typing import Any

asked: list[str] = []


class Provider:
    """Credentials that never expire."""

    def __call__(self) -> dict[str, Any]:
        asked.append("credentials")
        return {"access_key_id": "a", "secret_access_key": "the-secret", "token": None, "expires_at": None}


def broken() -> Provider:
    raise RuntimeError("no token in /var/run")
