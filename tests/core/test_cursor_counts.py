"""The number of partitions of a place: what it has of a producer or a source is known by partition, so it stays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost import kafka
from fencepost.producer.sequencer import Identity
from fencepost.transports import LandingTransport, PartitionLogTransport, SqlTransport, read_committed, read_landing

SCHEMA = pa.schema({"line": pa.int64(), "of": pa.int64(), "at": pa.int64()})
Make = Callable[..., Any]
Read = Callable[[], list[int]]


def landing(folder: Path) -> tuple[Make, Read]:
    return (
        lambda **options: LandingTransport(folder / "landing", sync=False, **options),
        lambda: read_landing(folder / "landing").read()["line"].to_pylist(),
    )


def table(folder: Path) -> tuple[Make, Read]:
    engine = sa.create_engine(f"sqlite:///{folder}/lines.db")
    return (
        lambda **options: SqlTransport(engine, "lines", schema=SCHEMA, **options),
        lambda: read_committed(engine, "lines")["line"].to_pylist(),
    )


def logs(folder: Path) -> tuple[Make, Read]:
    def read() -> list[int]:
        found = [
            pa.table(kafka.read_records(it, isolation="read_uncommitted"))
            for it in sorted((folder / "logs").glob("events-*"))
        ]
        return [json.loads(it)["line"] for one in found for it in one["value"].to_pylist()]

    return lambda **options: PartitionLogTransport(folder / "logs", **options), read


def produce(make: Make, lines: range, **options: Any) -> None:
    """Sends lines, in cursor mode where there is one."""
    with ExitStack() as stack:
        transport = make(**options)
        stack.callback(getattr(transport, "close", lambda: None))
        mode = {"position": "at"} if hasattr(transport, "cursor") else {}
        producer = fp.SequencedProducer(transport, name="file 1", registry=Leases(), partition_by="of", **mode)
        with producer:
            producer.send([{"line": it, "of": it % 2, "at": it // 2} for it in lines])


class Leases:
    """A registry: each lease has the next epoch."""

    epoch = 0

    def init_producer(self, transactional_id: str | None = None, timeout_ms: int = 0, expected: Any = None) -> Any:
        Leases.epoch += 1
        return Identity(7, Leases.epoch)


@pytest.mark.parametrize("place", [landing, table, logs])
def test_producers_continue_with_the_stored_partition_count(
    place: Callable[[Path], tuple[Make, Read]], tmp_path: Path
) -> None:
    make, read = place(tmp_path)
    produce(make, range(10), partitions=2)
    for another in (1, 3):
        with pytest.raises(fp.PolicyError, match=rf"partitions={another}: .* has 2 partitions.*Leave out partitions="):
            produce(make, range(20), partitions=another)
    assert Counter(read()) == Counter(range(10)), "nothing of it was written"
    has_cursor = place is landing
    produce(make, range(0 if has_cursor else 10, 20))
    assert Counter(read()) == Counter(range(20)), "each line once, under the count of before"


@pytest.mark.parametrize("place", [landing, table, logs])
def test_a_producer_does_not_choose_the_partition_count(
    place: Callable[[Path], tuple[Make, Read]], tmp_path: Path
) -> None:
    transport = place(tmp_path)[0](partitions=2)
    try:
        with pytest.raises(fp.PolicyError, match="partitions=3: the transport has 2"):
            fp.SequencedProducer(transport, partitions=3, partition_by="of")
    finally:
        getattr(transport, "close", lambda: None)()
