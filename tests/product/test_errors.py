"""Every bad input: its class, its code, its attributes, the words that matter, and nothing changed by it.

The words of a message are given with `|` between them. The sentence around them is reviewed in `docs/errors.md`.
"""

from __future__ import annotations

import ast
import errno
import inspect
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fencepost as fp
import fencepost.errors
import numpy as np
import pyarrow as pa
import pytest

SCHEMA = pa.schema({"pid": pa.int64(), "epoch": pa.int16(), "partition": pa.int32(), "seq": pa.int32()})
COUNT = 3
GOOD: dict[str, Any] = {"pid": [7, 7, 8], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [10, 11, 10]}
INT_64, INT_31, INT_15 = 2**63 - 1, 2**31 - 1, 2**15 - 1
UNWRAPPED = fp.Policy.any_order().replace(wrap=None)


def rows(**columns: Any) -> pa.Table:
    """Valid rows with some columns replaced; None removes a column."""
    table = pa.table(GOOD, SCHEMA)
    for name, values in columns.items():
        if values is None:
            table = table.drop_columns(name)
        elif name in table.column_names:
            if isinstance(values, list):
                values = pa.array(values)
            if values.type == pa.int64() and all(it is None or -(2**15) <= it < 2**15 for it in values.to_pylist()):
                values = values.cast(SCHEMA.field(name).type)
            table = table.set_column(table.column_names.index(name), name, values)
        else:
            table = table.append_column(name, pa.array(values))
    return table


def assert_says(error: BaseException, words: str) -> None:
    """Check that a message begins with its code and contains all these words."""
    message = str(error)
    if isinstance(error, fp.FencepostError):
        assert message == f"[{error.code}] {error.message}"
    for word in words.split("|"):
        assert word in message, f"{word!r} is missing in: {message}"


@dataclass
class Bad:
    """One call that must fail."""

    words: str
    rows: Any
    policy: str | fp.Policy = "any_order"
    columns: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    error: type[Exception] = fp.BatchError
    attributes: dict[str, Any] = field(default_factory=dict)


def bad_batch(column: str, row: int | None, problem: str, rows: Any, **more: Any) -> Bad:
    where = f"column '{column}'" if row is None else f"column '{column}', row {row}"
    return Bad(f"{where}: |{problem}", rows, attributes={"column": column, "row": row}, **more)


NULL = "null"
NULL_PART = "null|partition"
FLOATS = "|Int64"
SPACE = "|wrap=None"
TIMES = pa.array([1, 2, 3], pa.timestamp("ms"))
U64 = pa.uint64()
KEEP = {"keep": ("timestamp",)}

