"""A Spark session with Delta's own jars, in a process of its own: the other tests run without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.spark_session import (
    configured,
    mark_as_spark,
    of_driver,
    of_queries,
    run_small_jobs_in_tasks,
    use_this_python,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
JARS = HERE.parent.parent / ".tools" / "jars"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_small_jobs_in_tasks()
    mark_as_spark(items)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    jars = sorted(JARS.glob("*.jar"))
    assert jars, f"no jars in {JARS}: make jars"
    use_this_python()
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        **of_driver(home, "2g"),
        **of_queries(partitions=2),
        "spark.sql.adaptive.enabled": "false",  # on a hundred rows, to plan again after each stage takes a tenth
    }
    builder = SparkSession.builder.master("local[2]").appName("fencepost tests with Delta")
    session = configured(builder, settings).getOrCreate()
    yield session
    session.stop()
