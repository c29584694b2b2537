-- name: forward_letters
-- What every burial calls: publishes a copy of each of these dead letters (a JSON array of ids) to the topic that their
-- subscription names, in the caller's transaction, and marks the letter with where its copy went. A letter that the
-- topic does not take is marked with the reason instead, so that no burial fails because of the topic. Neither topic
-- nor partition is locked: the copy in a topic that is deleted meanwhile goes with the topic.
CREATE PROCEDURE forward_letters(owner_id BIGINT, letter_ids LONGTEXT)
BEGIN
    DECLARE target_id, letter BIGINT;
    DECLARE named_by VARCHAR(400);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE letters CURSOR FOR
        SELECT STRAIGHT_JOIN d.id
        FROM JSON_TABLE(COALESCE(letter_ids, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL
        ORDER BY d.partition_id, d.history, d.sequence;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SELECT MAX(s.dead_letters_to), MAX(s.dead_letters_by) INTO target_id, named_by
    FROM subscriptions AS s WHERE s.id = owner_id;
    IF target_id IS NOT NULL THEN
        OPEN letters;
        each_letter: LOOP
            FETCH letters INTO letter;
            IF done THEN
                LEAVE each_letter;
            END IF;
            CALL forward_letter(letter, target_id, named_by);
        END LOOP;
        CLOSE letters;
        DO LAST_INSERT_ID(id_before);
    END IF;
END;

-- name: forward_letter
-- What forward_letters does, for one of them.
CREATE PROCEDURE forward_letter(letter BIGINT, target_id BIGINT, named_by VARCHAR(400))
BEGIN
    DECLARE copy_id BINARY(16);
    DECLARE place, row_id BIGINT;
    DECLARE blocks LONGBLOB;
    DECLARE copy_headers LONGTEXT;
    DECLARE problem VARCHAR(500);
    SET copy_headers = letter_headers(letter);
    CALL forward_problem(letter, target_id, named_by, copy_headers, place, problem);
    IF problem IS NULL THEN
        CALL new_event_id(copy_id);
        CALL take_blocks(1, blocks);
        SET row_id = CAST(CONV(HEX(blocks), 16, 10) AS SIGNED) * 256;
        INSERT INTO events (id, partition_id, event_id, `key`, type, content_type, headers, payload, created_at)
        SELECT row_id, place, copy_id, d.`key`, d.type, d.content_type,
               copy_headers, d.payload, UTC_TIMESTAMP(6)
        FROM dead_letters AS d FORCE INDEX (dead_letters_id) WHERE d.id = letter;
        INSERT INTO letter_copies (
            copy_id, topic_id, subscription_id, letter_id, partition_id, sequence, history, event_id, `key`,
            copy_partition_id, row_id)
        SELECT copy_id, target_id, d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.`key`,
               place, row_id
        FROM dead_letters AS d FORCE INDEX (dead_letters_id) WHERE d.id = letter;
        UPDATE dead_letters AS d FORCE INDEX (dead_letters_id)
        SET d.forwarded_to = target_id, d.forwarded_as = copy_id, d.not_forwarded = NULL
        WHERE d.id = letter;
    ELSE
        UPDATE dead_letters AS d FORCE INDEX (dead_letters_id)
        SET d.forwarded_to = NULL, d.forwarded_as = NULL, d.not_forwarded = problem
        WHERE d.id = letter;
    END IF;
END;

-- name: letter_headers
-- The headers of a dead letter's copy: those of the event, why it died, how often it was handed out since its last
-- redrive (attempts) and in all (deliveries), where it comes from, and how often it was forwarded. What the event has
-- is kept as it was written, but for what an earlier forwarding has added.
CREATE FUNCTION letter_headers(letter BIGINT) RETURNS LONGTEXT
READS SQL DATA
BEGIN
    DECLARE given, added LONGTEXT;
    SELECT d.headers, JSON_OBJECT(
               'penstock-letter-reason', d.reason, 'penstock-letter-attempts', d.attempts - d.attempts_before,
               'penstock-letter-deliveries', d.attempts, 'penstock-letter-subscription', s.name,
               'penstock-letter-topic', t.address, 'penstock-letter-topic-id', d.partition_id >> 16,
               'penstock-letter-partition', d.partition_id & 65535, 'penstock-letter-sequence', d.sequence,
               'penstock-letter-history', d.history, 'penstock-letter-event-id', LOWER(
                   INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')),
               'penstock-letter-hops', letter_hops(d.headers) + 1)
    INTO given, added
    FROM dead_letters AS d FORCE INDEX (dead_letters_id)
    JOIN subscriptions AS s ON s.id = d.subscription_id
    LEFT JOIN topics AS t ON t.id = d.partition_id >> 16
    WHERE d.id = letter;
    IF LOCATE('"penstock-letter-', given) > 0 AND NOT JSON_VALID(given) THEN
        SET given = NULL;  -- it has been forwarded too often, as letter_hops says
    ELSEIF LOCATE('"penstock-letter-', given) > 0 THEN
        SET given = JSON_REMOVE(
            given, '$."penstock-letter-reason"', '$."penstock-letter-attempts"', '$."penstock-letter-deliveries"',
            '$."penstock-letter-subscription"', '$."penstock-letter-topic"', '$."penstock-letter-topic-id"',
            '$."penstock-letter-partition"', '$."penstock-letter-sequence"', '$."penstock-letter-history"',
            '$."penstock-letter-event-id"', '$."penstock-letter-hops"');
    END IF;
    IF given IS NULL OR given REGEXP '^[[:space:]]*[{][[:space:]]*[}]' THEN
        RETURN added;
    END IF;
    -- Without its last brace: a regular expression would try each run of blanks.
    RETURN CONCAT(LEFT(given, CHAR_LENGTH(given) - LOCATE('}', REVERSE(given))), ', ', SUBSTR(added, 2));
END;

-- name: letter_hops
-- How often an event was forwarded as a dead letter, by its headers. Headers that name a forwarding and that the server
-- cannot read as JSON count as too often.
CREATE FUNCTION letter_hops(headers LONGTEXT) RETURNS INT
NO SQL
BEGIN
    DECLARE said VARCHAR(20);
    IF COALESCE(LOCATE('"penstock-letter-', headers), 0) = 0 THEN
        RETURN 0;
    ELSEIF NOT JSON_VALID(headers) THEN
        RETURN 8;
    END IF;
    SET said = LEFT(JSON_UNQUOTE(JSON_EXTRACT(headers, '$."penstock-letter-hops"')), 20);
    RETURN IF(COALESCE(said, '') REGEXP '^[0-9]{1,6}$', said, 0);
END;

-- name: forward_problem
-- Why a topic does not take the copy of a dead letter, or NULL; place is the partition for it. The rights are those of
-- the login or account that has named the topic, to consume the event and to publish its copy: whoever buries only
-- consumes. The hops end a circle that was made after the topic was named.
CREATE PROCEDURE forward_problem(
    letter BIGINT, target_id BIGINT, named_by VARCHAR(400), copy_headers LONGTEXT, OUT place BIGINT,
    OUT problem VARCHAR(500)
)
READS SQL DATA
judge: BEGIN
    DECLARE part_id, turn BIGINT;
    DECLARE payload_bytes BIGINT;
    DECLARE topic_partitions, max_bytes INT;
    DECLARE topic_strategy, event_type, event_content_type VARCHAR(255);
    DECLARE headers, event_key LONGTEXT;
    DECLARE is_limited, may_publish, may_consume BOOLEAN;
    SELECT MAX(t.partitions), MAX(t.max_payload_bytes), MAX(t.strategy),
           MAX(COALESCE(t.max_unsequenced_events, t.max_unsequenced_bytes)) IS NOT NULL
    INTO topic_partitions, max_bytes, topic_strategy, is_limited
    FROM topics AS t WHERE t.id = target_id;
    SELECT d.partition_id, d.`key`, d.type, d.content_type, d.headers, LENGTH(d.payload)
    INTO part_id, event_key, event_type, event_content_type, headers, payload_bytes
    FROM dead_letters AS d FORCE INDEX (dead_letters_id) WHERE d.id = letter;
    SET place = NULL, problem = NULL, may_publish = may_forward(named_by, target_id),
        may_consume = principal_may(named_by, part_id >> 16, 'consume');
    SET problem = CASE
        WHEN topic_partitions IS NULL THEN 'the topic was deleted'
        WHEN NOT may_publish THEN 'whoever has named the topic may no longer publish to it'
        WHEN NOT may_consume THEN 'whoever has named the topic may not consume the event'
        WHEN part_id >> 16 = target_id THEN 'the event comes from this topic: it would go round in a circle'
        WHEN letter_hops(headers) >= 8 THEN 'it was forwarded 8 times already: it may go round in a circle'
        WHEN is_tombstone(payload_bytes, headers) THEN 'the event was erased'
    END;
    IF problem IS NOT NULL THEN
        LEAVE judge;
    END IF;
    CALL event_problem(topic_partitions, max_bytes, topic_strategy, payload_bytes, event_key, event_type,
                       event_content_type, copy_headers, NULL, NULL, NULL, 0, NULL, problem);
    SET problem = SUBSTR(problem, 7);
    IF problem IS NULL AND is_limited THEN
        CALL pressure_problem(JSON_ARRAY(target_id), problem);
    END IF;
    IF problem IS NULL THEN
        IF event_key IS NULL OR topic_strategy = 'round_robin' THEN
            CALL take_turn(1, turn);
        END IF;
        SET place = target_id * 65536
            + COALESCE(MOD(GREATEST(turn, 0), topic_partitions), MOD(CRC32(event_key), topic_partitions));
    END IF;
END;

-- name: may_forward
-- Whether a login or account that has named a topic for dead letters may publish to it now.
CREATE FUNCTION may_forward(who VARCHAR(400), target_id BIGINT) RETURNS BOOLEAN
READS SQL DATA
RETURN principal_may(who, target_id, 'publish');

-- name: principal_may
-- Whether a login or account, as principal() has named it, has a right in the namespace of a topic now. Whoever carries
-- out the call is not asked. A deleted account has none.
CREATE FUNCTION principal_may(who VARCHAR(400), topic_id BIGINT, verb VARCHAR(20)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE asked_in BIGINT;
    IF LEFT(who, 8) = 'account:' THEN
        SELECT MAX(t.namespace_id) INTO asked_in
        FROM accounts AS a JOIN topics AS t ON t.id = topic_id
        WHERE a.id = SUBSTR(who, 9);
        RETURN asked_in IS NOT NULL AND account_has_right(SUBSTR(who, 9), asked_in, verb);
    END IF;
    SELECT MAX(IF(t.restricted, t.namespace_id, NULL)) INTO asked_in FROM topics AS t WHERE t.id = topic_id;
    RETURN asked_in IS NULL OR login_has_right(IF(LEFT(who, 6) = 'login:', SUBSTR(who, 7), who), asked_in, verb);
END;

-- name: forwarding_problem
-- Why nothing of a subscription is forwarded although it names a topic, or NULL: whoever has named it lost one
-- of the rights that are asked at each burial.
CREATE FUNCTION forwarding_problem(owner_id BIGINT) RETURNS VARCHAR(200)
READS SQL DATA
BEGIN
    DECLARE target_id BIGINT;
    DECLARE named_by VARCHAR(400);
    DECLARE hidden INT;
    SELECT MAX(t.id), MAX(s.dead_letters_by) INTO target_id, named_by
    FROM subscriptions AS s JOIN topics AS t ON t.id = s.dead_letters_to WHERE s.id = owner_id;
    IF target_id IS NULL THEN
        RETURN NULL;
    ELSEIF NOT may_forward(named_by, target_id) THEN
        RETURN 'whoever has named the topic may no longer publish to it';
    END IF;
    SELECT COUNT(r.topic_id) INTO hidden
    FROM subscription_topics AS r
    WHERE r.subscription_id = owner_id AND NOT principal_may(named_by, r.topic_id, 'consume');
    RETURN IF(hidden > 0, 'whoever has named the topic may not consume the events', NULL);
END;

-- name: refuse_forwarding
-- Refuses to delete topics (a JSON array of ids) that subscriptions name for their dead letters (PS020). Where
-- whoever has named one may no longer publish to it, nothing of it is forwarded, and it does not keep the topic.
CREATE PROCEDURE refuse_forwarding(topic_ids JSON)
READS SQL DATA
BEGIN
    DECLARE named BIGINT;
    SELECT MIN(s.id) INTO named
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    JOIN subscriptions AS s ON s.dead_letters_to = j.id
    WHERE may_forward(s.dead_letters_by, s.dead_letters_to);
    IF named IS NOT NULL THEN
        CALL refuse('PS020', CONCAT(told_subscription(named), ' publishes its dead letters to the topic'));
    END IF;
END;

-- name: refuse_circle
-- Refuses dead letters that would come back (PS006): walks from the topic that a subscription names to the topics that
-- its readers name, and so on.
CREATE PROCEDURE refuse_circle(owner_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE back VARCHAR(4000);
    WITH RECURSIVE reached (id) AS (
        SELECT s.dead_letters_to FROM subscriptions AS s WHERE s.id = owner_id AND s.dead_letters_to IS NOT NULL
        UNION
        SELECT s.dead_letters_to
        FROM reached AS r
        JOIN subscription_topics AS o ON o.topic_id = r.id
        JOIN subscriptions AS s ON s.id = o.subscription_id
        WHERE s.dead_letters_to IS NOT NULL
    )
    SELECT MIN(t.address) INTO back
    FROM reached AS r
    JOIN subscription_topics AS o ON o.subscription_id = owner_id AND o.topic_id = r.id
    JOIN topics AS t ON t.id = r.id;
    IF back IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('its dead letters would come back to "', LEFT(back, 60), '", which it reads'));
    END IF;
END;

-- name: require_publisher
-- Refuses a login that is in no role that may publish (PS006): naming a topic for dead letters publishes to it. Where
-- no roles were installed, a login has what the owner has given it.
CREATE PROCEDURE require_publisher(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE installed, held INT DEFAULT 0;
    DECLARE roles LONGTEXT DEFAULT roles_of_caller();
    SELECT COUNT(r.name), COALESCE(SUM(
        r.kind IN ('publisher', 'gateway', 'operator') AND JSON_CONTAINS(roles, JSON_QUOTE(r.name))), 0)
    INTO installed, held
    FROM installed_roles AS r;
    IF installed > 0 AND held = 0 AND user_part(USER()) <> user_part(CURRENT_USER()) THEN
        CALL refuse('PS006', CONCAT('the login may not publish, so nothing of it goes to "', LEFT(topic, 60), '"'));
    END IF;
END;
