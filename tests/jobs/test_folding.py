"""Versions that fold: their totals are right after any crash, and the floor stops paused drivers."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import polars.testing
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from fencepost import lake
from fencepost.lake import LocalEngine, dataset
from fencepost.state import State, decision, folding
from fencepost.state.delta_sink import DeltaSink
from fencepost.state.disk import Disk
from fencepost.state.prefix import RunPrefixes
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import LocalStore, RemoteStore
from support import daily
from support.commands import run
from support.lake import (
    Crash,
    crash_at,
    dead_before,
    first_of_each,
    identities,
    land,
    make_rows,
    read_sink,
    read_source,
)
from support.object_sinks import Bucket, killed_at, rows
from support.retained import abandon_next, check, check_folded, clock, files_of, go, make_job, opened  # noqa: F401

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "AT_ONCE", 4)


def go_on(root: Path, count: int, keep: int | None = 1) -> int:
    """So many versions, a file each; gives the newest."""
    first = opened(root).decided() if (root / "state").exists() else 0
    for number in range(first, first + count):
        newest = go(root, number, keep=keep)
    return newest


def go_without_output(root: Path) -> int:
    """A version that keeps no row: all were there before."""
    rows = make_rows(0, 40)
    land(root / "source", f"again-{opened(root).decided()}.parquet", rows.filter(pc.greater_equal(rows["pid"], 0)))
    report = make_job(root, keep=1).run()
    assert report.version is not None
    assert report.kept == 0
    return report.version


def runs(root: Path) -> list[int]:
    """The versions that have a folder in the sink."""
    return sorted(int(it.name[4:]) for it in (root / "sink").glob("run=*"))


def check_rows(root: Path) -> None:
    """Every row is shown once."""
    wanted = identities(first_of_each(read_source(root)))
    for found in (read_sink(root), pl.DataFrame(dataset(root / "sink").to_table())):
        polars.testing.assert_frame_equal(identities(found), wanted)


def test_totals_are_left_and_the_log_is_short(tmp_path: Path) -> None:
    unfolded = tmp_path / "unfolded"
    go_on(unfolded, 12, keep=None)
    go_on(tmp_path, 12)
    check(tmp_path)
    own, whole = opened(tmp_path), opened(unfolded).versions()
    assert opened(unfolded).folded() is None
    assert (own.floor(), [it.version for it in own.versions()]) == (8, list(range(9, 13)))
    folded = own.folded()
    assert folded is not None
    some = whole[:8]
    assert (folded.files, folded.rows, folded.kept) == tuple(
        sum(getattr(it, name) for it in some) for name in ("files", "rows", "kept")
    )
    assert Counter(folded.counts) == sum((Counter(it.counts) for it in some), Counter())
    assert [(it.rows, it.kept, it.counts) for it in own.versions()] == [
        (it.rows, it.kept, it.counts) for it in whole[8:]
    ]
    check_rows(tmp_path)


def test_abandoned_versions_are_counted_apart(tmp_path: Path) -> None:
    go_on(tmp_path, 2)
    abandon_next(tmp_path, 50)
    go_on(tmp_path, 6)
    folded = opened(tmp_path).folded()
    assert folded is not None
    assert (folded.version, folded.abandoned, folded.rows, folded.files) == (4, 1, 40 * 4, 4)
    check_rows(tmp_path)


def test_the_sink_keeps_no_folder_of_a_folded_version_without_output(tmp_path: Path) -> None:
    """But the marks of abandoned versions stay: nothing else keeps out a driver that was paused."""
    go_on(tmp_path, 1)
    assert go_without_output(tmp_path) == 2
    abandon_next(tmp_path, 50)
    go_on(tmp_path, 9)
    assert opened(tmp_path).floor() == 8
    assert runs(tmp_path) == [1, *range(3, 13)]
    assert os.listdir(tmp_path / "sink" / "run=3") == ["_abandoned"]
    check_rows(tmp_path)
    shutil.rmtree(tmp_path / "sink" / "run=4")  # a user who no longer wants its rows need not leave an empty folder
    go_on(tmp_path, 1)
    shutil.rmtree(tmp_path / "sink" / "run=9")
    with pytest.raises(fp.SinkChangedError, match="run=9 is gone, but version 9 was written"):
        go_on(tmp_path, 1)


def test_folded_versions_are_refused_by_name(tmp_path: Path) -> None:
    go_on(tmp_path, 12)
    own = opened(tmp_path)
    assert own.floor() == 8
    for ask in (own.version, own.status, own.summary, own.abandon):
        with pytest.raises(fp.SnapshotError, match=r"version 5 is folded: .*versions 1 to 8 only totals"):
            ask(5)
    with pytest.raises(fp.SnapshotError, match=r"version 5 is older than 11, .*\(it is folded"):
        own.rollback(5)
    with pytest.raises(fp.SnapshotError, match="files that versions 8 wrote"):
        own.rollback(0)
    assert own.is_collected(8)
    assert own.rollback(0, accept_duplicates=True).entries == 0
    assert own.decided() == 13


def test_the_command_line_shows_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go_on(tmp_path, 8)
    _, out, _ = run(capsys, "state", "show", tmp_path / "state", "--json")
    shown = json.loads(out)
    assert [it["version"] for it in shown["versions"]] == [5, 6, 7, 8]
    folded = shown["state"]["folded"]
    assert (folded["versions"], folded["abandoned"], folded["files"], folded["rows"]) == (4, 0, 4, 4 * 40)
    _, out, _ = run(capsys, "state", "show", tmp_path / "state")
    assert "versions 4, abandoned 0, files 4, rows 160, kept" in out
    code, _, err = run(capsys, "state", "show", tmp_path / "state", 3)
    assert code
    assert "version 3 is folded" in err


def test_a_collection_folds_all_at_once(tmp_path: Path) -> None:
    go_on(tmp_path, 10, keep=None)
    own = opened(tmp_path)
    own.collect_garbage(keep_versions=2)
    assert (own.floor(), own.decided()) == (8, 11)
    go_on(tmp_path, 1)
    own.collect_garbage()
    check(tmp_path)
    assert files_of(tmp_path) == {name for it in range(11, 13) for name in opened(tmp_path).version(it).files()}
    assert own.folds() == [4, 8]
    check_rows(tmp_path)


def test_a_collection_leaves_files_of_others(tmp_path: Path) -> None:
    """NFS renames an open file that is removed."""
    go_on(tmp_path, 10)
    others = [tmp_path / "state" / folder / ".nfs0000000000a1" for folder in ("log", "done", "body")]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert opened(tmp_path).floor() == 4
    opened(tmp_path).collect_garbage()
    assert all(path.exists() for path in others)
    for path in others:
        path.unlink()
    check(tmp_path)


def test_earlier_versions_of_this_package_refuse_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read only format 2. The first decision of format 3 is written before the first version is folded."""
    go_on(tmp_path, 3)
    assert [opened(tmp_path).version(it).format for it in (2, 3)] == [2, 3]
    assert opened(tmp_path).floor() == 0
    go_on(tmp_path, 5)
    assert opened(tmp_path).floor() == 4
    monkeypatch.setattr(decision, "FORMAT_FOLDED", 2)
    for ask in (opened(tmp_path).latest, make_job(tmp_path).run, lambda: opened(tmp_path).rollback(7)):
        with pytest.raises(fp.SnapshotError, match=r"log/8\.json: format 3, .*reads"):
            ask()


