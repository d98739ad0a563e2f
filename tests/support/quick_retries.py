"""Fixtures of tests of object stores: retries do not wait, and probes are short."""

from __future__ import annotations

import pytest
from fencepost.lake import storage
from fencepost.state import stores


@pytest.fixture(autouse=True)
def be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(storage, "PAUSES_SECONDS", (0.001, 0.001))


@pytest.fixture(autouse=True)
def probe_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state and sink that is new probes its store: a third of the requests of a test that makes a few."""
    monkeypatch.setattr(stores, "PROBE_ROUNDS", 1)
    monkeypatch.setattr(stores, "PROBE_WRITERS", 2)
