"""The SQL table as a place to write to: rows and their listing in one transaction, on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost.kafka import read_records
from fencepost.producer import Answer, SequencedBatch
from fencepost.sql import ProducerRegistry, TransactionCoordinator
from fencepost.sql.database import Database
from fencepost.sql.registry import DAY_MS
from fencepost.transports import (
    LandingTransport,
    PartitionLogTransport,
    SqlTransport,
    create_committed_view,
    read_committed,
    read_landing,
    stream_committed,
)
from support.databases import execute, without_mariadb
from support.faulty_transport import FaultyTransport, MemoryTransport
from support.producers import batch
from support.threads import in_threads

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
SCHEMA = pa.schema({"value": pa.int64()})
NewEngine = Callable[[], sa.Engine]


def values(engine: sa.Engine, **more: Any) -> list[Any]:
    found = read_committed(engine, "events", **more)
    return found["value"].to_pylist() if found.num_rows else []


def test_rows_that_were_sent_are_read(engine: sa.Engine) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA, partitions=2)
    with fp.SequencedProducer(transport, partition_by="partition") as producer:
        pid = producer.identity.pid
        [delivery, _] = producer.send({"partition": [0, 1, 0], "value": [1, 2, 3]})
        assert delivery.result(30).offset == 0
        producer.send({"partition": [1], "value": [4]})
    table = read_committed(engine, "events")
    assert table.select(["pid", "epoch", "partition", "seq", "log_offset", "value"]).to_pylist() == [
        {"pid": pid, "epoch": 0, "partition": 0, "seq": 0, "log_offset": 0, "value": 1},
        {"pid": pid, "epoch": 0, "partition": 0, "seq": 1, "log_offset": 1, "value": 3},
        {"pid": pid, "epoch": 0, "partition": 1, "seq": 0, "log_offset": 0, "value": 2},
        {"pid": pid, "epoch": 0, "partition": 1, "seq": 1, "log_offset": 1, "value": 4},
    ]
    with engine.connect() as connection:
        listed = connection.execute(sa.text("SELECT * FROM events_commits ORDER BY 1, 2")).mappings().all()
    assert dict(listed[0]) == {
        "partition": 0, "log_offset": 0, "pid": pid, "epoch": 0, "first_seq": 0, "last_seq": 1, "count": 2,
        "outcome": "commit",
    }  # fmt: skip
    assert values(engine, partition=0, from_offset=1) == [3]


def test_values_and_types_of_every_piece_are_those_that_were_sent(engine: sa.Engine) -> None:
    """Types do not depend on the values of a piece, which may be nulls, and no digit is lost."""
    schema = pa.schema(
        {
            "real": pa.float64(),
            "exact": pa.decimal128(30, 20),
            "text": pa.string(),
            "raw": pa.binary(),
            "day": pa.date32(),
            "at": pa.timestamp("us"),
            "instant": pa.timestamp("us", "UTC"),
        }
    )
    rows = pa.table(
        {
            "real": [None, 1e-20, 1 / 3, 1e300],
            "exact": [None, Decimal("0.1"), Decimal("123.5"), Decimal("-0.00000000000000000001")],
            "text": [None, "", "a", None],
            "raw": [None, b"", b"\0", None],
            "day": [None, date(2024, 2, 29), date(1999, 1, 1), None],
            "at": [None, datetime(2024, 2, 29, 1, 2, 3, 4), datetime(1969, 1, 1), None],
            "instant": [None, datetime(2024, 2, 29, 1, 2, 3, 4), datetime(1969, 1, 1), None],
        },
        schema=schema,
    )
    transport = SqlTransport(engine, "events", schema=schema)
    nothing = read_committed(engine, "events")
    transport.send(batch(7, 0, 0, rows))
    pieces = list(stream_committed(engine, "events", batch_rows=1))
    assert len(pieces) == 4
    assert {piece.schema for piece in (*pieces, nothing)} == {pieces[0].schema}
    found = pa.concat_tables(pieces).select(schema.names)
    wanted = [field for field in schema if field.name != "instant"]
    assert found.drop_columns("instant").schema == pa.schema(wanted), "only PostgreSQL stores time zones"
    assert found.cast(schema).to_pylist() == rows.to_pylist()


def test_a_retry_is_known_in_another_process(engine: sa.Engine, new_engine: NewEngine) -> None:
    first = SqlTransport(engine, "events", schema=SCHEMA)
    assert first.send(batch(7, 0, 1, [1])) == Answer(fp.Verdict.OUT_OF_ORDER), "a stranger begins with 0"
    assert first.send(batch(7, 0, 0, [1, 2])) == Answer(fp.Verdict.ACCEPTED, 0)
    other = SqlTransport(new_engine(), "events")
    assert other.send(batch(7, 0, 0, [1, 2])) == Answer(fp.Verdict.DUPLICATE, 0)
    assert other.send(batch(7, 0, 2, [3])) == Answer(fp.Verdict.ACCEPTED, 2)
    assert first.send(batch(7, 0, 9, [9])) == Answer(fp.Verdict.OUT_OF_ORDER)
    assert first.send(batch(8, 0, 0, [4])) == Answer(fp.Verdict.ACCEPTED, 3)
    assert values(engine) == [1, 2, 3, 4]


def test_rows_that_are_not_listed_are_not_read(engine: sa.Engine) -> None:
    SqlTransport(engine, "events", schema=SCHEMA).send(batch(7, 0, 0, [1, 2]))
    with engine.begin() as connection:
        connection.execute(
            sa.text("INSERT INTO events (pid, epoch, partition, seq, log_offset, value) VALUES (7, 0, 0, 2, 77, 99)")
        )
    assert values(engine) == [1, 2]


def test_rows_that_are_listed_and_gone_are_an_error(engine: sa.Engine) -> None:
    SqlTransport(engine, "events", schema=SCHEMA).send(batch(7, 0, 0, [1, 2]))
    execute(engine, "DELETE FROM events WHERE log_offset = 1")
    with pytest.raises(fp.SourceError, match=r"partition 0: 2 rows .* from offset 0"):
        values(engine)


def test_a_row_that_the_table_refuses_fails_its_batch_alone(engine: sa.Engine) -> None:
    schema = pa.schema([pa.field("value", pa.int64(), nullable=False)])
    transport = SqlTransport(engine, "events", schema=schema)
    with fp.SequencedProducer(transport, batch_rows=1, **QUICK) as producer:
        good, bad, more = producer.send(pa.table({"value": [1, None, 2]}))
        with pytest.raises(fp.DeliveryError, match="INVALID_RECORD") as caught:
            bad.result(30)
        assert caught.value.is_refused
        assert good.result(30).epoch == 0
        assert more.result(30).epoch == 1, "the sequences behind it would have a gap"
        with pytest.raises(fp.DeliveryError):
            producer.flush(30)
        other = producer.send({"worth": [5]})[0]
        with pytest.raises(fp.DeliveryError, match=r"column 'worth': .*'events' has no such column; .* value"):
            other.result(30)
        with pytest.raises(fp.DeliveryError):
            producer.flush(30)
    assert values(engine) == [1, 2]


def test_nothing_committed_has_columns_all_the_same(engine: sa.Engine) -> None:
    SqlTransport(engine, "events", schema=SCHEMA)
    assert read_committed(engine, "events")["value"].to_pylist() == []


def test_a_coordinator_that_would_show_nothing_is_refused(engine: sa.Engine) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    coordinator = TransactionCoordinator(engine, routes={"events": None})
    with pytest.raises(fp.PolicyError, match="has the route None"):
        fp.SequencedProducer(transport, name="a", coordinator=coordinator, topic="events")
    for topic in (None, "clicks"):
        with pytest.raises(fp.PolicyError, match=f"topic={topic!r} is not a topic .* routes: 'events'"):
            fp.SequencedProducer(transport, name="a", coordinator=coordinator, topic=topic)


def test_a_zombie_is_kept_out_by_the_fence(engine: sa.Engine, new_engine: NewEngine) -> None:
    zombie = SqlTransport(engine, "events", schema=SCHEMA)
    assert zombie.send(batch(7, 0, 0, [1])).offset == 0
    successor = SqlTransport(new_engine(), "events")
    assert successor.fence(7, 1, None) == {0: (0, 0)}
    assert zombie.send(batch(7, 0, 1, [2])) == Answer(fp.Verdict.FENCED), "before the new one has written anything"
    assert successor.send(batch(7, 1, 0, [3])).offset == 1
    assert values(engine) == [1, 3]


@pytest.mark.parametrize("odd", [pa.array([2**63 + 1], pa.uint64()), pa.array([[1]])], ids=["too large", "a list"])
def test_a_value_that_no_column_takes_fails_its_batch_alone(engine: sa.Engine, odd: pa.Array) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    producer = fp.SequencedProducer(transport, **QUICK)
    with pytest.raises(fp.DeliveryError, match="INVALID_RECORD") as caught:
        producer.send(pa.table({"value": odd}))[0].result(30)
    assert caught.value.is_refused
    producer.send([{"value": 3}])[0].result(30)
    with pytest.raises(fp.DeliveryError):
        producer.close()
    assert values(engine) == [3]


@pytest.mark.parametrize("database_url", ["sqlite", "mariadb"], indirect=True)
@pytest.mark.parametrize(
    "far",
    [
        *(pa.array([None, 0, 2**63 - 1], pa.timestamp(unit)) for unit in ("s", "ms", "us")),
        pa.array([None, 0, 2**63 - 1], pa.timestamp("us", "Asia/Tokyo")),
        pa.array([None, 0, -(2**62)], pa.timestamp("us")),
        pa.array([None, 0, 2**31 - 1], pa.date32()),
    ],
    ids=lambda it: f"{it.type} {it[2].cast(pa.int32() if it.type == pa.date32() else pa.int64())}",
)
def test_a_time_that_python_does_not_have_fails_its_batch_alone(engine: sa.Engine, far: pa.Array) -> None:
    """PostgreSQL receives times as texts, and decides itself."""
    transport = SqlTransport(engine, "events", schema=pa.schema({"value": far.type}))
    producer = fp.SequencedProducer(transport, **QUICK)
    with pytest.raises(fp.DeliveryError, match=r"column 'value', row 2: '.*': .* years 1 to 9999") as caught:
        producer.send(pa.table({"value": far}))[0].result(30)
    assert caught.value.is_refused
    assert producer.send(pa.table({"value": far.slice(0, 2)}))[0].result(30).offset == 0
    with pytest.raises(fp.DeliveryError):
        producer.close()


def test_a_value_that_a_type_refuses_fails_its_batch_alone(engine: sa.Engine) -> None:
    """SQLite would accept any value in any column."""
    schema = pa.schema([("value", pa.int64()), ("at", pa.timestamp("us"))])
    transport = SqlTransport(engine, "events", schema=schema)
    producer = fp.SequencedProducer(transport, **QUICK)
    with pytest.raises(fp.DeliveryError, match="INVALID_RECORD") as caught:
        producer.send([{"value": 1, "at": 7}])[0].result(30)
    assert caught.value.is_refused
    producer.send([{"value": 3, "at": datetime(2026, 1, 1)}])[0].result(30)
    with pytest.raises(fp.DeliveryError):
        producer.close()
    assert values(engine) == [3]


ODD_NAMES = ["50% :all", "a%(b)s", 'quote " here', "%", ":x", "Mixed Case", "select", "a\\b"]


def test_columns_of_any_name_go_in_and_come_out(engine: sa.Engine) -> None:
    schema = pa.schema([(name, pa.int64()) for name in ODD_NAMES])
    row = {name: number for number, name in enumerate(ODD_NAMES)}
    with fp.SequencedProducer(SqlTransport(engine, "events", schema=schema)) as producer:
        producer.send([row])
    assert read_committed(engine, "events").select(ODD_NAMES).to_pylist() == [row]


def test_tables_of_any_name_are_written(engine: sa.Engine) -> None:
    for name in ('50% "off" :all', "Order"):
        with fp.SequencedProducer(SqlTransport(engine, name, schema=SCHEMA)) as producer:
            producer.send([{"value": 1}])
        assert read_committed(engine, name)["value"].to_pylist() == [1]


HELD = pa.schema([("value", pa.int64()), pa.field("must", pa.string(), nullable=False)])


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        (
            {"value": [1.5], "must": ["a"]},
            "value",
            r"column 'value': .* double, .*'events' has int64",
        ),
        (
            {"value": ["1"], "must": ["a"]},
            "value",
            r"column 'value': .* string, .*'events' has int64",
        ),
        ({"value": [1]}, "must", r"column 'must': missing; .* value \(int64\), must \(string\), .* have value"),
        ({"value": [1], "must": ["a"], "more": [1]}, "more", "column 'more': the table 'events' has no such column"),
        (
            {"value": [1, 2], "must": ["a", None]},
            "must",
            "column 'must', row 1: null, but NOT NULL in the table 'events'",
        ),
    ],
)
def test_batches_are_held_against_the_schema(engine: sa.Engine, rows: Any, column: str, message: str) -> None:
    transport = SqlTransport(engine, "events", schema=HELD)
    refused = batch(7, 0, 0, pa.table(rows))
    with pytest.raises(fp.BatchError, match=f"{message}.*; nothing of this batch") as caught:
        transport.send(refused)
    assert caught.value.column == column
    assert read_committed(engine, "events").num_rows == 0
    good = batch(7, 0, 0, pa.table({"must": pa.array(["b"]).dictionary_encode(), "value": pa.nulls(1)}))
    assert transport.send(good) == Answer(fp.Verdict.ACCEPTED, 0)


def test_without_a_schema_batches_are_held_against_the_columns(engine: sa.Engine) -> None:
    make_table(engine, value=sa.Numeric(4, 1), more=sa.Integer())
    transport = SqlTransport(engine, "events")
    for value, message in (("1", r"row 0: '1': .* string, numbers"), (0.25, "row 0: 0.25: ")):
        with pytest.raises(fp.BatchError, match=message):
            transport.send(batch(7, 0, 0, [value]))
    assert transport.send(batch(7, 0, 0, [0.5])).offset == 0
    assert read_committed(engine, "events").select(["value", "more"]).to_pylist() == [
        {"value": Decimal("0.5"), "more": None}
    ]


REFUSALS = {
    "column": ("ALTER TABLE events DROP COLUMN value", "INVALID_REQUEST"),
    "table": ("DROP TABLE events", "INVALID_REQUEST"),
    "list": ("DROP TABLE events_commits", "INVALID_REQUEST"),
    "trigger": (
        {
            "sqlite": "CREATE TRIGGER no BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'closed'); END",
            "mariadb": "CREATE TRIGGER no BEFORE INSERT ON events FOR EACH ROW SIGNAL SQLSTATE '45000' "
            "SET MESSAGE_TEXT = 'events are closed'",
            "postgresql": "CREATE FUNCTION no() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'closed'; END $$ "
            "LANGUAGE plpgsql; CREATE TRIGGER no BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION no()",
        },
        "INVALID_RECORD",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_permanent_refusals_of_the_database_are_not_tried_again(engine: sa.Engine, what: str) -> None:
    """With retries, each batch would fail only after delivery_timeout_ms."""
    breaks, code = REFUSALS[what]
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    execute(engine, breaks if isinstance(breaks, str) else breaks[engine.dialect.name])
    check_refused(transport, code)


def test_a_missing_right_is_not_waited_for(engine: sa.Engine, tmp_path: Path) -> None:
    SqlTransport(engine, "events", schema=SCHEMA)
    url = engine.url
    if engine.dialect.name == "sqlite":
        limited = sa.create_engine(f"sqlite:///file:{tmp_path}/test.db?mode=ro&uri=true")
    elif engine.dialect.name == "mariadb":
        name = f"r{uuid.uuid4().hex[:20]}"
        execute(engine, f"CREATE USER {name}@localhost", f"GRANT SELECT ON {url.database}.* TO {name}@localhost")
        limited = sa.create_engine(url.set(username=name))
    else:
        with engine.begin() as connection:
            name = f"reader_{uuid.uuid4().hex}"
            connection.execute(sa.text(f"CREATE ROLE {name} LOGIN IN ROLE pg_read_all_data"))
        limited = sa.create_engine(url.set(username=name, password=None))
    transport = SqlTransport.__new__(SqlTransport)
    transport.__dict__ |= vars(SqlTransport(engine, "events")) | {"_database": Database(limited)}
    check_refused(transport, "TOPIC_AUTHORIZATION_FAILED")
    limited.dispose()


def check_refused(transport: SqlTransport, code: str) -> None:
    counted = Counted(transport)
    producer = fp.SequencedProducer(counted, registry=MemoryTransport(), **QUICK)
    with pytest.raises(fp.DeliveryError, match=rf"{code} \(.*events.*\)\. .*not in the log") as caught:
        producer.send([{"value": 1}])[0].result(30)
    assert (counted.sent, caught.value.is_refused) == (1, True)
    with pytest.raises(fp.DeliveryError):
        producer.close()


class Counted:
    partitions = 1

    def __init__(self, behind: SqlTransport) -> None:
        self.behind, self.sent = behind, 0

    def send(self, batch: SequencedBatch) -> Answer:
        self.sent += 1
        return self.behind.send(batch)


@pytest.mark.parametrize("reason", ["rotation", "expiry"])
@pytest.mark.parametrize("kind", ["sql", "landing", "log"])
def test_a_zombie_is_kept_out_by_a_fresh_pid(engine: sa.Engine, tmp_path: Path, kind: str, reason: str) -> None:
    """A registry apart from the log: only the fence informs the log."""
    transport: Any
    if kind == "sql":
        transport = SqlTransport(engine, "events", schema=SCHEMA)
    elif kind == "landing":
        transport = LandingTransport(tmp_path / "landing")
    else:
        transport = PartitionLogTransport(tmp_path)
    ProducerRegistry(engine).init_producer("gate 7")
    if reason == "rotation":
        execute(engine, "UPDATE fencepost_producers SET epoch = 32765")
    zombie = fp.SequencedProducer(transport, name="gate 7", registry=ProducerRegistry(engine), **QUICK)
    zombie.send([{"value": 1}])[0].result(30)
    if reason == "expiry":
        expire_names(engine)
    with fp.SequencedProducer(transport, name="gate 7", registry=ProducerRegistry(engine), **QUICK) as producer:
        assert producer.identity.pid != zombie.identity.pid
        with pytest.raises(fp.FencepostError):
            zombie.send([{"value": 666}])[0].result(30)
        assert producer.send([{"value": 2}])[0].result(30).first_seq == 0
    with pytest.raises(fp.FencepostError):
        zombie.close()
    if kind == "sql":
        assert values(engine) == [1, 2]
    elif kind == "landing":
        assert read_landing(tmp_path / "landing").read()["value"].to_pylist() == [1, 2]
    else:
        transport.close()
        assert pa.table(read_records(tmp_path / "events-0", isolation="read_uncommitted"))["value"].to_pylist() == [
            b'{"value":1}',
            b'{"value":2}',
        ]


def expire_names(engine: sa.Engine) -> None:
    """A name was not used for longer than a registry keeps it."""
    execute(engine, f"UPDATE fencepost_producers SET updated_ms = updated_ms - {8 * DAY_MS}")


@pytest.mark.parametrize("reason", ["rotation", "expiry", "expiry, then a crash, then expiry", "tombstone gone"])
def test_a_source_is_read_again_under_a_fresh_pid(engine: sa.Engine, tmp_path: Path, reason: str) -> None:
    """Positions belong to the name: a registry may forget its owner, or assign it to a process that crashes."""

    def run(registry: ProducerRegistry, begin: int, end: int) -> int:
        source = [{"value": at} for at in range(begin, end)]
        transport = LandingTransport(tmp_path, sync=False)
        with fp.SequencedProducer(transport, name="reader", registry=registry, position="value", **QUICK) as producer:
            for start in range(0, len(source), 7):
                producer.send(source[start : start + 7])
            return producer.identity.pid

    first = run(ProducerRegistry(engine), 0, 20)
    assert run(ProducerRegistry(engine), 5, 25) == first
    if reason == "rotation":
        execute(engine, "UPDATE fencepost_producers SET epoch = 32766")
    elif reason == "tombstone gone":
        execute(engine, "DELETE FROM fencepost_producers")
    elif "crash" in reason:
        expire_names(engine)
        ProducerRegistry(engine).init_producer("reader")
    if "expiry" in reason:
        expire_names(engine)
    assert run(ProducerRegistry(engine), 0, 30) != first
    assert read_landing(tmp_path).read()["value"].to_pylist() == list(range(30))


@pytest.mark.parametrize("kind", ["sql", "log"])
def test_cursor_mode_is_for_landing_folders(engine: sa.Engine, tmp_path: Path, kind: str) -> None:
    transport: Any = SqlTransport(engine, "events", schema=SCHEMA) if kind == "sql" else PartitionLogTransport(tmp_path)
    registry = ProducerRegistry(engine)
    with pytest.raises(fp.PolicyError, match=r"position='value': .* no cursor mode; Landing"):
        fp.SequencedProducer(transport, name="reader", registry=registry, position="value")
    with pytest.raises(fp.PolicyError, match=r"name='reader' needs a registry.*pass registry="):
        fp.SequencedProducer(transport, name="reader")


def test_a_fence_applies_to_its_partition_and_reports_the_batches_there(engine: sa.Engine) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    transport.send(batch(7, 0, 0, [1, 2]))
    transport.send(batch(7, 0, 0, [3], partition=1))
    assert transport.fence(7, 1, [0]) == {0: (0, 1)}
    assert transport.send(batch(7, 0, 2, [4])) == Answer(fp.Verdict.FENCED)
    assert transport.send(batch(7, 0, 1, [5], partition=1)).offset == 1
    assert transport.fence(7, 2, None) == {0: (0, 1), 1: (0, 1)}
    assert transport.send(batch(7, 1, 0, [6], partition=1)) == Answer(fp.Verdict.FENCED)


def test_transactions_are_seen_when_they_are_committed(engine: sa.Engine) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    transport.send(batch(9, 0, 0, [1]))
    transport.send(batch(7, 0, 0, [2], transactional=True))
    transport.send(batch(8, 0, 0, [3], transactional=True))
    transport.send(batch(9, 0, 1, [4]))
    assert values(engine) == [1], "up to the open transaction, so that a reader that continues there misses nothing"
    assert transport.write_marker(8, 1, 0, "abort") is fp.Verdict.ACCEPTED
    assert transport.write_marker(7, 1, 0, "commit") is fp.Verdict.ACCEPTED
    assert transport.write_marker(7, 1, 0, "commit") is fp.Verdict.DUPLICATE
    assert values(engine) == [1, 2, 4]
    assert transport.send(batch(7, 1, 0, [5], transactional=True)).offset == 6, "markers take an offset, too"
    assert transport.write_marker(7, 1, 0, "abort") is fp.Verdict.DUPLICATE, "late: it has gone on to the next one"
    assert transport.write_marker(7, 0, 0, "commit") is fp.Verdict.FENCED
    assert values(engine) == [1, 2, 4], "it is still open"


@pytest.mark.parametrize("seed", range(3))
def test_each_row_is_written_once_despite_a_faulty_network(engine: sa.Engine, seed: int) -> None:
    transport = FaultyTransport(SqlTransport(engine, "events", schema=SCHEMA, partitions=2), seed)
    with fp.SequencedProducer(transport, partition_by="partition", request_timeout_ms=300, **QUICK) as producer:
        for value in range(30):
            producer.send({"partition": [value % 2], "value": [value]})
    transport.settle()
    assert values(engine) == [*range(0, 30, 2), *range(1, 30, 2)]


def test_several_producers_write_to_one_partition(engine: sa.Engine, new_engine: NewEngine) -> None:
    SqlTransport(engine, "events", schema=SCHEMA)

    def write(number: int) -> None:
        with fp.SequencedProducer(SqlTransport(new_engine(), "events"), batch_rows=4) as producer:
            producer.send({"value": [number * 100 + it for it in range(40)]})

    in_threads([partial(write, number) for number in range(3)])
    found = values(engine)
    assert [[it for it in found if it // 100 == number] for number in range(3)] == [
        [number * 100 + it for it in range(40)] for number in range(3)
    ]
    assert read_committed(engine, "events")["log_offset"].to_pylist() == list(range(120))


def test_types_go_in_and_come_out(engine: sa.Engine) -> None:
    table = pa.table(
        {
            "flag": [True, None],
            "small": pa.array([1, -1], pa.int16()),
            "ratio": [0.5, None],
            "price": pa.array([Decimal("1.50"), Decimal("-2.25")]),
            "name": ["ä'\"\\\t\n", None],
            "raw": [b"\x00\xff", b""],
            "day": [date(2024, 2, 29), None],
            "time": pa.array([datetime(2024, 2, 29, 12, 30, 1, 5), None], pa.timestamp("us")),
        }
    )
    with fp.SequencedProducer(SqlTransport(engine, "events", schema=table.schema)) as producer:
        producer.send(table)
    found = read_committed(engine, "events").select(table.column_names)
    assert found.to_pylist() == table.to_pylist()


def make_table(engine: sa.Engine, **columns: Any) -> sa.Table:
    kinds: dict[str, Any] = {name: sa.BigInteger() for name in ("pid", "epoch", "partition", "seq", "log_offset")}
    kinds |= columns
    made = [sa.Column(name, kind) for name, kind in kinds.items() if kind is not None]
    key = [sa.UniqueConstraint("partition", "log_offset")] if kinds["log_offset"] is not None else []
    table = sa.Table("events", sa.MetaData(), *made, *key)
    table.create(engine)
    return table


def test_a_table_that_is_there_is_taken(engine: sa.Engine) -> None:
    table = make_table(engine, value=sa.Integer())
    for given in ("events", table):
        transport = SqlTransport(engine, given)
    assert transport.send(batch(7, 0, 0, [1])).offset == 0
    assert values(engine) == [1]


def test_a_table_without_what_it_needs_is_refused(engine: sa.Engine) -> None:
    with pytest.raises(fp.SchemaError, match="table 'events' does not exist"):
        SqlTransport(engine, "events")
    with pytest.raises(fp.SchemaError, match="column 'tags': no column type"):
        SqlTransport(engine, "events", schema=pa.schema({"tags": pa.list_(pa.string())}))
    with pytest.raises(fp.SchemaError, match="the table's name has 49 characters; at most 48"):
        SqlTransport(engine, "e" * 49, schema=SCHEMA)
    make_table(engine, log_offset=None)
    with pytest.raises(fp.SchemaError, match="'events' has no column 'log_offset'"):
        SqlTransport(engine, "events")
    assert sa.inspect(engine).get_table_names() == ["events"], "nothing was made"


@pytest.mark.parametrize("what", ["text", "key"])
def test_columns_that_are_not_right_are_refused(engine: sa.Engine, what: str) -> None:
    if what == "text":
        make_table(engine, seq=sa.Text())
        message = "column 'seq' is TEXT, .*integer"
    else:
        names = ("pid", "epoch", "partition", "seq", "log_offset")
        sa.Table("events", sa.MetaData(), *(sa.Column(name, sa.BigInteger()) for name in names)).create(engine)
        message = "needs a primary key, .* index, on partition and log_offset"
    with pytest.raises(fp.SchemaError, match=message):
        SqlTransport(engine, "events")


@pytest.mark.parametrize(("version", "message"), [(5, "upgrade fencepost"), (1, ".*are too old")])
def test_tables_of_another_version_are_refused(engine: sa.Engine, version: int, message: str) -> None:
    SqlTransport(engine, "events", schema=SCHEMA)
    execute(engine, f"UPDATE fencepost_schema SET version = {version} WHERE part = 'transport events'")
    with pytest.raises(fp.SchemaError, match=f"have version {version}, but this package supports 4: {message}"):
        SqlTransport(engine, "events")


def as_version_3(engine: sa.Engine, *leases: tuple[str, int]) -> None:
    """The tables beside `events` as that version has them, with names and their pids; it counts pids in one row."""
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "CREATE TABLE events_leases (name VARCHAR(255) NOT NULL PRIMARY KEY, pid BIGINT NOT NULL, "
                "epoch INTEGER NOT NULL, follows_pid BIGINT, follows_epoch INTEGER)"
            )
        )
        for name, pid in (("", 99), *leases):
            connection.execute(
                sa.text("INSERT INTO events_leases VALUES (:name, :pid, 3, NULL, NULL)"), {"name": name, "pid": pid}
            )
        connection.execute(sa.text("UPDATE fencepost_schema SET version = 3 WHERE part = 'transport events'"))


@without_mariadb
def test_tables_of_version_2_are_upgraded(engine: sa.Engine) -> None:
    """They have neither a count of partitions nor whose next epoch a lease is."""
    before = SqlTransport(engine, "events", schema=SCHEMA, partitions=2)
    before.send(batch(7, 0, 0, [1], partition=1))
    as_version_3(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE events_layout"))
        for column in ("follows_pid", "follows_epoch"):
            connection.execute(sa.text(f"ALTER TABLE events_leases DROP COLUMN {column}"))
        connection.execute(sa.text("UPDATE fencepost_schema SET version = 2 WHERE part = 'transport events'"))
    with pytest.raises(fp.PolicyError, match="stores no partition count"):
        SqlTransport(engine, "events")
    after = SqlTransport(engine, "events", partitions=3)
    assert after.send(batch(7, 0, 0, [1], partition=1)) == Answer(fp.Verdict.DUPLICATE, 0)
    assert SqlTransport(engine, "events").partitions == 3


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_leases_of_a_table_are_fenced_by_the_upgrade(engine: sa.Engine, is_broken_off: bool) -> None:
    """Only the table knows them, not the registry. MariaDB may run an upgrade again after its last statement."""
    before = SqlTransport(engine, "events", schema=SCHEMA)
    assert before.send(batch(7, 3, 0, [1])).offset == 0
    before.fence(8, 2, [0])
    as_version_3(engine, ("a", 7), ("b", 8), ("c", 9))
    after = SqlTransport(engine, "events")
    if is_broken_off:
        execute(engine, "UPDATE fencepost_schema SET version = 3 WHERE part = 'transport events'")
        after = SqlTransport(engine, "events")
    assert not sa.inspect(engine).has_table("events_leases")
    fenced = Answer(fp.Verdict.FENCED)
    assert [after.send(batch(pid, epoch, seq, [2])) for pid, epoch, seq in ((7, 3, 1), (8, 32767, 0), (9, 0, 0))] == [
        fenced, fenced, fenced
    ]  # fmt: skip
    with fp.SequencedProducer(after, name="a", registry=ProducerRegistry(engine), **QUICK) as producer:
        assert producer.send([{"value": 5}])[0].result(30).first_seq == 0
    assert values(engine) == [1, 5]


# Leases whose answers are lost


class Deaf:
    """A registry whose first answer to the holder of a lease is lost, once it has given the next one."""

    def __init__(self, behind: Any) -> None:
        self.behind, self.lost = behind, 0

    def init_producer(self, transactional_id: str | None = None, timeout_ms: int = 60_000, expected: Any = None) -> Any:
        given = self.behind.init_producer(transactional_id, timeout_ms, expected)
        if expected is not None and not self.lost:
            self.lost += 1
            raise OSError("the connection was reset")
        return given


def test_a_fresh_pid_whose_answer_was_lost_is_requested_again(engine: sa.Engine) -> None:
    """After the last epoch, a fresh pid follows: a repeated request gets the same one."""
    behind = ProducerRegistry(engine)
    first = behind.init_producer("a")
    execute(engine, "UPDATE fencepost_producers SET epoch = 32765 WHERE transactional_id = 'a'")
    registry, refuses = Deaf(behind), RefusesOnce(MemoryTransport(partitions=1))
    with fp.SequencedProducer(refuses, name="a", registry=registry, **QUICK) as producer:
        assert producer.identity == (first.pid, 2**15 - 2)
        refused = producer.send({"value": [1]})[0]
        with pytest.raises(fp.DeliveryError, match="too odd"):
            refused.result(30)
        delivered = producer.send({"value": [2]})[0].result(30)
        assert (registry.lost, delivered.epoch) == (1, 0)
        assert delivered.pid != first.pid
        with pytest.raises(fp.DeliveryError, match="too odd"):
            producer.flush(30)
    assert refuses.behind.log == {0: [2]}


class RefusesOnce:
    """Refuses the first batch, after which the epoch is raised."""

    partitions = 1

    def __init__(self, behind: MemoryTransport) -> None:
        self.behind, self.refused = behind, False

    def send(self, batch: SequencedBatch) -> Answer:
        if not self.refused:
            self.refused = True
            raise fp.BatchError("too odd")
        return self.behind.send(batch)


# What is committed, in pieces and for SQL


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_committed_rows_are_streamed_in_pieces(engine: sa.Engine, rows: int) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA, partitions=2)
    transport.send(batch(9, 0, 0, [1, 2, 3]))
    transport.send(batch(7, 0, 0, [8], transactional=True))
    transport.send(batch(9, 0, 0, [4, 5], partition=1))
    transport.send(batch(9, 0, 3, [6]))
    pieces = list(stream_committed(engine, "events", batch_rows=rows))
    assert max(map(len, pieces)) <= rows
    assert [it for piece in pieces for it in piece["value"].to_pylist()] == [1, 2, 3, 4, 5]
    some = stream_committed(engine, "events", partition=0, from_offset=1, batch_rows=rows)
    assert [it for piece in some for it in piece["value"].to_pylist()] == [2, 3]
    for beyond in (4, 99):  # the first is that of a committed row behind an open transaction
        [nothing] = stream_committed(engine, "events", from_offset=beyond)
        assert (len(nothing), nothing.column_names) == (0, list(pieces[0].column_names))


def test_no_transaction_is_open_between_two_pieces(engine: sa.Engine, new_engine: NewEngine) -> None:
    """A reader that is slow blocks no writer, on SQLite too."""
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    transport.send(batch(7, 0, 0, [1, 2]))
    pieces = stream_committed(new_engine(), "events", batch_rows=1)
    first = next(pieces)
    assert transport.send(batch(7, 0, 2, [3])).offset == 2
    assert [first["value"].to_pylist(), *(it["value"].to_pylist() for it in pieces)] == [[1], [2]]
    with pytest.raises(fp.PolicyError, match=r"batch_rows=0: .*number of rows"):
        next(stream_committed(engine, "events", batch_rows=0))


def test_a_view_shows_what_is_committed_to_sql(engine: sa.Engine) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA, partitions=2)
    assert create_committed_view(engine, "events") == "events_committed"

    def seen() -> list[int]:
        with engine.connect() as connection:
            query = sa.text("SELECT value FROM events_committed ORDER BY 1")
            found = list(connection.execute(query).scalars())
        assert found == sorted(values(engine)), "as read_committed"
        return found

    assert seen() == []
    transport.send(batch(9, 0, 0, [1]))
    transport.send(batch(7, 0, 0, [2, 3], transactional=True))
    transport.send(batch(9, 0, 1, [4]))
    transport.send(batch(9, 0, 0, [5], partition=1))
    assert seen() == [1, 5], "of each partition up to what is open"
    transport.write_marker(7, 1, 0, "abort")
    assert seen() == [1, 4, 5]
    transport.send(batch(7, 1, 0, [6], transactional=True))
    transport.write_marker(7, 2, 0, "commit")
    assert seen() == [1, 4, 5, 6]
    with engine.begin() as connection:
        connection.execute(
            sa.text("INSERT INTO events (pid, epoch, partition, seq, log_offset, value) VALUES (7, 0, 0, 2, 77, 99)")
        )
        connection.execute(
            sa.text("INSERT INTO events (pid, epoch, partition, seq, log_offset, value) VALUES (7, 0, 5, 2, 0, 98)")
        )
    assert seen() == [1, 4, 5, 6], "rows that nobody listed"
    execute(engine, "ALTER TABLE events ADD COLUMN colour INTEGER")
    create_committed_view(engine, "events")
    assert "colour" in [it["name"] for it in sa.inspect(engine).get_columns("events_committed")]


def test_a_view_of_a_table_with_an_odd_name(engine: sa.Engine) -> None:
    name = "of 50% :all"
    SqlTransport(engine, name, schema=SCHEMA).send(batch(7, 0, 0, [1]))
    view = sa.Table(create_committed_view(engine, name), sa.MetaData(), sa.Column("value", sa.Integer))
    with engine.connect() as connection:
        assert connection.execute(sa.select(view)).all() == [(1,)]


def work_of(connection: sa.Connection) -> int:
    """Return how many rows and index entries the connection has read; in SQLite, every tenth step of its programs."""
    if connection.dialect.name == "sqlite":
        steps = connection.info.setdefault("steps", [0])

        def count() -> int:
            steps[0] += 1
            return 0

        connection.connection.driver_connection.set_progress_handler(count, 10)
        return steps[0]
    if connection.dialect.name == "postgresql":
        read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
        return int(connection.exec_driver_sql(read).scalar_one())
    return sum(int(it) for _, it in connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'"))


def test_a_view_reads_each_batch_by_an_index(engine: sa.Engine) -> None:
    """For any number of batches: a view that scans them for every row would be quadratic."""
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    transport.send(batch(7, 0, 0, [1]))
    create_committed_view(engine, "events")
    count = 3000
    with engine.begin() as connection:
        rows = [
            {"pid": 7, "epoch": 0, "partition": 0, "seq": it, "log_offset": it, "value": it} for it in range(1, count)
        ]
        listed = [
            {"partition": 0, "log_offset": it, "pid": 7, "epoch": 0, "first_seq": it, "last_seq": it, "count": 1,
             "outcome": "commit"} for it in range(1, count)
        ]  # fmt: skip
        tables = transport._tables
        connection.execute(sa.insert(tables.rows), rows)
        connection.execute(sa.insert(tables.commits), listed)
        before = work_of(connection)
        assert connection.execute(sa.text("SELECT count(*) FROM events_committed")).scalar_one() == count
        assert 0 < work_of(connection) - before < 20 * count
