"""Stage 3 with a configured output layout: file sizes, partition folders, and sort order.

| setting | effect |
|---|---|
| `target_file_bytes` | merges neighboring small files, splits large files between row groups |
| `partition_by` | writes Hive-style folders by a column, or by the date of a timestamp |
| `sort_by` | sorts the rows of each output file |

A batch is a set of files that are written together: neighbors with the same folder and Parquet schema. Batches depend
only on the listed files, so every attempt of a task produces the same files. A batch of one file that is not split goes
through `write_file`, which copies bytes as without a layout.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost._native import arrange as arrange_rows
from fencepost.errors import BatchError, SourceError
from fencepost.lake.files import Files
from fencepost.lake.parts import RowRange
from fencepost.lake.scan import Scanned
from fencepost.lake.storage import ChangedError, content_errors, retry, unchanged
from fencepost.lake.write import (
    Places,
    WriteItem,
    Written,
    add_output,
    check_footer,
    check_written,
    new_name,
    note_columns,
    quarantine_all,
    refused_by_file,
    rows_not_written,
    rows_of_file,
    write_file,
)
from fencepost.state.hive import HIVE_NULL, hive_folders, hive_values

Numbers = npt.NDArray[np.int64]
Ranges = tuple[Numbers, Numbers, Numbers]
"""Sources, first rows and counts of ranges of rows."""

BATCH_FILES = 4096
"""Maximum number of files per batch: all of their footers are in memory."""
HELD_BYTES, HELD_ROWS = 256 << 20, 4 << 20
"""Maximum file bytes and rows that are sorted or partitioned together. Bounds the memory of a task."""
ROWS_READ = 64 << 10
"""Number of rows to read at a time from the sort and partition columns."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """The layout of output files."""

    target_file_bytes: int | None
    partition_by: str | None
    """The column whose values name folders."""
    is_date: bool
    """Whether folders are named by the dates of the column's timestamps."""
    sort_by: tuple[str, ...]

    @property
    def folder(self) -> str | None:
        """The name of the partition column in folder names."""
        return "day" if self.is_date else self.partition_by

    @property
    def without(self) -> str | None:
        """The column that files omit because folders contain it."""
        return None if self.is_date else self.partition_by

    @property
    def keys(self) -> list[str]:
        """The columns to read for sorting and partitioning."""
        names = [] if self.partition_by is None else [self.partition_by]
        return list(dict.fromkeys([*names, *self.sort_by]))

    @property
    def batch_bytes(self) -> int:
        """Maximum file bytes of a batch. 0: one file per batch."""
        if self.target_file_bytes is None or not self.keys:
            return self.target_file_bytes or 0
        return HELD_BYTES if self.partition_by else min(HELD_BYTES, self.target_file_bytes)


def arrangement_of(
    target_file_bytes: int | None, partition_by: str | None, sort_by: str | Sequence[str] | None
) -> Arrangement | None:
    """Validate the settings. Returns None if there are none. Raises ValueError."""
    names = (sort_by,) if isinstance(sort_by, str) else tuple(sort_by or ())
    if target_file_bytes is None and partition_by is None and not names:
        return None
    if target_file_bytes is not None and target_file_bytes < 1:
        raise ValueError(f"target_file_bytes={target_file_bytes}: expected at least 1")
    is_text = isinstance(partition_by, str | None)
    match = re.fullmatch(r"(\w+)\((.+)\)", partition_by or "") if is_text else None
    if not is_text or (match and match[1] != "day"):
        raise ValueError(f"partition_by={partition_by!r}: expected a column, or day(column)")
    column = match[2] if match else partition_by
    if column == "" or "" in names:
        raise ValueError("partition_by and sort_by: the name of a column is empty")
    if match is None and column in names:
        raise ValueError(f"sort_by={column!r}: is also partition_by, so all rows of a file have the same value")
    return Arrangement(
        target_file_bytes=target_file_bytes, partition_by=column, is_date=match is not None, sort_by=names
    )


# Driver


