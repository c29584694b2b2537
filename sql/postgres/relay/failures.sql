-- name: relay_failure
-- Counts a failed attempt of the open block and returns how many seconds to wait: base doubled for each attempt, up
-- to a bound, reduced at random by up to a half. Raises PS010, PS013.
CREATE OR REPLACE FUNCTION relay_failure(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, block_id bigint, error text,
    base_seconds double precision DEFAULT 1, max_seconds double precision DEFAULT 300
) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    failed integer;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[relay_failure.partition_id], ARRAY[relay_failure.lease_epoch]);
    INSERT INTO relay_failures AS f (block_id, attempt, error)
    SELECT relay_failure.block_id, 1 + count(*), left(relay_failure.error, 2000)
    FROM relay_failures AS e
    WHERE e.block_id = relay_failure.block_id
    RETURNING attempt INTO failed;
    RETURN LEAST(base_seconds * 2 ^ LEAST(failed - 1, 40), max_seconds) * (1 - random() / 2);
END
$$;

-- name: dead_letter
-- Gives up one event for this subscription: a copy with the reason is kept, and the block continues without the
-- event. An event that only the archive has is brought by bring_letter, in the same transaction. A second call changes
-- nothing. Raises PS006, PS010, PS013.
CREATE OR REPLACE FUNCTION dead_letter(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, sequence bigint, reason text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    fresh bigint;
    brought bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[dead_letter.partition_id], ARRAY[dead_letter.lease_epoch]);
    INSERT INTO dead_letters AS d (
        subscription_id, partition_id, sequence, history, event_id, key, type, content_type, headers, payload,
        created_at, reason)
    SELECT owner.id, dead_letter.partition_id, r.sequence, current_history(), r.event_id, r.key, r.type, r.content_type,
           r.headers, r.payload, r.created_at,
           CASE WHEN is_tombstone(r.payload, r.headers) THEN '' ELSE left(dead_letter.reason, 2000) END
    FROM read_log(dead_letter.partition_id, dead_letter.sequence, 1) AS r
    ON CONFLICT DO NOTHING
    RETURNING d.id INTO fresh;
    UPDATE dead_letters AS d SET reason = left(dead_letter.reason, 2000)
    WHERE d.subscription_id = owner.id AND d.partition_id = dead_letter.partition_id
      AND d.sequence = dead_letter.sequence AND d.history = current_history() AND d.reason = 'read from the archive'
      AND NOT is_tombstone(d.payload, d.headers)
    RETURNING d.id INTO brought;
    IF COALESCE(fresh, brought) IS NOT NULL THEN
        PERFORM forward_letters(owner.id, ARRAY[COALESCE(fresh, brought)]);
    END IF;
END
$$;

-- name: dead_letters_between
-- The sequences of a range of a partition that are dead letters of a subscription; none for a partition that the
-- subscription does not read.
CREATE OR REPLACE FUNCTION dead_letters_between(
    subscription text, partition_id bigint, first_sequence bigint, last_sequence bigint
) RETURNS TABLE (sequence bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT d.sequence
    FROM dead_letters AS d JOIN subscriptions AS s ON s.id = d.subscription_id
    WHERE s.name = dead_letters_between.subscription AND d.partition_id = dead_letters_between.partition_id
      AND d.sequence BETWEEN dead_letters_between.first_sequence AND dead_letters_between.last_sequence
      AND d.history = current_history() AND NOT reads_hidden(s.id)
    ORDER BY d.sequence;
END
$$;

-- name: missing_events
-- What a sink lacks that ends before the position of a relay: how many events of the range are no dead letters, or 0
-- when a person has put the position behind it (subscribe, seek) and nothing was sent since. low_sequence is the first
-- sequence that the database has. No row for a partition that the subscription does not read.
CREATE OR REPLACE FUNCTION missing_events(
    subscription text, partition_id bigint, first_sequence bigint, last_sequence bigint
) RETURNS TABLE (missing bigint, low_sequence bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT CASE
               WHEN n.reason IN ('start', 'seek') AND n.position = missing_events.last_sequence THEN 0
               ELSE missing_events.last_sequence - missing_events.first_sequence + 1 - (
                   SELECT count(*) FROM dead_letters AS d
                   WHERE d.subscription_id = s.id AND d.partition_id = p.id AND d.history = current_history()
                     AND d.sequence BETWEEN missing_events.first_sequence AND missing_events.last_sequence)
           END,
           p.low_sequence
    FROM subscriptions AS s
    JOIN partitions AS p ON p.id = missing_events.partition_id
    CROSS JOIN LATERAL (
        SELECT r.position, r.reason FROM positions AS r
        WHERE r.subscription_id = s.id AND r.partition_id = p.id
        ORDER BY r.id DESC
        LIMIT 1) AS n
    WHERE s.name = missing_events.subscription AND NOT reads_hidden(s.id);
END
$$;
