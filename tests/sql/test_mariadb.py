"""Where MariaDB does otherwise than PostgreSQL and SQLite: what would be lost or changed there is kept, or refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost.sql import IdempotentRequests, ProducerRegistry, RequestClaim, Response, SqlSink
from fencepost.sql.database import Database
from sqlalchemy import Connection, Engine, text
from support.databases import execute
from support.mariadb import MariaDBServer
from support.threads import in_threads
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
SPELLINGS = ["a", "A", "a ", "ä", "ss", "ß", "\N{PILE OF POO}", "\N{GHOST}"]
"""Several of which are one for a collation that ignores case, accents, trailing blanks or what it does not know."""


def rows_of(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(it) for it in connection.execute(text(query))]


# Texts that are different


@pytest.mark.parametrize("claim", ["message_id", "sequence"])
def test_spellings_are_different_identities(engine: Engine, claim: Any) -> None:
    execute(engine, "CREATE TABLE events (id VARCHAR(20), seq INTEGER)")
    options: dict[str, Any] = {"message_id": "id"}
    if claim == "sequence":
        options = {"columns": fp.Columns(pid="id", epoch=None, partition=None, seq="seq"), "policy": "watermark"}
    sink = SqlSink(engine, "events", "c", claim, **options)
    rows = {"id": SPELLINGS, "seq": [0] * len(SPELLINGS)}
    assert sink.apply(rows).rows_kept == len(SPELLINGS)
    again = sink.apply(rows)
    assert (again.rows_kept, again.duplicates) == (0, len(SPELLINGS))
    assert sorted(it for it, _ in rows_of(engine, "SELECT * FROM events")) == sorted(SPELLINGS)


@pytest.mark.parametrize("claim", ["message_id", "sequence"])
@pytest.mark.parametrize("charset", ["latin1", "ucs2"])
def test_texts_do_not_depend_on_the_character_set_of_the_database(engine: Engine, charset: str, claim: Any) -> None:
    """MariaDB's own default is latin1. There new ids were repeats: a character that it lacks was a question mark."""
    execute(engine, f"ALTER DATABASE CHARACTER SET {charset}")
    engine.dispose()
    columns = fp.Columns(pid="id", epoch=None, partition=None, seq="seq")
    options = {"message_id": "id"} if claim == "message_id" else {"columns": columns, "policy": "watermark"}
    sink = SqlSink(engine, None, "c", claim, **options)
    for kept in (1, 0):
        for spelling in SPELLINGS:
            assert sink.handle({"id": [spelling], "seq": [0]}, lambda *_: None).rows_kept == kept
    assert sink.handle({"id": SPELLINGS, "seq": [0] * len(SPELLINGS)}, lambda *_: None).rows_kept == 0


def test_spellings_are_different_names(engine: Engine) -> None:
    names = [it for it in SPELLINGS if it.strip() == it or True]
    for number, name in enumerate(names):
        SqlSink(engine, None, name).handle([{"pid": 7, "epoch": 0, "partition": 0, "seq": 0}], lambda *_: None)
        assert SqlSink(engine, None, name).begin_positions(dict.fromkeys(names, number)) == dict.fromkeys(names, number)
    registry, requests = ProducerRegistry(engine), IdempotentRequests(engine)
    assert len({registry.init_producer(name).pid for name in names}) == len(names)
    for name in names:
        claim = requests.claim("scope", name, name.encode())
        assert isinstance(claim, RequestClaim)
        claim.complete(lambda _, name=name: Response(200, body=name.encode()))
    found = [requests.claim("scope", name, name.encode()) for name in names]
    assert [it.body for it in found if isinstance(it, Response)] == [it.encode() for it in names]


def test_a_table_that_takes_spellings_for_one_refuses_the_second(engine: Engine) -> None:
    """The application's own index: no row goes without a word."""
    execute(engine, "CREATE TABLE events (id VARCHAR(20) PRIMARY KEY)")
    sink = SqlSink(engine, "events", "c", "message_id", message_id="id")
    with pytest.raises(fp.BatchError, match=r"row 1: .*Duplicate entry 'A' for key 'PRIMARY'") as caught:
        sink.apply({"id": ["a", "A"]})
    assert caught.value.row == 1
    assert rows_of(engine, "SELECT * FROM events") == []
    assert sink.apply({"id": ["a"]}).rows_kept == 1


