"""Starts a worker of a local session and runs a task there, as a job does. ``fencepost doctor --spark`` runs it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from fencepost_spark.engine import SparkEngine


def describe(_: int) -> str:
    """Return which Python runs the task."""
    import platform
    import sys

    return f"{platform.python_version()}, {sys.executable}"


if __name__ == "__main__":
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    print(*SparkEngine(session).run("doctor", describe, [0]))
    session.stop()
