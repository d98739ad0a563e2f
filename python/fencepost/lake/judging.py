"""Stage 2 on the driver: assigns spans to judge tasks.

| shard | judged by |
|---|---|
| of a run with few spans in total | the driver |
| with at most `DedupJob.task_spans_max` spans | one task, together with other shards |
| with more: a hot shard | several tasks, and one that writes its state (`hot.py`), if the policy allows it |
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.lake.found import Found
from fencepost.lake.hot import DealItem, Dealt, JudgedPart, PartItem, deal, judge_part, several_epochs, why_whole
from fencepost.lake.judge import Eviction, ExchangeFiles, Judged, JudgeItem, Parts, judge
from fencepost.lake.plan import groups_of_shards, parts_of_shards
from fencepost.lake.scan import Exchange, Reading, borders_of
from fencepost.state.decision import Shard
from fencepost.state.engine import groups

if TYPE_CHECKING:
    from fencepost.lake.run import Run

TIMESTAMP_MIN = -(2**63)
DEALERS = 4
"""Number of deal tasks per `task_spans_max` spans: dealing needs more memory per span than judging."""


@dataclass(frozen=True)
class ExchangeBatches:
    """Record batches of the exchange, sorted by shard, then in file order."""

    parts: Parts
    spans: npt.NDArray[np.uint32]
    """Number of spans of each batch."""

    @staticmethod
    def of(exchanges: list[Exchange], first: int = 0) -> ExchangeBatches:
        """Return the batches of all exchange files. `first`: index of the first one in the `ExchangeFiles`.

        Memory: 24 bytes per record batch. A large run has millions, so nothing is sorted or copied.
        """
        shards = 1 + max((int(it.shards[-1]) for it in exchanges), default=-1)
        of_shard = np.zeros(shards, np.int64)
        for it in exchanges:
            of_shard[it.shards] += 1
        count = int(of_shard.sum())
        exchange, begin = np.empty(count, np.int32), np.empty(count, np.int64)
        bytes_, spans = np.empty(count, np.uint32), np.empty(count, np.uint32)
        following = np.cumsum(of_shard) - of_shard
        for place, it in enumerate(exchanges, first):
            at = following[it.shards]
            exchange[at], begin[at], bytes_[at], spans[at] = place, it.ends - it.bytes, it.bytes, it.spans
            following[it.shards] += 1
        shard = np.repeat(np.arange(shards, dtype=np.uint32), of_shard)
        return ExchangeBatches(Parts(shard=shard, exchange=exchange, begin=begin, bytes=bytes_), spans)

    def of_shards(self, shards: Iterable[int], are_in: bool = True) -> ExchangeBatches:
        """Return the batches of some shards, or of all others."""
        wanted = np.isin(self.parts.shard, np.array(list(shards), np.uint32), invert=not are_in)
        return ExchangeBatches(self.parts.take(wanted), self.spans[wanted])

    def spans_of_shards(self) -> dict[int, int]:
        """Return the number of spans by shard, in ascending order."""
        firsts = borders_of(self.parts.shard)[:-1]
        spans = np.add.reduceat(self.spans, firsts, dtype=np.int64) if firsts else np.zeros(0, np.int64)
        return dict(zip(self.parts.shard[firsts].tolist(), spans.tolist(), strict=True))


def judge_spans(run: Run, found: Found, reading: Reading) -> list[Judged]:
    """Judge the spans of all shards in the cheapest way. Empties `found.exchanges`."""
    lines = ExchangeBatches.of(found.exchanges)
    spans = lines.spans_of_shards()
    state_bytes = sum(map(_bytes, _before(run, spans)))
    run.eviction = _next_eviction(run, found)
    hot = _hot_shards(run, spans)
    is_few = sum(spans.values()) <= run.job.driver_spans_max and state_bytes <= run.job.driver_state_bytes_max
    is_small = is_few and not hot
    run.plan |= {
        "judged": "in the driver" if is_small else "in tasks",
        "spans": sum(spans.values()),
        "shards": len(spans),
        "state_bytes_touched": state_bytes,
    }
    done: list[JudgedPart] = []
    if hot:
        problem = why_whole(reading)
        done = [] if problem else _judge_parts(run, found, lines.of_shards(hot), hot, reading)
        split = {it.shard for it in done}
        run.plan |= {"hot_shards": len(hot), "split_shards": len(split)} | ({"whole": problem} if problem else {})
        lines = lines.of_shards(split, are_in=False)
    engine = run.engine_for(is_small)
    accepted = [it.accepted for it in done if it.accepted is not None]
    settled = ExchangeBatches.of(accepted, len(found.exchanges))
    exchanges = ExchangeFiles.of([*found.exchanges, *accepted])
    items = [
        *_judge_items(run, lines, reading, engine.slots),
        *_judge_items(run, settled, reading, engine.slots, is_settled=True),
    ]
    work = partial(judge, run.job.state.store, run.scratch, exchanges)
    judged = run.tasks("judge", work, items, engine, rows=lambda it: sum(it.counts.values()))
    found.exchanges.clear()  # frees 12 bytes per record batch before the outputs need memory
    return [*(it.judged for it in done), *judged]


def _before(run: Run, shards: Iterable[int]) -> list[Shard | None]:
    return [run.base.shards.get(shard) if run.base else None for shard in shards]


def _bytes(shard: Shard | None) -> int:
    return sum(piece.bytes for piece in shard.pieces) if shard else 0


def _judge_items(
    run: Run, lines: ExchangeBatches, reading: Reading, slots: int, *, is_settled: bool = False
) -> list[JudgeItem]:
    spans, borders = lines.spans_of_shards(), borders_of(lines.parts.shard)
    before = _before(run, spans)
    return [
        JudgeItem(
            parts=lines.parts.take(slice(borders[first], borders[end])),
            shards=before[first:end],
            reading=reading,
            eviction=run.eviction,
            version=run.version,
            attempt=run.attempt,
            is_settled=is_settled,
        )
        for first, end in groups_of_shards(list(spans.values()), list(map(_bytes, before)), slots)
    ]


def _next_eviction(run: Run, found: Found) -> Eviction:
    """Return the horizons of this run's tables: the clock follows the data's timestamps, within bounds.

    It never passes the time of this machine by more than half of `max_idle_ms`, so a row with a timestamp in the far
    future does not make the state forget producers that wrote within the last half.
    """
    job, before = run.job, run.base
    horizon = before.horizon_ms if before else None
    if job.max_idle_ms is None or job.clock_gap_max_ms is None:
        return Eviction(horizon_before=horizon, horizon_after=horizon)
    clock = before.clock_ms if before else None
    if found.newest_ms is not None:
        newest = min(found.newest_ms, time.time_ns() // 1_000_000 + job.max_idle_ms // 2)
        clock = newest if clock is None else max(clock, min(newest, clock + job.clock_gap_max_ms))
    after = None if clock is None else max(clock - job.max_idle_ms, TIMESTAMP_MIN)
    if horizon is not None:
        after = max(horizon, after) if after is not None else horizon
    run.clock_ms = clock
    return Eviction(horizon_before=horizon, horizon_after=after)


# Hot shards


def _hot_shards(run: Run, spans: dict[int, int]) -> dict[int, int]:
    """Return the hot shards and the number of parts to split each into."""
    parts = parts_of_shards(list(spans.values()), run.job.engine.slots, run.job.task_spans_max)
    return {shard: count for shard, count in zip(spans, parts, strict=True) if count > 1}


def _judge_parts(
    run: Run, found: Found, lines: ExchangeBatches, hot: dict[int, int], reading: Reading
) -> list[JudgedPart]:
    """Judge the rows of hot shards in parts. Skips shards that one task must judge.

    `lines`: of these shards only.
    """
    firsts = dict(zip(hot, np.cumsum([0, *hot.values()]).tolist(), strict=False))
    dealt = _deal(run, found, lines, hot, firsts, reading)
    near_wrap = {shard for it in dealt for shard in it.near_wrap}
    exchanges = [it.exchange for it in dealt]
    by_part = ExchangeBatches.of(exchanges)
    borders = borders_of(by_part.parts.shard)
    shards, first = np.array(list(firsts)), np.array(list(firsts.values()))
    items = []
    for place, number in enumerate(by_part.spans_of_shards()):
        shard = int(shards[np.searchsorted(first, number, side="right") - 1])
        if shard not in near_wrap:
            parts = by_part.parts.take(slice(borders[place], borders[place + 1]))
            items.append(PartItem(parts=parts, shard=shard, before=_before(run, [shard])[0], reading=reading))
    work = partial(judge_part, run.job.state.store, run.scratch, ExchangeFiles.of(exchanges))
    done = run.tasks("judge", work, items, rows=lambda it: sum(it.judged.counts.values()))
    over_wrap = {it.shard for it in done if it.judged.border}
    done = [it for it in done if it.shard not in over_wrap]
    for shard in {it.shard for it in done}:
        _merge_figures([it for it in done if it.shard == shard], _before(run, [shard])[0])
    return done


def _deal(
    run: Run, found: Found, lines: ExchangeBatches, hot: dict[int, int], firsts: dict[int, int], reading: Reading
) -> list[Dealt]:
    """Deal the spans to parts. Repeats it if keys have several epochs, to keep these keys whole."""
    shards = lines.parts.shard.tolist()
    first, count = (np.array([of[shard] for shard in shards], np.int64) for of in (firsts, hot))
    together = max(1, run.job.task_spans_max // DEALERS)
    whole = np.zeros(0, np.uint32)
    work = partial(deal, run.scratch, ExchangeFiles.of(found.exchanges))
    while True:
        items = [
            DealItem(
                parts=lines.parts.take(slice(begin, end)),
                first=first[begin:end],
                count=count[begin:end],
                whole=whole,
                reading=reading,
            )
            for begin, end in groups(lines.spans.tolist(), together)
        ]
        dealt = run.tasks("deal", work, items)
        buckets = several_epochs(dealt)
        if np.isin(buckets, whole).all():
            return dealt
        whole = buckets


def _merge_figures(parts: list[JudgedPart], before: Shard | None) -> None:
    """Move figures about a shard as a whole to its first part. `before`: the shard's previous state."""
    accepted = sum(it.judged.counts.get("ACCEPTED", 0) for it in parts)
    noted = sum(it.accepted.rows for it in parts if it.accepted is not None)
    if accepted != noted:
        raise AssertionError(f"shard {parts[0].shard}: {accepted} rows were accepted, its parts reported {noted}")
    if not accepted and before is not None:
        parts[0].judged.shards.append(before)
    stale = [table for it in parts for table in it.judged.stale]
    some = [table for table in stale if len(table)]
    for it in parts:
        it.judged.stale = []
    parts[0].judged.stale = [_summed(pa.concat_tables(some, promote_options="permissive"))] if some else stale[:1]


def _summed(stale: pa.Table) -> pa.Table:
    """Add up `Verdicts.stale` of several tables: one line per key and epoch, sorted."""
    *keys, count = stale.column_names
    summed = stale.group_by(keys).aggregate([(count, "sum")]).select([*keys, f"{count}_sum"])
    summed = summed.sort_by([(name, "ascending") for name in keys])
    return summed.rename_columns(stale.column_names).cast(stale.schema)
