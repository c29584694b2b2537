-- name: count_dead_letters
-- The dead letters of a subscription: how many are dead, parked and redriven, and for how many seconds the oldest has
-- been there; then how many of those that are not redriven were forwarded, and not forwarded. They are separated by
-- commas. It looks at no more than 10,000 of them, once each.
CREATE FUNCTION count_dead_letters(owner_id BIGINT) RETURNS VARCHAR(100)
READS SQL DATA
BEGIN
    DECLARE found VARCHAR(100);
    SELECT CONCAT_WS(
        ',', COALESCE(SUM(d.redriven_at IS NULL AND NOT d.parked), 0),
        COALESCE(SUM(d.redriven_at IS NULL AND d.parked), 0), COUNT(d.redriven_at),
        COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(d.died_at), UTC_TIMESTAMP(6)) / 1e6, 0),
        COALESCE(SUM(t.id IS NOT NULL), 0),
        COALESCE(SUM(d.is_refused OR d.forwarded_to IS NOT NULL AND t.id IS NULL), 0)) INTO found
    FROM (
        SELECT l.redriven_at, l.parked, l.died_at, l.forwarded_to, l.not_forwarded IS NOT NULL AS is_refused
        FROM dead_letters AS l WHERE l.subscription_id = owner_id LIMIT 10000
    ) AS d
    LEFT JOIN topics AS t ON t.id = d.forwarded_to;
    RETURN found;
END;

-- name: find_expired_letters
-- Puts at most so many dead letters of a subscription that may go into the session's table expired_letters, locked;
-- those that somebody works on now are left out.
CREATE PROCEDURE find_expired_letters(owner_id BIGINT, died_before DATETIME(6), most INT)
BEGIN
    INSERT INTO expired_letters (id)
    SELECT d.id
    FROM dead_letters AS d FORCE INDEX (dead_letters_died)
    WHERE d.subscription_id = owner_id AND d.died_at < died_before AND NOT d.parked AND d.redriven_at IS NULL
      AND NOT EXISTS (
          SELECT h.name
          FROM partitions AS p JOIN legal_holds AS h ON h.topic_id = p.topic_id
          WHERE p.id = d.partition_id AND h.released_at IS NULL AND COALESCE(h.number, p.number) = p.number
            AND h.first_sequence <= d.sequence AND COALESCE(h.last_sequence, d.sequence) >= d.sequence)
    ORDER BY d.died_at
    LIMIT most
    FOR UPDATE SKIP LOCKED;
END;
