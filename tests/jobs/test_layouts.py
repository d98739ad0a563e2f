"""How outputs are laid out where that is asked for: sizes of files, folders by a column, sorted rows."""

from __future__ import annotations

import datetime as dt
import errno
import json
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from fencepost import cli, lake
from fencepost import state as states
from fencepost.lake import DedupJob, applied_files, arranging, dataset
from fencepost.state.sinks import RunFolders
from support.lake import RetryingEngine, dead_before, hashes, land, make_rows, one_producer, with_column
from support.parquet_files import NESTED, everything

LARGE = 64 << 20


def rows_of(number: int, count: int = 50) -> pa.Table:
    """Rows of one producer, five of them there twice, on three days and at no time."""
    seq = [*range(count), *range(5)]
    times = [None if it % 9 == 0 else dt.datetime(1969, 12, 31, 22) + dt.timedelta(hours=it) for it in seq]
    columns = {"pid": [number] * len(seq), "epoch": [0] * len(seq), "partition": [it % 3 for it in seq]}
    columns |= {"seq": [it // 3 for it in seq], "at": pa.array(times, pa.timestamp("us", "Europe/Paris"))}
    names = ["a/b=c", "été", None, "x y"]
    return pa.table(columns | {"name": [names[it % 4] for it in seq], "row": [f"{number}:{it}" for it in seq]})


def land_files(folder: Path, numbers: Iterable[int] = range(12), **options: Any) -> None:
    for number in numbers:
        land(folder / "source", f"{number:03}.parquet", rows_of(number), **options)


def make(folder: Path, place: str = "", **arguments: Any) -> DedupJob:
    return DedupJob(folder / "source", folder / f"state{place}", folder / f"sink{place}", **arguments)


def outputs(folder: Path, place: str = "", run: int = 1) -> dict[str, pa.Table]:
    root = folder / f"sink{place}" / f"run={run}"
    files = sorted(it for it in root.rglob("*.parquet") if "_rejects" not in str(it) and "_missing" not in str(it))
    return {it.relative_to(root).as_posix(): pq.ParquetFile(it).read() for it in files}


def kept(folder: Path, place: str = "") -> list[str]:
    return sorted(dataset(folder / f"sink{place}").to_table(columns=["row"])["row"].to_pylist())


# Sizes


def test_small_files_become_one_with_the_rows_in_their_order(tmp_path: Path) -> None:
    land_files(tmp_path)
    plain, merged = make(tmp_path, "0").run(), make(tmp_path, target_file_bytes=LARGE).run()
    assert (plain.kept, plain.rows, merged.kept, merged.counts) == (600, 660, 600, plain.counts)
    found = outputs(tmp_path)
    assert list(found) == ["part-00000.parquet"]
    assert found["part-00000.parquet"].equals(pa.concat_tables(outputs(tmp_path, "0").values()))
    assert pq.ParquetFile(tmp_path / "sink/run=1/part-00000.parquet").metadata.num_row_groups == 1
    decided = states.open(tmp_path / "state").version(1)
    assert (decided.outputs.rows, decided.outputs.ordinal, len(decided.inputs)) == ([600], [0], 12)
    assert make(tmp_path, target_file_bytes=LARGE).run().version is None


def test_outputs_have_about_the_requested_size(tmp_path: Path) -> None:
    land_files(tmp_path)
    size = (tmp_path / "source/000.parquet").stat().st_size
    make(tmp_path, target_file_bytes=4 * size + size // 2).run()
    assert [len(it) for it in outputs(tmp_path).values()] == [200, 200, 200]


def test_a_large_file_is_cut_between_row_groups(tmp_path: Path) -> None:
    rows = pa.concat_tables([rows_of(it) for it in range(20)])
    path = land(tmp_path / "source", "a.parquet", rows, row_group_size=110)
    report = make(tmp_path, target_file_bytes=path.stat().st_size // 4).run()
    found = outputs(tmp_path)
    assert list(found) == [f"part-00000-{it:03}.parquet" for it in range(len(found))]
    assert len(found) >= 4
    assert all(len(it) % 100 == 0 for it in found.values())
    make(tmp_path, "0").run()
    assert pa.concat_tables(found.values()).equals(pa.concat_tables(outputs(tmp_path, "0").values()))
    assert report.kept == 1000


def test_files_without_a_change_are_copied_as_bytes(tmp_path: Path) -> None:
    rows = rows_of(0).slice(0, 50)
    land(tmp_path / "source", "one.parquet", rows)
    land(tmp_path / "source/day=2", "two.parquet", rows_of(1).slice(0, 50))
    report = make(tmp_path, target_file_bytes=LARGE).run()
    assert report.carried_files == 2
    run = tmp_path / "sink/run=1"
    assert sorted(outputs(tmp_path)) == ["day=2/part-00000.parquet", "part-00001.parquet"]
    assert (run / "part-00001.parquet").read_bytes() == (tmp_path / "source/one.parquet").read_bytes()


def test_files_of_other_folders_or_columns_are_not_put_together(tmp_path: Path) -> None:
    for number, folder in enumerate(["day=1", "day=1", "day=2", "day=2"]):
        land(tmp_path / "source" / folder, f"{number}.parquet", rows_of(number))
    land(tmp_path / "source/day=3", "4.parquet", rows_of(4))
    land(tmp_path / "source/day=3", "5.parquet", rows_of(5).append_column("more", pa.array(range(55))))
    required = pa.schema([it.with_nullable(it.name != "epoch") for it in rows_of(6).schema])
    land(tmp_path / "source/day=3", "6.parquet", rows_of(6).cast(required))
    make(tmp_path, target_file_bytes=LARGE, schema="merge").run()
    found = {name: len(rows) for name, rows in outputs(tmp_path).items()}
    assert found == {
        "day=1/part-00000.parquet": 100,
        "day=2/part-00002.parquet": 100,
        **{f"day=3/part-0000{it}.parquet": 50 for it in (4, 5, 6)},
    }
    assert len(kept(tmp_path)) == 350


def test_files_with_durations_of_other_units_are_not_put_together(tmp_path: Path) -> None:
    """pandas 2 writes nanoseconds, pandas 3 microseconds. The Parquet schema is that of integers in both files."""
    for number, unit in enumerate(["ns", "ns", "us"]):
        took = pa.array([5_000_000_000 if unit == "ns" else 5_000_000] * 55, pa.duration(unit))
        land(tmp_path / "source", f"{number}.parquet", rows_of(number).append_column("took", took))
    make(tmp_path, target_file_bytes=LARGE, schema="merge").run()
    found = outputs(tmp_path)
    assert {name: len(rows) for name, rows in found.items()} == {"part-00000.parquet": 100, "part-00002.parquet": 50}
    assert {rows["took"].cast(pa.duration("s"))[0].value for rows in found.values()} == {5}


def test_files_with_dates_in_different_calendars_are_not_put_together(tmp_path: Path) -> None:
    """Spark finds the calendar in the metadata of a file, and a merged file has that of the first one."""
    spark = "org.apache.spark."
    of_files: list[dict[str, str]] = [
        {f"{spark}version": "2.4.8"},
        *[{f"{spark}version": f"4.{number}.1"} for number in range(2)],
        {f"{spark}version": "4.2.1", f"{spark}legacyDateTime": ""},
        {},
    ]
    for number, metadata in enumerate(of_files):
        land(tmp_path / "source", f"{number}.parquet", rows_of(number).replace_schema_metadata(metadata))
    make(tmp_path, target_file_bytes=LARGE).run()
    assert [len(rows) for rows in outputs(tmp_path).values()] == [50, 100, 50, 50]


# Folders


def test_rows_are_in_the_folders_of_their_dates(tmp_path: Path) -> None:
    land_files(tmp_path)
    report = make(tmp_path, partition_by="day(at)", target_file_bytes=LARGE).run()
    make(tmp_path, "0").run()
    rows = pl.DataFrame(pa.concat_tables(outputs(tmp_path, "0").values()))
    found = outputs(tmp_path)
    days = [f"day={it}" for it in ("1969-12-31", "1970-01-01", "1970-01-02", "__HIVE_DEFAULT_PARTITION__")]
    assert list(found) == [f"{it}/part-00000.parquet" for it in days]
    for name, table in found.items():
        day = name.partition("/")[0].removeprefix("day=")
        date = pl.col("at").dt.convert_time_zone("UTC").dt.date().cast(pl.String)
        expected = rows.filter(pl.col("at").is_null() if day.startswith("__") else date == day)
        assert pl.DataFrame(table)["row"].to_list() == expected["row"].to_list()
        assert table.schema.equals(pq.read_schema(tmp_path / "source/000.parquet"), check_metadata=True)
    assert report.kept == len(kept(tmp_path)) == 600
    every_day = dataset(tmp_path / "sink").to_table(columns=["day"])["day"].to_pylist()
    assert set(every_day) == {"1969-12-31", "1970-01-01", "1970-01-02", None}


def test_values_of_a_column_name_folders(tmp_path: Path) -> None:
    land_files(tmp_path)
    make(tmp_path, "0").run()
    make(tmp_path, partition_by="name", target_file_bytes=LARGE).run()
    found = outputs(tmp_path)
    names = ["%C3%A9t%C3%A9", "__HIVE_DEFAULT_PARTITION__", "a%2Fb%3Dc", "x%20y"]
    assert sorted(found) == sorted(f"name={it}/part-00000.parquet" for it in names)
    assert all("name" not in it.column_names for it in found.values())
    by = [("row", "ascending")]
    expected = pa.concat_tables(outputs(tmp_path, "0").values()).sort_by(by).select(["row", "name", "at"])
    assert dataset(tmp_path / "sink").to_table().sort_by(by).select(["row", "name", "at"]).equals(expected)
    files = applied_files(tmp_path / "sink")
    assert pl.read_parquet(tmp_path / "sink/run=*/name=*/*.parquet", hive_partitioning=True).height == 600
    assert duckdb.sql(
        f"select count(*) from read_parquet({files}, hive_partitioning=true) where name = 'x y'"
    ).fetchall()
    by_arrow = ds.dataset(tmp_path / "sink", partitioning="hive").to_table()
    assert by_arrow.sort_by(by)["name"].equals(expected["name"])


def test_a_column_that_names_folders_may_begin_with_an_underscore(tmp_path: Path) -> None:
    rows = rows_of(0)
    land(tmp_path / "source", "a.parquet", rows.rename_columns({"name": "_name"}))
    report = make(tmp_path, partition_by="_name").run()
    assert (report.kept, len(kept(tmp_path))) == (50, 50)
    assert [it.partition("/")[0] for it in report.outputs] == ["run=1"] * 4
    assert sorted(applied_files(tmp_path / "sink")) == sorted(f"{tmp_path}/sink/{it}" for it in report.outputs)


def test_a_link_to_nothing_hides_no_other_file(tmp_path: Path) -> None:
    """As after some files were moved to a disk that is not mounted now."""
    land_files(tmp_path)
    make(tmp_path).run()
    files = applied_files(tmp_path / "sink")
    for number in range(20):
        (tmp_path / "sink/run=1" / f"{number}.parquet").symlink_to(tmp_path / "nowhere")
    assert applied_files(tmp_path / "sink") == files
    assert dataset(tmp_path / "sink").count_rows() == 600


def test_the_layout_may_change_from_run_to_run(tmp_path: Path) -> None:
    layouts: list[dict[str, Any]] = [{}, {"partition_by": "pid"}, {"partition_by": "day(at)"}, {"sort_by": "row"}, {}]
    for number, layout in enumerate(layouts):
        land_files(tmp_path, range(2 * number, 2 * number + 2))
        assert make(tmp_path, **layout).run().kept == 100
    table = dataset(tmp_path / "sink").to_table()
    assert table.schema.field("pid").type == pa.int64()
    assert sorted(table["pid"].to_pylist()) == sorted([it for it in range(10) for _ in range(50)])
    land_files(tmp_path, range(3))
    assert make(tmp_path, partition_by="pid").run().kept == 0


# Order


def test_rows_of_an_output_are_sorted(tmp_path: Path) -> None:
    land_files(tmp_path)
    make(tmp_path, "0").run()
    make(tmp_path, sort_by=["name", "at"], target_file_bytes=LARGE).run()
    (found,) = outputs(tmp_path).values()
    rows = pa.concat_tables(outputs(tmp_path, "0").values())
    assert found.equals(rows.sort_by([("name", "ascending"), ("at", "ascending")]))
    make(tmp_path, "1", sort_by="name").run()
    assert len(outputs(tmp_path, "1")) == 12
    for name, table in outputs(tmp_path, "1").items():
        assert table.equals(outputs(tmp_path, "0")[name].sort_by("name"))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("how", ["sort_by", "partition_by"])
def test_views_as_other_writers_of_arrow_store_them(tmp_path: Path, kind: pa.DataType, how: str) -> None:
    """Arrow's schema in the file says view: Arrow cannot take or sort these."""
    values = ["z", "y", "x", "w"]
    column = pa.array([it.encode() for it in values] if kind == pa.binary_view() else values)
    rows = one_producer([0, 1, 1, 2], note=column)
    land(tmp_path / "source", "a.parquet", rows.set_column(4, "note", column.cast(kind)))
    if how == "partition_by" and kind == pa.binary_view():
        with pytest.raises(fp.BatchError, match="must be text"):
            make(tmp_path, partition_by="note").run()
        return
    make(tmp_path, **{how: "note"}).run()
    found = [row["seq"] for _, table in sorted(outputs(tmp_path).items()) for row in table.to_pylist()]
    assert found == [2, 1, 0]


def test_folders_and_order_together_keep_every_type(tmp_path: Path) -> None:
    tables = []
    for number in range(3):
        table = everything(60, number, [*NESTED, pa.timestamp("ns"), pa.date32(), pa.uint64(), pa.decimal128(20, 3)])
        identity = {"pid": [number] * 60, "epoch": [0] * 60, "partition": [0] * 60, "seq": [*range(58), 3, 4]}
        for name, values in identity.items():
            table = table.append_column(name, pa.array(values, pa.int64()))
        tables.append(table)
        land(tmp_path / "source", f"{number}.parquet", table, use_deprecated_int96_timestamps=number == 1)
    make(tmp_path, partition_by="day(c08)", sort_by=["c11", "row"], target_file_bytes=LARGE, schema="merge").run()
    found = pa.concat_tables(outputs(tmp_path).values(), promote_options="permissive")
    expected = pa.concat_tables([it.slice(0, 58) for it in tables])
    by = [("pid", "ascending"), ("seq", "ascending")]
    assert found.sort_by(by).cast(expected.schema).equals(expected.sort_by(by))
    for name, table in outputs(tmp_path).items():
        assert table["c11"].equals(table.sort_by([("c11", "ascending"), ("row", "ascending")])["c11"]), name


# Memory


def test_buffered_rows_are_bounded_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake.arranging, "HELD_ROWS", 70)
    monkeypatch.setattr(lake.arranging, "ROWS_READ", 16)
    land_files(tmp_path, row_group_size=20)
    make(tmp_path, partition_by="partition", sort_by="row", target_file_bytes=LARGE).run()
    sizes = [len(it) for it in outputs(tmp_path).values()]
    assert max(sizes) <= 34
    assert sum(sizes) == 600
    assert kept(tmp_path) == sorted(f"{number}:{it}" for number in range(12) for it in range(50))


# What must hold


@pytest.mark.parametrize("layout", [{}, {"partition_by": "day(at)", "sort_by": "row"}], ids=["merged", "dealt"])
def test_every_engine_and_every_attempt_makes_the_same_files(tmp_path: Path, layout: dict[str, Any]) -> None:
    land_files(tmp_path)
    layout = {**layout, "target_file_bytes": 40_000}
    engines = [fp.lake.LocalEngine(1), fp.lake.LocalEngine(3), RetryingEngine()]
    found = []
    for number, engine in enumerate(engines):
        make(tmp_path, str(number), engine=engine, **layout).run()
        found.append(hashes(tmp_path / f"sink{number}" / "run=1"))
    assert found[0] == found[1] == found[2]
    assert not list(tmp_path.glob("sink*/_prepare/*"))


def test_a_version_of_a_killed_driver_is_finished_as_it_was_decided(tmp_path: Path) -> None:
    land_files(tmp_path)
    make(tmp_path, "0", partition_by="pid", target_file_bytes=LARGE).run()
    with dead_before(RunFolders, "apply"):
        make(tmp_path, partition_by="pid", target_file_bytes=LARGE).run()
    assert not (tmp_path / "sink/run=1").exists()
    assert make(tmp_path, sort_by="row").run().recovered == (1,)
    assert hashes(tmp_path / "sink/run=1") == hashes(tmp_path / "sink0/run=1")


def test_refused_rows_are_written_to_rejects_file_by_file(tmp_path: Path) -> None:
    for number in range(4):
        land(tmp_path / "source", f"{number}.parquet", make_rows(number))
    make(tmp_path, "0", rejects="all").run()
    report = make(tmp_path, rejects="all", target_file_bytes=LARGE, sort_by="origin").run()
    for table in ("_rejects", "_missing"):
        assert hashes(tmp_path / "sink/run=1" / table) == hashes(tmp_path / "sink0/run=1" / table)
    assert report.kept + sum(report.rejected.values()) == report.rows


def test_a_damaged_file_is_left_out_and_the_others_are_put_together(tmp_path: Path) -> None:
    land_files(tmp_path, range(4), compression="none", use_dictionary=False)
    path = tmp_path / "source/002.parquet"
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(6)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 20] = bytes(20)
    path.write_bytes(data)
    report = make(tmp_path, target_file_bytes=LARGE, settle_ms=0).run()
    assert [it[0] for it in report.quarantined] == ["002.parquet"]
    assert [len(it) for it in outputs(tmp_path).values()] == [150]


@pytest.mark.parametrize("content", [None, b"PAR1"])
def test_a_large_file_that_changes_before_it_is_cut_is_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    land(tmp_path / "source", "b.parquet", rows_of(50))
    rows = pa.concat_tables([rows_of(it) for it in range(20)])
    path = land(tmp_path / "source", "a.parquet", rows, row_group_size=110)
    size, real = path.stat().st_size, arranging._Batch._cuts

    def cuts(batch: Any) -> list[int]:
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        return real(batch)

    monkeypatch.setattr(arranging._Batch, "_cuts", cuts)
    report = make(tmp_path, target_file_bytes=size // 4).run()
    assert (report.inputs["path"].to_pylist(), report.vanished) == (["b.parquet"], (path.name,))


def test_a_disk_that_is_full_at_the_end_of_an_output_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bytes are lost without an error of the writer. The run planned again and again."""
    land_files(tmp_path, range(2))
    make(tmp_path, "0", target_file_bytes=LARGE).run()
    size = (tmp_path / "sink0/run=1/part-00000.parquet").stat().st_size
    real, before = arranging.arrange_rows, resource.getrlimit(resource.RLIMIT_FSIZE)
    calls: list[int] = []

    def write(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        assert len(calls) < 3, "planned again"
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, before[1]))
        try:
            return real(*arguments, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with monkeypatch.context() as patch:
        patch.setattr(arranging, "arrange_rows", write)
        with pytest.raises(OSError, match=r"part-00000-.*\.parquet") as found:
            make(tmp_path, target_file_bytes=LARGE).run()
    assert found.value.errno == errno.EFBIG
    assert make(tmp_path, target_file_bytes=LARGE).run().kept == len(kept(tmp_path)) == 100


def test_rollback_takes_a_laid_out_version_back(tmp_path: Path) -> None:
    land_files(tmp_path, range(2))
    make(tmp_path, partition_by="pid").run()
    land_files(tmp_path, range(2, 4))
    make(tmp_path, target_file_bytes=LARGE).run()
    with pytest.raises(fp.SinkError, match="still in the sink"):
        states.open(tmp_path / "state").rollback(0)
    for path in (tmp_path / "sink").rglob("*.parquet"):
        path.unlink()
    states.open(tmp_path / "state").rollback(0)
    assert make(tmp_path, sort_by="row", target_file_bytes=LARGE).run().kept == 200


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"partition_by": "none"}, r"000.parquet: column 'none': missing; partition_by needs it"),
    ({"sort_by": "none"}, r"000.parquet: column 'none': missing; sort_by needs it"),
    (
        {"partition_by": "day(name)"},
        r"column 'name': string; .* must be .*timestamp or a date",
    ),
    (
        {"partition_by": "at"},
        r"column 'at': timestamp.*; .* must be text, .*integer or a date",
    ),
    ({"sort_by": ["row", "list"]}, r"column 'list': list.*; rows cannot be sorted"),
    ({"partition_by": "empty"}, r"column 'empty': an empty text"),
]


@pytest.mark.parametrize(("layout", "problem"), REFUSED)
def test_an_impossible_layout_is_refused_before_the_decision(
    tmp_path: Path, layout: dict[str, Any], problem: str
) -> None:
    rows = rows_of(0).append_column("list", pa.array([[1]] * 55)).append_column("empty", pa.array([""] * 55))
    land(tmp_path / "source", "000.parquet", rows)
    with pytest.raises(fp.BatchError, match=problem):
        make(tmp_path, on_bad_file="quarantine", **layout).run()
    assert states.open(tmp_path / "state").done() == 0 if (tmp_path / "state/state.json").exists() else True
    assert not list(tmp_path.glob("sink/run=*"))
    assert make(tmp_path).run().kept == 50


def test_a_date_without_a_name_is_refused_with_its_file(tmp_path: Path) -> None:
    """Python has no dates after the year 9999."""
    land_files(tmp_path, [0])
    rows = rows_of(1)
    far = pa.array([2**60] * len(rows), rows.schema.field("at").type)
    path = tmp_path / "source" / "far.parquet"
    pq.write_table(with_column(rows, "at", far), path)
    with pytest.raises(fp.BatchError, match=r"far\.parquet: column 'at': .*1 to 9999"):
        make(tmp_path, partition_by="day(at)").run()


def test_folders_of_the_source_and_columns_of_files_keep_their_names(tmp_path: Path) -> None:
    land(tmp_path / "source/day=2026-01-01", "a.parquet", rows_of(0))
    with pytest.raises(fp.BatchError, match=r"column 'day': .*folders \(day=2026-01-01/\)"):
        make(tmp_path, partition_by="day(at)").run()
    assert make(tmp_path, partition_by="pid").run().outputs == ("run=1/day=2026-01-01/pid=0/part-00000.parquet",)
    other = tmp_path / "other"
    land(other / "source", "a.parquet", rows_of(0).append_column("day", pa.array(["x"] * 55)))
    with pytest.raises(fp.BatchError, match=r"column 'day': exists in the file"):
        make(other, partition_by="day(at)").run()


def test_invalid_layout_arguments_are_refused(tmp_path: Path) -> None:
    for layout, problem in [
        ({"target_file_bytes": 0}, "expected at least 1"),
        ({"partition_by": "month(at)"}, r"expected a column, or day\(column\)"),
        ({"partition_by": ["day"]}, r"expected a column, or day\(column\)"),
        ({"partition_by": "pid", "sort_by": "pid"}, "have the same value"),
        ({"sort_by": [""]}, "is empty"),
    ]:
        with pytest.raises(ValueError, match=problem):
            make(tmp_path, **layout)
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "table", rows_of(0))
    with pytest.raises(fp.SinkError, match="sort_by are for folders, prefixes"):
        DedupJob(tmp_path / "table", tmp_path / "state", tmp_path / "table", sort_by="seq")


# Other doors


def test_a_delta_table_is_written_so_too(tmp_path: Path) -> None:
    land_files(tmp_path)
    make(tmp_path, layout="delta", partition_by="day(at)", sort_by="row", target_file_bytes=20_000).run()
    table = DeltaTable(tmp_path / "sink")
    assert table.metadata().partition_columns == ["day"]
    rows = pl.DataFrame(table.to_pyarrow_table())
    assert rows["row"].sort().to_list() == sorted(f"{number}:{it}" for number in range(12) for it in range(50))
    assert rows.filter(pl.col("day").is_null())["at"].to_list() == [None] * 72
    land_files(tmp_path, range(12, 14))
    make(tmp_path, layout="delta", partition_by="day(at)").run()
    assert len(DeltaTable(tmp_path / "sink").to_pyarrow_table()) == 700


def test_the_command_line_accepts_layout_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    land_files(tmp_path)
    places = [str(tmp_path / it) for it in ("source", "state", "sink")]
    options = ["--target-file-bytes", str(LARGE), "--partition-by", "day(at)", "--sort-by", "name", "--sort-by", "row"]
    assert cli.main(["dedup", *places, *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kept"], len(report["outputs"])) == (600, 4)
    for table in outputs(tmp_path).values():
        assert table.equals(table.sort_by([("name", "ascending"), ("row", "ascending")]))


def test_ranges_cover_what_they_must() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        lost = rng.random(40) < 0.4
        edges = np.flatnonzero(np.diff(np.concatenate([[0], lost, [0]])))
        first, end = edges[::2], edges[1::2]
        for low, high in [(0, 40), (5, 23), (39, 40)]:
            found = lake.arranging._outside(first - low, end - low, high - low)
            assert found.tolist() == np.flatnonzero(~lost[low:high]).tolist()
