"""Rows and texts as applications have them in Python, taken over into Arrow or refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.errors import BatchError

if TYPE_CHECKING:
    import pyarrow as pa


def is_text(value: object) -> bool:
    """Whether it is a text that UTF-8 has: one without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_column(value: object) -> bool:
    """Whether these are the values of a column, and not one value."""
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Iterable) or hasattr(value, "__arrow_c_array__") or hasattr(value, "__arrow_c_stream__")


def shown(value: object) -> str:
    """A value in a message, cut where it is long."""
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}..."


def table_of(columns: Mapping[str, Any], nothing: str) -> pa.Table:
    """Columns as a pyarrow Table. `nothing`: what has not happened, for messages.

    Raises BatchError (column, row) for values that have no Arrow type, or not one type, and columns of other lengths.
    """
    import pyarrow as pa

    try:
        return pa.table(dict(columns))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        for name, values in columns.items():
            _check(name, values, nothing)
        raise BatchError(f"the columns make no table: {error}; {nothing}") from error


def _check(name: str, values: Any, nothing: str) -> None:
    """Raises BatchError if the values make no column by themselves."""
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
                "a text with a lone surrogate, which UTF-8 does not have. Mend it where it is decoded "
                "(errors='replace'), or send bytes"
            )
        raise BatchError(
            f"column '{name}', row {row}: {shown(values[row])}: {problem}; {nothing}", column=name, row=row
        ) from error


def _first_odd(values: Sequence[Any]) -> int:
    """The first row with which the values up to it make no column."""
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
