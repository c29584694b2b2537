-- By design: on MySQL and MariaDB a transaction of an account has no savepoints of the caller's, so a claim whose event
-- was refused is given back by a call.

-- name: claim_sends
-- Claims texts for events that the same transaction publishes next, for so many seconds. sends is an array of objects
-- with topic, send_key (1 to 64 letters of ASCII) and event_id, at most 1,000. Each place of the result is NULL when
-- the event is to be published, else the id of the event that has the text still; that can be an earlier one of the
-- same call. It does not prolong its time. Texts are claimed in sorted order, so that two calls never deadlock. A
-- claim that is over is overwritten in place. For a transaction that has a text open, it waits a second, the shortest
-- time that the engine knows. Raises PS002, PS006, PS018.
CREATE PROCEDURE claim_sends(sends JSON, seconds DOUBLE)
BEGIN
    DECLARE originals LONGTEXT;
    {{on error: CALL undo_call()}}
    CALL begin_call('claim_sends()');
    CALL require_read_committed('claim_sends()');
    CALL require_sends(sends, seconds);
    CALL require_topics_of_sends(sends);
    CALL lock_sends(sends);
    CALL take_sends(sends, seconds, originals);
    SELECT originals;
    CALL end_call();
END;

-- name: forget_sends
-- Deletes claims that are over, at most max_rows (1 to 10,000), and returns how many. It goes on where the last call
-- ended, so that it does not step again over deleted rows that an old snapshot still keeps; once an hour it begins
-- anew, for claims of transactions that were open for longer than the claim. While another one is at it, it does
-- nothing. Raises PS006, PS018.
CREATE PROCEDURE forget_sends(max_rows INT)
BEGIN
    DECLARE present, from_end, newest, begun DATETIME(6);
    DECLARE removed BIGINT DEFAULT 0;
    DECLARE is_new_round BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('forget_sends()');
    CALL require_read_committed('forget_sends()');
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        CALL refuse('PS006', CONCAT(COALESCE(max_rows, 'NULL'), ' claims at once'));
    END IF;
    SET present = UTC_TIMESTAMP(6);
    SELECT f.up_to, f.begun_at INTO from_end, begun FROM forgotten_sends AS f FOR UPDATE SKIP LOCKED;
    IF from_end IS NOT NULL THEN
        SET is_new_round = begun <= present - INTERVAL 1 HOUR;
        IF is_new_round OR from_end > present THEN
            SET from_end = '2000-01-01';
        END IF;
        CALL delete_sends(from_end, present, max_rows, removed, newest);
        IF removed > 0 OR is_new_round THEN
            UPDATE forgotten_sends AS f
            SET f.up_to = IF(removed < max_rows, present, newest), f.begun_at = IF(is_new_round, present, f.begun_at);
        END IF;
    END IF;
    SELECT removed;
    CALL end_call();
END;

-- name: release_sends
-- Gives claims back whose events were refused, in the transaction that has made them: sends are those of claim_sends.
-- Raises PS002, PS006, PS018.
CREATE PROCEDURE release_sends(sends JSON)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('release_sends()');
    CALL require_read_committed('release_sends()');
    CALL require_sends(sends, 1);
    CALL require_topics_of_sends(sends);
    DELETE r
    FROM JSON_TABLE(sends, '$[*]' COLUMNS (
        topic LONGTEXT PATH '$.topic', send_key VARCHAR(64) PATH '$.send_key', event_id CHAR(36) PATH '$.event_id'
    )) AS i
    STRAIGHT_JOIN topics AS t ON t.address_hash = UNHEX(SHA2(i.topic, 256))
    STRAIGHT_JOIN recent_sends AS r FORCE INDEX (PRIMARY)
        ON r.topic_id = t.id AND r.send_key = CAST(i.send_key AS BINARY)
    WHERE r.event_id = UNHEX(REPLACE(i.event_id, '-', ''));
    CALL end_call();
END;
