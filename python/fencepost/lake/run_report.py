"""The report of a run, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.findings import ignored_line, reset_rule
from fencepost.lake.conflicts import joined, listed
from fencepost.lake.judge import SHOWN_MAX, Judged
from fencepost.lake.write import Written
from fencepost.report import Report, aligned, plain
from fencepost.state.decision import Decision, Inputs, kept_in
from fencepost.verdict import Verdict
from fencepost.words import noun, plural

if TYPE_CHECKING:
    from fencepost.lake.found import Found
    from fencepost.lake.run import Run
    from fencepost.pages.page import Page


@dataclass(frozen=True, kw_only=True)
class RunReport(Report):
    """The result of a run. Figures are about its own version unless documented otherwise."""

    version: int | None
    """The version that the run decided and finished. None without new readable input."""
    recovered: tuple[int, ...]
    """Versions of interrupted runs that it finished first. Their rows are not counted below."""
    source: str
    """The absolute path of the source: the job's, or that of a seed's clean data. For text and Arrow files on the
    command line: their names as passed."""
    state: str
    """The absolute path or URI of the state."""
    sink: str
    """The location of the sink: an absolute path, a URI, or the name of a table."""
    policy: str
    """The name of the preset, or the rules of another policy."""
    identity: tuple[str, ...]
    """The identity columns: pid, epoch, partition, seq. Composite keys are expanded."""
    engine: str
    """The engine's name: "local", "spark", or its own name."""
    plan: str
    """interval, row or aligned (`fencepost.lake.plan`). Empty without new input."""
    plan_reason: str
    """The reason for the plan, and any fallback."""
    judged: str
    """"in the driver" or "in tasks". Empty if nothing was judged."""
    files: int
    """Number of files read, without deferred, quarantined and vanished ones."""
    rows: int
    """Number of rows in these files."""
    bytes: int
    """Size of these files on disk, including all columns, compressed."""
    spans: int
    """Number of spans that were passed to judging. A span is rows that follow each other, of one key and epoch, with
    consecutive numbers. Rows without a producer are in no span. Under the aligned plan: the number of ranges of kept
    rows that tasks passed on."""
    inputs: pa.Table
    """The files read: path (relative to the source), bytes, mtime_ns, inode, rows."""
    source_position: dict[str, Any] | None
    """The position in a source that is not a folder, such as id and version of a Delta table. None for folders, and if
    nothing was read."""
    deferred: tuple[str, ...]
    """Files that could not be read yet, relative to the source. The next run retries. Excludes files that wait for
    them."""
    blocked: tuple[str, ...]
    """Files that wait for a deferred file, under a policy that depends on the order."""
    quarantined: tuple[tuple[str, str], ...]
    """(path relative to the source, reason) of files that this run quarantined. Later runs read such a file only if it
    was replaced or touched."""
    vanished: tuple[str, ...]
    """Files that were deleted or replaced between listing and reading, and files of `files=` that do not exist,
    relative to the source."""
    remaining_files: int
    """Number of new files left for the next run by `files_max`, `bytes_max` or `rows_max`."""
    lag: int | None
    """Number of Kafka offsets that were not read, of all partitions of the source. Of a job: those from the first
    open transaction on. Of a batch of a stream: those that were there when Spark planned the batch. None for other
    sources, and if Spark does not know the ends of the topics."""
    ignored: tuple[str, ...]
    """The first 100 files that were skipped because their names do not end in .parquet, relative to the source. Names
    that begin with _ or . are not listed."""
    counts: dict[str, int]
    """Number of rows by verdict, without zeros. The numbers add up to `rows`."""
    kept: int
    """Number of ACCEPTED and UNTRACKED rows. They are written, except by a seed."""
    rejected: dict[str, int]
    """Number of rows written to `_rejects`, by verdict. Empty with `rejects="none"`."""
    missing_ranges: int
    """Number of ranges of sequences that the run's rows skipped and did not fill."""
    missing_rows: int
    """Number of rows in these ranges."""
    missing: pa.Table
    """The first 1000 of these ranges: key columns, epoch, first_seq, last_seq, count (rows)."""
    missing_changes: dict[str, int]
    """Number of lines in the changelog of missing ranges, by kind: OPEN, CLOSED, SPLIT, FINAL."""
    missing_open: int | None
    """Number of rows that are missing in the whole state after the run, including those of earlier runs. None if a
    shard was last written by a release of fencepost that did not count them."""
    stale_epoch: int
    """Number of rows below the highest epoch of their key, written by zombies."""
    stale: pa.Table
    """These rows by key, the first 1000: key columns, epoch, count (rows)."""
    resets_looked_for: bool
    """Whether timestamps are kept (`max_idle_ms`). Without them, restarted counters look like repeats."""
    suspected_resets: pa.Table
    """Keys that seem to restart their numbers, the first 1000: key columns (with epoch if it is part of the key), rows,
    duplicates, and retimed: the repeats that cannot be copies (`fencepost.resets`). Empty if they were not searched
    for."""
    reset_keys: int
    """Number of all these keys."""
    reset_rows_min: int
    """Number of retimed repeats from which a key is suspected."""
    content_compared: int | None
    """Number of repeats that were compared with the row they repeat. None if content is not compared. The other repeats
    are of rows that an earlier run kept without a checksum, or whose sequence wrapped within the run."""
    checksums_kept: int | None
    """Number of checksums in the state for later runs. None if it keeps none."""
    conflicts: pa.Table
    """Some of the CONFLICT rows: identity columns (text), file, row, kept_file, kept_row, column (the first that
    differs), found and kept (its two values, as text). The last five are null if an earlier run kept the row: only its
    checksum is known."""
    border: int
    """Number of rows that were put into another lap than the highest accepted row, because both are near the end of the
    number range. A lap is one pass from 0 to wrap - 1."""
    entries: int
    """Number of entries in the state: keys, or keys and epochs."""
    shards: int
    """Number of shards whose state was read, because rows belong to them."""
    shards_all: int
    """Number of shards of the state."""
    state_bytes: int
    """Bytes of all snapshots, deltas and checksums of the state."""
    state_bytes_read: int
    """Bytes that were read of the previous state of the judged shards."""
    state_bytes_written: int
    """Bytes of snapshots, deltas and checksums added to the state."""
    outputs: tuple[str, ...]
    """Files with kept rows, relative to the sink."""
    carried_files: int
    """Number of outputs that equal their inputs: copied, or linked if the source is immutable."""
    copied_groups: int
    """Number of row groups of other outputs that lost no row and were copied as bytes."""
    rewritten_groups: int
    """Number of row groups of other outputs that lost rows and were rewritten."""
    seconds: dict[str, float]
    """Seconds by step: recover, list, scan, judge, write and so on, including waiting for tasks."""
    driver_seconds: float
    """Seconds of the driver, excluding waiting for tasks."""
    task_seconds: float
    """Seconds of all tasks together, including parallel ones."""

    def to_json(self) -> str:
        """Return the report as JSON, tables as lists of objects."""
        tables = {name: value.to_pylist() for name, value in vars(self).items() if isinstance(value, pa.Table)}
        return json.dumps(vars(self) | tables, default=plain)

    def _page(self) -> Page:
        from fencepost.pages.run import run_page

        return run_page(self)

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row and the figures as columns, to concatenate those of many runs."""
        import pandas as pd  # type: ignore[import-untyped]

        flat = {name: value for name, value in vars(self).items() if not isinstance(value, pa.Table | dict)}
        for name in ("counts", "rejected", "missing_changes", "seconds"):
            flat |= {f"{name}.{key}": value for key, value in getattr(self, name).items()}
        return pd.DataFrame([flat])

    def __str__(self) -> str:
        lines = [f"finished first: version {version} of an interrupted run" for version in self.recovered]
        rows = self._lines()
        if self.version is None:
            lines.append(f"nothing new in {self.source}: nothing written, state unchanged")
            rows = self._files_left_out()
        else:
            lines.append(f"version {self.version} of {self.sink}, policy {self.policy}")
        return "\n".join([*lines, *aligned(rows)])

    def _lines(self) -> list[tuple[str, str, str]]:
        """Return (label, number, explanation) for people."""
        total = sum(self.seconds.values())
        steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in self.seconds.items() if seconds >= 0.005)
        return [
            ("identity", "", ", ".join(self.identity)),
            ("plan", "", f"{self.plan}, judged {self.judged}: {self.plan_reason}"),
            (
                "read",
                f"{self.rows:,}",
                f"{noun(self.rows, 'row')} in {plural(self.files, 'new file')}, {self.bytes / 1e6:,.1f} MB, "
                f"{plural(self.spans, 'span')}",
            ),
            *self._files_left_out(),
            ("kept", f"{self.kept:,}", self._share(self.kept)),
            *self._verdicts(is_kept=True),
            ("not kept", f"{self.rows - self.kept:,}", self._share(self.rows - self.kept)),
            *self._verdicts(is_kept=False),
            (
                "missing",
                f"{self.missing_rows:,}",
                f"{noun(self.missing_rows, 'row')} jumped over in this run, in {plural(self.missing_ranges, 'range')}",
            ),
            (
                "stale epoch",
                f"{self.stale_epoch:,}",
                f"{noun(self.stale_epoch, 'row')} of producers that a later epoch had replaced",
            ),
            *self._conflicts(),
            *self._resets(),
            ("state", f"{self.entries:,}", self._of_state()),
            ("seconds", f"{total:,.2f}", f"{self.rows / total / 1e6:,.1f} M rows/s, engine {self.engine}: {steps}"),
        ]

    def _conflicts(self) -> list[tuple[str, str, str]]:
        if self.content_compared is None:
            return []
        absent = self.repeats - self.content_compared
        missed = f"{absent:,} {noun(absent, 'was', 'were')} not at hand"
        compared = f"of {plural(self.content_compared, 'repeat')} compared; {missed}"
        samples = [("", "", listed(self.conflicts.slice(at, 1))) for at in range(min(3, len(self.conflicts)))]
        lines = [("conflicts", f"{self.counts.get('CONFLICT', 0):,}", compared), *samples]
        if self.checksums_kept is not None:
            kept = noun(self.checksums_kept, "kept row")
            lines.append(("checksums", f"{self.checksums_kept:,}", f"{kept} that later runs can compare with"))
        return lines

    @property
    def repeats(self) -> int:
        """Number of rows whose identity was accepted before, also those with other content."""
        return self.counts.get("DUPLICATE", 0) + self.counts.get("CONFLICT", 0)

    def _resets(self) -> list[tuple[str, str, str]]:
        if not self.repeats:
            return []
        if not self.resets_looked_for:
            reason = "only timestamps tell a restarted counter from repeats, and without max_idle none are read"
            return [("resets", "?", f"not looked for: {reason}")]
        count = self.reset_keys
        text = f"{noun(count, 'key')} whose numbers seem to start again: {reset_rule(self.reset_rows_min)}"
        return [("resets", f"{count:,}", text)]

    def _of_state(self) -> str:
        moved = f"{self.state_bytes_read / 1e6:,.1f} MB read, {self.state_bytes_written / 1e6:,.1f} MB written"
        entries, shards = noun(self.entries, "entry", "entries"), plural(self.shards_all, "shard")
        return f"{entries}; {self.shards} of {shards} judged, {moved}"

    def _files_left_out(self) -> list[tuple[str, str, str]]:
        """Return lines about files that were not read."""
        lines = [("quarantined", path, why) for path, why in self.quarantined[:10]]
        deferred, blocked, vanished = len(self.deferred), len(self.blocked), len(self.vanished)
        if deferred:
            lines.append(("deferred", f"{deferred:,}", f"{noun(deferred, 'file')} that cannot be read yet"))
        if blocked:
            files = noun(blocked, "file that comes", "files that come")
            lines.append(("blocked", f"{blocked:,}", f"{files} after a deferred one in the order"))
        if vanished:
            files = noun(vanished, "file that was gone, or another,", "files that were gone, or others,")
            lines.append(("vanished", f"{vanished:,}", f"{files} when read"))
        if self.remaining_files:
            files = noun(self.remaining_files, "new file")
            lines.append(
                (
                    "remaining",
                    f"{self.remaining_files:,}",
                    f"{files} that the next run reads (files_max, bytes_max, rows_max)",
                )
            )
        if self.ignored:
            lines.append(ignored_line(self.ignored))
        return lines

    def _verdicts(self, is_kept: bool) -> list[tuple[str, str, str]]:
        found = {name: count for name, count in self.counts.items() if Verdict[name].is_kept == is_kept}
        notes = {"UNTRACKED": "no producer: kept, not deduplicated"}
        return [(f"  {name}", f"{count:,}", notes.get(name, "")) for name, count in found.items()]

    def _share(self, rows: int) -> str:
        return f"{rows / self.rows:.2%}" if self.rows else ""


def make_report(
    run: Run, decision: Decision | None, found: Found | None, judged: list[Judged], written: list[Written]
) -> RunReport:
    """Return the report of a finished run."""
    job, state = run.job, decision or run.before
    rejected: Counter[str] = Counter()
    for group in written:
        for _, verdict, _, rows, _, _ in group.rejects:
            rejected[verdict] += rows
    figures = ("missing_ranges", "missing_rows", "stale_epoch", "border")
    counts = decision.counts if decision else {}
    inputs = decision.inputs if decision else Inputs()
    return RunReport(
        version=decision.version if decision else None,
        recovered=run.recovered,
        source=run.source.place,
        state=job.state.uri,
        sink=str(job.sink.location),
        policy=job.policy.name or job.policy.rules,
        identity=job.policy.columns.names,
        engine=job.engine.name,
        plan=run.plan.get("name", ""),
        plan_reason=run.plan.get("reason", ""),
        judged=run.plan.get("judged", ""),
        files=len(inputs),
        rows=sum(inputs.rows),
        bytes=sum(inputs.bytes),
        spans=run.plan.get("spans", 0),
        inputs=pa.table({name: getattr(inputs, name) for name in ("path", "bytes", "mtime_ns", "inode", "rows")}),
        source_position=decision.source_position if decision else None,
        deferred=found.deferred.damaged if found else (),
        blocked=found.deferred.waiting if found else (),
        quarantined=tuple(zip(found.quarantined.path, found.quarantined.reason, strict=True)) if found else (),
        vanished=(*run.vanished, *(found.vanished if found else ())),
        remaining_files=run.news.left,
        lag=run.news.lag,
        ignored=run.news.ignored,
        counts=counts,
        kept=kept_in(counts),
        rejected=dict(rejected),
        missing=_shown(table for task in judged for table in task.missing),
        missing_changes=dict(run.missing_changes) if decision else {},
        missing_open=state.missing_open if state else 0,
        stale=_shown([*(found.stale if found else ()), *(table for task in judged for table in task.stale)]),
        resets_looked_for=job.max_idle_ms is not None,
        suspected_resets=_shown(table for task in judged for table in task.resets),
        reset_keys=sum(task.reset_keys for task in judged),
        reset_rows_min=job.reset_rows_min,
        content_compared=sum(task.paired for task in judged) if job.compare_content is not None else None,
        checksums_kept=sum(state.checksums.rows) if state and state.checksums else None,
        conflicts=joined([task.conflicts for task in judged]),
        entries=state.entries if state else 0,
        shards=sum(len(task.shards) for task in judged),
        shards_all=run.shards,
        state_bytes=state.state_bytes if state else 0,
        state_bytes_read=sum(it.bytes_read for task in judged for it in (task, task.kept) if it),
        state_bytes_written=sum(it.bytes_written for task in judged for it in (task, task.kept) if it),
        outputs=tuple(job.sink.names(decision)) if decision else (),
        carried_files=sum(group.carried for group in written),
        copied_groups=sum(group.groups_copied for group in written),
        rewritten_groups=sum(group.groups_rewritten for group in written),
        seconds=dict(run.seconds),
        driver_seconds=run.driver_seconds,
        task_seconds=run.task_seconds,
        **{name: getattr(decision, name) if decision else 0 for name in figures},
    )


def _shown(tables: Iterable[pa.Table]) -> pa.Table:
    known = list(tables)
    some = [table for table in known if len(table)]  # tables without keys do not know their types
    if not some:
        return known[0] if known else pa.table({})
    return pa.concat_tables(some, promote_options="permissive").slice(0, SHOWN_MAX)