def test_a_state_that_was_written_before_is_folded_by_the_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fencepost.state.versions.FORMAT_FOLDED", 2)
        go_on(tmp_path, 9)
    assert opened(tmp_path).floor() == 0
    go_on(tmp_path, 1)
    assert opened(tmp_path).floor() == 0
    go_on(tmp_path, 1)
    assert opened(tmp_path).floor() == 4
    check_rows(tmp_path)


def test_damage_of_what_is_to_be_folded_stops_no_run(tmp_path: Path) -> None:
    go_on(tmp_path, 5)
    path = tmp_path / "state" / "log" / "1.json"
    path.write_text(path.read_text().replace('"attempt": "', '"attempt": "0'))
    go_on(tmp_path, 4)
    assert opened(tmp_path).floor() == 0
    with pytest.raises(fp.SnapshotError, match=r"log/2\.json: .*not follow from log/1\.json"):
        opened(tmp_path).collect_garbage()
    (tmp_path / "state" / "done" / "1").unlink()
    with pytest.raises(fp.SnapshotError):
        folding.fold(opened(tmp_path), make_job(tmp_path).sink, 4)


def test_a_floor_without_a_log_above_it_is_damage(tmp_path: Path) -> None:
    go_on(tmp_path, 8)
    for version in range(5, 9):
        (tmp_path / "state" / "log" / f"{version}.json").unlink()
        (tmp_path / "state" / "done" / f"{version}").unlink()
    with pytest.raises(fp.SnapshotError, match=r"up to 4 are folded, .* later versions are missing"):
        make_job(tmp_path).run()


