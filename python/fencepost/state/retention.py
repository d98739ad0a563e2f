"""Which versions can be gone back to, and the removal of the files that only older ones need, as runs go on.

A run decides, with its version, the oldest one that can be gone back to from then on, and the next run removes what
only versions before that one need. Nothing is listed for it, and no more than `AT_ONCE` versions are looked at, however
many there are: a version takes over files of the one that it builds on, or writes new ones. So if no version behind *b*
builds on one before *b*, all that versions from *b* on need of older files is what *b* needs. Versions behind
rollbacks and abandoned ones build on others than the one before; they are noted in each decision (`breaks`), and *b* is
never chosen between such a version and the one that it builds on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.errors import SnapshotError
from fencepost.state.decision import FORMAT_FOLDED
from fencepost.state.folding import fold

if TYPE_CHECKING:
    from fencepost.state.commit import Sink
    from fencepost.state.decision import Decision
    from fencepost.state.versions import State

KEEP_VERSIONS, KEEP_VERSIONS_MS = 100, 7 * 86_400_000
"""What is kept unless a job says otherwise."""

READERS_MS = 3_600_000
"""A version that was the newest within this time is kept whatever a job says: someone may be reading it."""

AT_ONCE = 32
"""How many versions a run gives up, and removes, at most. Where there are more, the runs after it go on."""

Breaks = Sequence[Sequence[int]]
"""[version, the one that it builds on], of those that build on another one than the one before."""


@dataclass(frozen=True)
class Retention:
    """What is kept: the newest versions, and those that were the newest at some time of late."""

    versions: int | None = KEEP_VERSIONS
    """How many, abandoned ones included; None for all."""
    ms: int = KEEP_VERSIONS_MS

    def __post_init__(self) -> None:
        if self.versions is not None and self.versions < 1:
            raise ValueError(f"keep_versions={self.versions}: at least one is needed, or None to keep all")
        if self.ms < 0:
            raise ValueError(f"keep_versions_ms={self.ms}: milliseconds from 0 on were expected")


def next_oldest(state: State, before: Decision | None, version: int, keep: Retention, now_ms: int) -> int:
    """`Decision.oldest` of a version that goes on from `before`, the newest that is applied."""
    if before is None or keep.versions is None:
        return before.oldest if before else 1
    oldest, last = before.oldest, min(version + 1 - keep.versions, before.version)
    since_ms = now_ms - max(keep.ms, READERS_MS)
    for _ in range(AT_ONCE):
        following = _after(oldest, _breaks(state, before))
        # A version was the newest until the following one was decided.
        if following > last or state.decided_ms(following) > since_ms:
            break
        oldest = following
    return oldest


def release(state: State, sink: Sink, before: Decision | None) -> int:
    """Remove what no version from `before.oldest` on needs, as far as `AT_ONCE` goes. `before`: is applied.

    Gives `Decision.collected` for the next version. Folds the versions of which nothing but the log is left since long.
    May be done again, by anyone.
    """
    if before is None:
        return 1
    if before.format == FORMAT_FOLDED:
        with suppress(SnapshotError):  # what is damaged there is no reason to stop: `fencepost state gc` tells
            fold(state, sink, before.collected - 1)
    collected = max(before.collected, state.known_floor() + 1)  # `State.collect_garbage` folds all at once
    for _ in range(AT_ONCE):
        following = _after(collected, _breaks(state, before))
        if following > before.oldest:
            break
        _collect(state, collected, following)
        collected = following
    return collected


def breaks_behind(state: State, before: Decision | None, version: int, builds_on: int, collected: int) -> Breaks:
    """`Decision.breaks` of a version that goes on from `before`."""
    found = [list(it) for it in _breaks(state, before) if it[0] > collected] if before else []
    if builds_on not in (0, version - 1):  # of 0 it takes over nothing
        found.append([version, builds_on])
    return found


def _breaks(state: State, before: Decision) -> Breaks:
    if before.breaks is not None:
        return before.breaks
    behind = range(before.collected + 1, before.version + 1)  # decided by a version of fencepost that did not note them
    found = ((version, state.builds_on(version)) for version in behind)
    return [it for it in found if it[1] not in (0, it[0] - 1)]


def _after(version: int, breaks: Breaks) -> int:
    """The next version that none goes past."""
    following = version + 1
    while past := [later for later, earlier in breaks if earlier < following < later]:
        following = max(past)
    return following


def _collect(state: State, first: int, end: int) -> None:
    """Remove what versions from `first` on need and `end` does not, and these versions' bodies."""
    needed = state.files_of(end)
    if needed is None:
        return  # all of it went at once (`State.collect_garbage`)
    rubbish: set[str] = set()
    for version in range(first, end):
        rubbish |= (state.files_of(version) or set()) - needed
    state.store.delete(sorted(rubbish))
    # Last: what is to be removed stands in them.
    state.store.delete([name for version in range(first, end) for name in state.bodies_of(version)])
