"""`deduplicate`: the result has the type of the input, and only refused rows are removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import Columns, Policy, StateTable
from fencepost.dedup import SEEN
from support import daily
from support.frames import KINDS, OTHERS
from support.lake import with_column

ROWS = pa.table(
    {
        "payload": ["a", "b", "c", "b again", "nobody's", "f", "nobody's"],
        "pid": pa.array([7, 7, 8, 7, None, 7, -1], pa.int64()),
        "epoch": pa.array([0, 0, 0, 0, None, 1, 0], pa.int16()),
        "partition": pa.array([0, 0, 0, 0, 0, 0, 0], pa.int32()),
        "seq": pa.array([0, 1, 1, 1, None, 0, 0], pa.int32()),
    },
    metadata={"made by": "a test"},
)
KEPT = ["a", "b", "c", "nobody's", "f", "nobody's"]
# A second delivery: all of it again, and one row that is new.
LATER = pa.concat_tables([ROWS, ROWS[:1].set_column(4, "seq", pa.array([9], pa.int32()))])


def payload(kept: Any) -> list[str]:
    return kept["payload"].to_pylist() if hasattr(kept, "column_names") else list(kept["payload"])


@pytest.mark.parametrize("pid", range(8))
def test_many_rows_of_one_producer_in_any_order(pid: int) -> None:
    """Whether a table judges them is estimated from a sample of keys, which may have none of these."""
    seq = np.random.default_rng(pid).permutation(1 << 17)
    seq[-1] = seq[0]
    names = ("pid", "epoch", "partition")
    rows = pa.table({name: np.full(len(seq), pid, np.int16) for name in names} | {"seq": seq})
    assert fp.deduplicate(rows).equals(rows[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_has_the_type_of_the_input(kind: str) -> None:
    make, wanted = KINDS[kind]
    kept = fp.deduplicate(make(ROWS))
    assert type(kept) is wanted
    assert payload(kept) == KEPT
    if wanted in (pa.Table, pa.RecordBatch):
        assert kept.schema.equals(ROWS.schema, check_metadata=True)
    else:
        assert list(kept.columns) == ROWS.column_names
        assert str(kept.dtypes) == str(make(ROWS).dtypes)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_input_is_returned_as_arrow(kind: str) -> None:
    kept = fp.deduplicate(OTHERS[kind](ROWS))
    assert not isinstance(kept, pa.Table)
    assert hasattr(kept, "__arrow_c_stream__")
    assert pa.table(kept)["payload"].to_pylist() == KEPT
    assert pl.DataFrame(kept)["payload"].to_list() == KEPT
    assert pa.schema(kept).names == ROWS.column_names


@pytest.mark.parametrize("kind", KINDS | OTHERS)
def test_a_table_keeps_its_state_between_calls(kind: str) -> None:
    make = OTHERS.get(kind) or KINDS[kind][0]
    table = StateTable("any_order")
    for delivery, wanted in ((ROWS, KEPT), (LATER, ["nobody's", "nobody's", "a"]), (ROWS, ["nobody's", "nobody's"])):
        kept = fp.deduplicate(make(delivery), table=table)
        assert (pa.table(kept)["payload"].to_pylist() if kind in OTHERS else payload(kept)) == wanted
    assert len(table) == 3
    # Without it, each call is independent.
    assert fp.deduplicate(ROWS).num_rows == fp.deduplicate(ROWS).num_rows == len(KEPT)


@pytest.mark.parametrize("kind", KINDS | OTHERS)
def test_results_without_rows_keep_their_columns(kind: str) -> None:
    make = OTHERS.get(kind) or KINDS[kind][0]
    tracked = ROWS[:3]
    table = StateTable("any_order")
    table.apply(tracked)
    none = fp.deduplicate(make(tracked), table=table)
    assert pa.table(none).num_rows == 0
    assert pa.table(none).column_names == ROWS.column_names
    assert pa.table(fp.deduplicate(make(ROWS[:0]))).column_names == ROWS.column_names


def test_policies() -> None:
    assert fp.deduplicate(ROWS, "kafka")["payload"].to_pylist() == KEPT
    assert fp.deduplicate(ROWS, Policy.strict())["payload"].to_pylist() == ["a", "b", "nobody's", "f", "nobody's"]
    assert (
        fp.deduplicate(ROWS, table=StateTable("strict"))["payload"].to_pylist()
        == fp.deduplicate(ROWS, "strict")["payload"].to_pylist()
    )
    table = StateTable("strict")
    assert fp.deduplicate(ROWS, "strict", table=table).num_rows == 5
    assert fp.deduplicate(ROWS, Policy.strict(), table=table).num_rows == 2


def test_columns() -> None:
    renamed = ROWS.rename_columns(["payload", "who", "e", "shard", "n"])
    columns = Columns(pid="who", epoch="e", partition="shard", seq="n")
    for make, _ in KINDS.values():
        assert payload(fp.deduplicate(make(renamed), columns=columns)) == KEPT
        assert payload(fp.deduplicate(make(renamed), Policy.any_order().replace(columns=columns))) == KEPT
        table = StateTable(Policy.any_order().replace(columns=columns))
        assert payload(fp.deduplicate(make(renamed), table=table)) == KEPT
        with pytest.raises(fp.BatchError, match=r"column 'pid': missing.* columns payload, who, e, shard"):
            fp.deduplicate(make(renamed))


def test_a_policy_and_a_table_must_agree() -> None:
    table = StateTable("any_order")
    before = table.snapshot()
    for other in ("kafka", Policy.any_order().replace(window=6), Policy.any_order().replace(columns=Columns(seq="n"))):
        with pytest.raises(fp.PolicyError, match=r"another policy") as caught:
            fp.deduplicate(ROWS, other, table=table)
        assert table.snapshot() == before
    assert "columns.seq='seq' found, 'n' expected" in caught.value.message
    for unknown in ("broker", 7):
        with pytest.raises(fp.PolicyError):
            fp.deduplicate(ROWS, unknown)  # type: ignore[arg-type]


def test_a_bad_call_leaves_the_table() -> None:
    table = StateTable("any_order")
    fp.deduplicate(ROWS, table=table)
    before = table.snapshot()
    bad = pa.concat_tables([LATER, LATER[:1].set_column(4, "seq", pa.array([-1], pa.int32()))])
    for make in [*(it for it, _ in KINDS.values()), *OTHERS.values()]:
        with pytest.raises(fp.BatchError, match=r"column 'seq', row 8: value -1 is outside"):
            fp.deduplicate(make(bad), table=table)
        assert table.snapshot() == before
    for nonsense in (5, [1, 2], "rows", np.zeros(3), pa.array([1])):
        with pytest.raises(TypeError, match="are not tabular"):
            fp.deduplicate(nonsense, table=table)


def pandas_rows(**more: Any) -> pd.DataFrame:
    columns = {"pid": [7, 7, 7, -1], "epoch": [0] * 4, "partition": [0] * 4, "seq": [0, 1, 1, 0]}
    return pd.DataFrame(columns | more)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_after_the_update_says_that_a_repeated_call_would_drop_the_rows(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    rows = pl.DataFrame({"pid": [7, 7], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 1]})
    for table, notes in ((StateTable("any_order"), [SEEN]), (None, [])):
        with monkeypatch.context() as patch:
            patch.setattr(pl.DataFrame, "filter", fail)
            with pytest.raises(error) as caught:
                fp.deduplicate(rows, table=table)
        assert getattr(caught.value, "__notes__", []) == notes
        assert len(fp.deduplicate(rows, table=table)) == (2 if table is None else 0)


@pytest.mark.parametrize(
    "index",
    [
        pd.Index(["w", "x", "y", "z"]),
        pd.Index([30, 10, 30, 20], name="number"),
        pd.date_range("2026-01-01", periods=4, name="day"),
        pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["letter", "number"]),
        pd.Index([4, 3, 2, 1], name="seq"),
    ],
    ids=["text", "with repeats", "dates", "levels", "named as a column"],
)
def test_an_index_of_pandas_stays(index: pd.Index) -> None:
    rows = pandas_rows(payload=list("abcd")).set_index(index)
    kept = fp.deduplicate(rows)
    pd.testing.assert_frame_equal(kept, rows.iloc[[0, 1, 3]])
    assert kept.index.equals(index[[0, 1, 3]])
    assert kept.index.names == index.names


def test_columns_of_pandas_that_arrow_cannot_represent_stay() -> None:
    """Only the identity columns are converted: other columns may contain objects of any kind."""
    things = [object(), {1}, lambda: None, 3 + 4j]
    rows = pandas_rows(things=things, mixed=[1, "a", None, b"b"])
    kept = fp.deduplicate(rows)
    assert list(kept["things"]) == [things[0], things[1], things[3]]
    assert list(kept["mixed"]) == [1, "a", b"b"]
    rows[0] = "a column whose name is no text"
    assert list(fp.deduplicate(rows)[0]) == ["a column whose name is no text"] * 3
    assert rows.shape == (4, 7), "the input is as it was"


@pytest.mark.parametrize(
    "column",
    [pl.lit(None), pl.struct(pl.lit(None)), pl.Series([[], [None]] * 3 + [[]]), pl.lit(1).cast(pl.Int128)],
    ids=["null", "struct", "list", "int128"],
)
def test_columns_of_polars_that_arrow_for_rust_cannot_import_stay(column: Any) -> None:
    rows = pl.DataFrame(ROWS).with_columns(column.alias("more"))
    for some in (rows, rows.lazy()):
        kept = fp.deduplicate(some, table=StateTable("any_order"))
        assert (kept.columns, payload(kept)) == (rows.columns, KEPT)


@pytest.mark.parametrize("kind", [pl.Int128, pl.Object, pl.List(pl.Int128), pl.Struct({"a": pl.Int128})], ids=str)
def test_columns_of_types_that_only_polars_has_are_named(kind: Any) -> None:
    rows = pl.DataFrame(ROWS).with_columns(seq=pl.Series([None] * len(ROWS), dtype=kind))
    for call in (fp.deduplicate, fp.audit, fp.explain, fp.advise, StateTable("any_order").apply):
        with pytest.raises(fp.BatchError, match=r"'seq': .*(Int128|Object).* Arrow") as caught:
            call(rows)
        assert caught.value.column == "seq"
        with pytest.raises(fp.BatchError, match=r"column 'seq': missing; .* pid"):
            (StateTable("any_order").apply if call is fp.advise else call)(rows.rename({"seq": "more"}))


def test_a_column_of_nulls_in_polars_is_not_a_producer() -> None:
    rows = pl.DataFrame(ROWS).with_columns(pid=pl.lit(None))
    table = StateTable("any_order")
    table.apply(ROWS.set_column(1, "pid", pa.array(["a text"] * len(ROWS))).filter(ROWS["epoch"].is_valid()))
    assert len(fp.deduplicate(rows)) == len(fp.deduplicate(rows, table=table)) == len(rows)


def test_a_frame_that_pandas_cannot_filter_leaves_the_table() -> None:
    """An error after the update would make the rows of the next attempt repeats."""
    zeros = {name: [0] for name in ("pid", "epoch", "partition", "seq")}
    rows = pa.table({**zeros, "note": pa.array(["x"], pa.string_view())})
    frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
    table, notes = StateTable("any_order"), []
    try:
        kept = fp.deduplicate(frame, table=table)
    except pa.ArrowNotImplementedError as error:
        notes = getattr(error, "__notes__", [])
        kept = fp.deduplicate(rows, table=table)
    assert (len(kept), notes) == (1, [])  # nothing to restore


def test_chunks_that_pandas_cannot_join_leave_the_table() -> None:
    """pandas joins the chunks of a column to filter it; Arrow cannot join these dictionaries."""
    chunks = [pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([word, None])) for word in "ab"]
    zeros = {name: [0] * 6 for name in ("pid", "epoch", "partition")}
    rows = pa.table({**zeros, "seq": [0, 1, 2, 2, 3, 4], "note": pa.chunked_array(chunks)})
    frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
    table = StateTable("any_order")
    try:
        kept = fp.deduplicate(frame, table=table)
    except pa.ArrowInvalid:
        kept = fp.deduplicate(rows, table=table)
    assert len(kept) == 5


def test_rows_that_no_filter_supports_leave_the_table() -> None:
    """pyarrow cannot filter views, and Arrow for Rust cannot import slices of structs in structs."""
    inner = pa.StructArray.from_arrays([pa.array(range(9))], names=["a"])
    nested = pa.StructArray.from_arrays([inner], names=["b"])
    zeros = {name: [0] * 9 for name in ("pid", "epoch", "partition")}
    columns = {**zeros, "seq": range(9), "nested": nested}
    rows = pa.table({**columns, "view": pa.array(["x"] * 9, pa.string_view())}).slice(5)
    for some in (rows, rows.combine_chunks().to_batches()[0]):
        table = StateTable("any_order")
        try:
            assert len(fp.deduplicate(some, table=table)) == 4
        except BaseException:  # a panic of Rust is not an Exception
            assert len(table) == 0


class Unhashable(pa.ExtensionType):  # as all types that Python code defines
    def __init__(self) -> None:
        super().__init__(pa.int64(), "fencepost.test")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Unhashable:
        return cls()


def test_columns_of_extension_types_stay() -> None:
    payload = pa.ExtensionArray.from_storage(Unhashable(), pa.array(range(len(ROWS))))
    rows = ROWS.append_column("more", payload)
    for some in (rows, rows.to_batches()[0]):
        assert fp.deduplicate(some, table=StateTable("any_order")).schema == rows.schema


def test_subclasses_keep_their_class() -> None:
    class Own(pd.DataFrame):
        @property
        def _constructor(self) -> type[Own]:
            return Own

    assert type(fp.deduplicate(Own(pandas_rows()))) is Own


def test_pandas_makes_floats_of_integers_with_nulls() -> None:
    rows = pandas_rows()
    rows.loc[1, "seq"] = None
    with pytest.raises(fp.BatchError, match=r"column 'seq'.*Float64.*pandas.*nulls.*the dtype Int64$") as caught:
        fp.deduplicate(rows)
    assert (caught.value.column, caught.value.row) == ("seq", None)


def test_chunks_of_polars_and_pyarrow() -> None:
    many = [ROWS[at : at + 1] for at in range(len(ROWS))]
    assert fp.deduplicate(pa.concat_tables(many))["payload"].to_pylist() == KEPT
    frames = pl.concat([pl.DataFrame(one) for one in many], rechunk=False)
    assert frames.n_chunks() > 1
    assert fp.deduplicate(frames)["payload"].to_list() == KEPT


@pytest.mark.parametrize(
    ("policy", "columns", "expected"),
    [
        ("kafka_offsets", None, lambda truth: truth["rows_distinct"]),
        (
            "any_order",
            fp.Columns(partition=("topic", "partition")),
            lambda truth: truth["rows_distinct_tracked"] + truth["rows_untracked_landed"],
        ),
    ],
)
def test_a_real_landing_zone_keeps_the_rows_of_its_truth(
    policy: str, columns: fp.Columns | None, expected: Callable[[dict[str, int]], int]
) -> None:
    """Files of a broker, real producers and a sink that was killed several times, file by file and all at once."""
    zone = Path(__file__).parents[1] / "data" / "landing-zone"
    truth = json.loads((zone / "truth.json").read_text())
    files = [pq.read_table(path) for path in sorted((zone / "landing").glob("*.parquet"))]
    rows = pa.concat_tables(files)
    assert rows.num_rows == truth["rows_landed"]
    kept = fp.deduplicate(rows, policy, columns)
    assert kept.num_rows == expected(truth)
    table = fp.StateTable(policy)
    assert pa.concat_tables(fp.deduplicate(file, columns=columns, table=table) for file in files).equals(kept)


# The columns of usual layouts


LAYOUTS = {
    "kafka": ["topic", "partition", "offset"],
    "kafka-connect": ["kafka_topic", "kafka_partition", "kafka_offset"],
    "hudi": ["_hoodie_kafka_source_partition", "_hoodie_kafka_source_offset"],
}


@pytest.mark.parametrize("preset", LAYOUTS)
def test_offsets_by_the_name_of_their_layout(preset: str) -> None:
    *keys, offset = LAYOUTS[preset]
    rows = pa.table({name: ["0", "0", "0"] for name in keys} | {offset: [5, 6, 5]})
    assert fp.deduplicate(rows, "kafka_offsets", preset)[offset].to_pylist() == [5, 6]
    assert fp.audit(rows, "kafka_offsets", preset).count_findings() == {"duplicate": 1}


def test_a_table_accepts_the_name_of_a_layout() -> None:
    rows = pa.table({"kafka_topic": ["a", "a"], "kafka_partition": [0, 0], "kafka_offset": [5, 5]})
    table = StateTable("kafka_offsets")
    assert table.apply(rows, "kafka-connect").counts[fp.Verdict.DUPLICATE] == 1
    assert table.check(rows, Columns.preset("kafka-connect")).counts[fp.Verdict.DUPLICATE] == 2
    assert len(pa.array(fp.shards(rows, 2, "kafka-connect"))) == 2


def test_producers_that_number_partitions_of_topics() -> None:
    rows = pa.table(
        {"topic": ["a", "b", "b"], "partition": [0, 0, 0], "pid": [1, 1, 1], "epoch": [0] * 3, "seq": [0] * 3}
    )
    assert fp.deduplicate(rows, columns="kafka-producer")["topic"].to_pylist() == ["a", "b"]
    with pytest.raises(fp.PolicyError, match="ignores epochs"):
        fp.deduplicate(rows, "kafka_offsets", "kafka-producer")


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_the_mask_alone_is_that_of_apply(kind: pa.DataType) -> None:
    pid = pa.array([3, 1, 3, 2, 3, 1, 1] * 50).cast(kind)
    rows = pa.table(
        {"pid": pid, "epoch": [0] * 350, "partition": [0] * 350, "seq": [row * 7 % 90 for row in range(350)]}
    )
    alone, whole = fp.StateTable("any_order"), fp.StateTable("any_order")
    for _ in range(2):
        assert pa.array(alone._keep(rows)).equals(pa.array(whole.apply(rows).kept))
    assert alone.snapshot() == whole.snapshot()
    with pytest.raises(fp.BatchError):
        alone._keep(rows.drop_columns("seq"))


MANY = 150_000
"""Rows of a call whose repeats are found by hash where that is sooner done."""

KEYS: dict[str, Callable[[Any], pa.Array]] = {
    "int": lambda pid: pa.array(np.where(pid == 0, -1, pid)),
    "null": lambda pid: pa.array(pid, mask=pid == 0),
    "text": lambda pid: pa.array([f"device-{number}" if number else None for number in pid]),
    "short text": lambda pid: pa.array([f"{number:x}" for number in pid], pa.large_string()),
    "long text": lambda pid: pa.array([f"{'é' * (number % 40)}{number}" for number in pid]).dictionary_encode(),
    "bytes": lambda pid: pa.array([b"\xff" * (number % 3) + b"%d" % number for number in pid], pa.binary()),
    "fixed bytes": lambda pid: pa.array([b"%09d" % number for number in pid], pa.binary(9)),
}


def many_rows(key: str, order: str) -> pa.Table:
    """One row in forty is a repeat. Keys 1 and 2 have rows on both sides of the border of the wrap."""
    rng = np.random.default_rng(7)
    pid = np.concatenate([rng.permutation(2_000) for _ in range(MANY // 2_000)])
    seq = rng.integers(1 << 31, size=MANY) if order == "random" else np.arange(MANY) // 2_000
    if order == "shuffled":
        mixed = rng.permutation(MANY)
        pid, seq = pid[mixed], seq[mixed]
    seq = np.where((pid == 1) | (pid == 2), (seq % 75 + (1 << 31) - 40) % (1 << 31), seq)
    again = rng.integers(MANY, size=MANY)
    source = np.where(rng.random(MANY) < 0.05, np.minimum(again, np.arange(MANY)), np.arange(MANY))
    rows = {"pid": KEYS[key](pid), "partition": pa.array(pid % 7, pa.int32()), "epoch": pa.array(pid % 2, pa.int16())}
    return pa.table(rows | {"seq": pa.array(seq, pa.int32()), "row": np.arange(MANY)}).take(source)


ORDERS = ("rising", "shuffled", "random")


@pytest.mark.parametrize(
    ("key", "order"),
    daily.each_value(KEYS, ORDERS),
)
def test_many_rows_are_kept_as_a_table_keeps_them(key: str, order: str) -> None:
    rows = many_rows(key, order)
    kept = rows.filter(pa.array(StateTable("any_order").apply(rows).kept))
    assert 0.9 * MANY < kept.num_rows < 0.98 * MANY
    assert fp.deduplicate(rows).equals(kept)
    for pieces in (
        pa.concat_tables([rows[:50_001], rows[50_001:50_002], rows[50_002:]]),
        pa.Table.from_batches(rows.combine_chunks().to_batches(max_chunksize=777)),
        pa.concat_tables([rows[:0], *(rows[row : row + 40] for row in range(0, 50_000, 40)), rows[50_000:]]),
    ):
        assert fp.deduplicate(pieces).equals(kept)
    for changes in ({"wrap": None}, {"first": "zero"}, {"max_jump": 1 << 30}):
        policy = Policy.any_order().replace(**changes)
        kept = rows.filter(pa.array(StateTable(policy).apply(rows).kept))
        assert fp.deduplicate(rows, policy).equals(kept)


@pytest.mark.parametrize("key", KEYS)
def test_the_first_of_many_copies_is_kept(key: str) -> None:
    copies = np.random.default_rng(3).permutation(np.tile(np.arange(0, MANY, 20), 20))
    rows = many_rows(key, "shuffled").take(copies).set_column(4, "row", [np.arange(len(copies))])
    kept = rows.filter(pa.array(StateTable("any_order").apply(rows).kept))
    assert len(rows) == MANY > 15 * kept.num_rows
    assert fp.deduplicate(rows).equals(kept)


@pytest.mark.parametrize("key", ["int", "text", "fixed bytes"])
def test_many_rows_of_composite_keys_are_kept_as_a_table_keeps_them(key: str) -> None:
    rows = many_rows(key, "shuffled").append_column("topic", pa.array([f"t{row % 3}" for row in range(MANY)]))
    columns = Columns(pid=("topic", "pid"), partition=("topic", "partition"))
    kept = rows.filter(pa.array(StateTable("any_order").apply(rows, columns).kept))
    assert fp.deduplicate(rows, columns=columns).equals(kept)


@pytest.mark.parametrize(("column", "bad"), [("seq", -1), ("partition", -1), ("epoch", -1), ("pid", -2)])
def test_the_first_bad_row_of_many_is_named(column: str, bad: int) -> None:
    rows = many_rows("int", "shuffled")
    values = rows[column].to_numpy().copy()
    values[rows["pid"].to_numpy() == -1] = -1
    tracked = np.flatnonzero(rows["pid"].to_numpy() != -1)
    values[tracked[[-1, -700]]] = bad
    rows = with_column(rows, column, pa.array(values, rows[column].type))
    with pytest.raises(fp.BatchError) as expected:
        StateTable("any_order").apply(rows)
    for pieces in (rows, pa.Table.from_batches(rows.to_batches(max_chunksize=1_000))):
        with pytest.raises(fp.BatchError) as found:
            fp.deduplicate(pieces)
        assert str(found.value) == str(expected.value)
        assert f"row {tracked[-700]}" in str(found.value)


@pytest.mark.parametrize("others", [0, 5_000, 60_000])
def test_missing_ranges_of_text_keys_do_not_change_until_they_are_read(others: int) -> None:
    """Whatever the table learns and forgets meanwhile; listed at once where there are many other keys."""

    def rows(pids: list[str], seq: int) -> pa.Table:
        return pa.table({"pid": pids, "epoch": [0] * len(pids), "partition": [0] * len(pids), "seq": [seq] * len(pids)})

    table = fp.StateTable("any_order")
    table.apply(rows(["b", "a", *(f"other-{number}" for number in range(others))], 0))
    verdicts = table.apply(rows(["b", "a"], 5))
    for pid in ("a", "b"):
        table.forget(pid)
    table.apply(rows([f"new-{number}" for number in range(2_000)], 9))
    assert pa.table(verdicts.missing).select(["pid", "first_seq", "last_seq"]).to_pylist() == [
        {"pid": "a", "first_seq": 1, "last_seq": 4},
        {"pid": "b", "first_seq": 1, "last_seq": 4},
    ]
