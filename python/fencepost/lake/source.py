"""A folder of Parquet files: which files there are, and whether one is still what it was."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fencepost.errors import BatchError, SourceError
from fencepost.state.disk import opened_folder
from fencepost.state.hive import hive_values
from fencepost.state.vectors import Bitmap

IGNORED_MAX = 100
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
        for column, value in zip((self.bytes, self.mtime_ns, self.inode), identity_of(stat), strict=True):
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

    def identity(self, place: int) -> tuple[int, int, int]:
        """Bytes, mtime_ns and inode: another one under the same path is another file."""
        return self.bytes[place], self.mtime_ns[place], self.inode[place]


def identity_of(stat: os.stat_result | None) -> tuple[int, int, int]:
    """See `Files.identity`."""
    return (stat.st_size, stat.st_mtime_ns, stat.st_ino) if stat else (0, 0, 0)


def list_files(root: str) -> Files:
    """The `*.parquet` files of a folder and its subfolders, by name; names beginning with `_` or `.` are not looked at.

    Of the others the first IGNORED_MAX are told. Raises SourceError where there is no folder, or one that cannot be
    listed.
    """
    if not os.path.isdir(root):
        raise SourceError(f"{root}: no such folder", path=root)
    # Paths differ, so nothing behind them is compared.
    ignored: list[str] = []
    found = sorted(_walk(root, "", ignored))
    columns = [*map(list, zip(*found, strict=True)), [None] * len(found)] if found else []
    return Files(root, *columns, ignored=tuple(ignored))  # type: ignore[arg-type, misc]


def _walk(folder: str, prefix: str, ignored: list[str]) -> list[tuple[str, int, int, int]]:
    """(path, bytes, mtime_ns, inode) of each file; looked at by name within its open folder, not by its whole path."""
    found, subfolders = [], []
    try:
        with opened_folder(folder) as handle, os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(("_", ".")):
                    continue
                _check_name(folder, name)
                if entry.is_dir():
                    subfolders.append(name)
                elif name.endswith(".parquet"):
                    try:
                        found.append((prefix + name, *identity_of(entry.stat())))
                    except FileNotFoundError:
                        continue  # gone before anybody read it
                elif len(ignored) < IGNORED_MAX:
                    ignored.append(prefix + name)
    except OSError as error:
        raise SourceError(f"{folder}: cannot be listed: {error.strerror}", path=folder) from error
    for name in subfolders:
        found += _walk(f"{folder}/{name}", f"{prefix}{name}/", ignored)
    return found


def _check_name(folder: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        path = os.fsencode(f"{folder}/{name}").decode(errors="backslashreplace")
        raise SourceError(
            f"{path}: the name is not UTF-8, so no state can remember it; rename it", path=path
        ) from error


def constants_of(files: Files, names: Sequence[str], types: Mapping[str, str] | None = None) -> list[Constants]:
    """For each file, which of the columns its folders give.

    `types`: of columns that earlier files had (`Decision.key_types`). A new column is of numbers where the folders of
    all files give numbers, else of text, so that no two files disagree about a type. Raises BatchError.
    """
    folders = files.folders()
    values = {folder: hive_values(folder) for folder in dict.fromkeys(folders)}
    wanted = [name for name in names if any(name in it for it in values.values())]
    for name in wanted:
        folder = next((folder for folder, it in values.items() if name not in it), None)
        if folder is not None:
            raise BatchError(
                f"{files.full_path(folders.index(folder))}: column '{name}': missing in the names of its folders, "
                "where other files have it",
                column=name,
            )
    known = types or {}
    numeric = {name: all(_is_number(it[name]) for it in values.values()) for name in wanted}
    for name in wanted:
        if known.get(name) == "integer" and not numeric[name]:
            folder, value = next((folder, it[name]) for folder, it in values.items() if not _is_number(it[name]))
            raise BatchError(
                f"{files.full_path(folders.index(folder))}: column '{name}': {value!r} in the names of its folders is "
                "no integer of 64 bits without leading zeros, and this state's keys have integers there since its "
                "first rows; text needs a state of its own",
                column=name,
            )

    def typed(name: str, value: str | None) -> int | str | None:
        is_integer = known.get(name, "integer") == "integer" and numeric[name]
        return int(value) if value is not None and is_integer else value

    constants = {folder: {name: typed(name, it[name]) for name in wanted} for folder, it in values.items()}
    return [constants[folder] for folder in folders]


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
        now = identity_of(os.stat(path))
    except FileNotFoundError as error:
        raise ChangedError(f"{path}: vanished while the job ran; run again", path=path) from error
    if now != files.identity(place):
        raise ChangedError(
            f"{path}: changed while it was read (bytes, mtime_ns, inode: {files.identity(place)}, now {now}); run "
            "again when its writer is done",
            path=path,
        )
