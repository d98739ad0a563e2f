"""Deletion vectors of Delta tables: the deleted rows of a file, as Roaring bitmaps.

    descriptor   {"storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality"} in the log
    file         01 | at `offset`: length (int32, big endian) | data | CRC-32 of the data (uint32, big endian)
    data         magic (int32, little endian) | a 64-bit Roaring bitmap in its portable form

Source: the Delta protocol, section "Deletion Vector Format".
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse
from uuid import UUID, uuid4

from fencepost.errors import DependencyError, SourceError
from fencepost.state.stores import Store, is_local

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAGIC = (1_681_511_377).to_bytes(4, "little")
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
UUID_CHARACTERS = 20
Bitmap = bytes
"""A 64-bit Roaring bitmap in its portable form."""


def read_vector(table: Store, descriptor: dict[str, Any]) -> Bitmap:
    """Read the bitmap of a descriptor from a table's log. Raises SourceError if it does not match."""
    kind, place, size = (descriptor[name] for name in ("storageType", "pathOrInlineDv", "sizeInBytes"))
    if kind == "i":
        return _bitmap(from_z85(place)[:size], descriptor, "in the log")
    if kind == "u":
        uuid = UUID(bytes=from_z85(place[-UUID_CHARACTERS:]))
        name = os.path.join(place[:-UUID_CHARACTERS], f"deletion_vector_{uuid}.bin")
    elif kind == "p":
        name = unquote(urlparse(place).path) if is_local(table.uri) else unquote(place)
        name = name.removeprefix(f"{table.uri}/")
    else:
        root = table.uri
        raise SourceError(
            f"{root}: a deletion vector of unknown storage type '{kind}'; known are i, u and p", path=root
        )
    path = os.path.join(table.uri, name)
    try:
        found = table.read(name, descriptor.get("offset") or 0, size + 8)
    except FileNotFoundError:
        raise SourceError(
            f"{path}: the table lists this deletion vector, but the file does not exist", path=path
        ) from None
    length, data, crc = found[:4], found[4:-4], found[-4:]
    if length != size.to_bytes(4, "big") or crc != zlib.crc32(data).to_bytes(4, "big"):
        raise SourceError(f"{path}: damaged: not the deletion vector of {size} bytes that the table lists", path=path)
    return _bitmap(data, descriptor, path)


def _bitmap(data: bytes, descriptor: dict[str, Any], where: str) -> Bitmap:
    bitmap = data[len(MAGIC) :]
    count = len(_library().deserialize(bitmap)) if data.startswith(MAGIC) else None
    if count != descriptor["cardinality"]:
        raise SourceError(
            f"{where}: a deletion vector has {'no' if count is None else count} rows, but the table declares "
            f"{descriptor['cardinality']}"
        )
    return bitmap


def rows_of(bitmap: Bitmap | None) -> Any:
    """Return a pyroaring set of rows; empty for None."""
    return _library()() if bitmap is None else _library().deserialize(bitmap)


def ranges_of(bitmap: Bitmap) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return (first rows, numbers of consecutive rows) of a bitmap, ascending."""
    import numpy as np

    rows = np.array(_library().deserialize(bitmap).to_array(), np.uint64)
    firsts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - np.uint64(2)) != 1) if len(rows) else np.zeros(0, int)
    return rows[firsts], np.diff(np.append(firsts, len(rows))).astype(np.uint64)


class VectorFile:
    """A file of deletion vectors, with a name that a table's log can refer to."""

    def __init__(self) -> None:
        self._uuid = uuid4()
        self.name = f"deletion_vector_{self._uuid}.bin"
        self.content = bytearray(b"\1")

    def add(
        self, before: Bitmap | None, firsts: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]
    ) -> dict[str, Any]:
        """Add the rows that were deleted before and these ranges. Returns the descriptor for the log."""
        import numpy as np

        rows = rows_of(before)
        if 2 * len(firsts) > int(counts.sum()):
            starts = np.repeat(firsts + counts - counts.cumsum(), counts.astype(np.int64))
            rows |= _library()(starts + np.arange(len(starts), dtype=np.uint64))
        else:
            for first, end in zip(firsts.tolist(), (firsts + counts).tolist(), strict=True):
                rows.add_range(first, end)
        data = MAGIC + rows.serialize()
        offset = len(self.content)
        self.content += len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
        return {
            "storageType": "u",
            "pathOrInlineDv": to_z85(self._uuid.bytes),
            "offset": offset,
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }


def from_z85(text: str) -> bytes:
    """Decode: five characters are four bytes, big endian."""
    words = [0] * (len(text) // 5)
    for place, character in enumerate(text):
        words[place // 5] = words[place // 5] * 85 + Z85.index(character)
    return b"".join(word.to_bytes(4, "big") for word in words)


def to_z85(data: bytes) -> str:
    """Encode bytes, whose length must be a multiple of four."""
    words = (int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4))
    return "".join(Z85[word // 85 ** (4 - place) % 85] for word in words for place in range(5))


def _library() -> Any:
    try:
        from pyroaring import BitMap64
    except ImportError as error:
        text = f"deletion vectors need more packages ({error}): pip install 'fencepost[lake]'"
        raise DependencyError(text) from error
    return BitMap64
