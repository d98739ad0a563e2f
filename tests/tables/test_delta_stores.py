"""Delta tables in an object store, as sinks and as sources, next to the same tables in folders."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fencepost import cli
from fencepost import state as states
from fencepost.lake import DedupJob, LocalEngine, audit, dataset
from fencepost.lake.plan import PLANS
from fencepost.state import delta_log, delta_sink, placing, stores
from fencepost.state.delta_sink import DeltaSink, library_options
from fencepost.state.stores import RemoteStore
from support.lake import Crash, dead_before
from support.liar import Liar
from support.object_sinks import COUNTS, REQUESTS, Bucket, killed_at, land_some, rows
from support.quick_retries import be_quick, probe_little  # noqa: F401
from support.s3_server import BUCKET
from support.secret_runs import ProcessEngine


class Tables(Bucket):
    """A source, and a sink that is a table, beneath prefixes; the same in folders. States are in folders."""

    @property
    def state_folder(self) -> Path:
        return self.folder / self.root.rpartition("/")[2]

    def state(self) -> Any:
        return states.open(self.state_folder, sink_options=self.options)

    def job(self, *, sink_endpoint: str = "", **options: Any) -> DedupJob:
        sink = {**self.options, "endpoint": sink_endpoint or self.options["endpoint"]}
        given = {"source_options": self.options, "sink_options": sink, "layout": "delta", "sync": False}
        places = (self.uri("source"), self.state_folder, self.uri("sink"))
        return DedupJob(*places, **{"settle_ms": 0, **given, **options})  # type: ignore[arg-type]

    def near(self, **options: Any) -> DedupJob:
        return super().near(**{"layout": "delta", "sync": False, **options})

    def uri(self, name: str) -> str:
        return f"{self.root}/{name}"

    def table(self, name: str = "sink") -> DeltaTable:
        """As delta-rs reads it, which shares no code with us."""
        return DeltaTable(self.uri(name), storage_options=library_options(self.options))

    def rows(self, name: str = "sink") -> list[dict[str, Any]]:
        return in_order(self.table(name).to_pyarrow_table())

    def append(self, name: str, table: pa.Table, **options: Any) -> None:
        """By delta-rs."""
        write_deltalake(self.uri(name), table, mode="append", storage_options=library_options(self.options), **options)

    def transactions(self) -> list[dict[str, int]]:
        """Of each commit, by what the application's id ends with."""
        commits = delta_log.read_commits(self.store("sink"), 0, self.table().version())
        return [
            {it["appId"][32:]: it["version"] for kind, it in actions or [] if kind == "txn"} for _, actions in commits
        ]

    def check(self, versions: int) -> None:
        """The table has just the rows of the one in the folder, each version once, and nothing is left over."""
        assert self.rows() == in_order(DeltaTable(self.folder / "sink").to_pyarrow_table())
        known = [it[""] for it in self.transactions() if "" in it]
        assert known == sorted(set(known))
        assert known[-1] == versions
        files = {it.removeprefix(self.uri("sink") + "/") for it in self.table().file_uris()}
        listed = [it for it in self.listed() if not it.startswith("_delta_log/")]
        assert {it for it in listed if not it.startswith("_fencepost/")} == files
        assert not [it for it in listed if "_prepare" in it]


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.select(sorted(table.column_names)).to_pylist(), key=str)


@pytest.fixture
def bucket(tmp_path: Path, endpoint: str) -> Tables:
    return Tables(tmp_path, endpoint)


def requests(monkeypatch: pytest.MonkeyPatch, uri: str) -> list[tuple[str, str]]:
    """What is asked of a prefix from now on: (request, name)."""
    asked: list[tuple[str, str]] = []

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: RemoteStore, *arguments: Any, **named: Any) -> Any:
            if self.uri.startswith(uri):
                target = arguments[-1] if name == "copy" else arguments[1] if name == "upload" else [*arguments, ""][0]
                asked.append((name, str(target)))
            return real(self, *arguments, **named)

        return call

    for name in REQUESTS:
        monkeypatch.setattr(RemoteStore, name, wrap(name, getattr(RemoteStore, name)))
    return asked


# As a sink


MORE = pytest.mark.matrix


