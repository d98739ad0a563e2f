"""One Spark session for the run, small enough to share a laptop, with retries on: a failed task is tried twice.

With FENCEPOST_SPARK=connect it is one of Spark Connect, with a server on this machine.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.databases import database_url, postgres  # noqa: F401
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
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
IS_CONNECT = os.environ.get("FENCEPOST_SPARK") == "connect"


classic_only = pytest.mark.skipif(IS_CONNECT, reason="what Spark Connect does not tell, see docs/dataframes.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_small_jobs_in_tasks()
    mark_as_spark(item for item in items if HERE in item.path.parents)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    use_this_python()
    let_workers_import(HERE, HERE.parent)
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    settings = {"spark.ui.enabled": "false", **of_driver(home, "2g")}
    builder = SparkSession.builder.appName("fencepost tests")
    if IS_CONNECT:
        # The server takes the settings of its own from its command line.
        server = [it for name, value in settings.items() for it in ("--conf", f"{name}={value}")]
        os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*server, "pyspark-shell"])
        builder, settings = builder.remote("local[2,2]"), {}
    else:
        builder = builder.master("local[2,2]")
    session = configured(builder, settings | of_queries(partitions=4)).getOrCreate()
    yield session
    session.stop()


@contextmanager
def settings(spark: SparkSession, **values: Any) -> Iterator[None]:
    """Temporary settings of the session; underscores in names mean dots."""
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


def plan_of(df: DataFrame) -> str:
    """What Spark would do, as text; of Spark Connect too."""
    with redirect_stdout(io.StringIO()) as text:
        df.explain()
    return text.getvalue()
