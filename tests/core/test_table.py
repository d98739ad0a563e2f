"""State tables: entries, queries, snapshots and files; policies and verdicts as values."""

from __future__ import annotations

import copy
import dataclasses
import errno
import itertools
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from fencepost import Columns, Policy, StateTable, Verdict

PRESETS = ["any_order", "in_order", "kafka", "strict", "watermark", "kafka_offsets"]


def rows(*identities: tuple[Any, ...], names: str = "pid epoch partition seq") -> pa.Table:
    """Rows given as tuples, in the order of names."""
    columns = dict(zip(names.split(), zip(*identities, strict=True), strict=True))
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def entry(
    pid: Any, partition: Any, epoch: int | None, first: int, last: int, *holes: tuple[int, int]
) -> dict[str, Any]:
    """An entry as `get` returns it."""
    return {
        "pid": pid,
        "partition": partition,
        "epoch": epoch,
        "first": first,
        "last": last,
        "holes": [{"first": low, "last": high, "timestamp": None} for low, high in holes],
        "final_first": None,
        "final_last": None,
        "last_timestamp": None,
    }


SCOPED = Columns(pid=("cluster", "device"), partition=("topic", "shard"))
SCOPED_NAMES = "cluster device epoch topic shard seq"


def plain() -> StateTable:
    table = StateTable("any_order")
    table.apply(rows((7, 0, 0, 5), (7, 0, 0, 9), (7, 1, 0, 0), (7, 0, 3, 1), (2, 0, 0, 4)))
    return table


def textual() -> StateTable:
    table = StateTable("in_order")
    table.apply(rows(("b", 2, 0, 5), ("b", 2, 0, 9), ("a", 0, 1, 1), ("", 0, 0, 7), ("ä\0", 0, 0, 7)))
    return table


def composite() -> StateTable:
    table = StateTable(Policy.any_order().replace(columns=SCOPED))
    identities = [
        ("eu", 7, 0, "orders", 0, 1),
        ("eu", 7, 0, "orders", 0, 4),
        ("eu", 7, 0, "clicks", 0, 2),
        ("us", 7, 3, "orders", 1, 0),
    ]
    table.apply(rows(*identities, names=SCOPED_NAMES))
    return table


def binary() -> StateTable:
    table = StateTable("kafka")
    pids = pa.array([bytes(16), b"\xff" * 16, bytes(16)], pa.binary(16))
    table.apply(
        {"pid": pids, "epoch": np.zeros(3, int), "partition": pa.array([b"\0", b"", b"\0"]), "seq": np.arange(3)}
    )
    return table


def without_epochs() -> StateTable:
    table = StateTable("watermark", entries_max=10, untracked="fail")
    table.apply(rows((7, 0, 5), (7, 0, 2**40), (8, 0, 1), names="pid partition seq"))
    return table


def without_partition() -> StateTable:
    table = StateTable(Policy.strict().replace(columns=Columns(partition=None, seq="n")))
    table.apply(rows((7, 0, 0), (7, 0, 1), (8, 1, 0), names="pid epoch n"))
    return table


def windowed() -> StateTable:
    """Of a wrapping window: its oldest row is above its newest."""
    table = StateTable(Policy.kafka().replace(wrap=16))
    table.apply(rows(*((7, 0, 0, seq % 16) for seq in range(12, 19))))
    return table


def wrapped() -> StateTable:
    """Positions below zero and above the wrap."""
    table = StateTable(Policy.any_order().replace(wrap=16))
    table.apply(rows((7, 0, 0, 0), (7, 0, 0, 14), (8, 0, 0, 13), (8, 0, 0, 15), (8, 0, 0, 2)))
    return table


def aged() -> StateTable:
    """A table of two producers, one of which was evicted, with a final range, a hole and a horizon."""
    table = StateTable(Policy.any_order().replace(columns=Columns(timestamp="at")), keep=("timestamp",), entries_max=99)
    identities = [(7, 0, 0, 0, 10), (7, 0, 0, 3, 20), (7, 0, 0, 5, 50), (7, 0, 0, 4, 60), (7, 0, 0, 9, 40)]
    table.apply(rows(*identities, (8, 0, 0, 0, 15), names="pid epoch partition seq at"))
    assert table.evict(30, 10) == 1
    return table


def aged_composite() -> StateTable:
    table = StateTable(Policy.any_order().replace(columns=SCOPED, reach=4), keep=("timestamp",))
    identities = [("eu", 7, 0, "orders", 0, 1, -5), ("eu", 7, 0, "orders", 0, 9, -3), ("us", 7, 2, "clicks", 1, 2, 2)]
    table.apply(rows(*identities, names=f"{SCOPED_NAMES} timestamp"))
    return table


def fragmented() -> StateTable:
    table = StateTable("any_order")
    table.apply(rows(*((7, 0, 0, seq) for seq in range(0, 4000, 3)), (8, 0, 0, 0)))
    return table


def empty() -> StateTable:
    return StateTable("kafka_offsets", entries_max=3)


TABLES: dict[str, Callable[[], StateTable]] = {
    make.__name__: make
    for make in (
        *(plain, textual, composite, binary, without_epochs, without_partition),
        *(windowed, wrapped, aged, aged_composite, fragmented, empty),
    )
}


OF_INTEGERS = sorted(TABLES.keys() - {"textual", "composite", "binary", "aged_composite"})


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> StateTable:
    return TABLES[request.param]()


# One entry


