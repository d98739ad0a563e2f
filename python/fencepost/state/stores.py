"""Stores for the files of a state: a local folder, an object store, or memory.

All have one small interface. Names are relative and separated by "/". Every decision goes through `put`: a
put-if-absent that trusts only the answer "done". After a retry, a writer may see its own success as "exists". A 409 may
mean that nothing was written, and a timeout says nothing. So after any other answer the object is read and compared. To
distinguish two writers, put a nonce into the data.

A store that is passed to another process opens its connections there.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, TypeVar
from urllib.parse import quote
from uuid import uuid4

from fencepost.errors import DependencyError, PolicyError, StoreError
from fencepost.state.disk import TEMPORARY, Disk

T = TypeVar("T")

TRIES_MAX = 8  # per call to a remote store, in addition to retries of its client
PAUSE_SECONDS = 0.05  # before the second try; doubles up to PAUSE_SECONDS_MAX
PAUSE_SECONDS_MAX = 2.0
LISTED_AT_ONCE = 1_000
TEMPORARIES = "tmp"
"""The folder of incomplete local files."""
PART_BYTES, PARTS_AT_ONCE = 64 << 20, 2
"""Bytes per part of a multipart upload, and number of concurrent parts."""
TAIL_BYTES, TAILS_MAX = 64 << 10, 256
"""Size and number of cached file ends: each step of a run reads a file's footer."""
PIECES_AHEAD = 2
"""Number of pieces to read ahead in a sequential read of an object."""
CHUNK_BYTES = 1 << 20
"""Minimum size of a chunk of a response, except the last one."""
COPY_BYTES_MAX = 5 << 30
"""Maximum bytes that a store copies itself."""
PROBE_WRITERS, PROBE_ROUNDS = 8, 4
"""Number of concurrent writers and of rounds when probing a remote store."""
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Errors of file systems without hard links."""

_PROCESS: list[int] = []
"""The process that first sent a request to a remote store: this one, or the one of which it is a fork."""

_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
_CLIENT_OPTIONS = ("allow_http", "connect_timeout", "proxy_url", "root_certificate", "timeout", "user_agent")


class Writer(Protocol):
    """Writes a file that appears, complete, after `close`."""

    def write(self, data: bytes, /) -> object: ...
    def close(self) -> object: ...
    def give_up(self) -> object:
        """Give up instead of `close`. Written data may remain as garbage."""


class Store(Protocol):
    """The interface of a store. All methods raise StoreError, with the URI in its message, if the store fails."""

    @property
    def uri(self) -> str:
        """A path, or a URI without a trailing slash."""

    def put(self, name: str, data: bytes) -> bool:
        """Put if absent. Returns True if the object contains `data`, durably; False if it has other content."""

    def replace(self, name: str, data: bytes) -> None:
        """Put and overwrite. Any of several writers may win, and a power loss may undo it."""

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        """Read the content, or a range of it; shorter at the end. Raises FileNotFoundError."""

    def size(self, name: str) -> int:
        """Return the size in bytes. Raises FileNotFoundError."""

    def open(self, name: str) -> IO[bytes]:
        """Open the content as a seekable file. Raises FileNotFoundError."""

    def list(self, prefix: str) -> list[str]:
        """Return the names of all objects below the folder `prefix`, unordered; empty if it does not exist."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. Missing ones are ignored."""

    def clear(self, prefix: str) -> None:
        """Remove the folder `prefix` and everything below it."""

    def settle(self, prefix: str) -> None:
        """Make the current names in the folder `prefix` durable: their writer may have crashed before its sync."""

    def exists(self, name: str) -> bool:
        """Return whether a complete object of this name exists."""

    def writer(self, name: str) -> Writer:
        """Return a writer for a large object. `name` must be one that no other writer uses."""


