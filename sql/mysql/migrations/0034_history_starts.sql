-- name: create_history_starts
-- Where a history began in each partition: the end of the log at that moment. A reader outside the database whose
-- position is of an earlier history, and lies beyond, goes back to here. Histories from before this table have no rows.
CREATE TABLE IF NOT EXISTS history_starts (
    partition_id BIGINT NOT NULL,
    history INT NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (partition_id, history)
) ENGINE = InnoDB;
