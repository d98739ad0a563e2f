"""`verdict_udf` as a column: its input, its output, and changes of its execution by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import fencepost_spark
import pandas as pd
import pyarrow as pa
import pytest
from conftest import settings
from fencepost_spark import verdict_udf, verdicts
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

KINDS = ("arrow", "pandas")
NAMES = ("pid", "epoch", "partition", "seq")
DDL = "pid long, epoch short, partition int, seq int"
STREAM = [(7, 0, 0, seq) for seq in (0, 1, 2, 2, 5, 3, 3, 9)] + [(None, None, None, None), (-1, None, 0, 4)]
EXPECTED = [0, 0, 0, 1, 0, 0, 1, 0, 6, 6]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], ddl: str = DDL) -> DataFrame:
    """One task, in the order of `rows`."""
    return spark.createDataFrame(rows, ddl).coalesce(1)


def judged(df: DataFrame, *names: str, **options: Any) -> list[Any]:
    verdict = verdict_udf(options.pop("policy", "any_order"), co_located=True, **options)
    return [row.verdict for row in df.select(verdict(*(names or NAMES)).alias("verdict")).collect()]


def test_each_row_gets_its_verdict(spark: SparkSession, kind: Any) -> None:
    assert judged(frame(spark, STREAM), kind=kind) == EXPECTED


def test_the_result_is_a_tinyint_beside_the_rows(spark: SparkSession, kind: Any) -> None:
    df = frame(spark, STREAM).withColumn("verdict", verdict_udf(co_located=True, kind=kind)(*NAMES))
    assert df.schema["verdict"].dataType.simpleString() == "tinyint"
    assert [tuple(row)[:4] for row in df.collect()] == STREAM
    assert df.groupBy("verdict").count().sort("verdict").collect() == [(0, 6), (1, 2), (6, 2)]


def test_composites_are_given_part_by_part(spark: SparkSession, kind: Any) -> None:
    columns = fp.Columns(pid=("cluster", "pid"), partition=("topic", "partition"))
    assert columns.names == ("cluster", "pid", "epoch", "topic", "partition", "seq")
    rows = [("a", 7, 0, "t", 0, 0), ("a", 7, 0, "u", 0, 0), ("b", 7, 0, "t", 0, 0), ("a", 7, 0, "t", 0, 0)]
    df = frame(spark, rows, "cluster string, pid long, epoch short, topic string, partition int, seq int")
    assert judged(df, *columns.names, columns=columns, kind=kind) == [0, 0, 0, 1]


def test_policies_without_epochs_take_no_epoch(spark: SparkSession, kind: Any) -> None:
    df = frame(spark, [("t", 0, 5), ("t", 0, 5), ("u", 0, 5)], "topic string, partition int, offset long")
    assert judged(df, "topic", "partition", "offset", policy="kafka_offsets", kind=kind) == [0, 1, 0]


def test_detail_names_the_sequences_jumped_over(spark: SparkSession, kind: Any) -> None:
    rows = [
        (7, 0, 0, 0),
        (7, 0, 0, 3),
        (8, 0, 0, 0),
        (7, 0, 0, 2),
        (8, 0, 0, 9),
        (8, 0, 0, 9),
        (7, 1, 0, 4),
        (7, 1, 0, 6),
    ]
    found = [tuple(row) for row in judged(frame(spark, rows), kind=kind, detail=True)]
    none = (None, None)
    # The row 2 came within the batch: of 1..2 only 1 is still missing, and the row above that is 2.
    assert found == [(0, *none), (0, *none), (0, *none), (0, 1, 1), (0, 1, 8), (1, *none), (0, *none), (0, 5, 5)]


def test_detail_sees_a_hole_before_it_is_closed(spark: SparkSession) -> None:
    with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=1):
        rows = [(7, 0, 0, 0), (7, 0, 0, 3), (7, 0, 0, 2), (7, 0, 0, 1)]
        found = [tuple(row) for row in judged(frame(spark, rows), detail=True)]
    assert found == [(0, None, None), (0, 1, 2), (0, None, None), (0, None, None)]


def test_detail_across_the_wrap_and_without_epochs(spark: SparkSession) -> None:
    small = fp.Policy.any_order().replace(wrap=16)
    found = judged(frame(spark, [(7, 0, 0, 14), (7, 0, 0, 1)]), policy=small, detail=True)
    assert [tuple(row) for row in found] == [(0, None, None), (0, 15, 0)]
    offsets = fp.Policy.kafka_offsets().replace(gaps="report")
    df = frame(spark, [("t", 5), ("t", 9)], "topic string, offset long")
    columns = fp.Columns(pid="topic", epoch=None, partition=None, seq="offset")
    found = judged(df, "topic", "offset", policy=offsets, columns=columns, detail=True)
    assert [tuple(row) for row in found] == [(0, None, None), (0, 6, 8)]


def test_detail_without_holes_is_null(spark: SparkSession, kind: Any) -> None:
    df = frame(spark, STREAM[:3]).select(verdict_udf(co_located=True, kind=kind, detail=True)(*NAMES).alias("verdict"))
    assert (
        df.schema["verdict"].dataType.simpleString() == "struct<verdict:tinyint,missing_from:bigint,missing_to:bigint>"
    )
    assert [tuple(row.verdict) for row in df.collect()] == [(0, None, None)] * 3


def test_co_location_must_be_stated() -> None:
    with pytest.raises(TypeError, match="co_located"):
        verdict_udf()  # type: ignore[call-arg]
    with pytest.raises(fp.PolicyError, match=r"verdict_udf needs co_located=True"):
        verdict_udf(co_located=False)


def test_arguments_are_checked_on_the_driver() -> None:
    with pytest.raises(fp.PolicyError, match="unknown policy 'any'"):
        verdict_udf("any", co_located=True)
    with pytest.raises(fp.PolicyError, match=r"kind='polars': expected 'arrow' or 'pandas'$"):
        verdict_udf(co_located=True, kind="polars")  # type: ignore[arg-type]
    with pytest.raises(fp.PolicyError, match="ignores epochs"):
        verdict_udf("watermark", co_located=True, columns=fp.Columns())


def test_each_call_gives_a_fresh_nondeterministic_udf(kind: Any) -> None:
    first, second = (verdict_udf(co_located=True, kind=kind) for _ in range(2))
    assert first is not second
    assert not first.deterministic


def test_no_filter_is_moved_beneath(spark: SparkSession, kind: Any) -> None:
    """Else the row 0 would not have been seen, and neither would the hole."""
    df = frame(spark, STREAM).withColumn("verdict", verdict_udf(co_located=True, kind=kind)(*NAMES))
    assert [row.verdict for row in df.where("seq = 2").collect()] == [0, 1]


def test_it_is_evaluated_once_a_row(spark: SparkSession) -> None:
    """Were it evaluated twice for its two uses, by one state or by two, the sums would differ."""
    df = frame(spark, [(7, 0, 0, seq) for seq in range(1000)])
    df = df.withColumn("verdict", verdict_udf(co_located=True)(*NAMES))
    df = df.where("verdict = 0").withColumn("twice", F.col("verdict") + F.col("verdict"))
    assert df.agg(F.sum("twice"), F.count("*")).collect() == [(0, 1000)]


def test_a_worker_that_is_used_again_begins_afresh(spark: SparkSession, kind: Any) -> None:
    """Both tasks of both actions hold the same rows: a state that survived would call them duplicates."""
    df = spark.range(0, 8, 1, 8).selectExpr("7L pid", "0S epoch", "0 partition", "0 seq")
    for _ in range(2):
        assert judged(df, kind=kind) == [0] * 8


def test_it_has_a_name_in_sql(spark: SparkSession, kind: Any) -> None:
    spark.udf.register("verdict_of", verdict_udf(co_located=True, kind=kind))
    frame(spark, STREAM).createOrReplaceTempView("stream")
    rows = spark.sql("select verdict_of(pid, epoch, partition, seq) as verdict from stream").collect()
    assert [row.verdict for row in rows] == EXPECTED


def test_settings_that_never_end_are_refused(spark: SparkSession) -> None:
    with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=0):
        with settings(spark, spark_sql_execution_arrow_pythonUDF_columnarInput_enabled="false"):
            assert judged(frame(spark, STREAM)) == EXPECTED
        with pytest.raises(
            fp.PolicyError, match=r"spark\.sql\.execution\.arrow\.maxRecordsPerBatch=0 with columnar input"
        ):
            verdict_udf(co_located=True)


BAD_ROWS = [
    ((7, 0, 0, None), DDL, "column 'seq', row 2: "),
    *(  # the rule book, too, has these queries in `make test`
        pytest.param(row, DDL, f"column '{column}', row 2: ", marks=pytest.mark.matrix)
        for row, column in (
            ((7, -1, 0, 3), "epoch"),
            ((7, None, 0, 3), "epoch"),
            ((7, 0, None, 3), "partition"),
            ((-2, 0, 0, 3), "pid"),
        )
    ),
    ((7, 0, 0, 2**31), "pid long, epoch short, partition int, seq long", "column 'seq', row 2: "),
]


@pytest.mark.parametrize(("row", "ddl", "message"), BAD_ROWS)
def test_a_bad_row_is_named_in_the_drivers_message(
    spark: SparkSession, row: tuple[Any, ...], ddl: str, message: str
) -> None:
    df = frame(spark, [(7, 0, 0, 0), (7, 0, 0, 1), row], ddl)
    with pytest.raises(PythonException) as error:
        judged(df)
    assert f"BatchError: [FP101] {message}" in str(error.value)
    values = ", ".join(f"{name}={value!r}" for name, value in zip(NAMES, row, strict=True))
    assert f"(row 2 of Spark partition 0; {values})" in str(error.value)


def test_rows_are_counted_over_all_batches_of_a_task(spark: SparkSession, kind: Any) -> None:
    df = frame(spark, [(7, 0, 0, seq) for seq in range(20)] + [(7, 0, 0, -1)])
    with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=6), pytest.raises(PythonException) as error:
        judged(df, kind=kind)
    assert "column 'seq', row 20: " in str(error.value)
    assert "(row 20 of Spark partition 0; pid=7, epoch=0, partition=0, seq=-1)" in str(error.value)


def test_a_wrong_type_is_named(spark: SparkSession, kind: Any) -> None:
    with pytest.raises(PythonException, match=r"BatchError: \[FP101\] column 'pid': "):
        judged(frame(spark, [(7.0, 0, 0, 0)], "pid double, epoch short, partition int, seq int"), kind=kind)


def test_the_number_of_columns_is_checked(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match="the UDF takes pid, epoch, partition, seq in this order"):
        judged(frame(spark, STREAM), "pid", "partition", "seq")


def test_large_integers_beside_nulls_are_exact_or_refused(spark: SparkSession) -> None:
    """pandas has no integers with nulls: 2^53 and 2^53 + 1 would be the same float."""
    rows = [("t", 0, 2**53), ("t", 0, 2**53 + 1), (None, 0, None)]
    df = frame(spark, rows, "topic string, partition int, offset long")
    names = ("topic", "partition", "offset")
    assert judged(df, *names, policy="kafka_offsets") == [0, 0, 6]
    for prefers_nullable in ("false", "true"):
        with (
            settings(spark, spark_sql_execution_pythonUDF_pandas_preferIntExtensionDtype=prefers_nullable),
            pytest.raises(PythonException, match=r"column 'offset': pandas .* 2\^53"),
        ):
            judged(df, *names, policy="kafka_offsets", kind="pandas")


def _raise() -> None:
    raise OSError("once")


def _exit() -> None:
    import os

    os._exit(1)


@pytest.mark.parametrize(
    ("kind", "die"),
    [
        ("arrow", _exit),
        ("pandas", _raise),
        pytest.param("arrow", _raise, marks=pytest.mark.matrix),
        pytest.param("pandas", _exit, marks=pytest.mark.matrix),
    ],
)
def test_a_task_that_fails_once_is_tried_again_with_a_fresh_state(
    spark: SparkSession, tmp_path: Path, kind: Any, die: Callable[[], None]
) -> None:
    marker = tmp_path / "failed"
    df = frame(spark, [(7, 0, 0, seq % 1000) for seq in range(2000)])
    with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=100):
        verdict = verdict_udf(co_located=True, kind=kind)
        seq = F.udf(_once(marker, die), "int", useArrow=False)("seq").alias("seq")
        counts = (
            df.select("pid", "epoch", "partition", seq)
            .select(verdict(*NAMES).alias("verdict"))
            .groupBy("verdict")
            .count()
            .sort("verdict")
        )
        assert counts.collect() == [(0, 1000), (1, 1000)]
    assert marker.exists()


def _once(marker: Path, die: Callable[[], None]) -> Callable[[int], int]:
    def pass_on(seq: int) -> int:
        if seq == 700 and not marker.exists():
            marker.touch()
            die()
        return seq

    return pass_on


def test_a_worker_of_another_version_refuses(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "__version__", "0.0.0")
    with pytest.raises(PythonException, match=r"the driver runs fencepost-spark 0\.0\.0, this worker "):
        judged(frame(spark, STREAM))


def test_the_wheel_beneath_has_the_same_version() -> None:
    assert fencepost_spark.__version__ == fp.__version__


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (pd.Series([1, 2], dtype="int32"), pa.array([1, 2], pa.int32())),
        (pd.Series([1.0, None]), pa.array([1, None], pa.int64())),
        (pd.Series([1.5, None]), pa.array([1.5, None], pa.float64())),
        (pd.Series([1.0, 2.0]), pa.array([1.0, 2.0], pa.float64())),
        (pd.Series([1, None], dtype="Int64"), pa.array([1, None], pa.int64())),
        (pd.Series([2**60, None], dtype="object"), pa.array([2**60, None], pa.int64())),
        (pd.Series([None, b"x"], dtype="object"), pa.array([None, b"x"], pa.binary())),
    ],
)
def test_series_become_the_arrays_they_came_from(series: pd.Series, expected: pa.Array) -> None:
    assert verdicts._from_series(series, "seq") == expected