def test_content_is_compared_with_the_row_of_the_same_spelling(engine: Engine) -> None:
    execute(engine, "CREATE TABLE events (id VARCHAR(20), amount INTEGER, INDEX (id))")
    sink = SqlSink(engine, "events", "c", "message_id", message_id="id", compare_content=True, on_conflict="drop")
    rows = {"id": SPELLINGS, "amount": range(len(SPELLINGS))}
    sink.apply({"id": SPELLINGS, "amount": list(range(len(SPELLINGS)))})
    assert sink.apply({"id": SPELLINGS, "amount": list(range(len(SPELLINGS)))}).conflicts == 0
    changed = sink.apply({"id": ["A", "a"], "amount": [0, 0]})
    assert (changed.conflicts, changed.not_compared) == (1, 0), rows


def test_reconciling_distinguishes_spellings(engine: Engine) -> None:
    execute(engine, "CREATE TABLE events (id VARCHAR(20), amount DOUBLE)")
    sink = SqlSink(engine, "events", "c", "message_id", message_id="id")
    rows = {"id": SPELLINGS, "amount": [0.1 * it for it in range(len(SPELLINGS))]}
    sink.apply(rows)
    assert (sink.reconcile(rows).matched, sink.reconcile(rows).is_clean) == (len(SPELLINGS), True)
    execute(engine, "DELETE FROM events WHERE id = BINARY 'A'")
    report = sink.reconcile(rows)
    assert report.findings.select(["finding", "id"]).to_pylist() == [{"finding": "missing", "id": "A"}]


# Lengths


def test_names_are_as_long_as_an_index_takes(engine: Engine) -> None:
    registry = ProducerRegistry(engine)
    assert registry.init_producer("x" * 1000).epoch == 0
    with pytest.raises(fp.PolicyError, match="MariaDB accepts at most 1000 bytes of UTF-8"):
        registry.init_producer("ä" * 501)
    name = "\N{GHOST}" * 255
    requests = IdempotentRequests(engine)
    claim = requests.claim(name, name, b"")
    assert isinstance(claim, RequestClaim)
    claim.complete(lambda _: Response(200))
    assert requests.claim(name, name, b"") == Response(200)
    ids = [f"{number:04}" + "y" * 1996 for number in range(3)]
    sink = SqlSink(engine, None, name, "message_id", message_id="id")
    assert [sink.handle({"id": ids}, lambda *_: None).rows_kept for _ in range(2)] == [3, 0]


def test_claims_and_responses_may_exceed_64_kib(engine: Engine) -> None:
    """MariaDB's TEXT and BLOB end there."""
    sink = SqlSink(engine, None, "c")
    rows = pa.table({"pid": [7] * 4000, "epoch": range(4000), "partition": [0] * 4000, "seq": [0] * 4000})
    assert sink.handle(rows, lambda *_: None).rows_kept == 4000
    assert sink.handle(rows, lambda *_: None).duplicates == 4000
    assert rows_of(engine, "SELECT length(more) > 65536 FROM fencepost_claims") == [(1,)]
    body = bytes(range(256)) * 1000
    claim = IdempotentRequests(engine).claim("s", "k", b"")
    assert isinstance(claim, RequestClaim)
    claim.complete(lambda _: Response(200, body=body))
    assert IdempotentRequests(engine).claim("s", "k", b"") == Response(200, body=body)


# Sessions and tables that are refused


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"init_command": "SET sql_mode = 'NO_ENGINE_SUBSTITUTION'"},
            "without STRICT_TRANS_TABLES the server silently changes",
        ),
        ({"charset": "latin1"}, "the character set 'latin1'"),
    ],
)
def test_sessions_that_would_change_values_are_refused(engine: Engine, settings: dict[str, str], problem: str) -> None:
    lenient = sa.create_engine(engine.url, connect_args=settings)
    with pytest.raises(fp.PolicyError, match=problem):
        SqlSink(lenient, None, "c")
    lenient.dispose()


