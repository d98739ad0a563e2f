"""A database that is unavailable is an outage: every function raises one error, and continues after the outage."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import fencepost as fp
import psycopg
import pyarrow as pa
import pymysql
import pytest
import sqlalchemy as sa
from fencepost.sql import ProducerRegistry, SqlSink, StagedTable, TransactionCoordinator
from fencepost.sql.database import Database
from fencepost.transports import SqlTransport, read_committed
from sqlalchemy import text
from support.coordinator_doors import Route
from support.mariadb import MariaDBServer
from support.postgres import PostgresServer

SCHEMA = pa.schema({"value": pa.int64()})
QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 50, "request_timeout_ms": 1_000, "delivery_timeout_ms": 2_000}
PATIENT = QUICK | {"delivery_timeout_ms": 60_000}
WAITING_MAX = 3
ROWS = {"pid": [1], "epoch": [0], "partition": [0], "seq": [0]}


# PyMySQL leaves the sockets of connections that it could not make to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
Server: TypeAlias = PostgresServer | MariaDBServer
on_both = pytest.mark.parametrize("server", [PostgresServer, MariaDBServer], indirect=True)
on_each = pytest.mark.parametrize(
    "server", [PostgresServer, pytest.param(MariaDBServer, marks=pytest.mark.matrix)], indirect=True
)


@pytest.fixture(autouse=True, scope="module")
def older_objects_are_left_alone() -> Iterator[None]:
    """The collector visits what these tests make, and not the modules and tests that were there before them, which
    takes half a second each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def sockets_are_collected() -> Iterator[None]:
    """Here, and not in another test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Of its own, for it is stopped and started."""
    with getattr(request, "param", PostgresServer)() as running:
        yield running


@pytest.fixture
def engine(server: Server) -> Iterator[sa.Engine]:
    made = sa.create_engine(server.new_database())
    columns = (sa.Column(it, sa.BigInteger) for it in ("pid", "epoch", "partition", "seq"))
    sa.Table("sunk", sa.MetaData(), *columns).create(made)
    yield made
    made.dispose()


Call = Callable[[], object]


class Doors:
    """Every call that asks the database, made while it was there. `makers`: those that open it."""

    def __init__(self, engine: sa.Engine, folder: Path) -> None:
        url, rows = engine.url, pa.table(ROWS)
        self.makers: dict[str, Call] = {
            "ProducerRegistry": lambda: ProducerRegistry(engine),
            "TransactionCoordinator": lambda: TransactionCoordinator(engine),
            "SqlTransport": lambda: SqlTransport(engine, "events", schema=SCHEMA),
            "SqlSink": lambda: SqlSink(engine, "sunk", "c"),
            "StagedTable": lambda: StagedTable(url, "sunk", folder),
            "SequencedProducer": lambda: fp.SequencedProducer(
                SqlTransport(engine, "events"), name="p", registry=ProducerRegistry(engine)
            ).close(),
        }
        registry, transport = ProducerRegistry(engine), SqlTransport(engine, "events", schema=SCHEMA)
        coordinator = TransactionCoordinator(engine, registry, routes={"events": transport})
        sink = SqlSink(engine, "sunk", "c")
        mine = coordinator.init_producer("mine")
        coordinator.begin(mine)
        coordinator.add_partitions(mine, [("events", 0)])
        staged = StagedTable(url, "sunk", folder)
        self.calls: dict[str, Call] = {
            "registry.init_producer": lambda: registry.init_producer("x"),
            "registry.expire": registry.expire,
            "coordinator.init_producer": lambda: coordinator.init_producer("y"),
            "coordinator.begin": lambda: coordinator.begin(coordinator.init_producer("z")),
            "coordinator.add_partitions": lambda: coordinator.add_partitions(mine, [("events", 1)]),
            "coordinator.add_offsets": lambda: coordinator.add_offsets(mine, "g", {0: (0, 1)}),
            "coordinator.verify": lambda: coordinator.verify(mine, [("events", 0)]),
            "coordinator.decision": lambda: coordinator.decision(0, 0),
            "coordinator.positions": lambda: coordinator.positions("g"),
            "coordinator.forget_decisions": lambda: coordinator.forget_decisions(1_000_000),
            "coordinator.reap": coordinator.reap,
            "coordinator.recover": coordinator.recover,
            "coordinator.commit": lambda: coordinator.commit(mine),
            "coordinator.abort": lambda: coordinator.abort(coordinator.init_producer("w")),
            "transport.fence": lambda: transport.fence(1, 0, [0]),
            "transport.write_marker": lambda: transport.write_marker(1, 1, 0, "abort"),
            "read_committed": lambda: read_committed(engine, "events"),
            "sink.apply": lambda: sink.apply(rows),
            "sink.handle": lambda: sink.handle(rows, lambda connection, kept: None),
            "sink.positions": sink.positions,
            "sink.forget_positions": lambda: sink.forget_positions("t"),
            "sink.metrics": sink.metrics,
            "sink.reconcile": lambda: sink.reconcile(rows),
            "sink.for_job": lambda: sink.for_job(folder / "state"),
            "staged.row": staged._row,
        }


