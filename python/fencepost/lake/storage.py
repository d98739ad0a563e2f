"""Access to the files of a source: on local or mounted disks, or in an object store.

Tasks list, stat, read and copy files only through a `Storage`. To add a kind of storage, write a class with the members
of `Storage` and return it from `open_storage`.

Storage failures say nothing about the content of a file: they raise StoreError, and the run stops.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import SourceError, StoreError
from fencepost.findings import IGNORED_MAX
from fencepost.lake.files import Facts, Files
from fencepost.state.delta_log import LOG
from fencepost.state.disk import Disk, opened_folder
from fencepost.state.scratch import Scratch
from fencepost.state.stores import LocalStore, Ranges, RemoteStore, Store, is_local, open_store, unavailable

T = TypeVar("T")

PAUSES_SECONDS = (0.05, 0.5)
"""Seconds to wait before the second and the third attempt after a storage failure."""
PERMANENT = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL),
    *(errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
}
"""Errors that a retry cannot fix."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of the target of a copy."""
COPY_BYTES = 16 << 20
"""Bytes per request when copying from an object store."""


class ChangedError(SourceError):
    """A file changed while it was read.

    A run of a job tries again by itself, and raises this error only after several tries. Other calls raise it at once.

    What to do: call again when nothing writes to the file.
    """

    code = "FP202"


class Storage(Protocol):
    """The interface of a storage. All methods raise StoreError (path) if storage fails, and FileNotFoundError."""

    def list(self, root: str, folder: str = "") -> Files:
        """List the `*.parquet` files below a root, or below a folder of it, sorted by path.

        Skips names that begin with `_` or `.`, including folders. The first IGNORED_MAX files with other names are in
        `Files.ignored`. Raises SourceError if the root does not exist.
        """

    def stat(self, path: str) -> Facts:
        """Return the file's current facts."""

    def object(self, path: str, facts: Facts) -> Any:
        """Return an object with `size()` and `read(offset, length)` for native code. None: it opens the path."""

    def open(self, path: str, facts: Facts) -> str | IO[bytes]:
        """Return a path or file object for pyarrow."""

    def copy(self, path: str, facts: Facts, target: Path, *, may_link: bool) -> None:
        """Copy the file to a new local file. `may_link`: see `Disk.carry_over`. Raises OSError for the target."""

    def as_store(self, root: str) -> Store:
        """Return a root as a store, to read other objects there, such as the log of a table."""

    def copy_within(self, path: str, facts: Facts, scratch: Scratch, name: str) -> bool:
        """Let a store that contains source and target copy the file. Returns False if there is no such store.

        Does not detect that the file has been replaced.
        """


