"""Shards with more spans than a task may hold: several tasks judge one, with the result of one task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost import state
from fencepost.lake import DedupJob, LocalEngine, RunReport, hot, judging, spans
from fencepost.lake.plan import TASKS_MAX, parts_of_shards
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lake import land, state_hashes, with_column
from support.operations import Cluster

WHOLE, FEW = 1 << 40, 40
"""Of `task_spans_max`: no shard is hot, and all are that have a few rows."""
FACTS = (
    *("files", "rows", "spans", "counts", "kept", "rejected", "missing_ranges", "missing_rows", "missing_changes"),
    *("stale_epoch", "border", "entries", "shards", "content_compared", "checksums_kept", "state_bytes_written"),
)
ANY_ORDER = fp.Policy.any_order()
POLICIES = {
    "any_order": ANY_ORDER,
    "from zero": ANY_ORDER.replace(first="zero"),
    "gaps are normal": ANY_ORDER.replace(gaps="normal"),
    "no wrap": ANY_ORDER.replace(wrap=None),
    "no epochs": ANY_ORDER.replace(epochs="ignore", columns=fp.Columns(epoch=None)),
    "short wrap": ANY_ORDER.replace(wrap=1 << 12),
    "composite keys": ANY_ORDER.replace(columns=fp.Columns(pid=("tenant", "pid"))),
    "text keys, no partition": ANY_ORDER.replace(columns=fp.Columns(pid="tenant", partition=None)),
}
"""Those under which the rows of a shard can be split."""
WHOLE_POLICIES: dict[str, dict[str, Any]] = {
    "in_order": {"policy": "in_order", "order_by": ()},
    "kafka": {"policy": "kafka", "order_by": "at"},
    "fenced": {"policy": ANY_ORDER.replace(epochs="fence")},
    "max_jump": {"policy": ANY_ORDER.replace(max_jump=100)},
    "reach": {"policy": ANY_ORDER.replace(reach=100)},
    "timestamps": {
        "policy": ANY_ORDER.replace(columns=fp.Columns(timestamp="at")),
        "max_idle_ms": 10**6,
        "on_reset": "report",
    },
    "checksums": {"compare_content": ["origin"], "keep_checksums": "all", "on_conflict": "drop"},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows are in several."""
    monkeypatch.setattr(spans, "BLOCK_BITS", 3)


