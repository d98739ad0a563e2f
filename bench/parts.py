"""What it brings that several tasks share a large file: jobs over one file, with two workers.

`python bench/parts.py [--rows N] [--rounds N]` prints a table. Rows have payloads of 90 bytes; a tenth of them repeat
rows a little before them, or none do. Rounds are alternated, times are medians, and all sinks must have the same rows.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost.lake import DedupJob, LocalEngine, RunReport, applied_files

WORKERS = 2
ROW_GROUP_ROWS = 65_536
PARTS = 12
SHAPES = {"a tenth are repeats": 10, "no repeats": 0}
"""How many rows there are to a repeat."""
WHOLE = 1 << 62


def land(path: Path, rows: int, rows_to_a_repeat: int) -> None:
    """One file, whose rows are of a hundred producers in turn."""
    rng = np.random.default_rng(1)
    place = np.arange(rows)
    if rows_to_a_repeat:
        place[::rows_to_a_repeat] = np.maximum(place[::rows_to_a_repeat] - 1_005, 0)
    payload = pa.array([rng.bytes(90) for _ in range(1000)])
    table = pa.table(
        {
            "pid": place // 20 % 100,
            "epoch": np.zeros(rows, np.int64),
            "partition": np.zeros(rows, np.int64),
            "seq": place // 2_000 * 20 + place % 20,
            "payload": payload.take(pa.array(rng.integers(0, len(payload), rows))),
        }
    )
    pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, use_dictionary=False)


def run(root: Path, options: dict[str, Any]) -> tuple[RunReport, float, tuple[int, int]]:
    """(report, seconds, number and checksum of the sink's rows)."""
    for name in ("state", "sink"):
        shutil.rmtree(root / name, ignore_errors=True)
    engine = LocalEngine(WORKERS)
    job = DedupJob(root / "source", root / "state", root / "sink", sync=False, engine=engine, **options)
    began = time.perf_counter()
    report = job.run()
    seconds = time.perf_counter() - began
    rows = pl.scan_parquet(applied_files(root / "sink"), hive_partitioning=False).collect()
    assert report.kept == rows.height, report
    return report, seconds, (rows.height, int(rows.hash_rows(1).cast(pl.Int128).sum()))


def measure(root: Path, rows: int, rows_to_a_repeat: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of seconds by contestant and step, `all` among them."""
    source = root / "source"
    source.mkdir(parents=True)
    land(source / "a.parquet", rows, rows_to_a_repeat)
    size = (source / "a.parquet").stat().st_size
    contestants: dict[str, dict[str, Any]] = {
        "one task": {"task_bytes_max": WHOLE, "plan": "interval"},
        "one task, aligned": {"task_bytes_max": WHOLE, "plan": "aligned"},
        f"{PARTS} parts": {"task_bytes_max": -(-size // PARTS)},
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    answers = set()
    for _ in range(rounds):
        for name, options in contestants.items():
            report, seconds, answer = run(root, options)
            found[name].append({**report.seconds, "all": seconds})
            answers.add(answer)
            assert bool(report.counts.get("DUPLICATE")) == bool(rows_to_a_repeat), report
    assert len(answers) == 1, answers
    steps = ("scan", "judge", "write", "align", "all")
    return {name: {step: median(it.get(step, 0.0) for it in runs) for step in steps} for name, runs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| one file | tasks | scan | judge | write | align | all, s | ratio |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for shape, rows_to_a_repeat in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
            found = measure(Path(folder), given.rows, rows_to_a_repeat, given.rounds)
        for name, seconds in found.items():
            figures = " | ".join(f"{it:.2f}" for it in seconds.values())
            ratio = found["one task"]["all"] / seconds["all"]
            print(f"| {shape} | {name} | {figures} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
