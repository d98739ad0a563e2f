"""One interpreter, several threads: it is released while the core works, and no update is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import pytest
from fencepost import Verdict
from support.interpreter import Clock, assert_released
from support.threads import in_threads

WORKERS = 4


def rows(count: int, pid: np.ndarray, seq: np.ndarray) -> dict[str, np.ndarray]:
    return {"pid": pid, "epoch": np.zeros(count, np.int16), "partition": np.zeros(count, np.int32), "seq": seq}


@pytest.fixture(scope="module")
def slow_rows() -> dict[str, np.ndarray]:
    """Random keys, every row alone: some tenths of a second of judging."""
    count = 4_000_000
    random = np.random.default_rng(7)
    return rows(count, random.integers(0, count, count), np.zeros(count, np.int32))


def as_batches(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same numbers as produce batches of one record each."""
    columns = {"base_seq" if name == "seq" else name: values for name, values in rows.items()}
    return columns | {"count": np.ones(len(rows["pid"]), np.int32), "offset": np.arange(len(rows["pid"]))}


WORK: dict[str, Callable[[Any, dict[str, np.ndarray]], object]] = {
    "apply": lambda table, rows: table.apply(rows),
    "check": lambda table, rows: table.check({name: values[: len(values) // 4] for name, values in rows.items()}),
    "restore": lambda table, _: type(table).restore(table.snapshot()),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("judged", ["rows", "batches"])
def test_other_threads_run_while_the_core_works(judged: str, name: str, slow_rows: dict[str, np.ndarray]) -> None:
    table, columns = fp.StateTable("any_order"), slow_rows
    if judged == "batches":  # each takes longer than a row
        table, columns = fp.BrokerTable(), as_batches({name: values[:1_000_000] for name, values in slow_rows.items()})
    table.apply({column: values[: len(values) // 4] for column, values in columns.items()})
    assert_released(lambda: WORK[name](table, columns))


def test_no_batch_of_several_threads_is_lost() -> None:
    """Each thread has its own producers in one table: the result equals that of one thread."""
    table = fp.BrokerTable(offsets="assign")

    def produce(worker: int) -> None:
        for round_ in range(200):
            verdicts = table.apply(
                {
                    "pid": np.full(5, worker), "epoch": np.zeros(5, np.int16), "partition": np.zeros(5, np.int32),
                    "base_seq": np.arange(5) * 3 + round_ * 15, "count": np.full(5, 3),
                }
            )  # fmt: skip
            assert verdicts.counts[Verdict.ACCEPTED] == 5

    in_threads([lambda worker=worker: produce(worker) for worker in range(WORKERS)])  # type: ignore[misc]
    assert (len(table), table.log_end(0)) == (WORKERS, WORKERS * 200 * 15)
    for worker in range(WORKERS):
        entry = table.get(worker, 0)
        assert entry is not None
        assert entry["batches"][-1]["last_seq"] == 200 * 15 - 1


@pytest.mark.global_lock
def test_the_measurement_detects_a_held_interpreter() -> None:
    """A call that does hold the interpreter is found out."""
    numbers = np.random.default_rng(7).permutation(1_000_000).tolist()
    with Clock() as clock:
        shares = [clock.share_of(lambda: sorted(numbers)) for _ in range(3)]
    assert max(shares) < 0.4, shares


def parts_of(values: dict[str, np.ndarray], count: int) -> Iterator[dict[str, np.ndarray]]:
    size = -(-len(values["pid"]) // count)
    for part in range(count):
        yield {name: array[part * size : (part + 1) * size] for name, array in values.items()}


def test_one_table_loses_no_update() -> None:
    """Every row arrives twice, from threads that write to one table: each is accepted exactly once."""
    count, repeats = 400_000, 2
    once = rows(count, np.arange(count) % 1000, (np.arange(count) // 1000).astype(np.int32))
    table, found = fp.StateTable("any_order"), Counter[Verdict]()
    lock = threading.Lock()

    def apply_all(part: dict[str, np.ndarray], turn: int) -> None:
        small = list(parts_of(part, 40))
        for one in small[turn:] + small[:turn]:
            counts = table.apply(one).counts
            with lock:
                found.update(counts)

    work = [(part, turn * 7) for turn in range(repeats) for part in parts_of(once, WORKERS // repeats)]
    in_threads([lambda part=part, turn=turn: apply_all(part, turn) for part, turn in work])
    assert found[Verdict.ACCEPTED] == count
    assert found[Verdict.DUPLICATE] == count * (repeats - 1)
    assert found.total() == count * repeats
    assert len(table) == 1000

    alone = fp.StateTable("any_order")
    alone.apply(once)
    assert table.snapshot() == alone.snapshot()
    assert pa.table(table.missing()).num_rows == 0


def test_one_table_with_keys_that_are_numbered() -> None:
    """Several threads bring new strings at once; each is one key."""
    names = [f"producer-{number}" for number in range(300)]

    def apply_all(table: fp.StateTable, turn: int) -> None:
        for name in names[turn:] + names[:turn]:
            table.apply(
                {"pid": pa.array([name] * 10)}
                | {key: it for key, it in rows(10, names_, np.arange(10)).items() if key != "pid"}
            )

    names_ = np.zeros(10, np.int64)
    table, alone = fp.StateTable("any_order"), fp.StateTable("any_order")
    in_threads([lambda turn=turn: apply_all(table, turn * 60) for turn in range(WORKERS)])
    apply_all(alone, 0)
    assert len(table) == len(names)
    assert table.snapshot() == alone.snapshot()


def test_two_tables_in_two_threads() -> None:
    count = 300_000
    one = rows(count, np.arange(count) % 77, (np.arange(count) // 77).astype(np.int32))
    tables = [fp.StateTable("strict"), fp.StateTable("in_order")]
    counts = in_threads(
        [lambda table=table: [table.apply(part).counts for part in parts_of(one, 10)] for table in tables]
    )
    for table, of_table in zip(tables, counts, strict=True):
        assert isinstance(of_table, list)
        assert sum(it[Verdict.ACCEPTED] for it in of_table) == count
        alone = fp.StateTable(table.policy)
        alone.apply(one)
        assert table.snapshot() == alone.snapshot()


def test_two_tables_that_merge_into_each_other_do_not_deadlock() -> None:
    """Both directions at once, repeatedly, while rows arrive: at the end both tables have accepted all rows."""
    count, turns = 2000, 40
    one, other = fp.StateTable("any_order"), fp.StateTable("any_order")

    def merge(ours: fp.StateTable, theirs: fp.StateTable, first: int) -> None:
        for turn in range(turns):
            ours.apply(rows(count, np.arange(count), np.full(count, first + 2 * turn, np.int32)))
            ours.merge(theirs)

    threads = [
        threading.Thread(target=merge, args=args, daemon=True) for args in [(one, other, 0), (other, one, 1)] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "two merges wait for each other"
    one.merge(other)
    other.merge(one)
    assert one.snapshot() == other.snapshot()
    entry = one.get(count - 1, 0)
    assert entry is not None
    assert (entry["first"], entry["last"], entry["holes"]) == (0, 2 * turns - 1, [])


def test_a_concurrent_check_sees_only_complete_calls() -> None:
    """A check runs before or after each apply, never during one: it sees all rows of a call or none."""
    calls, count = 60, 2000
    table = fp.StateTable("any_order")
    is_done = threading.Event()

    def rows_of(call: int) -> dict[str, np.ndarray]:
        return rows(count, np.arange(count), np.full(count, call, np.int32))

    def apply_all() -> None:
        try:
            for call in range(calls):
                assert table.apply(rows_of(call)).counts[Verdict.ACCEPTED] == count
        finally:
            is_done.set()

    def check_all() -> int:
        checks = 0
        while not is_done.is_set() or checks == 0:
            for call in (0, calls // 2, calls - 1):
                counts = table.check(rows_of(call)).counts
                assert counts[Verdict.DUPLICATE] in (0, count), counts
                assert counts[Verdict.ACCEPTED] in (0, count), counts
                checks += 1
        return checks

    _, checks = in_threads([apply_all, check_all])
    assert isinstance(checks, int)
    assert checks > 0
    assert len(table) == count
    entry = table.get(count - 1, 0)
    assert entry is not None
    assert (entry["first"], entry["last"]) == (0, calls - 1)


def test_everything_at_once(tmp_path: Path) -> None:
    """Readers and writers of every kind: no call blocks forever, and each read is consistent."""
    table = fp.StateTable("any_order")
    count, calls = 1000, 30

    def write() -> None:
        for call in range(calls):
            table.apply(rows(count, np.arange(count), np.full(count, call, np.int32)))

    def read() -> None:
        for _ in range(calls):
            assert len(table) in (0, count)
            assert pa.table(table.entries()).num_rows in (0, count)
            restored = fp.StateTable.restore(table.snapshot())
            lasts = set(pa.table(restored.entries())["last"].to_pylist())
            assert len(lasts) <= 1, "a snapshot of half a call"
            assert table.get(5, 0) is None or table.memory_bytes > 0
            assert "any_order" in repr(table)
            assert pa.table(table.missing()).num_rows == 0

    def save() -> None:
        for _ in range(calls):
            table.save(tmp_path / "state.fp")
            assert len(fp.StateTable.load(tmp_path / "state.fp")) in (0, count)

    in_threads([write, read, read, save, save])
    assert [path.name for path in tmp_path.iterdir()] == ["state.fp"], "something is left beside the file"


def test_tables_that_save_to_one_file_leave_one_of_them(tmp_path: Path) -> None:
    tables = []
    for number in range(WORKERS):
        table = fp.StateTable("any_order")
        size = 3000 * (number + 1)
        table.apply(rows(size, np.arange(size) * 1000, np.full(size, number, np.int32)))
        tables.append(table)
    whole = {table.snapshot() for table in tables}
    path = tmp_path / "state.fp"

    def save_often(table: fp.StateTable) -> None:
        for _ in range(15):
            table.save(path)
            assert path.read_bytes() in whole

    in_threads([lambda table=table: save_often(table) for table in tables])
    assert [it.name for it in tmp_path.iterdir()] == ["state.fp"]


class Writer:
    """A thread that writes to arrays, over and over, valid values and others."""

    def __init__(self, *changes: Callable[[], object]) -> None:
        self.changes = changes
        self.rounds = 0
        self.is_running = True
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while self.is_running:
            for change in self.changes:
                change()
            self.rounds += 1

    def __enter__(self) -> Writer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_running = False
        self.thread.join()


def apply_or_error(table: fp.StateTable, columns: dict[str, np.ndarray]) -> fp.Verdicts | fp.BatchError:
    try:
        return table.apply(columns)
    except fp.BatchError as error:
        return error


def state_of(table: fp.StateTable) -> tuple[bytes, list[int]]:
    snapshot = table.snapshot()
    assert fp.StateTable.restore(snapshot).snapshot() == snapshot
    return snapshot, pa.table(table.entries())["pid"].to_pylist()


@pytest.mark.parametrize("column", ["pid", "epoch", "partition", "seq"])
def test_a_call_is_atomic_while_another_thread_writes_to_its_arrays(column: str) -> None:
    """Values are read once: what was validated is what is judged."""
    count = 20_000
    columns = rows(count, np.arange(count, dtype=np.int64), np.zeros(count, np.int32))
    valid, written = columns[column].copy(), columns[column]

    def spoil() -> None:
        written[count // 2 :] = -9

    def mend() -> None:
        written[:] = valid

    table = fp.StateTable("any_order")
    refused = taken = 0
    with Writer(spoil, mend) as writer:
        while refused < 5 or taken < 5 or writer.rounds < 20:
            before = table.snapshot()
            outcome = apply_or_error(table, columns)
            if isinstance(outcome, fp.BatchError):
                assert (outcome.column, table.snapshot() == before) == (column, True)
                refused += 1
            else:
                assert sum(outcome.counts.values()) == count
                taken += 1
            _, pids = state_of(table)
            assert pids == list(range(len(pids)))


def test_read_only_arrays_are_judged_like_writable_ones() -> None:
    """Only memory that others may write is copied."""
    count = 1_000_000
    columns = rows(count, np.zeros(count, np.int64), np.arange(count, dtype=np.int32))
    table = fp.StateTable("any_order")
    for values in columns.values():
        values.flags.writeable = False
    assert table.apply(columns).counts[Verdict.ACCEPTED] == count
    for values in columns.values():
        values.flags.writeable = True
    assert table.apply(columns).counts[Verdict.DUPLICATE] == count
