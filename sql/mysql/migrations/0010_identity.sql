-- name: drop_change_identity
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_identity;

-- name: create_change_identity
-- Changes of tables that exist, each only where it was not made yet. What sinks and archives hold is named by known_as, which
-- a topic keeps and no other gets: the address at its creation, and its id. Until now it was named by the address: a topic of that
-- time keeps the one that it has, so that its files and producers go on. A block that is sent again has to be the very same, also when its topic was given another address meanwhile. Who
-- may not operate a topic stops only his own subscription; 0 stands for all readers.
CREATE PROCEDURE change_identity()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'topics' AND c.COLUMN_NAME = 'known_as') THEN
        ALTER TABLE topics ADD COLUMN known_as VARCHAR(4030);
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'blocks' AND c.COLUMN_NAME = 'topic') THEN
        ALTER TABLE blocks ADD COLUMN topic VARCHAR(4000);
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'stops' AND c.COLUMN_NAME = 'subscription_id') THEN
        ALTER TABLE stops
            ADD COLUMN subscription_id BIGINT NOT NULL DEFAULT 0,
            DROP PRIMARY KEY, ADD PRIMARY KEY (partition_id, subscription_id);
    END IF;
END;

-- name: change_identity
-- Waits for whoever uses these tables, a second at a time.
CALL change_identity();

-- name: forget_change_identity
-- It was for this migration.
DROP PROCEDURE change_identity;

-- name: names_of_topics
-- Every topic is older than this migration.
UPDATE topics SET known_as = address;

-- name: addresses_of_blocks
-- Only the newest block of a partition can be open.
UPDATE blocks AS b
JOIN (SELECT MAX(o.id) AS id FROM blocks AS o GROUP BY o.subscription_id, o.partition_id) AS newest ON newest.id = b.id
JOIN partitions AS p ON p.id = b.partition_id
JOIN topics AS t ON t.id = p.topic_id
SET b.topic = t.address;
