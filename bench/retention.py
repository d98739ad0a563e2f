"""What a state takes on the disk after many small batches, with and without retention, and what a batch costs then.

`python bench/retention.py [--batches N] [--kept NAME ...]` prints a table. Batches are those of a stream: each has rows
of some of 10 k producers, so that every shard changes with every batch. The clock is not the machine's: batches come
minutes apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost.lake import DedupJob
from fencepost.lake.run import Run
from fencepost.lake.sources import InputOverride
from fencepost.state import retention

PRODUCERS, ROWS, MINUTES = 10_000, 2_000, 10
SHOWN = 50
"""Batches at the beginning and at the end of which the median is shown."""
KEPT: dict[str, dict[str, Any]] = {
    "all": {"keep_versions": None},
    "100 versions, and a day": {"keep_versions": 100, "keep_versions_ms": 86_400_000},
    "10 versions, and an hour": {"keep_versions": 10, "keep_versions_ms": 0},
}


def run(root: Path, batches: int, options: dict[str, Any]) -> tuple[int, int, int, float, float]:
    """(bytes, files, versions that can be gone back to, seconds of a batch at first, at last)."""
    rng = np.random.default_rng(1)
    next_seq = np.zeros(PRODUCERS, np.int64)
    job = DedupJob(root / "batches", root / "state", root / "sink", sync=False, **options)
    seconds = []
    for number in range(batches):
        folder = root / "batches" / str(number)
        folder.mkdir(parents=True)
        pid = np.unique(rng.integers(PRODUCERS, size=ROWS))
        rows = {"pid": pid, "epoch": 0 * pid, "partition": pid % 4, "seq": next_seq[pid]}
        next_seq[pid] += 1
        pq.write_table(pa.table(rows), folder / "0.parquet")
        now_ns = (1_800_000_000 + number * MINUTES * 60) * 1_000_000_000
        with mock.patch.object(time, "time_ns", lambda now_ns=now_ns: now_ns):
            began = time.perf_counter()
            position = {"query": "bench", "batch": number, "ends": None}
            report = Run(job, override=InputOverride(folder=str(folder), position=position)).run()
            seconds.append(time.perf_counter() - began)
        assert (report.version, report.kept) == (number + 1, len(pid)), report
    files = [path.stat().st_size for path in (root / "state").rglob("*") if path.is_file()]
    oldest = job.state.version(batches).oldest
    return sum(files), len(files), batches + 1 - oldest, median(seconds[:SHOWN]), median(seconds[-SHOWN:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--kept", choices=KEPT, nargs="*", default=list(KEPT), help="which rows of the table")
    given = parser.parse_args()
    assert retention.READERS_MS == 3_600_000
    print("| kept | versions | files | MB | ms a batch, first 50 | last 50 |\n|---|---:|---:|---:|---:|---:|")
    for name, options in ((name, KEPT[name]) for name in given.kept):
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
            size, files, versions, first, last = run(Path(folder), given.batches, options)
        print(
            f"| {name} | {versions} | {files:,} | {size / 1e6:.1f} | {first * 1e3:.0f} | {last * 1e3:.0f} |", flush=True
        )


if __name__ == "__main__":
    main()
