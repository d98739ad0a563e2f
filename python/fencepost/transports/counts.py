"""The number of partitions of a destination: stored on first use, and fixed from then on.

With another number, keys would move to other partitions. A row that is read again, or that a second producer sends,
would go to a partition that does not know its sequence, and would be written twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from fencepost.errors import PolicyError, SourceError
from fencepost.inputs import is_integer
from fencepost.state.stores import Store

VERSION = 1
COUNT_MAX = 2**31 - 1


def checked(place: str, given: int | None, stored: int | None, used: int) -> int:
    """Return the number of partitions of a destination.

    Args:
        place: The destination, for messages.
        given: The caller's number, or None to use the stored one.
        stored: The stored number. None for a new destination, or if an older version wrote it.
        used: The number that the existing data shows, 0 without data. Counts if no number is stored.

    Returns one partition if nothing defines a number. Raises PolicyError if the numbers contradict each other.
    """
    if given is not None and not is_integer(given, 1, COUNT_MAX):
        raise PolicyError(f"partitions={given!r}: expected 1 to {COUNT_MAX}, or None for the count of {place}")
    if stored is not None:
        if given not in (None, stored):
            raise PolicyError(
                f"partitions={given}: {place} has {stored} partitions, which cannot change: with another count, "
                "rows of a key may go to another partition, which does not recognize repeats of its earlier rows. "
                "Leave out partitions=, or write to another place"
            )
        return stored
    if used > (given or 1):
        has = f"partitions={given}" if given is not None else "partitions is not given"
        raise PolicyError(
            f"{has}: {place} stores no partition count, but has rows of partition {used - 1}. Pass the count "
            f"it was written with, at least partitions={used}; the call stores it"
        )
    return given or 1


def stored_in(store: Store, name: str, place: str, given: int | None, used: Callable[[], int]) -> int:
    """Return the number of partitions from an object of a store, which is created if missing.

    `used` is called only to create it. Raises PolicyError as `checked`, SourceError (path) for an invalid object,
    StoreError.
    """
    path = f"{store.uri}/{name}"
    stored = _read(store, name, path)
    count = checked(place, given, stored, 0 if stored is not None else used())
    if stored is None:
        data = json.dumps({"version": VERSION, "partitions": count}).encode()
        if not store.put(name, data):  # another process created it first
            count = checked(place, given, _read(store, name, path), 0)
    return count


def _read(store: Store, name: str, path: str) -> int | None:
    try:
        found = json.loads(store.read(name))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SourceError(f"{path}: not a partition count: {error}", path=path) from error
    version, count = (found.get(it) if isinstance(found, dict) else None for it in ("version", "partitions"))
    if version != VERSION:
        raise SourceError(f"{path}: version {version!r}, but this package reads {VERSION}", path=path)
    if not is_integer(count, 1, COUNT_MAX):
        raise SourceError(f"{path}: partitions {count!r} is not a count: expected 1 to {COUNT_MAX}", path=path)
    return count