def make_rows(seed: int, count: int, seqs: int, epochs: int, begin: int = 0) -> pa.Table:
    """A key with most of the rows, and some others; long spans, and rows in any order."""
    rng = np.random.default_rng(seed)
    is_hot = rng.random(count) < 0.7
    pid = np.where(is_hot, 7, rng.integers(0, 5, count))
    epoch = np.where(pid == 7, rng.integers(0, epochs, count), pid % 3)
    far, near = rng.integers(0, seqs, count), (np.arange(count) + rng.integers(0, seqs)) % seqs
    return pa.table(
        {
            "tenant": [f"tenant-{it % 2}" for it in pid.tolist()],
            "pid": pa.array(pid, mask=rng.random(count) < 0.02),
            "epoch": epoch,
            "partition": np.where(is_hot, 0, rng.integers(0, 40, count)),
            "seq": begin + np.where(np.arange(count) // 50 % 2 == 0, far, near),
            "at": rng.integers(0, 1000, count),
            "origin": [f"{seed}:{row % 50}" for row in range(count)],
        }
    )


def run_of(source: Path, root: Path, spans_max: int, **options: Any) -> RunReport:
    options = {"sync": False, "rejected_max": 1.0, "rejects": "all", "order_by": (), "engine": LocalEngine(2)} | options
    return DedupJob(source, root / "state", root / "sink", task_spans_max=spans_max, **options).run()


def plan_of(root: Path) -> dict[str, Any]:
    decided = state.open(root / "state").latest()
    assert decided is not None
    return decided.plan


def entries(root: Path) -> list[dict[str, Any]]:
    rows = state.open(root / "state").entries()
    keys = [name for name in rows.schema.names if name.startswith(("pid", "partition", "epoch"))]
    return rows.sort_by([(name, "ascending") for name in keys]).to_pylist()


def files_of(root: Path) -> dict[str, Any]:
    """All rows that the sink shows, by file; lines about missing ranges in no order."""
    read = {}
    for file in sorted((root / "sink").glob("run=*/**/*.parquet")):
        rows = pq.read_table(file, partitioning=None).to_pylist()
        name = file.relative_to(root / "sink").as_posix()
        read[name] = sorted(map(str, rows)) if "_missing" in name else rows
    return read


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def check_alike(one: RunReport, other: RunReport) -> None:
    for fact in FACTS:
        assert getattr(one, fact) == getattr(other, fact), fact
    for name in ("missing", "stale"):  # of conflicts, tasks show some
        assert sorted_rows(getattr(one, name)) == sorted_rows(getattr(other, name)), name


def compare(folder: Path, deliveries: Sequence[pa.Table], spans_max: int, **options: Any) -> int:
    """Run a job over the deliveries, a file each, by one task for each shard and by several. All must be equal.

    Gives how many shards were split.
    """
    split = 0
    for number, rows in enumerate(deliveries):
        land(folder / "source", f"{number}.parquet", rows, row_group_size=70)
        whole = run_of(folder / "source", folder / "whole", WHOLE, **options)
        parted = run_of(folder / "source", folder / "parted", spans_max, **options)
        check_alike(whole, parted)
        assert "hot_shards" not in plan_of(folder / "whole")
        split += plan_of(folder / "parted").get("split_shards", 0)
    assert files_of(folder / "whole") == files_of(folder / "parted")
    assert entries(folder / "whole") == entries(folder / "parted")
    assert state_hashes(folder / "whole") == state_hashes(folder / "parted")
    return split


# -- Nothing depends on it


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 10_000),
    st.integers(1, 300),
    st.sampled_from([10, 150, 5_000]),
    st.sampled_from([1, 1, 3]),
    st.sampled_from([1, 2, 5]),
    st.integers(1, 80),
    st.sampled_from(list(POLICIES)),
    st.sampled_from([{}, {}, {"plan": "row"}, {"order_by": "at"}, {"compare_content": ["origin"]}]),
)
def test_all_is_as_from_one_task(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    count: int,
    seqs: int,
    epochs: int,
    shards: int,
    spans_max: int,
    policy: str,
    options: dict[str, Any],
) -> None:
    """Any rows, in three runs."""
    wrap = POLICIES[policy].wrap
    seqs = min(seqs, wrap or seqs)
    deliveries = [make_rows(seed + it, count, seqs, epochs) for it in range(3)]
    more = {"plan": "interval", "on_conflict": "quarantine" if "compare_content" in options else "stop", **options}
    compare(tmp_path_factory.mktemp("any"), deliveries, spans_max, policy=POLICIES[policy], shards=shards, **more)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_rows_of_a_key_are_split(tmp_path: Path, policy: str) -> None:
    """With its state before, and more than once."""
    deliveries = [make_rows(it, 400, 900, 1) for it in range(3)]
    assert compare(tmp_path, deliveries, FEW, policy=POLICIES[policy], shards=1, plan="interval") == 3


def test_parts_are_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a single key as well, and where its sequences go in steps."""
    monkeypatch.setattr(spans, "BLOCK_BITS", 12)
    policy = fp.Policy.kafka_offsets().replace(columns=fp.Columns(pid="pid", partition=None, epoch=None))
    for step in (1, 1 << 12, 100_000, 1 << 20):
        seqs = np.arange(200_000) * step
        root = tmp_path / str(step)
        land(root / "source", "a.parquet", pa.table({"pid": ["device"] * len(seqs), "seq": seqs}))
        sizes: list[int] = []
        options: dict[str, Any] = {"policy": policy, "plan": "row", "engine": Noting(sizes)}
        report = run_of(root / "source", root, 100_000, **options)
        assert report.counts == {"ACCEPTED": len(seqs)}
        assert len(sizes) == 4
        assert max(sizes) <= (100_000 if step == 1 else 55_000), "49 blocks, or as many as there are rows"


class Noting(LocalEngine):
    """How many rows each part of a shard has."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(2)
        self.sizes = sizes

    def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
        done = super().run(stage, work, items, progress)
        self.sizes.extend(sum(it.judged.counts.values()) for _, it in done if isinstance(it, hot.JudgedPart))
        return done


