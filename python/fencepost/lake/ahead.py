"""Reads Parquet files in an object store ahead of native code, with few requests: some columns, or whole files."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor

from fencepost.state.stores import TAIL_BYTES, Ranges

GAP_BYTES = 1 << 20
"""Chunks with a smaller gap are read in one request: a request takes as long as reading 1 MB."""
GROUP_BYTES_MAX = 8 << 20
"""Row groups with more bytes in these columns are not held: native code reads them in blocks."""
GROUPS_AHEAD = 2
REQUESTS_AT_ONCE = 4
STREAM_BYTES = 64 << 20
"""Maximum bytes per request for whole files. Smaller files are read by one request."""
BLOCK_BYTES, PIECE_BYTES = 16 << 20, 4 << 20
"""Bytes of a larger file that are held together, and maximum bytes that are passed on at once."""

ByteRange = tuple[int, int]
"""First byte and end."""


class ColumnsAhead:
    """An object from which native code reads columns, row group after row group.

    The locations of chunks come from the footer, when native code requests the end of the file. The chunks of the
    current row group and of the next GROUPS_AHEAD are requested at once. Other ranges are read on request. Memory:
    (GROUPS_AHEAD + 2) × GROUP_BYTES_MAX.
    """

    def __init__(self, ranges: Ranges, names: Collection[str]) -> None:
        self.ranges, self.names = ranges, frozenset(names)
        self.tail: tuple[int, bytes] | None = None
        """First byte and content of the end of the file."""
        self.groups: list[list[ByteRange]] = []
        """The ranges of each row group, in file order."""
        self.end: int | None = None
        """The row group after the last one to read, or None for all."""
        self.places: list[tuple[ByteRange, int]] = []
        """All ranges, each with the number of its row group, sorted by first byte."""
        self.held: dict[ByteRange, Future[bytes]] = {}
        self.pool = ThreadPoolExecutor(REQUESTS_AT_ONCE)

    def size(self) -> int:
        return self.ranges.size()

    def read(self, offset: int, length: int) -> bytes:
        """Read a range (see `Ranges.read`). May return less, as much as is held."""
        if self.tail is None and offset + length == self.size():
            self._begin(offset, self.ranges.read(offset, length))
        if self.tail is not None and offset == self.tail[0]:
            return self.tail[1][:length]
        place = bisect_right(self.places, ((offset, self.size()), len(self.groups))) - 1
        if place < 0 or offset >= self.places[place][0][1]:
            return self.ranges.read(offset, length)
        (start, end), group = self.places[place]
        self._ask(group)
        return self.held[start, end].result()[offset - start : min(end, offset + length) - start]

    def _begin(self, offset: int, tail: bytes) -> None:
        self.tail, self.groups = (offset, tail), byte_ranges_of(tail, self.names)
        self.places = sorted((it, number) for number, ranges in enumerate(self.groups) for it in ranges)

    def _ask(self, group: int) -> None:
        """Drop data before the previous row group, and request the next ones."""
        groups = self.groups[: self.end]
        around = groups[max(0, group - 1) : group + 1 + GROUPS_AHEAD]
        wanted = {it for ranges in around for it in ranges}
        self.held = {it: data for it, data in self.held.items() if it in wanted}
        for start, end in (it for ranges in groups[group : group + 1 + GROUPS_AHEAD] for it in ranges):
            if (start, end) not in self.held:
                self.held[start, end] = self.pool.submit(self.ranges.read, start, end - start)


def byte_ranges_of(tail: bytes, names: Collection[str]) -> list[list[ByteRange]]:
    """Return the ranges to read of each row group.

    Returns nothing if `tail` does not contain the whole footer or the footer is damaged; native code reports damage.
    `names`: top-level columns, or fields of structs ("payload.seq").
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        footer = pq.read_metadata(io.BytesIO(tail))
    except (OSError, pa.ArrowException):
        return []
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunks = [group.column(place) for place in range(group.num_columns)]
        ranges = [
            _byte_range(it) for it in chunks if {it.path_in_schema, it.path_in_schema.partition(".")[0]} & set(names)
        ]
        together = _together(sorted(ranges))
        found.append(together if sum(end - start for start, end in together) <= GROUP_BYTES_MAX else [])
    return found


def _byte_range(chunk: object) -> ByteRange:
    first = [chunk.dictionary_page_offset, chunk.data_page_offset]  # type: ignore[attr-defined]
    start = min(it for it in first if it)
    return start, start + chunk.total_compressed_size  # type: ignore[attr-defined]


def _together(ranges: list[ByteRange]) -> list[ByteRange]:
    """Merge ranges with small gaps."""
    found: list[ByteRange] = []
    for start, end in ranges:
        if found and start - found[-1][1] <= GAP_BYTES:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


class WholeFile:
    """An object that native code reads from the first byte to the last, after its footer.

    A request streams up to STREAM_BYTES. Native code returns to earlier bytes of a row group, so the block before the
    current one is held, and the next one is read ahead. Reads in any other order return the same bytes by more
    requests. Memory: STREAM_BYTES.
    """

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.block_bytes = BLOCK_BYTES if ranges.size() > STREAM_BYTES else max(1, ranges.size())
        self.blocks: dict[int, Future[memoryview]] = {}
        """By number."""
        self.pool = ThreadPoolExecutor(1)
        self.stream: _Stream | None = None
        """Only the thread of `pool` uses it."""

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def size(self) -> int:
        return self.ranges.size()

    def read(self, offset: int, length: int) -> bytes:
        """Read a range (see `Ranges.read`). May return less, at least one byte."""
        if offset + length == self.size() and length <= TAIL_BYTES and self.block_bytes < self.size():
            return self.ranges.read(offset, length)
        number, begin = divmod(offset, self.block_bytes)
        return bytes(self._block(number)[begin : begin + min(length, PIECE_BYTES)])

    def _block(self, number: int) -> memoryview:
        for other in self.blocks.keys() - {number - 1, number, number + 1}:
            self.blocks.pop(other).cancel()
        for wanted in (number, number + 1):
            if wanted not in self.blocks and wanted * self.block_bytes < self.size():
                self.blocks[wanted] = self.pool.submit(self._load, wanted)
        return self.blocks[number].result()

    def _load(self, number: int) -> memoryview:
        begin = number * self.block_bytes
        length = min(self.block_bytes, self.size() - begin)
        try:
            if self.stream is None or self.stream.position != begin or begin == self.stream.end:
                self.stream = _Stream(self.ranges, begin)
            return self.stream.take(length)
        except Exception:  # this request retries, and reports what is wrong
            self.stream = None
            return memoryview(self.ranges.read(begin, length))


class _Stream:
    """The response to one request for a range of an object."""

    def __init__(self, ranges: Ranges, begin: int) -> None:
        self.position, self.end = begin, min(begin + STREAM_BYTES, ranges.size())
        self.chunks = ranges.chunks(begin, self.end - begin)
        self.rest = memoryview(b"")
        """The part of the last chunk that was not taken."""

    def take(self, length: int) -> memoryview:
        """Return the next bytes. Raises EOFError if the response is too short, and errors of the store's client."""
        block, filled = bytearray(length), 0
        while filled < length:
            if not self.rest:
                self.rest = memoryview(next(self.chunks, b""))
            if not self.rest:
                raise EOFError(f"the response ends at {self.position + filled}, before {self.end}")
            taken = self.rest[: length - filled]
            block[filled : filled + len(taken)] = taken
            filled, self.rest = filled + len(taken), self.rest[len(taken) :]
        self.position += length
        return memoryview(block)
