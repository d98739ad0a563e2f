"""The ledger: which inputs were read. Files that are listed and not in the ledger are new.

A file is identified by path, bytes and other properties of its store: mtime and the checksum of its footer, or an etag.
The inode does not count, because mounts of object stores, copies and restores change it. If the inode is equal, the
footer need not be read.

The ledger consists of parts that are merged like the levels of a log-structured merge tree: each has at least twice as
many files as the next one, up to PART_FILES_MAX; larger parts are not merged. So a run that adds a file rewrites few
files. A part's files are sorted by path and stored in blocks, and its index contains the first and last path of each
block. A listing is compared with the blocks that may contain its paths, some at a time.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fencepost.arrow import ArrowTable
from fencepost.state.decision import Inputs, LedgerFiles, Piece, Quarantined, sha256
from fencepost.state.segment_files import read_piece, segments_folder
from fencepost.state.stores import Store

IDENTITY = ("path", "bytes", "mtime_ns", "etag")
COLUMNS = (*IDENTITY, "inode", "footer_crc")
BLOCK_FILES, PART_FILES_MAX = 1 << 17, 1 << 21
"""Number of files per block, and of parts that are no longer merged."""
BLOCKS_AT_ONCE = 8
"""Number of blocks to read and compare at a time."""
UNKNOWN_CRC = -1
"""The checksum of unreadable footers, and in ledgers from before footers were recorded."""


def file_table(files: Inputs | Quarantined | dict[str, Any]) -> ArrowTable:
    """Return a table of files with their identifying columns, from lists or arrays by name. Footers may be unknown."""
    import pyarrow as pa  # type: ignore[import-untyped]

    columns = vars(files) if isinstance(files, Inputs | Quarantined) else files
    kinds = {"path": pa.string(), "etag": pa.string(), "inode": pa.uint64()}
    footers = columns.get("footer_crc", [UNKNOWN_CRC] * len(columns["path"]))
    arrays = columns | {"footer_crc": footers}
    return pa.table({name: pa.array(arrays[name], kinds.get(name, pa.int64())) for name in COLUMNS})


def read_ledger(store: Store, files: LedgerFiles | None) -> ArrowTable:
    """Read all inputs so far as a `file_table`. Raises SnapshotError if a file was changed."""
    import pyarrow as pa  # type: ignore[import-untyped]

    parts = [] if files is None else [_read_part(store, it) for it in files.each()]
    return pa.concat_tables(parts) if parts else file_table({name: [] for name in COLUMNS})


def hash_of_listing(listing: ArrowTable) -> str:
    """Return a hash that is equal for listings of equal files, including inodes."""
    found = hashlib.sha256()
    for batch in listing.select([*IDENTITY, "inode"]).combine_chunks().to_batches(max_chunksize=1 << 20):
        found.update(batch.serialize())
    return found.hexdigest()


def new_files(store: Store, ledger: LedgerFiles | None, listing: ArrowTable) -> tuple[list[int], dict[int, set[int]]]:
    """Compare a listing, sorted by path, with the ledger.

    Returns (indexes of new files, ascending; indexes of known files with other inodes, mapped to the footer checksums
    that identify them). A file with an unknown footer in the ledger counts as the same file, because ledgers from
    before footers were recorded have no checksum. Memory: some blocks, and 100 bytes per listed file. Raises
    SnapshotError if a part was changed.
    """
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]

    numbered = listing.select([*IDENTITY, "inode"]).append_column("place", pa.array(np.arange(len(listing))))
    is_known, is_same = (np.zeros(len(listing), bool) for _ in range(2))
    suspects: list[tuple[int, int]] = []
    for known, first, end in _blocks_beside(store, ledger, listing["path"]):
        some = numbered.slice(first, end - first)
        if known.select([*IDENTITY, "inode"]).equals(some.drop_columns(["place"])):
            is_known[first:end] = is_same[first:end] = True
            continue
        pairs = some.join(known, keys=list(IDENTITY), join_type="inner", right_suffix="_known")
        places = pairs["place"].to_numpy()
        has_moved = pairs["inode"].to_numpy() != pairs["inode_known"].to_numpy()
        is_known[places] = True
        is_same[places[~has_moved]] = True
        suspects += zip(places[has_moved].tolist(), pairs["footer_crc"].to_numpy()[has_moved].tolist(), strict=True)
    footers: dict[int, set[int]] = {}
    for place, crc in suspects:
        if not is_same[place]:
            footers.setdefault(place, set()).add(crc)
    new = np.flatnonzero(~is_known).tolist()
    return new, {place: crcs for place, crcs in sorted(footers.items()) if UNKNOWN_CRC not in crcs}


def extend_ledger(
    store: Store, before: LedgerFiles | None, version: int, attempt: str, tables: Iterable[ArrowTable]
) -> LedgerFiles:
    """Write the ledger that extends `before` by these files. Trailing parts are merged into the new one.

    Parts without index, from earlier versions of this package, are all rewritten.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    new = pa.concat_tables(list(tables))
    kept = [] if before is None else list(before.each())
    if not len(new):
        return LedgerFiles.of(kept)
    merged = [new]
    count = len(new)
    while any(not it["index"] for it in kept) or (kept and kept[-1]["files"] < min(2 * count, PART_FILES_MAX)):
        part = kept.pop()
        merged.append(_read_part(store, part))
        count += part["files"]
    table = pa.concat_tables(merged)
    table = table.sort_by([(name, "ascending") for name in (*IDENTITY, "inode")])
    del merged
    parts = range(0, len(table), PART_FILES_MAX)
    return LedgerFiles.of(
        [*kept, *(_written(store, version, attempt, table.slice(it, PART_FILES_MAX)) for it in parts)]
    )


