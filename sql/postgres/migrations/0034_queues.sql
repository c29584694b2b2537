-- name: modes_of_subscriptions
-- A subscription in queue mode hands out single events; stream functions refuse it.
ALTER TABLE subscriptions DROP CONSTRAINT subscriptions_mode_check;
ALTER TABLE subscriptions ADD CONSTRAINT subscriptions_mode_check CHECK (mode IN ('stream', 'queue'));

-- name: rights_of_queues
-- Receive, acknowledge and peek can be given one by one; consume includes them.
ALTER TABLE namespace_grants DROP CONSTRAINT namespace_grants_verb_check;
ALTER TABLE namespace_grants ADD CONSTRAINT namespace_grants_verb_check
    CHECK (verb IN ('publish', 'consume', 'operate', 'read', 'receive', 'acknowledge', 'peek'));

-- name: positions_of_queues
-- In queue mode position is before the lowest unfinished sequence, and reached is the last one that was dealt.
ALTER TABLE positions ADD COLUMN reached bigint;
ALTER TABLE positions DROP CONSTRAINT positions_reason_check;
ALTER TABLE positions ADD CONSTRAINT positions_reason_check
    CHECK (reason IN ('start', 'commit', 'seek', 'carried', 'history', 'queue'));

-- name: create_queues
-- The settings of a subscription in queue mode. Its row is the lock of the dealer and is hardly ever updated.
CREATE TABLE queues (
    subscription_id bigint PRIMARY KEY,
    visibility_seconds double precision NOT NULL DEFAULT 30,
    max_deliveries integer NOT NULL DEFAULT 5,
    max_failures integer NOT NULL DEFAULT 5,
    max_in_flight integer NOT NULL DEFAULT 100000,
    first_backoff_seconds double precision NOT NULL DEFAULT 2,
    longest_backoff_seconds double precision NOT NULL DEFAULT 300,
    jitter double precision NOT NULL DEFAULT 0.2
);

-- name: create_queue_ranges_id
-- Rises under the dealer's lock.
CREATE SEQUENCE queue_ranges_id CACHE 1;

-- name: create_queue_ranges
-- What a queue has dealt and not finished: ranges of sequences, each free (no token) or claimed. A claim that ended is
-- deleted, one that diverged is cut. finished: the bits of its events that are finished. former: the claim by whose
-- receipts it can still be finished, with their token once it is free again. waiting_id: its event, when it is one that
-- came back out of the window. Cut by id, dropped slice by slice.
CREATE TABLE queue_ranges (
    id bigint NOT NULL DEFAULT nextval('queue_ranges_id'),
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    deliveries integer NOT NULL DEFAULT 0,
    token uuid,
    deadline timestamptz,
    finished bit varying,
    waiting_id bigint,
    former bigint,
    former_token uuid,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- name: index_queue_ranges_pool
-- What a queue can hand out, from the first free range on, and its whole window, from the lowest unfinished one on.
CREATE INDEX queue_ranges_pool ON queue_ranges (subscription_id, id);

-- name: index_queue_ranges_former
-- Only what diverged: the ranges that replaced an earlier claim.
CREATE INDEX queue_ranges_former ON queue_ranges (subscription_id, former) WHERE former IS NOT NULL;

-- name: create_queue_turns_id
-- As positions_id.
CREATE SEQUENCE queue_turns_id CACHE 1;

-- name: create_queue_turns
-- What the dealer found, appended at every turn; the newest row of a subscription counts. free_id and floor_id: below
-- them no range is free, or there at all. rest_until: when somebody has to look again.
CREATE TABLE queue_turns (
    id bigint NOT NULL DEFAULT nextval('queue_turns_id'),
    subscription_id bigint NOT NULL,
    floor_id bigint NOT NULL,
    free_id bigint NOT NULL,
    last_id bigint NOT NULL,
    range_size integer NOT NULL,
    rest_until timestamptz NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- name: index_queue_turns_newest
-- Finds the newest row of a subscription from its end.
CREATE INDEX queue_turns_newest ON queue_turns (subscription_id, id);

-- name: create_queue_waiting
-- Events out of the window: they wait for a retry, or have a body of their own. Each is a whole copy, so that neither
-- retention nor the window waits for it. due_at NULL: it is in the window again.
CREATE TABLE queue_waiting (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    due_at timestamptz,
    deliveries integer NOT NULL,
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
    sequenced_at timestamptz NOT NULL
);

-- name: index_queue_waiting_due
-- Those that wait, by the time when they are due.
CREATE INDEX queue_waiting_due ON queue_waiting (subscription_id, due_at) WHERE due_at IS NOT NULL;

-- name: index_queue_waiting_place
-- The events of a subscription, and of a partition that goes.
CREATE INDEX queue_waiting_place ON queue_waiting (subscription_id, partition_id, sequence);

-- name: create_queue_purges
-- What was thrown away unread, by whom: no event is skipped without a row.
CREATE TABLE queue_purges (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    purged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    purged_by text NOT NULL DEFAULT session_user
);

-- name: drop_changed_functions
-- They have an argument more; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS subscribe(text, text[], text);

-- name: create_queue_piece
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
