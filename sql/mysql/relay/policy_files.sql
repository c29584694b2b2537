-- name: claim_relays
-- Records the policy file whose relays the database follows, by its origin; NULL: there is none. Raises PS006, PS018.
CREATE PROCEDURE claim_relays(given_origin LONGTEXT)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('claim_relays()');
    IF given_origin IS NULL THEN
        DELETE f FROM relay_files AS f WHERE f.singleton;
    ELSE
        CALL require_origin(given_origin);
        INSERT INTO relay_files (singleton, origin, claimed_at, claimed_by)
        VALUES (TRUE, given_origin, UTC_TIMESTAMP(6), principal())
        ON DUPLICATE KEY UPDATE origin = given_origin, claimed_at = UTC_TIMESTAMP(6), claimed_by = principal();
    END IF;
    CALL end_call();
END;

-- name: relays_claimed_by
-- The origin of the policy file whose relays the database follows; no row when no file has claimed them.
CREATE PROCEDURE relays_claimed_by()
READS SQL DATA
BEGIN
    CALL refuse_serializable('relays_claimed_by()');
    SELECT f.origin FROM relay_files AS f;
END;
