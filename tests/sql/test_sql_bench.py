"""The benchmark of sinks on few rows, so that it cannot rot: every answer is right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # `bench` is no part of what is installed

from bench import report, sql


@pytest.mark.matrix
def test_every_contestant_of_the_sink_is_right() -> None:
    results = report.collect("quick", sql=sql.contest(6_000, rounds=1))
    assert [len(contest) for contest in results.contests.values()] == [5, 1]
    assert results.wrong == []
    assert len(list(results.targets())) == 3
    expected = {name: one.expected for name, one in results.contests[sql.ALL].items()}
    rows, different = expected[sql.COPY]
    assert rows > different == expected[sql.OURS][0]
