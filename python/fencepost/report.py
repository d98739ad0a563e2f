"""What all reports share: a page, charts, how a notebook displays them, and how their texts are aligned."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.pages.charts import Chart
    from fencepost.pages.page import Page


def plain(value: object) -> str:
    """Return a value that JSON does not have as text. Bytes become hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else str(value)


def aligned(figures: Sequence[tuple[str, str, str]]) -> list[str]:
    """Format figures: (label, number, explanation)."""
    width = max((len(number) for _, number, _ in figures), default=0)
    return [f"  {name:<16}{number:>{width}}  {note}".rstrip() for name, number, note in figures]


def grid(lines: Sequence[Sequence[str]], is_right: Sequence[bool]) -> list[str]:
    """Format the lines of a table with aligned columns. `is_right`: whether a column is aligned to the right."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_right, strict=True)
        ).rstrip()
        for line in lines
    ]


class Report:
    """A report with a page. Charts and pages need `fencepost[report]`."""

    @abstractmethod
    def _page(self) -> Page: ...

    def _charts(self) -> dict[str, Chart]:
        return self._page().charts()

    def to_html(self) -> str:
        """Return the report as one HTML file with charts that loads nothing else.

        Raises DependencyError if `fencepost[report]` is not installed.
        """
        return self._page().to_html()

    def _repr_html_(self) -> str | None:
        from fencepost.pages.charts import is_installed

        return self._page().frame() if is_installed() else None

    @property
    def charts(self) -> dict[str, Chart]:
        """The charts of the page, by name. Empty charts are left out.

        | report | charts |
        |---|---|
        | `AuditReport` | over_time, distances, producers, partitions, heat_map |
        | `RunReport` | verdicts, steps |
        | `State` | versions |
        | `LogAudit` | partitions |
        | `Advice` | policies |

        Example: `report.charts["over_time"].save("over_time.png")`.
        """
        return self._charts()

    def plot(self, name: str | None = None) -> Chart:
        """Return one chart, which a notebook displays. `name`: as in `charts`; default: the first one.

        Raises ValueError if there is no such chart, or nothing to draw.

        Example: `report.plot("producers").save("producers.svg")`.
        """
        found = self.charts
        if name is None and found:
            return next(iter(found.values()))
        if name is None or name not in found:
            known = ", ".join(found) or "none, because there are no findings, new rows or versions to draw"
            raise ValueError(f"chart {name!r} does not exist; charts of this report: {known}")
        return found[name]
