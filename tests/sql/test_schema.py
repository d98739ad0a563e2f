"""The tables as SQL, their versions, and databases of users: those of an earlier version are upgraded.

`tests/data/sql/ddl-*.sql` is the SQL of this version, for the review of every change. `tests/data/sql/golden-*.sql` are
databases as users have them, tables and rows; they are never written again. A new version gets new ones:
FENCEPOST_GOLDEN=add writes those that are not there yet.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost.cli import main
from fencepost.producer import SequencedBatch
from fencepost.sql import IdempotentRequests, ProducerRegistry, Response, SqlSink, TransactionCoordinator, schema
from fencepost.sql.consumers import DEAD_LETTERS
from fencepost.sql.database import Database
from fencepost.sql.migrations import SCHEMA, Migration, Part
from fencepost.sql.reaping import reap_consumer
from fencepost.transports import SqlTransport, read_committed
from fencepost.transports.sql import part_beside
from sqlalchemy import Connection, Engine, MetaData, Table, select, text
from support.databases import execute

DATA = Path(__file__).parents[1] / "data" / "sql"
DIALECTS = ["postgresql", "sqlite", "mariadb"]
GOLDEN = [(path.name.split("-")[1], path.name) for path in sorted(DATA.glob("golden-*.sql"))]
BESIDE = part_beside("clicks")
PARTS = (*schema.PARTS, BESIDE)
ROWS = {"pid": [7, 7, 7], "epoch": [0] * 3, "partition": [0] * 3, "seq": [0, 1, 3]}
CLICKS = pa.schema([("page", pa.string())])
FIRST_LEASE = 2**40
"""From here on up to version 3 a transport counted the pids of leases of its own."""


def run_script(engine: Engine, script: str) -> None:
    """Statements that each end with a semicolon at the end of a line."""
    with engine.begin() as connection:
        for statement in re.split(r";\n", script):
            if statement.strip():
                connection.exec_driver_sql(statement)


# What the SQL says


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_sql_is_what_was_reviewed(dialect: str) -> None:
    """If this fails, tables have changed: add a new version and a migration to the part, then update the SQL."""
    found, path = schema.ddl(dialect, PARTS), DATA / f"ddl-{dialect}.sql"
    if os.environ.get("FENCEPOST_GOLDEN") == "add":
        path.write_text(found)
    assert found == path.read_text()


def shape(engine: Engine) -> dict[str, Any]:
    """The tables as the database has them."""
    inspector = sa.inspect(engine)
    return {
        table: (
            [(it["name"], str(it["type"]), it["nullable"]) for it in inspector.get_columns(table)],
            inspector.get_pk_constraint(table)["constrained_columns"],
            sorted((it["column_names"], it["unique"]) for it in inspector.get_indexes(table)),
        )
        for table in sorted(inspector.get_table_names())
    }


def test_the_sql_makes_what_the_library_makes(engine: Engine) -> None:
    run_script(engine, schema.ddl(engine.dialect.name, PARTS))
    by_sql = shape(engine)
    assert all(not it.remedy for it in schema.status(engine, PARTS))
    schema.migrate(engine, PARTS)
    assert shape(engine) == by_sql, "nothing is left to do"
    with engine.begin() as connection:
        for name in by_sql:
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF" if engine.dialect.name == "sqlite" else "SELECT 1")
            if engine.dialect.name == "mariadb":
                connection.exec_driver_sql("SET foreign_key_checks = 0")
            cascade = " CASCADE" if engine.dialect.name == "postgresql" else ""
            connection.exec_driver_sql(f"DROP TABLE {name}{cascade}")
    schema.migrate(engine, PARTS)
    assert shape(engine) == by_sql


def test_dialects_and_parts_that_are_not_known() -> None:
    assert schema.ddl("mysql") == schema.ddl("mariadb"), "a URL of mysql+pymysql may lead to MariaDB"
    with pytest.raises(fp.PolicyError, match=r"dialect 'oracle': expected one of postgresql, sqlite, mariadb"):
        schema.ddl("oracle")
    with pytest.raises(fp.PolicyError, match=r"part 'sinks': expected one of daemon, dead_letters"):
        schema.ddl("sqlite", since={"sinks": 1})


# Databases of users


def golden(engine: Engine) -> Path:
    versions = "-".join(f"{it.name.split()[0]}{it.version}" for it in PARTS)
    return DATA / f"golden-{engine.dialect.name}-{versions}.sql"


def fill(engine: Engine) -> None:
    """What a database of a user has, a little of each."""
    execute(engine, "CREATE TABLE orders (pid BIGINT, epoch SMALLINT, partition INTEGER, seq BIGINT)")
    SqlSink(engine, "orders", "billing").apply(pa.table(ROWS), positions={"orders-0": 4})
    SqlSink(engine, None, "mails", "message_id", message_id="id").handle([{"id": "Ä-1"}, {"id": "a"}], lambda *_: None)
    coordinator = TransactionCoordinator(engine, routes={"out": None})
    identity = coordinator.init_producer("stage")
    coordinator.add_partitions(identity, [("out", 0)])
    coordinator.add_offsets(identity, "group", {0: (None, 10)})
    coordinator.commit(identity)
    registry = ProducerRegistry(engine)
    registry.init_producer("other")
    claim = IdempotentRequests(engine, keep_ms=2**52).claim("shop", "k-1", b"body")
    assert not isinstance(claim, Response)
    claim.complete(lambda _: Response(201, (("Content-Type", "text/plain"),), b"\x00\xff'\\"))
    schema.migrate(engine, PARTS)
    letter = {"consumer": "billing", "topic": "orders", "partition": 0, "offset": 9, "value": b"\xff", "tries": 3}
    letter |= {"error_type": "BatchError", "error": "it's", "created_ms": 5}
    with engine.begin() as connection:
        connection.execute(DEAD_LETTERS.insert(), letter)
    transport = SqlTransport(engine, "clicks", schema=CLICKS, partitions=2)
    with fp.SequencedProducer(transport, name="gate", registry=registry) as producer:
        producer.send([{"page": "/"}, {"page": "/it's\\"}])[0].result()


def check(engine: Engine) -> None:
    """That all of it is known."""
    sink = SqlSink(engine, "orders", "billing")
    again = sink.apply(pa.table({**ROWS, "seq": [1, 2, 3]}))
    assert (again.rows_kept, again.duplicates, sink.positions()) == (1, 2, {"orders-0": 4})
    mails = SqlSink(engine, None, "mails", "message_id", message_id="id")
    assert mails.handle([{"id": "Ä-1"}, {"id": "A"}, {"id": "a "}], lambda *_: None).duplicates == 1
    registry = ProducerRegistry(engine, expiry_ms=2**50)  # the rows grow old
    coordinator = TransactionCoordinator(engine, registry, routes={"out": None})
    first = coordinator.init_producer("stage")
    assert first.epoch == 2, "of the one that has committed, and the next"
    assert coordinator.decision(first.pid, 0) == "commit"
    assert coordinator.positions("group").decided == {0: 10}
    assert registry.init_producer("other").epoch == 1
    found = IdempotentRequests(engine).claim("shop", "k-1", b"body")
    assert found == Response(201, (("Content-Type", "text/plain"),), b"\x00\xff'\\")
    with engine.connect() as connection:
        assert [(it.offset, it.value, it.error) for it in connection.execute(select(DEAD_LETTERS))] == [
            (9, b"\xff", "it's")
        ]
    rows = read_committed(engine, "clicks")
    assert rows["page"].to_pylist() == ["/", "/it's\\"]
    transport = SqlTransport(engine, "clicks")
    old = {"pid": rows["pid"][0].as_py(), "epoch": rows["epoch"][0].as_py(), "partition": rows["partition"][0].as_py()}
    with fp.SequencedProducer(transport, name="gate", registry=registry) as producer:
        new = producer.send([{"page": "/next"}])[0].result()
    assert (new.pid, new.epoch) == ((old["pid"], 1) if old["pid"] < FIRST_LEASE else (new.pid, 0)), "as the name's next"
    late = pa.table({**{name: [value] for name, value in old.items()}, "seq": [2], "page": ["/late"]})
    batch = SequencedBatch(old["partition"], old["pid"], old["epoch"], 2, 2, 1, late)
    assert transport.send(batch).error is fp.Verdict.FENCED, (
        "the former owner of the name, also after a lease of the table"
    )


def dump(engine: Engine) -> str:
    """The tables as `fill` has left them, with their rows."""
    metadata = MetaData()
    metadata.reflect(engine)
    script = [schema.ddl(engine.dialect.name, PARTS)]
    own = {it for part in PARTS for it in part.tables.tables} | {SCHEMA.name}
    with engine.connect() as connection:
        for table in metadata.sorted_tables:
            if table.name not in own:
                script.append(f"{str(sa.schema.CreateTable(table).compile(engine)).strip()};\n")
            if table.name != SCHEMA.name:
                script += [_insert(engine, table, row) for row in connection.execute(select(table))]
    return "".join(script)


def _insert(engine: Engine, table: Table, row: Any) -> str:
    name = engine.dialect.identifier_preparer.format_table(table)
    return f"INSERT INTO {name} VALUES ({', '.join(_literal(engine, it) for it in row)});\n"


def _literal(engine: Engine, value: object) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'" if engine.dialect.name == "postgresql" else f"X'{value.hex()}'"
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'" if engine.dialect.name != "mariadb" else f"'{quoted}'".replace("\\", "\\\\")
    return "NULL" if value is None else str(int(value))  # type: ignore[call-overload]


def test_databases_of_this_version_are_kept_as_they_are(engine: Engine) -> None:
    """So that there is one to upgrade once there is a newer version."""
    if os.environ.get("FENCEPOST_GOLDEN") == "add" and not golden(engine).exists():
        fill(engine)
        golden(engine).write_text(dump(engine))
        pytest.fail(f"{golden(engine)} was written: run again without FENCEPOST_GOLDEN")
    assert golden(engine).exists(), "a part has a new version: FENCEPOST_GOLDEN=add"


@pytest.mark.parametrize(("database_url", "path"), GOLDEN, indirect=["database_url"])
def test_databases_of_users_are_brought_to_this_version(engine: Engine, path: str) -> None:
    run_script(engine, (DATA / path).read_text())
    check(engine)
    schema.migrate(engine, PARTS)  # parts that nothing here uses, or that are newer than the file
    assert all(not it.remedy for it in schema.status(engine, PARTS))


# Versions

TABLES = MetaData()
THINGS = Table("things", TABLES, sa.Column("id", sa.Integer, primary_key=True), sa.Column("size", sa.BigInteger))
TO_2 = Migration(("ALTER TABLE things ADD COLUMN colour INTEGER",))
TO_3 = Migration(("UPDATE things SET colour = 9", "ALTER TABLE things ADD COLUMN size BIGINT"))
ORIGINAL = MetaData()
Table("things", ORIGINAL, sa.Column("id", sa.Integer, primary_key=True))
FIRST, THIRD = Part("things", 1, ORIGINAL), Part("things", 3, TABLES, {2: TO_2, 3: TO_3})


def columns(engine: Engine) -> list[str]:
    return [it["name"] for it in sa.inspect(engine).get_columns("things")]


def version(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(SCHEMA.c.version).where(SCHEMA.c.part == "things")).scalar_one())


def test_an_older_schema_is_upgraded_step_by_step(engine: Engine) -> None:
    Database(engine).create_tables(FIRST)
    assert schema.status(engine, [THIRD])[0][1:3] == (1, 3)
    execute(engine, "INSERT INTO things (id) VALUES (1)")
    Database(engine).create_tables(THIRD)
    assert (columns(engine), version(engine)) == (["id", "colour", "size"], 3)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT colour FROM things")).scalar_one() == 9


def test_the_sql_of_an_upgrade_does_the_same(engine: Engine) -> None:
    Database(engine).create_tables(FIRST)
    run_script(engine, schema.ddl(engine.dialect.name, [THIRD], since={"things": 1}))
    assert (columns(engine), version(engine)) == (["id", "colour", "size"], 3)
    assert not schema.status(engine, [THIRD])[0].remedy


def test_an_interrupted_upgrade_continues(engine: Engine) -> None:
    """In one transaction where tables can change in one, step by step where they cannot."""
    Database(engine).create_tables(FIRST)

    def stop(connection: Connection) -> None:
        raise fp.SchemaError("not now")

    broken = Part("things", 3, TABLES, {2: TO_2, 3: Migration(TO_3.statements, stop)})
    with pytest.raises(fp.SchemaError, match="not now"):
        Database(engine).create_tables(broken)
    is_whole = engine.dialect.name != "mariadb"
    assert (columns(engine), version(engine)) == ((["id"], 1) if is_whole else (["id", "colour"], 2))
    Database(engine).create_tables(THIRD)
    assert (columns(engine), version(engine)) == (["id", "colour", "size"], 3)


def test_a_process_that_ended_between_a_statement_and_the_version_does_not_stop_the_next(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MariaDB the columns are there then, but the version is the old one."""
    Database(engine).create_tables(FIRST)

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    for part, last in ((Part("things", 2, TABLES, {2: TO_2}), "colour"), (THIRD, "size")):
        with monkeypatch.context() as patch:
            patch.setattr(type(SCHEMA), "update", ends)
            with pytest.raises(KeyboardInterrupt):
                Database(engine).create_tables(part)
        assert (last in columns(engine)) is (engine.dialect.name == "mariadb")
        Database(engine).create_tables(part)
    assert (columns(engine), version(engine)) == (["id", "colour", "size"], 3)


