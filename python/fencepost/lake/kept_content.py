"""Checksums of kept rows across runs (`DedupJob(keep_checksums=...)`).

Stage 2a, a task per group of files, writes the checksum of every row of its files. Judging writes the ranges of
accepted rows and of repeats whose kept row is not in this run, by shard. Stage 2b (`conflicts.py`) compares these
repeats with the checksums of earlier runs, and keeps those of the accepted rows (`fencepost.state.checksums`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import StateTable, Verdict, _native
from fencepost.content import checksums, content_columns
from fencepost.errors import BatchError, SnapshotError
from fencepost.lake.files import Files
from fencepost.lake.parts import RowRange
from fencepost.lake.repeats import NOT_HERE, Repeats, Stretches, key_columns
from fencepost.lake.scan import FILE, ROW, borders_of, numbers_within
from fencepost.lake.storage import Storage, content_errors, unchanged
from fencepost.policy import Columns, Policy
from fencepost.resets import ROWS_TOGETHER, Numbers
from fencepost.state.checksums import COUNT, SEQ, KeptSums, Living, advance, find
from fencepost.state.decision import Checksums, Decision, Shard, SumPiece
from fencepost.state.engine import check_stopped
from fencepost.state.scratch import Scratch, read_table, write_table
from fencepost.state.segment_files import SegmentWriter, load_table
from fencepost.state.stores import Store

SHARD = "_shard"
"""A column of the ranges that judge tasks write, in addition to those of `KeptSums.ranges`, FILE and ROW (of the first
row)."""

PLACES = pa.schema([("file", pa.uint32()), ("row", pa.uint64())])

Hashes = npt.NDArray[np.uint64]


# Settings


def rows_max(keep_checksums: int | str, policy: Policy) -> int | None:
    """Return for how many newest positions per key to keep checksums; None for all."""
    bounds = [] if isinstance(keep_checksums, str) else [keep_checksums]
    bounds += [] if policy.reach is None else [policy.reach + 1]
    return min(bounds, default=None)


def checked(
    uri: str,
    keep_checksums: int | str | None,
    compared: tuple[str, ...] | None,
    newest: Decision | None,
    base: Decision | None,
) -> Checksums | None:
    """Return the checksums that a run continues; None if it keeps none.

    `newest`: the previous version. `base`: the version whose state the run continues; None for a rebuild. Raises
    SnapshotError if the settings of existing checksums would change.
    """
    known = newest.checksums if newest else None
    if keep_checksums is None and known is not None:
        lacking = f"it keeps checksums of {_named(known.columns)}, but this job has no keep_checksums"
        raise SnapshotError(
            f"{uri}: {lacking}. Pass keep_checksums again, or drop the checksums with one run under keep_checksums=0. "
            "Without checksums of this run, a later run could compare a repeat with the wrong row: an older one that "
            "had the same sequence number",
            reason=lacking,
        )
    if keep_checksums in (None, 0) or compared is None:
        return None
    columns = sorted(set(compared))
    known = base.checksums if base else None
    if known is not None and known.columns != columns:
        reason = f"it keeps checksums of {_named(known.columns)}, but this job compares {_named(columns)}"
        advice = "Compare the same columns, or drop the checksums with one run under keep_checksums=0"
        raise SnapshotError(f"{uri}: {reason}. {advice}", reason=reason)
    return known or Checksums(columns=columns)


def _named(columns: list[str]) -> str:
    return ", ".join(f"column '{name}'" for name in columns) or "all columns but those of the identity"


# Stage 2a: a checksum for each row of each file


@dataclass(frozen=True, kw_only=True)
class SumItem:
    files: Files
    """As in the first pass."""
    first: int
    """The ordinal of the first file."""
    is_read: list[bool]
    columns: Columns
    wanted: tuple[str, ...]
    """The columns to compare; () for all outside the identity."""
    row_range: RowRange | None
    """Of a single file: the rows to read."""


@dataclass(frozen=True, kw_only=True)
class Summed:
    """A file of checksums: the start of each input file's checksums (int64, one more than there are files), then the
    checksums (uint64)."""

    name: str
    first: int
    """The ordinal of the first input file."""
    count: int
    """Number of input files."""
    first_row: int
    """First row of the first input file. Not 0 if other tasks have the rows before it."""


def sum_rows(storage: Storage, scratch: Scratch, item: SumItem) -> Summed:
    """Write the checksum of each row. Memory: a row group's content columns.

    Raises BatchError for a column that cannot be compared, SourceError, StoreError, ChangedError.
    """
    name = f"{uuid4().hex}.sums"
    starts = np.zeros(len(item.files) + 1, np.int64)
    with scratch.new(name) as path, open(path, "xb") as file:
        file.write(starts.tobytes())
        for place in range(len(item.files)):
            rows = 0
            if item.is_read[place]:
                check_stopped()
                for sums in _sums_of(storage, item, place):
                    file.write(sums.tobytes())
                    rows += len(sums)
            starts[place + 1] = starts[place] + rows
        file.seek(0)
        file.write(starts.tobytes())
    first_row = item.row_range.first if item.row_range else 0
    return Summed(name=name, first=item.first, count=len(item.files), first_row=first_row)


def _sums_of(storage: Storage, item: SumItem, place: int) -> Iterator[Hashes]:
    path = item.files.full_path(place)
    rows = np.arange(item.row_range.first, item.row_range.end) if item.row_range else None
    with unchanged(storage, item.files, place):
        for part in read_rows(storage, item.files, place, rows, item.columns, item.wanted):
            try:
                yield checksums(part, part.column_names)
            except BatchError as error:
                raise BatchError(f"{path}: {error.message}", column=error.column) from error


def _taken(table: pa.Table, rows: Numbers) -> pa.Table:
    """Return some rows, in ascending order."""
    try:
        return table.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # Arrow cannot take from every type, such as views
        is_wanted = np.zeros(len(table), bool)
        is_wanted[rows] = True
        return pa.table(_native.filter_rows(table, pa.array(is_wanted)))


def read_rows(
    storage: Storage,
    files: Files,
    place: int,
    rows: Numbers | None,
    columns: Columns,
    wanted: tuple[str, ...],
    more: tuple[str, ...] = (),
) -> Iterator[pa.Table]:
    """Yield the content columns of some rows of a file, in ascending order, one table per row group with such rows.

    `rows`: None for all. `more`: additional columns to read, if the file has them. Raises BatchError, SourceError,
    StoreError.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    path = files.full_path(place)
    try:
        with content_errors(path), pq.ParquetFile(storage.open(path, files.facts(place))) as file:
            names = file.schema_arrow.names
            read = content_columns(names, columns.names, wanted)
            read += [name for name in more if name in names and name not in read]
            first = 0
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                low, high = (0, count) if rows is None else np.searchsorted(rows, [first, first + count])
                if low < high:
                    table = file.read_row_group(group, columns=read) if read else pa.table({"": pa.nulls(count)})
                    yield table if rows is None else _taken(table, rows[low:high] - first)
                first += count
    except BatchError as error:
        raise BatchError(f"{path}: {error.message}", column=error.column) from error


