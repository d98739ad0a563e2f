"""How a run commits: nothing lost, nothing twice, after any crash and with concurrent writers."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import pytest
from fencepost import state
from fencepost.lake import DedupJob, LocalEngine
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import LocalStore
from fencepost.state.versions import State
from support import daily
from support.lake import (
    IDENTITY,
    Crash,
    crash_at,
    first_of_each,
    hashes,
    land,
    land_some,
    make_job,
    make_rows,
    output_hashes,
    read_sink,
    read_source,
    state_hashes,
    template_of,
)
from support.processes import fork_server
from support.threads import in_threads

PROCESSES = fork_server("support.lake")


def visible(root: Path) -> dict[str, str]:
    """Output files and the state's content, without the names that differ from attempt to attempt."""
    segments = {f"segments {version}": str(shards) for version, shards in enumerate(state_hashes(root), 1)}
    return output_hashes(root) | segments


def shape(root: Path) -> list[str]:
    """The names of all files of state and sink, attempts' names replaced."""
    names = [*(f"state/{name}" for name in hashes(root / "state")), *(f"sink/{name}" for name in hashes(root / "sink"))]
    return sorted(re.sub(r"[0-9a-f]{64}|[0-9a-f]{32}|(?<=[-/])[0-9a-f]{12}(?=\.)", "*", name) for name in names)


def prepare_world(root: Path, versions: int = 1) -> None:
    """So many versions done, and two new files landed."""
    for version in range(versions):
        land_some(root, [10 + version])
        make_job(root).run()
    land_some(root, [2, 3])


def run_alone(root: Path) -> int | None:
    """One thread, few shards: every crash test has the same steps."""
    return make_job(root, engine=LocalEngine(1), shards=2).run().version


@pytest.mark.slow
@pytest.mark.parametrize("versions", [0, 1])
@pytest.mark.parametrize("first", daily.first(range(3)))
def test_a_crash_at_any_change_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: int, first: int
) -> None:
    """What was decided needs its source no more; what was not is as if it had never begun: every third change."""
    world = tmp_path / "world"
    restore_world = template_of(world, versions, run_alone)
    restore_world()
    with crash_at(monkeypatch, 10**9) as calls:
        run_alone(world)
    run_alone(world)
    expected, expected_shape, total = visible(world), shape(world), calls[0]
    decided_at = []
    tried = range(1 + first, total + 1, 3)
    for call in tried:
        restore_world()
        with crash_at(monkeypatch, call), pytest.raises(Crash):
            run_alone(world)
        if state.State(state.open_store(world / "state")).decided() > versions:
            decided_at.append(call)
            (world / "source" / "2.parquet").unlink()
            land_some(world, [4])
            assert run_alone(world) == versions + 2, call
            later = (f"run={versions + 2}", f"segments {versions + 2}")
            assert {name: it for name, it in visible(world).items() if not name.startswith(later)} == expected, call
        else:
            assert run_alone(world) == versions + 1, call
            assert run_alone(world) is None, call
            assert visible(world) == expected, call
            assert shape(world) == expected_shape, call
    assert decided_at == [call for call in tried if call >= decided_at[0]]
    assert decided_at[0] > 20, "the steps before Decide touch the disk that often"
    assert len(decided_at) > 2, "and those after it"


def test_a_recovery_that_is_interrupted_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_world(tmp_path)
    with pytest.raises(Crash):
        make_job(tmp_path).run(die_at("apply", 0))
    (tmp_path / "source" / "2.parquet").unlink()
    (tmp_path / "source" / "3.parquet").unlink()
    for call in range(1, 1000):
        try:
            with crash_at(monkeypatch, call):
                assert make_job(tmp_path).run().version is None
            break
        except Crash:
            continue
    assert call > 5
    assert state.open(tmp_path / "state").done() == 2
    assert read_sink(tmp_path).equals(first_of_each(rows_of(10, 2, 3)))


