"""Checks that the package, the core wheel, the driver and every worker have the same version."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any

import fencepost

__version__ = version("fencepost-spark")

if fencepost.__version__ != __version__:
    raise ImportError(
        f"fencepost-spark {__version__} needs fencepost {__version__}, found {fencepost.__version__}: install both in "
        "the same version"
    )


def use_driver_python(spark: Any) -> None:
    """Let the workers of a local session run the driver's Python, unless PYSPARK_PYTHON names another one.

    Spark would run the first ``python3`` on the path, which may lack the packages.
    """
    context = getattr(spark, "sparkContext", None)
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def check_worker(driver: str) -> None:
    """Raise ImportError if the driver has another version: verdicts and snapshots of two versions may differ.

    Every task calls it with the version that the driver put into the closure.
    """
    if driver != __version__:
        raise ImportError(
            f"the driver runs fencepost-spark {driver}, this worker {__version__}: install the same version on every "
            "node"
        )
