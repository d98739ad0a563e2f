"""Repeats with other content at the end of the stream: what the table holds is compared, and nothing vanishes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost.metrics import to_text
from fencepost.sql import SqlSink
from sqlalchemy import Engine
from sqlalchemy.dialects.mysql import DATETIME
from support.databases import execute
from support.postgres import PostgresServer

ACCEPTED, DUPLICATE, CONFLICT = fp.Verdict.ACCEPTED, fp.Verdict.DUPLICATE, fp.Verdict.CONFLICT
TABLES = sa.MetaData()
PAYMENTS = sa.Table(
    "payments",
    TABLES,
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("pid", "epoch", "partition", "seq")),
    sa.Column("amount", sa.Numeric(10, 2)),
    sa.Column("rate", sa.Float),
    sa.Column("at", sa.DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mariadb")),
    sa.Column("note", sa.String(20)),
    sa.Column("flag", sa.Boolean),
    sa.Column("raw", sa.LargeBinary),
)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def payments(engine: Engine) -> Engine:
    TABLES.create_all(engine)
    return engine


def pay(*seqs: int, **values: Any) -> pa.Table:
    usual = {"amount": Decimal("1.50"), "rate": 0.25, "at": NOON, "note": "n", "flag": True, "raw": b"\0\1"}
    events = [{"pid": 7, "epoch": 0, "partition": 0, "seq": seq, **usual, **values} for seq in seqs]
    return pa.Table.from_pylist(events)


def verdicts(applied: Any) -> list[fp.Verdict]:
    return [fp.Verdict(it) for it in applied.verdict.to_pylist()]


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(PAYMENTS)).scalar_one())


OTHER: dict[str, Any] = {
    "amount": Decimal("1.51"),
    "rate": 0.5,
    "at": NOON + dt.timedelta(microseconds=1),
    "note": "N",
    "flag": None,
    "raw": b"\0",
}


@pytest.mark.parametrize("column", OTHER)
def test_other_content_under_a_seen_number_is_a_conflict(payments: Engine, column: str) -> None:
    sink = SqlSink(payments, "payments", "billing", compare_content=True, on_conflict="drop")
    sink.apply(pay(0, 1))
    again = sink.apply(
        pa.concat_tables([pay(0), pay(1, **{column: OTHER[column]}), pay(2)], promote_options="permissive")
    )
    assert verdicts(again) == [DUPLICATE, CONFLICT, ACCEPTED]
    assert (again.duplicates, again.conflicts, again.not_compared, again.rows_kept) == (1, 1, 0, 1)
    assert sink.metrics()["rows"]["conflict"] == 1
    assert 'verdict="conflict"} 1.0' in to_text(sink)
    assert sink.apply(pay(0, 1)).counts[DUPLICATE] == 2, "copies are copies"
    others = tuple(name for name in OTHER if name != column)
    narrow = SqlSink(payments, "payments", "billing", compare_content=others, on_conflict="drop")
    assert narrow.apply(pay(1, **{column: OTHER[column]})).conflicts == 0


def test_a_conflict_within_a_call(payments: Engine) -> None:
    sink = SqlSink(payments, "payments", "billing", compare_content=True, on_conflict="drop")
    applied = sink.apply(pa.concat_tables([pay(0), pay(0), pay(0, note="other")]))
    assert verdicts(applied) == [ACCEPTED, DUPLICATE, CONFLICT]


def test_a_conflict_stops_the_call_and_changes_nothing(payments: Engine) -> None:
    sink = SqlSink(payments, "payments", "billing", compare_content=True)
    sink.apply(pay(0, 1))
    with pytest.raises(fp.BatchError, match=r"row 1: pid 7, epoch 0, partition 0, seq 1: repeats a row of") as info:
        sink.apply(pa.concat_tables([pay(5), pay(1, note="other")]), positions={"topic": 3})
    assert info.value.row == 1
    assert (count(payments), sink.positions()) == (2, {})
    assert sink.apply(pay(5)).rows_kept == 1


def test_conflicts_are_passed_to_refused(payments: Engine) -> None:
    sink = SqlSink(payments, "payments", "billing", compare_content=["note"], on_conflict="quarantine")
    with pytest.raises(fp.PolicyError, match="needs refused="):
        sink.apply(pay(0))
    seen: list[pa.Table] = []
    sink.apply(pay(0, 1), refused=lambda _, rows: seen.append(rows))
    assert seen == []
    sink.apply(pa.concat_tables([pay(0), pay(1, note="other")]), refused=lambda _, rows: seen.append(rows))
    (rows,) = seen
    assert (rows["seq"].to_pylist(), rows["_verdict"].to_pylist()) == ([1], ["CONFLICT"])


def test_equal_values_as_the_table_keeps_them(payments: Engine) -> None:
    sink = SqlSink(payments, "payments", "billing", compare_content=True)
    sink.apply(pay(0, 1))
    paris = NOON.astimezone(dt.timezone(dt.timedelta(hours=1)))
    same = pay(0, amount=Decimal("1.5000"), at=paris)
    same = same.set_column(
        same.column_names.index("note"), "note", same["note"].cast(pa.large_string()).dictionary_encode()
    )
    assert sink.apply(same).counts[DUPLICATE] == 1
    assert sink.apply(pay(1, amount=1.5)).counts[DUPLICATE] == 1


def test_repeats_of_rows_that_were_deleted_are_counted(payments: Engine) -> None:
    sink = SqlSink(payments, "payments", "billing", compare_content=True)
    sink.apply(pay(0, 1))
    with payments.begin() as connection:
        connection.execute(PAYMENTS.delete().where(PAYMENTS.c.seq == 0))
    again = sink.apply(pay(0, 1, note="n"))
    assert (again.duplicates, again.conflicts, again.not_compared) == (2, 0, 1)


def test_by_message_id(payments: Engine) -> None:
    sink = SqlSink(
        payments, "payments", "mail", "message_id", message_id="note", compare_content=True, on_conflict="drop"
    )
    applied = sink.apply(pa.concat_tables([pay(0, note="a"), pay(1, note="a"), pay(0, note="a")]))
    assert verdicts(applied) == [ACCEPTED, CONFLICT, DUPLICATE]


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_columns_of_types_that_sqlalchemy_does_not_know(engine: Engine) -> None:
    """They were written until the first repeat, whose comparison failed."""
    kind = {"sqlite": "", "postgresql": "POINT"}[engine.dialect.name]
    execute(engine, f"CREATE TABLE places (id BIGINT, place {kind})")
    sink = SqlSink(engine, "places", "c", "message_id", message_id="id", compare_content=True, on_conflict="drop")
    assert sink.apply({"id": [1, 2], "place": ["(1,2)", "(3,4)"]}).rows_kept == 2
    assert verdicts(sink.apply({"id": [1, 2], "place": ["(1,2)", "(3,5)"]})) == [DUPLICATE, CONFLICT]


def test_content_is_compared_only_on_request(payments: Engine) -> None:
    sink = SqlSink(payments, "payments", "billing")
    sink.apply(pay(0))
    applied = sink.apply(pay(0, note="other"))
    assert (verdicts(applied), applied.conflicts, applied.not_compared) == ([DUPLICATE], None, None)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"compare_content": ["nothing"]}, "not write a column 'nothing'"),
        ({"compare_content": True, "insert": ["amount"]}, "not write a column 'pid'"),
        ({"compare_content": True, "table": None}, "has no table that"),
        ({"on_conflict": "keep"}, "on_conflict='keep' is neither"),
    ],
)
def test_invalid_combinations_of_options_are_refused(payments: Engine, options: dict[str, Any], error: str) -> None:
    with pytest.raises(fp.PolicyError) as info:
        SqlSink(payments, **{"table": "payments", "consumer_id": "x", **options})
    assert error in str(info.value)


def test_an_error_of_the_comparison_is_the_one_that_is_raised(postgres: PostgresServer) -> None:
    """The drop of the temporary table failed after it, and hid it: a consumer made dead letters in an outage."""
    engine = sa.create_engine(postgres.new_database())
    execute(engine, "CREATE TABLE notes (id BIGINT, body JSON)")
    sink = SqlSink(engine, "notes", "c", "message_id", message_id="id", compare_content=["id"])
    sink.apply({"id": [1], "body": ["{}"]})
    with pytest.raises(fp.BatchError, match=r"row 1: .*invalid input syntax"):
        sink.apply({"id": [2, 1], "body": ["{}", "{"]})

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def slow(_: Any, cursor: Any, statement: str, parameters: Any, *__: Any) -> tuple[str, Any]:
        if "EXISTS" in statement and "fencepost_repeats" in statement:
            cursor.execute("SET LOCAL statement_timeout = 1")
            statement = statement.replace("SELECT ", "SELECT pg_sleep(60), ", 1)
        return statement, parameters

    with pytest.raises(fp.StoreError, match="due to statement timeout"):
        sink.apply({"id": [1], "body": ["{}"]})
    sa.event.remove(engine, "before_cursor_execute", slow)
    assert sink.apply({"id": [1], "body": ["{}"]}).duplicates == 1
    engine.dispose()


def test_an_error_of_the_comparison_leaves_no_table(payments: Engine) -> None:
    """Not even on MariaDB, whose temporary tables outlive a rollback."""
    sink = SqlSink(payments, "payments", "billing", compare_content=True)
    sink.apply(pay(0))
    calls: list[str] = []

    @sa.event.listens_for(payments, "before_cursor_execute")
    def fail(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "EXISTS" in statement and "fencepost_repeats" in statement and not calls:
            calls.append(statement)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sink.apply(pay(0))
    assert sink.apply(pay(0)).duplicates == 1
    assert calls


def test_effects_cannot_be_compared(payments: Engine) -> None:
    sink = SqlSink(payments, "payments", "billing", compare_content=True)
    with pytest.raises(fp.PolicyError, match="cannot compare what an"):
        sink.handle(pay(0), lambda connection, rows: None)
