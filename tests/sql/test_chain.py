"""The whole chain under faults, some seeds; `make faults` runs a hundred."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chain.actors import MUTANTS
from chain.run import FAULTS, Broken, run_seed
from support import daily
from support.postgres import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Of its own, for connections to it are dropped all the time."""
    with PostgresServer() as running:
        yield running


@pytest.mark.parametrize("seed", daily.first(range(4)))
def test_every_acknowledged_event_is_applied_once(seed: int, server: PostgresServer, tmp_path: Path) -> None:
    report = run_seed(seed, server.new_database(), tmp_path / "chain")
    assert report.rows == report.events > 0
    assert report.faults.total() == FAULTS


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(it, marks=[pytest.mark.matrix] if "producer" in it or "stage" in it else []) for it in MUTANTS],
)
def test_a_broken_chain_is_detected(mutant: str, server: PostgresServer, tmp_path: Path) -> None:
    wrong = "lost" if "ahead" in mutant else "more than once"
    with pytest.raises(Broken, match=rf"{wrong} \['"):
        run_seed(0, server.new_database(), tmp_path / "chain", mutant=mutant)
