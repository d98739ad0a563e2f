"""Where tasks of an attempt write files for the sink and for each other.

A folder or a prefix of an object store that all tasks can access, on any machine. It has no subfolders. Every file has
a unique random name, so nothing is ever replaced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from fencepost.arrow import ArrowTable
from fencepost.state.disk import Disk
from fencepost.state.stores import Ranges, RemoteStore

Buffer: TypeAlias = Any
"""A `pyarrow.Buffer`. pyarrow is imported on first use."""

READ_AT_ONCE = 8
"""Maximum number of concurrent requests to an object store per task."""
MAPPED_BYTES_MIN = 1 << 20
"""Smaller ranges are read, not mapped: a task has one per exchange file, and a process is limited to 65,530 maps."""


class Scratch(Protocol):
    """The interface of a scratch. All methods raise StoreError if an object store is not available."""

    def make(self) -> None:
        """Create it if missing."""

    def new(self, name: str, *, lasts: bool = False) -> AbstractContextManager[Path]:
        """Yield a local path for writing a file, which is in the scratch after the block.

        `lasts`: durably, except for its name. Otherwise it need not outlive the attempt.
        """

    def writing(self) -> AbstractContextManager[Scratch]:
        """Yield this scratch for a task that writes files that last. They are durable after the block."""

    def copy(self, origin: RemoteStore, name: str, size: int, target: str) -> bool:
        """See `RemoteStore.copy`."""

    def place(self, name: str) -> str:
        """Return a file's path or URI."""

    def object(self, name: str) -> Ranges | None:
        """Return an object for reading a file from a store. None: open its path."""

    def read(self, name: str) -> Buffer:
        """Return the content of a file. Leaves no file descriptor open, because a task may read thousands of files."""

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        """Return these bytes of files, as (name, offset, end). Shorter at the end of a file."""

    def remove(self) -> None:
        """Remove all files."""


@dataclass(frozen=True)
class FolderScratch:
    """A folder of this machine, or one that all workers see."""

    folder: str
    disk: Disk
    seal: Callable[[Path], object] | None = None
    """Within `writing`: seals a file, but not at once."""

    def make(self) -> None:
        self.disk.make_folder(Path(self.folder))

    @contextmanager
    def new(self, name: str, *, lasts: bool = False) -> Iterator[Path]:
        path = Path(self.folder, name)
        yield path
        if lasts:
            (self.seal or self.disk.seal)(path)

    @contextmanager
    def writing(self) -> Iterator[FolderScratch]:
        with self.disk.sealing() as seal:
            yield replace(self, seal=seal)

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
    """A prefix of an object store. Files are written to the worker's disk (TMPDIR) and uploaded as a whole."""

    store: RemoteStore
    prefix: str

    def make(self) -> None:
        """Do nothing: prefixes need no creation."""

    @contextmanager
    def new(self, name: str, *, lasts: bool = False) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
            path = Path(folder, name)
            yield path
            self.store.upload(path, self._name(name))

    @contextmanager
    def writing(self) -> Iterator[PrefixScratch]:
        yield self  # `new` returns after its upload

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


# Exchange between tasks


def write_table(scratch: Scratch, ending: str, table: ArrowTable) -> str:
    """Write an Arrow IPC file for another task. Returns its name."""
    import pyarrow as pa

    name = f"{uuid4().hex}.{ending}"
    with scratch.new(name) as path, pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    return name


def read_table(scratch: Scratch, name: str) -> ArrowTable:
    """Read the result of `write_table`."""
    import pyarrow as pa

    return pa.ipc.open_file(scratch.read(name)).read_all()
