"""Parameters of tests that run in `make test`. The others have the mark `matrix`: they run each night."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def first(values: Iterable[object], count: int = 1) -> list[Any]:
    """All values. The first ones are daily, as one seed of many is enough for each change."""
    return [pytest.param(it, marks=() if at < count else pytest.mark.matrix) for at, it in enumerate(values)]


def each_value(ones: Iterable[object], others: Sequence[object]) -> list[Any]:
    """All pairs. Each of `ones` is daily with one of `others`, which take turns."""
    return [
        pytest.param(one, other, marks=() if at % len(others) == turn else pytest.mark.matrix)
        for at, one in enumerate(ones)
        for turn, other in enumerate(others)
    ]
