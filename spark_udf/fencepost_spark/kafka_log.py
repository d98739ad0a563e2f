"""``spark.read.format("fencepost-kafka-log")``: the records or batch headers of Kafka's log segments.

Kafka's connector queries brokers and gets what consumers get, without producer id, epoch and sequence. This data source
reads the files. While planning, it reads headers to find where each partition ends and which transactions were aborted.
Then one task per segment returns the requested data as Arrow.

Spark (at least 4.1 to 4.3) stores what a Python data source has planned with the DataFrame, including filters. A
``df.count()`` after ``df.where(...).count()`` then counts only the filtered rows, and
``df.where(a).union(df.where(b))`` is wrong, too. So filters are not pushed down unless ``pushdown=once`` asserts that
the DataFrame is used once. The option ``where`` selects rows as part of the load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import Any, cast, get_args

import pyarrow as pa  # type: ignore[import-untyped]
from fencepost.kafka import BATCH_BYTES_MAX
from fencepost.lake.kafka_segments import (
    Condition,
    Isolation,
    Part,
    batches_schema,
    may_be_in,
    open_partitions,
    read_view,
    records_schema,
)
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegralType, StructType

from fencepost_spark.versions import __version__, check_worker

NAME = "fencepost-kafka-log"
ROWS = ("records", "batches")
OPTIONS = ("path", "rows", "isolation", "where", "pushdown", "batchbytesmax")
OF_STORE = "store."


class KafkaLog(DataSource):
    """Reads Kafka's log from a broker's disk, a backup or tiered storage.

    ``load(path)``: a partition's folder (``orders-0``), a folder of such folders, a segment, or a URI of one of these.
    Every worker must see it. Options:

    - ``rows``: ``records`` (default), with the columns of ``fencepost.kafka.read_records``, or ``batches``, with those
      of ``read_batches``, one row per batch header.
    - ``isolation``: ``read_uncommitted`` (default), or ``read_committed`` for records: without aborted transactions, up
      to the last stable offset. A single segment uses the ``.txnindex`` beside it.
    - ``where``: selects rows, e.g. ``offset >= 100 AND pid IN (1000, 1007) AND topic = 'orders'``. Supports comparisons
      of one column with integers, or of the topic with texts; ``IN``, ``IS NULL``, ``IS NOT NULL``; joined by ``AND``.
      Data without matches is not read: segments are skipped by the offsets in their names, batches by ``offset``,
      ``pid``, ``epoch`` and newest ``timestamp`` of their headers.
    - ``pushdown``: ``off`` (default), or ``once`` to use the query's filters in the same way. Only for a DataFrame that
      one query reads in one place; otherwise Spark returns wrong rows. Needs Spark 4.1 and
      ``spark.sql.python.filterPushdown.enabled``.
    - ``batchBytesMax``: maximum decompressed size of a batch (512 MiB).
    - ``store.<name>``: options of an object store, with obstore's names (``store.endpoint``, ``store.region``, ...).

    A DataFrame has the rows that existed at its first query, even if a broker continues to write.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def schema(self) -> StructType:
        """All columns, in order."""
        is_batches = _one_of(self.options, "rows", ROWS) == "batches"
        return from_arrow_schema(batches_schema() if is_batches else records_schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader. Raises ValueError for invalid options and columns."""
        if schema.fieldNames() != self.schema().fieldNames():
            names = ", ".join(self.schema().fieldNames())
            raise ValueError(f"{NAME}: a schema cannot be passed; the columns are {names}: select the ones you need")
        is_pushed = _one_of(self.options, "pushdown", ("off", "once")) == "once"
        return (PushedReader if is_pushed else KafkaLogReader)(self.options, self.schema())


def _one_of(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    value = options.get(name, known[0])
    if value not in known:
        raise ValueError(f"{NAME}: {name}={value!r}: expected one of {', '.join(known)}")
    return value


class SegmentPartition(InputPartition):
    """The part of the log that one task reads."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)


class KafkaLogReader(DataSourceReader):
    """Plans a query, and reads in its tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        # Option names may have lost their case on the way.
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(it for it in given if it not in OPTIONS and not it.startswith(OF_STORE))
        if unknown:
            names = f"path, rows, isolation, where, pushdown, batchBytesMax, {OF_STORE}<name>"
            raise ValueError(f"{NAME}: option {unknown[0]}: {names}")
        if "path" not in given:
            raise ValueError(
                f"{NAME}: no path: call load(path) with a partition's folder, a folder of partitions, or a segment"
            )
        self.path = given["path"]
        self.rows = _one_of(given, "rows", ROWS)
        self.isolation = cast(Isolation, _one_of(given, "isolation", get_args(Isolation)))
        if self.rows == "batches" and self.isolation != "read_uncommitted":
            raise ValueError(f"{NAME}: isolation={self.isolation!r} applies to records only; batches are always shown")
        self.batch_bytes_max = _bytes(given.get("batchbytesmax"))
        self.store = {it.removeprefix(OF_STORE): value for it, value in given.items() if it.startswith(OF_STORE)}
        self.schema = schema
        self.conditions = conditions_of(given.get("where", ""), schema)
        self.driver = __version__

    def partitions(self) -> list[InputPartition]:
        """Return the segments that may contain matching rows, by reading headers. Raises SourceError."""
        logs = [it for it in open_partitions(self.path, self.store) if may_be_in(it, self.conditions)]
        with ThreadPoolExecutor() as pool:
            views = list(pool.map(lambda log: read_view(log, self.isolation, options=self.store), logs))
        return [SegmentPartition(part) for view in views for part in view.parts(self.conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment. Raises SourceError."""
        check_worker(self.driver)
        part = partition.value
        if part is None:
            return  # Spark creates one task even without segments
        if self.rows == "batches":
            batches = part.batches(self.conditions)
        else:
            batches = part.records(self.conditions, self.batch_bytes_max)
        schema = _arrow_schema(self.schema)
        for batch in batches:
            yield batch.cast(schema)


class PushedReader(KafkaLogReader):
    """A reader that accepts filters from Spark. Only for one query per DataFrame."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Accept the filters that this source applies exactly. Returns the others, which Spark applies."""
        for filter in filters:
            condition = _condition(filter, self.schema)
            if condition is None:
                yield filter
            else:
                self.conditions.append(condition)


def _arrow_schema(schema: StructType) -> pa.Schema:
    # before 4.2 PySpark has no such argument, and always returns UTC
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def _bytes(text: str | None) -> int:
    if text is None:
        return BATCH_BYTES_MAX
    if not text.isdecimal() or int(text) > BATCH_BYTES_MAX:
        raise ValueError(f"{NAME}: batchBytesMax={text!r}: expected a number of bytes up to {BATCH_BYTES_MAX}")
    return int(text)


_CONDITION = re.compile(
    r"(?P<name>\w+)\s*(?:(?P<compare>=|<=|>=|<|>)\s*(?P<value>-?\d+|'[^']*')"
    r"|\s(?P<null>IS\s+(?P<known>NOT\s+)?NULL)|\s(?P<in>IN)\s*\((?P<values>[^()]*)\))",
    re.IGNORECASE,
)


def conditions_of(text: str, schema: StructType) -> list[Condition]:
    """Parse the option `where`. Raises ValueError for invalid conditions."""
    found = []
    for part in re.split(r"\s+AND\s+", text.strip(), flags=re.IGNORECASE) if text.strip() else ():
        match = _CONDITION.fullmatch(part)
        condition: Condition | None = None
        if match and match["null"]:
            condition = match["name"], "known" if match["known"] else "null", None
        elif match and match["in"]:
            values = tuple(_literal(it.strip()) for it in match["values"].split(","))
            condition = match["name"], "in", values
        elif match:
            condition = match["name"], match["compare"], _literal(match["value"])
        if condition is None or not _is_exact(condition, schema):
            raise ValueError(
                f"{NAME}: where: {part!r}: expected a column ({', '.join(schema.fieldNames())}) compared with "
                "integers, or the topic compared with texts"
            )
        found.append(condition)
    return found


def _literal(text: str) -> int | str | None:
    if re.fullmatch(r"'[^']*'", text):
        return text[1:-1]
    return int(text) if re.fullmatch(r"-?\d+", text) else None


OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
    "IsNull": "null",
    "IsNotNull": "known",
}
"""Spark's filter classes by name: they do not exist before 4.1."""


def _condition(filter: Any, schema: StructType) -> Condition | None:
    """Return a filter as a condition if this source applies it exactly, otherwise None."""
    operator = OPERATORS.get(type(filter).__name__)
    if operator is None or len(filter.attribute) != 1:
        return None
    value = getattr(filter, "value", None)
    if operator == "in":
        value = tuple(it for it in value or () if it is not None)  # no row is equal to null
    condition = filter.attribute[0], operator, value
    return condition if _is_exact(condition, schema) else None


def _is_exact(condition: Condition, schema: StructType) -> bool:
    """Return whether this source evaluates the condition exactly as Spark does."""
    name, operator, value = condition
    if name not in schema.fieldNames():
        return False
    if operator in ("null", "known"):
        return True
    values = value if operator == "in" else (value,)
    if isinstance(schema[name].dataType, IntegralType):
        return len(values) > 0 and all(type(it) is int and -(2**63) <= it < 2**63 for it in values)
    return name == "topic" and operator in ("=", "in") and len(values) > 0 and all(type(it) is str for it in values)
