"""Cursor mode: selects the rows of a batch that are not yet written. Sequences are positions in the source."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from fencepost.producer.transport import SequencedBatch


def pid_of(name: str) -> int:
    """Return the pid under which a Kafka log stores the positions of a name: above all assigned pids."""
    return 2**62 | int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 2


def above(batch: SequencedBatch, position: int | None) -> SequencedBatch:
    """Return a batch without its rows up to a position: before a restart, batches may have had other boundaries.

    Returns the whole batch if all or none of its rows are above the position.
    """
    import pyarrow.compute as pc

    if position is None or not batch.first_seq <= position < batch.last_seq:
        return batch
    rows = batch.rows.filter(pc.greater(batch.rows["seq"], position))
    return replace(batch, rows=rows, first_seq=rows["seq"][0].as_py(), count=rows.num_rows)
