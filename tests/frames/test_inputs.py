"""The same rows from every producer and in every shape: the same verdicts, or a clear error. Never garbage."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Callable
from typing import Any

import arro3.core
import datafusion
import duckdb
import fencepost as fp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from fencepost import Verdict
from support.frames import one_batch
from support.lake import with_column

ACCEPTED, DUPLICATE, OUT_OF_ORDER = Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.OUT_OF_ORDER
FENCED, UNTRACKED = Verdict.FENCED, Verdict.UNTRACKED

# One stream that meets every verdict, a hole that stays, a hole that closes, an untracked row and a zombie.
PID = [7, 7, 8, 7, 7, -1, 8, 7, 7, 8, 7]
EPOCH = [0, 0, 3, 0, 0, 0, 3, 1, 0, 3, 1]
PARTITION = [0, 0, 2, 0, 0, 0, 2, 0, 0, 2, 0]
SEQ = [5, 6, 100, 9, 6, 1, 100, 0, 10, 101, 4]
TYPES = {"pid": pa.int64(), "epoch": pa.int16(), "partition": pa.int32(), "seq": pa.int32()}
ROWS = pa.table({"pid": PID, "epoch": EPOCH, "partition": PARTITION, "seq": SEQ}, schema=pa.schema(TYPES))

ANY_ORDER = [
    *(ACCEPTED, ACCEPTED, ACCEPTED, ACCEPTED, DUPLICATE, UNTRACKED),
    *(DUPLICATE, ACCEPTED, ACCEPTED, ACCEPTED, ACCEPTED),
]
KAFKA = [
    *(ACCEPTED, ACCEPTED, ACCEPTED, OUT_OF_ORDER, DUPLICATE, UNTRACKED),
    *(DUPLICATE, ACCEPTED, FENCED, ACCEPTED, OUT_OF_ORDER),
]
VERDICTS = {"any_order": ANY_ORDER, "kafka": KAFKA}
EXPECTED = {"any_order": [None] * 11, "kafka": [None] * 3 + [7] + [None] * 6 + [1]}
MISSING = {
    "any_order": [
        {"pid": 7, "partition": 0, "epoch": 0, "first_seq": 7, "last_seq": 8, "count": 2},
        {"pid": 7, "partition": 0, "epoch": 1, "first_seq": 1, "last_seq": 3, "count": 3},
    ],
    "kafka": [],
}
ENTRIES = {
    "any_order": [(7, 0, 0, 5, 10, [(7, 8)]), (7, 0, 1, 0, 4, [(1, 3)]), (8, 2, 3, 100, 101, [])],
    "kafka": [(7, 0, 1, 0, 0, []), (8, 2, 3, 100, 101, [])],
}

Constructor = Callable[[pa.Table], Any]


def chunked(rows: pa.Table) -> pa.Table:
    """Borders that differ from column to column, and chunks that are empty."""
    columns = {}
    for number, name in enumerate(rows.column_names):
        whole, cut = rows[name].combine_chunks(), min(number + 1, rows.num_rows)
        columns[name] = pa.chunked_array([whole[:0], whole[:cut], whole[cut : 2 * cut], whole[2 * cut :]])
    return pa.table(columns)


def sliced(rows: pa.Table) -> pa.Table:
    """The rows in the midst of others that would be errors."""
    bad = pa.table({name: pa.array([-9]).cast(rows.schema.field(name).type) for name in rows.column_names})
    return pa.concat_tables([bad, rows, bad]).combine_chunks().slice(1, len(rows))


def numpy_mapping(rows: pa.Table) -> dict[str, np.ndarray]:
    return {name: rows[name].to_numpy() for name in rows.column_names}


def mixed_mapping(rows: pa.Table) -> dict[str, Any]:
    kinds = [np.asarray, pl.Series, pa.chunked_array, pd.Series, arro3.core.Array.from_arrow]
    arrays = (rows[name].combine_chunks() for name in rows.column_names)
    return {
        name: kind([array] if kind is pa.chunked_array else array)
        for name, kind, array in zip(rows.column_names, kinds, arrays, strict=False)
    }


def batches(rows: pa.Table) -> list[pa.RecordBatch]:
    return rows.to_batches(max_chunksize=4)


# Those that can hold a null.
CONSTRUCTORS: dict[str, Constructor] = {
    "pyarrow-table": lambda rows: rows,
    "pyarrow-batch": lambda rows: one_batch(rows),
    "pyarrow-reader": lambda rows: pa.RecordBatchReader.from_batches(rows.schema, batches(rows)),
    "pyarrow-reader-of-python": lambda rows: pa.RecordBatchReader.from_batches(rows.schema, iter(batches(rows))),
    "pyarrow-chunked": chunked,
    "pyarrow-sliced": sliced,
    "pyarrow-struct-array": lambda rows: pa.array(one_batch(rows)),
    "polars": pl.DataFrame,
    "polars-chunked": lambda rows: pl.concat([pl.DataFrame(rows[:3]), pl.DataFrame(rows[3:])], rechunk=False),
    "duckdb": duckdb.from_arrow,
    "datafusion": lambda rows: datafusion.SessionContext().from_arrow(rows),
    "arro3-table": arro3.core.Table.from_arrow,
    "arro3-batch": lambda rows: arro3.core.RecordBatch.from_arrow(one_batch(rows)),
    "pandas-nullable": lambda rows: rows.to_pandas(types_mapper=NULLABLE.get),
    "pandas-pyarrow": lambda rows: rows.to_pandas(types_mapper=pd.ArrowDtype),
    "mapping-pyarrow": lambda rows: {name: rows[name] for name in rows.column_names},
    "mapping-pyarrow-arrays": lambda rows: {name: rows[name].combine_chunks() for name in rows.column_names},
    "mapping-polars": lambda rows: pl.DataFrame(rows).to_dict(),
}
NULLABLE = {
    pa.int64(): pd.Int64Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.string(): pd.StringDtype(),
}
# Those that cannot.
CONSTRUCTORS_OF_NUMBERS: dict[str, Constructor] = {
    "pandas": lambda rows: rows.to_pandas(),
    "pandas-indexed": lambda rows: rows.to_pandas().set_index(pd.Index(range(100, 100 + len(rows)), name="index")),
    "mapping-numpy": numpy_mapping,
    "mapping-mixed": mixed_mapping,
    "mapping-memoryview": lambda rows: {name: memoryview(it) for name, it in numpy_mapping(rows).items()},
    "mapping-array": lambda rows: {name: array.array("q", rows[name].to_pylist()) for name in rows.column_names},
}
# An empty one lies nowhere in memory.
WITHOUT_EMPTY = {"mapping-array"}


@pytest.fixture(params=CONSTRUCTORS)
def constructor(request: pytest.FixtureRequest) -> Constructor:
    return CONSTRUCTORS[request.param]


@pytest.fixture(params=CONSTRUCTORS | CONSTRUCTORS_OF_NUMBERS)
def any_constructor(request: pytest.FixtureRequest) -> Constructor:
    return (CONSTRUCTORS | CONSTRUCTORS_OF_NUMBERS)[request.param]


@pytest.fixture(params=VERDICTS)
def policy(request: pytest.FixtureRequest) -> str:
    return request.param


def codes(rows: Any, policy: str | fp.Policy = "any_order", columns: fp.Columns | None = None) -> list[Verdict]:
    return [Verdict(code) for code in pa.array(fp.StateTable(policy).apply(rows, columns).verdict).to_pylist()]


def entries_of(table: fp.StateTable) -> list[tuple[Any, ...]]:
    return [
        (*(row[name] for name in ("pid", "partition", "epoch", "first", "last")), holes)
        for row in pa.table(table.entries()).to_pylist()
        for holes in [[(hole["first"], hole["last"]) for hole in row["holes"]]]
    ]


# Producers


def test_every_producer_gives_the_same_verdicts(any_constructor: Constructor, policy: str) -> None:
    table = fp.StateTable(policy)
    checked = table.check(any_constructor(ROWS))
    assert len(table) == 0
    verdicts = table.apply(any_constructor(ROWS))
    assert pa.array(checked.verdict) == pa.array(verdicts.verdict)

    assert pa.array(verdicts.verdict).to_pylist() == VERDICTS[policy]
    assert pa.array(verdicts.expected).to_pylist() == EXPECTED[policy]
    assert pa.table(verdicts.missing).to_pylist() == MISSING[policy]
    assert pa.table(table.missing()).to_pylist() == MISSING[policy]
    assert verdicts.counts == {verdict: VERDICTS[policy].count(verdict) for verdict in verdicts.counts}
    assert sum(verdicts.counts.values()) == len(VERDICTS[policy])
    assert verdicts.stale_epoch == 1
    assert entries_of(table) == ENTRIES[policy]


def test_results_are_read_by_pyarrow_polars_and_numpy(policy: str) -> None:
    table = fp.StateTable(policy)
    verdicts = table.apply(ROWS)
    wanted = VERDICTS[policy]
    kept = [verdict.is_kept for verdict in wanted]
    assert len(verdicts) == len(wanted)

    assert pa.array(verdicts.verdict).type == pa.uint8()
    assert pl.Series(verdicts.verdict).to_list() == wanted
    assert np.asarray(verdicts.verdict).dtype == np.uint8
    assert np.asarray(verdicts.verdict).tolist() == wanted

    assert pa.array(verdicts.kept).type == pa.bool_()
    assert pa.array(verdicts.kept).to_pylist() == kept
    assert pl.Series(verdicts.kept).to_list() == kept
    assert np.asarray(verdicts.kept).tolist() == kept

    assert pa.array(verdicts.expected).type == pa.int64()
    assert pl.Series(verdicts.expected).to_list() == EXPECTED[policy]
    assert pl.Series(verdicts.expected).to_numpy().tolist() == pytest.approx(
        [np.nan if it is None else it for it in EXPECTED[policy]], nan_ok=True
    )

    assert pa.table(verdicts).to_pydict() == {"verdict": wanted}
    assert pl.DataFrame(verdicts)["verdict"].to_list() == wanted
    assert duckdb.from_arrow(pa.table(verdicts)).fetchall() == [(code,) for code in wanted]

    for stream in (verdicts.missing, table.missing()):
        assert pa.table(stream).to_pylist() == pl.DataFrame(stream).to_dicts() == MISSING[policy]
        assert pa.table(stream).to_pylist() == MISSING[policy], "a result can be read twice"
    assert pa.schema(verdicts.missing) == pa.schema(
        [
            pa.field(name, kind, nullable=False)
            for name, kind in {
                "pid": pa.int64(),
                "partition": pa.int32(),
                "epoch": pa.int16(),
                "first_seq": pa.int64(),
                "last_seq": pa.int64(),
                "count": pa.int64(),
            }.items()
        ]
    )
    assert pl.DataFrame(table.entries()).to_dicts() == pa.table(table.entries()).to_pylist()
    assert np.asarray(pa.table(table.entries())["last"]).tolist() == [entry[4] for entry in ENTRIES[policy]]


def test_results_of_no_rows_have_their_types() -> None:
    verdicts = fp.StateTable("any_order").apply(ROWS[:0])
    assert (len(verdicts), sum(verdicts.counts.values()), verdicts.stale_epoch) == (0, 0, 0)
    assert pa.array(verdicts.verdict).type == pa.uint8()
    assert pa.array(verdicts.kept).type == pa.bool_()
    assert pa.array(verdicts.expected).type == pa.int64()
    assert pa.table(verdicts.missing).column_names == ["pid", "partition", "epoch", "first_seq", "last_seq", "count"]
    assert np.asarray(verdicts.verdict).tolist() == []


# Widths and encodings


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
SIGNED = {pa.int8(), pa.int16(), pa.int32(), pa.int64()}


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", ["arrow", "numpy", "null", "dictionary"])
def test_every_width_of_integers_is_widened(kind: pa.DataType, name: str, shape: str, policy: str) -> None:
    rows = ROWS
    wanted = VERDICTS[policy]
    if kind not in SIGNED:  # -1 does not fit: the row goes
        rows, wanted = rows.filter(pc.field("pid") != -1), [it for it in wanted if it is not UNTRACKED]
    column = rows[name].cast(kind)
    if shape == "null":
        nothing = dict.fromkeys(TYPES)
        rows, wanted = pa.concat_tables([rows, pa.Table.from_pylist([nothing], rows.schema)]), [*wanted, UNTRACKED]
        column = rows[name].cast(kind)
    if shape == "dictionary":
        column = column.dictionary_encode()
    rows = with_column(rows, name, column)
    assert codes(numpy_mapping(rows) if shape == "numpy" else rows, policy) == wanted


@pytest.mark.parametrize("name", TYPES)
def test_wide_integers_are_taken_up_to_their_domain(name: str) -> None:
    highest = {"pid": 2**63 - 1, "epoch": 32767, "partition": 2**31 - 1, "seq": 2**31 - 1}[name]
    row = {"pid": 1, "epoch": 1, "partition": 1, "seq": 1} | {name: highest}
    for kind in (pa.int64(), pa.uint64()):
        rows = pa.table({column: pa.array([value] * 2, kind) for column, value in row.items()})
        assert codes(rows) == [ACCEPTED, DUPLICATE]
    rows = pa.table({column: pa.array([value, value - 1], pa.uint64()) for column, value in row.items()})
    assert codes(rows, fp.Policy.any_order().replace(wrap=None)) == [ACCEPTED, ACCEPTED]


def test_sequences_of_64_bits_are_exact() -> None:
    seq = pa.array([2**63 - 1, 2**63 - 2, 2**53 + 1, 2**53, 2**63 - 1], pa.int64())
    rows = {"pid": pa.array([1] * 5), "partition": pa.array([0] * 5), "seq": seq}
    table = fp.StateTable(fp.Policy.watermark().replace(admit="any"))
    assert pa.array(table.apply(rows).verdict).to_pylist() == [0, 0, 0, 0, 1]
    entry = table.get(1, 0)
    assert entry is not None
    assert (entry["first"], entry["last"]) == (2**53, 2**63 - 1)


def recode(kind: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in another encoding of the same values."""
    array = column.combine_chunks()
    if kind == "dictionary":
        return array.dictionary_encode()
    if kind == "dictionary-with-null":
        # The null is among the values, not among the indices.
        values = array.unique()
        return pa.DictionaryArray.from_arrays(pc.index_in(array, values), values)
    if kind == "dictionary-unused":
        values = pa.concat_arrays([pa.array([99], array.type), array.unique()])
        return pa.DictionaryArray.from_arrays(pc.index_in(array, values).cast(pa.int8()), values)
    if kind == "run-ends":
        return pc.run_end_encode(array)
    return pc.run_end_encode(array, run_end_type=pa.int64())


