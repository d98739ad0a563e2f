"""The incremental, durable job on Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from fencepost import SinkError, lake
from fencepost.lake.reading import merged_schema
from fencepost.state.commit import Sink
from fencepost.state.hive import hive_values
from fencepost.state.iceberg_tables import is_iceberg
from fencepost.state.stores import absolute, is_local
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, NumericType, StringType, StructField, StructType

from fencepost_spark.engine import SparkEngine
from fencepost_spark.frames import quoted
from fencepost_spark.hadoop import store_options, with_options

Path = str | os.PathLike[str]
NUMBER = re.compile(r"(?!-0$)-?(0|[1-9]\d*)(\.\d*[1-9])?")
"""A number that is written as Spark writes it, so that the type does not change the value."""


class DedupJob(lake.DedupJob):
    """Runs ``fencepost.lake.DedupJob`` on Spark: the same arguments, report, verdicts, state and output.

    Every worker must reach source, state and sink under the same paths or URIs. If all of them are in object stores,
    workers need no shared disk. Store options that you do not pass, also those of a ``KafkaLog``, come from the
    session's Hadoop settings (`fs.s3a.*` and so on, `fencepost_spark.hadoop`) and from the environment.
    ``fencepost.lake.DedupJob`` documents the arguments.
    """

    def __init__(
        self,
        source: Path | Sequence[Path] | lake.KafkaLog,
        state: Path,
        sink: Path | Sink,
        *,
        spark: SparkSession | None = None,
        driver_bytes_max: int | None = None,
        driver_scan_bytes_max: int | None = None,
        **same: Any,
    ) -> None:
        """Create a job.

        Args:
            source: A folder, the URI of an object store, a list of these, or a ``fencepost.lake.KafkaLog``.
            state: A folder or the URI of an object store.
            sink: A folder, the URI of an object store, or a sink object.
            spark: The session that runs the tasks. Default: the active one. Replaces ``engine``.
            driver_bytes_max: As in ``SparkEngine``.
            driver_scan_bytes_max: As in ``SparkEngine``.
            same: Arguments of ``fencepost.lake.DedupJob``, with its defaults: ``policy``, ``columns``, ``scope``,
                ``order_by``, ``rejected_max``, ``rejects``, ``max_idle_ms``, ``settle_ms``, ``clock_gap_max_ms``,
                ``on_reset``, ``reset_rows_min``, ``compare_content``, ``on_conflict``, ``keep_checksums``, ``plan``,
                ``shards``, ``shard_bytes_max``, ``task_bytes_max``, ``task_spans_max``, ``driver_spans_max``,
                ``driver_state_bytes_max``, ``layout``, ``schema``, ``source_immutable``, ``sync``, ``state_options``,
                ``source_options``, ``sink_options``,
                ``keep_versions``, ``keep_versions_ms``, ``files_max``, ``bytes_max``, ``rows_max``, ``only``,
                ``files``, ``target_file_bytes``, ``partition_by`` and ``sort_by``.

        Raises:
            RuntimeError: There is no session.
            StoreError: The session's settings name credentials that only Spark's connector can get.
            FencepostError: Any error of ``fencepost.lake.DedupJob``.
        """
        engine = SparkEngine(spark, driver_bytes_max=driver_bytes_max, driver_scan_bytes_max=driver_scan_bytes_max)
        session = spark or SparkSession.getActiveSession()
        if isinstance(source, lake.KafkaLog) and source.options is None:
            source = replace(source, options=store_options(os.fspath(source.path), session) or None)
        first = source[0] if isinstance(source, list | tuple) and source else source
        options = with_options(session, same, source=first, state=state, sink=sink)
        super().__init__(source, state, sink, engine=engine, **options)


def read_sink(sink: Path, options: dict[str, Any] | None = None, *, spark: SparkSession | None = None) -> DataFrame:
    """Return the kept rows of all complete versions of a sink, with the version number in column ``run``.

    Other columns in folder names have the type that they have in files of other versions. If no file has such a column,
    Spark infers its type. The type is string if a value is not in the usual form of a number, such as ``007``. Spark
    reads the files itself, S3 files as ``s3a://``, so its settings must give access to them.

    Args:
        sink: A folder, the URI of an object store, or the name of an Iceberg table (``iceberg://...``), which has no
            ``run``.
        options: Options of the object store or Iceberg catalog. Default: the session's Hadoop settings.
        spark: The session. Default: the active one.

    Raises:
        SinkError: There is no sink or table, or no row was kept yet.
    """
    session = spark or SparkSession.active()
    if options is None:
        options = store_options(os.fspath(sink), session)
    files = lake.applied_files(sink, options)
    if not files:
        raise SinkError(f"{os.fspath(sink)}: no rows were kept yet, so their columns are unknown")
    schema = merged_schema(sink, options)
    place = absolute(sink)
    reader = session.read if is_iceberg(place) else session.read.option("basePath", _for_spark(place))
    if schema is not None:
        reader = reader.schema(from_arrow_schema(schema))
    folders = ["" if is_iceberg(place) else file.removeprefix(place).rpartition("/")[0] for file in files]
    within = {folder: hive_values(f"{folder}/") for folder in folders}
    # Spark does not read files together whose folders name different columns, as after a change of `partition_by`.
    groups: dict[tuple[str, ...], list[str]] = {}
    for file, folder in zip(files, folders, strict=True):
        groups.setdefault(tuple(within[folder]), []).append(_for_spark(file))
    frames = {names: reader.parquet(*group) for names, group in groups.items()}
    types = {it.name: it.dataType for names, frame in frames.items() for it in frame.schema if it.name not in names}
    texts = _texts(within.values())
    for names, frame in frames.items():
        fields = [_retyped(it, types, texts) if it.name in names else it for it in frame.schema]
        if fields != frame.schema.fields:
            frames[names] = reader.schema(StructType(fields)).parquet(*groups[names])
        frames[names] = _decoded(frames[names], names, within.values())
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames.values())


def _decoded(frame: DataFrame, names: Sequence[str], folders: Iterable[Mapping[str, str | None]]) -> DataFrame:
    """Return the DataFrame with the texts of folder names. Spark reads each byte of ``Z%C3%BCrich`` as a character."""
    known: dict[str, dict[str, str]] = {}
    for name, value in {item for folder in folders for item in folder.items()}:
        if name in names and value is not None and not value.isascii():
            known.setdefault(name, {})[value.encode().decode("latin-1")] = value
    return frame.withColumns({name: _replaced(name, values) for name, values in known.items()}) if known else frame


def _replaced(name: str, values: Mapping[str, str]) -> Column:
    """Return a column in which these values are replaced."""
    column = functions.col(quoted(name))
    known = functions.create_map(*(functions.lit(it) for pair in values.items() for it in pair))
    return functions.coalesce(known[column], column)


def _texts(folders: Iterable[Mapping[str, str | None]]) -> set[str]:
    """Return the columns of folder names with values that are not written as a number is.

    Spark would infer 7 from the text 007, and 1000 from 1e3.
    """
    values = [value for folder in folders for value in folder.items()]
    return {name for name, value in values if value is not None and not NUMBER.fullmatch(value)}


def _retyped(field: StructField, types: Mapping[str, DataType], texts: set[str]) -> StructField:
    """Return a column of folder names with the type that it has in files, or as text if Spark would change values."""
    is_text = field.name in texts and isinstance(field.dataType, NumericType)
    kind = types.get(field.name, StringType() if is_text else field.dataType)
    return field if kind == field.dataType else StructField(field.name, kind)


def _for_spark(place: str) -> str:
    if is_local(place):
        return f"file://{place}"
    return f"s3a://{place.removeprefix('s3://')}" if place.startswith("s3://") else place
