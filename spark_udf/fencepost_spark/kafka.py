"""Kafka as a source: identities from headers, and checks of a stream's sources.

Spark passes batches without information on their sources. The running query has it: the options of its sources, and the
offsets of the current batch. The checks read it on the driver. If a version of Spark does not expose it, nothing is
checked.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fencepost.errors import BatchError, Coded, DependencyError, SourceError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions

from fencepost_spark.frames import check_frame, quoted, unused_name

LEADER_SECONDS, PAUSE_SECONDS = 30.0, 0.1
"""How long a partition may have no leader, and the interval of queries meanwhile, in seconds."""
SECONDS = 30.0
"""Timeout of a broker's answer in seconds."""
INTEGER = r"\A-?[0-9]{1,19}\z"
SHOWN_MAX = 100
"""Maximum number of characters of a header in an error."""
SERVERS, ISOLATION, LOSS = "kafka.bootstrap.servers", "kafka.isolation.level", "failondataloss"

Offsets = dict[str, dict[str, int]]
"""The offset after the last one read, by topic and partition (as text, as the connector writes it)."""


class KafkaWarning(Coded, UserWarning):
    """A stream or a DataFrame reads from Kafka in a way that can lose or add rows.

    What to do: set the options that the message names.
    """

    code = "FP902"


@dataclass(frozen=True)
class Topic:
    """The current state of a topic."""

    id: str
    """Changes when a topic is deleted and recreated under its old name."""
    first: Mapping[int, int]
    """The first available offset by partition."""


Describe = Callable[[Sequence[str]], Mapping[str, Topic]]


# Headers


def from_headers(
    df: DataFrame,
    pid: str = "pid",
    epoch: str | None = "epoch",
    seq: str = "seq",
    *,
    pid_type: Literal["bigint", "string"] = "bigint",
    headers: str = "headers",
    malformed: Literal["fail", "untracked"] = "fail",
) -> DataFrame:
    """Return ``df`` with a column for each identity header, named like the header.

    Header values are text: decimal integers, which become bigint (epoch: int), or any text for the pid with
    ``pid_type="string"``. The columns are lazy expressions without Python.

    A row without the header ``pid`` (or with a null value) gets null and is judged UNTRACKED. Other rows without a
    valid identity are malformed: a value is not an integer, ``epoch`` or ``seq`` is missing, or a header occurs twice
    with different values. A header that repeats the same value counts once.

    Args:
        df: A DataFrame with the connector's column ``headers`` (option ``includeHeaders``).
        pid: The name of the header with the producer id.
        epoch: The name of the header with the epoch; None without epochs.
        seq: The name of the header with the sequence number.
        pid_type: "bigint" or "string".
        headers: The name of the column with the headers.
        malformed: "fail" fails the query with a message that names header, value and offset; "untracked" sets all
            columns of the row to null.

    Raises:
        BatchError: A column is missing, or already exists.
        ValueError: ``pid_type`` or ``malformed`` has another value.
        TypeError: ``df`` is not a Spark DataFrame.
    """
    check_frame(df, "from_headers(df)")
    if pid_type not in ("bigint", "string") or malformed not in ("fail", "untracked"):
        expected = "expected 'bigint' or 'string', and 'fail' or 'untracked'"
        raise ValueError(f"pid_type={pid_type!r}, malformed={malformed!r}: {expected}")
    names = [name for name in (pid, epoch, seq) if name is not None]
    if headers not in df.columns:
        raise BatchError(
            f"column '{headers}': missing; the connector adds it with .option('includeHeaders', 'true')",
            column=headers,
        )
    for name in names:
        if name.lower() in {it.lower() for it in df.columns}:
            raise BatchError(
                f"column '{name}': exists already, and the header '{name}' would replace it; rename or drop the column",
                column=name,
            )
    types = {pid: pid_type, seq: "bigint"} | ({} if epoch is None else {epoch: "int"})
    # In steps with named columns: Spark would compute an inlined expression once per use, ten times.
    between = [unused_name(df, f"_header_{place}") for place in range(len(names))]
    found = [_Header(name, types[name], functions.col(column)) for name, column in zip(names, between, strict=True)]
    read = df.withColumns({column: _values(headers, name) for name, column in zip(names, between, strict=True)})
    problem = unused_name(df, "_header_problem")
    judged = read.withColumn(problem, _problem_of(found, _place(df)))
    columns = {}
    for header in found:
        wrong = functions.raise_error(functions.col(problem)) if malformed == "fail" else functions.lit(None)
        is_right = functions.col(problem).isNull()
        columns[header.name] = functions.when(is_right, header.value).otherwise(wrong.cast(header.kind))
    return judged.withColumns(columns).drop(*between, problem)


