"""Stage 1, a task per group of files: their runs, by shard, into Arrow IPC files.

A run is consecutive rows of one file with one key and epoch whose sequences follow each other, and with one value in
every column that orders them or tells their time. A line of the exchange stands for one run: the identity of its first
row, how many rows it has, and where they are. There is a record batch per shard, in their order: as many files as
tasks instead of files × shards, and the task of some shards reads one range of each file. Rows without identity are
kept and go nowhere.
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

from fencepost._native import RunScan
from fencepost.errors import BatchError, SourceError
from fencepost.lake.ahead import ColumnsAhead
from fencepost.lake.files import Constants, Facts, Files
from fencepost.lake.storage import Storage, persist
from fencepost.policy import Policy
from fencepost.state.scratch import Scratch
from fencepost.state.vectors import Bitmap, ranges_of

Rows = npt.NDArray[np.uint64]

LENGTH, FILE, ROW = "_length", "_file", "_row"
"""Columns of the exchange: rows of the run (uint32), ordinal of the file (uint32), the run's first row (uint64)."""

RUNS_TOGETHER, RUNS_TOGETHER_MAX, RUNS_OF_A_SHARD = 1 << 17, 1 << 24, 1 << 8
"""Runs that are held before they are written, or more, up to a bound, where they are dealt to so many shards that each
would get fewer than `RUNS_OF_A_SHARD`: what bounds a task's memory."""

WHOLE = (0, 1)
"""The part that is a whole file: the first one of one."""

TRIES = 3
"""How often a file is read again that changes while it is read."""


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that are named as those of the exchange. Raises BatchError."""
    for name in names:
        if name in (LENGTH, FILE, ROW):
            text = f"column '{name}': tasks tell each other of rows under this name; give the column another"
            raise BatchError(text, column=name)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the identity columns of a job's files are read: the same for all of them."""

    policy: Policy
    shards: int
    timestamp: bool
    """Whether timestamps are read."""
    order_by: tuple[str, ...]
    by_row: bool
    """Whether every row is a run of its own."""
    reset_rows_min: int
    """See `DedupJob`."""
    compares: bool
    """Whether the content of repeats is compared."""
    keeps_checksums: bool
    """Whether it is compared with rows of earlier runs, too."""

    @property
    def runs_together(self) -> int:
        return min(max(RUNS_TOGETHER, RUNS_OF_A_SHARD * self.shards), RUNS_TOGETHER_MAX)

    def open(
        self,
        storage: Storage,
        path: str,
        facts: Facts,
        constants: Constants,
        ordinal: int,
        part: tuple[int, int] = WHOLE,
    ) -> RunScan:
        ranges = storage.object(path, facts)
        names = (
            *self.policy.columns.names,
            *self.order_by,
            *([self.policy.columns.timestamp] if self.timestamp else ()),
        )
        ahead = None if ranges is None else ColumnsAhead(ranges, names)
        scan = RunScan(
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
    """The ordinal of the first of them."""
    constants: list[Constants]
    left_out: dict[str, str]
    """Files that are not to be read, by full path, and why."""
    sets_aside: bool
    """Whether a file of wrong columns, types or values is left out, rather than an error."""
    reading: Reading
    part: tuple[int, int] = WHOLE
    """Of a single file: the number of the part that is read, and how many there are (`parts.py`)."""


@dataclass(frozen=True)
class Exchange:
    """A file of record batches of runs, each as an Arrow IPC message; their schema is told here alone."""

    name: str
    schema: pa.Schema
    shards: npt.NDArray[np.uint32]
    """The shard of each of its record batches, and how many runs and rows it has."""
    runs: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    """Where each of them begins in the file, and where the last one ends."""


Status = Literal["read", "vanished", "left out"]


@dataclass
class Scanned:
    """What a task found, file by file."""

    first: int
    status: list[Status] = field(default_factory=list)
    reason: list[str] = field(default_factory=list)
    """Why a file was left out."""
    misfit: BatchError | None = None
    """Of the first file of wrong columns, types or values that was left out for that."""
    files: Files = field(default_factory=lambda: Files(""))
    """As they were when they were read."""
    rows: list[int] = field(default_factory=list)
    untracked: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)
    schema_crc: list[int] = field(default_factory=list)
    """Of the columns as each footer declares them; 0 where the file was not read."""
    schema: list[int] = field(default_factory=list)
    """Which of `schemas` each file has; -1 where it was not read."""
    schemas: list[pa.Schema] = field(default_factory=list)
    """The distinct ones."""
    newest_ms: int | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    span: tuple[int, int] = (0, 0)
    """Where a part of a file was read: its first row, and the one behind its last."""

    @property
    def is_read(self) -> list[bool]:
        return [status == "read" for status in self.status]

    def add(self, path: str, facts: Facts | None, vector: Bitmap | None, read: _Read | None, reason: str) -> None:
        """A file that was read, or could not be, or has vanished."""
        self.status.append("vanished" if facts is None else "read" if read else "left out")
        self.reason.append(reason)
        self.files.append(path, facts, vector)
        self.rows.append(read.rows if read else 0)
        self.untracked.append(read.untracked if read else 0)
        self.footer_crc.append(read.scan.footer_crc if read else 0)
        self.schema_crc.append(read.scan.schema_crc if read else 0)
        self.schema.append(self._number_of(pa.schema(read.scan.schema)) if read else -1)
        self.span = read.span if read else (0, 0)
        newest = read.scan.newest_timestamp if read else None
        if newest is not None:
            self.newest_ms = max(newest, self.newest_ms or newest)

    def _number_of(self, schema: pa.Schema) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema)


