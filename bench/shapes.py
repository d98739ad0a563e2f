"""`fp.deduplicate` against polars `unique` on many shapes of rows: by order, gaps, keys and types of identifiers.

Each shape is one line of `SHAPES`. All contestants get the same polars DataFrame: pid, epoch, partition, seq, and the
number of the row's event, which copies of a row share. All return the rows to keep, on two threads: fencepost in their
order and with the default policy, `any_order`; polars in any order. An answer is (rows, events that are in exactly one
row). The scan sums the numbers and the lengths of the texts of the identity columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench import peers, workload
from bench.markdown import emphasized, table
from bench.measure import Contestant, Measurement, Target, alternate, tell, write_part
from bench.peers import fp, pl
from bench.workload import COLUMNS, Numbers

if TYPE_CHECKING:
    from bench.report import Results

ROWS_MAX = 6_000_000
OURS, UNIQUE, STREAMING = "fp.deduplicate", "polars unique", "polars unique, streaming"
SCAN = "scan of the identity columns"
PEERS = (UNIQUE, STREAMING)

Answer = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the rows of a shape are made. Rows come in runs of one key; one run in 21 comes a second time."""

    name: str
    keys: int = 100_000
    """At most one for each run: `ONE_A_RUN`."""
    run: int = 1
    """Rows of a run; between runs of a key lies a step."""
    step_max: int = 1
    """The sequence numbers of a key step by 1 to so many."""
    order: str = "drawn"
    """`drawn`: the key of each run is drawn at random, numbers of each key rise. `by_key`: one key after the other.
    `displaced`: one row in ten comes late, by up to ten rows of its key. `falling`: numbers of each key fall.
    `shuffled`: all rows in random order."""
    random_seqs: bool = False
    """Numbers are drawn from all that an int32 has."""
    hot_share: float = 0.0
    """The share of the runs that are of one key."""
    partitions: int = 100
    """Of each producer."""
    pid: str = "int"
    """Type of the producer's identifier: `int`, `text` or `uuid` (a text)."""
    copies: int = 1
    """All rows come so many times, in random order if more than once."""
    times_min: float = 1
    """How many times as fast as the faster `unique` we are to be."""


ONE_A_RUN = 1 << 62

SHAPES = (
    Shape(name="spans of 20", run=20, times_min=10),
    Shape(name="contiguous"),
    Shape(name="contiguous, key after key", order="by_key", times_min=10),
    Shape(name="gaps", step_max=11),
    Shape(name="gaps, spans of 20", run=20, step_max=11),
    Shape(name="displaced", order="displaced"),
    Shape(name="displaced, gaps", order="displaced", step_max=11),
    Shape(name="falling", order="falling"),
    Shape(name="shuffled", order="shuffled"),
    Shape(name="shuffled, gaps", order="shuffled", step_max=11),
    Shape(name="random numbers", random_seqs=True),
    Shape(name="1 M keys", keys=1_000_000),
    Shape(name="one partition a producer", partitions=1),
    Shape(name="text ids", pid="text", partitions=1),
    Shape(name="text ids, gaps", pid="text", partitions=1, step_max=11),
    Shape(name="UUIDs", pid="uuid", partitions=1),
    Shape(name="one row a key", keys=ONE_A_RUN),
    Shape(name="UUIDs, one row a key", pid="uuid", partitions=1, keys=ONE_A_RUN),
    Shape(name="one hot key", hot_share=0.9),
    Shape(name="one hot key, gaps", hot_share=0.9, step_max=11),
    Shape(name="one hot key, shuffled", hot_share=0.9, order="shuffled"),
    Shape(name="20 copies", copies=20),
    Shape(name="20 copies, text ids, gaps", copies=20, pid="text", partitions=1, step_max=11),
)


def make(shape: Shape, rows: int) -> pa.Table:
    """`rows` rows, rounded down to whole runs and copies: pid, epoch, partition, seq, event."""
    rng = np.random.default_rng(1)
    runs = rows // (shape.run * shape.copies)
    repeats = runs // workload.REPEAT_EVERY
    first_runs = runs - repeats
    key = np.arange(first_runs) if shape.keys >= first_runs else rng.integers(shape.keys, size=first_runs)
    key[rng.random(first_runs) < shape.hot_share] = 0
    if shape.order == "by_key":
        key.sort()
    first = _first_seqs(shape, key, rng)
    if shape.order == "falling":
        key, first = key[::-1], first[::-1]
    landed = workload.landing_order(rng, first_runs, repeats)
    within = np.tile(np.arange(shape.run), runs)
    event = np.repeat(landed, shape.run) * shape.run + within
    key, seq = np.repeat(key[landed], shape.run), np.repeat(first[landed], shape.run) + within
    order = _order(shape, len(key), rng)
    if order is not None:
        key, seq, event = key[order], seq[order], event[order]
    producer = key // shape.partitions
    return pa.table(
        {
            "pid": _PIDS[shape.pid](producer),
            "epoch": (producer % 3).astype(np.int16),
            "partition": (key % shape.partitions).astype(np.int32),
            "seq": seq.astype(np.int32),
            "event": event,
        }
    )


def _first_seqs(shape: Shape, key: Numbers, rng: np.random.Generator) -> Numbers:
    """The number of the first row of each run."""
    before = workload.occurrence(key)
    if shape.random_seqs:
        return _scattered(before + 7919 * key)
    if shape.step_max == 1:
        return before * shape.run
    order = np.argsort(key, kind="stable")
    ends = np.cumsum(shape.run - 1 + rng.integers(1, shape.step_max + 1, size=len(key)))
    ends -= np.repeat(ends[before[order] == 0], np.bincount(key)[np.unique(key)])
    first = np.empty(len(key), np.int64)
    first[order] = ends
    return first


