-- name: find_hold_over
-- The name of a legal hold that covers an event of a range of a partition; NULL when there is none.
CREATE OR REPLACE FUNCTION find_hold_over(partition_id bigint, first_sequence bigint, last_sequence bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT h.name
    FROM partitions AS p JOIN legal_holds AS h ON h.topic_id = p.topic_id
    WHERE p.id = find_hold_over.partition_id AND h.released_at IS NULL AND COALESCE(h.partition, p.number) = p.number
      AND h.first_sequence <= find_hold_over.last_sequence
      AND COALESCE(h.last_sequence, find_hold_over.first_sequence) >= find_hold_over.first_sequence
    ORDER BY h.placed_at, h.name
    LIMIT 1
$$;

-- name: require_hold_reason
-- Checks why a hold is placed or released, in 1 to 1,000 characters; raises PS006.
CREATE OR REPLACE FUNCTION require_hold_reason(reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF reason IS NULL OR btrim(reason) = '' OR char_length(reason) > 1000 THEN
        PERFORM refuse('PS006', 'the reason of a legal hold has not 1 to 1,000 characters',
                       'Say why: it is kept as the record of the hold.');
    END IF;
END
$$;