@on_both
def test_every_function_reports_that_the_database_is_unavailable(
    engine: sa.Engine, server: Server, tmp_path: Path
) -> None:
    doors = Doors(engine, tmp_path / "sink")
    server.halt()
    try:
        for name, call in (doors.makers | doors.calls).items():
            with pytest.raises(fp.StoreError, match=r"not respond .*cannot continue \(.+\)") as caught:
                call()
            assert isinstance(caught.value.__cause__, sa.exc.DBAPIError), name
    finally:
        server.start_again()
    for call in (doors.makers | doors.calls).values():
        call()


def test_errors_of_statements_stay_what_they_are(new_engine: Callable[[], sa.Engine]) -> None:
    database = Database(new_engine())
    for statement in ("SELECT nothing", "SELEC 1", "SELECT * FROM nowhere", "DEALLOCATE nothing"):
        with pytest.raises(sa.exc.DBAPIError):
            database.transaction(lambda connection, it=statement: connection.execute(text(it)))


@on_both
def test_a_statement_that_takes_too_long_is_an_outage(engine: sa.Engine) -> None:
    """As is every other that the server ends for reasons of its own."""

    def work(connection: sa.Connection) -> None:
        if engine.dialect.name == "mariadb":
            slow = "SELECT count(*) FROM seq_1_to_100000000 AS a WHERE md5(a.seq) = 'x'"
            connection.execute(text(f"SET STATEMENT max_statement_time = 0.001 FOR {slow}"))
        else:
            connection.execute(text("SET LOCAL statement_timeout = 1"))
            connection.execute(text("SELECT pg_sleep(60)"))

    with pytest.raises(fp.StoreError, match=r"due to statement timeout|max_statement_time exceeded"):
        Database(engine).transaction(work)


