-- name: dead_letters
-- A copy of each event that was given up, with the reason; it outlives the event's retention.
CREATE TABLE dead_letters (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    event_id uuid NOT NULL,
    key text,
    type text NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    payload bytea NOT NULL,
    created_at timestamptz NOT NULL,
    reason text NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    id bigint GENERATED ALWAYS AS IDENTITY,
    -- How often it was handed out, and how often it had been when it was redriven last.
    attempts integer NOT NULL DEFAULT 1,
    attempts_before integer NOT NULL DEFAULT 0,
    -- Later events of its key wait behind it, in the order of history and sequence.
    parked boolean NOT NULL DEFAULT false,
    -- It is to be handed out again.
    redriven_at timestamptz,
    -- The topic that its copy was published to, and the copy's id; or why it was not.
    forwarded_to bigint,
    forwarded_as uuid,
    not_forwarded text,
    PRIMARY KEY (subscription_id, partition_id, sequence, history)
);
-- Lists of a subscription, and single letters.
CREATE UNIQUE INDEX dead_letters_id ON dead_letters (subscription_id, id);
-- The keys whose events wait, and the first of each.
CREATE INDEX dead_letters_parked ON dead_letters (subscription_id, partition_id, key, history, sequence) WHERE parked;
-- What is to be handed out again; small, because that does not take long.
CREATE INDEX dead_letters_redriven ON dead_letters (subscription_id, partition_id, history, sequence)
WHERE redriven_at IS NOT NULL;
-- Those that have been kept for as long as a policy says.
CREATE INDEX dead_letters_died ON dead_letters (subscription_id, died_at) WHERE redriven_at IS NULL AND NOT parked;

-- name: attempts
-- How often the event behind a position was handed out, once it is suspected to be what breaks its consumer: a row for
-- a partition that is, or was, in trouble.
CREATE TABLE attempts (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    attempts integer NOT NULL,
    reason text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, partition_id)
) WITH (fillfactor = 50);

-- name: dropped_letters
-- Dead letters that somebody has thrown away: what they were and why they died, without their payload.
CREATE TABLE dropped_letters (
    subscription_id bigint NOT NULL,
    id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    event_id uuid NOT NULL,
    key text,
    type text NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL,
    died_at timestamptz NOT NULL,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dropped_by text NOT NULL,
    PRIMARY KEY (subscription_id, id)
);

-- name: letter_copies
-- The copies of dead letters that were published to a topic, each with where its event comes from. A row outlives the
-- letter, because an erasure finds the copy by it. It goes after the copy: see forget_letter_copies.
CREATE TABLE letter_copies (
    copy_id uuid PRIMARY KEY,
    topic_id bigint NOT NULL,
    subscription_id bigint NOT NULL,
    letter_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    event_id uuid NOT NULL,
    key text,
    forwarded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The partition of the copy, and its id in events.
    copy_partition_id bigint NOT NULL,
    row_id bigint NOT NULL,
    -- When a sweep looks next whether the copy is still there.
    look_at timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 hour'
);
-- The copies of an event, or of a key, for an erasure.
CREATE INDEX letter_copies_event ON letter_copies (event_id);
CREATE INDEX letter_copies_key ON letter_copies (key) WHERE key IS NOT NULL;
-- Those that go with a topic: that of the event, and that of the copy.
CREATE INDEX letter_copies_origin ON letter_copies (partition_id);
CREATE INDEX letter_copies_topic ON letter_copies (topic_id);
-- Those that a sweep looks at next.
CREATE INDEX letter_copies_look ON letter_copies (look_at);

-- name: letter_tasks
-- What somebody wants to be done with all dead letters of a subscription that match; the sweep does it bit by bit, from
-- the newest letter to the oldest. Letters that died after it was asked for are not touched.
CREATE TABLE letter_tasks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    action text COLLATE "C" NOT NULL CHECK (action IN ('redrive', 'drop')),
    -- Which letters, as a program has written it; only programs read it.
    filter text NOT NULL,
    reason text NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Letters below this id are still to be looked at; at first it is above all letters that there are.
    begun_below bigint NOT NULL,
    next_below bigint NOT NULL,
    looked bigint NOT NULL DEFAULT 0,
    changed bigint NOT NULL DEFAULT 0,
    ended_at timestamptz,
    -- Why it ended before it was done.
    problem text
);
-- Those that the sweep works on.
CREATE INDEX letter_tasks_open ON letter_tasks (id) WHERE ended_at IS NULL;
CREATE INDEX letter_tasks_subscription ON letter_tasks (subscription_id, id);

-- name: payload_looks
-- Who has looked at which payload, by name and by login.
CREATE TABLE payload_looks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    by text NOT NULL,
    person text NOT NULL,
    subject text NOT NULL
);

-- name: letter_moves
-- Moves of all that a queue of dead letters has, to where it comes from or to a topic; the sweep does them.
CREATE TABLE letter_moves (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    -- NULL: to where each letter comes from.
    topic_id bigint,
    most_per_second integer,
    expected bigint NOT NULL,
    moved bigint NOT NULL DEFAULT 0,
    requested_by text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    state text COLLATE "C" NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled', 'failed')),
    -- Why it failed.
    problem text
);
CREATE INDEX letter_moves_open ON letter_moves (id) WHERE ended_at IS NULL;
CREATE INDEX letter_moves_subscription ON letter_moves (subscription_id, id);
