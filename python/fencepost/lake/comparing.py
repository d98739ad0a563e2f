"""After judging, on the driver: keeps checksums of rows, and finds repeats whose content differs (conflicts)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from fencepost.errors import SourceError
from fencepost.lake.conflicts import CompareItem, compare
from fencepost.lake.found import Found
from fencepost.lake.judge import Judged
from fencepost.lake.kept_content import ChecksumItem, ShardSums, SumItem, Summed, rows_max, sum_rows
from fencepost.lake.parts import tasks_of
from fencepost.lake.scan import ScanItem
from fencepost.lake.storage import ChangedError

if TYPE_CHECKING:
    from fencepost.lake.run import Run


def sum_checksums(run: Run, items: list[ScanItem], found: Found) -> list[Summed]:
    """Write the checksums of all rows, if they are kept."""
    if run.checksums is None:
        return []
    is_read = found.is_read.tolist()
    with _bad_content(run):
        return run.tasks(
            "sum",
            partial(sum_rows, run.storage, run.scratch),
            [
                SumItem(
                    files=found.files.slice(first, end),
                    first=first,
                    is_read=is_read[first:end],
                    columns=run.job.policy.columns,
                    wanted=run.job.compare_content or (),
                    row_range=row_range,
                )
                for first, end, row_range in tasks_of(items, found.row_ranges)
            ],
        )


def compare_repeats(run: Run, found: Found, judged: list[Judged], summed: list[Summed]) -> None:
    """Find conflicts among repeats, if requested, and keep checksums."""
    job = run.job
    paired = [it for it in judged if it.pairs is not None or it.accepted is not None or it.alone is not None]
    items = [
        CompareItem(
            files=found.files,
            pairs=it.pairs,
            refused_rows=it.refused_rows,
            columns=job.policy.columns,
            wanted=job.compare_content or (),
            keeping=_keeping(run, it, summed),
        )
        for it in paired
    ]
    with _bad_content(run):
        work = partial(compare, job.state.store, run.storage, run.scratch)
        done = run.tasks("compare", work, items) if items else []
    for it, compared in zip(paired, done, strict=True):
        it.refused_rows, it.conflicts = compared.refused_rows, compared.samples
        it.paired, it.kept = compared.pairs, compared.kept
        if compared.conflicts:
            it.counts["DUPLICATE"] -= compared.conflicts
            it.counts["CONFLICT"] = compared.conflicts


def _keeping(run: Run, judged: Judged, summed: list[Summed]) -> ChecksumItem | None:
    if run.checksums is None:
        return None
    job = run.job
    return ChecksumItem(
        summed=summed,
        accepted=judged.accepted,
        alone=judged.alone,
        shards=[
            ShardSums(
                after=it,
                state_before=run.base.shards.get(it.shard) if run.base else None,
                before=run.checksums.get(it.shard),
            )
            for it in judged.shards
        ],
        policy=job.policy,
        keep=("timestamp",) if job.max_idle_ms is not None else (),
        rows_max=rows_max(job.keep_checksums or 0, job.policy),
        version=run.version,
        attempt=run.attempt,
    )


@contextmanager
def _bad_content(run: Run) -> Iterator[None]:
    """Leave out files whose content is unreadable. Raises ReplanError."""
    try:
        yield
    except ChangedError:
        raise
    except SourceError as error:
        run.left_out.add_bad({} if error.path is None else {error.path: error.message})
        raise
