"""How a job's state is cut into shards: by itself as it grows, and into how many."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost.lake import DedupJob
from fencepost.lake.plan import SHARDS, shards_for
from fencepost.lake.run import Run
from fencepost.lake.sources import InputOverride
from fencepost.state.decision import Decision
from fencepost.state.operations import SHARDS_MAX
from fencepost.state.versions import State
from support.lake import SCHEMA, first_of_each, land, land_some, make_job, make_rows, read_sink, read_source
from support.operations import Cluster, fold, missing

SMALL = 100
"""Bytes of a shard: a state of some files is cut twice and more."""


def delivery(seed: int) -> pa.Table:
    """Rows of separate producers, and some rows of the previous delivery again."""
    rows = make_rows(seed)
    pid = [it if it in (None, -1) else it + 6 * seed for it in rows["pid"].to_pylist()]
    time = pa.array([1_000 * seed + row for row in range(len(rows))], pa.timestamp("ms"))
    rows = rows.set_column(0, "pid", pa.array(pid, rows["pid"].type)).append_column("timestamp", time)
    return pa.concat_tables([delivery(seed - 1).slice(0, 200), rows]) if seed else rows


def kinds(job: DedupJob) -> list[str]:
    return [it.kind for it in job.state.versions()]


def average(job: DedupJob) -> float:
    latest = job.state.latest()
    return latest.state_bytes / latest.shard_count if latest else 0.0


def knows(job: DedupJob) -> list[dict[str, Any]]:
    rows = job.state.entries()
    keys = [(name, "ascending") for name in rows.schema.names if name.startswith(("pid", "partition", "epoch"))]
    return rows.sort_by(keys).to_pylist()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.matrix),
        pytest.param({"policy": "in_order", "order_by": (), "rejected_max": 1.0}, marks=pytest.mark.matrix),
        {"max_idle_ms": 2_500, "on_reset": "report"},
        {"compare_content": ["origin"], "keep_checksums": "all", "on_conflict": "drop"},
    ],
    ids=["any_order", "in_order", "evicting", "checksums"],
)
def test_a_state_that_grows_is_cut_into_more_shards(tmp_path: Path, options: dict[str, Any]) -> None:
    """Of itself, before a run has something to read; and nothing else is different from a state that is not."""
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    counts = []
    for seed in range(3):
        for root, bytes_max in ((grown, SMALL), (whole, None)):
            land(root / "source", f"{seed}.parquet", delivery(seed))
            job = make_job(root, shard_bytes_max=bytes_max, **options)
            is_over = bytes_max is not None and average(job) > bytes_max
            report = job.run()
            if root == grown:
                counts.append((report.counts, report.missing_rows, report.shards_all))
                assert ("split" in report.seconds) == is_over
            else:
                assert (report.counts, report.missing_rows) == counts[-1][:2]
    shards = [count for *_, count in counts]
    assert shards[0] == SHARDS
    assert shards == sorted(shards)
    assert all(later % earlier == 0 for earlier, later in pairwise(shards))
    assert len(set(shards)) >= 3
    splits, plain = (make_job(root, **options) for root in (grown, whole))
    assert kinds(plain) == ["run"] * 3
    assert Counter(kinds(splits)) == {"run": 3, "reshard": len(set(shards)) - 1}
    assert read_sink(grown).equals(read_sink(whole))
    assert knows(splits) == knows(plain)
    if "max_idle_ms" in options:  # a reshard reads every shard, a run those that it touches
        for job in (splits, plain):
            job.state.evict(None, options["max_idle_ms"])
    assert fold(grown / "sink") == fold(whole / "sink") == missing(splits.state)


@pytest.mark.matrix
def test_a_large_state_is_split_by_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand producers and more, each of whose tasks runs twice."""
    for number in range(3):
        pid = np.arange(60_000 * number, 60_000 * number + 90_000)  # a third of them once more
        rows = {
            "pid": pid,
            "epoch": pid * 0,
            "partition": pid % 7,
            "seq": pid % 1_000,
            "origin": [f"{it}" for it in pid],
        }
        land(tmp_path / "source", f"{number}.parquet", pa.table(rows).cast(SCHEMA), row_group_size=50_000)
        job = make_job(tmp_path, engine=Cluster(monkeypatch), shard_bytes_max=10_000)
        report = job.run()
        assert report.counts == {"ACCEPTED": 60_000, "DUPLICATE": 30_000} if number else {"ACCEPTED": 90_000}
        assert report.entries == len(knows(job)) == 60_000 * number + 90_000
    assert kinds(job) == ["run", "reshard", "run", "run"]
    assert fold(tmp_path / "sink") == missing(job.state)