def test_how_shards_are_split() -> None:
    assert parts_of_shards([0, 100, 101, 1_000], 2, 100) == [1, 1, 3, 20]
    assert sum(parts_of_shards([10**9] * 10, 8, 1)) <= 2 * TASKS_MAX + 10, "as many as an engine is to run"


# -- Where it is not exact, one task judges


@pytest.mark.parametrize("case", WHOLE_POLICIES)
def test_order_dependent_policies_use_one_task(tmp_path: Path, case: str) -> None:
    deliveries = [make_rows(it, 300, 200, 2) for it in range(2)]
    assert compare(tmp_path, deliveries, FEW, shards=1, plan="interval", **WHOLE_POLICIES[case]) == 0
    plan = plan_of(tmp_path / "parted")
    assert (plan["hot_shards"], plan["split_shards"]) == (1, 0)
    assert "order of all rows" in plan["whole"] or "checksums" in plan["whole"]


@pytest.mark.parametrize("begin", [4_096 - 1_024 - 100, 4_096 - 1_024 - 900])
def test_near_the_wrap_one_task_judges(tmp_path: Path, begin: int) -> None:
    """Sequences of up to 900 get near the wrap in the first run, or pass it in the second."""
    deliveries = [make_rows(1, 300, 900, 1, begin), make_rows(2, 300, 900, 1, 3_100), make_rows(3, 300, 900, 1)]
    deliveries.append(make_rows(4, 300, 900, 1, 1_500))
    compare(tmp_path, deliveries, FEW, policy=POLICIES["short wrap"], shards=1, plan="interval")
    opened = state.open(tmp_path / "parted" / "state")
    split = [opened.version(number).plan.get("split_shards", 0) for number in range(1, 5)]
    is_near = begin + 899 >= 4_096 - 1_024
    assert split[0] == (0 if is_near else 1)
    assert split[1:3] == [0, 0], "in the zone before the wrap, then over it"
    assert split[3] == 1, "on the lap behind it"


def test_a_key_of_several_epochs_stays_whole(tmp_path: Path) -> None:
    """Which rows are below the highest epoch depends on their order; other keys of the shard are split."""
    seen: list[int] = []

    class Watching(LocalEngine):
        def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
            if stage == "deal":
                seen.append(len(items[0].whole))
            return super().run(stage, work, items, progress)

    options = {"shards": 1, "plan": "interval", "engine": Watching(2)}
    assert compare(tmp_path / "one", [make_rows(1, 300, 200, 1)], FEW, **options) == 1
    assert seen == [0], "dealt once"
    assert compare(tmp_path / "three", [make_rows(1, 300, 200, 3), make_rows(2, 300, 200, 3)], FEW, **options) == 2
    assert seen == [0, 0, 1, 0, 1], "and again with one key whole"


# -- A harness that lets one of these pass does not look


def deals_by_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a position go to different tasks."""
    monkeypatch.setattr(hot, "_mixed", lambda hashes, block: np.arange(len(block)))


def splits_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "several_epochs", lambda dealt: np.zeros(0, np.uint32))


def ignores_the_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that sequences have led over the wrap count."""
    real = judging.judge_part

    def judge_part(*arguments: Any) -> hot.JudgedPart:
        done = real(*arguments)
        done.judged.border = 0
        return done

    monkeypatch.setattr(judging, "judge_part", judge_part)


def forgets_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    real = judging._judge_parts
    monkeypatch.setattr(judging, "_judge_parts", lambda *arguments: real(*arguments)[:-1])


def forgets_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "load_table", lambda store, pieces, policy: fp.StateTable(policy))


