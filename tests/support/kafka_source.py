"""Kafka as a source of Spark, with the columns, options and errors of the official connector, whose jars are not all
published. Batches have their offsets pinned, as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key: string, value: binary>>"
FORMAT = "kafka_of_tests"
"""Spark keeps the name "kafka" for the connector, be it there or not."""
SECONDS = 30.0
"""How long to wait for an answer, or for the next message of a range."""
AT_ONCE = 1_000
Offsets = dict[str, dict[str, int]]
"""By topic, by partition as text, as the connector writes them in a checkpoint."""


class KafkaSource(DataSource):
    """`format(FORMAT)`. Options: kafka.*, subscribe, startingOffsets, includeHeaders, maxOffsetsPerTrigger,
    failOnDataLoss."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return f"{COLUMNS}, {HEADERS}" if _is_on(self.options, "includeHeaders", "false") else COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        return BatchReader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return StreamReader(dict(self.options))


class Range(InputPartition):
    """Offsets from `start` to before `end` of one partition."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        self.topic, self.partition, self.start, self.end = topic, partition, start, end


class BatchReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[Range]:
        bounds = offset_bounds(self.options)
        return [Range(*place, start, end) for place, (start, end) in sorted(bounds.items()) if start < end]

    def read(self, partition: Range) -> Iterator[tuple[Any, ...]]:
        return read_range(self.options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.bounds: dict[tuple[str, int], tuple[int, int]] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self.bounds = offset_bounds(self.options)

    def initialOffset(self) -> Offsets:
        side = 0 if _option(self.options, "startingOffsets", "latest") == "earliest" else 1
        return _offsets({place: bounds[side] for place, bounds in offset_bounds(self.options).items()})

    def latestOffset(self, start: Offsets, limit: Any) -> Offsets:
        """The end of each partition; with maxOffsetsPerTrigger, at most so many offsets of each."""
        most = _option(self.options, "maxOffsetsPerTrigger", "")
        ends = {}
        for (topic, partition), (first, end) in (self.bounds or offset_bounds(self.options)).items():
            begin = start.get(topic, {}).get(str(partition), first)
            ends[topic, partition] = min(end, begin + int(most)) if most else end
        return _offsets(ends)

    def reportLatestOffset(self) -> Offsets:
        """The end of each partition, whatever the limits of a batch."""
        bounds = self.bounds or offset_bounds(self.options)
        return _offsets({place: end for place, (_, end) in bounds.items()})

    def partitions(self, start: Offsets, end: Offsets) -> list[Range]:
        ranges = []
        for topic, ends in end.items():
            for partition, stop in ends.items():
                begin = start.get(topic, {}).get(partition, 0)
                if stop < begin:
                    lose(self.options, f"Partition {topic}-{partition}'s offset was changed from {begin} to {stop}")
                if begin < stop:
                    ranges.append(Range(topic, int(partition), begin, stop))
        return ranges

    def read(self, partition: Range) -> Iterator[tuple[Any, ...]]:
        return read_range(self.options, partition)


def lose(options: Mapping[str, str], problem: str) -> None:
    """Raises the connector's error, unless its options allow data loss."""
    if _is_on(options, "failOnDataLoss", "true"):
        raise RuntimeError(f"{problem}, some data may have been missed. To go on all the same, set failOnDataLoss")


def make_consumer(options: Mapping[str, str], **settings: Any) -> Consumer:
    """A consumer that only reads given offsets; by default uncommitted ones too, like the connector."""
    named = {name.lower(): value for name, value in options.items()}
    given = {name.removeprefix("kafka."): value for name, value in named.items() if name.startswith("kafka.")}
    base = {"group.id": "spark", "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
    return Consumer(base | given | settings)


def offset_bounds(options: Mapping[str, str]) -> dict[tuple[str, int], tuple[int, int]]:
    """First and end offset of each partition now; under read_committed the end is that of what is decided."""
    consumer = make_consumer(options)
    try:
        bounds = {}
        for topic in _option(options, "subscribe").split(","):
            found = consumer.list_topics(topic, SECONDS).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            for partition in found.partitions:
                bounds[topic, partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)
        return bounds
    finally:
        consumer.close()


def read_range(options: Mapping[str, str], wanted: Range) -> Iterator[tuple[Any, ...]]:
    """The rows of a range that are still there. Aborted rows and markers leave gaps, at its end too."""
    consumer = make_consumer(options, **{"enable.partition.eof": True, "auto.offset.reset": "error"})
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(wanted.topic, wanted.partition), SECONDS)
        start = wanted.start
        if first > start:
            lose(options, f"Cannot fetch offsets {start} to {first} of {wanted.topic}-{wanted.partition}")
            start = first
        if start >= min(end, wanted.end):
            return
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, start)])
        while True:
            messages = consumer.consume(AT_ONCE, 0.2)
            for message in messages:
                if message.error() is not None and message.error().code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(message.error())
                if message.error() is not None or message.offset() >= wanted.end:
                    return
                yield _row(options, message)
                if message.offset() == wanted.end - 1:
                    return
    finally:
        consumer.close()


def _row(options: Mapping[str, str], message: Message) -> tuple[Any, ...]:
    kind, milliseconds = message.timestamp()
    row = (
        message.key(),
        message.value(),
        message.topic(),
        message.partition(),
        message.offset(),
        datetime.fromtimestamp(milliseconds / 1_000, UTC),
        kind - 1,  # here 0 is none, there it is the time of creation
    )
    return (*row, message.headers()) if _is_on(options, "includeHeaders", "false") else row


def _offsets(by_place: Mapping[tuple[str, int], int]) -> Offsets:
    offsets: Offsets = {}
    for (topic, partition), offset in sorted(by_place.items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
    return offsets


def _option(options: Mapping[str, str], name: str, default: str | None = None) -> str:
    """Names of options have no case, and Spark hands them on in small letters."""
    found = {key.lower(): value for key, value in options.items()}
    if default is None:
        return found[name.lower()]
    return found.get(name.lower(), default)


def _is_on(options: Mapping[str, str], name: str, default: str) -> bool:
    return _option(options, name, default).lower() == "true"
