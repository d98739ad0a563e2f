"""Follows a tutorial in an empty folder: writes its programs, runs its commands, compares their output.

| block | what happens |
|---|---|
| `python`, with `# name.py` in its first line | it becomes the file `name.py` |
| `sh` | it runs, in one shell for each block |
| `text`, after `sh` | what the commands print; `...` stands for any text |
| `sh no-run: reason` | nothing: what a test cannot do, such as an installation |
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```([a-z]+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_SECONDS = 300


def do(page: Path, folder: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """Follow a page in a folder. Returns its commands, as they were run.

    Raises AssertionError, with the place in the page, for a command that fails and for other output than the page's.
    """
    text = page.read_text("utf-8")
    # Both `python` and `fencepost` are those of the tests.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = os.environ | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "100"} | dict(environment or {})
    done: list[str] = []
    printed = ""
    for match in BLOCK.finditer(text):
        kind, mark, block = match.groups()
        where = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}"
        assert not mark or re.fullmatch(r" no-run: .{10,}", mark), f"{where}: a block has no mark, or one with a reason"
        if mark:
            continue
        if kind == "python":
            name = re.match(r"# ([\w/-]+\.py)\n", block)
            assert name, f"{where}: the first line names the program's file: # name.py"
            (folder / name[1]).write_text(block, "utf-8")
        elif kind == "sh":
            # Commands may run until something happens: they end, even if nobody is left who waits for them.
            command = ["timeout", str(PATIENCE_SECONDS), "bash", "-e", "-o", "pipefail", "-c", block]
            ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, f"{where}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
            printed = ran.stdout
            done.append(block)
        elif kind == "text":
            pattern = re.escape(block).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, printed, re.DOTALL), f"{where}: the page says\n{block}\nit printed\n{printed}"
    return done
