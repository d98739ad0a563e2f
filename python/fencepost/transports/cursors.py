"""Cursor mode, where the sequences are positions of the source: what of a batch is not there yet."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from fencepost.producer.transport import SequencedBatch


def pid_of(name: str) -> int:
    """The pid under which a Kafka log has the positions of a name: above those that anybody is given."""
    return 2**62 | int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 2


def above(batch: SequencedBatch, position: int | None) -> SequencedBatch:
    """A batch without the rows up to a position, because it was cut otherwise before a restart.

    All of them stay where all or none lie above.
    """
    import pyarrow.compute as pc

    if position is None or not batch.first_seq <= position < batch.last_seq:
        return batch
    rows = batch.rows.filter(pc.greater(batch.rows["seq"], position))
    return replace(batch, rows=rows, first_seq=rows["seq"][0].as_py(), count=rows.num_rows)