@pytest.mark.parametrize("plan", [None, pytest.param("aligned", marks=MORE)])
def test_the_table_is_that_of_a_folder(bucket: Tables, plan: Any) -> None:
    land_some(bucket)
    bucket.land("day=a%20b%3Dc/odd.parquet", rows(9000, 20))
    assert bucket.near(plan=plan).run().counts == bucket.job(plan=plan).run().counts
    bucket.check(1)
    bucket.land("day=2/late.parquet", rows(400, 300, pid=2))
    bucket.near(plan=plan, rejects="all").run()
    assert bucket.job(plan=plan, rejects="all", layout=None).run().version == 2, "it is a table already"
    bucket.check(2)
    assert bucket.job().run().version is None
    sides = [it for it in bucket.listed() if it.startswith("_fencepost/run=2/_rejects/")]
    assert len(sides) == 1
    stats = [json.loads(it["stats"]) for kind, it in delta_log.read_commit(bucket.store("sink"), 2) if kind == "add"]
    assert [(it["numRecords"], it["minValues"]["seq"], it["maxValues"]["seq"]) for it in stats] == [(200, 500, 699)]


@pytest.mark.matrix
def test_workers_that_share_no_folder(bucket: Tables) -> None:
    land_some(bucket)
    bucket.near().run()
    assert bucket.job(engine=ProcessEngine(), driver_spans_max=0).run().counts == COUNTS
    bucket.check(1)


