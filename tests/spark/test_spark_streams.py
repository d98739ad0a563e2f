"""`foreach_batch`: batches of a query as versions of a state, whatever dies between them."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import fencepost as fp
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from conftest import settings
from fencepost import state, telemetry
from fencepost.lake import LocalEngine
from fencepost.lake.run import Run
from fencepost.state import retention
from fencepost.state.disk import Disk
from fencepost.state.sinks import RunFolders
from fencepost_spark import SparkEngine, streams
from fencepost_spark.kafka import KafkaSource
from fencepost_spark.streams import QUERY_ID, BatchWriter, foreach_batch
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from support.lake import IS_TRACKED, SCHEMA, first_of_each, hashes, land, make_rows, read_sink
from support.spark_jobs import DDL

OPTIONS = {"kafka.isolation.level": "read_committed"}
KEYS = ["pid", "epoch", "partition", "seq"]


def stream(
    spark: SparkSession,
    root: Path,
    write: Callable[[DataFrame, int], None],
    checkpoint: str = "checkpoint",
    files: int = 1,
) -> None:
    """Read what is new in the landing folder, so many files a batch, and end."""
    frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", files).parquet(str(root / "source"))
    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(root / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def writer(root: Path, **options: Any) -> BatchWriter:
    return foreach_batch(root / "state", root / "sink", **options)


def land_some(root: Path, *seeds: int) -> None:
    for seed in seeds:
        land(root / "source", f"{seed}.parquet", make_rows(seed, 300))


def rows_of(*seeds: int) -> pl.DataFrame:
    return pl.DataFrame(pa.concat_tables([make_rows(seed, 300) for seed in seeds]))


def assert_tracked_kept(root: Path, rows: pl.DataFrame) -> None:
    """Each identity once; untracked rows come as often as their batches."""
    found = read_sink(root).filter(IS_TRACKED).select(KEYS).sort(KEYS)
    polars.testing.assert_frame_equal(found, first_of_each(rows.filter(IS_TRACKED)).select(KEYS).sort(KEYS))


def assert_kept(root: Path, *seeds: int) -> None:
    """Each identity once, each untracked row once. Which of two copies stays depends on the order of batches."""
    rows = rows_of(*seeds)
    found = read_sink(root).select(SCHEMA.names)
    assert set(found["origin"]) <= set(rows["origin"])
    polars.testing.assert_frame_equal(found.select(KEYS).sort(KEYS), first_of_each(rows).select(KEYS).sort(KEYS))


@pytest.mark.parametrize("engine", [SparkEngine, LocalEngine])
def test_each_batch_is_a_version(
    spark: SparkSession, tmp_path: Path, engine: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fencepost")
    land_some(tmp_path, 0, 1)
    write = writer(tmp_path, engine=engine())
    stream(spark, tmp_path, write)
    land_some(tmp_path, 2)
    stream(spark, tmp_path, write)
    assert_kept(tmp_path, 0, 1, 2)
    opened = state.open(tmp_path / "state")
    positions = [opened.version(it).source_position for it in range(1, opened.decided() + 1)]
    assert [it["batch"] for it in positions if it] == [0, 1, 2]
    assert len({it["query"] for it in positions if it}) == 1
    records = [vars(record) for record in caplog.records]
    assert [it["fencepost.batch"] for it in records] == [0, 1, 2]
    assert {it["fencepost.query"] for it in records} == {it["query"] for it in positions if it}
    assert write.report is not None
    assert (write.report.version, write.report.rows) == (3, 300)
    assert not list((tmp_path / "sink.batches").iterdir())


class Instrument:
    """Stands for an instrument or a span of OpenTelemetry: not every environment of these tests has its SDK."""

    def __init__(self) -> None:
        self.values: list[tuple[Any, dict[str, Any]]] = []
        self.attributes: dict[str, Any] = {}

    def add(self, value: Any, attributes: dict[str, Any]) -> None:
        self.values.append((value, attributes))

    record = set = add

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        self.attributes |= attributes


def test_each_batch_has_a_span_and_metrics(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[tuple[str, Instrument]] = []
    made = telemetry.Instruments(*(Instrument() for _ in telemetry.Instruments._fields))

    def begin(name: str, attributes: dict[str, Any]) -> Any:
        spans.append((name, Instrument()))
        spans[-1][1].set_attributes(attributes)
        return nullcontext(spans[-1][1])

    monkeypatch.setattr(telemetry, "_span", begin)
    monkeypatch.setattr(telemetry, "_instruments", lambda: made)
    monkeypatch.setattr(streams, "lag_of", lambda sources: 7)
    land_some(tmp_path, 0, 1)
    stream(spark, tmp_path, writer(tmp_path, engine=LocalEngine()))
    found = [span.attributes for name, span in spans if name == "fencepost.run"]
    assert [(it["fencepost.batch"], it["fencepost.rows"], it["fencepost.lag"]) for it in found] == [
        (0, 300, 7),
        (1, 300, 7),
    ]
    assert len({it["fencepost.query"] for it in found}) == 1
    assert [value for value, _ in made.lag.values] == [7, 7]
    assert sum(value for value, _ in made.rows.values) == 600
    labels = {name for it in made for _, attributes in it.values for name in attributes}
    assert not {"fencepost.query", "fencepost.batch"} & labels, "each batch would be a time series"


@pytest.mark.parametrize("trigger", [{}, {"processingTime": "200 milliseconds"}])
def test_a_query_that_runs_on(spark: SparkSession, tmp_path: Path, trigger: dict[str, Any]) -> None:
    """As fast as it can, or every so often; stopped while it waits, and begun again."""
    for seeds in ((0, 1), (2,)):
        land_some(tmp_path, seeds[0])
        frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
        writing = frame.writeStream.foreachBatch(writer(tmp_path)).option("checkpointLocation", str(tmp_path / "at"))
        query = (writing.trigger(**trigger) if trigger else writing).start()
        try:
            query.processAllAvailable()
            land_some(tmp_path, *seeds[1:])
            query.processAllAvailable()
        finally:
            query.stop()
    assert_kept(tmp_path, 0, 1, 2)
    assert state.open(tmp_path / "state").decided() == 3


def shuffled(spark: SparkSession) -> dict[int, int]:
    """The rows that each stage has shuffled, by its number."""
    context: Any = spark.sparkContext
    quantiles = context._gateway.new_array(context._jvm.double, 0)
    found = context._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)
    stages = [found.apply(place) for place in range(found.size())]
    return {stage.stageId(): stage.shuffleWriteRecords() for stage in stages}


def test_with_a_task_per_partition_nothing_is_exchanged(spark: SparkSession, tmp_path: Path) -> None:
    """Every batch reports its plan: its files are checked, and a file with rows of several partitions is detected."""
    rows = pl.DataFrame(make_rows(0, 1200)).filter(pl.col("pid") >= 0, pl.col("epoch") == 0)
    cut = rows["pid"].median()
    halves = [rows.filter(pl.col("pid") <= cut), rows.filter(pl.col("pid") > cut)]
    later = [pl.col("seq") + 1000 * number for number in range(3)]
    batches = [[half.slice(number * 100, 100).with_columns(it) for half in halves] for number, it in enumerate(later)]
    batches[2] = [batches[2][0], pl.concat(batches[2])]
    before = shuffled(spark)
    spark.sparkContext.setLocalProperty(QUERY_ID, "one")
    try:
        plans = []
        for number, parts in enumerate(batches):
            for place, part in enumerate(parts):
                land(tmp_path / "source" / str(number), f"{place}.parquet", part.to_arrow().cast(SCHEMA))
            write = writer(tmp_path)
            with settings(spark, spark_sql_files_openCostInBytes=1 << 40):
                write(spark.read.schema(DDL).parquet(str(tmp_path / "source" / str(number))), number)
            assert write.report is not None
            plans.append(write.report.plan)
    finally:
        spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]
    assert plans == ["aligned", "aligned", "interval"]
    stages = {stage: rows for stage, rows in shuffled(spark).items() if stage not in before}
    assert stages
    assert not any(stages.values())
    found = read_sink(tmp_path).select(SCHEMA.names)
    wanted = pl.concat([part for parts in batches for part in parts]).unique(KEYS)
    polars.testing.assert_frame_equal(found.select(KEYS).sort(KEYS), wanted.select(KEYS).sort(KEYS))


def test_a_restart_continues_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    for seed in range(3):
        land_some(tmp_path, seed)
        stream(spark, tmp_path, writer(tmp_path))
    assert_kept(tmp_path, 0, 1, 2)


@pytest.mark.parametrize("after", [False, True])
def test_a_batch_that_is_delivered_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The driver fails between decision and output, or when the batch is over and Spark does not know it yet."""
    land_some(tmp_path, 0)
    stream(spark, tmp_path, writer(tmp_path))
    land_some(tmp_path, 1)
    write = writer(tmp_path)
    real = RunFolders.apply

    def dying(*arguments: Any) -> str:
        raise OSError("no power")

    def late(batch: DataFrame, number: int) -> None:
        write(batch, number)
        raise OSError("no power")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolders, "apply", real if after else dying)
        with pytest.raises(StreamingQueryException, match="no power"):
            stream(spark, tmp_path, late if after else write)
    land_some(tmp_path, 2)
    stream(spark, tmp_path, writer(tmp_path))
    assert_kept(tmp_path, 0, 1, 2)
    assert state.open(tmp_path / "state").decided() == 3


