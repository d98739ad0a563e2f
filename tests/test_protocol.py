"""The commit protocol, explored: what must hold does, and no broken protocol gets past. docs/commit-protocol.md."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from protocol.explore import Exploration, explore, wander
from protocol.model import IDLE, PUT_OUTCOMES, STEPS, Bounds, Protocol
from protocol.mutants import MUTANTS, Mutant
from protocol.properties import STATE_PROPERTIES, STEP_PROPERTIES

DEEP = os.environ.get("FENCEPOST_MODEL") == "deep"

# (sink, bounds, worlds there are at least)
SMALL = (
    ("run", Bounds(faults=2, starts=2, changes=1), 40_000),
    ("run", Bounds(faults=1, starts=3, changes=1), 12_000),
    ("flat", Bounds(faults=1, starts=3, changes=1), 25_000),
    ("table", Bounds(faults=1, starts=3, changes=1), 10_000),
)
LARGE = (
    ("run", Bounds(faults=2, starts=3, changes=1), 0),
    ("flat", Bounds(faults=2, starts=3, changes=1), 0),
    ("table", Bounds(faults=2, starts=3, changes=1), 0),
    ("run", Bounds(faults=3, starts=2, changes=1), 0),
)
WALKS = 20_000 if DEEP else 150
KINDS = {"start", "abandon", "pause", "resume", "crash", "power", "step", "look", "collect", "land", "add"}
KINDS_OF = {
    "run": KINDS | {"overwrite", "delete", "squat"},
    "flat": KINDS | {"overwrite", "delete", "squat"},
    "table": KINDS | {"compact"},
}


def name(case: tuple[str, Bounds, int]) -> str:
    sink, bounds, _ = case
    return f"{sink}-{bounds.faults}-faults-{bounds.starts}-runs-{bounds.changes}-changes"


@pytest.mark.parametrize("case", [*SMALL, *(LARGE if DEEP else ())], ids=name)
def test_every_world_within_the_bounds(case: tuple[str, Bounds, int]) -> None:
    sink, bounds, worlds_min = case
    seen = explore(Protocol(sink, bounds))
    print(seen)
    assert not seen.violated, seen
    assert seen.complete
    assert seen.worlds >= worlds_min
    assert seen.transitions > seen.worlds
    everything_happened(sink, seen, unless=set() if bounds.faults > 1 else {"squat"})


@pytest.mark.parametrize("sink", ["run", "flat", "table"])
def test_long_walks_where_anyone_acts_at_any_time(sink: str) -> None:
    bounds = Bounds(drivers=3 if DEEP else 2, faults=6, starts=8, changes=4, abandons=2, free=True)
    seed = int(os.environ.get("FENCEPOST_SEED", "1"))
    seen = wander(Protocol(sink, bounds), seed, WALKS)
    print(f"seed {seed}: {seen}")
    assert not seen.violated, f"seed {seed}: {seen}"
    assert seen.worlds == WALKS
    assert seen.depth >= 60
    assert seen.transitions >= 30 * WALKS
    everything_happened(sink, seen, unless=set())


def everything_happened(sink: str, seen: Exploration, unless: set[str]) -> None:
    """Every kind of action, every step of a driver and every outcome of a put."""
    assert set(seen.kinds) | unless == KINDS_OF[sink] | unless
    flat_only, not_table = {"seal claim", "put file"}, {"seal sink"}
    unused = {"run": flat_only, "flat": set(), "table": flat_only | not_table}[sink]
    assert {STEPS[step] for step in seen.steps} == set(STEPS) - {STEPS[IDLE]} - unused
    assert set(seen.outcomes) == set(PUT_OUTCOMES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_protocol_is_caught(mutant: type[Mutant]) -> None:
    seen = explore(mutant())
    print(seen)
    assert mutant.caught_by in seen.violated, seen
    assert seen.trace[0] == "driver 1 starts a run"


def test_every_property_catches_something() -> None:
    caught = Counter(mutant.caught_by for mutant in MUTANTS)
    properties = {check.__name__ for check in (*STATE_PROPERTIES, *STEP_PROPERTIES)}
    assert set(caught) == properties


def test_a_trace_reads_line_by_line() -> None:
    error_is_lost = next(mutant for mutant in MUTANTS if mutant.__name__ == "ErrorIsLost")
    assert str(explore(error_is_lost())).splitlines()[1:] == [
        "loser_changes_nothing: driver 1 had not decided anything, and changed what others see",
        "references_exist: attempt 1 names a segment of attempt 1, shard 0011, which is not there",
        "finishable_without_source: version 1 is decided, and a run without the source cannot finish it",
        "   1 driver 1 starts a run",
        "   2 driver 1, head: 0 is done",
        "   3 driver 1, list: new are {a}",
        "   4 driver 1, write: {a} as attempt 1",
        "   5 driver 1, sync: contents",
        "   6 driver 1, seal: folders",
        "   7 driver 1, decide: log/1 [applied, error]",
        "   8 driver 1, discard: what attempt 1 prepared",
    ]
