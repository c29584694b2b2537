-- name: require_place
-- The layouts that there are, and a row that a file can have; raises PS006.
CREATE OR REPLACE FUNCTION require_place(layout integer, first_row bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF layout IS NULL OR layout NOT IN (1, 2) OR first_row IS NULL OR first_row < 0
            OR (layout = 1 AND first_row > 0) THEN
        PERFORM refuse('PS006', format('a copy in layout %s from row %s on', layout, first_row),
                       'Layout 1 is a folder for each log epoch, from row 0 on; layout 2 is a file of the day.');
    END IF;
END
$$;

-- name: require_target_name
-- A name that an archive target can have; raises PS006.
CREATE OR REPLACE FUNCTION require_target_name(target text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF target IS NULL OR target !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$' THEN
        PERFORM refuse('PS006', 'an archive target has a name that is not allowed',
                       'Use up to 63 letters, digits, dots, dashes and underscores.');
    END IF;
END
$$;

-- name: hold_off_clean
-- No run of clean begins on the topic of a partition before the caller's transaction has ended. Called before a copy is
-- recorded: a run either finds it where it is now, or sees that it is younger than the run. Topics are locked before
-- this, log epochs after it.
CREATE OR REPLACE FUNCTION hold_off_clean(partition_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM retention_policies AS r WHERE r.topic_id = hold_off_clean.partition_id >> 16 FOR SHARE;
END
$$;