BAD_CALLS: dict[str, Bad] = {
    # Columns that are not there, or not once
    "no epoch": bad_batch("epoch", None, "missing|pid, partition, seq", rows(epoch=None)),
    "no columns": bad_batch("pid", None, "missing|", {}),
    "part missing": bad_batch(
        "topic", None, "missing|pid, epoch, partition, seq", rows(),
        columns=fp.Columns(partition=("topic", "partition")),
    ),
    "mapped column missing": bad_batch(
        "n", None, "missing|pid, epoch, partition, seq", rows(), columns=fp.Columns(seq="n")
    ),
    "missing in a mapping": bad_batch(
        "partition", None, "missing|pid", {"pid": np.zeros(1, int)}
    ),
    "twice": bad_batch("pid", None, "twice", pa.Table.from_arrays(
        [*rows().columns, rows()["pid"]], [*SCHEMA.names, "pid"])),
    # Types
    "seq float": bad_batch("seq", None, f"Float64|integers{FLOATS}", rows(seq=[1.0, 2.0, 3.0])),
    "seq bool": bad_batch("seq", None, "Boolean|integers", rows(seq=pa.array([True] * 3))),
    "seq timestamp": bad_batch("seq", None, "Timestamp(ms)|integers", rows(seq=TIMES)),
    "seq text": bad_batch("seq", None, "Utf8|integers", rows(seq=["1", "2", "3"])),
    "seq decimal": bad_batch(
        "seq", None, "Decimal128(20, 0)|integers",
        rows(seq=pa.array([1, 2, 3], pa.decimal128(20))),
    ),
    "epoch text": bad_batch("epoch", None, "Utf8|integers", rows(epoch=["a", "b", "c"])),
    "epoch float": bad_batch("epoch", None, f"Float64|integers{FLOATS}", rows(epoch=[0.0] * 3)),
    "pid float": bad_batch(
        "pid", None, f"Float64|integers, strings or binary{FLOATS}", rows(pid=[7.0, 7.0, 8.0])
    ),
    "pid bool": bad_batch(
        "pid", None, "Boolean|integers, strings or binary", rows(pid=pa.array([True] * 3))
    ),
    "partition timestamp": bad_batch(
        "partition", None, "Timestamp(ms)|integers, strings or binary", rows(partition=TIMES)
    ),
    "partition nested": bad_batch(
        "partition", None, "List(Int64)|integers, strings or binary",
        rows(partition=pa.array([[1], [2], [3]])),
    ),
    # Nulls
    "seq null": bad_batch("seq", 1, NULL, rows(seq=[10, None, 11])),
    "epoch null": bad_batch("epoch", 1, NULL, rows(epoch=[0, None, 0])),
    "partition null": bad_batch("partition", 2, NULL, rows(partition=pa.array([0, 0, None], pa.int32()))),
    "partition text null": bad_batch("partition", 1, NULL_PART, rows(partition=["a", None, "b"])),
    "part null": bad_batch(
        "topic", 1, NULL_PART, rows(topic=["a", None, "b"]), columns=fp.Columns(partition=("topic", "partition"))
    ),
    "seq null after an untracked one": bad_batch(
        "seq", 2, NULL, rows(pid=pa.array([7, None, 8]), seq=pa.array([10, None, None], pa.int32()))
    ),
    # Domains
    "pid negative": bad_batch("pid", 1, f"value -2|0..={INT_64}|-1|untracked", rows(pid=[7, -2, 8])),
    "pid part negative": bad_batch(
        "pid", 1, f"value -2|0..={INT_64}|-1 or null|untracked", rows(pid=[7, -2, 8], cluster=["a"] * 3),
        columns=fp.Columns(pid=("cluster", "pid")),
    ),
    "pid beyond 64 bits": bad_batch(
        "pid", 2, f"value {2**63}|0..={INT_64}|-1 or null|untracked",
        rows(pid=pa.array([7, 7, 2**63], U64)),
    ),
    "epoch negative": bad_batch("epoch", 1, f"value -1|0..={INT_15}", rows(epoch=[0, -1, 0])),
    "epoch above": bad_batch("epoch", 2, f"value 32768|0..={INT_15}", rows(epoch=[0, 0, 32768])),
    "partition negative": bad_batch("partition", 0, f"value -1|0..={INT_31}", rows(partition=[-1, 0, 0])),
    "partition above": bad_batch(
        "partition", 2, f"value {2**31}|0..={INT_31}", rows(partition=[0, 0, 2**31])
    ),
    "part above": bad_batch(
        "partition", 2, f"value {2**31}|0..={INT_31}", rows(partition=[0, 0, 2**31], topic=["a"] * 3),
        columns=fp.Columns(partition=("topic", "partition")),
    ),
    "seq negative": bad_batch("seq", 1, f"value -5|0..={INT_31}", rows(seq=[10, -5, 10])),
    "seq negative, 64 bits": bad_batch(
        "seq", 1, f"value -5|0..={INT_64}", rows(seq=[10, -5, 10]), policy=UNWRAPPED
    ),
    "seq above the wrap": bad_batch(
        "seq", 2, f"value {2**31}|0..={INT_31}{SPACE}", rows(seq=[10, 11, 2**31])
    ),
    "seq above a small wrap": bad_batch(
        "seq", 1, f"value 16|0..=15{SPACE}", rows(seq=[10, 16, 10]),
        policy=fp.Policy.any_order().replace(wrap=16),
    ),
    "seq beyond 64 bits": bad_batch(
        "seq", 2, f"value {2**63}|0..={INT_64}", rows(seq=pa.array([10, 11, 2**63], U64)), policy=UNWRAPPED
    ),
    "untracked, where none may be": bad_batch(
        "pid", 1, "null or -1|untracked='fail'", rows(pid=[7, -1, 8]),
        options={"untracked": "fail"},
    ),
    # Timestamps, where they are kept
    "no timestamp": bad_batch(
        "timestamp", None, "missing|pid, epoch, partition, seq", rows(), options=KEEP
    ),
    "mapped timestamp missing": bad_batch(
        "at", None, "missing|pid, epoch, partition, seq, timestamp",
        rows(timestamp=[1, 2, 3]), columns=fp.Columns(timestamp="at"), options=KEEP,
    ),
    "timestamp null": bad_batch("timestamp", 1, NULL, rows(timestamp=[1, None, 3]), options=KEEP),
    "timestamp null, as a timestamp": bad_batch(
        "timestamp", 2, NULL, rows(timestamp=pa.array([1, 2, None], pa.timestamp("us"))), options=KEEP
    ),
    "timestamps of nothing": bad_batch("timestamp", 0, NULL, rows(timestamp=pa.nulls(3)), options=KEEP),
    **{
        f"timestamp {name}": bad_batch(
            "timestamp", None, f"{kind}|milliseconds|timestamps{hint}",
            rows(timestamp=values), options=KEEP,
        )
        for name, kind, values, hint in [
            ("float", "Float64", [1.0, 2.0, 3.0], FLOATS),
            ("text", "Utf8", ["2026-01-01"] * 3, ""),
            ("date", "Date32", pa.array([1, 2, 3], pa.date32()), ""),
            ("date of milliseconds", "Date64", pa.array([1, 2, 3], pa.date64()), ""),
            ("duration", "Duration(ms)", pa.array([1, 2, 3], pa.duration("ms")), ""),
        ]
    },
    "seconds beyond 64 bits": bad_batch(
        "timestamp", 1, f"value {2**62}|milliseconds|64 bits",
        rows(timestamp=pa.array([1, 2**62, 3], pa.timestamp("s"))), options=KEEP,
    ),
    "milliseconds beyond 64 bits": bad_batch(
        "timestamp", 2, f"value {2**63}|milliseconds|64 bits",
        rows(timestamp=pa.array([1, 2, 2**63], U64)), options=KEEP,
    ),
    "timestamp null in the second chunk": bad_batch("timestamp", 4, NULL, pa.concat_tables(
        [rows(timestamp=[1, 2, 3]), rows(timestamp=[1, None, 3])]), options=KEEP),
    # Rows are counted over chunks
    "row of the second chunk": bad_batch("seq", 4, f"value -1|0..={INT_31}", pa.concat_tables(
        [rows(), rows(seq=pa.array([1, -1, 2], pa.int32()))])),
    "null of the second chunk": bad_batch("epoch", 5, NULL, pa.concat_tables(
        [rows(), rows(epoch=pa.array([0, 0, None], pa.int16()))])),
    "too wide in the second chunk": bad_batch("epoch", 3, f"value 99999|0..={INT_15}", pa.concat_tables(
        [rows(epoch=pa.array([0, 0, 1], U64)), rows(epoch=pa.array([99999, 0, 0], U64))])),
    "row of a slice": bad_batch("seq", 0, NULL, rows(seq=pa.array([10, None, 11], pa.int32())).slice(1)),
    # Mappings
    "unequal lengths": bad_batch(
        "epoch", None, "2 rows|column 'pid'|3",
        {"pid": np.zeros(3, int), "epoch": np.zeros(2, int), "partition": np.zeros(3, int), "seq": np.arange(3)},
    ),
    "numpy strings": bad_batch(
        "seq", None,
        "numpy.ndarray of dtype <U1|Arrow array",
        {"pid": np.zeros(3, int), "epoch": np.zeros(3, int), "partition": np.zeros(3, int), "seq": np.array(["1"] * 3)},
    ),
    # Keys of another type than before; the table knows integers
    "text for integers": bad_batch(
        "pid", None, "(string)|integer",
        rows(pid=["a", "a", "b"]),
    ),
    "composite for integers": bad_batch(
        "cluster, pid", None,
        "(string, integer)|integer",
        rows(cluster=["a"] * 3), columns=fp.Columns(pid=("cluster", "pid")),
    ),
    "text partition for integers": bad_batch(
        "partition", None, "(string)|integer",
        rows(partition=["a", "a", "b"]),
    ),
    # Capacity
    "entries_max": Bad(
        "3 entries|2", rows(pid=[9, 9, 9]),
        options={"entries_max": 2}, error=fp.CapacityError, attributes={"limit": 2},
    ),
    # Policies that cannot answer
    "epoch for a policy that ignores epochs": Bad(
        "ignores epochs|epoch='epoch'|epoch=None", rows(epoch=None),
        policy="watermark", columns=fp.Columns(), error=fp.PolicyError,
    ),
    "no epoch for a policy that needs it": Bad(
        "epochs='key'|columns.epoch|None|Policy.replace(epochs='ignore')",
        rows(),
        columns=fp.Columns(epoch=None), error=fp.PolicyError,
    ),
    "columns of another class": Bad(
        "columns={'pid': 'pid'}|fencepost.Columns|kafka, kafka-connect, kafka-producer, hudi",
        rows(), columns={"pid": "pid"}, error=fp.PolicyError,
    ),
    "columns of no preset": Bad(
        "columns='kafka-conect'|kafka, kafka-connect, kafka-producer, hudi",
        rows(), columns="kafka-conect", error=fp.PolicyError,
    ),
    "offsets for a policy that needs epochs": Bad(
        "columns='kafka-connect'|offsets|epochs='key'|policy='kafka_offsets'",
        rows(), columns="kafka-connect", error=fp.PolicyError,
    ),
    # No table at all
    **{
        name: Bad(
            f"{kind}|not tabular|{why}|__arrow_c_stream__|__arrow_c_array__|mapping",
            value, error=TypeError,
        )
        for name, value, kind, why in [
            ("a list", [1, 2], "list", ""),
            ("None", None, "NoneType", ""),
            ("an array", np.zeros(3), "numpy.ndarray", ""),
            ("an Arrow array", pa.array([1]), "pyarrow.lib.Int64Array", " (Unexpected data type Int64)"),
            ("a column", pa.chunked_array([[1]]), "pyarrow.lib.ChunkedArray",
             " (C Data interface error: Unable to interpret C data struct as a Schema)"),
            ("a mapping of numbers", {1: np.zeros(1)}, "dict", "1 is no"),
        ]
    },
}  # fmt: skip


