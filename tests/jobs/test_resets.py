"""Counters that restart under the same epoch: found at any size, within a run or over several; copies are not."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fencepost import Columns, Policy, auditor, lake, resets
from fencepost.generate import LandingZone, generate
from fencepost.lake import repeats
from fencepost.pages.run import run_page
from support import daily
from support.lake import hashes, land, make_job, with_column

DAY_MS = 86_400_000
TIMED = Columns(timestamp="timestamp")


def life(first_ms: int, seqs: Any, *, pid: Any = 7, rows_a_batch: int = 1) -> pa.Table:
    """Events of one device; a batch has one timestamp."""
    count = len(seqs)
    return pa.table(
        {
            "pid": pa.array([pid] * count),
            "epoch": pa.array([0] * count, pa.int16()),
            "partition": pa.array([0] * count, pa.int32()),
            "seq": pa.array(list(seqs), pa.int64()),
            "timestamp": [first_ms + row // rows_a_batch for row in range(count)],
            "value": [f"{first_ms}:{row}" for row in range(count)],
        }
    )


def land_all(root: Path, files: dict[str, pa.Table]) -> None:
    for name, rows in files.items():
        land(root / "source", f"{name}.parquet", rows)


def halves(rows: pa.Table) -> list[pa.Table]:
    borders = [0, len(rows) // 2, len(rows)]
    return [rows.slice(first, end - first) for first, end in pairwise(borders)]


def in_turns(one: pa.Table, two: pa.Table) -> dict[str, pa.Table]:
    """The second half of the second life, the first of the first, and so on."""
    names = ("b", "d", "c", "a")
    return {name: rows for name, rows in zip(names, (*halves(one), *halves(two)), strict=True) if len(rows)}


ARRANGEMENTS = {
    "one file": lambda one, two: {"a": pa.concat_tables([one, two])},
    "two files": lambda one, two: {"a": one, "b": two},
    "the second life first": lambda one, two: {"a": two, "b": one},
    "in turns": in_turns,
}


@pytest.mark.parametrize(
    ("name", "count", "rows_a_batch"),
    [
        # Each pair of values at least once.
        pytest.param(name, count, rows_a_batch, marks=() if (row + column) % 2 == which else pytest.mark.matrix)
        for row, name in enumerate(ARRANGEMENTS)
        for column, count in enumerate((1, 3, 999, 5_000))
        for which, rows_a_batch in enumerate((1, 40))
    ],
)
def test_a_restart_within_a_run_stops_it(tmp_path: Path, name: str, count: int, rows_a_batch: int) -> None:
    """Whatever its size, its place in the files and its batches; and an audit of the same files finds it."""
    one = life(0, range(count), rows_a_batch=rows_a_batch)
    two = life(DAY_MS, range(count + 200), rows_a_batch=rows_a_batch)
    land_all(tmp_path, ARRANGEMENTS[name](one, two))
    with pytest.raises(fp.PolicyError, match=r"1 key .*restarted"):
        make_job(tmp_path, max_idle_ms=10 * DAY_MS).run()
    assert not list((tmp_path / "sink").glob("run=*"))
    report = make_job(tmp_path, max_idle_ms=10 * DAY_MS, on_reset="report").run()
    expected = {"pid": 7, "partition": 0, "epoch": 0, "rows": 2 * count + 200, "duplicates": count, "retimed": count}
    assert report.suspected_resets.to_pylist() == [expected]
    assert "1 or more repeats" in str(report)
    audit = lake.audit(tmp_path / "source", columns=TIMED)
    del expected["epoch"]
    assert audit.suspected_resets.to_pylist() == [expected]
    assert "1 or more repeats" in str(audit)


@pytest.mark.parametrize("count", [1, 3, 999, 5_000])
def test_a_restart_over_two_runs_stops_the_second(tmp_path: Path, count: int) -> None:
    job = {"max_idle_ms": 10 * DAY_MS}
    land_all(tmp_path, {"a": life(0, range(count))})
    make_job(tmp_path, **job).run()
    before = hashes(tmp_path)
    land_all(tmp_path, {"b": life(DAY_MS, range(count + 200), rows_a_batch=10_000)})
    with pytest.raises(fp.PolicyError, match=r"1 key .*seems to have restarted") as info:
        make_job(tmp_path, **job).run()
    assert f"'duplicates': {count}, 'retimed': {count}" in str(info.value)
    assert {name: it for name, it in hashes(tmp_path).items() if name != "source/b.parquet"} == before
    report = make_job(tmp_path, on_reset="report", **job).run()
    assert report.suspected_resets.to_pylist() == [
        {"pid": 7, "partition": 0, "epoch": 0, "rows": count + 200, "duplicates": count, "retimed": count}
    ]


def test_a_restart_that_fills_what_was_missing(tmp_path: Path) -> None:
    """Rows of the second life that no row of the first had are accepted between its repeats."""
    land_all(tmp_path, {"a": life(0, range(0, 500, 2)), "b": life(DAY_MS, range(500))})
    with pytest.raises(fp.PolicyError, match="'duplicates': 250, 'retimed': 250"):
        make_job(tmp_path, max_idle_ms=10 * DAY_MS).run()


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns")])
@pytest.mark.parametrize("policy", ["any_order", "in_order"])
def test_rows_in_the_order_of_their_timestamps(tmp_path: Path, policy: str, kind: pa.DataType) -> None:
    """The job then reads the timestamps as they are in the file."""
    rows = life(0, range(5))
    times = [pa.array([first + 1000 * row for row in range(5)], pa.timestamp("ms")).cast(kind) for first in (0, DAY_MS)]
    first, again = (rows.set_column(4, "timestamp", it) for it in times)
    for name, landed, retimed in (("a", first, 0), ("b", first, 0), ("c", again, 5)):
        land_all(tmp_path, {name: landed})
        job = make_job(tmp_path, policy=policy, order_by="timestamp", max_idle_ms=10 * DAY_MS, on_reset="report")
        found = job.run().suspected_resets
        assert sum(found["retimed"].to_pylist() if len(found) else []) == retimed


def test_all_keys_are_counted_though_the_report_has_the_first(tmp_path: Path) -> None:
    """A recreated topic: every producer restarts."""
    lives = [pa.concat_tables([life(day * DAY_MS, [0], pid=pid) for pid in range(1_500)]) for day in (0, 1)]
    land_all(tmp_path, {"a": lives[0], "b": lives[1]})
    with pytest.raises(fp.PolicyError, match="numbering of 1,500 keys"):
        make_job(tmp_path, max_idle_ms=10 * DAY_MS).run()
    report = make_job(tmp_path, max_idle_ms=10 * DAY_MS, on_reset="report").run()
    assert (report.reset_keys, len(report.suspected_resets)) == (1_500, 1_000)
    assert re.search(r"resets +1,500 +keys", str(report))
    (restarts,) = (it for it in run_page(report).sections if it.name == "restarts")
    assert (restarts.figure, restarts.tables[0].total) == ("1,500 keys", 1_500)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(2), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_keys_of_every_kind(tmp_path: Path, kind: pa.DataType) -> None:
    def of(rows: pa.Table, site: int) -> pa.Table:
        texts = pa.array(["p7"] * len(rows))
        keys = texts.dictionary_encode().cast(kind) if "dictionary" in str(kind) else texts.cast(pa.binary()).cast(kind)
        return rows.set_column(0, "pid", keys).append_column("site", pa.array([site] * len(rows)))

    columns = Columns(pid=("pid", "site"), timestamp="timestamp")
    land_all(tmp_path, {"a": of(life(0, range(9)), 1), "b": of(life(50, range(9)), 1), "c": of(life(900, range(9)), 2)})
    report = make_job(tmp_path, max_idle_ms=DAY_MS, columns=columns, on_reset="report").run()
    (found,) = report.suspected_resets.to_pylist()
    assert (found["pid_1"], found["duplicates"], found["retimed"]) == (1, 9, 9)


@pytest.mark.parametrize("epochs", ["key", "fence", "ignore"])
def test_policies_of_every_kind_of_epochs(tmp_path: Path, epochs: Any) -> None:
    columns = Columns(epoch=None if epochs == "ignore" else "epoch", timestamp="timestamp")
    policy = Policy.any_order().replace(epochs=epochs, columns=columns)
    land_all(tmp_path, {"a": life(0, range(30)), "b": life(100, range(40))})
    report = make_job(tmp_path, policy=policy, order_by=(), max_idle_ms=DAY_MS, on_reset="report").run()
    assert report.suspected_resets["retimed"].to_pylist() == [30]
    assert lake.audit(tmp_path / "source", policy).suspected_resets["retimed"].to_pylist() == [30]


# Repeats that are copies


@pytest.mark.parametrize("seed", daily.first(range(3)))
@pytest.mark.parametrize("threads", [1, 2])
def test_a_landing_zone_full_of_repeats_has_no_reset(tmp_path: Path, seed: int, threads: int) -> None:
    """Retries, rows and whole files that land again much later, disorder, zombies, restarts with other pids."""
    spec = LandingZone(
        rows=20_000, producers=20, repeat_near=0.1, repeat_far=0.1, redelivery_share=0.5, retry_share=0.05,
        disorder_within=0.1, disorder_across=0.1, deliveries=3, seed=seed,
    )  # fmt: skip
    generate(tmp_path / "zone", spec)
    columns = Columns(partition=("topic", "partition"), timestamp="timestamp")
    options: dict[str, Any] = {"columns": columns, "max_idle_ms": 10**12, "engine": lake.LocalEngine(threads)}
    job = lake.DedupJob(tmp_path / "zone/landing", tmp_path / "state", tmp_path / "sink", **options)
    report = job.run()
    assert report.counts["DUPLICATE"] > 5_000, "there were repeats to be inspected"
    assert len(report.suspected_resets) == 0
    assert report.resets_looked_for
    audit = lake.audit(tmp_path / "zone/landing", columns=columns, threads=threads)
    assert audit.counts["DUPLICATE"] == report.counts["DUPLICATE"]
    assert len(audit.suspected_resets) == 0


def test_a_whole_file_that_lands_again_much_later_in_any_order(tmp_path: Path) -> None:
    rows = life(DAY_MS, range(3_000))
    shuffled = rows.take(pa.array(np.random.default_rng(0).permutation(len(rows))))
    for number, again in enumerate([rows, rows, shuffled, shuffled.slice(500), rows.slice(0, 1)]):
        land_all(tmp_path, {str(number): again})
        report = make_job(tmp_path, max_idle_ms=10 * DAY_MS).run()
        assert report.counts == {"DUPLICATE" if number else "ACCEPTED": len(again)}
        assert (len(report.suspected_resets), "resets" in str(report)) == (0, number > 0)
    land_all(tmp_path, {"8": life(0, range(3_000, 4_000)), "9": shuffled})  # older rows that land late
    assert make_job(tmp_path, max_idle_ms=10 * DAY_MS).run().counts == {"ACCEPTED": 1_000, "DUPLICATE": 3_000}


# The threshold, and the report


def test_the_threshold_is_an_option(tmp_path: Path) -> None:
    land_all(tmp_path, {"a": life(0, range(50)), "b": life(DAY_MS, range(20))})
    with pytest.raises(fp.PolicyError, match="20 or more repeats"):
        make_job(tmp_path, max_idle_ms=10 * DAY_MS, reset_rows_min=20).run()
    report = make_job(tmp_path, max_idle_ms=10 * DAY_MS, reset_rows_min=21).run()
    assert (len(report.suspected_resets), report.reset_rows_min) == (0, 21)
    assert json.loads(report.to_json())["reset_rows_min"] == 21
    table = pa.concat_tables([life(0, range(50)), life(DAY_MS, range(20))])
    for rows_min, found in ((20, 1), (21, 0)):
        audit = lake.audit(tmp_path / "source", columns=TIMED, reset_rows_min=rows_min)
        assert (len(audit.suspected_resets), audit.reset_rows_min) == (found, rows_min)
        assert len(fp.audit(table, columns=TIMED, reset_rows_min=rows_min).suspected_resets) == found


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_threshold_below_one_row(tmp_path: Path, wrong: int) -> None:
    for act in (
        lambda: make_job(tmp_path, reset_rows_min=wrong),
        lambda: lake.audit(tmp_path / "source", reset_rows_min=wrong),
        lambda: fp.audit(life(0, [0]), reset_rows_min=wrong),
    ):
        with pytest.raises(ValueError, match=rf"reset_rows_min={wrong}: expected 1 row or more"):
            act()


def test_without_timestamps_the_reports_say_that_resets_are_unknown(tmp_path: Path) -> None:
    land_all(tmp_path, {"a": life(0, range(3))})
    assert "not looked for" not in str(make_job(tmp_path).run()), "there are no repeats"
    land_all(tmp_path, {"b": life(DAY_MS, range(3)), "c": life(2 * DAY_MS, range(3))})
    report = make_job(tmp_path).run()
    assert not report.resets_looked_for
    assert re.search(r"\n  resets +\?  not looked for: .*max_idle", str(report))
    assert re.search(r" +\?  .*not looked for, .*timestamp column", str(lake.audit(tmp_path / "source")))
    with pytest.raises(fp.SnapshotError, match=r"max_idle=None in the state, 'given'"):
        make_job(tmp_path, max_idle_ms=1).run()


def test_a_restart_is_reported_if_each_new_event_has_other_content(tmp_path: Path) -> None:
    """Each of its rows is a CONFLICT then, and none a DUPLICATE."""
    land_all(tmp_path, {"a": pa.concat_tables([life(0, range(9)), life(DAY_MS, range(9))])})
    options = {"on_reset": "report", "compare_content": ["value"], "on_conflict": "quarantine"}
    report = make_job(tmp_path, max_idle_ms=10 * DAY_MS, **options).run()
    assert report.counts == {"ACCEPTED": 9, "CONFLICT": 9}
    assert len(report.suspected_resets) == 1
    assert re.search(r"resets +1 +key ", str(report))


# What is compared


def test_an_audit_beyond_its_sample_still_sees_what_is_newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(auditor, "SAMPLE_MAX", 64)
    land_all(tmp_path, {"a": life(0, range(5_000)), "b": life(DAY_MS, range(4_000)), "c": life(0, range(5_000))})
    report = lake.audit(tmp_path / "source", columns=TIMED)
    assert report.distance_share < 0.1
    assert report.suspected_resets["retimed"].to_pylist() == [4_000]


@pytest.mark.parametrize("seed", range(20))
def test_kept_rows_are_found_as_plain_sets_find_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth: dict[tuple[int, int], tuple[int, int]] = {}
    ranges = []
    for group in range(4):
        end = 0
        for _ in range(int(rng.integers(0, 6))):
            first = end + int(rng.integers(0, 4))
            end = first + int(rng.integers(1, 9))
            ranges.append((group, first, end - first))
    rng.shuffle(ranges)
    for place, (group, first, count) in enumerate(ranges):
        truth |= {(group, first + offset): (place, offset) for offset in range(count)}
    columns = np.array(ranges, np.int64).reshape(-1, 3).T
    wanted = [(group, seq) for group in range(5) for seq in range(60)]
    groups, seqs = np.array(wanted).T
    places, offsets = resets.KeptRows(*columns).find(groups, seqs)
    assert list(zip(places.tolist(), offsets.tolist(), strict=True)) == [truth.get(it, (-1, 0)) for it in wanted]


@pytest.mark.parametrize("rows_together", [7, 1 << 20])
@pytest.mark.parametrize("rows_a_batch", [1, 25])
def test_a_restart_where_sequences_pass_the_wrap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows_a_batch: int, rows_together: int
) -> None:
    monkeypatch.setattr(repeats, "ROWS_TOGETHER", rows_together)
    policy = Policy.any_order().replace(wrap=1_000)
    seqs = [seq % 1_000 for seq in range(900, 1_100)]
    one, two = (life(first, seqs, rows_a_batch=rows_a_batch) for first in (0, DAY_MS))
    land_all(tmp_path, {"a": one, "b": two})
    report = make_job(tmp_path, policy=policy, order_by=(), max_idle_ms=10 * DAY_MS, on_reset="report").run()
    assert report.suspected_resets["retimed"].to_pylist() == [200]
    land_all(tmp_path, {"c": one})
    assert len(make_job(tmp_path, policy=policy, order_by=(), max_idle_ms=10 * DAY_MS).run().suspected_resets) == 0


def test_if_sequences_wrap_in_a_run_only_newer_rows_count(tmp_path: Path) -> None:
    """Each sequence is accepted twice, so a copy may be of either row."""
    policy = Policy.any_order().replace(wrap=1_000)
    rows = life(0, [seq % 1_000 for seq in range(2_000)])
    land_all(tmp_path, {"a": rows, "b": rows.slice(1_990)})
    report = make_job(tmp_path, policy=policy, order_by=(), max_idle_ms=10 * DAY_MS).run()
    assert report.counts == {"ACCEPTED": 2_000, "DUPLICATE": 10}
    later = pq.read_table(tmp_path / "source/b.parquet")
    moved = pc.add(later["timestamp"], DAY_MS)
    land_all(tmp_path, {"c": with_column(later, "timestamp", moved)})
    with pytest.raises(fp.PolicyError, match="'retimed': 10"):
        make_job(tmp_path, policy=policy, order_by=(), max_idle_ms=10 * DAY_MS).run()
