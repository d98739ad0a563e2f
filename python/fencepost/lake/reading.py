"""What a job has written, for those who read it: the kept rows of all versions that are there as a whole.

Of a folder or prefix these are the files of applied versions, of an Iceberg table those of its current snapshot.
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
from fencepost.state.sinks import RunFolders, layout_of, open_sink
from fencepost.state.stores import RemoteStore, absolute, is_local


def shown_files(sink: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> list[str]:
    """The paths or URIs of the files with kept rows of a sink, but for those of a version that is there in part only.

    Of an Iceberg table: the files of its current snapshot, also those that others have added.

    `options`: of an object store, see `fencepost.state.open_store`, or of a table's catalog. Refused rows and lists of
    missing ranges are not among them. Raises SinkError where there is no sink of files and no such table; SourceError
    for a table whose rows are not just those of its files (`docs/iceberg.md`).
    """
    place = absolute(sink)
    if is_iceberg(place):
        files = _open_table(place, options)[0].files()
        return [files.full_path(number) for number in range(len(files))]
    opened = _open(place, options)
    return [f"{opened.location}/{name}" for name in opened.shown_files()]


def dataset(sink: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> ds.Dataset:
    """The rows of `shown_files` as a pyarrow dataset; names of Hive-style folders are columns, `run` among them.

    The columns of all files, each of the widest type that a file has, as a job with `schema="merge"` writes them. A
    column that only folders have is of 32-bit integers where all values are such, else of text. Of an Iceberg table:
    its columns, and no others.
    For polars: `polars.scan_pyarrow_dataset(dataset(sink))`. Raises as `shown_files` does.
    """
    place = absolute(sink)
    if is_iceberg(place):
        return _of_table(*_open_table(place, options))
    opened = _open(place, options)
    names = opened.shown_files()
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
    """The columns that names of folders give, of the types that files have or that pyarrow would take."""
    values: dict[str, set[str | None]] = {}
    for folder in {name.rpartition("/")[0] + "/" for name in names}:
        for column, value in hive_values(folder).items():
            values.setdefault(column, set()).add(value)
    fields = []
    for column, found in values.items():
        is_number = all(it is None or re.fullmatch(r"-?\d{1,9}", it) for it in found) and found != {None}
        inferred = pa.int32() if is_number else pa.string()
        fields.append(pa.field(column, schema.field(column).type if column in schema.names else inferred))
    return pa.schema(fields)


def merged_schema(sink: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> pa.Schema | None:
    """The columns of all of `shown_files`, but for those of folders; None where the first file has all of them.

    Raises as `shown_files` does, and BatchError where no schema reads all files.
    """
    place = absolute(sink)
    if is_iceberg(place):
        return _open_table(place, options)[1]
    opened = _open(place, options)
    return _merged_schema(opened, opened.shown_files())


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
        raise SinkError(f"{place}: a table ({layout}), which its own readers read")
    if is_local(place) and not Path(place).is_dir():
        raise SinkError(f"{place}: no such folder")
    opened = open_sink(place, "run", Disk(), options)
    assert isinstance(opened, RunFolders | RunPrefixes)
    return opened


def _open_table(place: str, options: Mapping[str, Any] | None) -> tuple[IcebergTable, pa.Schema]:
    """A table, and its columns."""
    named = NamedTable(place, options)
    table = named.load()
    if table is None:
        raise SinkError(f"{place}: no such table in the catalog")
    return IcebergTable(named, is_own=True), schema_of(table)


def _objects(store: RemoteStore) -> fs.FileSystem:
    return fs.PyFileSystem(_Objects(store))


class _Objects(fs.FileSystemHandler, metaclass=ABCMeta):  # type: ignore[misc]
    """Arrow's view of the objects of a store, by their names. It only reads."""

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
        raise NotImplementedError("the files of a sink are only read")

    open_input_stream = open_input_file
    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
