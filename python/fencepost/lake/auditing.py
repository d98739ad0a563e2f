"""The audit of files: identity columns are read and judged from nothing, and nothing is written.

Files are cut into units of row groups. In each wave the next units are read, a task each, and dealt to shards by key;
then each shard judges its rows in the order of files and rows, a task each. So verdicts are those of judging all rows
one after the other, and memory holds the units of one wave, what the tables remember, and what the auditors tally.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

import fencepost
from fencepost.auditor import CALL_ROWS, Auditor, identity
from fencepost.errors import BatchError
from fencepost.findings import AuditReport
from fencepost.lake.engine import LocalEngine
from fencepost.lake.source import SourceFile, list_files, open_parquet, reading, unchanged
from fencepost.policy import Columns, Policy, check_columns, columns_or_default, resolve

Progress = Callable[[str, int, int], None]
ORDER = "file names, then rows"
UNIT_ROWS = CALL_ROWS
"""Rows of a unit, unless one row group has more."""


def audit(
    source: str | os.PathLike[str],
    policy: str | Policy = "any_order",
    columns: Columns | None = None,
    *,
    threads: int | None = None,
    producers_max: int = 10,
    progress: Progress | None = None,
) -> AuditReport:
    """What the rows of a Parquet folder, or of one file, say about their producers. Nothing is written.

    `policy`, `columns`: as in `DedupJob`; rows are judged in the order of file names, then rows, also under policies
    that depend on order. Suspected resets are looked for where `columns` name a timestamp column. `threads`: as many as
    this process may use processors, unless given. `progress("scan" or "audit", done, total)`: in files, in rows. Also
    reads the sink of a job: its runs follow each other.

    Raises BatchError (column, row, file) and SourceError; PolicyError for arguments that make no sense.
    """
    policy = resolve(policy)
    columns = policy.columns if columns is None else columns_or_default(columns)
    check_columns(policy, columns)
    engine = LocalEngine(threads)
    show = progress or (lambda step, done, total: None)
    root = os.path.abspath(source)
    files = _list(root)
    layouts = engine.run("scan", _layout, files, lambda done, total: show("scan", done, total))
    units = [unit for ordinal, file in enumerate(files) for unit in _units(file, layouts[ordinal])]
    total = sum(unit.rows for unit in units)
    shards = [_Shard(policy, columns, number) for number in range(engine.threads)]
    keep = shards[0].table.keep
    first = 0
    for start in range(0, len(units), engine.threads):
        wave = units[start : start + engine.threads]
        dealt = engine.run("read", partial(_deal, columns=columns, keep=keep, shards=len(shards)), wave)
        parts: list[_Part] = []
        for unit, by_shard in zip(wave, dealt, strict=True):
            parts.append(_Part(unit, first, by_shard))
            first += unit.rows
        engine.run("judge", partial(_Shard.judge, parts=parts), shards)
        show("audit", first, total)
    auditor = shards[0].auditor
    for shard in shards[1:]:
        auditor.merge(shard.auditor)
    return auditor.report(
        *(shard.table for shard in shards),
        order=ORDER,
        producers_max=producers_max,
        source=root,
        files=len(files),
        bytes=sum(file.bytes for file in files),
    )


def _list(root: str) -> list[SourceFile]:
    """The files of a folder, of the runs of a sink one after the other, or the one file that was named."""
    if os.path.isfile(root):
        stat = os.stat(root)
        folder, name = os.path.split(root)
        return [SourceFile(folder, name, stat.st_size, stat.st_mtime_ns, stat.st_ino)]
    names = os.listdir(root) if os.path.isdir(root) else []
    runs = [int(match[1]) for name in names if (match := re.fullmatch(r"run=(\d+)", name))]
    if not runs:
        return list_files(root)
    return [file for run in sorted(runs) for file in list_files(os.path.join(root, f"run={run}"))]


def _layout(file: SourceFile) -> list[int]:
    """The rows of each row group."""
    with reading(file.full_path), open_parquet(file.full_path) as parquet:
        metadata = parquet.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@dataclass(frozen=True)
class Unit:
    """Row groups of a file that follow each other."""

    file: SourceFile
    groups: tuple[int, ...]
    first_row: int
    """In the file."""
    rows: int


def _units(file: SourceFile, group_rows: list[int]) -> Iterator[Unit]:
    """At least one, so that wrong columns are found out even in a file without rows."""
    groups: list[int] = []
    first = rows = 0
    for group, count in enumerate(group_rows):
        if groups and rows + count > UNIT_ROWS:
            yield Unit(file, tuple(groups), first, rows)
            first, rows, groups = first + rows, 0, []
        groups.append(group)
        rows += count
    yield Unit(file, tuple(groups), first, rows)


def read(unit: Unit, names: tuple[str, ...]) -> pa.Table:
    """The columns of a unit. All reading of rows happens here."""
    path = unit.file.full_path
    with unchanged(unit.file), reading(path), open_parquet(path) as parquet:
        schema = parquet.schema_arrow
        for name in names:
            count = len(schema.get_all_field_indices(name))
            if count != 1:
                problem = "stands in it more than once" if count else f"missing; it has {', '.join(schema.names)}"
                raise BatchError(f"{path}: column '{name}': {problem}", column=name)
        return parquet.read_row_groups(list(unit.groups), columns=list(dict.fromkeys(names)), use_threads=False)


Dealt = list[tuple[pa.Table, npt.NDArray[np.int64]]]
"""By shard: its rows of a unit, and where in the unit they stand."""


def _deal(unit: Unit, columns: Columns, keep: tuple[str, ...], shards: int) -> Dealt:
    rows = read(unit, columns.read(keep))
    if shards == 1:
        return [(rows, np.arange(len(rows), dtype=np.int64))]
    with _placed(unit):
        numbers = pa.array(fencepost.shards(rows, shards, columns=columns)).fill_null(0).to_numpy()
    places = [np.flatnonzero(numbers == shard) for shard in range(shards)]
    return [(rows.take(pa.array(place)), place) for place in places]


@dataclass(frozen=True)
class _Part:
    """A unit that was read. `first`: its first row among all rows of the audit."""

    unit: Unit
    first: int
    dealt: Dealt


class _Shard:
    """The keys of one task: what is known of them, and what was found."""

    def __init__(self, policy: Policy, columns: Columns, number: int) -> None:
        self.number = number
        self.columns = columns
        self.table = fencepost.StateTable(policy, keep=("timestamp",) if columns.timestamp is not None else ())
        self.auditor = Auditor(policy, columns, self.table)

    def judge(self, parts: list[_Part]) -> None:
        """The shard's rows of a wave, in the order of files and rows."""
        for part in parts:
            rows, places = part.dealt[self.number]
            with _placed(part.unit, places):
                verdicts = self.table.apply(rows, self.columns)
            self.auditor.add(identity(rows, self.columns, self.table.keep), verdicts, places=part.first + places)


@contextmanager
def _placed(unit: Unit, places: npt.NDArray[np.int64] | None = None) -> Iterator[None]:
    """While rows of a unit are judged: a BatchError names the file, and the row as the file counts it."""
    try:
        yield
    except BatchError as error:
        text, row = str(error), error.row
        if row is not None:
            row = unit.first_row + (row if places is None else int(places[row]))
            text = text.replace(f"row {error.row}:", f"row {row}:", 1)
        raise BatchError(f"{unit.file.full_path}: {text}", column=error.column, row=row) from error
