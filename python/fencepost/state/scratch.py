"""Where the tasks of an attempt write: what they prepare for the sink, and what they hand on to each other.

All of them see it, on whichever machine they run: a folder, or a prefix of an object store. Names are those of files
right in it; each is drawn for one file, so nothing is ever replaced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from fencepost.state.disk import Disk
from fencepost.state.stores import Ranges, RemoteStore

Buffer: TypeAlias = Any
"""A `pyarrow.Buffer`; pyarrow is imported where it is needed."""
ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`."""

READ_AT_ONCE = 8
"""Requests to an object store that a task has under way."""
MAPPED_BYTES_MIN = 1 << 20
"""Smaller ranges of files are read into memory: a task has one of each exchange file, a process at most 65,530 maps."""


class Scratch(Protocol):
    """The calls. All raise StoreError where an object store does not answer."""

    def make(self) -> None:
        """Make sure that it is there."""

    def new(self, name: str, *, lasts: bool = False) -> AbstractContextManager[Path]:
        """A local path at which the caller writes a file, which is in the scratch after the block.

        `lasts`: and durably, but for its name; else it need not outlive the attempt.
        """

    def copy(self, origin: RemoteStore, name: str, size: int, target: str) -> bool:
        """See `RemoteStore.copy`."""

    def place(self, name: str) -> str:
        """A file's path or URI."""

    def object(self, name: str) -> Ranges | None:
        """What readers read a file from that lies in a store; None: from its path."""

    def read(self, name: str) -> Buffer:
        """The content of a file. No descriptor stays open: a task may need thousands."""

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        """(name, offset, end) of files: these bytes of them, as far as there are such."""

    def remove(self) -> None:
        """Remove all that is in it."""


@dataclass(frozen=True)
class FolderScratch:
    """A folder: of this machine, or one that all workers see."""

    folder: str
    disk: Disk

    def make(self) -> None:
        self.disk.make_folder(Path(self.folder))

    @contextmanager
    def new(self, name: str, *, lasts: bool = False) -> Iterator[Path]:
        path = Path(self.folder, name)
        yield path
        if lasts:
            self.disk.seal(path)

    def copy(self, origin: RemoteStore, name: str, size: int, target: str) -> bool:
        return False

    def place(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def object(self, name: str) -> None:
        return None

    def read(self, name: str) -> Buffer:
        import pyarrow as pa  # type: ignore[import-untyped]

        with pa.memory_map(self.place(name)) as file:
            return file.read_buffer()

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        return [self._range(*it) for it in ranges]

    def _range(self, name: str, offset: int, end: int) -> Buffer:
        import pyarrow as pa

        if end - offset < MAPPED_BYTES_MIN:
            with open(self.place(name), "rb") as file:
                file.seek(offset)
                return pa.py_buffer(file.read(end - offset))
        data = self.read(name)
        offset, end = min(offset, data.size), min(end, data.size)
        return data.slice(offset, end - offset)

    def remove(self) -> None:
        self.disk.remove(Path(self.folder))


@dataclass(frozen=True)
class PrefixScratch:
    """A prefix of an object store. A file is written on the worker's disk (TMPDIR) and goes to the store as a whole."""

    store: RemoteStore
    prefix: str

    def make(self) -> None:
        """Prefixes need not be made."""

    @contextmanager
    def new(self, name: str, *, lasts: bool = False) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
            path = Path(folder, name)
            yield path
            self.store.upload(path, self._name(name))

    def copy(self, origin: RemoteStore, name: str, size: int, target: str) -> bool:
        return self.store.copy(origin, name, size, self._name(target))

    def place(self, name: str) -> str:
        return f"{self.store.uri}/{self._name(name)}"

    def object(self, name: str) -> Ranges:
        return self.store.object(self._name(name), *self.store.head(self._name(name)))

    def read(self, name: str) -> Buffer:
        return _buffer(self.store.read(self._name(name)))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            return list(pool.map(lambda it: _buffer(self._read(*it)), ranges))

    def remove(self) -> None:
        self.store.clear(self.prefix)

    def _read(self, name: str, offset: int, end: int) -> bytes:
        return self.store.read_exactly(self._name(name), offset, end - offset, "")

    def _name(self, name: str) -> str:
        return f"{self.prefix}/{name}"


def _buffer(data: bytes) -> Buffer:
    import pyarrow as pa

    return pa.py_buffer(data)


# What a task hands on


def write_table(scratch: Scratch, ending: str, table: ArrowTable) -> str:
    """An Arrow IPC file that a task hands on; gives its name."""
    import pyarrow as pa

    name = f"{uuid4().hex}.{ending}"
    with scratch.new(name) as path, pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    return name


def read_table(scratch: Scratch, name: str) -> ArrowTable:
    """What `write_table` has written."""
    import pyarrow as pa

    return pa.ipc.open_file(scratch.read(name)).read_all()
