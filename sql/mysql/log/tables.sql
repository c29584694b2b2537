-- name: pending
-- A row for each block of at most 256 events that were published together and wait for their sequences. It gives them
-- their ids: block * 256 + place. The rows are few and narrow, because they are deleted: what a held read view keeps of
-- them is what the sequencer would have to step over.
CREATE TABLE IF NOT EXISTS pending (
    block BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_count SMALLINT NOT NULL,
    -- How many of them have their sequence already.
    taken SMALLINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- name: late_blocks
-- Blocks below sequencer.floor_block that may still come: they are published, and their transaction was open when the
-- floor was raised above them.
CREATE TABLE IF NOT EXISTS late_blocks (
    block BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: events
-- Insert-only. id = block * 256 + place, cut into ranges, so that retention is DROP PARTITION and not DELETE.
CREATE TABLE IF NOT EXISTS events (
    id BIGINT NOT NULL PRIMARY KEY,
    partition_id BIGINT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL,
    -- The text that was given: JSON would change its numbers.
    headers MEDIUMTEXT,
    payload LONGBLOB NOT NULL,
    created_at DATETIME(6) NOT NULL,
    -- An event that is to come later: not before this time. NULL: at once.
    due_at DATETIME(6)
) ENGINE = InnoDB
PARTITION BY RANGE (id) (
    PARTITION b1 VALUES LESS THAN (2560000),
    PARTITION b10000 VALUES LESS THAN (25600000),
    PARTITION b100000 VALUES LESS THAN (256000000),
    PARTITION b1000000 VALUES LESS THAN (2560000000)
);

-- name: sequencer
-- One row, on which nobody has rights: whoever holds its lock is the sequencer.
CREATE TABLE IF NOT EXISTS sequencer (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    -- Everything up to settled_block was done but for what comes late; up to (delayed_due, delayed_id) everything that
    -- was delayed is done.
    settled_block BIGINT NOT NULL DEFAULT 0,
    delayed_due DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    delayed_id BIGINT NOT NULL DEFAULT 0,
    passed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- Up to here everything was done, but for late_blocks.
    floor_block BIGINT NOT NULL DEFAULT 0,
    -- How many passes have brought events, and which partitions the last of them: nobody can be woken here, so
    -- consumers look at this row.
    pass_number BIGINT NOT NULL DEFAULT 0,
    recent_passes VARCHAR(4000) CHARACTER SET ascii NOT NULL DEFAULT ''
) ENGINE = InnoDB;

-- name: first_rows_of_sequencer
-- The row to lock.
INSERT IGNORE INTO sequencer (singleton) VALUES (TRUE);

-- name: chunks
-- The index of the log: sequences first_sequence .. first_sequence + event_count - 1 are event_ids, in order, eight
-- bytes each. The high watermark of a partition is the end of its last chunk: read, never stored.
CREATE TABLE IF NOT EXISTS chunks (
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    event_count INT NOT NULL,
    first_id BIGINT NOT NULL,
    last_id BIGINT NOT NULL,
    event_ids LONGBLOB NOT NULL,
    -- A merged chunk holds events of several passes: sequenced_ats has the microsecond of each, eight bytes, and
    -- sequenced_at that of the last.
    sequenced_at DATETIME(6) NOT NULL,
    sequenced_ats LONGBLOB,
    PRIMARY KEY (partition_id, first_sequence),
    CONSTRAINT chunks_whole CHECK (LENGTH(event_ids) = 8 * event_count),
    CONSTRAINT chunks_times CHECK (LENGTH(sequenced_ats) = 8 * event_count)
) ENGINE = InnoDB;

-- name: delayed_events
-- Events that were taken out of pending before they were due. (DELAYED is a reserved word.)
CREATE TABLE IF NOT EXISTS delayed_events (
    due DATETIME(6) NOT NULL,
    id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    PRIMARY KEY (due, id),
    -- What is to come into a partition, for those who count it.
    INDEX delayed_events_partition (partition_id, due)
) ENGINE = InnoDB;

-- name: bookmarks
-- Named positions of a topic, with a row for each partition: the last sequence before it, and the history in which it
-- was placed.
CREATE TABLE IF NOT EXISTS bookmarks (
    topic_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    partition_id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    history INT NOT NULL,
    -- The history that began when the log ended before this position.
    lost_in INT,
    placed_at DATETIME(6) NOT NULL,
    placed_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (topic_id, name, partition_id),
    CONSTRAINT bookmarks_position CHECK (position >= 0)
) ENGINE = InnoDB;
