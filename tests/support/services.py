"""Services that share one database of transactions, each with outputs of its own, simulated by seed.

A service is a generator that stops wherever its process could stall; it is killed at a random step, within a call too,
and begins again. Any service may recover at any time. `simulate` raises AssertionError for what must not be.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import fencepost as fp
import sqlalchemy
from fencepost.sql import coordinator as coordinators
from fencepost.sql import transaction_tables as tables
from fencepost.sql.transaction import PREPARED, ProducerIdentity, State
from sqlalchemy import select

SERVICES = {"a": ("clicks",), "b": ("sales",), "both": ("clicks", "sales")}
"""The topics that each has routes to, and writes to."""
PARTITIONS, EVENTS, TURNS = 2, 4, 250
UNDONE = (fp.TransactionStateError, fp.TransactionAbortableError)
REPLACED = (fp.FencedError, fp.MappingError)


class Killed(BaseException):
    """The process is gone."""


class Log:
    """A partition of an output under Kafka's rules: a marker counts once, and not after the next transaction."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[Any]] = {}
        self.committed: list[Any] = []

    def append(self, identity: ProducerIdentity, row: Any) -> None:
        if identity.epoch < self.epochs.get(identity.pid, 0):
            raise fp.FencedError(f"{identity} was replaced in the log")
        self.epochs[identity.pid] = identity.epoch
        self.open.setdefault(identity.pid, []).append(row)

    def mark(self, pid: int, epoch: int, outcome: str) -> None:
        if epoch > self.epochs.get(pid, -1):
            self.epochs[pid] = epoch
            rows = self.open.pop(pid, [])
            self.committed += rows if outcome == "commit" else []


