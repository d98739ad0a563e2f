"""The sources of a run: a folder or prefix of files, a Delta table, an Iceberg table, a Kafka log, or a stream's batch.

A source lists what is new as files. After that all sources are alike: tasks read files.

| source | what is new | what records the progress |
|---|---|---|
| `Folder`, also a prefix of an object store | files that are not in the ledger | the state's ledger |
| `DeltaTable` | files that commits after the position added | the position: a version of the table |
| `IcebergTable` | files that snapshots after the position appended | the position: a snapshot of the table |
| `LogOfKafka` | records after the position, exported to files by tasks | the position: offsets by partition |
| `Batch` | all files of the folder that a stream has written | the position of the stream after the batch |

To add a kind of source that has a location, write a class with the members of `Stored` and a function that returns it
for a location, and add the function to `KINDS`. Audits then support it, too.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import SinkError, SourceError
from fencepost.lake.asking import ask_footers
from fencepost.lake.delta_source import has_table, list_appended
from fencepost.lake.files import Facts, Files, NewInput
from fencepost.lake.iceberg_source import list_appended as list_snapshots
from fencepost.lake.iceberg_source import open_files
from fencepost.lake.kafka_log import ExportItem, KafkaLog, export, find_new
from fencepost.lake.slices import Slice
from fencepost.lake.storage import LocalStorage, Storage, open_storage
from fencepost.state.delta_sink import check_library
from fencepost.state.iceberg_tables import NamedTable, is_iceberg
from fencepost.state.ledger import file_table, hash_of_listing, new_files
from fencepost.state.scratch import FolderScratch

if TYPE_CHECKING:
    from fencepost.lake.found import Found
    from fencepost.lake.job import DedupJob
    from fencepost.lake.run import Run

Position = dict[str, Any]


class Source(Protocol):
    """A kind of source."""

    @property
    def place(self) -> str:
        """The path, or the source's name in the state."""

    @property
    def storage(self) -> Storage:
        """Access to its files."""

    @property
    def is_own(self) -> bool:
        """Whether the position is that of the job's own source. Other sources are read once."""

    @property
    def has_ledger(self) -> bool:
        """Whether the state's ledger lists the files that were read."""

    @property
    def has_folder_columns(self) -> bool:
        """Whether names of Hive-style folders are columns of the rows."""

    def find_new(self, run: Run) -> NewInput:
        """Return what is new since `run.base`. Raises SourceError, StoreError."""

    def unread(self, found: Found, *, is_rebase: bool) -> list[str]:
        """Return the files that this run leaves out and no later run reads. If there are any, the run stops."""


class Stored(Source, Protocol):
    """A source with a location, which can be read from its beginning at any time."""

    def files(self) -> Files:
        """Return all current files, in the order in which an audit judges them. Raises SourceError."""


@dataclass(frozen=True)
class InputOverride:
    """Other input of a run, in place of the new files of the job's source. It is read as a whole."""

    folder: str
    is_seed: bool = False
    """Whether to judge rows and list missing ranges without writing rows."""
    is_rebase: bool = False
    """Whether to rebuild the state from these rows."""
    position: Position | None = None
    """`Decision.source_position` after a folder that a stream has written."""
    lag: int | None = None
    """See `NewInput.lag`, for such a folder."""


def open_source(job: DedupJob, override: InputOverride | None) -> Source:
    """Return the source of a run."""
    if override and override.position is not None:
        return Batch(override.folder, override.position, override.lag)
    place = override.folder if override else job.source
    is_own = place == job.source
    if is_own and job.log is not None:
        return LogOfKafka(job.log)
    return open_place(place, job.source_options, is_own=is_own)


def open_place(place: str, options: Mapping[str, Any] | None = None, *, is_own: bool = True) -> Stored:
    """Return the source at a location, by the first matching function of KINDS. Raises StoreError for wrong options."""
    found = (kind(place, options, is_own) for kind in KINDS)
    return next(it for it in found if it is not None)


def list_of(files: Files, footer_crc: list[int] | None = None) -> pa.Table:
    """Return files as the ledger lists them."""
    columns = {"path": files.paths, "bytes": files.bytes, "mtime_ns": files.mtime_ns, "inode": files.inode}
    known = {} if footer_crc is None else {"footer_crc": footer_crc}
    return file_table(columns | known | {"etag": files.etag})


def _left_out(found: Found) -> list[str]:
    return [*found.deferred.path, *found.quarantined.path, *found.vanished]


