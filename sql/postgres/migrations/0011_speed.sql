-- name: store_event_ids_as_they_are
-- Ids of one partition are alike but not equal: compressing them cost an eighth of a pass and every reader again, to halve 8
-- bytes an event. Chunks that are there stay as they are.
ALTER TABLE chunks ALTER COLUMN event_ids SET STORAGE EXTERNAL;

-- name: replaced_append_chunks
-- It takes the two snapshots beside the tick.
DROP FUNCTION IF EXISTS append_chunks(ticks, integer, bigint);
