"""Parquet files from rows of several files, in any order, written by the extension: compared with pyarrow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import fencepost as fp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost._native import Arranged, arrange
from support.parquet_files import (
    CODECS,
    ENCODINGS,
    FLAT,
    NESTED,
    OPTIONS,
    check_statistics,
    everything,
    footer_crc,
    plain,
)

Order = Sequence[tuple[int, int]]
"""(place of the source, row) of each row."""


def ranges(order: Order) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that follow each other as one range, but for some."""
    found: list[list[int]] = []
    for source, row in order:
        last = found[-1] if found else [-1, 0, 0]
        if last[0] == source and last[1] + last[2] == row and row % 13:
            last[2] += 1
        else:
            found.append([source, row, 1])
    columns = np.array(found, np.int64).reshape(-1, 3)
    source, first, count = (np.ascontiguousarray(it) for it in columns.T)
    return source, first, count


def check_arranged(sources: list[Path], orders: dict[Path, Order], **options: Any) -> Arranged:
    done = arrange(sources, [(path, *ranges(order)) for path, order in orders.items()], **options)
    assert done.source_crc == [footer_crc(path) for path in sources]
    tables = [pq.read_table(path) for path in sources]
    starts = np.cumsum([0, *map(len, tables)])
    before, all_rows = pq.ParquetFile(sources[0]), plain(pa.concat_tables(map(plain, tables)))
    for place, (path, order) in enumerate(orders.items()):
        after = pq.ParquetFile(path)
        rows = after.read()
        rows.validate(full=True)
        expected = all_rows.take(pa.array([starts[source] + row for source, row in order], pa.int64()))
        assert plain(rows).equals(expected.select(rows.column_names))
        if "without" not in options:
            assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
            assert str(after.schema).partition("\n")[2] == str(before.schema).partition("\n")[2]
            assert after.metadata.metadata == before.metadata.metadata
        assert after.metadata.created_by == before.metadata.created_by
        assert (done.rows[place], done.bytes[place]) == (len(order), path.stat().st_size)
        assert done.footer_crc[place] == footer_crc(path)
        check_statistics(after)
    return done


