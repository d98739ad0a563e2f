"""What the processes of the chain do. Each may die, or be stopped for a while, between any two of its instructions."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy
from fencepost import (
    ConcurrentTransactionError,
    FencedError,
    MappingError,
    OutcomeUnknownError,
    SequencedProducer,
    StoreError,
    TransactionAbortableError,
    TransactionStateError,
)
from fencepost.sql import ProducerRegistry, SqlSink, TransactionCoordinator
from fencepost.sql.database import outages
from fencepost.transports import read_landing

from chain.wire import RemoteTopic, Trouble, TroubledLanding, TroubledLogs, Wire, serve

INPUTS, RESULTS, LANDING = "inputs", "results", "landing"
TABLE = "results"
GROUP = "stage"
MUTANTS = {
    "producer trusts its notes": "continues after what it has noted, where its position should commit with its events",
    "stage keeps its positions": "in a file behind its commits, where a compare-and-set should move them",
    "consumer trusts its position": "writes rows, then its position, without a claim",
    "consumer is ahead of itself": "notes its position before it writes rows",
}
"""What people do instead, and what of it goes wrong once somebody dies."""
ABORTABLE = (
    TransactionAbortableError,
    TransactionStateError,
    ConcurrentTransactionError,
    OutcomeUnknownError,
    StoreError,
)
"""After these a transaction is aborted, and run again."""
OWN_POSITIONS = "stage.positions"
REPLACED = 3
"""The exit code of a process that found out that another has taken its place."""


@dataclass(frozen=True)
class Setup:
    """The settings of every process."""

    seed: int
    folder: Path
    database: str
    events: int
    """Of each producer."""
    faults: int
    """So many times somebody dies, is paused, or is cut off."""
    producers: int = 2
    inputs: int = 2
    results: int = 2
    trouble: float = 0.15
    timeout_ms: int = 1_500
    sync: str = "group"
    lands: bool = False
    """Whether producers write to a landing folder, and number their events by their place in the source."""
    mutant: str | None = None
    """One of `MUTANTS`: a chain that is broken, and must be found out."""

    @property
    def address(self) -> str:
        return str(self.folder / "logs.socket")

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    @property
    def partitions(self) -> list[str]:
        return [f"{INPUTS}-{it}" for it in range(self.inputs)] + [f"{RESULTS}-{it}" for it in range(self.results)]

    def events_of(self, producer: str) -> list[str]:
        """The business events of this producer, in their order."""
        return [f"{producer}-{it}" for it in range(self.events)]

    def trouble_of(self, name: str) -> Trouble:
        """What the messages of this process meet."""
        return Trouble(f"{self.seed}/{name}", self.trouble, self.folder / f"{name}.trouble")

    def engine(self) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(self.database)

    def coordinator(self, engine: sqlalchemy.Engine, trouble: Trouble | None = None) -> TransactionCoordinator:
        """One whose markers go over the wire, and may meet trouble too."""
        routes = {topic: RemoteTopic(self.address, topic, trouble) for topic in (INPUTS, RESULTS)}
        return TransactionCoordinator(engine, routes=routes)


def keep_logs(setup: Setup, name: str) -> None:
    """The logs."""
    serve(setup.folder / "logs", setup.address, setup.partitions, setup.sync)


def keep_transactions(setup: Setup, name: str) -> None:
    """The coordinator's own process: aborts what is open for too long, and finishes what others left decided."""
    coordinator = _outlast(lambda: setup.coordinator(setup.engine()))
    while True:
        _outlast(coordinator.recover)
        time.sleep(0.1)


def produce(setup: Setup, name: str) -> None:
    """Sends its events, some per transaction. Its position commits with them, so it continues there after a crash."""
    engine, trouble = setup.engine(), setup.trouble_of(name)
    coordinator = _outlast(lambda: setup.coordinator(engine, trouble))
    events, group = setup.events_of(name), f"source of {name}"
    sizes = random.Random(f"{setup.seed}/{name}/sizes")
    acknowledged = (setup.folder / f"{name}.acknowledged").open("a")
    with _producer(setup, coordinator, name, INPUTS, setup.inputs, trouble) as producer:
        if setup.mutant == "producer trusts its notes":
            position = len((setup.folder / f"{name}.acknowledged").read_text().split())
        else:
            position = _outlast(lambda: coordinator.positions(group).decided.get(0, 0))
        # What was committed is, though nobody may have noted it before the process died.
        _note(acknowledged, events[:position])
        while position < len(events):
            some = events[position : position + sizes.randint(1, 20)]

            def send(some: list[str] = some, position: int = position) -> None:
                if setup.mutant != "producer trusts its notes":
                    coordinator.add_offsets(producer.identity, group, {0: (position, position + len(some))})
                producer.send({"key": [it.encode() for it in some], "value": [_encoded(it) for it in some]})

            if _in_transaction(producer, send):
                _die_once(setup, name)
                position += len(some)
                _note(acknowledged, some)


