-- name: find_open_block
-- The block of a partition that was recorded and whose end is not committed yet.
CREATE OR REPLACE FUNCTION find_open_block(subscription_id bigint, partition_id bigint) RETURNS blocks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    newest blocks%ROWTYPE;
BEGIN
    SELECT b.* INTO newest
    FROM blocks AS b
    WHERE b.subscription_id = find_open_block.subscription_id AND b.partition_id = find_open_block.partition_id
    ORDER BY b.id DESC
    LIMIT 1;
    IF newest.first_sequence = current_position(find_open_block.subscription_id, find_open_block.partition_id) + 1 THEN
        RETURN newest;
    END IF;
    RETURN NULL;
END
$$;

-- name: end_block
-- Removes the newest block of a partition if it begins at this sequence. It was committed, and the position has been
-- put before it again: what is sent from there is cut and counted anew.
CREATE OR REPLACE FUNCTION end_block(subscription_id bigint, partition_id bigint, first_sequence bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM blocks AS b
    WHERE b.first_sequence = end_block.first_sequence AND b.id = (
        SELECT n.id FROM blocks AS n
        WHERE n.subscription_id = end_block.subscription_id AND n.partition_id = end_block.partition_id
        ORDER BY n.id DESC
        LIMIT 1);
END
$$;

-- name: record_block
-- Records a new block of a partition. Raises PS021.
CREATE OR REPLACE FUNCTION record_block(
    subscription_id bigint, partition_id bigint, lease_epoch bigint, first_sequence bigint, last_sequence bigint
) RETURNS blocks
LANGUAGE plpgsql AS $$
DECLARE
    block blocks%ROWTYPE;
BEGIN
    IF EXISTS (
        SELECT FROM blocks AS b
        WHERE b.subscription_id = record_block.subscription_id AND b.partition_id = record_block.partition_id
          AND b.id > (SELECT c.last_value - (NOT c.is_called)::integer FROM blocks_id AS c))
    THEN
        -- A consumer that takes over would not find this block, and would make another one.
        PERFORM refuse_set_back('blocks_id');
    END IF;
    INSERT INTO blocks (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch, topic)
    SELECT record_block.subscription_id, p.id, record_block.first_sequence, record_block.last_sequence,
           record_block.lease_epoch, t.address
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = record_block.partition_id
    RETURNING * INTO block;
    RETURN block;
END
$$;

-- name: block_row
-- A block as open_block returns it.
CREATE OR REPLACE FUNCTION block_row(block blocks, was_open boolean)
RETURNS TABLE (
    block_id bigint, first_sequence bigint, last_sequence bigint, repeated boolean, attempt integer, topic text,
    known_as text
)
LANGUAGE sql STABLE AS $$
    SELECT block.id, block.first_sequence, block.last_sequence, was_open, 1 + (
        SELECT count(*) FROM relay_failures AS f WHERE f.block_id = block.id)::integer, block.topic,
        t.known_as
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = block.partition_id
$$;
