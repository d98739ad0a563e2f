"""Delta tables that are deduplicated in place: by deletion vectors, or by replaced files."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import QueryBuilder, write_deltalake
from fencepost import state
from fencepost.lake import DedupJob, LocalEngine, sources
from fencepost.state import delta_sink
from fencepost.state.delta_log import LOG, live_files, read_commit
from fencepost.state.disk import Disk
from fencepost.state.in_place import InPlace
from fencepost.state.stores import LocalStore
from fencepost.state.versions import State
from support import daily
from support.delta_in_place import WAYS, append, remove_by_vector, rows_of, table_of
from support.lake import (
    IDENTITY,
    IS_TRACKED,
    SCHEMA,
    Crash,
    crash_at,
    dead_before,
    first_of_each,
    hashes,
    identities,
    make_rows,
)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_job(root: Path, **arguments: Any) -> DedupJob:
    return DedupJob(root / "table", root / "state", root / "table", **arguments)


def expected_of(*seeds: int, count: int = 300) -> pl.DataFrame:
    return first_of_each(pl.DataFrame(pa.concat_tables([make_rows(seed, count) for seed in seeds]))).sort("origin")


def assert_kept(root: Path, *seeds: int, count: int = 300) -> None:
    polars.testing.assert_frame_equal(rows_of(root), expected_of(*seeds, count=count))


def assert_one_of_each(root: Path, *seeds: int, count: int = 300) -> None:
    """Any of several copies may stay, once others have moved rows."""
    found, wanted = rows_of(root), expected_of(*seeds, count=count)
    polars.testing.assert_frame_equal(found.filter(~IS_TRACKED), wanted.filter(~IS_TRACKED))
    polars.testing.assert_frame_equal(identities(found), identities(wanted))


def write_clean(root: Path, way: str) -> pa.Table:
    """A table without repeats; gives its rows."""
    clean = expected_of(0).filter(IS_TRACKED).to_arrow().cast(SCHEMA)
    write_deltalake(root / "table", clean, configuration=WAYS[way])
    return clean


def commits(root: Path) -> list[str]:
    """The operation of each commit."""
    found = []
    for version in range(table_of(root).version() + 1):
        actions = read_commit(LocalStore(root / "table"), version)
        assert actions is not None
        found.append(next(it["operation"] for kind, it in actions if kind == "commitInfo"))
    return found


# -- What is written


def test_each_run_takes_out_what_is_not_kept(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, 1, way=way)
    report = make_job(tmp_path).run()
    assert_kept(tmp_path, 0, 1)
    assert (report.rows, report.kept) == (600, len(expected_of(0, 1)))
    append(tmp_path, 2, 3, way=way)
    report = make_job(tmp_path).run()
    assert (report.version, report.files, report.rows) == (2, 2, 600)
    assert_kept(tmp_path, 0, 1, 2, 3)
    assert commits(tmp_path) == ["WRITE", "WRITE", "DEDUPLICATE", "WRITE", "WRITE", "DEDUPLICATE"]
    polars.testing.assert_frame_equal(
        rows_of(tmp_path, 1), pl.DataFrame(pa.concat_tables([make_rows(0, 300), make_rows(1, 300)])).sort("origin")
    )
    assert bool(list((tmp_path / "table").glob("*.bin"))) == (way == "vectors")


def test_a_deferred_file_is_read_after_a_commit_of_the_state(tmp_path: Path, way: str) -> None:
    """The position stays before that commit, because nobody else has changed the table."""
    append(tmp_path, 0, way=way)
    append(tmp_path, 1, way=way)
    newest = max((tmp_path / "table").glob("*.parquet"), key=os.path.getmtime)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:100])
    assert make_job(tmp_path).run().rows == 300
    newest.write_bytes(whole)
    report = make_job(tmp_path).run()
    assert (report.version, report.rows) == (2, 300)
    assert_kept(tmp_path, 0, 1)
    assert commits(tmp_path) == ["WRITE", "WRITE", "DEDUPLICATE", "DEDUPLICATE"]


def test_nothing_new_changes_nothing(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, way=way)
    make_job(tmp_path).run()
    before = hashes(tmp_path)
    assert make_job(tmp_path).run().version is None
    assert hashes(tmp_path) == before


def test_files_that_lose_no_row_and_those_that_lose_all(tmp_path: Path, way: str) -> None:
    clean = write_clean(tmp_path, way)
    kept = set(table_of(tmp_path).file_uris())
    write_deltalake(tmp_path / "table", clean, mode="append")
    make_job(tmp_path).run()
    assert set(table_of(tmp_path).file_uris()) == kept
    assert rows_of(tmp_path).height == len(clean)
    assert [kind for kind, _ in read_commit(LocalStore(tmp_path / "table"), 2) or []] == ["commitInfo", "txn", "remove"]


def test_a_version_without_refused_rows_is_a_transaction(tmp_path: Path, way: str) -> None:
    write_clean(tmp_path, way)
    make_job(tmp_path).run()
    assert [kind for kind, _ in read_commit(LocalStore(tmp_path / "table"), 1) or [] if kind != "commitInfo"] == ["txn"]
    assert make_job(tmp_path).run().version is None


def test_rows_that_others_took_out_are_dead_before_judging(tmp_path: Path) -> None:
    """A copy that was deleted by a vector is none: the other one stays."""
    append(tmp_path, 0)
    rows = make_rows(0, 300)
    first = remove_by_vector(tmp_path, np.arange(0, 150))
    make_job(tmp_path).run()
    left = first_of_each(pl.DataFrame(rows).slice(150)).sort("origin")
    polars.testing.assert_frame_equal(rows_of(tmp_path), left)
    assert table_of(tmp_path).version() == first + 1


def test_a_table_by_folders(tmp_path: Path, way: str) -> None:
    days = ["a b=%c/d", "2026-11-02", None]
    rows = make_rows(0, 300).append_column("day", pa.array([days[row % 3] for row in range(300)]))
    write_deltalake(tmp_path / "table", rows, partition_by=["day"], configuration=WAYS[way])
    make_job(tmp_path).run()
    write_deltalake(tmp_path / "table", rows, mode="append")
    make_job(tmp_path, columns=None).run()

    def read() -> pl.DataFrame:
        # Not by Polars: it passes over the vectors of files in folders whose names hold a percent sign.
        return pl.DataFrame(QueryBuilder().register("t", table_of(tmp_path)).execute("select * from t").read_all())

    found = read()
    if way == "files":  # delta-rs finds a file only if its path has the form that delta-rs itself writes
        assert table_of(tmp_path).optimize.compact()["numFilesRemoved"] > 0
        polars.testing.assert_frame_equal(read(), found, check_row_order=False)
    # Files have no order but their names within one commit: any copy may stay.
    tracked = found.filter(IS_TRACKED)
    wanted = pl.DataFrame(rows).filter(IS_TRACKED)
    assert tracked.select(IDENTITY).is_unique().all()
    assert tracked.height == wanted.select(IDENTITY).n_unique()
    assert found.filter(~IS_TRACKED).height == 2 * pl.DataFrame(rows).filter(~IS_TRACKED).height
    assert tracked.join(wanted, on=[*IDENTITY, "origin", "day"], nulls_equal=True).height == tracked.height


def test_files_that_a_checkpoint_names(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, 1, 2, way=way)
    table_of(tmp_path).create_checkpoint()
    for version in range(2):
        (tmp_path / "table" / LOG / f"{version:020}.json").unlink()
    make_job(tmp_path).run()
    assert_kept(tmp_path, 0, 1, 2)
    append(tmp_path, 3, way=way)
    table_of(tmp_path).create_checkpoint()
    (tmp_path / "table" / LOG / f"{3:020}.json").unlink()
    make_job(tmp_path).rebase()
    assert_kept(tmp_path, 0, 1, 2, 3)


def test_a_commit_writes_a_checkpoint_at_the_interval_of_the_table(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, 1, way=way)
    table_of(tmp_path).alter.set_table_properties({"delta.checkpointInterval": "1"})
    for seed in (2, 3):
        append(tmp_path, seed, way=way)
        version = make_job(tmp_path).run().version
        assert (tmp_path / "table" / LOG / f"{2 * version + 2:020}.checkpoint.parquet").exists()
    assert_kept(tmp_path, 0, 1, 2, 3)


def test_rows_refused_for_other_reasons_are_written_to_rejects(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, way=way)
    report = make_job(tmp_path, policy="strict", order_by=(), rejected_max=1.0).run()
    refused = {
        name: count for name, count in report.counts.items() if name not in ("ACCEPTED", "UNTRACKED", "DUPLICATE")
    }
    assert refused
    assert report.rejected == refused
    rejects = pl.read_parquet(tmp_path / "table" / "_fencepost" / "run=1" / "_rejects" / "**" / "*.parquet")
    whole = pl.concat([rows_of(tmp_path), rejects.select(SCHEMA.names)])
    assert whole["origin"].is_unique().all()
    assert report.rows - len(whole) == report.counts.get("DUPLICATE", 0)


@pytest.mark.parametrize("seed", daily.first(range(6)))
def test_any_mix_of_appends_compactions_and_runs(tmp_path: Path, way: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    landed: list[int] = []
    for _ in range(12):
        action = rng.choice(["append", "append", "run", "run", "compact", "checkpoint"])
        if action == "append" or not landed:
            landed.append(int(rng.integers(0, 50)))
            append(tmp_path, landed[-1], way=way, count=100)
        elif action == "run":
            make_job(tmp_path, engine=LocalEngine(2)).run()
        elif action == "compact":
            make_job(tmp_path).run()
            table_of(tmp_path).optimize.compact()
        else:
            table_of(tmp_path).create_checkpoint()
    make_job(tmp_path).run()
    tracked = rows_of(tmp_path).filter(IS_TRACKED)
    wanted = expected_of(*landed, count=100).filter(IS_TRACKED)
    polars.testing.assert_frame_equal(tracked, wanted)


# -- What others do meanwhile


@pytest.fixture
def meddling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Lets others do something just before a version is written, once."""

    def between(act: Callable[[], None]) -> None:
        real = InPlace._write
        acts = [act]

        def slower(*arguments: Any) -> None:
            if acts:
                acts.pop()()
            real(*arguments)

        monkeypatch.setattr(InPlace, "_write", slower)

    return between


