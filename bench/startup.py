"""What the start of a process costs: the import of the package, and a command that reads nothing.

`python -m bench.startup [--rounds N]` prints a table. Each start is a fresh process; contestants take turns, times are
medians. The start of Python itself is the limit: it is taken off the time of the import, not off that of the command.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from bench.markdown import emphasized, table
from bench.measure import Contestant, Measurement, Target, alternate

# As in an installed package, only the first round, which is not counted, compiles modules.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
PYTHON, IMPORT, HELP = "python", "import fencepost", "fencepost --help"
IMPORT_MS_MAX, HELP_MS_MAX = 50, 150


def measure(rounds: int) -> list[Measurement]:
    command = Path(sysconfig.get_path("scripts")) / "fencepost"
    return alternate(
        "start of a process",
        [
            _start(PYTHON, [sys.executable, "-c", "print('abc')"], "abc", is_limit=True),
            _start(
                IMPORT, [sys.executable, "-c", "import fencepost; print(fencepost.Verdict.ACCEPTED.name)"], "ACCEPTED"
            ),
            _start(HELP, [str(command), "--help"], "dedup"),
        ],
        rows=1,
        rounds=rounds,
    )


def _start(name: str, command: list[str], word: str, is_limit: bool = False) -> Contestant:
    """A process, whose output must have the word."""
    return Contestant(
        name=name,
        threads=1,
        role="limit" if is_limit else "ours",
        run=lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT).stdout,
        answer=lambda printed: word in printed,
        expected=True,
    )


def targets(found: list[Measurement]) -> list[Target]:
    ms = {it.name: it.median * 1000 for it in found}
    figures = ((IMPORT, IMPORT_MS_MAX, ms[IMPORT] - ms[PYTHON]), (HELP, HELP_MS_MAX, ms[HELP]))
    return [Target(name, f"{most} ms", f"{figure:.0f} ms", figure <= most) for name, most, figure in figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    found = measure(parser.parse_args().rounds)
    assert all(it.is_right for it in found), found
    rows = [(it.name, *(f"{1000 * s:.0f}" for s in (it.median, min(it.seconds), max(it.seconds)))) for it in found]
    print(table(("process", "ms", "fastest", "slowest"), rows, "lrrr"), end="\n\n")
    marks = [(it.what, it.wanted, it.found, "met" if it.is_met else "missed") for it in targets(found)]
    print(
        table(("figure to reach", "at most", "found", ""), [emphasized(it, it[-1] == "missed") for it in marks], "lrrl")
    )


if __name__ == "__main__":
    main()
