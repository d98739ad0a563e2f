"""What people do to a state: go back, cut it anew, forget, clean up, give up.

Each is a version like a run's: decided by one put-if-absent, applied to the sink, finished. So it meets runs and other
people's operations at Decide, and the slower one is told. None writes rows; what changes in the list of missing ranges
is shown as a run shows it (`changelog.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fencepost
from fencepost._native import StateTable
from fencepost.errors import PolicyError, SinkError, SnapshotError, StateConflictError
from fencepost.policy import Columns
from fencepost.state.changelog import changes, corrections
from fencepost.state.commit import Sink, commit, recover
from fencepost.state.decision import (
    ABANDONED,
    APPLIED,
    Checksums,
    Decision,
    Deferred,
    LedgerFiles,
    Settings,
    Shard,
    Shards,
    SumPiece,
)
from fencepost.state.disk import Disk
from fencepost.state.segments import SegmentWriter, advance, held_positions, load_table

if TYPE_CHECKING:
    from fencepost.state.versions import State

SHARDS_MAX = 65_534
SEGMENT_BYTES_MAX = 256 << 20  # an operation begins another file above


def rollback(state: State, version: int, *, accept_duplicates: bool = False, sink: Sink | None = None) -> Decision:
    """Decide a new version with the state of an old one; 0 is the state before the first.

    Inputs that were read since are new again, and their rows would be written again. So the outputs of those versions
    must be gone from the sink, unless `accept_duplicates`. Where an earlier rollback is undone, the outputs of the
    versions that count again must be there. The new version's `_missing` says what makes the changelog right again,
    whichever of its files were removed: the whole state is read for it, a shard at a time. Raises SinkError where rows
    would be there twice or lost, SnapshotError where there is no such version or its files may have been collected,
    StateConflictError.
    """
    sink, next_version, before = _begin(state, sink)
    if not 0 <= version < next_version or (version and state.status(version) != APPLIED):
        reason = f"no version {version} that was applied; the newest is {before.version}"
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)
    if 0 < version < before.oldest:
        reason = f"version {version} is older than {before.oldest}, the oldest that is retained"
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)
    sink_version = sink.look(None)  # before it is looked at what is shown: what changes later is noticed later
    over, asked = _apart(state, before.version, version)
    if sink_version is not None:  # in folders people remove rows that nobody wants; a table says when that happened
        asked = _lineage(state, version, before.oldest)
    _check_looks(state, asked)
    lost = [it for it in asked if not _is_whole(sink, state.version(it))]
    if lost:
        raise SinkError(
            f"{state.uri}: version {version} takes rows for written that are no longer in the sink (versions "
            f"{_listed(lost)}): put their files back, or go back to a version before those"
        )
    over.sort()
    if not accept_duplicates:
        _check_looks(state, over)
    shown = [it for it in over if not state.is_collected(it) and sink.shown(state.version(it))]
    if shown and not accept_duplicates:
        raise SinkError(
            f"{state.uri}: after a rollback to version {version} the inputs of later versions are read again, but "
            f"their rows are still in the sink (versions {_listed(shown)}). Remove the files in their folders first, "
            "the folders themselves stay; or accept duplicates (accept_duplicates=True)"
        )
    attempt = uuid4().hex
    if version:
        target = state.version(version)
        carried: dict[str, Any] = {
            name: getattr(target, name)
            for name in (
                *("shard_count", "shards", "checksums", "ledger", "listing", "deferred", "source_position"),
                *("clock_ms", "horizon_ms", "key_types", "order_by"),
            )
        }
        if not shown:  # else the columns of rows that stay count, too
            carried["schema"] = target.schema
    else:
        nothing = ("checksums", "listing", "source_position", "clock_ms", "horizon_ms")
        begun: dict[str, Any] = {"shards": Shards(), "ledger": LedgerFiles(), "deferred": Deferred(), "key_types": {}}
        carried = begun | dict.fromkeys(nothing if shown else (*nothing, "schema"))
    lines = corrections(sink.changelog(), _missing(state, carried["shards"]), next_version)
    report = {"rolled_back_to": version, "duplicates_accepted_of": shown}
    try:
        carried |= _prepared(sink, next_version, attempt, lines)
        decision = state.follow(
            next_version,
            before,
            attempt,
            kind="rollback",
            builds_on=version,
            report=report,
            sink_version=sink_version,
            **carried,
        )
    except BaseException:
        sink.discard(next_version, attempt)
        raise
    return _commit(state, sink, decision)


def reshard(state: State, count: int, *, sink: Sink | None = None) -> Decision:
    """Deal all entries to `count` shards by their keys, as rows are dealt. No verdict changes.

    Memory: one shard before and one after; the entries lie in a temporary file between. Raises ValueError for a count
    that makes no sense, StateConflictError, SnapshotError.
    """
    if not 1 <= count <= SHARDS_MAX:
        raise ValueError(f"shards={count}: 1 to {SHARDS_MAX} were expected")
    sink, version, before = _begin(state, sink)
    attempt = uuid4().hex
    changed = []
    lines: list[Any] = []
    try:
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder, _Files(state, version, attempt) as files:
            found = _Sums()
            old = _caught_up(state, before, version, found, lines)
            for shard, table in _dealt(state, before, old, count, Path(folder)):
                changed.append(advance(table, None, shard, files.writer(), held_positions(table)))
            checksums = _dealt_checksums(state, before, count, Path(folder), files)
        shards = Shards.of(changed)
        found.check(shards)
        report = {"shards_before": before.shard_count, "shards": count}
        decision = state.follow(
            version,
            before,
            attempt,
            kind="reshard",
            sink_version=sink.look(before),
            shard_count=count,
            shards=shards,
            checksums=checksums,
            report=report,
            **_prepared(sink, version, attempt, lines),
        )
    except BaseException:
        _discard(state, sink, version, attempt)
        raise
    return _commit(state, sink, decision)


def evict(state: State, now_ms: int | None, max_idle_ms: int, *, sink: Sink | None = None) -> Decision:
    """Evict every shard (`StateTable.evict`), by a clock that never falls: one before the last eviction's is that one.

    `now_ms`: None for the state's own clock, which follows the timestamps of the data. Raises PolicyError where the
    state keeps no timestamps or its clock has not begun, or for a negative `max_idle_ms`; StateConflictError.
    """
    sink, version, before = _begin(state, sink)
    settings = state.agreed()
    if "timestamp" not in settings.keep:
        raise PolicyError(f"{state.uri}: nothing can be evicted: this state keeps no timestamps")
    if max_idle_ms < 0:
        raise PolicyError(f"max_idle_ms={max_idle_ms}: must not be negative")
    clock_ms = _later(now_ms, before.clock_ms)
    if clock_ms is None:
        raise PolicyError(f"{state.uri}: its clock has not begun yet; say what time it is (now_ms)")
    horizon_ms = max(clock_ms - max_idle_ms, -(2**63))
    if before.horizon_ms is not None:
        horizon_ms = max(horizon_ms, before.horizon_ms)
    attempt = uuid4().hex
    changed: list[Shard] = []
    lines: list[Any] = []
    sums: dict[int, Sequence[SumPiece]] = {}
    evicted = 0
    try:
        with _Files(state, version, attempt) as files:
            for shard in before.shards:
                table, missing = _as_written(state, shard, settings)
                _catch_up(table, before.horizon_ms)
                evicted += _catch_up(table, horizon_ms)
                lines += changes(missing, table, version)
                changed.append(advance(table, shard, shard.shard, files.writer(), held_positions(table)))
                if before.checksums is not None:
                    sums[shard.shard] = _living_checksums(state, before.checksums.get(shard.shard), table, files)
        decision = state.follow(
            version,
            before,
            attempt,
            kind="evict",
            sink_version=sink.look(before),
            shards=before.shards.replaced(changed),
            checksums=None if before.checksums is None else before.checksums.replaced(sums),
            clock_ms=clock_ms,
            horizon_ms=horizon_ms,
            report={"evicted": evicted, "max_idle_ms": max_idle_ms},
            **_prepared(sink, version, attempt, lines),
        )
    except BaseException:
        _discard(state, sink, version, attempt)
        raise
    return _commit(state, sink, decision)


def _later(one: int | None, other: int | None) -> int | None:
    return max((it for it in (one, other) if it is not None), default=None)


def abandon(state: State, version: int, *, sink: Sink | None = None) -> None:
    """Give up a decided version that the sink refuses for good: its inputs are new again for the next one.

    The sink is fenced first, so that nobody who still tries can show the version. Raises SnapshotError where there is
    no such version, StateConflictError where it is applied, SinkChangedError where a part of it is shown.
    """
    sink = sink or _sink_of(state)
    if not 1 <= version <= state.decided():
        reason = f"there is no version {version}; there are 1 to {state.decided()}"
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)
    status = state.status(version)
    state.settle()
    if status not in (ABANDONED, APPLIED):
        status = sink.fence(state.version(version))
        state.finish(version, status)
    if status == APPLIED:
        raise StateConflictError(
            f"{state.uri}: version {version} is applied; `rollback` makes a new version of an older"
        )


def collect_garbage(state: State, keep_versions: int | None = None, *, sink: Sink | None = None) -> int:
    """Remove what crashed and beaten attempts left; gives how many files.

    `keep_versions`: no version but the so many newest can be gone back to from now on (that is decided, as a version),
    and files that only older ones need are removed, too. Never touched: what belongs to versions that are not done.
    Raises ValueError, StateConflictError.
    """
    if keep_versions is not None and keep_versions < 1:
        raise ValueError(f"keep_versions={keep_versions}: at least one is needed")
    sink, next_version, before = _begin(state, sink)
    if keep_versions is not None:
        applied = [it for it in range(1, next_version) if state.status(it) == APPLIED]
        oldest = applied[-keep_versions:][0]
        if oldest > before.oldest:
            seen = sink.look(before)
            decision = state.follow(next_version, before, uuid4().hex, kind="retain", oldest=oldest, sink_version=seen)
            before = _commit(state, sink, decision)
    done = state.done()
    state.settle()
    rubbish = set(state.orphans(range(1, done + 1)))
    if before.oldest > 1:
        rubbish |= _outlived(state, before, done)
    # Bodies last: what else is to be removed stands in them.
    state.store.delete(sorted(rubbish, key=lambda name: (name.startswith("body/"), name)))
    sink.collect_garbage(done)
    return len(rubbish)


# Common to all


def _begin(state: State, sink: Sink | None) -> tuple[Sink, int, Decision]:
    """The sink, the next version's number and the newest applied one, after what was decided before is finished."""
    sink = sink or _sink_of(state)
    recover(state, sink)
    next_version, before = state.root()
    if before is None:
        raise SnapshotError(f"{state.uri}: no version is done yet", reason="no version is done yet")
    return sink, next_version, before


