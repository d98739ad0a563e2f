CREATE TABLE IF NOT EXISTS fencepost_schema (
    part VARCHAR(64) NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (part)
);
CREATE TABLE fencepost_consumers (
    id INTEGER NOT NULL,
    name VARCHAR(255) NOT NULL,
    settings TEXT NOT NULL,
    key_types TEXT,
    horizon_ms INTEGER,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (name)
);
CREATE TABLE fencepost_holes (
    consumer INTEGER NOT NULL,
    pid TEXT NOT NULL,
    partition TEXT NOT NULL,
    epoch SMALLINT NOT NULL,
    last INTEGER NOT NULL,
    first INTEGER NOT NULL,
    timestamp INTEGER,
    PRIMARY KEY (consumer, pid, partition, epoch, last)
);
CREATE TABLE fencepost_messages (
    consumer INTEGER NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    timestamp INTEGER,
    changed_ms INTEGER NOT NULL,
    PRIMARY KEY (consumer, id, version)
);
CREATE TABLE fencepost_applied (
    consumer INTEGER NOT NULL,
    source VARCHAR(255) NOT NULL,
    position INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL,
    PRIMARY KEY (consumer, source),
    FOREIGN KEY(consumer) REFERENCES fencepost_consumers (id)
);
CREATE TABLE fencepost_claims (
    consumer INTEGER NOT NULL,
    pid TEXT NOT NULL,
    partition TEXT NOT NULL,
    epoch SMALLINT,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    last_timestamp INTEGER,
    changed_ms INTEGER NOT NULL,
    more TEXT,
    PRIMARY KEY (consumer, pid, partition),
    FOREIGN KEY(consumer) REFERENCES fencepost_consumers (id)
);
INSERT INTO fencepost_schema (part, version) VALUES ('sink', 2);
CREATE TABLE fencepost_dead_letters (
    consumer VARCHAR(255) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    partition INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    timestamp INTEGER,
    "key" BLOB,
    value BLOB,
    headers TEXT,
    error_type TEXT NOT NULL,
    error TEXT NOT NULL,
    tries INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (consumer, topic, partition, "offset")
);
INSERT INTO fencepost_schema (part, version) VALUES ('dead_letters', 1);
CREATE TABLE fencepost_requests (
    scope VARCHAR(255) NOT NULL,
    "key" VARCHAR(255) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    owner VARCHAR(32) NOT NULL,
    leased_until_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    steps TEXT NOT NULL,
    status INTEGER,
    headers TEXT,
    body BLOB,
    PRIMARY KEY (scope, "key")
);
CREATE INDEX ix_fencepost_requests_expires_ms ON fencepost_requests (expires_ms);
INSERT INTO fencepost_schema (part, version) VALUES ('requests', 1);
CREATE TABLE fencepost_decisions (
    pid INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    outcome VARCHAR(6) NOT NULL,
    decided_ms INTEGER NOT NULL,
    PRIMARY KEY (pid, epoch)
);
CREATE TABLE fencepost_pids (
    id INTEGER NOT NULL,
    next_pid INTEGER NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE fencepost_positions (
    group_id VARCHAR NOT NULL,
    partition VARCHAR NOT NULL,
    position INTEGER,
    PRIMARY KEY (group_id, partition)
);
CREATE TABLE fencepost_producers (
    transactional_id VARCHAR NOT NULL,
    pid INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    previous_pid INTEGER NOT NULL,
    next_pid INTEGER NOT NULL,
    state INTEGER NOT NULL,
    timeout_ms INTEGER NOT NULL,
    partitions TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    waiting TEXT NOT NULL,
    coordinator_epoch INTEGER NOT NULL,
    PRIMARY KEY (transactional_id),
    UNIQUE (pid)
);
CREATE INDEX ix_fencepost_producers_previous_pid ON fencepost_producers (previous_pid);
CREATE TABLE fencepost_staged_positions (
    transactional_id VARCHAR NOT NULL,
    group_id VARCHAR NOT NULL,
    partition VARCHAR NOT NULL,
    expected INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (transactional_id, group_id, partition)
);
INSERT INTO fencepost_schema (part, version) VALUES ('producers', 3);
CREATE TABLE fencepost_versions (
    sink VARCHAR(255) NOT NULL,
    state VARCHAR(64) NOT NULL,
    version INTEGER NOT NULL,
    status VARCHAR(16) NOT NULL,
    changed_ms INTEGER NOT NULL,
    attempt VARCHAR(64),
    PRIMARY KEY (sink)
);
INSERT INTO fencepost_schema (part, version) VALUES ('versions', 2);
CREATE TABLE fencepost_tasks (
    task VARCHAR(64) NOT NULL,
    owner VARCHAR(320) NOT NULL,
    leased_until_ms INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    succeeded_ms INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    PRIMARY KEY (task)
);
INSERT INTO fencepost_schema (part, version) VALUES ('daemon', 1);
CREATE TABLE clicks_commits (
    partition INTEGER NOT NULL,
    log_offset INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    outcome VARCHAR(8) NOT NULL,
    PRIMARY KEY (partition, log_offset)
);
CREATE TABLE clicks_floors (
    pid INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (pid, partition)
);
CREATE TABLE clicks_layout (
    id INTEGER NOT NULL,
    partitions INTEGER NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE clicks_partitions (
    partition INTEGER NOT NULL,
    log_end INTEGER NOT NULL,
    PRIMARY KEY (partition)
);
CREATE TABLE clicks_producers (
    partition INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (partition, pid)
);
INSERT INTO fencepost_schema (part, version) VALUES ('transport clicks', 4);
