"""Sums of counts of sequence numbers: times and random ids as numbers leave gaps of up to 2^63 each."""

from __future__ import annotations

from typing import Any


def exact_sum(counts: Any) -> int:
    """Return the sum of a column of counts (int64, none of them negative), even if int64 does not hold it."""
    numbers = counts.to_numpy()
    if not len(numbers) or int(numbers.max()) * len(numbers) < 1 << 63:
        return int(numbers.sum())
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFF_FFFF).sum())
