-- name: quotas
-- Fair shares by weight, among the consumers that take these topics (NULL: all topics), by the method of
-- largest remainders (Hamilton); ties go by consumer id. So all active partitions are held, consumers of
-- equal weight differ by at most 1, and nothing moves in the steady state.
CREATE OR REPLACE FUNCTION quotas(subscription_id bigint, topic_ids bigint[], active bigint)
RETURNS TABLE (consumer text, quota bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    WITH exact AS (
        SELECT c.id, quotas.active * c.weight / sum(c.weight) OVER () AS share
        FROM consumers AS c
        WHERE c.subscription_id = quotas.subscription_id
          AND (topic_ids IS NULL OR may_hold(c.subscription_id, c.id, topic_ids[1]))
    ), ranked AS (
        SELECT e.id, floor(e.share)::bigint AS whole,
               row_number() OVER (ORDER BY e.share - floor(e.share) DESC, e.id) AS place,
               quotas.active - sum(floor(e.share)) OVER () AS left_over
        FROM exact AS e
    )
    SELECT r.id, r.whole + (r.place <= r.left_over)::integer FROM ranked AS r;
END
$$;

-- name: find_share
-- What a consumer holds of these topics (NULL: all topics), compared with its fair share. shortage: how many active
-- partitions it holds too few (below 0: too many). cold: how many partitions it holds that are not active. uncovered:
-- how many of the partitions that the others lack are not free. It also returns how many partitions are free, which
-- other consumers hold too few (short) or too many (ample), those that are furthest off first, whether no lease has
-- to move (balanced), and, if one has to, which consumers are concerned, with their quotas.
CREATE OR REPLACE FUNCTION find_share(
    subscription_id bigint, consumer text, topic_ids bigint[], OUT shortage bigint, OUT cold bigint,
    OUT uncovered bigint, OUT free bigint, OUT short text[], OUT ample text[], OUT balanced boolean,
    OUT concerned text[], OUT quotas bigint[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_nestloop = off SET jit = off AS $$
BEGIN
    WITH board AS MATERIALIZED (
        SELECT l.state, l.holder, a.partition_id IS NOT NULL AS active
        FROM leases AS l
        LEFT JOIN active_partitions AS a ON a.subscription_id = l.subscription_id AND a.partition_id = l.partition_id
        WHERE l.subscription_id = find_share.subscription_id
          AND (find_share.topic_ids IS NULL OR l.partition_id >> 16 = ANY (find_share.topic_ids))
    ), totals AS (
        SELECT count(*) FILTER (WHERE b.active) AS active,
               count(*) FILTER (WHERE b.active AND b.state <> 'ACTIVE') AS unheld,
               count(*) FILTER (WHERE b.active AND b.state = 'AVAILABLE') AS free
        FROM board AS b
    ), held AS (
        SELECT b.holder, count(*) FILTER (WHERE b.active) AS warm, count(*) FILTER (WHERE NOT b.active) AS cold
        FROM board AS b
        WHERE b.state = 'ACTIVE'
        GROUP BY b.holder
    ), standing AS (
        SELECT q.consumer, q.quota, q.quota - COALESCE(h.warm, 0) AS shortage, COALESCE(h.cold, 0) AS cold, t.unheld,
               t.free
        FROM totals AS t
        CROSS JOIN LATERAL quotas(find_share.subscription_id, find_share.topic_ids, t.active) AS q
        LEFT JOIN held AS h ON h.holder = q.consumer
    )
    SELECT max(s.shortage) FILTER (WHERE s.consumer = find_share.consumer),
           max(s.cold) FILTER (WHERE s.consumer = find_share.consumer),
           sum(GREATEST(s.shortage, 0))::bigint - max(s.unheld), max(s.free),
           array_agg(s.consumer ORDER BY s.shortage DESC, s.consumer)
               FILTER (WHERE s.shortage > 0 AND s.consumer <> find_share.consumer),
           array_agg(s.consumer ORDER BY s.shortage, s.consumer)
               FILTER (WHERE s.shortage < 0 AND s.consumer <> find_share.consumer),
           bool_and(s.shortage = 0 AND s.cold = 0),
           array_agg(s.consumer) FILTER (WHERE s.shortage <> 0 OR s.cold > 0),
           array_agg(s.quota) FILTER (WHERE s.shortage <> 0 OR s.cold > 0)
    INTO shortage, cold, uncovered, free, short, ample, balanced, concerned, quotas
    FROM standing AS s;
END
$$;

-- name: write_shares
-- Stores the quotas of the consumers that are concerned, and no others.
CREATE OR REPLACE FUNCTION write_shares(subscription_id bigint, concerned text[], quotas bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM shares AS h
    WHERE h.subscription_id = write_shares.subscription_id
      AND NOT EXISTS (SELECT FROM unnest(concerned) AS g (consumer) WHERE g.consumer = h.consumer);
    INSERT INTO shares AS h (subscription_id, consumer, quota)
    SELECT write_shares.subscription_id, g.consumer, g.quota FROM unnest(concerned, quotas) AS g (consumer, quota)
    ON CONFLICT ON CONSTRAINT shares_pkey DO UPDATE SET quota = EXCLUDED.quota WHERE h.quota <> EXCLUDED.quota;
END
$$;

-- name: follow_share
-- What a check-in does until the next survey: it applies what the last survey found for this consumer. Returns false
-- for a consumer that has joined since that survey.
CREATE OR REPLACE FUNCTION follow_share(owner subscriptions, consumer text, now timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    known record;
    mine record;
    moved record;
BEGIN
    SELECT v.balanced, v.uncovered, h.quota, c.joined_at <= v.made_at AS stood INTO known
    FROM surveys AS v
    JOIN consumers AS c ON c.subscription_id = v.subscription_id AND c.id = follow_share.consumer
    LEFT JOIN shares AS h ON h.subscription_id = v.subscription_id AND h.consumer = follow_share.consumer
    WHERE v.subscription_id = owner.id;
    IF known.balanced OR known.quota IS NULL THEN
        RETURN known.stood;
    END IF;
    SELECT known.quota - count(a.partition_id) AS shortage, count(*) - count(a.partition_id) AS cold INTO mine
    FROM leases AS l
    LEFT JOIN active_partitions AS a ON a.subscription_id = l.subscription_id AND a.partition_id = l.partition_id
    WHERE l.subscription_id = owner.id AND l.holder = follow_share.consumer AND l.state = 'ACTIVE';
    SELECT * INTO moved FROM give_and_take(owner, consumer, NULL, mine.shortage, mine.cold, known.uncovered, now);
    IF moved.asked > 0 THEN
        UPDATE surveys AS v SET uncovered = v.uncovered - moved.asked WHERE v.subscription_id = owner.id;
    END IF;
    RETURN true;
END
$$;

-- name: share_out
-- What a check-in does after a survey, for topics that the same consumers take (NULL: all topics). It compares what
-- each consumer holds with its fair share, makes this consumer give back and take what it should, and calls the
-- others that hold too few or too many. For all topics together it records the result, for follow_share.
CREATE OR REPLACE FUNCTION share_out(
    owner subscriptions, consumer text, topic_ids bigint[], now timestamptz
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    mine record;
    moved record;
BEGIN
    SELECT * INTO mine FROM find_share(owner.id, consumer, topic_ids);
    SELECT * INTO moved FROM give_and_take(owner, consumer, topic_ids, mine.shortage, mine.cold, mine.uncovered, now);
    IF cardinality(mine.short) > 0 OR cardinality(mine.ample) > 0 THEN
        PERFORM call_consumers(
            owner, mine.short[1:mine.free - moved.taken] || mine.ample[1:mine.uncovered - moved.asked], now);
    END IF;
    IF topic_ids IS NULL THEN
        PERFORM write_shares(owner.id, mine.concerned, mine.quotas);
        UPDATE surveys AS v SET balanced = mine.balanced, uncovered = mine.uncovered - moved.asked
        WHERE v.subscription_id = owner.id
          AND (v.balanced, v.uncovered) IS DISTINCT FROM (mine.balanced, mine.uncovered - moved.asked);
    END IF;
END
$$;
