"""Kafka without a broker: identities from headers (right, wrong and absent), and the offsets of a stream."""

from __future__ import annotations

import re
from typing import Any

import fencepost as fp
import pytest
from fencepost_spark import deduplicate, from_headers
from fencepost_spark.kafka import (
    KafkaSource,
    Topic,
    are_the_same,
    discontinuities,
    lag_of,
    last_positions,
    positions_of,
)
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession

DDL = "topic string, partition int, offset bigint, headers array<struct<key: string, value: binary>>"
GOOD = {"pid": b"7", "epoch": b"0", "seq": b"5"}
Headers = list[tuple[str, bytes | None]] | None


def frame(spark: SparkSession, *rows: Headers) -> DataFrame:
    return spark.createDataFrame([("t", 0, offset, headers) for offset, headers in enumerate(rows)], DDL)


def headers(**changed: bytes | None) -> Headers:
    return list((GOOD | changed).items())


def columns(df: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in df.select("pid", "epoch", "seq").collect()]


def test_headers_become_columns(spark: SparkSession) -> None:
    rows = [
        headers(),
        [("other", b"x"), *reversed(headers() or [])],
        headers(pid=b"9223372036854775807", epoch=b"32767"),
        headers(pid=b"-1"),
        [*(headers() or []), ("seq", b"5")],  # stamped twice, by a producer and by a process between
        None,
        [],
        headers(pid=None),
        [("seq", b"rubbish")],  # without a pid the rest is not read
    ]
    found = from_headers(frame(spark, *rows))
    assert found.columns == ["topic", "partition", "offset", "headers", "pid", "epoch", "seq"]
    assert [found.schema[name].dataType.simpleString() for name in ("pid", "epoch", "seq")] == [
        "bigint",
        "int",
        "bigint",
    ]
    good = (7, 0, 5)
    assert columns(found) == [
        good,
        good,
        (2**63 - 1, 32767, 5),
        (-1, 0, 5),
        good,
        (None, None, None),
        (None, None, None),
        (None, 0, 5),
        (None, None, None),
    ]
    kept = deduplicate(found, columns="kafka-producer")
    assert kept.count() == 1 + 1 + 5


WRONG = {
    "header 'pid': 'seven' .*integer of type bigint": headers(pid=b"seven"),
    "header 'pid': '' .*integer of type bigint": headers(pid=b""),
    "header 'seq': ' 5' .*integer of type bigint": headers(seq=b" 5"),
    "header 'seq': '5\n' .*integer of type bigint": headers(seq=b"5\n"),
    "header 'seq': '9223372036854775808' .*integer of type bigint": headers(seq=b"9223372036854775808"),
    "header 'epoch': '2147483648' .*integer of type int": headers(epoch=b"2147483648"),
    "header 'seq': '0xFF00' .*integer of type bigint": headers(seq=b"\xff\x00"),
    "header 'seq': is absent, but 'pid' is there": [("pid", b"7"), ("epoch", b"0")],
    "header 'epoch': is absent, but 'pid' is there": headers(epoch=None),
    "header 'seq': .*several times": [*(headers() or []), ("seq", b"6")],
    "header 'pid': .*several times": [("pid", None), *(headers() or [])],
}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(it, marks=() if at % 3 == 0 or "absent" in it else pytest.mark.matrix)
        for at, it in enumerate(WRONG)
    ],
)
def test_malformed_identities_are_errors_that_name_them(spark: SparkSession, message: str) -> None:
    with pytest.raises(SparkRuntimeException, match=rf"fencepost: {message}.* \(topic t, partition 0, offset 1\)"):
        from_headers(frame(spark, headers(), WRONG[message])).collect()


def test_malformed_identities_may_be_untracked(spark: SparkSession) -> None:
    found = from_headers(frame(spark, headers(), *WRONG.values()), malformed="untracked")
    assert columns(found) == [(7, 0, 5), *[(None, None, None)] * len(WRONG)]
    assert deduplicate(found, columns="kafka-producer").count() == 1 + len(WRONG)


