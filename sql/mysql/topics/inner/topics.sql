-- name: refuse_topic
-- Raises the error that there is no such topic (PS002), in the same words whether it is missing or hidden.
CREATE PROCEDURE refuse_topic(topic LONGTEXT)
NO SQL
BEGIN
    CALL refuse('PS002', CONCAT('there is no topic "', COALESCE(LEFT(topic, 100), ''), '"'));
END;

-- name: require_topic
-- The id of a topic that the login may read; raises PS002.
CREATE PROCEDURE require_topic(topic VARCHAR(4000), OUT topic_id BIGINT)
READS SQL DATA
BEGIN
    CALL require_topic_for(topic, 'read', topic_id);
END;

-- name: require_topic_for
-- The id of a topic in which the login holds a right (see has_right); raises PS002.
CREATE PROCEDURE require_topic_for(topic VARCHAR(4000), verb VARCHAR(20), OUT topic_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE asked_in BIGINT;
    -- A query in SET, IF, DEFAULT, VALUES or the argument of a CALL locks what it reads to the end of the transaction,
    -- on both engines; SELECT .. INTO does not.
    SELECT MAX(t.id), MAX(IF(t.restricted OR @penstock_acting IS NOT NULL, t.namespace_id, NULL))
    INTO topic_id, asked_in
    FROM topics AS t
    WHERE t.address_hash = UNHEX(SHA2(topic, 256));
    IF topic_id IS NULL THEN
        CALL refuse_topic(topic);
    ELSEIF asked_in IS NOT NULL THEN
        CALL require_right(topic, asked_in, verb);
    END IF;
END;

-- name: require_partition
-- The id of a partition of a topic that the login may read. Raises PS002 or PS005.
CREATE PROCEDURE require_partition(topic VARCHAR(4000), number INT, OUT partition_id BIGINT)
READS SQL DATA
BEGIN
    CALL require_partition_for(topic, number, 'read', partition_id);
END;

-- name: require_partition_for
-- The id of a partition of a topic in which the login holds a right; raises PS002 or PS005.
CREATE PROCEDURE require_partition_for(topic VARCHAR(4000), number INT, verb VARCHAR(20), OUT partition_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL require_topic_for(topic, verb, owner_id);
    SELECT MAX(p.id) INTO partition_id FROM partitions AS p WHERE p.topic_id = owner_id AND p.number = number;
    IF partition_id IS NULL THEN
        CALL refuse('PS005', CONCAT('topic "', topic, '" has no partition ', COALESCE(number, 'NULL')));
    END IF;
END;

-- name: lock_topic
-- The id and the number of partitions of a topic in which the login holds a right, locked against deletion, resize
-- and subscribe to the end of the transaction; publishers are not affected. Raises PS002.
CREATE PROCEDURE lock_topic(topic LONGTEXT, verb VARCHAR(20), OUT topic_id BIGINT, OUT topic_partitions INT)
BEGIN
    DECLARE asked_in BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    -- First without a lock: a name that is refused must not stay locked to the end of another tenant's
    -- transaction.
    SELECT MAX(t.namespace_id) INTO asked_in
    FROM topics AS t WHERE t.address_hash = UNHEX(SHA2(topic, 256)) AND (t.restricted OR @penstock_acting IS NOT NULL);
    IF asked_in IS NOT NULL THEN
        CALL require_right(topic, asked_in, verb);
    END IF;
    SET topic_id = NULL, asked_in = NULL;
    SELECT t.id, t.partitions, IF(t.restricted OR @penstock_acting IS NOT NULL, t.namespace_id, NULL)
    INTO topic_id, topic_partitions, asked_in
    FROM topics AS t
    WHERE t.address_hash = UNHEX(SHA2(topic, 256))
    FOR UPDATE;
    IF topic_id IS NULL THEN
        CALL refuse_topic(topic);
    ELSEIF asked_in IS NOT NULL THEN
        CALL require_right(topic, asked_in, verb);
    END IF;
END;

-- name: require_strategy
-- Checks the partition strategy of a topic: crc32, round_robin, explicit, or client:NAME; raises PS006.
CREATE PROCEDURE require_strategy(strategy VARCHAR(255))
NO SQL
BEGIN
    IF strategy IS NULL OR strategy NOT REGEXP '^(crc32|round_robin|explicit|client:[A-Za-z0-9_.-]{1,100})$' THEN
        CALL refuse('PS006', CONCAT('there is no partition strategy "', COALESCE(LEFT(strategy, 80), 'NULL'), '"'));
    END IF;
END;

-- name: require_partition_count
-- Checks a number of partitions; raises PS005.
CREATE PROCEDURE require_partition_count(partitions INT)
NO SQL
BEGIN
    IF partitions IS NULL OR partitions NOT BETWEEN 1 AND 65536 THEN
        CALL refuse('PS005',
                    CONCAT('a topic cannot have ', COALESCE(partitions, 'NULL'), ' partitions: use 1 to 65,536'));
    END IF;
END;

-- name: make_topic
-- Makes a topic and its partitions in a namespace; NULL when its name is taken. The caller has checked everything,
-- and has waited for any other transaction that was making a topic of this name. Changes LAST_INSERT_ID().
CREATE PROCEDURE make_topic(parent BIGINT, topic LONGTEXT, partitions INT, strategy VARCHAR(255), OUT created BIGINT)
BEGIN
    DECLARE parent_path, own_name LONGTEXT;
    DECLARE is_restricted BOOLEAN;
    SET created = NULL;
    CALL split_path(topic, parent_path, own_name);
    CALL is_restricted(parent, is_restricted);
    INSERT IGNORE INTO topics (namespace_id, name, address, partitions, strategy, restricted)
    VALUES (parent, own_name, topic, partitions, strategy, is_restricted);
    IF ROW_COUNT() > 0 THEN
        SET created = LAST_INSERT_ID();
        -- No address has an empty name in its path, so no earlier topic is known by this name.
        UPDATE topics AS t SET t.known_as = CONCAT(topic, '//', created) WHERE t.id = created;
        CALL add_partitions(created, 0, partitions);
    END IF;
END;

-- name: add_partitions
-- Makes the partitions of a topic from one number up to, but not including, another.
CREATE PROCEDURE add_partitions(topic_id BIGINT, first_number INT, new_count INT)
BEGIN
    INSERT INTO partitions (id, topic_id, number)
    SELECT topic_id * 65536 + s.n, topic_id, s.n FROM numbers AS s WHERE s.n >= first_number AND s.n < new_count;
END;

-- name: place_topic
-- Gives a topic another namespace and name. Returns its new address. The caller has locked the whole tree for
-- itself.
CREATE PROCEDURE place_topic(own BIGINT, own_address LONGTEXT, parent BIGINT, new_address LONGTEXT)
BEGIN
    DECLARE parent_path, new_name LONGTEXT;
    DECLARE is_restricted, is_taken BOOLEAN;
    IF CAST(new_address AS BINARY) <> CAST(own_address AS BINARY) THEN
        CALL require_address(new_address);
        SELECT COUNT(*) INTO is_taken FROM topics AS t WHERE t.address_hash = UNHEX(SHA2(new_address, 256));
        IF is_taken THEN
            CALL refuse('PS007', CONCAT('there is already a topic "', LEFT(new_address, 80), '"'));
        END IF;
        CALL split_path(new_address, parent_path, new_name);
        CALL is_restricted(parent, is_restricted);
        UPDATE topics AS t
        SET t.namespace_id = parent, t.name = new_name, t.address = new_address, t.restricted = is_restricted
        WHERE t.id = own;
        CALL refresh_policies('topic', own);
    END IF;
    SELECT new_address AS topic;
END;

-- name: find_own_topic
-- What an existing topic has, even if another transaction made it a moment ago; NULL when there is none.
CREATE PROCEDURE find_own_topic(
    topic LONGTEXT, OUT topic_id BIGINT, OUT topic_partitions INT, OUT topic_strategy VARCHAR(255)
)
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET topic_id = NULL, topic_partitions = NULL, topic_strategy = NULL;
    SELECT t.id, t.partitions, t.strategy INTO topic_id, topic_partitions, topic_strategy
    FROM topics AS t WHERE t.address_hash = UNHEX(SHA2(topic, 256));
END;
