"""A Delta table that is deduplicated in place, against what its users do: all rows, and new ones.

All rows: `dropDuplicates` over the table and an overwrite, or a MERGE that deletes all but one of each, by their
payload. New rows: a MERGE that inserts what does not match, against an append and a run of a job that knows the
rows before. Everyone begins with a table of its own, linked from one that
is made once, and an answer is (rows, sum of their sequences) as Spark reads the table afterwards. Needs Delta's jars
(`make jars`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from deltalake import DeltaTable, TableFeatures, convert_to_deltalake
from fencepost.lake import DedupJob, Engine, LocalEngine

from bench.lake import SHAPES, WARM_UP, Landed, land
from bench.measure import Contestant, Role, alternate, tell, write_part
from bench.spark import COLUMNS, DATA, DROP_DUPLICATES, THREADS, Answer, session, settle, wake_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = Path(__file__).parent.parent / ".tools" / "jars"
SHAPE = next(shape for shape in SHAPES if shape.name == "scattered, spans of 20")
ALL_ROWS, NEW_ROWS = "Delta: a whole table", "Delta: new rows"
VECTORS, FILES, LOCAL = "in place, vectors", "in place, files", "in place, vectors, local engine"
UNSYNCED = "in place, vectors, not synced"
OVERWRITE, DELETE = f"{DROP_DUPLICATES.name}, overwrite", "MERGE that deletes"
APPEND, INSERT = "append, then in place", "MERGE that inserts"
SAME = " and ".join(f"t.{name} = s.{name}" for name in COLUMNS)


def contest(
    rows: int, rounds: int, data: Path = DATA, heap: str = "7g", warm_up: bool = True, **settings: Any
) -> dict[str, Any]:
    """Both contests; what belongs into the results. `settings` of Spark: underscores in their names stand for dots."""
    jars = ",".join(map(str, sorted(JARS.glob("*.jar"))))
    assert jars, f"no jars in {JARS}: make jars"
    delta = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    scratch = data / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    measurements = []
    with session(heap, scratch, delta | settings) as spark:
        for size, times in [(rows // WARM_UP, 1)] * warm_up + [(rows, rounds)]:
            landed = land(SHAPE, size, data)
            whole, known = _make_whole(landed, scratch), _make_known(landed, scratch)
            everyone = (
                (ALL_ROWS, whole, landed.landed[0], _whole_contestants(spark)),
                (NEW_ROWS, known, _rows_of(_last(landed)), _new_contestants(spark, landed)),
            )
            measurements = [
                it
                for name, template, count, works in everyone
                for it in _compete(name, spark, template, scratch, count, landed.kept, times, works)
            ]
    shutil.rmtree(scratch, ignore_errors=True)
    return {"heap": heap, "shape": SHAPE.name, "measurements": [it.to_json() for it in measurements]}


# Tables to begin with


def _make_whole(landed: Landed, scratch: Path) -> Path:
    """All files as a table that allows deletion vectors."""
    return _make(sorted(landed.folder.iterdir()), scratch / f"whole-{landed.landed[0]}")


def _make_known(landed: Landed, scratch: Path) -> Path:
    """All files but the last, deduplicated, beside the state that knows them."""
    place = _make(sorted(landed.folder.iterdir())[:-1], scratch / f"known-{landed.landed[0]}")
    # The table keeps its place: a state knows its table by its path.
    _put(place, scratch / "out")
    _job(scratch / "out", LocalEngine(THREADS)).run()
    shutil.rmtree(place)
    return (scratch / "out").rename(place)


def _make(files: list[Path], place: Path) -> Path:
    tell(f"a table of {len(files)} files")
    (place / "table").mkdir(parents=True)
    for file in files:
        os.link(file, place / "table" / file.name)
    convert_to_deltalake(place / "table")
    table = DeltaTable(place / "table")
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    return place


def _put(template: Path, place: Path) -> None:
    """A table, and a state if there is one, as they were: nobody writes to files that are there."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place, copy_function=os.link)


def _last(landed: Landed) -> Path:
    return max(landed.folder.iterdir())


def _rows_of(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


# Contestants

Works = dict[str, tuple[Role, Callable[[Path], object]]]
"""What each contestant does to its table, by its name."""


def _compete(
    contest: str,
    spark: SparkSession,
    template: Path,
    scratch: Path,
    rows: int,
    expected: Answer,
    rounds: int,
    works: Works,
) -> list[Any]:
    place = scratch / "out"

    def ready() -> None:
        spark._jvm.System.gc()  # type: ignore[union-attr]
        _put(template, place)
        for file in (place / "table").glob("*.parquet"):
            file.read_bytes()
        settle()
        wake_workers(spark)

    contestants = [
        Contestant(
            name=name,
            threads=THREADS,
            run=partial(work, place),
            expected=expected,
            answer=lambda _: _answer(spark, place),
            role=role,
        )
        for name, (role, work) in works.items()
    ]
    return alternate(contest, contestants, rows, rounds, ready, warm_up=False)


def _whole_contestants(spark: SparkSession) -> Works:
    from fencepost_spark import SparkEngine

    engine = SparkEngine(spark)

    def overwrite(place: Path) -> None:
        table = str(place / "table")
        kept = spark.read.format("delta").load(table).dropDuplicates(list(COLUMNS))
        kept.write.format("delta").mode("overwrite").save(table)

    def delete(place: Path) -> None:
        table, keys = f"delta.`{place / 'table'}`", ", ".join(COLUMNS)
        twice = f"select {keys}, min(payload) as kept from {table} group by {keys} having count(*) > 1"
        spark.sql(f"merge into {table} t using ({twice}) s on {SAME} when matched and t.payload <> s.kept then delete")

    return {
        VECTORS: ("ours", lambda place: _job(place, engine).run()),
        UNSYNCED: ("ours", lambda place: _job(place, engine, sync=False).run()),
        LOCAL: ("ours", lambda place: _job(place, LocalEngine(THREADS)).run()),
        FILES: ("ours", lambda place: _without_vectors(place, engine)),
        OVERWRITE: ("peer", overwrite),
        DELETE: ("peer", delete),
    }


def _new_contestants(spark: SparkSession, landed: Landed) -> Works:
    from fencepost_spark import SparkEngine

    engine, new = SparkEngine(spark), f"file://{_last(landed)}"

    def append(place: Path) -> None:
        spark.read.parquet(new).write.format("delta").mode("append").save(str(place / "table"))
        _job(place, engine).run()

    def insert(place: Path) -> None:
        spark.read.parquet(new).dropDuplicates(list(COLUMNS)).createOrReplaceTempView("new_rows")
        table = f"delta.`{place / 'table'}`"
        spark.sql(f"merge into {table} t using new_rows s on {SAME} when not matched then insert *")

    return {APPEND: ("ours", append), INSERT: ("peer", insert)}


def _job(place: Path, engine: Engine, *, sync: bool = True) -> DedupJob:
    return DedupJob(place / "table", place / "state", place / "table", engine=engine, sync=sync)


def _without_vectors(place: Path, engine: Engine) -> None:
    DeltaTable(place / "table").alter.set_table_properties({"delta.enableDeletionVectors": "false"})
    _job(place, engine).run()


def _answer(spark: SparkSession, place: Path) -> Answer:
    row = spark.sql(f"select count(seq), sum(seq) from delta.`{place / 'table'}`").head()
    assert row is not None
    return row[0], row[1]


if __name__ == "__main__":
    write_part(contest)
