"""Holes of claims are rows: a call reads and writes those that its rows concern, and judges as one table would."""

from __future__ import annotations

import json
import random
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost.sql import SqlSink, sequence_claims
from fencepost.sql.consumers import CLAIMS, HOLES
from sqlalchemy import Connection, Engine, delete, select, update
from support import daily

Hole = tuple[str, str, int, int, int]
ANY = fp.Policy.any_order()
POLICIES = {
    "any order": ANY,
    "epochs that fence": ANY.replace(epochs="fence"),
    "from zero": ANY.replace(first="zero"),
    "a short lap": ANY.replace(wrap=64),
    "a long lap": ANY.replace(wrap=2**31),
    "a reach": ANY.replace(reach=30),
    "offsets": fp.Policy.kafka_offsets(),
}


def pass_over(_: Connection, kept: pa.Table) -> None:
    pass


def holes(engine: Engine) -> list[Hole]:
    """(pid, partition, epoch, first, last) of all claims."""
    columns = (HOLES.c[name] for name in ("pid", "partition", "epoch", "first", "last"))
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(*columns).order_by(*HOLES.primary_key))]


def more(engine: Engine) -> list[str | None]:
    with engine.connect() as connection:
        return list(connection.execute(select(CLAIMS.c.more).order_by(CLAIMS.c.pid, CLAIMS.c.partition)).scalars())


def holes_of(table: fp.StateTable) -> list[Hole]:
    """The same for a table in memory."""
    found = []
    for entry in pa.table(table.entries()).to_pylist():
        pid = json.dumps(entry["pid"]) if isinstance(entry["pid"], str) else str(entry["pid"])
        epoch = -1 if entry["epoch"] is None else entry["epoch"]
        found += [(pid, str(entry["partition"]), epoch, it["first"], it["last"]) for it in entry["holes"]]
    return sorted(found, key=lambda it: (*it[:3], it[4]))


def rows_of(chance: random.Random, columns: fp.Columns, wrap: int | None, start: int) -> pa.Table:
    seqs = [start + chance.randrange(-12, 12) for _ in range(chance.randrange(1, 12))]
    seqs = [it % wrap if wrap is not None else max(it, 0) for it in seqs]
    rows = [
        {
            columns.pid: chance.choice(["a", "b"]) if columns.epoch is None else chance.choice([7, 8]),
            columns.partition: chance.randrange(2),
            columns.seq: seq,
            **({} if columns.epoch is None else {columns.epoch: chance.choice([0, 0, 1])}),
        }
        for seq in seqs
    ]
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", daily.first(range(8)))
def test_calls_judge_as_one_table(engine: Engine, name: str, seed: int) -> None:
    chance, policy = random.Random(seed), POLICIES[name]
    columns = policy.columns
    if name == "offsets":
        columns = fp.Columns(pid="topic", epoch=None, partition="partition", seq="offset")
    sink, table = SqlSink(engine, None, "c", policy=policy, columns=columns), fp.StateTable(policy)
    wrap = policy.wrap if name == "a short lap" else None
    start = policy.wrap - 20 if name == "a long lap" and policy.wrap is not None else 0
    for number in range(40):
        at = start + chance.choice([4 * number, chance.randrange(4 * number + 1)])
        rows = rows_of(chance, columns, policy.wrap if name == "a long lap" else wrap, at)
        expected = table.apply(rows, columns)
        found = sink.handle(rows, pass_over)
        assert found.verdict.to_pylist() == pa.array(expected.verdict).to_pylist()
        assert holes(engine) == holes_of(table)


def offsets(*numbers: int) -> pa.Table:
    return pa.table({"topic": ["orders"] * len(numbers), "partition": [0] * len(numbers), "offset": numbers})


def by_offset(engine: Engine) -> SqlSink:
    return SqlSink(engine, None, "c", policy="kafka_offsets")


def test_a_call_reads_the_holes_that_its_rows_can_fall_into(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(*arguments: Any) -> Any:
        found = sequences_read_holes(*arguments)
        read.append(sum(map(len, found.values())))
        return found

    sequences_read_holes = sequence_claims.read_holes
    monkeypatch.setattr(sequence_claims, "read_holes", counted)
    sink = by_offset(engine)
    sink.handle(offsets(*range(0, 4000, 2)), pass_over)
    assert len(holes(engine)) == 1999
    for rows in ([4000], [1], [2001, 2002, 2003], [3999], [4000]):
        sink.handle(offsets(*rows), pass_over)
    assert read == [0, 2, 3, 1, 0]
    assert len(holes(engine)) == 1999 + 1 - 4


def test_holes_of_a_claim_that_the_former_version_wrote(engine: Engine) -> None:
    """They were in the value of the claim."""
    sink = by_offset(engine)
    sink.handle(offsets(0, 3, 9), pass_over)
    with engine.begin() as connection:
        connection.execute(delete(HOLES))
        connection.execute(update(CLAIMS).values(more="[[null,0,9,[[1,2,null],[4,8,null]],null,null,null]]"))
    found = sink.handle(offsets(1, 3, 5), pass_over)
    assert [fp.Verdict(it) for it in found.verdict.to_pylist()] == [
        fp.Verdict.ACCEPTED, fp.Verdict.DUPLICATE, fp.Verdict.ACCEPTED,
    ]  # fmt: skip
    assert [it[3:] for it in holes(engine)] == [(2, 2), (4, 4), (6, 8)]
    assert more(engine) == ["[[null,0,9,3,null,null,null]]"]


def test_a_hole_that_fills_leaves_a_plain_claim(engine: Engine) -> None:
    sink = by_offset(engine)
    sink.handle(offsets(0, 4), pass_over)
    assert [it[3:] for it in holes(engine)] == [(1, 3)]
    sink.handle(offsets(2), pass_over)
    assert [it[3:] for it in holes(engine)] == [(1, 1), (3, 3)]
    sink.handle(offsets(1, 3), pass_over)
    assert (holes(engine), more(engine)) == ([], [None])


def test_a_position_within_a_hole_closes_its_lower_part(engine: Engine) -> None:
    sink = by_offset(engine)
    sink.handle(offsets(0, 3, 10, 20), pass_over)
    sink.handle(offsets(30), pass_over, positions={"orders-0": 14})
    assert [it[3:] for it in holes(engine)] == [(14, 19), (21, 29)]
    assert more(engine) == ["[[null,0,30,2,null,null,null]]"]


def test_holes_go_with_their_claim(engine: Engine) -> None:
    columns = fp.Columns(timestamp="at")
    sink = SqlSink(engine, None, "c", columns=columns)

    def events(pid: int, at: int, *seqs: int) -> pa.Table:
        return pa.Table.from_pylist([{"pid": pid, "epoch": 0, "partition": 0, "seq": it, "at": at} for it in seqs])

    sink.handle(events(7, 1000, 0, 5), pass_over)
    sink.handle(events(8, 5000, 0, 5), pass_over)
    assert len(holes(engine)) == 2
    assert sink.reap(1000, now_ms=4000, force=True).claims == 1
    assert [it[:1] for it in holes(engine)] == [("8",)]
    # A claim behind the horizon counts as gone before it is deleted, and so do its holes.
    other = SqlSink(engine, None, "d", columns=columns)
    other.handle(events(7, 1000, 0, 5), pass_over)
    with engine.begin() as connection:
        other._consumer.raise_horizon(connection, 3000)
    other.handle(events(7, 6000, 9), pass_over)
    with engine.connect() as connection:
        query = select(HOLES.c.first).where(HOLES.c.consumer == other._consumer.id)
        assert list(connection.execute(query).scalars()) == []
