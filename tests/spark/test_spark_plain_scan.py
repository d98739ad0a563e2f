"""`deduplicate(df)` over plain scans of Parquet files: it keeps the rows that a shuffle of all of them keeps, and falls
back to that, or fails by name, where this is not certain."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fencepost as fp
import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import plan_of, settings
from fencepost_spark import choose_strategy, copies, deduplicate, plain_scan
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StringType

TYPES = {"pid": pa.int64(), "epoch": pa.int16(), "partition": pa.int32(), "seq": pa.int32(), "note": pa.string()}
Row = tuple[Any, ...]


def stream(copies: int = 3, seed: int = 0) -> list[Row]:
    """Contiguous and gappy producers, rows of one to `copies` copies that differ or not, rows without identity."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for pid in range(6):
        step = 1 if pid % 2 else 7
        for seq in range(0, 120 * step, step):
            times = 1 if seq % 3 else draw.randint(1, copies)
            rows += [(pid, pid % 2, pid % 3, seq, draw.choice([None, "a", "b"])) for _ in range(times)]
    rows += [(None, None, None, None, f"{place}") for place in range(20)]
    rows += [(-1, -1, None, None, "same")] * 20
    draw.shuffle(rows)
    return rows


def write(path: Path, rows: list[Row], types: dict[str, pa.DataType] = TYPES, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)]
    pq.write_table(pa.table(arrays, names=list(types)), path, row_group_size=50, **options)


def write_files(folder: Path, rows: list[Row], files: int = 3, types: dict[str, pa.DataType] = TYPES) -> str:
    for number in range(files):
        write(folder / f"{number}.parquet", rows[number::files], types)
    return str(folder)


def found(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))


def shuffled(df: DataFrame) -> DataFrame:
    """The same rows after a filter, so that it is not a plain scan."""
    return df.where("seq is null or seq >= 0")


def check(df: DataFrame, **options: Any) -> int:
    """Both ways keep the same rows; gives how many."""
    assert choose_strategy(df, **options).name == "files"
    assert choose_strategy(shuffled(df), **options).name == "shuffle"
    kept = deduplicate(df, **options)
    assert kept.schema == df.schema
    rows = found(kept)
    assert rows == found(deduplicate(shuffled(df), **options))
    return len(rows)


