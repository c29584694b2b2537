-- name: require_sends
-- Checks the arguments of claim_sends. Raises PS006.
CREATE OR REPLACE FUNCTION require_sends(sends jsonb, seconds double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(sends) IS DISTINCT FROM 'array' OR jsonb_array_length(sends) NOT BETWEEN 1 AND 1000 THEN
        PERFORM refuse('PS006', 'the sends are not an array of 1 to 1,000', 'Claim fewer at a time.');
    ELSIF seconds IS NULL OR seconds NOT BETWEEN 1 AND 86400 THEN
        PERFORM refuse('PS006', format('a claim of %s seconds', seconds), 'Use 1 to 86,400.');
    END IF;
END
$$;