def test_appends_of_others_do_not_disturb(tmp_path: Path, way: str, meddling: Any) -> None:
    append(tmp_path, 0, way=way)
    meddling(lambda: append(tmp_path, 1, way=way))
    assert make_job(tmp_path).run().version == 1
    assert commits(tmp_path) == ["WRITE", "WRITE", "DEDUPLICATE"]
    assert make_job(tmp_path).run().rows == 300
    assert_kept(tmp_path, 0, 1)


def test_settings_that_others_change_are_checked_again(tmp_path: Path, meddling: Any) -> None:
    append(tmp_path, 0)
    meddling(lambda: table_of(tmp_path).alter.set_table_properties({"delta.enableDeletionVectors": "false"}))
    assert make_job(tmp_path).run().version == 2
    assert [it.status for it in state.open(tmp_path / "state").versions()] == ["abandoned", "applied"]
    assert_kept(tmp_path, 0)
    assert not list((tmp_path / "table").glob("*.bin"))


def test_compaction_that_comes_first_is_planned_around(tmp_path: Path, way: str, meddling: Any) -> None:
    """Judged rows have moved: the version is abandoned, and no row is removed by its old number."""
    append(tmp_path, 0, 1, way=way)
    meddling(lambda: table_of(tmp_path).optimize.compact())
    report = make_job(tmp_path).run()
    assert report.version == 2
    assert_one_of_each(tmp_path, 0, 1)


