"""`fencepost serve`: one of several at work, another after its death; outages, signals, stuck transactions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fencepost as fp
import kubernetes_validate
import pyarrow as pa
import pytest
import sqlalchemy
import yaml
from fencepost.daemon import Daemon, Settings, daemon_metrics
from fencepost.daemon.daemon_metrics import DaemonMetrics
from fencepost.daemon.http import Server
from fencepost.daemon.tasks import Maintenance
from fencepost.metrics import to_text
from fencepost.sql import IdempotentRequests, Response, SqlSink, TransactionCoordinator
from fencepost.sql import transaction_tables as tables
from fencepost.sql.database import Database
from fencepost.sql.leases import TASKS, Leases
from fencepost.transports import LandingTransport, read_landing
from sqlalchemy import Engine, select
from support.databases import execute
from support.postgres import PostgresServer
from support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "serve"
DAY_MS = 86_400_000
QUICK = """
lease = "1s"
[recover]
every = "200ms"
[recover.routes]
clicks = "decisions"
[requests]
every = "200ms"
"""


class Process:
    """A daemon in a process of its own, with its log in a file."""

    def __init__(self, folder: Path, url: str, settings: str = QUICK) -> None:
        config = folder / "fencepost.toml"
        config.write_text(settings)
        self.log = folder / f"log-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "fencepost", "serve", "--config", config, "--listen", "127.0.0.1:0"]
        with self.log.open("w") as log:
            environment = os.environ | {"FENCEPOST_DATABASE": url}
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.pid = self._process.pid
        wait_until(self._has_port, "it does not listen")

    def _has_port(self) -> bool:
        assert self._process.poll() is None, self.said()
        found = re.search(r"listening on port (\d+)", self.said())
        self.port = int(found[1]) if found else 0
        return found is not None

    def said(self) -> str:
        return self.log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def samples(self, name: str) -> list[float]:
        """The values of samples that begin so."""
        return [float(it.split()[-1]) for it in self.get("/metrics")[1].splitlines() if it.startswith(name)]

    def end(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self._process.wait(60)

    def kill(self) -> None:
        if self._process.poll() is None:
            self.end(signal.SIGKILL)


NewDaemon = Callable[..., Process]


@pytest.fixture
def new_daemon(tmp_path: Path, database_url: str) -> Iterator[NewDaemon]:
    started: list[Process] = []

    def start(settings: str = QUICK, url: str = database_url) -> Process:
        started.append(Process(tmp_path, url, settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def state_of(engine: Engine, name: str) -> int:
    query = select(tables.PRODUCERS.c.state).where(tables.PRODUCERS.c.transactional_id == name)
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def begin_late(coordinator: TransactionCoordinator, *names: str) -> None:
    """Transactions that were open for a millisecond, which is longer than they may be."""
    for name in names:
        identity = coordinator.init_producer(name, timeout_ms=1)
        coordinator.add_partitions(identity, [("clicks", 0)])


@pytest.fixture
def coordinator(engine: Engine) -> TransactionCoordinator:
    return TransactionCoordinator(engine, routes={"clicks": None})


ABORTED = int(tables.State.COMPLETE_ABORT)


# Tasks


def test_tasks_of_the_daemon_do_their_work(engine: Engine, coordinator: TransactionCoordinator) -> None:
    begin_late(coordinator, "late")
    requests = IdempotentRequests(engine, keep_ms=1, lease_ms=1)
    claim = requests.claim("me", "key", b"body")
    claim.complete(lambda _: Response(200))
    sinks = [SqlSink(engine, None, "old"), SqlSink(engine, None, "kept")]
    for sink in sinks:
        event = {"pid": [1], "epoch": [0], "partition": [0], "seq": [0]}
        sink.handle(pa.table(event), lambda *_: None)
    time.sleep(0.05)
    settings = Settings("", claims_keep_ms={"old": 10, "nobody": 10}, decisions_keep_ms=10, ids_after_ms=10)
    work = Maintenance(engine, settings)
    assert [it.name for it in work.tasks()] == ["recover", "expire", "requests", "decisions", "claims"]
    assert work.recover() == "0 completed, 1 aborted, 0 left to other routes"
    assert state_of(engine, "late") == ABORTED
    assert work.delete_requests() == "1 requests deleted"
    with pytest.raises(fp.PolicyError, match="consumer 'nobody' does not exist"):
        work.reap_claims()
    assert [it.metrics()["claims"] for it in sinks] == [0, 1], "one that fails keeps no other from being done"
    time.sleep(0.05)
    assert work.forget_decisions() == "1 decisions forgotten"
    assert work.expire() == "1 transactional ids expired"


def test_a_row_that_is_held_holds_up_no_other(
    engine: Engine, coordinator: TransactionCoordinator, new_engine: Callable[[], Engine], database_url: str
) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite locks no rows")
    begin_late(coordinator, "a", "b")
    time.sleep(0.01)
    with new_engine().connect() as holder:
        held = select(tables.PRODUCERS).where(tables.PRODUCERS.c.transactional_id == "a").with_for_update()
        holder.execute(held)
        with pytest.raises(fp.ConcurrentTransactionError, match="'a': another session holds"):
            Maintenance(engine, Settings("")).recover()
        assert state_of(engine, "b") == ABORTED


def test_a_route_that_cannot_be_opened_gets_no_markers_and_holds_up_no_other(engine: Engine, tmp_path: Path) -> None:
    """A marker in a new folder would reach nobody, and the rows in the right one would count with the next commit."""
    visits, right = tmp_path / "visits", tmp_path / "right"
    transports = {"visits": LandingTransport(visits), "clicks": LandingTransport(right)}
    coordinator = TransactionCoordinator(engine, routes=transports)
    for topic, transport in transports.items():
        producer = fp.SequencedProducer(
            transport, name=topic, coordinator=coordinator, topic=topic, transaction_timeout_ms=1
        )
        producer.begin()
        producer.send([{"n": 1}])
        producer.flush()
    time.sleep(0.01)
    wrong = tmp_path / "vists"
    routes = {"visits": {"landing": str(wrong)}, "clicks": {"landing": str(right)}, "lost": {"table": "missing"}}
    with pytest.raises(fp.ConcurrentTransactionError, match=r"vists: .*landing folder.*relative path"):
        Maintenance(engine, Settings("", routes=routes)).recover()
    assert not wrong.exists()
    wrong.write_text("a file")
    with pytest.raises(fp.ConcurrentTransactionError, match=r"vists: .*landing folder.*relative path"):
        Maintenance(engine, Settings("", routes=routes)).recover()
    assert len(read_landing(visits).open) == 1
    assert state_of(engine, "visits") == tables.State.PREPARE_ABORT
    assert state_of(engine, "clicks") == ABORTED
    assert read_landing(right).open == []
    work = Maintenance(engine, Settings("", routes={"visits": {"landing": str(visits)}}))
    assert work.recover() == "1 completed, 0 aborted, 0 left to other routes"
    assert read_landing(visits).open == []


# Leases


def test_a_task_is_taken_once_and_again_when_it_is_due(engine: Engine) -> None:
    database = Database(engine)
    one, other = Leases(database, 60_000), Leases(database, 60_000)
    owner = one.take("recover", 60_000)
    assert owner is not None
    assert other.take("recover", 60_000) is None
    assert one.take("expire", 60_000) is not None, "each task by itself"
    assert one.finish("recover", owner, due_in_ms=0, is_failed=True)
    assert not one.finish("recover", owner, due_in_ms=0, is_failed=False), "it is given back already"
    owner = other.take("recover", 60_000)
    assert owner is not None
    assert other.finish("recover", owner, due_in_ms=60_000, is_failed=True)
    assert one.take("recover", 60_000) is None, "it is not due"
    [_, state] = one.states()
    assert (state.task, state.is_running, state.succeeded_ms_ago, state.failures) == ("recover", False, None, 2)


def test_a_clock_that_is_set_back_stops_no_task(engine: Engine) -> None:
    """A task that ended, or a daemon that died, while the clock was a year ahead."""
    leases, year_ms = Leases(Database(engine), 60_000), 365 * DAY_MS
    for task, columns in (("ended", ("due_ms", "finished_ms", "succeeded_ms")), ("died", ("leased_until_ms",))):
        owner = leases.take(task, 60_000)
        assert owner is not None
        if task == "ended":
            leases.finish(task, owner, due_in_ms=60_000, is_failed=False)
        assert leases.take(task, 60_000) is None
        ahead = {name: TASKS.c[name] + year_ms for name in columns}
        with engine.begin() as connection:
            connection.execute(TASKS.update().where(TASKS.c.task == task).values(ahead))
        assert leases.take(task, 60_000) is not None


def test_a_shorter_interval_applies_at_once(engine: Engine) -> None:
    """After a change of the settings, the task was due at the time that the old ones had set."""
    leases = Leases(Database(engine), 60_000)
    owner = leases.take("claims", 7 * DAY_MS)
    assert owner is not None
    leases.finish("claims", owner, due_in_ms=7 * DAY_MS, is_failed=False)
    assert leases.take("claims", 7 * DAY_MS) is None
    assert leases.take("claims", DAY_MS) is not None


def test_a_lease_that_ended_is_taken_over_and_one_that_is_kept_is_not(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Leases(Database(engine), 60_000), Leases(Database(engine), 60_000)

    def ends_ms() -> int:
        with engine.connect() as connection:
            found = connection.execute(select(TASKS.c.leased_until_ms).where(TASKS.c.task == "recover"))
            return int(found.scalar_one())

    monkeypatch.setattr("fencepost.sql.leases.RENEWED", 600)
    owner = one.take("recover", 60_000)
    assert owner is not None
    first_ms = ends_ms()
    with one.kept("recover", owner):
        wait_until(lambda: ends_ms() > first_ms, "it is not renewed")
        assert other.take("recover", 60_000) is None
    brief = Leases(Database(engine), 300)
    owner = brief.take("claims", 60_000)
    assert owner is not None
    wait_until(lambda: other.take("claims", 60_000), "nobody took it over")
    assert not brief.finish("claims", owner, due_in_ms=0, is_failed=False)


# Processes


def owner_of(engine: Engine, task: str) -> int | None:
    """The process that runs a task now."""
    if not sqlalchemy.inspect(engine).has_table(TASKS.name):
        return None
    with engine.connect() as connection:
        found = connection.execute(select(TASKS.c.owner).where(TASKS.c.task == task)).scalar()
    return int(found.split("/")[1]) if found else None


def at_work(engine: Engine, daemons: list[Process]) -> Process:
    """The daemon that runs the recovery. Between two recoveries there is none, so it waits."""
    found: list[Process] = []

    def is_found() -> bool:
        owner = owner_of(engine, "recover")
        found[:] = [it for it in daemons if it.pid == owner]
        return bool(found)

    wait_until(is_found, "nobody is at work")
    return found[0]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_of_three_one_is_at_work_and_another_after_its_death(
    engine: Engine, coordinator: TransactionCoordinator, new_daemon: NewDaemon, new_engine: Callable[[], Engine]
) -> None:
    daemons = [new_daemon() for _ in range(3)]
    begin_late(coordinator, "before")
    wait_until(lambda: state_of(engine, "before") == ABORTED, "nobody aborts it")
    with new_engine().connect() as holder:
        begin_late(coordinator, *(f"held-{number}" for number in range(20)))
        holder.execute(select(tables.PRODUCERS).with_for_update())  # who recovers waits for each of them
        wait_until(lambda: owner_of(engine, "recover"), "nobody is at work")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with engine.connect() as asking:
            seen = {asking.exec_driver_sql(waiting).scalar_one() for _ in range(50) if not time.sleep(0.01)}
        assert max(seen) <= 1, "one of three"
        victim = at_work(engine, daemons)
        victim.end(signal.SIGKILL)
        wait_until(lambda: owner_of(engine, "recover") not in (None, victim.pid), "nobody takes over")
    wait_until(lambda: state_of(engine, "held-19") == ABORTED, "the others do not go on")
    assert {it.end() for it in daemons if it is not victim} == {0}


def test_it_stops_on_a_signal(coordinator: TransactionCoordinator, new_daemon: NewDaemon) -> None:
    daemon = new_daemon()
    wait_until(lambda: "recover: 0 completed" in daemon.said(), "it does not work")
    assert daemon.end() == 0
    assert daemon.said().rstrip().endswith("stopped")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_it_stops_while_it_waits_for_a_lock(
    engine: Engine, coordinator: TransactionCoordinator, new_daemon: NewDaemon, new_engine: Callable[[], Engine]
) -> None:
    begin_late(coordinator, *(f"held-{number}" for number in range(20)))
    with new_engine().connect() as holder:
        holder.execute(select(tables.PRODUCERS).with_for_update())
        daemon = new_daemon()
        wait_until(lambda: owner_of(engine, "recover"), "it does not work")
        assert daemon.end() == 0
        assert "broken off: fencepost-recover" in daemon.said()


def test_without_tables_there_is_nothing_to_do(new_daemon: NewDaemon, engine: Engine) -> None:
    execute(engine, "CREATE TABLE mine (x INTEGER)")
    daemon = new_daemon()
    wait_until(lambda: daemon.get("/readyz")[0] == 200, "it is not ready")
    names = set(sqlalchemy.inspect(engine).get_table_names())
    assert names <= {"mine", "fencepost_schema", "fencepost_tasks"}
    assert daemon.get("/nowhere")[0] == 404


def test_an_outage_is_survived(tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.new_database()
        engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
        coordinator = TransactionCoordinator(engine, routes={"clicks": None})
        daemon = Process(tmp_path, url)
        try:
            wait_until(lambda: daemon.get("/readyz")[0] == 200, "it is not ready")
            begin_late(coordinator, "late")
            server.halt()
            wait_until(lambda: daemon.get("/readyz")[0] == 503, "it is ready without a database")
            assert "Call again when the database is available" in json.loads(daemon.get("/readyz")[1])["problem"]
            assert daemon.get("/healthz")[0] == 200, "a new process would not help"
            assert "fencepost_database_up 0.0" in daemon.get("/metrics")[1].splitlines()
            server.start_again()
            wait_until(lambda: state_of(engine, "late") == ABORTED, "it does not go on")
            wait_until(lambda: daemon.get("/readyz")[0] == 200, "it is not ready again")
            assert daemon.end() == 0
        finally:
            daemon.kill()
            engine.dispose()


def test_a_connection_that_is_lost_at_a_commit_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.db").touch()
    daemon = Daemon(Settings(f"sqlite:///{tmp_path}/shop.db"))

    def lose(_: object) -> None:
        raise fp.OutcomeUnknownError("lost")

    assert "fencepost_database_up 1.0" in to_text(DaemonMetrics(daemon)).splitlines()
    monkeypatch.setattr(daemon.database, "transaction", lose)
    assert "fencepost_database_up 0.0" in to_text(DaemonMetrics(daemon)).splitlines()
    daemon.engine.dispose()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_addresses_of_both_versions(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        try:
            one.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
    address = Settings("", listen=f"[{host}]:0").address
    server = Server(address, SimpleNamespace(collect=list), lambda: None, lambda: None)
    with socket.create_connection((host, server.port)):
        pass
    server.close()


def test_a_stuck_transaction_is_named(engine: Engine, new_daemon: NewDaemon) -> None:
    elsewhere = TransactionCoordinator(engine, routes={"sales": FailingRoute()})
    identity = elsewhere.init_producer("stage 7", timeout_ms=1)
    elsewhere.add_partitions(identity, [("sales", 3)])
    daemon = new_daemon()
    wait_until(lambda: "stuck: transactional id 'stage 7'" in daemon.said(), "it is not named")
    assert f"of producer ({identity.pid}, 0) began a transaction " in daemon.said()
    assert "in state ongoing" in daemon.said()
    lines = daemon.get("/metrics")[1].splitlines()
    assert "fencepost_transactions_late 1.0" in lines
    assert any(it.startswith('fencepost_transaction_late_age_seconds{transactional_id="stage 7"}') for it in lines)


class FailingRoute:
    def write_marker(self, *_: Any) -> None:
        raise OSError("no answer")


def test_metrics_of_the_database(engine: Engine, coordinator: TransactionCoordinator, new_daemon: NewDaemon) -> None:
    sink = SqlSink(engine, None, "billing")
    event = {"pid": [1], "epoch": [0], "partition": [0], "seq": [0]}
    sink.handle(pa.table(event), lambda *_: None, positions={"orders-0": 7})
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE fencepost_stage_0_1 (a INTEGER)"))
        to_quote = sqlalchemy.Table("fencepost_a-b", sqlalchemy.MetaData(), sqlalchemy.Column("a", sqlalchemy.Integer))
        to_quote.create(connection)
    daemon = new_daemon()
    wait_until(lambda: "recover: " in daemon.said(), "it does not work")

    wait_until(lambda: daemon.samples('fencepost_task_last_success_age_seconds{task="recover"}'), "it has no success")
    found = daemon.get("/metrics")[1].splitlines()
    assert 'fencepost_sink_position{consumer="billing",source="orders-0"} 7.0' in found
    assert "fencepost_database_up 1.0" in found
    assert 'fencepost_transactional_ids{state="ongoing"} 0.0' in found
    assert 'fencepost_daemon_failed_runs_total{task="recover"} 0.0' in found
    assert 'fencepost_task_failures_in_a_row{task="recover"} 0.0' in found
    for name in ("fencepost_claims", "fencepost_a-b"):
        assert any(it.startswith(f'fencepost_table_rows{{table="{name}"}}') for it in found), name
    assert not any("fencepost_stage_" in it for it in found), "each attempt of a job has other names"
    assert any(it.startswith("process_resident_memory_bytes") for it in found)


def test_a_task_that_was_removed_from_the_settings_has_no_metrics(engine: Engine) -> None:
    """Its last success grew older without end."""
    SqlSink(engine, None, "billing")
    url = engine.url.render_as_string(hide_password=False)
    kept, other = (Daemon(Settings(url, claims_keep_ms=it)) for it in ({"billing": DAY_MS}, {}))
    for task in ("claims", "recover"):
        owner = kept.leases().take(task, 1)
        assert owner is not None
        kept.leases().finish(task, owner, due_in_ms=1, is_failed=False)
    age = 'fencepost_task_last_success_age_seconds{task="%s"}'
    found = [to_text(DaemonMetrics(it)) for it in (kept, other)]
    assert [age % "claims" in it for it in found] == [True, False]
    assert all(age % "recover" in it for it in found)
    for daemon in (kept, other):
        daemon.engine.dispose()


def test_sizes_that_a_database_does_not_know(engine: Engine) -> None:
    """PostgreSQL returns null for a table that is dropped meanwhile, MariaDB also for a view."""
    with engine.connect() as connection:
        found = daemon_metrics._estimated("SELECT 'fencepost_a', NULL, NULL", connection)
    assert found == {"fencepost_a": (None, None)}


def test_a_task_that_fails_is_counted_and_tried_again(
    engine: Engine, coordinator: TransactionCoordinator, new_daemon: NewDaemon
) -> None:
    SqlSink(engine, None, "billing")
    daemon = new_daemon('lease = "1s"\n[claims]\nevery = "100ms"\n[claims.keep]\nnobody = "1d"\n')
    failed = 'fencepost_task_failures_in_a_row{task="claims"}'
    wait_until(lambda: max(daemon.samples(failed), default=0) >= 2, "it is not tried again")
    assert "claims: [FP102] consumer 'nobody'" in daemon.said()


# Settings


def test_the_settings_of_the_example() -> None:
    found = Settings.read(EXAMPLES / "fencepost.toml", database="sqlite:///x.db", listen=None)
    assert found.database == "sqlite:///x.db"
    assert found.address == ("0.0.0.0", 9464)
    assert found.claims_keep_ms == {"billing": 30 * DAY_MS}
    assert found.routes == {"invoices": "decisions"}
    assert (found.lease_ms, found.decisions_keep_ms, found.requests_every_ms) == (30_000, 30 * DAY_MS, 60_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "database: missing"),
        ("database = 1", "database=1: expected a text"),
        ("databas = 'x'", r"databas: unknown key; .* database, listen"),
        ("[recover]\nevry = '1s'", "recover.evry: unknown key"),
        ("[recover]\nevery = 10", "recover.every=10: expected a duration"),
        ("[recover]\nevery = '0s'", "recover.every='0s': expected a duration"),
        ("[recover.routes]\nclicks = {table = 'a', landing = 'b'}", "recover.routes.clicks=.*expected"),
        ("[claims]\nkeep = '1d'", "claims.keep='1d': expected a table"),
        ("database = 'x'\nlisten = '9464'", "listen='9464': expected host:port"),
        ("[recover", "not a TOML file"),
    ],
)
def test_invalid_settings_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "fencepost.toml"
    path.write_text(text)
    with pytest.raises(fp.PolicyError, match=said):
        Settings.read(path)


# Examples


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))


def test_kubernetes_takes_the_manifests(tmp_path: Path) -> None:
    for document in documents():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    config, deployment, _ = documents()
    path = tmp_path / "fencepost.toml"
    path.write_text(config["data"]["fencepost.toml"])
    assert Settings.read(path, database="sqlite://").claims_keep_ms == {"billing": 30 * DAY_MS}
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [port] = container["ports"]
    assert port["containerPort"] == Settings.read(path, database="sqlite://").address[1]
    assert [container[it]["httpGet"]["path"] for it in ("livenessProbe", "readinessProbe")] == ["/healthz", "/readyz"]


def test_a_manifest_that_is_wrong_is_refused() -> None:
    broken = documents()[1]
    broken["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (EXAMPLES / "fencepost.service").read_text()
    unit = tmp_path / "fencepost.service"
    for wrong, is_fine in ((False, True), (True, False)):
        there = text.replace("/opt/fencepost/bin/fencepost", sys.executable)
        unit.write_text(there.replace("Restart=always", "Restart=perhaps") if wrong else there)
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        mine = [line for line in done.stderr.splitlines() if "fencepost.service" in line]
        assert (mine == []) == is_fine, done.stderr
