"""What a commit of a landing folder costs, by its own log and by that of a Delta table with `txn` actions.

    python bench/landing_log.py [--commits 200]

Both write a Parquet file of the same rows and put one entry of a log, if it is not there. The Delta writer goes on with
its table object between commits, as a long-lived producer would. Alternating, medians, of early and of late commits.
"""

from __future__ import annotations

import argparse
import statistics
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

ROWS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=200)
    commits = parser.parse_args().commits
    with tempfile.TemporaryDirectory() as folder:
        landing, delta = _Landing(Path(folder) / "landing"), _Delta(Path(folder) / "delta")
        times: dict[str, list[float]] = {"landing": [], "delta": []}
        for number in range(commits):
            rows = stamp(pa.table({"value": np.arange(ROWS)}), 7, 0, 0, number * ROWS)
            for name, commit in (("landing", landing.commit), ("delta", delta.commit)):
                began = time.perf_counter()
                commit(rows, number)
                times[name].append(time.perf_counter() - began)
        assert landing.transport.send(landing.batch(rows, commits - 1)).error is Verdict.DUPLICATE
        assert DeltaTable(str(delta.path)).transaction_version("7-0") == commits * ROWS - 1
    part = max(1, commits // 4)
    print("| | landing's own log | Delta with txn | ratio |\n|---|---:|---:|---:|")
    for name, some in (("the first quarter", slice(part)), ("the last quarter", slice(-part, None))):
        own, other = (statistics.median(times[it][some]) * 1000 for it in ("landing", "delta"))
        print(f"| ms a commit, {name} | {own:.2f} | {other:.2f} | {other / own:.1f} |")


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
