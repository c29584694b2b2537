-- name: drop_changed_functions
-- They have other arguments; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS undealt_parts(bigint, bigint);
DROP FUNCTION IF EXISTS claim_events(queues, integer, timestamptz);
DROP FUNCTION IF EXISTS claim_ranges(bigint, queue_turns, integer, timestamptz);
