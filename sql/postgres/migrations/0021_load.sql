-- name: leave_weights_to_join
-- join refuses a bad weight, and nobody else writes one: as a constraint it was read anew for each heartbeat.
ALTER TABLE consumers DROP CONSTRAINT consumers_weight_check;

-- name: index_leases_releasing
-- Each check-in asks for leases that were to be released and are overdue.
CREATE INDEX leases_releasing ON leases (subscription_id, release_deadline) WHERE state = 'RELEASING';

-- name: create_shares
-- The quotas of those who held too little, too much or something cold at the last survey, for the check-ins until the next one.
CREATE TABLE shares (
    subscription_id bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    quota bigint NOT NULL,
    PRIMARY KEY (subscription_id, consumer)
) WITH (fillfactor = 50);

-- name: count_uncovered
-- How many of the partitions that somebody is short of are not free, less what was asked back since the last survey.
ALTER TABLE surveys ADD COLUMN uncovered bigint NOT NULL DEFAULT 0;

-- name: drop_changed_functions
-- Functions whose arguments or results changed; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS find_active(bigint, timestamptz);
DROP FUNCTION IF EXISTS survey(subscriptions, timestamptz, timestamptz);
DROP FUNCTION IF EXISTS find_share(bigint, text, bigint[]);
