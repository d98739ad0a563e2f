"""Generates the landing zone of an at-least-once sink, with the expected results. Needs `fencepost[cli]`.

The generator is exact and cheap because it does not simulate single rows. Producers write *spans* of consecutive
sequences. A span is split into *fragments*, and a fragment is lost, delayed or repeated as a whole. A step of the
simulation takes a few NumPy operations on fragments. Rows exist only while a row group is encoded, and the truth is
stored as what has *not* landed. So memory grows with producers × partitions × epochs plus open holes, not with rows.
The truth shares no code with the core.

    <path>/landing/d0002-f0005.parquet             files in landing order: by name, then by row
    <path>/truth/spec.json                         the parameters
    <path>/truth/d0002.json                        amount of each ingredient in deliveries 0 to 2 together
    <path>/truth/any_order/d0002.json              for the same deliveries: counts per verdict, stale epochs, missing
    rows
    <path>/truth/any_order/d0002-kept.parquet      ranges of identities that must be kept, once each
    <path>/truth/any_order/d0002-missing.parquet   ranges that `StateTable.missing()` must list

Columns of the landing files:

    topic      utf8                     pid      int64, null or -1 if untracked
    partition  int32                    epoch    int16
    offset     int64, in broker order   seq      int32, per (pid, epoch, topic, partition) from 0
    timestamp  timestamp[ms, UTC]       key      utf8
                                        payload  binary, `payload_bytes` wide

A row that the *sink* repeats is equal in every column. A row that a *producer* sent again (a retry after a lost answer)
has the same identity, timestamp and payload, but another offset: `any_order` drops it, `kafka_offsets` keeps it. Range
files have the key columns (pid, epoch, topic, partition; for `kafka_offsets` topic, partition), first_seq, last_seq and
count (int64).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["LandingZone", "Summary", "generate"]

Array = npt.NDArray[Any]
Counts = dict[str, int]

STEP_ROWS = 65_536  # rows per simulation step: large enough for NumPy, small enough for the cache
NEAR_ROWS = 2_000  # maximum distance in rows of a near repeat, or of a row displaced within its file
POOL_FRAGMENTS = 16_384  # size of the uniform sample of landed fragments for far repeats: memory does not grow with age
LATE_FRAGMENTS_MAX = 262_144  # maximum number of delayed fragments (20 MB); further ones land in order
ORDERED_ROWS_MAX = 5_000_000  # the judges of order-dependent policies process row by row
KEYS_MAX = 2**24  # producers × topics × partitions: counters are dense arrays
ROWS_MAX = 2**30  # no sequence comes near the wrap at 2^31, whose rules the judges below do not implement
PAYLOAD_POOL_BYTES = 16 * 2**20  # larger than the window of any compressor on a page
KEY_COUNT = 4_096
START_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z; every delivery covers one hour of event time
DELIVERY_MS = 3_600_000
FIRST_PID = 1_000  # pids are consecutive from here
UNTRACKED_NULL, UNTRACKED_MINUS_ONE, TRACKED = 0, 1, 2  # the first generations; those from TRACKED on have a pid
ZOMBIE_RATE = 0.25  # share of a producer's spans that its zombie writes, during one delivery

ORDER_FREE = ("any_order", "kafka_offsets")
ORDERED = ("in_order", "kafka", "strict", "watermark")
KEY_ORDER = ("pid", "topic", "partition", "epoch")
VERDICTS = ("ACCEPTED", "DUPLICATE", "OUT_OF_ORDER", "FENCED", "UNTRACKED")

FRAGMENT = np.dtype(  # a piece of a span: rows with consecutive event, seq and offset
    [
        ("at", "i8"),  # the event number at which it lands
        ("event", "i8"),  # 0 … rows - 1, in order of writing
        ("entry", "i8"),  # generation × partition_count + partition
        ("seq", "i8"),
        ("offset", "i8"),
        ("count", "i8"),
        ("identity_new", "?"),  # whether this fragment counts, of all with these sequences
        ("offset_new", "?"),  # whether this fragment counts, of all with these offsets
        ("retried", "?"),  # one of two copies that a producer sent
    ]
)

BOUNDS: dict[str, tuple[float, float]] = {
    "rows": (1, ROWS_MAX),
    "producers": (1, KEYS_MAX),
    "topics": (1, 1_000),
    "partitions": (1, 100_000),
    "zipf_exponent": (0, 10),
    "span_mean": (1, ROWS_MAX),
    "repeat_near": (0, 1),
    "repeat_far": (0, 1),
    "redelivery_share": (0, 1),
    "retry_share": (0, 1),
    "disorder_within": (0, 1),
    "disorder_across": (0, 1),
    "missing_share": (0, 1),
    "bump_share": (0, 1),
    "zombie_share": (0, 1),
    "restart_share": (0, 1),
    "untracked_share": (0, 1),
    "payload_bytes": (0, 2**20),
    "deliveries": (1, 10_000),
    "files": (1, 10_000),
    "row_group_rows": (1, 2**24),
    "seed": (0, 2**63 - 1),
}
COMPRESSIONS = ("none", "snappy", "zstd", "lz4", "gzip")


@dataclass(frozen=True, kw_only=True)
class LandingZone:
    """The parameters of a landing zone. Shares are from 0 to 1; an ingredient with share 0 does not occur.

    Raises ValueError naming field, range and value.
    """

    rows: int = 1_000_000
    """Number of events that producers write, up to 2^30. More rows (repeats) or fewer (missing) land."""
    producers: int = 100
    topics: int = 2
    partitions: int = 6
    """Per topic."""
    zipf_exponent: float = 1.0
    """The k-th producer writes in proportion to 1 / k^zipf_exponent; 0: equal rates. Partitions are uniform."""
    span_mean: float = 20.0
    """Mean length of a producer's spans in rows (geometric distribution)."""
    repeat_near: float = 0.02
    """Share of rows that the sink repeats within a few thousand rows."""
    repeat_far: float = 0.01
    """Share of rows that the sink repeats in a later file, at any distance."""
    redelivery_share: float = 0.1
    """Share of files delivered a second time under a new name: at least one unless 0."""
    retry_share: float = 0.001
    """Share of rows that a producer sends and the broker appends a second time: same identity, another offset."""
    disorder_within: float = 0.02
    """Share of rows that land later in their file than they were written."""
    disorder_across: float = 0.01
    """Share of rows that land in one of the next two files, often in the next delivery. All have landed at the end."""
    missing_share: float = 0.001
    """Share of rows that were written and never land."""
    bump_share: float = 0.1
    """Share of producers whose epoch is bumped in each delivery: at least one unless 0. Sequences restart at 0."""
    zombie_share: float = 0.5
    """Share of bumps that leave a zombie: the old epoch continues to write for the length of a delivery."""
    restart_share: float = 0.05
    """Share of producers that restart in each delivery with a new pid: at least one unless 0."""
    untracked_share: float = 0.01
    """Share of rows without an idempotent producer: in half of them pid, epoch and seq are null, in half -1."""
    payload_bytes: int = 90
    deliveries: int = 4
    files: int = 4
    """Number of files per delivery, without redelivered files."""
    co_located: bool = False
    """Put whole (topic, partition) keys into one file per delivery, with first occurrences in order. Disables both
    disorders and `redelivery_share`."""
    row_group_rows: int = 131_072
    compression: str = "snappy"
    seed: int = 0

    def __post_init__(self) -> None:
        for field, (low, high) in BOUNDS.items():
            found = getattr(self, field)
            if isinstance(getattr(type(self), field), int) and not isinstance(found, int):
                raise ValueError(f"{field} must be a whole number from {low} to {high}, found {found!r}")
            _check(field, low, found, high)
        _check("producers × topics × partitions", 1, self.producers * self.partition_count, KEYS_MAX)
        _check("deliveries × files", 1, self.segment_count, min(self.rows, 100_000))
        _check("row_group_rows × payload_bytes", 0, self.row_group_rows * self.payload_bytes, 2**31 - 1)
        fates = self.missing_share + self.disorder_across + self.disorder_within
        _check("missing_share + disorder_across + disorder_within", 0, fates, 1)
        if self.co_located:
            _check("files of co-located keys", 1, self.files, self.partition_count)
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"compression must be one of {', '.join(COMPRESSIONS)}, found {self.compression!r}")

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics."""
        return self.topics * self.partitions

    @property
    def segment_count(self) -> int:
        """Number of files of all deliveries, without redelivered files."""
        return self.deliveries * self.files

    def border(self, segment: int) -> int:
        """Return the first event of a segment (the events of one file)."""
        return self.rows * segment // self.segment_count


@dataclass(frozen=True)
class Summary:
    """The output of one call of `generate`, and the totals up to its last delivery."""

    files: tuple[str, ...]
    """Names of the landing files that this call wrote, in landing order."""
    rows: int
    """Number of rows in these files."""
    bytes: int
    """Size of these files."""
    ingredients: Counts
    """Number of rows or events of each ingredient from the first delivery to the last of this call."""
    truth: dict[str, dict[str, Any]]
    """Maps a policy to the content of its newest truth file."""


def generate(
    path: str | os.PathLike[str],
    spec: LandingZone,
    *,
    deliveries: range | None = None,
    truth_policies: Sequence[str] = ORDER_FREE,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Write the landing files and the truth of some deliveries under `path`.

    Args:
        path: A folder.
        spec: The parameters.
        deliveries: A contiguous range. Default: all. Earlier deliveries are simulated without being written, so the
            bytes do not depend on how the work is split into calls. Their files must exist if one of them is
            redelivered or an order-dependent policy is judged.
        truth_policies: Names of presets. `in_order`, `kafka`, `strict` and `watermark` are judged row by row in landing
            order and accept at most 5 million rows.
        progress: Called with the number of events written so far.

    Raises:
        ValueError: Invalid range or policy.
        FileExistsError: `path` contains another landing zone.
        FileNotFoundError: An earlier delivery is needed and missing.
        OSError: Other errors of the operating system.
    """
    wanted = range(spec.deliveries) if deliveries is None else deliveries
    _check_request(spec, wanted, truth_policies)
    zone = _Zone(Path(path), spec, wanted, truth_policies)
    for delivery in range(wanted.stop):
        zone.deliver(delivery, progress or (lambda _: None))
    return zone.summary()


