"""An Iceberg table as output: each version is one snapshot.

    <table>/data/part-<n>-<ordinal>-<attempt>.parquet   the rows that version n kept of one input
    <table>/metadata/                                   version n is the commit that sets the property fencepost.<state>
                                                        to "<n> applied <snapshot> <sequence>", or abandoned
    <table>/_fencepost/                                 owner, prepared files, and each version's side tables
                                                        (`RunFolders`, in an object store `RunPrefixes`)

The commit decides: a version is applied or abandoned by the first writer that advances the property, and everything
else follows from it. Each commit has a snapshot, an empty one if no file is added, because only for snapshots the
catalog compares the parent with the current state. Other writers may append, delete and compact at the same time. They
must not revert rows by returning to an older snapshot: the state would continue to call these rows duplicates.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.errors import SinkChangedError, SinkError, StoreError
from fencepost.state.commit import NewRows, SinkDefaults, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision
from fencepost.state.disk import Disk
from fencepost.state.iceberg_tables import NamedTable, columns_of, history, is_first, plain_location, schema_of
from fencepost.state.placing import move_file
from fencepost.state.prefix import RunPrefixes
from fencepost.state.scratch import Scratch
from fencepost.state.sinks import (
    RunFolders,
    check_attempt,
    check_not_ahead,
    finished_status,
    name_in_table,
    without_rows,
)
from fencepost.state.stores import RemoteStore, is_local

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction

    from fencepost.state.versions import State

OWN, DATA = "_fencepost", "data"
MAIN = "main"
"""The branch that is written."""
PREFIX = "fencepost."
"""Prefix of the property with a state's newest version. Snapshots have `fencepost.state` and `fencepost.version`."""
NO_RETRIES = {"commit.retry.num-retries": "0"}


class Mark(NamedTuple):
    """A table's record of a state's newest version."""

    version: int
    status: str
    snapshot: int
    sequence: int
    """The snapshot's sequence number. Later snapshots have higher ones, even after a rollback of the table."""


