"""An Iceberg table as input: the files that its snapshots have appended since the last snapshot read.

A snapshot that appends files is new input. One that only moves rows to other files (compaction) is not. A snapshot that
deletes or rewrites rows does not show which rows are new, so the run stops there. Files are read as they are. Tables
with delete files, renamed columns or files that are not Parquet are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fencepost.errors import SourceError
from fencepost.lake.asking import Ask, ask_facts, in_driver
from fencepost.lake.files import Files, NewInput
from fencepost.lake.storage import LocalStorage, ObjectStorage, Storage
from fencepost.state.iceberg_tables import NamedTable, history, is_first, plain_location
from fencepost.state.stores import RemoteStore, is_local

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Position = dict[str, Any]
"""The id of the table and the newest snapshot read, None before the first: {"table", "snapshot"}."""
Added = dict[str, Any]
"""A file as the decision stores it until it is read: {"path", "size"}."""

NEW_STATE = "read the table as it is now with a new state and a new sink"
NEW_TABLE = "Copy the rows to a new table, and read that one"


def open_files(named: NamedTable) -> Storage:
    """Return the storage of a table's files. Raises SourceError if there is no table."""
    table = _loaded(named)
    root = _root_of(plain_location(table.location(), named.uri))
    return LocalStorage() if is_local(root) else ObjectStorage(RemoteStore(root, named.store_options(table)))


def list_appended(
    named: NamedTable,
    storage: Storage,
    position: Position | None,
    pending: Iterable[Added] = (),
    ask: Ask = in_driver,
) -> NewInput:
    """Return the files appended to a table since `position`, and the position after them.

    `position` None: all files of the current snapshot, in the order of addition. `pending`: files before `position`
    that were not read yet; they come first. Raises SourceError if the table was replaced, if the last snapshot read no
    longer exists, and at a snapshot that deletes or rewrites rows.
    """
    table = _loaded(named)
    uri, new = named.uri, {"table": str(table.metadata.table_uuid), "snapshot": table.metadata.current_snapshot_id}
    _check_columns(table, uri)
    with named.answering("read"):
        if position is None:
            entries = _current_files(table, uri)
        else:
            if position["table"] != new["table"]:
                raise SourceError(
                    f"{uri}: not the table that was read before (its id is {new['table']}, was {position['table']}): "
                    "read it with a new state and a new sink",
                    path=uri,
                )
            snapshots = _snapshots_after(table, uri, position["snapshot"])
            entries = (entry for it in snapshots for entry in _added_by(table, uri, it))
        root = _root_of(plain_location(table.location(), uri))
        found = [*pending, *(_as_added(entry, root, uri) for entry in entries)]
    return _appended(ask, storage, root, found, new)


def _loaded(named: NamedTable) -> Table:
    table = named.load()
    if table is None:
        raise SourceError(f"{named.uri}: no such table in the catalog", path=named.uri)
    return table


def _root_of(location: str) -> str:
    """Return the root of relative file paths: the whole bucket, because files may be anywhere in it."""
    return "/" if is_local(location) else "/".join(location.split("/")[:3])


def _check_columns(table: Table, uri: str) -> None:
    """Refuse a table whose older files have columns under other names, or other columns under the current names."""
    known: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for _, schema in sorted(table.schemas().items()):
        for number in schema.field_ids:
            name = str(schema.find_column_name(number))
            if known.setdefault(number, name) != name:
                text = f"column '{known[number]}' was renamed to '{name}'"
            elif numbers.setdefault(name, number) != number:
                text = f"column '{name}' was dropped and added again"
            else:
                continue
            raise SourceError(f"{uri}: {text}, and older files still have the old column. {NEW_TABLE}", path=uri)


def _current_files(table: Table, uri: str) -> Iterator[ManifestEntry]:
    """Yield the files of the current snapshot."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else _manifests(table, uri, snapshot)
    entries = [it for manifest in manifests for it in manifest.fetch_manifest_entry(table.io)]
    yield from sorted(entries, key=lambda it: (it.sequence_number or 0, it.data_file.file_path))


def _snapshots_after(table: Table, uri: str, last: int | None) -> list[Snapshot]:
    """Return the snapshots after the last one read, the oldest first."""
    found: list[Snapshot] = []
    for snapshot in history(table):
        if snapshot.snapshot_id == last:
            return found[::-1]
        found.append(snapshot)
    if last is None and (not found or is_first(table, found[-1])):
        return found[::-1]
    if last is None:
        raise SourceError(
            f"{uri}: the table was empty when it was read last, and its first snapshots expired since. The rows added "
            f"since are unknown: {NEW_STATE}",
            path=uri,
        )
    raise SourceError(
        f"{uri}: snapshot {last}, which was read last, is no longer in the table's history: it expired, "
        f"or the table was rolled back. The rows added since are unknown: {NEW_STATE}",
        path=uri,
    )


def _added_by(table: Table, uri: str, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """Yield the files that a snapshot has appended, by path."""
    operation = snapshot.summary.operation.value if snapshot.summary is not None else "unknown operation"
    if operation == "replace":
        return  # a compaction: the same rows in other files
    if operation != "append":
        raise SourceError(
            f"{uri}: snapshot {snapshot.snapshot_id} ({operation}) removes or rewrites rows without recording "
            f"which are new: {NEW_STATE}",
            path=uri,
            position=snapshot.snapshot_id,
        )
    number = snapshot.snapshot_id
    written = (it for it in _manifests(table, uri, snapshot) if it.added_snapshot_id == number)
    entries = [it for manifest in written for it in manifest.fetch_manifest_entry(table.io) if it.snapshot_id == number]
    yield from sorted(entries, key=lambda it: str(it.data_file.file_path))


def _manifests(table: Table, uri: str, snapshot: Snapshot) -> list[ManifestFile]:
    from pyiceberg.manifest import ManifestContent

    found = snapshot.manifests(table.io)
    if any(it.content == ManifestContent.DELETES for it in found):
        text = f"snapshot {snapshot.snapshot_id} has delete files, so its rows differ from those in its data files"
        raise SourceError(f"{uri}: {text}: compact the table, then {NEW_STATE}", path=uri)
    return found


def _as_added(entry: ManifestEntry, root: str, uri: str) -> Added:
    file = entry.data_file
    path, kind = plain_location(file.file_path, uri), getattr(file.file_format, "value", str(file.file_format))
    if kind.upper() != "PARQUET":
        raise SourceError(f"{uri}: {path} is a file of {kind}, not of Parquet. {NEW_TABLE}", path=path)
    start = root.rstrip("/") + "/"
    if not path.startswith(start):
        raise SourceError(f"{uri}: {path} is outside {root}, the location of the table. {NEW_TABLE}", path=path)
    return {"path": path.removeprefix(start), "size": file.file_size_in_bytes}


def _appended(ask: Ask, storage: Storage, root: str, added: list[Added], position: Position) -> NewInput:
    """Return the files for a run."""
    files, damaged = Files(root), dict[str, str]()
    paths = [f"{root.rstrip('/')}/{it['path']}" for it in added]
    for it, path, facts in zip(added, paths, ask_facts(ask, storage, paths), strict=True):
        if facts is None:
            text = f"{path}: the table added this file, but it was deleted before it was read: {NEW_STATE}"
            raise SourceError(text, path=path)
        if facts.bytes != it["size"]:
            damaged[path] = f"{path}: {facts.bytes} bytes, but the table declares {it['size']}"
        files.append(it["path"], facts)
    return NewInput(files=files, position=position, adds={it["path"]: it for it in added}, damaged=damaged)
