"""The distribution: one version, from one place, and no more imported than a worker needs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import fencepost as fp
import fencepost_spark
import pytest
from conftest import HERE
from fencepost_spark import versions
from support import daily

ROOT = HERE.parent.parent


def test_version_and_pin_are_those_of_the_workspace(tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT / "spark_udf", check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    assert fields["Version"] == version == fencepost_spark.__version__
    core = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["lake"]
    needed = [it for it in fields.get_all("Requires-Dist", []) if "extra ==" not in it]
    assert needed == [f"fencepost=={version}", *(it for it in core if it.startswith("pyarrow"))]
    assert "fencepost_spark/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {"fencepost_spark", f"fencepost_spark-{version}.dist-info"}


def test_a_wheel_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp, "__version__", "0.0.0")
    with pytest.raises(ImportError, match=r"needs fencepost .*, found 0\.0\.0: install both"):
        importlib.reload(versions)


def test_workers_import_neither_jobs_nor_pandas() -> None:
    script = "import sys, fencepost_spark.verdicts, fencepost_spark.engine; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "fencepost_spark" in found
    assert not {"fencepost.lake", "pandas", "fencepost_spark.jobs", "fencepost_spark.sql"} & set(found)


def test_everything_public_is_there() -> None:
    doors = {"DedupJob", "SparkEngine", "deduplicate", "foreach_batch", "read_sink", "register", "verdict_udf"}
    doors |= {"Strategy", "choose_strategy", "explain"}
    kafka = {"KafkaWarning", "from_headers", "kafka_options"}
    assert set(fencepost_spark.__all__) == doors | kafka | {"__version__"}
    assert all(getattr(fencepost_spark, name) for name in fencepost_spark.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fencepost_spark.nothing  # type: ignore[attr-defined]


PYTHON_OF_WORKERS = """
import fencepost_spark as fs
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(2).selectExpr("7L pid", "0 epoch", "0 partition", "0 seq")
if which == "engine":
    found = fs.SparkEngine(spark).run("test", str, [1, 2])
elif which == "frame":
    found = fs.deduplicate(rows).count()
else:
    found = rows.coalesce(1).select(fs.verdict_udf(co_located=True)("pid", "epoch", "partition", "seq")).collect()
print("found", found)
"""


# Each needs a driver of its own.
@pytest.mark.parametrize("which", daily.first(["frame", "engine", "udf"]))
def test_local_workers_run_the_python_of_the_driver(which: str, tmp_path: Path) -> None:
    python = tmp_path / "python3"  # what Spark would start: it lacks the packages
    python.write_text("#!/bin/sh\necho 'No module named fencepost_spark' >&2; exit 1\n")
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", f"which = {which!r}\n{PYTHON_OF_WORKERS}"]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "found" in done.stdout
