"""All stages of an attempt, up to a decision that nobody sees yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from fencepost.lake.aligned import AlignItem, align, can_align
from fencepost.lake.checks import check_verdicts
from fencepost.lake.comparing import compare_repeats, sum_checksums
from fencepost.lake.deciding import make_decision, write_changelog
from fencepost.lake.files import Files
from fencepost.lake.found import Found
from fencepost.lake.judge import Judged
from fencepost.lake.judging import judge_spans
from fencepost.lake.left_out import LeftOut, ReplanError
from fencepost.lake.plan import choose
from fencepost.lake.scan import Reading, ScanItem, scan
from fencepost.lake.scanning import merge_scanned, parts_of, scan_items
from fencepost.lake.storage import LocalStorage
from fencepost.lake.write import Written
from fencepost.lake.writing import check_copied, write_outputs
from fencepost.state.decision import Decision

if TYPE_CHECKING:
    from fencepost.lake.run import Run

Prepared = tuple[Decision | None, Found, list[Judged], list[Written]]
"""The decision is None if the run changes nothing."""


def prepare(run: Run, files: Files) -> Prepared:
    """Write everything that the new version needs, without making it visible."""
    job = run.job
    run.outputs.make()
    run.left_out = LeftOut(job.settle_ms, job.on_bad_file, run.base, bad=dict(run.news.damaged))
    if job.state.settings() is None:
        job.sink.probe(run.version, run.attempt)
    while True:
        try:
            return _prepare_once(run, files)
        except ReplanError:
            job.state.discard(run.version, run.attempt)


def _prepare_once(run: Run, files: Files) -> Prepared:
    """Raises ReplanError if more files must be left out."""
    job = run.job
    bytes_max = job.engine.driver_bytes_max
    run.engine = run.engine_for(bytes_max > 0 and sum(files.bytes) <= bytes_max)
    reading = _reading(run)
    problem = _problem_of_aligned(run, reading, files)
    name, reason = choose(job.plan, problem, run.before, run.storage, files, job.policy.columns)
    run.plan = {"name": name, "reason": reason}
    if run.engine is not job.engine:
        run.plan["scanned"] = "in the driver"
    if name == "aligned":
        done = _prepare_aligned(run, scan_items(run, files, reading, splits=False), files)
        if done is not None:
            return done
    items = scan_items(run, files, reading)
    engine = run.engine
    if _is_scanned_in_driver(run, files):
        engine = run.engine_for(is_small=True)
        run.plan["scanned"] = "in the driver"
    work = partial(scan, run.storage, run.scratch)
    found = merge_scanned(run, files, run.tasks("scan", work, items, engine, rows=lambda it: sum(it.rows)))
    judged = judge_spans(run, found, reading)
    compare_repeats(run, found, judged, sum_checksums(run, items, found))
    with run.step("check"):
        counts = check_verdicts(run, found, judged)
    with ThreadPoolExecutor(1) as beside:  # tasks write rows; the driver would wait
        changelog = beside.submit(write_changelog, run, judged)
        written = [] if run.is_seed else write_outputs(run, items, found, judged)
    return make_decision(run, found, judged, written, counts, changelog.result()), found, judged, written


def _is_scanned_in_driver(run: Run, files: Files) -> bool:
    """Return whether threads of the driver read the identity columns, so that the run waits for tasks only to write.

    They read files on disks as fast as a task does, and no payload.
    """
    bytes_max = run.job.engine.driver_scan_bytes_max
    return bytes_max > 0 and isinstance(run.storage, LocalStorage) and sum(files.bytes) <= bytes_max


def _problem_of_aligned(run: Run, reading: Reading, files: Files) -> str:
    """Return why tasks cannot scan, judge and write at once; "" if they can."""
    if run.is_seed:
        return "a seed writes nothing"
    if run.job.is_in_place:
        return "files stay where they are but for those that lose rows"
    if run.job.compare_content is not None:
        return "the content of repeats is compared"
    if run.job.arrangement is not None:
        return "outputs have rows of several files, or another order"
    if run.job.plan != "aligned" and max(parts_of(run, files), default=1) > 1:
        return "large files are split among tasks"
    return can_align(run.job.policy, reading.timestamp, reading.order_by)


def _prepare_aligned(run: Run, items: list[ScanItem], files: Files) -> Prepared | None:
    """Run the aligned plan. Returns None if a key turns out to be in several groups."""
    job = run.job
    aligning = [
        AlignItem(scan=it, rejects=job.rejects, may_link=run.may_link, tells_schemas=job.sink.has_schema)
        for it in items
    ]
    aligned = run.tasks("align", partial(align, run.places), aligning, rows=lambda it: sum(it.scanned.rows))
    problems = [it.problem for it in aligned if it.problem]
    if problems:
        _fall_back(run, problems[0])
        return None
    written = [it.written for it in aligned if it.written is not None]
    check_copied(run, written)
    found = merge_scanned(run, files, [it.scanned for it in aligned])
    for it in aligned:
        found.refused.update(it.refused)
        found.stale_epoch += it.stale_epoch
        found.stale += it.stale
    judged = judge_spans(run, found, items[0].reading)
    lost = sum(count for shard in judged for name, count in shard.counts.items() if name != "ACCEPTED")
    if lost or any(shard.stale_epoch or shard.border for shard in judged):
        _fall_back(
            run,
            f"{lost} rows that a task had kept are another file's or an earlier run's"
            if lost
            else "epochs of one key are in several files",
        )
        job.state.discard(run.version, run.attempt)
        return None
    with run.step("check"):
        counts = check_verdicts(run, found, judged)
    changelog = write_changelog(run, judged)
    return make_decision(run, found, judged, written, counts, changelog), found, judged, written


def _fall_back(run: Run, problem: str) -> None:
    run.plan = {"name": "interval", "reason": f"fell back from aligned: {problem}"}


def _reading(run: Run) -> Reading:
    job = run.job
    return Reading(
        policy=job.policy,
        shards=run.shards,
        timestamp=job.max_idle_ms is not None,
        order_by=job.order_by or (),
        by_row=job.plan == "row",
        reset_rows_min=job.reset_rows_min,
        compares=job.compare_content is not None,
        keeps_checksums=run.checksums is not None,
    )