def _check(field: str, low: float, found: float, high: float) -> None:
    if not low <= found <= high:
        raise ValueError(f"{field} must be from {low} to {high}, found {found}")


def _check_request(spec: LandingZone, deliveries: range, policies: Sequence[str]) -> None:
    if not (0 <= deliveries.start < deliveries.stop <= spec.deliveries and deliveries.step == 1):
        raise ValueError(f"deliveries must be a range within 0 to {spec.deliveries} by step 1, found {deliveries}")
    for policy in policies:
        if policy not in ORDER_FREE + ORDERED:
            raise ValueError(f"truth_policies must be among {', '.join(ORDER_FREE + ORDERED)}, found {policy!r}")
        if policy in ORDERED:
            _check(f"rows with truth of {policy!r}", 1, spec.rows, ORDERED_ROWS_MAX)


# -- The zone: which rows land in which file ---------------------------------------------------------------------------


class _File(NamedTuple):
    """A landing file: the events of `segment`, or a repetition of file `copy_of`."""

    name: str
    segment: int
    copy_of: int | None = None


class _Zone:
    """Runs the world delivery by delivery, lands its fragments in files, and keeps the truth."""

    def __init__(self, path: Path, spec: LandingZone, wanted: range, policies: Sequence[str]) -> None:
        self.spec, self.wanted = spec, wanted
        self.landing, self.truth_path = path / "landing", path / "truth"
        self.plan = _plan(spec)
        self.name_of = {file.segment: file.name for files in self.plan for file in files if file.copy_of is None}
        self.copied = {file.copy_of for files in self.plan for file in files} - {None}
        self.world = _World(spec)
        self.rows = _RowMaker(spec)
        self.truth = _OrderFreeTruth(spec)
        self.judges = {policy: _OrderedJudge(RULES[policy]) for policy in policies if policy in ORDERED}
        self.policies = policies
        self.tallies: dict[int, Array] = {}
        self.ingredients: Counts = {"redelivered_files": 0, "redelivered_rows": 0}
        self.written: list[tuple[str, int, int]] = []
        self.newest: dict[str, dict[str, Any]] = {}
        self._claim()

    def summary(self) -> Summary:
        names, rows, sizes = zip(*self.written, strict=True)
        return Summary(names, sum(rows), sum(sizes), self._ingredients(), self.newest)

    def deliver(self, delivery: int, progress: Callable[[int], None]) -> None:
        """Land one delivery. If it is wanted, write its files and the truth after it."""
        self.world.begin_delivery(delivery)
        self.truth.grow(self.world)
        if self.spec.co_located:
            self._deliver_co_located(delivery, progress)
        else:
            for file in self.plan[delivery]:
                if file.copy_of is None:
                    self._land_file(delivery, file, progress)
                else:
                    self._land_copy(delivery, file, file.copy_of)
        self.truth.settle(self.world)
        for judge in self.judges.values():
            for file in self.plan[delivery]:
                judge.read(self._landed(file.name))
        if delivery in self.wanted:
            self._write_truth(delivery)

    def _land_file(self, delivery: int, file: _File, progress: Callable[[int], None]) -> None:
        out = self._open(delivery, file.name)
        for event, fragments in self.world.segment(file.segment):
            self.truth.land(fragments)
            if file.segment in self.copied:
                before = self.tallies.get(file.segment, np.empty((0, 2), np.int64))
                self.tallies[file.segment] = _tally(before, fragments)
            if out is not None:
                out.add(fragments)
            progress(event)
        self._close(out)

    def _deliver_co_located(self, delivery: int, progress: Callable[[int], None]) -> None:
        outs = [self._open(delivery, file.name) for file in self.plan[delivery]]
        for file in self.plan[delivery]:
            for event, fragments in self.world.segment(file.segment):
                self.truth.land(fragments)
                route = fragments["entry"] % self.spec.partition_count % self.spec.files
                for place, out in enumerate(outs):
                    if out is not None:
                        out.add(fragments[route == place])
                progress(event)
        for out in outs:
            self._close(out)

    def _land_copy(self, delivery: int, file: _File, source: int) -> None:
        tally = self.tallies[source]
        self.truth.land_again(tally)
        rows = int(tally[:, 1].sum())
        self.ingredients["redelivered_files"] += 1
        self.ingredients["redelivered_rows"] += rows
        if delivery in self.wanted:
            path = self.landing / file.name
            shutil.copyfile(self._landed(self.name_of[source]), _hidden(path))
            os.replace(_hidden(path), path)
            self.written.append((file.name, rows, path.stat().st_size))

    def _open(self, delivery: int, name: str) -> _LandingFile | None:
        return _LandingFile(self.landing / name, self.rows, self.world) if delivery in self.wanted else None

    def _close(self, out: _LandingFile | None) -> None:
        if out is not None:
            self.written.append((out.path.name, out.close(), out.path.stat().st_size))

    def _landed(self, name: str) -> Path:
        path = self.landing / name
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing, but later deliveries repeat its rows: generate the earlier deliveries first"
            )
        return path

    def _claim(self) -> None:
        """Refuse a folder with the truth of other data."""
        text = json.dumps(dataclasses.asdict(self.spec), indent=2) + "\n"
        file = self.truth_path / "spec.json"
        if file.exists() and file.read_text() != text:
            raise FileExistsError(
                f"{file.parent.parent} holds a landing zone with other parameters: choose an empty folder"
            )
        if not file.exists() and self.landing.exists() and any(self.landing.iterdir()):
            raise FileExistsError(f"{self.landing} is not empty and has no truth file: choose an empty folder")
        for folder in (self.landing, self.truth_path, *(self.truth_path / policy for policy in self.policies)):
            folder.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _ingredients(self) -> Counts:
        return {**self.world.ingredients, **self.ingredients}

    def _write_truth(self, delivery: int) -> None:
        _write_json(self.truth_path / f"d{delivery:04}.json", {"delivery": delivery, **self._ingredients()})
        for policy in self.policies:
            judge = self.judges.get(policy)
            facts, kept, missing = judge.truth() if judge else self.truth.truth(policy, self.rows)
            assert kept["count"].to_numpy().sum() == facts["counts"]["ACCEPTED"], "what is kept was accepted once"
            self.newest[policy] = {"policy": policy, "delivery": delivery, **facts}
            folder = self.truth_path / policy
            _write_json(folder / f"d{delivery:04}.json", self.newest[policy])
            pq.write_table(kept, folder / f"d{delivery:04}-kept.parquet")
            pq.write_table(missing, folder / f"d{delivery:04}-missing.parquet")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _hidden(path: Path) -> Path:
    """Return the temporary path of a file, hidden from jobs that list the folder."""
    return path.with_name(f".{path.name}.part")


