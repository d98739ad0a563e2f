"""How a run is computed: which plan, and what goes together in a task.

| plan | what is exchanged | where |
|---|---|---|
| interval | runs: a line for as many rows as follow each other | always right; the default |
| row | runs of one row | the same with every row alone, to compare with |
| aligned | what each task has kept: a few ranges a key | where files hold whole keys; falls back to interval |

All plans keep the same rows and end in the same state. What was chosen, and why, stands in the decision.
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
"""Into how many parts a new state is cut."""
SHARD_BYTES_MAX = 16 << 20
"""Bytes of a shard on average, above which there are to be more of them: some millions of entries, a quarter of a GB in
the memory of the task that judges by them."""

TASKS_MAX = 32_768
"""Tasks of a stage, unless the engine has more slots than half of that. An engine may not know how many it has."""
TASK_BYTES, TASK_BYTES_MAX = 32 << 20, 256 << 20
"""Files go together in a task until they have so many bytes: the more, the fewer tasks an engine has to run. A file of
more bytes than the second is split among tasks; a job may choose another one."""
TASKS_PER_SLOT = 2
"""Tasks that every slot of an engine gets where they are large enough, so that none is left alone at the end."""
FILE_BYTES = 256 << 10
"""What opening a file costs, in bytes that could be read meanwhile."""

DRIVER_RUNS_MAX = 5_000_000
DRIVER_STATE_BYTES_MAX = 256 << 20
"""Runs, and bytes of shards' states, up to which the driver judges by itself: less than tasks would cost."""
JUDGE_RUNS, JUDGE_STATE_BYTES = 1 << 20, 64 << 20
"""Above that, what makes a task worth it."""

TASK_RUNS_MAX = 8 << 20
"""A shard of more runs is split among tasks, where its policy allows it; a job may choose another number."""

FOOTERS_MAX = 256
"""Files up to which the driver looks at their statistics, to see whether they hold whole keys."""
FOOTERS_AT_ONCE = 8


def groups_of_files(sizes: Sequence[int], slots: int, bytes_max: int = TASK_BYTES_MAX) -> list[tuple[int, int]]:
    """(first, end) of the files that a task takes, from their bytes."""
    weights = np.asarray(sizes, np.int64) + FILE_BYTES
    all_bytes = int(weights.sum())
    bytes_ = min(bytes_max, max(TASK_BYTES, all_bytes // (TASKS_PER_SLOT * slots)))
    return list(groups(weights.tolist(), max(bytes_, all_bytes // max(TASKS_MAX, TASKS_PER_SLOT * slots))))


def parts_of_files(sizes: Sequence[int], slots: int, bytes_max: int) -> list[int]:
    """Into how many parts each file is split, from its bytes: no part has more, unless there were too many tasks."""
    bytes_ = max(bytes_max, sum(sizes) // max(TASKS_MAX, TASKS_PER_SLOT * slots))
    return [max(1, -(-size // bytes_)) for size in sizes]


def groups_of_shards(runs: Sequence[float], state_bytes: Sequence[int], slots: int) -> list[tuple[int, int]]:
    """(first, end) of the shards that a judging task takes, from their runs and the bytes of their states."""
    weights = np.asarray(runs) / JUDGE_RUNS + np.asarray(state_bytes) / JUDGE_STATE_BYTES
    # No task is so small that it costs more than it does, and none is left alone at the end if that can be helped.
    return list(groups(weights.tolist(), max(0.05, min(1.0, weights.sum() / (TASKS_PER_SLOT * slots)))))


def parts_of_shards(runs: Sequence[int], slots: int, runs_max: int) -> list[int]:
    """Into how many parts each shard is split, from its runs: 1 for those of no more than `runs_max`.

    Parts are not quite alike, so they are to have half as many.
    """
    runs_max = max(runs_max, sum(runs) // max(TASKS_MAX, TASKS_PER_SLOT * slots))
    return [-(-2 * it // runs_max) if it > runs_max else 1 for it in runs]


def shards_for(state_bytes: int, count: int, bytes_max: int) -> int:
    """Into how many parts a state of `count` is to be cut, so that they have no more than so many bytes on average.

    A power of two times as many: a task that splits a shard reads no other. Not the largest shard counts: where it is
    that because of a few keys, they would go together into any smaller one.
    """
    while count * bytes_max < state_bytes and 2 * count <= SHARDS_MAX:
        count *= 2
    return count


def choose(
    wanted: Plan | None, problem: str, before: Decision | None, storage: Storage, files: Files, columns: Columns
) -> tuple[Plan, str]:
    """(plan, why). `problem`: why the aligned plan is none; "" if it may be one."""
    if not len(files):
        return "interval", "there are no files"
    if wanted == "aligned" and problem:
        return "interval", f"aligned was asked for, but {problem}"
    if wanted is not None:
        return wanted, "asked for"
    if problem:
        return "interval", problem
    if before is not None and before.plan.get("name") != "aligned":
        return "interval", f"version {before.version} was not aligned either"
    return _by_statistics(storage, files, columns)


def _by_statistics(storage: Storage, files: Files, columns: Columns) -> tuple[Plan, str]:
    if len(files) > FOOTERS_MAX:
        return "interval", f"more than {FOOTERS_MAX} files: their footers were not looked at"
    names = (*columns.parts("partition"), *columns.parts("pid"))
    # At the same time: in an object store each takes some round trips.
    with ThreadPoolExecutor(min(FOOTERS_AT_ONCE, len(files))) as pool:
        bounds = list(pool.map(partial(_bounds, storage, files, names), range(len(files))))
    for name in names:
        known = sorted(of_file[name] for of_file in bounds if name in of_file)
        if len(known) == len(files) and all(one[1] < other[0] for one, other in pairwise(known)):
            return "aligned", f"no two files share a value of {name}, as their statistics say"
    return "interval", "files may share keys, as their statistics say"


def _bounds(storage: Storage, files: Files, names: tuple[str, ...], place: int) -> dict[str, tuple[int, int]]:
    """The lowest and highest value of integer columns in a file, as far as its statistics tell."""
    path = files.full_path(place)
    try:
        found = parquet_footer(path, names, object=storage.object(path, files.facts(place))).bounds
    except (FencepostError, OSError):
        return {}  # the scan will say what is wrong, if anything is
    known = {name: [it for it in groups if it is not None] for name, groups in found.items()}
    return {
        name: (min(it[0] for it in groups), max(it[1] for it in groups))
        for name, groups in known.items()
        if groups and len(groups) == len(found[name])
    }
