"""Segment files: the snapshots of several shards, one file per task.

A shard's state is a base followed by deltas. Each is a range of a segment file with its own hash. A change that is
small compared to its base is written as a delta. From time to time all of them are replaced by a new base.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import TracebackType
from uuid import uuid4

from fencepost._native import StateTable
from fencepost.arrow import ArrowTable
from fencepost.errors import SnapshotError
from fencepost.policy import Policy
from fencepost.state.decision import Piece, Shard, sha256
from fencepost.state.stores import Store, Writer
from fencepost.sums import exact_sum

DELTAS_MAX = 4
DELTAS_SHARE = 0.5  # share of the base's bytes above which deltas are replaced by a new base
CACHE_BYTES_MAX = 64 << 20


class SegmentWriter:
    """A context manager for a task's segment file, in the folder of an attempt at a version.

    The file is created with the first piece.
    """

    def __init__(self, store: Store, version: int, attempt: str) -> None:
        self.store = store
        self.name = f"{segments_folder(version, attempt)}/{uuid4().hex[:12]}.state"
        self._file: Writer | None = None
        self._end = 0

    def add(self, data: bytes) -> Piece:
        """Append a snapshot or delta. Durable after the block."""
        if self._file is None:
            self._file = self.store.writer(self.name)
        self._file.write(data)
        piece = Piece(self.name, self._end, len(data), sha256(data))
        self._end += len(data)
        return piece

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is None:
            return
        if kind is None:
            self._file.close()
        else:
            self._file.give_up()


def segments_folder(version: int, attempt: str) -> str:
    """Return the folder of an attempt's segments, relative to the state."""
    return f"segments/{version}/{attempt}"


def load_table(
    store: Store,
    pieces: Sequence[Piece],
    policy: str | Policy,
    *,
    keep: Sequence[str] = (),
    horizon_ms: int | None = None,
) -> StateTable:
    """Load the table in a shard's pieces, empty if there are none, ready for `advance`.

    Evicts up to `horizon_ms`, so that shards that were not read since an eviction catch up. Raises SnapshotError naming
    file and offset if a piece is missing or was changed.
    """
    if not pieces:
        table = StateTable(policy, keep=keep)
    else:
        base, *deltas = (read_piece(store, piece) for piece in pieces)
        try:
            table = StateTable.restore(base, policy, deltas=deltas)
        except SnapshotError as error:
            raise SnapshotError(f"{_place(store, pieces[0])}: {error.message}", reason=error.reason) from error
        del base, deltas
        table.track_changes()
    catch_up(table, horizon_ms)
    return table


def catch_up(table: StateTable, horizon_ms: int | None) -> int:
    """Forget what is at or before the horizon. Returns the number of forgotten entries."""
    return 0 if horizon_ms is None or table.horizon_ms == horizon_ms else table.evict(horizon_ms, 0)


def read_piece(store: Store, piece: Piece) -> bytes:
    """Read a piece. Raises SnapshotError if it is missing or was changed."""

    def read() -> bytes:
        try:
            data = store.read(piece.file, piece.offset, piece.bytes)
        except FileNotFoundError:
            raise SnapshotError(f"{_place(store, piece)}: missing", reason="missing") from None
        if sha256(data) != piece.sha256:
            reason = f"its SHA-256 is {sha256(data)}, but the decision names {piece.sha256}"
            raise SnapshotError(f"{_place(store, piece)}: {reason}", reason=reason)
        return data

    return CACHE.get(piece.sha256, read)


def advance(
    table: StateTable,
    before: Shard | None,
    shard: int,
    writer: SegmentWriter,
    positions: int | None,
    missing: ArrowTable,
) -> Shard:
    """Write a shard's new state in the cheapest form: nothing, a delta, or a new base.

    `table`: the result of `load_table` for `before`, then modified. `positions`: its `held_positions`, which reads
    every entry. `missing`: its `missing()`, as a `pyarrow.Table`. A new base is written to avoid more than DELTAS_MAX
    deltas, or deltas larger than DELTAS_SHARE of the base.
    """
    pieces = before.pieces if before else ()
    if pieces:
        delta = table.snapshot_delta()
        if _is_empty_delta(delta):
            new = pieces
        elif len(pieces) <= DELTAS_MAX and (
            sum(piece.bytes for piece in pieces[1:]) + len(delta) <= pieces[0].bytes * DELTAS_SHARE
        ):
            new = (*pieces, writer.add(delta))
        else:
            new = (writer.add(table.snapshot()),)
    else:
        new = (writer.add(table.snapshot()),)
    return Shard(shard=shard, entries=len(table), positions=positions, missing=exact_sum(missing["count"]), pieces=new)


def held_positions(table: StateTable) -> int | None:
    """Return the number of positions in the entries. None under policies that may remove positions."""
    # A higher epoch removes positions.
    return None if table.policy.admit != "any" or table.policy.epochs == "fence" else table.positions


def _is_empty_delta(delta: bytes) -> bool:
    """Return whether a delta has neither evictions nor keys nor entries, by the last fields of its header."""
    # docs/snapshot-format.md: two optionals, a flag and two counts end the first frame, whose length is at byte 12.
    end = 20 + int.from_bytes(delta[12:20], "little")
    return not any(delta[end - (9 + 9 + 1 + 8 + 8) : end])


def _place(store: Store, piece: Piece) -> str:
    return f"{store.uri}/{piece.file}, bytes {piece.offset} to {piece.offset + piece.bytes}"


class _Cache:
    """A cache of recently read pieces by content: a worker judges the same shards repeatedly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: str, read: Callable[[], bytes]) -> bytes:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        data = read()
        with self._lock:
            if key not in self._found and len(data) <= CACHE_BYTES_MAX // 4:
                self._found[key] = data
                self._bytes += len(data)
            while self._bytes > CACHE_BYTES_MAX:
                self._bytes -= len(self._found.popitem(last=False)[1])
        return data

    def clear(self) -> None:
        with self._lock:
            self._found.clear()
            self._bytes = 0


CACHE = _Cache()
