"""Jobs whose versions are kept for some time, and what must be left of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fencepost import state
from fencepost.lake import DedupJob
from fencepost.state.ledger import read_ledger
from fencepost.state.sinks import RunFolders
from fencepost.state.versions import State

from support.lake import dead_before, land, make_rows

HOUR_MS, WEEK_MS = 3_600_000, 7 * 86_400_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The time in milliseconds, for the state and the job; two hours later with every version."""
    now = [1_800_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0] * 1_000_000)
    real = State.decide

    def decide(own: State, decision: Any) -> bool:
        now[0] += 2 * HOUR_MS
        return real(own, decision)

    monkeypatch.setattr(State, "decide", decide)
    return now


def make_job(root: Path, keep: int | None = 3, keep_ms: int = 0, **options: Any) -> DedupJob:
    given = {"sync": False, "settle_ms": 0, "shards": None if (root / "state").exists() else 2, **options}
    return DedupJob(
        root / "source", root / "state", root / "sink", keep_versions=keep, keep_versions_ms=keep_ms, **given
    )


def go(root: Path, seed: int, **options: Any) -> int:
    """A run over one more file; gives its version."""
    land(root / "source", f"{seed:04}.parquet", make_rows(seed, 40))
    version = make_job(root, **options).run().version
    assert version is not None
    return version


def opened(root: Path) -> State:
    return state.open(root / "state", sync=False)


def files_of(root: Path) -> set[str]:
    found = root / "state" / "segments"
    return {path.relative_to(root / "state").as_posix() for path in found.rglob("*") if path.is_file()}


def check(root: Path, *, has_crashed: bool = False) -> None:
    """Whatever can be gone back to is there; and of what cannot, only what the newest version has just given up."""
    own = opened(root)
    own.collect_leftovers()  # what crashed and beaten attempts left, as the next run will
    newest = own.latest()
    assert newest is not None
    kept = range(newest.oldest, own.decided() + 1)
    needed: set[str] = set()
    for version in kept:
        decision = own.version(version)
        needed |= decision.files()
        for shard in decision.shards:
            own.table(decision, shard.shard)
        read_ledger(own.store, decision.ledger)
    waiting: set[str] = set()
    for version in range(max(newest.collected, own.floor() + 1), newest.oldest):
        waiting |= own.files_of(version) or set()
    assert needed <= files_of(root)
    assert files_of(root) <= needed | waiting, "files that no run will ever remove"
    bodies = {int(path.name.partition("-")[0]) for path in (root / "state" / "body").glob("*")}
    assert not bodies or min(bodies) >= newest.collected
    check_folded(own, newest.oldest, has_crashed=has_crashed)


def check_folded(own: State, oldest: int, *, has_crashed: bool = False) -> None:
    """The log has just the versions that are not folded. A crash leaves files of the newest fold until the next one."""
    floor, newest = own.floor(), own.folded()
    assert floor < oldest
    numbers = range(floor + 1, own.decided() + 1)
    assert [it.version for it in own.versions()] == list(numbers)
    left = range(newest.removed + 1, newest.version + 1) if has_crashed and newest else range(0)
    for folder, ending in (("log", ".json"), ("done", "")):
        wanted, may_be_left = ({f"{folder}/{it}{ending}" for it in some} for some in (numbers, left))
        assert wanted <= set(own.store.list(folder)) <= wanted | may_be_left
    assert len(own.folds()) <= (3 if has_crashed else 2)


def abandon_next(root: Path, seed: int) -> None:
    """A version that is decided, cannot be shown, and is given up."""
    land(root / "source", f"{seed:04}.parquet", make_rows(seed, 40))
    with dead_before(RunFolders, "apply"):
        make_job(root).run()
    opened(root).abandon(opened(root).decided())
