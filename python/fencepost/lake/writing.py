"""Stage 3 on the driver: divides the files among write tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from fencepost.lake.arranging import ArrangeItem, Arrangement, arrange, batches, row_ranges_to_arrange
from fencepost.lake.found import Found
from fencepost.lake.judge import Judged
from fencepost.lake.parts import RowRange, tasks_of
from fencepost.lake.plan import groups_of_files
from fencepost.lake.refused import Refused
from fencepost.lake.scan import ScanItem
from fencepost.lake.write import WriteItem, Written, write

if TYPE_CHECKING:
    from fencepost.lake.run import Run


def write_outputs(run: Run, items: list[ScanItem], found: Found, judged: list[Judged]) -> list[Written]:
    refused = [it.refused_rows for it in judged if it.refused_rows is not None]
    if run.job.arrangement is None:
        row_ranges = {} if run.job.is_in_place else found.row_ranges_to_write(refused)
        work = partial(write, run.places)
        tasks = [_write_item(run, found, *task, refused) for task in tasks_of(items, row_ranges)]
        written = run.tasks("write", work, tasks, rows=lambda it: sum(it.rows))
    else:
        arranged = list(_arrange_items(run, run.job.arrangement, found, refused))
        written = run.tasks("write", partial(arrange, run.places), arranged, rows=lambda it: sum(it.rows))
    check_copied(run, written)
    return written


def _arrange_items(run: Run, arrangement: Arrangement, found: Found, refused: list[Refused]) -> Iterator[ArrangeItem]:
    sizes = found.files.bytes
    ends = batches(arrangement, found.files, found.is_read.tolist(), found.schema_crc)
    borders = [0, *ends]
    of_batch = [sum(sizes[first:end]) for first, end in pairwise(borders)]
    for low, high in groups_of_files(of_batch, run.job.engine.slots, run.job.task_bytes_max):
        first, end = borders[low], borders[high]
        row_ranges: Sequence[RowRange | None] = [None]
        if end == first + 1 and first in found.row_ranges:
            row_ranges = row_ranges_to_arrange(arrangement, sizes[first], found.row_ranges[first])
        for row_range in row_ranges:
            yield ArrangeItem(
                files=_write_item(run, found, first, end, row_range, refused),
                ends=[end - first for end in ends[low:high]],
                arrangement=arrangement,
            )


def _write_item(
    run: Run, found: Found, first: int, end: int, row_range: RowRange | None, refused: list[Refused]
) -> WriteItem:
    rows = None if row_range is None else (row_range.first, row_range.end)
    return WriteItem(
        files=found.files.slice(first, end),
        first=first,
        rows=found.rows[first:end].tolist() if row_range is None else [row_range.live],
        footer_crc=found.footer_crc[first:end],
        is_read=found.is_read[first:end].tolist(),
        refused_rows=[place for it in refused if (place := it.of(first, end, rows)) is not None],
        rejects=run.job.rejects,
        drops_conflicts=run.job.on_conflict == "drop",
        may_link=run.may_link,
        tells_schemas=run.job.sink.has_schema,
        in_place=run.in_place,
        row_range=row_range,
    )


def check_copied(run: Run, written: list[Written]) -> None:
    """Leave out files whose identity is readable and whose payload is not. Raises ReplanError."""
    run.left_out.add_bad({path: reason for group in written for path, reason in group.damaged.items()})
