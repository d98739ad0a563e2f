"""What a log of transactions costs a consumer that tells rows apart by (topic, partition, offset).

`python bench/claims.py [--hours N] [--days N] [--seconds N] [--rate N] [--without]` prints a table. Ten transactions a
second (`--rate`) write a row and a marker to each of 64 partitions; a call applies what eight seconds (`--seconds`)
brought. A year is `--days 365`. `--without`: the calls give no positions, so that each marker is a hole for ever.

Bytes are those of the claims and their holes, with indexes. *Files* has the maps of free space and of visibility too,
which PostgreSQL keeps for each table.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import sqlalchemy
from fencepost.sql import SqlSink
from sqlalchemy import Engine, text

sys.path.append(str(Path(__file__).parent.parent / "tests"))

PARTITIONS, RATE, SECONDS = 64, 10, 8
PARTS = 10
"""Of the calls, of each of which the median is shown."""


class Part(NamedTuple):
    """Some of the calls: the median of milliseconds, and the bytes of the claims behind them."""

    ms: float
    data_bytes: int
    file_bytes: int


def run(
    engine: Engine,
    hours: float,
    with_positions: bool,
    consumer: str = "bench",
    seconds: int = SECONDS,
    rate: float = RATE,
) -> list[Part]:
    """`seconds`: how much of the log a call applies. `rate`: the transactions of a second."""
    sink = SqlSink(engine, None, consumer, policy="kafka_offsets")
    count = max(PARTS, int(hours * 3600 / seconds))
    rows = int(rate * seconds)
    found, times = [], []
    for number in range(count):
        first = 2 * rows * number
        table = _rows(first, rows)
        positions = {f"orders-{it}": first + 2 * rows for it in range(PARTITIONS)} if with_positions else None
        began = time.perf_counter()
        done = sink.handle(table, lambda connection, kept: None, positions=positions)
        times.append(1000 * (time.perf_counter() - began))
        assert done.rows_kept == len(table)
        if (number + 1) * PARTS // count > len(found):
            found.append(Part(median(times), *_bytes(engine)))
            times = []
    return found


def _rows(first: int, count: int) -> pa.Table:
    """Every second offset is a marker."""
    offsets = np.tile(first + 2 * np.arange(count, dtype=np.int64), PARTITIONS)
    partitions = np.repeat(np.arange(PARTITIONS, dtype=np.int64), count)
    return pa.table({"topic": pa.repeat("orders", len(offsets)), "partition": partitions, "offset": offsets})


_SIZES = """
SELECT sum(pg_relation_size(oid))::bigint,
    sum(DISTINCT pg_total_relation_size('fencepost_claims') + pg_total_relation_size('fencepost_holes'))::bigint
FROM pg_class AS c
WHERE oid IN (SELECT unnest(ARRAY[t.oid, t.reltoastrelid]) FROM pg_class AS t WHERE t.oid = ANY (:tables ::regclass[]))
    OR oid IN (
        SELECT indexrelid FROM pg_index AS i JOIN pg_class AS t ON i.indrelid IN (t.oid, t.reltoastrelid)
        WHERE t.oid = ANY (:tables ::regclass[])
    )
"""


def _bytes(engine: Engine) -> tuple[int, int]:
    with engine.connect() as connection:
        found = connection.execute(text(_SIZES), {"tables": ["fencepost_claims", "fencepost_holes"]}).one()
        return int(found[0]), int(found[1])


def main(arguments: list[str]) -> None:
    from support.postgres import PostgresServer

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--days", type=float, default=0.0)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--without", action="store_true")
    given: Any = parser.parse_args(arguments)
    hours = given.hours + 24 * given.days or 1.0
    with PostgresServer(durable=True) as server:
        engine = sqlalchemy.create_engine(server.new_database())
        parts = run(engine, hours, not given.without, seconds=given.seconds, rate=given.rate)
        engine.dispose()
    print("| hours | ms a call | KB of claims | KB of files |\n|---:|---:|---:|---:|")
    for number, (ms, data_bytes, file_bytes) in enumerate(parts, 1):
        print(f"| {hours * number / len(parts):.2f} | {ms:.1f} | {data_bytes / 1024:.0f} | {file_bytes / 1024:.0f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
