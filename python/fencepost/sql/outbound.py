"""Idempotency keys for outbound calls: an event always uses the same key, however often it is handled."""

from __future__ import annotations

import hashlib
from uuid import UUID

from fencepost.errors import PolicyError
from fencepost.inputs import is_text

_NAMESPACE = b"fencepost:derived-key:1"
KeyPart = str | bytes | int | UUID
_MARKS: tuple[tuple[type, bytes], ...] = ((UUID, b"u"), (bytes, b"b"), (str, b"s"), (int, b"i"))


def derived_key(event_id: KeyPart | tuple[KeyPart, ...], purpose: str) -> str:
    """Return a deterministic idempotency key for one outbound call of one event: a UUID as text.

    The key is a UUID of version 8 (RFC 9562) from the SHA-256 of each part with its type and length. So ("a", "bc") and
    ("ab", "c") have different keys, and so have 7 and "7". It contains neither random values nor a time. A retry,
    another process and a later replay use the same key. The receiver decides how long it remembers a key.

    Args:
        event_id: The event's identity from its producer: one value or several, such as (pid, epoch, partition, seq).
        purpose: The name of the call among the event's calls ("charge", "mail"). Each call needs its own key.

    Raises:
        PolicyError: A part has another type, there are no parts, or there is no purpose.

    >>> derived_key("order-17", "charge")
    '...'
    """
    if not is_text(purpose) or not purpose:
        raise PolicyError(f"purpose={purpose!r}: expected a text that names the call")
    parts = event_id if isinstance(event_id, tuple) else (event_id,)
    if not parts:
        raise PolicyError("event_id=(): expected at least one part")
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
    raise PolicyError(
        f"event_id: {part!r} is of type {type(part).__name__}. Expected UTF-8 text, bytes, integers or UUIDs"
    )