def test_a_clean_file_does_not_pass_here(bucket: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.land("a.parquet", rows(0, 2000))
    bucket.near().run()
    asked = requests(monkeypatch, bucket.uri("sink"))
    bucket.job().run()
    assert [name for request, name in asked if request == "upload" and name.endswith(".parquet")] == []
    assert len([name for request, name in asked if request == "copy" and name.endswith(".parquet")]) == 2
    bucket.check(1)


def test_few_requests_where_nothing_is_new(bucket: Tables) -> None:
    land_some(bucket)
    bucket.job().run()
    with Liar(bucket.options["endpoint"], ()) as liar:
        assert bucket.job(sink_endpoint=liar.endpoint, layout=None).run().version is None
        assert liar.answers["truth"] <= 14


def test_rows_of_others_stay_and_compaction_does_no_harm(bucket: Tables) -> None:
    foreign = rows(0, 10, pid=99)
    bucket.append("sink", foreign)
    bucket.land("a.parquet", rows(0, 30))
    bucket.job().run()
    bucket.append("sink", foreign)
    bucket.table().optimize.compact()
    bucket.table().delete("pid = 99")
    bucket.land("b.parquet", rows(20, 30))
    bucket.job().run()
    assert bucket.rows() == in_order(rows(0, 50))


def test_checkpoints_are_written_and_read(bucket: Tables) -> None:
    schema = rows(0, 1).schema
    settings = {"delta.checkpointInterval": "2"}
    options = library_options(bucket.options)
    DeltaTable.create(bucket.uri("sink"), schema, configuration=settings, storage_options=options)
    for number in range(3):
        bucket.land(f"{number}.parquet", rows(number * 20, 30))
        bucket.job().run()
    assert f"_delta_log/{2:020}.checkpoint.parquet" in bucket.listed()
    store = bucket.store("sink")
    store.delete([f"_delta_log/{version:020}.json" for version in range(2)])
    bucket.land("last.parquet", rows(60, 30))
    bucket.job().run()
    assert bucket.rows() == in_order(rows(0, 90))


def test_what_is_refused(bucket: Tables) -> None:
    bucket.append("table", rows(0, 10))
    options = {"source_options": bucket.options, "sink_options": bucket.options}
    for layout in (None, "delta"):
        with pytest.raises(fp.SinkError, match=r"only .*can be both source"):
            DedupJob(bucket.uri("table"), bucket.folder / "s", bucket.uri("table"), layout=layout, **options)
    with pytest.raises(fp.SinkError, match=r"a table \(delta\), "):
        dataset(bucket.uri("table"), bucket.options)
    with pytest.raises(ValueError, match=r"files_max: .*up to a position"):
        DedupJob(bucket.uri("table"), bucket.folder / "s", bucket.folder / "o", files_max=1, **options).run()


# Interrupted


PUTS = ("put", "copy", "upload")
"""Requests that change the sink, but for those that remove what was prepared."""


def kill_at_each(bucket: Tables, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, ...], version: int) -> int:
    """Let the driver die before and after each of these requests to the sink while it makes a version: whichever it
    was, the next run ends as if nothing had happened. Gives how often it died."""
    for number in range(version):
        bucket.land(f"{number}.parquet", rows(20 * number, 30))
        bucket.near().run()
    for step in itertools.count(2):
        bucket.root = f"s3://{BUCKET}/{os.urandom(8).hex()}"
        for number in range(version):
            if number:
                bucket.job().run()
            bucket.land(f"{number}.parquet", rows(20 * number, 30))
        with monkeypatch.context() as patch:
            patch.setattr(placing, "COPIES_AT_ONCE", 1)
            patch.setattr("support.object_sinks.REQUESTS", wanted)
            killed_at(patch, step // 2, ("before", "after")[step % 2], bucket.uri("sink"))
            try:
                bucket.job(engine=LocalEngine(1)).run()
                return step - 2
            except Crash:
                pass
        bucket.job().run()
        bucket.check(version)
    raise AssertionError


@pytest.mark.matrix
@pytest.mark.parametrize("version", [1, 2])
def test_killed_at_every_put(bucket: Tables, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    assert kill_at_each(bucket, monkeypatch, PUTS, version) > 10


@pytest.mark.matrix
def test_killed_at_every_other_request(bucket: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kill_at_each(bucket, monkeypatch, tuple({*REQUESTS} - {*PUTS}), 2) > 20


def decided(bucket: Tables, dies_at: str) -> Any:
    """The decision of a run that dies at a call of the sink."""
    with dead_before(DeltaSink, dies_at):
        bucket.job().run()
    return bucket.state().version(bucket.state().decided())


@pytest.mark.parametrize("dies_at", ["_put", "_show", *(pytest.param(it, marks=MORE) for it in ("apply", "_copy"))])
def test_killed_around_the_commit(bucket: Tables, dies_at: str) -> None:
    """What is decided needs its source no more."""
    bucket.land("a.parquet", rows(0, 30))
    bucket.near().run()
    decided(bucket, dies_at)
    bucket.store("source").put("b.parquet", bucket.store("source").read("a.parquet"))
    bucket.store("source").delete(["a.parquet"])
    assert bucket.job().run().recovered == (1,)
    bucket.check(2)


@pytest.mark.parametrize("dies_at", ["_put", pytest.param("_show", marks=MORE)])
def test_abandoned(bucket: Tables, dies_at: str) -> None:
    """A version that is not committed is given up by a commit without rows, and its files go."""
    bucket.land("a.parquet", rows(0, 30))
    decision = decided(bucket, dies_at)
    if dies_at == "_show":
        with pytest.raises(fp.StateConflictError, match="is applied"):
            bucket.state().abandon(1)
    else:
        bucket.state().abandon(1)
        assert bucket.job().sink.apply(decision) == "abandoned"
        assert bucket.transactions()[-1] == {"": 1, "-abandoned": 1}
        assert bucket.rows() == []
        assert bucket.job().run().version == 2
    bucket.near().run()
    bucket.check(1 if dies_at == "_show" else 2)


@MORE
def test_a_driver_that_wakes_up_late(bucket: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is paused before its commit, others finish the version and the next one; then the first one wakes."""
    bucket.land("a.parquet", rows(0, 30))
    bucket.near().run()
    real, others = DeltaSink._put, list[Any]()

    def others_first(sink: DeltaSink, *arguments: Any) -> None:
        if not others:
            others.append(1)
            bucket.land("b.parquet", rows(20, 30))
            others.append(bucket.job().run().version)
        real(sink, *arguments)

    monkeypatch.setattr(DeltaSink, "_put", others_first)
    assert bucket.job().run().version == 1  # not an error that asks to restore the table
    assert others == [1, 2]
    bucket.near().run()
    bucket.check(2)


def test_three_drivers_at_once(bucket: Tables) -> None:
    failures: list[Exception] = []
    is_over = threading.Event()

    def drive() -> None:
        while True:
            try:
                if bucket.job().run().version is None and is_over.is_set():
                    return
            except fp.StateConflictError:
                continue
            except Exception as error:
                failures.append(error)
                return

    bucket.land("0.parquet", rows(0, 30))
    bucket.near().run()
    drivers = [threading.Thread(target=drive) for _ in range(3)]
    for driver in drivers:
        driver.start()
    for number in range(1, 3):
        bucket.land(f"{number}.parquet", rows(20 * number, 30))
        bucket.near().run()
    is_over.set()
    for driver in drivers:
        driver.join()
    assert failures == []
    assert bucket.rows() == in_order(DeltaTable(bucket.folder / "sink").to_pyarrow_table())
    known = [it[""] for it in bucket.transactions() if "" in it]
    assert known == sorted(set(known))


LIES = ("503 after", "409", "late and dropped", "dropped, then late")


@pytest.mark.parametrize("lie", ["dropped after", *(pytest.param(lie, marks=MORE) for lie in LIES)])
def test_commits_with_an_unknown_outcome_take_effect_once(bucket: Tables, lie: str) -> None:
    bucket.land("a.parquet", rows(0, 30))
    bucket.near().run()
    with Liar(bucket.options["endpoint"], (lie,), share=0.7, late_seconds=0.02) as liar:
        bucket.job(sink_endpoint=liar.endpoint).run()
        bucket.land("b.parquet", rows(20, 30))
        bucket.near().run()
        bucket.job(sink_endpoint=liar.endpoint).run()
        assert liar.answers[lie] > 0
    bucket.check(2)


def test_a_commit_that_another_writer_replaces_is_made_again(bucket: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some writers put without asking whether the version is there (Spark on s3a): the transaction is read again
    before the version is done, and written once more."""
    bucket.land("a.parquet", rows(0, 30))
    bucket.near().run()
    real, replaced = delta_sink.put_commit, list[int]()

    def put(store: RemoteStore, version: int, actions: Any) -> bool:
        done = real(store, version, actions)
        if version and not replaced:
            replaced.append(version)
            other = json.dumps({"commitInfo": {"operation": "WRITE"}}).encode()
            store._client.put(store._store, f"_delta_log/{version:020}.json", other)
        return done

    monkeypatch.setattr(delta_sink, "put_commit", put)
    bucket.job().run()
    assert bucket.transactions() == [{"": 0}, {}, {"": 1}]
    bucket.check(1)
    store = bucket.store("sink")
    store._client.put(store._store, f"_delta_log/{2:020}.json", store.read(f"_delta_log/{1:020}.json"))
    with pytest.raises(fp.SinkChangedError, match=r"newest transaction .*none"):
        bucket.job().run()


# Beside other writers


@pytest.mark.parametrize("place", ["store", "folder"])
def test_a_commit_that_is_too_late_is_cheap(bucket: Tables, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """While another writer commits again and again, the loop does nothing but read that commit and put the next one:
    no file is looked at."""
    job = bucket.job if place == "store" else bucket.near
    table = bucket.store("sink") if place == "store" else stores.LocalStore(bucket.folder / "sink")
    for number in range(4):
        bucket.land(f"{number}.parquet", rows(20 * number, 30))
    job().run()
    bucket.land("last.parquet", rows(80, 30))
    real, versions, asked = delta_sink.put_commit, list[int](), list[str]()

    def put(store: Any, version: int, actions: Any) -> bool:
        versions.append(version)
        if len(versions) < 20:
            assert real(table, version, [{"commitInfo": {"operation": "WRITE"}}])
            monkeypatch.setattr(type(table), "read", read)
        else:
            monkeypatch.setattr(type(table), "read", plain)
        return real(store, version, actions)

    plain = type(table).read

    def read(self: Any, name: str, *arguments: Any) -> bytes:
        asked.append(name)
        return plain(self, name, *arguments)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a file is looked at again")

    real_place = DeltaSink._place

    def place_once(*arguments: Any) -> None:
        real_place(*arguments)
        monkeypatch.setattr(DeltaSink, "_place", refuse)

    monkeypatch.setattr(DeltaSink, "_place", place_once)
    monkeypatch.setattr(delta_sink, "put_commit", put)
    job().run()
    assert versions == [*range(2, 22)]
    commits = [name for name in asked if name.startswith("_delta_log/")]
    assert len(commits) <= 3 * 19  # the put reads what is there, then the loop does, and that nothing follows
    read_now = bucket.table() if place == "store" else DeltaTable(bucket.folder / "sink")
    assert in_order(read_now.to_pyarrow_table()) == in_order(rows(0, 110))


# As a source


def from_table(bucket: Tables, **options: Any) -> DedupJob:
    given = {"source_options": bucket.options, "sink_options": bucket.options, "layout": "delta", "sync": False}
    places = (bucket.uri("table"), bucket.state_folder, bucket.uri("sink"))
    return DedupJob(*places, **{"settle_ms": 0, **given, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", [None, *(pytest.param(plan, marks=MORE) for plan in PLANS)])
def test_each_run_reads_what_was_appended_since(bucket: Tables, plan: Any) -> None:
    days = pa.array(["1", "a b"] * 15)
    bucket.append("table", rows(0, 30, day=days), partition_by=["day"])
    report = from_table(bucket, plan=plan).run()
    assert report.source_position is not None
    assert len(report.source_position.pop("commit")) == 64
    assert report.source_position == {"table": bucket.table("table").metadata().id, "version": 0}
    assert from_table(bucket, plan=plan).run().version is None
    bucket.append("table", rows(20, 30, day=days), partition_by=["day"])
    bucket.table("table").optimize.compact()
    bucket.append("table", rows(40, 30, day=days), partition_by=["day"])
    assert from_table(bucket, plan=plan).run().counts == {"ACCEPTED": 40, "DUPLICATE": 20}
    found = bucket.table().to_pyarrow_table()
    assert in_order(found.drop_columns(["day"])) == in_order(rows(0, 70))
    assert set(found["day"].to_pylist()) == {"1", "a b"}


def test_a_bad_file_is_deferred_then_read(bucket: Tables) -> None:
    bucket.append("table", rows(0, 30))
    from_table(bucket).run()
    bucket.append("table", rows(20, 30))
    store = bucket.store("table")
    (name,) = added(bucket, 1)
    whole = store.read(name)
    store._client.put(store._store, name, b"PAR1" + bytes(len(whole) - 8) + b"PAR1")
    report = from_table(bucket, settle_ms=10**9).run()
    assert (report.files, [Path(it).name for it in report.deferred]) == (0, [name])
    store._client.put(store._store, name, whole)
    assert from_table(bucket).run().counts == {"ACCEPTED": 20, "DUPLICATE": 10}
    assert bucket.rows() == in_order(rows(0, 50))


def added(bucket: Tables, version: int) -> list[str]:
    actions = delta_log.read_commit(bucket.store("table"), version) or []
    return [it["path"] for kind, it in actions if kind == "add"]


def test_changes_that_stop_a_run(bucket: Tables) -> None:
    bucket.append("table", rows(0, 30))
    from_table(bucket).run()
    bucket.append("table", rows(30, 30))
    name = added(bucket, 1)[0]
    data = bucket.store("table").read(name)
    bucket.store("table").delete([name])
    with pytest.raises(fp.SourceError, match="was deleted before"):
        from_table(bucket).run()
    bucket.store("table").put(name, data)
    bucket.table("table").update(updates={"seq": "seq + 100"}, predicate="seq = 3")
    with pytest.raises(fp.SourceError, match="adds and removes rows"):
        from_table(bucket).run()
    bucket.store("table").clear("_delta_log")
    bucket.append("table", rows(0, 30))
    with pytest.raises(fp.SourceError, match="not the table that"):
        from_table(bucket).run()


def test_rows_removed_by_a_vector_are_not_read(bucket: Tables) -> None:
    """A vector file of a table that was deduplicated in a folder."""
    folder = bucket.folder / "near-table"
    settings = {"delta.enableDeletionVectors": "true"}
    write_deltalake(folder, rows(0, 30), configuration=settings)
    write_deltalake(folder, pa.concat_tables([rows(20, 30), rows(80, 2)]), mode="append")
    DedupJob(folder, bucket.folder / "own", folder).run()
    assert [*folder.glob("deletion_vector*.bin")]
    store = bucket.store("table")
    for path in folder.rglob("*"):
        if path.is_file() and "_fencepost" not in path.parts:
            store.put(str(path.relative_to(folder)), path.read_bytes())
    assert from_table(bucket).run().counts == {"ACCEPTED": 52}
    assert bucket.rows() == in_order(pa.concat_tables([rows(0, 50), rows(80, 2)]))


def test_an_audit_and_the_command_line(bucket: Tables, capsys: pytest.CaptureFixture[str]) -> None:
    bucket.append("table", rows(0, 30))
    bucket.append("table", rows(20, 30))
    bucket.store("table").put("stray.parquet", b"no file of the table")
    assert audit(bucket.uri("table"), source_options=bucket.options).counts == {"ACCEPTED": 50, "DUPLICATE": 10}
    options = [
        word
        for name, value in bucket.options.items()
        for kind in ("source", "state", "sink")
        for word in (f"--{kind}-option", f"{name}={str(value).lower() if value is True else value}")
    ]
    places = [bucket.uri(name) for name in ("table", "state", "sink")]
    assert cli.main(["dedup", *places, "--layout", "delta", *options]) == 0
    assert bucket.rows() == in_order(rows(0, 50))
    capsys.readouterr()
