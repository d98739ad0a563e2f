"""Parquet files of every encoding, and what a file without some of its rows must hold."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost._native import Rewritten, rewrite

CODECS = ("NONE", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4")


def random_bytes(rng: random.Random, length_max: int = 12) -> bytes:
    return rng.randbytes(rng.randrange(length_max))


def random_value(kind: pa.DataType, rng: random.Random) -> Any:
    """A value of the type; few different ones of some types, so that dictionaries have an effect."""
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        low, high = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1))
        if pa.types.is_unsigned_integer(kind):
            low, high = 0, 2**kind.bit_width
        return rng.choice([low, high - 1, 0, 1, rng.randrange(low, high)])
    if pa.types.is_floating(kind):
        return rng.choice([0.0, -0.0, 1.5, float("inf"), rng.randrange(-1000, 1000) / 8])
    if pa.types.is_decimal(kind):
        return decimal.Decimal(rng.randrange(-(10**kind.precision) + 1, 10**kind.precision)).scaleb(
            -kind.scale, decimal.Context(prec=80)
        )
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "".join(rng.choice("aé☃z") for _ in range(rng.randrange(9)))
    if pa.types.is_fixed_size_binary(kind):
        return rng.randbytes(kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return random_bytes(rng)
    if pa.types.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(days=rng.randrange(-9999, 9999))
    if pa.types.is_timestamp(kind):
        return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=rng.randrange(-(10**12), 10**12) // 1000 * 1000)
    if pa.types.is_time(kind):
        return dt.time(rng.randrange(24), rng.randrange(60), rng.randrange(60))
    if pa.types.is_duration(kind):
        return dt.timedelta(seconds=rng.randrange(-99999, 99999))
    if pa.types.is_dictionary(kind):
        return rng.choice(["red", "green", "blue"])
    if pa.types.is_map(kind):
        return [(f"key{i}", random_cell(kind.item_type, rng)) for i in range(rng.randrange(3))]
    if pa.types.is_fixed_size_list(kind):
        return [random_cell(kind.value_type, rng, is_nullable=kind.value_field.nullable) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [
            random_cell(kind.value_type, rng, is_nullable=kind.value_field.nullable)
            for _ in range(rng.choice([0, 0, 1, 2, 5]))
        ]
    if pa.types.is_struct(kind):
        return {field.name: random_cell(field.type, rng, is_nullable=field.nullable) for field in kind}
    assert pa.types.is_null(kind), kind
    return None


def random_cell(kind: pa.DataType, rng: random.Random, *, is_nullable: bool = True) -> Any:
    return None if is_nullable and rng.random() < 0.2 else random_value(kind, rng)


FLAT = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(15, 0), pa.decimal128(38, 10),
    pa.decimal256(60, 3), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(16), pa.date32(),
    pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("s"),
    pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Paris"), pa.duration("ms"),
    pa.dictionary(pa.int32(), pa.string()), pa.null(),
]  # fmt: skip


NESTED = [
    pa.list_(pa.int32()),
    pa.large_list(pa.string()),
    pa.list_(pa.float64(), 3),
    pa.list_(pa.list_(pa.field("deep", pa.binary(), nullable=False))),
    pa.struct([("a", pa.int64()), pa.field("b", pa.string(), nullable=False), ("c", pa.list_(pa.bool_()))]),
    pa.map_(pa.string(), pa.int32()),
    pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.decimal128(9, 1)), ("y", pa.map_(pa.string(), pa.date32()))]))),
    pa.list_(pa.struct([("p", pa.list_(pa.list_(pa.int16()))), ("q", pa.binary(5))])),
]


def everything(rows: int, seed: int, kinds: Sequence[pa.DataType] = (*FLAT, *NESTED)) -> pa.Table:
    rng = random.Random(seed)
    fields, arrays = [], []
    for number, kind in enumerate(kinds):
        is_nullable = bool(number % 3) or kind == pa.null()
        values = [random_cell(kind, rng, is_nullable=is_nullable) for _ in range(rows)]
        if pa.types.is_float16(kind):
            values = [None if it is None else np.float16(it) for it in values]
        metadata = {"PARQUET:field_id": str(100 + number), "about": str(kind)}
        fields.append(pa.field(f"c{number:02}", kind, nullable=is_nullable, metadata=metadata))
        arrays.append(pa.array(values, type=kind))
    fields.append(pa.field("row", pa.int64(), nullable=False))
    arrays.append(pa.array(range(rows), pa.int64()))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={"made by": "a test", "empty": ""}))


def ranges_of(lost: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    """First row and count of each stretch that is true."""
    first, counts, row = [], [], 0
    for is_lost, stretch in itertools.groupby(lost):
        count = len(list(stretch))
        if is_lost:
            first.append(row)
            counts.append(count)
        row += count
    return np.array(first, np.uint64), np.array(counts, np.uint64)


def lose(rows: int, seed: int, share: float = 0.1) -> list[bool]:
    """Some rows, in stretches."""
    rng = random.Random(seed)
    lost: list[bool] = []
    while len(lost) < rows:
        lost += [rng.random() < share] * rng.choice([1, 1, 2, 7, 40])
    return lost[:rows]


def shape(path: Path) -> list[dict[str, Any]]:
    """What must stay of each chunk of a column."""
    metadata = pq.ParquetFile(path).metadata
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in (group.column(it) for it in range(group.num_columns)):
            statistics = column.statistics
            found.append({
                "path": column.path_in_schema,
                "codec": column.compression,
                "type": column.physical_type,
                "dictionary": column.has_dictionary_page,
                "statistics": statistics is not None,
                "bounds": None if statistics is None or not statistics.num_values else statistics.has_min_max,
                "offset index": column.has_offset_index,
                "column index": column.has_column_index,
                "sorted by": group.sorting_columns,
            })  # fmt: skip
    return found


def check_rewritten(source: Path, target: Path, lost: Sequence[bool], written: Rewritten) -> None:
    """The target is the source without these rows, and otherwise like it."""
    before, after = pq.ParquetFile(source), pq.ParquetFile(target)
    kept = pa.array([not it for it in lost], pa.bool_())
    rows = after.read()
    rows.validate(full=True)
    assert plain(rows).equals(plain(before.read().filter(kept)))
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    # Behind the first line, which has an address.
    assert str(after.schema).partition("\n")[2] == str(before.schema).partition("\n")[2]
    assert after.metadata.metadata == before.metadata.metadata
    assert after.metadata.format_version == before.metadata.format_version
    assert after.metadata.created_by == before.metadata.created_by
    assert written.rows == after.metadata.num_rows == kept.true_count
    assert written.bytes == target.stat().st_size
    assert written.footer_crc == footer_crc(target)
    groups, start = [], 0
    for number in range(before.metadata.num_row_groups):
        count = before.metadata.row_group(number).num_rows
        groups.append([not it for it in lost[start : start + count]])
        start += count
    cut = [after.metadata.row_group(number).num_rows for number in range(after.metadata.num_row_groups)]
    assert cut == [sum(group) for group in groups if any(group)]
    assert written.groups_copied == sum(all(group) for group in groups if group)
    assert written.groups_rewritten == sum(any(group) and not all(group) for group in groups)
    check_statistics(after)


def plain(table: pa.Table) -> pa.Table:
    """Dictionaries as their values: the number of a value does not matter."""
    kinds = [it.value_type if pa.types.is_dictionary(it) else it for it in table.schema.types]
    return table.cast(pa.schema(zip(table.column_names, kinds, strict=True)))


def check_statistics(file: pq.ParquetFile) -> None:
    """Bounds in a footer are correct for the rows."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            if column.statistics is None or "." in column.path_in_schema:
                continue
            values = file.read_row_group(number, columns=[column.path_in_schema]).column(0)
            assert column.statistics.null_count in (None, values.null_count), column.path_in_schema
            if column.statistics.has_min_max and pa.types.is_integer(values.type):
                present = [it for it in values.to_pylist() if it is not None]
                assert (column.statistics.min, column.statistics.max) == (min(present), max(present))
            if column.statistics.has_min_max and (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
                check_bounds(column.statistics, [it for it in values.to_pylist() if it is not None])


def check_bounds(statistics: pq.Statistics, present: list[Any]) -> None:
    """Bounds of texts and bytes: exact if they are short, else on the right side and as short as possible."""
    in_bytes = [it.encode() if isinstance(it, str) else it for it in present]
    least, greatest = min(in_bytes), max(in_bytes)
    found = [it.encode() if isinstance(it, str) else it for it in (statistics.min, statistics.max)]
    assert found[0] == least if len(least) <= 64 else least.startswith(found[0])
    assert found[1] == greatest if len(greatest) <= 64 else found[1] >= greatest


def footer_crc(path: Path) -> int:
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    return zlib.crc32(data[-8 - length : -8])


def cut_out(source: Path, target: Path, lost: Sequence[bool]) -> Rewritten:
    written = rewrite(source, target, *ranges_of(lost))
    check_rewritten(source, target, lost, written)
    return written


OPTIONS: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0"},
    {"use_dictionary": False},
    {"use_dictionary": False, "data_page_version": "2.0"},
    {"write_statistics": False},
    {"write_page_index": True},
    {"write_page_index": True, "data_page_version": "2.0", "data_page_size": 500},
    {"data_page_size": 200, "dictionary_pagesize_limit": 100},
    {"version": "1.0", "coerce_timestamps": "ms", "allow_truncated_timestamps": True},
    {"use_deprecated_int96_timestamps": True},
    {"write_page_checksum": True},
    {"store_schema": False},
    {"use_compliant_nested_type": False},
    {"sorting_columns": [pq.SortingColumn(len(FLAT), descending=True, nulls_first=True)]},
    {"write_page_index": True, "use_dictionary": ["c16", "c04"], "write_statistics": ["c03", "c16"]},
]


ENCODINGS = {
    "c03": "DELTA_BINARY_PACKED", "c04": "BYTE_STREAM_SPLIT", "c16": "DELTA_BYTE_ARRAY",
    "c18": "DELTA_LENGTH_BYTE_ARRAY", "c10": "BYTE_STREAM_SPLIT", "c20": "DELTA_BYTE_ARRAY", "c00": "RLE",
}  # fmt: skip
