-- name: counters_that_went_back
-- What came into the log behind a restore and before its first pass has numbers of the new cluster, and is not found by those of the
-- old one: the ids above doubtful_id are compared with the index of the log (NULL: none, as before), and those up to
-- reused_id, where the counter of events was set back. chunk_id is the newest that
-- was given out before a pass, so that the next one sees that the counter was set back.
ALTER TABLE eras ADD COLUMN doubtful_id bigint, ADD COLUMN reused_id bigint NOT NULL DEFAULT 0;
ALTER TABLE ticks ADD COLUMN chunk_id bigint NOT NULL DEFAULT 0;
