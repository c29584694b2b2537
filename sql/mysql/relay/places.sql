-- name: passed_places
-- Up to where each place of a relay's sink was sent events of a partition. '' stands for the partition as a whole: 0
-- after a person has put the position somewhere, and the position itself where the relay has come so far without rules.
-- is_put: a person has put it there, and nothing was sent since. No row for a partition that the subscription does not
-- read; at most most_places + 1 rows.
CREATE PROCEDURE passed_places(subscription LONGTEXT, partition_id BIGINT, most_places INT)
READS SQL DATA
BEGIN
    DECLARE owner_id, at_position BIGINT;
    DECLARE was_put BOOLEAN DEFAULT FALSE;
    DECLARE most INT DEFAULT GREATEST(most_places, 1);
    CALL refuse_serializable('passed_places()');
    SELECT MAX(s.id) INTO owner_id
    FROM subscriptions AS s
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND NOT reads_hidden(s.id);
    CALL standing_of(owner_id, partition_id, at_position, was_put);
    (SELECT '' AS place,
            CASE WHEN was_put THEN 0
                 WHEN MAX(p.position) = at_position THEN MAX(p.last_sequence)
                 ELSE at_position END AS last_sequence,
            was_put AS is_put
     FROM relay_places AS p
     WHERE p.subscription_id = owner_id AND p.partition_id = partition_id AND p.place = ''
     HAVING at_position IS NOT NULL)
    UNION ALL (
        SELECT p.place, IF(was_put, 0, p.last_sequence), was_put
        FROM relay_places AS p
        WHERE p.subscription_id = owner_id AND p.partition_id = partition_id AND p.place > ''
          AND at_position IS NOT NULL
        ORDER BY p.place
        LIMIT most);
END;

-- name: note_places
-- Records what a relay has left out of a block that ends at up_to, and the last sequence that each place was sent.
-- The caller moves the position in the same transaction, after it. Raises PS010, PS013, PS018.
CREATE PROCEDURE note_places(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, places JSON,
    sequences JSON, left_out BIGINT, up_to BIGINT
)
BEGIN
    DECLARE owner_id, at_position BIGINT;
    DECLARE was_put BOOLEAN DEFAULT FALSE;
    {{on error: CALL undo_call()}}
    CALL begin_call('note_places()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    CALL standing_of(owner_id, partition_id, at_position, was_put);
    IF was_put THEN
        UPDATE relay_places AS p SET p.last_sequence = 0
        WHERE p.subscription_id = owner_id AND p.partition_id = partition_id;
    END IF;
    INSERT INTO relay_places (subscription_id, partition_id, place, last_sequence, position, left_out)
    VALUES (owner_id, partition_id, '', IF(was_put, 0, at_position), up_to, left_out)
    ON DUPLICATE KEY UPDATE
        last_sequence = IF(was_put OR relay_places.position = at_position, relay_places.last_sequence, at_position),
        position = VALUES(position), left_out = relay_places.left_out + VALUES(left_out);
    INSERT INTO relay_places (subscription_id, partition_id, place, last_sequence, position)
    SELECT owner_id, partition_id, w.place, s.sequence, up_to
    FROM JSON_TABLE(places, '$[*]' COLUMNS (number FOR ORDINALITY, place VARCHAR(500) PATH '$')) AS w
    JOIN JSON_TABLE(sequences, '$[*]' COLUMNS (number FOR ORDINALITY, sequence BIGINT PATH '$')) AS s
      ON s.number = w.number
    ON DUPLICATE KEY UPDATE last_sequence = VALUES(last_sequence), position = VALUES(position);
    CALL end_call();
END;