def test_nothing_is_shown_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, then names, of Prepare before Decide before Apply before Finish."""
    prepare_world(tmp_path)
    calls: list[tuple[str, str]] = []

    def recording(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[-1])
            calls.append((name, os.path.relpath(path, tmp_path)))
            return real(*arguments, **options)

        return act

    with monkeypatch.context() as patch:
        for name in ("link", "rename", "fsync"):
            patch.setattr(os, name, recording(name, getattr(os, name)))
        make_job(tmp_path).run()
    decision = state.open(tmp_path / "state").version(2)
    decide, apply, finish = (
        calls.index(it) for it in (("link", "state/log/2.json"), ("rename", "sink/run=2"), ("link", "state/done/2"))
    )
    assert decide < apply < finish
    segments = [f"state/{name}" for name in decision.shards.files if name.startswith("segments/2/")]
    prepared = [*segments, f"state/{decision.ledger.name[-1]}", f"sink/{decision.prepared}"]
    prepared += [f"state/segments/2/{decision.attempt}", "state/segments/2", "state/segments"]
    assert segments
    for path in prepared:
        assert ("fsync", path) in calls[:decide], path
    outputs = [path for call, path in calls[:decide] if call == "fsync" and re.search(r"_prepare/.*parquet$", path)]
    assert len(outputs) == len(decision.outputs) == 2
    assert ("fsync", "state/log") in calls[decide:apply]
    assert ("fsync", "sink") in calls[apply:finish]
    assert ("fsync", "state/done") in calls[finish:]


def rows_of(*seeds: int) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(make_rows(seed)) for seed in seeds])


def die_at(step: str, done: int) -> Callable[[str, int, int], None]:
    def die(at: str, now: int, total: int) -> None:
        if (at, now) == (step, done):
            raise Crash

    return die


def run_and_die(root: Path, step: str, when: str) -> None:
    def die(at: str, done: int, total: int) -> None:
        if at == step and done == (0 if when == "before" else total):
            os.kill(os.getpid(), signal.SIGKILL)

    make_job(root).run(die)


STEPS = ["scan", "judge", "write", "check", "decide", "apply", "finish"]


@pytest.mark.parametrize(
    ("step", "when"),
    [(step, when) for step in STEPS for when in ("before", "after") if when == "after" or step in STEPS[3:]],
)
def test_sigkill_at_each_step(tmp_path: Path, step: str, when: str) -> None:
    prepare_world(tmp_path)
    killed = PROCESSES.Process(target=run_and_die, args=(tmp_path, step, when))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    is_decided = state.open(tmp_path / "state").decided() == 2
    assert is_decided == ((step, when) in [("decide", "after"), *((step, when) for step in ("apply", "finish"))])
    if is_decided:
        (tmp_path / "source" / "2.parquet").unlink()  # needed no more
    land_some(tmp_path, [4])
    report = make_job(tmp_path).run()
    assert report.recovered == ((2,) if is_decided and (step, when) != ("finish", "after") else ())
    assert report.version == (3 if is_decided else 2)
    assert report.files == (1 if is_decided else 3)
    assert read_sink(tmp_path).equals(first_of_each(rows_of(10, 2, 3, 4)))
    make_job(tmp_path).run()
    assert not list((tmp_path / "sink" / "_prepare").iterdir())
    assert all(len(list(folder.iterdir())) == 1 for folder in (tmp_path / "state" / "segments").iterdir())


def test_an_error_in_a_step_leaves_no_files(tmp_path: Path) -> None:
    prepare_world(tmp_path)
    before = hashes(tmp_path)
    for step in ("scan", "judge", "write", "check"):

        def fail(at: str, done: int, total: int, step: str = step) -> None:
            if (at, done) == (step, total):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            make_job(tmp_path).run(fail)
        assert hashes(tmp_path) == before


# -- Other writers


@pytest.mark.parametrize(
    ("versions", "others", "step"),
    [
        pytest.param(*it, step, marks=() if it == (1, 3) or step in ("judge", "decide") else pytest.mark.matrix)
        for it in ((0, 1), (1, 1), (1, 3))
        for step in ("list", "scan", "judge", "write", "check", "decide")
    ],
)
def test_a_slower_run_loses_and_shows_nothing(tmp_path: Path, step: str, versions: int, others: int) -> None:
    """`others` = 3: the faster runs have collected files that looked like garbage before the slower run continues."""
    prepare_world(tmp_path, versions)
    seen: list[dict[str, str]] = []

    def overtake(at: str, done: int, total: int) -> None:
        if at == step and done == (0 if step == "decide" else total):
            for other in range(others):
                assert make_job(tmp_path).run().version == 1 + versions + other
                land_some(tmp_path, [30 + other])
            seen.append(visible(tmp_path))

    with pytest.raises(fp.StateConflictError, match=rf"another run decided version {1 + versions} first.*run again"):
        make_job(tmp_path).run(overtake)
    assert [visible(tmp_path)] == seen
    make_job(tmp_path).run()
    assert len(read_sink(tmp_path)) == len(first_of_each(read_source(tmp_path)))


def test_a_run_that_another_one_finishes(tmp_path: Path) -> None:
    """It pauses after Decide; others finish its version and continue; then it wakes up and finds everything done."""
    prepare_world(tmp_path)

    def finished_by_others(at: str, done: int, total: int) -> None:
        if (at, done) == ("apply", 0):
            land_some(tmp_path, [5])
            report = make_job(tmp_path).run()
            assert (report.recovered, report.version) == ((2,), 3)
            assert make_job(tmp_path).run().version is None

    assert make_job(tmp_path).run(finished_by_others).version == 2
    assert read_sink(tmp_path).equals(first_of_each(rows_of(10, 2, 3, 5)))


def test_runs_at_the_same_time(tmp_path: Path) -> None:
    """Many at once, again and again: some lose, none does harm."""
    outcomes: list[str] = []

    def run() -> None:
        for _ in range(4):
            try:
                outcomes.append(f"version {make_job(tmp_path, engine=LocalEngine(1), sync=False).run().version}")
            except fp.StateConflictError:
                outcomes.append("conflict")

    for round_ in range(3):
        land_some(tmp_path, [2 * round_, 2 * round_ + 1])
        in_threads([run] * 3)
    assert set(outcomes) <= {"version 1", "version 2", "version 3", "version None", "conflict"}, outcomes
    make_job(tmp_path).run()
    assert read_sink(tmp_path).equals(first_of_each(rows_of(*range(6))))


# -- A state or a sink of something else


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": fp.Policy.any_order().replace(first="zero")}, r"settings: first='any' .*, 'zero' in this job\. "),
        (
            {"columns": fp.Columns(pid="seq", seq="pid")},
            "columns.pid='pid' .*, 'seq' .*; columns.seq='seq' .*, 'pid' in this job",
        ),
        (
            {"policy": fp.Policy.any_order().replace(gaps="normal", wrap=None), "scope": "east", "max_idle_ms": 1},
            "gaps='report' .*'normal' .*; wrap=2147483648 .*None .*; scope=None .*'east' .*; max_idle=None .*'given'",
        ),
        ({"shards": 17}, "created with shards 16, .* has 17"),
    ],
)
def test_a_state_of_another_job(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    prepare_world(tmp_path)
    before = hashes(tmp_path)
    with pytest.raises(fp.SnapshotError, match=message):
        make_job(tmp_path, **arguments).run()
    assert hashes(tmp_path) == before


def test_a_state_of_another_source_or_sink(tmp_path: Path) -> None:
    prepare_world(tmp_path)
    land(tmp_path / "other", "0.parquet", make_rows(0))
    with pytest.raises(fp.SnapshotError, match=r"source='.*/source' in the state, '.*/other'"):
        DedupJob(tmp_path / "other", tmp_path / "state", tmp_path / "sink").run()
    with pytest.raises(fp.SnapshotError, match=r"sink='.*/sink' in the state, '.*/elsewhere'"):
        DedupJob(tmp_path / "source", tmp_path / "state", tmp_path / "elsewhere").run()
    assert not (tmp_path / "elsewhere").exists()


def test_a_state_of_another_version(tmp_path: Path) -> None:
    prepare_world(tmp_path)
    path = tmp_path / "state" / "state.json"
    text = path.read_text()
    path.write_text(text.replace('"semantics": 1', '"semantics": 2'))
    with pytest.raises(fp.SnapshotError, match=r"semantics=2 in the state, 1 in"):
        make_job(tmp_path).run()
    path.write_text(text.replace('"format": 2', '"format": 9'))
    with pytest.raises(fp.SnapshotError, match=r"format 9, .*reads formats 2 and 3"):
        make_job(tmp_path).run()
    path.write_text("{")
    with pytest.raises(fp.SnapshotError, match=r"state\.json: not a file"):
        make_job(tmp_path).run()


def test_a_sink_that_is_not_ours(tmp_path: Path) -> None:
    land_some(tmp_path)
    (tmp_path / "sink").mkdir()
    (tmp_path / "sink" / "holiday.jpg").write_bytes(b"")
    with pytest.raises(fp.SinkError, match=r"not empty .*\(it holds holiday\.jpg\)"):
        make_job(tmp_path).run()
    assert not (tmp_path / "state").exists()
    (tmp_path / "sink" / "holiday.jpg").unlink()
    make_job(tmp_path).run()
    with pytest.raises(fp.SinkError, match="other state is empty: "):
        DedupJob(tmp_path / "source", tmp_path / "other state", tmp_path / "sink").run()
    assert not (tmp_path / "other state").exists()


def test_a_sink_that_changed(tmp_path: Path) -> None:
    prepare_world(tmp_path)
    sink = tmp_path / "sink"
    (sink / "run=1").rename(tmp_path / "away")
    with pytest.raises(fp.SinkChangedError, match="run=1 is gone, but version 1 was written"):
        make_job(tmp_path).run()
    (tmp_path / "away").rename(sink / "run=1")
    (sink / "run=7").mkdir()
    with pytest.raises(fp.SinkChangedError, match=r"run=7 exists, .*no version 7"):
        make_job(tmp_path).run()
    (sink / "run=7").rmdir()
    (sink / "_fencepost.json").rename(tmp_path / "marker")
    with pytest.raises(fp.SinkChangedError, match=r"_fencepost.json is gone"):
        make_job(tmp_path).run()
    (tmp_path / "marker").rename(sink / "_fencepost.json")
    assert make_job(tmp_path).run().version == 2


def test_a_prepared_output_that_is_gone(tmp_path: Path) -> None:
    prepare_world(tmp_path)

    with pytest.raises(Crash):
        make_job(tmp_path).run(die_at("apply", 0))
    shutil.rmtree(tmp_path / "sink" / "_prepare")
    with pytest.raises(fp.SinkChangedError, match=r"run=2: not the folder .* of version 2"):
        make_job(tmp_path).run()


def test_a_sink_that_raises_a_conflict_after_the_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's function raises one if it stores positions by `SqlSink`. Its version still needs the prepared rows."""
    prepare_world(tmp_path, versions=0)
    job = make_job(tmp_path)

    def fail(*_: Any) -> str:
        raise fp.StateConflictError("another process has moved the position")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolders, "apply", fail)
        with pytest.raises(fp.StateConflictError, match="moved the position"):
            job.run()
    assert job.run().recovered == (1,)
    assert read_sink(tmp_path).equals(first_of_each(rows_of(2, 3)))


