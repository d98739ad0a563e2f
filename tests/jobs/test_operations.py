"""Operations on a state: each makes a version like a run, after any crash and with concurrent writers."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost import StateTable, state
from fencepost.state import changelog, operations, versions
from fencepost.state.changelog import changes, write_lines
from fencepost.state.commit import commit, recover
from fencepost.state.decision import Decision, Inputs, Outputs, Settings, Shards, SideFiles
from fencepost.state.disk import Disk
from fencepost.state.ledger import file_table
from fencepost.state.segment_files import SegmentWriter, advance, held_positions, load_table
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import LocalStore, Store, open_store
from fencepost.state.versions import State
from support import daily
from support.lake import Crash, crash_at
from support.operations import Cluster, fold, missing

SHARDS = 4
COMPOSITE = fp.Columns(pid=("cluster", "pid"), partition=("topic", "partition"))


class World:
    """A state, a sink, and runs without files: rows are judged, what is kept is one text file."""

    def __init__(
        self,
        root: Path,
        *,
        keep: tuple[str, ...] = (),
        policy: fp.Policy | None = None,
        store: Store | None = None,
        shards: int = SHARDS,
    ) -> None:
        self.root, self.keep, self.shards = root, keep, shards
        self.policy = policy or fp.Policy.any_order()
        self.state = State(store or LocalStore(root / "state", sync=False))
        self.sink = RunFolders(root / "sink", Disk(False))

    def settings(self) -> Settings:
        columns = self.policy.columns
        roles = ("pid", "epoch", "partition", "seq", "timestamp")
        names = {role: getattr(columns, role) for role in roles}
        return Settings(
            id=uuid.uuid4().hex,
            policy=self.policy.rules,
            columns={role: list(it) if isinstance(it, tuple) else it for role, it in names.items()},
            scope=None,
            keep=list(self.keep),
            shards=self.shards,
            source="nowhere",
            sink=str(self.sink.path),
            fencepost=fp.__version__,
        )

    def run(self, rows: pa.Table, name: str, *, until: str = "done") -> Decision:
        """One version from these rows, as if they were the file `name`."""
        recover(self.state, self.sink)
        version, before = self.state.head()
        attempt = uuid.uuid4().hex
        count = before.shard_count if before else self.shards
        numbers = np.asarray(pa.array(fp.shards(rows, count, self.policy.columns)).fill_null(0))
        changed, kept, lines = [], [], []
        settings = self.state.settings() or self.settings()
        with SegmentWriter(self.state.store, version, attempt) as writer:
            for shard in np.unique(numbers).tolist():
                known = before.shards.get(shard) if before else None
                pieces = known.pieces if known else ()
                table = load_table(self.state.store, pieces, settings.full_policy(), keep=settings.keep)
                missing = pa.table(table.missing())
                if before and before.horizon_ms not in (None, table.horizon_ms):
                    table.evict(before.horizon_ms, 0)
                mine = np.flatnonzero(numbers == shard)
                verdicts = table.apply(rows.take(pa.array(mine)))
                kept += mine[np.asarray(pa.array(verdicts.kept))].tolist()
                after = pa.table(table.missing())
                lines += changes(missing, after, table, version)
                changed.append(advance(table, known, shard, writer, held_positions(table), after))
        files = Inputs(path=[name], bytes=[1], mtime_ns=[1], inode=[1], etag=[""], rows=[len(rows)], footer_crc=[0])
        if version == 1:
            self.sink.claim(self.state.create(settings).id)
        folder = self.sink.prepare_folder(version, attempt)
        text = "".join(f"{row}\n" for row in sorted(kept))
        folder.mkdir(parents=True)
        (folder / "kept").write_text(text)
        names, sides = {"kept.txt": "kept"} if kept else {}, []
        if lines:
            side, name_of_lines = write_lines(lines, self.sink.scratch(version, attempt))
            names[side["name"]] = name_of_lines
            sides.append(side)
        prepared = self.sink.collect(version, attempt, names) if names else None
        outputs = Outputs(name=["kept.txt"], ordinal=[0], rows=[len(kept)], bytes=[len(text)], footer_crc=[0])
        decision = self.state.follow(
            version,
            before,
            attempt,
            inputs=files,
            outputs=outputs if kept else Outputs(),
            side_files=SideFiles.of(sides),
            prepared=prepared,
            shard_count=count,
            shards=(before.shards if before else Shards()).replaced(changed),
            ledger=self.state.extend_ledger(before, version, attempt, [file_table(files)]),
            policy=self.policy.rules,
        )
        if until == "decide":
            assert self.state.decide(decision)
        elif until == "done":
            commit(self.state, self.sink, decision)
        return decision

    def again(self) -> World:
        """The same, as another process sees it."""
        return World(self.root, keep=self.keep, policy=self.policy, shards=self.shards)

    def verdicts(self, rows: pa.Table) -> list[int]:
        """The verdict of the state on each row alone."""
        before = self.state.latest()
        assert before is not None
        numbers = np.asarray(pa.array(fp.shards(rows, before.shard_count, self.policy.columns)))
        found = np.zeros(len(rows), dtype=int)
        for shard in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == shard)
            table = self.state.table(before, shard)
            for row in mine.tolist():
                found[row] = pa.array(table.check(rows.slice(row, 1)).verdict)[0].as_py()
        return found.tolist()

    def files(self) -> list[str]:
        return self.state.store.list("segments")


def rows_of(seed: int, count: int = 300, *, pids: int = 40) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "pid": rng.integers(0, pids, count),
            "epoch": rng.integers(0, 2, count).astype(np.int16),
            "partition": rng.integers(0, 3, count).astype(np.int32),
            "seq": rng.integers(0, 60, count).astype(np.int32),
            "timestamp": np.sort(rng.integers(seed * 1_000, seed * 1_000 + 1_000, count)),
        }
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three versions; there are holes and entries in every shard."""
    made = World(tmp_path / "world", keep=("timestamp",))
    for seed in (1, 2, 3):
        made.run(rows_of(seed), f"{seed}.txt")
    return made


