"""`fencepost doctor`."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from fencepost.cli.terminal import EXIT_ERROR, AsJson, show_table

PYTHON_MIN = (3, 11)
SPARK_MIN = (4, 0)
JAVA_MIN = 17
EXTRAS = {
    "cli": ("typer", "rich"),
    "lake": ("pyarrow", "numpy", "obstore", "deltalake", "pyroaring"),
    "iceberg": ("pyiceberg",),
    "report": ("vl-convert-python",),
}


def doctor_command(
    spark: Annotated[bool, typer.Option("--spark", help="Also check Spark, Java and the Python of workers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check fencepost's dependencies. Exit code 1 if a required one is missing or too old."""
    checks = [*_checks(), *(_spark_checks() if spark else ())]
    if as_json:
        print(json.dumps([dict(zip(("name", "is_good", "found"), check, strict=True)) for check in checks]))
    else:
        words = {True: "good", False: "BAD", None: "absent"}
        show_table(("what", "state", "found"), [(name, words[is_good], found) for name, is_good, found in checks])
    if any(is_good is False for _, is_good, _ in checks):
        raise typer.Exit(EXIT_ERROR)


Check = tuple[str, bool | None, str]
"""(name, whether it is usable, what was found). None: missing, and only some features need it."""


def _checks() -> Iterator[Check]:
    from importlib.metadata import version

    from fencepost import _native

    yield "python", sys.version_info >= PYTHON_MIN, platform.python_version()
    installed = version("fencepost")
    yield "fencepost", _native.__version__ == installed, f"{installed}, native {_native.__version__}"
    yield "machine", True, f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    for extra, packages in EXTRAS.items():
        for package in packages:
            found = _version(package)
            yield package, None if found is None else True, found or f"pip install 'fencepost[{extra}]'"


def _spark_checks() -> Iterator[Check]:
    spark = _version("pyspark")
    wanted = ".".join(map(str, SPARK_MIN))
    is_new = spark is not None and tuple(int(it) for it in re.findall(r"\d+", spark)[:2]) >= SPARK_MIN
    yield "pyspark", is_new, spark or f"not installed: pip install 'pyspark>={wanted}'"
    ours, core = _version("fencepost-spark"), _version("fencepost")
    found = f"{ours}" if ours == core else f"{ours}, but fencepost {core}: install both in the same version"
    yield "fencepost-spark", ours == core, found if ours else "not installed: pip install fencepost-spark"
    pandas = _version("pandas")
    yield "pandas", pandas is not None, pandas or "not installed: pip install pandas"
    yield "workers' python", *_worker_check()
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        yield "java", False, f"not found: install Java {JAVA_MIN} and set JAVA_HOME"
        return
    try:
        said = subprocess.run([java, "-version"], check=False, capture_output=True, text=True).stderr
    except OSError as error:
        yield "java", False, f"{java}: {error.strerror}: install Java {JAVA_MIN} and set JAVA_HOME"
        return
    number = re.search(r'version "(\d+)([^"]*)"', said)
    is_java_new = number is not None and int(number[1]) >= JAVA_MIN
    yield "java", is_java_new, number[0] if number else "did not print its version"


def _worker_check() -> tuple[bool, str]:
    """Run the Python that Spark's workers will run on this machine: with the driver's version, and our packages."""
    python = os.environ.get("PYSPARK_PYTHON") or "python3"
    remedy = 'set PYSPARK_PYTHON="$(which python)" in this environment'
    script = "import platform, fencepost_spark as it, numpy, pyarrow; print(platform.python_version(), it.__version__)"
    try:
        done = subprocess.run([python, "-c", script], check=False, capture_output=True, text=True)
    except OSError as error:
        return False, f"{python}: {error.strerror}: {remedy}"
    if done.returncode != 0:
        problem = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return False, f"{python}: {problem}: {remedy}"
    found, ours = done.stdout.split()
    if found.rpartition(".")[0] != platform.python_version().rpartition(".")[0]:
        return False, f"{python} is Python {found}, this is {platform.python_version()}: {remedy}"
    return ours == _version("fencepost-spark"), f"{found}, fencepost-spark {ours}, {python}"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
