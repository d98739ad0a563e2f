"""Folding: keeps only totals of versions that support no rollback, so that a state has a bounded number of files.

    folded/<m>.json    put if absent: the totals of the versions up to m, which are finished

`log/<n>.json` and `done/<n>` stop a driver that was paused: if they were just removed, it could put them again, and its
version would be shown twice. So `folded/<m>.json` is durable before files of any version up to m are removed. A driver
that has put `log/<n>.json` reads the *floor*, the largest m, before it treats its version as decided (`State.decide`).
Files in `log` or `done` of versions at or below the floor are ignored, because a paused driver may have put them.

The sink's marks of applied versions are removed, too (`Sink.fold`).

The two newest of these objects are kept, so that a concurrent listing always shows one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fencepost.state.decision import APPLIED, DECIDED, FORMAT_FOLDED, fields_from_json, to_json, understood

if TYPE_CHECKING:
    from fencepost.state.commit import Sink
    from fencepost.state.versions import State

FOLDER = "folded"
AT_ONCE = 100
"""Number of versions to fold together."""


@dataclass(frozen=True, kw_only=True)
class Folded:
    """The totals of the versions from the first one up to `version`."""

    version: int
    """The newest folded version."""
    sha256: str
    """Hash of `log/<version>.json`, for the chain of hashes: the next version refers to it."""
    removed: int = 0
    """Files of versions up to this one are removed. Removal of later ones may be in progress."""
    abandoned: int = 0
    """Number of abandoned versions. The figures below are about the others."""
    files: int = 0
    """Number of input files read."""
    rows: int = 0
    """Number of input rows."""
    kept: int = 0
    """Number of output rows."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of input rows by verdict."""
    format: int = FORMAT_FOLDED


def fold(state: State, sink: Sink, until: int) -> bool:
    """Fold the next `AT_ONCE` versions up to `until`, if there are as many. Returns whether it did.

    `until`: no version up to it may be used any more; what a later version needs of it stays. May be repeated by
    anyone. Raises SnapshotError if one of the versions is damaged; nothing is removed then.
    """
    floor = state.cached_floor()
    last = floor + AT_ONCE
    if last > until:
        return False
    before = state.folded()
    if before is not None:  # its writer may have died before its name was on disk, or before the removal was complete
        state.store.settle(FOLDER)
        _remove(state, sink, before.removed, before.version)
    state.store.put(f"{FOLDER}/{last}.json", to_json(vars(_summed(state, before, last))))
    _remove(state, sink, floor, last)
    state.store.delete([f"{FOLDER}/{it}.json" for it in state.folds() if it < floor])
    state.floor()
    return True


def _summed(state: State, before: Folded | None, last: int) -> Folded:
    before = before or Folded(version=0, sha256="")
    summaries = state.summaries(before.version + 1, last)
    undone = [it.version for it in summaries if it.status == DECIDED]
    if undone:
        raise state.damaged(f"done/{undone[0]}", f"missing, though later versions than {undone[0]} are done")
    applied = [it for it in summaries if it.status == APPLIED]
    return Folded(
        version=last,
        sha256=str(state.log_hash(last)),
        removed=before.version,
        abandoned=before.abandoned + len(summaries) - len(applied),
        files=before.files + sum(it.files for it in applied),
        rows=before.rows + sum(it.rows for it in applied),
        kept=before.kept + sum(it.kept for it in applied),
        counts=dict(sorted(sum((Counter(it.counts) for it in applied), Counter(before.counts)).items())),
    )


def folded_from_json(data: bytes, path: object) -> Folded:
    """Decode the result of `fold`. Raises SnapshotError for invalid data."""
    with understood(path):
        return Folded(**fields_from_json(data, path))


def _remove(state: State, sink: Sink, after: int, last: int) -> None:
    """Remove the files of versions after `after`, up to `last`, and their marks in the sink."""
    sink.fold(after + 1, last)
    state.store.delete(
        name for version in range(after + 1, last + 1) for name in (f"log/{version}.json", f"done/{version}")
    )
