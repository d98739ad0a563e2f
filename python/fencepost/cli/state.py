"""`fencepost state`: to look at what a job remembers, and to mend it."""

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
from fencepost.cli.terminal import Html, Threads, check_page, option, show_table

if TYPE_CHECKING:
    from fencepost.state import State

state_app = typer.Typer(
    help="Look at what a job remembers, and mend it.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Place = Annotated[str, typer.Argument(metavar="STATE", help="The folder of a job's state, or its URI.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
VERSIONS_SHOWN = 20


@state_app.command("show")
def show(
    place: Place,
    run: Annotated[int | None, typer.Argument(metavar="RUN", help="One version, told whole.")] = None,
    last: Annotated[int, typer.Option(min=1, help="How many of the newest versions are listed.")] = VERSIONS_SHOWN,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """What the state was made for and what each run did; of one RUN, what it read, wrote, kept, refused and why."""
    if html is not None:
        check_page(html)
    from fencepost.state import history

    state = _open(place)
    newest = state.decided()
    if run is not None:
        if html is not None:
            raise typer.BadParameter("RUN and --html: one of them")
        if not 1 <= run <= newest:
            raise typer.BadParameter(f"there is no version {run}; there are 1 to {newest}")
        if run <= state.known_floor():
            raise typer.BadParameter(f"version {run} is folded: of 1 to {state.known_floor()} only totals are left")
        told = history.explain(state, run)
        print(json.dumps(told) if as_json else _to_text(told))
        return
    about, shown = history.about(state), history.explained(state, last)
    if html is not None:
        history.page(about, shown).save(html)
    if as_json:
        print(json.dumps({"state": about, "versions": shown}))
        return
    print(_to_text(about))
    if shown:
        print()
        lines = [(str(it["version"]), *(it[name] for name in _COLUMNS[1:])) for it in shown]
        show_table([name.replace("_", " ") for name in _COLUMNS], lines)


_COLUMNS = (
    "version", "kind", "status", "files", "rows", "kept", "not_kept", "missing_rows", "stale_epoch", "entries",
    "state_bytes",
)  # fmt: skip


def _to_text(told: dict[str, Any]) -> str:
    lines = []
    for name, value in told.items():
        title = name.replace("_", " ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += ["", title, *(_one_line(it) for it in value)]
        elif isinstance(value, dict):
            lines += [f"{title:<16}{', '.join(f'{key} {_shown(it)}' for key, it in value.items())}"]
        elif value not in (None, []):
            lines += [f"{title:<16}{_shown(value)}"]
    return "\n".join(lines)


def _one_line(item: dict[str, Any]) -> str:
    """The first value, then numbers with their names, then texts as they are."""
    (_, first), *others = item.items()
    numbers = ", ".join(f"{_shown(value)} {name}" for name, value in others if not isinstance(value, str))
    texts = [" ".join(value.split()) for _, value in others if isinstance(value, str)]
    return f"  {first}: " + ": ".join(it for it in (numbers, *texts) if it)


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_shown, value)) + ")"
    return "-" if value is None else str(value)


@state_app.command("export")
def export(
    place: Place,
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT", help="A .parquet, .arrow, .csv or .jsonl file; JSON lines on stdout unless given."
        ),
    ] = None,
    what: Annotated[str, option("entries: all that is remembered; missing: what never came.")] = "entries",
) -> None:
    """Write out all that is remembered, or all that is missing."""
    if what not in ("entries", "missing"):
        raise typer.BadParameter(f"--what {what}: entries or missing were expected")
    if out is not None:
        check_table_file("", out)
    state = _open(place)
    rows = state.entries() if what == "entries" else state.missing()
    if out is None:
        sys.stdout.writelines(json_lines(rows))
    else:
        write_table(rows, out)


