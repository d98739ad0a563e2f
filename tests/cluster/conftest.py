"""A session on a cluster of two workers that have fencepost from the archive alone that the session ships."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.spark_session import configured, mark_as_spark, of_driver, of_queries, run_small_jobs_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from standalone import Cluster

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


SHIPPED, PYTHON = "environment.tar.gz#environment", "./environment/bin/python"
"""As docs/cluster.md has them; both are relative to where the driver is started."""
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "2",
    "spark.speculation.minTaskRuntime": "1s",  # not for a hiccup
    "spark.speculation.efficiency.enabled": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_small_jobs_in_tasks()
    mark_as_spark(items)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from standalone import Cluster

    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def session(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    assert (ROOT / "dist" / "environment.tar.gz").exists(), "no environment: make dist/environment.tar.gz"
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = PYTHON
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession
    from standalone import BRIEF_JVM

    home = tmp_path_factory.mktemp("spark")
    for name in ("environment", "environment.tar.gz"):
        (home / name).symlink_to(ROOT / "dist" / name)
    settings = {
        "spark.archives": SHIPPED,
        **SPECULATIVE,
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": BRIEF_JVM,
        "spark.driver.extraJavaOptions": BRIEF_JVM,
        "spark.scheduler.minRegisteredResourcesRatio": "1",  # no task before both workers can have one
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.cores.max": "2",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        **of_driver(home, "1g"),
        **of_queries(partitions=4),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",  # each worker gets tasks of a shuffle
    }
    builder = SparkSession.builder.master(cluster.url).appName("fencepost tests on a cluster")
    with chdir(home):
        session = configured(builder, settings).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def spark(session: SparkSession, cluster: Cluster) -> SparkSession:
    """The session, with an executor on each worker, whatever the test before has killed."""
    from standalone import HOSTS, read_json, wait_until

    context = session.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/executors"

    def hosts() -> list[str]:
        return sorted(it["hostPort"].partition(":")[0] for it in read_json(url) if it["id"] != "driver")

    cluster.start_workers()
    wait_until(lambda: hosts() == sorted(HOSTS), "not every worker has an executor", cluster.logs)
    return session