def test_copies_that_others_take_away_are_not_counted_on(tmp_path: Path, way: str, meddling: Any) -> None:
    """The first of two copies is deleted while the second is about to be removed: both would be lost."""
    clean = expected_of(0).filter(IS_TRACKED)
    for origin in ("first", "second"):
        rows = clean.with_columns(origin=pl.lit(origin)).to_arrow().cast(SCHEMA)
        write_deltalake(tmp_path / "table", rows, mode="append", configuration=WAYS[way])
    meddling(lambda: table_of(tmp_path).delete("origin = 'first'") and None)
    assert make_job(tmp_path).run().version == 2
    assert rows_of(tmp_path)["origin"].to_list() == ["second"] * len(clean)


def test_compaction_of_unread_files_requires_a_rebase(tmp_path: Path, way: str, meddling: Any) -> None:
    append(tmp_path, 0, way=way)
    make_job(tmp_path).run()
    append(tmp_path, 1, 2, way=way)
    meddling(lambda: table_of(tmp_path).optimize.compact())
    with pytest.raises(fp.SourceError, match=r"version 4 \(OPTIMIZE\) moves unread rows .* --rebase"):
        make_job(tmp_path).run()
    report = make_job(tmp_path).rebase()
    assert_one_of_each(tmp_path, 0, 1, 2)
    assert report.rows == len(expected_of(0)) + 600
    append(tmp_path, 3, way=way)
    make_job(tmp_path).run()
    assert_one_of_each(tmp_path, 0, 1, 2, 3)


