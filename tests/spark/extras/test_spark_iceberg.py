"""A job on Spark whose source and sink are Iceberg tables: the driver knows the catalog, tasks read and write files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import polars.testing
import pytest
from fencepost import state
from fencepost.state.iceberg_sink import IcebergSink
from fencepost.state.sinks import RunFolders
from fencepost_spark import DedupJob, read_sink
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from support.iceberg import catalog_of, properties_of, rows_of, versions_of
from support.lake import SCHEMA, dead_before, expected_of, land, make_rows
from support.secret_runs import start_killed

SOURCE, SINK = "iceberg://test/db.raw", "iceberg://test/db.events"


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    found = catalog_of(tmp_path)
    found.create_table("db.raw", make_rows(0).schema)
    return found


def append(root: Path, catalog: SqlCatalog, *seeds: int) -> None:
    for seed in seeds:
        catalog.load_table("db.raw").append(make_rows(seed))
        land(root / "source", f"{seed}.parquet", make_rows(seed))  # what `expected_of` reads


def make_job(root: Path, spark: SparkSession) -> DedupJob:
    properties = properties_of(root)
    return DedupJob(SOURCE, root / "state", SINK, source_options=properties, sink_options=properties, spark=spark)


def test_rows_are_those_of_the_source(spark: SparkSession, tmp_path: Path, catalog: SqlCatalog) -> None:
    """A driver dies before its commit, another one after it: each version is there once."""
    append(tmp_path, catalog, 1, 2)
    with dead_before(IcebergSink, "apply"):
        make_job(tmp_path, spark).run()
    append(tmp_path, catalog, 3)
    with dead_before(RunFolders, "apply"):
        make_job(tmp_path, spark).run()
    assert versions_of(catalog.load_table("db.events")) == [1]
    assert state.open(tmp_path / "state").decided() == 1
    report = make_job(tmp_path, spark).run()
    assert (report.version, report.engine, report.files, report.rows) == (2, "spark", 1, 600)
    expected = expected_of(tmp_path)
    polars.testing.assert_frame_equal(rows_of(catalog), expected)
    assert versions_of(catalog.load_table("db.events")) == [1, 2]
    assert make_job(tmp_path, spark).run().version is None
    found = pl.DataFrame(read_sink(SINK, properties_of(tmp_path), spark=spark).toArrow())
    polars.testing.assert_frame_equal(found.select(SCHEMA.names).cast(expected.schema).sort(SCHEMA.names), expected)


@pytest.mark.matrix
def test_drivers_that_are_killed(spark: SparkSession, tmp_path: Path, catalog: SqlCatalog) -> None:
    append(tmp_path, catalog, 1, 2)
    properties = properties_of(tmp_path)
    settings: dict[str, Any] = {"source": SOURCE, "state": str(tmp_path / "state"), "sink": SINK, "engine": "spark"}
    settings |= {"source_options": properties, "sink_options": properties, "spark": str(tmp_path / "spark")}
    for step in ("write", "decide"):
        start_killed({**settings, "step": step})
    assert state.open(tmp_path / "state").decided() == 1
    append(tmp_path, catalog, 3)
    assert make_job(tmp_path, spark).run().version == 2
    polars.testing.assert_frame_equal(rows_of(catalog), expected_of(tmp_path))
    assert versions_of(catalog.load_table("db.events")) == [1, 2]
