"""Committed, aborted and open rows: on logs that a broker wrote, compared with their truth, and on any rows."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from fencepost.kafka import TransactionIndex
from support.kafka_logs import DATA, read_csv, rows_of

TRUTH = json.loads(gzip.decompress((DATA / "ground_truth.json.gz").read_bytes()))
# The topics with transactions: all others are of one kind of row only.
PARTITIONS = ["carts-0", "events-0", "orders-0", "orders-1", "payments-0", "payments-1"]
KINDS = {0: "abort", 1: "commit"}
HEADER_BYTES = 61

SCHEMA = pa.schema(
    {
        "topic": pa.utf8(),
        "partition": pa.int32(),
        "base_offset": pa.int64(),
        "last_offset": pa.int64(),
        "pid": pa.int64(),
        "epoch": pa.int16(),
        "max_timestamp": pa.int64(),
        "transactional": pa.bool_(),
        "control": pa.utf8(),
    }
)


def varint_end(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1


def marker_kind(log: bytes, position: int) -> str:
    """The second number of the key of a marker's only record."""
    at = varint_end(log, position + HEADER_BYTES) + 1  # length, attributes
    for _ in ("timestamp delta", "offset delta", "key length"):
        at = varint_end(log, at)
    return KINDS[int.from_bytes(log[at + 2 : at + 4], "big")]


def rows_in(file: str, name: str) -> list[dict[str, str]]:
    """The rows about a partition folder in a truth file."""
    return [row for row in read_csv(file) if row["file"].startswith(f"{name}/")]


def read_log(name: str) -> pa.Table:
    """The batches of a partition folder, of all its segments, with the names that read_batches gives."""
    topic, _, partition = name.rpartition("-")
    rows = []
    for row in rows_in("batches.csv", name):
        is_control = row["control"] == "true"
        log = (DATA / row["file"]).read_bytes() if is_control else b""
        rows.append(
            {
                "topic": topic,
                "partition": int(partition),
                "base_offset": int(row["base_offset"]),
                "last_offset": int(row["last_offset"]),
                "pid": int(row["producer_id"]),
                "epoch": int(row["producer_epoch"]),
                "max_timestamp": int(row["timestamp"]),
                "transactional": row["transactional"] == "true",
                "control": marker_kind(log, int(row["position"])) if is_control else None,
            }
        )
    assert rows
    return pa.Table.from_pylist(rows, schema=SCHEMA)


LOGS = {name: read_log(name) for name in PARTITIONS}


def outcomes(index: TransactionIndex, batches: Any, columns: fp.BatchColumns | None = None) -> list[str]:
    table = pa.table(index.apply(batches, columns))
    assert table.schema == pa.schema([pa.field("outcome", pa.utf8(), nullable=False)])
    return table.column("outcome").to_pylist()


def aborted(index: TransactionIndex, partition: Any) -> list[tuple[int, ...]]:
    return [tuple(row.values()) for row in rows_of(index.aborted(partition))]


def broker_aborted(name: str) -> list[tuple[int, ...]]:
    """What the broker's own indexes list, segment by segment."""
    fields = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    return [tuple(int(row[field]) for field in fields) for row in rows_in("aborted.csv", name)]


# What a broker wrote


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_aborted_transactions_are_those_of_the_broker(name: str) -> None:
    index = TransactionIndex()
    index.apply(LOGS[name])
    expected = broker_aborted(name)
    assert len(expected) >= 2
    assert aborted(index, int(name[-1])) == expected


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_last_stable_offset_is_where_a_consumer_stopped(name: str) -> None:
    index = TransactionIndex()
    index.apply(LOGS[name])
    partition = int(name[-1])
    assert index.last_stable_offset(partition) == TRUTH["read_committed_position"][name]
    assert index.log_end(partition) == TRUTH["watermarks"][name]["high"]
    is_open = TRUTH["read_committed_position"][name] < TRUTH["watermarks"][name]["high"]
    assert index.first_unstable_offset(partition) == (TRUTH["read_committed_position"][name] if is_open else None)