def loses_the_first_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row of a position is kept."""

    def in_order(lines: pa.Table, _: Any) -> pa.Table:
        return lines.take(pa.array(np.arange(len(lines))[::-1]))

    monkeypatch.setattr(hot, "in_order", in_order)


def shifts_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of a span is placed where the span begins."""
    real = spans.cut_spans

    def cut_spans(whole: pa.Table, seq: str, of_span: Any, *rows: Any) -> pa.Table:
        cut = real(whole, seq, of_span, *rows)
        return with_column(cut, "_row", whole["_row"].take(pa.array(of_span)))

    monkeypatch.setattr(spans, "cut_spans", cut_spans)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int, dict[str, Any]]] = [
    (deals_by_span, "any_order", 1, {}),
    (splits_epochs, "any_order", 3, {}),
    (ignores_the_border, "short wrap", 1, {}),
    (forgets_a_part, "any_order", 1, {}),
    (forgets_the_state, "any_order", 1, {}),
    (loses_the_first_copy, "any_order", 1, {"order_by": ()}),
    (shifts_pieces, "any_order", 1, {}),
]
LATER = (forgets_the_state, loses_the_first_copy, shifts_pieces)
"""They run in the matrix: any file and any entry shows them, and others like them."""


@pytest.mark.parametrize(
    ("mutant", "policy", "epochs", "more"),
    [pytest.param(*it, id=it[0].__name__, marks=pytest.mark.matrix if it[0] in LATER else ()) for it in MUTANTS],
)
def test_mutants_are_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
    policy: str,
    epochs: int,
    more: dict[str, Any],
) -> None:
    begins = (2_500, 3_100, 0) if policy == "short wrap" else (0, 0, 0)
    deliveries = [make_rows(it, 300, 570 if it == 0 else 900, epochs, begin) for it, begin in enumerate(begins)]
    options = {"policy": POLICIES[policy], "shards": 1, "plan": "interval", **more}
    compare(tmp_path / "sound", deliveries, FEW, **options)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        compare(tmp_path / "broken", deliveries, FEW, **options)


def test_a_split_that_ignores_the_zone_before_the_wrap_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key passes the wrap, and no part has rows of both sides: only the zone shows it."""
    monkeypatch.setattr(spans, "BLOCK_BITS", 8)
    seqs = (3_900 + np.random.default_rng(1).permutation(400)) % 4_096
    sound, wrong = [], []
    for pid in range(5):
        none = np.zeros(len(seqs), np.int64)
        rows = pa.table({"pid": none + pid, "epoch": none, "partition": none, "seq": seqs})
        options: dict[str, Any] = {"policy": POLICIES["short wrap"], "shards": 1, "plan": "row"}
        sound.append(compare(tmp_path / f"sound {pid}", [rows], FEW, **options))
        with monkeypatch.context() as broken:
            broken.setattr(hot, "_near_wrap", lambda *_: [])
            try:
                compare(tmp_path / f"broken {pid}", [rows], FEW, **options)
            except AssertionError as error:
                wrong.append(error)
    assert sound == [0] * 5
    assert wrong


# -- Tasks that die, run twice or come late


def test_tasks_of_other_processes_that_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both attempts write; the second one counts."""
    for number in range(2):
        land(tmp_path / "source", f"{number}.parquet", make_rows(number, 300, 200, 1), row_group_size=70)
        whole = run_of(tmp_path / "source", tmp_path / "whole", WHOLE, shards=2, plan="interval")
        engine = Cluster(monkeypatch)
        parted = run_of(tmp_path / "source", tmp_path / "parted", FEW, shards=2, plan="interval", engine=engine)
        check_alike(whole, parted)
        assert engine.tasks["deal"] == 1
        assert engine.tasks["judge"] > 10
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "parted")
    assert state_hashes(tmp_path / "whole") == state_hashes(tmp_path / "parted")


