"""The columns of a destination: configured, or those of the first batch. Rows of other types are refused."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from fencepost.errors import BatchError
from fencepost.producer.stamping import IDENTITY

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING = "nothing of this batch was written"


def conform(rows: pa.Table, schema: pa.Schema, place: str) -> pa.Table:
    """Return stamped rows with a schema's columns after the identity, in its order and types.

    Types with different layouts are equal (text, large text, views and dictionaries of text), and a column of nulls
    matches every type. Raises BatchError (column, row) for other columns, other types, and a null in a non-nullable
    column.
    """
    import pyarrow as pa

    for name in rows.column_names:
        if name not in IDENTITY and name not in schema.names:
            raise BatchError(
                f"column '{name}': {place} has no such column; it has {_listed(schema)}; {NOTHING}", column=name
            )
    columns = {name: rows[name] for name in IDENTITY}
    fields = [rows.schema.field(name) for name in IDENTITY]
    for field in schema:
        if field.name not in rows.column_names:
            have = ", ".join(name for name in rows.column_names if name not in IDENTITY)
            raise BatchError(
                f"column '{field.name}': missing; {place} has {_listed(schema)}, the rows have {have}; {NOTHING}",
                column=field.name,
            )
        columns[field.name] = _conformed(rows[field.name], field, place)
        fields.append(field)
    return pa.table(columns, schema=pa.schema(fields))


def schema_after(known: pa.Schema | None, rows: pa.Table) -> pa.Schema:
    """Return the schema of a destination after it accepts these rows: the known schema, or the rows'.

    A column of nulls has no type yet. The first batch with values defines it.
    """
    import pyarrow as pa

    own = [field for field in rows.schema if field.name not in IDENTITY]
    if known is None:
        return pa.schema([pa.field(it.name, plain(it.type), it.nullable) for it in own])
    types = {field.name: plain(field.type) for field in own}
    return pa.schema([it.with_type(types.get(it.name, it.type)) if pa.types.is_null(it.type) else it for it in known])


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary type, otherwise the type itself."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def to_text(schema: pa.Schema) -> str:
    """Encode a schema as Arrow IPC message in base64."""
    return base64.b64encode(schema.serialize()).decode()


def from_text(text: str) -> pa.Schema:
    """Decode the result of `to_text`. Raises ValueError for other text."""
    import pyarrow as pa

    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"schema: {error}") from error


def _conformed(values: pa.ChunkedArray, field: pa.Field, place: str) -> pa.ChunkedArray:
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not field.nullable and values.null_count:
        row = values.is_null().index(True).as_py()
        raise BatchError(
            f"column '{field.name}', row {row}: null, but NOT NULL in {place}; {NOTHING}", column=field.name, row=row
        )
    wanted = plain(field.type)
    if values.type != wanted:
        if not pa.types.is_null(values.type) and not _is_layout_of(values.type, wanted):
            raise BatchError(
                f"column '{field.name}': is of type {values.type}, but {place} has {wanted}; {NOTHING}",
                column=field.name,
            )
        values = values.cast(wanted)
    return values.cast(field.type)


def _is_layout_of(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether both types are text, or both are binary of any width."""
    import pyarrow as pa

    texts: tuple[Any, ...] = (pa.string(), pa.large_string(), pa.string_view())
    bytes_: tuple[Any, ...] = (pa.binary(), pa.large_binary(), pa.binary_view())
    return any(kind in of and other in of for of in (texts, bytes_))


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{it.name} ({it.type})" for it in schema)
