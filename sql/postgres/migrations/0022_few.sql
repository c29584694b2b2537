-- name: replaced_tick_start
-- It always knows the lowest id now, and is told the horizon of the tick before.
DROP FUNCTION IF EXISTS tick_start(pg_snapshot, pg_snapshot, integer);

-- name: replaced_next_tick
-- Whether a walk along the primary key pays, the caller says now.
DROP FUNCTION IF EXISTS next_tick(ticks, bigint, integer);
