"""Snapshots as files: golden ones, deltas, and what is left when a disk is full."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost import SnapshotError, StateTable

GOLDEN = Path(__file__).parents[1] / "snapshots"
STATES = sorted(GOLDEN.glob("v*.state"))
LISTED_MAX = 60


def rows(*of: tuple[int, int, int]) -> dict[str, Any]:
    pids, partitions, seqs = zip(*of, strict=True)
    columns = {"pid": pids, "epoch": [0] * len(of), "partition": partitions, "seq": seqs}
    return {name: array("q", values) for name, values in columns.items()}


def table_of(*of: tuple[int, int, int]) -> StateTable:
    table = StateTable("any_order")
    table.apply(rows(*of))
    return table


def deltas_of(state: Path) -> list[Path]:
    return sorted(state.parent.glob(f"{state.stem}.delta*"))


def as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def listing(table: StateTable) -> list[str]:
    """The entries in the format of the text of a golden snapshot."""
    entries = pa.table(table.entries())

    def key(entry: dict[str, Any], name: str) -> str:
        return ", ".join(as_text(value) for column, value in entry.items() if column.partition("_")[0] == name)

    def line(entry: dict[str, Any]) -> str:
        at = lambda value: "none" if value is None else value  # noqa: E731
        holes = ", ".join(f"{hole['first']}..{hole['last']} at {at(hole['timestamp'])}" for hole in entry["holes"])
        final = "none" if entry["final_first"] is None else f"{entry['final_first']}..{entry['final_last']}"
        span = f"{entry['first']}..{entry['last']} at {at(entry['last_timestamp'])}"
        pid, partition = key(entry, "pid"), key(entry, "partition")
        return f"{pid} | {partition} | {entry['epoch'] or 0} | {span} | {holes} | {final}"

    return [line(entry) for entry in entries.slice(0, LISTED_MAX).to_pylist()] + [f"{len(table)} entries"]


def test_there_are_golden_snapshots() -> None:
    assert len(STATES) >= 11
    assert any(deltas_of(state) for state in STATES)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.stem)
def test_golden_snapshots_are_read_and_written_back(state: Path) -> None:
    assert StateTable.load(state).snapshot() == state.read_bytes()
    deltas = deltas_of(state)
    table = StateTable.load(state, deltas=deltas)
    assert listing(table) == state.with_suffix(".txt").read_text(encoding="utf-8").splitlines()[2:]
    restored = StateTable.restore(state.read_bytes(), deltas=[delta.read_bytes() for delta in deltas])
    assert restored.snapshot() == table.snapshot()


def test_deltas_follow_a_saved_table(tmp_path: Path) -> None:
    table = table_of((1, 0, 0), (2, 0, 0))
    table.track_changes()
    table.save(tmp_path / "base")
    for number in (1, 2):
        table.apply(rows((1, 0, number), (3, number, 0)))
        table.snapshot()  # only looks
        table.save_delta(tmp_path / f"delta{number}")
    deltas = [tmp_path / "delta1", tmp_path / "delta2"]
    assert StateTable.load(tmp_path / "base", deltas=deltas).snapshot() == table.snapshot()
    for wrong in (deltas[1:], deltas[::-1], [*deltas, deltas[1]]):
        with pytest.raises(SnapshotError, match="follows another snapshot"):
            StateTable.load(tmp_path / "base", deltas=wrong)


def test_a_loaded_table_continues_with_deltas() -> None:
    table = table_of((1, 0, 0))
    base = table.snapshot(as_base=True)
    table.track_changes()
    table.apply(rows((1, 0, 1)))
    first = table.snapshot_delta()
    again = StateTable.restore(base, deltas=[first])
    again.track_changes()
    again.apply(rows((1, 0, 2)))
    assert StateTable.restore(base, deltas=[first, again.snapshot_delta()]).snapshot() == again.snapshot()


def test_a_delta_needs_a_base_and_tracking() -> None:
    table = table_of((1, 0, 0))
    with pytest.raises(SnapshotError, match="does not track changes"):
        table.snapshot_delta()
    table.track_changes()
    with pytest.raises(SnapshotError, match="no snapshot yet"):
        table.snapshot_delta()


@pytest.mark.parametrize("save", [StateTable.save, StateTable.save_delta])
def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, save: Callable[[StateTable, Path], None]) -> None:
    """A limit on the size of files replaces a full disk: every size that is too small."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    program = """
        import resource, signal, sys
        from pathlib import Path
        from array import array
        from fencepost import StateTable
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        path, method = Path(sys.argv[1]), sys.argv[2]
        rows = {name: array("q", [1]) for name in ("pid", "epoch", "partition", "seq")}
        table = StateTable("any_order")
        table.track_changes()
        table.save(path)
        table.apply(rows)
        getattr(table, method)(path)
        old = path.read_bytes()
        table.apply(rows | {"seq": array("q", [2])})
        for size in range(10_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            try:
                getattr(table, method)(path)
                break
            except OSError as error:
                assert path.read_bytes() == old and list(path.parent.iterdir()) == [path], error
        assert path.read_bytes() != old
        print(size, path.stat().st_size)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "state"), save.__name__]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tried, written = done.stdout.split()
    assert tried == written
