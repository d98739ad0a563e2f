"""The contestants in memory: the ways people count each identity once today, and ours.

Each takes Arrow rows and gives how many identities there are. What it needs the rows to be (a frame of its own, a
registered view) is prepared before the clock starts. The peers only count: none has to hand out which rows to keep,
most would pay dearly for it. fencepost gives a verdict for every row and keeps the state for the next file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

THREADS = 2
os.environ.setdefault("POLARS_MAX_THREADS", str(THREADS))  # read when polars is imported

import datafusion  # noqa: E402
import duckdb  # noqa: E402
import fencepost as fp  # noqa: E402
import polars as pl  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402

from bench.measure import Contestant, Role  # noqa: E402
from bench.workload import COLUMNS, Rows  # noqa: E402

Count = Callable[[], int]
KEYS = ", ".join(COLUMNS)
LIMIT = "sum of the four columns"


@dataclass(frozen=True)
class Peer:
    name: str
    prepare: Callable[[Rows], Count]
    threads: int = 1
    role: Role = "peer"


def polars_unique(rows: Rows) -> Count:
    frame = _polars(rows)
    return lambda: frame.unique(COLUMNS, keep="any").height


def polars_unique_streaming(rows: Rows) -> Count:
    query = _polars(rows).lazy().unique(COLUMNS, keep="any").select(pl.len())
    return lambda: int(query.collect(engine="streaming").item())


def duckdb_distinct(rows: Rows) -> Count:
    return _duckdb(rows, f"SELECT count(*) FROM (SELECT DISTINCT {KEYS} FROM landed)")


def duckdb_row_number(rows: Rows) -> Count:
    return _duckdb(rows, f"SELECT count(*) FROM (FROM landed QUALIFY row_number() OVER (PARTITION BY {KEYS}) = 1)")


def datafusion_distinct(rows: Rows) -> Count:
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(THREADS))
    batches = rows.batches
    context.register_record_batches("landed", [batches[part::THREADS] for part in range(THREADS)])
    query = f"SELECT count(*) AS kept FROM (SELECT DISTINCT {KEYS} FROM landed)"
    return lambda: int(context.sql(query).to_pydict()["kept"][0])


def pyarrow_group_by(rows: Rows) -> Count:
    return lambda: int(rows.table.group_by(COLUMNS).aggregate([]).num_rows)


def pandas_drop_duplicates(rows: Rows) -> Count:
    frame = rows.table.to_pandas()
    return lambda: len(frame.drop_duplicates())


def python_dict(rows: Rows) -> Count:
    """What people write by hand: the last sequence per key. Right here, because first copies come in order.

    Key and position are one integer each, which is three times as fast as tuples.
    """
    batches = rows.batches

    def count() -> int:
        last: dict[int, int] = {}
        kept = 0
        for batch in batches:
            columns = (batch[name].to_numpy().tolist() for name in COLUMNS)
            for pid, epoch, partition, seq in zip(*columns, strict=True):
                key, position = pid << 32 | partition, epoch << 32 | seq
                if position > last.get(key, -1):
                    last[key] = position
                    kept += 1
        return kept

    return count


def python_dict_broker(rows: Rows) -> Count:
    """A broker's rules written by hand: per key the epoch and the last five sequences, as Kafka keeps batches.

    What `kafka` says of rows, without verdicts but with the same count.
    """
    batches = rows.batches

    def count() -> int:
        entries: dict[int, tuple[int, deque[int]]] = {}
        kept = 0
        for batch in batches:
            columns = (batch[name].to_numpy().tolist() for name in COLUMNS)
            for pid, epoch, partition, seq in zip(*columns, strict=True):
                entry = entries.get(pid << 32 | partition)
                if entry is None or (epoch > entry[0] and seq == 0):
                    entries[pid << 32 | partition] = (epoch, deque((seq,), maxlen=5))
                    kept += 1
                elif epoch == entry[0] and seq == (entry[1][-1] + 1) % 2**31:
                    entry[1].append(seq)
                    kept += 1
        return kept

    return count


def fencepost_apply(rows: Rows, policy: str = "any_order") -> Count:
    batches = rows.batches

    def count() -> int:
        table = fp.StateTable(policy)
        return sum(table.apply(batch).counts[fp.Verdict.ACCEPTED] for batch in batches)

    return count


BROKER = Peer("Python dict broker", python_dict_broker)
PEERS = (
    Peer("polars unique", polars_unique, THREADS),
    Peer("polars unique, streaming", polars_unique_streaming, THREADS),
    Peer("DuckDB DISTINCT", duckdb_distinct, THREADS),
    Peer("DuckDB row_number", duckdb_row_number, THREADS),
    Peer("DataFusion DISTINCT", datafusion_distinct, THREADS),
    Peer("pyarrow group_by", pyarrow_group_by, THREADS),
    Peer("pandas drop_duplicates", pandas_drop_duplicates),
    Peer("Python dict", python_dict),
    BROKER,
)
OURS = Peer("fencepost apply", fencepost_apply, role="ours")
OURS_BROKER = Peer("fencepost apply, kafka", partial(fencepost_apply, policy="kafka"), role="ours")


def contestants(rows: Rows, peers: Sequence[Peer]) -> list[Contestant]:
    """Ours, the peers, and the limit: reading the same batches once and adding everything up."""
    counting = [
        Contestant(
            name=peer.name,
            threads=peer.threads,
            run=peer.prepare(rows),
            expected=rows.kept,
            role=peer.role,
        )
        for peer in (OURS, OURS_BROKER, *peers)
    ]
    return [*counting, *_limits(rows)]


def _limits(rows: Rows) -> list[Contestant]:
    batches = rows.batches
    arrays = [[batch[name].to_numpy() for name in COLUMNS] for batch in batches]
    total = sum(column.to_numpy().sum(dtype="int64").item() for column in rows.table.columns)

    def sum_by_pyarrow() -> int:
        return sum(pc.sum(batch[name]).as_py() for batch in batches for name in COLUMNS)

    def sum_by_numpy() -> int:
        return sum(int(array.sum()) for columns in arrays for array in columns)

    return [
        Contestant(name=f"{LIMIT}, {by}", threads=1, run=run, expected=total, role="limit")
        for by, run in (("pyarrow", sum_by_pyarrow), ("NumPy", sum_by_numpy))
    ]


def limit_threads() -> dict[str, Any]:
    """Hold all to their share, and say what the libraries really use (polars took its number when imported)."""
    if hasattr(os, "sched_setaffinity"):  # the only limit that fencepost has
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    pa.set_cpu_count(THREADS)
    return {"polars": pl.thread_pool_size(), "duckdb": THREADS, "datafusion": THREADS, "pyarrow": pa.cpu_count()}


def _polars(rows: Rows) -> pl.DataFrame:
    frame = pl.from_arrow(rows.table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _duckdb(rows: Rows, query: str) -> Count:
    connection = duckdb.connect(config={"threads": THREADS})
    connection.register("landed", rows.table)

    def count() -> int:
        found = connection.execute(query).fetchone()
        assert found is not None
        return int(found[0])

    return count
