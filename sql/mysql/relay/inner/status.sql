-- name: passed_a_second
-- How many events a second a subscription has passed in a partition in the last minute, from its last 1,000 commits.
CREATE FUNCTION passed_a_second(owner_id BIGINT, part_id BIGINT) RETURNS DOUBLE
READS SQL DATA
BEGIN
    DECLARE passed DOUBLE;
    SELECT (MAX(n.position) - MIN(n.position))
           / GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(n.at), UTC_TIMESTAMP(6)) / 1000000, 1) INTO passed
    FROM (
        SELECT q.position, q.at, q.reason FROM positions AS q FORCE INDEX (positions_newest)
        WHERE q.subscription_id = owner_id AND q.partition_id = part_id
        ORDER BY q.id DESC
        LIMIT 1000
    ) AS n
    WHERE n.at > UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE AND n.reason IN ('commit', 'carried', 'start');
    RETURN COALESCE(passed, 0);
END;

-- name: failed_block
-- The open block of a partition; NULL when there is none.
CREATE FUNCTION failed_block(owner_id BIGINT, part_id BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE block BIGINT;
    CALL find_open_block(owner_id, part_id, current_position(owner_id, part_id) + 1, block);
    RETURN block;
END;
