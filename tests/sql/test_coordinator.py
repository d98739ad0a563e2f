"""Transactions through a database: decisions, permission to decide, and what readers see."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy
from fencepost.sql import (
    Positions,
    ProducerIdentity,
    ProducerRegistry,
    Recovered,
    TransactionCoordinator,
    Unrouted,
    list_transactions,
    transaction_metrics,
)
from fencepost.sql import transaction_tables as tables
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, func, select, text
from support.coordinator_doors import MachineDoor, Route, SqlDoor, set_back
from support.coordinator_rulebook import NONE, Case, Known, Request

NewEngine = Callable[[], Engine]
OUTPUT = Table("output", MetaData(), Column("id", Integer, primary_key=True), Column("what", String(20)))


@pytest.fixture
def coordinator(engine: Engine) -> TransactionCoordinator:
    made = TransactionCoordinator(engine, routes={"clicks": None, "views": None})
    OUTPUT.create(made.database.engine)
    return made


def insert(what: str) -> Callable[[Connection], object]:
    return lambda connection: connection.execute(OUTPUT.insert().values(what=what))


def output(coordinator: TransactionCoordinator) -> list[str]:
    query = select(OUTPUT.c.what).order_by(OUTPUT.c.what)
    return coordinator.database.transaction(lambda connection: list(connection.execute(query).scalars()))


def state(coordinator: TransactionCoordinator, pid: int) -> str:
    database = coordinator.database
    held = database.transaction(lambda connection: tables.read_unlocked(database, connection, pid=pid))
    assert held is not None
    return held.transaction.state.name


# One producer


def test_a_transaction_counts_at_once(coordinator: TransactionCoordinator) -> None:
    first = coordinator.init_producer("stage")
    coordinator.begin(first)
    coordinator.add_partitions(first, [("clicks", 0), ("clicks", 3), ("views", 0)])
    coordinator.add_offsets(first, "group", {0: (0, 100), ("in", 1): (None, 7)})
    assert coordinator.decision(first.pid, first.epoch) is None
    assert coordinator.positions("group") == Positions({}, frozenset({0, ("in", 1)}))
    second = coordinator.commit(first, work=insert("first"))
    assert second == ProducerIdentity(first.pid, first.epoch + 1)
    assert coordinator.decision(first.pid, first.epoch) == "commit"
    assert coordinator.decision(second.pid, second.epoch) is None
    assert coordinator.positions("group") == Positions({0: 100, ("in", 1): 7}, frozenset())
    assert output(coordinator) == ["first"]

    assert coordinator.commit(first, work=insert("again")) == second, "the same call again"
    assert output(coordinator) == ["first"], "and not the same work"

    coordinator.add_offsets(second, "group", {0: (100, 200)})
    third = coordinator.abort(second)
    assert third.epoch == second.epoch + 1
    assert coordinator.decision(second.pid, second.epoch) == "abort"
    assert coordinator.positions("group") == Positions({0: 100, ("in", 1): 7}, frozenset())
    assert coordinator.abort(second) == third
    with pytest.raises(fp.TransactionStateError, match=r"cannot commit: .*another outcome"):
        coordinator.commit(second)


def test_readers_join_decisions(coordinator: TransactionCoordinator) -> None:
    """A table whose rows carry pid and epoch shows what is committed by a join."""
    identities = [coordinator.init_producer(name) for name in ("a", "b", "c")]
    for it in identities:
        coordinator.begin(it)

    with coordinator.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE rows_of_producers (pid BIGINT, epoch INTEGER)"))

    def write(connection: Connection) -> None:
        for it in identities:
            connection.execute(text(f"INSERT INTO rows_of_producers VALUES ({it.pid}, {it.epoch})"))

    coordinator.database.transaction(write)
    coordinator.commit(identities[0])
    coordinator.abort(identities[1])
    query = text(
        "SELECT rows_of_producers.pid FROM rows_of_producers JOIN fencepost_decisions USING (pid, epoch) "
        "WHERE outcome = 'commit'"
    )
    seen = coordinator.database.transaction(lambda connection: list(connection.execute(query).scalars()))
    assert seen == [identities[0].pid]


def test_begin_is_the_same_call_until_something_is_added(coordinator: TransactionCoordinator) -> None:
    identity = coordinator.init_producer("an id")
    coordinator.begin(identity)
    coordinator.begin(identity)
    for add in (
        lambda it: coordinator.add_partitions(it, [("clicks", 1)]),
        lambda it: coordinator.add_offsets(it, "group", {0: (0, 1)}),
    ):
        add(identity)
        with pytest.raises(fp.TransactionStateError) as caught:
            coordinator.begin(identity)
        assert caught.value.message.startswith("transactional id 'an id': a transaction is open")
        identity = coordinator.abort(identity)
    with pytest.raises(fp.TransactionStateError, match=r"cannot commit: .*another outcome"):
        coordinator.commit(identity)
    fresh = coordinator.init_producer("another id")
    with pytest.raises(fp.TransactionStateError, match="cannot commit: no transaction"):
        coordinator.commit(fresh)


def test_work_that_fails_leaves_the_transaction_open(coordinator: TransactionCoordinator) -> None:
    identity = coordinator.init_producer("an id")
    coordinator.add_offsets(identity, "group", {0: (0, 10)})

    def fail(connection: Connection) -> None:
        insert("half")(connection)
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError):
        coordinator.commit(identity, work=fail)
    assert output(coordinator) == []
    assert coordinator.decision(identity.pid, identity.epoch) is None
    assert coordinator.positions("group") == Positions({}, frozenset({0}))
    coordinator.commit(identity, work=insert("whole"))
    assert output(coordinator) == ["whole"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_work_that_passes_over_an_error_decides_nothing(engine: Engine) -> None:
    """No markers are written either: PostgreSQL treats the commit of an undone transaction as a rollback."""
    markers: list[tuple[Any, ...]] = []
    coordinator = TransactionCoordinator(engine, routes={"out": Route(lambda *marker: markers.append(marker))})
    OUTPUT.create(coordinator.database.engine)
    identity = coordinator.init_producer("an id")
    coordinator.add_partitions(identity, [("out", 0)])
    coordinator.add_offsets(identity, "group", {0: (0, 10)})

    def pass_over(connection: Connection) -> None:
        with contextlib.suppress(sqlalchemy.exc.DBAPIError):
            connection.execute(text("SELECT 1 / 0"))

    with pytest.raises(fp.UndoneError, match="which your function ignored"):
        coordinator.commit(identity, work=pass_over)
    assert (markers, coordinator.decision(identity.pid, identity.epoch)) == ([], None)
    coordinator.commit(identity, work=insert("whole"))
    assert (len(markers), output(coordinator)) == (1, ["whole"])
    assert coordinator.positions("group") == Positions({0: 10}, frozenset())


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_connection_lost_in_the_decision_is_reported_by_the_next_call(coordinator: TransactionCoordinator) -> None:
    identity = coordinator.init_producer("an id")
    coordinator.begin(identity)

    def lose(connection: Connection) -> None:
        insert("lost")(connection)
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.close()

    with pytest.raises(fp.StoreError):  # a question before the commit finds it
        coordinator.commit(identity, work=lose)
    coordinator.commit(identity, work=insert("found"))
    assert output(coordinator) == ["found"]


def test_used_up_epochs_rotate_the_pid(coordinator: TransactionCoordinator) -> None:
    old = coordinator.init_producer("an id")
    values = {"epoch": 32766}
    coordinator.database.transaction(lambda connection: connection.execute(tables.PRODUCERS.update().values(values)))
    last = ProducerIdentity(old.pid, 32766)
    coordinator.begin(last)
    new = coordinator.commit(last)
    assert (new.epoch, new.previous_pid) == (0, old.pid)
    assert coordinator.decision(last.pid, last.epoch) == "commit"
    assert coordinator.commit(last) == new
    assert coordinator.init_producer("an id") == ProducerIdentity(new.pid, 1, old.pid)


# Input positions


def test_two_workers_of_one_input_cannot_both_commit(coordinator: TransactionCoordinator) -> None:
    one, other = coordinator.init_producer("worker 1"), coordinator.init_producer("worker 2")
    coordinator.add_offsets(one, "group", {0: (0, 100), 1: (0, 50)})
    coordinator.add_offsets(other, "group", {1: (0, 60), 2: (0, 5)})
    assert coordinator.positions("group").pending == {0, 1, 2}
    coordinator.commit(one, work=insert("one"))
    with pytest.raises(fp.TransactionAbortableError, match=r"group 'group', partition 1: .* 50, but 0 .* Abort"):
        coordinator.commit(other, work=insert("other"))
    assert output(coordinator) == ["one"]
    assert coordinator.decision(other.pid, other.epoch) is None, "it is open until it is aborted"
    assert coordinator.positions("group") == Positions({0: 100, 1: 50}, frozenset({1, 2}))
    other = coordinator.abort(other)
    with pytest.raises(fp.TransactionAbortableError):
        coordinator.add_offsets(other, "group", {0: (100, 110), 1: (0, 60)})
    assert coordinator.positions("group").pending == frozenset(), "a refused call has staged nothing"
    coordinator.add_offsets(other, "group", {1: (50, 60)})
    coordinator.commit(other)
    assert coordinator.positions("group") == Positions({0: 100, 1: 60}, frozenset())


def test_later_positions_of_a_transaction_continue_at_the_staged_ones(coordinator: TransactionCoordinator) -> None:
    identity = coordinator.init_producer("worker")
    coordinator.add_offsets(identity, "group", {0: (0, 10)})
    coordinator.add_offsets(identity, "group", {0: (0, 10)})
    coordinator.add_offsets(identity, "group", {0: (10, 25), 1: (0, 1)})
    with pytest.raises(fp.TransactionAbortableError, match="the position is 25, but 10 was expected"):
        coordinator.add_offsets(identity, "group", {0: (10, 26)})
    coordinator.add_offsets(identity, "other group", {0: (0, 3)})
    coordinator.commit(identity)
    assert coordinator.positions("group").decided == {0: 25, 1: 1}
    assert coordinator.positions("other group").decided == {0: 3}
    assert coordinator.positions("no group") == Positions({}, frozenset())


def test_positions_that_were_deleted_are_compared(coordinator: TransactionCoordinator) -> None:
    """An operator deletes positions to read the input again, while transactions are open."""
    one, other = coordinator.init_producer("worker 1"), coordinator.init_producer("worker 2")
    coordinator.add_offsets(one, "group", {0: (0, 10)})
    one = coordinator.commit(one)
    coordinator.add_offsets(one, "group", {0: (10, 20), 1: (0, 5)})
    coordinator.database.transaction(lambda connection: connection.execute(tables.POSITIONS.delete()))
    with pytest.raises(fp.TransactionAbortableError, match="position is None, but 10"):
        coordinator.commit(one, work=insert("one"))
    assert output(coordinator) == []
    coordinator.add_offsets(other, "group", {0: (None, 15), 1: (0, 7)})
    coordinator.database.transaction(lambda connection: connection.execute(tables.POSITIONS.delete()))
    coordinator.commit(other)
    assert coordinator.positions("group").decided == {0: 15, 1: 7}


# Markers


def test_markers_are_written_between_decision_and_completion(engine: Engine) -> None:
    seen: list[tuple[Any, ...]] = []

    def write_marker(pid: int, epoch: int, *rest: Any) -> None:
        assert coordinator.decision(pid, epoch - 1) == rest[1], "decided, and no transaction of ours holds the row"
        seen.append((pid, epoch, *rest, state(coordinator, pid)))

    coordinator = TransactionCoordinator(engine, routes={"out": Route(write_marker)})
    identity = coordinator.init_producer("an id")
    coordinator.add_partitions(identity, [("out", 1), ("out", 0)])
    after = coordinator.commit(identity)
    pid = identity.pid
    assert seen == [(pid, 1, 0, "commit", 0, "PREPARE_COMMIT"), (pid, 1, 1, "commit", 0, "PREPARE_COMMIT")]
    assert state(coordinator, pid) == "COMPLETE_COMMIT"
    coordinator.begin(after)
    coordinator.commit(after)
    assert len(seen) == 2, "no partition, no marker"


def test_a_marker_that_cannot_be_written_leaves_the_decision(engine: Engine) -> None:
    written: list[tuple[Any, ...]] = []
    broken = {1}

    def write_marker(pid: int, epoch: int, partition: Any, *rest: Any) -> None:
        if partition in broken:
            raise OSError("no space left")
        written.append((partition, *rest))

    coordinator = TransactionCoordinator(engine, routes={"out": Route(write_marker)})
    identity = coordinator.init_producer("an id")
    coordinator.add_partitions(identity, [("out", 0), ("out", 1)])
    for _ in range(2):
        with pytest.raises(fp.ConcurrentTransactionError) as caught:
            coordinator.commit(identity)
        decided = rf"transactional id 'an id': commit of producer {identity.pid} is decided, .*"
        marker = r"marker for topic 'out', partition 1 .* \(no space left\): .*recover\(\)"
        assert re.fullmatch(decided + marker, caught.value.message)
        assert isinstance(caught.value.__cause__, OSError)
        assert coordinator.decision(identity.pid, identity.epoch) == "commit"
        assert state(coordinator, identity.pid) == "PREPARE_COMMIT"
    with pytest.raises(fp.TransactionStateError, match=r"cannot abort: .*another outcome"):
        coordinator.abort(identity)
    with pytest.raises(fp.ConcurrentTransactionError, match="could not be completed: 1"):
        coordinator.recover()
    with pytest.raises(fp.ConcurrentTransactionError):
        coordinator.add_partitions(identity, [("out", 2)])
    broken.clear()
    assert coordinator.recover() == Recovered(completed=1, aborted=0)
    assert coordinator.recover() == Recovered(completed=0, aborted=0)
    assert written == [(0, "commit", 0), (1, "commit", 3)], "what is written is noted"
    assert coordinator.commit(identity).epoch == identity.epoch + 1


@pytest.mark.parametrize("routes", [{}, {"out": None}])
def test_a_coordinator_without_a_route_cannot_complete(engine: Engine, routes: dict[str, None]) -> None:
    """A coordinator that expects no markers cannot complete it either: the registered partitions count."""
    with_route = TransactionCoordinator(engine, routes={"out": Route(lambda *_: None)})
    without = TransactionCoordinator(engine, routes=routes)
    identity = with_route.init_producer("an id")
    with_route.add_partitions(identity, [("out", 0)])
    for call in (lambda: without.commit(identity), lambda: without.init_producer("an id")):
        with pytest.raises(fp.ConcurrentTransactionError, match=r"is decided, .*'out' have no route"):
            call()
    assert without.decision(identity.pid, identity.epoch) == "commit"
    assert without.recover() == Recovered(0, 0, (Unrouted("an id", ("out",)),))
    assert with_route.commit(identity).epoch == identity.epoch + 1
    assert without.recover() == Recovered(0, 0)


def test_waiting_for_markers_is_checked_in_each_call(engine: Engine) -> None:
    """A partition that was registered without a marker waits for one as soon as its transport is known."""
    written = []
    silent = TransactionCoordinator(engine, routes={"out": None})
    routed = TransactionCoordinator(engine, routes={"out": Route(lambda *marker: written.append(marker))})
    identity = routed.init_producer("an id")
    for it in (silent, routed):
        it.add_partitions(identity, [("out", 0)])
    routed.commit(identity)
    assert len(written) == 1


def test_one_that_cannot_be_finished_does_not_keep_the_others(engine: Engine) -> None:
    broken = True
    written = []

    def write_marker(pid: int, epoch: int, partition: Any, *_: Any) -> None:
        if broken or names[partition] == "bad":
            raise OSError("gone")
        written.append(names[partition])

    names = ["good", "bad", "late"]
    coordinator = TransactionCoordinator(engine, routes={"out": Route(write_marker)})
    for number, name in enumerate(names):
        identity = coordinator.init_producer(name)
        coordinator.add_partitions(identity, [("out", number)])
        if name != "late":
            with pytest.raises(fp.ConcurrentTransactionError):
                coordinator.commit(identity)
    set_back(coordinator.database, started_ms=60_001)
    broken = False
    with pytest.raises(fp.ConcurrentTransactionError, match="transactional id 'bad'"):
        coordinator.recover()
    assert written == ["good", "late"]


def test_a_refused_marker_does_not_complete_the_transaction(engine: Engine) -> None:
    """As after a restore of the coordinator's database: the output knows a higher coordinator epoch."""

    def write_marker(pid: int, epoch: int, partition: int, outcome: str, coordinator_epoch: int) -> fp.Verdict:
        return fp.Verdict.ACCEPTED if coordinator_epoch >= 2 else fp.Verdict.COORDINATOR_FENCED

    coordinator = TransactionCoordinator(engine, routes={"out": Route(write_marker)})
    identity = coordinator.init_producer("an id")
    coordinator.add_partitions(identity, [("out", 0)])
    with pytest.raises(fp.ConcurrentTransactionError, match="coordinator epoch above 0"):
        coordinator.commit(identity)
    with pytest.raises(fp.ConcurrentTransactionError, match="coordinator epoch above 1"):
        coordinator.recover()
    assert coordinator.recover().completed == 1


