-- name: find_expired_letters
-- Puts at most so many dead letters of a subscription that may go into the session's table expired_letters, locked;
-- those that somebody works on now are left out.
CREATE PROCEDURE find_expired_letters(owner_id BIGINT, died_before DATETIME(6), most INT)
BEGIN
    INSERT INTO expired_letters (id)
    SELECT d.id
    FROM dead_letters AS d FORCE INDEX (dead_letters_died)
    WHERE d.subscription_id = owner_id AND d.died_at < died_before AND NOT d.parked AND d.redriven_at IS NULL
      AND NOT EXISTS (
          SELECT h.name
          FROM partitions AS p JOIN legal_holds AS h ON h.topic_id = p.topic_id
          WHERE p.id = d.partition_id AND h.released_at IS NULL AND COALESCE(h.number, p.number) = p.number
            AND h.first_sequence <= d.sequence AND COALESCE(h.last_sequence, d.sequence) >= d.sequence)
    ORDER BY d.died_at
    LIMIT most
    FOR UPDATE SKIP LOCKED;
END;

-- name: expire_dead_letters
-- Deletes dead letters that are older than their subscription's policy dead_letter_seconds, at most max_rows of them,
-- and keeps a record of each without its payload, as drop_dead_letters does. Letters that are parked, redriven or under
-- a legal hold stay, and so do those that somebody works on now. Returns how many it deleted. Raises PS006, PS018.
CREATE PROCEDURE expire_dead_letters(max_rows INT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE seconds DOUBLE;
    DECLARE gone INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE owners CURSOR FOR
        SELECT s.id, s.dead_letter_seconds FROM subscriptions AS s WHERE s.dead_letter_seconds > 0 ORDER BY s.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('expire_dead_letters()');
    CALL require_read_committed('expire_dead_letters()');
    IF NOT COALESCE(max_rows BETWEEN 1 AND 100000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a look at ', COALESCE(max_rows, 'NULL'), ' dead letters: use 1 to 100,000'));
    END IF;
    CREATE TEMPORARY TABLE IF NOT EXISTS expired_letters (id BIGINT NOT NULL PRIMARY KEY) ENGINE = InnoDB;
    DELETE FROM expired_letters;
    SET done = FALSE;
    OPEN owners;
    each_owner: LOOP
        FETCH owners INTO owner_id, seconds;
        IF done OR gone >= max_rows THEN
            LEAVE each_owner;
        END IF;
        CALL find_expired_letters(owner_id, UTC_TIMESTAMP(6) - INTERVAL seconds SECOND, max_rows - gone);
        SELECT COUNT(o.id) INTO gone FROM expired_letters AS o;
    END LOOP;
    CLOSE owners;
    INSERT INTO dropped_letters (
        subscription_id, id, partition_id, sequence, history, event_id, `key`, type, reason, attempts, died_at,
        dropped_by)
    SELECT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.`key`, d.type, d.reason,
           d.attempts, d.died_at, 'the policy dead_letter_seconds'
    FROM expired_letters AS o JOIN dead_letters AS d ON d.id = o.id;
    DELETE d FROM expired_letters AS o STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = o.id;
    DELETE FROM expired_letters;
    SELECT gone AS expired;
    CALL end_call();
END;
