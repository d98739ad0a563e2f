"""Checksums of kept rows: what a run compares repeats of earlier runs with, and what becomes of them in a state."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import lake, state
from fencepost.errors import SourceError
from fencepost.lake import kept_content
from fencepost.resets import ROWS_TOGETHER
from fencepost.state import checksums
from fencepost.state.checksums import COUNT, SEQ, KeptSums, Living, decode, encode, find, joined
from fencepost.state.decision import Checksums, Decision, Piece, SumPiece
from fencepost.state.segment_files import CACHE, SegmentWriter, read_piece
from fencepost.state.stores import MemoryStore
from support import daily
from support.lake import Crash, amounts, crash_at, land, make_job, read_sink

KEEP: dict[str, Any] = {"compare_content": True, "keep_checksums": "all", "sync": False}
DROP = KEEP | {"on_conflict": "drop"}
COMPOSITE = fp.Columns(pid=("cluster", "pid"), partition=("topic", "partition"))


def run(root: Path, name: str, seqs: list[int], values: list[Any], **options: Any) -> lake.RunReport:
    """One more file, and a run that reads it."""
    pid = options.pop("pid", 7)
    land(root / "source", f"{name}.parquet", amounts(seqs, values, pid=pid))
    return make_job(root, **(DROP | {"shards": 2} | options)).run()


def newest(root: Path) -> Decision:
    found = state.open(root / "state").latest()
    assert found is not None
    return found


def check_pieces(opened: state.State) -> None:
    """Every piece that the newest version names is there, and is what was decided."""
    decision = opened.latest()
    assert decision is not None
    assert decision.checksums is not None
    CACHE.clear()
    for shard in set(decision.checksums.shard):
        for it in decision.checksums.get(shard):
            kept = decode(read_piece(opened.store, it.piece), "")
            assert len(kept.sums) == it.rows == sum(kept.ranges[COUNT].to_pylist())


# Which repeats are conflicts


def rows_of(seed: int, count: int = 120) -> pa.Table:
    rng = np.random.default_rng(seed)
    pid = rng.integers(-1, 4, count)
    columns = {
        "cluster": rng.choice(["a", "b"], count),
        "pid": pid,
        "epoch": rng.integers(0, 2, count),
        "topic": rng.choice(["x", "yy"], count),
        "partition": rng.integers(0, 2, count),
        "seq": rng.integers(0, 30, count),
        "x": rng.integers(0, 2, count),
        "y": rng.choice(["a", None], count),
        "origin": [f"{seed}:{row}" for row in range(count)],
    }
    kinds = {"pid": pa.int64(), "epoch": pa.int16(), "partition": pa.int32(), "seq": pa.int32(), "x": pa.int64()}
    return pa.table(columns).cast(pa.schema([(name, kinds.get(name, pa.string())) for name in columns]))


class Oracle:
    """Verdicts of a table, and plain dicts of what was kept."""

    def __init__(self, policy: fp.Policy) -> None:
        self.policy, self.table = policy, fp.StateTable(policy)
        self.kept: dict[Any, Any] = {}
        self.last: dict[Any, int] = {}

    def run(self, rows: pa.Table) -> tuple[list[str], list[str]]:
        """(origins of the conflicts that must be found, of those that may be found, too)."""
        verdicts = self.table.apply(rows)
        codes = np.asarray(pa.array(verdicts.verdict)).tolist()
        columns = self.policy.columns
        names = [*columns.parts("pid"), *columns.parts("partition")]
        names += [columns.epoch] if columns.epoch and self.policy.epochs != "ignore" else []
        before, last_before, accepted = dict(self.kept), dict(self.last), Counter()
        must, may, found = [], [], []
        for row, code in zip(rows.to_pylist(), codes, strict=True):
            key = tuple(row[name] for name in names)
            identity = (key, row["seq"] % (self.policy.wrap or 2**62))
            content = (row["x"], row["y"])
            if code == fp.Verdict.ACCEPTED:
                self.kept[identity] = content
                self.last[key] = max(row["seq"], self.last.get(key, 0))
                accepted[identity] += 1
            elif code == fp.Verdict.DUPLICATE and self.kept.get(identity, content) != content:
                found.append((row["origin"], identity))
        came_round = {key for (key, _), count in accepted.items() if count > 1}
        for origin, (key, seq) in found:
            if key in came_round:
                continue
            reach = self.policy.reach
            is_far = reach is not None and not accepted[key, seq] and seq < last_before.get(key, 0) - reach
            assert (key, seq) in before or accepted[key, seq]
            is_guess = self.policy.admit == "forward" and self.policy.wrap is not None
            (may if is_far or is_guess else must).append(origin)
        return must, may


def policies() -> dict[str, fp.Policy]:
    any_order = fp.Policy.any_order()
    return {
        "any_order": any_order,
        "without wrap": any_order.replace(wrap=None),
        "short wrap": any_order.replace(wrap=16),
        "fence": any_order.replace(epochs="fence"),
        "ignore": any_order.replace(epochs="ignore"),
        "reach": any_order.replace(reach=4, wrap=None),
        "in_order": fp.Policy.in_order(),
        "kafka": fp.Policy.kafka(),
        "watermark": fp.Policy.watermark(),
        "forward, short wrap": fp.Policy.watermark().replace(wrap=16),
        "composite": any_order.replace(columns=COMPOSITE),
    }


@pytest.mark.parametrize(
    ("name", "together"),
    daily.each_value(policies(), (7, ROWS_TOGETHER)),
)
def test_conflicts_over_several_runs_are_those_that_plain_dicts_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, together: int
) -> None:
    for module in (checksums, kept_content, lake.repeats):
        monkeypatch.setattr(module, "ROWS_TOGETHER", together)
    policy = policies()[name]
    oracle = Oracle(policy)
    options: dict[str, Any] = KEEP | {"compare_content": ["x", "y"], "policy": policy, "rejected_max": 1.0}
    options |= {"on_conflict": "quarantine", "shards": 3}
    options |= {"order_by": ()} if policy.depends_on_order else {}
    conflicts = compared_before = 0
    for number in range(5):
        rows = rows_of(number)
        if policy.wrap == 16:
            rows = rows.set_column(5, "seq", pa.array(np.asarray(rows["seq"]) % 16, pa.int32()))
        land(tmp_path / "source", f"{number}.parquet", rows, row_group_size=50)
        report = make_job(tmp_path, **options).run()
        must, may = oracle.run(rows)
        folder = tmp_path / f"sink/run={number + 1}/_rejects/verdict=CONFLICT"
        found = pq.read_table(folder, partitioning=None)["origin"].to_pylist() if folder.exists() else []
        assert set(must) <= set(found) <= {*must, *may}
        assert len(found) == report.counts.get("CONFLICT", 0)
        conflicts += len(found)
        compared_before += sum(it["kept_file"] is None for it in report.conflicts.to_pylist())
        check_pieces(state.open(tmp_path / "state"))
    assert conflicts > 0 or name in ("kafka", "in_order", "forward, short wrap")
    if name != "kafka":
        assert (compared_before > 0) == (name != "forward, short wrap")


def test_a_conflict_with_an_earlier_run_stops_the_run(tmp_path: Path) -> None:
    run(tmp_path, "a", [0, 1], [1, 2])
    with pytest.raises(fp.PolicyError, match=r"1 row .*other content") as info:
        run(tmp_path, "b", [1, 2], [9, 3], on_conflict="stop")
    assert re.search(r"b\.parquet, row 0: its checksum differs .*earlier run", str(info.value))
    assert newest(tmp_path).version == 1
    assert [name for name in state.open(tmp_path / "state").store.list("segments") if "/2/" in name] == []
    report = make_job(tmp_path, **DROP).run()
    assert (report.counts, report.content_compared) == ({"ACCEPTED": 1, "CONFLICT": 1}, 1)


def test_conflicts_over_three_runs_are_shown_and_quarantined(tmp_path: Path) -> None:
    report = run(tmp_path, "a", [0, 1, 2], [1, 2, 3])
    assert (report.checksums_kept, report.content_compared) == (3, 0)
    run(tmp_path, "b", [3], [4])
    report = run(tmp_path, "c", [3, 3, 1, 0, 4, 4], [4, 5, 2, 7, 1, 2], on_conflict="quarantine")
    assert report.counts == {"ACCEPTED": 1, "DUPLICATE": 2, "CONFLICT": 3}
    assert report.rejected == {"CONFLICT": 3}
    assert (report.content_compared, report.checksums_kept) == (5, 5)
    rejects = pq.read_table(tmp_path / "sink/run=3/_rejects/verdict=CONFLICT", partitioning=None)
    assert sorted(zip(rejects["seq"].to_pylist(), rejects["amount"].to_pylist(), strict=True)) == [
        (0, 7),
        (3, 5),
        (4, 2),
    ]
    samples = {it["seq"]: it for it in report.conflicts.to_pylist()}
    assert {name: samples["0"][name] for name in ("kept_file", "kept_row", "column", "found", "kept")} == dict.fromkeys(
        ("kept_file", "kept_row", "column", "found", "kept")
    )
    assert (samples["4"]["kept_row"], samples["4"]["found"], samples["4"]["kept"]) == (4, "2", "1")
    assert "of 5 repeats compared; 0 were not at hand" in str(report)
    assert re.search(r"\n  checksums +5  kept rows ", str(report))
    assert json.loads(report.to_json())["checksums_kept"] == 5


def test_added_columns_of_nulls_and_other_types_are_not_a_conflict(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", amounts([0, 1], [1, 2]))
    make_job(tmp_path, **KEEP).run()
    more = amounts([0, 1], [1, 2]).append_column("added", pa.array([None, 5]))
    land(tmp_path / "source", "b.parquet", more.set_column(4, "amount", more["amount"].cast(pa.int8())))
    assert make_job(tmp_path, schema="merge", **DROP).run().counts == {"DUPLICATE": 1, "CONFLICT": 1}


def test_files_without_any_content(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", amounts([0, 1], [None, None]).drop_columns(["amount"]))
    make_job(tmp_path, shards=2, **KEEP).run()
    assert run(tmp_path, "b", [0, 1], [None, 1], schema="merge").counts == {"DUPLICATE": 1, "CONFLICT": 1}


def test_content_that_has_no_checksum_is_named(tmp_path: Path) -> None:
    spans = pa.array([pa.MonthDayNano([1, 2, 3])])
    rows = amounts([0], [1]).append_column("span", pa.array([1], pa.int64()))
    path = land(tmp_path / "source", "a.parquet", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_content, "read_rows", lambda *_: iter([pa.table({"span": spans})]))
        with pytest.raises(fp.BatchError, match="column 'span': month_day_nano_interval has no checksum") as info:
            make_job(tmp_path, **KEEP).run()
    assert (info.value.column, str(path) in str(info.value)) == ("span", True)
    with pytest.raises(fp.BatchError, match="column 'amont': missing"):
        make_job(tmp_path, **(KEEP | {"compare_content": "amont"})).run()


def test_rows_without_a_producer_leave_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, "a", [0, 1], [1, 2], pid=-1)
    assert (report.counts, report.checksums_kept) == ({"UNTRACKED": 2}, 0)


def test_a_file_whose_content_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, "a", [0], [1])
    damaged = land(tmp_path / "source", "b.parquet", amounts([5], [1]))
    read = kept_content.read_rows

    def fail(storage: Any, files: Any, place: int, *arguments: Any) -> Any:
        path = files.full_path(place)
        if path == str(damaged):
            raise SourceError(f"{path}: its content cannot be read", path=path)
        return read(storage, files, place, *arguments)

    monkeypatch.setattr(kept_content, "read_rows", fail)
    report = run(tmp_path, "c", [0, 1], [1, 2])
    assert (report.counts, report.deferred) == ({"ACCEPTED": 1, "DUPLICATE": 1}, ("b.parquet",))
    check_pieces(state.open(tmp_path / "state"))


# The option


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"keep_checksums": "all"}, "pass compare_content"),
        ({"keep_checksums": 5}, "pass compare_content"),
        (KEEP | {"keep_checksums": True}, "keep_checksums=True: expected 'all' or"),
        (KEEP | {"keep_checksums": -1}, "keep_checksums=-1: expected 'all'"),
        (KEEP | {"keep_checksums": "some"}, "keep_checksums='some': expected 'all'"),
    ],
)
def test_invalid_combinations_of_options(tmp_path: Path, options: dict[str, Any], error: str) -> None:
    with pytest.raises((fp.PolicyError, ValueError)) as info:
        make_job(tmp_path, **options)
    assert error in str(info.value)


def test_the_columns_cannot_change_silently(tmp_path: Path) -> None:
    run(tmp_path, "a", [0], [1], compare_content=["amount", "seq"])
    assert newest(tmp_path).checksums.columns == ["amount", "seq"]  # type: ignore[union-attr]
    for options, error in (
        (
            {"compare_content": True},
            "keeps checksums of column 'amount', column 'seq', .* compares all columns",
        ),
        (
            {"compare_content": "amount"},
            "column 'seq', .* compares column 'amount'",
        ),
        ({"keep_checksums": None}, "has no keep_checksums"),
    ):
        with pytest.raises(fp.SnapshotError, match=error) as info:
            run(tmp_path, "b", [0], [2], **options)
        assert "keep_checksums=0" in str(info.value)
    assert newest(tmp_path).version == 1
    assert run(tmp_path, "b", [0], [2], compare_content=["seq", "amount", "seq"]).counts == {"CONFLICT": 1}
    dropped = run(tmp_path, "c", [0, 1], [2, 2], keep_checksums=0, compare_content=False)
    assert (dropped.counts, dropped.checksums_kept) == ({"ACCEPTED": 1, "DUPLICATE": 1}, None)
    assert newest(tmp_path).checksums is None
    report = run(tmp_path, "d", [0, 1, 2], [3, 3, 3])
    assert (report.counts, report.content_compared) == ({"ACCEPTED": 1, "DUPLICATE": 2}, 0)
    assert run(tmp_path, "e", [2], [4]).counts == {"CONFLICT": 1}


def test_a_state_may_begin_to_keep_checksums_with_any_run(tmp_path: Path) -> None:
    run(tmp_path, "a", [0, 1], [1, 2], keep_checksums=None)
    report = run(tmp_path, "b", [0, 2], [9, 3])
    assert (report.counts, report.content_compared) == ({"ACCEPTED": 1, "DUPLICATE": 1}, 0)
    assert "of 0 repeats compared; 1 was not at hand" in str(report)
    report = run(tmp_path, "c", [0, 2], [9, 9])
    assert (report.counts, report.content_compared) == ({"DUPLICATE": 1, "CONFLICT": 1}, 1)


def test_of_so_many_of_the_newest_positions(tmp_path: Path) -> None:
    report = run(tmp_path, "a", list(range(100)), [1] * 100, keep_checksums=10)
    assert report.checksums_kept == 10
    report = run(tmp_path, "b", list(range(100)), [2] * 100, keep_checksums=10)
    assert report.counts == {"DUPLICATE": 90, "CONFLICT": 10}
    report = run(tmp_path, "c", [100], [1], keep_checksums=5)
    assert report.checksums_kept == 10 + 1, "what is not merged stays for now"
    assert run(tmp_path, "d", list(range(101, 120)), [1] * 19, keep_checksums=5).checksums_kept == 5
    assert run(tmp_path, "e", list(range(120, 140)), [1] * 20).checksums_kept == 5 + 20


@pytest.mark.parametrize("later", ["all", 100])
def test_a_number_that_rises_brings_no_older_lap_back(tmp_path: Path, later: Any) -> None:
    options: dict[str, Any] = {"policy": fp.Policy.any_order().replace(wrap=64), "order_by": ()}
    run(tmp_path, "a", list(range(50)), [1] * 50, **options)
    run(tmp_path, "b", [*range(50, 64), *range(10)], [2] * 24, keep_checksums=1, **options)
    assert run(tmp_path, "c", [5], [2], keep_checksums=1, **options).counts == {"DUPLICATE": 1}
    assert run(tmp_path, "d", [5], [2], keep_checksums=later, **options).counts == {"DUPLICATE": 1}
    assert run(tmp_path, "e", [6], [1], keep_checksums=later, **options).counts == {"CONFLICT": 1}


def test_checksums_of_an_older_lap_do_not_count(tmp_path: Path) -> None:
    """A piece that is not merged yet has rows whose numbers wrapped and were forgotten."""
    policy = fp.Policy.any_order().replace(wrap=16)
    options: dict[str, Any] = {"keep_checksums": 3, "shards": 1, "policy": policy, "order_by": ()}
    others = [amounts([0, 1, 2], [0, 0, 0], pid=pid) for pid in range(20)]
    land(tmp_path / "source", "0.parquet", pa.concat_tables(others))
    run(tmp_path, "1", [*range(16)], [0] * 16, pid=77, **options)
    for name, seqs in (("2", range(12)), ("3", (*range(12, 16), *range(4)))):
        run(tmp_path, name, list(seqs), [1] * len(seqs), pid=77, **options)
    report = run(tmp_path, "4", [14, 2], [1, 1], pid=77, **options)
    assert report.counts == {"DUPLICATE": 2}
    assert report.content_compared == 1


def test_without_the_option_a_state_is_what_it_was(tmp_path: Path) -> None:
    run(tmp_path, "a", [0, 0], [1, 2], keep_checksums=None)
    assert list(json.loads((tmp_path / "state/log/1.json").read_text())) == [
        *(
            "version",
            "previous",
            "builds_on",
            "attempt",
            "kind",
            "shard_count",
            "shards",
            "ledger",
            "listing",
            "inputs",
        ),
        *("quarantined", "deferred", "outputs", "marked", "side_files", "prepared", "source_position"),
        *("sink_version", "clock_ms", "horizon_ms", "key_types", "schema", "oldest", "collected", "breaks"),
        *("counts", "missing_ranges", "missing_rows", "stale_epoch", "border", "plan", "report", "policy", "order_by"),
        *("decided_ms", "fencepost", "format", "semantics"),
    ]
    plain = tmp_path / "plain"
    land(plain / "source", "a.parquet", amounts([0, 0], [1, 2]))
    make_job(plain, shards=2, sync=False).run()
    files = [sorted((root / "state/segments").rglob("*.state")) for root in (tmp_path, plain)]
    assert [it.read_bytes() for it in files[0]] == [it.read_bytes() for it in files[1]]


def test_a_checksum_takes_four_bytes_in_the_state(tmp_path: Path) -> None:
    count = 200_000
    report = run(tmp_path, "a", list(range(count)), [1] * count)
    found = newest(tmp_path).checksums
    assert found is not None
    assert 4 * count < sum(found.bytes) < 4 * count + 2_000
    assert report.state_bytes_written == sum(found.bytes) + sum(newest(tmp_path).shards.bytes)
    assert state.open(tmp_path / "state").summary(1).state_bytes == report.state_bytes_written
    rng = np.random.default_rng(1)  # every tenth row is missing: ranges of nine rows
    some = [seq for seq in range(count) if rng.random() > 0.1]
    scattered = KeptSums(
        pa.table({"pid": [7] * len(some), "partition": [0] * len(some), SEQ: some, COUNT: [1] * len(some)}),
        rng.integers(0, 2**32, len(some), np.uint32),
    )
    assert len(encode(joined([scattered]))) < 5 * len(some)


# What becomes of them


def test_a_rollback_removes_checksums_and_a_rerun_keeps_them_again(tmp_path: Path) -> None:
    run(tmp_path, "a", [0, 1], [1, 2])
    run(tmp_path, "b", [2], [3])
    run(tmp_path, "c", [3], [4])
    opened = state.open(tmp_path / "state")
    before = newest(tmp_path).checksums
    for version in (2, 3):
        for file in (tmp_path / f"sink/run={version}").glob("*.parquet"):
            file.unlink()
    opened.rollback(1)
    assert newest(tmp_path).checksums == opened.version(1).checksums
    report = make_job(tmp_path, **DROP).run()
    assert (report.counts, report.checksums_kept) == ({"ACCEPTED": 2}, 4)
    assert newest(tmp_path).checksums.sha256 == before.sha256  # type: ignore[union-attr]
    assert run(tmp_path, "d", [0, 1, 2, 3], [1, 9, 3, 9]).counts == {"DUPLICATE": 2, "CONFLICT": 2}
    for file in (tmp_path / "sink").rglob("*.parquet"):
        file.unlink()
    opened.rollback(0)
    assert newest(tmp_path).checksums is None
    assert make_job(tmp_path, **(DROP | {"compare_content": "amount"})).run().checksums_kept == 4


@pytest.mark.parametrize("name", ["any_order", "composite", "no partition"])
def test_a_reshard_assigns_checksums_to_the_new_shards(tmp_path: Path, name: str) -> None:
    alone = fp.Policy.any_order().replace(epochs="ignore", columns=fp.Columns(epoch=None, partition=None))
    policy = (policies() | {"no partition": alone})[name]
    options: dict[str, Any] = DROP | {"policy": policy, "compare_content": ["x"]}
    for seed in range(3):
        land(tmp_path / "source", f"{seed}.parquet", rows_of(seed))
        make_job(tmp_path, shards=3, **options).run()
    kept = newest(tmp_path).counts["ACCEPTED"]
    assert kept > 0
    opened = state.open(tmp_path / "state")
    rows = sum(newest(tmp_path).checksums.rows)  # type: ignore[union-attr]
    for count in (7, 1, 4):
        opened.reshard(count)
        found = newest(tmp_path).checksums
        assert found is not None
        assert sum(found.rows) == rows
        assert sorted(set(found.shard)) == found.shard, "a piece a shard"
        check_pieces(opened)
    again = pa.concat_tables([rows_of(seed) for seed in range(3)])
    land(tmp_path / "source", "again.parquet", again)
    report = make_job(tmp_path, **options).run()
    assert report.content_compared == report.counts["DUPLICATE"] + report.counts["CONFLICT"] > kept
    codes = np.asarray(pa.array(fp.StateTable(policy).apply(again).verdict))
    firsts: dict[Any, Any] = {}
    names = policy.columns.names
    conflicts = 0
    for row, code in zip(again.to_pylist(), codes.tolist(), strict=True):
        if code in (fp.Verdict.ACCEPTED, fp.Verdict.DUPLICATE):
            conflicts += firsts.setdefault(tuple(row[name] for name in names), row["x"]) != row["x"]
    assert report.counts["CONFLICT"] == conflicts


def timed(pid: int, seqs: list[int], ms: int, value: int = 1) -> pa.Table:
    return amounts(seqs, [value] * len(seqs), pid=pid, timestamp=pa.array([ms] * len(seqs), pa.timestamp("ms")))


def test_an_eviction_drops_those_of_evicted_keys(tmp_path: Path) -> None:
    options: dict[str, Any] = DROP | {"max_idle_ms": 10**9, "shards": 1, "compare_content": "amount"}
    land(tmp_path / "source", "a.parquet", pa.concat_tables([timed(1, [0, 1, 2], 1_000), timed(2, [0, 1], 9_000)]))
    assert make_job(tmp_path, **options).run().checksums_kept == 5
    state.open(tmp_path / "state").evict(9_000, 4_000)
    assert newest(tmp_path).checksums.rows == [2]  # type: ignore[union-attr]
    land(tmp_path / "source", "b.parquet", pa.concat_tables([timed(1, [0], 9_000, 5), timed(2, [0], 9_000, 5)]))
    report = make_job(tmp_path, **options).run()
    assert (report.counts, report.checksums_kept) == ({"ACCEPTED": 1, "CONFLICT": 1}, 3)
    state.open(tmp_path / "state").evict(9_000, 4_000)
    assert sum(newest(tmp_path).checksums.rows) == 3  # type: ignore[union-attr]


def test_runs_drop_what_the_state_has_forgotten_when_pieces_are_merged(tmp_path: Path) -> None:
    options: dict[str, Any] = DROP | {"max_idle_ms": 4_000, "shards": 1, "compare_content": "amount"}
    for number, (pid, seqs, ms) in enumerate([(1, [0, 1], 1_000), (2, [0, 1, 2], 9_000), (2, [3, 4, 5, 6], 20_000)]):
        land(tmp_path / "source", f"{number}.parquet", timed(pid, seqs, ms))
        report = make_job(tmp_path, **options).run()
    assert report.checksums_kept == 4 + 3
    assert report.entries == 1


def test_there_are_few_pieces_and_old_files_go(tmp_path: Path) -> None:
    for number in range(24):
        land(tmp_path / "source", f"{number:02}.parquet", amounts([number], [number]))
        report = make_job(tmp_path, **(DROP | {"shards": 1, "keep_versions": 1})).run()
    found = newest(tmp_path).checksums
    assert found is not None
    assert (sum(found.rows), report.checksums_kept) == (24, 24)
    assert len(found.rows) <= 5
    assert all(one >= 2 * other for one, other in itertools.pairwise(found.rows))
    opened = state.open(tmp_path / "state")
    opened.collect_garbage(keep_versions=1)
    assert set(opened.store.list("segments")) == newest(tmp_path).files()
    check_pieces(opened)
    land(tmp_path / "source", "again.parquet", amounts(list(range(24)), [0] * 24))
    assert make_job(tmp_path, **DROP).run().counts == {"DUPLICATE": 1, "CONFLICT": 23}


def test_a_damaged_piece_is_named_and_can_be_dropped(tmp_path: Path) -> None:
    run(tmp_path, "a", list(range(9)), [1] * 9)
    found = newest(tmp_path).checksums
    assert found is not None
    path = tmp_path / "state" / found.files[0]
    data = bytearray(path.read_bytes())
    data[found.offset[0] + found.bytes[0] - 1] ^= 1
    path.write_bytes(data)
    CACHE.clear()
    with pytest.raises(fp.SnapshotError, match="its SHA-256 is"):
        run(tmp_path, "b", [0], [1])
    assert run(tmp_path, "b", [0], [1], keep_checksums=0).counts == {"DUPLICATE": 1}


def test_checksums_of_another_version_are_refused() -> None:
    kept = KeptSums(pa.table({"pid": [1], SEQ: [0], COUNT: [1]}), np.zeros(1, np.uint32))
    with pytest.raises(fp.SnapshotError, match="reads checksums of"):
        decode(b"FPSUMS\x00\x02" + encode(kept)[8:], "there")


def test_a_seed_keeps_them(tmp_path: Path) -> None:
    land(tmp_path / "clean", "a.parquet", amounts([0, 1], [1, 2]))
    land(tmp_path / "source", "b.parquet", amounts([0, 1, 2], [1, 9, 3]))
    assert make_job(tmp_path, **DROP).seed(clean=tmp_path / "clean").checksums_kept == 2
    assert make_job(tmp_path, **DROP).run().counts == {"ACCEPTED": 1, "DUPLICATE": 1, "CONFLICT": 1}


def test_in_place_and_rebased(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    def job(**options: Any) -> lake.DedupJob:
        return lake.DedupJob(tmp_path / "table", tmp_path / "state", tmp_path / "table", **(DROP | options))

    write_deltalake(tmp_path / "table", amounts([0, 1], [1, 2]))
    assert job().run().checksums_kept == 2
    write_deltalake(tmp_path / "table", amounts([0, 1, 2], [1, 9, 3]), mode="append")
    assert job().run().counts == {"ACCEPTED": 1, "DUPLICATE": 1, "CONFLICT": 1}
    assert job(compare_content="amount").rebase().checksums_kept == 3, "a rebase may keep others"
    write_deltalake(tmp_path / "table", amounts([2], [4]), mode="append")
    assert job(compare_content="amount").run().counts == {"CONFLICT": 1}
    with pytest.raises(fp.SnapshotError, match="this job has no keep_checksums"):
        job(keep_checksums=None).rebase()


def test_a_delta_table_as_the_source(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    for seqs, values, counts in (
        ([0, 1], [1, 2], {"ACCEPTED": 2}),
        ([1, 2], [2, 3], {"ACCEPTED": 1, "DUPLICATE": 1}),
        ([0, 2], [5, 3], {"DUPLICATE": 1, "CONFLICT": 1}),
    ):
        write_deltalake(tmp_path / "source", amounts(seqs, values), mode="append")
        assert make_job(tmp_path, **DROP).run().counts == counts


def test_a_state_in_an_object_store(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    for name, values, counts in (("a", [1, 2], {"ACCEPTED": 2}), ("b", [1, 9], {"DUPLICATE": 1, "CONFLICT": 1})):
        land(tmp_path / "source", f"{name}.parquet", amounts([0, 1], values))
        job = lake.DedupJob(tmp_path / "source", uri, tmp_path / "sink", shards=2, **DROP)
        assert job.run().counts == counts
    check_pieces(job.state)
    job.state.reshard(3)
    job.state.collect_garbage(keep_versions=1)
    check_pieces(job.state)


def test_killed_at_any_change_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run keeps and finds the same, wherever the previous one died."""
    options: dict[str, Any] = DROP | {"shards": 2, "sync": True, "engine": lake.LocalEngine(1)}
    found = set()
    for call in itertools.count(1, 5):
        root = tmp_path / str(call)
        run(root, "a", list(range(5)), [1] * 5, **options)
        land(root / "source", "b.parquet", amounts([1, 5, 6, 2], [2, 1, 1, 1]))
        with crash_at(monkeypatch, call) as calls:
            try:
                make_job(root, **options).run()
                is_over = True
            except Crash:
                is_over = False
        land(root / "source", "c.parquet", amounts([5, 6, 0, 1, 7], [1, 2, 1, 3, 1]))
        make_job(root, **options).run()
        opened = state.open(root / "state")
        total: Counter[str] = Counter()
        for version in opened.versions():
            total.update(version.counts)
        check_pieces(opened)
        opened.collect_garbage()
        files = set().union(*(opened.version(it.version).files() for it in opened.versions()))
        assert set(opened.store.list("segments")) == files
        sums = [
            decode(read_piece(opened.store, it.piece), "")
            for shard in (0, 1)
            for it in opened.latest().checksums.get(shard)  # type: ignore[union-attr]
        ]
        kept = joined(sums)
        found.add((str(sorted(total.items())), str(kept.ranges.to_pylist()), kept.sums.tobytes()))
        if is_over:
            assert calls[0] < call
            break
    assert len(found) == 1
    assert call > 40


