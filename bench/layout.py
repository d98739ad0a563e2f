"""What a layout of the outputs costs: runs of one job with each option, beside the run that copies bytes.

`python bench/layout.py [--rows N] [--rounds N]` prints a table. Rows have payloads of 90 bytes. In every second file a
tenth of the rows are repeats, so that half of the files are rewritten and the others are copied. Rounds are alternated,
times are medians, and the rows of every sink are compared with those of the copy.
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
from fencepost.lake import DedupJob, applied_files

TARGET_BYTES = 64 << 20
SHAPES = {"2000 small files": 2000, "8 large files": 8}
LAYOUTS: dict[str, dict[str, Any]] = {
    "byte copies": {},
    "merged": {"target_file_bytes": TARGET_BYTES},
    "by day": {"target_file_bytes": TARGET_BYTES, "partition_by": "day(at)"},
    "sorted": {"target_file_bytes": TARGET_BYTES, "sort_by": "device"},
    "by day, sorted": {"target_file_bytes": TARGET_BYTES, "partition_by": "day(at)", "sort_by": "device"},
}


def land(folder: Path, rows: int, files: int) -> None:
    """Files of neighbouring rows of four days; each belongs to one producer."""
    rng = np.random.default_rng(1)
    count = rows // files
    payload = pa.array([rng.bytes(90) for _ in range(1000)])
    for number in range(files):
        seq = np.arange(count)
        if number % 2:
            seq[-count // 10 :] = seq[: len(seq[-count // 10 :])]
        times = (number * count + np.arange(count)) * (4 * 86_400_000_000 // rows)
        table = pa.table(
            {
                "pid": np.full(count, number),
                "epoch": np.zeros(count, np.int64),
                "partition": np.zeros(count, np.int64),
                "seq": seq,
                "at": pa.array(times, pa.timestamp("us", "UTC")),
                "device": rng.integers(0, 5000, count),
                "payload": payload.take(pa.array(rng.integers(0, len(payload), count))),
            }
        )
        pq.write_table(table, folder / f"{number:05}.parquet", use_dictionary=["device"])


def run(root: Path, layout: dict[str, Any]) -> tuple[float, int, tuple[int, int]]:
    """(seconds, files of the sink, number and checksum of their rows)."""
    for name in ("state", "sink"):
        shutil.rmtree(root / name, ignore_errors=True)
    job = DedupJob(root / "source", root / "state", root / "sink", sync=False, **layout)
    began = time.perf_counter()
    report = job.run()
    seconds = time.perf_counter() - began
    files = applied_files(root / "sink")
    rows = pl.scan_parquet(files, hive_partitioning=False).select("pid", "seq", "at", "device", "payload").collect()
    assert report.kept == rows.height, report
    return seconds, len(files), (rows.height, int(rows.hash_rows(1).cast(pl.Int128).sum()))


def measure(root: Path, rows: int, files: int, rounds: int) -> dict[str, tuple[float, float, int]]:
    """(seconds, ratio to the byte copies, files of the sink) by layout."""
    (root / "source").mkdir(parents=True)
    land(root / "source", rows, files)
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in LAYOUTS}
    answers = set()
    for _ in range(rounds):
        for name, layout in LAYOUTS.items():
            seconds, count, answer = run(root, layout)
            found[name].append((seconds, count))
            answers.add(answer)
    assert len(answers) == 1, answers
    medians = {name: median(seconds for seconds, _ in runs) for name, runs in found.items()}
    return {name: (it, it / medians["byte copies"], found[name][0][1]) for name, it in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| source | layout | seconds | ratio | files of the sink |\n|---|---|---:|---:|---:|")
    for shape, files in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
            found = measure(Path(folder), given.rows, files, given.rounds)
        for name, (seconds, ratio, count) in found.items():
            print(f"| {shape} | {name} | {seconds:.2f} | {ratio:.2f} | {count} |", flush=True)


if __name__ == "__main__":
    main()