def _plan(spec: LandingZone) -> list[list[_File]]:
    """Plan the files of every delivery. Redeliveries are drawn ahead, so that a tally of their files is enough."""
    rng = np.random.default_rng([spec.seed, 1])
    copies = 0 if spec.co_located else _share_of(spec.segment_count, spec.redelivery_share)
    copied_after = set(rng.choice(spec.segment_count, copies, replace=False).tolist())
    plan = []
    for delivery in range(spec.deliveries):
        files: list[_File] = []
        for segment in range(delivery * spec.files, (delivery + 1) * spec.files):
            files.append(_File(f"d{delivery:04}-f{len(files):04}.parquet", segment))
            if segment in copied_after:
                source = int(rng.integers(segment + 1))
                files.append(_File(f"d{delivery:04}-f{len(files):04}.parquet", segment, source))
        plan.append(files)
    return plan


def _share_of(count: int, share: float) -> int:
    """Return the share of a count, at least one unless the share is 0."""
    return max(1, round(share * count)) if share else 0


def _tally(before: Array, fragments: Array) -> Array:
    """Return (entry, rows) per entry of a file, shape (entries, 2), int64: all that is needed for its redelivery."""
    entries, place = np.unique(np.concatenate([before[:, 0], fragments["entry"]]), return_inverse=True)
    rows = np.zeros(len(entries), np.int64)
    np.add.at(rows, place, np.concatenate([before[:, 1], fragments["count"]]))
    return np.column_stack([entries, rows])