def glance(opened: State) -> list[tuple[int, str, str, int]]:
    return [(it.version, it.kind, it.status, it.builds_on) for it in opened.versions()]


RUNS = [(1, "run", "applied", 0), (2, "run", "applied", 1), (3, "run", "applied", 2)]


def content(opened: State) -> dict[str, Any]:
    """What a state knows, however it is cut."""
    keys = [(name, "ascending") for name in opened.entries().schema.names if name.startswith(("pid", "part", "epoch"))]
    latest = opened.latest()
    assert latest is not None
    assert latest.missing_open == sum(opened.missing()["count"].to_pylist())
    return {
        "entries": opened.entries().sort_by(keys).to_pylist(),
        "ledger": opened.ledger(latest)["path"].to_pylist(),
        "missing": missing(opened),
        "horizon": latest.horizon_ms,
    }


# -- Rollback


def test_rollback_is_a_new_version_with_an_old_content(world: World) -> None:
    old, before = World(world.root / "old", keep=("timestamp",)), content(world.state)
    old.run(rows_of(1), "1.txt")
    with pytest.raises(fp.SinkError, match=r"still in .*\(versions 2, 3\)"):
        world.state.rollback(1)
    assert glance(world.state) == RUNS
    for version in (2, 3):
        (world.sink.path / f"run={version}" / "kept.txt").unlink()
    decision = world.state.rollback(1)
    assert (decision.version, decision.builds_on, decision.report["rolled_back_to"]) == (4, 1, 1)
    assert glance(world.state) == [*RUNS, (4, "rollback", "applied", 1)]
    assert content(world.state) == content(old.state)
    assert os.listdir(world.sink.path / "run=4") == ["_missing"]
    world.run(rows_of(2), "2.txt")
    world.run(rows_of(3), "3.txt")
    assert content(world.state) == before
    assert fold(world.sink.path) == missing(world.state)
    assert glance(world.state)[-1] == (6, "run", "applied", 5)


def test_rollback_that_accepts_duplicates(world: World) -> None:
    decision = world.state.rollback(2, accept_duplicates=True)
    assert decision.report == {"rolled_back_to": 2, "duplicates_accepted_of": [3]}
    assert content(world.state)["ledger"] == ["1.txt", "2.txt"]
    nothing = world.state.rollback(0, accept_duplicates=True)
    assert (nothing.version, nothing.builds_on, len(world.state.entries())) == (5, 0, 0)
    world.run(rows_of(1), "1.txt")
    assert glance(world.state)[3:] == [
        (4, "rollback", "applied", 2),
        (5, "rollback", "applied", 0),
        (6, "run", "applied", 5),
    ]


def test_a_rollback_that_would_lose_rows(world: World) -> None:
    """Back to a version whose output was removed for an earlier rollback: the state must not know its rows."""
    taken = world.sink.path / "run=3" / "kept.txt"
    taken.rename(world.root / "away")
    world.state.rollback(2)
    with pytest.raises(fp.SinkError, match=r"no longer in .*\(versions 3\): restore"):
        world.state.rollback(3, accept_duplicates=True)
    (world.root / "away").rename(taken)
    world.state.rollback(3)
    assert content(world.state)["ledger"] == ["1.txt", "2.txt", "3.txt"]


@pytest.mark.parametrize("version", [-1, 4, 9])
def test_no_such_version_to_go_back_to(world: World, version: int) -> None:
    with pytest.raises(fp.SnapshotError, match=rf"no applied version {version}; .*newest is 3"):
        world.state.rollback(version)


# -- The changelog of missing ranges


