"""What a transaction costs a producer, by the rows of a batch.

    python -m bench.transactions PERCENT ROUNDS      PERCENT of the batches

A producer sends batches to a Kafka log on this disk, and to a table of PostgreSQL, and waits for each: once without
transactions, once in a transaction per batch, which stages the position of an input, decides, and writes its markers.
The log and the database sync. Alternating, medians; afterwards every row is read back. `bench/run.py` makes a page of
what this prints.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import sqlalchemy
from fencepost.kafka import read_records
from fencepost.sql import ProducerRegistry, TransactionCoordinator
from fencepost.transports import PartitionLogTransport, SqlTransport, read_committed
from sqlalchemy import Engine

from bench.markdown import emphasized, table
from bench.measure import tell as tell_person

sys.path.append(str(Path(__file__).parent.parent / "tests"))

BATCHES = {100: 60, 1_000: 60, 20_000: 12, 200_000: 3}
"""Of each number of rows, how many batches a round sends."""
SCHEMA = pa.schema([("value", pa.binary())])
KINDS = ("log", "table")
PAYLOAD_BYTES = 100


class Place:
    """An output of its own, with a producer."""

    def __init__(self, kind: str, engine: Engine, folder: Path, name: str, *, has_transactions: bool) -> None:
        self.kind, self.engine, self.folder, self.name = kind, engine, folder / name, name
        self.has_transactions = has_transactions
        self.sent = 0
        self.transport: Any = (
            PartitionLogTransport(self.folder, topic=name, value="value")
            if kind == "log"
            else SqlTransport(engine, name, schema=SCHEMA)
        )
        self.coordinator = TransactionCoordinator(engine, routes={name: self.transport})
        of: dict[str, Any] = {"registry": ProducerRegistry(engine)}
        if has_transactions:
            of = {"coordinator": self.coordinator, "topic": name}
        self.producer = fp.SequencedProducer(
            self.transport, name=name, batch_rows=max(BATCHES), batch_bytes=1 << 28, linger_ms=0, **of
        )

    def send(self, batch: pa.Table) -> None:
        if self.has_transactions:
            with self.producer.transaction():
                self.producer.send(batch)
                end = self.sent + len(batch)
                self.coordinator.add_offsets(self.producer.identity, self.name, {0: (self.sent, end)})
        else:
            self.producer.send(batch)
            self.producer.flush()
        self.sent += len(batch)

    def close(self) -> None:
        """Raises AssertionError where not every row can be read."""
        self.producer.close()
        if self.kind == "log":
            self.transport.close()
            found = pa.table(read_records(self.folder / f"{self.name}-0")).num_rows
        else:
            found = read_committed(self.engine, self.name).num_rows
        assert found == self.sent, f"{self.name}: {found} rows of {self.sent}"


def contest(
    engine: Engine, folder: Path, rounds: int, share: float, tell: Callable[[str], None]
) -> dict[tuple[str, int], tuple[float, float]]:
    """By place and rows of a batch: milliseconds of a batch without transactions, and with."""
    found = {}
    for kind in KINDS:
        for rows, batches in BATCHES.items():
            batch, count = pa.table({"value": _values(rows)}), max(1, int(batches * share))
            places = [
                Place(kind, engine, folder, f"{kind}_{rows}_{suffix}", has_transactions=suffix == "with")
                for suffix in ("without", "with")
            ]
            times: list[list[float]] = [[], []]
            for place in places:
                place.send(batch)  # the first one makes what the others find
            for number in range(rounds):
                turns = list(zip(places, times, strict=True))
                for place, taken in turns if number % 2 else turns[::-1]:
                    began = time.perf_counter()
                    for _ in range(count):
                        place.send(batch)
                    taken.append(1000 * (time.perf_counter() - began) / count)
            for place in places:
                place.close()
            without, within = (statistics.median(it) for it in times)
            found[kind, rows] = without, within
            tell(f"{kind}, {rows:,} rows: {without:.1f} ms without, {within:.1f} ms with")
    return found


def _values(rows: int) -> pa.Array:
    data = np.random.default_rng(1).bytes(PAYLOAD_BYTES * rows)
    return pa.array([data[at : at + PAYLOAD_BYTES] for at in range(0, len(data), PAYLOAD_BYTES)], pa.binary())


def to_markdown(found: dict[tuple[str, int], tuple[float, float]]) -> str:
    """The row in which a transaction costs most is in bold."""
    worst = max(within / without for without, within in found.values())
    lines = []
    for (kind, rows), (without, within) in found.items():
        cells = (kind, f"{rows:,}", f"{without:.1f}", f"{within:.1f}", f"{within / without - 1:+.0%}")
        lines.append(emphasized(cells, within / without == worst))
    return table(("output", "rows a batch", "ms a batch without", "ms with", "cost"), lines, "lrrrr")


def main() -> None:
    from support.postgres import PostgresServer

    percent, rounds = map(int, sys.argv[1:])
    with PostgresServer(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        engine = sqlalchemy.create_engine(server.new_database())
        found = contest(engine, Path(folder), rounds, percent / 100, tell_person)
        engine.dispose()
    print(
        "A transaction for each batch, against the same batches without transactions. Rows of 100 bytes. The log and "
        "PostgreSQL sync; every row was read back. The worst row is in bold.\n"
    )
    print(to_markdown(found))


if __name__ == "__main__":
    main()
