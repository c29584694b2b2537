-- name: number_passes
-- How many passes of the sequencer have brought events, and which partitions the last of them: nobody can be woken here, so
-- consumers look at this row. A migration can be applied again after it was cut short, so what is there already is passed over.
CREATE PROCEDURE number_passes()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'sequencer' AND c.COLUMN_NAME = 'pass_number') THEN
        ALTER TABLE sequencer
            ADD COLUMN pass_number BIGINT NOT NULL DEFAULT 0,
            ADD COLUMN recent_passes VARCHAR(4000) CHARACTER SET ascii NOT NULL DEFAULT '';
    END IF;
END;

-- name: add_pass_number
-- Waits for whoever sequences.
CALL number_passes();

-- name: forget_number_passes
-- It was for this migration.
DROP PROCEDURE number_passes;
