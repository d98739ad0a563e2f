"""SequencedProducer with registry and coordinator in one database, and every transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
import sqlalchemy as sa
from fencepost.sql import ProducerRegistry, Recovered, TransactionCoordinator
from support.coordinator_doors import set_back
from support.faulty_transport import FaultyTransport
from support.outputs import KINDS, Output, make_output

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, engine: sa.Engine, tmp_path: Path) -> Iterator[Output]:
    made = make_output(request.param, "events", engine, tmp_path, partitions=2)
    yield made
    made.close()


@pytest.fixture
def coordinator(engine: sa.Engine, place: Output) -> TransactionCoordinator:
    return TransactionCoordinator(engine, routes={"out": place.transport})


def open_producer(transport: Any, coordinator: TransactionCoordinator, **settings: Any) -> fp.SequencedProducer:
    return fp.SequencedProducer(
        transport, name="stage 2", coordinator=coordinator, topic="out", partition_by="partition", **QUICK, **settings
    )


def rows(place: Output, *values: int) -> dict[str, Any]:
    """Some for each partition."""
    return place.rows(*values, partition=[it % 2 for it in values])


def test_transactions_are_seen_together_or_not_at_all(coordinator: TransactionCoordinator, place: Output) -> None:
    with open_producer(place.transport, coordinator) as producer:
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


def test_a_restarted_producer_aborts_the_open_transaction(coordinator: TransactionCoordinator, place: Output) -> None:
    zombie = open_producer(place.transport, coordinator)
    zombie.begin()
    zombie.send(rows(place, 1, 2))
    zombie.flush(30)
    with open_producer(place.transport, coordinator) as producer:
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


def test_a_transaction_that_took_too_long_does_not_stop_its_producer(
    coordinator: TransactionCoordinator, place: Output
) -> None:
    """Its time-out has raised the epoch, like another producer: here the producer continues."""
    with open_producer(place.transport, coordinator) as producer:
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


def test_an_abort_after_a_decided_commit_says_so_and_the_commit_completes(
    coordinator: TransactionCoordinator, place: Output
) -> None:
    with open_producer(place.transport, coordinator) as producer:
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


def test_a_producer_replaced_in_a_transaction_stops(coordinator: TransactionCoordinator, place: Output) -> None:
    producer = open_producer(place.transport, coordinator)
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


def test_closing_aborts_what_is_open(coordinator: TransactionCoordinator, place: Output) -> None:
    with open_producer(place.transport, coordinator) as producer:
        producer.begin()
        producer.send(rows(place, 1, 2))
    with open_producer(place.transport, coordinator) as producer, producer.transaction():
        producer.send(rows(place, 3))
    assert place.read() == [3]


def test_a_lease_of_the_registry_fences(engine: sa.Engine, place: Output) -> None:
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
def test_committed_rows_are_written_once_despite_a_faulty_network(
    coordinator: TransactionCoordinator, place: Output, seed: int
) -> None:
    faulty = FaultyTransport(place.transport, seed, share=0.4)
    wanted: list[int] = []
    with open_producer(faulty, coordinator, request_timeout_ms=300) as producer:
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
