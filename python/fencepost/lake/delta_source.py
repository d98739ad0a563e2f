"""A Delta table as input: the files that its commits have added since the last version read.

The table's log is authoritative. A commit that only adds files is new input. One that moves rows to other files
(compaction) is not, and one that only removes files does not revoke what was read. A commit that writes both old and
new rows (UPDATE, MERGE, an overwrite) does not distinguish them, so the run stops there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from fencepost.errors import SourceError
from fencepost.lake.asking import Ask, ask_facts, in_driver
from fencepost.lake.files import Files, NewInput
from fencepost.lake.storage import Storage, converted_errors, retry
from fencepost.state.delta_columns import INTEGERS
from fencepost.state.delta_log import LOG, Action, Live, Table, hash_of_commit, info_of, live_files, read_commits
from fencepost.state.delta_sink import LOG_UNREAD, by_library, is_delta, log_errors, open_table
from fencepost.state.hive import hive_values
from fencepost.state.stores import LocalStore, Store, unavailable
from fencepost.state.vectors import read_vector

Position = dict[str, Any]
"""The id of the table, the newest version read, and a checksum of its commit: {"table", "version", "commit"}. `commit`
is missing if the log no longer had the commit."""

NEW_STATE = "read the table as it is now with a new state and a new sink"
REBASE = "rebase the state on the table as it is now (DedupJob(...).rebase(), or fencepost dedup --rebase)"

DROPPED = "dropped"
"""The field of a deferred file's action that says that a later commit removed the file, which may then be deleted."""

FEATURES = {"deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck", "variantType"}
"""Reader features under which a file's rows are the table's rows, except those that its deletion vector removes."""


@dataclass
class _Range:
    """The files that the commits of some versions added: path to action, in log order.

    A file whose rows were moved to another one (compaction) must still exist, because only the original file shows
    which of those rows are new.
    """

    added: dict[str, Action] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    """Files with which an in-place state has replaced other files."""


def has_table(storage: Storage, root: str) -> bool:
    """Return whether a source is a Delta table. Raises StoreError if this cannot be determined."""
    with converted_errors(root, "listed"):
        return is_delta(storage.as_store(root))


def list_appended(
    root: str,
    storage: Storage,
    position: Position | None,
    own: str | None = None,
    pending: Iterable[Action] = (),
    ask: Ask = in_driver,
) -> NewInput:
    """Return the files added to a table since `position`, and the position after them.

    Args:
        root: The table's location.
        storage: The storage of the table's files.
        position: The last position. None: all files of the newest version, by time of writing.
        own: The id of the state that deduplicates the table in place. Its own commits do not move the position.
        pending: Actions before `position` whose files were not read yet. They come first.
        ask: Queries storage for several files.

    Raises SourceError if the table was replaced, if unread commits or files were deleted, and at a commit that rewrites
    rows.
    """
    if "%" in root:
        raise SourceError(
            f"{root}: delta-rs reads a '%' in the path of a Delta table as another path; rename the folder", path=root
        )
    store = storage.as_store(root)

    def attempt() -> NewInput:
        with converted_errors(root):
            return _appended(store, storage, position, own, pending, ask)

    return retry(attempt)


def _appended(
    store: Store, storage: Storage, position: Position | None, own: str | None, pending: Iterable[Action], ask: Ask
) -> NewInput:
    root, table = store.uri, open_table(store, SourceError)
    _check_readable(table, root)
    new: Position = {"table": table.id, "version": table.version}
    if position is None:
        return _new_input(table, storage, ask, _snapshot(table), set(), NEW_STATE, _with_commit(store, new))
    if position["table"] != new["table"] or position["version"] > new["version"]:
        raise SourceError(
            f"{root}: not the table that was read up to version {position['version']} (its id is "
            f"{new['table']}, was {position['table']}): it was replaced, recreated or restored from an older copy. "
            "Read it with a new state and a new sink",
            path=root,
        )
    remedy = NEW_STATE if own is None else REBASE
    known, commit = position.get("commit"), hash_of_commit(store, position["version"])
    if None not in (known, commit) and known != commit:
        raise SourceError(
            f"{root}: version {position['version']} is not the one that was read: the table was restored from an older "
            f"copy, or its commit was replaced. The rows added since are unknown: {remedy}",
            path=root,
        )
    pending = list(pending)
    found, is_moved = _Range({action["path"]: _with_vector(store, action) for action in pending}), False
    found.dropped.update(action["path"] for action in pending if action.get(DROPPED))
    waiting = frozenset(found.added)
    for version, actions in _commits(store, position["version"] + 1, new["version"], remedy):
        if own is None:
            _add_commit(store, version, actions, found)
        elif ("txn", own) not in ((kind, action.get("appId")) for kind, action in actions):
            _add_in_place(store, version, actions, found)
        else:
            found.own.update(unquote(action["path"]) for kind, action in actions if kind == "add")
            continue
        is_moved = True
    if own is not None and found.added:
        _check_new(store, position["version"], found, waiting)
    read_to = _with_commit(store, new) if is_moved else position
    return _new_input(table, storage, ask, list(found.added.values()), found.dropped, remedy, read_to)