@pytest.mark.parametrize("kind", ["dictionary", "dictionary-with-null", "dictionary-unused", "run-ends", "run-ends-64"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("has_nulls", [False, True], ids=["", "nulls"])
def test_integers_may_be_encoded(kind: str, name: str, has_nulls: bool, policy: str) -> None:
    rows, wanted = ROWS, VERDICTS[policy]
    if has_nulls:
        nothing = pa.Table.from_pylist([dict.fromkeys(TYPES)], rows.schema)
        rows, wanted = pa.concat_tables([nothing, rows, nothing]), [UNTRACKED, *wanted, UNTRACKED]
    encoded = with_column(rows, name, recode(kind, rows[name]))
    assert codes(encoded, policy) == wanted
    assert codes(encoded.slice(2), policy) == codes(rows.slice(2), policy)
    assert codes({it: encoded[it] for it in TYPES}, policy) == wanted


@pytest.mark.parametrize("kind", ["dictionary", "dictionary-with-null", "run-ends"])
@pytest.mark.parametrize("name", TYPES)
def test_reports_on_encoded_integers(kind: str, name: str) -> None:
    rows = ROWS.filter(pc.field("pid") != -1)
    rows = rows.append_column("at", pa.array(range(len(rows)), pa.timestamp("ms")))
    columns = fp.Columns(timestamp="at")
    encoded = with_column(rows, name, recode(kind, rows[name]))
    encoded = encoded.set_column(len(TYPES), "at", recode(kind, rows["at"]))
    assert fp.audit(encoded, columns=columns).to_json() == fp.audit(rows, columns=columns).to_json()
    added = ["verdict", "kept_row", "reason"]
    assert fp.explain(encoded, columns=columns).select(added).equals(fp.explain(rows, columns=columns).select(added))
    assert fp.advise(encoded, columns).to_json() == fp.advise(rows, columns).to_json()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_reports_on_timestamps_in_a_dictionary(unit: str) -> None:
    columns = fp.Columns(timestamp="at")
    rows = ROWS.append_column("at", pa.array(range(len(ROWS)), pa.timestamp("s")).cast(pa.timestamp(unit)))
    encoded = rows.set_column(len(TYPES), "at", rows["at"].dictionary_encode())
    assert fp.audit(encoded, columns=columns).to_json() == fp.audit(rows, columns=columns).to_json()


def test_reports_on_empty_slices_between_chunks() -> None:
    """Arrow's C interface gives an empty slice an offset outside of its buffer."""
    rows = pa.concat_tables([ROWS.slice(0, 0), ROWS.slice(len(ROWS)), ROWS, ROWS.slice(5, 0)])
    assert fp.audit(rows).to_json() == fp.audit(ROWS).to_json()
    assert fp.explain(rows)["verdict"].to_pylist() == [verdict.name for verdict in ANY_ORDER]
    assert fp.audit(ROWS.slice(len(ROWS))).rows == 0
    categories = pl.from_arrow(ROWS).with_columns(pid=pl.lit("a", pl.Categorical))
    runs = ROWS.append_column("runs", pc.run_end_encode(pa.array([1] * len(ROWS))))
    for nothing in (categories[:0], categories.lazy().filter(pl.col("seq") < 0), runs[:0]):
        assert fp.audit(nothing).rows == 0


NAMES = ["b", "b", "a", "b", "b", None, "a", "b", "b", "a", "b"]


def as_strings(kind: str) -> pa.Array | pa.ChunkedArray:
    strings = pa.array(NAMES)
    if kind == "dictionary":
        return strings.dictionary_encode()
    if kind == "dictionary-of-views":
        return pa.DictionaryArray.from_arrays(
            pa.array([None if name is None else "ab".index(name) for name in NAMES], pa.int8()),
            pa.array(["a", "b"], pa.large_string()),
        )
    if kind == "run-ends":
        return pc.run_end_encode(strings)
    if kind == "chunks":
        return pa.chunked_array([NAMES[:1], [], NAMES[1:7], NAMES[7:]], pa.string())
    if kind == "fixed":
        return pa.array([None if name is None else name.encode() * 16 for name in NAMES], pa.binary(16))
    if kind == "fixed-dictionary":
        return as_strings("fixed").dictionary_encode()
    types = {
        "string": pa.string(),
        "large_string": pa.large_string(),
        "string_view": pa.string_view(),
        "binary": pa.binary(),
        "large_binary": pa.large_binary(),
        "binary_view": pa.binary_view(),
    }
    return pa.array([name if "string" in kind or name is None else name.encode() for name in NAMES], types[kind])


STRINGS = [
    *("string", "large_string", "string_view", "dictionary", "dictionary-of-views", "run-ends", "chunks"),
    *("binary", "large_binary", "binary_view", "fixed", "fixed-dictionary"),
]


@pytest.mark.parametrize("kind", STRINGS)
def test_pids_may_be_strings_or_binary(kind: str, policy: str) -> None:
    rows = ROWS.set_column(0, "pid", as_strings(kind))
    table = fp.StateTable(policy)
    assert pa.array(table.apply(rows).verdict).to_pylist() == VERDICTS[policy]
    if "fixed" in kind:
        wanted = (b"a" * 16, b"b" * 16, pa.binary(16))
    elif "binary" in kind:
        wanted = (b"a", b"b", pa.binary())
    else:
        wanted = ("a", "b", pa.string())
    entries = pa.table(table.entries())
    assert set(entries["pid"].to_pylist()) == {wanted[0], wanted[1]}
    assert entries["pid"].type == wanted[2]
    assert [row["pid"] for row in pa.table(table.missing()).to_pylist()] == [wanted[1]] * len(MISSING[policy])
    assert codes(rows.slice(1), policy) == codes(ROWS.slice(1), policy)
    # Every encoding is the same key in the same table.
    family = next(it for it in (("fixed", "fixed-dictionary"), STRINGS[7:10], STRINGS[:7]) if kind in it)
    for other in family:
        again = pa.array(table.check(ROWS.set_column(0, "pid", as_strings(other))).verdict).to_pylist()
        assert Verdict.ACCEPTED not in again


@pytest.mark.parametrize("name", ["pid", "partition"])
@pytest.mark.parametrize(
    "kind", ["categories of polars", "dictionary of binary views", "UUID", "UUIDs in a dictionary"]
)
def test_reports_on_encoded_texts(kind: str, name: str) -> None:
    texts = pa.array(["x" if it is None else it for it in NAMES])
    if "UUID" in kind:
        plain = texts.cast(pa.binary()).to_pylist()
        values = pa.array([it * 16 for it in plain], pa.binary(16))
        uuids = pa.ExtensionArray.from_storage(pa.uuid(), values)
        indices = pa.array(range(len(uuids)), pa.int8())
        encoded = uuids if kind == "UUID" else pa.DictionaryArray.from_arrays(indices, uuids)
    elif kind == "categories of polars":
        values, encoded = texts, pl.Series(texts).cast(pl.Categorical).to_arrow(compat_level=pl.CompatLevel.newest())
    else:
        values = texts.cast(pa.binary())
        coded = values.dictionary_encode()
        encoded = pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.binary_view()))
    place = ROWS.column_names.index(name)
    one, other = (ROWS.set_column(place, name, it) for it in (encoded, values))
    found, expected = fp.audit(one, compare_content=True), fp.audit(other, compare_content=True)
    assert (found.counts, found.keys, found.missing["count"]) == (
        expected.counts,
        expected.keys,
        expected.missing["count"],
    )
    added = ["verdict", "kept_row", "reason"]
    assert fp.explain(one).select(added).equals(fp.explain(other).select(added))
    assert fp.advise(one).policies.equals(fp.advise(other).policies)


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "fixed"]
)
@pytest.mark.parametrize("is_run_end", [False, True], ids=["", "run-ends"])
def test_a_dictionary_may_contain_a_null(kind: str, is_run_end: bool, policy: str) -> None:
    """As `dictionary_encode(null_encoding="encode")` puts it: it is not the key ''."""
    values = as_strings(kind)
    assert isinstance(values, pa.Array)
    places = [NAMES.index(name) for name in NAMES]
    pids = pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), values[:6])
    assert (pids.null_count, pids.dictionary.null_count) == (0, 1)
    if is_run_end:
        pids = pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(pids) + 1), pa.int32()), pids)
    assert codes(ROWS.set_column(0, "pid", pids), policy) == VERDICTS[policy]
    with pytest.raises(fp.BatchError, match="column 'pid', row 5: carries no producer"):
        fp.StateTable(policy, untracked="fail").apply(ROWS.set_column(0, "pid", pids))
    with pytest.raises(fp.BatchError, match="column 'partition', row 5: null"):
        fp.StateTable(policy).apply(
            ROWS.set_column(0, "pid", pa.array([1] * len(ROWS))).set_column(2, "partition", pids)
        )


