"""One driver in a process of its own, with a fault in it."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from fencepost.lake import DedupJob, LocalEngine, judging, plan
from fencepost.state import placing, stores
from support.processes import fork_server, is_stopped

from faults.tally import injected
from faults.world import CHANGES, Broken, World, demand, job

DISK_CALLS = ("link", "rename", "fsync", "mkdir", "unlink", "rmdir")
STORE_CALLS = ("put", "upload", "copy", "delete")
YEAR_SECONDS = 365 * 86_400
PATIENCE_SECONDS = 300

processes = fork_server("faults.driver", "faults.workers", "faults.mutants")


@dataclass(frozen=True, kw_only=True)
class Drive:
    """What one driver does."""

    options: dict[str, Any] = field(default_factory=dict)
    """Of the job."""
    at: tuple[str, str] | None = None
    """(step, "before", "within" or "after"): where `act` happens, once."""
    act: str = ""
    """kill, stop, or a change to the source (world.CHANGES). Where `calls` are counted, kill or stop."""
    seed: int = 0
    """Of what lands in the source then."""
    calls: int = 0
    """The signal comes at so many changes to the disk, or to an object store. A driver that is to be killed and makes
    fewer is killed with its work done and not reported."""
    calls_from: str = ""
    """The step from which on they count."""
    mutant: str = ""
    engine: str = "threads"
    """threads, or how `workers.PoolEngine` disturbs its tasks."""
    judge_in_tasks: bool = False
    clock_years: float = 0
    file_bytes_max: int | None = None
    """Files cannot grow beyond: a full disk."""
    operation: tuple[Any, ...] = ()
    """Instead of a run: a method of the state, and its arguments."""
    action: Callable[[World], None] | None = None
    """Instead of `act`: a function of a module."""
    doomed_at: int = 0
    """From so many calls of the progress callback on, or from the end if there are fewer, the driver waits at the next
    one: it is killed by `Driver.kill`."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a driver."""

    kind: str
    """version, error or killed."""
    version: int | None = None
    recovered: tuple[int, ...] = ()
    files: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    deferred: tuple[str, ...] = ()
    quarantined: tuple[Any, ...] = ()
    error: str = ""
    """The name of its class."""
    message: str = ""
    is_disturbed: bool = False
    """Whether the fault that was to happen at a step has happened; of a driver that was killed, whether it had work
    left."""


