"""The tasks of operations (`operations.py`): each reads some shards from the state's store and writes new ones to it.

Keys are assigned to shards by the rank of their hash, so shard *s* of *n* corresponds to the shards `shards_between` of
another number. A task of a reshard takes neighboring new shards and reads the old ones that overlap them. Tasks
exchange nothing. If one number is a multiple of the other, each old shard is read once.
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fencepost
from fencepost._native import StateTable
from fencepost.policy import Columns, Policy
from fencepost.state.changelog import changes, write_piece
from fencepost.state.decision import Shard, SumPiece
from fencepost.state.scratch import Scratch, write_table
from fencepost.state.segment_files import SegmentWriter, advance, catch_up, held_positions, load_table
from fencepost.state.stores import Store

if TYPE_CHECKING:
    from fencepost.state.versions import State

TASK_BYTES_MIN, TASK_BYTES_MAX = 4 << 20, 64 << 20
"""Minimum and maximum bytes of state per task. Fewer bytes mean more tasks."""
TASKS_PER_SLOT = 2
"""Number of tasks per slot of the engine if they are large enough."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """The common arguments of an operation's tasks."""

    policy: Policy
    keep: list[str]
    """What tables keep, as in `Settings.keep`."""
    version: int
    attempt: str


@dataclass(frozen=True, kw_only=True)
class Held:
    """A shard with its checksums."""

    shard: Shard
    sums: tuple[SumPiece, ...] | None
    """Its checksums. None if the state keeps none."""

    @property
    def size(self) -> int:
        """Bytes of both."""
        return bytes_of(self.shard) + sum(it.piece.bytes for it in self.sums or ())


@dataclass(kw_only=True)
class Done:
    """The result of a task."""

    shards: list[Shard] = field(default_factory=list)
    sums: dict[int, tuple[SumPiece, ...]] = field(default_factory=dict)
    """By shard."""
    changelog: str | None = None
    """The name of `changelog.write_piece`."""
    evicted: int = 0
    entries_before: int = 0
    positions_before: int = 0
    """Number of positions in the old shards that this task counts, as read: an eviction may have happened since."""


def target_bytes(total: float, slots: int) -> float:
    """Return how many of these bytes of the state one task takes."""
    return min(TASK_BYTES_MAX, max(TASK_BYTES_MIN, total / (TASKS_PER_SLOT * slots)))


def bytes_of(shard: Shard) -> int:
    return sum(piece.bytes for piece in shard.pieces)


def as_written(store: Store, shard: Shard, common: Common) -> tuple[StateTable, Any]:
    """Return a shard's table and its missing ranges, as the last version that read it wrote them.

    The changelog is based on these ranges, not on those after the current horizon.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    table = load_table(store, shard.pieces, common.policy, keep=common.keep)
    return table, pa.table(table.missing())


# Missing ranges


@dataclass(frozen=True, kw_only=True)
class MissingItem:
    shards: list[Shard]
    common: Common


def write_missing(store: Store, scratch: Scratch, item: MissingItem) -> str | None:
    """Write the ranges that the changelog should contain for these shards. Returns None if nothing is missing."""
    import pyarrow as pa

    tables = [as_written(store, shard, item.common)[1] for shard in item.shards]
    found = [it.replace_schema_metadata(None) for it in tables if len(it)]
    return write_table(scratch, "missing", pa.concat_tables(found, promote_options="permissive")) if found else None


# Evict


@dataclass(frozen=True, kw_only=True)
class EvictItem:
    shards: list[Held]
    horizon_before: int | None
    horizon_ms: int
    common: Common


def evict(store: Store, scratch: Scratch, item: EvictItem) -> Done:
    """Evict these shards up to the horizon. Memory: one shard at a time."""
    import pyarrow as pa

    done = Done()
    lines: list[Any] = []
    with SegmentWriter(store, item.common.version, item.common.attempt) as writer:
        for held in item.shards:
            shard = held.shard
            table, missing = as_written(store, shard, item.common)
            catch_up(table, item.horizon_before)
            done.evicted += catch_up(table, item.horizon_ms)
            missing_after = pa.table(table.missing())
            lines += changes(missing, missing_after, table, item.common.version)
            done.shards.append(advance(table, shard, shard.shard, writer, held_positions(table), missing_after))
            if held.sums is not None:
                done.sums[shard.shard] = _living_checksums(store, held.sums, table, writer)
    done.changelog = write_piece(lines, scratch)
    return done


def _living_checksums(
    store: Store, before: Sequence[SumPiece], table: StateTable, writer: SegmentWriter
) -> tuple[SumPiece, ...]:
    """Return a shard's checksums without those of entries that its table no longer has."""
    from fencepost.state.checksums import Living, compacted

    return compacted(store, before, Living(table=lambda: table, rows_max=None), writer)


