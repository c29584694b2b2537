-- name: is_left_out
-- Whether a person has left an event out of a sink.
CREATE OR REPLACE FUNCTION is_left_out(subscription_id bigint, partition_id bigint, sequence bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM left_out AS o
        WHERE o.subscription_id = is_left_out.subscription_id AND o.partition_id = is_left_out.partition_id
          AND is_left_out.sequence BETWEEN o.first_sequence AND o.last_sequence);
END
$$;

-- name: send_after
-- What lies after a position that was moved back is sent, so it is not left out any more.
CREATE OR REPLACE FUNCTION send_after(subscription_id bigint, partition_id bigint, "position" bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM left_out AS o
    WHERE o.subscription_id = send_after.subscription_id AND o.partition_id = send_after.partition_id
      AND o.first_sequence > send_after."position";
    UPDATE left_out AS o SET last_sequence = send_after."position"
    WHERE o.subscription_id = send_after.subscription_id AND o.partition_id = send_after.partition_id
      AND o.last_sequence > send_after."position";
END
$$;
