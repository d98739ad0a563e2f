"""Computes checksums of the content of rows: equal for equal rows, independent of encoding.

A checksum is 64 bits over the row's named values. Equality by type:

| values | equal if |
|---|---|
| nulls, missing columns | always; a column that was added later does not change older rows |
| integers of any width, signed or not | they are the same number |
| floats of any width | they are the same number; -0.0 equals 0.0, and all NaNs are equal |
| decimals of any precision and scale | they are the same number |
| booleans, dates, times, durations | they are the same value, in any unit |
| timestamps | they are the same instant, in any unit; the name of the time zone is ignored |
| texts | they have the same UTF-8 bytes; dictionaries, views and large offsets are equal too |
| binary of any kind | they have the same bytes |
| lists of any kind | they have equal values in the same order |
| structs | fields of the same name are equal, in any order |
| maps | they have the same entries, in any order |

Values from different lines of this table are not equal. The order of columns is ignored. Two different rows collide
with a probability of 2^-64. The checksum does not protect against forgery.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fencepost.errors import BatchError, PolicyError

Hashes = npt.NDArray[np.uint64]

BYTES_TOGETHER = 1 << 22
"""Bytes of text to hash at a time; each needs 16 bytes of memory."""


def mixed(hashes: Hashes, values: npt.NDArray[Any]) -> Hashes:
    """Mix a value into each hash. The finalizer of splitmix64: every input bit affects every output bit."""
    mixed = (hashes + np.uint64(0x9E3779B97F4A7C15)) ^ (values.view(np.uint64) * np.uint64(0xFF51AFD7ED558CCD))
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def columns_to_compare(compare_content: bool | Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns that the argument `compare_content` names.

    Returns () for all columns outside the identity, None for no comparison. Raises PolicyError for other values.
    """
    if isinstance(compare_content, bool):
        return () if compare_content else None
    names = (compare_content,) if isinstance(compare_content, str) else tuple(compare_content)
    if not names or not all(isinstance(name, str) for name in names):
        raise PolicyError(f"compare_content={compare_content!r}: expected True, or the names of columns")
    return names


def content_columns(names: Iterable[str], identity: Iterable[str], wanted: tuple[str, ...]) -> list[str]:
    """Return the columns to compare: `wanted`, or all columns outside the identity if that is ().

    Raises BatchError for a wanted column that does not exist.
    """
    have = list(names)
    for name in wanted:
        if name not in have:
            raise BatchError(
                f"column '{name}': missing, but compare_content names it; the columns are {', '.join(have)}",
                column=name,
            )
    known = set(identity)
    return list(wanted) or [name for name in have if name not in known]


def checksums(rows: pa.Table, names: Iterable[str]) -> Hashes:
    """Return the checksum (uint64) of each row over the named columns. Raises BatchError for an unsupported type."""
    total = np.zeros(len(rows), np.uint64)
    for name in names:
        label = _label(name)
        first = 0
        for chunk in rows[name].chunks:
            try:
                found = _labelled(label, chunk)
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
                raise BatchError(
                    (
                        f"column '{name}': {chunk.type} has no checksum, so its content cannot be compared ({error}); "
                        "pass the columns to compare"
                    ),
                    column=name,
                ) from error
            total[first : first + len(chunk)] += found
            first += len(chunk)
    return mixed(total, _ONE)


def _label(name: str) -> Hashes:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.uint64)


def _labelled(label: Hashes, values: pa.Array) -> Hashes:
    """Return what a column or field adds to the hash of its row: 0 if the value is null."""
    hashes = mixed(_values(values), label)
    hashes[~_is_valid(values)] = 0
    return hashes


def _is_valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), bool)


def _values(values: pa.Array) -> Hashes:
    """Return a hash of each value; undefined if the value is null."""
    values = unpacked(values)
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.uint64)
    for is_one, hashed in _KINDS:
        if is_one(kind):
            return hashed(values)
    raise pa.ArrowNotImplementedError(f"no equality is known for {kind}")


def unpacked(values: pa.Array) -> pa.Array:
    """Return the values without extension types, dictionaries and run-end encoding."""
    while True:
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        elif pa.types.is_dictionary(values.type):
            words = values.dictionary
            if words.type in (pa.string_view(), pa.binary_view()):  # polars' categories; Arrow cannot decode views
                words = words.cast(pa.string() if words.type == pa.string_view() else pa.binary())
                values = pa.DictionaryArray.from_arrays(values.indices, words)
            values = values.dictionary_decode()
        elif pa.types.is_run_end_encoded(values.type):
            values = pc.run_end_decode(values)
        else:
            return values


def _of(kind: int, numbers: npt.NDArray[Any]) -> Hashes:
    return mixed(np.full(len(numbers), kind, np.uint64), np.ascontiguousarray(numbers).view(np.uint64))


def _numbers(values: pa.Array, kind: pa.DataType) -> npt.NDArray[Any]:
    return np.asarray(values.cast(kind).fill_null(0).to_numpy(zero_copy_only=False))


