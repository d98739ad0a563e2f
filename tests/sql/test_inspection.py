"""The state of transactions for an operator, and aborting one from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
from fencepost import cli
from fencepost.metrics import to_text
from fencepost.sql import (
    ProducerIdentity,
    Recovered,
    StagedPosition,
    TransactionCoordinator,
    TransactionStatus,
    describe_transaction,
    list_transactions,
    transaction_metrics,
)
from fencepost.sql import transaction_tables as tables
from fencepost.sql.database import Database
from sqlalchemy import Engine, inspect, select
from support.coordinator_doors import Route, set_back

NewEngine = Callable[[], Engine]
DAY_MS = 86_400_000


def fail(*_: object) -> None:
    raise OSError("no answer")


@pytest.fixture
def coordinator(engine: Engine) -> TransactionCoordinator:
    return TransactionCoordinator(engine, routes={"clicks": None, "sales": Route(fail)})


@pytest.fixture
def owner(coordinator: TransactionCoordinator) -> ProducerIdentity:
    """Of an open transaction of two topics and one input."""
    identity = coordinator.init_producer("stage")
    coordinator.add_partitions(identity, [("sales", 1), ("clicks", 0)])
    coordinator.add_offsets(identity, "group", {("input", 3): (None, 10)})
    return identity


def the_one(engine: Engine) -> TransactionStatus:
    [found] = list_transactions(engine)
    return found


def test_an_open_transaction_is_described(
    engine: Engine, coordinator: TransactionCoordinator, owner: ProducerIdentity
) -> None:
    coordinator.init_producer("idle")
    found = the_one(engine)
    assert (found.transactional_id, found.state, found.owner) == ("stage", "ongoing", owner)
    assert found.partitions == (("clicks", 0), ("sales", 1))
    assert found.waiting == (("sales", 1),)
    assert (found.timeout_ms, found.is_late) == (60_000, False)
    assert found.waits_for.startswith("its producer, to commit")
    assert found.age_ms is not None
    assert 0 <= found.idle_ms <= found.age_ms < DAY_MS
    described = describe_transaction(engine, "stage")
    assert described.positions == (StagedPosition("group", ("input", 3), 0, 10),)
    assert described.sessions == ()
    every = list_transactions(engine, unfinished_only=False)
    assert [(it.transactional_id, it.state, it.age_ms is None) for it in every] == [
        ("idle", "empty", True),
        ("stage", "ongoing", False),
    ]
    assert every[0].waits_for == "its producer, to begin"


def test_a_late_transaction_is_reported_as_late(
    engine: Engine, coordinator: TransactionCoordinator, owner: ProducerIdentity
) -> None:
    set_back(Database(engine), started_ms=DAY_MS)
    found = the_one(engine)
    assert found.is_late
    assert found.age_ms is not None
    assert found.age_ms >= DAY_MS
    assert found.waits_for.startswith("recover() or reap(): ")
    with pytest.raises(fp.ConcurrentTransactionError):
        coordinator.reap()
    found = the_one(engine)
    assert (found.state, found.is_late) == ("prepare_abort", False), "its markers have a time-out of their own"
    assert found.waits_for.startswith("abort markers for sales. Call recover() ")
    set_back(Database(engine), updated_ms=DAY_MS)
    assert the_one(engine).is_late
    assert list_transactions(engine, unfinished_only=False)[0].owner.pid == owner.pid


def test_terminate_aborts_as_a_time_out_does(engine: Engine) -> None:
    markers: list[Any] = []
    coordinator = TransactionCoordinator(
        engine, routes={"clicks": Route(lambda *marker: markers.append(marker)), "sales": None}
    )
    owner = coordinator.init_producer("stage")
    coordinator.add_partitions(owner, [("sales", 1), ("clicks", 0)])
    assert coordinator.terminate("stage") == ()
    assert coordinator.decision(owner.pid, owner.epoch) == "abort"
    assert [marker[:4] for marker in markers] == [(owner.pid, owner.epoch + 1, 0, "abort")]
    assert list_transactions(engine) == []
    with pytest.raises(fp.TransactionStateError, match="has another outcome"):
        coordinator.commit(owner)
    coordinator.begin(coordinator.abort(owner))


def test_terminate_without_routes_leaves_the_markers(
    engine: Engine, coordinator: TransactionCoordinator, owner: ProducerIdentity
) -> None:
    assert TransactionCoordinator(engine).terminate("stage") == ("sales",)
    assert coordinator.decision(owner.pid, owner.epoch) == "abort"
    with pytest.raises(
        fp.TransactionStateError, match=r"no transaction is open \(PREPARE_ABORT\): its outcome is deci"
    ):
        coordinator.terminate("stage")
    routed = TransactionCoordinator(engine, routes={"sales": Route(lambda *_: None)})
    assert routed.recover() == Recovered(completed=1, aborted=0)
    with pytest.raises(fp.TransactionStateError, match=r"no transaction is open \(COMPLETE_ABORT\)$"):
        coordinator.terminate("stage")
    with pytest.raises(fp.MappingError, match="transactional id 'nobody' is not known"):
        coordinator.terminate("nobody")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_session_that_holds_the_row_is_listed(
    engine: Engine, owner: ProducerIdentity, new_engine: NewEngine
) -> None:
    with new_engine().connect() as holder:
        [backend_pid] = holder.exec_driver_sql("SELECT pg_backend_pid()").one()
        holder.execute(select(tables.PRODUCERS).with_for_update())
        [session] = describe_transaction(engine, "stage").sessions
        assert (session.backend_pid, session.state) == (backend_pid, "idle in transaction")
        assert session.state_ms >= 0
    assert describe_transaction(engine, "stage").sessions == ()


def test_metrics(
    engine: Engine, owner: ProducerIdentity, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    TransactionCoordinator(engine).init_producer("idle")
    found = transaction_metrics(engine)
    states = {state: count for state, count in found["transactional_ids"].items() if count}
    assert (states, found["late"]) == ({"empty": 1, "ongoing": 1}, 0)
    assert found["pids"] >= 2
    assert 0 <= found["oldest_age_ms"] < DAY_MS
    set_back(Database(engine), started_ms=DAY_MS)
    assert transaction_metrics(engine)["late"] == 1
    code, out, err = run(capsys, database_url, "metrics")
    lines = out.splitlines()
    assert (code, err, lines[-1]) == (0, "", "# EOF")
    assert 'fencepost_transactional_ids{state="ongoing"} 1.0' in lines
    assert "fencepost_transactions_late 1.0" in lines
    [late] = [line for line in lines if line.startswith("fencepost_transaction_late_age_seconds{")]
    assert late.startswith('fencepost_transaction_late_age_seconds{transactional_id="stage"} 8')
    TransactionCoordinator(engine).terminate("stage")
    found = transaction_metrics(engine)
    assert (found["transactional_ids"]["prepare_abort"], found["late"]) == (1, 0)
    set_back(Database(engine), updated_ms=DAY_MS)
    assert transaction_metrics(engine)["late"] == 1


def test_an_outage_does_not_stop_a_scrape(
    coordinator: TransactionCoordinator, owner: ProducerIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "fencepost_transactions_late 0.0" in to_text(coordinator).splitlines()

    def refuse(*_: object) -> None:
        raise fp.StoreError("no answer")

    monkeypatch.setattr(Database, "transaction", refuse)
    assert to_text(coordinator) == "# EOF\n"


def test_looking_makes_no_tables(engine: Engine) -> None:
    for look in (list_transactions, lambda it: describe_transaction(it, "stage")):
        with pytest.raises(fp.SchemaError, match="no tables of producers"):
            look(engine)
    assert inspect(engine).get_table_names() == []


def run(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["transactions", *arguments, "--database", url])
    return code, *capsys.readouterr()


def test_the_command_line(
    engine: Engine, owner: ProducerIdentity, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, database_url, "list")
    assert (code, err) == (0, "")
    header, line = out.splitlines()
    assert header.split()[:4] == ["id", "state", "pid", "epoch"]
    assert line.split()[:4] == ["stage", "ongoing", str(owner.pid), str(owner.epoch)]
    assert "clicks-0, sales-1" in line
    code, out, _ = run(capsys, database_url, "describe", "stage")
    assert code == 0
    assert "waits_for: its producer, to" in out
    assert "state: ongoing\n" in out
    set_back(Database(engine), started_ms=DAY_MS)
    code, out, _ = run(capsys, database_url, "describe", "stage", "--json")
    report = json.loads(out)
    assert (code, report["is_late"], report["owner"]["pid"]) == (3, True, owner.pid)
    assert report["positions"] == [{"group": "group", "partition": ["input", 3], "expected": 0, "position": 10}]
    code, out, _ = run(capsys, database_url, "list", "--json")
    assert (code, [it["transactional_id"] for it in json.loads(out)]) == (3, ["stage"])
    code, out, _ = run(capsys, database_url, "abort", "stage")
    assert code == 0
    assert re.fullmatch(r"stage: aborted\. .* for sales, .* recover\(\) .*\n", out)
    code, out, err = run(capsys, database_url, "abort", "stage")
    assert (code, out) == (1, "")
    assert err.startswith("fencepost: [FP405] transactional id 'stage': no transaction is open (PREPARE_ABORT)")
    code, out, err = run(capsys, database_url, "describe", "nobody")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"fencepost: \[FP407\] transactional id 'nobody' is not known.*\n", err)


def test_a_missing_file_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nowhere.db"
    for command in (["list"], ["abort", "stage"]):
        code, out, err = run(capsys, f"sqlite:///{path}", *command)
        assert (code, out) == (1, "")
        assert re.fullmatch(rf"fencepost: \[FP303\] {path}: .*does not exist.*\n", err)
    assert not path.exists()
    code, _, err = run(capsys, "secret", "list")
    assert code == 2
    assert "secret" not in err
