"""`fencepost audit`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fencepost.cli import identity
from fencepost.cli.identity import read_policy
from fencepost.cli.terminal import EXIT_FINDINGS, Threads, steps
from fencepost.errors import PolicyError
from fencepost.findings import FINDINGS, SHOWN_MAX


def audit_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder of Parquet files, or one file.")],
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
        typer.Option(metavar="KINDS", help=f"Exit with 3 if there are any: {','.join(FINDINGS)}; may be repeated."),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many lines of each table are shown.")] = SHOWN_MAX,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No report and no progress: the exit code tells.")
    ] = False,
) -> None:
    """Look at SOURCE without touching it: what is missing, came twice, from replaced producers, or began anew."""
    rules = read_policy(locals())
    kinds = [kind for text in fail_on or () for kind in text.split(",")]
    for kind in kinds:
        if kind not in FINDINGS:
            raise typer.BadParameter(f"--fail-on {kind}: {', '.join(FINDINGS)} were expected")
    if "reset" in kinds and rules.columns.timestamp is None:
        raise typer.BadParameter("--fail-on reset: needs --timestamp, by which resets and repeats are told apart")
    from fencepost import lake

    try:
        with steps(quiet) as show:
            report = lake.audit(source, rules, threads=threads, producers_max=top, progress=show)
    except PolicyError as problem:
        raise typer.BadParameter(str(problem)) from None
    if as_json:
        print(report.to_json(top))
    elif not quiet:
        print(report.to_text(top))
    found = report.found(*kinds) if kinds else {}
    if found:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in found.items())
        if not quiet:
            print(f"fencepost: found: {listed}", file=sys.stderr)
        raise typer.Exit(EXIT_FINDINGS)
