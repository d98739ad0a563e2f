"""Leases of the daemon's tasks: one row per task, so that one of several daemons runs it when it is due.

A lease avoids duplicate work and duplicate log lines. Correctness does not depend on it: a task may run twice at the
same time, for example if a daemon is suspended in a task and resumes after another has taken over.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    select,
    update,
)

from fencepost.errors import FencepostError
from fencepost.sql.columns import INNODB, Int64, key_text
from fencepost.sql.database import Database
from fencepost.sql.migrations import Part
from fencepost.sql.upserts import insert_if_missing

TABLES = MetaData()
PART = Part("daemon", 1, TABLES)
TASKS = Table(
    "fencepost_tasks",
    TABLES,
    Column("task", key_text(String(64), 64), primary_key=True),
    # "host/process/random number" of a run; "" if no daemon runs the task.
    Column("owner", String(320), nullable=False),
    Column("leased_until_ms", Int64, nullable=False),
    Column("due_ms", Int64, nullable=False),
    # Times of the last finished and the last successful run; 0 before the first.
    Column("finished_ms", Int64, nullable=False),
    Column("succeeded_ms", Int64, nullable=False),
    Column("failures", Integer, nullable=False),
    **INNODB,
)
RENEWED = 3
"""Number of renewals within the duration of a lease."""
_MINUTE_MS, _DAY_MS = 60_000, 24 * 3600 * 1000


class TaskState(NamedTuple):
    """The state of a task, according to the database and its clock."""

    task: str
    is_running: bool
    succeeded_ms_ago: int | None
    """Time since the last successful run; None if there was none."""
    failures: int
    """Number of consecutive failed runs."""


def lease_max_ms(lease_ms: int) -> int:
    """Return the longest time for which a lease can still be valid. If it ends later, the clock was set back since.

    `lease_ms`: the duration of this process's leases. Another process may have a longer one.
    """
    return max(lease_ms, _DAY_MS)


class Leases:
    """The leases of one daemon. Every method raises StoreError if the database does not respond."""

    def __init__(self, database: Database, lease_ms: int) -> None:
        self.database, self.lease_ms, self._now = database, lease_ms, database.clock_ms
        database.create_tables(PART)

    def take(self, task: str, every_ms: int) -> str | None:
        """Take the lease of a task if it is due and no daemon runs it. Return the owner, or None without a lease.

        `every_ms`: the task's interval, after which it is due at the latest.
        """
        owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:16]}"
        row = dict.fromkeys(("leased_until_ms", "due_ms", "finished_ms", "succeeded_ms", "failures"), 0)
        # Due after more than the interval: the clock was set back since, or the interval was longer. The minute is
        # longer than this statement waits for a lock.
        is_due = (TASKS.c.due_ms <= self._now) | (TASKS.c.due_ms > self._now + every_ms + _MINUTE_MS)
        is_stale = TASKS.c.leased_until_ms > self._now + lease_max_ms(self.lease_ms)
        is_free = is_due & ((TASKS.c.leased_until_ms <= self._now) | is_stale)
        may_take = (TASKS.c.task == task) & (is_free | (TASKS.c.owner == owner))
        taken = update(TASKS).where(may_take).values(owner=owner, leased_until_ms=self._now + self.lease_ms)

        def work(connection: Connection) -> bool:
            if connection.execute(taken).rowcount == 1:
                return True
            is_new = insert_if_missing(connection, TASKS, {"task": task, "owner": "", **row})
            return is_new and connection.execute(taken).rowcount == 1

        return owner if self.database.settled(work) else None

    @contextmanager
    def kept(self, task: str, owner: str) -> Iterator[None]:
        """Renew the lease while the block runs."""
        is_done = Event()
        renewed = update(TASKS).where(self._is(task, owner)).values(leased_until_ms=self._now + self.lease_ms)

        def renew() -> None:
            while not is_done.wait(self.lease_ms / 1000 / RENEWED):
                try:
                    self.database.transaction(lambda connection: connection.execute(renewed))
                except FencepostError:
                    continue  # The task fails in an outage too.

        thread = Thread(target=renew, name=f"fencepost-lease-{task}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def finish(self, task: str, owner: str, *, due_in_ms: int, is_failed: bool) -> bool:
        """Release the lease and set the next due time. Return False if another daemon had taken the task over."""
        values = {"owner": "", "leased_until_ms": 0, "due_ms": self._now + due_in_ms, "finished_ms": self._now}
        values |= {"failures": TASKS.c.failures + 1} if is_failed else {"failures": 0, "succeeded_ms": self._now}
        released = update(TASKS).where(self._is(task, owner)).values(values)
        return self.database.transaction(lambda connection: connection.execute(released).rowcount == 1)

    def states(self) -> list[TaskState]:
        """Return the states of the tasks, sorted by name."""
        now = self._now
        query = select(TASKS.c.task, TASKS.c.leased_until_ms > now, TASKS.c.succeeded_ms, now, TASKS.c.failures)
        found = self.database.transaction(lambda it: it.execute(query.order_by(TASKS.c.task)).all())
        return [
            TaskState(task, bool(is_running), None if not succeeded_ms else now_ms - succeeded_ms, failures)
            for task, is_running, succeeded_ms, now_ms, failures in found
        ]

    @staticmethod
    def _is(task: str, owner: str) -> ColumnElement[bool]:
        return (TASKS.c.task == task) & (TASKS.c.owner == owner)
