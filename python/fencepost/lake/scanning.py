"""Stage 1 on the driver: divides the new files among scan tasks, and merges their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fencepost.lake.arranging import check_arrangement
from fencepost.lake.column_types import check_types
from fencepost.lake.files import Constants, Files, constants_of
from fencepost.lake.found import Found
from fencepost.lake.parts import joined
from fencepost.lake.plan import groups_of_files, parts_of_files
from fencepost.lake.scan import Reading, ScanItem, Scanned, files_in
from fencepost.lake.schemas import check_schemas

if TYPE_CHECKING:
    from fencepost.lake.run import Run


def scan_items(run: Run, files: Files, reading: Reading, *, splits: bool = True) -> list[ScanItem]:
    job = run.job
    names = list(dict.fromkeys((*job.policy.columns.names, *reading.order_by)))
    types = {**files.types, **(run.base.key_types if run.base else {})}
    misfits = run.left_out.bad if run.left_out.quarantines_misfits else None
    has_folders = run.source.has_folder_columns
    constants: list[Constants] = constants_of(files, names, types, misfits) if has_folders else [{}] * len(files)
    parts = parts_of(run, files)
    groups = [
        (first, end, files.slice(first, end), (number, count))
        for first, end in groups_of_files(files.bytes, job.engine.slots, job.task_bytes_max)
        for count in (parts[first] if splits and end == first + 1 else 1,)
        for number in range(count)
    ]
    return [
        ScanItem(
            files=some,
            first=first,
            constants=constants[first:end],
            left_out=run.left_out.of(some),
            quarantines_misfits=run.left_out.quarantines_misfits,
            reading=reading,
            part=part,
        )
        for first, end, some, part in groups
    ]


def parts_of(run: Run, files: Files) -> list[int]:
    """Return the number of parts of each file."""
    return parts_of_files(files.bytes, run.job.engine.slots, run.job.task_bytes_max)


def merge_scanned(run: Run, files: Files, tasks: list[Scanned]) -> Found:
    """Merge the results of scan tasks."""
    scanned, row_ranges = joined(tasks)
    is_read = np.array([it for group in scanned for it in group.is_read], bool)
    as_read = Files(files.root)
    for group in scanned:
        as_read.extend(group.files)
    newest = [group.newest_ms for group in scanned if group.newest_ms is not None]
    found = Found(
        files=as_read,
        is_read=is_read,
        read=as_read if is_read.all() else as_read.take(np.flatnonzero(is_read).tolist()),
        rows=np.array([it for group in scanned for it in group.rows], np.int64),
        untracked=sum(it for group in scanned for it in group.untracked),
        footer_crc=[it for group in scanned for it in group.footer_crc],
        schema_crc=[it for group in scanned for it in group.schema_crc],
        exchanges=[it for group in scanned for it in group.exchanges],
        newest_ms=max(newest, default=None),
        row_ranges=row_ranges,
    )
    if row_ranges:
        run.plan |= {"split_files": len(row_ranges)}
    _check_columns(run, found, scanned)
    status = [it for group in scanned for it in group.status]
    reasons = [it for group in scanned for it in group.reason]
    found.vanished, found.deferred, found.quarantined = run.left_out.sort(as_read, status, reasons, run.news.adds)
    if run.job.policy.depends_on_order:
        run.left_out.hold_back(as_read, status, found.deferred, is_sorted=bool(run.job.order_by))
    return found


def _check_columns(run: Run, found: Found, scanned: list[Scanned]) -> None:
    """Compare the files' columns with those of the job and of the sink. Leaves out files that do not fit."""
    known = run.base.key_types if run.base else {}
    misfit = next((group.misfit for group in scanned if group.misfit is not None), None)
    if misfit is not None and not found.is_read.any() and not known:
        # no file was ever read successfully, so the job's columns are probably wrong, not all of the files
        raise misfit
    columns, order_by = run.job.policy.columns, run.job.order_by or ()
    run.key_types, misfits = check_types(
        found.exchanges,
        lambda exchange: [found.files.full_path(it) for it in files_in(run.scratch, exchange)],
        columns,
        known,
        order_by,
        quarantines_misfits=run.left_out.quarantines_misfits,
    )
    run.left_out.add_bad(misfits)
    if run.job.sink.can_merge and not run.is_seed:
        run.schema, misfits = check_schemas(
            scanned,
            run.known_schema,
            run.job.schema,
            run.job.sink.columns_of,
            quarantines_misfits=run.left_out.quarantines_misfits,
        )
        run.left_out.add_bad(misfits)
    if run.job.arrangement is not None and not run.is_seed:
        check_arrangement(run.job.arrangement, scanned)
