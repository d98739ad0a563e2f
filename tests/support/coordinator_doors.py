"""The ways to ask a coordinator: the state machine alone, or a registry and a coordinator on a database."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase
from typing import Any, Protocol

import fencepost as fp
import sqlalchemy
from fencepost.sql import ProducerIdentity, ProducerRegistry, TransactionCoordinator, transaction
from fencepost.sql import transaction_tables as tables
from fencepost.sql.database import Database

from support.coordinator_rulebook import NONE, Case, Known, Request, Result

ID, FRESH_PID, EXPIRY_MS = "an id", 100, 1_000_000
ERRORS: dict[type[Exception], str] = {
    fp.ConcurrentTransactionError: "CONCURRENT",
    fp.FencedError: "FENCED",
    fp.MappingError: "MAPPING",
    fp.TransactionStateError: "TXN",
    fp.TransactionAbortableError: "ABORTABLE",
    AssertionError: "ILLEGAL",
}


class Door(Protocol):
    def ask(self, request: Request) -> Result | None:
        """None where a request cannot be made this way."""

    def known(self) -> Known | None:
        """What is known now."""


def complaints(case: Case, door: Door) -> tuple[list[str], int]:
    """Results that differ from the page, and the number of requests."""
    found, count = [], 0
    before = case.before
    for step in case.steps:
        where = f"{case.page}:{step.line} {step.request}"
        result = door.ask(step.request)
        if result is None:
            break
        count += 1
        if result.name != step.result.name:
            found.append(f"{where}: {result.name}, not {step.result.name}")
        elif None not in (result.identity, step.result.identity) and result.identity != step.result.identity:
            found.append(f"{where}: {result.identity}, not {step.result.identity}")
        after = before if step.is_same else step.after
        now = door.known()
        # An abort without partitions has no markers to wait for: through a database it is never seen half done.
        is_passed_over = isinstance(door, SqlDoor) and after and after.state == "PrepareAbort" and not after.partitions
        if (step.is_same or step.after is not None) and now != after and not is_passed_over:
            found.append(f"{where}: {now}, not {after}")
        before = after if step.is_same or step.after is not None else now
    return found, count


def to_known(it: Any) -> Known:
    state = "".join(word.capitalize() for word in it.state.name.split("_"))
    return Known(it.pid, it.epoch, it.last_epoch, it.previous_pid, it.next_pid, state, it.partitions)


def state_name(state: str) -> str:
    """PREPARE_COMMIT of PrepareCommit."""
    return "".join(f"_{it}" if it.isupper() else it for it in state).strip("_").upper()


class MachineDoor:
    """`module`: that of the machine, or a broken one in its place."""

    def __init__(self, case: Case, module: Any = transaction) -> None:
        self.module = module
        self.fresh_pid = FRESH_PID
        self.it: Any = None
        if case.before is not None:
            before = case.before
            fields = {**before._asdict(), "state": module.State[state_name(before.state)]}
            started = {"timeout_ms": 60_000, "started_ms": 1000, "updated_ms": 1000}
            self.it = module.Transaction(transactional_id=ID, **fields, **started)

    def known(self) -> Known | None:
        return None if self.it is None else to_known(self.it)

    def ask(self, request: Request) -> Result | None:
        if request.name == "init empty" or not 1 <= request.timeout_ms <= 900_000:
            return None  # checked before the machine is asked
        if request.name not in ("init", "expire") and self.it.state is self.module.State.DEAD:
            return None  # a tombstone is no transaction
        try:
            before = self.it
            after = self._after(request)
        except tuple(ERRORS) as error:
            return Result(ERRORS[type(error)])
        self.it = after if after is not None else before
        if self.fresh_pid in (self.it.pid, self.it.next_pid):
            self.fresh_pid += 1
        if request.name == "init" and after.state.name == "PREPARE_ABORT":
            return Result("CONCURRENT")
        has_identity = request.name == "init" or (request.name in ("commit", "abort") and after is before)
        return Result("OK", (self.it.pid, self.it.epoch) if has_identity else None)

    def _after(self, request: Request) -> Any:
        it, now_ms, (pid, epoch) = self.it, 2000, request[1:3]
        match request.name:
            case "init":
                is_known = it is not None and it.state is not self.module.State.DEAD
                previous_pid = NONE if it is None else it.pid
                it = it if is_known else self.module.Transaction(ID, self.fresh_pid, previous_pid=previous_pid)
                expected = None if pid == NONE else ProducerIdentity(pid, epoch)
                return it.initialized(request.timeout_ms, now_ms, self.fresh_pid, expected)
            case "add":
                return it.with_partitions(pid, epoch, request.partitions, now_ms)
            case "verify":
                return it.verify(pid, epoch, request.partitions)
            case "commit" | "abort":
                return it.ended(pid, epoch, request.name, now_ms, self.fresh_pid)
            case "complete":
                return it.completed(now_ms)
            case "time out":
                limit_ms = it.started_ms + it.timeout_ms
                assert not it.is_timed_out(limit_ms)
                return it.fenced(now_ms, self.fresh_pid) if it.is_timed_out(limit_ms + 1) else it
            case "expire":
                return it.expired(now_ms) if it.is_expired(1000 + EXPIRY_MS, EXPIRY_MS) else it
            case "fence":
                return it.fenced(now_ms, self.fresh_pid)
            case "bump":
                return it._bumped(NONE)
            case "rotate":
                return it._rotated(self.fresh_pid, NONE)
        raise NotImplementedError(request)


class Stopped(Exception):
    """The marker is not written yet."""


class Route:
    """A function as what a route of a coordinator leads to."""

    def __init__(self, write_marker: Callable[..., object]) -> None:
        self.write_marker = write_marker


class SqlDoor:
    """A partition of the rule book is a topic of one partition. Markers are written when `complete` asks for it, and
    not before."""

    def __init__(self, case: Case, engine: sqlalchemy.Engine) -> None:
        self.registry = ProducerRegistry(engine, block_size=1, expiry_ms=EXPIRY_MS)
        self.coordinator = TransactionCoordinator(engine, self.registry, routes=dict.fromkeys(ascii_lowercase, self))
        self.writes_markers = False
        self.database = self.registry.database
        self.database.transaction(lambda connection: self._begin(connection, case.before))

    def _begin(self, connection: sqlalchemy.Connection, before: Known | None) -> None:
        for table in tables.TABLES.sorted_tables:
            connection.execute(table.delete())
        connection.execute(tables.PIDS.insert().values(id=1, next_pid=FRESH_PID))
        if before is not None:
            now_ms = self.database.now_ms(connection)
            state = transaction.State[state_name(before.state)]
            partitions = frozenset((name, 0) for name in before.partitions)
            fields = {**before._asdict(), "state": state, "partitions": partitions}
            it = transaction.Transaction(ID, **fields, timeout_ms=60_000, started_ms=now_ms, updated_ms=now_ms)
            connection.execute(tables.PRODUCERS.insert().values(tables.row_of(tables.Held(it, waiting=partitions))))

    def write_marker(self, *marker: object) -> None:
        if not self.writes_markers:
            raise Stopped("not now")

    def known(self) -> Known | None:
        held = self.database.transaction(
            lambda connection: tables.read_unlocked(self.database, connection, transactional_id=ID)
        )
        if held is None:
            return None
        found = to_known(held.transaction)
        return found._replace(partitions=frozenset(topic for topic, _ in held.transaction.partitions))

    def ask(self, request: Request) -> Result | None:
        before = self.known()
        if request.name in ("bump", "rotate", "fence"):
            return None
        is_prepared = before is not None and before.state.startswith("Prepare")
        if request.name == "add" and is_prepared and request.pid not in (before.pid, before.previous_pid):
            return None  # an id is found by its pid, and the next pid is not known before it is used
        try:
            identity = self._call(request)
        except fp.PolicyError:
            return Result("INVALID_REQUEST" if request.name == "init empty" else "INVALID_TIMEOUT")
        except fp.ConcurrentTransactionError as error:
            is_done = request.name != "init" and isinstance(error.__cause__, Stopped | fp.ConcurrentTransactionError)
            return Result("OK" if is_done and self.known() != before else "CONCURRENT")
        except tuple(ERRORS) as error:
            return Result(ERRORS[type(error)])
        return Result("OK", None if identity is None else (identity.pid, identity.epoch))

    def _call(self, request: Request) -> ProducerIdentity | None:
        identity = ProducerIdentity(request.pid, request.epoch)
        partitions = [(name, 0) for name in request.partitions]
        match request.name:
            case "init" | "init empty":
                name = "" if request.name == "init empty" else ID
                return self.registry.init_producer(name, request.timeout_ms, None if request.pid == NONE else identity)
            case "add":
                self.coordinator.add_partitions(identity, partitions)
            case "verify":
                self.coordinator.verify(identity, partitions)
            case "commit":
                return self.coordinator.commit(identity)
            case "abort":
                return self.coordinator.abort(identity)
            case "complete":
                self.writes_markers = True
                self.coordinator.recover()
                self.writes_markers = False
            case "time out":
                set_back(self.database, started_ms=60_001)
                self.coordinator.reap()
            case "expire":
                set_back(self.database, updated_ms=EXPIRY_MS)
                self.registry.expire()
        return None


def set_back(database: Database, **by_ms: int) -> None:
    """As if so much more time had passed since the times in these columns, of all producers."""
    values = {name: tables.PRODUCERS.c[name] - ms for name, ms in by_ms.items()}
    database.transaction(lambda connection: connection.execute(tables.PRODUCERS.update().values(values)))