@pytest.mark.parametrize("removed", ["nothing", "rows", "everything", "some", "all lines"])
def test_after_a_rollback_the_changelog_gives_the_old_state(world: World, removed: str) -> None:
    assert fold(world.sink.path) == missing(world.state)
    gone = {"nothing": [], "some": ["run=2/_missing/*"], "all lines": ["run=*/_missing/*"]}
    gone |= {"rows": ["run=[23]/kept.txt"], "everything": ["run=[23]/kept.txt", "run=[23]/_missing/*"]}
    saved = world.root / "saved"
    shutil.copytree(world.sink.path, saved)
    for path in [it for pattern in gone[removed] for it in world.sink.path.glob(pattern)]:
        path.unlink()
    wanted = Counter({line: count for line, count in fold(saved).items() if count})
    decision = world.state.rollback(1, accept_duplicates=removed not in ("rows", "everything"))
    assert fold(world.sink.path) == missing(world.state) != wanted
    assert decision.side_files.table == ([] if removed == "everything" else ["missing"])
    assert os.listdir(world.sink.path / "run=4") == (["_empty"] if removed == "everything" else ["_missing"])
    # What was taken away comes back, and so does its version.
    for path in sorted(saved.glob("run=[123]/**/*.*")):
        shutil.copy(path, world.sink.path / path.relative_to(saved))
    world.state.rollback(3, accept_duplicates=True)
    assert fold(world.sink.path) == missing(world.state) == wanted
    world.state.rollback(0, accept_duplicates=True)
    assert fold(world.sink.path) == missing(world.state) == Counter()


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("wrap", [2**31, 40])
def test_changes_are_the_difference_of_two_lists(is_text: bool, wrap: int) -> None:
    """Whatever the lists share: beginnings of keys, whole keys, nothing; ranges of two laps are there twice."""
    rng = np.random.default_rng(wrap)
    table = StateTable(fp.Policy.any_order().replace(wrap=wrap))
    kinds = set()
    for _ in range(40):
        count = int(rng.integers(1, 20))
        pids = rng.integers(5, size=count)
        rows = {
            "pid": [f"p{it}" for it in pids] if is_text else pids,
            "epoch": np.zeros(count, np.int64),
            "partition": rng.integers(2, size=count),
            "seq": rng.integers(30, size=count) + (0 if wrap == 40 else int(rng.integers(3)) * 30),
        }
        before = pa.table(table.missing())
        table.apply(pa.table(rows))
        after = pa.table(table.missing())
        was, now = (Counter(map(str, it.to_pylist())) for it in (before, after))
        lines = [line for found in changes(before, after, table, 7) for line in found.to_pylist()]
        assert {line.pop("version") for line in lines} <= {7}
        changed = [(line.pop("change"), str(line)) for line in lines]
        assert Counter(line for change, line in changed if change == "OPEN") == now - was
        assert Counter(line for change, line in changed if change != "OPEN") == was - now
        kinds |= {change for change, _ in changed}
    assert kinds == {"OPEN", "CLOSED", "SPLIT"}


@pytest.mark.parametrize("seed", daily.first(range(6), 2))
def test_the_changelog_gives_the_missing_ranges_after_any_operation(tmp_path: Path, seed: int) -> None:
    world, draw, kinds = World(tmp_path, keep=("timestamp",)), np.random.default_rng(seed), set()
    for number in range(1, 25):
        act = "run" if number < 3 else draw.choice(["run", "run", "evict", "reshard", "rollback"])
        if act == "run":
            world.run(rows_of(number), f"{number}.txt")
        elif act == "evict":
            world.state.evict(number * 1_000, int(draw.integers(500, 3_000)))
        elif act == "reshard":
            world.state.reshard(int(draw.integers(1, 8)))
        else:
            for path in sorted(world.sink.path.glob("run=*/_missing/*")):
                if draw.random() < 0.2:
                    path.unlink()
            world.state.rollback(int(draw.integers(0, number)), accept_duplicates=True)
        kinds.add(str(act))
        assert fold(world.sink.path) == missing(world.state), (number, act)
    assert kinds == {"run", "evict", "reshard", "rollback"}


def test_an_eviction_reports_final_ranges(world: World) -> None:
    before = missing(world.state)
    decision = world.state.evict(3_900, 600)
    (path,) = (world.sink.path / "run=4").rglob("*.parquet")
    lines = pq.ParquetFile(path).read()
    assert set(lines["change"].to_pylist()) == {"FINAL"}
    assert len(lines) == decision.side_files.rows[0] == (before - missing(world.state)).total() > 0
    assert fold(world.sink.path) == missing(world.state)
    world.state.evict(3_900, 600)
    assert os.listdir(world.sink.path / "run=5") == ["_empty"]


def test_a_file_of_the_changelog_that_cannot_be_read(world: World) -> None:
    path = world.sink.path / "run=2" / "_missing" / "part-00000.parquet"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(fp.SinkError, match=f"{path}: .*cannot be read .*Restore the file, "):
        world.state.rollback(1, accept_duplicates=True)
    assert glance(world.state) == RUNS
    path.unlink()
    world.state.rollback(1, accept_duplicates=True)
    assert fold(world.sink.path) == missing(world.state)


def test_a_rollback_sums_the_changelog_incrementally(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "TALLY_MIN", 10)
    world.state.rollback(1, accept_duplicates=True)
    assert fold(world.sink.path) == missing(world.state)


# -- Abandon