@pytest.mark.parametrize("kind", STRINGS)
def test_partitions_may_be_strings_or_binary(kind: str, policy: str) -> None:
    rows = ROWS.set_column(2, "partition", as_strings(kind))
    assert codes(rows, policy) == VERDICTS[policy]


def test_string_keys_from_every_producer(constructor: Constructor, policy: str) -> None:
    rows = ROWS.set_column(0, "pid", pa.array(NAMES))
    assert codes(constructor(rows), policy) == VERDICTS[policy]


def test_empty_strings_and_zero_bytes_are_keys_of_their_own() -> None:
    names = ["", "\0", "\0\0", "a", "a\0", "", "a\0", "ä", "a\u0308", "ä"]
    rows = {
        "pid": pa.array(names),
        "epoch": np.zeros(len(names), np.int16),
        "partition": np.zeros(len(names), np.int32),
        "seq": np.zeros(len(names), np.int32),
    }
    table = fp.StateTable("any_order")
    assert np.asarray(table.apply(rows).verdict).tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 1]
    assert pa.table(table.entries())["pid"].to_pylist() == sorted(set(names), key=str.encode)


# Composite keys and other names


def test_composite_keys_from_every_producer(constructor: Constructor, policy: str) -> None:
    columns = fp.Columns(pid=("cluster", "device"), epoch="e", partition=("topic", "shard"), seq="n")
    rows = pa.table(
        {
            "n": ROWS["seq"],
            "cluster": pa.array(["c1"] * 5 + ["c2"] + ["c1"] * 5),
            "device": ROWS["pid"],
            "e": ROWS["epoch"],
            "topic": pa.array(["orders", "orders", "clicks"] + ["orders"] * 3 + ["clicks"] + ["orders"] * 2
                              + ["clicks", "orders"]),
            "shard": ROWS["partition"],
        }
    )  # fmt: skip
    table = fp.StateTable(policy)
    verdicts = table.apply(constructor(rows), columns)
    assert pa.array(verdicts.verdict).to_pylist() == VERDICTS[policy]
    missing = pa.table(verdicts.missing)
    names = ["pid_0", "pid_1", "partition_0", "partition_1", "epoch", "first_seq", "last_seq", "count"]
    assert missing.column_names == names
    assert missing.schema.types[:4] == [pa.string(), pa.int64(), pa.string(), pa.int64()]
    assert len(missing) == len(MISSING[policy])
    assert pa.table(table.entries()).column_names[:5] == names[:5]


