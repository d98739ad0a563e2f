"""`fencepost state`: inspects and repairs the state of a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.cli import identity
from fencepost.cli.files import check_table_file, json_lines, write_table
from fencepost.cli.identity import read_policy
from fencepost.cli.jobs import make_job, milliseconds, number_or_all
from fencepost.cli.terminal import AsJson, Html, Threads, check_page, option, show_table, steps
from fencepost.inputs import is_integer

if TYPE_CHECKING:
    from fencepost.state import State

state_app = typer.Typer(
    help="Inspect and repair the state of a job.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Place = Annotated[str, typer.Argument(metavar="STATE", help="The folder or URI of a job's state.")]
VERSIONS_SHOWN = 20


@state_app.command("show")
def show(
    place: Place,
    version: Annotated[int | None, typer.Argument(metavar="VERSION", help="Show this version in detail.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Number of newest versions to list.")] = VERSIONS_SHOWN,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Show what the state is for, and what each run did. With VERSION: what this run read, wrote, kept, refused."""
    check_page(html)
    from fencepost.state import history

    state = _open(place)
    newest = state.decided()
    if version is not None:
        if html is not None:
            raise typer.BadParameter("pass either VERSION or --html, not both")
        if not 1 <= version <= newest:
            raise typer.BadParameter(f"version {version} does not exist; versions are 1 to {newest}")
        if version <= state.cached_floor():
            raise typer.BadParameter(
                f"version {version} is folded: of versions 1 to {state.cached_floor()} only totals are kept"
            )
        details = history.explain(state, version)
        print(json.dumps(details) if as_json else _to_text(details))
        return
    about, shown = history.about(state), history.explained(state, last)
    if html is not None:
        from fencepost.pages.history import history_page

        history_page(about, shown).save(html)
    if as_json:
        print(json.dumps({"state": about, "versions": shown}))
        return
    print(_to_text(about))
    if shown:
        print()
        lines = [(str(it["version"]), *(_shown(it[name]) for name in _COLUMNS[1:])) for it in shown]
        show_table([name.replace("_", " ") for name in _COLUMNS], lines)


_COLUMNS = (
    "version", "kind", "status", "files", "rows", "kept", "not_kept", "missing_rows", "stale_epoch", "entries",
    "state_bytes",
)  # fmt: skip


def _to_text(details: dict[str, Any]) -> str:
    lines = []
    for name, value in details.items():
        title = name.replace("_", " ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += ["", title, *(_one_line(it) for it in value)]
        elif isinstance(value, dict):
            lines += [f"{title:<16}{', '.join(f'{key} {_shown(it)}' for key, it in value.items())}"]
        elif value not in (None, []):
            lines += [f"{title:<16}{_shown(value)}"]
    return "\n".join(lines)


def _one_line(item: dict[str, Any]) -> str:
    """Format the first value, then numbers with their names, then texts."""
    (_, first), *others = item.items()
    numbers = ", ".join(f"{_shown(value)} {name}" for name, value in others if not isinstance(value, str))
    texts = [" ".join(value.split()) for _, value in others if isinstance(value, str)]
    return f"  {first}: " + ": ".join(it for it in (numbers, *texts) if it)


def _shown(value: object) -> str:
    if is_integer(value):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_shown, value)) + ")"
    return "-" if value is None else str(value)


@state_app.command("export")
def export(
    place: Place,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="A .parquet, .arrow, .csv or .jsonl file. Default: JSON lines on stdout."),
    ] = None,
    what: Annotated[str, option("entries (the whole state) or missing (missing ranges).")] = "entries",
) -> None:
    """Export the whole state, or the missing ranges."""
    if what not in ("entries", "missing"):
        raise typer.BadParameter(f"--what {what}: expected entries or missing")
    if out is not None:
        check_table_file("", out)
    state = _open(place)
    with steps() as show:
        rows = state.entries(show) if what == "entries" else state.missing(show)
    if out is None:
        sys.stdout.writelines(json_lines(rows))
    else:
        write_table(rows, out)


