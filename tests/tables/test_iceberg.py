"""Iceberg tables as sinks: each version one snapshot, whatever dies, and whatever others do to the table."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost import state
from fencepost.cli import main
from fencepost.lake import DedupJob, LocalEngine, applied_files, audit, dataset
from fencepost.state.disk import Disk
from fencepost.state.iceberg_sink import IcebergSink
from fencepost.state.prefix import RunPrefixes
from fencepost.state.sinks import RunFolders
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.utils.config import Config
from support.iceberg import (
    NAME,
    catalog_of,
    files_of,
    paths_of,
    pretend_delete_files,
    properties_of,
    rows_of,
    versions_of,
)
from support.lake import (
    SCHEMA,
    Crash,
    check_a_late_abandon,
    check_copies_of_a_state,
    dead_before,
    expected_of,
    land,
    land_some,
    make_rows,
)
from support.s3_server import BUCKET
from support.secret_runs import SECRETS, ProcessEngine, contents_of, files_with, start_killed
from support.threads import in_threads


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return catalog_of(tmp_path)


def make_job(root: Path, **arguments: Any) -> DedupJob:
    given: dict[str, Any] = {"sink_options": properties_of(root), "settle_ms": 0} | arguments
    return DedupJob(root / "source", root / "state", NAME, **given)


def run_alone(root: Path) -> int | None:
    return make_job(root, engine=LocalEngine(1), shards=2).run().version


def state_of(root: Path) -> state.State:
    return state.open(root / "state", sink_options=properties_of(root))


def sink_of(root: Path) -> IcebergSink:
    return IcebergSink(NAME, Disk(), properties_of(root))


def check(root: Path, catalog: SqlCatalog, versions: list[int]) -> None:
    """The table has the rows that it should have, each version once, and nothing is left of what was prepared."""
    polars.testing.assert_frame_equal(rows_of(catalog), expected_of(root))
    assert versions_of(catalog.load_table("db.events")) == versions
    assert not list((root / "warehouse/db/events/_fencepost/_prepare").glob("*"))
    assert set((root / "warehouse/db/events/data").glob("*")) == set(paths_of(catalog))


def append_by_others(catalog: SqlCatalog, name: str = "db.events") -> None:
    """A row that no job knows."""
    table = catalog.load_table(name)
    table.append(pa.Table.from_pylist([{"pid": 99, "origin": "99:0"}], table.schema().as_arrow()))


# What is written


def test_the_rows_are_those_of_folders(tmp_path: Path, catalog: SqlCatalog) -> None:
    land_some(tmp_path, range(2))
    near = DedupJob(tmp_path / "source", tmp_path / "near-state", tmp_path / "near", settle_ms=0)
    reports = [(make_job(tmp_path).run(), near.run())]
    land_some(tmp_path, range(2, 4))
    reports.append((make_job(tmp_path).run(), near.run()))
    for found, wanted in reports:
        for name in ("version", "counts", "missing_rows", "missing_ranges", "stale_epoch", "rows", "files"):
            assert getattr(found, name) == getattr(wanted, name), name
        assert len(found.outputs) == len(wanted.outputs) == 2
        assert found.sink == NAME
    check(tmp_path, catalog, [1, 2])
    assert make_job(tmp_path).run().version is None
    table = catalog.load_table("db.events")
    assert [it.summary.operation.value for it in table.snapshots() if it.summary] == ["append", "append"]
    assert [it.record_count for it in files_of(table)].count(0) == 0
    sides = tmp_path / "warehouse/db/events/_fencepost"
    assert sorted(it.name for it in (sides / "run=1").iterdir()) == sorted(
        it.name for it in (tmp_path / "near/run=1").iterdir() if not it.name.startswith("part-")
    )


def test_a_file_that_becomes_several(tmp_path: Path, catalog: SqlCatalog) -> None:
    """It is split among tasks, and each writes a file."""
    land_some(tmp_path, range(2))
    assert len(make_job(tmp_path, task_bytes_max=3_000).run().outputs) > 2
    check(tmp_path, catalog, [1])


def test_versions_without_rows_are_snapshots_too(tmp_path: Path, catalog: SqlCatalog) -> None:
    land(tmp_path / "source", "0.parquet", SCHEMA.empty_table())
    make_job(tmp_path).run()
    assert catalog.load_table("db.events").schema().fields == ()
    land(tmp_path / "source", "1.parquet", make_rows(1))
    make_job(tmp_path).run()
    opened = state_of(tmp_path)
    opened.reshard(4)
    opened.collect_garbage(keep_versions=1)
    land(tmp_path / "source", "2.parquet", make_rows(2))
    assert make_job(tmp_path).run().version == 5
    check(tmp_path, catalog, [1, 2, 3, 4, 5])


def test_a_table_that_is_there(tmp_path: Path, catalog: SqlCatalog) -> None:
    """Rows and columns of others stay; a file may lack a column under schema="merge"."""
    wide = SCHEMA.append(pa.field("note", pa.string()))
    table = catalog.create_table("db.events", schema=wide.set(1, pa.field("epoch", pa.int32())))
    table.append(pa.Table.from_pylist([{"pid": 0, "note": "ours"}], table.schema().as_arrow()))
    land_some(tmp_path, [1])
    with pytest.raises(fp.BatchError, match=r"1\.parquet: column 'note': missing; .*has string"):
        make_job(tmp_path).run()
    assert state_of_nothing(tmp_path)
    make_job(tmp_path, schema="merge").run()
    append_by_others(catalog)
    rows = catalog.load_table("db.events").scan().to_arrow()
    assert len(rows) == len(expected_of(tmp_path)) + 2
    assert rows["note"].null_count == len(rows) - 1
    assert make_job(tmp_path, schema="merge").run().version is None


def state_of_nothing(root: Path) -> bool:
    return not (root / "state" / "log").exists() or not any((root / "state" / "log").iterdir())


# Schemas


def test_columns_are_merged_in_the_transaction_of_the_files(tmp_path: Path, catalog: SqlCatalog) -> None:
    land_some(tmp_path, [1])
    make_job(tmp_path).run()
    later = make_rows(2).append_column("size", pa.array([1.5] * 600, pa.float32()))
    later = later.set_column(3, "seq", later["seq"].cast(pa.int64()))
    land(tmp_path / "source", "2.parquet", later)
    before = catalog.load_table("db.events").metadata_location
    with pytest.raises(fp.BatchError, match=r"2.parquet: column 'seq': int64; the sink has int32. schema='merge'"):
        make_job(tmp_path).run()
    assert catalog.load_table("db.events").metadata_location == before
    make_job(tmp_path, schema="merge").run()
    land(tmp_path / "source", "3.parquet", make_rows(3).append_column("size", pa.array([2.5] * 600, pa.float64())))
    make_job(tmp_path, schema="merge").run()
    table = catalog.load_table("db.events")
    kinds = {it.name: str(it.field_type) for it in table.schema().fields}
    assert kinds == {
        "pid": "long", "epoch": "int", "partition": "int", "seq": "long", "origin": "string", "size": "double"
    }  # fmt: skip
    rows = pl.DataFrame(table.scan().to_arrow())
    sizes = rows.group_by(pl.col("origin").str.slice(0, 1).alias("file")).agg(pl.col("size").unique()).sort("file")
    assert sizes["size"].to_list() == [[None], [1.5], [2.5]]
    assert len(table.metadata.schemas) == 4  # without columns, and each kind of files


def test_files_of_one_run_have_different_columns(tmp_path: Path, catalog: SqlCatalog) -> None:
    """In another order in the first run; in a later one with the same new columns, of types that widen either way."""
    land(tmp_path / "source", "1.parquet", make_rows(1))
    land(tmp_path / "source", "2.parquet", make_rows(2).select(SCHEMA.names[::-1]))
    kept = make_job(tmp_path).run().kept
    assert len(rows_of(catalog)) == kept
    for number, kinds in enumerate([(pa.float32(), pa.int64()), (pa.float64(), pa.int32())], 3):
        more = make_rows(number).append_column("size", pa.array([1.5] * 600, kinds[0]))
        land(tmp_path / "source", f"{number}.parquet", more.append_column("count", pa.array([7] * 600, kinds[1])))
    make_job(tmp_path, schema="merge").run()
    table = catalog.load_table("db.events")
    kinds_found = {it.name: str(it.field_type) for it in table.schema().fields}
    assert (kinds_found["size"], kinds_found["count"]) == ("double", "long")
    rows = pl.DataFrame(table.scan().to_arrow()).filter(pl.col("size").is_not_null())
    assert rows.select("size", "count").unique().rows() == [(1.5, 7)]
    assert sorted(rows["origin"].str.slice(0, 1).unique()) == ["3", "4"]


def test_types_that_no_table_has(tmp_path: Path, catalog: SqlCatalog) -> None:
    times = pa.array([0] * 600, pa.timestamp("ns"))
    land(tmp_path / "source", "1.parquet", make_rows(1).append_column("at", times), version="2.6")
    with pytest.raises(fp.BatchError, match=r"1\.parquet: column 'at': .*no type for timestamp\[ns\]"):
        make_job(tmp_path).run()
    land(tmp_path / "source", "1.parquet", make_rows(1).append_column("at", times.cast(pa.int64()).cast(pa.uint64())))
    with pytest.raises(fp.BatchError, match=r"column 'at': .*no type for uint64"):
        make_job(tmp_path).run()
    assert state_of_nothing(tmp_path)
    assert catalog.load_table("db.events").current_snapshot() is None


def test_all_types_that_a_table_has(tmp_path: Path, catalog: SqlCatalog) -> None:
    rows = make_rows(1, 3)
    more: dict[str, Any] = {
        "flag": pa.array([True, None, False]),
        "day": pa.array([1, 2, None], pa.date32()),
        "ms": pa.array([1, 2, None], pa.timestamp("ms", "UTC")),
        "us": pa.array([1, 2, None], pa.timestamp("us")),
        "noon": pa.array([1, 2, None], pa.time64("us")),
        "price": pa.array([1, 2, None], pa.decimal128(9, 2)),
        "raw": pa.array([b"1", b"2", None], pa.large_binary()),
        "four": pa.array([b"1234", b"4321", None], pa.binary(4)),
        "tag": pa.array(["a", "b", None]).dictionary_encode(),
        "list": pa.array([[1], [], None], pa.list_(pa.int8())),
        "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"x": 1, "y": {"z": "a"}}, {"x": 2}, None]),
    }
    for name, values in more.items():
        rows = rows.append_column(name, values)
    land(tmp_path / "source", "1.parquet", rows)
    kept = make_job(tmp_path).run().kept
    found = catalog.load_table("db.events").scan().to_arrow()
    assert len(found) == kept
    wanted = {it["origin"]: it for it in rows.to_pylist()}
    assert [it for it in found.to_pylist() if it != wanted[it["origin"]]] == []
    assert make_job(tmp_path).run().version is None


def test_field_ids_of_files(tmp_path: Path, catalog: SqlCatalog) -> None:
    """Ids of the table's columns are accepted; others would be read as other columns."""
    names = SCHEMA.names
    for order, numbers in (("same", [1, 2, 3, 4, 5]), ("other", [2, 1, 3, 4, 5])):
        root = tmp_path / order
        fields = [
            pa.field(name, SCHEMA.field(name).type, metadata={"PARQUET:field_id": str(number)})
            for name, number in zip(names, numbers, strict=True)
        ]
        land(root / "source", "1.parquet", make_rows(1).cast(pa.schema(fields)))
        own = catalog_of(root)
        if order == "same":
            make_job(root).run()
            check(root, own, [1])
            continue
        with pytest.raises(fp.SinkError, match=r"column 'epoch' of .*1\.parquet .*field id 1, in the table .*2"):
            make_job(root).run()
        assert state_of_nothing(root)


