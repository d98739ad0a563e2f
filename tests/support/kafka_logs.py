"""Partition folders that a broker wrote, and their truth files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

DATA = Path(__file__).parents[1] / "data" / "kafka-segments"


PARTITIONS = sorted(path.name for path in DATA.iterdir() if path.is_dir())


def read_csv(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def rows_of(stream: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(stream).to_pylist()
    return found