class Dying(LocalEngine):
    """The task at a position of a stage dies, in a given execution of the stage."""

    def __init__(self, stage: str, time: int, place: int) -> None:
        super().__init__(2)
        self.stage, self.time, self.place = stage, time, place

    def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
        if stage == self.stage:
            self.time -= 1
            if self.time == 0:
                super().run(stage, work, items[: self.place], progress)
                raise OSError(f"the machine of {stage} is gone")
        return super().run(stage, work, items, progress)


@pytest.mark.parametrize(
    ("stage", "time", "place"), [("deal", 1, 1), ("judge", 1, 0), ("judge", 1, 5), ("judge", 2, 0)]
)
def test_a_task_dies(tmp_path: Path, stage: str, time: int, place: int) -> None:
    """Nothing is shown or decided; the next run makes it good."""
    source, options = tmp_path / "source", {"shards": 1, "plan": "interval"}
    for number in range(2):
        land(source, f"{number}.parquet", make_rows(number, 300, 200, 1), row_group_size=70)
        run_of(source, tmp_path / "whole", WHOLE, **options)
        before = files_of(tmp_path / "parted")
        with pytest.raises(OSError, match="is gone"):
            run_of(source, tmp_path / "parted", FEW, engine=Dying(stage, time, place), **options)
        assert files_of(tmp_path / "parted") == before
        assert len(state_hashes(tmp_path / "parted") if number else []) == number
        run_of(source, tmp_path / "parted", FEW, **options)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "parted")
    assert state_hashes(tmp_path / "whole") == state_hashes(tmp_path / "parted")
    left = [it for root in ("state", "sink") for it in (tmp_path / "parted" / root).glob("**/*.spans")]
    assert not left


def test_a_task_comes_late(tmp_path: Path) -> None:
    """A part is judged again while the shard's state is written, and after the run."""
    source, options = tmp_path / "source", {"shards": 1, "plan": "interval"}
    late: list[Callable[[], Any]] = []

    class Late(LocalEngine):
        in_process = False
        driver_bytes_max = driver_scan_bytes_max = 0

        def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
            if stage == "judge":
                for act in late:
                    act()
                late.extend([lambda it=it: work(it) for it in items[:2]])
            return super().run(stage, work, items, progress)

    land(source, "a.parquet", make_rows(1, 300, 200, 1), row_group_size=70)
    whole = run_of(source, tmp_path / "whole", WHOLE, **options)
    check_alike(whole, run_of(source, tmp_path / "parted", FEW, engine=Late(2), **options))
    assert len(late) == 3
    before = files_of(tmp_path / "parted"), state_hashes(tmp_path / "parted")
    for act in late:
        with pytest.raises(FileNotFoundError):  # what it read is gone
            act()
    assert (files_of(tmp_path / "parted"), state_hashes(tmp_path / "parted")) == before
    assert before == (files_of(tmp_path / "whole"), state_hashes(tmp_path / "whole"))


# -- Other ways to run


def test_a_seed_is_split_too(tmp_path: Path) -> None:
    rows = make_rows(1, 400, 5_000, 1)
    land(tmp_path / "source", "a.parquet", rows)
    clean = run_of(tmp_path / "source", tmp_path / "clean", WHOLE).outputs
    states = {}
    for spans_max in (WHOLE, FEW):
        root = tmp_path / str(spans_max)
        source = tmp_path / "clean" / "sink" / Path(clean[0]).parent
        job = DedupJob(source, root / "state", root / "sink", task_spans_max=spans_max, shards=1, sync=False)
        assert job.seed().kept == sum(pq.read_metadata(file).num_rows for file in source.glob("*.parquet"))
        states[spans_max] = entries(root)
        assert plan_of(root).get("split_shards") == (1 if spans_max == FEW else None)
    assert states[WHOLE] == states[FEW]


def test_invalid_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task_spans_max=0: expected at least 1"):
        DedupJob(tmp_path / "a", tmp_path / "b", tmp_path / "c", task_spans_max=0)
    for name in ("driver_spans_max", "driver_state_bytes_max"):
        with pytest.raises(ValueError, match=f"{name}=-1: expected at least 0"):
            DedupJob(tmp_path / "a", tmp_path / "b", tmp_path / "c", **{name: -1})
