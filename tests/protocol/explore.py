"""Goes through all worlds that the model can reach within its bounds, or through many long ones by chance."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from protocol.model import FINISH, READ_DONE, SEAL_DONE, SEAL_SINK, Action, Protocol, Table, World
from protocol.properties import STATE_PROPERTIES, STEP_PROPERTIES

STUCK = ("the state is damaged, stops", "folder is gone, stops", "file is gone, stops", "another end than mine, stops")


@dataclass
class Exploration:
    """What was seen. `violated`: property to reason, of the first failure; `trace`: the way there, a line an action."""

    worlds: int = 0
    transitions: int = 0
    depth: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    stuck: Counter[str] = field(default_factory=Counter)
    """How often a driver found what the protocol never leaves behind, and stopped."""
    complete: bool = False
    violated: dict[str, str] = field(default_factory=dict)
    trace: tuple[str, ...] = ()

    def take(self, action: Action) -> None:
        self.transitions += 1
        self.kinds[action.kind] += 1
        if action.kind == "step":
            self.steps[action.step] += 1
        if action.outcome:
            self.outcomes[action.outcome] += 1
        if action.label.endswith(STUCK):
            self.stuck[action.label] += 1

    def __str__(self) -> str:
        seen = f"{self.worlds:,} worlds, {self.transitions:,} transitions, depth {self.depth}"
        if not self.violated:
            return f"{seen}: all properties hold"
        reasons = "\n".join(f"{name}: {reason}" for name, reason in self.violated.items())
        lines = "\n".join(f"  {number:2} {line}" for number, line in enumerate(self.trace, 1))
        return f"{seen}\n{reasons}\n{lines}"


def broken_by(model: Protocol, before: World, action: Action) -> dict[str, str]:
    """The properties that a step breaks, and how."""
    found = ((check.__name__, check(model, before, action)) for check in STEP_PROPERTIES)
    return {name: reason for name, reason in found if reason}


def broken_in(model: Protocol, world: World) -> dict[str, str]:
    """The properties that do not hold in a world, and why."""
    found = ((check.__name__, check(model, world)) for check in STATE_PROPERTIES)
    return {name: reason for name, reason in found if reason}


def same_for_all(world: World) -> World:
    """The world without irrelevant differences: names of drivers, and attempts to which nothing refers."""
    live = {nonce for nonces in world.acted for nonce in nonces}
    for entries in (world.log, world.done):
        for entry in entries:
            if entry:
                live.add(entry[0])
    for _, _, value in world.flying:
        live.add(value)
    for driver in world.drivers:
        live.add(driver.nonce)
        live.add(driver.base)
    if not isinstance(world.sink, Table):
        for shown in world.sink:
            if shown:
                live.add(shown.who)
    live = {nonce for nonce in live if nonce > 0}
    for nonce in tuple(live):
        live.update(world.attempts[nonce - 1].refs)
    live.discard(0)
    if len(live) < len(world.attempts):
        world = renumbered(world, {old: new for new, old in enumerate(sorted(live), 1)})
    first, *others = world.drivers
    return world if all(first <= other for other in others) else world._replace(drivers=tuple(sorted(world.drivers)))


def renumbered(world: World, names: dict[int, int]) -> World:
    def named(entries: tuple) -> tuple:
        return tuple(entry and (names.get(entry[0], entry[0]), entry[1]) for entry in entries)

    sink = world.sink
    if not isinstance(sink, Table):
        sink = tuple(shown and shown._replace(who=names.get(shown.who, shown.who)) for shown in sink)
    kept = [world.attempts[nonce - 1] for nonce in names]
    return world._replace(
        attempts=tuple(it._replace(refs=tuple(names.get(ref, 0) for ref in it.refs)) for it in kept),
        log=named(world.log),
        done=named(world.done),
        sink=sink,
        flying=tuple((name, version, names.get(value, value)) for name, version, value in world.flying),
        drivers=tuple(
            it._replace(
                nonce=names.get(it.nonce, 0),
                base=names.get(it.base, 0),
                note=names.get(it.note, it.note) if it.step in NOTES_ARE_NONCES else it.note,
            )
            for it in world.drivers
        ),
        acted=tuple(tuple(names[nonce] for nonce in nonces) for nonces in world.acted),
    )


NOTES_ARE_NONCES = (SEAL_SINK, FINISH, READ_DONE, SEAL_DONE)


def explore(model: Protocol) -> Exploration:
    """Breadth first, so that the first violation has the shortest trace. Stops at it."""
    start = model.start()
    seen = Exploration(worlds=1)
    came: dict[World, tuple[World, str] | None] = {same_for_all(start): None}
    queue = deque([(start, same_for_all(start), 0)])
    while queue:
        before, key, seen.depth = queue.popleft()
        for action in model.actions(before):
            seen.take(action)
            after = same_for_all(action.world)
            found = broken_by(model, before, action)
            if after not in came:
                came[after] = key, action.label
                seen.worlds += 1
                queue.append((action.world, after, seen.depth + 1))
                found |= broken_in(model, action.world)
            if found:
                seen.violated = found
                seen.trace = (*way(came, key), action.label)
                return seen
    seen.complete = True
    return seen


def way(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    labels = []
    step = came[world]
    while step:
        world, label = step
        labels.append(label)
        step = came[world]
    return labels[::-1]


def wander(model: Protocol, seed: int, walks: int, steps_max: int = 200) -> Exploration:
    """Random walks, each until no action is possible: deeper than `explore`, but not complete."""
    chance = random.Random(seed)
    seen = Exploration()
    for _ in range(walks):
        world, trace = model.start(), []
        for depth in range(steps_max):
            actions = list(model.actions(world))
            if not actions:
                break
            weights = [WEIGHTS.get(action.kind, 1.0) * (0.3 if is_lie(action) else 1) for action in actions]
            action = chance.choices(actions, weights)[0]
            seen.take(action)
            seen.depth = max(seen.depth, depth + 1)
            trace.append(action.label)
            if found := broken_by(model, world, action) | broken_in(model, action.world):
                seen.violated = found
                seen.trace = tuple(trace)
                return seen
            world = action.world
        seen.worlds += 1
    return seen


WEIGHTS = {"step": 6.0, "crash": 0.3, "pause": 0.6, "power": 0.3, "resume": 2.0, "squat": 0.2, "delete": 0.3}


def is_lie(action: Action) -> bool:
    return action.outcome not in ("", "ok", "exists")
