"""Damage of a log, for reports that continue where a reader would stop."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A problem with a file."""

    kind: str
    """unreadable, torn, zeros, version, field, offsets, compression, checksum (of a marker), overlap, gap or index.
    Audits also report content (a wrong checksum, or undecodable data) and snapshot."""
    path: str
    """The path or URI of the file."""
    position: int | None
    """The byte position in the file, or None if unknown."""
    reason: str
    """The problem, without the position."""
