"""What jobs, streams, audits and advice report while they work: log records, and OpenTelemetry spans and metrics in
the SDK's memory."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import FencepostError, kafka, state
from fencepost.lake import DedupJob, advise, audit
from support.kafka_logs import DATA

OBSERVED = """
import json
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
tracer = TracerProvider()
tracer.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracer)
metrics.set_meter_provider(MeterProvider([reader]))
{work}
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
RUNS = """
from fencepost import FencepostError
from fencepost.lake import DedupJob

report = DedupJob("landing", "state", "clean").run()
DedupJob("landing", "state", "clean").run()
try:
    DedupJob("landing", "state", "clean", policy="in_order", order_by=()).run()
except FencepostError:
    pass
"""
BATCHES = """
from fencepost.lake import DedupJob
from fencepost.lake.run import Run
from fencepost.lake.sources import InputOverride
from fencepost.telemetry import observe_run

job = DedupJob("batches", "state", "clean", source_immutable=True)
for batch, lag in enumerate((12, 5)):
    run = Run(job, override=InputOverride("landing", position={"query": "q", "batch": batch}, lag=lag))
    run.recover()
    report = observe_run(run.about(), run.go_on)
"""
REPORTS = """
from fencepost import kafka
from fencepost.lake import DedupJob, advise, audit

audit("landing")
advise("landing")
kafka.audit("logs", now_ms="newest")
report = DedupJob("landing", "state", "clean").run()
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


def test_each_step_of_an_operation_is_a_record(landing: Path, caplog: pytest.LogCaptureFixture) -> None:
    DedupJob("landing", "state", "clean").run()
    caplog.set_level(logging.DEBUG, "fencepost")
    caplog.clear()
    state.open("state").reshard(4)
    [record] = caplog.records
    assert (record.name, record.levelname, extras(record)["fencepost.step"]) == ("fencepost.jobs", "DEBUG", "reshard")
    assert extras(record)["fencepost.state"] == str(landing / "state")


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
    return {"state": str(folder / "state"), **observe(folder, RUNS)}


def observe(folder: Path, work: str) -> dict[str, Any]:
    """Do this work with OpenTelemetry's SDK."""
    script = OBSERVED.replace("{work}", work)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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


def test_batches_of_a_stream(landing: Path) -> None:
    """The query and the batch are in spans, and not in metrics: each batch would be a time series."""
    found = observe(landing, BATCHES)
    runs = [attributes for name, _, attributes, _ in found["spans"] if name == "fencepost.run"]
    assert [(it["fencepost.query"], it["fencepost.batch"], it["fencepost.lag"]) for it in runs] == [
        ("q", 0, 12), ("q", 1, 5),
    ]  # fmt: skip
    labels = {name for _, _, attributes, *_ in found["points"] for name in attributes}
    assert labels <= {f"fencepost.{it}" for it in ("state", "outcome", "step", "verdict", "change")}
    values = {name: value for name, _, _, value, _ in found["points"]}
    assert values["fencepost.job.lag"] == 5
    assert values["fencepost.job.runs"] == 2


def test_reports_have_spans_and_no_metrics(landing: Path) -> None:
    shutil.copytree(DATA / "clicks-0", landing / "logs" / "clicks-0")
    found = observe(landing, REPORTS)
    spans = {(name, parent): attributes for name, parent, attributes, _ in found["spans"]}
    assert spans["fencepost.audit", None]["fencepost.rows.duplicate"] == 1
    assert spans["fencepost.advise", None]["fencepost.policy"]
    assert spans["fencepost.kafka_audit", None]["fencepost.partitions"] == 1
    assert {name for name, parent in spans if parent == "fencepost.kafka_audit"} == {
        "fencepost.list",
        "fencepost.replay",
    }
    assert {attributes["fencepost.state"] for _, _, attributes, *_ in found["points"]} == {str(landing / "state")}


def test_each_step_of_a_report_is_a_record(landing: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "fencepost")
    for make, steps, figures in (
        (lambda: audit("landing"), ["list", "judge"], {"fencepost.rows.duplicate": 1, "fencepost.missing_rows": 2}),
        (lambda: audit("landing", compare_content=True), ["list", "judge", "compare"], {"fencepost.files": 1}),
        (lambda: advise("landing"), ["read", "judge"], {"fencepost.policy": "any_order"}),
    ):
        caplog.clear()
        make()
        *records, last = caplog.records
        assert {it.name for it in caplog.records} == {"fencepost.reports"}
        assert [(it.levelname, extras(it)["fencepost.step"]) for it in records] == [("DEBUG", it) for it in steps]
        assert last.levelname == "INFO"
        found = extras(last)
        assert (found["fencepost.source"], found["fencepost.rows"]) == ("landing", 6)
        assert found["fencepost.seconds"] > 0
        assert figures.items() <= found.items()


def test_a_kafka_audit_has_a_record_for_each_partition(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "fencepost")
    report = kafka.audit(DATA, now_ms="newest")
    *steps, last = caplog.records
    replays = [extras(it)["fencepost.source"] for it in steps if extras(it)["fencepost.step"] == "replay"]
    assert replays == [it.path for it in report.partitions]
    found = extras(last)
    assert (last.name, last.levelname, found["fencepost.report"]) == ("fencepost.reports", "INFO", "kafka_audit")
    assert found["fencepost.rows"] == report.total()["records"]


def test_a_report_that_fails_is_a_record(landing: Path, caplog: pytest.LogCaptureFixture) -> None:
    for make in (lambda: audit("nowhere"), lambda: advise("nowhere"), lambda: kafka.audit("nowhere")):
        caplog.clear()
        with pytest.raises(FencepostError) as raised:
            make()
        [record] = caplog.records
        assert (record.name, record.levelname) == ("fencepost.reports", "ERROR")
        assert extras(record)["fencepost.code"] == raised.value.code
        assert extras(record)["error.type"] == type(raised.value).__name__
