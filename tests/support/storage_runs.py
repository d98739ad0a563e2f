"""Runs of jobs in a process of their own, for tests that make the system fail.

    python storage_runs.py <case> <folder>

Prints a line of JSON with the result.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fencepost.errors import FencepostError
from fencepost.lake import DedupJob, LocalEngine, judge, judging, plan, scan


def make_job(root: Path, **options: Any) -> DedupJob:
    return DedupJob(root / "source", root / "state", root / "sink", engine=LocalEngine(2), settle_ms=0, **options)


def outcome_of(act: Callable[[], Any]) -> dict[str, Any]:
    try:
        report = act()
    except (FencepostError, OSError) as error:
        facts = {name: getattr(error, name, None) for name in ("path", "errno")}
        return {"error": type(error).__name__, "message": str(error), **facts}
    return {"version": report.version, "files": report.files, "counts": report.counts, "kept": report.kept}


def under_faults(root: Path) -> list[dict[str, Any]]:
    """A run of each plan, whatever happens to the source's files."""
    return [outcome_of(make_job(root, plan=wanted).run) for wanted in plan.PLANS]


def without_descriptors(root: Path) -> list[dict[str, Any]]:
    """A run for which no descriptor is left once it opens its files, and one after it."""
    held: list[int] = []
    read_file = scan._read_file

    def with_none_left(*arguments: Any) -> Any:
        while not held or held[-1] >= 0:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                held.append(-1)
        return read_file(*arguments)

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    scan._read_file = with_none_left
    found = outcome_of(make_job(root, plan="row").run)
    for descriptor in held[:-1]:
        os.close(descriptor)
    scan._read_file = read_file
    return [found, outcome_of(make_job(root, plan="row").run)]


def with_few_descriptors(root: Path) -> list[dict[str, Any]]:
    """A run of each plan whose tasks hand on many more files than a process may have open."""
    plan.TASK_BYTES = 1
    scan.SPANS_TOGETHER, scan.SPANS_OF_A_SHARD = 16, 1
    judging.groups_of_shards = lambda spans, *_: [(at, at + 1) for at in range(len(spans))]  # type: ignore[assignment]
    exchanges: list[int] = []
    by_shard = judge.by_shard

    def counted(scratch: Any, files: judge.ExchangeFiles, parts: judge.Parts) -> Any:
        exchanges.append(len(files.names))
        return by_shard(scratch, files, parts)

    judge.by_shard = counted
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    found = []
    for wanted in plan.PLANS:
        own = root / wanted
        options: dict[str, Any] = {"plan": wanted, "shards": 16, "engine": LocalEngine(4), "driver_spans_max": 0}
        job = DedupJob(root / "source", own / "state", own / "sink", **options)
        found.append({**outcome_of(job.run), "exchanges": max(exchanges)})
        exchanges.clear()
    return found


if __name__ == "__main__":
    cases = {it.__name__: it for it in (under_faults, without_descriptors, with_few_descriptors)}
    print(json.dumps(cases[sys.argv[1]](Path(sys.argv[2]))))
