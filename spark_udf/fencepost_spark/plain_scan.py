"""Recognizes DataFrames that are plain scans of Parquet files, whose identity columns tasks can read from the files.

A DataFrame that is not recognized is deduplicated by a shuffle. Therefore anything uncertain is refused here, with the
reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from fencepost import Columns, FencepostError, Policy, PolicyError
from fencepost.errors import message_of
from fencepost.lake.column_types import type_name
from fencepost.lake.files import Facts, Files
from fencepost.lake.scan import Reading, check_names
from fencepost.lake.storage import LocalStorage
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.taskcontext import TaskContext

from fencepost_spark.frames import Call, is_orderable

FILES_MAX = 10_000
"""Maximum number of files: the driver reads each footer, which takes about 0.3 ms."""
FOOTERS_AT_ONCE = 8

ROWS_MAX = 1 << 27
"""Maximum number of rows of all files together. Every executor gets bits for each row: 64 rows take 64 bytes in Spark's
hash table, for both spellings of a file. 270 MB if all are needed."""

SPELLINGS = ("file:/", "file:///")
"""The prefix of a local file's URI differs between parts of Spark. Normalizing it in each row would be slow."""

WORD_ROWS_BITS = 6
WORD_BITS = 22
"""A row is bit `row % 64` of word `row / 64` of its file. A word's key is a hash of the file, followed by the word's
number in these bits: enough for `ROWS_MAX` rows, even of one file."""
assert ROWS_MAX >> WORD_ROWS_BITS <= 1 << WORD_BITS

PACKAGE = "org.apache.spark.sql.execution.datasources"
RELATION, FILES_RELATION = f"{PACKAGE}.LogicalRelation", f"{PACKAGE}.HadoopFsRelation"
PARQUET, LISTING = f"{PACKAGE}.parquet.ParquetFileFormat", f"{PACKAGE}.InMemoryFileIndex"
PROJECT = "org.apache.spark.sql.catalyst.plans.logical.Project"
ALIAS = "org.apache.spark.sql.catalyst.expressions.Alias"
ATTRIBUTE = "org.apache.spark.sql.catalyst.expressions.AttributeReference"

PASSES_OVER = ("ignoreCorruptFiles", "ignoreMissingFiles")
"""Options and settings under which a scan skips unreadable files."""
FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"

SORTED_ALIKE = (IntegralType, BooleanType, DateType, TimestampType, TimestampNTZType, BinaryType)
"""Column types, besides text, that Arrow sorts as Spark does."""


class NotPlainError(Exception):
    """The DataFrame is not a plain scan; the text is the reason."""


@dataclass(frozen=True)
class PlainScan:
    """The files of a plain scan, as they were when it was recognized."""

    files: Files
    footer_crc: list[int]
    rows: int
    words: list[list[int]]
    """The first word of each file, in a list per spelling (`SPELLINGS`)."""
    policy: Policy
    """Its columns are named as in the files."""
    ties: dict[str, pa.DataType]
    """Columns by which copies are ordered, one after the other, up to the first that Arrow cannot compare, with their
    types in Spark."""
    has_all_ties: bool
    """Whether `ties` are all the columns that order copies."""
    must_be_off: list[str]
    """Settings of the session under which it would not be a plain scan."""

    def reading(self, shards: int) -> Reading:
        return _reading(self.policy, shards)