# -- The world: what producers write and when it lands -----------------------------------------------------------------


class _World:
    """Producers, brokers and the sink. `segment` yields fragments in landing order.

    A *generation* is one (pid, epoch); entry = generation × partition_count + partition. Generations 0 and 1 are
    untracked rows with null and -1.
    """

    def __init__(self, spec: LandingZone) -> None:
        self.spec = spec
        self.rng = np.random.default_rng([spec.seed, 2])
        producers = np.arange(spec.producers)
        self.pid_count = spec.producers
        self.pid = np.concatenate([[0, -1], FIRST_PID + producers])
        self.epoch = np.concatenate([[0, -1], np.zeros(spec.producers, np.int64)])
        weights = np.cumsum(1.0 / (1.0 + producers) ** spec.zipf_exponent)
        self.weights = weights / weights[-1]
        self.live = producers + TRACKED  # the generation that each producer writes as
        self.planned = self.live.copy()  # ... at the end of the current delivery
        self.zombie = np.full(spec.producers, -1)
        self.zombie_until = np.zeros(spec.producers, np.int64)
        self.turns: list[tuple[int, int, int, bool]] = []  # (at, producer, generation, leaves a zombie), not yet due
        self.seq_next = np.zeros(len(self.pid) * spec.partition_count, np.int64)
        self.offset_next = np.zeros(spec.partition_count, np.int64)
        self.waiting = np.empty(0, FRAGMENT)  # written, to land later; or to land again
        self.lost: list[Array] = []  # since the last call of take_lost
        self.pool = _Pool(self.rng)
        names = ("written", "retries", "untracked_null", "untracked_minus_one", "zombies", "bumps", "restarts")
        self.ingredients: Counts = dict.fromkeys((*names, "missing", "displaced", "late", "near", "far"), 0)

    def begin_delivery(self, delivery: int) -> None:
        """Draw bumps and restarts in this delivery, and make room for their generations."""
        spec, rng = self.spec, self.rng
        first, stop = spec.border(delivery * spec.files), spec.border((delivery + 1) * spec.files)
        turns: list[tuple[int, int, bool, bool]] = []
        for share, is_bump in ((spec.bump_share, True), (spec.restart_share, False)):
            chosen = rng.choice(spec.producers, _share_of(spec.producers, share), replace=False)
            moments = rng.integers(first, stop, len(chosen))
            zombies = rng.random(len(chosen)) < (spec.zombie_share if is_bump else 0)
            turns += zip(moments.tolist(), chosen.tolist(), [is_bump] * len(chosen), zombies.tolist(), strict=True)
        self._begin_generations(sorted(turns))

    def _begin_generations(self, turns: list[tuple[int, int, bool, bool]]) -> None:
        pid, epoch = self.pid.tolist(), self.epoch.tolist()
        for moment, producer, is_bump, zombie in turns:
            old = self.planned[producer]
            self.pid_count += not is_bump
            pid.append(pid[old] if is_bump else FIRST_PID + self.pid_count - 1)
            epoch.append(epoch[old] + 1 if is_bump else 0)
            self.planned[producer] = len(pid) - 1
            self.turns.append((moment, producer, len(pid) - 1, zombie))
            self.ingredients["bumps" if is_bump else "restarts"] += 1
        self.pid, self.epoch = np.array(pid), np.array(epoch)
        self.seq_next = _grown(self.seq_next, len(pid) * self.spec.partition_count)

    def segment(self, segment: int) -> Iterator[tuple[int, Array]]:
        """Write a segment's events in steps: yields (events so far, fragments that landed, in landing order)."""
        stop = self.spec.border(segment + 1)
        for event in range(self.spec.border(segment), stop, STEP_ROWS):
            step_stop = min(event + STEP_ROWS, stop)
            yield step_stop, self._step(event, step_stop, segment)

    def _step(self, event: int, stop: int, segment: int) -> Array:
        self._take_turns(stop)
        fragments = self._cut(self._write(event, stop - event))
        landing = self._send(fragments, segment)
        again = [self._repeat_near(landing), self._repeat_far(len(landing), event, stop, segment)]
        waiting = np.concatenate([self.waiting, landing, *again])
        due = waiting["at"] < (stop if stop < self.spec.rows else np.iinfo(np.int64).max)
        self.waiting, landed = waiting[~due], waiting[due]
        landed = landed[np.argsort(landed["at"], kind="stable")]
        if self.spec.repeat_far:
            self.pool.offer(landed, segment)
        return landed

    def _take_turns(self, stop: int) -> None:
        """Execute bumps and restarts up to `stop`, at the end of the step."""
        while self.turns and self.turns[0][0] < stop:
            moment, producer, generation, zombie = self.turns.pop(0)
            if zombie:
                self.zombie[producer] = self.live[producer]
                self.zombie_until[producer] = moment + self.spec.border(self.spec.files)
            self.live[producer] = generation
        self.zombie[self.zombie_until < stop] = -1

    def _write(self, event: int, rows: int) -> Array:
        """Return the spans of this step as the broker appends them, with each retry right after its span."""
        counts = _span_lengths(self.rng, rows, self.spec.span_mean)
        spans = np.zeros(len(counts), FRAGMENT)
        spans["count"], spans["identity_new"], spans["offset_new"] = counts, True, True
        spans["event"] = spans["at"] = event + np.cumsum(counts) - counts
        partition = self.rng.integers(self.spec.partition_count, size=len(spans))
        spans["entry"] = self._draw_generations(counts) * self.spec.partition_count + partition
        spans["seq"] = _advance(self.seq_next, spans["entry"], counts)
        retried = self.rng.random(len(spans)) < self.spec.retry_share
        spans["retried"] = retried
        appended = np.repeat(spans, 1 + retried)
        copies = np.flatnonzero(np.repeat(retried, 1 + retried))[1::2]
        appended["identity_new"][copies] = False
        appended["at"][copies] += appended["count"][copies] - 1  # before the next span: a retry is not a disorder
        place = appended["entry"] % self.spec.partition_count
        appended["offset"] = _advance(self.offset_next, place, appended["count"])
        self.ingredients["written"] += rows
        self.ingredients["retries"] += int(appended["count"][copies].sum())
        return appended

    def _draw_generations(self, counts: Array) -> Array:
        """Draw the writer of each span: a producer by its rate, sometimes its zombie, or an untracked one."""
        producer = np.searchsorted(self.weights, self.rng.random(len(counts)), side="right")
        generation = self.live[producer]
        zombie = self.zombie[producer]
        haunted = (self.rng.random(len(counts)) < ZOMBIE_RATE) & (zombie >= 0)
        generation[haunted] = zombie[haunted]
        untracked = self.rng.random(len(counts)) < self.spec.untracked_share
        generation[untracked] = self.rng.integers(TRACKED, size=int(untracked.sum()))
        for name, is_one in (
            ("zombies", haunted & ~untracked),
            ("untracked_null", generation == UNTRACKED_NULL),
            ("untracked_minus_one", generation == UNTRACKED_MINUS_ONE),
        ):
            self.ingredients[name] += int(counts[is_one].sum())
        return generation

    def _cut(self, spans: Array) -> Array:
        """Split half of the spans in two: lost, late and repeated fragments also begin and end inside a span."""
        is_cut = (self.rng.random(len(spans)) < 0.5) & (spans["count"] > 1)
        head = self.rng.integers(1, np.maximum(spans["count"], 2))
        pieces: Array = np.repeat(spans, 1 + is_cut)
        tails = np.flatnonzero(np.repeat(is_cut, 1 + is_cut))[1::2]
        head = head[is_cut]
        pieces["count"][tails - 1] = head
        pieces["count"][tails] -= head
        for column in ("event", "seq", "offset"):
            pieces[column][tails] += head
        pieces["at"][tails] += head * pieces["identity_new"][tails]
        return pieces

    def _send(self, fragments: Array, segment: int) -> Array:
        """Lose some fragments, and delay some to a later place in the file or to a later file.

        Retried spans are excluded, so the first copy always lands before the second and is the one that counts.
        """
        spec, rng, count = self.spec, self.rng, len(fragments)
        fate = np.where(fragments["retried"], 2.0, rng.random(count))
        within, across = (0.0, 0.0) if spec.co_located else (spec.disorder_within, spec.disorder_across)
        kind = np.searchsorted(np.cumsum([spec.missing_share, across, within]), fate, side="right")
        lost, late, displaced = kind == 0, kind == 1, kind == 2
        late &= segment + 1 < spec.segment_count
        late &= np.cumsum(late) <= LATE_FRAGMENTS_MAX - len(self.waiting)
        segment_stop, after_next_stop = spec.border(segment + 1), spec.border(segment + 3)
        moved = fragments["at"] + fragments["count"] + rng.integers(1, NEAR_ROWS, count)
        fragments["at"] = np.where(displaced, np.minimum(moved, segment_stop - 1), fragments["at"])
        fragments["at"] = np.where(late, rng.integers(segment_stop, after_next_stop, count), fragments["at"])
        for name, chosen in (("missing", lost), ("late", late), ("displaced", displaced)):
            self.ingredients[name] += int(fragments["count"][chosen].sum())
        self.lost.append(fragments[lost])
        landing: Array = fragments[~lost]
        return landing

    def _repeat_near(self, landing: Array) -> Array:
        """Repeat fragments soon after: writes that were acknowledged too late."""
        again = landing[self.rng.random(len(landing)) < self.spec.repeat_near]
        again["at"] += again["count"] + self.rng.integers(0, NEAR_ROWS, len(again))
        return self._repeated(again, "near")

    def _repeat_far(self, landing_count: int, event: int, stop: int, segment: int) -> Array:
        """Repeat fragments of earlier files: a consumer group that was reset."""
        count = self.rng.binomial(landing_count, self.spec.repeat_far)
        again = self.pool.draw(count, segment)
        again["at"] = self.rng.integers(event, stop, len(again))
        return self._repeated(again, "far")

    def _repeated(self, again: Array, name: str) -> Array:
        again["identity_new"] = again["offset_new"] = False
        self.ingredients[name] += int(again["count"].sum())
        return again

    def take_lost(self) -> Array:
        """Return the fragments lost since the last call."""
        lost, self.lost = self.lost, []
        return np.concatenate(lost)


