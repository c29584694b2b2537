-- name: add_archive_files
-- Where a copy lies: in layout 1 a folder of its own, in layout 2 from first_row on in a file of the day of sealing. A
-- migration can be applied again after it was cut short, so what is there already is passed over.
CREATE PROCEDURE add_archive_files()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'epoch_copies' AND c.COLUMN_NAME = 'layout') THEN
        ALTER TABLE epoch_copies
            ADD COLUMN layout SMALLINT NOT NULL DEFAULT 1,
            ADD COLUMN first_row BIGINT NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS s
        WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = 'log_epochs' AND s.INDEX_NAME = 'log_epochs_sealed') THEN
        ALTER TABLE log_epochs ADD INDEX log_epochs_sealed (partition_id, sealed_at);
    END IF;
END;

-- name: apply_archive_files
-- Adds what is not there yet.
CALL add_archive_files();

-- name: forget_archive_files
-- It was for this migration.
DROP PROCEDURE add_archive_files;