class Sums:
    """The checksums of all rows of a run. Files in a folder are mapped into memory."""

    def __init__(self, scratch: Scratch, summed: Sequence[Summed]) -> None:
        found = sorted(summed, key=lambda it: (it.first, it.first_row))
        self._firsts = np.array([it.first for it in found], np.int64)
        self._first_rows = np.array([it.first_row for it in found], np.int64)
        words = [np.frombuffer(scratch.read(it.name), np.int64) for it in found]
        self._starts = [words[place][: it.count + 1] for place, it in enumerate(found)]
        self._sums = [words[place][it.count + 1 :].view(np.uint64) for place, it in enumerate(found)]

    def of(self, files: npt.NDArray[Any], rows: npt.NDArray[Any]) -> Hashes:
        """Return the checksum of each row. `files`: ordinals."""
        found = np.zeros(len(rows), np.uint64)
        task = np.searchsorted(self._firsts, files.astype(np.int64), side="right") - 1
        rows = rows.astype(np.int64)
        while (is_before := rows < self._first_rows[task]).any():  # in an earlier part of the file
            task[is_before] -= 1
        for number in np.unique(task).tolist():
            some = np.flatnonzero(task == number)
            starts = self._starts[number][files[some].astype(np.int64) - self._firsts[number]]
            found[some] = self._sums[number][starts + rows[some] - self._first_rows[number]]
        return found


