-- name: positions
-- The ledger of positions: appended, never updated; old slices are dropped. The position of a partition is its newest
-- row: ids rise under the lock of the lease row.
CREATE TABLE IF NOT EXISTS positions (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    -- In queue mode it is before the lowest unfinished sequence.
    position BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    -- start, seek: a person has put it there, and nothing was sent or handled since. carried: brought along when its
    -- slice was dropped. history: brought back because it lay beyond the log. queue:
    -- the dealer of a queue moved it.
    reason VARCHAR(20) NOT NULL,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- In queue mode, the last sequence that was dealt.
    reached BIGINT,
    -- Finds the newest row of one partition from its end.
    KEY positions_newest (subscription_id, partition_id, id),
    CONSTRAINT positions_reason CHECK (reason IN ('start', 'commit', 'seek', 'carried', 'history', 'queue'))
) ENGINE = InnoDB
PARTITION BY RANGE (id) (
    PARTITION s1 VALUES LESS THAN (100000),
    PARTITION s100000 VALUES LESS THAN (500000),
    PARTITION s500000 VALUES LESS THAN (2500000)
);

-- name: rejected_commits
-- Counts commits that a fence refused by its AUTO_INCREMENT: rows would roll back with the refusal, the counter does
-- not.
CREATE TABLE IF NOT EXISTS rejected_commits (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB;
