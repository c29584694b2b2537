-- name: configure_queue
-- Sets settings of a queue, given as JSON; the others stay. Raises PS006, PS013, PS018, PS042.
CREATE OR REPLACE FUNCTION configure_queue(subscription text, settings jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    present queues%ROWTYPE := require_queue(subscription, 'consume');
    bad record;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('configure_queue()');
    -- A redrive locks the same row, so it sees the order that is set here, or this sees what it has brought back.
    PERFORM FROM subscriptions AS s WHERE s.id = present.subscription_id FOR NO KEY UPDATE;
    PERFORM FROM queues AS q WHERE q.subscription_id = present.subscription_id FOR NO KEY UPDATE;
    -- As they are under the lock: somebody else may have set some of them meanwhile.
    present := require_queue(subscription, 'consume');
    IF jsonb_typeof(settings) IS DISTINCT FROM 'object' THEN
        PERFORM refuse('PS006', 'the settings of a queue are not a JSON object', 'Give {"setting": value}.');
    END IF;
    SELECT g.key, g.value INTO bad
    FROM jsonb_each(configure_queue.settings - 'order') AS g
    LEFT JOIN queue_bounds() AS b ON b.setting = g.key
    WHERE b.setting IS NULL OR jsonb_typeof(g.value) <> 'number'
       OR NOT (g.value #>> '{}')::numeric BETWEEN b.lowest::numeric AND b.highest::numeric
       OR (b.is_whole AND (g.value #>> '{}')::numeric <> trunc((g.value #>> '{}')::numeric))
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS006', format('the setting %s of a queue cannot be %s', left(bad.key, 100),
                                       left(bad.value::text, 100)),
                       (SELECT 'There are: '
                               || string_agg(format('%s (%s to %s)', b.setting, b.lowest, b.highest), ', ')
                        FROM queue_bounds() AS b));
    ELSIF NOT settings -> 'order' IN ('"none"', '"key"') THEN
        PERFORM refuse('PS006', format('there is no order %s', left((settings -> 'order')::text, 100)),
                       'Use none or key.');
    END IF;
    UPDATE queues AS q
    SET visibility_seconds = n.visibility_seconds, max_deliveries = n.max_deliveries, max_failures = n.max_failures,
        max_in_flight = n.max_in_flight, first_backoff_seconds = n.first_backoff_seconds,
        longest_backoff_seconds = n.longest_backoff_seconds, jitter = n.jitter,
        retention_seconds = n.retention_seconds
    FROM jsonb_populate_record(present, configure_queue.settings) AS n
    -- Who changes nothing has come for the lock, and writes no row.
    WHERE q.subscription_id = present.subscription_id AND q IS DISTINCT FROM n;
    IF settings ? 'order' THEN
        PERFORM set_order(present.subscription_id, settings ->> 'order');
    END IF;
END
$$;

-- name: describe_queue
-- The settings of a queue. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION describe_queue(subscription text)
RETURNS TABLE (
    visibility_seconds double precision, max_deliveries integer, max_failures integer, max_in_flight integer,
    first_backoff_seconds double precision, longest_backoff_seconds double precision, jitter double precision,
    "order" text, retention_seconds double precision
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT q.visibility_seconds, q.max_deliveries, q.max_failures, q.max_in_flight, q.first_backoff_seconds,
           q.longest_backoff_seconds, q.jitter, q."order", q.retention_seconds
    FROM require_queue(describe_queue.subscription, 'consume') AS q
$$;
