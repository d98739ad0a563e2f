"""Databases with tables of the first version: they are upgraded, or an error says what to do."""

from __future__ import annotations

import fencepost as fp
import pytest
from fencepost.sql import ProducerIdentity, ProducerRegistry, Recovered, TransactionCoordinator, statements
from fencepost.sql.transaction import State
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from support import coordinator_first_tables as first
from support.databases import execute, without_mariadb

WAITING = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


def make(engine: Engine, *producers: tuple[str, int, int, list[str], bool]) -> None:
    with engine.begin() as connection:
        first.create(connection)
        for it in producers:
            first.add_producer(connection, *it)


def run(engine: Engine, script: list[str]) -> None:
    with engine.begin() as connection:
        for statement in script:
            connection.exec_driver_sql(statement)


@without_mariadb
def test_transactions_in_the_first_tables_are_known(engine: Engine) -> None:
    make(
        engine,
        ("done", 7, State.COMPLETE_COMMIT, [], True),
        ("idle", 8, State.EMPTY, [], False),
        ("open", 9, State.ONGOING, ["out"], False),
    )
    coordinator = TransactionCoordinator(engine, routes={"out": None})
    assert coordinator.decision(7, 4) == "commit"
    assert coordinator.positions("stage").decided == {"input-0": 100}
    assert coordinator.recover() == Recovered(0, 1), "nobody waits for its markers, and it is open for too long"
    assert coordinator.init_producer("done") == ProducerIdentity(7, 6)
    after = coordinator.abort(ProducerIdentity(9, 5))
    coordinator.add_partitions(after, [("out", 0)])
    assert coordinator.commit(after) == ProducerIdentity(9, 7)
    assert coordinator.init_producer("new").pid >= 1000, "no pid twice"
    assert ProducerRegistry(engine).init_producer("idle") == ProducerIdentity(8, 6)


@pytest.mark.parametrize("state", WAITING)
@without_mariadb
def test_transactions_that_wait_for_markers_are_refused(engine: Engine, state: State) -> None:
    """Their topics are unknown; nothing changes, so that the old version can complete them."""
    make(engine, ("done", 7, State.COMPLETE_COMMIT, [], True), ("stuck", 8, state, ["clicks", "views"], True))
    for _ in range(2):
        with pytest.raises(
            fp.SchemaError, match=r"version 1, and .* wait for markers: stuck \(1 in all\). Stop"
        ) as raised:
            TransactionCoordinator(engine)
        assert raised.value.message.endswith("Nothing has changed")
    with engine.begin() as connection:
        assert connection.execute(text("SELECT version FROM fencepost_schema")).scalar_one() == 1
        # As the first version leaves it once the markers are written.
        connection.execute(text("UPDATE fencepost_producers SET state = 4, partitions = '[]'"))
    assert TransactionCoordinator(engine).init_producer("stuck") == ProducerIdentity(8, 6)


@without_mariadb
def test_a_script_is_refused_too(engine: Engine) -> None:
    make(engine, ("stuck", 8, State.PREPARE_COMMIT, ["clicks"], True))
    script = statements(engine.dialect.name, since={"producers": 1})
    with pytest.raises(IntegrityError, match="fencepost_schema"):
        run(engine, script)
    with pytest.raises(fp.SchemaError, match=r"wait for markers: stuck \(1 in all\)"):
        TransactionCoordinator(engine)
    execute(engine, "UPDATE fencepost_producers SET state = 4, partitions = '[]'")
    run(engine, script)
    assert TransactionCoordinator(engine).init_producer("stuck") == ProducerIdentity(8, 6)