def scan(storage: Storage, scratch: Scratch, item: ScanItem) -> Scanned:
    """Read the identity columns of some files and deal their runs to shards.

    Memory: `Reading.runs_together` runs. Raises BatchError (column, row, file), StoreError where storage does not give
    a file.
    """
    found = Scanned(item.first, files=Files(item.files.root))
    with _Writer(scratch, item.reading.runs_together) as writer:
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
            facts = persist(lambda: storage.look(path))
        else:
            facts, read, reason = persist(lambda: _read_file(storage, item, place, found, writer))
    except FileNotFoundError:
        facts, reason = None, "vanished"
    found.add(item.files.paths[place], facts, item.files.vectors[place], read, reason)


def _read_file(
    storage: Storage, item: ScanItem, place: int, found: Scanned, writer: _Writer
) -> tuple[Facts, _Read | None, str]:
    """(the file as it was, what was read of it, ""); or None, and why."""
    path = item.files.full_path(place)
    for _ in range(TRIES):
        facts = storage.look(path)
        try:
            read = _Read(storage, item, place, facts)
            last = read.all_but_last(writer)
            if facts.identity == storage.look(path).identity:
                writer.keep(last)
                return facts, read, ""
        except SourceError as error:
            return facts, None, str(error)
        except BatchError as error:
            if not item.sets_aside:
                raise
            found.misfit = found.misfit or error
            return facts, None, str(error)
        finally:
            writer.forget()
    return facts, None, f"{path}: changed each time it was read, {TRIES} times"


