"""The dashboard and the alert rules of the examples: they use metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from fencepost.consumer.metrics import ABOUT as CONSUMER_COUNTERS

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "python" / "fencepost"
MONITORING = ROOT / "examples" / "monitoring"
INSTRUMENT = re.compile(r"create_(counter|histogram|gauge)\(\s*\"([\w.]+)\", \"([^\"]*)\"")
FAMILY = re.compile(r"\b(counter|gauge)\(\s*\"(fencepost_\w+)\"")


def job_metrics() -> set[str]:
    """The names that OpenTelemetry's exporters for Prometheus give to the metrics of jobs."""
    names = set()
    for kind, name, unit in INSTRUMENT.findall((SOURCES / "telemetry.py").read_text()):
        base = name.replace(".", "_") + {"s": "_seconds", "By": "_bytes"}.get(unit, "")
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}[kind]
        names |= {base + it for it in endings}
    return names


def metrics() -> set[str]:
    names = job_metrics() | {f"fencepost_consumer_{name}_total" for name in CONSUMER_COUNTERS}
    for path in SOURCES.rglob("*.py"):
        names |= {name + "_total" * (kind == "counter") for kind, name in FAMILY.findall(path.read_text())}
    return names


def used_by(query: str) -> set[str]:
    """The metrics of a query, without its labels."""
    return set(re.findall(r"\bfencepost_\w+", re.sub(r"(by|ignoring) \([^)]*\)|\{[^}]*\}", "", query)))


def queries() -> list[str]:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def rules(text: str) -> list[dict[str, object]]:
    [group] = yaml.safe_load(text)["groups"]
    found: list[dict[str, object]] = group["rules"]
    return found


def test_metrics_of_jobs_are_found() -> None:
    assert {
        "fencepost_job_rows_total",
        "fencepost_job_step_duration_seconds_sum",
        "fencepost_state_size_bytes",
    } <= job_metrics()


@pytest.mark.parametrize("query", queries())
def test_the_dashboard_uses_metrics_that_exist(query: str) -> None:
    assert used_by(query)
    assert used_by(query) <= metrics()


def test_alerts_use_metrics_that_exist() -> None:
    found = rules((MONITORING / "alerts.yaml").read_text())
    assert len(found) >= 8
    for rule in found:
        assert used_by(str(rule["expr"]))
        assert used_by(str(rule["expr"])) <= metrics()


def test_a_metric_that_does_not_exist_is_detected() -> None:
    assert used_by('sum by (fencepost_state) (fencepost_job_row_total{fencepost_verdict="DUPLICATE"})') - metrics()


def test_the_dashboard_has_a_place_for_each_panel() -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