def _written(store: Store, version: int, attempt: str, table: ArrowTable) -> dict[str, Any]:
    """Write a part. Returns its line of `LedgerFiles`."""
    import pyarrow as pa  # type: ignore[import-untyped]

    blocks, index = [], []
    end = 0
    for start in range(0, len(table), BLOCK_FILES):
        some = table.slice(start, BLOCK_FILES)
        block = _to_bytes(some)
        first, last = some["path"][0].as_py(), some["path"][-1].as_py()
        index.append({"first": first, "last": last, "offset": end, "bytes": len(block), "sha256": sha256(block)})
        blocks.append(block)
        end += len(block)
    blocks.append(_to_bytes(pa.Table.from_pylist(index)))
    digest = sha256(blocks[-1])
    name = f"{segments_folder(version, attempt)}/ledger-{digest[:12]}.blocks"
    writer = store.writer(name)
    for block in blocks:
        writer.write(block)
    writer.close()
    bytes_ = end + len(blocks[-1])
    return {"name": name, "bytes": bytes_, "sha256": digest, "files": len(table), "index": bytes_ - end}


def _blocks_beside(
    store: Store, ledger: LedgerFiles | None, paths: ArrowTable
) -> Iterator[tuple[ArrowTable, int, int]]:
    """Yield (files of the ledger, first, end): the files between the paths `first` and `end` of a sorted column."""
    import pyarrow as pa  # type: ignore[import-untyped]

    places = range(len(paths))
    with ThreadPoolExecutor(BLOCKS_AT_ONCE) as pool:
        parts = [] if ledger is None else list(ledger.each())
        for part, index in zip(parts, pool.map(lambda it: _index_of(store, it), parts), strict=True):
            if index is None:
                yield _read_part(store, part), 0, len(paths)
                continue
            found = []
            for piece, first_path, last_path in index:
                first = bisect_left(places, first_path, key=lambda it: paths[it].as_py())
                end = bisect_right(places, last_path, first, key=lambda it: paths[it].as_py())
                if first < end:
                    found.append((piece, first, end))
            for start in range(0, len(found), BLOCKS_AT_ONCE):
                some = found[start : start + BLOCKS_AT_ONCE]
                tables = pool.map(lambda it: _read_block(store, it[0]), some)
                yield pa.concat_tables(list(tables)), some[0][1], some[-1][2]


def _index_of(store: Store, part: dict[str, Any]) -> list[tuple[Piece, str, str]] | None:
    """Return each block of a part with its first and last path; None for parts from versions without blocks."""
    if not part["index"]:
        return None
    where = Piece(part["name"], part["bytes"] - part["index"], part["index"], part["sha256"])
    index = _from_bytes(read_piece(store, where)).to_pylist()
    return [(Piece(part["name"], it["offset"], it["bytes"], it["sha256"]), it["first"], it["last"]) for it in index]


def _read_part(store: Store, part: dict[str, Any]) -> ArrowTable:
    import pyarrow as pa  # type: ignore[import-untyped]

    index = _index_of(store, part)
    if index is not None:
        return pa.concat_tables([_read_block(store, piece) for piece, _, _ in index])
    data = read_piece(store, Piece(part["name"], 0, part["bytes"], part["sha256"]))
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    if "footer_crc" not in table.column_names:
        table = table.append_column("footer_crc", pa.array([UNKNOWN_CRC] * len(table), pa.int64()))
    return table.select(COLUMNS)


def _read_block(store: Store, piece: Piece) -> ArrowTable:
    return _from_bytes(read_piece(store, piece))


def _to_bytes(table: ArrowTable) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _from_bytes(data: bytes) -> ArrowTable:
    import pyarrow as pa  # type: ignore[import-untyped]

    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