def test_mixed_keys_and_no_partition() -> None:
    rows = {"who": pa.array(["a", "a", "b", "a"]), "n": np.array([0, 1, 1, 1])}
    columns = fp.Columns(pid="who", epoch=None, partition=None, seq="n")
    assert codes(rows, "watermark", columns) == [ACCEPTED, ACCEPTED, ACCEPTED, DUPLICATE]
    rows = {"pid": np.array([1, 1, 2, 1]), "partition": pa.array(["x", "y", "x", "x"]), "seq": np.zeros(4, np.uint8)}
    assert codes(rows, "watermark") == [ACCEPTED, ACCEPTED, ACCEPTED, DUPLICATE]


def test_the_columns_of_a_preset_are_read_unless_others_are_given(constructor: Constructor) -> None:
    rows = pa.table({"offset": [0, 1, 1], "partition": [0, 0, 0], "topic": ["t", "t", "t"], "seq": [9, 9, 9]})
    assert codes(constructor(rows), "kafka_offsets") == [ACCEPTED, ACCEPTED, DUPLICATE]
    columns = fp.Columns(pid="topic", epoch=None, partition="partition", seq="seq")
    assert codes(constructor(rows), "kafka_offsets", columns) == [ACCEPTED, DUPLICATE, DUPLICATE]


# Nulls


