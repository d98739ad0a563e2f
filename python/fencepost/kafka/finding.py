"""Damage of a log that a report lists, where a reader would stop."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """What is wrong with a file."""

    kind: str
    """unreadable, torn, zeros, version, field, offsets, compression, overlap, gap or index; of an
    audit also content (a wrong checksum, what cannot be decompressed) and snapshot."""
    path: str
    """The file, or its URI."""
    position: int | None
    """Where in it, in bytes, where known."""
    reason: str
    """What is wrong, without where."""
