"""Jobs on Spark over landed files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pyarrow.parquet as pq

LANDING_ZONE = Path(__file__).parents[1] / "data" / "landing-zone"


POLICIES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("kafka_offsets", {}, ("rows_distinct",)),
    (
        "any_order",
        {"columns": fp.Columns(partition=("topic", "partition"))},
        ("rows_distinct_tracked", "rows_untracked_landed"),
    ),
]


def landed() -> list[Path]:
    files = sorted((LANDING_ZONE / "landing").glob("*.parquet"))
    assert len(files) == 38
    return files


def sink_rows(sink: Path) -> dict[str, pa.Table]:
    return {str(path.relative_to(sink)): pq.read_table(path) for path in sorted(sink.rglob("*.parquet"))}


DDL = "pid bigint, epoch smallint, partition int, seq int, origin string"