# Whatever dies


def test_a_crash_at_any_change_to_the_disk_while_versions_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one that folds ends what was begun."""
    world, template = tmp_path / "world", tmp_path / "template"
    with monkeypatch.context() as patch:
        patch.setattr("fencepost.lake.run.release", lambda *_: 1)
        go_on(world, 1)
        go_without_output(world)
        go_on(world, 8)
    sink = make_job(world).sink
    for name in ("state", "sink"):
        shutil.copytree(world / name, template / name)
    newest = opened(world).latest()
    crashes = 0
    for call in itertools.count(1):
        for name in ("state", "sink"):
            shutil.rmtree(world / name)
            shutil.copytree(template / name, world / name)
        with crash_at(monkeypatch, call), suppress(Crash):
            folding.fold(State(LocalStore(world / "state")), sink, 4)
            break
        crashes += 1
        own = opened(world)
        assert own.floor() in (0, 4)
        assert own.latest() == newest
        assert [it.version for it in own.versions()] == list(range(own.floor() + 1, 11))
        sink.check(own)
        while folding.fold(own, sink, 8):
            assert own.latest() == newest
        check_folded(own, 10)
        assert own.floor() == 8
        assert runs(world) == [1, *range(3, 11)]
    assert crashes > 15


@pytest.mark.parametrize("collects", [False, True])
def test_totals_are_on_disk_before_the_log_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collects: bool
) -> None:
    """The name of the first fold could not be synced, so a power loss may take it until a sync succeeds."""
    go_on(tmp_path, 5)
    real, failures, at_risk = Disk.seal, [OSError(errno.EIO, "no sync")], True

    def seal(disk: Disk, path: Path) -> None:
        nonlocal at_risk
        if path.name == folding.FOLDER and any(path.iterdir()):
            if failures:
                raise failures.pop()
            at_risk = False
        real(disk, path)

    def delete(store: LocalStore, names: Iterable[str]) -> None:
        listed = list(names)
        logs = [it for it in listed if it.startswith("log/")]
        assert not (logs and at_risk), logs
        gone.extend(logs)
        deleted(store, listed)

    gone, deleted = list[str](), LocalStore.delete
    monkeypatch.setattr(Disk, "seal", seal)
    monkeypatch.setattr(LocalStore, "delete", delete)
    with pytest.raises(OSError, match="no sync"):
        go_on(tmp_path, 4)
    assert opened(tmp_path).floor() == 4
    if collects:
        opened(tmp_path).collect_garbage()
    go_on(tmp_path, 6)
    assert "log/1.json" in gone
    check_rows(tmp_path)


def test_a_run_continues_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on(tmp_path, 7)
    real = State.floor
    asked = [0]

    def die_then(self: State) -> int:
        asked[0] += 1
        if len(self.folds()) > 0:
            raise Crash
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(State, "floor", die_then)
        with pytest.raises(Crash):
            go_on(tmp_path, 1)
    assert opened(tmp_path).floor() == 4
    make_job(tmp_path, keep=1).run()
    go_on(tmp_path, 4)
    check(tmp_path)
    check_rows(tmp_path)


# Drivers that were paused


@contextmanager
def paused_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, meanwhile: Callable[[], Any]) -> Any:
    """The first call of this does something else before, and then what it should."""
    real = getattr(owner, name)
    with monkeypatch.context() as patch:

        def late(self: Any, *arguments: Any, **named: Any) -> Any:
            patch.setattr(owner, name, real)
            meanwhile()
            return real(self, *arguments, **named)

        patch.setattr(owner, name, late)
        yield


def others(root: Path) -> None:
    """Make more versions than one fold handles, from other files than those of the paused run, and fold them."""
    for number in range(9):
        go(root, 500 + number, keep=1)


@pytest.mark.parametrize(
    "moment",
    daily.first(["decides", "has decided", "applies", "prepares", "finishes", "puts done"], 3),
)
def test_a_driver_that_wakes_after_a_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Nothing is shown twice, nothing is lost, and what later versions refer to stays."""
    go(tmp_path, 0)
    land(tmp_path / "source", "slow.parquet", make_rows(77, 40))
    asked: list[str] = []
    real_put = LocalStore.put

    def put(self: LocalStore, name: str, data: bytes) -> bool:
        at = {"decides": "log/2.json", "has decided": "log/2.json", "puts done": "done/2"}.get(moment)
        if name == at and not asked:
            asked.append(name)
            if moment == "has decided":
                assert real_put(self, name, data)
            others(tmp_path)
        return real_put(self, name, data)

    owners = {"prepares": (lake.run, "prepare"), "applies": (RunFolders, "apply"), "finishes": (State, "finish")}
    owner, name = owners.get(moment, (State, "renew_hint"))
    with paused_at(monkeypatch, owner, name, lambda: others(tmp_path) if moment in owners else None):
        monkeypatch.setattr(LocalStore, "put", put)
        if moment in ("applies", "finishes", "puts done"):
            assert make_job(tmp_path).run().version == 2
        else:
            is_logged = moment != "prepares"
            error = fp.StoreError if is_logged else fp.StateConflictError
            text = "version 2 .*log entry was removed" if is_logged else "decided version 2 first"
            with pytest.raises(error, match=text):
                make_job(tmp_path).run()
    own = opened(tmp_path)
    assert own.floor() >= 4
    newest = own.latest()
    assert newest is not None
    for shard in newest.shards:
        own.table(newest, shard.shard)
    go_on(tmp_path, 1)
    check_rows(tmp_path)
    own.collect_garbage()
    check(tmp_path)
    assert not own.store.exists("done/2")


