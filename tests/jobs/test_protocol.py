"""The commit protocol, explored: its properties hold, and broken protocols are detected. docs/commit-protocol.md."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from protocol.explore import Exploration, explore, wander
from protocol.model import HEAD, IDLE, PUT_OUTCOMES, STEPS, Bounds, Driver, Protocol
from protocol.mutants import MUTANTS, Mutant
from protocol.properties import STATE_PROPERTIES, STEP_PROPERTIES

DEEP = os.environ.get("FENCEPOST_MODEL") == "deep"

# (sink, bounds, worlds there are at least)
SMALL = (
    ("run", Bounds(faults=2, starts=2, changes=1), 40_000),
    ("run", Bounds(faults=1, starts=3, changes=1, folds=True), 27_000),
    ("prefix", Bounds(faults=1, starts=3, changes=1), 20_000),
    ("prefix", Bounds(faults=1, starts=2, changes=1, folds=True), 13_000),
    ("table", Bounds(faults=1, starts=3, changes=1), 10_000),
    ("table", Bounds(faults=1, starts=2, changes=1, folds=True), 7_000),
    ("run", Bounds(faults=1, starts=2, changes=0, free=True), 7_000),
    ("prefix", Bounds(faults=1, starts=2, changes=0, free=True), 11_000),
    ("table", Bounds(faults=1, starts=2, changes=0, free=True), 7_000),
)
LARGE = (
    ("run", Bounds(faults=2, starts=3, changes=1), 140_000),
    ("prefix", Bounds(faults=2, starts=3, changes=1), 260_000),
    ("table", Bounds(faults=2, starts=3, changes=1), 110_000),
    ("run", Bounds(faults=3, starts=2, changes=1), 220_000),
    ("run", Bounds(faults=2, starts=3, changes=1, folds=True), 300_000),
    ("prefix", Bounds(faults=1, starts=3, changes=1, folds=True), 37_000),
    ("table", Bounds(faults=1, starts=3, changes=1, folds=True), 32_000),
    ("run", Bounds(faults=1, starts=2, changes=0, free=True, folds=True), 11_000),
    ("prefix", Bounds(faults=1, starts=2, changes=0, free=True, folds=True), 20_000),
    ("table", Bounds(faults=1, starts=2, changes=0, free=True, folds=True), 12_000),
    ("run", Bounds(faults=2, starts=2, changes=0, free=True), 30_000),
    ("prefix", Bounds(faults=2, starts=2, changes=0, free=True), 45_000),
    ("table", Bounds(faults=2, starts=2, changes=0, free=True), 30_000),
)
WALKS = 4_000 if DEEP else 100
KINDS = {"start", "abandon", "pause", "resume", "crash", "power", "step", "observe", "collect", "land", "add"}
KINDS_OF = {
    "run": KINDS | {"overwrite", "delete", "squat"},
    "prefix": KINDS | {"overwrite", "delete", "squat", "remove"},
    "table": KINDS | {"compact"},
}


def name(case: tuple[str, Bounds, int]) -> str:
    sink, bounds, _ = case
    kind = f"{'free-' * bounds.free}{'folds-' * bounds.folds}"
    return f"{sink}-{kind}{bounds.faults}-faults-{bounds.starts}-runs-{bounds.changes}-changes"


@pytest.mark.parametrize("case", [*SMALL, *(LARGE if DEEP else ())], ids=name)
def test_every_world_within_the_bounds(case: tuple[str, Bounds, int]) -> None:
    sink, bounds, worlds_min = case
    seen = explore(Protocol(sink, bounds))
    print(seen)
    assert not seen.violated, seen
    assert seen.complete
    assert not seen.stuck
    assert seen.worlds >= worlds_min
    assert seen.transitions > seen.worlds
    everything_happened(sink, bounds, seen)


@pytest.mark.parametrize(("faults", "worlds_min"), [(0, 3_000), pytest.param(1, 100_000, marks=pytest.mark.matrix)])
def test_marks_of_versions_without_output_may_go(faults: int, worlds_min: int) -> None:
    seen = explore(Protocol("run", Bounds(faults=faults, starts=3, changes=2, abandons=0, folds=True)))
    print(seen)
    assert not seen.violated, seen
    assert seen.complete
    assert seen.worlds >= worlds_min
    assert seen.kinds["unmark"] > 50


@pytest.mark.parametrize("sink", ["run", "prefix", "table"])
def test_long_walks_where_anyone_acts_at_any_time(sink: str) -> None:
    bounds = Bounds(drivers=3, faults=6, starts=8, changes=4, abandons=2, folds=True, free=True)
    seed = int(os.environ.get("FENCEPOST_SEED", "1"))
    seen = wander(Protocol(sink, bounds), seed, WALKS)
    print(f"seed {seed}: {seen}")
    assert not seen.violated, f"seed {seed}: {seen}"
    assert seen.worlds == WALKS
    assert not seen.stuck
    assert seen.depth >= 60
    assert seen.transitions >= 30 * WALKS
    everything_happened(sink, bounds, seen)


def everything_happened(sink: str, bounds: Bounds, seen: Exploration) -> None:
    """Every kind of action, every step of a driver and every outcome of a put."""
    impossible = {"squat"} if bounds.faults < 2 and not bounds.free else set()  # it takes someone who is interrupted
    impossible |= set() if bounds.changes else {"add", "overwrite", "delete", "compact", "squat", "remove"}
    folding = {"fold", "seal floor", "trim"} if bounds.folds else set()
    folding |= {"unmark"} if bounds.folds and sink == "prefix" else set()
    # Of a folder, a version without output has such a mark: a test of its own sees to that.
    found = set(seen.kinds) - ({"unmark"} if sink == "run" else set())
    assert found == (KINDS_OF[sink] | folding) - impossible
    of_prefix, of_run = {"read claim", "copy", "mark", "clear"}, {"seal sink"}
    unused = {"run": of_prefix, "prefix": of_run, "table": of_prefix | of_run}[sink]
    assert {STEPS[step] for step in seen.steps} == set(STEPS) - {STEPS[IDLE]} - unused
    assert set(seen.outcomes) == set(PUT_OUTCOMES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_protocol_is_detected(mutant: type[Mutant]) -> None:
    seen = explore(mutant())
    print(seen)
    assert mutant.caught_by in seen.violated, seen
    assert seen.trace[0] == "driver 1 starts a run"


def test_every_property_catches_something() -> None:
    caught = Counter(mutant.caught_by for mutant in MUTANTS)
    properties = {check.__name__ for check in (*STATE_PROPERTIES, *STEP_PROPERTIES)}
    assert set(caught) == properties


def test_a_driver_that_is_stuck_is_counted() -> None:
    model = Protocol("run", Bounds())
    damaged = model.start()._replace(done=((1, True), None, None), drivers=(Driver(HEAD, active=True), Driver()))
    seen = Exploration()
    for action in model.advance(damaged, 0):
        seen.take(action)
    ((label, count),) = seen.stuck.items()
    assert (label.startswith("driver 1, head: "), count) == (True, 1)


def test_the_page_names_every_property_step_and_mutant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commit-protocol.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| `").removesuffix("`"): line for line in page.splitlines()}
    for mutant in MUTANTS:
        assert f"`{mutant.__name__}`" in rows[mutant.caught_by], mutant
    for check in (*STATE_PROPERTIES, *STEP_PROPERTIES):
        assert f"| `{check.__name__}` | " in page
    steps = page.partition("## The steps")[2].partition("three kinds of sink")[0]
    unnamed = {step for step in STEPS if not re.search(rf"\b{step}\b", steps)}
    assert unnamed == {"idle"}


def test_a_trace_reads_line_by_line() -> None:
    error_is_lost = next(mutant for mutant in MUTANTS if mutant.__name__ == "ErrorIsLost")
    found = explore(error_is_lost())
    facts = {
        "loser_changes_nothing": "driver 1 ",
        "references_exist": "attempt 1 .* attempt 1, shard 0011, ",
        "finishable_without_source": "version 1 ",
    }
    assert list(found.violated) == list(facts)
    assert all(re.match(facts[name], reason) for name, reason in found.violated.items())
    assert str(found).splitlines()[1:] == [
        *(f"{name}: {reason}" for name, reason in found.violated.items()),
        "   1 driver 1 starts a run",
        "   2 driver 1, head: 0 is done",
        "   3 driver 1, list: new are {a}",
        "   4 driver 1, write: {a} as attempt 1",
        "   5 driver 1, sync: contents",
        "   6 driver 1, seal: folders",
        "   7 driver 1, decide: log/1 [applied, error]",
        "   8 driver 1, discard: what attempt 1 prepared",
    ]
