"""Places prepared files of a version at their final locations: by copies in an object store, by renames on a disk.

Tasks of the job's engine copy and remove objects, so the driver makes no requests per file. A copy may be repeated by
anyone, even by a task that outlives its driver: it produces the same content while the prepared file exists, and finds
nothing to copy once the version is finished.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fencepost._native import parquet_footer
from fencepost.errors import FencepostError, StoreError
from fencepost.state.commit import Tasks, in_turn
from fencepost.state.scratch import PrefixScratch
from fencepost.state.stores import RemoteStore

COPIES_AT_ONCE = 32
"""Maximum number of concurrent requests per task."""
COPIES_OF_A_TASK = 256
"""Minimum number of files per task: the driver copies fewer files faster than an engine starts a stage."""
COPY_TASKS_MAX = 16
"""At most 512 concurrent copies: stores limit writes below a prefix to some thousand per second."""
REMOVED_OF_A_TASK = 10_000
"""Some stores remove a thousand objects per request, others one."""
STREAMED_BYTES = 32 << 20
"""Bytes per request of a copy that the store cannot make itself."""


@dataclass(frozen=True, kw_only=True)
class CopyItem:
    """The files that a task copies."""

    names: list[str | None] = field(default_factory=list)
    """Names of the prepared files. None: unknown."""
    targets: list[str] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    footer_crc: list[int | None] = field(default_factory=list)
    """The checksum that identifies a correct file at the final location. None: always copy."""

    def add(self, name: str | None, target: str, size: int, footer_crc: int | None = None) -> None:
        self.names.append(name)
        self.targets.append(target)
        self.bytes.append(size)
        self.footer_crc.append(footer_crc)

    def part(self, first: int, end: int) -> CopyItem:
        return CopyItem(**{name: column[first:end] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class RemoveItem:
    """The objects that a task removes."""

    names: list[str]


@dataclass(frozen=True)
class Placed:
    """Files that were not copied, by final name."""

    gone: list[str]
    """Files that need a copy and whose prepared file is missing."""
    wrong: list[str]
    """Files that are not complete at their final locations."""


def place_files(
    files: CopyItem, origin: RemoteStore, store: RemoteStore, scratch: PrefixScratch, tasks: Tasks
) -> Placed:
    """Copy prepared files to their final locations, by tasks. `scratch`: where the plan of tasks may be written."""
    count = len(files.targets)
    size = max(COPIES_OF_A_TASK, -(-count // COPY_TASKS_MAX))
    items = [files.part(first, first + size) for first in range(0, count, size)]
    run = tasks if len(items) > 1 else in_turn
    done = run("copy", partial(copy_files, origin, store), items, scratch=scratch)
    return Placed([it for some in done for it in some.gone], [it for some in done for it in some.wrong])


def clear_folder(store: RemoteStore, folder: str, tasks: Tasks) -> None:
    """Remove everything below a folder, by tasks."""
    names = store.list(folder)
    size = max(REMOVED_OF_A_TASK, -(-len(names) // COPY_TASKS_MAX))
    items = [RemoveItem(names=names[first : first + size]) for first in range(0, len(names), size)]
    if len(items) < 2:
        store.delete(names)
        return
    with suppress(Exception):  # another driver may remove everything, including the plan of these tasks
        tasks("clear", partial(remove_objects, store), items, scratch=PrefixScratch(store, folder))
    store.clear(folder)  # the rest: their plan, or what they could not remove


def remove_objects(store: RemoteStore, item: RemoveItem) -> None:
    """Remove objects in a task. Raises StoreError if the store is not available."""
    store.delete(item.names)


def copy_files(origin: RemoteStore, store: RemoteStore, item: CopyItem) -> Placed:
    """Copy files in a task. Raises StoreError if a store is not available."""
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        columns: tuple[Sequence[object], ...] = (item.names, item.targets, item.bytes, item.footer_crc)
        outcomes = list(pool.map(partial(_copy_one, origin, store), *columns))
    gone = [target for target, (is_gone, _) in zip(item.targets, outcomes, strict=True) if is_gone]
    return Placed(gone, [target for target, (_, is_there) in zip(item.targets, outcomes, strict=True) if not is_there])


def _copy_one(
    origin: RemoteStore, store: RemoteStore, name: str | None, target: str, size: int, footer_crc: int | None
) -> tuple[bool, bool]:
    """Copy one file. Returns (whether the prepared file is missing, whether the final file is complete)."""
    if footer_crc is not None and _has_footer(store, target, size, footer_crc):
        return False, True
    is_gone = name is None
    if name is not None:
        try:
            copy_object(origin, name, size, store, target)
        except FileNotFoundError:
            is_gone = True
    try:
        return is_gone, store.size(target) == size
    except FileNotFoundError:
        return is_gone, False


def _has_footer(store: RemoteStore, name: str, size: int, footer_crc: int) -> bool:
    try:
        footer = parquet_footer(f"{store.uri}/{name}", object=store.object(name, size))
    except StoreError:
        raise
    except (FencepostError, FileNotFoundError):
        return False
    return footer.footer_crc == footer_crc


def copy_object(origin: RemoteStore, name: str, size: int, store: RemoteStore, target: str) -> None:
    """Copy an object of this size to a name of a store, within the store if possible.

    Raises FileNotFoundError.
    """
    if store.copy(origin, name, size, target):
        return
    writer = store.writer(target)
    for piece in origin.object(name, size).pieces(STREAMED_BYTES):
        writer.write(piece)
    writer.close()


def move_file(source: Path, target: Path, size: int) -> None:
    """Move a file of this size to its final location in a table, unless it is there already.

    Resets its age: cleanup of tables removes old files that no version of the table refers to, and a version may be
    decided long before it is committed. Raises FileNotFoundError if the file is in neither place.
    """
    try:
        os.utime(source)
        os.rename(source, target)
    except FileNotFoundError:
        if not target.exists() or target.stat().st_size != size:
            raise
        os.utime(target)