@state_app.command("evict")
def evict(
    place: Place,
    max_idle: Annotated[str, typer.Option(metavar="DURATION", help="For how long, e.g. 7d, 12h, 30m, 45s.")],
    now_ms: Annotated[
        int | None,
        option("Up to when, in milliseconds since 1970; the state's own clock, that of the data, unless given."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forget producers that were not written for so long. Their older rows will be FORGOTTEN.

    The state must keep timestamps: its job has --max-idle. Its clock moves on to --now-ms and does not fall again, but
    by a rollback.
    """
    _say("evicted", _operation(place, "evict", now_ms, milliseconds(max_idle)), as_json)


@state_app.command("rollback")
def rollback(
    place: Place,
    version: Annotated[
        int,
        typer.Argument(metavar="VERSION", help="The version to go back to; 0 is the state before the first version."),
    ],
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Although rows of later versions are still in the sink: what is read again will be there twice.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go back to what was known after VERSION, as a new version. What was read since is new again.

    First remove from the sink all files in the folders run=<n>/ of the versions after VERSION, and leave the folders
    themselves: the next run writes these rows again, as far as their files are still in the source. Where the sink is
    a Delta table, RESTORE it to VERSION's commit first (its history names versions).
    """
    _say("rolled back", _operation(place, "rollback", version, accept_duplicates=accept_duplicates), as_json)


@state_app.command("abandon")
def abandon(
    place: Place,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version that was decided and is not applied.")],
    as_json: AsJson = False,
) -> None:
    """Give up a version that was decided and cannot be applied.

    None of it will ever be shown, and its input is new again.
    """
    _say("abandoned", _operation(place, "abandon", version), as_json)


@state_app.command("gc")
def collect_garbage(
    place: Place,
    keep_versions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Keep only so many of the newest versions to go back to, e.g. 50, remove what older ones need, and "
            "fold them: only totals are left. Their rows stay in the sink. All versions are kept unless given.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what crashed and beaten runs left behind. No row of the sink is touched."""
    options = {} if keep_versions is None else {"keep_versions": keep_versions}
    _say("files removed", _operation(place, "collect_garbage", **options), as_json)


@state_app.command("reshard")
def reshard(
    place: Place,
    count: Annotated[int, typer.Argument(metavar="SHARDS", min=1, help="Into how many parts: 1 to 262144.")],
    as_json: AsJson = False,
) -> None:
    """Cut the state into another number of shards: more are smaller, and more tasks can work on them at once."""
    _say("resharded", _operation(place, "reshard", count), as_json)


@state_app.command("seed")
def seed(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The folder that later runs read, for ever. The Parquet files in it now count as read, unless --clean "
            "names another folder.",
        ),
    ],
    place: Place,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="Where later runs write: its own folder.")],
    clean: Annotated[
        str | None,
        option(
            "A folder of Parquet files that are clean already, such as the table from before there was a job. SOURCE "
            "itself unless given."
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
    shards: Annotated[int | None, option(identity.SHARDS_HELP)] = None,
    layout: Annotated[str | None, option(identity.LAYOUT_HELP)] = None,
    compare_content: identity.CompareContent = None,
    keep_checksums: identity.KeepChecksums = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Make a new state of rows that are clean already, and copy none of them to SINK.

    They lie in SOURCE, and later runs read what is added; or in the folder that --clean names, and the first run reads
    all of SOURCE and keeps what that folder does not hold. Rows that would not be kept are an error: make a clean copy
    with `fencepost dedup` then.
    """
    rules = read_policy(locals())
    options = {
        "scope": scope,
        "shards": shards,
        "layout": layout,
        "threads": threads,
        "compare_content": identity.compared(compare_content),
        "keep_checksums": number_or_all("--keep-checksums", keep_checksums),
    }
    job = make_job(source, place, sink, rules, options)
    report = job.seed(clean=clean)
    print(report.to_json() if as_json else report)


# The state as it is, and as operations find it


def _open(place: str) -> State:
    import fencepost.state

    return fencepost.state.open(place)


def _operation(place: str, name: str, *arguments: Any, **options: Any) -> Any:
    """What an operation of the state gives back."""
    return getattr(_open(place), name)(*arguments, **options)


def _say(what: str, result: Any, as_json: bool) -> None:
    """The result of an operation: the decision of a new version, a number, or nothing."""
    if hasattr(result, "attempt"):
        told = {"done": what, "version": result.version, **(getattr(result, "report", None) or {})}
    else:
        told = {"done": what, "count": result}
    if as_json:
        print(json.dumps(told))
        return
    figures = ", ".join(f"{name.replace('_', ' ')} {_shown(it)}" for name, it in told.items() if name != "done")
    print(what if result is None else f"{what}: {figures}")
