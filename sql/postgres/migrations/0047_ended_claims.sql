-- name: drop_changed_functions
-- They have other arguments or another result; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS end_claims(queues, bigint, timestamptz);
DROP FUNCTION IF EXISTS move_claims(bigint, queue_turns);
DROP FUNCTION IF EXISTS settle_keys(bigint);
