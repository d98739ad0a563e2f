"""Producer identities from a real PostgreSQL that syncs what it commits, asked for by 16 processes at once.

With transactional ids: `ProducerRegistry.init_producer` of ids that are mostly known, a hundredth of them shared by all
processes, against one upsert a call, which gives a pid and an epoch and does nothing else: it fences, aborts and
expires nothing. Without: a pid from the block that a process has in memory, against a sequence, and against a
counter in a row, a transaction for each pid. An answer is (identities, different ones): over all rounds none may come
twice.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import Contestant, Measurement, alternate, write_part

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

IDS, PIDS = "identities of transactional ids, 16 processes", "pids without an id, 16 processes"
OURS, UPSERT, SEQUENCE, COUNTER = "init_producer", "one upsert a call", "nextval a pid", "a counter in a row"
CLIENTS, SHARED = 16, 100
"""One id in so many is used by all clients."""
SHARE = 1000
"""Of the benchmark's rows one in so many is a call."""
CALLS_A_SECOND = 500
"""To reach, with transactional ids."""
TABLES = """
CREATE SEQUENCE pids;
CREATE TABLE counter (next_pid BIGINT NOT NULL);
INSERT INTO counter VALUES (0);
CREATE TABLE producers (id TEXT PRIMARY KEY, pid BIGINT NOT NULL, epoch INTEGER NOT NULL);
"""

Identity = tuple[int, int]
Call = Callable[[str], Identity]


def contest(rows: int, rounds: int) -> dict[str, Any]:
    """What belongs into the results."""
    calls = max(1, rows // SHARE // CLIENTS)
    with _server() as url, _clients(url) as clients:
        count = calls * CLIENTS
        measurements = compete(clients, IDS, {OURS: "ours", UPSERT: "peer"}, calls, rounds, count)
        measurements += compete(clients, PIDS, {OURS: "ours", SEQUENCE: "peer", COUNTER: "peer"}, calls, rounds, count)
    return {"measurements": [it.to_json() for it in measurements]}


def compete(
    clients: list[Any], contest: str, contestants: dict[str, Any], calls: int, rounds: int, expected: int
) -> list[Measurement]:
    """So many calls of each client a round, and the identities that are to come of them."""
    seen: dict[str, list[Identity]] = {name: [] for name in contestants}

    def answer(name: str, found: list[Identity]) -> tuple[int, int]:
        """So many identities, and so many that nobody had before."""
        before = set(seen[name])
        seen[name] += found
        return len(found), len(set(found) - before)

    return alternate(
        contest,
        [
            Contestant(
                name=name,
                threads=CLIENTS,
                role=role,
                expected=(expected, expected),
                run=lambda name=name: _ask(clients, contest, name, calls),
                answer=lambda found, name=name: answer(name, found),
            )
            for name, role in contestants.items()
        ],
        expected,
        rounds,
    )


def _ask(clients: list[Any], contest: str, name: str, calls: int) -> list[Identity]:
    for pipe in clients:
        pipe.send((contest, name, calls))
    return [identity for pipe in clients for identity in pipe.recv()]


@contextmanager
def _server() -> Iterator[str]:
    import psycopg
    from support.postgres import PostgresServer

    with PostgresServer(durable=True) as server:
        url = server.new_database()
        with psycopg.connect(_libpq(url), autocommit=True) as connection:
            connection.execute(TABLES)
        yield url


def _libpq(url: str) -> str:
    """SQLAlchemy's URL as the driver reads it."""
    return url.replace("postgresql+psycopg", "postgresql")


@contextmanager
def _clients(url: str) -> Iterator[list[Any]]:
    """A pipe to each of the processes, which are connected already."""
    context = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    for number in range(CLIENTS):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_client, args=(url, number, theirs)))
        pipes.append(ours)
        processes[-1].start()
    try:
        for pipe in pipes:
            assert pipe.recv() == "ready"
        yield pipes
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()


def _client(url: str, number: int, pipe: Any) -> None:
    """One of the processes: makes so many calls, one after the other, whenever it is asked to."""
    import psycopg
    import sqlalchemy
    from fencepost.sql import ProducerRegistry

    registry = ProducerRegistry(sqlalchemy.create_engine(url))
    connection = psycopg.connect(_libpq(url), autocommit=True)
    calls = _calls(registry, connection)
    registry.init_producer(f"warm {number}")
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        contest, name, count = asked
        call = calls[contest, name]
        ids = [f"shared {it}" if it % SHARED == 0 else f"{number} {it}" for it in range(count)]
        pipe.send([call(it) for it in ids])


def _calls(registry: Any, connection: Any) -> dict[tuple[str, str], Call]:
    def with_id(transactional_id: str) -> Identity:
        found = registry.init_producer(transactional_id)
        return found.pid, found.epoch

    def without_id(_: str) -> Identity:
        found = registry.init_producer()
        return found.pid, found.epoch

    def upsert(transactional_id: str) -> Identity:
        query = (
            "INSERT INTO producers VALUES (%s, nextval('pids'), 0) "
            "ON CONFLICT (id) DO UPDATE SET epoch = producers.epoch + 1 RETURNING pid, epoch"
        )
        found: Identity = connection.execute(query, (transactional_id,)).fetchone()
        return found

    def sequence(_: str) -> Identity:
        return connection.execute("SELECT nextval('pids')").fetchone()[0], 0

    def counter(_: str) -> Identity:
        query = "UPDATE counter SET next_pid = next_pid + 1 RETURNING next_pid - 1"
        return connection.execute(query).fetchone()[0], 0

    return {
        (IDS, OURS): with_id,
        (IDS, UPSERT): upsert,
        (PIDS, OURS): without_id,
        (PIDS, SEQUENCE): sequence,
        (PIDS, COUNTER): counter,
    }


if __name__ == "__main__":
    write_part(contest)
