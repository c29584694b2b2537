-- name: list_subscriptions
-- The subscriptions that the login may see: which topics they read, their times in seconds, and, for one that
-- is paused, since when, by whom and why. dead_letters_to is the topic that its dead letters are published to, if the
-- login may see that, and dead_letters_origin who has set it: 'hand', or 'file ' and the name of the policy file.
-- dead_letters_problem says why nothing goes there: who has set it lost a right. In the order of their names: those of
-- a mode and below a namespace ('': of all), that come after one, and at most max_rows of them (NULL: all).
CREATE OR REPLACE FUNCTION list_subscriptions(
    of_mode text DEFAULT '', namespace text DEFAULT '', after text DEFAULT '', max_rows bigint DEFAULT NULL
)
RETURNS TABLE (
    name text, mode text, topics text[], heartbeat_seconds double precision, lease_seconds double precision,
    release_seconds double precision, max_consumers integer, created_at timestamptz, paused_at timestamptz,
    paused_by text, paused_reason text, dead_letters_to text, dead_letters_origin text, dead_letters_problem text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
DECLARE
    -- '0' comes next to '/'.
    root text COLLATE "C" := CASE
        WHEN list_subscriptions.namespace = '' THEN '' ELSE list_subscriptions.namespace || '/' END;
    last text COLLATE "C" := CASE
        WHEN root = '' THEN (SELECT max(s.name) FROM subscriptions AS s)
        ELSE list_subscriptions.namespace || '0'
    END;
BEGIN
    RETURN QUERY
    SELECT s.name, s.mode, ARRAY(
               SELECT t.address FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
               WHERE r.subscription_id = s.id
               ORDER BY t.address),
           s.heartbeat_seconds, s.lease_seconds, s.release_seconds, s.max_consumers, s.created_at, s.paused_at,
           s.paused_by, s.paused_reason, (
               SELECT t.address FROM topics AS t
               WHERE t.id = s.dead_letters_to AND (
                   NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))),
           s.dead_letters_origin, forwarding_problem(s)
    FROM subscriptions AS s
    WHERE s.name > list_subscriptions.after AND s.name BETWEEN root AND last AND starts_with(s.name, root)
      AND list_subscriptions.of_mode IN (s.mode, '') AND ((SELECT no_walls()) OR NOT reads_hidden(s.id))
    ORDER BY s.name
    LIMIT max_rows;
END
$$;

