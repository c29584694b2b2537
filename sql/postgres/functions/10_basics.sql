-- name: crc32
-- CRC-32 (zlib) of bytes. PostgreSQL 18 has it built in; before, this is the bitwise form of RFC 1952 section 8.
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
-- A UUIDv7 (RFC 9562): built in from PostgreSQL 18 on; before, milliseconds laid over a random UUID.
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
-- The partition of a key: the same on every engine and in Python. Stored events keep what they were given. STABLE, because
-- convert_to is: as IMMUTABLE it could not become a part of the query that calls it.
CREATE OR REPLACE FUNCTION partition_of(key text, partitions integer) RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT mod(crc32(convert_to(key, 'UTF8')), partitions)::integer
$$;

-- name: current_history
-- The line of history that positions belong to now.
CREATE OR REPLACE FUNCTION current_history() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT max(history) FROM histories
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

-- name: require_name
-- Checks one name of a path; raises PS003.
CREATE OR REPLACE FUNCTION require_name(name text, what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF name IS NULL OR name = '' OR btrim(name) = '' THEN
        PERFORM refuse('PS003', format('the name of a %s is empty', what), 'Give a name of 1 to 500 characters.');
    ELSIF char_length(name) > 500 THEN
        PERFORM refuse('PS003', format('the name of a %s has %s characters', what, char_length(name)),
                       'Use at most 500 characters.');
    ELSIF name ~ '[\x01-\x1f\x7f]' THEN
        PERFORM refuse('PS003', format('the name of a %s holds a control character', what),
                       'Use printable characters only.');
    ELSIF strpos(name, '/') > 0 THEN
        PERFORM refuse('PS003', format('the name of a %s holds "/"', what), '"/" separates the names of a path.');
    END IF;
END
$$;

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when there is none.
CREATE OR REPLACE FUNCTION topic_lookup(topic text)
RETURNS TABLE (topic_id bigint, partitions integer, max_payload_bytes integer, history integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.id, t.partitions, t.max_payload_bytes, current_history()
    FROM topics AS t
    WHERE t.address = topic_lookup.topic
$$;

-- name: require_topic
-- The id of a topic; raises PS002.
CREATE OR REPLACE FUNCTION require_topic(topic text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    SELECT t.id INTO found_id FROM topics AS t WHERE t.address = require_topic.topic;
    IF NOT FOUND THEN
        PERFORM refuse('PS002', format('there is no topic "%s"', topic),
                       'Create it: penstock topic create, or SELECT penstock.create_topic(...).');
    END IF;
    RETURN found_id;
END
$$;

-- name: require_partition
-- The id of a partition of a topic; raises PS002 or PS005.
CREATE OR REPLACE FUNCTION require_partition(topic text, partition integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    owner_id bigint := require_topic(topic);
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
