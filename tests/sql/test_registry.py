"""Producer identities: no pid twice, no epoch twice, and the expiry of unused ids."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost.producer import Answer
from fencepost.sql import Positions, ProducerIdentity, ProducerRegistry, TransactionCoordinator
from fencepost.sql import transaction_tables as tables
from fencepost.sql.pids import PID_MAX
from fencepost.transports import LandingTransport, SqlTransport
from sqlalchemy import Engine, event, func, select, text
from support.coordinator_doors import Route, set_back
from support.databases import execute
from support.threads import in_threads

NewEngine = Callable[[], Engine]
DAY_MS = 24 * 3600 * 1000


def rows_of(registry: ProducerRegistry) -> int:
    query = select(func.count()).select_from(tables.PRODUCERS)
    return int(registry.database.transaction(lambda connection: connection.execute(query).scalar_one()))


def test_pids_without_an_id_are_all_different(engine: Engine, new_engine: NewEngine) -> None:
    registries = [ProducerRegistry(engine, block_size=3), ProducerRegistry(new_engine(), block_size=3)]
    found = [registry.init_producer() for _ in range(10) for registry in registries]
    assert {it.epoch for it in found} == {0}
    assert {it.previous_pid for it in found} == {None}
    assert sorted(it.pid for it in found) == [*range(18), 18, 21], "blocks of three, the last of each just begun"
    assert rows_of(registries[0]) == 0, "nothing is remembered of them"


def test_the_rest_of_a_block_is_never_used(engine: Engine, new_engine: NewEngine) -> None:
    assert ProducerRegistry(engine, block_size=100).init_producer().pid == 0
    assert ProducerRegistry(new_engine(), block_size=100).init_producer().pid == 100


def test_a_forked_process_has_a_block_of_its_own(database_url: str) -> None:
    program = f"""
import os, sys, sqlalchemy
from fencepost.sql import ProducerRegistry
engine = sqlalchemy.create_engine({database_url!r})
registry = ProducerRegistry(engine, block_size=10)
print(registry.init_producer().pid, flush=True)
child = os.fork()
if child == 0:
    engine.dispose(close=False)
else:
    assert os.waitpid(child, 0)[1] == 0
print(registry.init_producer().pid, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "10", "1"]


def test_no_pid_is_assigned_after_the_last_one(engine: Engine) -> None:
    registry = ProducerRegistry(engine, block_size=1000)
    values = {"id": 1, "next_pid": PID_MAX - 1}
    registry.database.transaction(lambda connection: connection.execute(tables.PIDS.insert().values(values)))
    assert [registry.init_producer().pid for _ in range(2)] == [PID_MAX - 1, PID_MAX]
    for _ in range(2):
        with pytest.raises(fp.CapacityError) as caught:
            registry.init_producer()
        assert caught.value.message == f"all pids up to {PID_MAX} are assigned"
        assert caught.value.limit == PID_MAX
    with pytest.raises(fp.CapacityError):
        registry.init_producer("an id")
    assert rows_of(registry) == 0


def test_a_known_id_has_its_pid_and_the_next_epoch(engine: Engine, new_engine: NewEngine) -> None:
    one, other = ProducerRegistry(engine), ProducerRegistry(new_engine())
    first = one.init_producer("orders-3")
    assert first == ProducerIdentity(first.pid, 0, None)
    assert other.init_producer("orders-3") == ProducerIdentity(first.pid, 1)
    assert one.init_producer("orders-3") == ProducerIdentity(first.pid, 2)
    assert other.init_producer("orders-4").pid != first.pid
    assert one.init_producer("orders-3", expected=ProducerIdentity(first.pid, 2)).epoch == 3
    assert one.init_producer("orders-3", expected=ProducerIdentity(first.pid, 2)).epoch == 3, "the same call again"
    with pytest.raises(fp.FencedError) as caught:
        one.init_producer("orders-3", expected=ProducerIdentity(first.pid, 1))
    pid = first.pid
    assert caught.value.message == f"transactional id 'orders-3': producer ({pid}, 1) was replaced by ({pid}, 3): stop"


def test_pids_that_were_not_needed_are_not_lost(engine: Engine) -> None:
    registry = ProducerRegistry(engine)
    pid = registry.init_producer("an id").pid
    for _ in range(50):
        registry.init_producer("an id")
    assert registry.init_producer().pid == pid + 1