def test_get_of_integers() -> None:
    table = plain()
    assert table.get(7, 0) == entry(7, 0, 1, 0, 0), "the highest epoch"
    assert table.get(7, 0, 0) == table.get(7, 0, epoch=0) == entry(7, 0, 0, 5, 9, (6, 8))
    assert table.get(7, 0, 1) == entry(7, 0, 1, 0, 0)
    assert table.get(7, 3) == entry(7, 3, 0, 1, 1)
    for unknown in [(9, 0), (7, 1), (0, 7), (2**62, 0), (7, 2**31), (7, 2**40), (-1, 0), (-2, 0), (7, -1)]:
        assert table.get(*unknown) is None
    for epoch in (2, -1, 32767, 32768, 2**40):
        assert table.get(7, 0, epoch) is None
    # For every type of integer, the key is returned as an int.
    asked = table.get(np.int64(7), np.uint8(3))
    assert asked == entry(7, 3, 0, 1, 1)
    assert type(asked["pid"]) is type(asked["partition"]) is int


def test_get_of_text_and_binary() -> None:
    table = textual()
    assert table.get("b", 0) == entry("b", 0, 2, 5, 9, (6, 8))
    assert table.get("", 0) == entry("", 0, 0, 7, 7)
    assert table.get("ä\0", 0) == entry("ä\0", 0, 0, 7, 7)
    assert table.get(("a",), 1) == entry(("a",), 1, 0, 1, 1)
    for unknown in ("c", "A", "ä", "b ", "b\0"):
        assert table.get(unknown, 0) is None
    assert table.get("b", 1) is None
    assert table.get("b", 0, 1) is None, "fenced, so no longer known"

    table = binary()
    assert table.get(bytes(16), b"\0") == entry(bytes(16), b"\0", 0, 0, 0)
    assert table.get(b"\xff" * 16, b"") == entry(b"\xff" * 16, b"", 0, 1, 1)
    assert table.get(bytes(15), b"\0") is None


def test_get_of_composites() -> None:
    table = composite()
    assert table.get(("eu", 7), ("orders", 0)) == entry(("eu", 7), ("orders", 0), 0, 1, 4, (2, 3))
    assert table.get(("us", 7), ("orders", 1), 3) == entry(("us", 7), ("orders", 1), 3, 0, 0)
    for unknown in [
        (("us", 7), ("orders", 0)),
        (("eu", 8), ("orders", 0)),
        (("eu", 7), ("", 0)),
        (("eu", -1), ("orders", 0)),
    ]:
        assert table.get(*unknown) is None
    for wrong in [("eu", ("orders", 0)), (("eu", 7, 1), ("orders", 0)), ((7, "eu"), ("orders", 0)), (7, 0)]:
        with pytest.raises(fp.BatchError, match="not a key"):
            table.get(*wrong)


def test_get_without_epochs_or_partitions() -> None:
    assert without_epochs().get(7, 0) == entry(7, 0, None, 5, 2**40)
    table = without_partition()
    assert table.get(7, None) == entry(7, 0, 0, 1, 1), "a window of one"
    assert table.get(8, None, 1) == entry(8, 0, 1, 0, 0)
    assert table.get(7, 0) == table.get(7, None)


def test_an_empty_table_knows_no_key_of_any_type() -> None:
    for key in (7, "a", b"a", ("a", 7), None):
        assert empty().get(key, key) is None


def test_get_returns_the_values_of_entries(table: StateTable) -> None:
    listed = pa.table(table.entries()).to_pylist()
    assert len(listed) == len(table)
    for row in listed:
        key: dict[str, Any] = {}
        for role in ("pid", "partition"):
            parts = [row.pop(name) for name in list(row) if name.startswith(f"{role}_")]
            key[role] = tuple(parts) if parts else row.pop(role)
        assert table.get(key["pid"], key["partition"], row["epoch"]) == key | row


# All entries, and back


ENTRY_TYPES = {
    "epoch": pa.int16(),
    "first": pa.int64(),
    "last": pa.int64(),
    "holes": pa.list_(
        pa.field(
            "item",
            pa.struct(
                [
                    pa.field("first", pa.int64(), nullable=False),
                    pa.field("last", pa.int64(), nullable=False),
                    pa.field("timestamp", pa.int64()),
                ]
            ),
            nullable=False,
        )
    ),
    "final_first": pa.int64(),
    "final_last": pa.int64(),
    "last_timestamp": pa.int64(),
}


def test_entries_are_in_key_order_with_their_types() -> None:
    found = pa.table(plain().entries())
    assert [tuple(row.values())[:5] for row in found.to_pylist()] == [
        (2, 0, 0, 4, 4),
        (7, 0, 0, 5, 9),
        (7, 0, 1, 0, 0),
        (7, 3, 0, 1, 1),
    ]
    assert dict(zip(found.column_names, found.schema.types, strict=True)) == {
        "pid": pa.int64(),
        "partition": pa.int32(),
        **ENTRY_TYPES,
    }
    assert pa.table(textual().entries())["pid"].to_pylist() == ["", "a", "b", "ä\0"]
    found = pa.table(composite().entries())
    assert [tuple(row.values())[:4] for row in found.to_pylist()] == [
        ("eu", 7, "clicks", 0),
        ("eu", 7, "orders", 0),
        ("us", 7, "orders", 1),
    ]
    assert found.schema.types[:4] == [pa.string(), pa.int64(), pa.string(), pa.int64()]
    assert pa.table(without_epochs().entries())["epoch"].to_pylist() == [None, None]
    assert pa.table(binary().entries()).schema.types[:2] == [pa.binary(16), pa.binary()]
    assert pa.table(empty().entries()).num_rows == 0


