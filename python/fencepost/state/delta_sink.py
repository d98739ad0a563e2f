"""A Delta table as output: each version is one transaction of its log.

    <table>/part-<n>-<ordinal>-<attempt>.parquet   the rows that version n kept of one input
    <table>/_delta_log/                            version n is the commit with the transaction (state, n)
    <table>/_fencepost/                            owner, prepared files, and each version's side tables (a sink of
                                                   folders or prefixes); readers and VACUUM ignore it

The table is in a folder or below a prefix of an object store. The commit decides: a version is applied or abandoned by
the first writer of its transaction, and everything else follows from it. A commit is one put-if-absent of the table's
next version. Other writers may append, delete and compact at the same time. They must not revert rows by RESTORE: the
state would continue to call these rows duplicates.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fencepost.errors import DependencyError, FencepostError, SinkChangedError, SinkError
from fencepost.state.commit import NewRows, SinkDefaults, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision
from fencepost.state.delta_columns import (
    WIDENING,
    check_columns,
    check_schema,
    check_values,
    first_actions,
    merged_columns,
    new_table,
    with_columns,
)
from fencepost.state.delta_log import (
    LOG,
    Action,
    Table,
    info_of,
    live_files,
    put_commit,
    read_commit,
    read_commits,
    read_table,
)
from fencepost.state.disk import Disk
from fencepost.state.hive import hive_folders, hive_values
from fencepost.state.placing import move_file
from fencepost.state.prefix import RunPrefixes
from fencepost.state.scratch import Scratch
from fencepost.state.sinks import (
    MARKER,
    RunFolders,
    check_attempt,
    check_not_ahead,
    finished_status,
    name_in_table,
    without_rows,
)
from fencepost.state.stores import LocalStore, RemoteStore, Store, load_provider, unavailable

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from fencepost.state.versions import State

OWN, TABLE = "_fencepost", "_table.json"
ABANDONED_APP = "-abandoned"
"""Suffix of the application id under which an abandoned version's number is written, beside its transaction."""

FEATURES = {
    *("appendOnly", "invariants", "checkConstraints", "deletionVectors", "timestampNtz", "v2Checkpoint"),
    *("variantType", WIDENING),
}
"""Table features under which files may be added without restriction. Constraints and the like are refused one by one.
"""
LISTED_READER, LISTED_WRITER = 3, 7
"""Protocol versions that have a list of features."""
READER_MAX, WRITER_MAX = 2, 6
"""Protocol versions without a list of features. Possible features are detected from settings and columns."""
REFUSED = {
    "delta.enableChangeDataFeed": "a change data feed",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "timestamps in commits",
    "delta.columnMapping.mode": "column mapping",
}
"""Settings under which a commit needs more than the added and removed files."""
CONSTRAINTS = {"delta.constraints.": "constraints, which nobody would check"}
RETENTION = "delta.setTransactionRetentionDuration"
CLEANUP = "delta.enableExpiredLogCleanup"
"""The setting that keeps expired commits if it is "false". delta-rs does not ask for it."""
CHECKPOINT_EVERY = 100
"""Default number of commits between checkpoints."""


class TakenError(Exception):
    """Another writer has written the table's next version."""


