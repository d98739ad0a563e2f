"""Bad files: deferred from the first run that found them, then quarantined or a stop, and never judged out of order."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from fencepost import state
from fencepost.lake import LocalEngine, left_out
from fencepost.state.decision import Deferred, decision_from_json, to_json
from support.lake import (
    first_of_each,
    flip_byte,
    hashes,
    land,
    land_some,
    make_job,
    make_rows,
    one_producer,
    read_sink,
    read_source,
    with_column,
)

MINUTE_MS = 60_000


class Clock:
    """The clock of runs, in milliseconds from now."""

    def __init__(self) -> None:
        self.ms = left_out.time.time_ns() // 1_000_000

    def time_ns(self) -> int:
        return self.ms * 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(left_out, "time", clock)
    return clock


def cut(file: Path) -> None:
    """Cut a file short, long ago by its own time."""
    file.write_bytes(file.read_bytes()[:-100])
    os.utime(file, (0, 0))


DAMAGE = [cut, flip_byte]


def newest(root: Path) -> Any:
    return state.open(root / "state").latest()


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_deferred_from_when_it_was_first_seen(
    tmp_path: Path, clock: Clock, damage: Callable[[Path], None]
) -> None:
    """The file's own time does not matter: a copy that keeps times can be old when it arrives."""
    land_some(tmp_path)
    damage(tmp_path / "source" / "2.parquet")
    report = make_job(tmp_path).run()
    assert (report.files, report.deferred, report.quarantined) == (3, ("2.parquet",), ())
    assert newest(tmp_path).deferred.first_seen_ms == [clock.ms]
    clock.ms += MINUTE_MS - 1
    assert make_job(tmp_path).run().version is None
    clock.ms += 1
    report = make_job(tmp_path).run()
    assert (report.version, report.deferred, [path for path, _ in report.quarantined]) == (2, (), ["2.parquet"])
    assert len(newest(tmp_path).deferred) == 0
    assert make_job(tmp_path).run().version is None


def test_a_damaged_file_that_changes_is_deferred_again(tmp_path: Path, clock: Clock) -> None:
    land_some(tmp_path)
    file = tmp_path / "source" / "2.parquet"
    whole = file.read_bytes()
    for length in (100, 200, 300):
        file.write_bytes(whole[:length])
        assert make_job(tmp_path).run().deferred == ("2.parquet",)
        clock.ms += MINUTE_MS - 1
    file.write_bytes(whole)
    make_job(tmp_path).run()
    assert read_sink(tmp_path).height == first_of_each(read_source(tmp_path)).height


