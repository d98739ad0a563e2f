"""Iceberg tables as sources: what their snapshots have appended since the one that was read last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost import state
from fencepost.cli import main
from fencepost.lake import DedupJob, RunReport, audit
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from support.iceberg import NAME, catalog_of, files_of, paths_of, pretend_delete_files, properties_of, rows_of
from support.lake import IDENTITY, SCHEMA, first_of_each, make_rows

ROWS = SCHEMA.set(1, pa.field("epoch", pa.int32()))


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return catalog_of(tmp_path)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("db.events", ROWS)


def append(catalog: SqlCatalog, seed: int, count: int = 600) -> None:
    catalog.load_table("db.events").append(make_rows(seed, count).cast(ROWS))


def make_job(root: Path, **arguments: Any) -> DedupJob:
    given: dict[str, Any] = {"source_options": properties_of(root), "settle_ms": 0} | arguments
    return DedupJob(NAME, root / "state", root / "sink", **given)


def run(root: Path, **arguments: Any) -> RunReport:
    return make_job(root, **arguments).run()


def check(root: Path, *seeds: int) -> None:
    """The sink has the first row of each identity, in the order in which they were appended."""
    wanted = first_of_each(pl.DataFrame(pa.concat_tables([make_rows(seed) for seed in seeds])))
    files = sorted((root / "sink").glob("run=*/part-*.parquet"), key=lambda it: (int(it.parent.name[4:]), it.name))
    assert files
    found = pl.concat([pl.read_parquet(it, hive_partitioning=False) for it in files]).cast({"epoch": pl.Int16})
    polars.testing.assert_frame_equal(found, wanted)


def position_of(root: Path, version: int) -> dict[str, Any]:
    position = state.open(root / "state").version(version).source_position
    assert position is not None
    return position


def test_each_run_reads_what_was_appended(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    run(tmp_path)
    assert position_of(tmp_path, 1) == {"table": str(table.metadata.table_uuid), "snapshot": None}
    append(catalog, 1)
    append(catalog, 2)
    report = run(tmp_path)
    assert (report.version, report.files, report.rows) == (2, 2, 1200)
    assert run(tmp_path).version is None
    append(catalog, 3)
    report = run(tmp_path)
    assert (report.version, report.files, report.rows) == (3, 1, 600)
    check(tmp_path, 1, 2, 3)
    snapshot = catalog.load_table("db.events").metadata.current_snapshot_id
    assert position_of(tmp_path, 3)["snapshot"] == snapshot
    assert report.source_position == position_of(tmp_path, 3)
    assert len(state.open(tmp_path / "state").version(3).ledger) == 0


def test_the_files_of_a_table_that_is_there_come_in_the_order_of_its_snapshots(
    tmp_path: Path, catalog: SqlCatalog, table: Table
) -> None:
    for seed in (3, 1, 2):
        append(catalog, seed)
    run(tmp_path, policy="any_order", plan="row")
    check(tmp_path, 3, 1, 2)


def test_snapshots_without_files_and_merged_manifests(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    append(catalog, 1)
    run(tmp_path)
    for seed in (2, 3):
        append(catalog, seed)
        with catalog.load_table("db.events").transaction() as transaction, transaction.update_snapshot().fast_append():
            pass
    assert run(tmp_path).files == 2
    check(tmp_path, 1, 2, 3)


def rewrite(catalog: SqlCatalog, operation: str) -> None:
    """What a compaction does: all rows in one other file."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update import AddSnapshotUpdate

    table = catalog.load_table("db.events")
    rows = table.scan().to_arrow()
    with table.transaction() as transaction:
        with transaction.update_snapshot().overwrite() as update:
            for file in files_of(table):
                update.delete_data_file(file)
            for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
                update.append_data_file(file)
        added = next(it for it in transaction._updates if isinstance(it, AddSnapshotUpdate))
        assert added.snapshot.summary is not None
        # The library compacts nothing by itself, and its summaries are frozen.
        object.__setattr__(added.snapshot.summary, "operation", Operation(operation))


