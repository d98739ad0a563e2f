"""Runs families of faults, some rounds each, and prints which faults took place.

`python -m faults.run [part of a family's name ...] [--rounds 200] [--jobs 2]`. Each family is a process of its own.
With `--family` this process runs that family of cases.py; `--cases` picks among its cases.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from inspect import signature
from pathlib import Path

from support.s3_server import serve_s3

from faults.tally import Tally, missed, table

BROKEN_JOBS = "broken jobs"
"""Not a family of faults: every mutant must be objected to, once."""
ELSEWHERE = {
    "chain": "chain.run",
    "consumer loop": "faults.loop",
    "Spark: driver killed": "faults.spark",
    "Spark: workers": "faults.spark",
}
"""Families with a module of their own. They take the longest, so they begin first."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="run only families whose names have one of these")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="families at a time")
    parser.add_argument("--family", help="run this family here")
    parser.add_argument("--cases", default="", help="only cases whose names have this")
    parser.add_argument("--tally", type=Path, help="where the family's figures go")
    given = parser.parse_args()
    if given.family:
        return run_here(given.family, given.rounds, given.cases, given.tally)
    return run_all(given.words, given.rounds, given.jobs)


def run_all(words: list[str], rounds: int, jobs: int) -> int:
    from faults.cases import CASES

    families = [*ELSEWHERE, *dict.fromkeys(case.kind for case in CASES.values()), BROKEN_JOBS]
    wanted = [it for it in families if not words or any(word in it for word in words)]
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="faults-"))

    def run(family: str) -> Tally:
        tally = folder / f"{family}.json"
        options = ["--family", family, "--rounds", str(rounds), "--tally", str(tally)]
        code = subprocess.run(
            [sys.executable, "-m", ELSEWHERE.get(family, "faults.run"), *options], check=False
        ).returncode
        found = Tally.read(tally) if tally.exists() else Tally(family)
        if code and not found.failed:
            found.failed.append(f"exit code {code}")
        if not found.injected and family != BROKEN_JOBS:
            found.failed.append("no fault took place")
        print(f"{family}: {found.rounds} rounds, {len(found.failed)} failed, {found.seconds:.0f} s", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        tallies = list(pool.map(run, wanted))
    shutil.rmtree(folder)
    print(table(tallies))
    failed = [f"{it.family}: {what}" for it in tallies for what in it.failed]
    print(f"{sum(it.rounds for it in tallies):,} rounds, {len(failed)} failed, {time.monotonic() - began:.0f} s")
    print("\n".join(failed) if failed else "Nothing was lost or doubled.")
    return 1 if failed else 0


def run_here(family: str, rounds: int, word: str, tally: Path | None) -> int:
    """Runs a family of cases.py, or the mutants."""
    found = Tally(family)
    top = Path(tempfile.mkdtemp(prefix="faults-"))
    with ExitStack() as stack:
        store = _store(stack)
        if family == BROKEN_JOBS:
            _object(top, found, store)
        else:
            _run_rounds(top, found, store, rounds, word, tally)
        found.failed += missed()
    shutil.rmtree(top, ignore_errors=True)
    found.write(tally)
    if not tally:
        print(table([found]))
    return 1 if found.failed else 0


def _store(stack: ExitStack) -> Callable[[], str]:
    """Gives the address of an object store, which starts when it is first asked for."""
    endpoint = ""

    def address() -> str:
        nonlocal endpoint
        if not endpoint:
            endpoint = stack.enter_context(serve_s3())
        return endpoint

    return address


def _run_rounds(top: Path, found: Tally, store: Callable[[], str], rounds: int, word: str, tally: Path | None) -> None:
    """Case after case, and again with other rows and other moments."""
    from faults import world
    from faults.cases import CASES

    cases = {name: case for name, case in CASES.items() if case.kind == found.family and word in name}
    able = {name: case for name, case in cases.items() if not case.needs or is_there(case.needs)}
    for name in cases.keys() - able.keys():
        print(f"not run, for it needs {cases[name].needs}: {name}")
    names = list(able)
    for round_ in range(rounds if names else 0):
        name, root = names[round_ % len(names)], top / f"{round_}"
        world.VARIATION.number = round_ // len(names)
        try:
            able[name].act(root, **({"endpoint": store()} if able[name].needs == "s3" else {}))
        except Exception as error:
            found.failed.append(f"{name}, round {round_}")
            message = str(error) if isinstance(error, world.Broken) else traceback.format_exc()
            print(f"FAILED {found.family}: {name}, round {round_}\n       {message[:1500]}", flush=True)
        found.rounds += 1
        found.write(tally)
        shutil.rmtree(root, ignore_errors=True)


def _object(top: Path, found: Tally, store: Callable[[], str]) -> None:
    from faults.cases import OBJECTIONS
    from faults.world import Broken

    for at, (mutant, act, facts) in enumerate(OBJECTIONS):
        own = {"endpoint": store()} if "endpoint" in signature(act).parameters else {}
        found.rounds += 1
        try:
            act(top / f"{at}", **own, mutant=mutant, **facts)
            found.failed.append(f"{act.__name__} does not object to {mutant}")
        except Broken as error:
            print(f"       {act.__name__} objects to {mutant}: {str(error)[:150]}", flush=True)
        except Exception:
            found.failed.append(f"{act.__name__} breaks on {mutant}")
            print(f"FAILED {act.__name__} breaks on {mutant}\n{traceback.format_exc()}", flush=True)


def is_there(what: str) -> bool:
    """Whether this machine lets us have it."""
    if what == "mount":
        return os.geteuid() == 0 and sys.platform == "linux" and _works(["mount", "--version"])
    if what == "chattr":
        return os.geteuid() != 0 or shutil.which("chattr") is not None
    return True


def _works(command: list[str]) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run(command, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
