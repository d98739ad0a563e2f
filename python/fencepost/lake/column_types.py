"""The types of the columns that identify and order rows: equal in all files of a run; those of keys, in all runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import BatchError
from fencepost.lake.scan import Exchange
from fencepost.policy import Columns

Paths = Callable[[Exchange], list[str]]
"""Returns the full paths of the files in an exchange, for messages."""


def check_types(
    exchanges: Sequence[Exchange],
    paths_of: Paths,
    columns: Columns,
    known: Mapping[str, str],
    order_by: Sequence[str],
    *,
    quarantines_misfits: bool,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (types of the key parts from now on, full path to reason of the files that do not match).

    `known`: the types so far (`Decision.key_types`). The width of integers and texts does not matter. Raises BatchError
    for the first file that does not match, unless such files are quarantined. Raises it in any case if no file was read
    before, because either type may be the right one. Raises BatchError for an `order_by` column that cannot be sorted.
    """
    misfits: dict[str, str] = {}
    expected = dict(known)
    first: dict[str, Exchange] = {}  # the exchange that defines a column's type if the state does not
    for exchange in exchanges:
        misfits_here = (it for it in exchange.schema if expected.get(it.name) not in (None, type_name(it.type)))
        misfit = next(misfits_here, None)
        if misfit is not None:
            kind = expected[misfit.name]
            if misfit.name in first:
                reason = f"in {paths_of(first[misfit.name])[0]} it is {kind}. All files need the same type"
            else:
                reason = (
                    f"the first rows of this state have the type {kind} in this column, and another type needs its own "
                    "state"
                )
            problem = f"column '{misfit.name}': is of type {type_name(misfit.type)}; {reason}"
            paths = paths_of(exchange)
            if not (known and quarantines_misfits):
                raise BatchError(f"{paths[0]}: {problem}", column=misfit.name)
            misfits |= {path: f"{path}: {problem}" for path in paths}
            continue
        for field in exchange.schema:
            if field.name in order_by and not _has_order(field.type):
                text = f"column '{field.name}': is of type {field.type}, which cannot be sorted by order_by"
                raise BatchError(f"{paths_of(exchange)[0]}: {text}", column=field.name)
            if field.name not in expected:
                expected[field.name], first[field.name] = type_name(field.type), exchange
    return {**known, **{name: expected[name] for name in columns.keys if name in expected}}, misfits


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type as part of a key. It ignores the width of integers and texts."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    return str(kind)


def _has_order(kind: pa.DataType) -> bool:
    """Return whether Arrow can sort by the type."""
    return not (pa.types.is_nested(kind) or pa.types.is_float16(kind) or pa.types.is_null(kind))
