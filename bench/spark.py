"""One run on Spark: the same Parquet files for everyone, alternated rounds, answers checked.

Three contests: files to noop, the same with gaps between all sequences, and files to Parquet. An answer is (rows, sum
of their sequences). Of what goes to noop it is taken in the first round, which is not counted, by an observation in the
plan; a Parquet output is read again after every round.
"""

from __future__ import annotations

import gc
import json
import operator
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fencepost.generate import LandingZone, generate
from fencepost.lake import DedupJob, LocalEngine, RunReport

from bench.measure import Contestant, Role, alternate, tell, write_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = Path(__file__).parent / ".data"
COLUMNS = ("pid", "epoch", "partition", "seq")
THREADS = 2
NOOP = "Spark: files to noop"
GAPS = "Spark: files to noop, gaps between all sequences"
PARQUET = "Spark: files to Parquet"
COLUMNAR_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"

Answer = tuple[int, int]
"""Rows, and the sum of their sequences."""


@dataclass(frozen=True)
class Landed:
    """Files, and the truth about them."""

    folder: Path
    landed: Answer
    kept: Answer


def landing(rows: int, data: Path = DATA) -> Landed:
    """About `rows` rows with a 90-byte payload, 5 % of them repeats, whole partitions per file; made once and kept.

    No file passes 128 MB, above which Spark would cut it. No row is untracked: the others would take all of these for
    one.
    """
    spec = LandingZone(
        rows=round(rows / 1.05),
        producers=1_000,
        topics=1,
        partitions=96,
        repeat_near=0.04,
        repeat_far=0.01,
        untracked_share=0,
        deliveries=1,
        files=max(2, min(24, rows // 50_000)),
        co_located=True,
        seed=1,
    )
    folder = data / f"landing-{rows}"
    if not (folder / "truth" / "any_order" / "d0000-missing.parquet").exists():
        tell(f"Spark: generating about {rows:,} rows")
        shutil.rmtree(folder, ignore_errors=True)
        generate(folder, spec, truth_policies=("any_order",))
    truth = folder / "truth" / "any_order"
    facts = json.loads((truth / "d0000.json").read_text())
    ranges = pq.read_table(truth / "d0000-kept.parquet", columns=["first_seq", "last_seq", "count"])
    sums = pc.multiply(pc.add(ranges["first_seq"], ranges["last_seq"]), ranges["count"])
    found = Landed(folder / "landing", answer_of(folder / "landing"), (facts["kept_rows"], pc.sum(sums).as_py() // 2))
    assert found.landed[0] == facts["rows"], "the landing zone is not what its truth is about"
    return found


STEP = 7


def with_gaps(landed: Landed, folder: Path) -> Landed:
    """The same rows with every sequence `STEP` times as high: no row continues the one before it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in landed.folder.iterdir():
        rows = pq.read_table(file)
        place = rows.schema.get_field_index("seq")
        seqs = pc.multiply_checked(rows["seq"], pa.scalar(STEP, rows["seq"].type))
        pq.write_table(rows.set_column(place, rows.schema.field(place), seqs), folder / file.name)
    (rows, seqs), (kept, kept_seqs) = landed.landed, landed.kept
    return Landed(folder, (rows, seqs * STEP), (kept, kept_seqs * STEP))


def answer_of(folder: Path) -> Answer:
    """The answer in the Parquet files of a folder and its subfolders, without side tables."""
    files = [it for it in folder.rglob("*.parquet") if not any(part[0] == "_" for part in it.relative_to(folder).parts)]
    seqs = [pq.read_table(path, columns=["seq"], partitioning=None)["seq"] for path in files]
    return sum(map(len, seqs)), sum(pc.sum(seq).as_py() or 0 for seq in seqs)


def contest(
    rows: int, rounds: int, data: Path = DATA, heap: str = "7g", warm_up: bool = True, **settings: Any
) -> dict[str, Any]:
    """Both contests; what belongs into the results. `settings` of Spark: underscores in their names stand for dots."""
    landed = landing(rows, data)
    scratch = data / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    with session(heap, scratch, settings) as spark:
        count = landed.landed[0]
        measurements = alternate(NOOP, _to_noop(spark, landed), count, rounds, settle, warm_up)
        gappy = _with_gaps(spark, with_gaps(landed, scratch / "gaps"))
        measurements += alternate(GAPS, gappy, count, rounds, settle, warm_up)
        measurements += alternate(PARQUET, _to_parquet(spark, landed, scratch), count, rounds, settle, warm_up)
        facts = {
            "master": spark.sparkContext.master,
            "heap": heap,
            "settings": settings,
            "java": spark.sparkContext._jvm.System.getProperty("java.version"),  # type: ignore[union-attr]
            "files": len(list(landed.folder.iterdir())),
            "bytes": sum(file.stat().st_size for file in landed.folder.iterdir()),
            "seed": 1,
        }
    shutil.rmtree(scratch, ignore_errors=True)
    return {**facts, "measurements": [it.to_json() for it in measurements]}


@contextmanager
def session(heap: str, scratch: Path, more: dict[str, Any]) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": heap,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "ERROR",
        **{name if "." in name else name.replace("_", "."): str(value) for name, value in more.items()},
    }
    builder = SparkSession.builder.master(f"local[{THREADS}]").appName("fencepost bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def settle() -> None:
    # What one has written is not flushed in another's time.
    gc.collect()
    os.sync()


def wake_workers(spark: SparkSession) -> None:
    """Python workers end after an idle minute: a contestant that follows `dropDuplicates` would start them again."""
    from fencepost_spark import SparkEngine

    SparkEngine(spark).run("wake", operator.index, range(4 * THREADS))


# The plans: a DataFrame each


Plan = Callable[["DataFrame"], "DataFrame"]


def scan(df: DataFrame) -> DataFrame:
    return df


def drop_duplicates(df: DataFrame) -> DataFrame:
    return df.dropDuplicates(list(COLUMNS))


def row_number(df: DataFrame) -> DataFrame:
    from pyspark.sql import Window, functions

    order = Window.partitionBy(*COLUMNS).orderBy("offset")
    return df.withColumn("n", functions.row_number().over(order)).where("n = 1").drop("n")


def trivial_udf(df: DataFrame) -> DataFrame:
    """What rows cost that pass a Python UDF at all: the same columns go in, a zero a row comes out, zeros are kept."""
    from pyspark.sql.pandas.functions import arrow_udf

    def zeros(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        import numpy as np
        import pyarrow as pa

        for columns in batches:
            yield pa.array(np.zeros(len(columns[0]), np.int8))

    zeros.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    verdict = arrow_udf(zeros, "tinyint").asNondeterministic()  # type: ignore[call-overload]
    return df.withColumn("verdict", verdict(*COLUMNS)).where("verdict in (0, 6)").drop("verdict")


def deduplicate_co_located(df: DataFrame) -> DataFrame:
    from fencepost_spark import deduplicate

    return deduplicate(df, co_located=True)


def deduplicate_files(df: DataFrame) -> DataFrame:
    from fencepost_spark import deduplicate

    return deduplicate(df)


def deduplicate_shuffled(df: DataFrame) -> DataFrame:
    """What a frame takes that is no plain scan of files."""
    return deduplicate_files(df.where("seq >= 0"))


@dataclass(frozen=True)
class SparkPlan:
    name: str
    plan: Plan
    role: Role = "peer"
    columnar_input: bool = True

    def expected(self, landed: Landed) -> Answer:
        """What must come out: plans that show a limit keep every row."""
        return landed.landed if self.role == "limit" else landed.kept


TRIVIAL = SparkPlan("trivial Arrow UDF", trivial_udf, role="limit")
SCAN = SparkPlan("scan", scan, role="limit")
DROP_DUPLICATES = SparkPlan("dropDuplicates", drop_duplicates)
SCAN_AND_WRITE = SparkPlan("scan and write", scan, role="limit")
ROW_NUMBER = SparkPlan("row_number", row_number)
CO_LOCATED = SparkPlan("deduplicate(co_located=True)", deduplicate_co_located, role="ours")
ROW_INPUT = SparkPlan(
    "deduplicate(co_located=True), columnarInput off", deduplicate_co_located, role="ours", columnar_input=False
)
JOB = "DedupJob, Spark engine"
SYNCED = f"{JOB}, synced"
"""With default settings."""
COPY = "copying the files"
COPY_SYNCED = f"{COPY}, synced"
FILES = SparkPlan("deduplicate()", deduplicate_files, role="ours")
SHUFFLED = SparkPlan("deduplicate() behind a filter", deduplicate_shuffled, role="ours")


def _to_noop(spark: SparkSession, landed: Landed) -> list[Contestant]:
    plans = (CO_LOCATED, ROW_INPUT, FILES, SHUFFLED, DROP_DUPLICATES, ROW_NUMBER, TRIVIAL, SCAN)
    return [_noop_contestant(spark, landed, it) for it in plans]


def _with_gaps(spark: SparkSession, landed: Landed) -> list[Contestant]:
    return [_noop_contestant(spark, landed, it) for it in (FILES, SHUFFLED, DROP_DUPLICATES, SCAN)]


def _noop_contestant(spark: SparkSession, landed: Landed, it: SparkPlan) -> Contestant:
    from pyspark.sql import Observation, functions

    answers: list[Answer] = []

    def run() -> Answer:
        with _columnar_input(spark, it.columnar_input):
            kept = it.plan(spark.read.parquet(str(landed.folder)))
            if answers:
                _to_nowhere(kept)
            else:
                seen = Observation()
                rows, seqs = functions.count(functions.lit(1)), functions.sum("seq")
                _to_nowhere(kept.observe(seen, rows.alias("rows"), seqs.alias("seqs")))
                answers.append((seen.get["rows"], seen.get["seqs"]))
        return answers[0]

    return Contestant(
        name=it.name,
        threads=THREADS,
        run=run,
        expected=it.expected(landed),
        role=it.role,
    )


def _to_nowhere(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def _to_parquet(spark: SparkSession, landed: Landed, scratch: Path) -> list[Contestant]:
    from fencepost_spark import SparkEngine

    plans = (CO_LOCATED, DROP_DUPLICATES, ROW_NUMBER, SCAN_AND_WRITE)
    on_spark, local = SparkEngine(spark), LocalEngine(THREADS)
    return [
        job_contestant(SYNCED, landed, scratch, _tell_seconds, engine=on_spark),
        job_contestant(JOB, landed, scratch, _tell_seconds, engine=on_spark, sync=False),
        job_contestant("DedupJob, local engine", landed, scratch, _tell_seconds, engine=local, sync=False),
        *(parquet_contestant(spark, landed, scratch, it) for it in plans),
        *copy_contestants(landed, scratch),
    ]


def parquet_contestant(spark: SparkSession, landed: Landed, scratch: Path, it: SparkPlan) -> Contestant:
    def run() -> Path:
        with _columnar_input(spark, it.columnar_input):
            it.plan(spark.read.parquet(str(landed.folder))).write.mode("overwrite").parquet(str(scratch / "out"))
        return scratch / "out"

    return Contestant(
        name=it.name,
        threads=THREADS,
        run=run,
        expected=it.expected(landed),
        answer=take_answer,
        role=it.role,
    )


def job_contestant(
    name: str, landed: Landed, scratch: Path, note: Callable[[RunReport], object], **options: Any
) -> Contestant:
    """`note`: gets the report of each run."""

    def run() -> Path:
        out = scratch / "out"
        note(DedupJob(landed.folder, out / "state", out / "sink", **options).run())
        return out

    return Contestant(name=name, threads=THREADS, run=run, expected=landed.kept, answer=take_answer, role="ours")


def _tell_seconds(report: RunReport) -> None:
    tell(f"  {report.seconds}")


def copy_contestants(landed: Landed, scratch: Path) -> list[Contestant]:
    """Every row, as bytes: the limits of jobs that write rows, without and with sync."""
    return [_copy_contestant(name, landed, scratch) for name in (COPY, COPY_SYNCED)]


def _copy_contestant(name: str, landed: Landed, scratch: Path) -> Contestant:
    def copy(file: Path) -> Path:
        return Path(shutil.copyfile(file, scratch / "out" / file.name))

    def sync(copied: Path) -> None:
        with copied.open("rb") as handle:
            os.fsync(handle.fileno())

    def run() -> Path:
        (scratch / "out").mkdir(parents=True)
        with ThreadPoolExecutor(THREADS) as copying, ThreadPoolExecutor(THREADS) as syncing:
            copied = copying.map(copy, landed.folder.iterdir())
            # Jobs also sync a file while they write the next.
            list(syncing.map(sync, copied) if name == COPY_SYNCED else copied)
        return scratch / "out"

    return Contestant(name=name, threads=THREADS, run=run, expected=landed.landed, answer=take_answer, role="limit")


def take_answer(folder: Path) -> Answer:
    """The answer; the folder is gone then, so that nobody overwrites in another's time."""
    answer = answer_of(folder)
    shutil.rmtree(folder)
    return answer


@contextmanager
def _columnar_input(spark: SparkSession, is_on: bool) -> Iterator[None]:
    """Columnar input to Python UDFs, a default of PySpark 4.2; others have no such setting."""
    if is_on or not spark.conf.isModifiable(COLUMNAR_INPUT):
        yield
        return
    before = spark.conf.get(COLUMNAR_INPUT)
    spark.conf.set(COLUMNAR_INPUT, "false")
    try:
        yield
    finally:
        spark.conf.set(COLUMNAR_INPUT, str(before))


if __name__ == "__main__":
    write_part(contest)
