-- name: set_backpressure
-- Limits how much of a topic may wait for its sequence, in events and in bytes of payload for each partition; NULL
-- means no limit. Publishers obey it at once. Raises PS002, PS006.
CREATE OR REPLACE FUNCTION set_backpressure(topic text, max_events bigint, max_bytes bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := require_topic_for(topic, 'operate');
BEGIN
    PERFORM commit_durably();
    IF max_events < 1 OR max_bytes < 1 THEN
        PERFORM refuse('PS006', format('the limits cannot be %s events and %s bytes', max_events, max_bytes),
                       'Use 1 or more, or NULL for no limit.');
    END IF;
    UPDATE topics AS t SET max_unsequenced_events = max_events, max_unsequenced_bytes = max_bytes WHERE t.id = owner_id;
END
$$;

-- name: measure_pressure
-- Measures, among the oldest 100,000 waiting events, how much waits in the partitions of topics that have a limit,
-- and records the partitions at their limit. Returns how many those are. The sequencer's worker calls it once a
-- second; where no topic has a limit it does nothing.
CREATE OR REPLACE FUNCTION measure_pressure() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    pressed integer;
BEGIN
    IF NOT EXISTS (
        SELECT FROM topics AS t WHERE t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL
    ) THEN
        RETURN 0;
    END IF;
    PERFORM FROM pressure_measured FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;  -- somebody measures
    END IF;
    WITH present AS MATERIALIZED (
        SELECT w.partition_id, count(*) AS events, sum(octet_length(e.payload)) AS bytes
        FROM waiting_events(100000) AS w
        JOIN topics AS t ON t.id = w.partition_id >> 16
        JOIN events AS e ON e.id = w.id
        WHERE t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL
        GROUP BY w.partition_id, t.max_unsequenced_events, t.max_unsequenced_bytes
        HAVING count(*) >= t.max_unsequenced_events OR sum(octet_length(e.payload)) >= t.max_unsequenced_bytes
    ), relieved AS (
        DELETE FROM pressure AS p WHERE NOT EXISTS (SELECT FROM present AS n WHERE n.partition_id = p.partition_id)
    ), kept AS (
        INSERT INTO pressure AS p (partition_id, events, bytes, measured_at)
        SELECT n.partition_id, n.events, n.bytes, clock_timestamp() FROM present AS n
        ON CONFLICT (partition_id) DO UPDATE
        SET events = EXCLUDED.events, bytes = EXCLUDED.bytes, measured_at = EXCLUDED.measured_at
    )
    SELECT count(*) INTO pressed FROM present;
    UPDATE pressure_measured SET measured_at = clock_timestamp();
    RETURN pressed;
END
$$;