def test_a_log_under_kafkas_rules_takes_markers_twice_and_late(engine: Engine) -> None:
    """`BrokerTable` as the log: what the second marker and a belated one do there."""
    log = fp.BrokerTable(version="4.3", offsets="assign")

    def verdict(**columns: Any) -> str:
        row = {"partition": 0, "count": 1, "transactional": True} | columns
        found = log.apply(pa.table({name: [value] for name, value in row.items()}))
        return next(it.name for it, count in found.counts.items() if count)

    answers = []

    def write_marker(pid: int, epoch: int, partition: Any, outcome: str, coordinator_epoch: int) -> None:
        for _ in range(2):
            answers.append(
                verdict(
                    pid=pid, epoch=epoch, base_seq=-1, control=outcome,
                    coordinator_epoch=coordinator_epoch, transaction_version=2,
                )
            )  # fmt: skip

    coordinator = TransactionCoordinator(engine, routes={"out": Route(write_marker)})
    first = coordinator.init_producer("an id")
    coordinator.add_partitions(first, [("out", 0)])
    assert verdict(pid=first.pid, epoch=first.epoch, base_seq=0) == "ACCEPTED"
    second = coordinator.commit(first)
    assert answers == ["ACCEPTED", "ACCEPTED"]
    coordinator.add_partitions(second, [("out", 0)])
    assert verdict(pid=second.pid, epoch=second.epoch, base_seq=0) == "ACCEPTED"
    answers.clear()
    write_marker(first.pid, second.epoch, 0, "commit", 0)
    assert answers == ["FENCED", "FENCED"], "it does not end the next transaction"
    answers.clear()
    coordinator.abort(second)
    assert answers == ["ACCEPTED", "ACCEPTED"]