def test_a_newer_schema_is_refused_with_what_to_do(engine: Engine) -> None:
    Database(engine).create_tables(THIRD)
    with pytest.raises(
        fp.SchemaError, match=r"'things' have version 3, but this package supports 1: upgrade fencepost to"
    ):
        Database(engine).create_tables(FIRST)
    assert schema.status(engine, [FIRST])[0].remedy.startswith("upgrade fencepost to the version")


def test_claims_of_a_newer_schema_are_not_removed_without_their_sink(engine: Engine) -> None:
    """A daemon of the older version would leave what the newer one keeps beside a claim."""
    SqlSink(engine, None, "a consumer").handle(
        [dict.fromkeys(("pid", "epoch", "partition", "seq"), 0)], lambda *_: None
    )
    with engine.begin() as connection:
        connection.execute(SCHEMA.update().where(SCHEMA.c.part == "sink").values(version=99))
    with pytest.raises(fp.SchemaError, match="have version 99"):
        reap_consumer(Database(engine), "a consumer", 1)


def test_a_schema_that_is_too_old_is_refused_with_what_to_do(engine: Engine) -> None:
    Database(engine).create_tables(FIRST)
    late = Part("things", 3, TABLES, {3: TO_3})
    with pytest.raises(fp.SchemaError, match=r"have version 1, .* fencepost that supports version 2"):
        Database(engine).create_tables(late)
    assert columns(engine) == ["id"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_role_without_the_right_to_create_tables_gets_a_remedy(engine: Engine) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            name = connection.execute(text("SELECT current_schema()")).scalar_one()
            connection.execute(text(f"CREATE ROLE reader_{name} LOGIN"))
            connection.execute(text(f"GRANT USAGE ON SCHEMA {name} TO reader_{name}"))
            role = f"reader_{name}"
        else:
            name = engine.url.database
            role = f"r{name}"
            connection.execute(text(f"CREATE USER {role}@localhost"))
            connection.execute(text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {role}@localhost"))
    limited = sa.create_engine(engine.url.set(username=role))
    with pytest.raises(fp.SchemaError, match=r"may not create .*Run `fencepost sql migrate`"):
        Database(limited).create_tables(FIRST)
    Database(engine).create_tables(FIRST)
    if engine.dialect.name == "postgresql":
        execute(engine, f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role}")
    Database(limited).create_tables(FIRST)
    limited.dispose()


# The command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["sql", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command(engine: Engine, database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ddl", "--dialect", engine.dialect.name, "--transport", "clicks")
    assert (code, out) == (0, schema.ddl(engine.dialect.name, PARTS))
    code, out, err = run(capsys, "ddl", "--dialect", engine.dialect.name, "--from", "producers=1")
    assert code == 0
    assert re.search("ADD COLUMN (IF NOT EXISTS )?waiting", out)
    assert "CREATE TABLE" not in out
    _, out, _ = run(capsys, "ddl", "--dialect", engine.dialect.name, "--from", "sink=1")
    assert out.startswith("CREATE TABLE IF NOT EXISTS fencepost_holes")
    assert run(capsys, "ddl", "--dialect", "sqlite", "--from", "producers")[0] == 2
    code, out, err = run(capsys, "migrate", "--database", database_url)
    assert (code, err) == (0, "")
    assert "producers: version 3" in out
    assert run(capsys, "status", "--database", database_url)[0] == 0
    with engine.begin() as connection:
        connection.execute(SCHEMA.update().where(SCHEMA.c.part == "sink").values(version=9))
    code, out, _ = run(capsys, "status", "--database", database_url, "--json")
    assert code == 3
    assert '"part": "sink", "found": 9, "known": 2, "remedy": "upgrade fencepost' in out
