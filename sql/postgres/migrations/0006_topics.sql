-- name: topic_properties
-- strategy says how a partition is chosen; the limits are the back pressure's, NULL for none; restricted says that
-- rights are asked for.
ALTER TABLE topics
    ADD COLUMN strategy text NOT NULL DEFAULT 'crc32',
    ADD COLUMN max_unsequenced_events bigint,
    ADD COLUMN max_unsequenced_bytes bigint,
    ADD COLUMN restricted boolean NOT NULL DEFAULT false;

-- name: create_deleted_topics
-- Topics that are gone. Events of transactions that still saw one are discarded by the sequencer, and counted here.
CREATE TABLE deleted_topics (
    topic_id bigint PRIMARY KEY,
    address text NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_by text NOT NULL DEFAULT session_user,
    discarded bigint NOT NULL DEFAULT 0
);
