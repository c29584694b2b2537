-- By design: MySQL finds the row of a source by a hash, because its names are too long for a key.

-- name: require_source_place
-- Refuses what cannot be a place in the log of another database. Raises PS006.
CREATE PROCEDURE require_source_place(
    installation LONGTEXT, relay LONGTEXT, known_as LONGTEXT, source_partition INT, to_history INT, to_sequence BIGINT
)
BEGIN
    IF NOT COALESCE(CHAR_LENGTH(installation) BETWEEN 1 AND 36 AND CHAR_LENGTH(relay) BETWEEN 1 AND 255
                    AND CHAR_LENGTH(known_as) BETWEEN 1 AND 4100 AND source_partition >= 0 AND to_history >= 1
                    AND to_sequence >= 0, FALSE) THEN
        CALL refuse('PS006', CONCAT('partition ', COALESCE(source_partition, 'NULL'), ' of "',
                                    COALESCE(LEFT(known_as, 60), 'NULL'), '" at sequence ',
                                    COALESCE(to_sequence, 'NULL'), ' is no place in a log'));
    END IF;
END;

-- name: source_of
-- The key of a partition of another database.
CREATE FUNCTION source_of(installation LONGTEXT, relay LONGTEXT, known_as LONGTEXT, source_partition INT)
RETURNS BINARY(32)
DETERMINISTIC NO SQL
BEGIN
    RETURN UNHEX(SHA2(CONCAT(CHAR_LENGTH(installation), ':', installation, CHAR_LENGTH(relay), ':', relay,
                             source_partition, ':', known_as), 256));
END;
