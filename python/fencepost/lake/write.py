"""Stage 3, a task per group of files: writes the kept rows of each file to an otherwise equal file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost import Verdict
from fencepost._native import Rewritten, parquet_footer, rewrite
from fencepost.errors import SourceError
from fencepost.lake.ahead import WholeFile
from fencepost.lake.asking import footer_of
from fencepost.lake.files import Files
from fencepost.lake.parts import RowRange
from fencepost.lake.refused import by_file, read_refused, within
from fencepost.lake.storage import ChangedError, Storage, retry, unchanged
from fencepost.state.scratch import Scratch
from fencepost.state.vectors import Bitmap, VectorFile, ranges_of, rows_of

Schemas = dict[bytes, str]
"""Maps serialized Arrow schemas to the path of a file with the schema."""

Bounds = dict[str, list[int]]
"""Maps integer columns to minimum and maximum, if statistics contain them."""

Rejects = Literal["copy", "all", "none"]
"""Which refused rows to quarantine: all except duplicates, all, or none."""

InPlace = Literal["vectors", "files"]
"""How to remove rows in place: by deletion vectors, or by replacement files. Files that lose no row have no output."""


@dataclass(frozen=True, kw_only=True)
class WriteItem:
    files: Files
    """As in the first pass."""
    first: int
    """The ordinal of the first file."""
    rows: list[int]
    footer_crc: list[int]
    is_read: list[bool]
    """Whether each file was read. Unread files have no output."""
    refused_rows: list[tuple[str, int, int]]
    """Locations of their refused rows in the scratch (`refused.Range`), unordered."""
    rejects: Rejects
    drops_conflicts: bool
    """Whether conflicts are not quarantined."""
    may_link: bool
    """Whether the source never changes, so that an output may share its inode."""
    tells_schemas: bool
    """Whether to return the columns of outputs and the bounds of their integer columns."""
    in_place: InPlace | None = None
    row_range: RowRange | None = None
    """Of a single file: the rows to write."""


@dataclass(kw_only=True)
class Written:
    """Output files, under names that are unique to their attempt."""

    ordinal: list[int] = field(default_factory=list)
    """The ordinal of the first file with rows in the output."""
    folder: list[str] = field(default_factory=list)
    """The partition folder of its rows, "" or with a trailing slash, without the source's own folders."""
    names: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)
    rejects: list[tuple[int, str, str, int, int, int]] = field(default_factory=list)
    """(ordinal, name of the verdict, name, rows, bytes, footer CRC) of each file of refused rows."""
    schemas: Schemas = field(default_factory=dict)
    """The schemas of the outputs, if requested."""
    bounds: list[Bounds] = field(default_factory=list)
    """The bounds of each output. Empty if not requested."""
    marked: list[dict[str, Any]] = field(default_factory=list)
    """The files that lose rows in place (`Marked`)."""
    vectors: list[tuple[int, str, int]] = field(default_factory=list)
    """(ordinal of the first file, name, bytes) of each file of deletion vectors."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Files whose rows cannot be copied: full path to reason. If there are any, the result is invalid."""
    carried: int = 0
    """Number of files copied or linked as a whole."""
    groups_copied: int = 0
    groups_rewritten: int = 0


@dataclass(frozen=True)
class Places:
    """What a task reads from and writes to, passed through the engine."""

    storage: Storage
    """The source's storage."""
    scratch: Scratch
    """Where tasks exchange data."""
    outputs: Scratch
    """Where tasks write output for the sink."""

    @contextmanager
    def writing(self) -> Iterator[Places]:
        """See `Scratch.writing`."""
        with self.outputs.writing() as outputs:
            yield replace(self, outputs=outputs)


def write(places: Places, item: WriteItem) -> Written:
    """Write the kept rows of some files, or of a part of one.

    Copies files without refused rows as a whole, and row groups without refused rows as bytes. Memory: some thousand
    rows. Raises ChangedError if a file changed since the first pass, StoreError if storage fails.
    """
    refused_rows = refused_by_file(places, item)
    written = Written()
    vectors = VectorFile() if item.in_place == "vectors" else None
    with places.writing() as places:
        for place in range(len(item.files)):
            try:
                if item.in_place and not len(refused_rows[place]):
                    continue
                if vectors is not None:
                    _mark(places, item, place, refused_rows[place], written, vectors)
                else:
                    write_file(places, item, place, refused_rows[place], written)
            except ChangedError:
                raise
            except SourceError as error:  # check the other files, too, so that the run plans again only once
                written.damaged[item.files.full_path(place)] = error.message
        if vectors is not None and written.marked:
            with places.outputs.new(vectors.name, lasts=True) as path:
                path.write_bytes(vectors.content)
            written.vectors.append((item.first, vectors.name, len(vectors.content)))
    return written


