"""`fencepost kafka audit`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fencepost.cli.terminal import EXIT_FINDINGS
from fencepost.kafka.report import FINDINGS, SHOWN_MAX


def kafka_audit_command(
    source: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A partition's folder, a broker's log directory, a segment, or a URI."),
    ],
    now_ms: Annotated[
        int | None,
        typer.Option(help="By which transactions hang and producers are idle (ms); the newest batch's unless given."),
    ] = None,
    max_idle_ms: Annotated[int, typer.Option(min=0, help="The broker's producer.id.expiration.ms.")] = 86_400_000,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="KINDS", help=f"Exit with 3 if there are any: {','.join(FINDINGS)}; may be repeated."),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many lines of each table are shown.")] = SHOWN_MAX,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report: the exit code tells.")] = False,
) -> None:
    """Replay the partitions in DIR: what was lost, written twice, fenced or left open, and what snapshots say of it."""
    kinds = [kind for text in fail_on or () for kind in text.split(",")]
    for kind in kinds:
        if kind not in FINDINGS:
            raise typer.BadParameter(f"--fail-on {kind}: {', '.join(FINDINGS)} were expected")
    from fencepost import kafka

    report = kafka.audit(source, now_ms=now_ms, max_idle_ms=max_idle_ms)
    if as_json:
        print(report.to_json(top))
    elif not quiet:
        print(report.to_text(top))
    found = report.found(*kinds) if kinds else {}
    if found:
        if not quiet:
            print(
                f"fencepost: found: {', '.join(f'{kind} {count:,}' for kind, count in found.items())}", file=sys.stderr
            )
        raise typer.Exit(EXIT_FINDINGS)