def plain_scan(call: Call) -> PlainScan:
    """Return the scanned files if the DataFrame of a call is a plain scan. Raises NotPlainError."""
    df = call.df
    if call.rules.depends_on_order:
        raise NotPlainError("the verdicts of the policy depend on the order of all rows")
    if call.untracked == "fail":
        raise NotPlainError("rows without identity are to fail in the task that reads them")
    for field in call.fields.values():
        if isinstance(field.dataType, StringType) and field.dataType != StringType():
            raise NotPlainError(f"column '{field.name}' is {field.dataType.simpleString()}")
    if not hasattr(df, "_jdf"):
        raise NotPlainError("Spark Connect does not show the plan of a frame")
    plan = df._jdf.queryExecution().optimizedPlan()
    if not plan.deterministic():
        raise NotPlainError("some columns get other values with every use")
    sources, relation = _traced(plan, df.columns)
    must_be_off = _check_relation(df, relation)
    columns = _renamed(call, sources)
    never_null = next((field.name for field in df.schema if not field.nullable), None)
    if never_null is not None:
        raise NotPlainError(f"column '{never_null}' is never null, so it is not a column of files")
    try:
        check_names(columns.names)
        with_places(df, "path", "row").schema  # noqa: B018  # the metadata of a file may not reach the frame
    except (FencepostError, AnalysisException) as error:
        raise NotPlainError(message_of(error)) from error
    types = {sources[field.name] or "": to_arrow_type(field.dataType) for field in call.fields.values()}
    return _opened(df, relation, call.rules.replace(columns=columns), types, *_ties(call, sources), must_be_off)


def with_places(df: DataFrame, path: str, row: str) -> DataFrame:
    """Return the DataFrame with two more columns of these names: the URI of the row's file, and its number there."""
    metadata = df.metadataColumn("_metadata")
    return df.select("*", metadata.getField("file_path").alias(path), metadata.getField("row_index").alias(row))


# As SQL text: building the same from methods of Column takes half of the calls to the JVM that planning needs.


def is_known(path: str, scan: PlainScan) -> str:
    """Return a condition: the file belongs to the scan. It fails the query if not: Spark may list the files again."""
    known = ", ".join(f"{word}L" for words in scan.words for word in words)
    problem = (
        f"concat('fencepost: the file ', {path}, ' was not there when deduplicate(df) was called: "
        "read the files again and call it again')"
    )
    return f"{_first_word(path)} in ({known}) or cast(raise_error({problem}) as boolean)"


def word_of(path: str, row: str) -> str:
    """Return the word of a row of a plain scan."""
    return f"{_first_word(path)} | shiftright({row}, {WORD_ROWS_BITS})"


def bit_of(row: str) -> str:
    """Return the number of the row's bit in its word."""
    return f"cast({row} & {(1 << WORD_ROWS_BITS) - 1} as int)"


def _first_word(path: str) -> str:
    """Return a hash of a file's path, shifted to leave room for the number of a word."""
    return f"shiftleft(xxhash64({path}), {WORD_BITS})"


# The plan


def _traced(plan: Any, columns: list[str]) -> tuple[dict[str, str | None], Any]:
    """Return the names of the DataFrame's columns in the files (None for others), and the relation."""
    output = plan.output()
    attributes: list[int | None] = [output.apply(place).exprId().id() for place in range(len(columns))]
    while plan.getClass().getName() == PROJECT:
        projected = dict(_projected(plan.projectList()))
        attributes = [None if it is None else projected[it] for it in attributes]
        plan = plan.child()
    if plan.getClass().getName() != RELATION or plan.relation().getClass().getName() != FILES_RELATION:
        raise NotPlainError(f"the plan of the frame is not a plain scan of files, it has a {plan.nodeName()}")
    of_folders = list(plan.relation().partitionSchema().fieldNames())
    output = plan.output()
    read = {it.exprId().id(): it.name() for it in (output.apply(place) for place in range(output.size()))}
    in_files = {attribute: name for attribute, name in read.items() if name not in of_folders}
    sources = (None if attribute is None else in_files.get(attribute) for attribute in attributes)
    return dict(zip(columns, sources, strict=True)), plan.relation()


def _projected(columns: Any) -> Iterator[tuple[int, int | None]]:
    """Yield (id of a projected column, id of the column it copies; None if it is computed)."""
    for place in range(columns.size()):
        column = columns.apply(place)
        source = column.child() if column.getClass().getName() == ALIAS else column
        is_column = source.getClass().getName() == ATTRIBUTE
        yield column.exprId().id(), source.exprId().id() if is_column else None


