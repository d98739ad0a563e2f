"""Delta tables that a job changes in place, and their deletion vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from deltalake import DeltaTable, write_deltalake
from fencepost.state.delta_log import LOG, live_files
from fencepost.state.stores import LocalStore

from support.lake import SCHEMA, make_rows

VECTORS = {"delta.enableDeletionVectors": "true"}


WAYS = {"vectors": VECTORS, "files": {}}


def append(root: Path, *seeds: int, way: str = "vectors", count: int = 300, **arguments: Any) -> None:
    for seed in seeds:
        write_deltalake(root / "table", make_rows(seed, count), mode="append", configuration=WAYS[way], **arguments)


def table_of(root: Path) -> DeltaTable:
    return DeltaTable(root / "table")


def rows_of(root: Path, version: int | None = None) -> pl.DataFrame:
    """The table's rows, by a reader that is not ours."""
    found = pl.scan_delta(str(root / "table"), version=version).select(SCHEMA.names).collect()
    return found.sort("origin")


def remove_by_vector(root: Path, gone: np.ndarray[Any, Any]) -> int:
    """Remove rows from the newest file by a vector, like another writer. Returns the table's version."""
    from fencepost.state.vectors import VectorFile

    table = root / "table"
    version = table_of(root).version()
    (old,) = live_files(LocalStore(table), version).values()
    file = VectorFile()
    vector = file.add(None, gone.astype(np.uint64), np.ones(len(gone), np.uint64))
    (table / file.name).write_bytes(file.content)
    lines = [{"remove": {**old, "deletionTimestamp": 1}}, {"add": {**old, "deletionVector": vector}}]
    text = "\n".join(json.dumps(it) for it in lines)
    (table / LOG / f"{version + 1:020}.json").write_text(text)
    return version + 1
