"""`fencepost audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli import identity
from fencepost.cli.files import check_table_file, write_table
from fencepost.cli.identity import read_policy
from fencepost.cli.terminal import (
    EXIT_ERROR,
    EXIT_NOTHING,
    Html,
    Threads,
    check_page,
    fail,
    fail_if_found,
    first_passed,
    kinds_of,
    quit_at_once,
    steps,
    usage_errors,
    write_page,
)
from fencepost.errors import PolicyError
from fencepost.findings import FINDINGS, ORDER_OF_ROWS, RESET_ROWS_MIN, SHOWN_MAX, AuditReport, why_not_found

SOURCE_HELP = (
    "A folder or object-store prefix (s3://, gs://, az://) of Parquet files, one file, a Delta table, or an Iceberg "
    "table (iceberg://catalog/namespace.table). Also .csv, .tsv, .jsonl and .arrow files, or - for standard input. "
    "Repeatable, for several folders and files; a quoted glob pattern does the same."
)


def audit_command(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help=SOURCE_HELP,
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
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="KINDS", help=f"Exit with code 3 if there are any: {','.join(FINDINGS)}. Repeatable."),
    ] = None,
    reset_rows_min: identity.ResetRowsMin = None,
    compare_content: identity.CompareContent = None,
    source_option: identity.SourceOption = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Accept a source without rows (default: exit code 4).")
    ] = False,
    top: Annotated[int, typer.Option(min=0, help="Number of lines per table.")] = SHOWN_MAX,
    html: Html = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the missing ranges to a .csv, .jsonl, .parquet or .arrow file."),
    ] = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing: use the exit code.")] = False,
) -> None:
    """Report duplicates, missing rows, stale producers and resets in SOURCE. Does not change anything."""
    rules = read_policy(locals())
    kinds = []
    for kind in kinds_of(fail_on, FINDINGS):
        if (why := why_not_found(kind, rules)) is not None:
            raise typer.BadParameter(f"--fail-on {kind}: nothing would be found: {why}")
        kinds.append(kind)
    name = first_passed({"--fail-on reset": "reset" in kinds, "--reset-rows-min": reset_rows_min})
    if rules.columns.timestamp is None and name is not None:
        raise typer.BadParameter(f"{name}: needs --timestamp: without it a reset looks like a repeat")
    if "conflict" in kinds and not compare_content:
        raise typer.BadParameter("--fail-on conflict: needs --compare-content, which compares repeats")
    check_page(html)
    if out is not None:
        check_table_file("--out ", out)
    with quit_at_once():
        from fencepost.lake import audit

    with usage_errors(PolicyError), steps(quiet) as show:
        report = audit(
            source,
            rules,
            threads=threads,
            producers_max=top,
            compare_content=identity.compared(compare_content) or False,
            reset_rows_min=reset_rows_min or RESET_ROWS_MIN,
            progress=show,
            source_options=identity.pairs("--source-option", source_option),
        )
    try:
        write_page(report, html)
        if out is not None:
            write_table(report.named(report.missing), out)
    finally:
        if as_json:
            print(report.to_json(top))
        elif not quiet:
            print(report.to_text(top))
    if report.unreadable:
        names = ", ".join(path for path, _ in report.unreadable[:3])
        fail(EXIT_ERROR, f"{len(report.unreadable):,} files could not be read: {names}", quiet)
    if not report.rows and not allow_empty:
        fail(EXIT_NOTHING, _nothing(report), quiet)
    fail_if_found(report.count_findings(*kinds) if kinds else {}, quiet)


def _nothing(report: AuditReport) -> str:
    from fencepost.lake.tabular import hint_of

    files = "no .parquet file" if report.order != ORDER_OF_ROWS else "no row"
    if report.files:
        files = f"{report.files:,} .parquet files without rows"
    if report.ignored:
        files += f"; ignored {len(report.ignored):,} files of other names: {', '.join(report.ignored[:3])}"
        files += hint_of(report.source or "", report.ignored)
    return f"{report.source}: nothing was read: {files}; --allow-empty accepts that"