class TestTheSameRows:
    """The result equals that of the general way, for any files."""

    @pytest.mark.parametrize(
        "options",
        [
            pytest.param({}, marks=pytest.mark.matrix),  # as in test_rows_without_identity_stay
            {"order_by": "note"},
            pytest.param({"order_by": ["epoch", "note"]}, marks=pytest.mark.matrix),  # as a list in test_an_order
            {"policy": fp.Policy.any_order().replace(wrap=None)},
            {"policy": fp.Policy.any_order().replace(epochs="ignore")},
            {"policy": "kafka_offsets", "columns": fp.Columns(pid="partition", epoch=None, partition=None)},
            {"columns": fp.Columns(partition=None)},
            {"columns": fp.Columns(partition=("partition", "pid"), pid="epoch", epoch=None), "policy": "kafka_offsets"},
        ],
    )
    def test_policies(self, spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
        rows = [row for row in stream() if row[0] is not None]
        rows = [(0, 0, 0, 0, note) if pid == -1 else (pid, *rest, note) for pid, *rest, note in rows]
        df = spark.read.parquet(write_files(tmp_path / "rows", rows))
        assert 0 < check(df, **options) < len(rows)

    def test_an_order(self, spark: SparkSession, tmp_path: Path) -> None:
        df = spark.read.parquet(write_files(tmp_path / "rows", stream()))
        for order in (F.desc("note"), [F.lit(1), F.col("note").desc_nulls_first()], df.note.asc_nulls_last()):
            check(df, order_by=order)

    def test_rows_without_identity_stay(self, spark: SparkSession, tmp_path: Path) -> None:
        rows = stream()
        check(spark.read.parquet(write_files(tmp_path / "rows", rows)))
        kept = deduplicate(spark.read.parquet(str(tmp_path / "rows")))
        assert kept.where("pid is null").count() == kept.where("pid = -1").count() == 20

    @pytest.mark.parametrize(
        "kind",
        [
            pa.int8(),
            pa.string(),
            pa.binary(),
            *(
                pytest.param(it, marks=pytest.mark.matrix)
                for it in (pa.int16(), pa.int32(), pa.int64(), pa.large_string())
            ),
        ],
    )
    def test_types(self, spark: SparkSession, tmp_path: Path, kind: pa.DataType) -> None:
        texts = {pa.string(): "ü{}".format, pa.large_string(): "ü{}".format, pa.binary(): b"\xff%d".__mod__}
        as_key = texts.get(kind, int)
        rows = [(row[0] if row[0] is None else as_key(row[0]), *row[1:]) for row in stream() if row[0] != -1]
        folder = write_files(tmp_path / "rows", rows, types=TYPES | {"pid": kind, "seq": pa.int64()})
        assert check(spark.read.parquet(folder)) < len(rows)

    def test_dictionaries_of_texts(self, spark: SparkSession, tmp_path: Path) -> None:
        kind = pa.dictionary(pa.int8(), pa.string())
        rows = [(f"p{pid}", 0, "t", seq, None) for pid in range(3) for seq in range(60)] * 2
        check(spark.read.parquet(write_files(tmp_path / "rows", rows, types=TYPES | {"pid": kind, "partition": kind})))

    def test_columns_may_be_renamed_chosen_and_computed(self, spark: SparkSession, tmp_path: Path) -> None:
        df = spark.read.parquet(write_files(tmp_path / "rows", stream()))
        renamed = df.withColumnsRenamed({"pid": "word", "partition": "a`.b"}).withColumn("bit", F.upper("note"))
        check(renamed.drop("note"), columns=fp.Columns(pid="word", partition="a`.b"))

    @pytest.mark.parametrize(
        ("kinds", "scans"),
        [
            (
                [
                    (pa.int8(), [None, -3, 0, 9]),
                    (pa.bool_(), [None, False, True]),
                    (pa.string(), [None, "", "a", "ab", "b", "Z", "ü", "\U0001f600", "\uffee"]),
                    (pa.dictionary(pa.int8(), pa.string()), [None, "b", "a"]),
                    (pa.binary(), [None, b"", b"\x00", b"\x80", b"\xff", b"a"]),
                    (pa.date32(), [None, -9, 0, 9]),
                    (pa.timestamp("us", "UTC"), [None, -1, 0, 7]),
                    (pa.timestamp("us"), [None, -1, 0, 7]),
                    (pa.timestamp("ms", "UTC"), [None, -1, 0, 7]),
                    (pa.timestamp("ms"), [None, -1, 0, 7]),
                ],
                1,
            ),
            (
                [
                    (pa.float64(), [None, 0.0, 1.5, float("nan"), float("-inf")]),
                    (pa.decimal128(20, 2), [None, Decimal("-1.50"), Decimal("2.25")]),
                    (pa.list_(pa.int32()), [None, [], [1], [1, 2], [None], [2]]),
                ],
                2,
            ),
        ],
        ids=["compared by us", "compared by Spark"],
    )
    def test_types_that_put_copies_in_order(
        self, spark: SparkSession, tmp_path: Path, kinds: list[tuple[pa.DataType, list[Any]]], scans: int
    ) -> None:
        """Each producer has values in one column: only this column puts its copies in order."""
        rows = [
            (pid, 0, 0, seq, *[None] * pid, value, *[None] * (len(kinds) - pid - 1), values.index(value))
            for pid, (_, values) in enumerate(kinds)
            for seq in range(60)
            for value in random.Random(seq).choices(values, k=3)
        ]
        random.Random(0).shuffle(rows)
        types = {name: TYPES[name] for name in ("pid", "epoch", "partition", "seq")}
        types |= {f"note_{pid}": kind for pid, (kind, _) in enumerate(kinds)} | {"number": pa.int32()}
        df = spark.read.parquet(write_files(tmp_path / "rows", rows, types=types))
        assert plan_of(deduplicate(df)).count("FileScan") == scans
        assert check(df) == 60 * len(kinds)

    def test_columns_that_cannot_be_sorted(self, spark: SparkSession, tmp_path: Path) -> None:
        folder = write_files(tmp_path / "rows", stream())
        nested = {"map": F.create_map(F.lit("x"), "note"), "array": F.array("note")}
        df = spark.read.parquet(folder).withColumns(
            {name: F.when(F.col("seq") >= 0, it) for name, it in nested.items()}
        )
        check(df.drop("note"))

    def test_other_columns_in_folders(self, spark: SparkSession, tmp_path: Path) -> None:
        for day in (1, 2):
            write_files(tmp_path / "rows" / f"day={day}", stream(seed=day))
        check(spark.read.parquet(str(tmp_path / "rows")))

    def test_names(self, spark: SparkSession, tmp_path: Path) -> None:
        names = ["a b", "100%", "%20", "ü→", "#1+2", "who?", "x=1&y;z", "'\"`", "~^|"]
        rows = stream()
        for number, name in enumerate(names):
            write(tmp_path / name / f"{name} {number}.parquet", rows[number :: len(names)])
        df = spark.read.parquet(*(str(tmp_path / name) for name in names))
        assert df.count() == len(rows)
        check(df)

    def test_paths_spelled_in_other_ways(self, spark: SparkSession, tmp_path: Path) -> None:
        folder = write_files(tmp_path / "rows", stream())
        expected = found(deduplicate(spark.read.parquet(folder)))
        for spelled in (f"file:{folder}", f"file://{folder}", f"{folder}/../rows", f"{folder}/*", f"{folder}//"):
            df = spark.read.parquet(spelled)
            assert choose_strategy(df).name == "files"
            assert found(deduplicate(df)) == expected

    def test_files_without_rows(self, spark: SparkSession, tmp_path: Path) -> None:
        write(tmp_path / "rows" / "none.parquet", [])
        assert check(spark.read.parquet(str(tmp_path / "rows"))) == 0
        write_files(tmp_path / "rows", stream())
        check(spark.read.parquet(str(tmp_path / "rows")))

    @pytest.mark.parametrize("times", [1, 2])
    def test_no_copies_and_nothing_but_copies(self, spark: SparkSession, tmp_path: Path, times: int) -> None:
        rows = [(7, 0, 0, seq, "same") for seq in range(300)] * times
        assert check(spark.read.parquet(write_files(tmp_path / "rows", rows))) == 300

    def test_sequences_on_both_sides_of_the_wrap(self, spark: SparkSession, tmp_path: Path) -> None:
        seqs = [*range(2**31 - 40, 2**31), *range(40), 2**30, *range(2**31 - 5, 2**31), *range(5)]
        rows = [(7, 0, 0, seq, None) for seq in seqs]
        assert check(spark.read.parquet(write_files(tmp_path / "rows", rows))) == 81

    def test_many_shards_and_small_batches(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(copies, "SHARD_ROWS_MAX", 50)
        df = spark.read.parquet(write_files(tmp_path / "rows", stream(), files=6))
        with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=3, spark_sql_files_maxPartitionBytes=500):
            check(df)

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("spark.sql.adaptive.enabled", "false"),
            ("spark.sql.parquet.enableVectorizedReader", "false"),
            ("spark.sql.autoBroadcastJoinThreshold", "-1"),
            ("spark.sql.codegen.wholeStage", "true"),
        ],
    )
    def test_settings(self, spark: SparkSession, tmp_path: Path, setting: str, value: str) -> None:
        df = spark.read.parquet(write_files(tmp_path / "rows", stream()))
        with settings(spark, **{setting.replace(".", "_"): value}):
            check(df)


