"""Every case: a world, a fault, and what must hold afterwards.

A case is a function of this module that takes an empty folder and its own facts. It raises Broken where something does
not hold. `CASES` has them all by name; `OBJECTIONS` says for broken jobs (mutants.py) which case must raise.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fencepost import state
from support.liar import LIES, Liar
from support.s3_server import BUCKET, s3_options, serve_by_moto

from faults import order, workers
from faults.driver import Drive, Driver, Outcome, go, make_job, settle, wait_until
from faults.tally import injected, tried
from faults.world import (
    BEGIN_MS,
    CHANGES,
    HOUR_MS,
    PLACE,
    SCHEMA,
    VARIATION,
    Broken,
    World,
    check,
    demand,
    leftovers,
    seeds,
    visible,
)

DAY_MS = 24 * HOUR_MS
PROGRESS_CALLS, PAUSE_SECONDS = 40, 0.02
"""About how often a run reports progress; about how long it works between two reports. Who is killed at any moment is
killed after one of them, and after a pause."""
STEPS = ("list", "scan", "judge", "write", "check", "collect", "decide", "apply", "finish")
ALIGNED_STEPS = ("list", "align", "judge", "check", "collect", "decide", "apply", "finish")
KEEPS = {"compare_content": True, "keep_checksums": "all", "on_conflict": "drop"}
"""Options of a job that keeps checksums from run to run. Every repeat is a conflict in these worlds."""
HOT = {"plan": "interval", "task_spans_max": 60}
"""Options of a job whose shards several tasks judge."""
KEEPING_STEPS = ("judge", "sum", "compare", "write")
DECIDED = {
    ("decide", "after"),
    *((step, moment) for step in ("apply", "copy", "finish") for moment in ("before", "within", "after")),
}
LIES_ABOUT = {
    "PUT": ("503 after", "503 before", "dropped after", "dropped before", "late"),
    "GET": ("503", "dropped", "cut and closed"),  # nothing tells who reads a whole object that is "cut"
    "POST": ("503", "dropped"),
    "HEAD": ("503", "dropped"),
}
IN_THE_DRIVER = ("recover", "list", "check", "collect", "decide", "apply", "finish")
"""Steps that begin with a call of their own."""


def prepare(root: Path, drive: Drive, *, versions: int = 1, hive: bool = False) -> World:
    """So many versions done, and three new files: with keys of their own where the plan is the aligned one."""
    world = World(root, "whole" if drive.options.get("plan") == "aligned" else "mixed", hive)
    for version in range(versions):
        world.land(10 * version + 1, 10 * version + 2)
        found = go(world, replace(drive, at=None, calls=0, mutant=""))
        demand(found.version == version + 1, f"the world cannot be prepared: {found}")
    world.land(101, 102, 103)
    return world


def kill(world: World, drive: Drive, step: str, moment: str) -> None:
    """A driver that dies at a step."""
    outcome = go(world, replace(drive, at=(step, moment), act="kill"))
    demand(outcome.kind == "killed", f"not killed: {outcome}")


def finish(world: World, drive: Drive, *, collect: bool = False, **how: Any) -> list[Outcome]:
    """Undisturbed runs, then everything that must hold."""
    outcomes = settle(world, drive)
    if _goes_with_next(world, leftovers(world)):
        # Nobody has needed another version since, as its files are gone: it collects what is left once it is done.
        world.land(500)
        settle(world, drive)
    if collect:
        world.opened().collect_garbage()
    check(world, drive.options, **how)
    left = leftovers(world)
    demand(not left, f"left over: {left}")
    return outcomes


def _goes_with_next(world: World, left: list[str]) -> bool:
    """Whether something is left over, all of it of attempts at the next version, or a link of the newest one's mark: a
    driver died between putting the mark and removing the file that it linked."""
    decided = world.decided()
    own = (rf"(?:_prepare|segments|body|log)/{decided + 1}\b", rf"tmp/done-{decided}\.")
    return bool(left) and all(any(re.match(it, name) for it in own) for name in left)


# -- Drivers that die


def killed_at_a_step(
    root: Path,
    step: str,
    moment: str,
    plan: str | None = None,
    then: str = "add",
    *,
    hive: bool = False,
    keeps: bool = False,
    **more: Any,
) -> None:
    """SIGKILL; something happens to the source; the next run finishes what was decided, and no more than that."""
    drive = Drive(options={"plan": plan} | (KEEPS if keeps else {}), **more)
    world = prepare(root, drive, hive=hive)
    before = visible(world)
    kill(world, drive, step, moment)
    is_decided = world.decided() == 2
    demand(is_decided == ((step, moment) in DECIDED), f"decided: {is_decided}")
    demand(is_decided or visible(world) == before, "what others see has changed before anything was decided")
    world.change(then, 77)
    found = finish(world, drive)
    wanted = (2,) if is_decided and (step, moment) != ("finish", "after") else ()
    demand(found[0].recovered == wanted, f"recovered {found[0].recovered}, {wanted} was expected")


def killed_in_recovery(root: Path, calls: int, then: str = "add", **more: Any) -> None:
    """A driver dies after Decide, then those that would finish its version, at a change to the disk each."""
    drive = Drive(**more)
    world = prepare(root, drive)
    kill(world, drive, "apply", "before")
    world.change(then, 78)
    for call in (calls, calls + 1, calls + 3):
        _killed("kills in recovery", go(world, replace(drive, calls=call)))
    finish(world, drive)


def killed_at_the_ends_of_recovery(root: Path, moment: str, then: str = "add") -> None:
    drive = Drive()
    world = prepare(root, drive)
    kill(world, drive, "apply", "before")
    world.change(then, 78)
    kill(world, drive, "recover", moment)
    found = finish(world, drive)
    demand(found[0].recovered == (() if moment == "after" else (2,)), f"recovered {found[0].recovered}")


def killed_at_a_call(
    root: Path, calls: int, plan: str | None = None, *, versions: int = 1, keeps: bool = False, **more: Any
) -> None:
    """SIGKILL at a change to the disk, whichever thread makes it, also in the first run of all."""
    drive = Drive(options={"plan": plan} | (KEEPS if keeps else {}), **more)
    world = prepare(root, drive, versions=versions)
    _killed("kills at a change to the disk", go(world, replace(drive, calls=calls)))
    world.change(CHANGES[calls % len(CHANGES)], 79)
    finish(world, drive)


def killed_at_random(root: Path, seed: int, plan: str | None = None, kills: int = 4) -> None:
    """SIGKILL from outside at any moment, again and again, while the source changes."""
    drive = Drive(options={"plan": plan})
    world = prepare(root, drive)
    draw = random.Random(VARIATION.of(seed))
    for kill in range(kills):
        driver = Driver(world, replace(drive, doomed_at=draw.randrange(1, PROGRESS_CALLS)))
        driver.kill(draw.random() * PAUSE_SECONDS)
        demand(driver.wait().kind == "killed", "not killed")
        world.change(draw.choice(CHANGES), 200 + kill)
    finish(world, drive, collect=True)


def _killed(what: str, outcome: Outcome) -> None:
    """It was; and in most cases with work left."""
    demand(outcome.kind == "killed", f"not killed: {outcome}")
    tried(what, outcome.is_disturbed)


def killed_in_an_operation(root: Path, operation: tuple[Any, ...], calls: int) -> None:
    """A run dies after Decide. A process that collects garbage or abandons its version dies too."""
    drive = Drive()
    world = prepare(root, drive, versions=2)
    kill(world, drive, "apply", "before")
    world.change("add", 83)
    outcome = go(world, replace(drive, operation=operation, calls=calls))
    _killed("kills in an operation", outcome)
    finish(world, drive, collect=True)


def killed_in_a_split(root: Path, calls: int) -> None:
    """A run that first cuts the state into more shards dies in that, or in what follows."""
    drive = Drive(options={"shards": None, "shard_bytes_max": 100})
    world = prepare(root, drive)
    outcome = go(world, replace(drive, calls=calls, calls_from="split"))
    _killed("kills in a split", outcome)
    finish(world, drive)
    kinds = [it.kind for it in world.opened().versions()]
    demand("reshard" in kinds, f"no split: {kinds}")


def killed_with_large_files(root: Path, calls: int) -> None:
    """A run in which several tasks scan and write each file dies; the next one continues."""
    drive = Drive(options={"task_bytes_max": 3_000, "rejects": "all"})
    world = prepare(root, drive)
    _killed("kills of runs with large files", go(world, replace(drive, calls=calls)))
    finish(world, drive)
    plan = world.opened().version(1).plan
    demand(plan.get("split_files", 0) > 0, f"no file was split: {plan}")


def killed_with_hot_shards(root: Path, calls: int) -> None:
    """A run in which several tasks judge each shard dies; the next one continues."""
    drive = Drive(options=HOT, judge_in_tasks=True)
    world = prepare(root, drive)
    _killed("kills of runs with hot shards", go(world, replace(drive, calls=calls)))
    finish(world, drive)
    plan = world.opened().version(1).plan
    demand(plan.get("split_shards", 0) > 0, f"no shard was split: {plan}")


# -- Drivers that stand still


def stopped(
    root: Path, step: str, moment: str = "before", calls: int = 0, plan: str | None = None, **more: Any
) -> None:
    """SIGSTOP; others make three versions and collect garbage; SIGCONT: what others see stays as it is."""
    calm = Drive(options={"plan": plan})
    world = prepare(root, calm)
    fault: dict[str, Any] = {"calls": calls, "calls_from": step} if calls else {"at": (step, moment)}
    zombie = Driver(world, replace(calm, act="stop", **fault, **more))
    zombie.wait_until_stopped()
    for version in range(3):
        world.land(300 + version)
        demand(go(world, calm).kind == "version", "another run fails")
    world.opened().collect_garbage(keep_versions=1)
    before = visible(world)
    zombie.signal(signal.SIGCONT)
    outcome = zombie.wait()
    demand(visible(world) == before, "a zombie changed what others see")
    is_fine = outcome.kind == "version" or outcome.error == "StateConflictError"
    demand(is_fine, f"the zombie got {outcome.error}: {outcome.message}")
    finish(world, calm, collect=True)


def stopped_and_abandoned(root: Path, moment: str, calls: int = 0, **more: Any) -> None:
    """SIGSTOP in Apply; others abandon the version, and read its input again; SIGCONT: it is shown never, or it was."""
    calm = Drive(**more)
    world = prepare(root, calm)
    fault: dict[str, Any] = {"calls": calls, "calls_from": "apply"} if calls else {"at": ("apply", moment)}
    zombie = Driver(world, replace(calm, act="stop", **fault))
    zombie.wait_until_stopped()
    was_shown = world.is_claimed(2)
    outcome = go(world, replace(calm, operation=("abandon", 2)))
    demand(outcome.error == ("StateConflictError" if was_shown else ""), f"abandon got {outcome}")
    world.land(300)
    demand(go(world, calm).version == 3, "another run fails")
    before = visible(world)
    zombie.signal(signal.SIGCONT)
    outcome = zombie.wait()
    demand(visible(world) == before, "a zombie changed what others see")
    demand(outcome.error == ("" if was_shown else "StateConflictError"), f"the zombie got {outcome}")
    demand(world.opened().status(2) == ("applied" if was_shown else "abandoned"), "an abandoned version is another")
    finish(world, calm, collect=True)


def raced(root: Path, drivers: int, seed: int) -> None:
    """Several at once, one killed at some moment."""
    drive = Drive()
    world = prepare(root, drive, versions=seed % 2)
    draw = random.Random(VARIATION.of(seed))
    for round_ in range(2):
        doomed = replace(drive, doomed_at=draw.randrange(1, PROGRESS_CALLS))
        running = [Driver(world, it) for it in (doomed, *[drive] * (drivers - 1))]
        running[0].kill(draw.random() * PAUSE_SECONDS)
        killed, *outcomes = [driver.wait() for driver in running]
        demand(killed.kind == "killed", f"not killed: {killed}")
        for outcome in outcomes:
            is_fine = outcome.kind == "version" or outcome.error == "StateConflictError"
            demand(is_fine, f"a racer got {outcome.error}: {outcome.message}")
            injected("drivers that lost a race", outcome.kind == "error")
        world.land(400 + round_)
    finish(world, drive, collect=True)


def met_at_decide(root: Path, drivers: int, *, versions: int) -> None:
    """Several drivers have prepared the same version: one decides it, and the others report this."""
    drive = Drive()
    world = prepare(root, drive, versions=versions)
    for round_ in range(2):
        racing = replace(drive, at=("decide", "before"), action=partial(_meet, drivers=drivers))
        outcomes = [driver.wait() for driver in [Driver(world, racing) for _ in range(drivers)]]
        demand(_part(world) == drivers, "they have not met")
        injected("drivers that met at Decide", drivers)
        errors = sorted(outcome.error for outcome in outcomes)
        demand(errors == ["", *["StateConflictError"] * (drivers - 1)], f"drivers that met at Decide: {outcomes}")
        world.land(400 + round_)
    finish(world, drive)


def _meet(world: World, drivers: int) -> None:
    """A driver waits for the others, for a limited time: a wrong answer may have stopped them."""
    (world.root / f"{os.getpid()}.met").touch()
    with suppress(Broken):
        wait_until(lambda: len(list(world.root.glob("*.met"))) >= drivers, "others stay away", 60)


def _part(world: World) -> int:
    """Gives how many drivers have met."""
    met = list(world.root.glob("*.met"))
    for path in met:
        path.unlink()
    return len(met)


# -- Workers


def disturbed_workers(
    root: Path, mode: str, seed: int, plan: str | None = None, *, keeps: bool = False, hot: bool = False, **more: Any
) -> None:
    """Tasks in processes that die, run twice or write late. Files and segments equal those of threads."""
    seed = VARIATION.of(seed)
    drive = Drive(
        options={"plan": plan} | (KEEPS if keeps else {}) | (HOT if hot else {}),
        engine=mode,
        seed=seed,
        judge_in_tasks=True,
        **more,
    )
    calm = replace(drive, engine="threads", mutant="")
    world = prepare(root, calm)
    outcome = go(world, drive)
    demand(outcome.version == 2, f"disturbed workers: {outcome}")
    disturbed = workers.disturbed(world)
    demand(mode in ("pool", "late") or disturbed, "no task was disturbed")
    injected({"killed": "task killed", "twice": "task run twice"}.get(mode, "tasks in another order"), disturbed or 1)
    if mode == "late":
        before = visible(world)
        resumed = workers.resume_late_attempts(world)
        demand(resumed, "no task was stopped")
        injected("task stopped midway, and resumed later", resumed)
        demand(visible(world) == before, "a late attempt changed what others see")
        world.land(500)  # the next version removes what came too late
    finish(world, calm)


def orphaned_workers(root: Path, seed: int, step: str) -> None:
    """The driver dies, its workers continue to write, and the next run starts meanwhile."""
    drive = Drive(engine="late", seed=seed, judge_in_tasks=True)
    calm = Drive()
    world = prepare(root, calm)
    kill(world, drive, step, "after")
    world.change("delete", 80)
    go(world, calm)
    injected("task stopped midway, and resumed later", workers.resume_late_attempts(world))
    finish(world, calm, collect=True)


# -- The source


def changed_source(root: Path, step: str, moment: str, change: str, plan: str | None = None, **more: Any) -> None:
    """A file is added, removed or changed during a run: every version equals the result of its inputs."""
    drive = Drive(options={"plan": plan}, **more)
    world = prepare(root, drive)
    before = visible(world)
    outcome = go(world, replace(drive, at=(step, moment), act=change, seed=81))
    is_fine = outcome.kind == "version" or outcome.error in ("SourceError", "ChangedError")
    demand(outcome.is_disturbed, "the source did not change in the middle of the run")
    demand(is_fine, f"a changing source ended with {outcome.error}: {outcome.message}")
    demand(outcome.kind == "version" or visible(world) == before, "an error changed what others see")
    finish(world, drive)


def _replace_quietly(world: World) -> None:
    """Other bytes of the same size, time and inode."""
    path = world.files()[-1]
    stat = path.stat()
    part = world.root / "quiet.part"
    _write_raw(part, 82)
    data = part.read_bytes()
    part.unlink()
    demand(len(data) == stat.st_size, f"{len(data)} bytes are not {stat.st_size}")
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    world.keep(path)


def _write_raw(path: Path, seed: int) -> None:
    from faults.world import mixed, write_rows

    rows = mixed(9).set_column(5, "origin", pa.array([f"{seed:06}:{row:04}" for row in range(300)]))
    write_rows(path, rows, raw=True)


def quietly_replaced(root: Path, step: str, moment: str, **more: Any) -> None:
    """Between the two reads, other bytes of the same size, time and inode: the footer shows the change."""
    drive = Drive(**more)
    world = prepare(root, drive)
    part = world.source / ".raw.part"
    _write_raw(part, 81)
    world.keep(part)
    part.rename(world.source / "900000.parquet")
    outcome = go(world, replace(drive, at=(step, moment), action=_replace_quietly))
    is_fine = outcome.kind == "version" or outcome.error in ("SourceError", "ChangedError")
    demand(outcome.is_disturbed, "the source did not change in the middle of the run")
    injected("source replaced quietly in a run")
    demand(is_fine, f"{outcome.error}: {outcome.message}")
    finish(world, drive)


# -- Disks


def full_by_limit(root: Path, limit: int, *, recovering: bool = False, **more: Any) -> None:
    """No file can grow beyond some bytes: the run reports it and changes nothing. Later runs succeed."""
    drive = Drive(**more)
    world = prepare(root, drive)
    if recovering:
        kill(world, drive, "apply", "before")
    before, decided = visible(world), world.decided()
    outcome = go(world, replace(drive, file_bytes_max=limit))
    _check_error(outcome)
    # What was decided before may be shown by now.
    is_same = recovering or world.decided() > decided or visible(world) == before
    demand(outcome.kind == "version" or is_same, "an error changed what others see")
    demand(not outcome.quarantined, f"a full disk had files quarantined: {outcome.quarantined}")
    finish(world, drive)


def _check_error(outcome: Outcome) -> None:
    tried("full disks", outcome.kind == "error")
    injected("disk full", outcome.kind == "error")
    blames_disk = outcome.error in ("", "OSError", "PermissionError", "StoreError")
    demand(blames_disk, f"a full disk ended with {outcome.error}: {outcome.message}")


def full_by_blocks(root: Path, pages: int, **more: Any) -> None:
    """A file system of its own, on which so many blocks are free."""
    drive = Drive(**more)
    with small_disk(root):
        world = prepare(root, drive)
        filler = root / "filler"
        with open(filler, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(filler, max(0, filler.stat().st_size // 4096 - pages) * 4096)
        before, decided = visible(world), world.decided()
        outcome = go(world, drive)
        _check_error(outcome)
        is_same = world.decided() > decided or visible(world) == before
        demand(outcome.kind == "version" or is_same, "an error changed what others see")
        filler.unlink()
        finish(world, drive)


@contextmanager
def small_disk(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "fencepost-faults", str(root)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def forbidden(root: Path, folder: str, *, versions: int = 1) -> None:
    """Nothing can be made or removed in a folder; then it can again."""
    drive = Drive()
    world = prepare(root, drive, versions=versions)
    (world.root / folder).mkdir(parents=True, exist_ok=True)
    before, decided = visible(world), world.decided()
    with locked(world.root / folder):
        outcome = go(world, drive)
        demand(outcome.error in ("PermissionError", "OSError"), f"a locked {folder} ended with {outcome}")
        injected("rights taken away")
        is_decided = world.decided() > decided
        demand(is_decided or visible(world) == before, "an error changed what others see")
    finish(world, drive)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Permissions do not stop root, but an attribute of the file system does."""
    if os.geteuid():
        folder.chmod(0o555)
    else:
        subprocess.run(["chattr", "+i", str(folder)], check=True)
    try:
        yield
    finally:
        if os.geteuid():
            folder.chmod(0o755)
        else:
            subprocess.run(["chattr", "-i", str(folder)], check=True)


