"""Refused rows as ranges by file. A task that writes some files reads only the bytes of their ranges."""

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

REFUSED_RANGES = pa.schema(
    [("file", pa.uint32()), ("row", pa.uint64()), ("count", pa.uint64()), ("verdict", pa.uint8())]
)
"""Refused rows: the file's ordinal, the first row, the number of consecutive rows, and the verdict."""
_LINE = np.dtype([("file", "<u4"), ("row", "<u8"), ("count", "<u8"), ("verdict", "u1")])
"""A range in a file of refused rows. All have the same length, so a range's number gives its position."""

MARK_LINES = 1 << 14
"""Number of ranges of a file between marks. A task that writes a part of the file finds its ranges by marks."""

Range = tuple[str, int, int]
"""Name, first byte and end of a part of a scratch file."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A scratch file of REFUSED_RANGES, sorted by file and row."""

    name: str
    files: npt.NDArray[np.uint32]
    """The ordinals of the files in it, ascending."""
    ends: npt.NDArray[np.int64]
    """The number of ranges up to the last one of each file."""
    marks: npt.NDArray[np.int64]
    """File, row and number of every MARK_LINES-th range of a file, except its first."""

    def of(self, first: int, end: int, rows: tuple[int, int] | None = None) -> Range | None:
        """Return the location of the ranges of files from ordinal `first` to `end`; None if there are none.

        `rows`: first and end of the wanted rows of a single file. The result may contain more.
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
        """Return the location of all ranges."""
        return self.name, 0, int(self.ends[-1]) * _LINE.itemsize


def write_refused(scratch: Scratch, refused_rows: pa.Table) -> Refused | None:
    """Write REFUSED_RANGES, sorted by file and row. Returns None for an empty table."""
    if not len(refused_rows):
        return None
    lines = np.empty(len(refused_rows), _LINE)
    for name in REFUSED_RANGES.names:
        lines[name] = refused_rows[name].to_numpy()
    refused = f"{uuid4().hex}.refused"
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
    """Read REFUSED_RANGES from parts of files, sorted by file and row."""
    read = scratch.read_ranges(ranges) if ranges else []
    lines = np.concatenate([np.frombuffer(it, _LINE) for it in read]) if read else np.empty(0, _LINE)
    if len(read) > 1:
        lines = lines[np.lexsort((lines["row"], lines["file"]))]
    return pa.table([np.ascontiguousarray(lines[name]) for name in REFUSED_RANGES.names], schema=REFUSED_RANGES)


def within(ranges: pa.Table, first: int, end: int) -> pa.Table:
    """Clip ranges of rows to the rows from `first` to `end`."""
    row = ranges["row"].to_numpy()
    begins, stops = np.clip(row, first, end), np.clip(row + ranges["count"].to_numpy(), first, end)
    for name, values in (("row", begins), ("count", stops - begins)):
        place = ranges.schema.get_field_index(name)
        ranges = ranges.set_column(place, ranges.schema.field(place), pa.array(values, pa.uint64()))
    return ranges.filter(pa.array(stops > begins))


def by_file(refused_rows: pa.Table, first: int, end: int) -> list[pa.Table]:
    """Return the ranges of each ordinal from `first` to `end`, sorted by row."""
    borders = np.searchsorted(refused_rows["file"].to_numpy(), np.arange(first, end + 1))
    return [refused_rows.slice(low, high - low) for low, high in pairwise(borders)]


def refused_ranges(spans: pa.Table, codes: npt.NDArray[np.uint8]) -> pa.Table:
    """Return a table of REFUSED_RANGES, in the order of the spans. `codes`: a verdict per row of the spans."""
    lost = Stretches.of(spans, codes, [verdict for verdict in Verdict if not verdict.is_kept])
    rows = spans[ROW].to_numpy()[lost.spans] + lost.offsets.astype(np.uint64)
    counts = lost.counts.astype(np.uint64)
    return pa.table([spans[FILE].to_numpy()[lost.spans], rows, counts, lost.verdicts], schema=REFUSED_RANGES)


def merge_refused(tables: list[pa.Table]) -> pa.Table:
    """Sort by file and row, and merge consecutive ranges."""
    refused_rows = pa.concat_tables(tables, promote_options="permissive") if tables else REFUSED_RANGES.empty_table()
    if not len(refused_rows):
        return refused_rows
    file, row, count, verdict = (refused_rows[name].to_numpy() for name in REFUSED_RANGES.names)
    order = np.lexsort((row, file))
    file, row, count, verdict = file[order], row[order], count[order], verdict[order]
    continues = (file[1:] == file[:-1]) & (verdict[1:] == verdict[:-1]) & (row[1:] == row[:-1] + count[:-1])
    first = np.flatnonzero(np.append(True, ~continues))
    counts = np.add.reduceat(count, first)
    return pa.table([file[first], row[first], counts, verdict[first]], schema=REFUSED_RANGES)
