"""A Delta table as input: the files that its commits have added since the version that was read last.

What counts is the log. A commit that only adds files is new input; one that moves rows to other files (compaction) is
none, and one that only drops files takes nothing back from what was read. A commit that writes rows anew beside new
ones (UPDATE, MERGE, an overwrite) says of no row which of the two it is: the run stops there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from fencepost.errors import SourceError
from fencepost.lake.files import Files
from fencepost.lake.storage import LocalStorage, persist
from fencepost.state.delta import open_table
from fencepost.state.delta_log import LOG, Action, info_of, live_files, read_commit
from fencepost.state.hive import hive_values
from fencepost.state.vectors import read_vector

if TYPE_CHECKING:
    from deltalake import DeltaTable

Position = dict[str, Any]
"""The id of the table and the newest version that was read: {"table", "version"}."""

NEW_STATE = "read the table as it is now with a new state"
REBASE = "rebase the state on the table as it is now (DedupJob(...).rebase(), or fencepost dedup --rebase)"

FEATURES = {"deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck", "variantType"}
"""Features of reading under which a file's rows are those of the table, but for those that its vector takes away."""


class Appended(NamedTuple):
    """What is to be read of a table."""

    files: Files
    position: Position
    """Behind it."""
    adds: dict[str, Action]
    """Path to the action by which the table names a file, without statistics."""
    bad: dict[str, str]
    """Full path to reason of files that are not of the size that the table says."""


@dataclass
class _Range:
    """What the commits of some versions have added: path to action, in the order of the log. A file whose rows were
    moved to another one (compaction) must still be there: only from it is known which of those rows are new."""

    added: dict[str, Action] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    """What a state that deduplicates the table in place has put in the place of other files."""


def list_appended(
    root: str, position: Position | None, own: str | None = None, pending: Iterable[Action] = ()
) -> Appended:
    """The files that were added to a table since `position`, and the position behind them.

    None: all files of the newest version, by the time of their writing. `own`: the id of the state by which the table
    is deduplicated in place; commits of its own do not move the position. `pending`: actions that added files before
    `position` which were not read yet; they come first. Raises SourceError where the table is another, where commits or
    files are gone that were not read yet, and at a commit that rewrites rows.
    """
    if "%" in root:
        raise SourceError(f"{root}: a '%' in the path of a Delta table is read as another path; rename it", path=root)
    table = open_table(root, SourceError)
    _check_readable(table, root)
    new = {"table": table.metadata().id, "version": table.version()}
    if position is None:
        return _appended(table, root, _snapshot(table, root), set(), NEW_STATE, new)
    if position["table"] != new["table"] or position["version"] > new["version"]:
        raise SourceError(
            f"{root}: another table than the one that was read up to version {position['version']} (its id is "
            f"{new['table']}, was {position['table']}), or one that was made anew: it needs a state of its own",
            path=root,
        )
    remedy = NEW_STATE if own is None else REBASE
    found, is_moved = _Range({action["path"]: _with_vector(root, action) for action in pending}), False
    waiting = frozenset(found.added)
    for version in range(position["version"] + 1, new["version"] + 1):
        actions = _actions(root, version, remedy)
        if own is None:
            _add_commit(root, version, actions, found)
        elif ("txn", own) not in ((kind, action.get("appId")) for kind, action in actions):
            _add_in_place(root, version, actions, found)
        else:
            found.own.update(unquote(action["path"]) for kind, action in actions if kind == "add")
            continue
        is_moved = True
    if own is not None and found.added:
        _check_new(root, position["version"], found, waiting)
    read_to = new if is_moved else position
    return _appended(table, root, list(found.added.values()), found.dropped, remedy, read_to)


def _check_readable(table: DeltaTable, root: str) -> None:
    unknown = sorted({*(table.protocol().reader_features or ())} - FEATURES)
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if unknown or mapping != "none":
        what = ", ".join(unknown) or f"column mapping ({mapping})"
        raise SourceError(f"{root}: the table has {what}, by which its rows are not just those of its files", path=root)


def _snapshot(table: DeltaTable, root: str) -> list[Action]:
    """The files of the newest version, by the time of their writing, then by name."""
    import pyarrow as pa  # type: ignore[import-untyped]

    try:
        live = live_files(Path(root), table.version())
    except (FileNotFoundError, ValueError) as error:
        raise SourceError(f"{root}: its log cannot be read: {error}", path=root) from error
    known = pa.table(table.get_add_actions())
    sizes = zip(map(unquote, known["path"].to_pylist()), known["size_bytes"].to_pylist(), strict=True)
    if dict(sizes) != {path: it["size"] for path, it in live.items()}:
        text = f"{root}: version {table.version()}: its log, read twice, names different files"
        raise SourceError(text, path=root)
    files = [_as_read(root, action) for action in live.values()]
    return sorted(files, key=lambda it: (it["modificationTime"], it["path"]))


