-- name: known_settings
-- The settings that exist, each with its default and its bounds.
CREATE OR REPLACE FUNCTION known_settings()
RETURNS TABLE (name text, preset double precision, lowest double precision, highest double precision)
LANGUAGE sql IMMUTABLE AS $$
    VALUES ('dedup_window_seconds', 3600::double precision, 1::double precision, 2592000::double precision),
           ('kept_share', 0.05, 0, 1),
           ('longest_delay_seconds', 2592000, 0, 315576000),
           ('sequencer_idle_seconds', 0.05, 0.001, 60)
$$;
