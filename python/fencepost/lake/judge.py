"""Stage 2, a task per group of shards: judges the spans of all files, in one total order, against the state.

The results are the shards' new segments, ranges of refused rows by file, and changes in the list of missing ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost import StateTable, Verdict
from fencepost.lake.conflicts import find_pairs
from fencepost.lake.kept_content import Kept, Ranges
from fencepost.lake.order import hole_avoiding_order
from fencepost.lake.refused import Refused, merge_refused, refused_ranges, write_refused
from fencepost.lake.repeats import find_resets
from fencepost.lake.scan import LENGTH, Exchange, Reading, borders_of
from fencepost.lake.spans import joined
from fencepost.state.changelog import changes, count_lines, write_piece
from fencepost.state.decision import Shard
from fencepost.state.scratch import Scratch, write_table
from fencepost.state.segment_files import SegmentWriter, advance, held_positions, load_table
from fencepost.state.stores import Store
from fencepost.sums import exact_sum

SHOWN_MAX = 1_000
"""Maximum number of missing ranges, stale producers and suspected resets that a task passes to the report. All are
counted."""


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """What a run's tables forget before and after it (`StateTable.evict`)."""

    horizon_before: int | None
    horizon_after: int | None


@dataclass(frozen=True)
class ExchangeFiles:
    """The exchange files that a stage reads. Tasks get the list once, because there may be many thousands of files and
    items."""

    names: list[str]
    schemas: list[bytes]
    """The distinct Arrow schemas, serialized."""
    schema: list[int]
    """Index into `schemas` for each file."""

    @staticmethod
    def of(exchanges: list[Exchange]) -> ExchangeFiles:
        schemas = [it.schema.serialize().to_pybytes() for it in exchanges]
        places = {schema: place for place, schema in enumerate(dict.fromkeys(schemas))}
        return ExchangeFiles([it.name for it in exchanges], [*places], [places[schema] for schema in schemas])


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The location of the spans of some shards: one line per record batch, sorted by shard, then in file order."""

    shard: npt.NDArray[np.uint32]
    exchange: npt.NDArray[np.int32]
    """Index into the `ExchangeFiles` of the stage."""
    begin: npt.NDArray[np.int64]
    """Position in the exchange file."""
    bytes: npt.NDArray[np.uint32]

    def take(self, lines: slice | npt.NDArray[Any]) -> Parts:
        """Return some of the lines."""
        return Parts(**{name: column[lines] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class JudgeItem:
    parts: Parts
    shards: list[Shard | None]
    """The previous state of each shard in `parts`, in the same order."""
    reading: Reading
    eviction: Eviction
    version: int
    attempt: str
    is_settled: bool
    """Whether the spans are the accepted ones of tasks that judged parts of the shards (`hot.py`)."""


@dataclass(kw_only=True)
class Judged:
    shards: list[Shard] = field(default_factory=list)
    """The new state."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of rows by verdict."""
    refused_rows: Refused | None = None
    missing_ranges: int = 0
    missing_rows: int = 0
    missing: list[pa.Table] = field(default_factory=list)
    stale_epoch: int = 0
    stale: list[pa.Table] = field(default_factory=list)
    border: int = 0
    resets: list[pa.Table] = field(default_factory=list)
    reset_keys: int = 0
    """Number of suspected resets."""
    pairs: str | None = None
    """If content is compared: an Arrow IPC file of `conflicts.PAIRS`."""
    paired: int = 0
    """Number of repeats that can be compared; after the comparison, number of compared repeats."""
    accepted: str | None = None
    """If checksums are kept: the files of `kept_content.Ranges`."""
    alone: str | None = None
    kept: Kept | None = None
    """The checksums kept."""
    conflicts: pa.Table = field(default_factory=lambda: pa.table({}))
    """`conflicts.Compared.samples`."""
    changelog: str | None = None
    """The name of `changelog.write_piece`."""
    changes: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0