@pytest.fixture(params=BAD_CALLS)
def bad(request: pytest.FixtureRequest) -> Bad:
    return BAD_CALLS[request.param]


def known_rows(table: fp.StateTable) -> pa.Table:
    known = rows(epoch=None) if table.policy.epochs == "ignore" else rows()
    return known.append_column("timestamp", pa.array([1, 2, 3])) if table.keep else known


@pytest.mark.parametrize("method", ["apply", "check"])
def test_a_bad_call_gives_the_reason_and_changes_nothing(bad: Bad, method: str) -> None:
    table = fp.StateTable(bad.policy, **bad.options)
    table.apply(known_rows(table))
    before, entries = table.snapshot(), len(table)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        getattr(table, method)(bad.rows, bad.columns)
    assert type(caught.value) is bad.error
    assert_says(caught.value, bad.words)
    assert vars(caught.value) == bad.attributes
    assert table.snapshot() == before
    assert len(table) == entries

    # It continues to work, with what it knew before.
    assert table.apply(known_rows(table)).counts[fp.Verdict.DUPLICATE] == COUNT


def test_the_good_row_before_a_bad_one_was_not_applied() -> None:
    table = fp.StateTable("strict")
    with pytest.raises(fp.BatchError):
        table.apply(rows(seq=[0, 1, -1]))
    assert table.get(7, 0) is None
    assert table.apply(rows(seq=[0, 1, 0])).counts[fp.Verdict.ACCEPTED] == COUNT


