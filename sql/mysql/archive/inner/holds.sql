-- name: find_hold_over
-- The name of a legal hold that covers an event of a range of a partition; NULL when there is none.
CREATE PROCEDURE find_hold_over(
    part_id BIGINT, first_sequence BIGINT, last_sequence BIGINT, OUT hold_name VARCHAR(500)
)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET hold_name = NULL;
    SELECT h.name INTO hold_name
    FROM partitions AS p JOIN legal_holds AS h ON h.topic_id = p.topic_id
    WHERE p.id = part_id AND h.released_at IS NULL AND COALESCE(h.number, p.number) = p.number
      AND h.first_sequence <= last_sequence AND COALESCE(h.last_sequence, first_sequence) >= first_sequence
    ORDER BY h.placed_at, h.name
    LIMIT 1;
END;

-- name: require_hold_reason
-- Checks why a hold is placed or released, in 1 to 1,000 characters; raises PS006.
CREATE PROCEDURE require_hold_reason(reason LONGTEXT)
NO SQL
BEGIN
    IF reason IS NULL OR TRIM(reason) = '' OR CHAR_LENGTH(reason) > 1000 THEN
        CALL refuse('PS006', 'the reason of a legal hold has not 1 to 1,000 characters');
    END IF;
END;

-- name: require_hold_range
-- Checks what a hold covers: a partition that exists, and sequences of one partition; raises PS002, PS005, PS006.
CREATE PROCEDURE require_hold_range(topic LONGTEXT, number INT, first_sequence BIGINT, last_sequence BIGINT)
BEGIN
    DECLARE part_id BIGINT;
    IF number IS NOT NULL THEN
        CALL require_partition_for(topic, number, 'operate', part_id);
    ELSEIF first_sequence IS NOT NULL OR last_sequence IS NOT NULL THEN
        CALL refuse('PS006', 'a legal hold on sequences without a partition: name the partition');
    END IF;
    IF COALESCE(first_sequence, 1) < 1 OR last_sequence < COALESCE(first_sequence, 1) THEN
        CALL refuse('PS006', CONCAT('a legal hold on the sequences ', COALESCE(first_sequence, 1), ' to ',
                                    COALESCE(last_sequence, 'the end')));
    END IF;
END;