# -- Damage


def _newest_segment(world: World) -> Path:
    return world.state / world.opened().version(world.decided()).shards.files[-1]


def _ledger(world: World) -> Path:
    return world.state / world.opened().version(world.decided()).ledger.name[-1]


TARGETS: dict[str, Callable[[World], Path]] = {
    "segment": _newest_segment,
    "ledger": _ledger,
    "log": lambda world: world.state / f"log/{world.decided()}.json",
    "done": lambda world: world.state / f"done/{world.decided()}",
    "settings": lambda world: world.state / "state.json",
    "marker": lambda world: world.sink / "_fencepost.json",
}


def damaged(root: Path, target: str, damage: str, place: float = 0.5, **more: Any) -> None:
    """A file of the state has changed: the run names it and changes nothing. After a repair, runs continue."""
    drive = Drive(**more)
    world = prepare(root, drive, versions=2)
    path = TARGETS[target](world)
    good = path.read_bytes()
    _damage(path, damage, place)
    before = visible(world)
    outcome = go(world, drive)
    if (target, damage) == ("done", "missing"):  # as if its driver had died before Finish
        demand(outcome.recovered == (2,) and outcome.version == 3, f"{outcome}")
        finish(world, drive)
        return
    errors = ("SinkError", "SinkChangedError") if target == "marker" else ("SnapshotError",)
    demand(outcome.error in errors, f"a damaged {target} ended with {outcome}")
    # A log is found wrong by what follows from it; other settings are those of another job.
    name = {"log": "log/", "done": "/done/", "settings": str(world.state), "marker": str(world.sink)}
    demand(name.get(target, path.name) in outcome.message, f"{path} is not named: {outcome.message}")
    demand(visible(world) == before, "an error changed what others see")
    path.write_bytes(good)
    finish(world, drive)


