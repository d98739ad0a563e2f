"""The benchmark of Kafka's log on few rows, with a broker of its own: every answer is right."""

from __future__ import annotations

from typing import Any

import pytest

from bench import kafka, report

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def part() -> dict[str, Any]:
    return kafka.contest(kafka.SHARE * 2000, rounds=1, producers=())


def test_every_contestant_is_right(part: dict[str, Any]) -> None:
    results = report.collect("quick", kafka=part)
    assert results.wrong == []
    assert {name: list(its) for name, its in results.contests.items()} == {
        kafka.HEADERS: [kafka.SCAN, kafka.STRUCT, kafka.READ],
        kafka.COPIED: [kafka.SCAN, kafka.STRUCT, kafka.READ],
        kafka.FOLLOWED: [kafka.SCAN_AND_APPLY],
        kafka.REPLAY: [kafka.APPLY],
        **{
            name: [kafka.OURS, kafka.COMMITTED, kafka.CLIENT, kafka.CLIENT_AS_IT_COMES]
            for name in kafka.RECORDS.values()
        },
    }
    assert len(list(results.targets())) == 7


def test_judging_has_targets(part: dict[str, Any]) -> None:
    figures = {"median_millions_a_second": 30.0, "millions_a_second": [30.0], "bytes_an_entry": 100.0}
    judging = [figures | {"producers": count, "columns": it} for count in kafka.MILLIONS for it in kafka.BYTES_MAX]
    results = report.collect("quick", kafka=part | {"judging": judging})
    is_met = {target.what: target.is_met for target in results.targets() if target.what.startswith("BrokerTable, ")}
    assert len(is_met) == 6 + 4
    assert not is_met["BrokerTable, 1 producers, whole"]
    assert is_met["BrokerTable, 1,000,000 producers, whole"]
    assert is_met["BrokerTable, 100,000 producers, whole: memory"]
    assert not is_met["BrokerTable, 100,000 producers, bare: memory"]