class IcebergSink(SinkDefaults):
    """Appends each version to an Iceberg table, created if missing. See `Sink` for undocumented methods."""

    layout = "iceberg"
    has_schema = True
    can_merge = True

    def __init__(self, uri: str, disk: Disk, options: Mapping[str, Any] | None = None) -> None:
        self.named = NamedTable(uri, options)
        self.disk = disk
        self._known: RunFolders | RunPrefixes | None = None

    @property
    def location(self) -> str:
        return self.named.uri

    # Inspection

    def check(self, state: State) -> None:
        # In this order, because other runs may finish versions in the meantime.
        done = state.done()
        table = self.named.load()
        if table is None:
            if done:
                raise SinkChangedError(
                    f"{self.location}: the Iceberg table that versions were written to no longer exists"
                )
            return
        self._beside(table).check(state)
        self._check_table(table)
        settings = state.settings()
        mark = _mark_of(table, settings.id) if settings is not None else None
        last = mark.version if mark else 0
        check_not_ahead(self.location, last, state.decided())
        if last < done:
            raise SinkChangedError(
                f"{self.location}: the newest version of this state in the table is {last or 'none'}, but "
                f"versions up to {done} were written: the table was recreated, or its property {PREFIX}<state> "
                "was changed. Use a new state and a new sink, or restore table and state of the same time"
            )

    def _check_table(self, table: Table) -> None:
        """Raise an error for a table to which files cannot simply be added."""
        if table.format_version != 2:
            raise SinkError(
                f"{self.location}: has format version {table.format_version}, but only version 2 is supported. Use a "
                "table of version 2"
            )
        if not table.spec().is_unpartitioned():
            names = ", ".join(field.name for field in table.spec().fields)
            raise SinkError(
                f"{self.location}: is partitioned by {names}, but a file of the job can have rows of several "
                "partitions. Use a table without partitions"
            )
        required = _required_column(table)
        if required is not None:
            text = f"{self.location}: column '{required}' is required, which fencepost cannot check"
            raise SinkError(f"{text}. Make it optional, or use another table")

    def probe(self, version: int, attempt: str) -> None:
        self._beside().probe(version, attempt)

    def claim(self, state_id: str) -> None:
        self._beside().claim(state_id)

    def current_version(self, before: Decision | None) -> dict[str, Any] | None:
        """Return the table's id and its current snapshot (see `Sink`)."""
        table = self.named.load()
        if table is None:
            return None
        now = table.current_snapshot()
        seen = {"table": str(table.metadata.table_uuid), "snapshot": now and now.snapshot_id}
        if now is not None:
            seen["sequence"] = now.sequence_number or 0
        if before is not None and before.sink_version is not None:
            self._check_kept(table, before)
        return seen

    def _check_kept(self, table: Table, before: Decision) -> None:
        """Check that it is the same table, and that its history contains the newest version and what that followed.

        The table may also have been rolled back after a decision and before the commit, which then follows from an
        older snapshot. So the snapshot that the version found before its decision counts, too. After an abandoned
        version, which has the mark, the applied one before it counts.
        """
        self._check_same(table, before)
        owner = str(self.owner())
        known: list[tuple[int, int | None, str]] = [
            (it.snapshot_id, it.sequence_number, f"which version {before.version} wrote")
            for it in table.snapshots()
            if _version_of(it, owner) == before.version
        ]
        mark = _mark_of(table, owner)
        if mark is not None:
            known.append((mark.snapshot, mark.sequence, f"which version {mark.version} wrote"))
        seen = before.sink_version or {}
        if seen.get("snapshot") is not None:
            found = f"which version {before.version} found before it was decided"
            known.append((seen["snapshot"], seen.get("sequence"), found))
        for snapshot, sequence, about in known:
            with self.named.answering("read"):
                is_kept = _follows_from(table, snapshot, sequence)
            if is_kept:
                continue
            raise SinkChangedError(
                f"{self.location}: its current snapshot {table.metadata.current_snapshot_id} does not follow from "
                f"{snapshot}, {about}: the table was rolled back, and rows that "
                "the state knows would be refused as duplicates if they came again. Find the last version of the state "
                "whose rows are all in the table, and roll the state back to it (`fencepost state rollback`). The "
                "inputs of later versions must still be in the source"
            )

    def _check_same(self, table: Table, decision: Decision) -> None:
        found, wanted = str(table.metadata.table_uuid), (decision.sink_version or {}).get("table")
        if wanted not in (None, found):
            raise SinkChangedError(
                f"{self.location}: not the table that versions were written to (its id is {found}, was {wanted})"
            )

    def shown(self, decision: Decision) -> int:
        """Return the number of shown files (see `Sink`). Compaction may have moved their rows, so all count as shown
        unless the table was rolled back to before the version."""
        return 0 if self.is_reverted(decision) else len(decision.outputs)

    def is_reverted(self, decision: Decision) -> bool:
        """See `Sink`."""
        table, owner = self.named.load(), str(self.owner())
        if table is None:
            return True
        chain = history(table)
        versions = {found for it in chain if (found := _version_of(it, owner)) is not None}
        if decision.version in versions:
            return False
        was_there = decision.version in {_version_of(it, owner) for it in table.snapshots()}
        return was_there or not chain or any(it < decision.version for it in versions)

    # Rows

    def columns(self) -> Any:
        table = self.named.load()
        return None if table is None or not table.schema().fields else schema_of(table)

    def columns_of(self, schema: Any) -> Any:
        return columns_of(schema)

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """Check the field ids that files contain (see `Sink`). The run has already compared types."""
        import pyarrow as pa  # type: ignore[import-untyped]

        inside = next((it for it in rows.folders if it.strip("/")), None)
        if inside is not None:
            text = f"values from folder names ({inside}) cannot be written to an Iceberg table"
            raise SinkError(f"{self.location}: {text}")
        found = [(pa.ipc.read_schema(pa.py_buffer(schema)), path) for schema, path in rows.schemas.items()]
        transaction = self._table().transaction()  # finds the ids of new columns; never committed
        with self.named.answering("read"):
            for schema, _ in found:
                with transaction.update_schema() as update:  # one update would add a column once for each schema
                    update.union_by_name(columns_of(schema))
        after = transaction.table_metadata.schema()
        for schema, path in found:
            self._check_ids(after, schema, path)
        return {}

    def _check_ids(self, after: Any, schema: Any, path: str) -> None:
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        with self.named.answering("written"):
            file = pyarrow_to_schema(schema, name_mapping=after.name_mapping)
        for number in file.field_ids:
            name = file.find_column_name(number)
            other = after.find_field(name).field_id if name in after.column_names else None
            if other != number:
                raise SinkError(
                    f"{self.location}: column '{name}' of {path} has the field id {number}, in the table it is "
                    f"{other}: readers would read it as another column. Write the files without field ids, or use a "
                    "new table"
                )

    # Locations for tasks

    def scratch(self, version: int, attempt: str) -> Scratch:
        if self._known is None:
            self._beside(self.named.load() or self.named.make())
        return self._beside().scratch(version, attempt)

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        return self._beside().collect(version, attempt, winners)

    def changelog(self) -> Iterator[Any]:
        return self._beside().changelog()

    def collect_garbage(self, done: int) -> None:
        table = self.named.load()
        if table is not None:
            self._beside(table).collect_garbage(done)

    def fold(self, first: int, last: int) -> None:
        """Keep all marks (see `Sink`). A fence that finds none removes the files of the version."""

    # Versions

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """Write one commit, then the side tables (see `Sink`)."""
        return self._show(decision, self._commit(decision, APPLIED, tasks), tasks)

    def fence(self, decision: Decision) -> str:
        """Write an empty snapshot with the version's number (see `Sink`)."""
        return self._show(decision, self._commit(decision, ABANDONED, in_turn), in_turn)

    def _show(self, decision: Decision, status: str, tasks: Tasks) -> str:
        """Do what follows the commit, for either status."""
        beside, sides = self._beside(), without_rows(decision)
        status = beside.apply(sides, tasks) if status == APPLIED else beside.fence(sides)
        if status == ABANDONED and len(decision.outputs):
            self._remove(self._table(), self.names(decision))
        beside.clear(decision, tasks)
        return status

    def _commit(self, decision: Decision, wanted: str, tasks: Tasks) -> str:
        """Advance the property to the version, together with its rows, unless it exists. Returns its status: `wanted`,
        or that of another writer."""
        from pyiceberg.exceptions import CommitFailedException

        state, number = str(self.owner()), decision.version
        has_placed = False  # since a commit of this attempt that failed, others may have removed its files as orphans
        while True:
            table = self._table()
            self._check_same(table, decision)
            mark = _mark_of(table, state) or Mark(0, APPLIED, 0, 0)
            if mark.version == number:
                self._check_attempt(table, decision)
                self._seal(table)
                return mark.status
            if mark.version > number:
                self._check_attempt(table, decision)
                return finished_status(self.location, decision, self._beside(table).status(decision))
            if mark.version != number - 1:
                raise SinkChangedError(
                    f"{self.location}: version {number} can only follow {number - 1}, but the newest in the table is "
                    f"{mark.version}: table and state are not of the same time. Restore both of the same time, or use "
                    "a new state and a new sink"
                )
            try:
                if wanted == APPLIED and not has_placed:
                    self._place(table, decision, tasks)
                    has_placed = True
                self._write(table, decision, wanted, state)
            except (CommitFailedException, FileNotFoundError, StoreError) as error:
                if self._table().metadata_location != table.metadata_location:
                    continue  # somebody has changed the table: another writer, who may have removed files, or this one
                if isinstance(error, StoreError):
                    raise
                if isinstance(error, CommitFailedException):
                    raise SinkError(f"{self.location}: cannot be written to: {error}") from error
                raise SinkChangedError(
                    f"{self.location}: the files of version {number} are neither in {decision.prepared} nor where the "
                    f"table would list them ({error}). Restore them, or abandon the version (`fencepost state abandon`)"
                ) from None

    def _check_attempt(self, table: Table, decision: Decision) -> None:
        """Raise SinkError if a snapshot of the version is of another attempt (see `check_attempt`)."""
        for snapshot in table.snapshots():
            about = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if _version_of(snapshot, str(self.owner())) == decision.version:
                check_attempt(self.location, decision, about.get(f"{PREFIX}attempt"))

    def _write(self, table: Table, decision: Decision, wanted: str, state: str) -> None:
        """Write the table's next snapshot, or raise CommitFailedException if another one was first."""
        # Retries would add the files after other commits without checking the property. Disable them for this copy
        # only.
        metadata = table.metadata
        table.metadata = metadata.model_copy(update={"properties": {**metadata.properties, **NO_RETRIES}})
        marks = {f"{PREFIX}state": state, f"{PREFIX}version": str(decision.version)}
        marks[f"{PREFIX}attempt"] = decision.attempt
        with self.named.answering("written"), table.transaction() as transaction:
            if wanted == APPLIED and len(decision.outputs):
                self._add_rows(transaction, decision, marks)
            else:
                with transaction.update_snapshot(snapshot_properties=marks).fast_append():
                    pass
            snapshot = transaction.table_metadata.snapshot_by_name(MAIN)
            assert snapshot is not None
            mark = Mark(decision.version, wanted, snapshot.snapshot_id, snapshot.sequence_number or 0)
            transaction.set_properties({f"{PREFIX}{state}": " ".join(map(str, mark))})
        self._seal(table)

    def _add_rows(self, transaction: Transaction, decision: Decision, marks: dict[str, str]) -> None:
        import pyarrow as pa
        from pyiceberg.exceptions import ValidationError

        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(decision.schema))))
        location = transaction.table_metadata.location
        try:
            with transaction.update_schema() as update:
                update.union_by_name(columns)
            transaction.add_files(
                [f"{location}/{name}" for name in self.names(decision)],
                snapshot_properties=marks,
                check_duplicate_files=False,
            )
        except (ValueError, ValidationError) as error:
            raise SinkError(
                f"{self.location}: refuses rows that were decided ({error}). Change the table and run again, or "
                "abandon the version (`fencepost state abandon`); none of its rows are in the table"
            ) from error

    def names(self, decision: Decision) -> list[str]:
        return [f"{DATA}/{name_in_table(decision, name)}" for name in decision.outputs.name]

    # Files

    def _place(self, table: Table, decision: Decision, tasks: Tasks) -> None:
        """Move the version's files to their final locations. May be repeated by anyone.

        Raises FileNotFoundError if they are in neither place.
        """
        if not len(decision.outputs):
            return
        beside = self._beside(table)
        if isinstance(beside, RunPrefixes):
            for final in beside.place_outputs(decision, self.names(decision), self._store(table), tasks):
                raise FileNotFoundError(final)
        else:
            self._move_all(self._folder(table), beside.path / str(decision.prepared), decision)

    def _move_all(self, folder: Path, prepared: Path, decision: Decision) -> None:
        outputs = decision.outputs
        self.disk.make_folder(folder / DATA, folder)
        for name, final, size in zip(outputs.name, self.names(decision), outputs.bytes, strict=True):
            move_file(prepared / name, folder / final, size)
        self.disk.seal(folder / DATA)

    def _remove(self, table: Table, names: list[str]) -> None:
        if is_local(self._root(table)):
            for name in names:
                self.disk.remove(self._folder(table) / name)
        else:
            self._store(table).delete(names)

    def _seal(self, table: Table) -> None:
        """Sync the newest snapshot to disk, because the library does not."""
        snapshot = table.current_snapshot()
        if snapshot is None or not is_local(self._root(table)):
            return
        manifests = [
            it.manifest_path for it in snapshot.manifests(table.io) if it.added_snapshot_id == snapshot.snapshot_id
        ]
        paths = [
            Path(plain_location(it, self.location))
            for it in (*manifests, snapshot.manifest_list, table.metadata_location)
        ]
        for path in [*paths, *{it.parent for it in paths}]:
            self.disk.seal(path)

    # Location

    def _table(self) -> Table:
        table = self.named.load()
        if table is None:
            raise SinkChangedError(f"{self.location}: the Iceberg table that versions are written to no longer exists")
        return table

    def owner(self) -> str | None:
        return self._beside().owner()

    def _root(self, table: Table) -> str:
        return plain_location(table.location(), self.location).rstrip("/")

    def _folder(self, table: Table) -> Path:
        return Path(self._root(table))

    def _store(self, table: Table) -> RemoteStore:
        return RemoteStore(self._root(table), self.named.store_options(table))

    def _beside(self, table: Table | None = None) -> RunFolders | RunPrefixes:
        """Return the sink of everything except rows, beside the given table, or the last one seen."""
        if table is None and self._known is not None:
            return self._known
        table = table or self._table()
        root = f"{self._root(table)}/{OWN}"
        if is_local(root):
            self._known = RunFolders(Path(root), self.disk)
        else:
            self._known = RunPrefixes(RemoteStore(root, self.named.store_options(table)))
        return self._known


