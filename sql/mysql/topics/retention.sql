-- name: set_retention
-- States how long events of a topic are kept and in how many verified copies they must exist before they go, and on
-- which archive targets (a JSON array) copies count: NULL leaves the targets as they are, and where none is named
-- nothing goes. With 0 copies and no target, events go without a copy. max_bytes is how many bytes of sealed events
-- stay at most, NULL: as many as there are; above it the oldest log epochs go before their age and before they were
-- read, but not without the copies. origin says who sets it: 'hand', or 'file ' and the name of the policy file, which
-- owns it from then on. Returns the policy's version. Raises PS002, PS006, PS018.
CREATE PROCEDURE set_retention(
    topic VARCHAR(4000), minimum_age_seconds BIGINT, copies INT, origin LONGTEXT, targets JSON, max_bytes BIGINT
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE topic_partitions INT;
    DECLARE named VARCHAR(4000);
    {{on error: CALL undo_call()}}
    CALL begin_call('set_retention()');
    CALL lock_topic(topic, 'operate', owner_id, topic_partitions);
    IF minimum_age_seconds IS NULL OR minimum_age_seconds < 0 OR copies IS NULL OR copies < 0 THEN
        CALL refuse('PS006', CONCAT('retention cannot be ', COALESCE(minimum_age_seconds, 'NULL'), ' seconds and ',
                                    COALESCE(copies, 'NULL'), ' copies'));
    END IF;
    IF max_bytes < 1 THEN
        CALL refuse('PS006', CONCAT('max_bytes cannot be ', max_bytes, ': use 1 or more bytes, or NULL for no limit'));
    END IF;
    CALL require_origin(origin);
    IF copies = 0 THEN
        IF JSON_LENGTH(targets) > 0 THEN
            CALL refuse('PS006', 'a retention policy of no copies names archive targets');
        END IF;
        SET named = '[]';
    ELSEIF targets IS NULL THEN
        SELECT COALESCE(MAX(r.targets), '[]') INTO named FROM retention_policies AS r WHERE r.topic_id = owner_id;
    ELSE
        CALL sort_targets(targets, named);
    END IF;
    IF JSON_LENGTH(named) BETWEEN 1 AND copies - 1 THEN
        CALL refuse('PS006', CONCAT(copies, ' copies cannot lie on ', JSON_LENGTH(named), ' targets'));
    END IF;
    IF NOT EXISTS (
        SELECT *
        FROM retention_policies AS r
        WHERE r.topic_id = owner_id AND r.minimum_age_seconds = minimum_age_seconds AND r.copies = copies
          AND r.targets = named AND r.max_bytes <=> max_bytes AND NOT is_taken_over(r.origin, origin)
        LOCK IN SHARE MODE
    ) THEN
        INSERT INTO retention_policies (
            topic_id, minimum_age_seconds, copies, version, origin, updated_by, targets, max_bytes)
        VALUES (owner_id, minimum_age_seconds, copies, 1, origin, principal(), named, max_bytes)
        ON DUPLICATE KEY UPDATE
            minimum_age_seconds = VALUES(minimum_age_seconds), copies = VALUES(copies), version = version + 1,
            origin = VALUES(origin), updated_at = UTC_TIMESTAMP(6), updated_by = VALUES(updated_by),
            targets = VALUES(targets), max_bytes = VALUES(max_bytes);
    END IF;
    SELECT r.version FROM retention_policies AS r WHERE r.topic_id = owner_id;
    CALL end_call();
END;

-- name: retention_of
-- The retention policies in force.
CREATE PROCEDURE retention_of()
READS SQL DATA
BEGIN
    CALL refuse_serializable('retention_of()');
    SELECT t.address AS topic, r.minimum_age_seconds, r.copies, r.version, r.updated_at, r.origin, r.targets,
           r.max_bytes
    FROM retention_policies AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any')
    ORDER BY CAST(t.address AS BINARY);
END;
