"""In which order the runs of a shard are judged: an order that gives the same, and costs least.

Rows are judged by (file, row). Where a key's rows are scattered over files, each file leaves holes that the next ones
fill, and a hole costs ten times what a row costs that goes on where the last one ended. Under policies that admit any
order only rows of one identity can take something from each other, so runs that share no position may change places:
they are judged by key and sequence, and only those that overlap stay in the order that they came in.
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


def calm_order(runs: pa.Table, table: StateTable) -> Numbers | None:
    """Places of the runs in an order in which holes are rare; None where the order may matter, or is not worth it.

    It may matter where a position depends on what came before it (the border of the wrap, entries that are there
    already, jumps that are too far), and for what is told of rows below the highest epoch: keys of several epochs keep
    their order.
    """
    policy = table.policy
    if len(table) or not _is_order_free(policy) or len(table.keep):
        return None
    columns = policy.columns
    if len(columns.parts("pid")) != 1 or len(columns.parts("partition")) > 1:
        return None
    names = [*columns.parts("pid"), *columns.parts("partition")]
    if not all(pa.types.is_integer(runs[name].type) for name in names):
        return None
    seq = runs[columns.seq].to_numpy().astype(np.int64)
    last = seq + (runs[LENGTH].to_numpy().astype(np.int64) - 1)
    if policy.wrap is not None and len(last) and last.max() >= policy.wrap - min(policy.wrap // 4, BORDER_MAX):
        return None
    keys = [runs[name].to_numpy() for name in names]
    epoch = np.zeros(len(runs), np.int64) if columns.epoch is None else runs[columns.epoch].to_numpy()
    packed = _packed([*keys, epoch], seq, last)
    return None if packed is None else _by_clusters(epoch, *packed)


def _is_order_free(policy: Policy) -> bool:
    is_bounded = policy.max_jump is not None or policy.reach is not None or policy.intervals_max is not None
    return policy.admit == "any" and policy.epochs != "fence" and not is_bounded


def _packed(columns: list[Numbers], seq: Numbers, last: Numbers) -> tuple[Numbers, Numbers, Numbers] | None:
    """(key, first, last) of each run as one number each, in the order of key, epoch and sequence; None where 63 bits
    are too few. The key is without epoch."""
    if not len(seq):
        return None
    widths = [int(column.max()) - int(column.min()) + 1 for column in (*columns, last)]
    widths[-1] = int(last.max()) + 1
    if np.prod([float(width) for width in widths]) >= 2.0**62:
        return None
    key = np.zeros(len(seq), np.int64)
    for column, width in zip(columns[:-1], widths, strict=False):
        key = key * width + (column.astype(np.int64) - int(column.min()))
    epoch = columns[-1].astype(np.int64) - int(columns[-1].min())
    base = (key * widths[-2] + epoch) * widths[-1]
    return key, base + seq, base + last


def _by_clusters(epoch: Numbers, key: Numbers, first: Numbers, last: Numbers) -> Numbers:
    """Runs by their first position; those that overlap, and those of a key of several epochs, as they came."""
    order = np.argsort(first)
    epoch, key, first, last = epoch[order], key[order], first[order], last[order]
    of_key = np.append(True, key[1:] != key[:-1])
    starts = np.flatnonzero(of_key)
    ends = np.append(starts[1:], len(key)) - 1
    has_several = np.repeat(epoch[starts] != epoch[ends], ends - starts + 1)
    is_apart = np.append(True, first[1:] > np.maximum.accumulate(last)[:-1])
    begins = of_key | (is_apart & ~has_several)
    # Within a cluster, by place: the sort above does not keep equal ones in order.
    is_alone = begins & np.append(begins[1:], True)
    together = np.flatnonzero(~is_alone)
    cluster = np.cumsum(begins)[together]
    order[together] = order[together][np.lexsort((order[together], cluster))]
    return order