def _with_commit(store: Store, position: Position) -> Position:
    commit = hash_of_commit(store, position["version"])
    return position if commit is None else {**position, "commit": commit}


def _check_readable(table: Table, root: str) -> None:
    unknown = sorted(table.reader_features - FEATURES)
    mapping = table.configuration.get("delta.columnMapping.mode", "none")
    if unknown or mapping != "none":
        what = ", ".join(unknown) or f"column mapping ({mapping})"
        raise SourceError(
            f"{root}: the table has {what}, so its rows differ from those in its files. Remove the feature, or copy "
            "the rows to a table without it",
            path=root,
        )


def _snapshot(table: Table) -> list[Action]:
    """Return the files of the newest version, by time of writing, then by name."""
    root = table.store.uri
    with log_errors(root, SourceError):
        live = live_files(table.store, table.version)
    if isinstance(table.store, LocalStore):
        _check_by_library(table, live)
    files = [_resolved(table.store, action) for action in live.values()]
    return sorted(files, key=lambda it: (it["modificationTime"], it["path"]))


def _check_by_library(table: Table, live: Live) -> None:
    """Check that the deltalake library, which reads logs independently, finds the same files."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from deltalake.exceptions import DeltaError

    root = table.store.uri
    try:
        known = pa.table(by_library(table.store, table.version).get_add_actions())
    except DeltaError as error:
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            code = int(number[1])
            raise unavailable(root, LOG_UNREAD, OSError(code, os.strerror(code))) from error
        reason = str(error).partition("\n")[0]
        raise SourceError(f"{root}: cannot be read as a Delta table: {reason}", path=root) from error
    sizes = zip(map(unquote, known["path"].to_pylist()), known["size_bytes"].to_pylist(), strict=True)
    if dict(sizes) != {path: it["size"] for path, it in live.items()}:
        text = (
            f"{root}: version {table.version}: fencepost and delta-rs find different files in its log: please report "
            "this with the log"
        )
        raise SourceError(text, path=root)


def _commits(store: Store, first: int, last: int, remedy: str) -> Iterator[tuple[int, list[tuple[str, Action]]]]:
    """Yield (version, actions by line) of commits."""
    try:
        for version, actions in read_commits(store, first, last):
            if actions is None:
                path = f"{store.uri}/{LOG}/{version:020}.json"
                text = "deleted before it was read, so the files it added are unknown"
                raise SourceError(f"{path}: {text}: {remedy}", path=path)
            yield version, actions
    except ValueError as error:
        raise SourceError(str(error), path=store.uri) from error


def _add_in_place(store: Store, version: int, actions: list[tuple[str, Action]], found: _Range) -> None:
    """Add what another writer's commit has added to the table that is deduplicated in place."""
    operation = info_of(actions).get("operation", "?")
    removed = [action for kind, action in actions if kind == "remove"]
    moved = [path for path in (unquote(it["path"]) for it in removed) if path in found.added]
    added = [unquote(it["path"]) for kind, it in actions if kind == "add" and it.get("dataChange", True)]
    again = [path for path in added if path in found.added]
    if operation == "RESTORE" or any(it.get("dataChange", True) for it in removed):
        what = "removes rows that the state still knows: if they came again, they would count as repeats"
    elif again:
        what = f"adds a file again that the table already has ({again[0]}): all its rows would count as repeats"
    elif moved:
        what = f"moves unread rows of {moved[0]} to other files, so new rows cannot be identified"
    else:
        _add_commit(store, version, actions, found)
        return
    raise SourceError(
        f"{store.uri}: version {version} ({operation}) {what}: {REBASE}", path=store.uri, position=version
    )


