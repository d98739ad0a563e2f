"""`deduplicate(df)`: the right rows whatever Spark does with the plan, and an error where it cannot be right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import classic_only, plan_of, settings
from fencepost_spark import choose_strategy, deduplicate, explain, from_headers
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support import daily
from support.spark_jobs import LANDING_ZONE

DDL = "pid long, epoch short, partition int, seq int, copy int"
IDENTITY = ["pid", "epoch", "partition", "seq"]
Row = tuple[Any, ...]


SEQS = 60


def stream(producers: int = 5, partitions: int = 3, seqs: int = SEQS, copies: int = 2, seed: int = 0) -> list[Row]:
    """Every row `copies` times, shuffled, and some untracked rows; `copy` distinguishes copies."""
    rows: list[Row] = [
        (pid, pid % 2, partition, seq, copy)
        for pid in range(producers)
        for partition in range(partitions)
        for seq in range(seqs)
        for copy in range(copies)
    ]
    rows += [(None, None, None, None, copy) for copy in range(50)] + [(-1, -1, None, None, copy) for copy in range(50)]
    random.Random(seed).shuffle(rows)
    return rows


ROWS = stream()
KEPT = 5 * 3 * SEQS + 100


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, DDL).repartition(3)


def write_files(folder: Path, files: list[list[Row]], row_group_size: int | None = None) -> str:
    folder.mkdir()
    types = [pa.int64(), pa.int16(), pa.int32(), pa.int32(), pa.int32()]
    for number, rows in enumerate(files):
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
        table = pa.Table.from_arrays(columns, names=[*IDENTITY, "copy"])
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group_size)
    return str(folder)


def identities(df: DataFrame) -> list[Row]:
    return sorted(tuple(row) for row in df.where("pid >= 0").select(*IDENTITY).collect())


class TestShuffled:
    """The default: rows in any order."""

    def test_each_identity_is_kept_once(self, df: DataFrame) -> None:
        kept = deduplicate(df)
        assert kept.schema == df.schema
        assert kept.count() == KEPT
        assert identities(kept) == sorted({row[:4] for row in ROWS if row[0] not in (None, -1)})

    def test_untracked_rows_are_kept_and_spread(self, df: DataFrame) -> None:
        untracked = deduplicate(df).where("pid is null or pid = -1")
        assert untracked.count() == 100
        assert untracked.select(F.spark_partition_id().alias("task")).distinct().count() > 1

    def test_every_action_agrees(self, df: DataFrame) -> None:
        """Also those that need no column, or one that has nothing to do with the verdict."""
        kept = deduplicate(df)
        first = sorted(map(str, kept.collect()))
        assert sorted(map(str, kept.collect())) == first
        assert kept.count() == len(kept.select("copy").collect()) == kept.toArrow().num_rows == len(first) == KEPT
        assert kept.select(F.lit(1)).count() == kept.agg(F.count("*")).first()[0] == KEPT
        assert not kept.isEmpty()
        assert len(kept.limit(7).collect()) == 7
        assert kept.orderBy("seq", "pid").count() == KEPT
        assert sum(row["count"] for row in kept.groupBy("partition").count().collect()) == KEPT

    def test_filters_above_are_not_moved_beneath(self, df: DataFrame) -> None:
        """The first copy in the order is kept: a filter for the second finds nothing."""
        kept = deduplicate(df, order_by="copy")
        assert kept.where("copy = 1 and pid >= 0").count() == 0
        assert kept.where("pid = 3 and seq < 10").count() == 30

    def test_a_self_join_sees_one_result(self, df: DataFrame) -> None:
        kept = deduplicate(df).where("pid >= 0")
        assert kept.join(kept.withColumnRenamed("copy", "other"), IDENTITY).where("copy = other").count() == KEPT - 100
        assert kept.alias("a").join(kept.alias("b"), IDENTITY).count() == KEPT - 100
        assert kept.intersectAll(kept).count() == KEPT - 100
        assert kept.union(kept).count() == 2 * (KEPT - 100)

    def test_a_join_above_does_not_prune_the_input(self, spark: SparkSession, df: DataFrame, tmp_path: Path) -> None:
        """By the values of a partition column, as in Spark: the first copy is in another folder."""
        df.where("pid >= 0").write.partitionBy("copy").parquet(str(tmp_path / "rows"))
        read = spark.read.parquet(str(tmp_path / "rows")).select(*IDENTITY, "copy")
        wanted = spark.createDataFrame([(1, "x")], "copy int, name string").where("name = 'x'")
        assert deduplicate(read, order_by="copy").join(F.broadcast(wanted), "copy").count() == 0

    def test_a_cached_result_is_the_same(self, df: DataFrame) -> None:
        kept = deduplicate(df).cache()
        try:
            assert kept.count() == KEPT
            assert kept.select("seq").distinct().count() == SEQS + 1
        finally:
            kept.unpersist()

    def test_spark_joins_small_partitions_and_splits_none(self, spark: SparkSession, df: DataFrame) -> None:
        """As for an aggregation: 200 tasks for few rows are three times as slow."""
        assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
        for size, tasks in (("64MB", 1), ("1B", 4)):
            names = ("advisoryPartitionSizeInBytes", "coalescePartitions_minPartitionSize")
            sizes = {f"spark_sql_adaptive_{name}": size for name in names}
            with settings(spark, **sizes, spark_sql_adaptive_coalescePartitions_parallelismFirst=False):
                kept = deduplicate(df).withColumn("task", F.spark_partition_id())
                placed = kept.select("task", "pid", "partition").collect()
            assert len({row.task for row in placed}) == tasks
            of_key: dict[tuple[object, ...], set[int]] = {}
            for row in placed:
                if row[1] not in (None, -1):
                    of_key.setdefault(tuple(row[1:]), set()).add(row.task)
            assert {len(its) for its in of_key.values()} == {1}

    @pytest.mark.parametrize(
        "cut",
        [
            lambda df: df.hint("rebalance"),
            lambda df: df.hint("rebalance", "pid"),
            lambda df: df.coalesce(1),
            lambda df: df.repartition(7),
            lambda df: df.union(df.limit(100)),
        ],
    )
    def test_the_result_does_not_depend_on_the_division_by_spark(
        self, spark: SparkSession, df: DataFrame, cut: Any
    ) -> None:
        """Adaptive execution joins and splits partitions before ours, and not ours."""
        with settings(spark, spark_sql_adaptive_advisoryPartitionSizeInBytes=2000):
            assert identities(deduplicate(cut(df))) == sorted({row[:4] for row in ROWS if row[0] not in (None, -1)})

    def test_queries_for_some_rows_get_only_kept_ones(self, df: DataFrame) -> None:
        kept = set(identities(deduplicate(df)))
        for use in (lambda it: it.limit(30), lambda it: it.where("seq % 7 = 3"), lambda it: it.orderBy("seq").limit(9)):
            some = identities(use(deduplicate(df).where("pid >= 0")))
            assert len(some) == len(set(some)) > 0
            assert set(some) <= kept

    def test_the_copy_that_is_kept_follows_from_the_rows_alone(self, spark: SparkSession) -> None:
        """In any order of rows, as after a retried shuffle."""
        kept = set()
        for seed in range(2):
            df = spark.createDataFrame(stream(copies=3, seed=seed), DDL).repartition(seed + 1)
            kept.add(tuple(sorted(str(row) for row in deduplicate(df).collect())))
        assert len(kept) == 1

    @pytest.mark.parametrize(
        "column",
        [
            "map('k', copy)",
            "array(map('k', map('z', copy)))",
            "parse_json(concat('[', copy, ']'))",
            "make_interval(copy)",
            "if(copy = 0, 'a', 'A') collate UTF8_LCASE",
        ],
    )
    def test_copies_may_differ_in_a_column_that_spark_does_not_sort(self, spark: SparkSession, column: str) -> None:
        kept = set()
        for seed in range(2):
            rows = stream(producers=1, partitions=1, seqs=20, seed=seed)
            df = spark.createDataFrame(rows, DDL).where("pid >= 0").repartition(seed + 1)
            found = deduplicate(df.selectExpr(*IDENTITY, f"{column} AS extra"))
            kept.add(tuple(sorted(row[0] for row in found.selectExpr("to_json(struct(*))").collect())))
        assert len(kept) == 1

    def test_order_by_chooses_the_copy(self, df: DataFrame) -> None:
        for order, copy in (("copy", 0), (F.desc("copy"), 1), (["epoch", F.col("copy").desc()], 1)):
            kept = deduplicate(df, order_by=order).where("pid >= 0")  # type: ignore[arg-type]
            assert [row.copy for row in kept.select("copy").distinct().collect()] == [copy]

    def test_small_batches_change_nothing(self, spark: SparkSession, df: DataFrame) -> None:
        with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=7):
            assert deduplicate(df).count() == KEPT

    def test_rows_are_judged_in_the_order_given(self, spark: SparkSession) -> None:
        rows = [(7, 0, 0, seq, arrival) for arrival, seq in enumerate((0, 1, 3, 2, 4, 4, 9, 5))]
        df = spark.createDataFrame(rows[::-1], DDL)
        for policy, kept in (("in_order", [0, 1, 3, 4, 9]), ("kafka", [0, 1, 2]), ("any_order", [0, 1, 3, 2, 4, 9, 5])):
            found = deduplicate(df, policy, order_by="copy")
            assert [row.seq for row in sorted(found.collect(), key=lambda row: row.copy)] == kept
            assert found.orderBy("seq").count() == found.groupBy("pid").count().first()[1] == len(kept)

    def test_a_shared_session_is_left_as_it_was(self, spark: SparkSession, df: DataFrame) -> None:
        before = spark.conf.getAll
        deduplicate(df).count()
        assert spark.conf.getAll == before


class TestColumns:
    """Names that are awkward, and names that the machinery would like for itself."""

    def test_other_columns_may_have_any_name(self, spark: SparkSession) -> None:
        names = ["verdict", "_Verdict", "a.b", "a`b", "_metadata", "task", "key_0", "Verdict "]
        df = spark.createDataFrame([(7, 0, 0, seq % 3, *range(len(names))) for seq in range(6)], [*IDENTITY, *names])
        for co_located in (False, True):
            kept = deduplicate(df.coalesce(1), co_located=co_located, verify=co_located)
            assert kept.columns == [*IDENTITY, *names]
            assert kept.count() == 3

    def test_identity_columns_may_have_any_name(self, spark: SparkSession) -> None:
        columns = fp.Columns(pid=("the.cluster", "p`id"), epoch="EPOCH", partition=None, seq="verdict")
        df = spark.createDataFrame(
            [("a", 7, 0, seq % 3) for seq in range(6)], ["the.cluster", "p`id", "epoch", "verdict"]
        )
        assert deduplicate(df, columns=columns).count() == 3

    def test_fields_of_structs(self, spark: SparkSession, tmp_path: Path) -> None:
        """Found by their path, but a column of that name has precedence; an identity in a null struct is untracked."""
        rows = [
            (None if pid is None else (pid, (seq,)), epoch, partition, copy)
            for pid, epoch, partition, seq, copy in ROWS
        ]
        ddl = "payload struct<Pid: long, inner: struct<seq: int>>, epoch short, partition int, copy int"
        columns = fp.Columns(pid="payload.pid", seq="payload.inner.seq")
        made = spark.createDataFrame(rows, ddl).repartition(3)
        made.write.parquet(str(tmp_path / "rows"))
        df = spark.read.parquet(str(tmp_path / "rows"))
        assert "'payload.Pid' is a field" in choose_strategy(df, columns=columns).reason
        for frame in (made, df):
            kept = deduplicate(frame, columns=columns)
            assert kept.schema == frame.schema
            assert kept.count() == KEPT
            found = kept.select("payload.pid", "epoch", "partition", "payload.inner.seq")
            assert identities(found) == sorted({row[:4] for row in ROWS if row[0] not in (None, -1)})
        assert explain(df, columns=columns, order_by="payload.pid").where("verdict = 'UNTRACKED'").count() == 100
        named = df.withColumn("payload.inner.seq", F.lit(0))
        tracked = {row[:3] for row in ROWS if row[0] not in (None, -1)}
        assert deduplicate(named, columns=columns).where("payload.pid >= 0").count() == len(tracked)
        with pytest.raises(fp.BatchError, match=r"column 'payload\.outer': missing"):
            deduplicate(df, columns=fp.Columns(pid="payload.outer"))

    def test_types(self, spark: SparkSession) -> None:
        for kind in ("tinyint", "smallint", "int", "bigint", "string", "binary"):
            df = spark.range(6).selectExpr(
                f"cast(cast(7 as string) as {kind}) pid",
                "0Y epoch",
                f"cast(cast(1 as string) as {kind}) partition",
                "id % 3 seq",
            )
            assert deduplicate(df).count() == 3, kind

    def test_columns_of_one_name_are_refused(self, spark: SparkSession) -> None:
        df = spark.createDataFrame([(7, 0, 0, seq % 3, 1, 2) for seq in range(6)], [*IDENTITY, "x", "y"])
        repeated = df.select(*IDENTITY, "x", F.col("y").alias("x"))
        with pytest.raises(fp.BatchError, match=r"column 'x': occurs twice in the DataFrame"):
            deduplicate(repeated)


def as_read(df: DataFrame) -> DataFrame:
    return df


def with_a_filter(df: DataFrame) -> DataFrame:
    return df.where("seq >= 0").select(*IDENTITY, "copy")


ACTIONS = (
    lambda df: df.count(),
    lambda df: df.collect(),
    lambda df: df.where("pid = 0 and seq = 1").select("copy").collect(),
    lambda df: df.write.format("noop").mode("overwrite").save(),
    lambda df: df.orderBy("seq").limit(3).collect(),
)


class TestCoLocated:
    """Nothing is shuffled; what can be checked is."""

    def test_nothing_is_shuffled_and_order_is_kept(
        self, spark: SparkSession, tmp_path: Path, whole_files: None
    ) -> None:
        files = [[(pid, 0, 0, seq % 50, seq) for seq in range(100)] for pid in range(4)]
        kept = deduplicate(spark.read.parquet(write_files(tmp_path / "rows", files)), co_located=True)
        assert "Exchange" not in plan_of(kept)
        assert "Exchange" in plan_of(deduplicate(spark.read.parquet(str(tmp_path / "rows"))))
        assert sorted(row.copy for row in kept.collect()) == sorted(list(range(50)) * 4)
        assert kept.count() == 200

    def test_whole_files_may_share_a_task(self, spark: SparkSession, tmp_path: Path) -> None:
        files = [[(pid, 0, 0, seq % 50, seq) for seq in range(100)] for pid in range(4)]
        with settings(spark, spark_sql_files_maxPartitionBytes=1 << 40, spark_sql_files_minPartitionNum=1):
            df = spark.read.parquet(write_files(tmp_path / "rows", files))
            assert df.select(F.spark_partition_id()).distinct().count() == 1
            assert deduplicate(df, co_located=True).count() == 200

    @pytest.fixture
    def cut(self, spark: SparkSession, tmp_path: Path) -> Iterator[tuple[DataFrame, int]]:
        """A file that Spark cuts over several tasks, and its size."""
        rows = [(0, 0, 0, seq % 1000, seq) for seq in range(2000)]
        folder = write_files(tmp_path / "rows", [rows], row_group_size=500)
        size = (tmp_path / "rows" / "0.parquet").stat().st_size
        with settings(spark, spark_sql_files_maxPartitionBytes=size // 4):
            yield spark.read.parquet(folder), size

    @pytest.mark.parametrize(("use", "prepare"), daily.each_value(ACTIONS, (with_a_filter, as_read)))
    def test_a_cut_file_is_an_error(
        self,
        cut: tuple[DataFrame, int],
        prepare: Callable[[DataFrame], DataFrame],
        use: Callable[[DataFrame], Any],
    ) -> None:
        df, size = cut
        with pytest.raises(SparkRuntimeException) as error:
            use(deduplicate(prepare(df), co_located=True))
        message = str(error.value)
        assert "fencepost: the file file:" in message
        assert "/rows/0.parquet is cut over" in message
        assert f"spark.sql.files.openCostInBytes to at least {size}, or leave out co_located=True" in message

    @pytest.mark.parametrize("prepare", [as_read, with_a_filter])
    def test_a_cut_file_may_be_shuffled(
        self, cut: tuple[DataFrame, int], prepare: Callable[[DataFrame], DataFrame]
    ) -> None:
        assert deduplicate(prepare(cut[0])).count() == 1000

    def test_the_settings_that_the_error_names_help(self, spark: SparkSession, tmp_path: Path) -> None:
        rows = [(0, 0, 0, seq % 1000, seq) for seq in range(2000)]
        folder = write_files(tmp_path / "rows", [rows, [(1, *row[1:]) for row in rows]], row_group_size=500)
        size = max(path.stat().st_size for path in (tmp_path / "rows").iterdir())
        with settings(spark, spark_sql_files_maxPartitionBytes=size, spark_sql_files_openCostInBytes=size):
            assert deduplicate(spark.read.parquet(folder), co_located=True).count() == 2000

    def test_files_whose_metadata_is_lost_are_refused(
        self, spark: SparkSession, tmp_path: Path, whole_files: None
    ) -> None:
        one = spark.read.parquet(write_files(tmp_path / "one", [[(0, 0, 0, seq, 0) for seq in range(9)]]))
        two = spark.read.parquet(write_files(tmp_path / "two", [[(1, 0, 0, seq, 0) for seq in range(9)]]))
        with pytest.raises(fp.PolicyError, match="metadata does not reach"):
            deduplicate(one.union(two), co_located=True)
        assert deduplicate(one.union(two), co_located=True, verify=True).count() == 18

    def test_frames_without_files_are_taken_at_the_callers_word(self, spark: SparkSession) -> None:
        df = spark.createDataFrame([(7, 0, 0, seq % 9, 0) for seq in range(20)], DDL).coalesce(1)
        assert deduplicate(df, co_located=True).count() == 9

    def test_order_by_sorts_within_tasks(self, spark: SparkSession) -> None:
        df = spark.createDataFrame([(7, 0, 0, seq, -seq) for seq in range(20)], DDL).coalesce(1)
        assert deduplicate(df, "in_order", order_by="copy", co_located=True).count() == 1
        assert deduplicate(df, "in_order", order_by=F.desc("copy"), co_located=True).count() == 20

    def test_verify_refuses_a_key_in_two_tasks(self, spark: SparkSession, tmp_path: Path, whole_files: None) -> None:
        """Which no guard of files sees."""
        untracked = [(None, 0, 0, 0, 0), (-1, 0, 0, 0, 0)]
        files = [[(0, 0, 0, 1, 0), *untracked], [(1, 0, 0, 1, 0), *untracked], [(0, 0, 1, 1, 0)]]
        whole = spark.read.parquet(write_files(tmp_path / "whole", files))
        assert deduplicate(whole, co_located=True, verify=True).count() == 7
        apart = spark.read.parquet(write_files(tmp_path / "apart", [*files, [(1, 0, 0, 1, 1)]]))
        with pytest.raises(fp.BatchError, match=r"key pid=1, partition=0 is in two tasks \(.* \d and \d\)") as error:
            deduplicate(apart, co_located=True, verify=True)
        assert error.value.column == "pid, partition"
        assert deduplicate(apart).count() == 7

    def test_verify_sees_a_bucketed_table_as_the_query_does(self, spark: SparkSession, whole_files: None) -> None:
        """Grouped by its columns, Spark would read it by bucket, and then not."""
        rows = spark.range(2000).selectExpr("id % 7 pid", "0 epoch", "0 partition", "cast(id as int) seq")
        try:
            for _ in range(2):
                rows.repartition(1).write.mode("append").bucketBy(4, "pid").saveAsTable("bucketed")
            with pytest.raises(fp.BatchError, match="is in two tasks"):
                deduplicate(spark.table("bucketed"), co_located=True, verify=True)
        finally:
            spark.sql("drop table if exists bucketed")

    def test_equal_in_order_by_they_follow_each_other_by_epoch_and_seq(self, spark: SparkSession) -> None:
        ddl = "copy int, pid long, epoch short, partition int, seq int"
        rows = [(-seq, 7, seq // 10, 0, seq % 10) for seq in range(20)]
        df = spark.createDataFrame(rows, ddl).withColumn("at", F.lit(0))
        assert deduplicate(df, "in_order", order_by="at").count() == 20

    @classic_only
    def test_untracked_rows_go_where_they_went_before(self, spark: SparkSession) -> None:
        """Also if a column changes with each evaluation: a retried task must send them to the same place."""
        from fencepost.policy import resolve
        from fencepost_spark.frames import _shuffle

        rows = spark.range(40).selectExpr(
            "id", "cast(null as long) pid", "0 epoch", "0 partition", "cast(id as int) seq"
        )
        drawn = rows.withColumn("noise", F.udf(random.random, "double").asNondeterministic()())
        rules = resolve("any_order")
        shuffled = _shuffle(drawn, rules.columns, {name: F.col(name) for name in IDENTITY})
        tasks = [dict(shuffled.select("id", F.spark_partition_id()).collect()) for _ in range(2)]
        assert tasks[0] == tasks[1]
        assert len(set(tasks[0].values())) > 1

    def test_a_cached_frame_of_a_cut_file(self, spark: SparkSession, tmp_path: Path) -> None:
        rows = [(0, 0, 0, seq % 1000, seq) for seq in range(2000)]
        folder = write_files(tmp_path / "rows", [rows], row_group_size=500)
        with settings(spark, spark_sql_files_maxPartitionBytes=(tmp_path / "rows" / "0.parquet").stat().st_size // 4):
            cut = spark.read.parquet(folder).cache()
            try:
                assert cut.count() == 2000
                with pytest.raises(SparkRuntimeException, match=r"0\.parquet is cut over"):
                    deduplicate(cut, co_located=True).collect()
            finally:
                cut.unpersist()


class TestRefused:
    """What is refused at once, before Spark runs anything."""

    @classic_only
    @pytest.mark.parametrize(
        "change",
        [
            lambda df: df.withColumn("seq", F.monotonically_increasing_id()),
            lambda df: df.withColumn("pid", (F.rand() * 10).cast("long")),
            lambda df: df.withColumn("pid", F.uuid()),
            lambda df: df.withColumn("partition", F.hash(F.input_file_name())),
            lambda df: df.withColumn("seq", F.udf(lambda seq: seq, "int").asNondeterministic()("seq")),
            lambda df: df.where(F.rand() < 0.5),
            lambda df: df.withColumn("pid", F.uuid()).union(df.withColumn("pid", F.lit("x"))),
        ],
    )
    def test_identities_that_change_with_each_evaluation_are_refused(
        self, df: DataFrame, change: Callable[[DataFrame], DataFrame]
    ) -> None:
        for co_located in (False, True):
            with pytest.raises(fp.PolicyError, match=r"pid, epoch, partition, seq, .* changes whenever"):
                deduplicate(change(df), co_located=co_located)

    @classic_only
    def test_the_result_of_another_call_is_written_first(self, df: DataFrame) -> None:
        """By Kafka's offsets, then by the producer's numbers: Spark does not show that the rows are always the same."""
        by_offset = deduplicate(df, columns=fp.Columns(pid=("pid", "copy")))
        with pytest.raises(fp.PolicyError, match="an earlier deduplicate"):
            deduplicate(by_offset)
        assert deduplicate(by_offset.localCheckpoint()).count() == KEPT

    @classic_only
    def test_an_order_that_is_drawn_after_the_shuffle(self, df: DataFrame) -> None:
        with pytest.raises(fp.PolicyError, match=r"order_by changes whenever"):
            deduplicate(df, "in_order", order_by=F.monotonically_increasing_id())
        assert deduplicate(df, "in_order", order_by=F.desc("copy")).count() == KEPT
        in_one = df.coalesce(1)
        assert deduplicate(in_one, order_by=F.monotonically_increasing_id(), co_located=True).count() == KEPT

    def test_a_reach_needs_an_order(self, df: DataFrame) -> None:
        with pytest.raises(fp.PolicyError, match="depend on the order"):
            deduplicate(df, fp.Policy.any_order().replace(reach=10))

    def test_other_columns_may_change_with_each_evaluation(self, df: DataFrame) -> None:
        drawn = df.withColumn("noise", F.rand()).withColumn("id", F.uuid()).sample(1.0, seed=1)
        assert deduplicate(drawn).count() == deduplicate(df).count() == KEPT

    @pytest.mark.parametrize(
        ("ddl", "column", "message"),
        [
            ("pid long, epoch short, partition int", "seq", "column 'seq': missing; .*columns "),
            (
                "pid double, epoch short, partition int, seq int",
                "pid",
                "column 'pid': is double; ",
            ),
            ("pid long, epoch string, partition int, seq int", "epoch", "column 'epoch': "),
            ("pid long, epoch short, partition int, seq string", "seq", "column 'seq': "),
            ("pid long, epoch short, partition date, seq int", "partition", "column 'partition': is date"),
            ("pid array<long>, epoch short, partition int, seq int", "pid", r"column 'pid': is array<bigint>"),
        ],
    )
    def test_columns(self, spark: SparkSession, ddl: str, column: str, message: str) -> None:
        with pytest.raises(fp.BatchError, match=message) as error:
            deduplicate(spark.createDataFrame([], f"{ddl}, payload string"))
        assert error.value.column == column

    def test_a_missing_column_is_named_with_the_existing_ones(self, spark: SparkSession) -> None:
        with pytest.raises(fp.BatchError, match="payload"):
            deduplicate(spark.createDataFrame([], "pid long, epoch short, partition int, payload string"))

    @pytest.mark.parametrize("policy", ["in_order", "kafka", "strict", "watermark"])
    @pytest.mark.parametrize("co_located", [False, True])
    def test_policies_that_need_an_order(self, df: DataFrame, policy: str, co_located: bool) -> None:
        columns = fp.Columns(epoch=None) if policy == "watermark" else None
        with pytest.raises(fp.PolicyError, match="pass order_by, "):
            deduplicate(df, policy, columns, co_located=co_located)

    def test_a_small_wrap_needs_an_order(self, spark: SparkSession) -> None:
        """Which lap a row belongs to follows from its arrival. Sorted by sequence, all laps but one would be lost."""
        rows = [(7, 0, 0, seq % 256, seq) for seq in range(1000)]
        df, policy = spark.createDataFrame(rows, DDL), fp.Policy.any_order().replace(wrap=256)
        with pytest.raises(fp.PolicyError, match="pass order_by"):
            deduplicate(df, policy)
        assert deduplicate(df, policy, order_by="copy").count() == 1000

    @pytest.mark.parametrize("fields", [{"epochs": "fence"}, {"max_jump": 100}])
    def test_other_fields_that_need_an_order(self, df: DataFrame, fields: dict[str, Any]) -> None:
        policy = fp.Policy.any_order().replace(**fields)
        with pytest.raises(fp.PolicyError, match="pass order_by"):
            deduplicate(df, policy)
        assert deduplicate(df, policy, order_by=["epoch", "seq"]).count() == KEPT

    def test_streams(self, spark: SparkSession) -> None:
        rows = spark.readStream.format("rate").load().selectExpr("1L pid", "0S epoch", "0 partition", "value seq")
        with pytest.raises(fp.PolicyError, match="streaming DataFrame"):
            deduplicate(rows)

    def test_settings_that_never_end(self, spark: SparkSession, df: DataFrame) -> None:
        with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=0), pytest.raises(fp.PolicyError):
            deduplicate(df)

    def test_untracked_rows_on_request(self, df: DataFrame) -> None:
        with pytest.raises(PythonException, match=r"BatchError: \[FP101\] column 'pid', row "):
            deduplicate(df, untracked="fail").count()

    def test_bad_rows_are_named_in_the_drivers_message(self, spark: SparkSession) -> None:
        for row, column in (
            ((7, 0, 0, None, 0), "seq"),
            ((7, -3, 0, 1, 0), "epoch"),
            ((7, 0, None, 1, 0), "partition"),
        ):
            df = spark.createDataFrame([(7, 0, 0, 0, 0), row], DDL)
            with pytest.raises(
                PythonException,
                match=rf"BatchError: \[FP101\] column '{column}', row \d: .*of Spark partition \d; pid=7, epoch=",
            ):
                deduplicate(df).collect()


class TestRealLandingZone:
    """Files of a broker, its producers and a sink that was killed."""

    @pytest.fixture
    def landed(self, spark: SparkSession) -> DataFrame:
        return spark.read.parquet(str(LANDING_ZONE / "landing"))

    @pytest.fixture
    def truth(self) -> Any:
        return json.loads((LANDING_ZONE / "truth.json").read_text("utf-8"))

    @pytest.mark.matrix
    def test_by_offset(self, landed: DataFrame, truth: dict[str, Any]) -> None:
        kept = deduplicate(landed, "kafka_offsets")
        assert landed.count() == truth["rows_landed"]
        rows = kept.agg(F.count("*"), F.countDistinct("topic", "partition", "offset")).first()
        assert rows == (truth["rows_distinct"], truth["rows_distinct"])

    def test_by_producer(self, landed: DataFrame, truth: dict[str, Any]) -> None:
        kept = deduplicate(landed, columns=fp.Columns(partition=("topic", "partition")))
        identity = ["pid", "epoch", "topic", "partition", "seq"]
        rows = kept.select(identity).toArrow()
        with_producer = rows.filter(pc.field("pid") >= 0)
        tracked = truth["rows_distinct_tracked"]
        assert len(rows) == tracked + truth["rows_untracked_landed"]
        assert len(with_producer) == len(with_producer.group_by(identity).aggregate([])) == tracked


@pytest.mark.parametrize("door", [deduplicate, from_headers])
def test_other_tables_are_refused_by_name(door: Any) -> None:
    name = door.__name__
    for rows, kind in ((pd.DataFrame({"pid": [7]}), "pandas.DataFrame"), (None, "builtins.NoneType")):
        with pytest.raises(TypeError, match=rf"^{name}\(df\): expected a Spark DataFrame, not {kind}: "):
            door(rows)
