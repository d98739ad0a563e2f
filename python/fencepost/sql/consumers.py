"""Consumers in the database: their settings, horizons and source positions, and the tables of their claims.

table                    one row per
fencepost_consumers      consumer: its permanent settings, the types of its keys, its horizon
fencepost_claims         (consumer, pid, partition): the accepted sequence numbers, see `sequence_claims`
fencepost_holes          missing range of a claim, see `holes`
fencepost_messages       (consumer, message): the processed messages, see `messages`
fencepost_applied        (consumer, source): its position
fencepost_dead_letters   dead letter of a `ConsumerLoop`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    ForeignKey,
    Integer,
    MetaData,
    Result,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    select,
    text,
    update,
)

from fencepost.errors import BatchError, PolicyError, StateConflictError
from fencepost.inputs import is_text
from fencepost.policy import differences
from fencepost.sql.columns import INNODB, Int64, LongBinary, LongText, key_text
from fencepost.sql.database import Database
from fencepost.sql.migrations import Migration, Part
from fencepost.sql.upserts import insert_if_missing

TABLES = MetaData()
_DEAD = MetaData()
DEAD_LETTERS_PART = Part("dead_letters", 1, _DEAD)

KEY_BYTES_MAX = 1000
"""Maximum size of a pid or partition as text. An index entry with both has at most 2704 bytes on PostgreSQL, 3072 on
MariaDB."""
ID_BYTES_MAX = 2000
"""Maximum size of a message id as text, for the same reason."""
# Comparison by bytes is faster, and gives every process the same order of locks.
_Plain = Text().with_variant(Text(collation="C"), "postgresql")
_Key, _Id, _Name = key_text(_Plain, KEY_BYTES_MAX), key_text(_Plain, ID_BYTES_MAX), key_text(String(255), 1020)
# Claims are updated often. Half of each page stays free, so that a new row version fits into the same page and no index
# changes (a heap-only tuple).
_HALF_FULL = {"fillfactor": 50}

CONSUMERS = Table(
    "fencepost_consumers",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("name", _Name, nullable=False),
    Column("settings", LongText, nullable=False),
    Column("key_types", Text),
    Column("horizon_ms", Int64),
    Column("created_ms", Int64, nullable=False),
    UniqueConstraint("name"),
    **INNODB,
)
CLAIMS = Table(
    "fencepost_claims",
    TABLES,
    Column("consumer", ForeignKey("fencepost_consumers.id"), primary_key=True),
    Column("pid", _Key, primary_key=True),
    Column("partition", _Key, primary_key=True),
    Column("epoch", SmallInteger),
    Column("first", Int64, nullable=False),
    Column("last", Int64, nullable=False),
    Column("last_timestamp", Int64),
    Column("changed_ms", Int64, nullable=False),
    Column("more", LongText),
    postgresql_with=_HALF_FULL,
    **INNODB,
)
HOLES = Table(
    "fencepost_holes",
    TABLES,
    # No foreign key, as for messages. The key has the last number of a hole: the first hole whose last number is not
    # below n is the only one that can contain n.
    Column("consumer", Integer, primary_key=True, autoincrement=False),
    Column("pid", _Key, primary_key=True),
    Column("partition", _Key, primary_key=True),
    Column("epoch", SmallInteger, primary_key=True, autoincrement=False),
    Column("last", Int64, primary_key=True, autoincrement=False),
    Column("first", Int64, nullable=False),
    Column("timestamp", Int64),
    **INNODB,
)
MESSAGES = Table(
    "fencepost_messages",
    TABLES,
    # No foreign key: its check for every message would take longer than the rest of the insertion.
    Column("consumer", Integer, primary_key=True, autoincrement=False),
    Column("id", _Id, primary_key=True),
    Column("version", Int64, primary_key=True, autoincrement=False),
    Column("timestamp", Int64),
    Column("changed_ms", Int64, nullable=False),
    **INNODB,
)
POSITIONS = Table(
    "fencepost_applied",
    TABLES,
    Column("consumer", ForeignKey("fencepost_consumers.id"), primary_key=True),
    Column("source", _Name, primary_key=True),
    Column("position", Int64, nullable=False),
    Column("changed_ms", Int64, nullable=False),
    postgresql_with=_HALF_FULL,
    **INNODB,
)
# Since version 2 holes are rows. Holes in the JSON of a claim become rows when the claim next changes.
PART = Part("sink", 2, TABLES, {2: Migration(tables=(HOLES,))})
DEAD_LETTERS = Table(
    "fencepost_dead_letters",
    _DEAD,
    Column("consumer", _Name, primary_key=True),
    Column("topic", _Name, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", Int64, primary_key=True, autoincrement=False),
    Column("timestamp", Int64),
    Column("key", LongBinary),
    Column("value", LongBinary),
    Column("headers", LongText),
    Column("error_type", LongText, nullable=False),
    Column("error", LongText, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("created_ms", Int64, nullable=False),
    **INNODB,
)


@dataclass(frozen=True)
class Storage:
    """The table of one kind of claims.

    `key`: the columns of their key. `timestamp`: the column of their age. `beside`: a table with further rows of each
    claim, by the same key.
    """

    table: Table
    key: tuple[str, ...]
    timestamp: str
    beside: Table | None = None


STORAGES = {
    "sequence": Storage(CLAIMS, ("pid", "partition"), "last_timestamp", HOLES),
    "message_id": Storage(MESSAGES, ("id", "version"), "timestamp"),
}
"""The tables by kind of claims."""


@dataclass(frozen=True)
class Consumer:
    """A consumer of the database.

    `id`: the number in its rows. `keeps_time`: whether its claims have timestamps, so that they can expire by age.
    """

    database: Database
    id: int
    name: str
    keeps_time: bool

    @staticmethod
    def open(database: Database, name: str, settings: Mapping[str, Any]) -> Consumer:
        """Return the consumer of this name. Create it if it does not exist.

        Raises:
            PolicyError: An invalid name, or the consumer has other settings. Settings are permanent, because they
                define the meaning of claims.
        """
        if not is_text(name) or not 0 < len(name) <= 255:
            raise PolicyError(f"consumer_id={name!r}: expected 1 to 255 characters of UTF-8")
        database.create_tables(PART)
        wanted = dict(settings)

        def work(connection: Connection) -> tuple[int, str]:
            query = select(CONSUMERS.c.id, CONSUMERS.c.settings).where(CONSUMERS.c.name == name)
            row = connection.execute(query).one_or_none()
            if row is None:
                made: dict[str, Any] = {"name": name, "settings": json.dumps(wanted, sort_keys=True)}
                made["created_ms"] = database.now_ms(connection)
                if database.is_sqlite:
                    made["id"] = _unused_id(connection)
                insert_if_missing(connection, CONSUMERS, made, ("name",))
                row = connection.execute(query).one()
            return row.id, row.settings

        number, found = database.settled(work)
        known = json.loads(found)
        if known != wanted:
            differing = differences(known, wanted, "found", "given")
            raise PolicyError(
                f"consumer {name!r} exists with other settings: {differing}. Its settings cannot change, because "
                "they define the meaning of its claims. Use the same settings. Another consumer_id has no claims: it "
                "applies events that arrive again"
            )
        return Consumer(database, number, name, bool(wanted.get("timestamp")))

    @staticmethod
    def find(database: Database, name: str) -> tuple[Consumer, Storage]:
        """Return an existing consumer and the storage of its claims.

        Raises:
            PolicyError: No consumer has this name.
            SchemaError: As `Database.create_tables`.
        """
        database.create_tables(PART)  # a newer version may keep more of a claim than this one would remove
        query = select(CONSUMERS.c.id, CONSUMERS.c.settings).where(CONSUMERS.c.name == name)
        row = database.transaction(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise PolicyError(f"consumer {name!r} does not exist in this database: check the name and the database")
        settings = json.loads(row.settings)
        return Consumer(database, row.id, name, bool(settings.get("timestamp"))), STORAGES[settings["claim"]]

    def check_known(self, connection: Connection) -> None:
        """Check once per connection that the number still means this consumer: a database that was restored, or a
        replica that lags, may lack it, and give its number to the next new consumer.

        Raises:
            PolicyError: The number belongs to no consumer, or to another one.
        """
        known: set[tuple[int, str]] = connection.info.setdefault("fencepost_consumers", set())
        if (self.id, self.name) in known:
            return
        found = connection.execute(select(CONSUMERS.c.name).where(CONSUMERS.c.id == self.id)).scalar_one_or_none()
        if found != self.name:
            owner = "no consumer" if found is None else f"consumer {found!r}"
            raise PolicyError(
                f"consumer {self.name!r} is no longer in this database: its number {self.id} is that of {owner}. "
                "The database was restored from an older backup, or a replica lacks the last transactions. Nothing of "
                "this call was applied. Create the SqlSink again"
            )
        known.add((self.id, self.name))

    def horizon_ms(self, connection: Connection) -> int | None:
        """Return the timestamp above which rows can be judged, in ms. It does not rise during this transaction."""
        if not self.keeps_time:
            return None
        found: int | None = self._locked(connection, is_shared=True).scalar_one()
        return found

    def raise_horizon(self, connection: Connection, horizon_ms: int) -> int:
        """Raise the horizon, unless it is already higher. Return the resulting horizon.

        Waits for the transactions that have read it.
        """
        before = self._locked(connection, is_shared=False).scalar_one()
        if before is not None and before >= horizon_ms:
            return int(before)
        connection.execute(update(CONSUMERS).where(CONSUMERS.c.id == self.id).values(horizon_ms=horizon_ms))
        return horizon_ms

    def _locked(self, connection: Connection, *, is_shared: bool) -> Result[Any]:
        """Return the horizon, and lock it until the transaction ends: shared against changes, else exclusively."""
        query = select(CONSUMERS.c.horizon_ms).where(CONSUMERS.c.id == self.id)
        if self.database.is_mariadb:
            # MariaDB has no other lock that ends with the transaction. PostgreSQL would write to the row for each lock.
            query = query.with_for_update(read=is_shared)
        elif not self.database.is_sqlite:
            # The lock is a separate statement, so that the next one sees commits that happened during the wait.
            function = "pg_advisory_xact_lock_shared" if is_shared else "pg_advisory_xact_lock"
            connection.execute(text(f"SELECT {function}({_LOCK_CLASS}, :id)"), {"id": self.id})
        return connection.execute(query)

    def check_key_types(self, connection: Connection, found: Mapping[str, str], names: Mapping[str, str]) -> None:
        """Store the types of the key columns with the first claim, and refuse other types afterwards.

        `names`: the names of these columns in the input, where they differ.

        Committed types are permanent, so they are read once per connection. Types that this transaction stores may be
        rolled back.

        Raises:
            BatchError: The keys have other types than the claims. Keys of different types can have the same text.
        """
        # Per connection: a restored database, or a replica that lags, may lack the types.
        stored: dict[tuple[int, str], str] = connection.info.setdefault("fencepost_key_types", {})
        known = stored.get((self.id, self.name))
        if known is None:
            query = select(CONSUMERS.c.key_types).where(CONSUMERS.c.id == self.id)
            known = connection.execute(query).scalar_one()
            if known is not None:
                stored[self.id, self.name] = known
        if known is None:
            first = update(CONSUMERS).where(CONSUMERS.c.id == self.id, CONSUMERS.c.key_types.is_(None))
            connection.execute(first.values(key_types=json.dumps(dict(found), sort_keys=True)))
            known = connection.execute(query).scalar_one()
        types = json.loads(known)
        for column in types.keys() | found.keys():
            if types.get(column) != found.get(column):
                name = names.get(column, column)
                raise BatchError(
                    f"column '{name}': is of type {found.get(column)}, but the claims of consumer {self.name!r} have "
                    f"type {types.get(column)}. Cast the column to it. Nothing of this call was applied",
                    column=name,
                )

    def positions(self, connection: Connection) -> dict[str, int]:
        """Return the position of each source."""
        self.check_known(connection)
        query = select(POSITIONS.c.source, POSITIONS.c.position).where(POSITIONS.c.consumer == self.id)
        return {it.source: it.position for it in connection.execute(query.order_by(POSITIONS.c.source))}

    def begin(self, connection: Connection, positions: Mapping[str, int]) -> dict[str, int]:
        """Store these positions for sources without a position. Return the positions of all these sources."""
        if not positions:
            return {}
        self.check_known(connection)
        now_ms = self.database.now_ms(connection)
        for source in sorted(positions):
            row = {"consumer": self.id, "source": source, "position": positions[source], "changed_ms": now_ms}
            insert_if_missing(connection, POSITIONS, row)
        query = select(POSITIONS.c.source, POSITIONS.c.position).where(POSITIONS.c.consumer == self.id)
        found = connection.execute(query.where(POSITIONS.c.source.in_(list(positions))))
        return {it.source: it.position for it in found}

    def hold(self, connection: Connection, expected: Mapping[str, int]) -> None:
        """Lock the positions of these sources until the transaction ends.

        Raises:
            StateConflictError: A position is not the expected one.
        """
        self.check_known(connection)
        if not expected:
            return
        query = (
            select(POSITIONS.c.source, POSITIONS.c.position)
            .where(POSITIONS.c.consumer == self.id, POSITIONS.c.source.in_(list(expected)))
            .order_by(POSITIONS.c.source)
            .with_for_update()
        )
        found = {it.source: it.position for it in connection.execute(query)}
        for source, position in expected.items():
            if found.get(source) != position:
                raise StateConflictError(
                    f"source '{source}': expected position {position}, found {found.get(source)}: another process of "
                    f"consumer {self.name!r} has moved it. Nothing of this call was applied. Read positions() again "
                    "and continue there"
                )

    def advance(self, connection: Connection, positions: Mapping[str, int]) -> None:
        """Move the sources forward to these positions. A lower position has no effect, as for an old delivery."""
        rows = [{"consumer": self.id, "source": it, "position": positions[it]} for it in sorted(positions)]
        if rows:
            advanced = _ADVANCED_ON_MARIADB if self.database.is_mariadb else _ADVANCED
            connection.execute(text(advanced.format(clock=self.database.clock)), rows)

    def forget_positions(self, connection: Connection, sources: list[str]) -> None:
        """Delete the positions of these sources."""
        self.check_known(connection)
        connection.execute(
            delete(POSITIONS).where(POSITIONS.c.consumer == self.id, POSITIONS.c.source.in_(sorted(sources)))
        )


def _unused_id(connection: Connection) -> int:
    """Return an id that no row has. SQLite issues the id of a deleted consumer again, whose claims may still exist."""
    used = [CONSUMERS.c.id, *(table.c.consumer for table in (CLAIMS, HOLES, MESSAGES, POSITIONS))]
    highest = [connection.execute(select(func.max(column))).scalar() for column in used]
    return max(it or 0 for it in highest) + 1


_ADVANCED = """
INSERT INTO fencepost_applied (consumer, source, position, changed_ms) VALUES (:consumer, :source, :position, {clock})
ON CONFLICT (consumer, source) DO UPDATE SET position = excluded.position, changed_ms = excluded.changed_ms
WHERE excluded.position > fencepost_applied.position
"""
# MariaDB assigns from left to right, so the first assignment reads the old position.
_ADVANCED_ON_MARIADB = """
INSERT INTO fencepost_applied (consumer, source, position, changed_ms) VALUES (:consumer, :source, :position, {clock})
ON DUPLICATE KEY UPDATE changed_ms = IF(VALUES(position) > position, VALUES(changed_ms), changed_ms),
    position = GREATEST(position, VALUES(position))
"""
# The first of the two numbers of a PostgreSQL advisory lock. The second is the consumer's id.
_LOCK_CLASS = 0x66656E63
