"""Runs the chain under faults and compares: `python -m chain.run [--rounds 200]`. Needs a PostgreSQL."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from faults.tally import Tally, injected
from fencepost.sql import SqlSink, TransactionCoordinator
from fencepost.transports import LandingTransport, read_landing
from sqlalchemy import text
from support.processes import fork_server, is_stopped
from support.waiting import wait_until

from chain.actors import GROUP, INPUTS, LANDING, REPLACED, TABLE, Setup, main, standing
from chain.wire import Wire

PROCESSES = fork_server("chain.actors")
FAULTS, REST_POSITIONS, SETTLE_S = 20, 20, 300.0
"""So many times somebody dies, is paused, or is cut off; how far the stage moves on before who was fenced by a twin
comes back; how long nothing may go on."""


class Broken(AssertionError):
    """The table is not what was acknowledged, or a process broke on its own."""


@dataclass
class Report:
    """What a run has gone through."""

    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    trouble: Counter[str] = field(default_factory=Counter)
    """What happened to messages."""
    replaced: int = 0
    """Processes that found out that another had taken their place."""
    events: int = 0
    rows: int = 0


class Chain:
    """The processes of one run, and when each is killed."""

    def __init__(self, setup: Setup, say: Callable[[str], None] = lambda _: None) -> None:
        self.setup, self.say = setup, say
        self.random = random.Random(setup.seed)
        self.processes: dict[str, ForkServerProcess] = {}
        self.stopped: dict[str, float] = {}
        self.rested: dict[str, int] = {}
        self.report = Report(setup.seed)
        self.engine = setup.engine()
        self.coordinator = TransactionCoordinator(self.engine)
        # A stage of its own, a twin of one transactional id, or a rival with another for the same input.
        self.workers = ["work", *self.random.choice([[], ["work'"], ["rival"], ["rival", "work'"]])]
        self.producers = [f"producer{it}" for it in range(setup.producers)]

    def run(self) -> Report:
        """Raises Broken."""
        began = time.monotonic()
        self._create_table()
        if self.setup.lands:  # the stage may read before a producer writes
            LandingTransport(self.setup.landing, partitions=self.setup.inputs, sync=False)
        try:
            for name in ("logs", "keeper", *self.producers, "consumer", *self.workers):
                self._start(name)
            self._wait(self._has_begun)
            for mark in self._marks():
                self._wait(lambda mark=mark: self._acknowledged() >= mark)
                while not self._fault():
                    self._check_processes()
            self.say("no more faults")
            for name in self.stopped:
                self._signal(name, signal.SIGCONT)
            self.stopped.clear()
            self._wait(self._is_through)
            self._compare()
        finally:
            for process in self.processes.values():
                process.kill()
                process.join()
            self.engine.dispose()
        self.report.seconds = time.monotonic() - began
        return self.report

    def _marks(self) -> list[int]:
        """The number of acknowledged events at which each fault happens: spread over the run, whatever its duration."""
        events = sum(len(self.setup.events_of(name)) for name in self.producers)
        return sorted(self.random.randrange(events * 9 // 10) for _ in range(self.setup.faults))

    def _acknowledged(self) -> int:
        notes = [self.setup.folder / f"{name}.acknowledged" for name in self.producers]
        return sum(len(set(it.read_text().split())) for it in notes if it.exists())

    def _create_table(self) -> None:
        columns = "topic text, partition int, pid bigint, epoch smallint, seq bigint, event text, amount bigint"
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {TABLE} ({columns})"))

    # Processes

    def _start(self, name: str) -> None:
        role = name.rstrip("'0123456789")
        self.processes[name] = PROCESSES.Process(target=main, args=(role, self.setup, name), daemon=True)
        self.processes[name].start()

    def _check_processes(self) -> None:
        """Starts again what has ended, but for producers that are done. Raises Broken for what broke by itself."""
        for name, process in self.processes.items():
            if name in self.stopped and time.monotonic() > self.stopped[name]:
                del self.stopped[name]
                self._signal(name, signal.SIGCONT)
            if process.exitcode in (None, 0):
                continue
            if process.exitcode == 1:
                raise Broken(f"{name} broke:\n{(self.setup.folder / f'{name}.failure').read_text()[-3000:]}")
            if process.exitcode == REPLACED and name not in self.rested:
                self.say(f"{name} was fenced, and stops")
                self.report.replaced += 1
                self.rested[name] = self._stage()
            if name in self.rested and self._rests(name):
                continue
            self.rested.pop(name, None)
            self._start(name)

    def _rests(self, name: str) -> bool:
        """Processes of one id that restart immediately would fence each other repeatedly."""
        twins = {it for it in self.workers if it != name and it.rstrip("'") == name.rstrip("'")}
        has_twin = any(self.processes[it].is_alive() for it in twins & self.processes.keys())
        return has_twin and self._stage() < self.rested[name] + REST_POSITIONS

    def _stage(self) -> int:
        """The progress of the stage."""
        return sum(self.coordinator.positions(GROUP).decided.values())

    def _signal(self, name: str, number: int) -> None:
        process = self.processes[name]
        if process.pid is not None and process.is_alive():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(process.pid, number)

    # Faults

    def _fault(self) -> bool:
        """Whether a fault took place."""
        living = [name for name, it in self.processes.items() if it.is_alive() and name not in self.stopped]
        if not living:
            return False
        kind = self.random.choice(["kill", "kill", "stop", "stop for long", "drop connections"])
        if kind == "drop connections":
            self.say("the database drops its connections")
            if not self._drop_connections():
                return False
        else:
            name = self.random.choice(living)
            kind = f"{kind} {name.rstrip(chr(39) + '0123456789')}"
            if kind.startswith("kill"):
                self.say(f"{name} is killed")
                self._signal(name, signal.SIGKILL)
                self.processes[name].join()
                if self.processes[name].exitcode != -signal.SIGKILL:
                    return False  # it had come to its end
            else:
                # For longer than its transaction may stay open, so that others take over, and then it continues.
                seconds = self.random.uniform(0.05, 0.3) + ("long" in kind) * self.setup.timeout_ms * 1.5 / 1000
                self.say(f"{name} is paused for {seconds:.1f} s")
                self._signal(name, signal.SIGSTOP)
                self.stopped[name] = time.monotonic() + seconds
                process = self.processes[name]
                wait_until(lambda: is_stopped(process.pid) or not process.is_alive(), f"{name} does not stop")
                if not process.is_alive():
                    return False
        self.report.faults[kind] += 1
        return True

    def _drop_connections(self) -> int:
        """Gives how many there were."""
        query = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with self.engine.begin() as connection:
            return len(connection.execute(text(query)).all())

    # The end

    def _wait(self, until: Callable[[], bool]) -> None:
        deadline, progress = time.monotonic() + SETTLE_S, (0, 0)
        while not until():
            now = self._acknowledged(), self._stage()
            if now != progress:
                deadline, progress = time.monotonic() + SETTLE_S, now
            if time.monotonic() > deadline:
                raise Broken(f"nothing happens for {SETTLE_S:.0f} s: {self._standing()}")
            time.sleep(0.02)
            self._check_processes()

    def _has_begun(self) -> bool:
        """Whether every producer has sent an event, so that a fault has an effect."""
        notes = (self.setup.folder / f"{name}.acknowledged" for name in self.producers)
        return all(it.exists() and it.stat().st_size for it in notes)

    def _is_through(self) -> bool:
        if any(self.processes[name].exitcode != 0 for name in self.producers):
            return False
        wire = Wire(self.setup.address)
        decided = standing(self.setup, self.coordinator)
        applied = self._sink().positions()
        try:
            if self.setup.lands and read_landing(self.setup.landing, after=decided.get(LANDING, 0)).rows:
                return False
            # No log has inputs where they land.
            stands = {it: (decided if it.startswith(INPUTS) else applied).get(it, 0) for it in self.setup.partitions}
            return all(stands[it] >= _end(wire, it) for it in stands)
        except ConnectionError:
            return False
        finally:
            wire.close()

    def _sink(self) -> SqlSink:
        return SqlSink(self.engine, TABLE, "consumer", policy="any_order", columns="kafka-producer")

    def _standing(self) -> str:
        for name in self.processes:
            self._signal(name, signal.SIGUSR1)  # its stacks go to a file
        alive = {name: process.exitcode for name, process in self.processes.items()}
        return f"{alive}, stage {self.coordinator.positions(GROUP)}, consumer {self._sink().positions()}"

    def _compare(self) -> None:
        """Every event that was acknowledged is in the table once, with its amount, and nothing else."""
        acknowledged = Counter(
            event
            for name in self.producers
            for event in set((self.setup.folder / f"{name}.acknowledged").read_text().split())
        )
        wanted = {event for name in self.producers for event in self.setup.events_of(name)}
        with self.engine.connect() as connection:
            found = connection.execute(text(f"SELECT event, amount FROM {TABLE}")).all()
        rows = Counter(event for event, _ in found)
        self.report.events, self.report.rows = len(acknowledged), len(found)
        for notes in self.setup.folder.glob("*.trouble"):
            self.report.trouble += Counter(notes.read_text().splitlines())
        lost, twice = sorted(acknowledged.keys() - rows.keys()), sorted(it for it, count in rows.items() if count > 1)
        strange = sorted(rows.keys() - acknowledged.keys())
        wrong = sorted(event for event, amount in found if amount != 2 * len(event))
        if acknowledged.keys() != wanted or lost or twice or strange or wrong:
            raise Broken(
                f"seed {self.setup.seed}: {len(wanted - acknowledged.keys())} were never acknowledged, lost "
                f"{lost[:5]}, more than once {twice[:5]}, acknowledged by nobody {strange[:5]}, wrong {wrong[:5]}"
            )


def _end(wire: Wire, partition: str) -> int:
    """The offset after the last visible row of a log. Raises ConnectionError."""
    stable, end = wire.call(partition, "ends")
    if stable < end:
        return end + 1  # a transaction is open: nobody is through with it
    rows = wire.call(partition, "read", 0, "read_committed")
    return int(rows["offset"][-1].as_py()) + 1 if len(rows) else 0


def run_seed(
    seed: int,
    database: str,
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    mutant: str | None = None,
) -> Report:
    """One run on an empty database. Raises Broken."""
    (folder / "logs").mkdir(parents=True)
    # Every third run lands; broken chains have the log, and so have their twins.
    lands = mutant is None and seed % 3 == 2
    # Each process dies once in its critical moment, which a broken chain does not survive, however short the run is.
    events, faults = (250, FAULTS) if mutant is None else (40, 4)
    return Chain(Setup(seed, folder, database, events, faults, lands=lands, mutant=mutant), say).run()


def command(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="chain")
    parser.add_argument("--rounds", type=int, default=200, help="runs, each with a seed of its own")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--tally", type=Path, help="where the figures go")
    parser.add_argument("--demo", action="store_true", help="two runs, and what happens when")
    given = parser.parse_args(arguments)
    from support.postgres import PostgresServer

    server, faults, trouble, found = PostgresServer(), Counter[str](), Counter[str](), Tally(given.family)
    server.start()
    top = Path(tempfile.mkdtemp(prefix="chain-"))
    rounds = 2 if given.demo else given.rounds
    try:
        for seed in range(given.first, given.first + rounds):
            found.rounds += 1
            try:
                report = run_seed(seed, server.new_database(), top / str(seed), _teller() if given.demo else _silent)
            except Broken as error:
                found.failed.append(f"seed {seed}")
                print(f"FAILED seed {seed}: {error}", flush=True)
                continue
            faults += report.faults + Counter({"a process finds that another has taken its place": report.replaced})
            trouble += report.trouble
            for kind, count in (report.faults + report.trouble).items():
                injected(kind, count)
            found.write(given.tally)
            print(
                f"seed {seed}: {report.events} events acknowledged, {report.rows} rows in the table; "
                f"{report.faults.total()} faults, {report.trouble.total()} messages in trouble, {report.seconds:.1f} s",
                flush=True,
            )
            shutil.rmtree(top / str(seed))
    finally:
        server.stop()
    for title, counts in (("messages", trouble), ("processes", faults)):
        print(f"{title}:")
        for kind, count in sorted(counts.items()):
            print(f"{count:8,}  {kind}")
    found.write(given.tally)
    print(found.failed or "every event that was acknowledged is in the table once, and nothing else")
    return 1 if found.failed else 0


def _silent(what: str) -> None:
    pass


def _teller() -> Callable[[str], None]:
    began = time.monotonic()
    print("two producers, a log, a stage that doubles amounts, a consumer, PostgreSQL; and what happens to them:")
    return lambda what: print(f"{time.monotonic() - began:7.2f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