@pytest.mark.parametrize("problem", ["partitioned", "required", "required within", "version", "folders"])
def test_tables_that_are_not_written(tmp_path: Path, catalog: SqlCatalog, problem: str) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField, StructType

    within = StructType(NestedField(3, "x", LongType(), required=problem == "required within"))
    schema = Schema(NestedField(1, "pid", LongType(), required=problem == "required"), NestedField(2, "note", within))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "pid"))
    options: dict[str, Any] = {"partition_spec": spec} if problem == "partitioned" else {}
    if problem != "folders":
        properties = {"format-version": "1" if problem == "version" else "2"}
        catalog.create_table("db.events", schema, properties=properties, **options)
    land(tmp_path / "source" / ("day=1" if problem == "folders" else ""), "1.parquet", make_rows(1))
    texts = {
        "partitioned": "is partitioned by pid",
        "required": "column 'pid' is required",
        "required within": "column 'note.x' is required",
        "version": "has format version 1",
        "folders": r"values from folder names \(day=1/\)",
    }
    with pytest.raises(fp.SinkError, match=texts[problem]):
        make_job(tmp_path).run()
    assert state_of_nothing(tmp_path)


def test_places_that_are_refused(tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    land_some(tmp_path, [1])
    for name in (
        "iceberg://test",
        "iceberg://test/events",
        "iceberg://test/db.a/b",
        "iceberg://u:secret@test/db.events",
    ):
        with pytest.raises(fp.StoreError, match=r"expected iceberg://<catalog>/<namespace>\.<table>") as caught:
            DedupJob(tmp_path / "source", tmp_path / "state", name)
        assert "secret" not in str(caught.value)
    with pytest.raises(fp.SinkError, match="has no namespace 'other'"):
        DedupJob(
            tmp_path / "source", tmp_path / "state", "iceberg://test/other.x", sink_options=properties_of(tmp_path)
        ).run()
    with pytest.raises(fp.SinkError, match=r"only .*can be both source"):
        DedupJob(NAME, tmp_path / "state", NAME, source_options=properties_of(tmp_path))
    with pytest.raises(fp.StoreError, match="cannot be opened") as caught:
        DedupJob(tmp_path / "source", tmp_path / "state", NAME, sink_options={"uri": f"no-{SECRETS[1]}"}).run()
    assert SECRETS[1] not in str(caught.value)
    make_job(tmp_path).run()
    monkeypatch.setattr(Table, "location", lambda self: "gs://bucket/events")
    with pytest.raises(fp.SinkError, match="its files are in gs://; only local folders and S3 are supported"):
        make_job(tmp_path).run()


# Interrupted


STEPS: dict[str, tuple[Any, str]] = {
    "make": (SqlCatalog, "create_table"),
    "claim": (RunFolders, "claim"),
    "place": (IcebergSink, "_move_all"),
    "move": (os, "utime"),
    "commit": (SqlCatalog, "commit_table"),
    "seal": (IcebergSink, "_seal"),
    "side tables": (RunFolders, "apply"),
    "clean": (RunFolders, "clear"),
}


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, step: str, moment: str) -> Iterator[None]:
    """The process dies right before a step, or right after it."""
    owner, name = STEPS[step]
    real = getattr(owner, name)

    def die(*arguments: Any, **options: Any) -> Any:
        if moment == "after":
            real(*arguments, **options)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        yield


