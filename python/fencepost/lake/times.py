"""Converts ISO 8601 texts in a column of a stream to timestamps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost.errors import SourceError
from fencepost.inputs import shown, with_fields

HAS_ZONE = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
IS_FINE = r"\.\d{7}"
"""More digits than microseconds have."""


def with_times(
    reader: pa.RecordBatchReader, column: str, source: str, *, is_inferred: bool = False
) -> pa.RecordBatchReader:
    """Return the stream with a column of texts as timestamps in UTC, if it has such a column.

    A text without a zone is a time in UTC, an empty one is null. The unit is microseconds, or nanoseconds if a text of
    the first batch has more digits. A field of a struct ("payload.at") is added as a column. `is_inferred`: types were
    inferred from texts, so that times have different types in different files; all of them become timestamps in UTC. A
    column of another type stays unchanged.

    Raises SourceError (path) for a text that is not a time. `source`: the name of the file, for messages.
    """
    empty = with_fields(pa.RecordBatch.from_pylist([], schema=reader.schema), [column])
    if column not in empty.schema.names:
        return reader
    if not (_is_text(empty.schema.field(column).type) or (is_inferred and is_time(empty.schema, column))):
        return reader
    first = next(iter(reader), empty)
    kind = pa.timestamp("ns" if _is_fine(with_fields(first, [column])[column]) else "us", "UTC")
    at = empty.schema.get_field_index(column)
    schema = empty.schema.set(at, empty.schema.field(at).with_type(kind))

    def batches() -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in chain([first], reader) if first is not empty else ():
            columns = with_fields(batch, [column]).columns
            times = _times(columns[at], kind, f"{source}: column '{column}'", rows, source)
            columns[at] = with_zeros(times.cast(pa.int64())).cast(kind)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            rows += len(batch)

    return pa.RecordBatchReader.from_batches(schema, batches())


def with_zeros(numbers: pa.Array) -> pa.Array:
    """Return the numbers with zeros below nulls: a job recognizes rows by a checksum of their memory."""
    is_null = numbers.is_null().to_numpy(zero_copy_only=False) if numbers.null_count else None
    return pa.array(pc.fill_null(numbers, 0).to_numpy(), mask=is_null)


def is_time(schema: pa.Schema, column: str | None) -> bool:
    """Return whether the schema has the column, with a type that readers infer for texts of times."""
    if column not in schema.names:
        return False
    kind = schema.field(column).type
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _is_fine(times: pa.Array) -> bool:
    """Return whether a time has more digits than microseconds have."""
    if _is_text(times.type):
        return bool(pc.any(pc.match_substring_regex(times, IS_FINE)).as_py())
    return times.type == pa.timestamp("ns", times.type.tz) and bool(
        pc.any(pc.not_equal(pc.nanosecond(times), 0)).as_py()
    )


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string())


def _times(texts: pa.Array, kind: pa.DataType, place: str, rows_before: int, path: str) -> pa.Array:
    if not _is_text(texts.type):
        return texts.cast(pa.timestamp(kind.unit, getattr(texts.type, "tz", None))).cast(kind)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    has_zone = pc.match_substring_regex(texts, HAS_ZONE)
    zoned = pc.if_else(has_zone, texts, None)
    plain = pc.if_else(has_zone, None, texts)
    try:
        return pc.coalesce(zoned.cast(kind), plain.cast(pa.timestamp(kind.unit)).cast(kind))
    except pa.ArrowInvalid as problem:
        row, value = _first_odd(texts, kind)
        most = {"us": "microseconds", "ns": "nanoseconds, from 1677 to 2262"}[kind.unit]
        raise SourceError(
            f"{place}, row {rows_before + row}: {shown(value)} is not a time such as '2026-11-20T10:00:00Z', with a "
            f"precision of at most {most}",
            path=path,
        ) from problem


def _first_odd(texts: pa.Array, kind: pa.DataType) -> tuple[int, str]:
    """Return the first row that is not a time, and its text."""
    for row, text in enumerate(texts):
        has_zone = pc.match_substring_regex(text, HAS_ZONE).as_py()
        try:
            text.cast(kind if has_zone else pa.timestamp(kind.unit))
        except pa.ArrowInvalid:
            return row, text.as_py()
    raise AssertionError("all texts are times one by one, but not together")
