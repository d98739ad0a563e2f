"""Progress of long operations.

Functions with an argument `progress` call it as `progress(step, done, total)`: the name of the step, and how much of it
is done. The first call of a step is at its beginning. The unit depends on the step; a total of 0 is unknown. If
`progress` also has a method `show_rows(rows)`, they then call it with the number of rows of the step so far, where that
is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]


def ignore(step: str, done: int, total: int) -> None:
    """Show nothing."""


def show_rows(progress: Progress, rows: int) -> None:
    """Pass on the number of rows of the current step so far, if `progress` shows rows."""
    show = getattr(progress, "show_rows", None)
    if show is not None:
        show(rows)