def test_a_compaction_brings_nothing_new(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    append(catalog, 1)
    run(tmp_path)
    append(catalog, 2)
    rewrite(catalog, "replace")
    append(catalog, 3)
    assert len(files_of(catalog.load_table("db.events"))) == 2
    assert run(tmp_path).rows == 1200
    check(tmp_path, 1, 2, 3)


@pytest.mark.parametrize("operation", ["overwrite", "delete", "rows"])
def test_snapshots_that_do_not_append(tmp_path: Path, catalog: SqlCatalog, table: Table, operation: str) -> None:
    append(catalog, 1)
    run(tmp_path)
    append(catalog, 2)
    if operation == "overwrite":
        rewrite(catalog, "overwrite")
    else:
        catalog.load_table("db.events").delete("origin < '2'" if operation == "delete" else "origin == '1:5'")
    snapshots = catalog.load_table("db.events").snapshots()
    number, kind = snapshots[2].snapshot_id, "delete" if operation == "delete" else "overwrite"
    append(catalog, 3)
    for _ in range(2):
        with pytest.raises(fp.SourceError, match=rf"snapshot {number} \({kind}\) removes or rewrites rows") as caught:
            run(tmp_path)
        assert caught.value.position == number
    assert state.open(tmp_path / "state").decided() == 1
    fresh = DedupJob(NAME, tmp_path / "fresh", tmp_path / "new", source_options=properties_of(tmp_path))
    assert fresh.run().rows == len(catalog.load_table("db.events").scan().to_arrow())


def test_delete_files(tmp_path: Path, catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(catalog, 1)
    pretend_delete_files(monkeypatch)
    with pytest.raises(fp.SourceError, match="has delete files"):
        run(tmp_path)


def test_a_position_that_is_lost(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    append(catalog, 1)
    run(tmp_path)
    append(catalog, 2)
    first, second = (it.snapshot_id for it in catalog.load_table("db.events").snapshots())
    catalog.load_table("db.events").maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(fp.SourceError, match=f"snapshot {first}, .*no longer in"):
        run(tmp_path)
    run(tmp_path / "other", source_options=properties_of(tmp_path))
    append(catalog, 3)
    catalog.load_table("db.events").manage_snapshots().rollback_to_snapshot(second).commit()
    assert run(tmp_path / "other", source_options=properties_of(tmp_path)).version is None
    catalog.drop_table("db.events")
    with pytest.raises(fp.SourceError, match="no such table"):
        run(tmp_path)
    catalog.create_table("db.events", ROWS)
    with pytest.raises(fp.SourceError, match=r"not the table that .*\(its id is"):
        run(tmp_path)


def test_an_empty_table_whose_first_snapshot_expires(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    """PyIceberg removes the id of the expired parent, so the second snapshot looks like the first."""
    run(tmp_path)
    append(catalog, 1)
    append(catalog, 2)
    first = catalog.load_table("db.events").snapshots()[0].snapshot_id
    catalog.load_table("db.events").maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(fp.SourceError, match=r"was empty .* first snapshots expired"):
        run(tmp_path)
    assert state.open(tmp_path / "state").decided() == 1


def test_a_table_that_was_taken_back(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    append(catalog, 1)
    append(catalog, 2)
    run(tmp_path)
    first, second = (it.snapshot_id for it in catalog.load_table("db.events").snapshots())
    catalog.load_table("db.events").manage_snapshots().rollback_to_snapshot(first).commit()
    append(catalog, 3)
    with pytest.raises(fp.SourceError, match=f"snapshot {second}, which was read last, .* was rolled back"):
        run(tmp_path)


def test_columns_that_older_files_have_under_other_names(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    from pyiceberg.types import StringType

    append(catalog, 1)
    with table.update_schema() as update:
        update.add_column("note", StringType())
    run(tmp_path)
    for change, text in (("rename", "column 'note' was renamed to 'text'"), ("again", "'note' was dropped and added")):
        with catalog.load_table("db.events").update_schema() as update:
            if change == "rename":
                update.rename_column("note", "text")
            else:
                update.delete_column("note")
        if change == "again":
            with catalog.load_table("db.events").update_schema() as update:
                update.add_column("note", StringType())
        with pytest.raises(fp.SourceError, match=text):
            run(tmp_path)
        if change == "rename":
            catalog.drop_table("db.events")
            new = catalog.create_table("db.events", ROWS.append(pa.field("note", pa.string())))
            assert new.schema().find_field("note").field_id == 6


def test_a_damaged_file_is_read_later(tmp_path: Path, catalog: SqlCatalog, table: Table) -> None:
    """The position moves on, and the file is remembered."""
    append(catalog, 1)
    append(catalog, 2)
    path = paths_of(catalog)[1]
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    report = run(tmp_path, settle_ms=10**9)
    assert (report.files, len(report.deferred)) == (1, 1)
    append(catalog, 3)
    path.write_bytes(good)
    report = run(tmp_path)
    assert (report.files, report.rows) == (2, 1200)
    path.unlink()
    assert run(tmp_path).version is None
    append(catalog, 4)
    paths_of(catalog)[0].unlink()
    with pytest.raises(fp.SourceError, match=r"parquet: .*was deleted before"):
        run(tmp_path)


def partitioned(catalog: SqlCatalog) -> None:
    """Makes the table, with a column that its folders are named after."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    schema = catalog.create_table("db.other", ROWS).schema()
    field = schema.find_field("partition").field_id
    spec = PartitionSpec(PartitionField(field, 1000, IdentityTransform(), "partition"))
    catalog.create_table("db.events", schema, partition_spec=spec)


def test_folders_of_partitions_are_not_columns(tmp_path: Path, catalog: SqlCatalog) -> None:
    """Files have the columns themselves."""
    partitioned(catalog)
    append(catalog, 1)
    assert "/partition=" in files_of(catalog.load_table("db.events"))[0].file_path
    sink = "iceberg://test/db.clean"
    job = DedupJob(
        NAME, tmp_path / "state", sink, source_options=properties_of(tmp_path), sink_options=properties_of(tmp_path)
    )
    assert job.run().rows == 600
    wanted = first_of_each(pl.DataFrame(make_rows(1)))
    found = rows_of(catalog, "db.clean")
    assert len(found) == len(wanted)
    one, other = (it.select(IDENTITY).unique().sort(IDENTITY) for it in (found, wanted))
    polars.testing.assert_frame_equal(one, other)


def test_files_are_not_counted(tmp_path: Path, table: Table) -> None:
    with pytest.raises(ValueError, match=r"files_max: .*/db\.events .*up to a position"):
        make_job(tmp_path, files_max=1)


# Audits


def test_an_audit_judges_rows_in_the_order_in_which_they_were_appended(
    tmp_path: Path, catalog: SqlCatalog, table: Table
) -> None:
    for seed in (3, 1, 2):
        append(catalog, seed)
    rows = pa.concat_tables([make_rows(seed) for seed in (3, 1, 2)]).cast(ROWS)
    for policy in ("any_order", "in_order"):
        report, wanted = audit(NAME, policy, source_options=properties_of(tmp_path)), fp.audit(rows, policy)
        assert (report.rows, report.files, report.source) == (1800, 3, NAME)
        assert (report.counts, report.missing_ranges) == (wanted.counts, wanted.missing_ranges), policy
        assert report.order.startswith("files as the table")
    rewrite(catalog, "replace")  # the files of before are still there
    report = audit(NAME, source_options=properties_of(tmp_path))
    assert (report.files, report.counts) == (1, fp.audit(rows).counts)


def test_an_audit_of_partitions(tmp_path: Path, catalog: SqlCatalog) -> None:
    partitioned(catalog)
    append(catalog, 1)
    report = audit(NAME, source_options=properties_of(tmp_path))
    assert report.counts == fp.audit(make_rows(1)).counts


def test_audits_of_no_table_and_of_deleted_rows(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (NAME, "iceberg://test/db.parquet"):
        with pytest.raises(fp.SourceError, match="no such table"):
            audit(place, source_options=properties_of(tmp_path))
    catalog.create_table("db.events", ROWS)
    append(catalog, 1)
    pretend_delete_files(monkeypatch)
    with pytest.raises(fp.SourceError, match="has delete files"):
        audit(NAME, source_options=properties_of(tmp_path))


def test_an_audit_on_the_command_line(
    tmp_path: Path, catalog: SqlCatalog, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--source-option={name}={value}" for name, value in properties_of(tmp_path).items()]
    assert main(["audit", NAME, *options]) == 4
    assert "nothing was read" in capsys.readouterr().err
    append(catalog, 1)
    assert main(["audit", NAME, "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == fp.audit(make_rows(1)).counts
    path = paths_of(catalog)[0]
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["audit", NAME, *options]) == 1
    assert "bytes, but the table" in capsys.readouterr().err
