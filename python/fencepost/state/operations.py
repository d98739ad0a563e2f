"""Operations of people on a state: rollback, reshard, evict, garbage collection, abandon.

Each one is a version like a run's: decided by one put-if-absent, applied to the sink, finished. So it competes with
runs and other operations at the decision, and the slower one gets a conflict. No operation writes rows. Changes in
missing ranges are shown as a run shows them (`changelog.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from fencepost.errors import PolicyError, SinkError, SnapshotError, StateConflictError, StoreError
from fencepost.progress import Progress, ignore
from fencepost.state import changelog, operation_tasks
from fencepost.state.commit import Sink, commit, conflict, has_lost_race, recover
from fencepost.state.decision import (
    ABANDONED,
    APPLIED,
    FORMAT_FOLDED,
    OF_STATE,
    Checksums,
    Decision,
    Deferred,
    LedgerFiles,
    Shards,
)
from fencepost.state.disk import Disk
from fencepost.state.folding import FOLDER, fold
from fencepost.state.operation_tasks import (
    Common,
    Done,
    EvictItem,
    GarbageItem,
    Held,
    MissingItem,
    ReshardItem,
    bytes_of,
    new_shards,
    target_bytes,
    version_of,
)
from fencepost.state.scratch import FolderScratch, Scratch, read_table
from fencepost.state.sink_kinds import open_sink
from fencepost.state.stores import Store
from fencepost.telemetry import observe_step

if TYPE_CHECKING:
    from fencepost.state.engine import Engine
    from fencepost.state.versions import State

T = TypeVar("T")
R = TypeVar("R")
SHARDS_MAX = 1 << 18
"""The format has no limit. But a scan task holds some bytes per shard, and a decision has a line per shard."""
VERSIONS_TOGETHER = 10_000
"""Number of versions per task of a garbage collection."""


def check_shards(count: int) -> None:
    """Raise ValueError for an invalid number of shards."""
    if not 1 <= count <= SHARDS_MAX:
        raise ValueError(f"shards={count}: expected 1 to {SHARDS_MAX}")


def rollback(
    state: State,
    version: int,
    *,
    accept_duplicates: bool = False,
    sink: Sink | None = None,
    progress: Progress | None = None,
) -> Decision:
    """Implement `State.rollback`. The new version's `_missing` corrects the changelog, whichever of its files were
    removed."""
    at = _Attempt(state, sink, progress)
    before = at.before
    _check_target(state, at, version)
    sink_version = at.sink.current_version(None)  # before checking what is shown, so that a later change is detected
    undone, counted = _differing_versions(state, before.version, version)
    if sink_version is not None:  # in folders, users may remove rows at any time; a table records when
        counted = _lineage(state, version, before.oldest)
    _check_there(state, at.sink, version, counted)
    shown = _check_gone(state, at.sink, version, sorted(undone), accept_duplicates=accept_duplicates)
    restored = _restored(state, version, has_later_rows=bool(shown))
    with at.stages():
        lines = changelog.corrections(at.sink.changelog(), at.missing(restored["shards"]), at.version)
        decision = state.follow(
            at.version,
            before,
            at.attempt,
            kind="rollback",
            builds_on=version,
            report={"rolled_back_to": version, "duplicates_accepted_of": shown},
            sink_version=sink_version,
            **restored,
            **at.prepared(lines),
        )
    return at.commit(decision)


def _check_target(state: State, at: _Attempt, version: int) -> None:
    """Raise SnapshotError if a rollback cannot return to this version."""
    before = at.before
    if 0 < version < before.oldest:
        is_folded = " (it is folded: only its totals are kept)" if version <= state.cached_floor() else ""
        reason = f"version {version} is older than {before.oldest}, the oldest that is retained{is_folded}"
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)
    if not 0 <= version < at.version or (version and state.status(version) != APPLIED):
        reason = f"there is no applied version {version}; the newest is {before.version}"
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)


def _check_there(state: State, sink: Sink, version: int, counted: list[int]) -> None:
    """Raise SinkError if the sink lacks rows of the versions `counted`, which count as written after a rollback to
    `version`."""
    _check_retained(state, counted)
    lost = [it.version for it in map(state.version, counted) if sink.shown(it) != len(it.outputs)]
    if lost:
        raise SinkError(
            f"{state.uri}: version {version} counts rows as written that are no longer in the sink (versions "
            f"{_listed(lost)}): restore their files, or roll back to an earlier version"
        )
    first = state.version(counted[-1]) if counted else None
    if first and first.builds_on and sink.is_reverted(first):
        raise SinkError(
            f"{state.uri}: the table was restored to a time before version {first.version} of this state. Rows of "
            "earlier versions may be gone too, which cannot be checked, because the state does not retain these "
            f"versions. Restore the table to a time after version {first.version}, or begin again with a new state and "
            "a new sink"
        )


def _check_gone(state: State, sink: Sink, version: int, undone: list[int], *, accept_duplicates: bool) -> list[int]:
    """Return the versions that the sink still shows of those `undone` by a rollback to `version`.

    Raises SinkError if there are any, unless duplicates are accepted.
    """
    if not accept_duplicates:
        _check_retained(state, undone)
    shown = [it for it in undone if not state.is_collected(it) and sink.shown(state.version(it))]
    if shown and not accept_duplicates:
        raise SinkError(
            f"{state.uri}: after a rollback to version {version} the inputs of later versions are read again, "
            f"but their rows are still in the sink (versions {_listed(shown)}). Remove the files in their "
            "folders first, but keep the folders; or accept duplicates (accept_duplicates=True)"
        )
    return shown


def _restored(state: State, version: int, *, has_later_rows: bool) -> dict[str, Any]:
    """Return the decision's fields for the state after a version; 0 is the state before the first one.

    `has_later_rows`: whether rows of later versions remain in the sink, so that their columns count, too.
    """
    target = state.version(version) if version else None
    if target is not None:
        fields = {name: getattr(target, name) for name in OF_STATE}
    else:
        fields = {"shards": Shards(), "ledger": LedgerFiles(), "deferred": Deferred(), "key_types": {}}
        fields |= dict.fromkeys(("checksums", "listing", "source_position", "clock_ms", "horizon_ms"))
    if not has_later_rows:
        fields["schema"] = None if target is None else target.schema
    return fields


def reshard(state: State, count: int, *, sink: Sink | None = None, progress: Progress | None = None) -> Decision:
    """Implement `State.reshard`: assign all entries to `count` shards by their keys, like rows."""
    check_shards(count)
    at = _Attempt(state, sink, progress)
    before = at.before
    with at.stages():
        tasks = new_shards(at.held(), before.shard_count, count, at.engine.slots)
        items = [
            ReshardItem(
                first=first,
                end=end,
                old=list(old),
                count_before=before.shard_count,
                count=count,
                horizon_ms=before.horizon_ms,
                common=at.common,
            )
            for first, end, old in tasks
        ]
        done = at.tasks("reshard", operation_tasks.reshard, items)
        shards = Shards.of(shard for it in done for shard in it.shards)
        _check_dealt(done, shards)
        sums = {shard: pieces for it in done for shard, pieces in it.sums.items()}
        decision = state.follow(
            at.version,
            before,
            at.attempt,
            kind="reshard",
            sink_version=at.sink.current_version(before),
            shard_count=count,
            shards=shards,
            checksums=None if before.checksums is None else Checksums.of(before.checksums.columns, sums),
            report={"shards_before": before.shard_count, "shards": count},
            **at.prepared(at.lines(done)),
        )
    return at.commit(decision)


def _check_dealt(done: list[Done], after: Shards) -> None:
    """Raise AssertionError if resharding has lost or added entries."""
    held = (sum(it.entries_before for it in done), sum(it.positions_before for it in done))
    found = (sum(after.entries), sum(it or 0 for it in after.positions))
    if found != held:
        raise AssertionError(f"entries, positions: {held} before, {found} after")


def evict(
    state: State,
    now_ms: int | None,
    max_idle_ms: int,
    *,
    sink: Sink | None = None,
    progress: Progress | None = None,
) -> Decision:
    """Implement `State.evict`: evict every shard (`StateTable.evict`)."""
    at = _Attempt(state, sink, progress)
    before = at.before
    clock_ms, horizon_ms = _horizon(state, before, now_ms, max_idle_ms)
    with at.stages():
        held = at.held()
        items = [
            EvictItem(shards=held[first:end], horizon_before=before.horizon_ms, horizon_ms=horizon_ms, common=at.common)
            for first, end in at.groups([it.size for it in held])
        ]
        done = at.tasks("evict", operation_tasks.evict, items)
        sums = {shard: pieces for it in done for shard, pieces in it.sums.items()}
        decision = state.follow(
            at.version,
            before,
            at.attempt,
            kind="evict",
            sink_version=at.sink.current_version(before),
            shards=before.shards.replaced(shard for it in done for shard in it.shards),
            checksums=None if before.checksums is None else before.checksums.replaced(sums),
            clock_ms=clock_ms,
            horizon_ms=horizon_ms,
            report={"evicted": sum(it.evicted for it in done), "max_idle_ms": max_idle_ms},
            **at.prepared(at.lines(done)),
        )
    return at.commit(decision)


def _horizon(state: State, before: Decision, now_ms: int | None, max_idle_ms: int) -> tuple[int, int]:
    """Return (clock, horizon) of an eviction. Raises PolicyError."""
    if "timestamp" not in state.require_settings().keep:
        reason = "this state keeps no timestamps, because its job has no max_idle_ms, so nothing can be evicted"
        raise PolicyError(f"{state.uri}: {reason}")
    if max_idle_ms < 0:
        raise PolicyError(f"max_idle_ms={max_idle_ms}: must not be negative")
    if now_ms is not None and not -(2**63) <= now_ms < 2**63:  # no task would notice if no shard has a state
        raise PolicyError(f"now_ms={now_ms}: beyond 64 bits")
    clock_ms = max((it for it in (now_ms, before.clock_ms) if it is not None), default=None)
    if clock_ms is None:
        raise PolicyError(f"{state.uri}: this state's clock has not started, because no run has set it: pass now_ms")
    horizon_ms = max(clock_ms - max_idle_ms, -(2**63))
    return clock_ms, horizon_ms if before.horizon_ms is None else max(horizon_ms, before.horizon_ms)


def abandon(state: State, version: int, *, sink: Sink | None = None) -> None:
    """Implement `State.abandon`. Fences the sink first, so that no other driver can show the version."""
    sink = sink or _sink_of(state)
    if not 1 <= version <= state.decided():
        reason = f"version {version} does not exist; versions are 1 to {state.decided()}"
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)
    status = state.status(version)
    state.settle()
    if status not in (ABANDONED, APPLIED):
        owner, own = sink.owner(), state.require_settings().id
        # Not `Sink.check`: the reason for an abandon may be a sink that it refuses.
        if owner != own and (owner is not None or version > 1):
            raise SinkError(
                f"{sink.location}: belongs to {'no state' if owner is None else f'another state (id {owner})'}, so "
                "the version cannot be abandoned there: a run could still make it visible in the right sink. Pass the "
                f"sink of {state.uri}"
            )
        status = sink.fence(state.version(version))
        state.finish(version, status)
        # otherwise its mark in the sink is gone, and the fence has taken an unused name
        state.check_not_folded(version)
    if status == APPLIED:
        raise StateConflictError(
            f"{state.uri}: version {version} is applied already, so it cannot be abandoned. To undo it, use "
            "`fencepost state rollback`"
        )


def collect_garbage(
    state: State,
    keep_versions: int | None = None,
    *,
    sink: Sink | None = None,
    progress: Progress | None = None,
) -> int:
    """Implement `State.collect_garbage`. Versions that do not support rollback are folded."""
    if keep_versions is not None and keep_versions < 1:
        raise ValueError(f"keep_versions={keep_versions}: expected at least 1")
    at = _Attempt(state, sink, progress)
    before = at.before
    if keep_versions is not None:
        applied = [it for it in range(before.oldest, at.version) if state.status(it) == APPLIED]
        oldest = applied[-keep_versions] if len(applied) >= keep_versions else before.oldest
        if oldest > before.oldest:
            seen = at.sink.current_version(before)
            before = at.commit(
                state.follow(at.version, before, at.attempt, kind="retain", oldest=oldest, sink_version=seen)
            )
    done = state.done()
    state.settle()
    needed = _needed(state, before)
    floor = state.cached_floor()
    items = [
        GarbageItem(
            first=first,
            end=min(first + VERSIONS_TOGETHER, done + 1),
            oldest=before.oldest,
            needed=[name for version in range(first, first + VERSIONS_TOGETHER) for name in needed.get(version, ())],
        )
        for first in range(floor + 1, done + 1, VERSIONS_TOGETHER)
    ]
    with at.stages(decides=False):
        removed = sum(at.run("gc", partial(operation_tasks.collect, state), items))
    removed += _collect_folded(state, floor, needed)
    while before.format == FORMAT_FOLDED and fold(state, at.sink, before.oldest - 1):
        pass
    at.sink.scratch(at.version, at.attempt).remove()  # the plan of the tasks
    at.sink.collect_garbage(done)
    return removed


def _collect_folded(state: State, floor: int, needed: dict[int, list[str]]) -> int:
    """Remove files that long-paused drivers wrote for folded versions. Returns the number of files."""
    state.store.settle(FOLDER)  # the writer of the newest fold may have died before its name was on disk
    kept = {name for names in needed.values() for name in names}
    rubbish = [
        name
        for folder in ("log", "done", "body", "segments") * (floor > 0)
        for name in state.store.list(folder)
        if name not in kept and 0 < version_of(name) <= floor
    ]
    state.store.delete(rubbish)
    return len(rubbish)


def _needed(state: State, newest: Decision) -> dict[int, list[str]]:
    """Return by version the segments that versions from `newest.oldest` on need. Empty if that is the first: all are
    kept."""
    found: dict[int, list[str]] = {}
    if newest.oldest > 1:
        names = {name for it in range(newest.oldest, state.decided() + 1) for name in state.version(it).files()}
        for name in sorted(names):
            found.setdefault(int(name.split("/")[1]), []).append(name)
    return found


# Common parts


class _Attempt:
    """An operation in progress: the version that it makes, and the stages that prepare it on the state's engine."""

    def __init__(self, state: State, sink: Sink | None, progress: Progress | None) -> None:
        """Finish an earlier decision first. Raises SnapshotError if no version is finished yet."""
        from fencepost.state.engine import LocalEngine

        self.state, self.sink = state, sink or _sink_of(state)
        self.progress = progress or ignore
        self.engine: Engine = state.engine or LocalEngine()
        self._scratch: Scratch = FolderScratch("", Disk(sync=False))
        recover(state, self.sink, self.run)
        self.version, before = state.root()
        if before is None:
            raise SnapshotError(
                f"{state.uri}: no version is done yet: run the job first", reason="no version is done yet"
            )
        self.before = before
        self.attempt = uuid4().hex

    @property
    def common(self) -> Common:
        settings = self.state.require_settings()
        return Common(policy=settings.full_policy(), keep=settings.keep, version=self.version, attempt=self.attempt)

    @contextmanager
    def stages(self, *, decides: bool = True) -> Iterator[None]:
        """Run tasks and prepare the decision in this context. On an error, removes what they prepared.

        `decides`: whether a decision follows, for which another writer of the version is a conflict.
        """
        try:
            with self._exchange_scratch() as self._scratch:
                yield
        except BaseException as error:
            self._discard()
            if decides and isinstance(error, Exception) and has_lost_race(self.state, self.version):
                raise conflict(self.state, self.version) from error  # the winner may have removed this attempt's files
            raise

    @contextmanager
    def _exchange_scratch(self) -> Iterator[Scratch]:
        """Where tasks write for each other and for the driver."""
        if self.engine.in_process:
            with TemporaryDirectory(prefix="fencepost-") as folder:
                yield FolderScratch(folder, Disk(sync=False))
        else:
            scratch = self.sink.scratch(self.version, self.attempt)
            scratch.make()
            yield scratch

    def held(self) -> list[Held]:
        """Return all shards with their checksums."""
        sums = self.before.checksums
        return [Held(shard=it, sums=None if sums is None else sums.get(it.shard)) for it in self.before.shards]

    def groups(self, weights: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of each task's shards, from the bytes of their states."""
        from fencepost.state.engine import groups

        return groups(weights, target_bytes(sum(weights), self.engine.slots))

    def tasks(self, stage: str, work: Callable[[Store, Scratch, T], R], items: Sequence[T]) -> list[R]:
        return self.run(stage, partial(work, self.state.store, self._scratch), items)

    def run(
        self, stage: str, work: Callable[[T], R], items: Sequence[T], /, *, scratch: Scratch | None = None
    ) -> list[R]:
        """Return the results of the items' tasks. A single item runs here, because an engine costs more."""
        from fencepost.state.engine import LocalEngine, run_stage

        engine, scratch = self.engine if len(items) > 1 else LocalEngine(), scratch or self._scratch
        with observe_step(stage, self.state.uri):
            done = run_stage(engine, stage, work, items, scratch, partial(self.progress, stage))
        return [result for _, result in done]

    def lines(self, done: list[Done]) -> list[Any]:
        """Read the lines of the changelog that tasks have written."""
        return [changelog.read_piece(self._scratch, it.changelog) for it in done if it.changelog is not None]

    def missing(self, shards: Shards) -> Iterator[Any]:
        """Yield the ranges that the changelog should contain for these shards, task by task."""
        listed = list(shards)
        items = [
            MissingItem(shards=listed[first:end], common=self.common)
            for first, end in self.groups(list(map(bytes_of, listed)))
        ]
        names = self.tasks("missing", operation_tasks.write_missing, items)
        return (read_table(self._scratch, name) for name in names if name is not None)

    def prepared(self, lines: list[Any]) -> dict[str, Any]:
        """Prepare these lines of the changelog. Returns the decision's fields; empty without lines."""
        if not lines:
            return {}
        side_files, prepared = changelog.prepare(self.sink, self.version, self.attempt, lines)
        return {"side_files": side_files, "prepared": prepared}

    def commit(self, decision: Decision) -> Decision:
        try:
            commit(self.state, self.sink, decision)
        except StateConflictError:
            self._discard()
            raise
        return decision

    def _discard(self) -> None:
        """Remove what the attempt has prepared. See `Run.discard`."""
        with suppress(OSError, StoreError):
            if self.state.discard(self.version, self.attempt):
                self.sink.scratch(self.version, self.attempt).remove()


def _sink_of(state: State) -> Sink:
    settings = state.require_settings()
    return open_sink(settings.sink, settings.layout, Disk(), state.sink_options)


def _lineage(state: State, version: int, oldest: int) -> list[int]:
    """Return the versions from `oldest` on whose output belongs to the state of `version`: itself and those it builds
    on."""
    found = []
    while version >= oldest:
        found.append(version)
        version = state.builds_on(version)
    return found


def _differing_versions(state: State, one: int, other: int) -> tuple[list[int], list[int]]:
    """Return the versions that only one of two states contains, for each of them, back to their common version."""
    ones: list[int] = []
    others: list[int] = []
    while one != other:
        if one > other:
            ones.append(one)
            one = state.builds_on(one)
        else:
            others.append(other)
            other = state.builds_on(other)
    return ones, others


def _check_retained(state: State, versions: Iterable[int]) -> None:
    """Raise SnapshotError for versions of which only the log is left, because their rows cannot be checked."""
    collected = [it for it in versions if state.is_collected(it)]
    if collected:
        reason = (
            f"the files that versions {_listed(collected)} wrote are no longer known, because these versions are not "
            "retained, so this rollback cannot check the sink. Roll back to another retained version, or begin again "
            "with a new state and a new sink"
        )
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(it) for it in sorted(numbers)[:10]) + (", ..." if len(numbers) > 10 else "")
