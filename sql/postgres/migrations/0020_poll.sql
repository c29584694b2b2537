-- name: drop_changed_poll
-- It has one argument more; what replaces it is applied after the migrations.
DROP FUNCTION IF EXISTS poll(text, text, bigint[], bigint[], bigint[], integer);