class Driver:
    """A running driver. `wait` returns its outcome."""

    def __init__(self, world: World, drive: Drive) -> None:
        self.drive, self.is_done = drive, False
        self.ours, theirs = processes.Pipe(duplex=False)
        self.process = processes.Process(target=_drive, args=(world, drive, theirs))
        self.process.start()
        theirs.close()
        self.pid = self.process.pid or 0

    def wait_until_begun(self) -> None:
        demand(self.ours.poll(PATIENCE_SECONDS) and self.ours.recv() == "begun", "a driver did not begin")

    def wait_until_stopped(self) -> None:
        """Stopped by SIGSTOP."""
        wait_until(lambda: is_stopped(self.pid) or not self.process.is_alive(), "a driver did not stop")
        demand(self.process.is_alive(), "a driver ended before it was to stop")
        injected("driver stopped")

    def kill(self, pause_seconds: float) -> None:
        """Kills a driver shortly after the point from which it may be killed."""
        self.wait_until_begun()
        demand(self.ours.poll(PATIENCE_SECONDS), "a driver does not come to its end")
        demand(self.ours.recv() == "doomed", "a driver is not doomed")
        time.sleep(pause_seconds)
        os.kill(self.pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self.process.is_alive():
            os.kill(self.pid, number)

    def wait(self) -> Outcome:
        found: Any = "begun"
        while found in ("begun", "done"):
            self.is_done = found == "done"
            if not self.ours.poll(PATIENCE_SECONDS):
                os.kill(self.pid, signal.SIGKILL)
                raise Broken("a driver hangs")
            try:
                found = self.ours.recv()
            except EOFError:
                found = None
        self.process.join(PATIENCE_SECONDS)
        if found is None:
            demand(self.process.exitcode == -signal.SIGKILL, f"a driver died with {self.process.exitcode}")
            injected("driver killed, its work done" if self.is_done else "driver killed")
            return Outcome("killed", is_disturbed=not self.is_done)
        if found.is_disturbed and self.drive.act in CHANGES:
            injected(f"source changed in a run: {self.drive.act}")
        return found  # type: ignore[no-any-return]


def go(world: World, drive: Drive) -> Outcome:
    """A driver from its beginning to its end."""
    return Driver(world, drive).wait()


def settle(world: World, drive: Drive) -> list[Outcome]:
    """Undisturbed runs until nothing is new. A mutant stays one."""
    calm = replace(Drive(), options=drive.options, mutant=drive.mutant)
    found = []
    for _ in range(5):
        found.append(go(world, calm))
        if found[-1].kind != "version" or found[-1].version is None:
            break
    demand(found[-1].kind == "version", f"an undisturbed run says {found[-1].error}: {found[-1].message}")
    demand(found[-1].version is None, "there is always something new")
    return found


def wait_until(holds: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        demand(time.monotonic() < end, what)
        time.sleep(0.002)


# -- In the driver's process


def _drive(world: World, drive: Drive, events: Connection) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 for the rest of the process
    events.send("begun")
    faults = _Faults(world, drive, events)
    try:
        outcome = _act(world, drive, faults)
    except BaseException as error:
        text = str(error) or traceback.format_exc()
        outcome = Outcome("error", error=type(error).__name__, message=text)
    faults.end(outcome)
    events.send(replace(outcome, is_disturbed=faults.is_over))
    events.close()
    os._exit(0)  # without a wait for tasks that were stopped


def _act(world: World, drive: Drive, faults: _Faults) -> Outcome:
    made = make_job(world, drive)
    if drive.operation:
        name, *arguments = drive.operation
        getattr(made.state, name)(*arguments)
        return Outcome("version")
    report = made.run(faults)
    return Outcome(
        "version",
        version=report.version,
        recovered=report.recovered,
        files=report.files,
        counts=report.counts,
        deferred=report.deferred,
        quarantined=report.quarantined,
    )


def make_job(world: World, drive: Drive) -> DedupJob:
    """The job, in a process with the faults of `drive`."""
    from faults.mutants import MUTANTS
    from faults.workers import PoolEngine

    plan.TASK_BYTES = 1  # a task a file, and a task a shard
    placing.COPIES_OF_A_TASK = placing.REMOVED_OF_A_TASK = 1
    stores.PAUSE_SECONDS = 0.001
    if drive.judge_in_tasks:
        judging.groups_of_shards = lambda runs, *_: [(at, at + 1) for at in range(len(runs))]  # type: ignore[assignment]
    if drive.clock_years:
        _shift_clock(drive.clock_years * YEAR_SECONDS)
    if drive.file_bytes_max is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (drive.file_bytes_max, resource.RLIM_INFINITY))
    engine = Threads(2) if drive.engine == "threads" else PoolEngine(world, drive.engine, drive.seed)
    in_tasks = {"driver_spans_max": 0} if drive.judge_in_tasks else {}
    options = {"shards": 4, "engine": engine} | in_tasks | drive.options
    made = job(world, options)
    if drive.mutant:
        MUTANTS[drive.mutant](made)
    return made


class Threads(LocalEngine):
    """LocalEngine, but the thread of each task reports its end at once. The engine may report several together, and
    a fault within a step would then come after the step."""

    def run(
        self,
        stage: str,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        lock, done = threading.Lock(), [0]

        def tell(item: Any) -> Any:
            found = work(item)
            with lock:
                done[0] += 1
                if progress is not None:
                    progress(done[0], len(items))
            return found

        return super().run(stage, tell, items)


def _shift_clock(seconds: float) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1_000_000_000)


class _Faults:
    """The job's progress callback, at which things happen."""

    def __init__(self, world: World, drive: Drive, events: Connection) -> None:
        self.world, self.drive, self.events = world, drive, events
        self.is_over = False
        self.steps, self.lock = 0, threading.Lock()
        self.number = signal.SIGSTOP if drive.act == "stop" else signal.SIGKILL
        if drive.calls and not drive.calls_from:
            count_calls(drive.calls, self.number)

    def __call__(self, step: str, done: int, total: int) -> None:
        drive = self.drive
        if drive.doomed_at:
            self.meet_doom()
        if drive.calls and drive.calls_from == step and not self.is_over:
            self.is_over = True
            count_calls(drive.calls, self.number)
        moment = "before" if done == 0 else "after" if done == total else "within"
        if drive.at == (step, moment) and not self.is_over:
            self.is_over = True
            if drive.action is not None:
                drive.action(self.world)
            elif drive.act in ("kill", "stop"):
                os.kill(os.getpid(), self.number)
            else:
                self.world.change(drive.act, drive.seed)

    def meet_doom(self) -> None:
        with self.lock:
            self.steps += 1
            if self.steps == self.drive.doomed_at:
                self.events.send("doomed")
                return
        if self.steps > self.drive.doomed_at:
            wait_for_death()

    def end(self, outcome: Outcome) -> None:
        """Kills the driver now, if it was to be killed and had less to do. Of errors only a lost race lets it."""
        if self.drive.doomed_at and outcome.error in ("", "StateConflictError"):
            if self.steps < self.drive.doomed_at:
                self.events.send("doomed")
            wait_for_death()
        if self.drive.calls and not self.drive.calls_from and outcome.kind != "error" and self.number == signal.SIGKILL:
            self.events.send("done")
            os.kill(os.getpid(), signal.SIGKILL)


def wait_for_death() -> None:
    while True:
        signal.pause()


def count_calls(last: int, number: int = signal.SIGKILL) -> None:
    """This process gets a signal at its `last`-th change to the disk, or to an object store, from now on: just before
    an even one, just after an odd one."""
    lock, count = threading.Lock(), [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            with lock:
                count[0] += 1
                is_now = count[0] == last
            if is_now and last % 2 == 0:
                os.kill(os.getpid(), number)
            try:
                return real(*arguments, **options)
            finally:
                if is_now and last % 2:
                    os.kill(os.getpid(), number)

        return act

    for where, names in ((os, DISK_CALLS), (stores.RemoteStore, STORE_CALLS)):
        for name in names:
            setattr(where, name, counted(getattr(where, name)))