class DeltaSink(SinkDefaults):
    """Appends each version to a Delta table, which is created for the first rows if missing.

    Rows go to the table, everything else to a sink of folders or prefixes in it (`own`). See `Sink` for undocumented
    methods.
    """

    layout = "delta"
    has_schema = True
    can_merge = False

    def __init__(self, table: LocalStore | RemoteStore, disk: Disk) -> None:
        check_library(table.uri)
        if "%" in table.uri:
            raise SinkError(
                f"{table.uri}: delta-rs reads a '%' in the path of a Delta table as another path; rename the folder"
            )
        self.store, self.disk = table, disk
        self.location = table.uri
        self.own: RunFolders | RunPrefixes
        if isinstance(table, LocalStore):
            self.store = LocalStore(table.folder, sync=disk.sync, temporaries=None)
            self.own = RunFolders(table.folder / OWN, disk)
        else:
            self.own = RunPrefixes(RemoteStore(f"{table.uri}/{OWN}", table.options))
        self.own.layout = self.layout
        self._checked: Table | None = None
        """The table that `check` found."""
        self._id: str | None = None
        """The table's id, if recorded."""
        self._has_placed = False
        """Whether the current commit has moved the files to their final locations."""
        self._fitting: tuple[Action, Action] | None = None
        """The protocol and metadata of the table that are known to take the files of the current commit."""

    # Everything except rows

    def owner(self) -> str | None:
        return self.own.owner()

    def probe(self, version: int, attempt: str) -> None:
        self.own.probe(version, attempt)

    def claim(self, state_id: str) -> None:
        self.own.claim(state_id)

    def scratch(self, version: int, attempt: str) -> Scratch:
        return self.own.scratch(version, attempt)

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        return self.own.collect(version, attempt, winners)

    def changelog(self) -> Iterator[Any]:
        return self.own.changelog()

    def collect_garbage(self, done: int) -> None:
        self.own.collect_garbage(done)

    def fold(self, first: int, last: int) -> None:
        """Keep all marks (see `Sink`). A fence that finds none removes the files of the version."""

    # Inspection

    def check_table(self, table: Table) -> None:
        """Raise an error for a table that needs more than appending files. Raises SinkError, SinkChangedError."""
        check_features(table, self.location, FEATURES, REFUSED | CONSTRAINTS, "add files")
        check_columns(table, self.location)

    def check(self, state: State) -> None:
        """See `Sink`."""
        # In this order, because other runs may finish versions in the meantime.
        done = state.done()
        table = self._checked = self._open()
        self.own.check(state)
        if table is None and _had_table(state, done):
            raise SinkChangedError(f"{self.location}: the Delta table that versions were written to no longer exists")
        if table is None:
            return
        self.check_table(table)
        self._check_id(table, self._known_id() or table.id)
        settings = state.settings()
        last = table.transactions.get(settings.id) if settings is not None else None
        if last is None and not _had_table(state, done):
            last = done
        check_not_ahead(self.location, last or 0, state.decided())
        if (last or 0) < done:
            raise SinkChangedError(
                f"{self.location}: the newest transaction of this state is {last or 'none'}, but versions up to "
                f"{done} were written: the table was recreated, or an old copy was restored. Use a new state and a new "
                "sink, or restore table and state of the same time"
            )

    def current_version(self, before: Decision | None) -> dict[str, Any] | None:
        """Return the table's id, its newest version, and this state's newest transaction in it (see `Sink`)."""
        table = self._later(self._checked) if self._checked else self._open()
        if table is None:
            return None
        if before is not None and before.sink_version is not None:
            self.check_kept(table, before)
        return self.seen(table)

    def seen(self, table: Table) -> dict[str, Any]:
        """Return the decision's record of a table."""
        owner = self.own.owner()
        last = table.transactions.get(owner) if owner else None
        return {"table": table.id, "version": table.version, "transaction": last}

    def check_kept(self, table: Table, before: Decision) -> None:
        """Check that it is the same table, and that no later commit has reverted rows."""
        seen: dict[str, Any] = before.sink_version or {}
        if seen.get("table", table.id) != table.id:
            raise SinkChangedError(
                f"{self.location}: not the table that version {before.version} was written to (its id is "
                f"{table.id}, was {seen['table']})"
            )
        for version, actions in read_commits(self.store, seen.get("version", -1) + 1, table.version):
            if actions is None:
                raise SinkChangedError(
                    f"{self.location}: version {version} of the table is no longer in its log, so it is unknown "
                    f"whether that version removed rows. {_ROLL_BACK}"
                )
            if info_of(actions).get("operation") == "RESTORE":
                raise SinkChangedError(
                    f"{self.location}: version {version} of the table is a RESTORE: it may have removed rows that "
                    f"the state knows, which would be refused as duplicates if they came again. {_ROLL_BACK}"
                )

    def shown(self, decision: Decision) -> int:
        """Return the number of shown files (see `Sink`). Compaction may have moved their rows, so all count as shown
        unless a RESTORE reverted the version."""
        return 0 if not len(decision.outputs) or self.is_reverted(decision) else len(decision.outputs)

    def is_reverted(self, decision: Decision) -> bool:
        """See `Sink`."""
        table, owner = self._open(), self.own.owner()
        if table is None:
            return True
        version, counts = table.version, True
        for at in range(version, -1, -1):
            actions = read_commit(self.store, at)
            if actions is None:  # removed by cleanup, like all earlier ones
                return at > version and self._was_reverted(table, decision, version)
            commit, counts = info_of(actions), at <= version
            if commit.get("fencepost.state") == owner and commit.get("fencepost.version") == str(decision.version):
                return not counts
            if counts and commit.get("operation") == "RESTORE":
                version = min(version, self._restored_to(commit, at))
        return False

    def _was_reverted(self, table: Table, decision: Decision, version: int) -> bool:
        """Return whether a RESTORE to `version` reverted a version whose commit is no longer in the log."""
        if decision.sink_version is None:
            return False  # there was no table
        if decision.sink_version.get("version", -1) >= version:
            return True  # the table had this version before the commit
        with log_errors(self.location, SinkError):
            live = live_files(self.store, table.version)
        if any(name in live for name in self.names(decision)):
            return False
        raise SinkError(
            f"{self.location}: a RESTORE to version {version} removed rows, and the log no longer shows whether rows "
            f"of version {decision.version} of the state are among them: RESTORE the table to a later version, or "
            "begin again with a new state and a new sink"
        )

    def _restored_to(self, commit: dict[str, Any], at: int) -> int:
        to = commit.get("operationParameters", {}).get("version")
        if to is None:
            raise SinkError(
                f"{self.location}: version {at} of the table is a RESTORE by time, so the rows that it removed "
                "are unknown: RESTORE again, to a version by number"
            )
        return int(to)

    def names(self, decision: Decision) -> list[str]:
        """See `Sink`."""
        return [f"{hive_folders(name)}{name_in_table(decision, name)}" for name in decision.outputs.name]

    # Rows

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """Check the files (see `Sink`). Also returns the log's fields for them."""
        import pyarrow as pa  # type: ignore[import-untyped]

        found = [(pa.ipc.read_schema(pa.py_buffer(schema)), path) for schema, path in rows.schemas.items()]
        table = self._open()
        values = [hive_values(folder) for folder in dict.fromkeys(rows.folders)]
        about: dict[str, Any] = {"bounds": rows.bounds}
        if table is None:
            return about | {"create": new_table(self.location, found, values)}
        self._check_folders(table, values)
        if rows.rule == "merge":
            columns = merged_columns(self.location, table, found)
            return about | ({"columns": columns} if columns else {})
        known = {field["name"]: field for field in table.fields if field["name"] not in table.partition_columns}
        for schema, path in found:
            check_schema(self.location, known, schema, path)
        return about

    def _check_folders(self, table: Table, values: Iterable[dict[str, str | None]]) -> None:
        """Raise SinkError if the table is not partitioned by the folders of files. `values`: of each folder."""
        partitions, folders = table.partition_columns, list(values)
        for names in {tuple(it) for it in folders}:
            if set(names) != set(partitions):
                raise SinkError(
                    f"{self.location}: the table is partitioned by {partitions or 'nothing'}, but the folders of the "
                    f"input by {list(names) or 'nothing'}: files can only be added if both are the same"
                )
        fields = {field["name"]: field for field in table.fields}
        for name in partitions:
            check_values(self.location, fields[name], {it[name] for it in folders})

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """Write one transaction, then the side tables (see `Sink`)."""
        return self._show(decision, self._status(decision) or self._commit(decision, APPLIED, tasks), tasks)

    def fence(self, decision: Decision) -> str:
        """Write a transaction without rows with the version's number (see `Sink`)."""
        try:
            status = self._status(decision) or self._commit(decision, ABANDONED, in_turn)
        except SinkChangedError:
            status = ABANDONED  # the table was replaced, so nobody can write the version to it
        return self._show(decision, status, in_turn)

    def _status(self, decision: Decision) -> str | None:
        """Return the status of the version by its side tables. None: it is not finished. Raises SinkError."""
        status = self.own.status(decision)
        if status is not None and decision.sink_version is not None:
            self._check_attempt(decision, self._open())
        return status

    def _show(self, decision: Decision, status: str, tasks: Tasks) -> str:
        """Do what follows the transaction, for either status."""
        beside = without_rows(decision)
        if status == APPLIED:
            status = self.own.apply(beside, tasks)
        else:
            status = self.own.fence(beside)
            if status == ABANDONED:
                self.store.delete(self.names(decision))
        self.own.clear(decision, tasks)
        return status

    def _commit(self, decision: Decision, wanted: str, tasks: Tasks) -> str:
        """Write the version's transaction unless it exists. Returns its status: `wanted`, or that of another writer."""
        state, number = str(self.own.owner()), decision.version
        # Not what a failed commit of this attempt knew: since then, VACUUM may have removed its files.
        self._has_placed, self._fitting = False, None
        seen = decision.sink_version
        if seen is None:
            return wanted  # there is no table yet, and no rows for it
        table, is_mine = self._open() or self._make(decision, state), False
        while True:
            if table is None:
                raise SinkChangedError(
                    f"{self.location}: the Delta table that version {number} was decided for no longer exists. Restore "
                    "it, or abandon the version (`fencepost state abandon`)"
                )
            last = table.transactions.get(state)
            if last is not None and last > number:
                return finished_status(self.location, decision, self._status(decision))
            if last == number:
                is_abandoned = table.transactions.get(state + ABANDONED_APP) == number
                if not is_mine:
                    self._check_attempt(decision, table)
                    self._seal(range(seen.get("version", -1) + 1, table.version + 1))
                return ABANDONED if is_abandoned else APPLIED
            self._check_follows(table, decision, state)
            if wanted == APPLIED and not self.can_still_write(table, decision):
                wanted = ABANDONED
            before = table.version
            try:
                self._write(table, decision, wanted, state, tasks)
                is_mine = True
            except TakenError:
                is_mine = False  # read what was written first, then try the next version
            except SinkChangedError:
                table = self._later(table)
                if table.version == before:
                    raise
                continue  # another driver has abandoned the version and removed its files
            table = self._later(table)
            if table.version == before:
                raise SinkError(
                    f"{self.location}: version {before + 1} of the table exists already, but cannot be read. Run again"
                )

    def _check_follows(self, table: Table, decision: Decision, state: str) -> None:
        """Raise an error if the table is not that of the decision, or is older."""
        seen, last = decision.sink_version or {}, table.transactions.get(state)
        follows = decision.version - 1 if "create" in seen or seen["transaction"] is not None else None
        if last != follows or seen.get("table", table.id) != table.id:
            raise SinkChangedError(
                f"{self.location}: not the table that version {decision.version} was decided for. Expected the id "
                f"{seen.get('table', table.id)}, with {follows or 'none'} as the newest version of this state; found "
                f"the id {table.id}, with {last or 'none'}. Restore the table, or abandon the version (`fencepost "
                "state abandon`)"
            )
        self._remember(table)

    def _check_attempt(self, decision: Decision, table: Table | None) -> None:
        """Raise SinkError if the commit of the version is of another attempt (see `check_attempt`)."""
        first, last = (decision.sink_version or {}).get("version", -1) + 1, table.version if table else -1
        wanted = {"fencepost.state": self.own.owner(), "fencepost.version": str(decision.version)}
        for _, actions in read_commits(self.store, first, last):
            info = info_of(actions or ())
            if wanted.items() <= info.items():
                check_attempt(self.location, decision, info.get("fencepost.attempt"))

    def can_still_write(self, table: Table, decision: Decision) -> bool:
        """Return whether the version may be written after changes by others: always, because it only adds rows."""
        return True

    def _write(self, table: Table, decision: Decision, wanted: str, state: str, tasks: Tasks) -> None:
        """Write the table's next version, or raise TakenError if it exists."""
        now_ms = time.time_ns() // 1_000_000
        about = {
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": json.dumps(table.partition_columns)},
            "isBlindAppend": True,
        }
        commit = heading(decision, state, wanted, about, now_ms)
        if wanted == APPLIED:
            if not self._has_placed:
                self._place(decision, tasks)
                self._has_placed = True
            changed = self._changed_columns(table, decision)
            self._check_still_fits(table, changed, decision)
            commit += [*changed, *self._added(decision, now_ms)]
        self._put(table, commit)

    def _put(self, table: Table, commit: list[Action]) -> None:
        if not put_commit(self.store, table.version + 1, commit):
            raise TakenError
        with suppress(Exception):  # a missing checkpoint only slows down readers
            if (table.version + 1) % int(table.configuration.get("delta.checkpointInterval", CHECKPOINT_EVERY)) == 0:
                library = by_library(self.store)
                library.create_checkpoint()
                if table.configuration.get(CLEANUP) != "false":
                    library.cleanup_metadata()

    def _check_still_fits(self, table: Table, changed: list[Action], decision: Decision) -> None:
        """Check the placed files again if others have changed the table's columns or settings since the decision.

        Otherwise readers would not see the values of a column that is gone. `changed`: the actions by which this commit
        changes the columns. Raises SinkError.
        """
        found = (table.protocol, table.metadata)
        if self._is_changed(table, decision) if self._fitting is None else found != self._fitting:
            after = dataclasses.replace(table, metadata=changed[0]["metaData"]) if changed else table
            try:
                self._check_files(after, decision)
            except SinkChangedError:
                raise
            except SinkError as error:
                raise SinkError(
                    f"{error.message}. The table was changed after version {decision.version} was decided. Change it "
                    "back and run again, or abandon the version (`fencepost state abandon`)"
                ) from None
        self._fitting = found

    def _is_changed(self, table: Table, decision: Decision) -> bool:
        """Return whether a commit since the decision may have changed the table's columns or settings."""
        commits = read_commits(self.store, (decision.sink_version or {}).get("version", 0) + 1, table.version)
        return any(it is None or any(kind in ("protocol", "metaData") for kind, _ in it) for _, it in commits)

    def _check_files(self, table: Table, decision: Decision) -> None:
        """Raise an error if the table does not take a version's placed files as it is."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        self.check_table(table)
        self._check_folders(table, map(hive_values, dict.fromkeys(map(hive_folders, decision.outputs.name))))
        found: dict[bytes, tuple[Any, str]] = {}
        for name in self.names(decision):
            try:
                with self.store.open(name) as file:
                    schema = pq.read_schema(file).remove_metadata()
            except FileNotFoundError:  # another driver may have abandoned the version
                raise SinkChangedError(
                    f"{self.location}/{name}: gone before version {decision.version} was committed. Run again"
                ) from None
            found.setdefault(schema.serialize().to_pybytes(), (schema, name))
        for column in merged_columns(self.location, table, list(found.values())):
            raise SinkError(f"{self.location}: the table has no column '{column['name']}' of type {column['type']}")

    def _changed_columns(self, table: Table, decision: Decision) -> list[Action]:
        """Return the actions that change the table's columns, if files bring other ones."""
        columns = (decision.sink_version or {}).get("columns")
        changed = columns and with_columns(self.location, table, columns)
        return [{"metaData": changed}] if changed and changed != table.metadata else []

    def _added(self, decision: Decision, now_ms: int) -> list[Action]:
        """Return the actions that add the version's files, with their rows and the bounds of their integer columns."""
        outputs = decision.outputs
        bounds = (decision.sink_version or {}).get("bounds") or [{}] * len(outputs)
        files = zip(self.names(decision), outputs.name, outputs.bytes, outputs.rows, bounds, strict=True)
        return [
            {
                "add": {
                    "path": quote(name, safe="/="),
                    "partitionValues": hive_values(prepared),
                    "size": size,
                    "modificationTime": now_ms,
                    "dataChange": True,
                    "stats": statistics(rows, known),
                }
            }
            for name, prepared, size, rows, known in files
        ]

    def _make(self, decision: Decision, state: str) -> Table | None:
        """Create the table that the decision requires, if any. Returns it, or one that another run created first."""
        wanted = (decision.sink_version or {}).get("create")
        if wanted is None:
            return None
        now_ms = time.time_ns() // 1_000_000
        about = {"operation": "CREATE TABLE", "operationParameters": {}, "isBlindAppend": True}
        info = commit_info(decision, state, about, now_ms) | {"fencepost.version": str(decision.version - 1)}
        mark = {"appId": state, "version": decision.version - 1, "lastUpdated": now_ms}
        put_commit(self.store, 0, [{"commitInfo": info}, *first_actions(wanted, now_ms), {"txn": mark}])
        return self._open()

    # Files

    def _place(self, decision: Decision, tasks: Tasks) -> None:
        """Move the version's files to their final locations. May be repeated by anyone."""
        if not len(decision.outputs):
            return
        if isinstance(self.own, RunPrefixes):
            self._copy(decision, self.own, tasks)
        else:
            self._move(decision, self.own.path)

    def _move(self, decision: Decision, own: Path) -> None:
        root, prepared = own.parent, own / str(decision.prepared)
        outputs, names = decision.outputs, self.names(decision)
        folders = {(root / name).parent for name in names}
        for folder in sorted(folders):
            self.disk.make_folder(folder, root)
        for name, final, size in zip(outputs.name, names, outputs.bytes, strict=True):
            target = root / final
            try:
                move_file(prepared / name, target, size)
            except FileNotFoundError:
                raise SinkChangedError(
                    f"{target}: missing, or not the file of version {decision.version}, and it cannot be restored from "
                    f"{prepared}. Restore the file, or abandon the version (`fencepost state abandon`)"
                ) from None
        for folder in folders | {root}:
            self.disk.seal(folder)

    def _copy(self, decision: Decision, own: RunPrefixes, tasks: Tasks) -> None:
        assert isinstance(self.store, RemoteStore)
        for final in own.place_outputs(decision, self.names(decision), self.store, tasks):
            raise SinkChangedError(
                f"{self.location}/{final}: missing, or not the file of version {decision.version}, and it cannot be "
                f"restored from {decision.prepared}. Restore the file, or abandon the version (`fencepost state "
                "abandon`)"
            )

    # The table

    def _remember(self, table: Table) -> None:
        """Record the table's id once it exists."""
        known = self._known_id()
        if known is None:
            self.store.put(f"{OWN}/{TABLE}", (json.dumps({"id": table.id}) + "\n").encode())
            known = self._known_id()
        self._check_id(table, known)

    def _known_id(self) -> str | None:
        if self._id is None:
            with suppress(FileNotFoundError):
                self._id = str(json.loads(self.store.read(f"{OWN}/{TABLE}"))["id"])
        return self._id

    def _check_id(self, table: Table, known: str | None) -> None:
        if known != table.id:
            raise SinkChangedError(
                f"{self.location}: not the table that versions were written to (its id is {table.id}, was {known})"
            )

    def _open(self) -> Table | None:
        """Return the current table, if it exists."""
        with log_errors(self.location, SinkError):
            return read_table(self.store)

    def _later(self, table: Table) -> Table:
        with log_errors(self.location, SinkError):
            return table.later()

    def _seal(self, versions: range) -> None:
        """Sync commits to disk, because not every writer does."""
        if not isinstance(self.store, LocalStore):
            return
        log = self.store.folder / LOG
        for version in versions:
            with suppress(FileNotFoundError):  # removed by cleanup, long after it was written
                self.disk.seal(log / f"{version:020}.json")
        self.disk.seal(log)
        self.disk.seal(self.store.folder)


