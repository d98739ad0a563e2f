"""Chunks of columns that lose rows page by page: what is copied, what is cut, and what readers then find.

The pages of most files here have PAGE rows, so it is known which of them lose rows. Everything is compared with the
rows that pyarrow's filter keeps, and with what readers find that pass over row groups and pages by their bounds.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost import SourceError
from fencepost._native import parquet_footer, rewrite
from support import parquet_bytes as raw
from support.parquet_files import check_rewritten, cut_out, everything, lose, ranges_of, shape

PAGE, PAGES = 50, 12
ROWS = PAGE * PAGES
KINDS = [
    pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 2),
    pa.decimal256(50, 3), pa.string(), pa.binary(), pa.binary(7), pa.timestamp("us"), pa.list_(pa.int64()),
    pa.list_(pa.list_(pa.string())), pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
]  # fmt: skip
SMALL = {"write_batch_size": PAGE, "max_rows_per_page": PAGE}
FORMS: dict[str, dict[str, Any]] = {
    "dictionary": {"compression": "SNAPPY"},
    "fallback": {"dictionary_pagesize_limit": 300, "compression": "ZSTD"},
    "fallback, second": {"dictionary_pagesize_limit": 300, "data_page_version": "2.0", "compression": "GZIP"},
    "plain": {"use_dictionary": False, "compression": "NONE", "write_page_checksum": True},
    "plain, second": {"use_dictionary": False, "data_page_version": "2.0", "compression": "LZ4"},
    "indexed": {"write_page_index": True, "dictionary_pagesize_limit": 300, "compression": "BROTLI"},
    "indexed, second": {"write_page_index": True, "data_page_version": "2.0", "compression": "SNAPPY"},
}
LOST: dict[str, Callable[[int], bool]] = {
    "first rows of pages": lambda row: row % (3 * PAGE) == 0,
    "last rows of pages": lambda row: row % (3 * PAGE) == PAGE - 1,
    "across a border": lambda row: PAGE - 3 <= row % (4 * PAGE) < PAGE + 2,
    "whole pages": lambda row: row // PAGE % 3 == 1,
    "all but one of a page": lambda row: row // PAGE == 4 and row != 4 * PAGE + 7,
    "first and last of all": lambda row: row in (0, ROWS - 1),
}


def check_ends(target: Path) -> None:
    """Bounds and counts of nulls are those of the rows."""
    file = pq.ParquetFile(target)
    for number in range(file.metadata.num_row_groups):
        group, rows = file.metadata.row_group(number), file.read_row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            if "." in column.path_in_schema:
                continue
            values, statistics = rows[column.path_in_schema], column.statistics
            assert statistics.null_count == values.null_count, column.path_in_schema
            if statistics.has_min_max:
                present = [it for it in values.to_pylist() if it is not None]
                ends = [statistics.min, statistics.max]
                if pa.types.is_float16(values.type):
                    ends = [struct.unpack("<e", end)[0] for end in ends]
                assert ends == [min(present), max(present)], column.path_in_schema


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept", LOST)
def test_rows_go_at_any_place_of_a_page(form: str, kept: str, tmp_path: Path) -> None:
    source, target, again = (tmp_path / f"{name}.parquet" for name in ("source", "target", "again"))
    pq.write_table(everything(ROWS, len(kept), KINDS), source, **SMALL, **FORMS[form])
    lost = [LOST[kept](row) for row in range(ROWS)]
    cut_out(source, target, lost)
    check_ends(target)
    assert shape(target) == shape(source)
    rows = ROWS - sum(lost)
    cut_out(target, again, [row % 3 == 0 for row in range(rows)])
    check_ends(again)


@pytest.mark.matrix
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4"])
@pytest.mark.parametrize("seed", range(3))
def test_any_rows_go_from_every_form(form: str, codec: str, seed: int, tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    rng = random.Random(seed)
    options = {**FORMS[form], "compression": codec}
    small = {"write_batch_size": rng.choice([1, 7, PAGE]), "max_rows_per_page": rng.choice([3, PAGE])}
    pq.write_table(everything(ROWS, seed, KINDS), source, row_group_size=250, **small, **options)
    lost = lose(ROWS, seed, rng.choice([0.01, 0.1, 0.4]))
    cut_out(source, target, lost)
    check_ends(target)


def chunk_bytes(path: Path, column: int) -> bytes:
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return path.read_bytes()[start : start + chunk.total_compressed_size]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("has_nulls", [False, True])
def test_the_dictionary_and_pages_that_lose_no_row_are_copied_as_bytes(
    version: str, has_nulls: bool, tmp_path: Path
) -> None:
    """The dictionary, and the pages before and after the one that loses a row."""
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    rng = random.Random(version)
    texts = [rng.randbytes(20).hex() for _ in range(ROWS)]
    texts = [None if has_nulls and row % 7 == 0 else texts[row % 400] for row in range(ROWS)]
    lists = [list(range(row, row + row % 4)) for row in range(ROWS)]
    table = pa.table({"text": pa.array(texts, pa.string()), "list": pa.array(lists, pa.list_(pa.int64()))})
    options = {"dictionary_pagesize_limit": 6000, "data_page_version": version, "write_page_checksum": True}
    pq.write_table(table, source, **SMALL, **options)
    lost = [row == 5 * PAGE + 3 for row in range(ROWS)]
    cut_out(source, target, lost)
    for column in (1, 0):
        before, after = chunk_bytes(source, column), chunk_bytes(target, column)
        same = next(at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other)
        assert same > len(before) // 3
        behind = len(before) // 8
        assert after.endswith(before[-behind:])
    assert pq.read_table(target, page_checksum_verification=True).num_rows == ROWS - 1
    damaged = bytearray(target.read_bytes())
    damaged[damaged.index(after) + same + 1000] ^= 1  # in the page that was cut
    target.write_bytes(damaged)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(target, page_checksum_verification=True)


@pytest.mark.parametrize("form", ["fallback", "indexed", "indexed, second"])
def test_readers_that_pass_over_pages_find_every_row(form: str, tmp_path: Path) -> None:
    """Bounds of row groups and of pages exclude no row that is there, whatever is asked for."""
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    rng = random.Random(form)
    table = pa.table(
        {
            "rising": range(ROWS),
            "number": [rng.randrange(-90, 90) for _ in range(ROWS)],
            "text": pa.array([rng.choice([None, "", "é", "z" * 80, f"t{row}"]) for row in range(ROWS)]),
            "half": [rng.choice([-0.0, 0.0, 0.5, -3.25, float("inf")]) for _ in range(ROWS)],
        }
    )
    pq.write_table(table, source, row_group_size=300, **SMALL, **FORMS[form])
    lost = [(row // PAGE % 3 == 1 and row % 5 < 2) or row % (2 * PAGE) == 0 for row in range(ROWS)]
    cut_out(source, target, lost)
    kept = table.filter(pa.array([not it for it in lost]))
    scan, connection = pl.scan_parquet(target), duckdb.connect()
    for name in table.column_names:
        values = rng.sample(pc.unique(kept[name]).drop_null().to_pylist(), 5)
        for value in values:
            expected = kept.filter(pc.equal(kept[name], value))["rising"].to_pylist()
            assert scan.filter(pl.col(name) == value).collect()["rising"].to_list() == expected
            found = connection.execute(f"select rising from '{target}' where {name} = ? order by rising", [value])
            assert [row for (row,) in found.fetchall()] == expected
            assert pq.read_table(target, filters=[(name, "==", value)])["rising"].to_pylist() == expected


def test_rows_of_lists_that_span_many_pages_are_cut_out(tmp_path: Path) -> None:
    """Rows of one item, of none, of null, and of more items than a page has: a page may begin within a row."""
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    rng = random.Random(3)
    lengths = [rng.choice([0, 0, 0, 1, 2, 90]) for _ in range(ROWS)]
    lists = [None if row % 11 == 0 else [rng.randrange(50) for _ in range(it)] for row, it in enumerate(lengths)]
    table = pa.table({"row": range(ROWS), "list": pa.array(lists, pa.list_(pa.int32()))})
    for number, options in enumerate([{}, {"use_dictionary": False}, {"data_page_version": "2.0"}]):
        pq.write_table(table, source, data_page_size=64, write_batch_size=16, **options)
        for seed, share in enumerate([0.01, 0.2, 0.5]):
            target.unlink(missing_ok=True)
            cut_out(source, target, lose(ROWS, 10 * number + seed, share))


def test_bounds_that_footers_lack_are_computed(tmp_path: Path) -> None:
    """Some writers truncate bounds and omit counts of nulls; others write wrong bounds."""
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    texts = [f"{row:04}" + "x" * 90 for row in range(ROWS)]
    pl.DataFrame({"text": texts, "row": range(ROWS)}).write_parquet(source, data_page_size=2000)
    lost = [row in (0, 7, ROWS - 1) for row in range(ROWS)]
    rewrite(source, target, *ranges_of(lost))
    kept = [text for text, is_lost in zip(texts, lost, strict=True) if not is_lost]
    statistics = pq.ParquetFile(target).metadata.row_group(0).column(0).statistics
    assert kept[0].startswith(statistics.min[:64])
    assert statistics.min <= kept[0] <= kept[-1] <= statistics.max
    assert statistics.null_count == 0
    assert pq.read_table(target)["text"].to_pylist() == kept


# Pages that no writer would leave behind


def indexes(*values: int, bits: int = 8) -> bytes:
    groups = -(-len(values) // 8)
    return bytes([bits]) + raw.varint(groups << 1 | 1) + bytes([*values, *[0] * (8 * groups - len(values))])


def written(path: Path, *columns: raw.Column, rows: int) -> Path:
    path.write_bytes(raw.File(columns, rows=rows).bytes())
    return path


def dictionary_file(path: Path, *pages: bytes, rows: int = 4) -> Path:
    column = raw.Column("a", [raw.dictionary_page(2, raw.integers(7, 9)), *pages], has_dictionary=True)
    return written(path, column, rows=rows)


def test_indexes_into_a_dictionary_are_cut(tmp_path: Path) -> None:
    page = raw.data_page(4, indexes(0, 1, 1, 0), encoding=raw.RLE_DICTIONARY)
    plain = raw.data_page(2, raw.integers(5, 6))
    source, target = dictionary_file(tmp_path / "source", page, plain, rows=6), tmp_path / "target"
    rewrite(source, target, *ranges_of([False, False, True, False, False, False]))
    assert pq.read_table(target)["a"].to_pylist() == [7, 9, 7, 5, 6]
    assert target.read_bytes().count(plain) == 1
    assert parquet_footer(target).rows == 5


BAD: dict[str, tuple[Sequence[bytes], str]] = {
    "index": ([raw.data_page(4, indexes(0, 1, 2, 0), encoding=raw.RLE_DICTIONARY)], "index 2 into a dictionary of 2"),
    "width": ([raw.data_page(4, b"\x21\x03", encoding=raw.RLE_DICTIONARY)], "indexes of 33 bits"),
    "nothing": ([raw.data_page(4, b"", encoding=raw.RLE_DICTIONARY)], "no indexes"),
    "end": ([raw.data_page(4, b"\x08\x03", encoding=raw.RLE_DICTIONARY)], "indexes end too early"),
    "values": ([raw.data_page(4, raw.integers(1, 2, 3))], "ends before its values"),
    "two dictionaries": (
        [
            raw.data_page(2, raw.integers(1, 2)),
            raw.dictionary_page(1, raw.integers(1)),
            raw.data_page(2, raw.integers(1, 2)),
        ],
        "dictionary",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_pages_that_cannot_be_are_refused(name: str, tmp_path: Path) -> None:
    pages, problem = BAD[name]
    source, target = dictionary_file(tmp_path / "source", *pages), tmp_path / "target"
    with pytest.raises(SourceError, match=problem):
        rewrite(source, target, *ranges_of([False, True, False, False]))
    assert not target.exists()


def test_a_chunk_begins_with_a_row(tmp_path: Path) -> None:
    def levels(*values: int) -> bytes:
        packed = sum(value << at for at, value in enumerate(values))
        return struct.pack("<I", 2) + bytes([3, packed])

    def file(first: int) -> Path:
        body = levels(first, 1, 0, 0) + levels(1, 1, 1, 1) + raw.integers(1, 2, 3, 4)
        options: Any = {"repetition": raw.REPEATED, "values": 4}
        return written(tmp_path / f"source{first}", raw.Column("a", [raw.data_page(4, body)], **options), rows=3)

    target = tmp_path / "target"
    rewrite(file(0), target, *ranges_of([False, True, False]))
    assert pq.read_table(target)["a"].to_pylist() == [[1, 2], [4]]
    with pytest.raises(SourceError, match="begins within a row"):
        rewrite(file(1), tmp_path / "other", *ranges_of([False, True, False]))


def test_few_rows_bring_no_large_dictionary_along(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(pa.table({"text": [f"{row:060}" for row in range(9000)]}), source)
    lost = [row % 1000 != 0 for row in range(9000)]
    written = rewrite(source, target, *ranges_of(lost))
    check_rewritten(source, target, lost, written)
    assert written.bytes < source.stat().st_size / 20
