"""Counts with their nouns, for texts that people read."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun."""
    return f"{count:,} {noun(count, one, many)}"


def noun(count: int, one: str, many: str | None = None) -> str:
    """Return the form of a word for a count that is shown elsewhere."""
    return one if count == 1 else many or f"{one}s"