# Reshard


@dataclass(frozen=True, kw_only=True)
class ReshardItem:
    first: int
    """The new shards that the task makes, up to `end`."""
    end: int
    old: list[Held]
    """All old shards that overlap them."""
    count_before: int
    count: int
    horizon_ms: int | None
    common: Common

    def counts(self, old: int) -> bool:
        """Return whether this task, of several, reports the content of an old shard."""
        return self.first <= shards_between(old, self.count_before, self.count)[0] < self.end


def shards_between(shard: int, count_before: int, count: int) -> tuple[int, int]:
    """Return (first, end) of the shards, of `count`, that receive the keys of a shard of `count_before`."""
    return shard * count // count_before, -(-(shard + 1) * count // count_before)


def new_shards(
    old: Sequence[Held], count_before: int, count: int, slots: int
) -> Iterator[tuple[int, int, Sequence[Held]]]:
    """Yield (first, end, old shards) of each task: the new shards that it makes, and the old ones that it reads.

    `old`: ascending by number.
    """
    from fencepost.state.engine import groups

    at_once = -(-count // count_before)  # the minimum per task, so that a task that splits a shard is its only reader
    ends = [*range(at_once, count, at_once), count]
    weights = [0.0] * len(ends)
    for held in old:
        first, end = shards_between(held.shard.shard, count_before, count)
        units = range(first // at_once, (end - 1) // at_once + 1)
        for unit in units:
            weights[unit] += held.size / len(units)
    numbers = [held.shard.shard for held in old]
    for low, high in groups(weights, target_bytes(sum(weights), slots)):
        first, end = low * at_once, ends[high - 1]
        begin = bisect_left(numbers, shards_between(first, count, count_before)[0])
        stop = bisect_left(numbers, shards_between(end - 1, count, count_before)[1])
        if begin < stop:
            yield first, end, old[begin:stop]


def reshard(store: Store, scratch: Scratch, item: ReshardItem) -> Done:
    """Make new shards from old ones.

    Memory: one old and one new shard. Entries are stored in a temporary folder of the task's machine in between.
    """
    import pyarrow as pa

    done = Done()
    lines: list[Any] = []
    common = item.common
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-") as folder,
        SegmentWriter(store, common.version, common.attempt) as writer,
    ):
        for shard, table in _dealt(item, _caught_up(store, item, done, lines), Path(folder)):
            missing = pa.table(table.missing())
            done.shards.append(advance(table, None, shard, writer, held_positions(table), missing))
        _deal_checksums(store, item, Path(folder), writer, done)
    done.changelog = write_piece(lines, scratch)
    return done


def _caught_up(store: Store, item: ReshardItem, done: Done, lines: list[Any]) -> Iterator[tuple[int, StateTable]]:
    """Yield (shard, table) of each old shard. `lines` receives what the horizon gave up since its last reading."""
    import pyarrow as pa

    for held in item.old:
        old = held.shard
        table, missing = as_written(store, old, item.common)
        catch_up(table, item.horizon_ms)
        if item.counts(old.shard):
            lines += changes(missing, pa.table(table.missing()), table, item.common.version)
            done.entries_before += len(table)
            done.positions_before += held_positions(table) or 0
        yield old.shard, table


def _dealt(item: ReshardItem, old: Iterator[tuple[int, StateTable]], folder: Path) -> Iterator[tuple[int, StateTable]]:
    """Yield (shard, table) of each non-empty new shard of this task, from the file of its batch."""
    import numpy as np
    import pyarrow as pa

    batches: dict[int, list[tuple[Path, int]]] = {}
    for number, table in old:
        reader = pa.RecordBatchReader.from_stream(table.entries())
        path = folder / f"{number}.arrow"
        written = 0
        with pa.ipc.new_file(path, reader.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
            for batch in filter(len, reader):
                columns = _key_columns(batch.schema, item.common.policy)
                numbers = np.asarray(fencepost.shards(batch, item.count, columns))
                order = np.argsort(numbers, kind="stable")
                cuts = np.flatnonzero(np.diff(numbers[order].astype(np.int64), prepend=-1))
                dealt = batch.take(pa.array(order))
                for start, stop in zip(cuts, [*cuts[1:], len(order)], strict=True):
                    shard = int(numbers[order[start]])
                    if item.first <= shard < item.end:
                        file.write_batch(dealt.slice(start, stop - start))
                        batches.setdefault(shard, []).append((path, written))
                        written += 1
    for shard in sorted(batches):
        parts = [_read_batch(path, number) for path, number in batches[shard]]
        rows = pa.concat_tables(parts, promote_options="permissive")
        rows = rows.replace_schema_metadata(parts[0].schema.metadata)
        keep, horizon_ms = item.common.keep, item.horizon_ms
        yield shard, StateTable.from_entries(rows, item.common.policy, keep=keep, horizon_ms=horizon_ms)


def _read_batch(path: Path, number: int) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        return pa.Table.from_batches([pa.ipc.open_file(file).get_batch(number)])


def _deal_checksums(store: Store, item: ReshardItem, folder: Path, writer: SegmentWriter, done: Done) -> None:
    """Write the checksums of kept rows of the new shards, one piece each.

    Memory: those of one old or one new shard, 32 bytes per row.
    """
    from fencepost.state.checksums import add, dealt, decode, encode, joined, read_sums

    parts: dict[int, list[Path]] = {}
    for held in item.old:
        if not held.sums:
            continue
        kept = joined([read_sums(store, it.piece) for it in held.sums])
        for new, some in dealt(kept, item.count, _key_columns(kept.ranges.schema, item.common.policy)):
            if item.first <= new < item.end:
                path = folder / f"{held.shard.shard}-{new}.sums"
                path.write_bytes(encode(some))
                parts.setdefault(new, []).append(path)
    for new in sorted(parts):
        some = joined([decode(path.read_bytes(), str(path)) for path in parts[new]])
        done.sums[new] = add(some, writer)


def _key_columns(schema: Any, policy: Policy) -> Columns:
    """Return the key columns with their names in `entries`."""

    def names(role: str) -> str | tuple[str, ...]:
        parts = tuple(name for name in schema.names if name.startswith(f"{role}_"))
        return role if role in schema.names else parts

    has_epochs = policy.columns.epoch is not None
    partition = names("partition") or None  # checksums have no partition if rows have none
    return Columns(pid=names("pid"), epoch="epoch" if has_epochs else None, partition=partition, seq="last")


# Garbage


@dataclass(frozen=True, kw_only=True)
class GarbageItem:
    first: int
    """The first version; all up to `end` are finished."""
    end: int
    oldest: int
    """The oldest version that supports rollback."""
    needed: list[str]
    """Segments of these versions that versions from `oldest` on need."""


def version_of(name: str) -> int:
    """Return the version of a state's file. 0 for other files, such as those that NFS keeps while they are open."""
    match = re.match(r"(?:log|done|body|segments)/(\d+)", name)
    return int(match[1]) if match else 0


def collect(state: State, item: GarbageItem) -> int:
    """Remove leftovers of crashed and defeated attempts at these versions, and files that only versions before `oldest`
    need.

    Returns the number of files.
    """
    rubbish = set(state.orphans(range(item.first, item.end)))
    if item.oldest > 1:
        needed = set(item.needed)
        for version in range(item.first, item.end):
            rubbish.update(name for name in state.store.list(f"segments/{version}") if name not in needed)
        old = range(item.first, min(item.oldest, item.end))
        rubbish.update(name for name in state.store.list("body") if version_of(name) in old)
    # Bodies last: they list the other files to remove.
    state.store.delete(sorted(rubbish, key=lambda name: (name.startswith("body/"), name)))
    return len(rubbish)
