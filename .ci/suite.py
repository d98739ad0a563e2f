"""Times the suites of `make test`.

`suite.py --clear` forgets an earlier run and checks that the disks have room.

`suite.py SUITE COMMAND...` runs one command of a suite, or of what suites need. The output goes to
target/suites/SUITE.log, the times to target/suites/SUITE.times; the log is printed if the command fails.

`suite.py` prints the slowest tests of every suite, what each suite took and when, and the summary lines of its test
runners.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "target" / "suites"
SLOWEST = 20
LIMIT_SECONDS = 75 * 60
"""After which a command hangs: it is ended, so that its log shows where."""
FREE_BYTES_MIN = 6 << 30
"""What a clone takes with its environments, jars and builds, rounded up."""
ORPHANS_SECONDS = 5.0
"""How long processes that a command leaves behind may take to end, so that their time is counted."""
PYTEST_TIME = re.compile(r"^\s*(\d+\.\d+)s (?:call|setup|teardown) +(\S.*)$", re.MULTILINE)
CARGO_TIME = re.compile(r"^test (\S.*) \.\.\. ok <(\d+\.\d+)s>$", re.MULTILINE)
NOTICE = re.compile(r"^(?:SKIPPED|XFAIL|FAILED|ERROR)\b.*$", re.MULTILINE)
SUMMARY = re.compile(
    r"^(?:=+ .*\b(?:passed|failed|error|no tests ran)\b.* in .*=+|test result: .*|Done \d+ runs .*)$", re.MULTILINE
)


def main(arguments: list[str]) -> int:
    if arguments == ["--clear"]:
        shutil.rmtree(FOLDER, ignore_errors=True)
        return check_disks()
    if arguments:
        return run(arguments[0].strip(".").replace("/", "-"), arguments[1:])
    report()
    return 0


def check_disks() -> int:
    """Returns 1 if a disk that the tests write to is nearly full: their own errors would not say so."""
    for folder in (str(FOLDER.parents[1]), tempfile.gettempdir()):
        free = shutil.disk_usage(folder).free
        if free < FREE_BYTES_MIN:
            print(f"{folder} has {free / 2**30:.1f} GiB free: the tests need {FREE_BYTES_MIN >> 30} GiB")
            return 1
    return 0


def run(suite: str, command: list[str]) -> int:
    """Runs the command and returns its exit code."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = FOLDER / f"{suite}.log"
    with suppress(AttributeError):  # Linux only: adopt orphans, such as the JVM of a session
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    # A shell's background jobs ignore Ctrl-C, and so would the tests of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.time()
    with log.open("ab") as output:
        start = output.tell()
        code = wait_for(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
    ended = time.time()
    await_orphans()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = usage.ru_utime + usage.ru_stime
    with (FOLDER / f"{suite}.times").open("a") as times:
        times.write(f"{began:.2f} {ended:.2f} {cpu:.2f}\n")
    if code:
        print(log.read_bytes()[start:].decode(errors="replace"))
    outcome = f"FAILED with exit code {code}" if code else "ok"
    print(f"{suite}: {outcome}, {ended - began:.0f} s, {cpu:.0f} s of CPU time: {' '.join(command)[:100]}", flush=True)
    return code


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Gives the exit code of the process, which it ends after LIMIT_SECONDS."""
    try:
        return process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(30) or 1
        process.kill()
        return process.wait()


def await_orphans() -> None:
    end = time.monotonic() + ORPHANS_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)


def report() -> None:
    # A file is empty if the disk was full when its line was written.
    suites = {path.stem: took(path) for path in FOLDER.glob("*.times") if path.stat().st_size}
    ordered = sorted(suites, key=lambda suite: -suites[suite].wall)
    logs = {suite: (FOLDER / f"{suite}.log").read_text(errors="replace") for suite in ordered}
    for suite in ordered:
        slow = slowest(logs[suite])
        if slow:
            print(f"\n{suite}: slowest tests")
        for test, seconds in slow:
            print(f"{seconds:9.2f} s  {test}")
        for notice in NOTICE.findall(logs[suite]):
            print(f"             {notice}")
    began = min((it.began for it in suites.values()), default=0.0)
    print(f"\n{'suite':<28}{'wall s':>9}{'CPU s':>9}{'from s':>9}{'to s':>9}")
    for suite in ordered:
        it = suites[suite]
        print(f"{suite:<28}{it.wall:>9.0f}{it.cpu:>9.0f}{it.began - began:>9.0f}{it.ended - began:>9.0f}")
    wall, cpu = sum(it.wall for it in suites.values()), sum(it.cpu for it in suites.values())
    print(f"{'together':<28}{wall:>9.0f}{cpu:>9.0f}")
    for suite in ordered:
        lines = SUMMARY.findall(logs[suite])
        if lines:
            print(f"\n{suite}:")
        for line in lines:
            print(line)


class Took(NamedTuple):
    """All commands of a suite, in seconds. `began` and `ended` count from the epoch."""

    wall: float
    cpu: float
    began: float
    ended: float


def took(times: Path) -> Took:
    lines = [tuple(map(float, line.split())) for line in times.read_text().splitlines()]
    wall = sum(ended - began for began, ended, _ in lines)
    return Took(wall, sum(it[2] for it in lines), min(it[0] for it in lines), max(it[1] for it in lines))


def slowest(log: str) -> list[tuple[str, float]]:
    """The slowest tests and their seconds, set-up and teardown included."""
    seconds: dict[str, float] = defaultdict(float)
    for time_of_part, test in PYTEST_TIME.findall(log):
        seconds[test] += float(time_of_part)
    for test, time_of_test in CARGO_TIME.findall(log):
        seconds[test] += float(time_of_test)
    return sorted(seconds.items(), key=lambda one: -one[1])[:SLOWEST]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
