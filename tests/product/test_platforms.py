"""Systems without the modules and functions that only POSIX or Linux have: a process that lacks them imports all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# What Windows lacks, and what macOS lacks. The libraries that the package uses are imported before: they have versions
# for other systems.
WITHOUT = """
import importlib, os, pkgutil, sys
import fsspec, httpx, jinja2, numpy, pandas, polars, pyarrow.dataset, pyarrow.parquet, rich.progress, sqlalchemy, typer

MODULES = ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty")
FUNCTIONS = (
    "copy_file_range", "fchmod", "fork", "getuid", "mkfifo", "posix_fadvise", "pread", "preadv", "pwrite",
    "register_at_fork", "sched_getaffinity", "sendfile", "setsid", "statvfs", "sync", "uname", "waitid",
    "O_CLOEXEC", "O_DIRECT", "O_DIRECTORY", "O_NOFOLLOW", "O_SYNC",
)
for module in MODULES:
    sys.modules[module] = None
for function in FUNCTIONS:
    delattr(os, function)
os.supports_fd.discard(os.scandir)
"""

IMPORT_ALL = """
import fencepost
for module in pkgutil.walk_packages(fencepost.__path__, "fencepost."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(sum(name.startswith("fencepost.") for name in sys.modules))
"""

DEDUPLICATE_AND_AUDIT = """
import fencepost as fp, pyarrow as pa, pyarrow.parquet as pq
folder = sys.argv[1]
rows = pa.table({"pid": [1, 1], "epoch": [0, 0], "partition": [0, 0], "seq": [0, 0]})
pq.write_table(rows, f"{folder}/rows.parquet")
table = fp.StateTable("any_order")
table.apply(rows)
table.save(f"{folder}/table.state")
assert len(fp.StateTable.load(f"{folder}/table.state")) == 1
assert len(fp.deduplicate(rows)) == 1
from fencepost.cli import main
assert main(["audit", folder]) in (0, 1)
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_module_imports() -> None:
    assert int(run(IMPORT_ALL)) > 100


def test_tables_frames_and_audits_work(tmp_path: Path) -> None:
    run(DEDUPLICATE_AND_AUDIT, str(tmp_path))
