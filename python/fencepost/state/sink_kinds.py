"""The kinds of sinks that are opened by their locations.

A new kind needs one line in `KINDS`; see docs/adding-sources.md. The modules of most kinds are imported when a sink of
the kind is opened, because jobs without such a sink do not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fencepost.errors import SinkError
from fencepost.state.commit import Sink
from fencepost.state.disk import Disk
from fencepost.state.iceberg_tables import is_iceberg
from fencepost.state.sinks import IN_PLACE, MARKER, RunFolders
from fencepost.state.stores import LocalStore, RemoteStore, open_store


def open_sink(uri: str, layout: str, disk: Disk, options: Mapping[str, Any] | None = None) -> Sink:
    """Open a sink by location and layout (one of KINDS).

    `options`: of an object store or catalog, see `fencepost.state.open_store` and `fencepost.state.iceberg_tables`.
    Raises SinkError if the layout does not match the location.
    """
    for kind in KINDS:
        if kind.layout == layout:
            return kind.open(uri, disk, options)
    raise SinkError(
        f"{uri}: its sink has the layout '{layout}', which cannot be opened from a path or URI: make the call in "
        "Python, and pass sink="
    )


def layout_of(place: str, options: Mapping[str, Any] | None = None) -> str:
    """Return the layout of a location, existing or to be created. Raises StoreError."""
    return next(kind.layout for kind in KINDS if kind.is_at(place, options))


def _store(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> LocalStore | RemoteStore:
    store = open_store(uri, sync=disk.sync, options=options)
    if not isinstance(store, LocalStore | RemoteStore):
        raise SinkError(f"{uri}: a sink is a local folder or a prefix of an object store (s3://, gs://, az://)")
    return store


def _open_folder(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.prefix import RunPrefixes

    store = _store(uri, disk, options)
    return RunFolders(store.folder, disk) if isinstance(store, LocalStore) else RunPrefixes(store)


def _is_delta(place: str, options: Mapping[str, Any] | None) -> bool:
    from fencepost.state.delta_sink import is_delta_sink

    store = open_store(place, options=options)
    return not store.exists(MARKER) and is_delta_sink(store)


def _open_delta(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.delta_sink import DeltaSink

    return DeltaSink(_store(uri, disk, options), disk)


def _open_in_place(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.in_place import InPlace

    store = _store(uri, disk, options)
    if not isinstance(store, LocalStore):
        raise SinkError(f"{uri}: only a Delta table in a local folder can be deduplicated in place")
    return InPlace(store, disk)


def _open_iceberg(uri: str, disk: Disk, options: Mapping[str, Any] | None) -> Sink:
    from fencepost.state.iceberg_sink import IcebergSink

    return IcebergSink(uri, disk, options)


class Kind(NamedTuple):
    """A kind of sink that is opened by its location."""

    layout: str
    is_at: Callable[[str, Mapping[str, Any] | None], bool]
    open: Callable[[str, Disk, Mapping[str, Any] | None], Sink]


KINDS = (
    Kind("iceberg", lambda place, options: is_iceberg(place), _open_iceberg),
    Kind("delta", _is_delta, _open_delta),
    Kind("run", lambda place, options: True, _open_folder),
    Kind(IN_PLACE, lambda place, options: False, _open_in_place),
)
"""The first match counts. Whether a table is both source and sink is decided by the caller."""