def refused_by_file(places: Places, item: WriteItem) -> list[pa.Table]:
    """Return the refused rows of each file, or of the row range."""
    refused = read_refused(places.scratch, item.refused_rows)
    if item.row_range is not None:
        refused = within(refused, item.row_range.first, item.row_range.end)
    return by_file(refused, item.first, item.first + len(item.files))


def write_file(places: Places, item: WriteItem, place: int, refused_rows: pa.Table, written: Written) -> None:
    """Write the kept rows of a file, and its quarantined rows."""
    ordinal, rows = item.first + place, item.rows[place]
    refused = pc.sum(refused_rows["count"]).as_py() or 0
    not_kept = rows_not_written(refused_rows, item.files.vectors[place], item.row_range)
    are_copied = not len(not_kept)
    with unchanged(places.storage, item.files, place, are_copied=are_copied) if item.is_read[place] else nullcontext():
        if rows and refused < rows:
            name = new_name(f"part-{ordinal:05}")
            if len(not_kept):
                done = _rewrite(places, item, place, name, not_kept)
                facts = done.rows, done.bytes, done.footer_crc
                written.groups_copied += done.groups_copied
                written.groups_rewritten += done.groups_rewritten
            else:
                facts = _carry_over(places, item, place, name)
            check_written(item.files.full_path(place), facts[0], rows - refused)
            add_output(written, ordinal, name, facts)
            note_columns(places, item, place, [name], written)
        written.carried += rows > 0 and not len(not_kept)
        quarantine_all(places, item, place, refused_rows, written)
    if item.in_place:
        written.marked.append(_marked(item, place, refused, None))


def _mark(
    places: Places, item: WriteItem, place: int, refused_rows: pa.Table, written: Written, vectors: VectorFile
) -> None:
    """Record which rows of a file are not kept, and write its quarantined rows."""
    with unchanged(places.storage, item.files, place):
        check_footer(item, place, footer_of(places.storage, item.files, place).footer_crc)
        quarantine_all(places, item, place, refused_rows, written)
    vector = vectors.add(item.files.vectors[place], *_ranges(refused_rows))
    written.marked.append(_marked(item, place, pc.sum(refused_rows["count"]).as_py(), vector))


def _marked(item: WriteItem, place: int, refused: int, vector: dict[str, Any] | None) -> dict[str, Any]:
    rows, ordinal = rows_of_file(item, place), item.first + place
    return {"path": item.files.paths[place], "ordinal": ordinal, "rows": rows, "refused": refused, "vector": vector}


def rows_of_file(item: WriteItem, place: int) -> int:
    """Return the number of all rows of a file: also those that are deleted, and those outside of the row range."""
    if item.row_range is not None:
        return item.row_range.rows_of_file
    return item.rows[place] + len(rows_of(item.files.vectors[place]))


def add_output(written: Written, ordinal: int, name: str, facts: tuple[int, int, int], folder: str = "") -> None:
    """Add an output. `facts`: rows, bytes, footer CRC."""
    columns: tuple[list[Any], ...] = (written.ordinal, written.folder, written.names)
    columns += (written.rows, written.bytes, written.footer_crc)
    for column, value in zip(columns, (ordinal, folder, name, *facts), strict=True):
        column.append(value)


def check_written(path: str, found: int, kept: int) -> None:
    """Check that all kept rows were written."""
    if found != kept:
        raise AssertionError(f"{path}: {found} rows were written, {kept} are kept")


def note_columns(places: Places, item: WriteItem, place: int, names: list[str], written: Written) -> None:
    """Record the columns of outputs and the bounds of their values, if the sink needs them."""
    for name in names:
        bounds: Bounds = {}
        if item.tells_schemas:
            schema, bounds = _schema_and_bounds(places.outputs, name)
            written.schemas.setdefault(schema, item.files.full_path(place))
        written.bounds.append(bounds)


def rows_not_written(refused_rows: pa.Table, vector: Bitmap | None, row_range: RowRange | None) -> pa.Table:
    """Return ranges of rows that are not written, sorted: refused rows, rows deleted in the source, rows outside the
    row range."""
    not_kept = _with_gone(refused_rows, vector)
    if row_range is None:
        return not_kept
    outside = [(0, row_range.first), (row_range.end, row_range.rows_of_file)]
    schema = pa.schema([("row", pa.uint64()), ("count", pa.uint64())])
    before, behind = (pa.table([[first], [end - first]], schema=schema) for first, end in outside)
    return pa.concat_tables([before, within(not_kept.select(schema.names), row_range.first, row_range.end), behind])


