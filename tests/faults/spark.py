"""The same worlds with their tasks on Spark: drivers that are killed with their JVM, workers that die, tasks run twice.

`python -m faults.spark --family NAME` runs rounds of a family; with other options it is a driver that dies, or a task's
attempt that comes late. Undisturbed runs use threads. What Spark leaves after a fault must equal what these leave.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fencepost.lake import judging, plan
from fencepost.state import placing
from support.processes import is_stopped

from faults.cases import DECIDED, finish, kill, prepare
from faults.driver import Drive, count_calls, wait_for_death, wait_until
from faults.tally import Tally, injected, table
from faults.workers import resume_late_attempts
from faults.world import VARIATION, Broken, World, check, demand, job, leftovers, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES = ("exits", "killed", "raises", "twice", "shot", "late")
"""How workers end: with their work done and not reported, at a change to the disk, by an error, not at all but with the
work done twice, by SIGKILL from outside, whatever they do; and not at all, but beside another attempt that stops midway
and continues when the version is done. (Spark does not speculate where all workers are on one machine.)"""
DISTURBED = {"shot": "*.again", "late": "*.late"}
"""What the files of disturbed tasks are called, where it is not by stage and partition."""
PLANS = ("interval", "row", "aligned")


class Disturbed:
    """A task whose first attempt does not finish."""

    def __init__(self, work: Callable[[Any], Any], mode: str, folder: Path) -> None:
        self.work, self.mode, self.folder = work, mode, folder

    def __call__(self, item: Any) -> Any:
        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        assert context is not None
        is_first = context.attemptNumber() == 0
        if is_first and self.mode == "late":
            if context.partitionId() == 0:
                lose(self.work, item, self.folder)
        elif is_first and self.mode != "shot":
            (self.folder / f"{context.stageId()}-{context.partitionId()}").touch()
        if is_first and self.mode == "killed":
            count_calls(2 * (context.partitionId() % 3) + 2)
        if self.mode == "shot" and not is_first:
            (self.folder / f"{os.getpid()}.again").touch()
        is_target = self.mode == "shot" and is_first and context.partitionId() < 2
        if is_target:
            (self.folder / f"{os.getpid()}.target").touch()
            aimed = self.folder / f"{os.getpid()}.aimed"
            wait_until(aimed.exists, "nobody shoots")
        found = self.work(item)
        if is_target:
            wait_for_death()  # it had less to do than that
        if is_first and self.mode in ("exits", "killed"):
            os._exit(1)
        if is_first and self.mode == "raises":
            raise OSError("once")
        return self.work(item) if self.mode == "twice" else found


def lose(work: Callable[[Any], Any], item: Any, folder: Path) -> None:
    """Start another attempt in its own process, and wait until it is stopped, if it is."""
    task = folder / f"{uuid4().hex}.task"
    task.write_bytes(pickle.dumps((work, item)))
    command = [sys.executable, "-m", "faults.spark", "--lose", str(task)]
    attempt = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    wait_until(lambda: is_stopped(attempt.pid) or attempt.poll() is not None, "a late attempt does not stop")
    if attempt.poll() is None:
        (folder / f"{attempt.pid}.late").touch()


def stop_midway(task: str) -> None:
    """The process of such an attempt. `resume_late_attempts` continues it."""
    work, item = pickle.loads(Path(task).read_bytes())
    count_calls(1, signal.SIGSTOP)
    work(item)


class DisturbedEngine:
    """SparkEngine, its tasks disturbed."""

    name = "spark"
    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self, spark: SparkSession, mode: str, folder: Path) -> None:
        from fencepost_spark import SparkEngine

        self.engine, self.mode, self.folder = SparkEngine(spark), mode, folder
        self.slots = self.engine.slots

    def run(
        self,
        stage: str,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        return self.engine.run(stage, Disturbed(work, self.mode, self.folder), items, progress)


IN_TASKS = {"shards": 4, "driver_spans_max": 0}
"""Options of a job of which the driver judges no shard."""


@contextmanager
def small_tasks() -> Iterator[None]:
    """A task a file, and a task a shard: for jobs of `IN_TASKS`."""
    before = plan.TASK_BYTES, judging.groups_of_shards, placing.COPIES_OF_A_TASK
    plan.TASK_BYTES, placing.COPIES_OF_A_TASK = 1, 1
    judging.groups_of_shards = lambda runs, *_: [(at, at + 1) for at in range(len(runs))]  # type: ignore[assignment]
    try:
        yield
    finally:
        plan.TASK_BYTES, judging.groups_of_shards, placing.COPIES_OF_A_TASK = before


def disturbed_workers(root: Path, spark: SparkSession, mode: str, chosen: str | None = None, mutant: str = "") -> None:
    """Workers die or work twice: files and segments equal those of a job without faults."""
    from faults.mutants import MUTANTS

    drive = Drive(options={"plan": chosen})
    world = prepare(root, drive)
    marks = root / "workers"
    marks.mkdir()
    with small_tasks(), shooting(marks):
        made = job(world, IN_TASKS | drive.options, engine=DisturbedEngine(spark, mode, marks))
        if mutant:
            MUTANTS[mutant](made)
        report = made.run()
    demand(report.version == 2 and report.engine == "spark", f"version {report.version}, engine {report.engine}")
    disturbed = len(list(marks.glob(DISTURBED.get(mode, "*-*"))))
    demand(disturbed > 1, "hardly a task was disturbed")
    injected(f"worker or task: {mode}", disturbed)
    if mode == "late":
        before = visible(world)
        demand(resume_late_attempts(world) == disturbed, "no attempt stopped")
        demand(visible(world) == before, "a late attempt changed what others see")
    finish(world, drive, collect=mode == "late")


@contextmanager
def shooting(marks: Path) -> Iterator[None]:
    """Each worker that reports itself as a target is killed shortly afterwards."""
    is_over = threading.Event()

    def shoot() -> None:
        shot = set()
        while not is_over.wait(0.002):
            for path in set(marks.glob("*.target")) - shot:
                shot.add(path)
                path.with_suffix(".aimed").touch()
                time.sleep(random.random() * 0.1)
                os.kill(int(path.stem), signal.SIGKILL)

    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        yield
    finally:
        is_over.set()
        shooter.join()


def killed_driver(root: Path, step: str, moment: str, chosen: str | None = None, then: str = "add") -> None:
    """The driver is killed, and its JVM with it; its workers end at some later time; the next run continues."""
    drive = Drive(options={"plan": chosen})
    world = prepare(root, drive)
    before = visible(world)
    command = [sys.executable, "-m", "faults.spark", "--die", str(root), chosen or "", step, moment]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    demand(done.returncode == -signal.SIGKILL, f"not killed: {done.returncode}, {done.stderr[-2000:]}")
    injected("driver killed with its JVM")
    is_decided = world.decided() == 2
    demand(is_decided == ((step, moment) in DECIDED), f"decided: {is_decided}")
    demand(is_decided or visible(world) == before, "what others see has changed before anything was decided")
    world.change(then, 77)
    found = finish(world, drive)
    wanted = (2,) if is_decided and (step, moment) != ("finish", "after") else ()
    demand(found[0].recovered == wanted, f"recovered {found[0].recovered}, {wanted} was expected")


def continues_elsewhere(root: Path, spark: SparkSession) -> None:
    """A driver with threads dies after Decide; one on Spark finishes its version and continues."""
    from fencepost_spark import SparkEngine

    drive = Drive()
    world = prepare(root, drive)
    kill(world, drive, "apply", "before")
    world.change("overwrite", 78)
    with small_tasks():
        report = job(world, IN_TASKS, engine=SparkEngine(spark, driver_bytes_max=0)).run()
        demand((report.recovered, report.version) == ((2,), 3), f"{report.recovered}, {report.version}")
        demand(
            job(world, IN_TASKS, engine=SparkEngine(spark, driver_bytes_max=0)).run().version is None,
            "always something new",
        )
    check(world, {})
    demand(not leftovers(world), f"left over: {leftovers(world)}")


KILLS = (
    ("scan", "after", "interval", "add"),
    ("judge", "after", "interval", "overwrite"),
    ("write", "after", "interval", "delete"),
    ("decide", "before", "interval", "swap"),
    ("decide", "after", "row", "add"),
    ("apply", "after", "interval", "delete"),
    ("finish", "before", "aligned", "rewrite"),
)


def session(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("fencepost faults")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def die(root: str, chosen: str, step: str, moment: str) -> None:
    """A driver on Spark that kills itself."""
    from fencepost_spark import SparkEngine

    def progress(at: str, done: int, total: int) -> None:
        if at == step and (done == total if moment == "after" else done == 0):
            os.kill(os.getpid(), signal.SIGKILL)

    with tempfile.TemporaryDirectory() as folder, small_tasks():
        spark = session(Path(folder))
        options = IN_TASKS | {"plan": chosen or None}
        job(World(Path(root)), options, engine=SparkEngine(spark, driver_bytes_max=0)).run(progress)


def rounds_of(family: str, top: Path, stack: ExitStack) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Endless rounds of a family: the name, and a function that runs in an empty folder."""
    if family == "Spark: driver killed":
        for facts in itertools.cycle(KILLS):
            yield " ".join(facts), lambda root, facts=facts: killed_driver(root, *facts)
    spark = session(top)
    stack.callback(spark.stop)
    for mode, chosen in itertools.cycle(itertools.product(MODES, PLANS)):
        yield f"{mode} {chosen}", lambda root, it=(mode, chosen): disturbed_workers(root, spark, *it)
        if (mode, chosen) == (MODES[-1], PLANS[-1]):
            yield "a driver with threads killed", lambda root: continues_elsewhere(root, spark)


def run_rounds(family: str, rounds: int, tally: Path | None) -> Tally:
    top, found = Path(tempfile.mkdtemp(prefix="faults-spark-")), Tally(family)
    with ExitStack() as stack:
        for name, act in itertools.islice(rounds_of(family, top, stack), rounds):
            root = top / f"{found.rounds}"
            VARIATION.number = found.rounds
            try:
                act(root)
            except Exception as error:
                found.failed.append(f"{name}, round {found.rounds}")
                message = str(error) if isinstance(error, Broken) else traceback.format_exc()
                print(f"FAILED {family}: {name}, round {found.rounds}\n       {message[:2000]}", flush=True)
            found.rounds += 1
            found.write(tally)
            shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(top, ignore_errors=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", help='"Spark: driver killed" or "Spark: workers"')
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--tally", type=Path, help="where the family's figures go")
    parser.add_argument("--die", nargs=4)
    parser.add_argument("--lose")
    given = parser.parse_args()
    if given.lose:
        stop_midway(given.lose)
        return 0
    if given.die:
        die(*given.die)
        return 0
    found = run_rounds(given.family, given.rounds, given.tally)
    if not given.tally:
        print(table([found]))
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
