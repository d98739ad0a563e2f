"""The tables of producers and their transactions. Reads and writes the row of a `Transaction`.

Each transactional id is a row, which is locked before it is changed. Outcomes are in `fencepost_decisions`. Readers may
join this table to their own rows by pid and epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    MetaData,
    Row,
    Select,
    String,
    Table,
    bindparam,
    literal_column,
    select,
    text,
)

from fencepost.errors import PolicyError, SchemaError, TransactionAbortableError
from fencepost.inputs import is_integer
from fencepost.sql.columns import INNODB, Int64, LongText, key_text
from fencepost.sql.database import Database
from fencepost.sql.kinds import KINDS
from fencepost.sql.migrations import Migration, Part
from fencepost.sql.transaction import NONE, PREPARED, Partition, State, TopicPartition, Transaction
from fencepost.sql.upserts import insert_if_missing

NAME_BYTES_MAX = 1000
"""Maximum bytes of a name in UTF-8: a key has three names, and an index entry of MariaDB has 3072 bytes."""
_Name = key_text(String(), NAME_BYTES_MAX)
TABLES = MetaData()

PIDS = Table(
    "fencepost_pids",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("next_pid", Int64, nullable=False),
    **INNODB,
)
PRODUCERS = Table(
    "fencepost_producers",
    TABLES,
    Column("transactional_id", _Name, primary_key=True),
    Column("pid", Int64, nullable=False, unique=True),
    Column("epoch", Integer, nullable=False),
    Column("last_epoch", Integer, nullable=False),
    Column("previous_pid", Int64, nullable=False, index=True),
    Column("next_pid", Int64, nullable=False),
    Column("state", Integer, nullable=False),
    Column("timeout_ms", Int64, nullable=False),
    Column("partitions", LongText, nullable=False),
    Column("started_ms", Int64, nullable=False),
    Column("updated_ms", Int64, nullable=False),
    # The partitions whose readers wait for a marker that is not written yet.
    Column("waiting", LongText, nullable=False),
    Column("coordinator_epoch", Integer, nullable=False),
    **INNODB,
)
DECISIONS = Table(
    "fencepost_decisions",
    TABLES,
    Column("pid", Int64, primary_key=True, autoincrement=False),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("outcome", String(6), nullable=False),
    Column("decided_ms", Int64, nullable=False),
    **INNODB,
)
POSITIONS = Table(
    "fencepost_positions",
    TABLES,
    Column("group_id", _Name, primary_key=True),
    Column("partition", _Name, primary_key=True),
    # Null until the first commit: a row that can be locked before there is a position.
    Column("position", Int64),
    **INNODB,
)
STAGED = Table(
    "fencepost_staged_positions",
    TABLES,
    Column("transactional_id", _Name, primary_key=True),
    Column("group_id", _Name, primary_key=True),
    Column("partition", _Name, primary_key=True),
    Column("expected", Int64, nullable=False),
    Column("position", Int64, nullable=False),
    **INNODB,
)


_WAITING = (
    f"FROM fencepost_producers WHERE state IN ({State.ONGOING:d}, {State.PREPARE_COMMIT:d}, {State.PREPARE_ABORT:d}) "
    "AND has_markers AND partitions <> '[]'"
)


def _check_markers(connection: Connection) -> None:
    """Raise SchemaError if transactions wait for markers, because version 1 does not contain their topics."""
    waiting = text(f"SELECT transactional_id {_WAITING} ORDER BY transactional_id")
    if ids := list(connection.execute(waiting).scalars()):
        raise SchemaError(
            f"the tables of 'producers' have version 1, and these transactions wait for markers: {', '.join(ids[:10])}"
            f"{', ...' if len(ids) > 10 else ''} ({len(ids)} in all). Stop their producers and call recover() with the "
            "version of fencepost that began them, until none of them is open or waits for markers. Then use this "
            "version. Nothing has changed"
        )


# Partitions have topics since version 2.
_TOPICS = Migration(
    (
        # The check for scripts (`ddl`): with a transaction that waits for markers, the key exists already.
        f"INSERT INTO fencepost_schema (part, version) SELECT 'producers', 1 {_WAITING}",
        "ALTER TABLE fencepost_producers ADD COLUMN waiting TEXT NOT NULL DEFAULT '[]'",
        "UPDATE fencepost_producers SET partitions = '[]'",
        "ALTER TABLE fencepost_producers DROP COLUMN has_markers",
    ),
    _check_markers,
)
# Positions are compared, and groups have no generations since version 3. The nullable column of the staged positions is
# kept: SQLite and MariaDB have no repeatable statement that drops it.
_NO_GENERATIONS = Migration(("DROP TABLE IF EXISTS fencepost_groups",))
PART = Part("producers", 3, TABLES, {2: _TOPICS, 3: _NO_GENERATIONS})


class Held(NamedTuple):
    """A transaction, and the other columns of its row. From `hold`, the row is locked."""

    transaction: Transaction
    waiting: frozenset[TopicPartition] = frozenset()
    """Partitions whose readers wait for a marker that is not written yet."""
    coordinator_epoch: int = 0
    """Increased by each coordinator that takes over writing the markers."""
    now_ms: int = NONE


def hold(
    database: Database, connection: Connection, *, pid: int | None = None, transactional_id: str = ""
) -> Held | None:
    """Lock and read the row of a transactional id until the end of the database transaction. None if there is no row.

    By pid, also finds the id that had this pid until its last rotation, because the caller may not know the new pid.
    """
    return _read(database, connection, pid, transactional_id, is_locked=True)


def read_unlocked(
    database: Database, connection: Connection, *, pid: int | None = None, transactional_id: str = ""
) -> Held | None:
    """Read the row as `hold` does, without a lock."""
    return _read(database, connection, pid, transactional_id, is_locked=False)


def list_held(database: Database, connection: Connection, which: ColumnElement[bool]) -> list[Held]:
    """Return all rows that meet a condition, ordered by transactional id, without a lock."""
    query = select(PRODUCERS, database.clock_ms).where(which)
    return [_held(row) for row in connection.execute(query.order_by(PRODUCERS.c.transactional_id))]


def _read(
    database: Database, connection: Connection, pid: int | None, transactional_id: str, is_locked: bool
) -> Held | None:
    if database.is_mariadb and is_locked and pid is not None:
        return _hold_by_pid(database, connection, pid)
    query = _QUERIES[database.kind.name, pid is not None, is_locked]
    found = connection.execute(query, {"id": transactional_id} if pid is None else {"pid": pid}).one_or_none()
    return None if found is None else _held(found)


def _hold_by_pid(database: Database, connection: Connection, pid: int) -> Held | None:
    """Lock a row by pid on MariaDB, which waits for every row that it reads: find the id without a lock first."""
    while (seen := _read(database, connection, pid, "", is_locked=False)) is not None:
        held = _read(database, connection, None, seen.transaction.transactional_id, is_locked=True)
        if held is not None and pid in (held.transaction.pid, held.transaction.previous_pid):
            return held if held.transaction.state is not State.DEAD else None
    return None


def _query(kind: str, is_by_pid: bool, is_locked: bool) -> Select[Any]:
    which = PRODUCERS.c.transactional_id == bindparam("id")
    if is_by_pid:
        which = (PRODUCERS.c.pid == bindparam("pid")) | (PRODUCERS.c.previous_pid == bindparam("pid"))
        which &= PRODUCERS.c.state != int(State.DEAD)
    query = select(PRODUCERS, literal_column(KINDS[kind].clock, Int64)).where(which)
    return query.with_for_update(of=PRODUCERS) if is_locked else query


# Built once: building a query takes longer than running it.
_QUERIES = {which: _query(*which) for which in product(KINDS, (False, True), (False, True))}


def _held(row: Row[Any]) -> Held:
    transaction = Transaction(
        transactional_id=row.transactional_id,
        pid=row.pid,
        epoch=row.epoch,
        last_epoch=row.last_epoch,
        previous_pid=row.previous_pid,
        next_pid=row.next_pid,
        state=State(row.state),
        timeout_ms=row.timeout_ms,
        partitions=from_list(row.partitions),
        started_ms=row.started_ms,
        updated_ms=row.updated_ms,
    )
    return Held(transaction, from_list(row.waiting), row.coordinator_epoch, row[-1])


def save(connection: Connection, held: Held) -> None:
    """Write a transaction and the other columns to its row."""
    connection.execute(_SAVE, row_of(held) | {"id": held.transaction.transactional_id})


def save_if(connection: Connection, before: Held, after: Transaction) -> bool:
    """Write a transaction to a row that is not locked, if it is unchanged since `before`. Returns whether it wrote.

    Does not wait for a locked row, and then writes nothing. Only for ids without an open transaction: there, each step
    changes pid, epoch or state.
    """
    was = before.transaction
    found = {"id": was.transactional_id, "was_pid": was.pid, "was_epoch": was.epoch, "was_state": int(was.state)}
    return connection.execute(_SAVE_IF, row_of(before._replace(transaction=after)) | found).rowcount == 1


def row_of(held: Held) -> dict[str, Any]:
    """Return the row of a transaction. Its fields are columns of the same names."""
    return vars(held.transaction) | {
        "state": int(held.transaction.state),
        "partitions": to_list(held.transaction.partitions),
        "waiting": to_list(held.waiting),
        "coordinator_epoch": held.coordinator_epoch,
    }


_SAVE = (
    PRODUCERS.update()
    .where(PRODUCERS.c.transactional_id == bindparam("id"))
    .values({name: bindparam(name) for name in (it.name for it in PRODUCERS.c) if name != "transactional_id"})
)

_UNCHANGED = PRODUCERS.alias("unchanged")
_SAVE_IF = _SAVE.where(
    PRODUCERS.c.transactional_id
    == select(_UNCHANGED.c.transactional_id)
    .where(
        (_UNCHANGED.c.transactional_id == bindparam("id"))
        & (_UNCHANGED.c.pid == bindparam("was_pid"))
        & (_UNCHANGED.c.epoch == bindparam("was_epoch"))
        & (_UNCHANGED.c.state == bindparam("was_state"))
    )
    .with_for_update(skip_locked=True)
    .scalar_subquery()
)


def is_late_since(column: ColumnElement[int], now_ms: ColumnElement[int]) -> ColumnElement[bool]:
    """Return `transaction.is_late` for a column of `PRODUCERS`, as a condition."""
    return (column + PRODUCERS.c.timeout_ms < now_ms) | (column - PRODUCERS.c.timeout_ms > now_ms)


def end(connection: Connection, before: Transaction, after: Transaction) -> None:
    """Record a decision, and commit or discard the staged positions."""
    outcome = PREPARED[after.state]
    decision = {"pid": before.pid, "epoch": before.epoch, "outcome": outcome, "decided_ms": after.updated_ms}
    connection.execute(DECISIONS.insert().values(decision))
    if outcome == "commit":
        _move_positions(connection, before.transactional_id)
    if before.state is State.ONGOING:
        connection.execute(STAGED.delete().where(STAGED.c.transactional_id == before.transactional_id))


def _move_positions(connection: Connection, transactional_id: str) -> None:
    """Commit the staged positions. Locks in key order.

    Raises TransactionAbortableError if another transaction has moved one of them.
    """
    query = select(STAGED).where(STAGED.c.transactional_id == transactional_id).order_by(*STAGED.primary_key)
    staged = connection.execute(query).all()
    moved = []
    for group in sorted({it.group_id for it in staged}):
        mine = {it.partition: it for it in staged if it.group_id == group}
        which = (POSITIONS.c.group_id == group) & POSITIONS.c.partition.in_(mine)
        lock_rows = select(POSITIONS).where(which).order_by(POSITIONS.c.partition).with_for_update()
        locked = connection.execute(lock_rows).all()
        if len(locked) < len(mine):
            # Someone has deleted rows, to read the input again: a missing position is compared as None.
            for partition in sorted(mine.keys() - {it.partition for it in locked}):
                insert_if_missing(connection, POSITIONS, {"group_id": group, "partition": partition, "position": None})
            locked = connection.execute(lock_rows).all()
        for found in locked:
            check_position(group, found.partition, mine[found.partition].expected, found.position)
            moved.append({"g": group, "p": found.partition, "position": mine[found.partition].position})
    if moved:
        which = (POSITIONS.c.group_id == bindparam("g")) & (POSITIONS.c.partition == bindparam("p"))
        connection.execute(POSITIONS.update().where(which).values(position=bindparam("position")), moved)


def check_position(group: str, partition: str, expected: int, found: int | None) -> None:
    """Raise TransactionAbortableError if `found` is not the position where the transaction began. None counts as 0."""
    if (found or 0) != expected:
        raise TransactionAbortableError(
            f"group {group!r}, partition {from_text(partition)!r}: the position is {found}, but {expected} was "
            "expected: another transaction has moved it. Abort, then read the positions again"
        )


def to_list(partitions: frozenset[TopicPartition]) -> str:
    """Return the stored text of output partitions: [["clicks", 0], ["clicks", 3]]."""
    return json.dumps(sorted(partitions))


def from_list(text: str) -> frozenset[TopicPartition]:
    return frozenset((topic, number) for topic, number in json.loads(text))


def to_text(partition: Partition) -> str:
    """Return the stored text of an input partition: 3, "clicks", ["clicks", 3]."""
    return json.dumps(partition)


def from_text(text: str) -> Partition:
    found = json.loads(text)
    return tuple(found) if isinstance(found, list) else found


def check_inputs(partitions: Iterable[Partition]) -> None:
    """Raise PolicyError for an input partition that is not a number, a name, or a tuple of these."""
    for it in partitions:
        parts = it if isinstance(it, tuple) else (it,)
        is_known = parts and all(isinstance(part, str) or is_integer(part) for part in parts)
        if not is_known:
            raise PolicyError(f"partition {it!r}: expected a number, a name, or a tuple of numbers and names")


def checked_outputs(partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
    """Return output partitions as a set of (topic, number). Raises PolicyError for other values."""
    found = list(partitions)
    for it in found:
        is_pair = isinstance(it, tuple) and len(it) == 2 and isinstance(it[0], str) and it[0] != ""
        is_number = is_pair and is_integer(it[1], 0, 2**31 - 1)
        if not is_number:
            raise PolicyError(
                f"partition {it!r}: expected (topic, number), the topic a name of at least one character, the "
                "number 0 to 2147483647"
            )
    return frozenset(found)