def _check_new(store: Store, version: int, found: _Range, waiting: frozenset[str]) -> None:
    """Refuse files that the table contained when it was last read: all of their rows would count as repeats."""
    try:
        known = ((live_files(store, version).keys() | found.own) & found.added.keys()) - waiting
    except (FileNotFoundError, ValueError) as error:
        text = f"{store.uri}: its log no longer lists the files of version {version} ({error}): {REBASE}"
        raise SourceError(text, path=store.uri) from error
    if known:
        text = f"{store.uri}/{min(known)}: was added again, so all its rows would count as repeats: {REBASE}"
        raise SourceError(text, path=store.uri)


def _resolved(store: Store, action: Action) -> Action:
    """Return an add action with its path and deletion vector resolved."""
    return _with_vector(store, {**action, "path": unquote(action["path"])})


def _with_vector(store: Store, action: Action) -> Action:
    vector = action.get("deletionVector")
    return {**action, "vector": read_vector(store, vector) if vector else None}


def _add_commit(store: Store, version: int, actions: list[tuple[str, Action]], found: _Range) -> None:
    added = [it for kind, it in actions if kind == "add" and it.get("dataChange", True)]
    dropped = [unquote(it["path"]) for kind, it in actions if kind == "remove" and it.get("dataChange", True)]
    found.dropped.update(dropped)
    operation = info_of(actions).get("operation", "?")
    if added and (dropped or operation == "RESTORE"):
        what = "adds and removes rows" if dropped else "restores rows"
        raise SourceError(
            f"{store.uri}: version {version} ({operation}) {what} without recording which are new: {NEW_STATE}",
            path=store.uri,
            position=version,
        )
    for action in added:
        file = _resolved(store, action)
        found.dropped.discard(file["path"])
        found.added[file["path"]] = file


def _new_input(
    table: Table, storage: Storage, ask: Ask, added: list[Action], dropped: set[str], remedy: str, position: Position
) -> NewInput:
    """Return the files for a run. Files that later commits removed may be deleted."""
    root, files = table.store.uri, Files(table.store.uri, types=_types(table))
    adds: dict[str, Action] = {}
    damaged: dict[str, str] = {}
    looks = ask_facts(ask, storage, [f"{root}/{action['path']}" for action in added])
    for action, facts in zip(added, looks, strict=True):
        path, full_path = action["path"], f"{root}/{action['path']}"
        if facts is None and path in dropped:
            continue
        if facts is None:
            raise SourceError(
                f"{full_path}: the table added this file, but it was deleted before it was read. If its rows were "
                f"moved (OPTIMIZE, then VACUUM), new rows cannot be identified in the new file: {remedy}",
                path=full_path,
            )
        if facts.bytes != action["size"]:
            damaged[full_path] = f"{full_path}: {facts.bytes} bytes, but the table declares {action['size']}"
        _check_folders(root, table.partition_columns, action)
        files.append(path, facts, action["vector"])
        adds[path] = {name: it for name, it in action.items() if name not in ("stats", "vector")}
        if path in dropped:
            adds[path][DROPPED] = True
    return NewInput(files=files, position=position, adds=adds, damaged=damaged)


def _check_folders(root: str, partitions: list[str], action: Action) -> None:
    path = action["path"]
    in_names = hive_values(path)
    wanted = action.get("partitionValues", in_names)
    if in_names != {name: it or None for name, it in wanted.items()} or in_names.keys() != set(partitions):
        raise SourceError(
            f"{root}/{path}: the names of its folders do not contain the partition columns {partitions} "
            f"with the values {[*wanted.values()]}. Copy the rows to a table with such folders",
            path=f"{root}/{path}",
        )


def _types(table: Table) -> dict[str, str]:
    """Return the key types of the partition columns: text unless they are integers."""
    kinds = {it["name"]: it["type"] for it in table.fields if it["name"] in table.partition_columns}
    return {name: "integer" if kind in INTEGERS else "string" for name, kind in kinds.items()}
