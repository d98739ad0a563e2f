"""Claims that stay small while a log grows, and positions that only one of two processes moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost.sql import SqlSink
from fencepost.sql.consumers import CLAIMS, HOLES
from sqlalchemy import Connection, Engine, select, text
from support.databases import execute

ACCEPTED, DUPLICATE = fp.Verdict.ACCEPTED, fp.Verdict.DUPLICATE
PARTITIONS = 64
CLAIMS_BYTES_MAX = 64 << 10
"""Of all claims of a year, of 64 partitions."""


def offsets(*numbers: int, partition: int = 0) -> pa.Table:
    count = len(numbers)
    return pa.table({"topic": ["orders"] * count, "partition": [partition] * count, "offset": numbers})


def pass_over(_: Connection, kept: pa.Table) -> None:
    pass


def by_offset(engine: Engine) -> SqlSink:
    return SqlSink(engine, None, "c", policy="kafka_offsets")


def verdicts(sink: SqlSink, rows: Any, **more: Any) -> list[fp.Verdict]:
    return [fp.Verdict(it) for it in sink.handle(rows, pass_over, **more).verdict.to_pylist()]


def claims(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        names = ("pid", "partition", "epoch", "first", "last", "more")
        query = select(*(CLAIMS.c[name] for name in names)).order_by(CLAIMS.c.pid, CLAIMS.c.partition)
        return [tuple(row) for row in connection.execute(query)]


def holes(engine: Engine) -> list[tuple[Any, ...]]:
    """(epoch, first, last), of all claims, in their order."""
    with engine.connect() as connection:
        query = select(HOLES.c.epoch, HOLES.c.first, HOLES.c.last).order_by(*HOLES.primary_key)
        return [tuple(row) for row in connection.execute(query)]


def claims_bytes(engine: Engine) -> int:
    """Bytes on disk with indexes, if the database reports them; else of the texts and numbers."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            return int(connection.execute(text("SELECT pg_total_relation_size('fencepost_claims')")).scalar_one())
    return sum(len(str(it)) for row in claims(engine) for it in row)


# By (topic, partition, offset)


def test_a_position_closes_the_holes_below_it(engine: Engine) -> None:
    sink = by_offset(engine)
    rows = offsets(0, 1, 3, 4, 8, 9)
    assert verdicts(sink, rows, positions={"orders-0": 10}) == [ACCEPTED] * 6
    assert claims(engine) == [('"orders"', "0", None, 0, 9, None)]
    # What was applied comes again as a duplicate, and so would what a position has passed.
    assert verdicts(sink, rows) == [DUPLICATE] * 6
    assert verdicts(sink, offsets(2, 5, 10)) == [DUPLICATE, DUPLICATE, ACCEPTED]


def test_holes_above_the_position_stay_open(engine: Engine) -> None:
    sink = by_offset(engine)
    verdicts(sink, offsets(0, 2, 6, 9), positions={"orders-0": 5})
    assert verdicts(sink, offsets(1, 3, 4)) == [DUPLICATE] * 3
    assert verdicts(sink, offsets(5, 7, 8)) == [ACCEPTED] * 3


@pytest.mark.parametrize("positions", [None, {"orders-1": 9}, {"orders": 9}])
def test_without_a_position_every_hole_can_fill(engine: Engine, positions: dict[str, int] | None) -> None:
    sink = by_offset(engine)
    verdicts(sink, offsets(0, 2, 8), positions=positions)
    assert verdicts(sink, offsets(1, 3)) == [ACCEPTED] * 2


def test_positions_say_nothing_of_sequences(engine: Engine) -> None:
    sink = SqlSink(engine, None, "c", columns=fp.Columns(partition=("topic", "partition")))

    def rows(*numbers: int) -> pa.Table:
        common = {"pid": 7, "epoch": 0, "topic": "orders", "partition": 0}
        return pa.Table.from_pylist([common | {"seq": it} for it in numbers])

    verdicts(sink, rows(0, 2), positions={"orders-0": 3, "7-orders-0": 3})
    assert verdicts(sink, rows(1)) == [ACCEPTED]


def test_a_claim_from_before_positions_shrinks(engine: Engine) -> None:
    sink = by_offset(engine)
    verdicts(sink, offsets(*range(0, 4000, 2)))
    assert len(holes(engine)) == 1999
    verdicts(sink, offsets(4001), positions={"orders-0": 4002})
    assert claims(engine)[0][-1] is None
    assert holes(engine) == []