def committed_offsets(name: str, index: TransactionIndex, outcome: Sequence[str]) -> list[int]:
    log = LOGS[name]
    end = index.last_stable_offset(int(name[-1]))
    assert end is not None
    spans = zip(*(log.column(it).to_pylist() for it in ("base_offset", "last_offset", "control")), outcome, strict=True)
    kept = (span for *span, control, it in spans if control is None and it in ("committed", "none") and span[0] < end)
    return [offset for first, last in kept for offset in range(first, last + 1)]


@pytest.mark.parametrize("name", PARTITIONS)
def test_committed_rows_are_those_of_a_real_consumer(name: str) -> None:
    index = TransactionIndex()
    outcome = outcomes(index, LOGS[name])
    topic, _, partition = name.rpartition("-")
    got = [it["offset"] for it in TRUTH["read_committed"] if (it["topic"], it["partition"]) == (topic, int(partition))]
    assert len(got) >= 9
    assert committed_offsets(name, index, outcome) == sorted(got)


def test_outcomes_agree_with_those_that_producers_know() -> None:
    """The log has the same outcome as the producer of each transaction; no acknowledged row is missing."""
    compared = 0
    for name, log in LOGS.items():
        spans = zip(
            *(log.column(it).to_pylist() for it in ("base_offset", "last_offset")),
            outcomes(TransactionIndex(), log),
            strict=True,
        )
        by_offset = {at: outcome for first, last, outcome in spans for at in range(first, last + 1)}
        for record in TRUTH["produced"]:
            if f"{record['topic']}-{record['partition']}" != name or record["outcome"] not in ("committed", "aborted"):
                continue
            if record["offset"] is not None and record["offset"] >= 0:
                assert by_offset[record["offset"]] == record["outcome"], record
                compared += 1
    assert compared > 300


def test_one_transaction_is_open() -> None:
    index = TransactionIndex()
    outcome = outcomes(index, LOGS["carts-0"])
    times = LOGS["carts-0"].column("max_timestamp").to_pylist()
    last = max(row for row, it in enumerate(outcome) if it == "open")
    expected = {"partition": 0, "pid": 1007, "epoch": 0, "first_offset": 15, "last_offset": 18}
    assert rows_of(index.open()) == [{**expected, "last_timestamp": times[last]}]
    for name in PARTITIONS[1:]:
        index = TransactionIndex()
        assert "open" not in outcomes(index, LOGS[name])
        assert rows_of(index.open()) == []


# How rows are cut into calls


def pieces(table: pa.Table, seed: int) -> Iterator[pa.Table]:
    chance = random.Random(seed)
    at = 0
    while at < len(table):
        count = chance.randint(1, 12)
        yield table.slice(at, count)
        at += count


def rows_within(log: pa.Table, pid: int, first_offset: int, last_offset: int) -> list[int]:
    """The rows of a producer with offsets in a range, without a marker at its end."""
    columns = zip(log.column("pid").to_pylist(), log.column("base_offset").to_pylist(), strict=True)
    return [at for at, (own, offset) in enumerate(columns) if own == pid and first_offset <= offset < last_offset]


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("seed", range(5))
def test_outcomes_do_not_depend_on_calls_once_open_rows_are_resolved(name: str, seed: int) -> None:
    whole, cut = TransactionIndex(), TransactionIndex()
    expected = outcomes(whole, LOGS[name])
    found: list[str] = []
    for piece in pieces(LOGS[name], seed):
        found += outcomes(cut, piece)
        for row in rows_of(cut.resolved()):
            for at in rows_within(LOGS[name], row["pid"], row["first_offset"], row["last_offset"]):
                found[at] = row["outcome"] if found[at] == "open" else found[at]
    assert found == expected
    assert rows_of(cut.open()) == rows_of(whole.open())
    assert rows_of(cut.aborted(int(name[-1]))) == rows_of(whole.aborted(int(name[-1])))


