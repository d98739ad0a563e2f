"""Stage 1, a task per group of files: writes their spans, split by shard, to Arrow IPC files.

A span is a sequence of consecutive rows of one file with the same key and epoch, consecutive sequence numbers, and
equal values in the columns for order and time. One line of the exchange stands for one span: the identity of its first
row, its number of rows, and its location. There is one record batch per shard, in order of shards. So there are as many
files as tasks, not files × shards, and a task reads one range of each file for its shards. Rows without identity are
kept and are not exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost._native import SpanScan
from fencepost.errors import BatchError, SourceError
from fencepost.lake.ahead import ColumnsAhead
from fencepost.lake.files import Constants, Facts, Files
from fencepost.lake.storage import Storage, retry
from fencepost.policy import Policy
from fencepost.state.scratch import Scratch
from fencepost.state.vectors import Bitmap, ranges_of

Rows = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

LENGTH, FILE, ROW = "_length", "_file", "_row"
"""Columns of the exchange: number of rows of the span (uint32), ordinal of the file (uint32), first row of the span
(uint64)."""

SPANS_TOGETHER, SPANS_TOGETHER_MAX, SPANS_OF_A_SHARD = 1 << 17, 1 << 24, 1 << 8
"""Number of spans to hold before writing them. It grows, up to a maximum, so that each of many shards gets
`SPANS_OF_A_SHARD`. Bounds a task's memory."""

WHOLE = (0, 1)
"""The part that is a whole file: number 0 of 1."""

TRIES = 3
"""Number of attempts to read a file that changes during reading."""


def check_names(names: Sequence[str]) -> None:
    """Raise BatchError for columns with the names of the exchange."""
    for name in names:
        if name in (LENGTH, FILE, ROW):
            text = f"column '{name}': the job uses this name internally; rename the column"
            raise BatchError(text, column=name)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read the identity columns of a job's files."""

    policy: Policy
    shards: int
    timestamp: bool
    """Whether to read timestamps."""
    order_by: tuple[str, ...]
    by_row: bool
    """Whether every row is a span of its own."""
    reset_rows_min: int
    """See `DedupJob`."""
    compares: bool
    """Whether to compare the content of repeats."""
    keeps_checksums: bool
    """Whether to compare it with rows of earlier runs, too."""

    @property
    def spans_together(self) -> int:
        return min(max(SPANS_TOGETHER, SPANS_OF_A_SHARD * self.shards), SPANS_TOGETHER_MAX)

    def open(
        self,
        storage: Storage,
        path: str,
        facts: Facts,
        constants: Constants,
        ordinal: int,
        part: tuple[int, int] = WHOLE,
    ) -> SpanScan:
        ranges = storage.object(path, facts)
        names = (
            *self.policy.columns.names,
            *self.order_by,
            *([self.policy.columns.timestamp] if self.timestamp else ()),
        )
        ahead = None if ranges is None else ColumnsAhead(ranges, names)
        scan = SpanScan(
            path,
            self.policy.columns,
            self.shards,
            timestamp=self.timestamp,
            order_by=self.order_by,
            by_row=self.by_row,
            constants=constants,
            ordinal=ordinal,
            policy=self.policy,
            object=ahead,
            part=part,
        )
        if ahead is not None:
            ahead.end = scan.row_groups[1]
        return scan


@dataclass(frozen=True, kw_only=True)
class ScanItem:
    files: Files
    first: int
    """The ordinal of the first file."""
    constants: list[Constants]
    left_out: dict[str, str]
    """Files to leave out: full path to reason."""
    quarantines_misfits: bool
    """Whether to leave out files with wrong columns, types or values. Otherwise they raise an error."""
    reading: Reading
    part: tuple[int, int] = WHOLE
    """Of a single file: number of the part to read, and number of parts (`parts.py`)."""


@dataclass(frozen=True)
class Exchange:
    """A file of record batches of spans, each as an Arrow IPC message. The file does not contain their schema."""

    name: str
    schema: pa.Schema
    rows: int
    """Number of rows in all spans."""
    shards: npt.NDArray[np.uint32]
    """The shard of each record batch, ascending, without repeats."""
    spans: npt.NDArray[np.uint32]
    """Number of spans of each record batch."""
    bytes: npt.NDArray[np.uint32]
    """Size of each record batch. They follow each other in the file."""

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """The end of each record batch in the file."""
        return np.cumsum(self.bytes, dtype=np.int64)


Status = Literal["read", "vanished", "left out"]


