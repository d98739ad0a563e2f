"""The command line, `fencepost` (extra `fencepost[cli]`).

One function per command; what a command needs is imported when it runs. Data go to stdout or to files, messages and
progress to stderr, progress only on a terminal. Exit codes: 0 clean, 1 error, 2 usage, 3 findings. An error is one
line that says what is wrong and where.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ModuleNotFoundError as problem:
    package = str(problem.name).partition(".")[0]
    raise SystemExit(f"fencepost: {package} is not installed: pip install 'fencepost[cli]'") from None

from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.generate import LandingZone, Summary

EXIT_CLEAN, EXIT_ERROR, EXIT_USAGE, EXIT_FINDINGS = range(4)

# Typer carries its own copy of click in newer versions and imports the real one in older: this is the base of either.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="fencepost",
    help="Deduplicate event streams identified by (pid, epoch, partition, seq).",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        return app(arguments, standalone_mode=False) or EXIT_CLEAN
    except _UsageProblem as problem:
        return _complain(problem.format_message(), problem.exit_code)  # type: ignore[attr-defined]
    except ModuleNotFoundError as problem:
        package = str(problem.name).partition(".")[0]
        return _complain(f"{package} is not installed: pip install 'fencepost[cli]'", EXIT_ERROR)
    except (FencepostError, OSError, ValueError) as problem:
        return _complain(str(problem), EXIT_ERROR)
    except (typer.Abort, KeyboardInterrupt):
        return _complain("interrupted", EXIT_ERROR)


def _complain(message: str, exit_code: int) -> int:
    print(f"fencepost: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(version("fencepost"))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _fencepost(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        raise typer.BadParameter("a command is missing: see fencepost --help")


def _option(text: str) -> Any:
    return typer.Option(help=text)


@app.command("generate")
def generate_command(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A folder: files go to OUT/landing, the truth to OUT/truth.")
    ],
    rows: Annotated[int, _option("Events that producers write.")] = 1_000_000,
    producers: Annotated[int, _option("Producers.")] = 100,
    topics: Annotated[int, _option("Topics.")] = 2,
    partitions: Annotated[int, _option("Partitions of each topic.")] = 6,
    zipf_exponent: Annotated[float, _option("Skew of the producers' rates; 0: all alike.")] = 1.0,
    run_mean: Annotated[float, _option("Mean rows of a producer's runs.")] = 20.0,
    repeat_near: Annotated[float, _option("Share of rows landed again soon after.")] = 0.02,
    repeat_far: Annotated[float, _option("Share of rows landed again in a later file.")] = 0.01,
    redelivery_share: Annotated[float, _option("Share of files delivered again whole.")] = 0.1,
    retry_share: Annotated[float, _option("Share of rows that a producer sends again: another offset.")] = 0.001,
    disorder_within: Annotated[float, _option("Share of rows displaced within their file.")] = 0.02,
    disorder_across: Annotated[float, _option("Share of rows that land in a later file.")] = 0.01,
    missing_share: Annotated[float, _option("Share of rows that never land.")] = 0.001,
    bump_share: Annotated[float, _option("Share of producers per delivery whose epoch is bumped.")] = 0.1,
    zombie_share: Annotated[float, _option("Share of bumps after which the old epoch goes on writing.")] = 0.5,
    restart_share: Annotated[float, _option("Share of producers per delivery that get a new pid.")] = 0.05,
    untracked_share: Annotated[float, _option("Share of rows without a pid.")] = 0.01,
    payload_bytes: Annotated[int, _option("Bytes of each payload.")] = 90,
    deliveries: Annotated[int, _option("Deliveries in all.")] = 4,
    files: Annotated[int, _option("Files per delivery.")] = 4,
    co_located: Annotated[bool, typer.Option("--co-located", help="Whole keys per file, in order.")] = False,
    row_group_rows: Annotated[int, _option("Rows of a Parquet row group.")] = 131_072,
    compression: Annotated[str, _option("none, snappy, zstd, lz4 or gzip.")] = "snappy",
    seed: Annotated[int, _option("Same seed and options, same bytes.")] = 0,
    land: Annotated[str, typer.Option(metavar="FIRST:STOP", help="Write only these deliveries, e.g. 0:3.")] = "",
    truth: Annotated[
        list[str] | None, typer.Option(metavar="POLICY", help="Whose truth to write; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Write a landing zone as an at-least-once sink leaves it, with the truth about it."""
    options = dict(locals())
    from fencepost.generate import ORDER_FREE, LandingZone, generate

    try:
        spec = LandingZone(**{field.name: options[field.name] for field in dataclasses.fields(LandingZone)})
        wanted = _delivery_range(land, spec)
        with _progress(spec.border(wanted.stop * spec.files)) as advance:
            summary = generate(out, spec, deliveries=wanted, truth_policies=truth or ORDER_FREE, progress=advance)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    if as_json:
        print(json.dumps(dataclasses.asdict(summary), indent=2))
    else:
        _show_summary(summary)


def _delivery_range(land: str, spec: LandingZone) -> range:
    if not land:
        return range(spec.deliveries)
    first, colon, stop = land.partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal()):
        raise ValueError(f"land must be FIRST:STOP within 0:{spec.deliveries}, found {land!r}")
    return range(int(first), int(stop))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal; gives a function that takes how much of `total` is done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("events", total=total)
        yield lambda done: bar.update(task, completed=done)


def _show_summary(summary: Summary) -> None:
    console = Console()
    console.print(f"{summary.rows:,} rows in {len(summary.files)} files, {summary.bytes:,} bytes", highlight=False)
    console.print(_table(("ingredient", "count"), summary.ingredients.items()))
    truths = [{**truth, **truth["counts"]} for truth in summary.truth.values()]
    names = [name for name, value in truths[0].items() if isinstance(value, int) and name != "delivery"]
    console.print(_table(("truth", *summary.truth), [(name, *(truth[name] for truth in truths)) for name in names]))


def _table(names: Iterable[str], lines: Iterable[tuple[str | int, ...]]) -> Table:
    """A table of a name and numbers per line."""
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place else "left")
    for first, *numbers in lines:
        table.add_row(str(first), *(f"{number:,}" for number in numbers))
    return table


if __name__ == "__main__":
    sys.exit(main())
