"""`fencepost dedup`."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.cli import identity
from fencepost.cli.identity import read_policy
from fencepost.cli.jobs import make_job, milliseconds, number_or_all
from fencepost.cli.terminal import (
    Html,
    Threads,
    check_page,
    first_passed,
    option,
    quit_at_once,
    steps,
    stop_on_signals,
    write_page,
)
from fencepost.errors import FencepostError, StoreError

if TYPE_CHECKING:
    from fencepost.lake import DedupJob, RunReport

OUTAGES = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT}
"""Errors of local state, sink or temporary files that may pass: a full disk, a mount that does not answer."""
CONVERTED = "converted files"
"""The name of the source in the state of a job over text and Arrow files."""
ARGUMENTS = (
    "scope", "rejected_max", "rejects", "on_reset", "reset_rows_min", "on_conflict", "on_bad_file", "shards",
    "shard_bytes_max", "task_bytes_max", "task_spans_max", "driver_spans_max", "driver_state_bytes_max", "plan",
    "threads", "layout", "schema", "files_max", "bytes_max", "rows_max", "target_file_bytes", "partition_by",
)  # fmt: skip
"""The options that `make_job` takes as they are, under the same names."""


def dedup_command(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A folder or object-store prefix (s3://, gs://, az://) of Parquet files, a Parquet file, a quoted "
            "glob pattern, a Delta table, or an Iceberg table (iceberg://catalog/namespace.table). Repeatable, for "
            "several folders and files. .csv, .tsv, .jsonl and .arrow files, and - for standard input, are "
            "converted to Parquet first.",
        ),
    ],
    state: Annotated[str, typer.Argument(metavar="STATE", help="A dedicated folder for the job's state.")],
    sink: Annotated[
        str,
        typer.Argument(
            metavar="SINK",
            help="The output: a dedicated folder or object-store prefix, a Delta or Iceberg table, or SOURCE itself to "
            "deduplicate a Delta table in place.",
        ),
    ],
    policy: identity.PolicyName = None,
    policy_file: identity.PolicyFile = None,
    fields: identity.Fields = None,
    columns: identity.ColumnsName = None,
    pid: identity.Pid = None,
    partition: identity.Partition = None,
    no_partition: identity.NoPartition = False,
    epoch: identity.Epoch = None,
    seq: identity.Seq = None,
    timestamp: identity.Timestamp = None,
    scope: Annotated[str | None, option(identity.SCOPE_HELP)] = None,
    order_by: identity.OrderBy = None,
    file_order: identity.FileOrder = False,
    rejected_max: Annotated[
        float | None, option("Stop if a larger share of rows is refused, not counting duplicates and conflicts (0.5).")
    ] = None,
    rejects: Annotated[
        str | None,
        option("Which refused rows to quarantine: copy (all except DUPLICATE; default), all or none."),
    ] = None,
    on_reset: Annotated[
        str | None,
        option("On a suspected counter reset: stop (default) or report. Needs --max-idle."),
    ] = None,
    reset_rows_min: identity.ResetRowsMin = None,
    compare_content: identity.CompareContent = None,
    on_conflict: Annotated[
        str | None,
        option("On a repeat with other content: stop (default), quarantine or drop it. See --compare-content."),
    ] = None,
    keep_checksums: identity.KeepChecksums = None,
    max_idle: identity.MaxIdle = None,
    settle: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Retry a damaged file until it has been damaged and unchanged for this duration (60s), "
            f"{identity.DURATION}",
        ),
    ] = None,
    on_bad_file: Annotated[
        str | None,
        option(
            "On a file that stays damaged, or has wrong columns, types or values: quarantine or stop. Default: "
            "quarantine damaged files, stop on wrong columns, types or values."
        ),
    ] = None,
    clock_gap_max: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Maximum advance per run of the clock of --max-idle, which is the newest timestamp of the data "
            f"(default: the duration of --max-idle), {identity.DURATION}",
        ),
    ] = None,
    shards: Annotated[int | None, option(identity.SHARDS_HELP)] = None,
    shard_bytes_max: Annotated[
        int | None,
        option("Average bytes per shard above which a run splits the state into more shards (16 MB)."),
    ] = None,
    task_bytes_max: Annotated[
        int | None, option("Split files above this number of bytes among tasks, at row groups (256 MB).")
    ] = None,
    task_spans_max: Annotated[
        int | None,
        option("If a shard has more spans (groups of consecutive rows) than this, several tasks judge it (8388608)."),
    ] = None,
    driver_spans_max: Annotated[
        int | None,
        option(
            "Start tasks for judging only if there are more spans (groups of consecutive rows) than this (16000000)."
        ),
    ] = None,
    driver_state_bytes_max: Annotated[
        int | None,
        option(
            "Start tasks for judging only if the state of the shards has more bytes than this, or for "
            "--driver-spans-max (256 MB)."
        ),
    ] = None,
    plan: Annotated[
        str | None,
        option("How to exchange rows: interval, row or aligned (default: chosen by the run). All keep the same rows."),
    ] = None,
    threads: Threads = None,
    layout: Annotated[str | None, option(identity.LAYOUT_HELP)] = None,
    schema: Annotated[
        str | None,
        option(
            "On a file with other columns than the sink: strict (an error; default) or merge (accept new and missing "
            "columns and wider types)."
        ),
    ] = None,
    rebase: Annotated[
        bool,
        typer.Option(
            "--rebase",
            help="Rebuild the state from the whole table. For a table that is deduplicated in place, after another "
            "program rewrote rows in it.",
        ),
    ] = False,
    files_max: Annotated[int | None, option("Maximum number of new files per run; the first by name are read.")] = None,
    bytes_max: Annotated[int | None, option("Maximum bytes of new files per run; at least one file is read.")] = None,
    rows_max: Annotated[int | None, option("Maximum rows of new files per run; at least one file is read.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Read only files whose path or folder, relative to SOURCE, matches: 'day=2026-11-2*' or "
            "'day=2026-11-20..2026-11-24'. Repeatable.",
        ),
    ] = None,
    files_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Read only the files listed in FILE, one path per line; - for standard input. Skips listing SOURCE.",
        ),
    ] = None,
    target_file_bytes: Annotated[
        int | None, option("Target size of output files: merge smaller and split larger outputs.")
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Write Hive-style partition folders by a column, or by the date of a timestamp: day(COLUMN).",
        ),
    ] = None,
    sort_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Sort the rows of each output file by this column. Repeatable."),
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Keep running until SIGTERM or Ctrl-C: run while there are new files, then check again at this "
            f"interval, {identity.DURATION} Prints the report of each run.",
        ),
    ] = None,
    source_immutable: Annotated[
        bool,
        typer.Option(
            "--source-immutable", help="Declare that source files never change, so that the sink may share them."
        ),
    ] = False,
    state_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option for the object store of STATE. Repeatable."),
    ] = None,
    source_option: identity.SourceOption = None,
    sink_option: identity.SinkOption = None,
    keep_versions: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Number of newest state versions that support rollback (100), or all. Runs remove files that only "
            "older versions need.",
        ),
    ] = None,
    keep_versions_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=f"Also keep versions that were the newest within this duration (7d), {identity.DURATION}",
        ),
    ] = None,
    no_sync: Annotated[
        bool, typer.Option("--no-sync", help="Do not sync to disk. A power loss may then destroy the state.")
    ] = False,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no report and no progress.")] = False,
) -> None:
    """Read new files of SOURCE, keep each event once, write the kept rows to SINK. Safe to run again at any time."""
    options = dict(locals())
    rules = read_policy(options)
    name = first_passed({"--on-reset": on_reset, "--reset-rows-min": reset_rows_min})
    if max_idle is None and name is not None:
        raise typer.BadParameter(f"{name}: needs --max-idle: without it a reset looks like repeats")
    check_page(html)
    order = identity.ordered(order_by, file_order)
    default = None if max_idle is None else "timestamp"
    with _converted(source, rules.columns.timestamp or default, rules.columns.keys, quiet) as paths:
        name = first_passed({"--watch": watch, "--only": only, "--files-from": files_from})
        if paths is not source and name is not None:
            raise typer.BadParameter(f"{name} needs a source of Parquet files or a table")
        given = {name: options[name] for name in ARGUMENTS} | {
            "order_by": order,
            "compare_content": identity.compared(compare_content),
            "keep_checksums": number_or_all("--keep-checksums", keep_checksums),
            "max_idle_ms": milliseconds(max_idle),
            "settle_ms": milliseconds(settle),
            "clock_gap_max_ms": milliseconds(clock_gap_max),
            "source_immutable": source_immutable or None,
            "sync": False if no_sync else None,
            "state_options": identity.pairs("--state-option", state_option),
            "source_options": identity.pairs("--source-option", source_option),
            "sink_options": identity.pairs("--sink-option", sink_option),
            "only": only or None,
            "files": _names(files_from),
            "sort_by": sort_by or None,
            "keep_versions": number_or_all("--keep-versions", keep_versions),
            "keep_versions_ms": None if keep_versions == "all" else milliseconds(keep_versions_for),
        }
        job = make_job(paths, state, sink, rules, given)
        if paths is not source:
            job.source_name = CONVERTED
            # the names of converted files are checksums, which do not give the order of the originals
            job.slice = dataclasses.replace(job.slice, order=tuple(Path(it).name for it in paths))
        if watch is not None:
            name = first_passed({"--rebase": rebase, "--files-from": files_from, "--html": html})
            if name is not None:
                raise typer.BadParameter(f"pass either --watch or {name}, not both")
            _watch(job, milliseconds(watch) or 0, as_json=as_json, quiet=quiet)
            return
        with steps(quiet) as show:
            report = job.rebase(show) if rebase else job.run(show)
        if paths is not source:
            report = dataclasses.replace(report, source=", ".join(source))
        try:
            write_page(report, html)
        finally:  # the version exists, also without the page
            _show(report, as_json=as_json, quiet=quiet)


@contextmanager
def _converted(source: list[str], timestamp: str | None, keys: Sequence[str], is_quiet: bool) -> Iterator[list[str]]:
    """Return the sources, text and Arrow files as Parquet files in a temporary folder. Errors name the original files.

    Converted files are in the order of the names of the originals, and standard input comes last.

    `timestamp`: a column whose texts are times. `keys`: the columns that identify a producer or a partition.
    """
    with quit_at_once():
        from fencepost.lake.tabular import STDIN, tabular_files, write_as_parquet

    texts = tabular_files(source)
    if not texts:
        yield source
        return
    with TemporaryDirectory(prefix="fencepost-") as folder:
        in_order = sorted(texts, key=lambda it: (it == STDIN, os.path.abspath(it)))
        with steps(is_quiet) as show:
            paths = {write_as_parquet(it, folder, timestamp, keys, show): it for it in in_order}
        try:
            yield list(paths)
        except FencepostError as problem:
            text = problem.message
            for path, original in paths.items():
                text = text.replace(path, original).replace(Path(path).name, original)
            problem.args = (text,)
            raise


def _watch(job: DedupJob, interval_ms: int, *, as_json: bool, quiet: bool) -> None:
    """Run the job at intervals. A storage outage is reported and retried, and does not end the loop."""
    with stop_on_signals() as stop:
        while not stop.is_set():
            try:
                for report in job.watch(interval_ms, stop):
                    _show(report, as_json=as_json, quiet=quiet)
            except (StoreError, OSError) as problem:
                if isinstance(problem, OSError) and problem.errno not in OUTAGES:
                    raise
                print(f"fencepost: {problem}", file=sys.stderr, flush=True)
                stop.wait(interval_ms / 1000)


def _show(report: RunReport, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(report.to_json(), flush=True)
    elif not quiet:
        print(report, flush=True)


def _names(place: str | None) -> list[str] | None:
    """Return the lines of a file of file names."""
    if place is None:
        return None
    try:
        text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise typer.BadParameter(f"--files-from {place}: {problem}") from None
    return [line for line in text.splitlines() if line.strip()]
