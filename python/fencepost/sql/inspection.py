"""Read-only inspection of transactions for operators: the owner, the age, and what a transaction waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, case, func, or_, select, text, true

from fencepost.errors import SchemaError
from fencepost.metrics import gauge
from fencepost.sql.database import Database
from fencepost.sql.transaction import (
    OPENABLE,
    PREPARED,
    Partition,
    ProducerIdentity,
    State,
    TopicPartition,
    is_late,
    unknown_id,
)
from fencepost.sql.transaction_tables import (
    PART,
    PIDS,
    PRODUCERS,
    STAGED,
    Held,
    from_text,
    is_late_since,
    list_held,
)

if TYPE_CHECKING:
    from prometheus_client import Metric

_NAMED_MAX = 20
_UNFINISHED = PRODUCERS.c.state.in_([int(State.ONGOING), *map(int, PREPARED)])


class StagedPosition(NamedTuple):
    """A position of an input that commits with the transaction."""

    group: str
    partition: Partition
    expected: int
    position: int


class DatabaseSession(NamedTuple):
    """A PostgreSQL session whose database transaction holds rows of transactional ids."""

    backend_pid: int
    """The argument of `pg_terminate_backend`."""
    application: str
    address: str | None
    """The client's address. None: a connection through a Unix socket."""
    state: str
    """As in `pg_stat_activity`: "active", "idle in transaction"."""
    state_ms: int
    """How long the session has been in this state."""


@dataclass(frozen=True)
class TransactionStatus:
    """The status of a transactional id and its transaction."""

    transactional_id: str
    state: str
    """The protocol's name: "ongoing", "prepare_commit", "complete_abort", ..."""
    owner: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    """The output partitions of the open or decided transaction."""
    age_ms: int | None
    """Milliseconds since the transaction was opened. None if no transaction is open or decided."""
    idle_ms: int
    """Milliseconds since the last call that changed it."""
    timeout_ms: int
    is_late: bool
    """Whether it has been open, or decided without all of its markers, for longer than its time-out."""
    waiting: tuple[TopicPartition, ...]
    """Partitions whose readers wait for a marker that is not written yet."""
    waits_for: str
    """The next step, and who does it."""
    positions: tuple[StagedPosition, ...] = ()
    """Staged positions of inputs. Only from `describe_transaction`."""
    sessions: tuple[DatabaseSession, ...] = ()
    """The sessions that may hold the row, if another database transaction holds it. Only from `describe_transaction`,
    on PostgreSQL."""


def list_transactions(engine: Engine, *, unfinished_only: bool = True) -> list[TransactionStatus]:
    """Return the open or decided transactions, ordered by transactional id.

    With `unfinished_only=False`, returns the status of all ids.

    Raises:
        SchemaError: The database has no tables of producers, or they have another version.
        StoreError: The database does not answer.
    """
    database = Database(engine)

    def work(connection: Connection) -> list[TransactionStatus]:
        _check_tables(database, connection)
        which = _UNFINISHED if unfinished_only else true()
        return [_status(held) for held in list_held(database, connection, which)]

    return database.transaction(work)


def describe_transaction(engine: Engine, transactional_id: str) -> TransactionStatus:
    """Return the transaction of an id with its staged positions, and the sessions that hold its row.

    On PostgreSQL this requests a lock without waiting for it, so the role needs the right to update.

    Raises:
        MappingError: The id does not exist.
        SchemaError, StoreError: As in `list_transactions`.
    """
    database = Database(engine)

    def work(connection: Connection) -> TransactionStatus:
        _check_tables(database, connection)
        which = PRODUCERS.c.transactional_id == transactional_id
        found = list_held(database, connection, which)
        if not found:
            raise unknown_id(transactional_id)
        mine = STAGED.c.transactional_id == transactional_id
        staged = connection.execute(select(STAGED).where(mine).order_by(*STAGED.primary_key))
        positions = tuple(
            StagedPosition(it.group_id, from_text(it.partition), it.expected, it.position) for it in staged
        )
        sessions = _holders(connection, which) if database.kind.name == "postgresql" else ()
        return replace(_status(found[0]), positions=positions, sessions=sessions)

    return database.transaction(work)


def transaction_metrics(engine: Engine) -> dict[str, Any]:
    """Return metrics of a registry and its coordinators, from the database. Scans all transactional ids.

    Returns:
        `transactional_ids`: number of ids by state. `late`: number of late transactions, as
        `TransactionStatus.is_late`. `oldest_age_ms`: milliseconds since the oldest open or decided transaction was
        opened, or None. `pids`: number of reserved pids, of 2^63 - 1.

    Raises:
        SchemaError, StoreError: As in `list_transactions`.
    """
    database = Database(engine)
    columns = PRODUCERS.c
    now = database.clock_ms
    is_open = columns.state == int(State.ONGOING)
    late = or_(
        is_open & is_late_since(columns.started_ms, now),
        ~is_open & _UNFINISHED & is_late_since(columns.updated_ms, now),
    )
    by_state = select(columns.state, func.count(), func.sum(case((late, 1), else_=0))).group_by(columns.state)

    def work(connection: Connection) -> dict[str, Any]:
        _check_tables(database, connection)
        found = {state: (count, late) for state, count, late in connection.execute(by_state)}
        oldest = connection.execute(select(now - func.min(columns.started_ms)).where(_UNFINISHED)).scalar_one()
        return {
            "transactional_ids": {state.name.lower(): found.get(int(state), (0, 0))[0] for state in State},
            "late": sum(int(late) for _, late in found.values()),
            "oldest_age_ms": oldest,
            "pids": connection.execute(select(PIDS.c.next_pid)).scalar() or 0,
        }

    return database.transaction(work)


