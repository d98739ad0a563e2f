"""Delta tables as sinks: each version one transaction, whatever dies, and whatever others do to the table."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError
from fencepost import state
from fencepost.lake import DedupJob, LocalEngine
from fencepost.state.delta_log import put_commit
from fencepost.state.delta_sink import DeltaSink
from fencepost.state.history import explain
from support import daily
from support.lake import (
    IS_TRACKED,
    SCHEMA,
    Crash,
    check_a_late_abandon,
    check_copies_of_a_state,
    crash_at,
    expected_of,
    first_of_each,
    hashes,
    land,
    land_some,
    make_rows,
    template_of,
)


def make_job(root: Path, **arguments: Any) -> DedupJob:
    return DedupJob(root / "source", root / "state", root / "sink", **{"layout": "delta"} | arguments)


def run_alone(root: Path) -> int | None:
    return make_job(root, engine=LocalEngine(1), shards=2).run().version


def table_of(root: Path) -> DeltaTable:
    return DeltaTable(root / "sink")


def rows_of(root: Path) -> pl.DataFrame:
    return pl.DataFrame(table_of(root).to_pyarrow_table().select(SCHEMA.names)).sort(SCHEMA.names)


def transactions(root: Path) -> list[dict[str, int]]:
    """The transactions of each commit, by what the application's id ends with."""
    found = []
    for file in sorted((root / "sink" / "_delta_log").glob("*.json")):
        actions = map(json.loads, file.read_text().splitlines())
        found.append({it["txn"]["appId"][32:]: it["txn"]["version"] for it in actions if "txn" in it})
    return found


def state_of(root: Path) -> state.State:
    return state.open(root / "state")


# -- What is written


def test_a_version_is_described_without_the_figures_of_its_commit(tmp_path: Path) -> None:
    """The bounds of each output would be the longest line of `fencepost state show`."""
    with_versions(tmp_path, 2)
    found = [state_of(tmp_path).version(it).sink_version or {} for it in (1, 2)]
    assert [it.keys() for it in found] == [{"create", "bounds"}, {"table", "version", "transaction", "bounds"}]
    versions = [explain(state_of(tmp_path), it)["sink_version"] for it in (1, 2)]
    assert versions == [None, {name: found[1][name] for name in ("table", "version", "transaction")}]


def test_each_version_is_one_transaction(tmp_path: Path) -> None:
    land_some(tmp_path, range(2))
    report = make_job(tmp_path).run()
    land_some(tmp_path, range(2, 4))
    make_job(tmp_path, layout=None).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))
    polars.testing.assert_frame_equal(
        pl.read_delta(str(tmp_path / "sink")).sort(SCHEMA.names), expected_of(tmp_path), check_dtypes=True
    )
    assert transactions(tmp_path) == [{"": 0}, {"": 1}, {"": 2}]  # the first made the table
    assert table_of(tmp_path).version() == 2
    folders = [it.name for it in (tmp_path / "sink").iterdir() if it.is_dir()]
    assert sorted(folders) == ["_delta_log", "_fencepost"]
    assert report.sink == str(tmp_path / "sink")
    assert make_job(tmp_path).run().version is None
    assert table_of(tmp_path).version() == 2


def test_files_are_where_the_table_names_them_with_their_statistics(tmp_path: Path) -> None:
    land_some(tmp_path, range(2))
    make_job(tmp_path).run()
    added = pl.DataFrame(table_of(tmp_path).get_add_actions(flatten=True)).sort("path")
    for row in added.to_dicts():
        written = pq.read_table(tmp_path / "sink" / row["path"])
        assert row["num_records"] == len(written)
        assert row["size_bytes"] == (tmp_path / "sink" / row["path"]).stat().st_size
        assert (row["min.seq"], row["max.seq"]) == (
            pa.compute.min(written["seq"]).as_py(),
            pa.compute.max(written["seq"]).as_py(),
        )
    assert len(added) == 2
    assert not any(name.startswith("part-") for name in os.listdir(tmp_path / "sink" / "_fencepost"))


