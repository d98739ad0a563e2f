"""A source, a state and a sink, and the conditions that must hold after any fault.

An archive keeps every file that was ever in the source, by what a decision says of it. So the check needs no
memory of what happened when: each version is a function of the inputs that it names. Undisturbed runs that read just
these, version by version, must end with the same files and the same state. An oracle of its own, a set of
identities, says which rows those are.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost import state
from fencepost._native import parquet_footer
from fencepost.errors import SnapshotError
from fencepost.lake import DedupJob, LocalEngine
from fencepost.state import checksums, segment_files
from fencepost.state.decision import APPLIED, Checksums, Decision
from fencepost.state.stores import open_store
from support.s3_server import BUCKET, s3_options

from faults.tally import injected

BEGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SCHEMA = pa.schema(
    [
        ("pid", pa.int64()),
        ("epoch", pa.int16()),
        ("partition", pa.int32()),
        ("seq", pa.int32()),
        ("timestamp", pa.timestamp("ms")),
        ("origin", pa.string()),
    ]
)
IDENTITY = ("pid", "epoch", "partition", "seq")
CHANGES = ("add", "overwrite", "rewrite", "delete", "swap", "touch")
"""What may happen to a source."""


class Broken(AssertionError):
    """Something that must hold does not."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


@dataclass
class Variation:
    """Which time a case runs in this process: rows that land and moments that are drawn differ from time to time."""

    number: int = 0

    def of(self, seed: int) -> int:
        return seed + 7_919 * self.number


VARIATION = Variation()


@dataclass
class Place:
    """Where worlds that are made in this process have their state and their sink."""

    endpoint: str = ""
    """Of an object store; "": on this disk."""


PLACE = Place()


# -- What lands


def mixed(seed: int, count: int = 300) -> pa.Table:
    """Rows with repeats near and far, two epochs, holes and untracked rows; `origin` is another in every row.

    Repeats have the timestamp of the row they repeat.
    """
    rng = np.random.default_rng(seed)
    pid = rng.integers(-1, 6, count)
    mask = rng.random(count) < 0.02
    epoch, partition = rng.integers(0, 2, count), rng.integers(0, 3, count)
    seq = rng.integers(0, 60, count) + (pid == 0) * 100
    columns = {
        "pid": pa.array(pid, mask=mask),
        "epoch": epoch,
        "partition": partition,
        "seq": seq,
        "timestamp": BEGIN_MS + (pid * 7919 + epoch * 104_729 + partition * 31 + seq * 15_485_863) % HOUR_MS,
        "origin": [f"{seed:06}:{row:04}" for row in range(count)],
    }
    return pa.table(columns).cast(SCHEMA)


def whole(seed: int, count: int = 30) -> pa.Table:
    """Runs of keys that no other seed has, with repeats and holes."""
    rng = np.random.default_rng(seed)
    lines: list[tuple[int, ...]] = []
    for _ in range(count):
        partition, epoch, first = seed * 2 + int(rng.integers(2)), int(rng.integers(2)), int(rng.integers(200))
        lines += [(7, epoch, partition, seq, BEGIN_MS) for seq in range(first, first + int(rng.integers(1, 20)))]
    columns = dict(zip(SCHEMA.names, map(list, zip(*lines, strict=True)), strict=False))
    return pa.table(columns | {"origin": [f"{seed:06}:{row:04}" for row in range(len(lines))]}).cast(SCHEMA)


ROWS = {"mixed": mixed, "whole": whole}


