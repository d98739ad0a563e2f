"""Hot shards: those of more runs than a task is to hold. Several tasks judge the rows of one, and one writes its state.

Where a policy admits any order, the verdict of a row depends on the rows of its own position (key, epoch and sequence
number) and on what the state holds of that position. So the rows may be dealt to tasks by position:

| stage | a task for | what it does |
|---|---|---|
| deal | some record batches | cuts runs where blocks of sequence numbers begin, deals blocks to parts of the shard |
| judge | a part | gives the verdicts, against the state before, and the runs that are accepted |
| judge | some shards | joins the accepted runs of all parts: the state after, and what is missing |

The last one is `judge` for settled shards. Accepted runs are few where sequences have few holes: a run for each hole,
after they are joined.

Two things depend on more than a position, and are looked for:

- Rows below the highest epoch of their key are counted, and that depends on the order of all rows of the key. Keys of
  several epochs stay whole: one part has all their rows. Keys are told apart by `BUCKETS` hashes for this.
- Near the wrap of the sequence numbers, the lap of a row depends on the rows before it. A shard in which that may be
  is judged by one task, like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict, shards
from fencepost.lake.conflicts import find_pairs
from fencepost.lake.judge import Judged, Parts, by_shard, in_order, tell_rows
from fencepost.lake.order import border_of, calm_order, is_order_free
from fencepost.lake.refused import row_losers, sorted_losers, write_refused
from fencepost.lake.runs import Numbers, accepted_runs, cut_at_blocks
from fencepost.lake.scan import LENGTH, Exchange, Reading, deal_runs
from fencepost.policy import Policy
from fencepost.state.decision import Shard
from fencepost.state.scratch import Scratch, write_table
from fencepost.state.segments import load_table
from fencepost.state.stores import Store

HASHES = 2**32 - 1
BUCKETS = 1 << 15
"""Of keys, by hash. A key shares one with a key of another epoch, and stays whole for that, once in so many keys."""

Hashes = npt.NDArray[np.uint32]


def why_whole(reading: Reading) -> str:
    """Why one task has to judge all rows of a shard; "" where several may."""
    policy = reading.policy
    if not is_order_free(policy):
        return f"verdicts of policy {policy.name or policy.rules} depend on the order of all rows"
    if reading.timestamp:
        return "timestamps are kept, and those of holes depend on the order of all rows"
    return "checksums are kept, of all rows of a shard together" if reading.keeps_checksums else ""


# Deal


@dataclass(frozen=True, kw_only=True)
class DealItem:
    parts: Parts
    """Record batches of hot shards."""
    first: npt.NDArray[np.int64]
    """Of the shard of each batch, the number of its first part."""
    count: npt.NDArray[np.int64]
    """Into how many parts that shard is split."""
    whole: npt.NDArray[np.uint32]
    """Buckets of keys that are not cut."""
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class Dealt:
    exchange: Exchange
    """By number of part."""
    buckets: Hashes
    """Those that have keys, with the lowest and the highest epoch of each."""
    lowest: npt.NDArray[np.int16]
    highest: npt.NDArray[np.int16]
    near_wrap: list[int]
    """Shards with sequence numbers in the zone before the wrap."""


def deal(scratch: Scratch, item: DealItem) -> Dealt:
    """Deal runs to the parts of their shards. Memory: 200 bytes a run."""
    policy = item.reading.policy
    numbers, tables = zip(*by_shard(scratch, item.parts), strict=True)
    of_shard = np.repeat(np.arange(len(numbers)), [len(table) for table in tables])
    borders = np.searchsorted(item.parts.shard, numbers)
    runs = pa.concat_tables(tables, promote_options="permissive")
    del tables
    hashes = pa.array(shards(runs, HASHES, columns=policy.columns)).to_numpy()
    buckets, lowest, highest = _epochs(hashes, runs, policy)
    near_wrap = _near_wrap(runs, of_shard, policy)
    pieces, of_run, block = cut_at_blocks(runs, policy.columns.seq)
    block = np.where(np.isin(hashes % BUCKETS, item.whole)[of_run], 0, block)
    place = borders[of_shard[of_run]]
    number = item.first[place] + _mixed(hashes[of_run], block) % item.count[place]
    return Dealt(
        exchange=deal_runs(scratch, pieces, number),
        buckets=buckets,
        lowest=lowest,
        highest=highest,
        near_wrap=[numbers[it] for it in near_wrap],
    )


def several_epochs(dealt: list[Dealt]) -> Hashes:
    """The buckets whose keys have several epochs among them, over all tasks."""
    lowest, highest = np.full(BUCKETS, np.iinfo(np.int16).max), np.full(BUCKETS, -1)
    for it in dealt:
        lowest[it.buckets] = np.minimum(lowest[it.buckets], it.lowest)
        highest[it.buckets] = np.maximum(highest[it.buckets], it.highest)
    return np.flatnonzero(lowest < highest).astype(np.uint32)


def _epochs(
    hashes: Hashes, runs: pa.Table, policy: Policy
) -> tuple[Hashes, npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """The buckets that have keys, and their lowest and highest epochs; none where epochs do not count."""
    lowest, highest = np.full(BUCKETS, np.iinfo(np.int16).max, np.int16), np.full(BUCKETS, -1, np.int16)
    if policy.epochs == "key" and policy.columns.epoch is not None:
        epoch = runs[policy.columns.epoch].to_numpy().astype(np.int16)
        np.minimum.at(lowest, hashes % BUCKETS, epoch)
        np.maximum.at(highest, hashes % BUCKETS, epoch)
    buckets = np.flatnonzero(highest >= 0)
    return buckets.astype(np.uint32), lowest[buckets], highest[buckets]


def _near_wrap(runs: pa.Table, of_shard: Numbers, policy: Policy) -> list[int]:
    border = border_of(policy)
    if border is None:
        return []
    last = runs[policy.columns.seq].to_numpy().astype(np.int64) + runs[LENGTH].to_numpy().astype(np.int64) - 1
    near: list[int] = np.unique(of_shard[last >= border]).tolist()
    return near


def _mixed(hashes: Hashes, block: Numbers) -> Numbers:
    """A number for each key and block that is as good as random, whatever steps sequences go in."""
    mixed = (hashes.astype(np.uint64) << np.uint64(32)) ^ block.astype(np.uint64)
    for factor in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93):
        mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(32)
    return (mixed >> np.uint64(1)).astype(np.int64)


# Judge


@dataclass(frozen=True, kw_only=True)
class PartItem:
    parts: Parts
    """Of one part."""
    shard: int
    before: Shard | None
    """The shard's state before."""
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    shard: int
    judged: Judged
    """What is said of rows. Where `border` is not 0, it is not what one task would have said."""
    accepted: Exchange | None
    """Runs of the shard; None where all are refused."""


