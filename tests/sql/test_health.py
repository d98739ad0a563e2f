"""What keeps a sink healthy: forgetting, reconciling, metrics, keys for outbound calls, guarded transitions."""

from __future__ import annotations

import collections
import random
import re
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy
from fencepost.metrics import to_text
from fencepost.sql import Reaped, RetentionWarning, SqlSink, derived_key, transition
from fencepost.sql.consumers import CLAIMS, MESSAGES
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, func, select
from support.databases import execute, without_mariadb
from support.threads import in_threads
from support.waiting import PATIENCE_SECONDS

TABLES = MetaData()
EVENTS = Table(
    "events",
    TABLES,
    Column("pid", sqlalchemy.BigInteger),
    Column("epoch", sqlalchemy.SmallInteger),
    Column("partition", Integer),
    Column("seq", sqlalchemy.BigInteger),
    Column("amount", sqlalchemy.Numeric(8, 2)),
    Column("note", String(100)),
)
ORDERS = Table(
    "orders", TABLES, Column("id", Integer, primary_key=True), Column("state", String(10)), Column("paid", Integer)
)
TIMED = fp.Columns(timestamp="time")
ONE_EPOCH = fp.Columns(epoch=None, partition=None)


@pytest.fixture
def events(engine: Engine) -> Engine:
    TABLES.create_all(engine)
    return engine


def rows(*seqs: int, pid: int | None = 7, time: int = 0, amount: float = 1, note: str = "n") -> pa.Table:
    return pa.table(
        {
            "pid": pa.array([pid] * len(seqs), pa.int64()),
            "epoch": pa.array([0] * len(seqs), pa.int16()),
            "partition": pa.array([0] * len(seqs), pa.int32()),
            "seq": pa.array(seqs, pa.int64()),
            "amount": pa.array([amount] * len(seqs), pa.float64()),
            "note": [f"{note}{seq}" for seq in seqs],
            "time": pa.array([time] * len(seqs), pa.int64()),
        }
    )


def nothing(connection: Connection, kept: pa.Table) -> None:
    pass


def count(engine: Engine, table: Table) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def verdicts(applied: Any) -> list[str]:
    return [fp.Verdict(code).name for code in applied.verdict.to_pylist()]


# Forgetting


def test_forgotten_rows_are_never_new(events: Engine) -> None:
    sink = SqlSink(events, None, "c", columns=TIMED)
    sink.handle(rows(0, 1, pid=1, time=1_000), nothing)
    sink.handle(rows(0, 1, 5, pid=2, time=5_000), nothing)
    assert sink.reap(2_000, now_ms=6_000, force=True) == Reaped(claims=1, horizon_ms=4_000, warning=None)
    assert verdicts(sink.handle(rows(0, 1, 2, pid=1, time=1_000), nothing)) == ["FORGOTTEN"] * 3
    assert verdicts(sink.handle(rows(0, 3, pid=2, time=4_000), nothing)) == ["DUPLICATE", "FORGOTTEN"]
    assert verdicts(sink.handle(rows(2, pid=1, time=4_001), nothing)) == ["ACCEPTED"]
    assert sink.reap(1_000, now_ms=4_500, force=True).horizon_ms == 4_000, "the horizon never falls"
    assert count(events, CLAIMS) == 2


def test_a_missing_range_has_the_timestamp_of_the_row_that_opened_it(events: Engine) -> None:
    """So a new row above the horizon can be forgotten."""
    for name, order, verdict in (("a", [(2, 16), (0, 6)], "FORGOTTEN"), ("b", [(0, 6), (2, 16)], "ACCEPTED")):
        sink = SqlSink(events, None, name, columns=TIMED)
        for seq, time in order:
            sink.handle(rows(seq, time=time), nothing)
        assert sink.reap(1, now_ms=8, force=True).horizon_ms == 7
        assert verdicts(sink.handle(rows(1, time=16), nothing)) == [verdict]


def test_forgotten_messages_are_never_new(events: Engine) -> None:
    sink = SqlSink(events, None, "c", "message_id", message_id="note", timestamp="time")
    sink.handle(rows(0, 1, time=1_000), nothing)
    sink.handle(rows(2, time=5_000), nothing)
    assert sink.reap(2_000, now_ms=6_000, force=True).claims == 2
    assert verdicts(sink.handle(rows(0, 8, time=1_000), nothing)) == ["FORGOTTEN"] * 2
    assert verdicts(sink.handle(rows(2, 9, time=5_000), nothing)) == ["DUPLICATE", "ACCEPTED"]
    with pytest.raises(fp.BatchError, match="column 'time', row 1: null"):
        sink.handle({"note": ["x", "y"], "time": pa.array([1, None])}, nothing)
    assert count(events, MESSAGES) == 2


def test_an_id_counts_with_its_first_row_that_can_be_judged(events: Engine) -> None:
    """Rows in one call or in two."""
    for name, calls in {"one": [[500, 5_000]], "two": [[500], [5_000]]}.items():
        sink = SqlSink(events, None, name, claim="message_id", message_id="id", timestamp="at")
        sink.handle([{"id": "first", "at": 3_000}], nothing)
        sink.reap(1_000, now_ms=2_000, force=True)
        done = [sink.handle([{"id": "a", "at": at} for at in call], nothing) for call in calls]
        assert [it for one in done for it in verdicts(one)] == ["FORGOTTEN", "ACCEPTED"]