def _damage(path: Path, damage: str, place: float) -> None:
    injected(f"file of a state damaged: {damage}")
    data = bytearray(path.read_bytes())
    at = int(place * (len(data) - 1))
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[:at])
    else:
        data[at] ^= 0x20
        path.write_bytes(data)


def damaged_undecided(root: Path, what: str) -> None:
    """Between Decide and Apply the prepared files are harmed: nothing else than what was decided may be shown."""
    drive = Drive()
    world = prepare(root, drive)
    kill(world, drive, "apply", "before")
    prepared = world.sink / str(world.opened().version(2).prepared)
    path = sorted(prepared.glob("*.parquet"))[-1]
    good = path.read_bytes()
    injected(f"prepared file harmed: {what}")
    if what == "missing":
        path.unlink()
    elif what == "truncated":
        path.write_bytes(good[:100])
    else:
        (prepared / "part-99999.parquet").write_bytes(good)
    outcome = go(world, drive)
    demand(outcome.error == "SinkChangedError", f"harmed outputs ended with {outcome}")
    demand(not (world.sink / "run=2").exists(), "harmed outputs were shown")
    (prepared / "part-99999.parquet").unlink(missing_ok=True)
    path.write_bytes(good)
    finish(world, drive)


# -- Clocks


def clock_jumped(root: Path, years: float, *, versions: int = 1, **more: Any) -> None:
    """The machine's clock is off: verdicts, state and evictions go by the data's."""
    drive = Drive(options={"max_idle_ms": DAY_MS, "clock_gap_max_ms": 30 * DAY_MS}, **more)
    world = prepare(root, drive, versions=versions)
    outcome = go(world, replace(drive, clock_years=years))
    injected(f"clock off by {years} years")
    demand(outcome.version == versions + 1, f"{outcome.error}: {outcome.message}")
    finish(world, drive)


