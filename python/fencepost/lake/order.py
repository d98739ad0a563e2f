"""Finds a cheaper order for judging a shard's spans that gives the same verdicts.

Rows are judged by (file, row). If a key's rows are scattered over files, each file leaves holes that later ones fill,
and a hole costs ten times as much as a row that continues a sequence. Under policies that accept any order, rows affect
each other only if they have the same identity. So spans without a common position may be reordered: they are judged by
key and sequence, and only overlapping spans keep their order.

If rows come in waves, each wave may be reordered while all earlier waves were, because sequences then equal positions.

Where sequences have gaps (a filtered topic), every order leaves the same holes, and sorting costs as much as judging.
A sample of the keys decides whether it pays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import StateTable
from fencepost.lake.scan import LENGTH
from fencepost.policy import Policy

BORDER_MAX = 1 << 20
"""Maximum width of the border zone of the wrap. It is at most a quarter of the sequence space (`row-policies`, section
3)."""
SAMPLED_MIN = 1 << 16
"""Minimum number of spans for which a sample is taken. Fewer are sorted at once."""
SAMPLE = 64
"""The sample has about one key in so many."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _SpanNumbers:
    """Spans as numbers."""

    keys: list[Numbers]
    """The parts of the key: integers unchanged, other values by dictionary index."""
    epoch: Numbers
    seq: Numbers
    rows: Numbers

    @staticmethod
    def of(spans: pa.Table, policy: Policy) -> _SpanNumbers:
        columns = policy.columns
        return _SpanNumbers(
            [_as_numbers(spans[name]) for name in columns.keys],
            np.zeros(len(spans), np.int64) if columns.epoch is None else spans[columns.epoch].to_numpy(),
            spans[columns.seq].to_numpy(),
            spans[LENGTH].to_numpy(),
        )

    def sample(self) -> _SpanNumbers:
        """Return all spans of some keys, chosen by a hash."""
        hashed = np.zeros(len(self.seq), np.uint64)
        for part in self.keys:
            hashed ^= part.astype(np.uint64)
            hashed *= np.uint64(0x9E3779B97F4A7C15)
        wanted = np.flatnonzero(hashed >> np.uint64(40) < (1 << 24) // SAMPLE)
        return _SpanNumbers([it[wanted] for it in self.keys], self.epoch[wanted], self.seq[wanted], self.rows[wanted])

    def positions(self, policy: Policy) -> _Positions | None:
        """Return None if there are too many positions, or if they depend on the order."""
        more = self.rows.astype(np.int64) - 1
        last = int((more + self.seq).max()) if len(more) else 0
        border = border_of(policy)
        if border is not None and last >= border:
            return None
        widths = [_width(column) for column in (*self.keys, self.epoch)] + [last + 1]
        if not len(more) or np.prod([float(width) for width in widths]) >= 2.0**62:
            return None
        return _Positions(_packed([*self.keys, self.epoch, self.seq], widths), more, widths[-2], widths[-1])


@dataclass(frozen=True)
class _Positions:
    """Where spans lie among all positions of all keys, which are ordered by key, epoch and sequence."""

    first: Numbers
    """The first position of each span."""
    more: Numbers
    """Number of rows after the first."""
    epochs: int
    seqs: int
    """Number of epochs per key, and of positions per epoch."""

    def mostly_gaps(self) -> bool:
        """Return whether most spans, in sorted order, neither follow nor overlap the one before in their entry."""
        order, first = _sorted(self.first)
        if len(first) < 2:
            return False
        last = np.maximum.accumulate(first + self.more[order])
        is_of_entry = first[1:] // self.seqs == first[:-1] // self.seqs
        return bool((is_of_entry & (first[1:] > last[:-1] + 1)).mean() > 0.5)


def hole_avoiding_order(spans: pa.Table, table: StateTable, is_reorderable: bool = False) -> Numbers | None:
    """Return indexes that sort the spans so that holes are rare. None if the order may matter or sorting does not pay.

    `is_reorderable`: whether everything in the table was judged in such an order.

    The order may matter if a position depends on earlier rows (the border of the wrap, existing entries, limited
    jumps). It also matters for rows below the highest epoch, so keys with several epochs keep their order.
    """
    policy = table.policy
    if (len(table) and not is_reorderable) or not is_order_free(policy) or len(table.keep):
        return None
    numbers = _SpanNumbers.of(spans, policy)
    if len(spans) >= SAMPLED_MIN:
        sampled = numbers.sample().positions(policy)
        if sampled is not None and sampled.mostly_gaps():
            return None
    positions = numbers.positions(policy)
    return None if positions is None else _by_clusters(positions)


def overlapping(spans: pa.Table, policy: Policy) -> Numbers | None:
    """Return indexes of the spans that share a position with another span; None if positions are not comparable.

    `policy`: must accept any order.
    """
    positions = _SpanNumbers.of(spans, policy).positions(policy)
    if positions is None:
        return None
    order, first = _sorted(positions.first)
    last = np.maximum.accumulate(first + positions.more[order])
    begins = np.append(True, first[1:] > last[:-1])
    is_alone = begins & np.append(begins[1:], True)
    together: Numbers = order[~is_alone]
    return together


def _as_numbers(column: pa.ChunkedArray) -> Numbers:
    if not pa.types.is_integer(column.type):
        chunks = column.dictionary_encode().unify_dictionaries().chunks
        column = pa.chunked_array([chunk.indices for chunk in chunks], pa.int32())
    numbers: Numbers = column.to_numpy()
    return numbers


def border_of(policy: Policy) -> int | None:
    """Return the first sequence number of the zone before the wrap, where a row's lap depends on earlier rows."""
    return None if policy.wrap is None else policy.wrap - min(policy.wrap // 4, BORDER_MAX)


def is_order_free(policy: Policy) -> bool:
    """Return whether rows affect each other only if they have the same identity, as long as no sequence wraps."""
    is_bounded = policy.max_jump is not None or policy.reach is not None or policy.intervals_max is not None
    return policy.admit == "any" and policy.epochs != "fence" and not is_bounded


def _width(column: Numbers) -> int:
    return int(column.max()) - int(column.min()) + 1 if len(column) else 0


def _packed(columns: list[Numbers], widths: list[int]) -> Numbers:
    """Return the number of each span's first position among all positions, ordered by key, epoch and sequence."""
    *keys, seq = columns
    packed = np.zeros(len(seq), np.int64)
    for column, width in zip(keys, widths, strict=False):
        packed *= width
        packed += column.astype(np.int64) - column.min().astype(np.int64)
    packed *= widths[-1]
    packed += seq.astype(np.int64)
    return packed


def _by_clusters(positions: _Positions) -> Numbers:
    """Sort spans by first position. Overlapping spans, and those of keys with several epochs, keep their order."""
    order, first = _sorted(positions.first)
    more, epochs = positions.more, positions.epochs
    entry = first // positions.seqs
    key = entry // epochs if epochs > 1 else entry
    of_key = np.append(True, key[1:] != key[:-1])
    last = first + more[order] if more.any() else first
    begins = of_key | np.append(True, first[1:] > np.maximum.accumulate(last)[:-1])
    if epochs > 1:
        starts = np.flatnonzero(of_key)
        ends = np.append(starts[1:], len(key)) - 1
        begins &= of_key | np.repeat(entry[starts] == entry[ends], ends - starts + 1)
    # Sort by index within a cluster.
    is_alone = begins & np.append(begins[1:], True)
    together = np.flatnonzero(~is_alone)
    cluster = np.cumsum(begins)[together]
    order[together] = order[together][np.lexsort((order[together], cluster))]
    return order


def _sorted(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return (indexes that sort the values, the sorted values).

    Sorts value and index packed into one number if 63 bits are enough, because that is faster.
    """
    bits = len(values).bit_length()
    if int(values.max()) >> (63 - bits):
        order = np.argsort(values)
        return order, values[order]
    both = values << bits
    both |= np.arange(len(values))
    both.sort()
    order = both & ((1 << bits) - 1)
    both >>= bits
    return order, both