def test_untracked_rows_may_hold_anything(constructor: Constructor, policy: str) -> None:
    nothing = pa.Table.from_pylist([dict.fromkeys(TYPES)] * 2, ROWS.schema)
    wild = pa.Table.from_pylist([{"pid": None, "epoch": -7, "partition": -7, "seq": -7}], ROWS.schema)
    minus = pa.Table.from_pylist([{"pid": -1, "epoch": None, "partition": None, "seq": None}], ROWS.schema)
    rows = pa.concat_tables([nothing, ROWS, wild, minus]).combine_chunks()
    wanted = [UNTRACKED, UNTRACKED, *VERDICTS[policy], UNTRACKED, UNTRACKED]
    assert codes(constructor(rows), policy) == wanted


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_nulls_and_no_type(name: str) -> None:
    """A column without values in the types of pandas and Arrow."""
    rows = with_column(ROWS, name, pa.nulls(len(ROWS)))
    if name == "pid":
        table = fp.StateTable("any_order")
        assert table.apply(rows).counts[UNTRACKED] == len(ROWS)
        # It says nothing of the type of keys.
        assert table.apply(ROWS.set_column(0, "pid", pa.array(NAMES))).counts[ACCEPTED] == 8
        assert table.apply(rows).counts[UNTRACKED] == len(ROWS)
    else:
        with pytest.raises(fp.BatchError, match=f"column '{name}', row 0: null") as caught:
            fp.StateTable("any_order").apply(rows)
        assert (caught.value.column, caught.value.row) == (name, 0)
    untracked = rows.set_column(0, "pid", pa.nulls(len(ROWS)))
    assert codes(untracked) == [UNTRACKED] * len(ROWS)


# Empty input


@pytest.mark.parametrize(
    "any_constructor", sorted((CONSTRUCTORS | CONSTRUCTORS_OF_NUMBERS).keys() - WITHOUT_EMPTY), indirect=True
)
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_no_rows(any_constructor: Constructor, chunks: int) -> None:
    empty = pa.table({name: pa.chunked_array([[]] * chunks, kind) for name, kind in TYPES.items()})
    table = fp.StateTable("any_order")
    before = table.snapshot()
    verdicts = table.apply(any_constructor(empty))
    assert len(verdicts) == 0
    assert pa.array(verdicts.verdict).to_pylist() == []
    assert table.snapshot() == before


def test_no_rows_of_no_type() -> None:
    table = fp.StateTable("any_order")
    before = table.snapshot()
    for rows in (pa.table({name: [] for name in TYPES}), pd.DataFrame({name: [] for name in TYPES}, dtype=object)):
        assert len(table.apply(rows)) == 0
    assert table.snapshot() == before


def test_rows_without_a_producer_leave_no_trace() -> None:
    table = fp.StateTable("any_order")
    before = table.snapshot()
    assert table.apply(ROWS.filter(pc.field("pid") == -1)).counts[UNTRACKED] == 1
    assert table.snapshot() == before
    assert table.apply(ROWS.set_column(0, "pid", pa.array(NAMES))).counts[UNTRACKED] == 1


# Columns that are none of our business


def test_payload_of_any_type_is_not_touched() -> None:
    count = len(ROWS)
    payload = {
        "nested": pa.array([{"a": [{"b": it}], "c": None} if it % 2 else None for it in range(count)]),
        "map": pa.array([[("k", it)] for it in range(count)], pa.map_(pa.string(), pa.int32())),
        "union": pa.UnionArray.from_sparse(pa.array([0] * count, pa.int8()), [pa.array(range(count))]),
        "decimal": pa.array(range(count), pa.decimal256(60, 2)),
        "list_view": pa.array([[it] for it in range(count)], pa.list_view(pa.int8())),
        "half": pa.array([np.float16(it) for it in range(count)], pa.float16()),
        "month_day_nano": pa.array([(1, 2, 3)] * count, pa.month_day_nano_interval()),
        "nothing": pa.nulls(count),
        "run_ends": pc.run_end_encode(pa.array(["x"] * count)),
        "uuid": pa.array([bytes(16)] * count, pa.uuid()),
    }
    rows = ROWS
    for name, values in payload.items():
        rows = rows.append_column(name, values)
    assert codes(rows) == ANY_ORDER
    assert codes({name: rows[name] for name in rows.column_names}) == ANY_ORDER
    wanted = [row for row, verdict in zip(rows.to_pylist(), ANY_ORDER, strict=True) if verdict.is_kept]
    kept = fp.deduplicate(arro3.core.Table.from_arrow(rows))
    assert (len(kept), pa.table(kept).to_pylist()) == (len(wanted), wanted)
    assert fp.deduplicate(rows).to_pylist() == wanted
    batch = fp.deduplicate(one_batch(rows))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.to_pylist() == wanted
    table = fp.StateTable("any_order")
    table.apply(ROWS)
    again = fp.deduplicate(one_batch(rows.slice(0, 5)), table=table)
    assert isinstance(again, pa.RecordBatch)
    assert (again.num_rows, again.schema) == (0, rows.schema)


@pytest.mark.parametrize(
    ("zone", "wanted"),
    [
        (None, "2023-11-14T22:13:20 "),
        ("UTC", "2023-11-14T22:13:20Z"),
        ("+02:00", "2023-11-15T00:13:20+02:00"),
        ("Atlantis", 'at: Timestamp(µs, "Atlantis")'),
    ],
)
def test_rows_of_any_time_zone_are_shown(zone: str | None, wanted: str) -> None:
    """If the package does not have the zone, only columns are shown."""
    at = pa.array([1_700_000_000_000_000] * len(ROWS), pa.timestamp("us", zone))
    kept = fp.deduplicate(arro3.core.Table.from_arrow(ROWS.append_column("at", at)))
    assert pa.table(kept).schema.field("at").type == pa.timestamp("us", zone)
    shown = repr(kept)
    assert shown.startswith(f"{len(kept)} rows\n")
    assert wanted in shown


def test_payload_of_a_mapping_is_not_even_read() -> None:
    payload = {"text": np.array(["x"] * 11), "objects": np.array([{}] * 11), "list": [1, 2], "nothing": None}
    assert codes(numpy_mapping(ROWS) | payload) == ANY_ORDER
    assert codes(payload | numpy_mapping(ROWS)) == ANY_ORDER


# NumPy, as it is in memory


def test_numpy_arrays_of_any_layout(policy: str) -> None:
    for name in TYPES:
        values = ROWS[name].to_numpy()
        wide = np.full((len(values), 3), -99, values.dtype)
        wide[:, 1] = values
        record = np.zeros(len(values), [("pad", "i1"), ("value", values.dtype)])
        record["value"] = values
        frozen = values.copy()
        frozen.flags.writeable = False
        shapes = {
            "strided": np.repeat(values, 2)[::2],
            "backwards": values[::-1].copy()[::-1],
            "column": wide[:, 1],
            "fortran": np.asfortranarray(wide)[:, 1],
            "unaligned": record["value"],
            "big-endian": values.astype(values.dtype.newbyteorder(">")),
            "big-endian strided": np.repeat(values, 2).astype(values.dtype.newbyteorder(">"))[::2],
            "read-only": frozen,
            "subclass": values.view(type("Own", (np.ndarray,), {})),
            "memory-mapped-like": np.frombuffer(values.tobytes(), values.dtype),
        }
        assert not shapes["unaligned"].flags.aligned
        for shape, array_ in shapes.items():
            assert codes(numpy_mapping(ROWS) | {name: array_}, policy) == VERDICTS[policy], (name, shape)


