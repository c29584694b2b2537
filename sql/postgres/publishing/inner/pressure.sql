-- name: refuse_under_pressure
-- Refuses a publish to partitions of which too much waits for its sequence (PS022).
CREATE OR REPLACE FUNCTION refuse_under_pressure(partition_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    found record := pressure_problem(partition_ids);
BEGIN
    IF found.is_measured THEN
        PERFORM refuse('PS022', format('%s', found.problem), 'Publish again later; nothing was published.');
    ELSIF found.problem IS NOT NULL THEN
        PERFORM refuse('PS022', format('%s', found.problem),
                       'Start the sequencer: penstock upkeep, or once: penstock sequence. Nothing was published.');
    END IF;
END
$$;

-- name: pressure_problem
-- Why partitions take no event now, because too much of them waits for its sequence; or NULL. is_measured: it is, and
-- else nobody gives events their sequences. While fewer ids were given out since the newest tick than the topic's
-- limit, it reads nothing else. Above that, the last measurement decides. If events wait and the last measurement is
-- more than five seconds old, no sequencer is running, and the limit is enforced without a measurement.
CREATE OR REPLACE FUNCTION pressure_problem(partition_ids bigint[], OUT problem text, OUT is_measured boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    issued bigint;
    limited text[];
    pressed record;
BEGIN
    SELECT s.last_value - COALESCE((
        SELECT CASE WHEN t.complete THEN t.highest_id ELSE LEAST(t.last_id, t.highest_id) END
        FROM ticks AS t
        ORDER BY t.id DESC
        LIMIT 1), 0)
    INTO issued
    FROM events_id AS s;
    SELECT array_agg(t.address) INTO limited
    FROM topics AS t
    WHERE t.id IN (SELECT p.id >> 16 FROM unnest(partition_ids) AS p (id))
      AND (issued >= t.max_unsequenced_events
           OR issued >= t.max_unsequenced_bytes / GREATEST(t.max_payload_bytes, 1));
    IF limited IS NULL THEN
        RETURN;
    END IF;
    SELECT t.address, p.partition_id & 65535 AS partition, p.events, p.bytes INTO pressed
    FROM pressure AS p JOIN topics AS t ON t.id = p.partition_id >> 16
    WHERE p.partition_id = ANY (partition_ids) AND t.address = ANY (limited)
      AND p.measured_at BETWEEN clock_timestamp() - interval '5 seconds' AND clock_timestamp() + interval '5 seconds'
    LIMIT 1;
    IF FOUND THEN
        problem := format('topic "%s" partition %s: %s events of %s bytes wait for their sequence',
                          pressed.address, pressed.partition, pressed.events, pressed.bytes);
        is_measured := true;
    ELSIF NOT EXISTS (
        SELECT FROM pressure_measured AS m
        WHERE m.measured_at BETWEEN clock_timestamp() - interval '5 seconds'
              AND clock_timestamp() + interval '5 seconds'
    ) AND EXISTS (SELECT FROM waiting_events(1)) THEN
        problem := format('topic "%s": nobody gives events their sequences', limited[1]);
    END IF;
END
$$;
