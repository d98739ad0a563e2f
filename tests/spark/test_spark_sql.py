"""The doors for SQL: names that a session knows once `register` was called."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from fencepost import Columns
from fencepost.policy import resolve
from fencepost_spark import deduplicate, register
from fencepost_spark.sql import ROWS_TOGETHER, Analyzed, GroupJudge
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

DDL = "pid bigint, epoch int, partition int, seq int, payload string"
COLUMNS = ("pid", "epoch", "partition", "seq")
TYPES = tuple(
    (name, kind()) for name, kind in zip(COLUMNS, (LongType, IntegerType, IntegerType, IntegerType), strict=True)
)
ROWS = [
    (1, 0, 0, 0, "a"),
    (1, 0, 0, 1, "b"),
    (1, 0, 0, 1, "b"),
    (2, 0, 0, 0, "c"),
    (None, 0, 0, 0, "d"),
    (-1, 0, 0, 0, "e"),
]


@pytest.fixture
def events(spark: SparkSession) -> Iterator[str]:
    spark.createDataFrame(ROWS, DDL).repartition(3).createOrReplaceTempView("events")
    register(spark)
    yield "events"
    spark.catalog.dropTempView("events")


def rows_of(spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in spark.sql(text).collect()), key=str)


def test_the_function(spark: SparkSession, events: str) -> None:
    laid_out = f"SELECT * FROM {events} DISTRIBUTE BY pid, partition SORT BY pid, partition, epoch, seq"
    judged = f"SELECT *, fencepost_verdict(pid, epoch, partition, seq) AS verdict FROM ({laid_out})"
    found = rows_of(spark, f"SELECT pid, seq, payload FROM ({judged}) WHERE verdict IN (0, 6)")
    assert found == sorted({(pid, seq, payload) for pid, _, _, seq, payload in ROWS}, key=str)


def test_the_table_function(spark: SparkSession, events: str) -> None:
    found = rows_of(spark, f"SELECT * FROM fencepost_deduplicate(TABLE({events}))")
    assert found == sorted(set(ROWS), key=str)
    assert spark.sql(f"SELECT * FROM fencepost_deduplicate(TABLE({events}))").schema == spark.table(events).schema


def test_it_keeps_what_deduplicate_keeps(spark: SparkSession, events: str) -> None:
    """Also where a group is judged in several pieces, and whatever else the rows hold."""
    distinct = 18_000
    assert distinct / 2 > ROWS_TOGETHER
    rows = (
        spark.range(distinct + 2_000)
        .selectExpr(f"id % {distinct} AS id")
        .selectExpr(
            "id % 2 AS PID",
            "CAST(id % 2 AS int) AS epoch",
            "CAST(id % 2 AS int) AS partition",
            "CAST(id div 2 AS int) AS seq",
            "id AS `a payload`",
            "named_struct('x', array(id, NULL), 'y', map('k', id)) AS nested",
            "CAST(id AS decimal(20, 3)) AS price",
            "timestamp_millis(id) AS at",
        )
    )
    rows.createOrReplaceTempView("many")
    found = spark.sql("SELECT `a payload`, nested, price, at FROM fencepost_deduplicate(TABLE(many))").collect()
    kept = deduplicate(rows).select("a payload", "nested", "price", "at").collect()
    assert len(found) == distinct
    assert sorted(found) == sorted(kept)


def test_constants_of_the_call_say_how_rows_are_judged(spark: SparkSession, events: str) -> None:
    rows = [("eu", 1, 0, "t", 5, 0), ("us", 1, 0, "t", 5, 1), ("eu", 1, 0, "t", 3, 2), ("eu", 1, 0, "t", 5, 3)]
    frame = spark.createDataFrame(rows, "cluster string, id bigint, e int, topic string, n int, `offset` bigint")
    frame.createOrReplaceTempView("others")
    call = "SELECT `offset` FROM fencepost_deduplicate(TABLE(others), pid => 'cluster, id', epoch => 'e', seq => 'n', "
    assert rows_of(spark, call + "partition => 'topic')") == [(0,), (1,), (2,)]
    assert rows_of(spark, call + "partition => '')") == [(0,), (1,), (2,)]
    assert rows_of(spark, call + "partition => '', policy => 'in_order', order_by => 'offset')") == [(0,), (1,)]


def test_columns_of_the_registration(spark: SparkSession) -> None:
    spark.createDataFrame(
        [(1, 0, 0, 0), (1, 0, 0, 0)], "device bigint, epoch int, partition int, seq int"
    ).createOrReplaceTempView("d")
    register(spark, columns=Columns(pid="device"))
    assert len(rows_of(spark, "SELECT * FROM fencepost_deduplicate(TABLE(d))")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("TABLE(events), policy => 'sometimes'", "unknown policy 'sometimes'"),
        ("TABLE(events), policy => 'kafka'", "pass order_by"),
        ("TABLE(events), policy => 'kafka', order_by => 'nowhere'", "column 'nowhere': missing"),
        ("TABLE(events), seq => 'nowhere'", "column 'nowhere': missing"),
        ("TABLE(events), seq => 'payload'", "column 'payload'"),
        ("TABLE(events), seq => 1", "seq: expected a constant"),
        ("TABLE(events), colour => 'red'", "colour: unknown; expected policy, columns, order_by"),
        ("1", "first argument is the"),
    ],
)
def test_invalid_calls(spark: SparkSession, events: str, arguments: str, message: str) -> None:
    with pytest.raises(AnalysisException, match=message):
        spark.sql(f"SELECT * FROM fencepost_deduplicate({arguments})")


def test_fields_of_structs_are_refused(spark: SparkSession, events: str) -> None:
    table = "TABLE(SELECT *, struct(seq) AS head FROM events)"
    with pytest.raises(AnalysisException, match=r"column 'head\.seq': a field of"):
        spark.sql(f"SELECT * FROM fencepost_deduplicate({table}, seq => 'head.seq')")


def test_a_row_that_is_refused_fails_the_query(spark: SparkSession, events: str) -> None:
    spark.sql("SELECT 1L AS pid, 0 AS epoch, 0 AS partition, -5 AS seq").createOrReplaceTempView("bad")
    with pytest.raises(Exception, match=r"column 'seq', row 0: .*-5"):
        spark.sql("SELECT * FROM fencepost_deduplicate(TABLE(bad))").collect()


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def test_the_hour_that_comes_twice(in_berlin: None) -> None:
    """Python uses local time for timestamps; on the way back, PySpark would confuse two hours."""
    kind = TimestampType()
    when = [1_761_433_200 + quarter * 900 for quarter in range(16)]  # around 2025-10-26, 3 in the night
    deep = StructType().add("a", ArrayType(kind)).add("m", MapType(IntegerType(), kind))
    schema = StructType([StructField(name, it) for name, it in TYPES])
    schema.add("at", kind).add("local", TimestampNTZType()).add("deep", deep)
    keeper = GroupJudge(Analyzed(schema=schema, policy=resolve("any_order"), columns=Columns(), types=TYPES))
    first, *_ = [datetime.fromtimestamp(it) for it in when]
    rows = []
    for seq, it in enumerate(when):
        at = kind.fromInternal(it * 1_000_000)
        rows.append((1, 0, 0, seq, at, first, ([at, None], {1: at})))
    rows.append((1, 0, 0, 99, None, None, None))
    for row in rows:
        assert not list(keeper.take(row))
    found = list(keeper.rest())
    assert [kind.toInternal(row[4]) for row in found[:-1]] == [it * 1_000_000 for it in when]
    assert [kind.toInternal(row[6][0][0]) for row in found[:-1]] == [it * 1_000_000 for it in when]
    assert [kind.toInternal(row[6][1][1]) for row in found[:-1]] == [it * 1_000_000 for it in when]
    assert {row[5] for row in found[:-1]} == {first}
    assert found[-1] == rows[-1]
    assert [kind.toInternal(row[4]) for row in rows[:-1]] != [it * 1_000_000 for it in when]  # the corrected error


def test_the_ends_of_the_calendar(in_berlin: None) -> None:
    keeper = GroupJudge(
        Analyzed(schema=StructType().add("at", TimestampType()), policy=resolve("any_order"), columns=Columns())
    )
    for end in (datetime.min, datetime.max):
        [found] = keeper.restored((end,))
        assert found.year == end.year


def test_no_rows(spark: SparkSession, events: str) -> None:
    assert rows_of(spark, "SELECT * FROM fencepost_deduplicate(TABLE(SELECT * FROM events WHERE seq > 99))") == []


def test_a_session_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(RuntimeError, match=r"^no Spark session"):
        register()
