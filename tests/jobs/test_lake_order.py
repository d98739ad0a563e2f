"""The order in which spans are judged changes nothing but what it costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import pytest
from fencepost.lake.order import SAMPLED_MIN, hole_avoiding_order, overlapping
from fencepost.lake.refused import merge_refused, refused_ranges
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lake import with_column


def make_spans(seed: int, count: int, seqs: int, epochs: int, length: int, apart: int = 1) -> pa.Table:
    """Spans of a few keys in the order of files and rows, many of which overlap. `apart`: how far pids are."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, count)
    columns = {
        "pid": rng.integers(0, 3, count) * apart,
        "epoch": rng.integers(0, epochs, count).astype(np.int16),
        "partition": rng.integers(0, 2, count).astype(np.int32),
        "seq": rng.integers(0, seqs, count).astype(np.int32),
        "_length": lengths.astype(np.uint32),
        "_file": np.sort(rng.integers(0, 4, count)).astype(np.uint32),
    }
    rows = np.zeros(count, np.int64)
    for file in range(4):
        of_file = columns["_file"] == file
        rows[of_file] = np.cumsum(lengths[of_file]) - lengths[of_file]
    return pa.table(columns | {"_row": rows.astype(np.uint64)})


def judged(table: fp.StateTable, spans: pa.Table) -> dict[str, Any]:
    """All that a judging task makes of verdicts."""
    verdicts = table.apply_spans(spans)
    codes = np.asarray(pa.array(verdicts.verdict))
    return {
        "refused_rows": merge_refused([refused_ranges(spans, codes)]).to_pydict(),
        "counts": verdicts.counts,
        "missing": pa.table(verdicts.missing).to_pylist(),
        "stale": pa.table(verdicts.stale).to_pylist(),
        "stale_epoch": verdicts.stale_epoch,
        "border": verdicts.border,
        "state": table.snapshot(),
    }


@settings(deadline=None, max_examples=300)
@given(
    st.integers(0, 10_000),
    st.integers(1, 120),
    st.sampled_from([5, 60, 2_000]),
    st.integers(1, 3),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([1, 1 << 43]),
    st.sampled_from([{}, {"first": "zero"}, {"epochs": "ignore"}, {"gaps": "normal"}, {"wrap": None}]),
    st.sampled_from(["pid", "text", ("text", "pid")]),
)
def test_nothing_depends_on_it(
    seed: int,
    count: int,
    seqs: int,
    epochs: int,
    length: int,
    apart: int,
    fields: dict[str, Any],
    pid: str | tuple[str, ...],
) -> None:
    epoch = None if "epochs" in fields else "epoch"
    policy = fp.Policy.any_order().replace(**fields, columns=fp.Columns(pid=pid, epoch=epoch))
    spans = make_spans(seed, count, seqs, epochs, length, apart)
    spans = spans.append_column("text", spans["pid"].cast(pa.string()))
    if epoch is None:
        spans = spans.drop_columns(["epoch"])
    order = hole_avoiding_order(spans, fp.StateTable(policy))
    assert order is not None
    assert sorted(order.tolist()) == list(range(count))
    assert judged(fp.StateTable(policy), spans.take(pa.array(order))) == judged(fp.StateTable(policy), spans)


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 10_000),
    st.sampled_from([2, 120]),
    st.sampled_from([5, 60, 2_000]),
    st.integers(1, 3),
    st.sampled_from([1, 9]),
)
def test_spans_overlap_where_rows_are_repeated(seed: int, count: int, seqs: int, epochs: int, length: int) -> None:
    spans = make_spans(seed, count, seqs, epochs, length)
    places = overlapping(spans, fp.Policy.any_order().replace(wrap=None))
    assert places is not None
    rows = [
        {(span["pid"], span["epoch"], span["partition"], span["seq"] + step) for step in range(span["_length"])}
        for span in spans.to_pylist()
    ]
    times = Counter(row for span in rows for row in span)
    assert sorted(places.tolist()) == [place for place, span in enumerate(rows) if any(times[row] > 1 for row in span)]


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10_000), st.sampled_from([60, 2_000]), st.integers(1, 3), st.sampled_from([1, 9]))
def test_waves_may_each_be_judged_so(seed: int, seqs: int, epochs: int, length: int) -> None:
    spans = make_spans(seed, 120, seqs, epochs, length)
    calm, plain = fp.StateTable("any_order"), fp.StateTable("any_order")
    for start in range(0, 120, 40):
        wave = spans.slice(start, 40)
        order = hole_avoiding_order(wave, calm, is_reorderable=True)
        assert order is not None
        assert judged(calm, wave.take(pa.array(order))) == judged(plain, wave)


def test_an_order_of_rows_alone_leaves_no_holes() -> None:
    spans = make_spans(1, 5_000, 400, 1, 1)
    order = hole_avoiding_order(spans, fp.StateTable("any_order"))
    assert order is not None
    seq, key = (spans[name].to_numpy()[order] for name in ("seq", "pid"))
    assert (np.diff(seq)[np.diff(key) == 0] >= 0).mean() > 0.99


@pytest.mark.parametrize("key", ["pid", "text"])
@pytest.mark.parametrize(("step", "is_sorted"), [(1, True), (7, False)])
def test_sequences_with_gaps_are_not_sorted(key: str, step: int, is_sorted: bool) -> None:
    """Scattered rows: 2,000 keys, and every sequence `step` above the one before it."""
    rng = np.random.default_rng(1)
    place = rng.permutation(4 * SAMPLED_MIN)
    spans = pa.table(
        {
            "pid": place % 2_000,
            "epoch": pa.array(np.zeros(len(place)), pa.int16()),
            "partition": pa.array(np.zeros(len(place)), pa.int32()),
            "seq": pa.array(place // 2_000 * step, pa.int32()),
            "_length": pa.array(np.ones(len(place)), pa.uint32()),
        }
    )
    spans = spans.append_column("text", spans["pid"].cast(pa.string()))
    policy = fp.Policy.any_order().replace(columns=fp.Columns(pid=key))
    order = hole_avoiding_order(spans, fp.StateTable(policy))
    assert (order is not None) == is_sorted


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        (fp.Policy.in_order(), {}),
        (fp.Policy.any_order().replace(epochs="fence"), {}),
        (fp.Policy.any_order().replace(max_jump=10), {}),
        (fp.Policy.any_order().replace(reach=10), {}),
        (fp.Policy.any_order().replace(wrap=1_000), {}),
        (
            fp.Policy.any_order().replace(wrap=None),
            {"seq": pa.array([2**62 - 1] * 50), "pid": pa.array([0] * 49 + [9])},
        ),
    ],
)
def test_order_that_matters_is_kept(policy: fp.Policy, change: dict[str, pa.Array]) -> None:
    spans = make_spans(1, 50, 900, 1, 9)
    for name, values in change.items():
        spans = with_column(spans, name, values)
    assert hole_avoiding_order(spans, fp.StateTable(policy)) is None


def test_a_table_that_knows_something_keeps_the_order() -> None:
    table = fp.StateTable("any_order")
    table.apply_spans(make_spans(1, 5, 100, 1, 1))
    assert hole_avoiding_order(make_spans(2, 50, 100, 1, 1), table) is None
    assert hole_avoiding_order(make_spans(2, 50, 100, 1, 1), fp.StateTable("any_order", keep=("timestamp",))) is None