def test_a_refused_call_adds_no_key() -> None:
    table = fp.StateTable("any_order")
    fresh = table.snapshot()
    with pytest.raises(fp.BatchError):
        table.apply(rows(pid=["a", "b", "c"], seq=[1, 2, -1]))
    assert table.snapshot() == fresh
    # So keys may still be of any type.
    table.apply(rows())
    assert table.get(7, 0) is not None


def test_errors_of_shards() -> None:
    for column, problem in (
        ("pid", f"value -2|0..={INT_64}"),
        ("partition", f"value -2|0..={INT_31}"),
    ):
        with pytest.raises(fp.BatchError) as caught:
            fp.shards(pa.concat_tables([rows(), rows(**{column: pa.array([0, -2, 0], SCHEMA.field(column).type)})]), 4)
        assert_says(caught.value, f"column '{column}', row 4|{problem}")
        assert (caught.value.column, caught.value.row) == (column, 4)
    with pytest.raises(ValueError, match=r"count=0"):
        fp.shards(rows(), 0)


# Policies


ANY_ORDER = fp.Policy.any_order()
PRESETS = "any_order, in_order, kafka, strict, watermark, kafka_offsets"
BAD_POLICIES: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown preset": (lambda: fp.StateTable("broker"), f"'broker'|{PRESETS}"),
    "no policy": (lambda: fp.StateTable(5), "Policy|int"),  # type: ignore[arg-type]
    "unknown field": (
        lambda: ANY_ORDER.replace(colour="red"),
        "'colour'|admit, columns, epochs, first, gaps, intervals_max, late, max_jump, reach, window, wrap",
    ),
    "admit": (lambda: ANY_ORDER.replace(admit="sometimes"), "admit='sometimes'|any, forward, next"),
    "epochs": (lambda: ANY_ORDER.replace(epochs="any"), "epochs='any'|key, fence, ignore"),
    "first": (lambda: ANY_ORDER.replace(first="one"), "first='one'|any, zero"),
    "late": (lambda: ANY_ORDER.replace(late="fenced"), "late='fenced'|out_of_order, duplicate"),
    "gaps": (lambda: ANY_ORDER.replace(gaps="some"), "gaps='some'|report, normal"),
    "a word that is none": (lambda: ANY_ORDER.replace(first=1), "first=1|word"),
    "two words": (lambda: ANY_ORDER.replace(admit="any window=3"), "admit='any window=3'|word"),
    "a count as text": (lambda: ANY_ORDER.replace(window="5"), "window='5'|whole number"),
    "a count that is a truth": (lambda: ANY_ORDER.replace(window=True), "window=True|whole number"),
    "no count": (lambda: ANY_ORDER.replace(window=None), "window=None|whole number"),
    "a fraction": (lambda: ANY_ORDER.replace(wrap=2.5), "wrap=2.5|whole number or None"),
    "none as text": (lambda: ANY_ORDER.replace(wrap="none"), "wrap='none'|whole number or None"),
    "below zero": (lambda: ANY_ORDER.replace(max_jump=-1), "max_jump=-1|whole number|at least 0"),
    "no jump": (lambda: ANY_ORDER.replace(max_jump=0), "max_jump=0|1..=4611686018427387904"),
    "window in no wrap": (lambda: fp.Policy.kafka().replace(wrap=16, window=16), "window=16|1..=15"),
    "a jump where none is": (
        lambda: fp.Policy.kafka().replace(max_jump=3),
        "max_jump|admit='next'",
    ),
    "a reach where none is": (
        lambda: fp.Policy.kafka().replace(reach=3),
        "reach|admit='next'",
    ),
    "a reach without holes": (
        lambda: fp.Policy.watermark().replace(reach=3),
        "reach|late='duplicate'|gaps='normal'",
    ),
    "no reach": (lambda: ANY_ORDER.replace(reach=0), "reach=0|1..=4611686018427387904"),
    "no holes": (lambda: ANY_ORDER.replace(intervals_max=0), "intervals_max=0|1..=4611686018427387904"),
    "a bound on no holes": (
        lambda: fp.Policy.watermark().replace(intervals_max=3),
        "intervals_max|late='duplicate'|gaps='normal'",
    ),
    "timestamp of several": (
        lambda: fp.Columns(timestamp=("a", "b")),  # type: ignore[arg-type]
        "Columns(timestamp=('a', 'b'))|column name|None",
    ),
    "columns": (lambda: ANY_ORDER.replace(columns="pid"), "columns='pid'|Columns"),
    "epoch column of a policy without epochs": (
        lambda: fp.StateTable(fp.Policy.watermark().replace(columns=fp.Columns())),
        "ignores epochs|epoch='epoch'|epoch=None",
    ),
    "no pid": (lambda: fp.Columns(pid=None), "Columns(pid=None)|producer column"),
    "pid of no parts": (
        lambda: fp.Columns(pid=()),
        "Columns(pid=())|column name|tuple|None",
    ),
    "partition of numbers": (
        lambda: fp.Columns(partition=(0, 1)),  # type: ignore[arg-type]
        "Columns(partition=(0, 1))|column name|tuple|None",
    ),
    "seq of several": (
        lambda: fp.Columns(seq=("a", "b")),  # type: ignore[arg-type]
        "Columns(epoch='epoch', seq=('a', 'b'))|column name",
    ),
    "keep": (
        lambda: fp.StateTable("any_order", keep=("timestamp", "offset")),
        "keep=('offset',)|'timestamp'",
    ),
    "untracked": (lambda: fp.StateTable("any_order", untracked="drop"), "untracked='drop'|keep, fail"),
    "entries_max": (
        lambda: fp.StateTable("any_order", entries_max=-1),
        "entries_max=-1|whole number|at least 0",
    ),
    "deduplicate": (
        lambda: fp.deduplicate(rows(), "kafka", table=fp.StateTable("any_order")),
        "another policy|admit='any'|'next'|epochs='key'|'fence'",
    ),
}


