"""Local files that are still there after a power loss, in the order in which they were written.

The usual object-store libraries do not sync local files, and a rename or link is durable only once its *folder* is
synced. So every step of the commit goes through here.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

FICLONE = 0x40049409  # the system call that clones a file
TEMPORARY = ".tmp"  # ends the names of files that are not there yet


@dataclass(frozen=True)
class Disk:
    """Writes local files durably. `sync=False` leaves durability to the kernel: for benchmarks and scratch data."""

    sync: bool = True

    def seal(self, path: Path) -> None:
        """Wait until a file's content, or the names in a folder, are on disk."""
        if self.sync:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def make_folder(self, path: Path, within: Path | None = None) -> None:
        """Create a folder and what is missing above it, durably.

        `within`: the folder that several writers share. From there on also the names of folders that are there already
        are made durable: another writer may have made them a moment ago, and died before it waited for the disk.
        """
        folders = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(folders):
            folder.mkdir(exist_ok=True)
        if within is not None:
            folders = [path, *(folder for folder in path.parents if folder.is_relative_to(within))]
        for folder in reversed(folders):
            self.seal(folder.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file. Its name is durable once its folder is sealed. Raises FileExistsError."""
        with open(path, "xb") as file:
            file.write(data)
        self.seal(path)

    def put(self, path: Path, data: bytes, temporary: Path | None = None) -> bool:
        """Put if absent: the whole file appears at once, or another one is there already.

        Gives True where the file now holds `data`. A writer whose earlier try succeeded unnoticed wins as well: who
        must tell two writers apart puts a nonce into `data`. `temporary`: the name, this caller's alone, under which
        the data are written first; unless given, one beside `path`.
        """
        temporary = temporary or path.with_name(f"{path.name}.{uuid4().hex}{TEMPORARY}")
        while True:
            while not os.path.lexists(path):
                self.write(temporary, data)
                try:
                    os.link(temporary, path)
                except (FileExistsError, FileNotFoundError):
                    # Not found: another run took the temporary for rubbish, as is right once `path` is there.
                    continue
                finally:
                    temporary.unlink(missing_ok=True)
            # Also where it is another's, who may have died before the name was on disk: what follows builds on it.
            self.seal(path.parent)
            with suppress(FileNotFoundError):  # removed meanwhile (`folding.py`): once more
                return path.read_bytes() == data

    def carry_over(self, source: Path, target: Path, *, may_link: bool = False) -> None:
        """A new file with the content of another: a clone where the file system can, else a copy.

        `may_link`: or a hard link, which shares an inode with a source that nobody may ever append to or truncate.
        Its content is durable once it is sealed. Raises FileExistsError.
        """
        if may_link:
            try:
                os.link(source, target)
                return
            except OSError:
                pass  # another file system
        with open(source, "rb") as read, open(target, "xb") as written:
            if not _clone(read.fileno(), written.fileno()):
                _copy(read.fileno(), written.fileno())

    def move(self, source: Path, target: Path) -> None:
        """Rename a file or folder within the file system, durably. A folder never replaces one that has content."""
        os.rename(source, target)
        self.seal(target.parent)
        if source.parent != target.parent:
            self.seal(source.parent)

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder; nothing happens where there is none."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def opened_folder(path: str | os.PathLike[str]) -> Iterator[int]:
    """A folder, open, so that many files can be named within it: the kernel need not look up the path for each."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def _clone(source: int, target: int) -> bool:
    """Share the blocks of an open file, where the file system copies on write."""
    try:
        import fcntl

        fcntl.ioctl(target, FICLONE, source)
    except (ImportError, OSError):
        return False
    return True


def _copy(source: int, target: int) -> None:
    """Copy an open file within the kernel, where that can be."""
    at_once = 1 << 30
    if hasattr(os, "copy_file_range"):
        try:
            while os.copy_file_range(source, target, at_once):
                pass
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
            os.lseek(source, 0, os.SEEK_SET)
            os.ftruncate(target, 0)
            os.lseek(target, 0, os.SEEK_SET)
    with os.fdopen(os.dup(source), "rb") as read, os.fdopen(os.dup(target), "wb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
