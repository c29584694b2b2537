-- name: acknowledge
-- Finishes events, in the caller's transaction: what else that transaction writes takes effect exactly once. Each entry
-- (of JSON arrays of one length) is a range of sequences of one claim. Returns for each entry whether it was finished,
-- as a JSON array; without partly the first one that cannot be refuses the whole call. A receipt is good until its
-- event is handed out again, also after its time. Raises PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE acknowledge(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, partly BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE is_plain BOOLEAN DEFAULT FALSE;
    DECLARE kept_order VARCHAR(10);
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('acknowledge()');
    CALL require_read_committed('acknowledge()');
    CALL find_queue(subscription, 'acknowledge', owner_id, kept_order);
    IF kept_order = 'none' AND JSON_LENGTH(claims) <=> 1 AND JSON_LENGTH(first_sequences) <=> 1
        AND JSON_LENGTH(last_sequences) <=> 1 AND JSON_LENGTH(tokens) <=> 1 AND LENGTH(tokens) < 50
        AND CONCAT_WS(' ', JSON_TYPE(JSON_EXTRACT(claims, '$[0]')), JSON_TYPE(JSON_EXTRACT(first_sequences, '$[0]')),
                      JSON_TYPE(JSON_EXTRACT(last_sequences, '$[0]'))) = 'INTEGER INTEGER INTEGER' THEN
        CALL finish_plain(owner_id, JSON_EXTRACT(claims, '$[0]') + 0, JSON_EXTRACT(first_sequences, '$[0]') + 0,
                          JSON_EXTRACT(last_sequences, '$[0]') + 0, JSON_UNQUOTE(JSON_EXTRACT(tokens, '$[0]')),
                          is_plain);
    END IF;
    IF is_plain THEN
        SET settled = '[true]';
    ELSE
        CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, partly, pieces, settled);
        IF EXISTS (
            SELECT * FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
            WHERE p.waiting_id > 0
        ) THEN
            CALL await_erasures(owner_id, pieces);
            CALL drop_copies(pieces);
        END IF;
        IF kept_order = 'key' THEN
            CALL finish_keys(owner_id, pieces);
        END IF;
    END IF;
    SELECT settled AS settled;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: extend
-- Gives events more time from now on, and new receipts; the old ones are spent. 0 seconds put them back, behind what
-- is dealt already (at most 20,000 events), and the delivery counts. A body, for one event, goes with all later
-- hand-outs in place of the payload; the log keeps what was published, and an erased event takes none. Returns a row
-- for each range of a new claim. With keeps_receipts the old receipts stay good instead, unless the events are put
-- back. Raises PS004, PS006, PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE extend(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON,
    visibility_seconds DOUBLE, body LONGBLOB, keeps_receipts BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('extend()');
    CALL require_read_committed('extend()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    IF NOT COALESCE(visibility_seconds BETWEEN 0 AND 43200, FALSE) THEN
        CALL refuse('PS006', CONCAT('a claim cannot be extended by ', COALESCE(visibility_seconds, 'NULL'),
                                    ' seconds: use 0 to 43,200'));
    ELSEIF body IS NOT NULL AND NOT COALESCE(
        JSON_LENGTH(claims) = 1
        AND JSON_EXTRACT(first_sequences, '$[0]') + 0 = JSON_EXTRACT(last_sequences, '$[0]') + 0, FALSE) THEN
        CALL refuse('PS006', 'a body was given for several events');
    END IF;
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, FALSE, pieces, settled);
    IF body IS NOT NULL THEN
        CALL require_body(JSON_EXTRACT(pieces, '$[0][3]') + 0, LENGTH(body));
        CALL copy_out(owner_id, pieces);
        UPDATE JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
        SET w.body = body
        WHERE NOT is_tombstone(LENGTH(w.payload), w.headers);
    END IF;
    IF visibility_seconds = 0 THEN
        CALL put_back(owner_id, pieces);
    ELSEIF keeps_receipts THEN
        CALL keep_pieces(owner_id, pieces, tokens, visibility_seconds);
    ELSE
        CALL claim_pieces(owner_id, pieces, visibility_seconds);
    END IF;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: release_claims
-- Puts events back that nobody has begun, behind what is dealt already (at most 20,000 events); the delivery does not
-- count. Returns for each entry whether it was put back, as acknowledge does. Raises PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE release_claims(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, partly BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('release_claims()');
    CALL require_read_committed('release_claims()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, partly, pieces, settled);
    CALL free_pieces(owner_id, pieces, 1);
    SELECT settled AS settled;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: reject
-- Records that events have failed: each waits for delay_seconds (NULL: the backoff of the queue, longer with each
-- failure) outside the window, where it hides nothing. One that has failed or was handed out as often as the queue
-- allows becomes a dead letter. Returns for each entry whether it was recorded, as acknowledge does. Raises PS006,
-- PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE reject(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, reason LONGTEXT,
    delay_seconds DOUBLE, partly BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('reject()');
    CALL require_read_committed('reject()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    IF NOT COALESCE(delay_seconds, 0) BETWEEN 0 AND 31536000 THEN
        CALL refuse('PS006', CONCAT('an event cannot be delayed by ', delay_seconds, ' seconds'));
    END IF;
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, partly, pieces, settled);
    IF pieces IS NOT NULL THEN
        CALL copy_out(owner_id, pieces);
        CALL fail_pieces(owner_id, pieces, LEFT(COALESCE(reason, ''), 2000), delay_seconds);
    END IF;
    SELECT settled AS settled;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;
