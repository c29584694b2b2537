-- name: is_left_out
-- Whether a person has left an event out of a sink.
CREATE FUNCTION is_left_out(owner_id BIGINT, part_id BIGINT, of_sequence BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found BOOLEAN;
    SELECT COUNT(*) > 0 INTO found
    FROM left_out AS o FORCE INDEX (PRIMARY)
    WHERE o.subscription_id = owner_id AND o.partition_id = part_id
      AND of_sequence BETWEEN o.first_sequence AND o.last_sequence;
    RETURN found;
END;

-- name: send_after
-- What lies after a position that was moved back is sent, so it is not left out any more.
CREATE PROCEDURE send_after(owner_id BIGINT, part_id BIGINT, stands_at BIGINT)
BEGIN
    DELETE o FROM left_out AS o
    WHERE o.subscription_id = owner_id AND o.partition_id = part_id AND o.first_sequence > stands_at;
    UPDATE left_out AS o SET o.last_sequence = stands_at
    WHERE o.subscription_id = owner_id AND o.partition_id = part_id AND o.last_sequence > stands_at;
END;
