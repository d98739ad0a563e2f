"""Advice on files: reads only as many rows as requested, from the beginning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost._native import SpanScan, parquet_footer
from fencepost.advice import (
    Advice,
    Named,
    Sample,
    advise_on,
    base_policy,
    named_timestamp,
    narrow,
    possible_keys,
    read_sample,
    resolve_named,
)
from fencepost.auditor import pieces
from fencepost.errors import SourceError
from fencepost.findings import ADVICE_ROWS
from fencepost.lake.auditing import Sources, list_source, places_of, shown
from fencepost.lake.files import Constants, constants_of
from fencepost.lake.scan import FILE, LENGTH, ROW, check_names, numbers_within
from fencepost.lake.tabular import STDIN, counted, hint_of, open_rows, tabular_files
from fencepost.policy import Columns
from fencepost.progress import Progress, ignore, show_rows
from fencepost.state.hive import hive_values
from fencepost.telemetry import observe_report, observe_report_step

SPANS = 1 << 16
"""Number of spans to read at a time."""


def advise(
    source: Sources,
    columns: Named = None,
    *,
    rows_max: int | None = ADVICE_ROWS,
    progress: Progress | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> Advice:
    """Recommend a policy, columns and retention for the rows of a Parquet folder, a file, or a table.

    Args:
        source: As in `fencepost.lake.audit`.
        columns: The identity columns. Missing roles are detected by column name.
        rows_max: Number of rows to read, in the order of an audit. None reads all rows.
        progress: Called as progress("read", done, total), then as progress("judge", done, total), in policies. The
            first total is 0 for text and Arrow files (`fencepost.progress`).
        source_options: As in `fencepost.lake.audit`.

    Raises:
        SourceError: There is nothing to read.
        PolicyError: No column looks like a sequence number or a producer.
        BatchError: Invalid values.
    """
    show, name = progress or ignore, shown(source)

    def work() -> Advice:
        with observe_report_step("read", name):
            streams = tabular_files(places_of(source))
            if streams:
                sample = _read_streams(streams, columns, rows_max, show)
            else:
                sample = _read_files(source, columns, rows_max, show, source_options)
        with observe_report_step("judge", name):
            return advise_on(sample, show)

    return observe_report("advise", name, work, _figures)


def _figures(advice: Advice) -> dict[str, str | int | float]:
    return {"fencepost.rows": advice.rows, "fencepost.policy": advice.policy.name or advice.policy.rules}


def _read_streams(streams: list[str], columns: Named, rows_max: int | None, show: Progress) -> Sample:
    """Read text and Arrow files."""
    timestamp, keys = named_timestamp(columns), possible_keys(columns)
    if STDIN not in streams:  # is read as a job with the recommended columns reads it
        first = next(pieces(open_rows(streams, timestamp, keys=keys), (), is_whole=True))
        columns = resolve_named(columns, first)
        timestamp, keys = columns.timestamp, columns.keys
    rows = counted("read", open_rows(streams, timestamp, keys=keys), show)
    return dataclasses.replace(read_sample(rows, columns, rows_max), source=", ".join(streams))


def _read_files(
    source: Sources, columns: Named, rows_max: int | None, show: Progress, source_options: Mapping[str, Any] | None
) -> Sample:
    """Read Parquet files or a table."""
    opened, files, place = list_source(source, source_options)
    if not files.paths:
        raise SourceError(f"{place}: no .parquet file{hint_of(place, files.ignored)}", path=place)

    def path_and_object(at: int) -> tuple[str, Any]:
        path = files.full_path(at)
        return path, opened.storage.object(path, files.facts(at))

    @cache
    def footer(at: int) -> Any:
        path, object_ = path_and_object(at)
        return parquet_footer(path, object=object_)

    # Only files with rows have bounds, which say whether a column can be an epoch.
    first = next((at for at in range(len(files)) if footer(at).rows), 0)
    head = _head(*path_and_object(first), footer(first).schema)
    if opened.has_folder_columns:
        for name, value in constants_of(files, list(hive_values(files.folders()[first])), files.types)[first].items():
            head = head.append_column(name, pa.array([value] * len(head)))
    found = resolve_named(columns, head)
    check_names(found.names)
    constants = constants_of(files, found.read(found.kept) if opened.has_folder_columns else (), files.types)
    tables: list[pa.Table] = []
    count, is_all = 0, True
    done, bytes_max = 0, sum(files.bytes)
    show("read", 0, rows_max or bytes_max)
    for at in range(len(files)):
        scan = _scan(*path_and_object(at), found, constants[at])
        wanted = scan.rows if rows_max is None else min(scan.rows, rows_max - count)
        rows = 0
        for table in _rows(scan, found, wanted):
            tables.append(table)
            rows += len(table)
            if rows_max is None:
                show("read", done + files.bytes[at] * rows // scan.rows, bytes_max)
            else:
                show("read", count + rows, rows_max)
            show_rows(show, count + rows)
        count, done = count + wanted, done + files.bytes[at]
        if wanted < scan.rows:
            is_all = False
            break
    untracked = count - sum(map(len, tables))
    joined = pa.concat_tables(tables, promote_options="permissive") if tables else narrow(head.slice(0, 0), found)
    return Sample(joined, found, is_all=is_all, source=place, untracked=untracked)


def _head(path: str, object_: Any, footer_schema: Any) -> pa.Table:
    """Return two rows with the minimum and maximum of each column of the first row group; null for other types."""
    schema = pa.schema(footer_schema)
    numbers = [field.name for field in schema if pa.types.is_integer(field.type)]
    bounds = parquet_footer(path, numbers, object=object_).bounds
    known = {name: found[0] for name, found in bounds.items() if found and found[0] is not None}
    columns = [pa.array(known.get(field.name, (None, None)), field.type) for field in schema]
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _scan(path: str, object_: Any, columns: Columns, constants: Constants) -> SpanScan:
    has_times = columns.timestamp is not None
    rules = base_policy(columns).replace(wrap=None)
    return SpanScan(path, columns, 1, timestamp=has_times, constants=constants, policy=rules, object=object_)


def _rows(scan: SpanScan, columns: Columns, wanted: int) -> Iterator[pa.Table]:
    """Return the identity columns and timestamps of the first rows of a file, without those that have no producer."""
    while wanted and (dealt := scan.next(SPANS)) is not None:
        for _, batch in dealt:
            spans = pa.record_batch(batch)
            yield _expanded(spans, columns, wanted)
            if spans.column(ROW)[-1].as_py() >= wanted:
                return


def _expanded(spans: pa.RecordBatch, columns: Columns, wanted: int) -> pa.Table:
    """Expand spans to rows, up to a row of the file."""
    lengths = spans.column(LENGTH).to_numpy().astype(np.int64)
    lengths = np.clip(wanted - spans.column(ROW).to_numpy().astype(np.int64), 0, lengths)
    of_row = np.repeat(np.arange(len(spans)), lengths)
    names = [name for name in spans.schema.names if name not in (LENGTH, FILE, ROW)]
    rows = pa.table([spans.column(name) for name in names], names=names).take(pa.array(of_row))
    seq = rows[columns.seq].combine_chunks().cast(pa.int64()).to_numpy() + numbers_within(lengths)
    return rows.set_column(names.index(columns.seq), columns.seq, pa.array(seq))
