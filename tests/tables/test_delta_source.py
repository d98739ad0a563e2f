"""Delta tables as sources: rows that commits append, version by version, without moved or rewritten ones."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import fencepost as fp
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from fencepost import state
from fencepost.lake import DedupJob, audit, delta_source, storage
from fencepost.state.stores import LocalStore
from support.lake import IS_TRACKED, SCHEMA, first_of_each, land, make_job, make_rows, read_sink


def append(root: Path, *seeds: int) -> None:
    for seed in seeds:
        write_deltalake(root / "source", make_rows(seed, 300), mode="append")


def table_of(root: Path) -> DeltaTable:
    return DeltaTable(root / "source")


def append_file(root: Path, seed: int) -> Path:
    """Gives the file that the commit adds."""
    before = set(table_of(root).file_uris())
    append(root, seed)
    (added,) = set(table_of(root).file_uris()) - before
    return Path(added)


def expected_of(*seeds: int) -> pl.DataFrame:
    return first_of_each(pl.DataFrame(pa.concat_tables([make_rows(seed, 300) for seed in seeds])))


def assert_kept(root: Path, *seeds: int) -> None:
    polars.testing.assert_frame_equal(
        read_sink(root).select(SCHEMA.names).sort("origin"), expected_of(*seeds).sort("origin")
    )


def test_each_run_reads_what_was_appended_since(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    report = make_job(tmp_path).run()
    position = report.source_position
    assert position is not None
    assert len(position.pop("commit")) == 64
    assert (report.files, position) == (2, {"table": table_of(tmp_path).metadata().id, "version": 1})
    assert make_job(tmp_path).run().version is None
    append(tmp_path, 2, 3, 4)
    report = make_job(tmp_path).run()
    assert (report.files, report.rows) == (3, 900)
    assert_kept(tmp_path, 0, 1, 2, 3, 4)


ERRNOS = ("EIO", "ESTALE", "EACCES", "EMFILE", "ETIMEDOUT", "ECONNRESET")


def failing_reads(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[str]:
    """The next reads of the table's log that fail with this error. Gives the names that were asked for."""
    real, asked = LocalStore.read, []

    def read(self: LocalStore, path: str, *part: int | None) -> bytes:
        if "_delta_log/" in path:
            asked.append(path)
            if len(asked) <= times:
                raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), path)
        return real(self, path, *part)

    monkeypatch.setattr(LocalStore, "read", read)
    return asked


@pytest.mark.parametrize("name", ERRNOS)
@pytest.mark.parametrize("versions", [0, 1])
def test_an_error_of_storage_is_not_damage_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, versions: int
) -> None:
    monkeypatch.setattr(storage, "PAUSES_SECONDS", (0.001, 0.001))
    append(tmp_path, 0)
    for _ in range(versions):
        make_job(tmp_path).run()
    append(tmp_path, 1)
    with monkeypatch.context() as patch:
        asked = failing_reads(patch, name, times=1_000)
        with pytest.raises(fp.StoreError, match="run again") as caught:
            make_job(tmp_path).run()
        assert caught.value.errno == getattr(errno, name)
        assert len(asked) == (1 if name == "EACCES" else 3)
    assert len(list((tmp_path / "state").glob("log/*"))) == versions
    with monkeypatch.context() as patch:
        asked = failing_reads(patch, name, times=0 if name == "EACCES" else 1)
        make_job(tmp_path).run()
        assert asked
    assert_kept(tmp_path, 0, 1)


def test_an_error_that_only_the_library_meets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_library(*_: object) -> DeltaTable:
        raise DeltaError("Generic LocalFileSystem error: Unable to open file: Input/output error (os error 5)\n...")

    append(tmp_path, 0)
    monkeypatch.setattr(delta_source, "by_library", by_library)
    with pytest.raises(fp.StoreError, match="Input/output error") as caught:
        make_job(tmp_path).run()
    assert caught.value.errno == errno.EIO


def test_survivors_follow_the_order_of_versions(tmp_path: Path) -> None:
    """Files' names are random: the first of two copies is that of the earlier version."""
    append(tmp_path, 0)
    make_job(tmp_path).run()
    for number in range(6):
        rows = make_rows(1).set_column(4, "origin", pa.array([f"{number}"] * 600))
        write_deltalake(tmp_path / "source", rows, mode="append")
    make_job(tmp_path).run()
    later = read_sink(tmp_path).filter(IS_TRACKED & ~pl.col("origin").str.contains(":"))
    assert set(later["origin"]) == {"0"}


