"""Contestants timed in alternated rounds, their answers checked in every round."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

Role = Literal["ours", "peer", "limit"]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to answer the question."""

    name: str
    threads: int
    run: Callable[[], Any]
    """What is timed; its result is the answer, or what `answer` finds it in."""
    expected: Any
    """The true answer."""
    answer: Callable[[Any], Any] = lambda result: result
    """Takes the answer from the result, untimed."""
    role: Role = "peer"
    """`limit`: does less than the question asks, and shows how fast anything could be."""


@dataclass(kw_only=True)
class Measurement:
    """What became of a contestant."""

    contest: str
    name: str
    threads: int
    role: Role
    rows: int
    expected: Any
    answer: Any = None
    """The last one, or the first wrong one."""
    is_right: bool = True
    seconds: list[float] = field(default_factory=list)
    """By round."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.median

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Measurement:
        return cls(**{field.name: fields[field.name] for field in dataclasses.fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """Everything, the derived figures too."""
        return {**dataclasses.asdict(self), "median": self.median, "rows_per_second": self.rows_per_second}


@dataclass(frozen=True)
class Target:
    """A figure to reach, and what was found."""

    what: str
    wanted: str
    found: str
    is_met: bool


def alternate(
    contest: str,
    contestants: Sequence[Contestant],
    rows: int,
    rounds: int,
    settle: Callable[[], object] = gc.collect,
    warm_up: bool = True,
) -> list[Measurement]:
    """Each contestant once per round, so that what disturbs the machine for a while disturbs them all. Each round
    begins with another contestant.

    `settle` is called before each. The first round is not counted if `warm_up`; its answers are. A wrong answer is
    recorded, not raised: it belongs into the table.
    """
    measurements = [
        Measurement(contest=contest, name=it.name, threads=it.threads, role=it.role, rows=rows, expected=it.expected)
        for it in contestants
    ]
    turns = list(zip(contestants, measurements, strict=True))
    for number in range(0 if warm_up else 1, rounds + 1):
        begin = number % len(turns)
        for contestant, measurement in turns[begin:] + turns[:begin]:
            settle()
            start = time.perf_counter()
            result = contestant.run()
            seconds = time.perf_counter() - start
            answer = contestant.answer(result)
            if measurement.is_right:
                measurement.answer = answer
                measurement.is_right = answer == contestant.expected
            if number:
                measurement.seconds.append(seconds)
            tell(f"{contest}, round {number} of {rounds}: {contestant.name} {seconds:.3f} s")
            del result
    return measurements


@contextmanager
def memory_watched() -> Iterator[list[int]]:
    """Yields a list of one number: afterwards the peak memory of this process above its memory before, in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, peak = memory_bytes("VmRSS"), [0]
    yield peak
    peak[0] = max(0, memory_bytes("VmHWM") - before)


def memory_bytes(field: str) -> int:
    """What the system says of this process: VmRSS, its memory now, or VmHWM, the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


@cache
def revision() -> dict[str, Any]:
    """The commit that is measured, and whether the work tree has no other changes. Results do not count: a run writes
    them part by part."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)bench/results")
        return {"commit": git("rev-parse", "HEAD"), "is_clean": not changes}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "is_clean": False}


def describe_revision(found: dict[str, Any] | None) -> str:
    """As a page states it; of results from before revisions were recorded, that."""
    if found is None:
        return "Revision not recorded"
    return f"Revision `{found['commit'][:12]}`" + ("" if found["is_clean"] else " with uncommitted changes")


def machine() -> dict[str, Any]:
    """What matters of the machine, and nothing that names it."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
    }


def write_part(part: Callable[[int, int], dict[str, Any]]) -> None:
    """A part of the benchmark as a program: rows, rounds and the file for its results are the arguments."""
    rows, rounds, out = sys.argv[1:]
    Path(out).write_text(json.dumps(part(int(rows), int(rounds))))


def tell(text: str) -> None:
    """A line on the screen, for people who wait."""
    print(text, file=sys.stderr, flush=True)
