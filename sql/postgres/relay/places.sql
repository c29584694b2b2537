-- name: passed_places
-- Up to where each place of a relay's sink was sent events of a partition. '' stands for the partition as a whole: 0
-- after a person has put the position somewhere, and the position itself where the relay has come so far without rules.
-- is_put: a person has put it there, and nothing was sent since. No row for a partition that the subscription does not
-- read; at most most_places + 1 rows.
CREATE OR REPLACE FUNCTION passed_places(subscription text, partition_id bigint, most_places integer)
RETURNS TABLE (place text, last_sequence bigint, is_put boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner_id bigint;
    at_position bigint;
    was_put boolean;
BEGIN
    SELECT s.id INTO owner_id FROM subscriptions AS s
    WHERE s.name = passed_places.subscription AND NOT reads_hidden(s.id);
    SELECT n.stands_at, n.was_put INTO at_position, was_put
    FROM standing_of(owner_id, passed_places.partition_id) AS n;
    IF at_position IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT w.place, CASE WHEN was_put THEN 0 WHEN p.position = at_position THEN p.last_sequence ELSE at_position END,
           was_put
    FROM (SELECT ''::text AS place) AS w
    LEFT JOIN relay_places AS p
      ON p.subscription_id = owner_id AND p.partition_id = passed_places.partition_id AND p.place = w.place;
    RETURN QUERY
    SELECT p.place, CASE WHEN was_put THEN 0 ELSE p.last_sequence END, was_put
    FROM relay_places AS p
    WHERE p.subscription_id = owner_id AND p.partition_id = passed_places.partition_id AND p.place > ''
    ORDER BY p.place
    LIMIT GREATEST(most_places, 1);
END
$$;

-- name: note_places
-- Records what a relay has left out of a block that ends at up_to, and the last sequence that each place was sent.
-- The caller moves the position in the same transaction, after it. Raises PS006, PS010, PS013.
CREATE OR REPLACE FUNCTION note_places(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, places text[], sequences bigint[],
    left_out bigint, up_to bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    at_position bigint;
    was_put boolean;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[note_places.partition_id], ARRAY[note_places.lease_epoch]);
    SELECT n.stands_at, n.was_put INTO at_position, was_put FROM standing_of(owner.id, note_places.partition_id) AS n;
    IF was_put THEN
        UPDATE relay_places AS p SET last_sequence = 0
        WHERE p.subscription_id = owner.id AND p.partition_id = note_places.partition_id;
    END IF;
    INSERT INTO relay_places AS p (subscription_id, partition_id, place, last_sequence, position, left_out)
    SELECT owner.id, note_places.partition_id, '', CASE WHEN was_put THEN 0 ELSE at_position END, note_places.up_to,
           note_places.left_out
    ON CONFLICT ON CONSTRAINT relay_places_pkey DO UPDATE
    SET last_sequence = CASE WHEN p.position = at_position OR was_put THEN p.last_sequence ELSE at_position END,
        position = excluded.position, left_out = p.left_out + excluded.left_out;
    INSERT INTO relay_places AS p (subscription_id, partition_id, place, last_sequence, position)
    SELECT owner.id, note_places.partition_id, w.place, w.sequence, note_places.up_to
    FROM unnest(places, sequences) AS w (place, sequence)
    ORDER BY w.place
    ON CONFLICT ON CONSTRAINT relay_places_pkey DO UPDATE
    SET last_sequence = excluded.last_sequence, position = excluded.position;
END
$$;
