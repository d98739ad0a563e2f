"""Reads a job's output: the kept rows of all complete versions.

For a folder or prefix these are the files of applied versions, for an Iceberg table those of its current snapshot.
"""

from __future__ import annotations

import os
import re
from abc import ABCMeta
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from pyarrow import fs

from fencepost._native import parquet_footer
from fencepost.errors import SinkError
from fencepost.lake.schemas import from_text, merged
from fencepost.lake.sources import IcebergTable
from fencepost.lake.storage import ObjectStorage
from fencepost.state.disk import Disk
from fencepost.state.hive import hive_values
from fencepost.state.iceberg_tables import NamedTable, is_iceberg, schema_of
from fencepost.state.prefix import RunPrefixes
from fencepost.state.sink_kinds import layout_of, open_sink
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import RemoteStore, absolute, is_local


def applied_files(sink: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the paths or URIs of a sink's files with kept rows, without those of incomplete versions.

    For an Iceberg table: the files of its current snapshot, including those that other writers added. Refused rows and
    lists of missing ranges are not included.

    Args:
        sink: A folder, the URI of an object store, or the name of an Iceberg table.
        options: Options of the object store (`fencepost.state.open_store`) or of the table's catalog.

    Raises:
        SinkError: There is no such sink or table.
        SourceError: The table's rows are not just those of its files (`docs/iceberg.md`).
    """
    place = absolute(sink)
    if is_iceberg(place):
        files = _open_table(place, options)[0].files()
        return [files.full_path(number) for number in range(len(files))]
    opened = _open(place, options)
    return [f"{opened.location}/{name}" for name in opened.applied_files()]


def dataset(sink: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> ds.Dataset:
    """Return the rows of `applied_files` as a pyarrow dataset. Hive-style folder names are columns, including `run`.

    Contains the columns of all files, each with the widest type in any file, as jobs with `schema="merge"` write them.
    A column that only folders have is int32 if all values are such integers (without leading zeros), otherwise text. An
    Iceberg table has only its own columns. For polars: `polars.scan_pyarrow_dataset(dataset(sink))`. Arguments and
    errors are those of `applied_files`.
    """
    place = absolute(sink)
    if is_iceberg(place):
        return _of_table(*_open_table(place, options))
    opened = _open(place, options)
    names = opened.applied_files()
    if not names:
        return ds.dataset(pa.table({}))
    schema = _merged_schema(opened, names)
    whole = schema or _schema_of(opened, names[0])
    folders = _folder_columns(names, whole)
    how: dict[str, Any] = {"format": "parquet", "partitioning": ds.HivePartitioning(folders)}
    if isinstance(opened, RunPrefixes):
        how["filesystem"] = _objects(opened.store)
    else:
        names = [f"{opened.path}/{name}" for name in names]
        how["partition_base_dir"] = str(opened.path)
    of_files = [field for field in whole if field.name not in folders.names]
    if schema is None and len(of_files) == len(whole):
        return ds.dataset(names, **how)
    return ds.dataset(names, schema=pa.schema([*of_files, *folders]), **how)


def _of_table(table: IcebergTable, schema: pa.Schema) -> ds.Dataset:
    files = table.files()
    if not len(files):
        return ds.dataset(schema.empty_table())
    if isinstance(table.storage, ObjectStorage):
        objects = _objects(table.storage.store)
        return ds.dataset(files.paths, schema=schema, format="parquet", filesystem=objects)
    paths = [files.full_path(number) for number in range(len(files))]
    return ds.dataset(paths, schema=schema, format="parquet")


def _folder_columns(names: list[str], schema: pa.Schema) -> pa.Schema:
    """Return the columns of folder names, with the types that files have or that pyarrow would infer."""
    values: dict[str, set[str | None]] = {}
    for folder in {name.rpartition("/")[0] + "/" for name in names}:
        for column, value in hive_values(folder).items():
            values.setdefault(column, set()).add(value)
    fields = []
    for column, found in values.items():
        is_number = all(it is None or re.fullmatch(r"0|-?[1-9]\d{0,8}", it) for it in found) and found != {None}
        inferred = pa.int32() if is_number else pa.string()
        fields.append(pa.field(column, schema.field(column).type if column in schema.names else inferred))
    return pa.schema(fields)


def merged_schema(sink: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> pa.Schema | None:
    """Return the columns of all `applied_files` without folder columns; None if the first file has all of them.

    Raises the errors of `applied_files`, and BatchError if no schema reads all files.
    """
    place = absolute(sink)
    if is_iceberg(place):
        return _open_table(place, options)[1]
    opened = _open(place, options)
    names = opened.applied_files()
    return _merged_schema(opened, names) if names else None


def _merged_schema(opened: RunFolders | RunPrefixes, names: list[str]) -> pa.Schema | None:
    first = _schema_of(opened, names[0])
    noted = opened.schema()
    schema = from_text(noted) if noted else reduce(merged, (_schema_of(opened, name) for name in names[1:]), first)
    return None if schema == first else schema


def _schema_of(opened: RunFolders | RunPrefixes, name: str) -> pa.Schema:
    reader = opened.store.object(name, *opened.store.head(name)) if isinstance(opened, RunPrefixes) else None
    return pa.schema(parquet_footer(f"{opened.location}/{name}", object=reader).schema)


def _open(place: str, options: Mapping[str, Any] | None) -> RunFolders | RunPrefixes:
    layout = layout_of(place, options)
    if layout != "run":
        raise SinkError(f"{place}: a table ({layout}), not a folder of versions: read it with a reader of such tables")
    if is_local(place) and not Path(place).is_dir():
        raise SinkError(f"{place}: no such folder")
    opened = open_sink(place, "run", Disk(), options)
    assert isinstance(opened, RunFolders | RunPrefixes)
    return opened


def _open_table(place: str, options: Mapping[str, Any] | None) -> tuple[IcebergTable, pa.Schema]:
    """Return a table and its columns."""
    named = NamedTable(place, options)
    table = named.load()
    if table is None:
        raise SinkError(f"{place}: no such table in the catalog")
    return IcebergTable(named, is_own=True), schema_of(table)


def _objects(store: RemoteStore) -> fs.FileSystem:
    return fs.PyFileSystem(_Objects(store))


class _Objects(fs.FileSystemHandler, metaclass=ABCMeta):  # type: ignore[misc]
    """A read-only Arrow file system over the objects of a store."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store

    def get_type_name(self) -> str:
        return "fencepost"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [fs.FileInfo(path, fs.FileType.File, size=self.store.size(path)) for path in paths]

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self.store.object(path, *self.store.head(path)).open(), mode="r")

    def _refuse(self, *_: object, **__: object) -> Any:
        raise NotImplementedError("the files of a sink are read-only")

    open_input_stream = open_input_file
    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
