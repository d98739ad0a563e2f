"""Where the files of a state lie: a local folder, an object store, or memory.

One small set of calls for all of them. Names are relative and separated by "/". Everything that decides goes through
`put`: a put-if-absent that believes no answer but "done". A retried request may see its own success as "exists", a
409 may mean that nothing landed, a time-out says nothing at all. So after any other answer the object is read back
and compared: whoever must tell two writers apart puts a nonce into the data.

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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, TypeVar
from uuid import uuid4

from fencepost.errors import StoreError
from fencepost.state.disk import TEMPORARY, Disk

T = TypeVar("T")

TRIES_MAX = 8  # of one call to a remote store, above those of its client
PAUSE_SECONDS = 0.05  # before the second try; it doubles, up to PAUSE_SECONDS_MAX
PAUSE_SECONDS_MAX = 2.0
LISTED_AT_ONCE = 1_000
TEMPORARIES = "tmp"
"""The folder of local files that are not there yet."""
PART_BYTES, PARTS_AT_ONCE = 64 << 20, 2
"""Of a file that goes to a remote store in parts: the bytes of one, and how many are under way."""
TAIL_BYTES, TAILS_MAX = 64 << 10, 256
"""Each step of a run reads the end of a file, where its footer is: such ends are kept, so many of the last ones."""
PIECES_AHEAD = 2
"""Of an object that is read from its begin to its end: how many pieces are under way while one is used."""
COPY_BYTES_MAX = 5 << 30
"""The most that a store copies by itself."""
PROBE_WRITERS, PROBE_ROUNDS = 8, 4
"""How many writers put at once when a remote store is probed, and how often."""
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""What file systems without hard links say."""

_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
_CLIENT_OPTIONS = ("allow_http", "connect_timeout", "proxy_url", "root_certificate", "timeout", "user_agent")


class Writer(Protocol):
    """A file that is there, whole, once it is closed."""

    def write(self, data: bytes, /) -> object: ...
    def close(self) -> object: ...
    def give_up(self) -> object:
        """Instead of `close`: nobody will ask for it. What was written may stay as rubbish."""