def unfinished_file(root: Path, years: float) -> None:
    """A file that is still being written, by a clock that is off: it is read once it is whole."""
    drive = Drive(options={"settle_ms": 60_000})
    world = prepare(root, drive)
    path = world.land(104)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    injected("file unfinished")
    outcome = go(world, replace(drive, clock_years=years))
    demand(outcome.version == 2 and outcome.files == 3, f"{outcome}")
    demand(outcome.deferred == (path.name,) and not outcome.quarantined, f"quarantined: {outcome.quarantined}")
    path.write_bytes(whole)
    world.keep(path)
    finish(world, drive)


# -- Producers that restart their numbers


def _numbered(first_ms: int, pid: int, origin: int, count: int = 2_000) -> pa.Table:
    columns = {
        "pid": [pid] * count,
        "epoch": [0] * count,
        "partition": [0] * count,
        "seq": list(range(count)),
        "timestamp": [first_ms + row for row in range(count)],
        "origin": [f"{origin:06}:{row:04}" for row in range(count)],
    }
    return pa.table(columns).cast(SCHEMA)


def topic_recreated(root: Path, **more: Any) -> None:
    """Sequences begin from 0 in newer rows: the run stops before it swallows them."""
    drive = Drive(options={"max_idle_ms": DAY_MS}, **more)
    world = World(root)
    world.land(1, rows=_numbered(BEGIN_MS, 7, 1))
    demand(go(world, drive).version == 1, "the world cannot be prepared")
    before = visible(world)
    path = world.land(2, rows=_numbered(BEGIN_MS + HOUR_MS, 7, 2))
    injected("numbers restarted")
    outcome = go(world, drive)
    demand(outcome.error == "PolicyError" and "seems to have restarted" in outcome.message, f"not suspected: {outcome}")
    demand(visible(world) == before, "an error changed what others see")
    path.unlink()
    finish(world, drive)


