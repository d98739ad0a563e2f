"""`explain(df)`: all rows with verdict and reason, as `deduplicate` and `fencepost.explain` judge them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from conftest import plan_of
from fencepost_spark import deduplicate, explain
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DDL = "pid long, epoch short, partition int, seq int, copy int"
IDENTITY = ["pid", "epoch", "partition", "seq"]
ROWS: list[tuple[Any, ...]] = [
    (pid, pid % 2, partition, seq, copy)
    for copy in range(3)
    for pid in range(4)
    for partition in range(2)
    for seq in range(50)
    if (seq + copy) % 3
] + [(None, None, None, None, copy) for copy in range(20)]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, DDL).repartition(3)


def counts(df: DataFrame) -> dict[str, int]:
    return {row.verdict: row["count"] for row in df.groupBy("verdict").count().collect()}


def test_all_rows_have_the_verdict_that_decides_what_deduplicate_keeps(df: DataFrame) -> None:
    found = explain(df)
    assert found.columns == [*df.columns, "verdict", "reason"]
    assert [field.dataType.simpleString() for field in found.schema[-2:]] == ["string", "string"]
    rows = [tuple(row) for row in found.collect()]
    assert Counter(row[:5] for row in rows) == Counter(ROWS)
    distinct = len({row[:4] for row in ROWS if row[0] is not None})
    assert counts(found) == {"ACCEPTED": distinct, "DUPLICATE": len(ROWS) - 20 - distinct, "UNTRACKED": 20}
    kept = sorted(map(str, deduplicate(df).collect()))
    assert sorted(map(str, found.where("verdict in ('ACCEPTED', 'UNTRACKED')").select(df.columns).collect())) == kept


def test_reasons_are_those_of_the_core(spark: SparkSession) -> None:
    """In the order of arrival, under policies that refuse for different reasons; rows of a DataFrame have no number."""
    rows = [(7, epoch, 0, seq) for epoch, seq in ((0, 0), (0, 1), (0, 1), (0, 5), (0, 4), (1, 0), (0, 6), (1, 1))]
    rows += [(None, None, None, None)]
    frame = spark.createDataFrame([(*row, at) for at, row in enumerate(rows)], DDL).repartition(2)
    table = pa.table(dict(zip(IDENTITY, map(list, zip(*rows, strict=True)), strict=True)))
    for policy in ("in_order", "kafka", "any_order", fp.Policy.any_order().replace(epochs="fence")):
        expected = fp.explain(table, policy).select(["verdict", "reason"]).to_pylist()
        found = explain(frame, policy, order_by="copy").orderBy("copy").select("verdict", "reason").collect()
        assert [row.verdict for row in found] == [row["verdict"] for row in expected]
        said = [row.reason for row in found], [row["reason"] for row in expected]
        ours, theirs = (["repeats" if it.startswith("repeats ") else it for it in reasons] for reasons in said)
        assert ours == theirs


def test_it_is_lazy_and_every_action_agrees(df: DataFrame) -> None:
    found = explain(df)
    first = sorted(map(str, found.collect()))
    assert sorted(map(str, found.collect())) == first
    assert found.count() == len(ROWS)
    repeats = found.where("verdict = 'DUPLICATE'")
    assert repeats.where("pid = 3").count() == len([it for it in first if "pid=3" in it and "'DUPLICATE'" in it])
    assert repeats.select("reason").distinct().count() == 1
    joined = repeats.join(found.where("verdict = 'ACCEPTED'").withColumnRenamed("copy", "kept_copy"), IDENTITY)
    assert joined.where(F.col("copy") > F.col("kept_copy")).count() == repeats.count()


def test_co_located_rows_are_not_shuffled(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(7, 0, 0, seq % 9, seq) for seq in range(20)], DDL).coalesce(1)
    found = explain(frame, co_located=True)
    assert "Exchange" not in plan_of(found.select("verdict"))
    assert counts(found) == {"ACCEPTED": 9, "DUPLICATE": 11}
    with pytest.raises(fp.BatchError, match="is in two tasks"):
        explain(frame.repartition(2), co_located=True, verify=True)


def test_what_is_refused(spark: SparkSession, df: DataFrame) -> None:
    for name in ("verdict", "Reason"):
        with pytest.raises(fp.BatchError, match=f"column '{name}': .*already has a column"):
            explain(df.withColumnRenamed("copy", name))
    assert explain(df.withColumnRenamed("copy", "code")).columns == [*IDENTITY, "code", "verdict", "reason"]
    with pytest.raises(fp.PolicyError, match="pass order_by"):
        explain(df, "in_order")
    with pytest.raises(fp.BatchError, match="column 'seq': missing"):
        explain(df.drop("seq"))
    with pytest.raises(TypeError, match=r"^explain\(df\): expected a Spark DataFrame"):
        explain(pa.table({}))
    stream = spark.readStream.format("rate").load().selectExpr("1L pid", "0S epoch", "0 partition", "value seq")
    with pytest.raises(fp.PolicyError, match=r"explain\(\) .*streaming DataFrame"):
        explain(stream)
