"""SequencedProducer with registry and coordinator in one database, and every transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost import kafka
from fencepost.sql import ProducerRegistry, Recovered, TransactionCoordinator
from fencepost.transports import (
    LandingTransport,
    PartitionLogTransport,
    SqlTransport,
    read_committed,
    read_landing,
)
from support.coordinator_doors import set_back
from support.faulty_transport import FaultyTransport

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


class Place:
    """A transport, and how to read what is committed there."""

    def __init__(self, transport: Any, read: Callable[[], list[int]]) -> None:
        self.transport, self.read = transport, read


@pytest.fixture(params=["sql", "landing", "log"])
def place(request: pytest.FixtureRequest, engine: sa.Engine, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sql":
        transport: Any = SqlTransport(engine, "events", schema=pa.schema({"value": pa.int64()}), partitions=2)

        def read() -> list[int]:
            found = read_committed(engine, "events")
            return sorted(found["value"].to_pylist()) if found.num_rows else []

        yield Place(transport, read)
    elif request.param == "landing":
        transport = LandingTransport(tmp_path / "landing", partitions=2, sync=False)
        yield Place(
            transport,
            lambda: sorted(
                it for table in read_landing(tmp_path / "landing").tables() for it in table["value"].to_pylist()
            ),
        )
    else:
        with PartitionLogTransport(tmp_path / "logs", partitions=2, value="text") as transport:

            def read_logs() -> list[int]:
                tables = [
                    pa.table(kafka.read_records(tmp_path / "logs" / f"events-{it}", "read_committed")) for it in (0, 1)
                ]
                return sorted(int(value) for table in tables for value in table["value"].to_pylist())

            yield Place(transport, read_logs)


def rows(place: Place, *values: int) -> dict[str, Any]:
    """Some for each partition."""
    if isinstance(place.transport, PartitionLogTransport):
        return {"partition": [it % 2 for it in values], "text": [str(it) for it in values]}
    return {"partition": [it % 2 for it in values], "value": list(values)}


def test_transactions_are_seen_together_or_not_at_all(engine: sa.Engine, place: Place) -> None:
    coordinator = TransactionCoordinator(engine, routes={"out": place.transport})
    with fp.SequencedProducer(
        place.transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK
    ) as producer:
        with producer.transaction():
            producer.send(rows(place, 1, 2))
            producer.send(rows(place, 3))
            producer.flush(30)
            assert place.read() == []
        assert place.read() == [1, 2, 3]
        producer.begin()
        producer.send(rows(place, 4, 5))
        producer.abort()
        with producer.transaction():
            producer.send(rows(place, 6))
            coordinator.add_offsets(producer.identity, "stage 2", {0: (None, 6)})  # type: ignore[arg-type]
    assert place.read() == [1, 2, 3, 6]
    assert coordinator.positions("stage 2").decided == {0: 6}


def test_a_restarted_producer_aborts_the_open_transaction(engine: sa.Engine, place: Place) -> None:
    coordinator = TransactionCoordinator(engine, routes={"out": place.transport})

    def open_producer() -> fp.SequencedProducer:
        return fp.SequencedProducer(
            place.transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK
        )

    zombie = open_producer()
    zombie.begin()
    zombie.send(rows(place, 1, 2))
    zombie.flush(30)
    with open_producer() as producer:
        with producer.transaction():
            producer.send(rows(place, 3, 4))
        late = zombie.send(rows(place, 5, 7))
        assert all(isinstance(delivery.exception(30), fp.FencepostError) for delivery in late)
        with pytest.raises((fp.FencedError, fp.TransactionAbortableError)):
            zombie.commit()
        with producer.transaction():
            producer.send(rows(place, 6))
    assert place.read() == [3, 4, 6]
    with pytest.raises(fp.FencepostError):
        zombie.close()


def test_a_transaction_that_took_too_long_does_not_stop_its_producer(engine: sa.Engine, place: Place) -> None:
    """Its time-out has raised the epoch, like another producer: here the producer continues."""
    coordinator = TransactionCoordinator(engine, routes={"out": place.transport})
    with fp.SequencedProducer(
        place.transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK
    ) as producer:
        producer.begin()
        producer.send(rows(place, 2))
        producer.flush(30)
        set_back(coordinator.database, started_ms=100_000)
        assert coordinator.recover() == Recovered(0, 1)
        calls: list[Callable[[], Any]] = [lambda: producer.send(rows(place, 1)), lambda: producer.send(rows(place, 2))]
        for call in (*calls, producer.commit):
            with pytest.raises(fp.TransactionAbortableError, match="open for too long"):
                call()
        producer.abort()
        with producer.transaction():
            producer.send(rows(place, 1, 2))
    assert place.read() == [1, 2]


def test_an_abort_after_a_decided_commit_says_so_and_the_commit_completes(engine: sa.Engine, place: Place) -> None:
    routes = {"out": place.transport}
    coordinator = TransactionCoordinator(engine, routes=routes)
    with fp.SequencedProducer(
        place.transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK
    ) as producer:
        producer.begin()
        producer.send(rows(place, 1, 2))
        producer.flush(30)
        del coordinator.routes["out"]
        with pytest.raises(fp.ConcurrentTransactionError):
            producer.commit()
        coordinator.routes["out"] = place.transport
        with pytest.raises(fp.TransactionStateError, match="commit"):
            producer.abort()
        with pytest.raises(fp.PolicyError):
            producer.begin()
        producer.commit()
        with producer.transaction():
            producer.send(rows(place, 3, 4))
    assert place.read() == [1, 2, 3, 4]


def test_a_producer_replaced_in_a_transaction_stops(engine: sa.Engine, place: Place) -> None:
    coordinator = TransactionCoordinator(engine, routes={"out": place.transport})
    producer = fp.SequencedProducer(
        place.transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK
    )
    producer.begin()
    producer.send(rows(place, 2))
    producer.flush(30)
    coordinator.init_producer("stage 2")
    for _ in range(2):
        with pytest.raises(fp.FencedError, match="was replaced by"):
            producer.send(rows(place, 1))
    with pytest.raises(fp.FencedError):
        producer.close()
    assert place.read() == []


def test_closing_aborts_what_is_open(engine: sa.Engine, place: Place) -> None:
    coordinator = TransactionCoordinator(engine, routes={"out": place.transport})
    with fp.SequencedProducer(
        place.transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK
    ) as producer:
        producer.begin()
        producer.send(rows(place, 1, 2))
    with (
        fp.SequencedProducer(
            place.transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK
        ) as producer,
        producer.transaction(),
    ):
        producer.send(rows(place, 3))
    assert place.read() == [3]


def test_a_lease_of_the_registry_fences(engine: sa.Engine, place: Place) -> None:
    registry = ProducerRegistry(engine)

    def open_producer() -> fp.SequencedProducer:
        return fp.SequencedProducer(
            place.transport, name="gate 7", registry=registry, partition_by="partition", **QUICK
        )

    zombie = open_producer()
    zombie.send(rows(place, 1, 2))
    zombie.flush(30)
    with open_producer() as producer:
        assert producer.identity == (zombie.identity.pid, zombie.identity.epoch + 1)
        [late] = zombie.send(rows(place, 3))
        assert isinstance(late.exception(30), fp.DeliveryError)
        with pytest.raises(fp.FencedError):
            zombie.send(rows(place, 5))[0].result(30)
        producer.send(rows(place, 4))
    assert place.read() == [1, 2, 4]
    with pytest.raises(fp.FencepostError):
        zombie.close()


@pytest.mark.parametrize("seed", range(2))
def test_committed_rows_are_written_once_despite_a_faulty_network(engine: sa.Engine, place: Place, seed: int) -> None:
    coordinator = TransactionCoordinator(engine, routes={"out": place.transport})
    faulty = FaultyTransport(place.transport, seed, share=0.4)
    settings = {"request_timeout_ms": 300, **QUICK}
    wanted: list[int] = []
    with fp.SequencedProducer(
        faulty, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **settings
    ) as producer:
        for number in range(8):
            values = range(number * 10, number * 10 + 6)
            producer.begin()
            for value in values:
                producer.send(rows(place, value))
            if number % 3 == 2:
                producer.abort()
                continue
            producer.commit()
            wanted += values
    faulty.settle()
    assert place.read() == wanted
