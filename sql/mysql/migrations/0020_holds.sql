-- name: create_legal_holds
-- Legal holds: what no retention policy may remove until somebody releases it. number NULL: the whole topic, also
-- partitions that come later. last_sequence NULL: without an end. A row stays after its release: it is the record.
CREATE TABLE IF NOT EXISTS legal_holds (
    topic_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    number INT,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT,
    reason TEXT NOT NULL,
    placed_at DATETIME(6) NOT NULL,
    placed_by VARCHAR(400) NOT NULL,
    released_at DATETIME(6),
    released_by VARCHAR(400),
    release_reason TEXT,
    PRIMARY KEY (topic_id, name, placed_at),
    KEY legal_holds_topic (topic_id, released_at),
    CONSTRAINT legal_holds_range CHECK (
        first_sequence >= 1 AND COALESCE(last_sequence, first_sequence) >= first_sequence)
) ENGINE = InnoDB;
