"""Processes that are stopped (SIGSTOP) in a transaction of PostgreSQL or MariaDB, and their successors."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost.sql import ProducerRegistry, SqlSink, TransactionCoordinator, describe_transaction
from fencepost.transports import SqlTransport
from sqlalchemy import Engine, text
from support import daily, transacting
from support.coordinator_faults import (
    PROCESSES,
    all_of,
    check,
    check_recovered,
    coordinator,
    decisions,
    leave_work,
    markers,
    outcome_of,
    start,
)
from support.processes import is_stopped
from support.transacting import EVENTS, OUTPUT, Markers
from support.waiting import PATIENCE_SECONDS, wait_until

__all__ = ["coordinator", "markers"]
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
# MariaDB counts seconds.
on_each = pytest.mark.parametrize(
    "database_url", ["postgresql", pytest.param("mariadb", marks=pytest.mark.matrix)], indirect=True
)
IDLE_MS = 200


@pytest.fixture(autouse=True)
def none_stays() -> Iterator[None]:
    """A failed test leaves a stopped process; without this, waiting for it would block forever."""
    yield
    for process in PROCESSES.active_children():
        process.kill()
        process.join()


def stopped_at(step: int, target: Callable[..., None], url: str, markers: Markers) -> tuple[Any, Any] | None:
    """A process that is stopped at this step of its work, and what it will put its answer into; None: it has ended
    before."""
    results = PROCESSES.Queue()
    process = start(target, url, markers.path, step, IDLE_MS, results)
    wait_until(lambda: process.exitcode is not None or is_stopped(process.pid), "it neither stops nor ends")
    return None if process.exitcode is not None else (process, results)


def answer_of(process: Any, results: Any) -> str:
    """What a process answers that was stopped until now."""
    assert is_stopped(process.pid), "nobody has waited for it"
    os.kill(process.pid, signal.SIGCONT)
    answer = results.get(timeout=PATIENCE_SECONDS)
    assert outcome_of(process) == 0
    return str(answer)


@on_each
@pytest.mark.parametrize("stride", daily.first([13, 1]))
def test_stopped_at_every_step_of_a_transaction(
    database_url: str, coordinator: TransactionCoordinator, markers: Markers, stride: int
) -> None:
    """Others with the id continue while the process is stopped; what the stopped one then does is fenced, or is
    a transaction of its own."""
    found: Counter[str] = Counter()
    for step in range(1, 1000, stride):
        before = decisions(coordinator)
        if (zombie := stopped_at(step, transacting.transact_and_stop, database_url, markers)) is None:
            break
        transacting.transact_by(coordinator)
        found[answer_of(*zombie)] += 1
        coordinator.recover()
        coordinator.init_producer("stage")
        check(coordinator, markers)
        new = [outcome for identity, outcome in decisions(coordinator).items() if identity not in before]
        assert "commit" in new, "the successor's own"
    assert step > 60, "steps were looked at"
    assert found["FencedError"] >= 1
    assert found["done"] >= 1
    known = {"FencedError", "done", "TransactionAbortableError", "MappingError"}
    if database_url.startswith("mariadb"):
        # It ends the session of who is idle without a word, so that nobody knows whether a commit has reached it.
        known |= {"OutcomeUnknownError", "ConcurrentTransactionError"}
    assert found.keys() <= known


@on_postgresql
@pytest.mark.matrix
def test_stopped_at_every_step_of_a_recovery(
    database_url: str, coordinator: TransactionCoordinator, markers: Markers
) -> None:
    for step in range(1, 1000):
        leave_work(coordinator)
        if (zombie := stopped_at(step, transacting.recover_and_stop, database_url, markers)) is None:
            break
        coordinator.recover()
        check_recovered(coordinator, markers)
        assert answer_of(*zombie) == "done"
        check_recovered(coordinator, markers)
    assert step > 30


@on_postgresql
def test_without_a_limit_the_successor_reports_that_it_waits(
    database_url: str, coordinator: TransactionCoordinator, engine: Engine
) -> None:
    """The negative control: a zombie whose transaction may be idle for as long as it likes."""
    zombie = start(transacting.decide_and_stop, database_url, None)
    wait_until(lambda: is_stopped(zombie.pid), "it does not stop")
    [session] = describe_transaction(engine, "stage").sessions
    assert session.state == "idle in transaction"
    impatient = TransactionCoordinator(engine, ProducerRegistry(engine, lock_timeout_ms=IDLE_MS))
    with pytest.raises(fp.StoreError, match="for longer than lock_timeout_ms"):
        impatient.init_producer("stage")
    os.kill(zombie.pid, signal.SIGKILL)
    assert outcome_of(zombie) == -signal.SIGKILL
    wait_until(lambda: not describe_transaction(engine, "stage").sessions, "its session does not end")
    impatient.init_producer("stage")


@on_each
def test_a_consumer_that_is_stopped_in_its_effect(
    database_url: str, coordinator: TransactionCoordinator, engine: Engine
) -> None:
    results = PROCESSES.Queue()
    zombie = start(transacting.apply_and_stop, database_url, results)
    wait_until(lambda: is_stopped(zombie.pid), "it does not stop")
    sink = SqlSink(engine, None, "consumer")

    def effect(connection: Any, kept: Any) -> None:
        connection.execute(OUTPUT.insert(), [{"source": it} for it in kept["seq"].to_pylist()])

    applied = sink.handle(EVENTS, effect, positions={"in": len(EVENTS)})
    assert applied.rows_kept == len(EVENTS)
    assert answer_of(zombie, results) == f"(0, [{len(EVENTS)}])", "what it had done was undone, and is done"
    assert sorted(source for (source,) in all_of(coordinator, OUTPUT.c.source)) == [it["seq"] for it in EVENTS]


@on_postgresql
def test_a_transport_waits_for_a_lock_no_longer_than_it_may(engine: Engine) -> None:
    transport = SqlTransport(engine, "events", schema=pa.schema({"value": pa.int64()}), lock_timeout_ms=IDLE_MS)
    with engine.connect() as holder:
        holder.execute(text("LOCK TABLE events_floors"))
        with pytest.raises(fp.StoreError, match="for longer than lock_timeout_ms"):
            transport.fence(7, 1, None)
    assert transport.fence(7, 1, None) == {}