def test_a_new_checkpoint_is_adopted_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    land_some(tmp_path, 0, 1)
    stream(spark, tmp_path, writer(tmp_path))
    land_some(tmp_path, 2)
    with pytest.raises(StreamingQueryException, match="adopt_checkpoint=True"):
        stream(spark, tmp_path, writer(tmp_path), "checkpoint2")
    stream(spark, tmp_path, writer(tmp_path, adopt_checkpoint=True), "checkpoint2")
    assert_tracked_kept(tmp_path, rows_of(0, 1, 2))


def test_a_state_that_was_lost_or_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    for seed in range(2):
        land_some(tmp_path, seed)
        stream(spark, tmp_path, writer(tmp_path))
    for file in (tmp_path / "sink" / "run=2").rglob("*.parquet"):
        file.unlink()
    state.open(tmp_path / "state").rollback(1)
    land_some(tmp_path, 2)
    with pytest.raises(StreamingQueryException, match=r"batch 2 of query .* does not follow batch 0"):
        stream(spark, tmp_path, writer(tmp_path))


@pytest.mark.parametrize("sink_too", [False, True])
def test_a_state_that_is_gone(spark: SparkSession, tmp_path: Path, sink_too: bool) -> None:
    land_some(tmp_path, 0)
    stream(spark, tmp_path, writer(tmp_path))
    shutil.rmtree(tmp_path / "state")
    if sink_too:
        shutil.rmtree(tmp_path / "sink")
    before = hashes(tmp_path / "sink")
    land_some(tmp_path, 1)
    with pytest.raises(StreamingQueryException, match=r"state is empty, .*checkpoint of query .* up to 0"):
        stream(spark, tmp_path, writer(tmp_path))
    assert hashes(tmp_path / "sink") == before
    if not sink_too:
        with pytest.raises(StreamingQueryException, match=r"the state .* is empty: "):
            stream(spark, tmp_path, writer(tmp_path, adopt_checkpoint=True))
        shutil.rmtree(tmp_path / "sink")
    stream(spark, tmp_path, writer(tmp_path, adopt_checkpoint=True))
    assert_kept(tmp_path, 1)


