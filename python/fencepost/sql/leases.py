"""Which daemon does which task, and when it is due: a row a task, so that one of any number does it.

A lease saves work and logs; correctness does not rest on it. Each task may run twice at once, for instance where a
daemon was stopped in it and wakes when another has taken over.
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
    literal_column,
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
    # host/process/number of chance, of one run; "" where nobody has it.
    Column("owner", String(320), nullable=False),
    Column("leased_until_ms", Int64, nullable=False),
    Column("due_ms", Int64, nullable=False),
    # Of the last run that came to its end; 0 before the first.
    Column("finished_ms", Int64, nullable=False),
    Column("succeeded_ms", Int64, nullable=False),
    Column("failures", Integer, nullable=False),
    **INNODB,
)
RENEWED = 3
"""How often a lease is renewed within its time."""


class TaskState(NamedTuple):
    """How a task stands, by the database and its clock."""

    task: str
    is_running: bool
    succeeded_ms_ago: int | None
    """None: it never has."""
    failures: int
    """Runs in a row that have failed."""


class Leases:
    """The tasks of a database, for one daemon. Raises StoreError in every call where the database does not answer."""

    def __init__(self, database: Database, lease_ms: int) -> None:
        self.database, self.lease_ms = database, lease_ms
        database.create_tables(PART)

    def take(self, task: str) -> str | None:
        """The right to run a task that is due and that nobody runs, until the lease ends; None where it is not."""
        owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:16]}"
        row = dict.fromkeys(("leased_until_ms", "due_ms", "finished_ms", "succeeded_ms", "failures"), 0)
        is_free = (TASKS.c.due_ms <= self._now) & (TASKS.c.leased_until_ms <= self._now)
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
        """Renews the lease while the block runs."""
        is_done = Event()
        renewed = update(TASKS).where(self._is(task, owner)).values(leased_until_ms=self._now + self.lease_ms)

        def renew() -> None:
            while not is_done.wait(self.lease_ms / 1000 / RENEWED):
                try:
                    self.database.transaction(lambda connection: connection.execute(renewed))
                except FencepostError:
                    continue  # in an outage the task fails too

        thread = Thread(target=renew, name=f"fencepost-lease-{task}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def finish(self, task: str, owner: str, *, due_in_ms: int, is_failed: bool) -> bool:
        """Gives the task back, due again after this time. False: another daemon had taken it over."""
        values = {"owner": "", "leased_until_ms": 0, "due_ms": self._now + due_in_ms, "finished_ms": self._now}
        values |= {"failures": TASKS.c.failures + 1} if is_failed else {"failures": 0, "succeeded_ms": self._now}
        given_back = update(TASKS).where(self._is(task, owner)).values(values)
        return self.database.transaction(lambda connection: connection.execute(given_back).rowcount == 1)

    def states(self) -> list[TaskState]:
        """How the tasks stand, by name."""
        now = self._now
        query = select(TASKS.c.task, TASKS.c.leased_until_ms > now, TASKS.c.succeeded_ms, now, TASKS.c.failures)
        found = self.database.transaction(lambda it: it.execute(query.order_by(TASKS.c.task)).all())
        return [
            TaskState(task, bool(is_running), None if not succeeded_ms else now_ms - succeeded_ms, failures)
            for task, is_running, succeeded_ms, now_ms, failures in found
        ]

    @property
    def _now(self) -> ColumnElement[int]:
        return literal_column(self.database.clock, Int64)

    @staticmethod
    def _is(task: str, owner: str) -> ColumnElement[bool]:
        return (TASKS.c.task == task) & (TASKS.c.owner == owner)
