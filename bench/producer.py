"""The producing end: numbers on rows, rows to partitions, and both through a `SequencedProducer`.

Stamping is of batches of 100 000 rows for one partition, against pyarrow and polars adding the same four columns, and
against a row at a time, as a client does it. A batch is let go of before the next one, as one that was sent. Dealing is
by the hash of a text key, as Kafka's client deals, against the same hash a key at a time. An answer is (rows, sum of
sequences by the ends of batches), or rows by partition. The transport of the whole way takes what comes, so the figure
is the producer's own.
"""

from __future__ import annotations

from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from fencepost.producer import Answer, SequencedBatch
from fencepost.producer.stamping import Router, cut, stamp

from bench.measure import Contestant, alternate, write_part

STAMPING = "stamping batches of one partition"
DEALING = "dealing rows to partitions by a text key"
STAMPING_FEW, DEALING_FEW = "stamping, a twentieth of the rows", "dealing, a twentieth of the rows"
DELIVERING = "from rows to acknowledged batches"
STAMP, BY_PYARROW, BY_POLARS, BY_ROW = "stamp", "columns by pyarrow and NumPy", "polars columns", "a row at a time"
DEAL, BY_KEY = "Router.deal", "murmur2 a key at a time"
PRODUCER, KEYED = "SequencedProducer", "SequencedProducer, by key"
MEMORY = "filling the columns' bytes"

BATCH_ROWS, PARTITIONS, KEYS = 100_000, 16, 100_000
SLOW_SHARE = 20
"""Of the rows one in so many is for contestants that take a row at a time."""
PID, EPOCH, PARTITION = 7, 3, 5


