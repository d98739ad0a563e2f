"""What a commit of a landing folder costs, by its own log and by that of a Delta table with `txn` actions.

    python -m bench.landing_log COMMITS ROUNDS

Both write a Parquet file of the same rows and put one entry of a log, unless it is there. The Delta writer keeps
its table object between commits, as a long-lived producer would. Neither syncs. Alternating, medians of the rounds'
medians, of early and of late commits. `bench/run.py` makes a page of what this prints.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from fencepost.producer.stamping import stamp
from fencepost.producer.transport import SequencedBatch
from fencepost.transports import LandingTransport
from fencepost.verdict import Verdict

from bench.markdown import emphasized, table

ROWS = 100


NAMES = ("landing", "delta")
PARTS = ("the first quarter", "the last quarter")


def contest(commits: int, rounds: int) -> dict[str, tuple[float, float]]:
    """By part of the commits: milliseconds of one, by the folder's own log and by Delta."""
    found: dict[str, dict[str, list[float]]] = {part: {name: [] for name in NAMES} for part in PARTS}
    for number in range(rounds):
        times = _round(commits, NAMES if number % 2 else NAMES[::-1])
        for name, of_name in times.items():
            quarter = max(1, commits // 4)
            for part, some in zip(PARTS, (of_name[:quarter], of_name[-quarter:]), strict=True):
                found[part][name].append(statistics.median(some) * 1000)
    medians = {part: [statistics.median(of_part[name]) for name in NAMES] for part, of_part in found.items()}
    return {part: (own, other) for part, (own, other) in medians.items()}


def _round(commits: int, order: tuple[str, ...]) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        landing, delta = _Landing(Path(folder) / "landing"), _Delta(Path(folder) / "delta")
        works = {"landing": landing.commit, "delta": delta.commit}
        times: dict[str, list[float]] = {name: [] for name in NAMES}
        for number in range(commits):
            rows = stamp(pa.table({"value": np.arange(ROWS)}), 7, 0, 0, number * ROWS)
            for name in order:
                began = time.perf_counter()
                works[name](rows, number)
                times[name].append(time.perf_counter() - began)
        assert landing.transport.send(landing.batch(rows, commits - 1)).error is Verdict.DUPLICATE
        assert DeltaTable(str(delta.path)).transaction_version("7-0") == commits * ROWS - 1
    return times


def to_markdown(found: dict[str, tuple[float, float]]) -> str:
    """The row where our own log gains least is in bold."""
    worst = min(other / own for own, other in found.values())
    rows = []
    for part, (own, other) in found.items():
        cells = (f"ms a commit, {part}", f"{own:.2f}", f"{other:.2f}", f"{other / own:.1f}")
        rows.append(emphasized(cells, other / own == worst))
    return table(("commits of 100 rows", "landing's own log", "Delta with txn", "times as fast"), rows, "lrrr")


def main() -> None:
    commits, rounds = map(int, sys.argv[1:])
    print(
        "By the folder's own log and by a Delta table with `txn` actions. Both write a Parquet file of 100 rows and "
        f"put one entry of a log; neither syncs. {commits} commits a round. The worst row is in bold.\n"
    )
    print(to_markdown(contest(commits, rounds)))


class _Landing:
    def __init__(self, path: Path) -> None:
        self.transport = LandingTransport(path, sync=False)  # nor does the other

    @staticmethod
    def batch(rows: pa.Table, number: int) -> SequencedBatch:
        return SequencedBatch(0, 7, 0, number * ROWS, (number + 1) * ROWS - 1, ROWS, rows)

    def commit(self, rows: pa.Table, number: int) -> None:
        assert self.transport.send(self.batch(rows, number)).error is Verdict.ACCEPTED


class _Delta:
    def __init__(self, path: Path) -> None:
        self.path, self.table = path, None

    def commit(self, rows: pa.Table, number: int) -> None:
        # The last sequence of the producer and epoch: all that a txn action has room for.
        last = CommitProperties(app_transactions=[Transaction("7-0", (number + 1) * ROWS - 1)])
        if self.table is None:
            write_deltalake(str(self.path), rows, commit_properties=last)
            self.table = DeltaTable(str(self.path))
            return
        self.table.update_incremental()
        known = self.table.transaction_version("7-0")
        assert known == number * ROWS - 1, "what tells a repeat"
        write_deltalake(self.table, rows, mode="append", commit_properties=last)


if __name__ == "__main__":
    main()
