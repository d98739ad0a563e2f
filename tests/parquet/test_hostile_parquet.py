"""Parquet files whose counts claim more than the file holds: refused by name, without the memory that they claim."""

from __future__ import annotations

import io
import os
from pathlib import Path

import fencepost as fp
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost._native import SpanScan, arrange, rewrite
from fencepost.policy import Columns
from support import parquet_bytes as raw
from support.bounded import run

# Far below what each file claims, and above what threads and allocators reserve.
SPARE_BYTES = 512 << 20
MANY = 2**31 - 1
NUMBERS = raw.integers(1, 1, 1)
SEQS = raw.integers(0, 1, 2)
# A block of deltas that are all 0.
NO_DELTAS = raw.zigzag(0) + bytes(4)


def good(name: str, body: bytes = NUMBERS) -> raw.Column:
    return raw.Column(name, [raw.data_page(3, body)])


def file_with(pid: raw.Column, *others: raw.Column) -> bytes:
    zeros = [good(name, raw.integers(0, 0, 0)) for name in ("epoch", "partition")]
    return raw.File([pid, *zeros, good("seq", SEQS), *others], rows=3).bytes()


def pid(*pages: bytes, **options: object) -> raw.Column:
    return raw.Column("pid", pages, **options)  # type: ignore[arg-type]


def text(*pages: bytes, **options: object) -> raw.Column:
    return pid(*pages, physical=raw.BYTE_ARRAY, **options)


def compressed(codec: str, number: int) -> bytes:
    """A page of two gibibytes, by its header."""
    name = {"LZ4": "lz4_raw"}.get(codec, codec.lower())
    body = pa.compress(NUMBERS, codec=name, asbytes=True)
    return file_with(pid(raw.data_page(3, body, uncompressed=MANY), codec=number))


def deep_schema() -> bytes:
    groups = [{3: raw.REQUIRED, 4: b"g", 5: 1}] * 100_000
    leaf = {1: raw.INT64, 3: raw.REQUIRED, 4: b"pid"}
    return raw.File([good("pid")], rows=3, schema=[{4: b"schema", 5: 1}, *groups, leaf]).bytes()


def wide_schema() -> bytes:
    return raw.File([good("pid")], rows=3, schema=[{4: b"schema", 5: MANY}, good("pid").schema()]).bytes()


def many_elements() -> bytes:
    schema = raw.Claimed(MANY, [{4: b"schema", 5: 1}, good("pid").schema()])
    return raw.File([good("pid")], rows=3, schema=schema).bytes()


def list_of_many() -> bytes:
    """One row of 2**31 - 1 items: two runs of levels, and a dictionary of one value."""
    run_of_ones = raw.varint((MANY - 1) << 1) + b"\1"
    repetitions = raw.varint(1 << 1) + b"\0" + run_of_ones
    definitions = raw.varint(MANY << 1) + b"\1"
    body = repetitions + definitions + b"\0" + raw.varint(MANY << 1)
    lengths = (len(repetitions), len(definitions))
    pages = [
        raw.dictionary_page(1, raw.texts(b"x")),
        raw.second_page(MANY, body, rows=3, levels=lengths, encoding=raw.RLE_DICTIONARY),
    ]
    options = {"physical": raw.BYTE_ARRAY, "repetition": raw.REPEATED, "values": MANY, "has_dictionary": True}
    return file_with(good("pid"), raw.Column("many", pages, **options))  # type: ignore[arg-type]


