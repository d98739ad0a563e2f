"""Parquet files through the extension: rows as spans, files without some of their rows, footers.

Everything is compared with pyarrow, which wrote most of the files; some are by Polars and DuckDB.
"""

from __future__ import annotations

import datetime as dt
import decimal
import errno
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import Columns
from fencepost._native import ParquetFooter, SpanScan, parquet_footer, rewrite
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from support.interpreter import assert_released
from support.parquet_files import (
    CODECS,
    ENCODINGS,
    FLAT,
    NESTED,
    OPTIONS,
    check_rewritten,
    cut_out,
    everything,
    footer_crc,
    lose,
    ranges_of,
    shape,
)

COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}


# Tables with everything in them


# Files without some of their rows


@pytest.mark.parametrize("options", OPTIONS, ids=lambda it: ",".join(f"{key}={value}" for key, value in it.items()))
def test_a_file_without_some_rows_is_otherwise_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(everything(900, 1), source, row_group_size=250, **options)
    lost = lose(900, 2)
    lost[250:500] = [False] * 250
    written = cut_out(source, target, lost)
    assert (written.groups_copied, written.groups_rewritten) == (1, 3)
    assert shape(target) == shape(source)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_codec_is_kept(codec: str, version: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    codecs = {"c03": "SNAPPY", "c16": "ZSTD"} if codec == "NONE" else codec
    table = everything(600, 3, (*FLAT[:20], *NESTED[:4]))
    if isinstance(codecs, dict):
        codecs = {f"c{number:02}": codecs.get(f"c{number:02}", "NONE") for number in range(20)}
        table = table.select([*codecs, "row"])
        codecs["row"] = "GZIP"
    pq.write_table(table, source, compression=codecs, data_page_version=version, row_group_size=200)
    cut_out(source, target, lose(600, 4))
    assert shape(target) == shape(source)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_encodings_are_kept(version: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    table = everything(900, 5, FLAT)
    pq.write_table(
        table, source, use_dictionary=False, column_encoding=ENCODINGS, data_page_version=version, row_group_size=300
    )
    cut_out(source, target, lose(900, 6))
    groups = [pq.ParquetFile(path).metadata.row_group(0) for path in (source, target)]
    for number in range(groups[0].num_columns):
        before, after = (set(group.column(number).encodings) - {"RLE"} for group in groups)
        assert after == before, groups[0].column(number).path_in_schema


def test_bloom_filters_stay_and_serve(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    duckdb.sql(f"""
        copy (select 'name' || (i * 7 % 1000) as name, i % 977 * 3 as number, i as row from range(30000) t(i))
        to '{source}' (format parquet, row_group_size 10000)
    """)
    query = "select count(*) from parquet_metadata('{}') where bloom_filter_offset is not null"
    filters = duckdb.sql(query.format(source)).fetchall()
    assert filters[0][0] >= 3
    lost = lose(30000, 7)
    lost[:10000] = [False] * 10000
    rewrite(source, target, *ranges_of(lost))
    assert duckdb.sql(query.format(target)).fetchall() == filters
    probe = "select bloom_filter_excludes from parquet_bloom_probe('{}', 'name', '{}')"
    assert duckdb.sql(probe.format(target, "nobody")).fetchall() == [(True,)] * 3
    assert duckdb.sql(probe.format(target, "name7")).fetchall() == [(False,)] * 3
    kept = pq.read_table(source).filter(pa.array([not it for it in lost]))
    assert pq.read_table(target).equals(kept)
    for name in ("name7", "name500"):
        expected = sum(it == name for it in kept["name"].to_pylist())
        assert duckdb.sql(f"select count(*) from '{target}' where name = '{name}'").fetchall() == [(expected,)]


@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_row_groups_of_one_file_are_copied_or_rewritten(has_index: bool, version: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    table = everything(2000, 8, [pa.int32(), pa.string(), pa.timestamp("us"), pa.list_(pa.int64()), pa.float64()])
    pq.write_table(
        table, source, row_group_size=400, write_page_index=has_index, data_page_version=version, data_page_size=300
    )
    lost = lose(2000, 9)
    lost[400:1200] = [False] * 800
    lost[1200:1600] = [True] * 400
    written = cut_out(source, target, lost)
    assert (written.groups_copied, written.groups_rewritten) == (2, 2)
    assert [it["offset index"] for it in shape(target)] == [has_index] * len(shape(target))
    kept = table.filter(pa.array([not it for it in lost]))
    by_polars = pl.read_parquet(target)
    assert by_polars["row"].to_list() == kept["row"].to_pylist()
    assert by_polars["c03"].to_list() == kept["c03"].to_pylist()
    assert duckdb.sql(f"select row, c01 from '{target}'").fetchall() == list(
        zip(kept["row"].to_pylist(), kept["c01"].to_pylist(), strict=True)
    )
    # What readers do with the page index: rows in few of the pages.
    wanted = kept["row"].to_pylist()[len(kept) // 2]
    assert duckdb.sql(f"select row from '{target}' where row = {wanted}").fetchall() == [(wanted,)]
    assert pl.scan_parquet(target).filter(pl.col("row") == wanted).collect()["row"].to_list() == [wanted]
    assert pq.read_table(target, filters=[("row", "==", wanted)])["row"].to_pylist() == [wanted]
    # And it can be done again.
    again = tmp_path / "again.parquet"
    cut_out(target, again, lose(len(kept), 10, 0.5))


def test_files_of_other_writers(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "row": range(5000),
            "text": [None if i % 11 == 0 else f"text {i % 97}" for i in range(5000)],
            "many": [list(range(i % 4)) if i % 5 else None for i in range(5000)],
            "kind": pl.Series(["a", "b"] * 2500, dtype=pl.Categorical),
            "one": [{"a": i, "b": str(i)} for i in range(5000)],
            "day": [dt.date(2020, 1, 1)] * 5000,
            "large": [decimal.Decimal(i) for i in range(5000)],
        }
    )
    for number, options in enumerate(
        [
            {"compression": "zstd", "row_group_size": 900},
            {"compression": "lz4", "data_page_size": 1000, "row_group_size": 2500},
            {"compression": "uncompressed", "statistics": False},
        ]
    ):
        source, target = tmp_path / f"polars{number}.parquet", tmp_path / f"polars{number}-new.parquet"
        frame.write_parquet(source, **options)  # type: ignore[arg-type]
        lost = lose(5000, 20 + number)
        cut_out(source, target, lost)
        assert pl.read_parquet(target).equals(frame.filter(pl.Series([not it for it in lost])))
    query = """select i as row, case when i % 3 = 0 then null else i::varchar end as text, [i, null] as many,
        {'a': i, 'b': [i::varchar]} as one, map {i::varchar: i} as pairs, i::hugeint as huge, uuid() as id,
        interval (i) day as span, i % 2 = 0 as even, '{"a": 1}'::json as data,
        ('a' || i % 3)::enum('a0', 'a1', 'a2') as kind
        from range(6000) t(i)"""
    for number, options in enumerate(["parquet_version v1", "parquet_version v2", "codec zstd, row_group_size 2048"]):
        source, target = tmp_path / f"duckdb{number}.parquet", tmp_path / f"duckdb{number}-new.parquet"
        duckdb.sql(f"copy ({query}) to '{source}' (format parquet, {options})")
        lost = lose(6000, 30 + number)
        written = rewrite(source, target, *ranges_of(lost))
        # But for the root, which should have no repetition.
        schema = """select name, type, type_length, repetition_type, num_children, converted_type, logical_type
            from {} where name <> 'duckdb_schema'"""
        assert (
            duckdb.sql(schema.format(f"parquet_schema('{target}')")).fetchall()
            == duckdb.sql(schema.format(f"parquet_schema('{source}')")).fetchall()
        )
        kept = [row for row, is_lost in enumerate(lost) if not is_lost]
        assert written.rows == len(kept)
        before = duckdb.sql(f"select * from '{source}'").fetchall()
        assert duckdb.sql(f"select * from '{target}'").fetchall() == [before[row] for row in kept]


def test_a_rewrite_with_keep_writes_only_the_requested_rows(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(everything(700, 11), source, row_group_size=200)
    kept = lose(700, 12, 0.4)
    kept[:200] = [True] * 200
    written = rewrite(source, target, *ranges_of(kept), keep=True)
    check_rewritten(source, target, [not it for it in kept], written)


def test_nothing_and_everything_lost(tmp_path: Path) -> None:
    source, one, none = (tmp_path / f"{name}.parquet" for name in ("source", "one", "none"))
    pq.write_table(everything(300, 13), source, row_group_size=100)
    assert cut_out(source, one, [False] * 300).groups_copied == 3
    written = cut_out(source, none, [True] * 300)
    assert (written.rows, written.groups_copied, written.groups_rewritten) == (0, 0, 0)
    again = tmp_path / "again.parquet"
    assert cut_out(none, again, []).rows == 0


def test_empty_row_groups_are_dropped(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    table = everything(100, 14, FLAT)
    with pq.ParquetWriter(source, table.schema, write_page_index=True) as writer:
        for size in (0, 30, 0, 1, 69, 0):
            writer.write_table(table.slice(0, size), row_group_size=max(size, 1))
    rows = pq.ParquetFile(source).metadata.num_rows
    assert rows == 100
    cut_out(source, target, lose(100, 15, 0.3))


def test_long_values_and_long_rows(tmp_path: Path) -> None:
    """Values of a megabyte, bounds longer than writers cut them to, and rows of many pages."""
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    rng = random.Random(16)
    table = pa.table(
        {
            "large": [rng.randbytes(rng.choice([10, 100, 1_000_000])) for _ in range(60)],
            "name": ["x" * 90 + str(i) for i in range(60)],
            "many": [list(range(rng.choice([0, 50_000]))) for _ in range(60)],
        }
    )
    pq.write_table(table, source, row_group_size=25, use_dictionary=["name"])
    cut_out(source, target, lose(60, 17, 0.3))
    column = pq.ParquetFile(target).metadata.row_group(0).column(1)
    assert len(column.statistics.min) > 64


@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "ZSTD"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_of_plain_texts_are_cut_where_they_are_full(codec: str, version: str, tmp_path: Path) -> None:
    """Texts without a dictionary go from page to page in pieces: short ones, long ones, none, and in structs."""
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    rng = random.Random(19)
    table = pa.table(
        {
            "short": pa.array([rng.choice(["", "a", "ÿ", "z" * 70]) for _ in range(60_000)]),
            "long": [rng.randbytes(rng.choice([0, 30, 300])) for _ in range(60_000)],
            "rare": pa.array([rng.choice(["x", *[None] * 30]) for _ in range(60_000)], pa.string()),
            "none": pa.nulls(60_000, pa.binary()),
            "deep": [
                rng.choice([None, {"a": None}, {"a": {"b": None}}, {"a": {"b": "𝄞" * 20}}]) for _ in range(60_000)
            ],
            "sorted": pa.array([f"{row:08}" * 9 for row in range(60_000)]).cast(pa.binary()),
        }
    )
    table = table.cast(table.schema.set(1, table.schema.field(1).with_nullable(False)))
    options = {"compression": codec, "data_page_version": version, "write_page_index": True}
    pq.write_table(table, source, use_dictionary=False, row_group_size=45_000, **options)
    cut_out(source, target, lose(60_000, 20, 0.2))
    assert shape(target) == shape(source)
    cut_out(target, tmp_path / "again.parquet", [False] * 20 + [True] * (pq.read_metadata(target).num_rows - 20))


def test_a_large_dictionary_stays_one(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    table = pa.table({"text": [f"{i % 40_000:050}" for i in range(120_000)]})
    pq.write_table(table, source, dictionary_pagesize_limit=1 << 26)
    lost = [row % 9 == 0 for row in range(120_000)]
    cut_out(source, target, lost)
    assert target.stat().st_size < source.stat().st_size * 1.1


@settings(max_examples=60, **COMMON)
@given(data=st.data())
def test_any_file_and_any_rows(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any")
    rows = data.draw(st.integers(0, 400))
    kinds = data.draw(st.lists(st.sampled_from([*FLAT, *NESTED]), min_size=1, max_size=6))
    codec = data.draw(st.sampled_from(CODECS))
    source = folder / "source.parquet"
    pq.write_table(
        everything(rows, data.draw(st.integers(0, 99)), kinds),
        source,
        row_group_size=data.draw(st.integers(1, 400)),
        compression=codec,
        use_dictionary=data.draw(st.booleans()),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        write_page_index=data.draw(st.booleans()),
        data_page_size=data.draw(st.sampled_from([1, 64, 1 << 20])),
        write_batch_size=data.draw(st.sampled_from([1, 7, 1024])),
        dictionary_pagesize_limit=data.draw(st.sampled_from([1, 100, 1 << 20])),
        max_rows_per_page=data.draw(st.sampled_from([3, 20_000])),
    )
    lost = lose(rows, data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.02, 0.3, 0.9])))
    try:
        pq.read_table(source)
    except pa.ArrowInvalid:
        reject()  # pyarrow writes a list of one row behind a full dictionary so that it cannot read it itself
    cut_out(source, folder / "target.parquet", lost)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_of_no_values(tmp_path: Path, version: str) -> None:
    """Writers leave empty pages if a record exactly fills a page; they do not end the chunk."""
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    table = pa.table({"row": range(4), "list": pa.array([[7, 7]] * 4)})
    pq.write_table(table, source, data_page_size=1, write_batch_size=2, data_page_version=version)
    for lost in range(4):
        target.unlink(missing_ok=True)
        rewrite(source, target, np.array([lost]), np.array([1]))
        assert pq.read_table(target)["row"].to_pylist() == [row for row in range(4) if row != lost]
        assert pq.read_table(target)["list"].to_pylist() == [[7, 7]] * 3


def test_ranges_must_make_sense(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(pa.table({"row": range(10)}), source)
    for first, counts, problem in [
        ([3, 2], [1, 1], r"range 1 \(2, 1\).* sorted and disjoint"),
        ([1, 2], [2, 1], r"range 1 \(2, 1\).* sorted and disjoint"),
        ([1], [], "1 first rows, but 0"),
        ([8], [3], "ends at row 11.* has 10"),
        ([-1], [1], "first_rows.* null or below 0"),
        ([0.5], [1], "first_rows: is of type double|first_rows: is of type Float64"),
    ]:
        with pytest.raises(ValueError, match=problem):
            rewrite(source, target, np.array(first), np.array(counts, np.int32))
        assert not target.exists()
    assert rewrite(source, target, pa.chunked_array([[1], [5]], pa.uint64()), pa.array([1, 2])).rows == 7


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(pa.table({"row": range(10)}), source)
    none = np.array([], np.uint64)
    target.write_bytes(b"theirs")
    with pytest.raises(FileExistsError) as raised:
        rewrite(source, target, none, none)
    assert (raised.value.filename, raised.value.errno) == (str(target), errno.EEXIST)
    assert target.read_bytes() == b"theirs"
    with pytest.raises(FileNotFoundError):
        rewrite(source, tmp_path / "none" / "target.parquet", none, none)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    source = tmp_path / "source.parquet"
    pq.write_table(pa.table({"row": range(100_000)}), source, use_dictionary=False, compression="NONE")
    # A bound on the size of files is what a full disk is, but for the error.
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        with pytest.raises(OSError, match="File too large") as raised:
            rewrite(source, tmp_path / "target.parquet", np.array([5]), np.array([1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert raised.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == ["source.parquet"]


# Damaged files


def small_file(path: Path, **options: Any) -> bytes:
    table = pa.table(
        {
            "pid": [1, 1, 2, 2, None],
            "epoch": [0, 0, 0, 0, 0],
            "partition": [0, 0, 0, 0, 0],
            "seq": [0, 1, 0, 1, 2],
            "name": ["a", "b", None, "a", "c"],
            "many": [[1], [], None, [2, 3], [4]],
        }
    )
    pq.write_table(table, path, row_group_size=3, write_page_index=True, **options)
    return path.read_bytes()


def read_all(path: Path, target: Path) -> None:
    """Every function over one file."""
    scan = SpanScan(path, Columns(), 4, order_by=["name"] if path.stat().st_size % 2 else [])
    while scan.next(1) is not None:
        pass
    parquet_footer(path, ["seq"])
    target.unlink(missing_ok=True)
    rewrite(path, target, np.array([1]), np.array([1]))


def test_every_truncated_file_is_reported(tmp_path: Path) -> None:
    path, target = tmp_path / "short.parquet", tmp_path / "target.parquet"
    data = small_file(path)
    read_all(path, target)
    target.unlink()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        for door in (
            lambda: SpanScan(path, Columns(), 4),
            lambda: parquet_footer(path),
            lambda: rewrite(path, target, np.array([1]), np.array([1])),
        ):
            with pytest.raises(fp.errors.SourceError) as raised:
                door()
            assert raised.value.path == str(path)
            assert raised.value.position == max(length - 8, 0)
            assert raised.value.message.startswith(f"{path}")
    assert not target.exists()


@pytest.mark.parametrize("options", [{"compression": "NONE"}, {"compression": "ZSTD", "data_page_version": "2.0"}])
def test_a_damaged_file_is_an_error_or_other_data(options: dict[str, Any], tmp_path: Path) -> None:
    """Never a panic, never anything but these two errors, and no target where there is one."""
    path, target = tmp_path / "damaged.parquet", tmp_path / "target.parquet"
    data = small_file(path, **options)
    rng = random.Random(18)
    failed = 0
    places = range(0, len(data), 2)
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        problem = ""
        try:
            read_all(path, target)
        except (fp.errors.SourceError, fp.errors.BatchError) as error:
            problem = str(error)
        if problem:
            failed += 1
            assert str(path) in problem
            assert not target.exists()
        target.unlink(missing_ok=True)
    assert failed > len(places) // 4


def test_checksums_of_pages_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "damaged.parquet"
    table = pa.table({"pid": [1] * 99, "partition": [0] * 99, "seq": range(99), "epoch": [0] * 99})
    pq.write_table(table, path, compression="NONE", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    place = data.index((50).to_bytes(8, "little") + (51).to_bytes(8, "little"))
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(fp.errors.SourceError, match=r"(?i)crc|checksum"):
        SpanScan(path, Columns(), 1).next(1)


def test_no_file_no_parquet_and_encrypted_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for data, problem in [
        (b"PAR1 this is no parquet", "no Parquet footer"),
        (b"PARE" + bytes(20) + b"PARE", "footer is encrypted"),
        (b"PAR1" + b"\xff\xff\xff\x00PAR1", "the file has 12"),
    ]:
        path.write_bytes(data)
        with pytest.raises(fp.errors.SourceError) as raised:
            parquet_footer(path)
        assert problem in str(raised.value)
        assert raised.value.path == str(path)
    with pytest.raises(fp.errors.SourceError, match="not a regular file"):
        parquet_footer(tmp_path)
    path.unlink()
    for door in (lambda: parquet_footer(path), lambda: SpanScan(path, Columns(), 1)):
        with pytest.raises(FileNotFoundError, match="No such file") as gone:
            door()
        assert gone.value.filename == str(path)


# Rows as spans

IDENTITY = Columns()


def scanned(scan: SpanScan, spans_max: int = 1 << 60) -> Iterator[tuple[int, pa.RecordBatch]]:
    while (batches := scan.next(spans_max)) is not None:
        assert [shard for shard, _ in batches] == sorted({shard for shard, _ in batches})
        for shard, batch in batches:
            rows = pa.record_batch(batch)
            rows.validate(full=True)
            assert rows.num_rows > 0
            assert rows["_row"].to_pylist() == sorted(rows["_row"].to_pylist())
            yield shard, rows


def expanded(scan: SpanScan, seq: str, spans_max: int = 1 << 60) -> dict[int, tuple[int, dict[str, Any]]]:
    """Each row of each span: its shard and its values."""
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    spans = 0
    for shard, batch in scanned(scan, spans_max):
        for span in batch.to_pylist():
            spans += 1
            length, row = span.pop("_length"), span.pop("_row")
            for at in range(length):
                assert row + at not in found
                found[row + at] = shard, span | {seq: span[seq] + at}
    assert scan.spans == spans
    return found


def events(rows: int, seed: int, *, null_share: float = 0.05) -> pa.Table:
    """Spans of several lengths by a few producers, some of it untracked."""
    rng = random.Random(seed)
    columns: dict[str, list[Any]] = {name: [] for name in ("pid", "epoch", "partition", "seq", "timestamp", "source")}
    while len(columns["pid"]) < rows:
        pid = rng.choice([None, -1]) if rng.random() < null_share else rng.choice([0, 5, 6, 7, 2**62])
        values = {"pid": pid, "epoch": rng.randrange(2), "partition": rng.randrange(3)}
        seq, timestamp, source = rng.choice([0, 1, 2**31 - 9]), rng.randrange(10**9), rng.choice("ab")
        for at in range(rng.choice([1, 2, 3, 30])):
            timestamp += rng.random() < 0.05
            source = rng.choice("ab") if rng.random() < 0.05 else source
            rest = {"seq": min(seq + at, 2**31 - 1), "timestamp": timestamp, "source": source}
            for name, value in (values | rest).items():
                columns[name].append(value)
    kinds = {"pid": pa.int64(), "epoch": pa.int16(), "partition": pa.int32(), "seq": pa.int32()}
    arrays = {name: pa.array(values[:rows], kinds.get(name)) for name, values in columns.items()}
    return pa.table(arrays | {"payload": pa.array([str(row) for row in range(rows)])})


def plain_spans(rows: list[dict[str, Any]], same: Sequence[str]) -> list[tuple[int, int]]:
    """First row and length of each span, row by row."""
    spans: list[tuple[int, int]] = []
    before: dict[str, Any] | None = None
    for number, row in enumerate(rows):
        if row["pid"] in (None, -1):
            before = None
            continue
        continues = before is not None and row["seq"] == before["seq"] + 1 and all(row[it] == before[it] for it in same)
        if continues:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((number, 1))
        before = row
    return spans


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"timestamp": True}, {"order_by": ["source"]}, {"by_row": True}], ids=str)
@pytest.mark.parametrize("spans_max", [1, 40, 1 << 60])
def test_spans_are_the_rows(seed: int, options: dict[str, Any], spans_max: int, tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    table = events(3000, seed)
    pq.write_table(table, path, row_group_size=random.Random(seed).choice([100, 999, 10**6]))
    scan = SpanScan(path, IDENTITY, 5, ordinal=17, **options)
    found = expanded(scan, "seq", spans_max)
    given = [*IDENTITY.names, *(["timestamp"] if "timestamp" in options else []), *options.get("order_by", [])]
    shards = pa.array(fp.shards(table, 5)).to_pylist()
    rows = table.to_pylist()
    tracked = {row: values for row, values in enumerate(rows) if values["pid"] not in (None, -1)}
    assert found == {
        row: (shards[row], {name: values[name] for name in given} | {"_file": 17}) for row, values in tracked.items()
    }
    assert (scan.rows, scan.untracked) == (3000, 3000 - len(tracked))
    assert scan.footer_crc == footer_crc(path)
    assert scan.row_groups == (0, pq.ParquetFile(path).metadata.num_row_groups)
    newest = max(values["timestamp"] for values in tracked.values()) if "timestamp" in options else None
    assert scan.newest_timestamp == newest
    same = [name for name in given if name != "seq"]
    expected = plain_spans(rows, same)
    if options.get("by_row"):
        expected = [(row, 1) for row in tracked]
    if spans_max == 1 << 60:
        whole = [batch for _, batch in scanned(SpanScan(path, IDENTITY, 5, **options))]
        spans = [(it["_row"], it["_length"]) for batch in whole for it in batch.to_pylist()]
        assert sorted(spans) == expected


def test_spans_continue_across_batches_and_row_groups(tmp_path: Path) -> None:
    """Rows are decoded 65536 at a time."""
    path = tmp_path / "events.parquet"
    rows = 300_000
    table = pa.table({
        "pid": pa.array(["only"] * rows), "partition": pa.array([3] * rows), "seq": pa.array(range(rows)),
        "source": pa.array(["x"] * rows), "timestamp": pa.array([7] * rows, pa.timestamp("us")),
    })  # fmt: skip
    pq.write_table(table, path, row_group_size=70_000)
    columns = Columns(epoch=None)
    scan = SpanScan(path, columns, 3, order_by=["source"], timestamp=True)
    [(shard, batch)] = scanned(scan)
    assert batch.to_pylist() == [{
        "pid": "only", "partition": 3, "seq": 0, "timestamp": 0, "source": "x",
        "_length": rows, "_file": 0, "_row": 0,
    }]  # fmt: skip
    assert shard == pa.array(fp.shards(table.slice(0, 1), 3, columns))[0].as_py()
    assert (scan.spans, scan.untracked) == (1, 0)
    # What was given is not gone on with.
    lengths = [batch["_length"][0].as_py() for _, batch in scanned(SpanScan(path, columns, 3), 1)]
    assert sum(lengths) == rows
    assert lengths[0] == 1 << 16


INTS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]


@pytest.mark.parametrize("kind", INTS, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0", "compression": "ZSTD"}]
)
def test_integers_of_any_width(kind: pa.DataType, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    rng = random.Random(19)
    table = pa.table({name: pa.array([rng.randrange(3) for _ in range(500)], kind) for name in IDENTITY.names})
    pq.write_table(table, path, **options)
    [*batches] = scanned(SpanScan(path, IDENTITY, 2))
    wide = kind.bit_width == 64 or kind == pa.uint32()
    kinds = [
        pa.int64(),
        pa.int32(),
        pa.int16(),
        pa.int64() if wide else pa.int32(),
        pa.uint32(),
        pa.uint32(),
        pa.uint64(),
    ]
    for _, batch in batches:
        assert batch.schema.names == ["pid", "partition", "epoch", "seq", "_length", "_file", "_row"]
        assert batch.schema.types == kinds
    found = {row: values for row, (_, values) in expanded(SpanScan(path, IDENTITY, 2), "seq").items()}
    assert found == {row: values | {"_file": 0} for row, values in enumerate(table.to_pylist())}


KEYS = [
    pa.array(["a", "b", "é", ""] * 25),
    pa.array(["a", "b", "c", "d"] * 25, pa.large_string()),
    pa.array(["a", "b", "c", "d"] * 25).dictionary_encode(),
    pa.array([b"a", b"\x00", b"", b"xyz"] * 25),
    pa.array([b"0123456789abcdef", b"x" * 16] * 50, pa.binary(16)),
    pa.array([1, 2, 3, 4] * 25, pa.int32()).dictionary_encode(),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda it: str(it.type))
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_keys_of_any_kind(keys: pa.Array, use_dictionary: bool, tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    keys = keys.take(pa.array([row // 5 for row in range(100)]))
    holes = pa.array([None if row == 33 else row for row in range(100)])
    table = pa.table({
        "pid": keys.take(holes), "site": keys, "partition": [0] * 100, "seq": [row % 5 for row in range(100)],
    })  # fmt: skip
    pq.write_table(table, path, use_dictionary=use_dictionary, row_group_size=37)
    columns = Columns(pid=("pid", "site"), epoch=None)
    shards = pa.array(fp.shards(table, 7, columns)).to_pylist()
    scan = SpanScan(path, columns, 7)
    found = expanded(scan, "seq", 3)
    assert scan.untracked == 1
    plain = {name: table[name].to_pylist() for name in table.column_names}
    assert found == {
        row: (shards[row], {name: plain[name][row] for name in plain} | {"_file": 0}) for row in range(100) if row != 33
    }
    kind = keys.type.value_type if pa.types.is_dictionary(keys.type) else keys.type
    given = {pa.large_string(): pa.string(), pa.int32(): pa.int64()}.get(kind, kind)
    assert {batch.schema.field("site").type for _, batch in scanned(SpanScan(path, columns, 7))} == {given}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}], ids=str)
def test_timestamps_of_any_unit(unit: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    ticks = [0, 1, -1, 999, 1001, -1001, 1_700_000_000]
    table = pa.table(
        {
            "pid": [1] * 7,
            "epoch": [0] * 7,
            "partition": [0] * 7,
            "seq": range(7),
            "timestamp": pa.array(ticks, pa.timestamp(unit)),
        }
    )
    pq.write_table(table, path, **options)
    per_ms = {"s": 0.001, "ms": 1, "us": 1000, "ns": 10**6}[unit]
    expected = [tick * 1000 if unit == "s" else tick // int(per_ms) for tick in ticks]
    found = expanded(SpanScan(path, IDENTITY, 1, timestamp=True), "seq")
    assert [found[row][1]["timestamp"] for row in range(7)] == expected
    newest = SpanScan(path, IDENTITY, 1, timestamp=True)
    assert newest.newest_timestamp is None
    newest.next(1)
    assert newest.newest_timestamp == max(expected)


def test_an_order_by_the_timestamp_keeps_what_is_below_the_millisecond(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    at = pa.array([1000, 1000, 1001], pa.timestamp("us"))
    pq.write_table(pa.table({"pid": [1] * 3, "epoch": [0] * 3, "partition": [0] * 3, "seq": range(3), "at": at}), path)
    columns = Columns(timestamp="at")
    [(_, batch)] = scanned(SpanScan(path, columns, 1, timestamp=True, order_by=["at"]))
    assert batch["at"].type == pa.timestamp("us")
    assert batch["_length"].to_pylist() == [2, 1]
    [(_, batch)] = scanned(SpanScan(path, columns, 1, timestamp=True, order_by=["pid"]))
    assert batch["at"].to_pylist() == [1]
    [(_, batch)] = scanned(SpanScan(path, columns, 1, order_by=["seq"]))
    assert batch["_length"].to_pylist() == [1, 1, 1]
    assert batch.schema.names.count("seq") == 1


def test_columns_of_folder_names(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    table = pa.table({"seq": [0, 1, 5], "partition": [9, 9, 9]})
    pq.write_table(table, path)
    columns = Columns(pid=("site", "number"), epoch="day")
    constants = {"site": "paris", "number": 8, "day": 3}
    found = expanded(SpanScan(path, columns, 3, constants=constants), "seq")
    whole = table.append_column("site", pa.array(["paris"] * 3)).append_column("number", pa.array([8] * 3))
    shards = pa.array(fp.shards(whole, 3, columns)).to_pylist()
    row = {"site": "paris", "number": 8, "partition": 9, "day": 3, "_file": 0}
    assert found == {at: (shards[at], row | {"seq": seq}) for at, seq in enumerate([0, 1, 5])}
    # The folder's word counts more than the file's.
    constants = {"partition": 4, "pid": 2}
    found = expanded(SpanScan(path, Columns(epoch=None), 3, constants=constants, order_by=["partition"]), "seq")
    assert {values["partition"] for _, values in found.values()} == {4}
    untracked = SpanScan(path, Columns(epoch=None), 3, constants={"pid": None})
    assert untracked.next(1) is None
    assert (untracked.untracked, untracked.spans, untracked.rows) == (3, 0, 3)
    with pytest.raises(fp.BatchError, match="null, but"):
        SpanScan(path, Columns(epoch=None), 3, constants={"pid": 1, "seq": None}).next(1)


BAD = [
    ("seq", pa.array([0, -1, 2]), "value -1 is outside 0..=9223372036854775807", {}),
    ("seq", pa.array([0, -1, 2], pa.int32()), "value -1 is outside 0..=9223372036854775807", {}),
    ("seq", pa.array([0, 2**31, 2]), "value 2147483648 is outside 0..=2147483647, the r", {"policy": "any_order"}),
    ("seq", pa.array([0, None, 2]), "null, but", {}),
    ("pid", pa.array([0, -2, 2]), "value -2 is outside 0..=9223372036854775807 (-1", {}),
    ("partition", pa.array([0, 2**31, 2]), "value 2147483648 is outside 0..=2147483647", {}),
    ("epoch", pa.array([0, 2**15, 2]), "value 32768 is outside 0..=32767", {}),
    ("epoch", pa.array([0, None, 2]), "null, but", {}),
    ("timestamp", pa.array([0, None, 2]), "null, but", {"timestamp": True}),
    ("source", pa.array(["a", None, "b"]), "null", {"order_by": ["source"]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "problem", "options"), BAD, ids=lambda it: str(it)[:30])
def test_a_bad_value_is_named_with_its_row_of_the_file(
    name: str, values: pa.Array, problem: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "events.parquet"
    # More rows than are decoded at a time stand before it.
    good = 70_000
    plain = {"pid": [1], "epoch": [0], "partition": [0], "seq": [0], "timestamp": [0], "source": ["a"]}
    columns = {key: pa.array(cells * (good + 3)) for key, cells in plain.items()}
    zeros = pa.array((["a"] if name == "source" else [0]) * good, values.type)
    columns[name] = pa.concat_arrays([zeros, values])
    pq.write_table(pa.table(columns), path, row_group_size=30_000)
    scan = SpanScan(path, IDENTITY, 3, **options)
    with pytest.raises(fp.BatchError) as raised:
        scan.next(1 << 60)
    assert (raised.value.column, raised.value.row) == (name, good + 1)
    assert raised.value.message.startswith(f"{path}: column '{name}', row {good + 1}: {problem}")
    if "order_by" not in options:
        table = fp.StateTable(options.get("policy", "any_order"), keep=["timestamp"] if "timestamp" in options else [])
        with pytest.raises(fp.BatchError) as expected:
            table.apply(pa.table(columns))
        if options.get("policy") or name != "seq" or values.null_count:
            assert raised.value.message == f"{path}: {expected.value.message}"
    with pytest.raises(fp.errors.SourceError, match="read failed midway"):
        scan.next(1)


def test_missing_or_unusable_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    pq.write_table(pa.table({"pid": [1.0], "epoch": [0], "partition": [[1]], "seq": [0]}), path)
    with pytest.raises(fp.BatchError, match="column 'nothing': missing; it has pid, epoch, partition, seq") as raised:
        SpanScan(path, Columns(seq="nothing"), 1)
    assert raised.value.column == "nothing"
    with pytest.raises(fp.BatchError, match=r"column 'pid'.* Float64, integers, strings or binary"):
        SpanScan(path, IDENTITY, 1).next(1)
    with pytest.raises(fp.BatchError, match="column 'partition': is of type List"):
        SpanScan(path, Columns(pid="epoch"), 1).next(1)
    with pytest.raises(ValueError, match="at least one shard"):
        SpanScan(path, IDENTITY, 0)
    twice = pa.table([pa.array([1])] * 5, names=["pid", "epoch", "partition", "seq", "seq"])
    pq.write_table(twice, path)
    with pytest.raises(fp.BatchError, match=r"column 'seq': .*more than once"):
        SpanScan(path, IDENTITY, 1)


def test_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    pq.write_table(events(0, 1), path)
    scan = SpanScan(path, IDENTITY, 3)
    assert scan.next(10) is None
    assert scan.next(10) is None
    assert (scan.rows, scan.spans, scan.untracked, scan.newest_timestamp) == (0, 0, 0, None)


def test_spans_of_a_scan_are_judged_as_their_rows(tmp_path: Path) -> None:
    """Each span's rows, in the order of the file, by shard: the verdicts of the whole."""
    path = tmp_path / "events.parquet"
    table = events(4000, 21)
    pq.write_table(table, path, row_group_size=700)
    expected = fp.StateTable("any_order").apply(table)
    counts: dict[Any, int] = {}
    tables = [fp.StateTable("any_order") for _ in range(4)]
    for shard, batch in scanned(SpanScan(path, IDENTITY, 4, policy="any_order"), 100):
        rows = [span | {"seq": span["seq"] + at} for span in batch.to_pylist() for at in range(span["_length"])]
        for verdict, count in tables[shard].apply(pa.Table.from_pylist(rows)).counts.items():
            counts[verdict] = counts.get(verdict, 0) + count
    counts[fp.Verdict.UNTRACKED] = expected.counts[fp.Verdict.UNTRACKED]
    assert counts == dict(expected.counts)


# Footers


def test_footers_give_rows_and_bounds(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    table = pa.table(
        {
            "a": pa.array([5, 1, None, 7, None, None], pa.int64()),
            "b": pa.array([0, 2**32 - 1, 3, 4, 5, 6], pa.uint32()),
            "c": pa.array([-1, 1, 2, 3, 4, 5], pa.int8()),
            "text": list("abcdef"),
            "one": [{"a": 1}] * 6,
        }
    )
    pq.write_table(table, path, row_group_size=2)
    footer = parquet_footer(path, ["c", "a", "b", "text"])
    assert isinstance(footer, ParquetFooter)
    assert (footer.rows, footer.row_groups, footer.footer_crc) == (6, 3, footer_crc(path))
    assert footer.bounds == {
        "a": [(1, 5), (7, 7), None],
        "b": [(0, 2**32 - 1), (3, 4), (5, 6)],
        "c": [(-1, 1), (2, 3), (4, 5)],
        "text": [None, None, None],
    }
    assert parquet_footer(path).bounds == {}
    with pytest.raises(fp.BatchError, match="column 'one': missing"):
        parquet_footer(path, ["one"])


# Threads and signals


def test_the_interpreter_is_released_and_interrupts_are_answered(tmp_path: Path) -> None:
    path, target = tmp_path / "events.parquet", tmp_path / "target.parquet"
    rows = 1_000_000
    table = pa.table({
        "pid": np.arange(rows) % 1000, "epoch": np.zeros(rows, np.int16), "partition": np.zeros(rows, np.int32),
        "seq": np.arange(rows), "payload": np.random.default_rng(1).bytes(rows * 8).hex()[:rows] and np.arange(rows),
    })  # fmt: skip
    pq.write_table(table, path, row_group_size=50_000)

    def work() -> None:
        target.unlink(missing_ok=True)
        SpanScan(path, IDENTITY, 4).next(1 << 60)
        rewrite(path, target, np.arange(0, rows, 100), np.ones(rows // 100, np.uint64))

    assert_released(work, is_brief=True)
    target.unlink()
    began = time.process_time()
    rewrite(path, target, np.arange(0, rows, 100), np.ones(rows // 100, np.uint64))
    midway = (time.process_time() - began) / 4

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    again = tmp_path / "again.parquet"
    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        signal.setitimer(signal.ITIMER_PROF, midway)
        with pytest.raises(KeyboardInterrupt):
            rewrite(path, again, np.arange(0, rows, 100), np.ones(rows // 100, np.uint64))
        assert not again.exists()
        signal.setitimer(signal.ITIMER_PROF, 0.005)
        scans = (SpanScan(path, IDENTITY, 4, by_row=True).next(1 << 60) for _ in range(1000))
        with pytest.raises(KeyboardInterrupt):
            list(scans)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
