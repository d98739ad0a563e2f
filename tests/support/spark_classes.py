"""A short life of Spark, with some of everything that tests do.

    PYTHONPATH=tests python -m support.spark_classes

The Makefile lets the JVM archive the classes that it loads meanwhile: the JVMs of tests map them, which takes half of
the time of loading them from the jars.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.spark_session import configured, of_driver, of_queries, use_this_python


def main() -> None:
    use_this_python()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        settings = {"spark.ui.enabled": "false", **of_driver(home, "1g"), **of_queries(partitions=2)}
        session = configured(SparkSession.builder.master("local[2,2]"), settings).getOrCreate()
        rows = files(session, home)
        queries(session, rows)
        python(rows)
        stream(session, home)
        end(session)


def files(session: SparkSession, home: Path) -> DataFrame:
    rows = session.range(20).selectExpr("id", "id % 3 as pid", "cast(id as string) as name", "array(id) as list")
    rows.write.partitionBy("pid").parquet(str(home / "parquet"))
    rows.write.json(str(home / "json"))
    session.read.json(str(home / "json")).count()
    return session.read.option("basePath", str(home / "parquet")).parquet(str(home / "parquet"))


def queries(session: SparkSession, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("rows")
    session.sql("select pid, sum(id), max(name) from rows where id > 3 group by pid order by pid").toPandas()
    session.sql("select *, row_number() over (partition by pid order by id desc) as n from rows").toArrow()
    rows.join(session.createDataFrame([(1, "x")], "pid int, other string"), "pid", "left").orderBy("id").collect()
    rows.unionByName(rows).dropDuplicates(["id"]).cache().filter(F.col("name").isNotNull()).count()
    rows.withColumn("struct", F.struct("id", "name")).repartitionByRange(2, "id").sortWithinPartitions("id").explain()


def python(rows: DataFrame) -> None:
    @F.pandas_udf("long")
    def doubled(ids: pd.Series) -> pd.Series:
        return ids * 2

    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    rows.select(doubled("id")).collect()
    rows.select("id").mapInArrow(arrow, "id long").collect()
    rows.select("id", "pid").groupBy("pid").applyInPandas(lambda group: group, "id long, pid int").collect()
    rows.rdd.map(lambda row: row.id).collect()


def stream(session: SparkSession, home: Path) -> None:
    found = session.readStream.schema("id long").parquet(str(home / "parquet"))
    begun = found.writeStream.foreachBatch(lambda batch, _: batch.count()).trigger(availableNow=True)
    begun.option("checkpointLocation", str(home / "checkpoint")).start().awaitTermination()


def end(session: SparkSession) -> None:
    """And wait for the JVM, which writes the archive as it ends."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
