-- name: files_of_copies
-- Where a copy lies: in layout 1 a folder of its own, in layout 2 from first_row on in a file of the day of sealing.
ALTER TABLE epoch_copies
    ADD COLUMN layout smallint NOT NULL DEFAULT 1,
    ADD COLUMN first_row bigint NOT NULL DEFAULT 0;

-- name: log_epochs_by_day
-- The log epochs of a day, which lie together in the archive.
CREATE INDEX log_epochs_sealed ON log_epochs (partition_id, sealed_at);

-- name: functions_of_archive_files
-- They take and return the file of a copy now.
DROP FUNCTION IF EXISTS record_copy(text, integer, integer, text, text, bigint, text);
DROP FUNCTION IF EXISTS copies_of(text);
