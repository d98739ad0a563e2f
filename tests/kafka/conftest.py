"""A Kafka broker and a Spark session that reads from it, in their own process: they share no memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka_broker import Broker
from support.spark_session import (
    configured,
    let_workers_import,
    mark_as_spark,
    of_driver,
    of_queries,
    run_small_jobs_in_tasks,
    use_this_python,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_small_jobs_in_tasks()
    mark_as_spark(items)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("broker"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    use_this_python()
    let_workers_import(HERE, HERE.parent)
    from pyspark.sql import SparkSession
    from support.kafka_source import KafkaSource

    home = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        **of_driver(home, "1g"),
        **of_queries(partitions=2),
    }
    builder = SparkSession.builder.master("local[2]").appName("fencepost tests with Kafka")
    session = configured(builder, settings).getOrCreate()
    session.dataSource.register(KafkaSource)
    yield session
    session.stop()