@dataclass(frozen=True)
class World:
    root: Path
    kind: str = "mixed"
    """Which rows land: a name in ROWS."""
    hive: bool = False
    """Whether files land in Hive-style folders."""
    variation: int = field(default_factory=lambda: VARIATION.number)
    endpoint: str = field(default_factory=lambda: PLACE.endpoint)
    """Of the object store that state and sink are in; `refresh` copies them to the folders that the checks read."""

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def sink(self) -> Path:
        return self.root / "sink"

    @property
    def store_options(self) -> dict[str, Any]:
        """The options of the stores of state and sink, in the form that a job accepts."""
        return dict.fromkeys(("state_options", "sink_options"), s3_options(self.endpoint)) if self.endpoint else {}

    def place_of(self, name: str) -> str:
        """Of "state" and "sink": a path or a URI."""
        own = hashlib.sha256(str(self.root).encode()).hexdigest()[:16]
        return f"s3://{BUCKET}/{own}/{name}" if self.endpoint else str(self.root / name)

    def refresh(self) -> None:
        """The folders of state and sink are what is in the store now."""
        for name in ("state", "sink") if self.endpoint else ():
            store = open_store(self.place_of(name), options=s3_options(self.endpoint))
            shutil.rmtree(self.root / name, ignore_errors=True)
            for it in store.list(""):
                path = self.root / name / it
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(store.read(it))

    def is_claimed(self, version: int) -> bool:
        """Whether it is too late to abandon a version that is decided."""
        self.refresh()
        return (self.sink / (f"_versions/{version}.json" if self.endpoint else f"run={version}")).exists()

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    def land(self, *seeds: int, rows: pa.Table | None = None, raw: bool = False) -> Path:
        """Put files into the source, each at once."""
        for seed in seeds:
            path = self.path_of(seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{uuid4().hex}.part")
            write_rows(part, self.rows(seed) if rows is None else rows, raw)
            self.keep(part)
            part.rename(path)
        return path

    def rows(self, seed: int) -> pa.Table:
        """What lands as the file of this number."""
        return ROWS[self.kind](Variation(self.variation).of(seed))

    def path_of(self, seed: int) -> Path:
        return self.source / (f"day={seed % 2}" if self.hive else "") / f"{seed:06}.parquet"

    def keep(self, path: Path) -> None:
        """Remember what a file of the source is at this moment."""
        self.archive.mkdir(exist_ok=True)
        stat = path.stat()
        name = _archived(stat.st_size, stat.st_mtime_ns, stat.st_ino, parquet_footer(str(path)).footer_crc)
        shutil.copyfile(path, self.archive / name)

    def files(self) -> list[Path]:
        return sorted(path for path in self.source.rglob("*.parquet") if not path.name.startswith("."))

    def change(self, kind: str, seed: int) -> None:
        """Something happens to the source: one of CHANGES, to the newest files."""
        injected(f"source changed: {kind}")
        files = self.files()
        if kind == "add" or len(files) < 2:
            self.land(seed)
        elif kind == "delete":
            files[-1].unlink()
        elif kind == "overwrite":
            fresh = self.land(seed)
            fresh.rename(files[-1])
        elif kind == "rewrite":
            part = self.root / f"{uuid4().hex}.part"
            write_rows(part, self.rows(seed))
            files[-1].write_bytes(part.read_bytes())
            part.unlink()
            self.keep(files[-1])
        elif kind == "swap":
            temporary = files[-1].with_name(f".{uuid4().hex}")
            files[-1].rename(temporary)
            files[-2].rename(files[-1])
            temporary.rename(files[-2])
        elif kind == "touch":
            os.utime(files[-1], ns=(0, files[-1].stat().st_mtime_ns + 1_000_000))
            self.keep(files[-1])
        else:
            raise ValueError(kind)

    def opened(self) -> state.State:
        options = s3_options(self.endpoint) if self.endpoint else None
        store = state.open_store(self.place_of("state"), sync=False, options=options)
        return state.State(store, sink_options=options)

    def decided(self) -> int:
        return self.opened().decided()


def write_rows(path: Path, rows: pa.Table, raw: bool = False) -> None:
    """`raw`: equal types and lengths of values give files of equal size."""
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False} if raw else {}
    pq.write_table(rows, path, row_group_size=120, **options)


def _archived(size: int, mtime_ns: int, inode: int, crc: int) -> str:
    return f"{size}-{mtime_ns}-{inode}-{crc}.parquet"


# -- What must hold