def test_entries_carry_policy_and_options() -> None:
    metadata = pa.table(without_epochs().entries()).schema.metadata
    assert metadata[b"fencepost.policy"].decode() == Policy.watermark().rules
    assert metadata[b"fencepost.options"] == b'{"keep": [], "entries_max": 10, "untracked": "fail"}'
    assert metadata[b"fencepost.columns"] == (
        b'{"epoch": null, "partition": "partition", "pid": "pid", "seq": "seq", "timestamp": null}'
    )


def test_entries_of_a_window_are_sequences() -> None:
    found = windowed().get(7, 0)
    assert found is not None
    assert (found["first"], found["last"]) == (14, 2)
    assert wrapped().get(7, 0) == entry(7, 0, 0, -2, 0, (-1, -1))
    assert wrapped().get(8, 0) == entry(8, 0, 0, 13, 18, (14, 14), (16, 17))


CARRIERS: dict[str, Callable[[pa.Table], Any]] = {
    "as it came": lambda found: found,
    "chunks": lambda found: pa.concat_tables([found[:1], found[1:1], found[1:]]),
    "other order of columns": lambda found: found.select(found.column_names[::-1]),
    "mapping": lambda found: {name: found[name] for name in found.column_names},
    "wider": lambda found: found.set_column(
        found.column_names.index("holes"), "holes", found["holes"].cast(pa.large_list(ENTRY_TYPES["holes"].value_type))
    ),
    "without metadata": lambda found: found.replace_schema_metadata(None),
    "polars": pl.DataFrame,
    "pandas": lambda found: found.to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.mark.parametrize(
    ("table", "carrier"),
    # polars has no binary of fixed length.
    sorted(set(itertools.product(TABLES, CARRIERS)) - {("binary", "polars")}),
    indirect=["table"],
)
def test_from_entries_restores_a_table_without_loss(table: StateTable, carrier: str) -> None:
    found = CARRIERS[carrier](pa.table(table.entries()))
    # Polars and mappings carry no schema metadata, pandas gives it only in part.
    metadata = pa.table(found).schema.metadata or {} if carrier != "mapping" else {}
    has_metadata = b"fencepost.options" in metadata
    given = {} if has_metadata else {"keep": table.keep, "horizon_ms": table.horizon_ms}
    again = StateTable.from_entries(found, table.policy, **given)
    assert pa.table(again.entries()).to_pylist() == pa.table(table.entries()).to_pylist()
    assert again.policy == table.policy
    if carrier in ("as it came", "chunks", "other order of columns"):
        assert again.snapshot() == table.snapshot()
    else:
        # Options travel as schema metadata, which these may lose.
        bare = pa.table(table.entries()).replace_schema_metadata(None)
        again_bare = StateTable.from_entries(bare, table.policy, keep=table.keep, horizon_ms=table.horizon_ms)
        assert again.snapshot() in (table.snapshot(), again_bare.snapshot())


@pytest.mark.parametrize("table", OF_INTEGERS, indirect=True)
def test_a_table_from_entries_gives_the_same_verdicts(table: StateTable) -> None:
    again = StateTable.from_entries(table.entries(), table.policy)
    restored = StateTable.restore(table.snapshot())
    seqs = [0, 1, 2, 3, 5, 7, 10, 13, 14, 15, 2, 4]
    identity = {
        "pid": [7, 8] * 6,
        "epoch": [0] * 12,
        "partition": [0] * 12,
        "seq": seqs,
        "n": seqs,
        "topic": [7, 8] * 6,
        "offset": seqs,
        "at": [40, 20] * 6,
    }
    asked = {name: pa.array(identity[name]) for name in table.policy.columns.read(table.keep)}
    answers = [pa.array(it.apply(asked).verdict).to_pylist() for it in (again, restored, table)]
    assert answers[0] == answers[1] == answers[2]
    assert again.snapshot() == restored.snapshot() == table.snapshot()


def test_entries_can_be_made_by_hand() -> None:
    made = pa.table(
        {
            "pid": ["b", "a"],
            "partition": [0, 1],
            "epoch": [0, 0],
            "first": [5, 1],
            "last": [9, 1],
            "holes": pa.array([[{"first": 6, "last": 8, "timestamp": None}], None], ENTRY_TYPES["holes"]),
        }
    )
    table = StateTable.from_entries(made, "any_order")
    assert table.get("b", 0) == entry("b", 0, 0, 5, 9, (6, 8))
    verdicts = table.apply(rows(("b", 0, 0, 7), ("b", 0, 0, 9), ("a", 0, 1, 2)))
    assert pa.array(verdicts.verdict).to_pylist() == [0, 1, 0]


def test_a_horizon_needs_timestamps() -> None:
    with pytest.raises(fp.PolicyError, match=r"horizon_ms=20 needs timestamps"):
        StateTable.from_entries(plain().entries(), horizon_ms=20)
    with pytest.raises(fp.PolicyError, match=r"horizon_ms=20 needs timestamps"):
        StateTable.from_entries(aged().entries(), keep=())


def test_names_of_refused_producers_leave_no_trace() -> None:
    """The table has no entries, so the names of the first call are dropped."""
    table = StateTable("any_order", keep=("timestamp",))
    table.evict(20, 0)

    def call(*pids: str, timestamp: int) -> list[int]:
        asked = [(pid, 0, 0, 0, timestamp) for pid in pids]
        return pa.array(table.apply(rows(*asked, names="pid epoch partition seq timestamp")).verdict).to_pylist()

    assert call("a", "b", "c", timestamp=20) == [7, 7, 7]
    assert call("d", timestamp=30) == [0]
    assert StateTable.restore(table.snapshot()).get("d", 0) == table.get("d", 0)


def test_entries_name_their_own_policy(table: StateTable) -> None:
    again = StateTable.from_entries(table.entries())
    assert again.policy == table.policy
    assert (again.keep, again.horizon_ms) == (table.keep, table.horizon_ms)
    assert again.snapshot() == table.snapshot()
    with pytest.raises(fp.PolicyError, match=r"no 'fencepost\.policy'.*pass a policy$"):
        StateTable.from_entries(pa.table(table.entries()).replace_schema_metadata(None))
    damaged = pa.table(table.entries()).replace_schema_metadata({"fencepost.policy": "admit=any"})
    with pytest.raises(fp.SnapshotError, match=r"metadata cannot be read: 'admit=any'$"):
        StateTable.from_entries(damaged)


def test_many_entries_come_in_several_batches() -> None:
    count = 150_000
    table = StateTable("any_order")
    table.apply({"pid": np.arange(count), "epoch": np.zeros(count, int)} | dict.fromkeys(
        ("partition", "seq"), np.zeros(count, int)))  # fmt: skip
    reader = pa.RecordBatchReader.from_stream(table.entries())
    sizes = [batch.num_rows for batch in reader]
    assert sum(sizes) == count
    assert len(sizes) > 1
    assert max(sizes) <= 2**16
    assert StateTable.from_entries(table.entries()).snapshot() == table.snapshot()


# Forgetting


def test_get_returns_the_final_range() -> None:
    table = aged()
    assert table.get(7, 0) == {
        **entry(7, 0, 0, 0, 9),
        "holes": [{"first": 6, "last": 8, "timestamp": 40}],
        "final_first": 1,
        "final_last": 2,
        "last_timestamp": 60,
    }
    assert table.get(8, 0) is None
    assert (table.keep, table.horizon_ms, len(table)) == (("timestamp",), 20, 1)
    assert pa.table(table.entries()).schema.metadata[b"fencepost.horizon"] == b"20"
    assert (plain().keep, plain().horizon_ms) == ((), None)


def test_forgotten_rows_are_counted_and_not_kept() -> None:
    asked = rows(
        (7, 0, 0, 1, 99), (9, 0, 0, 0, 20), (7, 0, 0, 3, 5), (9, 0, 0, 0, 21), names="pid epoch partition seq at"
    )
    verdicts = aged().apply(asked)
    assert pa.array(verdicts.verdict).to_pylist() == [7, 7, 1, 0]
    assert pa.array(verdicts.kept).to_pylist() == [False, False, False, True]
    assert verdicts.counts[Verdict.FORGOTTEN] == 2
    assert fp.deduplicate(asked, table=aged()).num_rows == 1


def test_forget_accepts_the_same_keys_as_get() -> None:
    assert plain().forget(7) == 3
    assert plain().forget(7, 0) == 2
    assert plain().forget(7, partition=3) == 1
    table = plain()
    for unknown in [(9, 0), (7, 1), (-1, 0), (7, -1), (7, 2**40), (2**62,)]:
        assert table.forget(*unknown) == 0
    assert table.snapshot() == plain().snapshot()
    assert textual().forget("b", 0) == textual().forget("b") == 1
    assert composite().forget(("eu", 7)) == 2
    assert composite().forget(("eu", 7), ("orders", 0)) == 1
    assert composite().forget(("us", 8)) == 0
    assert binary().forget(bytes(16), b"\0") == 1
    assert without_partition().forget(7) == 1
    assert empty().forget("whatever", ("its", "type")) == 0
    with pytest.raises(fp.BatchError, match="not a key"):
        composite().forget("eu")
    table.forget(7)
    table.forget(2)
    assert len(table) == 0


# Merging


def test_merge_returns_the_overlap_and_does_not_change_the_other_table() -> None:
    ours, theirs = composite(), composite()
    theirs.apply(rows(("eu", 7, 0, "orders", 0, 2), ("as", 1, 0, "orders", 5, 0), names=SCOPED_NAMES))
    before = theirs.snapshot()
    overlap = pa.table(ours.merge(theirs))
    assert overlap.schema.equals(pa.table(ours.missing()).schema)
    assert [tuple(it.values()) for it in overlap.to_pylist()] == [
        ("eu", 7, "clicks", 0, 0, 2, 2, 1),
        ("eu", 7, "orders", 0, 0, 1, 1, 1),
        ("eu", 7, "orders", 0, 0, 4, 4, 1),
        ("us", 7, "orders", 1, 3, 0, 0, 1),
    ]
    assert theirs.snapshot() == before == ours.snapshot()


def test_merging_nothing_changes_nothing() -> None:
    for make in (plain, composite, aged, fragmented):
        table = make()
        other = StateTable(table.policy, keep=table.keep)
        assert pa.table(table.merge(other)).num_rows == 0
        assert table.snapshot() == make().snapshot()
        other.merge(table)
        assert pa.table(other.entries()).to_pylist() == pa.table(table.entries()).to_pylist()
        assert other.horizon_ms == table.horizon_ms


# What is missing


def test_missing_lists_every_hole_that_is_open() -> None:
    table = plain()
    assert pa.table(table.missing()).to_pylist() == [
        {"pid": 7, "partition": 0, "epoch": 0, "first_seq": 6, "last_seq": 8, "count": 3}
    ]
    table.apply(rows((7, 0, 0, 7)))
    assert [(it["first_seq"], it["last_seq"], it["count"]) for it in pa.table(table.missing()).to_pylist()] == [
        (6, 6, 1),
        (8, 8, 1),
    ]
    table.apply(rows((7, 0, 0, 6), (7, 0, 0, 8)))
    assert pa.table(table.missing()).num_rows == 0

    assert [tuple(it.values()) for it in pa.table(composite().missing()).to_pylist()] == [
        ("eu", 7, "orders", 0, 0, 2, 3, 2)
    ]
    # Across the wrap, as sequences; where gaps are normal, or cannot be, nothing is missing.
    assert [tuple(it.values()) for it in pa.table(wrapped().missing()).to_pylist()] == [
        (7, 0, 0, 15, 15, 1),
        (8, 0, 0, 14, 14, 1),
        (8, 0, 0, 0, 1, 2),
    ]
    for none in (without_epochs(), windowed(), empty()):
        assert pa.table(none.missing()).num_rows == 0


# Snapshots


def test_a_snapshot_is_the_table(table: StateTable) -> None:
    data = table.snapshot()
    again = StateTable.restore(data)
    assert again.snapshot() == data == table.snapshot()
    assert again.policy == table.policy
    assert len(again) == len(table)
    assert pa.table(again.entries()).equals(pa.table(table.entries()), check_metadata=True)
    assert pa.table(again.missing()).equals(pa.table(table.missing()))
    assert StateTable.restore(data, table.policy).snapshot() == data


def test_options_are_part_of_a_snapshot() -> None:
    table = StateTable.restore(StateTable("any_order", entries_max=1, untracked="fail").snapshot())
    with pytest.raises(fp.BatchError, match="carries no producer"):
        table.apply(rows((-1, 0, 0, 0)))
    with pytest.raises(fp.CapacityError):
        table.apply(rows((7, 0, 0, 0), (8, 0, 0, 0)))
    kinds = [{}, {"entries_max": 0}, {"entries_max": 1}, {"untracked": "fail"}]
    assert len({StateTable("any_order", **options).snapshot() for options in kinds}) == len(kinds)


@pytest.mark.parametrize("partitions", ["one", "many"])
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "kafka_offsets"])
def test_declared_partitions_change_no_verdict(name: str, partitions: Any) -> None:
    """Whether they are right or not."""
    random = np.random.default_rng(5)
    tables = [StateTable(name), StateTable(name, partitions=partitions)]
    for _ in range(4):
        ends = {"pid": 3000, "epoch": 2, "partition": 9, "seq": 40}
        batch = {column: random.integers(0, end, 20_000) for column, end in ends.items()}
        plain, declared = (pa.array(table.apply(batch).verdict) for table in tables)
        assert plain.equals(declared)
    assert tables[0].snapshot() == tables[1].snapshot()