@pytest.mark.parametrize("name", BAD_POLICIES)
def test_invalid_policies_are_refused(name: str) -> None:
    make, message = BAD_POLICIES[name]
    with pytest.raises(fp.PolicyError) as caught:
        make()
    assert_says(caught.value, message)


@pytest.mark.parametrize("wrap", [3, 0, 2**63])
def test_a_wrap_out_of_range_names_the_range(wrap: int) -> None:
    with pytest.raises(fp.PolicyError, match=rf"wrap={wrap} .*4\.\.=\d+"):
        ANY_ORDER.replace(wrap=wrap)


# Capacity


def test_a_table_at_its_limit_refuses_only_new_keys() -> None:
    table = fp.StateTable("any_order", entries_max=2)
    table.apply(rows())
    before = table.snapshot()
    assert table.apply(rows()).counts[fp.Verdict.DUPLICATE] == COUNT
    assert table.apply(rows(pid=[-1] * 3)).counts[fp.Verdict.UNTRACKED] == COUNT
    assert table.snapshot() == before
    for one_too_many in (rows(pid=[7, 7, 9]), rows(epoch=[0, 0, 1]), rows(partition=[0, 0, 1])):
        with pytest.raises(fp.CapacityError) as caught:
            table.apply(one_too_many)
        assert_says(caught.value, "3 entries|2")
        assert caught.value.limit == 2
        assert table.snapshot() == before


def test_a_table_at_its_limit_of_holes_refuses_every_call() -> None:
    table = fp.StateTable(ANY_ORDER.replace(intervals_max=1))
    table.apply(rows(seq=[10, 13, 10]))
    before = table.snapshot()
    other = fp.StateTable(table.policy)
    for call in (lambda: table.apply(rows()), lambda: table.check(rows()), lambda: table.merge(other)):
        with pytest.raises(fp.CapacityError) as caught:
            call()
        assert_says(caught.value, "2 holes|1")
        assert caught.value.limit == 1
        assert table.snapshot() == before


# Forgetting and merging


def test_invalid_evictions_are_refused() -> None:
    with pytest.raises(fp.PolicyError) as caught:
        fp.StateTable("any_order").evict(1000, 0)
    assert_says(caught.value, "evict|timestamps")
    with pytest.raises(fp.PolicyError) as caught:
        fp.StateTable("any_order", keep=("timestamp",)).evict(1000, -1)
    assert_says(caught.value, "max_idle_ms=-1|0")
    with pytest.raises(OverflowError):
        fp.StateTable("any_order", keep=("timestamp",)).evict(2**63, 0)


def of_policy(policy: str | fp.Policy, *, pid: Any = 7, seqs: tuple[int, ...] = (1,), **options: Any) -> fp.StateTable:
    table = fp.StateTable(policy, **options)
    count = len(seqs)
    table.apply(
        {"pid": pa.array([pid] * count), "epoch": np.zeros(count, int), "partition": np.zeros(count, int)}
        | {"seq": np.array(seqs), "timestamp": np.arange(count)}
    )
    return table


SHORT = ANY_ORDER.replace(wrap=16)
BAD_MERGES: dict[str, tuple[Callable[[], tuple[fp.StateTable, fp.StateTable]], type[Exception], str]] = {
    "of another policy": (
        lambda: (of_policy("any_order"), of_policy(SHORT)),
        fp.PolicyError,
        f"wrap={ANY_ORDER.wrap}|wrap={SHORT.wrap}",
    ),
    "of an order": (
        lambda: (of_policy("in_order"), of_policy("in_order")),
        fp.PolicyError,
        "admit='any'|order of rows",
    ),
    "of other things kept": (
        lambda: (of_policy("any_order"), of_policy("any_order", keep=("timestamp",))),
        fp.PolicyError,
        "timestamps|merge",
    ),
    "of keys of another type": (
        lambda: (of_policy("any_order"), of_policy("any_order", pid="a")),
        fp.PolicyError,
        "tables with keys of different types cannot merge: column 'pid': is of type (string), but this table's keys "
        "are of type integer since its first use",
    ),
    "at the border of the wrap": (
        lambda: (of_policy(SHORT, seqs=(1,)), of_policy(SHORT, seqs=(14,))),
        fp.PolicyError,
        "pid 7, partition 0, epoch 0|wrap|order of rows",
    ),
    "of too many entries": (
        lambda: (of_policy("any_order", entries_max=1), of_policy("any_order", pid=8)),
        fp.CapacityError,
        "2 entries|1",
    ),
}


@pytest.mark.parametrize("name", BAD_MERGES)
def test_tables_that_cannot_merge(name: str) -> None:
    make, error, message = BAD_MERGES[name]
    ours, theirs = make()
    before = ours.snapshot(), theirs.snapshot()
    with pytest.raises(error) as caught:
        ours.merge(theirs)
    assert_says(caught.value, message)
    assert (ours.snapshot(), theirs.snapshot()) == before


