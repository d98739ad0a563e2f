"""One Spark session for the run, small enough to share a laptop, with retries on: a failed task is tried twice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # the reader of the rule book

FOREIGN_WARNINGS = (
    "ignore:PySpark does not yet fully support pandas:FutureWarning",
    "ignore:unclosed:ResourceWarning",  # sockets between PySpark and its JVM
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            for warning in FOREIGN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Workers import functions of the tests by name.
    paths = [str(HERE), str(HERE.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": home / "local",
        "spark.sql.warehouse.dir": home / "warehouse",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",  # tests provoke errors by the dozen
    }
    builder = SparkSession.builder.master("local[2,2]").appName("fencepost tests")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    yield session
    session.stop()


@contextmanager
def settings(spark: SparkSession, **values: Any) -> Iterator[None]:
    """Settings of the session for a while; underscores in names stand for dots."""
    changed = {name.replace("_", "."): str(value) for name, value in values.items()}
    before = {name: spark.conf.get(name, None) for name in changed}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.fixture
def whole_files(spark: SparkSession) -> Iterator[None]:
    """One task per file: none is cut, none shares a task with another."""
    size = 1 << 40
    with settings(spark, spark_sql_files_maxPartitionBytes=size, spark_sql_files_openCostInBytes=size):
        yield