def test_other_names_and_pids_that_are_text(spark: SparkSession) -> None:
    rows = frame(spark, [("x-device", "gerät-7".encode()), ("n", b"3")], [("x-device", b"\xff"), ("n", b"3")])
    found = from_headers(rows, "x-device", None, "n", pid_type="string", malformed="untracked")
    assert [(row["x-device"], row["n"]) for row in found.collect()] == [("gerät-7", 3), (None, None)]
    with pytest.raises(SparkRuntimeException, match="header 'x-device': '0xFF' is not text"):
        from_headers(rows.drop("topic", "partition", "offset"), "x-device", None, "n", pid_type="string").collect()


def test_invalid_arguments(spark: SparkSession) -> None:
    rows = frame(spark, headers())
    with pytest.raises(fp.BatchError, match=r"column 'headers': missing; .*includeHeaders"):
        from_headers(rows.drop("headers"))
    with pytest.raises(fp.BatchError, match="column 'offset': exists already"):
        from_headers(rows, seq="offset")
    with pytest.raises(ValueError, match=r"malformed='drop': .* 'fail' or 'untracked'"):
        from_headers(rows, malformed="drop")  # type: ignore[arg-type]


OFFSETS = {"a": {"0": 5}, "b": {"0": 7}}
BEFORE = {"kafka": [{"start": {}, "end": OFFSETS, "ids": {"a": "x", "b": "y"}}]}
MORE = {"a": {"0": 9}, "b": {"0": 8}}
NEW_PARTITION = {"a": {"0": 9, "1": 4}}


@pytest.mark.parametrize(
    ("start", "end", "topics", "before", "message"),
    [
        (OFFSETS, {"a": {"0": 9}}, {}, BEFORE, r"topic b: was deleted, .*offsets \{'0': 7\} on"),
        (OFFSETS, {**MORE, "b": {"0": 6}}, {}, BEFORE, "topic b, partition 0: ends at offset 6, .*up to 7"),
        (OFFSETS, MORE, {"b": Topic("z", {0: 0})}, BEFORE, "topic b: was recreated: .* z, .* y"),
        (OFFSETS, MORE, {"a": Topic("x", {0: 6})}, BEFORE, "topic a, partition 0: offsets 5 to 5 were deleted"),
        (OFFSETS, MORE, {"a": Topic("x", {0: 10})}, None, "topic a, partition 0: offsets 5 to 8 were deleted"),
        ({"a": {"0": 5}}, NEW_PARTITION, {"a": Topic("x", {0: 0, 1: 3})}, None, "a, partition 1: offsets 0 to 2 were"),
        ({"a": {"0": 5, "1": 6}}, {"a": {"0": 9}}, {}, None, "topic a, partition 1: no longer exists, .* offset 6 on"),
    ],
)
def test_topics_that_are_not_what_they_were(
    start: Any, end: Any, topics: dict[str, Topic], before: dict[str, Any] | None, message: str
) -> None:
    [found] = discontinuities("state", [KafkaSource({}, start, end)], topics, before, same=True)
    assert re.search(message, str(found))


def test_every_loss_is_named() -> None:
    """`on_reset="report"` writes the batch, and no later batch reads these offsets again."""
    source = KafkaSource({}, {"a": {"0": 5, "1": 5}, "b": {"0": 7}}, {"a": {"0": 9, "1": 9}})
    found = discontinuities("state", [source], {"a": Topic("z", {0: 6, 1: 7})}, BEFORE, same=True)
    texts = ["a: was recreated", "a, partition 0: offsets 5 to 5", "a, partition 1: offsets 5 to 6", "b: was deleted"]
    for error, text in zip(found, texts, strict=True):
        assert f"topic {text}" in str(error)


