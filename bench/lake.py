"""Jobs over files: each identity once, Parquet to Parquet, by where the repeats lie and how producers' rows are spread.

`dropDuplicates` to Parquet is what everything is compared with. An answer is (rows, sum of their sequences), read from
the output after every round. A round of `dropDuplicates` takes 15 to 20 s for 10 M rows, so none is thrown away: what
has to warm up does so on fewer rows, and files are read once before the first round.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost.lake import LocalEngine, RunReport, audit

from bench.measure import Contestant, alternate, tell, write_part
from bench.spark import (
    DATA,
    DROP_DUPLICATES,
    JOB,
    STEP,
    THREADS,
    Landed,
    copy_contestants,
    job_contestant,
    parquet_contestant,
    session,
    settle,
    wake_workers,
)
from bench.workload import Numbers, occurrence, payloads, sum_of_runs, with_repeats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 20
ROW_GROUP_ROWS = 131_072
LAG_MAX = 40
"""A repeat comes up to so many runs later."""
PARTITIONS = 1_000
KEYS = 100_000
WARM_UP = 20
"""A share of the rows, one in so many, on which everyone warms up."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How producers' rows are spread over files, and where their repeats lie."""

    name: str
    times: float
    """How many times as fast as `dropDuplicates` a job is to be."""
    run: int = 20
    is_scattered: bool = False
    """Every run goes to a file by chance; else a file has all runs of some partitions that follow each other."""
    is_interleaved: bool = False
    """The partitions of a file do not follow each other, so statistics do not show that no two files share a key."""
    repeats: float = 0.05
    where: str = "everywhere"
    """Where repeats lie: everywhere, "files" (in one file in ten), "tail" (in the last tenth of each file)."""
    payload_bytes: int = 90
    step: int = 1
    """By how much sequences rise; above 1 no row continues the one before it."""
    lost: int = 0
    """Sequences of a key that are missing between two runs of it."""
    group_rows: int = ROW_GROUP_ROWS
    """Rows of a row group."""


WHOLE_KEYS = Shape(name="whole keys per file, repeats in every file", times=12)
CLEAN = Shape(name="whole keys per file, no repeats", times=25, repeats=0)
ONE_ROW = Shape(name="scattered, spans of one row", times=6, is_scattered=True, run=1)
WIDE = Shape(name="whole keys per file, repeats in every file, 1 KB payload", times=12, payload_bytes=1_000)
"""Of a tenth of the rows."""
LOSSES = Shape(
    name="interleaved keys, a gap after 20 rows, repeats in every file", times=12, is_interleaved=True, lost=1
)
"""Rows that were lost now and then."""
GAPS = Shape(name="interleaved keys, gaps, repeats in every file", times=12, is_interleaved=True, step=STEP)
"""A topic of which few rows are left: no row follows another."""
SHAPES = (
    WHOLE_KEYS,
    Shape(name="whole keys per file, repeats in one file in ten", times=25, where="files"),
    Shape(name="whole keys per file, repeats clustered in time", times=25, where="tail"),
    CLEAN,
    Shape(name="scattered, spans of 20", times=8, is_scattered=True),
    ONE_ROW,
    WIDE,
    LOSSES,
    replace(LOSSES, name="interleaved keys, a gap after 20 rows, repeats in one file in ten", times=25, where="files"),
    Shape(name="scattered, a gap after 20 rows", times=12, is_scattered=True, lost=1),
    GAPS,
    replace(GAPS, name="interleaved keys, gaps, repeats in one file in ten", times=25, where="files"),
    Shape(name="scattered, spans of 20, gaps", times=12, is_scattered=True, step=STEP),
)
AUDIT_TIMES = 30
SYNCED, LOCAL, LINKED, INTERVAL = (
    f"{JOB}, synced",
    "DedupJob, local engine",
    f"{JOB}, source immutable",
    f"{JOB}, interval plan",
)
AUDIT = "audit"


def land(shape: Shape, rows: int, data: Path = DATA) -> Landed:
    """About `rows` rows in FILES files; made once and kept."""
    folder = data / f"lake-{rows}" / shape.name.replace(",", "").replace(" ", "-")
    rng = np.random.default_rng(1)
    fresh = round(rows / (1 + shape.repeats)) // shape.run
    key = rng.integers(KEYS, size=fresh)
    first = occurrence(key) * (shape.run + shape.lost)
    partition = key % PARTITIONS
    home = partition % FILES if shape.is_interleaved else partition * FILES // PARTITIONS
    order, file = _deal(rng, shape, home, round(rows * shape.repeats / (1 + shape.repeats)) // shape.run)
    landed = (len(order) * shape.run, sum_of_runs(first[order], shape.run) * shape.step)
    kept = (fresh * shape.run, sum_of_runs(first, shape.run) * shape.step)
    if not (folder / "complete").exists():
        tell(f"landing {shape.name}: {landed[0]:,} rows")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "files").mkdir(parents=True)
        for number in range(FILES):
            runs = order[file == number]
            _write(folder / "files" / f"{number:05}.parquet", rng, key[runs], first[runs], shape)
        (folder / "complete").touch()
    return Landed(folder / "files", landed, kept)