def _with_gone(refused_rows: pa.Table, vector: Bitmap | None) -> pa.Table:
    if vector is None:
        return refused_rows
    firsts, counts = ranges_of(vector)
    gone = pa.table({"row": firsts, "count": counts})
    both = pa.concat_tables([refused_rows.select(gone.column_names), gone], promote_options="permissive")
    return both.sort_by("row")


def _schema_and_bounds(outputs: Scratch, name: str) -> tuple[bytes, Bounds]:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    ranges = outputs.object(name)
    file = pq.ParquetFile(ranges.open() if ranges else outputs.place(name))
    schema = file.schema_arrow.remove_metadata()
    columns = [file.schema.column(place) for place in range(len(file.schema))]
    for name in (it.path for it in columns if it.physical_type == "INT96"):
        if name in schema.names:  # cast to an instant of any unit: Spark writes timestamps as instants by default
            schema = schema.set(schema.get_field_index(name), pa.field(name, pa.timestamp("us", "UTC")))
    return schema.serialize().to_pybytes(), _bounds(file)


def _bounds(file: Any) -> Bounds:
    integers = {it.name for it in file.schema_arrow if pa.types.is_signed_integer(it.type)}
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    found: Bounds = {}
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    for place, path in enumerate(paths):
        if path not in integers or paths.count(path) > 1:  # a field of a struct may have the path of a column
            continue
        statistics = [group.column(place).statistics for group in groups]
        if statistics and all(it is not None and it.has_min_max for it in statistics):
            found[path] = [min(it.min for it in statistics), max(it.max for it in statistics)]
    return found


def new_name(stem: str) -> str:
    return f"{stem}-{uuid4().hex[:12]}.parquet"


def _carry_over(places: Places, item: WriteItem, place: int, name: str) -> tuple[int, int, int]:
    source, facts = item.files.full_path(place), item.files.facts(place)
    storage, outputs = places.storage, places.outputs
    if not retry(lambda: storage.copy_within(source, facts, outputs, name)):
        with outputs.new(name, lasts=True) as target:

            def attempt() -> None:
                try:
                    storage.copy(source, facts, target, may_link=item.may_link)
                except BaseException:
                    target.unlink(missing_ok=True)
                    raise

            retry(attempt)
    ranges = outputs.object(name)
    footer = parquet_footer(outputs.place(name), object=ranges)
    check_footer(item, place, footer.footer_crc)
    size = ranges.size() if ranges else os.path.getsize(outputs.place(name))
    return footer.rows, size, footer.footer_crc


def _rewrite(
    places: Places, item: WriteItem, place: int, name: str, refused_rows: pa.Table, *, keep: bool = False
) -> Rewritten:
    path = item.files.full_path(place)
    ranges = places.storage.object(path, item.files.facts(place))
    # Most row groups have no quarantined rows, so a file of them is not read as a whole.
    with (
        WholeFile(ranges) if ranges is not None and not keep else nullcontext(ranges) as object_,
        places.outputs.new(name, lasts=True) as target,
    ):
        done = retry(lambda: rewrite(path, str(target), *_ranges(refused_rows), keep=keep, object=object_))
        check_footer(item, place, done.source_crc)
    return done


def quarantine_all(places: Places, item: WriteItem, place: int, refused_rows: pa.Table, written: Written) -> None:
    """Write the refused rows of a file that are quarantined, to one file per verdict."""
    if item.rejects == "none":
        return
    ordinal = item.first + place
    for verdict in map(Verdict, sorted(pc.unique(refused_rows["verdict"]).to_pylist())):
        if verdict == Verdict.CONFLICT and item.drops_conflicts:
            continue
        if verdict == Verdict.DUPLICATE and item.rejects == "copy":
            continue
        name = new_name(f"reject-{verdict.name}-{ordinal:05}")
        some = refused_rows.filter(pc.equal(refused_rows["verdict"], verdict.value))
        done = _rewrite(places, item, place, name, some, keep=True)
        written.rejects.append((ordinal, verdict.name, name, done.rows, done.bytes, done.footer_crc))


def _ranges(refused_rows: pa.Table) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    return refused_rows["row"].to_numpy().astype(np.uint64), refused_rows["count"].to_numpy().astype(np.uint64)


def check_footer(item: WriteItem, place: int, found: int) -> None:
    if found != item.footer_crc[place]:
        path = item.files.full_path(place)
        raise ChangedError(f"{path}: its footer changed since the first read; run again", path=path)
