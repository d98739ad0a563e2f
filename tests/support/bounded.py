"""Programs in an interpreter of their own, with a bound on its memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SPARE_BYTES = 1 << 30

PROLOGUE = """
    import resource, sys
    from pathlib import Path
    import fencepost as fp
    import pyarrow as pa
    {more}
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + {spare}, held + {spare}))
"""


def attempt(
    program: str, *arguments: object, more: str = "", spare_bytes: int = SPARE_BYTES
) -> subprocess.CompletedProcess[str]:
    prologue = textwrap.dedent(PROLOGUE).format(more=more, spare=spare_bytes)
    command = [sys.executable, "-c", prologue + textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def run(program: str, *arguments: object, more: str = "", spare_bytes: int = SPARE_BYTES) -> str:
    """The output of a program that may use a gibibyte more than its imports; ``more``: its own imports."""
    done = attempt(program, *arguments, more=more, spare_bytes=spare_bytes)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