def test_numpy_arrays_are_not_changed() -> None:
    rows = numpy_mapping(ROWS)
    before = {name: values.copy() for name, values in rows.items()}
    fp.StateTable("kafka").apply(rows)
    assert all((rows[name] == before[name]).all() for name in rows)


NO_COLUMNS = {
    "two-dimensional": np.zeros((11, 1), np.int32),
    "scalar": np.array(5),
    "masked": np.ma.masked_array(SEQ, mask=[1] + [0] * 10),
    "strings": np.array([str(seq) for seq in SEQ]),
    "bytes-strings": np.array([str(seq).encode() for seq in SEQ]),
    "objects": np.array(SEQ, dtype=object),
    "float16": np.array(SEQ, np.float16),
    "complex": np.array(SEQ, complex),
    "times": np.array(SEQ, "M8[ms]"),
    "durations": np.array(SEQ, "m8[ms]"),
    "records": np.zeros(11, [("a", "i4"), ("b", "i4")]),
    "list": SEQ,
    "none": None,
    "number": 5,
    "text": "0123456789a",
    "swapped memoryview": memoryview(np.array(SEQ, ">i4")),
    "arrow scalar": pa.scalar(5),
}


@pytest.mark.parametrize("kind", NO_COLUMNS)
@pytest.mark.parametrize("name", TYPES)
def test_a_column_that_is_not_numeric_is_refused_by_name(kind: str, name: str) -> None:
    values: Any = NO_COLUMNS[kind]
    table = fp.StateTable("any_order")
    with pytest.raises(fp.BatchError) as caught:
        table.apply(numpy_mapping(ROWS) | {name: values})
    dtype = f" of dtype {values.dtype}" if isinstance(values, np.ndarray) else ""
    class_ = {
        "MaskedArray": "numpy.ma.MaskedArray",
        "ndarray": "numpy.ndarray",
        "Int64Scalar": "pyarrow.lib.Int64Scalar",
    }
    found = class_.get(type(values).__name__, type(values).__name__)
    assert caught.value.message.startswith(f"column '{name}': {found}{dtype} is neither")
    assert "one-dimensional NumPy array" in caught.value.message
    assert (caught.value.column, caught.value.row) == (name, None)
    assert len(table) == 0


@pytest.mark.parametrize("name", TYPES)
def test_booleans_of_numpy_are_booleans(name: str) -> None:
    with pytest.raises(fp.BatchError, match=f"column '{name}': is of type Boolean"):
        fp.StateTable("any_order").apply(numpy_mapping(ROWS) | {name: np.zeros(11, bool)})


# Streams


def test_a_stream_may_query_the_table_that_reads_it() -> None:
    """The table is not locked while a stream is read: a generator in the stream may query the table."""
    table = fp.StateTable("any_order")
    table.apply(ROWS[:3])
    seen = []

    def batches_that_ask() -> Any:
        for batch in ROWS.to_batches(max_chunksize=4):
            seen.append((len(table), table.get(7, 0) is not None))
            yield batch

    rows = pa.RecordBatchReader.from_batches(ROWS.schema, batches_that_ask())
    assert table.apply(rows).counts[DUPLICATE] == 5
    assert seen == [(2, True)] * 3


def test_a_stream_that_fails_changes_nothing() -> None:
    table = fp.StateTable("any_order")
    before = table.snapshot()

    def batches_that_fail() -> Any:
        yield ROWS.to_batches()[0]
        raise RuntimeError("disk on fire")

    with pytest.raises(fp.BatchError, match="disk on fire"):
        table.apply(pa.RecordBatchReader.from_batches(ROWS.schema, batches_that_fail()))
    assert table.snapshot() == before
    assert table.apply(ROWS).counts[ACCEPTED] == 8


def test_many_rows_in_small_chunks_are_one_input() -> None:
    count = 200_000
    rows = pa.table(
        {
            "pid": np.arange(count) % 100,
            "epoch": np.zeros(count, np.int16),
            "partition": np.zeros(count, np.int32),
            "seq": np.arange(count) // 100,
        }
    )
    table, other = fp.StateTable("strict"), fp.StateTable("strict")
    assert table.apply(rows).counts[ACCEPTED] == count
    reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=777))
    assert other.apply(reader).counts[ACCEPTED] == count
    assert table.snapshot() == other.snapshot()


# Timestamps, where they are kept


MS = [-1, 0, 1_700_000_000_123]
UNITS = {"s": (1, 1000), "ms": (1, 1), "us": (1000, 1), "ns": (1_000_000, 1)}