EVERY_TIME = {
    ("claim", "before"),
    ("move", "after"),
    ("commit", "before"),
    ("commit", "after"),
    ("side tables", "before"),
}
"""What `make test` runs."""
MOMENTS = [
    pytest.param(*it, marks=() if it in EVERY_TIME else pytest.mark.matrix)
    for it in itertools.product(STEPS, ("before", "after"))
]


@pytest.mark.parametrize(("step", "moment"), MOMENTS)
def test_dead_at_every_step(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, step: str, moment: str
) -> None:
    """What was decided needs its source no more; what was not is as if it had never begun."""
    for versions in (0, 1):
        land_some(tmp_path, [2 * versions, 2 * versions + 1])
        if versions and step in ("make", "claim"):
            break
        expected = expected_of(tmp_path)
        with dying(monkeypatch, step, moment), pytest.raises(Crash):
            run_alone(tmp_path)
        is_decided = not state_of_nothing(tmp_path) and len(list((tmp_path / "state/log").iterdir())) > versions
        assert is_decided == (step not in ("make", "claim"))
        if is_decided:
            gone = (tmp_path / "source" / f"{2 * versions}.parquet").rename(tmp_path / "gone")
            assert run_alone(tmp_path) is None
            gone.rename(tmp_path / "source" / f"{2 * versions}.parquet")
        else:
            assert run_alone(tmp_path) == versions + 1
        polars.testing.assert_frame_equal(rows_of(catalog), expected)
        check(tmp_path, catalog, list(range(1, versions + 2)))
        assert run_alone(tmp_path) is None