def test_open_transactions_are_aborted(engine: Engine) -> None:
    registry = ProducerRegistry(engine)
    coordinator = TransactionCoordinator(engine, registry, routes={"clicks": None})
    old = registry.init_producer("an id")
    coordinator.add_partitions(old, [("clicks", 0)])
    coordinator.add_offsets(old, "group", {0: (0, 10)})
    new = registry.init_producer("an id")
    assert (new.pid, new.epoch) == (old.pid, old.epoch + 2), "one for the abort, one for the producer"
    assert coordinator.decision(old.pid, old.epoch) == "abort"
    assert coordinator.positions("group") == Positions({}, frozenset())
    for call in (coordinator.begin, coordinator.commit, coordinator.abort):
        with pytest.raises(fp.FencedError):
            call(old)
    coordinator.begin(new)


def test_a_transaction_that_waits_for_markers_makes_a_new_producer_wait(engine: Engine) -> None:
    registry = ProducerRegistry(engine)
    written: list[Any] = []
    coordinator = TransactionCoordinator(
        engine, registry, routes={"clicks": Route(lambda *marker: written.append(marker))}
    )
    old = registry.init_producer("an id")
    coordinator.add_partitions(old, [("clicks", 0), ("clicks", 1)])
    with pytest.raises(fp.ConcurrentTransactionError, match=r"is aborted now, .*partitions wait"):
        registry.init_producer("an id")
    with pytest.raises(fp.ConcurrentTransactionError, match=r"is decided \(abort\)"):
        registry.init_producer("an id")
    assert coordinator.decision(old.pid, old.epoch) == "abort", "it is decided all the same"
    new = coordinator.init_producer("an id")
    assert (new.pid, new.epoch) == (old.pid, old.epoch + 2)
    assert written == [(old.pid, 1, 0, "abort", 1), (old.pid, 1, 1, "abort", 1)]


def test_used_up_epochs_rotate_the_pid(engine: Engine) -> None:
    registry = ProducerRegistry(engine)
    old = registry.init_producer("an id")
    values = {"epoch": 32765}
    registry.database.transaction(lambda connection: connection.execute(tables.PRODUCERS.update().values(values)))
    last = registry.init_producer("an id")
    assert last == ProducerIdentity(old.pid, 32766)
    new = registry.init_producer("an id", expected=last)
    assert (new.epoch, new.previous_pid) == (0, old.pid)
    assert new.pid != old.pid
    assert registry.init_producer("an id", expected=last) == new, "the answer was lost"
    assert registry.init_producer("an id") == ProducerIdentity(new.pid, 1, old.pid), "as long as there is no other"


@pytest.mark.parametrize("is_reaped", [False, True])
def test_an_unused_id_expires_and_sees_its_old_pid(engine: Engine, is_reaped: bool) -> None:
    registry = ProducerRegistry(engine)
    old = registry.init_producer("an id")
    set_back(registry.database, updated_ms=7 * DAY_MS - 60_000)
    assert registry.expire() == 0
    assert registry.init_producer("an id").pid == old.pid, "not yet"
    set_back(registry.database, updated_ms=7 * DAY_MS)
    if is_reaped:
        assert registry.expire() == 1
        with pytest.raises(fp.MappingError, match=f"has the pid {old.pid}: it expired"):
            TransactionCoordinator(engine, registry).begin(old)
    new = registry.init_producer("an id")
    assert new == ProducerIdentity(new.pid, 0, old.pid)
    assert new.pid != old.pid
    assert registry.expire() == 0


def test_a_tombstone_is_kept_for_its_time(engine: Engine) -> None:
    registry = ProducerRegistry(engine, tombstone_ms=30 * DAY_MS)
    registry.init_producer("an id")
    set_back(registry.database, updated_ms=7 * DAY_MS)
    assert registry.expire() == 1
    set_back(registry.database, updated_ms=30 * DAY_MS - 60_000)
    assert registry.expire() == 0
    assert rows_of(registry) == 1
    set_back(registry.database, updated_ms=60_000)
    assert registry.expire() == 0
    assert rows_of(registry) == 0
    assert registry.init_producer("an id").previous_pid is None, "nothing is known any more"


def test_open_transactions_do_not_expire(engine: Engine) -> None:
    registry = ProducerRegistry(engine)
    coordinator = TransactionCoordinator(engine, registry)
    identity = registry.init_producer("an id")
    coordinator.begin(identity)
    set_back(registry.database, updated_ms=100 * DAY_MS)
    assert registry.expire() == 0
    coordinator.commit(identity)


