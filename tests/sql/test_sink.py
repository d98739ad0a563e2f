"""SqlSink: the claim and the effect in one transaction, verdicts as a StateTable gives them."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy
from fencepost.sql import SqlSink
from fencepost.sql.consumers import CLAIMS, CONSUMERS, MESSAGES
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, SmallInteger, String, Table, func, select, text
from sqlalchemy.exc import IntegrityError
from support.databases import execute, without_mariadb
from support.postgres import PostgresServer
from support.threads import in_threads
from support.waiting import wait_until

TABLES = MetaData()
EVENTS = Table(
    "events",
    TABLES,
    Column("pid", sqlalchemy.BigInteger),
    Column("epoch", SmallInteger),
    Column("partition", Integer),
    Column("seq", sqlalchemy.BigInteger),
    Column("amount", Integer),
    Column("note", String(10)),
)
ACCEPTED, DUPLICATE = fp.Verdict.ACCEPTED, fp.Verdict.DUPLICATE


@pytest.fixture
def events(engine: Engine) -> Engine:
    TABLES.create_all(engine)
    return engine


def rows(*identities: tuple[int, int, int, int], amounts: list[Any] | None = None) -> pa.Table:
    pids, epochs, partitions, seqs = zip(*identities, strict=True) if identities else ((), (), (), ())
    return pa.table(
        {
            "pid": pa.array(pids, pa.int64()),
            "epoch": pa.array(epochs, pa.int16()),
            "partition": pa.array(partitions, pa.int32()),
            "seq": pa.array(seqs, pa.int64()),
            "amount": pa.array(amounts if amounts is not None else seqs, pa.int64()),
        }
    )


def run(first: int, count: int, pid: int = 7, epoch: int = 0, partition: int = 0) -> pa.Table:
    return rows(*((pid, epoch, partition, seq) for seq in range(first, first + count)))


def stored(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        query = select(EVENTS.c.pid, EVENTS.c.epoch, EVENTS.c.partition, EVENTS.c.seq)
        return sorted(tuple(row) for row in connection.execute(query))


def count(engine: Engine, table: Table) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


# What is applied


def test_each_row_is_applied_once(events: Engine) -> None:
    sink = SqlSink(events, "events", "billing")
    first = sink.apply(run(0, 5))
    assert (len(first), first.rows_kept, first.duplicates, first.identity) == (5, 5, 0, "sequence")
    second = sink.apply(run(3, 5))
    assert [fp.Verdict(it) for it in second.verdict.to_pylist()] == [DUPLICATE] * 2 + [ACCEPTED] * 3
    assert second.kept.to_pylist() == [False] * 2 + [True] * 3
    assert second.counts[DUPLICATE] == 2
    assert stored(events) == [(7, 0, 0, seq) for seq in range(8)]
    assert count(events, CLAIMS) == 1


def test_another_process_sees_the_claims(events: Engine, new_engine: Callable[[], Engine]) -> None:
    SqlSink(events, "events", "billing").apply(run(0, 5))
    assert SqlSink(new_engine(), "events", "billing").apply(run(0, 5)).rows_kept == 0
    assert SqlSink(new_engine(), "events", "mailing").apply(run(0, 5)).rows_kept == 5, "another consumer"


def test_rows_of_any_shape(events: Engine) -> None:
    import pandas as pd
    import polars as pl

    sink = SqlSink(events, "events", "billing")
    one = {"pid": 7, "epoch": 0, "partition": 0, "seq": 0}
    assert sink.apply([one]).rows_kept == 1
    assert sink.apply({name: [value + (name == "seq")] for name, value in one.items()}).rows_kept == 1
    assert sink.apply(pd.DataFrame([one | {"seq": 2}])).rows_kept == 1
    assert sink.apply(pl.DataFrame([one | {"seq": 3}])).rows_kept == 1
    assert sink.apply(rows((7, 0, 0, 4)).to_batches()[0]).rows_kept == 1
    assert sink.apply(rows()).rows_kept == 0
    assert [seq for *_, seq in stored(events)] == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="int is not tabular"):
        sink.apply(7)
    with pytest.raises(TypeError, match=r"'pid': 7 is not an array: .*\[event\]"):
        sink.apply(one)
    with pytest.raises(TypeError, match=r"generator is not tabular: .* list of dicts"):
        sink.apply(it for it in [one])
    # Not an event for each letter.
    with pytest.raises(TypeError, match="'note': 'abc' is not an array"):
        SqlSink(events, "events", "c", "message_id", message_id="note").apply({"note": "abc"})


def test_events_that_lack_a_key_are_stored_alike_in_any_calls(events: Engine) -> None:
    with events.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE sparse (seq BIGINT, must INTEGER NOT NULL, filled INTEGER DEFAULT 5, "
                "empty INTEGER DEFAULT NULL, may INTEGER)"
            )
        )
    sink = SqlSink(events, "sparse", "c", "message_id", message_id="seq")
    one, two = {"seq": 0, "must": 1}, {"seq": 1, "must": 1, "filled": 2, "empty": 3, "may": 4}
    for refused, row, column in (([two, one], 1, "filled"), ([two, {"seq": 2}], 1, "must"), ([{"seq": 2}], 0, "must")):
        for call in (sink.apply, sink.reconcile, lambda rows: sink.reconcile(iter(rows))):
            with pytest.raises(fp.BatchError, match=f"column '{column}', row {row}: .* nothing of this call") as caught:
                call(refused)
            assert (caught.value.column, caught.value.row) == (column, row)
    without = [{name: it for name, it in two.items() if name != "filled"} | {"seq": 2}, one]
    assert (sink.apply([two]).rows_kept, sink.apply(without).rows_kept) == (1, 2)
    with events.connect() as connection:
        stored = connection.execute(text("SELECT * FROM sparse ORDER BY seq")).all()
    assert [tuple(it) for it in stored] == [(0, 1, 5, None, None), (1, 1, 2, 3, 4), (2, 1, 5, 3, 4)]


@without_mariadb
def test_a_constraint_that_the_commit_checks_is_reported(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    if engine.dialect.name == "sqlite":

        @sqlalchemy.event.listens_for(engine, "connect")
        def enforce(driver: Any, _: Any) -> None:
            driver.execute("PRAGMA foreign_keys=ON")

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id BIGINT PRIMARY KEY)"))
        reference = "amount BIGINT REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE d (pid BIGINT, epoch INT, partition INT, seq BIGINT, {reference})"))
        connection.execute(text("INSERT INTO accounts VALUES (0), (1)"))
    sink = SqlSink(engine, "d", "c")
    refusal = r"table d refuses .* at the commit: .*(FOREIGN KEY|foreign key).*; nothing of this call"
    for _ in range(2):
        with pytest.raises(fp.BatchError, match=refusal):
            sink.apply(run(0, 3), positions={"orders-0": 3})
    assert (count(engine, CLAIMS), sink.positions()) == (0, {})
    assert sink.apply(run(0, 2)).rows_kept == 2

    def effect(connection: Connection, kept: pa.Table) -> None:
        connection.execute(text("INSERT INTO d VALUES (1, 1, 1, 1, 9)"))

    with pytest.raises(sqlalchemy.exc.IntegrityError):
        sink.handle(run(2, 1), effect)
    engine.dispose()


def test_generated_columns_are_not_written(events: Engine) -> None:
    with events.begin() as connection:
        doubled = "doubled BIGINT GENERATED ALWAYS AS (amount * 2) STORED"
        connection.execute(
            text(f"CREATE TABLE g (pid BIGINT, epoch INT, partition INT, seq BIGINT, amount INT, {doubled})")
        )
    sink = SqlSink(events, "g", "c")
    with_it = run(0, 2).append_column("doubled", pa.array([1, 2]))
    for call in (sink.apply, sink.reconcile):
        with pytest.raises(fp.SinkError, match="table g: column 'doubled' is generated"):
            call(with_it)
    with pytest.raises(fp.SinkError, match="'doubled' is generated"):
        SqlSink(events, "g", "d", insert=["seq", "doubled"])
    assert sink.apply(run(0, 2)).rows_kept == 2
    assert sink.reconcile(run(0, 2)).is_clean
    named = SqlSink(events, "g", "e", insert=["pid", "epoch", "partition", "seq", "amount"])
    assert named.apply(with_it).rows_kept == 2


def test_a_row_that_row_security_refuses_is_not_a_schema_error(postgres: PostgresServer) -> None:
    """PostgreSQL has one code for such a row, which is one bad message, and for a right that was revoked."""
    engine, name = sqlalchemy.create_engine(postgres.new_database()), f"writer_{uuid.uuid4().hex}"
    with engine.connect() as connection:
        schema = connection.scalar(text("SELECT current_schema()"))

    execute(engine, "CREATE TABLE notes (id BIGINT)")
    SqlSink(engine, "notes", "c", "message_id", message_id="id")
    execute(
        engine,
        "CREATE POLICY positive ON notes USING (id > 0)",
        "ALTER TABLE notes ENABLE ROW LEVEL SECURITY",
        f"CREATE ROLE {name} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {name}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {name}",
    )
    limited = sqlalchemy.create_engine(engine.url.set(username=name, password=None))
    sink = SqlSink(limited, "notes", "c", "message_id", message_id="id")
    assert sink.apply({"id": [1]}).rows_kept == 1
    with pytest.raises(sqlalchemy.exc.ProgrammingError, match="row-level security"):
        sink.apply({"id": [-1]})
    execute(engine, f"REVOKE INSERT ON notes FROM {name}")
    with pytest.raises(fp.SinkError, match="statement: permission denied"):
        sink.apply({"id": [2]})
    for it in (limited, engine):
        it.dispose()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", ["amount", "seq"])
def test_two_columns_of_one_name_are_refused(events: Engine, name: str) -> None:
    sink = SqlSink(events, "events", "billing")
    by_id = SqlSink(events, "events", "ids", "message_id", message_id="seq")
    twice = run(0, 2).append_column(name, pa.array([1, 2]))
    for call in (sink.apply, sink.reconcile, by_id.apply):
        with pytest.raises(fp.BatchError, match=f"column '{name}': occurs more than once"):
            call(twice)
    if name == "seq":
        for one in (sink, by_id):
            with pytest.raises(fp.BatchError, match="seq"):
                one.handle(twice, break_off)
    assert sink.apply(run(0, 2)).rows_kept == 2


def test_events_have_the_columns_that_any_of_them_has(events: Engine) -> None:
    sink = SqlSink(events, "events", "billing")
    one = {"pid": 7, "epoch": 0, "partition": 0, "seq": 0}
    assert sink.apply([one, one | {"seq": 1, "note": "second"}]).rows_kept == 2
    with events.connect() as connection:
        notes = connection.execute(select(EVENTS.c.note).order_by(EVENTS.c.seq)).scalars().all()
    assert notes == [None, "second"]


def test_the_effect_is_in_the_transaction(events: Engine) -> None:
    sink = SqlSink(events, None, "totals")
    execute(events, "CREATE TABLE totals (pid BIGINT PRIMARY KEY, total BIGINT)")

    def add(connection: Connection, kept: pa.Table) -> int:
        upsert = (
            "INSERT INTO totals VALUES (:pid, :amount) ON CONFLICT (pid) DO UPDATE SET total = totals.total + :amount"
        )
        if events.dialect.name == "mariadb":
            upsert = "INSERT INTO totals VALUES (:pid, :amount) ON DUPLICATE KEY UPDATE total = total + VALUES(total)"
        connection.execute(text(upsert), kept.select(["pid", "amount"]).to_pylist())
        return len(kept)

    def fail(connection: Connection, kept: pa.Table) -> None:
        add(connection, kept)
        raise RuntimeError("after the writes")

    def total() -> int:
        with events.connect() as connection:
            return int(connection.execute(text("SELECT coalesce(sum(total), 0) FROM totals")).scalar_one())

    with pytest.raises(RuntimeError, match="after the writes"):
        sink.handle(run(0, 5), fail)
    assert (total(), count(events, CLAIMS)) == (0, 0)
    assert sink.handle(run(0, 5), add).result == 5
    assert sink.handle(run(0, 6), add).result == 1
    assert sink.handle(run(0, 6), fail).result is None, "not called where nothing is kept"
    assert total() == sum(range(6))
    with pytest.raises(fp.PolicyError, match="sink has no table"):
        sink.apply(run(0, 1))


def test_an_effect_that_commits_keeps_its_claims_too(events: Engine) -> None:
    """The claims are written first, so the error must say that a repeated call does not run the effect."""
    sink = SqlSink(events, None, "c")
    execute(events, "CREATE TABLE taken (seq BIGINT PRIMARY KEY)")

    def commit(connection: Connection, kept: pa.Table) -> None:
        connection.execute(text("INSERT INTO taken VALUES (:seq)"), kept.select(["seq"]).to_pylist())
        connection.commit()

    with pytest.raises(fp.UndoneError, match="is committed too"):
        sink.handle(run(0, 3), commit)
    assert sink.handle(run(0, 4), lambda connection, kept: kept["seq"].to_pylist()).result == [3]
    with events.connect() as connection:
        assert len(connection.execute(text("SELECT seq FROM taken")).all()) == 3


@pytest.mark.parametrize("end", ["rollback", "commit"])
@pytest.mark.parametrize("is_last", [True, False])
def test_an_effect_that_ends_the_transaction_by_the_driver(events: Engine, end: str, is_last: bool) -> None:
    """The next statement begins another transaction: it would move the position without the rows, which were lost."""
    sink = SqlSink(events, None, "c")
    execute(events, "CREATE TABLE taken (seq BIGINT PRIMARY KEY)")

    def write(connection: Connection, kept: pa.Table) -> None:
        insert = text("INSERT INTO taken VALUES (:seq)")
        connection.execute(insert, kept.select(["seq"]).to_pylist())
        getattr(connection.connection.driver_connection, end)()
        if not is_last:
            connection.execute(insert, [{"seq": 100}])

    with pytest.raises(fp.UndoneError, match="has ended its transaction"):
        sink.handle(run(0, 3), write, positions={"in": 3})
    is_committed = end == "commit"
    assert (count(events, CLAIMS), sink.positions()) == (int(is_committed), {})
    with events.connect() as connection:
        assert len(connection.execute(text("SELECT seq FROM taken")).all()) == 3 * is_committed


def test_an_effect_that_passes_over_an_error(events: Engine) -> None:
    """Claimed rows are written: PostgreSQL would treat the commit as a rollback, and the event would be lost."""
    sink = SqlSink(events, None, "c")
    execute(events, "CREATE TABLE taken (seq BIGINT PRIMARY KEY)", "INSERT INTO taken VALUES (100)")

    def write(connection: Connection, kept: pa.Table) -> None:
        connection.execute(text("INSERT INTO taken VALUES (:seq)"), kept.select(["seq"]).to_pylist())

    def pass_over(connection: Connection, kept: pa.Table) -> None:
        write(connection, kept)
        with contextlib.suppress(sqlalchemy.exc.IntegrityError):
            connection.execute(text("INSERT INTO taken VALUES (100)"))

    def step_back(connection: Connection, kept: pa.Table) -> None:
        write(connection, kept)
        with contextlib.suppress(sqlalchemy.exc.IntegrityError), connection.begin_nested():
            connection.execute(text("INSERT INTO taken VALUES (100)"))

    def roll_back(connection: Connection, kept: pa.Table) -> None:
        write(connection, kept)
        connection.rollback()

    def taken() -> int:
        with events.connect() as connection:
            return len(connection.execute(text("SELECT seq FROM taken")).all()) - 1

    with pytest.raises(fp.UndoneError, match="has ended its transaction"):
        sink.handle(run(0, 3), roll_back, positions={"in": 3})
    assert (taken(), count(events, CLAIMS), sink.positions()) == (0, 0, {})
    if events.dialect.name == "postgresql":
        for positions in (None, {"in": 3}):
            with pytest.raises(fp.UndoneError, match=r"your function ignored.*Nothing of it"):
                sink.handle(run(0, 3), pass_over, positions=positions)
        assert (taken(), count(events, CLAIMS), sink.positions()) == (0, 0, {})
        assert sink.handle(run(0, 3), step_back).rows_kept == 3
    else:
        assert sink.handle(run(0, 3), pass_over).rows_kept == 3
    assert sink.handle(run(0, 4), step_back, positions={"in": 4}).rows_kept == 1
    assert (taken(), sink.positions()) == (4, {"in": 4})


def test_positions_commit_with_the_rows(events: Engine) -> None:
    sink = SqlSink(events, "events", "billing")
    assert sink.positions() == {}
    sink.apply(run(0, 5), positions={"orders-0": 5, "orders-1": 0})
    sink.apply(run(0, 5), positions={"orders-0": 4, "orders-1": 7})
    assert sink.positions() == {"orders-0": 5, "orders-1": 7}, "none goes back"
    with pytest.raises(ZeroDivisionError):
        sink.handle(run(5, 5), lambda connection, kept: 1 // 0, positions={"orders-0": 10})
    assert sink.positions()["orders-0"] == 5
    sink.forget_positions("orders-0")
    assert sink.positions() == {"orders-1": 7}
    with pytest.raises(fp.BatchError, match="positions: 'orders-0': '9': expected a source's name"):
        sink.apply(run(5, 5), positions={"orders-0": "9"})  # type: ignore[dict-item]
    assert len(stored(events)) == 5


def test_positions_advance_without_rows(events: Engine) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"insert": ["seq"]},
        {"columns": fp.Columns(timestamp="at"), "policy": "kafka"},
        {"claim": "message_id", "message_id": ("note", "seq"), "timestamp": "at"},
    ]
    for number, some in enumerate(options):
        sink = SqlSink(events, "events", f"c{number}", **some)
        done = sink.apply([], positions={"orders-0": 3})
        assert (len(done), done.rows_kept, sink.positions()) == (0, 0, {"orders-0": 3})
        for position, nothing in enumerate(([], {}, pa.table({})), start=4):
            assert len(sink.handle(nothing, lambda *_: 1 // 0, positions={"orders-0": position})) == 0
            assert sink.positions() == {"orders-0": position}
    with pytest.raises(fp.BatchError, match="column 'partition': missing"):
        SqlSink(events, "events", "c0").apply([{"pid": 7}])
    with pytest.raises(fp.BatchError, match=r"row 1: .*without columns; .*nothing of this call"):
        SqlSink(events, "events", "c0").apply([{"pid": 7}, {}], positions={"orders-0": 9})
    with pytest.raises(fp.BatchError, match=r"missing; .* columns note"):
        SqlSink(events, "events", "c0").apply(pa.table({"note": pa.array([], pa.string())}))
    assert count(events, EVENTS) == 0


def test_refused_rows_are_passed_on_in_the_transaction(events: Engine) -> None:
    sink = SqlSink(events, "events", "billing", policy="kafka")
    refused_rows: list[Any] = []
    sink.apply(run(0, 5), refused=lambda connection, some: refused_rows.append(some))
    assert refused_rows == []
    done = sink.apply(rows((7, 0, 0, 4), (7, 0, 0, 9), (7, 1, 0, 0)), refused=lambda _, some: refused_rows.append(some))
    assert refused_rows[0].select(["seq", "_verdict"]).to_pylist() == [{"seq": 9, "_verdict": "OUT_OF_ORDER"}]
    assert pa.array(done.expected).to_pylist() == [None, 5, None]
    assert [seq for *_, seq in stored(events)] == [0, 1, 2, 3, 4, 0]


# Verdicts are a state table's

POLICIES: list[tuple[fp.Policy, bool]] = [
    (fp.Policy.any_order(), True),
    (fp.Policy.any_order(), False),
    (fp.Policy.any_order().replace(epochs="fence", max_jump=30), True),
    (fp.Policy.any_order().replace(first="zero", reach=20), False),
    (fp.Policy.any_order().replace(wrap=64), True),
    (fp.Policy.in_order(), True),
    (fp.Policy.kafka(), True),
    (fp.Policy.kafka().replace(window=2), False),
    (fp.Policy.strict(), False),
    (fp.Policy.watermark(), True),
    (fp.Policy.kafka_offsets(), True),
]


@pytest.mark.parametrize(("policy", "keeps_time"), POLICIES, ids=[f"{p.name or p.rules}-{t}" for p, t in POLICIES])
@pytest.mark.parametrize("seed", range(3))
def test_verdicts_are_those_of_a_state_table(events: Engine, policy: fp.Policy, keeps_time: bool, seed: int) -> None:
    """Calls of any size, changing keys, evictions in between: the claims must have the content of the table."""
    chance = random.Random(seed)
    columns = fp.Columns(epoch=None if policy.epochs == "ignore" else "epoch", timestamp="time" if keeps_time else None)
    keep = ("timestamp",) if keeps_time else ()
    table = fp.StateTable(policy, keep=keep)
    sink = SqlSink(events, None, "c", policy=policy, columns=columns)
    newest: dict[tuple[int, int], tuple[int, int]] = {}
    now, accepted = 1_000, 0
    for _ in range(25):
        some = []
        for _ in range(chance.choice([1, 3, 40])):
            key = chance.randrange(3), chance.randrange(2)
            epoch, seq = newest.get(key, (0, -1))
            step = chance.choice([1] * 20 + [0, -1, -3, 2, 5, 20])
            if step == 20 and epoch < 9:
                epoch, seq = epoch + 1, -1
            elif step == 5 and policy.admit != "next":
                seq += step
            if step == 1 or step >= 5:
                newest[key] = epoch, seq + 1
            now += chance.randrange(3)
            seq = max(seq + min(step, 2), 0) % (policy.wrap or 2**31)
            epoch = max(epoch - (chance.random() < 0.05), 0)
            some.append((*key, epoch, seq, now - chance.choice([0] * 8 + [60, 200])))
        names = ["pid", "partition", "epoch", "seq", "time"]
        batch = pa.table(dict(zip(names, map(pa.array, zip(*some, strict=True)), strict=True)))
        expected = table.apply(batch, columns)
        found = sink.handle(batch, lambda connection, kept: kept)
        assert found.verdict.to_pylist() == pa.array(expected.verdict).to_pylist()
        assert found.counts == expected.counts
        assert pa.array(found.expected).to_pylist() == pa.array(expected.expected).to_pylist()
        assert pa.table(found.missing).to_pylist() == pa.table(expected.missing).to_pylist()
        kept = batch.filter(pa.array(expected.kept))
        assert (found.result if found.result is not None else kept.slice(0, 0)).equals(kept)
        if keeps_time and chance.random() < 0.2:
            table.evict(now, 100)
            sink.reap(100, now_ms=now, force=True)
        accepted += found.rows_kept
    assert accepted >= 50


def test_keys_of_every_type_are_distinguished(events: Engine) -> None:
    device = uuid.UUID(int=5)
    pids = ["1", '"', "Ä\x00\x1f", "", "a,b", "{}", "NULL"]
    columns = fp.Columns(pid=("cluster", "device"), partition=("topic", "partition"))
    sink = SqlSink(events, None, "c", columns=columns)
    batch = pa.table(
        {
            "cluster": pa.array(pids).dictionary_encode(),
            "device": pa.array([device.bytes] * 7, pa.binary(16)),
            "topic": ["t"] * 7,
            "partition": [0] * 7,
            "epoch": [0] * 7,
            "seq": [0] * 7,
        }
    )
    assert sink.handle(batch, lambda *_: None).rows_kept == 7
    assert sink.handle(batch, lambda *_: None).duplicates == 7
    with events.connect() as connection:
        found = {row.pid for row in connection.execute(select(CLAIMS.c.pid))}
    assert found == {json.dumps([pid, device.bytes.hex()], ensure_ascii=False, separators=(",", ":")) for pid in pids}
    with pytest.raises(fp.BatchError, match=r"column 'partition': .* string, .*consumer 'c' have type"):
        sink.handle(batch.set_column(3, "partition", pa.array(["0"] * 7)), lambda *_: None)
    sink = SqlSink(events, None, "d", columns=fp.Columns(partition=None))
    with pytest.raises(fp.BatchError, match=r"key has 2002 bytes, .*at most 1000"):
        sink.handle([{"pid": "x" * 2000, "epoch": 0, "seq": 0}], lambda *_: None)
    assert sink.handle([{"pid": "x" * 900, "epoch": 0, "seq": 0}], lambda *_: None).rows_kept == 1


def break_off(*_: object) -> None:
    raise ValueError("broken off")


@pytest.mark.parametrize("claim", ["sequence", "message_id"])
@pytest.mark.parametrize("fate", ["effect", "commit"])
@without_mariadb
def test_types_of_keys_are_stored_after_a_first_call_that_was_undone(
    engine: Engine, new_engine: Callable[[], Engine], claim: Any, fate: str
) -> None:
    """The bytes AB and the text "ab" have one text as a key: under one consumer each would hide the other."""

    def new_sink(engine: Engine) -> SqlSink:
        if claim == "message_id":
            return SqlSink(engine, None, "c", claim, message_id="key")
        return SqlSink(engine, None, "c", policy="watermark", columns=fp.Columns(pid="key", epoch=None, partition=None))

    def refused_by_the_commit(connection: Connection, kept: pa.Table) -> None:
        reference = "REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text("CREATE TABLE parents (id BIGINT PRIMARY KEY)"))
        connection.execute(text(f"CREATE TABLE children (parent BIGINT {reference})"))
        connection.execute(text("INSERT INTO children VALUES (1)"))

    @sqlalchemy.event.listens_for(engine, "connect")
    def enforce(driver: Any, _: Any) -> None:
        if engine.dialect.name == "sqlite":
            driver.execute("PRAGMA foreign_keys=ON")

    of_bytes, of_text = ([{"key": key, "seq": 0}] for key in (b"\xab", "ab"))
    sink = new_sink(engine)
    error, effect = (ValueError, break_off) if fate == "effect" else (IntegrityError, refused_by_the_commit)
    with pytest.raises(error):
        sink.handle(of_bytes, effect)
    assert (count(engine, CLAIMS), count(engine, MESSAGES)) == (0, 0)
    assert sink.handle(of_bytes, lambda *_: None).rows_kept == 1
    with pytest.raises(fp.BatchError, match=r"column '.*': is of type .*consumer 'c' have type binary"):
        new_sink(new_engine()).handle(of_text, lambda *_: None)


def test_types_of_keys_of_another_process_hold_after_a_first_call_that_was_undone(
    engine: Engine, new_engine: Callable[[], Engine]
) -> None:
    sinks = [SqlSink(it, None, "c", "message_id", message_id="key") for it in (engine, new_engine())]
    with pytest.raises(ValueError, match="broken off"):
        sinks[0].handle([{"key": b"\xab"}], break_off)
    assert sinks[1].handle([{"key": "ab"}], lambda *_: None).rows_kept == 1
    with pytest.raises(fp.BatchError, match=r"column 'key': .* binary, .*consumer 'c' have type text"):
        sinks[0].handle([{"key": b"\xab"}], lambda *_: None)


# Message ids


def messages(*ids: Any, **more: list[Any]) -> pa.Table:
    return pa.table({"event_id": list(ids), **more})


def test_messages_are_processed_once(events: Engine, new_engine: Callable[[], Engine]) -> None:
    sink = SqlSink(events, None, "c", "message_id", message_id="event_id")
    seen: list[list[str]] = []

    def effect(connection: Connection, kept: pa.Table) -> None:
        seen.append(kept["event_id"].to_pylist())

    first = sink.handle(messages("b", "a", "b", "Ä"), effect)
    assert first.verdict.to_pylist() == [0, 0, 1, 0]
    assert (first.identity, first.missing, first.counts[DUPLICATE]) == ("message_id", None, 1)
    again = SqlSink(new_engine(), None, "c", "message_id", message_id="event_id")
    assert again.handle(messages("a", "c", "a"), effect).verdict.to_pylist() == [1, 0, 1]
    assert seen == [["b", "a", "Ä"], ["c"]]
    assert count(events, MESSAGES) == 4
    assert again.handle(messages(), effect).rows_kept == 0


def test_a_new_consumer_has_no_claims_of_a_deleted_one(events: Engine) -> None:
    SqlSink(events, None, "first", "message_id", message_id="event_id").handle(messages("a", "b"), lambda *_: None)
    with events.begin() as connection:
        connection.execute(CONSUMERS.delete())
    second = SqlSink(events, None, "second", "message_id", message_id="event_id")
    assert second.handle(messages("a", "b"), lambda *_: None).rows_kept == 2


def test_ids_are_texts_of_every_kind(events: Engine) -> None:
    odd = [
        "1",
        " ",
        "\t",
        '"',
        '""',
        "\\",
        '\\"',
        "a,b",
        "{}",
        "NULL",
        "null",
        "%s",
        ":id",
        "'",
        "Ä\x1f\n",
        "\U0001f600",
        "é",
        "e\u0301",
    ]
    sink = SqlSink(events, None, "c", "message_id", message_id=("event_id", "version"))
    batch = messages(*odd, version=[-(2**63), 2**63 - 1] * (len(odd) // 2))
    assert sink.handle(batch, lambda *_: None).rows_kept == len(odd)
    assert sink.handle(batch, lambda *_: None).duplicates == len(odd)
    with events.connect() as connection:
        assert set(connection.execute(select(MESSAGES.c.id)).scalars()) == set(odd)


def test_uuids_are_taken_as_they_come(engine: Engine) -> None:
    kind = "UUID" if engine.dialect.name == "postgresql" else "CHAR(36)"
    execute(engine, f"CREATE TABLE payments (id {kind})")
    ids = [uuid.UUID(int=it) for it in range(3)]
    sink = SqlSink(engine, "payments", "c", "message_id", message_id="id")
    if engine.dialect.name == "postgresql":
        assert sink.apply(pa.table({"id": ids})).rows_kept == 3
        other = SqlSink(engine, "payments", "d", "message_id", message_id="id")
        assert other.apply(pa.table({"id": [it.bytes for it in ids]})).rows_kept == 3
        with engine.connect() as connection:
            found = connection.execute(text("SELECT id, count(*) FROM payments GROUP BY id")).all()
        assert sorted(map(tuple, found)) == [(it, 2) for it in ids]
    else:
        assert sink.apply(pa.table({"id": list(map(str, ids))})).rows_kept == 3
    assert sink.handle(pa.table({"id": list(map(str, ids))}), lambda *_: None).duplicates == 3


async def _later(connection: Connection, kept: pa.Table) -> None:
    raise AssertionError("nobody waits for it")


def _piecewise(connection: Connection, kept: pa.Table) -> Any:
    yield from kept.to_pylist()


@pytest.mark.parametrize("effect", [_later, _piecewise])
def test_an_effect_that_would_run_later_claims_nothing(events: Engine, effect: Any) -> None:
    sink = SqlSink(events, None, "c")
    with pytest.raises(
        fp.PolicyError, match=rf"{effect.__name__} returned a (coroutine|generator), .* Nothing was applied"
    ):
        sink.handle(run(0, 3), effect)
    assert sink.handle(run(0, 3), lambda *_: None).rows_kept == 3


def test_positions_are_forgotten_by_name(events: Engine) -> None:
    sink = SqlSink(events, None, "c")
    sink.handle(run(0, 3), lambda *_: None, positions={"a": 3, "b": 4})
    with pytest.raises(fp.PolicyError, match=r"forget_positions\(\) without a source"):
        sink.forget_positions()
    sink.forget_positions("a")
    assert sink.positions() == {"b": 4}


def test_an_aggregate_and_its_version(events: Engine) -> None:
    sink = SqlSink(events, None, "c", "message_id", message_id=("event_id", "version"))
    batch = messages(b"\x01", b"\x01", b"\x02", b"\x01", version=pa.array([1, 2, 1, 1], pa.uint64()))
    assert sink.handle(batch, lambda *_: None).verdict.to_pylist() == [0, 0, 0, 1]
    assert sink.handle(batch, lambda *_: None).rows_kept == 0
    with pytest.raises(fp.BatchError, match="column 'version', row 1: value 18446744073709551615 is outside"):
        sink.handle(messages(b"\x01", b"\x01", version=pa.array([1, 2**64 - 1], pa.uint64())), lambda *_: None)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (pa.array(["a", None]), "column 'event_id', row 1: null"),
        (pa.array([1.0]), r"column 'event_id': .* double, texts, integers or binary"),
        (pa.array(["a", "b\0"]), r"column 'event_id', row 1: 'b\\x00': .* no zero bytes"),
        (pa.array(["a", "b" * 2001]), r"column 'event_id', row 1: 'b{76}\.\.\.: .* at most 2000 bytes"),
        (pa.array([7]), r"column 'event_id': .* integer, .* 'c' have type text"),
    ],
)
def test_invalid_message_ids_are_refused(events: Engine, ids: pa.Array, message: str) -> None:
    sink = SqlSink(events, None, "c", "message_id", message_id="event_id")
    sink.handle(messages("a"), lambda *_: None)
    with pytest.raises(fp.BatchError, match=message):
        sink.handle({"event_id": ids}, lambda *_: None)
    with pytest.raises(fp.BatchError, match=r"column 'event_id': missing; .* columns other"):
        sink.handle({"other": ids}, lambda *_: None)
    assert count(events, MESSAGES) == 1


@pytest.mark.parametrize(
    "names", [("partition", "offset"), "offset", ("kafka_topic", "kafka_offset"), "Offset", ("event_id", "partition")]
)
def test_broker_coordinates_are_refused_as_message_id(events: Engine, names: Any) -> None:
    with pytest.raises(fp.PolicyError, match="coordinate of the broker"):
        SqlSink(events, None, "c", "message_id", message_id=names)


@pytest.mark.parametrize("columns", [None, "kafka", "kafka-connect", "hudi"])
def test_broker_coordinates_as_a_sequence_are_labelled(events: Engine, columns: str | None) -> None:
    sink = SqlSink(events, None, "c", policy="kafka_offsets", columns=columns)
    assert repr(sink) == "<SqlSink 'c': redelivery only>"
    if columns is None:
        done = sink.handle([{"topic": "t", "partition": 0, "offset": 5}] * 2, lambda *_: None)
        assert (done.rows_kept, done.identity) == (1, "redelivery only")
    assert repr(SqlSink(events, "events", "d")) == "<SqlSink 'd' into events: sequence>"


# Several at once


def test_many_processes_apply_each_row_once(events: Engine, new_engine: Callable[[], Engine]) -> None:
    """Shuffled redeliveries of the same rows to four sinks of one consumer, keys overlapping and new to all."""
    identities = [(pid, 0, partition, seq) for pid in range(6) for partition in range(2) for seq in range(20)]
    SqlSink(events, "events", "billing")

    def consume(seed: int) -> None:
        chance = random.Random(seed)
        mine = identities * 2
        chance.shuffle(mine)
        sink = SqlSink(new_engine(), "events", "billing")
        for start in range(0, len(mine), 16):
            sink.apply(rows(*mine[start : start + 16]))

    in_threads([partial(consume, seed) for seed in range(4)])
    assert stored(events) == sorted(identities)
    assert count(events, CLAIMS) == 12


def test_many_processes_apply_each_message_once(events: Engine, new_engine: Callable[[], Engine]) -> None:
    names = [f"{number}" for number in range(200)]
    SqlSink(events, "events", "c", "message_id", message_id="note")

    def consume(seed: int) -> None:
        chance = random.Random(seed)
        mine = names * 2
        chance.shuffle(mine)
        sink = SqlSink(new_engine(), "events", "c", "message_id", message_id="note")
        for start in range(0, len(mine), 16):
            sink.apply({"note": mine[start : start + 16]})

    in_threads([partial(consume, seed) for seed in range(4)])
    with events.connect() as connection:
        found = sorted(connection.execute(select(EVENTS.c.note)).scalars())
    assert found == sorted(names)


# Settings


def test_a_restored_database_that_lacks_the_consumer(events: Engine) -> None:
    """The next new consumer got its number, and took its messages for applied."""
    sink = SqlSink(events, None, "billing", "message_id", message_id="id")
    with events.begin() as connection:
        connection.execute(text("UPDATE fencepost_consumers SET name = :name"), {"name": as_stored(events, "audit")})
    events.dispose()  # as a restart of the server does
    other = SqlSink(events, None, "audit", "message_id", message_id="id")
    calls: list[Callable[[], Any]] = [
        lambda: sink.handle({"id": ["a"]}, lambda *_: None),
        lambda: sink.skip({"t-0": 5}),
        lambda: sink.begin_positions({"t-0": 5}),
        lambda: sink.forget_positions("t-0"),
        lambda: sink.reap(1, by="processed_time", force=True),
        sink.positions,
    ]
    for call in calls:
        with pytest.raises(fp.PolicyError, match=r"consumer 'billing' is no longer .* of consumer 'audit'"):
            call()
    assert other.handle({"id": ["a"]}, lambda *_: None).rows_kept == 1
    assert other.positions() == {}


def test_metrics_of_a_consumer_that_a_restored_database_lacks(events: Engine) -> None:
    sink = SqlSink(events, None, "billing")
    execute(events, "DELETE FROM fencepost_consumers")
    events.dispose()
    with pytest.raises(fp.PolicyError, match=r"consumer 'billing' is no longer .* of no consumer"):
        sink.metrics()


def test_a_reap_of_a_consumer_that_a_restored_database_lacks(events: Engine) -> None:
    """It raised the horizon of the next new consumer, whose rows were then FORGOTTEN."""
    options: dict[str, Any] = {"claim": "message_id", "message_id": "id", "timestamp": "at"}
    sink = SqlSink(events, None, "billing", **options)
    with events.begin() as connection:
        connection.execute(text("UPDATE fencepost_consumers SET name = :name"), {"name": as_stored(events, "audit")})
    events.dispose()
    other = SqlSink(events, None, "audit", **options)
    with pytest.raises(fp.PolicyError, match=r"consumer 'billing' is no longer .* of consumer 'audit'"):
        sink.reap(1000, force=True)
    assert other.handle({"id": ["a"], "at": [5]}, lambda *_: None).rows_kept == 1
    assert other.metrics()["horizon_ms"] is None


def test_a_restored_database_that_lacks_the_first_claims_stores_their_types_again(events: Engine) -> None:
    """The types were not stored, so 7 and "7" were two producers, and a repeat was applied again."""
    sink = SqlSink(events, "events", "billing")
    for _ in range(2):  # the second call has read the types
        sink.apply(rows((7, 0, 0, 0)))
    with events.begin() as connection:
        connection.execute(CLAIMS.delete())
        connection.execute(text("UPDATE fencepost_consumers SET key_types = NULL"))
    events.dispose()
    assert sink.apply(rows((7, 0, 0, 0))).rows_kept == 1
    again = rows((7, 0, 0, 0))
    texts = again.set_column(0, "pid", again["pid"].cast(pa.string()))
    with pytest.raises(fp.BatchError, match=r"type string.* have type int64"):
        SqlSink(events, "events", "billing").handle(texts, lambda *_: None)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_message_ids_are_milliseconds(engine: Engine, unit: str) -> None:
    """Also in the hour that a time zone has twice in autumn. Arrow rounds local times, and there they are ambiguous."""
    sink = SqlSink(engine, None, "billing", "message_id", message_id="id", timestamp="at")
    autumn, per_second = 1_761_440_400, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = [autumn * per_second + 1, -1]
    for number, zone in enumerate((None, "Europe/Amsterdam", "+05:30")):
        at = pa.array(times, pa.timestamp(unit, zone))
        sink.handle({"id": [f"a{number}", f"b{number}"], "at": at}, lambda *_: None)
    with engine.connect() as connection:
        stored = connection.execute(text("SELECT DISTINCT timestamp FROM fencepost_messages ORDER BY 1")).scalars()
        assert list(stored) == [it * 1000 // per_second for it in reversed(times)]
    if unit == "s":
        at = pa.array([0, -(2**63)], pa.timestamp(unit))
        with pytest.raises(fp.BatchError, match=r"'at', row 1: value -9223372036854775808 .* milliseconds"):
            sink.handle({"id": ["c", "d"], "at": at}, lambda *_: None)


def as_stored(engine: Engine, name: str) -> str | bytes:
    return name.encode() if engine.dialect.name == "mariadb" else name


def test_a_consumer_keeps_its_settings(events: Engine) -> None:
    SqlSink(events, "events", "billing")
    with pytest.raises(
        fp.PolicyError, match=r"consumer 'billing' .* admit='any' found, 'forward' given; epochs='key' found, 'fence'"
    ):
        SqlSink(events, "events", "billing", policy="in_order")
    with pytest.raises(fp.PolicyError, match="table='events' found, None given"):
        SqlSink(events, None, "billing")
    with pytest.raises(fp.PolicyError, match="timestamp=None found, 'time' given"):
        SqlSink(events, "events", "billing", columns=fp.Columns(timestamp="time"))
    with pytest.raises(fp.PolicyError, match="claim='sequence' found, 'message_id' given"):
        SqlSink(events, "events", "billing", "message_id", message_id="note")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claim": "offset"}, "claim='offset' is neither 'sequence' nor 'message_id'"),
        ({"message_id": "note"}, "message_id='note' is for claim='message_id' only"),
        ({"claim": "message_id", "message_id": "note", "policy": "kafka"}, "policy='kafka' is for claim='sequence'"),
        ({"claim": "message_id"}, r"message_id=\(\): .* column of an event"),
        ({"untracked": "drop"}, "untracked='drop' is neither 'fail' nor 'keep'"),
        ({"consumer_id": ""}, "consumer_id='': expected 1 to 255 characters"),
        ({"policy": "kafka_offsets", "columns": fp.Columns()}, "this policy ignores epochs"),
    ],
)
def test_invalid_settings(events: Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.PolicyError, match=message):
        SqlSink(events, "events", **{"consumer_id": "c", **options})


def test_claims_of_a_newer_version_are_refused(events: Engine) -> None:
    SqlSink(events, "events", "billing")
    execute(events, "UPDATE fencepost_schema SET version = version + 1")
    with pytest.raises(
        fp.SchemaError, match="the tables of 'sink' have version 3, but this package supports 2: upgrade"
    ):
        SqlSink(events, "events", "billing")


# Rows and tables that do not go together


def test_missing_tables_and_columns_are_errors(events: Engine) -> None:
    with pytest.raises(fp.SinkError, match=r"nowhere: does not exist .*; nothing has changed"):
        SqlSink(events, "nowhere", "c")
    with pytest.raises(fp.SinkError, match="events: has no column 'sum'; it has pid, epoch, partition, seq"):
        SqlSink(events, "events", "c", insert=["sum"])


def test_missing_columns_are_refused(events: Engine) -> None:
    sink = SqlSink(events, "events", "c")
    with pytest.raises(fp.SinkError, match=r"events: has no column 'sum'; .* list the columns"):
        sink.apply(run(0, 2).append_column("sum", pa.array([1, 2])))
    with pytest.raises(fp.BatchError, match="column 'epoch': missing"):
        sink.apply(run(0, 2).drop_columns("epoch"))
    sink = SqlSink(events, "events", "c", insert=["pid", "note"])
    with pytest.raises(fp.BatchError, match=r"column 'note': missing; .* columns pid, epoch"):
        sink.apply(run(0, 2))
    execute(events, "CREATE TABLE strict_ones (seq BIGINT, must INTEGER NOT NULL, may INTEGER)")
    sink = SqlSink(events, "strict_ones", "d", insert=["seq"])
    with pytest.raises(fp.SinkError, match="table strict_ones: column 'must' requires a value"):
        sink.apply(run(0, 2))
    assert (count(events, CLAIMS), stored(events)) == (0, [])
    assert SqlSink(events, "events", "e", insert=["seq", "amount"]).apply(run(0, 2)).rows_kept == 2
    sink = SqlSink(events, "events", "f")
    execute(events, "ALTER TABLE events ADD COLUMN sum INTEGER")
    assert sink.apply(run(0, 2).append_column("sum", pa.array([1, 2]))).rows_kept == 2, "it was added since"


ALL = Table(
    "all_types",
    MetaData(),
    Column("small", SmallInteger, nullable=False),
    Column("whole", Integer),
    Column("big", sqlalchemy.BigInteger),
    Column("exact", sqlalchemy.Numeric(6, 2)),
    Column("real", sqlalchemy.Double),
    Column("name", String(5)),
    Column("story", sqlalchemy.Text),
    Column("raw", sqlalchemy.LargeBinary),
    Column("yes", sqlalchemy.Boolean),
    Column("day", sqlalchemy.Date),
    Column("at", sqlalchemy.DateTime),
    Column("clock", sqlalchemy.Time),
)
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 5)
GOOD: dict[str, Any] = {
    "small": -5, "whole": 2**31 - 1, "big": -(2**63), "exact": Decimal("-1234.50"), "real": 1.5, "name": "a,\"b\n",
    "story": "", "raw": b"\x00\xff", "yes": True, "day": NOON.date(), "at": NOON, "clock": NOON.time(),
}  # fmt: skip


def all_types(engine: Engine) -> SqlSink:
    ALL.create(engine)
    return SqlSink(engine, "all_types", "c", insert=list(GOOD))


def with_identity(*values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"pid": 7, "epoch": 0, "partition": 0, "seq": seq, **value} for seq, value in enumerate(values)]
    )


@without_mariadb
def test_values_of_every_type_are_read_back(engine: Engine) -> None:
    sink = all_types(engine)
    nothing = dict.fromkeys(GOOD) | {"small": 1}
    assert sink.apply(with_identity(GOOD, nothing)).rows_kept == 2
    with engine.connect() as connection:
        found = [dict(row._mapping) for row in connection.execute(select(ALL).order_by(ALL.c.small))]
    assert found == [GOOD, nothing]


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("small", 2**15, f"column 'small', row 1: {2**15}: the column takes -32768…32767"),
        ("small", None, "column 'small', row 1: None: null"),
        ("exact", Decimal("12345.00"), r"row 1: Decimal\('12345.00'\): the column takes 6 digits, 2 of them after"),
        ("name", "123456", "column 'name', row 1: '123456': the column takes 5 characters"),
        ("big", 2**64 - 1, f"column 'big', row 1: {2**64 - 1}: the column takes"),
        ("at", "noon", r"column 'at', row 0: 'noon': .* string, timestamps"),
        ("whole", 1.5, r"column 'whole', row 0: 1.5: .* double, integers"),
        ("story", 5, r"column 'story', row 0: 5: .* int64, texts"),
        ("yes", 1, r"column 'yes', row 0: 1: .* int64, booleans"),
        ("raw", "x", r"column 'raw', row 0: 'x': .* string, binary"),
        ("day", NOON, r"column 'day', row 0: .*: is of type timestamp\[us\], dates are needed"),
        ("real", "1", r"column 'real', row 0: '1': .* string, numbers"),
    ],
)
@without_mariadb
def test_values_that_a_column_does_not_take(engine: Engine, column: str, value: Any, problem: str) -> None:
    sink = all_types(engine)
    batch = with_identity(GOOD, GOOD)
    kind = pa.uint64() if isinstance(value, int) and value >= 2**63 else None
    first = None if isinstance(value, str | float | int | datetime.datetime) and not kind else GOOD[column]
    first = value if first is None and column != "small" and column != "name" else GOOD[column]
    values = pa.array([1 if kind else first, value], kind)
    with pytest.raises(fp.BatchError, match=f"{problem}.*; nothing of this call") as caught:
        sink.apply(batch.set_column(batch.column_names.index(column), column, values))
    assert caught.value.column == column
    assert (count(engine, ALL), count(engine, CLAIMS)) == (0, 0)
    assert sink.apply(batch).rows_kept == 2, "the sink continues"


@without_mariadb
def test_a_time_of_day_finer_than_microseconds_is_refused(engine: Engine) -> None:
    sink, batch = all_types(engine), with_identity(GOOD, GOOD)
    place = batch.column_names.index("clock")
    with pytest.raises(fp.BatchError, match=r"column 'clock', row 1: '00:00:00.000001001': the column takes micro"):
        sink.apply(batch.set_column(place, "clock", pa.array([1000, 1001], pa.time64("ns"))))
    assert sink.apply(batch.set_column(place, "clock", pa.array([1, None], pa.time32("ms")))).rows_kept == 2
    with engine.connect() as connection:
        found = connection.execute(select(ALL.c.clock)).scalars().all()
    assert sorted(found, key=str) == [datetime.time(microsecond=1000), None]


@pytest.mark.parametrize(
    ("column", "value"),
    [("amount", "x"), ("amount", 2**64), ("amount", 1.5), ("amount", [1]), ("note", 7), ("seq", "a")],
)
def test_one_event_of_another_type_is_named(events: Engine, column: str, value: Any) -> None:
    sink = SqlSink(events, "events", "c")
    good = [{"pid": 7, "epoch": 0, "partition": 0, "seq": seq, "amount": seq} for seq in range(5)]
    bad = [it | ({column: value} if it["seq"] == 3 else {}) for it in good]
    with pytest.raises(fp.BatchError, match=rf"column '{column}', row 3: {re.escape(repr(value))}: ") as caught:
        sink.apply(bad)
    assert (caught.value.column, caught.value.row) == (column, 3)
    assert sink.apply(good).rows_kept == 5


def test_refusals_of_the_database_name_the_row(events: Engine) -> None:
    with events.begin() as connection:
        connection.execute(
            text("CREATE TABLE checked (seq BIGINT, note TEXT, amount INTEGER, CHECK (amount <> 13), UNIQUE (amount))")
        )
    sink = SqlSink(events, "checked", "c", insert=["seq", "note", "amount"])

    def batch(first: int, *amounts: int) -> pa.Table:
        some = rows(*((7, 0, 0, first + at) for at in range(len(amounts))), amounts=list(amounts))
        return some.append_column("note", pa.array(["line\nline"] * len(amounts)))

    sink.apply(batch(0, 1, 2))
    with pytest.raises(fp.BatchError, match=r"(?s)row 3: .* checked refuses it: .*; nothing of this call") as caught:
        sink.apply(batch(0, 1, 2, 3, 13, 4))
    assert caught.value.row == 3, "of the rows that came, not of those that were kept"
    with pytest.raises(fp.BatchError, match=r"row 4: .* checked refuses it"):
        sink.apply(batch(0, 1, 2, 3, 4, 1))
    done = sink.apply(batch(0, 1, 2, 3, 4, 5))
    assert done.rows_kept == 3, "nothing was claimed by the calls that failed"


@pytest.mark.parametrize("first", ["a\nb\nc\n", "a\r\nb\rc\r", None])
def test_line_breaks_in_the_first_row_do_not_change_the_row_that_is_named(events: Engine, first: str | None) -> None:
    """PostgreSQL counts the lines of the first row in another way. An earlier row was named, with its value."""
    execute(events, "CREATE TABLE checked (seq BIGINT, note TEXT, amount INTEGER, CHECK (amount <> 13))")
    sink = SqlSink(events, "checked", "c", "message_id", message_id="seq")
    notes = [first, "x", "y\nz", "x", "x"]
    with pytest.raises(fp.BatchError, match="checked refuses it") as caught:
        sink.apply({"seq": [0, 1, 2, 3, 4], "note": notes, "amount": [0, 1, 2, 13, 4]})
    assert caught.value.row == 3
    with pytest.raises(fp.BatchError, match="checked refuses it") as caught:
        sink.apply({"seq": [0, 1, 2, 3, 4], "note": notes, "amount": [13, 1, 2, 3, 4]})
    assert caught.value.row == 0


@pytest.mark.parametrize("refused", [0, 2, 5])
def test_rows_of_a_trigger_do_not_change_the_row_that_is_named(tmp_path: Path, refused: int) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE checked (id INTEGER, amount INTEGER CHECK (amount <> 13))",
            "CREATE TABLE seen (id INTEGER)",
            "CREATE TRIGGER note AFTER INSERT ON checked BEGIN INSERT INTO seen VALUES (new.id); END",
        ):
            connection.execute(text(statement))
    sink = SqlSink(engine, "checked", "c", "message_id", message_id="id")
    amounts = [13 if it == refused else it for it in range(6)]
    with pytest.raises(fp.BatchError, match="checked refuses it") as caught:
        sink.apply({"id": list(range(6)), "amount": amounts})
    assert caught.value.row == refused
    engine.dispose()


def prices(engine: Engine, kind: str) -> SqlSink:
    with engine.begin() as connection:
        connection.execute(
            text(f"CREATE TABLE prices (pid BIGINT, epoch INT, partition INT, seq BIGINT, price {kind})")
        )
    return SqlSink(engine, "prices", "c")


def with_prices(values: pa.Array) -> pa.Table:
    return run(0, len(values)).drop_columns("amount").append_column("price", values)


@without_mariadb
def test_infinity_is_beyond_every_number_of_digits(engine: Engine) -> None:
    sink = prices(engine, "NUMERIC(6, 2)")
    with pytest.raises(fp.BatchError, match="column 'price', row 1: inf: the column takes 6 digits"):
        sink.apply(with_prices(pa.array([1.0, float("inf")])))


@pytest.mark.parametrize("kind", ["NUMERIC(6, 2)", "NUMERIC", "FLOAT"])
@without_mariadb
def test_nan_is_kept_or_refused(engine: Engine, kind: str) -> None:
    """SQLite makes a null of it without a word."""
    sink = prices(engine, kind)
    values = pa.array([1.5, None, float("nan")])
    if engine.dialect.name == "sqlite":
        for call in (sink.apply, sink.reconcile):
            with pytest.raises(fp.BatchError, match="column 'price', row 2: nan: SQLite has no NaN") as caught:
                call(with_prices(values))
            assert (caught.value.column, caught.value.row) == ("price", 2)
        assert count(engine, CLAIMS) == 0
        return
    assert sink.apply(with_prices(values)).rows_kept == 3
    with engine.connect() as connection:
        found = list(connection.execute(text("SELECT price FROM prices ORDER BY seq")).scalars())
    assert [str(it) for it in found[1:]] in (["None", "NaN"], ["None", "nan"])
    assert sink.reconcile(with_prices(values)).matched == 3


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (pa.array([Decimal("1.250"), Decimal("1.255")]), r"Decimal\('1.255'\)"),
        (pa.array([Decimal("1.250"), Decimal("-0.001")], pa.decimal256(40, 3)), r"Decimal\('-0.001'\)"),
        (pa.array([1.25, 1.005]), "1.005"),
        (pa.array([1.25, 0.1 + 0.2]), "0.30000000000000004"),
        (pa.array([1.1, 1.125], pa.float32()), "1.125"),
    ],
)
def test_a_numeric_column_rounds_nothing(engine: Engine, values: pa.Array, shown: str) -> None:
    sink = prices(engine, "NUMERIC(6, 2)")
    for call in (sink.apply, sink.reconcile):
        with pytest.raises(fp.BatchError, match=f"'price', row 1: {shown}: the column takes 6 digits, 2 of") as caught:
            call(with_prices(values))
        assert (caught.value.column, caught.value.row) == ("price", 1)
    assert count(engine, CLAIMS) == 0
    assert sink.apply(with_prices(values[:1])).rows_kept == 1
    assert sink.reconcile(with_prices(values[:1])).matched == 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("99999999999999999999999999.999999999999")]),  # which Python's abs() rounds up
        pa.array([Decimal("-12345678901234567890.123456789012")], pa.decimal128(38, 18)),
        pa.array([1e20]),
        pa.array([Decimal("1.25")], pa.decimal64(12, 2)),
        pa.array([Decimal("1.25")], pa.decimal32(9, 2)),
    ],
)
def test_a_numeric_column_takes_decimals_of_every_width(engine: Engine, values: pa.Array) -> None:
    sink, exact = prices(engine, "NUMERIC(38, 12)"), values.to_pylist()
    if engine.dialect.name == "sqlite" and isinstance(exact[0], Decimal) and exact != [Decimal("1.25")]:
        with pytest.raises(fp.BatchError, match=r"'price', row 0: .* SQLite would round"):
            sink.apply(with_prices(values))
        return
    assert sink.apply(with_prices(values)).rows_kept == 1
    assert sink.reconcile(with_prices(values)).matched == 1
    with engine.connect() as connection:
        assert [Decimal(it) for it in connection.execute(text("SELECT price FROM prices")).scalars()] == exact


DATES = pa.array([0, 10**8], pa.int32()).cast(pa.date32())


REFUSED: list[tuple[str | None, str, pa.Array, str]] = [
    # The database would round these.
    ("postgresql", "TIMESTAMP(0)", pa.array([None, NOON]), "takes 0 digits of a second"),
    ("postgresql", "TIMESTAMP(3) WITH TIME ZONE", pa.array([None, NOON]), "takes 3 digits of a second"),
    ("postgresql", "TIME(0)", pa.array([None, NOON.time()]), "takes 0 digits of a second"),
    # These errors did not name the column, or were errors of Arrow, Python or the driver.
    ("postgresql", "TEXT", pa.array([None, "a\0b"]), "no zero bytes"),
    ("postgresql", "DATE", DATES, "out of range"),
    ("mariadb", "TIMESTAMP NULL", pa.array([None, datetime.datetime(9999, 12, 31)]), "Incorrect datetime value"),
    (None, "DATE", pa.array([0, 7], pa.int64()).view(pa.date64()), "time of day"),
    (None, "INTEGER", pa.array([None, 2**62], pa.timestamp("us")), "integers are needed"),
    (None, "INTEGER", DATES.take([1, 1]), "integers are needed"),
    (None, "NUMERIC(6, 2)", pa.array([None, 2.125], pa.float16()), "round it"),
]


@pytest.mark.parametrize(
    ("database_url", "kind", "values", "problem"),
    [
        (database, kind, values, problem)
        for only, kind, values, problem in REFUSED
        for database in ([only] if only else ["sqlite", "postgresql", "mariadb"])
    ],
    indirect=["database_url"],
)
def test_refused_values_are_named(engine: Engine, kind: str, values: pa.Array, problem: str) -> None:
    sink = prices(engine, kind)
    with pytest.raises(fp.BatchError, match=f"column 'price', row [01]: .*{problem}") as caught:
        sink.apply(with_prices(values))
    row = 0 if kind == "INTEGER" and values.null_count == 0 else 1
    assert (caught.value.column, caught.value.row) == ("price", row)
    assert count(engine, CLAIMS) == 0


@pytest.mark.parametrize("kind", ["DOUBLE PRECISION", "REAL"])
def test_a_column_of_floats_rounds_no_integers(engine: Engine, kind: str) -> None:
    sink = prices(engine, kind)
    odd = 2**24 + 1 if (kind, engine.dialect.name) == ("REAL", "postgresql") else 2**53 + 1
    with pytest.raises(fp.BatchError, match=rf"column 'price', row 1: {odd}: .*would round it"):
        sink.apply(with_prices(pa.array([odd - 1, odd])))
    assert sink.apply(with_prices(pa.array([odd - 1, 2**60]))).rows_kept == 2


def spellings(of: uuid.UUID) -> list[str]:
    return [str(of), str(of).upper(), of.hex, of.hex.upper(), f"{{{of}}}", of.urn, f"URN:UUID:{of}"]


def test_a_uuid_is_one_id_however_it_is_spelt(engine: Engine) -> None:
    sink = SqlSink(engine, None, "c", "message_id", message_id="event_id")
    seen: list[Any] = []
    for known in (uuid.uuid4(), uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)):
        for spelt in spellings(known):
            sink.handle(messages(spelt), lambda _, kept: seen.extend(kept["event_id"].to_pylist()))
        assert sink.handle(pa.table({"event_id": [known]}), lambda *_: None).duplicates == 1
    assert len(seen) == 3
    odd = ["550e8400e29b41d4a71644665544000", "550e8400e29b41d4a7164466554400000", "g" * 32, f"{'0' * 32}\n"]
    assert sink.handle(messages(*odd), lambda *_: None).rows_kept == len(odd), "those are none"


def test_uuids_of_a_table_are_compared_by_value(postgres: PostgresServer) -> None:
    engine = sqlalchemy.create_engine(postgres.new_database())
    execute(engine, "CREATE TABLE payments (seq BIGINT, device UUID)")
    device = uuid.uuid4()
    spelt = spellings(device)
    source = pa.table({"seq": list(range(len(spelt))), "device": spelt})
    sink = SqlSink(engine, "payments", "d", "message_id", message_id="seq")
    assert sink.apply(source).rows_kept == len(spelt)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT DISTINCT device FROM payments")).scalars().all() == [device]
    report = sink.reconcile(source.set_column(1, "device", pa.array([device] * len(spelt))))
    assert (report.matched, report.is_clean) == (len(spelt), True)
    with pytest.raises(fp.BatchError, match="column 'device', row 0: 'x': is not a UUID"):
        sink.apply(pa.table({"seq": [99], "device": ["x"]}))
    engine.dispose()


def test_uuids_go_into_columns_of_text(engine: Engine) -> None:
    execute(engine, "CREATE TABLE payments (plain CHAR(36), hex CHAR(32))")
    known = uuid.uuid4()
    sink = SqlSink(engine, "payments", "c", "message_id", message_id="plain")
    assert sink.apply(pa.table({"plain": [known], "hex": [known]})).rows_kept == 1
    with engine.connect() as connection:
        assert connection.execute(text("SELECT * FROM payments")).one() == (str(known), known.hex)


@pytest.mark.parametrize("is_mapping", [False, True])
@pytest.mark.parametrize("claim", ["sequence", "message_id"])
def test_texts_that_utf_8_does_not_have(events: Engine, claim: Any, is_mapping: bool) -> None:
    sink = SqlSink(events, "events", "c", claim, message_id="note" if claim == "message_id" else None)
    columns = {"pid": [7, 7], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 1], "note": ["good", "\udc80"]}
    listed = [{name: values[row] for name, values in columns.items()} for row in range(2)]
    rows: Any = columns if is_mapping else listed
    for call in (sink.apply, sink.reconcile, lambda given: sink.handle(given, break_off)):
        with pytest.raises(fp.BatchError, match=r"column 'note', row 1: .*lone surrogate") as caught:
            call(rows)
        assert (caught.value.column, caught.value.row) == ("note", 1)
    with pytest.raises(fp.BatchError, match=r"positions: .*: expected a source's name"):
        sink.apply([], positions={"\udc80": 1})
    with pytest.raises(fp.PolicyError, match=r"consumer_id=.*: expected 1 to 255 characters of UTF-8"):
        SqlSink(events, "events", "\udc80")
    assert stored(events) == []


def test_rows_without_a_producer(events: Engine) -> None:
    batch = rows((7, 0, 0, 0), (-1, 0, 0, 0))
    with pytest.raises(fp.BatchError, match="column 'pid', row 1"):
        SqlSink(events, "events", "c").apply(batch)
    assert stored(events) == []
    sink = SqlSink(events, "events", "c", untracked="keep")
    assert sink.apply(batch).rows_kept == 2
    assert sink.apply(batch).verdict.to_pylist() == [1, 6], "applied as often as they come"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("claim", ["sequence", "message_id"])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_table_with_a_rule_for_insert(events: Engine, claim: Any, is_later: bool) -> None:
    """PostgreSQL has no such rules in a statement with WITH, by which few rows are written."""

    def add_rule() -> None:
        with events.begin() as connection:
            connection.execute(text("CREATE TABLE noted (seq BIGINT)"))
            connection.execute(
                text("CREATE RULE note AS ON INSERT TO events DO ALSO INSERT INTO noted VALUES (NEW.seq)")
            )

    sink = SqlSink(events, "events", "c", claim, **({"message_id": "seq"} if claim == "message_id" else {}))
    if is_later:
        assert sink.apply(run(0, 1)).rows_kept == 1
    add_rule()
    assert sink.apply(run(0, 3)).rows_kept == 3 - is_later
    assert sink.apply(run(0, 3)).rows_kept == 0
    with events.connect() as connection:
        assert len(connection.execute(text("SELECT seq FROM noted")).all()) == 3 - is_later


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_id_that_another_transaction_claims_meanwhile(events: Engine, new_engine: Callable[[], Engine]) -> None:
    """The statement that looks for ids does not see it, and fails on it. The call then finds a duplicate."""
    sink = SqlSink(events, "events", "by note", "message_id", message_id="note", insert=("note",))
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%_messages%'")

    def is_waiting() -> bool:
        with events.connect() as looking:
            return bool(looking.execute(waiting).scalar_one())

    with ThreadPoolExecutor(1) as pool, new_engine().connect() as other:
        row = {"consumer": sink._consumer.id, "id": "b", "version": 0, "changed_ms": 0}
        other.execute(MESSAGES.insert(), row)
        applying = pool.submit(sink.apply, pa.table({"note": ["a", "b"]}))
        wait_until(is_waiting, "the call does not wait for the id")
        other.commit()
        done = applying.result()
    assert [fp.Verdict(it) for it in done.verdict.to_pylist()] == [ACCEPTED, DUPLICATE]
    with events.connect() as looking:
        assert list(looking.execute(select(EVENTS.c.note)).scalars()) == ["a"]
