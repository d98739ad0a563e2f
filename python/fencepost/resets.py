"""Finds repeats that cannot be copies, because they carry another timestamp than the row they repeat.

A copy carries the timestamp of what it repeats. So a DUPLICATE row is *retimed* in two cases:

- the row that was kept is at hand and has another timestamp;
- it is not at hand, and the repeat is newer than every row of its entry that was accepted before it.

An entry with retimed rows has probably numbered anew under the same epoch: a device that was reset, a topic that was
recreated (`row-policies`, section 6). Jobs and audits share this rule.

Requires numpy (`fencepost[lake]`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNKNOWN = np.iinfo(np.int64).min
"""The timestamp of what was never accepted."""
ROWS_TOGETHER = 1 << 20
"""Repeats that are looked up at a time."""


def newest_before(
    entries: npt.NDArray[Any], times: Numbers, known: Callable[[npt.NDArray[Any]], Numbers]
) -> tuple[Numbers, npt.NDArray[Any], Numbers]:
    """For each row the newest timestamp that its entry has accepted up to it.

    `entries`: a number or a hash for each row; `times`: the timestamp of each accepted row, UNKNOWN for others;
    `known`: gives for entries, ascending, what they had accepted before the first row.

    Returns the timestamp for each row, the entries in ascending order, and the newest timestamp of each.
    """
    order = np.argsort(entries, kind="stable")
    ordered, running = entries[order], times[order]
    is_start = np.ones(len(ordered), bool)
    is_start[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_start)
    running[starts] = np.maximum(running[starts], known(ordered[starts]))
    # The running maximum within each entry: ranks, raised by entry so that none reaches into the next.
    ranked, ranks = np.unique(running, return_inverse=True)
    raised = np.maximum.accumulate(ranks.reshape(-1) + (np.cumsum(is_start) - 1) * len(ranked))
    newest = np.empty(len(entries), np.int64)
    newest[order] = ranked[raised % len(ranked)] if len(ranked) else running
    return newest, ordered[starts], np.maximum.reduceat(running, starts) if len(starts) else running


class KeptRows:
    """Where the accepted rows of some groups are, as ranges of sequences.

    `groups`: a number for each range, equal for equal (key, epoch); `seqs`, `counts`: its first sequence and its rows.
    Groups whose ranges overlap, because their sequences passed the wrap, are not known: which row a repeat repeats is
    then ambiguous. `unclear` has their numbers.
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
        """For each row the range that holds its sequence, as a place in the constructor's arrays, and how many rows of
        the range come before it; -1 and 0 where none does."""
        low = np.searchsorted(self.groups, groups, side="left")
        high = np.searchsorted(self.groups, groups, side="right")
        first = low.copy()
        while (low < high).any():  # the first range of the group that begins behind the sequence
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