-- name: describe_subscription
-- The row of list_subscriptions for one subscription. Raises PS013.
CREATE OR REPLACE FUNCTION describe_subscription(subscription text)
RETURNS TABLE (
    name text, mode text, topics text[], heartbeat_seconds double precision, lease_seconds double precision,
    release_seconds double precision, max_consumers integer, created_at timestamptz, paused_at timestamptz,
    paused_by text, paused_reason text, dead_letters_to text, dead_letters_origin text, dead_letters_problem text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_subscription(describe_subscription.subscription);
    RETURN QUERY SELECT l.* FROM list_subscriptions() AS l WHERE l.name = describe_subscription.subscription;
END
$$;

-- name: subscription_lag
-- Position, high watermark, lag and holder of every partition of one subscription, or of all. lag_seconds is the time
-- since the first unread event was sequenced.
CREATE OR REPLACE FUNCTION subscription_lag(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, topic text, partition integer, "position" bigint, high_watermark bigint, lag_events bigint,
    lag_seconds double precision, state text, holder text, lease_epoch bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.name, t.address, p.number, at.position, at.watermark, at.watermark - at.position,
           COALESCE(extract(epoch FROM clock_timestamp() - sequenced_at_of(p.id, at.position + 1)), 0),
           l.state, l.holder, l.lease_epoch
    FROM (
        SELECT i.* FROM subscriptions AS i
        WHERE (subscription_lag.subscription IS NULL OR i.name = subscription_lag.subscription)
          AND ((SELECT no_walls()) OR NOT reads_unseen(i.id))
        OFFSET 0
    ) AS s
    JOIN leases AS l ON l.subscription_id = s.id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    CROSS JOIN LATERAL (
        SELECT current_position(s.id, p.id) AS position, high_watermark(p.id) AS watermark
    ) AS at
    WHERE NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'read')
    ORDER BY s.name, t.address, p.number
$$;

-- name: subscription_consumers
-- The members of one subscription, or of all (NULL): until which deadline each counts as alive, what it holds, the
-- topics that it has named (NULL: all topics) and the last error that it has reported.
CREATE OR REPLACE FUNCTION subscription_consumers(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, consumer text, weight double precision, topics text[], joined_at timestamptz,
    heartbeat_at timestamptz, deadline timestamptz, live boolean, leases bigint, last_error text,
    last_error_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.name, c.id, c.weight, (
               SELECT array_agg(a.address ORDER BY a.address)
               FROM consumer_topics AS t JOIN topics AS a ON a.id = t.topic_id
               WHERE t.subscription_id = s.id AND t.consumer = c.id),
           c.joined_at, c.heartbeat_at, c.deadline, c.deadline > clock_timestamp(),
           COALESCE(h.held, 0), e.error, e.at
    FROM subscriptions AS s
    JOIN consumers AS c ON c.subscription_id = s.id
    LEFT JOIN (
        SELECT l.subscription_id, l.holder, count(*) AS held FROM leases AS l GROUP BY l.subscription_id, l.holder
    ) AS h ON h.subscription_id = s.id AND h.holder = c.id
    LEFT JOIN consumer_errors AS e ON e.subscription_id = s.id AND e.consumer = c.id
    WHERE (subscription_consumers.subscription IS NULL OR s.name = subscription_consumers.subscription)
      AND ((SELECT no_walls()) OR NOT reads_hidden(s.id))
    ORDER BY s.name, c.id
$$;

-- name: unleased_cursors
-- The partitions that can be leased, of one subscription or of all (NULL): they have unread events and no consumer
-- holds them.
CREATE OR REPLACE FUNCTION unleased_cursors(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, topic text, partition integer, "position" bigint, high_watermark bigint, lag_events bigint,
    lag_seconds double precision, state text, holder text, lease_epoch bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT g.*
    FROM subscription_lag(unleased_cursors.subscription) AS g
    WHERE g.state = 'AVAILABLE' AND g.lag_events > 0
$$;

-- name: leased_cursors
-- The leases that are held, of one subscription or of all (NULL): by which consumer, since when, until when the
-- holder counts as alive, and, for a lease that is to be given back, until when.
CREATE OR REPLACE FUNCTION leased_cursors(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, topic text, partition integer, holder text, state text, lease_epoch bigint, "position" bigint,
    high_watermark bigint, lag_events bigint, acquired_at timestamptz, deadline timestamptz,
    release_deadline timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.name, t.address, p.number, l.holder, l.state, l.lease_epoch, at.position, at.watermark,
           at.watermark - at.position, l.acquired_at, c.deadline, l.release_deadline
    FROM (
        SELECT i.* FROM subscriptions AS i
        WHERE (leased_cursors.subscription IS NULL OR i.name = leased_cursors.subscription)
          AND ((SELECT no_walls()) OR NOT reads_unseen(i.id))
        OFFSET 0
    ) AS s
    JOIN leases AS l ON l.subscription_id = s.id AND l.state <> 'AVAILABLE'
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    LEFT JOIN consumers AS c ON c.subscription_id = s.id AND c.id = l.holder
    CROSS JOIN LATERAL (
        SELECT current_position(s.id, p.id) AS position, high_watermark(p.id) AS watermark
    ) AS at
    WHERE NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'read')
    ORDER BY s.name, t.address, p.number
$$;

-- name: subscription_statistics
-- One row for a subscription, or for each (NULL): its heartbeat, how many partitions have unread events, how many
-- consumers are alive and the sum of their weights. moves and take_overs count how often in the last hour a partition
-- went to another consumer, because it was given back or because its holder's time ran out. It also says when a lease
-- changed last.
CREATE OR REPLACE FUNCTION subscription_statistics(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, heartbeat_seconds double precision, active_partitions bigint, active_consumers bigint,
    active_weight double precision, moves bigint, take_overs bigint, changed_at timestamptz, paused_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.name, s.heartbeat_seconds, (
               SELECT count(*) FROM leases AS l
               WHERE l.subscription_id = s.id
                 AND high_watermark(l.partition_id) > current_position(s.id, l.partition_id)),
           alive.consumers, alive.weight, changes.moves, changes.take_overs, (
               SELECT h.at FROM lease_history AS h WHERE h.subscription_id = s.id ORDER BY h.at DESC LIMIT 1),
           s.paused_at
    FROM subscriptions AS s
    CROSS JOIN LATERAL (
        SELECT count(*) AS consumers, COALESCE(sum(c.weight), 0) AS weight
        FROM consumers AS c
        WHERE c.subscription_id = s.id AND c.deadline > clock_timestamp()
    ) AS alive
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE lost.change = 'released') AS moves,
               count(*) FILTER (WHERE lost.change = 'expired') AS take_overs
        FROM lease_history AS taken
        JOIN lease_history AS lost
            ON lost.subscription_id = s.id AND lost.partition_id = taken.partition_id
            AND lost.lease_epoch = taken.lease_epoch - 1 AND lost.holder <> taken.holder
            AND lost.at > clock_timestamp() - interval '1 hour'
        WHERE taken.subscription_id = s.id AND taken.change = 'acquired'
          AND taken.at > clock_timestamp() - interval '1 hour'
    ) AS changes
    WHERE (subscription_statistics.subscription IS NULL OR s.name = subscription_statistics.subscription)
      AND ((SELECT no_walls()) OR NOT reads_hidden(s.id))
    ORDER BY s.name
$$;
