"""A Delta table as output: each version is one transaction of its log.

    <table>/part-<n>-<ordinal>-<attempt>.parquet   the rows that version n kept of one input
    <table>/_delta_log/                            version n is the commit that has the transaction (state, n)
    <table>/_fencepost/                            whose table it is, what tasks prepare, and each version's side tables
                                                   (a sink of folders or prefixes); readers and VACUUM pass over it

The table lies in a folder or beneath a prefix of an object store. The commit is what counts: a version is applied, or
abandoned, by whoever first writes its transaction, and everything else follows from which of the two it was. A commit
is one put-if-absent of the table's next version. Others may append, delete and compact meanwhile. What they must not do
is take rows back by RESTORE: the state would go on to call them duplicates.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fencepost.errors import DependencyError, FencepostError, SinkChangedError, SinkError
from fencepost.state.commit import NewRows, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision, Outputs, SideFiles
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
from fencepost.state.delta_log import LOG, Action, Table, info_of, put_commit, read_commit, read_commits, read_table
from fencepost.state.disk import Disk
from fencepost.state.hive import hive_folders, hive_values
from fencepost.state.placing import CopyItem
from fencepost.state.prefix import RunPrefixes
from fencepost.state.scratch import Scratch
from fencepost.state.sinks import MARKER, RunFolders, number_of, without_rows
from fencepost.state.stores import LocalStore, RemoteStore, Store, load_provider, not_given

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from fencepost.state.versions import State

OWN, TABLE = "_fencepost", "_table.json"
ABANDONED_APP = "-abandoned"
"""Ends the application id under which the number of an abandoned version is written beside its transaction."""

FEATURES = {
    *("appendOnly", "invariants", "checkConstraints", "deletionVectors", "timestampNtz", "v2Checkpoint"),
    *("variantType", WIDENING),
}
"""Table features under which files may be added just so, constraints and the like being refused one by one."""
LISTED_READER, LISTED_WRITER = 3, 7
"""Versions of the protocol that come with a list of features."""
READER_MAX, WRITER_MAX = 2, 6
"""Versions of the protocol that come without a list: what they may have is looked for in settings and columns."""
REFUSED = {
    "delta.enableChangeDataFeed": "a change data feed",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "timestamps in commits",
    "delta.columnMapping.mode": "column mapping",
}
"""Settings under which a commit has to say more than which files come and go."""
CONSTRAINTS = {"delta.constraints.": "constraints, which nobody would check"}
RETENTION = "delta.setTransactionRetentionDuration"
CHECKPOINT_EVERY = 100
"""Commits of a table that does not say how many."""


class TakenError(Exception):
    """The table's next version is somebody else's."""


class DeltaSink:
    """Appends each version to a Delta table, which is made for the first rows where there is none.

    Rows are the table's; all else goes to a sink of folders or prefixes beneath it (`own`). See `Sink` for what is not
    said here.
    """

    layout = "delta"
    has_schema = True
    can_merge = False

    def __init__(self, table: LocalStore | RemoteStore, disk: Disk) -> None:
        check_library(table.uri)
        if "%" in table.uri:
            raise SinkError(f"{table.uri}: a '%' in the path of a Delta table is read as another path; rename it")
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
        """The table as `check` found it."""
        self._id: str | None = None
        """Which table it is, once it was noted."""
        self._placed: set[str] = set()
        """Attempts whose files this sink has brought to their places."""

    # What is beside the rows

    def probe(self, version: int, attempt: str) -> None:
        self.own.probe(version, attempt)

    def claim(self, state_id: str) -> None:
        self.own.claim(state_id)

    def scratch(self, version: int, attempt: str) -> Scratch:
        return self.own.scratch(version, attempt)

    def staging(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int
    ) -> tuple[Callable[[Any], Any], list[Any]]:
        return self.own.staging(version, attempt, outputs, winners, slots)

    def staged(self, results: list[Any]) -> dict[str, Any]:
        return self.own.staged(results)

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        return self.own.collect(version, attempt, winners)

    def changelog(self) -> Iterator[Any]:
        return self.own.changelog()

    def prepare_changelog(self, version: int, attempt: str, lines: list[Any]) -> tuple[SideFiles, str]:
        return self.own.prepare_changelog(version, attempt, lines)

    def discard(self, version: int, attempt: str) -> None:
        self.own.discard(version, attempt)

    def collect_garbage(self, done: int) -> None:
        self.own.collect_garbage(done)

    def fold(self, first: int, last: int) -> None:
        """See `Sink`: all marks stay. A fence that finds none removes the files of the version."""

    # Looking

    def check_table(self, table: Table) -> None:
        """Refuse a table that is not written to just so. Raises SinkError, SinkChangedError."""
        check_features(table, self.location, FEATURES, REFUSED | CONSTRAINTS, "adding files")
        check_columns(table, self.location)

    def check(self, state: State) -> None:
        """See `Sink`."""
        # In this order: other runs may finish versions meanwhile.
        done = state.done()
        table = self._checked = self._open()
        self.own.check(state)
        if table is None and _had_table(state, done):
            raise SinkChangedError(f"{self.location}: the Delta table is gone that versions were written to")
        if table is None:
            return
        self.check_table(table)
        self._check_id(table, self._known_id() or table.id)
        settings = state.settings()
        last = table.transactions.get(settings.id) if settings is not None else None
        if last is None and not _had_table(state, done):
            last = done
        if not done <= (last or 0) <= state.decided():
            raise SinkChangedError(
                f"{self.location}: the newest transaction of this state is {last or 'none'}, though versions up to "
                f"{done} were written: the table was made anew, or its transactions were reset"
            )

    def look(self, before: Decision | None) -> dict[str, Any] | None:
        """See `Sink`: the table's id, its newest version, and this state's newest transaction in it."""
        table = self._later(self._checked) if self._checked else self._open()
        if table is None:
            return None
        if before is not None and before.sink_version is not None:
            self.check_kept(table, before)
        return self.seen(table)

    def seen(self, table: Table) -> dict[str, Any]:
        """What a decision says of a table."""
        owner = self.own.owner()
        last = table.transactions.get(owner) if owner else None
        return {"table": table.id, "version": table.version, "transaction": last}

    def check_kept(self, table: Table, before: Decision) -> None:
        """Whether it is still the table, and no commit since the one that was looked at has taken rows back."""
        seen: dict[str, Any] = before.sink_version or {}
        if seen.get("table", table.id) != table.id:
            raise SinkChangedError(
                f"{self.location}: another table than the one that version {before.version} was written to (its id is "
                f"{table.id}, was {seen['table']})"
            )
        for version, actions in read_commits(self.store, seen.get("version", -1) + 1, table.version):
            if actions is None:
                raise SinkChangedError(
                    f"{self.location}: its log no longer has version {version}, so nobody can tell whether rows were "
                    "taken back there. " + _ROLL_BACK
                )
            if info_of(actions).get("operation") == "RESTORE":
                raise SinkChangedError(
                    f"{self.location}: version {version} of the table is a RESTORE: rows that the state knows may be "
                    "gone, and would be refused as duplicates if they came again. " + _ROLL_BACK
                )

    def shown(self, decision: Decision) -> int:
        """See `Sink`. Its rows may lie in other files by now: it is shown unless a RESTORE went back over it."""
        table, owner = self._open(), self.own.owner()
        if table is None:
            return 0
        version, counts = table.version, True
        for at in range(version, -1, -1):
            actions = read_commit(self.store, at)
            if actions is None:
                break  # cleaned up, and with it all before: those nobody went back over
            commit, counts = info_of(actions), at <= version
            if commit.get("fencepost.state") == owner and commit.get("fencepost.version") == str(decision.version):
                return len(decision.outputs) if counts else 0
            if counts and commit.get("operation") == "RESTORE":
                version = min(version, self._restored_to(commit, at))
        return len(decision.outputs)

    def _restored_to(self, commit: dict[str, Any], at: int) -> int:
        to = commit.get("operationParameters", {}).get("version")
        if to is None:
            raise SinkError(
                f"{self.location}: version {at} of the table is a RESTORE by time, so it cannot be told which rows it "
                "took back: RESTORE it once more to a version, by number"
            )
        return int(to)

    def names(self, decision: Decision) -> list[str]:
        """See `Sink`."""
        return [
            f"{hive_folders(name)}part-{decision.version:06}-{number_of(name)}-{decision.attempt[:12]}.parquet"
            for name in decision.outputs.name
        ]

    # Rows

    def columns(self) -> Any:
        """See `Sink`: `check_rows` compares them."""
        return None

    def columns_of(self, schema: Any) -> Any:
        """See `Sink`."""
        return schema

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """See `Sink`: also what the log will say of the files."""
        import pyarrow as pa  # type: ignore[import-untyped]

        found = [(pa.ipc.read_schema(pa.py_buffer(schema)), path) for schema, path in rows.schemas.items()]
        table = self._open()
        values = [hive_values(folder) for folder in dict.fromkeys(rows.folders)]
        about: dict[str, Any] = {"bounds": rows.bounds}
        if table is None:
            return about | {"create": new_table(self.location, found, values)}
        partitions = table.partition_columns
        for names in {tuple(it) for it in values}:
            if set(names) != set(partitions):
                raise SinkError(
                    f"{self.location}: the table is partitioned by {partitions or 'nothing'}, the folders of the input "
                    f"give {list(names) or 'nothing'}: files can only be added where both are the same"
                )
        known = {field["name"]: field for field in table.fields}
        for name in partitions:
            check_values(self.location, known.pop(name), {it[name] for it in values})
        if rows.rule == "merge":
            columns = merged_columns(self.location, table, found)
            return about | ({"columns": columns} if columns else {})
        for schema, path in found:
            check_schema(self.location, known, schema, path)
        return about

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """See `Sink`: one transaction, then the side tables."""
        return self._show(decision, self.own.status(decision) or self._commit(decision, APPLIED, tasks), tasks)

    def fence(self, decision: Decision) -> str:
        """See `Sink`: a transaction without rows takes the version's number."""
        try:
            status = self.own.status(decision) or self._commit(decision, ABANDONED, in_turn)
        except SinkChangedError:
            status = ABANDONED  # another table than the one it was decided for: nobody can write the version to it
        return self._show(decision, status, in_turn)

    def _show(self, decision: Decision, status: str, tasks: Tasks) -> str:
        """What follows the transaction, whichever it was."""
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
        """Write the version's transaction, unless somebody has. Gives what it was: `wanted`, or what theirs was."""
        state, number = str(self.own.owner()), decision.version
        seen = decision.sink_version
        if seen is None:
            return wanted  # there is no table yet, and no rows for one
        table, is_mine = self._open() or self._make(decision, state), False
        while True:
            if table is None:
                text = f"{self.location}: the Delta table is gone that version {number} was decided for"
                raise SinkChangedError(text)
            if table.transactions.get(state) == number:
                is_abandoned = table.transactions.get(state + ABANDONED_APP) == number
                if not is_mine:
                    self._seal(range(seen.get("version", -1) + 1, table.version + 1))
                return ABANDONED if is_abandoned else APPLIED
            self._check_follows(table, decision, state)
            if wanted == APPLIED and not self.fits(table, decision):
                wanted = ABANDONED
            before = table.version
            try:
                self._write(table, decision, wanted, state, tasks)
                is_mine = True
            except TakenError:
                is_mine = False  # look at what came first, then try the version after it
            except SinkChangedError:
                table = self._later(table)
                if table.version == before:
                    raise
                continue  # somebody has abandoned the version and removed its files
            table = self._later(table)
            if table.version == before:
                raise SinkError(f"{self.location}: version {before + 1} of the table can neither be read nor written")

    def _check_follows(self, table: Table, decision: Decision, state: str) -> None:
        """Refuse another table than that of the decision, or one that has not come as far."""
        seen, last = decision.sink_version or {}, table.transactions.get(state)
        follows = decision.version - 1 if "create" in seen or seen["transaction"] is not None else None
        if last != follows or seen.get("table", table.id) != table.id:
            raise SinkChangedError(
                f"{self.location}: version {decision.version} can only follow transaction {follows or 'none'} of table "
                f"{seen.get('table', 'to be made')}; found: {last or 'none'}, of {table.id}"
            )
        self._remember(table)

    def fits(self, table: Table, decision: Decision) -> bool:
        """Whether a version may still be written, whatever others have done since it was decided: rows come beside
        those that are there."""
        return True

    def _write(self, table: Table, decision: Decision, wanted: str, state: str, tasks: Tasks) -> None:
        """The table's next version, or TakenError where it has one already."""
        now_ms = time.time_ns() // 1_000_000
        about = {
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": json.dumps(table.partition_columns)},
            "isBlindAppend": True,
        }
        commit = heading(decision, state, wanted, about, now_ms)
        if wanted == APPLIED:
            if decision.attempt not in self._placed:
                self._place(decision, tasks)
                self._placed.add(decision.attempt)
            commit += [*self._changed_columns(table, decision), *self._added(decision, now_ms)]
        self._put(table, commit)

    def _put(self, table: Table, commit: list[Action]) -> None:
        if not put_commit(self.store, table.version + 1, commit):
            raise TakenError
        with suppress(Exception):  # only who reads the table is slower without a checkpoint
            if (table.version + 1) % int(table.configuration.get("delta.checkpointInterval", CHECKPOINT_EVERY)) == 0:
                library = by_library(self.store)
                library.create_checkpoint()
                library.cleanup_metadata()

    def _changed_columns(self, table: Table, decision: Decision) -> list[Action]:
        """The table's columns from now on, where files bring others."""
        columns = (decision.sink_version or {}).get("columns")
        changed = columns and with_columns(self.location, table, columns)
        return [{"metaData": changed}] if changed and changed != table.metadata else []

    def _added(self, decision: Decision, now_ms: int) -> list[Action]:
        """What the log says of the version's files: their rows, and the bounds of their integer columns."""
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
        """The table that the decision says is to be made, if any; or that of another run that was faster."""
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
        """Bring the version's files to where the table will name them. May be done again, by anyone.

        VACUUM removes files that no version of the table names, but for young ones. So their age begins here: a version
        may be decided long before it is committed.
        """
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
                os.utime(prepared / name)
                os.rename(prepared / name, target)
            except FileNotFoundError:
                if not target.exists() or target.stat().st_size != size:
                    raise SinkChangedError(
                        f"{target}: not what version {decision.version} decided, and it cannot be taken from {prepared}"
                    ) from None
                os.utime(target)
        for folder in folders | {root}:
            self.disk.seal(folder)

    def _copy(self, decision: Decision, own: RunPrefixes, tasks: Tasks) -> None:
        """By the store itself, where it can."""
        assert isinstance(self.store, RemoteStore)
        outputs, written, files = decision.outputs, own.written(decision), CopyItem()
        for name, final, size in zip(outputs.name, self.names(decision), outputs.bytes, strict=True):
            files.add(written.get(name), final, size)
        # Files that are gone from where they were prepared are at their places if another driver was through.
        for final in own.place(decision, files, self.store, tasks).wrong:
            raise SinkChangedError(
                f"{self.location}/{final}: not what version {decision.version} decided, and it cannot be taken from "
                f"{decision.prepared}"
            )

    # The table

    def _remember(self, table: Table) -> None:
        """Note which table it is, once there is one."""
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
                f"{self.location}: another table than the one that versions were written to (its id is {table.id}, was "
                f"{known})"
            )

    def _open(self) -> Table | None:
        """The table as of now, if there is one."""
        with log_errors(self.location, SinkError):
            return read_table(self.store)

    def _later(self, table: Table) -> Table:
        with log_errors(self.location, SinkError):
            return table.later()

    def _seal(self, versions: range) -> None:
        """Wait until commits are on disk: not every writer does."""
        if not isinstance(self.store, LocalStore):
            return
        log = self.store.folder / LOG
        for version in versions:
            with suppress(FileNotFoundError):  # cleaned up, long after it was written
                self.disk.seal(log / f"{version:020}.json")
        self.disk.seal(log)
        self.disk.seal(self.store.folder)


