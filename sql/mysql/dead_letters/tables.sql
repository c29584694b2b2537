-- name: dead_letters
-- A copy of each event that was given up, with the reason; it outlives the event's retention.
CREATE TABLE IF NOT EXISTS dead_letters (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT,
    payload LONGBLOB NOT NULL,
    created_at DATETIME(6) NOT NULL,
    reason TEXT NOT NULL,
    died_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    id BIGINT NOT NULL AUTO_INCREMENT,
    -- How often it was handed out, and how often it had been when it was redriven last.
    attempts INT NOT NULL DEFAULT 1,
    attempts_before INT NOT NULL DEFAULT 0,
    -- Later events of its key wait behind it, in the order of history and sequence.
    parked BOOLEAN NOT NULL DEFAULT FALSE,
    -- It is to be handed out again.
    redriven_at DATETIME(6),
    -- The topic that its copy was published to, and the copy's id; or why it was not.
    forwarded_to BIGINT,
    forwarded_as BINARY(16),
    not_forwarded VARCHAR(500),
    PRIMARY KEY (subscription_id, partition_id, sequence, history),
    UNIQUE KEY dead_letters_id (id),
    -- Lists of a subscription.
    KEY dead_letters_subscription (subscription_id, id),
    -- The keys whose events wait, and the first of each.
    KEY dead_letters_parked (subscription_id, parked, partition_id, `key`, history, sequence),
    KEY dead_letters_redriven (subscription_id, partition_id, redriven_at),
    -- Those that have been kept for as long as a policy says.
    KEY dead_letters_died (subscription_id, died_at)
) ENGINE = InnoDB;

-- name: attempts
-- How often the event behind a position was handed out, once it is suspected to be what breaks its consumer: a row for
-- a partition that is, or was, in trouble.
CREATE TABLE IF NOT EXISTS attempts (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    attempts INT NOT NULL,
    reason TEXT NOT NULL,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, partition_id)
) ENGINE = InnoDB;

-- name: dropped_letters
-- Dead letters that somebody has thrown away: what they were and why they died, without their payload.
CREATE TABLE IF NOT EXISTS dropped_letters (
    subscription_id BIGINT NOT NULL,
    id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    reason TEXT NOT NULL,
    attempts INT NOT NULL,
    died_at DATETIME(6) NOT NULL,
    dropped_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    dropped_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (subscription_id, id)
) ENGINE = InnoDB;

-- name: letter_copies
-- The copies of dead letters that were published to a topic, each with where its event comes from. A row outlives the
-- letter, because an erasure finds the copy by it. It goes after the copy: see forget_letter_copies.
CREATE TABLE IF NOT EXISTS letter_copies (
    copy_id BINARY(16) NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    subscription_id BIGINT NOT NULL,
    letter_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    forwarded_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- The partition of the copy, and its id in events.
    copy_partition_id BIGINT NOT NULL,
    row_id BIGINT NOT NULL,
    -- When a sweep looks next whether the copy is still there.
    look_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6) + INTERVAL 1 HOUR),
    -- The copies of an event, or of a key, for an erasure.
    KEY letter_copies_event (event_id),
    KEY letter_copies_key (`key`),
    -- Those that go with a topic: that of the event, and that of the copy.
    KEY letter_copies_origin (partition_id),
    KEY letter_copies_topic (topic_id),
    -- Those that a sweep looks at next.
    KEY letter_copies_look (look_at)
) ENGINE = InnoDB;

-- name: letter_tasks
-- What somebody wants to be done with all dead letters of a subscription that match; the sweep does it bit by bit, from
-- the newest letter to the oldest. Letters that died after it was asked for are not touched.
CREATE TABLE IF NOT EXISTS letter_tasks (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    action VARCHAR(40) NOT NULL CHECK (action IN ('redrive', 'drop')),
    -- Which letters, as a program has written it; only programs read it.
    filter LONGTEXT NOT NULL,
    reason TEXT NOT NULL,
    requested_by VARCHAR(400) NOT NULL,
    requested_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- Letters below this id are still to be looked at; at first it is above all letters that there are.
    begun_below BIGINT NOT NULL,
    next_below BIGINT NOT NULL,
    looked BIGINT NOT NULL DEFAULT 0,
    changed BIGINT NOT NULL DEFAULT 0,
    ended_at DATETIME(6),
    -- Why it ended before it was done.
    problem TEXT,
    -- Those that the sweep works on.
    KEY letter_tasks_open (ended_at, id),
    KEY letter_tasks_subscription (subscription_id, id)
) ENGINE = InnoDB;

-- name: payload_looks
-- Who has looked at which payload, by name and by login.
CREATE TABLE IF NOT EXISTS payload_looks (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    `by` VARCHAR(400) NOT NULL,
    person VARCHAR(200) NOT NULL,
    subject TEXT NOT NULL
) ENGINE = InnoDB;

-- name: letter_moves
-- Moves of all that a queue of dead letters has, to where it comes from or to a topic; the sweep does them.
CREATE TABLE IF NOT EXISTS letter_moves (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    -- NULL: to where each letter comes from.
    topic_id BIGINT,
    most_per_second INT,
    expected BIGINT NOT NULL,
    moved BIGINT NOT NULL DEFAULT 0,
    requested_by VARCHAR(400) NOT NULL,
    started_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    ended_at DATETIME(6),
    state VARCHAR(20) NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled', 'failed')),
    -- Why it failed.
    problem TEXT,
    KEY letter_moves_open (ended_at, id),
    KEY letter_moves_subscription (subscription_id, id)
) ENGINE = InnoDB;
