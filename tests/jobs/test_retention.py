"""How long versions are kept: what can be gone back to is whole, the rest goes, and it costs little."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import polars.testing
import pytest
from fencepost import lake
from fencepost.lake import DedupJob, preparing
from fencepost.state import folding, retention, versions
from fencepost.state.disk import Disk
from fencepost.state.history import explain
from fencepost.state.retention import Retention
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import LocalStore
from support import daily
from support.lake import Crash, crash_at, first_of_each, identities, land, make_rows, read_sink, read_source
from support.retained import HOUR_MS, WEEK_MS, abandon_next, check, clock, files_of, go, make_job, opened

__all__ = ["clock"]  # fixtures


def test_the_newest_versions_are_kept(tmp_path: Path, clock: list[int]) -> None:
    """One version is removed with each run; without, their files pile up."""
    other = tmp_path / "all"
    for number in range(12):
        newest = go(tmp_path, number)
        go(other, number, keep=None)
        assert opened(tmp_path).version(newest).oldest == max(1, newest - 2)
        check(tmp_path)
    assert opened(other).version(12).oldest == 1
    assert len(files_of(tmp_path)) < len(files_of(other)) / 2
    folders = {int(name.split("/")[1]) for name in files_of(other)}
    assert folders == set(range(1, 13))
    opened(tmp_path).rollback(10, accept_duplicates=True)
    with pytest.raises(fp.SnapshotError, match="version 9 is older than 10, "):
        opened(tmp_path).rollback(9)


def test_versions_that_were_recently_the_newest_are_kept(tmp_path: Path, clock: list[int]) -> None:
    """Runs every two hours, and a retention of a day: the rule that keeps more applies."""
    for number in range(16):
        newest = go(tmp_path, number, keep=3, keep_ms=24 * HOUR_MS)
        oldest = opened(tmp_path).version(newest).oldest
        # The version after the oldest was decided within a day, the oldest one's own decision may be older.
        assert oldest == max(1, newest - 12)
        check(tmp_path)
    assert go(tmp_path, 99, keep=15, keep_ms=24 * HOUR_MS) == 17
    assert opened(tmp_path).version(17).oldest == 4, "what was given up stays given up"


def test_a_clock_that_was_ahead_does_not_end_the_retention(tmp_path: Path, clock: list[int]) -> None:
    """Two runs on a machine whose clock is years ahead. Their versions were decided before the next one."""
    for number in range(9):
        is_ahead = number in (2, 3)
        clock[0] += is_ahead * 500 * WEEK_MS
        newest = go(tmp_path, number, keep=2)
        clock[0] -= is_ahead * 500 * WEEK_MS
    assert opened(tmp_path).version(newest).oldest == newest - 1
    check(tmp_path)


def test_a_version_is_kept_for_an_hour_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real clock: all of this test's versions are younger."""
    go(tmp_path, 0, keep=1)
    reader = opened(tmp_path)
    tables = reader.tables()
    first = next(tables)
    for number in range(1, 6):
        go(tmp_path, number, keep=1)
    assert opened(tmp_path).version(6).oldest == 1
    assert [first[0], *(shard for shard, _ in tables)] == [0, 1]
    monkeypatch.setattr(retention, "READERS_MS", 0)
    go(tmp_path, 6, keep=1)
    assert opened(tmp_path).version(7).oldest == 6
    check(tmp_path)


def test_a_slow_run_whose_version_was_abandoned_gets_a_conflict(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path, 0)
    real = preparing.prepare

    def prepare(run: Any, files: Any) -> Any:
        monkeypatch.setattr(lake.run, "prepare", real)
        for number in range(2, 7):
            go(tmp_path, number, keep=1)
        return real(run, files)

    land(tmp_path / "source", "slow.parquet", make_rows(1, 40))
    monkeypatch.setattr(lake.run, "prepare", prepare)
    with pytest.raises(fp.StateConflictError):
        make_job(tmp_path).run()
    check(tmp_path)