def evicted_and_replayed(root: Path, plan: str | None = None) -> None:
    """Forgotten rows arrive again: every row is FORGOTTEN and written to _rejects; none is kept or dropped."""
    options = {"max_idle_ms": DAY_MS, "clock_gap_max_ms": 30 * DAY_MS, "rejected_max": 1.0, "plan": plan}
    drive = Drive(options=options)
    world = World(root)
    world.land(1, rows=_numbered(BEGIN_MS, 7, 1))
    go(world, drive)
    world.land(2, rows=_numbered(BEGIN_MS + 10 * DAY_MS, 8, 2))
    go(world, drive)
    world.land(3, rows=_numbered(BEGIN_MS, 7, 1))
    outcome = go(world, drive)
    injected("forgotten rows sent again")
    demand(outcome.counts == {"FORGOTTEN": 2_000}, f"{outcome}")
    rejects = list((world.sink / "run=3" / "_rejects" / "verdict=FORGOTTEN").glob("*.parquet"))
    rows = [row for path in rejects for row in pq.read_table(path, partitioning=None)["origin"].to_pylist()]
    demand(rows == [f"000001:{row:04}" for row in range(2_000)], "not all of them are in _rejects")
    settle(world, drive)
    check(world, drive.options, rows=False)
    demand(not leftovers(world), f"left over: {leftovers(world)}")


# -- Stores that lie


def lying_store(
    root: Path,
    endpoint: str,
    lies: tuple[str, ...],
    seed: int,
    *,
    share: float = 0.5,
    drivers: int = 1,
    die: str = "",
    **more: Any,
) -> None:
    """The state in an object store behind a faulty proxy; one driver or several, one of them killed at a step."""
    world = World(root)
    with Liar(endpoint, lies, VARIATION.of(seed), share) as liar:
        options = _remote(root, liar.endpoint)
        drive = Drive(options=options, **more)
        _go_under_lies(world, drive, drivers, die)
        _count_lies(liar, "store lied")
    _check_remote(world, options, endpoint)


def _go_under_lies(world: World, drive: Drive, drivers: int, die: str) -> None:
    for round_ in range(3):
        world.land(10 * round_ + 1, 10 * round_ + 2)
        # A round in which the first one dies, else all of them decide at the same time.
        fault: dict[str, Any] = {"at": (die, "before"), "act": "kill"} if die and round_ == 1 else {}
        meeting = {"at": ("decide", "before"), "action": partial(_meet, drivers=drivers)}
        others = meeting if drivers > 1 and not fault else {}
        faults = [fault or others, *[others] * (drivers - 1)]
        running = [Driver(world, replace(drive, **it)) for it in faults]
        outcomes = [driver.wait() for driver in running]
        for outcome in outcomes:
            is_fine = outcome.kind != "error" or outcome.error in ("StateConflictError", "StoreError")
            demand(is_fine, f"a lying store ended with {outcome.error}: {outcome.message}")
        if others:
            lost = sum(outcome.error == "StateConflictError" for outcome in outcomes)
            tried("races under lies", _part(world) == drivers and lost == drivers - 1)
    settle(world, drive)


