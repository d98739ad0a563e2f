"""`explain`: the verdict of each row, the row it repeats, and the type of the input."""

from __future__ import annotations

from typing import Any

import fencepost as fp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from fencepost import Columns, Policy
from support.lake import IDENTITY, make_rows


@pytest.mark.parametrize("seed", range(3))
def test_each_repeat_names_the_row_it_repeats(seed: int) -> None:
    rows = make_rows(seed, 2_000)
    found = pl.DataFrame(fp.explain(rows)).with_row_index("row")
    verdicts = pa.array(fp.StateTable("any_order").apply(rows).verdict).to_pylist()
    assert found["verdict"].to_list() == [fp.Verdict(it).name for it in verdicts]
    first = pl.col("row").first().over(IDENTITY)
    repeats = found.with_columns(first=first).filter(pl.col("verdict") == "DUPLICATE")
    assert len(repeats)
    assert repeats["kept_row"].to_list() == repeats["first"].to_list()
    assert repeats["reason"].to_list() == [f"repeats row {it}" for it in repeats["first"]]
    others = found.filter(pl.col("verdict") != "DUPLICATE")
    assert others["kept_row"].null_count() == len(others)
    assert set(others["reason"]) == {"new", "has no producer"}


def test_kinds_of_frames() -> None:
    rows = make_rows(1, 100)
    rows = rows.set_column(0, "pid", pa.compute.fill_null(rows["pid"], -1))
    expected = fp.explain(rows)
    assert expected.column_names == [*rows.column_names, "verdict", "kept_row", "reason"]
    added = expected.select(["verdict", "kept_row", "reason"]).to_pylist()
    kinds: dict[str, Any] = {
        "polars": pl.DataFrame(rows),
        "pandas": rows.to_pandas().set_index(np.arange(100, 200)),
        "reader": rows.to_reader(max_chunksize=7),
        "dict": {name: rows[name].combine_chunks() for name in IDENTITY},
    }
    for name, given in kinds.items():
        found = fp.explain(given)
        assert type(found) is ({"polars": pl.DataFrame, "pandas": pd.DataFrame}.get(name, pa.Table)), name
        table = pa.table(found) if name != "pandas" else pa.Table.from_pandas(found, preserve_index=False)
        assert table.select(["verdict", "reason"]).to_pylist() == [
            {it: row[it] for it in ("verdict", "reason")} for row in added
        ], name
    assert fp.explain(kinds["pandas"]).index.tolist() == list(range(100, 200))


def test_a_stream_is_read_once() -> None:
    """A stream has no rows the second time, and a query may return them in another order."""
    rows = make_rows(1, 100)

    class Stream:
        reads = 0

        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            self.reads += 1
            given = rows if self.reads == 1 else rows.take(list(range(len(rows)))[::-1])
            return given.__arrow_c_stream__(requested_schema)

    stream = Stream()
    assert fp.explain(stream).equals(fp.explain(rows))
    assert stream.reads == 1


def test_against_a_table_that_is_not_advanced() -> None:
    rows = make_rows(2, 100).filter(pa.array(np.arange(100) < 50))
    table = fp.StateTable("any_order")
    table.apply(rows)
    before = table.snapshot()
    found = fp.explain(rows, table=table)
    known = found.filter(pa.compute.equal(found["verdict"], "DUPLICATE"))
    assert set(known["reason"].to_pylist()) == {"repeats a row that was accepted before"}
    assert table.snapshot() == before


def test_a_late_row_is_not_reported_as_a_repeat_of_another() -> None:
    """Under this policy it counts as a repeat, although it may be new."""
    rows = pa.table({"pid": [1] * 4, "seq": [5, 3, 5, 6]})
    columns = Columns(epoch=None, partition=None)
    reasons = fp.explain(rows, "watermark", columns)["reason"].to_pylist()
    assert (reasons[0], *reasons[2:]) == ("new", "repeats row 0", "new")
    assert "not above the highest" in reasons[1]
    report = fp.audit(rows, "watermark", columns)
    assert "not above the highest" in str(report)
    assert "late rows count as" in report.to_html()


def test_the_kept_row_is_in_the_newest_lap() -> None:
    rules = Policy.any_order().replace(wrap=4)
    seq = [0, 1, 2, 3, 0, 1, 0]
    rows = pa.table({"pid": [1] * 7, "epoch": [0] * 7, "partition": [0] * 7, "seq": seq})
    found = fp.explain(rows, rules)
    assert found["kept_row"].to_pylist() == [None] * 6 + [4]


def test_rows_with_a_column_of_the_result_are_refused() -> None:
    rows = make_rows(1, 10).append_column("reason", pa.array(["x"] * 10))
    with pytest.raises(fp.BatchError, match=r"column 'reason'.*rename"):
        fp.explain(rows)
    assert fp.explain(make_rows(1, 0), columns=Columns()).num_rows == 0
