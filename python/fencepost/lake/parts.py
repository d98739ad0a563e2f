"""Large files, which several tasks scan and write in parts.

A part is a number and the number of parts. The driver plans it from the file's size: a task reads the footer and takes
the row groups whose middle is in its share of the bytes (`SpanScan`). Row numbers count from the beginning of the file,
so verdicts and reports do not depend on the number of parts.

A row group is never split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fencepost.lake.scan import ScanItem, Scanned
from fencepost.lake.storage import ChangedError

Task = tuple[int, int, "RowRange | None"]
"""The ordinals of a task's first file and of the one after its last, and for a part of a single file its rows."""


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """The rows of a part."""

    first: int
    end: int
    live: int
    """Number of rows that no deletion vector removes."""
    rows_of_file: int


def joined(scanned: Sequence[Scanned]) -> tuple[list[Scanned], dict[int, list[RowRange]]]:
    """Merge results of parts. Returns the results of whole files, and the row ranges of each split file, by ordinal.

    Raises ChangedError if two parts are of different files.
    """
    together = [list(some) for _, some in groupby(scanned, key=lambda it: it.first)]
    whole = [some[0] if len(some) == 1 else _join(some) for some in together]
    return whole, {some[0].first: _row_ranges(some) for some in together if len(some) > 1 and all(some[0].is_read)}


def _join(parts: list[Scanned]) -> Scanned:
    """Merge the parts of one file. If one task could not read it, the results of the others are dropped."""
    gone = [it for it in parts if it.status == ["vanished"]]
    unread = [it for it in parts if it.status == ["left out"]]
    footers = {it.footer_crc[0] for it in parts if it.status == ["read"]}
    if not gone and (len({it.files.identity(0) for it in parts}) > 1 or len(footers) > 1):
        path = parts[0].files.full_path(0)
        raise ChangedError(f"{path}: changed while its parts were read; run again when its writer is done", path=path)
    if gone or unread:
        return (gone or unread)[0]
    newest = [it.newest_ms for it in parts if it.newest_ms is not None]
    return replace(
        parts[0],
        rows=[sum(it.rows[0] for it in parts)],
        untracked=[sum(it.untracked[0] for it in parts)],
        newest_ms=max(newest, default=None),
        exchanges=[exchange for it in parts for exchange in it.exchanges],
    )


def _row_ranges(parts: list[Scanned]) -> list[RowRange]:
    rows_of_file = parts[-1].row_range[1]
    return [
        RowRange(first=it.row_range[0], end=it.row_range[1], live=it.rows[0], rows_of_file=rows_of_file) for it in parts
    ]


def tasks_of(items: Iterable[ScanItem], row_ranges: Mapping[int, list[RowRange]]) -> Iterator[Task]:
    """Yield the tasks of a later stage that read what the scan tasks have read.

    `row_ranges`: of the files to split. Other files are not split. Parts without rows get no task.
    """
    for item in items:
        first, end, (number, _) = item.first, item.first + len(item.files), item.part
        if first not in row_ranges:
            if number == 0:
                yield first, end, None
        elif (row_range := row_ranges[first][number]).first < row_range.end:
            yield first, end, row_range