def take_back(root: Path) -> None:
    """Put the checkpoint back as it was when it was copied."""
    shutil.rmtree(root / "checkpoint")
    shutil.copytree(root / "old", root / "checkpoint")


def test_a_checkpoint_that_was_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    """Spark uses the numbers of judged batches again, and may put other rows into them."""
    land_some(tmp_path, 0)
    stream(spark, tmp_path, writer(tmp_path))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    for seed in (1, 2):
        land_some(tmp_path, seed)
        stream(spark, tmp_path, writer(tmp_path))
    take_back(tmp_path)
    land_some(tmp_path, 3)
    with pytest.raises(StreamingQueryException, match=r"knows batch 2 .*up to .*; .*batch 1 of"):
        stream(spark, tmp_path, writer(tmp_path), files=9)
    assert state.open(tmp_path / "state").decided() == 3
    stream(spark, tmp_path, writer(tmp_path, adopt_checkpoint=True), files=9)
    land_some(tmp_path, 4)
    stream(spark, tmp_path, writer(tmp_path))
    assert_tracked_kept(tmp_path, rows_of(*range(5)))


def test_a_batch_under_an_old_number_that_holds_more(spark: SparkSession, tmp_path: Path) -> None:
    land_some(tmp_path, 0)
    stream(spark, tmp_path, writer(tmp_path))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    land_some(tmp_path, 1)
    stream(spark, tmp_path, writer(tmp_path))
    take_back(tmp_path)
    land_some(tmp_path, 2)
    with pytest.raises(StreamingQueryException, match=r"knows batch 1 .*up to .*; .*batch 1 of"):
        stream(spark, tmp_path, writer(tmp_path), files=9)