def open_store(uri: str | os.PathLike[str], *, sync: bool = True, options: Mapping[str, Any] | None = None) -> Store:
    """Open the store at a path or at a `file://`, `s3://`, `gs://`, `az://` or `memory://` URI. Creates nothing.

    Remote stores need `fencepost[lake]`.

    Args:
        uri: A path or URI.
        sync: False does not sync local files.
        options: Options of a remote store with obstore's names (`endpoint`, `region`, `access_key_id`, ...;
            `allow_http` and `timeout` of its client). Others come from the environment. `credential_provider` is
            "package.module:factory", such as "obstore.auth.boto3:Boto3CredentialProvider". Every process that accesses
            the store imports it and calls it without arguments. The result, an obstore credential provider, is called
            again when credentials expire.

    Raises:
        StoreError: The URI contains a password, has only one slash after the colon, or has an unknown scheme; or a
            file:// URI has no absolute path.
    """
    text = os.fspath(uri)
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    if match is None:
        check_path(text)
        return LocalStore(text, sync=sync)
    scheme, rest = match[1], text[match.end() :]
    if re.match(r"[^/]*:[^/]*@", rest):
        raise StoreError(
            f"{scheme}://...@{rest.partition('@')[2]}: the URI contains credentials, and a state stores the "
            "URIs it knows: pass credentials as options, or in the environment"
        )
    if scheme == "file":
        check_path(text)
        return LocalStore(rest, sync=sync)
    if scheme == "memory":
        return MemoryStore(text)
    if scheme in _REMOTE:
        return RemoteStore(text, options)
    raise StoreError(f"{text}: unknown store {scheme}://; known are paths, file, {', '.join(_REMOTE)} and memory")


def is_local(uri: str | os.PathLike[str]) -> bool:
    """Return whether `open_store` opens a local folder for it."""
    text = os.fspath(uri)
    return text.startswith("file://") or "://" not in text


