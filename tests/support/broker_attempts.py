"""Produce requests made by hand and the answers of a real broker, compared with those of an interface.

`tests/data/raw-attempts.json` is from a topic whose producer ids, epochs and sequences were chosen by hand:
duplicates, gaps, the window, epoch jumps, the wrap, and some of it after a restart of the broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from support.broker_doors import Door
from support.broker_rulebook import Call, Case, Error, Row

ATTEMPTS = Path(__file__).parents[1] / "data" / "raw-attempts.json"
ANSWERS = {
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "OUT_OF_ORDER",
    "INVALID_PRODUCER_EPOCH": "FENCED",
}
COLUMNS = frozenset(["pid", "epoch", "partition", "base_seq", "count"])


def attempts() -> tuple[list[tuple[Row, str, int]], int]:
    """The batches with the error and first offset of their answers, and the number before the restart."""
    found = json.loads(ATTEMPTS.read_text())
    assert found["columns"] == ["partition", "pid", "epoch", "base_seq", "count", "error", "base_offset"]
    rows = [
        (Row(pid=pid, epoch=epoch, partition=partition, base_seq=base_seq, count=count), error, offset)
        for partition, pid, epoch, base_seq, count, error, offset in found["attempts"]
    ]
    return rows, found["restarted_before"]


def differences(door: Callable[[Case], Door]) -> list[str]:
    """Where a table that assigns offsets answers otherwise than the broker did."""
    table = door(Case("raw", 0, {"version": "4.3", "offsets": "assign"}))
    rows, restarted_before = attempts()
    assert len(rows) >= 70
    ends: dict[int, int] = {}
    found = []
    for number, (row, error, offset) in enumerate(rows):
        if number == restarted_before:
            table.restart(0)
        # NONE with an offset that was given out before is the answer to a duplicate.
        end = ends.get(row.partition or 0, 0)
        verdict = ANSWERS.get(error) or ("ACCEPTED" if offset >= end else "DUPLICATE")
        ends[row.partition or 0] = max(end, offset + (row.count or 0))
        judged = table.apply(Call(0, COLUMNS, rows=[row]))
        assert not isinstance(judged, Error), judged
        broker = (verdict, offset if error == "NONE" else None)
        ours = (judged.verdicts[0], judged.offsets[0])
        if ours != broker:
            found.append(f"attempt {number}: the broker says {broker}, found {ours}")
    return found
