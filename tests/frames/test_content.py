"""Checksums of rows: equal rows in other encodings are equal, and any other value is another row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import combinations
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import pytest
from fencepost import content
from hypothesis import given, settings
from hypothesis import strategies as st


def of(*arrays: Any) -> list[int]:
    names = [f"c{place}" for place in range(len(arrays))]
    found: list[int] = content.checksums(pa.table(dict(zip(names, arrays, strict=True))), names).tolist()
    return found


LISTS = [[1, 2], [2, 1], [], None, [None], [1, None], [1, 2, 3]]
STRUCTS = [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": None}, None]
UNITS = ("s", "ms", "us", "ns")
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
ENCODINGS: dict[str, tuple[list[Any], list[pa.DataType]]] = {
    "integers": ([0, 1, -1, 127, None], [pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
    "large integers": ([0, 2**63, 2**64 - 1, 7], [pa.uint64(), pa.dictionary(pa.int8(), pa.uint64())]),
    "floats": ([0.0, 1.5, -1.5, float("inf"), None], [pa.float16(), pa.float32(), pa.float64()]),
    "decimals": (
        [Decimal("1.50"), Decimal("-1.5"), Decimal(0), None],
        [pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal256(40, 3)],
    ),
    "texts": (["", "a", "ab", "ba", "ä", "a\0", None], TEXTS),
    "binary": ([b"ab", b"ba", b"\0\0", None], [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]),
    "booleans": ([True, False, None], [pa.bool_()]),
    "dates": ([dt.date(1969, 12, 31), dt.date(2026, 1, 1), None], [pa.date32(), pa.date64()]),
    "times": (
        [dt.time(0), dt.time(1, 2, 3), None],
        [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    ),
    "instants": (
        [dt.datetime(1969, 12, 31, 1), dt.datetime(2026, 1, 1), None],
        [pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "UTC")],
    ),
    "durations": ([dt.timedelta(0), dt.timedelta(seconds=-3), None], [pa.duration(unit) for unit in UNITS]),
    "lists": (LISTS, [pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_view(pa.int32())]),
    "lists of texts": ([["a", "b"], ["ab", ""], ["ab"], None], [pa.list_(pa.string()), pa.list_(pa.large_string())]),
    "structs": (
        STRUCTS,
        [pa.struct([("a", pa.int8()), ("b", pa.string())]), pa.struct([("b", pa.large_string()), ("a", pa.int64())])],
    ),
    "maps": (
        [[("a", 1), ("b", 2)], [("a", 2), ("b", 1)], [], None],
        [pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.int64())],
    ),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_equal_values_are_equal_in_every_encoding_and_others_are_not(name: str) -> None:
    values, kinds = ENCODINGS[name]
    found = [
        of(pa.array(values).cast(kind) if name in ("times", "decimals") else pa.array(values, kind)) for kind in kinds
    ]
    assert all(it == found[0] for it in found), name
    for one, other in combinations(found[0], 2):
        assert one != other


ON_DISK = {
    "integers": 0xB1D62E1969E828C4,
    "large integers": 0x93184837AA443E5A,
    "floats": 0xFCB77731F767D660,
    "decimals": 0x731B70736FC803DA,
    "texts": 0x1FDA0E492A677CBB,
    "binary": 0x49845CD480B6F312,
    "booleans": 0x83D1E1992D272EC6,
    "dates": 0xA8ECCB4DE585915E,
    "times": 0x4421AFDF930EDD26,
    "instants": 0x7286D0D4964F8451,
    "durations": 0xE23100AA98A90F5E,
    "lists": 0xC18CC68D7C540627,
    "lists of texts": 0x0AA4A36098F4A45A,
    "structs": 0x0EF6EB237F4CF404,
    "maps": 0x4A9CAE7613C082BB,
}
"""The sum of the checksums of each line of ENCODINGS. States hold checksums (`fencepost.state.checksums`): another
value here needs another version there."""


def test_checksums_never_change() -> None:
    assert ON_DISK.keys() == ENCODINGS.keys()
    for name, (values, (kind, *_)) in ENCODINGS.items():
        array = pa.array(values).cast(kind) if name in ("times", "decimals") else pa.array(values, kind)
        assert sum(of(array)) % 2**64 == ON_DISK[name], name


def test_numbers_that_are_equal() -> None:
    assert len({*of(pa.array([0.0, -0.0]))}) == 1
    payloads = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert len({*of(pa.array(payloads))}) == 1
    assert len({*of(pa.array([1], pa.int8())), *of(pa.array([1], pa.uint64()))}) == 1
    assert of(pa.array([1])) != of(pa.array([1.0])) != of(pa.array(["1"])) != of(pa.array([b"1"]))


def test_entries_of_a_map_and_columns_have_no_order() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    one, other = of(pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]], kind))
    assert one == other
    rows = pa.table({"a": [1, 2], "b": ["x", "y"]})
    found = content.checksums(rows, ["a", "b"]).tolist()
    assert found == content.checksums(rows.select(["b", "a"]), ["b", "a"]).tolist()
    swapped = rows.rename_columns(["b", "a"])
    assert found != content.checksums(swapped, ["a", "b"]).tolist()


def test_a_column_of_nulls_equals_a_missing_column() -> None:
    rows = pa.table({"a": [1, 2], "added": pa.array([None, 5])})
    both, one = content.checksums(rows, ["a", "added"]).tolist(), content.checksums(rows, ["a"]).tolist()
    assert (both[0] == one[0], both[1] == one[1]) == (True, False)


VALUES = st.none() | st.integers(-5, 5) | st.sampled_from([2**62, -(2**62)])
NESTED = st.lists(
    st.fixed_dictionaries({"t": st.none() | st.text(max_size=4), "n": st.none() | st.lists(VALUES, max_size=3)}),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(NESTED, st.integers(0, 5))
def test_equal_rows_are_those_that_python_calls_equal(rows: list[dict[str, Any]], skipped: int) -> None:
    kind = pa.struct([("t", pa.string()), ("n", pa.list_(pa.int64()))])
    table = pa.table({"x": pa.chunked_array([pa.array(rows, kind), pa.array(rows[skipped:], kind)])})
    found = content.checksums(table, ["x"]).tolist()
    values = table["x"].to_pylist()
    for one, other in combinations(range(len(values)), 2):
        assert (found[one] == found[other]) == (values[one] == values[other])
    sliced = table.slice(min(skipped, len(values)))
    assert content.checksums(sliced, ["x"]).tolist() == found[min(skipped, len(values)) :]


@pytest.mark.parametrize("together", [1, 7, 1 << 22])
def test_long_texts_are_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    texts = ["x" * length for length in (0, 1, 5, 300, 0, 7)]
    whole = of(pa.array(texts))
    monkeypatch.setattr(content, "BYTES_TOGETHER", together)
    assert of(pa.array(texts)) == whole


def test_a_type_without_equality_is_refused() -> None:
    rows = pa.table({"a": pa.array([pa.MonthDayNano([1, 2, 3])])})
    with pytest.raises(fp.BatchError, match="column 'a': month_day_nano_interval has no checksum") as info:
        content.checksums(rows, ["a"])
    assert info.value.column == "a"


def test_the_columns_that_are_compared() -> None:
    names = ["pid", "seq", "x", "y"]
    assert content.content_columns(names, ["pid", "seq"], ()) == ["x", "y"]
    assert content.content_columns(names, ["pid", "seq"], ("y", "seq")) == ["y", "seq"]
    with pytest.raises(fp.BatchError, match="column 'z': missing, but compare_content"):
        content.content_columns(names, ["pid", "seq"], ("z",))
