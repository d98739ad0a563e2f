"""Cursor mode, where the sequences are positions of the source: what of a batch is not there yet."""

from __future__ import annotations

from dataclasses import replace

from fencepost.producer.transport import SequencedBatch


def above(batch: SequencedBatch, position: int | None) -> SequencedBatch:
    """A batch without the rows up to a position, because it was cut otherwise before a restart.

    All of them stay where all or none lie above.
    """
    import pyarrow.compute as pc

    if position is None or not batch.first_seq <= position < batch.last_seq:
        return batch
    rows = batch.rows.filter(pc.greater(batch.rows["seq"], position))
    return replace(batch, rows=rows, first_seq=rows["seq"][0].as_py(), count=rows.num_rows)
