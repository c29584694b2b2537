-- name: label_queue
-- Keeps a JSON object about a queue, of 65,536 bytes at most, in place of the one before. Raises PS006, PS013, PS018,
-- PS042.
CREATE PROCEDURE label_queue(subscription LONGTEXT, labels JSON)
BEGIN
    DECLARE owner_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('label_queue()');
    CALL require_read_committed('label_queue()');
    CALL require_queue(subscription, 'consume', owner_id);
    IF COALESCE(JSON_TYPE(labels), '') <> 'OBJECT' OR LENGTH(labels) > 65536 THEN
        CALL refuse('PS006', 'the labels of a queue are not a JSON object of 65,536 bytes at most');
    END IF;
    -- A removal locks it too, so no labels are left of a queue that is gone.
    SET owner_id = (SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = owner_id FOR UPDATE);
    CALL require_queue(subscription, 'consume', owner_id);
    INSERT INTO queue_labels (subscription_id, labels) VALUES (owner_id, labels)
    ON DUPLICATE KEY UPDATE labels = VALUES(labels), changed_at = UTC_TIMESTAMP(6);
    CALL end_call();
END;

-- name: labels_of_queue
-- What is kept about a queue, since when, and when it was changed last; no row while nothing is. Raises PS013, PS042.
CREATE PROCEDURE labels_of_queue(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('labels_of_queue()');
    CALL require_queue(subscription, 'consume', owner_id);
    SELECT l.labels, l.created_at, l.changed_at FROM queue_labels AS l WHERE l.subscription_id = owner_id;
END;