class _Read:
    """A file that is being read."""

    def __init__(self, storage: Storage, item: ScanItem, place: int, facts: Facts) -> None:
        self.path = item.files.full_path(place)
        self.reading = item.reading
        self.scan = item.reading.open(storage, self.path, facts, item.constants[place], item.first + place, item.part)
        self.span = self.scan.first_row, self.scan.first_row + self.scan.rows
        vector = item.files.vectors[place]
        self.gone: tuple[Rows, Rows] | None = None if vector is None else ranges_of(vector)
        self.gone_of_runs = 0

    @property
    def rows(self) -> int:
        """Rows that are there."""
        return self.scan.rows - self._gone_rows

    @property
    def untracked(self) -> int:
        """Rows that are there without identity, once all was read."""
        return self.scan.untracked - (self._gone_rows - self.gone_of_runs)

    @property
    def _gone_rows(self) -> int:
        if self.gone is None:
            return 0
        firsts, counts = self.gone
        return int((np.clip(firsts + counts, *self.span) - np.clip(firsts, *self.span)).sum())

    def all_but_last(self, writer: _Writer) -> list[tuple[int, pa.RecordBatch]]:
        """Read it; gives its last runs, which nobody has written yet."""
        last = self.next() or []
        while (more := self.next()) is not None:
            writer.add_alone(last)
            last = more
        return last

    def next(self) -> list[tuple[int, pa.RecordBatch]] | None:
        """The next runs by shard; None at the end. Raises BatchError for a null where an order needs a value."""
        dealt = self.scan.next(self.reading.runs_together)
        if dealt is None:
            return None
        batches = [(shard, pa.record_batch(batch)) for shard, batch in dealt]
        _check_order(batches, self.path, self.reading)
        if self.gone is None:
            return batches
        live = []
        for shard, batch in batches:
            left, count = without(batch, *self.gone, self.reading.policy.columns.seq)
            self.gone_of_runs += count
            if len(left):
                live.append((shard, left))
        return live


def without(batch: pa.RecordBatch, firsts: Rows, counts: Rows, seq: str) -> tuple[pa.RecordBatch, int]:
    """Runs of one file, in the order of its rows, without the rows that are gone; and how many of theirs those were.

    `firsts`, `counts`: the ranges that are gone, ascending. A run may be left in several parts.
    """
    starts = batch.column(ROW).to_numpy()
    lengths = batch.column(LENGTH).to_numpy().astype(np.uint64)
    low = np.searchsorted(firsts + counts, starts, side="right")  # the first range that ends behind the run's start
    high = np.searchsorted(firsts, starts + lengths, side="left")  # the first that begins behind its end
    cuts = np.maximum(high - low, 0)
    if not cuts.any():
        return batch, 0
    # Each run leaves one part more than there are ranges in it, some of them of no rows.
    of_part = np.repeat(np.arange(len(starts)), cuts + 1)
    number = np.arange(len(of_part)) - np.repeat(np.cumsum(cuts + 1) - (cuts + 1), cuts + 1)
    before, behind = low[of_part] + number - 1, low[of_part] + number
    ends = starts + lengths
    padded_ends, padded_firsts = np.append(firsts + counts, 0), np.append(firsts, 0)
    begin = np.where(number == 0, starts[of_part], np.maximum(padded_ends[before], starts[of_part]))
    end = np.where(number == cuts[of_part], ends[of_part], np.minimum(padded_firsts[behind], ends[of_part]))
    end = np.maximum(begin, end)
    is_left = end > begin
    of_part, begin, end = of_part[is_left], begin[is_left], end[is_left]
    left = batch.take(pa.array(of_part))
    shift = (begin - starts[of_part]).astype(np.int64)
    for name, values in (
        (ROW, begin),
        (LENGTH, end - begin),
        (seq, left.column(seq).to_numpy().astype(np.int64) + shift),
    ):
        place = left.schema.get_field_index(name)
        left = left.set_column(place, left.schema.field(place), pa.array(values).cast(left.schema.field(place).type))
    return left, int(lengths.sum() - (end - begin).sum())


def _check_order(batches: list[tuple[int, pa.RecordBatch]], path: str, reading: Reading) -> None:
    for name in reading.order_by:
        nulls = [batch.filter(batch.column(name).is_null()) for _, batch in batches if batch.column(name).null_count]
        if nulls:
            row = min(batch.column(ROW)[0].as_py() for batch in nulls)
            text = f"{path}: column '{name}', row {row}: null; an order needs a value"
            raise BatchError(text, column=name, row=row)