@dataclass
class Scanned:
    """The results of a task, by file."""

    first: int
    status: list[Status] = field(default_factory=list)
    reason: list[str] = field(default_factory=list)
    """Why a file was left out."""
    misfit: BatchError | None = None
    """The error of the first file that was left out because of wrong columns, types or values."""
    files: Files = field(default_factory=lambda: Files(""))
    """As they were when read."""
    rows: list[int] = field(default_factory=list)
    untracked: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)
    schema_crc: list[int] = field(default_factory=list)
    """Checksum of the columns that each footer declares. 0 if the file was not read."""
    schema: list[int] = field(default_factory=list)
    """Index into `schemas` per file. -1 if it was not read."""
    schemas: list[pa.Schema] = field(default_factory=list)
    """The distinct schemas."""
    newest_ms: int | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    row_range: tuple[int, int] = (0, 0)
    """The rows of the part that was read: first, and the one after the last."""

    @property
    def is_read(self) -> list[bool]:
        return [status == "read" for status in self.status]

    def add(self, path: str, facts: Facts | None, vector: Bitmap | None, read: _Read | None, reason: str) -> None:
        """Add a file that was read, is unreadable, or was deleted."""
        self.status.append("vanished" if facts is None else "read" if read else "left out")
        self.reason.append(reason)
        self.files.append(path, facts, vector)
        self.rows.append(read.rows if read else 0)
        self.untracked.append(read.untracked if read else 0)
        self.footer_crc.append(read.scan.footer_crc if read else 0)
        self.schema_crc.append(read.scan.schema_crc if read else 0)
        self.schema.append(self._number_of(pa.schema(read.scan.schema)) if read else -1)
        self.row_range = read.row_range if read else (0, 0)
        newest = read.scan.newest_timestamp if read else None
        if newest is not None:
            self.newest_ms = newest if self.newest_ms is None else max(newest, self.newest_ms)

    def _number_of(self, schema: pa.Schema) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema)


def scan(storage: Storage, scratch: Scratch, item: ScanItem) -> Scanned:
    """Read the identity columns of some files and split their spans by shard.

    Memory: `Reading.spans_together` spans. Raises BatchError (column, row, file), StoreError if storage fails.
    """
    found = Scanned(item.first, files=Files(item.files.root))
    with _Writer(scratch, item.reading.spans_together) as writer:
        for place in range(len(item.files)):
            _scan_file(storage, item, place, found, writer)
    found.exchanges = writer.exchanges
    return found


def _scan_file(storage: Storage, item: ScanItem, place: int, found: Scanned, writer: _Writer) -> None:
    path = item.files.full_path(place)
    facts: Facts | None
    read: _Read | None = None
    reason = item.left_out.get(path, "")
    try:
        if reason:
            facts = retry(lambda: storage.stat(path))
        else:
            facts, read, reason = retry(lambda: _read_file(storage, item, place, found, writer))
    except FileNotFoundError:
        facts, reason = None, "vanished"
    found.add(item.files.paths[place], facts, item.files.vectors[place], read, reason)


def _read_file(
    storage: Storage, item: ScanItem, place: int, found: Scanned, writer: _Writer
) -> tuple[Facts, _Read | None, str]:
    """Read a file. Returns (the file as it was, what was read, ""), or None and the reason."""
    path = item.files.full_path(place)
    for _ in range(TRIES):
        facts = storage.stat(path)
        try:
            read = _Read(storage, item, place, facts)
            last = read.all_but_last(writer)
            if facts.etag or facts.identity == storage.stat(path).identity:  # reads request the version of an etag
                writer.keep(last)
                return facts, read, ""
        except SourceError as error:
            return facts, None, error.message
        except BatchError as error:
            if not item.quarantines_misfits:
                raise
            found.misfit = found.misfit or error
            return facts, None, error.message
        finally:
            writer.forget()
    return facts, None, f"{path}: changed each time it was read, {TRIES} times"