@pytest.mark.parametrize("has_output", [True, False])
def test_an_abandon_that_wakes_after_a_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_output: bool) -> None:
    """The driver reports that the version is folded, and changes nothing that a reader sees."""
    go_on(tmp_path, 1)
    with dead_before(RunFolders, "apply"):
        go_on(tmp_path, 1) if has_output else go_without_output(tmp_path)
    with (
        paused_at(monkeypatch, RunFolders, "fence", lambda: others(tmp_path)),
        pytest.raises(fp.SnapshotError, match="version 2 is folded: of versions 1 to 4 only totals are kept"),
    ):
        opened(tmp_path).abandon(2)
    check_rows(tmp_path)
    go_on(tmp_path, 1)
    check_rows(tmp_path)


def test_a_driver_that_wakes_to_show_a_version_without_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on(tmp_path, 1)
    with paused_at(monkeypatch, RunFolders, "apply", lambda: others(tmp_path)):
        assert go_without_output(tmp_path) == 2
    assert opened(tmp_path).floor() == 4
    assert os.listdir(tmp_path / "sink" / "run=2") == ["_empty"]
    go_on(tmp_path, 1)
    check_rows(tmp_path)


def test_a_table_keeps_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence that found none would remove the files of an applied version."""

    def step(seed: int) -> None:
        land(tmp_path / "source", f"{seed:04}.parquet", make_rows(seed, 40))
        make_job(tmp_path, keep=1, layout="delta").run()

    step(0)
    with dead_before(DeltaSink, "apply"):
        step(1)
    with (
        paused_at(monkeypatch, DeltaSink, "fence", lambda: [step(number) for number in range(2, 12)]),
        pytest.raises(fp.SnapshotError, match="version 2 is folded"),
    ):
        opened(tmp_path).abandon(2)
    assert opened(tmp_path).floor() == 8
    step(12)
    found = pl.DataFrame(DeltaTable(tmp_path / "sink").to_pyarrow_table())
    polars.testing.assert_frame_equal(identities(found), identities(first_of_each(read_source(tmp_path))))


def test_files_below_the_floor_do_not_count(tmp_path: Path) -> None:
    """A paused driver may have put them, and the hint."""
    go_on(tmp_path, 3)
    state = tmp_path / "state"
    kept = {name: (state / name).read_bytes() for name in ("log/2.json", "done/2", "log/3.json", "hint")}
    newest = go_on(tmp_path, 6)
    for name in ("log/2.json", "done/2", "hint"):
        (state / name).write_bytes(kept[name])
    own = opened(tmp_path)
    assert (own.done(), own.decided()) == (newest, newest)
    (state / "log/3.json").write_bytes(kept["log/3.json"])
    assert (own.done(), own.decided()) == (newest, newest)
    assert [it.version for it in own.versions()] == list(range(own.floor() + 1, newest + 1))
    with pytest.raises(fp.SnapshotError, match="version 2 is folded"):
        own.status(2)
    assert make_job(tmp_path).run().version is None
    own.collect_garbage()
    check(tmp_path)


@pytest.mark.parametrize("name", ["hint", "log/", pytest.param("done/", marks=pytest.mark.matrix)])
def test_a_read_finds_the_newest_version_while_others_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    go_on(tmp_path, 3)
    own = opened(tmp_path)
    if name != "hint":
        (tmp_path / "state" / "hint").unlink()
    method = "read" if name == "hint" else "list"
    real, newest = getattr(LocalStore, method), []

    def late(self: LocalStore, asked: str, *arguments: Any) -> Any:
        found = real(self, asked, *arguments)
        if not newest and asked == name.rstrip("/"):
            newest.append(0)
            newest[0] = go_on(tmp_path, 9)
        return found

    monkeypatch.setattr(LocalStore, method, late)
    assert own.refresh().done == newest[0]
    assert own.latest() == opened(tmp_path).version(newest[0])


def test_a_name_that_goes_while_it_is_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is put again: the floor shows its outcome."""
    store = LocalStore(tmp_path)
    store.put("log/1.json", b"another's")
    real = store.disk.seal
    gone = []

    def seal(path: Path) -> None:
        real(path)
        if path.name == "log" and not gone:
            gone.append((path / "1.json").unlink())

    monkeypatch.setattr(type(store.disk), "seal", lambda _, path: seal(path))
    assert store.put("log/1.json", b"mine")
    assert gone == [None]