def _deal(rng: np.random.Generator, shape: Shape, home: Numbers, repeats: int) -> tuple[Numbers, Numbers]:
    """(numbers of runs as they land, the file of each)."""
    fresh = len(home)
    lag = rng.integers(1, LAG_MAX * FILES, size=repeats)
    if shape.where == "tail":
        again = rng.integers(round(fresh * 0.9), fresh, size=repeats)
    elif shape.where == "files":
        candidates = np.flatnonzero(home < FILES // 10)
        again = rng.choice(candidates, min(repeats, len(candidates) // 20), replace=False)
        lag = lag[: len(again)]
    else:
        again = rng.choice(fresh, repeats, replace=False)
    numbers = with_repeats(fresh, again, lag)
    file = rng.integers(FILES, size=len(numbers)) if shape.is_scattered else home[numbers]
    return numbers, file


def _write(path: Path, rng: np.random.Generator, key: Numbers, first: Numbers, shape: Shape) -> None:
    runs_together = shape.group_rows // shape.run
    writer = None
    for start in range(0, len(key), runs_together):
        some, firsts = key[start : start + runs_together], first[start : start + runs_together]
        rows = len(some) * shape.run
        key_of_row = np.repeat(some, shape.run)
        pid = key_of_row // PARTITIONS
        table = pa.table(
            {
                "pid": pid,
                "epoch": (pid % 3).astype(np.int16),
                "partition": (key_of_row % PARTITIONS).astype(np.int32),
                "seq": (shape.step * (np.repeat(firsts, shape.run) + np.tile(np.arange(shape.run), len(some)))).astype(
                    np.int32
                ),
                "timestamp": (1_700_000_000_000 + start * shape.run + np.arange(rows)).astype(np.int64),
                "payload": payloads(rng, rows, shape.payload_bytes),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=["pid", "epoch", "partition"])
        writer.write_table(table, row_group_size=len(table))
    if writer is not None:
        writer.close()


def contest(
    rows: int, rounds: int, data: Path = DATA, heap: str = "7g", shapes: Sequence[Shape] = SHAPES, **settings: Any
) -> dict[str, Any]:
    """All shapes; what belongs into the results. `settings` of Spark: underscores in their names stand for dots."""

    scratch = data / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    jobs: list[dict[str, Any]] = []
    measurements = []
    with session(heap, scratch, settings) as spark:
        _warm_up(spark, rows // WARM_UP, data, scratch)
        for shape in shapes:
            landed = land(shape, rows // 10 if shape is WIDE else rows, data)
            reports: dict[str, RunReport] = {}
            contestants = _contestants(spark, shape, landed, scratch, reports)
            ready = partial(_make_ready, landed.folder, spark)
            measurements += alternate(shape.name, contestants, landed.landed[0], rounds, ready, warm_up=False)
            jobs += [{"contest": shape.name, "name": name, **_facts(report)} for name, report in reports.items()]
    shutil.rmtree(scratch, ignore_errors=True)
    return {"files": FILES, "heap": heap, "measurements": [it.to_json() for it in measurements], "jobs": jobs}


def _make_ready(folder: Path, spark: SparkSession) -> None:
    """Everyone finds the files in memory, which others' outputs may have driven out, and Spark's Python workers awake.
    Shuffles of earlier rounds, 2 GB each, leave the disk when the JVM collects what refers to them."""
    spark._jvm.System.gc()  # type: ignore[union-attr]
    settle()
    for file in folder.iterdir():
        file.read_bytes()
    wake_workers(spark)


def _warm_up(spark: SparkSession, rows: int, data: Path, scratch: Path) -> None:
    contestants = _contestants(spark, WHOLE_KEYS, land(WHOLE_KEYS, rows, data), scratch, {})
    wrong = [it.name for it in alternate("warm-up", contestants, rows, 2, settle, warm_up=False) if not it.is_right]
    assert not wrong, wrong


def _contestants(
    spark: SparkSession, shape: Shape, landed: Landed, scratch: Path, reports: dict[str, RunReport]
) -> list[Contestant]:
    """`reports`: gets each job's last one."""
    from fencepost_spark import SparkEngine

    on_spark, local = SparkEngine(spark), LocalEngine(THREADS)
    jobs: dict[str, dict[str, Any]] = {
        JOB: {"engine": on_spark, "sync": False},
        SYNCED: {"engine": on_spark},
        LOCAL: {"engine": local, "sync": False},
        LINKED: {"engine": on_spark, "sync": False, "source_immutable": True},
    }
    if not (shape.is_scattered or shape.is_interleaved):
        jobs[INTERVAL] = {"engine": on_spark, "sync": False, "plan": "interval"}
    return [
        *(
            job_contestant(name, landed, scratch, partial(reports.__setitem__, name), **options)
            for name, options in jobs.items()
        ),
        _audit(landed),
        parquet_contestant(spark, landed, scratch, DROP_DUPLICATES),
        *copy_contestants(landed, scratch),
    ]


def _audit(landed: Landed) -> Contestant:
    """Reads only: how many rows a job would keep."""
    return Contestant(
        name=AUDIT,
        threads=THREADS,
        run=lambda: audit(landed.folder, threads=THREADS).counts["ACCEPTED"],
        expected=landed.kept[0],
        role="ours",
    )


FACTS = (
    "plan",
    "plan_reason",
    "judged",
    "files",
    "rows",
    "bytes",
    "spans",
    "kept",
    "entries",
    "shards",
    "state_bytes_written",
    "carried_files",
    "copied_groups",
    "rewritten_groups",
    "seconds",
    "driver_seconds",
    "task_seconds",
)


def _facts(report: RunReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in FACTS}


if __name__ == "__main__":
    write_part(contest)