def _values(headers: str, name: str) -> Column:
    """Return the distinct values of the headers of this name."""
    same = functions.filter(functions.col(quoted(headers)), lambda it: it["key"] == name)
    return functions.array_distinct(functions.transform(same, lambda it: it["value"]))


def _problem_of(found: Sequence[_Header], place: Column) -> Column:
    """Return what is wrong with a row's headers, the pid first; null if nothing is."""
    pid, *others = found
    problem = functions.coalesce(pid.problem(), *(it.problem(needed_by=pid.name) for it in others))
    # Without a pid the other headers are ignored, as everywhere.
    return functions.when(~pid.is_absent, functions.concat(functions.lit("fencepost: "), problem, place))


class _Header:
    """Expressions on one header, whose distinct values are in a column."""

    def __init__(self, name: str, kind: str, values: Column) -> None:
        self.name, self.kind = name, kind
        self.raw = functions.get(values, functions.lit(0))
        self.is_repeated = functions.coalesce(functions.size(values), functions.lit(0)) > 1
        self.is_absent = self.raw.isNull() & ~self.is_repeated
        text = self.raw.cast("string")
        is_right = functions.is_valid_utf8(text) if kind == "string" else text.rlike(INTEGER)
        self.value = functions.when(is_right, text.try_cast(kind))

    def problem(self, needed_by: str | None = None) -> Column:
        """Return what is wrong; null if nothing is. `needed_by`: the header that requires this one."""
        text = functions.coalesce(
            functions.try_validate_utf8(self.raw.cast("string")),
            functions.concat(functions.lit("0x"), functions.hex(self.raw)),
        )
        shown = functions.concat(
            functions.lit(f"header '{self.name}': '"), functions.left(text, functions.lit(SHOWN_MAX))
        )
        expected = "' is not text" if self.kind == "string" else f"' is not an integer of type {self.kind}"
        problem = functions.when(
            self.is_repeated, functions.lit(f"header '{self.name}': occurs several times with different values")
        ).when(self.raw.isNotNull() & self.value.isNull(), functions.concat(shown, functions.lit(expected)))
        if needed_by is None:
            return problem
        absent = functions.lit(f"header '{self.name}': is absent, but '{needed_by}' is there")
        return problem.when(self.is_absent, absent)


def _place(df: DataFrame) -> Column:
    """Return a description of a row's location, from the columns that the DataFrame has."""
    parts = [
        functions.concat(
            functions.lit(f"{name} "), functions.coalesce(functions.col(name).cast("string"), functions.lit("?"))
        )
        for name in ("topic", "partition", "offset")
        if name in df.columns
    ]
    if not parts:
        return functions.lit("")
    return functions.concat(functions.lit(" ("), functions.concat_ws(", ", *parts), functions.lit(")"))


# Options


def kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """Check the options of a Kafka source and return them: ``.options(**kafka_options(options))``.

    Warns (KafkaWarning) if ``kafka.isolation.level`` is not ``read_committed``: the connector then also returns rows of
    aborted transactions. Warns if ``failOnDataLoss`` is false: the connector then skips rows that were deleted from a
    topic. ``foreach_batch`` checks a stream's options by itself; the options of a DataFrame are not available later.
    """
    for problem in _problems({name.lower(): str(value) for name, value in options.items()}):
        warnings.warn(problem, KafkaWarning, stacklevel=2)
    return dict(options)


