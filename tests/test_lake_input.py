"""Bad input to a job: its own clear error that names the file, output and state unchanged, and a way on afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import fencepost as fp
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost.lake import write
from test_lake import first_of_each, hashes, land, land_some, make_job, make_rows, read_sink, read_source


def with_value(column: str, row: int, value: int | None) -> pa.Table:
    """The rows of seed 9, tracked, with another value in one place."""
    rows = make_rows(9)
    rows = rows.set_column(0, "pid", pa.array([1] * len(rows), pa.int64()))
    values = rows[column].cast(pa.int64()).to_pylist()
    values[row] = value
    return rows.set_column(rows.schema.get_field_index(column), column, pa.array(values, pa.int64()))


def retyped(column: str, values: pa.Array) -> pa.Table:
    return make_rows(9).set_column(make_rows(9).schema.get_field_index(column), column, values)


BAD_ROWS: dict[str, tuple[Callable[[], pa.Table], str, str, int | None]] = {
    "missing column": (
        lambda: make_rows(9).drop_columns("epoch"),
        "epoch",
        "column 'epoch': missing; it has pid, partition, seq, origin",
        None,
    ),
    "null seq": (lambda: with_value("seq", 471, None), "seq", "column 'seq', row 471: ", 471),
    "negative epoch": (lambda: with_value("epoch", 3, -1), "epoch", "column 'epoch', row 3: ", 3),
    "seq behind the wrap": (lambda: with_value("seq", 599, 2**31), "seq", "column 'seq', row 599: ", 599),
    "null partition": (lambda: with_value("partition", 5, None), "partition", "column 'partition', row 5: ", 5),
    "negative pid": (lambda: with_value("pid", 250, -2), "pid", "column 'pid', row 250: ", 250),
    "text seq": (lambda: retyped("seq", pa.array(["1"] * 600)), "seq", "column 'seq': ", None),
    "time as pid": (lambda: retyped("pid", pa.array([1.5] * 600)), "pid", "column 'pid': ", None),
}


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.parametrize("runs_before", [0, 1])
def test_bad_rows(tmp_path: Path, case: str, runs_before: int) -> None:
    make, column, message, row = BAD_ROWS[case]
    land_some(tmp_path, [0, 1])
    if runs_before:
        make_job(tmp_path).run()
    land_some(tmp_path, [2])
    bad = land(tmp_path / "source", "bad.parquet", make())
    before = hashes(tmp_path)
    with pytest.raises(fp.BatchError) as caught:
        make_job(tmp_path).run()
    assert str(caught.value).startswith(f"{bad}: {message}")
    assert (caught.value.column, caught.value.row) == (column, row)
    assert hashes(tmp_path) == before
    bad.unlink()
    assert make_job(tmp_path).run().version == 1 + runs_before
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))


def test_bad_row_under_an_order(tmp_path: Path) -> None:
    land_some(tmp_path, [0, 1])
    bad = land(tmp_path / "source", "bad.parquet", with_value("seq", 471, None))
    with pytest.raises(fp.BatchError, match="column 'seq', row 471: ") as caught:
        make_job(tmp_path, order_by=["partition", "epoch"]).run()
    assert str(bad) in str(caught.value)
    rows = retyped("origin", pa.array(["x"] * 590 + [None] * 10))
    bad.unlink()
    land(tmp_path / "source", "bad.parquet", rows)
    with pytest.raises(fp.BatchError, match="column 'origin', row 590: null; an order needs a value") as caught:
        make_job(tmp_path, order_by="origin").run()
    assert (caught.value.column, caught.value.row) == ("origin", 590)


def test_a_key_type_that_changes(tmp_path: Path) -> None:
    land_some(tmp_path, [0])
    other = land(tmp_path / "source", "other.parquet", retyped("pid", make_rows(9)["pid"].cast(pa.string())))
    with pytest.raises(fp.BatchError, match="column 'pid'") as caught:
        make_job(tmp_path).run()
    assert str(other) in str(caught.value)
    assert not hashes(tmp_path / "sink")
    other.rename(tmp_path / "other.parquet")
    make_job(tmp_path).run()
    (tmp_path / "other.parquet").rename(other)
    before = hashes(tmp_path)
    with pytest.raises(fp.BatchError, match=r"other.parquet.*'pid'"):
        make_job(tmp_path).run()
    assert hashes(tmp_path) == before


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def replace_by_text(file: Path) -> None:
    file.write_bytes(b"pid,epoch,partition,seq\n1,0,0,1\n")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def break_footer(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-40:-20] = b"\xff" * 20
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, replace_by_text, empty, break_footer])
def test_a_file_that_is_no_parquet(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    land_some(tmp_path)
    make_job(tmp_path).run()
    land_some(tmp_path, [5])
    damage(land(tmp_path / "source", "7.parquet", make_rows(7)))
    report = make_job(tmp_path).run()
    assert (report.files, report.deferred, report.quarantined) == (1, ("7.parquet",), ())
    report = make_job(tmp_path, settle_ms=0).run()
    ((name, why),) = report.quarantined
    assert name == "7.parquet"
    assert str(tmp_path / "source" / "7.parquet") in why
    assert make_job(tmp_path).run().version is None
    (tmp_path / "source" / "7.parquet").unlink()
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))


@pytest.mark.parametrize("column", ["seq", "origin"])
def test_a_flipped_byte_in_a_page(tmp_path: Path, column: str) -> None:
    """In an identity column the scan sees it, in the payload the rewriting: either way the others go on."""
    land_some(tmp_path, [0])
    file = land(tmp_path / "source", "1.parquet", make_rows(1), write_page_checksum=True, row_group_size=600)
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(pq.read_schema(file).get_field_index(column))
    data = bytearray(file.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + chunk.total_compressed_size // 2] ^= 1
    file.write_bytes(data)
    report = make_job(tmp_path).run()
    assert (report.files, report.deferred) == (1, ("1.parquet",))
    report = make_job(tmp_path, settle_ms=0).run()
    ((name, why),) = report.quarantined
    assert name == "1.parquet"
    assert re.search(r"1.parquet(, byte \d+)?: cannot be read as Parquet: .*CRC", why)
    assert read_sink(tmp_path).equals(first_of_each(pl.DataFrame(make_rows(0))))


def touch(file: Path) -> None:
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))


def replace(file: Path) -> None:
    land(file.parent, file.name, make_rows(8))


def append_in_place(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b"x")


@pytest.mark.parametrize("change", [touch, replace, append_in_place, Path.unlink])
@pytest.mark.parametrize("step", ["list", "judge"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, change: Callable[[Path], None], step: str) -> None:
    land_some(tmp_path)
    file = tmp_path / "source" / "2.parquet"

    left = [1]

    def meddle(at: str, done: int, total: int) -> None:
        if (at, done) == (step, total) and left:
            left.pop()
            change(file)

    report = make_job(tmp_path, plan="interval").run(meddle)
    if change in (append_in_place, Path.unlink):
        assert report.files == 3
        assert report.deferred == (("2.parquet",) if change is append_in_place else ())
        file.unlink(missing_ok=True)
    else:
        assert report.files == 4
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))
    assert make_job(tmp_path).run().version is None


def test_same_size_and_time_but_other_bytes(tmp_path: Path) -> None:
    """The footers of two files differ even where size, time and inode do not."""
    land_some(tmp_path)
    file = tmp_path / "source" / "2.parquet"

    data = file.read_bytes()
    place = data.rindex(b"parquet-cpp-arrow")

    def rewrite_in_place(at: str, done: int, total: int) -> None:
        nonlocal data
        if (at, done) == ("judge", total):
            stat = file.stat()
            data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            file.write_bytes(data)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    with pytest.raises(fp.SourceError, match=r"2.parquet: its footer is not the one that was read first"):
        make_job(tmp_path, plan="interval").run(rewrite_in_place)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(fp.SourceError, match="no such folder"):
        make_job(tmp_path).run()


def test_a_column_twice(tmp_path: Path) -> None:
    rows = make_rows(1)
    twice = pa.Table.from_arrays([*rows.columns, rows["seq"]], names=[*rows.column_names, "seq"])
    land(tmp_path / "source", "1.parquet", twice)
    with pytest.raises(fp.BatchError, match=r"1.parquet: column 'seq': stands in it more than once"):
        make_job(tmp_path).run()


def test_a_full_disk_is_no_fault_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land_some(tmp_path)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "rewrite", full)
    before = hashes(tmp_path / "source")
    with pytest.raises(OSError, match="No space left on device"):
        make_job(tmp_path).run()
    assert list(hashes(tmp_path)) == [f"source/{name}" for name in before]
