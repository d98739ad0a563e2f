"""The audit of files: reads identity columns, judges them with an empty state, and writes nothing.

Files are read as spans (`SpanScan`) and split into shards by key. The current file yields its next spans and the
following files their first ones, one task each, up to `TOGETHER` spans. Then each shard judges its spans, one task
each, in the cheapest order (`order.py`). The verdicts equal those of judging all rows in sequence. Memory: `TOGETHER`
spans, 2 * `SPANS` per thread, the tables, and the auditors' tallies.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

import fencepost
from fencepost._native import SpanScan
from fencepost.auditor import CALL_ROWS, Auditor, identity
from fencepost.content import columns_to_compare
from fencepost.errors import BatchError, SourceError
from fencepost.findings import RESET_ROWS_MIN, AuditReport, check_reset_rows_min
from fencepost.lake.column_types import type_name
from fencepost.lake.conflicts import PAIRS, Content
from fencepost.lake.files import Constants, Files, constants_of
from fencepost.lake.order import hole_avoiding_order
from fencepost.lake.scan import FILE, LENGTH, ROW, check_names, numbers_within
from fencepost.lake.slices import Slice, is_glob, source_of
from fencepost.lake.sources import Folder, Stored, open_place
from fencepost.lake.storage import Storage, open_storage, unchanged
from fencepost.lake.tabular import counted, open_rows, tabular_files
from fencepost.policy import Columns, Policy, resolve, resolve_columns
from fencepost.progress import Progress, ignore, show_rows
from fencepost.state.engine import LocalEngine, check_stopped
from fencepost.state.iceberg_tables import is_iceberg
from fencepost.state.stores import absolute, is_local
from fencepost.telemetry import observe_report, observe_report_step

ORDER = "file names, then rows"
ORDER_OF_TABLE = "files as the table has added them, then rows"
SPANS = 1 << 20
"""Number of spans that a file yields at a time."""
TOGETHER = 1 << 22
"""Number of spans to judge together, about 150 bytes each at the peak. A larger number leaves fewer holes for later
spans to fill."""
Dealt = list[tuple[int, pa.RecordBatch]]
"""(shard, spans), see `SpanScan.next`."""


Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a glob, or several of them."""