def _sink_of(state: State) -> Sink:
    from fencepost.state.sinks import open_sink

    settings = state.agreed()
    return open_sink(settings.sink, settings.layout, Disk(), state.sink_options)


def _commit(state: State, sink: Sink, decision: Decision) -> Decision:
    try:
        commit(state, sink, decision)
    except StateConflictError:
        _discard(state, sink, decision.version, decision.attempt)
        raise
    return decision


def _discard(state: State, sink: Sink, version: int, attempt: str) -> None:
    """Remove what an attempt has prepared: nothing refers to it."""
    state.discard(version, attempt)
    sink.discard(version, attempt)


def _prepared(sink: Sink, version: int, attempt: str, lines: list[Any]) -> dict[str, Any]:
    """What the decision says of these lines of the changelog, which are ready to be shown; nothing where there are
    none."""
    if not lines:
        return {}
    side_files, prepared = sink.prepare_changelog(version, attempt, lines)
    return {"side_files": side_files, "prepared": prepared}


def _as_written(state: State, shard: Shard, settings: Settings) -> tuple[StateTable, Any]:
    """A shard's table and its missing ranges as the version wrote them that looked at it last.

    That is what the changelog tells, not what is left of it at the horizon of today.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    table = load_table(state.store, shard.pieces, settings.full_policy(), keep=settings.keep)
    return table, pa.table(table.missing())


def _catch_up(table: StateTable, horizon_ms: int | None) -> int:
    """Forget what lies at or before the horizon; gives how many entries."""
    return 0 if horizon_ms is None or table.horizon_ms == horizon_ms else table.evict(horizon_ms, 0)


def _missing(state: State, shards: Shards) -> Iterator[Any]:
    """The ranges that the changelog should tell, shard by shard."""
    settings = state.agreed()
    return (_as_written(state, shard, settings)[1] for shard in shards)


def _lineage(state: State, version: int, oldest: int) -> list[int]:
    """The versions from `oldest` on whose output the state of `version` stands for: itself, and those it builds on."""
    found = []
    while version >= oldest:
        found.append(version)
        version = state.builds_on(version)
    return found


def _apart(state: State, one: int, other: int) -> tuple[list[int], list[int]]:
    """What only `one` stands for, and what only `other` does: back to the version that both build on."""
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


def _check_looks(state: State, versions: Iterable[int]) -> None:
    """Refuse to look for the rows of versions of which only the log is left. Raises SnapshotError."""
    collected = [it for it in versions if state.is_collected(it)]
    if collected:
        reason = (
            f"which files versions {_listed(collected)} have written is not known any more: their decisions were "
            "collected, since they are older than what is kept to go back to. Begin again with a new state and sink"
        )
        raise SnapshotError(f"{state.uri}: {reason}", reason=reason)


def _is_whole(sink: Sink, decision: Decision) -> bool:
    return sink.shown(decision) == len(decision.outputs)


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(it) for it in sorted(numbers)[:10]) + (", ..." if len(numbers) > 10 else "")


class _Files:
    """An operation's segment files, each of a bounded length."""

    def __init__(self, state: State, version: int, attempt: str) -> None:
        self._arguments = (state.store, version, attempt)
        self._open: SegmentWriter | None = None

    def writer(self) -> SegmentWriter:
        if self._open is not None and self._open.end > SEGMENT_BYTES_MAX:
            self.close()
        self._open = self._open or SegmentWriter(*self._arguments)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        if kind is None:
            self.close()