_ROLL_BACK = (
    "Look which versions' rows are all there, and take the state back to the last of them (`fencepost state rollback`, "
    "the newest version included)"
)


def heading(decision: Decision, state: str, wanted: str, about: Action, now_ms: int) -> list[Action]:
    """What a commit says of itself (`about` its operation), and the transactions by which it is known."""
    apps = [state] if wanted == APPLIED else [state, state + ABANDONED_APP]
    marks = [{"appId": app, "version": decision.version, "lastUpdated": now_ms} for app in apps]
    return [{"commitInfo": commit_info(decision, state, about, now_ms)}, *({"txn": mark} for mark in marks)]


def commit_info(decision: Decision, state: str, about: Action, now_ms: int) -> Action:
    own = {"fencepost.state": state, "fencepost.version": str(decision.version)}
    return {"timestamp": now_ms, **about, "engineInfo": f"fencepost/{decision.fencepost}", **own}


def statistics(rows: int, bounds: dict[str, list[int]]) -> str:
    """What the log says of a file. `bounds`: column to lowest and highest value."""
    lows, highs = ({name: it[place] for name, it in bounds.items()} for place in (0, 1))
    return json.dumps({"numRecords": rows, "minValues": lows, "maxValues": highs})


def bounds_of(groups: Mapping[str, list[tuple[int, int] | None]]) -> dict[str, list[int]]:
    """The lowest and highest value of columns, where all row groups tell (`parquet_footer`)."""
    known = {name: [it for it in found if it is not None] for name, found in groups.items()}
    whole = {name: it for name, it in known.items() if it and len(it) == len(groups[name])}
    return {name: [min(low for low, _ in it), max(high for _, high in it)] for name, it in whole.items()}