def log_rows(*rows: tuple[int, int | None, str | None]) -> pa.Table:
    """pid, offset, control."""
    pids, offsets, controls = zip(*rows, strict=True)
    return pa.table(
        {
            "pid": pa.array(pids, pa.int64()),
            "epoch": pa.array([0] * len(rows), pa.int16()),
            "partition": pa.array([0] * len(rows), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "control": pa.array(controls, pa.utf8()),
        }
    )


def test_resolved_is_of_the_last_call_alone() -> None:
    index = TransactionIndex()
    assert rows_of(index.resolved()) == []
    assert outcomes(index, log_rows((7, 0, None), (8, 1, None))) == ["open", "open"]
    assert outcomes(index, log_rows((7, 2, "abort"), (9, 3, None), (9, 4, "commit"))) == ["none", "committed", "none"]
    expected = {"partition": 0, "pid": 7, "first_offset": 0, "last_offset": 2, "outcome": "aborted"}
    assert rows_of(index.resolved()) == [expected]
    assert rows_of(index.resolved()) == [expected], "a question does not act"
    with pytest.raises(fp.BatchError):
        index.apply(log_rows((8, 0, None)))
    assert rows_of(index.resolved()) == [expected], "a call that fails leaves no trace"
    index.apply(log_rows((7, 5, "commit")))
    assert rows_of(index.resolved()) == []


def test_aborted_transactions_can_be_forgotten() -> None:
    index = TransactionIndex()
    index.apply(log_rows((7, 0, None), (7, 1, "abort"), (7, 2, None), (7, 3, "abort")))
    before = index.memory_bytes
    assert index.forget_aborted(0, 3) == 1
    assert aborted(index, 0) == [(7, 2, 3, 4)]
    assert (index.forget_aborted(0, 4), index.forget_aborted(1, 4)) == (1, 0)
    assert aborted(index, 0) == []
    assert index.memory_bytes < before
    assert index.log_end(0) == 4


# Which rows come in


SOME = log_rows((7, 0, None), (7, 1, None), (8, 3, None), (-1, 4, None), (7, 5, "abort"), (-1, 6, "other"))
SOME_OUTCOMES = ["aborted", "aborted", "open", "none", "none", "none"]


def as_mapping(table: pa.Table) -> dict[str, Any]:
    columns = {name: table.column(name).to_numpy() for name in ("pid", "epoch", "partition", "offset")}
    return {**columns, "control": table.column("control")}


def as_dictionaries(table: pa.Table) -> pa.Table:
    return pa.table({name: table.column(name).combine_chunks().dictionary_encode() for name in table.column_names})


def as_wide_types(table: pa.Table) -> pa.Table:
    return pa.table({name: table.column(name).cast(pa.int64()) for name in table.column_names[:-1]}).append_column(
        "control", table.column("control").cast(pa.large_utf8())
    )


def as_chunks(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1, 3), table.slice(4)])


SHAPES: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "reader": lambda table: table.to_reader(2),
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "sliced": lambda table: pa.concat_tables([table, table]).combine_chunks().slice(0, len(table)),
    "chunks": as_chunks,
    "polars": pl.from_arrow,
    "mapping": as_mapping,
    "dictionaries": as_dictionaries,
    "wide": as_wide_types,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_from_every_shape(shape: str) -> None:
    index = TransactionIndex()
    assert outcomes(index, SHAPES[shape](SOME)) == SOME_OUTCOMES
    assert aborted(index, 0) == [(7, 0, 5, 3)]
    assert index.last_stable_offset(0) == 3


def test_no_rows_say_nothing() -> None:
    index = TransactionIndex()
    assert outcomes(index, SOME.slice(0, 0)) == []
    assert (index.last_stable_offset(0), index.first_unstable_offset(0), index.log_end(0)) == (None, None, None)
    assert aborted(index, 0) == []
    texts = SOME.set_column(2, "partition", pa.array(["a"] * len(SOME)))
    assert outcomes(index, texts) == SOME_OUTCOMES, "types are fixed by rows, not by none"


def test_columns_have_the_names_that_they_are_given() -> None:
    names = ["producer", "incarnation", "shard", "first", "kind"]
    columns = fp.BatchColumns(pid="producer", epoch="incarnation", partition="shard", offset="first", control="kind")
    assert outcomes(TransactionIndex(), SOME.rename_columns(names), columns) == SOME_OUTCOMES
    flagged = SOME.append_column("flag", pa.array([True, False, False, None, True, False]))
    columns = fp.BatchColumns(transactional="flag")
    expected = ["aborted", "none", "none", "none", "none", "none"]
    assert outcomes(TransactionIndex(), flagged, columns) == expected
    assert outcomes(TransactionIndex(), flagged) == SOME_OUTCOMES, "a column by another name is not read"


