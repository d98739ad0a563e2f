"""The columns that the rows of a place have: given, or those of its first batch. Rows of other types are refused."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from fencepost.errors import BatchError
from fencepost.producer.stamping import IDENTITY

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING = "nothing of this batch was written"


def conform(rows: pa.Table, schema: pa.Schema, place: str) -> pa.Table:
    """Stamped rows with the columns of a schema, behind those of the identity, in its order and of its types.

    Layouts of one type are the same (text, large text, views and dictionaries of text), and a column without any value
    is of every type. Raises BatchError (column, row) for other columns, other types, and a null where the schema says
    not null.
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


def learnt(known: pa.Schema | None, rows: pa.Table) -> pa.Schema:
    """The schema of a place once it has these rows: known, or else theirs.

    A column without any value has no type yet; the first batch with values gives it one.
    """
    import pyarrow as pa

    own = [field for field in rows.schema if field.name not in IDENTITY]
    if known is None:
        return pa.schema([pa.field(it.name, plain(it.type), it.nullable) for it in own])
    types = {field.name: plain(field.type) for field in own}
    return pa.schema([it.with_type(types.get(it.name, it.type)) if pa.types.is_null(it.type) else it for it in known])


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, else the type itself."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def to_text(schema: pa.Schema) -> str:
    """As Arrow's IPC message, in base64."""
    return base64.b64encode(schema.serialize()).decode()


def from_text(text: str) -> pa.Schema:
    """What `to_text` gave. Raises ValueError for anything else."""
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
            f"column '{field.name}', row {row}: null, but {place} takes none; {NOTHING}", column=field.name, row=row
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
    """Whether both are texts, or both bytes of any length."""
    import pyarrow as pa

    texts: tuple[Any, ...] = (pa.string(), pa.large_string(), pa.string_view())
    bytes_: tuple[Any, ...] = (pa.binary(), pa.large_binary(), pa.binary_view())
    return any(kind in of and other in of for of in (texts, bytes_))


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{it.name} ({it.type})" for it in schema)
