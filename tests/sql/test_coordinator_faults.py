"""Processes that are killed at every step, and processes that run into each other."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from functools import partial

from fencepost.sql import ProducerIdentity, TransactionCoordinator
from sqlalchemy import Engine
from support import transacting
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
from support.threads import in_threads
from support.transacting import OUTPUT, Markers
from support.waiting import PATIENCE_SECONDS

__all__ = ["coordinator", "markers"]  # fixtures


def test_killed_at_every_step_of_a_transaction(
    database_url: str, coordinator: TransactionCoordinator, markers: Markers
) -> None:
    found: Counter[str | None] = Counter()
    for kill_at in range(1, 100):
        before = decisions(coordinator)
        code = outcome_of(start(transacting.transact, database_url, markers.path, kill_at))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        coordinator.recover()
        # The next process with the id ends the open transaction.
        identity = coordinator.init_producer("stage")
        check(coordinator, markers)
        new = decisions(coordinator).items() - before.items()
        assert len(new) <= 1
        found[next(iter(new))[1] if new else None] += 1
        assert coordinator.decision(identity.pid, identity.epoch) is None
    assert code == 0
    check(coordinator, markers)
    assert kill_at > 25, "steps were looked at"
    assert found["commit"] >= 8
    assert found["abort"] >= 8
    assert found[None] >= 8


def test_killed_at_every_step_of_a_recovery(
    database_url: str, coordinator: TransactionCoordinator, markers: Markers
) -> None:
    for kill_at in range(1, 100):
        leave_work(coordinator)
        code = outcome_of(start(transacting.recover, database_url, markers.path, kill_at))
        coordinator.recover()
        check_recovered(coordinator, markers)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert kill_at > 15


def test_of_two_processes_with_one_id_one_commits(database_url: str, coordinator: TransactionCoordinator) -> None:
    rounds, meet, results = 25, PROCESSES.Barrier(2), PROCESSES.Queue()
    processes = [start(transacting.take_turns, database_url, number, rounds, meet, results) for number in range(2)]
    answers = [results.get(timeout=PATIENCE_SECONDS) for _ in range(2 * rounds)]
    assert [outcome_of(it) for it in processes] == [0, 0]
    for turn in range(rounds):
        mine = {identity: answer for it, _, identity, answer in answers if it == turn}
        assert len(mine) == 2, "no epoch twice"
        assert mine[max(mine)] == "committed"
        assert mine[min(mine)] == "FencedError"
    committed = {identity for _, _, identity, answer in answers if answer == "committed"}
    assert {number for _, number, _, answer in answers if answer == "committed"} == {0, 1}, "now one, now the other"
    assert set(all_of(coordinator, OUTPUT.c.pid, OUTPUT.c.epoch)) == committed


def test_processes_that_fence_each_other_all_the_time(database_url: str, coordinator: TransactionCoordinator) -> None:
    """The result that a process got is what happened, at any time of the fence."""
    rounds, results = 25, PROCESSES.Queue()
    processes = [start(transacting.run_at_each_other, database_url, number, rounds, results) for number in range(3)]
    answers = [results.get(timeout=PATIENCE_SECONDS) for _ in range(3 * rounds)]
    assert [outcome_of(it) for it in processes] == [0, 0, 0]
    committed = [identity for _, identity, answer in answers if answer == "committed"]
    assert len(set(committed)) == len(committed) > 0
    assert sorted(all_of(coordinator, OUTPUT.c.pid, OUTPUT.c.epoch)) == sorted(committed)
    assert sorted(it for it, outcome in decisions(coordinator).items() if outcome == "commit") == sorted(committed)
    # Fenced by the other's InitProducerId, before or after it had aborted what was open.
    assert {answer for _, _, answer in answers} <= {"committed", "FencedError"}


def test_workers_of_one_input_take_every_event_once(database_url: str, coordinator: TransactionCoordinator) -> None:
    """Different ids, so that no process fences another: only the position separates them."""
    end, meet, results = 60, PROCESSES.Barrier(3), PROCESSES.Queue()
    processes = [start(transacting.work_on_one_input, database_url, number, end, meet, results) for number in range(3)]
    answers = [results.get(timeout=PATIENCE_SECONDS) for _ in range(3)]
    assert [outcome_of(it) for it in processes] == [0, 0, 0]
    assert sorted(source for (source,) in all_of(coordinator, OUTPUT.c.source)) == list(range(end))
    assert sum(conflicts for _, _, conflicts in answers) > 0, "they did run into each other"


def test_one_identity_in_two_places_is_one_producer(
    coordinator: TransactionCoordinator, new_engine: Callable[[], Engine]
) -> None:
    """A second process of one identity looks like a retry: both get an answer, one decides and does its work."""
    identity = coordinator.init_producer("an id")
    for _ in range(10):
        coordinator.begin(identity)
        found = in_threads([partial(commit, new_engine, identity)] * 3)
        assert found == [ProducerIdentity(identity.pid, identity.epoch + 1)] * 3
        [identity] = set(found)
    assert len(all_of(coordinator, OUTPUT.c.id)) == 10


def commit(new_engine: Callable[[], Engine], identity: ProducerIdentity) -> ProducerIdentity:
    row = {"pid": identity.pid, "epoch": identity.epoch}
    mine = TransactionCoordinator(new_engine())
    return mine.commit(identity, work=lambda connection: connection.execute(OUTPUT.insert(), row))
