"""Stage 2, a task per group of shards: the runs of all files in their one total order, judged against what the state
knows.

What comes out are the shards' new segments, the rows that are not kept, as ranges by file, and what changed in the list
of missing ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost import StateTable, Verdict
from fencepost.lake.order import calm_order
from fencepost.lake.scan import FILE, LENGTH, ROW, Reading
from fencepost.state.changelog import changes, numbered
from fencepost.state.decision import Shard
from fencepost.state.segments import SegmentWriter, advance, held_positions, load_table
from fencepost.state.stores import Store

SHOWN_MAX = 1_000
"""Missing ranges, stale producers and suspected resets that a task hands to the report; all are counted."""

RESET_ROWS_MIN = 1_000
"""Rows of a key below which nothing is suspected (`row-policies`, section 6)."""

LOSERS = pa.schema([("file", pa.uint32()), ("row", pa.uint64()), ("count", pa.uint64()), ("verdict", pa.uint8())])
"""Rows that are not kept: the file's ordinal, its first such row, how many follow each other, and why."""


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """What a run's tables forget before and after it (`StateTable.evict`)."""

    horizon_before: int | None
    horizon_after: int | None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Where the runs of some shards are: a record batch a line, sorted by shard and then in the order of the files."""

    shard: npt.NDArray[np.uint32]
    exchange: npt.NDArray[np.int32]
    """Place in `names`."""
    batch: npt.NDArray[np.int32]
    names: list[str]
    """Of exchange files; every task is told all of them, so their folder is left out."""


@dataclass(frozen=True, kw_only=True)
class JudgeItem:
    parts: Parts
    shards: list[Shard | None]
    """The state before of each shard that occurs in `parts`, in their order."""
    reading: Reading
    eviction: Eviction
    store: Store
    """The state's."""
    version: int
    attempt: str
    scratch: str
    """The folder of the exchange files, and of what the task hands on."""


@dataclass(kw_only=True)
class Judged:
    shards: list[Shard] = field(default_factory=list)
    """The state after."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by name of verdict."""
    losers: str | None = None
    """An Arrow IPC file of LOSERS, sorted by file and row."""
    files: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """The files that rows are refused of, and how many."""
    refused: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    missing_ranges: int = 0
    missing_rows: int = 0
    missing: list[pa.Table] = field(default_factory=list)
    stale_epoch: int = 0
    stale: list[pa.Table] = field(default_factory=list)
    border: int = 0
    resets: list[pa.Table] = field(default_factory=list)
    changelog: str | None = None
    """A Parquet file of `changelog.changes`."""
    changes: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0


def judge(item: JudgeItem) -> Judged:
    """Judge the runs of some shards, one shard after the other.

    A shard's runs go to its table in one call: they are mapped into memory, not read, and only so is `missing` what
    the whole run left open, not what a row of the next piece fills. Memory: one shard's table, a byte for each of its
    rows. Raises BatchError, CapacityError, SnapshotError.
    """
    judged = Judged()
    losers: list[pa.Table] = []
    changed: list[pa.Table] = []
    with SegmentWriter(item.store, item.version, item.attempt) as writer:
        for before, runs in zip(item.shards, _by_shard(item), strict=True):
            losers.append(_judge_shard(item, before, runs, writer, judged, changed))
    _write_losers(losers, item, judged)
    if changed:
        _write_changes(changed, item, judged)
    return judged


def _judge_shard(
    item: JudgeItem,
    before: Shard | None,
    runs: tuple[int, pa.Table],
    writer: SegmentWriter,
    judged: Judged,
    changed: list[pa.Table],
) -> pa.Table:
    shard, lines = runs
    reading = item.reading
    keep = ("timestamp",) if reading.timestamp else ()
    pieces = before.pieces if before else ()
    table = load_table(item.store, pieces, reading.policy, keep=keep)
    judged.bytes_read += sum(piece.bytes for piece in pieces)
    missing_before = pa.table(table.missing())
    is_evicted = _evict(table, item.eviction.horizon_before)  # what was forgotten since this shard was last looked at
    held_before = before.positions if before and not is_evicted else held_positions(table)
    ages = _ages(table) if reading.timestamp else None
    order = None if reading.order_by else calm_order(lines, table)
    lines = lines if order is None else lines.take(pa.array(order))
    verdicts = table.apply_runs(lines, LENGTH, reading.policy.columns)
    counts = {verdict.name: count for verdict, count in verdicts.counts.items() if count}
    held = held_positions(table)
    _check_growth(table, shard, held_before, held, counts.get(Verdict.ACCEPTED.name, 0))
    codes = np.asarray(pa.array(verdicts.verdict))
    if ages is not None and counts.get(Verdict.DUPLICATE.name, 0) >= RESET_ROWS_MIN:
        judged.resets += _resets(lines, codes, ages, reading)
    if _evict(table, item.eviction.horizon_after):
        held = held_positions(table)
    changed += changes(missing_before, table, item.version)
    after = advance(table, before, shard, writer, held)
    judged.shards.append(after)
    judged.bytes_written += sum(piece.bytes for piece in after.pieces if piece not in pieces)
    _tell(verdicts, counts, judged)
    return row_losers(lines, codes)


