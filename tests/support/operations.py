"""Operations on the state of a cluster of jobs."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost.state import operation_tasks
from fencepost.state.segment_files import CACHE
from fencepost.state.stores import LocalStore
from fencepost.state.versions import State


def fold(sink: Path) -> Counter[tuple[Any, ...]]:
    """The missing ranges, and how often each is missing, by all visible files of the changelog."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in sink.glob("run=*/_missing/*"):
        for line in pq.ParquetFile(path).read().to_pylist():
            assert line.pop("version") == int(path.parent.parent.name.removeprefix("run="))
            is_open = line.pop("change") == "OPEN"
            found[tuple(line.values())] += 1 if is_open else -1
    return Counter({line: count for line, count in found.items() if count})


def missing(opened: State) -> Counter[tuple[Any, ...]]:
    """The same, by the state."""
    return Counter(tuple(line.values()) for line in opened.missing().to_pylist())


class Cluster:
    """An engine of other processes: it pickles its input and output, runs every task twice, uses the second result,
    and knows what is read meanwhile."""

    name, slots, in_process = "cluster", 4, False
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks: Counter[str] = Counter()
        self.read: dict[bool, list[str]] = {True: [], False: []}
        """Names of segments by whether a task has read them."""
        self.is_task = False
        read = LocalStore.read

        def noted(store: LocalStore, name: str, *place: int) -> bytes:
            if name.endswith(".state"):
                self.read[self.is_task].append(f"{name} {place}")
            return read(store, name, *place)

        monkeypatch.setattr(LocalStore, "read", noted)
        for bound in ("TASK_BYTES_MIN", "TASK_BYTES_MAX"):
            monkeypatch.setattr(operation_tasks, bound, 1)

    def run(self, stage: str, work: Callable[[Any], Any], items: Sequence[Any], progress: Any = None) -> list[Any]:
        self.tasks[stage] += len(items)
        self.is_task = True
        results = []
        for sent in [pickle.dumps((work, item)) for item in items]:
            for _ in range(2):
                CACHE.clear()
                act, item = pickle.loads(sent)
                result = pickle.dumps(act(item))
            results.append(pickle.loads(result))
        self.is_task = False
        return results
