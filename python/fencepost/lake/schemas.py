"""The columns of a sink's files: equal in all of them, or readable with one schema.

Compares the data types of the Parquet files, but not nullability and not the order of columns. Types are widened if a
wider type holds every value, as in Delta and Iceberg: integers, floats, decimals of the same scale, and a column of
nulls to any type.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import BatchError
from fencepost.lake.scan import Scanned

SchemaRule = Literal["strict", "merge"]

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def check_schemas(
    scanned: Iterable[Scanned],
    known: pa.Schema | None,
    rule: SchemaRule,
    columns_of: Callable[[pa.Schema], pa.Schema],
    *,
    quarantines_misfits: bool,
) -> tuple[pa.Schema | None, dict[str, str]]:
    """Return (the sink's schema from now on, full path to reason of the files that do not match).

    `known`: the schema so far, None before the first file. `columns_of`: see `Sink`. Raises BatchError (column) for the
    first file that does not match, unless such files are quarantined. Raises it in any case if there is no schema yet,
    because either of two schemas may be the right one.
    """
    schema, where, misfits = known, "the sink has", dict[str, str]()
    for group, number in ((it, number) for it in scanned for number in range(len(it.schemas))):
        try:
            found = columns_of(group.schemas[number])
            problem = _problem(schema, found, rule, where)
        except BatchError as error:
            problem = str(error.column), error.message
        if problem is None:
            if schema is None:
                where = f"{_paths(group, number)[0]} has"
            schema = found if schema is None else merged(schema, found)
            continue
        column, reason = problem
        paths = _paths(group, number)
        if known is None or not quarantines_misfits:
            raise BatchError(f"{paths[0]}: column '{column}': {reason}", column=column)
        misfits |= {path: f"{path}: column '{column}': {reason}" for path in paths}
    return schema, misfits


def merged(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Merge two schemas: the columns of `first` before the others, with the wider type of each.

    Raises BatchError (column) if no type holds the values of both.
    """
    fields = {field.name: field.type for field in first}
    for field in second:
        kind = _wider(fields.get(field.name, field.type), field.type)
        if kind is None:
            raise BatchError(
                f"column '{field.name}': {fields[field.name]} in some files, {field.type} in others; readers cannot "
                "combine them",
                column=field.name,
            )
        fields[field.name] = kind
    return pa.schema(list(fields.items()))


def to_text(schema: pa.Schema) -> str:
    """Encode a schema for a decision: Arrow's IPC message in base64."""
    return base64.b64encode(schema.serialize()).decode()


def from_text(text: str) -> pa.Schema:
    """Decode the result of `to_text`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _paths(group: Scanned, schema: int) -> list[str]:
    """Return the full paths of the files with one of a task's schemas."""
    return [group.files.full_path(place) for place, it in enumerate(group.schema) if it == schema]


def _problem(known: pa.Schema | None, found: pa.Schema, rule: SchemaRule, where: str) -> tuple[str, str] | None:
    """Return (column, why a file with these columns does not match the others), or None."""
    twice = next((name for name, count in Counter(found.names).items() if count > 1), None)
    if twice is not None:
        return twice, "occurs more than once in the file"
    if known is None:
        return None
    others = {field.name: field.type for field in known}
    for field in found:
        other = others.pop(field.name, None)
        wider = None if other is None else _wider(other, field.type)
        if other is not None and wider is None:
            return field.name, f"{field.type}; {where} {other}. Another type needs another column, or another sink"
        if other != field.type and rule == "strict":
            reason = f"{field.type}; {where} {'no such column' if other is None else other}"
            return field.name, f"{reason}. schema='merge' takes both"
    if others and rule == "strict":
        name, kind = next(iter(others.items()))
        return name, f"missing; {where} {kind}. schema='merge' takes both"
    return None


def _wider(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both, or None."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if pa.types.is_integer(first) and pa.types.is_integer(second):
        if pa.types.is_signed_integer(first) == pa.types.is_signed_integer(second):
            return max(first, second, key=lambda it: it.bit_width)
        bits = (it.bit_width if pa.types.is_signed_integer(it) else 2 * it.bit_width for it in (first, second))
        return _SIGNED.get(max(bits))
    if pa.types.is_floating(first) and pa.types.is_floating(second):
        return max(first, second, key=lambda it: it.bit_width)
    if pa.types.is_decimal(first) and pa.types.is_decimal(second) and first.scale == second.scale:
        return max(first, second, key=lambda it: (it.precision, it.bit_width))
    return None