def contest(rows: int, rounds: int) -> dict[str, Any]:
    """What belongs into the results."""
    rows = max(rows // BATCH_ROWS, 1) * BATCH_ROWS
    table = pa.table({"value": np.arange(rows, dtype=np.int64)})
    measurements = _stamping(table, rounds)
    keys = np.random.default_rng(1).integers(KEYS, size=rows)
    keyed = table.append_column("key", pa.array(np.char.add("user-", keys.astype(str))))
    measurements += _dealing(keyed, rounds)
    measurements += _delivering(keyed, rounds)
    return {"measurements": [it.to_json() for it in measurements]}


# Numbers on rows


def _stamping(table: pa.Table, rounds: int) -> list[Any]:
    few = table.slice(0, max(table.num_rows // SLOW_SHARE, 1))

    def contestants(rows: pa.Table, *others: Contestant) -> list[Contestant]:
        ours = Contestant(name=STAMP, threads=1, role="ours", expected=_sum(rows), run=lambda: _stamped(rows))
        return [ours, *others]

    frame, expected = pl.from_arrow(table), _sum(table)
    whole = [
        Contestant(name=BY_PYARROW, threads=1, expected=expected, run=lambda: _by_pyarrow(table)),
        Contestant(name=BY_POLARS, threads=2, expected=expected, run=lambda: _by_polars(frame)),
        Contestant(name=MEMORY, threads=1, role="limit", expected=18 * len(table), run=lambda: _filled(table.num_rows)),
    ]
    slow = Contestant(name=BY_ROW, threads=1, expected=_sum(few), run=lambda: _by_row(few))
    return [
        *alternate(STAMPING, contestants(table, *whole), len(table), rounds),
        *alternate(STAMPING_FEW, contestants(few, slow), len(few), rounds),
    ]


def _sum(table: pa.Table) -> tuple[int, int]:
    return len(table), len(table) * (len(table) - 1) // 2


def _stamped(table: pa.Table) -> tuple[int, int]:
    seen, first = (0, 0), 0
    for batch in cut(table, BATCH_ROWS):
        seen = _see(seen, stamp(batch, PID, EPOCH, PARTITION, first))
        first += len(batch)
    return seen


def _by_pyarrow(table: pa.Table) -> tuple[int, int]:
    seen, first = (0, 0), 0
    for batch in cut(table, BATCH_ROWS):
        count = len(batch)
        stamped = {
            "pid": pa.repeat(pa.scalar(PID, pa.int64()), count),
            "epoch": pa.repeat(pa.scalar(EPOCH, pa.int16()), count),
            "partition": pa.repeat(pa.scalar(PARTITION, pa.int32()), count),
            "seq": np.arange(first, first + count, dtype=np.int32),
        }
        seen = _see(seen, pa.table({**stamped, "value": batch["value"]}))
        first += count
    return seen


def _by_polars(frame: Any) -> tuple[int, int]:
    seen = (0, 0)
    for first in range(0, len(frame), BATCH_ROWS):
        batch = frame.slice(first, BATCH_ROWS)
        stamped = {
            "pid": pl.lit(PID, pl.Int64),
            "epoch": pl.lit(EPOCH, pl.Int16),
            "partition": pl.lit(PARTITION, pl.Int32),
            "seq": pl.int_range(first, first + len(batch), dtype=pl.Int32),
        }
        seen = _see(seen, batch.with_columns(**stamped))
    return seen


def _by_row(table: pa.Table) -> tuple[int, int]:
    seq, found = 0, []
    for row in table.to_pylist():
        found.append({"pid": PID, "epoch": EPOCH, "partition": PARTITION, "seq": seq, **row})
        seq = seq + 1 if seq < 2**31 - 1 else 0
    return _see((0, 0), pa.Table.from_pylist(found))


def _filled(rows: int) -> int:
    """What nobody can do without: 18 bytes a row are written."""
    return sum(
        len(np.full(18 * len(part), 7, np.uint8)) for part in np.array_split(np.empty(rows, bool), rows // BATCH_ROWS)
    )


def _see(seen: tuple[int, int], batch: Any) -> tuple[int, int]:
    """Reads the ends of a batch, which is then released as one that was sent."""
    rows, total = seen
    first, last = int(batch["seq"][0]), int(batch["seq"][-1])
    return rows + len(batch), total + (first + last) * len(batch) // 2


# Rows to partitions


def _dealing(table: pa.Table, rounds: int) -> list[Any]:
    few = table.slice(0, max(table.num_rows // SLOW_SHARE, 1))

    def ours(rows: pa.Table) -> Contestant:
        expected = _by_partition(rows)
        return Contestant(
            name=DEAL, threads=1, role="ours", expected=expected, run=lambda: _dealt(rows), answer=_counts
        )

    slow = Contestant(name=BY_KEY, threads=1, expected=_by_partition(few), run=lambda: _by_key(few))
    return [
        *alternate(DEALING, [ours(table)], len(table), rounds),
        *alternate(DEALING_FEW, [ours(few), slow], len(few), rounds),
    ]


def _by_partition(table: pa.Table) -> dict[int, int]:
    """By a hash of the distinct keys that shares no code with ours."""
    counts: dict[int, int] = {}
    for entry in pc.value_counts(table["key"]).to_pylist():
        number = (_murmur2(entry["values"].encode()) & 0x7FFFFFFF) % PARTITIONS
        counts[number] = counts.get(number, 0) + entry["counts"]
    return counts


def _dealt(table: pa.Table) -> list[tuple[int, Any]]:
    router = Router(PARTITIONS, key="key")
    return [it for batch in cut(table, BATCH_ROWS) for it in router.deal(batch)]


def _counts(parts: list[tuple[int, Any]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for number, part in parts:
        counts[number] = counts.get(number, 0) + len(part)
    return counts


def _by_key(table: pa.Table) -> dict[int, int]:
    parts: dict[int, list[Any]] = {}
    for row in table.to_pylist():
        number = (_murmur2(row["key"].encode()) & 0x7FFFFFFF) % PARTITIONS
        parts.setdefault(number, []).append(row)
    return {number: len(pa.Table.from_pylist(part)) for number, part in parts.items()}


def _murmur2(data: bytes) -> int:
    """As Kafka's `Utils.murmur2`, without its sign."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(data)
    for at in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        found = (found * m & mask) ^ k
    rest = data[len(data) // 4 * 4 :]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * m & mask
    found = (found ^ found >> 13) * m & mask
    return found ^ found >> 15


# The whole way


class Taken:
    """A transport that takes everything."""

    def __init__(self) -> None:
        self.rows = self.sum = 0
        self.ends: dict[int, int] = {}

    def send(self, batch: SequencedBatch) -> Answer:
        offset = self.ends.get(batch.partition, 0)
        assert batch.first_seq == offset, "in order, and without retries"
        self.ends[batch.partition] = offset + batch.count
        return Answer(offset=offset)


def _delivering(table: pa.Table, rounds: int) -> list[Any]:
    rows = table.num_rows
    contestants = [
        Contestant(name=PRODUCER, threads=2, role="ours", expected={0: rows}, run=lambda: _delivered(table, 1, None)),
        Contestant(
            name=KEYED, threads=2, role="ours", expected=_by_partition(table),
            run=lambda: _delivered(table, PARTITIONS, "key"),
        ),
    ]  # fmt: skip
    return alternate(DELIVERING, contestants, rows, rounds)


def _delivered(table: pa.Table, partitions: int, key: str | None) -> dict[int, int]:
    transport = Taken()
    with fp.SequencedProducer(transport, partitions=partitions, key=key, batch_rows=BATCH_ROWS) as producer:
        for batch in cut(table, BATCH_ROWS * (1 if key is None else PARTITIONS)):
            producer.send(batch)
    return transport.ends


if __name__ == "__main__":
    write_part(contest)
