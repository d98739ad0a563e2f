"""A job on Spark whose source and sink are Iceberg tables: the driver knows the catalog, tasks read and write files."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import polars.testing
from fencepost_spark import DedupJob, read_sink
from pyspark.sql import SparkSession
from test_iceberg import catalog_of, expected_of, properties_of, rows_of
from test_lake import SCHEMA, land_some, read_source


def test_rows_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path)
    land_some(tmp_path, range(2))
    source = catalog.create_table("db.raw", read_source(tmp_path).to_arrow().schema)
    source.append(read_source(tmp_path).to_arrow())
    properties = properties_of(tmp_path)
    names = ("iceberg://test/db.raw", tmp_path / "state", "iceberg://test/db.events")
    job = DedupJob(*names, source_options=properties, sink_options=properties)
    report = job.run()
    assert (report.version, report.engine, report.rows) == (1, "spark", 1200)
    expected = expected_of(tmp_path)
    polars.testing.assert_frame_equal(rows_of(catalog), expected)
    assert rows_of(catalog).columns == SCHEMA.names
    assert job.run().version is None
    found = pl.DataFrame(read_sink("iceberg://test/db.events", properties, spark=spark).toArrow())
    polars.testing.assert_frame_equal(found.select(SCHEMA.names).cast(expected.schema).sort(SCHEMA.names), expected)
