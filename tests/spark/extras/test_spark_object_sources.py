"""Jobs on Spark whose source is a prefix of an object store: tasks read it by themselves."""

from __future__ import annotations

import os
from pathlib import Path

from deltalake import DeltaTable
from fencepost import lake
from fencepost.state.delta_sink import library_options
from fencepost.state.stores import open_store
from fencepost_spark import DedupJob, read_sink
from pyspark.sql import SparkSession
from support.s3_server import BUCKET
from support.secret_objects import options_of
from support.spark_jobs import LANDING_ZONE, POLICIES, landed, sink_rows


def test_rows_are_those_of_a_folder(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    policy, options, _ = POLICIES[1]
    uri = f"s3a://{BUCKET}/{os.urandom(8).hex()}"
    store = open_store(uri, options=options_of(endpoint))
    for file in landed():
        store.put(file.name, file.read_bytes())
    report = DedupJob(
        uri, tmp_path / "state", tmp_path / "far", policy=policy, source_options=options_of(endpoint), **options
    ).run()
    sink = f"s3://{BUCKET}/{os.urandom(8).hex()}"
    given = {"source_options": options_of(endpoint), "sink_options": options_of(endpoint)}
    DedupJob(uri, tmp_path / "third", sink, policy=policy, **given, **options).run()
    far = lake.dataset(sink, options_of(endpoint)).to_table()
    near = lake.DedupJob(
        LANDING_ZONE / "landing", tmp_path / "other", tmp_path / "near", policy=policy, **options
    ).run()
    assert report.counts == near.counts
    assert report.plan == near.plan
    assert sink_rows(tmp_path / "far") == sink_rows(tmp_path / "near")
    rows = read_sink(tmp_path / "near")
    assert sorted(map(str, far.to_pylist())) == sorted(map(str, lake.dataset(tmp_path / "near").to_table().to_pylist()))
    assert rows.columns == far.column_names
    assert rows.count() == len(far) == near.kept
    assert [it.run for it in rows.select("run").distinct().collect()] == [1]


def test_a_table_in_a_store_is_read_and_written(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    """The driver reads and writes the log, the tasks files of the table, each by itself."""
    policy, options, _ = POLICIES[1]
    root = f"s3a://{BUCKET}/{os.urandom(8).hex()}"
    given = {"source_options": options_of(endpoint), "sink_options": options_of(endpoint)}
    store = open_store(f"{root}/landing", options=options_of(endpoint))
    for file in landed():
        store.put(file.name, file.read_bytes())
    places = (f"{root}/landing", tmp_path / "state", f"{root}/table")
    first = DedupJob(*places, policy=policy, layout="delta", **given, **options).run()
    places = (f"{root}/table", tmp_path / "other", f"{root}/again")
    again = DedupJob(*places, policy=policy, layout="delta", **given, **options).run()
    storage = library_options(options_of(endpoint))
    tables = [DeltaTable(f"{root}/{name}", storage_options=storage) for name in ("table", "again")]
    kept = [sorted(map(str, table.to_pyarrow_table().to_pylist())) for table in tables]
    near = lake.DedupJob(
        LANDING_ZONE / "landing", tmp_path / "third", tmp_path / "near", policy=policy, **options
    ).run()
    assert first.counts == near.counts
    assert again.kept == again.rows == first.kept == len(kept[0])
    assert kept[0] == kept[1]
