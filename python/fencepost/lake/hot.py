"""Hot shards: shards with more spans than a task should hold. Several tasks judge one, and one writes its state.

Under a policy that accepts any order, a row's verdict depends only on the rows of its position (key, epoch and sequence
number), and on the state of that position. So rows can be split among tasks by position:

| stage | task for | work |
|---|---|---|
| deal | some record batches | cuts spans at block boundaries of sequence numbers, assigns blocks to parts of shards |
| judge | a part | computes verdicts against the previous state, and the accepted spans |
| judge | some shards | merges the accepted spans of all parts: the new state and the missing ranges |

The last stage is `judge` for settled shards. Accepted spans are few if sequences have few holes: after merging, there
is one per hole.

Two results depend on more than one position, and are handled separately:

- The count of rows below the highest epoch depends on the order of all rows of the key. Keys with several epochs stay
  whole: one part has all of their rows. `BUCKETS` hashes identify them.
- Near the wrap of sequence numbers, the lap of a row depends on the rows before it. One task judges a shard where this
  may happen, like a normal shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict, shards
from fencepost.lake.conflicts import find_pairs
from fencepost.lake.judge import ExchangeFiles, Judged, Parts, add_row_figures, by_shard, in_order
from fencepost.lake.order import border_of, hole_avoiding_order, is_order_free
from fencepost.lake.refused import merge_refused, refused_ranges, write_refused
from fencepost.lake.scan import LENGTH, Exchange, Reading, deal_spans
from fencepost.lake.spans import Numbers, accepted_spans, cut_at_blocks
from fencepost.policy import Policy
from fencepost.state.decision import Shard
from fencepost.state.scratch import Scratch, write_table
from fencepost.state.segment_files import load_table
from fencepost.state.stores import Store

HASHES = 2**32 - 1
BUCKETS = 1 << 15
"""Number of hash buckets of keys. A key that shares a bucket with a key of another epoch stays whole, with probability
1 / BUCKETS per key."""

Hashes = npt.NDArray[np.uint32]


def why_whole(reading: Reading) -> str:
    """Return why one task must judge all rows of a shard; "" if several tasks may."""
    policy = reading.policy
    if not is_order_free(policy):
        return f"verdicts of policy {policy.name or policy.rules} depend on the order of all rows"
    if reading.timestamp:
        return "timestamps are kept, and those of holes depend on the order of all rows"
    return "checksums are kept, of all rows of a shard together" if reading.keeps_checksums else ""


# Stage deal


@dataclass(frozen=True, kw_only=True)
class DealItem:
    parts: Parts
    """Record batches of hot shards."""
    first: npt.NDArray[np.int64]
    """The number of the first part of each batch's shard."""
    count: npt.NDArray[np.int64]
    """The number of parts of that shard."""
    whole: npt.NDArray[np.uint32]
    """Buckets of keys that must stay whole."""
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class Dealt:
    exchange: Exchange
    """By part number."""
    buckets: Hashes
    """The non-empty buckets, with the lowest and highest epoch of each."""
    lowest: npt.NDArray[np.int16]
    highest: npt.NDArray[np.int16]
    near_wrap: list[int]
    """Shards with sequence numbers in the zone before the wrap."""


def deal(scratch: Scratch, exchanges: ExchangeFiles, item: DealItem) -> Dealt:
    """Assign spans to the parts of their shards. Memory: 200 bytes per span."""
    policy = item.reading.policy
    numbers, tables = zip(*by_shard(scratch, exchanges, item.parts), strict=True)
    of_shard = np.repeat(np.arange(len(numbers)), [len(table) for table in tables])
    borders = np.searchsorted(item.parts.shard, numbers)
    spans = pa.concat_tables(tables, promote_options="permissive")
    del tables
    hashes = pa.array(shards(spans, HASHES, columns=policy.columns)).to_numpy()
    buckets, lowest, highest = _epochs(hashes, spans, policy)
    near_wrap = _near_wrap(spans, of_shard, policy)
    pieces, of_span, block = cut_at_blocks(spans, policy.columns.seq)
    block = np.where(np.isin(hashes % BUCKETS, item.whole)[of_span], 0, block)
    place = borders[of_shard[of_span]]
    number = item.first[place] + _mixed(hashes[of_span], block) % item.count[place]
    return Dealt(
        exchange=deal_spans(scratch, pieces, number),
        buckets=buckets,
        lowest=lowest,
        highest=highest,
        near_wrap=[numbers[it] for it in near_wrap],
    )