@pytest.mark.parametrize("name", PARTITIONS[:3])
def test_the_columns_of_a_log_are_found(name: str) -> None:
    log = LOGS[name]
    given = outcomes(TransactionIndex(), log, fp.BatchColumns.kafka_log())
    assert outcomes(TransactionIndex(), log) == given
    renamed = log.rename_columns({"base_offset": "offset", "max_timestamp": "timestamp"})
    assert outcomes(TransactionIndex(), renamed) == given
    assert set(given) >= {"committed", "aborted", "none"}


def test_partitions_of_several_topics_in_one_index() -> None:
    index = TransactionIndex()
    columns = fp.BatchColumns.kafka_log().replace(partition=("topic", "partition"))
    mixed = pa.concat_tables(LOGS.values())
    # All partitions take turns, each in its order.
    turns = np.argsort(np.concatenate([np.arange(len(log)) for log in LOGS.values()]), kind="stable")
    outcome = outcomes(index, mixed.take(turns), columns)
    singly = [it for log in LOGS.values() for it in outcomes(TransactionIndex(), log)]
    assert [outcome[at] for at in np.argsort(turns)] == singly
    for name in PARTITIONS:
        key = (name[:-2], int(name[-1]))
        assert aborted(index, key) == broker_aborted(name)
        assert index.last_stable_offset(key) == TRUTH["read_committed_position"][name]
    (open_now,) = rows_of(index.open())
    assert (open_now["partition_0"], open_now["partition_1"], open_now["pid"]) == ("carts", 0, 1007)
    with pytest.raises(fp.BatchError, match=r"column 'partition': 0 is no.* key of this table"):
        index.last_stable_offset(0)
    assert index.last_stable_offset(("carts", 1)) is None


def test_rows_without_a_partition_are_of_one() -> None:
    index = TransactionIndex()
    assert outcomes(index, SOME.drop_columns("partition"), fp.BatchColumns(partition=None)) == SOME_OUTCOMES
    assert (index.last_stable_offset(None), index.last_stable_offset(0)) == (3, None)
    assert [row["partition"] for row in rows_of(index.open())] == [None]
    unknown = SOME.set_column(2, "partition", pa.array([None] * len(SOME), pa.int32()))
    unknown_type = SOME.set_column(2, "partition", pa.nulls(len(SOME)))
    for rows in (unknown, unknown_type):
        index = TransactionIndex()
        assert outcomes(index, rows) == SOME_OUTCOMES
        assert aborted(index, None) == [(7, 0, 5, 3)]


def test_columns_without_a_type_hold_nothing() -> None:
    data = SOME.slice(0, 4).set_column(4, "control", pa.nulls(4))
    assert outcomes(TransactionIndex(), data) == ["open", "open", "open", "none"]
    assert outcomes(TransactionIndex(), data.append_column("transactional", pa.nulls(4))) == ["none"] * 4


def test_timestamps_of_any_unit() -> None:
    for times, expected in (
        (pa.array([1, 2, 3], pa.int64()), 3),
        (pa.array([1, 2, None], pa.int64()), None),
        (pa.array([1_000, 2_000, 3_999], pa.timestamp("us")), 3),
    ):
        index = TransactionIndex()
        index.apply(SOME.slice(0, 3).append_column("timestamp", times))
        assert rows_of(index.open())[1]["last_timestamp"] == expected


def test_without_a_last_offset_the_offset_is_the_last() -> None:
    index = TransactionIndex()
    last = pa.array([None, 2, 3, None, None, None], pa.int64())
    assert outcomes(index, SOME.append_column("last_offset", last)) == SOME_OUTCOMES
    assert index.log_end(0) == 7


# What is refused


def changed(column: str, row: int, value: Any) -> pa.Table:
    values = SOME.column(column).to_pylist()
    values[row] = value
    kind = SOME.schema.field(column).type
    return SOME.set_column(SOME.column_names.index(column), column, pa.array(values, kind))


