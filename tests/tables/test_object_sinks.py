"""Jobs whose output goes to an object store, next to the same output in a folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost import state as states
from fencepost.lake import DedupJob, LocalEngine, applied_files
from fencepost.lake.plan import PLANS
from fencepost.state import placing, stores
from fencepost.state.prefix import RunPrefixes
from fencepost.state.stores import RemoteStore
from support import daily
from support.lake import Crash, dead_before
from support.liar import FAULTS_OF_READS, Liar
from support.object_sinks import COUNTS, Bucket, killed_at, land_some, rows
from support.quick_retries import be_quick, probe_little  # noqa: F401
from support.s3_server import BUCKET, OneAtATime, serve_by_moto
from support.secret_runs import ProcessEngine
from support.threads import in_threads


@pytest.fixture
def bucket(tmp_path: Path, endpoint: str) -> Bucket:
    return Bucket(tmp_path, endpoint)


class Apart(LocalEngine):
    """Tasks of this process that hand on by the store, as those of others do, and whose unknown errors come as the
    engine's own."""

    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def run(self, *arguments: Any) -> list[Any]:
        try:
            return super().run(*arguments)
        except OSError as error:
            raise RuntimeError("a task has failed") from error


@pytest.mark.parametrize("plan", [pytest.param(None, marks=pytest.mark.matrix), *PLANS])
def test_the_output_is_that_of_a_folder(bucket: Bucket, plan: Any) -> None:
    land_some(bucket)
    for job in (bucket.near(plan=plan), bucket.job(plan=plan)):
        assert job.run().counts == COUNTS
        assert job.run().version is None
    bucket.check(1)
    bucket.land("day=2/late.parquet", rows(400, 300, pid=2))
    bucket.land("day=3/zombie.parquet", rows(0, 5, pid=2).set_column(1, "epoch", pa.array([-1] * 5)))
    for job in (bucket.near(plan=plan, rejects="all"), bucket.job(plan=plan, rejects="all")):
        with pytest.raises(fp.BatchError, match="epoch"):
            job.run()
    bucket.land("day=3/zombie.parquet", rows(900, 5, pid=2).set_column(1, "epoch", pa.array([3] * 5)))
    reports = [job.run() for job in (bucket.near(plan=plan, rejects="all"), bucket.job(plan=plan, rejects="all"))]
    assert reports[0].counts == reports[1].counts == {"ACCEPTED": 205, "DUPLICATE": 100}
    assert reports[0].outputs == reports[1].outputs
    bucket.check(2)


