"""Counts rows of several kinds over time, in a bounded number of bins.

Only bins that contain rows exist, so a few rows of the year 1970 cost a few bins and do not distort the rest. Bins get
wider when there are more than `BINS_MAX`. Their final width depends on the rows only, not on how the rows were split
into calls.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.float64]
"""Exact up to 2^53, and without overflow: gaps between random numbers have up to 2^63 rows each."""
Unit = Literal["ms", "rows"]

KINDS = ("rows", "duplicates", "missing", "stale", "refused")
BINS_MAX = 240
"""Bins of a timeline: one per few pixels of a page."""
SOME_ROWS = 4_096
"""Rows of a call that are sampled to widen the bins before all rows are counted."""
COUNT_MAX = (1 << 63) - (1 << 10)
"""The largest count of a bin: the largest float that int64 holds."""
SPREAD_MAX = 1 << 20
"""A call that spans up to this number of bins is counted in one array."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_TIMES = (
    *(1, 10, 100, _SECOND, 10 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR),
    *(_DAY * days for days in (1, 7, 28, 364, 3_640, 36_400, 364_000, 3_640_000, 36_400_000, 364_000_000)),
)
_WIDTHS: dict[Unit, tuple[int, ...]] = {"ms": _TIMES, "rows": tuple(10**power for power in range(18))}
"""Each width is a multiple of the one before, so bins are merged and never split."""


class Timeline:
    """Rows by kind and bin. `unit`: "ms" for timestamps, "rows" for positions in the input."""

    def __init__(self, unit: Unit) -> None:
        self.unit: Unit = unit
        self.level = 0
        self.bins: Numbers = np.empty(0, np.int64)
        self.counts: Counts = np.empty((0, len(KINDS)))

    @property
    def width(self) -> int:
        return _WIDTHS[self.unit][self.level]

    def add(self, kind: str, at: Numbers, weights: Numbers | None = None) -> None:
        """Count rows of one kind. `at`: the place of each; `weights`: how many rows each stands for (default 1)."""
        if not len(at):
            return
        # A sample of the rows never has more bins than all rows, so widening by it is never too much.
        some = at[:: max(len(at) // SOME_ROWS, 1)]
        while len(np.unique(some // self.width)) > BINS_MAX and self._can_widen:
            self._widen()
        bins, sums = _counted(at // self.width, weights)
        counts = np.zeros((len(bins), len(KINDS)))
        counts[:, KINDS.index(kind)] = sums
        self._put(bins, counts)

    def merge(self, other: Timeline) -> None:
        while self.level < other.level:
            self._widen()
        self._put(other.bins * other.width // self.width, other.counts)

    def copy(self) -> Timeline:
        made = Timeline(self.unit)
        made.level, made.bins, made.counts = self.level, self.bins, self.counts
        return made

    def _put(self, bins: Numbers, counts: Counts) -> None:
        self.bins, self.counts = _summed(np.concatenate([self.bins, bins]), np.concatenate([self.counts, counts]))
        while len(self.bins) > BINS_MAX and self._can_widen:
            self._widen()

    @property
    def _can_widen(self) -> bool:
        return self.level + 1 < len(_WIDTHS[self.unit])

    def _widen(self) -> None:
        before = self.width
        self.level += 1
        self.bins, self.counts = _summed(self.bins * before // self.width, self.counts)

    def table(self) -> pa.Table:
        """Return first, last (inclusive, in the timeline's unit) and one column per kind, ordered by time."""
        firsts = self.bins * self.width
        columns: dict[str, Any] = {"first": firsts, "last": firsts + (self.width - 1)}
        counts = np.minimum(self.counts, COUNT_MAX).astype(np.int64)
        columns |= {kind: counts[:, number] for number, kind in enumerate(KINDS)}
        return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _counted(bins: Numbers, weights: Numbers | None) -> tuple[Numbers, Counts]:
    low, high = int(bins.min()), int(bins.max())
    if high - low < SPREAD_MAX:
        sums = np.bincount(bins - low, weights)
        found = np.flatnonzero(sums)
        return found + low, sums[found].astype(np.float64)
    return _summed(bins, np.ones(len(bins)) if weights is None else weights.astype(np.float64))


def _summed(bins: Numbers, counts: Counts) -> tuple[Numbers, Counts]:
    """Add up the counts of equal bins, ordered by bin."""
    if not len(bins):
        return bins, counts
    order = np.argsort(bins, kind="stable")
    ordered = bins[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return ordered[starts], np.add.reduceat(counts[order], starts, axis=0)