# Several pieces as one


def kept_of(rows: dict[tuple[int, int], int]) -> KeptSums:
    """A piece of these rows, one range each: (pid, sequence) to checksum."""
    keys = pa.array([pid for pid, _ in rows], pa.int64())
    ranges = pa.table({"pid": keys, SEQ: pa.array([seq for _, seq in rows], pa.int64())})
    return KeptSums(
        ranges.append_column(COUNT, pa.array([1] * len(rows), pa.int64())), np.array(list(rows.values()), np.uint32)
    )


def rows_in(kept: KeptSums) -> dict[tuple[int, int], int]:
    lines = [(it["pid"], it[SEQ] + at) for it in kept.ranges.to_pylist() for at in range(it[COUNT])]
    assert len(set(lines)) == len(lines) == len(kept.sums)
    return dict(zip(lines, kept.sums.tolist(), strict=True))


@pytest.mark.parametrize("wrap", [None, 16])
@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_joined_as_dicts_are_updated(seed: int, wrap: int | None) -> None:
    rng = np.random.default_rng(seed)
    parts, known = [], {}
    for _ in range(int(rng.integers(1, 5))):
        lines = []
        for _ in range(int(rng.integers(0, 8))):
            count = int(rng.integers(1, 9))
            lines.append((int(rng.integers(0, 3)), int(rng.integers(0, 16)), count))
        sums = rng.integers(0, 2**32, sum(line[2] for line in lines), np.uint32)
        columns = [[line[place] for line in lines] for place in range(3)]
        parts.append(KeptSums(pa.table([pa.array(it, pa.int64()) for it in columns], names=["pid", SEQ, COUNT]), sums))
        places = [(pid, (seq + at) % (wrap or 99)) for pid, seq, count in lines for at in range(count)]
        known |= dict(zip(places, sums.tolist(), strict=True))
    found = joined(parts, wrap)
    assert rows_in(found) == known
    order = [(it["pid"], it[SEQ]) for it in found.ranges.to_pylist()]
    assert order == sorted(order)
    again = decode(encode(found), "")
    assert again.ranges.equals(found.ranges)
    assert np.array_equal(again.sums, found.sums)
    assert encode(joined([found], wrap)) == encode(found)

    store, pieces = MemoryStore(f"memory://{uuid.uuid4().hex}"), []
    with SegmentWriter(store, 1, "a") as writer:
        for part in parts:
            pieces += checksums.add(joined([part], wrap), writer)
    wanted = pa.table({"pid": [0, 1, 2, 3], SEQ: [10] * 4, COUNT: [8] * 4})
    has, sums, _ = find(store, pieces, wanted, wrap)
    sought = [(pid, (10 + at) % (wrap or 99)) for pid in range(4) for at in range(8)]
    assert has.tolist() == [it in known for it in sought]
    assert [it for it, is_there in zip(sums.tolist(), has, strict=True) if is_there] == [
        known[it] for it in sought if it in known
    ]