def test_other_partitions_are_an_error() -> None:
    with pytest.raises(fp.PolicyError, match=r"partitions='few'.* 'one' or 'many'"):
        StateTable("any_order", partitions="few")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PRESETS)
def test_the_policy_passed_to_restore_must_be_the_same(name: str) -> None:
    data = StateTable(name).snapshot()
    fields = {field.name: getattr(StateTable(name).policy, field.name) for field in dataclasses.fields(Policy)}
    assert StateTable.restore(data, name).policy == StateTable.restore(data, Policy(**fields)).policy
    for other in set(PRESETS) - {name}:
        with pytest.raises(fp.SnapshotError, match=r"has another policy: "):
            StateTable.restore(data, other)


def test_equal_tables_have_equal_bytes_whatever_the_order_of_rows() -> None:
    names = ["delta", "alpha", "charlie", "bravo", "", "échο"]
    identities = [
        (name, epoch, topic, seq) for name in names for epoch in (0, 1) for topic in ("x", "w") for seq in (0, 1, 5)
    ]
    wanted = None
    generator = random.Random(7)
    for _ in range(10):
        table = StateTable("any_order")
        shuffled = generator.sample(identities, len(identities))
        for at in range(0, len(shuffled), 7):
            table.apply(rows(*shuffled[at : at + 7]))
        wanted = wanted or table.snapshot()
        assert table.snapshot() == wanted
        assert StateTable.restore(wanted).snapshot() == wanted


