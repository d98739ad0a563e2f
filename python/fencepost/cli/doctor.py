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
from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli.terminal import EXIT_ERROR, AsJson, show_table

PYTHON_MIN = (3, 11)
SPARK_MIN = (4, 0)
JAVA_MIN = 17
WORKER_SECONDS_MAX = 300
EXTRAS = {
    "cli": ("typer", "rich"),
    "lake": ("pyarrow", "numpy", "obstore", "deltalake", "pyroaring"),
    "iceberg": ("pyiceberg",),
    "report": ("vl-convert-python",),
}


def doctor_command(
    spark: Annotated[bool, typer.Option("--spark", help="Also check Spark and Java, and start a worker.")] = False,
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
    python, setting, remedy = _worker_python()
    is_python_good, found = _check_python(python, remedy)
    yield "workers' python", is_python_good, f"{found} ({setting})"
    java = _check_java()
    yield "java", *java
    if is_new and ours == core and pandas is not None and is_python_good and java[0]:
        yield "a worker", *_start_worker(python)
    else:
        yield "a worker", None, "not started: first repair what is BAD above"


def _check_java() -> tuple[bool, str]:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    remedy = f"install Java {JAVA_MIN} and set JAVA_HOME"
    if java is None or not os.path.exists(java):
        return False, f"not found: {remedy}"
    try:
        said = subprocess.run([java, "-version"], check=False, capture_output=True, text=True).stderr
    except OSError as error:
        return False, f"{java}: {error.strerror}: {remedy}"
    number = re.search(r'version "(\d+)([^"]*)"', said)
    is_new = number is not None and int(number[1]) >= JAVA_MIN
    return is_new, number[0] if number else "did not print its version"


def _worker_python() -> tuple[str, str, str]:
    """Return the Python that Spark's workers run on this machine, the setting that names it, and how to change it.

    `spark-submit` puts `spark.pyspark.python` into PYSPARK_PYTHON; programs that start their session themselves ignore
    it. Without both, fencepost lets the workers of a local session run the Python of the driver.
    """
    conf, home = os.environ.get("SPARK_CONF_DIR"), os.environ.get("SPARK_HOME")
    defaults = Path(conf or os.path.join(home or os.devnull, "conf"), "spark-defaults.conf")
    if defaults.is_file():
        named = re.findall(r"^\s*spark\.pyspark\.python[\s=:]+(\S+)", defaults.read_text("utf-8"), re.MULTILINE)
        if named:
            return named[-1], f"spark.pyspark.python in {defaults}, for spark-submit", "change this setting"
    remedy = 'set PYSPARK_PYTHON="$(which python)" in this environment'
    if python := os.environ.get("PYSPARK_PYTHON"):
        return python, "PYSPARK_PYTHON", remedy
    return sys.executable, "the driver's, because PYSPARK_PYTHON is not set", remedy


def _check_python(python: str, remedy: str) -> tuple[bool, str]:
    """Check that a Python has the driver's version, and our packages."""
    script = "import platform, fencepost_spark as it, numpy, pyarrow; print(platform.python_version(), it.__version__)"
    try:
        done = subprocess.run([python, "-c", script], check=False, capture_output=True, text=True)
    except OSError as error:
        return False, f"{python}: {error.strerror}: {remedy}"
    if done.returncode != 0:
        return False, f"{python}: {_problem_of(done)}: {remedy}"
    found, ours = done.stdout.split()
    if found.rpartition(".")[0] != platform.python_version().rpartition(".")[0]:
        return False, f"{python} is Python {found}, this is {platform.python_version()}: {remedy}"
    return ours == _version("fencepost-spark"), f"{found}, fencepost-spark {ours}, {python}"


def _start_worker(python: str) -> tuple[bool, str]:
    """Run a task in a worker of a local session."""
    environment = os.environ | ({} if python == sys.executable else {"PYSPARK_PYTHON": python})
    command = [sys.executable, "-m", "fencepost_spark.probe"]
    try:
        done = subprocess.run(
            command, env=environment, check=False, capture_output=True, text=True, timeout=WORKER_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {WORKER_SECONDS_MAX} seconds: {' '.join(command)}"
    if done.returncode != 0:
        return False, f"{_problem_of(done)}: to see more, run {' '.join(command)}"
    return True, f"ran a task: {done.stdout.strip()}"


def _problem_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last error of Python that a process printed, or else of Java, or else its last line."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    for error in (r"\w+Error: ", r"[\w.$]+(Error|Exception): ", ""):
        if found := [line for line in lines if re.match(error, line)]:
            return found[-1]
    return f"exit code {done.returncode}"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
