"""The log of a Delta table: reads commits and the current table, and preserves the actions that add files.

    _delta_log/<version>.json                     a commit: one action per line
    _delta_log/<version>.checkpoint*.parquet      all valid actions up to a version, in one file or several
    _delta_log/<version>.checkpoint.<uuid>.json   the same, with references to files in _delta_log/_sidecars

Everything is read and written through the store of the table's folder or prefix (`fencepost.state.stores`), so disks
and object stores work alike: a commit is one put-if-absent.

Source: the Delta protocol, sections "Delta Log Entries", "Checkpoints" and "Action Reconciliation".
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fencepost.state.stores import Store

LOG, SIDECARS = "_delta_log", "_sidecars"
COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")
READ_AT_ONCE = 16
"""Number of commits to read concurrently."""
OF_FILES = ('{"add"', '{"remove"', '{"cdc"')
"""Prefixes of lines that do not concern the table itself."""

Action = dict[str, Any]
Live = dict[str, Action]
"""The files of a table: maps the decoded relative path to the action that added it."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table's state at one version, without its files."""

    store: Store
    version: int
    protocol: Action
    metadata: Action
    transactions: dict[str, int]
    """Maps applications to their newest transaction."""

    @property
    def id(self) -> str:
        return str(self.metadata["id"])

    @property
    def partition_columns(self) -> list[str]:
        return list(self.metadata.get("partitionColumns") or ())

    @property
    def configuration(self) -> dict[str, str]:
        return dict(self.metadata.get("configuration") or {})

    @property
    def fields(self) -> list[Action]:
        """Its columns, as in the log's schema: `name`, `type`, `nullable`, `metadata`."""
        return list(json.loads(self.metadata["schemaString"])["fields"])

    @property
    def reader_features(self) -> set[str]:
        return {*(self.protocol.get("readerFeatures") or ())}

    @property
    def features(self) -> set[str]:
        """Reader and writer features."""
        return self.reader_features | {*(self.protocol.get("writerFeatures") or ())}

    def later(self) -> Table:
        """Return the table with later commits applied. Raises ValueError."""
        table = self
        while (lines := _commit_lines(self.store, table.version + 1)) is not None:
            table = table._with(table.version + 1, _about_table(lines))
        return table

    def _with(self, version: int, actions: Iterable[tuple[str, Action]]) -> Table:
        protocol, metadata, transactions = self.protocol, self.metadata, dict(self.transactions)
        for kind, action in actions:
            if kind == "protocol":
                protocol = action
            elif kind == "metaData":
                metadata = action
            elif kind == "txn":
                transactions[action["appId"]] = action["version"]
        return dataclasses.replace(
            self, version=version, protocol=protocol, metadata=metadata, transactions=transactions
        )


def read_table(store: Store) -> Table | None:
    """Read the current table; None without a log. Raises ValueError and FileNotFoundError for a log with gaps."""
    names = [name.rpartition("/")[2] for name in store.list(LOG)]
    versions = sorted(int(match[1]) for name in names if (match := COMMIT.fullmatch(name)))
    checkpoint, parts = _newest_checkpoint(names)
    if not versions and not parts:
        return None
    newest = max([checkpoint, *versions[-1:]])
    table = Table(store=store, version=checkpoint, protocol={}, metadata={}, transactions={})
    for part in parts:
        table = table._with(checkpoint, _checkpoint_actions(store, part))
    for version, lines in _read_lines(store, checkpoint + 1, newest):
        if lines is None:
            raise FileNotFoundError(
                f"{store.uri}/{_commit_name(version)}: this commit is missing, but later ones exist"
            )
        table = table._with(version, _about_table(lines))
    if "id" not in table.metadata or not table.protocol:
        raise ValueError(f"its log has no schema or no protocol up to version {newest}")
    return table


def read_commit(store: Store, version: int) -> list[tuple[str, Action]] | None:
    """Read (kind, action) of a commit, line by line; None if the log no longer contains it. Raises ValueError."""
    lines = _commit_lines(store, version)
    return None if lines is None else list(_actions(lines))


def hash_of_commit(store: Store, version: int) -> str | None:
    """Return a checksum of a commit; None if the log no longer contains it."""
    lines = _commit_lines(store, version)
    return None if lines is None else hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_commits(store: Store, first: int, last: int) -> Iterator[tuple[int, list[tuple[str, Action]] | None]]:
    """Yield (version, result of `read_commit`) for these versions. Raises ValueError (`version` in its message)."""
    for version, lines in _read_lines(store, first, last):
        try:
            yield version, None if lines is None else list(_actions(lines))
        except ValueError as error:
            raise ValueError(f"{store.uri}/{_commit_name(version)}: not a commit of a Delta table: {error}") from error


def info_of(actions: Iterable[tuple[str, Action]]) -> Action:
    """Return the commit information among these actions, possibly empty."""
    return next((action for kind, action in actions if kind == "commitInfo"), {})