def test_a_clock_that_was_ahead_does_not_defer_for_years(tmp_path: Path, clock: Clock) -> None:
    land_some(tmp_path)
    cut(tmp_path / "source" / "2.parquet")
    now = clock.ms
    clock.ms += 10**12
    make_job(tmp_path).run()
    clock.ms = now
    make_job(tmp_path).run()
    clock.ms += MINUTE_MS
    assert [path for path, _ in make_job(tmp_path).run().quarantined] == ["2.parquet"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_that_is_to_stop_the_run(tmp_path: Path, clock: Clock, damage: Callable[[Path], None]) -> None:
    land_some(tmp_path)
    bad = tmp_path / "source" / "2.parquet"
    damage(bad)
    assert make_job(tmp_path, on_bad_file="stop").run().deferred == ("2.parquet",)
    clock.ms += MINUTE_MS
    before = hashes(tmp_path)
    with pytest.raises(fp.SourceError, match=rf"{bad}.*on_bad_file='quarantine'") as caught:
        make_job(tmp_path, on_bad_file="stop").run()
    assert (caught.value.path, hashes(tmp_path)) == (str(bad), before)
    land(tmp_path / "source", "2.parquet", make_rows(2))
    assert make_job(tmp_path, on_bad_file="stop").run().files == 1
    assert read_sink(tmp_path).height == first_of_each(read_source(tmp_path)).height


def test_many_damaged_files_cost_one_replanning(tmp_path: Path) -> None:
    land_some(tmp_path, range(9))
    for seed in range(2, 8):
        flip_byte(tmp_path / "source" / f"{seed}.parquet")
    stages: list[str] = []

    class Counting(LocalEngine):
        def run(self, stage: str, *arguments: Any) -> Any:
            stages.append(stage)
            return super().run(stage, *arguments)

    report = make_job(tmp_path, engine=Counting(2), plan="interval").run()
    assert (report.files, len(report.deferred)) == (3, 6)
    assert (stages.count("scan"), stages.count("write")) == (2, 2)
    assert make_job(tmp_path, plan="interval").run().version is None


# -- Wrong columns, types and values


MISFITS = {
    "no column": make_rows(7).drop_columns(["seq"]),
    "text for a number": with_column(make_rows(7), "seq", pa.array(["1"] * 600)),
    "another type of key": with_column(make_rows(7), "pid", make_rows(7)["pid"].cast(pa.string())),
    "a value out of range": with_column(make_rows(7), "seq", pa.array([-1] * 600)),
}


@pytest.mark.parametrize("case", MISFITS)
def test_unsuitable_files_are_quarantined_on_request(tmp_path: Path, clock: Clock, case: str) -> None:
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    land_some(tmp_path, [1, 2])
    bad = land(tmp_path / "source", "bad.parquet", MISFITS[case])
    for options in ({}, {"on_bad_file": "stop"}):
        before = hashes(tmp_path)
        with pytest.raises(fp.BatchError, match=rf"{bad}: column '(seq|pid)'"):
            make_job(tmp_path, **options).run()
        assert hashes(tmp_path) == before
    report = make_job(tmp_path, on_bad_file="quarantine").run()
    assert (report.files, report.deferred) == (2, ("bad.parquet",))
    clock.ms += MINUTE_MS
    ((path, reason),) = make_job(tmp_path, on_bad_file="quarantine").run().quarantined
    assert path == "bad.parquet"
    assert re.match(rf"{bad}: column '(seq|pid)'", reason)
    assert make_job(tmp_path).run().version is None
    bad.unlink()
    assert read_sink(tmp_path).height == first_of_each(read_source(tmp_path)).height


def test_folders_that_do_not_fit(tmp_path: Path, clock: Clock) -> None:
    columns = fp.Columns(partition="region")
    for region in ("1", "2"):
        land(tmp_path / "source" / f"region={region}", "a.parquet", make_rows(1).drop_columns(["partition"]))
    make_job(tmp_path, columns=columns).run()
    for region in ("3", "eu"):
        land(tmp_path / "source" / f"region={region}", "b.parquet", make_rows(1).drop_columns(["partition"]))
    report = make_job(tmp_path, columns=columns, on_bad_file="quarantine").run()
    assert (report.files, report.deferred) == (1, ("region=eu/b.parquet",))


def test_columns_that_no_file_has_are_the_jobs_fault(tmp_path: Path) -> None:
    land_some(tmp_path)
    with pytest.raises(fp.BatchError, match="column 'number': missing"):
        make_job(tmp_path, columns=fp.Columns(seq="number"), on_bad_file="quarantine", settle_ms=0).run()
    assert not (tmp_path / "state").exists()


def test_another_type_of_key_stops_the_first_run(tmp_path: Path) -> None:
    land_some(tmp_path, [0])
    land(tmp_path / "source", "bad.parquet", MISFITS["another type of key"])
    with pytest.raises(fp.BatchError, match=r"column 'pid': .* string; in .*0.parquet it is integer"):
        make_job(tmp_path, on_bad_file="quarantine", settle_ms=0).run()


# -- Order


def numbered(first: int, count: int = 10) -> pa.Table:
    return one_producer(range(first, first + count))


def kept(root: Path) -> list[int]:
    found = [pq.read_table(file)["seq"].to_pylist() for file in sorted((root / "sink").glob("run=*/*.parquet"))]
    return [seq for seqs in found for seq in seqs]


@pytest.mark.parametrize("order_by", [(), ("seq",)])
@pytest.mark.parametrize("policy", ["in_order", "strict"])
def test_files_after_a_deferred_file_wait_for_it(
    tmp_path: Path, clock: Clock, policy: str, order_by: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {"policy": policy, "order_by": order_by}
    source = tmp_path / "source"
    for number in range(5):
        file = land(source, f"{number}.parquet", numbered(number * 10))
    whole = (source / "2.parquet").read_bytes()
    (source / "2.parquet").write_bytes(whole[:-100])
    report = make_job(tmp_path, **options).run()
    before = {(): ["0.parquet", "1.parquet"], ("seq",): []}[order_by]
    assert (report.inputs["path"].to_pylist(), report.deferred) == (before, ("2.parquet",))
    assert list(report.blocked) == sorted({f"{it}.parquet" for it in range(5)} - {*before, "2.parquet"})
    assert make_job(tmp_path, **options).run().version is None
    clock.ms += MINUTE_MS - 1
    land(source, "5.parquet", numbered(50))
    assert make_job(tmp_path, **options).run().files == 0
    (source / "2.parquet").write_bytes(whole)
    report = make_job(tmp_path, **options).run()
    assert (report.counts, report.blocked) == ({"ACCEPTED": 60 - 10 * len(before)}, ())
    assert (kept(tmp_path), file.exists()) == (list(range(60)), True)


def test_a_deferred_file_has_its_turn_among_what_a_run_may_read(tmp_path: Path, clock: Clock) -> None:
    """After its repair, it is judged after the new files before it, even if runs read only some of them."""
    options: dict[str, Any] = {"policy": "in_order", "order_by": (), "files_max": 2}
    land(tmp_path / "source", "0.parquet", numbered(0))
    file = land(tmp_path / "source", "5.parquet", numbered(50))
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert make_job(tmp_path, **options).run().deferred == ("5.parquet",)
    for number in range(1, 5):
        land(tmp_path / "source", f"{number}.parquet", numbered(number * 10))
    file.write_bytes(whole)
    runs = [make_job(tmp_path, **options).run() for _ in range(3)]
    read = [run.inputs["path"].to_pylist() for run in runs]
    assert read == [["1.parquet", "2.parquet"], ["3.parquet", "4.parquet"], ["5.parquet"]]
    assert [run.counts for run in runs] == [{"ACCEPTED": 20}, {"ACCEPTED": 20}, {"ACCEPTED": 10}]
    assert kept(tmp_path) == list(range(60))


def test_waiting_files_continue_after_a_file_is_quarantined(tmp_path: Path, clock: Clock) -> None:
    for number in range(4):
        land(tmp_path / "source", f"{number}.parquet", numbered(number * 10))
    for bad in ("1.parquet", "2.parquet"):
        cut(tmp_path / "source" / bad)
    report = make_job(tmp_path, policy="in_order", order_by=()).run()
    assert (report.files, report.deferred, report.blocked) == (1, ("1.parquet", "2.parquet"), ("3.parquet",))
    clock.ms += MINUTE_MS
    report = make_job(tmp_path, policy="in_order", order_by=()).run()
    assert [path for path, _ in report.quarantined] == ["1.parquet", "2.parquet"]
    assert kept(tmp_path) == [*range(10), *range(30, 40)]


# -- Delta tables


def append(root: Path, rows: pa.Table) -> Path:
    known = set((root / "source").glob("*.parquet"))
    write_deltalake(root / "source", rows, mode="append")
    (file,) = set((root / "source").glob("*.parquet")) - known
    return file


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("damage", [cut, lambda file: file.write_bytes(bytes(file.stat().st_size))])
def test_a_job_continues_and_checks_the_bad_file_again(
    tmp_path: Path, clock: Clock, first: bool, damage: Callable[[Path], None]
) -> None:
    """The position moves past it; it is read when it is whole again, though no commit names it any more."""
    if not first:
        append(tmp_path, numbered(100))
        make_job(tmp_path).run()
    bad = append(tmp_path, numbered(0))
    append(tmp_path, numbered(10))
    whole = bad.read_bytes()
    damage(bad)
    report = make_job(tmp_path).run()
    assert (report.files, report.deferred, report.quarantined) == (1, (bad.name,), ())
    clock.ms += MINUTE_MS - 1
    append(tmp_path, numbered(20))
    assert make_job(tmp_path).run().files == 1
    bad.write_bytes(whole)
    assert make_job(tmp_path).run().files == 1
    assert make_job(tmp_path).run().version is None
    assert sorted(kept(tmp_path)) == sorted([*range(30), *([] if first else range(100, 110))])


def test_a_bad_file_of_a_table_is_quarantined_or_stops_the_run(tmp_path: Path, clock: Clock) -> None:
    bad = append(tmp_path, numbered(0))
    append(tmp_path, numbered(10))
    cut(bad)
    make_job(tmp_path).run()
    clock.ms += MINUTE_MS
    with pytest.raises(fp.SourceError, match=f"{bad.name}: .* bytes, but the table") as caught:
        make_job(tmp_path, on_bad_file="stop").run()
    assert caught.value.path == str(bad)
    assert [path for path, _ in make_job(tmp_path).run().quarantined] == [bad.name]
    assert make_job(tmp_path).run().version is None


def test_versions_wait_for_a_bad_file_of_a_version_before(tmp_path: Path, clock: Clock) -> None:
    options: dict[str, Any] = {"policy": "in_order", "order_by": ()}
    files = [append(tmp_path, numbered(number * 10)) for number in range(3)]
    whole = files[1].read_bytes()
    cut(files[1])
    report = make_job(tmp_path, **options).run()
    assert (report.files, report.deferred, report.blocked) == (1, (files[1].name,), (files[2].name,))
    append(tmp_path, numbered(30))
    assert make_job(tmp_path, **options).run().files == 0
    state.open(tmp_path / "state").reshard(3)
    files[1].write_bytes(whole)
    assert make_job(tmp_path, **options).run().counts == {"ACCEPTED": 30}
    assert sorted(kept(tmp_path)) == list(range(40))


def test_a_rollback_takes_back_what_was_deferred(tmp_path: Path, clock: Clock) -> None:
    append(tmp_path, numbered(0))
    make_job(tmp_path).run()
    bad = append(tmp_path, numbered(10))
    whole = bad.read_bytes()
    cut(bad)
    make_job(tmp_path).run()
    state.open(tmp_path / "state").rollback(1)
    bad.write_bytes(whole)
    assert make_job(tmp_path).run().rows == 10
    assert sorted(kept(tmp_path)) == list(range(20))


def test_a_bad_file_that_was_deleted_from_the_table(tmp_path: Path, clock: Clock) -> None:
    append(tmp_path, numbered(0))
    bad = append(tmp_path, numbered(10))
    cut(bad)
    make_job(tmp_path).run()
    DeltaTable(tmp_path / "source").delete()
    bad.unlink()
    report = make_job(tmp_path).run()
    assert (report.deferred, len(newest(tmp_path).deferred)) == ((), 0)


# -- The state


def test_a_decision_from_before_there_was_a_list(tmp_path: Path) -> None:
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    fields = json.loads(to_json(newest(tmp_path)))
    del fields["deferred"]
    assert decision_from_json(json.dumps(fields).encode(), "x").deferred == Deferred()


@pytest.mark.parametrize("kind", ["damaged", "wrong values"])
def test_a_good_file_in_the_place_of_a_quarantined_one(tmp_path: Path, kind: str) -> None:
    """With the same name, size and time, as after a restarted copy or a restore."""
    good = land(tmp_path / "good", "b.parquet", make_rows(5)).read_bytes()
    # Stored as plain integers, a sequence number is changed in place.
    rows = pa.table({"pid": [9, 9], "epoch": [0, 0], "partition": [0, 0], "seq": [77_777_777, 88_888_888]})
    if kind == "wrong values":
        good = land(tmp_path / "good", "b.parquet", rows, use_dictionary=False, compression="none").read_bytes()
        bad = good.replace((77_777_777).to_bytes(8, "little"), (-7).to_bytes(8, "little", signed=True))
    else:
        bad = good[:-64] + bytes(64)
    assert (len(bad), bad == good) == (len(good), False)
    land_some(tmp_path, [0])
    path = tmp_path / "source" / "b.parquet"
    put(path, bad)
    report = make_job(tmp_path, settle_ms=0, on_bad_file="quarantine", schema="merge").run()
    assert [name for name, _ in report.quarantined] == ["b.parquet"]
    put(path, bad)  # a remount: another inode, and nothing new
    report = make_job(tmp_path, settle_ms=0, on_bad_file="quarantine", schema="merge").run()
    assert (report.version, report.quarantined) == (None, ())
    put(path, good)
    report = make_job(tmp_path, settle_ms=0, on_bad_file="quarantine", schema="merge").run()
    assert (report.files, report.quarantined) == (1, ())
    assert report.kept > 0


def put(path: Path, data: bytes) -> None:
    """Replace a file by one of another inode and the same time."""
    fresh = path.with_name(".fresh")
    fresh.write_bytes(data)
    os.utime(fresh, ns=(10**18, 10**18))
    os.link(fresh, path.with_name(f".{uuid4().hex}"))  # so that no later file gets its inode
    os.replace(fresh, path)
