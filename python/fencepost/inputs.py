"""Converts Python rows and texts of applications to Arrow, and refuses invalid ones with a precise error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from fencepost.errors import BatchError

if TYPE_CHECKING:
    import pyarrow as pa


def is_text(value: object) -> bool:
    """Return whether the value is a str that UTF-8 can encode (no lone surrogates)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_integer(value: object, least: float = -inf, most: float = inf) -> TypeGuard[int]:
    """Return whether the value is an int from `least` to `most`, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_column(value: object) -> bool:
    """Return whether the value is a sequence of column values and not a single value."""
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Iterable) or hasattr(value, "__arrow_c_array__") or hasattr(value, "__arrow_c_stream__")


def shown(value: object) -> str:
    """Return a value as text for a message, shortened if long."""
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}..."


def opened(rows: Any, names: Sequence[str] = ()) -> Any:
    """Return a polars LazyFrame as a DataFrame, a pyarrow Dataset or Scanner as a stream, and other input unchanged.

    `names`: the only columns to read, if all of them exist. A name may be a field of a struct column
    ("payload.device"); then the whole struct is read.
    """
    if is_a(rows, "polars", "LazyFrame"):
        wanted = heads_of(names, rows.collect_schema().names())
        return (rows.select(wanted) if wanted else rows).collect()
    if is_a(rows, "pyarrow.dataset", "Dataset"):
        return rows.scanner(columns=heads_of(names, rows.schema.names) or None).to_reader()
    return rows.to_reader() if is_a(rows, "pyarrow.dataset", "Scanner") else rows


def heads_of(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the columns that hold these columns and fields, or nothing if one does not exist."""
    wanted = dict.fromkeys(name if name in known else name.partition(".")[0] for name in names)
    return list(wanted) if set(wanted) <= set(known) else []


