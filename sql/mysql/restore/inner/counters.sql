-- By design: PostgreSQL finds its counters in the catalog; MySQL has AUTO_INCREMENT and blocks of ids.

-- name: raise_counters
-- After a restore: raises the counters, so that no id is given out a second time. A dump of only the rows does not
-- contain the counters, and pending is usually empty. Events that were published with a counter that was set back
-- wait below the floor; look_below_floor finds them.
CREATE PROCEDURE raise_counters()
BEGIN
    DECLARE gone_topic, last_topic, highest BIGINT;
    CALL find_highest_id(highest);
    CALL raise_blocks_above(highest);
    -- The events of a topic with the id of a deleted one would be discarded.
    SELECT MAX(d.topic_id) INTO gone_topic FROM deleted_topics AS d;
    SELECT MAX(t.id) INTO last_topic FROM topics AS t;
    IF gone_topic > COALESCE(last_topic, 0) THEN
        INSERT INTO topics (id, namespace_id, name, address, partitions) VALUES (gone_topic, 0, '', '', 1);
        DELETE FROM topics WHERE id = gone_topic;
    END IF;
    CALL raise_other_counters();
END;

-- name: find_highest_id
-- The highest event id that occurs anywhere in the log.
CREATE PROCEDURE find_highest_id(OUT highest BIGINT)
READS SQL DATA
BEGIN
    SELECT GREATEST(s.settled_block * 256 + 255, COALESCE((SELECT MAX(p.block) * 256 + 255 FROM pending AS p), 0),
                    COALESCE((SELECT MAX(e.id) FROM events AS e), 0),
                    COALESCE((SELECT MAX(c.last_id) FROM chunks AS c), 0))
    INTO highest
    FROM sequencer AS s;
END;

-- name: raise_blocks_above
-- Raises the counter of blocks above an event id. To raise a counter for good, this inserts a row with an explicit
-- number and deletes it before anyone sees it.
CREATE PROCEDURE raise_blocks_above(highest BIGINT)
BEGIN
    DECLARE given BIGINT;
    INSERT INTO pending (event_count) VALUES (1);
    SET given = LAST_INSERT_ID();
    DELETE FROM pending WHERE block = given;
    IF given <= highest DIV 256 THEN
        INSERT INTO pending (block, event_count) VALUES (highest DIV 256 + 1, 1);
        DELETE FROM pending WHERE block = highest DIV 256 + 1;
    END IF;
END;

-- name: raise_block_counter
-- Raises the counter of blocks above what was sequenced or waits, in a log that runs. The caller has locked the
-- sequencer's row.
CREATE PROCEDURE raise_block_counter()
BEGIN
    DECLARE reached BIGINT;
    SELECT GREATEST(s.settled_block, COALESCE((SELECT MAX(p.block) FROM pending AS p), 0)) INTO reached
    FROM sequencer AS s;
    CALL raise_blocks_above(reached * 256);
END;

-- name: raise_other_counters
-- The same for ids of rows that may be deleted while other rows still refer to them. Otherwise a new subscription
-- would take the positions of a deleted one with its id, a new block the failures of an old one, and a queue could deal
-- nothing.
CREATE PROCEDURE raise_other_counters()
BEGIN
    DECLARE gone, last BIGINT;
    SELECT GREATEST(COALESCE((SELECT MAX(p.subscription_id) FROM positions AS p), 0),
                    COALESCE((SELECT MAX(h.subscription_id) FROM lease_history AS h), 0),
                    COALESCE((SELECT MAX(b.subscription_id) FROM blocks AS b), 0),
                    COALESCE((SELECT MAX(d.subscription_id) FROM dropped_letters AS d), 0),
                    COALESCE((SELECT MAX(m.subscription_id) FROM removals AS m), 0))
    INTO gone;
    SELECT MAX(s.id) INTO last FROM subscriptions AS s;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO subscriptions (id, name) VALUES (gone, '');
        DELETE FROM subscriptions WHERE id = gone;
    END IF;
    SELECT MAX(f.block_id) INTO gone FROM relay_failures AS f;
    SELECT MAX(b.id) INTO last FROM blocks AS b;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO blocks (id, subscription_id, partition_id, first_sequence, last_sequence, lease_epoch)
        VALUES (gone, 0, 0, 0, 0, 0);
        DELETE FROM blocks WHERE id = gone;
    END IF;
    SELECT MAX(d.id) INTO gone FROM dropped_letters AS d;
    SELECT MAX(d.id) INTO last FROM dead_letters AS d;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO dead_letters (
            subscription_id, partition_id, sequence, history, event_id, type, content_type, payload, created_at, reason,
            id)
        VALUES (0, 0, 0, 0, REPEAT(CHAR(0), 16), '', '', '', UTC_TIMESTAMP(6), '', gone);
        DELETE FROM dead_letters WHERE id = gone;
    END IF;
    SELECT MAX(t.last_id) INTO gone FROM queue_turns AS t;
    SELECT MAX(r.id) INTO last FROM queue_ranges AS r;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO queue_ranges (id, subscription_id, partition_id, first_sequence, last_sequence)
        VALUES (gone, 0, 0, 0, 0);
        DELETE FROM queue_ranges WHERE subscription_id = 0 AND id = gone;
    END IF;
END;