_ROLL_BACK = (
    "Find the last version of the state whose rows are all in the table, and roll the state back to it with "
    "`fencepost state rollback`, also if it is the state's newest version. The inputs of later versions must still be "
    "in the source"
)


def heading(decision: Decision, state: str, wanted: str, about: Action, now_ms: int) -> list[Action]:
    """Return the first actions of a commit: its description (operation `about`) and its transactions."""
    apps = [state] if wanted == APPLIED else [state, state + ABANDONED_APP]
    marks = [{"appId": app, "version": decision.version, "lastUpdated": now_ms} for app in apps]
    return [{"commitInfo": commit_info(decision, state, about, now_ms)}, *({"txn": mark} for mark in marks)]


def commit_info(decision: Decision, state: str, about: Action, now_ms: int) -> Action:
    own = {"fencepost.state": state, "fencepost.version": str(decision.version), "fencepost.attempt": decision.attempt}
    return {"timestamp": now_ms, **about, "engineInfo": f"fencepost/{decision.fencepost}", **own}


def statistics(rows: int, bounds: dict[str, list[int]]) -> str:
    """Return a file's statistics for the log. `bounds`: maps columns to minimum and maximum."""
    lows, highs = ({name: it[place] for name, it in bounds.items()} for place in (0, 1))
    return json.dumps({"numRecords": rows, "minValues": lows, "maxValues": highs})


