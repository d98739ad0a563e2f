"""Plans of a job: which is chosen, and that all keep the same rows and end in the same state."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import state
from fencepost.lake import DedupJob, LocalEngine, RunReport, audit, plan
from fencepost.lake.plan import PLANS, groups_of_files, groups_of_shards
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lake import (
    SCHEMA,
    first_of_each,
    hashes,
    land,
    land_some,
    make_job,
    make_rows,
    one_producer,
    output_hashes,
    read_sink,
    read_source,
    state_hashes,
)
from support.operations import fold, missing


def run_as(root: Path, wanted: str | None, source: Path, **options: Any) -> RunReport:
    return DedupJob(source, root / "state", root / "sink", plan=wanted, **options).run()


def runs_of(rng: np.random.Generator, partitions: list[int], count: int, name: str) -> pa.Table:
    """Runs that repeat each other, cut differently, and leave holes; `origin` is another in every row."""
    lines = []
    for _ in range(count):
        partition, epoch = partitions[int(rng.integers(len(partitions)))], int(rng.integers(2))
        first, length = int(rng.integers(count * 4)), int(rng.integers(1, 30))
        lines += [(7, epoch, partition, seq) for seq in range(first, first + length)]
    columns = dict(zip(SCHEMA.names, zip(*lines, strict=True), strict=False))
    return pa.table(columns | {"origin": [f"{name}:{at}" for at in range(len(lines))]}).cast(SCHEMA)


def land_whole_keys(folder: Path, seed: int, files: int = 4) -> None:
    """Each file has partitions of its own."""
    rng = np.random.default_rng(seed)
    for number in range(files):
        partitions = [(seed * files + number) * 3 + it for it in range(3)]
        land(folder, f"{seed}-{number}.parquet", runs_of(rng, partitions, 60, f"{seed}-{number}"))


@pytest.mark.parametrize("whole", [False, True])
def test_all_plans_keep_the_same_rows_and_end_in_the_same_state(tmp_path: Path, whole: bool) -> None:
    source = tmp_path / "source"
    reports: dict[str | None, list[RunReport]] = {wanted: [] for wanted in (None, *PLANS)}
    for seeds in ([0, 1], [2], [3]):
        for seed in seeds:
            land_whole_keys(source, seed) if whole and seed != 3 else land_some(tmp_path, [seed])
        for wanted, found in reports.items():
            found.append(run_as(tmp_path / str(wanted), wanted, source, shards=3))
    first = tmp_path / "interval"
    rows = read_sink(first)
    assert len(rows) == sum(report.kept for report in reports["interval"])
    for wanted, found in reports.items():
        root = tmp_path / str(wanted)
        assert output_hashes(root) == output_hashes(first)
        assert state_hashes(root) == state_hashes(first)
        for report, other in zip(found, reports["interval"], strict=True):
            for fact in ("counts", "kept", "missing_ranges", "missing_rows", "stale_epoch", "missing_changes"):
                assert getattr(report, fact) == getattr(other, fact), (wanted, fact)
    assert {report.plan for report in reports["row"]} == {"row"}
    by_itself = [report.plan for report in reports[None]]
    assert by_itself[0] == ("aligned" if whole else "interval"), reports[None][0].plan_reason


def test_the_first_copy_is_kept_though_repeats_are_cut_differently(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for number in range(6):
        land(tmp_path / "source", f"{number}.parquet", runs_of(rng, [0, 1], 200, str(number)))
    expected = first_of_each(read_source(tmp_path))
    for wanted in PLANS:
        root = tmp_path / wanted
        run_as(root, wanted, tmp_path / "source")
        assert read_sink(root).equals(expected)


def test_claims_that_collide_fall_back(tmp_path: Path) -> None:
    """By their statistics the files have no common rows, but a state knows rows of one."""
    source = tmp_path / "source"
    land_whole_keys(source, 0)
    assert make_job(tmp_path).run().plan == "aligned"
    rows = pq.read_table(source / "0-0.parquet")
    land(source, "again.parquet", rows)
    report = make_job(tmp_path).run()
    assert report.plan == "interval"
    assert report.plan_reason.startswith("fell back from aligned")
    assert report.kept == 0
    assert report.counts == {"DUPLICATE": len(rows)}


def test_the_plan_is_aligned_again_after_a_reshard(tmp_path: Path) -> None:
    """The version of a reshard has no plan, and says nothing about the files."""
    for seed in range(2):
        land_whole_keys(tmp_path / "source", seed)
        assert make_job(tmp_path).run().plan == "aligned"
    state.open(tmp_path / "state").reshard(32)
    land_whole_keys(tmp_path / "source", 2)
    report = make_job(tmp_path).run()
    assert report.plan == "aligned", report.plan_reason


def test_a_lower_epoch_in_another_file_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FILE_BYTES", plan.TASK_BYTES)  # a task each

    def rows(epoch: int) -> pa.Table:
        return pa.table({"pid": [1, 1], "epoch": [epoch] * 2, "partition": [0, 0], "seq": [0, 1]})

    land(tmp_path / "source", "a.parquet", rows(5))
    land(tmp_path / "source", "b.parquet", rows(4))
    report = make_job(tmp_path, plan="aligned").run()
    assert (report.plan, report.stale_epoch, report.kept) == ("interval", 2, 4)


def test_aligned_keys_of_many_holes_take_memory_once(tmp_path: Path) -> None:
    """Each claim between two holes had a list of all holes: 3 GB here."""
    seqs = range(0, 28_000, 2)
    land(tmp_path / "source", "a.parquet", one_producer(seqs))
    before = pa.default_memory_pool().max_memory()
    report = make_job(tmp_path, plan="aligned").run()
    assert (report.plan, report.kept) == ("aligned", len(seqs))
    assert pa.default_memory_pool().max_memory() - before < 500_000_000


def test_aligned_without_a_tracked_row(tmp_path: Path) -> None:
    """Where a task has seen no key it does not know of how many parts one is."""
    columns = fp.Columns(partition=("topic", "partition"))
    rows = {"pid": pa.nulls(2, pa.int64()), "topic": ["t", "t"], "epoch": [0, 0], "partition": [0, 1], "seq": [0, 1]}
    land(tmp_path / "source", "a.parquet", pa.table(rows))
    report = make_job(tmp_path, columns=columns, plan="aligned").run()
    assert (report.plan, report.counts) == ("aligned", {"UNTRACKED": 2})


@pytest.mark.parametrize(
    ("policy", "options", "why"),
    [
        ("in_order", {"order_by": ()}, "depend on the order"),
        ("any_order", {"order_by": ("origin",)}, "put in an order"),
        ("any_order", {"max_idle_ms": 10**12}, "timestamps are kept"),
    ],
)
def test_aligned_where_it_cannot_be(tmp_path: Path, policy: str, options: dict[str, Any], why: str) -> None:
    rows = make_rows(1).append_column("timestamp", pa.array(range(600)))
    land(tmp_path / "source", "a.parquet", rows)
    report = make_job(tmp_path, plan="aligned", policy=policy, rejected_max=1, on_reset="report", **options).run()
    assert report.plan == "interval"
    assert why in report.plan_reason


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 40))
def test_any_files_any_plan(tmp_path_factory: pytest.TempPathFactory, seed: int, files: int, rows: int) -> None:
    root = tmp_path_factory.mktemp("any")
    for number in range(files):
        land(root / "source", f"{number}.parquet", make_rows(seed + number, rows), row_group_size=7)
    expected = first_of_each(read_source(root))
    found = []
    for wanted in PLANS:
        run_as(root / wanted, wanted, root / "source", shards=2, sync=False)
        assert read_sink(root / wanted).equals(expected)
        found.append(state_hashes(root / wanted))
    assert found[0] == found[1] == found[2]


def test_groups() -> None:
    assert groups_of_files([], 2) == []
    assert groups_of_files([1 << 30] * 3, 2) == [(0, 1), (1, 2), (2, 3)]
    # A task costs an engine something: there are no more than keep all slots busy, unless they get too large.
    assert groups_of_files([100 << 20] * 20, 2) == [(first, first + 2) for first in range(0, 20, 2)]
    assert groups_of_files([100 << 20] * 20, 64) == [(first, first + 1) for first in range(20)]
    assert groups_of_files([1 << 20] * 20, 64) == [(0, 20)]
    many = groups_of_files([1] * 100_000, 2)
    assert len(many) <= 1024
    assert [first for first, _ in many[1:]] == [end for _, end in many[:-1]]
    assert (many[0][0], many[-1][1]) == (0, 100_000)
    assert len(groups_of_files([256 << 20] * 40_000, 16_000)) >= 16_000, "a thousand machines of sixteen cores"
    assert len(groups_of_shards([10] * 16, [0] * 16, 2)) == 1
    assert len(groups_of_shards([2_000_000] * 16, [0] * 16, 2)) == 16


# Rows of _rejects


def test_refused_rows_are_written_to_rejects(tmp_path: Path) -> None:
    land_some(tmp_path, range(3))
    source = read_source(tmp_path)
    for rejects, expected in (
        ("copy", {"FENCED", "OUT_OF_ORDER"}),
        ("all", {"FENCED", "OUT_OF_ORDER", "DUPLICATE"}),
        ("none", set()),
    ):
        root = tmp_path / rejects
        job = DedupJob(
            tmp_path / "source",
            root / "state",
            root / "sink",
            policy="in_order",
            order_by=(),
            rejected_max=1,
            rejects=rejects,
        )
        report = job.run()
        files = sorted((root / "sink" / "run=1" / "_rejects").rglob("*.parquet"))
        assert {file.parent.name.removeprefix("verdict=") for file in files} == expected == set(report.rejected)
        found = [pl.DataFrame(pq.read_table(file, partitioning=None)) for file in files]
        for verdict, rows in report.rejected.items():
            assert rows == report.counts[verdict]
        if rejects == "all":
            assert pl.concat([*found, read_sink(root)]).sort("origin").equals(source.sort("origin"))
    assert "run=1/_rejects" not in str(read_sink(tmp_path / "copy").columns)


def from_changelog(root: Path) -> Counter[tuple[Any, ...]]:
    """The missing ranges, and how often each is missing, by the changelog."""
    return fold(root / "sink")


def still_missing(root: Path) -> Counter[tuple[Any, ...]]:
    return missing(state.open(root / "state"))


def test_missing_is_a_changelog(tmp_path: Path) -> None:
    changes = set()
    for seed in range(5):
        land_some(tmp_path, [seed])
        report = make_job(tmp_path).run()
        changes |= set(report.missing_changes)
        assert from_changelog(tmp_path) == still_missing(tmp_path) != Counter()
    assert changes == {"OPEN", "CLOSED", "SPLIT"}


@pytest.mark.parametrize("ranges", [1_000, 150_000])
def test_the_ranges_of_several_tasks_are_one_file(tmp_path: Path, ranges: int) -> None:
    """Their small row groups become one; large ones stay. Keys are texts, each in one of two shards."""
    pids = [f"device-{number}" for number in range(10)]
    rows = 2 * ranges // len(pids) + 1
    columns = {
        "pid": np.repeat(pids, rows),
        "epoch": np.zeros(rows * len(pids), np.int16),
        "partition": np.zeros(rows * len(pids), np.int32),
        "seq": np.tile(np.arange(rows) * 2, len(pids)),
    }
    land(tmp_path / "source", "1.parquet", pa.table(columns))
    report = make_job(tmp_path, shards=2, engine=LocalEngine(2)).run()
    assert report.missing_changes == {"OPEN": 2 * ranges}
    (path,) = (tmp_path / "sink/run=1/_missing").iterdir()
    assert pq.ParquetFile(path).metadata.num_row_groups == (1 if ranges == 1_000 else 2)
    shown = pq.read_table(path, partitioning=None)
    assert set(shown["change"].to_pylist()) == {"OPEN"}
    now = pl.from_arrow(state.open(tmp_path / "state").missing())
    assert pl.from_arrow(shown).select(now.columns).sort(now.columns).equals(now.sort(now.columns))


def test_ranges_that_are_missing_in_two_laps_are_two(tmp_path: Path) -> None:
    """The same sequences, twice."""
    policy = fp.Policy.any_order().replace(wrap=40)
    times = []
    for number, seqs in enumerate(([0, 1, 2, 20, 30, 35], [0, 1, 2, 20, 30, 35], [10], list(range(21, 30)))):
        rows = timed(1, seqs, [0] * len(seqs))
        land(tmp_path / "source", f"{number}.parquet", rows)
        make_job(tmp_path, policy=policy, order_by=()).run()
        assert from_changelog(tmp_path) == still_missing(tmp_path)
        times.append(from_changelog(tmp_path)[(1, 0, 0, 21, 29, 9)])
    assert times == [1, 2, 2, 1]


@pytest.mark.parametrize("admit", ["any", "forward"])
def test_open_ranges_of_a_replaced_epoch_become_final(tmp_path: Path, admit: str) -> None:
    """Its rows did not arrive."""
    policy = fp.Policy.any_order().replace(admit=admit, epochs="fence")
    changes = []
    for epoch in (0, 1):
        rows = timed(1, [0, 4], [0, 0]).set_column(1, "epoch", pa.array([epoch] * 2))
        land(tmp_path / "source", f"{epoch}.parquet", rows)
        changes.append(make_job(tmp_path, policy=policy, order_by=()).run().missing_changes)
        assert from_changelog(tmp_path) == still_missing(tmp_path)
    assert changes == [{"OPEN": 1}, {"FINAL": 1, "OPEN": 1}]


# Forgetting


def timed(pid: int, seqs: list[int], times: list[int]) -> pa.Table:
    return one_producer(seqs, pid, timestamp=times)


def test_idle_producers_are_forgotten_by_the_clock_of_the_data(tmp_path: Path) -> None:
    source = tmp_path / "source"
    options = {"max_idle_ms": 1_000, "shards": 2}
    land(source, "1.parquet", pa.concat_tables([timed(1, [0, 1, 4], [1_000, 1_000, 1_010]), timed(2, [0], [1_900])]))
    make_job(tmp_path, **options).run()
    land(source, "2.parquet", timed(2, [1], [2_500]))
    make_job(tmp_path, **options).run()
    decided = state.open(tmp_path / "state").version(2)
    assert (decided.clock_ms, decided.horizon_ms) == (2_500, 1_500)
    land(source, "3.parquet", pa.concat_tables([timed(1, [0, 5], [1_000, 2_600]), timed(2, [0, 7], [1_200, 2_700])]))
    report = make_job(tmp_path, rejects="copy", **options).run()
    assert report.counts == {"ACCEPTED": 2, "DUPLICATE": 1, "FORGOTTEN": 1}
    rejected = pq.read_table(tmp_path / "sink" / "run=3" / "_rejects" / "verdict=FORGOTTEN", partitioning=None)
    assert rejected.to_pylist() == timed(1, [0], [1_000]).to_pylist()
    assert from_changelog(tmp_path) == still_missing(tmp_path)


@pytest.mark.parametrize("act", ["evict", "reshard", "run"])
def test_the_changelog_has_the_final_ranges_when_a_shard_is_processed(tmp_path: Path, act: str) -> None:
    """The horizon moves for all shards; most of them are processed later, and write their FINAL rows then."""
    source = tmp_path / "source"
    options = {"max_idle_ms": 1_000, "clock_gap_max_ms": 10**9, "shards": 64}
    land(source, "1.parquet", timed(1, [0, 4], [1_000, 1_000]))
    make_job(tmp_path, **options).run()
    land(source, "2.parquet", timed(2, [0, 2], [9_000, 9_000]))
    make_job(tmp_path, **options).run()
    lagging = (1, 0, 0, 1, 3, 3)
    assert from_changelog(tmp_path) - still_missing(tmp_path) == Counter([lagging])
    opened = state.open(tmp_path / "state")
    if act == "evict":
        opened.evict(9_000, 1_000)
    elif act == "reshard":
        opened.reshard(3)
    else:
        land(source, "3.parquet", timed(1, [5], [9_500]))
        make_job(tmp_path, **options).run()
    lines = pq.read_table(tmp_path / "sink/run=3/_missing/part-00000.parquet", partitioning=None)
    assert lines["change"].to_pylist() == ["FINAL"]
    assert from_changelog(tmp_path) == still_missing(tmp_path) != Counter()


def test_the_clock_of_files_that_one_task_reads_is_the_newest_time_even_if_it_is_zero(tmp_path: Path) -> None:
    for name, newest in (("1.parquet", 0), ("2.parquet", -5_000)):
        land(tmp_path / "source", name, timed(1, [-newest], [newest]))
    make_job(tmp_path, max_idle_ms=1_000).run()
    decided = state.open(tmp_path / "state").version(1)
    assert (decided.clock_ms, decided.horizon_ms) == (0, -1_000)


def test_a_row_of_the_far_future_evicts_no_producer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    options = {"max_idle_ms": 10_000, "shards": 1}
    land(source, "1.parquet", timed(1, [0], [1_000]))
    make_job(tmp_path, **options).run()
    land(source, "2.parquet", timed(2, [0], [4_102_444_800_000]))
    make_job(tmp_path, clock_gap_max_ms=500, **options).run()
    assert state.open(tmp_path / "state").version(2).clock_ms == 1_500
    land(source, "3.parquet", timed(1, [0, 1], [1_000, 1_600]))
    assert make_job(tmp_path, **options).run().counts == {"ACCEPTED": 1, "DUPLICATE": 1}


@pytest.mark.parametrize("is_first", [True, False])
def test_rows_of_the_far_future_again_and_again_evict_no_producer_at_work(tmp_path: Path, is_first: bool) -> None:
    source, day, now = tmp_path / "source", 86_400_000, time.time_ns() // 1_000_000
    options = {"max_idle_ms": 10 * day, "shards": 1}
    if not is_first:
        land(source, "1.parquet", timed(1, [0], [now]))
        make_job(tmp_path, **options).run()
    for seq in range(4):
        land(source, f"2-{seq}.parquet", timed(2, [seq], [4_102_444_800_000]))
        make_job(tmp_path, **options).run()
    opened = state.open(tmp_path / "state")
    horizon = opened.version(opened.decided()).horizon_ms
    assert horizon is not None
    assert now - 6 * day < horizon < now - 4 * day
    land(source, "3.parquet", timed(1, [0, 1], [now, now + 1]))
    report = make_job(tmp_path, **options).run()
    assert report.counts == ({"ACCEPTED": 2} if is_first else {"ACCEPTED": 1, "DUPLICATE": 1})


def test_rows_that_are_older_than_what_is_forgotten(tmp_path: Path) -> None:
    land(tmp_path / "source", "1.parquet", timed(1, [0], [10_000]))
    make_job(tmp_path, max_idle_ms=100).run()
    land(tmp_path / "source", "2.parquet", timed(2, [0], [5_000]))
    with pytest.raises(fp.PolicyError, match="older than the horizon"):
        make_job(tmp_path, max_idle_ms=100).run()


def test_new_rows_that_come_three_times_are_not_a_reset(tmp_path: Path) -> None:
    land(tmp_path / "source", "1.parquet", timed(1, [0], [0]))
    make_job(tmp_path, max_idle_ms=10**9).run()
    for name in ("2", "3", "4"):
        land(tmp_path / "source", f"{name}.parquet", timed(1, list(range(1, 2_001)), list(range(10_000, 12_000))))
    report = make_job(tmp_path, max_idle_ms=10**9).run()
    assert (report.counts, len(report.suspected_resets)) == ({"ACCEPTED": 2_000, "DUPLICATE": 4_000}, 0)


# Files


class Between(LocalEngine):
    """Does something between two stages."""

    def __init__(self, before: str, act: Any) -> None:
        super().__init__(2)
        self.before, self.act = before, act

    def run(self, stage: str, *arguments: Any) -> Any:
        if stage == self.before:
            act, self.act = self.act, lambda: None
            act()
        return super().run(stage, *arguments)


@pytest.mark.parametrize("stage", ["scan", "write"])
def test_files_that_vanish_or_change_are_planned_again(tmp_path: Path, stage: str) -> None:
    land_some(tmp_path, range(4))

    def act() -> None:
        (tmp_path / "source" / "1.parquet").unlink()
        land(tmp_path / "source", "2.parquet", make_rows(22))

    report = make_job(tmp_path, engine=Between(stage, act), plan="interval").run()
    assert report.files == 3
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))
    assert make_job(tmp_path).run().version is None
    assert any("1.parquet" in path for path in report.vanished)


def test_a_file_that_changes_again_and_again_is_an_error(tmp_path: Path) -> None:
    land_some(tmp_path, range(2))

    class Restless(LocalEngine):
        def run(self, stage: str, *arguments: Any) -> Any:
            if stage == "write":
                land(tmp_path / "source", "1.parquet", make_rows(int(time.time_ns() % 1000)))
            return super().run(stage, *arguments)

    with pytest.raises(fp.SourceError, match=r"1\.parquet: changed while"):
        make_job(tmp_path, engine=Restless(1), plan="interval").run()
    assert not (tmp_path / "state").exists() or state.State(state.open_store(tmp_path / "state")).decided() == 0
    assert list((tmp_path / "sink" / "_prepare").iterdir()) == []


def test_columns_in_the_names_of_folders(tmp_path: Path) -> None:
    rows = make_rows(1)
    for day, partition in ((1, 0), (1, 1), (2, 0)):
        land(
            tmp_path / "source" / f"day={day}" / f"partition={partition}", "a.parquet", rows.drop_columns(["partition"])
        )
    for wanted in PLANS:
        root = tmp_path / wanted
        report = run_as(root, wanted, tmp_path / "source")
        once = first_of_each(pl.DataFrame(rows), ["pid", "epoch", "seq"])
        untracked = len(rows) - len(rows.filter(pa.compute.greater_equal(rows["pid"], 0)))
        assert report.kept == 2 * len(once) + untracked
        found = pq.read_table(root / "sink" / "run=1")
        assert set(found.column_names) == {"pid", "epoch", "partition", "seq", "origin", "day"}
        assert (root / "sink/run=1/day=1/partition=0/part-00000.parquet").exists()


def test_refused_rows_keep_the_columns_of_folders(tmp_path: Path) -> None:
    rows = pa.table({"pid": [1, 1], "epoch": [0, 0], "seq": [1, 1]})
    for partition in (0, 1):
        land(tmp_path / "source" / f"partition={partition}", "a.parquet", rows)
    make_job(tmp_path, rejects="all").run()
    found = pq.read_table(tmp_path / "sink" / "run=1" / "_rejects" / "verdict=DUPLICATE")
    assert sorted(found["partition"].to_pylist()) == [0, 1]


def test_outputs_in_folders_are_seen_by_a_rollback(tmp_path: Path) -> None:
    land(tmp_path / "source" / "day=1", "a.parquet", make_rows(1))
    make_job(tmp_path).run()
    with pytest.raises(fp.SinkError, match="still in the sink"):
        state.open(tmp_path / "state").rollback(0)
    (tmp_path / "sink/run=1/day=1/part-00000.parquet").unlink()
    state.open(tmp_path / "state").rollback(0)
    assert make_job(tmp_path).run().files == 1


def test_a_column_of_some_folders_only(tmp_path: Path) -> None:
    """Other files have the column themselves, as in a sink whose `partition_by` has changed."""
    rows = make_rows(1).filter(pa.compute.greater_equal(make_rows(1)["pid"], 0))
    of_first = rows.filter(pa.compute.equal(rows["partition"], 0))
    land(tmp_path / "source" / "partition=0", "a.parquet", of_first.drop_columns(["partition"]))
    land(tmp_path / "source" / "other", "b.parquet", rows)
    for wanted in PLANS:
        report = run_as(tmp_path / wanted, wanted, tmp_path / "source", schema="merge")
        assert report.kept == len(first_of_each(pl.DataFrame(rows)))
    assert audit(tmp_path / "source").rows == len(rows) + len(of_first)
    land(tmp_path / "source" / "other", "c.parquet", rows.drop_columns(["partition"]))
    with pytest.raises(fp.BatchError, match=r"c.parquet: column 'partition': missing"):
        make_job(tmp_path).run()


def test_a_sink_whose_folders_have_changed_seeds_a_state(tmp_path: Path) -> None:
    for number, layout in enumerate([None, "pid", "partition", None]):
        rows = make_rows(number)
        land(tmp_path / "source", f"{number}.parquet", rows.filter(pa.compute.greater_equal(rows["pid"], 0)))
        make_job(tmp_path, partition_by=layout).run()
    seeded = DedupJob(tmp_path / "source", tmp_path / "other" / "state", tmp_path / "other" / "sink")
    seeded.seed(clean=tmp_path / "sink")
    assert seeded.run().kept == 0


# Seeds


def test_a_seed_knows_what_a_run_would_and_writes_nothing(tmp_path: Path) -> None:
    clean = pa.table(first_of_each(pl.DataFrame(make_rows(1)))).cast(make_rows(1).schema)
    land(tmp_path / "source", "clean.parquet", clean)
    report = make_job(tmp_path).seed()
    assert (report.version, report.kept, report.outputs) == (1, len(clean), ())
    land(tmp_path / "source", "again.parquet", make_rows(1))
    report = make_job(tmp_path).run()
    assert report.counts.get("ACCEPTED", 0) == 0
    assert state.open(tmp_path / "state").versions()[0].kind == "seed"
    with pytest.raises(fp.SnapshotError, match="only a new state"):
        make_job(tmp_path).seed()


def test_a_seed_reports_missing_ranges(tmp_path: Path) -> None:
    """So that later versions can undo it."""
    land(tmp_path / "source", "1.parquet", timed(1, [0, 1, 5, 9], [0] * 4))
    report = make_job(tmp_path).seed()
    assert (report.outputs, report.missing_changes) == ((), {"OPEN": 2})
    assert os.listdir(tmp_path / "sink/run=1") == ["_missing"]
    assert from_changelog(tmp_path) == still_missing(tmp_path) != Counter()
    land(tmp_path / "source", "2.parquet", timed(1, [2, 3, 4, 6], [0] * 4))
    assert make_job(tmp_path).run().missing_changes == {"CLOSED": 1, "SPLIT": 1, "OPEN": 1}
    assert from_changelog(tmp_path) == still_missing(tmp_path) != Counter()


def test_a_seed_of_data_that_are_not_clean(tmp_path: Path) -> None:
    land_some(tmp_path, [1])
    with pytest.raises(fp.SourceError, match=r"not clean.* DUPLICATE"):
        make_job(tmp_path).seed()
    assert not (tmp_path / "sink" / "run=1").exists()


def test_a_seed_from_another_folder(tmp_path: Path) -> None:
    """The table that was there before the job; the landing zone may hold its rows too, and is read whole."""
    landed = make_rows(1)
    clean = pa.table(first_of_each(pl.DataFrame(landed))).cast(landed.schema)
    land(tmp_path / "clean", "clean.parquet", clean)
    land(tmp_path / "source", "clean.parquet", landed)
    before = hashes(tmp_path / "clean")
    report = make_job(tmp_path).seed(clean=tmp_path / "clean")
    assert (report.version, report.kept, report.outputs, report.source) == (
        1,
        len(clean),
        (),
        str(tmp_path / "clean"),
    )
    report = make_job(tmp_path).run()
    assert (report.files, report.counts.get("ACCEPTED", 0)) == (1, 0)
    land_some(tmp_path, [2])
    assert make_job(tmp_path).run().counts["ACCEPTED"]
    assert hashes(tmp_path / "clean") == before
    assert state.open(tmp_path / "state").version(1).report["seeded_from"] == str(tmp_path / "clean")


def test_a_seed_from_another_folder_reads_all_of_it(tmp_path: Path) -> None:
    land(tmp_path / "clean", "1.parquet", timed(1, [0], [0]))
    bad = tmp_path / "clean" / "bad.parquet"
    bad.write_bytes(b"PAR1 and no end")
    (tmp_path / "source").mkdir()
    for settle_ms in (60_000, 0):
        with pytest.raises(fp.SourceError, match=r"clean: cannot read 1 file\b.*: bad.parquet"):
            make_job(tmp_path, settle_ms=settle_ms).seed(clean=tmp_path / "clean")
    bad.unlink()
    assert make_job(tmp_path).seed(clean=tmp_path / "clean").kept == 1


def test_links_only_where_nothing_ever_changes(tmp_path: Path) -> None:
    clean = pa.table(first_of_each(pl.DataFrame(make_rows(1))))
    path = land(tmp_path / "source", "clean.parquet", clean)
    for immutable in (False, True):
        root = tmp_path / str(immutable)
        report = run_as(root, None, tmp_path / "source", source_immutable=immutable)
        assert report.carried_files == 1
        output = root / "sink/run=1/part-00000.parquet"
        assert (output.stat().st_ino == path.stat().st_ino) is immutable
