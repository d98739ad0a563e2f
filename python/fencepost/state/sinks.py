"""The output: a folder in which each version appears atomically.

    _fencepost.json            the state that owns this folder
    run=<n>/part-<ordinal>.parquet                           in the Hive-style folders of its input
    run=<n>/_rejects/verdict=<name>/part-<ordinal>.parquet   quarantined rows
    run=<n>/_missing/part-00000.parquet                      changes in the list of missing ranges
    run=<n>/_empty             of a version without output
    run=<n>/_abandoned         of a version that will never be shown
    _prepare/<n>-<attempt>/    prepared and exchange files of a running job; readers ignore names that begin with `_`

A run's files are prepared in the same file system, so that one rename shows all of them. The folder of a version is
never empty: a rename replaces an empty folder, and an applied or abandoned version must not be replaced.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from uuid import uuid4

from fencepost.errors import SinkChangedError, SinkError
from fencepost.state import changelog
from fencepost.state.commit import Sink, SinkDefaults, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision, Outputs, Settings
from fencepost.state.disk import TEMPORARY, Disk, opened_folder
from fencepost.state.scratch import FolderScratch
from fencepost.state.stores import unavailable

if TYPE_CHECKING:
    from fencepost.state.versions import State

IN_PLACE = "in-place"
"""The layout of a table that is deduplicated in place."""
MARKER = "_fencepost.json"
PREPARE = "_prepare"
CHECKED = 1_000
"""Number of newest versions whose folders a run checks, and number of later versions that must not exist."""
EMPTY_NAME, ABANDONED_NAME = "_empty", "_abandoned"
REJECTS = "_rejects"
"""The folder of quarantined rows."""
_SIDE_TABLES = (f"{REJECTS}/", f"{changelog.FOLDER}/")
"""Folders of a version with other rows than the kept ones. `partition_by` makes others whose names begin with `_`."""


@runtime_checkable
class ForJobs(Protocol):
    """An object that provides a job's sink without being one."""

    def for_job(self, state: str | os.PathLike[str]) -> Sink:
        """Return the sink for the job with this state."""


