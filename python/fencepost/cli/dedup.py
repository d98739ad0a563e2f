"""`fencepost dedup`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.cli import identity
from fencepost.cli.identity import read_policy
from fencepost.cli.jobs import make_job, milliseconds, number_or_all
from fencepost.cli.terminal import Html, Threads, check_page, option, steps, stop_on_signals
from fencepost.errors import StoreError

if TYPE_CHECKING:
    from fencepost.lake import DedupJob, RunReport

_DURATION = "e.g. 7d, 12h, 30m, 45s."


def dedup_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder or object-store prefix (s3://, gs://, az://) of Parquet files, a glob of such in "
            "quotes, a Delta table, or an Iceberg table (iceberg://catalog/namespace.table).",
        ),
    ],
    state: Annotated[str, typer.Argument(metavar="STATE", help="What is remembered from run to run: its own folder.")],
    sink: Annotated[
        str,
        typer.Argument(
            metavar="SINK",
            help="Where the kept rows go: its own folder or object-store prefix, an Iceberg table, or SOURCE again to "
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
    order_by: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Judge rows in the order of these; may be repeated.")
    ] = None,
    file_order: Annotated[
        bool, typer.Option("--file-order", help="File names, then rows, stand in the true order.")
    ] = False,
    rejected_max: Annotated[
        float | None, option("Stop if a larger share of rows is refused, DUPLICATE apart (0.5).")
    ] = None,
    rejects: Annotated[
        str | None,
        option("Which rows that are not kept are set aside: copy (all but DUPLICATE; the default), all or none."),
    ] = None,
    on_reset: Annotated[
        str | None,
        option(
            "What a suspected reset of a counter does: stop (the default), or report. Only --max-idle looks for them."
        ),
    ] = None,
    reset_rows_min: identity.ResetRowsMin = None,
    compare_content: identity.CompareContent = None,
    on_conflict: Annotated[
        str | None,
        option("What repeats with other content do: stop (the default), quarantine or drop. See --compare-content."),
    ] = None,
    keep_checksums: identity.KeepChecksums = None,
    max_idle: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=f"Forget producers that were idle so long by the timestamps of the data, {_DURATION} Nothing is "
            "forgotten unless given. Whether it is given is fixed for ever with the state, how long it is may change.",
        ),
    ] = None,
    settle: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="A file whose content is damaged is looked at again until it was so, unchanged, for this long (60s), "
            f"{_DURATION}",
        ),
    ] = None,
    on_bad_file: Annotated[
        str | None,
        option(
            "What a damaged file does then, and one of wrong columns, types or values: quarantine (it is set aside) or "
            "stop. Unless given, damaged files are set aside, and wrong columns, types or values stop the run."
        ),
    ] = None,
    clock_gap_max: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=f"A run moves the clock of forgetting no further (as long as --max-idle is), {_DURATION}",
        ),
    ] = None,
    shards: Annotated[int | None, option(identity.SHARDS_HELP)] = None,
    shard_bytes_max: Annotated[
        int | None,
        option("Bytes of a part of the state above which runs cut it into more (16 MB on average)."),
    ] = None,
    task_bytes_max: Annotated[
        int | None, option("Bytes of a file above which several tasks share it, between row groups (256 MB).")
    ] = None,
    task_runs_max: Annotated[
        int | None,
        option(
            "Runs of a part of the state (rows that follow each other) above which several tasks judge it (8388608)."
        ),
    ] = None,
    plan: Annotated[
        str | None,
        option("How to exchange rows: interval, row or aligned; the run chooses unless given. All keep the same rows."),
    ] = None,
    threads: Threads = None,
    layout: Annotated[str | None, option(identity.LAYOUT_HELP)] = None,
    schema: Annotated[
        str | None,
        option(
            "What a file does whose columns differ from those of the sink: strict (an error, the default), or merge "
            "(new and missing columns and wider types are taken)."
        ),
    ] = None,
    rebase: Annotated[
        bool,
        typer.Option(
            "--rebase",
            help="Begin the state anew with the whole table as it is now: for a table that is deduplicated in place, "
            "after others have rewritten rows in it.",
        ),
    ] = False,
    files_max: Annotated[int | None, option("Read at most so many new files a run, the first ones by name.")] = None,
    bytes_max: Annotated[
        int | None, option("Read new files of at most so many bytes a run, one file at least.")
    ] = None,
    rows_max: Annotated[int | None, option("Read new files of at most so many rows a run, one file at least.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Read only files that match, or whose folder matches, relative to SOURCE: 'day=2026-11-2*', or "
            "'day=2026-11-20..2026-11-24'; may be repeated.",
        ),
    ] = None,
    files_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Read only the files that this one names, a path a line; - for standard input. SOURCE is not listed.",
        ),
    ] = None,
    target_file_bytes: Annotated[
        int | None, option("Put small outputs together to files of about so many bytes, and cut larger ones.")
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Write to Hive-style folders by the values of a column, or by the dates of a timestamp: day(COLUMN).",
        ),
    ] = None,
    sort_by: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Sort the rows of each output; may be repeated.")
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Go on until SIGTERM or Ctrl-C: run while there is something new, then look again every so often, "
            f"{_DURATION} Prints the report of each run.",
        ),
    ] = None,
    source_immutable: Annotated[
        bool, typer.Option("--source-immutable", help="Files of the source never change: the sink may share them.")
    ] = False,
    state_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the object store that the state lies in; may be repeated."),
    ] = None,
    source_option: identity.SourceOption = None,
    sink_option: identity.SinkOption = None,
    keep_versions: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="How many of the newest versions of the state can be gone back to (100), or all; files that only "
            "others need are removed as runs go on.",
        ),
    ] = None,
    keep_versions_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=f"Versions that were the newest in this time (7d) can be gone back to as well, {_DURATION}",
        ),
    ] = None,
    no_sync: Annotated[
        bool, typer.Option("--no-sync", help="Do not wait for disks: a power loss may then cost the state.")
    ] = False,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report and no progress.")] = False,
) -> None:
    """Read what is new in SOURCE, keep each event once, write the kept rows to SINK. Run it again at any time."""
    rules = read_policy(locals())
    if html is not None:
        check_page(html)
    if order_by and file_order:
        raise typer.BadParameter("--order-by and --file-order: one of them")
    job = make_job(
        source,
        state,
        sink,
        rules,
        {
            "scope": scope,
            "order_by": () if file_order else order_by or None,
            "rejected_max": rejected_max,
            "rejects": rejects,
            "on_reset": on_reset,
            "reset_rows_min": reset_rows_min,
            "compare_content": identity.compared(compare_content),
            "on_conflict": on_conflict,
            "keep_checksums": number_or_all("--keep-checksums", keep_checksums),
            "max_idle_ms": milliseconds(max_idle),
            "settle_ms": milliseconds(settle),
            "on_bad_file": on_bad_file,
            "clock_gap_max_ms": milliseconds(clock_gap_max),
            "shards": shards,
            "shard_bytes_max": shard_bytes_max,
            "task_bytes_max": task_bytes_max,
            "task_runs_max": task_runs_max,
            "layout": layout,
            "schema": schema,
            "plan": plan,
            "threads": threads,
            "source_immutable": source_immutable or None,
            "sync": False if no_sync else None,
            "state_options": identity.pairs("--state-option", state_option),
            "source_options": identity.pairs("--source-option", source_option),
            "sink_options": identity.pairs("--sink-option", sink_option),
            "files_max": files_max,
            "bytes_max": bytes_max,
            "rows_max": rows_max,
            "only": only or None,
            "files": _names(files_from),
            "target_file_bytes": target_file_bytes,
            "partition_by": partition_by,
            "sort_by": sort_by or None,
            **_retention(keep_versions, keep_versions_for),
        },
    )
    if watch is not None:
        others = {"--rebase": rebase, "--files-from": files_from, "--html": html}
        if any(others.values()):
            raise typer.BadParameter(f"--watch and {next(it for it in others if others[it])}: one of them")
        _watch(job, milliseconds(watch) or 0, as_json=as_json, quiet=quiet)
        return
    with steps(quiet) as show:
        report = job.rebase(show) if rebase else job.run(show)
    if html is not None:
        from fencepost.pages.run import run_page

        run_page(report).save(html)
    _show(report, as_json=as_json, quiet=quiet)


def _watch(job: DedupJob, interval_ms: int, *, as_json: bool, quiet: bool) -> None:
    """Storage that is away ends no watch: it is said, and looked at again."""
    with stop_on_signals() as stop:
        while not stop.is_set():
            try:
                for report in job.watch(interval_ms, stop):
                    _show(report, as_json=as_json, quiet=quiet)
            except StoreError as problem:
                print(f"fencepost: {problem}", file=sys.stderr, flush=True)
                stop.wait(interval_ms / 1000)


def _show(report: RunReport, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(report.to_json(), flush=True)
    elif not quiet:
        print(report, flush=True)


def _names(place: str | None) -> list[str] | None:
    """The lines of a file that names files."""
    if place is None:
        return None
    try:
        text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise typer.BadParameter(f"--files-from {place}: {problem}") from None
    return [line for line in text.splitlines() if line.strip()]


def _retention(versions: str | None, duration: str | None) -> dict[str, object]:
    if versions == "all":
        return {"keeps_all_versions": True}
    return {"keep_versions": number_or_all("--keep-versions", versions), "keep_versions_ms": milliseconds(duration)}
