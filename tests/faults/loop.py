"""A consumer's loop under faults: consumers, the broker and the database die, and the group rebalances, by seed.

`python -m faults.loop [--rounds 100] [--first 0] [--events 72000]`. The broker, the database and the consumers are real
processes. Each round must end with every committed event in the table once, and every poison message a dead letter.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import text
from support.kafka_broker import ANSWER_SECONDS, Broker, consumer_settings
from support.postgres import PostgresServer
from support.processes import fork_server
from support.waiting import PATIENCE_SECONDS, wait_until

from faults.tally import Tally, injected

EVENTS = 72_000
"""Of a round: two hours of ten events a second."""
FAULTS = (
    "consumer killed",
    "consumer stopped",
    "consumer joins",
    "consumer leaves",
    "database killed",
    "broker killed",
)
MORE_FAULTS = 6
"""Of a round, beside one of each kind, but of the broker."""
CONSUMERS_MAX = 4
SESSION_MS = 2_000
CREATE = 'CREATE TABLE orders (topic TEXT, partition INTEGER, "offset" BIGINT, number BIGINT NOT NULL)'
_FORK = fork_server("fencepost.consumer", "sqlalchemy", "psycopg", "confluent_kafka")


class Broken(AssertionError):
    """A round lost, doubled or invented an event, or a consumer ended by itself."""


def consume(url: str, address: str, topic: str, batch_max: int, ready: Any) -> None:
    """A consumer process, until it gets a signal. `ready`: an event that is set once the loop can outlive an outage."""
    from confluent_kafka import Consumer
    from fencepost.consumer import ConsumerLoop
    from fencepost.sql import SqlSink

    logging.disable(logging.ERROR)  # outages and dead letters are wanted here
    client = Consumer(
        consumer_settings(
            address,
            topic,
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=SESSION_MS // 5,
        )
    )
    engine = sqlalchemy.create_engine(url)
    sink = SqlSink(engine, "orders", "billing", policy="kafka_offsets", columns="kafka")

    def decode(message: Any) -> dict[str, Any]:
        return dict(json.loads(message.value()))

    loop = ConsumerLoop(client, sink, [topic], decode=decode, attempts=2, batch_max=batch_max, linger_s=0.01)
    ready.set()
    loop.run()
    engine.dispose()


@dataclass
class Round:
    """One round on a topic and a database of its own."""

    broker: Broker
    server: PostgresServer
    seed: int
    events: int = EVENTS
    more_faults: int = MORE_FAULTS
    sent: list[int] = field(default_factory=list)
    poison: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    consumers: list[Any] = field(default_factory=list)

    def run(self) -> None:
        """Raises Broken."""
        self.chance = random.Random(self.seed)
        self.topic, self.url = f"loop-{self.seed}-{time.monotonic_ns()}", self.server.new_database()
        self.engine = sqlalchemy.create_engine(self.url)
        with self.engine.begin() as connection:
            connection.execute(text(CREATE))
        self.partitions = self.chance.randint(2, 4)
        self.broker.create(self.topic, self.partitions)
        try:
            self._run()
        finally:
            for process in self.consumers:
                process.kill()
                process.join()
            self.engine.dispose()

    def _run(self) -> None:
        wanted = [*FAULTS, *self.chance.choices([it for it in FAULTS if it != "broker killed"], k=self.more_faults)]
        self.chance.shuffle(wanted)
        for _ in range(2):
            self._start()
        for fault in wanted:
            before = len(self.sent)
            self._send(self.events // len(wanted))
            reached = before + int(self.chance.random() * (len(self.sent) - before))
            wait_until(lambda reached=reached: self._applied() >= reached, f"fewer than {reached} are applied")
            self._act(fault)
            self._check_alive()
        try:
            wait_until(lambda: self._applied() >= len(self.sent), "not all is applied")
        except AssertionError as error:
            raise Broken(f"seed {self.seed}: {error}: {self._progress()}") from None
        wait_until(lambda: len(self._ask(_DEAD)) >= self.poison, "not all poison is a dead letter")
        for process in self.consumers:
            process.terminate()
        for process in self.consumers:
            process.join(PATIENCE_SECONDS)
            self._demand(process.exitcode == 0, f"a consumer ends with {process.exitcode}")
        self._check()

    def _act(self, fault: str) -> None:
        """One fault; at least one consumer runs after it."""
        one = self.chance.choice(self.consumers)
        if fault == "consumer killed":
            one.kill()
            one.join()
            self.consumers.remove(one)
        elif fault == "consumer stopped":
            os.kill(one.pid, signal.SIGSTOP)
            time.sleep(self.chance.uniform(0, 2) * SESSION_MS / 1000)
            os.kill(one.pid, signal.SIGCONT)
        elif fault == "consumer joins" and len(self.consumers) < CONSUMERS_MAX:
            self._start()
        elif fault == "consumer leaves":
            one.terminate()
            one.join(PATIENCE_SECONDS)
            self._demand(one.exitcode == 0, f"a consumer ends with {one.exitcode}")
            self.consumers.remove(one)
        elif fault == "database killed":
            self.server.halt()
            time.sleep(self.chance.uniform(0, 0.5))
            self.server.start_again()
            self.engine.dispose()
        elif fault == "broker killed":
            self.broker.crash()
        else:
            return
        self.faults[fault] += 1
        if not self.consumers or (fault == "consumer killed" and self.chance.random() < 0.5):
            self._start()

    def _start(self) -> None:
        ready = _FORK.Event()
        of_topic = (self.url, self.broker.address, self.topic, self.chance.choice((50, 200, 500)))
        process = _FORK.Process(target=consume, args=(*of_topic, ready))
        process.start()
        wait_until(lambda: ready.is_set() or not process.is_alive(), "a consumer does not begin")
        self.consumers.append(process)

    def _send(self, count: int) -> None:
        """In transactions, some of which are aborted; some messages are poison."""
        producer = self.broker.producer(**{"transactional.id": self.topic})
        producer.init_transactions(ANSWER_SECONDS)
        end = len(self.sent) + count
        while len(self.sent) < end:
            numbers = range(len(self.sent), min(end, len(self.sent) + self.chance.randint(1, 1000)))
            is_aborted, poison = self.chance.random() < 0.1, int(self.chance.random() < 0.2)
            producer.begin_transaction()
            for number in numbers:
                producer.produce(self.topic, json.dumps({"number": number}), partition=number % self.partitions)
                producer.poll(0)
            for _ in range(poison):
                producer.produce(self.topic, "no JSON", partition=0)
            if is_aborted:
                producer.flush(ANSWER_SECONDS)
                producer.abort_transaction(ANSWER_SECONDS)
                continue
            producer.commit_transaction(ANSWER_SECONDS)
            self.sent += numbers
            self.poison += poison

    def _ask(self, query: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query)).scalars())

    def _applied(self) -> int:
        return int(self._ask("SELECT count(*) FROM orders")[0])

    def _progress(self) -> str:
        """The applied position of each partition, and ended consumers: printed if a round makes no progress."""
        applied = Counter(number % self.partitions for number in self._ask("SELECT number FROM orders"))
        sent = Counter(number % self.partitions for number in self.sent)
        codes = [it.exitcode for it in self.consumers]
        return f"applied {sorted(applied.items())} of {sorted(sent.items())}, exit codes {codes}, faults {self.faults}"

    def _check_alive(self) -> None:
        codes = [it.exitcode for it in self.consumers]
        self._demand(not any(code is not None for code in codes), f"consumers ended by themselves: {codes}")

    def _check(self) -> None:
        stored = Counter(self._ask("SELECT number FROM orders"))
        lost = sorted(set(self.sent) - stored.keys())
        twice = sorted(number for number, count in stored.items() if count > 1)
        strange = sorted(stored.keys() - set(self.sent))
        self._demand(not (lost or twice or strange), f"lost {lost[:5]}, twice {twice[:5]}, never sent {strange[:5]}")
        dead = self._ask(_DEAD)
        self._demand(len(dead) == self.poison, f"{len(dead)} dead letters, {self.poison} poison messages")
        more = self._ask("SELECT more FROM fencepost_claims")
        self._demand(more == [None] * self.partitions, f"claims have holes: {more}")

    def _demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(f"seed {self.seed}: {what}")


_DEAD = "SELECT error_type FROM fencepost_dead_letters"


def command(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="consumer loop")
    parser.add_argument("--rounds", type=int, default=100, help="runs, each with a seed of its own")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--events", type=int, default=EVENTS, help="of a run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run begins after so many")
    parser.add_argument("--tally", type=Path, help="where the figures go")
    given = parser.parse_args(arguments)
    found = Tally(given.family)
    broker, server = Broker(Path(tempfile.mkdtemp(prefix="loop-"))), PostgresServer()
    broker.start()
    server.start()
    try:
        for seed in range(given.first, given.first + given.rounds):
            if time.monotonic() - found.began > given.seconds:
                break
            _one(Round(broker, server, seed, given.events), found)
            found.write(given.tally)
    finally:
        server.stop()
        broker.stop()
    print(found.failed or "every committed event is in the table once, and nothing else", flush=True)
    return 1 if found.failed else 0


def _one(one: Round, found: Tally, say: Callable[..., None] = print) -> None:
    began = time.monotonic()
    found.rounds += 1
    try:
        one.run()
    except AssertionError as error:
        found.failed.append(f"seed {one.seed}")
        say(f"FAILED seed {one.seed}: {error}", flush=True)
        return
    for kind, count in one.faults.items():
        injected(kind, count)
    say(
        f"seed {one.seed}: {len(one.sent):,} events, {one.poison} poison, {one.faults.total()} faults, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