@dataclass
class History:
    """The work of a world by its decisions, in order."""

    versions: list[list[tuple[str, Path]]] = field(default_factory=list)
    """Of each applied version with input: paths, and the archived files."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    """And what it left: see `_facts`."""


def check(world: World, options: dict[str, Any], *, opened: state.State | None = None, rows: bool = True) -> History:
    """Everything that must hold of a world at rest. `rows`: whether the oracle knows which rows are kept."""
    world.refresh()
    opened = opened or world.opened()
    versions = opened.versions()
    demand(opened.done() == len(versions), f"{opened.done()} versions are done, {len(versions)} decided")
    history, seen, known = History(), set(), set()
    for version in versions:
        decision = opened.version(version.version)
        if version.status != APPLIED or not len(decision.inputs):
            continue
        _check_inputs(world, decision, seen)
        history.versions.append(_inputs(world, decision))
        history.facts.append(_facts(world, decision))
        _check_sums(decision, opened)
        if rows:
            _check_rows(world, decision, history.versions[-1], known)
    _check_all_read(world, seen)
    _check_sink(world, opened)
    segment_files.CACHE.clear()
    try:
        for _ in opened.tables():  # every piece that the newest version names is there, and is what it was
            pass
        _read_checksums(opened)
    except SnapshotError as error:
        raise Broken(f"the newest version names what is not there: {error}") from error
    check_same(history.facts, undisturbed(history.versions, options), "the undisturbed runs")
    return history


def _read_checksums(opened: state.State) -> None:
    decision = opened.latest()
    sums = decision.checksums if decision else None
    for shard in sorted(set(sums.shard)) if sums else ():
        for it in sums.get(shard):  # type: ignore[union-attr]
            found = checksums.read_sums(opened.store, it.piece)
            demand(len(found.sums) == it.rows, f"shard {shard}: {len(found.sums)} checksums, decided were {it.rows}")


def leftovers(world: World, opened: state.State | None = None) -> list[str]:
    """Files of state and sink that no version names."""
    world.refresh()
    opened = opened or world.opened()
    named = {"_fencepost.json"}
    for version in range(1, opened.decided() + 1):
        decision = opened.version(version)
        named |= {f"log/{version}.json", f"done/{version}", f"_versions/{version}.json", *decision.files()}
        named.update(opened.decision_files(version))
    names = {name for top in ("log", "done", "body", "segments", "probe", "tmp") for name in opened.store.list(top)}
    names |= {path.relative_to(world.sink).as_posix() for path in world.sink.rglob("*") if path.is_file()}
    names |= {path.relative_to(world.sink).as_posix() for path in world.sink.glob("_prepare/*")}
    names |= {path.name for path in world.state.glob("*.*") if path.name != "state.json"}
    return sorted(name for name in names - named if not name.startswith("run="))


def visible(world: World) -> dict[str, str]:
    """What others see: the sink's versions, and what was decided and done."""
    world.refresh()
    found = _hashes(world.sink, "run=*/**/*")
    return found | (_hashes(world.state, "log/*.json") if world.state.exists() else {}) | _hashes(world.state, "done/*")


def _check_inputs(world: World, decision: Decision, seen: set[tuple[Any, ...]]) -> None:
    for it in decision.inputs.each():
        identity = (it["path"], it["bytes"], it["mtime_ns"], it["inode"])
        demand(identity not in seen, f"version {decision.version}: {it['path']} was read before")
        seen.add(identity)
        demand(_source_of(world, it).exists(), f"version {decision.version}: {it['path']} never was {identity}")
    for it in decision.quarantined.each():
        seen.add((it["path"], it["bytes"], it["mtime_ns"], it["inode"]))


def _source_of(world: World, it: dict[str, Any]) -> Path:
    return world.archive / _archived(it["bytes"], it["mtime_ns"], it["inode"], it["footer_crc"])


def _inputs(world: World, decision: Decision) -> list[tuple[str, Path]]:
    return [(it["path"], _source_of(world, it)) for it in decision.inputs.each()]


