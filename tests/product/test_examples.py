"""The examples that need neither Spark nor a database: each runs, or is read by what will read it.

Others are in tests/spark/extras/test_spark_examples.py, tests/sql/test_consumer_example.py, tests/sql/test_daemon.py
and tests/producers/test_gateway.py. `make test-airflow` reads the DAG with Airflow itself.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml
from databricks.bundles.jobs import Job
from fencepost.generate import LandingZone, generate
from support import notebook
from support.scripts import load_script

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
EXIT_FINDINGS = 3


def test_the_notebook_for_a_laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert notebook.run(EXAMPLES / "notebooks" / "laptop.ipynb") >= 4


def test_a_wrong_notebook_is_detected(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "notebooks" / "laptop.ipynb").read_text())
    cells["cells"] = [{**cells["cells"][1], "source": ["1 / 0"]}]
    (tmp_path / "wrong.ipynb").write_text(json.dumps(cells))
    with pytest.raises(ZeroDivisionError):
        notebook.run(tmp_path / "wrong.ipynb")


# Airflow, without its scheduler: what the operators get is run.


class Operator:
    """The definition of a task in the DAG."""

    made: list[Operator] = []  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.made.append(self)

    def __rshift__(self, later: Operator) -> Operator:
        assert self.made.index(self) < self.made.index(later), "tasks are written in the order in which they run"
        return later


class Dag:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def __enter__(self) -> Dag:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The DAG's module, with classes in the place of Airflow's that note what they are given."""
    places = {"airflow.sdk": {"DAG": Dag}, "airflow.providers.standard.operators.bash": {"BashOperator": Operator}}
    for place, names in places.items():
        parts = place.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or ModuleType(name))
        for name, kind in names.items():
            setattr(sys.modules[place], name, kind)
    monkeypatch.setattr(Operator, "made", [])
    return load_script(EXAMPLES / "airflow" / "fencepost_dedup.py")


def test_the_tasks_of_the_airflow_dag(dag: Any, tmp_path: Path) -> None:
    assert dag.dag.settings["max_active_runs"] == 1
    assert not dag.dag.settings["catchup"]
    generate(tmp_path / "shop", LandingZone(rows=20_000, producers=20))
    places = {"landing": tmp_path / "shop" / "landing", "state": tmp_path / "state", "clean": tmp_path / "clean"}

    def run(operator: Operator) -> subprocess.CompletedProcess[str]:
        template = r"\{\{ var\.value\.get\('fencepost_(\w+)', '[^']+'\) \}\}"
        command = re.sub(template, lambda match: str(places[match[1]]), operator.settings["bash_command"])
        assert "{{" not in command
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PATH": path}
        return subprocess.run(["bash", "-c", command], env=environment, check=False, capture_output=True, text=True)

    deduplicate, audit = Operator.made
    first, second, clean = run(deduplicate), run(deduplicate), run(audit)
    assert [first.returncode, second.returncode, clean.returncode] == [0, 0, 0], first.stderr + clean.stderr
    assert json.loads(first.stdout)["counts"]["DUPLICATE"] > 0
    assert json.loads(second.stdout)["rows"] == 0

    # A result with repeats fails the second task.
    places["clean"] = places["landing"]
    assert run(audit).returncode == EXIT_FINDINGS


# Databricks and Kubernetes


def test_the_databricks_bundle() -> None:
    folder = EXAMPLES / "databricks"
    bundle = yaml.safe_load((folder / "databricks.yml").read_text())
    jobs = bundle["resources"]["jobs"]
    assert jobs
    for settings in jobs.values():
        job = Job.from_dict(settings)
        assert job.as_dict() == settings, "a field that Databricks does not know"
        for task in settings["tasks"]:
            script = (folder / task["spark_python_task"]["python_file"]).resolve()
            assert script.is_file()
            synced = [(folder / it).resolve() for it in bundle["sync"]["paths"]]
            assert any(it in script.parents for it in synced), "the script is not deployed"
    used = set(re.findall(r"\$\{var\.(\w+)\}", json.dumps(bundle["resources"])))
    assert used == set(bundle["variables"])


def test_a_bundle_that_is_wrong_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        Job.from_dict({"name": "a", "max_concurrent_run": 1})  # type: ignore[typeddict-unknown-key]


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes" / "dedup-job.yaml").read_text()))


def test_the_kubernetes_manifests_of_the_spark_job_are_valid() -> None:
    for document in manifests():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    account, role, binding, service, cron = manifests()
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    settings = dict(it.split("=", 1) for it in container["args"] if it.startswith("spark."))
    ports = {settings["spark.driver.port"], settings["spark.driver.blockManager.port"]}
    assert {str(it["port"]) for it in service["spec"]["ports"]} == ports
    assert settings["spark.driver.host"] == service["metadata"]["name"]
    assert settings["spark.kubernetes.container.image"] == container["image"]
    scratch = settings["spark.kubernetes.executor.volumes.emptyDir.scratch.mount.path"]
    assert settings["spark.executorEnv.TMPDIR"] == scratch == container["volumeMounts"][0]["mountPath"]


def test_the_image_has_the_script_that_the_job_runs() -> None:
    cron = manifests()[-1]
    [container] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    dockerfile = (EXAMPLES / "kubernetes" / "Dockerfile").read_text()
    copied = dict(re.findall(r"^COPY (\S+\.py) (\S+)$", dockerfile, re.MULTILINE))
    assert copied
    for source, target in copied.items():
        assert (ROOT / source).is_file()
        assert target in container["args"]
