"""Tables of a page: a bounded number of rows, sortable by each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost.pages.html import Html, tag, visible
from fencepost.words import plural

ROWS_MAX = 50
"""Default maximum number of rows of a table on a page."""
TEXT_MAX = 120
"""Maximum number of characters of a value."""


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns. `total`: the number of rows before truncation."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    total: int
    last: Sequence[Any] | None = None
    """A row below the others, such as a total. Excluded from sorting."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Format by column: "count" (with separators), "time" (milliseconds), "share", "id" or "text" (may wrap). Other
    columns are shown unformatted."""

    def html(self) -> Html:
        kinds = [self.kinds.get(name, "") for name in self.columns]
        cut = f", the first {len(self.rows):,} of {self.total:,}" if len(self.rows) < self.total else ""
        classes = [_class(kind, [row[at] for row in self.rows]) for at, kind in enumerate(kinds)]
        heads = [
            tag("th", tag("button", _heading(name, kind), type="button"), scope="col", class_=class_)
            for name, kind, class_ in zip(self.columns, kinds, classes, strict=True)
        ]
        body = [_row(row, kinds, classes) for row in self.rows]
        foot = tag("tfoot", _row(self.last, kinds, classes)) if self.last is not None else None
        caption = tag("caption", tag("span", self.caption, cut))
        made = tag("table", caption, tag("thead", tag("tr", *heads)), tag("tbody", *body), foot)
        return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=self.caption)


def table_of(
    caption: str,
    found: Any,
    kinds: dict[str, str],
    rows_max: int = ROWS_MAX,
    names: Any = None,
    total: int | None = None,
) -> Table:
    """Build a table from a `pyarrow.Table`. `names`: other names for its columns. `total`: see `Table`."""
    rows = found.slice(0, rows_max).to_pylist()
    shown = [(names or {}).get(name, name) for name in found.column_names]
    kinds = {(names or {}).get(name, name): kind for name, kind in kinds.items()}
    total = len(found) if total is None else total
    return Table(caption, shown, [list(row.values()) for row in rows], total, kinds=kinds)


def _row(row: Sequence[Any], kinds: list[str], classes: list[str | None]) -> Html:
    cells = [
        tag("td", text(value, kind), class_=name, data_v=value if kind in ("time", "share") else None)
        for value, kind, name in zip(row, kinds, classes, strict=True)
    ]
    return tag("tr", *cells)


def _class(kind: str, values: list[Any]) -> str | None:
    """Return the CSS class: n for numbers (right-aligned), t for sentences (may wrap)."""
    if kind == "text":
        return "t"
    is_number = all(isinstance(it, int | float | None) and not isinstance(it, bool) for it in values)
    is_number = is_number and bool(values) and kind != "time"
    return "n" if kind in ("count", "share") or (is_number and kind != "id") else None


def _heading(name: str, kind: str) -> str:
    return f"{name} (UTC)" if kind == "time" else name


def text(value: Any, kind: str = "") -> str:
    """Format a value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind == "count":
        return f"{value:,}"
    if kind == "share":
        return share(value)
    if kind == "time":
        return utc(value).removesuffix(" UTC")
    shown = visible(value.hex() if isinstance(value, bytes) else str(value))
    return shown if len(shown) <= TEXT_MAX else f"{shown[: TEXT_MAX - 1]}…"


def share(part: float) -> str:
    """Format a share from 0 to 1 in percent. Only exactly 0 and 1 become 0% and 100%."""
    if 0 < part < 0.0001:
        return "< 0.01%"
    if 0.9999 < part < 1:
        return "> 99.99%"
    return f"{part:.2%}"


def utc(ms: int, unit: str | None = None) -> str:
    """Format milliseconds since 1970 as UTC, or as a plain number if the calendar has no such time.

    `unit`: precision, seconds or minutes. Default: seconds, with milliseconds if there are any.
    """
    try:
        time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    unit = unit or ("milliseconds" if ms % 1000 else "seconds")
    return time.replace(tzinfo=None).isoformat(sep=" ", timespec=unit) + " UTC"


def size(count: int) -> str:
    """Format a number of bytes."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return plural(count, "byte")


def key_names(columns: Sequence[str], identity: Sequence[str]) -> dict[str, str]:
    """Return the input's names of a table's key columns (pid or pid_0 …, partition or partition_0 …).

    `identity`: the input's identity columns: the producer's first, then the partition's, the sequence's last.
    """
    pids, partitions = ([it for it in columns if it.partition("_")[0] == role] for role in ("pid", "partition"))
    names = dict(zip(pids, identity, strict=False))
    return names | dict(zip(reversed(partitions), reversed(identity[:-1]), strict=False))
