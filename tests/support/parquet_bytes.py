"""Parquet files byte by byte: what writers never write, such as counts that the file does not hold."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

INT32, INT64, BYTE_ARRAY, FIXED = 1, 2, 6, 7
PLAIN, RLE, DELTA_PACKED, DELTA_LENGTH, DELTA, RLE_DICTIONARY = 0, 3, 5, 6, 7, 8
NONE, SNAPPY, GZIP, BROTLI, LZ4, ZSTD, LZ4_RAW = 0, 1, 2, 4, 5, 6, 7
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2


@dataclass(frozen=True)
class Long:
    """An integer of 64 bits; bare ones have 32."""

    value: int


@dataclass(frozen=True)
class Claimed:
    """A list, or bytes, that claim a count of their own."""

    count: int
    content: list[Any] | bytes


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


def kind_of(value: Any) -> int:
    if isinstance(value, Claimed):
        value = value.content
    kinds = {bool: 1, int: 5, Long: 6, bytes: 8, list: 9, dict: 12}
    return kinds[type(value)]


def encoded(value: Any) -> bytes:
    match value:
        case dict():
            return struct_of(value)
        case int():
            return zigzag(value)
        case Long():
            return zigzag(value.value)
        case bytes():
            return varint(len(value)) + value
        case Claimed(count, bytes() as content):
            return varint(count) + content
        case Claimed(count, content):
            return list_of(count, content)
        case list():
            return list_of(len(value), value)
    raise TypeError(value)


def list_of(count: int, items: list[Any] | bytes) -> bytes:
    kind = kind_of(items[0]) if items else 5
    return bytes([0xF0 | kind]) + varint(count) + b"".join(encoded(item) for item in items)


def struct_of(fields: dict[int, Any]) -> bytes:
    """A struct of Thrift's compact protocol."""
    out = bytearray()
    for number, value in fields.items():
        if isinstance(value, bool):
            out += bytes([1 if value else 2]) + zigzag(number)
        else:
            out += bytes([kind_of(value)]) + zigzag(number) + encoded(value)
    return bytes(out) + b"\0"


def page(kind: int, body: bytes, uncompressed: int | None, fields: dict[int, Any]) -> bytes:
    size = len(body) if uncompressed is None else uncompressed
    place = {0: 5, 2: 7, 3: 8}[kind]
    return struct_of({1: kind, 2: size, 3: len(body), place: fields}) + body


def data_page(
    values: int, body: bytes, *, encoding: int = PLAIN, uncompressed: int | None = None, statistics: Any = None
) -> bytes:
    fields = {} if statistics is None else {5: statistics}
    return page(0, body, uncompressed, {1: values, 2: encoding, 3: RLE, 4: RLE, **fields})


def second_page(
    values: int, body: bytes, *, rows: int, levels: tuple[int, int] = (0, 0), encoding: int = PLAIN
) -> bytes:
    repetitions, definitions = levels
    return page(3, body, None, {1: values, 2: 0, 3: rows, 4: encoding, 5: definitions, 6: repetitions, 7: False})


def dictionary_page(values: int, body: bytes) -> bytes:
    return page(2, body, None, {1: values, 2: PLAIN})


def deltas(count: int, blocks: bytes = b"") -> bytes:
    """The head of a stream of deltas in blocks of 128, in 4 parts; the first value is 0."""
    return varint(128) + varint(4) + varint(count) + zigzag(0) + blocks


@dataclass(frozen=True)
class Column:
    """A column, and the footer's information about its only chunk."""

    name: str
    pages: Sequence[bytes]
    physical: int = INT64
    repetition: int = REQUIRED
    codec: int = NONE
    length: int | None = None
    values: int | None = None
    has_dictionary: bool = False
    index: bytes = b""
    """An offset index."""

    def schema(self) -> dict[int, Any]:
        length = {} if self.length is None else {2: self.length}
        return {1: self.physical, **length, 3: self.repetition, 4: self.name.encode()}


@dataclass(frozen=True)
class File:
    columns: Sequence[Column]
    rows: int
    schema: list[Any] | Claimed | None = None
    """In place of that of the columns."""
    groups: int | None = None
    """How many row groups are claimed."""
    more: dict[int, Any] = field(default_factory=dict)

    def bytes(self) -> bytes:
        out = bytearray(b"PAR1")
        chunks = []
        for column in self.columns:
            start, body = len(out), b"".join(column.pages)
            out += body
            data = start + (len(column.pages[0]) if column.has_dictionary else 0)
            values = self.rows if column.values is None else column.values
            metadata: dict[int, Any] = {
                1: column.physical,
                2: [PLAIN],
                3: [column.name.encode()],
                4: column.codec,
                5: Long(values),
                6: Long(len(body)),
                7: Long(len(body)),
                9: Long(data),
            }
            if column.has_dictionary:
                metadata[11] = Long(start)
            chunk: dict[int, Any] = {2: Long(start), 3: metadata}
            if column.index:
                chunk |= {4: Long(len(out)), 5: len(column.index)}
                out += column.index
            chunks.append(chunk)
        group = {1: chunks, 2: Long(len(out)), 3: Long(self.rows)}
        groups: Any = [group] if self.groups is None else Claimed(self.groups, [group])
        root = {4: b"schema", 5: len(self.columns)}
        schema = self.schema or [root, *(column.schema() for column in self.columns)]
        footer = struct_of({1: 1, 2: schema, 3: Long(self.rows), 4: groups, **self.more})
        return bytes(out) + footer + struct.pack("<I", len(footer)) + b"PAR1"


def integers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def texts(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)