@pytest.mark.parametrize("options", [{"shards": 4, "shard_bytes_max": 1}, {"shard_bytes_max": None}, {}])
def test_shards_of_a_fixed_number_or_small_size_are_not_split(tmp_path: Path, options: dict[str, Any]) -> None:
    for seed in range(2):
        land_some(tmp_path, [seed])
        assert make_job(tmp_path, **options).run().shards_all == options.get("shards", SHARDS)


def test_a_run_without_new_files_splits_nothing(tmp_path: Path) -> None:
    land_some(tmp_path)
    make_job(tmp_path).run()
    assert make_job(tmp_path, shard_bytes_max=1).run().version is None
    assert kinds(make_job(tmp_path)) == ["run"]


def test_an_invalid_limit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shard_bytes_max=0: expected at least 1"):
        make_job(tmp_path, shard_bytes_max=0)


FASTER = {"start": ["run", "run", "reshard"], "split": ["run", "run"], "run": ["run", "reshard", "run"]}
"""The versions by when another run makes one: before the split begins, before its decision, or after it."""


@pytest.mark.parametrize("at", FASTER)
def test_another_run_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The slower run reports it. It must not follow the other one: the input of a stream's batch is read as a whole."""
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    land_some(tmp_path, [1])
    reshard, decide, finish = State.reshard, State.decide, State.finish

    def overtaken() -> None:
        monkeypatch.undo()
        make_job(tmp_path, shard_bytes_max=None).run()

    def reshard_(state: State, *arguments: Any, **options: Any) -> Decision:
        overtaken()
        return reshard(state, *arguments, **options)

    def decide_(state: State, decision: Decision) -> bool:
        overtaken()
        return decide(state, decision)

    def finish_(state: State, version: int, status: str = "applied") -> None:
        finish(state, version, status)
        overtaken()

    slow = {"start": ("reshard", reshard_), "split": ("decide", decide_), "run": ("finish", finish_)}
    monkeypatch.setattr(State, *slow[at])
    with pytest.raises(fp.StateConflictError, match=f"decided version {3 if at == 'run' else 2} first"):
        make_job(tmp_path, shard_bytes_max=1).run()
    assert kinds(make_job(tmp_path)) == FASTER[at]
    land_some(tmp_path, [2])
    make_job(tmp_path, shard_bytes_max=SMALL).run()
    kept = read_sink(tmp_path)["origin"].to_list()
    assert kept == first_of_each(read_source(tmp_path))["origin"].to_list()


def test_a_paused_driver_of_a_stream_does_not_follow_others(tmp_path: Path) -> None:
    """It would read its batch again behind them: rows without a producer would be kept twice."""
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    land(tmp_path / "batch", "0.parquet", make_rows(1))

    def of_batch(shard_bytes_max: int | None) -> Run:
        position = {"query": "q", "batch": 0}
        job = make_job(tmp_path, shard_bytes_max=shard_bytes_max)
        run = Run(job, override=InputOverride(folder=str(tmp_path / "batch"), position=position))
        run.recover()
        return run

    paused = of_batch(shard_bytes_max=1)
    assert of_batch(shard_bytes_max=None).go_on().version == 2
    with pytest.raises(fp.StateConflictError, match="decided version 2 first"):
        paused.go_on()
    kept = read_sink(tmp_path)["origin"].to_list()
    assert len(kept) == len(set(kept))


def test_how_many_shards() -> None:
    assert [shards_for(size, 16, 64) for size in (0, 1024, 1025, 4096, 4097)] == [16, 16, 32, 64, 128]
    assert shards_for(10**15, 3, 1) == 3 << 16, "no more than there can be"


def test_as_many_shards_as_there_can_be(tmp_path: Path) -> None:
    """More than 16 bits number. What is kept, and what the state knows, is the same."""
    few, many = tmp_path / "few", tmp_path / "many"
    for root, options in ((few, {}), (many, {"shards": SHARDS_MAX})):
        for seed in range(2):
            land(root / "source", f"{seed}.parquet", delivery(seed))
            make_job(root, **options).run()
    shards = make_job(many).state.latest().shards.shard  # type: ignore[union-attr]
    assert max(shards) > 2**16
    assert read_sink(many).equals(read_sink(few))
    assert knows(make_job(many)) == knows(make_job(few))
    with pytest.raises(ValueError, match=f"shards={SHARDS_MAX + 1}: expected 1 to {SHARDS_MAX}"):
        make_job(tmp_path, shards=SHARDS_MAX + 1)