def _outlived(state: State, newest: Decision, done: int) -> set[str]:
    """Segments and bodies that no version from `newest.oldest` on needs."""
    needed: set[str] = set()
    for version in range(newest.oldest, state.decided() + 1):
        needed |= state.version(version).files()
    old = []
    for version in range(1, done + 1):
        old += state.store.list(f"segments/{version}")
    bodies = [name for name in state.store.list("body") if int(name[5:].partition("-")[0]) < newest.oldest]
    return {*(name for name in old if name not in needed), *bodies}


# Dealing entries anew


@dataclass
class _Sums:
    """What the old shards hold, to compare the new ones with; as they are read: eviction may have come meanwhile."""

    entries: int = 0
    positions: int = 0

    def add(self, table: StateTable) -> None:
        self.entries += len(table)
        self.positions += held_positions(table) or 0

    def check(self, after: Shards) -> None:
        """Raises AssertionError where dealing anew has lost or made something."""
        found = (sum(after.entries), sum(it or 0 for it in after.positions))
        if found != (self.entries, self.positions):
            raise AssertionError(f"entries, positions: {(self.entries, self.positions)} before, {found} after")


def _caught_up(
    state: State, before: Decision, version: int, sums: _Sums, lines: list[Any]
) -> Iterator[tuple[int, StateTable]]:
    """(shard, table) of each old shard, added to `sums`; `lines` get what the horizon has given up since it was looked
    at last."""
    settings = state.agreed()
    for old in before.shards:
        table, missing = _as_written(state, old, settings)
        _catch_up(table, before.horizon_ms)
        lines += changes(missing, table, version)
        sums.add(table)
        yield old.shard, table


