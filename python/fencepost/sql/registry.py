"""Producer identities: pids, epochs, and transactional ids that outlive a process."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from fencepost.errors import ConcurrentTransactionError, OutcomeUnknownError, PolicyError, StoreError
from fencepost.inputs import is_integer, is_text, shown
from fencepost.sql.database import IDLE_TIMEOUT_MS, LOCK_TIMEOUT_MS, Database
from fencepost.sql.pids import PidBlocks
from fencepost.sql.transaction import OPENABLE, PREPARED, ProducerIdentity, State, Transaction
from fencepost.sql.transaction_tables import (
    PART,
    PRODUCERS,
    Held,
    end,
    hold,
    read_unlocked,
    row_of,
    save,
    save_if,
)
from fencepost.sql.upserts import insert_if_missing

KEPT_ALIVE = 4
"""How often an id is kept alive within its expiry: it survives an outage of three quarters of the expiry."""
DAY_MS = 24 * 3600 * 1000
ID_MAX = 1000
"""Maximum characters of a transactional id, on MariaDB bytes of UTF-8: the limit of a database index."""


class ProducerRegistry:
    """Issues producer ids (pids) and epochs. Many processes may have a registry on the same database.

    A transactional id expires if it is unused for `expiry_ms`. If it is used again, it gets a fresh pid, with the old
    one as `previous_pid` while its tombstone is kept. A running `SequencedProducer` keeps its id alive; otherwise call
    `keep_alive` every `keep_alive_ms`. All times are by the database's clock.

    Args:
        engine: Of SQLite, PostgreSQL or MariaDB.
        block_size: Pids that a process reserves at a time. The rest of its last block is never used.
        expiry_ms: How long an unused transactional id is kept.
        tombstone_ms: How long an expired id is remembered, counted from its expiry.
        timeout_max_ms: The maximum `timeout_ms` of `init_producer`.
        lock_timeout_ms: How long a statement waits for a lock before StoreError, on PostgreSQL and MariaDB. Applies to
            all transactions of the registry and of its coordinators. None: the session's setting.
        idle_timeout_ms: How long a transaction may be idle between two statements, on PostgreSQL and MariaDB. The
            database then undoes it, so a stopped process does not block its successor for longer. None: the session's
            setting.

    Raises:
        PolicyError: An engine for another database, or an invalid limit.
        SchemaError: Another version of this package created the tables. Nothing has changed.
        StoreError: The database does not answer. Every call can raise this error.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        block_size: int = 1000,
        expiry_ms: int = 7 * DAY_MS,
        tombstone_ms: int = 365 * DAY_MS,
        timeout_max_ms: int = 900_000,
        lock_timeout_ms: int | None = LOCK_TIMEOUT_MS,
        idle_timeout_ms: int | None = IDLE_TIMEOUT_MS,
    ) -> None:
        bounds = {"block_size": block_size, "expiry_ms": expiry_ms, "tombstone_ms": tombstone_ms}
        for name, value in (bounds | {"timeout_max_ms": timeout_max_ms}).items():
            if not is_integer(value, 1):
                raise PolicyError(f"{name}={value!r} is not a whole number of at least 1")
        self.database = Database(engine, lock_timeout_ms=lock_timeout_ms, idle_timeout_ms=idle_timeout_ms)
        self.expiry_ms = expiry_ms
        self.tombstone_ms = tombstone_ms
        self.timeout_max_ms = timeout_max_ms
        self.keep_alive_ms = max(1, min(expiry_ms // KEPT_ALIVE, DAY_MS))
        self.pids = PidBlocks(self.database, block_size)
        self.database.create_tables(PART)

    def init_producer(
        self, transactional_id: str | None = None, timeout_ms: int = 60_000, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """Return the identity of a producer: a fresh pid, or the pid of an id with its next epoch.

        Args:
            transactional_id: None returns a fresh pid with epoch 0, and stores nothing. An id returns its pid with the
                next epoch. This fences the previous producer and aborts its open transaction. The pid is fresh if its
                epochs are used up or the id has expired.
            timeout_ms: How long a transaction may stay open, from 1 to `timeout_max_ms` milliseconds.
            expected: The identity of a producer that continues after an error. It gets the next epoch only if no other
                producer has taken over. If an earlier call with this argument succeeded but its response was lost, it
                gets the identity of that response.

        Raises:
            PolicyError: The id is empty or too long, or the time-out is out of range. Nothing has changed.
            FencedError: Another producer has taken over since `expected`. Nothing has changed.
            ConcurrentTransactionError: A transaction of this id is decided, and its partitions wait for markers. An
                open transaction is now aborted. Call again when the markers are written:
                `TransactionCoordinator.init_producer` writes them itself, `recover` writes those of all ids.
            CapacityError: All pids are issued.
            StoreError: The database does not answer. Call again. An epoch may be skipped.
        """
        if transactional_id is None:
            return ProducerIdentity(self.pids.take(), 0)
        self._check(transactional_id, timeout_ms)
        fresh_pid = self.pids.take()
        found = self._unlocked(transactional_id, timeout_ms, expected, fresh_pid)
        while found is None:
            # If the outcome of the commit is unknown, an epoch may be skipped that no producer got.
            with suppress(OutcomeUnknownError):
                found = self.database.transaction(
                    lambda connection: self._initialized(connection, transactional_id, timeout_ms, expected, fresh_pid)
                )
        # After an error the pid stays taken, because the row that uses it may be committed.
        if fresh_pid not in (found.pid, found.next_pid):
            self.pids.give_back(fresh_pid)
        if found.state in PREPARED:
            raise ConcurrentTransactionError(
                f"transactional id {transactional_id!r}: its open transaction is aborted now, and partitions wait for "
                "their markers. Call recover() on a coordinator, which writes them, then call again"
            )
        return found.identity

    def keep_alive(self, identity: ProducerIdentity) -> None:
        """Restart the expiry of the transactional id that has this identity.

        Has no effect for a replaced or expired identity. Ids with an open transaction do not expire.

        Raises:
            StoreError, OutcomeUnknownError: The database does not answer. Call again.
        """
        mine = (PRODUCERS.c.pid == identity.pid) & (PRODUCERS.c.epoch == identity.epoch)
        may_expire = PRODUCERS.c.state.in_([int(it) for it in OPENABLE])
        used = {"updated_ms": self.database.clock_ms}
        update = PRODUCERS.update().where(mine & may_expire).values(used)
        self.database.transaction(lambda connection: connection.execute(update))

    def expire(self) -> int:
        """Expire transactional ids that are unused for `expiry_ms`, and delete tombstones after `tombstone_ms`.

        Returns the number of expired ids. Call this periodically to delete rows. Without it, ids expire only when they
        are used again.
        """
        return self.database.transaction(self._expire)

    def _expire(self, connection: Connection) -> int:
        now_ms = self.database.now_ms(connection)
        may_expire = PRODUCERS.c.state.in_([int(it) for it in OPENABLE])
        is_idle = may_expire & (PRODUCERS.c.updated_ms <= now_ms - self.expiry_ms)
        is_gone = (PRODUCERS.c.state == int(State.DEAD)) & (PRODUCERS.c.updated_ms <= now_ms - self.tombstone_ms)
        connection.execute(PRODUCERS.delete().where(is_gone))
        dead = {"state": int(State.DEAD), "updated_ms": now_ms}
        return connection.execute(PRODUCERS.update().where(is_idle).values(dead)).rowcount

    def _check(self, transactional_id: str, timeout_ms: int) -> None:
        if not is_text(transactional_id) or not 1 <= len(transactional_id) <= ID_MAX:
            raise PolicyError(
                f"transactional_id={transactional_id!r}: expected a text of 1 to {ID_MAX} characters of UTF-8, or None"
            )
        if self.database.is_mariadb and len(transactional_id.encode()) > ID_MAX:
            raise PolicyError(
                f"transactional_id={shown(transactional_id)}: MariaDB accepts at most {ID_MAX} bytes of UTF-8"
            )
        if not is_integer(timeout_ms, 1, self.timeout_max_ms):
            raise PolicyError(f"timeout_ms={timeout_ms!r} is outside 1..={self.timeout_max_ms}")

    def _unlocked(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None, fresh_pid: int
    ) -> Transaction | None:
        """Initialize without a lock in the common case: a known id, no open transaction, no other session.

        Returns None in all other cases, and on MariaDB, whose updates cannot skip a locked row.
        """
        if self.database.is_mariadb:
            return None

        def work(connection: Connection) -> Transaction | None:
            held = read_unlocked(self.database, connection, transactional_id=transactional_id)
            if held is None or held.transaction.state not in OPENABLE or self._is_expired(held):
                return None
            after = held.transaction.initialized(timeout_ms, held.now_ms, fresh_pid, expected)
            return after if save_if(connection, held, after) else None

        try:
            return self.database.statements(work)
        except (DBAPIError, StoreError):
            return None  # repeated under a lock, which reads the outcome

    def _is_expired(self, held: Held) -> bool:
        return held.transaction.is_expired(held.now_ms, self.expiry_ms)

    def _initialized(
        self,
        connection: Connection,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        fresh_pid: int,
    ) -> Transaction:
        held = hold(self.database, connection, transactional_id=transactional_id)
        if held is None:
            new = Transaction(transactional_id, fresh_pid)
            new = new.initialized(timeout_ms, self.database.now_ms(connection), fresh_pid, expected)
            if insert_if_missing(connection, PRODUCERS, row_of(Held(new))):
                return new
            # Another session has inserted it in the meantime.
            held = hold(self.database, connection, transactional_id=transactional_id)
            assert held is not None
        before, now_ms = held.transaction, held.now_ms
        if before.state is State.DEAD or self._is_expired(held):
            before = Transaction(transactional_id, fresh_pid, previous_pid=before.pid)
        after = before.initialized(timeout_ms, now_ms, fresh_pid, expected)
        if after.state in PREPARED:
            end(connection, before, after)
            if not held.waiting:
                # Kafka's client would have to call again. Without markers to wait for, this completes at once.
                after = after.completed(now_ms).initialized(timeout_ms, now_ms, fresh_pid, expected)
        save(connection, held._replace(transaction=after))
        return after
