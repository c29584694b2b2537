-- name: standing_of
-- Where a partition of a subscription stands, and whether a person has put it there and nothing was done since.
CREATE PROCEDURE standing_of(owner_id BIGINT, part_id BIGINT, OUT at_position BIGINT, OUT was_put BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT p.position, p.reason IN ('start', 'seek') INTO at_position, was_put
    FROM positions AS p FORCE INDEX (positions_newest)
    WHERE p.subscription_id = owner_id AND p.partition_id = part_id
    ORDER BY p.id DESC
    LIMIT 1;
END;
