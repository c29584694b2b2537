-- name: drop_shared_strict_locks
-- They were every topic's: a transaction left open in one made publishers of another wait.
DROP TABLE strict_locks;

-- name: create_strict_locks
-- What publishers of one key wait for each other at, when they asked for the order of commits: a row for each bucket of keys that
-- a topic has used.
CREATE TABLE strict_locks (
    topic_id bigint NOT NULL,
    bucket integer NOT NULL,
    PRIMARY KEY (topic_id, bucket)
);