@pytest.mark.parametrize("how", ["one function", "a function per part", "a job group per part"])
def test_a_batch_in_parts_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The second part would look like a repeated delivery of the first: Kafka's offsets are those of the batch."""
    monkeypatch.setattr("fencepost_spark.streams.kafka_sources", lambda execution: [KafkaSource(OPTIONS, {}, {})])
    land_some(tmp_path, 0)
    write = writer(tmp_path)

    def in_parts(batch: DataFrame, number: int) -> None:
        for part in ("seq < 30", "seq >= 30"):
            if how == "a job group per part":
                spark.sparkContext.setJobGroup(part, part)
            (writer(tmp_path) if how == "a function per part" else write)(batch.where(part), number)

    with pytest.raises(StreamingQueryException, match=r"batch 0 of query .* was passed in parts"):
        stream(spark, tmp_path, in_parts)


def test_batches_go_to_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    land_some(tmp_path, 0, 1)
    stream(spark, tmp_path, writer(tmp_path, layout="delta", rejects="all"))
    found = DeltaTable(tmp_path / "sink").to_pyarrow_table()
    assert len(found) == len(first_of_each(rows_of(0, 1)))


def test_batches_without_rows_are_versions(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "source", "0.parquet", SCHEMA.empty_table())
    stream(spark, tmp_path, writer(tmp_path))
    land_some(tmp_path, 1)
    stream(spark, tmp_path, writer(tmp_path))
    assert_kept(tmp_path, 1)