REFUSED: dict[str, tuple[Any, str, int | None, str]] = {
    "an offset that does not rise": (
        *(changed("offset", 2, 1), "offset", 2),
        "value 1 .*below 2",
    ),
    "no offset": (
        *(changed("offset", 2, None), "offset", 2),
        "null, but every row",
    ),
    "no column of offsets": (
        *(SOME.drop_columns("offset"), "offset", None),
        "missing.* pid, epoch, partition, control$",
    ),
    "no column of markers": (
        *(SOME.drop_columns("control"), "control", None),
        "missing.* pid, epoch, partition, offset$",
    ),
    "an unknown marker": (
        *(changed("control", 4, "ABORT"), "control", 4),
        "value 'ABORT' .* commit, abort, empty, other$",
    ),
    "markers as booleans": (
        *(SOME.set_column(4, "control", pa.array([False] * 6)), "control", None),
        "is of type Boolean, strings",
    ),
    "a marker of no producer": (
        *(changed("pid", 4, None), "control", 4),
        "marker needs a producer",
    ),
    "a producer by name": (
        *(SOME.set_column(0, "pid", pa.array(["a"] * 6)), "pid", None),
        "is of type Utf8, integers",
    ),
    "no epoch": (
        *(changed("epoch", 1, None), "epoch", 1),
        "null, but a row",
    ),
    "flags as numbers": (
        *(SOME.append_column("transactional", pa.array([1] * 6)), "transactional", None),
        "is of type Int64, booleans",
    ),
    "a range that ends before it begins": (
        *(SOME.append_column("last_offset", pa.array([0, 0, 3, 4, 5, 6])), "last_offset", 1),
        r"value 0 .* 1\.\.=9223372036854775806\b",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_rows_are_refused_and_leave_no_trace(name: str) -> None:
    rows, column, row, problem = REFUSED[name]
    where = f"column '{column}'" if row is None else f"column '{column}', row {row}"
    index = TransactionIndex()
    for _ in range(2):
        with pytest.raises(fp.BatchError, match=f"{where}: .*{problem}") as refused:
            index.apply(rows)
        assert (refused.value.column, refused.value.row) == (column, row)
    assert index.log_end(0) is None
    assert outcomes(index, SOME) == SOME_OUTCOMES


def test_rows_of_a_later_chunk_are_counted_from_the_first() -> None:
    broken = pa.concat_tables([SOME.slice(0, 3), changed("offset", 4, 0).slice(3)])
    with pytest.raises(fp.BatchError, match=r"column 'offset', row 4: value 0 is below 5") as refused:
        TransactionIndex().apply(broken)
    assert refused.value.row == 4


def test_errors_name_the_columns_of_the_input() -> None:
    renamed = changed("offset", 2, 1).rename_columns({"offset": "first"})
    with pytest.raises(fp.BatchError, match=r"column 'first', row 2: ") as refused:
        TransactionIndex().apply(renamed, fp.BatchColumns(offset="first"))
    assert refused.value.column == "first"


def test_invalid_columns_of_a_transaction_index_are_refused() -> None:
    with pytest.raises(fp.PolicyError, match=r"BatchColumns\(control=None\)"):
        TransactionIndex().apply(SOME, fp.BatchColumns(control=None))
    with pytest.raises(fp.PolicyError, match=r"columns=Columns\(.*fencepost.BatchColumns"):
        TransactionIndex().apply(SOME, fp.Columns())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^rows of type int"):
        TransactionIndex().apply(7)  # type: ignore[arg-type]


def test_a_stream_may_ask_the_index_that_reads_it() -> None:
    index = TransactionIndex()
    asked = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in SOME.to_batches(max_chunksize=2):
            asked.append(index.log_end(0))
            yield batch

    reader = pa.RecordBatchReader.from_batches(SOME.schema, batches())
    assert outcomes(index, reader) == SOME_OUTCOMES
    assert asked == [None] * 3


def test_what_is_public_is_documented() -> None:
    methods = {name: it for name, it in vars(TransactionIndex).items() if not name.startswith("_")}
    assert len(methods) >= 9
    assert [name for name, it in methods.items() if not it.__doc__] == []
    assert TransactionIndex.__module__ == "fencepost.kafka"
    assert repr(TransactionIndex()).startswith("<TransactionIndex: 0 open transactions, ")