def absolute(uri: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local folder or file, or a URI without a trailing slash.

    Raises StoreError for a URI with one slash, and for a file:// URI without an absolute path.
    """
    text = os.fspath(uri)
    check_path(text)
    return os.path.abspath(text.removeprefix("file://")) if is_local(text) else text.rstrip("/")


def check_path(text: str) -> None:
    """Raise StoreError for a URI that has lost a slash, as in a `pathlib.Path`.

    It would name a folder in the current one. Spark and Hadoop also write `file:/data`.
    """
    if text.startswith("file://") and not text.startswith("file:///"):
        raise StoreError(f"{text}: a file:// URI has three slashes and an absolute path")
    if match := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)", text):
        shown = re.sub(r":/[^/]*@", ":/...@", text)
        raise StoreError(
            f"{shown}: neither a path nor a URI. A URI has {match[1]}://, which pathlib.Path does not preserve: pass a "
            f"str. If you mean a folder of this name, write ./{shown}"
        )


def check_exclusion(store: Store, folder: str = "probe") -> None:
    """Raise StoreError for a store that lets several writers put the same name. `folder`: where to test.

    Writers of a remote store also put concurrently: some stores refuse the second of two sequential puts but accept
    several concurrent ones. The test can refute a store but cannot prove it correct.
    """
    is_remote = isinstance(store, RemoteStore)
    for _ in range(PROBE_ROUNDS if is_remote else 1):
        name = f"{folder}/{uuid4().hex}"
        try:
            won = _put_at_once(store, name) if is_remote else _put_in_turn(store, name)
            found = store.read(name)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise StoreError(
                f"{store.uri}: this file system cannot hold a state: {error.strerror} (error {error.errno}). It "
                "must support hard links, which publish decisions. Use a local disk or NFS, or an object store by its "
                "URI (s3://, gs://, az://)",
                errno=error.errno,
            ) from error
        finally:
            store.delete([name])
        if won != [found]:
            raise StoreError(
                f"{store.uri}: the store does not support conditional puts: of several puts of one new name, exactly "
                f"one must succeed, but {len(won)} did. Two jobs would overwrite each other's decisions. Use another "
                "store"
            )


def _put_in_turn(store: Store, name: str) -> list[bytes]:
    """Put one after the other. Returns the data of the writers that succeeded."""
    return [data for data in (b"first", b"second") if store.put(name, data)]


def _put_at_once(store: Store, name: str) -> list[bytes]:
    """Put concurrently. Returns the data of the writers that succeeded."""
    start = threading.Barrier(PROBE_WRITERS)

    def put(data: bytes) -> bool:
        start.wait()
        return store.put(name, data)

    everyone = [b"writer %d" % number for number in range(PROBE_WRITERS)]
    with ThreadPoolExecutor(PROBE_WRITERS) as pool:
        try:
            done = [pool.submit(put, data) for data in everyone]
        except BaseException:
            start.abort()  # releases threads that wait for one that could not be started
            raise
    return [data for data, it in zip(everyone, done, strict=True) if it.result()]


class LocalStore:
    """A local folder. Files are complete when they appear, and survive a power loss.

    `temporaries`: its folder for incomplete files. None: beside their final names, in a folder with other owners.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sync: bool = True, temporaries: str | None = TEMPORARIES
    ) -> None:
        self.folder = Path(os.path.abspath(path))
        self.disk = Disk(sync)
        self.temporaries = temporaries

    @property
    def uri(self) -> str:
        return str(self.folder)

    def put(self, name: str, data: bytes) -> bool:
        return self.disk.put(self._new(name), data, self._temporary(name))

    def replace(self, name: str, data: bytes) -> None:
        temporary = self._temporary(name)
        temporary.write_bytes(data)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.rename(temporary, path)

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        with open(self.folder / name, "rb") as file:
            file.seek(offset or 0)
            return file.read(-1 if length is None else length)

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def open(self, name: str) -> IO[bytes]:
        return open(self.folder / name, "rb")

    def list(self, prefix: str) -> list[str]:
        names = []
        for folder, _, files in os.walk(self.folder / prefix, onerror=_unless_gone):
            inside = os.path.relpath(folder, self.folder)
            names += [f"{inside}/{name}" for name in files]
        return names

    def delete(self, names: Iterable[str]) -> None:
        folders: set[Path] = set()
        for name in names:
            path = self.folder / name
            path.unlink(missing_ok=True)
            folders.update(path.parents)
        # Deepest first. Folders directly below the root stay, because other writers may be about to use them.
        inside = (folder for folder in folders if len(folder.parts) > len(self.folder.parts) + 1)
        for folder in sorted(inside, key=lambda folder: -len(folder.parts)):
            try:
                folder.rmdir()
            except OSError:
                continue  # not empty, or already removed

    def clear(self, prefix: str) -> None:
        self.disk.remove(self.folder / prefix)

    def settle(self, prefix: str) -> None:
        if (self.folder / prefix).exists():
            self.disk.seal(self.folder / prefix)

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    def writer(self, name: str) -> Writer:
        return _LocalWriter(self._new(name), self.disk)

    def _new(self, name: str) -> Path:
        path = self.folder / name
        self.disk.make_folder(path.parent, self.folder)
        return path

    def _temporary(self, name: str) -> Path:
        """Return the path of an incomplete file. In a separate folder if possible: finding leftovers beside final files
        would need a listing of all files."""
        if self.temporaries is None:
            return self.folder / f"{name}.{uuid4().hex}{TEMPORARY}"
        folder = self.folder / self.temporaries
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name.replace('/', '-')}.{uuid4().hex}{TEMPORARY}"


def unavailable(path: str, problem: str, error: OSError) -> StoreError:
    """Return the error for a failed system call on a path. It says nothing about the content."""
    text = f"{path}: {problem}: {error.strerror}. Check the storage and the rights, then run again"
    return StoreError(text, path=path, errno=error.errno)