@on_both
def test_a_server_that_takes_no_writes_is_an_outage(engine: sa.Engine) -> None:
    """After a failover to a replica. On PostgreSQL a consumer ended with the driver's error."""
    sink = SqlSink(engine, "sunk", "c")
    name = "tx_read_only" if engine.dialect.name == "mariadb" else "default_transaction_read_only"

    @sa.event.listens_for(engine, "checkout")
    def read_only(connection: Any, record: Any, proxy: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {name} = 1")
        connection.commit()

    with pytest.raises(fp.StoreError, match="cannot continue"):
        sink.apply(pa.table(ROWS))
    sa.event.remove(engine, "checkout", read_only)
    engine.dispose()
    assert sink.apply(pa.table(ROWS)).rows_kept == 1


def test_a_file_that_cannot_be_opened_is_an_outage(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/missing/stage.db")
    for make in (ProducerRegistry, TransactionCoordinator, lambda it: SqlSink(it, "t", "c")):
        with pytest.raises(fp.StoreError, match="unable to open database"):
            make(engine)
    (tmp_path / "missing").mkdir()
    ProducerRegistry(engine)
    engine.dispose()


def test_a_full_disk_is_an_outage(tmp_path: Path) -> None:
    """Also while SQLite inserts message ids, which SQLAlchemy does not do."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    sink = SqlSink(engine, None, "c", "message_id", message_id="id")
    ids = {"id": [f"{number:01000}" for number in range(100)]}

    @sa.event.listens_for(engine, "checkout")
    def fill(connection: Any, *_: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1").close()

    with pytest.raises(fp.StoreError, match="disk is full"):
        sink.handle(ids, lambda *_: None)
    sa.event.remove(engine, "checkout", fill)
    engine.dispose()
    assert sink.handle(ids, lambda *_: None).rows_kept == 100
    engine.dispose()


def test_a_password_is_not_shown() -> None:
    engine = sa.create_engine("postgresql+psycopg://me:secret@/db?host=/nowhere")
    with pytest.raises(fp.StoreError) as caught:
        ProducerRegistry(engine)
    assert "secret" not in str(caught.value)


@on_each
def test_a_pool_without_a_free_connection_is_an_outage(server: Server) -> None:
    engine = sa.create_engine(server.new_database(), pool_size=1, max_overflow=0, pool_timeout=0.01)
    database = Database(engine)
    with engine.connect(), pytest.raises(fp.StoreError, match="QueuePool limit"):
        database.transaction(lambda connection: None)
    engine.dispose()


# Producers under load


class Feeder:
    """Sends values one after the other, each once, some at a time, and notes the outcome of each."""

    def __init__(self, producer: fp.SequencedProducer) -> None:
        self.producer = producer
        self.is_over = threading.Event()
        self.changed = threading.Condition()
        self.outcomes: dict[int, BaseException | None] = {}
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        value = 0
        while not self.is_over.is_set():
            with self.changed:
                # No faster than the database takes them: what queues for longer than the time-out fails without outage.
                if not self.changed.wait_for(lambda sent=value: sent - len(self.outcomes) < WAITING_MAX, 0.1):
                    continue
            [delivery] = self.producer.send({"value": [value]})
            delivery.add_done_callback(lambda done, value=value: self._note(value, done.exception()))
            value += 1

    def _note(self, value: int, error: BaseException | None) -> None:
        with self.changed:
            self.outcomes[value] = error
            self.changed.notify_all()

    def wait(self, is_one: Callable[[BaseException | None], bool], count: int = 1) -> None:
        """Until so many more outcomes are of a kind."""
        with self.changed:
            before = set(self.outcomes)
            assert self.changed.wait_for(
                lambda: sum(is_one(it) for value, it in self.outcomes.items() if value not in before) >= count, 60
            ), f"{len(self.outcomes)} outcomes, the last {list(self.outcomes.values())[-3:]}"

    def stop(self) -> None:
        self.is_over.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


def is_expired(error: BaseException | None) -> bool:
    return isinstance(error, fp.DeliveryError)


def is_delivered(error: BaseException | None) -> bool:
    return error is None


@on_each
@pytest.mark.parametrize("kind", ["no name", "registry"])
def test_a_producer_outlives_an_outage_that_is_longer_than_its_time_out(
    engine: sa.Engine, server: Server, kind: str
) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    options = {} if kind == "no name" else {"name": "gate 7", "registry": ProducerRegistry(engine)}
    threads = threading.active_count()
    with fp.SequencedProducer(transport, **options, **QUICK) as producer:
        feeder = Feeder(producer)
        try:
            for _ in range(2):
                feeder.wait(is_delivered, 5)
                server.halt()
                feeder.wait(is_expired, 3)
                server.start_again()
            feeder.wait(is_delivered, 5)
        finally:
            feeder.stop()
        with pytest.raises(fp.DeliveryError):
            producer.flush(60)
    assert threading.active_count() == threads
    assert {type(it) for it in feeder.outcomes.values()} == {type(None), fp.DeliveryError}
    found = read_committed(engine, "events")["value"].to_pylist()
    assert len(found) == len(set(found)), "none is there twice"
    assert not {it for it, error in feeder.outcomes.items() if error is None} - set(found), (
        "what was delivered is there"
    )
    refused = {it for it, error in feeder.outcomes.items() if getattr(error, "is_refused", False)}
    assert not refused & set(found), "what was refused is not"


@on_each
def test_transactions_under_load_survive_outages(engine: sa.Engine, server: Server) -> None:
    """A client that repeats aborted work and queries unknown outcomes has every value once."""
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    coordinator = TransactionCoordinator(engine, routes={"events": transport})
    failures: list[str] = []
    committed, is_over = [0], threading.Event()
    changed = threading.Condition()

    def settle(producer: fp.SequencedProducer) -> bool:
        """Whether the transaction during an outage is committed: asks until the database answers."""
        while True:
            try:
                producer.commit()
            except (fp.StoreError, fp.OutcomeUnknownError, fp.ConcurrentTransactionError):
                is_over.wait(0.02)
            except (fp.TransactionAbortableError, fp.TransactionStateError, fp.PolicyError):
                return False
            else:
                return True

    def work() -> None:
        with fp.SequencedProducer(
            transport, name="stage", coordinator=coordinator, topic="events", transaction_timeout_ms=900_000, **QUICK
        ) as producer:
            while not is_over.is_set():
                try:
                    with producer.transaction():
                        producer.send({"value": [committed[0]]})
                    is_committed = True
                except (fp.OutcomeUnknownError, fp.ConcurrentTransactionError) as error:
                    failures.append(type(error).__name__)
                    is_committed = settle(producer)
                except fp.FencepostError as error:
                    failures.append(type(error).__name__)
                    is_committed = False
                    is_over.wait(0.02)
                if is_committed:
                    with changed:
                        committed[0] += 1
                        changed.notify_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(4):
            until, seen = committed[0] + 5, len(failures)
            with changed:
                assert changed.wait_for(lambda until=until: committed[0] >= until, 60), failures[-3:]
            server.halt()
            while len(failures) == seen and thread.is_alive():
                is_over.wait(0.01)
            server.start_again()
        with changed:
            assert changed.wait_for(lambda until=committed[0] + 5: committed[0] >= until, 60), failures[-3:]
    finally:
        is_over.set()
        thread.join(60)
    assert not thread.is_alive()
    assert len(failures) >= 4
    assert read_committed(engine, "events")["value"].to_pylist() == list(range(committed[0]))


@on_each
def test_an_outage_masks_nothing_and_leaves_no_threads(engine: sa.Engine, server: Server) -> None:
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    coordinator = TransactionCoordinator(engine, routes={"events": transport})
    threads = set(threading.enumerate())

    def make() -> fp.SequencedProducer:
        return fp.SequencedProducer(transport, name="stage", coordinator=coordinator, topic="events", **PATIENT)

    def break_off(producer: fp.SequencedProducer, value: int) -> None:
        producer.send({"value": [value]})
        producer.flush(30)
        server.halt()
        raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError), make() as producer, producer.transaction():
            break_off(producer, 1)
        assert set(threading.enumerate()) == threads
        server.start_again()
        producer = make()
        producer.begin()
        with pytest.raises(ZeroDivisionError), producer:
            break_off(producer, 2)
        assert set(threading.enumerate()) == threads
        server.start_again()
        producer = make()
        producer.begin()
        producer.send({"value": [3]})
        producer.flush(30)
        server.halt()
        with pytest.raises(fp.StoreError):
            producer.close()
        assert set(threading.enumerate()) == threads
    finally:
        server.start_again()
    with make() as producer, producer.transaction():
        producer.send({"value": [4]})
    assert read_committed(engine, "events")["value"].to_pylist() == [4]


@on_each
def test_an_abort_that_began_prevents_a_commit(engine: sa.Engine, server: Server) -> None:
    """The next begin aborts what an outage has left; a commit would show what was sent without what was dropped."""
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    coordinator = TransactionCoordinator(engine, routes={"events": transport})
    with fp.SequencedProducer(transport, name="stage", coordinator=coordinator, topic="events", **PATIENT) as producer:
        producer.begin()
        producer.send({"value": [1]})
        producer.flush(30)
        server.halt()
        try:
            with pytest.raises(fp.StoreError):
                producer.abort()
            with pytest.raises(fp.TransactionAbortableError, match=r"call abort\(\) again"):
                producer.commit()
            with pytest.raises(fp.StoreError):
                producer.begin()
        finally:
            server.start_again()
        with producer.transaction():
            producer.send({"value": [2]})
    assert read_committed(engine, "events")["value"].to_pylist() == [2]


@on_each
def test_an_outcome_that_is_unknown_stays_so_in_an_outage(engine: sa.Engine, server: Server) -> None:
    """The commit happened, its answer was lost, the database is unavailable: the error must not say that it failed."""
    transport = SqlTransport(engine, "events", schema=SCHEMA)
    coordinator = TransactionCoordinator(engine, routes={"events": transport})
    commit = engine.dialect.do_commit

    def lose(connection: Any) -> None:
        commit(connection)
        engine.dialect.do_commit = commit  # type: ignore[method-assign]
        server.halt()
        connection.driver_connection.close()
        if engine.dialect.name == "mariadb":
            raise pymysql.OperationalError(2013, "the answer was lost")
        raise psycopg.OperationalError("the answer was lost")

    def send_and_lose(producer: fp.SequencedProducer) -> None:
        producer.send({"value": [1]})
        producer.flush(30)
        engine.dialect.do_commit = lose  # type: ignore[method-assign]

    with fp.SequencedProducer(transport, name="stage", coordinator=coordinator, topic="events", **PATIENT) as producer:
        try:
            with pytest.raises(fp.OutcomeUnknownError), producer.transaction():
                send_and_lose(producer)
            with pytest.raises(fp.OutcomeUnknownError, match="The next try"):
                producer.commit()
        finally:
            server.start_again()
        producer.commit()
        with producer.transaction():
            producer.send({"value": [2]})
    assert read_committed(engine, "events")["value"].to_pylist() == [1, 2]


@on_each
def test_a_decision_that_could_not_be_completed_is_not_called_undone(engine: sa.Engine, server: Server) -> None:
    """The database becomes unavailable while markers are written: the decision is final, and the error says so."""
    coordinator = TransactionCoordinator(engine, routes={"out": Route(lambda *_: server.halt())})
    identity = coordinator.init_producer("stage")
    coordinator.add_partitions(identity, [("out", 0)])
    try:
        with pytest.raises(fp.ConcurrentTransactionError, match=r"is decided, .*database was lost"):
            coordinator.commit(identity)
    finally:
        server.start_again()
    again = TransactionCoordinator(engine, routes={"out": Route(lambda *_: None)})
    assert again.commit(identity).epoch == identity.epoch + 1