def delete(root: Path) -> None:
    table_of(root).delete("seq < 30")


def update(root: Path) -> None:
    table_of(root).update(updates={"origin": "'x'"}, predicate="seq = 3")


def merge(root: Path) -> None:
    more = make_rows(9, 300).slice(0, 1).set_column(3, "seq", pa.array([7], pa.int32()))
    rows = table_of(root).merge(more, "t.origin = s.origin or t.seq = s.seq", source_alias="s", target_alias="t")
    rows.when_matched_update({"origin": "s.origin"}).when_not_matched_insert_all().execute()


def restore(root: Path) -> None:
    table_of(root).restore(0)


def overwrite(root: Path) -> None:
    write_deltalake(root / "table", make_rows(5, 300), mode="overwrite")


@pytest.mark.parametrize(
    ("rewrite", "way"),
    daily.each_value((delete, update, merge, restore, overwrite), tuple(WAYS)),
    indirect=["way"],
)
def test_rows_that_others_rewrite_stop_the_run_until_it_is_rebased(
    tmp_path: Path, way: str, rewrite: Callable[[Path], None]
) -> None:
    append(tmp_path, 0, way=way)
    append(tmp_path, 1, way=way)
    make_job(tmp_path).run()
    rewrite(tmp_path)
    append(tmp_path, 2, way=way)
    before = rows_of(tmp_path)
    content = hashes(tmp_path)
    with pytest.raises(fp.SourceError, match=r"removes rows .*ebase"):
        make_job(tmp_path).run()
    assert hashes(tmp_path) == content
    report = make_job(tmp_path).rebase()
    assert report.rows == len(before)
    after = rows_of(tmp_path)
    tracked, all_tracked = identities(after), identities(before)
    assert tracked.is_unique().all()
    assert tracked.height == all_tracked.n_unique()
    assert after.height - tracked.height == before.height - all_tracked.height
    # What was taken away and is written once more is no repeat.
    append(tmp_path, 0, 1, way=way)
    make_job(tmp_path).run()
    wanted = pl.concat([all_tracked, identities(expected_of(0, 1))])
    polars.testing.assert_frame_equal(identities(rows_of(tmp_path)), wanted.unique().sort(IDENTITY))


