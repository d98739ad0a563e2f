"""Stage 3, a task per input file: its kept rows into a file that is otherwise like it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fencepost.lake.judge import Drop
from fencepost.lake.source import SourceFile, footer_crc, open_parquet, reading, unchanged
from fencepost.state.disk import Disk


@dataclass(frozen=True, kw_only=True)
class WriteItem:
    file: SourceFile
    ordinal: int
    rows: int
    footer_crc: int
    """As the first pass found them."""
    drops: tuple[Drop, ...]
    folder: str
    disk: Disk


@dataclass(frozen=True, kw_only=True)
class Written:
    """A prepared output, under a name that is its attempt's own; None where no row of the file is kept."""

    path: str | None
    rows: int
    bytes: int
    footer_crc: int


def write(item: WriteItem) -> Written:
    """Write a file's kept rows: a copy byte for byte if that is all of them, else row group by row group.

    Schema, key-value metadata, codecs, row order and row groups stay. Memory: one row group and a byte a row. Raises
    SourceError, also where the file is not what the first pass read.
    """
    dropped = sum(drop.rows for drop in item.drops)
    if dropped == item.rows:
        return Written(path=None, rows=0, bytes=0, footer_crc=0)
    target = Path(item.folder) / f"part-{item.ordinal:05}-{uuid4().hex[:12]}.parquet"
    with unchanged(item.file, item.footer_crc):
        if dropped == 0:
            # Never a hard link: it would share an inode with a source that somebody may append to or truncate.
            shutil.copyfile(item.file.full_path, target)
        else:
            _filter(item.file.full_path, target, _mask(item))
    item.disk.seal(target)
    with pq.ParquetFile(target) as written:
        rows = written.metadata.num_rows
    if rows != item.rows - dropped:
        raise AssertionError(f"{target} has {rows} rows, {item.rows} were read and {dropped} are not kept")
    return Written(path=str(target), rows=rows, bytes=target.stat().st_size, footer_crc=footer_crc(target))


def _mask(item: WriteItem) -> npt.NDArray[np.bool_]:
    """True for each row of the file that is kept."""
    mask = np.ones(item.rows, dtype=np.bool_)
    for drop in item.drops:
        with pa.memory_map(drop.path) as file:
            mask[pa.ipc.open_file(file).get_batch(drop.batch).column(0).to_numpy()] = False
    return mask


def _filter(source: str, target: Path, mask: npt.NDArray[np.bool_]) -> None:
    with reading(source):
        file = open_parquet(source)
    with file, pq.ParquetWriter(target, file.schema_arrow, **_writer_options(file.metadata)) as writer:
        start = 0
        for number in range(file.metadata.num_row_groups):
            size = file.metadata.row_group(number).num_rows
            kept = mask[start : start + size]
            start += size
            if kept.any():
                with reading(source):
                    rows = file.read_row_group(number, use_threads=False)
                if not kept.all():
                    rows = rows.filter(pa.array(kept))
                writer.write_table(rows, row_group_size=len(rows))


def _writer_options(metadata: pq.FileMetaData) -> dict[str, Any]:
    """What makes the new file like the old one, as its first row group shows it."""
    group = metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {
        "version": metadata.format_version,
        "compression": {column.path_in_schema: _codec(column.compression) for column in columns},
        "use_dictionary": [column.path_in_schema for column in columns if column.has_dictionary_page] or False,
        # Spark's old timestamps: written as anything else, some readers would refuse or shift them.
        "use_deprecated_int96_timestamps": any(column.physical_type == "INT96" for column in columns),
    }


def _codec(name: str) -> str:
    return "NONE" if name == "UNCOMPRESSED" else name