def _undamaged(found: NewInput) -> Files:
    """Return the files of a table. Raises an error if any of them is damaged."""
    for path, problem in found.damaged.items():
        raise SourceError(problem, path=path)
    return found.files


@dataclass(frozen=True)
class Folder:
    """A folder of Parquet files, or a prefix of an object store."""

    place: str
    storage: Storage
    is_own: bool = field(kw_only=True)
    has_folder_columns = True

    @property
    def has_ledger(self) -> bool:
        return self.is_own

    def files(self) -> Files:
        """Return the files, those of a sink ordered by run."""
        files = self.storage.list(self.place)
        runs = [re.match(r"run=(\d+)/", path) for path in files.paths]
        # Numeric order: run=10 comes after run=9.
        ordered = files.take(sorted(range(len(files)), key=lambda at: int(it[1]) if (it := runs[at]) else 0))
        return dataclasses.replace(ordered, ignored=files.ignored)

    def find_new(self, run: Run) -> NewInput:
        if self.is_own and run.base and run.base.source_position is not None:
            version = run.base.source_position["version"]
            text = (
                f"{self.place}: was read as a Delta table up to version {version}, but is no longer one. Restore its "
                "_delta_log, or read the folder with a new state and a new sink"
            )
            raise SourceError(text, path=self.place)
        some = run.job.slice if not run.override else run.job.slice.whole if self.is_own else Slice()
        deferred = set(run.base.deferred.path) if run.base else set[str]()
        listed, gone = some.listed(run.ask_early, self.storage, self.place, deferred)
        run.vanished += gone
        listing = list_of(listed)
        digest = hash_of_listing(listing)
        if run.base and run.base.listing == digest:
            return NewInput(files=listed.take([]), ignored=listed.ignored, listing=digest)
        new, moved = new_files(run.job.state.store, run.base.ledger if run.base else None, listing)
        # Compare footers of files whose inodes have changed. None: the file was deleted.
        places = sorted(moved)
        crcs = dict(zip(places, ask_footers(run.ask_early, self.storage, listed.take(places)), strict=True))
        same = [place for place, crc in crcs.items() if crc in moved[place]]
        changed = [place for place, crc in crcs.items() if crc is not None and crc not in moved[place]]
        new = some.ordered(listed, [*new, *changed])
        # If verdicts depend on the order, deferred files are read in order, like other files.
        at_once = set[str]() if run.job.policy.depends_on_order else deferred
        taken = some.first_of(run.ask_early, self.storage, listed, new, at_once)
        return NewInput(
            files=listed.take(taken) if some.order or len(taken) < len(listed) else listed,
            ignored=listed.ignored,
            left=len(new) - len(taken),
            seen_again=list_of(listed.take(same), [crcs[place] or 0 for place in same]),
            listing=digest if len(taken) == len(new) and None not in crcs.values() else None,
        )

    def unread(self, found: Found, *, is_rebase: bool) -> list[str]:
        return [] if self.is_own else _left_out(found)


@dataclass(frozen=True)
class DeltaTable:
    """A Delta table, which may also be the sink."""

    place: str
    storage: Storage
    is_own: bool = field(kw_only=True)
    has_ledger = False
    has_folder_columns = True

    def files(self) -> Files:
        return _undamaged(list_appended(self.place, self.storage, None))

    def find_new(self, run: Run) -> NewInput:
        job, base = run.job, run.base if self.is_own else None
        job.check_no_slices()
        position = base.source_position if base else None
        if base and position is None and len(base.ledger):
            text = f"{self.place}: was read as a folder of files, but is now a Delta table: use a new state and sink"
            raise SourceError(text, path=self.place)
        if job.is_in_place and position is None and run.version > 1:
            job.check_rewritten()  # the first version was abandoned, and the table may have changed since
        own = job.state.require_settings().id if job.is_in_place and run.before else None
        pending = [add for add in base.deferred.add if add is not None] if base and position else []
        return list_appended(self.place, self.storage, position, own, pending, run.ask_early)

    def unread(self, found: Found, *, is_rebase: bool) -> list[str]:
        if not self.is_own:
            return _left_out(found)
        bad = [*found.deferred.path, *found.quarantined.path] if is_rebase else []
        return [*bad, *found.vanished]


