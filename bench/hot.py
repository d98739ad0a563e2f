"""What it brings that several tasks judge a hot shard: jobs over the rows of one producer, each task a process.

`python bench/hot.py [--rows N] [--rounds N]` prints a table: the time of the run and of its judging, and the
CPU time and peak memory of the tasks that have most of it. Rows are in a random order over all files, so each is a run
of its own; a tenth repeat others. Rounds are alternated, figures are medians. States and counts must be the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import fencepost
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost import state
from fencepost.lake import DedupJob, LocalEngine

WORKERS = 2
FILE_ROWS = 1_000_000
ROWS_TO_A_REPEAT = 10
STAGES = ("deal", "judge")
WHOLE = 1 << 62
CONTESTANTS = {"one task": WHOLE, "parts, 8 M runs a task": 8 << 20}
POLICY = fencepost.Policy.any_order().replace(
    epochs="ignore", columns=fencepost.Columns(pid="device", partition=None, epoch=None)
)


class Processes:
    """An engine whose tasks of judging have a process each, which tells its peak memory; other tasks are threads."""

    name, slots, in_process = "processes", WORKERS, False
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self) -> None:
        self.tasks: dict[str, list[tuple[float, float]]] = {}
        """By stage, seconds of a processor and peak MB of its tasks."""

    def run(self, stage: str, work: Callable[[Any], Any], items: Sequence[Any], progress: Any = None) -> list[Any]:
        if stage not in STAGES:
            return LocalEngine(WORKERS).run(stage, work, items, progress)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(WORKERS, mp_context=spawn, max_tasks_per_child=1) as pool:
            done = list(pool.map(partial(_measured, work), items))
        self.tasks.setdefault(stage, []).extend((seconds, peak) for _, seconds, peak in done)
        return [result for result, _, _ in done]


def _measured(work: Callable[[Any], Any], item: Any) -> tuple[Any, float, float]:
    began = time.process_time()
    result = work(item)
    seconds = time.process_time() - began
    # Of this process: what `resource` tells is not less than that of the process it came from.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return result, seconds, int(peak.split()[1]) / 1024


def land(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    seqs = rng.permutation(rows)
    seqs[::ROWS_TO_A_REPEAT] = seqs[rng.integers(0, rows, len(seqs[::ROWS_TO_A_REPEAT]))]
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        some = seqs[first : first + FILE_ROWS]
        table = pa.table({"device": pa.array(["sensor-0001"] * len(some)), "seq": some})
        pq.write_table(table, folder / f"{number:03}.parquet")


def run(root: Path, spans_max: int) -> tuple[dict[str, float], Any]:
    """(figures, what must be the same)."""
    for name in ("state", "sink"):
        shutil.rmtree(root / name, ignore_errors=True)
    engine = Processes()
    places = root / "source", root / "state", root / "sink"
    job = DedupJob(*places, policy=POLICY, task_spans_max=spans_max, sync=False, engine=engine)
    began = time.perf_counter()
    report = job.run()
    figures = {"all, s": time.perf_counter() - began, "judge, s": 0.0}
    for stage in STAGES:
        seconds, peaks = zip(*engine.tasks.get(stage, [(0.0, 0.0)]), strict=True)
        figures["judge, s"] += report.seconds.get(stage, 0.0)
        figures |= {f"{stage} tasks": len(engine.tasks.get(stage, [])), f"{stage}, CPU s": sum(seconds)}
        figures |= {f"{stage}, longest, CPU s": max(seconds), f"{stage}, largest, MB": max(peaks)}
    held = pa.table(state.open(root / "state").entries()).select(["first", "last"]).to_pylist()
    return figures, (report.counts, report.missing_ranges, report.missing_rows, held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
        root = Path(folder)
        land(root / "source", given.rows)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
        answers = []
        for _ in range(given.rounds):
            for name, spans_max in CONTESTANTS.items():
                figures, answer = run(root, spans_max)
                found[name].append(figures)
                print(name, figures, flush=True)
                answers.append(answer)
        assert all(answer == answers[0] for answer in answers), answers
    names = list(found["one task"][0])
    print(f"| {given.rows:,} rows | {' | '.join(names)} |")
    print(f"|---|{'---:|' * len(names)}")
    for name, rounds in found.items():
        print(
            f"| {name} | {' | '.join(f'{median(it[figure] for it in rounds):.1f}' for figure in names)} |", flush=True
        )


if __name__ == "__main__":
    main()