def test_dead_in_every_recovery(tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    land_some(tmp_path, range(2))
    for step, moment in (("place", "before"), ("move", "after"), ("commit", "before"), ("commit", "after"),
                         ("side tables", "before"), ("side tables", "after")):  # fmt: skip
        with dying(monkeypatch, step, moment), pytest.raises(Crash):
            run_alone(tmp_path)
    assert run_alone(tmp_path) is None
    check(tmp_path, catalog, [1])


# Several at once


def test_drivers_at_once(tmp_path: Path, catalog: SqlCatalog) -> None:
    """Two, then three, with a table and without one: each version once, and the slower drivers report it."""
    for number, drivers in enumerate((2, 3)):
        land_some(tmp_path, [2 * number, 2 * number + 1])
        start = threading.Barrier(drivers)

        def drive(start: threading.Barrier = start) -> Any:
            job = make_job(tmp_path, engine=LocalEngine(1), shards=2)
            start.wait()
            try:
                return job.run().version
            except fp.StateConflictError:
                return "conflict"

        assert in_threads([drive] * drivers).count(number + 1) == 1
        run_alone(tmp_path)
        check(tmp_path, catalog, list(range(1, number + 2)))


def decided(root: Path) -> Any:
    """The decision of a run that dies before it touches the sink."""
    with dead_before(IcebergSink, "apply"):
        run_alone(root)
    opened = state.State(state.open_store(root / "state"))
    return opened.version(opened.decided())


def test_drivers_and_fences_at_once(tmp_path: Path, catalog: SqlCatalog) -> None:
    land_some(tmp_path, range(2))
    decision = decided(tmp_path)
    wanted = [IcebergSink.apply, IcebergSink.fence, IcebergSink.apply]
    found = in_threads([lambda act=act: act(sink_of(tmp_path), decision) for act in wanted])  # type: ignore[misc]
    assert len(set(found)) == 1
    assert versions_of(catalog.load_table("db.events")) == [1]
    run_alone(tmp_path)
    check(tmp_path, catalog, [1] if found[0] == "applied" else [1, 2])


@contextmanager
def paused_before_commit(monkeypatch: pytest.MonkeyPatch, others: Callable[[], Any]) -> Iterator[list[str]]:
    """The first commit waits until others are done. Returns the outcomes of the later commits."""
    real, commits, is_first = SqlCatalog.commit_table, list[str](), itertools.count()

    def commit(self: SqlCatalog, *arguments: Any) -> Any:
        if next(is_first) == 0:
            others()
        try:
            done = real(self, *arguments)
        except CommitFailedException:
            commits.append("refused")
            raise
        commits.append("done")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", commit)
        yield commits


def test_others_commit_meanwhile(tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit follows the snapshot that was read, or reads again."""
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    land_some(tmp_path, [1])
    with paused_before_commit(monkeypatch, lambda: append_by_others(catalog)) as commits:
        assert run_alone(tmp_path) == 2
    assert commits == ["done", "refused", "done"]  # theirs, ours, ours again
    table = catalog.load_table("db.events")
    assert versions_of(table) == [1, 2]
    assert len(table.scan().to_arrow()) == len(expected_of(tmp_path)) + 1


def test_a_zombie_that_wakes_when_the_version_is_done(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were added already; it must not add them again, even after others have continued."""
    for versions_behind in (0, 1):
        root = tmp_path / str(versions_behind)
        own = catalog_of(root)
        land_some(root, range(2))

        def others(root: Path = root, versions: int = versions_behind) -> None:
            assert run_alone(root) is None
            for version in range(versions):
                land_some(root, [2 + version])
                assert run_alone(root) == 2 + version

        with paused_before_commit(monkeypatch, others) as commits:
            assert run_alone(root) == 1
        assert commits == ["done"] * (1 + versions_behind) + ["refused"]
        check(root, own, list(range(1, 2 + versions_behind)))


def test_two_copies_of_a_state_do_not_take_each_other_s_version_for_their_own(
    tmp_path: Path, catalog: SqlCatalog
) -> None:
    def make(folder: Path) -> DedupJob:
        return DedupJob(tmp_path / "source", folder, NAME, sink_options=properties_of(tmp_path), settle_ms=0)

    check_copies_of_a_state(tmp_path, IcebergSink, make, state_of)


def test_retries_of_the_library_would_double_rows(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why there are none."""
    monkeypatch.setattr("fencepost.state.iceberg_sink.NO_RETRIES", {"commit.retry.min-wait-ms": "1"})
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    land_some(tmp_path, [1])
    with paused_before_commit(monkeypatch, lambda: run_alone(tmp_path)):
        run_alone(tmp_path)
    assert versions_of(catalog.load_table("db.events")) == [1, 2, 2]


def test_a_zombie_that_wakes_when_the_version_is_abandoned(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for versions_behind in (0, 1):
        root = tmp_path / str(versions_behind)
        own = catalog_of(root)
        land_some(root, range(2))

        def others(root: Path = root, versions: int = versions_behind) -> None:
            state_of(root).abandon(1)
            if versions:
                assert run_alone(root) == 2

        with (
            paused_before_commit(monkeypatch, others) as commits,
            pytest.raises(fp.StateConflictError, match="abandoned"),
        ):
            run_alone(root)
        assert commits == ["done"] * (1 + versions_behind) + ["refused"]
        if not versions_behind:
            assert run_alone(root) == 2
        check(root, own, [1, 2])
        assert state_of(root).status(1) == "abandoned"


def test_files_that_an_abandon_removes_while_they_are_added(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library reads their footers."""
    land_some(tmp_path, range(2))
    real = Transaction.add_files

    def add_files(self: Transaction, *arguments: Any, **options: Any) -> None:
        state_of(tmp_path).abandon(1)
        real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "add_files", add_files)
        with pytest.raises(fp.StateConflictError, match="abandoned"):
            run_alone(tmp_path)
    assert run_alone(tmp_path) == 2
    check(tmp_path, catalog, [1, 2])


def test_a_commit_whose_answer_is_lost(tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is read again, and shows whether the commit took place."""
    land_some(tmp_path, [0])
    real = SqlCatalog.commit_table

    def commit(self: SqlCatalog, *arguments: Any) -> Any:
        real(self, *arguments)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", commit)
        assert run_alone(tmp_path) == 1
    check(tmp_path, catalog, [1])


def test_an_abandon_that_comes_too_late_removes_no_rows(tmp_path: Path, catalog: SqlCatalog) -> None:
    check_a_late_abandon(tmp_path, IcebergSink, run_alone, state_of, tmp_path / "warehouse/db/events/_fencepost")
    check(tmp_path, catalog, [1, 2, 3])


def test_a_version_that_the_table_refuses(tmp_path: Path, catalog: SqlCatalog) -> None:
    """A column was changed after the decision: nothing is lost, and the version can be abandoned."""
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    land_some(tmp_path, [1])
    decided(tmp_path)
    with catalog.load_table("db.events").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("origin")
    with catalog.load_table("db.events").update_schema() as update:
        from pyiceberg.types import LongType

        update.add_column("origin", LongType())
    for _ in range(2):
        with pytest.raises(fp.SinkError, match="refuses rows that were"):
            run_alone(tmp_path)
    state_of(tmp_path).abandon(2)
    assert versions_of(catalog.load_table("db.events")) == [1, 2]
    with pytest.raises(fp.BatchError, match="column 'origin': string; the sink has int64"):
        run_alone(tmp_path)


# What others do to the table


def test_a_table_that_was_taken_back(tmp_path: Path, catalog: SqlCatalog) -> None:
    for seed in range(3):
        land_some(tmp_path, [seed])
        run_alone(tmp_path)
    table = catalog.load_table("db.events")
    second = table.snapshots()[1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    for name in ("3", "2"):
        land_some(tmp_path, [int(name)])
        with pytest.raises(fp.SinkChangedError, match=r"does not follow from .*, which version 3 wrote"):
            run_alone(tmp_path)
        append_by_others(catalog)
    with pytest.raises(fp.SinkError, match="still in the sink"):
        state_of(tmp_path).rollback(1)
    state_of(tmp_path).rollback(2)
    catalog.load_table("db.events").delete("origin like '99:%'")
    assert run_alone(tmp_path) == 5
    polars.testing.assert_frame_equal(rows_of(catalog), expected_of(tmp_path))


@pytest.mark.parametrize("is_abandoned", [False, True])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_table_that_is_taken_back_before_a_decided_version_is_written(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, is_abandoned: bool, is_recorded: bool
) -> None:
    """The version's snapshot follows from one that lacks the rows of the version before it."""
    for seed in range(2):
        land_some(tmp_path, [seed])
        run_alone(tmp_path)
    land_some(tmp_path, [2])
    with monkeypatch.context() as patch:
        if not is_recorded:  # by an earlier version of this package
            real = IcebergSink.current_version
            known = ("table", "snapshot")
            patch.setattr(IcebergSink, "current_version", lambda *it: {name: real(*it)[name] for name in known})
        with dead_before(IcebergSink, "_commit"):
            run_alone(tmp_path)
    table = catalog.load_table("db.events")
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    if is_abandoned:
        state_of(tmp_path).abandon(3)
    about = "version 2 wrote" if is_abandoned else "version 3 found"
    for _ in range(2):
        with pytest.raises(fp.SinkChangedError, match=f"does not follow from .*{about}"):
            run_alone(tmp_path)
        append_by_others(catalog)
    if is_abandoned:
        state_of(tmp_path).rollback(1)
        catalog.load_table("db.events").delete("origin like '99:%'")
        assert run_alone(tmp_path) == 5
        polars.testing.assert_frame_equal(rows_of(catalog), expected_of(tmp_path))


def test_a_snapshot_that_was_expired(tmp_path: Path, catalog: SqlCatalog) -> None:
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    append_by_others(catalog)
    table = catalog.load_table("db.events")
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    land_some(tmp_path, [1])
    assert run_alone(tmp_path) == 2
    assert versions_of(catalog.load_table("db.events")) == [2]
    assert [sink_of(tmp_path).shown(state_of(tmp_path).version(it)) for it in (1, 2)] == [1, 1]
    append_by_others(catalog)
    table = catalog.load_table("db.events")
    for snapshot in table.snapshots()[:-1]:  # also the one that version 2 found before it was decided
        catalog.load_table("db.events").maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    land_some(tmp_path, [2])
    assert run_alone(tmp_path) == 3


def test_another_table_under_the_name(tmp_path: Path, catalog: SqlCatalog) -> None:
    land_some(tmp_path, [0])
    run_alone(tmp_path)
    catalog.drop_table("db.events")
    with pytest.raises(fp.SinkChangedError, match="no longer exists"):
        run_alone(tmp_path)
    catalog.create_table("db.events", make_rows(0).schema.set(1, pa.field("epoch", pa.int32())))
    with pytest.raises(fp.SinkChangedError, match="the table was recreated"):
        run_alone(tmp_path)
    with pytest.raises(fp.SinkError, match="belongs to a state"):
        DedupJob(tmp_path / "source", tmp_path / "other", NAME, sink_options=properties_of(tmp_path)).run()


# Who reads it


def test_a_dataset_has_the_rows_of_the_current_snapshot(tmp_path: Path, catalog: SqlCatalog) -> None:
    """Not those of a version that was decided and is not there, nor any that others have deleted."""
    land_some(tmp_path, range(2))
    make_job(tmp_path).run()
    before = expected_of(tmp_path)
    polars.testing.assert_frame_equal(dataset_rows(tmp_path), before)
    land_some(tmp_path, range(2, 4))
    with dead_before(IcebergSink, "apply"):
        make_job(tmp_path).run()
    assert len(list((tmp_path / "warehouse/db/events/_fencepost/_prepare").rglob("*.parquet"))) > 0
    polars.testing.assert_frame_equal(dataset_rows(tmp_path), before)
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(dataset_rows(tmp_path), expected_of(tmp_path))
    append_by_others(catalog)
    assert dataset_rows(tmp_path)["origin"].to_list().count("99:0") == 1
    catalog.load_table("db.events").delete("origin != '99:0'")
    assert dataset_rows(tmp_path)["origin"].to_list() == ["99:0"]
    assert applied_files(NAME, properties_of(tmp_path)) == [str(it) for it in paths_of(catalog)]


def dataset_rows(root: Path) -> pl.DataFrame:
    rows = dataset(NAME, properties_of(root)).to_table(columns=SCHEMA.names).cast(SCHEMA)
    return pl.DataFrame(rows).sort(SCHEMA.names)


def test_a_dataset_of_other_columns(tmp_path: Path, catalog: SqlCatalog) -> None:
    rows = pa.table({"pid": [1, 2], "epoch": pa.array([0, 0], pa.int16()), "partition": [0, 0], "seq": [1, 2]})
    land(tmp_path / "source", "0.parquet", rows.append_column("n", pa.array([1, 2], pa.int32())))
    make_job(tmp_path).run()
    wide = rows.set_column(0, "pid", pa.array([3, 4])).append_column("n", pa.array([2**40, 4]))
    land(tmp_path / "source", "1.parquet", wide.append_column("note", pa.array(["a", "b"])))
    make_job(tmp_path, schema="merge").run()
    found = dataset(NAME, properties_of(tmp_path))
    assert found.schema.names == ["pid", "epoch", "partition", "seq", "n", "note"]
    assert found.to_table(columns=["n", "note"]).sort_by("n").to_pylist() == [
        {"n": 1, "note": None}, {"n": 2, "note": None}, {"n": 4, "note": "b"}, {"n": 2**40, "note": "a"}
    ]  # fmt: skip
    assert pl.scan_pyarrow_dataset(found).filter(pl.col("note") == "a").collect()["n"].to_list() == [2**40]


def test_datasets_of_no_table_of_an_empty_one_and_of_deleted_rows(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for read in (dataset, applied_files):
        with pytest.raises(fp.SinkError, match="no such table"):
            read(NAME, properties_of(tmp_path))
    catalog.create_table("db.events", make_rows(0).schema.set(1, pa.field("epoch", pa.int32())))
    assert dataset(NAME, properties_of(tmp_path)).to_table().num_rows == 0
    assert dataset(NAME, properties_of(tmp_path)).schema.names == SCHEMA.names
    append_by_others(catalog)
    pretend_delete_files(monkeypatch)
    for read in (dataset, applied_files):
        with pytest.raises(fp.SourceError, match="has delete files"):
            read(NAME, properties_of(tmp_path))


# On object stores, by other engines, on the command line


def test_a_warehouse_on_s3(tmp_path: Path, endpoint: str) -> None:
    """Tasks in processes of their own; a driver dies after its commit; no credential is left anywhere."""
    properties = on_s3(tmp_path, endpoint)
    catalog = SqlCatalog("test", **properties)
    catalog.create_namespace("db")
    land_some(tmp_path, range(2))
    make_job(tmp_path, sink_options=properties, engine=ProcessEngine()).run()
    land_some(tmp_path, range(2, 4))
    with dead_before(RunPrefixes, "apply"):
        make_job(tmp_path, sink_options=properties).run()
    assert make_job(tmp_path, sink_options=properties).run().version is None
    polars.testing.assert_frame_equal(rows_of(catalog), expected_of(tmp_path))
    assert dataset(NAME, properties).to_table().num_rows == audit(NAME, source_options=properties).rows
    assert dataset(NAME, properties).to_table().num_rows == len(expected_of(tmp_path))
    table = catalog.load_table("db.events")
    assert versions_of(table) == [1, 2]
    assert all(it.file_path.startswith(f"{table.location()}/data/part-00000") for it in files_of(table))
    again = DedupJob(NAME, tmp_path / "again", tmp_path / "near", source_options=properties, engine=ProcessEngine())
    assert again.run().kept == len(rows_of(catalog))
    left = [*contents_of(tmp_path / "state", tmp_path / "again", tmp_path / "near"), *objects_of(table)]
    assert len(left) > 20
    assert files_with(SECRETS, left) == []


@pytest.mark.matrix
@pytest.mark.parametrize("step", ["write", "decide"])
def test_nothing_that_a_killed_run_leaves_has_a_credential(tmp_path: Path, endpoint: str, step: str) -> None:
    properties = on_s3(tmp_path, endpoint)
    catalog = SqlCatalog("test", **properties)
    catalog.create_namespace("db")
    raw = catalog.create_table("db.raw", SCHEMA.set(1, pa.field("epoch", pa.int32())))
    for seed in (1, 2):
        raw.append(make_rows(seed))
    places = {"source": "iceberg://test/db.raw", "state": str(tmp_path / "state"), "sink": NAME}
    options = {"source_options": properties, "sink_options": properties}
    start_killed({**places, **options, "engine": "processes", "step": step})
    left = dict([*contents_of(tmp_path), *objects_of(catalog.load_table("db.events"))])
    assert any(".plan" in name for name in left)
    assert files_with(SECRETS, left.items()) == []


def on_s3(root: Path, endpoint: str) -> dict[str, Any]:
    return properties_of(root) | {
        "warehouse": f"s3://{BUCKET}/{os.urandom(4).hex()}",
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": SECRETS[0],
        "s3.secret-access-key": SECRETS[1],
    }


def objects_of(table: Table) -> Iterator[tuple[str, bytes]]:
    from fencepost.state.stores import RemoteStore

    sink = IcebergSink(NAME, Disk(), table.io.properties)
    store = RemoteStore(table.location(), sink.named.store_options(table))
    for name, _, _ in store.listing():
        yield name, store.read(name)


def test_the_command_line(
    tmp_path: Path, catalog: SqlCatalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Properties of the catalog by options, and by the library's own configuration."""
    land_some(tmp_path, range(2))
    options = [it for name, value in properties_of(tmp_path).items() for it in ("--sink-option", f"{name}={value}")]
    arguments = ["dedup", str(tmp_path / "source"), str(tmp_path / "state"), NAME, *options, "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1
    check(tmp_path, catalog, [1])
    assert main(["state", "show", str(tmp_path / "state"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"]["layout"] == "iceberg"
    for name, value in properties_of(tmp_path).items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__TEST__{name.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    assert main(["state", "reshard", str(tmp_path / "state"), "4"]) == 0
    assert versions_of(catalog.load_table("db.events")) == [1, 2]


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyiceberg", None)
    for source, sink in ((NAME, tmp_path / "sink"), (tmp_path / "source", NAME)):
        with pytest.raises(fp.FencepostError, match=r"need more packages .*fencepost\[iceberg\]"):
            DedupJob(source, tmp_path / "state", sink)
