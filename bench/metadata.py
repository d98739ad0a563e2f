"""What the metadata of a job cost: a state of many versions, a ledger of many files, a run with many new files.

`python bench/metadata.py [PART ...] [--versions N ...] [--files N ...] [--ledger N ...]` prints a table for each part.
Nothing is deduplicated: versions are written into the state as decisions write them, the tasks of a run answer at once,
and the sink shows nothing. So the figures are those of the driver alone.

| part | what it measures |
|---|---|
| history | a state that has all its versions in the log |
| folded | a state that folds its versions |
| ledger | finding one new file among those that were read, and recording it |
| run | a run over new files whose rows have no identity |
| dealt | a run over new files whose rows fall into all shards of a large state |
| apply | a version in an object store that records names and sizes, applied by the driver and by tasks |
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost import state
from fencepost.lake import DedupJob
from fencepost.lake.files import Files
from fencepost.lake.judge import Judged, JudgeItem
from fencepost.lake.plan import DRIVER_SPANS_MAX
from fencepost.lake.run import Run
from fencepost.lake.scan import Exchange, ScanItem, Scanned
from fencepost.lake.sources import list_of
from fencepost.lake.storage import LocalStorage
from fencepost.lake.write import WriteItem, Written
from fencepost.state import segment_files
from fencepost.state.commit import in_turn
from fencepost.state.decision import FORMAT_FOLDED, Decision, Outputs, Piece, Shard
from fencepost.state.engine import run_stage
from fencepost.state.folding import Folded
from fencepost.state.ledger import extend_ledger, new_files
from fencepost.state.prefix import RunPrefixes
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import MemoryStore, RemoteStore, _MemoryWriter
from fencepost.state.task_plan import read_item

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))  # `bench` is no part of what is installed

from bench.measure import memory_watched  # noqa: E402

PAGE = 1_000
"""Names that a request of a listing gives."""
ROUND_TRIP_MS = 20
"""Of a request, by which an object store's seconds are computed."""
FOLDER_FILES = 1_000
"""Files of a folder of the source."""
REAL = 240
"""Versions at the end of a history whose decisions are there; of those before only the names are."""
SHARDS = 4_096
"""Of a state of 10^10 entries."""
ROWS = pa.schema([("pid", pa.int64()), ("epoch", pa.int64()), ("partition", pa.int64()), ("seq", pa.int64())])


@dataclass
class Cost:
    """Of one call."""

    seconds: float
    cpu_seconds: float
    requests: int
    read_bytes: int
    written_bytes: int
    objects: int = 0
    """Of the state, afterwards, where that was counted."""
    peak_mb: float = 0.0
    """Peak memory of the process above its memory before."""