def _actions(root: str, version: int, remedy: str) -> list[tuple[str, Action]]:
    """(kind, action) of a commit, line by line."""
    path = Path(root) / LOG / f"{version:020}.json"
    try:
        actions = read_commit(Path(root), version)
    except ValueError as error:
        raise SourceError(f"{path}: not a commit of a Delta table: {error}", path=str(path)) from error
    if actions is None:
        raise SourceError(
            f"{path}: gone before it was read, so nobody can tell which files it has added: {remedy}",
            path=str(path),
        )
    return actions


def _add_in_place(root: str, version: int, actions: list[tuple[str, Action]], found: _Range) -> None:
    """Add what a commit of others has added to the table that is deduplicated."""
    operation = info_of(actions).get("operation", "?")
    removed = [action for kind, action in actions if kind == "remove"]
    moved = [path for path in (unquote(it["path"]) for it in removed) if path in found.added]
    added = [unquote(it["path"]) for kind, it in actions if kind == "add" and it.get("dataChange", True)]
    again = [path for path in added if path in found.added]
    if operation == "RESTORE" or any(it.get("dataChange", True) for it in removed):
        what = "takes rows away, which the state would still know: written once more, they would be taken for repeats"
    elif again:
        what = f"adds a file once more that is there ({again[0]}), whose rows would all be taken for repeats"
    elif moved:
        what = f"moves rows to other files that were not read yet (of {moved[0]}), so nobody can tell which are new"
    else:
        _add_commit(root, version, actions, found)
        return
    raise SourceError(f"{root}: version {version} ({operation}) {what}: {REBASE}", path=root, position=version)


def _check_new(root: str, version: int, found: _Range, waiting: frozenset[str]) -> None:
    """Refuse files that were there when the table was read last: their rows would all be taken for repeats."""
    try:
        known = ((live_files(Path(root), version).keys() | found.own) & found.added.keys()) - waiting
    except (FileNotFoundError, ValueError) as error:
        text = f"{root}: its log does not tell any more which files version {version} had ({error}): {REBASE}"
        raise SourceError(text, path=root) from error
    if known:
        text = f"{root}/{min(known)}: was added once more, and its rows would all be taken for repeats: {REBASE}"
        raise SourceError(text, path=root)


def _as_read(root: str, action: Action) -> Action:
    """An action that adds a file, with what its path and its vector stand for."""
    return _with_vector(root, {**action, "path": unquote(action["path"])})


def _with_vector(root: str, action: Action) -> Action:
    vector = action.get("deletionVector")
    return {**action, "vector": read_vector(root, vector) if vector else None}


def _add_commit(root: str, version: int, actions: list[tuple[str, Action]], found: _Range) -> None:
    added = [it for kind, it in actions if kind == "add" and it.get("dataChange", True)]
    dropped = [unquote(it["path"]) for kind, it in actions if kind == "remove" and it.get("dataChange", True)]
    found.dropped.update(dropped)
    operation = info_of(actions).get("operation", "?")
    if added and (dropped or operation == "RESTORE"):
        what = "adds rows and takes some away" if dropped else "brings rows back"
        raise SourceError(
            f"{root}: version {version} ({operation}) {what}, and does not say which rows are new: {NEW_STATE}",
            path=root,
            position=version,
        )
    for action in added:
        file = _as_read(root, action)
        found.dropped.discard(file["path"])
        found.added[file["path"]] = file


def _appended(
    table: DeltaTable, root: str, added: list[Action], dropped: set[str], remedy: str, position: Position
) -> Appended:
    """The files as a run reads them. Those that were dropped again since may be gone."""
    files = Files(root, types=_types(table))
    found = Appended(files, position, {}, {})
    partitions = table.metadata().partition_columns
    for action in added:
        path, size = action["path"], action["size"]
        try:
            facts = persist(partial(LocalStorage().look, os.path.join(root, path)))
        except FileNotFoundError:
            if path in dropped:
                continue
            raise SourceError(
                f"{root}/{path}: the table has added this file, and it is gone before it was read. If its rows were "
                f"moved (OPTIMIZE, then VACUUM), nobody can tell which of those in the new file are new: {remedy}",
                path=f"{root}/{path}",
            ) from None
        if facts.bytes != size:
            full_path = os.path.join(root, path)
            found.bad[full_path] = f"{full_path}: {facts.bytes} bytes, the table says {size}"
        in_names = hive_values(path)
        wanted = action.get("partitionValues", in_names)  # the library gives those of a snapshot with their types
        if in_names != {name: it or None for name, it in wanted.items()} or in_names.keys() != set(partitions):
            raise SourceError(
                f"{root}/{path}: the columns by which the table is partitioned, {partitions}, with the values "
                f"{[*wanted.values()]}, do not stand in the names of its folders",
                path=f"{root}/{path}",
            )
        files.append(path, facts, action["vector"])
        found.adds[path] = {name: it for name, it in action.items() if name not in ("stats", "vector")}
    return found


def _types(table: DeltaTable) -> dict[str, str]:
    """What the columns by which the table is partitioned are as parts of keys: text unless they are integers."""
    partitions = set(table.metadata().partition_columns)
    integers = ("byte", "short", "integer", "long")
    kinds = {it.name: json.loads(it.to_json())["type"] for it in table.schema().fields if it.name in partitions}
    return {name: "integer" if kind in integers else "string" for name, kind in kinds.items()}
