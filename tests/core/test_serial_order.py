"""Calls of several threads on one table: what they return, and the table afterwards, are those of some serial order."""

from __future__ import annotations

import sys
from collections.abc import Callable

import fencepost as fp
import numpy as np
import pyarrow as pa
import pytest
from fencepost import Columns, Policy
from support.threads import in_threads

THREADS = 4
CALLS = 4
KEYS = 300
SEQUENCES = 6

Call = Callable[[fp.StateTable], object]


def new_table() -> fp.StateTable:
    return fp.StateTable(Policy.any_order().replace(columns=Columns(timestamp="at")), keep=("timestamp",))


def random_rows(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows of keys and sequence numbers that other calls have too, so that the order of calls decides verdicts."""
    count = int(random.integers(1, 3 * KEYS))
    return {
        "pid": random.integers(0, KEYS, count),
        "epoch": random.integers(0, 2, count).astype(np.int16),
        "partition": np.zeros(count, np.int32),
        "seq": random.integers(0, SEQUENCES, count).astype(np.int32),
        "at": random.integers(0, 100, count),
    }


def text_of(stream: object) -> str:
    return str(pa.table(stream).to_pydict())


def random_call(random: np.random.Generator) -> Call:
    """A call whose result depends only on the table."""
    rows = random_rows(random)
    now_ms = int(random.integers(80, 140))
    other = new_table()
    other.apply(random_rows(random))
    calls: list[Call] = [
        lambda table: pa.array(table.apply(rows).verdict).to_pylist(),
        lambda table: pa.array(table.check(rows).verdict).to_pylist(),
        lambda table: table.snapshot(),
        lambda table: text_of(table.missing()),
        lambda table: text_of(table.merge(other)),
        lambda table: table.evict(now_ms, 60),
        lambda table: table.forget(int(rows["pid"][0])),
        lambda table: table.get(int(rows["pid"][0]), 0, 0),
        len,
    ]
    # Half of the calls are `apply`.
    return calls[int(random.integers(0, len(calls))) if random.integers(0, 2) else 0]


def at_once(table: fp.StateTable, calls: list[list[Call]]) -> list[list[object]]:
    """Each list of calls in a thread of its own. Returns the results in the same lists."""
    return in_threads([lambda own=own: [call(table) for call in own] for own in calls])


def has_serial_order(
    before: bytes, calls: list[list[Call]], results: list[list[object]], after: bytes, steps_max: int = 200_000
) -> bool:
    """Search an order of the calls in which each, made alone, returns the same, and that ends in the same table."""
    dead: set[tuple[bytes, tuple[int, ...]]] = set()
    waiting: list[tuple[bytes, tuple[int, ...]]] = [(before, (0,) * len(calls))]
    for _ in range(steps_max):
        if not waiting:
            return False
        snapshot, made = waiting.pop()
        if all(count == len(own) for count, own in zip(made, calls, strict=True)):
            if snapshot == after:
                return True
            continue
        for thread, count in enumerate(made):
            if count == len(calls[thread]):
                continue
            table = fp.StateTable.restore(snapshot)
            if calls[thread][count](table) != results[thread][count]:
                continue
            step = (table.snapshot(), (*made[:thread], count + 1, *made[thread + 1 :]))
            if step not in dead:
                dead.add(step)
                waiting.append(step)
    raise AssertionError("the search took too long")


@pytest.fixture
def quick_switches() -> object:
    """With the global lock, threads take turns more often than they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("seed", range(1, 21))
def test_concurrent_calls_have_a_serial_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    table = new_table()
    table.apply(random_rows(random))
    before = table.snapshot()
    calls = [[random_call(random) for _ in range(CALLS)] for _ in range(THREADS)]
    results = at_once(table, calls)
    assert has_serial_order(before, calls, results, table.snapshot())


def test_the_search_notices_a_lost_call_and_a_wrong_result() -> None:
    random = np.random.default_rng(1)
    rows, more = random_rows(random), random_rows(random)
    calls: list[list[Call]] = [
        [lambda table: pa.array(table.apply(rows).verdict).to_pylist()],
        [lambda table: pa.array(table.apply(more).verdict).to_pylist()],
    ]
    table = new_table()
    before = table.snapshot()
    alone = fp.StateTable.restore(before)
    results = [[calls[0][0](table)], [calls[1][0](table)]]
    assert has_serial_order(before, calls, results, table.snapshot())
    lost = calls[0][0](alone)
    assert not has_serial_order(before, calls, results, alone.snapshot())
    assert not has_serial_order(before, calls, [[lost], [calls[1][0](fp.StateTable.restore(before))]], table.snapshot())
