"""Some faults of the job on Spark; `make faults` runs more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.spark import disturbed_workers, killed_driver
from faults.world import Broken
from pyspark.sql import SparkSession


@pytest.mark.parametrize("mode", ["exits", "twice"])
def test_workers_that_do_not_come_to_their_end(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    disturbed_workers(tmp_path, spark, mode)


def test_a_broken_job_is_objected_to(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        disturbed_workers(tmp_path, spark, "twice", mutant="collects_all")


def test_a_driver_that_is_killed(tmp_path: Path) -> None:
    killed_driver(tmp_path, "apply", "after")
