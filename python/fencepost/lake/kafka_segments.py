"""Splits Kafka partitions into segments for tasks.

The visible part of a segment depends on the whole partition: a transaction may end several segments later. So the
planner reads headers (`read_view`), and passes each task a segment with the log's end and the aborted transactions
(`Part`). The task reads the headers of its segment, and completely only batches that may contain matching rows.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost import _native
from fencepost._native import KafkaStream, TransactionIndex
from fencepost.errors import SourceError
from fencepost.kafka import BATCH_BYTES_MAX
from fencepost.kafka.finding import Finding
from fencepost.kafka.headers import without_impossible
from fencepost.kafka.source import EmptyLogError, Log, Options, Segment, find_partitions, open_log, read_beside
from fencepost.policy import BatchColumns

Isolation = Literal["read_uncommitted", "read_committed"]
Condition: TypeAlias = tuple[str, str, Any]
"""A condition on rows: column, one of `=`, `<`, `<=`, `>`, `>=`, `in`, `null`, `known`, and the value: an integer, a
topic's name, a tuple for `in`, None for the last two. As in SQL, null matches none of the first six."""

OWN_TOPICS = {
    "__consumer_offsets",
    "__transaction_state",
    "__cluster_metadata",
    "__share_group_state",
    "__remote_log_metadata",
}
"""Kafka's internal topics. Their records are not events and are read only if their folder is named."""

_COLUMNS = BatchColumns.kafka_log().replace(partition=None)
_INT64 = (-(2**63), 2**63 - 1)
_LOCAL_BYTES, _REMOTE_BYTES = 1 << 18, 4 << 20
"""Number of bytes to read from a file, or request from a store, at a time."""

Offsets: TypeAlias = npt.NDArray[np.int64]


def records_schema() -> pa.Schema:
    """Return the columns of `Part.records`."""
    return pa.table(_native.kafka_records([])).schema


def batches_schema() -> pa.Schema:
    """Return the columns of `Part.batches`."""
    return pa.table(_native.kafka_batches([])).schema


def open_partitions(source: str | os.PathLike[str], options: Options = None) -> list[Log]:
    """Return the partition at a path or URI, the single segment, or all partitions in the folder, by topic and number.

    Skips partitions that a broker is deleting or moving or whose topic is gone (`-delete`, `-future`, `-stray`),
    because their rows are elsewhere or obsolete. Skips partitions without segments, and `OWN_TOPICS`. Raises
    SourceError.
    """
    folders = find_partitions(source, options)
    if folders == [os.fspath(source)]:
        return [open_log(source, options)]
    logs = []
    for folder in folders:
        with suppress(EmptyLogError):
            logs.append(open_log(folder, options))
    return [it for it in logs if it.topic not in OWN_TOPICS and _name_of(it) == f"{it.topic}-{it.partition}"]


def _name_of(log: Log) -> str:
    return PurePosixPath(log.folder or "").name