class _Pool:
    """A uniform sample of all landed fragments (reservoir sampling), with their segments."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.seen = 0
        self.fragments = np.zeros(POOL_FRAGMENTS, FRAGMENT)
        self.segments = np.full(POOL_FRAGMENTS, np.iinfo(np.int64).max)

    def offer(self, landed: Array, segment: int) -> None:
        ordinal = self.seen + np.arange(len(landed))
        slot = np.where(ordinal < POOL_FRAGMENTS, ordinal, self.rng.integers(0, ordinal + 1))
        chosen = slot < POOL_FRAGMENTS
        self.fragments[slot[chosen]] = landed[chosen]
        self.segments[slot[chosen]] = segment
        self.seen += len(landed)

    def draw(self, count: int, segment: int) -> Array:
        """Return `count` fragments that landed before this segment; empty if there are none."""
        earlier = np.flatnonzero(self.segments < segment)
        if len(earlier) == 0:
            return self.fragments[:0].copy()
        drawn: Array = self.fragments[self.rng.choice(earlier, count)]
        return drawn


def _span_lengths(rng: np.random.Generator, rows: int, mean: float) -> Array:
    """Return geometric lengths, int64, that add up to `rows` exactly; the last one is truncated."""
    lengths = rng.geometric(1 / mean, int(rows / mean * 1.1) + 16)
    while lengths.sum() < rows:
        lengths = np.concatenate([lengths, rng.geometric(1 / mean, len(lengths))])
    ends = np.cumsum(lengths)
    last = int(np.searchsorted(ends, rows))
    lengths[last] -= ends[last] - rows
    return lengths[: last + 1]


def _advance(totals: Array, keys: Array, counts: Array) -> Array:
    """Return the start of each span, if a key's spans are consecutive from totals[key] on. Advances `totals`."""
    order = np.argsort(keys, kind="stable")
    key, count = keys[order], counts[order]
    before = np.cumsum(count) - count
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    within = before - np.repeat(before[first], np.diff(np.append(first, len(key))))
    start = np.empty_like(before)
    start[order] = totals[key] + within
    np.add.at(totals, keys, counts)
    return start