def land(setup: Setup, name: str) -> None:
    """Writes its events to a landing folder. After a crash it sends unconfirmed events again."""
    trouble, sizes = setup.trouble_of(name), random.Random(f"{setup.seed}/{name}/sizes")
    events, path = setup.events_of(name), setup.folder / f"{name}.acknowledged"
    acknowledged = path.open("a")
    position = len(path.read_text().split())
    transport = TroubledLanding(setup.landing, setup.inputs, trouble)
    registry = _outlast(lambda: ProducerRegistry(setup.engine()))
    settings = {"batch_rows": 3, "retry_backoff_ms": 10, "request_timeout_ms": 10_000}

    def make() -> SequencedProducer:
        return SequencedProducer(transport, key="key", name=name, registry=registry, position="number", **settings)

    with _outlast(make) as producer:
        while position < len(events):
            some = events[position : position + sizes.randint(1, 20)]
            numbers = range(position, position + len(some))
            keys, values = [it.encode() for it in some], [_encoded(it) for it in some]
            producer.send({"key": keys, "value": values, "number": list(numbers)})
            producer.flush()
            _die_once(setup, name)
            position += len(some)
            _note(acknowledged, some)


def work(setup: Setup, name: str) -> None:
    """The stage: reads inputs, writes results. Results and the positions of their inputs commit together."""
    engine, trouble = setup.engine(), setup.trouble_of(name)
    coordinator = _outlast(lambda: setup.coordinator(engine, trouble))
    wire = Wire(setup.address)
    # Twins (work, work') have one transactional id, rivals (work, rival) one input.
    with _producer(setup, coordinator, name.rstrip("'"), RESULTS, setup.results, trouble) as producer:
        is_alone = setup.mutant == "stage keeps its positions"
        while True:
            decided = _outlast(lambda: standing(setup, coordinator))
            new = _landed(setup, decided) if setup.lands else _logged(setup, wire, decided)
            if not new:
                time.sleep(0.02)
                continue

            def send(new: dict[str, tuple[pa.Table, int]] = new, decided: dict[Any, int] = decided) -> None:
                if not is_alone:
                    offsets = {it: (decided.get(it, 0), behind) for it, (_, behind) in new.items()}
                    coordinator.add_offsets(producer.identity, GROUP, offsets)
                for rows, _ in new.values():
                    values = [_doubled(it) for it in rows["value"].to_pylist()]
                    producer.send({"key": rows["key"].to_pylist(), "value": values})

            if not _in_transaction(producer, send):
                continue
            _die_once(setup, name)
            if is_alone:
                own = decided | {it: behind for it, (_, behind) in new.items()}
                _replace(setup.folder / OWN_POSITIONS, json.dumps(own))


def _logged(setup: Setup, wire: Wire, decided: dict[Any, int]) -> dict[str, tuple[pa.Table, int]]:
    """New rows of the log of inputs, some of each partition, and the next position of each."""
    new = {}
    for partition in (f"{INPUTS}-{it}" for it in range(setup.inputs)):
        found = wire.insist(partition, "read", decided.get(partition, 0), "read_committed").slice(0, 25)
        if len(found):
            new[partition] = found, _behind(found)
    return new


def _landed(setup: Setup, decided: dict[Any, int]) -> dict[str, tuple[pa.Table, int]]:
    """New rows of the landing folder, and how far its log was read."""
    landing = read_landing(setup.landing, after=decided.get(LANDING, 0))
    return {LANDING: (landing.read(), landing.position)} if landing.rows else {}


def standing(setup: Setup, coordinator: TransactionCoordinator) -> dict[Any, int]:
    """The positions of the stage's inputs."""
    if setup.mutant != "stage keeps its positions":
        return coordinator.positions(GROUP).decided
    own = setup.folder / OWN_POSITIONS
    return json.loads(own.read_text()) if own.exists() else {}


