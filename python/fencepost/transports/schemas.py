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

    Types with different layouts are equal (text, large text, views and dictionaries of text). A column of nulls matches
    every type, also within lists and structs. Raises BatchError (column, row) for other columns, other types, and a
    null in a non-nullable column; without the row for values within lists and structs.
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
        try:
            columns[field.name] = _conformed(rows[field.name], field, place)
        except pa.ArrowException as error:  # such as a null within a list that takes none
            raise BatchError(
                f"column '{field.name}': does not fit {field.type}, the type in {place}: {error}; {NOTHING}",
                column=field.name,
            ) from error
        fields.append(field)
    return pa.table(columns, schema=pa.schema(fields))


def schema_after(known: pa.Schema | None, rows: pa.Table) -> pa.Schema:
    """Return the schema of a destination after it accepts these rows: the known schema, or the rows'.

    A column of nulls has no type yet, nor have the values of lists that are all empty. The first batch with values
    defines it.
    """
    import pyarrow as pa

    own = [field for field in rows.schema if field.name not in IDENTITY]
    if known is None:
        return pa.schema([pa.field(it.name, plain(it.type), it.nullable) for it in own])
    types = {field.name: plain(field.type) for field in own}
    return pa.schema([it.with_type(_completed(it.type, types.get(it.name, it.type))) for it in known])


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
        if not _accepts(wanted, values.type):
            raise BatchError(
                f"column '{field.name}': is of type {values.type}, but {place} has {wanted}; {NOTHING}",
                column=field.name,
            )
        values = values.cast(wanted)
    return values.cast(field.type)


def _accepts(wanted: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a column of a type takes values of another type."""
    import pyarrow as pa

    if kind == wanted or pa.types.is_null(kind) or _is_layout_of(kind, wanted):
        return True
    pairs = _paired(wanted, kind)
    return bool(pairs) and all(_accepts(field.type, own) for field, own in pairs)


def _completed(known: pa.DataType, own: pa.DataType) -> pa.DataType:
    """Return a type with the parts of another type that it does not have yet: those that were null."""
    import pyarrow as pa

    if pa.types.is_null(known):
        return own
    fields = [field.with_type(_completed(field.type, part)) for field, part in _paired(known, own)]
    if not fields:
        return known
    if pa.types.is_struct(known):
        return pa.struct(fields)
    return pa.list_(fields[0]) if pa.types.is_list(known) else pa.large_list(fields[0])


def _paired(kind: pa.DataType, other: pa.DataType) -> list[tuple[pa.Field, pa.DataType]]:
    """Return each field of a list or struct with its type in the other one; nothing for other or differing types."""
    import pyarrow as pa

    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields, others = list(kind), list(other)
        are_same = [it.name for it in fields] == [it.name for it in others]
        return [(it, own.type) for it, own in zip(fields, others, strict=True)] if are_same else []
    if kind.id == other.id and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return [(kind.value_field, other.value_type)]
    return []


def _is_layout_of(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether both types are text, or both are binary of any width."""
    import pyarrow as pa

    texts: tuple[Any, ...] = (pa.string(), pa.large_string(), pa.string_view())
    bytes_: tuple[Any, ...] = (pa.binary(), pa.large_binary(), pa.binary_view())
    return any(kind in of and other in of for of in (texts, bytes_))


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{it.name} ({it.type})" for it in schema)
