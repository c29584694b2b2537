-- name: create_late_blocks
-- Blocks below sequencer.floor_block that may still come: they are published, and their transaction was open when the floor was
-- raised above them.
CREATE TABLE IF NOT EXISTS late_blocks (
    block BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: create_slice_rates
-- How fast each insert-only table takes ids: at most, in an hour, halved for every week since.
CREATE TABLE IF NOT EXISTS slice_rates (
    parent VARCHAR(64) NOT NULL PRIMARY KEY,
    used BIGINT NOT NULL,
    measured_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    peak_per_second DOUBLE NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- name: drop_change_storage
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_storage;

-- name: create_change_storage
-- Changes of tables that exist, each only where it was not made yet: such a statement cannot be repeated. A merged chunk holds
-- events of several passes: sequenced_ats has the microsecond of each, eight bytes, and sequenced_at that of the last.
CREATE PROCEDURE change_storage()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'sequencer' AND c.COLUMN_NAME = 'floor_block') THEN
        ALTER TABLE sequencer ADD COLUMN floor_block BIGINT NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'chunks' AND c.COLUMN_NAME = 'sequenced_ats') THEN
        ALTER TABLE chunks
            ADD COLUMN sequenced_ats LONGBLOB,
            ADD CONSTRAINT chunks_times CHECK (LENGTH(sequenced_ats) = 8 * event_count);
    END IF;
    IF EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'relay_failures' AND c.COLUMN_NAME = 'id') THEN
        ALTER TABLE relay_failures
            DROP PRIMARY KEY, DROP INDEX relay_failures_attempt, DROP COLUMN id, ADD PRIMARY KEY (block_id, attempt);
    END IF;
END;

-- name: change_storage
-- Waits for whoever uses these tables, a second at a time.
CALL change_storage();

-- name: forget_change_storage
-- It was for this migration.
DROP PROCEDURE change_storage;

-- name: drop_cut_into_slices
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS cut_into_slices;

-- name: create_cut_into_slices
-- Cuts a table by its ids: what it holds and some more becomes the first partition, three larger ones come behind it.
CREATE PROCEDURE cut_into_slices(parent VARCHAR(64), cut_by VARCHAR(64), newest BIGINT)
BEGIN
    DECLARE bound BIGINT DEFAULT (newest DIV 100000 + 1) * 100000;
    SET @penstock_statement = CONCAT(
        'ALTER TABLE ', parent, ' PARTITION BY RANGE (', cut_by, ') (',
        'PARTITION s1 VALUES LESS THAN (', bound, '), ',
        'PARTITION s', bound, ' VALUES LESS THAN (', 5 * bound, '), ',
        'PARTITION s', 5 * bound, ' VALUES LESS THAN (', 25 * bound, '))');
    PREPARE cut FROM @penstock_statement;
    EXECUTE cut;
    DEALLOCATE PREPARE cut;
END;

-- name: cut_positions
-- The ledger of positions: old slices can be dropped.
CALL cut_into_slices('positions', 'id', (SELECT COALESCE(MAX(p.id), 0) FROM positions AS p));

-- name: cut_lease_history
-- Its ids rise with time.
CALL cut_into_slices('lease_history', 'id', (SELECT COALESCE(MAX(h.id), 0) FROM lease_history AS h));

-- name: cut_blocks
-- Only a block that is open matters.
CALL cut_into_slices('blocks', 'id', (SELECT COALESCE(MAX(b.id), 0) FROM blocks AS b));

-- name: cut_relay_failures
-- The failures of an open block; they are cut by the ids of blocks.
CALL cut_into_slices('relay_failures', 'block_id', (SELECT COALESCE(MAX(b.id), 0) FROM blocks AS b));

-- name: forget_cut_into_slices
-- It was for this migration.
DROP PROCEDURE cut_into_slices;

-- name: first_floor
-- Up to here everything was done, but for what was open.
UPDATE sequencer SET floor_block = settled_block WHERE singleton;

-- name: wait_for_publishers
-- Had, this lock says that every transaction has ended that had published anything up to the floor.
LOCK TABLES pending WRITE;

-- name: let_publishers_go
-- That was all.
UNLOCK TABLES;

-- name: first_late_blocks
-- What has not got its sequence of that.
INSERT IGNORE INTO late_blocks (block)
SELECT p.block FROM pending AS p WHERE p.block <= (SELECT s.floor_block FROM sequencer AS s);

-- name: drop_first_chunk
-- Whoever looks for a chunk reads it in the same statement now.
DROP FUNCTION IF EXISTS first_chunk;
