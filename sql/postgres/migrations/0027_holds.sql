-- name: create_legal_holds
-- Legal holds: what no retention policy may remove until somebody releases it. partition NULL: the whole topic, also
-- partitions that come later. last_sequence NULL: without an end. A row stays after its release: it is the record.
CREATE TABLE legal_holds (
    topic_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    partition integer,
    first_sequence bigint NOT NULL,
    last_sequence bigint,
    reason text NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    placed_by text NOT NULL,
    released_at timestamptz,
    released_by text,
    release_reason text,
    PRIMARY KEY (topic_id, name, placed_at),
    CONSTRAINT legal_holds_range CHECK (
        first_sequence >= 1 AND COALESCE(last_sequence, first_sequence) >= first_sequence)
);

-- name: index_legal_holds
-- What retention looks at; and one name is given once at a time.
CREATE UNIQUE INDEX legal_holds_open ON legal_holds (topic_id, name) WHERE released_at IS NULL;
