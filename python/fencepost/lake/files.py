"""A folder of Parquet files: which files there are, and whether one is still what it was."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fencepost.errors import BatchError, SourceError, StoreError
from fencepost.findings import IGNORED_MAX
from fencepost.state.disk import opened_folder
from fencepost.state.hive import hive_values
from fencepost.state.vectors import Bitmap

T = TypeVar("T")

PAUSES_SECONDS = (0.05, 0.5)
"""Before the second and the third try at a file that storage does not give."""
PERMANENT = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL),
    *(errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
}
"""Errors that no other try can mend."""
Constants = dict[str, int | str | None]
"""Columns whose one value for a whole file stands in the names of its folders."""


class ChangedError(SourceError):
    """A file is no longer what was read of it: the run plans anew."""


@dataclass(frozen=True)
class Files:
    """Some files of a source, column by column: a run may have 100 000 of them."""

    root: str
    paths: list[str] = field(default_factory=list)
    """Relative to the root."""
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    inode: list[int] = field(default_factory=list)
    vectors: list[Bitmap | None] = field(default_factory=list)
    """Which of its rows are gone, as bitmaps (`fencepost.state.vectors`)."""
    ignored: tuple[str, ...] = ()
    """Files beside them that were not looked at for their names."""
    types: Mapping[str, str] = field(default_factory=dict)
    """What the columns are that stand in the names of folders, where the source says so (`constants_of`)."""

    def __len__(self) -> int:
        return len(self.paths)

    def append(self, path: str, stat: os.stat_result | None, vector: Bitmap | None = None) -> None:
        """Add a file; None: it is gone."""
        self.paths.append(path)
        self.vectors.append(vector)
        for column, value in zip((self.bytes, self.mtime_ns, self.inode), _facts_of(stat), strict=True):
            column.append(value)

    def take(self, places: Sequence[int]) -> Files:
        """Those at the given places."""
        return Files(self.root, *([column[place] for place in places] for column in self._columns()))  # type: ignore[arg-type]

    def slice(self, first: int, end: int) -> Files:
        return Files(self.root, *(column[first:end] for column in self._columns()))  # type: ignore[arg-type]

    def extend(self, others: Files) -> None:
        for column, more in zip(self._columns(), others._columns(), strict=True):
            column.extend(more)

    def _columns(self) -> tuple[list[Any], ...]:
        return self.paths, self.bytes, self.mtime_ns, self.inode, self.vectors

    def folders(self) -> list[str]:
        """The folder of each, relative to the root: "" or with a slash at its end. Many files share one."""
        return [path[: path.rfind("/") + 1] for path in self.paths]

    def full_path(self, place: int) -> str:
        return os.path.join(self.root, self.paths[place])

    def identity(self, place: int) -> tuple[int, int]:
        """Bytes and mtime_ns: another one under the same path is another file. Mounts draw inodes anew."""
        return self.bytes[place], self.mtime_ns[place]


def identity_of(stat: os.stat_result) -> tuple[int, int]:
    """See `Files.identity`."""
    return stat.st_size, stat.st_mtime_ns


def _facts_of(stat: os.stat_result | None) -> tuple[int, int, int]:
    return (*identity_of(stat), stat.st_ino) if stat else (0, 0, 0)


# Storage


def stat_of(path: str) -> os.stat_result:
    """The file's, as it is now. Raises FileNotFoundError, and StoreError (path, errno) where storage does not say."""
    with from_storage(path):
        return os.stat(path)