def _evict(table: StateTable, horizon_ms: int | None) -> bool:
    """Whether there was anything to do."""
    if horizon_ms is None or horizon_ms == table.horizon_ms:
        return False
    table.evict(horizon_ms, 0)
    return True


def _tell(verdicts: Any, counts: dict[str, int], judged: Judged) -> None:
    """Add what a shard's verdicts say to what is said of the task."""
    for name, count in counts.items():
        judged.counts[name] = judged.counts.get(name, 0) + count
    missing = pa.table(verdicts.missing)
    judged.missing_ranges += len(missing)
    judged.missing_rows += pc.sum(missing["count"]).as_py() or 0
    judged.stale_epoch += verdicts.stale_epoch
    judged.border += verdicts.border
    for shown, table in ((judged.missing, missing), (judged.stale, pa.table(verdicts.stale))):
        if not shown or (len(table) and sum(map(len, shown)) < SHOWN_MAX):
            shown.append(table.slice(0, SHOWN_MAX))


def _check_growth(table: StateTable, shard: int, before: int | None, after: int | None, accepted: int) -> None:
    """What was accepted is now held, under policies whose positions stay: nothing is lost between the two."""
    if before is None or after is None or table.policy.reach is not None:
        return
    if after - before != accepted:
        text = f"{accepted} rows were accepted, but the state grew by {after - before} positions"
        raise AssertionError(f"shard {shard}: {text}")


# The runs


def _by_shard(item: JudgeItem) -> Iterator[tuple[int, pa.Table]]:
    """(shard, its runs in their order)."""
    parts = item.parts
    opened = [pa.ipc.open_file(pa.memory_map(f"{item.scratch}/{name}")) for name in parts.names]
    borders = [0, *(np.flatnonzero(np.diff(parts.shard)) + 1), len(parts.shard)]
    for first, end in pairwise(borders):
        if first < end:
            places = range(first, end)
            batches = [opened[parts.exchange[place]].get_batch(int(parts.batch[place])) for place in places]
            yield int(parts.shard[first]), _in_order(gather(batches), item.reading.order_by)


def gather(batches: list[pa.RecordBatch]) -> pa.Table:
    """Batches as one table, a chunk each; integers of two widths become the wider."""
    return pa.concat_tables(map(pa.Table.from_batches, ([batch] for batch in batches)), promote_options="permissive")


def _in_order(runs: pa.Table, order_by: tuple[str, ...]) -> pa.Table:
    """In their true order; runs of equal values stay in that of files and rows."""
    if not order_by:
        return runs
    order = pc.sort_indices(runs.select(order_by), [(name, "ascending") for name in order_by])
    return runs.take(order)


# The rows that are not kept


def row_losers(runs: pa.Table, codes: npt.NDArray[np.uint8]) -> pa.Table:
    """A table of LOSERS, in the order of the runs. `codes`: a verdict for each row of the runs."""
    is_kept = np.zeros(len(Verdict), bool)
    is_kept[[verdict for verdict in Verdict if verdict.is_kept]] = True
    if is_kept[codes].all():
        return LOSERS.empty_table()
    lengths = runs[LENGTH].to_numpy().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    if len(codes) == len(starts):  # runs of one row
        cuts = of_run = np.flatnonzero(~is_kept[codes])
        counts = np.ones(len(cuts), np.uint64)
    else:
        # Stretches of one verdict and one run. Both lists are sorted: merging them is what this sort does.
        cuts = np.concatenate([starts, np.flatnonzero(codes[1:] != codes[:-1]) + 1])
        cuts.sort(kind="stable")
        cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]
        counts = np.diff(np.append(cuts, len(codes))).astype(np.uint64)
        wanted = ~is_kept[codes[cuts]]
        cuts, counts = cuts[wanted], counts[wanted]
        of_run = np.searchsorted(starts, cuts, side="right") - 1
    rows = runs[ROW].to_numpy()[of_run] + (cuts - starts[of_run]).astype(np.uint64)
    return pa.table([runs[FILE].to_numpy()[of_run], rows, counts, codes[cuts]], schema=LOSERS)


