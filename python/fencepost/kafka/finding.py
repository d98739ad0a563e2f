"""Damage of a log, for reports that continue where a reader would stop."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A problem with a file."""

    kind: str
    """One of "unreadable", "torn" (ends inside a batch), "zeros" (only zeros up to the end), "version" (not supported),
    "field" (an impossible length, count or delta), "offsets" (they do not increase), "compression" (unknown),
    "checksum" (of a marker), "overlap" (the segment begins before the end of the previous one), "gap" (offsets in no
    segment) or "index" (contradicts the log). Audits also report "content" (a wrong checksum, or data that cannot be
    decoded) and "snapshot"."""
    path: str
    """The path or URI of the file."""
    position: int | None
    """The byte position in the file, or None if unknown."""
    reason: str
    """The problem, without the position."""
