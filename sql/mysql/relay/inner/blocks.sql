-- name: find_open_block
-- The block of a partition that was recorded and whose end is not committed yet; NULL when there is none.
CREATE PROCEDURE find_open_block(owner_id BIGINT, part_id BIGINT, start BIGINT, OUT block BIGINT)
READS SQL DATA
BEGIN
    SELECT MAX(newest.id) INTO block
    FROM (
        SELECT b.id, b.first_sequence
        FROM blocks AS b FORCE INDEX (blocks_newest)
        WHERE b.subscription_id = owner_id AND b.partition_id = part_id
        ORDER BY b.id DESC
        LIMIT 1
    ) AS newest
    WHERE newest.first_sequence = start;
END;

-- name: end_block
-- Removes the newest block of a partition if it begins at this sequence. It was committed, and the position has been
-- put before it again: what is sent from there is cut and counted anew.
CREATE PROCEDURE end_block(owner_id BIGINT, part_id BIGINT, start BIGINT)
BEGIN
    DECLARE block BIGINT;
    CALL find_open_block(owner_id, part_id, start, block);
    DELETE b FROM blocks AS b WHERE b.id = block;
END;

-- name: find_block_end
-- Where the next block of a partition ends: at most max_events and max_bytes of payload, but at least one
-- event; NULL when there is no event.
CREATE PROCEDURE find_block_end(part_id BIGINT, start BIGINT, max_events INT, max_bytes BIGINT, OUT last BIGINT)
READS SQL DATA
BEGIN
    DECLARE wanted INT DEFAULT LEAST(GREATEST(COALESCE(max_events, 1), 1), 100000);
    SELECT MAX(r.sequence) INTO last
    FROM (
        SELECT e.sequence, SUM(LENGTH(e.payload)) OVER (ORDER BY e.sequence) AS bytes
        FROM logged_events AS e
        WHERE e.partition_id = part_id AND e.first_sequence < start + wanted AND e.first_sequence >= (
              SELECT MAX(f.first_sequence) FROM chunks AS f
              WHERE f.partition_id = part_id AND f.first_sequence <= start)
          AND e.sequence >= start AND e.sequence < start + wanted
    ) AS r
    WHERE r.bytes <= max_bytes OR r.sequence = start;
END;

-- name: record_block
-- Records a new block of a partition.
CREATE PROCEDURE record_block(
    owner_id BIGINT, part_id BIGINT, lease_epoch BIGINT, first_sequence BIGINT, last_sequence BIGINT, OUT block BIGINT
)
BEGIN
    INSERT INTO blocks (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch, topic)
    SELECT owner_id, p.id, first_sequence, last_sequence, lease_epoch, t.address
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = part_id;
    SET block = LAST_INSERT_ID();
END;

-- name: block_row
-- Returns a block as open_block does.
CREATE PROCEDURE block_row(block BIGINT, was_open BOOLEAN)
READS SQL DATA
BEGIN
    SELECT b.id AS block_id, b.first_sequence, b.last_sequence, was_open AS repeated,
           1 + (SELECT COUNT(*) FROM relay_failures AS f WHERE f.block_id = b.id) AS attempt, b.topic,
           t.known_as
    FROM blocks AS b JOIN partitions AS p ON p.id = b.partition_id JOIN topics AS t ON t.id = p.topic_id
    WHERE b.id = block;
END;
