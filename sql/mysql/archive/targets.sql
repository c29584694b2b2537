-- name: installation_id
-- The id by which archive targets name the database that they belong to, in their markers. It is part of the database
-- and of its backups.
CREATE PROCEDURE installation_id()
READS SQL DATA
BEGIN
    CALL refuse_serializable('installation_id()');
    SELECT i.id FROM installation AS i;
END;

-- name: target_in_use
-- Whether copies were ever recorded on a target, missing ones included. Then a target that looks empty is unavailable.
CREATE PROCEDURE target_in_use(target VARCHAR(255))
READS SQL DATA
BEGIN
    CALL refuse_serializable('target_in_use()');
    SELECT EXISTS (SELECT * FROM epoch_copies AS c WHERE c.target = target) AS is_used;
END;

-- name: note_target_speed
-- Records how many seconds a copy took on an archive target; NULL: it failed. The first measurement counts as it is,
-- each later one for a fifth of the moving average. A failure doubles the average, to a minute at least and an hour at
-- most. It only decides in which order targets are written. Raises PS006, PS018.
CREATE PROCEDURE note_target_speed(target LONGTEXT, seconds DOUBLE)
BEGIN
    DECLARE named VARCHAR(4000);
    {{on error: CALL undo_call()}}
    CALL begin_call('note_target_speed()');
    CALL sort_targets(JSON_ARRAY(target), named);
    IF NOT COALESCE(seconds BETWEEN 0 AND 31536000, TRUE) THEN
        CALL refuse('PS006', CONCAT('a copy cannot take ', seconds, ' seconds: use seconds, or NULL for a failure'));
    END IF;
    -- It assigns in this order, and each assignment sees those before it.
    INSERT INTO target_speeds (target, seconds, failures, measured_at)
    VALUES (target, LEAST(COALESCE(seconds, 60), 3600), seconds IS NULL, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE
        seconds = IF(VALUES(failures) = 1, LEAST(GREATEST(2 * target_speeds.seconds, 60), 3600),
                     0.8 * target_speeds.seconds + 0.2 * VALUES(seconds)),
        failures = IF(VALUES(failures) = 1, target_speeds.failures + 1, 0),
        measured_at = VALUES(measured_at);
    CALL end_call();
END;

-- name: target_speeds
-- The moving average of the seconds that a copy takes on each archive target, and how many attempts in a row have
-- failed there.
CREATE PROCEDURE target_speeds()
READS SQL DATA
BEGIN
    CALL refuse_serializable('target_speeds()');
    SELECT s.target, s.seconds, s.failures, s.measured_at FROM target_speeds AS s ORDER BY CAST(s.target AS BINARY);
END;