@pytest.mark.parametrize("is_cleaned", ["true", "false"])
def test_expired_commits_stay_if_the_table_keeps_them(tmp_path: Path, is_cleaned: str) -> None:
    settings = {"delta.checkpointInterval": "1", "delta.enableExpiredLogCleanup": is_cleaned}
    DeltaTable.create(tmp_path / "sink", SCHEMA, configuration=settings)
    first = tmp_path / "sink" / "_delta_log" / f"{0:020}.json"
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    os.utime(first, (1, 1))
    land_some(tmp_path, [1])
    make_job(tmp_path).run()
    assert first.exists() == (is_cleaned == "false")
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_versions_without_rows_are_transactions_too(tmp_path: Path) -> None:
    land(tmp_path / "source", "0.parquet", SCHEMA.empty_table())
    make_job(tmp_path).run()
    assert not (tmp_path / "sink" / "_delta_log").exists()  # nobody knows the columns of a table yet
    land_some(tmp_path, [1])
    make_job(tmp_path).run()
    shutil.copy(tmp_path / "source" / "1.parquet", tmp_path / "source" / "again.parquet")
    make_job(tmp_path).run()
    assert transactions(tmp_path) == [{"": 1}, {"": 2}, {"": 3}]
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))
    opened = state_of(tmp_path)
    opened.reshard(4)
    opened.collect_garbage(keep_versions=1)
    assert transactions(tmp_path)[3:] == [{"": 4}, {"": 5}]
    land_some(tmp_path, [5])
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_rows_of_others_stay_and_compaction_does_no_harm(tmp_path: Path) -> None:
    foreign = make_rows(99, 50)
    write_deltalake(tmp_path / "sink", foreign)
    land_some(tmp_path, range(2))
    make_job(tmp_path, layout=None).run()
    table_of(tmp_path).optimize.compact()
    write_deltalake(tmp_path / "sink", foreign, mode="append")
    table_of(tmp_path).delete("origin like '99:%'")
    land_some(tmp_path, [2])
    make_job(tmp_path).run()
    table_of(tmp_path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    land_some(tmp_path, [3])
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_a_table_by_folders(tmp_path: Path) -> None:
    for day, seed in (("2026-11-01", 0), ("2026-11-02", 1), ("a b=%c", 2), ("__HIVE_DEFAULT_PARTITION__", 3)):
        name = day.replace("%", "%25").replace("=", "%3D")
        land(tmp_path / "source" / f"day={name}", f"{seed}.parquet", make_rows(seed, 100))
    make_job(tmp_path).run()
    table = table_of(tmp_path)
    assert table.metadata().partition_columns == ["day"]
    found = pl.DataFrame(table.to_pyarrow_table().select(["origin", "day"]))
    seeds = dict(found.select(pl.col("day"), pl.col("origin").str.split(":").list.first()).unique().rows())
    assert seeds == {"2026-11-01": "0", "2026-11-02": "1", "a b=%c": "2", None: "3"}


def test_side_tables_are_in_the_location_of_the_table(tmp_path: Path) -> None:
    rows = make_rows(1)
    land(tmp_path / "source", "0.parquet", rows)
    make_job(tmp_path, rejects="all").run()
    rejects = tmp_path / "sink" / "_fencepost" / "run=1" / "_rejects"
    refused = pq.read_table(rejects, partitioning=None)
    assert len(refused) + len(rows_of(tmp_path)) == len(rows)
    missing = list((tmp_path / "sink" / "_fencepost" / "run=1" / "_missing").iterdir())
    assert len(missing) == 1


def test_a_seed_and_what_comes_after(tmp_path: Path) -> None:
    clean = pa.Table.from_pandas(first_of_each(pl.DataFrame(make_rows(0))).to_pandas(), SCHEMA, preserve_index=False)
    land(tmp_path / "clean", "0.parquet", clean.filter(pa.compute.is_valid(clean["pid"])))
    write_deltalake(tmp_path / "sink", clean)
    land_some(tmp_path, [0, 1])
    make_job(tmp_path).seed(clean=tmp_path / "clean")
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path).filter(IS_TRACKED), expected_of(tmp_path).filter(IS_TRACKED))


# -- Whatever dies


