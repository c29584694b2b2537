-- name: claim_relays
-- Records the policy file whose relays the database follows, by its origin; NULL: there is none. Raises PS006.
CREATE OR REPLACE FUNCTION claim_relays(origin text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    IF origin IS NULL THEN
        DELETE FROM relay_files;
        RETURN;
    END IF;
    PERFORM require_origin(origin);
    INSERT INTO relay_files (origin, claimed_by) VALUES (claim_relays.origin, principal())
    ON CONFLICT ON CONSTRAINT relay_files_pkey DO UPDATE
    SET origin = EXCLUDED.origin, claimed_at = EXCLUDED.claimed_at, claimed_by = EXCLUDED.claimed_by;
END
$$;

-- name: relays_claimed_by
-- The origin of the policy file whose relays the database follows; no row when no file has claimed them.
CREATE OR REPLACE FUNCTION relays_claimed_by() RETURNS TABLE (origin text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT f.origin FROM relay_files AS f
$$;