# Time


def test_transactions_that_are_open_for_too_long_are_aborted(coordinator: TransactionCoordinator) -> None:
    late = coordinator.init_producer("late", timeout_ms=60_000)
    patient = coordinator.init_producer("patient", timeout_ms=900_000)
    for it in (late, patient):
        coordinator.add_offsets(it, "group", {it.pid: (0, 1)})
    assert coordinator.reap() == Recovered(0, 0)
    set_back(coordinator.database, started_ms=61_000)
    assert coordinator.reap() == Recovered(0, 1)
    assert coordinator.reap() == Recovered(0, 0)
    assert coordinator.decision(late.pid, late.epoch) == "abort"
    assert coordinator.decision(patient.pid, patient.epoch) is None
    assert coordinator.positions("group").pending == {patient.pid}
    with pytest.raises(fp.TransactionStateError):
        coordinator.commit(late)
    after = coordinator.abort(late)
    assert after.epoch == late.epoch + 1, "which tells the identity to go on with"
    coordinator.begin(after)
    assert coordinator.recover() == Recovered(completed=0, aborted=0)


def test_a_clock_that_is_set_back_leaves_no_transaction_open(coordinator: TransactionCoordinator) -> None:
    """One that began while the clock was a year ahead would be open for a year, and would not be reported as late."""
    ahead, near = (coordinator.init_producer(name, timeout_ms=60_000) for name in ("ahead", "near"))
    coordinator.begin(ahead)
    set_back(coordinator.database, started_ms=-365 * 86_400_000)
    coordinator.begin(near)
    update = tables.PRODUCERS.update().where(tables.PRODUCERS.c.pid == near.pid)
    a_bit = update.values(started_ms=tables.PRODUCERS.c.started_ms + 30_000)
    coordinator.database.transaction(lambda connection: connection.execute(a_bit))
    engine = coordinator.database.engine
    assert {it.transactional_id: it.is_late for it in list_transactions(engine)} == {"ahead": True, "near": False}
    assert transaction_metrics(engine)["late"] == 1
    assert coordinator.recover() == Recovered(completed=0, aborted=1)
    assert coordinator.decision(ahead.pid, ahead.epoch) == "abort"
    assert coordinator.commit(near).epoch == 1, "a clock that was corrected by less than the time-out aborts nothing"


