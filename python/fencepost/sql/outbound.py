"""Keys for calls that leave the database: the same event asks with the same key, however often it is handled."""

from __future__ import annotations

import hashlib
from uuid import UUID

from fencepost.errors import PolicyError
from fencepost.inputs import is_text

_NAMESPACE = b"fencepost:derived-key:1"
KeyPart = str | bytes | int | UUID
_MARKS: tuple[tuple[type, bytes], ...] = ((UUID, b"u"), (bytes, b"b"), (str, b"s"), (int, b"i"))


def derived_key(event_id: KeyPart | tuple[KeyPart, ...], purpose: str) -> str:
    """An idempotency key for one outbound call of one event: a UUID as text, the same for ever.

    `event_id`: the event's identity as its producer made it, one value or several, as (pid, epoch, partition, seq).
    `purpose`: which of the event's calls ("charge", "mail"): each needs a key of its own.

    It is a UUID of version 8 (RFC 9562) over SHA-256, of each part with its type and length: ("a", "bc") and ("ab",
    "c") differ, 7 and "7" too. Nothing random and no clock goes in, so a retry of the transaction, another process and
    a replay next year ask with the same key; how long the other side remembers it is the other side's.

    Raises:
        PolicyError: a part that is none of these, or no purpose.

    >>> derived_key("order-17", "charge")
    '...'
    """
    if not is_text(purpose) or not purpose:
        raise PolicyError(f"purpose={purpose!r}: a text was expected that names the call")
    parts = event_id if isinstance(event_id, tuple) else (event_id,)
    if not parts:
        raise PolicyError("event_id=(): at least one part was expected")
    digest = hashlib.sha256(_NAMESPACE)
    for part in (purpose, *parts):
        encoded = _encoded(part)
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    number = int.from_bytes(digest.digest()[:16], "big")
    number = number & ~(0xF << 76) | 8 << 76
    return str(UUID(int=number & ~(0b11 << 62) | 0b10 << 62))


def _encoded(part: object) -> bytes:
    for kind, mark in _MARKS:
        if isinstance(part, kind) and not isinstance(part, bool) and (is_text(part) or kind is not str):
            if isinstance(part, UUID):
                return mark + part.bytes
            return mark + (part if isinstance(part, bytes) else str(part).encode())
    raise PolicyError(f"event_id: {part!r} is of type {type(part).__name__}: texts of UTF-8, bytes, integers or UUIDs")
