"""Who a producer is: pids, epochs, and transactional ids that outlive a process."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Connection, Engine, literal_column
from sqlalchemy.exc import DBAPIError

from fencepost.errors import ConcurrentTransactionError, OutcomeUnknownError, PolicyError, StoreError
from fencepost.inputs import is_text, shown
from fencepost.sql.database import IDLE_TIMEOUT_MS, LOCK_TIMEOUT_MS, Database, Int64
from fencepost.sql.pids import PidBlocks
from fencepost.sql.transaction import OPENABLE, PREPARED, ProducerIdentity, State, Transaction
from fencepost.sql.transaction_tables import (
    PART,
    PRODUCERS,
    Held,
    end,
    hold,
    look,
    row_of,
    save,
    save_if,
)
from fencepost.sql.upserts import insert_if_missing

KEPT_ALIVE = 4
"""How often a name is kept alive within its expiry: it outlives an outage of three quarters of it."""
DAY_MS = 24 * 3600 * 1000
ID_MAX = 1000
"""Characters of a transactional id, on MariaDB bytes of UTF-8: more do not fit into an index of the database."""


class ProducerRegistry:
    """Hands out producer ids and epochs. Any number of processes may have one on the same database.

    Pids come from blocks of `block_size` that each process reserves; what is left of a block when its process ends is
    never used. A transactional id that nobody used for `expiry_ms` expires: it returns with a fresh pid and sees the
    old one as `previous_pid`, as long as its tombstone is kept: `tombstone_ms` from when it expired. A running
    `SequencedProducer` keeps its own alive; others call `keep_alive` every `keep_alive_ms`. Time is the database's
    clock.

    On PostgreSQL and MariaDB, in each transaction of the registry and of the coordinators that have it: a statement
    waits for a lock no longer than `lock_timeout_ms` (StoreError), and a transaction that its process leaves idle for
    `idle_timeout_ms` between two statements is undone, so that a process that was stopped in it blocks its successor no
    longer than that. None: as the session has it.

    Raises:
        PolicyError: an engine for another database, or a bound that is none.
        SchemaError: the tables are of another version of this package. Nothing has changed.
        StoreError: the database does not answer, here and in every call.
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
            if not isinstance(value, int) or value < 1:
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
        """An identity that nobody has had before.

        Without a transactional id: a fresh pid, epoch 0, nothing remembered. With one: the pid it has and the next
        epoch, which fences whoever had the one before and aborts what they left open; a fresh pid where the epochs are
        used up or the id has expired. `timeout_ms` is how long a transaction may stay open, in 1..=`timeout_max_ms`.
        `expected` is for a producer that goes on after an error: it gets the next epoch only if nobody else has taken
        over, and the same one again if only the answer was lost.

        Raises:
            PolicyError: the id is empty or too long, or the time-out out of range. Nothing has changed.
            FencedError: another producer has taken over since `expected`. Nothing has changed.
            ConcurrentTransactionError: a transaction of this id is decided and its partitions wait for markers; if it
                was open, it is aborted now. Ask again once they are written: `TransactionCoordinator.init_producer`
                writes them itself, `recover` does it for all.
            CapacityError: all pids were handed out.
            StoreError: the database does not answer: call again. An epoch may have been passed over.
        """
        if transactional_id is None:
            return ProducerIdentity(self.pids.take(), 0)
        self._check(transactional_id, timeout_ms)
        fresh_pid = self.pids.take()
        found = self._unlocked(transactional_id, timeout_ms, expected, fresh_pid)
        while found is None:
            # If it is lost whether a commit happened, an epoch was passed over that nobody got.
            with suppress(OutcomeUnknownError):
                found = self.database.transaction(
                    lambda connection: self._initialized(connection, transactional_id, timeout_ms, expected, fresh_pid)
                )
        # After an error it stays taken: what it was taken for may have been written all the same.
        if fresh_pid not in (found.pid, found.next_pid):
            self.pids.give_back(fresh_pid)
        if found.state in PREPARED:
            raise ConcurrentTransactionError(
                f"transactional id {transactional_id!r}: its open transaction is aborted now, and partitions wait for "
                "their markers: ask again when they are written"
            )
        return found.identity

    def keep_alive(self, identity: ProducerIdentity) -> None:
        """Puts off the expiry of the transactional id that has this identity: it is in use.

        An identity that was replaced, or that has expired, keeps nothing alive. What is open does not expire anyway.

        Raises:
            StoreError, OutcomeUnknownError: the database does not answer: call again.
        """
        mine = (PRODUCERS.c.pid == identity.pid) & (PRODUCERS.c.epoch == identity.epoch)
        may_expire = PRODUCERS.c.state.in_([int(it) for it in OPENABLE])
        used = {"updated_ms": literal_column(self.database.clock, Int64)}
        update = PRODUCERS.update().where(mine & may_expire).values(used)
        self.database.transaction(lambda connection: connection.execute(update))

    def expire(self) -> int:
        """Lets transactional ids expire that nobody used for `expiry_ms`, and tombstones go after `tombstone_ms`.

        How many ids have expired. For a process that calls it now and then: ids expire without it too, when they are
        used again, but their rows stay.
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
                f"transactional_id={transactional_id!r}: a text of 1 to {ID_MAX} characters of UTF-8 was expected, or "
                "None"
            )
        if self.database.is_mariadb and len(transactional_id.encode()) > ID_MAX:
            raise PolicyError(f"transactional_id={shown(transactional_id)}: MariaDB takes {ID_MAX} bytes of UTF-8")
        if not isinstance(timeout_ms, int) or not 1 <= timeout_ms <= self.timeout_max_ms:
            raise PolicyError(f"timeout_ms={timeout_ms!r} is outside 1..={self.timeout_max_ms}")

    def _unlocked(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None, fresh_pid: int
    ) -> Transaction | None:
        """What is nearly always the case: a known id, nothing open, nobody else. None where it is otherwise.

        MariaDB has no update that passes over a locked row.
        """
        if self.database.is_mariadb:
            return None

        def work(connection: Connection) -> Transaction | None:
            held = look(self.database, connection, transactional_id=transactional_id)
            if held is None or held.transaction.state not in OPENABLE or self._is_expired(held):
                return None
            after = held.transaction.initialized(timeout_ms, held.now_ms, fresh_pid, expected)
            return after if save_if(connection, held, after) else None

        try:
            return self.database.statements(work)
        except (DBAPIError, StoreError):
            return None  # asked again under a lock, which tells what became of it

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
            # Somebody else has made it in the meantime.
            held = hold(self.database, connection, transactional_id=transactional_id)
            assert held is not None
        before, now_ms = held.transaction, held.now_ms
        if before.state is State.DEAD or self._is_expired(held):
            before = Transaction(transactional_id, fresh_pid, previous_pid=before.pid)
        after = before.initialized(timeout_ms, now_ms, fresh_pid, expected)
        if after.state in PREPARED:
            end(connection, before, after)
            if not held.waiting:
                # What Kafka's client would have to come back for is done at once.
                after = after.completed(now_ms).initialized(timeout_ms, now_ms, fresh_pid, expected)
        save(connection, held._replace(transaction=after))
        return after
