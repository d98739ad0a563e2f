"""A Delta table that is deduplicated in place: each version removes rows from existing files.

    <table>/deletion_vector_<uuid>.bin            deleted rows of its files, if the table allows deletion vectors
    <table>/part-<n>-<ordinal>-<attempt>.parquet  otherwise: a replacement for a file that lost rows
    <table>/_delta_log/                           version n is the commit with the transaction (state, n)
    <table>/_fencepost/                           as for an append-only sink (`DeltaSink`)

For each changed file, a commit removes it and adds it with fewer rows. The library cannot write deletion vectors, so
this module writes commits and makes the library's conflict checks itself: has another writer, since the rows were
judged, removed or compacted a file that loses rows, or changed the table's settings? Then the version is abandoned and
the rows are judged again in their new location.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlparse

from fencepost._native import parquet_footer
from fencepost.errors import SinkChangedError, SinkError, SourceError
from fencepost.state.commit import Tasks, in_turn
from fencepost.state.decision import APPLIED, Decision
from fencepost.state.delta_columns import INTEGERS, WIDENING
from fencepost.state.delta_log import Action, Live, Table, live_files, read_commits
from fencepost.state.delta_sink import (
    FEATURES,
    REFUSED,
    DeltaSink,
    bounds_of,
    by_library,
    check_features,
    heading,
    statistics,
)
from fencepost.state.disk import Disk
from fencepost.state.sinks import IN_PLACE
from fencepost.state.stores import LocalStore, Store
from fencepost.state.vectors import read_vector, rows_of

if TYPE_CHECKING:
    from fencepost.state.versions import State

VECTORS = "deletionVectors"
IN_PLACE_FEATURES = FEATURES - {WIDENING} | {"allowColumnDefaults", "generatedColumns", "identityColumns"}
"""Table features under which rows may be removed: properties of all rows also hold for some of them. The library does
not write some of these tables, so this module writes every commit."""
IN_PLACE_REFUSED = REFUSED | {"delta.appendOnly": "a rule that rows are only ever added"}


class InPlace(DeltaSink):
    """Removes refused rows from the table that they were read from."""

    layout = IN_PLACE
    has_schema = False

    def __init__(self, table: LocalStore, disk: Disk) -> None:
        super().__init__(table, disk)
        self.folder = table.folder

    def check_table(self, table: Table) -> None:
        """See `DeltaSink`."""
        check_features(table, self.location, IN_PLACE_FEATURES, IN_PLACE_REFUSED, "remove rows")

    def check(self, state: State) -> None:
        """See `Sink`."""
        if self._open() is None:
            raise SinkError(f"{self.location}: not a Delta table; only Delta tables can be deduplicated in place")
        super().check(state)

    def check_kept(self, table: Table, before: Decision) -> None:
        """Do nothing (see `DeltaSink`): the source detects what others did to rows."""

    def seen(self, table: Table) -> dict[str, Any]:
        """Return the decision's record (see `DeltaSink`), including whether deletion vectors are allowed."""
        return {**super().seen(table), "vectors": allows_vectors(table)}

    def shown(self, decision: Decision) -> int:
        """Raise SinkError: removed rows cannot be restored, so a state cannot be rolled back in place (see `Sink`)."""
        raise SinkError(
            f"{self.location}: a state of a table that is deduplicated in place cannot be rolled back. "
            "RESTORE the table instead if necessary, then rebase (`DedupJob.rebase`, `fencepost dedup "
            "--rebase`)"
        )

    def names(self, decision: Decision) -> list[str]:
        """Return the outputs (see `RunFolders`). Files of vectors keep the names that the log uses."""
        known = super().names(decision)
        return [own if own.endswith(".bin") else name for own, name in zip(decision.outputs.name, known, strict=True)]

    # Commit

    def can_still_write(self, table: Table, decision: Decision) -> bool:
        """Return whether the version may still be written (see `DeltaSink`).

        The files that lose rows and the table's settings must be unchanged. Also, nobody may have removed rows: a kept
        copy of a removed row could be among them. Commits of this state that the decision has seen do not count: they
        keep a copy, and the source does not move its position past them.
        """
        marked = set(decision.marked.path)
        if not marked:
            return True
        own = self.own.owner()
        looked, read = ((it or {}).get("version", -1) for it in (decision.sink_version, decision.source_position))
        for version, actions in read_commits(self.store, min(looked, read) + 1, table.version):
            if actions is None or any(kind in ("protocol", "metaData") for kind, _ in actions):
                return False
            is_own = ("txn", own) in ((kind, action.get("appId")) for kind, action in actions)
            if is_own and version <= looked:
                continue
            removed = [action for kind, action in actions if kind == "remove" and version > read]
            if any(it.get("dataChange", True) or unquote(it["path"]) in marked for it in removed):
                return False
        return True

    def _write(self, table: Table, decision: Decision, wanted: str, state: str, tasks: Tasks) -> None:
        now_ms = time.time_ns() // 1_000_000
        has_changes = wanted == APPLIED and len(decision.marked)
        changes = self._checked_changes(table, decision, now_ms) if has_changes else []
        refused = sum(decision.marked.refused) if wanted == APPLIED else 0
        about = {
            "operation": "DEDUPLICATE",
            "operationParameters": {},
            "isBlindAppend": False,
            "operationMetrics": {"numDeletedRows": str(refused)},
        }
        commit = heading(decision, state, wanted, about, now_ms)
        commit += [action for actions in changes for action in actions]
        self._put(table, commit)
        if changes:
            self._check_read_back(table.version + 1, decision)

    def _checked_changes(self, table: Table, decision: Decision, now_ms: int) -> list[list[Action]]:
        """Return the commit's actions for each file that loses rows, after checking that new files are in place.

        `now_ms`: the time of the commit, from which VACUUM counts how long removed files are kept for readers; a
        version may be decided long before it is committed. Raises SinkChangedError if new files are missing because
        others abandoned the version.
        """
        self._place(decision, in_turn)
        try:
            live = live_files(self.store, table.version)
            changes = self._changes(table, live, decision, now_ms)
            self._check(table, live, changes, decision)
        except SourceError as error:
            raise SinkChangedError(error.message) from error
        except (FileNotFoundError, ValueError) as error:
            raise SinkError(f"{self.location}: its log cannot be read: {error}") from error
        return changes

    def _changes(self, table: Table, live: Live, decision: Decision, now_ms: int) -> list[list[Action]]:
        """Return for each file that loses rows: its removal, and its replacement if any row is left."""
        outputs, found = decision.outputs, []
        files = zip(self.names(decision), outputs.bytes, outputs.rows, strict=True)
        of_ordinal = dict(zip(outputs.ordinal, files, strict=True))
        for it in decision.marked.each():
            old, vector, rows = live[it["path"]], it["vector"], it["rows"]
            new: list[Action] = []
            if vector is not None and vector["cardinality"] < rows:
                stats = json.loads(old.get("stats") or "{}") | {"numRecords": rows, "tightBounds": False}
                new = [{**old, "dataChange": True, "stats": json.dumps(stats), "deletionVector": vector}]
            elif vector is None and it["ordinal"] in of_ordinal:
                name, size, left = of_ordinal[it["ordinal"]]
                own = {"path": quote(name, safe="/="), "size": size, "modificationTime": now_ms, "dataChange": True}
                kept: Action = {field: old[field] for field in ("partitionValues", "tags") if field in old}
                new = [{**own, **kept, "stats": self._stats(table, name, left)}]
            found.append([{"remove": _remove_action(old, now_ms)}, *({"add": action} for action in new)])
        return found

    def _stats(self, table: Table, name: str, rows: int) -> str:
        """Return a file's statistics for the log: rows, and bounds of integer columns."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        partitions = table.partition_columns
        integers = [it["name"] for it in table.fields if it["name"] not in partitions and it["type"] in INTEGERS]
        path = str(self.folder / name)
        there = set(pq.read_schema(path).names)
        found = parquet_footer(path, [it for it in integers if it in there]).bounds
        return statistics(rows, bounds_of(found))

    def _check(self, table: Table, live: Live, changes: list[list[Action]], decision: Decision) -> None:
        """Check for errors that readers would not notice (duplicated or lost rows), before the commit.

        Raises AssertionError.
        """
        for it, actions in zip(decision.marked.each(), changes, strict=True):
            path, old = it["path"], live[it["path"]]
            gone = [(action["remove"]["path"], action["remove"].get("deletionVector")) for action in actions[:1]]
            if gone != [(old["path"], old.get("deletionVector"))]:
                raise AssertionError(f"{path}: the commit removes {gone}, which is not the file in the table")
            before, left = _deleted_rows(self.store, old), 0
            for action in (action["add"] for action in actions[1:]):
                if "deletionVector" in action:
                    left += self._rows_left(table, action, before, it["rows"])
                else:
                    left += json.loads(action["stats"])["numRecords"]
            if left != it["rows"] - len(before) - it["refused"]:
                raise AssertionError(
                    f"{path}: {left} rows would be left of {it['rows']}, of which {len(before)} were removed before"
                )

    def _rows_left(self, table: Table, action: Action, before: Any, rows: int) -> int:
        """Return the number of rows left after a file's new vector. Raises AssertionError for an invalid vector."""
        after = _deleted_rows(self.store, action)
        if not allows_vectors(table):
            raise AssertionError(f"{action['path']}: the table does not allow deletion vectors")
        if not before <= after:
            raise AssertionError(f"{action['path']}: rows that were removed before would appear again")
        if after.max() >= rows or json.loads(action["stats"])["numRecords"] != rows:
            raise AssertionError(
                f"{action['path']}: the vector removes row {after.max()}, but the file has {rows} rows"
            )
        return rows - len(after)

    def _check_read_back(self, version: int, decision: Decision) -> None:
        """Check that the library, which reads the table independently, sees the same rows removed."""
        import numpy as np
        import pyarrow as pa  # type: ignore[import-untyped]

        table = by_library(self.store, version)
        vectors = pa.table(table.deletion_vectors())
        root = _local(table.table_uri)
        paths = [os.path.relpath(_local(uri), root) for uri in vectors["filepath"].to_pylist()]
        gone = [len(it) - np.count_nonzero(np.asarray(it.values)) for it in vectors["selection_vector"]]
        found = dict(zip(paths, gone, strict=True))
        for it in decision.marked.each():
            vector = it["vector"]
            if vector and vector["cardinality"] < it["rows"] and found.get(it["path"]) != vector["cardinality"]:
                raise SinkError(
                    f"{self.location}: version {version} of the table differs from what was written: {it['path']} "
                    f"has {found.get(it['path']) or 0} deleted rows, not {vector['cardinality']}. RESTORE the table to "
                    f"version {version - 1}, then rebase (`fencepost dedup --rebase`)"
                )


def allows_vectors(table: Table) -> bool:
    """Return whether rows may be removed by deletion vectors, according to protocol and settings."""
    lists = (table.protocol.get("readerFeatures") or (), table.protocol.get("writerFeatures") or ())
    return all(VECTORS in it for it in lists) and table.configuration.get("delta.enableDeletionVectors") == "true"


def _remove_action(old: Action, time_ms: int) -> Action:
    """Return the action that removes a file, identified by its path and its vector."""
    kept = ("path", "partitionValues", "size", "stats", "tags", "deletionVector")
    own = {"deletionTimestamp": time_ms, "dataChange": True, "extendedFileMetadata": True}
    return {name: old[name] for name in kept if name in old} | own


def _deleted_rows(store: Store, action: Action) -> Any:
    """Return the deleted rows of a file, as a bitmap."""
    vector = action.get("deletionVector")
    return rows_of(read_vector(store, vector) if vector else None)


def _local(uri: str) -> str:
    return unquote(urlparse(uri).path) if uri.startswith("file:") else uri
