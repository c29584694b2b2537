-- name: setting
-- The value of a setting: the one that was set, else the default. Raises PS006.
CREATE PROCEDURE setting(name VARCHAR(100))
READS SQL DATA
BEGIN
    DECLARE found DOUBLE;
    CALL refuse_serializable('setting()');
    CALL find_setting(name, found);
    SELECT found AS value;
END;

-- name: set_setting
-- Sets a value for the whole log; NULL restores the default. Raises PS006, PS018.
CREATE PROCEDURE set_setting(name VARCHAR(100), value DOUBLE)
BEGIN
    DECLARE preset DOUBLE;
    DECLARE is_known BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('set_setting()');
    CALL find_setting(name, preset);
    SET is_known = value IS NULL OR CASE name
        WHEN 'dedup_window_seconds' THEN value BETWEEN 1 AND 2592000
        WHEN 'kept_share' THEN value BETWEEN 0 AND 1
        WHEN 'longest_delay_seconds' THEN value BETWEEN 0 AND 315576000
        WHEN 'sequencer_idle_seconds' THEN value BETWEEN 0.001 AND 60
    END;
    IF NOT is_known THEN
        CALL refuse('PS006', CONCAT(name, ' cannot be ', value));
    ELSEIF value IS NULL THEN
        DELETE FROM settings WHERE settings.name = name;
    ELSE
        REPLACE INTO settings (name, value, updated_by) VALUES (name, value, principal());
    END IF;
    CALL end_call();
END;

-- name: settings_of
-- Every setting: its value, its default, and who set it and when.
CREATE PROCEDURE settings_of()
READS SQL DATA
BEGIN
    CALL refuse_serializable('settings_of()');
    SELECT k.name, COALESCE(s.value, k.preset) AS value, k.preset, s.updated_at, s.updated_by
    FROM (
        SELECT 'dedup_window_seconds' AS name, 3600e0 AS preset
        UNION ALL SELECT 'kept_share', 0.05e0
        UNION ALL SELECT 'longest_delay_seconds', 2592000e0
        UNION ALL SELECT 'sequencer_idle_seconds', 0.05e0
    ) AS k
    LEFT JOIN settings AS s ON s.name = k.name
    ORDER BY k.name;
END;