def write_sources(folder: Path, count: int, rows: int, **options: Any) -> list[Path]:
    kinds = options.pop("kinds", (*FLAT, *NESTED))
    paths = [folder / f"source{it}.parquet" for it in range(count)]
    for number, path in enumerate(paths):
        pq.write_table(everything(rows, number, kinds), path, row_group_size=rows // 2 + 1, **options)
    return paths


def shuffled(count: int, rows: int, seed: int) -> list[tuple[int, int]]:
    order = [(source, row) for source in range(count) for row in range(rows)]
    random.Random(seed).shuffle(order)
    return order


@pytest.mark.parametrize("options", OPTIONS, ids=lambda it: ",".join(f"{key}={value}" for key, value in it.items()))
def test_rows_of_every_type_come_out_as_they_were(options: dict[str, Any], tmp_path: Path) -> None:
    sources = write_sources(tmp_path, 3, 150, **options)
    order = shuffled(3, 150, 1)
    orders = {
        tmp_path / "merged.parquet": [(source, row) for source in range(3) for row in range(150)],
        tmp_path / "mixed.parquet": order[:200],
        tmp_path / "some.parquet": sorted(order[:40]),
        tmp_path / "one.parquet": [(2, 149)],
    }
    done = check_arranged(sources, orders)
    assert (done.groups_copied, done.groups_gathered) == (0, 4)
    for path in orders:
        chunks = [pq.ParquetFile(it).metadata.row_group(0) for it in (sources[0], path)]
        for place in range(chunks[0].num_columns):
            old, new = (it.column(place) for it in chunks)
            assert (new.compression, new.has_offset_index) == (old.compression, old.has_offset_index)
            if path.name != "one.parquet":  # of values that are all null writers need not make an index
                assert new.has_column_index == old.has_column_index
            assert (new.statistics is None) == (old.statistics is None)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_encoding(codec: str, tmp_path: Path) -> None:
    encodings = {"use_dictionary": False, "column_encoding": ENCODINGS} if codec in ("NONE", "ZSTD") else {}
    sources = write_sources(tmp_path, 2, 120, compression=codec, kinds=FLAT, **encodings)
    check_arranged(sources, {tmp_path / "target.parquet": shuffled(2, 120, 3)})


def test_large_row_groups_are_copied_and_small_ones_put_together(tmp_path: Path) -> None:
    large, small = tmp_path / "large.parquet", [tmp_path / f"small{it}.parquet" for it in range(50)]
    rows = pa.table({"row": range(300_000), "text": [f"text {it % 1000}" for it in range(300_000)]})
    pq.write_table(rows, large, row_group_size=150_000, write_page_index=True, use_dictionary=False)
    for path in small:
        pq.write_table(rows.slice(0, 10), path, write_page_index=True)
    target = tmp_path / "target.parquet"
    order = [(source, row) for source in range(25) for row in range(10)]
    order += [(50, row) for row in range(150_000)] + [(25, 1)] + [(50, row) for row in range(150_001, 300_000)]
    done = check_arranged([*small, large], {target: order})
    assert (done.groups_copied, done.groups_gathered) == (1, 2)
    metadata = pq.ParquetFile(target).metadata
    assert [metadata.row_group(it).num_rows for it in range(3)] == [250, 150_000, 150_000]
    assert pq.read_table(target, filters=[("row", "==", 299_999)])["text"].to_pylist() == ["text 999"]


def test_row_groups_do_not_grow_without_bounds(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    count, step = 1_200_000, 1000
    pq.write_table(pa.table({"row": np.arange(count)}), source, row_group_size=100_000)
    first = np.arange(0, count, step)[::-1].copy()
    arrange([source], [(target, np.zeros(len(first), int), first, np.full(len(first), step))])
    metadata = pq.ParquetFile(target).metadata
    assert [metadata.row_group(it).num_rows for it in range(metadata.num_row_groups)] == [600_000, 600_000]
    assert np.array_equal(pq.read_table(target)["row"].to_numpy(), np.add.outer(first, np.arange(step)).ravel())


@pytest.mark.parametrize("column", ["c03", "c37", "row"])
def test_a_column_is_left_out(column: str, tmp_path: Path) -> None:
    sources = write_sources(tmp_path, 2, 60, write_page_index=True, store_schema=False)
    target = tmp_path / "target.parquet"
    metadata = [("made by", "us"), ("empty", None)]
    check_arranged(sources, {target: shuffled(2, 60, 5)}, without=column, metadata=metadata)
    names = pq.read_schema(sources[0]).names
    assert pq.read_table(target).column_names == [it for it in names if it != column]
    assert pq.ParquetFile(target).metadata.metadata[b"made by"] == b"us"
    with pytest.raises(fp.BatchError, match="column 'none': missing"):
        arrange(sources, [(tmp_path / "other.parquet", *ranges([(0, 1)]))], without="none")


def test_bloom_filters_know_what_comes_from_each_file(tmp_path: Path) -> None:
    sources = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    for number, path in enumerate(sources):
        query = f"select 'name{number}-' || (i % 500) as name, i as row from range(5000) t(i)"
        duckdb.sql(f"copy ({query}) to '{path}' (format parquet)")
    target = tmp_path / "target.parquet"
    check_arranged(sources, {target: shuffled(2, 5000, 6)})
    probe = "select bloom_filter_excludes from parquet_bloom_probe('{}', 'name', '{}')"
    found = [duckdb.sql(probe.format(target, it)).fetchall() for it in ("name0-7", "name1-7", "nobody")]
    assert found == [[(False,)], [(False,)], [(True,)]]


def test_many_targets_and_files_without_rows(tmp_path: Path) -> None:
    sources = write_sources(tmp_path, 2, 300, kinds=[pa.string(), pa.list_(pa.int32())])
    order = shuffled(2, 300, 7)
    orders: dict[Path, Order] = {tmp_path / f"target{it}.parquet": order[it::200] for it in range(200)}
    orders[tmp_path / "none.parquet"] = []
    check_arranged(sources, orders)


def test_a_failed_layout_leaves_no_file(tmp_path: Path) -> None:
    sources = write_sources(tmp_path, 2, 20, kinds=[pa.int32()])
    other = tmp_path / "other.parquet"
    pq.write_table(everything(20, 1, [pa.int64()]), other)
    damaged = tmp_path / "damaged.parquet"
    data = sources[1].read_bytes()
    damaged.write_bytes(data[:20] + bytes(100) + data[120:])
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    there = [(one, *ranges([(0, 1)])), (two, *ranges([(1, 1)]))]
    with pytest.raises(fp.SourceError, match=r"other.parquet: its schema differs .*source0.parquet"):
        arrange([sources[0], other], there)
    with pytest.raises(fp.SourceError, match=r"damaged.parquet, byte \d+: cannot be read"):
        arrange([sources[0], damaged], there)
    for wrong in ([(2, 0)], [(0, 20)]):
        with pytest.raises(ValueError, match="no such rows"):
            arrange(sources, [there[0], (two, *ranges(wrong))])
    with pytest.raises(ValueError, match="one value for each"):
        arrange(sources, [(one, np.array([0]), np.array([0]), np.array([1, 2]))])
    with pytest.raises(FileNotFoundError):
        arrange([*sources, tmp_path / "gone.parquet"], there)
    assert not one.exists()
    two.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        arrange(sources, there)
    assert two.read_bytes() == b"mine"
    assert not one.exists()


def write_lists(path: Path, lengths: np.ndarray) -> pa.Table:
    """Lists of zeros, which have next to no bytes in a file."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    table = pa.table({"lists": pa.ListArray.from_arrays(offsets, pa.array(np.zeros(offsets[-1], np.int8)))})
    pq.write_table(table, path, row_group_size=10_000_000)
    return table


def test_rows_for_several_files_are_decoded_in_several_rounds(tmp_path: Path) -> None:
    source, count = tmp_path / "source.parquet", 1000
    table = write_lists(source, np.full(count, 5000))
    targets = [tmp_path / f"target{it}.parquet" for it in range(8)]
    rows = [np.arange(it, count, 8) for it in range(8)]
    arrange([source], [(path, it * 0, it, it * 0 + 1) for path, it in zip(targets, rows, strict=True)])
    for path, some in zip(targets, rows, strict=True):
        assert pq.read_table(path).equals(table.take(pa.array(some)))


def test_few_bytes_cannot_ask_for_memory_without_end(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    write_lists(source, np.concatenate([np.full(170, 100_000), np.ones(500_000, int)]))
    assert source.stat().st_size < 1 << 22
    with pytest.raises(fp.SourceError, match=r"column .*lists\.list\.element.*: more than 16777216 values"):
        arrange([source], [(target, np.zeros(2, int), np.array([0, 80]), np.array([79, 400_000]))])
    assert not target.exists()
