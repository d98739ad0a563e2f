"""What the processes of `test_coordinator_faults` do: transactions, until they are done or killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import sqlalchemy
from fencepost.sql import ProducerRegistry, SqlSink, TransactionCoordinator
from fencepost.sql.database import Database
from sqlalchemy import Column, Connection, Integer, MetaData, Table

GROUP, TOPIC, BATCH = "group", "out", 10
PARTITIONS = ((TOPIC, 0), (TOPIC, 1))
SECOND_MS = 1000
EVENTS = [{"pid": 1, "epoch": 0, "partition": 0, "seq": it} for it in range(BATCH)]
OUTPUT = Table(
    "output",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("pid", Integer),
    Column("epoch", Integer),
    Column("source", Integer),
)


class Steps:
    """Counts what a process does, and kills it at one of them: around each database transaction, within it before its
    commit, and around each marker."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.count = 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        original = Database.transaction

        def transaction(database: Database, work: Callable[[Connection], Any]) -> Any:
            def until_the_commit(connection: Connection) -> Any:
                result = work(connection)
                self.step()
                return result

            self.step()
            result = original(database, until_the_commit)
            self.step()
            return result

        Database.transaction = transaction  # type: ignore[method-assign,assignment]


class Markers:
    """What a route leads to: a file with a line for each marker."""

    def __init__(self, path: Path, steps: Steps | Stops | None = None) -> None:
        self.path = path
        self.steps = steps

    def write_marker(self, *marker: Any) -> None:
        if self.steps:
            self.steps.step()
        with self.path.open("a") as file:
            file.write(json.dumps(marker) + "\n")
        if self.steps:
            self.steps.step()

    def read(self) -> list[tuple[int, int, int, str, int]]:
        return [tuple(json.loads(line)) for line in self.path.read_text().splitlines()] if self.path.exists() else []


class Stops:
    """Stops a process at one of its steps: around each statement, before each commit, and around each marker."""

    def __init__(self, engine: sqlalchemy.Engine, stop_at: int) -> None:
        self.stop_at = stop_at
        self.count = 0
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            sqlalchemy.event.listen(engine, name, self.step)

    def step(self, *_: object) -> None:
        self.count += 1
        if self.count == self.stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)


def transact(url: str, markers: Path, kill_at: int) -> None:
    """One transaction, from the registry's tables to the last marker."""
    steps = Steps(kill_at)
    steps.install()
    transact_by(TransactionCoordinator(sqlalchemy.create_engine(url), routes={TOPIC: Markers(markers, steps)}))


def transact_and_stop(url: str, markers: Path, stop_at: int, idle_timeout_ms: int | None, results: Any) -> None:
    """The same, by a process that is stopped and continued later."""
    do_and_stop(transact_by, url, markers, stop_at, idle_timeout_ms, results)


def recover_and_stop(url: str, markers: Path, stop_at: int, idle_timeout_ms: int | None, results: Any) -> None:
    do_and_stop(TransactionCoordinator.recover, url, markers, stop_at, idle_timeout_ms, results)


def do_and_stop(
    work: Callable[[TransactionCoordinator], object],
    url: str,
    markers: Path,
    stop_at: int,
    idle_timeout_ms: int | None,
    results: Any,
) -> None:
    engine = sqlalchemy.create_engine(url)
    routes = {TOPIC: Markers(markers, Stops(engine, stop_at))}
    try:
        registry = ProducerRegistry(engine, idle_timeout_ms=idle_timeout_ms)
        work(TransactionCoordinator(engine, registry, routes=routes))
    except fp.FencepostError as error:
        results.put(type(error).__name__)
    else:
        results.put("done")


def decide_and_stop(url: str, idle_timeout_ms: int | None) -> None:
    """A producer that is stopped in the work of its commit."""
    engine = sqlalchemy.create_engine(url)
    coordinator = TransactionCoordinator(engine, ProducerRegistry(engine, idle_timeout_ms=idle_timeout_ms))
    identity = coordinator.init_producer("stage")
    coordinator.begin(identity)
    coordinator.commit(identity, work=lambda _: os.kill(os.getpid(), signal.SIGSTOP))


