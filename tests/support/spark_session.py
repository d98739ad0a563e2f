"""Shared code of all suites on Spark, for every kind of session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

FOREIGN_WARNINGS = (
    "ignore:PySpark does not yet fully support pandas:FutureWarning",
    "ignore:unclosed:ResourceWarning",  # sockets between PySpark and its JVM
)


def mark_as_spark(items: Iterable[pytest.Item]) -> None:
    """Mark tests, and pass over warnings that are not ours."""
    for item in items:
        item.add_marker(pytest.mark.spark)
        for warning in FOREIGN_WARNINGS:
            item.add_marker(pytest.mark.filterwarnings(warning))


def run_small_jobs_in_tasks() -> None:
    """The driver would scan and write all that tests have."""
    from fencepost_spark import engine

    engine.DRIVER_BYTES_MAX = 0


def use_this_python() -> None:
    """Driver and workers run what runs the tests."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def let_workers_import(*folders: Path) -> None:
    """Put folders before what workers look for modules in: they import functions of the tests by name."""
    paths = [*map(str, folders), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def of_driver(home: Path, memory: str) -> dict[str, str]:
    """Settings of a driver on this machine that leaves its files in `home`."""
    return {
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.log.level": "OFF",  # tests provoke errors by the dozen
    }


def of_queries(partitions: int, *, is_compiled: bool = False) -> dict[str, str]:
    """Settings that a session may change at any time.

    Without `is_compiled`, Spark interprets its plans: on a hundred rows the compiler takes most of the time.
    """
    return {
        "spark.sql.codegen.wholeStage": str(is_compiled).lower(),
        "spark.sql.codegen.factoryMode": "FALLBACK" if is_compiled else "NO_CODEGEN",
        "spark.sql.shuffle.partitions": str(partitions),
        # Shuffles of few rows have several tasks, as those of many.
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(partitions),  # a VACUUM has 10,000 tasks else
        "spark.sql.session.timeZone": "UTC",
    }


def configured(builder: Any, settings: Mapping[str, object]) -> Any:
    """A builder of sessions with these settings."""
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    return builder