def sorted_losers(tables: list[pa.Table]) -> pa.Table:
    """By file and row; ranges that follow each other are one."""
    losers = pa.concat_tables(tables, promote_options="permissive") if tables else LOSERS.empty_table()
    if not len(losers):
        return losers
    file, row, count, verdict = (losers[name].to_numpy() for name in LOSERS.names)
    order = np.lexsort((row, file))
    file, row, count, verdict = file[order], row[order], count[order], verdict[order]
    goes_on = (file[1:] == file[:-1]) & (verdict[1:] == verdict[:-1]) & (row[1:] == row[:-1] + count[:-1])
    first = np.flatnonzero(np.append(True, ~goes_on))
    counts = np.add.reduceat(count, first)
    return pa.table([file[first], row[first], counts, verdict[first]], schema=LOSERS)


def _write_losers(tables: list[pa.Table], item: JudgeItem, judged: Judged) -> None:
    losers = sorted_losers([table for table in tables if len(table)])
    if not len(losers):
        return
    path = Path(item.scratch) / f"{uuid4().hex}.losers"
    with pa.ipc.new_file(path, LOSERS) as file:
        file.write_table(losers)
    of_file = losers["file"].to_numpy()
    firsts = np.flatnonzero(np.append(True, of_file[1:] != of_file[:-1]))
    judged.losers = str(path)
    judged.files = of_file[firsts]
    judged.refused = np.add.reduceat(losers["count"].to_numpy(), firsts).astype(np.int64)


# What people want to know


def _write_changes(changed: list[pa.Table], item: JudgeItem, judged: Judged) -> None:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    table = pa.concat_tables(changed, promote_options="permissive")
    path = Path(item.scratch) / f"{uuid4().hex}.changes"
    pq.write_table(table, path)
    judged.changelog = str(path)
    for kind in pc.value_counts(table["change"]).to_pylist():
        judged.changes[kind["values"]] = kind["counts"]


def _ages(table: StateTable) -> pa.Table:
    """Key, epoch and last timestamp of every entry."""
    entries = pa.table(table.entries())
    names = [name for name in entries.column_names if name.startswith(("pid", "partition"))]
    return entries.select([*names, "epoch", "last_timestamp"])


def _resets(runs: pa.Table, codes: npt.NDArray[np.uint8], ages: pa.Table, reading: Reading) -> list[pa.Table]:
    """Entries that seem to have begun to number anew: most of their rows are DUPLICATE, and newer than all that was
    accepted of them before. `ages`: as it was before the first run."""
    columns = reading.policy.columns
    keys = _entry_columns(runs, reading)
    known = pa.table([ages[name].cast(column.type) for name, column in keys.items()], names=list(keys))
    numbers = numbered(pa.concat_tables([pa.table(keys), known], promote_options="permissive"))
    of_run, of_entry = numbers[: len(runs)], numbers[len(runs) :]
    lengths = runs[LENGTH].to_numpy().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    duplicates = np.add.reduceat((codes == Verdict.DUPLICATE).astype(np.int64), starts)
    has_accepted = np.add.reduceat((codes == Verdict.ACCEPTED).astype(np.int64), starts) > 0
    times = runs[columns.timestamp or "timestamp"].to_numpy()
    last = np.full(numbers.max() + 1, np.iinfo(np.int64).min)
    last[of_entry] = ages["last_timestamp"].to_numpy()
    order = np.argsort(of_run, kind="stable")
    suspects = []
    for some in np.split(order, np.flatnonzero(np.diff(of_run[order])) + 1):
        if duplicates[some].sum() < RESET_ROWS_MIN:
            continue
        accepted = np.where(has_accepted[some], times[some], np.iinfo(np.int64).min)
        newest_before = np.maximum.accumulate(np.append(last[of_run[some[0]]], accepted))[:-1]
        # A run has one timestamp: rows of it that repeat others of it are no newer than those.
        newest_before = np.maximum(newest_before, accepted)
        newer, rows = int(duplicates[some][times[some] > newest_before].sum()), int(lengths[some].sum())
        if newer >= RESET_ROWS_MIN and newer * 2 > rows:
            suspects.append((int(some[0]), rows, int(duplicates[some].sum()), newer))
    if not suspects:
        return []
    places, *figures = zip(*suspects[:SHOWN_MAX], strict=True)
    found = pa.table(keys).take(pa.array(places))
    for name, values in zip(("rows", "duplicates", "newer"), figures, strict=True):
        found = found.append_column(name, pa.array(values, pa.int64()))
    return [found]


def _entry_columns(runs: pa.Table, reading: Reading) -> dict[str, pa.ChunkedArray]:
    """What tells entries apart, as `StateTable.entries` names it."""
    columns = reading.policy.columns
    keys: dict[str, pa.ChunkedArray] = {}
    for role in ("pid", "partition"):
        names = columns.parts(role)
        keys |= {role if len(names) == 1 else f"{role}_{place}": runs[name] for place, name in enumerate(names)}
    if columns.epoch is not None and reading.policy.epochs == "key":
        keys["epoch"] = runs[columns.epoch]
    return keys
