"""The Python door under pytest-benchmark: every policy, shape of input and type of key, each answer checked.

pytest bench/test_memory.py                        # 1 M rows
FENCEPOST_BENCH_ROWS=21000000 pytest bench/test_memory.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench import workload
from bench.workload import LONE, RANDOM, RUNS, Rows

ROWS = int(os.environ.get("FENCEPOST_BENCH_ROWS", "1000000"))
ROUNDS = int(os.environ.get("FENCEPOST_BENCH_ROUNDS", "5"))
POLICIES = ("any_order", "in_order", "kafka", "strict", "watermark", "kafka_offsets")
COLUMNS = {
    "watermark": fp.Columns(epoch=None),
    "kafka_offsets": fp.Columns(epoch=None),
}
WORKLOADS = {"runs": RUNS, "random": RANDOM, "lone": LONE}

Benchmark = Any  # pytest-benchmark's fixture, which has no types


@cache
def made(shape: str) -> Rows:
    return workload.make(WORKLOADS[shape], ROWS)


def judge(table: fp.StateTable, pieces: list[Any], columns: fp.Columns | None = None) -> int:
    """How many rows are kept."""
    return sum(table.apply(piece, columns).counts[fp.Verdict.ACCEPTED] for piece in pieces)


def measure(benchmark: Benchmark, run: Callable[..., int], expected: int, rows: int = 0, **pedantic: Any) -> None:
    benchmark.extra_info["rows"] = rows or ROWS
    assert benchmark.pedantic(run, rounds=ROUNDS, warmup_rounds=1, **pedantic) == expected


@pytest.mark.parametrize("shape", WORKLOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_apply(benchmark: Benchmark, policy: str, shape: str) -> None:
    rows = made(shape)
    pieces = rows.batches
    measure(benchmark, lambda: judge(fp.StateTable(policy), pieces, COLUMNS.get(policy)), rows.kept)


@pytest.mark.parametrize("shape", WORKLOADS)
def test_apply_to_known_keys(benchmark: Benchmark, shape: str) -> None:
    """Rows that follow what the table holds already: nothing grows."""
    rows = made(shape)
    known = fp.StateTable("any_order")
    known.apply(rows.table)
    snapshot, pieces = known.snapshot(), _continued(rows)

    def restore() -> tuple[tuple[fp.StateTable, list[Any]], dict[str, Any]]:
        return (fp.StateTable.restore(snapshot), pieces), {}

    measure(benchmark, judge, rows.kept, setup=restore)


def _continued(rows: Rows) -> list[Any]:
    """The same rows, each key's sequences moved up to where they ended."""
    counts = rows.table.group_by(["pid", "partition"]).aggregate([("seq", "max")])
    joined = rows.table.append_column("row", pa.array(np.arange(rows.table.num_rows)))
    joined = joined.join(counts, ["pid", "partition"]).sort_by("row")
    seq = pc.add(pc.add(joined["seq"], joined["seq_max"]), pa.scalar(1, pa.int32()))
    table = joined.select(["pid", "epoch", "partition"]).append_column("seq", seq.cast(pa.int32()))
    return list(table.combine_chunks().to_batches(max_chunksize=workload.BATCH_ROWS))


@pytest.mark.parametrize("shape", WORKLOADS)
def test_check(benchmark: Benchmark, shape: str) -> None:
    """`check` of the first million rows against an empty table."""
    rows = made(shape)
    first = rows.batches[0]
    table = fp.StateTable("any_order")
    expected = judge(fp.StateTable("any_order"), [first])
    measure(benchmark, lambda: table.check(first).counts[fp.Verdict.ACCEPTED], expected, rows=first.num_rows)
    assert len(table) == 0


INPUTS: dict[str, Callable[[Rows], list[Any]]] = {
    "one pyarrow table": lambda rows: [rows.table],
    "table of many chunks": lambda rows: [pa.Table.from_batches(rows.table.to_batches(max_chunksize=8_192))],
    "batches of 10 000": lambda rows: rows.table.to_batches(max_chunksize=10_000),
    "NumPy mapping": lambda rows: [{name: rows.table[name].to_numpy() for name in rows.table.column_names}],
    "polars": lambda rows: [pl.from_arrow(rows.table)],
    "pandas": lambda rows: [rows.table.to_pandas()],
    "64-bit integers": lambda rows: [rows.table.cast(pa.schema([(name, pa.int64()) for name in workload.COLUMNS]))],
    "string pids": lambda rows: [_with_pid(rows, _text(rows))],
    "dictionary pids": lambda rows: [_with_pid(rows, _text(rows).dictionary_encode())],
    "UUID pids": lambda rows: [_with_pid(rows, _uuids(rows))],
}


@pytest.mark.parametrize("shape", ["runs", "random"])
@pytest.mark.parametrize("kind", INPUTS)
def test_input(benchmark: Benchmark, kind: str, shape: str) -> None:
    rows = made(shape)
    pieces = INPUTS[kind](rows)
    measure(benchmark, lambda: judge(fp.StateTable("any_order"), pieces), rows.kept)


def _with_pid(rows: Rows, pid: pa.ChunkedArray) -> pa.Table:
    return rows.table.set_column(0, "pid", pid)


def _text(rows: Rows) -> pa.ChunkedArray:
    return pc.binary_join_element_wise("producer", rows.table["pid"].cast(pa.string()), "-")


def _uuids(rows: Rows) -> pa.ChunkedArray:
    padded = pc.utf8_lpad(rows.table["pid"].cast(pa.string()), 16, "0")
    return padded.cast(pa.binary()).cast(pa.binary(16))


@pytest.mark.parametrize("shape", ["runs", "random"])
def test_composite_key(benchmark: Benchmark, shape: str) -> None:
    rows = made(shape)
    topic = pa.array(["orders"] * rows.table.num_rows).dictionary_encode()
    columns = fp.Columns(partition=("topic", "partition"))
    pieces = [rows.table.append_column("topic", topic)]
    measure(benchmark, lambda: judge(fp.StateTable("any_order"), pieces, columns), rows.kept)


@pytest.mark.parametrize("kind", ["pyarrow", "polars", "pandas"])
def test_deduplicate(benchmark: Benchmark, kind: str) -> None:
    rows = made("runs")
    frame = {"pyarrow": rows.table, "polars": pl.from_arrow(rows.table), "pandas": rows.table.to_pandas()}[kind]
    measure(benchmark, lambda: len(fp.deduplicate(frame)), rows.kept)


def test_one_row_a_call(benchmark: Benchmark) -> None:
    """What a call costs whatever is in it."""
    pieces = made("runs").table.slice(0, 1_000).to_batches(max_chunksize=1)
    expected = judge(fp.StateTable("any_order"), pieces)
    measure(benchmark, lambda: judge(fp.StateTable("any_order"), pieces), expected, rows=len(pieces))


@pytest.mark.parametrize("shape", WORKLOADS)
def test_snapshot_and_restore(benchmark: Benchmark, shape: str) -> None:
    """`rows` are entries here."""
    table = fp.StateTable("any_order")
    table.apply(made(shape).table)
    entries = len(table)
    measure(benchmark, lambda: len(fp.StateTable.restore(table.snapshot())), entries, rows=entries)
