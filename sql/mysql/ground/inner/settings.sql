-- name: find_setting
-- The value that was set for the whole log, else the default. Raises PS006.
CREATE PROCEDURE find_setting(of_name VARCHAR(100), OUT found DOUBLE)
READS SQL DATA
BEGIN
    SELECT MAX(s.value) INTO found FROM settings AS s WHERE s.name = of_name;
    SET found = COALESCE(found, CASE of_name
        WHEN 'dedup_window_seconds' THEN 3600
        WHEN 'kept_share' THEN 0.05
        WHEN 'longest_delay_seconds' THEN 2592000
        WHEN 'sequencer_idle_seconds' THEN 0.05
    END);
    IF found IS NULL THEN
        CALL refuse('PS006', CONCAT('there is no setting "', COALESCE(of_name, 'NULL'), '"'));
    END IF;
END;