@pytest.mark.slow
@pytest.mark.parametrize("versions", [0, 1])
@pytest.mark.parametrize("first", daily.first(range(3)))
def test_a_crash_at_any_change_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: int, first: int
) -> None:
    """At every third one."""
    world = tmp_path / "world"
    restore_world = template_of(world, versions, run_alone)
    restore_world()
    expected = expected_of(world)
    with crash_at(monkeypatch, 10**9) as calls:
        run_alone(world)
    polars.testing.assert_frame_equal(rows_of(world), expected)
    decided = 0
    for call in range(1 + first, calls[0] + 1, 3):
        restore_world()
        with crash_at(monkeypatch, call), pytest.raises(Crash):
            run_alone(world)
        if state.State(state.open_store(world / "state")).decided() > versions:
            decided += 1
            (world / "source" / "2.parquet").unlink()  # what was decided needs its source no more
        else:
            assert run_alone(world) == versions + 1, call
        assert run_alone(world) is None, call
        polars.testing.assert_frame_equal(rows_of(world), expected)
        assert [it[""] for it in transactions(world)] == list(range(versions + 2)), call
        assert not any((world / "sink" / "_fencepost" / "_prepare").iterdir()), call
    assert decided > 5


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, after: bool) -> Iterator[None]:
    """The process dies right before the commit, or right after it."""
    real = DeltaSink._write

    def write(*arguments: Any) -> None:
        if after:
            real(*arguments)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(DeltaSink, "_write", write)
        yield


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_around_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    land_some(tmp_path, [1])
    with dying(monkeypatch, after), pytest.raises(Crash):
        run_alone(tmp_path)
    expected = expected_of(tmp_path)
    shutil.rmtree(tmp_path / "source")
    land_some(tmp_path, [5])
    report = make_job(tmp_path).run()
    assert report.recovered == (2,)
    before = rows_of(tmp_path).filter(~pl.col("origin").str.starts_with("5:"))
    polars.testing.assert_frame_equal(before, expected)
    assert [it[""] for it in transactions(tmp_path)] == [0, 1, 2, 3]


def test_files_that_a_failed_commit_has_placed_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VACUUM removes files that the log does not name. The job that placed them does not name them unseen."""
    land_some(tmp_path, range(2))
    job = make_job(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("fencepost.state.delta_sink.put_commit", fail_if_full)
        with pytest.raises(OSError, match="full"):
            job.run()
    placed = sorted((tmp_path / "sink").glob("part-*"))
    os.utime(placed[0], (0, 0))
    placed[1].rename(tmp_path / "away")
    with pytest.raises(fp.SinkChangedError, match="cannot be restored"):
        job.run()
    assert table_of(tmp_path).version() == 0
    (tmp_path / "away").rename(placed[1])
    assert job.run().recovered == (1,)
    assert placed[0].stat().st_mtime > 0, "VACUUM counts from the commit"
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def fail_if_full(store: Any, version: int, actions: Any) -> bool:
    if version:
        raise OSError(errno.ENOSPC, "full")
    return put_commit(store, version, actions)


def test_the_table_moves_on_while_a_version_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    real, calls = DeltaSink._write, []

    def write(sink: DeltaSink, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) < 4:
            write_deltalake(tmp_path / "sink", make_rows(90 + len(calls), 10), mode="append")
        real(sink, *arguments)

    monkeypatch.setattr(DeltaSink, "_write", write)
    land_some(tmp_path, [1])
    run_alone(tmp_path)
    assert len(calls) == 4
    mine = rows_of(tmp_path).filter(~pl.col("origin").str.starts_with("9"))
    polars.testing.assert_frame_equal(mine, expected_of(tmp_path))


def test_a_paused_driver_does_not_apply_a_version_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is paused before its commit, another recovers and continues; then the first one wakes."""
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    real, others = DeltaSink._write, []

    def write(sink: DeltaSink, *arguments: Any) -> None:
        if not others:
            others.append(1)
            land_some(tmp_path, [2])
            others.append(run_alone(tmp_path))
        real(sink, *arguments)

    monkeypatch.setattr(DeltaSink, "_write", write)
    land_some(tmp_path, [1])
    assert run_alone(tmp_path) == 2  # not an error that asks to restore the table
    assert others == [1, 3]
    monkeypatch.undo()
    assert run_alone(tmp_path) is None
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))
    assert [it[""] for it in transactions(tmp_path)] == [0, 1, 2, 3]


