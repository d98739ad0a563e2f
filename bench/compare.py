"""One run in memory: the same rows for everyone, alternated rounds, answers checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import peers, workload
from bench.measure import Measurement, alternate, tell, write_part
from bench.peers import Peer, contestants
from bench.workload import Workload

CONTESTS = (workload.RUNS, workload.RANDOM)


def compare(
    rows: int, rounds: int, contests: Sequence[Workload] = CONTESTS, against: Sequence[Peer] = peers.PEERS
) -> dict[str, Any]:
    """Every contest with every contestant; what belongs into the results."""
    threads = peers.limit_threads()
    measurements: list[Measurement] = []
    for contest in contests:
        tell(f"{contest.name}: making {rows:,} rows")
        made = workload.make(contest, rows)
        measurements += alternate(contest.name, contestants(made, against), made.table.num_rows, rounds)
    return {
        "threads": threads,
        "seeds": {contest.name: contest.seed for contest in contests},
        "measurements": [it.to_json() for it in measurements],
    }


if __name__ == "__main__":
    write_part(compare)