def test_servers_of_mysql_and_old_ones_are_refused(engine: Engine) -> None:
    for version, problem in (("8.4.2", "MySQL 8.4.2. Supported are"), ("10.5.1-MariaDB", "10.6 or newer")):
        other = sa.create_engine(engine.url)

        @sa.event.listens_for(other, "connect")
        def wrap(driver: Any, _: Any, version: str = version) -> None:
            cursor = driver.cursorclass

            class Other(cursor):  # type: ignore[misc, valid-type]
                def fetchone(self) -> Any:
                    row = super().fetchone()
                    return (version, *row[1:]) if row and "STRICT" in str(row[1:2]) else row

            driver.cursorclass = Other

        with pytest.raises(fp.PolicyError, match=problem):
            Database(other).transaction(lambda _: None)
        other.dispose()


def test_a_url_of_mysql_leads_to_mariadb_too(engine: Engine) -> None:
    execute(engine, "CREATE TABLE events (id VARCHAR(20), amount INTEGER)")
    other = sa.create_engine(engine.url.set(drivername="mysql+pymysql"))
    sink = SqlSink(other, "events", "c", "message_id", message_id="id", compare_content=True, on_conflict="drop")
    rows = {"id": SPELLINGS, "amount": [1] * len(SPELLINGS)}
    assert sink.apply(rows, positions={"t": 1}).rows_kept == len(SPELLINGS)
    assert SqlSink(engine, "events", "c", "message_id", message_id="id").apply(rows).duplicates == len(SPELLINGS)
    assert sink.apply(rows).conflicts == 0
    assert sink.reconcile(rows).is_clean
    assert ProducerRegistry(other).init_producer("a").epoch == 0
    other.dispose()


def test_a_table_without_transactions_is_refused(engine: Engine) -> None:
    execute(engine, "CREATE TABLE events (pid BIGINT) ENGINE=MyISAM")
    with pytest.raises(fp.SinkError, match="its engine MyISAM has no transactions"):
        SqlSink(engine, "events", "c")


# Values that are written as they are, or refused


