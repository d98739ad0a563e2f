"""Checksums of rows that runs have kept, with which later runs compare repeats.

Each shard has some pieces in the state's segment files, the oldest first. A piece contains ranges of sequences by key
and epoch, and 4 bytes per row: the low half of `fencepost.content.checksums`. Different rows have equal checksums with
a probability of 2^-32.

If several pieces contain a sequence, the newest one counts. That happens if sequences wrap, or if a key was evicted and
accepted again. Pieces are merged like the levels of a log-structured merge tree: each has at least twice as many rows
as the next one. A merge drops rows that the state has forgotten. `docs/state-format.md` describes the bytes.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

import fencepost
from fencepost._native import StateTable
from fencepost.errors import SnapshotError
from fencepost.policy import Columns
from fencepost.resets import ROWS_TOGETHER, KeptRows
from fencepost.state.changelog import numbered
from fencepost.state.decision import Piece, SumPiece
from fencepost.state.segment_files import SegmentWriter, read_piece
from fencepost.state.stores import Store

MAGIC = b"FPSUMS\x00\x01"
"""The last byte is the version of the format and of the checksum."""
SEQ, COUNT = "first_seq", "count"
"""Columns of a range, in addition to its key."""

Numbers = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class KeptSums:
    """Checksums of rows by key and sequence."""

    ranges: pa.Table
    """Key columns as in `StateTable.entries`, `epoch` if the policy reads it, SEQ and COUNT (int64)."""
    sums: Sums
    """The checksums of the ranges' rows, range by range."""

    @property
    def seqs(self) -> Numbers:
        return np.asarray(self.ranges[SEQ].to_numpy())

    @property
    def counts(self) -> Numbers:
        return np.asarray(self.ranges[COUNT].to_numpy())

    @property
    def keys(self) -> pa.Table:
        return self.ranges.drop_columns([SEQ, COUNT])


# Encoding


