"""Some faults of each kind on real runs, and broken jobs that they object to. `make faults` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.cases import CASES, OBJECTIONS, killed_at_a_step, stored
from faults.driver import Drive, go
from faults.order import Disk, check_order, recorded
from faults.world import Broken, World, check, job, leftovers, visible
from support import daily

QUICK = [
    "killed_at_a_step decide after row",
    "killed_at_a_step apply after aligned",
    "stopped decide after plan=interval",
    "stopped_and_abandoned before",
    "met_at_decide 3 versions=1",
    "disturbed_workers killed",
    "disturbed_workers twice 3 keeps",
    "killed_at_a_step compare after",
    "changed_source judge after swap",
    "killed_with_large_files 34",
    "killed_with_hot_shards 34",
    "full_by_limit 2500",
    "damaged segment flipped",
    "damaged settings missing",
]
MORE = ["disturbed_workers twice 4 hot"]
"""Each part of these is in a quick case: tasks that run twice, and shards that several tasks judge."""
STORED = [
    "stored killed_at_a_step apply after",
    "stored stopped_and_abandoned before",
]
BROKEN = ["relists", "drops_ledger", "drops_checksums"]


def pick(begin: str) -> str:
    """The first case whose name begins so."""
    return next(name for name in CASES if name.startswith(begin))


@pytest.mark.parametrize("begin", daily.first([*QUICK, *MORE], len(QUICK)))
def test_a_fault(tmp_path: Path, begin: str) -> None:
    case = CASES[pick(begin)]
    assert not case.needs, "quick cases need nothing but the project"
    case.act(tmp_path)


@pytest.mark.parametrize("begin", STORED)
def test_a_fault_with_state_and_sink_in_an_object_store(tmp_path: Path, endpoint: str, begin: str) -> None:
    CASES[pick(begin)].act(tmp_path, endpoint=endpoint)


def test_a_broken_sink_in_an_object_store_is_detected(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(Broken, match="before anything was decided"):
        stored(tmp_path, endpoint, killed_at_a_step, "collect", "after", mutant="shows_undecided")


@pytest.mark.parametrize("mutant", BROKEN)
def test_a_broken_job_is_detected(tmp_path: Path, mutant: str) -> None:
    name, act, facts = next(it for it in OBJECTIONS if it[0] == mutant)
    with pytest.raises(Broken):
        act(tmp_path, mutant=name, **facts)


def test_there_are_enough_cases_of_every_kind() -> None:
    assert len(CASES) >= 500
    kinds = {case.kind for case in CASES.values()}
    assert len(kinds) == 20
    assert {act.__name__ for _, act, _ in OBJECTIONS} >= {
        "killed_at_a_step",
        "stopped",
        "disturbed_workers",
        "in_order",
    }


@pytest.mark.parametrize("harm", ["output", "extra", "run", "rubbish", "unread", "segment"])
def test_the_check_sees(tmp_path: Path, harm: str) -> None:
    """Each check of a world detects its error."""
    world = World(tmp_path)
    world.land(1, 2)
    assert go(world, Drive()).version == 1
    check(world, {})
    assert not leftovers(world)
    before = visible(world)
    output = sorted((world.sink / "run=1").glob("*.parquet"))
    if harm == "output":
        output[0].write_bytes(output[1].read_bytes())
    elif harm == "extra":
        (world.sink / "run=1" / "part-00009.parquet").write_bytes(output[0].read_bytes())
    elif harm == "run":
        (world.sink / "run=2").mkdir()
    elif harm == "unread":
        world.land(3)
    elif harm == "segment":
        path = world.state / world.opened().version(1).shards.files[0]
        path.write_bytes(path.read_bytes()[:-1])
    else:
        (world.state / "log" / "1.json.0.tmp").touch()
        assert leftovers(world)
        return
    with pytest.raises((Broken, Exception)) as caught:
        check(world, {})
    assert caught.type.__name__ in ("Broken", "SnapshotError")
    assert (visible(world) != before) == (harm in ("output", "extra"))


def test_a_name_is_durable_once_its_folder_is_synced_and_not_by_its_content() -> None:
    disk = Disk()
    for event in (("folder", "/a/b", ""), ("make", "/a/b/c", ""), ("write", "/a/b/c", ""), ("sync", "/a/b/c", "")):
        disk.happen(*event)
    with pytest.raises(Broken, match=r"name /a/b/c .*durable before X"):
        disk.demand_durable("/a/b/c", "/a", "X")
    disk.happen("sync", "/a/b", "")
    with pytest.raises(Broken, match=r"name /a/b .*durable before X"):
        disk.demand_durable("/a/b/c", "/a", "X")
    disk.happen("sync", "/a", "")
    disk.demand_durable("/a/b/c", "/a", "X")
    disk.happen("write", "/a/b/c", "")
    with pytest.raises(Broken, match=r"/a/b/c .*synced before X"):
        disk.demand_durable("/a/b/c", "/a", "X")


@pytest.mark.parametrize("sync", [True, False])
def test_the_order_of_syncs_where_no_call_is_traced(tmp_path: Path, sync: bool) -> None:
    world = World(tmp_path)
    world.land(1, 2)
    events = recorded(lambda: job(world, {"sync": sync}).run(), tmp_path)
    if sync:
        check_order(world, 1, events)
    else:
        with pytest.raises(Broken, match="not synced before Decide"):
            check_order(world, 1, events)