@contextmanager
def from_storage(path: str, what: str = "read", *, other_than: Collection[int] = ()) -> Iterator[None]:
    """Around a call of the system for a source: its errors say nothing of the content.

    `other_than`: errors of something else. Raises StoreError (path, errno), FileNotFoundError.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in other_than:
            raise
        text = f"{path}: cannot be {what}: {error.strerror}. Check the storage and the rights, then run again"
        raise StoreError(text, path=path, errno=error.errno) from error


def persist(attempt: Callable[[], T]) -> T:
    """The result of the first try that has one: what storage does not give now it may give a moment later.

    Raises the StoreError of the last try, and at once what no other try can mend.
    """
    for pause in PAUSES_SECONDS:
        try:
            return attempt()
        except StoreError as error:
            if error.errno in PERMANENT:
                raise
        time.sleep(pause)
    return attempt()


# Listing


def list_files(root: str) -> Files:
    """The `*.parquet` files of a folder and its subfolders, by name; names beginning with `_` or `.` are not looked at.

    Of the others the first IGNORED_MAX are told. Raises SourceError where there is no folder, StoreError where one
    cannot be listed.
    """
    if not os.path.isdir(root):
        raise SourceError(f"{root}: no such folder", path=root)
    # Paths differ, so nothing behind them is compared.
    ignored: list[str] = []
    found = sorted(_walk(root, "", ignored))
    columns = [*map(list, zip(*found, strict=True)), [None] * len(found)] if found else []
    return Files(root, *columns, ignored=tuple(ignored))  # type: ignore[arg-type, misc]


def _walk(folder: str, prefix: str, ignored: list[str]) -> list[tuple[str, int, int, int]]:
    """(path, bytes, mtime_ns, inode) of each file."""
    found, subfolders, others = persist(lambda: _list_folder(folder, prefix))
    ignored += others[: IGNORED_MAX - len(ignored)]
    for name in subfolders:
        found += _walk(f"{folder}/{name}", f"{prefix}{name}/", ignored)
    return found


Listed = tuple[list[tuple[str, int, int, int]], list[str], list[str]]


def _list_folder(folder: str, prefix: str) -> Listed:
    """Files, subfolders, and files of other names; by name within the open folder, not by whole paths."""
    found: list[tuple[str, int, int, int]] = []
    subfolders: list[str] = []
    others: list[str] = []
    try:
        with from_storage(folder, "listed"), opened_folder(folder) as handle, os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(("_", ".")):
                    continue
                _check_name(folder, name)
                if entry.is_dir():
                    subfolders.append(name)
                elif name.endswith(".parquet"):
                    try:
                        found.append((prefix + name, *_facts_of(entry.stat())))
                    except FileNotFoundError:
                        continue  # gone before anybody read it
                elif len(others) < IGNORED_MAX:
                    others.append(prefix + name)
    except FileNotFoundError as error:
        raise SourceError(f"{folder}: vanished while it was listed; run again", path=folder) from error
    return found, subfolders, others


def _check_name(folder: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        path = os.fsencode(f"{folder}/{name}").decode(errors="backslashreplace")
        raise SourceError(
            f"{path}: the name is not UTF-8, so no state can remember it; rename it", path=path
        ) from error


def constants_of(
    files: Files,
    names: Sequence[str],
    types: Mapping[str, str] | None = None,
    bad: dict[str, str] | None = None,
) -> list[Constants]:
    """For each file, which of the columns its folders give.

    `types`: of columns that earlier files had (`Decision.key_types`). A new column is of numbers where the folders of
    all files give numbers, else of text, so that no two files disagree about a type. `bad`: gets full path and reason
    of files whose folders do not fit; without it, that of the first is raised as BatchError.
    """
    folders = files.folders()
    values = {folder: hive_values(folder) for folder in dict.fromkeys(folders)}
    wanted = [name for name in names if any(name in it for it in values.values())]
    known = types or {}
    problems = {folder: it for folder, found in values.items() if (it := _misfit(found, wanted, known)) is not None}
    for place, folder in enumerate(folders):
        if folder in problems:
            name, problem = problems[folder]
            text = f"{files.full_path(place)}: column '{name}': {problem}"
            if bad is None:
                raise BatchError(text, column=name)
            bad[files.full_path(place)] = text
    fit = {folder: it for folder, it in values.items() if folder not in problems}
    numeric = {name: all(_is_number(it[name]) for it in fit.values()) for name in wanted}

    def typed(name: str, value: str | None) -> int | str | None:
        is_integer = known.get(name, "integer") == "integer" and numeric[name]
        return int(value) if value is not None and is_integer else value

    constants = {folder: {name: typed(name, it[name]) for name in wanted} for folder, it in fit.items()}
    return [constants.get(folder, {}) for folder in folders]


def _misfit(found: Mapping[str, str | None], wanted: Sequence[str], known: Mapping[str, str]) -> tuple[str, str] | None:
    """Column and problem of a folder that does not give what it has to."""
    for name in wanted:
        if name not in found:
            return name, "missing in the names of its folders, where other files have it"
        if known.get(name) == "integer" and not _is_number(found[name]):
            return name, (
                f"{found[name]!r} in the names of its folders is no integer of 64 bits without leading zeros, and this "
                "state's keys have integers there since its first rows; text needs a state of its own"
            )
    return None


def _is_number(value: str | None) -> bool:
    """Whether it can be told from the number again: 07 and 7 are two folders."""
    if value is None:
        return True
    return re.fullmatch(r"0|-?[1-9]\d*", value) is not None and -(2**63) <= int(value) < 2**63


@contextmanager
def unchanged(files: Files, place: int) -> Iterator[None]:
    """While a task reads a file: ChangedError if it is not, or not for as long as that, the file it was."""
    path = files.full_path(place)
    try:
        _check_unchanged(files, place, path)
        yield
    except FileNotFoundError as error:
        raise ChangedError(f"{path}: vanished while the job ran; run again", path=path) from error
    _check_unchanged(files, place, path)


def _check_unchanged(files: Files, place: int, path: str) -> None:
    try:
        now = identity_of(persist(lambda: stat_of(path)))
    except FileNotFoundError as error:
        raise ChangedError(f"{path}: vanished while the job ran; run again", path=path) from error
    if now != files.identity(place):
        raise ChangedError(
            f"{path}: changed while it was read (bytes, mtime_ns: {files.identity(place)}, now {now}); run "
            "again when its writer is done",
            path=path,
        )