def test_an_id_belongs_to_its_topic_in_another_query_too() -> None:
    """A new checkpoint may read the topics by more sources, or in another order."""
    topics = {"a": Topic("new", {0: 0}), "b": Topic("y", {0: 0})}
    a, b = KafkaSource({}, {}, {"a": {"0": 1}}), KafkaSource({}, {}, {"b": {"0": 1}})
    apart = {"kafka": [{"start": {}, "end": {}, "ids": {topic: name}} for topic, name in (("a", "x"), ("b", "y"))]}
    for sources, before in (([a, b], BEFORE), ([b, a], apart)):
        [found] = discontinuities("state", sources, topics, before, same=False)
        assert "topic a: was recreated" in str(found)
    assert [it["ids"] for it in last_positions([b, a], apart, same=False)] == [{"a": "x", "b": "y"}] * 2
    clusters = {"kafka": [{"start": {}, "end": {}, "ids": {"a": name}} for name in ("x", "new")]}
    assert not list(discontinuities("state", [b, b, a], topics, clusters, same=False))


def test_offsets_of_a_recreated_topic_are_different_rows() -> None:
    read = [KafkaSource({}, {}, OFFSETS)]
    assert are_the_same(read, {"a": Topic("x", {0: 0}), "b": Topic("y", {0: 0})}, BEFORE)
    assert are_the_same(read, {}, BEFORE)
    assert are_the_same(read, {"b": Topic("z", {0: 0})}, {})
    assert not are_the_same(read, {"b": Topic("z", {0: 0})}, BEFORE)


def test_topics_that_continue_are_accepted() -> None:
    topics = {"a": Topic("x", {0: 5}), "b": Topic("y", {0: 0})}
    assert not list(discontinuities("state", [KafkaSource({}, OFFSETS, MORE)], topics, BEFORE, same=True))
    assert not list(discontinuities("state", [KafkaSource({}, {}, {"a": {"0": 1}})], {}, BEFORE, same=False))
    assert not list(discontinuities("state", [KafkaSource({}, {}, {"c": {"0": 1}})], {}, None, same=True))


def test_a_new_partition_that_begins_at_zero_is_accepted() -> None:
    """Or after rows that were read before the partition was away. A new topic may begin anywhere."""
    ends = NEW_PARTITION | {"c": {"0": 4}}
    for first, known in ({0: 0, 1: 0}, {}), ({0: 0}, {}), ({0: 0, 1: 3}, {"a": {"1": 4}}):
        topics = {"a": Topic("x", first), "c": Topic("new", {0: 3})}
        before = {"kafka": [{"start": {}, "end": known, "ids": {}}]}
        assert not list(discontinuities("state", [KafkaSource({}, {"a": {"0": 5}}, ends)], topics, before, same=True))


def test_a_topic_that_is_away_for_a_while_stays_known() -> None:
    away = KafkaSource({}, {"a": {"0": 5}}, {"a": {"0": 9}})
    [said] = positions_of([away], {"a": Topic("x", {0: 0})}, BEFORE, same=True)
    assert said == {"start": {"a": {"0": 5}}, "end": {"a": {"0": 9}, "b": {"0": 7}}, "ids": {"a": "x", "b": "y"}}
    again = KafkaSource({}, {"a": {"0": 9}}, {"a": {"0": 9}, "b": {"0": 3}})
    [found] = discontinuities("state", [again], {}, {"kafka": [said]}, same=True)
    assert re.search(r"topic b, partition 0: ends at offset 3, .*up to 7 ", str(found))
    [elsewhere] = positions_of([away], {}, BEFORE, same=False)
    assert (elsewhere["end"], elsewhere["ids"]) == ({"a": {"0": 9}}, {"a": "x", "b": "y"})


def test_the_lag_of_a_batch() -> None:
    ends = {"a": {"0": 5, "1": 7}, "b": {"0": 1}}
    source = KafkaSource({}, {}, ends, {"a": {"0": 9, "1": 7}, "b": {"0": 4}})
    assert lag_of([source]) == 4 + 3
    assert lag_of([source, source]) == 14
    assert lag_of([KafkaSource({}, {}, ends, {"a": {"0": 4}})]) == 0, "a topic that was cut or removed"
    assert lag_of([source, KafkaSource({}, {}, ends)]) is None, "Spark does not know one of the ends"
    assert lag_of([]) is None, "a stream without Kafka"
