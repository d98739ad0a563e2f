"""The incremental, durable job, run on Spark."""

from __future__ import annotations

import os
from typing import Any

from fencepost import lake
from pyspark.sql import SparkSession

from fencepost_spark.engine import SparkEngine

Path = str | os.PathLike[str]


class DedupJob(lake.DedupJob):
    """``fencepost.lake.DedupJob`` with its tasks on Spark: the same arguments, report, verdicts, state and output.

    ``spark``: the session, the active one unless given. Every worker must see the three folders under the same paths.
    """

    def __init__(
        self, source: Path, state: Path, sink: Path, *, spark: SparkSession | None = None, **same: Any
    ) -> None:
        super().__init__(source, state, sink, engine=SparkEngine(spark), **same)
