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