def _check_relation(df: DataFrame, relation: Any) -> list[str]:
    """Raise NotPlainError. Returns `PlainScan.must_be_off`."""
    kind, listing = (it.getClass().getName() for it in (relation.fileFormat(), relation.location()))
    if kind != PARQUET:
        raise NotPlainError(f"the files are read by {kind.rpartition('.')[2]}, not as plain Parquet")
    if listing != LISTING:
        raise NotPlainError(f"the files are listed by {listing.rpartition('.')[2]}, perhaps again for each query")
    if relation.bucketSpec().isDefined():
        raise NotPlainError("the table is bucketed")
    options = {name.lower(): value for name, value in _entries(relation.options())}
    for name in PASSES_OVER:
        if _is_on(options.get(name.lower(), df.sparkSession.conf.get(f"spark.sql.files.{name}"))):
            raise NotPlainError(f"{name} lets Spark pass over files")
    if _is_on(df.sparkSession.conf.get(FIELD_IDS)):
        raise NotPlainError(f"{FIELD_IDS} lets columns have other names in the files")
    return [FIELD_IDS, *(f"spark.sql.files.{name}" for name in PASSES_OVER if name.lower() not in options)]


def check_settings_of_task(scan: PlainScan) -> None:
    """Raise PolicyError in a task if the session has another setting than when the scan was recognized.

    Spark sends the settings of a session with each task.
    """
    context = TaskContext.get()
    assert context is not None, "called in a task"
    for name in scan.must_be_off:
        if _is_on(context.getLocalProperty(name)):
            raise PolicyError(
                f"{name} was set after deduplicate(df) was called: Spark may now read other rows than deduplicate has "
                "read, and would drop wrong ones. Call deduplicate(df) again. If you can, unset the setting before"
            )


def _is_on(setting: str | None) -> bool:
    return (setting or "").lower() == "true"


def _entries(options: Any) -> Iterator[tuple[str, str]]:
    iterator = options.iterator()
    while iterator.hasNext():
        entry = iterator.next()
        yield entry._1(), entry._2()


def _renamed(call: Call, sources: Mapping[str, str | None]) -> Columns:
    """Return the identity columns by their names in the files."""
    names = {}
    for name, field in call.fields.items():
        source = sources[field.name]
        if source is None:
            raise NotPlainError(f"column '{field.name}' is computed, or is in the names of folders")
        names[name] = source
    if len(set(names.values())) < len(names):
        raise NotPlainError("two identity columns are one column of the files")

    def parts(role: str) -> tuple[str, ...] | None:
        return tuple(names[name] for name in call.columns.parts(role)) or None

    epoch = None if call.columns.epoch is None else names[call.columns.epoch]
    return Columns(pid=parts("pid"), epoch=epoch, partition=parts("partition"), seq=names[call.columns.seq])


def _ties(call: Call, sources: Mapping[str, str | None]) -> tuple[dict[str, pa.DataType], bool]:
    """Return `PlainScan.ties` and `has_all_ties`, as far as the DataFrame's schema decides it."""
    ties: dict[str, pa.DataType] = {}
    has_all = True
    if call.order:
        return ties, False
    identity = [field.name for field in call.fields.values()]
    for field in call.df.schema:
        if field.name in identity:
            continue
        if not is_orderable(field.dataType):
            has_all = False
            continue
        source = sources[field.name]
        if source is None or not _is_sorted_alike(field.dataType):
            return ties, False
        ties[source] = _arrow_type(field.dataType)
    return ties, has_all


def _is_sorted_alike(kind: DataType) -> bool:
    return isinstance(kind, SORTED_ALIKE) or kind == StringType()


def _arrow_type(kind: DataType) -> pa.DataType:
    # versions of PySpark take different arguments for these types
    if isinstance(kind, TimestampType | TimestampNTZType):
        return pa.timestamp("us", "UTC" if isinstance(kind, TimestampType) else None)
    # the values of a shard's copies may have more than 2 GiB
    return {StringType: pa.large_string(), BinaryType: pa.large_binary()}.get(type(kind)) or to_arrow_type(kind)


# The files


class _Footer(NamedTuple):
    facts: Facts
    rows: int
    crc: int
    schema: pa.Schema


