"""The rule book on Spark: every row of every table through both kinds of the UDF."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import fencepost as fp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import settings
from fencepost_spark import verdict_udf
from fencepost_spark.verdicts import judge_arrays
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from support.rulebook import Call, Case, cases, columns, to_arrow

CASES = [case for case in cases() if case.is_of_rows]
Judged = dict[str, list[str]]


class Stream(NamedTuple):
    """The calls of a case one after the other, as one task sees them."""

    name: str
    case: Case
    columns: fp.Columns
    rows: pa.Table
    verdicts: list[str]


def policy(case: Case) -> tuple[fp.Policy, str]:
    fields = dict(case.fields)
    untracked = fields.pop("untracked", "keep")
    return fp.StateTable(case.policy).policy.replace(**fields), untracked


def stream(name: str, case: Case, calls: Sequence[Call]) -> Stream:
    rows = pa.concat_tables([to_arrow(call) for call in calls])
    verdicts = [row.verdict for call in calls for row in call.rows]
    return Stream(name, case, fp.Columns(**columns(calls[0])), rows, verdicts)


def right_streams() -> list[Stream]:
    """Every case without the calls that are refused: they must leave no trace, so nothing changes for the others."""
    found = []
    for case in CASES:
        calls = [call for call in case.calls if call.error is None]
        if calls:
            found.append(stream(str(case), case, calls))
    return found


def judge(spark: SparkSession, folder: Path, streams: list[Stream], kind: str) -> Judged:
    """The verdicts by stream. A file and so a task for each, a frame for each policy and shape of rows."""
    groups = defaultdict(list)
    for one in streams:
        groups[policy(one.case), one.columns, one.rows.schema.to_string()].append(one)
    frames = []
    for number, ((rules, mapped, _), members) in enumerate(groups.items()):
        for place_in_group, one in enumerate(members):
            path = folder / str(number) / f"{place_in_group}.parquet"
            path.parent.mkdir(exist_ok=True)
            places = pa.array(range(len(one.rows)), pa.int64())
            names = pa.array([one.name] * len(one.rows))
            pq.write_table(one.rows.append_column("place", places).append_column("name", names), path)
        verdict = verdict_udf(rules[0], co_located=True, columns=mapped, kind=kind, untracked=rules[1])
        # Spark would run a job for each frame to infer its schema.
        schema = from_arrow_schema(pq.read_schema(folder / str(number) / "0.parquet"))
        frame = spark.read.schema(schema).parquet(str(folder / str(number)))
        frames.append(frame.select("name", "place", verdict(*mapped.names).alias("verdict")))
    # Each task receives all frames of its query, so one query for all takes a quarter more.
    queries = [reduce(DataFrame.union, frames[first : first + 12]) for first in range(0, len(frames), 12)]
    rows = [row for query in queries for row in query.collect()]
    judged: Judged = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.name, row.place)):
        judged[row.name].append(fp.Verdict(row.verdict).name)
    return judged


def complaints(streams: list[Stream], judged: Judged) -> list[str]:
    return [
        f"{one.name}: the book says {one.verdicts}, found {judged[one.name]}"
        for one in streams
        if one.verdicts != judged[one.name]
    ]


@pytest.mark.parametrize(
    ("kind", "rows_max"),
    [("arrow", 3), *(pytest.param(*it, marks=pytest.mark.matrix) for it in (("pandas", 3), ("arrow", 10_000)))],
)
def test_the_book_holds(spark: SparkSession, tmp_path: Path, whole_files: None, kind: str, rows_max: int) -> None:
    """However Spark cuts its Arrow batches."""
    streams = right_streams()
    with settings(spark, spark_sql_execution_arrow_maxRecordsPerBatch=rows_max):
        judged = judge(spark, tmp_path, streams, kind)
    assert not complaints(streams, judged)
    rows = sum(len(one.verdicts) for one in streams)
    print(f"{len(streams)} cases, {rows} rows")
    assert {one.case.page for one in streams} == {case.page for case in CASES if any(not c.error for c in case.calls)}
    assert rows == sum(len(call.rows) for case in CASES for call in case.calls if call.error is None) > 1_000


def test_a_broken_rule_book_is_detected(spark: SparkSession, tmp_path: Path, whole_files: None) -> None:
    """The harness objects where one verdict of one page differs, and where a stream was not judged at all."""
    streams = [one for one in right_streams() if one.case.page == "any_order"]
    judged = judge(spark, tmp_path, streams, "arrow")
    assert not complaints(streams, judged)
    broken = streams[1]._replace(verdicts=[*streams[1].verdicts[:-1], "FENCED"])
    assert len(complaints([streams[0], broken, *streams[2:]], judged)) == 1
    del judged[streams[2].name]
    assert len(complaints(streams, judged)) == 1


def test_an_invalid_policy_is_refused() -> None:
    refused = [case for case in CASES if case.refused]
    assert refused
    for case in refused:
        with pytest.raises(fp.PolicyError):
            policy(case)


def wrong_streams() -> list[tuple[Stream, Call]]:
    """Each call that is refused, after the calls before it. Not those that change a type: a column of Spark has one."""
    found = []
    for case in CASES:
        for number, call in enumerate(case.calls):
            before = [it for it in case.calls[:number] if it.error is None]
            if call.error is not None and all(to_arrow(it).schema == to_arrow(call).schema for it in before):
                found.append((stream(str(case), case, [*before, call]), call))
    return found


def check_refusal(one: Stream, call: Call, message: str) -> None:
    """Column and row are in the text, the row counted over all that the task has seen."""
    assert call.error is not None
    assert f"column '{call.error.column}" in message
    rows_before = len(one.rows) - len(call.rows)
    assert call.error.row is None or f"(row {rows_before + call.error.row}" in message


def test_a_row_that_the_book_refuses_is_named() -> None:
    """By what runs in a task, fed as Spark feeds it."""
    refused = set()
    for one, call in wrong_streams():
        assert call.error is not None
        rules, untracked = policy(one.case)
        mapped = fp.Columns(**columns(call))
        if call.error.column == "policy":
            with pytest.raises(fp.PolicyError):
                verdict_udf(rules, co_located=True, columns=mapped, untracked=untracked)
        else:
            batches = ([batch[name] for name in mapped.names] for batch in one.rows.to_batches(max_chunksize=2))
            with pytest.raises(fp.BatchError) as error:
                list(judge_arrays(batches, rules, mapped, detail=False, untracked=untracked))
            check_refusal(one, call, str(error.value))
        refused.add(call.error.column)
    assert refused == {"pid", "epoch", "partition", "seq", "policy"}


def test_a_row_that_the_book_refuses_fails_the_query(spark: SparkSession, tmp_path: Path, whole_files: None) -> None:
    """The driver's message still names it. One of each column, for each query costs its retries."""
    by_column = {call.error.column: (one, call) for one, call in wrong_streams() if call.error is not None}
    for column in ("pid", "epoch", "partition", "seq"):
        one, call = by_column[column]
        (tmp_path / column).mkdir()
        with pytest.raises(PythonException, match="BatchError: ") as error:
            judge(spark, tmp_path / column, [one], "arrow")
        check_refusal(one, call, str(error.value))
