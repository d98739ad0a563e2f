"""Stage 2, a task per shard: its rows of all files in their one total order, judged against what the state knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost import StateTable, Verdict
from fencepost.errors import BatchError
from fencepost.lake.scan import ROW
from fencepost.policy import Policy
from fencepost.state.decision import Shard
from fencepost.state.segments import SegmentWriter, advance, load_table
from fencepost.state.stores import Store

SHOWN_MAX = 1_000
"""Missing ranges, and stale producers, that a shard hands to the report; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A shard's rows of one file."""

    ordinal: int
    source: str
    """The file, for messages."""
    exchange: str
    batch: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class JudgeItem:
    shard: int
    policy: Policy
    order_by: tuple[str, ...]
    parts: tuple[Part, ...]
    """In ordinal order."""
    before: Shard | None
    """The shard's state before, if it has any."""
    store: Store
    version: int
    attempt: str
    scratch_folder: str


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Rows of one file that this shard does not keep: a record batch of row indexes."""

    ordinal: int
    path: str
    batch: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Judged:
    after: Shard
    """The shard's state after."""
    counts: dict[str, int]
    """Rows by name of verdict."""
    drops: tuple[Drop, ...]
    missing_ranges: int
    missing_rows: int
    missing: bytes
    """The first ranges, as an Arrow stream."""
    stale_epoch: int
    stale: bytes
    """Whose rows they were, the most first, as an Arrow stream."""
    border: int


def judge(item: JudgeItem) -> Judged:
    """Judge a shard's rows and write its new segment and the rows that are not kept.

    All rows go to the table in one call: the exchange is mapped into memory, not read, and only so is `missing` what
    the whole run left open, not what a row of the next piece fills. Raises BatchError (column, row, file),
    CapacityError, SnapshotError.
    """
    table = load_table(item.store, item.before.pieces if item.before else (), item.policy)
    rows = _gather(item.parts)
    order = _order(rows, item.order_by)
    try:
        verdicts = table.apply(rows if order is None else rows.take(order))
    except BatchError as error:
        raise _placed(error, item, rows, order) from error
    refused = np.flatnonzero(~pa.array(verdicts.kept).to_numpy(zero_copy_only=False))
    if order is not None:
        refused = np.sort(order[refused])
    missing = pa.table(verdicts.missing)
    stale = pa.table(verdicts.stale).sort_by([("count", "descending")])
    return Judged(
        after=_save(table, item, verdicts.counts[Verdict.ACCEPTED]),
        counts={verdict.name: count for verdict, count in verdicts.counts.items() if count},
        drops=_write_drops(refused, item, rows),
        missing_ranges=len(missing),
        missing_rows=pc.sum(missing["count"]).as_py() or 0,
        missing=_to_stream(missing.slice(0, SHOWN_MAX)),
        stale_epoch=verdicts.stale_epoch,
        stale=_to_stream(stale.slice(0, SHOWN_MAX)),
        border=verdicts.border,
    )


def _gather(parts: tuple[Part, ...]) -> pa.Table:
    """The rows of all files, one chunk a part."""
    tables = [_read_batch(part.exchange, part.batch) for part in parts]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        first = tables[0].schema
        for part, table in zip(parts, tables, strict=True):
            for field in table.schema:
                found, expected = field.type, first.field(field.name).type
                if found != expected:
                    raise BatchError(
                        f"{part.source}: column '{field.name}': {found}; in {parts[0].source} it is {expected}",
                        column=field.name,
                    ) from error
        raise


def _order(rows: pa.Table, order_by: tuple[str, ...]) -> npt.NDArray[np.int64] | None:
    """The rows' places in their true order; those of equal values stay in (ordinal, row). None: they stand in it."""
    if not order_by:
        return None
    columns = {name: rows[name] for name in order_by}
    decoded = {
        name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for name, column in columns.items()
    }
    keys = [(name, "ascending") for name in order_by]
    order: npt.NDArray[np.int64] = pc.sort_indices(pa.table(decoded), keys).to_numpy().astype(np.int64)
    return order


def _read_batch(path: str, batch: int) -> pa.Table:
    with pa.memory_map(path) as file:
        return pa.Table.from_batches([pa.ipc.open_file(file).get_batch(batch)])


def _placed(error: BatchError, item: JudgeItem, rows: pa.Table, order: npt.NDArray[np.int64] | None) -> BatchError:
    """The error with the file and the row that the caller knows."""
    if error.row is None:
        names = item.parts[0].source + (" and others" if len(item.parts) > 1 else "")
        return BatchError(f"{names}: {error}", column=error.column)
    at = int(error.row if order is None else order[error.row])
    ends = np.cumsum([part.rows for part in item.parts])
    part = item.parts[int(np.searchsorted(ends, at, side="right"))]
    row = rows[ROW][at].as_py()
    text = str(error).replace(f"row {error.row}:", f"row {row}:", 1)
    return BatchError(f"{part.source}: {text}", column=error.column, row=row)


def _write_drops(refused: npt.NDArray[np.int64], item: JudgeItem, rows: pa.Table) -> tuple[Drop, ...]:
    """One Arrow IPC file per shard, one record batch per input of which rows are not kept."""
    if not len(refused):
        return ()
    path = Path(item.scratch_folder) / f"{uuid4().hex}.arrow"
    drops: list[Drop] = []
    column = rows.select([ROW])
    with pa.ipc.new_file(path, pa.schema([pa.field(ROW, pa.uint64())])) as file:
        start = 0
        for part, chunk in zip(item.parts, column[ROW].chunks, strict=True):
            inside = refused[np.searchsorted(refused, start) : np.searchsorted(refused, start + part.rows)] - start
            start += part.rows
            if len(inside):
                indexes = chunk.take(pa.array(inside)).cast(pa.uint64())
                file.write_batch(pa.record_batch([indexes], names=[ROW]))
                drops.append(Drop(ordinal=part.ordinal, path=str(path), batch=len(drops), rows=len(inside)))
    return tuple(drops)


def _save(table: StateTable, item: JudgeItem, accepted: int) -> Shard:
    with SegmentWriter(item.store, item.version, item.attempt) as writer:
        after = advance(table, item.before, item.shard, writer)
    before = item.before.positions if item.before else 0
    if after.positions is not None and before is not None:
        growth = after.positions - before
        if growth != accepted:
            raise AssertionError(
                f"shard {item.shard}: {accepted} rows were accepted, but the state grew by {growth} positions"
            )
    return after


def _to_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