@state_app.command("evict")
def evict(
    place: Place,
    max_idle: Annotated[str, typer.Option(metavar="DURATION", help="Minimum idle time, e.g. 7d, 12h, 30m, 45s.")],
    now_ms: Annotated[
        int | None,
        option("The current time in milliseconds since 1970. Default: the state's clock, which follows the data."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forget producers that were idle for a duration. Their older rows will be FORGOTTEN.

    The state must keep timestamps: its job has --max-idle. This advances the state's clock to --now-ms; only a
    rollback or a rebase sets it back.
    """
    _say("evicted", _operation(place, "evict", now_ms, milliseconds(max_idle)), as_json)


@state_app.command("rollback")
def rollback(
    place: Place,
    version: Annotated[
        int,
        typer.Argument(metavar="VERSION", help="The version to return to; 0 is the state before the first version."),
    ],
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Proceed although the sink contains rows of later versions. Rows that are read again are duplicated.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Return to the state after VERSION, as a new version. Files that were read since then become new again.

    First remove the Parquet files from the sink's folders run=<n>/ of the versions after VERSION. Do not remove the
    folders. In an object store, do not remove run=<n>/_SUCCESS. The next run writes these rows again if their files are
    still in the source. If the sink is a Delta table, first RESTORE it to the commit of VERSION (its history names
    versions). Set an Iceberg table back to the snapshot of VERSION.
    """
    _say("rolled back", _operation(place, "rollback", version, accept_duplicates=accept_duplicates), as_json)


@state_app.command("abandon")
def abandon(
    place: Place,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version that is decided but not applied.")],
    as_json: AsJson = False,
) -> None:
    """Abandon a version that is decided but cannot be applied.

    Its rows never become visible, and its input files become new again. Rows of files that are no longer in the source
    are lost.
    """
    _say("abandoned", _call(place, "abandon", version), as_json)


@state_app.command("gc")
def collect_garbage(
    place: Place,
    keep_versions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Keep only this number of newest applied versions for rollback, e.g. 50. Of older versions, only "
            "totals are kept. Rows stay in the sink. Default: those that runs keep (fencepost dedup --keep-versions).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove files that crashed and defeated runs left behind. Does not change the sink's rows."""
    options = {} if keep_versions is None else {"keep_versions": keep_versions}
    _say("files removed", _operation(place, "collect_garbage", **options), as_json)


@state_app.command("reshard")
def reshard(
    place: Place,
    count: Annotated[int, typer.Argument(metavar="SHARDS", min=1, help="The new number of shards, 1 to 262144.")],
    as_json: AsJson = False,
) -> None:
    """Split the state into another number of shards. More shards are smaller and allow more parallel tasks."""
    _say("resharded", _operation(place, "reshard", count), as_json)


@state_app.command("seed")
def seed(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The folder that later runs read; cannot be changed later. Its current Parquet files count as read, "
            "unless --clean names another folder.",
        ),
    ],
    place: Place,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The dedicated folder that later runs write to.")],
    clean: Annotated[
        str | None,
        option(
            "A folder of Parquet files without duplicates, such as the table from before the first job. Default: "
            "SOURCE."
        ),
    ] = None,
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
    max_idle: identity.MaxIdle = None,
    shards: Annotated[int | None, option(identity.SHARDS_HELP)] = None,
    layout: Annotated[str | None, option(identity.LAYOUT_HELP)] = None,
    compare_content: identity.CompareContent = None,
    keep_checksums: identity.KeepChecksums = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Create a state from rows that are already free of duplicates, without copying them to SINK.

    Without --clean, these rows are in SOURCE, and later runs read the files added to it. With --clean, they are in that
    folder, and the first run reads all of SOURCE and keeps the rows that the folder does not contain. Rows that would
    not be kept are an error: make a clean copy with `fencepost dedup` first.
    """
    rules = read_policy(locals())
    options = {
        "scope": scope,
        "order_by": identity.ordered(order_by, file_order),
        "max_idle_ms": milliseconds(max_idle),
        "shards": shards,
        "layout": layout,
        "threads": threads,
        "compare_content": identity.compared(compare_content),
        "keep_checksums": number_or_all("--keep-checksums", keep_checksums),
    }
    job = make_job([source], place, sink, rules, options)
    with steps() as show:
        report = job.seed(show, clean=clean)
    print(report.to_json() if as_json else report)


# Access to the state and its operations


def _open(place: str) -> State:
    import fencepost.state

    return fencepost.state.open(place)


def _call(place: str, name: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of the state and return its result."""
    return getattr(_open(place), name)(*arguments, **options)


def _operation(place: str, name: str, *arguments: Any, **options: Any) -> Any:
    """Run an operation of the state with a progress bar, and return its result."""
    with steps() as show:
        return _call(place, name, *arguments, progress=show, **options)


def _say(what: str, result: Any, as_json: bool) -> None:
    """Print the result of an operation: the decision of a new version, a number, or nothing."""
    if hasattr(result, "attempt"):
        details = {"done": what, "version": result.version, **(getattr(result, "report", None) or {})}
    else:
        details = {"done": what, "count": result}
    if as_json:
        print(json.dumps(details))
        return
    figures = ", ".join(f"{name.replace('_', ' ')} {_shown(it)}" for name, it in details.items() if name != "done")
    print(what if result is None else f"{what}: {figures}")