def _unless_gone(error: OSError) -> None:
    """Raise errors other than a missing folder: an unreadable folder is not an empty one."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


class _LocalWriter:
    def __init__(self, path: Path, disk: Disk) -> None:
        self.path, self.disk = path, disk
        self.file: IO[bytes] = open(path, "xb")  # noqa: SIM115 closed by `close`

    def write(self, data: bytes, /) -> None:
        self.file.write(data)

    def close(self) -> None:
        self.file.close()
        self.disk.seal(self.path)
        self.disk.seal(self.path.parent)

    def give_up(self) -> None:
        self.file.close()


class MemoryStore:
    """Objects in this process, for tests. Stores with equal URIs share their objects."""

    _all: ClassVar[dict[str, dict[str, bytes]]] = {}
    _lock = threading.Lock()

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def objects(self) -> dict[str, bytes]:
        return self._all.setdefault(self._uri, {})

    def put(self, name: str, data: bytes) -> bool:
        with self._lock:
            return self.objects.setdefault(name, bytes(data)) == data

    def replace(self, name: str, data: bytes) -> None:
        self.objects[name] = bytes(data)

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        if name not in self.objects:
            raise FileNotFoundError(f"{self.uri}/{name}")
        start = offset or 0
        return self.objects[name][start : None if length is None else start + length]

    def size(self, name: str) -> int:
        return len(self.read(name))

    def open(self, name: str) -> IO[bytes]:
        return io.BytesIO(self.read(name))

    def list(self, prefix: str) -> list[str]:
        with self._lock:
            return [name for name in self.objects if name.startswith(f"{prefix}/")]

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)  # copied first, because the iterator may call this store
        with self._lock:
            for name in wanted:
                self.objects.pop(name, None)

    def clear(self, prefix: str) -> None:
        self.delete(self.list(prefix))

    def settle(self, prefix: str) -> None:
        """Do nothing: nothing outlives this process."""

    def exists(self, name: str) -> bool:
        return name in self.objects

    def writer(self, name: str) -> Writer:
        return _MemoryWriter(self, name)


class _MemoryWriter:
    def __init__(self, store: MemoryStore, name: str) -> None:
        self.store, self.name = store, name
        self.parts: list[bytes] = []

    def write(self, data: bytes, /) -> None:
        self.parts.append(bytes(data))

    def close(self) -> None:
        self.store.objects[self.name] = b"".join(self.parts)

    def give_up(self) -> None:
        self.parts.clear()


def load_provider(name: str) -> Any:
    """Import `name` ("package.module:factory") and call it."""
    module, _, factory = name.partition(":")
    try:
        return getattr(importlib.import_module(module), factory)()
    except Exception as error:
        raise StoreError(f"credential_provider={name}: {type(error).__name__}: {error}") from error


class RemoteStore:
    """An object store. Trusts its client's answer to a put only if it is "done"."""

    _client: Any
    _errors: Any
    _store: Any
    _root: Any
    """The bucket, without the prefix."""
    _tails: dict[tuple[str, str, int], bytes]
    """Recently read ends of objects, by name, etag and first byte."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        self._uri = uri.rstrip("/")
        self.options = dict(options or {})
        self._connect()  # raises errors for wrong options here

    def __getstate__(self) -> tuple[str, dict[str, Any]]:
        return self._uri, self.options

    def __setstate__(self, state: tuple[str, dict[str, Any]]) -> None:
        self._uri, self.options = state
        self._connect()

    @property
    def _root_uri(self) -> str:
        scheme, _, rest = self._uri.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def quoted_uri(self) -> str:
        """The URI for other libraries. They would decode "%20" in the prefix, and ignore what follows "?" or "#"."""
        return self._root_uri + quote(self._uri.removeprefix(self._root_uri))

    def _full_name(self, name: str) -> str:
        """The object's name from the root of its bucket."""
        prefix = self._uri.removeprefix(self._root_uri).strip("/")
        return f"{prefix}/{name}" if prefix else name

    def _connect(self) -> None:
        try:
            import obstore
            from obstore import store as stores
        except ImportError as error:
            raise DependencyError(
                f"{self._uri}: a package for object stores is missing ({error}): pip install 'fencepost[lake]'"
            ) from error
        config = dict(self.options)
        client = {name: config.pop(name) for name in _CLIENT_OPTIONS if name in config}
        provider = config.pop("credential_provider", None)
        # Few retries by the client: `_retry` knows better which errors are permanent.
        retries = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
        self._errors = obstore.exceptions
        self._client = obstore
        self._tails = {}
        try:
            connect: Any = stores.from_url
            how = {"config": config, "client_options": client, "retry_config": retries}
            if provider is not None:
                how["credential_provider"] = load_provider(provider)
            self._store, self._root = (connect(uri, **how) for uri in (self.quoted_uri, self._root_uri))
        except Exception as error:
            raise StoreError(f"{self._uri}: {_short(error)}") from error

    @property
    def uri(self) -> str:
        return self._uri

    def put(self, name: str, data: bytes) -> bool:
        def attempt() -> bool:
            try:
                self._client.put(self._store, name, data, mode="create", use_multipart=False)
            except self._permanent:
                raise
            except Exception as error:
                # Exists, conflict, timeout or disconnect: only a read shows whether the object exists and whose it is.
                try:
                    return self.read(name) == data
                except FileNotFoundError:
                    if isinstance(error, (self._errors.NotFoundError, FileNotFoundError)):
                        raise StoreError(f"{self._uri}/{name}: cannot write it: {_short(error)}") from error
                    raise error from None  # it does not exist: retry
            return True

        return self._retry("write it", name, attempt)

    def replace(self, name: str, data: bytes) -> None:
        self._retry("write it", name, lambda: self._client.put(self._store, name, data, use_multipart=False))

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        def attempt() -> bytes:
            if length == 0:
                return b""
            with self._named(name):
                if length is not None:
                    return bytes(self._client.get_range(self._store, name, start=offset or 0, length=length))
                options = None if offset is None else {"range": {"offset": offset}}
                return bytes(self._client.get(self._store, name, options=options).bytes())

        return self._retry("read it", name, attempt)

    def size(self, name: str) -> int:
        return self.head(name)[0]

    def open(self, name: str) -> IO[bytes]:
        return self.object(name, *self.head(name)).open()

    def list(self, prefix: str) -> list[str]:
        return [name for name, _, _ in self.listing(prefix)]

    def listing(self, prefix: str = "") -> Sequence[tuple[str, int, str]]:
        """Return (name, bytes, etag) of all objects below a folder."""

        def attempt() -> Sequence[tuple[str, int, str]]:
            pages = self._client.list(self._store, prefix=prefix or None, chunk_size=LISTED_AT_ONCE)
            return [(entry["path"], entry["size"], entry["e_tag"] or "") for page in pages for entry in page]

        return self._retry("list it", prefix, attempt)

    def head(self, name: str) -> tuple[int, str]:
        """Return (bytes, etag). Raises FileNotFoundError."""

        def attempt() -> tuple[int, str]:
            with self._named(name):
                found = self._client.head(self._store, name)
            return int(found["size"]), found["e_tag"] or ""

        return self._retry("read its metadata", name, attempt)

    def read_exactly(self, name: str, offset: int, length: int, etag: str) -> bytes:
        """Read a range of an object with this etag. Raises FileNotFoundError, and StoreError if the object changed."""

        def attempt() -> bytes:
            try:
                with self._named(name):
                    data = bytes(self._get(name, offset, length, etag).bytes())
            except self._errors.PreconditionError:
                text = f"{self._uri}/{name}: changed while it was read (its etag was {etag}); run again"
                raise StoreError(text, path=f"{self._uri}/{name}") from None
            if len(data) != length:
                raise OSError(f"{length} bytes were requested, but {len(data)} received")
            return data

        return self._retry("read it", name, attempt) if length else b""

    def chunks(self, name: str, offset: int, length: int, etag: str) -> Iterator[bytes]:
        """See `Ranges.chunks`."""
        self.check_process()
        return map(bytes, self._get(name, offset, length, etag).stream(CHUNK_BYTES))

    def _get(self, name: str, offset: int, length: int, etag: str) -> Any:
        options = {"range": (offset, offset + length), **({"if_match": etag} if etag else {})}
        return self._client.get(self._store, name, options=options)

    def read_tail(self, name: str, offset: int, length: int, etag: str) -> bytes:
        """Read the end of an object as `read_exactly`, with a cache: an etag identifies the content."""
        key = name, etag, offset
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = self.read_exactly(name, offset, length, etag)
            for other in list(self._tails)[:-TAILS_MAX]:
                self._tails.pop(other, None)
        return tail

    def object(self, name: str, size: int, etag: str = "") -> Ranges:
        """Return an object of this size for reading in pieces. With an etag, only this version is read."""
        return Ranges(self, name, size, etag)

    def upload(self, path: Path, name: str) -> None:
        """Upload a local file under a unique name."""
        size = path.stat().st_size

        def attempt() -> None:
            parts = {"chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
            self._client.put(self._store, name, path, use_multipart=size > PART_BYTES, **parts)
            found = self.head(name)[0]
            if found != size:
                raise OSError(f"it has {found} bytes, {size} were written")

        self._retry("write it", name, attempt)

    def copy(self, origin: RemoteStore, name: str, size: int, target: str) -> bool:
        """Copy an object from a store to a name in this one, without transferring its bytes through this process.

        Returns False if that is impossible. Replaces an existing target. Raises FileNotFoundError.
        """
        if (origin._root_uri, origin.options) != (self._root_uri, self.options) or size > COPY_BYTES_MAX:
            return False

        def attempt() -> bool:
            with origin._named(name):
                self._client.copy(self._root, origin._full_name(name), self._full_name(target))
            return True

        return self._retry("copy it", name, attempt)

    def is_empty(self, prefix: str) -> bool:
        """Return whether there is no object below a folder, with one request."""

        def attempt() -> bool:
            return not any(len(page) for page in self._client.list(self._store, prefix=prefix, chunk_size=1))

        return self._retry("list it", prefix, attempt)

    def names_at_top(self, prefix: str = "") -> Sequence[str]:
        """Return the objects and folders directly below a folder."""

        def attempt() -> Sequence[str]:
            found = self._client.list_with_delimiter(self._store, prefix or None)
            paths = [*found["common_prefixes"], *(it["path"] for it in found["objects"])]
            return [str(it).rpartition("/")[2] for it in paths]

        return self._retry("list it", prefix, attempt)

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)

        def attempt() -> None:
            try:
                self._client.delete(self._store, wanted)
            except (self._errors.NotFoundError, FileNotFoundError):
                if len(wanted) > 1:  # after an error for a missing one, others may remain
                    for name in wanted:
                        self.delete([name])

        if wanted:
            self._retry("delete it", wanted[0], attempt)

    def clear(self, prefix: str) -> None:
        self.delete(self.list(prefix))

    def settle(self, prefix: str) -> None:
        """Do nothing: everything visible in an object store is durable."""

    def exists(self, name: str) -> bool:
        try:
            self.head(name)
        except FileNotFoundError:
            return False
        return True

    def writer(self, name: str) -> Writer:
        return _RemoteWriter(self, name)

    def check_process(self) -> None:
        """Raise PolicyError in a fork of a process that has sent requests: the client's threads are not in it, so a
        request would wait without end."""
        if not _PROCESS:
            _PROCESS.append(os.getpid())
        if _PROCESS[0] != os.getpid():
            raise PolicyError(
                f"{self._uri}: process {_PROCESS[0]} used an object store before it forked this one, in which requests "
                "would wait without end. Start processes with the method 'spawn' or 'forkserver', or fork before the "
                "first request"
            )

    @property
    def _permanent(self) -> tuple[type[Exception], ...]:
        """Errors that a retry cannot fix."""
        names = ("InvalidPathError", "PermissionDeniedError", "UnauthenticatedError", "NotSupportedError")
        return tuple(getattr(self._errors, name) for name in names)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Name the object in the error for a missing one."""
        try:
            yield
        except (self._errors.NotFoundError, FileNotFoundError):
            raise FileNotFoundError(f"{self._uri}/{name}") from None

    def _retry(self, what: str, name: str, attempt: Callable[[], T]) -> T:
        """Retry until an attempt succeeds, and return its result."""
        self.check_process()
        pause = PAUSE_SECONDS
        for tries in range(1, TRIES_MAX + 1):
            try:
                return attempt()
            except (FileNotFoundError, StoreError):
                raise
            except self._permanent as error:
                raise StoreError(f"{self._uri}/{name}: cannot {what}: {_short(error)}") from error
            except Exception as error:
                if tries == TRIES_MAX:
                    problem = f"cannot {what}, tried {tries} times: {_short(error)}"
                    raise StoreError(f"{self._uri}/{name}: {problem}") from error
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        raise AssertionError("the last try returns or raises")


@dataclass(frozen=True)
class Ranges:
    """An object of a remote store for reading in pieces."""

    store: RemoteStore
    name: str
    length: int
    etag: str

    def size(self) -> int:
        return self.length

    def read(self, offset: int, length: int) -> bytes:
        """Read a range. Raises StoreError if the object changed, or the answer is too short."""
        is_tail = self.etag and length <= TAIL_BYTES and offset + length == self.length
        read = self.store.read_tail if is_tail else self.store.read_exactly
        return read(self.name, offset, length, self.etag)

    def pieces(self, length: int) -> Iterator[bytes]:
        """Yield the whole object in pieces of this length, with read-ahead."""
        ranges = iter([(offset, min(length, self.length - offset)) for offset in range(0, self.length, length)])
        with ThreadPoolExecutor(PIECES_AHEAD) as pool:
            ahead = deque(pool.submit(self.read, *it) for it in islice(ranges, PIECES_AHEAD))
            while ahead:
                data = ahead.popleft().result()
                ahead.extend(pool.submit(self.read, *it) for it in islice(ranges, 1))
                yield data

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """Yield a range in chunks as one request delivers them. Does not retry: any of its errors may be temporary."""
        return self.store.chunks(self.name, offset, length, self.etag)

    def open(self) -> IO[bytes]:
        """Open as a file object."""
        return io.BufferedReader(_Reader(self), 1 << 20)


class _Reader(io.RawIOBase):
    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.ranges.size()}[whence]
        self.position = start + offset
        return self.position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self.ranges.size() - self.position))
        if count:
            buffer[:count] = self.ranges.read(self.position, count)
            self.position += count
        return count


class _RemoteWriter:
    """Uploads a large object in parts as data arrives. A small one is put at once."""

    def __init__(self, store: RemoteStore, name: str) -> None:
        store.check_process()
        self.store, self.name = store, name
        parts = {"buffer_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
        self.file: Any = store._client.open_writer(store._store, name, **parts)

    def write(self, data: bytes, /) -> None:
        self._attempt(lambda: self.file.write(data))

    def close(self) -> None:
        self._attempt(self.file.close)

    def give_up(self) -> None:
        del self.file

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            raise StoreError(f"{self.store.uri}/{self.name}: cannot write it: {_short(error)}") from error


def _short(error: Exception) -> str:
    """Return a client's error text without the dump of its internal structures."""
    return str(error).partition("\n")[0] or repr(error)
