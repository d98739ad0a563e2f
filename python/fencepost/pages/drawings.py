"""Vega-Lite specifications of charts, one function per kind. Each returns a function from width to specification.

Names come from the data. The specification refers to them by number, so that equal or unusual names do no harm. Their
texts are in lists (`_list`) whose content cannot be evaluated. Each mark has a text that describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fencepost.pages.charts import WIDTHS, Size, Spec, color_of
from fencepost.pages.tables import utc

Drawing = Callable[[Size], Spec]

LABELS = 46
"""Width in pixels of a panel's axis labels."""
PANEL = 84
"""Height of a panel in pixels."""
LINE = 22
"""Height in pixels of a line of names."""
NARROW_COLUMNS = 6
"""Maximum number of columns of a heat map in a narrow drawing."""
HEAT = ("none", "1 – 9", "10 – 99", "100 – 999", "1,000 – 9,999", "10,000 or more")
"""The legend of a heat map's colors."""
_FORMATS = ((2 * 86_400_000, "%b %d"), (600_000, "%H:%M"), (10_000, "%H:%M:%S"), (0, "%H:%M:%S.%L"))
"""Time formats by the minimum length of the axis in milliseconds."""


def over_time(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str], unit: str) -> Drawing:
    """Draw one panel per kind. `rows`: first, last, and a count per kind; `unit`: "ms" or "rows"."""
    bounds = [min(it["first"] for it in rows), max(it["last"] for it in rows) + 1]
    panels = []
    for kind, name in kinds.items():
        values = [
            {
                "a": it["first"],
                "b": it["last"] + 1,
                "n": it[kind],
                "said": f"{bin_name(it, unit)}; {name}: {it[kind]:,}",
            }
            for it in rows
            if it[kind]
        ]
        x = {"field": "a", "axis": _span_axis(bounds, unit)} | _span_scale(bounds, unit)
        mark = {"type": "rect", "color": color_of(kind)}
        panels.append((name, values, mark, {"x": x, "x2": {"field": "b"}, "y2": {"datum": 0}}))
    return _panels(panels)


def over_versions(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, tuple[str, str]]) -> Drawing:
    """Draw one panel per figure over versions. `figures`: maps a figure to (name, color).

    Numbers are drawn as floats: the renderer reads no integers of more than 64 bits, as sums of gaps may have.
    """
    numbers = [it["version"] for it in rows]
    axis = {"title": "version", "labelAngle": 0, "labelOverlap": "greedy", "ticks": False}
    panels = []
    for figure, (name, color) in figures.items():
        values = [
            {"a": it["version"], "n": float(it[figure]), "said": f"version {it['version']}; {name}: {it[figure]:,}"}
            for it in rows
            if it[figure] is not None
        ]
        x = {"field": "a", "type": "ordinal", "scale": {"domain": numbers}, "axis": axis}
        panels.append((name, values, {"type": "bar", "color": color_of(color)}, {"x": x}))
    return _panels(panels)


def bars(
    rows: Sequence[tuple[str, Mapping[str, int]]],
    kinds: Mapping[str, str],
    colors: Mapping[str, str] | None = None,
    unit: str = "rows",
) -> Drawing:
    """Draw a horizontal bar per name, stacked by kind.

    `rows`: (name, count by kind), in display order. `colors`: the role of each kind in `charts.COLORS`; default: the
    kind's own name.
    """
    used = [kind for kind in kinds if any(counts.get(kind) for _, counts in rows)]
    values = [
        {"at": at, "kind": kind, "order": order, "n": counts[kind], "said": f"{name}; {kinds[kind]}: {counts[kind]:,}"}
        for at, (name, counts) in enumerate(rows)
        for order, kind in enumerate(used)
        if counts.get(kind)
    ]
    names = [name for name, _ in rows]
    scale = {"domain": used, "range": [color_of((colors or {}).get(it, it)) for it in used]}

    def spec(size: Size) -> Spec:
        legend = {"title": None, "orient": "top", "columns": 2 if size == "narrow" else 4, "offset": 8}
        legend["labelExpr"] = f"{_list([kinds[it] for it in used])}[indexof({_list(used)}, datum.value)]"
        return _single(size, {"step": LINE}) | {
            "data": {"values": values},
            "mark": {"type": "bar", "height": {"band": 0.72}},
            "encoding": {
                "y": _names("at", names, 110 if size == "narrow" else 170),
                "x": _count(4, unit) | {"field": "n", "stack": "zero"},
                "color": {
                    "field": "kind", "type": "nominal", "scale": scale, "legend": legend if len(used) > 1 else None
                },
                "order": {"field": "order", "type": "quantitative"},
                "description": _SAID,
            },
        }  # fmt: skip

    return spec


def columns(rows: Sequence[tuple[str, float]], title: str, kind: str, unit: str) -> Drawing:
    """Draw a column per name, in the given order."""
    is_whole = all(isinstance(count, int) for _, count in rows)
    values = [
        {"at": at, "n": count, "said": f"{title}: {name}; {count:,} {unit}"} for at, (name, count) in enumerate(rows)
    ]
    axis = {"title": title, "labelExpr": _numbered([name for name, _ in rows]), "ticks": False, "labelLimit": 130}

    def spec(size: Size) -> Spec:
        is_dense = len(rows) * 100 > WIDTHS[size]
        return _single(size, 180) | {
            "data": {"values": values},
            "mark": {"type": "bar", "color": color_of(kind), "width": {"band": 0.8}},
            "encoding": {
                "x": {"field": "at", "type": "ordinal", "axis": axis | {"labelAngle": -40 if is_dense else 0}},
                "y": _count(4, unit, is_whole) | {"field": "n"},
                "description": _SAID,
            },
        }

    return spec