def timestamps_of(unit: str, zone: str | None = None) -> pa.Array:
    """MS in another unit, a little after each millisecond where there is something finer, and before it for seconds."""
    finer, coarser = UNITS[unit]
    return pa.array([ms // coarser * finer + finer // 2 for ms in MS]).cast(pa.timestamp(unit, zone))


TIMESTAMPS: dict[str, Callable[[], Any]] = {
    "int64": lambda: pa.array(MS),
    "chunks": lambda: pa.chunked_array([MS[:1], [], MS[1:]]),
    "NumPy": lambda: np.array(MS),
    **{f"timestamp of {unit}": lambda unit=unit: timestamps_of(unit) for unit in UNITS},
    "with a zone": lambda: timestamps_of("us", "Europe/Berlin"),
    "dictionary": lambda: timestamps_of("ns").dictionary_encode(),
    "run ends": lambda: pc.run_end_encode(timestamps_of("us")),
    "slice": lambda: pa.concat_arrays([timestamps_of("us"), timestamps_of("us")]).slice(3),
    "polars": lambda: pl.Series(timestamps_of("us")),
    "pandas": lambda: pd.Series(timestamps_of("ms").to_pandas()).astype(pd.ArrowDtype(pa.timestamp("ms"))),
}


@pytest.mark.parametrize("kind", TIMESTAMPS)
def test_timestamps_of_every_type_are_milliseconds(kind: str) -> None:
    """Of any unit the millisecond that has begun counts, before 1970 too."""
    table = fp.StateTable("any_order", keep=("timestamp",))
    zeros = np.zeros(3, int)
    table.apply(
        {"pid": np.arange(3), "epoch": zeros, "partition": zeros, "seq": zeros, "timestamp": TIMESTAMPS[kind]()}
    )
    coarser = 1000 if kind.endswith(" s") else 1
    assert pa.table(table.entries())["last_timestamp"].to_pylist() == [ms // coarser * coarser for ms in MS]


@pytest.mark.parametrize(
    "narrow", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
)
def test_timestamps_of_any_width(narrow: pa.DataType) -> None:
    table = fp.StateTable("kafka", keep=("timestamp",))
    table.apply(ROWS.append_column("timestamp", pa.array(range(len(ROWS)), narrow)))
    assert pa.table(table.entries())["last_timestamp"].to_pylist() == [7, 9]


def test_timestamps_of_untracked_rows_are_not_read() -> None:
    table = fp.StateTable("any_order", keep=("timestamp",))
    zeros = np.zeros(2, int)
    rows = {"pid": pa.array([None, 7]), "epoch": zeros, "partition": zeros, "seq": zeros}
    for timestamps in (pa.array([None, 5]), pa.array([2**62, 5], pa.timestamp("s")).take(pa.array([0, 1]))):
        verdicts = fp.StateTable("any_order", keep=("timestamp",)).apply(rows | {"timestamp": timestamps})
        assert pa.array(verdicts.verdict).to_pylist() == [UNTRACKED, ACCEPTED]
    assert len(table) == 0


@pytest.mark.parametrize("name", ["epoch", "partition", "seq", "timestamp"])
def test_reports_on_integers_of_untracked_rows_that_int64_does_not_hold(name: str) -> None:
    rows = pa.table({it: [0, 0, 0] for it in (*TYPES, "timestamp")})
    rows = with_column(rows, "pid", pa.array([7, None, 7], pa.int64()))
    rows = with_column(rows, name, pa.array([0, 2**64 - 1, 0], pa.uint64()))
    columns = fp.Columns(timestamp="timestamp")
    assert len(fp.deduplicate(rows, columns=columns)) == 2
    assert fp.audit(rows, columns=columns).counts == {"ACCEPTED": 1, "DUPLICATE": 1, "UNTRACKED": 1}
    assert fp.explain(rows, columns=columns)["verdict"].to_pylist() == ["ACCEPTED", "UNTRACKED", "DUPLICATE"]
    assert fp.advise(rows, columns).rows == 3


def test_a_timestamp_that_is_not_kept_is_not_read() -> None:
    rows = ROWS.append_column("timestamp", pa.array(["no time"] * len(ROWS)))
    for columns in (None, fp.Columns(timestamp="timestamp"), fp.Columns(timestamp="nowhere")):
        verdicts = fp.StateTable("any_order").apply(rows, columns)
        assert pa.array(verdicts.verdict).to_pylist() == VERDICTS["any_order"]


def test_deduplicate_reads_timestamps() -> None:
    rows = ROWS.append_column("at", pa.array(range(len(ROWS))))
    for kind in (lambda it: it, pl.from_arrow, pa.Table.to_pandas):
        table = fp.StateTable("any_order", keep=("timestamp",))
        kept = fp.deduplicate(kind(rows), columns=fp.Columns(timestamp="at"), table=table)
        assert len(kept) == ANY_ORDER.count(ACCEPTED) + ANY_ORDER.count(UNTRACKED)
        assert table.get(8, 2)["last_timestamp"] == 9  # type: ignore[index]


# Rows that must be collected or opened first


LAZY: dict[str, Callable[[pa.Table], Any]] = {
    "polars-lazy": lambda rows: pl.from_arrow(rows).lazy(),  # type: ignore[union-attr]
    "pyarrow-dataset": ds.dataset,
    "pyarrow-scanner": lambda rows: ds.dataset(rows).scanner(),
}


@pytest.mark.parametrize("kind", LAZY)
def test_lazy_rows_are_read(kind: str) -> None:
    expected = fp.deduplicate(ROWS)
    found = fp.deduplicate(LAZY[kind](ROWS))
    assert isinstance(found, pl.DataFrame if kind == "polars-lazy" else pa.Table)
    assert pa.table(found).to_pylist() == expected.to_pylist()
    assert fp.audit(LAZY[kind](ROWS)).counts == fp.audit(ROWS).counts
    assert fp.advise(LAZY[kind](ROWS)).policies.to_pylist() == fp.advise(ROWS).policies.to_pylist()
    assert pa.table(fp.explain(LAZY[kind](ROWS)))["reason"].to_pylist() == fp.explain(ROWS)["reason"].to_pylist()


def test_an_audit_reads_only_the_identity_of_lazy_rows() -> None:
    def refuse(_: Any) -> Any:
        raise AssertionError("read a column outside the identity")

    rows = pl.from_arrow(ROWS).lazy().with_columns(other=pl.col("seq").map_batches(refuse, pl.Int64))  # type: ignore[union-attr]
    assert fp.audit(rows).counts == fp.audit(ROWS).counts


# An identity in struct columns

NESTED = fp.Columns(pid="at.device.id", epoch="at.epoch", seq="at.seq")


def nested(rows: pa.Table) -> pa.Table:
    """The partition as a column, everything else within a struct."""
    events = [{"device": {"id": it["pid"]}, "epoch": it["epoch"], "seq": it["seq"]} for it in rows.to_pylist()]
    return pa.table({"at": events, "partition": rows["partition"]})


@pytest.mark.parametrize(
    "kind",
    [
        lambda rows: rows,
        lambda rows: one_batch(rows),
        lambda rows: rows.to_reader(max_chunksize=4),
        pl.from_arrow,
        lambda rows: pl.from_arrow(rows).lazy(),
        lambda rows: pd.DataFrame(rows.to_pylist()),
        lambda rows: {name: rows[name] for name in rows.column_names},
        ds.dataset,
    ],
)
def test_identities_in_struct_columns(kind: Constructor) -> None:
    rows = nested(ROWS)
    found = fp.deduplicate(kind(rows), columns=NESTED)
    kept = [at for at, verdict in enumerate(ANY_ORDER) if verdict in (ACCEPTED, UNTRACKED)]
    plain = pa.Table.from_pandas(found, preserve_index=False) if isinstance(found, pd.DataFrame) else pa.table(found)
    assert plain.to_pylist() == rows.take(kept).to_pylist()
    assert fp.audit(kind(rows), columns=NESTED).counts == fp.audit(ROWS).counts
    assert fp.advise(kind(rows), NESTED).policies.to_pylist() == fp.advise(ROWS).policies.to_pylist()
    reasons = fp.explain(kind(rows), columns=NESTED)["reason"]
    assert list(pa.array(reasons).to_pylist()) == fp.explain(ROWS)["reason"].to_pylist()


@pytest.mark.parametrize("kind", [lambda rows: rows, lambda rows: one_batch(rows), pl.from_arrow])
def test_slices_with_structs_in_structs(kind: Constructor) -> None:
    """Arrow's Rust library cannot import such a column of a slice; deduplicate reads the identity columns only."""
    rows = ROWS.append_column("payload", pa.array([{"a": {"b": row}} for row in range(len(ROWS))]))
    numbered = ROWS.append_column("row", pa.array(range(len(ROWS))))
    for start in (1, 3):
        found = pa.table(fp.deduplicate(kind(rows.slice(start))))["payload"].to_pylist()
        assert [it["a"]["b"] for it in found] == fp.deduplicate(numbered.slice(start))["row"].to_pylist()
        verdicts = [fp.StateTable("any_order").apply(kind(it.slice(start))).verdict for it in (rows, ROWS)]
        assert pa.array(verdicts[0]).equals(pa.array(verdicts[1]))


def test_a_stream_that_cannot_be_imported_is_an_error() -> None:
    """A panic of Arrow's Rust library would be an exception that `except Exception` does not catch."""
    rows = ROWS.append_column("payload", pa.array([{"a": {"b": row}} for row in range(len(ROWS))])).slice(1)
    table = fp.StateTable("any_order")
    with pytest.raises(Exception, match="the stream failed"):
        table.apply(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))
    assert len(table) == 0
    table.apply(ROWS)


@pytest.mark.parametrize("function", [fp.deduplicate, fp.audit, fp.explain, fp.advise])
@pytest.mark.parametrize("is_last", [True, False])
def test_identity_columns_that_occur_twice(function: Callable[[Any], Any], is_last: bool) -> None:
    names = ["pid", "epoch", "partition", "seq", *(["note", "seq"] if is_last else ["seq", "note"])]
    rows = pa.Table.from_arrays([pa.array([0, 1])] * len(names), names=names)
    for kind in (rows, rows.to_batches()[0]):
        with pytest.raises(fp.BatchError, match=r"column 'seq'.* twice") as error:
            function(kind)
        assert error.value.column == "seq"


def test_content_of_slices_with_structs_in_structs() -> None:
    """An audit that compares content reads these columns, but passes the identity columns only to the native code."""
    payload = pa.array([{"a": {"b": row % 2}} for row in range(len(ROWS))])
    rows, flat = ROWS.append_column("payload", payload), ROWS.append_column("b", pc.struct_field(payload, [0, 0]))
    for start in (1, 3):
        found, expected = (fp.audit(it.slice(start), compare_content=True) for it in (rows, flat))
        assert (found.counts, found.conflicts) == (expected.counts, expected.conflicts)
        pieces = pa.RecordBatchReader.from_batches(rows.schema, rows.slice(start).to_batches(max_chunksize=2))
        assert fp.audit(pieces, compare_content=["payload"]).counts == expected.counts


def test_rows_whose_struct_is_null_are_untracked() -> None:
    at = nested(ROWS)["at"].combine_chunks()
    is_null = pa.array([row % 3 == 0 for row in range(len(at))])
    fields = [pc.struct_field(at, [number]) for number in range(at.type.num_fields)]
    with_nulls = pa.StructArray.from_arrays(fields, fields=list(at.type), mask=is_null)  # the fields have values
    rows = pa.table({"at": with_nulls, "partition": ROWS["partition"]})
    flat = pa.table({name: pc.if_else(is_null, None, ROWS[name].combine_chunks()) for name in ROWS.column_names})
    for start in (0, 1):
        found, expected = (fp.audit(it.slice(start), columns=by) for it, by in ((rows, NESTED), (flat, None)))
        assert found.counts == expected.counts
        assert found.counts["UNTRACKED"] > ANY_ORDER.count(UNTRACKED)


@pytest.mark.parametrize("at", [[None, None], [{"more": None}, {"more": None}]], ids=["struct", "struct in a struct"])
def test_rows_whose_structs_are_all_null_are_untracked(at: list[Any]) -> None:
    """Such a column has no type in pandas, and in a stream of JSON."""
    rows = pa.table({"at": pa.array(at), "partition": [0, 0], "epoch": [0, 0], "seq": [0, 0]})
    columns = fp.Columns(pid="at.more.pid")
    for some in (rows, rows.to_pandas(), rows.slice(1).to_pandas(), rows.slice(2).to_pandas()):
        assert fp.audit(some, columns=columns).counts.get("UNTRACKED", 0) == len(some)
        assert len(fp.deduplicate(some, columns=columns)) == len(some)
        assert set(fp.explain(pa.table(some), columns=columns)["verdict"].to_pylist()) <= {"UNTRACKED"}


@pytest.mark.parametrize("name", ["at.nothing", "seq.device", "at.device.id.more"])
def test_fields_that_do_not_exist(name: str) -> None:
    rows = nested(ROWS).append_column("seq", ROWS["seq"])
    for call in (fp.deduplicate, fp.audit, fp.explain):
        with pytest.raises(fp.BatchError, match="no such field") as caught:
            call(rows, columns=dataclasses.replace(NESTED, pid=name))
        assert caught.value.column == name


def test_a_column_takes_precedence_over_a_field_of_the_same_name() -> None:
    rows = nested(ROWS).append_column("at.seq", ROWS["seq"]).drop_columns("at").append_column("at", ROWS["pid"])
    columns = fp.Columns(pid="at", epoch=None, seq="at.seq")
    policy = fp.Policy.any_order().replace(epochs="ignore")
    flat = rows.rename_columns(["partition", "seq", "pid"])
    assert fp.audit(rows, policy, columns).counts == fp.audit(flat, policy, fp.Columns(epoch=None)).counts


# Epochs that are none


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["6f1c", "6f1c", "aa01"]),
        pa.array([b"0123456789abcdef", b"0123456789abcdef", b"another boot, id"], pa.binary(16)),
        pa.array([1, 1, 2], pa.timestamp("ms")),
        pa.array([1764000000000, 1764000000000, 1764000000007]),
    ],
    ids=lambda it: str(it.type),
)
def test_the_remedy_for_an_invalid_epoch_works(values: pa.Array) -> None:
    rows = pa.table({"device": [7] * 3, "boot": values, "partition": [0] * 3, "seq": [0] * 3})
    with pytest.raises(fp.BatchError, match=r"pid=\('device', 'boot'\), epoch=None.*--set epochs=ignore") as caught:
        fp.deduplicate(rows, columns=fp.Columns(pid="device", epoch="boot"))
    assert caught.value.column == "boot"
    if pa.types.is_timestamp(values.type):
        assert caught.value.message.endswith("Cast it to int64 first")
        rows = rows.set_column(1, "boot", values.cast(pa.int64()))
    policy = fp.Policy.any_order().replace(epochs="ignore", columns=fp.Columns(pid=("device", "boot"), epoch=None))
    assert len(fp.deduplicate(rows, policy)) == 2


