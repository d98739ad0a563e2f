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
CREATE TABLE clicks (
	page TEXT, 
	pid BIGINT NOT NULL, 
	epoch INTEGER NOT NULL, 
	partition INTEGER NOT NULL, 
	seq BIGINT NOT NULL, 
	log_offset BIGINT NOT NULL, 
	CONSTRAINT clicks_pkey PRIMARY KEY (partition, log_offset)
);
INSERT INTO clicks VALUES ('/', 1001, 0, 0, 0, 0);
INSERT INTO clicks VALUES ('/it''s\', 1001, 0, 0, 1, 1);
INSERT INTO clicks_commits VALUES (0, 0, 1001, 0, 0, 1, 2, 'commit');
INSERT INTO clicks_floors VALUES (1001, -1, 0);
INSERT INTO clicks_layout VALUES (1, 2);
INSERT INTO clicks_partitions VALUES (0, 2);
INSERT INTO clicks_producers VALUES (0, 1001, '\x465042524f4b52000100000028000000000000000300000000000000342e3305010100005c260500000000010100000000000000010000000000000050e52478130000000000000001000000000000000000000200000000000000f73f36747600000000000000010000000000000001e90300000000000000010000000000000000000100000000000000000001ffffffffffffffff0001ffffffffffffffff000100000000000000000001ffffffffffffffff000101000000000000000001010000000000000000010100000000000000000101000000000000000077c6e08f');
INSERT INTO fencepost_consumers VALUES (1, 'billing', '{"claim": "sequence", "columns": {"epoch": "epoch", "partition": ["partition"], "pid": ["pid"], "seq": "seq"}, "policy": "admit=any epochs=key first=any window=5 late=out_of_order gaps=report wrap=2147483648 max_jump=none reach=none intervals_max=none", "table": "orders", "timestamp": null}', '{"partition": "int32", "pid": "int64"}', NULL, 1795723977153);
INSERT INTO fencepost_consumers VALUES (2, 'mails', '{"claim": "message_id", "message_id": ["id"], "table": null, "timestamp": null}', '{"id": "text"}', NULL, 1795723977178);
INSERT INTO fencepost_dead_letters VALUES ('billing', 'orders', 0, 9, NULL, NULL, '\xff', NULL, 'BatchError', 'it''s', 3, 5);
INSERT INTO fencepost_decisions VALUES (0, 0, 'commit', 1795723977224);
INSERT INTO fencepost_holes VALUES (1, '7', '0', 0, 2, 2, NULL);
INSERT INTO fencepost_messages VALUES (2, 'a', 0, NULL, 1795723977186);
INSERT INTO fencepost_messages VALUES (2, 'Ä-1', 0, NULL, 1795723977186);
INSERT INTO fencepost_pids VALUES (1, 2000);
INSERT INTO fencepost_positions VALUES ('group', '0', 10);
INSERT INTO fencepost_producers VALUES ('stage', 0, 1, 0, -1, -1, 4, 60000, '[]', 1795723977215, 1795723977224, '[]', 0);
INSERT INTO fencepost_producers VALUES ('other', 1000, 0, -1, -1, -1, 0, 60000, '[]', -1, 1795723977236, '[]', 0);
INSERT INTO fencepost_producers VALUES ('gate', 1001, 0, -1, -1, -1, 0, 60000, '[]', -1, 1795723977313, '[]', 0);
INSERT INTO fencepost_requests VALUES ('shop', 'k-1', '230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5', '383eb5be09b2476d97f07c3b8b3d299c', 0, 4505395351347746, '{}', 201, '[["Content-Type", "text/plain"]]', '\x00ff275c');
CREATE TABLE orders (
	pid BIGINT, 
	epoch SMALLINT, 
	partition INTEGER, 
	seq BIGINT
);
INSERT INTO orders VALUES (7, 0, 0, 0);
INSERT INTO orders VALUES (7, 0, 0, 1);
INSERT INTO orders VALUES (7, 0, 0, 3);
INSERT INTO fencepost_applied VALUES (1, 'orders-0', 4, 1795723977170);
INSERT INTO fencepost_claims VALUES (1, '7', '0', 0, 0, 3, NULL, 1795723977170, '[[0,0,3,1,null,null,null]]');
