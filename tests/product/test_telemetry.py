"""What jobs report while they work: log records, and OpenTelemetry spans and metrics in the SDK's memory."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import FencepostError
from fencepost.lake import DedupJob

OBSERVED = """
import json, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from fencepost import FencepostError
from fencepost.lake import DedupJob

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
tracer = TracerProvider()
tracer.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracer)
metrics.set_meter_provider(MeterProvider([reader]))

report = DedupJob("landing", "state", "clean").run()
DedupJob("landing", "state", "clean").run()
try:
    DedupJob("landing", "state", "clean", policy="in_order", order_by=()).run()
except FencepostError:
    pass
points = [
    [metric.name, metric.unit, dict(point.attributes), getattr(point, "value", None), getattr(point, "count", None)]
    for resource in reader.get_metrics_data().resource_metrics
    for scope in resource.scope_metrics
    for metric in scope.metrics
    for point in metric.data.data_points
]
names = {span.context.span_id: span.name for span in spans.get_finished_spans()}
found = [
    [it.name, names.get(it.parent.span_id) if it.parent else None, dict(it.attributes), it.status.status_code.name]
    for it in spans.get_finished_spans()
]
facts = {"state_bytes": report.state_bytes, "entries": report.entries, "steps": list(report.seconds)}
print(json.dumps({"points": points, "spans": found, **facts}))
"""


def land(folder: Path) -> Path:
    """Write six rows: sequence 2 arrives twice, 3 and 4 never, and one row has no producer."""
    (folder / "landing").mkdir()
    rows = {"pid": [7, 7, 7, 7, 7, None], "epoch": [0] * 6, "partition": [0] * 6, "seq": [0, 1, 2, 2, 5, 0]}
    pq.write_table(pa.table(rows), folder / "landing" / "a.parquet")
    return folder


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return land(tmp_path)


def extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name.startswith(("fencepost.", "error."))}


def test_each_step_and_each_run_is_a_record(landing: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "fencepost")
    report = DedupJob("landing", "state", "clean").run()
    *steps, run = caplog.records
    assert {it.name for it in caplog.records} == {"fencepost.jobs"}
    assert {it.levelname for it in steps} == {"DEBUG"}
    assert {extras(it)["fencepost.step"] for it in steps} == report.seconds.keys()
    assert all(extras(it)["fencepost.seconds"] >= 0 for it in steps)
    assert re.fullmatch(r"version 1: 6 rows read, 5 kept, \d+\.\d{3} s", run.getMessage())
    assert run.levelname == "INFO"
    found = extras(run)
    assert found.pop("fencepost.seconds") > 0
    assert found == {
        "fencepost.state": str(landing / "state"), "fencepost.source": str(landing / "landing"),
        "fencepost.outcome": "applied", "fencepost.version": 1, "fencepost.rows": 6, "fencepost.kept": 5,
        "fencepost.missing_rows": 2, "fencepost.stale_epoch": 0, "fencepost.rows.accepted": 4,
        "fencepost.rows.duplicate": 1, "fencepost.rows.untracked": 1,
    }  # fmt: skip
    DedupJob("landing", "state", "clean").run()
    assert caplog.records[-1].getMessage() == "nothing new"


def test_a_run_that_fails_is_a_record(landing: Path, caplog: pytest.LogCaptureFixture) -> None:
    DedupJob("landing", "state", "clean").run()
    caplog.clear()
    with pytest.raises(FencepostError) as raised:
        DedupJob("landing", "state", "clean", policy="in_order", order_by=()).run()
    assert [(it.levelname, it.getMessage()) for it in caplog.records] == [("ERROR", f"run failed: {raised.value}")]
    found = extras(caplog.records[0])
    assert (found["fencepost.outcome"], found["fencepost.code"]) == ("failed", raised.value.code)
    assert found["error.type"] == type(raised.value).__name__


def test_nothing_is_printed_and_nothing_is_imported_by_default(landing: Path) -> None:
    script = """
import logging, sys
from fencepost.lake import DedupJob
DedupJob("landing", "state", "clean").run()
logging.getLogger("fencepost.consumer").error("not printed")
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=landing, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three runs with OpenTelemetry's SDK: one with rows, one without, one that fails."""
    folder = land(tmp_path_factory.mktemp("observed"))
    done = subprocess.run([sys.executable, "-c", OBSERVED], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {"state": str(folder / "state"), **json.loads(done.stdout)}


def test_an_old_api_does_not_end_a_run(landing: Path) -> None:
    """An API without gauges, of another package's choice."""
    script = """
import sys
from types import ModuleType
sys.modules["opentelemetry.metrics"] = old = ModuleType("opentelemetry.metrics")
old.get_meter = lambda name: object()
from fencepost.lake import DedupJob
print(DedupJob("landing", "state", "clean").run().kept)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_metrics(observed: dict[str, Any]) -> None:
    values: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, _, attributes, value, count in observed["points"]:
        labels = {key: label for key, label in attributes.items() if key != "fencepost.state"}
        assert attributes["fencepost.state"] == observed["state"]
        values[name][",".join(labels.values())] = count if value is None else value
    steps = values.pop("fencepost.job.step.duration")
    assert steps.keys() == set(observed["steps"])
    assert steps["recover"] == 2
    assert values == {
        "fencepost.job.runs": {"applied": 1, "nothing new": 1, "failed": 1},
        "fencepost.job.duration": {"applied": 1, "nothing new": 1, "failed": 1},
        "fencepost.job.rows": {"ACCEPTED": 4, "DUPLICATE": 1, "UNTRACKED": 1},
        "fencepost.job.missing.rows": {"": 2},
        "fencepost.job.missing.ranges": {"OPEN": 1},
        "fencepost.state.missing.open": {"": 2},
        "fencepost.job.stale.rows": {"": 0},
        "fencepost.state.entries": {"": observed["entries"]},
        "fencepost.state.size": {"": observed["state_bytes"]},
    }
    assert observed["state_bytes"] > 0


def test_spans(observed: dict[str, Any]) -> None:
    spans = observed["spans"]
    runs = [(attributes, status) for name, _, attributes, status in spans if name == "fencepost.run"]
    assert [(it.get("fencepost.outcome"), status) for it, status in runs] == [
        ("applied", "UNSET"), ("nothing new", "UNSET"), (None, "ERROR"),
    ]  # fmt: skip
    assert runs[0][0]["fencepost.rows.duplicate"] == 1
    steps = {name: parent for name, parent, *_ in spans if name != "fencepost.run"}
    assert steps.keys() == {f"fencepost.{it}" for it in observed["steps"]}
    assert steps["fencepost.recover"] == steps["fencepost.list"] == "fencepost.run"
