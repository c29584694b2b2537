-- By design: MySQL finds the row of a source by a hash, because its names are too long for a key.

-- name: require_source_place
-- Refuses what cannot be a place in the log of another database. Raises PS006.
CREATE OR REPLACE FUNCTION require_source_place(
    installation text, relay text, known_as text, source_partition integer, to_history integer, to_sequence bigint
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT COALESCE(length(installation) BETWEEN 1 AND 36 AND length(relay) BETWEEN 1 AND 255
                    AND length(known_as) BETWEEN 1 AND 4100 AND source_partition >= 0 AND to_history >= 1
                    AND to_sequence >= 0, false) THEN
        PERFORM refuse('PS006', format('partition %s of "%s" at sequence %s of history %s is no place in a log',
                                       source_partition, left(known_as, 60), to_sequence, to_history));
    END IF;
END
$$;
