"""Local files that are still there after a power loss, in the order in which they were written.

The usual object-store libraries do not sync local files, and a rename or link is durable only once its *folder* is
synced. So every step of the commit goes through here.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

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

    def make_folder(self, path: Path) -> None:
        """Create a folder and what is missing above it, durably; one that is there is left alone."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self.seal(folder.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file. Its name is durable once its folder is sealed. Raises FileExistsError."""
        with open(path, "xb") as file:
            file.write(data)
        self.seal(path)

    def put(self, path: Path, data: bytes) -> bool:
        """Put if absent: the whole file appears at once, or another one is there already.

        Gives True where the file now holds `data`. A writer whose earlier try succeeded unnoticed wins as well: who
        must tell two writers apart puts a nonce into `data`.
        """
        while not os.path.lexists(path):
            temporary = path.with_name(f"{path.name}.{uuid4().hex}{TEMPORARY}")
            self.write(temporary, data)
            try:
                os.link(temporary, path)
            except (FileExistsError, FileNotFoundError):
                # Not found: another run took the temporary for rubbish, as is right once `path` is there. Look again.
                continue
            finally:
                temporary.unlink(missing_ok=True)
        if path.read_bytes() != data:
            return False
        self.seal(path.parent)
        return True

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
