"""Assigns rows to partitions and adds identity columns. Needs pyarrow and NumPy.

A key maps to the same partition as in Kafka's client: murmur2 of the key's bytes, without its sign, modulo the number
of partitions (`BuiltInPartitioner.partitionForKey`, `Utils.murmur2`). The bytes are those of Kafka's serializers: text
as UTF-8, bytes unchanged, int16, int32 and int64 big-endian. Other clients may use other defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fencepost.errors import BatchError, PolicyError
from fencepost.inputs import is_a, is_integer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

IDENTITY = ("pid", "epoch", "partition", "seq")
"""The identity columns: int64, int16, int32, int32 (int64 for a position of the source)."""

HASHED_AT_ONCE = 1 << 16
"""Number of keys to hash at a time, so that the hashes stay in the processor's cache."""

_SEQ_MASK = 2**31 - 1
_SEED, _M = 0x9747B28C, 0x5BD1E995
_KEY_TYPES = "expected text, binary, int16, int32 or int64, the types of Kafka's serializers"


class Router:
    """Splits rows into partitions and keeps their order within each.

    Args:
        key: The column whose murmur2 hash selects the partition.
        partition_by: The column that contains the partition. Rows without a key (null, or no key column) stay together:
            each call's rows go to the next partition.
        position: The column of cursor mode, which requires `key` or `partition_by`: in every call, a row must go to the
            partition that knows its position.
    """

    def __init__(
        self,
        partitions: int,
        *,
        key: str | None = None,
        partition_by: str | None = None,
        position: str | None = None,
    ) -> None:
        if not is_integer(partitions, 1, 2**31 - 1):
            raise PolicyError(f"partitions={partitions!r}: expected 1 to {2**31 - 1}")
        if key is not None and partition_by is not None:
            raise PolicyError(
                f"key={key!r} and partition_by={partition_by!r}: each of them determines the partition of a row, so "
                "pass only one"
            )
        if position is not None and partitions > 1 and key is None and partition_by is None:
            raise PolicyError(
                f"position={position!r} with {partitions} partitions, but neither key nor partition_by: a row that "
                "is read again may go to another partition, which does not recognize it. Pass one of them, or use "
                "one partition"
            )
        self.partitions, self.key, self.partition_by = partitions, key, partition_by
        self._must_have_keys = position is not None and partitions > 1
        self._sticky = 0

    def deal(self, table: pa.Table) -> list[tuple[int, pa.Table]]:
        """Return (partition, rows) for each partition with rows. Raises BatchError (column, row)."""
        import numpy as np

        self._check(table)
        if not table.num_rows:
            return []
        chosen = self._choose(table)
        if isinstance(chosen, int):
            return [(chosen, table)]
        counts = np.bincount(chosen, minlength=1)
        used = np.flatnonzero(counts)
        if len(used) == 1:
            return [(int(used[0]), table)]
        # NumPy sorts 16-bit integers by counting, fourteen times as fast.
        small = chosen.astype(np.uint16) if self.partitions <= 2**16 else chosen
        ordered = table.take(np.argsort(small, kind="stable"))
        ends = np.cumsum(counts[used])
        starts = ends - counts[used]
        return [
            (int(number), ordered.slice(start, end - start))
            for number, start, end in zip(used, starts, ends, strict=True)
        ]

    def _check(self, table: pa.Table) -> None:
        names = table.column_names
        if len(set(names)) < len(names):  # stamped rows would have the last of these columns only
            twice = next(name for name in names if names.count(name) > 1)
            raise BatchError(f"column '{twice}': occurs more than once; the rows have {', '.join(names)}", column=twice)
        for name in (self.key, self.partition_by):
            if name is not None and names and name not in names:
                raise BatchError(f"column '{name}': missing; the rows have {', '.join(names)}", column=name)
        taken = [name for name in IDENTITY if name in names and not name == self.partition_by == "partition"]
        if taken:
            raise BatchError(
                f"column '{taken[0]}': the producer writes {', '.join(IDENTITY)} itself; rename your column",
                column=taken[0],
            )

    def _choose(self, table: pa.Table) -> int | np.ndarray[Any, Any]:
        """Return one partition for all rows, or one per row."""
        import pyarrow as pa

        if self.partition_by is not None:
            return self._explicit_partitions(table)
        sticky = self._sticky
        if self._must_have_keys and self.key is not None:
            _check_keys(table[self.key], self.key)
        if self.key is None or table[self.key].null_count:
            self._sticky = (sticky + 1) % self.partitions
        if self.key is None or self.partitions == 1 or pa.types.is_null(table[self.key].type):
            return sticky
        return self._hashed(table, sticky)

    def _explicit_partitions(self, table: pa.Table) -> np.ndarray[Any, Any]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        name = self.partition_by
        assert name is not None
        column = table[name]
        if not pa.types.is_integer(column.type):
            raise BatchError(f"column '{name}': {column.type}, but a partition is an integer", column=name)
        wrong = pc.less(column, 0)
        if _is_representable(self.partitions, column.type):  # otherwise every value fits
            wrong = pc.or_(wrong, pc.greater_equal(column, pa.scalar(self.partitions, column.type)))
        first = pc.index(pc.fill_null(wrong, True), True).as_py()
        if first >= 0:
            found = column[first].as_py()
            raise BatchError(
                f"column '{name}', row {first}: {'null' if found is None else found}, but the partitions are 0 to "
                f"{self.partitions - 1}",
                column=name, row=first,
            )  # fmt: skip
        return np.asarray(column.combine_chunks().cast(pa.int64()))

    def _hashed(self, table: pa.Table, sticky: int) -> np.ndarray[Any, Any]:
        import numpy as np
        import pyarrow as pa

        assert self.key is not None
        parts = []
        step = HASHED_AT_ONCE
        pieces = (it.slice(at, step) for it in table[self.key].chunks for at in range(0, len(it), step))
        for chunk in pieces:
            if pa.types.is_dictionary(chunk.type):
                own, index = chunk.dictionary, chunk.indices
                # The dictionary may contain null, too.
                of_values = np.where(np.asarray(own.is_null()), sticky, self._partitions_of(own))
                part = of_values[np.asarray(index.fill_null(0))] if len(own) else np.full(len(chunk), sticky)
            else:
                part = self._partitions_of(chunk)
            if chunk.null_count:
                part = np.where(np.asarray(chunk.is_null()), sticky, part)
            parts.append(part)
        return np.concatenate(parts)

    def _partitions_of(self, keys: pa.Array) -> np.ndarray[Any, Any]:
        import numpy as np

        assert self.key is not None
        return (murmur2(keys, self.key) & np.uint32(0x7FFFFFFF)).astype(np.int64) % self.partitions


