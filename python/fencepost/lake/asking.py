"""What storage is asked of files one by one: each question is a request, where they are in an object store.

Many files are asked for by tasks of the job's engine, few of them here, as a stage takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fencepost._native import parquet_footer
from fencepost.errors import FencepostError, SourceError, StoreError
from fencepost.lake.files import Facts, Files
from fencepost.lake.storage import Storage, persist

R = TypeVar("R")

ASKED_AT_ONCE = 32
"""Requests that a task has under way."""
ASKED_OF_A_TASK = 1_024
"""Files of a task: fewer are asked for sooner than an engine has started a stage."""
ROWS_FIRST = 32
"""Files whose rows are counted first; then twice as many, and so on."""

UNREADABLE_CRC = -2
"""Takes the place of the checksum of a footer that cannot be read."""

Ask = Callable[[Callable[[Any], list[Any]], Sequence[Any]], list[Any]]
"""The answers of a task's function to some items, all in one list. `here`, or what runs a stage."""


@dataclass(frozen=True, kw_only=True)
class PathItem:
    """Files of a task, by their full paths."""

    paths: list[str]


@dataclass(frozen=True, kw_only=True)
class FileItem:
    """Files of a task that were looked at."""

    files: Files


def here(work: Callable[[Any], list[Any]], items: Sequence[Any]) -> list[Any]:
    """`Ask` without tasks."""
    return [it for item in items for it in work(item)]


# Driver


def ask_facts(ask: Ask, storage: Storage, paths: Sequence[str]) -> list[Facts | None]:
    """What files are known by now; None for one that is gone."""
    return ask(partial(facts_of, storage), [PathItem(paths=list(some)) for some in _parts(paths)])


def ask_footers(ask: Ask, storage: Storage, files: Files, *, as_listed: bool = False) -> list[int | None]:
    """The checksums of footers: see `footers`, or `footers_as_listed`."""
    work = footers_as_listed if as_listed else footers
    return ask(partial(work, storage), [FileItem(files=files.take(some)) for some in _parts(range(len(files)))])


def ask_rows(ask: Ask, storage: Storage, files: Files, places: Sequence[int]) -> Iterator[int]:
    """How many rows each file at these places has, as far as somebody takes them; 0 of one that cannot be read."""
    first, count = 0, ROWS_FIRST
    while first < len(places):
        some = places[first : first + count]
        yield from ask(partial(rows_of, storage), [FileItem(files=files.take(part)) for part in _parts(some)])
        first, count = first + count, 2 * count


def _parts(many: Sequence[R]) -> Iterator[Sequence[R]]:
    return (many[first : first + ASKED_OF_A_TASK] for first in range(0, len(many), ASKED_OF_A_TASK))


# Tasks. All raise StoreError where storage does not give a file.


def facts_of(storage: Storage, item: PathItem) -> list[Facts | None]:
    """See `ask_facts`."""

    def look(path: str) -> Facts | None:
        try:
            return persist(lambda: storage.look(path))
        except FileNotFoundError:
            return None

    return _each(look, item.paths)


def footers(storage: Storage, item: FileItem) -> list[int | None]:
    """The checksum of each file's footer; None for a file that is gone, UNREADABLE_CRC where there is none."""
    return _each(lambda place: _footer(storage, item.files, place), range(len(item.files)))


def footers_as_listed(storage: Storage, item: FileItem) -> list[int | None]:
    """The same; UNREADABLE_CRC also for a file that is not the one that was listed."""

    def footer(place: int) -> int | None:
        found = _footer(storage, item.files, place)
        return found if found is not None and _is_as_listed(storage, item.files, place) else UNREADABLE_CRC

    return _each(footer, range(len(item.files)))


def rows_of(storage: Storage, item: FileItem) -> list[int]:
    """See `ask_rows`."""

    def rows(place: int) -> int:
        path = item.files.full_path(place)
        try:
            return persist(lambda: parquet_footer(path, object=storage.object(path, item.files.facts(place)))).rows
        except StoreError:
            raise
        except (FencepostError, FileNotFoundError):
            return 0  # the scan will say what is wrong

    return _each(rows, range(len(item.files)))


def _each(ask: Callable[[Any], R], many: Sequence[Any]) -> list[R]:
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, many))


def _footer(storage: Storage, files: Files, place: int) -> int | None:
    path = files.full_path(place)
    try:
        return persist(lambda: parquet_footer(path, object=storage.object(path, files.facts(place)))).footer_crc
    except FileNotFoundError:
        return None
    except SourceError:
        return UNREADABLE_CRC


def _is_as_listed(storage: Storage, files: Files, place: int) -> bool:
    try:
        return storage.look(files.full_path(place)) == files.facts(place)
    except FileNotFoundError:
        return False
