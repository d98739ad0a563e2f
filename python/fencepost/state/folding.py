"""Folding: of versions that nobody can go back to any more, only totals stay, so a state has a bounded number of files.

    folded/<m>.json    put if absent: the versions up to m are over, and this is what is left of them

`log/<n>.json` and `done/<n>` keep out a driver that was paused: it could put them once more if they were just removed,
and its version would be shown twice. So `folded/<m>.json` is there, durably, before the files of any version up to m
go, and a driver that has put `log/<n>.json` reads the *floor*, the largest m, before it believes that it has decided
(`State.decide`). Of a version at or below the floor no file in `log` or `done` counts: a paused driver may have put it.

The marks of applied versions go from the sink as well (`Sink.fold`).

The two newest of these objects stay, so that a folder that is listed meanwhile never shows none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fencepost.state.decision import APPLIED, DECIDED, FORMAT_FOLDED, Version, fields_from_json, to_json, understood

if TYPE_CHECKING:
    from fencepost.state.commit import Sink
    from fencepost.state.versions import State

FOLDER = "folded"
AT_ONCE = 100
"""How many versions fold together."""


@dataclass(frozen=True, kw_only=True)
class Folded:
    """What is left of the versions from the first one up to `version`."""

    version: int
    """The newest of them."""
    sha256: str
    """Of `log/<version>.json`, which names the hash of the one before, and so on: the next version follows from it."""
    removed: int = 0
    """The files of the versions up to this one are gone; those of later ones may still be going."""
    abandoned: int = 0
    """How many of them were abandoned. The figures below are of the others."""
    files: int = 0
    """Files of the input that were read."""
    rows: int = 0
    """Rows of the input."""
    kept: int = 0
    """Rows of the output."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows of the input by name of verdict."""
    format: int = FORMAT_FOLDED


def fold(state: State, sink: Sink, until: int) -> bool:
    """Fold the next `AT_ONCE` versions up to `until`; none where there are fewer.

    `until`: nobody may ask for a version up to it any more, and what a later one needs of it stays. May be done again,
    by anyone. Gives whether there were any. Raises SnapshotError where one of them is damaged: they stay as they are.
    """
    floor = state.known_floor()
    last = floor + AT_ONCE
    if last > until:
        return False
    before = state.folded()
    if before is not None:  # who put it may have died before all of this was gone
        _remove(state, sink, before.removed, before.version)
    state.store.put(f"{FOLDER}/{last}.json", to_json(vars(_summed(state, before, last))))
    _remove(state, sink, floor, last)
    state.store.delete([f"{FOLDER}/{it}.json" for it in state.folds() if it < floor])
    state.floor()
    return True


def _summed(state: State, before: Folded | None, last: int) -> Folded:
    before = before or Folded(version=0, sha256="")
    glances = state.glances(before.version + 1, last)
    undone = [it.version for it in glances if it.status == DECIDED]
    if undone:
        raise state.damaged(f"done/{undone[0]}", f"missing, though later versions than {undone[0]} are done")
    applied = [it for it in glances if it.status == APPLIED]
    return Folded(
        version=last,
        sha256=str(state.log_hash(last)),
        removed=before.version,
        abandoned=before.abandoned + len(glances) - len(applied),
        files=before.files + sum(it.files for it in applied),
        rows=before.rows + sum(it.rows for it in applied),
        kept=before.kept + sum(it.kept for it in applied),
        counts=dict(sorted(sum(map(_counts, applied), Counter(before.counts)).items())),
    )


def folded_from_json(data: bytes, path: object) -> Folded:
    """Raises SnapshotError where `data` are not what `fold` has put."""
    with understood(path):
        return Folded(**fields_from_json(data, path))


def _counts(version: Version) -> Counter[str]:
    return Counter(version.counts)


def _remove(state: State, sink: Sink, after: int, last: int) -> None:
    """Remove the files of the versions behind `after`, up to `last`, and their marks in the sink."""
    sink.fold(after + 1, last)
    state.store.delete(
        name for version in range(after + 1, last + 1) for name in (f"log/{version}.json", f"done/{version}")
    )
