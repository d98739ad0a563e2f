"""Streams rows from CSV, JSON lines and Arrow IPC files and from standard input."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import SourceError
from fencepost.state.stores import is_local

STDIN = "-"
COMPRESSIONS = {".gz", ".bz2", ".zst", ".lz4"}


def is_tabular(source: str | os.PathLike[str]) -> bool:
    """Return whether a source is standard input ("-") or a local file of one of these kinds, by its name."""
    place = os.fspath(source)
    return place == STDIN or (is_local(place) and _ending(place) in _READERS and not os.path.isdir(place))


def open_rows(source: str | os.PathLike[str]) -> pa.RecordBatchReader:
    """Open the rows as a stream. The types of CSV and JSON are inferred from the first block.

    Raises SourceError (path) if the file is unreadable.
    """
    place = os.fspath(source)
    name = "standard input" if place == STDIN else place
    with _read_errors(name):
        if place == STDIN:
            file = io.BufferedReader(sys.stdin.buffer)  # type: ignore[type-var]
            reader = _READERS[_sniffed(file.peek(8)[:8])](file)
        else:
            reader = _READERS[_ending(place)](pa.input_stream(place, compression="detect"))
    return pa.RecordBatchReader.from_batches(reader.schema, _checked(reader, name))


def _checked(reader: Any, name: str) -> Iterator[pa.RecordBatch]:
    with _read_errors(name):
        yield from reader


class _read_errors:
    """A context manager that turns read errors into SourceError."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        if isinstance(problem, pa.ArrowException | OSError):
            raise SourceError(f"{self.name}: {' '.join(str(problem).split())}", path=self.name) from problem


def _ending(place: str) -> str:
    suffixes = [it.lower() for it in PurePath(place).suffixes]
    return next((it for it in reversed(suffixes) if it not in COMPRESSIONS), "")


def _sniffed(start: bytes) -> str:
    """Return the file format by its first bytes, as a file name ending. Raises SourceError for Parquet."""
    if start.startswith(b"PAR1"):
        raise SourceError("standard input: Parquet is read from its end, so save the input to a file first", path=STDIN)
    if start.startswith(b"ARROW1"):
        return ".arrow"
    if start.startswith(b"\xff\xff\xff\xff"):
        return ".arrows"
    return ".jsonl" if start.lstrip().startswith(b"{") else ".csv"


def _csv(file: Any) -> Any:
    from pyarrow import csv

    return csv.open_csv(file)


def _tsv(file: Any) -> Any:
    from pyarrow import csv

    return csv.open_csv(file, parse_options=csv.ParseOptions(delimiter="\t"))


def _json(file: Any) -> Any:
    from pyarrow import json

    return json.open_json(file)


def _arrow(file: Any) -> Any:
    """Open an Arrow file without seeking: after the first 8 bytes it is a stream of batches."""
    if file.seekable():
        opened = pa.ipc.open_file(file)
        batches = (opened.get_batch(number) for number in range(opened.num_record_batches))
        return pa.RecordBatchReader.from_batches(opened.schema, batches)
    if file.read(8)[:6] != b"ARROW1":
        raise pa.ArrowInvalid("not a file of Arrow IPC: it does not begin with ARROW1")
    return pa.ipc.open_stream(file)


def _arrows(file: Any) -> Any:
    return pa.ipc.open_stream(file)


_READERS: dict[str, Callable[[Any], Any]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _json,
    ".ndjson": _json,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".ipc": _arrow,
    ".arrows": _arrows,
}
