-- name: label_queue
-- Keeps a JSON object about a queue, of 65,536 bytes at most, in place of the one before. Raises PS006, PS013, PS018,
-- PS042.
CREATE OR REPLACE FUNCTION label_queue(subscription text, labels jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'consume');
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('label_queue()');
    IF jsonb_typeof(labels) IS DISTINCT FROM 'object' OR octet_length(labels::text) > 65536 THEN
        PERFORM refuse('PS006', 'the labels of a queue are not a JSON object of 65,536 bytes at most',
                       'Give {"name": value}.');
    END IF;
    -- A removal locks it too, so no labels are left of a queue that is gone.
    PERFORM FROM queues AS q WHERE q.subscription_id = queue.subscription_id FOR NO KEY UPDATE;
    queue := require_queue(subscription, 'consume');
    INSERT INTO queue_labels AS l (subscription_id, labels) VALUES (queue.subscription_id, label_queue.labels)
    ON CONFLICT ON CONSTRAINT queue_labels_pkey DO UPDATE
    SET labels = EXCLUDED.labels, changed_at = clock_timestamp();
END
$$;

-- name: labels_of_queue
-- What is kept about a queue, since when, and when it was changed last; no row while nothing is. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION labels_of_queue(subscription text)
RETURNS TABLE (labels jsonb, created_at timestamptz, changed_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'consume');
BEGIN
    RETURN QUERY
    SELECT l.labels, l.created_at, l.changed_at
    FROM queue_labels AS l
    WHERE l.subscription_id = queue.subscription_id;
END
$$;
