"""`make demo`: runs the job on a generated landing zone and on one that a real sink wrote.

Checks every figure against the expected results that came with the data, and fails if one differs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from fencepost import Columns
from fencepost.generate import LandingZone, generate
from fencepost.lake import RunReport
from fencepost_spark import DedupJob
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "demo-out"
REAL = ROOT / "tests" / "data" / "landing-zone"
ZONE = LandingZone(
    rows=3_000_000, producers=200, partitions=12, topics=2, deliveries=3, files=6, repeat_near=0.05, seed=7
)
IDENTITY = Columns(partition=("topic", "partition"))

console = Console(highlight=False, width=max(100, Console().width))


def main() -> int:
    """Run both parts. Returns 1 if a figure is wrong."""
    shutil.rmtree(OUT, ignore_errors=True)
    with spark_session() as spark:
        is_right = show_generated(spark)
        is_right = show_real(spark) and is_right
    verdict = "every figure equals the truth" if is_right else "[red]a figure differs from the truth[/]"
    console.print(f"\n[bold]{verdict}[/]; everything is in [bold]demo-out/[/]")
    return 0 if is_right else 1


def show_generated(spark: SparkSession) -> bool:
    """Run the job twice over a growing landing zone."""
    console.rule("[bold]a landing zone, as an at-least-once sink leaves it")
    first, then = range(ZONE.deliveries - 1), range(ZONE.deliveries - 1, ZONE.deliveries)
    with bar("generate") as progress:
        summary = generate(OUT / "zone", ZONE, deliveries=first, progress=progress)
    console.print(
        f"{ZONE.producers} producers wrote to {ZONE.topics} topics of {ZONE.partitions} partitions; "
        f"{summary.rows:,} rows landed in {len(summary.files)} files ({summary.bytes / 1e6:,.0f} MB). "
        "There are runs sent again, whole files delivered again, late rows, lost rows, producers that started again "
        "and zombies that go on writing under an old epoch."
    )

    console.rule("[bold]the first run")
    is_right = run(spark, OUT / "zone", len(first) - 1)

    console.rule("[bold]another delivery lands: late rows, repeats of old ones, new ones")
    with bar("generate") as progress:
        summary = generate(OUT / "zone", ZONE, deliveries=then, progress=progress)
    console.print(f"{summary.rows:,} rows in {len(summary.files)} files; the second run reads these only")
    is_right = run(spark, OUT / "zone", then[-1]) and is_right
    show_missing()
    return is_right


def run(spark: SparkSession, zone: Path, delivery: int) -> bool:
    """Run the job once, show its report, and check it against the expected results of all deliveries so far."""
    job = DedupJob(zone / "landing", OUT / "state", OUT / "clean", spark=spark, columns=IDENTITY)
    report = run_with_progress(job)
    console.print(str(report))
    show_zombies(report)
    truth = json.loads((zone / "truth" / "any_order" / f"d{delivery:04}.json").read_text())
    kept = zone / "truth" / "any_order" / f"d{delivery:04}-kept.parquet"
    return show_checks({"rows kept so far": (count_rows(OUT / "clean"), truth["kept_rows"])}) and same_rows(kept)


def show_real(spark: SparkSession) -> bool:
    """Run the job on data of a Kafka broker, real producers, and a sink that was killed seven times."""
    console.rule("[bold]real files: a Kafka broker, real producers, a sink killed several times")
    truth = json.loads((REAL / "truth.json").read_text())
    tracked = truth["rows_distinct_tracked"] + truth["rows_untracked_landed"]
    checks = {}
    for policy, columns, expected in (
        ("kafka_offsets", None, truth["rows_distinct"]),
        ("any_order", IDENTITY, tracked),
    ):
        out = OUT / "real" / policy
        job = DedupJob(REAL / "landing", out / "state", out / "clean", spark=spark, policy=policy, columns=columns)
        report = run_with_progress(job)
        checks[f"{policy}: {report.rows:,} rows landed, kept"] = (count_rows(out / "clean"), expected)
    return show_checks(checks)


def run_with_progress(job: DedupJob) -> RunReport:
    """Run the job with one progress bar per stage."""
    with stages() as progress:
        return job.run(progress)


def show_missing() -> None:
    """Show the largest missing ranges."""
    import fencepost.state

    missing = fencepost.state.open(OUT / "state").missing()
    rows = duckdb.sql("SELECT * FROM missing ORDER BY count DESC, pid, epoch, first_seq LIMIT 5").fetchall()
    ((ranges, total),) = duckdb.sql("SELECT count(*), coalesce(sum(count), 0)::BIGINT FROM missing").fetchall()
    show_table(f"missing: {total:,} rows in {ranges:,} ranges, the largest of them", missing.column_names, rows)


def show_zombies(report: RunReport) -> None:
    """Show the producers that wrote after a later epoch had replaced them."""
    stale = report.stale
    if stale.num_rows:
        rows = duckdb.sql(
            "SELECT pid, epoch, count(*) AS partitions, sum(count)::BIGINT AS rows FROM stale "
            "GROUP BY pid, epoch ORDER BY rows DESC, pid, epoch LIMIT 5"
        )
        title = f"zombies: {report.stale_epoch:,} rows of replaced epochs, most of them from"
        show_table(title, rows.columns, rows.fetchall())


def show_checks(checks: dict[str, tuple[int, int]]) -> bool:
    """Show each figure beside the expected one. Returns whether all are equal."""
    for what, (found, expected) in checks.items():
        sign = "[green]✓[/]" if found == expected else "[red]✗[/]"
        console.print(f"{sign} {what}: [bold]{found:,}[/], the truth says {expected:,}")
    return all(found == expected for found, expected in checks.values())


def same_rows(kept: Path) -> bool:
    """Return whether the tracked output rows are exactly those of the expected ranges, each once."""
    ((extra, lost),) = duckdb.sql(f"""
        WITH truth AS (
            SELECT pid, epoch, topic, partition, unnest(range(first_seq, last_seq + 1)) AS seq
            FROM read_parquet('{kept}') WHERE pid IS NOT NULL AND pid <> -1
        ), found AS (
            SELECT pid, epoch, topic, partition, seq FROM read_parquet('{OUT}/clean/run=*/*.parquet')
            WHERE pid IS NOT NULL AND pid <> -1
        )
        SELECT (SELECT count(*) FROM (SELECT * FROM found EXCEPT ALL SELECT * FROM truth)),
               (SELECT count(*) FROM (SELECT * FROM truth EXCEPT ALL SELECT * FROM found))
    """).fetchall()
    return show_checks({"rows kept that should not be": (extra, 0), "rows lost": (lost, 0)})


def count_rows(sink: Path) -> int:
    """Return the number of output rows, as any reader counts them."""
    ((rows,),) = duckdb.sql(f"SELECT count(*) FROM read_parquet('{sink}/run=*/*.parquet')").fetchall()
    return int(rows)


def show_table(title: str, names: list[str], rows: list[Any]) -> None:
    """Print a title and some aligned rows."""
    console.print(title)
    table = Table()
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    console.print(table)


@contextmanager
def bar(name: str) -> Iterator[Any]:
    """A progress bar over the rows of the zone. Yields a function of the number of rows so far."""
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(name, total=ZONE.rows)
        yield lambda done: shown.update(task, completed=done)


@contextmanager
def stages() -> Iterator[Any]:
    """A progress bar per stage. Yields a function of (stage, done, total)."""
    tasks: dict[str, Any] = {}
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as shown:

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(stage)
            shown.update(tasks[stage], completed=done, total=total)

        yield update


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A small, quiet local Spark session with its files in demo-out."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning"  # a warning of Spark's about versions of pandas
    warnings.simplefilter("ignore", FutureWarning)
    OUT.mkdir()
    with console.status("starting Spark"), standard_error_to(OUT / "spark.log"):
        spark = (
            SparkSession.builder.master("local[2]")
            .appName("fencepost demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.local.dir", str(OUT / "spark"))
            .config("spark.sql.warehouse.dir", str(OUT / "spark" / "warehouse"))
            .getOrCreate()
        )
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes that start here to a file, because the JVM prints a greeting."""
    terminal = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


if __name__ == "__main__":
    sys.exit(main())