class _Writer:
    """Gathers the runs of files and writes them shard by shard, about `runs_together` at a time.

    Runs of a file that is not read to its end yet lie in exchange files of their own, so that they can be forgotten.
    """

    def __init__(self, scratch: Scratch, runs_together: int) -> None:
        self.scratch, self.runs_together = scratch, runs_together
        self.exchanges: list[Exchange] = []
        self.held: list[tuple[int, pa.RecordBatch]] = []
        self.runs = 0
        self.alone_from: int | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()

    def add_alone(self, dealt: list[tuple[int, pa.RecordBatch]]) -> None:
        """Runs of the file at hand, with more to come."""
        if self.alone_from is None:
            self.flush()
            self.alone_from = len(self.exchanges)
        self.hold(dealt)
        self.flush()

    def keep(self, dealt: list[tuple[int, pa.RecordBatch]]) -> None:
        """The last runs of the file at hand, and with them all of it."""
        self.alone_from = None
        self.hold(dealt)

    def forget(self) -> None:
        """Nothing of the file at hand counts."""
        if self.alone_from is not None:
            del self.exchanges[self.alone_from :]
            self.alone_from = None

    def hold(self, batches: list[tuple[int, pa.RecordBatch]]) -> None:
        runs = sum(len(batch) for _, batch in batches)
        # Files of other types of columns begin another exchange file.
        is_other = bool(self.held and batches) and self.held[0][1].schema != batches[0][1].schema
        if is_other or self.runs + runs > self.runs_together:
            self.flush()
        self.held += batches
        self.runs += runs

    def flush(self) -> None:
        if not self.held:
            return
        by_shard: dict[int, list[pa.RecordBatch]] = {}
        for shard, batch in self.held:
            by_shard.setdefault(shard, []).append(batch)
        joined = {shard: pa.concat_batches(by_shard[shard]) for shard in sorted(by_shard)}
        self.exchanges.append(write_exchange(self.scratch, joined))
        self.held, self.runs = [], 0


def by_number(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Places of numbers from 0 on in ascending order; those of equal ones stay in theirs."""
    is_short = numbers.max(initial=0) < 1 << 16  # and of 16 bits this is a radix sort
    return np.argsort(numbers.astype(np.uint16) if is_short else numbers, kind="stable")


def deal_runs(scratch: Scratch, runs: pa.Table, shards: npt.NDArray[Any]) -> Exchange:
    """An exchange file of runs, of one at least, dealt to `shards`; those of each keep their order."""
    order = by_number(shards)
    numbers, firsts = np.unique(shards[order], return_index=True)
    in_order = runs.take(pa.array(order)).combine_chunks()
    batches = {
        int(number): in_order.slice(first, end - first).to_batches()[0]
        for number, (first, end) in zip(numbers, pairwise([*firsts.tolist(), len(order)]), strict=True)
    }
    return write_exchange(scratch, batches)


def write_exchange(scratch: Scratch, batches: dict[int, pa.RecordBatch]) -> Exchange:
    """An exchange file of these runs by shard, in ascending order."""
    name = f"{uuid4().hex}.runs"
    schema = next(iter(batches.values())).schema
    offsets = [0]
    with scratch.new(name) as path, open(path, "xb") as file:
        for batch in batches.values():
            file.write(batch.serialize())
            offsets.append(file.tell())
    runs = [len(batch) for batch in batches.values()]
    rows = [int(batch.column(LENGTH).to_numpy().sum(dtype=np.int64)) for batch in batches.values()]
    return Exchange(
        name=name,
        schema=schema,
        shards=np.array(list(batches), np.uint32),
        runs=np.array(runs, np.int64),
        rows=np.array(rows, np.int64),
        offsets=np.array(offsets, np.int64),
    )


def read_batch(data: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch of an exchange file; it lies where the bytes lie."""
    return pa.ipc.read_record_batch(data, schema)


def files_in(scratch: Scratch, exchange: Exchange) -> list[int]:
    """The ordinals of the files whose runs are in it."""
    ends = exchange.offsets.tolist()
    ranges = [(exchange.name, begin, end) for begin, end in pairwise(ends)]
    batches = [read_batch(data, exchange.schema) for data in scratch.read_ranges(ranges)]
    return sorted({ordinal for batch in batches for ordinal in batch.column(FILE).unique().to_pylist()})