def heat_map(rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[int, int], int]) -> Drawing:
    """Draw a cell per row and column, colored by the power of ten of its count."""
    top = max((_heat(count) for count in cells.values()), default=0)
    scale = {
        "domain": list(range(top + 1)),
        "range": [color_of("empty"), *(color_of(f"heat{it}") for it in range(1, top + 1))],
    }

    def spec(size: Size) -> Spec:
        shown = columns[:NARROW_COLUMNS] if size == "narrow" else columns
        values = [
            {"r": r, "c": c, "class": _heat(count), "said": f"{rows[r]}; {shown[c]}; {count:,} rows"}
            for r in range(len(rows))
            for c in range(len(shown))
            for count in (cells.get((r, c), 0),)
        ]
        is_dense = max(map(len, shown), default=0) * 8 > WIDTHS[size] * 0.8 / len(shown)
        x = _names("c", shown, 100) | {"scale": {}}
        x["axis"] |= {"labelAngle": -40 if is_dense else 0, "orient": "top"}
        legend = {
            "title": "rows",
            "orient": "bottom",
            "direction": "horizontal",
            "columns": 2 if size == "narrow" else 6,
        }
        legend["labelExpr"] = f"{_list(HEAT)}[datum.value]"
        return _single(size, {"step": LINE}) | {
            "data": {"values": values},
            "mark": {"type": "rect", "stroke": color_of("page"), "strokeWidth": 2},
            "encoding": {
                "y": _names("r", rows, 100 if size == "narrow" else 170),
                "x": x,
                "color": {"field": "class", "type": "ordinal", "scale": scale, "legend": legend},
                "description": _SAID,
            },
        }

    return spec


def bin_name(row: Mapping[str, Any], unit: str) -> str:
    """Return the label of a timeline's bin."""
    if unit == "ms":
        return f"{utc(row['first'])} to {utc(row['last'] + 1)}"
    return f"rows {row['first']:,} to {row['last']:,}"


# Parts of specifications

_SAID = {"field": "said", "type": "nominal"}


def _single(size: Size, height: Any) -> Spec:
    return {"width": WIDTHS[size] - 8, "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}


def _panels(panels: Sequence[tuple[str, list[dict[str, Any]], Spec, Spec]]) -> Drawing:
    """Stack panels over a common axis: (name, values, mark, encoding) of each."""

    def panel(at: int, size: Size) -> Spec:
        name, values, mark, encoding = panels[at]
        x = encoding["x"]
        axis = x["axis"] | {"tickCount": 4 if size == "narrow" else 8, "grid": False}
        if at + 1 < len(panels):
            axis |= {"labels": False, "ticks": False, "title": None}
        y = _count(3, None, all(it["n"] == int(it["n"]) for it in values))
        y["axis"] |= {"minExtent": LABELS, "maxExtent": LABELS}
        return {
            "width": WIDTHS[size] - LABELS - 28,
            "height": PANEL,
            "title": {"text": name, "fontSize": 12, "offset": 6},
            "data": {"values": values},
            "mark": mark,
            "encoding": encoding | {"x": x | {"axis": axis}, "y": y | {"field": "n"}, "description": _SAID},
        }

    return lambda size: {"vconcat": [panel(at, size) for at in range(len(panels))], "spacing": 14}


def _span_scale(bounds: Sequence[int], unit: str) -> Spec:
    if unit == "ms":
        return {"type": "temporal", "scale": {"type": "utc", "domain": bounds}}
    return {"type": "quantitative", "scale": {"domain": bounds, "nice": False, "zero": False}}


def _span_axis(bounds: Sequence[int], unit: str) -> Spec:
    axis: Spec = {"labelOverlap": "parity", "labelFlush": True}
    if unit == "rows":
        return axis | {"title": "position of the row in the data", "labelExpr": "format(datum.value, '~s')"}
    written = next(it for least, it in _FORMATS if bounds[1] - bounds[0] >= least)
    first, last = (utc(it)[:10] for it in (bounds[0], bounds[1] - 1))
    days = first if first == last else f"{first} to {last}"
    return axis | {"title": f"time of the rows, {days}, UTC", "labelExpr": f"utcFormat(datum.value, '{written}')"}


def _count(ticks: int, title: str | None, is_whole: bool = True) -> Spec:
    """An axis of counts from 0, with thousands as k."""
    written = "~s" if is_whole else "~g"
    labels = {"labelExpr": f"format(datum.value, '{written}')", "domain": False, "ticks": False}
    axis = {"title": title, "tickCount": ticks, "tickMinStep": 1 if is_whole else 0.001, **labels}
    return {"type": "quantitative", "scale": {"zero": True}, "axis": axis}


def _names(field: str, names: Sequence[str], limit: int) -> Spec:
    """An axis of names."""
    axis = {"title": None, "labelLimit": limit, "labelExpr": _numbered(names), "domain": False, "ticks": False}
    scale = {"domain": list(range(len(names)))}
    return {"field": field, "type": "ordinal", "scale": scale, "axis": axis | {"labelPadding": 6}}


def _heat(count: int) -> int:
    return min(len(str(count)), len(HEAT) - 1) if count else 0


def _numbered(names: Sequence[str]) -> str:
    """The label expression of an axis with the values 0, 1, 2, …"""
    return f"{_list(names)}[datum.value]"


def _list(texts: Sequence[str]) -> str:
    """Return the texts as a list in Vega's expression language."""
    return "[" + ",".join('"' + "".join(map(_escaped, text)) + '"' for text in texts) + "]"


def _escaped(letter: str) -> str:
    if (letter.isalnum() and letter.isascii()) or letter in " .,-_":
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