class Store(Protocol):
    """The calls. All raise StoreError, with the URI in its message, where the store refuses or stays silent."""

    @property
    def uri(self) -> str:
        """A path, or a URI without a slash at its end."""

    def put(self, name: str, data: bytes) -> bool:
        """Put if absent. True: the object holds `data`, durably. False: it holds something else."""

    def replace(self, name: str, data: bytes) -> None:
        """Put whatever was there before. Of several writers any may win, and a power loss may take it back."""

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        """The content, or a range of it; shorter where it ends before. Raises FileNotFoundError."""

    def size(self, name: str) -> int:
        """How many bytes the content has. Raises FileNotFoundError."""

    def open(self, name: str) -> IO[bytes]:
        """The content, for readers of files, who read parts of it. Raises FileNotFoundError."""

    def list(self, prefix: str) -> list[str]:
        """The names of all objects beneath the folder `prefix`, in any order; none where there is no such folder."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are gone already do not matter."""

    def clear(self, prefix: str) -> None:
        """Remove everything beneath the folder `prefix`, and the folder."""

    def settle(self, prefix: str) -> None:
        """Wait until the names that are in the folder `prefix` now are durable: their writer may have died before."""

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name, complete."""

    def writer(self, name: str) -> Writer:
        """A large object under a name that nobody else uses."""


def open_store(uri: str | os.PathLike[str], *, sync: bool = True, options: Mapping[str, Any] | None = None) -> Store:
    """The store at a path or at a `file://`, `s3://`, `gs://`, `az://` or `memory://` URI. Nothing is created.

    `sync=False`: local files are not synced. `options`: of a remote store, names as obstore has them (`endpoint`,
    `region`, `access_key_id`, ...; `allow_http` and `timeout` of its client); what is not given comes from the
    environment. `credential_provider` is "package.module:factory": every process that reaches the store imports it and
    calls it without arguments for a provider, as obstore defines them (such as
    "obstore.auth.boto3:Boto3CredentialProvider"), which is asked again when credentials expire. Remote stores need
    `fencepost[lake]`. Raises StoreError for a URI with a password in it.
    """
    text = os.fspath(uri)
    match = re.match(r"([a-z][a-z0-9+.-]*)://", text)
    if match is None:
        return LocalStore(text, sync=sync)
    scheme, rest = match[1], text[match.end() :]
    if re.match(r"[^/]*:[^/]*@", rest):
        raise StoreError(
            f"{scheme}://...@{rest.partition('@')[2]}: the URI has credentials in it, and a state writes down the URIs "
            "it knows: give them as options, or in the environment"
        )
    if scheme == "file":
        if not rest.startswith("/"):
            raise StoreError(f"{text}: a file:// URI has three slashes and an absolute path")
        return LocalStore(rest, sync=sync)
    if scheme == "memory":
        return MemoryStore(text)
    if scheme in _REMOTE:
        return RemoteStore(text, options)
    raise StoreError(f"{text}: no store for {scheme}://; there are paths, file, {', '.join(_REMOTE)} and memory")


def is_local(uri: str | os.PathLike[str]) -> bool:
    """Whether `open_store` gives a local folder for it."""
    text = os.fspath(uri)
    return text.startswith("file://") or "://" not in text


def absolute(uri: str | os.PathLike[str]) -> str:
    """The absolute path of a local folder or file, or a URI without a slash at its end."""
    text = os.fspath(uri)
    return os.path.abspath(text.removeprefix("file://")) if is_local(text) else text.rstrip("/")


def check_exclusion(store: Store, folder: str = "probe") -> None:
    """Refuse a store that lets several writers put the same name. `folder`: where to try it. Raises StoreError.

    Writers of a remote store put at the same time: some stores refuse the second of two puts in turn, and accept
    several at once. Such a probe can refute a store, and never prove one.
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
                f"{store.uri}: this file system cannot hold a state: {error.strerror} (error {error.errno}). A "
                "decision must appear by a hard link. Use a local disk or NFS, or an object store by its URI (s3://, "
                "gs://, az://)",
                errno=error.errno,
            ) from error
        finally:
            store.delete([name])
        if won != [found]:
            raise StoreError(
                f"{store.uri}: of several puts of one new name exactly one must succeed, and here {len(won)} did: the "
                "store does not keep conditional puts apart, and two jobs would write over each other's decisions. Use "
                "another store for the state"
            )


def _put_in_turn(store: Store, name: str) -> list[bytes]:
    """What was put by those writers that succeeded."""
    return [data for data in (b"first", b"second") if store.put(name, data)]


def _put_at_once(store: Store, name: str) -> list[bytes]:
    """The same of writers that do not wait for each other."""
    start = threading.Barrier(PROBE_WRITERS)

    def put(data: bytes) -> bool:
        start.wait()
        return store.put(name, data)

    everyone = [b"writer %d" % number for number in range(PROBE_WRITERS)]
    with ThreadPoolExecutor(PROBE_WRITERS) as pool:
        try:
            done = [pool.submit(put, data) for data in everyone]
        except BaseException:
            start.abort()  # those that have begun would wait for ever for a thread that could not be started
            raise
    return [data for data, it in zip(everyone, done, strict=True) if it.result()]


class LocalStore:
    """A local folder. A name that is there is there whole, and still after a power loss.

    `temporaries`: the folder in it of files that are not there yet; None: beside those that they become, in a folder
    that is not ours alone.
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
        # Deepest first. The folders right beneath the root stay: others may be about to write there.
        inside = (folder for folder in folders if len(folder.parts) > len(self.folder.parts) + 1)
        for folder in sorted(inside, key=lambda folder: -len(folder.parts)):
            try:
                folder.rmdir()
            except OSError:
                continue  # not empty, or gone

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
        """Where a file is written that is not there yet. Not beside it, where we may: to find what crashed writers left
        there, all files of a folder would be listed."""
        if self.temporaries is None:
            return self.folder / f"{name}.{uuid4().hex}{TEMPORARY}"
        folder = self.folder / self.temporaries
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name.replace('/', '-')}.{uuid4().hex}{TEMPORARY}"


def not_given(path: str, problem: str, error: OSError) -> StoreError:
    """What to raise where the system does not give what lies at a path, which says nothing of the content."""
    text = f"{path}: {problem}: {error.strerror}. Check the storage and the rights, then run again"
    return StoreError(text, path=path, errno=error.errno)


def _unless_gone(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one."""
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
    """Objects of this process, for tests: every store of one URI has the same ones."""

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
        wanted = list(names)  # who gives them may ask this store for more
        with self._lock:
            for name in wanted:
                self.objects.pop(name, None)

    def clear(self, prefix: str) -> None:
        self.delete(self.list(prefix))

    def settle(self, prefix: str) -> None:
        """Nothing outlives this process."""

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
    """What `name` ("package.module:factory") gives when it is called."""
    module, _, factory = name.partition(":")
    try:
        return getattr(importlib.import_module(module), factory)()
    except Exception as error:
        raise StoreError(f"credential_provider={name}: {type(error).__name__}: {error}") from error


