"""Several services on one database of transactions: markers go where they belong, and only there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost.sql import ProducerIdentity, Recovered, TransactionCoordinator, Unrouted
from support.coordinator_doors import set_back
from support.coordinator_mutants import ROUTE_MUTANTS, route_mutant
from support.outputs import KINDS, Output, make_output
from support.producers import batch
from support.services import simulate

NewEngine = Callable[[], sa.Engine]
SEEDS = range(12)


@pytest.fixture(params=KINDS)
def outputs(request: pytest.FixtureRequest, new_engine: NewEngine, tmp_path: Path) -> Iterator[dict[str, Output]]:
    """Those of two services: they know nothing of each other, but for the database."""
    made = {name: make_output(request.param, name, new_engine(), tmp_path) for name in ("clicks", "sales")}
    yield made
    for it in made.values():
        it.close()


def producer_of(coordinator: TransactionCoordinator, topic: str, output: Output) -> fp.SequencedProducer:
    return fp.SequencedProducer(output.transport, name=topic, coordinator=coordinator, topic=topic)


def test_recover_leaves_the_transactions_of_others(outputs: dict[str, Output], new_engine: NewEngine) -> None:
    """B stalls past its time-out while A recovers. Markers of A must not go to A's output, or B's rows are doubled."""
    clicks, sales = (
        TransactionCoordinator(new_engine(), routes={topic: outputs[topic].transport}) for topic in ("clicks", "sales")
    )
    with producer_of(sales, "sales", outputs["sales"]) as producer:
        producer.begin()
        producer.send(outputs["sales"].rows(1))
        producer.flush(30)
        set_back(clicks.database, started_ms=100_000)
        left = Recovered(0, 0, (Unrouted("sales", ("sales",)),))
        assert clicks.recover() == left
        assert clicks.reap() == left
        assert sales.reap() == Recovered(0, 1), "who has a route does it"
        with pytest.raises(fp.TransactionStateError, match="has another outcome"):
            producer.commit()
        producer.abort()
        with producer.transaction():
            producer.send(outputs["sales"].rows(1))
    assert {name: it.read() for name, it in outputs.items()} == {"clicks": [], "sales": [1]}


def test_one_transaction_of_several_transports(outputs: dict[str, Output], engine: sa.Engine) -> None:
    """Each output has the producer id of the same transaction: all get the coordinator's decision."""
    coordinator = TransactionCoordinator(engine, routes={name: it.transport for name, it in outputs.items()})
    identity = coordinator.init_producer("stage")
    for value, decide in ((1, coordinator.abort), (2, coordinator.commit)):
        coordinator.add_partitions(identity, [(name, 0) for name in outputs])
        for it in outputs.values():
            write(it, identity, value)
        assert all(2 not in it.read() for it in outputs.values())
        identity = decide(identity)
    assert {name: it.read() for name, it in outputs.items()} == {"clicks": [2], "sales": [2]}


def write(output: Output, identity: ProducerIdentity, value: int) -> None:
    """One row as the first batch of an identity in partition 0."""
    row = pa.table(output.rows(value))
    answer = output.transport.send(batch(identity.pid, identity.epoch, 0, row, transactional=True))
    answer = answer.result(30) if hasattr(answer, "result") else answer
    assert answer.error is fp.Verdict.ACCEPTED


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_markers_of_some_topics_are_written_by_one_and_the_rest_by_another(
    outputs: dict[str, Output], new_engine: NewEngine, outcome: str
) -> None:
    """A decision is final for each partition, so any coordinator with a route may write its marker."""
    both, clicks, sales = (
        TransactionCoordinator(new_engine(), routes={name: outputs[name].transport for name in names})
        for names in (("clicks", "sales"), ("clicks",), ("sales",))
    )
    identity = both.init_producer("stage")
    both.add_partitions(identity, [("clicks", 0), ("sales", 0)])
    for it in outputs.values():
        write(it, identity, 1)
    decide = clicks.commit if outcome == "commit" else clicks.abort
    for _ in range(2):
        with pytest.raises(fp.ConcurrentTransactionError, match=r"markers for 'sales' have no route here"):
            decide(identity)
    seen = [1] if outcome == "commit" else []
    assert (outputs["clicks"].read(), outputs["sales"].read()) == (seen, [])
    assert clicks.recover() == Recovered(0, 0, (Unrouted("stage", ("sales",)),))
    assert sales.recover() == Recovered(1, 0)
    assert (outputs["clicks"].read(), outputs["sales"].read()) == (seen, seen)
    assert both.init_producer("stage").epoch == identity.epoch + 2


# The model


def test_services_of_one_database_lose_and_double_nothing() -> None:
    faults = Counter[str]()
    for seed in SEEDS:
        faults += run(seed)
    kinds = {"killed", "killed within a call", "stalled", "recovered", "left to others", "marker lost", "answer lost"}
    assert {it: count for it, count in faults.items() if count >= 3}.keys() == kinds, faults


@pytest.mark.parametrize("name", ROUTE_MUTANTS)
def test_broken_routing_is_detected(name: str) -> None:
    module = route_mutant(name)
    for seed in SEEDS:
        try:
            run(seed, module)
        except (AssertionError, fp.FencepostError):
            return
    pytest.fail(f"{len(SEEDS)} runs without a complaint")


def run(seed: int, *module: Any) -> Counter[str]:
    engine = sa.create_engine("sqlite://")
    try:
        return simulate(engine, seed, *module)
    finally:
        engine.dispose()
