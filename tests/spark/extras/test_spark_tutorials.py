"""The tutorials on Spark, done step by step in an empty folder. Each program has a session of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import tutorial


@pytest.mark.parametrize("name", ["spark-batch", "spark-streaming"])
def test_a_tutorial_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = tutorial.do(tutorial.DOCS / "tutorials" / f"{name}.md", tmp_path, environment)
    assert len(done) >= 4