def _check_keys(column: pa.ChunkedArray, name: str) -> None:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)  # the dictionary may contain null, too
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise BatchError(
            f"column '{name}', row {row}: null, but cursor mode with several partitions needs a key in every row, "
            "so that a repeated row goes to the same partition",
            column=name,
            row=row,
        )


def _is_representable(number: int, kind: pa.DataType) -> bool:
    """Return whether the number fits into the Arrow integer type."""
    return bool(number < 2 ** (kind.bit_width - (0 if str(kind).startswith("u") else 1)))


def murmur2(keys: pa.Array, column: str = "key") -> np.ndarray[Any, Any]:
    """Return the hash (uint32) of each key; undefined for nulls. Raises BatchError (column) for other key types."""
    import numpy as np

    data, starts, lengths = _bytes_of(keys, column)
    m, seed = np.uint32(_M), np.uint32(_SEED)
    found: np.ndarray[Any, Any] = seed ^ lengths.astype(np.uint32)
    whole = lengths // 4
    left = np.arange(len(lengths))
    for word in range(int(whole.max(initial=0))):
        left = left[whole[left] > word]  # keep the keys that have this many words
        k = _word(data, starts[left] + 4 * word) * m
        k ^= k >> np.uint32(24)
        found[left] = (found[left] * m) ^ (k * m)
    for behind in (2, 1, 0):
        left = np.flatnonzero(lengths % 4 > behind)
        last = data[starts[left] + 4 * whole[left] + behind].astype(np.uint32)
        found[left] ^= last << np.uint32(8 * behind)
    left = np.flatnonzero(lengths % 4)
    found[left] *= m
    found ^= found >> np.uint32(13)
    found *= m
    found ^= found >> np.uint32(15)
    return found