def test_decisions_are_kept_until_they_are_dropped(coordinator: TransactionCoordinator) -> None:
    identity = coordinator.init_producer("an id")
    coordinator.begin(identity)
    after = coordinator.commit(identity)
    assert coordinator.forget_decisions(older_than_ms=60_000) == 0
    assert coordinator.decision(identity.pid, identity.epoch) == "commit"
    assert coordinator.forget_decisions(older_than_ms=-1000) == 1
    assert coordinator.decision(identity.pid, identity.epoch) is None
    coordinator.begin(after)


# Bad calls


NAMED = r"expected \(topic, number\), .* 0 to 2147483647$"
PAIR = r"of 64-bit integers: \(the position at .*None; .*\)$"


BAD_CALLS: dict[str, tuple[Callable[[TransactionCoordinator, ProducerIdentity], object], str]] = {
    **{
        f"{bad!r} as a partition of an output": (
            lambda it, who, bad=bad: it.add_partitions(who, [("clicks", 0), bad]),
            f"partition {re.escape(repr(bad))}: {NAMED}",
        )
        for bad in (0.5, 0, "clicks", (), ("clicks",), ("clicks", -1), ("clicks", 2**31), ("clicks", True), ("", 0))
    },
    "a question about none": (
        lambda it, who: it.verify(who, ["clicks"]),  # type: ignore[list-item]
        f"partition 'clicks': {NAMED}",
    ),
    "a topic without a route": (
        lambda it, who: it.add_partitions(who, [("clicks", 0), ("sales", 0)]),
        r"topic 'sales' has no route .*\(routes: 'clicks', 'views'\): .* routes=\{topic: transport\}, or None for",
    ),
    "an input that is a truth": (
        lambda it, who: it.add_offsets(who, "group", {True: (0, 5)}),
        "partition True: expected",
    ),
    "an input of no name": (
        lambda it, who: it.add_offsets(who, "group", {(): (0, 5)}),
        r"partition \(\): expected",
    ),
    "a position below 0": (
        lambda it, who: it.add_offsets(who, "group", {0: (0, 5), 1: (-1, 5)}),
        r"group 'group', partition 1: \(-1, 5\) is invalid: .* at least 0",
    ),
    "backwards": (
        lambda it, who: it.add_offsets(who, "group", {0: (5, 4)}),
        r"group 'group', partition 0: \(5, 4\) is invalid: .* not below",
    ),
    "no pair": (
        lambda it, who: it.add_offsets(who, "group", {0: 5}),
        f"group 'group', partition 0: 5 is not a pair {PAIR}",
    ),
    "a pair of three": (
        lambda it, who: it.add_offsets(who, "group", {0: (0, 5, 6)}),
        rf"group 'group', partition 0: \(0, 5, 6\) is not a pair {PAIR}",
    ),
    "a pair of texts": (
        lambda it, who: it.add_offsets(who, "group", {0: ("0", "5")}),
        rf"group 'group', partition 0: \('0', '5'\) is not a pair {PAIR}",
    ),
    "a pair without its end": (
        lambda it, who: it.add_offsets(who, "group", {0: (0, None)}),
        rf"group 'group', partition 0: \(0, None\) is not a pair {PAIR}",
    ),
    "a pair beyond 64 bits": (
        lambda it, who: it.add_offsets(who, "group", {0: (0, 2**63)}),
        rf"group 'group', partition 0: \(0, {2**63}\) is not a pair {PAIR}",
    ),
    "a list of offsets": (
        lambda it, who: it.add_offsets(who, "group", [(0, 5)]),
        rf"offsets=\[\(0, 5\)\]: expected a mapping .* pairs {PAIR}",
    ),
    "a group with a lone surrogate": (
        lambda it, who: it.add_offsets(who, "\udc80", {0: (0, 5)}),
        r"group='\\udc80': .*non-empty text",
    ),
    "no group": (
        lambda it, who: it.add_offsets(who, "", {0: (0, 5)}),
        r"group='': .*non-empty text",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_gives_the_reason_and_changes_nothing(coordinator: TransactionCoordinator, name: str) -> None:
    call, message = BAD_CALLS[name]
    identity = coordinator.init_producer("an id")
    with pytest.raises(fp.PolicyError, match=rf"^\[FP102\] {message}"):
        call(coordinator, identity)
    assert state(coordinator, identity.pid) == "EMPTY"
    assert coordinator.positions("group") == Positions({}, frozenset())


def test_an_unknown_identity_is_refused(coordinator: TransactionCoordinator) -> None:
    stranger = ProducerIdentity(coordinator.registry.init_producer().pid, 0)
    message = f"has the pid {stranger.pid}: .*; call init_producer with the id and expected=$"
    for call in (
        coordinator.begin, coordinator.commit, coordinator.abort,
        lambda it: coordinator.add_partitions(it, [("clicks", 1)]),
        lambda it: coordinator.verify(it, [("clicks", 1)]),
        lambda it: coordinator.add_offsets(it, "group", {0: (0, 1)}),
    ):  # fmt: skip
        with pytest.raises(fp.MappingError, match=message):
            call(stranger)


@pytest.mark.parametrize("routes", [{"": None}, {"clicks": object()}, {7: None}])
def test_a_route_that_leads_nowhere_is_refused(engine: Engine, routes: Any) -> None:
    [topic] = routes
    with pytest.raises(fp.PolicyError, match=f"routes: .*{topic!r}"):
        TransactionCoordinator(engine, routes=routes)


def test_a_route_that_returns_before_the_marker_is_written_is_refused(engine: Engine) -> None:
    """The transaction would be complete without its marker, which no call would write later."""

    class Later:
        async def write_marker(self, *_: Any) -> None:
            raise AssertionError("nobody waits for it")

    with pytest.raises(fp.PolicyError, match=r"routes: topic 'out': .*a coroutine function\. "):
        TransactionCoordinator(engine, routes={"out": Later()})
    for returned in (Later().write_marker, lambda *_: Future()):
        coordinator = TransactionCoordinator(engine, routes={"out": Route(lambda *_, it=returned: it())})
        identity = coordinator.init_producer("an id")
        coordinator.add_partitions(identity, [("out", 0)])
        with pytest.raises(fp.ConcurrentTransactionError, match=r"returned a (coroutine|Future)\. Pass one that"):
            coordinator.commit(identity)
        assert state(coordinator, identity.pid) == "PREPARE_COMMIT"
        written: list[Any] = []
        elsewhere = TransactionCoordinator(engine, routes={"out": Route(lambda *it, to=written: to.append(it))})
        assert elsewhere.recover() == Recovered(1, 0)
        assert len(written) == 1


def test_registry_and_coordinator_are_on_one_engine(engine: Engine, new_engine: NewEngine) -> None:
    with pytest.raises(fp.PolicyError, match="uses another engine"):
        TransactionCoordinator(engine, ProducerRegistry(new_engine()))


# Against the machine


def test_random_requests_agree_with_the_state_machine(engine: Engine) -> None:
    steps = sum(follow(engine, random.Random(f"{seed}")) for seed in range(40))
    assert steps > 300


def follow(engine: Engine, rng: random.Random) -> int:
    """Asks both the same, and gives how many requests there were. Fresh pids may be others: they are translated."""
    before = rng.choice([None, Known(7, 5, 4, state="CompleteCommit"), Known(7, rng.randrange(32763, 32767))])
    case = Case("random", 0, before, 2)
    machine, database = MachineDoor(case), SqlDoor(case, engine)
    pids: dict[int, int] = {NONE: NONE, 7: 7, 8: 8}
    steps = 0
    for _ in range(12):
        known = machine.known()
        request = random_request(rng, known)
        if request.name == "complete" and (known is None or not known.state.startswith("Prepare")):
            continue
        expected = machine.ask(request)
        found = database.ask(request._replace(pid=pids.get(request.pid, request.pid)))
        if machine.it.state.name == "PREPARE_ABORT" and not machine.it.partitions:
            machine.ask(Request("complete"))
        if expected is None or found is None:
            continue
        steps += 1
        theirs, ours = machine.known(), database.known()
        assert theirs is not None
        assert ours is not None
        for name in ("pid", "next_pid", "previous_pid"):
            pids.setdefault(getattr(theirs, name), getattr(ours, name))
        translated = theirs._replace(
            pid=pids[theirs.pid], next_pid=pids[theirs.next_pid], previous_pid=pids[theirs.previous_pid]
        )
        assert (found.name, ours) == (expected.name, translated), f"{request} after {known}"
    return steps


def random_request(rng: random.Random, known: Known | None) -> Request:
    if known is None:
        return Request("init")
    name = rng.choice(["init", "init", "add", "add", "verify", "commit", "commit", "abort", "complete", "time out"])
    if name in ("complete", "time out") or (name == "init" and rng.random() < 0.5):
        return Request(name)
    pid = rng.choice([known.pid] * 6 + [max(known.previous_pid, 0), 8])
    epoch = max(0, rng.choice([known.epoch] * 4 + [known.epoch - 1, known.epoch - 1, known.epoch + 1, 32766]))
    partitions = frozenset(rng.sample("abc", rng.randrange(1, 3))) if name in ("add", "verify") else frozenset()
    return Request(name, pid, epoch, partitions)


def test_random_requests_come_to_every_answer() -> None:
    """What the test above asks is worth asking."""
    answers = set()
    for seed in range(40):
        rng = random.Random(f"{seed}")
        machine = MachineDoor(Case("random", 0, Known(7, rng.randrange(32763, 32767)), 2))
        for _ in range(12):
            request = random_request(rng, machine.known())
            if request.name != "complete" or machine.it.state.name.startswith("PREPARE"):
                answers.add(getattr(machine.ask(request), "name", None))
    assert answers >= {"OK", "CONCURRENT", "FENCED", "MAPPING", "TXN", "ABORTABLE"}


def test_tables_hold_what_they_should(coordinator: TransactionCoordinator) -> None:
    """Nothing is left of a transaction but its decision and its positions."""
    for number in range(5):
        identity = coordinator.init_producer("an id")
        coordinator.add_offsets(identity, "group", {0: (number * 10, number * 10 + 10)})
        coordinator.commit(identity)

    def count(connection: Connection) -> dict[str, int]:
        return {
            it.name: connection.execute(select(func.count()).select_from(it)).scalar_one()
            for it in tables.TABLES.sorted_tables
        }

    assert coordinator.database.transaction(count) == {
        "fencepost_pids": 1,
        "fencepost_producers": 1,
        "fencepost_decisions": 5,
        "fencepost_positions": 1,
        "fencepost_staged_positions": 0,
    }