def test_two_copies_of_a_state_do_not_take_each_other_s_version_for_their_own(tmp_path: Path) -> None:
    def make(folder: Path) -> DedupJob:
        return DedupJob(tmp_path / "source", folder, tmp_path / "sink", layout="delta")

    check_copies_of_a_state(tmp_path, DeltaSink, make, state_of)


@pytest.mark.parametrize("first", [True, False])
def test_an_abandoned_version_never_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    if not first:
        land_some(tmp_path, [0])
        run_alone(tmp_path)
    real, version = DeltaSink._write, 1 if first else 2

    def write(sink: DeltaSink, *arguments: Any) -> None:
        monkeypatch.undo()
        state_of(tmp_path).abandon(version)
        real(sink, *arguments)

    monkeypatch.setattr(DeltaSink, "_write", write)
    land_some(tmp_path, [1])
    with pytest.raises(fp.StateConflictError, match="abandoned"):
        run_alone(tmp_path)
    assert transactions(tmp_path)[-1] == {"": version, "-abandoned": version}
    assert run_alone(tmp_path) == version + 1
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))
    files = {Path(it).name for it in table_of(tmp_path).file_uris()}
    assert {it.name for it in (tmp_path / "sink").glob("part-*")} == files


def test_an_abandon_that_comes_too_late_removes_no_rows(tmp_path: Path) -> None:
    check_a_late_abandon(tmp_path, DeltaSink, run_alone, state_of, tmp_path / "sink" / "_fencepost")
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


# -- Whatever others do to the table


def with_versions(root: Path, count: int) -> None:
    for seed in range(count):
        land_some(root, [seed])
        make_job(root).run()


def refusal(root: Path, kind: type[Exception], match: str, **options: Any) -> None:
    """A run that is refused changes nothing, before anything is decided."""
    land_some(root, [7])
    before = {name: it for name, it in hashes(root).items() if "_prepare" not in name}
    with pytest.raises(kind, match=match):
        make_job(root, **options).run()
    assert {name: it for name, it in hashes(root).items() if "_prepare" not in name} == before


