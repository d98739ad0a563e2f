"""Deduplicates event streams identified by (pid, epoch, partition, seq) on Spark.

Five doors, from the most convenient to the fastest:

- ``deduplicate(df)``: DataFrame in, the kept rows out, each run by itself.
- ``verdict_udf(...)``: the verdict of every row as a column, for whoever lays out the partitions.
- ``DedupJob(source, state, sink)``: files in, files out, with state between runs; each row counts once whatever dies.
- ``register(spark)``: the first two by name, for SQL.
- ``SparkEngine(spark)``: what that job runs its tasks on.
"""

from typing import TYPE_CHECKING, Any

from fencepost_spark.versions import __version__  # isort: skip  # first: it refuses to go on with another wheel
from fencepost_spark.engine import SparkEngine
from fencepost_spark.frames import deduplicate
from fencepost_spark.verdicts import verdict_udf

if TYPE_CHECKING:
    from fencepost_spark.jobs import DedupJob
    from fencepost_spark.sql import register

__all__ = ["DedupJob", "SparkEngine", "__version__", "deduplicate", "register", "verdict_udf"]


def __getattr__(name: str) -> Any:
    # These and what they need are for the driver: a worker that judges rows does not import them.
    if name == "DedupJob":
        from fencepost_spark.jobs import DedupJob

        return DedupJob
    if name == "register":
        from fencepost_spark.sql import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