def check_arrangement(arrangement: Arrangement, scanned: Iterable[Scanned]) -> None:
    """Check that every file has the sort and partition columns with supported types. Raises BatchError (column)."""
    for group in scanned:
        places = [place for place, status in enumerate(group.status) if status == "read"]
        firsts = {group.schema[place]: place for place in reversed(places)}
        for number, place in firsts.items():
            _check_schema(arrangement, group.schemas[number], group.files.full_path(place))
        for folder, place in {hive_folders(group.files.paths[place]): place for place in places}.items():
            if arrangement.folder in hive_values(folder):
                text = f"already comes from the names of the source's folders ({folder}): leave out partition_by"
                raise _refusal(group.files.full_path(place), arrangement.folder, text)


def _check_schema(arrangement: Arrangement, schema: pa.Schema, path: str) -> None:
    for name in arrangement.keys:
        if schema.names.count(name) != 1:
            reason = "missing" if name not in schema.names else "occurs more than once in the file"
            asked = "partition_by" if name == arrangement.partition_by else "sort_by"
            raise _refusal(path, name, f"{reason}; {asked} needs it in every file")
    if arrangement.is_date and "day" in schema.names:
        text = f"exists in the file, but partition_by='day({arrangement.partition_by})' adds a column of this name"
        raise _refusal(path, "day", f"{text}; rename it")
    if arrangement.partition_by is not None:
        kind = schema.field(arrangement.partition_by).type
        wanted = (_DATES, "a timestamp or a date") if arrangement.is_date else (_NAMES, "text, an integer or a date")
        if not any(is_one(kind) for is_one in wanted[0]):
            raise _refusal(path, arrangement.partition_by, f"{kind}; a column that names folders must be {wanted[1]}")
    for name in arrangement.sort_by:
        kind = schema.field(name).type
        try:
            pc.sort_indices(pa.table({name: pa.array([], kind)}), [(name, "ascending")])
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
            raise _refusal(path, name, f"{kind}; rows cannot be sorted by this type") from None


_DATES = (pa.types.is_timestamp, pa.types.is_date)
_NAMES = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_date32)


def _refusal(path: str, column: str | None, reason: str) -> BatchError:
    return BatchError(f"{path}: column '{column}': {reason}", column=column)


def batches(arrangement: Arrangement, files: Files, is_read: Sequence[bool], schemas: Sequence[int]) -> list[int]:
    """Return the end of each batch of files. `schemas`: the checksum of each file's columns.

    Batches include unread files, of which nothing is written.
    """
    ends: list[int] = []
    before: tuple[str, int] | None = None
    count, size = 0, 0
    for place, folder in enumerate(files.folders()):
        if not is_read[place]:
            continue
        kind = (hive_folders(folder), schemas[place])
        count, size = count + 1, size + files.bytes[place]
        if before is not None and (kind != before or size > arrangement.batch_bytes or count > BATCH_FILES):
            ends.append(place)
            count, size = 1, files.bytes[place]
        before = kind
    return [*ends, len(files)] if len(files) else []


def row_ranges_to_arrange(arrangement: Arrangement, size: int, row_ranges: Sequence[RowRange]) -> list[RowRange | None]:
    """Return the row ranges of tasks, one task per output file. [None]: one task for the file.

    `size`: the file's bytes.
    """
    target = arrangement.target_file_bytes or 0
    together = max(1, round(target * len(row_ranges) / size)) if size else 1
    if together >= len(row_ranges) or (not arrangement.keys and size <= target):
        return [None]
    some = (row_ranges[at : at + together] for at in range(0, len(row_ranges), together))
    return [
        replace(it[0], end=it[-1].end, live=sum(part.live for part in it)) for it in some if it[0].first < it[-1].end
    ]


# Tasks


@dataclass(frozen=True, kw_only=True)
class ArrangeItem:
    files: WriteItem
    ends: list[int]
    """The end of each batch, relative to the first of the files."""
    arrangement: Arrangement


def arrange(places: Places, item: ArrangeItem) -> Written:
    """Write the kept rows of some files in the layout. Raises the errors of `write`, and BatchError (column).

    Memory: HELD_BYTES and HELD_ROWS, decoded column by column. Without sorting and partitioning: one column of a row
    group.
    """
    files = item.files.files
    refused_rows = refused_by_file(places, item.files)
    written = Written()
    first = 0
    with places.writing() as places:
        for end in item.ends:
            try:
                _Batch(places, item, range(first, end), refused_rows, written).write()
            except ChangedError:
                raise
            except SourceError as error:
                written.damaged[error.path or files.full_path(first)] = error.message
            first = end
    return written