CODECS = {"SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "LZ4": 5, "ZSTD": 6, "LZ4_RAW": 7}
HOSTILE = {
    **{
        f"{name} page of two gibibytes": (compressed(name, number), "a page ")
        for name, number in CODECS.items()
        if pa.Codec.is_available({"LZ4_RAW": "lz4_raw", "LZ4": "lz4_raw"}.get(name, name.lower()))
    },
    "values": (file_with(pid(raw.data_page(MANY, NUMBERS))), "its chunk only 3 more"),
    "values of a second page": (
        file_with(pid(raw.second_page(MANY, NUMBERS, rows=MANY))),
        "its chunk only 3 more",
    ),
    "dictionary": (
        file_with(
            text(
                raw.dictionary_page(MANY, raw.texts(b"x")),
                raw.data_page(3, b"\0" + raw.varint(3 << 1), encoding=raw.RLE_DICTIONARY),
                has_dictionary=True,
            )
        ),
        "a dictionary has 2147483647 values, but 5 bytes cannot hold them",
    ),
    "dictionary of numbers": (
        file_with(
            pid(
                raw.dictionary_page(MANY, raw.integers(1)),
                raw.data_page(3, b"\0" + raw.varint(3 << 1), encoding=raw.RLE_DICTIONARY),
                has_dictionary=True,
            )
        ),
        "a dictionary has 2147483647 values, but 8 bytes cannot hold them",
    ),
    "lengths as deltas": (
        file_with(text(raw.data_page(3, raw.deltas(1 << 40), encoding=raw.DELTA_LENGTH))),
        "a page has 1099511627776 deltas, at most 3 are possible",
    ),
    "prefixes as deltas": (
        file_with(text(raw.data_page(3, raw.deltas(1 << 62), encoding=raw.DELTA))),
        "a page has 4611686018427387904 deltas, at most 3 are possible",
    ),
    "suffixes as deltas": (
        file_with(text(raw.data_page(3, raw.deltas(3, NO_DELTAS) + raw.deltas(1 << 40), encoding=raw.DELTA))),
        "a page has 1099511627776 deltas, at most 3 are possible",
    ),
    "fewer values than rows": (
        file_with(pid(raw.data_page(2, NUMBERS))),
        "have 1 values fewer than",
    ),
    "fewer deltas than values": (
        file_with(pid(raw.data_page(3, raw.deltas(2, NO_DELTAS), encoding=raw.DELTA_PACKED))),
        "a page has 2 deltas, but 3 values",
    ),
    "fewer lengths than values": (
        file_with(text(raw.data_page(3, raw.deltas(2, NO_DELTAS), encoding=raw.DELTA_LENGTH))),
        "a page has 2 deltas, but 3 values",
    ),
    "fewer prefixes than values": (
        file_with(text(raw.data_page(3, 2 * raw.deltas(2, NO_DELTAS), encoding=raw.DELTA))),
        "a page has 2 deltas, but 3 values",
    ),
    "statistics of a page": (
        file_with(pid(raw.data_page(3, NUMBERS, statistics={1: raw.Claimed(MANY, b"abc")}))),
        "is longer than its chunk",
    ),
    "values of a fixed length": (
        file_with(pid(raw.data_page(3, NUMBERS), physical=raw.FIXED, length=MANY)),
        "has values of 2147483647 bytes",
    ),
    "children": (wide_schema(), "has 2147483647 children"),
    "elements": (many_elements(), "count in it is too high"),
    "levels of groups": (deep_schema(), "more than 128 levels"),
    "row groups": (raw.File([good("pid")], rows=3, groups=MANY).bytes(), "count in it is too high"),
}
REWRITTEN = {
    "page index": (
        file_with(pid(raw.data_page(3, NUMBERS), index=raw.struct_of({1: raw.Claimed(MANY, [{1: raw.Long(4)}])}))),
        "count in it is too high",
    ),
    "items of a row": (list_of_many(), "a row has 2147483647 values"),
}


def test_files_of_these_bytes_are_files() -> None:
    """But for what they claim, nothing is wrong with them."""
    data = file_with(pid(raw.data_page(3, NUMBERS)), raw.Column("t", [raw.data_page(3, raw.texts(b"a", b"b", b""))], 6))
    table = pq.read_table(io.BytesIO(data))
    expected = {"pid": [1] * 3, "epoch": [0] * 3, "partition": [0] * 3, "seq": [0, 1, 2], "t": [b"a", b"b", b""]}
    assert table.to_pydict() == expected
    snappy = raw.data_page(3, pa.compress(NUMBERS, codec="snappy", asbytes=True), uncompressed=24)
    dictionary = raw.data_page(3, b"\0" + raw.varint(3 << 1), encoding=raw.RLE_DICTIONARY)
    for column in (
        pid(snappy, codec=raw.SNAPPY),
        pid(raw.second_page(3, NUMBERS, rows=3)),
        pid(raw.dictionary_page(1, raw.integers(1)), dictionary, has_dictionary=True),
        pid(raw.data_page(3, NUMBERS, statistics={1: b"abc"})),
    ):
        assert pq.read_table(io.BytesIO(file_with(column))).equals(table.drop(["t"]))


SCAN = """
    for path in sys.argv[1:]:
        try:
            scan = SpanScan(path, Columns(), 2)
            while scan.next(1) is not None:
                pass
            print("read")
        except fp.SourceError as error:
            print(error.path == path, error.message)
"""
REWRITE = """
    for path in sys.argv[1:]:
        try:
            rewrite(path, path + ".new", pa.array([1]), pa.array([1]))
            print("written")
        except fp.SourceError as error:
            print(error.path == path and not Path(path + ".new").exists(), error.message)
"""
MORE = "from fencepost._native import SpanScan, rewrite; from fencepost.policy import Columns"


def check(program: str, files: dict[str, tuple[bytes, str]], folder: Path) -> None:
    paths = [folder / f"{number}.parquet" for number in range(len(files))]
    for path, (data, _) in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    said = run(program, *paths, more=MORE, spare_bytes=SPARE_BYTES).splitlines()
    assert len(said) == len(files), said
    for path, line, (name, (_, expected)) in zip(paths, said, files.items(), strict=True):
        assert line.startswith(f"True {path}"), (name, line)
        assert expected in line, (name, line)


def test_a_scan_refuses_what_a_file_cannot_hold(tmp_path: Path) -> None:
    check(SCAN, HOSTILE, tmp_path)


def test_a_rewrite_refuses_what_a_file_cannot_hold(tmp_path: Path) -> None:
    check(REWRITE, HOSTILE | REWRITTEN, tmp_path)


@pytest.mark.parametrize("encoding", ["plain", "lengths", "prefixes"])
@pytest.mark.parametrize("claims", [(2, 2, 1), (1, 1, 1), (1, 1, 3)])
def test_pages_without_removed_rows_have_the_declared_number_of_values(
    encoding: str, claims: tuple[int, ...], tmp_path: Path
) -> None:
    """Rows after a page that declares one value too many would get the values of their neighbors."""
    pages = []
    for claim in claims:
        body, kind = {
            "plain": (raw.texts(*[b"x"] * claim), raw.PLAIN),
            "lengths": (raw.deltas(claim, NO_DELTAS), raw.DELTA_LENGTH),
            "prefixes": (2 * raw.deltas(claim, NO_DELTAS), raw.DELTA),
        }[encoding]
        pages.append(raw.data_page(claim, body, encoding=kind))
    path = tmp_path / "a.parquet"
    columns = [raw.Column(name, [raw.data_page(4, raw.integers(0, 1, 2, 3))]) for name in ("pid", "seq")]
    path.write_bytes(raw.File([*columns, raw.Column("t", pages, raw.BYTE_ARRAY)], rows=4).bytes())
    for row in range(4):
        with pytest.raises(fp.SourceError, match=r"its chunk only|values fewer than"):
            rewrite(path, tmp_path / "b.parquet", np.array([row]), np.array([1]), keep=True)


def test_a_second_page_of_a_plain_column_has_as_many_rows_as_values(tmp_path: Path) -> None:
    """Skipped rows are counted by this number, so a row would get the values of others."""
    path = tmp_path / "a.parquet"
    pages = [raw.second_page(2, raw.integers(0, 1), rows=1), raw.second_page(2, raw.integers(2, 3), rows=3)]
    columns = [raw.Column("pid", [raw.data_page(4, raw.integers(0, 1, 2, 3))]), raw.Column("seq", pages)]
    path.write_bytes(raw.File(columns, rows=4).bytes())
    with pytest.raises(fp.SourceError, match="2 values in 1 rows"):
        rewrite(path, tmp_path / "b.parquet", np.array([2]), np.array([1]), keep=True)
    with pytest.raises(fp.SourceError, match="2 values in 1 rows"):
        arrange([path], [(tmp_path / "b.parquet", np.array([0]), np.array([2]), np.array([1]))])


def test_jobs_and_audits_name_such_files(tmp_path: Path) -> None:
    """Together with a good file, in the same interpreter."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "good.parquet").write_bytes(file_with(pid(raw.data_page(3, NUMBERS))))
    bad = ["values", "row groups", "dictionary"]
    for name in bad:
        (source / f"{name}.parquet").write_bytes(HOSTILE[name][0])
        os.utime(source / f"{name}.parquet", (0, 0))
    said = run(
        """
        source, root = sys.argv[1:]
        report = audit(source)
        print(report.rows, *sorted(Path(path).stem for path, _ in report.unreadable), sep=", ")
        report = DedupJob(source, root + "/state", root + "/sink").run()
        print(report.rows, *sorted(Path(path).stem for path in report.deferred), sep=", ")
        """,
        source,
        tmp_path,
        more="from fencepost.lake import DedupJob, audit",
        spare_bytes=SPARE_BYTES,
    )
    assert said.splitlines() == ["3, dictionary, row groups, values"] * 2


CODECS = ["NONE", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD"]
# What decompresses is the same for both versions of pages. How much it writes at once depends on the codec.
BOTH_VERSIONS = [
    pytest.param(codec, version, marks=() if version == usual else pytest.mark.matrix)
    for codec, usual in zip(CODECS, ("1.0", "2.0", "1.0", "1.0", "1.0", "1.0"), strict=True)
    for version in ("1.0", "2.0")
]


@pytest.mark.parametrize(("codec", "version"), BOTH_VERSIONS)
def test_highly_compressed_pages_are_read(codec: str, version: str, tmp_path: Path) -> None:
    """Pages of 32 MiB of one value, rows of a hundred thousand equal items, and nulls: a few kilobytes."""
    rows = 1 << 22
    path, target = tmp_path / "dense.parquet", tmp_path / "new.parquet"
    table = pa.table({name: pa.array(np.zeros(rows, np.int64)) for name in ("pid", "seq")})
    options = {"compression": codec, "data_page_version": version, "row_group_size": rows}
    pq.write_table(table, path, use_dictionary=False, data_page_size=1 << 28, **options)
    scan = SpanScan(path, Columns(), 1, constants={"epoch": 0, "partition": 0})
    spans = 0
    while (batches := scan.next(1 << 30)) is not None:
        spans += sum(pa.record_batch(batch).num_rows for _, batch in batches)
    assert spans == rows
    items = pa.array([[0.0] * 100_000] * 40)
    nulls = pa.nulls(40, pa.string())
    pq.write_table(pa.table({"items": items, "nulls": nulls}), path, **options)
    rewrite(path, target, np.array([1]), np.array([2]))
    found = pq.read_table(target)
    assert found.num_rows == 38
    assert found["items"].combine_chunks().flatten().sum().as_py() == 0
    assert pa.compute.list_value_length(found["items"]).unique().to_pylist() == [100_000]