def test_a_rebase_starts_the_list_of_missing_ranges_again(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    make_job(tmp_path).run()
    delete(tmp_path)
    make_job(tmp_path).rebase()
    alone = tmp_path / "alone"
    shutil.copytree(tmp_path / "table", alone / "table", ignore=shutil.ignore_patterns("_fencepost"))
    make_job(alone).run()
    found, wanted = (pl.DataFrame(state.open(it / "state").missing()).sort(pl.all()) for it in (tmp_path, alone))
    polars.testing.assert_frame_equal(found, wanted)
    lines = pl.concat(
        pl.read_parquet(it) for it in (tmp_path / "table" / "_fencepost").glob("run=*/_missing/*.parquet")
    )
    keys = [name for name in lines.columns if name not in ("version", "change")]
    counted = lines.with_columns(times=pl.when(pl.col("change") == "OPEN").then(1).otherwise(-1))
    left = counted.group_by(keys).agg(pl.col("times").sum()).filter(pl.col("times") != 0)
    polars.testing.assert_frame_equal(left.drop("times").select(wanted.columns).sort(pl.all()), wanted)


def test_a_run_that_is_overtaken_after_a_split_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, 0)
    make_job(tmp_path).run()
    append(tmp_path, 1)
    real = State.finish

    def finish(own: State, version: int, status: str = "applied") -> None:
        real(own, version, status)
        monkeypatch.undo()
        assert make_job(tmp_path, shard_bytes_max=None).run().version == 3

    monkeypatch.setattr(State, "finish", finish)
    with pytest.raises(fp.StateConflictError, match="decided version 3 first"):
        make_job(tmp_path, shard_bytes_max=1).run()
    assert_kept(tmp_path, 0, 1)


def test_a_rebase_counts_the_lines_that_it_writes(tmp_path: Path) -> None:
    """And not those of a state from nothing: a metric would count every range again."""
    append(tmp_path, 0, 1)
    assert make_job(tmp_path).run().missing_changes["OPEN"] > 0
    assert make_job(tmp_path).rebase().missing_changes == {}
    delete(tmp_path)
    report = make_job(tmp_path).rebase()
    written = pl.read_parquet(tmp_path / "table" / "_fencepost" / f"run={report.version}" / "_missing" / "*.parquet")
    assert report.missing_changes == Counter(written["change"].to_list()) != {}


def test_a_change_of_settings_between_check_and_listing_is_noticed(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0)
    real, acts = sources.list_appended, [{"delta.enableDeletionVectors": "false"}]
    if way == "files":
        acts = [{"delta.appendOnly": "true"}]

    def slower(*arguments: Any) -> Any:
        if acts:
            table_of(tmp_path).alter.set_table_properties(acts.pop())
        return real(*arguments)

    monkeypatch.setattr(sources, "list_appended", slower)
    if way == "vectors":
        assert make_job(tmp_path).run().version == 2
        assert_kept(tmp_path, 0)
    else:
        with pytest.raises(fp.SinkError, match="appendOnly"):
            make_job(tmp_path).run()
        assert rows_of(tmp_path).height == 300


def test_files_that_are_added_again_need_a_rebase(tmp_path: Path, way: str) -> None:
    """Readers see nothing new; judged as new rows all of them would be repeats."""
    append(tmp_path, 0, way=way)
    make_job(tmp_path).run()
    before = rows_of(tmp_path)
    version = table_of(tmp_path).version()
    lines = [{"add": it} for it in live_files(LocalStore(tmp_path / "table"), version).values()]
    text = "\n".join(json.dumps(it) for it in lines)
    (tmp_path / "table" / LOG / f"{version + 1:020}.json").write_text(text)
    with pytest.raises(fp.SourceError, match=r"was added again, .* --rebase"):
        make_job(tmp_path).run()
    make_job(tmp_path).rebase()
    polars.testing.assert_frame_equal(rows_of(tmp_path), before)


def test_files_that_were_rewritten_have_no_order(tmp_path: Path, way: str, meddling: Any) -> None:
    append(tmp_path, 0, 1, way=way)
    meddling(lambda: table_of(tmp_path).optimize.compact())
    with pytest.raises(fp.PolicyError, match="depends on the order"):
        make_job(tmp_path, policy="in_order", order_by=(), rejected_max=1.0).run()
    assert rows_of(tmp_path).height == 600


# -- Operations


def with_feature(root: Path, feature: str, *, also_readers: bool = False) -> None:
    """Set a feature in the newest protocol of the table."""
    protocol, version = table_of(root).protocol(), table_of(root).version()
    readers, writers = (set(it or ()) for it in (protocol.reader_features, protocol.writer_features))
    action = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(readers | ({feature} if also_readers else set())),
        "writerFeatures": sorted(writers | {feature, "appendOnly"}),
    }
    (root / "table" / LOG / f"{version + 1:020}.json").write_text(json.dumps({"protocol": action}))