class _Read:
    """A file being read."""

    def __init__(self, storage: Storage, item: ScanItem, place: int, facts: Facts) -> None:
        self.path = item.files.full_path(place)
        self.reading = item.reading
        self.scan = item.reading.open(storage, self.path, facts, item.constants[place], item.first + place, item.part)
        self.row_range = self.scan.first_row, self.scan.first_row + self.scan.rows
        vector = item.files.vectors[place]
        self.gone: tuple[Rows, Rows] | None = None if vector is None else ranges_of(vector)
        self.gone_of_spans = 0

    @property
    def rows(self) -> int:
        """Number of rows, without deleted ones."""
        return self.scan.rows - self._gone_rows

    @property
    def untracked(self) -> int:
        """Number of rows without identity, without deleted ones. Known after reading."""
        return self.scan.untracked - (self._gone_rows - self.gone_of_spans)

    @property
    def _gone_rows(self) -> int:
        if self.gone is None:
            return 0
        firsts, counts = self.gone
        return int((np.clip(firsts + counts, *self.row_range) - np.clip(firsts, *self.row_range)).sum())

    def all_but_last(self, writer: _Writer) -> list[tuple[int, pa.RecordBatch]]:
        """Read the file and write all spans except the last ones, which it returns."""
        last = self.next() or []
        while (more := self.next()) is not None:
            writer.add_alone(last)
            last = more
        return last

    def next(self) -> list[tuple[int, pa.RecordBatch]] | None:
        """Return the next spans by shard, None at the end. Raises BatchError for a null or NaN in `order_by`."""
        dealt = self.scan.next(self.reading.spans_together)
        if dealt is None:
            return None
        batches = [(shard, pa.record_batch(batch)) for shard, batch in dealt]
        _check_order(batches, self.path, self.reading)
        if self.gone is None:
            return batches
        live = []
        for shard, batch in batches:
            left, count = without(batch, *self.gone, self.reading.policy.columns.seq)
            self.gone_of_spans += count
            if len(left):
                live.append((shard, left))
        return live


def without(batch: pa.RecordBatch, firsts: Rows, counts: Rows, seq: str) -> tuple[pa.RecordBatch, int]:
    """Remove deleted rows from the spans of one file. Returns the spans and the number of removed rows.

    `firsts`, `counts`: the deleted ranges, ascending. A span may be split into several parts.
    """
    starts = batch.column(ROW).to_numpy()
    lengths = batch.column(LENGTH).to_numpy().astype(np.uint64)
    low = np.searchsorted(firsts + counts, starts, side="right")  # the first range that ends after the span's start
    high = np.searchsorted(firsts, starts + lengths, side="left")  # the first range that begins after the span's end
    cuts = np.maximum(high - low, 0)
    if not cuts.any():
        return batch, 0
    # A span with n ranges in it leaves n + 1 parts, some of them empty.
    of_part = np.repeat(np.arange(len(starts)), cuts + 1)
    number = numbers_within(cuts + 1)
    before, behind = low[of_part] + number - 1, low[of_part] + number
    ends = starts + lengths
    padded_ends, padded_firsts = np.append(firsts + counts, 0), np.append(firsts, 0)
    begin = np.where(number == 0, starts[of_part], np.maximum(padded_ends[before], starts[of_part]))
    end = np.where(number == cuts[of_part], ends[of_part], np.minimum(padded_firsts[behind], ends[of_part]))
    end = np.maximum(begin, end)
    is_left = end > begin
    of_part, begin, end = of_part[is_left], begin[is_left], end[is_left]
    left = cut_spans(batch, seq, of_part, begin - starts[of_part], end - begin)
    return left, int(lengths.sum() - (end - begin).sum())


def cut_spans(spans: Any, seq: str, of_span: Places, offsets: Places | Rows, counts: Places | Rows) -> Any:
    """Cut `counts` rows from each span in `of_span` (indexes), beginning at `offsets`. A table or a batch."""
    cut = spans.take(pa.array(of_span))
    begin = cut.column(seq).to_numpy().astype(np.int64) + offsets.astype(np.int64)
    row = cut.column(ROW).to_numpy() + offsets.astype(np.uint64)
    for name, values in ((seq, begin), (LENGTH, counts), (ROW, row)):
        place = cut.schema.get_field_index(name)
        field = cut.schema.field(place)
        cut = cut.set_column(place, field, pa.array(values).cast(field.type))
    return cut


def _check_order(batches: list[tuple[int, pa.RecordBatch]], path: str, reading: Reading) -> None:
    for name in reading.order_by:
        found = [
            batch.filter(batch.column(name).is_null(nan_is_null=True))
            for _, batch in batches
            if batch.column(name).null_count or pa.types.is_floating(batch.column(name).type)
        ]
        if odd := [batch for batch in found if len(batch)]:
            row, value = min((batch.column(ROW)[0].as_py(), batch.column(name)[0].as_py()) for batch in odd)
            what = "null" if value is None else "NaN"
            text = f"{path}: column '{name}', row {row}: {what}, but order_by needs a value"
            raise BatchError(text, column=name, row=row)


