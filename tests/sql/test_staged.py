"""A table of a database as the sink of a job: versions wholly or not, whatever dies, each row once."""

from __future__ import annotations

import re
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pymysql
import pytest
from fencepost.lake import DedupJob, LocalEngine
from fencepost.sql import SqlSink, StagedTable
from fencepost.state.operations import abandon, collect_garbage
from sqlalchemy import Connection, Engine, create_engine, inspect, make_url, text
from sqlalchemy.engine.default import DefaultDialect
from support.databases import execute, without_mariadb
from support.lake import SCHEMA, Crash, dead_before, first_of_each, land, make_rows
from support.mariadb import MariaDBServer
from support.postgres import PostgresServer
from support.secret_runs import SECRETS, contents_of, files_with, start_killed
from support.threads import in_threads

CREATE = "CREATE TABLE events (pid BIGINT, epoch SMALLINT, partition INTEGER, seq INTEGER, origin VARCHAR(20))"


@pytest.fixture
def events(engine: Engine) -> Engine:
    execute(engine, CREATE)
    return engine


def land_some(root: Path, *seeds: int) -> None:
    for seed in seeds:
        land(root / "source", f"{seed}.parquet", make_rows(seed))


def expected(*seeds: int) -> list[tuple[Any, ...]]:
    rows = pl.DataFrame(pa.concat_tables([make_rows(seed) for seed in seeds]))
    return sorted(first_of_each(rows).rows(), key=str)