class Rows:
    """A database that stores each version once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[int] = []
        self.attempts: list[str] = []
        with sqlite3.connect(path) as database:
            database.execute("create table rows (origin text)")
            database.execute("create table versions (number integer primary key)")

    def __call__(self, kept: DataFrame, version: int, attempt: str) -> None:
        self.calls.append(version)
        self.attempts.append(attempt)
        origins = [(row.origin,) for row in kept.collect()]
        with sqlite3.connect(self.path) as database:
            if database.execute("select 1 from versions where number >= ?", (version,)).fetchone():
                return
            database.executemany("insert into rows values (?)", origins)
            database.execute("insert into versions values (?)", (version,))

    def origins(self) -> list[str]:
        with sqlite3.connect(self.path) as database:
            return sorted(row[0] for row in database.execute("select origin from rows"))


def test_a_custom_sink_gets_each_version_and_its_number(spark: SparkSession, tmp_path: Path) -> None:
    sink = Rows(tmp_path / "rows.db")
    folder = tmp_path / "kept"
    land_some(tmp_path, 0)
    stream(spark, tmp_path, foreach_batch(tmp_path / "state", sink, folder=folder))
    land_some(tmp_path, 1)

    def failing(kept: DataFrame, version: int, attempt: str) -> None:
        sink(kept, version, attempt)
        raise OSError("no power")

    with pytest.raises(StreamingQueryException, match="no power"):
        stream(spark, tmp_path, foreach_batch(tmp_path / "state", failing, folder=folder))
    land(tmp_path / "source", "2.parquet", SCHEMA.empty_table())
    land_some(tmp_path, 3)
    stream(spark, tmp_path, foreach_batch(tmp_path / "state", sink, folder=folder))
    assert sink.calls == [1, 2, 2, 4]
    opened = state.open(tmp_path / "state")
    assert sink.attempts == [opened.version(it).attempt for it in sink.calls]
    origins = sink.origins()
    assert len(origins) == len(set(origins)) == len(first_of_each(rows_of(0, 1, 3)))
    assert not list(folder.glob("run=*/part-*.parquet")), "rows lie there until the function has returned"
    with pytest.raises(fp.SinkError, match="pass sink="):
        state.open(tmp_path / "state").rollback(1)


def test_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a folder"):
        foreach_batch(tmp_path / "state", lambda kept, version, attempt: None)
    with pytest.raises(ValueError, match=r"contain \[ \] \{, which Spark"):
        foreach_batch(tmp_path / "state", lambda kept, version, attempt: None, folder=tmp_path / "a{b[c]")
    with pytest.raises(ValueError, match=r"expected a function \(kept, version, attempt\): too many positional"):
        foreach_batch(tmp_path / "state", lambda kept, version: None, folder=tmp_path / "kept")  # type: ignore[misc]
    with pytest.raises(ValueError, match="has its own folder"):
        writer(tmp_path, folder=tmp_path / "kept")
    with pytest.raises(ValueError, match="store needs a folder"):
        foreach_batch(tmp_path / "state", "s3://bucket/kept")
    with pytest.raises(ValueError, match=r"s3://bucket/batches.*: must be a path"):
        foreach_batch(tmp_path / "state", "s3://bucket/kept", folder="s3://bucket/batches")
    with pytest.raises(fp.StoreError, match="s3:/bucket/kept: neither a path"):
        foreach_batch(tmp_path / "state", Path("s3://bucket/kept"))


def test_outside_a_query(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(fp.SourceError, match="outside a streaming query"):
        writer(tmp_path)(spark.range(1), 0)


def test_a_driver_that_wakes_up_late_gets_a_conflict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frame(seed: int) -> DataFrame:
        return spark.createDataFrame(make_rows(seed, 300))

    spark.sparkContext.setLocalProperty(QUERY_ID, "one")
    try:
        writer(tmp_path)(frame(0), 0)
        real = Run.go_on

        def paused(run: Run) -> Any:
            monkeypatch.undo()
            for number in (1, 2):
                writer(tmp_path)(frame(number), number)
            return real(run)

        monkeypatch.setattr(Run, "go_on", paused)
        with pytest.raises(fp.StateConflictError):
            writer(tmp_path)(frame(1), 1)
        writer(tmp_path)(frame(3), 3)
    finally:
        spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]
    assert_kept(tmp_path, 0, 1, 2, 3)
    positions = [state.open(tmp_path / "state").version(it).source_position for it in range(1, 5)]
    assert [it["batch"] for it in positions if it] == [0, 1, 2, 3]


def test_a_batch_whose_files_are_gone_is_not_decided(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late driver of another query removes them as leftovers, or workers have another disk than the driver."""
    real = Run.go_on

    def without_files(run: Run) -> Any:
        assert run.override is not None
        next(Path(run.override.folder).glob("*.parquet")).unlink()
        return real(run)

    deliver(spark, tmp_path, make_rows(0, 300), 0)
    for files in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(Run, "go_on", without_files)
            with pytest.raises(fp.SourceError, match=r"sink.batches/.*: \d+ rows .* the batch has 300: "):
                deliver(spark, tmp_path, spark.createDataFrame(make_rows(1, 300)).repartition(files), 1)
    assert state.open(tmp_path / "state").decided() == 1
    deliver(spark, tmp_path, make_rows(1, 300), 1)
    assert_kept(tmp_path, 0, 1)


# -- A batch that is delivered again, and whose offsets do not tell what is in it


def deliver(spark: SparkSession, root: Path, rows: pa.Table | DataFrame, number: int, **options: Any) -> BatchWriter:
    """Give a batch as Spark does where it hides the offsets, as a source does that others wrap."""
    write = writer(root, **options)
    frame = rows if isinstance(rows, DataFrame) else spark.createDataFrame(rows)
    spark.sparkContext.setLocalProperty(QUERY_ID, "one")
    try:
        write(frame, number)
    finally:
        spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]
    return write