def _scattered(number: Numbers) -> Numbers:
    """A permutation of the numbers of 31 bits."""
    mask = (1 << 31) - 1
    number = number * 0x2C1B3C6D & mask
    number ^= number >> 15
    number = number * 0x297A2D39 & mask
    return number ^ number >> 14


def _order(shape: Shape, rows: int, rng: np.random.Generator) -> Numbers | None:
    """Numbers of rows as they come, None where they stay."""
    if shape.copies > 1:
        return rng.permutation(np.tile(np.arange(rows), shape.copies))
    if shape.order == "shuffled":
        return rng.permutation(rows)
    if shape.order == "displaced":
        late = rng.integers(10 * min(shape.keys, rows), size=rows)
        return np.argsort(np.arange(rows) + np.where(rng.random(rows) < 0.1, late, 0), kind="stable")
    return None


def _text(producer: Numbers) -> pa.Array:
    return pc.binary_join_element_wise("device", pc.utf8_lpad(pc.cast(pa.array(producer), "string"), 8, "0"), "-")


def _uuids(producer: Numbers) -> pa.Array:
    """As texts of 36 characters, alike for equal producers."""
    made = np.random.default_rng(0).integers(256, size=(int(producer.max(initial=0)) + 1, 16), dtype=np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    of_bytes = np.stack([digits[made >> 4], digits[made & 15]], axis=2).reshape(-1, 32)
    texts = np.insert(of_bytes, [8, 12, 16, 20], ord("-"), axis=1)[producer]
    offsets = np.arange(0, 36 * len(producer) + 1, 36)
    return pa.LargeStringArray.from_buffers(len(producer), pa.py_buffer(offsets), pa.py_buffer(texts))


_PIDS = {"int": pa.array, "text": _text, "uuid": _uuids}


def contest(rows: int, rounds: int, shapes: Sequence[Shape] = SHAPES) -> dict[str, Any]:
    """What belongs into the results."""
    threads = peers.limit_threads()
    measurements: list[Measurement] = []
    for shape in shapes:
        tell(f"{shape.name}: making rows")
        made = make(shape, min(rows, ROWS_MAX))
        measurements += alternate(shape.name, _contestants(made), len(made), rounds)
    return {"threads": threads, "measurements": [it.to_json() for it in measurements]}


def _contestants(rows: pa.Table) -> list[Contestant]:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    kept = int(pc.max(rows["event"]).as_py()) + 1
    lazy = frame.lazy().unique(COLUMNS, keep="any")

    def one(name: str, run: Any, threads: int, role: Any) -> Contestant:
        return Contestant(name=name, threads=threads, run=run, answer=_answer, expected=(kept, kept), role=role)

    return [
        one(OURS, lambda: fp.deduplicate(frame), peers.THREADS, "ours"),
        one(UNIQUE, lambda: frame.unique(COLUMNS, keep="any"), peers.THREADS, "peer"),
        one(STREAMING, lambda: lazy.collect(engine="streaming"), peers.THREADS, "peer"),
        Contestant(name=SCAN, threads=1, run=lambda: _scan(rows), expected=_total(rows), role="limit"),
    ]


def _answer(kept: pl.DataFrame) -> Answer:
    times = np.bincount(kept["event"].to_numpy())
    return kept.height, int((times == 1).sum())


def _scan(rows: pa.Table) -> int:
    columns = (rows[name] for name in COLUMNS)
    return sum(
        pc.sum(column if pa.types.is_integer(column.type) else pc.binary_length(column)).as_py() for column in columns
    )


def _total(rows: pa.Table) -> int:
    """The same by NumPy."""
    pid = rows["pid"]
    total = int(pid.to_numpy().sum()) if pa.types.is_integer(pid.type) else sum(map(len, pid.to_pylist()))
    return total + sum(int(rows[name].to_numpy().sum(dtype=np.int64)) for name in COLUMNS[1:])


# The report


def targets(results: Results) -> list[Target]:
    """Each shape of the table, as far as it was measured."""
    found = []
    for shape in SHAPES:
        if shape.name in results.contests and OURS in results.contests[shape.name]:
            times = _times(results.contests[shape.name])
            what = f"{shape.name}: {OURS} against the faster polars unique"
            found.append(Target(what, f"≥ {shape.times_min:g} ×", f"{times:.1f} ×", times >= shape.times_min))
    return found


def sections(results: Results) -> list[str]:
    """A line for each shape, the worst in bold."""
    contests = {
        name: its for name, its in results.contests.items() if OURS in its and all(peer in its for peer in PEERS)
    }
    worst = min(contests, key=lambda name: _times(contests[name]))
    rows = []
    for name, its in contests.items():
        each_ns = [f"{its[one].median / its[one].rows * 1e9:.1f}" for one in (OURS, *PEERS, SCAN)]
        cells = (name, *each_ns, f"{_times(its):.1f}", f"{its[OURS].median / its[SCAN].median:.0f}")
        rows.append(emphasized(cells, name == worst))
    head = ("shape", OURS, *PEERS, "scan", "times as fast as polars", "times the scan")
    return [
        "## `fp.deduplicate` against polars `unique`, by shape",
        "Nanoseconds a row; default settings; two threads each. *Times as fast as polars*: against the faster of "
        "both engines. The worst shape is in bold.",
        table(head, rows, "lrrrrrr"),
    ]


def _times(contest: dict[str, Measurement]) -> float:
    """How many times as fast as the faster `unique` we are."""
    return min(contest[peer].median for peer in PEERS) / contest[OURS].median


if __name__ == "__main__":
    write_part(contest)