class IcebergTable:
    """An Iceberg table, identified by name."""

    has_ledger = False
    has_folder_columns = False

    def __init__(self, named: NamedTable, *, is_own: bool) -> None:
        self.named, self.is_own = named, is_own

    @property
    def place(self) -> str:
        return self.named.uri

    @cached_property
    def storage(self) -> Storage:
        return open_files(self.named)

    def files(self) -> Files:
        return _undamaged(list_snapshots(self.named, self.storage, None))

    def find_new(self, run: Run) -> NewInput:
        base = run.base if self.is_own else None
        position = base.source_position if base else None
        pending = [add for add in base.deferred.add if add is not None] if base and position else []
        return list_snapshots(self.named, self.storage, position, pending, run.ask_early)

    def unread(self, found: Found, *, is_rebase: bool) -> list[str]:
        return found.vanished if self.is_own else _left_out(found)


@dataclass(frozen=True)
class LogOfKafka:
    """Partitions of a Kafka log. Tasks export new records to files in the attempt's folder."""

    log: KafkaLog
    storage = LocalStorage()
    is_own = True
    has_ledger = False
    has_folder_columns = True

    @property
    def place(self) -> str:
        return self.log.name

    def find_new(self, run: Run) -> NewInput:
        before = run.base.source_position if run.base else None
        news = find_new(self.log, before)
        for problem in news.problems:
            if run.job.on_reset == "stop":
                accept = "If you accept this, on_reset='report' continues with the records that are left"
                raise SourceError(f"{problem}. {accept}", path=self.log.place)
            warnings.warn(problem, RuntimeWarning, stacklevel=2)
        position = news.position()
        if not isinstance(run.scratch, FolderScratch):
            text = f"{self.place}: tasks in other processes exchange a log's rows through a folder, but the sink"
            raise SinkError(f"{text} {run.job.sink.location} has none: use a sink in a folder, or the local engine")
        folder = run.scratch.folder
        if position == before:
            return NewInput(files=Files(f"{folder}/log"), position=position, lag=news.lag)
        run.scratch.make()
        items = [
            ExportItem(part=part.detached(), since=since, folder=folder, batch_bytes_max=self.log.batch_bytes_max)
            for part, since in news.parts
        ]
        try:
            return NewInput(files=self._export(run, items, f"{folder}/log"), position=position, lag=news.lag)
        except BaseException:
            run.discard()
            raise

    def _export(self, run: Run, items: list[ExportItem], folder: str) -> Files:
        files = Files(folder)
        done = run.tasks("export", partial(export, self.log.options), items, rows=lambda it: it.rows)
        for item, exported in zip(items, done, strict=True):
            if exported.rows:
                path = f"{item.part.topic}-{item.part.partition}/{item.part.segment.base_offset:020}.parquet"
                full_path = Path(files.root, path)
                full_path.parent.mkdir(parents=True, exist_ok=True)
                os.rename(exported.path, full_path)
                files.append(path, Facts.of(full_path.stat()))
        return files

    def unread(self, found: Found, *, is_rebase: bool) -> list[str]:
        return _left_out(found)


@dataclass(frozen=True)
class Batch:
    """A folder that a stream has written for one batch."""

    place: str
    position: Position
    lag: int | None
    storage = LocalStorage()
    is_own = True
    has_ledger = False
    has_folder_columns = True

    def find_new(self, run: Run) -> NewInput:
        return NewInput(files=self.storage.list(self.place), position=self.position, lag=self.lag)

    def unread(self, found: Found, *, is_rebase: bool) -> list[str]:
        """See `Source`. Raises SourceError if the folder lacks rows that the stream has written."""
        left_out, rows = _left_out(found), int(found.rows.sum())
        written = (self.position.get("content") or {}).get("rows", rows)
        if not left_out and rows != written:
            raise SourceError(
                f"{self.place}: {rows} rows are here, but the batch has {written}: files were removed, or workers have "
                "written them to other disks. Nothing was decided. The driver and all workers must see this folder "
                "under the same path. Then start the query again",
                path=self.place,
            )
        return left_out


# Kinds: functions that return the source at a location, or None if it is of another kind


def _iceberg(place: str, options: Mapping[str, Any] | None, is_own: bool) -> Stored | None:
    return IcebergTable(NamedTable(place, options), is_own=is_own) if is_iceberg(place) else None


def _files(place: str, options: Mapping[str, Any] | None, is_own: bool) -> Stored:
    storage = open_storage(place, options)  # opened once, because this may ask a provider for credentials
    if not has_table(storage, place):
        return Folder(place, storage, is_own=is_own)
    check_library(place)
    return DeltaTable(place, storage, is_own=is_own)


KINDS: tuple[Callable[[str, Mapping[str, Any] | None, bool], Stored | None], ...] = (_iceberg, _files)
"""The first match counts."""