def _dealt(
    state: State, before: Decision, old: Iterable[tuple[int, StateTable]], count: int, folder: Path
) -> Iterator[tuple[int, StateTable]]:
    """(shard, table) of each new shard that has entries, from a file a batch of old ones went to."""
    import numpy as np
    import pyarrow as pa

    settings = state.agreed()
    policy = settings.full_policy()
    batches: dict[int, list[tuple[Path, int]]] = {}
    for number, table in old:
        reader = pa.RecordBatchReader.from_stream(table.entries())
        path = folder / f"{number}.arrow"
        written = 0
        with pa.ipc.new_file(path, reader.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
            for batch in filter(len, reader):
                numbers = np.asarray(fencepost.shards(batch, count, _key_columns(batch.schema, settings)))
                order = np.argsort(numbers, kind="stable")
                cuts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
                dealt = batch.take(pa.array(order))
                for start, stop in zip(cuts, [*cuts[1:], len(order)], strict=True):
                    file.write_batch(dealt.slice(start, stop - start))
                    batches.setdefault(int(numbers[order[start]]), []).append((path, written))
                    written += 1
    for shard in sorted(batches):
        parts = [_read_batch(path, number) for path, number in batches[shard]]
        rows = pa.concat_tables(parts, promote_options="permissive")
        schema = parts[0].schema
        rows = rows.replace_schema_metadata(schema.metadata)
        yield shard, StateTable.from_entries(rows, policy, keep=settings.keep, horizon_ms=before.horizon_ms)


def _dealt_checksums(state: State, before: Decision, count: int, folder: Path, files: _Files) -> Checksums | None:
    """The checksums of kept rows as the new shards have them: a piece each.

    Memory: those of one shard before, or of one after, at 32 bytes a row.
    """
    if before.checksums is None:
        return None
    from fencepost.state.checksums import add, dealt, decode, encode, joined, read_sums

    settings = state.agreed()
    parts: dict[int, list[Path]] = {}
    for old in dict.fromkeys(before.checksums.shard):
        kept = joined([read_sums(state.store, it.piece) for it in before.checksums.get(old)])
        for new, some in dealt(kept, count, _key_columns(kept.ranges.schema, settings)):
            path = folder / f"{old}-{new}.sums"
            path.write_bytes(encode(some))
            parts.setdefault(new, []).append(path)
    changed = {}
    for new in sorted(parts):
        some = joined([decode(path.read_bytes(), str(path)) for path in parts[new]])
        changed[new] = add(some, files.writer())
    return Checksums.of(before.checksums.columns, changed)


def _living_checksums(
    state: State, before: Sequence[SumPiece], table: StateTable, files: _Files
) -> tuple[SumPiece, ...]:
    """A shard's checksums without those of entries that are no longer in its table."""
    from fencepost.state.checksums import Living, compacted

    return compacted(state.store, before, Living(table=lambda: table, rows_max=None), files.writer())


def _read_batch(path: Path, number: int) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        return pa.Table.from_batches([pa.ipc.open_file(file).get_batch(number)])


def _key_columns(schema: Any, settings: Settings) -> Columns:
    """The columns by which `entries` names keys."""

    def names(role: str) -> str | tuple[str, ...]:
        parts = tuple(name for name in schema.names if name.startswith(f"{role}_"))
        return role if role in schema.names else parts

    has_epochs = settings.columns.get("epoch") is not None
    partition = names("partition") or None  # checksums have none where rows have none
    return Columns(pid=names("pid"), epoch="epoch" if has_epochs else None, partition=partition, seq="last")
