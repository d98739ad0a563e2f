"""Stage 1, a task per input file: its identity columns, sorted by shard, into one Arrow IPC file.

The file has one record batch per shard that occurs in it, so its footer is the index: N files instead of N × shards,
and a shard's task maps exactly its own slice into memory. Rows without identity are kept and go nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

import fencepost
from fencepost.errors import BatchError
from fencepost.lake.source import SourceFile, footer_crc, open_parquet, reading, unchanged
from fencepost.policy import Policy

ROW = "_fencepost_row"
"""Column of the exchange: the row's index in its file."""


@dataclass(frozen=True, kw_only=True)
class ScanItem:
    file: SourceFile
    policy: Policy
    order_by: tuple[str, ...]
    shards: int
    folder: str
    """Where the exchange file goes."""


@dataclass(frozen=True, kw_only=True)
class Scanned:
    rows: int
    footer_crc: int
    exchange: str
    """Path of the exchange file; it exists if there are batches."""
    batches: tuple[tuple[int, int], ...]
    """(shard, rows) of each record batch in it."""

    @property
    def untracked(self) -> int:
        return self.rows - sum(rows for _, rows in self.batches)


def scan(item: ScanItem) -> Scanned:
    """Read a file's identity columns and deal its rows to their shards.

    Memory: the file's identity columns, twice. Raises BatchError (column, row, file) and SourceError.
    """
    path = item.file.full_path
    with unchanged(item.file), reading(path):
        crc = footer_crc(path)
        rows = _read_identity(item)
    try:
        _check_types(rows, item)
        shards = pa.array(fencepost.shards(rows, item.shards, columns=item.policy.columns))
    except BatchError as error:
        raise BatchError(f"{path}: {error}", column=error.column, row=error.row) from error
    exchange = Path(item.folder) / f"{uuid4().hex}.arrow"
    batches = _deal(rows, shards, item.shards, exchange)
    return Scanned(rows=len(rows), footer_crc=crc, exchange=str(exchange), batches=batches)


def _read_identity(item: ScanItem) -> pa.Table:
    """The columns that verdicts depend on, in types that files of different writers agree in."""
    path = item.file.full_path
    names = list(dict.fromkeys((*item.policy.columns.names, *item.order_by)))
    with open_parquet(path) as file:
        schema = file.schema_arrow
    for name in names:
        count = len(schema.get_all_field_indices(name))
        if count != 1:
            problem = "stands in it more than once" if count else f"missing; it has {', '.join(schema.names)}"
            raise BatchError(f"{path}: column '{name}': {problem}", column=name)
    text = [name for name in names if schema.field(name).type in (pa.string(), pa.binary())]
    with open_parquet(path, text) as file:
        rows = file.read(columns=names, use_threads=False)
    return pa.table({name: _exchanged(rows[name]) for name in names})


def _exchanged(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as a dictionary, which is how it mostly lies in the file, of 32-bit offsets; anything else plain."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        kind = pa.string()
    elif kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        kind = pa.binary()
    else:
        return column.cast(kind)
    return column if column.type == pa.dictionary(pa.int32(), kind) else column.cast(kind).dictionary_encode()


def _check_types(rows: pa.Table, item: ScanItem) -> None:
    """What no row of the file can make right; the values themselves are validated when they are judged."""
    fencepost.StateTable(item.policy).check(pa.RecordBatch.from_pylist([], schema=rows.schema))
    for name in item.order_by:
        if rows[name].null_count:
            row = rows[name].is_null().index(True).as_py()
            raise BatchError(f"column '{name}', row {row}: null; an order needs a value", column=name, row=row)


def _deal(rows: pa.Table, shards: pa.Array, count: int, path: Path) -> tuple[tuple[int, int], ...]:
    """Write the rows of each shard as one record batch, in row order."""
    # NumPy sorts 8- and 16-bit integers by radix. Untracked rows have no shard: they sort behind all others.
    kind = np.uint8 if count < 2**8 else np.uint16
    numbers = shards.fill_null(count).to_numpy(zero_copy_only=False).astype(kind)
    sizes = np.bincount(numbers, minlength=count + 1)[:count]
    order = np.argsort(numbers, kind="stable")[: sizes.sum()]
    occurring = [(int(shard), int(sizes[shard])) for shard in np.flatnonzero(sizes)]
    if occurring:
        index = pa.array(order.astype(np.uint32 if len(rows) < 2**32 else np.uint64))
        dealt = rows.combine_chunks().take(index).append_column(ROW, index).combine_chunks()
        with pa.ipc.new_file(path, dealt.schema) as file:
            start = 0
            for _, size in occurring:
                file.write_batch(dealt.slice(start, size).to_batches()[0])
                start += size
    return tuple(occurring)
