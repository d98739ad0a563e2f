"""`fencepost dedup`."""

from __future__ import annotations

from typing import Annotated

import typer

from fencepost.cli import identity
from fencepost.cli.identity import read_policy
from fencepost.cli.jobs import make_job, milliseconds
from fencepost.cli.terminal import Threads, option, steps

_DURATION = "e.g. 7d, 12h, 30m, 45s."


def dedup_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder of Parquet files, or a Delta table.")],
    state: Annotated[str, typer.Argument(metavar="STATE", help="What is remembered from run to run: its own folder.")],
    sink: Annotated[
        str,
        typer.Argument(
            metavar="SINK",
            help="Where the kept rows go: its own folder, or SOURCE again to deduplicate a Delta table in place.",
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
            help="A file that cannot be read is waited for until it was not written to for so long (60s), then set "
            f"aside, {_DURATION}",
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
    plan: Annotated[
        str | None,
        option("How to exchange rows: interval, row or aligned; the run chooses unless given. All keep the same rows."),
    ] = None,
    threads: Threads = None,
    layout: Annotated[str | None, option(identity.LAYOUT_HELP)] = None,
    rebase: Annotated[
        bool,
        typer.Option(
            "--rebase",
            help="Begin the state anew with the whole table as it is now: for a table that is deduplicated in place, "
            "after others have rewritten rows in it.",
        ),
    ] = False,
    source_immutable: Annotated[
        bool, typer.Option("--source-immutable", help="Files of the source never change: the sink may share them.")
    ] = False,
    state_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the object store that the state lies in; may be repeated."),
    ] = None,
    no_sync: Annotated[
        bool, typer.Option("--no-sync", help="Do not wait for disks: a power loss may then cost the state.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report and no progress.")] = False,
) -> None:
    """Read what is new in SOURCE, keep each event once, write the kept rows to SINK. Run it again at any time."""
    rules = read_policy(locals())
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
            "max_idle_ms": milliseconds(max_idle),
            "settle_ms": milliseconds(settle),
            "clock_gap_max_ms": milliseconds(clock_gap_max),
            "shards": shards,
            "layout": layout,
            "plan": plan,
            "threads": threads,
            "source_immutable": source_immutable or None,
            "sync": False if no_sync else None,
            "state_options": dict(map(_pair, state_option)) if state_option else None,
        },
    )
    with steps(quiet) as show:
        report = job.rebase(show) if rebase else job.run(show)
    if as_json:
        print(report.to_json())
    elif not quiet:
        print(report)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise typer.BadParameter(f"--state-option {text}: NAME=VALUE was expected")
    return name, value
