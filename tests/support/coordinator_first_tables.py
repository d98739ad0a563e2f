"""The coordinator's tables in their first version, as databases of users have them: never changed."""

from __future__ import annotations

import json
import time

from sqlalchemy import Connection, text

TABLES = """
CREATE TABLE fencepost_schema (part VARCHAR(64) NOT NULL PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE fencepost_pids (id INTEGER NOT NULL PRIMARY KEY, next_pid BIGINT NOT NULL);
CREATE TABLE fencepost_producers (
  transactional_id VARCHAR NOT NULL PRIMARY KEY, pid BIGINT NOT NULL UNIQUE, epoch INTEGER NOT NULL,
  last_epoch INTEGER NOT NULL, previous_pid BIGINT NOT NULL, next_pid BIGINT NOT NULL, state INTEGER NOT NULL,
  timeout_ms BIGINT NOT NULL, partitions TEXT NOT NULL, started_ms BIGINT NOT NULL, updated_ms BIGINT NOT NULL,
  has_markers BOOLEAN NOT NULL, coordinator_epoch INTEGER NOT NULL);
CREATE INDEX ix_fencepost_producers_previous_pid ON fencepost_producers (previous_pid);
CREATE TABLE fencepost_decisions (
  pid BIGINT NOT NULL, epoch INTEGER NOT NULL, outcome VARCHAR(6) NOT NULL, decided_ms BIGINT NOT NULL,
  PRIMARY KEY (pid, epoch));
CREATE TABLE fencepost_positions (
  group_id VARCHAR NOT NULL, partition VARCHAR NOT NULL, position BIGINT, PRIMARY KEY (group_id, partition));
CREATE TABLE fencepost_staged_positions (
  transactional_id VARCHAR NOT NULL, group_id VARCHAR NOT NULL, partition VARCHAR NOT NULL, expected BIGINT NOT NULL,
  position BIGINT NOT NULL, generation BIGINT, PRIMARY KEY (transactional_id, group_id, partition));
CREATE TABLE fencepost_groups (group_id VARCHAR NOT NULL PRIMARY KEY, generation BIGINT NOT NULL);
INSERT INTO fencepost_schema VALUES ('producers', 1);
INSERT INTO fencepost_pids VALUES (1, 1000);
INSERT INTO fencepost_decisions VALUES (7, 4, 'commit', 1750000000000);
INSERT INTO fencepost_positions VALUES ('stage', '"input-0"', 100);
"""
_PRODUCER = text(
    "INSERT INTO fencepost_producers VALUES "
    "(:id, :pid, 5, 4, -1, -1, :state, 60000, :partitions, 1750000000000, :now_ms, :has_markers, 3)"
)


def create(connection: Connection) -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            connection.execute(text(statement))


def add_producer(connection: Connection, name: str, pid: int, state: int, names: list[str], has_markers: bool) -> None:
    """A transactional id that was used a moment ago, and whose last transaction began long ago.

    `names`: the partitions of that transaction, which had no topics.
    """
    row = {"id": name, "pid": pid, "state": state, "partitions": json.dumps([json.dumps(it) for it in names])}
    row["now_ms"] = int(time.time() * 1000)
    connection.execute(_PRODUCER, row | {"has_markers": has_markers})
