"""The daemon: one thread per task, which runs the task when it is due and its lease is free, and an HTTP server."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import text

from fencepost.daemon.daemon_metrics import DaemonMetrics
from fencepost.daemon.http import Server
from fencepost.daemon.settings import Settings
from fencepost.daemon.tasks import LOCK_TIMEOUT_MS, Maintenance, Task
from fencepost.errors import FencepostError
from fencepost.sql.database import Database
from fencepost.sql.engines import engine_of
from fencepost.sql.leases import Leases
from fencepost.stopping import StopEvent

logger = logging.getLogger("fencepost.daemon")
GRACE_S = 5.0
"""How long a task may continue after a signal, in seconds. The database rolls back what is interrupted; the next run
redoes it."""
_RETRY_S = 5.0


class Daemon:
    """Runs the maintenance tasks of a database and serves `/metrics`, `/healthz` and `/readyz` until stopped.

    Any number of processes with the same settings may run at once: each task runs in one of them. If that process dies,
    another takes over when its lease ends. During a database outage, tasks wait.

    Raises PolicyError for invalid settings.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = engine_of(settings.database, application="fencepost serve")
        self.database = Database(self.engine, lock_timeout_ms=LOCK_TIMEOUT_MS)
        self._tasks = Maintenance(self.engine, settings).tasks()
        self._leases: Leases | None = None
        self._stop = StopEvent()
        self._runs = {task.name: Counter(succeeded=0, failed=0) for task in self._tasks}
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._repeat, args=[task], name=f"fencepost-{task.name}", daemon=True)
            for task in self._tasks
        ]

    def run(self, *, signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Run until `stop` or one of the signals, then return within 5 seconds.

        Raises OSError if the address is in use, FencepostError if a thread stopped because of a defect.
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
        """Make `run` return. May be called from any thread and from a signal handler."""
        self._stop.set()

    # Status for monitoring

    def runs(self) -> Mapping[str, Mapping[str, int]]:
        """The number of runs of this process by task and outcome."""
        with self._lock:
            return {name: dict(counts) for name, counts in self._runs.items()}

    def problem(self) -> str | None:
        """The reason why this process itself does not work: a thread has ended. None if it works. An outage of the
        database is no such reason."""
        dead = [it.name for it in self._threads if it.ident is not None and not it.is_alive()]
        return None if self._stop.is_set() or not dead else f"threads have ended: {', '.join(dead)}"

    def unreadiness(self) -> str | None:
        """Return what is wrong with the database or with this process, or None."""
        try:
            self.database.transaction(lambda connection: connection.execute(text("SELECT 1")).scalar_one())
            self.leases()
        except FencepostError as error:
            return str(error)
        return self.problem()

    def leases(self) -> Leases:
        """The leases in this database. Their table is created on first use."""
        if self._leases is None:
            self._leases = Leases(self.database, self.settings.lease_ms)
        return self._leases

    # Tasks

    def _repeat(self, task: Task) -> None:
        """Run a task whenever it is due and its lease is free."""
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
        if not self.database.has_part(task.part):
            return
        owner = self.leases().take(task.name, task.every_ms)
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
            # A defect is logged with its traceback. It must not stop the other tasks.
            traceback = None if isinstance(failure, FencepostError) else failure
            logger.error("%s: %s", task.name, failure, exc_info=traceback)
        is_failed = failure is not None
        if not self.leases().finish(task.name, owner, due_in_ms=task.every_ms, is_failed=is_failed):
            logger.warning("%s: took longer than its lease, and another daemon has taken it over", task.name)

    def _count(self, task: Task, outcome: str) -> None:
        with self._lock:
            self._runs[task.name][outcome] += 1

    def _join(self) -> None:
        end = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if late := [it.name for it in self._threads if it.is_alive()]:
            logger.warning("broken off: %s", ", ".join(late))
