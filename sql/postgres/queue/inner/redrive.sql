-- name: redrive_queue
-- What redrive does for a queue: dead letters, which lock_letters has locked, become events again that wait outside the
-- window, with new deliveries and failures, in the order of history and sequence. Where keys have an order, they wait
-- for their key instead: the dealer brings each when no other event of its key is out, the lowest sequence first. With
-- keep_deliveries those of before are reported too; they count for no limit. Returns how many.
CREATE OR REPLACE FUNCTION redrive_queue(owner_id bigint, letter_ids bigint[], keep_deliveries boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ordered boolean := (SELECT q."order" = 'key' FROM queues AS q WHERE q.subscription_id = owner_id);
    changed bigint;
BEGIN
    WITH gone AS (
        DELETE FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.id = ANY (letter_ids)
        RETURNING d.*
    ), stored AS (
        INSERT INTO queue_waiting (
            subscription_id, partition_id, sequence, history, due_at, deliveries, deliveries_before, failures, reason,
            event_id, key, type, content_type, headers, payload, created_at, sequenced_at)
        SELECT g.subscription_id, g.partition_id, g.sequence, g.history,
               CASE WHEN NOT ordered OR g.key IS NULL THEN
                   clock_timestamp() + row_number() OVER (ORDER BY g.partition_id, g.history, g.sequence)
                       * interval '1 microsecond' END,
               0, CASE WHEN keep_deliveries THEN g.attempts ELSE 0 END, 0, g.reason, g.event_id, g.key, g.type,
               g.content_type, g.headers, g.payload, g.created_at, g.created_at
        FROM gone AS g
        RETURNING id, partition_id, sequence, key
    ), noted AS (
        INSERT INTO queue_keys (subscription_id, partition_id, sequence, waiting_id, key_digest, state)
        SELECT owner_id, s.partition_id, s.sequence, s.id, key_digest(s.key), 'unsure'
        FROM stored AS s
        WHERE ordered AND s.key IS NOT NULL
    )
    SELECT count(*) INTO changed FROM stored AS s;
    RETURN changed;
END
$$;