@pytest.mark.parametrize("wrap", [None, 16])
@pytest.mark.parametrize("rows_max", [None, 1, 5])
@pytest.mark.parametrize("seed", range(6))
def test_checksums_are_kept_while_rows_can_repeat(seed: int, rows_max: int | None, wrap: int | None) -> None:
    rng = np.random.default_rng(seed)
    policy = fp.Policy.any_order().replace(wrap=wrap, columns=fp.Columns(epoch=None, partition=None))
    policy = policy.replace(epochs="ignore", columns=fp.Columns(epoch=None, partition=None))
    table = fp.StateTable(policy)
    for pid in range(3):
        begin = int(rng.integers(0, 16))
        for seq in range(begin, begin + int(rng.integers(1, 40))):
            table.apply({"pid": pa.array([pid]), "seq": pa.array([seq if wrap is None else seq % wrap])})
    rows = {(pid, seq): pid * 100 + seq for pid in range(4) for seq in range(wrap or 60)}
    found = rows_in(Living(table=lambda: table, rows_max=rows_max).of(joined([kept_of(rows)])))
    wanted = {}
    for entry in pa.table(table.entries()).to_pylist():
        low = entry["first"] if rows_max is None else max(entry["first"], entry["last"] - rows_max + 1)
        for position in range(low, entry["last"] + 1):
            seq = position if wrap is None else position % wrap
            wanted[entry["pid"], seq] = rows[entry["pid"], seq]
    assert found == wanted


def test_pieces_by_shard_come_back() -> None:
    piece = Piece("s/1", 0, 10, "aa")
    shards = {2: [SumPiece(rows=3, piece=piece)], 0: [SumPiece(rows=5, piece=piece), SumPiece(rows=1, piece=piece)]}
    found = Checksums.of(["x"], shards)
    assert (found.shard, found.rows, found.files) == ([0, 0, 2], [5, 1, 3], ["s/1"])
    assert [it.rows for it in found.get(0)] == [5, 1]
    assert found.get(1) == ()
    assert found.replaced({0: [], 1: found.get(2)}).shard == [1, 2]
    with pytest.raises(ValueError, match="different lengths"):
        Checksums(columns=[], shard=[1])


def test_the_sink_has_the_rows_that_were_kept_first(tmp_path: Path) -> None:
    run(tmp_path, "a", [0, 1], [1, 2])
    run(tmp_path, "b", [1, 2], [9, 3])
    assert read_sink(tmp_path)["amount"].to_list() == [1, 2, 3]