def _count_lies(liar: Liar, what: str) -> None:
    demand(sum(liar.answers[lie] for lie in liar.lies) > 3, f"too few false answers: {liar.answers}")
    for lie in liar.lies:
        tried("kinds of lies", liar.answers[lie] > 0)
        injected(f"{what}: {lie}", liar.answers[lie])


def outcome_unknown(root: Path, endpoint: str, **more: Any) -> None:
    """No put of a decision is answered, and one is stored after its writer has stopped: the next run finishes it."""
    world = World(root)
    with Liar(endpoint, ("dropped, then late",), share=1, names="/log/2.json", late_seconds=None) as liar:
        options = _remote(root, liar.endpoint)
        drive = Drive(options=options, **more)
        world.land(1, 2)
        demand(go(world, drive).version == 1, "the world cannot be prepared")
        world.land(3)
        outcome = go(world, drive)
        demand(outcome.error == "StoreError", f"a decision without an answer ended with {outcome}")
        demand(not (world.sink / "run=2").exists(), "what is not known to be decided was shown")
        opened = state.open(options["state"], options=s3_options(endpoint))
        demand(opened.decided() == 1, "the decision has landed before it was to arrive")
        injected("store lied: dropped, then late", liar.answers["dropped, then late"])
        liar.may_arrive.set()
        wait_until(lambda: opened.decided() == 2, "the decision has not landed")
        world.path_of(3).unlink()
        found = settle(world, drive)
        demand(found[0].recovered == (2,), f"recovered {found[0].recovered}")
    _check_remote(world, options, endpoint)


def _remote(root: Path, endpoint: str) -> dict[str, Any]:
    """Options of a job whose state is new and in a store."""
    uri = f"s3://{BUCKET}/{root.name}-{os.urandom(4).hex()}"
    return {"state": uri, "state_options": s3_options(endpoint)}


def _check_remote(world: World, options: dict[str, Any], endpoint: str) -> None:
    opened = state.open(options["state"], options=s3_options(endpoint))
    opened.collect_garbage()
    check(world, options, opened=opened)
    demand(not leftovers(world, opened), f"left over: {leftovers(world, opened)}")


def careless_store(root: Path) -> None:
    """A store that ignores conditions is refused before anything is decided."""
    world = World(root)
    world.land(1, 2)
    with serve_by_moto() as endpoint, Liar(endpoint, ("ignored",), share=1) as liar:
        outcome = go(world, Drive(options=_remote(root, liar.endpoint)))
        injected("store lied: ignored", liar.answers["ignored"])
    demand(outcome.error == "StoreError" and "exactly one must succeed" in outcome.message, f"not refused: {outcome}")
    demand(not list(world.sink.glob("run=*")), "something is shown")


# -- State and sink in an object store


@contextmanager
def in_store(endpoint: str) -> Iterator[None]:
    """Worlds that are made here have their state and their sink in an object store."""
    PLACE.endpoint = endpoint
    try:
        yield
    finally:
        PLACE.endpoint = ""


def stored(root: Path, endpoint: str, act: Callable[..., None], *arguments: Any, **named: Any) -> None:
    """Another case, with state and sink in an object store."""
    with in_store(endpoint):
        act(root, *arguments, **named)


def lying_sink(
    root: Path,
    endpoint: str,
    lies: tuple[str, ...],
    seed: int,
    *,
    verb: str = "",
    share: float = 0.5,
    drivers: int = 1,
    die: str = "",
    **more: Any,
) -> None:
    """State and sink behind a faulty proxy; `verb`: the affected requests, copies and uploads among them."""
    drive = Drive(**more)
    with in_store(endpoint):
        world = World(root)
    with Liar(endpoint, lies, VARIATION.of(seed), share, verb=verb) as liar:
        _go_under_lies(replace(world, endpoint=liar.endpoint), drive, drivers, die)
        _count_lies(liar, f"sink lied about {verb or 'conditional puts'}")
    finish(world, drive, collect=True)


def careless_sink(root: Path, lie: str) -> None:
    """A store in which several writers of a name may win is refused before anything is decided or shown."""
    with serve_by_moto() as endpoint, in_store(endpoint):
        world = World(root)
        world.land(1, 2)
        with Liar(endpoint, (lie,), share=1) as liar:
            outcome = go(replace(world, endpoint=liar.endpoint), Drive())
            injected(f"sink lied about conditional puts: {lie}", liar.answers[lie])
        is_refused = outcome.error == "StoreError" and "exactly one must succeed" in outcome.message
        demand(is_refused, f"not refused: {outcome}")
        demand(not visible(world), "something is shown")
        finish(world, Drive())


# -- Power


def in_order(
    root: Path,
    version: int = 1,
    plan: str | None = None,
    *,
    hive: bool = False,
    keeps: bool = False,
    mutant: str = "",
) -> None:
    """Everything is durable before it is declared: segments, ledger, outputs, side tables, in Hive folders too."""
    options = {"plan": plan, "rejects": "all"} | (KEEPS | {"on_conflict": "quarantine"} if keeps else {})
    world = prepare(root, Drive(options=options), versions=version - 1, hive=hive)
    if order.can_trace():
        events = order.traced(world, options, mutant)
    else:
        events = order.recorded(lambda: make_job(world, Drive(options=options, mutant=mutant)).run(), root)
    order.check_order(world, version, events)
    injected("power lost after a call", len(events))
    tables = set(world.opened().version(version).side_files.table)
    demand(tables == {"rejects", "missing"}, f"side tables: {tables}")
    finish(world, Drive(options=options))


# -- All of them


@dataclass(frozen=True)
class Case:
    kind: str
    act: Callable[..., None]
    needs: str = ""
    """What it cannot run without: "mount", "chattr", "s3"."""