class RunFolders(SinkDefaults):
    """A sink with one folder per version, `run=<n>/`."""

    layout = "run"
    has_schema = False
    can_merge = True

    def __init__(self, path: Path, disk: Disk) -> None:
        self.location = path
        """Its location for messages."""
        self.path = path
        """Where its own folders are."""
        self.disk = disk

    def check(self, state: State) -> None:
        """Raise SinkError for another state's folder, SinkChangedError for one that lost versions. Changes nothing."""
        # Read the state before the sink, because other runs may finish versions in the meantime.
        seen, settings = state.newest(), state.settings()
        done, decided = seen.done, seen.decided
        if not (self.path / MARKER).exists():
            self._check_new(done)
        else:
            check_owner(self.path, self.owner(), state.uri, settings)
        # Check the newest folders only: a year has many versions.
        newest = range(max(state.cached_floor(), done - CHECKED) + 1, done + 1)
        gone = next((it for it in newest if not os.path.lexists(f"{self.path}/run={it}")), None)
        if gone is not None and gone > state.floor():  # check that it was not folded in the meantime
            raise SinkChangedError(
                f"{self.path}: run={gone} is gone, but version {gone} was written: restore it, or create an empty "
                "folder of that name if its rows are no longer needed"
            )
        following = range(decided + 1, decided + CHECKED + 1)
        unknown = next((it for it in following if os.path.lexists(f"{self.path}/run={it}")), None)
        if unknown is not None and state.decided() < unknown:
            raise SinkChangedError(
                f"{self.path}: run={unknown} exists, but the state has no version {unknown}: the state is older than "
                "the sink, or the folder is not of this job. Restore the newer state, or move a foreign folder away"
            )

    def _check_new(self, done: int) -> None:
        if done:
            raise SinkChangedError(
                f"{self.path}: {MARKER} is gone, which names the state that owns this folder. Restore the sink, or at "
                "least this file"
            )
        names = os.listdir(self.path) if self.path.exists() else []
        foreign = sorted(name for name in names if name != PREPARE and not name.startswith(f"{MARKER}."))
        if foreign and MARKER not in names:  # unless another run has claimed it in the meantime
            raise SinkError(f"{self.path}: not empty and not a fencepost sink (it holds {', '.join(foreign[:5])})")

    def probe(self, version: int, attempt: str) -> None:
        """Refuse a file system on which versions would not appear atomically (see `Sink`)."""
        check_renames(self.prepare_folder(version, attempt) / "probe", self.disk)

    def claim(self, state_id: str) -> None:
        """Record the owner. Raises SinkError if another state was first."""
        self.disk.make_folder(self.path)
        marker = {"format": 1, "state": state_id, "layout": self.layout}
        temporary = self.path / PREPARE / f"{MARKER}.{uuid4().hex}{TEMPORARY}"
        self.disk.make_folder(temporary.parent)
        if not self.disk.put(self.path / MARKER, (json.dumps(marker) + "\n").encode(), temporary):
            raise SinkError(f"{self.path}: belongs to another state (id {self.owner()}), which claimed it meanwhile")

    def scratch(self, version: int, attempt: str) -> FolderScratch:
        """See `Sink`."""
        return FolderScratch(str(self.prepare_folder(version, attempt)), self.disk)

    def prepare_folder(self, version: int, attempt: str) -> Path:
        """Create the folder where an attempt's tasks write."""
        return self.path / PREPARE / f"{version}-{attempt}"

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        """Move the winning files to one folder (see `Sink`), away from files of losing tasks."""
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
        """Rename the folder with exactly the decided files (see `Sink`)."""
        target, is_empty = self._target(decision), decision.prepared is None
        prepared = self._folder_for_marker(decision) if is_empty else self.path / str(decision.prepared)
        try:
            if is_empty:
                self._mark(prepared, EMPTY_NAME)
            if not self._matches(prepared, decision):
                raise FileNotFoundError(prepared)
            self.disk.move(prepared, target)
        except OSError:
            # Already shown, perhaps by a concurrent run: a non-empty folder is never replaced.
            if self._is_fenced(target):
                return ABANDONED
            if not target.exists() and (is_empty or self._matches(prepared, decision)):
                raise  # neither case applies: missing rights, or a disk error
            if not self._matches(target, decision):
                raise SinkChangedError(
                    f"{target}: not the folder with the files of version {decision.version}, and {prepared} could not "
                    "take its place. Restore its files, or move the folder away and run again. If this error comes "
                    "again, abandon the version (`fencepost state abandon`)"
                ) from None
            self.disk.seal(self.path)
        finally:
            if is_empty:
                self.disk.remove(prepared.parent)
        self.clear(decision)
        return APPLIED

    def fence(self, decision: Decision) -> str:
        """Put a folder with a marker in place of the version's (see `Sink`).

        A marker of another driver is equivalent: no apply replaces it.
        """
        target, marked = self._target(decision), self._folder_for_marker(decision)
        try:
            self._mark(marked, ABANDONED_NAME)
            self.disk.move(marked, target)
        except OSError:
            if not os.path.lexists(target):
                raise  # nothing is in the way: missing rights, or a disk error
            is_shown = self._matches(target, decision)
            if not is_shown and _sizes(target).items() & _expected_sizes(decision).items():
                raise SinkChangedError(
                    f"{target}: has some files of version {decision.version}, but not exactly its files. To apply the "
                    "version, restore the missing files and remove additional ones. To abandon it, remove the folder. "
                    "Then make the same call again"
                ) from None
            self.disk.seal(self.path)
            if is_shown:
                return APPLIED
        finally:
            self.disk.remove(marked.parent)
        self.clear(decision)
        return ABANDONED

    def names(self, decision: Decision) -> list[str]:
        """Return the locations of a version's outputs, relative to the sink."""
        return [f"run={decision.version}/{name}" for name in decision.outputs.name]

    def shown(self, decision: Decision) -> int:
        """See `Sink`."""
        return len(_sizes(self._target(decision)).keys() & set(decision.outputs.name))

    def applied_files(self) -> list[str]:
        """Return the names of the files with kept rows of all versions."""
        runs = [it for it in os.listdir(self.path) if re.fullmatch(r"run=\d+", it)]
        found = [
            f"{run}/{name}" for run in runs for name in _sizes(self.path / run) if not name.startswith(_SIDE_TABLES)
        ]
        return sorted(name for name in found if name.endswith(".parquet"))

    def schema(self) -> str | None:
        """Return None, unlike `RunPrefixes.schema`: folders have no manifest."""
        return None

    def changelog(self) -> Iterator[Any]:
        """See `Sink`."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for path in sorted(self.path.glob(f"run=*/{changelog.FOLDER}/*.parquet")):
            try:
                yield pq.ParquetFile(path).read()
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # pyarrow raises others for damage
                    raise unavailable(str(path), "cannot be read", error) from error
                raise SinkError(
                    f"{path}: this list of missing ranges cannot be read ({error}). Restore the file, or remove it and "
                    "run again, which corrects the list"
                ) from error

    def collect_garbage(self, done: int) -> None:
        """Remove leftovers of attempts at finished versions."""
        folder = self.path / PREPARE
        for path in folder.iterdir() if folder.exists() else ():
            match = re.fullmatch(r"(\d+)-\w+", path.name)
            if (match and int(match[1]) <= done) or (done and path.name.startswith(f"{MARKER}.")):
                self.disk.remove(path)

    def fold(self, first: int, last: int) -> None:
        """Remove the folders of versions without output (see `Sink`)."""
        for version in range(first, last + 1):
            folder = self.path / f"run={version}"
            with suppress(OSError):  # it has output, or does not exist
                (folder / EMPTY_NAME).unlink(missing_ok=True)
                folder.rmdir()

    def owner(self) -> str | None:
        """Return the state that owns the folder."""
        try:
            owner: str = json.loads((self.path / MARKER).read_bytes())["state"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return owner

    def _target(self, decision: Decision) -> Path:
        return self.path / f"run={decision.version}"

    def _folder_for_marker(self, decision: Decision) -> Path:
        """Return the path of a new folder for this caller only."""
        return self.prepare_folder(decision.version, uuid4().hex) / "run"

    def _mark(self, folder: Path, name: str) -> None:
        """Make the folder with an empty file of this name, ready for a rename.

        Raises FileNotFoundError if the version was finished in the meantime and the folder was removed as garbage.
        """
        self.disk.make_folder(folder)
        self.disk.write(folder / name, b"")
        self.disk.seal(folder)

    def clear(self, decision: Decision, tasks: Tasks = in_turn) -> None:
        """Remove prepared files of a finished version."""
        if decision.prepared is not None:
            self.disk.remove((self.path / decision.prepared).parent)

    def status(self, decision: Decision) -> str | None:
        """Return a version's status, if the side tables, which come last, have one. For sinks that store rows
        elsewhere."""
        target = self._target(decision)
        if self._is_fenced(target):
            return ABANDONED
        return APPLIED if self._matches(target, without_rows(decision)) else None

    @staticmethod
    def _is_fenced(target: Path) -> bool:
        return (target / ABANDONED_NAME).exists()

    @staticmethod
    def _matches(target: Path, decision: Decision) -> bool:
        return _sizes(target) == _expected_sizes(decision)


def check_not_ahead(sink: object, version: int, decided: int) -> None:
    """Raise SinkChangedError if a table has a newer version than its state has decided."""
    if version > decided:
        raise SinkChangedError(
            f"{sink}: has version {version} of this state, but the state has versions up to {decided} only: the state "
            "is older than the sink. Restore the newer state"
        )


def check_attempt(sink: object, decision: Decision, found: str | None) -> None:
    """Raise SinkError if another attempt made this version in a table, which only a copy of the state can do.

    `found`: the attempt. None: earlier versions of this package did not record it. Not SinkChangedError: nobody may
    abandon the version, because the table has it.
    """
    if found not in (None, decision.attempt):
        raise SinkError(
            f"{sink}: version {decision.version} in the table was made with another copy of this state, so rows of "
            f"version {decision.version} of this run's state may be missing in the table. Use the other copy from now "
            "on, and delete the copy that this run used"
        )


def finished_status(sink: object, decision: Decision, found: str | None) -> str:
    """Return the status of a version that others have finished: `found`, which its side tables show.

    Raises SinkError if they are gone. Then the version may be in the table, so nobody may remove its rows.
    """
    if found is None:
        raise SinkError(
            f"{sink}: others have finished version {decision.version} and later ones, but the files are gone that show "
            f"whether version {decision.version} was applied or abandoned. Nothing was changed. If a run with another "
            "copy of this state has made the later versions, use that copy. Otherwise run again"
        )
    return found


def check_owner(sink: str | Path, owner: str | None, state: str, settings: Settings | None) -> None:
    """Raise SinkError for a sink of another state. `owner`: the id in its marker."""
    if settings is None:
        raise SinkError(
            f"{sink}: belongs to a state (id {owner}), but the state {state} is empty: it was lost, or "
            "another place was passed. Restore it, or begin with a new sink; a sink belongs to one state"
        )
    if owner != settings.id:
        raise SinkError(f"{sink}: belongs to another state (id {owner}); a sink belongs to one state")


PROBE_FILES = 4
"""Number of files in the test folder: renames that are copies take long enough to be observed."""


def check_renames(folder: Path, disk: Disk) -> None:
    """Refuse a file system that does not rename folders atomically, or whose rename replaces a non-empty folder.

    Mounts of object stores without folder renames behave like that. Raises SinkError.
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
            raise SinkError(_unsuitable(folder, f"a renamed folder appears file by file (seen: {sorted(seen)} files)"))
        with suppress(OSError):
            os.rename(second, shown)
        if not os.path.lexists(second) or any((shown / name).read_text() != "first" for name in names):
            raise SinkError(_unsuitable(folder, "a renamed folder takes the place of one that has content"))
    except OSError as error:
        raise SinkError(_unsuitable(folder, f"{error.strerror} (error {error.errno})")) from error
    finally:
        disk.remove(folder)


