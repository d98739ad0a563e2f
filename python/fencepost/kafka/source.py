"""Locates a log: a partition's folder, a single segment, or a URI of either.

A broker names a partition's folder `topic-0`. It uses `topic-0.<id>-delete`, `-future` or `-stray` while the partition
is deleted or moved, or when its topic is gone. Topic and partition are the same in all of them. Segments are named by
the first offset that they may contain, with twenty digits. Tiered storage appends an id.
"""

from __future__ import annotations

import dataclasses
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeAlias

from fencepost.errors import SourceError, StoreError
from fencepost.state.stores import Store, is_local, open_store

_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9]\d{0,9})(\.[0-9A-Za-z_-]+-(future|delete|stray))?")
_SEGMENT = re.compile(r"(\d{20})(-[\w-]+)?\.log")
_SWAP = re.compile(r"\d{20}\.log\.swap")
_OTHER = re.compile(r"\d{20}(-[\w-]+)?\.(snapshot|txnindex)")
_OFFSET = re.compile(r"\d{20}")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

Options: TypeAlias = Mapping[str, Any] | None
"""Options of a remote store, as for `fencepost.state.stores.open_store`."""


class Object(Protocol):
    """A file that is read by ranges."""

    def size(self) -> int:
        """Return the size in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Read a range. Shorter at the end of the file."""


@dataclass(frozen=True)
class Segment:
    path: str
    base_offset: int | None
    object: Object | None = None
    """None for a local file, which the extension opens by itself."""

    @property
    def parts(self) -> tuple[str, int | None, Object | None]:
        return self.path, self.base_offset, self.object

    def attached(self, options: Options) -> Segment:
        """Return the segment with its store. `options`: of the store, if it is remote."""
        if is_local(self.path):
            return self
        return dataclasses.replace(self, object=_StoreObject(*_open_object(self.path, options)))

    def size(self) -> int:
        """Return the size in bytes."""
        if self.object is not None:
            return self.object.size()
        with _reading(self.path):
            return os.path.getsize(self.path)

    def read(self, position: int, length: int) -> bytes:
        """Return a range of the bytes; fewer at the end."""
        if self.object is not None:
            return self.object.read(position, length)
        with _reading(self.path), open(self.path, "rb", buffering=0) as file:
            file.seek(position)
            return file.read(length)


@dataclass(frozen=True)
class Log:
    """The segments of a partition ordered by offset, or a single segment."""

    topic: str | None
    partition: int | None
    segments: tuple[Segment, ...]
    folder: str | None = None
    """The path or URI of the partition's folder. None: a single segment."""
    others: tuple[str, ...] = ()
    """Names of its snapshots and transaction indexes."""

    @property
    def is_folder(self) -> bool:
        return self.folder is not None

    def segment_of(self, offset: int) -> int:
        """Return the number of the segment that contains an offset, or will contain it.

        Raises SourceError for an offset before all segments: its record was deleted.
        """
        if offset < 0:
            raise ValueError(f"from_offset={offset}: expected 0 or more")
        bases = [it.base_offset or 0 for it in self.segments]
        if offset < bases[0]:
            path = self.folder or self.segments[0].path
            raise SourceError(
                f"{path}: offsets {offset} to {bases[0] - 1} are no longer in the log, which begins at {bases[0]}",
                path=path,
            )
        return bisect_right(bases, offset) - 1


def open_log(source: str | os.PathLike[str], options: Options = None) -> Log:
    """List the segments without opening them. Raises SourceError, StoreError, and EmptyLogError for an empty folder."""
    text = os.fspath(source)
    return _open_local(Path(_local_path(text))) if is_local(text) else _open_remote(text.rstrip("/"), options)


class EmptyLogError(SourceError):
    """A folder holds no segments of a log.

    What to do: pass the folder of a partition, such as `orders-0`, or the folder that contains such folders.
    """

    code = "FP203"


def find_partitions(source: str | os.PathLike[str], options: Options = None) -> list[str]:
    """Return the partition folders in a broker's log directory, or the source itself if it is a partition or segment.

    Raises SourceError if there is neither. Also raises it if a folder has segments but not a partition's name, because
    readers that go by names would skip it.
    """
    text = os.fspath(source)
    try:
        open_log(text, options)
    except SourceError:
        folders = _folders_in(text, options)
        if not folders:
            raise
        return folders
    return [text]


def _folders_in(text: str, options: Options) -> list[str]:
    if is_local(text):
        path = Path(_local_path(text))
        with _reading(text):
            folders = [it for it in path.iterdir() if it.is_dir()] if path.is_dir() else []
        nameless = {it.name for it in folders if _is_nameless(it.name) and _segments_of(_names_in(it))}
        return [str(path / name) for name in _by_topic(text, (it.name for it in folders), nameless)]
    store, name = _open_object(text, options)
    within = [path.removeprefix(f"{name}/").split("/") for path in store.list(name)]
    nameless = {it[0] for it in within if len(it) == 2 and _is_nameless(it[0]) and _segments_of(it[1:])}
    return [f"{text.rstrip('/')}/{it}" for it in _by_topic(text, {it[0] for it in within}, nameless)]


def _is_nameless(folder: str) -> bool:
    return topic_and_partition(folder)[0] is None


def _by_topic(where: str, names: Iterable[str], nameless: set[str]) -> list[str]:
    """Return names of partition folders, by topic and number. Raises SourceError for segments in other folders."""
    if nameless:
        raise SourceError(
            (
                f"{where}: the folder {min(nameless)} has segments, but its name has no topic and partition (such "
                "as orders-0): rename it, or move it elsewhere"
            ),
            path=where,
        )
    found = [(*topic_and_partition(name), name) for name in names]
    return [name for _, _, name in sorted(it for it in found if it[0] is not None)]