class TransactionMetrics:
    """Metrics of the registry and the coordinators of a database: `collect()` for `fencepost.metrics`.

    The metrics name the 20 oldest late transactions.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the current metric families. Raises SchemaError and StoreError as `list_transactions`."""
        found = transaction_metrics(self.engine)
        states = {("state", state): count for state, count in found["transactional_ids"].items()}
        age_ms = found["oldest_age_ms"]
        about_age = "Since the oldest open or decided transaction was opened."
        yield gauge("fencepost_transactional_ids", "Transactional ids, by state.", states)
        yield gauge("fencepost_transactions_late", "Open or decided for too long.", found["late"])
        age = None if age_ms is None else age_ms / 1000
        yield gauge("fencepost_transactions_oldest_age_seconds", about_age, age, unit="seconds")
        yield gauge("fencepost_pids", "Producer ids that were reserved.", found["pids"])
        late = late_transactions(self.engine) if found["late"] else []
        ages = {("transactional_id", it.transactional_id): (it.age_ms or 0) / 1000 for it in late[:_NAMED_MAX]}
        name = "fencepost_transaction_late_age_seconds"
        yield gauge(name, "Of each late transaction, since it was opened.", ages, unit="seconds")


def late_transactions(engine: Engine) -> list[TransactionStatus]:
    """Return the late transactions (`TransactionStatus.is_late`), oldest first. Raises as `list_transactions`."""
    late = [it for it in list_transactions(engine) if it.is_late]
    return sorted(late, key=lambda it: -(it.age_ms or 0))


def check_database(engine: Engine) -> None:
    """Check that the tables of producers exist in this version. Creates no tables. Raises as `list_transactions`."""
    database = Database(engine)
    database.transaction(lambda connection: _check_tables(database, connection))


def _check_tables(database: Database, connection: Connection) -> None:
    found = database.version_of(connection, PART.name)
    if found != PART.version:
        place = database.engine.url.render_as_string(hide_password=True)
        if found is None:
            raise SchemaError(f"{place}: has no tables of producers. Pass the database that the producers use")
        raise SchemaError(
            f"{place}: the tables of producers have version {found}, but this package supports {PART.version}. Use the "
            "fencepost version of the producers"
        )


def _status(held: Held) -> TransactionStatus:
    transaction, now_ms = held.transaction, held.now_ms
    is_unfinished = transaction.state is State.ONGOING or transaction.state in PREPARED
    late_ms = transaction.started_ms if transaction.state is State.ONGOING else transaction.updated_ms
    return TransactionStatus(
        transaction.transactional_id,
        transaction.state.name.lower(),
        transaction.identity,
        tuple(sorted(transaction.partitions)),
        now_ms - transaction.started_ms if is_unfinished else None,
        now_ms - transaction.updated_ms,
        transaction.timeout_ms,
        is_unfinished and is_late(late_ms, transaction.timeout_ms, now_ms),
        tuple(sorted(held.waiting)),
        _next_step(held),
    )


def _next_step(held: Held) -> str:
    transaction = held.transaction
    if transaction.state in PREPARED:
        topics = ", ".join(sorted({topic for topic, _ in held.waiting}))
        what = f"{PREPARED[transaction.state]} markers for {topics}"
        return f"{what}. Call recover() on a coordinator that has a route to each of these topics"
    if transaction.is_timed_out(held.now_ms):
        return "recover() or reap(): it has been open for longer than its time-out"
    if transaction.state is State.ONGOING:
        return "its producer, to commit or abort"
    return "its producer, to begin" if transaction.state in OPENABLE else "nothing: the id has expired"


def _holders(connection: Connection, which: ColumnElement[bool]) -> tuple[DatabaseSession, ...]:
    """Return the sessions that hold rows of this table if one of them holds this row, else an empty tuple."""
    free = select(PRODUCERS.c.transactional_id).where(which).with_for_update(read=True, skip_locked=True)
    if connection.execute(free).first() is not None:
        return ()
    return tuple(DatabaseSession(*row) for row in connection.execute(text(_HOLDERS)))


_HOLDERS = f"""
SELECT DISTINCT a.pid, a.application_name, CAST(a.client_addr AS text), a.state,
    CAST(extract(epoch FROM clock_timestamp() - a.state_change) * 1000 AS bigint)
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.relation = CAST('{PRODUCERS.name}' AS regclass) AND l.mode = 'RowShareLock' AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND a.pid <> pg_backend_pid() AND a.state IS NOT NULL
ORDER BY a.pid
"""