class Counted(MemoryStore):
    """An object store in memory that counts requests, and has the names of a long history without its objects."""

    requests: ClassVar[Counter[str]] = Counter()
    old: ClassVar[int] = 0
    """Versions of which only the names are there."""

    def put(self, name: str, data: bytes) -> bool:
        self._count("put", written=len(data))
        return super().put(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self._count("put", written=len(data))
        self.objects[name] = data

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        try:
            data = super().read(name, offset, length)
        except FileNotFoundError:
            self._count("get")
            raise
        self._count("get", read=len(data))
        return data

    def exists(self, name: str) -> bool:
        self._count("head")
        folder, _, rest = name.partition("/")
        number = rest.removesuffix(".json")
        is_old = folder in ("log", "done") and number.isdigit() and 1 <= int(number) <= self.old
        return is_old or super().exists(name)

    def list(self, prefix: str) -> list[str]:
        names = super().list(prefix)
        if prefix in ("log", "done"):
            names += [f"{prefix}/{it}{'.json' * (prefix == 'log')}" for it in range(1, self.old + 1)]
        self._count("list", 1 + len(names) // PAGE)
        return names

    def delete(self, names: Any) -> None:
        wanted = [*names]
        self._count("delete", -(-len(wanted) // PAGE))
        super().delete(wanted)

    def writer(self, name: str) -> _MemoryWriter:
        return CountedWriter(self, name)

    @classmethod
    def _count(cls, kind: str, requests: int = 1, read: int = 0, written: int = 0) -> None:
        cls.requests.update({kind: requests, "requests": requests, "read": read, "written": written})


class CountedWriter(_MemoryWriter):
    def close(self) -> None:
        Counted._count("put", written=sum(map(len, self.parts)))
        super().close()


class Hidden(RunFolders):
    """A sink that shows nothing, and never says that something is gone: the figures are those of the state."""

    def check(self, state: state.State) -> None:
        state.newest()

    def probe(self, version: int, attempt: str) -> None: ...

    def claim(self, state_id: str) -> None: ...

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        return f"_prepare/{version}-{attempt}/run"

    def apply(self, decision: Decision, tasks: Any = None) -> str:
        return "applied"


def measured(call: Callable[[], Any]) -> tuple[Cost, Any]:
    Counted.requests.clear()
    segment_files.CACHE.clear()
    began, cpu_began = time.perf_counter(), time.process_time()
    with memory_watched() as peak:
        found = call()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    counts, peak_mb = Counted.requests, peak[0] / 1e6
    return Cost(seconds, cpu_seconds, counts["requests"], counts["read"], counts["written"], peak_mb=peak_mb), found


@contextmanager
def in_memory(name: str) -> Iterator[str]:
    """The URI of a state whose requests are counted."""
    uri = f"memory://bench-metadata-{name}"
    with (
        mock.patch.object(state.stores, "MemoryStore", Counted),
        mock.patch.object(Counted, "old", 0),
    ):
        try:
            yield uri
        finally:
            MemoryStore._all.pop(uri, None)


# A long history


def lengthen(uri: str, versions: int, is_folded: bool) -> None:
    """Let a state of one version have so many, as if each had run like the first; all but `REAL` folded or not."""
    store = Counted(uri)
    text = json.loads(store.objects["log/1.json"])
    settings = store.objects["state.json"]
    store.objects.clear()
    store.objects["state.json"] = settings
    first = max(1, versions - REAL + 1)
    Counted.old = 0 if is_folded else first - 1
    previous: str | None = None if first == 1 else state.decision.sha256(b"the version before")
    for version in range(first, versions + 1):
        attempt = f"{version:032x}"
        own = {"version": version, "builds_on": version - 1, "previous": previous, "attempt": attempt, "breaks": []}
        own |= {"format": FORMAT_FOLDED} if is_folded else {}
        kept = {"oldest": max(1, version - 99), "collected": max(1, version - 99)}
        files = {"ledger": {**text["ledger"]}}
        fields = text | own | {name: it for name, it in kept.items() if name in text} | files
        data = (json.dumps(fields) + "\n").encode()
        previous = state.decision.sha256(data)
        done = {"format": text["format"], "status": "applied", "decision": previous}
        store.objects[f"log/{version}.json"] = data
        store.objects[f"done/{version}"] = (json.dumps(done) + "\n").encode()
    store.objects["hint"] = json.dumps({"format": text["format"], "done": versions}).encode()
    if is_folded and first > 1:
        folded = Folded(version=first - 1, removed=first - 1, sha256=state.decision.sha256(b"the version before"))
        store.objects[f"folded/{first - 1}.json"] = state.decision.to_json(vars(folded))


def history(root: Path, versions: int, is_folded: bool = False) -> dict[str, Cost]:
    """What a state of so many versions costs."""
    (root / "source").mkdir(parents=True)
    with in_memory(f"{root.name}-{versions}") as uri:

        def job() -> DedupJob:
            return DedupJob(root / "source", uri, Hidden(root / "sink", state.disk.Disk(sync=False)), settle_ms=0)

        write_rows(root / "source/0.parquet", 0)
        job().run()
        segments = {name: it for name, it in Counted(uri).objects.items() if name.startswith("segments/")}
        lengthen(uri, versions, is_folded)
        Counted(uri).objects.update(segments)
        costs: dict[str, Cost] = {}

        def measure(name: str, call: Callable[[], Any]) -> Any:
            cost, found = measured(call)
            costs[name] = replace(cost, objects=len(Counted(uri).objects) + 2 * Counted.old)
            return found

        assert measure("open", lambda: state.open(uri).latest()).version == versions
        job().run()  # whatever a first run after the change of the state does once
        report = measure("no-op", lambda: job().run())
        assert report.version is None, report
        for number, name in enumerate(["one file, and a fold"] * is_folded + ["one file"], 1):
            write_rows(root / f"source/{number}.parquet", number)
            report = measure(name, lambda: job().run())
            assert (report.version, report.files) == (versions + number, 1), report
        report = measure("no-op behind it", lambda: job().run())
        assert report.version is None, report
        return costs


def write_rows(path: Path, number: int) -> None:
    rows = np.arange(8)
    pq.write_table(pa.table([0 * rows + number, 0 * rows, 0 * rows, rows], schema=ROWS), path)


# Many files


def listed(files: int, first: int = 0) -> Files:
    """So many files as a landing zone has them, by their path."""
    numbers = range(first, first + files)
    paths = [
        f"day={it // (24 * FOLDER_FILES):05}/hour={it // FOLDER_FILES % 24:02}/{it:012x}.parquet" for it in numbers
    ]
    same = [1_800_000_000_000_000_000 + it for it in numbers]
    return Files("/source", paths, [1 << 20] * files, same, [*numbers], [""] * files, [None] * files)


def ledger(root: Path, files: int) -> dict[str, Cost]:
    """What it costs to tell the new file from so many that were read, and to note it."""
    store = Counted(f"memory://ledger-{root.name}-{files}")
    parts = None
    at_once = 1_000_000
    for version, first in enumerate(range(0, files, at_once), 1):
        some = [list_of(listed(min(at_once, files - first), first))]
        parts = extend_ledger(store, parts, version, "a", some)
    costs = {}
    try:
        day = min(files, 24 * FOLDER_FILES)
        for name, count in {"one day and a new file": day, "all and a new file": files}.items():
            if count > 10_000_000:
                continue
            listing = list_of(listed(count + 1, files - count))
            costs[name], found = measured(lambda listing=listing: new_files(store, parts, listing))
            assert found == ([count], {}), found
        one = [list_of(listed(1, files))]
        costs["note one"], _ = measured(lambda: extend_ledger(store, parts, 10**6, "b", one))
        return costs
    finally:
        MemoryStore._all.pop(store.uri, None)


class Instant:
    """An engine whose tasks answer at once: each file has one row, without identity."""

    name, in_process, slots = "instant", True, 2_000
    driver_bytes_max = driver_scan_bytes_max = 0

    def run(self, stage: str, work: Any, items: Sequence[Any], progress: Any = None) -> list[Any]:
        return [(0.0, self._answer(stage, item)) for item in items]

    def _answer(self, stage: str, item: Any) -> Any:
        if isinstance(item, ScanItem):
            count = len(item.files)
            return Scanned(
                first=item.first,
                status=["read"] * count,
                reason=[""] * count,
                files=item.files,
                rows=[1] * count,
                untracked=[1] * count,
                footer_crc=[*range(item.first, item.first + count)],
                schema=[0] * count,
                schemas=[ROWS],
            )
        assert isinstance(item, WriteItem), stage
        names = [f"part-{item.first + place}.parquet" for place in range(len(item.files))]
        count = len(item.files)
        return Written(
            ordinal=[*range(item.first, item.first + count)],
            folder=[""] * count,
            names=[*names],
            rows=item.rows,
            bytes=item.files.bytes,
            footer_crc=item.footer_crc,
            bounds=[{}] * count,
        )


class Dealing(Instant):
    """The same in other processes, so with a plan of each stage: each scan task hands on some spans for every shard."""

    in_process = False

    def __init__(self, shards: int) -> None:
        self.spans = DRIVER_SPANS_MAX // shards + 1
        """Spans of each scan task and shard: too many in all for the driver to judge."""
        self.cpu_seconds = 0.0
        """Of the tasks, which read their items from the plan."""

    def run(self, stage: str, work: Any, items: Sequence[Any], progress: Any = None) -> list[Any]:
        began = time.process_time()
        _, kind, scratch, plan = work.args
        found = [(0.0, self._answer(stage, read_item(scratch, plan, it, kind))) for it in items]  # one at a time
        self.cpu_seconds += time.process_time() - began
        return found

    def _answer(self, stage: str, item: Any) -> Any:
        if isinstance(item, JudgeItem):
            piece = Piece("segments/1/simulated", 0, 1 << 20, "0" * 64)
            numbers = np.unique(item.parts.shard).tolist()
            shards = [Shard(shard=it, entries=2_500_000, positions=None, pieces=(piece,)) for it in numbers]
            return Judged(shards=shards, counts={"ACCEPTED": len(item.parts.shard) * self.spans})
        found = super()._answer(stage, item)
        if isinstance(item, ScanItem):
            shards = item.reading.shards
            count, rows = len(item.files), shards * self.spans
            found.rows, found.untracked = [rows] + [0] * (count - 1), [0] * count
            exchange = Exchange(
                name=f"{item.first:032x}.spans",
                schema=ROWS,
                rows=rows,
                shards=np.arange(shards, dtype=np.uint32),
                spans=np.full(shards, self.spans, np.uint32),
                bytes=np.full(shards, 1_000, np.uint32),
            )
            found.exchanges = [exchange]
        return found


def run_dealt(root: Path, files: int, shards: int = SHARDS) -> tuple[dict[str, Cost], dict[str, float]]:
    """A run with so many new files whose rows fall into all shards of a large state. Cost: the driver's."""
    (root / "source").mkdir(parents=True)
    with (
        in_memory(f"{root.name}-{files}-dealt") as uri,
        mock.patch.object(LocalStorage, "list", side_effect=lambda *_: listed(files)),
    ):
        engine, sink = Dealing(shards), Hidden(root / "sink", state.disk.Disk(sync=False))
        whole: dict[str, Any] = {"plan": "interval", "shards": shards, "task_spans_max": 1 << 40}  # a task per shard
        job = DedupJob(root / "source", uri, sink, engine=engine, settle_ms=0, **whole)
        found = Run(job)
        cost, report = measured(found.run)
        assert (report.files, found.plan["shards"]) == (files, shards), report
        cpu_seconds = cost.cpu_seconds - engine.cpu_seconds
        name = f"run, {found.plan['spans'] // shards // engine.spans} scan tasks and {shards} shards"
        return {name: replace(cost, cpu_seconds=cpu_seconds)}, found.seconds


def run(root: Path, files: int) -> tuple[dict[str, Cost], dict[str, float]]:
    """A run with so many new files, one that finds nothing new, and one that finds one more."""
    (root / "source").mkdir(parents=True)
    there = [listed(files)]
    with (
        in_memory(f"{root.name}-{files}") as uri,
        mock.patch.object(LocalStorage, "list", side_effect=lambda *_: there[0]),
    ):

        def go() -> Run:
            sink = Hidden(root / "sink", state.disk.Disk(sync=False))
            found = Run(DedupJob(root / "source", uri, sink, engine=Instant(), settle_ms=0, plan="interval"))
            found.report = found.run()  # type: ignore[attr-defined]
            return found

        costs = {}
        costs["run"], first = measured(go)
        assert first.report.files == files
        costs["no-op"], nothing = measured(go)
        assert nothing.report.version is None
        there[0] = listed(files + 1)
        costs["one file"], one = measured(go)
        assert one.report.files == 1
        return costs, first.seconds


# A version with many files in an object store


class Names(RemoteStore):
    """An object store that knows of each object but its bytes, and of a small one its content. It counts requests."""

    driver: ClassVar[Counter[str]] = Counter()
    tasks: ClassVar[Counter[str]] = Counter()
    cpu_of_tasks: ClassVar[float] = 0.0
    is_task: ClassVar[bool] = False

    def __init__(self) -> None:
        self._uri, self.options = "s3://bench/sink", {}
        self.sizes: dict[str, int] = {}
        self.contents: dict[str, bytes] = {}

    def _count(self, kind: str, requests: int = 1) -> None:
        (self.tasks if self.is_task else self.driver)[kind] += requests

    def put(self, name: str, data: bytes) -> bool:
        self._count("PUT")
        self.sizes.setdefault(name, len(data))
        return self.contents.setdefault(name, bytes(data)) == data

    def upload(self, path: Path, name: str) -> None:
        self.put(name, path.read_bytes())

    def read(self, name: str, offset: int | None = None, length: int | None = None) -> bytes:
        self._count("GET")
        if name not in self.contents:
            raise FileNotFoundError(name)
        return self.contents[name]

    def read_exactly(self, name: str, offset: int, length: int, etag: str) -> bytes:
        return self.read(name)[offset : offset + length]

    def head(self, name: str) -> tuple[int, str]:
        self._count("HEAD")
        return self.sizes[name], ""

    def listing(self, prefix: str = "") -> list[tuple[str, int, str]]:
        found = [(name, size, "") for name, size in self.sizes.items() if name.startswith(f"{prefix}/")]
        self._count("LIST", 1 + len(found) // PAGE)
        return found

    def copy(self, origin: RemoteStore, name: str, size: int, target: str) -> bool:
        self._count("COPY")
        self.sizes[target] = self.sizes[name]
        return True

    def delete(self, names: Any) -> None:
        wanted = [*names]
        self._count("DELETE", -(-len(wanted) // PAGE))
        for name in wanted:
            self.sizes.pop(name, None)


class Elsewhere:
    """Tasks of other processes, as far as the driver is concerned: they run here, and what they take is apart."""

    name, in_process, slots = "elsewhere", False, 64
    driver_bytes_max = driver_scan_bytes_max = 0

    def run(self, stage: str, work: Any, items: Sequence[Any], progress: Any = None) -> list[Any]:
        Names.is_task, began = True, time.process_time()
        try:
            return [work(item) for item in items]
        finally:
            Names.is_task, Names.cpu_of_tasks = False, Names.cpu_of_tasks + time.process_time() - began


def apply(files: int) -> Iterator[tuple[str, Counter[str], Counter[str], float]]:
    """(how, requests of the driver, those of tasks, CPU seconds of the driver) of a version of so many files."""

    def tasks(stage: str, work: Any, items: Sequence[Any], /, *, scratch: Any) -> list[Any]:
        return [result for _, result in run_stage(Elsewhere(), stage, work, items, scratch)]

    names = [f"day={it // FOLDER_FILES:05}/part-{it:07}.parquet" for it in range(files)]
    written = {name: f"part-{number}-0123456789ab.parquet" for number, name in enumerate(names)}
    same = [1 << 20] * files
    outputs = Outputs(name=names, ordinal=[*range(files)], rows=[1] * files, bytes=same, footer_crc=[7] * files)
    for how, runs in (("without tasks", in_turn), ("with tasks", tasks)):
        store = Names()
        sink = RunPrefixes(store)
        store.sizes = {f"_prepare/1-a/{name}": 1 << 20 for name in written.values()}
        about: dict[str, Any] = {"version": 1, "previous": None, "builds_on": 0, "attempt": "a", "decided_ms": 0}
        about |= {"fencepost": "", "shard_count": 1, "policy": {}}
        decision = Decision(**about, outputs=outputs, prepared=sink.collect(1, "a", written))
        Names.driver.clear()
        Names.tasks.clear()
        Names.cpu_of_tasks, began = 0.0, time.process_time()
        assert sink.apply(decision, runs) == "applied"
        cpu_seconds = time.process_time() - began - Names.cpu_of_tasks
        assert len(store.sizes) == files + 2, "its files, the claim and the mark"
        yield how, Names.driver.copy(), Names.tasks.copy(), cpu_seconds


# Tables


PARTS = ("history", "folded", "ledger", "run", "dealt", "apply")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--versions", type=int, nargs="*", default=[10**4, 10**5, 10**6])
    parser.add_argument("--files", type=int, nargs="*", default=[10**4, 10**5, 10**6])
    parser.add_argument("--ledger", type=int, nargs="*", default=[10**6, 10**7])
    given = parser.parse_args()
    for part in given.parts:
        if part == "apply":
            show_apply(given.files)
            continue
        own_sizes = {"history": given.versions, "folded": given.versions, "ledger": given.ledger}
        sizes = own_sizes.get(part, given.files)
        print(f"\n| {part} | | requests | s | CPU s | s in a store | MB read | MB written | MB held | objects |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
                show(part, size, Path(folder))


def show_apply(sizes: Sequence[int]) -> None:
    print("\n| apply | files | requests of the driver | CPU s of the driver | requests of tasks |")
    print("|---|---:|---:|---:|---:|")
    for size in sizes:
        for how, driver, tasks, cpu_seconds in apply(size):
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tasks.items()))
            print(f"| {how} | {size:,} | {sum(driver.values()):,} | {cpu_seconds:.1f} | {kinds} |", flush=True)


def show(part: str, size: int, root: Path) -> None:
    seconds: dict[str, float] = {}
    if part in ("run", "dealt"):
        costs, seconds = (run if part == "run" else run_dealt)(root, size)
    else:
        parts = {"history": history, "folded": partial(history, is_folded=True), "ledger": ledger}
        costs = parts[part](root, size)
    for name, it in costs.items():
        in_store = it.seconds + it.requests * ROUND_TRIP_MS / 1e3
        megabytes = f"{it.read_bytes / 1e6:.2f} | {it.written_bytes / 1e6:.2f} | {it.peak_mb:.0f}"
        seconds_of = f"{it.seconds:.3f} | {it.cpu_seconds:.3f} | {in_store:.2f}"
        print(f"| {name} | {size:,} | {it.requests} | {seconds_of} | {megabytes} | {it.objects or ''} |", flush=True)
    if seconds:
        print("| " + ", ".join(f"{step} {it:.1f} s" for step, it in seconds.items()) + " |", flush=True)


if __name__ == "__main__":
    main()
