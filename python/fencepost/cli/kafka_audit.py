"""`fencepost kafka audit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, cast

import typer

from fencepost.cli.terminal import EXIT_NOTHING, Html, check_page, fail, fail_if_found, kinds_of, steps, write_page
from fencepost.kafka.audit_report import FINDINGS, SHOWN_MAX
from fencepost.kafka.cleanup import CLEANUP_POLICIES

CleanupPolicy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="POLICY",
        help="The topics' cleanup.policy: delete (missing offsets are losses), compact (they are not), or unknown "
        "(default: losses, unless compaction removed records from batches). TOPIC=POLICY for one topic. Repeatable.",
    ),
]


def kafka_audit_command(
    source: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A partition's folder, a broker's log directory, a segment file, or a URI."),
    ],
    now_ms: Annotated[
        str | None,
        typer.Option(
            metavar="MS",
            help="The time for finding hanging transactions: milliseconds since 1970, or newest for the partition's "
            "newest timestamp. Default: now.",
        ),
    ] = None,
    max_idle_ms: Annotated[int, typer.Option(min=0, help="The broker's producer.id.expiration.ms.")] = 86_400_000,
    cleanup_policy: CleanupPolicy = None,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Also read the content of batches, and check checksums and compression.")
    ] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="KINDS", help=f"Exit with code 3 if there are any: {','.join(FINDINGS)}. Repeatable."),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Accept a log without batches (default: exit code 4).")
    ] = False,
    top: Annotated[int, typer.Option(min=0, help="Number of lines per table.")] = SHOWN_MAX,
    only_findings: Annotated[
        bool, typer.Option("--only-findings", help="Show only partitions with findings, and the total.")
    ] = False,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing: use the exit code.")] = False,
) -> None:
    """Replay the partitions in DIR: report losses, repeats, fenced batches and open transactions, and check
    snapshots."""
    kinds = list(kinds_of(fail_on, FINDINGS))
    now, policy = _now(now_ms), policies(cleanup_policy or ())
    check_page(html)
    from fencepost import kafka

    with steps(quiet) as show:
        report = kafka.audit(
            source, now_ms=now, max_idle_ms=max_idle_ms, cleanup_policy=policy, checksums=checksums, progress=show
        )
    try:
        write_page(report, html)
    finally:
        if as_json:
            print(report.to_json(top, only_findings=only_findings))
        elif not quiet:
            print(report.to_text(top, only_findings=only_findings))
    fail_if_found(report.count_findings(*kinds) if kinds else {}, quiet)
    if not report.total()["batches"] and not allow_empty:
        fail(EXIT_NOTHING, f"{source}: no batch was read; --allow-empty accepts that", quiet)


def _now(text: str | None) -> int | Literal["newest"] | None:
    if text is None or text == "newest":
        return cast("Literal['newest'] | None", text)
    if not text.isdecimal() or int(text) >= 2**63:
        raise typer.BadParameter(f"--now-ms {text}: expected milliseconds since 1970 below 2**63, or newest")
    return int(text)


def policies(texts: Sequence[str]) -> dict[str, str]:
    """Parse POLICY and TOPIC=POLICY into the argument of `fencepost.kafka.audit`."""
    found = {}
    for text in texts:
        topic, _, policy = text.rpartition("=")
        if policy not in CLEANUP_POLICIES:
            raise typer.BadParameter(f"--cleanup-policy {text}: expected one of {', '.join(CLEANUP_POLICIES)}")
        found[topic or "*"] = policy
    return found
