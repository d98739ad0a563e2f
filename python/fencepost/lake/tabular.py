"""Streams rows from CSV, JSON lines and Arrow IPC files and from standard input."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import PurePath
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fencepost.errors import SourceError
from fencepost.inputs import heads_of
from fencepost.lake.csv_keys import with_keys
from fencepost.lake.slices import is_glob
from fencepost.lake.times import is_time, with_times
from fencepost.progress import Progress, show_rows
from fencepost.state.stores import is_local

STDIN = "-"
COMPRESSIONS = {".gz", ".bz2", ".zst", ".lz4"}
CSV = {".csv", ".tsv"}


def tabular_files(sources: Sequence[str]) -> list[str]:
    """Return the sources that are standard input ("-") or local files of one of these kinds, by their names, each once.

    Globs are expanded in the order of file names. Raises SourceError for a glob without matches, or if only some of
    the sources are of these kinds.
    """
    tabular = [place for place in sources if _is_tabular(place)]
    if tabular and (other := next((place for place in sources if not _is_tabular(place)), None)) is not None:
        raise SourceError(f"{other}: is Parquet or a table, but {tabular[0]} is not: pass them separately", path=other)
    found = [path for place in tabular for path in _expanded(place)]
    once: dict[str, str] = {}
    for path in found:
        once.setdefault(path if path == STDIN else os.path.abspath(path), path)
    return list(once.values())


def _is_tabular(place: str) -> bool:
    return place == STDIN or (is_local(place) and _is_known(place) and not os.path.isdir(place))


def _is_known(place: str) -> bool:
    return _ending(place) in _INFERRING_READERS or _ending(place) in _ARROW_READERS


def hint_of(folder: str, ignored: Sequence[str]) -> str:
    """Return how to read a local folder's files of these kinds, or "". `ignored`: its files that are not Parquet."""
    name = next(filter(_is_known, ignored), None)
    if name is None or not os.path.isdir(folder):
        return ""
    suffixes = PurePath(name).suffixes
    ending = "".join(suffixes[-2:] if suffixes[-1].lower() in COMPRESSIONS else suffixes[-1:])
    return f"; a glob reads other files: '{folder}/**/*{ending}'"


def _expanded(place: str) -> list[str]:
    if place == STDIN or not is_glob(place):
        return [place]
    found = sorted(glob.glob(place, recursive=True))
    if not found:
        raise SourceError(f"{place}: no file matches", path=place)
    return found


def open_rows(
    paths: Sequence[str], timestamp: str | None = None, names: Sequence[str] = (), keys: Sequence[str] = ()
) -> pa.RecordBatchReader:
    """Open the rows of these files, one file after the other, as a stream.

    The types of CSV and JSON are inferred from the first block. Other files are read with the columns and types of the
    first one. `timestamp`: a column, or a field of one, whose texts are times (`times.with_times`). `names`: the only
    columns to read, if the first file has all of them, so that others may have different types in each file. `keys`:
    columns that identify a producer or a partition (`csv_keys.with_keys`).

    Raises SourceError (path) for a file that is unreadable or has other columns or types, or texts that are not times.
    """
    opened = _opened(paths[0], timestamp, keys)
    known = opened.schema.names
    wanted = heads_of(names, known) or known
    places = [place for place, name in enumerate(known) if name in wanted]
    schema = pa.schema([opened.schema.field(place) for place in places])
    first = (batch.select(places) for batch in opened)
    others = (batch for path in paths[1:] for batch in _converted(path, paths[0], schema, timestamp, keys))
    return pa.RecordBatchReader.from_batches(schema, chain(first, others))


def counted(step: str, rows: pa.RecordBatchReader, progress: Progress | None) -> pa.RecordBatchReader:
    """Return the same rows, and report their number while they are read."""
    return rows if progress is None else pa.RecordBatchReader.from_batches(rows.schema, _counted(step, rows, progress))


def _counted(step: str, rows: pa.RecordBatchReader, progress: Progress) -> Iterator[pa.RecordBatch]:
    done = 0
    progress(step, 0, 0)
    for batch in rows:
        yield batch
        done += len(batch)
        show_rows(progress, done)


def _opened(
    place: str,
    timestamp: str | None = None,
    keys: Sequence[str] = (),
    *,
    texts: Sequence[str] = (),
    adds_field: bool = True,
) -> pa.RecordBatchReader:
    """Open the rows of a file.

    `keys`: see `open_rows`. `texts`: columns of a CSV file that are text, whatever they look like. `adds_field`: add
    the timestamp as a column if it is a field of a struct column.
    """
    name = "standard input" if place == STDIN else place
    with _read_errors(name):
        if place == STDIN:
            file = io.BufferedReader(sys.stdin.buffer)  # type: ignore[type-var]
            ending = _sniffed(file.peek(8)[:8])
            reader = _read(ending, file, [*texts, *keys])
        else:
            ending = _ending(place)
            reader = _read(ending, pa.input_stream(place, compression="detect"), [*texts, *keys])
            timed = [name for name in (timestamp, *keys) if name is not None and is_time(reader.schema, name)]
            if timed and ending in _INFERRING_READERS:
                # The type that the first block suggests may be too narrow for the next ones. Keys that look like times
                # stay texts.
                file = pa.input_stream(place, compression="detect")
                known = reader.schema.names
                reader = _INFERRING_READERS[ending](file, [*([*texts, *keys] if ending in CSV else ()), *timed])
                if reader.schema.names != known:  # the reader of JSON puts the named columns first
                    reader = _in_order(reader, known)
    rows = pa.RecordBatchReader.from_batches(reader.schema, _checked(reader, name))
    if ending in CSV:
        rows = with_keys(rows, keys, name, texts)
    if timestamp is None or not (adds_field or timestamp in reader.schema.names):
        return rows
    return with_times(rows, timestamp, name, is_inferred=ending in _INFERRING_READERS)


