CREATE TABLE IF NOT EXISTS fencepost_schema (
    part VARBINARY(256) NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (part)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_consumers (
    id INTEGER NOT NULL AUTO_INCREMENT,
    name VARBINARY(1020) NOT NULL,
    settings LONGTEXT NOT NULL,
    key_types TEXT,
    horizon_ms BIGINT,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (name)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_holes (
    consumer INTEGER NOT NULL,
    pid VARBINARY(1000) NOT NULL,
    `partition` VARBINARY(1000) NOT NULL,
    epoch SMALLINT NOT NULL,
    last BIGINT NOT NULL,
    first BIGINT NOT NULL,
    timestamp BIGINT,
    PRIMARY KEY (consumer, pid, `partition`, epoch, last)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_messages (
    consumer INTEGER NOT NULL,
    id VARBINARY(2000) NOT NULL,
    version BIGINT NOT NULL,
    timestamp BIGINT,
    changed_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer, id, version)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_applied (
    consumer INTEGER NOT NULL,
    source VARBINARY(1020) NOT NULL,
    `position` BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer, source),
    FOREIGN KEY(consumer) REFERENCES fencepost_consumers (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_claims (
    consumer INTEGER NOT NULL,
    pid VARBINARY(1000) NOT NULL,
    `partition` VARBINARY(1000) NOT NULL,
    epoch SMALLINT,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    last_timestamp BIGINT,
    changed_ms BIGINT NOT NULL,
    more LONGTEXT,
    PRIMARY KEY (consumer, pid, `partition`),
    FOREIGN KEY(consumer) REFERENCES fencepost_consumers (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO fencepost_schema (part, version) VALUES ('sink', 2);
CREATE TABLE fencepost_dead_letters (
    consumer VARBINARY(1020) NOT NULL,
    topic VARBINARY(1020) NOT NULL,
    `partition` INTEGER NOT NULL,
    `offset` BIGINT NOT NULL,
    timestamp BIGINT,
    `key` LONGBLOB,
    value LONGBLOB,
    headers LONGTEXT,
    error_type LONGTEXT NOT NULL,
    error LONGTEXT NOT NULL,
    tries INTEGER NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer, topic, `partition`, `offset`)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO fencepost_schema (part, version) VALUES ('dead_letters', 1);
CREATE TABLE fencepost_requests (
    scope VARBINARY(1020) NOT NULL,
    `key` VARBINARY(1020) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    owner VARCHAR(32) NOT NULL,
    leased_until_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    steps LONGTEXT NOT NULL,
    status INTEGER,
    headers LONGTEXT,
    `body` LONGBLOB,
    PRIMARY KEY (scope, `key`)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE INDEX ix_fencepost_requests_expires_ms ON fencepost_requests (expires_ms);
INSERT INTO fencepost_schema (part, version) VALUES ('requests', 1);
CREATE TABLE fencepost_decisions (
    pid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    outcome VARCHAR(6) NOT NULL,
    decided_ms BIGINT NOT NULL,
    PRIMARY KEY (pid, epoch)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_pids (
    id INTEGER NOT NULL AUTO_INCREMENT,
    next_pid BIGINT NOT NULL,
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_positions (
    group_id VARBINARY(1000) NOT NULL,
    `partition` VARBINARY(1000) NOT NULL,
    `position` BIGINT,
    PRIMARY KEY (group_id, `partition`)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE fencepost_producers (
    transactional_id VARBINARY(1000) NOT NULL,
    pid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    previous_pid BIGINT NOT NULL,
    next_pid BIGINT NOT NULL,
    state INTEGER NOT NULL,
    timeout_ms BIGINT NOT NULL,
    partitions LONGTEXT NOT NULL,
    started_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    waiting LONGTEXT NOT NULL,
    coordinator_epoch INTEGER NOT NULL,
    PRIMARY KEY (transactional_id),
    UNIQUE (pid)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE INDEX ix_fencepost_producers_previous_pid ON fencepost_producers (previous_pid);
CREATE TABLE fencepost_staged_positions (
    transactional_id VARBINARY(1000) NOT NULL,
    group_id VARBINARY(1000) NOT NULL,
    `partition` VARBINARY(1000) NOT NULL,
    expected BIGINT NOT NULL,
    `position` BIGINT NOT NULL,
    PRIMARY KEY (transactional_id, group_id, `partition`)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO fencepost_schema (part, version) VALUES ('producers', 3);
CREATE TABLE fencepost_versions (
    sink VARBINARY(1020) NOT NULL,
    state VARCHAR(64) NOT NULL,
    version BIGINT NOT NULL,
    status VARCHAR(16) NOT NULL,
    changed_ms BIGINT NOT NULL,
    attempt VARCHAR(64),
    PRIMARY KEY (sink)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO fencepost_schema (part, version) VALUES ('versions', 2);
CREATE TABLE fencepost_tasks (
    task VARBINARY(64) NOT NULL,
    owner VARCHAR(320) NOT NULL,
    leased_until_ms BIGINT NOT NULL,
    due_ms BIGINT NOT NULL,
    finished_ms BIGINT NOT NULL,
    succeeded_ms BIGINT NOT NULL,
    failures INTEGER NOT NULL,
    PRIMARY KEY (task)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO fencepost_schema (part, version) VALUES ('daemon', 1);
CREATE TABLE clicks_commits (
    `partition` INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    pid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    count BIGINT NOT NULL,
    outcome VARCHAR(8) NOT NULL,
    PRIMARY KEY (`partition`, log_offset)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE clicks_floors (
    pid BIGINT NOT NULL,
    `partition` INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (pid, `partition`)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE clicks_layout (
    id INTEGER NOT NULL,
    partitions INTEGER NOT NULL,
    PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE clicks_partitions (
    `partition` INTEGER NOT NULL,
    log_end BIGINT NOT NULL,
    PRIMARY KEY (`partition`)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE clicks_producers (
    `partition` INTEGER NOT NULL,
    pid BIGINT NOT NULL,
    state LONGBLOB NOT NULL,
    PRIMARY KEY (`partition`, pid)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO fencepost_schema (part, version) VALUES ('transport clicks', 4);
CREATE TABLE clicks (
	page LONGTEXT, 
	pid BIGINT(20) NOT NULL, 
	epoch INTEGER(11) NOT NULL, 
	`partition` INTEGER(11) NOT NULL, 
	seq BIGINT(20) NOT NULL, 
	log_offset BIGINT(20) NOT NULL, 
	PRIMARY KEY (`partition`, log_offset)
)ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO clicks VALUES ('/', 1001, 0, 0, 0, 0);
INSERT INTO clicks VALUES ('/it''s\\', 1001, 0, 0, 1, 1);
INSERT INTO clicks_commits VALUES (0, 0, 1001, 0, 0, 1, 2, 'commit');
INSERT INTO clicks_floors VALUES (1001, -1, 0);
INSERT INTO clicks_layout VALUES (1, 2);
INSERT INTO clicks_partitions VALUES (0, 2);
INSERT INTO clicks_producers VALUES (0, 1001, X'465042524f4b52000100000028000000000000000300000000000000342e3305010100005c260500000000010100000000000000010000000000000050e52478130000000000000001000000000000000000000200000000000000f73f36747600000000000000010000000000000001e90300000000000000010000000000000000000100000000000000000001ffffffffffffffff0001ffffffffffffffff000100000000000000000001ffffffffffffffff000101000000000000000001010000000000000000010100000000000000000101000000000000000077c6e08f');
INSERT INTO fencepost_consumers VALUES (1, X'62696c6c696e67', '{"claim": "sequence", "columns": {"epoch": "epoch", "partition": ["partition"], "pid": ["pid"], "seq": "seq"}, "policy": "admit=any epochs=key first=any window=5 late=out_of_order gaps=report wrap=2147483648 max_jump=none reach=none intervals_max=none", "table": "orders", "timestamp": null}', '{"partition": "int32", "pid": "int64"}', NULL, 1795723977886);
INSERT INTO fencepost_consumers VALUES (2, X'6d61696c73', '{"claim": "message_id", "message_id": ["id"], "table": null, "timestamp": null}', '{"id": "text"}', NULL, 1795723977942);
INSERT INTO fencepost_dead_letters VALUES (X'62696c6c696e67', X'6f7264657273', 0, 9, NULL, NULL, X'ff', NULL, 'BatchError', 'it''s', 3, 5);
INSERT INTO fencepost_decisions VALUES (0, 0, 'commit', 1795723978103);
INSERT INTO fencepost_holes VALUES (1, X'37', X'30', 0, 2, 2, NULL);
INSERT INTO fencepost_messages VALUES (2, X'61', 0, NULL, 1795723977959);
INSERT INTO fencepost_messages VALUES (2, X'c3842d31', 0, NULL, 1795723977959);
INSERT INTO fencepost_pids VALUES (1, 2000);
INSERT INTO fencepost_positions VALUES (X'67726f7570', X'30', 10);
INSERT INTO fencepost_producers VALUES (X'67617465', 1001, 0, -1, -1, -1, 0, 60000, '[]', -1, 1795723978333, '[]', 0);
INSERT INTO fencepost_producers VALUES (X'6f74686572', 1000, 0, -1, -1, -1, 0, 60000, '[]', -1, 1795723978117, '[]', 0);
INSERT INTO fencepost_producers VALUES (X'7374616765', 0, 1, 0, -1, -1, 4, 60000, '[]', 1795723978089, 1795723978103, '[]', 0);
INSERT INTO fencepost_requests VALUES (X'73686f70', X'6b2d31', '230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5', '0e40f76ea8b54f9fbee6f29846b0f186', 0, 4505395351348653, '{}', 201, '[["Content-Type", "text/plain"]]', X'00ff275c');
CREATE TABLE orders (
	pid BIGINT(20), 
	epoch SMALLINT(6), 
	`partition` INTEGER(11), 
	seq BIGINT(20)
)ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE utf8mb4_general_ci;
INSERT INTO orders VALUES (7, 0, 0, 0);
INSERT INTO orders VALUES (7, 0, 0, 1);
INSERT INTO orders VALUES (7, 0, 0, 3);
INSERT INTO fencepost_applied VALUES (1, X'6f72646572732d30', 4, 1795723977928);
INSERT INTO fencepost_claims VALUES (1, X'37', X'30', 0, 0, 3, NULL, 1795723977922, '[[0,0,3,1,null,null,null]]');