def test_rows_that_were_taken_back_are_noticed(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    table_of(tmp_path).restore(1)  # version 1 of the state
    refusal(tmp_path, fp.SinkChangedError, "version 3 .* RESTORE")
    with pytest.raises(fp.SinkError, match=r"no longer in|still in the sink"):
        state_of(tmp_path).rollback(0)
    state_of(tmp_path).rollback(1)
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_a_rollback_without_a_restore_would_double_rows(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    table_of(tmp_path).optimize.compact()
    with pytest.raises(fp.SinkError, match="still in the sink"):
        state_of(tmp_path).rollback(1)


def test_a_rollback_is_undone_with_its_restore(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    newest = table_of(tmp_path).version()
    table_of(tmp_path).restore(1)
    state_of(tmp_path).rollback(1)
    table_of(tmp_path).restore(newest)
    state_of(tmp_path).rollback(2)
    assert make_job(tmp_path).run().version is None
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def drop(root: Path) -> None:
    shutil.rmtree(root / "sink" / "_delta_log")


def replace_table(root: Path) -> None:
    rows = table_of(root).to_pyarrow_table()
    drop(root)
    write_deltalake(root / "sink", rows)


def drop_everything(root: Path) -> None:
    rows = table_of(root).to_pyarrow_table()
    shutil.rmtree(root / "sink")
    write_deltalake(root / "sink", rows)


def forget_transactions(root: Path) -> None:
    table_of(root).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}, raise_if_not_exists=False
    )


@pytest.mark.parametrize(
    ("harm", "kind", "match"),
    [
        (drop, fp.SinkChangedError, "no longer exists"),
        (replace_table, fp.SinkChangedError, "not the table that"),
        (drop_everything, fp.SinkChangedError, "is gone"),
        (forget_transactions, fp.SinkChangedError, "Remove the property"),
    ],
)
def test_a_table_that_others_replaced_or_damaged_is_refused(
    tmp_path: Path, harm: Callable[[Path], None], kind: type[Exception], match: str
) -> None:
    with_versions(tmp_path, 2)
    harm(tmp_path)
    refusal(tmp_path, kind, match)


@pytest.mark.parametrize(
    ("schema", "options", "match"),
    [
        (SCHEMA, {"configuration": {"delta.enableChangeDataFeed": "true"}}, "change data feed"),
        (SCHEMA.remove(4), {}, "column 'origin' of .* not in the table"),
        (SCHEMA.set(3, pa.field("seq", pa.int64())), {}, "column 'seq' of .* integer, in the table .*long"),
        (SCHEMA.set(0, pa.field("pid", pa.int64(), nullable=False)), {}, "column 'pid' has NOT NULL"),
        (SCHEMA, {"partition_by": ["partition"]}, "partitioned by .*partition"),
    ],
)
def test_tables_that_files_cannot_be_added_to(
    tmp_path: Path, schema: pa.Schema, options: dict[str, Any], match: str
) -> None:
    DeltaTable.create(tmp_path / "sink", schema, **options)
    refusal(tmp_path, fp.SinkError, match)


def test_columns_that_no_delta_table_has(tmp_path: Path) -> None:
    rows = make_rows(0).append_column("size", pa.array(range(600), pa.uint64()))
    land(tmp_path / "source", "0.parquet", rows)
    with pytest.raises(fp.SinkError, match=r"column 'size': .*no type for uint64"):
        make_job(tmp_path).run()
    rows = make_rows(0).rename_columns(["pid", "epoch", "partition", "seq", "PID"])
    land(tmp_path / "source", "0.parquet", rows)
    with pytest.raises(fp.SinkError, match="column 'pid' exists twice"):
        make_job(tmp_path).run()


def test_a_column_that_files_do_not_have_is_null(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "sink", SCHEMA.append(pa.field("note", pa.string())))
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_folder_values_that_the_column_cannot_hold_stop_the_run(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "sink", SCHEMA.append(pa.field("day", pa.date32())), partition_by=["day"])
    land(tmp_path / "source" / "day=2026-11-01", "0.parquet", make_rows(0))
    make_job(tmp_path).run()
    land(tmp_path / "source" / "day=yesterday", "1.parquet", make_rows(1))
    with pytest.raises(fp.SinkError, match=r"column 'day'.* date, but .*'yesterday'"):
        make_job(tmp_path).run()


def test_another_state_for_the_same_table(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    shutil.rmtree(tmp_path / "state")
    refusal(tmp_path, fp.SinkError, "state is empty: ")


def test_the_library_refuses_a_version_that_is_there_already(tmp_path: Path) -> None:
    """What `DeltaSink` relies on: without retries, a commit follows the version that was read, or fails."""
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    old = table_of(tmp_path)
    write_deltalake(tmp_path / "sink", make_rows(5, 5), mode="append")
    from deltalake import CommitProperties

    with pytest.raises(CommitFailedError):
        old.create_write_transaction(
            [], "append", old.schema(), [], commit_properties=CommitProperties(max_commit_retries=0)
        )


def test_only_versions_that_were_not_rolled_back_count_as_shown(tmp_path: Path) -> None:
    with_versions(tmp_path, 3)
    shown = state_of(tmp_path)
    sink = make_job(tmp_path).sink

    def versions() -> list[int]:
        return [it for it in (1, 2, 3) if sink.shown(shown.version(it))]

    assert versions() == [1, 2, 3]
    table_of(tmp_path).restore(1)  # the table's version 4: rows of the state's version 1
    assert versions() == [1]
    table_of(tmp_path).restore(3)  # 5: of all three
    assert versions() == [1, 2, 3]
    table_of(tmp_path).restore(4)  # 6: what 4 showed
    assert versions() == [1]
    table_of(tmp_path).restore(2)
    assert versions() == [1, 2]


def test_bounds_of_a_column_with_the_path_of_a_field(tmp_path: Path) -> None:
    """Readers skip files by these bounds."""
    rows = make_rows(0).append_column("payload.seq", pa.array(range(1_000, 1_000 + len(make_rows(0)))))
    land(tmp_path / "source", "0.parquet", rows.append_column("payload", pa.array([{"seq": 1}] * len(rows))))
    make_job(tmp_path).run()
    query = QueryBuilder().register("sink", table_of(tmp_path)).execute('SELECT * FROM sink WHERE "payload.seq" > 500')
    assert pa.table(query.read_all()).num_rows == len(expected_of(tmp_path))


def test_a_restore_of_commits_that_are_no_longer_in_the_log(tmp_path: Path) -> None:
    with_versions(tmp_path, 3)
    table_of(tmp_path).restore(1)
    table_of(tmp_path).create_checkpoint()
    for version in range(3):
        (tmp_path / f"sink/_delta_log/{version:020}.json").unlink()
    for version in (3, 2):
        with pytest.raises(fp.SinkError, match=rf"no longer in the .*\(versions .*{version}\)"):
            state_of(tmp_path).rollback(version)
    state_of(tmp_path).rollback(1)  # the table still lists its files
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_a_restore_of_commits_that_the_log_cannot_tell(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    table_of(tmp_path).restore(1)
    table_of(tmp_path).delete()  # as if the rows of version 1 were in another file
    table_of(tmp_path).create_checkpoint()
    for version in range(3):
        (tmp_path / f"sink/_delta_log/{version:020}.json").unlink()
    with pytest.raises(fp.SinkError, match=r"no longer shows .* version 1"):
        state_of(tmp_path).rollback(1)


def test_a_restore_by_time_is_to_be_repeated_by_version(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    made = {it["version"]: it["timestamp"] for it in table_of(tmp_path).history()}
    table_of(tmp_path).restore(datetime.fromtimestamp((made[1] + 1) / 1000, UTC))
    with pytest.raises(fp.SinkError, match="a RESTORE by time"):
        state_of(tmp_path).rollback(1)
    table_of(tmp_path).restore(1)
    state_of(tmp_path).rollback(1)


def test_operations_do_not_hide_a_restore(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    table_of(tmp_path).restore(1)
    for operate in (lambda: state_of(tmp_path).reshard(4), lambda: state_of(tmp_path).collect_garbage(keep_versions=1)):
        with pytest.raises(fp.SinkChangedError, match="is a RESTORE"):
            operate()
    with pytest.raises(fp.SinkError, match="no longer in the"):
        state_of(tmp_path).rollback(2)
    state_of(tmp_path).rollback(1)
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_a_rollback_does_not_trust_a_version_without_rows(tmp_path: Path) -> None:
    """Of the retained versions, none has rows, so nothing else shows that those of earlier ones are gone."""
    with_versions(tmp_path, 2)
    state_of(tmp_path).reshard(4)
    state_of(tmp_path).collect_garbage(keep_versions=1)
    assert state_of(tmp_path).latest().oldest == 3
    newest = table_of(tmp_path).version()
    table_of(tmp_path).restore(1)
    for version in (3, 4):
        with pytest.raises(fp.SinkError, match="time before version 3 "):
            state_of(tmp_path).rollback(version)
    table_of(tmp_path).restore(newest)
    state_of(tmp_path).rollback(4)
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_a_table_that_was_replaced_is_another(tmp_path: Path) -> None:
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    mine = next(iter(transactions(tmp_path)[1]))
    DeltaTable.create(tmp_path / "sink", SCHEMA, mode="overwrite")
    assert mine == ""
    refusal(tmp_path, fp.SinkChangedError, "not the table that|was recreated")


def test_commits_without_commit_info_are_read(tmp_path: Path) -> None:
    with_versions(tmp_path, 2)
    log = tmp_path / "sink" / "_delta_log"
    (log / f"{3:020}.json").write_text(json.dumps({"txn": {"appId": "other", "version": 1}}) + "\n")
    land_some(tmp_path, [5])
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_integer_columns_that_files_do_not_have(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("note", pa.int64())).append(pa.field("day", pa.int32()))
    DeltaTable.create(tmp_path / "sink", schema, partition_by=["day"])
    for day in (1, -20):
        land(tmp_path / "source" / f"day={day}", f"{day}.parquet", make_rows(day + 50))
    make_job(tmp_path).run()
    assert set(table_of(tmp_path).to_pyarrow_table()["day"].to_pylist()) == {1, -20}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), "1_000"),
        (pa.int32(), " 7"),
        (pa.int32(), "٣"),
        (pa.int32(), "99999999999"),
        (pa.int8(), "300"),
        (pa.date32(), "20261101"),
        (pa.date32(), "2026-W01-1"),
        (pa.string(), ""),
    ],
)
def test_values_that_would_make_a_table_unreadable(tmp_path: Path, kind: pa.DataType, value: str) -> None:
    DeltaTable.create(tmp_path / "sink", SCHEMA.append(pa.field("day", kind)), partition_by=["day"])
    land(tmp_path / "source" / f"day={value}", "0.parquet", make_rows(0))
    with pytest.raises(fp.SinkError, match="column 'day' partitions the table"):
        make_job(tmp_path).run()
    assert table_of(tmp_path).version() == 0


def test_files_of_several_writers_make_a_table(tmp_path: Path) -> None:
    when = pa.array([datetime(2026, 11, 22, tzinfo=UTC)] * 600)
    for number, (text, unit) in enumerate(((pa.string(), "ms"), (pa.large_string(), "us"))):
        rows = make_rows(number).append_column("at", when.cast(pa.timestamp(unit, "UTC")))
        land(tmp_path / "source", f"{number}.parquet", rows.set_column(4, "origin", rows["origin"].cast(text)))
    rows = make_rows(2).append_column("at", when.cast(pa.timestamp("ns", "UTC")))
    land(tmp_path / "source", "2.parquet", rows, use_deprecated_int96_timestamps=True)  # as Spark writes them
    make_job(tmp_path).run()
    expected = first_of_each(pl.DataFrame(pa.concat_tables(map(make_rows, range(3)))))
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected.sort(SCHEMA.names))
    assert set(table_of(tmp_path).to_pyarrow_table()["at"].to_pylist()) == {datetime(2026, 11, 22, tzinfo=UTC)}


