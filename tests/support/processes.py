"""Processes of tests: from one fork server that has imported everything already, so one costs milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

# The server looks for what it is to import there and nowhere else, and says nothing of what it has not found.
_TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH", ""))))
_CONTEXT = multiprocessing.get_context("forkserver")
# Of pytest's own process, which children take for their main module; and pyarrow's first array looks for pandas.
_MODULES = ["pytest", "pandas"]


def fork_server(*modules: str) -> ForkServerContext:
    """The server, which imports these too when it starts: with the first process of all."""
    _MODULES.extend(it for it in modules if it not in _MODULES)
    _CONTEXT.set_forkserver_preload(_MODULES)
    return _CONTEXT


def process_state(pid: int | None) -> str:
    """What the kernel says of a process: "T" if it is stopped, "Z" if it has ended and nobody has asked for its exit
    code, "" if it is gone."""
    try:
        # The state follows the name, which is in parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_stopped(pid: int | None) -> bool:
    return process_state(pid) == "T"


def killed_at(step: str | None, at: int) -> Callable[[str], None]:
    """What a process calls with the name of each step that it reaches: at `step` for the `at`-th time, it is killed."""
    reached: Counter[str] = Counter()

    def reach(it: str) -> None:
        reached[it] += 1
        if it == step and reached[it] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach
