"""Advice on data of a known shape; the counts of each policy equal those of an audit."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import Columns, Policy, cli, lake
from fencepost.advice import Advice
from fencepost.generate import LandingZone, generate

DAY = 86_400_000


def answers(advice: Advice) -> dict[str, str]:
    return {it.question: it.answer for it in advice.facts}


def contiguous(count: int = 1_000, producers: int = 3, **columns: Any) -> pa.Table:
    """Producers in turn, each from 0 on without a gap."""
    pid = np.tile(np.arange(producers), count)
    seq = np.repeat(np.arange(count), producers)
    zeros = np.zeros(count * producers, np.int64)
    return pa.table({"pid": pid, "epoch": zeros, "partition": zeros, "seq": seq, **columns})


def test_contiguous_rows() -> None:
    advice = fp.advise(contiguous())
    assert answers(advice) == {
        "Which columns hold the identity?": "pid, epoch, partition, seq; no time",
        "What are the producers' ids?": "numbers",
        "Are sequences contiguous?": "yes",
        "Do rows come out of order?": "no",
        "Do rows come twice?": "no",
        "Are gaps normal?": "no",
        "Are there epochs?": "one for each key",
        "Where do sequences begin?": "at 0",
        "Do all rows have a producer?": "yes",
    }
    assert advice.policy == Policy.any_order()
    assert advice.command == "fencepost dedup SOURCE STATE CLEAN"
    assert advice.policies["ACCEPTED"].to_pylist() == [3_000] * len(advice.policies)
    assert advice.is_all


def test_late_rows_and_repeats_set_the_retention() -> None:
    rows = contiguous(200, 1)
    times = np.arange(200) * 60_000
    order = np.arange(200)
    order[[50, 120]] = order[[120, 50]]  # 50 comes 70 minutes late
    order = np.append(order, 10)  # and 10 again, 189 minutes after it was made
    rows = rows.append_column("timestamp", pa.array(times)).take(pa.array(order))
    advice = fp.advise(rows)
    found = {it.question: it for it in advice.facts}
    late = found["Do rows come out of order?"]
    assert late.answer == "yes"
    behind = pl.DataFrame(rows)["seq"]
    distance = (behind.cum_max() - behind).head(200).max()
    assert f"the farthest by {distance} numbers" in late.evidence
    assert found["Do rows come twice?"].evidence.startswith("1 repeat,")
    assert advice.max_idle_ms == DAY
    assert "3.1 hours" in " ".join(advice.reasons)
    assert "--max-idle 1d" in advice.command
    slow = rows.set_column(4, "timestamp", pa.array(times[order % 200] * 100))
    assert fp.advise(slow).max_idle_ms == -(-4 * 189 * 6_000_000 // DAY) * DAY


def test_gaps_that_are_normal_are_bound() -> None:
    rows = contiguous(500, 2)
    rows = rows.set_column(3, "seq", pa.array(rows["seq"].to_numpy() * 1_000))
    advice = fp.advise(rows)
    assert answers(advice)["Are gaps normal?"] == "yes"
    assert (advice.policy.gaps, advice.policy.reach) == ("normal", 1_000)
    assert "--set gaps=normal" in advice.command
    assert "--set reach=1000" in advice.command
    assert "--file-order" in advice.command, "dedup refuses a policy that depends on order without it"


def test_numbers_in_no_order_get_no_reach() -> None:
    """A bound that is larger than any policy accepts, and more missing numbers than int64 holds."""
    numbers = np.random.default_rng(0).integers(0, 2**63 - 1, 300)
    rows = contiguous(100, 3)
    rows = rows.set_column(3, "seq", pa.array(numbers))
    advice = fp.advise(rows)
    assert answers(advice)["Are gaps normal?"] == "yes"
    assert (advice.policy.gaps, advice.policy.reach) == ("normal", None)
    assert "--file-order" not in advice.command
    assert "No reach: " in str(advice)
    assert {it["missing"] for it in json.loads(advice.to_json())["policies"]} == {0, 2**63 - 1}
    assert advice.to_html()


def test_offsets_have_gaps_that_are_not_counted() -> None:
    advice = fp.advise(pa.table({"topic": ["a"] * 3, "partition": [0] * 3, "offset": [0, 5, 6]}))
    assert advice.policy.name == "kafka_offsets"
    found = {it.question: it for it in advice.facts}["Are gaps normal?"]
    assert found.answer == "yes"
    assert "0 numbers" not in found.evidence


def test_numbers_above_31_bits_never_wrap() -> None:
    rows = contiguous(10, 1)
    rows = rows.set_column(3, "seq", pa.array(rows["seq"].to_numpy() + (1 << 40)))
    advice = fp.advise(rows)
    assert advice.policy.wrap is None
    assert answers(advice)["Where do sequences begin?"] == "anywhere"
    assert len(fp.deduplicate(rows, advice.policy)) == 10


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["device", "counter"], Columns(pid="device", epoch=None, partition=None, seq="counter")),
        (["Producer_ID", "epoch", "SEQ", "ts"], Columns(pid="Producer_ID", partition=None, seq="SEQ", timestamp="ts")),
        (["topic", "partition", "offset"], Columns(pid="topic", epoch=None, seq="offset")),
        (
            ["pid", "epoch", "topic", "partition", "seq", "timestamp"],
            Columns(partition=("topic", "partition"), timestamp="timestamp"),
        ),
        (
            ["_hoodie_kafka_source_partition", "_hoodie_kafka_source_offset"],
            Columns.preset("hudi"),
        ),
    ],
)
def test_columns_are_found_by_their_names(names: list[str], columns: Columns) -> None:
    advice = fp.advise({name: np.arange(5) for name in names} | {"payload": np.arange(5)})
    assert advice.policy.columns == columns


@pytest.mark.parametrize(
    "values", [["6f1c", "6f1c", "aa01"], [1_700_000_000_000] * 3, [40_000] * 3], ids=["text", "boot time", "wide"]
)
def test_a_column_that_is_not_an_epoch_becomes_part_of_the_producer(values: list[Any]) -> None:
    rows = pa.table({"device": ["a", "a", "a"], "boot_id": values, "seq": [0, 1, 0]})
    advice = fp.advise(rows)
    assert advice.policy.columns == Columns(pid=("device", "boot_id"), epoch=None, partition=None, seq="seq")
    assert "part of the producer's id" in {it.question: it.evidence for it in advice.facts}["Are there epochs?"]
    assert len(fp.deduplicate(rows, advice.policy)) == 3 - (len(set(values)) == 1)


@pytest.mark.parametrize("named", [{"pid": "device"}, {"pid": "device", "seq": "seq"}, {"pid": ("boot_id", "device")}])
def test_a_named_producer_gets_the_boot_id_too(named: dict[str, Any]) -> None:
    rows = pa.table({"device": ["a", "a", "a"], "boot_id": ["6f1c", "6f1c", "aa01"], "seq": [0, 1, 0]})
    policy = fp.advise(rows, named).policy
    assert set(policy.columns.parts("pid")) == {"device", "boot_id"}
    assert len(fp.deduplicate(rows, policy)) == 3
    assert fp.advise(rows, named | {"epoch": None}).policy.columns.pid == named["pid"]


@pytest.mark.parametrize("name", ["boot", "stream"])
def test_a_named_column_has_no_other_role(name: str) -> None:
    rows = pa.table({"device": [7, 7, 7], "number": [0, 1, 2], name: [5, 5, 6]})
    named = {"pid": name, "seq": "number"}
    expected = Columns(pid=name, epoch=None, partition=None, seq="number")
    assert fp.advise(rows, named).policy.columns == expected
    composite = fp.advise(rows, named | {"pid": ("device", name)}).policy.columns
    assert composite == Columns(pid=("device", name), epoch=None, partition=None, seq="number")


def test_a_missing_timestamp_is_named() -> None:
    rows = contiguous(3, 1, timestamp=[1, None, 3])
    with pytest.raises(fp.BatchError, match=r"column 'timestamp', row 1"):
        fp.advise(pa.concat_tables([rows, rows]))


def test_columns_that_arrow_cannot_represent_are_not_read_if_all_roles_are_named() -> None:
    rows = contiguous(3).to_pandas().assign(thing=[object(), {1}, "a"] * 3)
    wide = pl.DataFrame(contiguous(3)).with_columns(pl.lit(1).cast(pl.Int128))
    assert fp.advise(rows, Columns()).facts == fp.advise(wide, Columns()).facts == fp.advise(contiguous(3)).facts


def test_ids_of_sessions_that_int64_does_not_hold_are_named() -> None:
    rows = pa.table({"device": ["a", "a"], "session": pa.array([2**64 - 1, 5], pa.uint64()), "seq": [0, 0]})
    with pytest.raises(fp.BatchError, match=r"column 'session', row 0: value 18446744073709551615"):
        fp.advise(rows)


def test_missing_columns_are_named_with_the_existing_ones() -> None:
    with pytest.raises(fp.PolicyError, match=r"a sequence number.*`seq`.*device, value"):
        fp.advise({"device": np.arange(3), "value": np.arange(3)})
    with pytest.raises(fp.PolicyError, match=r"a producer.*`pid`.*who, seq"):
        fp.advise({"who": np.arange(3), "seq": np.arange(3)})
    assert fp.advise({"who": np.arange(3), "seq": np.arange(3)}, {"pid": "who"}).policy.columns.pid == "who"


def test_a_counter_that_restarts_is_found() -> None:
    rows = pa.concat_tables([contiguous(50, 1)] * 2).append_column("timestamp", pa.array(np.arange(100)))
    assert answers(fp.advise(rows))["Do counters restart?"] == "probably"


# Files and the command line


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zone")
    generate(path, LandingZone(rows=30_000, producers=10, payload_bytes=4, untracked_share=0))
    return path / "landing"


def test_the_counts_of_each_policy_are_those_of_an_audit(zone: Path) -> None:
    advice = lake.advise(zone)
    assert advice.is_all
    columns = Columns(partition=("topic", "partition"), timestamp="timestamp")
    assert advice.policy.columns == columns
    found = {row["policy"]: row for row in advice.policies.to_pylist()}
    assert set(found) == {"any_order", "any_order, epochs=fence", "in_order", "kafka", "strict", "watermark"}
    for name, row in found.items():
        rules = Policy.any_order().replace(epochs="fence") if "," in name else getattr(Policy, name)()
        epoch = None if rules.columns.epoch is None else "epoch"
        report = lake.audit(zone, rules, Columns(epoch=epoch, partition=("topic", "partition")))
        assert {it: row[it] for it in row if it.isupper() and row[it]} == report.counts, name
        assert (row["missing"], row["stale"]) == (report.missing_rows, report.stale_epoch), name
        assert sum(row[it] for it in row if it.isupper()) == advice.rows
    rows = pa.concat_tables([pq.read_table(file) for file in sorted(zone.glob("*.parquet"))])
    assert fp.advise(rows).facts == advice.facts


def test_rows_without_a_producer_are_counted(tmp_path: Path) -> None:
    generate(tmp_path, LandingZone(rows=5_000, producers=5, payload_bytes=4, untracked_share=0.1, deliveries=1))
    found = lake.audit(tmp_path / "landing", columns=Columns(partition=("topic", "partition")))
    rows = pa.concat_tables([pq.read_table(file) for file in sorted((tmp_path / "landing").glob("*.parquet"))])
    for advice in (lake.advise(tmp_path / "landing"), fp.advise(rows)):
        assert advice.rows == found.rows
        assert set(advice.policies["UNTRACKED"].to_pylist()) == {found.counts["UNTRACKED"]}
        assert answers(advice)["Do all rows have a producer?"] == "no"
    for some in (1, 700, len(rows) - 1, len(rows)):
        ours, expected = lake.advise(tmp_path / "landing", rows_max=some), fp.advise(rows.slice(0, some))
        assert (ours.rows, ours.is_all) == (some, some == len(rows))
        assert (ours.policies, ours.facts) == (expected.policies, expected.facts)


def test_the_first_file_may_have_no_rows(tmp_path: Path) -> None:
    rows = pa.table({"device": [7, 7], "boot_id": [10**9, 2 * 10**9], "seq": [0, 0]})
    for name, some in (("a", rows.slice(0, 0)), ("b", rows)):
        pq.write_table(some, tmp_path / f"{name}.parquet")
    assert lake.advise(tmp_path).policy.columns.pid == ("device", "boot_id")


def test_a_sample_is_the_first_rows(zone: Path) -> None:
    advice = lake.advise(zone, rows_max=1_000)
    assert (advice.rows, advice.is_all) == (1_000, False)
    rows = pa.concat_tables([pq.read_table(file) for file in sorted(zone.glob("*.parquet"))])
    assert fp.advise(rows.slice(0, 1_000)).facts == advice.facts
    assert fp.advise(rows, rows_max=1_000).facts == advice.facts


def test_the_command_line(zone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", str(zone)]) == 0
    assert capsys.readouterr().out == f"{lake.advise(zone)}\n"
    assert cli.main(["advise", str(zone), "--rows", "500", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["rows"] == 500
    words = shlex.split(advice["command"])
    state, sink = str(tmp_path / "state"), str(tmp_path / "clean")
    job = [{"STATE": state, "CLEAN": sink}.get(word, word) for word in words[1:]]
    assert cli.main([*job, "--no-sync", "-q"]) == 0
    assert cli.main(["advise", str(zone), "--rows", "none"]) == 2
    assert cli.main(["advise", str(zone), "--seq", "nothing"]) == 1
    assert "column 'nothing'" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["advise", str(tmp_path / "empty")]) == 1