def other_rows(rows: pa.Table, **values: Any) -> pa.Table:
    """The first row with an identity is another, in these columns."""
    at = pc.index(pc.greater(rows["pid"], -1), True).as_py()
    lists = rows.to_pydict()
    for name, value in values.items():
        lists[name][at] = value
    return pa.table(lists, schema=rows.schema)


UNTRACKED = pa.table({name: [None, None] for name in KEYS} | {"origin": ["a", "b"]}, SCHEMA)


@pytest.mark.parametrize("engine", [SparkEngine, LocalEngine])
def test_with_offsets_hidden_the_same_batch_is_known_in_any_order(
    spark: SparkSession, tmp_path: Path, engine: type[Any]
) -> None:
    rows = make_rows(0, 300).filter(pc.greater(make_rows(0, 300)["pid"], -1))
    deliver(spark, tmp_path, rows, 0, engine=engine())
    position = state.open(tmp_path / "state").version(1).source_position
    assert position is not None
    assert (position["ends"], position["content"]["rows"]) == (None, len(rows))
    before = hashes(tmp_path / "sink")
    mixed = spark.createDataFrame(rows).repartition(5, "seq").sortWithinPartitions("pid")
    assert deliver(spark, tmp_path, mixed, 0).report is None
    assert deliver(spark, tmp_path, rows.append_column("now", pa.array(range(len(rows)))), 0).report is None
    assert hashes(tmp_path / "sink") == before
    deliver(spark, tmp_path, make_rows(1, 300), 1)
    both = pl.DataFrame(pa.concat_tables([rows, make_rows(1, 300)]))
    assert read_sink(tmp_path).height == len(first_of_each(both))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (make_rows(0, 299), "it had 300 rows, and now has 299"),
        (pa.concat_tables([make_rows(0, 300), make_rows(1, 1)]), "it had 300 rows, and now has 301"),
        (make_rows(1, 300), "it had 300 rows, .*other ones"),
        *(
            pytest.param(
                other_rows(make_rows(0, 300), **{name: 99}),
                "it had 300 rows, .*other ones",
                marks=() if name == "seq" else pytest.mark.matrix,
            )
            for name in KEYS
        ),
        (make_rows(0, 0), "it had 300 rows, and now has 0"),
    ],
)
def test_with_offsets_hidden_another_batch_under_a_known_number_is_refused(
    spark: SparkSession, tmp_path: Path, rows: pa.Table, message: str
) -> None:
    """A checkpoint that was restored by one batch, and a source that grew or was replaced meanwhile."""
    deliver(spark, tmp_path, make_rows(0, 300), 0)
    before = hashes(tmp_path)
    with pytest.raises(fp.SourceError, match=rf"batch 0 .*up to null; {message}; .*adopt_checkpoint=True"):
        deliver(spark, tmp_path, rows, 0)
    assert hashes(tmp_path) == before
    deliver(spark, tmp_path, rows, 0, adopt_checkpoint=True)
    assert_tracked_kept(tmp_path, pl.DataFrame(pa.concat_tables([make_rows(0, 300), rows])))


def test_rows_without_an_identity_are_compared_whole(spark: SparkSession, tmp_path: Path) -> None:
    deliver(spark, tmp_path, UNTRACKED, 0)
    assert deliver(spark, tmp_path, UNTRACKED.take([1, 0]), 0).report is None
    with pytest.raises(fp.SourceError, match="but other ones"):
        deliver(spark, tmp_path, UNTRACKED.take([0, 0]), 0)


def test_the_content_outlives_versions_of_other_kinds(spark: SparkSession, tmp_path: Path) -> None:
    deliver(spark, tmp_path, make_rows(0, 300), 0)
    state.open(tmp_path / "state").reshard(3)
    assert deliver(spark, tmp_path, make_rows(0, 300), 0).report is None
    with pytest.raises(fp.SourceError, match="but other ones"):
        deliver(spark, tmp_path, make_rows(1, 300), 0)