def put_commit(store: Store, version: int, actions: Iterable[Action]) -> bool:
    """Write a commit if the version does not exist. Returns False if another writer's commit exists."""
    text = "".join(json.dumps(it, separators=(",", ":")) + "\n" for it in actions)
    return store.put(_commit_name(version), text.encode())


def live_files(store: Store, version: int) -> Live:
    """Return the files of a table at a version. Raises FileNotFoundError if the log lacks it, ValueError."""
    names = [name.rpartition("/")[2] for name in store.list(LOG)]
    checkpoint, parts = _newest_checkpoint(names, version)
    live: Live = {}
    for part in parts:
        for action in _checkpoint_adds(store, f"{LOG}/{part}"):
            live[unquote(action["path"])] = _without_nulls(action)
    for at, actions in read_commits(store, checkpoint + 1, version):
        if actions is None:
            raise FileNotFoundError(f"{store.uri}/{_commit_name(at)}")
        for kind, action in actions:
            if kind == "remove":
                live.pop(unquote(action["path"]), None)
        for kind, action in actions:
            if kind == "add":
                live[unquote(action["path"])] = _without_nulls(action)
    return live


# Commits


def _commit_name(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def _commit_lines(store: Store, version: int) -> list[str] | None:
    try:
        return _lines(store.read(_commit_name(version)))
    except FileNotFoundError:
        return None


def _read_lines(store: Store, first: int, last: int) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the lines of these commits in order, with read-ahead."""
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        for begin in range(first, last + 1, READ_AT_ONCE):
            versions = range(begin, min(begin + READ_AT_ONCE, last + 1))
            yield from zip(versions, pool.map(lambda it: _commit_lines(store, it), versions), strict=True)


def _lines(data: bytes) -> list[str]:
    # Not str.splitlines: names may contain Unicode line separators.
    return [line for line in data.decode("utf-8").split("\n") if line.strip()]


def _actions(lines: Iterable[str]) -> Iterator[tuple[str, Action]]:
    """Parse (kind, action) from lines with one action each."""
    for line in lines:
        yield from json.loads(line).items()


def _about_table(lines: Iterable[str]) -> Iterator[tuple[str, Action]]:
    return _actions(line for line in lines if not line.startswith(OF_FILES))


# Checkpoints


def _newest_checkpoint(names: Iterable[str], version: int | None = None) -> tuple[int, list[str]]:
    """Return (version, files) of the newest complete checkpoint up to `version`; (-1, []) if there is none."""
    found: dict[tuple[int, str], list[str]] = {}
    for name in sorted(names):
        match = CHECKPOINT.fullmatch(name)
        if match and (version is None or int(match[1]) <= version):
            found.setdefault((int(match[1]), match[3] or name), []).append(name)
    whole = [(at, parts) for (at, of), parts in found.items() if not (of.isdigit() and len(parts) < int(of))]
    return max(whole, key=lambda it: it[0], default=(-1, []))


def _checkpoint_actions(store: Store, part: str) -> Iterator[tuple[str, Action]]:
    """Yield the actions on the table itself in a part of a checkpoint."""
    name = f"{LOG}/{part}"
    if name.endswith(".json"):
        yield from _about_table(_lines(store.read(name)))
        return
    for kind, actions in _columns(store, name, ("protocol", "metaData", "txn")).items():
        for action in actions:
            yield kind, {field: it for field, it in action.items() if it is not None}


def _checkpoint_adds(store: Store, name: str) -> Iterator[Action]:
    """Yield the files in a part of a checkpoint, including its sidecars."""
    if name.endswith(".json"):
        actions = list(_actions(_lines(store.read(name))))
        adds, sidecars = ([it for kind, it in actions if kind == wanted] for wanted in ("add", "sidecar"))
    else:
        found = _columns(store, name, ("add", "sidecar"))
        adds, sidecars = found.get("add", []), found.get("sidecar", [])
    yield from adds
    for sidecar in sidecars:
        yield from _checkpoint_adds(store, f"{LOG}/{SIDECARS}/{unquote(sidecar['path'])}")


def _columns(store: Store, name: str, wanted: Iterable[str]) -> dict[str, list[Action]]:
    """Read the actions of some kinds from a checkpoint's Parquet file, if it has these columns."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with store.open(name) as source:
        file = pq.ParquetFile(source)
        columns = [it for it in wanted if it in file.schema_arrow.names]
        table = file.read(columns=columns)
        return {kind: table[kind].drop_null().to_pylist(maps_as_pydicts="strict") for kind in columns}


def _without_nulls(action: Action) -> Action:
    """Normalize an action from a checkpoint: remove empty fields and repeated ones."""
    kept = {name: it for name, it in action.items() if it is not None and not name.endswith("_parsed")}
    if "deletionVector" in kept:
        kept["deletionVector"] = {name: it for name, it in kept["deletionVector"].items() if it is not None}
    return kept