def _in_order(reader: Any, names: Sequence[str]) -> pa.RecordBatchReader:
    schema = pa.schema([reader.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in reader))


def _read(ending: str, file: Any, texts: Sequence[str]) -> Any:
    if ending in _ARROW_READERS:
        return _ARROW_READERS[ending](file)
    return _INFERRING_READERS[ending](file, texts if ending in CSV else ())


def _converted(
    path: str, first: str, schema: pa.Schema, timestamp: str | None, keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns and types of the first one."""
    # "007" is a number in a file without other texts
    texts = [field.name for field in schema if field.type == pa.string()]
    for batch in _opened(path, timestamp, keys, texts=texts):
        for name in keys:
            kind, target = _type_of(name, batch.schema), _type_of(name, schema)
            if kind is not None and target is not None and (why := _why_unequal(kind, target)):
                text = f"{path}: column '{name}': not convertible to {target}, its type in {first}: {why}"
                raise SourceError(text, path=path)
        columns = []
        for field in schema:
            if field.name not in batch.schema.names:
                text = f"{path}: column '{field.name}': missing; {first} has it"
                raise SourceError(text, path=path)
            try:
                columns.append(batch.column(field.name).cast(field.type))
            except pa.ArrowException as error:
                text = f"{path}: column '{field.name}': not convertible to {field.type}, its type in {first}: {error}"
                raise SourceError(text, path=path) from error
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _why_unequal(kind: pa.DataType, target: pa.DataType) -> str | None:
    """Return why a cast of keys could make different ones equal, or None if it cannot."""
    if kind == target:
        return None
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return f"it is of type {kind}"
    if pa.types.is_integer(target) and not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        return "it has other texts than integers without leading zeros"
    return None


def _type_of(name: str, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of a column or field without its dictionary, or None if there is none."""
    if name in schema.names:
        kind = schema.field(name).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind
    head, _, rest = name.partition(".")
    if not rest or head not in schema.names or not pa.types.is_struct(schema.field(head).type):
        return None
    return _type_of(rest, pa.schema(list(schema.field(head).type)))


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


# `texts`: columns to read as text, whose types would be inferred otherwise


def _csv(file: Any, texts: Sequence[str], delimiter: str = ",") -> Any:
    from pyarrow import csv

    types = dict.fromkeys(texts, pa.string())
    return csv.open_csv(
        file,
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(column_types=types),
    )


def _tsv(file: Any, texts: Sequence[str]) -> Any:
    return _csv(file, texts, "\t")


def _json(file: Any, texts: Sequence[str]) -> Any:
    from pyarrow import json

    types = pa.schema([(name, pa.string()) for name in texts]) if texts else None
    return json.open_json(file, parse_options=json.ParseOptions(explicit_schema=types))


def _arrow(file: Any) -> Any:
    """Open an Arrow file without seeking: after the first 8 bytes it is a stream of batches."""
    if file.seekable():
        opened = pa.ipc.open_file(file)
        batches = (opened.get_batch(number) for number in range(opened.num_record_batches))
        return pa.RecordBatchReader.from_batches(opened.schema, batches)
    if file.read(8)[:6] != b"ARROW1":
        raise pa.ArrowInvalid("not a file of Arrow IPC: it does not begin with ARROW1")
    return pa.ipc.open_stream(file)


_INFERRING_READERS: dict[str, Callable[[Any, Sequence[str]], Any]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _json,
    ".ndjson": _json,
}
"""Of files whose types are inferred."""
_ARROW_READERS: dict[str, Callable[[Any], Any]] = {
    ".arrow": _arrow,
    ".feather": _arrow,
    ".ipc": _arrow,
    ".arrows": pa.ipc.open_stream,
}


class _Checksum(io.RawIOBase):
    """A file of which only the checksum remains."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)


def write_as_parquet(
    path: str,
    folder: str,
    timestamp: str | None = None,
    keys: Sequence[str] = (),
    progress: Progress | None = None,
) -> str:
    """Write the rows of a file or of standard input to a Parquet file in a folder, and return its path.

    The name is a checksum of the rows, so that a job's ledger recognizes rows that it has read. `timestamp`: a column
    whose texts are times. `keys`: see `open_rows`. `progress`: called as progress("read", 0, 0).

    Raises SourceError (path) for unreadable rows.
    """
    checksum = _Checksum()
    unfinished = os.path.join(folder, "_unfinished")
    reader = _opened(path, timestamp, keys, adds_field=False)
    rows = pa.ipc.new_stream(checksum, reader.schema)  # with the values of dictionaries, unlike `batch.serialize()`
    try:
        with pq.ParquetWriter(unfinished, reader.schema) as file:
            for batch in counted("read", reader, progress):
                rows.write_batch(batch)
                file.write_batch(batch)
    except pa.ArrowNotImplementedError as problem:
        name = "standard input" if path == STDIN else path
        raise SourceError(f"{name}: not convertible to Parquet: {problem}", path=path) from problem
    target = os.path.join(folder, f"{checksum.digest.hexdigest()[:32]}.parquet")
    os.rename(unfinished, target)
    os.utime(target, ns=(0, 0))  # the ledger takes another time for other content
    return target
