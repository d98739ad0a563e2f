"""Audits: every figure is computed again by polars and plain sets, for every kind of rows, cut anyhow, over files."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from fencepost import AuditReport, Columns, Policy, StateTable, auditor, lake, timeline
from fencepost.generate import LandingZone, generate
from fencepost.lake import auditing
from fencepost.state import engine
from support import daily
from support.audits import differences
from support.frames import KINDS, OTHERS
from support.lake import IS_TRACKED, SCHEMA, make_rows

KEY = ["pid", "partition", "epoch"]
TIMED = Columns(timestamp="timestamp")
FENCED = Policy.any_order().replace(epochs="fence")
OF_FILES = ("order", "source", "files", "bytes", "examples", "timeline")
"""What a report on files says in another way: rows are named by file."""


def timed_rows(seed: int, count: int) -> pa.Table:
    """Generated rows with timestamps of their events, so that repeats have the same, and with restarted counters."""
    rows = pl.DataFrame(make_rows(seed, count)).with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    first = pl.col("row").first().over("pid", "epoch", "partition", "seq")
    is_restarted = (pl.col("pid") == 3) & (pl.col("row") > count // 2)
    rows = rows.with_columns(timestamp=pl.when(is_restarted).then(pl.col("row") * 10).otherwise(first * 10))
    return rows.drop("row").to_arrow().cast(SCHEMA.append(pa.field("timestamp", pa.int64())))


# The truth, computed again


def rows_of(rows: pa.Table) -> pl.DataFrame:
    """The rows with their place, whether they are copies, and how far they are from what they copy."""
    frame = pl.DataFrame(rows).with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    first = pl.col("place").first().over("pid", "epoch", "partition", "seq")
    return frame.filter(IS_TRACKED).with_columns(
        is_copy=pl.col("place") != first, distance=pl.when(pl.col("place") != first).then(pl.col("place") - first)
    )


def missing_of(rows: pl.DataFrame) -> set[tuple[Any, ...]]:
    found = set()
    for key, group in rows.group_by(KEY):
        held = sorted(set(group["seq"]))
        found |= {(*key, a + 1, b - 1, b - a - 1) for a, b in pairwise(held) if b > a + 1}
    return found


def stale_of(rows: pl.DataFrame) -> dict[tuple[Any, ...], int]:
    highest = pl.col("epoch").cum_max().over("pid", "partition")
    stale = rows.filter(pl.col("epoch") < highest).group_by(KEY).len()
    return {tuple(key): count for *key, count in stale.iter_rows()}


def bins_of(rows: pl.DataFrame) -> list[tuple[int, int, int]]:
    distances = rows["distance"].drop_nulls().to_list()
    bins, first, last = [], 1, 1
    while distances and first <= max(distances):
        bins.append((first, last, sum(first <= it <= last for it in distances)))
        first, last = last + 1, last * 10
    return bins


def retimed_of(rows: pl.DataFrame) -> dict[tuple[Any, ...], int]:
    """Copies of another time than what they copy, by key."""
    first = pl.col("timestamp").first().over(*KEY, "seq")
    found = rows.filter(pl.col("timestamp") != first).group_by("pid", "partition").len()
    return {tuple(key): count for *key, count in found.iter_rows()}


@pytest.mark.parametrize("call_rows", [1, 7, 1_000, 1 << 20])
@pytest.mark.parametrize("seed", daily.first(range(3)))
def test_every_figure(monkeypatch: pytest.MonkeyPatch, seed: int, call_rows: int) -> None:
    monkeypatch.setattr(auditor, "CALL_ROWS", call_rows)
    monkeypatch.setattr(auditor, "COMPACT_MIN", 100)
    data = timed_rows(seed, {1: 300, 7: 1_000}.get(call_rows, 3_000))
    report = fp.audit(data, columns=TIMED, producers_max=100, reset_rows_min=5)
    rows = rows_of(data)
    copies = int(rows["is_copy"].sum())
    counts = {"ACCEPTED": len(rows) - copies, "DUPLICATE": copies, "UNTRACKED": len(data) - len(rows)}
    assert report.counts == {name: count for name, count in counts.items() if count}
    assert report.rows == len(data)
    assert {
        tuple(row.values()) for row in report.missing.select([*KEY, "first_seq", "last_seq", "count"]).to_pylist()
    } == (missing_of(rows))
    assert (report.missing_ranges, report.missing_rows) == (
        len(report.missing),
        sum(report.missing["count"].to_pylist()),
    )
    stale = {tuple(row[name] for name in KEY): row["count"] for row in report.stale.to_pylist()}
    assert stale == stale_of(rows)
    assert report.stale_epoch == sum(stale.values())
    producers = rows.group_by("pid").agg(pl.len().alias("rows"), pl.col("is_copy").sum().alias("duplicates"))
    producers = producers.cast(pl.Int64)
    for table, by in ((report.producers_by_rows, "rows"), (report.producers_by_duplicates, "duplicates")):
        assert table.to_pylist() == producers.sort([by, "pid"], descending=[True, False]).to_dicts()
    assert report.producers == len(producers)
    epochs = rows.group_by("pid", "partition").agg(
        pl.col("epoch").min().alias("first_epoch"), pl.col("epoch").max().alias("last_epoch")
    )
    epochs = epochs.filter(pl.col("first_epoch") < pl.col("last_epoch")).sort("pid", "partition")
    assert report.resets.to_pylist() == epochs.to_dicts()
    assert [tuple(row.values()) for row in report.distances.to_pylist()] == bins_of(rows)
    assert (report.distance_share, report.repeats_of_unseen) == (1.0, 0)
    suspects = {key: count for key, count in retimed_of(rows).items() if count >= 5}
    found = {(row["pid"], row["partition"]): row["retimed"] for row in report.suspected_resets.to_pylist()}
    assert found == suspects
    check_keys(report, data)
    check_timeline(report, data)
    check_examples(report, data)


def stale_rows(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("epoch") < pl.col("epoch").cum_max().over("pid", "partition"))


def check_keys(report: AuditReport, data: pa.Table) -> None:
    """The keys with findings, and when the first and the last of their repeats and stale rows are."""
    rows = rows_of(data)
    key = ["pid", "partition"]
    missing = pl.DataFrame(report.missing).group_by(key).agg(pl.col("count").sum().alias("missing"))
    stale = stale_rows(rows).group_by(key).agg(pl.len().cast(pl.Int64).alias("stale"))
    counts = rows.group_by(key).agg(pl.len().alias("rows"), pl.col("is_copy").sum().alias("duplicates"))
    expected = counts.join(missing, on=key, how="left").join(stale, on=key, how="left").fill_null(0)
    expected = expected.filter(pl.col("duplicates") + pl.col("missing") + pl.col("stale") > 0).cast(pl.Int64)
    names = [*key, "rows", "duplicates", "missing", "stale"]
    found = pl.DataFrame(report.keys)
    assert found.select(names).sort(key).rows() == expected.select(names).sort(key).rows()
    findings = found["duplicates"] + found["missing"] + found["stale"]
    assert findings.to_list() == sorted(findings.to_list(), reverse=True)
    times = pl.concat([rows.filter("is_copy"), stale_rows(rows)]).select(*key, "timestamp")
    times = pl.concat([times, pl.DataFrame(report.missing).select(*key, "timestamp")])
    bounds = times.group_by(key).agg(pl.col("timestamp").min().alias("a"), pl.col("timestamp").max().alias("b"))
    assert found.select(*key, "since", "until").sort(key).rows() == bounds.sort(key).rows()


def check_timeline(report: AuditReport, data: pa.Table) -> None:
    """Each bin counts the rows whose timestamps are in it."""
    rows = rows_of(data)
    assert report.timeline_unit == "ms"
    assert len(report.timeline) <= 240
    kinds = {"rows": rows, "duplicates": rows.filter("is_copy"), "stale": stale_rows(rows)}
    for line in report.timeline.to_pylist():
        for kind, some in kinds.items():
            count = some.filter(pl.col("timestamp").is_between(line["first"], line["last"])).height
            assert line[kind] == count, kind
    for kind, some in kinds.items():
        assert sum(report.timeline[kind].to_pylist()) == some.height
    assert sum(report.timeline["missing"].to_pylist()) == report.missing_rows


def check_examples(report: AuditReport, data: pa.Table) -> None:
    """Each example is a row of the data with the declared finding, from a uniform sample of identities."""
    rows = rows_of(data)
    place = {row["place"]: row for row in rows.to_dicts()}
    stale = set(stale_rows(rows)["place"])
    identity = [*KEY, "seq"]
    found = [it for it in report.examples.to_pylist() if it["what"] not in auditor.BESIDE_GAPS]
    kinds = {it["what"] for it in found}
    assert kinds == {"DUPLICATE", "RETIMED", "STALE"} if len(data) > 300 else {"DUPLICATE", "STALE"} <= kinds
    for it in found:
        row = place[it["row"]]
        assert [row[name] for name in (*identity, "timestamp")] == [it[name] for name in (*identity, "timestamp")]
        if it["what"] == "STALE":
            assert it["row"] in stale
            assert not row["is_copy"]
            continue
        assert row["distance"] == it["row"] - it["kept_row"]
        assert it["kept_timestamp"] == place[it["kept_row"]]["timestamp"]
        assert it["what"] == "DUPLICATE" or it["kept_timestamp"] != it["timestamp"]
    for kind in kinds:
        some = [tuple(it[name] for name in identity) for it in found if it["what"] == kind]
        assert len(set(some)) == len(some) <= 20
    check_rows_beside_gaps(report, data)
    largest = report.missing.sort_by([("count", "descending")]).slice(0, 10).to_pylist()
    expected = [
        (*(it[name] for name in KEY), seq) for it in largest for seq in (it["first_seq"] - 1, it["last_seq"] + 1)
    ]
    assert [tuple(it[name] for name in identity) for it in beside_gaps(report)] == expected


def beside_gaps(report: AuditReport) -> list[dict[str, Any]]:
    return [it for it in report.examples.to_pylist() if it["what"] in auditor.BESIDE_GAPS]


def check_rows_beside_gaps(report: AuditReport, data: pa.Table) -> None:
    """Each is a kept row whose number is next to a missing range."""
    names = [*KEY, "seq", "timestamp"]
    kept = {row["place"]: row for row in rows_of(data).to_dicts() if not row["is_copy"]}
    key = [[report.missing[name].to_pylist() for name in (*KEY, end)] for end in ("first_seq", "last_seq")]
    ends = dict(zip(auditor.BESIDE_GAPS, (set(zip(*it, strict=True)) for it in key), strict=True))
    for it in beside_gaps(report):
        assert [kept[it["row"]][name] for name in names] == [it[name] for name in names]
        step = 1 if it["what"] == "BEFORE_GAP" else -1
        assert (*(it[name] for name in KEY), it["seq"] + step) in ends[it["what"]]
        assert it["kept_row"] is None


def test_the_timeline_is_bounded_and_outliers_do_not_hide_the_rest() -> None:
    count = 50_000
    times = np.arange(count) * 3_600_000 + 1_700_000_000_000
    times[7], times[8] = 0, 40_000_000_000_000
    rows = stream(1, range(count), times)
    report = fp.audit(pa.concat_tables([rows, rows.slice(1_000, 500)]), columns=TIMED)
    assert 24 < len(report.timeline) <= 240
    found = {(it["first"], it["last"]): it for it in report.timeline.to_pylist()}
    assert sum(it["rows"] for it in found.values()) == count + 500
    for it in found.values():
        assert (it["last"] - it["first"] + 1) % 86_400_000 == 0
    whole = timeline.Timeline("ms")
    for place in range(0, count, 777):
        part = timeline.Timeline("ms")
        part.add("rows", times[place : place + 777])
        whole.merge(part)
    assert [it["rows"] for it in whole.table().to_pylist()] == [
        it["rows"] - it["duplicates"] for it in report.timeline.to_pylist()
    ]


def test_without_timestamps_findings_have_positions() -> None:
    rows = stream(1, [*range(100), 5, 6], range(102)).drop_columns(["timestamp"])
    report = fp.audit(rows)
    assert report.timeline_unit == "rows"
    assert [(it["first"], it["duplicates"]) for it in report.timeline.to_pylist()] == [(100, 1), (101, 1)]
    assert report.keys.to_pylist()[0]["since"] == 100
    assert "timestamp" not in report.missing.column_names


def test_a_gap_has_the_time_at_which_it_was_skipped() -> None:
    rows = stream(1, [0, 5, 3, 9], [10, 20, 30, 40])
    found = fp.audit(rows, columns=TIMED).missing.select(["first_seq", "last_seq", "timestamp"]).to_pylist()
    assert [tuple(it.values()) for it in found] == [(1, 2, 20), (4, 4, 20), (6, 8, 40)]
    fenced = fp.audit(rows, FENCED, dataclasses.replace(TIMED)).missing
    assert fenced["timestamp"].to_pylist() == [20, 20, 40]


@pytest.mark.parametrize("policy", ["any_order", "in_order", "kafka", "strict", "watermark", "narrow", "fenced"])
def test_the_division_into_calls_does_not_matter(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """However rows are cut into calls, the report is that of one call, under every policy."""
    made = {"narrow": Policy.any_order().replace(wrap=256), "fenced": FENCED}
    rules = made.get(policy) or getattr(Policy, policy)()
    columns = dataclasses.replace(rules.columns, timestamp="timestamp")
    data = timed_rows(5, 1_000)
    whole = fp.audit(data, rules, columns)
    table = StateTable(rules, keep=("timestamp",))
    verdicts = table.apply(data, columns)
    assert whole.counts == {verdict.name: count for verdict, count in verdicts.counts.items() if count}
    assert (whole.stale_epoch, whole.border) == (verdicts.stale_epoch, verdicts.border)
    assert whole.missing_ranges == len(pa.table(verdicts.missing))
    assert whole.missing_rows == sum(pa.table(verdicts.missing)["count"].to_pylist())
    for call_rows in (13, 700):
        monkeypatch.setattr(auditor, "CALL_ROWS", call_rows)
        assert differences(fp.audit(data, rules, columns), whole) == []


# Suspected resets


def stream(pid: int, seqs: Any, timestamps: Any) -> pa.Table:
    zeros = [0] * len(seqs)
    return pa.table(
        {"pid": [pid] * len(seqs), "epoch": zeros, "partition": zeros, "seq": list(seqs), "timestamp": list(timestamps)}
    )


def test_an_example_names_the_row_of_an_earlier_lap() -> None:
    """The number comes again as a new row of the next lap, in the same call."""
    rows = stream(1, [0, 1, 0, 2, 3, 0], range(6))
    report = fp.audit(rows, Policy.any_order().replace(wrap=4), TIMED)
    found = report.examples.select(["what", "row", "kept_row", "kept_timestamp"]).to_pylist()
    assert [tuple(it.values()) for it in found] == [("DUPLICATE", 2, 0, 0), ("RETIMED", 2, 0, 0)]


def test_rows_beside_gaps_are_shown_if_they_are_in_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "SAMPLE_MAX", 200)
    data = timed_rows(1, 3_000)
    report = fp.audit(data, columns=TIMED)
    assert 0 < len(beside_gaps(report)) <= 20
    check_rows_beside_gaps(report, data)
    table = StateTable("any_order", keep=("timestamp",))
    table.apply(stream(1, [0], [5]), TIMED)
    report = fp.audit(stream(1, [3], [6]), columns=TIMED, table=table)
    found = [(it["what"], it["seq"], it["row"], it["timestamp"]) for it in beside_gaps(report)]
    assert found == [("AFTER_GAP", 3, 0, 6)], "the other one is not in the data"


@pytest.mark.parametrize(
    "columns",
    [
        Columns(timestamp="timestamp"),
        Columns(pid=("pid", "text"), partition=None),
        Columns(pid="text", epoch=None, partition=("partition", "pid")),
    ],
)
def test_rows_beside_gaps_of_every_kind_of_key(columns: Columns) -> None:
    rows = stream(1, [0, 4, 9], [10, 20, 30]).append_column("text", pa.array(["a"] * 3))
    rows = pa.concat_tables(
        [rows, rows.set_column(5, "text", pa.array(["b"] * 3)).set_column(0, "pid", pa.array([2] * 3))]
    )
    policy = Policy.any_order() if columns.epoch else Policy.any_order().replace(epochs="ignore")
    found = [(it["what"], it["seq"], it["row"]) for it in beside_gaps(fp.audit(rows, policy, columns))]
    of_key = [("BEFORE_GAP", 4, 1), ("AFTER_GAP", 9, 2)], [("BEFORE_GAP", 0, 0), ("AFTER_GAP", 4, 1)]
    assert found == [(what, seq, row + first) for gap in of_key for first in (0, 3) for what, seq, row in gap]


def test_numbers_that_were_used_twice_have_no_rows_beside_gaps() -> None:
    policy = Policy.any_order().replace(wrap=8)
    report = fp.audit(stream(1, [6, 1], range(2)), policy, TIMED)
    assert report.missing_rows == 2
    assert {(it["what"], it["seq"]) for it in beside_gaps(report)} == {("BEFORE_GAP", 6), ("AFTER_GAP", 1)}
    report = fp.audit(stream(1, [6, 1, 3, 5, 6], range(5)), policy, TIMED)
    assert report.missing_rows == 4
    assert beside_gaps(report) == []


def test_a_restarted_counter_is_suspected_and_a_redelivery_is_not() -> None:
    restarted = pa.concat_tables([stream(1, range(3_000), range(3_000)), stream(1, range(2_900), range(9_000, 11_900))])
    assert fp.audit(restarted, columns=TIMED).count_findings() == {"duplicate": 2_900, "reset": 1}
    scattered = pa.concat_tables(  # each after a row that was accepted
        [stream(1, [it, it], [2 * it, 2 * it + 1]) for it in range(2_900)]
    )
    assert fp.audit(scattered, columns=TIMED).count_findings() == {"duplicate": 2_900, "reset": 1}
    assert fp.audit(scattered, columns=TIMED, reset_rows_min=2_901).count_findings() == {"duplicate": 2_900}
    table = StateTable("any_order", keep=("timestamp",))
    table.apply(restarted.slice(0, 3_000), TIMED)
    later = restarted.slice(3_000)
    report = fp.audit(later, columns=TIMED, table=table)
    assert report.count_findings() == {"duplicate": 2_900, "reset": 1}
    assert report.suspected_resets.to_pylist() == [
        {"pid": 1, "partition": 0, "rows": 2_900, "duplicates": 2_900, "retimed": 2_900}
    ]
    assert report.count_findings("reset") == {"reset": 1}
    one, of_one = StateTable("any_order", keep=("timestamp",)), dataclasses.replace(TIMED, partition=None)
    one.apply(restarted.slice(0, 3_000), of_one)
    assert fp.audit(later, columns=of_one, table=one).count_findings() == {"duplicate": 2_900, "reset": 1}
    again = pa.concat_tables([stream(1, range(3_000), range(3_000))] * 5)  # the same rows, as old as they were
    assert fp.audit(again, columns=TIMED, table=table).count_findings() == {"duplicate": 15_000}
    assert fp.audit(again, columns=TIMED).count_findings() == {"duplicate": 12_000}
    assert fp.audit(later.slice(0, 1), columns=TIMED, table=table).count_findings() == {"duplicate": 1, "reset": 1}
    without = fp.audit(later)
    assert without.suspected_resets is None
    with pytest.raises(fp.PolicyError, match=r"search for resets.* timestamp column"):
        without.count_findings("reset")


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns")]
)
def test_timestamps_of_every_unit(kind: pa.DataType) -> None:
    data = stream(1, [*range(2_000), *range(2_000)] * 2, [1_000 * it for it in range(-2_000, 6_000)])
    data = data.set_column(4, "timestamp", data["timestamp"].cast(pa.timestamp("ms")).cast(kind))
    assert fp.audit(data, columns=TIMED).suspected_resets["retimed"].to_pylist() == [6_000]
    nothing = data.slice(0, 0)
    assert fp.audit(nothing, columns=TIMED).rows == fp.advise(nothing, TIMED).rows == 0


# Kinds of rows and of keys


@pytest.mark.parametrize("kind", KINDS | OTHERS)
def test_every_kind_of_rows(kind: str) -> None:
    make = OTHERS.get(kind) or KINDS[kind][0]
    data = timed_rows(1, 500)
    assert differences(fp.audit(make(data), columns=TIMED), fp.audit(data, columns=TIMED)) == []
    nothing = fp.audit(make(data.slice(0, 0)), columns=TIMED)
    assert (nothing.rows, nothing.counts, nothing.count_findings()) == (0, {}, {})
    assert "read" in str(nothing)
    json.loads(nothing.to_json())


def test_numpy_arrays_and_frames_with_columns_that_arrow_cannot_represent() -> None:
    arrays = {
        "pid": np.array([7, 7]),
        "epoch": np.zeros(2, int),
        "partition": np.zeros(2, int),
        "seq": np.array([0, 0]),
    }
    assert fp.audit(arrays | {"other": "not a column"}).count_findings() == {"duplicate": 1}
    assert fp.audit(pd.DataFrame(arrays | {"things": [object(), {1}]})).count_findings() == {"duplicate": 1}


KEYS: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "uint64": pa.uint64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "uuid": pa.binary(16),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("call_rows", [90, 1 << 20])
def test_every_type_of_key(monkeypatch: pytest.MonkeyPatch, name: str, call_rows: int) -> None:
    monkeypatch.setattr(auditor, "CALL_ROWS", call_rows)
    data = timed_rows(2, 1_000).filter(pl.DataFrame(timed_rows(2, 1_000)).select(IS_TRACKED).to_series().to_arrow())
    plain = fp.audit(data, columns=TIMED)
    kind = KEYS[name]
    is_number = pa.types.is_integer(kind)
    texts = data["pid"].cast(pa.string()).to_pylist()
    if is_number:
        keys = data["pid"].cast(kind)
    elif name == "uuid":
        keys = pa.array([it.encode().ljust(16) for it in texts], kind)
    else:
        keys = pa.array(texts).cast(pa.binary() if name == "binary" else pa.string()).cast(kind)
    rows = data.set_column(0, "pid", keys)
    keyed = ("missing", "stale", "resets", "producers_by_rows", "producers_by_duplicates", "keys", "examples")
    ignored = () if is_number else keyed
    found = fp.audit(rows, columns=TIMED)
    assert differences(found, plain, *ignored, "suspected_resets") == []
    assert found.producers_by_rows["rows"].to_pylist() == plain.producers_by_rows["rows"].to_pylist()
    assert found.stale["count"].to_pylist() == plain.stale["count"].to_pylist()
    assert len(found.resets) == len(plain.resets)
    table = StateTable("any_order", keep=("timestamp",))
    table.apply(rows, TIMED)  # last timestamps of what a table knew are found by the same keys
    later = rows.set_column(5, "timestamp", pa.array([10**9] * len(rows)))
    suspected = fp.audit(later, columns=TIMED, table=table).suspected_resets
    assert sum(suspected["retimed"].to_pylist()) == len(rows)
    json.loads(found.to_json())


def test_composite_keys_are_named_in_the_text_as_the_rows_name_them() -> None:
    columns = Columns(pid=("cluster", "who"), partition=("topic", "partition"))
    data = pa.table(
        {
            "cluster": ["eu"] * 3,
            "who": [7] * 3,
            "epoch": [0] * 3,
            "topic": ["t"] * 3,
            "partition": [0] * 3,
            "seq": [0, 0, 5],
        }
    )
    report = fp.audit(data, columns=columns)
    assert report.missing.column_names == [
        "pid_0", "pid_1", "partition_0", "partition_1", "epoch", "first_seq", "last_seq", "count"
    ]  # fmt: skip
    assert "  cluster  who  topic  partition  epoch  first_seq  last_seq  count\n" in str(report)
    assert report.identity == ("cluster", "who", "epoch", "topic", "partition", "seq")


def test_rows_without_epochs_or_partitions() -> None:
    policy = Policy.any_order().replace(
        epochs="ignore", wrap=None, columns=Columns(pid="device", epoch=None, partition=None, seq="n")
    )
    report = fp.audit(pl.DataFrame({"device": ["a", "b", "a"], "n": [1 << 40, 7, 1 << 40]}), policy)
    assert report.count_findings() == {"duplicate": 1}
    assert len(report.resets) == 0
    assert [tuple(row.values()) for row in report.distances.to_pylist()] == [(1, 1, 0), (2, 10, 1)]


# Epochs that are replaced


def bumped_rows(seed: int, count: int) -> pa.Table:
    """Late rows, holes, and epochs that go up now and then, with stragglers of the one before; spans as well."""
    rng = np.random.default_rng(seed)
    lines: list[tuple[int, int, int, int]] = []
    while len(lines) < count:
        pid, partition = int(rng.integers(0, 4)), int(rng.integers(0, 2))
        epoch = max(len(lines) * 5 // count - int(rng.integers(0, 4) == 0), 0)
        first = int(rng.integers(0, 60))
        lines += [(pid, epoch, partition, first + it) for it in range(int(rng.integers(1, 6)))]
    return pa.table(dict(zip(("pid", "epoch", "partition", "seq"), map(list, zip(*lines, strict=True)), strict=True)))


def missing_of_all_epochs(rows: pa.Table) -> set[tuple[Any, ...]]:
    """What is left of each, whether it was replaced or not; by plain sets."""
    newest: dict[Any, int] = {}
    held: dict[Any, set[int]] = {}
    for pid, epoch, partition, seq in zip(*(rows[name].to_pylist() for name in rows.column_names[:4]), strict=True):
        newest[pid, partition] = max(epoch, newest.get((pid, partition), epoch))
        if epoch == newest[pid, partition]:
            held.setdefault((pid, partition, epoch), set()).add(seq)
    return {
        (*key, a + 1, b - 1, b - a - 1) for key, seqs in held.items() for a, b in pairwise(sorted(seqs)) if b > a + 1
    }


def missing_in(report: AuditReport) -> set[tuple[Any, ...]]:
    assert (report.missing_ranges, report.missing_rows) == (
        len(report.missing),
        sum(report.missing["count"].to_pylist()),
    )
    names = [name for name in report.missing.column_names if name != "timestamp"]
    return {tuple(row.values()) for row in report.missing.select(names).to_pylist()}


@pytest.mark.parametrize("policy", [FENCED, Policy.in_order()], ids=["any", "forward"])
def test_open_ranges_of_a_replaced_epoch_count_as_missing(policy: Policy) -> None:
    rows = pa.table({"pid": [7] * 6, "epoch": [0, 0, 1, 1, 2, 2], "partition": [0] * 6, "seq": [0, 5, 0, 2, 4, 6]})
    assert missing_in(fp.audit(rows, policy)) == {(7, 0, 0, 1, 4, 4), (7, 0, 1, 1, 1, 1), (7, 0, 2, 5, 5, 1)}
    table = StateTable(policy)
    assert len(pa.table(table.apply(rows).missing)) == 3, "as the verdicts tell"
    assert len(pa.table(table.missing())) == 1, "the table has forgotten"


@pytest.mark.parametrize("call_rows", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("seed", daily.first(range(3)))
def test_missing_of_every_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int, call_rows: int) -> None:
    monkeypatch.setattr(auditor, "CALL_ROWS", call_rows)
    monkeypatch.setattr(auditing, "CALL_ROWS", call_rows)
    monkeypatch.setattr(auditing, "TOGETHER", 20)
    data = bumped_rows(seed, 400)
    expected = missing_of_all_epochs(data)
    table = StateTable(FENCED)
    table.apply(data)
    assert len(expected) > len(pa.table(table.missing()))
    assert missing_in(fp.audit(data, FENCED)) == expected
    for number, start in enumerate(range(0, len(data), 90)):
        pq.write_table(data.slice(start, 90), tmp_path / f"{number}.parquet")
    for threads in (1, 3):
        assert missing_in(lake.audit(tmp_path, FENCED, threads=threads)) == expected


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.string(), pa.binary(2), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_an_audit_with_a_table_lists_missing_rows_of_epochs_replaced_since(kind: pa.DataType) -> None:
    """What it still lists when it is given, and what is replaced from then on."""
    data = bumped_rows(4, 300)
    if not pa.types.is_integer(kind):
        data = data.set_column(0, "pid", pa.compute.utf8_lpad(data["pid"].cast(pa.string()), 2, "p"))
    data = data.set_column(
        0,
        "pid",
        data["pid"].cast(pa.binary()).cast(kind)
        if "binary" in str(kind)
        else data["pid"].dictionary_encode()
        if "dictionary" in str(kind)
        else data["pid"].cast(kind),
    )
    data = data.append_column("timestamp", pa.array(range(len(data))))
    known, rest = data.slice(0, 100), data.slice(100)
    table = StateTable(FENCED, keep=("timestamp",))
    table.apply(known)
    replaced_before = missing_of_all_epochs(known) - {
        tuple(it.values()) for it in pa.table(table.missing()).to_pylist()
    }
    assert replaced_before
    report = fp.audit(rest, table=table)
    assert missing_in(report) == missing_of_all_epochs(data) - replaced_before
    assert report.missing["pid"].type == pa.table(table.missing())["pid"].type


@pytest.mark.parametrize("wrap", [40, 1_000])
@pytest.mark.parametrize("columns", [Columns(), Columns(pid=("pid", "partition"), partition=None)], ids=["two", "one"])
def test_replaced_epochs_over_the_wrap(monkeypatch: pytest.MonkeyPatch, wrap: int, columns: Columns) -> None:
    """Verdicts report all ranges that a call opened, also of removed entries, and so does an audit of many calls."""
    policy = FENCED.replace(wrap=wrap, intervals_max=30)
    data = bumped_rows(5, 400)
    data = data.set_column(3, "seq", pa.array(data["seq"].to_numpy() % 40))
    expected = pa.table(StateTable(policy).apply(data, columns).missing).to_pylist()
    monkeypatch.setattr(auditor, "CALL_ROWS", 11)
    report = fp.audit(data, policy, columns)
    assert sorted(map(str, report.missing.to_pylist())) == sorted(map(str, expected))
    assert report.missing_ranges > 30, "more than the table may hold at a time"


# What a table knew, and errors


def test_a_table_is_not_touched() -> None:
    data = timed_rows(3, 1_000)
    table = StateTable("any_order", keep=("timestamp",))
    table.apply(data.slice(0, 400))
    before = table.snapshot()
    report = fp.audit(data.slice(400), table=table)
    assert table.snapshot() == before
    whole = StateTable("any_order", keep=("timestamp",))
    whole.apply(data)
    assert report.missing_ranges == len(pa.table(whole.missing()))
    copies = rows_of(data).filter(pl.col("is_copy") & (pl.col("place") >= 400))
    first_place = copies["place"] - copies["distance"]
    assert report.counts["DUPLICATE"] == len(copies)
    assert report.repeats_of_unseen == (first_place < 400).sum()
    assert sum(report.distances["repeats"].to_pylist()) == (first_place >= 400).sum()
    assert report.suspected_resets is not None


@pytest.mark.parametrize("policy", ["any_order", FENCED, "in_order"])
def test_a_table_with_other_keys_is_refused(policy: str | Policy) -> None:
    data = timed_rows(3, 10)
    table = StateTable(policy, keep=("timestamp",))
    table.apply(data)
    for columns in (Columns(pid=("pid", "partition")), Columns(partition=("pid", "partition"))):
        with pytest.raises(fp.BatchError, match=r"this table.s keys are"):
            fp.audit(data, columns=columns, table=table)


def test_invalid_arguments_of_an_audit_are_refused() -> None:
    with pytest.raises(fp.PolicyError, match="another policy"):
        fp.audit(make_rows(0), "kafka", table=StateTable("any_order"))
    with pytest.raises(fp.PolicyError, match=r"this policy ignores epochs"):
        fp.audit(make_rows(0), "watermark", Columns())
    with pytest.raises(
        fp.PolicyError, match=r"unknown finding 'loss'; findings are missing, duplicate, stale, reset, conflict$"
    ):
        fp.audit(make_rows(0)).count_findings("loss")
    for nonsense in (5, [1, 2], "rows"):
        with pytest.raises(TypeError, match="are not tabular"):
            fp.audit(nonsense)


def test_an_error_names_the_row_of_the_whole_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "CALL_ROWS", 100)
    data = make_rows(0)
    bad = pa.concat_tables([data, make_rows(0, 1).set_column(3, "seq", pa.array([-5], pa.int32()))])
    bad = bad.set_column(0, "pid", pa.array([9] * len(bad)))
    with pytest.raises(fp.BatchError, match=rf"column 'seq', row {len(data)}: value -5 is outside") as caught:
        fp.audit(bad)
    assert caught.value.row == len(data)
    with pytest.raises(fp.BatchError, match=r"column 'seq': missing; .* pid, epoch, partition"):
        fp.audit(data.drop_columns(["seq"]))


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
@pytest.mark.parametrize("call", ["fp.audit({})", "fp.kafka.audit('a folder')"])
def test_a_missing_package_is_named_with_its_remedy(package: str, call: str) -> None:
    program = (
        f"import sys; sys.modules['{package}'] = None; import fencepost as fp, fencepost.kafka\n"
        f"try: {call}\nexcept fp.DependencyError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert out.startswith(f"[FP002] {package} is not installed: ")
    assert out.endswith(" 'fencepost[lake]'\n")


# Memory


def test_a_stream_is_read_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "CALL_ROWS", 1_000)
    pulled = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            rows = make_rows(pulled, 500).combine_chunks()
            yield rows.set_column(3, "seq", pa.array([-1] * 500, pa.int32())).to_batches()[0]

    with pytest.raises(fp.BatchError):
        fp.audit(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert pulled <= 3


def test_distances_are_sampled_fairly_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    count = 200_000
    place = np.sort(np.concatenate([np.arange(count), rng.integers(0, count, count // 4)]), kind="stable")
    far = rng.random(len(place)) < 0.1
    order = np.argsort(np.arange(len(place)) + far * rng.integers(0, 50_000, len(place)), kind="stable")
    number = place[order]
    data = pa.table(
        {"pid": number % 50, "epoch": np.zeros_like(number), "partition": np.zeros_like(number), "seq": number // 50}
    )
    exact = fp.audit(data)
    assert exact.distance_share == 1
    monkeypatch.setattr(auditor, "SAMPLE_MAX", 20_000)
    monkeypatch.setattr(auditor, "CALL_ROWS", 10_000)
    measured: list[int] = []
    measure = auditor._Sample.add

    def watch(self: Any, *arguments: Any) -> Any:
        found = measure(self, *arguments)
        measured.append(len(self.hashes))
        return found

    monkeypatch.setattr(auditor._Sample, "add", watch)
    sampled = fp.audit(data)
    assert max(measured) <= 20_000
    assert 0.05 < sampled.distance_share < 0.5
    assert differences(sampled, exact) == ["distances", "distance_share"]
    pairs = zip(sampled.distances["repeats"].to_pylist(), exact.distances["repeats"].to_pylist(), strict=True)
    for estimate, truth in pairs:
        assert abs(estimate - truth) < 0.1 * truth + 150
    assert f"estimated from {sampled.distance_share:.1%} of them" in str(sampled)


def test_tallies_are_added_up_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "COMPACT_MIN", 50)
    tally = auditor._Tally({"rows": "sum"})
    for _ in range(100):
        tally.add(pa.table({"pid": list(range(10)), "rows": [1] * 10}))
        assert tally.pending <= 60
    assert tally.total().sort_by("pid").to_pylist() == [{"pid": pid, "rows": 100} for pid in range(10)]


# The report


def test_the_report_for_people_programs_and_frames() -> None:
    data = stream(7, [0, 1, 2, 2, 9, 5, 1], range(7))
    report = fp.audit(data)
    summary, *tables = str(report).split("\n\n")
    lines = [
        r"audit of rows, policy any_order$",
        r"  identity           pid, epoch, partition, seq$",
        r"  order              as the rows came$",
        r"  read            7  rows$",
        r"    ACCEPTED      5  71\.43%, new$",
        r"    DUPLICATE     2  28\.57%, ",
        r"  missing         5  rows .*, in 2 ranges$",
        r"  stale epoch     0  rows ",
        r"  resets          0  keys ",
        r"                  \?  keys .*: not looked for, ",
        r"  producers       1$",
    ]
    for line, pattern in zip(summary.split("\n"), lines, strict=True):
        assert re.match(pattern, line)
    titles, bodies = zip(*(it.split("\n", 1) for it in tables), strict=True)
    assert [it.split()[0] for it in titles] == ["missing", "producers", "producers", "repeats"]
    assert bodies == (
        "  pid  partition  epoch  first_seq  last_seq  count\n"
        "    7          0      0          3         4      2\n"
        "    7          0      0          6         8      3",
        "  pid  rows  duplicates\n    7     7           2",
        "  pid  rows  duplicates\n    7     7           2",
        "  first  last  repeats\n      1     1        1\n      2    10        1",
    )
    assert "missing (the first 1 of 2)\n" in report.to_text(1)
    assert "\n\n" not in report.to_text(0)
    parsed = json.loads(report.to_json())
    assert parsed["counts"] == {"ACCEPTED": 5, "DUPLICATE": 2}
    assert parsed["missing"][1] == {
        "pid": 7, "partition": 0, "epoch": 0, "first_seq": 6, "last_seq": 8, "count": 3
    }  # fmt: skip
    assert (parsed["suspected_resets"], parsed["suspected_resets_keys"], parsed["resets_keys"]) == (None, None, 0)
    cut = json.loads(report.to_json(1))
    assert (len(cut["missing"]), cut["missing_ranges"]) == (1, 2)
    frames = report.to_pandas()
    assert frames["missing"]["count"].tolist() == [2, 3]
    assert frames.keys() == report.tables.keys()
    assert frames.keys() >= {"missing", "keys", "timeline", "examples"}


def test_findings_that_a_policy_cannot_have_are_not_asked_for() -> None:
    """Their number would always be 0, which reads as good."""
    rows = pa.table({"topic": ["a"] * 3, "partition": [0] * 3, "offset": [0, 5, 5]})
    report = fp.audit(rows, "kafka_offsets")
    assert report.count_findings() == report.count_findings("duplicate") == {"duplicate": 1}
    for kind in ("missing", "stale"):
        with pytest.raises(fp.PolicyError, match=rf"did not search for '{kind}'"):
            report.count_findings(kind)
    assert re.search(r"stale epoch +\? ", str(report))


def test_more_numbers_are_missing_than_int64_holds() -> None:
    """Ids from a random generator as numbers."""
    rows = pa.table({"pid": [1, 1, 2, 2, 3, 3], "epoch": [0] * 6, "partition": [0] * 6, "seq": [0, 2**63 - 2] * 3})
    report = fp.audit(rows, Policy.any_order().replace(wrap=None))
    assert report.missing_rows == 3 * (2**63 - 3)
    assert f"{report.missing_rows:,}" in str(report)
    assert json.loads(report.to_json())["missing_rows"] == report.missing_rows
    with warnings.catch_warnings(action="error"):
        timed = fp.audit(rows.append_column("at", pa.array([0] * 6)), report.rules, Columns(timestamp="at"))
    assert timed.timeline["missing"].to_pylist() == [pytest.approx(2**63)]


def test_distances_are_shown_if_each_repeat_has_other_content() -> None:
    rows = pa.table({"pid": [1, 1], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 0], "value": ["a", "b"]})
    report = fp.audit(rows, compare_content=True)
    assert report.counts == {"ACCEPTED": 1, "CONFLICT": 1}
    assert "by how many rows" in str(report)


# Files


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zone")
    generate(path, LandingZone(rows=40_000, producers=20, payload_bytes=4, untracked_share=0.03, row_group_rows=1_000))
    return path


LANDING = Columns(partition=("topic", "partition"), timestamp="timestamp")


def check_files(report: AuditReport, whole: AuditReport, files: list[Path]) -> None:
    """The report on files is that on their rows. Where rows are judged in another order, gaps may be skipped by another
    row, so their times may differ."""
    others = ("missing", "keys", "timeline", "examples")
    assert differences(report, whole, "order", "source", "files", "bytes", *others) == []
    for name, timed in (("missing", ["timestamp"]), ("keys", ["since", "until"]), ("timeline", ["missing"])):
        assert getattr(report, name).drop_columns(timed).equals(getattr(whole, name).drop_columns(timed)), name
    assert sum(report.timeline["missing"].to_pylist()) == report.missing_rows
    firsts = np.cumsum([0, *(pq.read_metadata(file).num_rows for file in files)])
    numbers = {file.name: first for file, first in zip(files, firsts, strict=False)}
    rows = pl.DataFrame(report.examples).with_columns(
        pl.col("row") + pl.col("file").replace_strict(numbers),
        pl.col("kept_row") + pl.col("kept_file").replace_strict(numbers, default=0),
    )
    assert rows.drop("file", "kept_file").rows() == pl.DataFrame(whole.examples).rows()


@pytest.mark.parametrize(
    ("spans", "call_rows", "threads"),
    [
        pytest.param(*sizes, threads, marks=() if threads == usual else pytest.mark.matrix)
        for *sizes, usual in ((1, 500, 2), (2_500, 1_000, 5), (1 << 20, 1 << 20, 1))
        for threads in (1, 2, 5)
    ],
)
def test_files_are_audited_as_their_rows(
    zone: Path, monkeypatch: pytest.MonkeyPatch, threads: int, spans: int, call_rows: int
) -> None:
    monkeypatch.setattr(auditing, "SPANS", spans)
    monkeypatch.setattr(auditing, "TOGETHER", 4 * spans)
    monkeypatch.setattr(auditing, "CALL_ROWS", call_rows)
    files = sorted((zone / "landing").glob("*.parquet"))
    whole = fp.audit(pa.concat_tables([pq.read_table(file) for file in files]), columns=LANDING)
    shown: list[tuple[str, int, int]] = []
    report = lake.audit(zone / "landing", columns=LANDING, threads=threads, progress=lambda *step: shown.append(step))
    check_files(report, whole, files)
    assert report.source == str(zone / "landing")
    assert (report.files, report.bytes) == (len(files), sum(file.stat().st_size for file in files))
    assert [it for it in shown if it[0] == "audit"][-1] == ("audit", report.bytes, report.bytes)
    truth = json.loads((zone / "truth" / "any_order" / "d0003.json").read_text())
    assert report.counts == {name: count for name, count in truth["counts"].items() if count}
    assert (report.missing_rows, report.missing_ranges) == (truth["missing_rows"], truth["missing_ranges"])
    assert report.stale_epoch == truth["stale_epoch"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("together", [1, 3_000, 1 << 22])
def test_scattered_rows_are_audited_in_waves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, together: int
) -> None:
    monkeypatch.setattr(auditing, "TOGETHER", together)
    data = make_rows(6)
    data = data.take(pa.array(np.random.default_rng(6).permutation(len(data))))
    for number, start in enumerate(range(0, len(data), 1_000)):
        pq.write_table(data.slice(start, 1_000), tmp_path / f"{number:03}.parquet")
    found, whole = lake.audit(tmp_path, threads=threads), fp.audit(data)
    assert differences(found, whole, *OF_FILES) == []


def test_long_spans_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "CALL_ROWS", 7)
    rows = stream(1, [*range(100), *range(40, 160), 5, *range(500, 520)], [0] * 241)
    pq.write_table(rows, tmp_path / "a.parquet")
    pq.write_table(rows, tmp_path / "b.parquet")
    whole = fp.audit(pa.concat_tables([rows, rows]), columns=TIMED)
    for threads in (1, 3):
        found = lake.audit(tmp_path, columns=TIMED, threads=threads)
        assert differences(found, whole, *OF_FILES) == []


def test_identity_in_the_names_of_folders(tmp_path: Path) -> None:
    data = make_rows(4)
    for partition in range(3):
        (tmp_path / f"partition={partition}").mkdir()
        part = data.filter(pa.compute.equal(data["partition"], partition)).drop_columns(["partition"])
        pq.write_table(part, tmp_path / f"partition={partition}" / "a.parquet")
    found, whole = lake.audit(tmp_path), fp.audit(data)
    assert (found.counts, found.missing_rows, found.stale_epoch) == (
        whole.counts,
        whole.missing_rows,
        whole.stale_epoch,
    )


def test_columns_of_other_names_over_files(tmp_path: Path) -> None:
    """Columns passed in addition to the policy, not as a part of it."""
    names = ["device", "ep", "part", "number", *make_rows(4).column_names[4:]]
    data = make_rows(4).rename_columns(names)
    pq.write_table(data, tmp_path / "a.parquet")
    for columns in (
        Columns(pid="device", epoch="ep", partition="part", seq="number"),
        Columns(pid="device", epoch="ep", partition=None, seq="number"),
    ):
        found, whole = lake.audit(tmp_path, columns=columns), fp.audit(data, columns=columns)
        assert differences(found, whole, *OF_FILES) == []


@pytest.mark.parametrize("policy", ["any_order", "in_order", "kafka"])
@pytest.mark.parametrize("pids", [[], [None], [7, 7]], ids=["no rows", "untracked", "one key"])
def test_composite_keys_without_any_finding(tmp_path: Path, policy: str, pids: list[int | None]) -> None:
    """A table without entries, such as that of a shard without rows, does not know the columns of its keys."""
    types = {"pid": pa.int64(), "epoch": pa.int16(), "topic": pa.string(), "partition": pa.int32(), "seq": pa.int32()}
    columns = Columns(partition=("topic", "partition"))
    found = [{"pid": pid, "epoch": 0, "topic": "a", "partition": 0, "seq": seq} for seq, pid in enumerate(pids)]
    rows = pa.Table.from_pylist(found, pa.schema(types))
    pq.write_table(rows, tmp_path / "a.parquet")
    reports = [fp.audit(rows, policy, columns)]
    reports += [lake.audit(tmp_path, policy, columns, threads=threads) for threads in (1, 2, 7)]
    keys = ["pid", "partition_0", "partition_1", "epoch"]
    for report in reports:
        assert (report.rows, report.missing_rows, report.stale_epoch) == (len(pids), 0, 0)
        assert report.missing.column_names == [*keys, "first_seq", "last_seq", "count"]
        assert report.stale.column_names == [*keys, "count"]
        assert "pid, epoch, topic, partition, seq" in report.to_text()
        assert report.to_json()
        assert report.to_html()


def test_an_epoch_that_is_a_part_of_the_producer_is_named_once() -> None:
    """Advice makes a column of texts such a part, whose name is that of a column in the tables of reports."""
    rows = pa.table({"device": ["a", "a"], "epoch": ["6f1c", "6f1c"], "partition": [0, 0], "seq": [0, 5]})
    policy = fp.advise(rows).policy
    assert policy.columns.pid == ("device", "epoch")
    for some in (rows, rows.slice(0, 0)):
        report = fp.audit(some, policy)
        names = report.named(report.missing).column_names
        assert names == ["device", "epoch", "partition", "first_seq", "last_seq", "count"]
        assert "  a       6f1c  " in str(report) or not len(some)
        assert report.to_html()


def test_policies_that_depend_on_order_over_files(zone: Path) -> None:
    rows = pa.concat_tables([pq.read_table(file) for file in sorted((zone / "landing").glob("*.parquet"))])
    columns = Columns(partition=("topic", "partition"))
    for policy in ("in_order", "kafka"):
        whole = fp.audit(rows, policy, columns)
        found = lake.audit(zone / "landing", policy, columns, threads=2)
        assert differences(found, whole, *OF_FILES) == []
        assert found.order == "file names, then rows"


def test_a_sink_is_clean_and_one_file_can_be_audited(zone: Path, tmp_path: Path) -> None:
    for until in ("d0001", "d0003"):
        (tmp_path / "landing").mkdir(exist_ok=True)
        for file in (zone / "landing").glob("*.parquet"):
            if file.name[:5] <= until and not (tmp_path / "landing" / file.name).exists():
                (tmp_path / "landing" / file.name).hardlink_to(file)
        lake.DedupJob(tmp_path / "landing", tmp_path / "state", tmp_path / "clean", columns=LANDING, sync=False).run()
    report = lake.audit(tmp_path / "clean", columns=LANDING)
    assert "duplicate" not in report.count_findings()
    assert report.missing_rows == lake.audit(zone / "landing", columns=LANDING).missing_rows
    file = sorted((zone / "landing").glob("*.parquet"))[0]
    one = lake.audit(file, columns=LANDING)
    assert (one.files, one.rows) == (1, pq.ParquetFile(file).metadata.num_rows)


def test_nothing_is_written(zone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted((str(it), it.stat().st_mtime_ns) for it in zone.rglob("*"))
    lake.audit(zone / "landing", columns=LANDING)
    assert sorted((str(it), it.stat().st_mtime_ns) for it in zone.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(fp.SourceError, match="no such folder"):
        lake.audit(tmp_path / "nowhere")
    empty = lake.audit(tmp_path)
    assert (empty.files, empty.rows, empty.count_findings()) == (0, 0, {})
    bad = make_rows(1).set_column(3, "seq", pa.array([*range(599), -7], pa.int32()))
    bad = bad.set_column(0, "pid", pa.array([5] * 600))
    pq.write_table(bad, tmp_path / "b.parquet", row_group_size=100)
    where = re.escape(str(tmp_path / "b.parquet"))
    for threads in (1, 3):
        with pytest.raises(fp.BatchError, match=rf"{where}: column 'seq', row 599: value -7 is outside") as caught:
            lake.audit(tmp_path, threads=threads)
        assert caught.value.row == 599
    pq.write_table(make_rows(1).drop_columns(["epoch"]), tmp_path / "b.parquet")
    with pytest.raises(fp.BatchError, match=rf"{where}: column 'epoch': missing; it has pid, partition, seq, origin$"):
        lake.audit(tmp_path)
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    with pytest.raises(fp.SourceError, match=rf"{where}, byte 0: no Parquet footer"):
        lake.audit(tmp_path)


def write_bad(path: Path, kind: str) -> str:
    """A file that cannot be read; gives the words of the reason."""
    rows = make_rows(1)
    if kind == "no Parquet":
        path.write_bytes(b"nothing")
        return "byte 0: no Parquet footer at its end"
    if kind == "cut":
        pq.write_table(rows, path)
        path.write_bytes(path.read_bytes()[:-50])
        return "no Parquet footer"
    if kind == "column":
        pq.write_table(rows.drop_columns(["epoch"]), path)
        return "column 'epoch': missing"
    if kind == "value":
        pid = pa.array([5] * 599 + [-9], pa.int64())
        pq.write_table(rows.set_column(0, "pid", pid), path, row_group_size=100)
        return "column 'pid', row 599: value -9"
    texts = pa.array([str(it) for it in range(600)])
    pq.write_table(rows.set_column(0, "pid", texts), path)
    return "column 'pid': is of type string"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["no Parquet", "cut", "column", "value", "type of key"])
def test_a_bad_file_is_named_and_the_others_are_audited(tmp_path: Path, kind: str, threads: int) -> None:
    good = make_rows(0)
    pq.write_table(good.slice(0, 200), tmp_path / "a.parquet")
    pq.write_table(good.slice(200), tmp_path / "z.parquet")
    whole = lake.audit(tmp_path)
    why = write_bad(tmp_path / "b.parquet", kind)
    report = lake.audit(tmp_path, threads=threads)
    ((path, reason),) = report.unreadable
    assert path == "b.parquet"
    assert why in reason
    assert str(tmp_path / "b.parquet") not in reason, "the path is named once"
    assert differences(report, whole, "unreadable", "distances") == []
    assert "unreadable" in str(report)
    assert why in str(report)
    assert json.loads(report.to_json())["unreadable"] == [[path, reason]]


def test_rows_before_the_damage_of_a_file_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is named; rows before the damage count, and later files follow them in the order."""
    monkeypatch.setattr(auditing, "SPANS", 20_000)
    rows = stream(1, range(0, 600_000, 2), range(300_000))
    bad = rows.set_column(3, "seq", pa.array([*range(0, 599_000, 2), *[-3] * 500]))
    pq.write_table(bad, tmp_path / "a.parquet", row_group_size=10_000)
    pq.write_table(rows.slice(0, 500), tmp_path / "b.parquet")
    report = lake.audit(tmp_path, threads=1)
    ((path, reason),) = report.unreadable
    assert (path, report.files) == ("a.parquet", 1)
    assert "value -3 is outside" in reason
    judged = report.rows - 500
    assert 500 < judged <= 299_500
    assert report.counts["DUPLICATE"] == 500


def test_files_of_other_names_are_named(tmp_path: Path) -> None:
    for name in ("a.csv", "B.PARQUET", "_c.parquet"):
        (tmp_path / name).write_text("x")
    report = lake.audit(tmp_path)
    assert (report.files, report.rows, sorted(report.ignored)) == (0, 0, ["B.PARQUET", "a.csv"])
    assert "not end in .parquet: " in str(report)


def test_an_interrupt_ends_running_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scattered sequences make many calls of a task; none starts after the interrupt."""
    monkeypatch.setattr(auditing, "CALL_ROWS", 10)
    pq.write_table(stream(1, np.random.default_rng(0).permutation(2_000), range(2_000)), tmp_path / "a.parquet")
    calls: list[int] = []

    def interrupt(*_: Any) -> None:
        calls.append(1)
        os.kill(os.getpid(), signal.SIGINT)
        assert engine._OF_TASK.stop.wait(60), "the stage is not given up"

    monkeypatch.setattr(auditor.Auditor, "add_spans", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            lake.audit(tmp_path, threads=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) == 1
