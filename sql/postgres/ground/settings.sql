-- name: setting
-- The value of a setting: the one that was set, else the default. Raises PS006.
CREATE OR REPLACE FUNCTION setting(name text) RETURNS double precision
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    found_value double precision;
BEGIN
    SELECT COALESCE(s.value, k.preset) INTO found_value
    FROM known_settings() AS k LEFT JOIN settings AS s ON s.name = k.name
    WHERE k.name = setting.name;
    IF NOT FOUND THEN
        PERFORM refuse('PS006', format('there is no setting "%s"', left(name, 200)),
                       'settings_of() lists what can be set.');
    END IF;
    RETURN found_value;
END
$$;

-- name: set_setting
-- Sets a value for the whole log; NULL restores the default. Raises PS006.
CREATE OR REPLACE FUNCTION set_setting(name text, value double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    known record;
BEGIN
    PERFORM commit_durably();
    PERFORM setting(name);
    SELECT k.lowest, k.highest INTO known FROM known_settings() AS k WHERE k.name = set_setting.name;
    IF value IS NULL THEN
        DELETE FROM settings AS s WHERE s.name = set_setting.name;
    ELSIF value BETWEEN known.lowest AND known.highest THEN
        INSERT INTO settings (name, value, updated_by)
        VALUES (set_setting.name, set_setting.value, principal())
        ON CONFLICT ON CONSTRAINT settings_pkey DO UPDATE
        SET value = EXCLUDED.value, updated_at = clock_timestamp(), updated_by = EXCLUDED.updated_by;
    ELSE
        PERFORM refuse('PS006', format('%s cannot be %s', name, value),
                       format('Use %s to %s.', known.lowest, known.highest));
    END IF;
END
$$;

-- name: settings_of
-- Every setting: its value, its default, and who set it and when.
CREATE OR REPLACE FUNCTION settings_of()
RETURNS TABLE (
    name text, value double precision, preset double precision, updated_at timestamptz, updated_by text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT k.name, COALESCE(s.value, k.preset), k.preset, s.updated_at, s.updated_by
    FROM known_settings() AS k LEFT JOIN settings AS s ON s.name = k.name
    ORDER BY k.name
$$;
