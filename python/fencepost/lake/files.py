"""Files of a source in columnar form: their identities, the values in their folder names, and what is new."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import BatchError
from fencepost.state.decision import Inputs
from fencepost.state.hive import hive_values
from fencepost.state.ledger import file_table
from fencepost.state.vectors import Bitmap

Constants = dict[str, int | str | None]
"""Columns with one value for a whole file, from its folder names."""

Adds = Mapping[str, dict[str, Any]]
"""Maps a path to the action that adds a file of a Delta table, or to a file of an Iceberg table."""


class Facts(NamedTuple):
    """What identifies a file in addition to its path."""

    bytes: int
    mtime_ns: int
    """0 in object stores: a copy of an object has another time, but the same etag."""
    inode: int = 0
    etag: str = ""
    """The object's etag in a store."""

    @classmethod
    def of(cls, stat: os.stat_result) -> Facts:
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ino)

    @property
    def identity(self) -> tuple[int, int, str]:
        """The file's identity: another value under the same path means another file. Excludes inodes, which change with
        mounts."""
        return self.bytes, self.mtime_ns, self.etag


@dataclass(frozen=True)
class Files:
    """Files of a source, column by column, because a run may have 100,000 of them."""

    root: str
    paths: list[str] = field(default_factory=list)
    """Relative to the root."""
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    inode: list[int] = field(default_factory=list)
    etag: list[str] = field(default_factory=list)
    vectors: list[Bitmap | None] = field(default_factory=list)
    """Deleted rows, as bitmaps (`fencepost.state.vectors`)."""
    ignored: tuple[str, ...] = ()
    """Files that were skipped because of their names."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of the columns in folder names, if the source defines them (`constants_of`)."""

    def __len__(self) -> int:
        return len(self.paths)

    def append(self, path: str, facts: Facts | None, vector: Bitmap | None = None) -> None:
        """Add a file. None: it was deleted."""
        self.paths.append(path)
        self.vectors.append(vector)
        values: tuple[Any, ...] = facts or Facts(0, 0)
        columns: tuple[list[Any], ...] = (self.bytes, self.mtime_ns, self.inode, self.etag)
        for column, value in zip(columns, values, strict=True):
            column.append(value)

    def take(self, places: Sequence[int]) -> Files:
        """Return the files at these indexes."""
        return Files(self.root, *([column[place] for place in places] for column in self._columns()))  # type: ignore[arg-type]

    def slice(self, first: int, end: int) -> Files:
        return Files(self.root, *(column[first:end] for column in self._columns()))  # type: ignore[arg-type]

    def extend(self, others: Files) -> None:
        for column, more in zip(self._columns(), others._columns(), strict=True):
            column.extend(more)

    def _columns(self) -> tuple[list[Any], ...]:
        return self.paths, self.bytes, self.mtime_ns, self.inode, self.etag, self.vectors

    def folders(self) -> list[str]:
        """The folder of each file, relative to the root: "" or with a trailing slash. Many files share a folder."""
        return [path[: path.rfind("/") + 1] for path in self.paths]

    def full_path(self, place: int) -> str:
        return os.path.join(self.root, self.paths[place])

    def relative(self, path: str) -> str:
        """Return the path of a file, given its full path."""
        return path.removeprefix(os.path.join(self.root, ""))

    def facts(self, place: int) -> Facts:
        return Facts(self.bytes[place], self.mtime_ns[place], self.inode[place], self.etag[place])

    def identity(self, place: int) -> tuple[int, int, str]:
        """See `Facts.identity`."""
        return self.facts(place).identity


@dataclass(frozen=True, kw_only=True)
class NewInput:
    """The new input of a source."""

    files: Files
    position: dict[str, Any] | None = None
    """The position after the files. None if the source has no positions."""
    adds: Adds = field(default_factory=dict)
    """Maps a path to what a decision records of a deferred file of a table (`Deferred.add`)."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Files whose damage is visible in the listing: full path to reason."""
    ignored: tuple[str, ...] = ()
    """Files that were skipped because of their names."""
    left: int = 0
    """Number of new files left for the next run, because of limits (`Slice`)."""
    lag: int | None = None
    """Number of Kafka offsets after `position` in the source. None if it is unknown, or the source is not Kafka."""
    seen_again: pa.Table = field(default_factory=lambda: file_table(Inputs()))
    """Files of the ledger whose inodes have changed. The decision records the new inodes, so that their footers need
    not be read again."""
    listing: str | None = None
    """See `Decision.listing`: set if the ledger will contain all listed files once the new ones are read."""


def constants_of(
    files: Files,
    names: Sequence[str],
    types: Mapping[str, str],
    bad: dict[str, str] | None = None,
) -> list[Constants]:
    """Return for each file the column values in its folder names. A file in another folder may have the column itself.

    `types`: the types of columns in earlier files (`Decision.key_types`). A new column is numeric if the folders of all
    files contain numbers, otherwise text, so that all files agree. `bad`: receives full path and reason of files whose
    folders do not match; without it, the first one raises BatchError.
    """
    folders = files.folders()
    values = {folder: hive_values(folder) for folder in dict.fromkeys(folders)}
    wanted = [name for name in names if any(name in it for it in values.values())]
    problems = {folder: it for folder, found in values.items() if (it := _misfit(found, wanted, types)) is not None}
    for place, folder in enumerate(folders):
        if folder in problems:
            name, problem = problems[folder]
            text = f"{files.full_path(place)}: column '{name}': {problem}"
            if bad is None:
                raise BatchError(text, column=name)
            bad[files.full_path(place)] = text
    fit = {folder: it for folder, it in values.items() if folder not in problems}
    numeric = {name: all(_is_number(it[name]) for it in fit.values() if name in it) for name in wanted}

    def typed(name: str, value: str | None) -> int | str | None:
        is_integer = types.get(name, "integer") == "integer" and numeric[name]
        return int(value) if value is not None and is_integer else value

    constants = {folder: {name: typed(name, it[name]) for name in wanted if name in it} for folder, it in fit.items()}
    return [constants.get(folder, {}) for folder in folders]


def _misfit(found: Mapping[str, str | None], wanted: Sequence[str], known: Mapping[str, str]) -> tuple[str, str] | None:
    """Return column and problem of a folder with a value of the wrong type."""
    for name in wanted:
        if name in found and known.get(name) == "integer" and not _is_number(found[name]):
            return name, (
                f"{found[name]!r} in the names of its folders is not an integer of 64 bits without leading zeros, but "
                "the first rows of this state have integers in this column, and text needs its own state"
            )
    return None


def _is_number(value: str | None) -> bool:
    """Return whether converting to a number and back gives the same text: 07 and 7 are different folders."""
    if value is None:
        return True
    return re.fullmatch(r"0|-?[1-9]\d*", value) is not None and -(2**63) <= int(value) < 2**63