def test_offsets_that_are_seen_now_prove_nothing_if_they_were_hidden(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And vice versa. The source's offsets identify a batch, like Kafka's."""
    ends = [{"topic": {"0": 5}}]
    for then, now in ((None, ends), (ends, None), ([None], ends), (ends, [None])):
        root = tmp_path / f"{then}-{now}".replace("/", "")
        monkeypatch.setattr("fencepost_spark.streams._bounds", lambda execution, then=then: (None, then))
        deliver(spark, root, make_rows(0, 30), 0)
        monkeypatch.setattr("fencepost_spark.streams._bounds", lambda execution, now=now: (None, now))
        monkeypatch.setattr("fencepost_spark.streams.kafka_sources", lambda execution: [NoKafka()])
        assert deliver(spark, root, make_rows(0, 30), 0).report is None
        with pytest.raises(fp.SourceError, match=r"it had 30 rows, .*other ones"):
            deliver(spark, root, make_rows(1, 30), 0)
        monkeypatch.undo()


class NoKafka:
    """A source whose existence alone is checked."""

    end: ClassVar[dict[str, Any]] = {}
    newest = None


def test_a_decision_without_the_content_proves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost_spark.streams.content_of", lambda observation: None)
    deliver(spark, tmp_path, make_rows(0, 300), 0)
    with pytest.raises(fp.SourceError, match=r"batch 0 .*offsets do not tell"):
        deliver(spark, tmp_path, make_rows(0, 300), 0)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_checkpoint_taken_back_by_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    """As many rows, in as many files, under the number and up to the offset of the batch before; others."""
    if is_hidden:
        monkeypatch.setattr("fencepost_spark.streams.execution_of", lambda spark, query: None)
    land_some(tmp_path, 0)
    stream(spark, tmp_path, writer(tmp_path))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    land_some(tmp_path, 1)
    stream(spark, tmp_path, writer(tmp_path))
    take_back(tmp_path)
    (tmp_path / "source" / "1.parquet").unlink()
    land_some(tmp_path, 2)
    with pytest.raises(StreamingQueryException, match=r"it had 300 rows, .*other ones"):
        stream(spark, tmp_path, writer(tmp_path))
    assert_kept(tmp_path, 0, 1)
    stream(spark, tmp_path, writer(tmp_path, adopt_checkpoint=True))
    assert_tracked_kept(tmp_path, rows_of(0, 1, 2))


def test_fields_of_structs_identify_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(20).selectExpr("named_struct('Pid', 7L, 'seq', id div 2) payload", "0S epoch", "0 partition")
    columns = fp.Columns(pid="payload.Pid", seq="payload.seq")
    report = deliver(spark, tmp_path, rows, 0, columns=columns).report
    assert report is not None
    assert report.counts == {"ACCEPTED": 10, "DUPLICATE": 10}
    assert deliver(spark, tmp_path, rows, 0, columns=columns).report is None
    with pytest.raises(fp.BatchError, match=r"column 'payload\.pid': missing in the batch"):
        deliver(spark, tmp_path / "other", rows, 0, columns=fp.Columns(pid="payload.pid"))


def test_a_partition_is_one_file_whatever_the_session_says(spark: SparkSession, tmp_path: Path) -> None:
    """The name of the thousandth file of a partition would sort before that of the hundredth."""
    with settings(spark, spark_sql_files_maxRecordsPerFile=1):
        deliver(spark, tmp_path, spark.createDataFrame(make_rows(0, 30)).repartition(2), 0)
    assert len(state.open(tmp_path / "state").version(1).inputs) == 2


# -- A version that is given up, and a function that shows


@pytest.mark.parametrize("dies", [False, True])
def test_a_function_is_not_called_for_an_abandoned_version(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Abandoned between the decision and the call, or by a process that died before the state recorded it."""
    sink, folder = Rows(tmp_path / "rows.db"), tmp_path / "kept"
    spark.sparkContext.setLocalProperty(QUERY_ID, "one")
    real = state.State.decide

    def write() -> BatchWriter:
        return foreach_batch(tmp_path / "state", sink, folder=folder)

    def decide_and_lose(own: state.State, decision: Any) -> bool:
        is_first = real(own, decision)
        monkeypatch.undo()
        if dies:
            monkeypatch.setattr(state.State, "finish", dying)
        with pytest.raises(OSError, match="no power") if dies else nullcontext():
            own.abandon(decision.version, sink=RunFolders(folder, Disk()))
        monkeypatch.undo()
        return is_first

    def dying(*arguments: Any) -> None:
        raise OSError("no power")

    monkeypatch.setattr(state.State, "decide", decide_and_lose)
    try:
        with pytest.raises(fp.StateConflictError, match="version 1 was abandoned"):
            write()(spark.createDataFrame(make_rows(0, 300)), 0)
        assert sink.calls == []
        write()(spark.createDataFrame(make_rows(0, 300)), 0)
    finally:
        spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]
    assert sink.calls == [2]
    assert len(sink.origins()) == len(first_of_each(pl.DataFrame(make_rows(0, 300))))


