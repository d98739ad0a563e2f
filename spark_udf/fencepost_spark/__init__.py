"""Deduplicates event streams identified by (pid, epoch, partition, seq) on Spark.

| function or class | use |
|---|---|
| ``deduplicate(df)`` | DataFrame in, kept rows out; no state. ``choose_strategy(df)`` shows what it shuffles. |
| ``explain(df)`` | DataFrame in, all rows out, with their verdicts and reasons; no state. |
| ``verdict_udf(...)`` | Adds each row's verdict as a column, if you control the partitioning. |
| ``DedupJob(source, state, sink)`` | Files in, files out, with state between runs. Fault-tolerant, exactly once. |
| ``foreach_batch(state, sink)`` | The same for the batches of a stream. |
| ``register(spark)`` | ``deduplicate`` and ``verdict_udf`` in SQL, and the format ``fencepost-kafka-log``. |
| ``SparkEngine(spark)`` | Runs the job's tasks on Spark. |

For Kafka sources, ``from_headers(df)`` extracts identity columns from headers, and ``kafka_options(options)`` warns
(``KafkaWarning``) of options that can lose or add rows. ``read_sink(sink)`` returns a job's output as a DataFrame.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencepost_spark.versions import __version__  # isort: skip  # first: it refuses a core wheel of another version
from fencepost_spark.engine import SparkEngine
from fencepost_spark.strategy import Strategy, choose_strategy, deduplicate
from fencepost_spark.verdicts import verdict_udf

if TYPE_CHECKING:
    from fencepost_spark.explaining import explain
    from fencepost_spark.jobs import DedupJob, read_sink
    from fencepost_spark.kafka import KafkaWarning, from_headers, kafka_options
    from fencepost_spark.sql import register
    from fencepost_spark.streams import foreach_batch

__all__ = [
    "DedupJob",
    "KafkaWarning",
    "SparkEngine",
    "Strategy",
    "__version__",
    "choose_strategy",
    "deduplicate",
    "explain",
    "foreach_batch",
    "from_headers",
    "kafka_options",
    "read_sink",
    "register",
    "verdict_udf",
]

_MODULES = {
    "DedupJob": "jobs",
    "KafkaWarning": "kafka",
    "explain": "explaining",
    "foreach_batch": "streams",
    "from_headers": "kafka",
    "kafka_options": "kafka",
    "read_sink": "jobs",
    "register": "sql",
}


def __getattr__(name: str) -> Any:
    # Imported on first use on the driver: workers that judge rows do not need these modules.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
