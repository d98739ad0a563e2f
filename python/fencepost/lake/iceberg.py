"""An Iceberg table as input: the files that its snapshots have appended since the one that was read last.

A snapshot that appends files is new input; one that only moves rows to other files (compaction) is none. A snapshot
that takes rows away or writes some anew says of no row whether it is new: the run stops there. Files are read as they
are, so tables with delete files, with renamed columns or with files that are not Parquet are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.errors import SourceError
from fencepost.lake.asking import Ask, ask_facts, here
from fencepost.lake.files import Files
from fencepost.lake.storage import LocalStorage, ObjectStorage, Storage
from fencepost.state.iceberg_tables import NamedTable, history, plain_location
from fencepost.state.stores import RemoteStore, is_local

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Position = dict[str, Any]
"""The id of the table and the newest snapshot that was read, None before its first: {"table", "snapshot"}."""
Added = dict[str, Any]
"""A file as a decision remembers it until it was read: {"path", "size"}."""

NEW_STATE = "read the table as it is now with a new state"


class Appended(NamedTuple):
    """What is to be read of a table."""

    files: Files
    position: Position
    """Behind it."""
    adds: dict[str, Added]
    """Path to what a decision says of a file that has to wait."""
    bad: dict[str, str]
    """Full path to reason of files that are not of the size that the table says."""


def open_files(named: NamedTable) -> Storage:
    """How a table's files are reached. Raises SourceError where there is no table."""
    table = _loaded(named)
    root = _root_of(plain_location(table.location(), named.uri))
    return LocalStorage() if is_local(root) else ObjectStorage(RemoteStore(root, named.store_options(table)))


def list_appended(
    named: NamedTable,
    storage: Storage,
    position: Position | None,
    pending: Iterable[Added] = (),
    ask: Ask = here,
) -> Appended:
    """The files that were appended to a table since `position`, and the position behind them.

    None: all files of the current snapshot, in the order in which they were added. `pending`: files from before
    `position` that were not read yet; they come first. Raises SourceError where the table is another, where the
    snapshot that was read last is gone, and at a snapshot that takes rows away or writes some anew.
    """
    table = _loaded(named)
    uri, new = named.uri, {"table": str(table.metadata.table_uuid), "snapshot": table.metadata.current_snapshot_id}
    _check_columns(table, uri)
    with named.answering("read"):
        if position is None:
            entries = _live(table, uri)
        else:
            if position["table"] != new["table"]:
                raise SourceError(
                    f"{uri}: another table than the one that was read (its id is {new['table']}, was "
                    f"{position['table']}): it needs a state of its own",
                    path=uri,
                )
            snapshots = _since(table, uri, position["snapshot"])
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
    """What paths of files are relative to: files may be anywhere, but for other buckets."""
    return "/" if is_local(location) else "/".join(location.split("/")[:3])


def _check_columns(table: Table, uri: str) -> None:
    """Refuse a table whose older files have columns under other names than it has now, or others under its names."""
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
            text += ", and older files are read by the names that they were written with: write a table without"
            raise SourceError(f"{uri}: {text}", path=uri)


def _live(table: Table, uri: str) -> Iterator[ManifestEntry]:
    """The files of the current snapshot."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else _manifests(table, uri, snapshot)
    entries = [it for manifest in manifests for it in manifest.fetch_manifest_entry(table.io)]
    yield from sorted(entries, key=lambda it: (it.sequence_number or 0, it.data_file.file_path))


def _since(table: Table, uri: str, last: int | None) -> list[Snapshot]:
    """The snapshots behind the one that was read last, the oldest first."""
    found: list[Snapshot] = []
    for snapshot in history(table):
        if snapshot.snapshot_id == last:
            return found[::-1]
        found.append(snapshot)
    if last is None and not (found and found[-1].parent_snapshot_id is not None):
        return found[::-1]
    raise SourceError(
        f"{uri}: snapshot {last}, which was read last, is not in the table's history any more: it was expired, or the "
        f"table was taken back to an older one. Nobody can tell which rows were added since: {NEW_STATE}",
        path=uri,
    )


def _added_by(table: Table, uri: str, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """The files that a snapshot has appended, by path."""
    operation = snapshot.summary.operation.value if snapshot.summary is not None else "unknown operation"
    if operation == "replace":
        return  # the same rows in other files
    if operation != "append":
        raise SourceError(
            f"{uri}: snapshot {snapshot.snapshot_id} ({operation}) takes rows away or writes some anew, and does not "
            f"say which rows are new: {NEW_STATE}",
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
        text = f"snapshot {snapshot.snapshot_id} has delete files, so its rows are not just those of its data files"
        raise SourceError(f"{uri}: {text}: compact the table, then {NEW_STATE}", path=uri)
    return found


def _as_added(entry: ManifestEntry, root: str, uri: str) -> Added:
    file = entry.data_file
    path, kind = plain_location(file.file_path, uri), getattr(file.file_format, "value", str(file.file_format))
    if kind.upper() != "PARQUET":
        raise SourceError(f"{uri}: {path} is a file of {kind}; only Parquet is read", path=path)
    start = root.rstrip("/") + "/"
    if not path.startswith(start):
        raise SourceError(f"{uri}: {path} is not in {root}, where the table is; its files cannot be reached", path=path)
    return {"path": path.removeprefix(start), "size": file.file_size_in_bytes}


def _appended(ask: Ask, storage: Storage, root: str, added: list[Added], position: Position) -> Appended:
    """The files as a run reads them."""
    found = Appended(Files(root), position, {}, {})
    paths = [f"{root.rstrip('/')}/{it['path']}" for it in added]
    for it, path, facts in zip(added, paths, ask_facts(ask, storage, paths), strict=True):
        if facts is None:
            text = f"{path}: the table has added this file, and it is gone before it was read: {NEW_STATE}"
            raise SourceError(text, path=path)
        if facts.bytes != it["size"]:
            found.bad[path] = f"{path}: {facts.bytes} bytes, the table says {it['size']}"
        found.files.append(it["path"], facts)
        found.adds[it["path"]] = it
    return found