# Ranges from judging


@dataclass(kw_only=True)
class Ranges:
    """Ranges of rows that a judge task writes."""

    accepted: list[pa.Table] = field(default_factory=list)
    alone: list[pa.Table] = field(default_factory=list)
    """Repeats whose kept row is not in this run."""

    def add(self, shard: int, spans: pa.Table, codes: npt.NDArray[np.uint8], policy: Policy) -> None:
        """Add the accepted rows of a shard. `codes`: a verdict per row of the spans."""
        some = Stretches.of(spans, codes, [Verdict.ACCEPTED])
        self.accepted.append(_ranges(shard, spans, policy, some.spans, some.offsets, some.counts))

    def add_repeats(self, shard: int, spans: pa.Table, policy: Policy, some: Stretches, repeats: Repeats) -> None:
        """Add the repeats whose kept row is not in this run. `some`: the stretches that `repeats` refers to."""
        if policy.takes_late_for_repeats and policy.wrap is not None:
            return  # a DUPLICATE may never have been kept, and its number may be that of a row of an earlier lap
        alone = np.flatnonzero(repeats.kept == NOT_HERE)
        stretch, offsets = repeats.stretch[alone], repeats.offsets[alone]
        is_first = np.ones(len(alone), bool)
        is_first[1:] = (stretch[1:] != stretch[:-1]) | (offsets[1:] != offsets[:-1] + 1)
        firsts = np.flatnonzero(is_first)
        counts = np.diff(np.append(firsts, len(alone)))
        stretch, offsets = stretch[firsts], offsets[firsts]
        if len(firsts):
            begin = some.offsets[stretch] + offsets
            self.alone.append(_ranges(shard, spans, policy, some.spans[stretch], begin, counts))

    def write(self, scratch: Scratch) -> tuple[str | None, str | None]:
        """Write the files of accepted rows and of repeats; None for an empty one."""
        return _written(self.accepted, scratch), _written(self.alone, scratch)


def _ranges(
    shard: int, spans: pa.Table, policy: Policy, places: Numbers, offsets: Numbers, counts: Numbers
) -> pa.Table:
    keys = pa.table(key_columns(spans, policy, by_epoch=True)).take(pa.array(places))
    seqs = spans[policy.columns.seq].to_numpy().astype(np.int64)[places] + offsets
    columns = {
        SEQ: seqs if policy.wrap is None else seqs % policy.wrap,
        COUNT: counts.astype(np.int64),
        FILE: spans[FILE].to_numpy()[places],
        ROW: spans[ROW].to_numpy()[places] + offsets.astype(np.uint64),
        SHARD: np.full(len(places), shard, np.int64),
    }
    for name, values in columns.items():
        keys = keys.append_column(name, pa.array(values))
    return keys


def _written(tables: list[pa.Table], scratch: Scratch) -> str | None:
    if not any(map(len, tables)):
        return None
    table = pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(None)
    return write_table(scratch, "ranges", table)


# Stage 2b


@dataclass(frozen=True, kw_only=True)
class ShardSums:
    """The state and checksums of a judged shard."""

    after: Shard
    """Its new state."""
    state_before: Shard | None
    """Its previous state."""
    before: tuple[SumPiece, ...]
    """Its previous checksums."""


@dataclass(frozen=True, kw_only=True)
class ChecksumItem:
    """What a task needs to compare with checksums of earlier runs and to keep those of this run."""

    summed: list[Summed]
    accepted: str | None
    """Files of `Ranges`."""
    alone: str | None
    shards: list[ShardSums]
    policy: Policy
    keep: tuple[str, ...]
    """As in `Settings.keep`."""
    rows_max: int | None
    version: int
    attempt: str


