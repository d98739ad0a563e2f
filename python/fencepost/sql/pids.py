"""Producer ids in blocks: a process reserves a block in the database, and assigns its pids from memory."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress

from sqlalchemy import Connection, select

from fencepost.errors import CapacityError, OutcomeUnknownError
from fencepost.sql.database import Database
from fencepost.sql.transaction_tables import PIDS
from fencepost.sql.upserts import insert_if_missing

PID_MAX = 2**63 - 2
"""The highest pid. The next number must fit into a 64-bit column too."""


class PidBlocks:
    """Assigns unique pids. Thread-safe, and safe after a fork.

    When a process ends, the remaining pids of its block stay unused.
    """

    def __init__(self, database: Database, block_size: int) -> None:
        self.database = database
        self.block_size = block_size
        self._lock = threading.Lock()
        self._rest: list[int] = []
        _ALL.add(self)

    def take(self) -> int:
        """Return a new pid.

        Do not call this within a database transaction: the reservation of a block must be committed before its pids
        are used.

        Raises:
            CapacityError: All pids are assigned.
        """
        with self._lock:
            while not self._rest:
                # If the outcome of the commit is unknown, reserve another block. The first one may stay unused.
                with suppress(OutcomeUnknownError):
                    first, count = self.database.transaction(self._reserve)
                    self._rest = list(range(first + count - 1, first - 1, -1))
            return self._rest.pop()

    def give_back(self, pid: int) -> None:
        """Return an unused pid, so that `take` assigns it next."""
        with self._lock:
            self._rest.append(pid)

    def _reserve(self, connection: Connection) -> tuple[int, int]:
        insert_if_missing(connection, PIDS, {"id": 1, "next_pid": 0})
        first: int = connection.execute(select(PIDS.c.next_pid).where(PIDS.c.id == 1).with_for_update()).scalar_one()
        count = min(self.block_size, PID_MAX + 1 - first)
        if count <= 0:
            raise CapacityError(f"all pids up to {PID_MAX} are assigned", limit=PID_MAX)
        connection.execute(PIDS.update().where(PIDS.c.id == 1).values(next_pid=first + count))
        return first, count

    def forget(self) -> None:
        """Drop the block after a fork, because it belongs to the parent process."""
        self._lock = threading.Lock()
        self._rest = []


_ALL: weakref.WeakSet[PidBlocks] = weakref.WeakSet()


def _forget_all() -> None:
    for blocks in _ALL:
        blocks.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