def read_whole(source: str | os.PathLike[str], options: Options = None) -> bytes:
    """Read a small file. Raises SourceError if it does not exist, StoreError if storage fails."""
    text = os.fspath(source)
    try:
        if is_local(text):
            return Path(_local_path(text)).read_bytes()
        store, name = _open_object(text, options)
        return store.read(name)
    except (OSError, StoreError) as error:
        raise _unreadable(text, error) from error


def read_beside(segment: Segment, ending: str, options: Options = None) -> tuple[str, bytes] | None:
    """Return path and content of the file of another kind beside a segment, or None."""
    if not segment.path.endswith(".log"):
        return None
    path = segment.path.removesuffix(".log") + ending
    try:
        return path, read_whole(path, options)
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def topic_and_partition(folder: str) -> tuple[str | None, int | None]:
    """Parse the name of a partition's folder."""
    match = _FOLDER.fullmatch(folder)
    if match is None or int(match["partition"]) > _INT32_MAX:
        return None, None
    return match["topic"], int(match["partition"])


def _local_path(text: str) -> str:
    if text.startswith("file://"):
        rest = text.removeprefix("file://")
        if not rest.startswith("/"):
            raise SourceError(f"{text}: a file:// URI has three slashes and an absolute path", path=text)
        return rest
    return text


def _unreadable(path: str, error: OSError | StoreError) -> SourceError | StoreError:
    """Classify an error: a missing file is a SourceError. Other errors are storage failures and say nothing about
    content."""
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path}: cannot be read: No such file or directory", path=path)
    if isinstance(error, StoreError):
        return error
    reason = error.strerror or str(error)
    text = f"{path}: cannot be read: {reason}. Check the storage and the rights, then run again"
    return StoreError(text, path=path, errno=error.errno)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Classify errors of the system, as `_unreadable`."""
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error) from error


def _names_in(folder: Path) -> list[str]:
    with _reading(str(folder)):
        return sorted(os.listdir(folder))


def _open_local(path: Path) -> Log:
    with _reading(str(path)):
        is_folder, exists = path.is_dir(), path.exists()
    if not is_folder:
        if not exists:
            raise SourceError(f"{path}: no such file or folder", path=str(path))
        topic, partition = topic_and_partition(path.absolute().parent.name)
        return Log(topic, partition, (Segment(str(path), _base_offset(path.name)),))
    names = _names_in(path)
    segments = _segments_of(names)
    _check_swaps(str(path), names)
    if not segments:
        partitions = [name for name in names if topic_and_partition(name)[0] is not None and (path / name).is_dir()]
        raise _empty(str(path), partitions)
    topic, partition = topic_and_partition(path.absolute().name)
    found = (Segment(str(path / name), _base_offset(name)) for name in segments)
    return Log(topic, partition, tuple(found), folder=str(path), others=_others_of(names))


def _open_remote(uri: str, options: Options) -> Log:
    try:
        store, name = _open_object(uri, options)
        if store.exists(name):
            topic, partition = topic_and_partition(PurePosixPath(store.uri).name)
            segment = Segment(uri, _base_offset(name), _StoreObject(store, name))
            return Log(topic, partition, (segment,))
        names = [path.removeprefix(f"{name}/") for path in store.list(name)]
    except (OSError, StoreError) as error:
        raise _unreadable(uri, error) from error
    segments = _segments_of(names)
    _check_swaps(uri, names)
    if not segments:
        raise _empty(uri, sorted({it.partition("/")[0] for it in names if "/" in it}))
    topic, partition = topic_and_partition(name)
    found = (Segment(f"{uri}/{it}", _base_offset(it), _StoreObject(store, f"{name}/{it}")) for it in segments)
    return Log(topic, partition, tuple(found), folder=uri, others=_others_of(names))


def _open_object(uri: str, options: Options) -> tuple[Store, str]:
    """Return the store of the parent folder, and the name in it."""
    folder, _, name = uri.rstrip("/").rpartition("/")
    return open_store(folder, options=options), name


@dataclass(frozen=True)
class _StoreObject:
    store: Store
    name: str

    def size(self) -> int:
        return self.store.size(self.name)

    def read(self, offset: int, length: int) -> bytes:
        return self.store.read(self.name, offset, length)


def _segments_of(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if _SEGMENT.fullmatch(name))


def _check_swaps(path: str, names: Iterable[str]) -> None:
    """Raise SourceError if a file of a broker has replaced segments, but is not a segment yet.

    A broker removes the old segments, the first one first, before it removes the suffix `.swap` of the new ones. In
    between, the offsets are in no segment, as after compaction.
    """
    known = set(names)
    for name in sorted(known):
        if _SWAP.fullmatch(name) and name.removesuffix(".swap") not in known:
            raise SourceError(
                f"{path}: a broker is replacing segments by {name}: it has removed the old ones, but not renamed the "
                "new one yet. Read again later. If the broker has stopped, start it: it completes the replacement. In "
                "a copy of the folder, remove .swap from the file's name",
                path=path,
            )


def _others_of(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if _OTHER.fullmatch(name)))


def _base_offset(name: str) -> int | None:
    match = _OFFSET.match(name)
    return int(match[0]) if match and int(match[0]) <= _INT64_MAX else None


def _empty(path: str, partitions: list[str]) -> EmptyLogError:
    some = ", ".join(partitions[:3]) + (", ..." if len(partitions) > 3 else "")
    hint = f"; it holds the partitions {some}: read each of them" if partitions else ""
    return EmptyLogError(f"{path}: no segments (*.log) in this folder{hint}", path=path)