def judge(store: Store, scratch: Scratch, exchanges: ExchangeFiles, item: JudgeItem) -> Judged:
    """Judge the spans of some shards, one shard after the other. `store`: the state's store.

    Rows of settled shards were reported before; only their changes of the state are reported here.

    A shard's spans go to its table in one call, so that `missing` contains what the whole run left open, and not what a
    row of a later call fills. Memory: one shard's table and a byte per row of it; also the spans of all shards if they
    come from an object store (files in a folder are mapped). Raises BatchError, CapacityError, SnapshotError.
    """
    judged = Judged()
    refused_rows: list[pa.Table] = []
    pairs: list[pa.Table] = []
    changed: list[pa.Table] = []
    ranges = Ranges() if item.reading.keeps_checksums else None
    with SegmentWriter(store, item.version, item.attempt) as writer:
        for before, (shard, spans) in zip(item.shards, by_shard(scratch, exchanges, item.parts), strict=True):
            lines, codes = _judge_shard(store, item, before, shard, spans, writer, judged, changed)
            if item.is_settled:
                continue
            refused_rows.append(refused_ranges(lines, codes))
            if ranges is not None:
                ranges.add(shard, lines, codes, item.reading.policy)
            if item.reading.compares and (codes == Verdict.DUPLICATE).any():
                pairs.append(find_pairs(shard, lines, codes, item.reading.policy, ranges))
    judged.refused_rows = write_refused(scratch, merge_refused([table for table in refused_rows if len(table)]))
    judged.paired = sum(map(len, pairs))
    if judged.paired:
        judged.pairs = write_table(scratch, "pairs", pa.concat_tables(pairs))
    if ranges is not None:
        judged.accepted, judged.alone = ranges.write(scratch)
    judged.changelog = write_piece(changed, scratch)
    judged.changes = dict(count_lines(changed))
    return judged


def _judge_shard(
    store: Store,
    item: JudgeItem,
    before: Shard | None,
    shard: int,
    lines: pa.Table,
    writer: SegmentWriter,
    judged: Judged,
    changed: list[pa.Table],
) -> tuple[pa.Table, npt.NDArray[np.uint8]]:
    """Judge a shard. Returns its spans in the order of judgment, and the verdict of each row."""
    reading = item.reading
    lines = joined(lines, reading.policy) if item.is_settled else in_order(lines, reading.order_by)
    keep = ("timestamp",) if reading.timestamp else ()
    pieces = before.pieces if before else ()
    table = load_table(store, pieces, reading.policy, keep=keep)
    judged.bytes_read += sum(piece.bytes for piece in pieces)
    missing_before = pa.table(table.missing())
    is_evicted = _evict(table, item.eviction.horizon_before)  # apply what was evicted since this shard was last read
    held_before = before.positions if before and not is_evicted else held_positions(table)
    ages = _ages(table) if reading.timestamp else None
    is_new = not len(table)
    order = None if reading.order_by or item.is_settled else hole_avoiding_order(lines, table)
    lines = lines if order is None else lines.take(pa.array(order))
    verdicts = table.apply_spans(lines, LENGTH, reading.policy.columns)
    counts = {verdict.name: count for verdict, count in verdicts.counts.items() if count}
    if item.is_settled:
        _check_settled(shard, counts)
    else:
        add_row_figures(verdicts, judged)
    missing_after = pa.table(table.missing())
    # A new table has just what these rows left missing, unless its policy gives something up.
    has_these = is_new and table.policy.reach is None and table.policy.epochs != "fence"
    _add_missing_figures(missing_after if has_these else pa.table(verdicts.missing), judged)
    held = held_positions(table)
    _check_growth(table, shard, held_before, held, counts.get(Verdict.ACCEPTED.name, 0))
    codes = np.asarray(pa.array(verdicts.verdict))
    if ages is not None and counts.get(Verdict.DUPLICATE.name, 0):
        resets = find_resets(lines, codes, ages, reading.policy, reading.reset_rows_min)
        judged.reset_keys += len(resets)
        _add_shown(resets, judged.resets)
    if _evict(table, item.eviction.horizon_after):
        held = held_positions(table)
        missing_after = pa.table(table.missing())
    changed += changes(missing_before, missing_after, table, item.version)
    after = advance(table, before, shard, writer, held, missing_after)
    judged.shards.append(after)
    judged.bytes_written += sum(piece.bytes for piece in after.pieces if piece not in pieces)
    return lines, codes


def _evict(table: StateTable, horizon_ms: int | None) -> bool:
    """Forget old entries. Returns whether there were any."""
    if horizon_ms is None or horizon_ms == table.horizon_ms:
        return False
    table.evict(horizon_ms, 0)
    return True