@pytest.mark.parametrize("values", [[0, -1, 0], [0, None, 0]])
def test_other_wrong_epochs_have_no_such_remedy(values: list[int | None]) -> None:
    with pytest.raises(fp.BatchError) as caught:
        fp.deduplicate(pa.table({"pid": [7] * 3, "epoch": values, "partition": [0] * 3, "seq": [0, 1, 2]}))
    assert "boot" not in caught.value.message


class Exported:
    """A batch of another library."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.batch.__arrow_c_array__(requested_schema)


def test_a_panic_of_the_import_is_an_error() -> None:
    """The Rust library of Arrow refuses slices of structs in structs by a panic, which `except Exception` lets pass."""
    inner = pa.StructArray.from_arrays([pa.array(range(10))], ["value"])
    sliced = pa.StructArray.from_arrays([inner], ["inner"]).slice(3, 5)
    identity = {name: pa.array([7] * 5) for name in ("pid", "epoch", "partition")}
    table = fp.StateTable("any_order")
    with pytest.raises(ValueError, match="cannot be imported"):
        table.apply(Exported(pa.record_batch(identity | {"seq": pa.array(range(5)), "more": sliced})))
    with pytest.raises(fp.BatchError, match=r"column 'seq': .*cannot be imported"):
        table.apply(identity | {"seq": sliced})
    assert len(table) == 0
