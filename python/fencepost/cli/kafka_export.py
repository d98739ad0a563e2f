"""`fencepost kafka export`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from fencepost.cli.kafka_audit import CleanupPolicy, policies
from fencepost.cli.terminal import EXIT_FINDINGS, option, steps
from fencepost.errors import SourceError
from fencepost.progress import Progress, show_rows

if TYPE_CHECKING:
    from fencepost.lake.kafka_segments import Part

    Read = Callable[[Part], Any]
    """Returns the rows of a part as record batches."""

ISOLATIONS, ROWS = ("read_uncommitted", "read_committed"), ("records", "batches")


def kafka_export_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A partition's folder, a folder of such folders, a segment file, or a URI of one of these.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="One file if the name ends in .parquet, otherwise a new folder with one file per segment.",
        ),
    ],
    isolation: Annotated[
        str,
        option("read_committed (no aborted transactions, up to the last stable offset) or read_uncommitted."),
    ] = "read_uncommitted",
    rows: Annotated[str, option("records, or batches (one row per batch header).")] = "records",
    cleanup_policy: CleanupPolicy = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Export the readable part of damaged segments, and exit with code 3.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary and no progress.")] = False,
) -> None:
    """Export the records or batch headers of SOURCE to Parquet. Exit code 3 if any are missing."""
    _check_one_of("--isolation", isolation, ISOLATIONS)
    _check_one_of("--rows", rows, ROWS)
    if rows == "batches" and isolation != "read_uncommitted":
        raise typer.BadParameter(f"--isolation {isolation} applies to records only; batches are always shown")
    if out.exists():
        raise typer.BadParameter(f"{out} already exists")
    if not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"{out.parent}: no such folder")
    if Path(source).resolve() in out.resolve().parents:
        raise typer.BadParameter(f"{out} is inside {source}, which is read: choose another place")
    from fencepost.cli.salvage import Source

    with steps(quiet) as show, _hint(salvage):
        show("export", 0, 0)
        found = Source(source, isolation, policies(cleanup_policy or ()), salvage)
        parts = found.parts()
        write = _write_file if out.suffix == ".parquet" else _write_folder
        count = write(out, parts, lambda part: found.rows(part, rows), rows, show)
    if not quiet:
        print(f"{count:,} {rows}, segments: {len(parts)}, partitions: {len(found.logs)}, in {out}")
        for finding in found.missing:
            print(f"fencepost: {finding}", file=sys.stderr)
    if found.missing:
        raise typer.Exit(EXIT_FINDINGS)


@contextmanager
def _hint(salvage: bool) -> Iterator[None]:
    """Mention the option --salvage in errors about damage."""
    try:
        yield
    except SourceError as error:
        if salvage or error.position is None:
            raise
        text = f"{error.message}; --salvage exports what can be read"
        raise SourceError(text, path=error.path, position=error.position) from error


def _check_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise typer.BadParameter(f"{name} {value}: expected {' or '.join(known)}")


def _write_file(out: Path, parts: Sequence[Part], read: Read, rows: str, show: Progress) -> int:
    def batches() -> Any:
        count = 0
        for done, part in enumerate(parts, 1):
            for batch in read(part):
                yield batch
                count += len(batch)
            show("export", done, len(parts))
            show_rows(show, count)

    return _write(out, rows, batches())


def _write_folder(out: Path, parts: Sequence[Part], read: Read, rows: str, show: Progress) -> int:
    """Write a folder that appears under its name only when complete."""
    from fencepost.state.disk import Disk

    disk, beside = Disk(), out.with_name(f".{out.name}.{uuid4().hex}")
    count = 0
    try:
        for done, part in enumerate(parts, 1):
            path, _, _ = part.segment.parts
            folder, name = path.rsplit("/", 2)[-2:] if "/" in path else ("", path)
            disk.make_folder(beside / folder)
            count += _write(beside / folder / f"{name.removesuffix('.log')}.parquet", rows, read(part))
            show("export", done, len(parts))
            show_rows(show, count)
        disk.make_folder(beside)
        disk.move(beside, out)
    finally:
        disk.remove(beside)
    return count


def _write(out: Path, rows: str, batches: Any) -> int:
    """Write a file that appears under its name only when complete."""
    from fencepost.lake.kafka_log import write_parquet
    from fencepost.lake.kafka_segments import batches_schema, records_schema
    from fencepost.state.disk import TEMPORARY, Disk

    disk, beside = Disk(), out.with_name(f".{out.name}.{uuid4().hex}{TEMPORARY}")
    try:
        count = write_parquet(beside, batches_schema() if rows == "batches" else records_schema(), batches)
        disk.seal(beside)
        os.replace(beside, out)
        disk.seal(out.parent)
    finally:
        disk.remove(beside)
    return count
