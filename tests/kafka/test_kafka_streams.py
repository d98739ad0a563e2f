"""Topics as streams: `foreach_batch` on a real broker, whatever becomes of query and topic."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fencepost import state
from fencepost_spark import KafkaWarning, foreach_batch, from_headers
from fencepost_spark.kafka import describe_topics
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from support.kafka_broker import Broker
from support.kafka_source import FORMAT
from support.topics import options

Frame = Callable[[DataFrame], DataFrame]


def stream(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    root: Path,
    write: Any = None,
    frame: Frame | None = None,
    **more: str,
) -> None:
    """Read what a topic has that is new, and end. `more`: options, `frame`: what is done with the rows first."""
    given = options(broker, topic, startingOffsets="earliest", **more)
    rows = spark.readStream.format(FORMAT).options(**given).load()
    while True:
        query = (
            (frame or (lambda it: it))(rows)
            .writeStream.foreachBatch(write or writer(root))
            .option("checkpointLocation", str(root / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            return query.awaitTermination()
        except StreamingQueryException as error:
            # Spark gives a worker ten seconds to start, which a machine under load may exceed.
            if "failed to connect back" not in str(error):
                raise


def writer(root: Path, **more: Any) -> Any:
    return foreach_batch(root / "state", root / "sink", **{"policy": "kafka_offsets", "columns": "kafka"} | more)


def kept(root: Path) -> list[str]:
    files = sorted((root / "sink").rglob("part-*.parquet"))
    return sorted(it.decode() for file in files for it in pl.read_parquet(file)["value"].to_list())


def positions(root: Path) -> list[Any]:
    opened = state.open(root / "state")
    return [opened.version(it).source_position for it in range(1, opened.decided() + 1)]


def test_a_stream_continues_where_it_stopped(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("orders", 2)
    broker.send("orders", *"abc")
    broker.send("orders", *"de", partition=1)
    stream(spark, broker, "orders", tmp_path)
    broker.send("orders", *"fg")
    write = writer(tmp_path)

    def late(batch: DataFrame, number: int) -> None:
        write(batch, number)
        raise OSError("no power")

    with pytest.raises(StreamingQueryException, match="no power"):
        stream(spark, broker, "orders", tmp_path, late)
    broker.send("orders", "h")
    stream(spark, broker, "orders", tmp_path)
    assert kept(tmp_path) == [*"abcdefgh"]
    found = positions(tmp_path)
    assert [it["batch"] for it in found] == [0, 1, 2]
    assert [it["kafka"] for it in found] == [
        [{"start": start, "end": {"orders": end}, "ids": {}}]
        for start, end in (
            ({}, {"0": 3, "1": 2}),
            ({"orders": {"0": 3, "1": 2}}, {"0": 5, "1": 2}),
            ({"orders": {"0": 5, "1": 2}}, {"0": 6, "1": 2}),
        )
    ]


def test_the_lag_of_each_batch_is_reported(
    spark: SparkSession, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fencepost")
    broker.create("behind", 2)
    broker.send("behind", *"abc")
    broker.send("behind", "d", partition=1)
    stream(spark, broker, "behind", tmp_path, maxOffsetsPerTrigger="1")
    records = [vars(it) for it in caplog.records if it.name == "fencepost.jobs"]
    assert [it["fencepost.lag"] for it in records] == [2, 1, 0], "a batch has an offset of each partition"


def test_a_checkpoint_that_reads_again(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("again")
    broker.send("again", *"ab")
    stream(spark, broker, "again", tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "old")
    broker.send("again", "c")
    with pytest.raises(StreamingQueryException, match="adopt_checkpoint=True"):
        stream(spark, broker, "again", tmp_path)
    write = writer(tmp_path, adopt_checkpoint=True)
    stream(spark, broker, "again", tmp_path, write)
    assert write.report.counts == {"ACCEPTED": 1, "DUPLICATE": 2}
    assert kept(tmp_path) == [*"abc"]


def test_a_checkpoint_of_an_earlier_batch(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Its batches end below what the state has read, which is no sign of another topic."""
    broker.create("restored")
    broker.send("restored", "a")
    stream(spark, broker, "restored", tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    broker.send("restored", *"bc")
    stream(spark, broker, "restored", tmp_path, maxOffsetsPerTrigger="1")
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    broker.send("restored", "d")
    write = writer(tmp_path, adopt_checkpoint=True)
    stream(spark, broker, "restored", tmp_path, write, maxOffsetsPerTrigger="1")
    assert [it["batch"] for it in positions(tmp_path)] == [0, 1, 2, 1, 2, 3]
    assert write.report.counts == {"ACCEPTED": 1}
    assert kept(tmp_path) == [*"abcd"]


def resend(broker: Broker, topic: str) -> None:
    """A producer that gets no answer for its second event, and sends it again: at another offset."""
    broker.create(topic)
    for seq in (0, 1, 1, 2):
        identity = {"pid": "7", "epoch": "0", "seq": str(seq)}
        value = f'{{"device": 7, "boot": 0, "n": {seq}}}'
        broker.send(topic, value, headers=identity)
    broker.send(topic, "no headers")


def test_offsets_do_not_see_what_a_producer_repeats(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    resend(broker, "resent")
    write = writer(tmp_path)
    stream(spark, broker, "resent", tmp_path, write)
    assert write.report.counts == {"ACCEPTED": 5}


def test_headers_see_what_a_producer_repeats(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    resend(broker, "stamped")
    write = writer(tmp_path, policy="any_order", columns="kafka-producer")
    stream(spark, broker, "stamped", tmp_path, write, from_headers, includeHeaders="true")
    assert write.report.counts == {"ACCEPTED": 3, "DUPLICATE": 1, "UNTRACKED": 1}
    broker.send("stamped", "again", headers={"pid": "7", "epoch": "0", "seq": "2"})
    stream(spark, broker, "stamped", tmp_path, write, from_headers, includeHeaders="true")
    assert write.report.counts == {"DUPLICATE": 1}


def test_fields_of_the_payload_see_it_too(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    def fields(rows: DataFrame) -> DataFrame:
        event = from_json(col("value").cast("string"), "device bigint, boot int, n bigint")
        return rows.withColumns(
            {"pid": event.getField("device"), "epoch": event.getField("boot"), "seq": event.getField("n")}
        )

    resend(broker, "fields")
    write = writer(tmp_path, policy="any_order", columns="kafka-producer")
    stream(spark, broker, "fields", tmp_path, write, fields)
    assert write.report.counts == {"ACCEPTED": 3, "DUPLICATE": 1, "UNTRACKED": 1}


def test_a_malformed_header_stops_the_stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("malformed")
    broker.send("malformed", "x", headers={"pid": "7", "epoch": "0", "seq": "first"})
    write = writer(tmp_path, policy="any_order", columns="kafka-producer")
    message = r"header 'seq': 'first' .*integer .*\(topic malformed, partition 0, offset 0\)"
    with pytest.raises(StreamingQueryException, match=message):
        stream(spark, broker, "malformed", tmp_path, write, from_headers, includeHeaders="true")
    assert not (tmp_path / "sink").exists()


def test_aborted_rows_and_the_warning(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("dirty")
    producer = broker.producer(**{"transactional.id": "dirty"})
    producer.init_transactions(30)
    for value in ("aborted", "committed"):
        producer.begin_transaction()
        producer.produce("dirty", value, partition=0)
        producer.flush(30)
        producer.abort_transaction(30) if value == "aborted" else producer.commit_transaction(30)
    with pytest.warns(KafkaWarning, match=r"kafka\.isolation\.level is read_uncommitted"):
        stream(spark, broker, "dirty", tmp_path / "a", **{"kafka.isolation.level": "read_uncommitted"})
    assert kept(tmp_path / "a") == ["aborted", "committed"]
    stream(spark, broker, "dirty", tmp_path / "b")
    assert kept(tmp_path / "b") == ["committed"]


def read_and_recreate(spark: SparkSession, broker: Broker, topic: str, root: Path, write: Any, *new: str) -> None:
    """Three rows are read, then the topic is another one with these rows."""
    broker.create(topic)
    broker.send(topic, *"abc")
    stream(spark, broker, topic, root, write)
    broker.delete(topic)
    broker.create(topic)
    broker.send(topic, *new)


def assert_nothing_new(root: Path) -> None:
    assert kept(root) == [*"abc"]
    assert state.open(root / "state").decided() == 1


def test_a_topic_that_was_recreated_and_is_shorter(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    read_and_recreate(spark, broker, "shorter", tmp_path, writer(tmp_path), "new")
    with pytest.raises(StreamingQueryException, match="changed from 3 to 1, "):
        stream(spark, broker, "shorter", tmp_path)
    assert_nothing_new(tmp_path)
    message = r"topic shorter, partition 0: ends at offset 1, .*up to 3 .* Nothing was written"
    with (
        pytest.warns(KafkaWarning, match="failOnDataLoss is false"),
        pytest.raises(StreamingQueryException, match=message),
    ):
        stream(spark, broker, "shorter", tmp_path, failOnDataLoss="false")
    assert_nothing_new(tmp_path)


def test_a_topic_that_was_recreated_and_is_longer(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Offsets do not show it: the rows before the old end would be skipped silently."""
    topics = describe_topics(broker.settings)
    read_and_recreate(spark, broker, "longer", tmp_path, writer(tmp_path, topics=topics), *"defgh")
    message = r"topic longer: was recreated: .*last batch.* Nothing was written"
    with pytest.raises(StreamingQueryException, match=message):
        stream(spark, broker, "longer", tmp_path, writer(tmp_path, topics=topics))
    assert_nothing_new(tmp_path)
    with pytest.warns(KafkaWarning, match="topic longer: was recreated"):
        stream(spark, broker, "longer", tmp_path, writer(tmp_path, topics=topics, on_reset="report"))
    assert kept(tmp_path) == [*"abcgh"]


def test_rows_that_are_deleted_before_they_are_read(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topics = describe_topics(broker.settings)
    broker.create("cut")
    broker.send("cut", *"abc")
    stream(spark, broker, "cut", tmp_path, writer(tmp_path, topics=topics))
    broker.send("cut", *"defg")
    broker.cut("cut", 5)
    message = r"topic cut, partition 0: offsets 3 to 4 were deleted .*\. Nothing was written"
    with pytest.raises(StreamingQueryException, match=message):
        stream(spark, broker, "cut", tmp_path, writer(tmp_path, topics=topics))
    assert_nothing_new(tmp_path)
    with pytest.raises(StreamingQueryException, match="Cannot fetch offsets 3 to 5 of cut-0, "):
        stream(spark, broker, "cut", tmp_path)
    assert_nothing_new(tmp_path)
    write = writer(tmp_path, topics=topics, on_reset="report")
    with pytest.warns(KafkaWarning) as warned:
        stream(spark, broker, "cut", tmp_path, write, failOnDataLoss="false")
    assert any("offsets 3 to 4 were deleted" in str(it.message) for it in warned)
    assert kept(tmp_path) == [*"abcfg"]
