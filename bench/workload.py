"""Rows in memory, made from a seed, and how many of them a right answer keeps.

Keys are (pid, partition); each key numbers its rows from 0 on. Rows come in runs of one key, the key drawn at random
for every run. One run in 21 has landed before, just now or a few runs ago.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BATCH_ROWS = 1_000_000
REPEAT_EVERY = 21  # runs: 20 new ones and a repeat
LAG_MAX = 8  # a repeat comes at once or up to so many runs later
COLUMNS = ("pid", "epoch", "partition", "seq")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Workload:
    name: str
    keys: int
    run: int
    """Rows of a run."""
    partitions: int = 1_000
    """Per producer."""
    seed: int = 1


@dataclass(frozen=True)
class Rows:
    """pid int64, epoch int16 (0 to 2, fixed by pid), partition int32, seq int32; no nulls."""

    table: pa.Table
    """One chunk."""
    kept: int
    """The true answer under every policy: how many identities there are."""

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The table cut into batches of a million rows, nothing copied."""
        batches: list[pa.RecordBatch] = self.table.to_batches(max_chunksize=BATCH_ROWS)
        return batches


RUNS = Workload(name="spans of 20, 100 k keys", keys=100_000, run=20)
RANDOM = Workload(name="random keys, 1 M entries", keys=1_000_000, run=1)
LONE = Workload(name="random keys, 1 M producers of one partition", keys=1_000_000, run=1, partitions=1)


def make(workload: Workload, rows: int) -> Rows:
    """`rows` rows, rounded down to whole runs."""
    rng = np.random.default_rng(workload.seed)
    runs = rows // workload.run
    repeats = runs // REPEAT_EVERY
    key = rng.integers(workload.keys, size=runs - repeats)
    first = occurrence(key) * workload.run
    order = landing_order(rng, len(key), repeats)
    key, first = np.repeat(key[order], workload.run), np.repeat(first[order], workload.run)
    seq = first + np.tile(np.arange(workload.run), runs)
    pid = key // workload.partitions
    table = pa.table(
        {
            "pid": pid,
            "epoch": (pid % 3).astype(np.int16),
            "partition": (key % workload.partitions).astype(np.int32),
            "seq": seq.astype(np.int32),
        }
    )
    return Rows(table, (runs - repeats) * workload.run)


def occurrence(key: Numbers) -> Numbers:
    """How often each value stood before."""
    order = np.argsort(key, kind="stable")
    _, counts = np.unique(key, return_counts=True)
    occurrence = np.empty(len(key), np.int64)
    occurrence[order] = np.arange(len(key)) - np.repeat(np.cumsum(counts) - counts, counts)
    return occurrence


def landing_order(rng: np.random.Generator, runs: int, repeats: int) -> Numbers:
    """Numbers of runs as they land: each once in order, `repeats` of them again a little later."""
    again = rng.choice(runs, repeats, replace=False)
    return with_repeats(runs, again, rng.integers(LAG_MAX + 1, size=repeats))


def with_repeats(runs: int, again: Numbers, lag: Numbers) -> Numbers:
    """Numbers of runs: each once in order, and those in `again` a second time, so many runs later."""
    place = np.concatenate([np.arange(runs), again + lag])
    return np.concatenate([np.arange(runs), again])[np.argsort(place, kind="stable")]


def sum_of_runs(first: Numbers, run: int) -> int:
    """The sum of all numbers in runs of so many rows, which begin with these."""
    return int(first.sum()) * run + len(first) * run * (run - 1) // 2


def payloads(rng: np.random.Generator, rows: int, row_bytes: int) -> pa.Array:
    """Random bytes, so many a row."""
    data = pa.py_buffer(rng.bytes(rows * row_bytes))
    return pa.Array.from_buffers(pa.binary(row_bytes), rows, [None, data]).cast(pa.binary())