def open_storage(root: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage of a source. `options`: of an object store, as for `fencepost.state.open_store`.

    Raises StoreError for a URI with an unknown scheme or with credentials.
    """
    if is_local(root):
        return LocalStorage()
    store = open_store(root, options=options)
    if not isinstance(store, RemoteStore):
        raise StoreError(f"{root}: a source is a local folder or a prefix of an object store (s3://, gs://, az://)")
    return ObjectStorage(store)


@contextmanager
def unchanged(storage: Storage, files: Files, *places: int, are_copied: bool = False) -> Iterator[None]:
    """Raise ChangedError if files differ from the listed ones before or after the block that reads them.

    An object with an etag needs no check, because every read requests that version. `are_copied`: the store may copy
    the objects, which does not request a version.
    """

    def check(wanted: Iterable[int] = places) -> None:
        for place in wanted:
            _check_unchanged(storage, files, place, files.full_path(place))

    unpinned = [place for place in places if are_copied or not files.etag[place]]
    try:
        check(unpinned)
        yield
    except FileNotFoundError as error:
        check()
        path = files.full_path(places[0])
        raise ChangedError(f"{path}: was deleted while the job ran; run again", path=path) from error
    except Exception:
        # A store refuses to read a replaced object. A file that is being replaced looks damaged, and the new one may
        # have fewer rows.
        check()
        raise
    check(unpinned)


def _check_unchanged(storage: Storage, files: Files, place: int, path: str) -> None:
    try:
        now = retry(lambda: storage.stat(path)).identity
    except FileNotFoundError as error:
        raise ChangedError(f"{path}: was deleted while the job ran; run again", path=path) from error
    if now != files.identity(place):
        raise ChangedError(
            f"{path}: changed while it was read (bytes, mtime_ns, etag: {files.identity(place)}, now {now}); run "
            "again when its writer is done",
            path=path,
        )


def retry(attempt: Callable[[], T]) -> T:
    """Retry after storage failures, which may be temporary.

    Raises the StoreError of the last attempt; raises at once what a retry cannot fix.
    """
    for pause in PAUSES_SECONDS:
        try:
            return attempt()
        except StoreError as error:
            if error.errno in PERMANENT:
                raise
        time.sleep(pause)
    return attempt()


@contextmanager
def content_errors(path: str) -> Iterator[None]:
    """Convert pyarrow's errors of reading a file. Raises SourceError for damage, StoreError (path, errno),
    FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        # pyarrow raises OSError without errno for damage
        if isinstance(error, OSError) and error.errno is not None:
            text = f"{path}: cannot be read: {error}. Check the storage and the rights, then run again"
            raise StoreError(text, path=path, errno=error.errno) from error
        raise SourceError(f"{path}: its content cannot be read: {error}", path=path) from error


# Local files


@contextmanager
def converted_errors(path: str, what: str = "read", *, other_than: Collection[int] = ()) -> Iterator[None]:
    """Convert errors of system calls on a source: they say nothing about the content.

    `other_than`: error numbers that concern something else. Raises StoreError (path, errno), FileNotFoundError.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in other_than:
            raise
        raise unavailable(path, f"cannot be {what}", error) from error


@dataclass(frozen=True)
class LocalStorage:
    """Local or mounted folders."""

    def list(self, root: str, folder: str = "") -> Files:
        if not os.path.isdir(root):
            raise SourceError(f"{root}: no such folder", path=root)
        ignored: list[str] = []
        if folder and not os.path.isdir(f"{root}/{folder}"):
            return Files(root)
        top, prefix = (f"{root}/{folder}", f"{folder}/") if folder else (root, "")
        return _files(root, _walk(top, prefix, ignored), ignored)

    def stat(self, path: str) -> Facts:
        with converted_errors(path):
            return Facts.of(os.stat(path))

    def object(self, path: str, facts: Facts) -> None:
        return None

    def open(self, path: str, facts: Facts) -> str:
        return path

    def copy(self, path: str, facts: Facts, target: Path, *, may_link: bool) -> None:
        with converted_errors(path, "copied", other_than=FULL):
            Disk().carry_over(Path(path), target, may_link=may_link)

    def as_store(self, root: str) -> LocalStore:
        return LocalStore(root)

    def copy_within(self, path: str, facts: Facts, scratch: Scratch, name: str) -> bool:
        return False


Found = tuple[str, Facts]


def _files(root: str, found: list[Found], ignored: list[str]) -> Files:
    files = Files(root, ignored=tuple(ignored))
    for path, facts in sorted(found):
        files.append(path, facts)
    return files


def _walk(folder: str, prefix: str, ignored: list[str]) -> list[Found]:
    found, subfolders, others = retry(lambda: _list_folder(folder, prefix))
    ignored += others[: IGNORED_MAX - len(ignored)]
    for name in subfolders:
        found += _walk(f"{folder}/{name}", f"{prefix}{name}/", ignored)
    return found


def _list_folder(folder: str, prefix: str) -> tuple[list[Found], list[str], list[str]]:
    """Return files, subfolders, and files of other names, sorted by name. Uses the open folder, not full paths."""
    found: list[Found] = []
    subfolders: list[str] = []
    others: list[str] = []
    try:
        with converted_errors(folder, "listed"), opened_folder(folder) as handle, os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(("_", ".")):
                    continue
                _check_name(folder, name)
                if entry.is_dir():
                    subfolders.append(name)
                elif name.endswith(".parquet"):
                    try:
                        found.append((prefix + name, Facts.of(entry.stat())))
                    except FileNotFoundError:
                        continue  # deleted before it could be read
                elif len(others) < IGNORED_MAX:
                    others.append(prefix + name)
    except FileNotFoundError as error:
        raise SourceError(f"{folder}: was deleted while it was listed; run again", path=folder) from error
    return found, subfolders, others


def _check_name(folder: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        path = os.fsencode(f"{folder}/{name}").decode(errors="backslashreplace")
        raise SourceError(f"{path}: the name is not UTF-8, so a state cannot store it; rename it", path=path) from error


# Object stores


@dataclass(frozen=True)
class ObjectStorage:
    """A prefix of an object store. Reads request the listed version of an object by its etag."""

    store: RemoteStore

    def list(self, root: str, folder: str = "") -> Files:
        found: list[Found] = []
        ignored: list[str] = []
        is_empty = not folder
        for name, size, etag in self.store.listing(folder):
            is_empty = False
            parts = name.split("/")
            if parts[0] == LOG:
                raise SourceError(f"{root}: became a Delta table while it was listed; run again", path=root)
            if any(part.startswith(("_", ".")) for part in parts):
                continue
            if name.endswith(".parquet"):
                found.append((name, Facts(size, 0, etag=etag)))
            elif len(ignored) < IGNORED_MAX:
                ignored.append(name)
        if is_empty:
            raise SourceError(f"{root}: no objects beneath this prefix; check its name", path=root)
        return _files(root, found, sorted(ignored))

    def stat(self, path: str) -> Facts:
        size, etag = self.store.head(self._name(path))
        return Facts(size, 0, etag=etag)

    def object(self, path: str, facts: Facts) -> Ranges:
        return self.store.object(self._name(path), facts.bytes, facts.etag)

    def open(self, path: str, facts: Facts) -> IO[bytes]:
        return self.object(path, facts).open()

    def copy(self, path: str, facts: Facts, target: Path, *, may_link: bool) -> None:
        with open(target, "xb") as file:
            for piece in self.object(path, facts).pieces(COPY_BYTES):
                file.write(piece)

    def as_store(self, root: str) -> RemoteStore:
        return self.store

    def copy_within(self, path: str, facts: Facts, scratch: Scratch, name: str) -> bool:
        return scratch.copy(self.store, self._name(path), facts.bytes, name)

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.store.uri}/")