def _opened(
    df: DataFrame,
    relation: Any,
    policy: Policy,
    types: Mapping[str, pa.DataType],
    ties: Mapping[str, pa.DataType],
    has_all_ties: bool,
    must_be_off: list[str],
) -> PlainScan:
    uris = _listed(df, relation)
    words = _words(df, uris)
    files, footers = Files(""), []
    paths = [unquote(urlsplit(uri).path) for uri in uris]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        for path, footer in zip(paths, pool.map(lambda path: _footer(path, policy), paths), strict=True):
            _check_types(path, footer.schema, types)
            files.append(path, footer.facts)
            footers.append(footer)
    rows = sum(footer.rows for footer in footers)
    if rows > ROWS_MAX:
        raise NotPlainError(f"the files have {rows} rows, more than {ROWS_MAX}")
    comparable = list(takewhile(lambda name: all(_is_sorted(it.schema, name, ties[name]) for it in footers), ties))
    return PlainScan(
        files=files,
        footer_crc=[footer.crc for footer in footers],
        rows=rows,
        words=words,
        policy=policy,
        ties={name: ties[name] for name in comparable},
        has_all_ties=has_all_ties and len(comparable) == len(ties),
        must_be_off=must_be_off,
    )


def _listed(df: DataFrame, relation: Any) -> list[str]:
    uris = sorted(df.inputFiles())
    if not uris:
        raise NotPlainError("there are no files")
    if relation.location().allFiles().size() != len(uris):
        raise NotPlainError("a file is listed twice")
    if len(uris) > FILES_MAX:
        raise NotPlainError(f"there are {len(uris)} files, more than {FILES_MAX}")
    remote = next((uri for uri in uris if urlsplit(uri).scheme != "file"), None)
    if remote is not None:
        raise NotPlainError(f"{remote}: not a local file")
    return uris


def _words(df: DataFrame, uris: list[str]) -> list[list[int]]:
    spelled = [scheme + uri.removeprefix("file:").lstrip("/") for scheme in SPELLINGS for uri in uris]
    listed = df.sparkSession.createDataFrame(pa.table({"path": spelled}))  # small: Spark runs no job for it
    words = [row.word for row in listed.selectExpr(f"{_first_word('path')} as word").collect()]
    if len(set(words)) < len(words):
        raise NotPlainError("two files have the same hash")
    return [words[: len(uris)], words[len(uris) :]]


def _footer(path: str, policy: Policy) -> _Footer:
    storage = LocalStorage()
    try:
        facts = storage.stat(path)
        scan = _reading(policy, shards=1).open(storage, path, facts, {}, 0)
        return _Footer(facts, scan.rows, scan.footer_crc, pq.read_schema(path))
    except (FencepostError, OSError, pa.ArrowException) as error:
        raise NotPlainError(message_of(error)) from error


def _check_types(path: str, schema: pa.Schema, types: Mapping[str, pa.DataType]) -> None:
    for name, wanted in types.items():
        if not _has(schema, name, wanted):
            raise NotPlainError(f"{path}: column '{name}' is {schema.field(name).type}, which Spark reads as {wanted}")


def _has(schema: pa.Schema, name: str, wanted: pa.DataType) -> bool:
    """Return whether a file has the column, with the same equality of values as in Spark."""
    if len(schema.get_all_field_indices(name)) != 1:
        return False
    found = schema.field(name).type
    found = found.value_type if pa.types.is_dictionary(found) else found
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return found.unit == wanted.unit and (found.tz is None) == (wanted.tz is None)
    return found == wanted or (type_name(found) == type_name(wanted) in ("string", "binary"))


def _is_sorted(schema: pa.Schema, name: str, wanted: pa.DataType) -> bool:
    """Return whether a file has the column, with the same order of values as in Spark."""
    if _has(schema, name, wanted):
        return True
    if len(schema.get_all_field_indices(name)) != 1 or not pa.types.is_timestamp(wanted):
        return False
    # Spark reads milliseconds as microseconds
    return bool(schema.field(name).type == pa.timestamp("ms", wanted.tz))


def _reading(policy: Policy, shards: int) -> Reading:
    return Reading(
        policy=policy,
        shards=shards,
        timestamp=False,
        order_by=(),
        by_row=False,
        reset_rows_min=0,
        compares=False,
        keeps_checksums=False,
    )