def _required_column(table: Table) -> str | None:
    """Return a column, or a part of one, that must not be null. Keys of maps do not count."""
    from pyiceberg.types import MapType

    schema = table.schema()
    fields = [schema.find_field(number) for number in schema.field_ids]
    keys = {it.field_type.key_id for it in fields if isinstance(it.field_type, MapType)}
    found = (it.field_id for it in fields if it.required and it.field_id not in keys)
    return next((schema.find_column_name(number) for number in found), None)


def _mark_of(table: Table, state: str) -> Mark | None:
    text = table.properties.get(f"{PREFIX}{state}")
    if text is None:
        return None
    version, status, snapshot, sequence = text.split(" ")
    return Mark(int(version), status, int(snapshot), int(sequence))


def _version_of(snapshot: Any, state: str) -> int | None:
    """Return the state's version that a snapshot has written."""
    found = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return int(found[f"{PREFIX}version"]) if found.get(f"{PREFIX}state") == state else None


def _follows_from(table: Table, snapshot: int, sequence: int | None) -> bool:
    """Return whether a snapshot is an ancestor of the current one, as far as the table knows.

    `sequence`: its sequence number. None: not recorded by an earlier version of this package.
    """
    chain = history(table)
    if any(it.snapshot_id == snapshot for it in chain):
        return True
    if table.snapshot_by_id(snapshot) is not None:
        return False  # the snapshot exists and is not an ancestor
    # The snapshot is probably expired. Then the remaining history is newer than it and truncated.
    if sequence is None:
        return True
    return bool(chain) and (chain[-1].sequence_number or 0) > sequence and not is_first(table, chain[-1])
