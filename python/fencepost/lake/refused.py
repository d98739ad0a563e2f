"""The rows that are not kept, as ranges by file: a task that writes some files reads just the bytes of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict
from fencepost.lake.repeats import Stretches
from fencepost.lake.scan import FILE, ROW
from fencepost.state.scratch import Scratch

LOSERS = pa.schema([("file", pa.uint32()), ("row", pa.uint64()), ("count", pa.uint64()), ("verdict", pa.uint8())])
"""Rows that are not kept: the file's ordinal, its first such row, how many follow each other, and why."""
_LINE = np.dtype([("file", "<u4"), ("row", "<u8"), ("count", "<u8"), ("verdict", "u1")])
"""A range in a file of them. All have one length, so a place in the file follows from their number."""

MARK_LINES = 1 << 14
"""Ranges of one file from mark to mark, by which a task that writes a part of it finds its own."""

Range = tuple[str, int, int]
"""Name, first byte and end of a part of a file in the scratch."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A file of LOSERS, sorted by file and row."""

    name: str
    files: npt.NDArray[np.uint32]
    """The ordinals of the files in it, in ascending order."""
    ends: npt.NDArray[np.int64]
    """How many ranges there are up to the last one of each."""
    marks: npt.NDArray[np.int64]
    """File, row and number of every MARK_LINES-th range of a file, but for its first."""

    def of(self, first: int, end: int, rows: tuple[int, int] | None = None) -> Range | None:
        """Where the ranges of the files from ordinal `first` to `end` are; None where it has none of them.

        `rows`: first and end of what is wanted of a single file; there may be others around it.
        """
        low, high = np.searchsorted(self.files, [first, end]).tolist()
        if low == high:
            return None
        begin, stop = int(self.ends[low - 1]) if low else 0, int(self.ends[high - 1])
        if rows is not None:
            _, at, number = self.marks.reshape(-1, 3)[self.marks[::3] == first].T
            before, behind = np.searchsorted(at, rows[0], "right"), np.searchsorted(at, rows[1])
            begin = int(number[before - 1]) if before else begin
            stop = int(number[behind]) if behind < len(number) else stop
        return self.name, begin * _LINE.itemsize, stop * _LINE.itemsize

    def all(self) -> Range:
        """Where all of them are."""
        return self.name, 0, int(self.ends[-1]) * _LINE.itemsize


def write_refused(scratch: Scratch, losers: pa.Table) -> Refused | None:
    """Write LOSERS, sorted by file and row; None where there are none."""
    if not len(losers):
        return None
    lines = np.empty(len(losers), _LINE)
    for name in LOSERS.names:
        lines[name] = losers[name].to_numpy()
    refused = f"{uuid4().hex}.losers"
    with scratch.new(refused) as path:
        path.write_bytes(lines.tobytes())
    ends = np.append(np.flatnonzero(np.diff(lines["file"])) + 1, len(lines)).astype(np.int64)
    return Refused(name=refused, files=lines["file"][ends - 1].copy(), ends=ends, marks=_marks(lines, ends))


def _marks(lines: npt.NDArray[np.void], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    starts = np.append(0, ends[:-1])
    is_long = ends - starts > MARK_LINES
    long = zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True)
    places = [np.arange(start + MARK_LINES, end, MARK_LINES) for start, end in long]
    numbers = np.concatenate(places) if places else np.zeros(0, np.int64)
    return np.stack([lines["file"][numbers], lines["row"][numbers].astype(np.int64), numbers], 1).reshape(-1)


def read_refused(scratch: Scratch, ranges: Sequence[Range]) -> pa.Table:
    """LOSERS of parts of files, sorted by file and row."""
    read = scratch.read_ranges(ranges) if ranges else []
    lines = np.concatenate([np.frombuffer(it, _LINE) for it in read]) if read else np.empty(0, _LINE)
    if len(read) > 1:
        lines = lines[np.lexsort((lines["row"], lines["file"]))]
    return pa.table([np.ascontiguousarray(lines[name]) for name in LOSERS.names], schema=LOSERS)


def within(ranges: pa.Table, first: int, end: int) -> pa.Table:
    """What of ranges of rows lies in the rows from `first` to `end`."""
    row = ranges["row"].to_numpy()
    begins, stops = np.clip(row, first, end), np.clip(row + ranges["count"].to_numpy(), first, end)
    for name, values in (("row", begins), ("count", stops - begins)):
        place = ranges.schema.get_field_index(name)
        ranges = ranges.set_column(place, ranges.schema.field(place), pa.array(values, pa.uint64()))
    return ranges.filter(pa.array(stops > begins))


def by_file(losers: pa.Table, first: int, end: int) -> list[pa.Table]:
    """For each ordinal from `first` to `end` its ranges, by row."""
    borders = np.searchsorted(losers["file"].to_numpy(), np.arange(first, end + 1))
    return [losers.slice(low, high - low) for low, high in pairwise(borders)]


def row_losers(runs: pa.Table, codes: npt.NDArray[np.uint8]) -> pa.Table:
    """A table of LOSERS, in the order of the runs. `codes`: a verdict for each row of the runs."""
    lost = Stretches.of(runs, codes, [verdict for verdict in Verdict if not verdict.is_kept])
    rows = runs[ROW].to_numpy()[lost.runs] + lost.offsets.astype(np.uint64)
    counts = lost.counts.astype(np.uint64)
    return pa.table([runs[FILE].to_numpy()[lost.runs], rows, counts, lost.verdicts], schema=LOSERS)


def sorted_losers(tables: list[pa.Table]) -> pa.Table:
    """By file and row; ranges that follow each other are one."""
    losers = pa.concat_tables(tables, promote_options="permissive") if tables else LOSERS.empty_table()
    if not len(losers):
        return losers
    file, row, count, verdict = (losers[name].to_numpy() for name in LOSERS.names)
    order = np.lexsort((row, file))
    file, row, count, verdict = file[order], row[order], count[order], verdict[order]
    goes_on = (file[1:] == file[:-1]) & (verdict[1:] == verdict[:-1]) & (row[1:] == row[:-1] + count[:-1])
    first = np.flatnonzero(np.append(True, ~goes_on))
    counts = np.add.reduceat(count, first)
    return pa.table([file[first], row[first], counts, verdict[first]], schema=LOSERS)