def _check_sums(decision: Decision, opened: state.State) -> None:
    rows, kept = sum(decision.inputs.rows), decision.counts.get("ACCEPTED", 0) + decision.counts.get("UNTRACKED", 0)
    demand(sum(decision.counts.values()) == rows, f"{rows} rows were read, verdicts are {decision.counts}")
    demand(sum(decision.outputs.rows) == kept, f"{kept} rows are kept, outputs have {sum(decision.outputs.rows)}")
    before = opened.version(decision.builds_on).shards.positions if decision.builds_on else []
    if decision.horizon_ms is None and None not in decision.shards.positions:
        growth = sum(map(int, decision.shards.positions)) - sum(map(int, before))  # type: ignore[arg-type]
        demand(growth == decision.counts.get("ACCEPTED", 0), f"version {decision.version}: the state grew by {growth}")


_ROWS: dict[str, tuple[list[Any], list[str]]] = {}


def _rows_of(path: Path) -> tuple[list[Any], list[str]]:
    """(identity or None, origin) of each row of an archived file."""
    if path.name not in _ROWS:
        table = pq.read_table(path, partitioning=None)
        keys = zip(*(table[name].to_pylist() for name in IDENTITY), strict=True)
        _ROWS[path.name] = ([None if key[0] in (None, -1) else key for key in keys], table["origin"].to_pylist())
    return _ROWS[path.name]


def _check_rows(world: World, decision: Decision, inputs: list[tuple[str, Path]], known: set[Any]) -> None:
    """The first of each identity is in the outputs of its file, and nothing else is."""
    wanted: dict[int, list[str]] = {}
    for ordinal, (_, archived) in enumerate(inputs):
        kept = []
        for key, origin in zip(*_rows_of(archived), strict=True):
            if key is None or key not in known:
                kept.append(origin)
                known.add(key)
        if kept:
            wanted[ordinal] = kept
    found: dict[int, list[str]] = {}
    for it in decision.outputs.each():
        path = world.sink / f"run={decision.version}" / it["name"]
        demand(path.exists(), f"{path} is decided and not there")
        found.setdefault(it["ordinal"], []).extend(pq.read_table(path, partitioning=None)["origin"].to_pylist())
    lost = [row for rows in wanted.values() for row in rows]
    extra = Counter(row for rows in found.values() for row in rows)
    extra.subtract(lost)
    wrong = {row: count for row, count in extra.items() if count}
    demand(not wrong, f"version {decision.version}: rows too often or not at all: {dict(list(wrong.items())[:5])}")
    demand(found == wanted, f"version {decision.version}: rows of one file are in another's")


def _check_all_read(world: World, seen: set[tuple[Any, ...]]) -> None:
    for path in world.files():
        stat = path.stat()
        name = path.relative_to(world.source).as_posix()
        identity = (name, stat.st_size, stat.st_mtime_ns, stat.st_ino)
        demand(identity in seen, f"{name} is in the source and was never read")


def _check_sink(world: World, opened: state.State) -> None:
    folders = {path.name for path in world.sink.glob("run=*")}
    versions = range(1, opened.decided() + 1)
    shown = {version for version in versions if not world.endpoint or opened.status(version) == APPLIED}
    demand(folders == {f"run={version}" for version in shown}, f"the sink has {folders}")
    for version in versions:
        decision = opened.version(version)
        found = {
            path.relative_to(world.sink / f"run={version}").as_posix(): path.stat().st_size
            for path in (world.sink / f"run={version}").rglob("*")
            if path.is_file()
        }
        outputs, sides = decision.outputs, decision.side_files
        wanted = dict(zip([*outputs.name, *sides.name], [*outputs.bytes, *sides.bytes], strict=True))
        if world.endpoint:
            _check_claim(world, decision, opened.status(version))
            if opened.status(version) == APPLIED:
                _check_mark(world, version, wanted)
                del found["_SUCCESS"]
            else:
                wanted = {}
        else:
            wanted = wanted or {"_empty": 0}
            wanted = wanted if opened.status(version) == APPLIED else {"_abandoned": 0}
        demand(found == wanted, f"run={version} has {found}, decided was {wanted}")


