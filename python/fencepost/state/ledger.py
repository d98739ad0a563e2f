"""Which inputs were read: the difference between a listing and it is what is new.

A file is known by path, bytes and what else its store tells: mtime and the checksum of its footer, or an etag. The
inode is no part of that, because mounts of object stores, copies and restores draw it anew; where it is the same, the
footer need not be read. The ledger lies in Arrow files that are merged like the levels of a log: each has at least
twice as many files as the one after it, so a million inputs stand in a score of files, and each is written anew as
often.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from fencepost.errors import SnapshotError
from fencepost.state.decision import Inputs, LedgerFiles, Quarantined, sha256
from fencepost.state.segments import segments_folder
from fencepost.state.stores import Store

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`; pyarrow is imported where it is needed."""

IDENTITY = ("path", "bytes", "mtime_ns", "etag")
COLUMNS = (*IDENTITY, "inode", "footer_crc")
UNKNOWN_CRC = -1
"""Of a footer that cannot be read, and in ledgers from before footers were noted."""


def file_table(files: Inputs | Quarantined | dict[str, Any]) -> ArrowTable:
    """A table of files with the columns that tell them apart, from lists or arrays by name. Footers may be unknown."""
    import pyarrow as pa  # type: ignore[import-untyped]

    columns = vars(files) if isinstance(files, Inputs | Quarantined) else files
    kinds = {"path": pa.string(), "etag": pa.string(), "inode": pa.uint64()}
    footers = columns.get("footer_crc", [UNKNOWN_CRC] * len(columns["path"]))
    arrays = columns | {"footer_crc": footers}
    return pa.table({name: pa.array(arrays[name], kinds.get(name, pa.int64())) for name in COLUMNS})


def read_ledger(store: Store, files: LedgerFiles | None) -> ArrowTable:
    """All inputs so far, as `file_table` has them. Raises SnapshotError where a file is not as decided."""
    tables = [] if files is None else [_read(store, *it) for it in zip(files.name, files.sha256, strict=True)]
    import pyarrow as pa  # type: ignore[import-untyped]

    return pa.concat_tables(tables) if tables else file_table({name: [] for name in COLUMNS})


def new_files(ledger: ArrowTable, listing: ArrowTable) -> tuple[list[int], dict[int, set[int]]]:
    """(places in a listing, ascending, of the files that the ledger does not name; places of those that it names with
    other inodes, to the checksums of footers by which they are the same files).

    A file whose footer is unknown to the ledger is the same one: ledgers from before footers were noted have no other.
    """
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]

    numbered = listing.select([*IDENTITY, "inode"]).append_column("place", pa.array(np.arange(len(listing))))
    if not len(ledger):
        return numbered["place"].to_pylist(), {}
    known = ledger.select(COLUMNS)
    new = sorted(numbered.join(known, keys=list(IDENTITY), join_type="left anti")["place"].to_pylist())
    moved = numbered.join(known, keys=[*IDENTITY, "inode"], join_type="left anti").drop_columns(["inode"])
    footers: dict[int, set[int]] = {}
    suspects = moved.join(known.drop_columns(["inode"]), keys=list(IDENTITY), join_type="inner")
    for place, crc in zip(suspects["place"].to_pylist(), suspects["footer_crc"].to_pylist(), strict=True):
        footers.setdefault(place, set()).add(crc)
    return new, {place: crcs for place, crcs in footers.items() if UNKNOWN_CRC not in crcs}


def extend_ledger(
    store: Store, before: LedgerFiles | None, version: int, attempt: str, tables: Iterable[ArrowTable]
) -> LedgerFiles:
    """Prepare the ledger that has the one `before` and these files; trailing parts are merged into the new one."""
    import pyarrow as pa  # type: ignore[import-untyped]

    new = pa.concat_tables(list(tables))
    kept = [] if before is None else list(before.each())
    if not len(new):
        return LedgerFiles.of(kept)
    merged = [new]
    count = len(new)
    while kept and kept[-1]["files"] < 2 * count:
        part = kept.pop()
        merged.append(_read(store, part["name"], part["sha256"]))
        count += part["files"]
    table = pa.concat_tables(reversed(merged)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)
    data = sink.getvalue().to_pybytes()
    name = f"{segments_folder(version, attempt)}/ledger-{sha256(data)[:12]}.arrow"
    writer = store.writer(name)
    writer.write(data)
    writer.close()
    part = {"name": name, "bytes": len(data), "sha256": sha256(data), "files": count}
    return LedgerFiles.of([*kept, part])


def _read(store: Store, name: str, expected: str) -> ArrowTable:
    import pyarrow as pa  # type: ignore[import-untyped]

    try:
        data = store.read(name)
    except FileNotFoundError:
        raise SnapshotError(f"{store.uri}/{name}: missing", reason="missing") from None
    if sha256(data) != expected:
        reason = f"its SHA-256 is {sha256(data)}, decided was {expected}"
        raise SnapshotError(f"{store.uri}/{name}: {reason}", reason=reason)
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    if "footer_crc" not in table.column_names:
        table = table.append_column("footer_crc", pa.array([UNKNOWN_CRC] * len(table), pa.int64()))
    return table.select(COLUMNS)
