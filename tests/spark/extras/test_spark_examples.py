"""The examples on Spark: the notebook, and the script that the Databricks bundle and the Kubernetes job run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[3]
ENVIRONMENT = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(folder: Path, *command: str | Path) -> str:
    """What a Python program prints, run in a folder."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=ENVIRONMENT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_notebook_for_spark(tmp_path: Path) -> None:
    shown = run(tmp_path, ROOT / "tests" / "support" / "notebook.py", ROOT / "examples" / "notebooks" / "spark.ipynb")
    assert int(shown.splitlines()[-1]) >= 1


def test_the_script_of_databricks_and_kubernetes(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    zeros = [0] * 4
    rows = {"pid": zeros, "epoch": zeros, "topic": ["t"] * 4, "partition": zeros, "seq": [0, 1, 1, 3]}
    pq.write_table(pa.table(rows), tmp_path / "landing" / "a.parquet")
    script = ROOT / "examples" / "spark" / "dedup_job.py"
    reports = [json.loads(run(tmp_path, script, "landing", "state", "clean").splitlines()[-1]) for _ in range(2)]
    assert [(it["rows"], it["kept"], it["missing_rows"]) for it in reports] == [(4, 3, 1), (0, 0, 0)]