def encode(kept: KeptSums) -> bytes:
    """Encode a piece."""
    table = pa.BufferOutputStream()
    ranges = kept.ranges.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(table, ranges.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(ranges)
    head = table.getvalue().to_pybytes()
    return b"".join((MAGIC, len(head).to_bytes(8, "little"), head, kept.sums.astype("<u4").tobytes()))


def decode(data: bytes, place: str) -> KeptSums:
    """Decode the result of `encode`. Raises SnapshotError for another format."""
    if data[: len(MAGIC)] != MAGIC:
        reason = f"it begins with {data[: len(MAGIC)]!r}, this version of fencepost reads checksums of {MAGIC!r}"
        raise SnapshotError(f"{place}: {reason}", reason=reason)
    begin = len(MAGIC) + 8
    end = begin + int.from_bytes(data[len(MAGIC) : begin], "little")
    ranges = pa.ipc.open_stream(pa.py_buffer(data[begin:end])).read_all()
    return KeptSums(ranges, np.frombuffer(data, "<u4", offset=end))


def read_sums(store: Store, piece: Piece) -> KeptSums:
    """Read a piece. Raises SnapshotError if it is missing or was changed."""
    return decode(read_piece(store, piece), f"{store.uri}/{piece.file}, byte {piece.offset}")


# Merging


def joined(parts: Sequence[KeptSums], wrap: int | None = None) -> KeptSums:
    """Merge parts, sorted by key and sequence. If a sequence occurs several times, the last one counts.

    `wrap`: sequences run from 0 to wrap - 1; a range may cross the wrap. Memory: 32 bytes per row.
    """
    ranges = pa.concat_tables([it.ranges for it in parts], promote_options="permissive")
    sums = np.concatenate([it.sums for it in parts])
    counts = np.asarray(ranges[COUNT].to_numpy())
    line, seqs, counts, starts = _cut_at_wrap(ranges[SEQ].to_numpy(), counts, np.cumsum(counts) - counts, wrap)
    rank, first_line = _ranked(ranges.drop_columns([SEQ, COUNT]), line)
    order = np.lexsort((seqs, rank))
    rank, seqs, counts, starts = rank[order], seqs[order], counts[order], starts[order]
    is_same = rank[1:] == rank[:-1]
    is_overlap = is_same & (seqs[1:] <= seqs[:-1] + (counts[:-1] - 1))
    if is_overlap.any():
        rank, seqs, counts, starts = _newest(rank, seqs, counts, starts, np.unique(rank[1:][is_overlap]))
    is_first = np.ones(len(rank), bool)
    is_first[1:] = (rank[1:] != rank[:-1]) | (seqs[1:] - 1 != seqs[:-1] + (counts[:-1] - 1))
    firsts = np.flatnonzero(is_first)
    found = ranges.take(pa.array(first_line[rank[firsts]]))
    total = np.add.reduceat(counts, firsts) if len(firsts) else counts
    return KeptSums(_with(found, seqs[firsts], total), sums[_rows(starts, counts)])


def _cut_at_wrap(
    seqs: Numbers, counts: Numbers, starts: Numbers, wrap: int | None
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return (line, sequence, rows, index of the first checksum) of each range, split if it crosses the wrap."""
    lines = np.arange(len(seqs))
    if wrap is None:
        return lines, seqs, counts, starts
    seqs = seqs % wrap
    behind = np.maximum(seqs + counts - wrap, 0)
    cut = np.flatnonzero(behind)
    before = counts - behind
    return (
        np.concatenate([lines, cut]),
        np.concatenate([seqs, np.zeros(len(cut), np.int64)]),
        np.concatenate([before, behind[cut]]),
        np.concatenate([starts, (starts + before)[cut]]),
    )


def _ranked(keys: pa.Table, lines: Numbers) -> tuple[Numbers, Numbers]:
    """Return (the rank of each line's key among all keys, a line with the key of each rank)."""
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]).to_numpy().astype(np.int64)
    numbers = numbered(keys)[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = numbers[1:] != numbers[:-1]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(is_new) - 1
    return rank[lines], order[is_new]


def _newest(
    rank: Numbers, seqs: Numbers, counts: Numbers, starts: Numbers, overlapping: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Remove repeated sequences, row by row for the keys that have any."""
    is_row = np.isin(rank, overlapping)
    some_counts = counts[is_row]
    offsets = _rows(np.zeros(len(some_counts), np.int64), some_counts)
    ranks = np.repeat(rank[is_row], some_counts)
    numbers, places = (np.repeat(it[is_row], some_counts) + offsets for it in (seqs, starts))
    order = np.lexsort((places, numbers, ranks))  # a later index belongs to a newer row
    ranks, numbers, places = ranks[order], numbers[order], places[order]
    is_last = np.ones(len(order), bool)
    is_last[:-1] = (ranks[1:] != ranks[:-1]) | (numbers[1:] != numbers[:-1])
    ones = np.ones(int(is_last.sum()), np.int64)
    others = (rank[~is_row], seqs[~is_row], counts[~is_row], starts[~is_row])
    rows = (ranks[is_last], numbers[is_last], ones, places[is_last])
    rank, seqs, counts, starts = (np.concatenate(it) for it in zip(others, rows, strict=True))
    order = np.lexsort((seqs, rank))
    return rank[order], seqs[order], counts[order], starts[order]


def _rows(starts: Numbers, counts: Numbers) -> Numbers:
    """Return the indexes of all rows of some ranges."""
    ends = np.cumsum(counts)
    found: Numbers = np.repeat(starts - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
    return found


def _with(ranges: pa.Table, seqs: Numbers, counts: Numbers) -> pa.Table:
    keys = ranges.drop_columns([SEQ, COUNT])
    return keys.append_column(SEQ, pa.array(seqs, pa.int64())).append_column(COUNT, pa.array(counts, pa.int64()))


@dataclass(frozen=True, kw_only=True)
class Living:
    """Which rows of a shard the state still remembers, according to its table."""

    table: Callable[[], StateTable]
    rows_max: int | None
    """Number of newest positions per key. None: all that the state remembers."""

    def of(self, kept: KeptSums) -> KeptSums:
        """Return the remembered rows of `kept`, which must be `joined`."""
        table = self.table()
        if not len(table):
            return KeptSums(kept.ranges.slice(0, 0), kept.sums[:0])
        line, low, high = _remembered(kept, pa.table(table.entries()), self.rows_max, table.policy.wrap)
        seqs, counts = kept.seqs[line], kept.counts[line]
        begin, end = np.maximum(seqs, low), np.minimum(seqs + (counts - 1), high)
        is_any = begin <= end
        line, begin, end = line[is_any], begin[is_any], end[is_any]
        if len(line) == len(kept.ranges) and int((end - begin + 1).sum()) == len(kept.sums):
            return kept
        starts = (np.cumsum(kept.counts) - kept.counts)[line] + (begin - kept.seqs[line])
        ranges = _with(kept.ranges.take(pa.array(line)), begin, end - begin + 1)
        return KeptSums(ranges, kept.sums[_rows(starts, end - begin + 1)])


def _remembered(
    kept: KeptSums, entries: pa.Table, rows_max: int | None, wrap: int | None
) -> tuple[Numbers, Numbers, Numbers]:
    """Return (line of a range, first and last remembered sequence), ascending; two for ranges around the wrap."""
    names = kept.keys.column_names
    both = [table.select(names).replace_schema_metadata(None) for table in (kept.keys, entries)]
    numbers = numbered(pa.concat_tables(both, promote_options="permissive"))
    of_number = np.full(int(numbers.max(initial=-1)) + 1, -1)
    of_number[numbers[len(kept.ranges) :]] = np.arange(len(entries))
    entry = of_number[numbers[: len(kept.ranges)]]
    line = np.flatnonzero(entry >= 0)
    entry = entry[line]
    first, last = (np.asarray(entries[name].to_numpy())[entry] for name in ("first", "last"))
    if rows_max is not None:
        first = np.maximum(first, last - (rows_max - 1))
    if wrap is None:
        return line, first, last
    is_all = last - first >= wrap - 1
    low, high = np.where(is_all, 0, first % wrap), np.where(is_all, wrap - 1, last % wrap)
    split = np.flatnonzero(low > high)
    lines = np.concatenate([line, line[split]])
    ends = np.where(low > high, wrap - 1, high)
    lows, highs = np.concatenate([low, np.zeros(len(split), np.int64)]), np.concatenate([ends, high[split]])
    order = np.lexsort((lows, lines))
    return lines[order], lows[order], highs[order]


def advance(
    store: Store,
    before: Sequence[SumPiece],
    new: KeptSums,
    writer: SegmentWriter,
    living: Living | None,
    wrap: int | None,
) -> tuple[SumPiece, ...]:
    """Return a shard's pieces after a run has kept `new`. Trailing pieces are merged into the new one.

    `living`: the rows to keep; None for all. Rows beyond its `rows_max` stay while there are older pieces, which may
    have their sequences from before: a later run with a higher `rows_max` would find those. Raises SnapshotError.
    """
    kept, parts, rows = list(before), [new], len(new.sums)
    while kept and kept[-1].rows < 2 * rows:
        it = kept.pop()
        parts.append(read_sums(store, it.piece))
        rows += it.rows
    found = joined(parts[::-1], wrap)
    if living is not None and kept:
        living = replace(living, rows_max=None) if len(parts) > 1 else None
    if living is not None and (living.rows_max is not None or len(parts) > 1):
        found = living.of(found)
    return (*kept, *add(found, writer))


def compacted(store: Store, before: Sequence[SumPiece], living: Living, writer: SegmentWriter) -> tuple[SumPiece, ...]:
    """Return a shard's pieces without rows that the state has forgotten. Raises SnapshotError."""
    if not before:
        return ()
    found = living.of(joined([read_sums(store, it.piece) for it in before]))
    return tuple(before) if len(found.sums) == sum(it.rows for it in before) else add(found, writer)


def dealt(kept: KeptSums, count: int, columns: Columns) -> Iterator[tuple[int, KeptSums]]:
    """Split into `count` shards: yields (shard, its rows). `columns`: the key columns of the ranges."""
    numbers = np.asarray(fencepost.shards(kept.ranges, count, replace(columns, epoch=None, seq=SEQ)))
    starts = np.cumsum(kept.counts) - kept.counts
    for shard in np.unique(numbers).tolist():
        some = np.flatnonzero(numbers == shard)
        yield shard, KeptSums(kept.ranges.take(pa.array(some)), kept.sums[_rows(starts[some], kept.counts[some])])


def add(kept: KeptSums, writer: SegmentWriter) -> tuple[SumPiece, ...]:
    """Write a new piece. Returns none if there are no rows."""
    return (SumPiece(rows=len(kept.sums), piece=writer.add(encode(kept))),) if len(kept.sums) else ()


# Lookup


def find(
    store: Store, pieces: Sequence[SumPiece], wanted: pa.Table, wrap: int | None, living: Living | None = None
) -> tuple[npt.NDArray[np.bool_], Sums, int]:
    """Look up the checksums of rows.

    Reads the newest pieces first, and no more than needed. Memory: 5 bytes per row, and a piece.

    Args:
        store: The state's store.
        pieces: The pieces of the shard.
        wanted: Ranges as in `KeptSums`, which may cross the wrap.
        wrap: The policy's wrap.
        living: The rows of the pieces that count; None for all. An older piece may contain a wrapped sequence that a
            newer piece has dropped.

    Returns (whether each row has a checksum, the checksum, bytes read). Raises SnapshotError.
    """
    counts = np.asarray(wanted[COUNT].to_numpy())
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    is_found, sums = np.zeros(total, bool), np.zeros(total, np.uint32)
    bytes_read = 0
    for it in reversed(pieces):
        if is_found.all():
            break
        bytes_read += it.piece.bytes
        kept = read_sums(store, it.piece)
        _find_in(kept if living is None else living.of(kept), wanted, ends - counts, wrap, is_found, sums)
    return is_found, sums, bytes_read


def _find_in(
    kept: KeptSums,
    wanted: pa.Table,
    first_rows: Numbers,
    wrap: int | None,
    is_found: npt.NDArray[np.bool_],
    sums: Sums,
) -> None:
    """Fill in the rows that this piece contains and that were not found yet."""
    keys = [table.replace_schema_metadata(None) for table in (wanted.select(kept.keys.column_names), kept.keys)]
    numbers = numbered(pa.concat_tables(keys, promote_options="permissive"))
    of_wanted, of_kept = numbers[: len(wanted)], numbers[len(wanted) :]
    known = KeptRows(of_kept, kept.seqs, kept.counts)
    starts = np.cumsum(kept.counts) - kept.counts
    seqs = np.asarray(wanted[SEQ].to_numpy())
    for rows in _some(np.flatnonzero(~is_found)):
        line = np.searchsorted(first_rows, rows, side="right") - 1
        sought = seqs[line] + (rows - first_rows[line])
        places, behind = known.find(of_wanted[line], sought if wrap is None else sought % wrap)
        has = places >= 0
        sums[rows[has]] = kept.sums[starts[places[has]] + behind[has]]
        is_found[rows[has]] = True


def _some(rows: Numbers) -> Iterator[Numbers]:
    return (rows[first : first + ROWS_TOGETHER] for first in range(0, len(rows), ROWS_TOGETHER))
