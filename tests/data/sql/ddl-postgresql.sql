CREATE TABLE IF NOT EXISTS fencepost_schema (
    part VARCHAR(64) NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (part)
);
CREATE TABLE fencepost_consumers (
    id SERIAL NOT NULL,
    name VARCHAR(255) NOT NULL,
    settings TEXT NOT NULL,
    key_types TEXT,
    horizon_ms BIGINT,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (name)
);
CREATE TABLE fencepost_holes (
    consumer INTEGER NOT NULL,
    pid TEXT COLLATE "C" NOT NULL,
    partition TEXT COLLATE "C" NOT NULL,
    epoch SMALLINT NOT NULL,
    last BIGINT NOT NULL,
    first BIGINT NOT NULL,
    timestamp BIGINT,
    PRIMARY KEY (consumer, pid, partition, epoch, last)
);
CREATE TABLE fencepost_messages (
    consumer INTEGER NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    timestamp BIGINT,
    changed_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer, id, version)
);
CREATE TABLE fencepost_applied (
    consumer INTEGER NOT NULL,
    source VARCHAR(255) NOT NULL,
    position BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer, source),
    FOREIGN KEY(consumer) REFERENCES fencepost_consumers (id)
)
 WITH (fillfactor = 50);
CREATE TABLE fencepost_claims (
    consumer INTEGER NOT NULL,
    pid TEXT COLLATE "C" NOT NULL,
    partition TEXT COLLATE "C" NOT NULL,
    epoch SMALLINT,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    last_timestamp BIGINT,
    changed_ms BIGINT NOT NULL,
    more TEXT,
    PRIMARY KEY (consumer, pid, partition),
    FOREIGN KEY(consumer) REFERENCES fencepost_consumers (id)
)
 WITH (fillfactor = 50);
INSERT INTO fencepost_schema (part, version) VALUES ('sink', 2);
CREATE TABLE fencepost_dead_letters (
    consumer VARCHAR(255) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    partition INTEGER NOT NULL,
    "offset" BIGINT NOT NULL,
    timestamp BIGINT,
    key BYTEA,
    value BYTEA,
    headers TEXT,
    error_type TEXT NOT NULL,
    error TEXT NOT NULL,
    tries INTEGER NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer, topic, partition, "offset")
);
INSERT INTO fencepost_schema (part, version) VALUES ('dead_letters', 1);
CREATE TABLE fencepost_requests (
    scope VARCHAR(255) NOT NULL,
    key VARCHAR(255) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    owner VARCHAR(32) NOT NULL,
    leased_until_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    steps TEXT NOT NULL,
    status INTEGER,
    headers TEXT,
    body BYTEA,
    PRIMARY KEY (scope, key)
);
CREATE INDEX ix_fencepost_requests_expires_ms ON fencepost_requests (expires_ms);
INSERT INTO fencepost_schema (part, version) VALUES ('requests', 1);
CREATE TABLE fencepost_decisions (
    pid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    outcome VARCHAR(6) NOT NULL,
    decided_ms BIGINT NOT NULL,
    PRIMARY KEY (pid, epoch)
);
CREATE TABLE fencepost_pids (
    id SERIAL NOT NULL,
    next_pid BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE fencepost_positions (
    group_id VARCHAR NOT NULL,
    partition VARCHAR NOT NULL,
    position BIGINT,
    PRIMARY KEY (group_id, partition)
);
CREATE TABLE fencepost_producers (
    transactional_id VARCHAR NOT NULL,
    pid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    previous_pid BIGINT NOT NULL,
    next_pid BIGINT NOT NULL,
    state INTEGER NOT NULL,
    timeout_ms BIGINT NOT NULL,
    partitions TEXT NOT NULL,
    started_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
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
    expected BIGINT NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (transactional_id, group_id, partition)
);
INSERT INTO fencepost_schema (part, version) VALUES ('producers', 3);
CREATE TABLE fencepost_versions (
    sink VARCHAR(255) NOT NULL,
    state VARCHAR(64) NOT NULL,
    version BIGINT NOT NULL,
    status VARCHAR(16) NOT NULL,
    changed_ms BIGINT NOT NULL,
    attempt VARCHAR(64),
    PRIMARY KEY (sink)
);
INSERT INTO fencepost_schema (part, version) VALUES ('versions', 2);
CREATE TABLE fencepost_tasks (
    task VARCHAR(64) NOT NULL,
    owner VARCHAR(320) NOT NULL,
    leased_until_ms BIGINT NOT NULL,
    due_ms BIGINT NOT NULL,
    finished_ms BIGINT NOT NULL,
    succeeded_ms BIGINT NOT NULL,
    failures INTEGER NOT NULL,
    PRIMARY KEY (task)
);
INSERT INTO fencepost_schema (part, version) VALUES ('daemon', 1);
CREATE TABLE clicks_commits (
    partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    pid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    count BIGINT NOT NULL,
    outcome VARCHAR(8) NOT NULL,
    PRIMARY KEY (partition, log_offset)
);
CREATE TABLE clicks_floors (
    pid BIGINT NOT NULL,
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
    log_end BIGINT NOT NULL,
    PRIMARY KEY (partition)
);
CREATE TABLE clicks_producers (
    partition INTEGER NOT NULL,
    pid BIGINT NOT NULL,
    state BYTEA NOT NULL,
    PRIMARY KEY (partition, pid)
);
INSERT INTO fencepost_schema (part, version) VALUES ('transport clicks', 4);
