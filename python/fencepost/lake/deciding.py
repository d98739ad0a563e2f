"""Makes the decision of a run from the results of its tasks."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from fencepost._native import arrange
from fencepost.lake.asking import ask_footers
from fencepost.lake.checks import check_kept
from fencepost.lake.files import Files
from fencepost.lake.found import Found
from fencepost.lake.judge import Judged
from fencepost.lake.schemas import to_text
from fencepost.lake.storage import retry
from fencepost.lake.write import Written
from fencepost.state.changelog import OPEN, NamedFile, as_side_file, corrections, count_lines, read_piece, write_lines
from fencepost.state.commit import NewRows
from fencepost.state.decision import Decision, Deferred, Inputs, Marked, Outputs, Shards, SideFiles
from fencepost.state.ledger import file_table
from fencepost.state.retention import next_oldest
from fencepost.state.sinks import REJECTS

if TYPE_CHECKING:
    from fencepost.lake.run import Run


def write_changelog(run: Run, judged: list[Judged]) -> NamedFile | None:
    """Write the changes in missing ranges, one file of those of all tasks, and count them for the report.

    Returns None without changes.

    Memory: a column of some row groups.
    """
    rows = {it.changelog: sum(it.changes.values()) for it in judged if it.changelog}
    if run.is_rebase:
        # the whole list of missing ranges: nothing was known before
        now = (read_piece(run.scratch, it).drop_columns(["version", "change"]) for it in rows)
        lines = corrections(run.job.sink.changelog(), now, run.version)
        run.missing_changes = count_lines(lines)
        return write_lines(lines, run.outputs) if lines else None
    run.missing_changes = sum((Counter(it.changes) for it in judged), Counter[str]())
    if not rows:
        return None
    sources = [run.scratch.place(it) for it in rows]
    objects = [run.scratch.object(it) for it in rows]
    ranges = np.arange(len(rows)), np.zeros(len(rows), np.int64), np.array(list(rows.values()))
    name = f"{uuid4().hex}.missing"
    with run.outputs.new(name, lasts=True) as path:
        done = retry(lambda: arrange(sources, [(str(path), *ranges)], objects=objects))
    return as_side_file(done.rows[0], done.bytes[0], done.footer_crc[0]), name


def make_decision(
    run: Run,
    found: Found,
    judged: list[Judged],
    written: list[Written],
    counts: dict[str, int],
    changelog: NamedFile | None,
) -> Decision | None:
    """Return the decision. Call it when all files that it names are durable, and state and sink have owners.

    Returns None if every file must be read again, and that is already recorded.
    """
    job = run.job
    known = run.base.deferred if run.base else Deferred()
    if not len(found.read) and not len(found.quarantined) and not run.has_moved and found.deferred == known:
        return None
    ordinals = np.cumsum(found.is_read) - 1
    outputs, winners = _outputs(run, found, written, ordinals)
    sides, side_winners = _side_files(run, found, written, ordinals, changelog)
    marked = Marked.of(it | {"ordinal": int(ordinals[it["ordinal"]])} for group in written for it in group.marked)
    if not run.is_seed:
        check_kept(run, counts, outputs, marked)
    sink_version = _checked_rows(run, outputs, written)
    if staged := job.sink.stage(run.version, run.attempt, outputs, winners, job.engine.slots, run.tasks):
        sink_version = {**(sink_version or {}), **staged}
    with run.step("collect"):
        names = winners | side_winners
        prepared = job.sink.collect(run.version, run.attempt, names) if names else None
        inputs = _inputs(found)
        listed = [file_table(Inputs())]
        if run.source.has_ledger:
            listed = [file_table(inputs), _quarantined(run, found), run.news.seen_again]
        ledger = job.state.extend_ledger(run.base, run.version, run.attempt, listed)
        if run.version == 1:
            job.sink.claim(job.state.create(job.settings()).id)
    shards = (run.base.shards if run.base else Shards()).replaced(it for task in judged for it in task.shards)
    kept = {shard: pieces for it in judged if it.kept for shard, pieces in it.kept.pieces.items()}
    return job.state.follow(
        run.version,
        run.before,
        run.attempt,
        kind="seed" if run.is_seed else "rebase" if run.is_rebase else "run",
        builds_on=run.base.version if run.base else 0,
        inputs=inputs,
        quarantined=found.quarantined,
        deferred=found.deferred,
        outputs=outputs,
        marked=marked,
        side_files=sides,
        prepared=prepared,
        sink_version=sink_version,
        source_position=run.news.position if run.source.is_own else None,
        shard_count=run.shards,
        shards=shards,
        checksums=None if run.checksums is None else run.checksums.replaced(kept),
        ledger=ledger,
        listing=_listing(run, found),
        oldest=next_oldest(job.state, run.before, run.version, job.retention, time.time_ns() // 1_000_000),
        collected=run.collected,
        clock_ms=run.clock_ms,
        horizon_ms=run.eviction.horizon_after,
        key_types=run.key_types,
        schema=None if run.schema is None else to_text(run.schema),
        counts=counts,
        missing_ranges=sum(it.missing_ranges for it in judged),
        missing_rows=sum(it.missing_rows for it in judged),
        stale_epoch=sum(it.stale_epoch for it in judged) + found.stale_epoch,
        border=sum(it.border for it in judged),
        policy=job.policy.rules,
        order_by=None if job.order_by is None else list(job.order_by),
        plan=run.plan,
        report={
            "deferred": found.deferred.damaged[:100],
            "vanished": (run.vanished + found.vanished)[:100],
            "missing_opened": run.missing_changes[OPEN],
            "missing_closed": run.missing_changes.total() - run.missing_changes[OPEN],
            "seconds": round(time.perf_counter() - run.began, 3),
        }
        | ({"seeded_from": run.source.place} if run.is_seed else {}),
    )


def _listing(run: Run, found: Found) -> str | None:
    """Return `Decision.listing`: set if all new listed files were read as listed or quarantined."""
    is_as_listed = found.files == replace(run.news.files, ignored=found.files.ignored, types=found.files.types)
    is_complete = is_as_listed and not len(found.deferred) and not found.vanished
    return run.news.listing if run.source.has_ledger and is_complete else None


def _checked_rows(run: Run, outputs: Outputs, written: list[Written]) -> dict[str, Any] | None:
    """Return the decision's record of the sink. Raises an error if the sink cannot take the rows."""
    schemas = {schema: path for group in reversed(written) for schema, path in group.schemas.items()}
    if not schemas:
        return run.sink_version
    rows = NewRows(
        schemas=schemas,
        folders=dict.fromkeys(name.rpartition("/")[0] + "/" for name in outputs.name),
        bounds=[it for group in written for it in group.bounds],
        rule=run.job.schema,
    )
    more = run.job.sink.check_rows(rows)
    return {**(run.sink_version or {}), **more} or None


