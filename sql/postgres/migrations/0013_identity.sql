-- name: names_of_topics
-- What sinks and archives hold is named by known_as, which a topic keeps and no other gets: the address at its creation, and its
-- id. Until now it was named by the address: a topic of that time keeps the one that it has, so that its files and producers go on.
ALTER TABLE topics ADD COLUMN known_as text COLLATE "C";
UPDATE topics SET known_as = address;

-- name: addresses_of_blocks
-- A block that is sent again has to be the very same, also when its topic was given another address meanwhile. Only the newest
-- block of a partition can be open.
ALTER TABLE blocks ADD COLUMN topic text COLLATE "C";
UPDATE blocks AS b
SET topic = t.address
FROM leases AS l JOIN partitions AS p ON p.id = l.partition_id JOIN topics AS t ON t.id = p.topic_id
WHERE b.id = (
    SELECT max(o.id) FROM blocks AS o WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id);

-- name: stops_of_subscriptions
-- Who may not operate a topic stops only his own subscription; 0 stands for all readers.
ALTER TABLE stops ADD COLUMN subscription_id bigint NOT NULL DEFAULT 0;
ALTER TABLE stops DROP CONSTRAINT stops_pkey;
ALTER TABLE stops ADD CONSTRAINT stops_pkey PRIMARY KEY (partition_id, subscription_id);

-- name: drop_changed_functions
-- Functions whose arguments or results changed; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS report_position(text, integer, bigint, integer, text);
DROP FUNCTION IF EXISTS require_readable(bigint, bigint);
DROP FUNCTION IF EXISTS high_watermarks(text);
DROP FUNCTION IF EXISTS describe_topic(text);
DROP FUNCTION IF EXISTS open_block(text, text, bigint, bigint, integer, bigint);
DROP FUNCTION IF EXISTS missing_copies(text, text);
DROP FUNCTION IF EXISTS log_epochs_of(text);