class RemoteStore:
    """An object store. What its client says of a put is believed only if it is "done"."""

    _client: Any
    _errors: Any
    _store: Any
    _root: Any
    """The bucket, without the prefix."""
    _tails: dict[tuple[str, str, int], bytes]
    """The last ends of objects that were read, by name, etag and first byte."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        self._uri = uri.rstrip("/")
        self.options = dict(options or {})
        self._connect()  # so that wrong options show here

    def __getstate__(self) -> tuple[str, dict[str, Any]]:
        return self._uri, self.options

    def __setstate__(self, state: tuple[str, dict[str, Any]]) -> None:
        self._uri, self.options = state
        self._connect()

    @property
    def _root_uri(self) -> str:
        scheme, _, rest = self._uri.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    def _full_name(self, name: str) -> str:
        """Of an object, from the root of its bucket."""
        prefix = self._uri.removeprefix(self._root_uri).strip("/")
        return f"{prefix}/{name}" if prefix else name

    def _connect(self) -> None:
        try:
            import obstore
            from obstore import store as stores
        except ImportError as error:
            raise StoreError(f"{self._uri}: remote stores need fencepost[lake] ({error})") from error
        config = dict(self.options)
        client = {name: config.pop(name) for name in _CLIENT_OPTIONS if name in config}
        provider = config.pop("credential_provider", None)
        # Few tries of the client, which knows less than `_persist`.
        retries = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
        self._errors = obstore.exceptions
        self._client = obstore
        self._tails: dict[tuple[str, str, int], bytes] = {}
        try:
            connect: Any = stores.from_url
            how = {"config": config, "client_options": client, "retry_config": retries}
            if provider is not None:
                how["credential_provider"] = load_provider(provider)
            self._store, self._root = (connect(uri, **how) for uri in (self._uri, self._root_uri))
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
                # Exists, conflict, time-out, broken off: whether it is there, and whose it is, only reading tells.
                try:
                    return self.read(name) == data
                except FileNotFoundError:
                    if isinstance(error, (self._errors.NotFoundError, FileNotFoundError)):
                        raise StoreError(f"{self._uri}/{name}: cannot put it: {_short(error)}") from error
                    raise error from None  # nothing is there: once more
            return True

        return self._persist("put", name, attempt)

    def replace(self, name: str, data: bytes) -> None:
        self._persist("put", name, lambda: self._client.put(self._store, name, data, use_multipart=False))

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        def attempt() -> bytes:
            try:
                if offset is None and length is None:
                    return bytes(self._client.get(self._store, name).bytes())
                if length is not None:
                    if length == 0:
                        return b""
                    return bytes(self._client.get_range(self._store, name, start=offset or 0, length=length))
                options = {"range": {"offset": offset or 0}}
                return bytes(self._client.get(self._store, name, options=options).bytes())
            except (self._errors.NotFoundError, FileNotFoundError):
                raise FileNotFoundError(f"{self._uri}/{name}") from None

        return self._persist("read", name, attempt)

    def size(self, name: str) -> int:
        return self.head(name)[0]

    def open(self, name: str) -> IO[bytes]:
        return self.object(name, *self.head(name)).open()

    def list(self, prefix: str) -> list[str]:
        return [name for name, _, _ in self.listing(prefix)]

    def listing(self, prefix: str = "") -> Sequence[tuple[str, int, str]]:
        """(name, bytes, etag) of all objects beneath a folder."""

        def attempt() -> Sequence[tuple[str, int, str]]:
            pages = self._client.list(self._store, prefix=prefix or None, chunk_size=LISTED_AT_ONCE)
            return [(entry["path"], entry["size"], entry["e_tag"] or "") for page in pages for entry in page]

        return self._persist("list", prefix, attempt)

    def head(self, name: str) -> tuple[int, str]:
        """(bytes, etag). Raises FileNotFoundError."""

        def attempt() -> tuple[int, str]:
            try:
                found = self._client.head(self._store, name)
            except (self._errors.NotFoundError, FileNotFoundError):
                raise FileNotFoundError(f"{self._uri}/{name}") from None
            return int(found["size"]), found["e_tag"] or ""

        return self._persist("look at", name, attempt)

    def read_exactly(self, name: str, offset: int, length: int, etag: str) -> bytes:
        """A range of an object, if it still has this etag. Raises FileNotFoundError, and StoreError if it changed."""

        def attempt() -> bytes:
            options = {"range": (offset, offset + length), **({"if_match": etag} if etag else {})}
            try:
                data = bytes(self._client.get(self._store, name, options=options).bytes())
            except (self._errors.NotFoundError, FileNotFoundError):
                raise FileNotFoundError(f"{self._uri}/{name}") from None
            except self._errors.PreconditionError:
                text = f"{self._uri}/{name}: changed while it was read (its etag was {etag}); run again"
                raise StoreError(text, path=f"{self._uri}/{name}") from None
            if len(data) != length:
                raise OSError(f"{len(data)} bytes came where {length} were asked for")
            return data

        return self._persist("read", name, attempt) if length else b""

    def read_tail(self, name: str, offset: int, length: int, etag: str) -> bytes:
        """The same of the end of an object, which is kept: an etag stands for one content."""
        key = name, etag, offset
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = self.read_exactly(name, offset, length, etag)
            for other in list(self._tails)[:-TAILS_MAX]:
                self._tails.pop(other, None)
        return tail

    def object(self, name: str, size: int, etag: str = "") -> Ranges:
        """An object of so many bytes, to be read in pieces. With an etag, just this object is read."""
        return Ranges(self, name, size, etag)

    def upload(self, path: Path, name: str) -> None:
        """Put a local file under a name that nobody else uses."""
        size = path.stat().st_size

        def attempt() -> None:
            parts = {"chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
            self._client.put(self._store, name, path, use_multipart=size > PART_BYTES, **parts)
            found = self.head(name)[0]
            if found != size:
                raise OSError(f"it has {found} bytes, {size} were written")

        self._persist("write", name, attempt)

    def copy(self, origin: RemoteStore, name: str, size: int, target: str) -> bool:
        """Copy an object of so many bytes from a store to a name in this one, without its bytes passing here; False
        where that cannot be. An object of the target's name is replaced. Raises FileNotFoundError."""
        if (origin._root_uri, origin.options) != (self._root_uri, self.options) or size > COPY_BYTES_MAX:
            return False

        def attempt() -> bool:
            try:
                self._client.copy(self._root, origin._full_name(name), self._full_name(target))
            except (self._errors.NotFoundError, FileNotFoundError):
                raise FileNotFoundError(f"{origin.uri}/{name}") from None
            return True

        return self._persist("copy", name, attempt)

    def is_empty(self, prefix: str) -> bool:
        """Whether there is no object beneath a folder, by one request."""

        def attempt() -> bool:
            return not any(len(page) for page in self._client.list(self._store, prefix=prefix, chunk_size=1))

        return self._persist("list", prefix, attempt)

    def names_at_top(self, prefix: str = "") -> Sequence[str]:
        """The objects and folders that are right beneath a folder."""

        def attempt() -> Sequence[str]:
            found = self._client.list_with_delimiter(self._store, prefix or None)
            paths = [*found["common_prefixes"], *(it["path"] for it in found["objects"])]
            return [str(it).rpartition("/")[2] for it in paths]

        return self._persist("list", prefix, attempt)

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)

        def attempt() -> None:
            try:
                self._client.delete(self._store, wanted)
            except (self._errors.NotFoundError, FileNotFoundError):
                if len(wanted) > 1:  # where one is gone others may be left
                    for name in wanted:
                        self.delete([name])

        if wanted:
            self._persist("delete", wanted[0], attempt)

    def clear(self, prefix: str) -> None:
        self.delete(self.list(prefix))

    def settle(self, prefix: str) -> None:
        """What an object store shows is durable."""

    def exists(self, name: str) -> bool:
        try:
            self.head(name)
        except FileNotFoundError:
            return False
        return True

    def writer(self, name: str) -> Writer:
        return _RemoteWriter(self, name)

    @property
    def _permanent(self) -> tuple[type[Exception], ...]:
        """What no other try can mend."""
        names = ("InvalidPathError", "PermissionDeniedError", "UnauthenticatedError", "NotSupportedError")
        return tuple(getattr(self._errors, name) for name in names)

    def _persist(self, what: str, name: str, attempt: Callable[[], T]) -> T:
        """The result of the first try that has one."""
        pause = PAUSE_SECONDS
        for tries in range(1, TRIES_MAX + 1):
            try:
                return attempt()
            except (FileNotFoundError, StoreError):
                raise
            except self._permanent as error:
                raise StoreError(f"{self._uri}/{name}: cannot {what} it: {_short(error)}") from error
            except Exception as error:
                if tries == TRIES_MAX:
                    problem = f"cannot {what} it, tried {tries} times: {_short(error)}"
                    raise StoreError(f"{self._uri}/{name}: {problem}") from error
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        raise AssertionError("the last try gives or raises")