def _booleans(values: pa.Array) -> Hashes:
    return _of(1, _numbers(values.cast(pa.uint8()), pa.int64()))


def _integers(values: pa.Array) -> Hashes:
    if not pa.types.is_uint64(values.type):
        return _of(2, _numbers(values, pa.int64()))
    numbers = _numbers(values, pa.uint64())
    return np.where(numbers >> np.uint64(63), _of(3, numbers), _of(2, numbers))


def _floats(values: pa.Array) -> Hashes:
    numbers = np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.float64) + 0.0  # -0.0 is 0.0
    numbers[np.isnan(numbers)] = np.nan
    return _of(4, numbers)


def _decimals(values: pa.Array) -> Hashes:
    wide = values.cast(pa.decimal256(76, 38))
    words = np.frombuffer(wide.buffers()[1], np.uint64).reshape(-1, 4)[wide.offset : wide.offset + len(wide)]
    hashes = np.full(len(wide), 5, np.uint64)
    for place in range(4):
        hashes = mixed(hashes, np.ascontiguousarray(words[:, place]))
    return hashes


def _dates(values: pa.Array) -> Hashes:
    return _of(6, _numbers(values.cast(pa.date32()).cast(pa.int32()), pa.int64()))


def _ticks(kind: int, values: pa.Array) -> Hashes:
    """Split into whole seconds and nanoseconds, so that no unit overflows."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[values.type.unit]
    ticks = _numbers(values.cast(pa.int32()) if values.type.bit_width == 32 else values, pa.int64())
    return mixed(_of(kind, ticks // per_second), ticks % per_second * (10**9 // per_second))


def _bytes(kind: int, values: pa.Array) -> Hashes:
    values = values.cast(pa.large_binary()).fill_null(b"")
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    sums = np.zeros(len(values), np.uint64)
    powers = _powers(int(lengths.max()) if len(lengths) else 0)
    first = 0
    while first < len(values):
        end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + BYTES_TOGETHER, side="right")) - 1)
        sums[first:end] = _sums(_LETTERS[data[offsets[first] : offsets[end]]], lengths[first:end], powers)
        first = end
    return mixed(_of(kind, sums), lengths)


def _sums(values: Hashes, lengths: npt.NDArray[np.int64], powers: Hashes) -> Hashes:
    """Return the sum of each list's values times powers of a constant, so that the order counts."""
    starts = np.cumsum(lengths) - lengths
    within = np.arange(len(values)) - np.repeat(starts, lengths)
    sums = np.zeros(len(lengths), np.uint64)
    has_any = lengths > 0
    if has_any.any():
        sums[has_any] = np.add.reduceat(values * powers[within], starts[has_any])
    return sums


def _powers(count: int) -> Hashes:
    factors = np.full(max(count, 1), 0xD6E8FEB86659FD93, np.uint64)
    factors[0] = 1
    powers: Hashes = np.multiply.accumulate(factors)
    return powers


def _lists(values: pa.Array) -> Hashes:
    kind = pa.large_list(values.type.value_type)
    is_view = pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type)
    # Arrow's cast of list views gives wrong offsets if there are nulls.
    values = pa.array(values.to_pylist(), kind) if is_view else values.cast(kind)
    items = values.flatten()
    lengths = np.asarray(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
    hashes = _labelled(_ONE, items)
    return mixed(_of(8, _sums(hashes, lengths, _powers(int(lengths.max()) if len(lengths) else 0))), lengths)


def _structs(values: pa.Array) -> Hashes:
    total = np.zeros(len(values), np.uint64)
    for place in range(values.type.num_fields):
        total += _labelled(_label(values.type.field(place).name), values.field(place))
    return _of(9, total)


def _maps(values: pa.Array) -> Hashes:
    """Hash entries independent of their order. Entries under null maps are excluded."""
    as_list = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    entries = as_list.flatten()
    lengths = np.asarray(pc.list_value_length(as_list).fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
    hashes = _labelled(_ONE, entries)
    return mixed(_of(10, _sums(hashes, lengths, np.ones(int(lengths.max(initial=1)), np.uint64))), lengths)


_ONE = np.ones(1, np.uint64)
_LETTERS = mixed(np.arange(256, dtype=np.uint64), _ONE)


def _is_list(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    views = (pa.types.is_list_view, pa.types.is_large_list_view)
    return any(is_one(kind) for is_one in (*kinds, *views))


def _is_text(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_binary(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(is_one(kind) for is_one in kinds)


_KINDS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Hashes]]] = [
    (pa.types.is_boolean, _booleans),
    (pa.types.is_integer, _integers),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_date, _dates),
    (pa.types.is_time, lambda values: _ticks(12, values)),
    (pa.types.is_timestamp, lambda values: _ticks(13, values)),
    (pa.types.is_duration, lambda values: _ticks(14, values)),
    (_is_text, lambda values: _bytes(15, values)),
    (_is_binary, lambda values: _bytes(16, values)),
    (pa.types.is_map, _maps),
    (_is_list, _lists),
    (pa.types.is_struct, _structs),
]
