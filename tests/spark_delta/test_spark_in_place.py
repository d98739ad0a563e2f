"""Delta's own implementation on tables that are deduplicated in place: it reads the commits, and works on
top of it; then another run, and no good row is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import polars.testing
import pytest
from deltalake import DeltaTable, QueryBuilder
from fencepost.lake import DedupJob
from fencepost_spark import SparkEngine
from pyspark.sql import DataFrame, SparkSession
from support.lake import IDENTITY, IS_TRACKED, SCHEMA, first_of_each, make_rows
from support.spark_jobs import DDL

ROOT = Path(__file__).parent.parent.parent
VECTORS = "'delta.enableDeletionVectors' = 'true'"
WAYS = {"vectors": VECTORS, "files": "'delta.enableDeletionVectors' = 'false'"}


def make_table(spark: SparkSession, root: Path, way: str, more: str = "", columns: str = DDL, by: str = "") -> str:
    name = f"delta.`{root / 'table'}`"
    properties = ", ".join(filter(None, (WAYS[way], more)))
    spark.sql(f"create table {name} ({columns}) using delta {by} tblproperties ({properties})")
    return name


def frame_of(spark: SparkSession, *seeds: int, count: int = 300) -> DataFrame:
    rows = [row for seed in seeds for row in make_rows(seed, count).to_pylist()]
    return spark.createDataFrame([tuple(row.values()) for row in rows], DDL).coalesce(1)


def append(spark: SparkSession, root: Path, *seeds: int) -> None:
    for seed in seeds:
        frame_of(spark, seed).write.format("delta").mode("append").save(str(root / "table"))


def make_job(root: Path, **arguments: Any) -> DedupJob:
    return DedupJob(root / "table", root / "state", root / "table", **arguments)


def rows_of(spark: SparkSession, root: Path, **options: Any) -> pl.DataFrame:
    """As Spark reads them; delta-rs and Polars must read the same."""
    path = str(root / "table")
    found = pl.DataFrame(spark.read.format("delta").options(**options).load(path).select(*SCHEMA.names).toArrow())
    found = found.sort(SCHEMA.names)
    if not options:
        count = spark.sql(f"select count(*), count(seq) from delta.`{path}`").head()
        assert tuple(count) == (len(found), len(found))
        by_polars = pl.scan_delta(path).select(SCHEMA.names).collect()
        for others in (rows_by_rust(root), by_polars.sort(SCHEMA.names)):
            polars.testing.assert_frame_equal(others, found, check_dtypes=False)
    return found


def rows_by_rust(root: Path, version: int | None = None) -> pl.DataFrame:
    """As delta-rs reads them, in a hundredth of the time of Spark: enough for versions that Spark has written."""
    table = QueryBuilder().register("t", DeltaTable(root / "table", version=version))
    found = pl.DataFrame(table.execute(f"select {', '.join(SCHEMA.names)} from t").read_all())
    return found.cast(dict(pl.DataFrame(SCHEMA.empty_table()).schema)).sort(SCHEMA.names)


def expected_of(*seeds: int) -> pl.DataFrame:
    return first_of_each(pl.concat(pl.DataFrame(make_rows(seed, 300)) for seed in seeds)).sort(SCHEMA.names)


def assert_clean(spark: SparkSession, root: Path, before: pl.DataFrame) -> pl.DataFrame:
    """One row of each identity that there was, and every row without one. Gives the rows."""
    found = rows_of(spark, root)
    tracked = found.filter(IS_TRACKED)
    assert tracked.select(IDENTITY).is_unique().all()
    wanted = before.filter(IS_TRACKED).select(IDENTITY).unique().sort(IDENTITY)
    polars.testing.assert_frame_equal(tracked.select(IDENTITY).sort(IDENTITY), wanted)
    untracked = before.filter(~IS_TRACKED).sort(SCHEMA.names)
    polars.testing.assert_frame_equal(found.filter(~IS_TRACKED), untracked)
    return found


@pytest.mark.parametrize("way", ["vectors", pytest.param("files", marks=pytest.mark.matrix)])
def test_spark_reads_each_version(spark: SparkSession, tmp_path: Path, way: str) -> None:
    name = make_table(spark, tmp_path, way)
    append(spark, tmp_path, 0, 1)
    make_job(tmp_path, engine=SparkEngine(spark)).run()
    polars.testing.assert_frame_equal(rows_of(spark, tmp_path), expected_of(0, 1))
    append(spark, tmp_path, 2)
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(spark, tmp_path), expected_of(0, 1, 2))
    first = rows_of(spark, tmp_path, versionAsOf=3)
    polars.testing.assert_frame_equal(first, expected_of(0, 1))
    assert len(rows_by_rust(tmp_path, version=2)) == 600
    history = [row.operation for row in spark.sql(f"describe history {name}").orderBy("version").collect()]
    assert history == ["CREATE TABLE", "WRITE", "WRITE", "DEDUPLICATE", "WRITE", "DEDUPLICATE"]
    some = spark.sql(f"select {', '.join(SCHEMA.names)} from {name} where seq > 50").toArrow()
    wanted = expected_of(0, 1, 2).filter(pl.col("seq") > 50)
    polars.testing.assert_frame_equal(pl.DataFrame(some).sort(SCHEMA.names), wanted)


MOVES = ("reorg table {} apply (purge)", "optimize {}", "vacuum {} retain 0 hours")


@pytest.mark.parametrize("commands", [MOVES, *(pytest.param((it,), marks=pytest.mark.matrix) for it in MOVES)])
def test_rows_that_spark_moves_are_known(spark: SparkSession, tmp_path: Path, commands: tuple[str, ...]) -> None:
    """The purge writes each file again without its vector, then they become one, then those before are removed."""
    name = make_table(spark, tmp_path, "vectors")
    append(spark, tmp_path, 0, 1)
    make_job(tmp_path).run()
    for command in commands:
        spark.sql(command.format(name))
        polars.testing.assert_frame_equal(rows_by_rust(tmp_path), expected_of(0, 1))
    append(spark, tmp_path, 2)
    make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_of(spark, tmp_path), expected_of(0, 1, 2))


@pytest.mark.parametrize(
    "command",
    [
        "delete from {} where seq < 20",
        pytest.param("update {} set origin = 'x' where seq = 3", marks=pytest.mark.matrix),
        pytest.param(
            "merge into {} t using more s on t.origin = s.origin when matched then update set seq = t.seq + 1000 "
            "when not matched then insert *",
            marks=pytest.mark.matrix,
        ),
        pytest.param("restore table {} to version as of 1", marks=pytest.mark.matrix),
        pytest.param("insert overwrite {} select * from more", marks=pytest.mark.matrix),
    ],
)
def test_rows_that_spark_rewrites(spark: SparkSession, tmp_path: Path, command: str) -> None:
    """The state requires a rebase, which removes only repeats; rows that were deleted may come again."""
    name = make_table(spark, tmp_path, "vectors")
    append(spark, tmp_path, 0, 1)
    make_job(tmp_path).run()
    frame_of(spark, 1, 3).createOrReplaceTempView("more")
    spark.sql(command.format(name, name))
    append(spark, tmp_path, 2)
    before = rows_by_rust(tmp_path)
    with pytest.raises(fp.SourceError, match="removes rows"):
        make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_by_rust(tmp_path), before)
    make_job(tmp_path).rebase()
    before = assert_clean(spark, tmp_path, before)
    append(spark, tmp_path, 0)
    make_job(tmp_path).run()
    assert_clean(spark, tmp_path, pl.concat([before, pl.DataFrame(make_rows(0, 300))]))


def test_vectors_of_spark_and_ours_on_the_same_files(spark: SparkSession, tmp_path: Path) -> None:
    name = make_table(spark, tmp_path, "vectors")
    append(spark, tmp_path, 0)
    spark.sql(f"delete from {name} where seq % 5 = 0")
    before = rows_by_rust(tmp_path)
    make_job(tmp_path).run()
    assert_clean(spark, tmp_path, before)
    spark.sql(f"delete from {name} where seq % 7 = 0")
    append(spark, tmp_path, 2)
    before = rows_by_rust(tmp_path)
    with pytest.raises(fp.SourceError, match="removes rows"):
        make_job(tmp_path).run()
    polars.testing.assert_frame_equal(rows_by_rust(tmp_path), before)
    make_job(tmp_path).rebase()
    assert_clean(spark, tmp_path, before)
    spark.sql(f"reorg table {name} apply (purge)")
    assert not any(file.cardinality() for file in vectors_of(tmp_path))
    append(spark, tmp_path, 0)
    before = rows_by_rust(tmp_path)
    make_job(tmp_path).run()
    assert_clean(spark, tmp_path, before)


def vectors_of(root: Path) -> list[Any]:
    from fencepost.state.delta_log import live_files
    from fencepost.state.stores import LocalStore
    from fencepost.state.vectors import read_vector, rows_of

    live = live_files(LocalStore(root / "table"), DeltaTable(root / "table").version()).values()
    found = [it["deletionVector"] for it in live if "deletionVector" in it]
    return [rows_of(read_vector(LocalStore(root / "table"), it)) for it in found]


@pytest.mark.parametrize("way", WAYS)
def test_a_change_of_the_table_between_judging_and_writing(
    spark: SparkSession, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.state.in_place import InPlace

    name = make_table(spark, tmp_path, way)
    append(spark, tmp_path, 0, 1)
    real, acts = InPlace._write, [f"optimize {name}"]

    def slower(*arguments: Any) -> None:
        if acts:
            spark.sql(acts.pop())
        real(*arguments)

    monkeypatch.setattr(InPlace, "_write", slower)
    assert make_job(tmp_path).run().version == 2
    assert_clean(spark, tmp_path, pl.concat(pl.DataFrame(make_rows(seed, 300)) for seed in (0, 1)))


@pytest.mark.parametrize("way", ["vectors", pytest.param("files", marks=pytest.mark.matrix)])
def test_partitions_checkpoints_and_rules(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """Names that are written otherwise in the log than on the disk, checkpoints of both kinds, and rules for columns,
    which hold for some rows where they hold for all."""
    columns = f"{DDL.replace('seq int', 'seq int not null')}, day string, double int generated always as (seq * 2)"
    more = "'delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = 'v2'"
    name = make_table(spark, tmp_path, way, more, columns, "partitioned by (day)")
    spark.sql(f"alter table {name} add constraint positive check (seq >= 0)")
    names = ", ".join(SCHEMA.names)
    for seed in range(2):
        frame_of(spark, seed).createOrReplaceTempView("more")
        day = "case seq % 3 when 0 then 'a b=%c/d' when 1 then 'x' end"
        spark.sql(f"insert into {name} ({names}, day) select {names}, {day} from more")
        make_job(tmp_path).run()
    assert len(list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.*"))) > 1
    found = pl.DataFrame(spark.sql(f"select {names}, day, double from {name}").toArrow())
    polars.testing.assert_frame_equal(found.select(SCHEMA.names).sort(SCHEMA.names), expected_of(0, 1))
    assert (found["double"] == 2 * found["seq"]).all()
    spark.sql(f"delete from {name} where seq = 1")
    make_job(tmp_path).rebase()
    after = pl.DataFrame(spark.sql(f"select {names} from {name}").toArrow())
    polars.testing.assert_frame_equal(after.sort(SCHEMA.names), expected_of(0, 1).filter(pl.col("seq") != 1))


def test_a_table_whose_vectors_are_allowed_later(spark: SparkSession, tmp_path: Path) -> None:
    name = make_table(spark, tmp_path, "files")
    append(spark, tmp_path, 0, 1)
    make_job(tmp_path).run()
    spark.sql(f"alter table {name} set tblproperties ({VECTORS})")
    append(spark, tmp_path, 2)
    make_job(tmp_path).run()
    assert list((tmp_path / "table").glob("*.bin"))
    polars.testing.assert_frame_equal(rows_of(spark, tmp_path), expected_of(0, 1, 2))


def test_a_stream_of_the_table_needs_it_clean_before(spark: SparkSession, tmp_path: Path) -> None:
    """As in docs/delta.md: a stream from the table fails because rows were removed."""
    make_table(spark, tmp_path, "vectors")
    append(spark, tmp_path, 0)
    make_job(tmp_path).run()
    stream = spark.readStream.format("delta").load(str(tmp_path / "table"))
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "copy"))
    )
    query.awaitTermination()
    copied = pl.read_parquet(tmp_path / "copy" / "*.parquet")
    polars.testing.assert_frame_equal(copied.sort(SCHEMA.names), expected_of(0), check_dtypes=False)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        # tests/tables/test_in_place.py has these two in `make test`.
        pytest.param("'delta.appendOnly' = 'true'", "appendOnly", marks=pytest.mark.matrix),
        pytest.param("'delta.enableChangeDataFeed' = 'true'", "change data feed", marks=pytest.mark.matrix),
        ("'delta.enableRowTracking' = 'true'", "row tracking"),
        ("'delta.enableInCommitTimestamps' = 'true'", "timestamps in commits"),
        ("'delta.columnMapping.mode' = 'name'", "column mapping"),
        ("'delta.setTransactionRetentionDuration' = 'interval 1 hours'", "would forget which versions"),
    ],
)
def test_tables_that_rows_are_not_taken_out_of(spark: SparkSession, tmp_path: Path, more: str, match: str) -> None:
    make_table(spark, tmp_path, "vectors", more)
    append(spark, tmp_path, 0)
    before = DeltaTable(tmp_path / "table").version()
    with pytest.raises((fp.SinkError, fp.SourceError), match=match):
        make_job(tmp_path).run()
    assert DeltaTable(tmp_path / "table").version() == before


def test_clustered_tables_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    make_table(spark, tmp_path, "vectors", by="cluster by (seq)")
    append(spark, tmp_path, 0)
    with pytest.raises(fp.SinkError, match="clustering"):
        make_job(tmp_path).run()


@pytest.mark.matrix
def test_every_contestant_of_the_benchmark_is_right(tmp_path: Path) -> None:
    out = tmp_path / "delta.json"
    code = (
        "import json, sys; from pathlib import Path; from bench import delta; "
        "more = {'spark.sql.shuffle.partitions': 2, 'spark.databricks.delta.snapshotPartitions': 1}; "
        "part = delta.contest(40_000, 1, Path(sys.argv[1]), '1g', False, **more); "
        "Path(sys.argv[2]).write_text(json.dumps({'delta': part}))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(out)], cwd=ROOT, check=True, capture_output=True)
    measurements = json.loads(out.read_text())["delta"]["measurements"]
    assert [(it["contest"], it["name"]) for it in measurements if not it["is_right"]] == []
    assert len({it["contest"] for it in measurements}) == 2
    assert {it["role"] for it in measurements} == {"ours", "peer"}
