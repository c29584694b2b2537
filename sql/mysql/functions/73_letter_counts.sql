-- name: count_dead_letters
-- The dead letters of a subscription: how many are dead, parked and redriven, and for how many seconds the oldest has
-- been there, separated by commas. It looks at no more than 10,000 of them, once each.
CREATE FUNCTION count_dead_letters(owner_id BIGINT) RETURNS VARCHAR(100)
READS SQL DATA
BEGIN
    DECLARE found VARCHAR(100);
    SELECT CONCAT_WS(
        ',', COALESCE(SUM(d.redriven_at IS NULL AND NOT d.parked), 0),
        COALESCE(SUM(d.redriven_at IS NULL AND d.parked), 0), COUNT(d.redriven_at),
        COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(d.died_at), UTC_TIMESTAMP(6)) / 1e6, 0)) INTO found
    FROM (
        SELECT l.redriven_at, l.parked, l.died_at FROM dead_letters AS l WHERE l.subscription_id = owner_id LIMIT 10000
    ) AS d;
    RETURN found;
END;

-- name: dead_letter_counts
-- How many dead letters one subscription has, or each subscription (NULL), by state, and for how long the oldest has
-- been there. Of each subscription 10,000 are looked at: 10,000 means that many or more.
CREATE PROCEDURE dead_letter_counts(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('dead_letter_counts()');
    SELECT c.name AS subscription, CAST(SUBSTRING_INDEX(c.counts, ',', 1) AS SIGNED) AS dead,
           CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(c.counts, ',', 2), ',', -1) AS SIGNED) AS parked,
           CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(c.counts, ',', 3), ',', -1) AS SIGNED) AS redriven,
           SUBSTRING_INDEX(c.counts, ',', -1) + 0e0 AS oldest_seconds
    FROM (
        SELECT s.name, count_dead_letters(s.id) AS counts
        FROM subscriptions AS s
        WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256))) AND NOT reads_hidden(s.id)
        ORDER BY s.name
        -- The limit keeps the server from merging the two queries: then each column would count again.
        LIMIT 1000000
    ) AS c
    ORDER BY c.name;
END;
