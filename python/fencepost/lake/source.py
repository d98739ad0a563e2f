"""A folder of Parquet files: which files there are, and whether one is still what it was."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fencepost.errors import SourceError


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when the folder was listed."""

    root: str
    path: str
    """Relative to the root."""
    bytes: int
    mtime_ns: int
    inode: int

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What the ledger keeps of it: the same path with another key is another file."""
        return self.path, self.bytes, self.mtime_ns, self.inode

    @property
    def full_path(self) -> str:
        return os.path.join(self.root, self.path)


def list_files(root: str) -> list[SourceFile]:
    """The `*.parquet` files of a folder and its subfolders, by name; names beginning with `_` or `.` are not looked at.

    Raises SourceError where there is no folder, and for Hive-style subfolders (`day=1/`): their values are columns
    that the files do not have.
    """
    if not os.path.isdir(root):
        raise SourceError(f"{root}: no such folder", path=root)
    files = []
    for folder, subfolders, names in os.walk(root, onerror=_raise_unreadable):
        subfolders[:] = [name for name in subfolders if not name.startswith(("_", "."))]
        for name in subfolders:
            if "=" in name:
                path = os.path.join(folder, name)
                raise SourceError(
                    f"{path}: columns that stand in folder names are not supported yet, and would be lost", path=path
                )
        for name in names:
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                path = os.path.join(folder, name)
                stat = _stat(path)
                relative = Path(path).relative_to(root).as_posix()
                files.append(SourceFile(root, relative, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return sorted(files, key=lambda file: file.path)


@contextmanager
def unchanged(file: SourceFile, footer_crc: int | None = None) -> Iterator[None]:
    """While a task reads a file: SourceError if it is not, or not for as long as that, the file that was listed.

    `footer_crc`: what an earlier pass over the file found.
    """
    _check_unchanged(file, footer_crc)
    yield
    _check_unchanged(file, footer_crc)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """While bytes of a source are read and decoded, nothing else: a failure is a SourceError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: cannot be read as Parquet: {error}", path=path) from error


def open_parquet(path: str, dictionaries: list[str] | None = None) -> pq.ParquetFile:
    """The file, to be read without threads of its own: engines run several tasks beside each other."""
    return pq.ParquetFile(path, read_dictionary=dictionaries, memory_map=False, page_checksum_verification=True)


def footer_crc(path: str | Path) -> int:
    """CRC-32 of a Parquet file's footer, which holds the place and length of everything else. Raises SourceError."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 8, 0))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if len(tail) < 8 or tail[4:] not in (b"PAR1", b"PARE") or length + 12 > end:
            problem = "no Parquet footer at its end: cut short, still being written, or no Parquet file"
            raise SourceError(f"{path}: {problem}", path=str(path), position=max(end - 8, 0))
        file.seek(end - 8 - length)
        return zlib.crc32(file.read(length))


def _check_unchanged(file: SourceFile, crc: int | None) -> None:
    path = file.full_path
    stat = _stat(path)
    found = SourceFile(file.root, file.path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    if found != file or (crc is not None and footer_crc(path) != crc):
        raise SourceError(
            f"{path}: changed while it was read (bytes, mtime_ns, inode: {file.key[1:]}, now {found.key[1:]}); "
            "run again when its writer is done",
            path=path,
        )


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError as error:
        raise SourceError(f"{path}: vanished while the job ran; run again", path=path) from error


def _raise_unreadable(error: OSError) -> None:
    raise SourceError(f"{error.filename}: cannot be listed: {error.strerror}", path=error.filename) from error
