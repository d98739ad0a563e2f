"""Finds batch headers whose producer is impossible. Headers are read without their checksums."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fencepost.kafka.finding import Finding
from fencepost.kafka.source import Segment


def without_impossible(rows: Any, segments: Iterable[Segment]) -> tuple[Any, list[Finding]]:
    """Return the rows of `read_batches` (a Table or RecordBatch) without those of impossible producers, and findings
    for these.

    `BrokerTable` and `TransactionIndex` refuse a whole call because of such a row.
    """
    pid, epoch, base_seq = (rows[name].to_numpy() for name in ("pid", "epoch", "base_seq"))
    is_marker = pc.is_in(rows["control"], pa.array(["commit", "abort", "empty"]))
    is_in_transaction = pc.or_(rows["transactional"], is_marker).to_numpy(zero_copy_only=False)
    is_wrong = (base_seq < -1) | np.where(pid < 0, (pid < -1) | (epoch < -1) | is_in_transaction, epoch < 0)
    if not is_wrong.any():
        return rows, []
    paths = {PurePath(it.path).name: it.path for it in segments}
    found = []
    for row in rows.filter(pa.array(is_wrong)).to_pylist():
        numbers = f"pid {row['pid']}, epoch {row['epoch']} and sequence {row['base_seq']}"
        where = " in a transaction" if row["transactional"] else ""
        reason = f"a batch declares {numbers}{where}: impossible"
        found.append(Finding("field", paths.get(row["segment"], row["segment"]), row["position"], reason))
    return rows.filter(pa.array(~is_wrong)), found