@dataclass(frozen=True)
class Part:
    """The visible part of a segment. Can be passed to other processes."""

    topic: str | None
    partition: int | None
    segment: Segment
    end: int
    """The end of the visible offsets."""
    is_whole: bool
    """Whether the segment ends before that, so that it does not grow any more."""
    aborted: tuple[tuple[int, int, int], ...] = ()
    """Transactions that are not visible: pid, first offset, offset of the marker."""
    bytes_min: int = 0
    """What the segment had at the time of planning; 0: not checked."""

    def records(
        self, conditions: Sequence[Condition] = (), batch_bytes_max: int = BATCH_BYTES_MAX
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `fencepost.kafka.read_records` that meet all conditions. Raises SourceError."""
        return self._whole(self._records(conditions, batch_bytes_max))

    def _whole(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches. Raises SourceError if the segment is shorter than it was at the time of planning."""
        try:
            yield from batches
        except SourceError:
            self._check_size()  # explains damage where the segment ends now
            raise
        self._check_size()

    def _check_size(self) -> None:
        """Raise SourceError if the segment has become shorter: the rows up to `end` would be taken as read."""
        if self.bytes_min and self.segment.size() < self.bytes_min:
            path = self.segment.path
            text = f"{path}: it had {self.bytes_min} bytes or more at first, and has fewer now: truncated or replaced"
            raise SourceError(f"{text} while it was read. Run again", path=path)

    def _records(self, conditions: Sequence[Condition], batch_bytes_max: int) -> Iterator[pa.RecordBatch]:
        segment, excerpt = self.segment.parts, None
        if conditions or self.aborted or not self.is_whole:
            excerpt = _Excerpt(self.segment, *self._wanted(conditions))
            if not excerpt.size():
                return
            segment = (segment[0], segment[1], excerpt)
        stream = _native.kafka_records([segment], self.topic, self.partition, batch_bytes_max=batch_bytes_max)
        try:
            yield from _filtered(map(self._before_end, map(pa.record_batch, stream)), conditions)
        except SourceError as error:
            if excerpt is None:
                raise
            raise excerpt.in_segment(error) from None

    def detached(self) -> Part:
        """Return the part without its store, and so without credentials."""
        return dataclasses.replace(self, segment=dataclasses.replace(self.segment, object=None))

    def attached(self, options: Options) -> Part:
        """Return the part with its segment's store. `options`: of the store, if it is remote."""
        return dataclasses.replace(self, segment=self.segment.attached(options))

    def batches(self, conditions: Sequence[Condition] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `fencepost.kafka.read_batches` that meet all conditions, including aborted batches."""
        return self._whole(_filtered(self._headers(), conditions))

    def _before_end(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records before the end. A broker that compacts puts the records of the next segments behind."""
        return rows.slice(0, int(np.searchsorted(rows["offset"].to_numpy(), self.end)))

    def _headers(self) -> Iterator[pa.RecordBatch]:
        """Yield the headers before the end. Raises SourceError if the log was cut before it since the plan."""
        reached = self.segment.base_offset or 0
        for batch in _native.kafka_batches([self.segment.parts], self.topic, self.partition):
            rows = pa.record_batch(batch)
            seen = int(np.searchsorted(rows["base_offset"].to_numpy(), self.end))
            yield rows.slice(0, seen)
            if seen < len(rows) or (seen and rows["last_offset"][-1].as_py() + 1 >= self.end):
                return  # the rest may be a batch that is being written
            reached = rows["last_offset"][-1].as_py() + 1 if seen else reached
        if not self.is_whole:  # compaction may leave a gap before the next segment
            raise SourceError(
                f"{self.segment.path}: ends at offset {reached}, but ended at {self.end} or later when the read was "
                "planned: the broker has cut it. Read the log again",
                path=self.segment.path,
            )

    def _wanted(self, conditions: Sequence[Condition]) -> tuple[Offsets, Offsets]:
        """Return start and end of the segment's batches that may contain matching rows."""
        begins: list[Offsets] = []
        ends: list[Offsets] = []
        for rows in self._headers():
            is_wanted = self._may_have_rows(rows, conditions)
            position = rows["position"].to_numpy()[is_wanted]
            begins.append(position)
            ends.append(position + rows["bytes"].to_numpy()[is_wanted])
        begin = np.concatenate([np.zeros(0, np.int64), *begins])
        end = np.concatenate([np.zeros(0, np.int64), *ends])
        continues = begin[1:] == end[:-1]
        return begin[np.append(True, ~continues)[: len(begin)]], end[np.append(~continues, True)[: len(end)]]

    def _may_have_rows(self, rows: pa.RecordBatch, conditions: Sequence[Condition]) -> npt.NDArray[np.bool_]:
        columns = ("base_offset", "last_offset", "count", "pid", "epoch", "max_timestamp")
        base, last, count, pid, epoch, newest = (rows[name].to_numpy() for name in columns)
        is_wanted: npt.NDArray[np.bool_] = (count > 0) & rows["control"].is_null().to_numpy(zero_copy_only=False)
        bounds = {"offset": (base, last), "pid": (pid, pid), "epoch": (epoch, epoch), "timestamp": (_INT64[0], newest)}
        for condition in conditions:
            is_wanted &= _may_hold(condition, bounds)
        is_transactional = rows["transactional"].to_numpy(zero_copy_only=False)
        for producer, first, marker in self.aborted:
            within = slice(*np.searchsorted(base, (first, marker)))
            is_wanted[within] &= ~((pid[within] == producer) & is_transactional[within])
        return is_wanted


@dataclass(frozen=True)
class View:
    """The visible part of a partition."""

    log: Log
    start: int
    """The beginning of its first segment."""
    log_end: int
    """The offset after its last batch."""
    end: int
    """The end of the visible offsets: the log's end, or the last stable offset."""
    aborted: tuple[tuple[int, int, int], ...]
    gaps: tuple[str, ...] = ()
    """Offsets between segments that are in none, as texts; of the segments whose headers were read."""
    is_thinned: bool = False
    """Whether a batch of these segments has fewer records than offsets, as after compaction."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The end of the last batch of these segments in bytes, by file name. Only of a log that may change meanwhile."""

    def parts(self, conditions: Sequence[Condition] = ()) -> list[Part]:
        """Return a part for each segment that may contain matching rows."""
        found = []
        for place, segment in enumerate(self.log.segments):
            begin = segment.base_offset or 0
            behind = self.log.segments[place + 1 : place + 2]
            is_whole = any((it.base_offset or 0) <= self.end for it in behind)
            end = (behind[0].base_offset or 0) if is_whole else self.end
            bounds = dict.fromkeys(("offset", "base_offset", "last_offset"), (begin, end - 1))
            if begin < end and all(np.all(_may_hold(it, bounds)) for it in conditions):
                aborted = tuple(it for it in self.aborted if it[1] < end and it[2] >= begin)
                size = self.sizes.get(PurePath(segment.path).name, 0)
                found.append(Part(self.log.topic, self.log.partition, segment, end, is_whole, aborted, size))
        return found


def may_be_in(log: Log, conditions: Sequence[Condition]) -> bool:
    """Return whether this partition may contain rows that meet the conditions."""
    bounds = {}
    if log.topic is not None:
        bounds = {"topic": (log.topic, log.topic), "partition": (log.partition, log.partition)}
    return all(np.all(_may_hold(it, bounds)) for it in conditions)


def read_view(
    log: Log,
    isolation: Isolation,
    *,
    since: int = 0,
    is_live: bool = False,
    salvages: bool = False,
    lacks_markers: bool = False,
    options: Options = None,
) -> View:
    """Return what is visible of a partition now: up to its end, or with read_committed up to the last stable offset.

    Reads the headers of all segments from `since` on with read_committed or `is_live`, otherwise those of the last one.

    Args:
        log: The partition.
        isolation: "read_committed" or "read_uncommitted".
        since: Ignore everything before this offset, which must be an earlier last stable offset. Transactions with rows
            after it also have their markers after it.
        is_live: A torn or zero-filled batch at the end of the last segment is one that a broker is writing. The log
            ends before it.
        salvages: Skip what follows damage in a segment.
        lacks_markers: Offsets in no batch may have been markers. A transaction that is open before them stays open:
            the marker of its producer's next transaction does not show its outcome.
        options: Options of the store.

    Raises SourceError.
    """
    transactions = _Transactions(log, salvages, lacks_markers) if isolation == "read_committed" else None
    first = len(log.segments) - 1
    if transactions is not None or is_live:
        first = sum((it.base_offset or 0) <= since for it in log.segments[1:])
    stream = _native.kafka_batches([it.parts for it in log.segments[first:]], reports=is_live or salvages)
    log_end, is_thinned = log.segments[-1].base_offset or 0, False
    sizes: dict[str, int] = {}
    for batch in stream:
        rows = pa.record_batch(batch)
        log_end = rows["last_offset"][-1].as_py() + 1
        is_thinned = is_thinned or _are_thinned(rows)
        if is_live:
            sizes[rows["segment"][-1].as_py()] = rows["position"][-1].as_py() + rows["bytes"][-1].as_py()
        if transactions is not None:
            transactions.add(rows)
    if not salvages:
        _check_live(stream, log)
    aborted: list[tuple[int, int, int]] = []
    ends = [log_end]
    if transactions is not None:
        aborted = transactions.aborted(log_end, options)
        ends += [*transactions.undecided(), *_unread(stream, log)]
    gaps = tuple(it.reason for it in stream.findings if it.kind == "gap") if is_live or salvages else ()
    start = log.segments[0].base_offset or 0
    return View(log, start, log_end, min(ends), tuple(aborted), gaps, is_thinned, sizes)


class _Transactions:
    """The transactions of a partition, from the headers of its batches in order of offsets."""

    def __init__(self, log: Log, salvages: bool, lacks_markers: bool) -> None:
        """`salvages`, `lacks_markers`: see `read_view`."""
        self._log, self._salvages, self._lacks_markers = log, salvages, lacks_markers
        self._index = TransactionIndex()
        self._end = 0
        self._open_at_gap: int | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Add headers. Raises SourceError for impossible ones, unless they are skipped."""
        possible, impossible = without_impossible(rows, self._log.segments)
        if impossible and not self._salvages:
            raise _error_of(impossible[0])
        knows_all = not self._lacks_markers or self._open_at_gap is not None
        for place, piece in enumerate([possible] if knows_all else _cut_at_gaps(possible, self._end)):
            if place and self._open_at_gap is None:
                self._open_at_gap = self._index.first_unstable_offset(None)
            # A batch header whose records were compacted away belongs to a transaction decided long ago.
            holds = pc.or_(pc.greater(piece["count"], 0), pc.is_valid(piece["control"]))
            self._index.apply(pa.table(piece.filter(holds)), _COLUMNS)
        if len(possible):
            self._end = possible["last_offset"][-1].as_py() + 1

    def aborted(self, log_end: int, options: Options) -> list[tuple[int, int, int]]:
        """Return (pid, first offset, last offset) of each aborted transaction."""
        found = _as_tuples(pa.table(self._index.aborted(None)))
        if not self._log.is_folder:
            found += _aborted_beside(self._log.segments[0], self._index, log_end, options)
        return found

    def undecided(self) -> list[int]:
        """Return offsets of transactions whose outcome is unknown, the first one among them.

        A segment that was named alone has none: `aborted` has checked that the index beside it has all outcomes.
        """
        unstable = self._index.first_unstable_offset(None) if self._log.is_folder else None
        return [it for it in (unstable, self._open_at_gap) if it is not None]


def _unread(stream: KafkaStream, log: Log) -> list[int]:
    """Return where segments begin that seem to overlap. Their headers are not read: their transactions are unknown."""
    paths = {it.path for it in stream.findings if it.kind == "overlap"}
    return [it.base_offset for it in log.segments if it.path in paths and it.base_offset is not None]


def _cut_at_gaps(rows: pa.RecordBatch, end: int) -> list[pa.RecordBatch]:
    """Cut rows where offsets are in no batch. `end`: the offset after the rows before."""
    base, last = rows["base_offset"].to_numpy(), rows["last_offset"].to_numpy()
    gaps = np.flatnonzero(base > np.concatenate([[end], last[:-1] + 1])).tolist()
    return [rows.slice(begin, until - begin) for begin, until in pairwise([0, *gaps, len(rows)])]


def _are_thinned(rows: pa.RecordBatch) -> bool:
    """Return whether a batch of records has fewer of them than offsets."""
    base, last, count = (rows[name].to_numpy() for name in ("base_offset", "last_offset", "count"))
    is_data = rows["control"].is_null().to_numpy(zero_copy_only=False)
    return bool((count < last - base + 1)[is_data].any())


def _check_live(stream: KafkaStream, log: Log) -> None:
    for it in stream.findings:
        is_being_written = it.kind in ("torn", "zeros") and it.path == log.segments[-1].path
        if it.kind not in ("gap", "index") and not is_being_written:
            raise _error_of(it)


def _error_of(finding: Finding) -> SourceError:
    place = "" if finding.position is None else f", byte {finding.position}"
    return SourceError(f"{finding.path}{place}: {finding.reason}", path=finding.path, position=finding.position)


def _aborted_beside(
    segment: Segment, index: TransactionIndex, log_end: int, options: Options
) -> list[tuple[int, int, int]]:
    """Return the aborted transactions in the index of a single segment. It must contain all that lack a marker."""
    found = read_beside(segment, ".txnindex", options)
    indexed = _as_tuples(pa.table(_native.kafka_aborted(found[1], found[0]))) if found else []
    for it in pa.table(index.open()).to_pylist():
        pid, first = it["pid"], it["first_offset"]
        if not any(one[0] == pid and one[1] <= first and one[2] >= log_end for one in indexed):
            raise SourceError(
                f"{segment.path}: the transaction of producer {pid} at offset {first} ends in another segment or is "
                "open, so this segment does not show whether it was committed: read the folder of the partition",
                path=segment.path,
            )
    return indexed


def _as_tuples(aborted: pa.Table) -> list[tuple[int, int, int]]:
    return list(zip(*(aborted[name].to_pylist() for name in ("pid", "first_offset", "last_offset")), strict=True))


# Conditions

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "in": lambda column, values: pc.is_in(column, value_set=pa.array(values, column.type)),
    "null": lambda column, _: pc.is_null(column),
    "known": lambda column, _: pc.is_valid(column),
}


def _filtered(batches: Iterable[pa.RecordBatch], conditions: Sequence[Condition]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that meet all conditions, without empty batches."""
    for batch in batches:
        for name, operator, value in conditions:
            column = batch[name]
            if pa.types.is_integer(column.type):
                column = column.cast(pa.int64())  # the value may be outside the range of the column's type
            batch = batch.filter(_COMPARE[operator](column, value))
        if len(batch):
            yield batch


def _may_hold(condition: Condition, bounds: dict[str, tuple[Any, Any]]) -> Any:
    """Return whether a condition may hold for a value within the bounds. Bounds are arrays or single values.

    Bounds below 0 of nullable columns stand for null.
    """
    name, operator, value = condition
    if name not in bounds:
        return True
    low, high = bounds[name]
    if operator == "=":
        return (low <= value) & (value <= high)
    if operator == "in":
        return np.logical_or.reduce([(low <= it) & (it <= high) for it in value]) if len(value) <= 100 else True
    if operator in ("null", "known"):
        return ((low < 0) == (operator == "null")) if name in ("pid", "epoch") else True
    if operator in ("<", "<="):
        return low < value if operator == "<" else low <= value
    return high > value if operator == ">" else high >= value


# Batches


class _Excerpt:
    """Concatenated batches of a segment, which the extension reads in place of the segment."""

    def __init__(self, segment: Segment, begin: Offsets, end: Offsets) -> None:
        self.segment, self.begin, self.end = segment, begin, end
        self.starts = np.concatenate([[0], np.cumsum(end - begin)])
        """The start of each range in the excerpt, and the end of the last one."""
        self.block = (0, b"")

    def size(self) -> int:
        return int(self.starts[-1])

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size() - offset)
        found = []
        while length > 0:
            place = self._place(offset)
            rest = int(self.starts[place + 1]) - offset
            piece = self._read(self._position(offset), min(length, rest))
            if not piece:
                break  # truncated in the meantime
            found.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return b"".join(found)

    def in_segment(self, error: SourceError) -> SourceError:
        """Convert the position of an error from the excerpt to the segment."""
        if error.position is None or error.position >= self.size():
            return error
        position = self._position(error.position)
        text = error.message.replace(f", byte {error.position}:", f", byte {position}:", 1)
        return SourceError(text, path=error.path, position=position)

    def _place(self, offset: int) -> int:
        return int(np.searchsorted(self.starts, offset, side="right")) - 1

    def _position(self, offset: int) -> int:
        place = self._place(offset)
        return int(self.begin[place]) + offset - int(self.starts[place])

    def _read(self, position: int, length: int) -> bytes:
        """Read a range of the segment, or the beginning of it. Buffers what follows, because ranges are consecutive."""
        start, block = self.block
        if not start <= position < start + len(block):
            least = _LOCAL_BYTES if self.segment.object is None else _REMOTE_BYTES
            start, block = self.block = position, self.segment.read(position, max(length, least))
        return block[position - start : position - start + length]