def test_a_table_merges_with_another_table_only() -> None:
    table = of_policy("any_order")
    with pytest.raises(fp.PolicyError, match=r"itself"):
        table.merge(table)
    with pytest.raises(TypeError, match=r"StateTable.* bytes"):
        table.merge(table.snapshot())  # type: ignore[arg-type]


# Snapshots


def snapshot() -> bytes:
    table = fp.StateTable("any_order")
    table.apply(rows())
    return table.snapshot()


def flipped(at: int) -> bytes:
    data = bytearray(snapshot())
    data[at] ^= 1
    return bytes(data)


BAD_SNAPSHOTS: dict[str, tuple[Callable[[], bytes], str | fp.Policy | None, str]] = {
    "empty": (lambda: b"", None, "truncated"),
    "cut in the magic": (lambda: snapshot()[:4], None, "truncated"),
    "cut at the end": (lambda: snapshot()[:-1], None, "truncated"),
    "not a snapshot": (lambda: b"PAR1" * 9, None, "not a fencepost snapshot"),
    "more than a snapshot": (lambda: snapshot() + b"..", None, "2 bytes"),
    "a damaged checksum": (lambda: flipped(-1), None, "checksum"),
    "of another policy": (
        snapshot,
        "kafka",
        "another policy|admit='any'|'next'|epochs='key'|'fence'",
    ),
    "of other columns": (
        snapshot,
        ANY_ORDER.replace(columns=fp.Columns(pid="producer")),
        "another policy|columns.pid='pid'|'producer'",
    ),
}


@pytest.mark.parametrize("name", BAD_SNAPSHOTS)
def test_a_snapshot_that_cannot_be_used(name: str, tmp_path: Path) -> None:
    make, policy, words = BAD_SNAPSHOTS[name]
    with pytest.raises(fp.SnapshotError) as caught:
        fp.StateTable.restore(make(), policy)
    assert_says(caught.value, words)
    assert caught.value.reason == caught.value.message
    reason = caught.value.reason

    path = tmp_path / "state.fp"
    path.write_bytes(make())
    with pytest.raises(fp.SnapshotError) as caught:
        fp.StateTable.load(path, policy)
    assert (caught.value.message, caught.value.reason) == (f"{path}: {reason}", reason)


def test_a_snapshot_of_another_version() -> None:
    data = snapshot()
    other = data[:8] + b"\x63\x00" + data[10:]
    with pytest.raises(fp.SnapshotError, match=r"version 99.*version \d+"):
        fp.StateTable.restore(other)


def test_every_cut_and_every_flipped_byte_of_a_snapshot() -> None:
    data = snapshot()
    assert len(data) > 100
    for at in range(len(data)):
        for damaged in (data[:at], flipped(at)):
            with pytest.raises(fp.SnapshotError) as caught:
                fp.StateTable.restore(damaged)
            assert caught.value.reason


