"""An output file is its input without the rows that go: same schema, metadata, codecs, row groups, order."""

from __future__ import annotations

import datetime
import decimal
import errno
import itertools
import time
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost.lake import LocalEngine, write
from fencepost.state.disk import Disk
from fencepost.state.scratch import FolderScratch
from support.lake import first_of_each, hashes, land, land_some, make_job, make_rows, one_producer, read_source

ROWS = 1000
UTC = datetime.UTC


def wide_rows() -> pa.Table:
    """Rows of which the second half repeats the first, with payload of many types."""
    half = list(range(ROWS // 2))
    at = [datetime.datetime(2024, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=row) for row in range(ROWS)]
    columns: dict[str, pa.Array] = {
        "pid": pa.array([7] * ROWS, pa.int64()),
        "epoch": pa.array([0] * ROWS, pa.int16()),
        "partition": pa.array([0] * ROWS, pa.int32()),
        "seq": pa.array(half + half, pa.int32()),
        "at": pa.array(at, pa.timestamp("us", tz="Europe/Berlin")),
        "day": pa.array([moment.date() for moment in at], pa.date32()),
        "kind": pa.array([f"kind {row % 3}" for row in range(ROWS)]).dictionary_encode(),
        "price": pa.array([decimal.Decimal(row) / 100 for row in range(ROWS)], pa.decimal128(9, 2)),
        "uuid": pa.array([row.to_bytes(16) for row in range(ROWS)], pa.binary(16)),
        "note": pa.array([None if row % 5 == 0 else "x" * (row % 40) for row in range(ROWS)], pa.large_string()),
        "tags": pa.array([[str(tag) for tag in range(row % 4)] if row % 7 else None for row in range(ROWS)]),
        "place": pa.array([{"x": row / 2, "deep": {"y": [row]}} for row in range(ROWS)]),
        "map": pa.array([[("a", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "flag": pa.array([row % 2 == 0 for row in range(ROWS)]),
        "level": pa.array([row / 3 for row in range(ROWS)], pa.float32()),
    }
    table = pa.table(columns)
    fields = [field.with_metadata({"unit": "EUR"}) if field.name == "price" else field for field in table.schema]
    return table.cast(pa.schema(fields, metadata={"owner": "billing", "version": "3"}))


def written(root: Path) -> Path:
    return root / "sink" / "run=1" / "part-00000.parquet"


def written_files(root: Path) -> list[Path]:
    return sorted((root / "sink" / "run=1").glob("part-*.parquet"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd"},
        {"compression": "lz4", "use_dictionary": False},
        {"compression": {"seq": "gzip", "note": "snappy", "tags.list.element": "zstd"}},
        {"compression": "none", "version": "1.0", "data_page_version": "2.0", "write_page_checksum": True},
        {"store_schema": False, "use_dictionary": ["kind"]},
    ],
)
def test_an_output_is_like_its_input(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = wide_rows()
    source = land(tmp_path / "source", "a.parquet", rows, **{"row_group_size": 150, **options})
    assert make_job(tmp_path).run().counts == {"ACCEPTED": ROWS // 2, "DUPLICATE": ROWS // 2}
    before, after = pq.ParquetFile(source), pq.ParquetFile(written(tmp_path))
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    assert after.schema.equals(before.schema)
    assert after.read().equals(before.read().slice(0, ROWS // 2))
    assert after.metadata.format_version == before.metadata.format_version
    assert [after.metadata.row_group(number).num_rows for number in range(4)] == [150, 150, 150, 50]
    assert after.metadata.num_row_groups == 4
    for number in range(before.metadata.num_columns):
        old, new = (file.metadata.row_group(0).column(number) for file in (before, after))
        assert (new.path_in_schema, new.compression) == (old.path_in_schema, old.compression)
        assert new.has_dictionary_page == old.has_dictionary_page, old.path_in_schema


@pytest.mark.parametrize("options", [{}, {"target_file_bytes": 1}], ids=["as they are", "laid out"])
def test_outputs_are_on_the_disk_before_the_version_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Their syncs, which go on while the next file is written, are slower than everything else."""
    land_some(tmp_path, [0, 1, 2, 3])
    real, synced = Disk.seal, []

    def seal(disk: Disk, path: Path) -> None:
        if path.name.startswith("part-"):
            time.sleep(0.05)
            synced.append(path.name)
        elif path.name == "log":
            outputs = [it for it in (tmp_path / "sink").rglob("part-*.parquet") if it.parent.name != "_missing"]
            assert len(synced) == len(outputs)
        real(disk, path)

    monkeypatch.setattr(Disk, "seal", seal)
    make_job(tmp_path, sync=True, engine=LocalEngine(1), **options).run()
    assert len(synced) == len(written_files(tmp_path)) >= 4


def test_an_output_that_cannot_be_synced_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land_some(tmp_path, [0, 1, 2, 3])
    real, calls = Disk.seal, itertools.count()

    def seal(disk: Disk, path: Path) -> None:
        if path.name.startswith("part-") and next(calls) == 1:
            raise OSError(errno.EIO, "the disk is gone")
        real(disk, path)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "seal", seal)
        with pytest.raises(OSError, match="disk is gone"):
            make_job(tmp_path, sync=True, engine=LocalEngine(1)).run()
    assert not list((tmp_path / "state" / "log").glob("*"))
    assert make_job(tmp_path, sync=True).run().kept == sum(map(len, map(pq.read_table, written_files(tmp_path))))


def test_old_spark_timestamps_stay(tmp_path: Path) -> None:
    rows = wide_rows().select(["pid", "epoch", "partition", "seq", "at"])
    source = land(tmp_path / "source", "a.parquet", rows, use_deprecated_int96_timestamps=True, store_schema=False)
    make_job(tmp_path).run()
    assert pq.ParquetFile(source).schema.column(4).physical_type == "INT96"
    assert pq.ParquetFile(written(tmp_path)).schema.equals(pq.ParquetFile(source).schema)
    assert pq.read_table(written(tmp_path)).equals(pq.read_table(source).slice(0, ROWS // 2))


def test_rows_that_go_from_some_row_groups(tmp_path: Path) -> None:
    rows = wide_rows().take(pa.array([*range(ROWS // 2), 3, 4, *range(ROWS // 2)][: ROWS // 2 + 2]))
    land(tmp_path / "source", "a.parquet", rows, row_group_size=200)
    make_job(tmp_path).run()
    groups = pq.ParquetFile(written(tmp_path)).metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [200, 200, 100]
    assert pl.DataFrame(pq.read_table(written(tmp_path))).equals(pl.DataFrame(rows.slice(0, ROWS // 2)))


def test_no_identity_column_is_touched(tmp_path: Path) -> None:
    """A source whose identity columns are dictionaries and text keeps them so."""
    rows = wide_rows()
    pids = pa.array(["device"] * ROWS).dictionary_encode()
    rows = rows.set_column(0, "pid", pids)
    source = land(tmp_path / "source", "a.parquet", rows)
    make_job(tmp_path).run()
    assert pq.read_schema(written(tmp_path)).equals(pq.read_schema(source), check_metadata=True)
    assert len(hashes(tmp_path / "sink")) == 2


def test_a_file_that_is_replaced_while_it_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path / "source", "a.parquet", make_rows(1))
    real, replaced = write.rewrite, list[Path]()

    def rewrite(path: str, *arguments: Any, **options: Any) -> Any:
        if not replaced:
            replaced.append(land(tmp_path / "source", "a.parquet", make_rows(2, 500)))
            raise fp.SourceError(f"{path}: damaged", path=path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(write, "rewrite", rewrite)
    report = make_job(tmp_path, settle_ms=0).run()
    assert (report.quarantined, report.files, report.vanished) == ((), 1, (replaced[0].name,))
    assert report.kept == len(first_of_each(read_source(tmp_path)))


def test_a_task_reads_the_refused_rows_of_its_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together the tasks that write read each byte of what the tasks that judge have written once."""
    monkeypatch.setattr("fencepost.lake.plan.TASK_BYTES", 1)
    monkeypatch.setattr("fencepost.lake.plan.FILE_BYTES", 1)
    for number in range(4):
        seqs = [*range(100 * number, 100 * number + 100)] * (1 + number % 2)
        land(tmp_path / "source", f"{number}.parquet", one_producer(seqs))
    read: list[tuple[str, int, int]] = []
    real = FolderScratch.read_ranges

    def counted(self: FolderScratch, ranges: Any) -> Any:
        read.extend(it for it in ranges if it[0].endswith(".refused"))
        return real(self, ranges)

    monkeypatch.setattr(FolderScratch, "read_ranges", counted)
    report = make_job(tmp_path, plan="interval", shards=1, driver_spans_max=0).run()
    assert report.counts == {"ACCEPTED": 400, "DUPLICATE": 200}
    assert [(begin, end) for _, begin, end in sorted(read)] == [(0, 21), (21, 42)], "a range each of two files"