class Topic:
    """What a service's route leads to: some markers are lost, or their answers, and the process may die around them."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: str, _: int) -> None:
        world, met = self.world, self.world.meet("marker lost", "answer lost")
        assert (pid, self.name, partition) in world.named, f"a marker of {pid} in {self.name}, which it never named"
        if met != "marker lost":
            world.logs[self.name, partition].mark(pid, epoch, outcome)
        if met is not None:
            raise OSError(met)
        world.may_die()


class World:
    """The database, the outputs, and the services; `faults` counts what happened to them."""

    def __init__(self, engine: sqlalchemy.Engine, seed: int, module: Any = coordinators) -> None:
        self.engine, self.module = engine, module
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.is_calm = False
        self.logs = {(topic, it): Log() for topic in ("clicks", "sales") for it in range(PARTITIONS)}
        self.named: set[tuple[int, str, int]] = set()
        self.registry = module.ProducerRegistry(engine)
        # One process after the other has this object: its calls die where the process does.
        database = self.registry.database
        self.transaction: Callable[..., Any] = database.transaction
        database.transaction = self._transaction

    def coordinator(self, service: str) -> Any:
        routes = {topic: Topic(self, topic) for topic in SERVICES[service]}
        return self.module.TransactionCoordinator(self.engine, self.registry, routes=routes)

    def meet(self, *kinds: str) -> str | None:
        if self.is_calm or self.random.random() >= 0.1:
            return None
        kind = self.random.choice(kinds)
        self.faults[kind] += 1
        return kind

    def may_die(self) -> None:
        if not self.is_calm and self.random.random() < 0.02:
            self.faults["killed within a call"] += 1
            raise Killed

    def _transaction(self, work: Callable[..., Any]) -> Any:
        self.may_die()
        found = self.transaction(work)
        self.may_die()
        return found

    def stall(self) -> None:
        """All services pause for longer than a transaction may be open."""
        self.faults["stalled"] += 1
        late = tables.PRODUCERS.update().values(started_ms=tables.PRODUCERS.c.started_ms - 100_000)
        self.transaction(lambda connection: connection.execute(late))

    def recover(self, service: str) -> None:
        """Recover by a process of this service. Transactions without a route to it do not change, and are reported."""
        before = self._waiting()
        with suppress(fp.ConcurrentTransactionError, Killed):
            found = self.coordinator(service).recover()
            self.faults["recovered"] += found.completed + found.aborted
            left = {it.transactional_id: {*it.topics} for it in found.unrouted}
            foreign = {name: it for name, it in self._waiting().items() if it[1] - {*SERVICES[service]}}
            assert {
                name: topics for name, (state, topics) in foreign.items() if state in PREPARED
            }.items() <= left.items()
            assert left.items() <= {name: topics for name, (_, topics) in foreign.items()}.items()
            self.faults["left to others"] += len(found.unrouted)
        after = self._waiting()
        for name, (state, topics) in before.items():
            if topics and not topics & {*SERVICES[service]}:
                assert after[name] == (state, topics), f"{service} has changed a transaction of {topics}"

    def _waiting(self) -> dict[str, tuple[State, set[str]]]:
        """State, and the topics that wait for markers, by transactional id."""
        columns = tables.PRODUCERS.c
        query = select(columns.transactional_id, columns.state, columns.waiting)
        found = self.transaction(lambda connection: connection.execute(query).all())
        return {name: (State(state), {it for it, _ in tables.from_list(waiting)}) for name, state, waiting in found}

    def check(self) -> None:
        """Every event is committed in each output of its service once, and nothing is open or undecided."""
        assert not {name for name, (state, _) in self._waiting().items() if state in (State.ONGOING, *PREPARED)}
        for topic in ("clicks", "sales"):
            logs = [log for (name, _), log in self.logs.items() if name == topic]
            found = Counter(row for log in logs for row in log.committed)
            wanted = {(it, event) for it, topics in SERVICES.items() if topic in topics for event in range(EVENTS)}
            assert found == Counter(wanted), (
                f"{topic}: {found - Counter(wanted)} too many, {Counter(wanted) - found} lost"
            )
            assert not any(log.open for log in logs), f"{topic}: rows that nobody decides"


def serve(world: World, name: str) -> Iterator[None]:
    """A service, from the start of its process: an event a transaction, which aborts some, until all are committed."""
    coordinator = world.coordinator(name)
    identity = coordinator.init_producer(name)
    while True:
        position = coordinator.positions(name).decided.get(0, 0)
        if position == EVENTS:
            return
        yield
        try:
            yield from _write(world, coordinator, identity, name, position)
            wants_abort = world.random.random() < 0.2
            identity = coordinator.abort(identity) if wants_abort else coordinator.commit(identity)
        except UNDONE:
            identity = coordinator.abort(identity)


def _write(world: World, coordinator: Any, identity: ProducerIdentity, name: str, position: int) -> Iterator[None]:
    coordinator.begin(identity)
    coordinator.add_offsets(identity, name, {0: (position, position + 1)})
    for topic in SERVICES[name]:
        number = world.random.randrange(PARTITIONS)
        world.named.add((identity.pid, topic, number))
        coordinator.add_partitions(identity, [(topic, number)])
        yield
        world.logs[topic, number].append(identity, (name, position))
        yield


def simulate(engine: sqlalchemy.Engine, seed: int, module: Any = coordinators) -> Counter[str]:
    """One run; what happened in it. Raises AssertionError where rows are lost, doubled, or left undecided."""
    world = World(engine, seed, module)
    running: dict[str, Iterator[None] | None] = dict.fromkeys(SERVICES)
    done: set[str] = set()

    def step(name: str) -> None:
        service = running[name] = running[name] or serve(world, name)
        try:
            next(service)
        except StopIteration:
            done.add(name)
        except (Killed, *REPLACED, fp.ConcurrentTransactionError):
            running[name] = None  # another process takes its place

    for _ in range(TURNS):
        name = world.random.choice(list(SERVICES))
        match world.random.choices(["step", "recover", "stall", "kill"], [20, 3, 1, 1])[0]:
            case "step" if name not in done:
                step(name)
            case "recover":
                world.recover(name)
            case "stall":
                world.stall()
            case "kill":
                world.faults["killed"] += 1
                running[name] = None
    world.is_calm = True
    for _ in range(50 * EVENTS):
        for name in sorted(SERVICES.keys() - done):
            step(name)
        for name in sorted(SERVICES):
            world.recover(name)
        if done == SERVICES.keys():
            break
    assert done == SERVICES.keys(), f"{SERVICES.keys() - done} do not come to an end"
    world.check()
    return world.faults
