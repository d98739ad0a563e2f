"""Deduplicates event streams identified by (pid, epoch, partition, seq) on Spark.

Six doors, from the most convenient to the fastest:

- ``deduplicate(df)``: DataFrame in, the kept rows out, each run by itself. ``way_of(df)`` says what it shuffles.
- ``verdict_udf(...)``: the verdict of every row as a column, for whoever lays out the partitions.
- ``DedupJob(source, state, sink)``: files in, files out, with state between runs; each row counts once whatever dies.
- ``foreach_batch(state, sink)``: the same for the batches of a stream.
- ``register(spark)``: the first two by name, for SQL, and the format ``fencepost-kafka-log`` for ``spark.read``.
- ``SparkEngine(spark)``: what that job runs its tasks on.

For what is read from Kafka, ``from_headers(df)`` makes columns of the headers that hold an identity, and
``kafka_options(options)`` warns, with a ``KafkaWarning``, of options that can cost or add rows. ``read_sink(sink)`` is
what a job has written, as a DataFrame.
"""

from typing import TYPE_CHECKING, Any

from fencepost_spark.versions import __version__  # isort: skip  # first: it refuses to go on with another wheel
from fencepost_spark.engine import SparkEngine
from fencepost_spark.frames import Way, deduplicate, way_of
from fencepost_spark.verdicts import verdict_udf

if TYPE_CHECKING:
    from fencepost_spark.jobs import DedupJob, read_sink
    from fencepost_spark.kafka import KafkaWarning, from_headers, kafka_options
    from fencepost_spark.sql import register
    from fencepost_spark.streams import foreach_batch

__all__ = [
    "DedupJob",
    "KafkaWarning",
    "SparkEngine",
    "Way",
    "__version__",
    "deduplicate",
    "foreach_batch",
    "from_headers",
    "kafka_options",
    "read_sink",
    "register",
    "verdict_udf",
    "way_of",
]


def __getattr__(name: str) -> Any:
    # These and what they need are for the driver: a worker that judges rows does not import them.
    if name in ("DedupJob", "read_sink"):
        from fencepost_spark import jobs

        return getattr(jobs, name)
    if name in ("KafkaWarning", "from_headers", "kafka_options"):
        from fencepost_spark import kafka

        return getattr(kafka, name)
    if name == "foreach_batch":
        from fencepost_spark.streams import foreach_batch

        return foreach_batch
    if name == "register":
        from fencepost_spark.sql import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
