"""The whole benchmark in one run: see README.md beside this file.

    python bench/run.py --quick                 2 M rows, a few minutes
    python bench/run.py --full                  21 M rows in memory, 20 M on Spark, 10 M in files, two hours
    python bench/run.py --full --only shapes    fp.deduplicate and polars by shape of the rows, seven minutes
    python bench/run.py --full --only lake      jobs over files alone, forty minutes
    python bench/run.py --full --only spark     the doors for DataFrames, forty minutes
    python bench/run.py --full --only delta     Delta tables in place (make jars), a quarter of an hour
    python bench/run.py --full --only stores    an S3 server beside the local disk, twenty minutes
    python bench/run.py --full --only streams   streams, a quarter of an hour
    python bench/run.py --full --only kafka     Kafka's log and its rules (make jars), minutes
    python bench/run.py --full --only registry  producer identities from PostgreSQL, minutes
    python bench/run.py --full --only producer  numbers on rows, rows to partitions, a minute
    python bench/run.py --full --only sql       events to PostgreSQL (the system's package), minutes
    python bench/run.py --full --only partition_log  appends to a log of our own, minutes

Each part runs in a process of its own, so that none has to live with another's memory. Exits with 1 if an answer of
ours was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[0] = str(ROOT)  # instead of this folder, whose modules would come before installed ones of the same name

from bench import report  # noqa: E402
from bench.measure import tell  # noqa: E402
from bench.summary import draw_summary  # noqa: E402

LAKE, FRAMES, TABLES = ("lake",), ("spark",), ("delta", "stores", "streams")
IN_MEMORY = ("shapes",)
WITHOUT_SPARK = (*IN_MEMORY, "kafka", "partition_log", "registry", "producer", "sql")
"""Parts that can be run by themselves; the results of each are files of their own then. Of a whole run only those of
FRAMES are in one file with what is measured in memory."""

ROUNDS_WITHOUT_SPARK = 5


@dataclass(frozen=True)
class Mode:
    name: str
    results: str
    lake_results: str
    """Names of the result files, those of jobs over files by themselves. What is published is measured in full."""
    rows: int
    spark_rows: int
    door_rows: int
    rounds: int
    spark_rounds: int
    part_rows: int
    lake_rows: int
    lake_rounds: int


QUICK = Mode(
    "quick",
    "quick",
    "quick-lake",
    rows=2_100_000,
    spark_rows=2_000_000,
    door_rows=500_000,
    rounds=3,
    spark_rounds=2,
    part_rows=1_000_000,
    lake_rows=1_000_000,
    lake_rounds=2,
)
FULL = Mode(
    "full",
    "latest",
    "lake",
    rows=21_000_000,
    spark_rows=20_000_000,
    door_rows=4_000_000,
    rounds=3,
    spark_rounds=2,
    part_rows=20_000_000,
    lake_rows=10_000_000,
    lake_rounds=5,
)


def main() -> int:
    options = _options()
    mode = FULL if options.full else QUICK
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if options.only is None:
            parts = {"memory": _part("compare", options.rows or mode.rows, mode.rounds, scratch)}
            if not options.no_spark:
                parts["spark"] = _part("spark", options.rows or mode.spark_rows, mode.spark_rounds, scratch)
            parts["doors"] = _doors(options.rows or mode.door_rows, scratch)
            wrong |= _publish(parts, mode, options.results, mode.results)
        rows = options.rows or mode.part_rows
        if not options.no_spark and options.only in (None, *LAKE):
            lake = _part("lake", options.rows or mode.lake_rows, mode.lake_rounds, scratch)
            parts = {"lake": lake, "costs": _part("costs", rows, mode.spark_rounds, scratch)}
            wrong |= _publish(parts, mode, options.results, mode.lake_results)
        for name in (*FRAMES, *TABLES, *WITHOUT_SPARK):
            if options.only == name or (name not in FRAMES and options.only is None and not options.no_spark):
                # They take seconds, those of Spark a minute.
                rounds = ROUNDS_WITHOUT_SPARK if name in WITHOUT_SPARK else mode.spark_rounds
                rounds = mode.rounds if name in IN_MEMORY else rounds
                parts = {name: _part(name, rows, rounds, scratch)}
                wrong |= _publish(parts, mode, options.results, mode.lake_results.replace("lake", name))
    return int(wrong)


def _publish(parts: dict[str, Any], mode: Mode, folder: Path, name: str) -> bool:
    """Write and show what was measured; whether an answer of ours was wrong."""
    results = report.collect(mode.name, **parts)
    report.write(results, folder, name)
    if "lake" in parts:
        draw_summary(results, folder / f"{name}-summary.svg")
    print(report.to_markdown(results))
    tell(f"written: {folder}/{name}.json, .md, .svg, .png")
    for one in results.wrong:
        tell(f"WRONG: {one.contest}: {one.name} answered {one.answer}, right is {one.expected}")
    return any(one.role == "ours" for one in results.wrong)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--quick", action="store_true")
    size.add_argument("--full", action="store_true")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-spark", action="store_true", help="in memory only")
    which.add_argument(
        "--only",
        choices=[*LAKE, *FRAMES, *TABLES, *WITHOUT_SPARK],
        help="one part: jobs over files and what they cost; DataFrames; Delta in place; object stores; streams; "
        "shapes of rows; Kafka's log, our own; producer identities; producers; events to PostgreSQL",
    )
    parser.add_argument("--rows", type=int, help="instead of the mode's number, in every part")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where to write")
    return parser.parse_args()


def _part(module: str, rows: int, rounds: int, folder: Path) -> Any:
    """What `bench.<module>` measures, in a process of its own."""
    out = folder / f"{module}.json"
    subprocess.run([sys.executable, "-m", f"bench.{module}", str(rows), str(rounds), str(out)], cwd=ROOT, check=True)
    return json.loads(out.read_text())


def _doors(rows: int, folder: Path) -> list[dict[str, Any]]:
    out = folder / "doors.json"
    tell(f"every policy and shape: {rows:,} rows")
    command = [sys.executable, "-m", "pytest", "-q", str(HERE / "test_memory.py"), f"--benchmark-json={out}"]
    env = {**os.environ, "FENCEPOST_BENCH_ROWS": str(rows)}
    subprocess.run([*command, "--benchmark-quiet"], cwd=ROOT, env=env, check=True, stdout=sys.stderr)
    return report.doors(out)


if __name__ == "__main__":
    sys.exit(main())
