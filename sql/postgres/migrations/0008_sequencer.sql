-- name: events_due_at
-- An event that is to come later: not before due_at. NULL is at once.
ALTER TABLE events ADD COLUMN due_at timestamptz;

-- name: create_delayed
-- Events that are not due yet, by the microsecond (since 1970) at which they are. Never deleted: the sequencer's cursor says
-- up to where they were taken, and slices behind it are dropped.
CREATE TABLE delayed (
    due bigint NOT NULL,
    id bigint NOT NULL,
    partition_id bigint NOT NULL,
    PRIMARY KEY (due, id)
) PARTITION BY RANGE (due);

-- name: create_eras
-- Stretches of time in which transaction numbers can be compared: a restore into another cluster ends one. Ids up to
-- boundary_id were given before the era; base is what was committed when it opened, and every transaction that took one
-- of those ids has a number below settled.
CREATE TABLE eras (
    era integer PRIMARY KEY,
    system_identifier bigint NOT NULL,
    timeline text NOT NULL,
    boundary_id bigint NOT NULL,
    base pg_snapshot NOT NULL,
    settled xid8 NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: ticks_of_eras
-- repair: the tick works off what an earlier era left, by the numbers of that era, up to the boundary. done_id is how far the
-- tick that the restore cut off had come. due and due_id: all delayed events up to there were taken.
ALTER TABLE ticks
    ADD COLUMN era integer NOT NULL DEFAULT 1,
    ADD COLUMN repair boolean NOT NULL DEFAULT false,
    ADD COLUMN done_id bigint NOT NULL DEFAULT 0,
    ADD COLUMN due bigint NOT NULL DEFAULT 0,
    ADD COLUMN due_id bigint NOT NULL DEFAULT 0;

-- name: first_tick_knew_no_id
-- It said 1, which is what a sequence shows before it has handed out any: a first tick of many events began behind the first.
UPDATE ticks SET highest_id = 0 WHERE id = 1 AND highest_id = 1;

-- name: replaced_functions
-- Their results or arguments changed.
DROP FUNCTION IF EXISTS fresh_events(pg_snapshot, pg_snapshot, bigint);
DROP FUNCTION IF EXISTS near_events(pg_snapshot, pg_snapshot, bigint, integer);
DROP FUNCTION IF EXISTS append_chunks(pg_snapshot, pg_snapshot, bigint, integer);
