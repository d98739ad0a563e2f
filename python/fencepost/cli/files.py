"""Writes tables to files in the format that the file name's ending selects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import typer

from fencepost.report import plain


def check_table_file(option: str, out: Path) -> None:
    """Raise a usage error for an unknown ending, or for a folder that does not exist."""
    if out.suffix not in _WRITERS:
        raise typer.BadParameter(f"{option}{out}: expected a name that ends in one of {', '.join(_WRITERS)}")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"{option}{out}: there is no folder {out.parent}")


def write_table(rows: Any, out: Path) -> None:
    """Write a `pyarrow.Table` to a file that changes only when it is complete: a part looks like a shorter list.

    A pipe or a device is written directly.
    """
    write, target = _WRITERS[out.suffix], out.resolve()
    if target.exists() and not target.is_file():
        write(rows, out)
        return
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        write(rows, unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def json_lines(rows: Any) -> Iterator[str]:
    for batch in rows.to_batches(max_chunksize=65_536):
        yield from (json.dumps(row, default=plain) + "\n" for row in batch.to_pylist())


def _write_parquet(rows: Any, out: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows, out)


def _write_arrow(rows: Any, out: Path) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(out, rows.schema) as file:
        file.write_table(rows)


def _write_csv(rows: Any, out: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv

    for at, field in enumerate(rows.schema):
        # CSV has no lists, and its texts cannot have arbitrary bytes.
        is_bytes = pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type)
        if is_bytes or pa.types.is_list(field.type):
            texts = [it.hex() if is_bytes else json.dumps(it) for it in rows.column(at).to_pylist()]
            rows = rows.set_column(at, field.name, [texts])
    pyarrow.csv.write_csv(rows, out)


def _write_json_lines(rows: Any, out: Path) -> None:
    with open(out, "w") as file:
        file.writelines(json_lines(rows))


_WRITERS = {".parquet": _write_parquet, ".arrow": _write_arrow, ".csv": _write_csv, ".jsonl": _write_json_lines}
