-- name: expire_dead_letters
-- Deletes dead letters that are older than their subscription's policy dead_letter_seconds, at most max_rows of them,
-- and keeps a record of each without its payload, as drop_dead_letters does. Letters that are parked, redriven or under
-- a legal hold stay, and so do those that somebody works on now. Returns how many it deleted. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION expire_dead_letters(max_rows integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner record;
    gone bigint;
    total bigint := 0;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('expire_dead_letters()');
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 100000 THEN
        PERFORM refuse('PS006', format('a look at %s dead letters', max_rows), 'Use 1 to 100,000.');
    END IF;
    FOR owner IN
        SELECT s.id, clock_timestamp() - make_interval(secs => s.dead_letter_seconds) AS before
        FROM subscriptions AS s
        WHERE s.dead_letter_seconds > 0
        ORDER BY s.id
    LOOP
        EXIT WHEN total = max_rows;
        WITH old AS (
            SELECT d.id
            FROM dead_letters AS d
            WHERE d.subscription_id = owner.id AND d.died_at < owner.before AND NOT d.parked AND d.redriven_at IS NULL
              AND hold_over(d.partition_id, d.sequence, d.sequence) IS NULL
            ORDER BY d.died_at
            LIMIT max_rows - total
            FOR UPDATE SKIP LOCKED
        ), dropped AS (
            DELETE FROM dead_letters AS d USING old AS o
            WHERE d.subscription_id = owner.id AND d.id = o.id
            RETURNING d.*
        )
        INSERT INTO dropped_letters (
            subscription_id, id, partition_id, sequence, history, event_id, key, type, reason, attempts, died_at,
            dropped_by)
        SELECT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.key, d.type, d.reason,
               d.attempts, d.died_at, 'the policy dead_letter_seconds'
        FROM dropped AS d;
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    RETURN total;
END
$$;
