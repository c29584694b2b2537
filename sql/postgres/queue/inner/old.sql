-- name: old_until
-- The last of at most so many sequences after one of a partition whose events came to the log before a time, all of
-- them; the one after which it looked when there is none.
CREATE OR REPLACE FUNCTION old_until(part_id bigint, after bigint, most bigint, before timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    begins bigint;
    young record;
BEGIN
    SELECT c.first_sequence INTO begins
    FROM chunks AS c
    WHERE c.partition_id = part_id AND c.first_sequence <= old_until.after + 1
    ORDER BY c.first_sequence DESC
    LIMIT 1;
    SELECT c.first_sequence, c.sequenced_ats INTO young
    FROM chunks AS c
    WHERE c.partition_id = part_id AND c.first_sequence >= COALESCE(begins, 0)
      AND c.first_sequence <= old_until.after + most AND c.sequenced_at > old_until.before
    ORDER BY c.first_sequence
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN GREATEST(old_until.after, LEAST(old_until.after + most, high_watermark(part_id)));
    END IF;
    RETURN GREATEST(old_until.after, LEAST(old_until.after + most, young.first_sequence - 1 + COALESCE((
        SELECT min(a.n) - 1 FROM unnest(young.sequenced_ats) WITH ORDINALITY AS a (at, n)
        WHERE a.at > old_until.before), 0)));
END
$$;

-- name: end_old
-- Throws away what queues have kept for longer than they shall, at most 100,000 events of a partition that were not
-- dealt, and of each queue 10,000 ranges that were, and 2,000 copies. Chance chooses among more queues than max_rows:
-- one that cannot be helped, because somebody has its oldest event, hides no other one.
CREATE OR REPLACE FUNCTION end_old(max_rows integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    queue queues;
BEGIN
    FOR queue IN
        SELECT q.*
        FROM queues AS q
        CROSS JOIN LATERAL (
            SELECT clock_timestamp() - make_interval(secs => q.retention_seconds) AS before
        ) AS age
        WHERE q.retention_seconds > 0 AND (EXISTS (
            SELECT FROM leases AS l
            CROSS JOIN LATERAL (SELECT current_position(l.subscription_id, l.partition_id) AS position) AS stands
            WHERE l.subscription_id = q.subscription_id
              AND old_until(l.partition_id, stands.position, 1, age.before) > stands.position
        ) OR EXISTS (
            SELECT FROM queue_waiting AS w
            WHERE w.subscription_id = q.subscription_id AND w.sequenced_at <= age.before))
        ORDER BY random()
        LIMIT max_rows
        FOR NO KEY UPDATE OF q SKIP LOCKED
    LOOP
        PERFORM end_old_of(queue, clock_timestamp() - make_interval(secs => queue.retention_seconds));
    END LOOP;
END
$$;

-- name: end_old_of
-- Throws away what a queue has kept since before a time, under the dealer's lock, and records it. What somebody has
-- stays until his time is over. What was not dealt is passed over, so that it costs no row.
CREATE OR REPLACE FUNCTION end_old_of(queue queues, before timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    floor_id bigint := (newest_turn(queue.subscription_id)).floor_id;
    ended queue_piece[];
    passed queue_piece[];
BEGIN
    PERFORM end_claims(queue, floor_id, clock_timestamp());
    SELECT drop_below(queue, floor_id, array_agg(n.partition_id), array_agg(n.until + 1)) INTO ended
    FROM (
        SELECT l.partition_id, old_until(
                   l.partition_id, current_position(l.subscription_id, l.partition_id), 100000, before) AS until
        FROM leases AS l
        WHERE l.subscription_id = queue.subscription_id
    ) AS n;
    ended := ended || drop_old_copies(queue, floor_id, before);
    WITH grown AS MATERIALIZED (
        SELECT l.partition_id, l.lease_epoch, stands.position, COALESCE(stands.reached, stands.position) AS reached,
               old_until(l.partition_id, COALESCE(stands.reached, stands.position), 100000, before) AS until
        FROM leases AS l
        CROSS JOIN LATERAL (
            SELECT o.position, o.reached
            FROM positions AS o
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        WHERE l.subscription_id = queue.subscription_id
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ), moved AS (
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
        SELECT queue.subscription_id, g.partition_id, g.position, g.lease_epoch, 'queue', g.until
        FROM grown AS g
        WHERE g.until > g.reached
    )
    SELECT array_agg(ROW(0, 0, g.partition_id, g.reached + 1, g.until, 0, NULL, NULL, NULL)::queue_piece) INTO passed
    FROM grown AS g
    WHERE g.until > g.reached;
    PERFORM record_old(queue.subscription_id, ended || COALESCE(passed, '{}'));
    PERFORM move_floors(queue, floor_id);
END
$$;

-- name: drop_old_copies
-- Ends the events out of the window that came to the log before a time, and those that are in it again. Returns them.
-- Nobody is waited for: who erases a copy has it locked, and it ends with the next sweep.
CREATE OR REPLACE FUNCTION drop_old_copies(queue queues, floor_id bigint, before timestamptz)
RETURNS queue_piece[]
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    free_ids bigint[];
    ended queue_piece[];
BEGIN
    -- In the order of workers: the claim before the copy.
    SELECT array_agg(n.waiting_id) INTO free_ids
    FROM (
        SELECT r.waiting_id
        FROM queue_ranges AS r
        JOIN queue_waiting AS w ON w.id = r.waiting_id
        WHERE r.subscription_id = queue.subscription_id AND r.id >= drop_old_copies.floor_id
          AND r.token IS NULL AND w.sequenced_at <= drop_old_copies.before
        ORDER BY r.id
        LIMIT 1000
        FOR UPDATE OF r SKIP LOCKED
    ) AS n;
    WITH old AS MATERIALIZED (
        SELECT w.id
        FROM queue_waiting AS w
        WHERE w.subscription_id = queue.subscription_id AND w.sequenced_at <= drop_old_copies.before
          AND (w.due_at IS NOT NULL OR w.id = ANY (free_ids))
        ORDER BY w.id
        LIMIT 2000
        FOR UPDATE SKIP LOCKED
    ), freed AS (
        DELETE FROM queue_ranges AS r
        USING old AS o
        WHERE r.subscription_id = queue.subscription_id AND r.id >= drop_old_copies.floor_id
          AND r.waiting_id = o.id
    ), gone AS (
        DELETE FROM queue_waiting AS w USING old AS o WHERE w.id = o.id RETURNING w.*
    )
    SELECT array_agg(ROW(0, 0, g.partition_id, g.sequence, g.sequence, g.deliveries, NULL, NULL, g.id)::queue_piece)
    INTO ended
    FROM gone AS g;
    PERFORM finish_keys(queue, ended);
    RETURN COALESCE(ended, '{}');
END
$$;

-- name: record_old
-- Records what a queue has thrown away because of its age: a row for all that follow each other.
CREATE OR REPLACE FUNCTION record_old(owner_id bigint, ended queue_piece[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by, reason)
    SELECT owner_id, i.partition_id, min(i.first_sequence), max(i.last_sequence), principal(), 'retention_seconds'
    FROM (
        SELECT n.*, count(*) FILTER (WHERE n.first_sequence > n.highest + 1) OVER (
                   PARTITION BY n.partition_id ORDER BY n.first_sequence, n.last_sequence ROWS UNBOUNDED PRECEDING)
                   AS island
        FROM (
            SELECT e.partition_id, e.first_sequence, e.last_sequence, max(e.last_sequence) OVER (
                       PARTITION BY e.partition_id ORDER BY e.first_sequence, e.last_sequence
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
            FROM unnest(ended) AS e
        ) AS n
    ) AS i
    GROUP BY i.partition_id, i.island;
END
$$;
