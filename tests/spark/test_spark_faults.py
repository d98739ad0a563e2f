"""Some faults of the job on Spark; `make faults` runs more of them."""

from __future__ import annotations

from pathlib import Path

from faults.spark import disturbed_workers, killed_driver
from pyspark.sql import SparkSession


def test_tasks_that_run_twice(spark: SparkSession, tmp_path: Path) -> None:
    disturbed_workers(tmp_path, spark, "twice")


def test_a_driver_that_is_killed(tmp_path: Path) -> None:
    killed_driver(tmp_path, "apply", "after")