@pytest.mark.parametrize("feature", ["identityColumns", "allowColumnDefaults"])
def test_tables_that_the_library_does_not_write_to(tmp_path: Path, way: str, feature: str) -> None:
    append(tmp_path, 0, way=way)
    with_feature(tmp_path, feature)
    make_job(tmp_path).run()
    assert_kept(tmp_path, 0)
    opened = state.open(tmp_path / "state")
    opened.reshard(3)
    decide_only(tmp_path)
    opened.abandon(3)
    assert make_job(tmp_path).run().version is None


def test_tables_that_the_library_does_not_read(tmp_path: Path) -> None:
    append(tmp_path, 0)
    with_feature(tmp_path, "vacuumProtocolCheck", also_readers=True)
    before = hashes(tmp_path)
    with pytest.raises(fp.SinkError, match="vacuumProtocolCheck"):
        make_job(tmp_path).run()
    assert hashes(tmp_path) == before


def decide_only(root: Path) -> None:
    """Decide a version, and die."""
    with dead_before(InPlace, "apply"):
        state.open(root / "state").reshard(4)


def test_a_rebased_state_continues(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, way=way)
    make_job(tmp_path, shards=2).run()
    delete(tmp_path)
    make_job(tmp_path).rebase()
    opened = state.open(tmp_path / "state")
    version = opened.version(2)
    assert (version.kind, version.builds_on, version.shard_count) == ("rebase", 0, 2)
    opened.collect_garbage(keep_versions=1)
    opened.reshard(3)
    append(tmp_path, 1, way=way)
    make_job(tmp_path).run()
    assert identities(rows_of(tmp_path)).is_unique().all()


def test_operations_are_transactions_too(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, way=way)
    make_job(tmp_path).run()
    opened = state.open(tmp_path / "state")
    opened.reshard(5)
    opened.collect_garbage(keep_versions=1)
    append(tmp_path, 1, way=way)
    assert make_job(tmp_path).run().version == 4
    assert_kept(tmp_path, 0, 1)
    with pytest.raises(fp.SinkError, match="cannot be rolled back"):
        opened.rollback(3)


def test_a_seed_removes_no_rows(tmp_path: Path, way: str) -> None:
    write_clean(tmp_path, way)
    make_job(tmp_path).seed()
    append(tmp_path, 0, 1, way=way)
    make_job(tmp_path).run()
    tracked = rows_of(tmp_path).filter(IS_TRACKED)
    polars.testing.assert_frame_equal(tracked, expected_of(0, 1).filter(IS_TRACKED))


@pytest.mark.parametrize("fate", ["finished", "abandoned"])
def test_a_version_that_was_decided_only(tmp_path: Path, way: str, fate: str) -> None:
    append(tmp_path, 0, way=way)
    with dead_before(InPlace, "apply"):
        make_job(tmp_path).run()
    assert rows_of(tmp_path).height == 300
    if fate == "abandoned":
        state.open(tmp_path / "state").abandon(1)
        assert rows_of(tmp_path).height == 300
    report = make_job(tmp_path).run()
    assert report.recovered == ((1,) if fate == "finished" else ())
    assert_kept(tmp_path, 0)


MONTH_NS = 30 * 86_400_000_000_000


