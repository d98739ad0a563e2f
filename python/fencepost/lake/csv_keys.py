"""Decides the types of key columns of CSV files: a reader that infers them would make "007" and "7" one producer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv  # type: ignore[import-untyped]

from fencepost.errors import SourceError
from fencepost.inputs import shown
from fencepost.lake.times import with_zeros

INTEGER = r"^(0|-?[1-9][0-9]*)$"
"""An integer that has only one spelling."""
NULLS = pa.array([*csv.ConvertOptions().null_values, ""])
"""Spellings of null in a column of integers."""


def with_keys(
    reader: pa.RecordBatchReader, keys: Sequence[str], source: str, texts: Sequence[str] = ()
) -> pa.RecordBatchReader:
    """Return the stream with the types of these columns, which were read as texts. An empty field is null.

    A column has 64-bit integers if all its values in the first batch are integers in their only spelling, otherwise
    texts. `texts`: columns that are texts in any case. `source`: the name of the file, for messages.

    Raises SourceError (path) for a text in a later batch of a column of integers.
    """
    places = [place for place, name in enumerate(reader.schema.names) if name in keys]
    first = next(iter(reader), pa.RecordBatch.from_pylist([], schema=reader.schema))
    schema = reader.schema
    for place in places:
        if schema.names[place] not in texts and _integers(first.column(place)) is not None:
            schema = schema.set(place, schema.field(place).with_type(pa.int64()))

    def batches() -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in chain([first], reader):
            columns = batch.columns
            for place in places:
                texts, where = columns[place], f"{source}: column '{schema.names[place]}'"
                columns[place] = pc.if_else(pc.equal(texts, ""), None, texts)
                if schema.types[place] == pa.int64():
                    columns[place] = _integers(texts)
                    if columns[place] is None:
                        raise _not_an_integer(texts, rows, where, source)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            rows += len(batch)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _integers(texts: pa.Array) -> pa.Array | None:
    """Return the integers that the texts spell. None if a text is something else."""
    texts = pc.utf8_trim_whitespace(texts)
    texts = pc.if_else(pc.is_in(texts, NULLS), None, texts)
    if not pc.all(pc.match_substring_regex(texts, INTEGER), min_count=0).as_py():
        return None
    try:
        return with_zeros(texts.cast(pa.int64()))
    except pa.ArrowInvalid:
        return None  # more than 64 bits


def _not_an_integer(texts: pa.Array, rows_before: int, where: str, path: str) -> SourceError:
    row = next(row for row in range(len(texts)) if _integers(texts[row : row + 1]) is None)
    return SourceError(
        f"{where}, row {rows_before + row}: {shown(texts[row].as_py())} is not an integer of 64 bits without leading "
        "zeros, but the first rows of the file have such integers. Convert the file to Parquet, with text in this "
        "column",
        path=path,
    )