def add_row_figures(verdicts: Any, judged: Judged) -> None:
    """Add the figures of verdicts about rows to the task's result."""
    for verdict, count in verdicts.counts.items():
        if count:
            judged.counts[verdict.name] = judged.counts.get(verdict.name, 0) + count
    judged.stale_epoch += verdicts.stale_epoch
    judged.border += verdicts.border
    _add_shown(pa.table(verdicts.stale), judged.stale)


def _add_missing_figures(missing: pa.Table, judged: Judged) -> None:
    """Add what the rows left missing to the task's result."""
    judged.missing_ranges += len(missing)
    judged.missing_rows += exact_sum(missing["count"])
    _add_shown(missing, judged.missing)


def _add_shown(table: pa.Table, shown: list[pa.Table]) -> None:
    if not shown or (len(table) and sum(map(len, shown)) < SHOWN_MAX):
        shown.append(table.slice(0, SHOWN_MAX))


def _check_settled(shard: int, counts: dict[str, int]) -> None:
    if counts.keys() - {Verdict.ACCEPTED.name}:
        raise AssertionError(f"shard {shard}: rows that tasks had accepted of its parts are {counts}")


def _check_growth(table: StateTable, shard: int, before: int | None, after: int | None, accepted: int) -> None:
    """Check that accepted positions are in the table, under policies that keep positions, so that nothing was lost."""
    if before is None or after is None or table.policy.reach is not None:
        return
    if after - before != accepted:
        text = f"{accepted} rows were accepted, but the state grew by {after - before} positions"
        raise AssertionError(f"shard {shard}: {text}")


# Spans


def by_shard(scratch: Scratch, exchanges: ExchangeFiles, parts: Parts) -> Iterator[tuple[int, pa.Table]]:
    """Yield (shard, its spans in file order)."""
    read, first_bytes = _read(scratch, exchanges.names, parts)
    schemas = [pa.ipc.read_schema(pa.py_buffer(it)) for it in exchanges.schemas]
    for first, end in pairwise(borders_of(parts.shard)):
        batches = []
        for place in range(first, end):
            exchange = int(parts.exchange[place])
            data = read[exchange].slice(int(parts.begin[place]) - first_bytes[exchange], int(parts.bytes[place]))
            batches.append(pa.ipc.read_record_batch(data, schemas[exchanges.schema[exchange]]))
        yield int(parts.shard[first]), gather(batches)


def _read(scratch: Scratch, names: list[str], parts: Parts) -> tuple[dict[int, pa.Buffer], dict[int, int]]:
    """Return the bytes that the task needs of each exchange file, and their position in it.

    Its shards are neighbors, so it reads one range of each file.
    """
    order = np.argsort(parts.exchange, kind="stable")
    places, firsts = np.unique(parts.exchange[order], return_index=True)
    begins = np.minimum.reduceat(parts.begin[order], firsts).tolist() if len(order) else []
    ends = np.maximum.reduceat((parts.begin + parts.bytes)[order], firsts).tolist() if len(order) else []
    numbers = places.tolist()
    read = scratch.read_ranges([(names[at], *range_) for at, *range_ in zip(numbers, begins, ends, strict=True)])
    return dict(zip(numbers, read, strict=True)), dict(zip(numbers, begins, strict=True))


def gather(batches: list[pa.RecordBatch]) -> pa.Table:
    """Combine batches to one table with a chunk each. Integers of different widths become the wider type."""
    return pa.concat_tables(map(pa.Table.from_batches, ([batch] for batch in batches)), promote_options="permissive")


def in_order(spans: pa.Table, order_by: tuple[str, ...]) -> pa.Table:
    """Sort spans by `order_by`. Equal ones keep the order of files and rows."""
    if not order_by:
        return spans
    order = pc.sort_indices(spans.select(order_by), [(name, "ascending") for name in order_by])
    return spans.take(order)


def _ages(table: StateTable) -> pa.Table:
    """Return key, epoch and last timestamp of every entry. Without entries the table has no columns."""
    if not len(table):
        return pa.table({})
    entries = pa.table(table.entries())
    names = [name for name in entries.column_names if name.startswith(("pid", "partition"))]
    return entries.select([*names, "epoch", "last_timestamp"])