def test_claims_go_in_pieces(events: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.sql.reaping._PIECE_ROWS", 3)
    sink = SqlSink(events, None, "c", columns=TIMED)
    other = SqlSink(events, None, "other", columns=TIMED)
    for pid in range(11):
        sink.handle(rows(0, pid=pid, time=1_000 if pid % 4 else 9_000), nothing)
        other.handle(rows(0, pid=pid, time=1_000), nothing)
    assert sink.reap(2_000, now_ms=6_000, force=True).claims == 8
    assert count(events, CLAIMS) == 3 + 11
    assert sink.reap(2_000, now_ms=6_000, force=True).claims == 0


def test_a_backfill_under_a_new_epoch_does_not_age_the_old_one(events: Engine) -> None:
    policy = fp.Policy.any_order().replace(epochs="fence")
    sink = SqlSink(events, None, "c", policy=policy, columns=TIMED)
    old = rows(0, time=9_000)
    backfill = rows(0, time=1_000).set_column(1, "epoch", pa.array([1], pa.int16()))
    assert (sink.handle(old, nothing).rows_kept, sink.handle(backfill, nothing).rows_kept) == (1, 1)
    assert sink.reap(2_000, now_ms=6_000, force=True) == Reaped(claims=0, horizon_ms=4_000, warning=None)
    assert verdicts(sink.handle(old, nothing)) == ["FENCED"]
    assert verdicts(sink.handle(backfill, nothing)) == ["DUPLICATE"]
    assert sink.reap(2_000, now_ms=11_000, force=True).claims == 1
    assert verdicts(sink.handle(old, nothing)) == ["FORGOTTEN"]


def test_a_reap_that_broke_off_has_decided(events: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SqlSink(events, None, "c", columns=TIMED)
    sink.handle(rows(0, 1, time=1_000), nothing)

    def break_off(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fencepost.sql.reaping._delete_behind", break_off)
        with pytest.raises(KeyboardInterrupt):
            sink.reap(2_000, now_ms=6_000, force=True)
    assert count(events, CLAIMS) == 1
    assert verdicts(sink.handle(rows(0, 2, time=1_000), nothing)) == ["FORGOTTEN"] * 2
    assert sink.reap(2_000, now_ms=6_000, force=True).claims == 1


def test_a_retention_that_is_too_short(events: Engine) -> None:
    sink = SqlSink(events, None, "c", columns=TIMED, replay_ms=86_400_000)
    with pytest.warns(RetentionWarning, match="3600000 ms is shorter"):
        done = sink.reap(3_600_000)
    assert done.warning is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sink.reap(86_400_000).warning is None


def test_a_retention_shorter_than_what_is_in_flight(events: Engine) -> None:
    sink = SqlSink(events, None, "c", columns=TIMED)
    with events.connect() as connection:
        now = sink._database.now_ms(connection)
    sink.handle(rows(0, 1, time=now - 500_000), nothing)
    with pytest.raises(fp.PolicyError, match=r"arrive later .* 1 are .* to 50\d{4} ms"):
        sink.reap(400_000)
    assert sink.metrics()["horizon_ms"] is None
    assert sink.reap(600_000).claims == 0
    assert sink.reap(400_000, force=True).claims == 1


@pytest.mark.parametrize("retention", [0, -5, 1.5, True])
def test_invalid_retentions_are_refused(events: Engine, retention: Any) -> None:
    with pytest.raises(fp.PolicyError, match="positive number of milliseconds"):
        SqlSink(events, None, "c", columns=TIMED).reap(retention)


@pytest.mark.parametrize("by", ["event_time", "processed_time"])
@pytest.mark.parametrize(
    ("scale", "message"), [(1000, "the database's clock"), (1.5, "expected an integer"), (True, "an integer")]
)
def test_a_time_that_is_not_now_is_refused(events: Engine, by: Any, scale: Any, message: str) -> None:
    """Microseconds or a float would make every event FORGOTTEN, or each call fail: the horizon never decreases."""
    sink = SqlSink(events, None, "c", **({"columns": TIMED} if by == "event_time" else {}))
    with events.connect() as connection:
        now = sink._database.now_ms(connection)
    with pytest.raises(fp.PolicyError, match=message):
        sink.reap(1_000, by=by, now_ms=True if scale is True else now * scale)
    sink.handle(rows(0, time=now), nothing)
    assert sink.metrics()["horizon_ms"] is None
    with pytest.raises(fp.PolicyError, match=message):
        sink.reap(1_000, by=by, now_ms=True if scale is True else now * scale)
    assert verdicts(sink.handle(rows(0, 1, time=now), nothing)) == ["DUPLICATE", "ACCEPTED"]


def test_without_timestamps_nothing_is_forgotten(events: Engine) -> None:
    with pytest.raises(fp.PolicyError, match="consumer 'c' keeps no timestamps"):
        SqlSink(events, None, "c").reap(1_000)


def pass_time(engine: Engine, table: Table, ms: int) -> None:
    with engine.begin() as connection:
        connection.execute(table.update().values(changed_ms=table.c.changed_ms - ms))


@pytest.mark.parametrize("claim", ["sequence", "message_id"])
def test_without_timestamps_claims_go_by_the_time_of_processing(events: Engine, claim: Any) -> None:
    """From any day on: nothing was set up for it."""
    table, more = (CLAIMS, {}) if claim == "sequence" else (MESSAGES, {"message_id": "note"})
    sink, other = (SqlSink(events, None, name, claim, **more) for name in ("c", "other"))
    for it in (sink, other):
        it.handle(rows(0, 1, pid=1, note="old"), nothing)
    pass_time(events, table, 10_000_000)
    sink.handle(rows(0, 1, pid=2, note="new"), nothing)
    left, gone = count(events, table), 1 if claim == "sequence" else 2
    assert sink.reap(5_000_000, by="processed_time") == Reaped(claims=gone, horizon_ms=None, warning=None)
    assert count(events, table) == left - gone
    assert verdicts(sink.handle(rows(0, 1, pid=2, note="new"), nothing)) == ["DUPLICATE"] * 2
    assert verdicts(sink.handle(rows(0, 1, pid=1, note="old"), nothing)) == ["ACCEPTED"] * 2, "it knows nothing of them"
    assert verdicts(other.handle(rows(0, 1, pid=1, note="old"), nothing)) == ["DUPLICATE"] * 2


def test_a_claim_in_use_does_not_go(events: Engine) -> None:
    sink = SqlSink(events, None, "c")
    sink.handle(rows(0), nothing)
    pass_time(events, CLAIMS, 10_000_000)
    sink.handle(rows(1), nothing)
    assert sink.reap(5_000_000, by="processed_time").claims == 0
    assert verdicts(sink.handle(rows(0, 1), nothing)) == ["DUPLICATE"] * 2


def test_a_retention_by_processing_that_is_too_short(events: Engine) -> None:
    sink = SqlSink(events, None, "c", replay_ms=20_000)
    sink.handle(rows(0), nothing)
    pass_time(events, CLAIMS, 15_000)
    with pytest.raises(fp.PolicyError, match=r"be applied again\. Choose"):
        sink.reap(10_000, by="processed_time")
    assert count(events, CLAIMS) == 1
    with pytest.warns(RetentionWarning, match="will be applied again"):
        assert sink.reap(10_000, by="processed_time", force=True).claims == 1
    with pytest.raises(fp.PolicyError, match="events' own time: reap by='event_time'"):
        SqlSink(events, None, "timed", columns=TIMED).reap(10_000, by="processed_time")
    with pytest.raises(fp.PolicyError, match="by='size' is neither"):
        sink.reap(10_000, by="size")  # type: ignore[arg-type]
    with pytest.raises(fp.PolicyError, match="positive number of milliseconds"):
        sink.reap(0, by="processed_time")


def test_rows_of_a_replaced_producer_are_counted(events: Engine) -> None:
    sink = SqlSink(events, None, "c")
    of_successor = rows(0, 1).set_column(1, "epoch", pa.array([1, 1], pa.int16()))
    assert sink.handle(rows(0, 1), nothing).stale_epoch == 0
    assert sink.handle(of_successor, nothing).stale_epoch == 0
    of_zombie = sink.handle(rows(1, 2, 3), nothing)
    assert (of_zombie.stale_epoch, verdicts(of_zombie)) == (3, ["DUPLICATE", "ACCEPTED", "ACCEPTED"])
    assert sink.metrics()["stale_epoch"] == 3
    assert 'fencepost_sink_stale_epoch_rows_total{consumer="c"} 3.0' in to_text(sink).splitlines()
    by_id = SqlSink(events, None, "ids", "message_id", message_id="note")
    assert by_id.handle(rows(0), nothing).stale_epoch is None
    assert by_id.metrics()["stale_epoch"] == 0


def test_reaping_while_others_apply(events: Engine, new_engine: Callable[[], Engine]) -> None:
    """Each identity is applied once at most, though claims vanish all the time."""
    applied: list[tuple[int, int]] = []
    reached: list[int] = []
    failures: list[BaseException] = []
    lock = threading.Lock()
    SqlSink(events, None, "c", columns=TIMED)

    def consume() -> None:
        try:
            sink = SqlSink(new_engine(), None, "c", columns=TIMED)
            for time in range(100, 2_000, 100):
                pids = [time // 400 * 4 + pid for pid in range(4) for _ in range(2)]  # others every four calls
                batch = pa.table(
                    {
                        "pid": pids,
                        "epoch": [0] * 8,
                        "partition": [0] * 8,
                        "seq": [time // 100, time // 100 - 1] * 4,
                        "time": [time, time - 100] * 4,
                    }
                )
                found = sink.handle(batch, lambda connection, kept: kept.select(["pid", "seq"]).to_pylist())
                with lock:
                    applied.extend((row["pid"], row["seq"]) for row in found.result or [])
                    reached.append(time)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    reaper, claims = SqlSink(new_engine(), None, "c", columns=TIMED), 0
    while any(thread.is_alive() for thread in threads):
        claims += reaper.reap(50, now_ms=max(reached, default=0), force=True).claims
    for thread in threads:
        thread.join()
    assert failures == []
    claims += reaper.reap(50, now_ms=max(reached), force=True).claims
    assert len(applied) == len(set(applied)) >= 4
    assert claims > 0


# Reconciling


def findings(report: Any) -> list[tuple[str, int, int, int]]:
    listed = report.findings.select(["finding", "seq", "source_rows", "table_rows"]).to_pylist()
    return [tuple(row.values()) for row in listed]


@pytest.fixture
def sink(events: Engine) -> SqlSink:
    return SqlSink(
        events, "events", "c", insert=["pid", "epoch", "partition", "seq", "amount", "note"], untracked="keep"
    )


def test_a_table_and_its_source_agree(sink: SqlSink) -> None:
    sink.apply(rows(*range(10)))
    report = sink.reconcile([rows(*range(6)), rows(*range(4, 10))])
    assert report.is_clean
    assert (report.source_rows, report.table_rows, report.matched, findings(report)) == (12, 10, 10, [])
    assert sink.reconcile(rows(*range(10))).is_clean
    assert sink.reconcile(pa.RecordBatchReader.from_batches(rows(0).schema, rows(*range(10)).to_batches())).is_clean
    assert sink.reconcile(rows(*range(10)).to_pylist()).is_clean


def test_reconcile_finds_missing_unexpected_and_conflicting_rows(sink: SqlSink, events: Engine) -> None:
    sink.apply(rows(*range(8)))
    with events.begin() as connection:
        connection.execute(EVENTS.delete().where(EVENTS.c.seq == 2))
        connection.execute(EVENTS.update().where(EVENTS.c.seq == 3).values(amount=2))
        connection.execute(EVENTS.update().where(EVENTS.c.seq == 6).values(note=None))
        again = {"pid": 7, "epoch": 0, "partition": 0, "seq": 4, "amount": 1, "note": "n4"}
        connection.execute(EVENTS.insert(), [again])
    seen: list[pa.RecordBatch] = []
    source = iter([rows(0, 1, 2, 3), rows(4, 6, 0), rows(5, amount=3), rows(5), rows(9, pid=None), rows(9, pid=-1)])
    report = sink.reconcile(source, on_findings=seen.append)
    expected = [
        ("missing", 2, 1, 0), ("conflict", 3, 1, 1), ("repeated", 4, 1, 2), ("conflict", 5, 2, 1),
        ("conflict", 6, 1, 1), ("unexpected", 7, 0, 1),
    ]  # fmt: skip
    assert findings(report) == expected
    assert pa.Table.from_batches(seen).equals(report.findings)
    counts = (report.matched, report.missing, report.unexpected, report.conflicts, report.repeated)
    assert counts == (2, 1, 1, 3, 1)
    assert (report.source_rows, report.table_rows, report.without_identity) == (11, 8, 2)
    fingerprints = report.findings.select(["source_fingerprint", "table_fingerprint"]).to_pylist()
    assert fingerprints[0]["table_fingerprint"] is None
    assert len(set(fingerprints[1].values())) == 2
    assert not report.is_clean
    short = sink.reconcile(rows(0, 1, 2, 3, 4, 6), findings_max=2)
    assert findings(short) == expected[:2]
    assert (short.unexpected, short.missing) == (2, 1)
    part = sink.reconcile(rows(0, 1), where=EVENTS.c.seq < 2)
    assert part.is_clean
    missing = sink.reconcile(rows(20), where=EVENTS.c.seq == 20)
    assert missing.findings["table_fingerprint"].to_pylist() == [None]
    for some in (report, part, missing):
        kinds = [it.type for it in some.findings.schema if it.name not in ("pid", "epoch", "partition", "seq")]
        assert kinds == [pa.string(), pa.int64(), pa.int64(), pa.string(), pa.string()]
    assert sink.reconcile(rows(0, 1), where="seq < 2").matched == 2


@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_comparison_counts_as_a_recount(events: Engine, seed: int, by_message: bool) -> None:
    """Sources and tables by chance, with repeats, nulls in the identity, and rows that differ."""
    chance = random.Random(2 * seed + by_message)
    identity = ("note",) if by_message else ("pid", "epoch", "partition", "seq")
    texts = ["x", "X", "x ", "-1", "\u00df", "ss"]  # collations of MariaDB consider some of them equal

    def row() -> dict[str, Any]:
        pid = chance.choice([7, 8, -1, None])
        amount = chance.choice([Decimal(1), Decimal(2), None])
        note = chance.choice([*texts, None])
        return {"pid": pid, "epoch": 0, "partition": 0, "seq": chance.randrange(4), "amount": amount, "note": note}

    source = [row() for _ in range(40)]
    table = [dict(it) for it in source if chance.random() < 0.7] + [row() for _ in range(10)]
    with events.begin() as connection:
        connection.execute(EVENTS.insert(), table)
    options: dict[str, Any] = {"claim": "message_id", "message_id": "note"} if by_message else {}
    sink = SqlSink(events, "events", "c", **options)
    sides: dict[Any, tuple[list[Any], list[Any]]] = {}
    without_identity = 0
    for side, of_side in enumerate((source, table)):
        for it in of_side:
            key = tuple(it[name] for name in identity)
            if None in key or (not by_message and it["pid"] == -1):
                without_identity += 1
            else:
                sides.setdefault(key, ([], []))[side].append(tuple(it.values()))
    wanted = collections.Counter(
        "missing"
        if not theirs
        else "unexpected"
        if not ours
        else "conflict"
        if len({*ours, *theirs}) > 1
        else "repeated"
        if len(theirs) > 1
        else "matched"
        for ours, theirs in sides.values()
    )
    rows_of_source = pa.Table.from_pylist(source)
    pieces = [rows_of_source.slice(0, 15), *source[15:20], rows_of_source.slice(20)]
    report = sink.reconcile(chance.choice([rows_of_source, source, iter(source), iter(pieces)]))
    found = (report.matched, report.missing, report.unexpected, report.conflicts, report.repeated)
    assert found == tuple(wanted[it] for it in ("matched", "missing", "unexpected", "conflict", "repeated"))
    totals = (report.source_rows, report.table_rows, report.without_identity)
    assert totals == (len(source), len(table), without_identity)
    assert (
        collections.Counter(report.findings["finding"].to_pylist()) + collections.Counter(matched=wanted["matched"])
        == +wanted
    )


def test_a_source_of_events_one_by_one(sink: SqlSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.sql.reconciliation._BATCH_ROWS", 4)
    sink.apply(rows(*range(10)))
    events = rows(*range(10)).to_pylist()
    columns = rows(*range(4)).to_pydict()
    for source in (iter(events), iter([columns, *events[4:]]), [columns, events[4:]], iter([events[:9], events[9]])):
        report = sink.reconcile(source)
        assert (report.is_clean, report.source_rows, report.matched) == (True, 10, 10)
    assert sink.reconcile(np.array(events)).is_clean
    assert sink.reconcile([it | {"pid": np.int64(7)} for it in events]).is_clean
    for source in (7, "seven", iter([7])):
        with pytest.raises(TypeError, match=r"(int|str) is not tabular"):
            sink.reconcile(source)


def with_payload(engine: Engine, name: str, kinds: list[str]) -> SqlSink:
    """A sink of a table (seq, v0, v1, ...) with columns of these types."""
    with engine.begin() as connection:
        columns = ", ".join(f"v{number} {kind}" for number, kind in enumerate(kinds))
        connection.execute(sqlalchemy.text(f"CREATE TABLE {name} (pid BIGINT, seq BIGINT, {columns})"))
    return SqlSink(engine, name, name, policy="watermark", columns=ONE_EPOCH)


def payload(*values: Any) -> pa.Table:
    named = {f"v{number}": pa.array([it]) for number, it in enumerate(values)}
    return pa.table({"pid": [7], "seq": [0], **named})


@pytest.mark.parametrize(
    ("kind", "equal", "others"),
    [
        ("NUMERIC", [Decimal("1.5"), Decimal("1.50"), 1.5], [Decimal("1.51"), None, 15]),
        ("NUMERIC", [5, Decimal("5.00"), 5.0, Decimal("5")], [50, Decimal("5.01")]),
        ("NUMERIC", [0, Decimal("0.00"), -0.0], [None, Decimal("0.01")]),
        ("NUMERIC(8, 2)", [Decimal("10"), Decimal("10.00"), 10], [1, Decimal("10.01")]),
        ("DOUBLE PRECISION", [0.0, -0.0, 0], [5e-324, None]),
        ("DOUBLE PRECISION", [0.1, Decimal("0.1")], [0.1 + 1e-17 * 2, float("inf")]),
        ("REAL", [0.5, Decimal("0.5")], [0.25, -0.5]),
    ],
)
@without_mariadb
def test_values_are_compared_not_how_they_are_written(
    events: Engine, kind: str, equal: list[Any], others: list[Any]
) -> None:
    sink = with_payload(events, "typed", [kind])
    for number, stored in enumerate(equal):
        execute(events, "DELETE FROM typed")
        again = SqlSink(events, "typed", f"c{number}", policy="watermark", columns=ONE_EPOCH)
        assert again.apply(payload(stored)).rows_kept == 1
        assert [sink.reconcile(payload(it)).matched for it in equal] == [1] * len(equal)
        assert [sink.reconcile(payload(it)).conflicts for it in others] == [1] * len(others)


@pytest.mark.parametrize("name", ["a%b", "100%%", "%s", "%(x)s", "c:d", 'q"q'])
@pytest.mark.parametrize(
    ("database_url", "by_copy"),
    [("sqlite", False), ("postgresql", True), ("postgresql", False), ("mariadb", False)],
    indirect=["database_url"],
)
def test_names_with_signs_of_parameters(events: Engine, name: str, by_copy: bool) -> None:
    """PostgreSQL copies rows, unless the table has a rule."""
    table = Table(
        f"t {name}", MetaData(), *(Column(it, sqlalchemy.BigInteger) for it in ("pid", "seq")), Column(name, String(20))
    )
    table.create(events)
    if not by_copy and events.dialect.name == "postgresql":
        quoted = f"t {name}".replace('"', '""').replace(":", "\\:")
        with events.begin() as connection:
            rule = f'CREATE RULE r AS ON UPDATE TO "{quoted}" DO ALSO NOTHING'
            connection.execute(sqlalchemy.text(rule))
    sink = SqlSink(events, f"t {name}", "c", policy="watermark", columns=ONE_EPOCH)
    some = pa.table({"pid": [7, 7], "seq": [0, 1], name: ["100%", "a:b %s"]})
    assert sink.apply(some).rows_kept == 2
    with events.connect() as connection:
        assert connection.execute(select(table.c[name]).order_by(table.c.seq)).scalars().all() == ["100%", "a:b %s"]
    assert sink.reconcile(some).is_clean
    assert sink.reconcile(some, where=table.c[name].like("100%%")).missing == 1
    assert sink.reconcile(some, where="seq % 2 = 0 AND 'x:y' LIKE 'x%'").missing == 1
    with pytest.raises(fp.BatchError, match="row 1"):
        sink.apply(pa.table({"pid": [7, 7], "seq": [2, 3], name: ["", "x" * 21]}))


@without_mariadb
def test_decimals_that_sqlite_would_round(events: Engine) -> None:
    sink = with_payload(events, "typed", ["NUMERIC"])
    long = Decimal("123456789012345678901234567890")
    for value in (long, long + 1, Decimal("1234567890123.12345"), Decimal(2**63), pa.scalar(2**63, pa.uint64())):
        if events.dialect.name == "sqlite":
            with pytest.raises(
                fp.BatchError, match=r"column 'v0', row 0: .*: SQLite would round it.*nothing of this"
            ) as no:
                sink.apply(payload(value))
            assert (no.value.column, no.value.row) == ("v0", 0)
    taken = [
        Decimal("12345678901234567.00"),
        Decimal(-(2**63)),
        Decimal("0.1234567890123456"),
        pa.scalar(5, pa.uint64()),
    ]
    if events.dialect.name != "sqlite":
        taken += [long, Decimal("1234567890123.12345"), Decimal(2**63)]
    for value in taken:
        other = SqlSink(events, "typed", str(value), policy="watermark", columns=ONE_EPOCH)
        execute(events, "DELETE FROM typed")
        other.apply(payload(value))
        assert [other.reconcile(payload(it)).matched for it in taken] == [int(it is value) for it in taken]
        with events.connect() as connection:
            found = connection.execute(sqlalchemy.text("SELECT v0 FROM typed")).scalar_one()
        assert Decimal(str(found)) == Decimal(str(value))


def test_tables_of_many_columns_are_compared(events: Engine) -> None:
    sink = with_payload(events, "wide", ["INTEGER"] * 350)
    sink.apply(payload(*range(350)))
    assert sink.reconcile(payload(*range(350))).is_clean
    for column in (0, 127, 349):
        changed = [-1 if it == column else it for it in range(350)]
        assert sink.reconcile(payload(*changed)).conflicts == 1


def test_minus_one_is_not_a_producer_but_a_message_like_others(events: Engine) -> None:
    messages = [{"id": it, "paid": 1} for it in (-1, -2, 3)]
    sink = SqlSink(events, "orders", "m", "message_id", message_id="id")
    assert sink.apply(messages).rows_kept == 3
    with events.begin() as connection:
        connection.execute(ORDERS.delete().where(ORDERS.c.id == -1))
    report = sink.reconcile(messages)
    assert (report.matched, report.missing, report.without_identity, report.is_clean) == (2, 1, 0, False)
    columns = fp.Columns(pid=("pid", "partition"), partition=None)
    names = list(rows(0).column_names[:4])
    sink = SqlSink(events, "events", "c", columns=columns, untracked="keep", insert=names)
    some = pa.table({"pid": [1, 1], "epoch": [0, 0], "partition": [0, -1], "seq": [0, 0]})
    assert sink.apply(some).rows_kept == 2
    report = sink.reconcile(some)
    assert (report.matched, report.without_identity, report.is_clean) == (1, 2, True)


def test_a_long_source_is_read_a_batch_at_a_time(sink: SqlSink) -> None:
    sink.apply(rows(*range(0, 30_000, 2)))
    held: list[int] = []

    def batches() -> Iterator[pa.Table]:
        for start in range(0, 40_000, 5_000):
            held.append(start)
            yield rows(*range(start, start + 5_000))

    sizes: list[int] = []
    report = sink.reconcile(batches(), findings_max=7, on_findings=lambda batch: sizes.append(len(batch)))
    assert (report.missing, report.matched, len(report.findings), len(held)) == (25_000, 15_000, 7, 8)
    assert sum(sizes) == 25_000
    assert max(sizes) <= 10_000


def test_a_comparison_locks_no_row(sink: SqlSink, events: Engine) -> None:
    """MariaDB locked all rows of the table, so that the application waited until the last finding."""
    sink.apply(rows(0, 1))

    def change(_: pa.RecordBatch) -> None:
        with events.begin() as connection:
            if events.dialect.name == "mariadb":
                connection.execute(sqlalchemy.text("SET innodb_lock_wait_timeout = 1"))
            connection.execute(EVENTS.update().where(EVENTS.c.seq == 1).values(note="changed"))

    assert sink.reconcile(rows(0), on_findings=change).unexpected == 1
    assert sink.reconcile(rows(0, 1)).conflicts == 1


def test_nothing_stays_after_a_comparison(sink: SqlSink, events: Engine) -> None:
    sink.apply(rows(0, 1))
    with pytest.raises(fp.BatchError, match=r"column 'seq': missing; .* pid, epoch"):
        sink.reconcile(rows(0).drop_columns("seq"))
    other = SqlSink(events, "events", "d")
    with pytest.raises(fp.BatchError, match="a batch of the"):
        other.reconcile([rows(0).drop_columns(["time", "note"]), rows(0).drop_columns("time")])
    for _ in range(2):
        assert sink.reconcile(rows(0, 1)).is_clean
    assert sink.reconcile([]).unexpected == 2
    assert "fencepost_source" not in sqlalchemy.inspect(events).get_table_names()


def test_an_engine_that_commits_each_statement(database_url: str, events: Engine) -> None:
    """On PostgreSQL the findings could not be read, and each later call found the temporary tables of this one."""
    committing = sqlalchemy.create_engine(database_url, isolation_level="AUTOCOMMIT")
    sink = SqlSink(committing, "events", "c", insert=["pid", "epoch", "partition", "seq"])
    sink.apply(rows(0, 1))
    for _ in range(2):
        assert sink.reconcile(rows(0, 1, 2)).missing == 1
    committing.dispose()


def test_tables_that_cannot_be_compared(events: Engine) -> None:
    with pytest.raises(fp.PolicyError, match="sink has no table"):
        SqlSink(events, None, "c").reconcile(rows(0))
    sink = SqlSink(events, "orders", "d", insert=["state"])
    with pytest.raises(fp.SinkError, match="orders: has no column 'pid'"):
        sink.reconcile(rows(0))


# Metrics


def test_metrics(events: Engine) -> None:
    sink = SqlSink(events, None, 'a "c"\n', columns=TIMED)
    empty = sink.metrics()
    assert (empty["claims"], empty["oldest_claim_age_ms"], empty["calls"], empty["hits"]) == (0, None, 0, 0)
    with events.connect() as connection:
        now = sink._database.now_ms(connection)
    sink.handle(rows(0, 1, 1, time=now - 60_000), nothing, positions={"orders-0": 3})
    sink.handle(rows(0, pid=8, time=now), nothing)
    with pytest.raises(ZeroDivisionError):
        sink.handle(rows(5, time=now), lambda *_: 1 // 0)
    with pytest.raises(TypeError):
        sink.handle("no rows", nothing)
    found = sink.metrics()
    assert 60_000 <= found["oldest_claim_age_ms"] < 90_000
    assert (found["calls"], found["failures"], found["hits"], found["claims"]) == (4, 2, 1, 2)
    assert (found["rows"]["accepted"], found["rows"]["duplicate"], found["positions"]) == (3, 1, {"orders-0": 3})
    lines = to_text(sink).splitlines()
    assert lines[-1] == "# EOF"
    assert r'fencepost_sink_rows_total{consumer="a \"c\"\n",verdict="duplicate"} 1.0' in lines
    assert "# TYPE fencepost_sink_rows counter" in lines
    assert "# UNIT fencepost_sink_oldest_claim_age_seconds seconds" in lines
    families = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert len(families) == 8
    for line in lines[:-1]:
        assert re.fullmatch(r'# (TYPE|UNIT|HELP) \w+ .+|\w+\{\w+="(\\.|[^"\\])*"(,\w+="[^"]*")?\} [\d.e+]+', line), line


# Keys for outbound calls


def test_derived_keys_never_change() -> None:
    assert derived_key("order-17", "charge") == "13839f37-b516-82db-b863-4550fe8b6043"
    assert derived_key((7, 0, 3, 41), "mail") == "5e7cbbb0-5cd4-8899-9bf9-80c38ebb8831"
    assert derived_key(uuid.UUID(int=1), "charge") == "84b662db-3dcc-80aa-abf5-e64a0432924f"
    assert derived_key(b"\x00\xff", "charge") == "850cd4fc-28af-8e85-8b22-bd94b652f41d"


def test_derived_keys_differ_by_event_and_purpose() -> None:
    events: list[Any] = [
        "7",
        7,
        b"7",
        ("7",),
        ("7", ""),
        ("", "7"),
        ("a", "bc"),
        ("ab", "c"),
        uuid.UUID(int=7),
        -7,
        "ü",
    ]
    keys = [derived_key(event, purpose) for event in events for purpose in ("charge", "mail")]
    assert len(set(keys)) == 2 * (len(events) - 1), "('7',) and '7' are one event"
    for key in keys:
        assert uuid.UUID(key).version == 8
        assert uuid.UUID(key).variant == uuid.RFC_4122


@pytest.mark.parametrize(
    ("event", "purpose", "message"),
    [
        (1.5, "charge", r"event_id: 1.5 .* float. Expected UTF-8 text, bytes, integers or UUIDs"),
        (True, "charge", r"event_id: True .* bool"),
        ((), "charge", r"event_id=\(\): .*at least one"),
        ("a", "", "purpose='': expected a text"),
        ("a", "\udc80", "purpose='.*': expected a text"),
        ("\udc80", "charge", "event_id: .* Expected UTF-8 text"),
    ],
)
def test_keys_that_cannot_be_derived(event: Any, purpose: str, message: str) -> None:
    with pytest.raises(fp.PolicyError, match=message):
        derived_key(event, purpose)


# Guarded transitions


@pytest.fixture
def orders(events: Engine) -> Engine:
    with events.begin() as connection:
        connection.execute(ORDERS.insert(), [{"id": 1, "state": "new"}, {"id": 2, "state": "paid"}])
    return events


def move(engine: Engine, number: int, origin: Any, to: str, **more: Any) -> bool:
    with engine.begin() as connection:
        return transition(connection, ORDERS, {"id": number}, origin, to, **more)


def test_a_transition_happens_once(orders: Engine) -> None:
    assert move(orders, 1, "new", "paid", values={"paid": 5}) is True
    assert move(orders, 1, "new", "paid", values={"paid": 9}) is False, "a repeat writes nothing"
    assert move(orders, 1, ("paid", "packed"), "sent") is True
    with orders.connect() as connection:
        assert connection.execute(select(ORDERS).where(ORDERS.c.id == 1)).one() == (1, "sent", 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (2, "new", "sent"),
            fp.TransitionError,
            r"orders \(id=2\): .*'paid'; expected .* state 'new'",
        ),
        ((3, "new", "sent"), fp.TransitionError, r"orders \(id=3\): 0 rows have this key"),
        ((2, ["new", "sent"], "sent"), fp.PolicyError, "'sent' is in from_states"),
        ((2, [], "sent"), fp.PolicyError, "key and from_states must not be empty"),
    ],
)
def test_transitions_that_do_not_apply(orders: Engine, arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        move(orders, *arguments)
    with pytest.raises(fp.PolicyError, match="no column 'status'"):
        move(orders, 2, "new", "sent", column="status")
    with orders.connect() as connection:
        assert connection.execute(select(ORDERS.c.state).order_by(ORDERS.c.id)).scalars().all() == ["new", "paid"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_trigger_that_prevents_updates_ends_the_transition(orders: Engine) -> None:
    execute(orders, "CREATE TRIGGER frozen BEFORE UPDATE ON orders BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(fp.TransitionError, match=r"orders: .*'new'.* changed no row"):
        move(orders, 1, "new", "paid")


def test_of_many_transitions_one_happens(orders: Engine, new_engine: Callable[[], Engine]) -> None:
    from fencepost.sql.database import Database

    def pay() -> bool:
        return Database(new_engine()).transaction(lambda it: transition(it, ORDERS, {"id": 1}, "new", "paid"))

    assert sorted(in_threads([pay] * 6)) == [False] * 5 + [True]


def test_of_two_that_have_read_the_same_one_moves(orders: Engine, new_engine: Callable[[], Engine]) -> None:
    """Outside a transaction of `Database`, SQLite's read takes no lock: the update itself must check."""
    met = threading.Barrier(2)

    def pay(to: str) -> bool | str:
        engine, waited = new_engine(), False

        @sqlalchemy.event.listens_for(engine, "before_cursor_execute")
        def wait(*arguments: Any) -> None:
            nonlocal waited
            # PostgreSQL lets only one of them read the row.
            if engine.dialect.name == "sqlite" and arguments[2].startswith("UPDATE") and not waited:
                waited = True
                met.wait(timeout=PATIENCE_SECONDS)

        try:
            return move(engine, 1, "new", to)
        except fp.TransitionError as error:
            return str(error)

    moved = in_threads([lambda: pay("paid"), lambda: pay("sent")])
    assert moved.count(True) == 1
    assert sum(isinstance(it, str) and "to " in it for it in moved) == 1


def test_an_unknown_outcome_of_opening_is_asked_again(events: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from fencepost.sql.database import Database

    commit, lost = Database._commit, []

    def lose_every_other(self: Database, connection: Any) -> None:
        commit(self, connection)
        lost.append(len(lost) % 2 == 0)
        if lost[-1]:
            raise fp.OutcomeUnknownError("the connection was lost during the commit")

    monkeypatch.setattr(Database, "_commit", lose_every_other)
    SqlSink(events, None, "opened", columns=TIMED)
    # MariaDB makes tables outside of transactions.
    assert lost == [True, False] * (1 if events.dialect.name == "mariadb" else 2)