def _grown(array: Array, length: int, fill: int = 0) -> Array:
    return np.concatenate([array, np.full(length - len(array), fill, array.dtype)])


# -- Rows: fragments become Parquet ------------------------------------------------------------------------------------


class _RowMaker:
    """Converts fragments to rows, one row group at a time. The only place where memory grows with rows."""

    def __init__(self, spec: LandingZone) -> None:
        self.spec = spec
        width = max(spec.payload_bytes, 1)
        count = max(64, min(65_536, PAYLOAD_POOL_BYTES // width))
        payloads = np.random.default_rng([spec.seed, 3]).integers(256, size=(count, width), dtype=np.uint8)
        self.payloads = payloads[:, : spec.payload_bytes]
        self.topics = pa.array([f"topic-{topic}" for topic in range(spec.topics)])
        self.keys = pa.array([f"device-{key:04}" for key in range(KEY_COUNT)])

    def table(self, world: _World, fragments: Array) -> pa.Table:
        counts = fragments["count"]
        total = int(counts.sum())
        nth = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        generation, place = np.divmod(fragments["entry"], self.spec.partition_count)
        event = np.repeat(fragments["event"], counts) + nth
        mix = event.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        untracked = generation == UNTRACKED_NULL
        nulls = np.repeat(untracked, counts) if untracked.any() else None
        seq = np.repeat(fragments["seq"], counts) + nth
        seq[np.repeat(generation == UNTRACKED_MINUS_ONE, counts)] = -1
        columns = {
            "topic": self.topic(np.repeat(place, counts)),
            "partition": self.partition(np.repeat(place, counts)),
            "offset": pa.array(np.repeat(fragments["offset"], counts) + nth),
            "timestamp": pa.array(self._timestamps(event), pa.timestamp("ms", "UTC")),
            "pid": pa.array(np.repeat(world.pid[generation], counts), mask=nulls),
            "epoch": pa.array(np.repeat(world.epoch[generation].astype(np.int16), counts), mask=nulls),
            "seq": pa.array(seq.astype(np.int32), mask=nulls),
            "key": pa.DictionaryArray.from_arrays((mix >> np.uint64(52)).astype(np.int16), self.keys),
            "payload": self._payload(((mix >> np.uint64(20)) % np.uint64(len(self.payloads))).astype(np.int64)),
        }
        return pa.table(columns)

    def topic(self, place: Array) -> pa.Array:
        return pa.DictionaryArray.from_arrays((place // self.spec.partitions).astype(np.int16), self.topics)

    def partition(self, place: Array) -> pa.Array:
        return pa.array((place % self.spec.partitions).astype(np.int32))

    def _timestamps(self, event: Array) -> Array:
        return START_MS + (event * (self.spec.deliveries * DELIVERY_MS / self.spec.rows)).astype(np.int64)

    def _payload(self, choice: Array) -> pa.Array:
        width = self.spec.payload_bytes
        offsets = np.arange(len(choice) + 1, dtype=np.int32) * np.int32(width)
        data = np.take(self.payloads, choice, axis=0)
        return pa.BinaryArray.from_buffers(pa.binary(), len(choice), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class _LandingFile:
    """An open Parquet file, which buffers fragments until a row group is full."""

    def __init__(self, path: Path, rows: _RowMaker, world: _World) -> None:
        self.path, self.rows, self.world = path, rows, world  # at `path` once it is closed
        self.count = 0
        self.held: list[Array] = []
        self.held_rows = 0
        self.writer = pq.ParquetWriter(
            _hidden(path),
            rows.table(world, np.empty(0, FRAGMENT)).schema,
            compression=rows.spec.compression,
            use_dictionary=["topic", "partition", "pid", "epoch", "key"],
            store_schema=False,  # readers choose between dictionaries and strings
        )

    def add(self, fragments: Array) -> None:
        self.held.append(fragments)
        self.held_rows += int(fragments["count"].sum())
        if self.held_rows < self.rows.spec.row_group_rows:
            return
        held = np.concatenate(self.held)
        while self.held_rows >= self.rows.spec.row_group_rows:
            group, held = _split(held, self.rows.spec.row_group_rows)
            self._write(group)
            self.held_rows -= self.rows.spec.row_group_rows
        self.held = [held]

    def close(self) -> int:
        """Write the rest. Returns the number of rows of the file."""
        if self.held_rows:
            self._write(np.concatenate(self.held))
        self.writer.close()
        os.replace(_hidden(self.path), self.path)
        return self.count

    def _write(self, group: Array) -> None:
        table = self.rows.table(self.world, group)
        self.writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.count += table.num_rows


def _split(fragments: Array, rows: int) -> tuple[Array, Array]:
    """Return the first `rows` rows and the rest; a fragment across the border is split."""
    ends = np.cumsum(fragments["count"])
    last = int(np.searchsorted(ends, rows))
    over = int(ends[last]) - rows
    group, rest = fragments[: last + 1].copy(), fragments[last + (over == 0) :].copy()
    group["count"][-1] -= over
    if over:
        for column in ("event", "seq", "offset"):
            rest[column][0] += group["count"][-1]
        rest["count"][0] = over
    return group, rest


# -- Truth of policies that do not depend on the order -----------------------------------------------------------------


class _Ledger:
    """What one order-free policy has accepted: first and highest number per key, and what has not landed in between."""

    def __init__(self, number: str, is_new: str, key_of: Callable[[Array], Array]) -> None:
        """`number`, `is_new`: columns of fragments. `key_of`: returns the key of each entry."""
        self.number, self.is_new, self.key_of = number, is_new, key_of
        self.first = np.empty(0, np.int64)
        self.last = np.empty(0, np.int64)
        self.lost = np.empty((0, 3), np.int64)  # (key, first, last) of what never lands

    def grow(self, keys: int) -> None:
        self.first, self.last = _grown(self.first, keys, np.iinfo(np.int64).max), _grown(self.last, keys, -1)

    def land(self, fragments: Array) -> int:
        """Accept the fragments that count. Returns the number of their rows."""
        new = fragments[fragments[self.is_new]]
        key, start = self.key_of(new["entry"]), new[self.number]
        np.minimum.at(self.first, key, start)
        np.maximum.at(self.last, key, start + new["count"] - 1)
        return _row_count(new)

    def missing(self, lost: Array, waiting: Array) -> Array:
        """Return (key, first, last), int64, of every current hole: `lost` for good, or `waiting` to land.

        `lost` contains what is new since the last call.
        """
        self.lost = _joined(np.concatenate([self.lost, self._ranges(lost)]))
        holes = _joined(np.concatenate([self.lost, self._ranges(waiting[waiting[self.is_new]])]))
        # A hole is entirely inside or outside an entry, because its neighbors have landed.
        return holes[(self.first[holes[:, 0]] < holes[:, 1]) & (holes[:, 2] < self.last[holes[:, 0]])]

    def kept(self, missing: Array) -> Array:
        """Return (key, first, last), int64, of every accepted range: from first to highest without `missing`."""
        known = np.flatnonzero(self.last >= 0)
        first = np.concatenate([np.column_stack([known, self.first[known]]), missing[:, [0, 2]] + [0, 1]])
        last = np.concatenate([np.column_stack([known, self.last[known]]), missing[:, [0, 1]] - [0, 1]])
        first, last = (side[np.lexsort((side[:, 1], side[:, 0]))] for side in (first, last))
        return np.column_stack([first, last[:, 1]])

    def _ranges(self, fragments: Array) -> Array:
        """Return (key, first, last), int64, shape (fragments, 3)."""
        first = fragments[self.number]
        return np.column_stack([self.key_of(fragments["entry"]), first, first + fragments["count"] - 1])


def _joined(ranges: Array) -> Array:
    """Merge neighbors: disjoint (key, first, last) in order."""
    ranges = ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))]
    apart = (ranges[1:, 0] != ranges[:-1, 0]) | (ranges[1:, 1] != ranges[:-1, 2] + 1)
    first = np.flatnonzero(np.concatenate([[True], apart]))[: len(ranges)]
    last = np.append(first[1:], len(ranges))[: len(first)] - 1
    return np.column_stack([ranges[first, :2], ranges[last, 2]])


class _OrderFreeTruth:
    """Counts rows from the simulation's knowledge (whether a fragment counts), and takes ranges from the ledgers."""

    def __init__(self, spec: LandingZone) -> None:
        self.partition_count = spec.partition_count
        self.ledgers = {
            "any_order": _Ledger("seq", "identity_new", lambda entry: entry),
            "kafka_offsets": _Ledger("offset", "offset_new", lambda entry: entry % self.partition_count),
        }
        self.counts = {policy: dict.fromkeys(VERDICTS, 0) for policy in ORDER_FREE}
        self.missing: dict[str, Array] = {}
        self.stale_epoch = 0
        self.pid, self.epoch = np.empty(0, np.int64), np.empty(0, np.int64)  # per generation
        self.epoch_top = np.empty(0, np.int64)  # highest epoch accepted per (pid, partition)

    def grow(self, world: _World) -> None:
        """Make room for the generations of the next delivery."""
        self.pid, self.epoch = world.pid, world.epoch
        self.ledgers["any_order"].grow(len(world.pid) * self.partition_count)
        self.ledgers["kafka_offsets"].grow(self.partition_count)
        self.epoch_top = _grown(self.epoch_top, world.pid_count * self.partition_count)

    def land(self, fragments: Array) -> None:
        """Count fragments in landing order."""
        rows = _row_count(fragments)
        tracked = fragments[fragments["entry"] >= TRACKED * self.partition_count]
        self._count("any_order", rows, _row_count(tracked), self.ledgers["any_order"].land(tracked))
        self._count_stale(tracked["entry"], tracked["count"])
        self._count("kafka_offsets", rows, rows, self.ledgers["kafka_offsets"].land(fragments))

    def land_again(self, tally: Array) -> None:
        """Count a redelivered file: everything in it is known, so no highest epoch changes and the order does not
        matter."""
        tracked = tally[tally[:, 0] >= TRACKED * self.partition_count]
        rows = int(tally[:, 1].sum())
        self._count("any_order", rows, int(tracked[:, 1].sum()), 0)
        self._count_stale(tracked[:, 0], tracked[:, 1])
        self._count("kafka_offsets", rows, rows, 0)

    def settle(self, world: _World) -> None:
        """Find the holes at the end of a delivery: lost for good, or still to come."""
        lost = world.take_lost()
        for policy, ledger in self.ledgers.items():
            self.missing[policy] = ledger.missing(lost, world.waiting)

    def _count(self, policy: str, rows: int, tracked: int, new: int) -> None:
        for verdict, count in (("ACCEPTED", new), ("DUPLICATE", tracked - new), ("UNTRACKED", rows - tracked)):
            self.counts[policy][verdict] += count

    def _count_stale(self, entry: Array, counts: Array) -> None:
        """Count rows below the highest epoch that came before them for their (pid, partition)."""
        generation, place = np.divmod(entry, self.partition_count)
        key, epoch = (self.pid[generation] - FIRST_PID) * self.partition_count + place, self.epoch[generation]
        order = np.argsort(key, kind="stable")
        key, epoch = key[order], epoch[order]
        # Epochs are below 2^15, so a running maximum over key × 2^16 + epoch is one over the epochs of each key.
        top = np.maximum.accumulate(np.maximum(epoch, self.epoch_top[key]) + (key << 16)) & 0xFFFF
        self.stale_epoch += int(counts[order][epoch < top].sum())
        np.maximum.at(self.epoch_top, key, epoch)

    def truth(self, policy: str, rows: _RowMaker) -> tuple[dict[str, Any], pa.Table, pa.Table]:
        """Return (content of the truth file, kept ranges, missing ranges). `kafka_offsets` has no missing ranges."""
        missing = self.missing[policy]
        kept = self._table(policy, self.ledgers[policy].kept(missing), rows)
        holes = self._table(policy, missing if policy == "any_order" else missing[:0], rows)
        stale_epoch = self.stale_epoch if policy == "any_order" else 0
        return _facts(self.counts[policy], stale_epoch, holes), kept, holes

    def _table(self, policy: str, ranges: Array, rows: _RowMaker) -> pa.Table:
        generation, place = np.divmod(ranges[:, 0], self.partition_count)
        key = {"topic": rows.topic(place).dictionary_decode(), "partition": rows.partition(place)}
        if policy == "any_order":
            key = {"pid": pa.array(self.pid[generation]), "epoch": pa.array(self.epoch[generation], pa.int16()), **key}
        return _range_table(key, ranges[:, 1], ranges[:, 2])


def _row_count(fragments: Array) -> int:
    return int(fragments["count"].sum())


def _range_table(key: dict[str, pa.Array], first: Array, last: Array) -> pa.Table:
    """Return key columns, first_seq, last_seq and count (int64), in key order."""
    table = pa.table({**key, "first_seq": first, "last_seq": last, "count": last - first + 1})
    return table.sort_by([(name, "ascending") for name in (*KEY_ORDER, "first_seq") if name in table.column_names])


def _facts(counts: Counts, stale_epoch: int, missing: pa.Table) -> dict[str, Any]:
    """Return the content of a truth file."""
    return {
        "rows": sum(counts.values()),
        "counts": dict(counts),
        "kept_rows": counts["ACCEPTED"] + counts["UNTRACKED"],
        "stale_epoch": stale_epoch,
        "missing_rows": int(missing["count"].to_numpy().sum()),
        "missing_ranges": missing.num_rows,
    }


# -- Truth of policies that depend on the order ------------------------------------------------------------------------


_Key = tuple[int, str, int]  # pid, topic, partition


class _Rule(NamedTuple):
    """An order-dependent preset. `window` 0: rows are accepted above the highest, otherwise only next to it."""

    window: int
    fences: bool
    first_is_zero: bool = False
    late: str = "OUT_OF_ORDER"


RULES = {
    "in_order": _Rule(window=0, fences=True),
    "kafka": _Rule(window=5, fences=True),
    "strict": _Rule(window=1, fences=True, first_is_zero=True),
    "watermark": _Rule(window=0, fences=False, late="DUPLICATE"),
}


@dataclass
class _Entry:
    """The state of a key in its epoch: the accepted ranges, ascending, as [first, last]."""

    epoch: int
    ranges: list[list[int]]

    def accepts(self, seq: int) -> None:
        if seq == self.ranges[-1][1] + 1:
            self.ranges[-1][1] = seq
        else:
            self.ranges.append([seq, seq])

    def holds(self, seq: int) -> bool:
        place = bisect_right(self.ranges, seq, key=lambda each: each[0])
        return place > 0 and seq <= self.ranges[place - 1][1]


class _OrderedJudge:
    """Judges landing files row by row in landing order, in plain Python: slow, short, and independent of the core.

    Sequences are far below the wrap, so they are positions.
    """

    def __init__(self, rule: _Rule) -> None:
        self.rule = rule
        self.entries: dict[_Key, _Entry] = {}
        self.replaced: list[tuple[_Key, _Entry]] = []  # entries of epochs before the highest
        self.counts = dict.fromkeys(VERDICTS, 0)
        self.stale_epoch = 0

    def read(self, path: Path) -> None:
        """Judge one landing file."""
        names = ["pid", "topic", "partition", "epoch", "seq"]
        for batch in pq.ParquetFile(path).iter_batches(STEP_ROWS, columns=names):
            columns = (batch[name].to_pylist() for name in names)
            for pid, topic, partition, epoch, seq in zip(*columns, strict=True):
                if pid is None or pid == -1:
                    self.counts["UNTRACKED"] += 1
                else:
                    verdict = self._judge((pid, topic, partition), epoch if self.rule.fences else 0, seq)
                    self.counts[verdict] += 1
                    self.stale_epoch += verdict == "FENCED"  # a lower epoch is fenced, whatever its seq

    def _judge(self, key: _Key, epoch: int, seq: int) -> str:
        rule, entry = self.rule, self.entries.get(key)
        if entry is None or epoch > entry.epoch:
            if seq != 0 and (rule.first_is_zero or (rule.window and entry is not None)):
                return "OUT_OF_ORDER"
            if entry is not None:
                self.replaced.append((key, entry))
            self.entries[key] = _Entry(epoch, [[seq, seq]])
            return "ACCEPTED"
        if epoch < entry.epoch:
            return "FENCED"
        first, last = entry.ranges[0][0], entry.ranges[-1][1]
        if seq > last and (rule.window == 0 or seq == last + 1):
            entry.accepts(seq)
            return "ACCEPTED"
        if rule.window:
            return "DUPLICATE" if max(first, last - rule.window + 1) <= seq <= last else "OUT_OF_ORDER"
        return "DUPLICATE" if entry.holds(seq) else rule.late

    def truth(self) -> tuple[dict[str, Any], pa.Table, pa.Table]:
        """Return (content of the truth file, kept ranges of every epoch, missing ranges of the current entries)."""
        entries = (*self.replaced, *self.entries.items())
        kept = [(key, entry.epoch, first, last) for key, entry in entries for first, last in entry.ranges]
        missing = [
            (key, entry.epoch, before[1] + 1, after[0] - 1)
            for key, entry in self.entries.items()
            for before, after in pairwise(entry.ranges)
            if self.rule.fences  # `watermark` has no missing ranges
        ]
        holes = self._table(missing)
        return _facts(self.counts, self.stale_epoch, holes), self._table(kept), holes

    def _table(self, ranges: list[tuple[_Key, int, int, int]]) -> pa.Table:
        key = {
            "pid": pa.array([key[0] for key, *_ in ranges], pa.int64()),
            "epoch": pa.array([epoch if self.rule.fences else None for _, epoch, *_ in ranges], pa.int16()),
            "topic": pa.array([key[1] for key, *_ in ranges], pa.string()),
            "partition": pa.array([key[2] for key, *_ in ranges], pa.int32()),
        }
        bounds = np.array([each[2:] for each in ranges], np.int64).reshape(-1, 2)
        return _range_table(key, bounds[:, 0], bounds[:, 1])