BAD_ENTRIES: dict[str, tuple[Callable[[pa.Table], Any], type[fp.FencepostError], str]] = {
    "no pid": (lambda it: it.drop_columns("pid"), fp.BatchError, "column 'pid'|missing|StateTable.entries()"),
    "no holes": (
        lambda it: it.drop_columns("holes"),
        fp.BatchError,
        "column 'holes'|missing|StateTable.entries()",
    ),
    "no epoch": (
        lambda it: it.drop_columns("epoch"),
        fp.BatchError,
        "column 'epoch'|missing|StateTable.entries()",
    ),
    "a float": (
        lambda it: it.set_column(3, "first", pa.array([5.0] * len(it))),
        fp.BatchError,
        "column 'first'|Float64|StateTable.entries()",
    ),
    "holes of text": (
        lambda it: it.set_column(5, "holes", pa.array(["x"] * len(it))),
        fp.BatchError,
        "column 'holes'|Utf8|StateTable.entries()",
    ),
    "a null, counted over batches": (
        lambda it: it.set_column(4, "last", pa.chunked_array([[11], [None]], pa.int64())),
        fp.BatchError,
        "column 'last', row 1|null",
    ),
    "an epoch too wide": (
        lambda it: it.set_column(2, "epoch", pa.array([0, 32768])),
        fp.BatchError,
        "column 'epoch', row 1: value 32768|0..=32767",
    ),
    "twice the same": (lambda it: pa.concat_tables([it, it]), fp.SnapshotError, "row 2|same key"),
    "reversed": (
        lambda it: it.set_column(3, "first", pa.array([99, 99])),
        fp.SnapshotError,
        "row 0|reversed|"
        "Entry { pid: 7, partition: 0, epoch: 0, first: 99, last: 11, holes: [], final_range: None, "
        "last_timestamp: None }",
    ),
    "no producer": (
        lambda it: it.set_column(0, "pid", pa.array([None, 8], pa.int64())),
        fp.SnapshotError,
        "row 0|negative|"
        "Entry { pid: -1, partition: 0, epoch: 0, first: 10, last: 11, holes: [], final_range: None, "
        "last_timestamp: None }",
    ),
    "of another policy": (
        lambda it: it.replace_schema_metadata({"fencepost.policy": "admit=next"}),
        fp.SnapshotError,
        "another policy|admit='next'|'any'|epochs=None|'key'",
    ),
    "options that are none": (
        lambda it: it.replace_schema_metadata({"fencepost.options": "[]"}),
        fp.SnapshotError,
        "metadata|'[]'|None",
    ),
    "a horizon that is none": (
        lambda it: it.replace_schema_metadata({"fencepost.horizon": "soon"}),
        fp.SnapshotError,
        "metadata|'{}'|'soon'",
    ),
    "half a final range": (
        lambda it: it.set_column(6, "final_first", pa.array([None, 3], pa.int64())),
        fp.BatchError,
        "column 'final_last', row 1|null",
    ),
    "a final range outside": (
        lambda it: it.set_column(6, "final_first", pa.array([None, 3])).set_column(
            7, "final_last", pa.array([None, 4])
        ),
        fp.SnapshotError,
        "row 1|final range|"
        "Entry { pid: 8, partition: 0, epoch: 0, first: 10, last: 10, holes: [], final_range: Some((3, 4)), "
        "last_timestamp: None }",
    ),
    "a timestamp too many": (
        lambda it: it.set_column(8, "last_timestamp", pa.array([None, 5], pa.int64())),
        fp.SnapshotError,
        "row 1|timestamps|"
        "Entry { pid: 8, partition: 0, epoch: 0, first: 10, last: 10, holes: [], final_range: None, "
        "last_timestamp: Some(5) }",
    ),
    "a partition too wide in the second batch": (
        lambda it: pa.concat_tables(
            [it.set_column(1, "partition", pa.array([0, 0])), it.set_column(1, "partition", pa.array([1, 2**31]))]
        ),
        fp.BatchError,
        "column 'partition', row 3: value 2147483648|0..=2147483647",
    ),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_invalid_entries_are_refused(name: str) -> None:
    change, error, message = BAD_ENTRIES[name]
    entries = pa.table(fp.StateTable.restore(snapshot()).entries())
    with pytest.raises(error) as caught:
        fp.StateTable.from_entries(change(entries), "any_order")
    assert_says(caught.value, message)


# Keys asked for


@pytest.mark.parametrize(
    ("pid", "partition", "message"),
    [
        ("a", 0, "column 'pid'|'a'|integer"),
        (7.0, 0, "column 'pid'|7.0|integer"),
        (None, 0, "column 'pid'|None|integer"),
        (("c", 7), 0, "column 'pid'|('c', 7)|integer"),
        (7, "a", "column 'partition'|'a'|integer"),
    ],
)
def test_a_key_of_another_type(pid: Any, partition: Any, message: str) -> None:
    with pytest.raises(fp.BatchError) as caught:
        fp.StateTable.restore(snapshot()).get(pid, partition)
    assert_says(caught.value, message)


# Files


def test_a_missing_file_raises_the_error_of_the_system(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "state.fp"
    for call in (fp.StateTable.load, fp.StateTable("kafka").save):
        with pytest.raises(FileNotFoundError) as caught:
            call(missing)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(missing))
        assert str(caught.value).endswith(f": '{missing}'")
    for call in (fp.StateTable.load, fp.StateTable("kafka").save):
        with pytest.raises(IsADirectoryError) as folder:
            call(tmp_path)
        assert str(folder.value) == f"[Errno 21] Is a directory: '{tmp_path}'"
    with pytest.raises(IsADirectoryError):
        fp.StateTable("kafka").save("")
    assert list(tmp_path.iterdir()) == []


# Memory


# The limit on addresses limits the memory. It leaves enough for what a call needs beside the table, but less than
# a segment that comes from the system and grows, which is what a table asks for politely.
MEMORY = """
    import resource
    from array import array
    from pathlib import Path
    import fencepost as fp

    def rows(keys, seq=0):
        same = {"epoch": ("h", 0), "partition": ("i", 0), "seq": ("i", seq)}
        return {"pid": array("q", keys)} | {name: array(kind, [it]) * len(keys) for name, (kind, it) in same.items()}

    def limit(spare):
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        soft = resource.RLIM_INFINITY if spare is None else held + spare
        resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))

    def refused(call):
        try:
            call()
        except MemoryError as error:
            assert "bytes more, " in str(error), error
            return True
        return False
"""


def run_short_of_memory(program: str) -> None:
    program = textwrap.dedent(MEMORY) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_call_that_gets_no_memory_to_begin_with_changes_nothing() -> None:
    run_short_of_memory(
        """
        table, count = fp.StateTable("any_order"), 100_000
        table.apply(rows(range(count)))
        limit(4 << 20)
        # A hundred new keys are fewer than a call makes room for before it begins.
        while not refused(lambda: table.apply(rows(range(count, count + 100)))):
            count += 100
            assert count < 1_000_000, "a full table asks for memory"
        assert len(table) == count
        assert refused(lambda: table.apply(rows(range(count, count + 100)))), "still"
        assert len(table) == count
        limit(None)
        same = fp.StateTable("any_order")
        same.apply(rows(range(count)))
        assert table.snapshot() == same.snapshot()
        assert table.apply(rows(range(count - 50, count + 50))).counts[fp.Verdict.ACCEPTED] == 50
        print("done")
        """
    )


def test_a_call_that_fails_midway_poisons_its_table() -> None:
    run_short_of_memory(
        """
        table, many, one = fp.StateTable("any_order"), rows(range(200_000)), rows([1], seq=1)
        table.apply(rows(range(1_000)))
        saved = table.snapshot()
        limit(4 << 20)
        assert refused(lambda: table.apply(many))
        limit(None)
        for call in (lambda: table.apply(one), lambda: table.check(one), table.snapshot, lambda: len(table)):
            try:
                call()
            except fp.PoisonedError as error:
                assert "snapshot" in error.message, error
            else:
                raise AssertionError("a table that is neither before nor after a call answers")
        again = fp.StateTable.restore(saved)
        assert again.apply(many).counts[fp.Verdict.ACCEPTED] == 199_000
        print("done")
        """
    )


# The classes


NOT_REACHED = {
    fp.DependencyError: "of what is not installed: test_package.py",
    fp.LockedError: "of logs: test_partition_log.py",
    fp.PoisonedError: "of memory that runs out: test_a_call_that_fails_midway_poisons_its_table",
    fp.SourceError: "of jobs over files: test_lake_input.py",
    fp.SinkError: "of jobs over files: test_lake*.py",
    fp.SinkChangedError: "of jobs over files: test_lake*.py",
    fp.StateConflictError: "of the store's commit protocol: test_lake_commit.py",
    fp.StoreError: "of stores: test_stores.py",
    fp.OutcomeUnknownError: "of transactions of a database: sql/test_database.py",
    fp.UndoneError: "of transactions of a database: sql/test_database.py",
    fp.SchemaError: "of tables of a database: sql/test_database.py",
    fp.FencedError: "of producers and transactions: sql/test_coordinator.py",
    fp.ConcurrentTransactionError: "of producers and transactions: sql/test_coordinator.py",
    fp.TransactionStateError: "of producers and transactions: sql/test_coordinator.py",
    fp.TransactionAbortableError: "of producers and transactions: sql/test_coordinator.py",
    fp.MappingError: "of producers and transactions: sql/test_coordinator.py",
    fp.DeliveryError: "of producers: test_producer.py",
    fp.TransportError: "of producers: test_producer.py",
    fp.TransitionError: "of guarded transitions: sql/test_health.py",
    fp.RequestInFlightError: "of requests: sql/test_requests.py",
    fp.KeyReusedError: "of requests: sql/test_requests.py",
}
NOT_REACHED |= {
    fp.FencedError: "of producers: test_producer.py",
    fp.TransactionAbortableError: "of producers: test_producer.py",
    fp.DeliveryError: "of producers: test_producer.py",
    fp.TransportError: "of producers: test_producer.py",
}
REACHED = {fp.BatchError, fp.PolicyError, fp.CapacityError, fp.SnapshotError}
# Where each reached class is provoked above: a class that no test provokes any more must not stay in the list.
PROVOKED = {bad.error for bad in BAD_CALLS.values() if issubclass(bad.error, fp.FencepostError)} | {fp.SnapshotError}


def test_the_classes_tested_are_the_classes_that_exist() -> None:
    existing = {
        it
        for _, it in inspect.getmembers(fencepost.errors, inspect.isclass)
        if it.__module__ == "fencepost.errors" and it is not fencepost.errors.Coded
    }
    assert existing == {fp.FencepostError} | REACHED | NOT_REACHED.keys()
    assert PROVOKED == REACHED
    assert all(issubclass(it, fp.FencepostError) for it in existing)
    assert {getattr(fp, it.__name__) for it in existing} == existing, "each is in the package"
    assert all(it.__doc__ for it in existing)


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (fp.BatchError("m", column="c", row=3), {"column": "c", "row": 3}),
        (fp.CapacityError("m", limit=5), {"limit": 5}),
        (fp.SnapshotError("m", reason="r"), {"reason": "r"}),
        (fp.SourceError("m", path="p", position=9), {"path": "p", "position": 9}),
        (fp.StoreError("m", path="p", errno=5), {"path": "p", "errno": 5}),
        (fp.DeliveryError("m", partition=3, is_refused=True), {"partition": 3, "is_refused": True}),
        *((class_("m"), {}) for class_ in (fp.PolicyError, fp.SinkError, fp.SinkChangedError)),
        *((class_("m"), {}) for class_ in (fp.StateConflictError, fp.PoisonedError, fp.FencepostError)),
        (fp.DependencyError("m"), {}),
        (fp.LockedError("m"), {}),
        (fp.RequestInFlightError("m", lease_left_ms=7), {"lease_left_ms": 7}),
    ],
    ids=lambda it: type(it).__name__,
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_errors_keep_their_attributes(
    error: fp.FencepostError, attributes: dict[str, Any], protocol: int
) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.message, vars(again)) == (f"[{error.code}] m", "m", attributes)


def test_a_raised_error_can_be_pickled() -> None:
    with pytest.raises(fp.BatchError) as caught:
        fp.StateTable("any_order").apply(rows(seq=[1, 2, -1]))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.column, again.row) == (str(caught.value), "seq", 2)


def test_no_message_shows_the_name_of_a_value_in_braces() -> None:
    """A part of a text whose f is missing: the other parts of it are formatted."""
    folders = [Path(fp.__file__).parent, Path(__file__).parents[2] / "spark_udf/fencepost_spark"]
    texts = [
        (path, part)
        for folder in folders
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr | ast.Raise)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    assert len(texts) > 1_000, "the sources were read"
    wrong = [f"{path.name}:{it.lineno}: {it.value}" for path, it in texts if re.search(r"\{[a-z_.]+\}", it.value)]
    assert wrong == []
