"""Rows to partitions, and numbers on rows."""

from __future__ import annotations

from typing import Any

import fencepost as fp
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
from fencepost.inputs import rows_of
from fencepost.producer.stamping import Router, murmur2, read_positions, stamp, stamp_positions

MAX = 2**31 - 1

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def slow_murmur2(data: bytes) -> int:
    """Word by word, as Utils.murmur2 does it. Unsigned."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(data)
    for at in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        found = (found * m & mask) ^ k
    rest = data[len(data) // 4 * 4 :]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * m & mask
    found = (found ^ found >> 13) * m & mask
    return found ^ found >> 15


def test_keys_have_the_hashes_of_kafkas_own_test() -> None:
    found = murmur2(pa.array(list(KAFKA))).astype(np.int32).tolist()
    assert found == list(KAFKA.values())
    assert [slow_murmur2(key) for key in KAFKA] == [value % 2**32 for value in KAFKA.values()]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
    ids=str,
)
def test_every_kind_of_text_and_bytes(kind: pa.DataType) -> None:
    keys = ["", "a", "ab", "abc", "abcd", "abcde", "ä", "x" * 1000, None, "last"]
    array = pa.array(["skipped", *keys], pa.string()).cast(kind)[1:]
    found = murmur2(array)
    for key, value in zip(keys, found, strict=True):
        if key is not None:
            assert value == slow_murmur2(key.encode())
    assert len(murmur2(array[:0])) == 0


@pytest.mark.parametrize(("kind", "width"), [(pa.int16(), 2), (pa.int32(), 4), (pa.int64(), 8)])
def test_integers_are_big_endian_as_kafkas_serializers_have_them(kind: pa.DataType, width: int) -> None:
    keys = [0, 1, -1, 12345, -(2 ** (8 * width - 1))]
    found = murmur2(pa.array([7, *keys], kind)[1:])
    assert found.tolist() == [slow_murmur2(key.to_bytes(width, "big", signed=True)) for key in keys]


def test_fixed_width_bytes() -> None:
    found = murmur2(pa.array([b"xyz", b"abc"], pa.binary(3))[1:])
    assert found.tolist() == [slow_murmur2(b"abc")]


@pytest.mark.parametrize("kind", [pa.float64(), pa.uint64(), pa.bool_(), pa.timestamp("ms")], ids=str)
def test_keys_that_kafka_has_no_serializer_for_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(fp.BatchError, match=r"column 'k': .*text, binary, int16, int32 or int64") as caught:
        Router(2, key="k").deal(pa.table({"k": pa.array([1, 0], pa.int8()).cast(pa.int64()).cast(kind)}))
    assert caught.value.column == "k"


def dealt(router: Router, table: pa.Table) -> dict[int, list[Any]]:
    return {number: part["v"].to_pylist() for number, part in router.deal(table)}


@pytest.mark.parametrize("dictionary", [False, True])
def test_keys_choose_and_order_stays(dictionary: bool) -> None:
    keys = [f"user {number % 50}" for number in range(1000)]
    column = pa.chunked_array([pa.array(keys[:300]), pa.array(keys[300:])])
    table = pa.table({"k": column.dictionary_encode() if dictionary else column, "v": range(1000)})
    found = dealt(Router(7, key="k"), table)
    wanted: dict[int, list[int]] = {}
    for value, key in enumerate(keys):
        wanted.setdefault((slow_murmur2(key.encode()) & 0x7FFFFFFF) % 7, []).append(value)
    assert found == wanted
    assert len(found) == 7


def test_rows_without_a_key_stay_together() -> None:
    router = Router(3)
    table = pa.table({"v": [1, 2]})
    assert [dealt(router, table) for _ in range(4)] == [{0: [1, 2]}, {1: [1, 2]}, {2: [1, 2]}, {0: [1, 2]}]
    router = Router(1000, key="k")
    found = dealt(router, pa.table({"k": [None, "a", None], "v": [1, 2, 3]}))
    assert found[0] == [1, 3]
    assert dealt(router, pa.table({"k": pa.array([None], pa.string()), "v": [4]})) == {1: [4]}
    assert dealt(router, pa.table({"k": pa.array([None]).cast(pa.string()).dictionary_encode(), "v": [4]})) == {2: [4]}
    inside = pa.DictionaryArray.from_arrays([0, 1, 0], pa.array([None, "a"]))
    assert dealt(Router(1000, key="k"), pa.table({"k": inside, "v": [1, 2, 3]})) == found, "a null in the dictionary"
    assert dealt(router, read([{"k": None, "v": 5}, {"k": None, "v": 6}])) == {3: [5, 6]}, "a column without a type"


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["a", None]),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None])),
    ],
    ids=["text", "dictionary", "null in the dictionary"],
)
def test_in_cursor_mode_every_row_has_a_key(keys: pa.Array) -> None:
    """A null key would go to another partition when the row is read again."""
    table = pa.table({"k": keys, "at": [0, 1]})
    with pytest.raises(fp.BatchError, match=r"column 'k', row 1: null, .*cursor mode") as caught:
        Router(2, key="k", position="at").deal(table)
    assert (caught.value.column, caught.value.row) == ("k", 1)
    assert [number for number, _ in Router(1, key="k", position="at").deal(table)] == [0]
    with pytest.raises(fp.BatchError, match="column 'k', row 0: null"):
        Router(2, key="k", position="at").deal(read([{"k": None, "at": 0}]))


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()], ids=str)
def test_a_column_gives_the_partition(kind: pa.DataType) -> None:
    table = pa.table({"p": pa.array([1, 0, 1], kind), "v": [1, 2, 3]})
    assert dealt(Router(2, partition_by="p"), table) == {0: [2], 1: [1, 3]}
    assert dealt(Router(2**31 - 1, partition_by="p"), table) == {0: [2], 1: [1, 3]}


@pytest.mark.parametrize(
    ("column", "row", "message"),
    [
        (pa.array([0, 3, 1]), 1, "column 'p', row 1: 3, but the partitions are 0 to 2"),
        (pa.array([0, 1, -1]), 2, "column 'p', row 2: -1, .* 0 to 2$"),
        (pa.array([None, 1]), 0, "column 'p', row 0: null, .* 0 to 2$"),
        (pa.array([0.0]), None, "column 'p': double, .*integer$"),
    ],
)
def test_invalid_partitions_are_refused(column: pa.Array, row: int | None, message: str) -> None:
    with pytest.raises(fp.BatchError, match=message) as caught:
        Router(3, partition_by="p").deal(pa.table({"p": column}))
    assert (caught.value.column, caught.value.row) == ("p", row)


def test_columns_that_are_missing_or_taken_are_refused() -> None:
    with pytest.raises(fp.BatchError, match=r"column 'k': missing; .* v$"):
        Router(2, key="k").deal(pa.table({"v": [1]}))
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array(["x"])], names=["k", "v", "v"])
    with pytest.raises(fp.BatchError, match=r"column .v.: .* more than once"):
        Router(2, key="k").deal(twice)
    with pytest.raises(fp.BatchError, match="column 'seq': the producer writes pid, epoch, partition, seq"):
        Router(2).deal(pa.table({"seq": [1]}))
    with pytest.raises(fp.BatchError, match="column 'partition': the producer writes"):
        Router(2).deal(pa.table({"partition": [1]}))
    assert dealt(Router(2, partition_by="partition"), pa.table({"partition": [1], "v": [5]})) == {1: [5]}


def test_rows_of_all_tabular_types_are_accepted() -> None:
    wanted = pa.table({"a": [1, 2], "b": ["x", None]})
    batch = wanted.to_batches()[0]
    given = [wanted, batch, wanted.to_reader(), pl.DataFrame({"a": [1, 2], "b": ["x", None]}), wanted.to_pandas()]
    given += [wanted.to_pylist(), {"a": np.array([1, 2]), "b": pa.array(["x", None])}, tuple(wanted.to_pylist())]
    for rows in given:
        assert read(rows).to_pylist() == wanted.to_pylist()


def test_a_selection_of_a_pandas_frame_has_its_columns_only() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]})
    assert read(frame[frame["a"] > 1]).to_pylist() == [{"a": 2, "b": None}, {"a": 3, "b": "z"}]
    assert read(frame.set_index("b")).column_names == ["a", "b"], "an index with a name is a column"
    for odd, problem in (
        (pd.DataFrame({"a": [1, "x"], "b": [1, 2]}), "column 'a': .*"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "not form a table: .*"),
    ):
        with pytest.raises(fp.BatchError, match=f"{problem}; nothing of this call"):
            read(odd)


def test_invalid_rows_are_refused() -> None:
    for given in (5, "rows", [{"a": 1}, 2]):
        with pytest.raises(TypeError, match=f"{type(given).__name__} is not tabular"):
            read(given)
    for columns in ({"a": 1}, {"a": "xy"}, {"a": {"b": 1}}):
        with pytest.raises(TypeError, match=r"'a': .* is not an array: .*\[event\]"):
            read(columns)


def test_a_column_that_some_events_do_not_have_is_null_there() -> None:
    assert read([{"a": 1}, {"a": 1, "b": 2}]).to_pylist() == [{"a": 1, "b": None}, {"a": 1, "b": 2}]


def read(rows: Any) -> pa.Table:
    return rows_of(rows, "nothing of this call was sent")


SURROGATE = "b\udcffad"
ODD_ROWS: list[tuple[Any, int | None, str]] = [
    ([{"a": 1}, {"a": 2}, {"a": "x"}], 2, r"'x': .*"),
    ([{"a": "x"}, {"a": SURROGATE}], 1, "lone surrogate"),
    ({"a": ["x", None, SURROGATE, "y"]}, 2, "lone surrogate"),
    ({"a": [1, 2, object()]}, 2, "object"),
    ([{"a": 2**70}], 0, str(2**70)),
    ({"b": [1, 2], "a": [1]}, None, "not form a table.*"),
]


@pytest.mark.parametrize(("rows", "row", "problem"), ODD_ROWS)
def test_values_that_make_no_column_are_refused_by_name(rows: Any, row: int | None, problem: str) -> None:
    with pytest.raises(fp.BatchError, match=f"{problem}.*; nothing of this call") as caught:
        read(rows)
    assert caught.value.row == row
    if "form a table" not in problem:
        assert caught.value.column == "a"


@pytest.mark.parametrize(
    ("first", "wanted"),
    [(0, [0, 1, 2]), (MAX - 2, [MAX - 2, MAX - 1, MAX]), (MAX - 1, [MAX - 1, MAX, 0]), (MAX, [MAX, 0, 1])],
)
def test_sequences_wrap(first: int, wanted: list[int]) -> None:
    found = stamp(pa.table({"v": [5, 6, 7]}), 2**62, MAX >> 16, MAX, first)
    assert found["seq"].to_pylist() == wanted
    assert found["pid"].to_pylist() == [2**62] * 3
    assert found["epoch"].to_pylist() == [2**15 - 1] * 3
    assert found["partition"].to_pylist() == [MAX] * 3
    assert found["v"].to_pylist() == [5, 6, 7]


def test_positions_stand_for_sequences() -> None:
    table = pa.table({"at": [3, 2**40], "v": ["a", "b"]})
    assert read_positions(table, "at", None) == (3, 2**40)
    assert stamp_positions(table, 1, 0, 0, "at")["seq"].to_pylist() == [3, 2**40]
    for column, after, message in [
        ([3, 3], None, "column 'at', row 1 of its partition: position 3 follows 3"),
        ([3, 4], 3, "row 0 of its partition: position 3 follows 3"),
        ([-1, 4], None, "row 0 of its partition: -1, but positions are 0 to"),
        ([3, None], None, "column 'at', row 1 of its partition: null"),
        (["3", "4"], None, "column 'at': string"),
        (
            pa.array([3, 2**63], pa.uint64()),
            None,
            f"column 'at', row 1 of its partition: {2**63}, but positions are 0 to",
        ),
    ]:
        with pytest.raises(fp.BatchError) as caught:
            read_positions(pa.table({"at": column}), "at", after)
        assert message in str(caught.value)
    assert read_positions(pa.table({"at": pa.array([3, 2**63 - 1], pa.uint64())}), "at", 2) == (3, 2**63 - 1)
    with pytest.raises(fp.BatchError, match="column 'at': missing"):
        read_positions(pa.table({"v": [1]}), "at", None)
