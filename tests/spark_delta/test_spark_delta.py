"""Delta's own implementation reads what jobs write, writes what jobs read, and works on the same table meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from fencepost import state
from pyspark.sql import SparkSession
from support.lake import SCHEMA, expected_of, first_of_each, land, make_job, make_rows, read_sink
from support.spark_jobs import DDL


def land_some(root: Path, *seeds: int) -> None:
    for seed in seeds:
        land(root / "source", f"{seed}.parquet", make_rows(seed, 300))


def run(root: Path, *seeds: int, **arguments: Any) -> None:
    land_some(root, *seeds)
    make_job(root, **arguments).run()


def rows_of(spark: SparkSession, table: Path, where: str = "true") -> pl.DataFrame:
    found = spark.read.format("delta").load(str(table)).where(where).select(*SCHEMA.names)
    return pl.DataFrame(found.toArrow()).sort(SCHEMA.names)


def test_spark_reads_each_version(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, 0, layout="delta")
    first = expected_of(tmp_path)
    run(tmp_path, 1, 2)
    table = tmp_path / "sink"
    polars.testing.assert_frame_equal(rows_of(spark, table), expected_of(tmp_path), check_dtypes=True)
    earlier = spark.read.format("delta").option("versionAsOf", 1).load(str(table))
    assert earlier.count() == len(first)
    kept = expected_of(tmp_path).filter(pl.col("seq") > 50)
    polars.testing.assert_frame_equal(rows_of(spark, table, "seq > 50"), kept)  # by the files' bounds
    history = spark.sql(f"describe history delta.`{table}`").orderBy("version").collect()
    assert [row.version for row in history] == [0, 1, 2]


def test_spark_works_on_the_table_between_runs(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, 0, layout="delta")
    table = f"delta.`{tmp_path / 'sink'}`"
    spark.createDataFrame([(99, 0, 0, 0, "foreign")], DDL).writeTo(table).append()
    run(tmp_path, 1)
    spark.sql(f"optimize {table}")
    run(tmp_path, 2)
    spark.sql(f"alter table {table} set tblproperties ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"delete from {table} where origin like '1:%' or origin = 'foreign'")
    run(tmp_path, 3)
    spark.sql(f"update {table} set origin = 'x' where origin like '2:%'")
    spark.sql(f"vacuum {table} retain 0 hours")
    run(tmp_path, 0)  # its rows are known, deleted or not
    expected = expected_of(tmp_path)
    gone = pl.col("origin").str.starts_with("1:")
    changed = pl.when(pl.col("origin").str.starts_with("2:")).then(pl.lit("x")).otherwise(pl.col("origin"))
    wanted = expected.filter(~gone).with_columns(changed.alias("origin"))
    untracked = pl.col("pid").is_null() | (pl.col("pid") == -1)
    again = pl.DataFrame(make_rows(0, 300)).filter(untracked)  # landed twice: kept twice
    found = rows_of(spark, tmp_path / "sink")
    assert len(found) in (len(wanted), len(wanted) + len(again))
    polars.testing.assert_frame_equal(found.unique().sort(SCHEMA.names), wanted.unique().sort(SCHEMA.names))


def test_a_restore_by_spark_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, 0, layout="delta")
    run(tmp_path, 1)
    spark.sql(f"restore table delta.`{tmp_path / 'sink'}` to version as of 1")
    land_some(tmp_path, 2)
    with pytest.raises(fp.SinkChangedError, match="is a RESTORE"):
        make_job(tmp_path).run()
    state.open(tmp_path / "state").rollback(1)
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(spark, tmp_path / "sink"), expected_of(tmp_path))


@pytest.mark.parametrize(
    ("columns", "properties", "match"),
    [
        (DDL, "'delta.enableChangeDataFeed' = 'true'", "change data feed"),
        (DDL, "'delta.columnMapping.mode' = 'name'", "column mapping"),
        (DDL, "'delta.enableRowTracking' = 'true'", "row tracking"),
        (DDL, "'delta.enableInCommitTimestamps' = 'true'", "timestamps in commits"),
        (DDL, "'delta.constraints.positive' = 'seq >= 0'", "constraints"),
        (f"{DDL}, double int generated always as (seq * 2)", "'a' = 'b'", "generatedColumns"),
        (DDL.replace("pid bigint", "pid bigint not null"), "'a' = 'b'", "column 'pid' has NOT NULL"),
        (DDL.replace("seq int", "seq bigint"), "'a' = 'b'", "column 'seq' of .* integer, in the table .*long"),
    ],
)
def test_tables_of_spark_that_files_cannot_be_added_to(
    spark: SparkSession, tmp_path: Path, columns: str, properties: str, match: str
) -> None:
    where = f"location '{tmp_path / 'sink'}'"
    name = "refused_" + tmp_path.name.replace("-", "_")
    constraint = properties.startswith("'delta.constraints")
    spark.sql(
        f"create table {name} ({columns}) using delta {where}"
        + ("" if constraint else f" tblproperties ({properties})")
    )
    if constraint:
        spark.sql(f"alter table {name} add constraint positive check (seq >= 0)")
    before = DeltaTable(tmp_path / "sink").version()
    land_some(tmp_path, 0)
    with pytest.raises(fp.SinkError, match=match):
        make_job(tmp_path).run()
    assert DeltaTable(tmp_path / "sink").version() == before


def test_a_table_of_spark_with_deletion_vectors_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(
        f"create table vectors ({DDL}, day date) using delta partitioned by (day) location '{tmp_path / 'sink'}' "
        "tblproperties ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '2')"
    )
    for number in range(4):
        land(tmp_path / "source" / f"day=2026-11-{10 + number}", f"{number}.parquet", make_rows(number, 300))
        make_job(tmp_path).run()
    spark.sql("delete from vectors where day = date'2026-11-11' and seq < 30")
    spark.catalog.refreshTable("vectors")
    kept = pl.DataFrame(spark.sql(f"select {', '.join(SCHEMA.names)} from vectors").toArrow())
    rows = first_of_each(pl.DataFrame(pa.concat_tables([make_rows(number, 300) for number in range(4)])))
    gone = pl.col("origin").str.starts_with("1:") & (pl.col("seq") < 30)
    polars.testing.assert_frame_equal(kept.sort("origin"), rows.filter(~gone).sort("origin"))


def test_a_stream_of_the_table_sees_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    run(tmp_path, 0, layout="delta")
    for seed in (1, 2):
        run(tmp_path, seed)
        query = (
            spark.readStream.format("delta")
            .load(str(tmp_path / "sink"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "copy"))
        )
        query.awaitTermination()
    copied = pl.DataFrame(spark.read.parquet(str(tmp_path / "copy")).select(*SCHEMA.names).toArrow())
    polars.testing.assert_frame_equal(copied.sort(SCHEMA.names), expected_of(tmp_path))


# -- Tables of Spark as sources


def append(spark: SparkSession, root: Path, *seeds: int, **options: str) -> None:
    for seed in seeds:
        frame = spark.createDataFrame(make_rows(seed, 300)).coalesce(1)
        frame.write.format("delta").mode("append").options(**options).save(str(root / "source"))


def assert_kept(root: Path, *seeds: int) -> None:
    rows = pl.DataFrame(pa.concat_tables([make_rows(seed, 300) for seed in seeds]))
    polars.testing.assert_frame_equal(
        read_sink(root).select(SCHEMA.names).sort("origin"), first_of_each(rows).sort("origin")
    )


def test_rows_that_spark_appends_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    append(spark, tmp_path, 0, 1)
    make_job(tmp_path).run()
    spark.sql(f"optimize delta.`{tmp_path / 'source'}`")
    append(spark, tmp_path, 2)
    spark.sql(f"alter table delta.`{tmp_path / 'source'}` set tblproperties ('delta.enableDeletionVectors' = 'true')")
    append(spark, tmp_path, 3)
    assert make_job(tmp_path).run().rows == 600
    assert_kept(tmp_path, 0, 1, 2, 3)
    spark.sql(f"delete from delta.`{tmp_path / 'source'}` where seq = 7")
    with pytest.raises(fp.SourceError, match=r"\(DELETE\) adds and removes rows"):
        make_job(tmp_path).run()


def test_rows_that_spark_has_deleted_by_vectors_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    append(spark, tmp_path, 0, 1)
    spark.sql(f"alter table delta.`{tmp_path / 'source'}` set tblproperties ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"delete from delta.`{tmp_path / 'source'}` where seq % 7 = 3 or pid is null")
    report = make_job(tmp_path).run()
    there = pl.DataFrame(pa.concat_tables([make_rows(seed, 300) for seed in range(2)])).filter(
        (pl.col("seq") % 7 != 3) & pl.col("pid").is_not_null()
    )
    assert report.rows == len(there)
    polars.testing.assert_frame_equal(
        read_sink(tmp_path).select(SCHEMA.names).sort("origin"), first_of_each(there).sort("origin")
    )


def test_spark_reads_columns_that_jobs_add_and_widen(spark: SparkSession, tmp_path: Path) -> None:
    def land_with(name: str, first: int, **columns: Any) -> None:
        seqs = pa.array(range(first, first + 3), pa.int32())
        identity = {"pid": [7] * 3, "epoch": [0] * 3, "partition": [0] * 3, "seq": seqs}
        land(tmp_path / "source", name, pa.table(identity | columns))

    numbers, table = [1, 2, 3], f"delta.`{tmp_path / 'sink'}`"
    land_with("0.parquet", 0, x=pa.array(numbers, pa.int32()), y=pa.array(numbers, pa.float32()))
    make_job(tmp_path, layout="delta").run()
    spark.sql(f"alter table {table} set tblproperties ('delta.enableTypeWidening' = 'true')")
    land_with("1.parquet", 3, x=pa.array([1 << 40] * 3), y=pa.array([0.1] * 3), z=["new"] * 3)
    make_job(tmp_path, schema="merge").run()
    found = spark.sql(f"select x, y, z from {table} order by seq")
    assert [field.dataType.simpleString() for field in found.schema] == ["bigint", "double", "string"]
    rows = [tuple(row) for row in found.collect()]
    assert rows == [(it, float(it), None) for it in numbers] + [(1 << 40, 0.1, "new")] * 3
    spark.sql(f"insert into {table} (pid, epoch, partition, seq, x) values (8, 0, 0, 0, 5)")
    land_with("2.parquet", 6, x=pa.array(numbers, pa.int32()))
    make_job(tmp_path, schema="merge").run()
    assert spark.sql(f"select sum(x) from {table}").collect()[0][0] == 6 + 3 * (1 << 40) + 5 + 6