def _side_files(
    run: Run, found: Found, written: list[Written], ordinals: npt.NDArray[np.int64], changelog: NamedFile | None
) -> tuple[SideFiles, dict[str, str]]:
    """Return the files of refused rows and of changes in missing ranges, and their temporary names."""
    rejects = [it for group in written for it in group.rejects]
    stems = [
        f"{REJECTS}/verdict={verdict}/{run.folders_of(found.files.paths[ordinal])}part-{ordinals[ordinal]:05}"
        for ordinal, verdict, *_ in rejects
    ]
    names = _numbered(stems)
    places = {name: written_name for name, (_, _, written_name, *_) in zip(names, rejects, strict=True)}
    rows: list[dict[str, Any]] = [
        {"table": "rejects", "name": name, "rows": count, "bytes": size, "footer_crc": crc}
        for name, (_, _, _, count, size, crc) in zip(names, rejects, strict=True)
    ]
    if changelog is not None:
        row, written_name = changelog
        places[row["name"]] = written_name
        rows.append(row)
    return SideFiles.of(rows), places


def _quarantined(run: Run, found: Found) -> Any:
    """Return the quarantined files as the ledger lists them.

    The footer's checksum distinguishes such a file from a good one that replaces it with equal size and time.
    """
    bad = found.quarantined
    files = Files(found.files.root, bad.path, bad.bytes, bad.mtime_ns, bad.inode, bad.etag, [None] * len(bad))
    crcs = ask_footers(run.ask, run.storage, files, as_listed=True)
    return file_table(vars(bad) | {"footer_crc": crcs})


def _inputs(found: Found) -> Inputs:
    crcs = np.array(found.footer_crc, np.int64)
    return Inputs(
        path=found.read.paths,
        bytes=found.read.bytes,
        mtime_ns=found.read.mtime_ns,
        inode=found.read.inode,
        etag=found.read.etag,
        rows=found.rows[found.is_read].tolist(),
        footer_crc=crcs[found.is_read].tolist(),
    )


def _outputs(
    run: Run, found: Found, written: list[Written], ordinals: npt.NDArray[np.int64]
) -> tuple[Outputs, dict[str, str]]:
    """Return the files of kept rows, and their temporary names."""
    places, folders, written_names, rows, sizes, crcs = (
        [it for group in written for it in getattr(group, column)]
        for column in ("ordinal", "folder", "names", "rows", "bytes", "footer_crc")
    )
    columns: dict[str, list[Any]] = {"rows": rows, "bytes": sizes, "footer_crc": crcs}
    columns["ordinal"] = ordinals[places].tolist() if places else []
    sources = found.files.folders()
    hive = {folder: run.folders_of(folder) for folder in dict.fromkeys(sources)}
    stems = [
        f"{hive[sources[place]]}{folder}part-{ordinal:05}"
        for place, folder, ordinal in zip(places, folders, columns["ordinal"], strict=True)
    ]
    columns["name"] = _numbered(stems)
    winners = dict(zip(columns["name"], written_names, strict=True))
    for group in written:
        for first, name, size in group.vectors:
            facts = {"name": name, "ordinal": int(ordinals[first]), "rows": 0, "bytes": size}
            for column, value in (facts | {"footer_crc": 0}).items():
                columns[column].append(value)
            winners[name] = name
    return Outputs(**columns), winners


def _numbered(stems: list[str]) -> list[str]:
    """Return file names: equal stems get numbers."""
    totals, counts = Counter(stems), Counter[str]()
    names = []
    for stem in stems:
        names.append(f"{stem}-{counts[stem]:03}.parquet" if totals[stem] > 1 else f"{stem}.parquet")
        counts[stem] += 1
    return names
