"""Durable local files: their content and order survive a power loss.

Common object-store libraries do not sync local files, and a rename or link is durable only when its *folder* is synced.
So every step of the commit uses this module.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

FICLONE = 0x40049409  # the ioctl that clones a file
TEMPORARY = ".tmp"  # the suffix of incomplete files


@dataclass(frozen=True)
class Disk:
    """Writes local files durably. `sync=False` leaves durability to the kernel, for benchmarks and scratch data."""

    sync: bool = True

    def seal(self, path: Path) -> None:
        """Sync a file's content, or the names in a folder, to disk."""
        if self.sync:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @contextmanager
    def sealing(self) -> Iterator[Callable[[Path], object]]:
        """Yield a function that seals files in another thread, while the caller writes the next. Afterwards, all of
        them are sealed. Raises OSError if one could not be."""
        if not self.sync:
            yield self.seal
            return
        pool = ThreadPoolExecutor(1)
        sealed: list[Future[None]] = []
        try:
            yield lambda path: sealed.append(pool.submit(self.seal, path))
            for it in sealed:
                it.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def make_folder(self, path: Path, within: Path | None = None) -> None:
        """Create a folder and missing parents durably.

        `within`: a folder that several writers share. Below it, existing folders are synced too: another writer may
        have created them and crashed before its sync.
        """
        folders = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(folders):
            folder.mkdir(exist_ok=True)
        if within is not None:
            folders = [path, *(folder for folder in path.parents if folder.is_relative_to(within))]
        for folder in reversed(folders):
            self.seal(folder.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file. Its name is durable after `seal` of its folder. Raises FileExistsError."""
        with open(path, "xb") as file:
            file.write(data)
        self.seal(path)

    def put(self, path: Path, data: bytes, temporary: Path | None = None) -> bool:
        """Put if absent: the whole file appears atomically, unless one exists.

        Returns True if the file now contains `data`. A writer whose earlier attempt succeeded unnoticed also gets True;
        to distinguish writers, include a nonce in `data`. `temporary`: a name unique to this caller, under which the
        data is written first. Default: a name beside `path`.
        """
        temporary = temporary or path.with_name(f"{path.name}.{uuid4().hex}{TEMPORARY}")
        while True:
            while not os.path.lexists(path):
                try:
                    self.write(temporary, data)
                    with suppress(FileExistsError, FileNotFoundError):
                        # The temporary is gone: another run removed it as garbage, which is allowed once `path` exists.
                        os.link(temporary, path)
                finally:
                    temporary.unlink(missing_ok=True)  # also a part: on a full disk, it would take what becomes free
            # Also for another writer's file: it may have crashed before its sync, and later steps depend on the name.
            self.seal(path.parent)
            with suppress(FileNotFoundError):  # removed in the meantime (`folding.py`): retry
                return path.read_bytes() == data

    def carry_over(self, source: Path, target: Path, *, may_link: bool = False) -> None:
        """Create a file with the content of another: a clone if the file system supports it, otherwise a copy.

        `may_link`: allow a hard link, which shares an inode with a source that nobody may modify. The content is
        durable after `seal`. Raises FileExistsError.
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
        """Rename a file or folder within the file system, durably. A folder never replaces a non-empty one."""
        os.rename(source, target)
        self.seal(target.parent)
        if source.parent != target.parent:
            self.seal(source.parent)

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder, if it exists."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def opened_folder(path: str | os.PathLike[str]) -> Iterator[int | str]:
    """Open a folder, so that accessing many files in it needs no path lookup in the kernel.

    Yields what `os.scandir` accepts: a descriptor, or the path where folders cannot be opened (Windows).
    """
    if os.scandir not in os.supports_fd:
        yield os.fspath(path)
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def _clone(source: int, target: int) -> bool:
    """Share the blocks of an open file, if the file system supports copy-on-write."""
    try:
        import fcntl

        fcntl.ioctl(target, FICLONE, source)
    except (ImportError, OSError):
        return False
    return True


def _copy(source: int, target: int) -> None:
    """Copy an open file within the kernel, if possible."""
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