def judge_part(store: Store, scratch: Scratch, item: PartItem) -> JudgedPart:
    """Judge the rows of one part of a shard. `store`: the state's.

    Memory: 200 bytes a run, a byte for each row, and the shard's table. Raises BatchError, CapacityError,
    SnapshotError.
    """
    reading, judged = item.reading, Judged()
    policy = reading.policy
    pieces = item.before.pieces if item.before else ()
    table = load_table(store, pieces, policy)
    judged.bytes_read = sum(piece.bytes for piece in pieces)
    ((_, lines),) = by_shard(scratch, item.parts)
    lines = in_order(lines, reading.order_by)
    order = None if reading.order_by else calm_order(lines, table, is_calm=True)
    lines = lines if order is None else lines.take(pa.array(order))
    verdicts = table.apply_runs(lines, LENGTH, policy.columns)
    codes = np.asarray(pa.array(verdicts.verdict))
    tell_rows(verdicts, judged)
    judged.losers = write_refused(scratch, sorted_losers([row_losers(lines, codes)]))
    if reading.compares and (codes == Verdict.DUPLICATE).any():
        pairs = find_pairs(item.shard, lines, codes, policy, None)
        judged.paired = len(pairs)
        judged.pairs = write_table(scratch, "pairs", pairs) if len(pairs) else None
    kept = accepted_runs(lines, codes, policy)
    accepted = deal_runs(scratch, kept, np.full(len(kept), item.shard)) if len(kept) else None
    return JudgedPart(shard=item.shard, judged=judged, accepted=accepted)
