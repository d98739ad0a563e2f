"""Decides which versions support rollback, and removes files that only older ones need, as runs proceed.

A run decides, with its version, the oldest version that supports rollback from then on. The next run removes what only
versions before that one need. Nothing is listed for this, and at most `AT_ONCE` versions are read. A version takes over
files of the one that it builds on, or writes new ones. So if no version after *b* builds on one before *b*, then *b*
needs every older file that versions from *b* on need. Versions after rollbacks and abandoned ones build on other
versions than the one before. Each decision records them (`breaks`), and *b* is never between such a version and the one
that it builds on.
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
"""Defaults of a job."""

READERS_MS = 3_600_000
"""A version that was the newest within this time is always kept, because readers may use it."""

AT_ONCE = 32
"""Maximum number of versions that a run releases. Later runs continue."""

Breaks = Sequence[Sequence[int]]
"""[version, the version it builds on] for those that do not build on the one before."""


@dataclass(frozen=True)
class Retention:
    """What to keep: the newest versions, and those that were the newest recently."""

    versions: int | None = KEEP_VERSIONS
    """Number of newest versions, including abandoned ones. None: all."""
    ms: int = KEEP_VERSIONS_MS

    def __post_init__(self) -> None:
        if self.versions is not None and self.versions < 1:
            raise ValueError(f"keep_versions={self.versions}: expected at least one, or None to keep all")
        if self.ms < 0:
            raise ValueError(f"keep_versions_ms={self.ms}: expected milliseconds from 0 on")


def next_oldest(state: State, before: Decision | None, version: int, keep: Retention, now_ms: int) -> int:
    """Return `Decision.oldest` for a version after `before`, the newest applied one."""
    if before is None or keep.versions is None:
        return before.oldest if before else 1
    oldest, last = before.oldest, min(version + 1 - keep.versions, before.version)
    since_ms = now_ms - max(keep.ms, READERS_MS)
    timed, decided_ms = 0, 0
    for _ in range(AT_ONCE):
        following = _after(oldest, _breaks(state, before))
        if following > last:
            break
        if timed < following:
            timed, decided_ms = _next_time(state, following, before.version, now_ms)
        # A version was the newest until the following one was decided.
        if decided_ms > since_ms:
            break
        oldest = following
    return oldest


def _next_time(state: State, first: int, last: int, now_ms: int) -> tuple[int, int]:
    """Return the first of these versions whose time of decision is not in the future, and this time.

    A later time is of a machine whose clock was ahead. The version was decided before the ones that follow it.
    """
    for version in range(first, last + 1):
        decided_ms = state.decided_ms(version)
        if decided_ms <= now_ms:
            return version, decided_ms
    return last, now_ms


def release(state: State, sink: Sink, before: Decision | None) -> int:
    """Remove what no version from `before.oldest` on needs, for up to `AT_ONCE` versions. `before` must be applied.

    Returns `Decision.collected` for the next version. Folds versions of which only the log is left. May be repeated by
    anyone.
    """
    if before is None:
        return 1
    if before.format == FORMAT_FOLDED:
        with suppress(SnapshotError):  # damage there must not stop the run; `fencepost state gc` reports it
            fold(state, sink, before.collected - 1)
    collected = max(before.collected, state.cached_floor() + 1)  # `State.collect_garbage` folds all at once
    for _ in range(AT_ONCE):
        following = _after(collected, _breaks(state, before))
        if following > before.oldest:
            break
        _collect(state, collected, following)
        collected = following
    return collected


def breaks_behind(state: State, before: Decision | None, version: int, builds_on: int, collected: int) -> Breaks:
    """Return `Decision.breaks` for a version after `before`."""
    found = [list(it) for it in _breaks(state, before) if it[0] > collected] if before else []
    if builds_on not in (0, version - 1):  # version 0 has no files to take over
        found.append([version, builds_on])
    return found


def _breaks(state: State, before: Decision) -> Breaks:
    if before.breaks is not None:
        return before.breaks
    # decided by a version of fencepost that did not record them
    behind = range(before.collected + 1, before.version + 1)
    found = ((version, state.builds_on(version)) for version in behind)
    return [it for it in found if it[1] not in (0, it[0] - 1)]


def _after(version: int, breaks: Breaks) -> int:
    """Return the next version that no link crosses."""
    following = version + 1
    while past := [later for later, earlier in breaks if earlier < following < later]:
        following = max(past)
    return following


def _collect(state: State, first: int, end: int) -> None:
    """Remove what versions from `first` on need and `end` does not, and these versions' bodies."""
    needed = state.files_of(end)
    if needed is None:
        return  # already removed at once (`State.collect_garbage`)
    rubbish: set[str] = set()
    for version in range(first, end):
        rubbish |= (state.files_of(version) or set()) - needed
    state.store.delete(sorted(rubbish))
    # Bodies last: they list the other files to remove.
    state.store.delete([name for version in range(first, end) for name in state.decision_files(version)])
