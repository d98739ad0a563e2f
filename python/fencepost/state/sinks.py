"""The output: a folder in which each version appears at once.

    _fencepost.json            the state that this folder belongs to
    run=<n>/part-<ordinal>.parquet                           in the Hive-style folders of its input
    run=<n>/_rejects/verdict=<name>/part-<ordinal>.parquet   refused rows that were set aside
    run=<n>/_missing/part-00000.parquet                      what changed in the list of missing ranges
    run=<n>/_empty             of a version without output
    run=<n>/_abandoned         of a version that will never be shown
    _prepare/<n>-<attempt>/    what tasks of a running job write and hand on; readers ignore names that begin with `_`

A run's files are prepared in the same file system, so that one rename shows them all. The folder of a version is never
empty: a rename replaces an empty folder, and nothing may take the place of a version that is applied or abandoned.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import uuid4

from fencepost.errors import SinkChangedError, SinkError
from fencepost.state import changelog
from fencepost.state.commit import NewRows, Sink, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision, Outputs, Settings, SideFiles
from fencepost.state.disk import TEMPORARY, Disk, opened_folder
from fencepost.state.iceberg_tables import is_iceberg
from fencepost.state.scratch import FolderScratch
from fencepost.state.stores import LocalStore, RemoteStore, open_store
from fencepost.state.versions import State

IN_PLACE = "in-place"
"""The layout of a table that is deduplicated where it stands."""
MARKER = "_fencepost.json"
PREPARE = "_prepare"
CHECKED = 1_000
"""Of how many versions, the newest, a run checks that their folders are there; and that none is of so many after."""
EMPTY_NAME, ABANDONED_NAME = "_empty", "_abandoned"


def open_sink(uri: str, layout: str, disk: Disk, options: Mapping[str, Any] | None = None) -> Sink:
    """A sink by its place and layout, one of KINDS. `options`: of an object store or a catalog, see
    `fencepost.state.open_store` and `fencepost.state.iceberg_tables`.

    Raises SinkError where there is none for it.
    """
    for kind in KINDS:
        if kind.layout == layout:
            return kind.open(uri, disk, options)
    raise SinkError(f"{uri}: what its versions are shown by ('{layout}') is not known here: give the sink itself")


def layout_of(place: str, options: Mapping[str, Any] | None = None) -> str:
    """The layout of what is at a place, or is to be there. Raises StoreError."""
    return next(kind.layout for kind in KINDS if kind.is_at(place, options))


def _store(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> LocalStore | RemoteStore:
    store = open_store(uri, sync=disk.sync, options=options)
    if not isinstance(store, LocalStore | RemoteStore):
        raise SinkError(f"{uri}: a sink is a local folder or a prefix of an object store (s3://, gs://, az://)")
    return store


def _open_folder(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.prefix import RunPrefixes

    store = _store(uri, disk, options)
    return RunFolders(store.folder, disk) if isinstance(store, LocalStore) else RunPrefixes(store)


def _is_delta(place: str, options: Mapping[str, Any] | None) -> bool:
    from fencepost.state.delta import is_delta_sink

    store = open_store(place, options=options)
    return not store.exists(MARKER) and is_delta_sink(store)


def _open_delta(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.delta import DeltaSink

    return DeltaSink(_store(uri, disk, options), disk)


def _open_in_place(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.in_place import InPlace

    store = _store(uri, disk, options)
    if not isinstance(store, LocalStore):
        raise SinkError(f"{uri}: only a Delta table in a local folder can be deduplicated in place")
    return InPlace(store, disk)


def _open_iceberg(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.iceberg import IcebergSink

    return IcebergSink(uri, disk, options)


class Kind(NamedTuple):
    """A kind of sink that is opened by its place."""

    layout: str
    is_at: Callable[[str, Mapping[str, Any] | None], bool]
    open: Callable[[str, Disk, Mapping[str, Any] | None], Sink]


KINDS = (
    Kind("iceberg", lambda place, options: is_iceberg(place), _open_iceberg),
    Kind("delta", _is_delta, _open_delta),
    Kind("run", lambda place, options: True, _open_folder),
    Kind(IN_PLACE, lambda place, options: False, _open_in_place),
)
"""The first one that is at a place counts. Of what is both source and sink, the caller knows."""


@runtime_checkable
class ForJobs(Protocol):
    """What is no sink of a job, and knows one for it."""

    def for_job(self, state: str | os.PathLike[str]) -> Sink:
        """The sink for the job with this state."""


class RunFolders:
    """A sink with one folder per version, `run=<n>/`."""

    layout = "run"
    has_schema = False
    """See `Sink`; tables say True."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.location = path
        """What people know it by."""
        self.path = path
        """Where its own folders are."""
        self.disk = disk

    @property
    def can_merge(self) -> bool:
        """See `Sink`: folders take any columns; tables that are shown by folders have their own."""
        return not self.has_schema

    def look(self, before: Decision | None) -> dict[str, Any] | None:
        """See `Sink`: folders have no versions of their own."""
        return None

    def columns(self) -> Any:
        """See `Sink`: the state notes them."""
        return None

    def columns_of(self, schema: Any) -> Any:
        """See `Sink`."""
        return schema

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """See `Sink`: every file goes into a folder just as it is."""
        return {}

    def check(self, state: State) -> None:
        """Refuse a folder that is not this state's, or no longer what it left behind. Changes nothing.

        Raises SinkError, SinkChangedError.
        """
        # What the state is known to have, then the sink: other runs may finish versions meanwhile.
        seen, settings = state.seen(), state.settings()
        done, decided = seen.done, seen.decided
        if not (self.path / MARKER).exists():
            self._check_new(done)
        else:
            check_owner(self.path, self.owner(), state.uri, settings)
        # Not all folders: a year's versions are many.
        newest = range(max(state.known_floor(), done - CHECKED) + 1, done + 1)
        gone = next((it for it in newest if not os.path.lexists(f"{self.path}/run={it}")), None)
        if gone is not None and gone > state.floor():  # nor is it folded meanwhile
            raise SinkChangedError(
                f"{self.path}: run={gone} is gone, though version {gone} was written: put it back, or make "
                "an empty folder of that name if nobody wants its rows any more"
            )
        following = range(decided + 1, decided + CHECKED + 1)
        unknown = next((it for it in following if os.path.lexists(f"{self.path}/run={it}")), None)
        if unknown is not None and state.decided() < unknown:
            raise SinkChangedError(f"{self.path}: run={unknown} is there, though no such version was decided")

    def _check_new(self, done: int) -> None:
        if done:
            raise SinkChangedError(f"{self.path}: {MARKER} is gone, which said that the folder is this state's")
        names = os.listdir(self.path) if self.path.exists() else []
        foreign = sorted(name for name in names if name != PREPARE and not name.startswith(f"{MARKER}."))
        if foreign and MARKER not in names:  # unless another run has claimed it meanwhile
            raise SinkError(f"{self.path}: not empty and not a fencepost sink (it holds {', '.join(foreign[:5])})")

    def probe(self, version: int, attempt: str) -> None:
        """See `Sink`: a file system on which versions would not appear at once."""
        check_renames(self.prepare_folder(version, attempt) / "probe", self.disk)

    def claim(self, state_id: str) -> None:
        """Say whose folder it is. Raises SinkError if another state was faster."""
        self.disk.make_folder(self.path)
        marker = {"format": 1, "state": state_id, "layout": self.layout}
        temporary = self.path / PREPARE / f"{MARKER}.{uuid4().hex}{TEMPORARY}"
        self.disk.make_folder(temporary.parent)
        if not self.disk.put(self.path / MARKER, (json.dumps(marker) + "\n").encode(), temporary):
            raise SinkError(f"{self.path}: belongs to another state (id {self.owner()}), claimed meanwhile")

    def scratch(self, version: int, attempt: str) -> FolderScratch:
        """See `Sink`."""
        return FolderScratch(str(self.prepare_folder(version, attempt)), self.disk)

    def prepare_folder(self, version: int, attempt: str) -> Path:
        """Where an attempt's tasks write."""
        return self.path / PREPARE / f"{version}-{attempt}"

    def staging(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int
    ) -> tuple[Callable[[Any], Any], list[Any]]:
        """See `Sink`: nothing, they are as near as can be."""
        return len, []

    def staged(self, results: list[Any]) -> dict[str, Any]:
        """See `Sink`."""
        return {}

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        """See `Sink`: one folder has them all. Tasks that lost know nothing of it."""
        folder = self.prepare_folder(version, attempt)
        prepared = folder / "run"
        self.disk.make_folder(prepared, self.path)
        folders = {name.rpartition("/")[0] for name in winners} - {""}
        for subfolder in sorted(folders):
            self.disk.make_folder(prepared / subfolder, prepared)
        root = str(prepared)
        for name, written in winners.items():
            os.rename(f"{folder}/{written}", f"{root}/{name}")
        for subfolder in folders | {""}:
            self.disk.seal(prepared / subfolder)
        return prepared.relative_to(self.path).as_posix()

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """See `Sink`: one rename, of a folder that has just what was decided."""
        target, is_empty = self._target(decision), decision.prepared is None
        prepared = self._folder_for_marker(decision) if is_empty else self.path / str(decision.prepared)
        try:
            if is_empty:
                self._mark(prepared, EMPTY_NAME)
            if not self._holds(prepared, decision):
                raise FileNotFoundError(prepared)
            self.disk.move(prepared, target)
        except OSError:
            # Shown already, or in this moment by another run: a folder with content is never replaced.
            if self._is_fenced(target):
                return ABANDONED
            if not target.exists() and (is_empty or self._holds(prepared, decision)):
                raise  # nothing is wrong with either: rights, or the disk
            if not self._holds(target, decision):
                raise SinkChangedError(
                    f"{target}: not what version {decision.version} decided, and it cannot be taken from {prepared}"
                ) from None
            self.disk.seal(self.path)
        finally:
            if is_empty:
                self.disk.remove(prepared.parent)
        self.clear(decision)
        return APPLIED

    def fence(self, decision: Decision) -> str:
        """See `Sink`: a folder with a marker takes the place of the version's.

        What somebody else has put there is as good: no apply replaces it.
        """
        target, marked = self._target(decision), self._folder_for_marker(decision)
        try:
            self._mark(marked, ABANDONED_NAME)
            self.disk.move(marked, target)
        except OSError:
            if not os.path.lexists(target):
                raise  # nothing is in the way: rights, or the disk
            is_shown = self._holds(target, decision)
            if not is_shown and _sizes(target).items() & _wanted(decision).items():
                raise SinkChangedError(
                    f"{target}: not what version {decision.version} decided, but a part of it: put back what is gone "
                    "and take away what is more, or remove the folder"
                ) from None
            self.disk.seal(self.path)
            if is_shown:
                return APPLIED
        finally:
            self.disk.remove(marked.parent)
        self.clear(decision)
        return ABANDONED

    def names(self, decision: Decision) -> list[str]:
        """Where a version's outputs are, relative to the sink."""
        return [f"run={decision.version}/{name}" for name in decision.outputs.name]

    def shown(self, decision: Decision) -> int:
        """See `Sink`."""
        return len(_sizes(self._target(decision)).keys() & set(decision.outputs.name))

    def shown_files(self) -> list[str]:
        """The names of the files with kept rows of all versions."""
        runs = [it for it in os.listdir(self.path) if re.fullmatch(r"run=\d+", it)]
        found = [f"{run}/{name}" for run in runs for name in _sizes(self.path / run) if not name.startswith("_")]
        return sorted(name for name in found if name.endswith(".parquet"))

    def schema(self) -> str | None:
        """As `RunPrefixes.schema`: folders have no manifest."""
        return None

    def changelog(self) -> Iterator[Any]:
        """See `Sink`."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for path in sorted(self.path.glob(f"run=*/{changelog.FOLDER}/*.parquet")):
            try:
                yield pq.ParquetFile(path).read()
            except (OSError, ValueError) as error:
                raise SinkError(f"{path}: cannot be read ({error}): put back what it was, or remove it") from error

    def prepare_changelog(self, version: int, attempt: str, lines: list[Any]) -> tuple[SideFiles, str]:
        """See `Sink`."""
        return changelog.prepare(self, version, attempt, lines)

    def discard(self, version: int, attempt: str) -> None:
        """See `Sink`."""
        self.disk.remove(self.prepare_folder(version, attempt))

    def collect_garbage(self, done: int) -> None:
        """Remove what attempts at versions that are done have left."""
        folder = self.path / PREPARE
        for path in folder.iterdir() if folder.exists() else ():
            match = re.fullmatch(r"(\d+)-\w+", path.name)
            if (match and int(match[1]) <= done) or (done and path.name.startswith(f"{MARKER}.")):
                self.disk.remove(path)

    def fold(self, first: int, last: int) -> None:
        """See `Sink`: the folders of versions without output."""
        for version in range(first, last + 1):
            folder = self.path / f"run={version}"
            with suppress(OSError):  # it has output, or is gone
                (folder / EMPTY_NAME).unlink(missing_ok=True)
                folder.rmdir()

    def owner(self) -> str | None:
        """The state whose folder it is."""
        try:
            owner: str = json.loads((self.path / MARKER).read_bytes())["state"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return owner

    def _target(self, decision: Decision) -> Path:
        return self.path / f"run={decision.version}"

    def _folder_for_marker(self, decision: Decision) -> Path:
        """A folder of this caller alone, which is not there yet."""
        return self.prepare_folder(decision.version, uuid4().hex) / "run"

    def _mark(self, folder: Path, name: str) -> None:
        """Make the folder, with an empty file of this name, to be renamed.

        Raises FileNotFoundError where the version is done meanwhile, and the folder was taken for rubbish.
        """
        self.disk.make_folder(folder)
        self.disk.write(folder / name, b"")
        self.disk.seal(folder)

    def clear(self, decision: Decision, tasks: Tasks = in_turn) -> None:
        """Remove what was prepared for a version that is over."""
        if decision.prepared is not None:
            self.disk.remove((self.path / decision.prepared).parent)

    def status(self, decision: Decision) -> str | None:
        """For sinks whose rows are elsewhere: what has become of a version, if anything has as far as the side tables
        know, which come last."""
        target = self._target(decision)
        if self._is_fenced(target):
            return ABANDONED
        return APPLIED if self._holds(target, without_rows(decision)) else None

    @staticmethod
    def _is_fenced(target: Path) -> bool:
        return (target / ABANDONED_NAME).exists()

    @staticmethod
    def _holds(target: Path, decision: Decision) -> bool:
        return _sizes(target) == _wanted(decision)


def check_owner(sink: str | Path, owner: str | None, state: str, settings: Settings | None) -> None:
    """Refuse a sink that belongs to another state than the one at hand. `owner`: the id that its marker names.

    Raises SinkError.
    """
    if settings is None:
        raise SinkError(
            f"{sink}: belongs to a state (id {owner}), and the state {state} is empty: it was lost, or another place "
            "is given. Put it back, or begin with a new sink; a sink has one state for ever"
        )
    if owner != settings.id:
        raise SinkError(f"{sink}: belongs to another state (id {owner}); a sink has one for ever")


PROBE_FILES = 4
"""Files of the folder that is renamed by way of trial: where renames are copies, so many take long enough to see."""


def check_renames(folder: Path, disk: Disk) -> None:
    """Refuse a file system that does not show a renamed folder at once, or puts one in the place of another's content.

    So do mounts of object stores without renames of folders. Raises SinkError.
    """
    places = [folder / name for name in ("first", "second", "shown")]
    first, second, shown = places
    names = [f"{number}.probe" for number in range(PROBE_FILES)]
    try:
        for place in (first, second):
            place.mkdir(parents=True)
            for name in names:
                (place / name).write_text(place.name)
        disk.put(folder / "link", b"")
        seen = _rename_watched(first, shown)
        if seen - {PROBE_FILES} or os.path.lexists(first) or sorted(os.listdir(shown)) != names:
            raise SinkError(_unfit(folder, f"a renamed folder appears file by file (seen: {sorted(seen)} files)"))
        with suppress(OSError):
            os.rename(second, shown)
        if not os.path.lexists(second) or any((shown / name).read_text() != "first" for name in names):
            raise SinkError(_unfit(folder, "a renamed folder takes the place of one that has content"))
    except OSError as error:
        raise SinkError(_unfit(folder, f"{error.strerror} (error {error.errno})")) from error
    finally:
        disk.remove(folder)


def _unfit(folder: Path, problem: str) -> str:
    return (
        f"{folder}: this file system cannot hold a sink: {problem}. A version must appear by one rename of its folder, "
        "and links must work. Use a local disk, NFS, or a table (Delta, SQL) as the sink"
    )


def _rename_watched(source: Path, target: Path) -> set[int]:
    """Rename a folder; gives how many files another one sees in the target meanwhile."""
    seen: set[int] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            with suppress(OSError):
                seen.add(len(os.listdir(target)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        os.rename(source, target)
    finally:
        is_over.set()
        watcher.join()
    return seen


def without_rows(decision: Decision) -> Decision:
    """The decision as far as it concerns the folder beside the rows."""
    prepared = decision.prepared if len(decision.side_files) else None
    return dataclasses.replace(decision, outputs=Outputs(), prepared=prepared)


def _wanted(decision: Decision) -> dict[str, int]:
    """The bytes of every file that a version's folder has, by its name within."""
    if decision.prepared is None:
        return {EMPTY_NAME: 0}
    outputs, sides = decision.outputs, decision.side_files
    return dict(zip([*outputs.name, *sides.name], [*outputs.bytes, *sides.bytes], strict=True))


def _sizes(folder: Path) -> dict[str, int]:
    """The bytes of every file beneath a folder, by its name within; nothing where there is no folder.

    No path objects: a version may have 100 000 files.
    """
    found: dict[str, int] = {}
    subfolders = [""]
    while subfolders:
        inside = subfolders.pop()
        try:
            with opened_folder(f"{folder}/{inside}") as handle, os.scandir(handle) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        subfolders.append(f"{inside}{entry.name}/")
                    else:
                        found[inside + entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


def number_of(name: str) -> str:
    """What tells an output of a version from the others of its folder."""
    return name.rpartition("/")[2].removeprefix("part-").removesuffix(".parquet")