def test_rows_that_only_moved_are_not_read_again(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    make_job(tmp_path).run()
    table_of(tmp_path).optimize.compact()
    report = make_job(tmp_path).run()
    assert (report.version, report.files, report.rows) == (2, 0, 0)
    append(tmp_path, 2)
    table_of(tmp_path).optimize.compact()
    assert make_job(tmp_path).run().rows == 300
    assert_kept(tmp_path, 0, 1, 2)


def test_files_that_were_dropped_before_they_were_read(tmp_path: Path) -> None:
    """An overwrite removes unread files; those that still exist are read."""
    append(tmp_path, 0)
    make_job(tmp_path).run()
    append(tmp_path, 1)
    table_of(tmp_path).delete()
    append(tmp_path, 2)
    gone = {Path(it) for it in (tmp_path / "source").glob("*.parquet")} - set(map(Path, table_of(tmp_path).file_uris()))
    for file in gone:
        file.unlink()
    make_job(tmp_path).run()
    assert_kept(tmp_path, 0, 2)


def test_a_table_by_folders(tmp_path: Path) -> None:
    rows = make_rows(0, 300).append_column("day", pa.array([f"2026-11-0{1 + row % 3}" for row in range(300)]))
    write_deltalake(tmp_path / "source", rows, partition_by=["day"])
    make_job(tmp_path, columns=fp.Columns(partition=("day", "partition"))).run()
    kept = sum(1 for folder in (tmp_path / "sink" / "run=1").iterdir() if folder.name.startswith("day="))
    assert kept == 3


def test_from_table_to_table(tmp_path: Path) -> None:
    append(tmp_path, 0)
    make_job(tmp_path, layout="delta").run()
    append(tmp_path, 1)
    make_job(tmp_path).run()
    found = pl.DataFrame(DeltaTable(tmp_path / "sink").to_pyarrow_table().select(SCHEMA.names))
    polars.testing.assert_frame_equal(found.sort("origin"), expected_of(0, 1).sort("origin"))


def test_a_rollback_reads_again(tmp_path: Path) -> None:
    append(tmp_path, 0)
    make_job(tmp_path).run()
    append(tmp_path, 1)
    make_job(tmp_path).run()
    for file in (tmp_path / "sink" / "run=2").glob("*.parquet"):
        file.unlink()
    opened = state.open(tmp_path / "state")
    opened.rollback(1)
    opened.reshard(3)
    assert make_job(tmp_path).run().rows == 300
    assert_kept(tmp_path, 0, 1)


def test_a_seed_of_a_table(tmp_path: Path) -> None:
    clean = expected_of(0).filter(IS_TRACKED)
    write_deltalake(tmp_path / "clean", clean.to_arrow())
    append(tmp_path, 0)
    make_job(tmp_path).seed(clean=tmp_path / "clean")
    report = make_job(tmp_path).run()
    assert (report.rows, report.counts.get("ACCEPTED", 0)) == (300, 0)


# -- What stops a run, and changes nothing


def overwrite(root: Path) -> None:
    write_deltalake(root / "source", make_rows(5), mode="overwrite")


def update(root: Path) -> None:
    table_of(root).update(updates={"origin": "'x'"}, predicate="seq = 3")


def replace_table(root: Path) -> None:
    shutil.rmtree(root / "source")
    append(root, 0, 1, 2)


def forget_commits(root: Path) -> None:
    append(root, 1, 2)
    table_of(root).create_checkpoint()
    (root / "source" / "_delta_log" / f"{1:020}.json").unlink()


def lose_a_file(root: Path) -> None:
    append_file(root, 1).unlink()


def compact_and_clean_up(root: Path) -> None:
    append(root, 1)
    table_of(root).optimize.compact()
    table_of(root).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def take_a_deletion_back(root: Path) -> None:
    table_of(root).delete()
    table_of(root).restore(0)


@pytest.mark.parametrize(
    ("harm", "match"),
    [
        (overwrite, r"version 1 \(WRITE\) adds and removes rows"),
        (update, r"version 1 \(UPDATE\) adds and removes rows"),
        (replace_table, "not the table .*up to version 0"),
        (forget_commits, "00000000000000000001.json: deleted before"),
        (lose_a_file, "parquet: .*was deleted before"),
        (compact_and_clean_up, "parquet: .*was deleted before"),
        (take_a_deletion_back, r"\(RESTORE\) restores rows"),
    ],
)
def test_commits_that_cannot_be_read_stop_the_run(tmp_path: Path, harm: Callable[[Path], None], match: str) -> None:
    append(tmp_path, 0)
    make_job(tmp_path).run()
    harm(tmp_path)
    with pytest.raises(fp.SourceError, match=match):
        make_job(tmp_path).run()
    assert state.open(tmp_path / "state").decided() == 1
    assert_kept(tmp_path, 0)


def test_a_folder_that_has_become_a_table(tmp_path: Path) -> None:
    land(tmp_path / "source", "0.parquet", make_rows(0, 300))
    make_job(tmp_path).run()
    append(tmp_path, 1)
    with pytest.raises(fp.SourceError, match=r"as a folder .*is now a"):
        make_job(tmp_path).run()


def test_an_audit_reads_the_table_not_the_folder(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    table_of(tmp_path).optimize.compact()  # the files of before are still there
    report = audit(tmp_path / "source")
    assert report.rows == 600
    assert report.counts["DUPLICATE"] == 600 - len(expected_of(0, 1))


def test_a_table_from_a_backup_that_has_grown(tmp_path: Path) -> None:
    """Its versions up to the position have other files than those that were read."""
    append(tmp_path, 0)
    shutil.copytree(tmp_path / "source", tmp_path / "backup")
    append(tmp_path, 1)
    make_job(tmp_path).run()
    shutil.rmtree(tmp_path / "source")
    (tmp_path / "backup").rename(tmp_path / "source")
    append(tmp_path, 2, 3)
    with pytest.raises(fp.SourceError, match=r"version 1 is not the one.*restored"):
        make_job(tmp_path).run()
    assert state.open(tmp_path / "state").decided() == 1


def test_an_unreadable_file_is_quarantined(tmp_path: Path) -> None:
    """Its own time does not matter, and the position moves on."""
    append(tmp_path, 0)
    make_job(tmp_path).run()
    broken = append_file(tmp_path, 1)
    broken.write_bytes(bytes(broken.stat().st_size))
    os.utime(broken, (2**32, 2**32))
    report = make_job(tmp_path, settle_ms=0).run()
    assert [path for path, _ in report.quarantined] == [broken.name]
    assert report.deferred == ()


def test_an_unreadable_file_that_the_table_drops(tmp_path: Path) -> None:
    """It may be deleted in any later version, not only in the one that drops it."""
    append(tmp_path, 0)
    make_job(tmp_path).run()
    broken = append_file(tmp_path, 1)
    broken.write_bytes(bytes(broken.stat().st_size))
    assert make_job(tmp_path).run().deferred == (broken.name,)
    table_of(tmp_path).delete()
    assert make_job(tmp_path).run().deferred == (broken.name,)
    append(tmp_path, 2)
    assert make_job(tmp_path).run().deferred == (broken.name,)
    broken.unlink()
    append(tmp_path, 3)
    assert make_job(tmp_path).run().deferred == ()
    assert_kept(tmp_path, 0, 2, 3)


@pytest.mark.parametrize("plan", [None, "aligned"])
def test_versions_of_a_table_without_new_rows_add_nothing(tmp_path: Path, plan: str | None) -> None:
    DeltaTable.create(tmp_path / "source", SCHEMA)
    report = make_job(tmp_path, plan=plan).run()
    assert (report.version, report.rows) == (1, 0)
    append(tmp_path, 0)
    make_job(tmp_path, plan=plan).run()
    table_of(tmp_path).optimize.compact()
    table_of(tmp_path).create_checkpoint()
    make_job(tmp_path, plan=plan).run()
    assert_kept(tmp_path, 0)


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.bool_(), pa.timestamp("us", "UTC"), pa.date32()])
def test_folders_of_any_names_and_types(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["a b", "ü/#", "it's: %41", "x=y"]
    values = pa.array(range(4)).cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    days = pa.array(texts) if pa.types.is_string(kind) else values.cast(kind)
    for _ in range(2):  # the first run reads the newest version, the second one the log
        rows = make_rows(0, 300).append_column("day", days.take(pa.array([row % 4 for row in range(300)])))
        write_deltalake(tmp_path / "source", rows, partition_by=["day"], mode="append")
        report = make_job(tmp_path).run()
        assert report.rows == 300
    assert report.counts.get("ACCEPTED", 0) == 0


def test_the_output_of_a_job_is_a_source(tmp_path: Path) -> None:
    for day in ("a b", "c%d"):
        land(tmp_path / "landing" / f"day={day.replace('%', '%25')}", "0.parquet", make_rows(len(day), 300))
    for number in range(2):
        if number:
            land(tmp_path / "landing" / "day=e", "1.parquet", make_rows(7, 300))
        DedupJob(tmp_path / "landing", tmp_path / "state0", tmp_path / "source", layout="delta").run()
        make_job(tmp_path).run()
    kept = sum(len(pq.read_table(file)) for file in (tmp_path / "sink").glob("run=*/day=*/*.parquet"))
    assert kept == table_of(tmp_path).count()
