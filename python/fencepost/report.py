"""What all reports share: a page, charts, and how a notebook displays them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.pages.charts import Chart
    from fencepost.pages.page import Page


def plain(value: object) -> str:
    """Return a value that JSON does not have as text. Bytes become hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else str(value)


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