def test_bytes_do_not_depend_on_the_process() -> None:
    """Nothing leans on a hash seed or an address."""
    program = (
        "import fencepost as fp, pyarrow as pa, sys;"
        "t = fp.StateTable('in_order');"
        "n = [f'p{i * 7 % 101}' for i in range(500)];"
        "z = pa.array([0] * 500);"
        "t.apply({'pid': pa.array(n), 'epoch': z, 'partition': z, 'seq': pa.array(range(500))});"
        "sys.stdout.buffer.write(t.snapshot())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(found) == 1
    assert len(found.pop()) > 500


def test_save_and_load(table: StateTable, tmp_path: Path) -> None:
    for path in (tmp_path / "state.fp", str(tmp_path / "other.fp"), tmp_path / "ein name.ü"):
        table.save(path)
        assert Path(path).read_bytes() == table.snapshot()
        assert StateTable.load(path).snapshot() == table.snapshot()
        assert StateTable.load(path, table.policy).policy == table.policy
    assert len(list(tmp_path.iterdir())) == 3


def test_save_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain().save("state.fp")
    assert StateTable.load("state.fp").snapshot() == plain().snapshot()


def test_save_replaces_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    path = folder / "state.fp"
    plain().save(path)
    plain().save(path)
    before = path.read_bytes()
    old = path.stat().st_ino

    # A folder that takes no new file (root may write anywhere: then a limit on the size of files).
    program = (
        "import fencepost as fp, pyarrow as pa, resource, signal, sys;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "t = fp.StateTable('any_order');"
        "z = pa.array([0] * 5000);"
        "t.apply({'pid': pa.array(range(5000)), 'epoch': z, 'partition': z, 'seq': z});"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "t.save(sys.argv[1])"
    )
    failed = subprocess.run([sys.executable, "-c", program, path], check=False, capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == f"OSError: [Errno {errno.EFBIG}] File too large: '{path}'"
    assert path.read_bytes() == before
    assert path.stat().st_ino == old
    assert [it.name for it in folder.iterdir()] == ["state.fp"], "the attempt was cleaned away"

    folder.chmod(0o555)
    try:
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                textual().save(path)
            assert path.read_bytes() == before
    finally:
        folder.chmod(0o755)
    assert StateTable.load(path).snapshot() == plain().snapshot()


# Size and looks


def test_len_memory_and_repr() -> None:
    table = StateTable("any_order")
    assert len(table) == 0
    assert table.snapshot() != plain().snapshot()
    assert repr(table) == f"<StateTable any_order: 0 entries, {table.memory_bytes} bytes>"
    empty_bytes = table.memory_bytes
    count = 20_000
    table.apply(
        {name: np.arange(count) if name == "pid" else np.zeros(count, int) for name in table.policy.columns.names}
    )
    assert len(table) == count
    assert empty_bytes + 8 * count < table.memory_bytes < empty_bytes + 256 * count
    assert repr(table) == f"<StateTable any_order: {count} entries, {table.memory_bytes} bytes>"
    table.apply(
        {name: np.arange(count) if name == "pid" else np.ones(count, int) for name in table.policy.columns.names}
    )
    assert len(table) == 2 * count, "an epoch is an entry under epochs='key'"

    fenced = StateTable("in_order")
    fenced.apply(rows((7, 0, 0, 0), (7, 1, 0, 0), (7, 2, 0, 0)))
    assert len(fenced) == 1
    other = StateTable(Policy.kafka().replace(window=3))
    assert repr(other) == f"<StateTable {other.policy.rules}: 0 entries, {other.memory_bytes} bytes>"
    assert repr(fenced.apply(rows((7, 1, 0, 0), (7, 2, 0, 0)))) == "<Verdicts of 2 rows: DUPLICATE 1, FENCED 1>"


def test_strings_are_counted_in_memory() -> None:
    short, long = StateTable("any_order"), StateTable("any_order")
    for table, name in ((short, "p"), (long, "p" * 200)):
        table.apply(rows(*((f"{name}{number}", 0, 0, 0) for number in range(1000))))
    assert long.memory_bytes - short.memory_bytes > 150_000


def test_entries_max_counts_entries() -> None:
    table = StateTable("any_order", entries_max=3)
    table.apply(rows((7, 0, 0, 0), (7, 1, 0, 0), (7, 0, 1, 0), (7, 0, 0, 0), (None, 0, 0, 0), (-1, 0, 0, 0)))
    assert len(table) == 3
    with pytest.raises(fp.CapacityError):
        table.check(rows((8, 0, 0, 0)))
    fenced = StateTable("in_order", entries_max=1)
    for epoch in range(5):
        fenced.apply(rows((7, epoch, 0, 0)))
    assert len(fenced) == 1
    none = StateTable("any_order", entries_max=0)
    assert none.apply(rows((-1, 0, 0, 0))).counts[Verdict.UNTRACKED] == 1
    with pytest.raises(fp.CapacityError):
        none.apply(rows((7, 0, 0, 0)))


def test_untracked_rows_can_be_an_error() -> None:
    table = StateTable("any_order", untracked="fail")
    for pid in (-1, None):
        with pytest.raises(fp.BatchError, match=r"column 'pid', row 1: carries no producer"):
            table.apply(rows((7, 0, 0, 0), (pid, 0, 0, 0)))
    assert len(table) == 0
    assert StateTable("any_order").apply(rows((7, 0, 0, 0), (None, 0, 0, 0))).counts[Verdict.UNTRACKED] == 1


@pytest.mark.parametrize("frame", ["polars", "pandas"])
def test_columns_of_a_frame_that_are_not_read_may_have_any_type(frame: str) -> None:
    columns: dict[str, Any] = {"pid": [1, 1], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 0]}
    if frame == "pandas":
        rows: Any = pd.DataFrame({**columns, "thing": [object(), 1]})
    else:
        rows = pl.DataFrame(columns).with_columns(nothing=None, large=pl.lit(1).cast(pl.Int128))
    table = StateTable("any_order")
    assert table.check(rows).verdict.to_pylist() == [Verdict.ACCEPTED, Verdict.DUPLICATE]
    assert table.apply(rows).verdict.to_pylist() == [Verdict.ACCEPTED, Verdict.DUPLICATE]
    if frame == "pandas":
        by_index = rows.drop(columns="thing").set_index("seq")
        assert StateTable("any_order").apply(by_index).verdict.to_pylist() == [Verdict.ACCEPTED, Verdict.DUPLICATE]
    untracked = rows.assign(pid=None) if frame == "pandas" else rows.with_columns(pid=None)
    assert table.apply(untracked).verdict.to_pylist() == [Verdict.UNTRACKED] * 2


def test_check_leaves_no_trace(table: StateTable) -> None:
    before, size = table.snapshot(), len(table)
    names = table.policy.columns.read(table.keep)
    types = {"pid": [7, 99], "cluster": ["eu", "new"], "device": [7, 99], "topic": ["orders", "new"], "shard": [0, 1]}
    others = {"epoch": [0, 1], "partition": [0, 1], "seq": [11, 12], "n": [11, 12], "offset": [11, 12]}
    others |= {"at": [98, 99], "timestamp": [98, 99]}
    asked = {name: pa.array((types | others)[name]) for name in names}
    known = pa.table(table.entries())
    for role in ("pid", "partition"):
        if role in known.column_names and role in asked and not pa.types.is_integer(known.schema.field(role).type):
            asked[role] = pa.array([known[role][0].as_py()] * 2, known.schema.field(role).type)
    checked = table.check(asked)
    assert table.snapshot() == before
    assert len(table) == size
    again = table.check(asked)
    assert pa.array(again.verdict) == pa.array(checked.verdict)
    assert pa.table(again.missing).equals(pa.table(checked.missing))
    applied = table.apply(asked)
    assert pa.array(applied.verdict) == pa.array(checked.verdict)
    assert pa.table(applied.missing).equals(pa.table(checked.missing))


def test_check_leaves_no_key_type_and_no_key() -> None:
    table = StateTable("any_order")
    table.check(rows(("a", 0, 0, 0)))
    assert table.get("a", 0) is None
    table.check(rows((7, 0, "t", 0)))
    table.apply(rows((7, 0, 0, 0)))
    assert table.get(7, 0) == entry(7, 0, 0, 0, 0)

    table = StateTable("any_order")
    table.apply(rows(("a", 0, 0, 0)))
    checked = table.memory_bytes
    for turn in range(20):
        table.check(rows(*((f"new-{turn}-{number}" * 10, 0, 0, 0) for number in range(100))))
    assert table.memory_bytes < checked + 100_000, "keys of checks pile up"
    table.apply(rows(("b", 0, 0, 0)))
    alone = StateTable("any_order")
    alone.apply(rows(("b", 0, 0, 0), ("a", 0, 0, 0)))
    assert table.snapshot() == alone.snapshot()


def test_a_refused_row_leaves_no_trace() -> None:
    table = StateTable("strict")
    fresh = table.snapshot()
    assert table.apply(rows(("a", 0, 0, 5))).counts[Verdict.OUT_OF_ORDER] == 1
    assert table.snapshot() == fresh
    table.apply(rows((7, 0, 0, 0)))
    assert table.get(7, 0) == entry(7, 0, 0, 0, 0)


# Policies


def test_presets_have_the_documented_fields() -> None:
    found = {name: StateTable(name).policy for name in PRESETS}
    assert {name: getattr(Policy, name)() for name in PRESETS} == found
    assert {name: policy.name for name, policy in found.items()} == {name: name for name in PRESETS}
    fields = ("admit", "epochs", "first", "window", "late", "gaps", "wrap", "max_jump")
    assert {name: tuple(getattr(policy, it) for it in fields) for name, policy in found.items()} == {
        "any_order": ("any", "key", "any", 5, "out_of_order", "report", 2**31, None),
        "in_order": ("forward", "fence", "any", 5, "out_of_order", "report", 2**31, None),
        "kafka": ("next", "fence", "any", 5, "out_of_order", "report", 2**31, None),
        "strict": ("next", "fence", "zero", 1, "out_of_order", "report", 2**31, None),
        "watermark": ("forward", "ignore", "any", 5, "duplicate", "normal", None, None),
        "kafka_offsets": ("any", "ignore", "any", 5, "out_of_order", "normal", None, None),
    }
    with_epochs, without = Columns(), Columns(epoch=None)
    offsets = Columns(pid="topic", epoch=None, seq="offset")
    assert [policy.columns for policy in found.values()] == [with_epochs] * 4 + [without, offsets]


def test_a_policy_is_a_value() -> None:
    one, same = Policy.any_order(), Policy.kafka().replace(admit="any", epochs="key")
    assert one == same
    assert hash(one) == hash(same)
    assert same.name == "any_order"
    other = one.replace(window=6)
    assert other != one
    assert other.name is None
    assert len({one, same, other}) == 2
    assert one.replace() == one
    assert one.replace(columns=Columns(seq="n")) != one
    for again in (pickle.loads(pickle.dumps(other)), copy.copy(other), copy.deepcopy(other)):
        assert again == other
        assert hash(again) == hash(other)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.window = 7  # type: ignore[misc]
    assert eval(repr(other), {"Policy": Policy, "Columns": Columns}) == other
    assert one.rules == (
        "admit=any epochs=key first=any window=5 late=out_of_order gaps=report wrap=2147483648 max_jump=none "
        "reach=none intervals_max=none"
    )


def test_columns_follow_the_epochs_of_a_policy() -> None:
    assert Policy.any_order().replace(epochs="ignore").columns == Columns(epoch=None)
    assert Policy.watermark().replace(epochs="key").columns == Columns()
    named = Columns(pid="who", seq="n")
    assert Policy.any_order().replace(columns=named).replace(epochs="ignore").columns == Columns(
        pid="who", epoch=None, seq="n"
    )
    assert Policy.watermark().replace(epochs="key", columns=named).columns == named


def test_columns_are_a_value() -> None:
    scoped = Columns(pid=["cluster", "pid"], partition=("topic", "partition"))  # type: ignore[arg-type]
    assert scoped == Columns(pid=("cluster", "pid"), partition=("topic", "partition"))
    assert hash(scoped) == hash(pickle.loads(pickle.dumps(scoped)))
    assert scoped.names == ("cluster", "pid", "epoch", "topic", "partition", "seq")
    assert Columns(epoch=None, partition=None).names == ("pid", "seq")
    assert Columns().parts("pid") == ("pid",)
    assert Columns(partition=None).parts("partition") == ()
    assert Columns(partition=None).read(("timestamp",)) == ("pid", "epoch", "seq", "timestamp")
    assert Columns(epoch=None, timestamp="at").read(("timestamp",)) == ("pid", "partition", "seq", "at")
    assert Columns(timestamp="at").read(()) == Columns().names


def test_a_snapshot_contains_the_policy() -> None:
    policies = [
        Policy.kafka().replace(window=9, wrap=None, first="zero"),
        Policy.in_order().replace(late="duplicate", gaps="normal", max_jump=77, wrap=4),
        Policy.any_order().replace(columns=Columns(pid=("a", "ü"), epoch="e", partition=None, seq='s"', timestamp="t")),
        Policy.in_order().replace(reach=5, intervals_max=9),
    ]
    for policy in policies:
        assert StateTable.restore(StateTable(policy).snapshot()).policy == policy


# Verdicts


def test_codes_of_verdicts_never_change() -> None:
    assert {verdict.name: (int(verdict), verdict.kafka_error, verdict.is_kept) for verdict in Verdict} == {
        "ACCEPTED": (0, 0, True),
        "DUPLICATE": (1, 0, False),
        "OUT_OF_ORDER": (2, 45, False),
        "FENCED": (3, 47, False),
        "INVALID_TXN_STATE": (4, 48, False),
        "COORDINATOR_FENCED": (5, 52, False),
        "UNTRACKED": (6, None, True),
        "FORGOTTEN": (7, None, False),
        "CONFLICT": (8, None, False),
    }
    assert Verdict(3) is Verdict.FENCED
    assert pickle.loads(pickle.dumps(Verdict.FENCED)) is Verdict.FENCED


def test_counts_name_every_verdict() -> None:
    table = StateTable("kafka")
    verdicts = table.apply(rows((7, 1, 0, 5), (7, 1, 0, 5), (7, 1, 0, 9), (7, 0, 0, 6), (-1, 0, 0, 0), (7, 1, 0, 6)))
    assert list(verdicts.counts) == [it for it in Verdict if it != Verdict.CONFLICT]
    assert all(type(it) is Verdict for it in verdicts.counts)
    assert {verdict.name: count for verdict, count in verdicts.counts.items() if count} == {
        "ACCEPTED": 2,
        "DUPLICATE": 1,
        "OUT_OF_ORDER": 1,
        "FENCED": 1,
        "UNTRACKED": 1,
    }
    assert sum(verdicts.counts.values()) == len(verdicts) == 6
    assert verdicts.stale_epoch == 1
    assert pa.table(verdicts.stale).to_pylist() == [{"pid": 7, "partition": 0, "epoch": 0, "count": 1}]
    assert verdicts.border == 0
    assert pa.array(verdicts.expected).to_pylist() == [None, None, 6, None, None, None]


def test_rows_at_the_border_of_the_wrap_are_counted() -> None:
    verdicts = StateTable(Policy.any_order().replace(wrap=16)).apply(rows((7, 0, 0, 14), (7, 0, 0, 2), (7, 0, 0, 3)))
    assert verdicts.counts[Verdict.ACCEPTED] == 3
    assert verdicts.border == 1


def test_impossible_spans_are_refused() -> None:
    """Lines are what errors name, and nothing changes."""

    def of_one_key(seqs: list[int]) -> pa.Table:
        return rows(*((7, 0, 0, seq) for seq in seqs))

    table = fp.StateTable("any_order")
    table.apply(of_one_key([0, 1]))
    before = table.snapshot()

    def lines(lengths: list[int], seq: list[int]) -> pa.Table:
        return of_one_key(seq).append_column("_length", pa.array(lengths))

    for bad, problem in [
        (lines([1, 0], [5, 9]), "column 'seq', row 1: a span of 0 rows from 9"),
        (lines([1, 3], [5, 2**31 - 2]), "last row within 0..=2147483647"),
        (lines([1, -1], [5, 9]), "column '_length', row 1: value -1 is outside 1..=4294967295"),
        (lines([2**32 - 1, 1], [0, 9]), "column 'seq', row 0: a span of 4294967295 rows"),
        (of_one_key([1]), "column '_length': missing"),
    ]:
        with pytest.raises(fp.BatchError, match=re.escape(problem)):
            table.apply_spans(bad)
        assert table.snapshot() == before
    verdicts = table.apply_spans(lines([3, 2], [0, 7]))
    assert pa.array(verdicts.verdict).to_pylist() == [1, 1, 0, 0, 0]
    assert pa.table(verdicts.missing).to_pylist()[0]["count"] == 4