def _word(data: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Read four bytes, little-endian."""
    import numpy as np

    found: np.ndarray[Any, Any] = data[at].astype(np.uint32)
    for byte in (1, 2, 3):
        found |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return found


def _bytes_of(keys: pa.Array, column: str) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the bytes of all keys, and the start and length of each."""
    import numpy as np
    import pyarrow as pa

    kind, count = keys.type, len(keys)
    if kind in (pa.int16(), pa.int32(), pa.int64()):
        width = kind.bit_width // 8
        values = np.asarray(keys.fill_null(0)).astype(f">i{width}")
        return values.view(np.uint8), np.arange(count) * width, np.full(count, width)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        data = np.frombuffer(keys.buffers()[1], np.uint8) if count else np.zeros(0, np.uint8)
        return data, (np.arange(count) + keys.offset) * width, np.full(count, width)
    if kind in (pa.string_view(), pa.binary_view()):
        keys = keys.cast(pa.large_binary())
    is_small = kind in (pa.string(), pa.binary())
    if not is_small and keys.type not in (pa.large_string(), pa.large_binary()):
        raise BatchError(f"column '{column}': {kind}; {_KEY_TYPES}", column=column)
    if not count:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
    borders = np.frombuffer(keys.buffers()[1], np.int32 if is_small else np.int64)
    borders = borders[keys.offset : keys.offset + count + 1].astype(np.int64)
    held = keys.buffers()[2]
    data = np.zeros(0, np.uint8) if held is None else np.frombuffer(held, np.uint8)
    return data, borders[:-1], np.diff(borders)


def own_copy(rows: Any, table: pa.Table) -> pa.Table:
    """Return the table of these rows, copied if the caller may still change its memory, as with NumPy and pandas.

    Arrow and polars never change their data, and lists of events were copied already.
    """
    import pyarrow as pa

    if isinstance(rows, pa.Table | pa.RecordBatch | list | tuple) or is_a(rows, "polars", "DataFrame"):
        return table
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def cut(table: pa.Table, rows_max: int, bytes_max: int | None = None) -> Iterator[pa.Table]:
    """Split into pieces of at most `rows_max` rows and about `bytes_max` bytes, with at least one row each."""
    if bytes_max is not None and table.nbytes > bytes_max:
        rows_max = min(rows_max, max(1, table.num_rows * bytes_max // table.nbytes))
    for start in range(0, table.num_rows, rows_max):
        yield table.slice(start, rows_max)


def joined(pieces: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables with the same columns."""
    import pyarrow as pa

    if len(pieces) == 1:
        return pieces[0]
    table = pa.concat_tables(pieces)
    try:
        return table.combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # such as dictionaries with too many values for one
        return table


def stamp(table: pa.Table, pid: int, epoch: int, partition: int, first_seq: int) -> pa.Table:
    """Prepend the identity to the rows: pid, epoch, partition and sequences from `first_seq`.

    Sequences wrap: 0 follows 2^31 - 1.
    """
    import numpy as np

    count = table.num_rows
    seq = np.arange(count, dtype=np.int32)
    seq += np.int32(first_seq)
    if first_seq + count > _SEQ_MASK + 1:
        seq &= np.int32(_SEQ_MASK)
    return _with_identity(table, pid, epoch, partition, seq)


def stamp_positions(table: pa.Table, pid: int, epoch: int, partition: int, column: str) -> pa.Table:
    """Prepend the identity to the rows, with the positions of the source (int64) as sequences."""
    import pyarrow as pa

    return _with_identity(table, pid, epoch, partition, table[column].cast(pa.int64()))


def _with_identity(table: pa.Table, pid: int, epoch: int, partition: int, seq: Any) -> pa.Table:
    import pyarrow as pa

    count = table.num_rows
    if "partition" in table.column_names:
        table = table.drop_columns("partition")
    stamped = {
        "pid": _repeated(pid, pa.int64(), count),
        "epoch": _repeated(epoch, pa.int16(), count),
        "partition": _repeated(partition, pa.int32(), count),
        "seq": seq,
    }
    return pa.table({**stamped, **dict(zip(table.column_names, table.columns, strict=True))})


def _repeated(value: int, kind: pa.DataType, count: int) -> pa.Array:
    """Return a constant column: a slice of a cached one, because most batches are alike."""
    return _column_of(value, kind, 1 << (count - 1).bit_length() if count else 0).slice(0, count)


def _make_column(value: int, kind: pa.DataType, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), count)


_column_of = lru_cache(maxsize=64)(_make_column)


def _check_fits(positions: pa.ChunkedArray, column: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    row = pc.index(pc.greater_equal(positions, pa.scalar(2**63, pa.uint64())), True).as_py()
    if row >= 0:
        found = positions[row].as_py()
        problem = f"column '{column}', row {row} of its partition: {found}, but positions are 0 to {2**63 - 1}"
        raise BatchError(problem, column=column, row=row)


def read_positions(table: pa.Table, column: str, after: int | None) -> tuple[int, int]:
    """Return the first and last position of a partition's rows.

    `after`: the last position sent. Raises BatchError (column, row) if positions do not rise.
    """
    import numpy as np
    import pyarrow as pa

    if column not in table.column_names:
        raise BatchError(f"column '{column}': missing; the rows have {', '.join(table.column_names)}", column=column)
    found = table[column]
    if not pa.types.is_integer(found.type):
        raise BatchError(f"column '{column}': {found.type}, but a position is an integer", column=column)
    if found.null_count:
        row = found.is_null().index(True).as_py()
        raise BatchError(
            f"column '{column}', row {row} of its partition: null, but every row has a position", column=column, row=row
        )
    if found.type == pa.uint64():
        _check_fits(found, column)
    positions = np.asarray(found.combine_chunks().cast(pa.int64()))
    before = np.concatenate([[-1 if after is None else after], positions[:-1]])
    wrong = np.flatnonzero(positions <= before)
    if len(wrong):
        row = int(wrong[0])
        problem = (
            f"{positions[row]}, but positions are 0 to {2**63 - 1}"
            if positions[row] < 0
            else f"position {positions[row]} follows {before[row]}, but the positions of a partition must increase"
        )
        raise BatchError(f"column '{column}', row {row} of its partition: {problem}", column=column, row=row)
    return int(positions[0]), int(positions[-1])
