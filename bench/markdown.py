"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Rows under a head, aligned by a letter a column: l, r or c. Can be read unrendered too."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (_pad(cell, width, side) for cell, width, side in zip(cells, widths, alignment, strict=True))
        return "| " + " | ".join(padded) + " |"

    rules = ("-" * (width - 1) + (":" if side == "r" else "-") for width, side in zip(widths, alignment, strict=True))
    return "\n".join([line(head), "| " + " | ".join(rules) + " |", *map(line, rows)])


def emphasized(cells: tuple[str, ...], is_bold: bool) -> tuple[str, ...]:
    return tuple(f"**{cell}**" for cell in cells) if is_bold else cells


def _pad(cell: str, width: int, side: str) -> str:
    pads: dict[str, Callable[[int], str]] = {"l": cell.ljust, "r": cell.rjust, "c": cell.center}
    return pads[side](width)
