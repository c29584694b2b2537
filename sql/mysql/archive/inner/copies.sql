-- name: require_place
-- The layouts that there are, and a row that a file can have; raises PS006.
CREATE PROCEDURE require_place(layout INT, first_row BIGINT)
READS SQL DATA
BEGIN
    IF NOT COALESCE(layout IN (1, 2) AND first_row >= 0 AND (layout = 2 OR first_row = 0), FALSE) THEN
        CALL refuse('PS006', CONCAT('a copy in layout ', COALESCE(layout, 'NULL'), ' from row ',
                                    COALESCE(first_row, 'NULL'), ' on: layout 1 is a folder for each log epoch, ',
                                    'from row 0 on; layout 2 is a file of the day'));
    END IF;
END;

-- name: hold_off_clean
-- No run of clean begins on the topic of a partition before the caller's transaction has ended. Called before a copy is
-- recorded: a run either finds it where it is now, or sees that it is younger than the run. Topics are locked before
-- this, log epochs after it.
CREATE PROCEDURE hold_off_clean(part_id BIGINT)
BEGIN
    DECLARE locked INT;
    SELECT COUNT(*) INTO locked FROM retention_policies AS r WHERE r.topic_id = part_id >> 16 LOCK IN SHARE MODE;
END;