def audit(
    source: Sources,
    policy: str | Policy = "any_order",
    columns: Columns | str | None = None,
    *,
    threads: int | None = None,
    producers_max: int = 10,
    reset_rows_min: int = RESET_ROWS_MIN,
    compare_content: bool | Sequence[str] = False,
    progress: Progress | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Audit the rows of Parquet folders, files, or a table. Writes nothing.

    Rows are judged in the order of file names, then rows, even under policies that depend on the order. A table's files
    are judged in the order in which they were added. The sink of a job can be audited, too. Files that are unreadable
    or have wrong columns or values are listed in `AuditReport.unreadable`; the others are judged.

    Args:
        source: A folder or object-store prefix of Parquet files, one file or object (`s3://`, `gs://`, `az://`), a
            Delta table in a folder or prefix, or an Iceberg table (`iceberg://<catalog>/<namespace>.<table>`). Also one
            CSV, JSON lines or Arrow IPC file by its name, or "-" for standard input, which are read as streams. A glob
            ("landing/day=2026-11-*") or a list stands for several folders and files: all of them Parquet, or none.
        policy: As in `DedupJob`.
        columns: As in `DedupJob`. Suspected resets are searched if they name a timestamp column.
        threads: Number of threads. Default: the number of usable processors.
        producers_max: As in `fencepost.audit`.
        reset_rows_min: As in `fencepost.audit`.
        compare_content: As in `fencepost.audit`. The compared rows are read a second time.
        progress: Called as progress("audit", done, total), in bytes. The total is 0 for text and Arrow files
            (`fencepost.progress`).
        source_options: As in `DedupJob`.

    Raises:
        SourceError: The source cannot be listed, or no file can be read.
        BatchError: All files have wrong columns or values (column, row, file).
        PolicyError: Contradictory arguments.
    """
    check_reset_rows_min(reset_rows_min)
    policy = resolve(policy)
    columns = resolve_columns(policy, columns)
    request = _Request(policy, columns, producers_max, reset_rows_min, compare_content)
    show = progress or ignore

    def work() -> AuditReport:
        streams = tabular_files(places_of(source))
        if streams:
            return dataclasses.replace(_audit_rows(streams, request, show), source=shown(source))
        return _audit_files(source, request, LocalEngine(threads), show, source_options)

    return observe_report("audit", shown(source), work, _figures)


@dataclass(frozen=True)
class _Request:
    """Arguments of `audit`."""

    policy: Policy
    columns: Columns
    producers_max: int
    reset_rows_min: int
    compare_content: bool | Sequence[str]


def _figures(report: AuditReport) -> dict[str, int]:
    figures = {
        "fencepost.rows": report.rows,
        "fencepost.files": report.files,
        "fencepost.unreadable": len(report.unreadable),
        "fencepost.missing_rows": report.missing_rows,
        "fencepost.stale_epoch": report.stale_epoch,
    }
    return figures | {f"fencepost.rows.{verdict.lower()}": count for verdict, count in report.counts.items()}


def _audit_rows(streams: list[str], request: _Request, show: Progress) -> AuditReport:
    """Audit text and Arrow files."""
    columns = request.columns
    names = () if columns_to_compare(request.compare_content) is not None else columns.read(columns.kept)
    return fencepost.audit(
        counted("audit", open_rows(streams, columns.timestamp, names, columns.keys), show),
        request.policy,
        columns,
        producers_max=request.producers_max,
        reset_rows_min=request.reset_rows_min,
        compare_content=request.compare_content,
    )


def _audit_files(
    source: Sources, request: _Request, engine: LocalEngine, show: Progress, source_options: Mapping[str, Any] | None
) -> AuditReport:
    """Audit Parquet files or a table."""
    columns, name = request.columns, shown(source)
    check_names(columns.names)
    policy = request.policy.replace(columns=columns)
    with observe_report_step("list", name):
        opened, files, place = list_source(source, source_options)
    read = columns.read(columns.kept) if opened.has_folder_columns else ()
    constants = constants_of(files, read, files.types)
    reading = _Reading(opened.storage, files, constants, policy, columns, engine.slots)
    compared = columns_to_compare(request.compare_content)
    shards = [_Shard(policy, columns, number, compared is not None) for number in range(engine.slots)]
    with observe_report_step("judge", name):
        starts, problems = _judge_files(engine, reading, shards, show)
    unread = [reader.place for reader, _ in problems]
    facts: dict[str, Any] = {}
    if compared is not None:
        content = Content(opened.storage, files, columns, compared)
        with observe_report_step("compare", name):
            facts = _compared(engine, shards, content, starts, unread, partial(show, "compare"))
    auditor = shards[0].auditor
    for shard in shards[1:]:
        auditor.merge(shard.auditor)
    if problems and len(problems) == len(files) and not auditor.rows:
        raise problems[0][1]
    report = auditor.report(
        *(shard.table for shard in shards),
        order=ORDER if isinstance(opened, Folder) else ORDER_OF_TABLE,
        producers_max=request.producers_max,
        reset_rows_min=request.reset_rows_min,
        source=place,
        files=len(files) - len(problems),
        bytes=sum(files.bytes) - sum(files.bytes[at] for at in unread),
        unreadable=tuple((files.paths[reader.place], reader.reason) for reader, _ in problems),
        ignored=files.ignored,
        **facts,
    )
    return _with_files(report, files, np.array(starts, np.int64))


def _judge_files(
    engine: LocalEngine, reading: _Reading, shards: list[_Shard], show: Progress
) -> tuple[list[int], list[tuple[_FileReader, Exception]]]:
    """Read and judge all files. Returns the first row of each file, and the files that could not be read completely."""
    files = reading.files
    waiting = [_FileReader(place, reading) for place in range(len(files))]
    starts: list[int] = []
    first, total, done = 0, sum(files.bytes), 0
    ready: list[_ReadySpans] = []
    problems: list[tuple[_FileReader, Exception]] = []
    kinds = _KeyTypes(reading)
    show("audit", 0, total)
    while waiting:
        engine.run("read", _FileReader.fill, [reader for reader in waiting[: engine.slots] if reader.held is None])
        while waiting and waiting[0].held is not None:
            reader = waiting[0]
            if len(starts) == reader.place:
                starts.append(first)
            ready.append(_ReadySpans(first, kinds.checked(reader)))
            reader.held = None
            if not reader.is_over:
                break
            shards[0].auditor.add_untracked(reader.untracked)
            first, done = first + reader.rows, done + files.bytes[reader.place]
            if reader.problem is not None:
                problems.append((reader, reader.problem))
            del waiting[0]
        current = waiting[0] if waiting and len(starts) > waiting[0].place else None
        if not waiting or sum(it.spans for it in ready) >= TOGETHER:
            engine.run("judge", partial(_Shard.judge, ready_spans=ready), shards)
            ready = []
        show("audit", done + (0 if current is None else current.bytes_done), total)
        show_rows(show, first + (0 if current is None else current.rows))
    return starts, problems


def _with_files(report: AuditReport, files: Files, borders: npt.NDArray[np.int64]) -> AuditReport:
    """Replace row numbers of the report with file and row in the file. `borders`: the first row of each file."""

    def placed(rows: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Return (the file of each row, the row within the file)."""
        known = rows.cast(pa.int64()).fill_null(-1).to_numpy()
        at = np.searchsorted(borders, known, side="right") - 1
        names = [files.paths[it] if it >= 0 else None for it in at.tolist()]
        return pa.array(names, pa.string()), pa.array(known - borders[at] if len(borders) else known, mask=at < 0)

    examples = report.examples
    for name in ("row", "kept_row"):
        file, row = placed(examples[name])
        where = examples.column_names.index(name)
        examples = examples.set_column(where, name, row).add_column(where, name.replace("row", "file"), file)
    timeline = report.timeline
    if report.timeline_unit == "rows":
        timeline = timeline.append_column("file", placed(timeline["first"])[0])
    return dataclasses.replace(report, examples=examples, timeline=timeline)


def _compared(
    engine: LocalEngine,
    shards: list[_Shard],
    content: Content,
    starts: list[int],
    unread: list[int],
    show: Callable[[int, int], None],
) -> dict[str, Any]:
    """Return the report's fields about content.

    `starts`: the first row of each file. `unread`: files that were not read completely, whose rows are not compared.
    """
    borders = np.array(starts, np.int64)

    def pairs_of(shard: _Shard) -> pa.Table:
        found: list[npt.NDArray[Any]] = []
        for places in shard.auditor.pairs():
            files = np.searchsorted(borders, places, side="right") - 1
            found += [files.astype(np.uint32), (places - borders[files]).astype(np.uint64)]
        is_read = ~(np.isin(found[0], unread) | np.isin(found[2], unread))
        return pa.table(found, schema=PAIRS).filter(pa.array(is_read))

    pairs = [pairs_of(shard) for shard in shards]
    show(0, len(pairs))
    conflicts = engine.run("compare", content.conflicts, pairs, show)
    for shard, some in zip(shards, conflicts, strict=True):
        shard.auditor.count_conflicts(len(some))
    shown = pa.concat_tables(conflicts).sort_by([("file", "ascending"), ("row", "ascending")])
    return {"content_compared": sum(map(len, pairs)), "conflicts": content.samples(shown)}


def places_of(source: Sources) -> list[str]:
    return [os.fspath(it) for it in ([source] if isinstance(source, str | os.PathLike) else source)]


def shown(source: Sources) -> str:
    return ", ".join(places_of(source))


def list_source(source: Sources, options: Mapping[str, Any] | None) -> tuple[Stored, Files, str]:
    """Return (the source, its files in the order of judgment, its name). A named file is the only one.

    Raises SourceError if several paths match no file, or are parts of a table.
    """
    single = source if isinstance(source, str | os.PathLike) else source[0] if len(source) == 1 else None
    if single is not None and not is_glob(single):
        return _list_one(single, options)
    try:
        root, patterns = source_of(source)
    except ValueError as problem:
        raise SourceError(str(problem).removeprefix("source: ")) from None
    opened = open_place(root, options)
    tables = [root] if not isinstance(opened, Folder) else [it for it in places_of(source) if _is_table(it, options)]
    if tables:
        raise SourceError(f"{shown(source)}: {tables[0]} is a table: pass it alone", path=tables[0])
    files = opened.files()
    for place, pattern in zip(places_of(source), patterns, strict=False):
        if not any(map(Slice(of_source=(pattern,)).matches, files.paths)):
            raise SourceError(f"{place}: no .parquet file matches", path=place)
    belongs = Slice(of_source=patterns).matches
    return opened, files.take([at for at, path in enumerate(files.paths) if belongs(path)]), shown(source)


def _is_table(place: str, options: Mapping[str, Any] | None) -> bool:
    is_files = is_glob(place) or place.endswith(".parquet")
    return not is_files and not isinstance(open_place(absolute(place), options), Folder)


def _list_one(source: str | os.PathLike[str], options: Mapping[str, Any] | None) -> tuple[Stored, Files, str]:
    place = absolute(source)
    is_object = place.endswith(".parquet") and not is_local(place) and not is_iceberg(place)
    if is_object or os.path.isfile(place):
        folder, _, name = place.rpartition("/")
        storage = open_storage(folder or "/", options)
        one = Files(folder or "/")
        try:
            one.append(name, storage.stat(place))
        except FileNotFoundError:
            raise SourceError(f"{place}: no such file", path=place) from None
        return Folder(folder or "/", storage, is_own=True), one, place
    opened = open_place(place, options)
    files = opened.files()
    if any(files.vectors):
        raise SourceError(
            f"{place}: has files with deletion vectors, which audits do not support. Read the table with another "
            "library, and pass the rows to fencepost.audit",
            path=place,
        )
    return opened, files, place


@dataclass(frozen=True)
class _Reading:
    """How all files are read."""

    storage: Storage
    files: Files
    constants: list[Constants]
    policy: Policy
    columns: Columns
    shards: int

    def dealt(self, reader: _FileReader) -> Iterator[Dealt]:
        """Yield the spans of a file, SPANS at a time. The only place that reads rows."""
        path = self.files.full_path(reader.place)
        with unchanged(self.storage, self.files, reader.place):
            scan = SpanScan(
                path,
                self.columns,
                self.shards,
                timestamp=self.columns.timestamp is not None,
                constants=self.constants[reader.place],
                policy=self.policy,
                object=self.storage.object(path, self.files.facts(reader.place)),
            )
            reader.rows_all = scan.rows
            while (dealt := scan.next(SPANS)) is not None:
                check_stopped()
                yield [(shard, pa.record_batch(batch)) for shard, batch in dealt]
            reader.rows, reader.untracked = scan.rows, scan.untracked


@dataclass
class _FileReader:
    """A file being read."""

    place: int
    reading: _Reading
    pieces: Iterator[Dealt] | None = None
    held: Dealt | None = None
    """Spans that wait to be judged."""
    following: list[Dealt] = field(default_factory=list)
    is_over: bool = False
    """Whether `held` contains the last spans."""
    rows: int = 0
    """Number of the file's rows. For a file that cannot be read completely: the number up to the last judged row."""
    rows_all: int = 0
    """Number of the file's rows, from its footer. 0 if it is not open."""
    untracked: int = 0
    problem: SourceError | BatchError | None = None

    def fill(self) -> None:
        """Read the next spans, and one piece ahead to find out whether the file ends."""
        if self.pieces is None:
            self.pieces = self.reading.dealt(self)
            self.following = self._next()
        self.held = self.following.pop() if self.following else []
        self.following = [] if self.problem else self._next()
        self.is_over = not self.following

    def _next(self) -> list[Dealt]:
        """Return the next spans, empty at the end."""
        assert self.pieces is not None
        try:
            return [it for it in (next(self.pieces, None),) if it is not None]
        except (SourceError, BatchError) as problem:
            self.stop(problem)
            return []

    def stop(self, problem: SourceError | BatchError) -> None:
        """Stop reading after a problem."""
        self.problem, self.is_over = problem, True

    @property
    def bytes_done(self) -> int:
        """About the number of bytes up to the last judged row."""
        return self.reading.files.bytes[self.place] * self.rows // (self.rows_all or 1)

    @property
    def reason(self) -> str:
        path = self.reading.files.full_path(self.place)
        assert self.problem is not None
        return self.problem.message.removeprefix(path).lstrip(":, ")


class _KeyTypes:
    """The types of key columns: those of the first file with rows apply to all files."""

    def __init__(self, reading: _Reading) -> None:
        self.reading = reading
        self.names = reading.columns.keys
        self.known: list[str] = []
        self.first = ""

    def checked(self, reader: _FileReader) -> Dealt:
        """Return the reader's spans. If its key types differ, stop reading it and return nothing."""
        dealt = reader.held or []
        if not dealt:
            return []
        reader.rows = max([reader.rows, *(_end(batch) for _, batch in dealt)])
        path = self.reading.files.full_path(reader.place)
        found = [type_name(dealt[0][1].schema.field(name).type) for name in self.names]
        if not self.known:
            self.known, self.first = found, path
        for name, one, other in zip(self.names, found, self.known, strict=True):
            if one != other:
                text = f"{path}: column '{name}': is of type {one}; in {self.first} it is {other}"
                reader.stop(BatchError(text, column=name))
                reader.rows = reader.untracked = 0
                return []
        return dealt


def _end(batch: pa.RecordBatch) -> int:
    """Return the number of the row after the last span."""
    return int((batch.column(ROW).to_numpy() + batch.column(LENGTH).to_numpy()).max())


@dataclass(frozen=True)
class _ReadySpans:
    """A file's spans that are judged in this turn."""

    first: int
    """The number of the file's first row among the rows of all files."""
    dealt: Dealt

    @property
    def spans(self) -> int:
        return sum(len(batch) for _, batch in self.dealt)

    def of(self, shard: int) -> list[pa.RecordBatch]:
        """Return the spans of a shard, with row numbers across all files."""
        mine = [batch.drop_columns([FILE]) for number, batch in self.dealt if number == shard]
        return [it.set_column(it.schema.get_field_index(ROW), ROW, self._counted(it)) for it in mine]

    def _counted(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array(batch.column(ROW).to_numpy() + np.uint64(self.first))


class _Shard:
    """The keys of one task: their table and their auditor."""

    def __init__(self, policy: Policy, columns: Columns, number: int, is_compared: bool) -> None:
        self.number, self.columns = number, columns
        self.table = fencepost.StateTable(policy, keep=columns.kept)
        self.auditor = Auditor(policy, columns, self.table, is_compared)
        self.is_reorderable = True
        """Whether the order of judgment had no effect so far (`order.py`)."""

    def judge(self, ready_spans: list[_ReadySpans]) -> None:
        """Judge the shard's spans of this turn, those of one schema together."""
        mine = [it for ready in ready_spans for it in ready.of(self.number)]
        for _, alike in groupby(mine, lambda it: it.schema):
            self._judge(pa.Table.from_batches(list(alike)).combine_chunks())

    def _judge(self, spans: pa.Table) -> None:
        order = hole_avoiding_order(spans, self.table, is_reorderable=True) if self.is_reorderable else None
        self.is_reorderable = order is not None
        spans = spans if order is None else spans.take(pa.array(order))
        wrap = self.table.policy.wrap
        for some in _batched_spans(spans, self.columns.seq, wrap):
            check_stopped()
            verdicts = self.table.apply_spans(some, LENGTH, self.columns)
            self.auditor.add_spans(identity(some, self.columns, self.table.keep), verdicts, *_rows(some))


def _batched_spans(spans: pa.Table, seq: str, wrap: int | None) -> Iterator[pa.Table]:
    """Split the spans into tables of at most CALL_ROWS rows each. Longer spans are cut."""
    lengths = spans[LENGTH].to_numpy().astype(np.int64)
    if len(lengths) and lengths.max() > CALL_ROWS:
        counts = -(-lengths // CALL_ROWS)
        cut = spans.take(pa.array(np.repeat(np.arange(len(lengths)), counts)))
        skipped = numbers_within(counts) * CALL_ROWS
        numbers = cut[seq].cast(pa.int64()).to_numpy() + skipped
        columns = {
            seq: pa.array(numbers % wrap if wrap else numbers),
            ROW: pa.array(cut[ROW].to_numpy() + skipped.astype(np.uint64)),
            LENGTH: pa.array(np.minimum(np.repeat(lengths, counts) - skipped, CALL_ROWS).astype(np.uint32)),
        }
        spans = pa.table({name: columns.get(name, cut[name]) for name in cut.column_names})
        lengths = spans[LENGTH].to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + CALL_ROWS, side="right")))
        yield spans.slice(start, stop - start)
        start = stop


Numbers = npt.NDArray[np.int64]


def _rows(spans: pa.Table) -> tuple[Numbers, Numbers]:
    """Return (number of rows of each span, number of each row)."""
    lengths = spans[LENGTH].to_numpy().astype(np.int64)
    places = spans[ROW].to_numpy().astype(np.int64)
    if lengths.sum() > len(lengths):
        places = np.repeat(places, lengths) + numbers_within(lengths)
    return lengths, places
