"""Producer ids in blocks: a process reserves some in the database and hands them out from memory."""

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
"""The highest pid: the number after it still fits into a column of 64 bits."""


class PidBlocks:
    """Pids that nobody else has. Safe from several threads, and after a fork.

    What is left of a block when its process ends is never used by anyone.
    """

    def __init__(self, database: Database, block_size: int) -> None:
        self.database = database
        self.block_size = block_size
        self._lock = threading.Lock()
        self._rest: list[int] = []
        _ALL.add(self)

    def take(self) -> int:
        """A pid of its own.

        Not within a database transaction: a block has to be reserved for good before a pid of it is used.

        Raises:
            CapacityError: all pids were handed out.
        """
        with self._lock:
            while not self._rest:
                # If it is lost whether a commit happened, a block was passed over that nobody got.
                with suppress(OutcomeUnknownError):
                    first, count = self.database.transaction(self._reserve)
                    self._rest = list(range(first + count - 1, first - 1, -1))
            return self._rest.pop()

    def give_back(self, pid: int) -> None:
        """A pid that was taken and not used is the next one."""
        with self._lock:
            self._rest.append(pid)

    def _reserve(self, connection: Connection) -> tuple[int, int]:
        insert_if_missing(connection, PIDS, {"id": 1, "next_pid": 0})
        first: int = connection.execute(select(PIDS.c.next_pid).where(PIDS.c.id == 1).with_for_update()).scalar_one()
        count = min(self.block_size, PID_MAX + 1 - first)
        if count <= 0:
            raise CapacityError(f"all pids up to {PID_MAX} were handed out", limit=PID_MAX)
        connection.execute(PIDS.update().where(PIDS.c.id == 1).values(next_pid=first + count))
        return first, count

    def forget(self) -> None:
        """After a fork: the block belongs to the parent of this process."""
        self._lock = threading.Lock()
        self._rest = []


_ALL: weakref.WeakSet[PidBlocks] = weakref.WeakSet()


def _forget_all() -> None:
    for blocks in _ALL:
        blocks.forget()


os.register_at_fork(after_in_child=_forget_all)