def with_fields(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Add the fields of struct columns that these names select ("payload.device") as columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in dict.fromkeys(names):
        head, _, path = name.partition(".")
        if name in batch.schema.names or not path or head not in batch.schema.names:
            continue
        try:
            steps = path.split(".")
            is_nothing = _is_null_within(batch.schema.field(head).type, steps)
            field = pa.nulls(len(batch)) if is_nothing else pc.struct_field(batch.column(head), steps)
            batch = batch.append_column(name, field)
        except pa.ArrowException as error:
            kind = batch.schema.field(head).type
            raise BatchError(f"column '{name}': '{head}' has no such field, its type is {kind}", column=name) from error
    return batch


def _is_null_within(kind: pa.DataType, path: Sequence[str]) -> bool:
    """Return whether a struct on the way to a field has no type, because all its values are null."""
    import pyarrow as pa

    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            break
        kind = kind.field(name).type
    return bool(pa.types.is_null(kind))


def without_runs(rows: Any, names: Sequence[str]) -> Any:
    """Return a pyarrow Table or RecordBatch without run ends in the named columns: Arrow can compute little on them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for at, field in enumerate(rows.schema):
        if field.name in names and pa.types.is_run_end_encoded(field.type):
            rows = rows.set_column(at, field.name, pc.run_end_decode(rows.column(at)))
    return rows


def fields_read(rows: Any, names: Sequence[str], known: Sequence[str]) -> Any:
    """Return the identity columns if some are fields of struct columns, otherwise the rows unchanged."""
    if set(names) <= set(known) or not (heads := heads_of(names, known)):
        return rows
    import pyarrow as pa

    return with_fields(pa.table(narrowed(rows, heads)), names).select(list(dict.fromkeys(names)))


def narrowed(rows: Any, names: Sequence[str] | None) -> Any:
    """Return a table or a DataFrame with these columns only, if it has each of them once, otherwise the rows unchanged.

    None: all columns, with types that the native code can import, if rows are of polars.

    Other columns may have types that cannot be converted: pandas has columns of any objects, and the native code knows
    neither 128-bit integers, nor some structs in structs of slices. It cannot import columns of nulls from polars.
    """
    if is_a(rows, "polars", "DataFrame"):
        return _narrowed_polars(rows, rows.columns if names is None else names)
    is_arrow = is_a(rows, "pyarrow", "Table") or is_a(rows, "pyarrow", "RecordBatch")
    if names is None or not (is_arrow or is_a(rows, "pandas", "DataFrame")):
        return rows
    known = rows.schema.names if is_arrow else list(rows.columns)
    if any(known.count(name) != 1 for name in names):
        return rows  # an error names the columns that there are; some columns are optional, or the index of pandas
    wanted = [name for name in known if name in names]
    return rows.select(wanted) if is_arrow else rows[wanted]


def _narrowed_polars(frame: Any, names: Sequence[str]) -> Any:
    """Return the columns of these names. If one is missing, return all columns that Arrow can represent."""
    is_whole = set(names) <= set(frame.columns)
    kinds = frame.schema.items()
    selected = frame.select([it for it, kind in kinds if it in names or not (is_whole or _is_of_polars_only(kind))])
    check_polars(selected)
    return selected.to_arrow() if "Null" in map(str, selected.dtypes) else selected


def check_polars(frame: Any, nothing: str = "nothing of this call was judged") -> None:
    """Raise BatchError if a column of polars has a type that Arrow does not have. `nothing`: as in `rows_of`."""
    for name, kind in frame.schema.items():
        if _is_of_polars_only(kind):
            raise BatchError(f"column '{name}': is of type {kind}, which Arrow does not have; {nothing}", column=name)


def _is_of_polars_only(kind: Any) -> bool:
    parts = [getattr(kind, "inner", None), *(it.dtype for it in getattr(kind, "fields", ()))]
    # An Object would become the address of the object.
    return str(kind) in ("Object", "Int128", "UInt128") or any(_is_of_polars_only(it) for it in parts if it is not None)


def is_a(rows: object, package: str, name: str) -> bool:
    """Return whether rows are an instance of a class, without importing its package."""
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(rows, kind)


def frame_package(rows: object) -> str | None:
    """Return the package of a DataFrame: "polars" or "pandas"; None for other input."""
    return next((package for package in ("polars", "pandas") if is_a(rows, package, "DataFrame")), None)


def rows_of(rows: Any, nothing: str) -> pa.Table:
    """Convert tabular data or a list of dicts to a pyarrow Table. A key that a dict lacks is null.

    `nothing`: text for messages that says which effect did not take place.

    Raises TypeError for other input. Raises BatchError (column, row) for values that do not form a column, and for an
    event without columns.
    """
    return _selectable(_as_table(rows, nothing))


def _as_table(rows: Any, nothing: str) -> pa.Table:
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, Mapping):
        for name, values in rows.items():
            if not is_column(values):
                raise TypeError(
                    f"'{name}': {shown(values)} is not an array: a mapping must map column names to arrays. Pass a "
                    "single event as a list, [event]"
                )
        return table_of(rows, nothing)
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        return _of_events(rows, nothing)
    if is_a(rows, "pandas", "DataFrame"):
        return _of_pandas(rows, nothing)
    if is_a(rows, "polars", "DataFrame"):
        import polars as pl

        check_polars(rows, nothing)
        # As texts, not views, also in dictionaries and lists.
        return rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if hasattr(rows, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(rows)])
    raise not_tabular(rows)


def _selectable(table: pa.Table) -> pa.Table:
    """Return texts and bytes without views, and values without run ends: Arrow cannot select rows of them."""
    import pyarrow as pa

    views = (pa.string_view(), pa.binary_view())
    if not any(kind.num_fields or kind in views for kind in table.schema.types):
        return table  # the usual case, without a look into types
    table = without_runs(table, table.column_names)
    fields = [field.with_type(_without_views(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type with plain texts and bytes in place of views, also within lists, structs and maps."""
    import pyarrow as pa

    if kind == pa.string_view():
        return pa.large_string()
    if kind == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([it.with_type(_without_views(it.type)) for it in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type), kind.keys_sorted)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_field.with_type(_without_views(kind.value_type))
        return pa.list_(item) if pa.types.is_list(kind) else pa.large_list(item)
    return kind


def _of_events(events: Sequence[Mapping[str, Any]], nothing: str) -> pa.Table:
    """Build a table with the union of all keys. `Table.from_pylist` would take the first event's keys only."""
    empty = next((row for row, it in enumerate(events) if not it), None)
    if empty is not None:
        raise BatchError(f"row {empty}: an event without columns; {nothing}", row=empty)
    names = dict.fromkeys(chain.from_iterable(events))
    return table_of({name: [it.get(name) for it in events] for name in names}, nothing)


def _of_pandas(frame: Any, nothing: str) -> pa.Table:
    """Convert a DataFrame. An unnamed index is not a column: rows that were selected from a larger frame have one."""
    import pyarrow as pa

    names = list(frame.columns)
    try:
        table = pa.Table.from_pandas(frame)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        _refuse({str(name): frame[name] for name in names if names.count(name) == 1}, error, nothing)
    return table.select([it for it in table.column_names if it in names or not it.startswith("__index_level_")])


def not_tabular(rows: object) -> TypeError:
    """Return the error for input that is not tabular."""
    return TypeError(
        f"{type(rows).__name__} is not tabular: pass Arrow (pyarrow, polars, pandas, duckdb), a mapping of column "
        "names to arrays, or a list of dicts"
    )


def table_of(columns: Mapping[str, Any], nothing: str) -> pa.Table:
    """Build a pyarrow Table from columns. `nothing`: as in `rows_of`.

    Raises BatchError (column, row) for values without a common Arrow type, and for columns of different lengths.
    """
    import pyarrow as pa

    try:
        return pa.table(dict(columns))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        _refuse(columns, error, nothing)


def _refuse(columns: Mapping[str, Any], error: Exception, nothing: str) -> NoReturn:
    """Raise BatchError for columns that do not form a table (column, row if one of them does not form a column)."""
    for name, values in columns.items():
        _check(name, values, nothing)
    raise BatchError(f"the columns do not form a table: {error}; {nothing}") from error


def _check(name: str, values: Any, nothing: str) -> None:
    """Raise BatchError if the values do not form a column."""
    import pyarrow as pa

    try:
        pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        if not isinstance(values, Sequence):
            raise BatchError(f"column '{name}': {error}; {nothing}", column=name) from error
        row = _first_odd(values)
        problem = str(error)
        if isinstance(error, UnicodeEncodeError):
            problem = (
                "a text with a lone surrogate, which UTF-8 does not have. Fix the decoding (errors='replace'), "
                "or send bytes"
            )
        raise BatchError(
            f"column '{name}', row {row}: {shown(values[row])}: {problem}; {nothing}", column=name, row=row
        ) from error


def _first_odd(values: Sequence[Any]) -> int:
    """Return the first row that does not form a column together with the values before it."""
    import pyarrow as pa

    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            pa.array(values[: middle + 1])
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            high = middle
        else:
            low = middle + 1
    return low
