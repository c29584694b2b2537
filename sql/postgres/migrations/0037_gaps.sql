-- name: drop_changed_sequence_gaps
-- It has an argument more; what replaces it is applied after the migrations.
DROP FUNCTION IF EXISTS sequence_gaps(text);
