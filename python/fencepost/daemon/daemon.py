"""The daemon: a thread a task, which asks for the task's lease when it may be due; and an HTTP server."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from sqlalchemy import text

from fencepost.daemon.http import Server
from fencepost.daemon.metrics import DaemonMetrics
from fencepost.daemon.settings import Settings
from fencepost.daemon.tasks import LOCK_TIMEOUT_MS, Maintenance, Task
from fencepost.errors import FencepostError
from fencepost.sql.database import Database
from fencepost.sql.engines import engine_of
from fencepost.sql.leases import Leases

logger = logging.getLogger("fencepost.daemon")
GRACE_S = 5.0
"""How long a task may go on after a signal. What is broken off then is undone by the database, and done by the next."""
_RETRY_S = 5.0


class Daemon:
    """Runs the tasks of a database and answers `/metrics`, `/healthz` and `/readyz`, until it is stopped.

    Any number of processes may do so at once: of each task one is at work. Where it dies, another takes over once its
    lease has ended. An outage of the database is survived: the tasks wait for its end.

    Raises PolicyError for settings that make no sense.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = engine_of(settings.database, application="fencepost serve")
        self.database = Database(self.engine, lock_timeout_ms=LOCK_TIMEOUT_MS)
        self._tasks = Maintenance(self.engine, settings).tasks()
        self._leases: Leases | None = None
        self._stop = threading.Event()
        self._runs = {task.name: Counter(succeeded=0, failed=0) for task in self._tasks}
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._repeat, args=[task], name=f"fencepost-{task.name}", daemon=True)
            for task in self._tasks
        ]

    def run(self, *, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Works until `stop` is called or one of the signals arrives, and returns within `GRACE_S` seconds then.

        Raises OSError where the address is taken, FencepostError where a thread has broken off by a defect.
        """
        for number in signals:
            signal.signal(number, lambda *_: self.stop())
        server = Server(self.settings.address, DaemonMetrics(self), self.problem, self.unreadiness)
        try:
            logger.info("listening on port %d; tasks: %s", server.port, ", ".join(it.name for it in self._tasks))
            for thread in self._threads:
                thread.start()
            while not self._stop.wait(1):
                if problem := self.problem():
                    raise FencepostError(problem)
            self._join()
        finally:
            self._stop.set()
            server.close()
            self.engine.dispose()
        logger.info("stopped")

    def stop(self) -> None:
        """Makes `run` return. From any thread, and from a signal handler."""
        self._stop.set()

    # What monitoring asks

    def runs(self) -> Mapping[str, Mapping[str, int]]:
        """Of each task, the runs of this process by outcome."""
        with self._lock:
            return {name: dict(counts) for name, counts in self._runs.items()}

    def problem(self) -> str | None:
        """Why this process does not do its work, whatever the database does; None where it does."""
        dead = [it.name for it in self._threads if it.ident is not None and not it.is_alive()]
        return None if self._stop.is_set() or not dead else f"threads have ended: {', '.join(dead)}"

    def unreadiness(self) -> str | None:
        """What is wrong with the database, or None."""
        try:
            self.database.transaction(lambda connection: connection.execute(text("SELECT 1")).scalar_one())
            self.leases()
        except FencepostError as error:
            return str(error)
        return self.problem()

    def leases(self) -> Leases:
        """The leases of this database, whose table is made with the first call that finds it answering."""
        if self._leases is None:
            self._leases = Leases(self.database, self.settings.lease_ms)
        return self._leases

    # Tasks

    def _repeat(self, task: Task) -> None:
        """Runs a task whenever it is due and nobody else has it."""
        pause_s = min(task.every_ms, self.settings.lease_ms) / 1000
        while not self._stop.is_set():
            try:
                self._run_if_due(task)
                wait_s = pause_s
            except FencepostError as error:
                logger.warning("%s: again in %.1f s: %s", task.name, min(pause_s, _RETRY_S), error)
                wait_s = min(pause_s, _RETRY_S)
            self._stop.wait(wait_s)

    def _run_if_due(self, task: Task) -> None:
        if not self._has_tables(task.part):
            return
        owner = self.leases().take(task.name)
        if owner is None:
            return
        began = time.monotonic()
        failure: Exception | None = None
        with self.leases().kept(task.name, owner):
            try:
                said = task.run()
            except Exception as error:
                failure = error
        self._count(task, "succeeded" if failure is None else "failed")
        if failure is None:
            logger.info("%s: %s (%.2f s)", task.name, said, time.monotonic() - began)
        else:
            # A defect is told with its traceback, and goes on: the other tasks must not stop for it.
            traceback = None if isinstance(failure, FencepostError) else failure
            logger.error("%s: %s", task.name, failure, exc_info=traceback)
        is_failed = failure is not None
        if not self.leases().finish(task.name, owner, due_in_ms=task.every_ms, is_failed=is_failed):
            logger.warning("%s: took longer than its lease, and another daemon has taken it over", task.name)

    def _has_tables(self, part: str) -> bool:
        return self.database.transaction(partial(self.database.version_of, part=part)) is not None

    def _count(self, task: Task, outcome: str) -> None:
        with self._lock:
            self._runs[task.name][outcome] += 1

    def _join(self) -> None:
        end = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if late := [it.name for it in self._threads if it.is_alive()]:
            logger.warning("broken off: %s", ", ".join(late))