@dataclass(frozen=True)
class Ranges:
    """An object of a remote store, to be read in pieces."""

    store: RemoteStore
    name: str
    length: int
    etag: str

    def size(self) -> int:
        return self.length

    def read(self, offset: int, length: int) -> bytes:
        """Raises StoreError where the object has changed, and where the answer is not as long as that."""
        is_tail = self.etag and length <= TAIL_BYTES and offset + length == self.length
        read = self.store.read_tail if is_tail else self.store.read_exactly
        return read(self.name, offset, length, self.etag)

    def pieces(self, length: int) -> Iterator[bytes]:
        """All of it, in pieces of so many bytes; the next ones are under way while one is used."""
        spans = iter([(offset, min(length, self.length - offset)) for offset in range(0, self.length, length)])
        with ThreadPoolExecutor(PIECES_AHEAD) as pool:
            ahead = deque(pool.submit(self.read, *span) for span in islice(spans, PIECES_AHEAD))
            while ahead:
                data = ahead.popleft().result()
                ahead.extend(pool.submit(self.read, *span) for span in islice(spans, 1))
                yield data

    def open(self) -> IO[bytes]:
        """For readers that know files only."""
        return io.BufferedReader(_Reader(self), 1 << 20)


class ReadAhead:
    """An object as native code reads it, from its begin to its end: while a block is used the next one is under way.

    What is read in another order is read all the same.
    """

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.pool = ThreadPoolExecutor(1)
        self.ahead: tuple[tuple[int, int], Future[bytes]] | None = None

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def size(self) -> int:
        return self.ranges.size()

    def read(self, offset: int, length: int) -> bytes:
        """See `Ranges.read`."""
        ahead, self.ahead = self.ahead, None
        data = ahead[1].result() if ahead and ahead[0] == (offset, length) else self.ranges.read(offset, length)
        following = offset + length, min(length, self.size() - offset - length)
        if following[1] > 0:
            self.ahead = following, self.pool.submit(self.ranges.read, *following)
        return data


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

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self.ranges.size() - self.position))
        if count:
            buffer[:count] = self.ranges.read(self.position, count)
            self.position += count
        return count


class _RemoteWriter:
    """Parts of a large object go out as they come; a small one is put at once."""

    def __init__(self, store: RemoteStore, name: str) -> None:
        self.store, self.name = store, name
        parts = {"buffer_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
        self.file: Any = store._client.open_writer(store._store, name, **parts)

    def write(self, data: bytes, /) -> None:
        self._tell(lambda: self.file.write(data))

    def close(self) -> None:
        self._tell(self.file.close)

    def give_up(self) -> None:
        del self.file

    def _tell(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            raise StoreError(f"{self.store.uri}/{self.name}: cannot write it: {_short(error)}") from error


def _short(error: Exception) -> str:
    """What a client says, without the dump of its own structures."""
    return str(error).partition("\n")[0] or repr(error)
