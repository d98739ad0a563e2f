"""Runs the cases: `python -m faults.run [part of a name ...]`. Seconds and failures go to standard output."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from inspect import signature
from pathlib import Path

SHARE_MIN = 0.5
"""Of the faults that are left to chance so many must have come before the run was over."""


def main() -> int:
    from faults.cases import CASES, OBJECTIONS
    from faults.world import TRIED, Broken

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="run only cases whose names or kinds have one of these")
    parser.add_argument("--keep", action="store_true", help="leave the worlds of failed cases")
    given = parser.parse_args()
    wanted = {
        name: case
        for name, case in CASES.items()
        if not given.words or any(word in f"{case.kind}: {name}" for word in given.words)
    }
    began, counts, failed, skipped = time.monotonic(), Counter(), [], Counter()
    top = Path(tempfile.mkdtemp(prefix="faults-"))
    with ExitStack() as stack:
        endpoint = ""

        def store() -> dict[str, str]:
            nonlocal endpoint
            if not endpoint:
                from s3_server import serve_s3

                endpoint = stack.enter_context(serve_s3())
            return {"endpoint": endpoint}

        for at, (name, case) in enumerate(wanted.items()):
            if case.needs and not is_there(case.needs):
                skipped[f"{case.kind} (needs {case.needs})"] += 1
                continue
            root, start = top / f"{at}", time.monotonic()
            try:
                case.act(root, **(store() if case.needs == "s3" else {}))
                counts[case.kind] += 1
            except Exception as error:
                failed.append(name)
                told = str(error) if isinstance(error, Broken) else traceback.format_exc()
                print(f"FAILED {name}\n       {told[:1500]}\n       {root}", flush=True)
            if time.monotonic() - start > 8:
                print(f"       {name}: {time.monotonic() - start:.1f} s", flush=True)
            if not (given.keep and name in failed):
                shutil.rmtree(root, ignore_errors=True)
        chances = Counter(TRIED)  # those of broken jobs do not count
        for at, (mutant, act, facts) in enumerate(OBJECTIONS):
            if given.words and not any(word in f"mutant: {mutant}" for word in given.words):
                continue
            own = store() if "endpoint" in signature(act).parameters else {}
            try:
                act(top / f"m{at}", **own, mutant=mutant, **facts)
                failed.append(f"mutant {mutant}")
                print(f"FAILED {act.__name__} does not object to {mutant}", flush=True)
            except Broken as error:
                counts["broken jobs objected to"] += 1
                print(f"       {act.__name__} objects to {mutant}: {str(error)[:150]}", flush=True)
            except Exception:
                failed.append(f"mutant {mutant}")
                print(f"FAILED {act.__name__} breaks on {mutant}\n{traceback.format_exc()}", flush=True)
    for what in sorted({what for what, _ in chances}):
        happened, all_ = chances[what, True], chances[what, True] + chances[what, False]
        is_fair = happened >= SHARE_MIN * all_
        failed += [] if is_fair else [what]
        print(f"{'       ' if is_fair else 'FAILED '}{what}: {happened} of {all_} took place", flush=True)
    if not given.keep:
        shutil.rmtree(top, ignore_errors=True)
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    missing = "".join(f"; {count} {what} not run" for what, count in skipped.items())
    print(f"Threads: {sum(counts.values())} runs as they should ({listed}), {len(failed)} not{missing}; ", end="")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if failed else 0


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
