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
-- What of a range of a partition a relay does not send, as ranges up to up_to: dead letters of its subscription, and
-- what its sink is not to get (leave_out). None for a partition that the subscription does not read.
CREATE OR REPLACE FUNCTION dead_letters_between(
    subscription text, partition_id bigint, first_sequence bigint, last_sequence bigint
) RETURNS TABLE (sequence bigint, up_to bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT d.sequence, d.sequence
    FROM dead_letters AS d JOIN subscriptions AS s ON s.id = d.subscription_id
    WHERE s.name = dead_letters_between.subscription AND d.partition_id = dead_letters_between.partition_id
      AND d.sequence BETWEEN dead_letters_between.first_sequence AND dead_letters_between.last_sequence
      AND d.history = current_history() AND NOT reads_hidden(s.id)
    UNION ALL
    SELECT o.first_sequence, o.last_sequence
    FROM left_out AS o JOIN subscriptions AS s ON s.id = o.subscription_id
    WHERE s.name = dead_letters_between.subscription AND o.partition_id = dead_letters_between.partition_id
      AND o.first_sequence <= dead_letters_between.last_sequence
      AND o.last_sequence >= dead_letters_between.first_sequence AND NOT reads_hidden(s.id)
    ORDER BY 1;
END
$$;

-- name: leave_out
-- Records that a sink does not have these events because a person has left them out, fenced: a later gap that contains
-- them does not count them as missing. Raises PS006, PS010, PS013.
CREATE OR REPLACE FUNCTION leave_out(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, first_sequence bigint,
    last_sequence bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    stands_at bigint := current_position(owner.id, leave_out.partition_id);
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[leave_out.partition_id], ARRAY[leave_out.lease_epoch]);
    IF NOT COALESCE(leave_out.first_sequence BETWEEN 1 AND leave_out.last_sequence
                    AND leave_out.last_sequence <= stands_at, false) THEN
        PERFORM refuse('PS006', format('%s to %s cannot be left out at the position %s', leave_out.first_sequence,
                                       leave_out.last_sequence, stands_at),
                       'What comes after the position is sent.');
    END IF;
    WITH known AS (
        DELETE FROM left_out AS o
        WHERE o.subscription_id = owner.id AND o.partition_id = leave_out.partition_id
          AND o.first_sequence <= leave_out.last_sequence AND o.last_sequence >= leave_out.first_sequence
        RETURNING o.first_sequence, o.last_sequence
    )
    SELECT LEAST(leave_out.first_sequence, min(k.first_sequence)),
           GREATEST(leave_out.last_sequence, max(k.last_sequence))
    INTO leave_out.first_sequence, leave_out.last_sequence
    FROM known AS k;
    INSERT INTO left_out (subscription_id, partition_id, first_sequence, last_sequence)
    VALUES (owner.id, leave_out.partition_id, leave_out.first_sequence, leave_out.last_sequence);
END
$$;

-- name: missing_events
-- What a sink lacks that ends before the position of a relay: how many events of the range are neither dead letters nor
-- left out (leave_out). is_put: a person has put the position behind it (subscribe, seek) and nothing was sent since,
-- so all of it is left out. low_sequence is the first sequence that the database has. No row for a partition that the
-- subscription does not read.
CREATE OR REPLACE FUNCTION missing_events(
    subscription text, partition_id bigint, first_sequence bigint, last_sequence bigint
) RETURNS TABLE (missing bigint, low_sequence bigint, is_put boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT missing_events.last_sequence - missing_events.first_sequence + 1 - (
               SELECT count(*) FROM dead_letters AS d
               WHERE d.subscription_id = s.id AND d.partition_id = p.id AND d.history = current_history()
                 AND d.sequence BETWEEN missing_events.first_sequence AND missing_events.last_sequence
                 AND NOT is_left_out(s.id, p.id, d.sequence)) - (
               SELECT COALESCE(sum(LEAST(o.last_sequence, missing_events.last_sequence)
                                   - GREATEST(o.first_sequence, missing_events.first_sequence) + 1), 0)::bigint
               FROM left_out AS o
               WHERE o.subscription_id = s.id AND o.partition_id = p.id
                 AND o.first_sequence <= missing_events.last_sequence
                 AND o.last_sequence >= missing_events.first_sequence),
           p.low_sequence,
           n.reason IN ('start', 'seek') AND n.position = missing_events.last_sequence
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

-- name: stay_put
-- After the commit of a block of which nothing was sent, in the same transaction: if a person had put the position
-- there (subscribe, seek), then that holds on behind the block, and what lies before it is still left out and not
-- lost. Raises PS010, PS013.
CREATE OR REPLACE FUNCTION stay_put(subscription text, consumer text, partition_id bigint, lease_epoch bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    newest positions%ROWTYPE;
    earlier positions%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[stay_put.partition_id], ARRAY[stay_put.lease_epoch]);
    SELECT p.* INTO newest FROM positions AS p
    WHERE p.subscription_id = owner.id AND p.partition_id = stay_put.partition_id
    ORDER BY p.id DESC
    LIMIT 1;
    SELECT p.* INTO earlier FROM positions AS p
    WHERE p.subscription_id = owner.id AND p.partition_id = stay_put.partition_id AND p.id < newest.id
    ORDER BY p.id DESC
    LIMIT 1;
    IF newest.reason = 'commit' AND earlier.reason IN ('start', 'seek') THEN
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        VALUES (owner.id, stay_put.partition_id, newest.position, stay_put.lease_epoch, earlier.reason);
    END IF;
END
$$;