@pytest.mark.parametrize("plan", ["interval", "aligned"])
def test_workers_that_share_no_folder(bucket: Bucket, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks in processes of their own, each with a folder of its own that is gone after it."""
    monkeypatch.setattr("fencepost.lake.plan.TASK_BYTES", 1)
    monkeypatch.setattr("fencepost.lake.plan.FILE_BYTES", 1)
    for name, count in (("COPIES_OF_A_TASK", 1), ("REMOVED_OF_A_TASK", 6)):  # each task is a process
        monkeypatch.setattr(placing, name, count)
    changed: list[str] = []
    copy, delete = RemoteStore.copy, RemoteStore.delete

    def copied(store: RemoteStore, *arguments: Any) -> bool:
        changed.append(arguments[-1])
        return copy(store, *arguments)

    def deleted(store: RemoteStore, names: Any) -> None:
        wanted = list(names)
        changed.extend(wanted)
        delete(store, wanted)

    monkeypatch.setattr(RemoteStore, "copy", copied)
    monkeypatch.setattr(RemoteStore, "delete", deleted)
    land_some(bucket)
    options: dict[str, Any] = {"compare_content": True, "keep_checksums": "all"} if plan == "interval" else {}
    far = {**options, "plan": plan, "engine": ProcessEngine(), "driver_spans_max": 0}
    assert bucket.near(**options).run().counts == bucket.job(**far).run().counts == COUNTS
    bucket.check(1)
    bucket.land("day=2/late.parquet", rows(400, 300, pid=2))
    bucket.land("day=2/later.parquet", rows(0, 300, pid=3))
    bucket.near(**options).run()
    with dead_before(RunPrefixes, "place"):
        bucket.job(**far).run()
    assert bucket.job(**far).run().recovered == (2,)
    bucket.check(2)
    assert changed, "it probes the store"
    assert not [name for name in changed if "/part-" in name], "tasks copy and remove files, in recovery as well"


@pytest.mark.parametrize(
    "layout",
    [{}, {"partition_by": "pid", "sort_by": ["partition", "payload"]}],
    ids=["merged", "in folders"],
)
def test_laid_out_outputs_are_the_same_on_both_engines(bucket: Bucket, layout: dict[str, Any]) -> None:
    land_some(bucket)
    options = {"target_file_bytes": 1 << 20, "rejects": "all", **layout}
    reports = [job.run() for job in (bucket.near(**options), bucket.job(**options, engine=ProcessEngine()))]
    assert reports[0].counts == reports[1].counts == COUNTS
    assert reports[0].outputs == reports[1].outputs
    assert len(reports[0].outputs) == 2
    bucket.check(1)


def test_a_source_on_this_disk(bucket: Bucket) -> None:
    land_some(bucket)
    job = DedupJob(
        bucket.folder / "source",
        bucket.folder / "own",
        f"{bucket.root}/sink",
        settle_ms=0,
        sink_options=bucket.options,
    )
    assert job.run().counts == bucket.near().run().counts
    bucket.check(1)


def test_a_clean_file_does_not_pass_here(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store copies it twice: to where it is prepared, and to its place."""
    bucket.land("a.parquet", rows(0, 2000))
    bucket.land("b.parquet", rows(0, 2000, pid=2))
    uploads: list[str] = []
    real = RemoteStore.upload
    monkeypatch.setattr(
        RemoteStore, "upload", lambda self, path, name: (uploads.append(name), real(self, path, name))[1]
    )
    bucket.near().run()
    bucket.job().run()
    assert [name for name in uploads if name.endswith(".parquet")] == []
    bucket.check(1)


def test_a_file_that_the_store_does_not_copy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "COPY_BYTES_MAX", 1000)
    monkeypatch.setattr(stores, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(placing, "STREAMED_BYTES", 1 << 20)
    payload = pa.array([os.urandom(700) for _ in range(10_000)])
    bucket.land("a.parquet", rows(0, 10_000).set_column(4, "payload", payload))
    bucket.land("b.parquet", rows(0, 2, pid=2).set_column(4, "payload", payload[:2]))
    assert (bucket.folder / "source" / "a.parquet").stat().st_size > 6 << 20
    bucket.near().run()
    bucket.job().run()
    bucket.check(1)


# Interrupted


@pytest.mark.parametrize("first", daily.first(range(3)))
def test_killed_at_every_request(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Whatever the driver's last request to the sink was, the next run ends as if nothing had happened: every third
    moment from the first, which takes in turn those before and after the store has answered. The state is on disk:
    most requests of a run would be about it."""
    bucket.land("a.parquet", rows(0, 30))
    bucket.land("b.parquet", rows(20, 30))
    bucket.near().run()
    source, options = f"{bucket.root}/source", {"source_options": bucket.options, "sink_options": bucket.options}
    kills = 0
    for step in itertools.count(2 + first, 3):
        number, moment = step // 2, ("before", "after")[step % 2]
        bucket.root = f"s3://{BUCKET}/{os.urandom(8).hex()}"
        places = (source, bucket.folder / "states" / str(step), f"{bucket.root}/sink")
        with monkeypatch.context() as patch:
            patch.setattr(placing, "COPIES_AT_ONCE", 1)
            killed_at(patch, number, moment, f"{bucket.root}/sink")
            try:
                DedupJob(*places, settle_ms=0, engine=LocalEngine(1), **options).run()
                break
            except Crash:
                kills += 1
        DedupJob(*places, settle_ms=0, **options).run()
        bucket.check(1)
    assert kills > 20


@pytest.mark.parametrize(
    ("prepared", "has_plan"),
    daily.each_value(("there", "gone", "gone, files too"), (False, True)),
)
def test_a_paused_driver_finds_its_version_finished(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, prepared: str, has_plan: bool
) -> None:
    """A driver that is paused before any of its copies continues when others have finished the version, though the plan
    of its tasks is gone as well."""
    land_some(bucket)
    bucket.near().run()
    real, paused = placing.copy_object, threading.Event()

    def others_first(*arguments: Any) -> None:
        if not paused.is_set():
            paused.set()
            with monkeypatch.context() as patch:
                if prepared == "there":
                    patch.setattr(RunPrefixes, "clear", lambda *_: None)
                assert bucket.job().run().version is None
            if prepared != "there":
                bucket.check(1)
            if prepared == "gone, files too":
                bucket.store("sink").delete([name for name in bucket.listed() if name.startswith("run=1/day")])
        return real(*arguments)

    monkeypatch.setattr(placing, "COPIES_AT_ONCE", 1)
    monkeypatch.setattr(placing, "copy_object", others_first)
    for name in ("COPIES_OF_A_TASK", "REMOVED_OF_A_TASK"):
        monkeypatch.setattr(placing, name, 1 if has_plan else 1_000)
    assert bucket.job(engine=Apart(1) if has_plan else LocalEngine(1)).run().version == 1
    assert paused.is_set()
    if prepared == "gone, files too":
        assert sorted(bucket.listed()) == ["_fencepost.json", "_versions/1.json", "run=1/_SUCCESS"]
        assert applied_files(f"{bucket.root}/sink", bucket.options) == []
    else:
        bucket.check(1)


def decided(bucket: Bucket, dies_at: str) -> Any:
    """The decision of a run that dies at a call of the sink."""
    land_some(bucket)
    bucket.near().run()
    with dead_before(RunPrefixes, dies_at):
        bucket.job().run()
    return bucket.state().version(1)


@pytest.mark.parametrize("dies_at", ["apply", "_show", "place"])
def test_fenced(bucket: Bucket, dies_at: str) -> None:
    """The first claim of a version decides its outcome, also for a late driver."""
    decision = decided(bucket, dies_at)
    status = bucket.sink().fence(decision)
    assert status == ("abandoned" if dies_at == "apply" else "applied")
    assert bucket.sink().apply(decision) == bucket.sink().fence(decision) == status
    if status == "applied":
        bucket.job().run()
        bucket.check(1)
    else:
        assert sorted(bucket.listed()) == ["_fencepost.json", "_versions/1.json"]
        assert bucket.job().run().version == 2
        assert bucket.sink().applied_files()[0].startswith("run=2/")


def test_drivers_and_fences_at_once(bucket: Bucket) -> None:
    decision = decided(bucket, "apply")
    wanted = [RunPrefixes.apply, RunPrefixes.apply, RunPrefixes.fence, RunPrefixes.fence]
    found = in_threads([lambda act=act: act(bucket.sink(), decision) for act in wanted])  # type: ignore[misc]
    assert len(set(found)) == 1


def test_files_that_are_not_those_that_were_decided(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the right size that is another one is replaced, one that is right is left."""
    decision = decided(bucket, "_show")
    sink, store = bucket.sink(), bucket.store("sink")
    first, second = decision.outputs.name[:2]
    folder = decision.prepared.rpartition("/")[0]
    written = json.loads(store.read(decision.prepared))
    wrong = bytearray(store.read(f"{folder}/{written[first]}"))
    wrong[-12] ^= 1
    store._client.put(store._store, f"run=1/{first}", bytes(wrong))
    store.copy(store, f"{folder}/{written[second]}", 1, f"run=1/{second}")
    copied: list[str] = []
    real = placing.copy_object
    monkeypatch.setattr(placing, "copy_object", lambda *it: (copied.append(it[-1]), real(*it))[1])
    assert sink.apply(decision) == "applied"
    assert f"run=1/{first}" in copied
    assert f"run=1/{second}" not in copied
    bucket.job().run()
    bucket.check(1)


@pytest.mark.parametrize("what", ["a file", "the list"])
def test_a_version_whose_prepared_files_are_gone_stops_the_run(bucket: Bucket, what: str) -> None:
    decision = decided(bucket, "apply")
    store = bucket.store("sink")
    folder = decision.prepared.rpartition("/")[0]
    store.delete([next(it for it in store.list(folder) if "part-" in it)] if what == "a file" else [decision.prepared])
    for _ in range(2):
        with pytest.raises(fp.SinkChangedError, match=r"run=1: .*cannot be restored from _prepare/1-"):
            bucket.job().run()
    assert not [name for name in bucket.listed() if name.endswith("_SUCCESS")]


# Lies


@pytest.mark.parametrize(
    ("verb", "fault"),
    daily.each_value(("PUT", "POST", "HEAD"), ("dropped", "503")),
)
def test_answers_that_do_not_come(bucket: Bucket, fault: str, verb: str) -> None:
    land_some(bucket)
    bucket.near().run()
    with Liar(bucket.options["endpoint"], (fault,), share=0.5, verb=verb) as liar:
        assert bucket.job(sink_endpoint=liar.endpoint).run().counts == COUNTS
        assert liar.answers[fault] > 0
    bucket.check(1)


@pytest.mark.parametrize(
    "lie",
    daily.first(["503 after", "409", "dropped after", "late", "late and dropped", "dropped, then late"], 4),
)
def test_puts_with_an_unknown_outcome_take_effect_once(bucket: Bucket, lie: str) -> None:
    land_some(bucket)
    bucket.near().run()
    with Liar(bucket.options["endpoint"], (lie,), share=0.5) as liar:
        assert bucket.job(sink_endpoint=liar.endpoint).run().counts == COUNTS
        assert liar.answers[lie] > 0
    bucket.check(1)


@pytest.mark.parametrize("fault", FAULTS_OF_READS)
def test_reads_that_are_wrong(bucket: Bucket, fault: str) -> None:
    """What tasks hand on is read as it was written, or again."""
    land_some(bucket)
    bucket.near().run()
    with Liar(bucket.options["endpoint"], (fault,), share=0.5, verb="GET") as liar:
        job = bucket.job(sink_endpoint=liar.endpoint, engine=Apart(), driver_spans_max=0)
        assert job.run().counts == COUNTS
        assert liar.answers[fault] > 0
    bucket.check(1)


def test_an_upload_that_is_cut(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that stores half a file and reports success: the run stops before the decision."""
    land_some(bucket)
    real = RemoteStore.head
    monkeypatch.setattr(RemoteStore, "head", lambda self, name: (real(self, name)[0] - ("/part-" in name), ""))
    with pytest.raises(fp.StoreError, match="bytes"):
        bucket.job(source_options=bucket.options).run()
    monkeypatch.undo()
    assert not bucket.store("state").exists("state.json")
    bucket.near().run()
    bucket.job().run()
    bucket.check(1)


@pytest.mark.parametrize("lie", ["ignored", "checked before"])
def test_a_store_with_several_winners_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    monkeypatch.setattr(stores, "PROBE_ROUNDS", 4)
    monkeypatch.setattr(stores, "PROBE_WRITERS", 8)
    land_some(bucket)
    with serve_by_moto() as careless, Liar(careless, (lie,), share=1.0) as liar:
        with pytest.raises(fp.StoreError, match="exactly one must succeed"):
            bucket.job(sink_endpoint=liar.endpoint).run()
        assert liar.answers[lie] > 0
    assert not [name for name in bucket.listed() if name.startswith("run=")]
    bucket.near().run()
    assert bucket.job().run().version == 1
    bucket.check(1)


# Not its own


def test_sinks_that_are_refused(bucket: Bucket) -> None:
    land_some(bucket)
    bucket.store("sink").put("somebody/else.txt", b"")
    with pytest.raises(fp.SinkError, match=r"not empty .*\(it holds somebody\)"):
        bucket.job().run()
    for sink, message in (
        ("memory://x", "memory://x: .*a prefix of an"),
        ("hdfs://host/x", "unknown store hdfs://"),
        (f"{bucket.root}/source", "both source and sink"),
        (f"{bucket.root}/source/sink", "is inside source"),
    ):
        with pytest.raises((fp.SinkError, fp.StoreError), match=message):
            DedupJob(
                f"{bucket.root}/source",
                bucket.folder / "s",
                sink,
                source_options=bucket.options,
                sink_options=bucket.options,
            )


def test_a_sink_of_another_state(bucket: Bucket) -> None:
    land_some(bucket)
    bucket.near().run()
    bucket.job().run()
    other = {"source_options": bucket.options, "sink_options": bucket.options}
    with pytest.raises(fp.SinkError, match=r"belongs to a state .*other is empty: "):
        DedupJob(f"{bucket.root}/source", bucket.folder / "other", f"{bucket.root}/sink", **other).run()
    bucket.check(1)


def test_a_state_that_was_taken_back(bucket: Bucket) -> None:
    land_some(bucket)
    bucket.job().run()
    state = bucket.store("state")
    copy = {name: state.read(name) for name, _, _ in state.listing()}
    bucket.land("new.parquet", rows(5000, 10))
    bucket.job().run()
    state.delete([name for name, _, _ in state.listing()])
    for name, data in copy.items():
        state.put(name, data)
    with pytest.raises(fp.SinkChangedError, match="state is older than"):
        bucket.job().run()


@pytest.mark.parametrize(
    ("is_checked", "is_abandoned"),
    [(True, True), (False, False), *(pytest.param(it, not it, marks=pytest.mark.matrix) for it in (True, False))],
)
def test_a_state_that_was_taken_back_before_versions_that_are_folded(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, is_checked: bool, is_abandoned: bool
) -> None:
    """Their claims are gone. That of an abandoned version stays, so the newest one of the old state is no sign."""
    land_some(bucket)
    if is_abandoned:
        with dead_before(RunPrefixes, "apply"):
            bucket.job().run()
        bucket.state().abandon(1)
    state = bucket.store("state")
    kept = state.list("") if is_abandoned else ["state.json"]  # the files of versions were removed by hand
    copy = {name: state.read(name) for name in kept} if is_abandoned else {}
    bucket.job().run()
    copy = copy or {name: state.read(name) for name in kept}
    first = 1 + is_abandoned
    bucket.sink().fold(first, first)
    before = bucket.listed()
    state.delete(state.list(""))
    for name, data in copy.items():
        state.put(name, data)
    bucket.land("day=0/another.parquet", rows(9000, 700))
    if not is_checked:
        monkeypatch.setattr(RunPrefixes, "check", lambda *_: None)
    wanted = "older than the sink" if is_checked else f"run={first}/_SUCCESS: not the list"
    for _ in range(2):
        with pytest.raises(fp.SinkChangedError, match=wanted):
            bucket.job().run()
    after = bucket.listed()
    assert {name: data for name, data in after.items() if name.startswith("run=")} == {
        name: data for name, data in before.items() if name.startswith("run=")
    }


@pytest.mark.parametrize(
    ("call", "version"),
    [
        # The other run comes in these two; in the others, nothing may be asked.
        *(("exists", 2), ("names_at_top", 1)),
        *(pytest.param(*it, marks=pytest.mark.matrix) for it in (("exists", 1), ("names_at_top", 2))),
    ],
)
def test_another_run_while_the_sink_is_checked(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, version: int, call: str
) -> None:
    """Files of the other driver belong to this state, and the state is not older than the sink."""
    land_some(bucket)
    bucket.near().run()
    if version == 2:
        bucket.job().run()
        bucket.land("more.parquet", rows(0, 10, pid=9))
        bucket.near().run()
    others: list[int | None] = []
    real = getattr(RemoteStore, call)

    def others_first(self: RemoteStore, *arguments: Any) -> Any:
        if not others and self.uri.endswith("/sink"):
            others.append(None)
            others[0] = bucket.job().run().version
        return real(self, *arguments)

    job = bucket.job()
    monkeypatch.setattr(RemoteStore, call, others_first)
    with contextlib.suppress(fp.StateConflictError):
        job.run()
    monkeypatch.undo()
    # A first check asks for no claim; a later one asks for no names, so the other run comes when nothing is new.
    assert others == {("exists", 1): [], ("names_at_top", 2): [None]}.get((call, version), [version])
    bucket.job().run()
    bucket.check(version)


@pytest.mark.parametrize("name", ["_fencepost.json", "_versions/1.json"])
def test_a_run_stops_if_the_file_that_names_its_owner_is_gone(bucket: Bucket, name: str) -> None:
    land_some(bucket)
    bucket.job().run()
    bucket.store("sink").delete([name])
    with pytest.raises(fp.SinkChangedError, match=name):
        bucket.job().run()


# Operations


def test_operations_on_a_state(bucket: Bucket) -> None:
    """Rollback, reshard and collection know the sink again by its options."""
    land_some(bucket)
    bucket.near().run()
    bucket.job().run()
    bucket.job().state.collect_garbage()
    for opened in (bucket.state(), states.open(bucket.folder / "state")):
        opened.reshard(4)
        opened.rollback(1)
        opened.collect_garbage()
    bucket.check(3)
    bucket.land("new.parquet", rows(5000, 10))
    bucket.near().run()
    bucket.job().run()
    bucket.check(4)


def test_few_requests_where_nothing_is_new(bucket: Bucket) -> None:
    land_some(bucket)
    bucket.job().run()
    with Liar(bucket.options["endpoint"], ()) as liar:
        bucket.job(sink_endpoint=liar.endpoint).run()
        assert liar.answers["truth"] <= 6


def test_a_run_that_finds_nothing_new_makes_ten_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of state and sink, whatever the history, and none that puts anything."""
    made: list[tuple[str, str]] = []
    real = OneAtATime.__call__

    def call(server: OneAtATime, environ: dict[str, Any], start_response: Any) -> Any:
        made.append((environ["REQUEST_METHOD"], environ["PATH_INFO"] + environ.get("QUERY_STRING", "")))
        return real(server, environ, start_response)

    monkeypatch.setattr(OneAtATime, "__call__", call)
    counts = []
    with serve_by_moto() as endpoint:
        bucket = Bucket(tmp_path, endpoint)
        for version in range(1, 7):
            bucket.land(f"{version}.parquet", rows(version, 20))
            assert bucket.job().run().version == version
            made.clear()
            assert bucket.job().run().version is None
            assert {method for method, _ in made} == {"GET", "HEAD"}
            counts.append(sum("source" not in place for _, place in made))
    assert len(set(counts)) == 1, counts
    assert 5 < counts[0] <= 10
