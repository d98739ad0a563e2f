"""`fencepost advise`."""

from __future__ import annotations

from typing import Annotated

import typer

from fencepost.cli import identity
from fencepost.cli.audit import SOURCE_HELP
from fencepost.cli.identity import named_columns
from fencepost.cli.terminal import Html, check_page, quit_at_once, steps, usage_errors, write_page
from fencepost.errors import PolicyError
from fencepost.findings import ADVICE_ROWS


def advise_command(
    source: Annotated[list[str], typer.Argument(metavar="SOURCE", help=SOURCE_HELP)],
    columns: identity.ColumnsName = None,
    pid: identity.Pid = None,
    partition: identity.Partition = None,
    no_partition: identity.NoPartition = False,
    epoch: identity.Epoch = None,
    seq: identity.Seq = None,
    timestamp: identity.Timestamp = None,
    rows: Annotated[
        str, typer.Option(metavar="NUMBER", help="Number of rows to read, from the beginning, or all.")
    ] = str(ADVICE_ROWS),
    source_option: identity.SourceOption = None,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Recommend a policy, columns and retention for SOURCE, and show what each policy does with its rows.

    Identity columns that no option names are detected by column name.
    """
    if rows != "all" and not (rows.isdecimal() and int(rows)):
        raise typer.BadParameter(f"--rows {rows}: expected a number of rows above 0, or all")
    given = named_columns(locals())
    check_page(html)
    with quit_at_once():
        from fencepost.lake import advise

    with usage_errors(PolicyError), steps() as show:
        advice = advise(
            source,
            given,
            rows_max=None if rows == "all" else int(rows),
            progress=show,
            source_options=identity.pairs("--source-option", source_option),
        )
    try:
        write_page(advice, html)
    finally:
        print(advice.to_json() if as_json else advice)
