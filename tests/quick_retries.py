"""The fixture of tests of object stores by which nobody waits before something is tried again."""

from __future__ import annotations

import pytest
from fencepost.lake import storage
from fencepost.state import stores


@pytest.fixture(autouse=True)
def be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(storage, "PAUSES_SECONDS", (0.001, 0.001))