def _all() -> dict[str, Case]:
    cases: dict[str, Case] = {}

    def add(kind: str, act: Callable[..., None], *arguments: Any, needs: str = "", **named: Any) -> None:
        facts = [getattr(it, "__name__", str(it)) for it in arguments] + [f"{name}={it}" for name, it in named.items()]
        name = " ".join([act.__name__, *facts])
        assert name not in cases, name
        cases[name] = Case(kind, partial(_in_order, act, arguments, named), needs)

    changes = [change for _ in range(100) for change in CHANGES]
    for plan, steps in (("interval", STEPS), ("row", STEPS), ("aligned", ALIGNED_STEPS)):
        for step in steps:
            for moment in ("before", "after") if step in IN_THE_DRIVER else ("within", "after"):
                if (step, moment) != ("judge", "within"):
                    add("kill at a step", killed_at_a_step, step, moment, plan, changes.pop())
    for step, moment in (("write", "after"), ("decide", "after"), ("apply", "after")):
        add("kill at a step", killed_at_a_step, step, moment, "interval", changes.pop(), hive=True)
    for step in (*KEEPING_STEPS, "decide", "apply"):
        add("kill at a step", killed_at_a_step, step, "after", None, changes.pop(), keeps=True)
    for calls in range(1, 25, 2):
        add("kill in recovery", killed_in_recovery, calls, changes.pop())
    for moment in ("before", "after"):
        add("kill in recovery", killed_at_the_ends_of_recovery, moment, changes.pop())
    for at, plan in enumerate(("interval", "row", "aligned")):
        for calls in range(1 + at, 64, 6):  # a run makes some sixty, the first one eighty
            add("kill at a change to the disk", killed_at_a_call, calls, plan)
    for calls in range(2, 74, 8):
        add("kill at a change to the disk", killed_at_a_call, calls, keeps=True)
    for calls in range(5, 85, 8):
        add("kill at a change to the disk", killed_at_a_call, calls, versions=0)
    for seed in range(12):
        add("kill at random", killed_at_random, seed, ("interval", "row", "aligned")[seed % 3])
    for plan in ("interval", "aligned"):
        for step in ("check", "decide", "apply", "finish"):
            for moment in ("before", "after"):
                add("stop and go on", stopped, step, moment, plan=plan)
    for calls in (1, 2, 3, 4):
        add("stop and go on", stopped, "apply", calls=calls)
    for calls in (1, 2, 3):
        add("stop and go on", stopped, "decide", calls=calls)
    for moment, calls in (("before", 0), ("", 1), ("", 2), ("after", 0)):
        add("stop and go on", stopped_and_abandoned, moment, calls)
    for operation, last in ((("abandon", 3), 16), (("collect_garbage", 1), 30), (("reshard", 3), 22)):
        for calls in range(1, last, 3):
            add("kill in an operation", killed_in_an_operation, operation, calls)
    for calls in range(1, 40, 4):
        add("kill in a split", killed_in_a_split, calls)
    for calls in range(2, 82, 8):
        add("kill with large files", killed_with_large_files, calls)
    for calls in range(2, 82, 8):
        add("kill with hot shards", killed_with_hot_shards, calls)
    for seed in range(4):
        add("race", raced, 3, seed)
    for versions in (0, 1):
        add("race", met_at_decide, 3, versions=versions)
    for mode in workers.MODES:
        for plan in ("interval", "row", "aligned"):
            for seed in seeds(f"{mode} {plan}", 2):
                add("workers", disturbed_workers, mode, seed, plan)
        add("workers", disturbed_workers, mode, 3, keeps=True)
        add("workers", disturbed_workers, mode, 4, hot=True)
    for step in ("scan", "judge", "write"):
        add("workers", orphaned_workers, 5, step)
    moments = [("list", "after"), ("scan", "within"), ("scan", "after"), ("judge", "after"), ("write", "within")]
    for step, moment in [*moments, ("decide", "before"), ("apply", "before")]:
        for change in CHANGES:
            add("source", changed_source, step, moment, change)
    for step, moment in (("list", "after"), ("align", "within"), ("judge", "after")):
        for change in ("overwrite", "delete", "swap"):
            add("source", changed_source, step, moment, change, "aligned")
    for step in ("scan", "judge", "list"):
        add("source", quietly_replaced, step, "after")
    for limit in (0, 60, 150, 400, 1_000, 2_500, 5_000, 7_500, 10_000):
        add("full disk", full_by_limit, limit)
    for limit in (0, 60, 150):
        add("full disk", full_by_limit, limit, recovering=True)
    for pages in range(0, 48, 4):
        add("full disk", full_by_blocks, pages, needs="mount")
    for folder in ("sink", "sink/_prepare", "state/log", "state/done", "state/segments", "sink/run=1"):
        if folder != "sink/run=1":
            add("lost rights", forbidden, folder, needs="chattr")
    for folder in ("sink", "state", "state/log"):
        add("lost rights", forbidden, folder, versions=0, needs="chattr")
    for target in TARGETS:
        for damage in ("flipped", "truncated", "missing"):
            add("damage", damaged, target, damage)
    for place in (0.0, 0.02, 0.98, 1.0):
        add("damage", damaged, "segment", "flipped", place)
    for what in ("missing", "truncated", "added"):
        add("damage", damaged_undecided, what)
    for years in (-2, 10):  # still after the rows: the clock of a state does not pass that of the machine by much
        for versions in (1, 2):
            add("clock", clock_jumped, years, versions=versions)
    for years in (-10, 10):
        add("clock", unfinished_file, years)
    for version in (1, 2):
        for plan in ("interval", "row", "aligned"):
            add("order of syncs", in_order, version, plan)
    add("order of syncs", in_order, 2, hive=True)
    add("order of syncs", in_order, 2, keeps=True)
    add("restarted", topic_recreated)
    add("restarted", evicted_and_replayed)
    add("restarted", evicted_and_replayed, "row")
    for at, lie in enumerate(LIES):
        # One that arrives is not put again: there are fewer of them.
        arrives = lie in ("503 after", "dropped after", "late", "late and dropped")
        add("lying store", lying_store, (lie,), at, share=0.8 if arrives else 0.5, needs="s3")
    for seed, die in ((20, ""), (21, "apply"), (22, "finish")):
        add("lying store", lying_store, LIES, seed, drivers=2, die=die, needs="s3")
    add("lying store", outcome_unknown, needs="s3")
    add("lying store", careless_store)
    for lie in ("ignored", "checked before"):
        add("object store", careless_sink, lie)
    _add_stored(partial(add, "object store", needs="s3"), changes)
    return cases