# In an object store


@pytest.fixture
def bucket(tmp_path: Path, endpoint: str) -> Bucket:
    return Bucket(tmp_path, endpoint)


def go_far(bucket: Bucket, first: int, count: int) -> None:
    """So many versions, of a file each."""
    for number in range(first, first + count):
        bucket.land(f"{number:03}.parquet", rows(0, 5, pid=number))
        bucket.job(keep_versions=1, keep_versions_ms=0, shards=1, engine=LocalEngine(1)).run()


def claims(bucket: Bucket) -> list[int]:
    """The versions whose claims are in the sink."""
    return sorted(int(name[10:-5]) for name in bucket.store("sink").list("_versions"))


def listed(bucket: Bucket) -> list[str]:
    """The files of the state, except for those that every version has."""
    return sorted(name for name in bucket.store("state").list("") if name.startswith(("log", "done", "folded")))


def test_claims_of_applied_versions_go_from_a_prefix(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks of abandoned versions stay. A paused `abandon` takes a free name, reports it, and removes nothing."""
    monkeypatch.setattr(folding, "AT_ONCE", 2)
    go_far(bucket, 1, 1)
    with dead_before(RunPrefixes, "apply"):
        go_far(bucket, 2, 1)
    bucket.state().abandon(2)
    with dead_before(RunPrefixes, "apply"):
        go_far(bucket, 3, 1)
    with (
        paused_at(monkeypatch, RunPrefixes, "fence", lambda: go_far(bucket, 4, 5)),
        pytest.raises(fp.SnapshotError, match="version 3 is folded: of versions 1 to 4 only totals are kept"),
    ):
        bucket.state().abandon(3)
    assert claims(bucket) == [2, 3, 5, 6, 7, 8]
    go_far(bucket, 9, 1)
    found = dataset(f"{bucket.root}/sink", bucket.options).to_table().select(["pid", "seq"]).to_pylist()
    assert sorted(found, key=repr) == sorted(
        ({"pid": pid, "seq": seq} for pid in range(1, 10) for seq in range(5)), key=repr
    )


@pytest.mark.matrix
def test_killed_at_every_request_of_a_fold(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fencepost.lake.run.release", lambda *_: 1)
        go_far(bucket, 1, 6)
    store = bucket.store("state")
    claim_of_first = bucket.store("sink").read("_versions/1.json")
    template = {name: store.read(name) for name in listed(bucket)}
    monkeypatch.setattr(folding, "AT_ONCE", 2)
    kills = 0
    for step in itertools.count(2):
        number, moment = step // 2, ("before", "after")[step % 2]
        with monkeypatch.context() as patch:
            killed_at(patch, number, moment, store.uri)
            try:
                folding.fold(bucket.state(), bucket.sink(), 4)
                break
            except Crash:
                kills += 1
        own = bucket.state()
        assert own.floor() in (0, 2)
        assert own.done() == own.latest().version == 6
        while folding.fold(own, bucket.sink(), 4):
            assert own.latest().version == 6
        assert listed(bucket) == [
            *("done/5", "done/6", "folded/2.json", "folded/4.json", "log/5.json", "log/6.json"),
        ]
        assert claims(bucket) == [5, 6]
        store.delete(["folded/2.json", "folded/4.json"])
        for version in range(1, 5):
            bucket.store("sink").put(f"_versions/{version}.json", claim_of_first)
        for name in template.keys() - set(listed(bucket)):
            store.put(name, template[name])
    assert kills > 10


@pytest.mark.matrix
@pytest.mark.parametrize("moment", ["decides", "has decided", "applies"])
def test_a_driver_that_wakes_after_a_fold_in_a_store(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(folding, "AT_ONCE", 2)
    go_far(bucket, 1, 1)
    bucket.land("slow.parquet", rows(0, 5, pid=77))
    real, asked = RemoteStore.put, []

    def put(self: RemoteStore, name: str, data: bytes) -> bool:
        if name == ("_versions/2.json" if moment == "applies" else "log/2.json") and not asked:
            asked.append(name)
            assert moment != "has decided" or real(self, name, data)
            go_far(bucket, 2, 6)
        return real(self, name, data)

    monkeypatch.setattr(RemoteStore, "put", put)
    if moment == "applies":
        assert bucket.job().run().version == 2
    else:
        with pytest.raises(fp.StoreError, match=r"version 2 .*paused"):
            bucket.job().run()
    assert bucket.state().floor() >= 2
    go_far(bucket, 8, 1)
    found = dataset(f"{bucket.root}/sink", bucket.options).to_table().select(["pid", "seq"]).to_pylist()
    wanted = [{"pid": pid, "seq": seq} for pid in (*range(1, 9), 77) for seq in range(5)]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    bucket.state().collect_garbage()
    assert not {"log/2.json", "done/2"} & set(listed(bucket))
