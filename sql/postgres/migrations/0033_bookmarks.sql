-- name: create_bookmarks
-- Named positions of a topic, with a row for each partition: the last sequence before it, and the history in which it
-- was placed. lost_in: the history that began when the log ended before this position.
CREATE TABLE bookmarks (
    topic_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    partition_id bigint NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    history integer NOT NULL,
    lost_in integer,
    placed_at timestamptz NOT NULL,
    placed_by text NOT NULL,
    PRIMARY KEY (topic_id, name, partition_id)
);

-- name: times_of_log_epochs
-- No event of a log epoch, or of one before it, was sequenced after this time. Of those that were sealed before there
-- was this column, only the time of the seal is known.
ALTER TABLE log_epochs ADD COLUMN sequenced_until timestamptz;
UPDATE log_epochs AS e SET sequenced_until = o.until
FROM (
    SELECT s.partition_id, s.log_epoch,
           max(s.sealed_at) OVER (PARTITION BY s.partition_id ORDER BY s.log_epoch) AS until
    FROM log_epochs AS s
) AS o
WHERE o.partition_id = e.partition_id AND o.log_epoch = e.log_epoch;
ALTER TABLE log_epochs
    ALTER COLUMN sequenced_until SET DEFAULT clock_timestamp(),
    ALTER COLUMN sequenced_until SET NOT NULL;

-- name: index_times_of_log_epochs
-- In which log epoch a time is.
CREATE INDEX log_epochs_sequenced ON log_epochs (partition_id, sequenced_until, log_epoch);
