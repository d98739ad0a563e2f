"""The incremental, durable job, run on Spark."""

from __future__ import annotations

import os
from typing import Any

from fencepost import lake
from fencepost.state.sinks import RunFolders
from pyspark.sql import SparkSession

from fencepost_spark.engine import SparkEngine

Path = str | os.PathLike[str]


class DedupJob(lake.DedupJob):
    """``fencepost.lake.DedupJob`` with its tasks on Spark: the same arguments, report, verdicts, state and output.

    Every worker must see the three folders under the same paths. What the arguments mean is told at
    ``fencepost.lake.DedupJob``.
    """

    def __init__(
        self,
        source: Path | lake.KafkaLog,
        state: Path,
        sink: Path | RunFolders,
        *,
        spark: SparkSession | None = None,
        **same: Any,
    ) -> None:
        """``source``, ``state``, ``sink``: folders; ``source`` and ``state`` may be URIs of object stores, ``source``
        may be a ``fencepost.lake.KafkaLog``.

        ``spark``: the session that runs the tasks, the active one unless given. It takes the place of ``engine``.

        ``same``: passed on to ``fencepost.lake.DedupJob``, whose defaults hold: ``policy``, ``columns``, ``scope``,
        ``order_by``, ``rejected_max``, ``rejects``, ``max_idle_ms``, ``settle_ms``, ``clock_gap_max_ms``, ``on_reset``,
        ``reset_rows_min``, ``compare_content``, ``on_conflict``, ``keep_checksums``, ``plan``, ``shards``, ``layout``,
        ``source_immutable``, ``sync``, ``state_options``, ``source_options``,
        ``keep_versions`` and ``keep_versions_ms``.

        Raises what ``fencepost.lake.DedupJob`` raises, and RuntimeError where there is no session.
        """
        super().__init__(source, state, sink, engine=SparkEngine(spark), **same)
