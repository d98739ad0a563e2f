"""Events to a table of PostgreSQL or MariaDB, each once: claims by sequence against the table of processed messages.

The server is the system's, on this machine, with durable settings (fsync, synchronous_commit), reached through a
socket. One event in 21 comes twice. What is compared: `SqlSink` with a row a producer's partition; the loop that
articles teach, an insert-or-ignore and an insert an event, committed every thousand (on a slice: minutes otherwise);
and the best bulk form that we could write: COPY to a temporary table, the new ids by ON CONFLICT DO NOTHING RETURNING,
their rows by INSERT ... SELECT, all in the same pieces as ours. COPY alone shows how fast any could be. An answer is
(rows of the table, different events among them).

Consumers make small calls: what a poll gave them. So calls of 1 to 50,000 rows are measured too, by sequence, by offset
and by message id, each against both forms of processed messages in calls of the same size: by arrays (one statement
claims the ids, RETURNING those that are new, and one inserts their rows) and staged by COPY as above. On MariaDB, which
has no RETURNING of what a conflict leaves out, the other form locks the ids that are there, and inserts the rest.

A loop of statements waits half of its time for processors to wake up, where they are virtual and otherwise idle: 140 µs
an event against 60. That would flatter us, so processes of the lowest priority keep them awake.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy
from fencepost.sql import SqlSink
from fencepost.sql import rows as bulk
from fencepost.sql.database import Database
from sqlalchemy import Connection, Engine, Table, text

from bench import workload
from bench.measure import Contestant, Measurement, alternate, write_part
from bench.workload import Workload

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

ALL, ONE_BY_ONE = "events to PostgreSQL, in bulk", "events to PostgreSQL, one by one"
OURS, OURS_SMALL, BY_ID = "SqlSink, sequence", "SqlSink, sequence, pieces of 1000", "SqlSink, message_id"
BULK, LOOP, COPY = "processed messages, in bulk", "processed messages, a loop", "COPY alone"
SHAPE = Workload(name="spans of 20, 1000 keys", keys=1_000, run=20, partitions=10)
EVENTS, PIECE_ROWS, COMMIT_ROWS, SLICE = 1_050_000, 50_000, 1_000, 25
"""At most so many events; rows of a call; rows of a transaction of the loop; the loop gets one in so many."""
PAYLOAD_BYTES = 100

LOOP_TIMES, BULK_TIMES, STORAGE_SHARE = 20, 3, 0.01
"""Figures to reach: times as fast as either, and of the bytes of processed messages."""

CALLS = {1: 100, 100: 60, 500: 60, 1_000: 40, 50_000: 4}
"""Of each number of rows a call, how many calls there are."""
BY_SEQUENCE, BY_OFFSET, BY_MESSAGE = "SqlSink, by sequence", "SqlSink, by offset", "SqlSink, by message id"
ARRAYS, STAGED = "processed messages, by arrays", "processed messages, staged"
READ_FIRST, CALLS_TO_MARIADB = "processed messages, read first", "calls of 500 rows to MariaDB"
CALLS_AT_PAR = (500, 1_000)
"""Calls of so many rows are to be at least as fast as the better of both forms."""

Answer = tuple[int, int]
MakeSink = Callable[[Engine], SqlSink]
Sinks = dict[MakeSink, SqlSink]


def calls_of(rows: int) -> str:
    """The name of a contest."""
    return f"calls of {rows:,} row{'s' if rows > 1 else ''}"


def contest(rows: int, rounds: int) -> dict[str, Any]:
    """What belongs into the results."""
    made = workload.make(SHAPE, min(rows, EVENTS))
    events = _with_ids(made.table)
    few = events.slice(0, len(events) // SLICE)
    with _awake(), _server() as engine:
        storage: dict[str, int] = {}
        measurements = alternate(
            ALL,
            [
                _contestant(OURS, engine, events, lambda it, some: _sink(it, some, PIECE_ROWS), "ours", storage),
                _contestant(OURS_SMALL, engine, events, lambda it, some: _sink(it, some, COMMIT_ROWS), "ours", storage),
                _contestant(BY_ID, engine, events, _sink_by_id, "ours", storage),
                _contestant(BULK, engine, events, _in_bulk, "peer", storage),
                _contestant(COPY, engine, events, _copied, "limit", storage),
            ],
            len(events),
            rounds,
            lambda: _clear(engine),
        )
        measurements += alternate(
            ONE_BY_ONE,
            [_contestant(LOOP, engine, few, _one_by_one, "peer", {})],
            len(few),
            rounds,
            lambda: _clear(engine),
        )
        made_before: Sinks = {}
        for size, count in CALLS.items():
            some = events.slice(0, min(len(events), size * count))
            measurements += alternate(
                calls_of(size),
                [
                    *_callers(made_before, engine, some, size),
                    _contestant(ARRAYS, engine, some, partial(_by_arrays, size=size), "peer", {}),
                    _contestant(STAGED, engine, some, partial(_in_bulk, size=size), "peer", {}),
                ],
                len(some),
                rounds,
                lambda: _make_sinks(made_before, engine),
            )
    measurements += _to_mariadb(events, rounds)
    return {"measurements": [it.to_json() for it in measurements], "storage_bytes": storage}


def _to_mariadb(events: pa.Table, rounds: int) -> list[Measurement]:
    from support.mariadb import MariaDBServer

    size = 500
    some, made = events.slice(0, size * CALLS[size]), Sinks()
    with _awake(), MariaDBServer(durable=True) as server:
        engine = sqlalchemy.create_engine(server.new_database())
        other = _contestant(READ_FIRST, engine, some, partial(_read_first, size=size), "peer", {})
        contestants = [*_callers(made, engine, some, size), other]
        found = alternate(CALLS_TO_MARIADB, contestants, len(some), rounds, lambda: _make_sinks(made, engine))
        engine.dispose()
    return found


def _callers(made: Sinks, engine: Engine, events: pa.Table, size: int) -> list[Contestant]:
    """Ours, in calls of so many rows."""
    return [
        _contestant(name, engine, events, partial(_call_sink, made, make, size=size), "ours", {})
        for name, make in ((BY_SEQUENCE, _sequences), (BY_OFFSET, _offsets), (BY_MESSAGE, _messages))
    ]


def times_of_the_loop(contests: dict[str, dict[str, Measurement]]) -> float:
    """How many times the loop's events a second ours takes."""
    return contests[ALL][OURS].rows_per_second / contests[ONE_BY_ONE][LOOP].rows_per_second


