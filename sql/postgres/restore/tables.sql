-- name: histories
-- The lines of the log's history; each restore that lost commits opens the next one.
CREATE TABLE histories (
    history integer PRIMARY KEY,
    reason text NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: first_rows_of_histories
-- Every position belongs to a history, so the first one must exist.
INSERT INTO histories (history, reason) VALUES (1, 'installed');

-- name: history_starts
-- Where a history began in each partition: the end of the log at that moment. A reader outside the database whose
-- position is of an earlier history, and lies beyond, goes back to here.
CREATE TABLE history_starts (
    partition_id bigint NOT NULL,
    history integer NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (partition_id, history)
);

-- name: eras
-- Stretches of time in which transaction numbers can be compared: a restore into another cluster ends one.
CREATE TABLE eras (
    era integer PRIMARY KEY,
    -- NULL where a managed server refuses to tell the cluster or the timeline.
    system_identifier bigint,
    timeline text,
    -- Ids up to boundary_id were given before the era.
    boundary_id bigint NOT NULL,
    -- What was committed when the era opened; every transaction that took one of those ids has a number below settled.
    base pg_snapshot NOT NULL,
    settled xid8 NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What came into the log behind a restore and before its first pass has numbers of the new cluster, and is not
    -- found by those of the old one: the ids above doubtful_id are compared with the index of the log (NULL: none), and
    -- those up to reused_id, where the counter of events was set back.
    doubtful_id bigint,
    reused_id bigint NOT NULL DEFAULT 0,
    -- The number, in this cluster, of the transaction that loaded the newest tick: whoever published since has a higher
    -- one, whatever free ids it took. NULL: the numbers of that tick tell it.
    early_tx xid8
);

-- name: stops
-- Partitions that nobody reads until a restore is reconciled: source says that it has seen a sequence which the log, in
-- the same history, has not come to.
CREATE TABLE stops (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    source text NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who may not operate a topic stops only his own subscription; 0 stands for all readers.
    subscription_id bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, subscription_id)
);
