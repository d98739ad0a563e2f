"""Queries storage file by file: in an object store, each query is a request.

Tasks of the job's engine query many files. The driver queries a few, because starting a stage takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fencepost._native import ParquetFooter, parquet_footer
from fencepost.errors import FencepostError, SourceError, StoreError
from fencepost.lake.files import Facts, Files
from fencepost.lake.storage import Storage, retry

R = TypeVar("R")

ASKED_AT_ONCE = 32
"""Maximum number of concurrent requests per task."""
ASKED_OF_A_TASK = 1_024
"""Number of files per task. Fewer files are queried faster than an engine starts a stage."""
ROWS_FIRST = 32
"""Number of files whose rows are counted first. It doubles with each step."""

UNREADABLE_CRC = -2
"""In place of the checksum of an unreadable footer."""

Ask = Callable[[Callable[[Any], list[Any]], Sequence[Any]], list[Any]]
"""Runs a task function on items and returns all results in one list: `in_driver`, or a function that runs a stage."""


@dataclass(frozen=True, kw_only=True)
class PathItem:
    """The files of a task, by full path."""

    paths: list[str]


@dataclass(frozen=True, kw_only=True)
class FileItem:
    """The listed files of a task."""

    files: Files


def in_driver(work: Callable[[Any], list[Any]], items: Sequence[Any]) -> list[Any]:
    """Run without tasks."""
    return [it for item in items for it in work(item)]


# Driver


def ask_facts(ask: Ask, storage: Storage, paths: Sequence[str]) -> list[Facts | None]:
    """Return the current facts of files; None for a deleted file."""
    return ask(partial(facts_of, storage), [PathItem(paths=list(some)) for some in _parts(paths)])


def ask_footers(ask: Ask, storage: Storage, files: Files, *, as_listed: bool = False) -> list[int | None]:
    """Return the checksums of footers: see `footers` and `footers_as_listed`."""
    work = footers_as_listed if as_listed else footers
    return ask(partial(work, storage), [FileItem(files=files.take(some)) for some in _parts(range(len(files)))])


def ask_rows(ask: Ask, storage: Storage, files: Files, places: Sequence[int]) -> Iterator[int]:
    """Yield the number of rows of each file, lazily; 0 for an unreadable file."""
    first, count = 0, ROWS_FIRST
    while first < len(places):
        some = places[first : first + count]
        yield from ask(partial(rows_of, storage), [FileItem(files=files.take(part)) for part in _parts(some)])
        first, count = first + count, 2 * count


def _parts(many: Sequence[R]) -> Iterator[Sequence[R]]:
    return (many[first : first + ASKED_OF_A_TASK] for first in range(0, len(many), ASKED_OF_A_TASK))


# Tasks. All raise StoreError if storage fails.


def facts_of(storage: Storage, item: PathItem) -> list[Facts | None]:
    """See `ask_facts`."""

    def facts(path: str) -> Facts | None:
        try:
            return retry(lambda: storage.stat(path))
        except FileNotFoundError:
            return None

    return _each(facts, item.paths)


def footers(storage: Storage, item: FileItem) -> list[int | None]:
    """Return the checksum of each file's footer; None for a deleted file, UNREADABLE_CRC without a footer."""
    return _each(lambda place: _footer(storage, item.files, place), range(len(item.files)))


def footers_as_listed(storage: Storage, item: FileItem) -> list[int | None]:
    """As `footers`, with UNREADABLE_CRC also for a file that changed since listing."""

    def footer(place: int) -> int | None:
        found = _footer(storage, item.files, place)
        return found if found is not None and _is_as_listed(storage, item.files, place) else UNREADABLE_CRC

    return _each(footer, range(len(item.files)))


def rows_of(storage: Storage, item: FileItem) -> list[int]:
    """See `ask_rows`."""

    def rows(place: int) -> int:
        try:
            return footer_of(storage, item.files, place).rows
        except StoreError:
            raise
        except (FencepostError, FileNotFoundError):
            return 0  # the scan reports the reason

    return _each(rows, range(len(item.files)))


def footer_of(storage: Storage, files: Files, place: int) -> ParquetFooter:
    """Read the footer of a listed file."""
    path = files.full_path(place)
    return retry(lambda: parquet_footer(path, object=storage.object(path, files.facts(place))))


def _each(ask: Callable[[Any], R], many: Sequence[Any]) -> list[R]:
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, many))


def _footer(storage: Storage, files: Files, place: int) -> int | None:
    try:
        return footer_of(storage, files, place).footer_crc
    except FileNotFoundError:
        return None
    except SourceError:
        return UNREADABLE_CRC


def _is_as_listed(storage: Storage, files: Files, place: int) -> bool:
    try:
        return storage.stat(files.full_path(place)) == files.facts(place)
    except FileNotFoundError:
        return False
