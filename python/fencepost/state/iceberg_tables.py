"""Iceberg tables by name, `iceberg://<catalog>/<namespace>.<table>`: their files and history.

The state contains the name. Access to the catalog (its `type`, `uri`, `warehouse`, `token`, `s3.*`) is configured by
options, as in PyIceberg's `load_catalog`. Other options come from PyIceberg's configuration (`.pyiceberg.yaml`,
`PYICEBERG_CATALOG__<NAME>__...`). Options may contain secrets, so they are never part of decisions, plans or logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fencepost.errors import BatchError, DependencyError, FencepostError, SinkError, StoreError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

SCHEME = "iceberg://"
S3_SCHEMES = ("s3", "s3a", "s3n")
STORE_OPTIONS = {
    "client.region": "region",
    "client.access-key-id": "access_key_id",
    "client.secret-access-key": "secret_access_key",
    "client.session-token": "session_token",
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
}
"""Maps properties of a catalog to options of `fencepost.state.open_store`. Later ones override earlier ones."""


def is_iceberg(place: str) -> bool:
    """Return whether a location is the name of an Iceberg table."""
    return place.startswith(SCHEME)


class NamedTable:
    """A table by name, existing or not. Raises StoreError if the catalog is not available."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        match = re.fullmatch(rf"{SCHEME}([\w-]+)/([^/.]+(?:\.[^/.]+)+)", uri)
        if match is None:
            shape = "expected iceberg://<catalog>/<namespace>.<table>"
            raise StoreError(f"{uri.rpartition('@')[2]}: not the name of an Iceberg table: {shape}")
        check_library(uri)
        self.uri, self.catalog_name, self.name = uri, match[1], match[2]
        self.options = {name: str(value) for name, value in (options or {}).items()}

    @cached_property
    def catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        with self.answering("opened"):
            return load_catalog(self.catalog_name, **self.options)

    def load(self) -> Table | None:
        """Return the current table, if it exists."""
        from pyiceberg.exceptions import NoSuchTableError

        with self.answering("read"):
            try:
                return self.catalog.load_table(self.name)
            except NoSuchTableError:
                return None

    def make(self) -> Table:
        """Return the table, created without columns if missing. Raises SinkError if its namespace does not exist."""
        from pyiceberg.exceptions import NoSuchNamespaceError
        from pyiceberg.schema import Schema

        with self.answering("written"):
            try:
                return self.catalog.create_table_if_not_exists(self.name, Schema(), properties={"format-version": "2"})
            except NoSuchNamespaceError as error:
                namespace = self.name.rpartition(".")[0]
                raise SinkError(f"{self.uri}: the catalog has no namespace '{namespace}': create it there") from error

    @contextmanager
    def answering(self, what: str) -> Iterator[None]:
        """Convert errors of the library, which have no common class. Their texts may contain options, including
        secrets."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            yield
        except (FencepostError, CommitFailedException):
            raise
        except Exception as error:
            text = str(error).strip() or repr(error)
            for name, value in self.options.items():
                text = text.replace(value, f"<{name}>") if value else text
            raise StoreError(f"{self.uri}: cannot be {what}: {type(error).__name__}: {text}", path=self.uri) from None

    def store_options(self, table: Table) -> dict[str, Any]:
        """Return options for the object store of the table's files, including credentials from the catalog."""
        properties = {**self.options, **table.io.properties}
        options: dict[str, Any] = {
            ours: properties[theirs] for theirs, ours in STORE_OPTIONS.items() if properties.get(theirs)
        }
        if str(options.get("endpoint", "")).startswith("http://"):
            options["allow_http"] = True
        return options


def check_library(place: object) -> None:
    """Raise FencepostError if the library for Iceberg tables is not installed."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        text = f"{place}: Iceberg tables need more packages ({error}): pip install 'fencepost[iceberg]'"
        raise DependencyError(text) from error


def plain_location(location: str, about: str) -> str:
    """Convert a location in a table's metadata to a local path or an s3:// URI.

    Raises SinkError for other file systems.
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location.removeprefix("file:")
    if scheme == "file":
        return rest
    if scheme in S3_SCHEMES:
        return f"s3://{rest}"
    raise SinkError(f"{about}: its files are in {scheme}://; only local folders and S3 are supported")


def history(table: Table) -> list[Snapshot]:
    """Return the current snapshot and its ancestors, the newest first, as far as the table contains them."""
    from pyiceberg.table.snapshots import ancestors_of

    return list(ancestors_of(table.current_snapshot(), table.metadata))


def is_first(table: Table, snapshot: Snapshot) -> bool:
    """Return whether a snapshot never had a parent. PyIceberg removes the id of an expired one, so files count."""
    return snapshot.parent_snapshot_id is None and all(
        it.added_snapshot_id == snapshot.snapshot_id and not it.existing_files_count and not it.deleted_files_count
        for it in snapshot.manifests(table.io)
    )


def schema_of(table: Table) -> Any:
    """Return the Arrow schema of a table's rows, normalized by `columns_of`."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return columns_of(schema_to_pyarrow(table.schema(), include_field_ids=False))


def columns_of(schema: Any) -> Any:
    """Return an Arrow schema with the types that a table returns, without metadata. Raises BatchError (column)."""
    import pyarrow as pa  # type: ignore[import-untyped]

    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _type_of(field.type)))
        except TypeError as error:
            raise BatchError(f"an Iceberg table has no type for {error}; cast the column", column=field.name) from None
    return pa.schema(fields)


def _type_of(kind: Any) -> Any:
    """Return the type that the table returns. Raises TypeError for types that format version 2 lacks."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _type_of(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([pa.field(it.name, _type_of(it.type)) for it in kind])
    if types.is_map(kind):
        return pa.map_(_type_of(kind.key_type), _type_of(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_type_of(kind.value_type))
    if types.is_signed_integer(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    if types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    same = (types.is_boolean, types.is_float32, types.is_float64, types.is_date32, types.is_decimal128)
    if any(is_one(kind) for is_one in same) or types.is_fixed_size_binary(kind) or kind == pa.time64("us"):
        return kind
    raise TypeError(kind)
