-- name: installation_id
-- The id by which archive targets name the database that they belong to, in their markers. It is part of the database
-- and of its backups.
CREATE OR REPLACE FUNCTION installation_id() RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT i.id FROM installation AS i
$$;

-- name: target_in_use
-- Whether copies were ever recorded on a target, missing ones included. Then a target that looks empty is unavailable.
CREATE OR REPLACE FUNCTION target_in_use(target text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM epoch_copies AS c WHERE c.target = target_in_use.target)
$$;

-- name: note_target_speed
-- Records how many seconds a copy took on an archive target; NULL: it failed. The first measurement counts as it is,
-- each later one for a fifth of the moving average. A failure doubles the average, to a minute at least and an hour at
-- most. It only decides in which order targets are written. Raises PS006.
CREATE OR REPLACE FUNCTION note_target_speed(target text, seconds double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_target_name(target);
    IF NOT COALESCE(seconds BETWEEN 0 AND 31536000, true) THEN
        PERFORM refuse('PS006', format('a copy cannot take %s seconds', seconds),
                       'Use seconds, or NULL for a failure.');
    END IF;
    INSERT INTO target_speeds AS s (target, seconds, failures, measured_at)
    VALUES (note_target_speed.target, LEAST(COALESCE(note_target_speed.seconds, 60), 3600),
            (note_target_speed.seconds IS NULL)::integer, clock_timestamp())
    ON CONFLICT ON CONSTRAINT target_speeds_pkey DO UPDATE
    SET seconds = CASE
            WHEN note_target_speed.seconds IS NULL THEN LEAST(GREATEST(2 * s.seconds, 60), 3600)
            ELSE 0.8 * s.seconds + 0.2 * EXCLUDED.seconds
        END,
        failures = CASE WHEN note_target_speed.seconds IS NULL THEN s.failures + 1 ELSE 0 END,
        measured_at = EXCLUDED.measured_at;
END
$$;

-- name: target_speeds
-- The moving average of the seconds that a copy takes on each archive target, and how many attempts in a row have
-- failed there.
CREATE OR REPLACE FUNCTION target_speeds()
RETURNS TABLE (target text, seconds double precision, failures integer, measured_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.target, s.seconds, s.failures, s.measured_at FROM target_speeds AS s ORDER BY s.target
$$;