def several_epochs(dealt: list[Dealt]) -> Hashes:
    """Return the buckets that contain several epochs, over all tasks."""
    lowest, highest = np.full(BUCKETS, np.iinfo(np.int16).max), np.full(BUCKETS, -1)
    for it in dealt:
        lowest[it.buckets] = np.minimum(lowest[it.buckets], it.lowest)
        highest[it.buckets] = np.maximum(highest[it.buckets], it.highest)
    return np.flatnonzero(lowest < highest).astype(np.uint32)


def _epochs(
    hashes: Hashes, spans: pa.Table, policy: Policy
) -> tuple[Hashes, npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Return the non-empty buckets and their lowest and highest epochs. Empty if the policy ignores epochs."""
    lowest, highest = np.full(BUCKETS, np.iinfo(np.int16).max, np.int16), np.full(BUCKETS, -1, np.int16)
    if policy.epochs == "key" and policy.columns.epoch is not None:
        epoch = spans[policy.columns.epoch].to_numpy().astype(np.int16)
        np.minimum.at(lowest, hashes % BUCKETS, epoch)
        np.maximum.at(highest, hashes % BUCKETS, epoch)
    buckets = np.flatnonzero(highest >= 0)
    return buckets.astype(np.uint32), lowest[buckets], highest[buckets]


def _near_wrap(spans: pa.Table, of_shard: Numbers, policy: Policy) -> list[int]:
    border = border_of(policy)
    if border is None:
        return []
    last = spans[policy.columns.seq].to_numpy().astype(np.int64) + spans[LENGTH].to_numpy().astype(np.int64) - 1
    near: list[int] = np.unique(of_shard[last >= border]).tolist()
    return near


def _mixed(hashes: Hashes, block: Numbers) -> Numbers:
    """Return a random-like number for each key and block, whatever the steps of sequences."""
    mixed = (hashes.astype(np.uint64) << np.uint64(32)) ^ block.astype(np.uint64)
    for factor in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93):
        mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(32)
    return (mixed >> np.uint64(1)).astype(np.int64)


# Stage judge


@dataclass(frozen=True, kw_only=True)
class PartItem:
    parts: Parts
    """The batches of one part."""
    shard: int
    before: Shard | None
    """The shard's previous state."""
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    shard: int
    judged: Judged
    """The verdicts. If `border` is not 0, one task would have judged otherwise, and they are invalid."""
    accepted: Exchange | None
    """Accepted spans of the shard. None if all are refused."""


def judge_part(store: Store, scratch: Scratch, exchanges: ExchangeFiles, item: PartItem) -> JudgedPart:
    """Judge the rows of one part of a shard. `store`: the state's store.

    Memory: 200 bytes per span, a byte per row, and the shard's table. Raises BatchError, CapacityError, SnapshotError.
    """
    reading, judged = item.reading, Judged()
    policy = reading.policy
    pieces = item.before.pieces if item.before else ()
    table = load_table(store, pieces, policy)
    judged.bytes_read = sum(piece.bytes for piece in pieces)
    ((_, lines),) = by_shard(scratch, exchanges, item.parts)
    lines = in_order(lines, reading.order_by)
    order = None if reading.order_by else hole_avoiding_order(lines, table, is_reorderable=True)
    lines = lines if order is None else lines.take(pa.array(order))
    verdicts = table.apply_spans(lines, LENGTH, policy.columns)
    codes = np.asarray(pa.array(verdicts.verdict))
    add_row_figures(verdicts, judged)
    judged.refused_rows = write_refused(scratch, merge_refused([refused_ranges(lines, codes)]))
    if reading.compares and (codes == Verdict.DUPLICATE).any():
        pairs = find_pairs(item.shard, lines, codes, policy, None)
        judged.paired = len(pairs)
        judged.pairs = write_table(scratch, "pairs", pairs) if len(pairs) else None
    kept = accepted_spans(lines, codes, policy)
    accepted = deal_spans(scratch, kept, np.full(len(kept), item.shard)) if len(kept) else None
    return JudgedPart(shard=item.shard, judged=judged, accepted=accepted)
