-- name: refuse_topic
-- Raises the error that there is no such topic (PS002), in the same words whether it is missing or hidden.
CREATE OR REPLACE FUNCTION refuse_topic(topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('PS002', format('there is no topic "%s"', left(topic, 200)),
                   'Create it: penstock topic create, or SELECT penstock.create_topic(...).');
END
$$;

-- name: require_topic
-- The id of a topic that the login may read; raises PS002.
CREATE OR REPLACE FUNCTION require_topic(topic text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN require_topic_for(topic, 'read');
END
$$;

-- name: require_topic_for
-- The id of a topic in which the login holds a right (see has_right); raises PS002.
CREATE OR REPLACE FUNCTION require_topic_for(topic text, verb text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    SELECT t.id INTO found_id
    FROM topics AS t
    WHERE t.address = require_topic_for.topic
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, verb));
    IF NOT FOUND THEN
        PERFORM refuse_topic(topic);
    END IF;
    RETURN found_id;
END
$$;

-- name: require_partition
-- The id of a partition of a topic that the login may read. Raises PS002 or PS005.
CREATE OR REPLACE FUNCTION require_partition(topic text, partition integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN require_partition_for(topic, partition, 'read');
END
$$;

-- name: require_partition_for
-- The id of a partition of a topic in which the login holds a right; raises PS002 or PS005.
CREATE OR REPLACE FUNCTION require_partition_for(topic text, partition integer, verb text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    owner_id bigint := require_topic_for(topic, verb);
    found_id bigint;
BEGIN
    SELECT p.id INTO found_id FROM partitions AS p WHERE p.topic_id = owner_id AND p.number = partition;
    IF NOT FOUND THEN
        PERFORM refuse('PS005', format('topic "%s" has no partition %s', topic, partition),
                       'Partitions are numbered from 0; penstock topic describe tells how many there are.');
    END IF;
    RETURN found_id;
END
$$;

-- name: lock_topic
-- A topic in which the login holds a right, locked against deletion, resize and subscribe to the end of the
-- transaction; publishers are not affected. Raises PS002.
CREATE OR REPLACE FUNCTION lock_topic(topic text, verb text) RETURNS topics
LANGUAGE plpgsql AS $$
DECLARE
    found_row topics%ROWTYPE;
BEGIN
    SELECT t.* INTO found_row FROM topics AS t
    WHERE t.address = lock_topic.topic AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, verb))
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse_topic(topic);
    END IF;
    RETURN found_row;
END
$$;

-- name: require_strategy
-- Checks the partition strategy of a topic: crc32, round_robin, explicit, or client:NAME; raises PS006.
CREATE OR REPLACE FUNCTION require_strategy(strategy text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF strategy IS NULL OR strategy !~ '^(crc32|round_robin|explicit|client:[A-Za-z0-9_.-]{1,100})$' THEN
        PERFORM refuse('PS006', format('there is no partition strategy "%s"', left(strategy, 200)),
                       'Use crc32, round_robin, explicit, or client:NAME for one that the publishers bring.');
    END IF;
END
$$;

-- name: require_partition_count
-- Checks a number of partitions; raises PS005.
CREATE OR REPLACE FUNCTION require_partition_count(partitions integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF partitions IS NULL OR partitions NOT BETWEEN 1 AND 65536 THEN
        PERFORM refuse('PS005', format('a topic cannot have %s partitions', partitions),
                       'Use 1 to 65,536; up to 1,024 is practical.');
    END IF;
END
$$;

-- name: make_topic
-- Makes a topic and its partitions in a namespace; NULL when its name is taken. The caller has checked everything,
-- and has waited for any other transaction that was making a topic of this name.
CREATE OR REPLACE FUNCTION make_topic(parent bigint, topic text, partitions integer, strategy text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    created bigint;
BEGIN
    INSERT INTO topics (namespace_id, name, address, partitions, strategy, restricted)
    VALUES (parent, name_of(topic), make_topic.topic, make_topic.partitions, make_topic.strategy, is_restricted(parent))
    ON CONFLICT DO NOTHING
    RETURNING id INTO created;
    IF created IS NOT NULL THEN
        -- No address has an empty name in its path, so no earlier topic is known by this name.
        UPDATE topics AS t SET known_as = t.address || '//' || t.id WHERE t.id = created;
        PERFORM add_partitions(created, 0, partitions);
    END IF;
    RETURN created;
END
$$;

-- name: add_partitions
-- Makes the partitions of a topic from one number up to, but not including, another.
CREATE OR REPLACE FUNCTION add_partitions(topic_id bigint, first integer, count integer) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO partitions (id, topic_id, number)
    SELECT (add_partitions.topic_id << 16) | number, add_partitions.topic_id, number
    FROM generate_series(add_partitions.first, add_partitions.count - 1) AS number
$$;

-- name: place_topic
-- Gives a topic another namespace and name. Returns its new address. The caller has locked the whole tree for
-- itself.
CREATE OR REPLACE FUNCTION place_topic(own topics, parent namespaces, new_name text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    new_address text := parent.path || '/' || new_name;
BEGIN
    IF new_address = own.address THEN
        RETURN new_address;
    END IF;
    PERFORM require_address(new_address);
    IF EXISTS (SELECT FROM topics AS t WHERE t.address = new_address) THEN
        PERFORM refuse_taken('topic', new_address);
    END IF;
    UPDATE topics AS t
    SET namespace_id = parent.id, name = new_name, address = new_address, restricted = is_restricted(parent.id)
    WHERE t.id = own.id;
    IF parent.id <> own.namespace_id THEN
        PERFORM refresh_policies('topic', own.id);
    END IF;
    RETURN new_address;
END
$$;
