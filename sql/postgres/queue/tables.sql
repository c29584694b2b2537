-- name: queues
-- The settings of a subscription in queue mode. Its row is the lock of the dealer and is hardly ever updated.
CREATE TABLE queues (
    subscription_id bigint PRIMARY KEY,
    visibility_seconds double precision NOT NULL DEFAULT 30,
    max_deliveries integer NOT NULL DEFAULT 5,
    max_failures integer NOT NULL DEFAULT 5,
    max_in_flight integer NOT NULL DEFAULT 100000,
    first_backoff_seconds double precision NOT NULL DEFAULT 2,
    longest_backoff_seconds double precision NOT NULL DEFAULT 300,
    jitter double precision NOT NULL DEFAULT 0.2,
    -- Whether it hands out one event of a key at a time, in order (key), or does not look at keys (none).
    "order" text NOT NULL DEFAULT 'none' CHECK ("order" IN ('none', 'key')),
    -- Events that are older are thrown away unread; 0: none is.
    retention_seconds double precision NOT NULL DEFAULT 0
);

-- name: queue_labels
-- What a program keeps about a queue that the queue does not know, an SQS door its attributes and tags for example.
CREATE TABLE queue_labels (
    subscription_id bigint PRIMARY KEY,
    labels jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: queue_ranges
-- What a queue has dealt and not finished: ranges of sequences, each free (no token) or claimed. A claim that ended is
-- deleted, one that diverged is cut. Cut by id, dropped slice by slice; ids rise under the dealer's lock.
CREATE SEQUENCE queue_ranges_id CACHE 1;
CREATE TABLE queue_ranges (
    id bigint NOT NULL DEFAULT nextval('queue_ranges_id'),
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    deliveries integer NOT NULL DEFAULT 0,
    token uuid,
    deadline timestamptz,
    -- The bits of its events that are finished.
    finished bit varying,
    -- Its event, when it is one that came back out of the window.
    waiting_id bigint,
    -- The claim by whose receipts it can still be finished, with their token once it is free again.
    former bigint,
    former_token uuid,
    -- Where its events stand and when they got their sequences, as the dealer has seen it; of long ranges and of those
    -- that were cut, the index of the log has it.
    event_ids bigint[],
    sequenced_at timestamptz,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- What a queue can hand out, from the first free range on, and its whole window, from the lowest unfinished one on.
CREATE INDEX queue_ranges_pool ON queue_ranges (subscription_id, id);
-- Only what diverged: the ranges that replaced an earlier claim.
CREATE INDEX queue_ranges_former ON queue_ranges (subscription_id, former) WHERE former IS NOT NULL;

-- name: queue_turns
-- What the dealer found, appended at every turn; the newest row of a subscription counts.
CREATE SEQUENCE queue_turns_id CACHE 1;
CREATE TABLE queue_turns (
    id bigint NOT NULL DEFAULT nextval('queue_turns_id'),
    subscription_id bigint NOT NULL,
    -- Below floor_id no range is there at all, below free_id none is free.
    floor_id bigint NOT NULL,
    free_id bigint NOT NULL,
    last_id bigint NOT NULL,
    range_size integer NOT NULL,
    -- When somebody has to look again.
    rest_until timestamptz NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- Finds the newest row of a subscription from its end.
CREATE INDEX queue_turns_newest ON queue_turns (subscription_id, id);

-- name: queue_waiting
-- Events out of the window: they wait for a retry, or have a body of their own. Each is a whole copy, so that neither
-- retention nor the window waits for it.
CREATE TABLE queue_waiting (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    -- NULL: it is in the window again.
    due_at timestamptz,
    deliveries integer NOT NULL,
    -- How often it was handed out before it was redriven, where that goes on counting.
    deliveries_before integer NOT NULL DEFAULT 0,
    failures integer NOT NULL,
    reason text NOT NULL,
    event_id uuid NOT NULL,
    key text,
    type text NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    payload bytea NOT NULL,
    body bytea,
    created_at timestamptz NOT NULL,
    sequenced_at timestamptz NOT NULL,
    -- When an attempt has failed last; the reason says why.
    failed_at timestamptz
);
-- Those that wait, by the time when they are due.
CREATE INDEX queue_waiting_due ON queue_waiting (subscription_id, due_at) WHERE due_at IS NOT NULL;
-- The events of a subscription, and of a partition that goes.
CREATE INDEX queue_waiting_place ON queue_waiting (subscription_id, partition_id, sequence);
-- Those that are too old for their queue.
CREATE INDEX queue_waiting_age ON queue_waiting (subscription_id, sequenced_at);

-- name: queue_keys
-- The unfinished events with a key that a queue has dealt whose order is key.
CREATE TABLE queue_keys (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    -- The copy of the event; 0 while only the log has it.
    waiting_id bigint NOT NULL DEFAULT 0,
    -- Of the key no more than a digest is kept.
    key_digest bytea NOT NULL,
    -- first: the one of its key that can be handed out, is handed out or waits for a retry. behind: it waits for that
    -- one. unsure: as behind, but that one was just being finished, so the dealer looks again.
    state text NOT NULL CHECK (state IN ('first', 'behind', 'unsure')),
    PRIMARY KEY (subscription_id, partition_id, sequence, waiting_id)
);
-- The events of a key, in their order.
CREATE INDEX queue_keys_key ON queue_keys (subscription_id, partition_id, key_digest, sequence, waiting_id);
-- What is in hand and not in the window.
CREATE INDEX queue_keys_behind ON queue_keys (subscription_id, partition_id, sequence) WHERE state <> 'first';
-- What the dealer has to look at again.
CREATE INDEX queue_keys_unsure ON queue_keys (subscription_id) WHERE state = 'unsure';

-- name: queue_purges
-- What was thrown away unread, by whom: no event is skipped without a row.
CREATE TABLE queue_purges (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    purged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    purged_by text NOT NULL,
    -- purge: somebody has asked for it. retention_seconds: they were older.
    reason text NOT NULL DEFAULT 'purge',
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);

-- name: queue_piece
-- What a receipt has taken out of its claim: a range of one partition, without the events whose bits are set.
CREATE TYPE queue_piece AS (
    entry integer,
    claim bigint,
    partition_id bigint,
    first_sequence bigint,
    last_sequence bigint,
    deliveries integer,
    deadline timestamptz,
    finished bit varying,
    waiting_id bigint
);