@pytest.mark.parametrize("placed", [False, True])
def test_files_are_as_old_as_the_commit_not_as_the_decision(
    tmp_path: Path, way: str, placed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is committed a month late: readers of the version before have their files as long as ever, and
    those that come are not taken for what a dead writer left."""
    append(tmp_path, 0, 1, way=way)
    make_job(tmp_path).run()
    append(tmp_path, 2, way=way)
    again = make_rows(2, 300).filter(pa.compute.greater(make_rows(2, 300)["pid"], -1))
    write_deltalake(tmp_path / "table", again, mode="append")  # which loses all rows, where others lose some
    real = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: real() - MONTH_NS)
        with dead_before(*((delta_sink, "put_commit") if placed else (InPlace, "_place"))):
            make_job(tmp_path).run()
    decision = state.open(tmp_path / "state").version(2)
    sink = InPlace(LocalStore(tmp_path / "table"), Disk(sync=False))
    prepared = [sink.folder / "_fencepost" / str(decision.prepared) / name for name in decision.outputs.name]
    final = [sink.folder / name for name in sink.names(decision)]
    there = final if placed else prepared
    assert there
    assert all(path.exists() for path in there)
    for path in there:
        os.utime(path, ns=(real() - MONTH_NS,) * 2)
    before, began = table_of(tmp_path).version(), real()
    assert make_job(tmp_path).run().recovered == (2,)
    actions = read_commit(LocalStore(tmp_path / "table"), before + 1) or []
    times = [action["deletionTimestamp"] for kind, action in actions if kind == "remove"]
    assert times
    assert min(times) >= began // 1_000_000 > decision.decided_ms + MONTH_NS // 2_000_000
    assert all(path.stat().st_mtime_ns >= began // 1_000_000_000 * 1_000_000_000 for path in final)
    assert table_of(tmp_path).vacuum(retention_hours=168, dry_run=True) == []
    assert rows_of(tmp_path, before).height == len(expected_of(0, 1)) + 300 + len(again)
    assert_kept(tmp_path, 0, 1, 2)


@pytest.mark.parametrize("first", daily.first(range(3)))
def test_killed_at_every_change_to_the_disk(
    tmp_path: Path, way: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next run finishes or starts again: rows are removed once. At every third change."""
    world, template = tmp_path / "world", tmp_path / "template"
    append(world, 0, 1, way=way, count=60)
    make_job(world, shards=2).run()
    append(world, 2, way=way, count=60)
    world.rename(template)
    call, is_over = 1 + first, False
    while not is_over:
        shutil.rmtree(world, ignore_errors=True)
        shutil.copytree(template, world)
        with crash_at(monkeypatch, call):
            try:
                make_job(world, shards=2, engine=LocalEngine(1)).run()
                is_over = True
            except Crash:
                pass
        make_job(world, shards=2).run()
        assert_kept(world, 0, 1, 2, count=60)
        assert commits(world).count("DEDUPLICATE") == 2
        call += 3
    assert call > 20


def test_two_runs_at_once(tmp_path: Path, way: str, meddling: Any) -> None:
    """Another run finishes what this one has decided, while it is about to write it."""
    append(tmp_path, 0, way=way)
    meddling(lambda: make_job(tmp_path).run() and None)
    assert make_job(tmp_path).run().version == 1
    assert commits(tmp_path) == ["WRITE", "DEDUPLICATE"]
    assert_kept(tmp_path, 0)


# -- What a commit must not say: each of these passes unnoticed by readers


Actions = list[dict[str, Any]]


def without_its_old_vector(actions: Actions, _: Path) -> None:
    del actions[0]["remove"]["deletionVector"]


def without_a_remove(actions: Actions, _: Path) -> None:
    del actions[0]


def a_row_behind_the_end(actions: Actions, root: Path) -> None:
    replace_vector(root, actions[1]["add"], lambda rows: rows.__ior__(type(rows)([299])) and rows.remove(rows[0]))


def rows_that_were_gone_are_back(actions: Actions, root: Path) -> None:
    replace_vector(root, actions[1]["add"], lambda rows: rows.remove(0))


def too_few_rows(actions: Actions, root: Path) -> None:
    replace_vector(root, actions[1]["add"], lambda rows: rows.remove(rows[len(rows) - 1]))


def replace_vector(root: Path, action: dict[str, Any], change: Callable[[Any], Any]) -> None:
    from fencepost.state.vectors import MAGIC, read_vector, rows_of, to_z85

    rows = rows_of(read_vector(LocalStore(root / "table"), action["deletionVector"]))
    change(rows)
    data = MAGIC + rows.serialize()
    padded = data + bytes(-len(data) % 4)
    action["deletionVector"] = {
        "storageType": "i",
        "pathOrInlineDv": to_z85(padded),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


@pytest.mark.parametrize(
    "mistake",
    [
        without_its_old_vector,
        without_a_remove,
        a_row_behind_the_end,
        rows_that_were_gone_are_back,
        too_few_rows,
    ],
)
def test_silent_mistakes_are_not_written(
    tmp_path: Path, mistake: Callable[[Actions, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is changed before it is checked."""
    real = InPlace._changes

    def changed(*arguments: Any) -> list[Actions]:
        actions = real(*arguments)
        mistake(actions[0], tmp_path)
        return actions

    append(tmp_path, 0, count=290)
    version = remove_by_vector(tmp_path, np.arange(0, 10))
    monkeypatch.setattr(InPlace, "_changes", changed)
    with pytest.raises((AssertionError, KeyError)):
        make_job(tmp_path).run()
    assert table_of(tmp_path).version() == version


def test_a_table_without_the_feature_gets_no_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers would pass over it, and all rows be back."""
    append(tmp_path, 0, way="files")
    seen = InPlace.seen
    monkeypatch.setattr(InPlace, "seen", lambda self, table: {**seen(self, table), "vectors": True})
    with pytest.raises(AssertionError, match="not allow deletion vectors"):
        make_job(tmp_path).run()
    assert table_of(tmp_path).version() == 0


def test_a_commit_that_was_written_incompletely_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, 0)
    real = delta_sink.put_commit

    def put_wrong(store: LocalStore, version: int, actions: list[Any]) -> bool:
        return real(store, version, [it for it in actions if "remove" not in it][:2])

    monkeypatch.setattr(delta_sink, "put_commit", put_wrong)
    with pytest.raises(fp.SinkError, match="differs from what"):
        make_job(tmp_path).run()


# -- What stops a job, and changes nothing


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"delta.appendOnly": "true"}, "appendOnly"),
        ({"delta.enableChangeDataFeed": "true"}, "change data feed"),
    ],
)
def test_tables_that_rows_are_not_taken_out_of(tmp_path: Path, settings: dict[str, str], match: str) -> None:
    write_deltalake(tmp_path / "table", make_rows(0, 300), configuration=settings)
    before = hashes(tmp_path)
    with pytest.raises(fp.SinkError, match=match):
        make_job(tmp_path).run()
    assert hashes(tmp_path) == before