def test_a_log_of_transactions_leaves_one_entry_a_partition(engine: Engine) -> None:
    """A year of ten transactions a second over 64 partitions, scaled down: a call costs what its claims' bytes cost,
    and those do not grow. `bench/claims.py` has the full rate."""
    chance = random.Random(3)
    sink = by_offset(engine)
    ends = dict.fromkeys(range(PARTITIONS), 0)
    after: list[int] = []
    for _ in range(12):
        pieces = []
        for partition in ends:
            numbers = []
            for _ in range(20):
                rows = chance.randrange(1, 4)
                numbers += range(ends[partition], ends[partition] + rows)
                ends[partition] += rows + 1  # a marker
            pieces.append(offsets(*numbers, partition=partition))
        found = sink.handle(
            pa.concat_tables(pieces), pass_over, positions={f"orders-{it}": end for it, end in ends.items()}
        )
        assert found.rows_kept == len(found)
        after.append(sum(len(str(row)) for row in claims(engine)))
    assert [row[-1] for row in claims(engine)] == [None] * PARTITIONS
    assert after[-1] <= after[0] * 1.2
    assert claims_bytes(engine) <= CLAIMS_BYTES_MAX


# By sequence, in the order of a log


def events(*identities: tuple[int, int]) -> pa.Table:
    """Of one producer: (epoch, sequence)."""
    return pa.Table.from_pylist([{"pid": 7, "epoch": epoch, "partition": 0, "seq": seq} for epoch, seq in identities])


def in_log_order(engine: Engine, **settings: Any) -> SqlSink:
    return SqlSink(engine, None, "c", in_log_order=True, **settings)


def test_epochs_that_were_replaced_fold_into_the_newest(engine: Engine) -> None:
    sink = in_log_order(engine)
    log = [(epoch, seq) for epoch in range(300) for seq in range(3)]
    for start in range(0, len(log), 100):
        assert verdicts(sink, events(*log[start : start + 100])) == [ACCEPTED] * 100
    assert claims(engine) == [("7", "0", 299, 0, 2, None)]
    again = sink.handle(events(*log), pass_over)
    assert (again.duplicates, again.counts[fp.Verdict.FENCED], again.kept.true_count) == (900, 0, 0)
    assert set(again.verdict.to_pylist()) == {int(DUPLICATE)}


def test_without_the_order_of_a_log_each_epoch_is_an_entry(engine: Engine) -> None:
    sink = SqlSink(engine, None, "c")
    verdicts(sink, events(*((epoch, 0) for epoch in range(50))))
    assert verdicts(sink, events((3, 1))) == [ACCEPTED], "late, and new"
    assert len(claims(engine)[0][-1]) > 1000


def test_sequences_that_a_log_has_not_leave_no_holes(engine: Engine) -> None:
    """Of transactions that were aborted."""
    sink = in_log_order(engine)
    assert verdicts(sink, events(*((0, seq) for seq in range(0, 60, 3)))) == [ACCEPTED] * 20
    assert verdicts(sink, events((0, 3), (0, 57), (0, 58))) == [DUPLICATE, DUPLICATE, ACCEPTED]
    assert claims(engine) == [("7", "0", 0, 0, 58, None)]


def test_in_log_order_cannot_change_and_needs_a_policy_without_order(engine: Engine) -> None:
    with pytest.raises(fp.PolicyError, match="in_log_order requires a policy with admit='any'"):
        in_log_order(engine, policy="in_order")
    with pytest.raises(fp.PolicyError, match="in_log_order=True is for claim='sequence' only"):
        in_log_order(engine, claim="message_id", message_id="id")
    in_log_order(engine)
    with pytest.raises(fp.PolicyError, match="in_log_order=True found, None given"):
        SqlSink(engine, None, "c")


# Positions


def test_a_position_that_another_process_has_moved(engine: Engine, new_engine: Callable[[], Engine]) -> None:
    one, other = by_offset(engine), by_offset(new_engine())
    assert one.begin_positions({"orders-0": 5}) == {"orders-0": 5}
    assert other.begin_positions({"orders-0": 0, "orders-1": 2}) == {"orders-0": 5, "orders-1": 2}
    one.handle(offsets(5), pass_over, positions={"orders-0": 6}, expected={"orders-0": 5})
    with pytest.raises(fp.errors.StateConflictError, match="source 'orders-0': expected position 5, found 6"):
        other.handle(offsets(6), pass_over, positions={"orders-0": 7}, expected={"orders-0": 5})
    with pytest.raises(fp.errors.StateConflictError, match="source 'orders-9': expected position 0, found None"):
        other.skip({"orders-9": 1}, expected={"orders-9": 0})
    assert one.positions() == {"orders-0": 6, "orders-1": 2}
    assert verdicts(one, offsets(6)) == [ACCEPTED], "nothing was claimed"


def test_skipped_positions_commit_with_the_work(engine: Engine) -> None:
    execute(engine, "CREATE TABLE letters (n INTEGER)")
    sink = by_offset(engine)
    sink.begin_positions({"orders-0": 0})

    def write(connection: Connection) -> None:
        connection.execute(text("INSERT INTO letters VALUES (1)"))

    def fail(connection: Connection) -> None:
        write(connection)
        raise ValueError("no")

    sink.skip({"orders-0": 3}, expected={"orders-0": 0}, work=write)
    with pytest.raises(ValueError, match="no"):
        sink.skip({"orders-0": 4}, expected={"orders-0": 3}, work=fail)
    sink.skip({"orders-0": 2})  # none goes back
    assert sink.positions() == {"orders-0": 3}
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM letters")).scalar_one() == 1
