-- name: add_hours
-- Who follows the log epochs of all topics and their copies finds the newest without looking at the others. A
-- migration can be applied again after it was cut short, so what is there already is passed over.
CREATE PROCEDURE add_hours()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS s
        WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = 'log_epochs' AND s.INDEX_NAME = 'log_epochs_time') THEN
        ALTER TABLE log_epochs ADD INDEX log_epochs_time (sealed_at);
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS s
        WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = 'epoch_copies'
          AND s.INDEX_NAME = 'epoch_copies_changed') THEN
        ALTER TABLE epoch_copies
            ADD INDEX epoch_copies_changed (changed_at),
            ADD INDEX epoch_copies_state (state, changed_at);
    END IF;
END;

-- name: apply_hours
-- Adds what is not there yet.
CALL add_hours();

-- name: forget_hours
-- It was for this migration.
DROP PROCEDURE add_hours;