def stored(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT pid, epoch, partition, seq, origin FROM events"))
        return sorted((tuple(row) for row in found), key=str)


def version(engine: Engine) -> tuple[int, str]:
    with engine.connect() as connection:
        row = connection.execute(text("SELECT version, status FROM fencepost_versions")).one()
        return row.version, row.status


def tables_of_tasks(engine: Engine) -> list[str]:
    return [name for name in inspect(engine).get_table_names() if name.startswith("fencepost_stage")]


@pytest.fixture
def make(database_url: str, tmp_path: Path) -> Callable[..., DedupJob]:
    def make_job(**options: Any) -> DedupJob:
        sink = StagedTable(database_url, "events", tmp_path / "sink", sync=False)
        engine = options.pop("engine", LocalEngine(2))
        return DedupJob(tmp_path / "source", tmp_path / "state", sink, shards=2, sync=False, engine=engine, **options)

    return make_job


def test_versions_are_transactions(events: Engine, make: Callable[..., DedupJob], tmp_path: Path) -> None:
    land_some(tmp_path, 0, 1, 2)
    report = make().run()
    assert (report.version, report.kept) == (1, len(expected(0, 1, 2)))
    assert stored(events) == expected(0, 1, 2)
    assert version(events) == (1, "applied")
    land_some(tmp_path, 3)
    assert make().run().version == 2
    assert make().run().version is None, "nothing is new"
    assert stored(events) == expected(0, 1, 2, 3)
    land(tmp_path / "source", "again.parquet", make_rows(1).filter(pa.compute.greater(make_rows(1)["pid"], -1)))
    assert make().run().kept == 0
    assert version(events) == (3, "applied")
    assert stored(events) == expected(0, 1, 2, 3)
    assert tables_of_tasks(events) == []
    names = {path.name for path in (tmp_path / "sink").iterdir()}
    assert names == {"_fencepost.json", "_prepare", "run=1", "run=2", "run=3"}
    assert not list((tmp_path / "sink").glob("run=*/part-*.parquet")), "the rows are in the table"


def test_tasks_fill_tables_of_their_own(
    events: Engine, make: Callable[..., DedupJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losing attempts, before and after the winner, leave tables whose rows are not inserted."""
    monkeypatch.setattr("fencepost.lake.plan.TASK_BYTES", 1)
    monkeypatch.setattr("fencepost.lake.plan.FILE_BYTES", 0)

    class Speculative(LocalEngine):
        def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
            if stage != "stage":
                return super().run(stage, work, items, progress)
            assert len(items) >= 2
            super().run(stage, work, items)
            done = super().run(stage, work, items, progress)
            assert len(tables_of_tasks(events)) >= 2 * len(items)
            return done

    land_some(tmp_path, 0, 1, 2)
    make(engine=Speculative(2)).run()
    assert stored(events) == expected(0, 1, 2)
    assert tables_of_tasks(events) == []


@contextmanager
def crash_at_commit(monkeypatch: pytest.MonkeyPatch, number: int, after: bool) -> Iterator[list[int]]:
    """The process dies at this commit, of any connection: before the database has it, or after."""
    commits = [0]
    real = DefaultDialect.do_commit
    lock = threading.Lock()

    def dying(dialect: Any, connection: Any) -> None:
        with lock:
            commits[0] += 1
            at = commits[0]
        if at > number or (at == number and not after):
            raise Crash
        real(dialect, connection)
        if at == number:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(DefaultDialect, "do_commit", dying)
        yield commits


def test_a_crash_at_every_commit(
    events: Engine, make: Callable[..., DedupJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process finds each version completely or not at all; a file that was added meanwhile is not skipped."""
    land_some(tmp_path, 0)
    make(engine=LocalEngine(1)).run()
    seeds, crashes = [0], 0
    for after in (False, True):
        for number in range(1, 40):
            seeds.append(len(seeds))
            land_some(tmp_path, seeds[-1])
            with crash_at_commit(monkeypatch, number, after) as commits:
                try:
                    make(engine=LocalEngine(1)).run()
                    is_over = True
                except Crash:
                    is_over = False
            if is_over:
                assert number > commits[0]
                break
            crashes += 1
            seeds.append(len(seeds))
            land_some(tmp_path, seeds[-1])
            make().run()
            assert stored(events) == expected(*seeds), (number, after)
        else:
            raise AssertionError("there are not so many commits in a run")
        make().run()
        assert stored(events) == expected(*seeds)
    assert crashes >= (4 if events.dialect.name == "mariadb" else 6), "MariaDB's CREATE TABLE is no commit of ours"
    assert version(events)[1] == "applied"
    collect_garbage(make().state, sink=make().sink)
    assert tables_of_tasks(events) == []


def test_the_version_shows_the_outcome_of_a_lost_commit(
    events: Engine, make: Callable[..., DedupJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_some(tmp_path, 0)
    real, commit = StagedTable._move, DefaultDialect.do_commit
    moved: list[str] = []
    lost: list[str] = []
    closed = sqlite3.ProgrammingError("Cannot operate on a closed database.")

    def move(sink: StagedTable, connection: Connection, *arguments: Any) -> str:
        moved.append(real(sink, connection, *arguments))
        return moved[-1]

    def lose(dialect: Any, connection: Any) -> None:
        if moved and len(lost) < 2:
            lost.append(moved.pop())
            if len(lost) == 2:
                commit(dialect, connection)
            connection.driver_connection.close()
        try:
            commit(dialect, connection)
        except (sqlite3.ProgrammingError, psycopg.OperationalError, pymysql.Error) as error:
            raise (closed if events.dialect.name == "sqlite" else error) from None

    monkeypatch.setattr(StagedTable, "_move", move)
    monkeypatch.setattr(DefaultDialect, "do_commit", lose)
    make().run()
    assert lost == ["applied", "applied"]
    assert stored(events) == expected(0)
    assert version(events) == (1, "applied")


@pytest.mark.parametrize("loss", ["DELETE FROM {}", "DROP TABLE {}"])
def test_tables_that_a_crash_of_the_server_took(
    events: Engine, make: Callable[..., DedupJob], tmp_path: Path, loss: str
) -> None:
    """Tables of tasks are not logged; the files are there until the version is done."""
    land_some(tmp_path, 0, 1)
    with dead_before(StagedTable, "_move"):
        make().run()
    [name] = tables_of_tasks(events)
    execute(events, loss.format(name))
    land_some(tmp_path, 2)
    report = make().run()
    assert (report.recovered, report.version) == ((1,), 2)
    assert stored(events) == expected(0, 1, 2)
    assert tables_of_tasks(events) == []


def test_a_driver_that_comes_late_changes_nothing(
    events: Engine, make: Callable[..., DedupJob], tmp_path: Path
) -> None:
    """A paused process continues after others have written two more versions."""
    decisions = []
    for seed in range(3):
        land_some(tmp_path, seed)
        late = make()
        late.run()
        decisions.append(late.state.version(seed + 1))
    for decision in decisions:
        assert late.sink.apply(decision) == "applied"
        assert late.sink._commit(decisions[-1], "applied") == "applied"
    assert late.sink._commit(decisions[0], "applied") == "applied", "it stood still after it had looked"
    assert late.sink._commit(decisions[0], "abandoned") == "applied"
    shutil.rmtree(tmp_path / "sink" / "run=1")
    with pytest.raises(fp.SinkChangedError, match=r"version 1 can only follow 0, .* is 3:"):
        late.sink._commit(decisions[0], "applied")
    assert stored(events) == expected(0, 1, 2)
    assert version(events) == (3, "applied")


def test_a_version_of_another_copy_of_the_state_is_not_taken_for_its_own(
    events: Engine, make: Callable[..., DedupJob], tmp_path: Path
) -> None:
    land_some(tmp_path, 0)
    job = make()
    job.run()
    decision = job.state.version(1)
    assert job.sink._commit(decision, "applied") == "applied"
    for call in (lambda it: job.sink._commit(it, "applied"), job.sink.apply, job.sink.fence):
        with pytest.raises(fp.SinkError, match="another copy of"):
            call(replace(decision, attempt="other"))
    assert stored(events) == expected(0)


def test_many_drivers_at_once(events: Engine, make: Callable[..., DedupJob], tmp_path: Path) -> None:
    land_some(tmp_path, 0, 1)

    def run() -> str:
        try:
            make(engine=LocalEngine(1)).run()
        except fp.FencepostError as error:
            return type(error).__name__
        return "run"

    outcomes = Counter(in_threads([run] * 4))
    assert outcomes["run"] >= 1, outcomes
    assert outcomes.keys() <= {"run", "StateConflictError", "SinkError"}, outcomes
    make().run()
    assert stored(events) == expected(0, 1)


def test_rows_that_the_table_does_not_take(
    database_url: str, engine: Engine, make: Callable[..., DedupJob], tmp_path: Path
) -> None:
    execute(engine, CREATE.replace("20", "4"))
    land_some(tmp_path, 0)
    with pytest.raises(fp.SinkError, match=r"rows from 0: column 'origin', row \d+: '0:\d+': the column takes 4"):
        make().run()
    assert make().state.decided() == 0, "before anything was decided"
    land(tmp_path / "source", "0.parquet", make_rows(0).rename_columns([*SCHEMA.names[:4], "who"]))
    with pytest.raises(fp.SinkError, match="events: has no column 'who'"):
        make().run()
    with pytest.raises(fp.SinkError, match="nowhere: does not exist"):
        StagedTable(database_url, "nowhere", tmp_path / "other")


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_rows_that_a_constraint_refuses(engine: Engine, make: Callable[..., DedupJob], tmp_path: Path) -> None:
    """SQLite checks it after the decision."""
    execute(engine, f"{CREATE[:-1]}, CHECK (seq < 0))")
    land_some(tmp_path, 0)
    with pytest.raises(fp.SinkError, match=r"\S+, rows from 0: .*refuses it"):
        make().run()
    assert make().state.decided() == 0


def test_a_version_that_the_table_refuses_for_good(
    events: Engine, make: Callable[..., DedupJob], tmp_path: Path
) -> None:
    """The version is decided: repair the table, or abandon the version; its input is new again then."""
    land_some(tmp_path, 0)
    make().run()
    execute(events, "CREATE UNIQUE INDEX ON_ORIGIN ON events (origin)", "INSERT INTO events (origin) VALUES ('1:7')")
    land_some(tmp_path, 1)
    job = make()
    with pytest.raises(fp.SinkError, match=r"(?s)refuses rows of .* run again, or"):
        job.run()
    assert version(events) == (1, "applied")
    abandon(job.state, 2, sink=job.sink)
    assert version(events) == (2, "abandoned")
    execute(events, "DELETE FROM events WHERE origin = '1:7'")
    assert make().run().version == 3
    assert stored(events) == expected(0, 1)


def test_a_table_is_the_sink_of_one_state(
    database_url: str, events: Engine, make: Callable[..., DedupJob], tmp_path: Path
) -> None:
    land_some(tmp_path, 0)
    job = make()
    job.run()
    other = StagedTable(database_url, "events", tmp_path / "other-sink")
    with pytest.raises(fp.SinkError, match="belongs to another state"):
        DedupJob(tmp_path / "source", tmp_path / "other-state", other).run()
    land_some(tmp_path, 1)
    first = job.state.version(1)
    assert not other.is_reverted(first)
    execute(events, "UPDATE fencepost_versions SET version = 0")
    assert other.is_reverted(first)
    with pytest.raises(fp.SinkChangedError, match="its newest version is 0, but versions up to 1 were written"):
        make().run()
    execute(events, "DELETE FROM fencepost_versions")
    with pytest.raises(fp.SinkChangedError, match="row in fencepost_versions is gone"):
        make().run()
    assert stored(events) == expected(0)
    assert re.fullmatch(r"<StagedTable events of .*>", repr(other))


def test_a_table_is_the_sink_of_one_state_under_all_its_names(
    database_url: str, events: Engine, make: Callable[..., DedupJob], tmp_path: Path
) -> None:
    """Two jobs would both write the same events."""
    land_some(tmp_path, 0)
    make().run()
    names = [f"{inspect(events).default_schema_name}.events"]
    names += ["Events"] if events.dialect.name == "sqlite" else []
    for number, name in enumerate(names):
        other = StagedTable(database_url, name, tmp_path / f"other-sink-{number}")
        with pytest.raises(fp.SinkError, match=r"another state already, .*'events'"):
            DedupJob(tmp_path / "source", tmp_path / f"other-state-{number}", other).run()
    assert stored(events) == expected(0)


def test_a_table_is_the_sink_of_one_state_where_case_does_not_count(tmp_path: Path) -> None:
    with MariaDBServer(options=["--lower-case-table-names=1"]) as server:
        url = server.new_database()
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE events (pid BIGINT)")
        engine.dispose()
        StagedTable(url, "events", tmp_path / "one").claim("first")
        with pytest.raises(fp.SinkError, match=r"belongs to another state .* table 'events'"):
            StagedTable(url, "EVENTS", tmp_path / "other").claim("second")


def test_folders_with_values_are_refused(events: Engine, make: Callable[..., DedupJob], tmp_path: Path) -> None:
    land(tmp_path / "source" / "day=1", "0.parquet", make_rows(0))
    with pytest.raises(fp.SinkError, match=r"only folder names contain \(day=1/\)"):
        make().run()


def test_a_table_with_columns_of_its_own(engine: Engine, database_url: str, tmp_path: Path) -> None:
    execute(engine, "CREATE TABLE thin (number INTEGER DEFAULT 7, seq BIGINT, origin TEXT)")
    land_some(tmp_path, 0, 1)
    sink = StagedTable(database_url, "thin", tmp_path / "sink", insert=["seq", "origin"], sync=False)
    DedupJob(tmp_path / "source", tmp_path / "state", sink, sync=False).run()
    with engine.connect() as connection:
        found = sorted(tuple(row) for row in connection.execute(text("SELECT number, seq, origin FROM thin")))
    assert found == sorted((7, row[3], row[4]) for row in expected(0, 1))


def test_a_table_with_odd_names(engine: Engine, database_url: str, tmp_path: Path) -> None:
    """Characters that SQLAlchemy and drivers treat as parameters."""
    with engine.begin() as connection:
        quote = connection.dialect.identifier_preparer.initial_quote
        create = r'CREATE TABLE "of 50% \:all" (pid BIGINT, seq INTEGER, "%s \:origin" VARCHAR(20))'
        connection.execute(text(create.replace('"', quote)))
    rows = (
        make_rows(0)
        .select(["pid", "epoch", "partition", "seq", "origin"])
        .rename_columns(["pid", "epoch", "partition", "seq", "%s :origin"])
    )
    land(tmp_path / "source", "0.parquet", rows)
    names = ["pid", "seq", "%s :origin"]
    sink = StagedTable(database_url, "of 50% :all", tmp_path / "sink", insert=names, sync=False)
    report = DedupJob(tmp_path / "source", tmp_path / "state", sink, sync=False).run()
    with engine.connect() as connection:
        assert (
            len(connection.execute(text(r'SELECT * FROM "of 50% \:all"'.replace('"', quote))).all()) == report.kept > 0
        )


def test_an_sql_sink_provides_a_staged_table(events: Engine, tmp_path: Path) -> None:
    land_some(tmp_path, 0, 1)
    sink = SqlSink(events, "events", "nightly", insert=["pid", "epoch", "partition", "seq", "origin"])
    for _ in range(2):
        job = DedupJob(tmp_path / "source", tmp_path / "state", sink, shards=2, sync=False, engine=LocalEngine(2))
        job.run()
    assert stored(events) == expected(0, 1)
    assert version(events) == (1, "applied")
    assert (tmp_path / "state.sink").is_dir()
    with pytest.raises(fp.PolicyError, match="it has no table"):
        DedupJob(tmp_path / "source", tmp_path / "other", SqlSink(events, None, "effects"))
    by_id = SqlSink(events, "events", "ids", "message_id", message_id="origin")
    with pytest.raises(fp.PolicyError, match="not by message id"):
        DedupJob(tmp_path / "source", tmp_path / "other", by_id)
    with pytest.raises(fp.PolicyError, match="local folder"):
        sink.for_job("s3://bucket/state")


@without_mariadb
def test_an_engine_that_its_url_does_not_lead_to(events: Engine, database_url: str, tmp_path: Path) -> None:
    """Workers have the URL alone: what it leads to must be the table that the sink was made for."""
    if events.dialect.name == "sqlite":
        elsewhere = create_engine("sqlite:///", creator=lambda: sqlite3.connect(events.url.database or ""))
        match = "events: does not exist"
    else:
        execute(events, "CREATE SCHEMA IF NOT EXISTS elsewhere", CREATE.replace("events", "elsewhere.events"))
        elsewhere = create_engine(database_url, connect_args={"options": "-csearch_path=elsewhere"})
        match = "the engine's URL .* events is another table"
    sink = SqlSink(elsewhere, "events", "nightly")
    with pytest.raises(fp.FencepostError, match=match):
        DedupJob(tmp_path / "source", tmp_path / "state", sink)
    elsewhere.dispose()
    assert DedupJob(tmp_path / "source", tmp_path / "state", SqlSink(events, "events", "nightly")) is not None


def test_the_password_of_the_database_is_in_nothing_that_a_killed_run_leaves(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """A server that trusts every client does not check the password."""
    url = make_url(postgres.new_database()).set(password=SECRETS[1])
    engine = create_engine(url)
    execute(engine, CREATE)
    land_some(tmp_path, 0, 1)
    settings = {
        "engine": "processes",
        "source": str(tmp_path / "source"),
        "state": str(tmp_path / "state"),
        "sink": str(tmp_path / "sink"),
        "table": "events",
        "url": url.render_as_string(hide_password=False),
    }
    for step in ("stage", "decide", "recover"):
        start_killed({**settings, "step": step})
        left = dict(contents_of(tmp_path))
        if step == "stage":
            assert any(Path(name).name.startswith("stage-") for name in left), "tasks had no plan"
        assert files_with(SECRETS, left.items()) == []
    assert stored(engine) == expected(0, 1)
    engine.dispose()