def consume(setup: Setup, name: str) -> None:
    """Applies results to the table: claim, rows and position in one transaction."""
    sink = _outlast(lambda: SqlSink(setup.engine(), TABLE, "consumer", policy="any_order", columns="kafka-producer"))
    apply = _broken_sink(setup, sink) if setup.mutant and setup.mutant.startswith("consumer") else sink.apply
    wire = Wire(setup.address)
    while True:
        positions = _outlast(sink.positions)
        for partition in (f"{RESULTS}-{it}" for it in range(setup.results)):
            found = wire.insist(partition, "read", positions.get(partition, 0), "read_committed")
            if not len(found):
                continue
            messages = [json.loads(it) for it in found["value"].to_pylist()]
            rows = found.select(["topic", "partition", "pid", "epoch", "seq"])
            rows = rows.append_column("event", pa.array([it["event"] for it in messages]))
            rows = rows.append_column("amount", pa.array([it["amount"] for it in messages], pa.int64()))
            position = {partition: _behind(found)}
            _outlast(lambda rows=rows, position=position: apply(rows, positions=position))
            _die_once(setup, name)
        time.sleep(0.02)


ROLES: dict[str, Callable[[Setup, str], None]] = {
    "logs": keep_logs,
    "keeper": keep_transactions,
    "producer": produce,
    "work": work,
    "rival": work,
    "consumer": consume,
}


def main(role: str, setup: Setup, name: str) -> None:
    """A process of the chain. Ends with 0 where everything is done, `REPLACED`, or 1 and the reason in a file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, (setup.folder / f"{name}.stacks").open("w"))
    code = 0
    try:
        act = land if role == "producer" and setup.lands else ROLES[role]
        act(setup, name)
    except (FencedError, MappingError):
        code = REPLACED
    except BaseException:
        code = 1
        with (setup.folder / f"{name}.failure").open("a") as file:
            traceback.print_exc(file=file)
    sys.stdout.flush()
    # Threads on the wire may be waiting for answers that never come.
    os._exit(code)


def _producer(
    setup: Setup, coordinator: TransactionCoordinator, name: str, topic: str, partitions: int, trouble: Trouble
) -> SequencedProducer:
    def make() -> SequencedProducer:
        return SequencedProducer(
            TroubledLogs(setup.address, topic, partitions, trouble),
            key="key",
            name=name,
            registry=coordinator,
            coordinator=coordinator,
            topic=topic,
            transaction_timeout_ms=setup.timeout_ms,
            batch_rows=3,
            retry_backoff_ms=10,
            retry_backoff_max_ms=50,
            request_timeout_ms=300,
            delivery_timeout_ms=2_000,
        )

    return _outlast(make)


def _in_transaction(producer: SequencedProducer, send: Callable[[], None]) -> bool:
    """Whether it committed. If the outcome is unknown, the call is repeated, because a decision is final."""
    try:
        _outlast(producer.begin)
        send()
        _outlast(producer.commit)
    except ABORTABLE:
        _outlast(producer.abort)
        return False
    return True


def _die_once(setup: Setup, name: str) -> None:
    """The critical moment: only this process knows that something has happened. Other crashes come at any moment."""
    died = setup.folder / f"{name}.died"
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _outlast(act: Callable[[], Any]) -> Any:
    """Calls again where a connection was lost, or markers wait: calls that are made for it."""
    while True:
        try:
            return act()
        except (StoreError, OutcomeUnknownError, ConcurrentTransactionError):
            time.sleep(0.02)


def _broken_sink(setup: Setup, sink: SqlSink) -> Callable[..., None]:
    """Rows in one transaction, positions in another, and a death between them."""
    engine = setup.engine()

    def reflect() -> sqlalchemy.Table:
        with outages(engine):
            return sqlalchemy.Table(TABLE, sqlalchemy.MetaData(), autoload_with=engine)

    table = _outlast(reflect)

    def apply(rows: pa.Table, positions: dict[str, int]) -> None:
        def write() -> None:
            with outages(engine), engine.begin() as connection:
                connection.execute(table.insert(), rows.to_pylist())

        def advance() -> None:
            sink.apply(rows.slice(0, 0), positions=positions)

        first, second = (write, advance) if setup.mutant == "consumer trusts its position" else (advance, write)
        _outlast(first)
        _die_once(setup, "consumer")
        _outlast(second)

    return apply


def _behind(rows: pa.Table) -> int:
    return int(rows["offset"][-1].as_py()) + 1


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def _note(file: Any, events: list[str]) -> None:
    file.write("".join(f"{it}\n" for it in events))
    file.flush()


def _encoded(event: str) -> bytes:
    return json.dumps({"event": event, "amount": len(event)}).encode()


def _doubled(value: bytes) -> bytes:
    message = json.loads(value)
    return json.dumps(message | {"amount": 2 * message["amount"]}).encode()
