"""Finds repeats that cannot be copies because their timestamp differs from that of the row they repeat.

A copy has the timestamp of the row it repeats. A DUPLICATE row is *retimed* in two cases:

- the kept row is known and has another timestamp;
- the kept row is not known, and the repeat is newer than every row that its entry accepted before it.

An entry with retimed rows has probably restarted its numbers under the same epoch: a device was reset or a topic was
recreated (`row-policies`, section 6). Jobs and audits share this rule.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNKNOWN = np.iinfo(np.int64).min
"""The timestamp of an entry that has not accepted any row."""
ROWS_TOGETHER = 1 << 20
"""Repeats to look up at a time."""


def milliseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps or integers as milliseconds since 1970, rounded down, as tables read them.

    Not by Arrow's rounding, which uses local times: it does not know the hour that a zone has twice in autumn.
    """
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64(), safe=False)
    ticks = column.cast(pa.int64())
    if column.type.unit == "s":
        return pc.multiply(ticks, 1000)
    per_ms = {"ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]
    return ticks if per_ms == 1 else pa.chunked_array((_floor_divide(it, per_ms) for it in ticks.chunks), pa.int64())


def _floor_divide(chunk: pa.Array, by: int) -> pa.Array:
    floored = pa.array(chunk.fill_null(0).to_numpy() // by)
    return pc.if_else(chunk.is_valid(), floored, None) if chunk.null_count else floored


def newest_before(
    entries: npt.NDArray[Any], times: Numbers, known: Callable[[npt.NDArray[Any]], Numbers]
) -> tuple[Numbers, npt.NDArray[Any], Numbers]:
    """Return for each row the newest timestamp that its entry has accepted up to and including it.

    Args:
        entries: A number or hash of each row's entry.
        times: The timestamp of each accepted row; UNKNOWN for other rows.
        known: Returns, for entries in ascending order, the newest timestamp accepted before the first row.

    Returns:
        The timestamp for each row, the entries in ascending order, and the newest timestamp of each.
    """
    order = np.argsort(entries, kind="stable")
    ordered, running = entries[order], times[order]
    is_start = np.ones(len(ordered), bool)
    is_start[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_start)
    running[starts] = np.maximum(running[starts], known(ordered[starts]))
    # The running maximum within each entry: ranks get an offset per entry, so that no entry affects the next.
    ranked, ranks = np.unique(running, return_inverse=True)
    raised = np.maximum.accumulate(ranks.reshape(-1) + (np.cumsum(is_start) - 1) * len(ranked))
    newest = np.empty(len(entries), np.int64)
    newest[order] = ranked[raised % len(ranked)] if len(ranked) else running
    return newest, ordered[starts], np.maximum.reduceat(running, starts) if len(starts) else running


class KeptRows:
    """Locates accepted rows of groups by ranges of sequences.

    `groups`: the group number of each range; equal for equal (key, epoch). `seqs`, `counts`: the first sequence and the
    number of rows of each range. Groups with overlapping ranges (their sequences wrapped) are excluded, because the row
    that a repeat repeats is ambiguous. `unclear` lists these groups.
    """

    def __init__(self, groups: Numbers, seqs: Numbers, counts: Numbers) -> None:
        self.places = np.lexsort((seqs, groups))
        self.groups, self.seqs, self.counts = groups[self.places], seqs[self.places], counts[self.places]
        last = self.seqs + (self.counts - 1)
        is_overlap = np.zeros(len(groups), bool)
        is_overlap[1:] = (self.groups[1:] == self.groups[:-1]) & (self.seqs[1:] <= last[:-1])
        self.unclear = np.unique(self.groups[is_overlap])
        if is_overlap.any():
            is_clear = ~np.isin(self.groups, self.unclear)
            self.places, self.groups = self.places[is_clear], self.groups[is_clear]
            self.seqs, self.counts = self.seqs[is_clear], self.counts[is_clear]

    def find(self, groups: Numbers, seqs: Numbers) -> tuple[Numbers, Numbers]:
        """Return for each row the range that holds its sequence, and the number of rows of the range before it.

        Ranges are indexes into the constructor's arrays. Returns -1 and 0 if no range holds the sequence.
        """
        low = np.searchsorted(self.groups, groups, side="left")
        high = np.searchsorted(self.groups, groups, side="right")
        first = low.copy()
        while (low < high).any():  # Binary search: the first range of the group that begins after the sequence.
            middle = (low + high) // 2
            is_open = low < high
            is_before = np.zeros(len(low), bool)
            is_before[is_open] = self.seqs[middle[is_open]] <= seqs[is_open]
            low = np.where(is_open & is_before, middle + 1, low)
            high = np.where(is_open & ~is_before, middle, high)
        places, offsets = np.full(len(groups), -1, np.int64), np.zeros(len(groups), np.int64)
        has_range = np.flatnonzero(low > first)
        at = low[has_range] - 1
        before = seqs[has_range] - self.seqs[at]
        is_held = before < self.counts[at]
        places[has_range[is_held]] = self.places[at[is_held]]
        offsets[has_range[is_held]] = before[is_held]
        return places, offsets
