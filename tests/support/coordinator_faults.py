"""Services that die at a step of a transaction, and what the outcome must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
from fencepost.sql import Positions, TransactionCoordinator
from fencepost.sql import transaction_tables as tables
from sqlalchemy import Engine, select

from support.coordinator_doors import Route, set_back
from support.processes import fork_server
from support.transacting import BATCH, GROUP, OUTPUT, PARTITIONS, TOPIC, Markers
from support.waiting import PATIENCE_SECONDS

# Not forked from the test process, which has threads.
PROCESSES = fork_server("fencepost.sql", "sqlalchemy.dialects.postgresql.psycopg", "psycopg")


def start(target: Callable[..., None], *arguments: Any) -> Any:
    process = PROCESSES.Process(target=target, args=arguments)
    process.start()
    return process


def outcome_of(process: Any) -> int:
    process.join(timeout=PATIENCE_SECONDS)
    assert process.exitcode is not None, "it hangs"
    return int(process.exitcode)


@pytest.fixture
def markers(tmp_path: Path) -> Markers:
    return Markers(tmp_path / "markers")


@pytest.fixture
def coordinator(engine: Engine, markers: Markers) -> TransactionCoordinator:
    made = TransactionCoordinator(engine, routes={TOPIC: markers})
    OUTPUT.create(made.database.engine)
    return made


def all_of(coordinator: TransactionCoordinator, *columns: Any) -> list[tuple[Any, ...]]:
    return coordinator.database.transaction(
        lambda connection: [tuple(row) for row in connection.execute(select(*columns))]
    )


def decisions(coordinator: TransactionCoordinator) -> dict[tuple[int, int], str]:
    table = tables.DECISIONS.c
    return {(pid, epoch): outcome for pid, epoch, outcome in all_of(coordinator, table.pid, table.epoch, table.outcome)}


def check(coordinator: TransactionCoordinator, markers: Markers) -> None:
    """Output, positions and markers agree with what was decided, and nothing is left half done."""
    decided = decisions(coordinator)
    committed = [identity for identity, outcome in decided.items() if outcome == "commit"]
    assert sorted(all_of(coordinator, OUTPUT.c.pid, OUTPUT.c.epoch)) == sorted(committed)
    position = {0: BATCH * len(committed)} if committed else {}
    assert coordinator.positions(GROUP) == Positions(position, frozenset())
    outcomes: dict[tuple[int, int], set[tuple[int, str]]] = {}
    for pid, epoch, partition, outcome, _ in markers.read():
        outcomes.setdefault((pid, epoch - 1), set()).add((partition, outcome))
    for identity, received in outcomes.items():
        assert received == {(number, decided[identity]) for _, number in PARTITIONS}, f"{identity}: one outcome, to all"
    assert set(committed) <= outcomes.keys()


def leave_work(coordinator: TransactionCoordinator) -> None:
    """A transaction that is decided and not completed, and one that was left open for too long."""

    def fail(*marker: object) -> None:
        raise OSError("not now")

    other = TransactionCoordinator(coordinator.database.engine, coordinator.registry, routes={TOPIC: Route(fail)})
    prepared = coordinator.init_producer("prepared")
    other.add_partitions(prepared, PARTITIONS)
    with pytest.raises(fp.ConcurrentTransactionError):
        other.commit(prepared)
    late = coordinator.init_producer("late", timeout_ms=1)
    coordinator.add_partitions(late, PARTITIONS)
    set_back(coordinator.database, started_ms=1000)


def check_recovered(coordinator: TransactionCoordinator, markers: Markers) -> None:
    states = {state for (state,) in all_of(coordinator, tables.PRODUCERS.c.state)}
    assert states == {4, 5}, "completed, every one"
    said: dict[tuple[int, int], set[str]] = {}
    for pid, epoch, _, outcome, _ in markers.read():
        said.setdefault((pid, epoch - 1), set()).add(outcome)
    assert said == {identity: {outcome} for identity, outcome in decisions(coordinator).items()}