def test_recovery_does_not_call_for_a_version_that_is_fenced(spark: SparkSession, tmp_path: Path) -> None:
    """The process that abandoned it died between the fence and its record."""
    sink, folder = Rows(tmp_path / "rows.db"), tmp_path / "kept"
    land_some(tmp_path, 0)

    def refusing(kept: DataFrame, version: int, attempt: str) -> None:
        raise OSError("refused by the column")

    with pytest.raises(StreamingQueryException, match="refused by the column"):
        stream(spark, tmp_path, foreach_batch(tmp_path / "state", refusing, folder=folder))
    opened = state.open(tmp_path / "state")
    assert RunFolders(folder, Disk()).fence(opened.version(1)) == "abandoned"
    stream(spark, tmp_path, foreach_batch(tmp_path / "state", sink, folder=folder))
    assert sink.calls == [2]
    assert len(sink.origins()) == len(first_of_each(pl.DataFrame(make_rows(0, 300))))


# -- What is checked when a writer is made


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "in_time"}, fp.PolicyError, "unknown policy 'in_time'"),
        ({"policy": "strict"}, fp.PolicyError, "pass order_by="),
        ({"policy": "kafka_offsets", "columns": fp.Columns()}, fp.PolicyError, "this policy ignores epochs"),
        ({"columns": "kafka"}, fp.PolicyError, "columns='kafka' names offsets"),
        ({"order_by": "_row"}, fp.BatchError, "column '_row'"),
        ({"rejects": "some"}, ValueError, "rejects='some'"),
        ({"shards": 0}, ValueError, "shards=0"),
        ({"colour": "red"}, TypeError, "colour"),
        ({"layout": "hive"}, ValueError, "layout='hive'"),
    ],
)
def test_arguments_are_checked_when_they_are_given(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        writer(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_missing_columns_are_refused_at_the_first_batch_even_if_it_is_empty(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(fp.BatchError, match=r"column 'number': missing in the batch, .*pid, epoch") as error:
        deliver(spark, tmp_path, spark.createDataFrame([], DDL), 0, columns=fp.Columns(seq="number"))
    assert error.value.column == "number"


def test_the_newest_versions_are_kept(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each batch: old versions are removed without a command."""
    monkeypatch.setattr(retention, "READERS_MS", -1)
    for batch in range(5):
        deliver(spark, tmp_path, make_rows(batch, 300), batch, keep_versions=2, keep_versions_ms=0)
    found = state.open(tmp_path / "state")
    assert found.version(5).oldest == 4
    with pytest.raises(fp.SnapshotError, match="version 3 is older than 4"):
        found.rollback(3)
    assert_kept(tmp_path, *range(5))


def test_leftovers_of_batches_are_collected(spark: SparkSession, tmp_path: Path) -> None:
    """Those of this state: another query may write its own to the same `folder=`."""
    batches = tmp_path / "sink.batches"
    own = hashlib.sha256(str(tmp_path / "state").encode()).hexdigest()[:12]
    left = {
        name: batches / f"{owner}-{name}-{'0' * 12}"
        for owner, name in ((own, "one-0"), (own, "one-1"), (own, "other-7"), (own, "one-2"), ("f" * 12, "another-0"))
    }
    for folder in (*left.values(), batches / "mine"):
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").touch()
    deliver(spark, tmp_path, make_rows(0, 300), 0)
    assert {path.name for path in batches.iterdir()} == {
        "mine", left["one-1"].name, left["one-2"].name, left["another-0"].name,
    }  # fmt: skip
    deliver(spark, tmp_path, make_rows(1, 300), 1)
    assert {path.name for path in batches.iterdir()} == {"mine", left["one-2"].name, left["another-0"].name}
