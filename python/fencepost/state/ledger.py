"""Which inputs were read: the difference between a listing and it is what is new.

A file is known by path, bytes and what else its store tells: mtime and inode, or an etag. The ledger lies in Arrow
files that are merged like the levels of a log: each has at least twice as many files as the one after it, so a million
inputs stand in a score of files, and each is written anew as often.
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

COLUMNS = ("path", "bytes", "mtime_ns", "inode", "etag")


def file_table(files: Inputs | Quarantined | dict[str, Any]) -> ArrowTable:
    """A table of files with the columns that tell them apart, from lists or arrays by name."""
    import pyarrow as pa  # type: ignore[import-untyped]

    columns = vars(files) if isinstance(files, Inputs | Quarantined) else files
    kinds = {"path": pa.string(), "etag": pa.string(), "inode": pa.uint64()}
    return pa.table({name: pa.array(columns[name], kinds.get(name, pa.int64())) for name in COLUMNS})


def read_ledger(store: Store, files: LedgerFiles | None) -> ArrowTable:
    """All inputs so far, as `file_table` has them. Raises SnapshotError where a file is not as decided."""
    tables = [] if files is None else [_read(store, *it) for it in zip(files.name, files.sha256, strict=True)]
    import pyarrow as pa  # type: ignore[import-untyped]

    return pa.concat_tables(tables) if tables else file_table({name: [] for name in COLUMNS})


def new_files(ledger: ArrowTable, listing: ArrowTable) -> Any:
    """The places in a listing, ascending, of the files that the ledger does not name."""
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc

    places = pa.array(np.arange(len(listing)))
    if not len(ledger):
        return places
    numbered = listing.select(COLUMNS).append_column("place", places)
    found = numbered.join(ledger, keys=list(COLUMNS), join_type="left anti")
    return pc.take(found["place"], pc.sort_indices(found["place"])).combine_chunks()


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
    return pa.ipc.open_file(pa.py_buffer(data)).read_all()