def test_a_version_for_a_dropped_table_can_be_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_versions(tmp_path, 2)
    land_some(tmp_path, [2])
    with dying(monkeypatch, after=False), pytest.raises(Crash):
        make_job(tmp_path).run()
    kept = table_of(tmp_path).to_pyarrow_table()
    shutil.rmtree(tmp_path / "sink" / "_delta_log")
    write_deltalake(tmp_path / "sink", kept)
    with pytest.raises(fp.SinkChangedError):
        make_job(tmp_path).run()
    state_of(tmp_path).abandon(3)
    assert state_of(tmp_path).status(3) == "abandoned"


def test_the_layout_of_a_sink_is_stored(tmp_path: Path) -> None:
    land(tmp_path / "source", "0.parquet", SCHEMA.empty_table())
    make_job(tmp_path).run()
    land_some(tmp_path, [1])
    make_job(tmp_path, layout=None).run()
    polars.testing.assert_frame_equal(rows_of(tmp_path), expected_of(tmp_path))


def test_a_path_that_the_library_would_take_for_another(tmp_path: Path) -> None:
    with pytest.raises(fp.SinkError, match="a '%' in the path"):
        make_job(tmp_path / "a%20b")


def test_files_of_an_immutable_source_are_not_linked(tmp_path: Path) -> None:
    """They would have the source's age, and VACUUM goes by ages."""
    land_some(tmp_path, [0])
    clean = pl.DataFrame(make_rows(3)).with_columns(pid=pl.lit(77), seq=pl.int_range(600))
    land(tmp_path / "source", "3.parquet", clean.to_arrow().cast(SCHEMA))
    report = make_job(tmp_path, source_immutable=True).run()
    assert report.carried_files == 1
    inodes = {file.stat().st_ino for file in (tmp_path / "source").iterdir()}
    assert inodes.isdisjoint(file.stat().st_ino for file in (tmp_path / "sink").glob("*.parquet"))
