"""Chooses the plan of a run, and groups files and shards into tasks.

| plan | exchanges | use |
|---|---|---|
| interval | spans: one line for consecutive rows | always correct; the default |
| row | spans of one row | for comparison |
| aligned | what each task has kept: a few ranges per key | each key is in one group of files; else interval |

All plans keep the same rows and produce the same state. The decision contains the choice and its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from fencepost._native import parquet_footer
from fencepost.errors import FencepostError
from fencepost.lake.files import Files
from fencepost.lake.storage import Storage
from fencepost.policy import Columns
from fencepost.state.decision import Decision
from fencepost.state.engine import groups
from fencepost.state.operations import SHARDS_MAX

Plan = Literal["interval", "row", "aligned"]
PLANS: tuple[Plan, ...] = ("interval", "row", "aligned")

SHARDS = 16
"""Default number of shards of a new state."""
SHARD_BYTES_MAX = 16 << 20
"""Average bytes per shard above which the state is split: some millions of entries, a quarter of a GB in the judge
task's memory."""

TASKS_MAX = 32_768
"""Maximum number of tasks per stage, unless `TASKS_PER_SLOT` for each slot of the engine are more. The number of slots
may be unknown."""
TASK_BYTES, TASK_BYTES_MAX = 32 << 20, 256 << 20
"""Maximum bytes of the files of a task. The first number holds unless all files together have more for each slot, the
second one always. Files larger than the second number are split among tasks; a job may set another second number."""
TASKS_PER_SLOT = 2
"""Number of tasks per slot of the engine if they are large enough, so that no long task is left at the end."""
FILE_BYTES = 256 << 10
"""The cost of opening a file, as the bytes that could be read in that time."""

DRIVER_SPANS_MAX = 16_000_000
DRIVER_STATE_BYTES_MAX = 256 << 20
"""Up to this number of spans and of bytes of shard states, the driver judges without tasks, which would cost more."""
JUDGE_SPANS, JUDGE_STATE_BYTES = 1 << 20, 64 << 20
"""The minimum work that is worth a task."""

TASK_SPANS_MAX = 8 << 20
"""Shards with more spans are split among tasks if the policy allows it. A job may set another number."""

FOOTERS_MAX = 256
"""Maximum number of files for which the driver reads statistics, to see whether each key is in one group."""
FOOTERS_AT_ONCE = 8


def groups_of_files(sizes: Sequence[int], slots: int, bytes_max: int = TASK_BYTES_MAX) -> list[tuple[int, int]]:
    """Return (first, end) of each task's files. `sizes`: bytes of the files."""
    weights = np.asarray(sizes, np.int64) + FILE_BYTES
    all_bytes = int(weights.sum())
    bytes_ = min(bytes_max, max(TASK_BYTES, all_bytes // (TASKS_PER_SLOT * slots)))
    return list(groups(weights.tolist(), max(bytes_, all_bytes // max(TASKS_MAX, TASKS_PER_SLOT * slots))))


def parts_of_files(sizes: Sequence[int], slots: int, bytes_max: int) -> list[int]:
    """Return the number of parts of each file so that no part exceeds `bytes_max`, within the limit of tasks."""
    bytes_ = max(bytes_max, sum(sizes) // max(TASKS_MAX, TASKS_PER_SLOT * slots))
    return [max(1, -(-size // bytes_)) for size in sizes]


def groups_of_shards(spans: Sequence[float], state_bytes: Sequence[int], slots: int) -> list[tuple[int, int]]:
    """Return (first, end) of each judge task's shards. `spans`, `state_bytes`: of each shard."""
    weights = np.asarray(spans) / JUDGE_SPANS + np.asarray(state_bytes) / JUDGE_STATE_BYTES
    # Avoid tasks that are smaller than their overhead, and a single long task at the end.
    return list(groups(weights.tolist(), max(0.05, min(1.0, weights.sum() / (TASKS_PER_SLOT * slots)))))


def parts_of_shards(spans: Sequence[int], slots: int, spans_max: int) -> list[int]:
    """Return the number of parts of each shard: 1 up to `spans_max` spans.

    Parts vary in size, so the target is half of `spans_max`.
    """
    spans_max = max(spans_max, sum(spans) // max(TASKS_MAX, TASKS_PER_SLOT * slots))
    return [-(-2 * it // spans_max) if it > spans_max else 1 for it in spans]


def shards_for(state_bytes: int, count: int, bytes_max: int) -> int:
    """Return the new number of shards, so that they have at most `bytes_max` bytes on average.

    It is the old number times a power of two: then a task that splits a shard reads no other shard. The largest shard
    is ignored: if a few keys make it large, smaller shards would keep them together.
    """
    while count * bytes_max < state_bytes and 2 * count <= SHARDS_MAX:
        count *= 2
    return count


def choose(
    wanted: Plan | None, problem: str, before: Decision | None, storage: Storage, files: Files, columns: Columns
) -> tuple[Plan, str]:
    """Return (plan, reason). `problem`: why the aligned plan is impossible; "" if it is possible."""
    if not len(files):
        return "interval", "there are no files"
    if wanted == "aligned" and problem:
        return "interval", f"aligned was asked for, but {problem}"
    if wanted is not None:
        return wanted, "asked for"
    if problem:
        return "interval", problem
    # Versions of maintenance commands have no plan.
    if before is not None and before.plan.get("name", "aligned") != "aligned":
        return "interval", f"version {before.version} was not aligned either"
    return _by_statistics(storage, files, columns)


def _by_statistics(storage: Storage, files: Files, columns: Columns) -> tuple[Plan, str]:
    if len(files) > FOOTERS_MAX:
        return "interval", f"more than {FOOTERS_MAX} files: their footers were not looked at"
    names = (*columns.parts("partition"), *columns.parts("pid"))
    # Concurrently, because each read takes several round trips in an object store.
    with ThreadPoolExecutor(min(FOOTERS_AT_ONCE, len(files))) as pool:
        bounds = list(pool.map(partial(_bounds, storage, files, names), range(len(files))))
    for name in names:
        known = sorted(of_file[name] for of_file in bounds if name in of_file)
        if len(known) == len(files) and all(one[1] < other[0] for one, other in pairwise(known)):
            return "aligned", f"no two files share a value of {name}, as their statistics say"
    return "interval", "files may share keys, as their statistics say"


def _bounds(storage: Storage, files: Files, names: tuple[str, ...], place: int) -> dict[str, tuple[int, int]]:
    """Return the minimum and maximum of integer columns in a file, from its statistics."""
    path = files.full_path(place)
    try:
        found = parquet_footer(path, names, object=storage.object(path, files.facts(place))).bounds
    except (FencepostError, OSError):
        return {}  # the scan reports the reason, if any
    known = {name: [it for it in groups if it is not None] for name, groups in found.items()}
    return {
        name: (min(it[0] for it in groups), max(it[1] for it in groups))
        for name, groups in known.items()
        if groups and len(groups) == len(found[name])
    }
