-- name: index_open_erasures
-- Those that are not finished: workers look whether there are some, and the record of a topic can be long.
CREATE INDEX erasures_open ON erasures (topic_id) WHERE finished_at IS NULL;