# Tables


def check_library(path: object) -> None:
    """Raises DependencyError where tables cannot be read or written at all."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise DependencyError(f"{path}: Delta tables need fencepost[lake] ({error})") from error


LOG_UNREAD = "its log cannot be read"


@contextmanager
def log_errors(place: str, failure: type[FencepostError]) -> Iterator[None]:
    """Around code that reads a log. Raises `failure` for content that is not a log, StoreError (path, errno) where the
    system does not give it."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, FileNotFoundError):  # pyarrow reports damage without a number
            raise failure(f"{place}: cannot be read as a Delta table: {error}") from error
        raise not_given(place, LOG_UNREAD, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise failure(f"{place}: cannot be read as a Delta table: {error}") from error


def open_table(store: Store, failure: type[FencepostError]) -> Table:
    """A table as of now. Raises `failure` where its log cannot be read."""
    with log_errors(store.uri, failure):
        table = read_table(store)
    if table is None:
        raise failure(f"{store.uri}: not a Delta table: it has no log")
    return table


def by_library(store: Store, version: int | None = None) -> DeltaTable:
    """A table as delta-rs knows it."""
    from deltalake import DeltaTable

    if not isinstance(store, RemoteStore):
        return DeltaTable(store.uri, version=version)
    return DeltaTable(store.uri, version=version, storage_options=library_options(store.options))


def is_delta(store: Store) -> bool:
    """Whether there is a Delta table in a folder or prefix."""
    if isinstance(store, RemoteStore):
        return not store.is_empty(LOG)
    return any(name.endswith((".json", ".parquet")) for name in store.list(LOG))


def is_delta_sink(store: Store) -> bool:
    """Whether a folder or prefix is a Delta table, or is to become one with the first rows."""
    return is_delta(store) or store.exists(f"{OWN}/{MARKER}")


def _had_table(state: State, version: int) -> bool:
    """Whether there was a table once the version was done."""
    return version > 0 and state.version(version).sink_version is not None


def check_features(table: Table, location: str, features: set[str], refused: dict[str, str], what: str) -> None:
    """Refuse a table whose settings or features ask for more than is done here. Raises SinkError, SinkChangedError.

    `refused`: settings by what their names begin with; `what`: is to be done to the table.
    """
    for name, value in table.configuration.items():
        for start, feature in refused.items():
            if name.startswith(start) and value not in ("false", "none", None):
                raise SinkError(f"{location}: the table has {feature} ({name}={value}); {what} is not possible there")
    if RETENTION in table.configuration:
        raise SinkChangedError(
            f"{location}: {RETENTION} is set: the table would forget which versions were written. Unset it"
        )
    unknown = sorted(table.features - features)
    reader, writer = table.protocol["minReaderVersion"], table.protocol["minWriterVersion"]
    has_list = writer == LISTED_WRITER and reader <= LISTED_READER
    if unknown or not (has_list or (reader <= READER_MAX and writer <= WRITER_MAX)):
        found = ", ".join(unknown) or f"protocol {reader}/{writer}"
        raise SinkError(f"{location}: the table has {found}, under which it is not known whether {what} is right")


def library_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Options of `open_store` as delta-rs takes them. A credential provider is asked now, and not again."""
    found = {name: it for name, it in options.items() if name != "credential_provider"}
    if "credential_provider" in options:
        found |= load_provider(options["credential_provider"])()
        found.pop("expires_at", None)
    return {name: _option(it) for name, it in found.items() if it is not None}


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)