def _with_ids(table: pa.Table) -> pa.Table:
    """Each identity with an id of chance, and something to carry."""
    rng = np.random.default_rng(3)
    identity = np.asarray(table["pid"]) * 2**44 + np.asarray(table["partition"]).astype(np.int64) * 2**34
    _, number = np.unique(identity + np.asarray(table["seq"]), return_inverse=True)
    ids = [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(number.max() + 1)]
    payloads = pa.array([rng.bytes(PAYLOAD_BYTES // 2).hex() for _ in range(1000)])
    table = table.append_column("event_id", pa.array(ids).take(pa.array(number)))
    table = table.append_column("offset", _offsets_of(np.asarray(table["partition"]), number))
    table = table.append_column("topic", pa.repeat(pa.scalar("clicks"), len(table)))
    return table.append_column("payload", payloads.take(pa.array(np.arange(len(table)) % 1000)))


def _offsets_of(partition: np.ndarray[Any, Any], event: np.ndarray[Any, Any]) -> pa.Array:
    """The place of each event in its partition: in the order in which they come first. A repeat is delivered again."""
    _, first, place = np.unique(event, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    offsets = np.empty(len(first), np.int64)
    for number in np.unique(partition):
        mine = order[partition[first[order]] == number]
        offsets[mine] = np.arange(len(mine))
    return pa.array(offsets[place])


@contextmanager
def _awake() -> Iterator[None]:
    """No processor goes idle meanwhile."""
    program = "import os\nos.nice(19)\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", program]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@contextmanager
def _server() -> Iterator[Engine]:
    from support.postgres import PostgresServer

    with PostgresServer(durable=True) as server:
        engine = sqlalchemy.create_engine(server.new_database())
        try:
            yield engine
        finally:
            engine.dispose()


_TABLES = """
CREATE TABLE events (pid BIGINT, epoch SMALLINT, partition INTEGER, seq BIGINT, event_id UUID, payload TEXT);
CREATE TABLE processed_messages (event_id UUID PRIMARY KEY, processed_at TIMESTAMPTZ NOT NULL DEFAULT now())
"""
_TABLES_OF_MARIADB = """
CREATE TABLE events (pid BIGINT, epoch SMALLINT, `partition` INTEGER, seq BIGINT, event_id CHAR(36), payload TEXT);
CREATE TABLE processed_messages (event_id CHAR(36) PRIMARY KEY, processed_at TIMESTAMP NOT NULL DEFAULT now())
"""


def _clear(engine: Engine) -> None:
    """An empty schema, and nothing left to be written from before."""
    if engine.dialect.name == "mariadb":
        with engine.begin() as connection:
            connection.execute(text(f"DROP DATABASE {engine.url.database}"))
            connection.execute(text(f"CREATE DATABASE {engine.url.database}"))
        engine.dispose()
        with engine.begin() as connection:
            for statement in _TABLES_OF_MARIADB.split(";"):
                connection.execute(text(statement))
        return
    with engine.begin() as connection:
        schema = connection.execute(text("SELECT current_setting('search_path')")).scalar_one()
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        connection.execute(text(f"CREATE SCHEMA {schema}"))
        for statement in _TABLES.split(";"):
            connection.execute(text(statement))
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("CHECKPOINT"))


def _contestant(
    name: str,
    engine: Engine,
    events: pa.Table,
    run: Callable[[Engine, pa.Table], str],
    role: Any,
    storage: dict[str, int],
) -> Contestant:
    """`run` gives the name of the table that remembers what was applied."""
    different = len(set(events["event_id"].to_pylist()))

    def answer(remembered: str) -> Answer:
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                size = text("SELECT pg_total_relation_size(:name)")
                storage[name] = int(connection.execute(size, {"name": remembered}).scalar_one())
            found = connection.execute(text("SELECT count(*), count(DISTINCT event_id) FROM events")).one()
            return int(found[0]), int(found[1])

    expected = (len(events) if role == "limit" else different, different)
    return Contestant(
        name=name, threads=2, run=lambda: run(engine, events), expected=expected, answer=answer, role=role
    )


def _pieces(events: pa.Table, rows: int) -> Iterator[pa.Table]:
    yield from (events.slice(start, rows) for start in range(0, len(events), rows))


COLUMNS = ("pid", "epoch", "partition", "seq", "event_id", "payload")
"""Those of the table."""


def _sink(engine: Engine, events: pa.Table, rows: int) -> str:
    sink = _sequences(engine)
    for piece in _pieces(events, rows):
        sink.apply(piece)
    return "fencepost_claims"


def _sink_by_id(engine: Engine, events: pa.Table) -> str:
    sink = _messages(engine)
    for piece in _pieces(events, PIECE_ROWS):
        sink.apply(piece)
    return "fencepost_messages"


def _sequences(engine: Engine) -> SqlSink:
    return SqlSink(engine, "events", "bench", insert=COLUMNS)


def _offsets(engine: Engine) -> SqlSink:
    return SqlSink(engine, "events", "by offset", policy="kafka_offsets", columns="kafka", insert=COLUMNS)


def _messages(engine: Engine) -> SqlSink:
    return SqlSink(engine, "events", "by id", "message_id", message_id="event_id", insert=COLUMNS)


def _make_sinks(made: Sinks, engine: Engine) -> None:
    """In an empty schema: a consumer makes its tables once, not with each call."""
    _clear(engine)
    made.update({make: make(engine) for make in (_sequences, _offsets, _messages)})


def _call_sink(made: Sinks, make: MakeSink, engine: Engine, events: pa.Table, *, size: int) -> str:
    for piece in _pieces(events, size):
        made[make].apply(piece)
    return "fencepost_consumers"


_STAGE = "CREATE TEMPORARY TABLE staged ON COMMIT DROP AS SELECT * FROM events LIMIT 0"
_APPLY = """
WITH new AS (
    INSERT INTO processed_messages (event_id) SELECT DISTINCT event_id FROM staged ORDER BY event_id
    ON CONFLICT DO NOTHING RETURNING event_id
)
INSERT INTO events SELECT DISTINCT ON (event_id) staged.* FROM staged JOIN new USING (event_id)
"""


def _in_bulk(engine: Engine, events: pa.Table, size: int = PIECE_ROWS) -> str:
    database, staged = Database(engine), Table("staged", sqlalchemy.MetaData())

    def work(connection: Connection, piece: pa.Table) -> None:
        connection.execute(text(_STAGE))
        bulk.insert(connection, staged, piece)
        connection.execute(text(_APPLY))

    for piece in _pieces(events.select(COLUMNS), size):
        database.transaction(lambda connection, piece=piece: work(connection, piece))  # type: ignore[misc]
    return "processed_messages"


_CLAIM = """
INSERT INTO processed_messages (event_id) SELECT DISTINCT id FROM unnest(%s::uuid[]) AS id ORDER BY id
ON CONFLICT DO NOTHING RETURNING event_id::text
"""
_ROWS = """
INSERT INTO events (pid, epoch, partition, seq, event_id, payload)
SELECT * FROM unnest(%s::bigint[], %s::smallint[], %s::integer[], %s::bigint[], %s::uuid[], %s::text[])
"""


def _by_arrays(engine: Engine, events: pa.Table, *, size: int) -> str:
    """Through the driver itself, which prepares both statements: four round trips a call."""
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        for piece in _pieces(events.select(COLUMNS), size):
            columns = [column.to_pylist() for column in piece.columns]
            cursor.execute(_CLAIM, (columns[4],))
            new = {row[0] for row in cursor.fetchall()}
            kept = []
            for place, event in enumerate(columns[4]):
                if event in new:
                    new.discard(event)
                    kept.append(place)
            cursor.execute(_ROWS, [[column[place] for place in kept] for column in columns])
            connection.commit()
    return "processed_messages"


def _read_first(engine: Engine, events: pa.Table, *, size: int) -> str:
    """On MariaDB, through the driver itself: three statements a call and the commit."""
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        for piece in _pieces(events.select(COLUMNS), size):
            rows = {row[4]: row for row in reversed(list(zip(*(it.to_pylist() for it in piece.columns), strict=True)))}
            marks = ", ".join(["%s"] * len(rows))
            known = f"SELECT event_id FROM processed_messages WHERE event_id IN ({marks}) FOR UPDATE"
            cursor.execute(known, sorted(rows))
            for (event,) in cursor.fetchall():
                del rows[event]
            if rows:
                cursor.executemany(
                    "INSERT INTO processed_messages (event_id) VALUES (%s)", [(it,) for it in sorted(rows)]
                )
                cursor.executemany(
                    "INSERT INTO events (pid, epoch, `partition`, seq, event_id, payload) "
                    "VALUES (%s, %s, %s, %s, %s, %s)",
                    list(rows.values()),
                )
            connection.commit()
    return "processed_messages"


def _copied(engine: Engine, events: pa.Table) -> str:
    database, table = Database(engine), Table("events", sqlalchemy.MetaData())
    for piece in _pieces(events.select(COLUMNS), PIECE_ROWS):
        database.transaction(lambda it, piece=piece: bulk.insert(it, table, piece))  # type: ignore[misc]
    return "processed_messages"


def _one_by_one(engine: Engine, events: pa.Table) -> str:
    """Through the driver itself, which prepares both statements."""
    claim = "INSERT INTO processed_messages (event_id) VALUES (%s) ON CONFLICT DO NOTHING"
    apply = "INSERT INTO events (pid, epoch, partition, seq, event_id, payload) VALUES (%s, %s, %s, %s, %s, %s)"
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        for piece in _pieces(events.select(COLUMNS), COMMIT_ROWS):
            for event in zip(*(column.to_pylist() for column in piece.columns), strict=True):
                cursor.execute(claim, (event[4],))
                if cursor.rowcount:
                    cursor.execute(apply, event)
            connection.commit()
    return "processed_messages"


if __name__ == "__main__":
    write_part(contest)
