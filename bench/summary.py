"""The summary figure of jobs over files: seconds on a linear axis, beside `dropDuplicates`.

`bench/run.py` draws it after each run of the lake part. By itself, from published results:
`python -m bench.summary bench/results/lake.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench import lake, spark
from bench.measure import Measurement
from bench.report import COLOURS, Results

BAR = 0.38


def draw_summary(results: Results, path: Path) -> None:
    """Two bars for each shape of data: `dropDuplicates`, and the job with its default settings. Nothing is left out."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fencepost"  # equal figures, equal bytes
    matplotlib.rcParams["font.size"] = 9
    from matplotlib import pyplot

    pairs = _pairs(results)
    most = max(max(peer.seconds) for _, peer in pairs.values())
    figure, panel = pyplot.subplots(figsize=(9, 0.6 * len(pairs) + 1.5), layout="constrained")
    for row, (ours, peer) in enumerate(pairs.values()):
        for place, it in ((row - BAR / 2, peer), (row + BAR / 2, ours)):
            error = [[it.median - min(it.seconds)], [max(it.seconds) - it.median]]
            panel.barh(place, it.median, BAR, color=COLOURS[it.role], xerr=error, error_kw={"elinewidth": 0.8})
            times = f"   {peer.median / ours.median:.1f} × faster" if it is ours else ""
            panel.text(max(it.seconds) + most * 0.01, place, f"{it.median:.1f} s{times}", va="center")
    panel.set_yticks(range(len(pairs)), [f"{name}\n{ours.rows / 1e6:.0f} M rows" for name, (ours, _) in pairs.items()])
    panel.invert_yaxis()
    panel.set_xlim(0, most * 1.12)
    panel.set_xlabel("seconds from Parquet to Parquet, shorter is better; lines: fastest and slowest round")
    panel.spines[["top", "right"]].set_visible(False)
    cores = results.facts["machine"]["cores"]
    labels = {"peer": "Spark dropDuplicates", "ours": "fencepost DedupJob, default settings"}
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[role]) for role in labels]
    # Above the bars: the longest bar is not always the one that leaves room.
    figure.legend(
        handles, labels.values(), loc="outside upper center", ncols=2, frameon=False, title=f"Spark on {cores} cores"
    )
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _pairs(results: Results) -> dict[str, tuple[Measurement, Measurement]]:
    """The job and `dropDuplicates` by shape, for every shape that has both."""
    contests: dict[str, dict[str, Any]] = results.contests
    both = (lake.SYNCED, spark.DROP_DUPLICATES.name)
    return {name: (its[both[0]], its[both[1]]) for name, its in contests.items() if set(both) <= set(its)}


if __name__ == "__main__":
    published = Path(sys.argv[1])
    draw_summary(Results(json.loads(published.read_text())), published.with_name(f"{published.stem}-summary.svg"))
