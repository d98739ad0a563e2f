"""The incremental, durable job, run on Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fencepost import SinkError, lake
from fencepost.lake.reading import merged_schema
from fencepost.state.commit import Sink
from fencepost.state.iceberg_tables import is_iceberg
from fencepost.state.stores import absolute, is_local
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fencepost_spark.engine import SparkEngine
from fencepost_spark.hadoop import store_options, with_options

Path = str | os.PathLike[str]


class DedupJob(lake.DedupJob):
    """``fencepost.lake.DedupJob`` with its tasks on Spark: the same arguments, report, verdicts, state and output.

    Every worker must reach the three places under the same paths or URIs; where all are in object stores, workers need
    share no disk. Options of stores that are not given come from the session's Hadoop settings (`fs.s3a.*` and so on,
    `fencepost_spark.hadoop`), and from the environment. What the arguments mean is told at ``fencepost.lake.DedupJob``.
    """

    def __init__(
        self,
        source: Path | Sequence[Path] | lake.KafkaLog,
        state: Path,
        sink: Path | Sink,
        *,
        spark: SparkSession | None = None,
        driver_bytes_max: int | None = None,
        **same: Any,
    ) -> None:
        """``source``, ``state``, ``sink``: folders, or URIs of object stores; ``source`` may be a list of such, or a
        ``fencepost.lake.KafkaLog``.

        ``spark``: the session that runs the tasks, the active one unless given. It takes the place of ``engine``.
        ``driver_bytes_max``: see ``SparkEngine``.

        ``same``: passed on to ``fencepost.lake.DedupJob``, whose defaults hold: ``policy``, ``columns``, ``scope``,
        ``order_by``, ``rejected_max``, ``rejects``, ``max_idle_ms``, ``settle_ms``, ``clock_gap_max_ms``, ``on_reset``,
        ``reset_rows_min``, ``compare_content``, ``on_conflict``, ``keep_checksums``, ``plan``, ``shards``,
        ``shard_bytes_max``, ``task_bytes_max``, ``task_runs_max``, ``layout``, ``schema``, ``source_immutable``,
        ``sync``, ``state_options``, ``source_options``, ``sink_options``, ``keep_versions``, ``keep_versions_ms``,
        ``files_max``, ``bytes_max``, ``rows_max``, ``only``, ``files``, ``target_file_bytes``, ``partition_by`` and
        ``sort_by``.

        Raises what ``fencepost.lake.DedupJob`` raises, RuntimeError where there is no session, and StoreError where the
        session's settings name credentials that only Spark's connector can get.
        """
        engine = SparkEngine(spark, driver_bytes_max=driver_bytes_max)
        first = source[0] if isinstance(source, list | tuple) and source else source
        options = with_options(spark or SparkSession.getActiveSession(), same, source=first, state=state, sink=sink)
        super().__init__(source, state, sink, engine=engine, **options)


def read_sink(sink: Path, options: dict[str, Any] | None = None, *, spark: SparkSession | None = None) -> DataFrame:
    """The kept rows of all versions of a sink that are there as a whole; ``run`` is the number of the version.

    ``sink``, ``options``: a folder or the URI of an object store, and its options, those of the session's Hadoop
    settings unless given; or the name of an Iceberg table (``iceberg://...``), and its catalog's, without ``run``.
    Spark reads the files by itself, those of S3 as ``s3a://``, so its settings must reach them.
    Raises SinkError where there is no sink of files and no table, or no row was kept yet.
    """
    session = spark or SparkSession.active()
    if options is None:
        options = store_options(os.fspath(sink), session)
    files = lake.shown_files(sink, options)
    if not files:
        raise SinkError(f"{os.fspath(sink)}: no rows were kept yet, so nobody knows their columns")
    schema = merged_schema(sink, options)
    place = absolute(sink)
    reader = session.read if is_iceberg(place) else session.read.option("basePath", _for_spark(place))
    if schema is not None:
        reader = reader.schema(from_arrow_schema(schema))
    return reader.parquet(*map(_for_spark, files))


def _for_spark(place: str) -> str:
    if is_local(place):
        return f"file://{place}"
    return f"s3a://{place.removeprefix('s3://')}" if place.startswith("s3://") else place
