-- name: headers_problem
-- What is wrong with the headers of an event, or NULL. Headers that a reader's JSON parser cannot parse must
-- not get into the log. The limits are an object of 64 KiB of text, 32 levels and numbers of 400 digits. It
-- is STRICT, so that it costs nothing without headers.
CREATE OR REPLACE FUNCTION headers_problem(headers jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    written text;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RETURN 'its headers are not a JSON object';
    END IF;
    written := headers::text;
    IF octet_length(written) > 65536 THEN
        RETURN 'its headers have ' || octet_length(written) || ' bytes, the limit is 65536';
    END IF;
    -- 33 levels are at least 70 characters. A regular expression counts to 255 at most, so there are two counts. What
    -- looks like a long number may be inside a string, so strings are removed before the second check.
    IF octet_length(written) > 70 AND jsonb_path_exists(headers, '$.**{33}') THEN
        RETURN 'its headers are nested deeper than 32 levels';
    END IF;
    IF octet_length(written) > 400 AND written ~ '[0-9]{201}[0-9]{200}'
       AND regexp_replace(written, $p$"([^"\\]|\\.)*"$p$, '', 'g') ~ '[0-9]{201}[0-9]{200}' THEN
        RETURN 'its headers hold a number of more than 400 digits';
    END IF;
    RETURN NULL;
END
$$;

-- name: has_plain_headers
-- Whether headers are certainly valid, found without a function call: an object of at most 400 characters, whose
-- binary JSON is shorter than 33 levels need. It is inlined into the query that calls it.
CREATE OR REPLACE FUNCTION has_plain_headers(headers jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT headers IS NULL
        OR jsonb_typeof(headers) = 'object' AND pg_column_size(headers) < 264
           AND pg_column_compression(headers) IS NULL AND octet_length(headers::text) <= 400
$$;

-- name: event_problem
-- What is wrong with an event, as 'SQLSTATE problem', or NULL. One rule for publish, publish_batch and
-- publish_bulk. It is STABLE, as || of numbers is, so that it can be inlined into the query that calls it.
-- latest is the end of the longest delay.
CREATE OR REPLACE FUNCTION event_problem(
    payload_bytes integer, key text, type text, content_type text, headers jsonb, partition integer,
    not_before timestamptz, dedup_key text, partitions integer, strategy text, max_payload_bytes integer,
    latest timestamptz
) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN partitions IS NULL THEN 'PS002 its topic does not exist'
        WHEN payload_bytes IS NULL THEN 'PS006 its payload is NULL'
        WHEN payload_bytes > max_payload_bytes
            THEN 'PS004 its payload has ' || payload_bytes || ' bytes, the limit is ' || max_payload_bytes
        WHEN char_length(key) > 255 THEN 'PS006 its key has ' || char_length(key) || ' characters, the limit is 255'
        WHEN char_length(type) > 255 THEN 'PS006 its type has more than 255 characters'
        WHEN char_length(content_type) > 255 THEN 'PS006 its content type has more than 255 characters'
        WHEN char_length(dedup_key) > 255 THEN 'PS006 its dedup key has more than 255 characters'
        WHEN not_before > latest THEN 'PS006 its delay is longer than longest_delay_seconds allows'
        WHEN NOT has_plain_headers(headers) AND headers_problem(headers) IS NOT NULL
            THEN 'PS006 ' || headers_problem(headers)
        ELSE partition_problem(partitions, strategy, partition)
    END
$$;

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

-- name: latest_due
-- The latest time to which an event may be delayed.
CREATE OR REPLACE FUNCTION latest_due() RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$
    SELECT clock_timestamp() + make_interval(secs => setting('longest_delay_seconds'))
$$;
