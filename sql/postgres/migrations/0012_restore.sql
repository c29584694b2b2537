-- name: ticks_of_repairs
-- A restore can come while what an earlier one left is not repaired yet, or nothing was published behind it. repair_era: the era in
-- which the oldest repair began that a tick goes on with, 0 for a tick that repairs nothing. repaired_id: what earlier ones of
-- these repairs had worked off when they were cut off.
ALTER TABLE ticks
    ADD COLUMN repair_era integer NOT NULL DEFAULT 0,
    ADD COLUMN repaired_id bigint NOT NULL DEFAULT 0;
UPDATE ticks SET repair_era = era WHERE repair;

-- name: replaced_functions
-- Their arguments or names changed.
DROP FUNCTION IF EXISTS repair_events(pg_snapshot, pg_snapshot, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS is_indexed(bigint, bigint);
DROP FUNCTION IF EXISTS straddles(xid8, bigint, bigint);