@pytest.mark.parametrize("has_bodies", [False, True])
@pytest.mark.parametrize("seed", daily.first(range(2)))
def test_any_history(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch, seed: int, has_bodies: bool
) -> None:
    """Runs, crashes, rollbacks, their undoing, abandoned versions, reshards and collections in any order."""
    if has_bodies:
        monkeypatch.setattr(versions, "DECISION_BYTES_MAX", 0)
    monkeypatch.setattr(retention, "AT_ONCE", 3)
    monkeypatch.setattr(folding, "AT_ONCE", 4)
    draw = random.Random(seed)
    done: Counter[str] = Counter()
    go(tmp_path, 0)
    for number in range(1, 36):
        own = opened(tmp_path)
        newest = own.latest()
        assert newest is not None
        act = draw.choices(("run", "crash", "rollback", "abandon", "reshard", "gc"), (10, 3, 4, 2, 1, 1))[0]
        keep = draw.choice((1, 3, 6))
        if act == "run":
            go(tmp_path, number, keep=keep)
        elif act == "crash":
            land(tmp_path / "source", f"{number:04}.parquet", make_rows(number, 40))
            with crash_at(monkeypatch, draw.randrange(1, 40)), suppress(Crash):
                make_job(tmp_path, keep=keep).run()
        elif act == "rollback":
            kept = [it for it in range(newest.oldest, own.done() + 1) if own.status(it) == "applied"]
            own.rollback(draw.choice(kept), accept_duplicates=True)
        elif act == "abandon":
            abandon_next(tmp_path, number)
        elif act == "reshard":
            own.reshard(draw.choice((1, 2, 4)))
        else:
            own.collect_garbage(keep_versions=keep)
        make_job(tmp_path, keep=keep).run()  # finishes what died
        done[act] += 1
        check(tmp_path, has_crashed=done["crash"] > 0)
    assert min(done[act] for act in ("run", "crash", "rollback", "abandon")) > 0
    assert opened(tmp_path).version(opened(tmp_path).decided()).oldest > 1, "nothing was ever given up"
    assert opened(tmp_path).floor() > 10
    floor = opened(tmp_path).floor()
    for number in range(36, 56):
        go(tmp_path, number, keep=1)
    assert opened(tmp_path).floor() > floor
    check(tmp_path)
    found, wanted = identities(read_sink(tmp_path)), identities(first_of_each(read_source(tmp_path)))
    polars.testing.assert_frame_equal(found.unique(maintain_order=True), wanted)


def test_a_rollback_can_be_undone_within_the_retention(tmp_path: Path, clock: list[int]) -> None:
    """Version 8 goes back to 4. Nothing between goes before 8 itself is old enough, for 8 needs what 4 needs."""
    for number in range(7):
        go(tmp_path, number, keep=5)
    own = opened(tmp_path)
    assert own.version(7).oldest == 3
    own.rollback(4, accept_duplicates=True)
    seen = []
    for number in range(7, 14):
        newest = go(tmp_path, number, keep=5)
        seen.append(own.version(newest).oldest)
        check(tmp_path)
    assert seen == [4, 4, 4, 8, 9, 10, 11]


