"""DedupJob: which rows it keeps, from run to run, on real and made data."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost import state
from fencepost.generate import LandingZone, generate
from fencepost.lake import DedupJob, LocalEngine, RunReport, plan
from support.lake import (
    IDENTITY,
    SCHEMA,
    RetryingEngine,
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

ZONE = Path(__file__).parents[1] / "data" / "landing-zone"
TRUTH = json.loads((ZONE / "truth.json").read_text())
TOPIC_KEYS = fp.Columns(partition=("topic", "partition"))


# -- What is kept


@pytest.mark.parametrize(
    ("policy", "columns", "expected"),
    [
        ("kafka_offsets", None, TRUTH["rows_distinct"]),
        ("any_order", TOPIC_KEYS, TRUTH["rows_distinct_tracked"] + TRUTH["rows_untracked_landed"]),
    ],
)
def test_real_landing_zone(tmp_path: Path, policy: str, columns: fp.Columns | None, expected: int) -> None:
    report = DedupJob(ZONE / "landing", tmp_path / "state", tmp_path / "sink", policy=policy, columns=columns).run()
    assert (report.rows, report.files, report.kept) == (TRUTH["rows_landed"], TRUTH["files"], expected)
    rows = pa.concat_tables(pq.read_table(file) for file in sorted((ZONE / "landing").iterdir()))
    assert read_sink(tmp_path).equals(pl.DataFrame(fp.deduplicate(rows, policy, columns)))
    assert read_sink(tmp_path).n_unique(["topic", "partition", "offset"]) == TRUTH["rows_distinct"]


def test_real_landing_zone_in_two_deliveries(tmp_path: Path) -> None:
    files = sorted((ZONE / "landing").iterdir())
    for root, deliveries in ((tmp_path / "at once", [files]), (tmp_path / "halves", [files[:17], files[17:]])):
        for delivery in deliveries:
            for file in delivery:
                (root / "source").mkdir(parents=True, exist_ok=True)
                shutil.copy(file, root / "source")
            assert make_job(root, columns=TOPIC_KEYS).run().files == len(delivery)
    once, halves = tmp_path / "at once", tmp_path / "halves"
    assert read_sink(halves).equals(read_sink(once))
    assert state_hashes(halves)[-1] == state_hashes(once)[-1]


def test_first_of_each_is_kept(tmp_path: Path) -> None:
    land_some(tmp_path)
    report = make_job(tmp_path).run()
    expected = first_of_each(read_source(tmp_path))
    assert read_sink(tmp_path).equals(expected)
    assert report.kept == len(expected)
    assert sum(report.counts.values()) == report.rows == 2400
    assert set(report.counts) == {"ACCEPTED", "DUPLICATE", "UNTRACKED"}


def test_runs_in_a_row_read_only_what_is_new(tmp_path: Path) -> None:
    for version, seed in enumerate(range(12), 1):  # more than the ledger has segments
        land_some(tmp_path, [seed, seed + 100])
        report = make_job(tmp_path).run()
        assert (report.version, report.files, report.rows) == (version, 2, 1200)
    landed = [f"{seed}.parquet" for first in range(12) for seed in sorted([str(first), str(first + 100)])]
    rows = pl.DataFrame(pa.concat_tables([pq.read_table(tmp_path / "source" / name) for name in landed]))
    assert read_sink(tmp_path).equals(first_of_each(rows))


def test_nothing_new_changes_nothing(tmp_path: Path) -> None:
    land_some(tmp_path)
    make_job(tmp_path).run()
    before = hashes(tmp_path)
    report = make_job(tmp_path).run()
    assert (report.version, report.rows, report.outputs) == (None, 0, ())
    assert "nothing new" in str(report)
    assert report.entries > 0
    assert hashes(tmp_path) == before


def test_an_empty_source_is_nothing_new(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    assert make_job(tmp_path).run().version is None
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "sink").exists()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_same_input_same_bytes(tmp_path: Path, threads: int) -> None:
    land_some(tmp_path)
    make_job(tmp_path, engine=LocalEngine(3)).run()
    other = tmp_path / "other"
    DedupJob(tmp_path / "source", other / "state", other / "sink", engine=LocalEngine(threads), sync=False).run()
    assert output_hashes(other) == output_hashes(tmp_path)
    assert state_hashes(other) == state_hashes(tmp_path)


@pytest.mark.parametrize("shards", [1, 3, 300])
def test_shards_are_invisible(tmp_path: Path, shards: int) -> None:
    land_some(tmp_path)
    make_job(tmp_path, shards=shards).run()
    land_some(tmp_path, [4])
    make_job(tmp_path, shards=shards).run()
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))


def test_files_of_which_all_or_no_row_is_kept(tmp_path: Path) -> None:
    rows = pa.table(first_of_each(pl.DataFrame(make_rows(1)))).cast(SCHEMA)
    tracked = rows.filter(pa.compute.greater_equal(rows["pid"], 0))
    first = land(tmp_path / "source", "a.parquet", rows)
    land(tmp_path / "source", "b.parquet", tracked)
    land(tmp_path / "source", "c.parquet", rows.slice(0, 0))
    report = make_job(tmp_path).run()
    assert report.outputs == ("run=1/part-00000.parquet",)
    copy = tmp_path / "sink" / "run=1" / "part-00000.parquet"
    assert copy.read_bytes() == first.read_bytes()
    assert copy.stat().st_ino != first.stat().st_ino


def test_a_version_without_output_is_a_version(tmp_path: Path) -> None:
    rows = make_rows(1).slice(0, 1).set_column(0, SCHEMA.field("pid"), pa.array([1], pa.int64()))
    land(tmp_path / "source", "a.parquet", rows)
    make_job(tmp_path).run()
    land(tmp_path / "source", "b.parquet", rows)
    report = make_job(tmp_path).run()
    assert (report.version, report.kept, report.outputs) == (2, 0, ())
    assert [path.name for path in (tmp_path / "sink" / "run=2").iterdir()] == ["_empty"]
    assert make_job(tmp_path).run().version is None


def test_an_overwritten_file_is_new_input(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", make_rows(1))
    make_job(tmp_path).run()
    land(tmp_path / "source", "a.parquet", make_rows(2))
    report = make_job(tmp_path).run()
    assert (report.version, report.files) == (2, 1)
    both = pl.DataFrame(pa.concat_tables([make_rows(1), make_rows(2)]))
    assert read_sink(tmp_path).equals(first_of_each(both))


def test_subfolders_and_hidden_names(tmp_path: Path) -> None:
    land_some(tmp_path, [1])
    land(tmp_path / "source" / "sub", "2.parquet", make_rows(2))
    for hidden in ("_tmp/3.parquet", ".tmp/3.parquet", "_3.parquet", ".3.parquet", "_SUCCESS", "3.parquet.crc"):
        path = tmp_path / "source" / hidden
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"not for readers")
    assert make_job(tmp_path).run().files == 2


# -- Keys, types, order


def test_keys_of_text_and_dictionaries(tmp_path: Path) -> None:
    columns = fp.Columns(pid=("cluster", "device"), epoch="epoch", partition="partition", seq="seq")
    rows = make_rows(5)
    text = pa.array([None if pid is None or pid < 0 else f"device {pid}" for pid in rows["pid"].to_pylist()])
    kinds = {
        "string": (text, pa.string()),
        "large": (text, pa.large_string()),
        "dictionary": (text.dictionary_encode(), None),
        "binary": (text.cast(pa.binary()), None),
    }
    for root, (device, kind) in ((tmp_path / name, kind) for name, kind in kinds.items()):
        device = device.cast(kind) if kind else device
        cluster = pa.array(["main", "other"] * 300)
        for name in ("a", "b"):
            table = rows.drop_columns("pid").append_column("cluster", cluster).append_column("device", device)
            land(root / "source", f"{name}.parquet", table.slice(0, 400) if name == "a" else table)
        report = make_job(root, columns=columns).run()
        expected = first_of_each(
            read_source(root).with_columns(pid=pl.col("device").cast(pl.String).is_not_null().cast(pl.Int64) - 1),
            ["cluster", "device", "epoch", "partition", "seq"],
        )
        assert report.kept == len(expected), root.name
        assert read_sink(root)["origin"].to_list() == expected["origin"].to_list()


def test_text_of_different_writers_is_one_key(tmp_path: Path) -> None:
    rows = make_rows(6)
    text = pa.array([f"device {pid}" for pid in rows["pid"].to_pylist()])
    index8 = pa.dictionary(pa.int8(), pa.large_string())
    kinds = (text, text.cast(pa.large_string()), text.dictionary_encode(), text.cast(pa.string_view()))
    for number, device in enumerate((*kinds, text.dictionary_encode().cast(index8))):
        land(tmp_path / "source", f"{number}.parquet", rows.set_column(0, "pid", device))
    report = make_job(tmp_path, order_by=["pid", "origin"]).run()
    first = rows.set_column(0, "pid", text)
    expected = pl.DataFrame(first).with_row_index().sort("pid", "origin", maintain_order=True)
    expected = expected.unique(IDENTITY, keep="first").sort("index").drop("index")
    assert report.kept == len(expected)
    assert read_sink(tmp_path)["origin"].to_list() == expected["origin"].to_list()


def test_integers_of_different_widths_are_one_key(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int64(), pa.int32(), pa.uint16(), pa.int64())):
        rows = make_rows(7).filter(pa.compute.greater_equal(make_rows(7)["pid"], 0))
        for name in ("pid", "partition", "seq"):
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, name, rows[name].cast(kind))
        land(tmp_path / "source", f"{number}.parquet", rows)
        if number == 2:
            make_job(tmp_path, schema="merge").run()
    report = make_job(tmp_path, schema="merge").run()
    assert (report.version, report.kept, report.counts) == (2, 0, {"DUPLICATE": report.rows})


def test_policies_that_need_an_order_ask_for_it(tmp_path: Path) -> None:
    for policy in ("in_order", "kafka", "strict", "watermark"):
        with pytest.raises(fp.PolicyError, match=f"policy {policy} depends on the order .*order_by"):
            make_job(tmp_path, policy=policy)


def test_rows_are_judged_in_the_requested_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    time = rng.permutation(900)  # the truth: one producer wrote seq 0 ... 899 in this order
    rows = one_producer(time, time=time)
    for number in range(3):
        land(tmp_path / "source", f"{number}.parquet", rows.slice(number * 300, 300))
    report = make_job(tmp_path, policy="in_order", order_by="time").run()
    assert report.counts == {"ACCEPTED": 900}
    with pytest.raises(fp.PolicyError, match=r"would be refused \([0-9]+ OUT_OF_ORDER\), more than rejected_max=50.0%"):
        DedupJob(tmp_path / "source", tmp_path / "s2", tmp_path / "o2", policy="in_order", order_by=()).run()
    assert not hashes(tmp_path / "o2")
    assert not hashes(tmp_path / "s2")
    report = DedupJob(
        tmp_path / "source", tmp_path / "s2", tmp_path / "o2", policy="in_order", order_by=(), rejected_max=1
    ).run()
    everything = pl.DataFrame(rows)
    assert report.counts["ACCEPTED"] == int((everything["seq"].cum_max().diff().fill_null(1) > 0).sum())


def test_equal_values_of_the_order_follow_file_and_row(tmp_path: Path) -> None:
    land_some(tmp_path)
    make_job(tmp_path, order_by=["epoch"]).run()
    source = read_source(tmp_path).with_row_index()
    first = first_of_each(source.sort("epoch", maintain_order=True)).sort("index")
    assert read_sink(tmp_path)["origin"].to_list() == first["origin"].to_list()


POLICIES = {
    "from zero": fp.Policy.any_order().replace(first="zero"),
    "small wrap": fp.Policy.any_order().replace(wrap=64),
    "64 bit": fp.Policy.any_order().replace(wrap=None, max_jump=50),
    "any, fenced": fp.Policy.any_order().replace(epochs="fence"),
    "any, no epochs": fp.Policy.any_order().replace(epochs="ignore"),
    "forward": fp.Policy.in_order(),
    "kafka": fp.Policy.kafka(),
    "strict": fp.Policy.strict(),
    "watermark": fp.Policy.watermark(),
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_judges_as_one_table_would(tmp_path: Path, name: str) -> None:
    """Sharding, files and runs are invisible: one table that sees all rows in order gives the same."""
    policy, table, kept = POLICIES[name], fp.StateTable(POLICIES[name]), []
    rng = np.random.default_rng(4)
    for version in range(2):
        landed = []
        for file in range(3):
            rows = make_rows(10 * version + file)
            at = rows.schema.get_field_index("seq")
            rows = rows.set_column(at, "seq", pa.array(rng.permutation(np.arange(600) % 64)))
            land(tmp_path / "source", f"{version}-{file}.parquet", rows)
            landed.append(rows)
        verdicts = table.apply(pa.concat_tables(landed))
        kept.append(pl.DataFrame(pa.concat_tables(landed).filter(pa.array(verdicts.kept))))
        report = make_job(tmp_path, policy=policy, order_by=(), rejected_max=1).run()
        assert report.counts == {verdict.name: count for verdict, count in verdicts.counts.items() if count}
        assert (report.stale_epoch, report.border) == (verdicts.stale_epoch, verdicts.border)
        by_key = [(name, "ascending") for name in report.stale.column_names]
        assert report.stale.sort_by(by_key).equals(pa.table(verdicts.stale).sort_by(by_key))
        assert report.missing_ranges == pa.table(verdicts.missing).num_rows
    assert read_sink(tmp_path)["origin"].to_list() == pl.concat(kept)["origin"].to_list()
    assert report.entries == len(table)


def test_bounds_of_what_the_driver_judges(tmp_path: Path) -> None:
    land_some(tmp_path)

    def judged(**bounds: int) -> str:
        root = tmp_path / "_".join(map(str, [*bounds, *bounds.values()]))
        return DedupJob(tmp_path / "source", root / "state", root / "sink", **bounds).run().judged

    assert judged(driver_spans_max=10**6, driver_state_bytes_max=0) == "in the driver", "there is no state yet"
    assert judged(driver_spans_max=0) == judged(driver_spans_max=1, driver_state_bytes_max=10**9) == "in tasks"


def test_tasks_that_run_more_than_once(tmp_path: Path) -> None:
    """As on a cluster: items and results are pickled, losing attempts leave files, and only winners count."""
    land_some(tmp_path)
    once, often = tmp_path / "once", tmp_path / "often"
    DedupJob(tmp_path / "source", once / "state", once / "sink", driver_spans_max=0).run()
    job = DedupJob(tmp_path / "source", often / "state", often / "sink", engine=RetryingEngine(), driver_spans_max=0)
    assert job.run().engine == "retrying"
    assert job.run().version is None
    assert state_hashes(often) == state_hashes(once)
    assert hashes(often / "sink" / "run=1") == hashes(once / "sink" / "run=1")
    assert [len(hashes(root)) for root in (often, once)] == [len(hashes(once))] * 2, (
        "files of late attempts are removed"
    )


# -- What is reported


def test_missing_is_what_the_run_left_open(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", one_producer([0, 10, 20]))
    land(tmp_path / "source", "b.parquet", one_producer([*range(11, 20), 5]))
    report = make_job(tmp_path).run()
    assert (report.missing_ranges, report.missing_rows) == (2, 8)
    assert report.missing.select(["first_seq", "last_seq", "count"]).to_pylist() == [
        {"first_seq": 1, "last_seq": 4, "count": 4},
        {"first_seq": 6, "last_seq": 9, "count": 4},
    ]
    land(tmp_path / "source", "c.parquet", one_producer([2, 30]))
    report = make_job(tmp_path).run()
    assert [(row["first_seq"], row["last_seq"]) for row in report.missing.to_pylist()] == [(21, 29)]
    opened = state.open(tmp_path / "state").missing()
    assert opened.column("count").to_pylist() == [1, 2, 4, 9]


STEPS = ["recover", "list", "scan", "judge", "check", "write", "collect", "decide", "apply", "finish"]


def test_report_for_people_and_programs(tmp_path: Path) -> None:
    land_some(tmp_path)
    report = make_job(tmp_path).run()
    text = str(report)
    assert text.splitlines()[0] == f"version 1 of {tmp_path / 'sink'}, policy any_order"
    assert f"  read            2,400  rows in 4 new files, 0.0 MB, {report.spans:,} spans\n" in text
    assert report.plan_reason.startswith("files may share keys")
    assert re.search(rf"\n  plan {{19}}interval, .*driver: {report.plan_reason}\n", text)
    assert f"  kept            {report.kept:>5,}  {report.kept / 2400:.2%}\n" in text
    assert f"    UNTRACKED     {report.counts['UNTRACKED']:>5,}  no producer: " in text
    assert f"  identity        {'':>5}  pid, epoch, partition, seq\n" in text
    moved = "0.0 MB read, 0.0 MB written"
    assert f"  state           {report.entries:>5,}  entries; {report.shards} of 16 shards judged, {moved}\n" in text
    fields = json.loads(report.to_json())
    assert fields["counts"] == report.counts
    assert fields["missing"] == report.missing.to_pylist()
    assert sorted(fields["outputs"]) == [f"run=1/part-{ordinal:05}.parquet" for ordinal in range(4)]
    assert list(fields["seconds"]) == STEPS
    assert report.to_pandas().loc[0, "counts.ACCEPTED"] == report.counts["ACCEPTED"]


def test_a_report_counts_one_of_each_in_the_singular(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", one_producer([0]))
    make_job(tmp_path, shards=1).run()
    land(tmp_path / "source", "b.parquet", one_producer([2]))
    (tmp_path / "source" / "c.parquet").write_bytes(b"PAR1")
    text = str(make_job(tmp_path).run())
    assert "1  row in 1 new file, 0.0 MB, 1 span\n" in text
    assert re.search(r"\n  deferred +1  file ", text)
    assert re.search(r"  1  row jumped over .*, in 1 range\n", text)
    assert "1  entry; 1 of 1 shard judged, " in text


def test_progress_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FILE_BYTES", plan.TASK_BYTES)  # a task each
    land_some(tmp_path)
    seen: dict[str, list[tuple[int, int]]] = {}
    make_job(tmp_path).run(lambda step, done, total: seen.setdefault(step, []).append((done, total)))
    assert list(seen) == STEPS
    for tasks in (seen["scan"], seen["write"]):
        assert tasks == sorted(set(tasks))
        assert tasks[-1] == (4, 4)
    assert seen["decide"] == [(0, 1), (1, 1)]


# -- Made landing zones against their truth


@pytest.mark.parametrize("policy", ["any_order", "kafka_offsets"])
def test_generated_landing_zone(tmp_path: Path, policy: str) -> None:
    spec = LandingZone(
        rows=40_000, producers=30, topics=2, partitions=3, deliveries=3, files=3, payload_bytes=8, seed=11
    )
    columns = TOPIC_KEYS if policy == "any_order" else None
    for delivery in range(3):
        truth = generate(tmp_path / "zone", spec, deliveries=range(delivery, delivery + 1)).truth[policy]
        job = DedupJob(
            tmp_path / "zone" / "landing", tmp_path / "state", tmp_path / "sink", policy=policy, columns=columns
        )
        report = job.run()
        assert report.version == delivery + 1
        totals = totals_of(tmp_path)
        assert totals == {name: count for name, count in truth["counts"].items() if count}
        assert_missing_is(tmp_path / "zone" / "truth" / policy / f"d{delivery:04}-missing.parquet", tmp_path)
    assert (len(state.open(tmp_path / "state").missing()) > 0) == (policy == "any_order")


def totals_of(root: Path) -> dict[str, int]:
    """Rows by verdict over all versions."""
    versions = state.open(root / "state").versions()
    names = {name for version in versions for name in version.counts}
    return {name: sum(version.counts.get(name, 0) for version in versions) for name in sorted(names)}


def assert_missing_is(truth: Path, root: Path) -> None:
    expected = pl.read_parquet(truth)
    found = pl.DataFrame(state.open(root / "state").missing())
    assert len(found) == len(expected)
    if len(expected):
        found = found.rename({"partition_0": "topic", "partition_1": "partition"}).select(expected.columns)
        assert found.sort(pl.all()).equals(expected.sort(pl.all()).cast(found.schema))


def test_invalid_arguments(tmp_path: Path) -> None:
    for arguments, message in (
        ({"rejected_max": 1.5}, "rejected_max=1.5: expected .* 0 to 1"),
        ({"shards": 0}, "shards=0: expected 1 to 262144"),
        ({"rejects": "some"}, "rejects='some': expected one of 'copy', 'all', 'none'"),
        ({"on_reset": "go"}, "on_reset='go': expected one of 'stop', 'report'"),
        ({"on_bad_file": "go"}, "on_bad_file='go': expected one of None, 'quarantine', 'stop'"),
        ({"plan": "best"}, "plan='best': expected one of None, 'interval', 'row', 'aligned'"),
        ({"settle_ms": -1}, "settle_ms=-1: expected milliseconds from 0"),
        ({"clock_gap_max_ms": 5}, "clock_gap_max_ms=5: pass max_idle_ms"),
    ):
        with pytest.raises(ValueError, match=message):
            make_job(tmp_path, **arguments)
    with pytest.raises(ValueError, match="threads=0: expected at least 1"):
        LocalEngine(0)
    with pytest.raises(fp.PolicyError):
        make_job(tmp_path, policy="kafka_offsets", columns=fp.Columns())
    assert RunReport.__dataclass_params__.frozen  # type: ignore[attr-defined]