class _Batch:
    """Files that are written together."""

    def __init__(
        self, places: Places, item: ArrangeItem, members: range, refused_rows: list[pa.Table], written: Written
    ) -> None:
        self.places, self.item, self.arrangement = places, item.files, item.arrangement
        self.refused_rows, self.written = refused_rows, written
        self.members = list(members)
        refused = [pc.sum(refused_rows[it]["count"]).as_py() or 0 for it in members]
        self.kept = sum(item.files.rows[it] - lost for it, lost in zip(members, refused, strict=True))
        self.sources = [it for it, lost in zip(members, refused, strict=True) if item.files.rows[it] > lost]
        """Indexes of the files with kept rows: the sources of the output, in this order."""
        vectors, self.row_range = item.files.files.vectors, item.files.row_range
        self.not_kept = {it: rows_not_written(refused_rows[it], vectors[it], self.row_range) for it in self.sources}

    def write(self) -> None:
        files = self.item.files
        cuts = self._cuts()
        if not self.arrangement.keys and len(self.sources) < 2 and not cuts:
            for member in self.members:
                write_file(self.places, self.item, member, self.refused_rows[member], self.written)
            return
        with unchanged(self.places.storage, files, *[it for it in self.members if self.item.is_read[it]]):
            laid_out = self._dealt() if self.arrangement.keys else [[("", it) for it in self._whole(cuts)]]
            rows = sum(self._write_files(targets) for targets in laid_out if targets)
            for member in self.members:
                quarantine_all(self.places, self.item, member, self.refused_rows[member], self.written)
        check_written(files.full_path(self.members[0]), rows, self.kept)

    def _write_files(self, targets: list[tuple[str, Ranges]]) -> int:
        """Write one output file per (folder, rows). Returns their number of rows."""
        files, storage, outputs = self.item.files, self.places.storage, self.places.outputs
        paths = [files.full_path(it) for it in self.sources]
        facts = [files.facts(it) for it in self.sources]
        ordinal = self.item.first + self.sources[0]
        names = [new_name(f"part-{ordinal:05}") for _ in targets]
        objects = [storage.object(path, it) for path, it in zip(paths, facts, strict=True)]
        metadata = None if self.arrangement.without is None else self._metadata()
        with ExitStack() as stack:
            new = [str(stack.enter_context(outputs.new(name, lasts=True))) for name in names]
            asked = [(path, *ranges) for path, (_, ranges) in zip(new, targets, strict=True)]
            done = retry(
                lambda: arrange_rows(paths, asked, objects=objects, without=self.arrangement.without, metadata=metadata)
            )
            for member, crc in zip(self.sources, done.source_crc, strict=True):
                check_footer(self.item, member, crc)
        for place, (folder, _) in enumerate(targets):
            made = done.rows[place], done.bytes[place], done.footer_crc[place]
            add_output(self.written, ordinal, names[place], made, folder)
        self.written.groups_copied += done.groups_copied
        self.written.groups_rewritten += done.groups_gathered
        note_columns(self.places, self.item, self.sources[0], names, self.written)
        return sum(done.rows)

    # Rows in input order

    def _cuts(self) -> list[int]:
        """Return the rows of a single large file after which an output ends, each the last of a row group."""
        target = self.arrangement.target_file_bytes
        if target is None or self.arrangement.keys or len(self.sources) != 1:
            return []
        member = self.sources[0]
        if self.item.files.bytes[member] <= target:
            return []
        cuts, size = [], 0
        with unchanged(self.places.storage, self.item.files, member), self._opened(member) as file:
            numbers, row = self._groups(file)
            groups = [file.metadata.row_group(it) for it in numbers]
        for group in groups:
            bytes_ = sum(group.column(it).total_compressed_size for it in range(group.num_columns))
            if size and size + bytes_ > target:
                cuts.append(row)
                size = 0
            row, size = row + group.num_rows, size + bytes_
        return cuts

    def _whole(self, cuts: list[int]) -> list[Ranges]:
        """Return the kept rows: in one piece, or, for a split file, one piece per cut."""
        found = []
        for source, member in enumerate(self.sources):
            gone_first, gone_count = (self.not_kept[member][it].to_numpy().astype(np.int64) for it in ("row", "count"))
            rows = rows_of_file(self.item, member)
            borders = np.concatenate([[0], np.sort(np.concatenate([gone_first, gone_first + gone_count])), [rows]])
            first, end = borders[::2], borders[1::2]
            found.append((np.full(len(first), source), first, end - first))
        sources, first, counts = (np.concatenate(it) for it in zip(*found, strict=True))
        if not cuts:
            return [_nonempty(sources, first, counts)]
        ends = first + counts
        parts = [
            _nonempty(sources, (low := np.clip(first, start, end)), np.clip(ends, start, end) - low)
            for start, end in zip([0, *cuts], [*cuts, int(ends.max())], strict=True)
        ]
        return [it for it in parts if len(it[0])]

    # Partitioned or sorted rows

    def _dealt(self) -> Iterator[list[tuple[str, Ranges]]]:
        """Yield (folder, rows) of each output, for as many rows at a time as memory allows."""
        size = sum(self.item.files.bytes[it] for it in self.sources)
        row_bytes = max(1, size // max(1, sum(rows_of_file(self.item, it) for it in self.sources)))
        held, count = [], 0
        rows_max = min(HELD_ROWS, max(1, HELD_BYTES // row_bytes))
        for source, member in enumerate(self.sources):
            for some, table in self._keys(member):
                held.append((np.full(len(some), source), some, table))
                count += len(some)
                if count >= rows_max:
                    yield self._deal(held, row_bytes)
                    held, count = [], 0
        if held:
            yield self._deal(held, row_bytes)

    def _keys(self, member: int) -> Iterator[tuple[Numbers, pa.Table]]:
        """Yield a file's kept rows, with their values of the sort and partition columns."""
        first, count = (self.not_kept[member][it].to_numpy().astype(np.int64) for it in ("row", "count"))
        with self._opened(member) as file:
            numbers, row = self._groups(file)
            for batch in file.iter_batches(ROWS_READ, row_groups=numbers, columns=self.arrangement.keys):
                kept = row + _outside(first - row, first + count - row, len(batch))
                row += len(batch)
                if len(kept):
                    keys = _plain(pa.Table.from_batches([batch]).select(self.arrangement.keys))
                    yield kept, keys.take(pa.array(kept - (row - len(batch))))

    def _deal(self, held: list[tuple[Numbers, Numbers, pa.Table]], row_bytes: int) -> list[tuple[str, Ranges]]:
        sources, rows = (np.concatenate([it[place] for it in held]) for place in (0, 1))
        table = pa.concat_tables([it[2] for it in held], promote_options="permissive")
        if self.arrangement.sort_by:
            by = [(name, "ascending") for name in self.arrangement.sort_by]
            order = pc.sort_indices(table, by).to_numpy().astype(np.int64)
        else:
            order = np.arange(len(rows))
        folders, codes = self._folders(table)
        order = order[np.argsort(codes[order], kind="stable")]
        ends = np.cumsum(np.bincount(codes, minlength=len(folders)))
        found = []
        for folder, first, end in zip(folders, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            for some in self._cut(order[first:end], row_bytes):
                found.append((folder, _ranges(sources[some], rows[some])))
        return found

    def _cut(self, order: Numbers, row_bytes: int) -> list[Numbers]:
        """Split a folder's rows into files of about equal size."""
        target = self.arrangement.target_file_bytes
        parts = 1 if target is None else -(-len(order) * row_bytes // target)
        return np.array_split(order, max(1, min(parts, len(order))))

    def _folders(self, table: pa.Table) -> tuple[list[str], Numbers]:
        """Return the sorted folders, and the folder index of each row."""
        name, folder = self.arrangement.partition_by, self.arrangement.folder
        if name is None or folder is None:
            return [""], np.zeros(len(table), np.int64)
        values = table[name].cast(pa.date32(), safe=False) if self.arrangement.is_date else table[name]
        coded = pc.dictionary_encode(values, null_encoding="encode").combine_chunks()
        try:
            known = coded.dictionary.to_pylist()
        except (OverflowError, ValueError):
            path = self.item.files.full_path(self.sources[0])
            raise _refusal(path, name, "a date outside the years 1 to 9999 cannot name a folder") from None
        texts = [self._text(name, it) for it in known]
        codes = coded.indices.to_numpy().astype(np.int64)
        place_of = {text: place for place, text in enumerate(sorted(texts))}
        places = np.array([place_of[it] for it in texts], np.int64)
        return [f"{quote(folder, safe='')}={it}/" for it in place_of], places[codes]

    def _text(self, name: str, value: Any) -> str:
        if value is None:
            return HIVE_NULL
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if text in ("", HIVE_NULL):
            what = "an empty text" if not text else repr(text)
            path = self.item.files.full_path(self.sources[0])
            raise _refusal(path, name, f"{what} cannot name a folder of partition_by, because it looks like null")
        return quote(text, safe="")

    # Files

    def _groups(self, file: Any) -> tuple[list[int], int]:
        """Return the row groups to write, and the number of their first row."""
        counts = [file.metadata.row_group(it).num_rows for it in range(file.metadata.num_row_groups)]
        if self.row_range is None:
            return [*range(len(counts))], 0
        firsts = np.cumsum([0, *counts])
        low, high = np.searchsorted(firsts, [self.row_range.first, self.row_range.end]).tolist()
        return [*range(low, high)], self.row_range.first

    @contextmanager
    def _opened(self, member: int) -> Iterator[Any]:
        """Open a file for pyarrow. Raises the errors of `content_errors`."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        files, path = self.item.files, self.item.files.full_path(member)
        with content_errors(path):
            source = self.places.storage.open(path, files.facts(member))
            with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
                yield file

    def _metadata(self) -> list[tuple[str, str | None]]:
        """Return the key-value metadata of the first file. The Arrow schema in it lacks the omitted column."""
        with self._opened(self.sources[0]) as file:
            metadata = file.metadata.metadata or {}
        found: list[tuple[str, str | None]] = []
        for key, value in metadata.items():
            if key == b"ARROW:schema":
                schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
                schema = schema.remove(schema.get_field_index(self.arrangement.without))
                value = base64.b64encode(schema.serialize())
            found.append((key.decode(errors="replace"), value.decode(errors="replace")))
        return found


def _nonempty(sources: Numbers, first: Numbers, counts: Numbers) -> Ranges:
    wanted = counts > 0
    return sources[wanted], first[wanted], counts[wanted]


def _outside(first: Numbers, end: Numbers, count: int) -> Numbers:
    """Return the numbers of the rows below `count` that are in none of the disjoint ranges."""
    near = (first < count) & (end > 0)
    steps = np.zeros(count + 1, np.int64)
    steps[np.maximum(first[near], 0)] += 1
    steps[np.minimum(end[near], count)] -= 1
    return np.flatnonzero(np.cumsum(steps[:-1]) == 0)


def _ranges(sources: Numbers, rows: Numbers) -> Ranges:
    """Merge row numbers, in their order, to ranges of consecutive rows."""
    is_first = np.append(True, (np.diff(sources) != 0) | (np.diff(rows) != 1))
    starts = np.flatnonzero(is_first)
    return sources[starts], rows[starts], np.diff(np.append(starts, len(rows)))


def _plain(table: pa.Table) -> pa.Table:
    """Normalize types: files of one Parquet schema may differ in the writers' extra metadata.

    Views become texts and bytes: Arrow cannot take or sort them.
    """
    fields = []
    for field in table.schema:
        kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_duration(kind):
            kind = pa.int64()
        elif pa.types.is_timestamp(kind):
            kind = pa.timestamp(kind.unit)
        elif pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            kind = pa.string()
        elif pa.types.is_binary_view(kind):
            kind = pa.binary()
        fields.append(pa.field(field.name, kind))
    return table.cast(pa.schema(fields))