def _problems(options: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with options, whose names are in lower case."""
    level = options.get(ISOLATION)
    if level != "read_committed":
        found = "is not set, and then is read_uncommitted" if level is None else f"is {level}"
        yield (
            f"kafka.isolation.level {found}: rows of aborted transactions are read too, and kept. "
            "Set it to read_committed"
        )
    if options.get(LOSS, "true").lower() == "false":
        yield (
            "failOnDataLoss is false: rows that are deleted before they were read are passed over. Leave it out, "
            "unless a loss is known and the query is to go on after it"
        )


# Streams


@dataclass(frozen=True)
class KafkaSource:
    """A Kafka source of a running query, for the current batch."""

    options: Mapping[str, str]
    """By name in lower case."""
    start: Offsets
    end: Offsets
    newest: Offsets | None = None
    """The ends of its partitions when the batch was planned. None if Spark does not know them, as for a batch that was
    planned before the query was restarted."""


def execution_of(spark: SparkSession, query: str) -> Any:
    """Return the JVM object that runs a query; None if this version of Spark does not expose it."""
    try:
        jvm: Any = spark.sparkContext._jvm
        shared = spark._jsparkSession.sharedState()
        return shared.activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))
    except (Py4JError, PySparkException, AttributeError, TypeError, ValueError):
        return None


def kafka_sources(execution: Any) -> list[KafkaSource]:
    """Return the Kafka sources of a running query, in plan order. Empty if Spark does not expose them."""
    try:
        leaves = execution.logicalPlan().collectLeaves()
        found = (_source_of(leaves.apply(place), execution) for place in range(leaves.size()))
        return [source for source in found if source is not None]
    except (Py4JError, PySparkException, AttributeError, TypeError, ValueError):
        return []


def _source_of(leaf: Any, execution: Any) -> KafkaSource | None:
    if leaf.getClass().getSimpleName() != "StreamingDataSourceV2ScanRelation":
        return None
    options = {name.lower(): value for name, value in leaf.relation().options().asCaseSensitiveMap().items()}
    if SERVERS not in options:
        return None
    start, end = (_offsets_of(leaf, it) for it in (execution.committedOffsets(), execution.availableOffsets()))
    return KafkaSource(options, start, end, _newest_of(leaf, execution))


def _offsets_of(leaf: Any, offsets: Any) -> Offsets:
    found: Offsets = json.loads(offsets.get(leaf.stream()).get().json()) if offsets.contains(leaf.stream()) else {}
    return found


def _newest_of(leaf: Any, execution: Any) -> Offsets | None:
    try:
        return _offsets_of(leaf, execution.latestOffsets()) or None
    except (Py4JError, PySparkException, AttributeError, TypeError, ValueError):
        return None  # only the lag is then unknown


def lag_of(sources: Sequence[KafkaSource]) -> int | None:
    """Return the number of offsets after a batch in its sources. None without sources, or if one does not know them."""
    lag = 0
    for source in sources:
        if source.newest is None:
            return None
        for topic, ends in source.end.items():
            newest = source.newest.get(topic, {})
            lag += sum(max(0, newest.get(partition, end) - end) for partition, end in ends.items())
    return lag if sources else None


def warn_of(sources: Sequence[KafkaSource]) -> None:
    """Warn of options that can lose or add rows."""
    for problem in dict.fromkeys(problem for source in sources for problem in _problems(source.options)):
        warnings.warn(problem, KafkaWarning, stacklevel=4)


def are_the_same(sources: Sequence[KafkaSource], topics: Mapping[str, Topic], before: dict[str, Any]) -> bool:
    """Return whether no topic is known to differ from those of the version with position ``before``."""
    pairs = zip(sources, before.get("kafka") or (), strict=False)
    ids = [(topics.get(topic), last["ids"].get(topic)) for source, last in pairs for topic in source.end]
    return all(found is None or known is None or found.id == known for found, known in ids)


def last_positions(sources: Sequence[KafkaSource], before: Mapping[str, Any], same: bool) -> list[dict[str, Any]]:
    """Return the record of each source in the previous version's position, with the known ids of its topics.

    `same`: whether this is the next batch of its query. Otherwise the query may have more sources, or another order:
    offsets are not compared, but an id belongs to its topic.
    """
    known = before.get("kafka") or []
    own = known if len(known) == len(sources) else [{}] * len(sources)
    if same:
        return own
    ids: dict[str, set[str]] = {}
    for last in known:
        for topic, name in last["ids"].items():
            ids.setdefault(topic, set()).add(name)
    # Topics of two clusters may have the same name.
    clear = {topic: next(iter(names)) for topic, names in ids.items() if len(names) == 1}
    return [{**last, "ids": {**clear, **last.get("ids", {})}} for last in own]


def positions_of(
    sources: Sequence[KafkaSource], topics: Mapping[str, Topic], before: Mapping[str, Any], same: bool
) -> list[dict[str, Any]]:
    """Return the decision's record of each source (see `last_positions`).

    Topics that are missing now are kept: they may return, and may then be other topics.
    """
    return [
        {
            "start": source.start,
            "end": {**(last.get("end", {}) if same else {}), **source.end},
            "ids": {**last.get("ids", {}), **{name: topics[name].id for name in source.end if name in topics}},
        }
        for source, last in zip(sources, last_positions(sources, before, same), strict=True)
    ]


def discontinuities(
    state: str, sources: Sequence[KafkaSource], topics: Mapping[str, Topic], before: dict[str, Any] | None, same: bool
) -> Iterator[SourceError]:
    """Yield an error for each topic or partition that does not continue the previous version.

    That is if it was recreated or deleted, if it ends below the last read offset, or if unread rows were deleted.
    ``before``: the position of that version; ``same``: whether this is the next batch of its query, so that its offsets
    continue.
    """
    for source, last in zip(sources, last_positions(sources, before or {}, same), strict=True):
        for topic, ends in source.end.items():
            found, starts = topics.get(topic), source.start.get(topic)
            yield from _check_id(state, topic, found, last.get("ids", {}).get(topic))
            known = last.get("end", {}).get(topic, {}) if same else {}
            for partition, end in ends.items():
                place = f"topic {topic}, partition {partition}"
                yield from _check_end(state, place, end, known.get(partition))
                if starts is not None and found is not None and partition not in starts:  # a new partition
                    yield from _check_first(place, known.get(partition, 0), end, found.first.get(int(partition)))
    for source in sources:
        for topic, starts in source.start.items():
            if topic not in source.end:
                yield SourceError(
                    f"{state}: topic {topic}: was deleted, with all rows from the offsets {starts} on, which were not "
                    "read. Nothing was written. If you accept the loss, on_reset='report' continues without the topic"
                )
                continue
            for partition, start in starts.items():
                place = f"topic {topic}, partition {partition}"
                if partition not in source.end[topic]:
                    yield SourceError(
                        f"{state}: {place}: no longer exists, with all rows from offset {start} on, which were not "
                        "read: the topic was recreated with fewer partitions. Nothing was written. If you accept the "
                        "loss, on_reset='report' continues without the partition"
                    )
                    continue
                first = topics[topic].first.get(int(partition)) if topic in topics else None
                yield from _check_first(place, start, source.end[topic][partition], first)


REMEDY = (
    "Nothing was written. Use a new state, sink and checkpoint for the topic, with startingOffsets=earliest. If rows "
    "have an identity apart from offsets, you can keep state and sink with on_reset='report' and "
    "adopt_checkpoint=True, but not the checkpoint, which would skip new rows"
)


def _check_id(state: str, topic: str, found: Topic | None, known: str | None) -> Iterator[SourceError]:
    if found is not None and known is not None and found.id != known:
        yield SourceError(
            f"{state}: topic {topic}: was recreated: its id is {found.id}, but was {known} when the last "
            f"batch was read. Its offsets start again, so new rows would count as old ones. {REMEDY}"
        )


def _check_end(state: str, place: str, end: int, known: int | None) -> Iterator[SourceError]:
    if known is not None and end < known:
        yield SourceError(
            f"{state}: {place}: ends at offset {end}, but was read up to {known} before: the topic was "
            f"recreated or its log was cut, so new rows would count as old ones. {REMEDY}"
        )


def _check_first(place: str, start: int, end: int, first: int | None) -> Iterator[SourceError]:
    if first is not None and start < end and start < first:
        yield SourceError(
            f"{place}: offsets {start} to {min(first, end) - 1} were deleted before they were read. Nothing "
            "was written. If you accept the loss, on_reset='report' continues after them"
        )


def describe_topics(settings: Mapping[str, str]) -> Describe:
    """Return a function for ``foreach_batch(topics=...)`` that queries ids and first offsets of topics from the
    brokers.

    ``settings``: settings of a librdkafka client, at least ``bootstrap.servers``. Needs the package confluent-kafka.
    Raises DependencyError if it is not installed, SourceError if brokers do not answer. Retries for up to
    `LEADER_SECONDS` while a partition has no leader, or another one than the client knows.
    """
    try:
        from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, admin
    except ModuleNotFoundError as problem:
        raise DependencyError("confluent-kafka is not installed: pip install confluent-kafka") from problem
    library: Any = admin  # its stubs do not export all names
    client = library.AdminClient(dict(settings))
    earliest = library.OffsetSpec.earliest()

    moving = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)

    def ask(names: Sequence[str]) -> dict[str, Topic]:
        asked = client.describe_topics(TopicCollection(list(names)), request_timeout=SECONDS)
        topics = {name: it.result() for name, it in asked.items()}
        places = [TopicPartition(name, it.id) for name, topic in topics.items() for it in topic.partitions]
        begins = client.list_offsets(dict.fromkeys(places, earliest), request_timeout=SECONDS)
        first = {(it.topic, it.partition): answer.result().offset for it, answer in begins.items()}
        return {
            name: Topic(str(topic.topic_id), {it.id: first[name, it.id] for it in topic.partitions})
            for name, topic in topics.items()
        }

    def describe(names: Sequence[str]) -> dict[str, Topic]:
        deadline = time.monotonic() + LEADER_SECONDS
        while True:
            try:
                return ask(names)
            except KafkaException as problem:
                if problem.args[0].code() not in moving or time.monotonic() > deadline:
                    raise SourceError(f"topics {', '.join(names)}: {problem}") from problem
            time.sleep(PAUSE_SECONDS)

    return describe