def test_a_state_that_did_not_note_its_breaks(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in states of earlier versions: the log shows it."""
    with monkeypatch.context() as patch:
        patch.setattr(retention, "breaks_behind", lambda *_: None)
        for number in range(4):
            go(tmp_path, number, keep=None)
        abandon_next(tmp_path, 4)
        go(tmp_path, 5, keep=None)
        opened(tmp_path).rollback(2, accept_duplicates=True)
        assert opened(tmp_path).version(7).breaks is None
    newest = go(tmp_path, 6)
    assert opened(tmp_path).version(newest).breaks == [[6, 4], [7, 2]]
    for number in range(7, 12):
        go(tmp_path, number)
        check(tmp_path)


def test_a_crash_at_any_change_to_the_disk(tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a version no longer needs are removed by a later run, after any crash in between."""
    for number in range(5):
        go(tmp_path, number, keep=2)
    crashes = 0
    for call in range(1, 200):
        land(tmp_path / "source", f"{100 + call}.parquet", make_rows(call, 10))
        with crash_at(monkeypatch, call):
            try:
                make_job(tmp_path, keep=2).run()
            except Crash:
                crashes += 1
            else:
                break
        make_job(tmp_path, keep=2).run()
        check(tmp_path)
    assert crashes > 15
    newest = opened(tmp_path).latest()
    assert newest is not None
    assert newest.oldest == newest.version - 1


def test_a_collected_version_is_still_described(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log: the figures of the version stay, and a rollback that would have to search for its rows is refused."""
    monkeypatch.setattr(versions, "DECISION_BYTES_MAX", 0)
    for number in range(6):
        go(tmp_path, number, keep=2)
    own = opened(tmp_path)
    assert [own.is_collected(it) for it in range(1, 7)] == [True, True, True, False, False, False]
    described = [explain(own, it, is_whole=False) for it in range(1, 7)]
    assert [it["rows"] for it in described] == [40] * 6
    assert ["collected" in it for it in described] == [True, True, True, False, False, False]
    assert described[0]["kept"] + described[0]["not_kept"] == 40
    assert all(it["missing_opened"] > 0 < it["seconds"] for it in described)
    assert set(described[0]) <= {*described[5], "collected"}
    with pytest.raises(fp.SnapshotError, match=r"files that versions 1, 2, 3 wrote"):
        own.rollback(0)
    assert own.decided() == 6
    assert own.rollback(0, accept_duplicates=True).entries == 0


def test_a_collected_seed_is_described_as_before(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote no row, but it did not refuse any either."""
    monkeypatch.setattr(versions, "DECISION_BYTES_MAX", 0)
    clean = first_of_each(pl.DataFrame(make_rows(0, 40)))
    land(tmp_path / "source", "0000.parquet", clean.to_arrow().cast(make_rows(0, 1).schema))
    make_job(tmp_path, keep=2).seed()
    names = ("rows", "kept", "not_kept", "decided")
    whole = explain(opened(tmp_path), 1)
    assert [whole[name] for name in names[:3]] == [len(clean), len(clean), 0]
    for number in range(1, 6):
        go(tmp_path, number, keep=2)
    assert opened(tmp_path).is_collected(1)
    assert [explain(opened(tmp_path), 1)[name] for name in names] == [whole[name] for name in names]


def test_two_runs_that_remove_the_same_files(tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one finds that the description of a version exists, and the other one removes it."""
    monkeypatch.setattr(versions, "DECISION_BYTES_MAX", 0)
    for number in range(4):
        go(tmp_path, number, keep=2)
    newest = opened(tmp_path).latest()
    assert newest is not None
    assert newest.oldest == newest.collected + 1
    body = opened(tmp_path).decision_files(newest.collected)[0]

    class Overtaken(LocalStore):
        def exists(self, name: str) -> bool:
            found = super().exists(name)
            if found and name == body:
                retention.release(opened(tmp_path), RunFolders(tmp_path / "sink", Disk(False)), newest)
                assert not super().exists(name)
            return found

    land(tmp_path / "source", "last.parquet", make_rows(9, 40))
    job = make_job(tmp_path, keep=2)
    job.state.store = Overtaken(tmp_path / "state", sync=False)
    assert job.run().version == newest.version + 1
    check(tmp_path)


class Counting(LocalStore):
    """Counts what is asked of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync=False)
        self.asked: Counter[str] = Counter()

    def read(self, name: str, *arguments: Any) -> bytes:
        self.asked[f"read {name.partition('/')[0]}"] += 1
        return super().read(name, *arguments)

    def list(self, prefix: str) -> list[str]:
        self.asked[f"list {prefix.partition('/')[0]}"] += 1
        return super().list(prefix)


def test_the_cost_of_a_run_does_not_grow_with_the_versions(tmp_path: Path, clock: list[int]) -> None:
    costs = []
    for number in range(30):
        land(tmp_path / "source", f"{number:04}.parquet", make_rows(number % 3, 40))
        job = make_job(tmp_path)
        store = Counting(tmp_path / "state")
        job.state.store = store
        job.run()
        del store.asked["read segments"]  # as many as there are deltas
        costs.append(store.asked)
    assert costs[15] == costs[29]
    assert opened(tmp_path).version(30).collected == 27
    with_none = make_job(tmp_path, keep=None)
    with_none.state.store = Counting(tmp_path / "state")
    land(tmp_path / "source", "last.parquet", make_rows(0, 40))
    with_none.run()
    listed = {name: count for name, count in costs[29].items() if name.startswith("list")}
    assert {name: with_none.state.store.asked[name] for name in listed} == listed, "nothing is listed for it"


@pytest.mark.parametrize("arguments", [{"keep_versions": 0}, {"keep_versions": -1}, {"keep_versions_ms": -1}])
def test_invalid_arguments(tmp_path: Path, arguments: dict[str, int]) -> None:
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=f"^{name}={value}: "):
        DedupJob(tmp_path / "source", tmp_path / "state", tmp_path / "sink", **arguments)  # type: ignore[arg-type]


def test_the_default_is_a_hundred_versions_and_a_week(tmp_path: Path) -> None:
    assert DedupJob(tmp_path / "a", tmp_path / "b", tmp_path / "c").retention == Retention(100, WEEK_MS)
