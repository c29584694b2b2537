-- name: order_of_queues
-- Whether a queue hands out one event of a key at a time, in order (key), or does not look at keys (none).
ALTER TABLE queues ADD COLUMN "order" text NOT NULL DEFAULT 'none' CHECK ("order" IN ('none', 'key'));

-- name: create_queue_keys
-- The unfinished events with a key that a queue has dealt whose order is key. first: the one of its key that can be
-- handed out, is handed out or waits for a retry. behind: it waits for that one. unsure: as behind, but that one was
-- just being finished, so the dealer looks again. waiting_id: the copy of the event, 0 while only the log has it. Of
-- the key no more than a digest is kept.
CREATE TABLE queue_keys (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    waiting_id bigint NOT NULL DEFAULT 0,
    key_digest bytea NOT NULL,
    state text NOT NULL CHECK (state IN ('first', 'behind', 'unsure')),
    PRIMARY KEY (subscription_id, partition_id, sequence, waiting_id)
);

-- name: index_queue_keys_key
-- The events of a key, in their order.
CREATE INDEX queue_keys_key ON queue_keys (subscription_id, partition_id, key_digest, sequence, waiting_id);

-- name: index_queue_keys_behind
-- What is in hand and not in the window.
CREATE INDEX queue_keys_behind ON queue_keys (subscription_id, partition_id, sequence) WHERE state <> 'first';

-- name: index_queue_keys_unsure
-- What the dealer has to look at again.
CREATE INDEX queue_keys_unsure ON queue_keys (subscription_id) WHERE state = 'unsure';

-- name: drop_changed_functions
-- They return or take something else; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS describe_queue(text);
DROP FUNCTION IF EXISTS move_floors(bigint, bigint);
DROP FUNCTION IF EXISTS copy_out(bigint, queue_piece[]);
DROP FUNCTION IF EXISTS bury_pieces(bigint, queue_piece[], text);
