"""In which order the runs of a shard are judged: an order that gives the same, and costs least.

Rows are judged by (file, row). Where a key's rows are scattered over files, each file leaves holes that the next ones
fill, and a hole costs ten times what a row costs that goes on where the last one ended. Under policies that admit any
order only rows of one identity can take something from each other, so runs that share no position may change places:
they are judged by key and sequence, and only those that overlap stay in the order that they came in.

Where rows come in waves, each wave may be judged so as long as all before it were: sequences then lie where they say.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import StateTable
from fencepost.lake.scan import LENGTH
from fencepost.policy import Policy

BORDER_MAX = 1 << 20
"""The border zone of the wrap is that wide, or a quarter of the sequence space (`row-policies`, section 3)."""

Numbers = npt.NDArray[np.int64]


def calm_order(runs: pa.Table, table: StateTable, is_calm: bool = False) -> Numbers | None:
    """Places of the runs in an order in which holes are rare; None where the order may matter, or is not worth it.

    `is_calm`: whether all that the table knows was judged in such an order.

    It may matter where a position depends on what came before it (the border of the wrap, entries that are there
    already, jumps that are too far), and for what is told of rows below the highest epoch: keys of several epochs keep
    their order.
    """
    policy = table.policy
    if (len(table) and not is_calm) or not is_order_free(policy) or len(table.keep):
        return None
    positions = _positions(runs, policy)
    return None if positions is None else _by_clusters(*positions)


def overlapping(runs: pa.Table, policy: Policy) -> Numbers | None:
    """Places of the runs that share a position with another one; None where positions do not tell it.

    `policy`: one that admits any order.
    """
    positions = _positions(runs, policy)
    if positions is None:
        return None
    first, more, *_ = positions
    order, first = _sorted(first)
    last = np.maximum.accumulate(first + more[order])
    begins = np.append(True, first[1:] > last[:-1])
    is_alone = begins & np.append(begins[1:], True)
    together: Numbers = order[~is_alone]
    return together


def _positions(runs: pa.Table, policy: Policy) -> tuple[Numbers, Numbers, int, int] | None:
    """(first position of each run among those of all keys, rows that follow its first, widths of epochs and of
    sequences); None where these are too many, or not the same in any order."""
    columns = policy.columns
    seq = runs[columns.seq].to_numpy().astype(np.int64)
    more = runs[LENGTH].to_numpy().astype(np.int64) - 1
    last = int((seq + more).max()) if len(seq) else 0
    border = border_of(policy)
    if border is not None and last >= border:
        return None
    keys = [_as_numbers(runs[name]) for name in (*columns.parts("pid"), *columns.parts("partition"))]
    epoch = np.zeros(len(runs), np.int64) if columns.epoch is None else runs[columns.epoch].to_numpy()
    widths = [_width(column) for column in (*keys, epoch)] + [last + 1]
    if not len(seq) or np.prod([float(width) for width in widths]) >= 2.0**62:
        return None
    return _packed([*keys, epoch, seq], widths), more, widths[-2], widths[-1]


def _as_numbers(column: pa.ChunkedArray) -> Numbers:
    """Parts of keys as they are, or where they are no integers a number for each value."""
    if not pa.types.is_integer(column.type):
        chunks = column.dictionary_encode().unify_dictionaries().chunks
        column = pa.chunked_array([chunk.indices for chunk in chunks], pa.int32())
    numbers: Numbers = column.to_numpy()
    return numbers


def border_of(policy: Policy) -> int | None:
    """The first sequence number of the zone before the wrap, where the lap of a row depends on what came before it."""
    return None if policy.wrap is None else policy.wrap - min(policy.wrap // 4, BORDER_MAX)


def is_order_free(policy: Policy) -> bool:
    """Whether only rows of one identity can take something from each other, as long as no sequence passes the wrap."""
    is_bounded = policy.max_jump is not None or policy.reach is not None or policy.intervals_max is not None
    return policy.admit == "any" and policy.epochs != "fence" and not is_bounded


def _width(column: Numbers) -> int:
    return int(column.max()) - int(column.min()) + 1 if len(column) else 0


def _packed(columns: list[Numbers], widths: list[int]) -> Numbers:
    """The place of each run's first position among all positions, in the order of key, epoch and sequence."""
    *keys, seq = columns
    packed = np.zeros(len(seq), np.int64)
    for column, width in zip(keys, widths, strict=False):
        packed *= width
        packed += column.astype(np.int64) - column.min().astype(np.int64)
    packed *= widths[-1]
    packed += seq
    return packed


def _by_clusters(first: Numbers, more: Numbers, epochs: int, seqs: int) -> Numbers:
    """Runs by their first position; those that overlap, and those of a key of several epochs, as they came.

    `more`: how many rows follow a run's first; `epochs`, `seqs`: how many positions are of one key, by `_packed`.
    """
    order, first = _sorted(first)
    entry = first // seqs
    key = entry // epochs if epochs > 1 else entry
    of_key = np.append(True, key[1:] != key[:-1])
    last = first + more[order] if more.any() else first
    begins = of_key | np.append(True, first[1:] > np.maximum.accumulate(last)[:-1])
    if epochs > 1:
        starts = np.flatnonzero(of_key)
        ends = np.append(starts[1:], len(key)) - 1
        begins &= of_key | np.repeat(entry[starts] == entry[ends], ends - starts + 1)
    # Within a cluster, by place.
    is_alone = begins & np.append(begins[1:], True)
    together = np.flatnonzero(~is_alone)
    cluster = np.cumsum(begins)[together]
    order[together] = order[together][np.lexsort((order[together], cluster))]
    return order


def _sorted(values: Numbers) -> tuple[Numbers, Numbers]:
    """(places of the values in ascending order, the values so). Numbers sort faster than places: both go into one,
    where 63 bits are enough."""
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
