"""A table of a database as the sink of jobs and streams on Spark: workers fill tables, the driver inserts from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from fencepost.lake import DedupJob, LocalEngine
from fencepost.sql import StagedTable
from fencepost_spark import SparkEngine, foreach_batch
from fencepost_spark.streams import BatchWriter
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sqlalchemy import Engine, inspect, text
from support.databases import without_mariadb
from support.lake import first_of_each, land, make_rows
from support.spark_jobs import DDL

KEYS = ["pid", "epoch", "partition", "seq"]
# Tasks write there as those of tests/sql/test_staged.py do.
pytestmark = without_mariadb


@pytest.fixture
def events(database_url: str) -> Iterator[Engine]:
    engine = sqlalchemy.create_engine(database_url)
    with engine.begin() as connection:
        create = "CREATE TABLE events (pid BIGINT, epoch SMALLINT, partition INTEGER, seq INTEGER, origin TEXT)"
        connection.execute(text(create))
    yield engine
    engine.dispose()


def assert_stored(engine: Engine, *seeds: int, rows: int = 600) -> None:
    """Each identity once, each untracked row once. Which of two copies stays depends on the order of batches."""
    made = pl.DataFrame(pa.concat_tables([make_rows(seed, rows) for seed in seeds]))
    with engine.connect() as connection:
        query = text("SELECT pid, epoch, partition, seq, origin FROM events")
        found = [tuple(row) for row in connection.execute(query)]
    assert {row[4] for row in found} <= set(made["origin"])
    wanted = first_of_each(made).select(KEYS).rows()
    assert sorted((row[:4] for row in found), key=str) == sorted(wanted, key=str)


def test_a_job_on_spark(spark: SparkSession, events: Engine, database_url: str, tmp_path: Path) -> None:
    """Tasks are other processes: what they are sent can be pickled, and the tables they fill are found."""
    for seed in range(3):
        land(tmp_path / "source", f"{seed}.parquet", make_rows(seed))

    def job(**options: Any) -> Any:
        sink = StagedTable(database_url, "events", tmp_path / "sink")
        return DedupJob(tmp_path / "source", tmp_path / "state", sink, **options)

    assert job(engine=SparkEngine(spark)).run().version == 1
    assert_stored(events, 0, 1, 2)
    land(tmp_path / "source", "3.parquet", make_rows(3))
    assert job(engine=LocalEngine()).run().version == 2
    assert_stored(events, 0, 1, 2, 3)
    assert [it for it in inspect(events).get_table_names() if it.startswith("fencepost_stage")] == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stream_whose_driver_dies_at_the_transaction(
    spark: SparkSession, events: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The batch is delivered again, found decided, and finished: its rows come from tables of the workers."""
    land(tmp_path / "source", "0.parquet", make_rows(0, 300))

    def writer() -> BatchWriter:
        return foreach_batch(
            tmp_path / "state", StagedTable(database_url, "events", tmp_path / "sink"), engine=SparkEngine(spark)
        )

    def stream(write: BatchWriter) -> None:
        frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
        writing = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()

    stream(writer())
    land(tmp_path / "source", "1.parquet", make_rows(1, 300))
    commit = StagedTable._commit

    def die(sink: StagedTable, *arguments: Any) -> str:
        if when == "after":
            commit(sink, *arguments)
        raise RuntimeError("the driver dies")

    with monkeypatch.context() as patch:
        patch.setattr(StagedTable, "_commit", die)
        with pytest.raises(StreamingQueryException, match="the driver dies"):
            stream(writer())
    land(tmp_path / "source", "2.parquet", make_rows(2, 300))
    stream(writer())
    assert_stored(events, 0, 1, 2, rows=300)
    with events.connect() as connection:
        row = connection.execute(text("SELECT version, status FROM fencepost_versions")).one()
    assert tuple(row) == (3, "applied")