def test_names_in_use_are_kept_alive(engine: Engine) -> None:
    registry = ProducerRegistry(engine, expiry_ms=DAY_MS)
    assert registry.keep_alive_ms <= DAY_MS / 4
    assert ProducerRegistry(engine, expiry_ms=2**62).keep_alive_ms <= DAY_MS, "an interval that a thread can wait for"
    used, replaced = registry.init_producer("used"), registry.init_producer("replaced")
    successor = registry.init_producer("replaced")
    set_back(registry.database, updated_ms=2 * DAY_MS)
    registry.keep_alive(used)
    registry.keep_alive(replaced)
    assert registry.expire() == 1, "who was replaced keeps nothing alive"
    assert registry.init_producer("used").pid == used.pid
    registry.keep_alive(successor)
    assert registry.init_producer("replaced").previous_pid == successor.pid, "nor does who comes too late"


def test_a_transaction_kept_alive_while_it_ends_is_completed(engine: Engine) -> None:
    """The row of a decided transaction is what it was when its markers are written."""
    registry = ProducerRegistry(engine)
    route = Route(lambda pid, epoch, *_: registry.keep_alive(ProducerIdentity(pid, epoch)))
    coordinator = TransactionCoordinator(engine, registry, routes={"out": route})
    identity = coordinator.init_producer("an id")
    coordinator.add_partitions(identity, [("out", 0)])
    coordinator.begin(coordinator.commit(identity))


class Anywhere:
    def send(self, batch: Any) -> Answer:
        return Answer(offset=0)


@pytest.mark.parametrize("kind", ["registry", "coordinator"])
def test_the_name_of_a_running_producer_does_not_expire(engine: Engine, kind: str) -> None:
    registry = ProducerRegistry(engine, expiry_ms=DAY_MS)
    registry.keep_alive_ms = 5
    coordinator = TransactionCoordinator(engine, registry, routes={"out": None})
    options = {"registry": registry} if kind == "registry" else {"coordinator": coordinator, "topic": "out"}

    def is_kept() -> bool:
        return bool(registry.database.transaction(lambda it: registry.database.now_ms(it) - last_used(it) < DAY_MS / 2))

    def last_used(connection: Any) -> int:
        return int(connection.execute(select(tables.PRODUCERS.c.updated_ms)).scalar_one())

    with fp.SequencedProducer(Anywhere(), name="gate 7", **options) as producer:
        for _ in range(2):
            set_back(registry.database, updated_ms=2 * DAY_MS)
            deadline = time.monotonic() + 60
            while not is_kept():
                assert time.monotonic() < deadline, "it is not kept alive"
        assert registry.expire() == 0
        if kind == "coordinator":
            with producer.transaction():
                producer.send([{"n": 1}])
        pid = producer.identity.pid
        assert producer.previous_pid is None
    set_back(registry.database, updated_ms=2 * DAY_MS)
    assert registry.expire() == 1, "nobody keeps it alive any more"
    with fp.SequencedProducer(Anywhere(), name="gate 7", **options) as producer:
        assert (producer.previous_pid, producer.identity.epoch) == (pid, 0)
    assert registry.init_producer("gate 7").previous_pid == pid


def test_a_name_outlives_an_outage_of_its_registry(engine: Engine) -> None:
    class Away(ProducerRegistry):
        """Answers every third call."""

        calls = 0
        answered = threading.Event()

        def keep_alive(self, identity: ProducerIdentity) -> None:
            self.calls += 1
            if self.calls % 3:
                raise fp.StoreError("away")
            super().keep_alive(identity)
            self.answered.set()

    registry = Away(engine)
    registry.keep_alive_ms = 1
    with fp.SequencedProducer(Anywhere(), name="gate 7", registry=registry):
        for _ in range(3):
            registry.answered.clear()
            assert registry.answered.wait(60)


@pytest.mark.parametrize("kind", ["landing", "sql"])
def test_an_identity_that_has_rows_is_refused(engine: Engine, new_engine: NewEngine, tmp_path: Path, kind: str) -> None:
    """After a restore, an identity is issued again. Rows of it would be acknowledged as duplicates, and lost."""
    registry, schema = ProducerRegistry(engine), pa.schema({"n": pa.int64()})
    transport: Any = LandingTransport(tmp_path) if kind == "landing" else SqlTransport(new_engine(), "o", schema=schema)
    options: dict[str, Any] = {"name": "gate 7", "registry": registry}
    backup = registry.init_producer("gate 7")
    with fp.SequencedProducer(transport, **options) as producer:
        producer.send([{"n": 1}])
    restored = tables.PRODUCERS.update().values(epoch=backup.epoch)
    registry.database.transaction(lambda connection: connection.execute(restored))
    with pytest.raises(fp.TransportError, match=r"issued pid 0 epoch 1, but partition 0 has rows"):
        fp.SequencedProducer(transport, **options)
    # As docs/producers-and-transactions.md says.
    execute(
        engine,
        "UPDATE fencepost_pids SET next_pid = next_pid + 1000000000",
        "UPDATE fencepost_producers SET updated_ms = 0 WHERE state IN (0, 4, 5)",
    )
    options["registry"] = ProducerRegistry(engine)
    with fp.SequencedProducer(transport, **options) as producer:
        assert producer.previous_pid == backup.pid
        [delivery] = producer.send([{"n": 2}])
    assert not delivery.result().is_duplicate


BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "empty": (
        {"transactional_id": ""}, "transactional_id='': expected a text of 1 to 1000 characters of UTF-8, or None"
    ),
    "a number": (
        {"transactional_id": 7}, "transactional_id=7: expected a text of 1 to 1000 characters of UTF-8, or None"
    ),
    "no time": ({"timeout_ms": 0}, "timeout_ms=0 is outside 1..=900000"),
    "too long a time": ({"timeout_ms": 900_001}, "timeout_ms=900001 is outside 1..=900000"),
    "a fraction": ({"timeout_ms": 0.5}, "timeout_ms=0.5 is outside 1..=900000"),
    "a bool": ({"timeout_ms": True}, "timeout_ms=True is outside 1..=900000"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_change_nothing(engine: Engine, name: str) -> None:
    registry = ProducerRegistry(engine)
    registry.init_producer("an id")
    arguments, message = BAD_CALLS[name]
    with pytest.raises(fp.PolicyError) as caught:
        registry.init_producer(**{"transactional_id": "an id", **arguments})
    assert caught.value.message == message
    assert registry.init_producer("an id").epoch == 1
    assert rows_of(registry) == 1


@pytest.mark.parametrize("name", ["block_size", "expiry_ms", "tombstone_ms", "timeout_max_ms"])
@pytest.mark.parametrize("value", [0, -1, "5", True])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_bad_bounds(engine: Engine, name: str, value: Any) -> None:
    with pytest.raises(fp.PolicyError, match=rf"{name}={value!r} .*at least 1"):
        ProducerRegistry(engine, **{name: value})


def test_tables_of_a_newer_version_are_refused(engine: Engine) -> None:
    registry = ProducerRegistry(engine)
    registry.init_producer("an id")
    newer = text("UPDATE fencepost_schema SET version = version + 1 WHERE part = 'producers'")
    registry.database.transaction(lambda connection: connection.execute(newer))
    for make in (ProducerRegistry, TransactionCoordinator):
        with pytest.raises(
            fp.SchemaError, match="the tables of 'producers' have version 4, but this package supports 3"
        ):
            make(engine)
    assert rows_of(registry) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_connection_that_is_lost_costs_an_epoch_at_most(engine: Engine, new_engine: NewEngine) -> None:
    """The server ends every connection now and then, between any two statements."""
    registry = ProducerRegistry(engine, block_size=2)
    other = new_engine()
    kill = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    found = []
    for turn in range(12):
        query = "before_cursor_execute" if turn % 2 else "after_cursor_execute"
        lost = {"after": turn % 5}

        def lose(*_: Any, lost: dict[str, int] = lost) -> None:
            lost["after"] -= 1
            if lost["after"] == 0:
                with other.connect() as connection:
                    connection.execute(kill)

        event.listen(engine, query, lose)
        found.append(registry.init_producer("an id"))
        event.remove(engine, query, lose)
    assert {it.pid for it in found} == {0}
    assert [it.epoch for it in found] == sorted({it.epoch for it in found})
    assert found[-1].epoch < 24


def test_many_at_once_never_get_the_same(new_engine: NewEngine) -> None:
    """Threads with engines of their own, on a few ids and on ids of their own."""
    found: list[ProducerIdentity] = []

    def work(number: int) -> None:
        registry = ProducerRegistry(new_engine(), block_size=2)
        for turn in range(12):
            found.append(registry.init_producer(f"shared {turn % 3}"))
            found.append(registry.init_producer(f"own {number} {turn}"))
            found.append(registry.init_producer())

    in_threads([partial(work, number) for number in range(6)])
    assert len(found) == 6 * 12 * 3
    assert len({(it.pid, it.epoch) for it in found}) == len(found)
    epochs: dict[int, list[int]] = {}
    for it in found:
        epochs.setdefault(it.pid, []).append(it.epoch)
    assert all(sorted(it) == list(range(len(it))) for it in epochs.values()), "and none was left out"
    assert sum(len(it) == 24 for it in epochs.values()) == 3