def test_constraints_are_allowed(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, way=way)
    table_of(tmp_path).alter.add_constraint({"positive": "seq >= 0"})
    make_job(tmp_path).run()
    assert_kept(tmp_path, 0)


def test_only_tables_are_deduplicated_in_place(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    with pytest.raises(fp.SinkError, match=r"only .*can be both source"):
        make_job(tmp_path)
    append(tmp_path, 0)
    with pytest.raises(fp.SinkError, match=r"only .*can be both source"):
        make_job(tmp_path, layout="run")
    with pytest.raises(fp.PolicyError, match=r"only .*can be rebased"):
        DedupJob(tmp_path / "table", tmp_path / "state", tmp_path / "sink").rebase()
    with pytest.raises(fp.SinkError, match="be the same table"):
        DedupJob(tmp_path / "other", tmp_path / "state", InPlace(LocalStore(tmp_path / "table"), Disk()))
    with pytest.raises(fp.PolicyError, match="depends on the order"):
        make_job(tmp_path, policy="strict", order_by=()).rebase()


def test_a_recreated_table_stops_the_run(tmp_path: Path, way: str) -> None:
    append(tmp_path, 0, way=way)
    make_job(tmp_path).run()
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "table" / "_fencepost", kept)
    shutil.rmtree(tmp_path / "table")
    append(tmp_path, 1, way=way)
    shutil.copytree(kept, tmp_path / "table" / "_fencepost")
    before = hashes(tmp_path)
    with pytest.raises(fp.SinkChangedError, match="not the table that"):
        make_job(tmp_path).run()
    assert hashes(tmp_path) == before