COLUMNS: list[tuple[str, Any, Any, str]] = [
    ("BIGINT UNSIGNED", 2**64 - 1, -1, "the column takes 0…18446744073709551615"),
    ("INT UNSIGNED", 2**32 - 1, 2**32, "the column takes 0…4294967295"),
    ("MEDIUMINT", -(2**23), 2**23, "the column takes -8388608…8388607"),
    ("TINYINT", -128, 128, "the column takes -128…127"),
    ("BOOLEAN", True, False, ""),
    ("DECIMAL(6,2)", Decimal("1234.50"), Decimal("0.125"), "would round it"),
    ("DOUBLE", 0.1, float("nan"), "MariaDB has neither NaN nor infinity"),
    ("DOUBLE", -1.5e300, float("-inf"), "MariaDB has neither NaN nor infinity"),
    ("FLOAT", 0.5, 1e300, "takes up to 3.40282e"),
    ("DATETIME", dt.datetime(2024, 2, 29, 12), dt.datetime(2024, 2, 29, 12, 0, 0, 5), "takes 0 digits of a second"),
    ("DATETIME(6)", dt.datetime(2024, 2, 29, 12, 0, 0, 5), None, ""),
    ("TIME(3)", dt.time(1, 2, 3, 4000), dt.time(1, 2, 3, 4), "takes 3 digits of a second"),
    ("DATE", dt.date(2024, 2, 29), None, ""),
    ("BINARY(4)", b"\x00'\\%", b"abc", "takes 4 bytes, and would pad"),
    ("BLOB", bytes(range(256)), None, ""),
    ("VARCHAR(4)", "ä'\\%", "abcde", "the column takes 4 characters"),
    ("VARCHAR(4)", "a\0b ", None, ""),
    ("TEXT", "\N{GHOST}\n%s :x", None, ""),
    ("TINYTEXT", "b", "x" * 300, "too long for column 'value'"),
    ("VARCHAR(9) CHARACTER SET latin1", "é", "\N{GHOST}", "Incorrect string value"),
    ("ENUM('a', 'b')", "a", "A", "column takes a, b"),
    ("UUID", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7", "is not a UUID"),
    ("JSON", '{"a": [1]}', "{", "CONSTRAINT `events.value` failed"),
]


@pytest.mark.parametrize(("kind", "good", "bad", "problem"), COLUMNS, ids=lambda it: str(it)[:20])
def test_a_value_is_written_as_it_is_or_refused(engine: Engine, kind: str, good: Any, bad: Any, problem: str) -> None:
    execute(engine, f"CREATE TABLE events (id INTEGER PRIMARY KEY, value {kind})")
    sink = SqlSink(engine, "events", "c", "message_id", message_id="id")
    wide = pa.uint64() if good == 2**64 - 1 else None
    sink.apply(pa.table({"id": [1, 2], "value": pa.array([good, None], wide)}))
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT value FROM events ORDER BY id").scalars().all()
    seen = (dt.datetime(2024, 1, 1) + found[0]).time() if isinstance(found[0], dt.timedelta) else found[0]
    assert [seen, found[1]] == [good, None]
    if problem:
        with pytest.raises(fp.BatchError, match=problem) as caught:
            sink.apply([{"id": 3, "value": good if wide is None else 0}, {"id": 4, "value": bad}])
        # Of a check the database says no column.
        assert (caught.value.column, caught.value.row) in (("value", 1), (None, 1))
        assert rows_of(engine, "SELECT count(*) FROM events") == [(2,)]


def test_a_row_in_the_middle_of_many_is_named(engine: Engine) -> None:
    execute(engine, "CREATE TABLE events (id INTEGER PRIMARY KEY, value INTEGER CHECK (value < 25000))")
    sink = SqlSink(engine, "events", "c", "message_id", message_id="id")
    rows = pa.table({"id": range(30_000), "value": range(30_000)})
    with pytest.raises(fp.BatchError, match=r"row 25000: .* events refuses it: CONSTRAINT") as caught:
        sink.apply(rows)
    assert caught.value.row == 25_000
    assert sink.apply(rows.slice(0, 25_000)).rows_kept == 25_000
    assert rows_of(engine, "SELECT count(*), sum(value) FROM events") == [(25_000, sum(range(25_000)))]


@pytest.mark.parametrize("zone", ["+02:00", "+00:00"])
def test_instants_go_to_timestamps_in_utc_alone(engine: Engine, zone: str) -> None:
    execute(engine, "CREATE TABLE events (id INTEGER, at TIMESTAMP(6) NULL)")
    zoned = sa.create_engine(engine.url, connect_args={"init_command": f"SET time_zone = '{zone}'"})
    sink = SqlSink(zoned, "events", "c", "message_id", message_id="id")
    row = {"id": 1, "at": dt.datetime(2024, 10, 27, 0, 30, 0, 5, tzinfo=dt.UTC)}
    if zone == "+02:00":
        with pytest.raises(fp.SinkError, match=r"'at' is a TIMESTAMP, .* time zone is \+02:00"):
            sink.apply([row])
    else:
        sink.apply([row])
        assert rows_of(zoned, "SELECT unix_timestamp(at) FROM events") == [(Decimal("1729989000.000005"),)]
    zoned.dispose()


@pytest.mark.usefixtures("database_url")
def test_a_zone_that_is_utc_only_in_winter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instants of the summer were stored an hour late."""
    monkeypatch.setenv("TZ", "GMT0BST,M3.5.0,M10.5.0")
    with MariaDBServer() as server:
        engine = sa.create_engine(server.new_database())
        execute(engine, "CREATE TABLE events (id INTEGER, at TIMESTAMP(6) NULL)")
        sink = SqlSink(engine, "events", "c", "message_id", message_id="id")
        with pytest.raises(fp.SinkError, match=r"'at' is a TIMESTAMP, .* time zone is SYSTEM"):
            sink.apply([{"id": 1, "at": dt.datetime(2024, 7, 1, tzinfo=dt.UTC)}])
        engine.dispose()


# Transactions


def test_a_deadlock_that_an_effect_passes_over_commits_nothing(
    engine: Engine, new_engine: Callable[[], Engine]
) -> None:
    """MariaDB undoes the whole transaction, and treats later statements as a new one: the claim would be lost."""
    execute(
        engine, "CREATE TABLE totals (id INTEGER PRIMARY KEY, total BIGINT)", "INSERT INTO totals VALUES (1,0),(2,0)"
    )
    met, undone = threading.Barrier(2), []
    add = text("UPDATE totals SET total = total + 1 WHERE id = :id")

    def both(first: int, second: int) -> None:
        def effect(connection: Connection, _: pa.Table) -> None:
            connection.execute(add, {"id": first})
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait(timeout=PATIENCE_SECONDS)
            try:
                connection.execute(add, {"id": second})
            except sa.exc.OperationalError as error:
                undone.append(error.orig.args[0])  # type: ignore[union-attr]
                connection.execute(add, {"id": second})

        with contextlib.suppress(fp.UndoneError):
            row = {"pid": first, "epoch": 0, "partition": 0, "seq": 0}
            SqlSink(new_engine(), None, "c").handle([row], effect)
            return
        undone.append(first)

    SqlSink(engine, None, "c").handle([{"pid": 3, "epoch": 0, "partition": 0, "seq": 0}], lambda *_: None)
    in_threads([lambda: both(1, 2), lambda: both(2, 1)])
    assert undone[0] == 1213
    assert len(undone) == 2, "the effect ignored the error, and the call raises UndoneError"
    assert rows_of(engine, "SELECT total FROM totals") == [(1,), (1,)]
    assert len(rows_of(engine, "SELECT pid FROM fencepost_claims")) == 2


@pytest.mark.parametrize("statement", ["CREATE TABLE other (id INTEGER)", "TRUNCATE TABLE things", "COMMIT"])
def test_an_effect_that_commits_by_itself_is_reported(engine: Engine, statement: str) -> None:
    execute(engine, "CREATE TABLE things (id INTEGER)")

    def effect(connection: Connection, _: pa.Table) -> None:
        connection.execute(text(statement))

    with pytest.raises(fp.UndoneError, match="CREATE, ALTER, DROP and TRUNCATE commit by themselves"):
        SqlSink(engine, None, "c").handle([{"pid": 7, "epoch": 0, "partition": 0, "seq": 0}], effect)


def test_time_outs_are_of_the_transaction_alone(engine: Engine, new_engine: Callable[[], Engine]) -> None:
    execute(engine, "CREATE TABLE things (id INTEGER PRIMARY KEY)", "INSERT INTO things VALUES (1)")
    query = "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@idle_transaction_timeout"
    before = rows_of(engine, query)
    inside: list[Any] = []

    def work(connection: Connection) -> None:
        inside.append(tuple(connection.execute(text(query)).one()))
        connection.execute(text("SELECT id FROM things FOR UPDATE"))

    with new_engine().connect() as holder:
        holder.execute(text("SELECT id FROM things FOR UPDATE"))
        with pytest.raises(fp.StoreError, match="lock for longer than lock_timeout_ms"):
            Database(engine, lock_timeout_ms=1, idle_timeout_ms=60_001).transaction(work)
    assert inside == [(1, 1, 61)], "whole seconds, rounded up"
    assert rows_of(engine, query) == before


def test_a_session_that_is_killed_is_replaced(engine: Engine, mariadb: MariaDBServer) -> None:
    runs: list[int] = []

    def work(connection: Connection) -> None:
        runs.append(connection.execute(text("SELECT CONNECTION_ID()")).scalar_one())
        if len(runs) == 1:
            mariadb.execute(f"KILL {runs[0]}")
        connection.execute(text("SELECT 1"))

    Database(engine).transaction(work)
    assert len(set(runs)) == 2
