"""The log of a Delta table, where the library does not tell what it says: commits action by action, and the actions by
which files are in a table, to the letter.

    _delta_log/<version>.json                     a commit: an action a line
    _delta_log/<version>.checkpoint*.parquet      all actions that count up to a version, in one file or in several
    _delta_log/<version>.checkpoint.<uuid>.json   the same, naming files in _delta_log/_sidecars

Source: the Delta protocol, sections "Delta Log Entries", "Checkpoints" and "Action Reconciliation".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fencepost.state.disk import Disk

LOG, SIDECARS = "_delta_log", "_sidecars"
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")

Action = dict[str, Any]
Live = dict[str, Action]
"""The files of a table: relative path, decoded, to the action that added it."""


def read_commit(location: Path, version: int) -> list[tuple[str, Action]] | None:
    """(kind, action) of a commit, line by line; None where the log no longer has it. Raises ValueError."""
    try:
        return list(_actions(location / LOG / f"{version:020}.json"))
    except FileNotFoundError:
        return None


def commit_info(location: Path, version: int) -> Action | None:
    """What a commit says of itself, which may be nothing; None where the log no longer has it. Raises ValueError.

    From the log itself: the library's history counts only commits that do say something.
    """
    actions = read_commit(location, version)
    return None if actions is None else info_of(actions)


def info_of(actions: Iterable[tuple[str, Action]]) -> Action:
    """What a commit with these actions says of itself, which may be nothing."""
    return next((action for kind, action in actions if kind == "commitInfo"), {})


def put_commit(disk: Disk, location: Path, version: int, actions: Iterable[Action]) -> bool:
    """Write a commit unless the table has that version. False: another's is there."""
    text = "".join(json.dumps(it, separators=(",", ":")) + "\n" for it in actions)
    return disk.put(location / LOG / f"{version:020}.json", text.encode())


def live_files(location: Path, version: int) -> Live:
    """The files of a table at a version. Raises FileNotFoundError where the log no longer tells, ValueError."""
    checkpoint, parts = _newest_checkpoint(location / LOG, version)
    live: Live = {}
    for path in parts:
        for action in _adds(path):
            live[unquote(action["path"])] = _without_nulls(action)
    for at in range(checkpoint + 1, version + 1):
        actions = read_commit(location, at)
        if actions is None:
            raise FileNotFoundError(location / LOG / f"{at:020}.json")
        for kind, action in actions:
            if kind == "remove":
                live.pop(unquote(action["path"]), None)
        for kind, action in actions:
            if kind == "add":
                live[unquote(action["path"])] = _without_nulls(action)
    return live


def _newest_checkpoint(log: Path, version: int) -> tuple[int, list[Path]]:
    """(version, files) of the newest whole checkpoint that is not newer than `version`; (-1, []) for none."""
    found: dict[tuple[int, str], list[Path]] = {}
    for path in sorted(log.iterdir()):
        match = CHECKPOINT.fullmatch(path.name)
        if match and int(match[1]) <= version:
            found.setdefault((int(match[1]), match[3] or path.name), []).append(path)
    whole = [(at, parts) for (at, of), parts in found.items() if not (of.isdigit() and len(parts) < int(of))]
    return max(whole, key=lambda it: it[0], default=(-1, []))


def _adds(path: Path) -> Iterator[Action]:
    """The files that a part of a checkpoint names, those in its sidecars included."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    if path.suffix == ".json":
        actions = list(_actions(path))
        adds, sidecars = ([it for kind, it in actions if kind == wanted] for wanted in ("add", "sidecar"))
    else:
        columns = [it for it in ("add", "sidecar") if it in pq.read_schema(path).names]
        table = pq.read_table(path, columns=columns)
        adds, sidecars = (
            table[kind].drop_null().to_pylist(maps_as_pydicts="strict") if kind in columns else []
            for kind in ("add", "sidecar")
        )
    yield from adds
    for sidecar in sidecars:
        yield from _adds(path.parent / SIDECARS / unquote(sidecar["path"]))


def _actions(path: Path) -> Iterator[tuple[str, Action]]:
    """(kind, action) of a file that has one a line."""
    # Not by str.splitlines: a name may hold what other alphabets end lines with.
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.strip():
            yield from json.loads(line).items()


def _without_nulls(action: Action) -> Action:
    """An action as most commits have it: no field without a value, and of a checkpoint none that repeats another."""
    kept = {name: it for name, it in action.items() if it is not None and not name.endswith("_parsed")}
    if "deletionVector" in kept:
        kept["deletionVector"] = {name: it for name, it in kept["deletionVector"].items() if it is not None}
    return kept