def test_abandon(world: World) -> None:
    before = content(world.state)
    stuck = world.run(rows_of(4), "4.txt", until="decide")
    world.state.abandon(4)
    assert glance(world.state) == [*RUNS, (4, "run", "abandoned", 3)]
    assert os.listdir(world.sink.path / "run=4") == ["_abandoned"]
    assert content(world.state) == before
    world.state.abandon(4)  # once more
    assert world.sink.apply(stuck) == "abandoned", "who still tries is fenced"
    assert os.listdir(world.sink.path / "run=4") == ["_abandoned"]
    world.again().run(rows_of(4), "4.txt")
    assert glance(world.state)[3:] == [(4, "run", "abandoned", 3), (5, "run", "applied", 3)]
    assert world.state.version(5).outputs.rows == stuck.outputs.rows


def test_a_version_is_not_abandoned_in_the_sink_of_another_state(world: World, tmp_path: Path) -> None:
    """A driver that is paused would show it in its own, and its rows would come again in the next version."""
    stuck = world.run(rows_of(4), "4.txt", until="decide")
    other = World(tmp_path / "other")
    other.run(rows_of(1), "1.txt")
    for sink, about in ((other.sink, "another state"), (RunFolders(tmp_path / "new", Disk(False)), "no state")):
        with pytest.raises(fp.SinkError, match=f"belongs to {about}"):
            world.state.abandon(4, sink=sink)
        assert not (sink.path / "run=4").exists()
    assert world.state.status(4) == "decided"
    world.state.abandon(4, sink=world.sink)
    assert world.sink.apply(stuck) == "abandoned"


def test_an_attempt_discards_nothing_that_its_version_needs(world: World) -> None:
    """It may hear of a conflict after it has decided: another driver has finished the version otherwise than it."""
    stuck = world.run(rows_of(4), "4.txt", until="decide")
    files = stuck.files() & set(world.files())
    assert any(name.startswith("segments/4/") for name in files)
    world.state.discard(4, stuck.attempt)
    assert files <= set(world.files())
    assert world.sink.apply(stuck) == "applied"
    world.state.finish(4)
    with pytest.raises(fp.StateConflictError, match="version 4 as applied, not"):
        world.state.finish(4, "abandoned")
    world.state.discard(4, stuck.attempt)
    assert files <= set(world.files())
    given_up = world.run(rows_of(5), "5.txt", until="decide")
    world.state.abandon(5)
    world.state.discard(5, given_up.attempt)
    assert not [name for name in world.files() if name.startswith("segments/5/")]


def test_abandon_the_first_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(rows_of(1), "1.txt", until="decide")
    world.state.abandon(1)
    assert world.state.head() == (2, None)
    world.run(rows_of(1), "1.txt")
    assert glance(world.state) == [(1, "run", "abandoned", 0), (2, "run", "applied", 0)]


def test_a_visible_version_cannot_be_abandoned(world: World) -> None:
    with pytest.raises(fp.StateConflictError, match="version 3 is applied"):
        world.state.abandon(3)
    stuck = world.run(rows_of(4), "4.txt", until="decide")
    assert world.sink.apply(stuck) == "applied"
    with pytest.raises(fp.StateConflictError, match="version 4 is applied"):
        world.state.abandon(4)
    assert glance(world.state)[-1] == (4, "run", "applied", 3)
    with pytest.raises(fp.SnapshotError, match=r"version 5 does not exist"):
        world.state.abandon(5)


def test_a_version_without_output_is_fenced_too(world: World) -> None:
    decided = world.run(rows_of(3), "3 again.txt", until="decide")
    assert decided.prepared is None
    assert world.sink.fence(decided) == "abandoned"
    assert world.sink.apply(decided) == "abandoned"
    assert recover(world.state, world.sink) == (4,)
    assert glance(world.state)[-1] == (4, "run", "abandoned", 3)


