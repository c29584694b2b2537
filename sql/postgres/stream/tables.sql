-- name: positions
-- The ledger of positions: appended, never updated, cut by id. The position of a partition is its newest row: ids rise
-- under the lock of the lease row, so the newest id is the newest position.
CREATE SEQUENCE positions_id CACHE 1;
CREATE TABLE positions (
    id bigint NOT NULL DEFAULT nextval('positions_id'),
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    -- In queue mode it is before the lowest unfinished sequence.
    position bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    -- start, seek: a person has put it there, and nothing was sent or handled since. carried: brought along when its
    -- slice was dropped. history: brought back because it lay beyond the log. queue:
    -- the dealer of a queue moved it.
    reason text NOT NULL CHECK (reason IN ('start', 'commit', 'seek', 'carried', 'history', 'queue')),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- In queue mode, the last sequence that was dealt.
    reached bigint,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- Finds the newest row of one partition from its end.
CREATE INDEX positions_newest ON positions (subscription_id, partition_id, id);

-- name: rejected_commits
-- Counts commits that a fence refused. A sequence, because a count in a table would roll back with the refusal.
CREATE SEQUENCE rejected_commits MINVALUE 0 START 0 CACHE 1;
