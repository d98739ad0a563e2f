"""`fencepost generate`."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.cli.terminal import option as _option
from fencepost.cli.terminal import show_table, steps, usage_errors
from fencepost.progress import Progress, show_rows

if TYPE_CHECKING:
    from fencepost.generate import LandingZone, Summary


def generate_command(
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Output folder: files go to OUT/landing, expected results to OUT/truth."),
    ],
    rows: Annotated[int, _option("Number of events that producers write.")] = 1_000_000,
    producers: Annotated[int, _option("Number of producers.")] = 100,
    topics: Annotated[int, _option("Number of topics.")] = 2,
    partitions: Annotated[int, _option("Number of partitions per topic.")] = 6,
    zipf_exponent: Annotated[float, _option("Skew of the producers' rates; 0: equal rates.")] = 1.0,
    span_mean: Annotated[float, _option("Mean number of consecutive rows of a producer.")] = 20.0,
    repeat_near: Annotated[float, _option("Share of rows that land again soon after.")] = 0.02,
    repeat_far: Annotated[float, _option("Share of rows that land again in a later file.")] = 0.01,
    redelivery_share: Annotated[float, _option("Share of files delivered twice.")] = 0.1,
    retry_share: Annotated[
        float, _option("Share of rows that a producer sends twice, with different offsets.")
    ] = 0.001,
    disorder_within: Annotated[float, _option("Share of rows displaced within their file.")] = 0.02,
    disorder_across: Annotated[float, _option("Share of rows that land in a later file.")] = 0.01,
    missing_share: Annotated[float, _option("Share of rows that never land.")] = 0.001,
    bump_share: Annotated[float, _option("Share of producers per delivery whose epoch is bumped.")] = 0.1,
    zombie_share: Annotated[float, _option("Share of bumps after which the old epoch continues to write.")] = 0.5,
    restart_share: Annotated[float, _option("Share of producers per delivery that get a new pid.")] = 0.05,
    untracked_share: Annotated[float, _option("Share of rows without a pid.")] = 0.01,
    payload_bytes: Annotated[int, _option("Bytes of each payload.")] = 90,
    deliveries: Annotated[int, _option("Number of deliveries.")] = 4,
    files: Annotated[int, _option("Number of files per delivery.")] = 4,
    co_located: Annotated[
        bool, typer.Option("--co-located", help="Put each key into one file per delivery, in order.")
    ] = False,
    row_group_rows: Annotated[int, _option("Rows per Parquet row group.")] = 131_072,
    compression: Annotated[str, _option("Compression codec: none, snappy, zstd, lz4 or gzip.")] = "snappy",
    seed: Annotated[int, _option("Random seed. Equal seeds and options give equal bytes.")] = 0,
    land: Annotated[str, typer.Option(metavar="FIRST:STOP", help="Write only these deliveries, e.g. 0:3.")] = "",
    truth: Annotated[
        list[str] | None, typer.Option(metavar="POLICY", help="Write the expected results of this policy. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Generate the landing zone of an at-least-once sink, with the expected results of deduplication."""
    options = dict(locals())
    from fencepost.generate import ORDER_FREE, LandingZone, generate

    with usage_errors(ValueError):
        spec = LandingZone(**{field.name: options[field.name] for field in dataclasses.fields(LandingZone)})
        wanted = _delivery_range(land, spec)
        events = spec.border(wanted.stop * spec.files)
        with steps() as show:
            show("events", 0, events)
            summary = generate(
                out,
                spec,
                deliveries=wanted,
                truth_policies=truth or ORDER_FREE,
                progress=partial(_show_events, show, events),
            )
    if as_json:
        print(json.dumps(dataclasses.asdict(summary), indent=2))
    else:
        _show_summary(summary)


def _show_events(show: Progress, total: int, done: int) -> None:
    show("events", done, total)
    show_rows(show, done)


def _delivery_range(land: str, spec: LandingZone) -> range:
    if not land:
        return range(spec.deliveries)
    first, colon, stop = land.partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal()):
        raise ValueError(f"land must be FIRST:STOP within 0:{spec.deliveries}, found {land!r}")
    return range(int(first), int(stop))


def _show_summary(summary: Summary) -> None:
    print(f"{summary.rows:,} rows in {len(summary.files)} files, {summary.bytes:,} bytes")
    show_table(("ingredient", "count"), summary.ingredients.items())
    truths = [{**truth, **truth["counts"]} for truth in summary.truth.values()]
    names = [name for name, value in truths[0].items() if isinstance(value, int) and name != "delivery"]
    show_table(("truth", *summary.truth), [(name, *(truth[name] for truth in truths)) for name in names])
