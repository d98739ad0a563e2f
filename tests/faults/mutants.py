"""Broken jobs. Each breaks one rule, in the process of one driver; a harness that does not object sees nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fencepost import StateTable
from fencepost.errors import SnapshotError, StoreError
from fencepost.lake import DedupJob, checks, judge, judging, kept_content, preparing, run, sources, write
from fencepost.state import commit, prefix, stores, versions
from fencepost.state.decision import APPLIED, Decision
from fencepost.state.disk import Disk
from fencepost.state.prefix import RunPrefixes
from fencepost.state.sinks import PREPARE, RunFolders
from fencepost.state.versions import State


def _replace(owner: Any, name: str, function: Any) -> None:
    """Replace a function of a module or class. It must exist: a mutant that breaks by itself shows nothing."""
    assert hasattr(owner, name), f"{owner.__name__} has no {name}"
    setattr(owner, name, function)


def relists(job: DedupJob) -> None:
    """Recovery forgets the decision and lists again; files that are in the sink already count as applied."""
    for version in job.state.unfinished():
        (job.state.path / f"log/{version}.json").unlink()
    real = RunFolders.apply

    def apply(sink: RunFolders, decision: Decision, tasks: Any) -> str:
        return APPLIED if (sink.path / f"run={decision.version}").exists() else real(sink, decision, tasks)

    _replace(RunFolders, "apply", apply)
    _replace(RunFolders, "check", lambda *_: None)


def copies_file_by_file(job: DedupJob) -> None:
    """Apply shows a version bit by bit."""

    def apply(sink: RunFolders, decision: Decision, tasks: Any) -> str:
        target = sink.path / f"run={decision.version}"
        target.mkdir(exist_ok=True)
        for path in sorted((sink.path / str(decision.prepared)).iterdir()):
            os.rename(path, target / path.name)
        return APPLIED

    _replace(RunFolders, "apply", apply)


def zombie_overwrites(job: DedupJob) -> None:
    """Apply makes room for itself."""
    real = RunFolders.apply

    def apply(sink: RunFolders, decision: Decision, tasks: Any) -> str:
        shutil.rmtree(sink.path / f"run={decision.version}", ignore_errors=True)
        return real(sink, decision, tasks)

    _replace(RunFolders, "apply", apply)


def drops_ledger(job: DedupJob) -> None:
    """What was read before is new."""
    _replace(sources, "new_files", lambda store, ledger, listing: ([*range(len(listing))], {}))


def finishes_first(job: DedupJob) -> None:
    """Done is declared too early."""

    def commit_(state: State, sink: Any, decision: Decision, step: Any, tasks: Any) -> None:
        with step("decide"):
            state.decide(decision)
        state.finish(decision.version)
        with step("apply"):
            sink.apply(decision, tasks)

    _replace(run, "commit", commit_)


def forgets_state(job: DedupJob) -> None:
    """A damaged segment is treated as an empty one."""
    real = judge.load_table

    def load_table(store: Any, pieces: Any, policy: Any, **options: Any) -> StateTable:
        try:
            return real(store, pieces, policy, **options)
        except SnapshotError:
            return StateTable(policy, keep=options["keep"])

    _replace(judge, "load_table", load_table)


def syncs_nothing(job: DedupJob) -> None:
    """All in order, and nothing durable."""
    _replace(Disk, "seal", lambda *_: None)


def syncs_late(job: DedupJob) -> None:
    """Contents are synced, names are not."""
    real = Disk.seal
    _replace(Disk, "seal", lambda disk, path: None if path.is_dir() else real(disk, path))


def collects_all(job: DedupJob) -> None:
    """Every file that tasks wrote becomes visible, from every attempt."""
    real = RunFolders.collect

    def collect(sink: RunFolders, version: int, attempt: str, winners: dict[str, str]) -> str:
        prepared = real(sink, version, attempt, winners)
        for path in sink.prepare_folder(version, attempt).glob("part-*.parquet"):
            os.rename(path, sink.path / prepared / path.name)
        return prepared

    _replace(RunFolders, "collect", collect)


def checks_once(job: DedupJob) -> None:
    """No check that a file is still the one that the first pass read."""
    _replace(write, "unchanged", lambda *_, **__: nullcontext())
    _replace(write, "check_footer", lambda *_: None)


def believes_exists(job: DedupJob) -> None:
    """Any answer to a put but success means that another writer won."""

    def put(store: stores.RemoteStore, name: str, data: bytes) -> bool:
        try:
            store._client.put(store._store, name, data, mode="create", use_multipart=False)
        except Exception:
            return False
        return True

    _replace(stores.RemoteStore, "put", put)
    _replace(versions, "check_exclusion", lambda store: None)


def writes_in_place(job: DedupJob) -> None:
    """A put is visible before it is whole."""

    def put(disk: Disk, path: Path, data: bytes) -> bool:
        if not path.exists():
            disk.write(path, data)
        return path.read_bytes() == data

    _replace(Disk, "put", put)


def evicts_by_the_clock(job: DedupJob) -> None:
    """Producers are forgotten by the time of the machine."""

    def next_eviction(at: Any, found: Any) -> judge.Eviction:
        at.clock_ms = time.time_ns() // 1_000_000
        horizon = at.clock_ms - (job.max_idle_ms or 0)
        return judge.Eviction(horizon_before=None, horizon_after=horizon)

    _replace(judging, "_next_eviction", next_eviction)


def drops_checksums(job: DedupJob) -> None:
    """What was kept before is lost with the next run of a shard."""
    real = kept_content.advance
    _replace(kept_content, "advance", lambda store, before, *rest: real(store, (), *rest))


def keeps_silent(job: DedupJob) -> None:
    """Suspected resets do not stop a run."""
    _replace(checks, "_check_resets", lambda *_: None)


def leaves_rubbish(job: DedupJob) -> None:
    """Recovery finishes what was decided, and cleans up nothing."""
    _replace(State, "collect_leftovers", lambda *_: None)
    _replace(RunFolders, "collect_garbage", lambda *_: None)


def trusts_claims(job: DedupJob) -> None:
    """The aligned plan keeps the files of its tasks, even if others have these rows."""
    real = judging.judge_spans

    def judge_(at: Any, found: Any, reading: Any) -> Any:
        judged = real(at, found, reading)
        for shard in judged if at.plan["name"] == "aligned" else ():
            shard.counts, shard.stale_epoch = {"ACCEPTED": sum(shard.counts.values())}, 0
        return judged

    _replace(preparing, "judge_spans", judge_)


def undoes_losses(job: DedupJob) -> None:
    """A put whose outcome is unknown counts as lost, and what it names is removed."""
    real = commit.commit

    def commit_(state: State, sink: Any, decision: Decision, step: Any, tasks: Any) -> None:
        try:
            real(state, sink, decision, step, tasks)
        except (OSError, StoreError):
            state.discard(decision.version, decision.attempt)
            raise

    _replace(run, "commit", commit_)


def shows_undecided(job: DedupJob) -> None:
    """Files are at their places in an object store before their version is decided."""
    real = RunPrefixes.collect

    def collect(sink: RunPrefixes, version: int, attempt: str, winners: dict[str, str]) -> str:
        for name, written in winners.items():
            sink.store.copy(sink.store, f"{PREPARE}/{version}-{attempt}/{written}", 1, f"run={version}/{name}")
        return real(sink, version, attempt, winners)

    _replace(RunPrefixes, "collect", collect)


def claims_nothing(job: DedupJob) -> None:
    """A driver shows a version in an object store without a check whether it was abandoned."""
    _replace(RunPrefixes, "apply", lambda sink, decision, tasks: sink._complete(decision, APPLIED, tasks))


def marks_first(job: DedupJob) -> None:
    """A version in an object store is marked as complete too early."""
    real = RunPrefixes._copy_missing

    def copy_lacking(sink: RunPrefixes, decision: Decision, tasks: Any) -> None:
        sink.store.put(f"run={decision.version}/{prefix.SUCCESS}", prefix._json(prefix._manifest(decision)))
        real(sink, decision, tasks)

    _replace(RunPrefixes, "_copy_missing", copy_lacking)


MUTANTS: dict[str, Callable[[DedupJob], None]] = {
    act.__name__: act
    for act in (
        relists,
        copies_file_by_file,
        zombie_overwrites,
        drops_ledger,
        finishes_first,
        forgets_state,
        syncs_nothing,
        syncs_late,
        collects_all,
        checks_once,
        believes_exists,
        writes_in_place,
        evicts_by_the_clock,
        drops_checksums,
        keeps_silent,
        leaves_rubbish,
        trusts_claims,
        undoes_losses,
        shows_undecided,
        claims_nothing,
        marks_first,
    )
}
