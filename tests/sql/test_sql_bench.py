"""The benchmark of sinks on few rows, so that it keeps working: every answer is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from bench import claims, report, sql, transactions


@pytest.mark.matrix
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_claims_of_a_log_of_transactions_do_not_grow(engine: Engine) -> None:
    sizes = [it.data_bytes for it in claims.run(engine, hours=0, with_positions=True)]
    assert len(sizes) == claims.PARTS
    assert sizes[-1] <= 64 << 10
    assert claims.run(engine, hours=0, with_positions=False, consumer="without")[-1].data_bytes > 64 << 10


@pytest.mark.matrix
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_rows_of_transactions_are_read_back(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BATCHES", {10: 2, 100: 1})
    found = transactions.contest(engine, tmp_path, rounds=2, share=1.0, tell=lambda _: None)
    assert found.keys() == {(kind, rows) for kind in transactions.KINDS for rows in (10, 100)}


@pytest.mark.matrix
def test_every_contestant_of_the_sink_is_right() -> None:
    results = report.collect("quick", sql=sql.contest(6_000, rounds=1))
    assert [len(contest) for contest in results.contests.values()] == [5, 1, 5, 5, 5, 5, 5, 4]
    assert results.wrong == []
    assert len(list(results.targets())) == 9
    expected = {name: one.expected for name, one in results.contests[sql.ALL].items()}
    rows, different = expected[sql.COPY]
    assert rows > different == expected[sql.OURS][0]