@dataclass(kw_only=True)
class Kept:
    """The result of a task."""

    compared: int = 0
    """Number of compared repeats of earlier runs' rows."""
    noted: int = 0
    """Number of accepted rows whose checksums were kept."""
    pieces: dict[int, tuple[SumPiece, ...]] = field(default_factory=dict)
    """For shards with accepted rows."""
    bytes_read: int = 0
    bytes_written: int = 0


def compare_and_keep(store: Store, scratch: Scratch, item: ChecksumItem, sums: Sums) -> tuple[Kept, pa.Table]:
    """Compare repeats with the checksums of earlier runs, then keep the checksums of accepted rows.

    Also returns the conflicts: file and row. Memory: 40 bytes per accepted row of a shard, and 32 bytes per merged
    checksum. Raises SnapshotError.
    """
    kept = Kept()
    conflicts: list[pa.Table] = [PLACES.empty_table()]
    accepted, alone = _by_shard(scratch, item.accepted), _by_shard(scratch, item.alone)
    with SegmentWriter(store, item.version, item.attempt) as writer:
        for shard in item.shards:
            number = shard.after.shard
            if number in alone and shard.before:
                conflicts += _compare(store, item, shard, alone[number], sums, kept)
            if number in accepted:
                _keep(store, item, shard, accepted[number], sums, kept, writer)
    return kept, pa.concat_tables(conflicts)


def _compare(
    store: Store, item: ChecksumItem, shard: ShardSums, alone: pa.Table, sums: Sums, kept: Kept
) -> Iterator[pa.Table]:
    living = _living(store, item, shard.state_before) if item.rows_max is not None and shard.state_before else None
    has_sum, known, bytes_read = find(store, shard.before, alone, item.policy.wrap, living)
    kept.bytes_read += bytes_read
    counts = alone[COUNT].to_numpy()
    ends = np.cumsum(counts)
    file, row = alone[FILE].to_numpy(), alone[ROW].to_numpy()
    for first in range(0, len(known), ROWS_TOGETHER):
        places = np.flatnonzero(has_sum[first : first + ROWS_TOGETHER]) + first
        line = np.searchsorted(ends, places, side="right")
        files, rows = file[line], row[line] + (places - (ends - counts)[line]).astype(np.uint64)
        is_other = sums.of(files, rows).astype(np.uint32) != known[places]
        kept.compared += len(places)
        yield pa.table([files[is_other], rows[is_other]], schema=PLACES)


def _keep(
    store: Store,
    item: ChecksumItem,
    shard: ShardSums,
    accepted: pa.Table,
    sums: Sums,
    kept: Kept,
    writer: SegmentWriter,
) -> None:
    counts = accepted[COUNT].to_numpy()
    rows = np.repeat(accepted[ROW].to_numpy(), counts) + numbers_within(counts).astype(np.uint64)
    new = KeptSums(
        accepted.drop_columns([FILE, ROW, SHARD]),
        sums.of(np.repeat(accepted[FILE].to_numpy(), counts), rows).astype(np.uint32),
    )
    pieces = advance(store, shard.before, new, writer, _living(store, item, shard.after), item.policy.wrap)
    kept.noted += len(new.sums)
    kept.pieces[shard.after.shard] = pieces
    kept.bytes_read += sum(it.piece.bytes for it in shard.before if it not in pieces)
    kept.bytes_written += sum(it.piece.bytes for it in pieces if it not in shard.before)


def _living(store: Store, item: ChecksumItem, shard: Shard) -> Living | None:
    """Return which rows the state still remembers; None if it remembers all accepted rows."""
    policy = item.policy
    if item.rows_max is None and policy.admit != "next" and policy.epochs != "fence" and not item.keep:
        return None

    @cache
    def table() -> StateTable:
        return load_table(store, shard.pieces, policy, keep=item.keep)

    return Living(table=table, rows_max=item.rows_max)


def _by_shard(scratch: Scratch, name: str | None) -> dict[int, pa.Table]:
    if name is None:
        return {}
    ranges = read_table(scratch, name)
    shard = ranges[SHARD].to_numpy()
    return {int(shard[first]): ranges.slice(first, end - first) for first, end in pairwise(borders_of(shard))}