def _unsuitable(folder: Path, problem: str) -> str:
    return (
        f"{folder}: this file system cannot hold a sink: {problem}. A version must appear by one rename of its folder, "
        "and links must work. Use a local disk, NFS, or a table (Delta, SQL) as the sink"
    )


def _rename_watched(source: Path, target: Path) -> set[int]:
    """Rename a folder. Returns the numbers of files that a concurrent observer sees in the target."""
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
    """Return the decision's part for the folder beside the rows."""
    prepared = decision.prepared if len(decision.side_files) else None
    return dataclasses.replace(decision, outputs=Outputs(), prepared=prepared)


def _expected_sizes(decision: Decision) -> dict[str, int]:
    """Return the bytes of every file in a version's folder, by name within it."""
    if decision.prepared is None:
        return {EMPTY_NAME: 0}
    outputs, sides = decision.outputs, decision.side_files
    return dict(zip([*outputs.name, *sides.name], [*outputs.bytes, *sides.bytes], strict=True))


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every file below a folder, by name within it. Empty if the folder does not exist.

    Uses strings instead of path objects, because a version may have 100,000 files.
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
                        with suppress(FileNotFoundError):  # removed since, or a link to nothing: the others count
                            found[inside + entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


def name_in_table(decision: Decision, name: str) -> str:
    """Return the name of an output's file in a table, where the files of all versions are together."""
    number = name.rpartition("/")[2].removeprefix("part-").removesuffix(".parquet")
    return f"part-{decision.version:06}-{number}-{decision.attempt[:12]}.parquet"
