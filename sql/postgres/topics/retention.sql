-- name: set_retention
-- States how long events of a topic are kept and in how many verified copies they must exist before they go, and on
-- which archive targets copies count: NULL leaves the targets as they are, and where none is named nothing goes. With 0
-- copies and no target, events go without a copy. max_bytes is how many bytes of sealed events stay at most, NULL: as
-- many as there are; above it the oldest log epochs go before their age and before they were read, but not without the
-- copies. origin says who sets it: 'hand', or 'file ' and the name of the policy file, which owns it from then on.
-- Returns the policy's version.
CREATE OR REPLACE FUNCTION set_retention(
    topic text, minimum_age_seconds bigint, copies integer DEFAULT 1, origin text DEFAULT 'hand',
    targets text[] DEFAULT NULL, max_bytes bigint DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (lock_topic(topic, 'operate')).id;
    stored integer;
BEGIN
    PERFORM commit_durably();
    IF minimum_age_seconds IS NULL OR minimum_age_seconds < 0 OR copies IS NULL OR copies < 0 THEN
        PERFORM refuse('PS006', format('retention cannot be %s seconds and %s copies', minimum_age_seconds, copies),
                       'The age is 0 or more seconds; 0 copies: events go without one.');
    ELSIF max_bytes < 1 THEN
        PERFORM refuse('PS006', format('max_bytes cannot be %s', max_bytes),
                       'Use 1 or more bytes, or NULL for no limit.');
    ELSIF copies = 0 AND cardinality(targets) > 0 THEN
        PERFORM refuse('PS006', 'a retention policy of no copies names archive targets',
                       'Name no target, or ask for 1 copy or more.');
    ELSIF EXISTS (SELECT FROM unnest(targets) AS t (name) WHERE t.name !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$')
            OR array_position(targets, NULL) IS NOT NULL THEN
        PERFORM refuse('PS006', 'a target of the retention policy has a name that is not allowed',
                       'Use up to 63 letters, digits, dots, dashes and underscores.');
    END IF;
    PERFORM require_origin(origin);
    targets := ARRAY(SELECT DISTINCT t.name COLLATE "C" FROM unnest(COALESCE(
        CASE WHEN copies = 0 THEN '{}' ELSE set_retention.targets END, (
        SELECT r.targets FROM retention_policies AS r WHERE r.topic_id = owner_id))) AS t (name) ORDER BY 1);
    IF cardinality(targets) BETWEEN 1 AND copies - 1 THEN
        PERFORM refuse('PS006', format('%s copies cannot lie on %s targets', copies, cardinality(targets)),
                       'Name more targets, or ask for fewer copies: nothing could ever be removed.');
    END IF;
    INSERT INTO retention_policies AS r (
        topic_id, minimum_age_seconds, copies, version, updated_by, origin, targets, max_bytes)
    VALUES (owner_id, set_retention.minimum_age_seconds, set_retention.copies, 1, principal(), set_retention.origin,
            set_retention.targets, set_retention.max_bytes)
    ON CONFLICT (topic_id) DO UPDATE
    SET minimum_age_seconds = EXCLUDED.minimum_age_seconds, copies = EXCLUDED.copies, version = r.version + 1,
        origin = EXCLUDED.origin, targets = EXCLUDED.targets, max_bytes = EXCLUDED.max_bytes,
        updated_at = clock_timestamp(), updated_by = EXCLUDED.updated_by
    WHERE (r.minimum_age_seconds, r.copies, r.targets, r.max_bytes)
        IS DISTINCT FROM (EXCLUDED.minimum_age_seconds, EXCLUDED.copies, EXCLUDED.targets, EXCLUDED.max_bytes)
        OR is_taken_over(r.origin, EXCLUDED.origin);
    SELECT r.version INTO stored FROM retention_policies AS r WHERE r.topic_id = owner_id;
    RETURN stored;
END
$$;

-- name: retention_of
-- The retention policies in force.
CREATE OR REPLACE FUNCTION retention_of()
RETURNS TABLE (
    topic text, minimum_age_seconds bigint, copies integer, version integer, updated_at timestamptz, origin text,
    targets text[], max_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, r.minimum_age_seconds, r.copies, r.version, r.updated_at, r.origin, r.targets, r.max_bytes
    FROM retention_policies AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any')
    ORDER BY t.address
$$;