def _add_stored(add: Callable[..., None], changes: list[str]) -> None:
    """State and sink in an object store."""
    for plan, steps in (("interval", STEPS), ("aligned", ALIGNED_STEPS)):
        for step in steps:
            for moment in ("before", "after") if step in IN_THE_DRIVER else ("after",):
                add(stored, killed_at_a_step, step, moment, plan, changes.pop())
    for moment in ("within", "after"):
        add(stored, killed_at_a_step, "copy", moment, "interval", "delete")
    add(stored, killed_at_a_step, "compare", "after", None, changes.pop(), keeps=True)
    add(stored, killed_at_a_step, "apply", "after", "interval", changes.pop(), hive=True)
    for calls in range(1, 34, 2):
        add(stored, killed_at_a_call, calls, ("interval", "aligned")[calls // 2 % 2])
    for calls in range(2, 60, 5):
        add(stored, killed_at_a_call, calls, versions=0)
    for calls in range(1, 14, 2):
        add(stored, killed_in_recovery, calls, changes.pop())
    for seed in range(6):
        add(stored, killed_at_random, seed, ("interval", "row", "aligned")[seed % 3])
    for step in ("check", "decide", "apply", "finish"):
        for moment in ("before", "after"):
            add(stored, stopped, step, moment)
    for calls in range(1, 10):
        add(stored, stopped, "apply", calls=calls)
        add(stored, stopped_and_abandoned, "", calls)
    for moment in ("before", "after"):
        add(stored, stopped_and_abandoned, moment)
    for operation in (("abandon", 3), ("collect_garbage", 1)):
        for calls in (1, 2, 3, 5):
            add(stored, killed_in_an_operation, operation, calls)
    for seed in range(4):
        add(stored, raced, 3, seed)
    for versions in (0, 1):
        add(stored, met_at_decide, 3, versions=versions)
    for mode in workers.MODES:
        for plan in ("interval", "aligned"):
            add(stored, disturbed_workers, mode, 5, plan)
    for step in ("scan", "write", "copy"):
        add(stored, orphaned_workers, 5, step)
    for seed, lies in enumerate([*((lie,) for lie in LIES), LIES]):
        add(lying_sink, lies, seed)
    for seed, die in ((20, ""), (21, "apply"), (22, "finish")):
        add(lying_sink, LIES, seed, drivers=3, die=die)
    for verb, lies in LIES_ABOUT.items():
        share = 0.2 if verb in ("GET", "PUT") else 0.5
        add(lying_sink, lies, 30, verb=verb, share=share)
        add(lying_sink, lies, 31, verb=verb, share=share, drivers=2, die="apply")


def _in_order(
    act: Callable[..., None], arguments: tuple[Any, ...], named: dict[str, Any], root: Path, **more: Any
) -> None:
    endpoint = (more.pop("endpoint"),) if "endpoint" in more else ()
    act(root, *endpoint, *arguments, **named, **more)


CASES = _all()

OBJECTIONS: list[tuple[str, Callable[..., None], dict[str, Any]]] = [
    ("relists", killed_at_a_step, {"step": "apply", "moment": "after", "then": "add"}),
    ("syncs_nothing", in_order, {}),
    ("syncs_late", in_order, {}),
    ("finishes_first", in_order, {"version": 2}),
    ("copies_file_by_file", in_order, {"version": 2}),
    ("copies_file_by_file", stopped, {"step": "apply", "calls": 2}),
    ("zombie_overwrites", stopped, {"step": "apply"}),
    ("drops_ledger", killed_at_a_step, {"step": "check", "moment": "after", "then": "add"}),
    ("finishes_first", killed_at_a_step, {"step": "apply", "moment": "before", "then": "delete"}),
    ("forgets_state", damaged, {"target": "segment", "damage": "flipped"}),
    ("collects_all", disturbed_workers, {"mode": "twice", "seed": 1}),
    ("checks_once", changed_source, {"step": "judge", "moment": "after", "change": "swap"}),
    ("checks_once", quietly_replaced, {"step": "judge", "moment": "after"}),
    ("writes_in_place", full_by_limit, {"limit": 60, "recovering": True}),
    ("evicts_by_the_clock", clock_jumped, {"years": 10}),
    ("drops_checksums", killed_at_a_step, {"step": "compare", "moment": "after", "keeps": True}),
    ("keeps_silent", topic_recreated, {}),
    ("leaves_rubbish", killed_at_a_step, {"step": "write", "moment": "after", "then": "delete"}),
    ("trusts_claims", killed_at_a_step, {"step": "finish", "moment": "after", "plan": "aligned", "then": "touch"}),
    ("believes_exists", lying_store, {"lies": ("503 after",), "seed": 0}),
    ("undoes_losses", outcome_unknown, {}),
    ("shows_undecided", stored, {"act": killed_at_a_step, "step": "collect", "moment": "after"}),
    ("claims_nothing", stored, {"act": stopped_and_abandoned, "moment": "before"}),
    ("marks_first", stored, {"act": stopped, "step": "apply", "calls": 3}),
]