class _Writer:
    """Collects the spans of files and writes them by shard, about `spans_together` at a time.

    Spans of a file that is not completely read are in separate exchange files, so that they can be dropped.
    """

    def __init__(self, scratch: Scratch, spans_together: int) -> None:
        self.scratch, self.spans_together = scratch, spans_together
        self.exchanges: list[Exchange] = []
        self.held: list[tuple[int, pa.RecordBatch]] = []
        self.spans = 0
        self.alone_from: int | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()

    def add_alone(self, dealt: list[tuple[int, pa.RecordBatch]]) -> None:
        """Write spans of the current file, which has more."""
        if self.alone_from is None:
            self.flush()
            self.alone_from = len(self.exchanges)
        self.hold(dealt)
        self.flush()

    def keep(self, dealt: list[tuple[int, pa.RecordBatch]]) -> None:
        """Add the last spans of the current file, and keep all of its spans."""
        self.alone_from = None
        self.hold(dealt)

    def forget(self) -> None:
        """Drop all spans of the current file."""
        if self.alone_from is not None:
            del self.exchanges[self.alone_from :]
            self.alone_from = None
            self.held, self.spans = [], 0  # spans whose file could not be written

    def hold(self, batches: list[tuple[int, pa.RecordBatch]]) -> None:
        spans = sum(len(batch) for _, batch in batches)
        # Files with other column types start a new exchange file.
        is_other = bool(self.held and batches) and self.held[0][1].schema != batches[0][1].schema
        if is_other or self.spans + spans > self.spans_together:
            self.flush()
        self.held += batches
        self.spans += spans

    def flush(self) -> None:
        if not self.held:
            return
        by_shard: dict[int, list[pa.RecordBatch]] = {}
        for shard, batch in self.held:
            by_shard.setdefault(shard, []).append(batch)
        joined = {shard: pa.concat_batches(by_shard[shard]) for shard in sorted(by_shard)}
        self.exchanges.append(write_exchange(self.scratch, joined))
        self.held, self.spans = [], 0


def numbers_within(counts: npt.NDArray[Any]) -> Places:
    """Return 0, 1, … count - 1 for each count."""
    ends = np.cumsum(counts)
    within: Places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return within


def borders_of(numbers: npt.NDArray[Any]) -> list[int]:
    """Return where each run of equal numbers begins, and the end of the last one."""
    inner = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return [0, *inner.tolist(), len(numbers)] if len(numbers) else [0]


def by_number(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return indexes that sort small numbers stably."""
    is_short = numbers.max(initial=0) < 1 << 16  # 16-bit integers are sorted by radix sort
    return np.argsort(numbers.astype(np.uint16) if is_short else numbers, kind="stable")


def deal_spans(scratch: Scratch, spans: pa.Table, shards: npt.NDArray[Any]) -> Exchange:
    """Write an exchange file of at least one span, split by `shards`. Spans of a shard keep their order."""
    order = by_number(shards)
    numbers, firsts = np.unique(shards[order], return_index=True)
    in_order = spans.take(pa.array(order)).combine_chunks()
    batches = {
        int(number): in_order.slice(first, end - first).to_batches()[0]
        for number, (first, end) in zip(numbers, pairwise([*firsts.tolist(), len(order)]), strict=True)
    }
    return write_exchange(scratch, batches)


def write_exchange(scratch: Scratch, batches: dict[int, pa.RecordBatch]) -> Exchange:
    """Write an exchange file of spans by shard, which must ascend."""
    name = f"{uuid4().hex}.spans"
    schema = next(iter(batches.values())).schema
    with scratch.new(name) as path, open(path, "xb") as file:
        sizes = [file.write(batch.serialize()) for batch in batches.values()]
    spans = [len(batch) for batch in batches.values()]
    rows = sum(int(batch.column(LENGTH).to_numpy().sum(dtype=np.int64)) for batch in batches.values())
    return Exchange(
        name=name,
        schema=schema,
        rows=rows,
        shards=np.array(list(batches), np.uint32),
        spans=np.array(spans, np.uint32),
        bytes=np.array(sizes, np.uint32),
    )


def files_in(scratch: Scratch, exchange: Exchange) -> list[int]:
    """Return the ordinals of the files whose spans are in the exchange file."""
    ranges = [(exchange.name, begin, end) for begin, end in pairwise([0, *exchange.ends.tolist()])]
    batches = [pa.ipc.read_record_batch(data, exchange.schema) for data in scratch.read_ranges(ranges)]
    return sorted({ordinal for batch in batches for ordinal in batch.column(FILE).unique().to_pylist()})
