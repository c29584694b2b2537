-- name: crc32
-- CRC-32 (zlib) of bytes. PostgreSQL 18 has it built in; for older versions this is the bitwise form of RFC 1952
-- section 8.
DO $install$
BEGIN
    IF current_setting('server_version_num')::integer < 180000 THEN
        EXECUTE $create$
            CREATE OR REPLACE FUNCTION crc32(data bytea) RETURNS bigint
            LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $body$
            DECLARE
                crc bigint := 4294967295;
            BEGIN
                FOR i IN 0 .. octet_length(data) - 1 LOOP
                    crc := crc # get_byte(data, i);
                    FOR bit IN 1 .. 8 LOOP
                        crc := (crc >> 1) # (3988292384 * (crc & 1));
                    END LOOP;
                END LOOP;
                RETURN crc # 4294967295;
            END
            $body$
        $create$;
    END IF;
END
$install$;

-- name: new_event_id
-- A UUIDv7 (RFC 9562): built in from PostgreSQL 18 on; on older versions, the time in milliseconds is written
-- over a random UUID.
DO $install$
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        EXECUTE $create$
            CREATE OR REPLACE FUNCTION new_event_id() RETURNS uuid
            LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT uuidv7()'
        $create$;
    ELSE
        EXECUTE $create$
            CREATE OR REPLACE FUNCTION new_event_id() RETURNS uuid
            LANGUAGE sql VOLATILE PARALLEL SAFE AS $body$
                SELECT encode(
                    set_bit(set_bit(overlay(
                        uuid_send(gen_random_uuid())
                        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                        FROM 1 FOR 6
                    ), 52, 1), 53, 1), 'hex')::uuid
            $body$
        $create$;
    END IF;
END
$install$;

-- name: partition_of
-- The partition of a key: the same on every engine and in Python. Stored events keep the partition that they were
-- given. It is STABLE because convert_to is; as IMMUTABLE it could not be inlined into the query that calls it.
CREATE OR REPLACE FUNCTION partition_of(key text, partitions integer) RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT mod(crc32(convert_to(key, 'UTF8')), partitions)::integer
$$;

-- name: current_history
-- The line of history that positions belong to now.
CREATE OR REPLACE FUNCTION current_history() RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN max(h.history) FROM histories AS h;
END
$$;

-- name: refuse
-- Raises one of Penstock's errors (SQLSTATE class PS): what was wrong, and what to do as the hint.
CREATE OR REPLACE FUNCTION refuse(code text, problem text, remedy text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = problem, HINT = remedy;
END
$$;

-- name: require_read_committed
-- Refuses other isolation levels (PS018): a snapshot that is older than a lock does not see what the lock protects.
CREATE OR REPLACE FUNCTION require_read_committed(what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM refuse('PS018', format('%s needs READ COMMITTED', what),
                       'Call it in a transaction of that isolation level.');
    END IF;
END
$$;

-- name: commit_durably
-- Makes the COMMIT of the caller's transaction wait for the disk, whatever the session has set. Some results fence or
-- acknowledge something outside the database: a lease_epoch, a block, a seal, a right that was taken back. Such a
-- result must not be given out a second time after a crash.
CREATE OR REPLACE FUNCTION commit_durably() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

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

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when the topic does not exist or the login may not
-- publish to it.
CREATE OR REPLACE FUNCTION topic_lookup(topic text)
RETURNS TABLE (topic_id bigint, partitions integer, max_payload_bytes integer, history integer, strategy text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT t.id, t.partitions, t.max_payload_bytes, current_history(), t.strategy
    FROM topics AS t
    WHERE t.address = topic_lookup.topic AND (NOT t.restricted OR has_right(t.namespace_id, 'publish'));
END
$$;

-- name: refuse_topic
-- Raises the error that there is no such topic (PS002), in the same words whether it is missing or hidden.
CREATE OR REPLACE FUNCTION refuse_topic(topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('PS002', format('there is no topic "%s"', left(topic, 200)),
                   'Create it: penstock topic create, or SELECT penstock.create_topic(...).');
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
    WHERE t.address = require_topic_for.topic AND (NOT t.restricted OR has_right(t.namespace_id, verb));
    IF NOT FOUND THEN
        PERFORM refuse_topic(topic);
    END IF;
    RETURN found_id;
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
