"""Files of a version come to their places in an object store, each by a copy of what a task has prepared, which goes
when the version is done.

Tasks of the job's engine copy and remove, so the driver makes no request for a file. A copy may be made again, by
anyone, and by a task that outlives its driver: it has the same content while the prepared file is there, and finds
nothing to copy once the version is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from fencepost._native import parquet_footer
from fencepost.errors import FencepostError, StoreError
from fencepost.state.commit import Tasks, in_turn
from fencepost.state.scratch import PrefixScratch
from fencepost.state.stores import RemoteStore

COPIES_AT_ONCE = 32
"""Requests that a task has under way."""
COPIES_OF_A_TASK = 256
"""A task has at least so many files: the driver copies fewer sooner than an engine has started a stage."""
COPY_TASKS_MAX = 16
"""So at most 512 copies are under way: stores refuse more than some thousand writes a second beneath a prefix."""
REMOVED_OF_A_TASK = 10_000
"""Some stores remove a thousand objects by a request, others one."""
STREAMED_BYTES = 32 << 20
"""One request of a copy that the store does not make by itself."""


@dataclass(frozen=True, kw_only=True)
class CopyItem:
    """Files that a task brings to their places."""

    names: list[str | None] = field(default_factory=list)
    """Where they were prepared; None: nobody knows any more."""
    targets: list[str] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    footer_crc: list[int | None] = field(default_factory=list)
    """The checksum by which a file that is at its place already is known to be the right one; None: it is copied."""

    def add(self, name: str | None, target: str, size: int, footer_crc: int | None = None) -> None:
        self.names.append(name)
        self.targets.append(target)
        self.bytes.append(size)
        self.footer_crc.append(footer_crc)

    def part(self, first: int, end: int) -> CopyItem:
        return CopyItem(
            names=self.names[first:end],
            targets=self.targets[first:end],
            bytes=self.bytes[first:end],
            footer_crc=self.footer_crc[first:end],
        )


@dataclass(frozen=True, kw_only=True)
class RemoveItem:
    """Objects that a task removes."""

    names: list[str]


@dataclass(frozen=True)
class Placed:
    """What became of files, by their targets."""

    gone: list[str]
    """Files that had to be copied, and are no longer where they were prepared."""
    wrong: list[str]
    """Files that are not at their places with all of their bytes."""


def place_files(
    files: CopyItem, origin: RemoteStore, store: RemoteStore, scratch: PrefixScratch, tasks: Tasks
) -> Placed:
    """Copy files from where they were prepared to their places, by tasks. `scratch`: where their plan may lie."""
    count = len(files.targets)
    size = max(COPIES_OF_A_TASK, -(-count // COPY_TASKS_MAX))
    items = [files.part(first, first + size) for first in range(0, count, size)]
    run = tasks if len(items) > 1 else in_turn
    done = run("copy", partial(copy_files, origin, store), items, scratch=scratch)
    return Placed([it for some in done for it in some.gone], [it for some in done for it in some.wrong])


def clear_folder(store: RemoteStore, folder: str, tasks: Tasks) -> None:
    """Remove everything beneath a folder, by tasks."""
    names = store.list(folder)
    size = max(REMOVED_OF_A_TASK, -(-len(names) // COPY_TASKS_MAX))
    items = [RemoveItem(names=names[first : first + size]) for first in range(0, len(names), size)]
    if len(items) < 2:
        store.delete(names)
        return
    with suppress(Exception):  # another driver may remove all of it, and the plan of these tasks
        tasks("clear", partial(remove_objects, store), items, scratch=PrefixScratch(store, folder))
    store.clear(folder)  # what is left: their plan, or what they could not remove


def remove_objects(store: RemoteStore, item: RemoveItem) -> None:
    """The task. Raises StoreError where the store does not answer."""
    store.delete(item.names)


def copy_files(origin: RemoteStore, store: RemoteStore, item: CopyItem) -> Placed:
    """The task. Raises StoreError where a store does not answer."""
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        columns: tuple[Sequence[object], ...] = (item.names, item.targets, item.bytes, item.footer_crc)
        outcomes = list(pool.map(partial(_copy_one, origin, store), *columns))
    gone = [target for target, (is_gone, _) in zip(item.targets, outcomes, strict=True) if is_gone]
    return Placed(gone, [target for target, (_, is_there) in zip(item.targets, outcomes, strict=True) if not is_there])


def _copy_one(
    origin: RemoteStore, store: RemoteStore, name: str | None, target: str, size: int, footer_crc: int | None
) -> tuple[bool, bool]:
    """(whether the file is gone from where it was prepared, whether it is at its place)."""
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
    """Copy an object of so many bytes to a name of a store, by the store itself where it can.

    Raises FileNotFoundError.
    """
    if store.copy(origin, name, size, target):
        return
    writer = store.writer(target)
    for piece in origin.object(name, size).pieces(STREAMED_BYTES):
        writer.write(piece)
    writer.close()