def test_leftovers_that_cannot_be_removed_fail_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The version is finished: a run that fails then would not report it, and a stream would stop after each batch."""
    prepare_world(tmp_path)
    left = tmp_path / "state" / "tmp" / "log-1.json.0123.tmp"
    left.touch()

    def delete(store: LocalStore, names: Iterable[str]) -> None:
        if listed := list(names):
            raise PermissionError(errno.EACCES, "not yours", listed[0])

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", delete)
        assert make_job(tmp_path).run().version == 2
    assert "leftovers of attempts were not removed: " in caplog.text
    assert left.exists()
    land_some(tmp_path, [4])
    assert make_job(tmp_path).run().version == 3
    assert not left.exists()


def test_leftovers_that_cannot_be_removed_do_not_hide_the_error_of_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_world(tmp_path)

    def fail(*_: Any) -> None:
        raise fp.StateConflictError("another process has moved the position")

    def clear(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    with monkeypatch.context() as patch:
        patch.setattr(State, "decide", fail)
        patch.setattr(LocalStore, "clear", clear)
        with pytest.raises(fp.StateConflictError, match="moved the position"):
            make_job(tmp_path).run()
    assert make_job(tmp_path).run().version == 2


def test_folders_inside_each_other(tmp_path: Path) -> None:
    for source, state_folder, sink in (("a", "b", "a/c"), ("a", "a/b", "c"), ("a/b", "c", "a"), ("a", "b", "b")):
        with pytest.raises(fp.SinkError, match=r"is inside .* its own folder"):
            DedupJob(tmp_path / source, tmp_path / state_folder, tmp_path / sink)


def test_the_exhaustive_tests_have_repeats_to_find(tmp_path: Path) -> None:
    """The exhaustive test above is effective: there are repeats, and rows of every file are kept."""
    prepare_world(tmp_path)
    make_job(tmp_path).run()
    kept, landed = read_sink(tmp_path), read_source(tmp_path)
    assert 0 < len(kept) < len(landed)
    assert kept.filter(kept["pid"] >= 0).n_unique(IDENTITY) == len(kept.filter(kept["pid"] >= 0))
    assert {origin.split(":")[0] for origin in kept["origin"]} == {"10", "2", "3"}


class _PowerLoss(BaseException):
    pass


@pytest.mark.parametrize("folder", ["log", "done"])
def test_names_that_a_dead_run_did_not_wait_for_are_made_durable_before_they_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """It died between the link and the sync of the folder: a power loss could still remove the name."""
    prepare_world(tmp_path, 1)
    real_link, real_fsync = os.link, os.fsync
    synced: list[str] = []
    is_linked = [False]

    def link(source: Any, target: Any, **options: Any) -> None:
        real_link(source, target, **options)
        is_linked[0] = is_linked[0] or f"/state/{folder}/" in str(target)

    def fsync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if is_linked[0] and path.endswith(f"/state/{folder}"):
            raise _PowerLoss
        real_fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(_PowerLoss):
            make_job(tmp_path).run()

    def watch(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real_fsync(handle)

    def refuse(*_: Any, **__: Any) -> None:
        assert any(path.endswith(f"/state/{folder}") for path in synced), "nothing is built on it before"
        raise _PowerLoss

    land_some(tmp_path, [7])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watch)
        for name in ("link", "rename"):
            patch.setattr(os, name, refuse)
        with pytest.raises(_PowerLoss):
            make_job(tmp_path).run()


def test_shared_folders_are_synced_by_every_process_that_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state" / "segments" / "2").mkdir(parents=True)  # by a run that died before it synced
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    file = state.open_store(tmp_path / "state").writer("segments/2/attempt/a.state")
    file.write(b"1")
    file.close()
    assert {".", "state", "state/segments", "state/segments/2"} <= set(synced)
