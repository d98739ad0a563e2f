"""Topics as frames, and what an at-least-once sink has landed of them."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from fencepost.lake import DedupJob
from fencepost_spark import KafkaWarning, deduplicate, kafka, kafka_options
from fencepost_spark.kafka import describe_topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from support.kafka_broker import Broker
from support.kafka_source import FORMAT
from support.topics import options


def read(spark: SparkSession, broker: Broker, topic: str, **more: str) -> DataFrame:
    return spark.read.format(FORMAT).options(**options(broker, topic, **more)).load()


def values(df: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in df.select("value").collect())


def test_the_columns_are_those_of_the_connector(spark: SparkSession, broker: Broker) -> None:
    broker.create("columns", 2)
    producer = broker.producer()
    producer.produce(
        "columns", b"v", key=b"k", partition=0, timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None)]
    )
    producer.produce("columns", None, partition=1)
    assert producer.flush(30) == 0
    found = read(spark, broker, "columns", includeHeaders="true")
    assert [f"{it.name} {it.dataType.simpleString()}" for it in found.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    first, second = found.orderBy("partition").collect()
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"k", b"v", "columns", 0, 0)
    made = found.where("partition = 0").selectExpr("unix_millis(timestamp) as ms").first()
    assert made is not None
    assert (made.ms, first.timestampType) == (1_700_000_000_123, 0)
    assert [tuple(it) for it in first.headers] == [("a", b"1"), ("a", None)]
    assert (second.key, second.value, second.partition, second.headers) == (None, None, 1, None)
    assert abs(datetime.now(UTC) - second.timestamp.astimezone(UTC)) < timedelta(days=1)
    assert "headers" not in read(spark, broker, "columns").columns


def test_rows_that_a_landing_zone_repeats_are_kept_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The sink died after it had written and before it had noted so, and wrote the same rows again."""
    names = {"topic": "kafka_topic", "partition": "kafka_partition", "offset": "kafka_offset"}

    def land(name: str, *where: str) -> None:
        rows = read(spark, broker, "landing").withColumnsRenamed(names)
        for condition in where:
            rows = rows.where(condition)
        rows.coalesce(1).write.parquet(str(tmp_path / "source" / name))

    def run() -> fp.lake.RunReport:
        job = DedupJob(
            tmp_path / "source", tmp_path / "state", tmp_path / "sink", policy="kafka_offsets", columns="kafka-connect"
        )
        return job.run()

    broker.create("landing", 2)
    for partition in range(2):
        broker.send("landing", *(f"{partition}-{number}" for number in range(50)), partition=partition)
    land("a", "kafka_offset < 30")
    land("b", "kafka_offset >= 20")
    report = run()
    assert (report.rows, report.counts) == (120, {"ACCEPTED": 100, "DUPLICATE": 20})
    broker.send("landing", "late")
    land("c", "kafka_offset > 40")
    assert run().counts == {"ACCEPTED": 1, "DUPLICATE": 18}
    sink = pq.ParquetDataset([str(it) for it in (tmp_path / "sink").rglob("part-*.parquet")]).read()
    everything = values(read(spark, broker, "landing"))
    assert sorted(it.decode() for it in sink["value"].to_pylist()) == everything
    landed = spark.read.parquet(*(str(tmp_path / "source" / name) for name in "abc"))
    assert values(deduplicate(landed, "kafka_offsets", columns="kafka-connect")) == everything
    offsets = landed.withColumnsRenamed({new: old for old, new in names.items()})
    assert values(deduplicate(offsets, "kafka_offsets", columns="kafka")) == everything
    assert fp.lake.audit(tmp_path / "source", "kafka_offsets", "kafka-connect").counts["DUPLICATE"] == 38


def test_rows_of_aborted_transactions(spark: SparkSession, broker: Broker) -> None:
    broker.create("aborts")
    producer = broker.producer(**{"transactional.id": "aborts"})
    producer.init_transactions(30)
    for number, end in enumerate(("commit", "abort", "commit", "abort")):
        producer.begin_transaction()
        producer.produce("aborts", f"{number}-{end}", partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if end == "commit" else producer.abort_transaction(30)
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    committed = read(spark, broker, "aborts")
    assert values(committed) == ["0-commit", "2-commit"]
    assert [row.offset for row in committed.orderBy("offset").select(col("offset")).collect()] == [0, 4]
    assert values(read(spark, broker, "aborts", **uncommitted)) == ["0-commit", "1-abort", "2-commit", "3-abort"]
    kept = deduplicate(read(spark, broker, "aborts", **uncommitted), "kafka_offsets")
    assert values(kept) == ["0-commit", "1-abort", "2-commit", "3-abort"], "an offset does not tell"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "kafka.isolation.level is not set, .*read_uncommitted: rows of aborted"),
        ({"Kafka.Isolation.Level": "read_uncommitted"}, "kafka.isolation.level is read_uncommitted: rows of aborted"),
        ({"kafka.isolation.level": "read_committed", "failOnDataLoss": "False"}, "failOnDataLoss is false: rows that"),
    ],
)
def test_options_that_can_cost_or_add_rows(given: dict[str, str], message: str) -> None:
    with pytest.warns(KafkaWarning, match=message):
        assert kafka_options(given) == given


def test_options_as_they_should_be() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kafka_options({"kafka.isolation.level": "read_committed", "failOnDataLoss": "true"})


def test_topic_ids_come_from_the_broker(broker: Broker) -> None:
    describe = describe_topics(broker.settings)
    broker.create("described", 2)
    broker.send("described", "a", "b", "c")
    broker.cut("described", 2)
    (before,) = describe(["described"]).values()
    assert before.first == {0: 2, 1: 0}
    broker.delete("described")
    broker.create("described")
    (after,) = describe(["described"]).values()
    assert after.first == {0: 0}
    assert after.id != before.id
    with pytest.raises(fp.SourceError, match=r"topics nothing: .*UNKNOWN_TOPIC_OR_PART") as caught:
        describe(["nothing"])
    assert isinstance(caught.value.__cause__, KafkaException)


def test_a_leader_that_moves_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create("moves")
    broker.send("moves", "a")
    codes = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE]
    asked = AdminClient.list_offsets

    def list_offsets(*args: Any, **options: Any) -> Any:
        if codes:
            raise KafkaException(KafkaError(codes.pop()))
        return asked(*args, **options)

    monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
    (topic,) = describe_topics(broker.settings)(["moves"]).values()
    assert (topic.first, codes) == ({0: 0}, [])
    codes[:] = [KafkaError.NOT_LEADER_FOR_PARTITION] * 100
    monkeypatch.setattr(kafka, "LEADER_SECONDS", 0)
    with pytest.raises(fp.SourceError, match=r"topics moves: .*NOT_LEADER_FOR_PARTITION"):
        describe_topics(broker.settings)(["moves"])


def test_brokers_cannot_be_asked_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(fp.DependencyError, match="pip install confluent-kafka"):
        describe_topics({})