def apply_and_stop(url: str, results: Any) -> None:
    """A consumer that is stopped in its effect the first time."""
    sink = SqlSink(sqlalchemy.create_engine(url), None, "consumer", idle_timeout_ms=SECOND_MS)
    calls = []

    def effect(connection: Connection, kept: Any) -> None:
        calls.append(len(kept))
        connection.execute(OUTPUT.insert(), [{"source": it} for it in kept["seq"].to_pylist()])
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    results.put((sink.handle(EVENTS, effect, positions={"in": BATCH}).rows_kept, calls))


def transact_by(coordinator: TransactionCoordinator) -> None:
    identity = coordinator.init_producer("stage")
    start = coordinator.positions(GROUP).decided.get(0, 0)
    coordinator.begin(identity)
    coordinator.add_partitions(identity, PARTITIONS)
    coordinator.add_offsets(identity, GROUP, {0: (start, start + BATCH)})
    row = {"pid": identity.pid, "epoch": identity.epoch}
    coordinator.commit(identity, work=lambda connection: connection.execute(OUTPUT.insert().values(row)))


def recover(url: str, markers: Path, kill_at: int) -> None:
    steps = Steps(kill_at)
    steps.install()
    TransactionCoordinator(sqlalchemy.create_engine(url), routes={TOPIC: Markers(markers, steps)}).recover()


def take_turns(url: str, number: int, rounds: int, meet: Any, results: Any) -> None:
    """All request an identity of one id at once, and commit at once: (round, process, identity, outcome).

    In the last rounds each process once requests last, so that each wins at least once.
    """
    coordinator = TransactionCoordinator(sqlalchemy.create_engine(url))
    for turn in range(rounds):
        meet.wait()
        last = meet.parties - (rounds - turn)
        if number == last:
            meet.wait()
        identity = coordinator.init_producer("shared")
        if number != last and last >= 0:
            meet.wait()
        meet.wait()
        row = {"pid": identity.pid, "epoch": identity.epoch, "source": turn}
        try:
            coordinator.begin(identity)
            coordinator.commit(identity, work=lambda connection, row=row: connection.execute(OUTPUT.insert(), row))
            answer = "committed"
        except fp.FencepostError as error:
            answer = type(error).__name__
        results.put((turn, number, (identity.pid, identity.epoch), answer))


def run_at_each_other(url: str, number: int, rounds: int, results: Any) -> None:
    """All use one id without waiting for each other."""
    coordinator = TransactionCoordinator(sqlalchemy.create_engine(url))
    for _ in range(rounds):
        try:
            identity = coordinator.init_producer("shared")
            row = {"pid": identity.pid, "epoch": identity.epoch, "source": number}
            coordinator.begin(identity)
            coordinator.commit(identity, work=lambda connection, row=row: connection.execute(OUTPUT.insert(), row))
            answer = "committed"
        except fp.FencepostError as error:
            answer = type(error).__name__
        results.put((number, (identity.pid, identity.epoch), answer))


def work_on_one_input(url: str, number: int, end: int, meet: Any, results: Any) -> None:
    """A worker with an id of its own, which believes that the input is its own."""
    coordinator = TransactionCoordinator(sqlalchemy.create_engine(url))
    identity = coordinator.init_producer(f"worker {number}")
    meet.wait()
    committed = conflicts = 0
    while (start := coordinator.positions(GROUP).decided.get(0, 0)) < end:
        position = min(end, start + 1 + (number + start) % 3)
        if not committed + conflicts:
            meet.wait()  # all of them want the same events
        # What it does with the events: SQLite's lock goes to the first process that asks after its holder.
        time.sleep(0.01)
        rows = [{"pid": identity.pid, "epoch": identity.epoch, "source": source} for source in range(start, position)]
        try:
            coordinator.add_offsets(identity, GROUP, {0: (start, position)})
            identity = coordinator.commit(
                identity, work=lambda connection, rows=rows: connection.execute(OUTPUT.insert(), rows)
            )
            committed += 1
        except fp.TransactionAbortableError:
            identity = coordinator.abort(identity)
            conflicts += 1
    results.put((number, committed, conflicts))