def _check_claim(world: World, decision: Decision, status: str) -> None:
    path = world.sink / f"_versions/{decision.version}.json"
    claim = json.loads(path.read_text()) if path.exists() else {}
    wanted = {"status": status, "attempt": decision.attempt}
    demand(claim == wanted, f"version {decision.version} is {wanted}, and claimed as {claim}")


def _check_mark(world: World, version: int, wanted: dict[str, int]) -> None:
    path = world.sink / f"run={version}" / "_SUCCESS"
    demand(path.exists(), f"run={version} is not marked")
    marked = {it["name"]: it["bytes"] for it in json.loads(path.read_text())["files"]}
    demand(marked == wanted, f"run={version} is marked with {marked}, decided was {wanted}")


def _facts(world: World, decision: Decision) -> dict[str, Any]:
    """The files of a version, without what depends on time and writer."""
    folder = world.sink / f"run={decision.version}"
    changelog = [pq.read_table(path, partitioning=None) for path in sorted(folder.glob("_missing/*.parquet"))]
    outputs = {name: it for name, it in _hashes(folder, "**/*.parquet").items() if not name.startswith("_missing/")}
    return {
        "outputs": outputs,
        "missing": [table.drop_columns("version").to_pylist() for table in changelog],
        "counts": decision.counts,
        "entries": (decision.shards.shard, decision.shards.entries, decision.shards.positions, decision.shards.missing),
        "segments": decision.shards.sha256,
        "checksums": _checksums(decision.checksums),
        "clock": (decision.clock_ms, decision.horizon_ms),
    }


def _checksums(sums: Checksums | None) -> Any:
    return None if sums is None else (sums.columns, sums.shard, sums.rows, sums.sha256)


def check_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]], whose: str) -> None:
    demand(len(found) == len(wanted), f"{len(found)} versions, {whose} has {len(wanted)}")
    for at, (one, other) in enumerate(zip(found, wanted, strict=True), 1):
        for fact in one:
            demand(one[fact] == other[fact], f"version {at}: {fact} differ from {whose}'s: {one[fact]}, {other[fact]}")


def _hashes(folder: Path, pattern: str) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    }


# -- Undisturbed runs

_UNDISTURBED: dict[str, list[dict[str, Any]]] = {}


def undisturbed(versions: list[list[tuple[str, Path]]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """The result of a job without faults that reads these files, version by version."""
    contents = [[(path, hashlib.sha256(it.read_bytes()).hexdigest()) for path, it in version] for version in versions]
    key = repr((contents, sorted(options.items())))
    if key not in _UNDISTURBED:
        with tempfile.TemporaryDirectory(prefix="undisturbed-") as folder:
            _UNDISTURBED[key] = _run_undisturbed(World(Path(folder), endpoint=""), versions, options)
    return _UNDISTURBED[key]


def _run_undisturbed(
    world: World, versions: list[list[tuple[str, Path]]], options: dict[str, Any]
) -> list[dict[str, Any]]:
    own = {name: value for name, value in options.items() if name not in ("state", "state_options")}
    facts: list[dict[str, Any]] = []
    for files in versions:
        shutil.rmtree(world.source, ignore_errors=True)
        for path, archived in files:
            target = world.source / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(archived, target)
        report = job(world, {"shards": 4} | own, engine=LocalEngine(1), sync=False).run()
        demand(report.version and report.files == len(files), f"the undisturbed run read {report.files} files")
        facts.append(_facts(world, world.opened().version(report.version or 0)))
    return facts


def job(world: World, options: dict[str, Any], **more: Any) -> DedupJob:
    own = {name: value for name, value in options.items() if name != "state"}
    state_place, sink_place = options.get("state", world.place_of("state")), world.place_of("sink")
    return DedupJob(world.source, state_place, sink_place, **(world.store_options | own), **more)


def seeds(name: str, count: int) -> list[int]:
    """Numbers that a case draws: the same for the same name."""
    draw = random.Random(name)
    return [draw.randrange(1 << 16) for _ in range(count)]
