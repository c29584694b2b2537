-- name: choose_partition
-- The id of the partition of an event: the one that the publisher asked for, else the one that the topic's strategy
-- chooses. NULL where only the publisher can choose: partition_problem has reported that already.
CREATE OR REPLACE FUNCTION choose_partition(
    topic_id bigint, partitions integer, strategy text, key text, partition integer
) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT (topic_id << 16) | CASE
        WHEN partition IS NOT NULL THEN partition
        WHEN strategy = 'crc32' AND key IS NOT NULL THEN partition_of(key, partitions)
        WHEN strategy IN ('crc32', 'round_robin') THEN mod(nextval('round_robin'), partitions)::integer
    END
$$;

-- name: partition_problem
-- What is wrong with the partition that an event asks for, or fails to ask for, as 'SQLSTATE problem'; NULL when
-- nothing is wrong.
CREATE OR REPLACE FUNCTION partition_problem(partitions integer, strategy text, partition integer) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN partition < 0 OR partition >= partitions
            THEN 'PS005 partition ' || partition || ' does not exist, the topic has ' || partitions
        WHEN partition IS NULL AND strategy NOT IN ('crc32', 'round_robin')
            THEN 'PS005 it names no partition, and the strategy of its topic is ' || strategy
    END
$$;
