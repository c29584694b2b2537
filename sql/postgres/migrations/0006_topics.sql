-- name: topic_properties
-- strategy says how a partition is chosen; the limits are the back pressure's, NULL for none; restricted says that
-- rights are asked for.
ALTER TABLE topics
    ADD COLUMN strategy text NOT NULL DEFAULT 'crc32',
    ADD COLUMN max_unsequenced_events bigint,
    ADD COLUMN max_unsequenced_bytes bigint,
    ADD COLUMN restricted boolean NOT NULL DEFAULT false;

-- name: index_topics_namespace
-- The topics of a namespace, for what is done to a subtree.
CREATE UNIQUE INDEX topics_namespace ON topics (namespace_id, name);

-- name: create_deleted_topics
-- Topics that are gone. Events of transactions that still saw one are discarded by the sequencer, and counted here.
CREATE TABLE deleted_topics (
    topic_id bigint PRIMARY KEY,
    address text NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_by text NOT NULL DEFAULT session_user,
    discarded bigint NOT NULL DEFAULT 0
);

-- name: create_name_tree
-- One row, on which nobody has rights: whoever changes the tree of names locks it, and creates share it.
CREATE TABLE name_tree (
    singleton boolean PRIMARY KEY CHECK (singleton)
);

-- name: fill_name_tree
-- The row to lock.
INSERT INTO name_tree (singleton) VALUES (true);

-- name: drop_changed_functions
-- Functions whose arguments or results changed; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS create_topic(text, integer);
DROP FUNCTION IF EXISTS topic_lookup(text);
DROP FUNCTION IF EXISTS list_topics(text);