@pytest.mark.parametrize("marker", ["_empty", "_abandoned"])
def test_a_driver_that_is_overtaken_while_it_writes_its_marker(
    world: World, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    """Another driver shows the version meanwhile, and collects the marker's folder as garbage."""
    world.run(rows_of(3), "3 again.txt", until="decide")
    write, overtaken = Disk.write, []

    def slow(disk: Disk, path: Path, data: bytes) -> None:
        if path.name == marker and not overtaken:
            overtaken.append(path)
            other = world.again()
            assert recover(other.state, other.sink) == (4,)
            assert not path.parent.exists()
        write(disk, path, data)

    monkeypatch.setattr(Disk, "write", slow)
    if marker == "_empty":
        assert recover(world.state, world.sink) == (4,)
    else:
        with pytest.raises(fp.StateConflictError, match="version 4 is applied"):
            world.state.abandon(4)
    assert overtaken
    assert glance(world.state)[-1] == (4, "run", "applied", 3)
    assert os.listdir(world.sink.path / "run=4") == ["_empty"]


def test_a_run_that_is_abandoned_while_it_applies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    decide = State.decide

    def decide_then_abandoned(self: State, decision: Decision) -> bool:
        won = decide(self, decision)
        world.again().state.abandon(4)
        return won

    with monkeypatch.context() as patch:
        patch.setattr(State, "decide", decide_then_abandoned)
        with pytest.raises(fp.StateConflictError, match="version 4 was abandoned"):
            world.run(rows_of(4), "4.txt")
    assert glance(world.state)[-1] == (4, "run", "abandoned", 3)


def test_a_sink_without_permissions_does_not_count_as_showing_the_version(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(rows_of(4), "4.txt", until="decide")

    def forbidden(*_: object) -> None:
        raise PermissionError("no rights")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", forbidden)
        with pytest.raises(PermissionError, match="no rights"):
            world.state.abandon(4)
    assert world.state.status(4) == "decided"
    world.state.abandon(4)
    assert glance(world.state)[-1] == (4, "run", "abandoned", 3)


def test_a_version_whose_name_another_has_taken_is_abandoned(world: World) -> None:
    """It is not shown, and never can be: its rows are for the next version."""
    stuck = world.run(rows_of(4), "4.txt", until="decide")
    foreign = world.sink.path / "run=4"
    foreign.mkdir()
    (foreign / "theirs.txt").write_text("another's")
    with pytest.raises(fp.SinkChangedError, match=f"{foreign}: .* version 4"):
        recover(world.state, world.sink)
    world.state.abandon(4)
    assert os.listdir(foreign) == ["theirs.txt"]
    world.run(rows_of(4), "4.txt")
    assert glance(world.state)[3:] == [(4, "run", "abandoned", 3), (5, "run", "applied", 3)]
    assert world.state.version(5).outputs.rows == stuck.outputs.rows


def test_a_version_that_is_shown_in_part_is_neither_applied_nor_abandoned(world: World) -> None:
    """Its rows would be lost or there twice: people must look."""
    stuck = world.run(rows_of(4), "4.txt", until="decide")
    world.sink.apply(stuck)
    (world.sink.path / "run=4" / "more.txt").touch()
    for act, problem in (
        (lambda: world.state.abandon(4), "has some files"),
        (lambda: recover(world.state, world.sink), "not the folder"),
    ):
        with pytest.raises(fp.SinkChangedError, match=f"run=4: {problem} .*version 4"):
            act()
    assert world.state.status(4) == "decided"
    (world.sink.path / "run=4" / "more.txt").unlink()
    assert recover(world.state, world.sink) == (4,)


def test_abandon_waits_for_the_disk_before_it_believes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of the decision may have died before the sync, and so may the driver that showed the version."""
    world.run(rows_of(4), "4.txt", until="decide")
    seal, sealed = Disk.seal, []
    monkeypatch.setattr(Disk, "seal", lambda disk, path: (sealed.append(path), seal(disk, path))[1])
    folder = world.root / "state"
    world.again().state.abandon(4)
    assert sealed[:2] == [folder / "log", folder / "done"]
    world.run(rows_of(4), "4.txt", until="decide")
    world.sink.apply(world.state.version(5))
    sealed.clear()
    with pytest.raises(fp.StateConflictError, match="version 5 is applied"):
        world.again().state.abandon(5)
    assert sealed[-1] == folder / "done"
    assert sealed.index(world.sink.path) < len(sealed) - 1


# -- Reshard


@pytest.mark.parametrize("count", [1, 3, 64])
def test_reshard_changes_no_verdict(world: World, count: int) -> None:
    probe, before = rows_of(9, 200, pids=60), content(world.state)
    verdicts = world.verdicts(probe)
    assert set(verdicts) == {0, 1}
    decision = world.state.reshard(count)
    assert (decision.shard_count, decision.kind) == (count, "reshard")
    assert 0 < len(decision.shards) <= count
    assert decision.entries == len(before["entries"])
    assert content(world.state) == before
    assert world.verdicts(probe) == verdicts
    world.run(rows_of(5), "5.txt")
    undisturbed = World(world.root / "undisturbed", keep=("timestamp",))
    for seed in (1, 2, 3, 5):
        undisturbed.run(rows_of(seed), f"{seed}.txt")
    assert content(world.state) == content(undisturbed.state)
    assert world.state.shard_count(world.state.latest(), None, 16) == count
    with pytest.raises(fp.SnapshotError, match=f"{count} shards .*resharded, .* has 4"):
        world.state.shard_count(world.state.latest(), 4, 16)
    assert world.state.reshard(SHARDS).shard_count == SHARDS
    assert content(world.state) == content(undisturbed.state)


@pytest.mark.parametrize(
    "policy",
    [
        fp.Policy.any_order().replace(columns=COMPOSITE),
        fp.Policy.kafka(),
        fp.Policy.in_order(),
        fp.Policy.kafka_offsets(),
    ],
    ids=lambda it: it.name,
)
def test_reshard_of_other_policies_and_keys(tmp_path: Path, policy: fp.Policy) -> None:
    world = World(tmp_path, policy=policy)

    def rows(seed: int) -> pa.Table:
        plain = rows_of(seed)
        more = {
            "cluster": [f"east-{it % 3}" for it in range(len(plain))],
            "topic": pa.array([f"t{it % 2}" for it in range(len(plain))]).dictionary_encode(),
            "offset": plain["seq"].cast(pa.int64()),
        }
        return pa.table(dict(zip(plain.column_names, plain.columns, strict=True)) | more)

    world.run(rows(1), "1.txt")
    world.run(rows(2), "2.txt")
    probe, before = rows(9).slice(0, 100), content(world.state)
    verdicts = world.verdicts(probe)
    world.state.reshard(7)
    assert content(world.state) == before
    assert world.verdicts(probe) == verdicts


@pytest.mark.parametrize("pid", ["integer", "text"])
def test_a_shard_that_has_forgotten_everybody(tmp_path: Path, pid: str) -> None:
    world = World(tmp_path, keep=("timestamp",), shards=64)
    rows = rows_of(1, 40)
    if pid == "text":
        rows = rows.set_column(0, "pid", rows["pid"].cast(pa.string()))
    world.run(rows, "1.txt")
    times = sorted(rows["timestamp"].to_pylist())
    world.state.evict(times[-1], times[-1] - times[-2])  # the newest stays, or those of the newest time
    sizes = [len(table) for _, table in world.state.tables()]
    assert 0 in sizes
    assert sum(sizes)
    before = content(world.state)
    assert len(before["entries"]) == sum(sizes)
    world.state.reshard(3)
    assert content(world.state) == before


def test_reshard_after_a_horizon_that_not_every_shard_has_seen(tmp_path: Path) -> None:
    """Runs evict the shards that they touch; the others catch up when they are read."""
    world = World(tmp_path, keep=("timestamp",), shards=64)
    world.run(rows_of(1, 40), "1.txt")
    _, before = world.state.head()
    assert before is not None
    horizon = int(np.median(rows_of(1, 40)["timestamp"].to_numpy()))
    decision = world.state.follow(2, before, uuid.uuid4().hex, kind="evict", clock_ms=horizon, horizon_ms=horizon)
    commit(world.state, world.sink, decision)
    after = content(world.state)
    assert len(after["entries"]) < before.entries
    world.state.reshard(3)
    assert content(world.state) == after


@pytest.mark.parametrize("count", [0, operations.SHARDS_MAX + 1])
def test_invalid_numbers_of_shards_are_refused(world: World, count: int) -> None:
    with pytest.raises(ValueError, match=f"shards={count}: expected 1 to {operations.SHARDS_MAX}"):
        world.state.reshard(count)


# -- Evict


def test_evict(world: World) -> None:
    everything = fp.StateTable("any_order", keep=("timestamp",))
    for seed in (1, 2, 3):
        everything.apply(rows_of(seed))
    gone = everything.evict(3_900, 600)
    decision = world.state.evict(3_900, 600)
    assert gone > 0
    assert (decision.report["evicted"], decision.clock_ms, decision.horizon_ms) == (gone, 3_900, 3_300)
    again = pa.table(everything.entries()).replace_schema_metadata(None)
    keys = [("pid", "ascending"), ("partition", "ascending"), ("epoch", "ascending")]
    assert content(world.state)["entries"] == again.sort_by(keys).to_pylist()
    earlier = world.state.evict(1_000, 600)
    assert (earlier.clock_ms, earlier.horizon_ms, earlier.report["evicted"]) == (3_900, 3_300, 0)
    assert earlier.shards == decision.shards


def test_the_clock_is_the_states_own_unless_given(tmp_path: Path) -> None:
    world = World(tmp_path, keep=("timestamp",))
    world.run(rows_of(1), "1.txt")
    with pytest.raises(fp.PolicyError, match="clock has not started"):
        world.state.evict(None, 600)
    first = world.state.evict(3_900, 600)
    again = world.state.evict(None, 500)
    assert (again.clock_ms, again.horizon_ms) == (3_900, 3_400)
    # What was forgotten by a wrong clock is known again after a rollback, and so is what time it was.
    world.state.evict(10**12, 500)
    back = world.state.rollback(first.version)
    assert (back.clock_ms, back.horizon_ms) == (first.clock_ms, first.horizon_ms)
    assert world.state.rollback(1).clock_ms is None


def test_a_shard_without_state_knows_the_horizon(tmp_path: Path) -> None:
    world = World(tmp_path, keep=("timestamp",), shards=64)
    world.run(rows_of(1, 4), "1.txt")
    world.state.evict(10_000, 100)
    late = rows_of(2)
    assert set(world.verdicts(late)) == {fp.Verdict.FORGOTTEN}


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("now_ms", [-(2**63) - 1, 2**63, 10**30])
def test_a_time_beyond_64_bits_is_refused(tmp_path: Path, rows: int, now_ms: int) -> None:
    """Also by a state without shards, of which no task finds out. Every later run would stop at it."""
    world = World(tmp_path, keep=("timestamp",))
    world.run(rows_of(1, rows), "1.txt")
    with pytest.raises(fp.PolicyError, match="64 bits"):
        world.state.evict(now_ms, 10)
    assert world.state.decided() == 1


def test_a_state_without_timestamps_cannot_evict(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(rows_of(1), "1.txt")
    with pytest.raises(fp.PolicyError, match="keeps no timestamps"):
        world.state.evict(1, 1)


def test_a_list_that_a_disk_does_not_return_is_not_called_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice for a damaged one is to remove it."""

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetFile", fail)
        with pytest.raises(fp.StoreError) as info:
            world.state.rollback(1, accept_duplicates=True)
    assert info.value.errno == errno.EIO
    next(world.sink.path.glob("run=*/_missing/*")).write_bytes(b"PAR1")
    with pytest.raises(fp.SinkError, match="Restore the file"):
        world.state.rollback(1, accept_duplicates=True)
    assert glance(world.state) == RUNS


# -- Garbage


@pytest.mark.parametrize("log_bytes_max", [65_536, 100])
def test_versions_that_are_not_kept(world: World, log_bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "DECISION_BYTES_MAX", log_bytes_max)
    for seed in (4, 5, 6, 7, 8):
        world.run(rows_of(seed, pids=400), f"{seed}.txt")
    before, files = content(world.state), world.files()
    assert world.state.collect_garbage() == 0
    removed = world.state.collect_garbage(keep_versions=2)
    assert 0 < len(files) - len(world.files()) <= removed
    assert len(world.state.store.list("body")) == (3 if log_bytes_max == 100 else 0)
    assert world.state.latest().oldest == 7  # type: ignore[union-attr]
    assert glance(world.state)[-1] == (9, "retain", "applied", 8)
    assert content(world.state) == before
    with pytest.raises(fp.SnapshotError, match="version 6 is older than 7, "):
        world.state.rollback(6, accept_duplicates=True)
    assert world.state.collect_garbage(keep_versions=100) == 0
    world.state.rollback(7, accept_duplicates=True)
    assert content(world.state)["ledger"] == [f"{seed}.txt" for seed in range(1, 8)]


def test_files_that_a_rollback_needs_are_never_collected(world: World) -> None:
    world.state.rollback(1, accept_duplicates=True)
    before = content(world.state)
    world.state.collect_garbage(keep_versions=1)
    assert content(world.state) == before
    world.run(rows_of(2), "2.txt")


def test_at_least_one_version_is_kept(world: World) -> None:
    with pytest.raises(ValueError, match="keep_versions=0: expected at least 1"):
        world.state.collect_garbage(keep_versions=0)


# -- Crashes and other writers

OPERATIONS: dict[str, Callable[[State], Any]] = {
    "rollback": lambda it: it.rollback(1, accept_duplicates=True),
    "reshard": lambda it: it.reshard(3),
    "evict": lambda it: it.evict(3_900, 600),
    "retain": lambda it: it.collect_garbage(keep_versions=1),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("half", daily.first(range(2)))
def test_operations_recover_from_a_kill_at_any_step(
    world: World, name: str, half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not decided: as if it had never begun. Decided: the next one finishes it. Every second step."""
    act, template = OPERATIONS[name], world.root.parent / "template"
    shutil.copytree(world.root, template)
    untouched = content(world.state)
    with crash_at(monkeypatch, 10**9) as calls:
        act(world.state)
    expected, total = content(world.state), calls[0]
    assert total >= 6
    outcomes = set()
    for call in range(1 + half, total + 1, 2):
        shutil.rmtree(world.root)
        shutil.copytree(template, world.root)
        opened = world.again()
        with crash_at(monkeypatch, call), pytest.raises(Crash):
            act(opened.state)
        opened = world.again()
        is_decided = opened.state.decided() > 3
        outcomes.add(is_decided)
        recover(opened.state, opened.sink)
        assert content(opened.state) == (expected if is_decided else untouched), call
        if not is_decided:
            act(opened.state)
        assert content(opened.state) == expected, call
        assert fold(opened.sink.path) == missing(opened.state), call
        opened.run(rows_of(6), "6.txt")
        opened.state.collect_garbage()
        named = set().union(*(opened.state.version(it).files() for it in range(opened.state.latest().oldest, 6)))  # type: ignore[union-attr]
        assert set(opened.files()) == named, call
        assert os.listdir(world.sink.path / "_prepare") == [], call
    assert outcomes == {True, False}


def test_abandon_recovers_from_a_kill_at_any_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fenced or not: the next driver decides it for all."""
    world.run(rows_of(4), "4.txt", until="decide")
    template, statuses = world.root.parent / "template", []
    shutil.copytree(world.root, template)
    with crash_at(monkeypatch, 10**9) as calls:
        world.state.abandon(4)
    for call in range(1, calls[0] + 1):
        shutil.rmtree(world.root)
        shutil.copytree(template, world.root)
        opened = world.again()
        with crash_at(monkeypatch, call), pytest.raises(Crash):
            opened.state.abandon(4)
        opened = world.again()
        recover(opened.state, opened.sink)
        statuses.append(opened.state.status(4))
        shown = sorted(os.listdir(world.sink.path / "run=4"))
        assert shown == {"applied": ["_missing", "kept.txt"], "abandoned": ["_abandoned"]}[statuses[-1]], call
        opened.run(rows_of(6), "6.txt")
    assert statuses == sorted(statuses, reverse=True), "applied up to the fence, abandoned from there on"
    assert set(statuses) == {"applied", "abandoned"}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("faster", ["run", "rollback"])
def test_the_slower_writer_gets_a_conflict(
    world: World, name: str, faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = State.decide

    def overtaken(self: State, decision: Decision) -> bool:
        monkeypatch.setattr(State, "decide", decide)
        other = world.again()
        if faster == "run":
            other.run(rows_of(4), "4.txt")
        else:
            other.state.rollback(2, accept_duplicates=True)
        return decide(self, decision)

    monkeypatch.setattr(State, "decide", overtaken)
    with pytest.raises(fp.StateConflictError, match=r"another run decided version 4 first.*run again"):
        OPERATIONS[name](world.state)
    assert glance(world.state)[-1][:3] == (4, faster, "applied")
    named = set().union(*(world.state.version(it).files() for it in range(1, 5)))
    assert set(world.files()) == named, "nothing of the attempt that lost is left"
    assert not any((world.sink.path / "_prepare").iterdir())
    OPERATIONS[name](world.again().state)


@pytest.mark.parametrize("name", ["rollback", "reshard", "evict"])
def test_an_operation_whose_files_the_winner_has_removed_gets_a_conflict(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a version that is done, the files of all other attempts are leftovers, also of those that still write."""
    prepared = operations._Attempt.prepared

    def overtaken(self: operations._Attempt, lines: list[Any]) -> dict[str, Any]:
        monkeypatch.setattr(operations._Attempt, "prepared", prepared)
        world.again().run(rows_of(4), "4.txt")
        raise FileNotFoundError(f"segments/4/{self.attempt}")

    monkeypatch.setattr(operations._Attempt, "prepared", overtaken)
    with pytest.raises(fp.StateConflictError, match="another run decided version 4 first"):
        OPERATIONS[name](world.state)
    monkeypatch.setattr(operations._Attempt, "prepared", lambda *_: {}["other"])
    with pytest.raises(KeyError, match="other"):
        OPERATIONS[name](world.again().state)


@pytest.mark.parametrize("name", ["rollback", "reshard", "evict", "retain"])
def test_a_state_before_its_first_version(tmp_path: Path, name: str) -> None:
    with pytest.raises(fp.SnapshotError, match=r"there is no state.json"):
        OPERATIONS[name](State(open_store(tmp_path / "state")))


def test_a_state_in_another_store(tmp_path: Path) -> None:
    """Nothing but the sink needs a folder."""
    world = World(tmp_path, keep=("timestamp",), store=open_store(f"memory://{tmp_path.name}-{uuid.uuid4().hex}"))
    for seed in (1, 2, 3):
        world.run(rows_of(seed), f"{seed}.txt")
    world.state.reshard(8)
    world.state.evict(3_900, 600)
    world.state.rollback(2, accept_duplicates=True)
    world.state.collect_garbage(keep_versions=1)
    opened = state.open(world.state.uri)
    assert [it.kind for it in opened.versions()] == ["run", "run", "run", "reshard", "evict", "rollback", "retain"]
    assert opened.ledger(opened.latest())["path"].to_pylist() == ["1.txt", "2.txt"]
    with pytest.raises(TypeError, match="not a local folder"):
        _ = opened.path


# -- Tasks


IN_TASKS: dict[str, tuple[Callable[[State], Any], str, int]] = {
    "rollback": (OPERATIONS["rollback"], "missing", 4),
    "evict": (OPERATIONS["evict"], "evict", 4),
    "retain": (OPERATIONS["retain"], "gc", 2),
    "split": (lambda it: it.reshard(8), "reshard", 4),
    "join": (lambda it: it.reshard(2), "reshard", 2),
    "deal": (lambda it: it.reshard(7), "reshard", 4),
}
"""The operation, its stage, and how many tasks that has."""


@pytest.mark.parametrize("name", IN_TASKS)
def test_operations_run_as_tasks(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task has some shards, on the state's engine: the driver reads none, and the result is the same."""
    monkeypatch.setattr(operations, "VERSIONS_TOGETHER", 2)
    act, stage, tasks = IN_TASKS[name]
    shutil.copytree(world.root, world.root.parent / "template")
    act(world.state)
    alone = (content(world.state), pieces(world.state), fold(world.sink.path))
    shutil.rmtree(world.root)
    shutil.copytree(world.root.parent / "template", world.root)
    opened, engine = world.again(), Cluster(monkeypatch)
    opened.state.engine = engine
    act(opened.state)
    assert engine.tasks == {stage: tasks}
    assert engine.read[False] == []
    if name not in ("retain", "deal"):
        assert set(Counter(engine.read[True]).values()) == {2}, "each piece by both attempts of one task"
    assert (content(opened.state), pieces(opened.state), fold(world.sink.path)) == alone
    assert os.listdir(world.sink.path / "_prepare") == []
    opened.state.collect_garbage()
    kept = range(opened.state.latest().oldest, opened.state.decided() + 1)  # type: ignore[union-attr]
    assert set(opened.files()) == set().union(*(opened.state.version(it).files() for it in kept))


def pieces(opened: State) -> list[tuple[int, str]]:
    """Shard and hash of all that the newest version has."""
    return [(it.shard, piece.sha256) for it in opened.latest().shards for piece in it.pieces]  # type: ignore[union-attr]