class TestThePlan:
    """What is shuffled, and when."""

    @pytest.fixture
    def df(self, spark: SparkSession, tmp_path: Path) -> DataFrame:
        return spark.read.parquet(write_files(tmp_path / "rows", stream()))

    def test_the_strategy_is_reported(self, df: DataFrame) -> None:
        rows = len(stream())
        assert choose_strategy(df).name == "files"
        assert f"3 Parquet files with {rows:,} rows" in choose_strategy(df).reason
        assert choose_strategy(df, co_located=True) == ("co_located", "asked for")
        with pytest.raises(fp.PolicyError, match="pass order_by"):
            choose_strategy(df, "kafka")

    def test_every_action_agrees(self, df: DataFrame) -> None:
        """Also those that need no column, or one that has nothing to do with copies."""
        kept = deduplicate(df)
        assert kept.count() == len(found(kept)) == kept.select(F.lit(1)).count() == len(found(kept.select("note")))

    def test_no_query_runs_before_an_action(self, spark: SparkSession, df: DataFrame) -> None:
        spark.sparkContext.setJobGroup("before", "")
        try:
            deduplicate(df)
            assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("before")) == []
            deduplicate(df).count()
            assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("before")) != []
        finally:
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)

    def test_no_whole_row_is_shuffled_where_types_can_be_compared(self, df: DataFrame) -> None:
        plan = plan_of(deduplicate(df))
        assert (plan.count("FileScan"), plan.count("Window")) == (1, 0), plan
        others = plan_of(deduplicate(df.withColumn("half", F.col("seq") / 2)))
        assert others.count("FileScan") == 2, others

    def test_without_copies_the_files_are_scanned_once(self, spark: SparkSession, tmp_path: Path) -> None:
        rows = [(7, 0, 0, seq, None) for seq in range(300)]
        kept = deduplicate(spark.read.parquet(write_files(tmp_path / "alone", rows)), order_by="note")
        kept.collect()
        plan, _, _ = kept._jdf.queryExecution().executedPlan().toString().partition("Initial Plan")
        assert plan.count("FileScan") == 1, plan

    @pytest.mark.parametrize("tz", ["UTC", None])
    def test_milliseconds_put_copies_in_order_without_a_shuffle(
        self, spark: SparkSession, tmp_path: Path, tz: str | None
    ) -> None:
        rows = [(7, 0, 0, seq, seq + time) for seq in range(300) for time in (2, 1)]
        types = TYPES | {"note": pa.timestamp("ms", tz)}
        df = spark.read.parquet(write_files(tmp_path / "rows", rows, types=types))
        plan = plan_of(deduplicate(df))
        assert (plan.count("FileScan"), plan.count("Window")) == (1, 0), plan
        assert check(df) == 300

    def test_a_column_of_another_type_in_a_file_does_not_put_copies_in_order(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        rows = [(7, 0, 0, seq, seq + number) for seq in range(300) for number in (2, 1)]
        write_files(tmp_path / "rows", rows, types=TYPES | {"note": pa.int32()})
        schema = spark.read.parquet(str(tmp_path / "rows")).schema
        schema["note"].dataType = LongType()
        df = spark.read.schema(schema).parquet(str(tmp_path / "rows"))
        assert plan_of(deduplicate(df)).count("FileScan") == 2
        assert check(df) == 300

    def test_copies_are_searched_once(self, df: DataFrame) -> None:
        """Also where Spark compares some of the copies."""
        kept = deduplicate(df.withColumn("half", F.col("seq") / 2))
        kept.collect()
        plan, _, _ = kept._jdf.queryExecution().executedPlan().toString().partition("Initial Plan")
        assert plan.count("ReusedExchange") == 1, plan

    @pytest.mark.parametrize(
        ("rows", "cores", "expected"),
        [(0, 8, 2), (1 << 20, 8, 2), (3 << 20, 8, 3), (3 << 20, 2, 2), (1 << 30, 8, 256), (1 << 30, 1000, 1000)],
    )
    def test_the_number_of_shards(self, rows: int, cores: int, expected: int) -> None:
        assert copies._shard_count(rows, cores) == expected

    @pytest.mark.parametrize("values", [[1, 1, 2], [None, None, 1], ["b", "a", None], [None], ["", "a", "a"]])
    def test_the_lowest_of_copies(self, values: list[Any]) -> None:
        """Nulls are lowest. Most copies are equal, and only those that differ are ranked."""
        random = np.random.default_rng(len(values))
        copies_of = random.integers(0, 40, 200)
        several = [values[it] for it in random.integers(0, len(values), 200) * (copies_of % 2)]

        def key(value: Any) -> tuple[bool, Any]:
            return (value is not None, value if value is not None else 0)

        lowest = {it: min(key(v) for v, c in zip(several, copies_of, strict=True) if c == it) for it in copies_of}
        kind = pa.int64() if 1 in values else pa.string()
        found = copies._are_lowest(pa.chunked_array([pa.array(several, kind)]), copies_of)
        assert found.tolist() == [key(v) == lowest[c] for v, c in zip(several, copies_of, strict=True)]

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
    def test_texts_of_copies_may_have_more_than_2_gib(self, kind: pa.DataType) -> None:
        """Those of a shard's copies are together in memory, and small texts have 32-bit offsets."""
        large = plain_scan._arrow_type(StringType())
        assert (large, plain_scan._arrow_type(BinaryType())) == (pa.large_string(), pa.large_binary())
        column = pa.chunked_array([pa.array(["b", None], kind), pa.array(["a", "c"], kind)])
        taken = pa.chunked_array(copies._taken(column, pa.array([0, 1, 3]), large))
        assert (taken.type, taken.to_pylist()) == (large, ["b", None, "c"])

    @pytest.mark.parametrize("shards", [2, 7, 200])
    def test_each_shard_has_a_partition_of_its_own(self, spark: SparkSession, shards: int) -> None:
        keys = [(key,) for key in copies._keys_of_partitions(shards)]
        found = spark.createDataFrame(keys, "shard int").repartition(shards, "shard")
        assert found.select(F.spark_partition_id()).distinct().count() == shards

    def test_a_task_that_is_tried_again(self, df: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each task fails after it has given all it had."""
        expected = found(deduplicate(df))
        original = copies._in_worker

        def failing_once(work: str, *arguments: Any) -> Callable[[Any], Iterator[Any]]:
            run = original(work, *arguments)

            def run_twice(batches: Any) -> Iterator[Any]:
                yield from run(batches)
                context = TaskContext.get()
                assert context is not None
                if context.attemptNumber() == 0:
                    (tmp_path / f"{work}-{context.partitionId()}").touch()
                    raise RuntimeError("the first attempt is lost")

            return run_twice

        monkeypatch.setattr(copies, "_in_worker", failing_once)
        assert found(deduplicate(df)) == expected
        assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} >= {"scan_files", "find_copies"}

    def test_joins_and_filters_above(self, df: DataFrame) -> None:
        kept, general = deduplicate(df), deduplicate(shuffled(df))
        for use in (
            lambda it: it.where("note = 'a'"),
            lambda it: it.select("note"),
            lambda it: it.groupBy("pid").count(),
            lambda it: it.join(it.groupBy("pid").agg(F.max("seq").alias("seq")), ["pid", "seq"]),
            lambda it: it.alias("a").join(it.alias("b"), ["pid", "seq"]).select("a.note", "b.note"),
            lambda it: it.orderBy("pid", "seq", "note").limit(50),
        ):
            assert found(use(kept)) == found(use(general))
        assert found(kept.where(df.pid == 3)) == found(general.where("pid = 3"))


class TestTheGeneralWay:
    """DataFrames that are not a plain scan, and the reason."""

    def check(self, df: DataFrame, reason: str, **options: Any) -> None:
        way = choose_strategy(df, **options)
        assert way.name == "shuffle"
        assert reason in way.reason
        deduplicate(df, **options).collect()

    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        return write_files(tmp_path / "rows", stream())

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda df: df.where("pid > 2"), "it has a Filter"),
            (lambda df: df.limit(5), "it has a "),
            (lambda df: df.union(df), "it has a Union"),
            (lambda df: df.distinct(), "it has a Aggregate"),
            (lambda df: df.repartition(2), "it has a Repartition"),
            (lambda df: df.join(df.select("pid").distinct(), "pid"), "it has a "),
            (lambda df: df.withColumn("note", F.explode(F.array("note", "note"))), "it has a Generate"),
            (lambda df: df.withColumn("note", F.udf(str.upper)(F.lit("x"))), "EvalPython"),
            (lambda df: df.withColumn("note", F.rand()), "get other values"),
            (lambda df: df.withColumn("seq", F.col("seq") + 1), "column 'seq' is computed"),
            (lambda df: df.withColumn("source", F.lit("x")), "column 'source' is never null"),
            (lambda df: df.withColumn("partition", F.lit(1)), "column 'partition' is computed"),
            (lambda df: df.withColumn("partition", F.col("pid")), "are one column of"),
            (lambda df: df.sparkSession.createDataFrame(df.toArrow()), "it has a "),
        ],
    )
    def test_plans(
        self, spark: SparkSession, folder: str, change: Callable[[DataFrame], DataFrame], reason: str
    ) -> None:
        self.check(change(spark.read.parquet(folder)), reason)

    def test_frames_that_are_kept_in_memory(self, spark: SparkSession, folder: str) -> None:
        df = spark.read.parquet(folder).cache()
        try:
            self.check(df, "it has a InMemoryRelation")
        finally:
            df.unpersist()

    def test_arguments(self, spark: SparkSession, folder: str) -> None:
        df = spark.read.parquet(folder).where("pid >= 0")
        df.write.parquet(f"{folder}/../tracked")
        tracked = spark.read.parquet(f"{folder}/../tracked")
        for policy in ("in_order", "kafka", "strict"):
            self.check(tracked, "depend on the order", policy=policy, order_by="seq")
        self.check(tracked, "rows without identity", untracked="fail")

    def test_texts_that_are_equal_in_other_ways(self, spark: SparkSession, folder: str) -> None:
        df = spark.read.schema("pid bigint, epoch short, partition int, seq int, note string").parquet(folder)
        collated = df.withColumn("partition", F.col("note").cast("string collate UTF8_LCASE"))
        self.check(collated.where("note is not null"), "column 'partition' is string collate UTF8_LCASE")

    def test_other_formats(self, spark: SparkSession, folder: str) -> None:
        spark.read.parquet(folder).write.orc(f"{folder}/../orc")
        self.check(spark.read.orc(f"{folder}/../orc"), "read by OrcFileFormat")
        with settings(spark, spark_sql_sources_useV1SourceList=""):
            self.check(spark.read.parquet(folder), "it has a ")

    def test_tables(self, spark: SparkSession, folder: str) -> None:
        df = spark.read.parquet(folder)
        try:
            df.write.bucketBy(2, "pid").saveAsTable("bucketed")
            self.check(spark.table("bucketed"), "the table is bucketed")
            df.write.partitionBy("note").saveAsTable("partitioned")
            self.check(spark.table("partitioned"), "listed by CatalogFileIndex")
            df.write.saveAsTable("plain")
            check(spark.table("plain"))
        finally:
            for name in ("bucketed", "partitioned", "plain"):
                spark.sql(f"drop table if exists {name}")

    def test_identities_in_the_names_of_folders(self, spark: SparkSession, folder: str) -> None:
        spark.read.parquet(folder).where("pid >= 0").write.partitionBy("partition").parquet(f"{folder}/../in-folders")
        self.check(spark.read.parquet(f"{folder}/../in-folders"), "names of folders")

    def test_options_that_pass_over_files(self, spark: SparkSession, folder: str) -> None:
        for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
            self.check(spark.read.option(name.lower(), True).parquet(folder), f"{name} lets Spark")
            with settings(spark, **{f"spark_sql_files_{name}": True}):
                self.check(spark.read.parquet(folder), f"{name} lets Spark")
        with settings(spark, spark_sql_parquet_fieldId_read_enabled=True):
            self.check(spark.read.parquet(folder), "have other names")

    def test_files_that_lack_a_column_or_have_another_type(self, spark: SparkSession, tmp_path: Path) -> None:
        rows = stream()
        write_files(tmp_path / "lacks", rows)
        others = {name: kind for name, kind in TYPES.items() if name != "pid"}
        write(tmp_path / "lacks" / "x.parquet", [row[1:] for row in rows], others)
        self.check(spark.read.option("mergeSchema", True).parquet(str(tmp_path / "lacks")), "column 'pid'")
        write(tmp_path / "wider" / "x.parquet", rows)
        wider = spark.read.schema("pid long, epoch short, partition long, seq int").parquet(str(tmp_path / "wider"))
        self.check(wider, "column 'partition' is int32, which Spark reads as int64")
        upper = spark.read.schema("PID long, epoch short, partition int, seq int").parquet(str(tmp_path / "wider"))
        self.check(upper, "column 'PID'")

    def test_names_of_our_own(self, spark: SparkSession, tmp_path: Path) -> None:
        types = {("_row" if name == "seq" else name): kind for name, kind in TYPES.items()}
        df = spark.read.parquet(write_files(tmp_path / "rows", stream(), types=types))
        self.check(df, "column '_row'", columns=fp.Columns(seq="_row"))

    def test_a_file_that_is_listed_twice(self, spark: SparkSession, folder: str) -> None:
        df = spark.read.parquet(f"{folder}/0.parquet", f"{folder}/0.parquet")
        rows = found(deduplicate(df))
        assert rows == found(deduplicate(shuffled(df)))
        assert df.count() == 2 * spark.read.parquet(f"{folder}/0.parquet").count()
        assert choose_strategy(df).name == "shuffle"
        assert "listed twice" in choose_strategy(df).reason

    def test_a_frame_above_a_limit_is_not_a_plain_scan(
        self, spark: SparkSession, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        df = spark.read.parquet(folder)
        with monkeypatch.context() as patch:
            patch.setattr(plain_scan, "FILES_MAX", 2)
            self.check(df, "there are 3 files, more than 2")
        with monkeypatch.context() as patch:
            patch.setattr(plain_scan, "ROWS_MAX", 9)
            self.check(df, f"the files have {len(stream())} rows, more than 9")
        with monkeypatch.context() as patch:
            patch.setattr(plain_scan, "WORD_BITS", 63)
            self.check(df, "the same hash")

    def test_no_files(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "rows").mkdir()
        df = spark.read.schema("pid long, epoch short, partition int, seq int").parquet(str(tmp_path / "rows"))
        self.check(df, "there are no files")

    def test_files_that_only_spark_can_open(self, spark: SparkSession, folder: str) -> None:
        """A missing file is named, and so is a file that the native reader refuses."""
        df = spark.read.parquet(folder)
        Path(folder, "1.parquet").unlink()
        assert choose_strategy(df).name == "shuffle"
        assert "1.parquet" in choose_strategy(df).reason


class TestChanges:
    """Between the call and the action: an error that names the file, or what Spark's own scan does."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return Path(write_files(tmp_path / "rows", stream()))

    def check(self, kept: DataFrame, *words: str) -> None:
        with pytest.raises((PySparkException, Py4JJavaError)) as error:
            kept.collect()
        for word in words:
            assert word in str(error.value)

    @pytest.mark.parametrize(
        ("is_used", "is_adaptive"),
        [
            (True, True),
            (False, False),
            pytest.param(True, False, marks=pytest.mark.matrix),
            pytest.param(False, True, marks=pytest.mark.matrix),
        ],
    )
    def test_a_file_that_is_replaced(self, spark: SparkSession, folder: Path, is_adaptive: bool, is_used: bool) -> None:
        """Also if Spark reuses the exchange of an earlier action."""
        with settings(spark, spark_sql_adaptive_enabled=is_adaptive):
            kept = deduplicate(spark.read.parquet(str(folder)))
            if is_used:
                kept.collect()
            write(folder / "1.parquet", stream(seed=1))
            self.check(kept, "ChangedError", "rows/1.parquet: changed while")

    def test_a_file_of_the_same_size_and_time(self, spark: SparkSession, folder: Path) -> None:
        path, rows = folder / "1.parquet", [(7, 0, 0, seq, None) for seq in range(40)]
        plain = {"compression": "none", "use_dictionary": False}
        write(path, rows, **plain)
        kept, before = deduplicate(spark.read.parquet(str(folder))), path.stat()
        write(path, [(8, *row[1:]) for row in rows], **plain)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        self.check(kept, "ChangedError", "rows/1.parquet: its footer changed")

    def test_a_file_that_vanishes(self, spark: SparkSession, folder: Path) -> None:
        kept = deduplicate(spark.read.parquet(str(folder)))
        (folder / "1.parquet").unlink()
        self.check(kept, "rows/1.parquet", "was deleted")

    def test_a_setting_that_lets_spark_pass_over_files(self, spark: SparkSession, folder: Path) -> None:
        """The rows of a file that Spark passes over may be those whose copies are dropped."""
        kept = deduplicate(spark.read.parquet(str(folder)))
        never = deduplicate(spark.read.option("ignoreCorruptFiles", False).parquet(str(folder)))
        before = found(kept)
        with settings(spark, spark_sql_files_ignoreCorruptFiles=True):
            self.check(kept, "PolicyError", "spark.sql.files.ignoreCorruptFiles was set after deduplicate")
            assert found(never) == before
        assert found(deduplicate(spark.read.parquet(str(folder)))) == before

    def test_a_file_that_comes(self, spark: SparkSession, folder: Path) -> None:
        """A new file is not in the DataFrame, as in any scan, unless Spark lists the folder again."""
        df = spark.read.parquet(str(folder))
        kept = deduplicate(df)
        before = found(kept)
        write(folder / "9.parquet", stream(seed=9))
        assert found(kept) == before
        df.cache().count()
        spark.catalog.refreshByPath(str(folder))
        df.unpersist()
        assert df.count() > len(stream())
        self.check(kept.select("seq"), "rows/9.parquet was not there")

    def test_a_file_of_bad_rows(self, spark: SparkSession, folder: Path) -> None:
        write(folder / "1.parquet", [(7, 0, 0, 1, None), (7, 0, 0, None, None)])
        self.check(deduplicate(spark.read.parquet(str(folder))), "BatchError", "1.parquet", "column 'seq', row 1: null")


@hypothesis.settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), max_size=30), st.booleans())
def test_rows_that_have_copies(drawn: list[tuple[int, int, int]], is_text: bool) -> None:
    """All rows and no others, in any order of spans."""
    rows = [0, *np.cumsum([length for *_, length in drawn])[:-1]] if drawn else []
    columns: dict[str, Any] = {
        "pid": pa.array([f"p{pid}" if is_text else pid for pid, _, _ in drawn], pa.string() if is_text else pa.int64()),
        "epoch": pa.array([0] * len(drawn), pa.int16()),
        "partition": pa.array([0] * len(drawn), pa.int32()),
        "seq": pa.array([seq for _, seq, _ in drawn], pa.int32()),
        "_length": pa.array([length for *_, length in drawn], pa.uint32()),
        "_file": pa.array([3] * len(drawn), pa.uint32()),
        "_row": pa.array(rows, pa.uint64()),
    }
    found, identities = copies.rows_with_copies(pa.table(columns), fp.Policy.any_order())
    times = Counter((pid, seq + step) for pid, seq, length in drawn for step in range(length))
    expected = {
        first + step: (pid, seq + step)
        for (pid, seq, length), first in zip(drawn, rows, strict=True)
        for step in range(length)
        if times[pid, seq + step] > 1
    }
    assert found.row.tolist() == list(expected)
    number_of = dict(zip(expected.values(), identities.tolist(), strict=True))
    assert [number_of[it] for it in expected.values()] == identities.tolist()
    assert len(set(number_of.values())) == len(number_of), "other identities have other numbers"
    assert found.file.tolist() == [3] * len(expected)