def bounds_of(groups: Mapping[str, list[tuple[int, int] | None]]) -> dict[str, list[int]]:
    """Return minimum and maximum of columns, if all row groups have them (`parquet_footer`)."""
    known = {name: [it for it in found if it is not None] for name, found in groups.items()}
    whole = {name: it for name, it in known.items() if it and len(it) == len(groups[name])}
    return {name: [min(low for low, _ in it), max(high for _, high in it)] for name, it in whole.items()}


# Tables


def check_library(path: object) -> None:
    """Raise FencepostError if the libraries for Delta tables are not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        text = f"{path}: Delta tables need more packages ({error}): pip install 'fencepost[lake]'"
        raise DependencyError(text) from error


LOG_UNREAD = "its log cannot be read"


@contextmanager
def log_errors(place: str, failure: type[FencepostError]) -> Iterator[None]:
    """Convert errors of reading a log. Raises `failure` for invalid content, StoreError (path, errno) for system
    errors."""
    try:
        yield
    except OSError as error:
        # pyarrow raises OSError without errno for damage
        if error.errno is None or isinstance(error, FileNotFoundError):
            raise failure(f"{place}: cannot be read as a Delta table: {error}") from error
        raise unavailable(place, LOG_UNREAD, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise failure(f"{place}: cannot be read as a Delta table: {error}") from error


def open_table(store: Store, failure: type[FencepostError]) -> Table:
    """Open the current table. Raises `failure` for an unreadable log."""
    with log_errors(store.uri, failure):
        table = read_table(store)
    if table is None:
        raise failure(f"{store.uri}: not a Delta table: it has no log")
    return table


def by_library(store: Store, version: int | None = None) -> DeltaTable:
    """Open a table with delta-rs."""
    from deltalake import DeltaTable

    if not isinstance(store, RemoteStore):
        return DeltaTable(store.uri, version=version)
    return DeltaTable(store.quoted_uri, version=version, storage_options=library_options(store.options))


def is_delta(store: Store) -> bool:
    """Return whether a folder or prefix contains a Delta table."""
    if isinstance(store, RemoteStore):
        return not store.is_empty(LOG)
    return any(name.endswith((".json", ".parquet")) for name in store.list(LOG))


def is_delta_sink(store: Store) -> bool:
    """Return whether a folder or prefix is a Delta table, or will become one with the first rows."""
    return is_delta(store) or store.exists(f"{OWN}/{MARKER}")


def _had_table(state: State, version: int) -> bool:
    """Return whether the table existed when the version was finished."""
    return version > 0 and state.version(version).sink_version is not None


def check_features(table: Table, location: str, features: set[str], refused: dict[str, str], what: str) -> None:
    """Raise an error if a table's settings or features require unsupported work. Raises SinkError, SinkChangedError.

    `refused`: settings by prefix of their names; `what`: the intended operation, for messages.
    """
    for name, value in table.configuration.items():
        for start, feature in refused.items():
            if name.startswith(start) and value not in ("false", "none", None):
                raise SinkError(
                    f"{location}: the table has {feature} ({name}={value}), so fencepost cannot {what}. Remove the "
                    "property, or use another table"
                )
    if RETENTION in table.configuration:
        raise SinkChangedError(
            f"{location}: {RETENTION} is set: the table would forget which versions were written. Remove the property"
        )
    unknown = sorted(table.features - features)
    reader, writer = table.protocol["minReaderVersion"], table.protocol["minWriterVersion"]
    has_list = writer == LISTED_WRITER and reader <= LISTED_READER
    if unknown or not (has_list or (reader <= READER_MAX and writer <= WRITER_MAX)):
        found = ", ".join(unknown) or f"protocol {reader}/{writer}"
        raise SinkError(
            f"{location}: the table has {found}, which this version does not know, so it cannot {what} safely. Upgrade "
            "fencepost, or use another table"
        )


def library_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Translate options of `open_store` for delta-rs. A credential provider is called once, now."""
    found = {name: it for name, it in options.items() if name != "credential_provider"}
    if "credential_provider" in options:
        found |= load_provider(options["credential_provider"])()
        found.pop("expires_at", None)
    return {name: _option(it) for name, it in found.items() if it is not None}


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)
