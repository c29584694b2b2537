-- name: parked_keys
-- The keys whose events wait, in partitions (a JSON array) that the subscription reads: later events of such a key
-- must not go to the handler. Raises PS013.
CREATE PROCEDURE parked_keys(subscription LONGTEXT, partition_ids JSON)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('parked_keys()');
    CALL require_subscription(subscription, owner_id);
    SELECT DISTINCT d.partition_id, d.`key`
    FROM dead_letters AS d FORCE INDEX (dead_letters_parked)
    WHERE d.subscription_id = owner_id AND d.parked = TRUE AND d.partition_id IN (
        SELECT g.id FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g)
    ORDER BY d.partition_id, d.`key`;
END;

-- name: commit_parking
-- A commit of one partition that parks some of the events it passes (a JSON array), because their keys wait. after is
-- the position after which the events were read. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE PROCEDURE commit_parking(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, position BIGINT,
    after BIGINT, sequences JSON
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE places, good INT DEFAULT 0;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('commit_parking()');
    CALL require_subscription(subscription, owner_id);
    SET places = COALESCE(JSON_LENGTH(sequences), 0);
    SELECT COUNT(DISTINCT s.sequence) INTO good
    FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s
    WHERE s.sequence > after AND s.sequence <= position;
    IF after IS NULL OR places = 0 OR good <> places THEN
        CALL refuse('PS006', 'a commit parks only events that it passes, each once');
    END IF;
    CALL move_positions(subscription, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch), JSON_ARRAY(position),
                        JSON_ARRAY(after));
    CALL store_letters(owner_id, partition_id, sequences, 'waits behind an earlier event of its key', 0, TRUE, TRUE);
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;
